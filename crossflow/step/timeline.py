"""A transformer's step as a timeline: passes laid out unit by unit, slots by the schedule, then the replicas' collectives [1]_.

The construction goes from the inside out, as the dependencies do: a tensor group runs a pass in step, unit by unit; passes are the
slots of a pipeline; replicas of the pipeline meet where gradients are reduced. Times are those of `crossflow.step.transformer`.

References
----------
.. [1] Lu et al., "DistSim: A performance model of large-scale hybrid distributed DNN training", CF 2023, Sec. 4.3.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.arrays import Array, Index
from crossflow.errors import CrossflowError
from crossflow.parallel.layout import Layout
from crossflow.parallel.schedules import BACKWARD, FORWARD, LETTERS, WEIGHT, PipelineOrder
from crossflow.step.memory import ledger
from crossflow.step.outcome import Job, Machine
from crossflow.step.passes import COLLECTIVES, Steps, steps_of, task_of
from crossflow.step.slots import Closing, Slots, closing_of, slots_of
from crossflow.step.stages import Occurrence, alike, sequence
from crossflow.step.uneven import EVEN, Uneven, World, in_step
from crossflow.timeline.pipeline import Walk, uneven_times, walk_of
from crossflow.timeline.record import (
    BACKWARDS,
    COMMUNICATION,
    COMPUTE,
    DATA,
    FROM_HOST,
    HOST,
    PIPELINE,
    TENSOR,
    TO_HOST,
    WAIT,
    WORK,
    Device,
    Pass,
    Timeline,
)
from crossflow.timeline.record import Slots as Filled

# Collectives that bring what a unit's kernels read; the others carry what they have made.
BEFORE = ("all_gather",)
AFTER = tuple(name for name in COLLECTIVES if name not in BEFORE)


@dataclass
class _Layout:
    """Lays the events of one pass out on a device's streams, in the order of its program."""

    names: dict[str, int]
    units: float = 0.0  # time at which the units are free [s]
    data: float = 0.0  # the same of the stream of gathers and reductions [s]
    rows: list[tuple[int, int, int, float, float, int]] = field(default_factory=list)

    def add(self, name: str, stream: int, kind: int, start: float, time: float, layer: int) -> float:
        """Add an event where it takes any time; its end. [s]"""
        if time > 0:
            self.rows.append((self.names.setdefault(name, len(self.names)), stream, kind, start, start + time, layer))
        return start + time

    def work(self, name: str, time: float, layer: int, speed: float, slowest: float, after: float = 0.0) -> float:
        """Kernels on a rank of some speed, and its wait for the slowest of its group; the start. [s]"""
        start = max(self.units, after)
        end = self.add(name, COMPUTE, WORK, start, time / speed, layer)
        self.units = self.add(f"{name}, waiting for the slowest rank", COMPUTE, WAIT, end, time / slowest - time / speed, layer)
        return start

    def send(self, name: str, stream: int, time: float, layer: int) -> None:
        """A collective or transfer that the units wait for."""
        self.units = self.add(name, stream, COMMUNICATION, self.units, time, layer)

    def sends(self, collectives: Sends, layer: int) -> None:
        """Collectives of a tensor group, one after the other."""
        for name, time in collectives:
            self.send(name, TENSOR, time, layer)

    def beside(self, collectives: Sends, start: float, layer: int) -> None:
        """Collectives that run while kernels do, from their start. [s]"""
        for name, time in collectives:
            start = self.add(name, TENSOR, COMMUNICATION, start, time, layer)

    def made(self, label: str) -> Pass:
        """The pass."""
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * 6
        name, stream, kind, layer = (np.array(columns[i], dtype=np.intp) for i in (0, 1, 2, 5))
        start, end = (np.array(columns[i], dtype=float) for i in (3, 4))
        time = max(self.units, self.data)
        return Pass(label=label, time=time, name=name, stream=stream, kind=kind, start=start, end=end, layer=layer)


