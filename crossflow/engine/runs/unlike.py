"""One step of a transformer whose pipeline stages lie on devices of several kinds: a system and its pools, such as two generations of GPUs.

Whole stages lie on devices of one kind; tensor, context, data and expert groups never mix them. Each stage has the prices, the memory and
the network of its own devices; what is handed over from one kind to the next passes both networks, of which the slower decides.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, alike, numbered, wide
from crossflow.cost.handovers import Handed, boundaries
from crossflow.cost.joined import joined
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps, steps_of
from crossflow.engine.runs.busiest import Busiest, parts_of
from crossflow.engine.runs.memory import Memory, memory
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.slots import Closing, SlotTimes, closing_of, is_split, slots_of
from crossflow.engine.runs.transformer import energy_of, outcome_of, split_points, tell_endless, timed
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.parallel.blocks import units
from crossflow.parallel.shapes import Between, Shape
from crossflow.parallel.strategy.balance import StageLoads, balanced_by_time
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.stages import Division
from crossflow.parallel.tables import tables_of
from crossflow.workload.job import Job
from crossflow.workload.stacked import chosen

ROUNDS = 24  # in which stages are relieved of layers that their devices have no memory for


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceKind:
    """Devices of one kind, and the stages on them."""

    machine: Machine
    stages: Array  # of every point, shape (n,). [1]

    def at(self, points: Index) -> DeviceKind:
        """Of some of the points, where the device is the same at all."""
        return replace(self, stages=self.stages[points])


@dataclass(frozen=True, kw_only=True, eq=False)
class KindWork:
    """What devices of one kind take of a step, arrays of shape (n,)."""

    devices: Array  # [1]
    energy: Array  # of operations and traffic to memory. [J]
    sent: tuple[Array, Array]  # bytes that each sends in its node, and out of it. [B]


def unlike_memory(job: Job, layout: Layout, kinds: Sequence[DeviceKind]) -> tuple[Layout, Memory]:
    """Plans with the layers of every stage, and what its devices hold.

    Parameters
    ----------
    layout : n plans; where one does not say how its layers are divided over stages, they are divided by speed.
    kinds : kinds of devices in the order of the stages.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        layout = _divided(job, _placed(layout, kinds), kinds)
        return layout, _held(job, layout, kinds)


def unlike_step(job: Job, layout: Layout, kinds: Sequence[DeviceKind], held: Memory) -> tuple[Outcome, tuple[KindWork, ...]]:
    """One step of every design point, and what devices of each kind do in it; the outcome's energy, and what is sent, are of the first.

    `layout` and `held` are those of `unlike_memory`.
    """
    with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
        return _run(job, layout, kinds, held)


# ------------------------------------------------------------------------------------------------ divisions


def _placed(layout: Layout, kinds: Sequence[DeviceKind]) -> Layout:
    """Plans with the kind of devices of every stage."""
    stages = np.rint([kind.stages for kind in kinds]).astype(int)
    on = [tuple(int(kind) for kind in np.repeat(np.arange(len(kinds)), many)) for many in stages.T]
    return _with_divisions(layout, [layout.divisions[which]._replace(kinds=on[i]) for i, which in enumerate(layout.division)])


def _with_divisions(layout: Layout, divisions: Sequence[Division]) -> Layout:
    different, which = numbered(divisions)
    return replace(layout, divisions=different, division=which)


