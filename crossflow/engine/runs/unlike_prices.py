"""Prices of plans whose pipeline stages lie on devices of several kinds, and the slots of their pipelines.

Every unit of the model is priced once on each kind of devices. How layers are divided over the stages changes no price, so that many
divisions of a plan are timed with the prices of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, share_of, wide
from crossflow.cost.handovers import Handed, boundaries
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps, steps_of
from crossflow.cost.shared_links import USES, LinkUse
from crossflow.engine.runs.slots import Closing, ShapeSlots, SlotTimes, StageTimes, split_points
from crossflow.engine.runs.unit_sums import UnitSums, repeated
from crossflow.parallel.shapes import Between, Shape, alike
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import NATURAL
from crossflow.parallel.tables import divided_tables, tables_of
from crossflow.workload.job import Job


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceKind:
    """Devices of one kind, and the stages on them."""

    machine: Machine
    stages: Array  # of every point, shape (n,). [1]

    def at(self, points: Index) -> DeviceKind:
        """Of some of the points, where the device is the same at all."""
        return replace(self, stages=self.stages[points])

    def capacity(self, n: int) -> Array:
        """Memory of a device, shape (n,). [B]"""
        return np.asarray(wide(self.machine.architecture.memory_capacity, n))


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanPrices:
    """What the parts of plans take on every kind of devices."""

    kinds: tuple[DeviceKind, ...]
    sums: tuple[UnitSums, ...]  # of one microbatch, on each kind
    between: tuple[Between, ...]  # what stages on devices of one kind hand over, on each
    crossing: Between  # and what those on devices of different kinds do
    transfer_uses: tuple[LinkUse, ...]  # how what they hand over uses the links of each kind, shape (USES, 2, n). [s]

    @classmethod
    def of(cls, layout: Layout, kinds: Sequence[DeviceKind], prices: Sequence[Steps]) -> PlanPrices:
        """Of plans, from their steps on each kind."""
        split = split_points(alike(layout, together=NATURAL), len(layout))
        return cls(
            kinds=tuple(kinds),
            sums=tuple(UnitSums.of(one, split) for one in prices),
            between=tuple(one.between for one in prices),
            crossing=_crossing(layout, kinds, prices),
            transfer_uses=tuple(one.transfer_use for one in prices),
        )

    def repeated(self, points: Index) -> PlanPrices:
        """Of some of the plans, each as often as it is among the points."""
        n = len(self.kinds[0].stages)
        return PlanPrices(
            kinds=tuple(one.at(points) for one in self.kinds),
            sums=tuple(one.at(points) for one in self.sums),
            between=tuple(repeated(one, points, n) for one in self.between),
            crossing=repeated(self.crossing, points, n),
            transfer_uses=tuple(one.take(points, axis=-1) for one in self.transfer_uses),
        )

    def slots(self, job: Job, layout: Layout, shape: Shape) -> ShapeSlots:
        """Slots of points whose pipelines have one shape, with the units of all kinds, the first's first."""
        handed = self._handed(layout, shape, training=job.training)
        of = zip(self.kinds, self.sums, strict=True)
        each = [ShapeSlots.of(job, kind.machine, sums.at(shape.at), shape, handed) for kind, sums in of]
        stages = [shape.stages_on(i) for i in range(len(each))]
        slots = _merged_slots([one.slots for one in each], [shape.rows_on(i, each[0].slots.often.shape[1]) for i in range(len(each))])
        times = StageTimes.of(slots, handed.rows(), shape.stages)
        return ShapeSlots(shape=shape, handed=handed, slots=slots, times=times, closing=_merged([one.closing for one in each], stages, 0))

    def _busy(self, kind: int, crosses: Mask, at: Index) -> Array:
        """How stages on one kind of devices use the links while they hand over, over the time of it, shape (USES, points). [1]"""
        use, (inside, outside) = self.transfer_uses[kind][..., at], self.between[kind].transfer[:, at]
        return share_of(np.where(crosses, use[:, 1], use[:, 0]), np.where(crosses, outside, inside))

    def _handed(self, layout: Layout, shape: Shape, *, training: bool) -> Handed:
        """What the stages of pipelines of one shape hand over: on the network of their kind, or from one kind's to another's."""
        at, found = shape.at, boundaries(shape.schedule, shape.stages, shape.chunks, shape.microbatches, training=training)
        shape_ = (len(found.first), len(at))
        crosses, sent, gathered, use = np.ones(shape_, dtype=bool), np.zeros(shape_), np.zeros(shape_), np.zeros((USES, *shape_))
        for i, (first, last) in enumerate(zip(found.first[:, 0].astype(int), found.last[:, 0].astype(int), strict=True)):
            one, other = shape.division.kinds[first], shape.division.kinds[last]
            if one == other:
                begin, times, kind = shape.division.kinds.index(one), self.between[one], self.kinds[one]
                mine = layout.on_kind(kind.machine.node, kind.stages)
                crosses[i] = mine.crosses(np.array([first - begin]), np.array([last - begin]), at)
                sent[i], gathered[i] = np.where(crosses[i], times.transfer[1][at], times.transfer[0][at]), times.whole[at]
            else:
                both = [one, other]
                sent[i], gathered[i] = (each[both][:, at].max(axis=0) for each in (self.crossing.transfer, self.crossing.whole))
            share = self._busy(one, crosses[i], at)
            if one != other:  # the slower network decides
                slower = self.crossing.transfer[one][at] >= self.crossing.transfer[other][at]
                share = np.where(slower, share, self._busy(other, crosses[i], at))
            use[:, i] = share * sent[i]
        return Handed(boundaries=found, crosses=crosses, sent=sent, gathered=gathered, use=use)


