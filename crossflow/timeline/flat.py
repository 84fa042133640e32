"""A timeline from events on in-order streams, each with its own start and end: steps that have no passes that repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.timeline.record import COMMUNICATION, COMPUTE, HOST, WORK, Device, Pass, Slots, Timeline


@dataclass(frozen=True, kw_only=True)
class Run:
    """One event of one class of devices.

    Attributes
    ----------
    device, stream : class of devices, and index in `crossflow.timeline.record.STREAMS`.
    name : what runs; of a collective, its name.
    start, end : [s]
    after : runs that it waited for.
    beside : whether it runs on a stream of its own beside kernels, as the host's calls of a program do.
    """

    device: int
    stream: int
    name: str
    start: float
    end: float
    after: tuple[int, ...] = ()
    beside: bool = False

    @property
    def works(self) -> bool:
        """Whether it occupies the device, and is not a collective that may run beside."""
        return self.stream in (COMPUTE, HOST) and not self.beside


def timeline_of(
    runs: Sequence[Run], devices: Sequence[Device], *, title: str, total: float, node: int, held: Sequence[float], capacity: float
) -> Timeline:
    """Timeline of runs.

    A collective's slots are what the device waits for it: the stretches of time in which nothing else runs. It is an event of the last
    of them, which begins before its slot where it runs beside kernels.

    Parameters
    ----------
    held : bytes that every class of devices holds. [B]
    total : time of the step, all runs and what the host does after them. [s]
    """
    names = list(dict.fromkeys(run.name for run in runs))
    place = {name: i for i, name in enumerate(names)}
    pieces = [(i, *span) for i, spans in enumerate(_pieces(runs, len(devices))) for span in spans]
    last = {i: number for number, (i, _, _) in enumerate(pieces)}
    passes = tuple(
        _pass(runs[i], place[runs[i].name], begin, end, whole=last[i] == number) for number, (i, begin, end) in enumerate(pieces)
    )
    joins = [(last[j], last[i]) for i, run in enumerate(runs) for j in run.after if runs[j].device != run.device]
    count = len(pieces)
    slots = Slots(
        device=np.array([runs[i].device for i, _, _ in pieces], dtype=np.intp), passed=np.arange(count),
        start=np.array([begin for _, begin, _ in pieces]), end=np.array([end for _, _, end in pieces]), microbatch=np.full(count, -1),
        source=np.full(count, -1), lag=np.zeros(count), joins=np.array(joins, dtype=np.intp).reshape(-1, 2).T,
    )  # fmt: skip
    used = np.bincount(slots.device, slots.end - slots.start, len(devices))
    memory = tuple((np.zeros(1), np.array([amount])) for amount in held)
    return Timeline(
        title=title, names=tuple(names), passes=passes, slots=slots, devices=tuple(devices), total=total, node=node, memory=memory,
        capacity=capacity, even_idle=np.full(len(devices), total - used.max()),
    )  # fmt: skip


def _pass(run: Run, name: int, begin: float, end: float, *, whole: bool) -> Pass:
    """A pass of one event, which may have begun before its slot, or of none in the earlier pieces of a collective."""
    one = np.zeros(int(whole), dtype=np.intp)
    kind = WORK if run.works else COMMUNICATION
    return Pass(
        label=run.name, time=end - begin, name=one + name, stream=one + run.stream, kind=one + kind,
        start=np.full(len(one), run.start - begin), end=np.full(len(one), run.end - begin), layer=one - 1,
    )  # fmt: skip


def _pieces(runs: Sequence[Run], devices: int) -> list[list[tuple[float, float]]]:
    """Start and end of every run's slots: its own, or of a collective the gaps between kernels that it fills; at least one of no length."""
    found: list[list[tuple[float, float]]] = [[(run.start, run.end)] if run.works else [] for run in runs]
    for device in range(devices):
        mine = [i for i, run in enumerate(runs) if run.device == device]
        busy = sorted((runs[i].start, runs[i].end) for i in mine if runs[i].works)
        # Each gap begins as a kernel ends, and of two collectives that share one each has a part.
        gaps = list(zip([0.0, *(end for _, end in busy)], [*(start for start, _ in busy), np.inf], strict=True))
        opens, closes, taken = [gap[0] for gap in gaps], [gap[1] for gap in gaps], 0.0
        for i in sorted((i for i in mine if not runs[i].works), key=lambda i: runs[i].end):
            first, last = np.searchsorted(closes, runs[i].start, side="right"), np.searchsorted(opens, runs[i].end)
            for gap in range(int(first), int(last)):
                begin, end = max(runs[i].start, opens[gap], taken), min(runs[i].end, closes[gap])
                if begin < end:
                    found[i].append((begin, end))
                    taken = end
            if not found[i]:
                found[i].append((runs[i].end, runs[i].end))
    return found