def _divided(job: Job, layout: Layout, kinds: Sequence[DeviceKind]) -> Layout:
    """Plans that say nothing of it with layers by the speed of the devices of each stage, as far as these have memory for them."""
    told = [layout.divisions[which] for which in layout.division]
    free = np.array([not (one.listed or one.first or one.last) for one in told])
    if not free.any():
        return layout
    open_ = _Open(job=job, layout=layout, free=free, units=np.array([_unit_times(job, layout, kind, i) for i, kind in enumerate(kinds)]))
    return open_.listed(open_.sizes(kinds))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Open:
    """Plans of which those that are `free` have their layers divided by speed."""

    job: Job
    layout: Layout
    free: Mask
    units: Array  # time of one microbatch in every unit, forward and backward, on each kind of devices, shape (kinds, units, n). [s]

    @functools.cached_property
    def groups(self) -> Array:
        """Layers of every group of the model, shape (groups, n). [1]"""
        return np.stack([wide(np.atleast_1d(layer.count), len(self.layout)) for layer in self.job.model.layers]).astype(float)

    @functools.cached_property
    def alike(self) -> list[tuple[Array, Index]]:
        """Free plans that share the kinds of their stages, and the numbers of their chunks and layers; points of each."""
        table = np.concatenate([np.stack([self.free, self.layout.chunks, self.layout.division]), self.groups])
        return [(column, at) for column, at in alike(table) if column[0]]

    def sizes(self, kinds: Sequence[DeviceKind]) -> Index:
        """Layers of every stage, or chunk, shape (chunks, n)."""
        depth = self.groups[[not layer.predicts for layer in self.job.model.layers]].sum(axis=0)
        most = np.tile(depth.astype(np.intp), (int((self.layout.pp * self.layout.chunks).max()), 1))
        found = self._balanced(most, np.arange(len(self.layout)))
        left, single = np.arange(len(self.layout)), all(kind.machine.architecture.single for kind in kinds)
        for _ in range(ROUNDS):
            here, some = self.listed(found).at(left), [kind.at(left) for kind in kinds]
            less = _relieved(here, _held(chosen(self.job, left), here, some), found[:, left], most[:, left])
            changed = (less != most[:, left]).any(axis=0) & self.free[left]
            most[:, left] = less
            if not changed.any():
                break
            found[:, left[changed]] = self._balanced(most, left[changed], found)[:, left[changed]]
            left = left[changed] if single else left  # of these some devices may still hold too much
        return found

    def listed(self, sizes: Index) -> Layout:
        """The plans with so many layers on every chunk of those that are free."""
        told = [self.layout.divisions[which] for which in self.layout.division]
        chunks = (self.layout.pp * self.layout.chunks).astype(int)
        for i in np.flatnonzero(self.free).tolist():
            told[i] = told[i]._replace(listed=tuple(sizes[: chunks[i], i].tolist()))
        return _with_divisions(self.layout, told)

    def _balanced(self, most: Index, points: Index, found: Index | None = None) -> Index:
        """Layers of every chunk of some points; those that were `found` stay where there is no room for all layers."""
        sizes, asked = np.zeros_like(most), np.zeros(len(self.layout), dtype=bool)
        asked[points] = True
        for _, together in self.alike:
            at = together[asked[together]]
            if not len(at):
                continue
            loads = self._loads(at, most)
            mine, roomy = balanced_by_time(loads)
            sizes[: len(mine), at] = mine if found is None else np.where(roomy, mine, found[: len(mine), at])
        return sizes

    def _loads(self, at: Index, most: Index) -> StageLoads:
        """What layers take of plans that are alike."""
        kinds = self.layout.divisions[self.layout.division[at[0]]].kinds
        order = kinds * int(self.layout.chunks[at[0]])
        each, names, model = self.units[..., at], [name for name, _ in units(self.job.model)], self.job.model
        of_kind = [each[:, [name.startswith(f"{i}.") for name in names]].sum(axis=1) for i in range(len(model.kinds))]
        layers, last = list[Array](), each[order[-1], -1]
        for layer, kind, count in zip(model.layers, model.kind_of, self.groups[:, at[0]].astype(int).tolist(), strict=True):
            if layer.predicts:
                last = last + of_kind[kind][order[-1]] * count
            else:
                layers += [of_kind[kind]] * count
        return StageLoads(layers=np.stack(layers, axis=1), first=each[order[0], 0], last=last, on=order, most=most[: len(order), at])


