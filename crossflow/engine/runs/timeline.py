"""A transformer's step as a timeline: passes laid out unit by unit, slots by the schedule, then the replicas' collectives [1]_.

The construction goes from the inside out, as the dependencies do: a tensor group runs a pass in step, unit by unit; passes are the
slots of a pipeline; replicas of the pipeline meet where gradients are reduced. Times are those of `crossflow.engine.runs.transformer`.

References
----------
.. [1] Lu et al., "DistSim: A performance model of large-scale hybrid distributed DNN training", CF 2023, Sec. 4.3.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.cost.handovers import handed_of
from crossflow.cost.machine import Machine
from crossflow.cost.passes import steps_of
from crossflow.cost.profile import SCOPES
from crossflow.engine.runs.memory import ledger
from crossflow.engine.runs.slot_events import Laid, StepPasses, lone_pass
from crossflow.engine.runs.slots import Closing, ShapeSlots, is_split
from crossflow.engine.runs.uneven import EVEN, Uneven, World, in_step
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.engine.timeline.pipeline import Walk, uneven_times, walk_of
from crossflow.engine.timeline.record import (
    BACKWARDS,
    COMMUNICATION,
    COMPUTE,
    DATA,
    FROM_HOST,
    HOST,
    PIPELINE,
    TO_HOST,
    WAIT,
    WORK,
    Device,
    PassEvents,
    Slots,
    Timeline,
)
from crossflow.parallel.shapes import Shape, alike, sequence
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import BACKWARD, FORWARD, WEIGHT
from crossflow.parallel.tables import COLLECTIVES, tables_of
from crossflow.workload.job import Job


def transformer_timeline(job: Job, layout: Layout, machine: Machine, title: str, uneven: Uneven = EVEN) -> Timeline:
    """Timeline of a step of a single plan.

    Parameters
    ----------
    job, layout, machine : as of `transformer_step`, with one design point.
    title : scenario and strategy.
    uneven : what makes devices, links and passes differ.
    """
    shape = replace(alike(layout)[0], microbatches=int(layout.microbatches[0]))
    with np.errstate(invalid="ignore", divide="ignore"):  # a step without end is told below
        steps = steps_of(job, layout, machine, tables_of(job, layout, machine.stack))
        sums = UnitSums.of(steps, np.array([is_split(shape)]))
        handed = handed_of(layout, machine, steps, shape, training=job.training)
        found, order = ShapeSlots.of(job, machine, sums, shape, handed), shape.order if job.training else shape.order.forward_only
        reductions = found.reductions(steps)
    in_order = sequence(job, shape.stages, shape.chunks, shape.division, machine.stack.stages == "balanced")
    names: dict[str, int] = {}
    step = StepPasses(
        job=job, layout=layout, machine=machine, steps=steps, slots=found.slots, crossings=handed, order=order,
        closing=found.closing, reductions=reductions, rows=tuple(in_order[chunk] for chunk in order.chunk), names=names,
    )  # fmt: skip
    return filled(step, shape, title, uneven, float(machine.architecture.memory_capacity[0]))


def filled(step: StepPasses, shape: Shape, title: str, uneven: Uneven, capacity: float) -> Timeline:
    """Timeline of a step whose passes are known, on devices of so much memory [B]; CrossflowError where it never ends."""
    layout, order, slots = step.layout, step.order, step.slots
    if not np.isfinite(slots.busy).all() or not np.isfinite(step.closing.exposed + step.closing.update).all():
        raise CrossflowError(f"{title}: the step never ends, so it has no timeline; `crossflow predict` says why")
    walk, together = walk_of(order), in_step(layout, flush=order.flush)
    world = World.of(uneven, layout, walk, shape.stages, in_step=together, wraps=shape.chunks > 1 or len(order.chains) > 1)
    step = replace(step, link=world)
    return _Filler(step=step, world=world, walk=walk, title=title, capacity=capacity).filled()


@dataclass
class _Filler:
    """Runs the slots of every class of devices, then what comes after the last microbatch, and keeps all of it."""

    step: StepPasses
    world: World
    walk: Walk
    title: str
    capacity: float  # of the memory of a device. [B]
    classes: list[_Class] = field(default_factory=list)
    passes: list[PassEvents] = field(default_factory=list)
    columns: list[tuple[Array, ...]] = field(default_factory=list)
    joins: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    updates: tuple[float, float] = (0.0, 0.0)  # begin of the optimizer's step, and its end on the slowest stage [s]

    def add(self, device: int, passed: int, start: float, end: float, *, microbatch: int = -1) -> int:
        """Add one slot; its number."""
        return int(self.extend([device], [passed], [start], [end], [microbatch], [-1], [0.0])[0])

    def extend(self, *columns: Sequence[float] | Array | Index) -> Index:
        """Add slots by columns as in `crossflow.engine.timeline.record.Slots`; their numbers."""
        arrays = tuple(np.asarray(column) for column in columns)
        self.columns.append(arrays)
        self.count += len(arrays[0])
        return np.arange(self.count - len(arrays[0]), self.count)

    def passed(self, made: PassEvents) -> int:
        """Keep a pass; its number."""
        self.passes.append(made)
        return len(self.passes) - 1

    # ---------------------------------------------------------------------------------- filling

    def filled(self) -> Timeline:
        """All slots."""
        step, world = self.step, self.world
        self.classes = _classes(world, step.order.stages)
        starts, ends = self._times()
        last = self._pipelines(starts, ends)
        total = self._close(last, np.stack([ends[mine].max(axis=0) for mine in self.walk.stages]))
        return Timeline(
            title=self.title, names=tuple(step.names), passes=tuple(self.passes), slots=self._slots(), devices=tuple(self._devices()),
            total=total, node=step.machine.node, memory=self._memory(starts, ends),
            capacity=self.capacity, even_idle=self._even_idle(),
        )  # fmt: skip

    def _times(self) -> tuple[Array, Array]:
        """Start and end of every slot of the schedule in every kind of replica, shape (slots, kinds of replicas). [s]"""
        step, world, walk, order = self.step, self.world, self.walk, self.step.order
        stage = walk.kind_row % order.rows % order.stages
        slower, durations = world.jitter / world.slowest[stage], np.zeros(world.jitter.shape)
        for at in np.unique(walk.kind_row):
            mine = walk.kind_row == at
            durations[mine] = step.times(*divmod(int(at), order.rows), slower[mine])
        return uneven_times(walk, durations, self.lags[:, None])

    @functools.cached_property
    def lags(self) -> Array:
        """Time that what each slot needs travels from another stage, shape (slots,). [s]"""
        walk, order, late = self.walk, self.step.order, self.step.late[..., 0].ravel()
        row = walk.kind_row % order.rows
        sender = np.append(row, 0)[walk.source] % order.stages
        return np.append(late, np.zeros(order.rows))[walk.kind_row] / self.world.rate(sender, row % order.stages)

    def _pipelines(self, starts: Array, ends: Array) -> Index:
        """Slots of the schedule of all classes; the last slot of every class, shape (classes,)."""
        walk, lags, batches, nowhere = self.walk, self.lags, self.batches, len(self.walk.before)
        # Number of every slot in the first class of its stage, by kind of replica; senders are looked up there.
        number = np.full((len(self.world.members), nowhere + 1), -1, dtype=np.intp)
        places, last = [], np.zeros(len(self.classes), dtype=np.intp)
        for device, one in enumerate(self.classes):
            at = self._run(one, starts, ends)
            passes = self._table(one)[walk.kind_row[at]]
            own = self.count + np.arange(len(at))
            if one.group == 0:
                number[one.kind, at] = own
            last[device] = own[-1]
            places.append(at)
            self.extend(
                np.full(len(at), device), passes, starts[at, one.kind], ends[at, one.kind], batches[at], np.full(len(at), -1), lags[at]
            )
        for device, (one, at) in enumerate(zip(self.classes, places, strict=True)):
            self.columns[device][5][:] = np.where(walk.crosses[at], number[one.kind, walk.source[at]], -1)
        self._sent(ends)
        return last

    def _run(self, one: _Class, starts: Array, ends: Array) -> Index:
        """Places in the walk of the slots of a class that take any time or that other stages wait for, or of its last one."""
        at = self.walk.stages[one.stage]
        taking = at[(ends[at, one.kind] > starts[at, one.kind]) | np.isin(at, self.walk.source[self.walk.crosses])]
        return np.asarray(taking if len(taking) else at[-1:])

    def _sent(self, ends: Array) -> None:
        """Transfers that travel while stages go on, on the sender's streams, one a direction: slots that take none of its time."""
        walk, lags, batches, order = self.walk, self.lags, self.batches, self.step.order
        crossing = np.flatnonzero(walk.crosses & (lags > 0))
        source = walk.source[crossing]
        sender = walk.kind_row[source] % order.rows % order.stages
        streams = np.where(walk.kind_row[crossing] < order.rows, PIPELINE, BACKWARDS)
        # All that a row receives comes over one boundary.
        _, firsts, which = np.unique(walk.kind_row[crossing], return_index=True, return_inverse=True)
        columns = (lags[crossing], streams, walk.kind_row[crossing])
        passes = [self.passed(self._transfer(*one)) for one in zip(*(column[firsts].tolist() for column in columns), strict=True)]
        numbers = np.array(passes, dtype=np.intp)[which]
        for device, one in enumerate(self.classes):
            mine = sender == one.stage
            at, count = ends[source[mine], one.kind], int(mine.sum())
            none = np.full(count, -1)
            self.extend(np.full(count, device), numbers[mine], at, at, batches[crossing[mine]], none, np.zeros(count))

    def _transfer(self, lag: float, stream: int, kind_row: int) -> PassEvents:
        """Activations, or their gradients, on their way, and their parts put together where receivers do not keep them divided."""
        made, end = Laid(self.step.names), 0.0
        at = int(self.step.crossings.boundaries.inwards[divmod(kind_row, self.step.order.rows)])
        for name, time in self.step.transfer(at, lag):
            end = made.add(name, stream, COMMUNICATION, end, time, -1)
        return made.made("transfer")

    @functools.cached_property
    def batches(self) -> Index:
        """Microbatch of every slot of the walk."""
        found = np.zeros(len(self.walk.before), dtype=np.intp)
        for mine, slots in zip(self.walk.stages, self.step.order.slots, strict=True):
            found[mine] = slots[:, 2]
        return found

    def _table(self, one: _Class) -> Index:
        """Pass of every kind and row of one class, shape (kinds x rows,); -1 of other stages'."""
        order, found = self.step.order, np.full(3 * self.step.order.rows, -1, dtype=np.intp)
        for kind in range(len(self.step.slots.busy) // order.rows):
            for row in range(one.stage, order.rows, order.stages):
                made = self.step.passed(kind, row, one.speed, float(self.world.slowest[one.stage, one.kind]))
                found[kind * order.rows + row] = self.passed(made)
        return found

    # ---------------------------------------------------------------------------------- after the last microbatch

    def _close(self, last: Index, ends: Array) -> float:
        """Reductions, optimizer and what the host does at the end, of every class; the time of the step. [s]

        `last` is the last slot of every class, `ends` when every stage of every kind of replica is through, shape (stages, kinds).
        """
        step, closing = self.step, self.step.closing
        host = float(step.machine.stack.host.step[0])
        if not step.order.flush:
            through = [float(ends[one.stage, one.kind]) for one in self.classes]
            begin, latest = self._tied(max(through), last, int(np.argmax(through)))
            return self._finish(np.full(len(self.classes), begin), np.full(len(self.classes), last[latest]), host)
        there = ends.max(axis=1)
        if len(step.order.chains) > 1:  # both directions of a layer are reduced together
            there = np.maximum(there, there[::-1])
        reduces = [self.passed(self._reduce_pass(closing, stage)) for stage in range(step.order.stages)]
        after, reduced = there + closing.exposed[:, 0], np.zeros(len(self.classes), dtype=np.intp)
        slowest = [
            max((i for i, one in enumerate(self.classes) if one.stage == stage), key=lambda i: ends[stage, self.classes[i].kind])
            for stage in range(step.order.stages)
        ]
        replicas = self.step.reductions.any()
        for device, one in enumerate(self.classes):
            own = float(ends[one.stage, one.kind])
            begin = float(there[one.stage]) if replicas else own
            if begin > own:
                self.add(device, self.passed(lone_pass(step.names, "waiting for the last replica", COMPUTE, WAIT)), own, begin)
            reduced[device] = self.add(device, reduces[one.stage], begin, begin + float(closing.exposed[one.stage, 0]))
            if begin > own:
                self.joins.append((int(last[slowest[one.stage]]), int(reduced[device])))
        latest = max(range(len(self.classes)), key=lambda i: after[self.classes[i].stage])
        begin, latest = self._tied(float(after.max()), reduced, latest)
        return self._update(closing, begin, reduced, int(reduced[latest]), host)

    def _tied(self, begin: float, last: Index, latest: int) -> tuple[float, int]:
        """Sum of the gradients of a table that first and last stage both hold, once all classes are there; its end [s], and a class of it.

        `last` is the last slot of every class, which it becomes where there is such a table; `latest` the class that ends last.
        """
        time = float(self.step.steps.between.tied[0])
        if not time:
            return begin, latest
        scope = SCOPES[int(self.step.layout.ends.per_node[0] < 2)]
        passed = self.passed(lone_pass(self.step.names, f"{scope} all_reduce", PIPELINE, COMMUNICATION))
        before = int(last[latest])
        for device, one in enumerate(self.classes):
            if one.stage in (0, self.step.order.stages - 1):
                last[device] = self.add(device, passed, begin, begin + time)
                self.joins.append((before, int(last[device])))
        return begin + time, next(i for i, one in enumerate(self.classes) if one.stage == 0)

    def _reduce_pass(self, closing: Closing, stage: int) -> PassEvents:
        """Reductions of a stage's gradients, which may have begun beside the last pass: what is exposed is the time of the pass."""
        made = Laid(self.step.names)
        exposed, volume = float(closing.exposed[stage, 0]), float(self.step.reductions[:, stage].sum() + closing.lowered[stage, 0])
        at = exposed - volume
        for which in np.flatnonzero(self.step.reductions[:, stage, 0]):
            at = made.add(COLLECTIVES[which], DATA, COMMUNICATION, at, float(self.step.reductions[which, stage, 0]), -1)
        made.add("host_copy", TO_HOST, COMMUNICATION, at, float(closing.lowered[stage, 0]), -1)
        made.units = exposed
        return made.made("reduction")

    def _update(self, closing: Closing, begin: float, reduced: Index, latest: int, host: float) -> float:
        """The optimizer's step of every class, once all gradients are there: `reduced` is when, `latest` the last of them."""
        ends, slots = np.zeros(len(self.classes)), np.full(len(self.classes), -1, dtype=np.intp)
        for device, one in enumerate(self.classes):
            made = Laid(self.step.names)
            gathers = float(closing.regather[one.stage, 0])
            slowest = float(self.world.speed[one.stage].min()) if gathers else one.speed
            made.work("optimizer", float(closing.update[one.stage, 0]), -1, one.speed, slowest)
            made.units = made.add("optimizer on the host", HOST, WORK, made.units, float(closing.on_host[one.stage, 0]), -1)
            made.send("host_copy", FROM_HOST, float(closing.renewed[one.stage, 0]), -1)
            made.send("all_gather", DATA, gathers, -1)
            update = made.made("update")
            ends[device] = begin + update.time
            if update.time > 0:
                slots[device] = self.add(device, self.passed(update), begin, ends[device])
                self.joins.append((latest, int(slots[device])))
        if slots[ends.argmax()] >= 0:  # the slowest could not begin later, so that no reduction could end later
            self.joins += [(int(slot), int(slots[ends.argmax()])) for slot in reduced if slot != latest]
        self.updates = (begin, float(ends.max()))
        return self._finish(ends, slots, host)

    def _finish(self, ends: Array, slots: Index, host: float) -> float:
        """What the host does between steps."""
        begin = float(ends.max())
        if host:
            made = self.passed(lone_pass(self.step.names, "the host, between steps", HOST, WORK))
            for device in range(len(self.classes)):
                number = self.add(device, made, begin, begin + host)
                if slots[ends.argmax()] >= 0:
                    self.joins.append((int(slots[ends.argmax()]), number))
        return begin + host

    # ---------------------------------------------------------------------------------- results

    def _slots(self) -> Slots:
        device, passed, start, end, microbatch, source, lag = (np.concatenate(parts) for parts in zip(*self.columns, strict=True))
        joins = np.array(self.joins, dtype=np.intp).reshape(-1, 2).T
        return Slots(
            device=device.astype(np.intp), passed=passed.astype(np.intp), start=start.astype(float), end=end.astype(float),
            microbatch=microbatch.astype(np.intp), source=source.astype(np.intp), lag=lag.astype(float), joins=joins,
        )  # fmt: skip

    def _devices(self) -> list[Device]:
        several = len(self.world.members) > 1
        found = []
        for one in self.classes:
            members = self.world.members[one.kind]
            name = f"stage {one.stage}"
            if several:
                name += f", replica {members[0]}" + (f" +{len(members) - 1}" if len(members) > 1 else "")
            if any(other.stage == one.stage and other.kind == one.kind and other.group != one.group for other in self.classes):
                name += f", tp {one.within[0]}" + (f" +{len(one.within) - 1}" if len(one.within) > 1 else "")
            found.append(Device(name=name, stage=one.stage, ranks=self.world.ranks(one.stage, members, one.within)))
        return found

    def _memory(self, starts: Array, ends: Array) -> tuple[tuple[Array, Array], ...]:
        """What every class holds, when: activations come with forward passes and go with backward passes."""
        step, order = self.step, self.step.order
        shape = replace(alike(step.layout)[0], microbatches=order.microbatches)
        book = ledger(step.job, step.layout, step.machine, shape)
        kind, row = np.divmod(self.walk.kind_row, order.rows)
        last = WEIGHT if order.split else BACKWARD
        found = []
        for one in self.classes:
            at = self._run(one, starts, ends)
            kept, working = book.kept[row[at]], book.working[row[at]]
            runs = BACKWARD if step.job.training else FORWARD
            come = np.where(kind[at] == FORWARD, kept, 0.0) + np.where(kind[at] == runs, working, 0.0)
            go = np.where(kind[at] == last, kept, 0.0) + np.where(kind[at] == runs, working, 0.0)
            # A device runs one slot after the other: what goes with one makes room for what comes with the next. As a backward pass
            # ends, gradients that are summed only then are there for a moment.
            moment = np.where(kind[at] == last, book.finished[one.stage], 0.0)
            times = np.stack([starts[at, one.kind], *[ends[at, one.kind]] * 2], axis=1).ravel()
            changes = np.stack([come, moment - go, -moment], axis=1).ravel()
            held = book.still[one.stage] + np.concatenate([[0.0], np.cumsum(changes)])
            if book.update[one.stage]:
                times = np.concatenate([times, self.updates])
                held = np.concatenate([held, book.still[one.stage] + book.update[one.stage] * np.array([1.0, 0.0])])
            found.append((np.concatenate([[0.0], times]), held))
        return tuple(found)

    def _even_idle(self) -> Array:
        """Time that every class would be without work in an even pipeline: its bubble. [s]"""
        walk, order, busy = self.walk, self.step.order, self.step.slots.busy[:, 0]
        mean = busy.reshape(-1, order.rows).mean(axis=1)
        durations = mean[walk.kind_row // order.rows][:, None]
        _, ends = uneven_times(walk, durations, self.lags[:, None])
        return np.array([max(ends.max() - durations[walk.stages[one.stage]].sum(), 0.0) for one in self.classes])


@dataclass(frozen=True)
class _Class:
    """Devices that do the same: a stage, a kind of replica, and ranks of its tensor group of one speed."""

    stage: int
    kind: int
    group: int
    within: Index
    speed: float


def _classes(world: World, stages: int) -> list[_Class]:
    """Classes of devices, by stage, kind of replica and speed, the slowest ranks of a tensor group first."""
    found = []
    for stage in range(stages):
        for kind in range(len(world.members)):
            speeds = world.speed[stage, kind]
            for group, speed in enumerate(np.unique(speeds)):
                found.append(_Class(stage, kind, group, np.flatnonzero(speeds == speed), float(speed)))
    return found
