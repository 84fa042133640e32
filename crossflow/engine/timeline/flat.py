"""A timeline from events on in-order streams, each with its own start and end: steps that have no passes that repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.engine.timeline.record import COMMUNICATION, COMPUTE, HOST, WAIT, WORK, Device, PassEvents, Slots, Timeline


@dataclass(frozen=True, kw_only=True)
class Run:
    """One event of one class of devices."""

    device: int  # class of devices
    stream: int  # index in `crossflow.engine.timeline.record.STREAMS`
    name: str  # what runs; of a collective, its name
    start: float  # [s]
    end: float  # [s]
    after: tuple[int, ...] = ()  # runs that it waited for
    beside: bool = False  # whether it runs on a stream of its own beside kernels, as the host's calls of a program do
    waits: bool = False  # whether it is the wait of a collective for its last rank
    label: str = ""  # of its pass; its name where empty

    @property
    def works(self) -> bool:
        """Whether it occupies the device, and is not a collective that may run beside."""
        return self.stream in (COMPUTE, HOST) and not self.beside


def timeline_of(
    runs: Sequence[Run],
    devices: Sequence[Device],
    *,
    title: str,
    total: float,
    node: int,
    memory: Sequence[tuple[Array, Array]],
    capacity: float,
    bubble: float | None = None,
) -> Timeline:
    """Timeline of runs.

    A collective's slots are what the device waits for it: the stretches of time in which nothing else runs. It is an event of the last
    of them, which begins before its slot where it runs beside kernels. What no collective fills is a wait for the last rank of one,
    or for the host, which has an event in each of its slots.

    Parameters
    ----------
    memory : of every class of devices the times at which its memory changes, and what it holds from then on. [s], [B]
    total : time of the step, all runs and what the host does after them. [s]
    bubble : time that an even world leaves the busiest device idle; what this one does, where absent. [s]
    """
    names = list(dict.fromkeys(run.name for run in runs))
    place = {name: i for i, name in enumerate(names)}
    pieces = [(i, *span) for i, spans in enumerate(_pieces(runs, len(devices))) for span in spans]
    last = {i: number for number, (i, _, _) in enumerate(pieces)}
    passes, reached = [], [run.start for run in runs]
    for number, (i, begin, end) in enumerate(pieces):
        whole = last[i] == number
        until = runs[i].end if whole else end
        shown = (reached[i], until) if whole or runs[i].stream == HOST or runs[i].waits else None
        passes.append(_pass(runs[i], place[runs[i].name], begin, end, shown))
        reached[i] = until if shown else reached[i]
    joins = [(last[j], last[i]) for i, run in enumerate(runs) for j in run.after if runs[j].device != run.device]
    count = len(pieces)
    slots = Slots(
        device=np.array([runs[i].device for i, _, _ in pieces], dtype=np.intp), passed=np.arange(count),
        start=np.array([begin for _, begin, _ in pieces]), end=np.array([end for _, _, end in pieces]), microbatch=np.full(count, -1),
        source=np.full(count, -1), lag=np.zeros(count), joins=np.array(joins, dtype=np.intp).reshape(-1, 2).T,
    )  # fmt: skip
    idle = max(total - np.bincount(slots.device, slots.end - slots.start, len(devices)).max(), 0.0)
    return Timeline(
        title=title, names=tuple(names), passes=tuple(passes), slots=slots, devices=tuple(devices), total=total, node=node,
        memory=tuple(memory), capacity=capacity, even_idle=np.full(len(devices), idle if bubble is None else bubble),
    )  # fmt: skip


def _pass(run: Run, name: int, begin: float, end: float, shown: tuple[float, float] | None) -> PassEvents:
    """A pass of one event, which may have begun before its slot, or of none in the earlier pieces of a collective."""
    one = np.zeros(int(shown is not None), dtype=np.intp)
    first, last = shown or (0.0, 0.0)
    kind = WAIT if run.waits else WORK if run.works else COMMUNICATION
    return PassEvents(
        label=run.label or run.name, time=end - begin, name=one + name, stream=one + run.stream, kind=one + kind,
        start=np.full(len(one), first - begin), end=np.full(len(one), last - begin), layer=one - 1,
    )  # fmt: skip


Spans = list[tuple[float, float]]


def _pieces(runs: Sequence[Run], devices: int) -> list[Spans]:
    """Start and end of every run's slots: its own, or of a collective the gaps between kernels that it fills; at least one of no length.

    Collectives fill gaps first, then waits for the last of their ranks, then the host.
    """
    found: list[Spans] = [[(run.start, run.end)] if run.works else [] for run in runs]
    mine: list[list[int]] = [[] for _ in range(devices)]
    for i, run in enumerate(runs):
        mine[run.device].append(i)
    for here in mine:
        busy = [(runs[i].start, runs[i].end) for i in here if runs[i].works]
        beside = [i for i in here if not runs[i].works]
        for rank in range(3):
            chosen = [i for i in beside if (runs[i].waits + 2 * (runs[i].stream == HOST)) == rank]
            _fill(runs, sorted(chosen, key=lambda i: runs[i].end), busy, found)
            busy += [span for i in chosen for span in found[i]]
    return found


def _fill(runs: Sequence[Run], chosen: Sequence[int], busy: Spans, found: list[Spans]) -> None:
    """Fill the gaps between what is busy with runs in the order of their ends; each gap begins as something ends."""
    taken, spans = 0.0, sorted(span for span in busy if span[0] < span[1])
    opens, closes = [0.0, *(end for _, end in spans)], [*(start for start, _ in spans), np.inf]
    for i in chosen:
        first, last = np.searchsorted(closes, runs[i].start, side="right"), np.searchsorted(opens, runs[i].end)
        for gap in range(int(first), int(last)):
            begin, end = max(runs[i].start, opens[gap], taken), min(runs[i].end, closes[gap])
            if begin < end:
                found[i].append((begin, end))
                taken = end
        if not found[i]:
            found[i].append((runs[i].end, runs[i].end))