def priced(job: Job, layout: Layout, kinds: Sequence[DeviceKind]) -> tuple[Steps, ...]:
    """Steps of plans on each kind of devices."""
    return tuple(_priced(job, layout, kind, i) for i, kind in enumerate(kinds))


def _priced(job: Job, layout: Layout, kind: DeviceKind, number: int) -> Steps:
    machine = kind.machine
    mine = layout.on_kind(machine.node, kind.stages)
    return steps_of(job, mine, machine, tables_of(job, mine, machine.stack, number))


def divided_prices(prices: Sequence[Steps], job: Job, layout: Layout, kinds: Sequence[DeviceKind]) -> tuple[Steps, ...]:
    """Steps of plans that divide their layers otherwise, from those of the plans as they were."""
    found = list[Steps]()
    for i, (steps, kind) in enumerate(zip(prices, kinds, strict=True)):
        mine = layout.on_kind(kind.machine.node, kind.stages)
        found.append(replace(steps, tables=divided_tables(steps.tables, job, mine, kind.machine.stack, i)))
    return tuple(found)


def _crossing(layout: Layout, kinds: Sequence[DeviceKind], prices: Sequence[Steps]) -> Between:
    """Times of what stages on devices of different kinds hand over, on each of the kinds' networks, shape (kinds, n); `tied` by the slowest
    of the first and the last one. [s]
    """
    sizes = prices[0].tables.between

    def time(what: str, size: Array) -> Array:
        pairs = [layout.on_kind(kind.machine.node, kind.stages).apart_from_others for kind in kinds]
        return np.stack([kind.machine.wires.time(what, size, pair) for kind, pair in zip(kinds, pairs, strict=True)])

    ends = time("all_reduce", sizes.tied)[[0, -1]]
    whole = np.stack([one.between.whole for one in prices])
    return Between(transfer=time("send_recv", sizes.transfer), whole=whole, tied=ends.max(axis=0))


def _merged(parts: Sequence[Closing], members: Sequence[Mask], axis: int) -> Closing:
    """What every stage does at the end, from what all would do on each kind of devices."""
    return Closing(**{field.name: _chosen([getattr(one, field.name) for one in parts], members, axis) for field in fields(Closing)})


def _chosen(parts: Sequence[Array], members: Sequence[Mask], axis: int) -> Array:
    """Rows, or stages, along an axis, each from the kind of devices that it lies on."""
    found = np.array(np.broadcast_arrays(*parts)[0])
    for part, mine in zip(parts, members, strict=True):
        here: list[slice | Mask] = [slice(None)] * found.ndim
        here[axis] = np.resize(mine, found.shape[axis])
        found[tuple(here)] = np.broadcast_to(part, found.shape)[tuple(here)]
    return found


def _merged_slots(parts: Sequence[SlotTimes], rows: Sequence[Mask]) -> SlotTimes:
    """Slots of every row, from what all rows would take on each kind of devices; units of the kinds are counted one after the other."""
    axes: Mapping[str, int] = {
        "gpu": 0, "host": 0, "busy": 0, "grown": 0, "renewing": 0, "final": 0, "waits": 1, "behind": 1, "met": 1, "shared": 1, "held": 1,
    }  # fmt: skip
    first = parts[0]
    counts = [first.often * mine.reshape(-1, *[1] * (first.often.ndim - 2)) for mine in rows]
    chosen: dict[str, Any] = {name: _chosen([getattr(one, name) for one in parts], rows, axis) for name, axis in axes.items()}
    return replace(first, often=np.concatenate(counts, axis=2), **chosen)
