"""Passes of a step as events: what runs on which stream of a device while it works on one slot, laid out unit by unit [1]_.

References
----------
.. [1] Lu et al., "DistSim: A performance model of large-scale hybrid distributed DNN training", CF 2023, Sec. 4.3.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.base.arrays import Array
from crossflow.cost.handovers import Handed
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps
from crossflow.cost.profile import SCOPES
from crossflow.engine.runs.slots import Closing, SlotTimes
from crossflow.engine.runs.uneven import World
from crossflow.engine.timeline.record import (
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
    PassEvents,
)
from crossflow.parallel.shapes import Occurrence
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import BACKWARD, FORWARD, LETTERS, WEIGHT, PipelineOrder
from crossflow.parallel.tables import COLLECTIVES
from crossflow.workload.job import Job

# Collectives that bring what a unit's kernels read; the others carry what they have made.
BEFORE = ("all_gather",)
AFTER = tuple(name for name in COLLECTIVES if name not in BEFORE)


@dataclass
class Laid:
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

    def sends(self, collectives: SentTimes, layer: int) -> None:
        """Collectives of a tensor group, one after the other."""
        for name, time in collectives:
            self.send(name, TENSOR, time, layer)

    def beside(self, collectives: SentTimes, start: float, layer: int) -> None:
        """Collectives that run while kernels do, from their start. [s]"""
        for name, time in collectives:
            start = self.add(name, TENSOR, COMMUNICATION, start, time, layer)

    def made(self, label: str) -> PassEvents:
        """The pass."""
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * 6
        name, stream, kind, layer = (np.array(columns[i], dtype=np.intp) for i in (0, 1, 2, 5))
        start, end = (np.array(columns[i], dtype=float) for i in (3, 4))
        time = max(self.units, self.data)
        return PassEvents(label=label, time=time, name=name, stream=stream, kind=kind, start=start, end=end, layer=layer)


SentTimes = tuple[tuple[str, float], ...]  # collectives by name with their times [s]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one unit takes in a pass, at full speed. [s]"""

    name: str  # its part of a layer
    forward: float  # its kernels
    backward: float  # backward without the weight's gradient
    weight: float  # the weight's gradient; zero where there is none
    host: float  # what the host takes backward, and for the weight's gradient where that goes with it
    gather: float  # of its sharded weights
    before: SentTimes  # collectives forward that its kernels wait for
    after: SentTimes  # that wait for its kernels
    beside: SentTimes  # that run while they do
    before_back: SentTimes  # the same backward
    after_back: SentTimes  # the same backward
    beside_back: SentTimes  # the same backward
    beside_weight: SentTimes  # collectives beside the weight's gradient
    reduced: SentTimes  # those of sharded gradients after it

    @classmethod
    def of(cls, one: Occurrence, steps: Steps, *, split: bool) -> _Part:
        """Part of an occurrence; `split` where weight gradients are slots of their own."""
        passes, unit = steps.passes, one.unit
        sent, blocking, hidden = passes.sent[:, :, unit, 0], passes.blocking[:, :, unit, 0], passes.hides[:, unit, 0]
        weight = float(passes.weight[:, unit, 0].sum()) if one.weight else 0.0
        # Share of the collectives beside a weight's gradient that it is too short to hide.
        spilled = 1.0 if split or not hidden.any() else max(1.0 - weight / float(hidden.sum()), 0.0)
        back = (blocking[:, 1] + spilled * hidden) * one.input
        return cls(
            name=steps.times.layers[unit].split(".")[-1],
            forward=float(passes.device[:, 0, unit, 0].sum()),
            backward=float(passes.device[:, 1, unit, 0].sum()) * one.input,
            weight=weight,
            host=float(passes.host[1, unit, 0] * one.input + passes.host_weight[unit, 0] * one.weight * (not split)),
            gather=float(steps.state.gather[unit, 0]),
            before=_sends(blocking[:, 0], of=BEFORE),
            after=_sends(blocking[:, 0], of=AFTER),
            beside=_sends(sent[:, 0] - blocking[:, 0]),
            before_back=_sends(back, of=BEFORE),
            after_back=_sends(back, of=AFTER),
            beside_back=_sends((sent[:, 1] - blocking[:, 1] - hidden) * one.input),
            beside_weight=_sends((1.0 - spilled) * hidden * one.input),
            reduced=_sends(steps.state.scatter[:, unit, 0] * one.weight),
        )