Sends = tuple[tuple[str, float], ...]  # collectives by name with their times [s]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one unit takes in a pass, at full speed. [s]

    Attributes
    ----------
    name : its part of a layer.
    forward, backward, weight : its kernels; backward without the weight's gradient; zero where there is none.
    gather : of its sharded weights.
    before, after, beside : collectives forward that its kernels wait for, that wait for them, and that run while they do.
    before_back, after_back, beside_back : the same backward.
    beside_weight, reduced : collectives beside the weight's gradient, and of sharded gradients after it.
    """

    name: str
    forward: float
    backward: float
    weight: float
    gather: float
    before: Sends
    after: Sends
    beside: Sends
    before_back: Sends
    after_back: Sends
    beside_back: Sends
    beside_weight: Sends
    reduced: Sends

    @classmethod
    def of(cls, one: Occurrence, steps: Steps, *, split: bool, sharded: bool) -> _Part:
        """Part of an occurrence; `split` where weight gradients are slots of their own, `sharded` where data ranks share weights out."""
        passes, unit = steps.passes, one.unit
        sent, blocking, hidden = passes.sent[:, :, unit, 0], passes.blocking[:, :, unit, 0], passes.hides[:, unit, 0]
        weight = float(passes.weight[:, unit, 0].sum()) if one.weight else 0.0
        # Share of the collectives beside a weight's gradient that it is too short to hide.
        spilled = 1.0 if split or not hidden.any() else max(1.0 - weight / float(hidden.sum()), 0.0)
        back = (blocking[:, 1] + spilled * hidden) * one.input
        return cls(
            name=steps.times.units[unit].split(".")[-1],
            forward=float(passes.device[:, 0, unit, 0].sum()),
            backward=float(passes.device[:, 1, unit, 0].sum()) * one.input,
            weight=weight,
            gather=float(steps.state.gather[unit, 0]),
            before=_sends(blocking[:, 0], of=BEFORE),
            after=_sends(blocking[:, 0], of=AFTER),
            beside=_sends(sent[:, 0] - blocking[:, 0]),
            before_back=_sends(back, of=BEFORE),
            after_back=_sends(back, of=AFTER),
            beside_back=_sends((sent[:, 1] - blocking[:, 1] - hidden) * one.input),
            beside_weight=_sends((1.0 - spilled) * hidden * one.input),
            reduced=_sends(steps.state.reduce[:, unit, 0] * (one.weight and sharded)),
        )


def _sends(times: Array, of: Sequence[str] = COLLECTIVES) -> Sends:
    """Collectives that take any time, of those named."""
    return tuple((COLLECTIVES[i], float(times[i])) for i in np.flatnonzero(times > 0) if COLLECTIVES[i] in of)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One plan's step: what `transformer_step` works out, at its only point."""

    job: Job
    layout: Layout
    machine: Machine
    steps: Steps
    slots: Slots
    order: PipelineOrder
    closing: Closing
    rows: tuple[tuple[Occurrence, ...], ...]
    names: dict[str, int]
    link: World | None = None

    @functools.cached_property
    def parts(self) -> tuple[tuple[tuple[int, _Part], ...], ...]:
        """Layers and parts of every row in the order of the model; parts that are alike are worked out once."""
        found: dict[tuple[int, bool, bool], _Part] = {}
        options = {"split": self.order.split, "sharded": bool(self.layout.zero[0] >= 3)}
        for one in {one for row in self.rows for one in row}:
            key = (one.unit, one.input, one.weight)
            if key not in found:
                found[key] = _Part.of(one, self.steps, **options)
        return tuple(
            tuple((-1 if one.layer is None else one.layer, found[one.unit, one.input, one.weight]) for one in row) for row in self.rows
        )

    # ---------------------------------------------------------------------------------- passes

    def passed(self, kind: int, row: int, speed: float = 1.0, slowest: float = 1.0) -> Pass:
        """Events of a slot on a rank of some speed, whose tensor group's slowest rank has another."""
        made, parts = _Layout(self.names), self.parts[row]
        if kind == FORWARD:
            self._forward(made, parts, speed, slowest)
        elif kind == BACKWARD:
            self._backward(made, parts[::-1], speed, slowest)
        else:
            for layer, part in reversed(parts):
                made.work(f"{part.name} weight gradient", part.weight, layer, speed, slowest)
        if kind == BACKWARD and not self.order.flush:
            self._at_once(made, row)
        self._copied(made, kind, row)
        made.units = max(made.units, made.data)
        for name, time in self.transfer(self.handed(kind, row)):
            made.send(name, PIPELINE, time, -1)
        # What the host takes beyond is what is left of the slot.
        left = float(self.times(kind, row, 1.0 / slowest)) - made.units
        if left > 1e-12:
            made.units = made.add("waiting for the host", HOST, WORK, made.units, left, -1)
        made.data = 0.0
        return made.made(LETTERS[kind])

    def times(self, kind: int, row: int, slower: Array | float) -> Array:
        """Time of a slot whose kernels take `slower` times as long: the device's or the host's, with what comes beside. [s]"""
        at = kind * len(self.rows) + row
        busy, gpu, host = (float(part[at, 0]) for part in (self.slots.busy, self.slots.gpu, self.slots.host))
        extra = self.compute(kind, row) * (np.asarray(slower) - 1.0)
        return np.asarray(busy + self.handed(kind, row) - self._held(kind, row) + np.maximum(gpu + extra, host) - max(gpu, host))

    def _held(self, kind: int, row: int) -> float:
        """Time that a slot's stage would be held up by what it hands over on even links. [s]"""
        return 0.0 if kind == WEIGHT else float((self.slots.hop - self.slots.flight)[0] * self.slots.hands[kind, row])

    def handed(self, kind: int, row: int) -> float:
        """Time that a slot's stage is held up by what it hands over. [s]"""
        held = self._held(kind, row)
        if not held or self.link is None:
            return held
        chain = next(chain for chain in self.order.chains if row in chain)
        other = chain[chain.index(row) + (1 if kind == FORWARD else -1)]
        return held / float(self.link.rate(np.asarray(row % self.order.stages), np.asarray(other % self.order.stages)))

    def transfer(self, time: float) -> Sends:
        """Parts of what takes `time` [s] to hand over: the transfer itself, and parts put together where receivers do not keep them."""
        each = [float(part[0]) for part in (self.steps.between.transfer, self.steps.between.whole)]
        return tuple((name, time * part / sum(each)) for name, part in zip(("send_recv", "all_gather"), each, strict=True) if time)

    def _copied(self, made: _Layout, kind: int, row: int) -> None:
        """Activations, and shards of weights with their gradients, between the device and its host while the pass runs."""
        copies = self.steps.state.copies
        if copies is None or kind == WEIGHT:
            return
        ways = (copies.activations, copies.fetched) if kind == FORWARD else (copies.stored, copies.activations + copies.fetched)
        for stream, each in zip((TO_HOST, FROM_HOST), ways, strict=True):
            time = sum(float(each[one.unit, 0]) for one in self.rows[row])
            made.data = max(made.data, made.add("host_copy", stream, COMMUNICATION, 0.0, time, -1))

    def _at_once(self, made: _Layout, row: int) -> None:
        """Where weights are updated after each pass (PipeDream): gradients are reduced, or those of the pass before beside it."""
        stage = row % self.order.stages
        reductions = _sends(self.closing.reductions[:, stage, 0])
        if self.machine.stack.overlap.data:
            for name, time in reductions:
                made.data = made.add(name, DATA, COMMUNICATION, made.data, time, -1)
            made.units = max(made.units, made.data)
        else:
            for name, time in reductions:
                made.send(name, DATA, time, -1)
        made.units = made.add("optimizer", COMPUTE, WORK, made.units, float(self.closing.update[stage, 0]), -1)
        made.send("all_gather", DATA, float(self.closing.regather[stage, 0]), -1)

    def compute(self, kind: int, row: int) -> float:
        """Time of a slot's kernels at full speed. [s]"""
        if kind == FORWARD:
            return sum(part.forward for _, part in self.parts[row])
        weight = sum(part.weight for _, part in self.parts[row])
        if kind == WEIGHT:
            return weight
        return sum(part.backward for _, part in self.parts[row]) + (0.0 if self.order.split else weight)

    def _gather(self, made: _Layout, layer: int, part: _Part) -> float:
        """A unit's sharded weights arrive, ahead of it on a stream of their own or while it waits; when they are there. [s]"""
        if not part.gather:
            return 0.0
        begin = made.data if self.machine.stack.overlap.gather else max(made.data, made.units)
        made.data = made.add("all_gather", DATA, COMMUNICATION, begin, part.gather, layer)
        return made.data

    def _forward(self, made: _Layout, parts: Sequence[tuple[int, _Part]], speed: float, slowest: float) -> None:
        for layer, part in parts:
            there = self._gather(made, layer, part)
            made.sends(part.before, layer)
            start = made.work(part.name, part.forward, layer, speed, slowest, there)
            made.beside(part.beside, start, layer)
            made.sends(part.after, layer)

    def _backward(self, made: _Layout, parts: Sequence[tuple[int, _Part]], speed: float, slowest: float) -> None:
        """Parts from the last to the first."""
        there = self._gather(made, *parts[0]) if parts and parts[0][1].backward else 0.0
        for i, (layer, part) in enumerate(parts):
            if part.backward:
                made.sends(part.before_back, layer)
                start = made.work(f"{part.name} backward", part.backward, layer, speed, slowest, there)
                made.beside(part.beside_back, start, layer)
                made.sends(part.after_back, layer)
            # The next unit's weights are on their way before this one's gradients.
            there = self._gather(made, *parts[i + 1]) if i + 1 < len(parts) and parts[i + 1][1].backward else 0.0
            if part.weight and not self.order.split:
                start = made.work(f"{part.name} weight gradient", part.weight, layer, speed, slowest)
                made.beside(part.beside_weight, start, layer)
            for name, time in part.reduced:
                made.data = made.add(name, DATA, COMMUNICATION, max(made.data, made.units), time, layer)
                if not self.machine.stack.overlap.gather:
                    made.units = made.data


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
        steps = steps_of(job, layout, machine, task_of(job, layout, machine.stack))
        slots, order = slots_of(job, layout, machine, steps, shape), shape.order if job.training else shape.order.forward_only
        closing = closing_of(layout, machine, steps, slots, shape)
    in_order = sequence(job, shape.stages, shape.chunks, *shape.ends, machine.stack.stages == "balanced")
    names: dict[str, int] = {}
    step = _Step(
        job=job, layout=layout, machine=machine, steps=steps, slots=slots, order=order,
        closing=closing, rows=tuple(in_order[chunk] for chunk in order.chunk), names=names,
    )  # fmt: skip
    if not np.isfinite(slots.busy).all() or not np.isfinite(step.closing.exposed + step.closing.update).all():
        raise CrossflowError(f"{title}: the step never ends, so it has no timeline; `crossflow predict` says why")
    walk, together = walk_of(order), in_step(layout, flush=order.flush)
    world = World.of(uneven, layout, walk, shape.stages, in_step=together, wraps=shape.chunks > 1 or len(order.chains) > 1)
    step = replace(step, link=world)
    return _Filler(step=step, world=world, walk=walk, title=title).filled()


