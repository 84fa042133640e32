"""Passes whose weights are sharded over ranks: gathers run ahead of the kernels that read them, reductions behind them.

Both share one in-order stream. Units pass one after the other; a layer that repeats is a block (`crossflow.engine.maxplus`), so
that parts of a layer that compute and communicate for different times wait for each other as they do on a device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from crossflow.arrays import Array
from crossflow.engine.maxplus import NO_PATH, applied, chained, repeated
from crossflow.workload.transformer import Transformer

Groups = tuple[tuple[int, ...], ...]  # units that follow one another and repeat together


@dataclass(frozen=True, kw_only=True)
class UnitTimes:
    """What every unit takes, shape (units, n) or, of several rows of a pipeline, (rows, units, n). [s]

    Attributes
    ----------
    before : collectives that its kernels wait for, and that do not wait for its weights.
    compute : its kernels, and the collectives that wait for them.
    arrive : gather of its weights.
    leave : reduction of their gradients.
    """

    before: Array
    compute: Array
    arrive: Array
    leave: Array

    def times(self, often: Array, scale: Array | float = 1.0) -> UnitTimes:
        """What all occurrences take, `often` of each; kernels and their collectives take `scale` times as long."""
        return UnitTimes(
            before=often * scale * self.before,
            compute=often * scale * self.compute,
            arrive=often * self.arrive,
            leave=often * self.leave,
        )

    def row(self, row: int) -> UnitTimes:
        """Times of one row."""
        return UnitTimes(**{field.name: getattr(self, field.name)[row] for field in fields(self)})

    def each(self, unit: int, count: float) -> tuple[Array, Array, Array, Array]:
        """The same of one pass of `count`, each of shape (n,)."""
        before, compute, arrive, leave = (getattr(self, field.name)[unit] / count for field in fields(self))
        return before, compute, arrive, leave


@functools.lru_cache(maxsize=256)
def unit_groups(model: Transformer) -> Groups:
    """Units of a model that repeat together, in the order of the model: embedding, the parts of each kind of layer, head."""
    found: list[tuple[int, ...]] = [(0,)]
    start = 1
    for layer in model.layers:
        found.append(tuple(range(start, start + len(layer.parts))))
        start += len(layer.parts)
    return (*found, (start,))


def sharded_passes(
    groups: Groups,
    often: Array,
    units: tuple[UnitTimes, UnitTimes, Array, Array],
    stretch: Sequence[Array],
    first: Array,
    *,
    ahead: bool,
) -> tuple[Array, Array]:
    """Time of passes forward and backward, each of shape (rows, n). [s]

    Parameters
    ----------
    groups : units that repeat together.
    often : how often units occur in rows: forward, and with a gradient of their inputs and weights, shape (3, rows, units). [1]
    units : what a unit takes forward, backward for its input's gradient, for its weights' gradient, and backward in addition
        where its weights are frozen, each of shape (units, n). [s]
    stretch : factor of each row's kernels, forward and backward, shape (rows, n). [1]
    first : time before a unit's gather, where it is the first of a pass, shape (units, n). [s]
    ahead : whether gathers run ahead of kernels and reductions behind them; one after the other where not.
    """
    forward_of, input_of, weight_of = often[..., None]
    forward = units[0].times(forward_of, stretch[0][:, None])
    gradients = weight_of * units[2] + np.maximum(input_of - weight_of, 0.0) * units[3]
    backward = units[1].times(input_of, stretch[1][:, None])
    backward = replace(backward, compute=backward.compute + stretch[1][:, None] * gradients, leave=weight_of * units[1].leave)
    if not ahead:
        sums = [sum(getattr(times, field.name).sum(axis=1) for field in fields(times)) for times in (forward, backward)]
        return np.asarray(sums[0]), np.asarray(sums[1])
    result = np.empty((2, len(forward_of), first.shape[1]))
    with np.errstate(invalid="ignore"):  # over a link without bandwidth nothing ever arrives
        for row, distinct in enumerate(_first_alike(often)):
            if distinct < row:
                result[:, row] = result[:, distinct]
                continue
            result[0, row] = forward_pass(groups, often[0, row], forward.row(row), first)
            result[1, row] = backward_pass(groups, often[1:, row].max(axis=0), backward.row(row), first)
    return result[0], result[1]


def _first_alike(often: Array) -> list[int]:
    """For every row the first in which units occur as often."""
    seen: dict[bytes, int] = {}
    return [seen.setdefault(often[:, row].tobytes(), row) for row in range(often.shape[1])]


def forward_pass(groups: Groups, counts: Array, times: UnitTimes, first: Array) -> Array:
    """Time of a pass forward, of shape (n,). [s]

    Parameters
    ----------
    counts : how often each unit occurs, shape (units,). [1]
    times : of all occurrences together.
    first : time before a unit's gather, where it is the first, shape (units, n). [s]
    """
    order = _present(groups, counts)
    begin = first[order[0][0][0]] if order else np.zeros(first.shape[1])
    state = np.stack([np.zeros_like(begin), begin])  # when the kernels and the gathers so far are through
    for units, often in order:
        blocks = [_ahead(*times.each(unit, often)[:3]) for unit in units]
        state = repeated(functools.reduce(chained, blocks), often, state)
    return np.asarray(state.max(axis=0))


def _ahead(before: Array, compute: Array, arrive: Array) -> Array:
    """A unit forward: kernels wait for its weights, which are gathered after those of the units before it."""
    return np.array([[before + compute, arrive + compute], [np.full_like(arrive, NO_PATH), arrive]])


def backward_pass(groups: Groups, counts: Array, times: UnitTimes, first: Array) -> Array:
    """Time of a pass backward, of shape (n,), from the last unit to the first. [s]

    The gather of the next unit's weights is issued before this unit's gradients are reduced. Arguments as in `forward_pass`.
    """
    order = [(units[::-1], often) for units, often in reversed(_present(groups, counts))]
    heads = [times.each(units[0], often)[2] for units, often in order]  # gathers with which groups begin
    nothing = np.zeros(first.shape[1])
    there = first[order[0][0][0]] + heads[0] if order else nothing
    state = np.stack([nothing, there, there])  # kernels, the stream, and weights of the unit that comes
    for (units, often), follows in zip(order, [*heads[1:], nothing][: len(order)], strict=True):
        gathers = [times.each(unit, often)[2] for unit in units]
        inner = [_behind(times, unit, often, gather) for unit, gather in zip(units[:-1], gathers[1:], strict=True)]
        again, last = (_behind(times, units[-1], often, gather) for gather in (gathers[0], follows))
        state = repeated(functools.reduce(chained, (*inner, again)), often - 1, state)
        for block in (*inner, last):
            state = applied(block, state)
    return np.asarray(state[:2].max(axis=0))


def _behind(times: UnitTimes, unit: int, often: int, following: Array) -> Array:
    """A unit backward: the next gather is on its way, kernels wait for their weights, gradients are reduced."""
    before, compute, _, leave = times.each(unit, often)
    never = np.full_like(following, NO_PATH)
    reduced = np.where(leave > 0, leave, NO_PATH)
    return np.array(
        [
            [before + compute, never, compute],
            [before + compute + reduced, following + leave, compute + reduced],
            [never, following, never],
        ]
    )


def _present(groups: Groups, counts: Array) -> list[tuple[tuple[int, ...], int]]:
    """Groups of units that occur, with how often each does; of units that occur less often the times are spread."""
    often = [(units, round(float(counts[list(units)].max()))) for units in groups]
    return [(units, count) for units, count in often if count]
