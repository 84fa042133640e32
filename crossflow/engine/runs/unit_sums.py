"""What one microbatch takes on every unit of a transformer, collectives of all kinds and what binds kernels summed up.

It is worked out once for all design points, whatever the shapes of their pipelines.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, share_of
from crossflow.cost.shared_links import LinkUse
from crossflow.parallel.offload import Copies
from crossflow.parallel.tables import OF

if TYPE_CHECKING:
    from crossflow.cost.passes import Steps

OfPoints = TypeVar("OfPoints")


@dataclass(frozen=True, kw_only=True)
class UnitSums:
    """Times of every unit; kinds of passes are forward, backward without gradients of weights, and these gradients. [s]"""

    device: Array  # of kernels, shape (3, units, n)
    # of collectives that the device waits for: forward, backward, and in a pass backward what there is more where weights are frozen, which
    # has no gradient to hide beside, shape (3, units, n)
    blocks: Array
    gathers: Array  # of them, all-gathers forward and backward, shape (2, units, n)
    shown: Array  # share of the collectives that run beside gradients of weights that these do not hide, shape (units, n). [1]
    host: Array  # for the host, shape (3, units, n)
    # gather, scatter, reduce, regather, update, copies: as of `State`, all collectives together, shape (units, n)
    gather: Array
    scatter: Array
    reduce: Array
    regather: Array
    update: Array
    copies: Copies | None
    # of links (`crossflow.cost.shared_links`): use of collectives in passes forward and backward, shape (USES, 2, units, n); by how much
    # longer those could be that hide beside kernels, shape (2, 2, units, n); and use of those of weights, shape (USES, units, n)
    use: LinkUse
    spare: Array
    gather_use: LinkUse
    scatter_use: LinkUse
    reduce_use: LinkUse
    regather_use: LinkUse

    @classmethod
    def of(cls, steps: Steps, split: Mask) -> UnitSums:
        """Of all points; `split` are those whose gradients of weights are slots of their own, which hide nothing, shape (n,)."""
        passes, state = steps.passes, steps.state
        weight, hides = passes.weight.sum(axis=0), passes.hides.sum(axis=0)
        shown = share_of(np.maximum(hides - np.where(split, 0.0, weight), 0.0), hides)
        forward, backward = passes.blocking.sum(axis=0)
        gathers = passes.blocking[OF["all_gather"]]
        left = np.where(split, 0.0, np.clip(weight - hides, 0.0, hides))
        beside = left * share_of(passes.hides_use[:2], passes.hides_use[:2].sum(axis=0))
        return cls(
            device=np.array([*passes.device.sum(axis=0), weight]),
            blocks=np.array([forward, backward + shown * hides, (1.0 - shown) * hides]),
            gathers=np.array([gathers[0], gathers[1] + shown * passes.hides[OF["all_gather"]]]),
            shown=shown,
            host=np.array([*passes.host, passes.host_weight]),
            gather=state.gather, scatter=state.scatter.sum(axis=0), reduce=state.reduce.sum(axis=0), regather=state.regather,
            update=state.update, copies=state.copies,
            use=passes.use, spare=passes.spare + np.stack([np.zeros_like(beside), beside], axis=1),
            gather_use=state.gather_use, scatter_use=state.scatter_use, reduce_use=state.reduce_use,
            regather_use=state.regather_use,
        )  # fmt: skip

    def at(self, points: Index) -> UnitSums:
        """Those of points in any order, each as often as it is named."""
        n = self.device.shape[-1]
        if np.array_equal(points, np.arange(n)):
            return self
        return repeated(self, points, n)


def repeated(held: OfPoints, points: Index, n: int) -> OfPoints:
    """Arrays, or figures of arrays, of some of n points in any order, each as often as it is named; those that are one for all stay."""
    if held is None:
        return held
    if isinstance(held, np.ndarray):
        return held.take(points, axis=-1) if held.shape[-1] == n else held  # type: ignore[return-value]
    return replace(held, **{field.name: repeated(getattr(held, field.name), points, n) for field in fields(held)})  # type: ignore[type-var,arg-type]
