"""A step as it passes: what every device does and when, expanded from classes of devices and repeated passes on demand.

A step of a large system has millions of events, but few different passes: the same kernels and collectives in the same order
for each microbatch. A `Timeline` keeps each different pass once (`PassEvents`, its events relative to its start), and when it runs:
`Slots`, one entry a device class, pass and microbatch. Devices that do the same at the same time are one class.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.errors import CrossflowError
from crossflow.base.results import Guided, Tabular, later, public
from crossflow.base.units import show, show_beyond

if TYPE_CHECKING:
    from crossflow.base.drawing.picture import Picture
else:
    Picture = later("crossflow.base.drawing.picture", "Picture")

# What a device has that works side by side: its units, the wires inside a layer, to the next stage and back, between replicas, its
# host, and both directions of the bus to it.
STREAMS = ("compute", "tensor", "pipeline", "backwards", "data", "host", "to_host", "from_host")
COMPUTE, TENSOR, PIPELINE, BACKWARDS, DATA, HOST, TO_HOST, FROM_HOST = range(len(STREAMS))
MODELLED = "modelled by crossflow"  # device of the traces that timelines are written as
# What an event is: kernels, a collective or transfer, or waiting in a collective for the last rank to arrive.
WORK, COMMUNICATION, WAIT = range(3)
# Where the time of a device goes; the parts add up to the step.
ACTIVITIES = ("busy", "exposed_communication", "waiting", "host", "bubble", "imbalance")
BARS = 8  # classes of devices that a notebook shows
CHUNK = 50_000  # events that are held at once where they are written


@dataclass(frozen=True, kw_only=True, eq=False)
class PassEvents:
    """Events of one pass, relative to its start; arrays of shape (events,)."""

    label: str  # what it is, such as ``F`` of a forward pass
    time: float  # how long it takes. [s]
    name: Index  # index of each event's name in the timeline's names
    stream: Index  # index in `STREAMS`
    kind: Index  # what it is: kernels, communication, waiting
    start: Array  # [s]
    end: Array  # [s]
    layer: Index  # layer of the model, -1 where none is meant


@dataclass(frozen=True, kw_only=True, eq=False)
class Slots:
    """When passes run; arrays of shape (slots,), those of a device in the order of their starts."""

    device: Index  # class of devices
    passed: Index  # index of the pass
    start: Array  # [s]
    end: Array  # a slot that takes other than its pass's time is stretched. [s]
    microbatch: Index  # -1 where none is meant
    source: Index  # slot on another device whose result it needs, -1 where there is none
    lag: Array  # time that the result travels. [s]
    joins: Index  # further dependencies, slots and those that wait for them, shape (2, dependencies): collectives across devices


@dataclass(frozen=True, kw_only=True)
class Device:
    """A class of devices that do the same at the same time."""

    name: str  # such as ``stage 2`` or ``stage 2, replica 5``
    stage: int  # pipeline stage
    ranks: Sequence[int]  # the ranks of all its devices


@dataclass(frozen=True, kw_only=True, eq=False)
class Events:
    """Events of one class of devices in order of their starts; arrays of shape (events,), as in `PassEvents` and `Slots`."""

    name: Index
    stream: Index
    kind: Index
    start: Array
    end: Array
    layer: Index
    microbatch: Index
    slot: Index

    def __len__(self) -> int:
        return int(self.start.size)


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline(Guided, Tabular):
    """When everything starts and ends.

    Attributes
    ----------
    title : scenario and strategy.
    names : names of events.
    passes : different passes.
    slots : when they run.
    devices : classes of devices.
    total : time of the step, or of what `of` says. [s]
    node : devices of a node. [1]
    memory : of each class the times at which its memory changes and what it holds from then on, each of shape (changes,). [s], [B]
    capacity : memory of one device. [B]
    even_idle : of each class the time without work if all stages took the mean of them: its bubble, shape (devices,). [s]
    of : what it is of, in a word: a step, or the iteration of a job, whose steps are events.
    """

    title: str
    names: tuple[str, ...]
    passes: tuple[PassEvents, ...]
    slots: Slots
    devices: tuple[Device, ...]
    total: float
    node: int
    memory: tuple[tuple[Array, Array], ...]
    capacity: float
    even_idle: Array
    of: str = "step"

    @property
    def step_time(self) -> float:
        """Time of the step. [s]"""
        return self.total

    def save(self, path: str | Path, *, ranks: str | Sequence[int] | None = None) -> list[Path]:
        """Write it: ``.json`` or ``.json.gz`` for Perfetto, ``.png`` or ``.svg`` as a picture (both are written).

        ranks : of a trace, one of every class of devices where absent, ``"all"``, or some by number.
        """
        return public("write_timeline")(self, path, ranks=ranks)  # type: ignore[no-any-return]

    def to_perfetto(self, path: str | Path, *, ranks: str | Sequence[int] | None = None) -> Path:
        """Write it as a trace, ``.json`` or ``.json.gz``, which ui.perfetto.dev and Holistic Trace Analysis open; see `save`."""
        if Path(path).suffix not in (".json", ".gz"):
            raise CrossflowError(f"{path}: a trace ends in .json or .json.gz; save() writes pictures")
        return self.save(path, ranks=ranks)[0]

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw every class of devices over time; into a file as well where a path is given."""
        return public("draw_timeline")(self).saved(path)  # type: ignore[no-any-return]

    def table(self) -> dict[str, list[Any]]:
        """A row a class of devices: its name, stage, number of ranks, the parts of its step in s, and its fullest memory in B."""
        parts = {f"{name}_s": times.tolist() for name, times in self.activity().items()}
        return {
            "device": [device.name for device in self.devices],
            "stage": [device.stage for device in self.devices],
            "ranks": [len(device.ranks) for device in self.devices],
            **parts,
            "peak_memory_bytes": [float(held.max()) for _, held in self.memory],
        }

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html

        columns = self.table()
        bars = []
        for i, name in enumerate(columns["device"][:BARS]):
            parts = {part: float(columns[f"{part}_s"][i]) for part in ACTIVITIES if columns[f"{part}_s"][i] > 0}
            told = {part: show(time, "s") for part, time in parts.items()}
            bars.append(f"<div>{html.text(name)}</div>" + html.stacked_bar(parts, told, whole=self.total))
        left = len(columns["device"]) - BARS
        more = f"<div>{left:,} more classes of devices; to_frame() has all of them</div>" if left > 0 else ""
        return html.heading("Timeline", f"{self.title}: {show(self.total, 's')}, {self.event_count:,} events") + "".join(bars) + more

    def __repr__(self) -> str:
        classes = "1 class" if len(self.devices) == 1 else f"{len(self.devices):,} classes"
        return f"Timeline({self.title}: {show(self.total, 's')}, {classes} of devices, {self.event_count:,} events)"

    @functools.cached_property
    def _of_device(self) -> tuple[Index, ...]:
        order = np.argsort(self.slots.device, kind="stable")
        cuts = np.searchsorted(self.slots.device[order], np.arange(len(self.devices) + 1))
        return tuple(order[a:b] for a, b in itertools.pairwise(cuts))

    def slots_of(self, device: int) -> Index:
        """Slots of a class of devices in the order of their starts."""
        mine = self._of_device[device]
        return mine[np.lexsort((self.slots.end[mine], self.slots.start[mine]))]

    @functools.cached_property
    def stretch(self) -> Array:
        """Time of every slot over that of its pass, shape (slots,). [1]"""
        times = np.array([one.time for one in self.passes])[self.slots.passed]
        return np.asarray(np.divide(self.slots.end - self.slots.start, times, out=np.ones_like(times), where=times > 0))

    def events(self, device: int, slots: Index | None = None) -> Events:
        """Events of a class of devices, or of some of its slots only."""
        mine = self.slots_of(device) if slots is None else slots
        sizes = np.array([len(one.start) for one in self.passes], dtype=np.intp)[self.slots.passed[mine]]
        slot = np.repeat(mine, sizes)
        # Place of every event in its pass, and of that in all passes laid end to end.
        first = np.cumsum([0, *[len(one.start) for one in self.passes]])[self.slots.passed[mine]]
        within = np.arange(len(slot)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(first, sizes)
        whole, begin, stretch = self._together, self.slots.start[slot], self.stretch[slot]
        found = Events(
            name=whole["name"][within], stream=whole["stream"][within], kind=whole["kind"][within],
            start=begin + stretch * whole["start"][within], end=begin + stretch * whole["end"][within], layer=whole["layer"][within],
            microbatch=self.slots.microbatch[slot], slot=slot,
        )  # fmt: skip
        order = np.argsort(found.start, kind="stable")
        return Events(**{field: getattr(found, field)[order] for field in found.__dataclass_fields__})

    @functools.cached_property
    def _together(self) -> Mapping[str, Array]:
        """Events of all passes end to end."""
        return {
            field: np.concatenate([getattr(one, field) for one in self.passes])
            for field in ("name", "stream", "kind", "start", "end", "layer")
        }

    def chunks(self, device: int, most: int = CHUNK) -> Iterator[Events]:
        """Events of a class of devices in pieces of about `most` events, for writing without holding them all."""
        mine = self.slots_of(device)
        sizes = np.cumsum(np.array([len(one.start) for one in self.passes])[self.slots.passed[mine]])
        cuts = np.searchsorted(sizes, np.arange(most, (sizes[-1] if len(sizes) else 0) + most, most))
        for part in np.split(mine, np.unique(cuts[cuts < len(mine)] + 1)):
            if len(part):
                yield self.events(device, part)

    @functools.cached_property
    def events_of_one(self) -> Index:
        """Events of one device of every class, shape (devices,)."""
        sizes = np.array([len(one.start) for one in self.passes], dtype=np.intp)
        return np.bincount(self.slots.device, sizes[self.slots.passed], len(self.devices)).astype(np.intp)

    @property
    def event_count(self) -> int:
        """Events of all devices, replicas and all."""
        return int((self.events_of_one * [len(device.ranks) for device in self.devices]).sum())

    @functools.cached_property
    def world(self) -> int:
        """Ranks of all classes of devices."""
        return sum(len(device.ranks) for device in self.devices)

    # ---------------------------------------------------------------------------------- where the time goes

    def activity(self) -> dict[str, Array]:
        """Time of every class of devices by `ACTIVITIES`, each of shape (devices,); the parts add up to the step. [s]

        Busy is what its units compute; exposed communication what they wait for collectives and transfers inside a pass; waiting what
        a collective waits for its last rank; host what the host keeps them waiting. Of the rest, the bubble is what an even
        pipeline would leave too, and imbalance what uneven stages and replicas add.
        """
        # A pass's units are idle for communication where nothing else runs: its time less work, waits and what the host takes.
        table = np.zeros((4, len(self.passes)))
        for i, one in enumerate(self.passes):
            # What the host or a wait began beside an earlier pass kept nobody waiting there.
            spans, inside = one.end - one.start, np.maximum(np.minimum(one.end, one.time) - np.maximum(one.start, 0.0), 0.0)
            work = spans[(one.stream == COMPUTE) & (one.kind == WORK)].sum()
            wait, host = inside[one.kind == WAIT].sum(), inside[one.stream == HOST].sum()
            table[:, i] = work, max(one.time - work - wait - host, 0.0), wait, host
        each = table[:, self.slots.passed] * self.stretch
        sums = np.stack([np.bincount(self.slots.device, row, len(self.devices)) for row in each])
        idle = np.maximum(self.total - sums.sum(axis=0), 0.0)
        bubble = np.minimum(idle, self.even_idle)
        return dict(zip(ACTIVITIES, (*sums, bubble, idle - bubble), strict=True))

    def utilisation(self) -> Array:
        """Share of the step that each class of devices computes, shape (devices,). [1]"""
        return np.asarray(self.activity()["busy"] / self.total)

    # ---------------------------------------------------------------------------------- the critical path

    @functools.cached_property
    def _next(self) -> Index:
        """Slot that follows each on its device, -1 after the last."""
        after = np.full(len(self.slots.start), -1, dtype=np.intp)
        for device in range(len(self.devices)):
            mine = self.slots_of(device)
            after[mine[:-1]] = mine[1:]
        return after

    @functools.cached_property
    def _before(self) -> Mapping[int, list[int]]:
        """For slots with further dependencies the slots that they wait for."""
        found: dict[int, list[int]] = {}
        for earlier, after in self.slots.joins.T.tolist():
            found.setdefault(after, []).append(earlier)
        return found

    @functools.cached_property
    def _waiting(self) -> Mask:
        """Slots that only wait, shape (slots,)."""
        return np.array([bool(len(one.kind)) and bool((one.kind == WAIT).all()) for one in self.passes], dtype=bool)[self.slots.passed]

    @functools.cached_property
    def latest(self) -> Array:
        """End that every slot could have without lengthening the step, shape (slots,). [s]

        A slot holds up the next one of its device, those on other devices that need its result, and those that join it. One that only
        waits takes no time of its own.
        """
        slots = self.slots
        late, time = [self.total] * len(slots.start), np.where(self._waiting, 0.0, slots.end - slots.start).tolist()
        follows, source, lag = self._next.tolist(), slots.source.tolist(), slots.lag.tolist()
        for slot in np.lexsort((slots.end, slots.start))[::-1].tolist():
            if follows[slot] >= 0:
                late[slot] = min(late[slot], late[follows[slot]] - time[follows[slot]])
            begin = late[slot] - time[slot]
            if source[slot] >= 0:
                late[source[slot]] = min(late[source[slot]], begin - lag[slot])
            for earlier in self._before.get(slot, ()):
                late[earlier] = min(late[earlier], begin)
        return np.array(late)

    @property
    def slack(self) -> Array:
        """How much later each slot could end without lengthening the step, shape (slots,). [s]"""
        return np.maximum(self.latest - self.slots.end, 0.0)

    @property
    def overfull(self) -> str | None:
        """Which devices need more memory than they have, in a sentence; None where all have enough."""
        peaks = [float(held.max()) for _, held in self.memory]
        most = int(np.argmax(peaks))
        if peaks[most] <= self.capacity:
            return None
        name, excess = self.devices[most].name, show(peaks[most] - self.capacity, "B")
        needed, capacity = show_beyond(peaks[most], self.capacity, "B"), show(self.capacity, "B")
        return f"does not fit: {name} needs {needed}, {excess} more than the {capacity} of a device"

    def critical_path(self) -> list[int]:
        """Slots that decide how long the step takes, from the first to the last: each starts as what it waited for is there."""
        slots = self.slots
        if not len(slots.start):
            return []
        before = np.full(len(slots.start), -1, dtype=np.intp)
        before[self._next[self._next >= 0]] = np.flatnonzero(self._next >= 0)
        path = [int(slots.end.argmax())]
        while True:
            slot = path[-1]
            waits = [
                (slots.end[other] + lag, other) for other, lag in ((before[slot], 0.0), (slots.source[slot], slots.lag[slot])) if other >= 0
            ]
            waits += [(slots.end[other], other) for other in self._before.get(slot, ())]
            if not waits:
                return path[::-1]
            path.append(int(max(waits, key=lambda wait: (wait[0], not self._waiting[wait[1]], wait[1]))[1]))
