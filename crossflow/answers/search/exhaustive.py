"""Exhaustive search: every combination of the options and of the counted values of ranges, less those that cannot be best.

A design is left out when it does not fit in memory, or when the lower bound of its objectives (every kernel at its
operations at peak and its compulsory traffic) is no better than the best design that is known, for several objectives:
dominated by one. What is left out is never evaluated in full; the best and the front are those of the whole space.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crossflow.answers.search.oracle import Oracle
from crossflow.answers.search.settings import ExhaustiveSettings
from crossflow.answers.search.space import Designs, Space
from crossflow.base.arrays import Array, Index, Mask

BATCH = 64  # designs between two looks at what can be left out
ROUNDING = 1e-9  # a bound and a time that are equal may differ by this


def search(oracle: Oracle, settings: ExhaustiveSettings) -> None:
    """Evaluate every design, the most promising first."""
    designs = every(oracle.problem.space)
    bounds = oracle.problem.bound(designs) if settings.prune else None
    if bounds is None:
        oracle.each(designs.take(slice(start, start + BATCH)) for start in range(0, len(designs), BATCH))
        return
    possible = np.asarray(np.isfinite(bounds).all(axis=0))
    order = np.asarray(np.argsort(np.log(np.maximum(bounds, 1e-300)).sum(axis=0), kind="stable"), dtype=np.intp)
    left_out: list[Index] = [order[~possible[order]]]
    for index in _batches(order[possible[order]]):
        hopeless = beaten(oracle, bounds[:, index])
        left_out.append(index[hopeless])
        if not hopeless.all():
            oracle(designs.take(index[~hopeless]))
    rest = np.concatenate(left_out)
    if oracle.incumbent[0] > 0:  # nothing keeps all constraints: which design misses them least?
        oracle.each(designs.take(index) for index in _batches(rest))
    else:
        oracle.pruned += len(rest)


def _batches(order: Index) -> Iterator[Index]:
    yield from (order[start : start + BATCH] for start in range(0, len(order), BATCH))


def beaten(oracle: Oracle, bounds: Array) -> Mask:
    """Whether what is known is at least as good as the best that designs with such bounds could be."""
    violation, loss = oracle.incumbent
    if violation > 0:
        return np.zeros(bounds.shape[1], dtype=bool)
    if len(bounds) == 1:
        return np.asarray(bounds[0] >= loss * (1.0 + ROUNDING))
    front = oracle.losses
    return np.asarray((front[:, :, None] * (1.0 + ROUNDING) <= bounds[:, None, :]).all(axis=0).any(axis=0))


def every(space: Space) -> Designs:
    """Every design of a space without shares whose ranges are counted."""
    combinations, grid = space.combinations(), space.grid()
    discrete = np.repeat(combinations, grid.shape[1], axis=1)
    return Designs(continuous=np.tile(grid, (1, combinations.shape[1])), discrete=discrete)