def _sends(times: Array, of: Sequence[str] = COLLECTIVES) -> SentTimes:
    """Collectives that take any time, of those named."""
    return tuple((COLLECTIVES[i], float(times[i])) for i in np.flatnonzero(times > 0) if COLLECTIVES[i] in of)


def _by_layer(parts: Sequence[tuple[int, _Part]]) -> tuple[tuple[int, _Part], ...]:
    """Parts in the order in which they run: weights of a layer come before its first one, gradients go after its last one."""
    found = list[tuple[int, _Part]]()
    for layer, members in itertools.groupby(parts, key=lambda one: one[0]):
        inside = [part for _, part in members]
        if layer < 0:  # embedding and head stand alone
            found += [(layer, part) for part in inside]
            continue
        gather, sums = sum(part.gather for part in inside), dict[str, float]()
        for name, time in itertools.chain.from_iterable(part.reduced for part in inside):
            sums[name] = sums.get(name, 0.0) + time
        inside = [replace(part, gather=0.0 if i else gather, reduced=()) for i, part in enumerate(inside)]
        inside[-1] = replace(inside[-1], reduced=tuple(sums.items()))
        found += [(layer, part) for part in inside]
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class StepPasses:
    """One plan's step: what `transformer_step` works out, at its only point."""

    job: Job
    layout: Layout
    machine: Machine
    steps: Steps
    slots: SlotTimes
    crossings: Handed  # what stages hand over
    order: PipelineOrder
    closing: Closing
    reductions: Array  # of gradients after the last microbatch, by collective, shape (collectives, stages, n). [s]
    rows: tuple[tuple[Occurrence, ...], ...]
    names: dict[str, int]
    link: World | None = None

    @functools.cached_property
    def parts(self) -> tuple[tuple[tuple[int, _Part], ...], ...]:
        """Layers and parts of every row in the order of the model; parts that are alike are worked out once."""
        found: dict[tuple[int, bool, bool], _Part] = {}
        for one in {one for row in self.rows for one in row}:
            key = (one.unit, one.input, one.weight)
            if key not in found:
                found[key] = _Part.of(one, self.steps, split=self.order.split)
        return tuple(
            tuple((-1 if one.layer is None else one.layer, found[one.unit, one.input, one.weight]) for one in row) for row in self.rows
        )

    @functools.cached_property
    def late(self) -> Array:
        """Time that what each row receives travels while no stage is held up, shape (2, rows, 1). [s]"""
        return self.crossings.late(self.slots.held, self.machine.stack)

    # ---------------------------------------------------------------------------------- passes

    def passed(self, kind: int, row: int, speed: float = 1.0, slowest: float = 1.0) -> PassEvents:
        """Events of a slot on a rank of some speed, whose tensor group's slowest rank has another."""
        made, parts = Laid(self.names), self.parts[row]
        ordered = parts if kind == FORWARD else parts[::-1]
        if self.machine.stack.sharing.unit == "layer":
            ordered = _by_layer(ordered)
        if kind == FORWARD:
            self._forward(made, ordered, speed, slowest)
        elif kind == BACKWARD:
            self._backward(made, ordered, speed, slowest)
        else:
            for layer, part in reversed(parts):
                made.work(f"{part.name} weight gradient", part.weight, layer, speed, slowest)
        if kind == BACKWARD and not self.order.flush:
            self._at_once(made, row)
        self._copied(made, kind, row)
        made.units = max(made.units, made.data)
        if kind != WEIGHT:
            made.units = made.add("waiting for shared links", COMPUTE, WAIT, made.units, float(self.slots.shared[kind, row, 0]), -1)
            for name, time in self.transfer(int(self.crossings.boundaries.onwards[kind, row]), self.handed(kind, row)):
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
        return 0.0 if kind == WEIGHT else float(self.slots.held[kind, row, 0])

    def handed(self, kind: int, row: int) -> float:
        """Time that a slot's stage is held up by what it hands over. [s]"""
        held = self._held(kind, row)
        if not held or self.link is None:
            return held
        chain = next(chain for chain in self.order.chains if row in chain)
        other = chain[chain.index(row) + (1 if kind == FORWARD else -1)]
        return held / float(self.link.rate(np.asarray(row % self.order.stages), np.asarray(other % self.order.stages)))

    def transfer(self, at: int, time: float) -> SentTimes:
        """Parts of what takes `time` [s] over a boundary: the transfer itself, and its parts put together where receivers need that."""
        if not time:
            return ()
        handed = self.crossings
        sent, gathered = float(handed.sent[at, 0]), float(handed.gathered[at, 0])
        name = f"{SCOPES[int(handed.crosses[at, 0])]} send_recv"
        return (name, time * sent / (sent + gathered)), ("all_gather", time * gathered / (sent + gathered))

    def _copied(self, made: Laid, kind: int, row: int) -> None:
        """Activations, and shards of weights with their gradients, between the device and its host while the pass runs."""
        copies = self.steps.state.copies
        if copies is None or kind == WEIGHT:
            return
        ways = (copies.activations, copies.fetched) if kind == FORWARD else (copies.stored, copies.activations + copies.fetched)
        for stream, each in zip((TO_HOST, FROM_HOST), ways, strict=True):
            time = sum(float(each[one.unit, 0]) for one in self.rows[row])
            made.data = max(made.data, made.add("host_copy", stream, COMMUNICATION, 0.0, time, -1))

    def _at_once(self, made: Laid, row: int) -> None:
        """Where weights are updated after each pass (PipeDream): gradients are reduced, or those of the pass before beside it."""
        stage = row % self.order.stages
        reductions = _sends(self.reductions[:, stage, 0])
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

    def _gather(self, made: Laid, layer: int, part: _Part) -> float:
        """A unit's sharded weights arrive, ahead of it on a stream of their own or while it waits; when they are there. [s]"""
        if not part.gather:
            return 0.0
        begin = made.data if self.machine.stack.overlap.gather else max(made.data, made.units)
        made.data = made.add("all_gather", DATA, COMMUNICATION, begin, part.gather, layer)
        return made.data

    def _forward(self, made: Laid, parts: Sequence[tuple[int, _Part]], speed: float, slowest: float) -> None:
        for layer, part in parts:
            there = self._gather(made, layer, part)
            made.sends(part.before, layer)
            start = made.work(part.name, part.forward, layer, speed, slowest, there)
            made.beside(part.beside, start, layer)
            made.sends(part.after, layer)

    def _backward(self, made: Laid, parts: Sequence[tuple[int, _Part]], speed: float, slowest: float) -> None:
        """Parts from the last to the first."""
        overlap = self.machine.stack.overlap
        behind = overlap.gather if self.steps.state.gather.any() else overlap.data  # whether reductions run behind the kernels
        there, host = self._gather(made, *parts[0]) if parts and parts[0][1].backward else 0.0, 0.0
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
            host += part.host
            for name, time in part.reduced:  # of what the device has, once the host has launched its kernels
                begin = max(made.data, made.units, host) if behind else max(made.data, made.units)
                made.data = made.add(name, DATA, COMMUNICATION, begin, time, layer)
                if not behind:
                    made.units = made.data


def lone_pass(names: dict[str, int], name: str, stream: int, kind: int) -> PassEvents:
    """A pass of a single event, stretched to the time of each slot."""
    made = Laid(names)
    made.units = made.add(name, stream, kind, 0.0, 1.0, -1)
    return made.made(name)