def _unit_times(job: Job, layout: Layout, kind: DeviceKind, number: int) -> Array:
    """Time of one microbatch in every unit, forward and backward, shape (units, n): the longer of the device's and the host's. [s]"""
    steps = _priced(job, layout, kind, number)
    sums = UnitSums.of(steps, np.zeros(len(layout), dtype=bool))
    forward, backward = sums.device[0] + sums.blocks[0], sums.device[1] + sums.blocks[1] + sums.device[2]
    return np.asarray(np.maximum(forward, sums.host[0]) + np.maximum(backward, sums.host[1] + sums.host[2]))


def _relieved(layout: Layout, held: Memory, sizes: Index, most: Index) -> Index:
    """Layers that chunks have room for, once those of stages that hold too much have fewer than now, shape (chunks, n).

    A layer takes no more than its share of all that a stage holds, so that no more layers are taken away than have to be.
    """
    assert held.capacities is not None  # of several kinds of devices
    total, stages, less = held.total_of_stages, held.stages.shape[1], most.copy()
    over = total - held.capacities
    for i, n in zip(*np.nonzero(over > 0), strict=True):
        own = np.arange(i, int(layout.pp[n] * layout.chunks[n]), int(layout.pp[n]))
        count = int(sizes[own, n].sum())
        if i >= stages or count <= len(own) or not np.isfinite(over[i, n]):
            continue
        fewer = max(int(over[i, n] / (total[i, n] / count)), 1)
        widest = own[sizes[own, n].argmax()]
        less[widest, n] = max(sizes[widest, n] - (fewer if len(own) == 1 else 1), 1)
    return less


# ------------------------------------------------------------------------------------------------ memory and time


def _held(job: Job, layout: Layout, kinds: Sequence[DeviceKind]) -> Memory:
    """What devices of every stage hold, with the capacity that they have."""
    held = memory(job, layout.on_kind(kinds[0].machine.node, layout.pp), kinds[0].machine)
    known = np.stack([wide(kind.machine.architecture.memory_capacity, len(layout)) for kind in kinds])
    capacities = np.full(held.total_of_stages.shape, np.inf)
    for i, which in enumerate(layout.division):
        on = layout.divisions[which].kinds
        capacities[: len(on), i] = known[list(on), i]
    return held.on_unlike(capacities)


def _priced(job: Job, layout: Layout, kind: DeviceKind, number: int) -> Steps:
    """Steps on one kind of devices."""
    machine = kind.machine
    mine = layout.on_kind(machine.node, kind.stages)
    return steps_of(job, mine, machine, tables_of(job, mine, machine.stack, number))


def _run(job: Job, layout: Layout, kinds: Sequence[DeviceKind], held: Memory) -> tuple[Outcome, tuple[KindWork, ...]]:
    """The same, where steps may be without end."""
    first = kinds[0].machine
    prices = [_priced(job, layout, kind, i) for i, kind in enumerate(kinds)]
    crossing = _crossing(layout, kinds, prices)
    whole = joined(prices, crossing)
    split = split_points(whole.tables.shapes, len(layout))
    each, sums = [UnitSums.of(one, split) for one in prices], UnitSums.of(whole, split)
    parts = [(shape.at, _pipeline(job, layout, kinds, prices, each, crossing, shape)) for shape in whole.tables.shapes]
    found = parts_of(layout, first, whole, sums, Busiest.together(parts, len(layout)))
    tell_endless(found)
    outcome = replace(outcome_of(layout, first, whole, found, held), energy=energy_of(layout, prices[0]), capacity=(held.capacity,))
    ranks = layout.tp * layout.cp * layout.dp
    shares = tuple(
        KindWork(devices=ranks * kind.stages, energy=energy_of(layout, one), sent=(one.tables.moved[0], one.tables.moved[1]))
        for kind, one in zip(kinds, prices, strict=True)
    )
    return outcome, shares


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


def _pipeline(
    job: Job,
    layout: Layout,
    kinds: Sequence[DeviceKind],
    prices: Sequence[Steps],
    each: Sequence[UnitSums],
    crossing: Between,
    shape: Shape,
) -> Busiest:
    """Busiest stage of points whose pipelines have one shape."""
    slots, closing = _slots(job, layout, kinds, prices, [sums.at(shape.at) for sums in each], crossing, shape)
    return timed(job, layout, kinds[0].machine.stack, slots, closing, crossing.tied[shape.at], shape)


