"""Layers of stages that lie on devices of unlike speed: the slowest stage takes as little time as whole layers allow.

A stage takes consecutive layers, and takes longer with more of them. So all stages can keep to a limit on their time if, and only if, they
keep to it where each of them, from the last to the first, takes as many layers as it can. The least such limit is found by halving [1]_.
That is exact where every device can take any one layer within the limit; where a layer alone takes a slow device longer, it is near.

References
----------
.. [1] Pinar and Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", JPDC 64(8), 2004, Sec. 3.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index, Mask

HALVINGS = 32  # after which limits are known to less than a millionth
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class StageLoads:
    """What layers take, by the kind of devices of the stage that has them; n design points."""

    layers: Array  # time of every layer on each kind, shape (kinds, layers, n). [s]
    first: Array  # time of what the first stage has beside its layers, shape (n,). [s]
    last: Array  # of what the last one has, shape (n,). [s]
    on: tuple[int, ...]  # kind of every stage, or chunk, in the order of the model
    most: Index  # layers that each has room for, shape (chunks, n). [1]

    @functools.cached_property
    def before(self) -> Array:
        """Time of all layers before each place, shape (kinds, layers + 1, n). [s]"""
        kinds, _, n = self.layers.shape
        return np.concatenate([np.zeros((kinds, 1, n)), np.cumsum(self.layers, axis=1)], axis=1)

    @functools.cached_property
    def beside(self) -> Array:
        """Time of what every stage has beside its layers, shape (chunks, n). [s]"""
        found = np.zeros(self.most.shape)
        found[0] += self.first
        found[-1] += self.last
        return found


def balanced_by_time(loads: StageLoads) -> tuple[Index, Mask]:
    """Layers of every stage such that the slowest one takes least, each at least one layer; and whether there is room for all of them.

    Among divisions whose slowest stage is as fast, stages have as even a share of what they could take as whole layers allow.

    Returns
    -------
    layers, shape (chunks, n), where there is no room as if there were; and the mask, shape (n,).
    """
    roomy = _begins(loads, np.full(loads.most.shape[1], np.inf))[1]
    loads = loads if roomy.all() else _with_room(loads, roomy)
    high = loads.before[:, -1].max(axis=0) + loads.beside.max(axis=0)
    low = np.zeros_like(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        kept = _begins(loads, middle)[1]
        low, high = np.where(kept, low, middle), np.where(kept, middle, high)
    return _even(loads, high * (1.0 + ROUNDING)), roomy


def _with_room(loads: StageLoads, roomy: Mask) -> StageLoads:
    """The same with room for all layers on every stage of the points that lack it."""
    depth = loads.layers.shape[1]
    most = np.where(roomy, loads.most, depth)
    return StageLoads(layers=loads.layers, first=loads.first, last=loads.last, on=loads.on, most=most)


def _begins(loads: StageLoads, limit: Array) -> tuple[Index, Mask]:
    """Place at which every stage begins where each, from the last one, takes as many layers as it can within a limit; shape (chunks, n).

    And whether all stages keep to it, shape (n,).
    """
    before, beside, depth = loads.before, loads.beside, loads.layers.shape[1]
    points = np.arange(limit.size)
    found, end, kept = np.zeros(loads.most.shape, dtype=np.intp), np.full(limit.size, depth), np.ones(limit.size, dtype=bool)
    for i in reversed(range(len(loads.on))):
        whole = before[loads.on[i]]
        least = whole[end, points] + beside[i] - limit * (1.0 + ROUNDING)  # no layer before it may begin
        begin = np.maximum((whole < least).sum(axis=0), np.maximum(end - loads.most[i], i))
        kept &= begin < end
        end = found[i] = np.minimum(begin, np.maximum(end - 1, 0))
    return found, kept & (end == 0)


def _even(loads: StageLoads, limit: Array) -> Index:
    """Layers of every stage within a limit that all can keep, as even a share of what each could take as whole layers allow."""
    before, beside, depth, chunks = loads.before, loads.beside, loads.layers.shape[1], len(loads.on)
    earliest, points = _begins(loads, limit)[0], np.arange(limit.size)
    mean = np.maximum(loads.layers[list(loads.on)].mean(axis=1), np.finfo(float).tiny)
    able = np.minimum(np.maximum((limit - beside) / mean, 1.0), loads.most)
    aims = np.rint(depth * np.cumsum(able, axis=0) / able.sum(axis=0)).astype(np.intp)
    found, begin = np.zeros(loads.most.shape, dtype=np.intp), np.zeros(limit.size, dtype=np.intp)
    for i in range(chunks - 1):
        whole = before[loads.on[i]]
        furthest = (whole <= whole[begin, points] + limit * (1.0 + ROUNDING) - beside[i]).sum(axis=0) - 1
        furthest = np.minimum(np.minimum(furthest, begin + loads.most[i]), depth - (chunks - 1 - i))
        end = np.clip(aims[i], np.maximum(earliest[i + 1], begin + 1), np.maximum(furthest, begin + 1))
        found[i], begin = end - begin, end
    found[-1] = depth - begin
    return found
