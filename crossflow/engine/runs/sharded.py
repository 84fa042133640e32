"""Passes whose weights are sharded over ranks: gathers run ahead of the kernels that read them, reductions behind them.

Both share one in-order stream. The host launches kernels ahead of them, or the device waits for it; what hides behind kernels hides behind
such waits as well. Units pass one after the other; a layer that repeats is a block (`crossflow.engine.maxplus`), so
that parts of a layer that compute and communicate for different times wait for each other as they do on a device.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from crossflow.base.arrays import Array, Index, alike, by_point, once
from crossflow.engine.maxplus import NO_PATH, applied, chained, repeated
from crossflow.workload.transformer import Transformer

Groups = tuple[tuple[int, ...], ...]  # units that follow one another and repeat together


@dataclass(frozen=True, kw_only=True)
class UnitTimes:
    """What every unit takes, shape (units, n) or, of several rows of a pipeline, (rows, units, n). [s]"""

    before: Array  # collectives that its kernels wait for, and that do not wait for its weights
    compute: Array  # its kernels, and the collectives that wait for them
    arrive: Array  # gather of its weights
    leave: Array  # reduction of their gradients
    host: Array  # time that the host needs for them

    def times(self, often: Array) -> UnitTimes:
        """What all occurrences take, `often` of each."""
        return UnitTimes(**{field.name: often * getattr(self, field.name) for field in fields(self)})

    def at(self, units: Index) -> UnitTimes:
        """Times of units that may be named more than once."""
        return UnitTimes(**{field.name: getattr(self, field.name)[units] for field in fields(self)})

    def together(self, groups: Sequence[Sequence[int]]) -> UnitTimes:
        """Times of groups of units, in the order in which they run; only the first one's collectives do not wait for weights."""
        sums = {field.name: np.stack([getattr(self, field.name)[:, list(units)].sum(axis=1) for units in groups], axis=1)
                for field in fields(self)}  # fmt: skip
        before = self.before[:, [units[0] for units in groups]]
        return UnitTimes(**{**sums, "before": before, "compute": sums["compute"] + sums["before"] - before})

    def row(self, row: int, at: Index | slice) -> UnitTimes:
        """Times of one row at some of the points."""
        return UnitTimes(**{field.name: getattr(self, field.name)[row][:, at] for field in fields(self)})


@once
def unit_groups(model: Transformer) -> Groups:
    """Parts of a model that repeat together, in its order: embedding, the parts of each group of layers, head."""
    found: list[tuple[int, ...]] = [(0,)]
    start = 1
    for layer in model.layers:
        found.append(tuple(range(start, start + len(layer.parts))))
        start += len(layer.parts)
    return (*found, (start,))


def sharded_passes(
    groups: Groups,
    often: Array,
    units: tuple[UnitTimes, UnitTimes, Array, Array, Array],
    plain: Sequence[Array],
    first: Array,
    *,
    ahead: bool,
    whole: bool,
) -> tuple[Array, Array]:
    """Time of passes forward and backward, each of shape (rows, n). [s]

    Parameters
    ----------
    groups : units that repeat together.
    often : how often units occur in rows: forward, and with a gradient of their inputs and weights, shape (3, rows, units). [1]
    units : what a unit takes forward, backward for its input's gradient, for its weights' gradient, backward in addition where its
        weights are frozen, and what the host takes for its weights' gradient, each of shape (units, n). [s]
    plain : time of each row without gathers and reductions, forward and backward, as long as its device or its host takes, shape
        (rows, n). [s]
    first : time before a unit's gather, where it is the first of a pass, shape (units, n). [s]
    ahead : whether gathers run ahead of kernels and reductions behind them; one after the other where not.
    whole : whether units that repeat together are gathered and reduced together.
    """
    forward_of, input_of, weight_of = (by_point(one) for one in often)
    forward, backward = units[0].times(forward_of), units[1].times(input_of)
    gradients = weight_of * units[2] + np.maximum(input_of - weight_of, 0.0) * units[3]
    backward = replace(
        backward, compute=backward.compute + gradients, leave=weight_of * units[1].leave, host=backward.host + weight_of * units[4]
    )
    if not ahead:
        sums = [time + (one.arrive + one.leave).sum(axis=1) for time, one in zip(plain, (forward, backward), strict=True)]
        return np.asarray(sums[0]), np.asarray(sums[1])
    if whole:
        forward, backward = forward.together(groups), backward.together([units[::-1] for units in groups])
        often = np.stack([often[:, :, list(units)].max(axis=2) for units in groups], axis=2)
        first = np.stack([first[list(units)].sum(axis=0) for units in groups])
        groups = tuple((i,) for i in range(len(groups)))
    result = np.empty((2, len(forward_of), first.shape[1]))
    with np.errstate(invalid="ignore"):  # over a link without bandwidth nothing ever arrives
        for row, distinct in enumerate(_first_alike(often)):
            if distinct < row:
                result[:, row] = result[:, distinct]
                continue
            there, back = often[0, row], often[1:, row].max(axis=0)
            for at in _present_alike(groups, there, back):
                ahead_of, behind = (one if one.ndim < 2 else one[:, at] for one in (there, back))
                result[0, row, at] = forward_pass(groups, ahead_of, forward.row(row, at), first[:, at])
                result[1, row, at] = backward_pass(groups, behind, backward.row(row, at), first[:, at])
    return np.maximum(result[0], plain[0]), np.maximum(result[1], plain[1])