@dataclass
class _Filler:
    """Runs the slots of every class of devices, then what comes after the last microbatch, and keeps all of it."""

    step: _Step
    world: World
    walk: Walk
    title: str
    classes: list[_Class] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    columns: list[tuple[Array, ...]] = field(default_factory=list)
    joins: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    updates: tuple[float, float] = (0.0, 0.0)  # begin of the optimizer's step, and its end on the slowest stage [s]

    def add(self, device: int, passed: int, start: float, end: float, *, microbatch: int = -1) -> int:
        """Add one slot; its number."""
        return int(self.extend([device], [passed], [start], [end], [microbatch], [-1], [0.0])[0])

    def extend(self, *columns: Sequence[float] | Array | Index) -> Index:
        """Add slots by columns as in `crossflow.timeline.record.Slots`; their numbers."""
        arrays = tuple(np.asarray(column) for column in columns)
        self.columns.append(arrays)
        self.count += len(arrays[0])
        return np.arange(self.count - len(arrays[0]), self.count)

    def passed(self, made: Pass) -> int:
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
            capacity=float(step.machine.architecture.memory.capacity[0]), even_idle=self._even_idle(),
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
        walk, order, flight = self.walk, self.step.order, float(self.step.slots.flight[0])
        row = walk.kind_row % order.rows
        sender = np.append(row, 0)[walk.source] % order.stages
        return np.where(walk.crosses, flight / self.world.rate(sender, row % order.stages), 0.0)

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
        """Places in the walk of the slots of a class that take any time."""
        at = self.walk.stages[one.stage]
        return np.asarray(at[ends[at, one.kind] > starts[at, one.kind]])

    def _sent(self, ends: Array) -> None:
        """Transfers that travel while stages go on, on the sender's streams, one a direction: slots that take none of its time."""
        walk, lags, batches, order = self.walk, self.lags, self.batches, self.step.order
        crossing = np.flatnonzero(walk.crosses & (lags > 0))
        source = walk.source[crossing]
        sender = walk.kind_row[source] % order.rows % order.stages
        streams = np.where(walk.kind_row[crossing] < order.rows, PIPELINE, BACKWARDS)
        kinds, which = np.unique(np.stack([lags[crossing], streams]), axis=1, return_inverse=True)
        passes = [self.passed(self._transfer(lag, int(stream))) for lag, stream in kinds.T.tolist()]
        numbers = np.array(passes, dtype=np.intp)[which.ravel()]
        for device, one in enumerate(self.classes):
            mine = sender == one.stage
            at, count = ends[source[mine], one.kind], int(mine.sum())
            none = np.full(count, -1)
            self.extend(np.full(count, device), numbers[mine], at, at, batches[crossing[mine]], none, np.zeros(count))

    def _transfer(self, lag: float, stream: int) -> Pass:
        """Activations, or their gradients, on their way, and their parts put together where receivers do not keep them divided."""
        made, end = _Layout(self.step.names), 0.0
        for name, time in self.step.transfer(lag):
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
        replicas = closing.reductions.any()
        for device, one in enumerate(self.classes):
            own = float(ends[one.stage, one.kind])
            begin = float(there[one.stage]) if replicas else own
            if begin > own:
                self.add(device, self.passed(_unit_pass(step.names, "waiting for the last replica", COMPUTE, WAIT)), own, begin)
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
        passed = self.passed(_unit_pass(self.step.names, "all_reduce", PIPELINE, COMMUNICATION))
        before = int(last[latest])
        for device, one in enumerate(self.classes):
            if one.stage in (0, self.step.order.stages - 1):
                last[device] = self.add(device, passed, begin, begin + time)
                self.joins.append((before, int(last[device])))
        return begin + time, next(i for i, one in enumerate(self.classes) if one.stage == 0)

    def _reduce_pass(self, closing: Closing, stage: int) -> Pass:
        """Reductions of a stage's gradients, which may have begun beside the last pass: what is exposed is the time of the pass."""
        made = _Layout(self.step.names)
        exposed, volume = float(closing.exposed[stage, 0]), float(closing.reductions[:, stage].sum() + closing.lowered[stage, 0])
        at = exposed - volume
        for which in np.flatnonzero(closing.reductions[:, stage, 0]):
            at = made.add(COLLECTIVES[which], DATA, COMMUNICATION, at, float(closing.reductions[which, stage, 0]), -1)
        made.add("host_copy", TO_HOST, COMMUNICATION, at, float(closing.lowered[stage, 0]), -1)
        made.units = exposed
        return made.made("reduction")

    def _update(self, closing: Closing, begin: float, reduced: Index, latest: int, host: float) -> float:
        """The optimizer's step of every class, once all gradients are there: `reduced` is when, `latest` the last of them."""
        ends, slots = np.zeros(len(self.classes)), np.full(len(self.classes), -1, dtype=np.intp)
        for device, one in enumerate(self.classes):
            made = _Layout(self.step.names)
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
            made = self.passed(_unit_pass(self.step.names, "the host, between steps", HOST, WORK))
            for device in range(len(self.classes)):
                number = self.add(device, made, begin, begin + host)
                if slots[ends.argmax()] >= 0:
                    self.joins.append((int(slots[ends.argmax()]), number))
        return begin + host

    # ---------------------------------------------------------------------------------- results

    def _slots(self) -> Filled:
        device, passed, start, end, microbatch, source, lag = (np.concatenate(parts) for parts in zip(*self.columns, strict=True))
        joins = np.array(self.joins, dtype=np.intp).reshape(-1, 2).T
        return Filled(
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


def _unit_pass(names: dict[str, int], name: str, stream: int, kind: int) -> Pass:
    """A pass of a single event, stretched to the time of each slot."""
    made = _Layout(names)
    made.units = made.add(name, stream, kind, 0.0, 1.0, -1)
    return made.made(name)