def _slots(
    job: Job,
    layout: Layout,
    kinds: Sequence[DeviceKind],
    prices: Sequence[Steps],
    each: Sequence[UnitSums],
    crossing: Between,
    shape: Shape,
) -> tuple[SlotTimes, Closing]:
    """Slots of points whose pipelines have one shape, and what every stage does after them; `each` are the sums of these points."""
    handed = _handed(layout, kinds, prices, crossing, shape, training=job.training)
    of = [(kind.machine, sums) for kind, sums in zip(kinds, each, strict=True)]
    slots = [slots_of(job, machine, sums, shape, handed) for machine, sums in of]
    closing = [closing_of(machine, sums, mine, shape) for (machine, sums), mine in zip(of, slots, strict=True)]
    stages = [shape.stages_on(i) for i in range(len(kinds))]
    rows = [shape.rows_on(i, len(slots[0].forward_of)) for i in range(len(kinds))]
    return _merged_slots(slots, rows, stages), _merged(closing, stages, 0)


def unlike_slots(job: Job, layout: Layout, kinds: Sequence[DeviceKind], shape: Shape) -> tuple[Steps, SlotTimes, Closing]:
    """Of one plan whose stages have their layers: steps with the units of all kinds, the first's first; slots, and what follows them."""
    with np.errstate(invalid="ignore", divide="ignore"):
        prices = [_priced(job, layout, kind, i) for i, kind in enumerate(kinds)]
        crossing = _crossing(layout, kinds, prices)
        each = [UnitSums.of(one, np.array([is_split(shape)])) for one in prices]
        return joined(prices, crossing), *_slots(job, layout, kinds, prices, each, crossing, shape)


def _handed(
    layout: Layout, kinds: Sequence[DeviceKind], prices: Sequence[Steps], crossing: Between, shape: Shape, *, training: bool
) -> Handed:
    """What the stages of pipelines of one shape hand over: on the network of their kind, or from one kind's to another's."""
    at, found = shape.at, boundaries(shape.schedule, shape.stages, shape.chunks, shape.microbatches, training=training)
    shape_ = (len(found.first), len(at))
    crosses, sent, gathered = np.ones(shape_, dtype=bool), np.zeros(shape_), np.zeros(shape_)
    for i, (first, last) in enumerate(zip(found.first[:, 0].astype(int), found.last[:, 0].astype(int), strict=True)):
        one, other = shape.division.kinds[first], shape.division.kinds[last]
        if one == other:
            begin, times = shape.division.kinds.index(one), prices[one].between
            mine = layout.on_kind(kinds[one].machine.node, kinds[one].stages)
            crosses[i] = mine.crosses(np.array([first - begin]), np.array([last - begin]), at)
            sent[i], gathered[i] = np.where(crosses[i], times.transfer[1][at], times.transfer[0][at]), times.whole[at]
        else:
            sent[i], gathered[i] = (np.maximum(times[one], times[other])[at] for times in (crossing.transfer, crossing.whole))
    return Handed(boundaries=found, crosses=crosses, sent=sent, gathered=gathered)


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


def _merged_slots(parts: Sequence[SlotTimes], rows: Sequence[Mask], stages: Sequence[Mask]) -> SlotTimes:
    """Slots of every row, from what all rows would take on each kind of devices; units of the kinds are counted one after the other."""
    axes: Mapping[str, int] = {"gpu": 0, "host": 0, "busy": 0, "grown": 0, "renewing": 0, "final": 0, "waits": 1, "behind": 1}
    first = parts[0]
    counts = [first.on_stage * mine.reshape(-1, *[1] * (first.on_stage.ndim - 2)) for mine in stages]
    chosen: dict[str, Any] = {name: _chosen([getattr(one, name) for one in parts], rows, axis) for name, axis in axes.items()}
    return replace(first, on_stage=np.concatenate(counts, axis=2), **chosen)