def _first_alike(often: Array) -> list[int]:
    """For every row the first in which units occur as often."""
    seen: dict[bytes, int] = {}
    return [seen.setdefault(often[:, row].tobytes(), row) for row in range(often.shape[1])]


def _present_alike(groups: Groups, forward: Array, backward: Array) -> list[Index | slice]:
    """Points at which the same groups of units occur in a row: all of them, where units occur as often at every point."""
    if forward.ndim < 2:
        return [slice(None)]
    there = np.array([often[list(units)].any(axis=0) for often in (forward, backward) for units in groups])
    return [at for _, at in alike(there)]


def forward_pass(groups: Groups, counts: Array, times: UnitTimes, first: Array) -> Array:
    """Time of a pass forward, of shape (n,). [s]

    Kernels wait for the weights of their unit, which are gathered after those of the units before it.

    Parameters
    ----------
    counts : how often each unit occurs, shape (units,) or (units, n); at all points or at none. [1]
    times : of all occurrences together.
    first : time before a unit's gather, where it is the first, shape (units, n). [s]
    """
    order = _present(groups, counts)
    before, compute, arrive, *_ = _once(order, times)
    never = np.full_like(arrive, NO_PATH)
    blocks = np.array([[before + compute, arrive + compute], [never, arrive]])
    state = np.zeros((2, first.shape[1]))  # when the kernels and the gathers so far are through
    state[1] = first[order[0][0][0]] if order else 0.0
    for units, often in order:
        state = repeated(functools.reduce(chained, [blocks[:, :, unit] for unit in units]), often, state)
    return np.asarray(state.max(axis=0))


def backward_pass(groups: Groups, counts: Array, times: UnitTimes, first: Array) -> Array:
    """Time of a pass backward, of shape (n,), from the last unit to the first. [s]

    The gather of the next unit's weights is issued before this unit's gradients are reduced, for which the device has had to wait for the
    host too. Arguments as in `forward_pass`.
    """
    order = [(units[::-1], often) for units, often in reversed(_present(groups, counts))]
    before, compute, arrive, leave, host = _once(order, times)
    never, reduced = np.full_like(arrive, NO_PATH), np.where(leave > 0, leave, NO_PATH)

    def block(unit: int, following: Array) -> Array:
        """Kernels, the stream, the weights of the unit that comes, of which the gather is `following`, and the host."""
        b, c, none, behind, h = before[unit], compute[unit], never[unit], reduced[unit], host[unit]
        return np.array(
            [
                [b + c, none, c, none],
                [b + c + behind, following + leave[unit], c + behind, h + behind],
                [none, following, none, none],
                [none, none, none, h],
            ]
        )

    nothing = np.zeros(first.shape[1])
    heads = [arrive[units[0]] for units, _ in order]  # gathers with which groups begin
    there = first[order[0][0][0]] + heads[0] if order else nothing
    state = np.stack([nothing, there, there, nothing])
    for (units, often), follows in zip(order, [*heads[1:], nothing][: len(order)], strict=True):
        inner = [block(unit, arrive[after]) for unit, after in itertools.pairwise(units)]
        if np.any(often > 1):
            state = repeated(functools.reduce(chained, (*inner, block(units[-1], arrive[units[0]]))), often - 1, state)
        for one in (*inner, block(units[-1], follows)):
            state = applied(one, state)
    return np.asarray(state[[0, 1, 3]].max(axis=0))


def _once(order: Sequence[tuple[tuple[int, ...], int | Index]], times: UnitTimes) -> Array:
    """Times of one occurrence of every unit: before, compute, arrive, leave and the host's, shape (5, units, n). [s]"""
    often = np.ones(times.compute.shape)
    for units, count in order:
        often[list(units)] = count
    return np.array([times.before, times.compute, times.arrive, times.leave, times.host]) / often


def _present(groups: Groups, counts: Array) -> list[tuple[tuple[int, ...], int | Index]]:
    """Groups of units that occur, with how often each does; of units that occur less often the times are spread."""
    often = [(units, counts[list(units)].max(axis=0)) for units in groups]
    return [(units, count.astype(int) if count.ndim else int(count)) for units, count in often if count.any()]
