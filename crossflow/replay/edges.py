"""What waits for what in the trace of one rank: the order of threads and streams, launches, and waits that the trace does not name.

A trace says when a call began and which work it launched, seldom what a stream or a thread waited for. What it does not say is
inferred: from the order of calls, and from the clock, which no wait may contradict (`INFERRED` lists the rules). The segments of the
host between two calls are kept by operation, as the overheads T1 to T5 of Lin et al. [1]_, Algorithm 1.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on Multi-GPU Platforms", 2024.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from crossflow.replay.kineto import COPY, KERNEL, RankTrace

SYNC_CALLS = frozenset(
    f"{maker}{call}Synchronize" for maker in ("cuda", "hip") for call in ("Stream", "Device", "Event")
)  # calls in which the host waits for the device
DEVICE_SYNCS = frozenset({"cudaDeviceSynchronize", "hipDeviceSynchronize"})
STREAM_WAITS = frozenset({"cudaStreamWaitEvent", "hipStreamWaitEvent"})
EVENT_RECORDS = frozenset({"cudaEventRecord", "cudaEventRecordWithFlags", "hipEventRecord"})
QUEUE = 1024  # launches that CUDA takes ahead of the device, its nominal depth; a launch beyond waits
# Times by which clocks and calls may be off, seen in traces of V100, A100 and RTX 2080 Ti. [s]
CLOCK = 2e-6  # of two events that follow one another
LATE = 30e-6  # start of work after all that it waits for, above which something else held it
QUEUED = 5e-6  # before a call begins, within which a full queue held it
# Of a call that waits, beside its wait; of one that the queue held; of one that has nothing to wait for. [s]
OWN, OWN_QUEUED, OWN_IDLE = 5e-6, 10e-6, 15e-6
RETURN, EARLY = 30e-6, 60e-6  # how much later, and earlier, than the end of the work a waiting call returns at most
BLOCKS = 20e-6  # a copy to pageable memory that takes longer blocked the host
BEFORE, AFTER = 12e-6, 25e-6  # of the annotation of a collective, within which a wait of a stream is the collective's own
# A kernel holds back small ones of other streams where it fills the device: so many warps per multiprocessor, for so long. [1], [s]
FILLS, FILLS_LONG = 64.0, 30e-6
NEAR, NEAR_SHARE = 100e-6, 0.2  # of the end of such a kernel, and as a share of its time, within which a delay is its doing
RECENT, HOLDERS = 12, 6  # works of a stream, and kernels that fill the device, that are looked back at
USUAL_LAUNCH, USUAL_GAP = 8e-6, 1e-6  # where a trace has none to learn from [s]
PointKind = Literal["launch", "sync", "begin", "end"]
# T1: between operations; T2, T5: in an operation before its first launch, and after it; T3: after its last, T5n: all of one without any;
# T4: the launch itself; hand: between a thread's last call and the first of another.
OverheadKind = Literal["T1", "T2", "T3", "T4", "T5", "T5n", "hand"]
HostPiece = tuple[OverheadKind, str, float]  # what a segment of the host is, of which operation, how long [s]
INFERRED = ("thread", "stream_wait", "collective_wait", "host_wait", "copy_wait", "contention", "queue")


@dataclass(kw_only=True, eq=False)
class HostPoint:
    """A call that launches work or waits for it, or the begin or end of a step."""

    kind: PointKind
    name: str
    thread: int
    start: float  # [s]
    end: float  # [s]
    works: tuple[int, ...] = ()  # that it launches
    window: int = -1  # step that it begins or ends
    before: int = -1  # point before it on its thread
    hand: int = -1  # point of another thread that it follows
    queue: int = -1  # work that must end before the queue takes another launch
    pieces: tuple[HostPiece, ...] = ()  # what the thread did since the point before
    waits: list[int] = field(default_factory=list)  # works that it waits for

    @property
    def length(self) -> float:
        """Time of the call. [s]"""
        return self.end - self.start

    @property
    def launches(self) -> bool:
        """Whether it launches work."""
        return self.kind == "launch"


@dataclass(kw_only=True, eq=False)
class RankEdges:
    """What waits for what on one rank.

    Attributes
    ----------
    points : of the host, in the order of time.
    launched : point that launched every work, -1 for work from before the trace.
    previous : work before every work on its stream, -1 for none.
    waits : works of other streams that every work waits for.
    held : kernel of another stream that held back every work by filling the device, -1 for none.
    unexplained : delay of every work that no edge explains, shape (works,). [s]
    launch, gap : time from a call to the start of its work by kind, collectives apart, and between two works that follow. [s]
    inferred : how many edges each rule of `INFERRED` gave. [1]
    read : whether waits of streams were read from the trace, not inferred.
    """

    trace: RankTrace
    points: list[HostPoint]
    launched: list[int]
    previous: list[int]
    waits: list[list[int]]
    held: list[int]
    unexplained: list[float]
    launch: Mapping[int, float]
    gap: Mapping[int, float]
    inferred: dict[str, int]
    read: bool

    def launch_class(self, work: int) -> int:
        """What the time of its launch depends on: its kind, or that it is a collective."""
        works = self.trace.works
        return COLLECTIVE if works.collective[work] else int(works.kind[work])


COLLECTIVE = 3  # beside the kinds of work


def edges_of(trace: RankTrace) -> RankEdges:
    """Everything that waits in a trace."""
    points = _points(trace)
    launched = [-1] * len(trace.works)
    for i, point in enumerate(points):
        for work in point.works:
            launched[work] = i
    for thread in {point.thread for point in points}:
        _cut(trace, thread, points)
    found = RankEdges(
        trace=trace, points=points, launched=launched, previous=_previous(trace), waits=[[] for _ in launched], held=[-1] * len(launched),
        unexplained=[0.0] * len(launched), launch={}, gap={}, inferred=dict.fromkeys(INFERRED, 0), read=bool(trace.syncs),
    )  # fmt: skip
    _Inference(found).run()
    _latencies(found)
    _delays(found)
    return found


def _points(trace: RankTrace) -> list[HostPoint]:
    """Launches, waits and ends of steps of all threads, by time."""
    by_correlation: dict[int, list[int]] = defaultdict(list)
    for work, correlation in enumerate(trace.works.correlation.tolist()):
        by_correlation[correlation].append(work)
    ops, calls = trace.ops, trace.calls
    active = set(np.unique(ops.thread).tolist())
    columns = (calls.correlation, calls.thread, calls.name, calls.start, calls.end)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    active |= {thread for correlation, thread, *_ in rows if correlation in by_correlation}
    points: list[HostPoint] = []
    for correlation, thread, name, start, end in rows:
        text = trace.names[name]
        works = tuple(by_correlation.pop(correlation, ())) if correlation >= 0 else ()
        if thread in active and (works or text in SYNC_CALLS):
            kind: PointKind = "launch" if works else "sync"
            points.append(HostPoint(kind=kind, name=text, thread=thread, start=start, end=end, works=works))
    for i, window in enumerate(trace.windows):
        for side, at in (("begin", window.start), ("end", window.end)):
            points.append(HostPoint(kind=side, name=side, thread=window.thread, start=at, end=at, window=i))  # type: ignore[arg-type]
    points.sort(key=lambda point: (point.start, point.end))
    launches = [point for point in points if point.works]
    for earlier, later in zip(launches, launches[QUEUE:], strict=False):
        later.queue = earlier.works[-1]
    return points


def _previous(trace: RankTrace) -> list[int]:
    last: dict[int, int] = {}
    found = []
    for work, stream in enumerate(trace.works.stream.tolist()):
        found.append(last.get(stream, -1))
        last[stream] = work
    return found


def _cut(trace: RankTrace, thread: int, points: Sequence[HostPoint]) -> None:
    """Cut a thread into pieces between its points, by top-level operation."""
    marks: list[tuple[float, float, str, Any]] = []
    last = -np.inf
    mine = np.flatnonzero(trace.ops.thread == thread)
    columns = (trace.ops.start, trace.ops.end, trace.ops.name)
    for start, end, name in zip(*(column[mine].tolist() for column in columns), strict=True):
        if start >= last:
            marks += [(start, 1.0, "start", trace.names[name]), (end, 0.0 if end > start else 2.0, "end", trace.names[name])]
            last = end
    marks += [(point.start, 1.5, "point", i) for i, point in enumerate(points) if point.thread == thread]
    marks.sort(key=lambda mark: mark[:2])
    pieces: list[HostPiece] = []
    at, before, op, launches = marks[0][0] if marks else 0.0, -1, "", 0
    for time, _, what, value in marks:
        length, at = max(0.0, time - at), max(time, at)
        if what == "start":
            pieces.append(("T1", value, length))
            op, launches = value, 0
        elif what == "end":
            pieces.append(("T3" if launches else "T5n", value, length))
            op = ""
        else:
            point = points[value]
            pieces.append(("T5" if launches else "T2", op, length) if op else ("T1", f"call {point.name}", length))
            point.pieces, point.before, before, pieces = tuple(pieces), before, value, []
            at, launches = max(at, point.end), launches + (point.window < 0)


class _Inference:
    """Goes through the points of a rank in time, and remembers what each stream and thread did last."""

    def __init__(self, edges: RankEdges) -> None:
        self.edges, self.trace = edges, edges.trace
        works, names = self.trace.works, self.trace.names
        self.start, self.end, self.stream = works.start.tolist(), works.end.tolist(), works.stream.tolist()
        self.collective, self.copies = works.collective.tolist(), (works.kind == COPY).tolist()
        self.pageable = ["Pageable" in names[name] for name in works.name.tolist()]
        self.last: dict[int, int] = {}  # work of every stream
        self.current: dict[int, int] = {}  # stream of every thread; of any under -1
        self.copied: dict[int, int] = {}  # stream of a thread's last copy
        self.queued: dict[int, list[int]] = defaultdict(list)  # works of every stream as they were launched
        self.pending: float | None = None  # when a stream was told to wait, until the next launch
        self.asked = self._asked() if self.trace.syncs else {}

    def run(self) -> None:
        """Find the waits of every point and every work."""
        flags = iter([] if self.edges.read else [*_stream_waits(self.trace)])
        flag = next(flags, None)
        last = -1
        points = self.edges.points
        for i, point in enumerate(points):
            while flag is not None and flag < point.start:
                self.pending, flag = flag, next(flags, None)
            if last >= 0 and points[last].thread != point.thread:
                point.hand = last
                self.edges.inferred["thread"] += 1
            last = i
            for work in point.works:
                self._work(point, work)
            self._host(point)

    def _work(self, point: HostPoint, work: int) -> None:
        """What a work waits for on other streams."""
        stream, found = self.stream[work], self.edges.waits[work]
        if self.edges.read:
            found += self.asked.get(work, ())
        elif self.collective[work]:  # waits for what the thread launched last
            here = self.current.get(point.thread, self.current.get(-1, -1))
            if here in self.last and self.end[self.last[here]] <= self.start[work] + CLOCK:
                found.append(self.last[here])
                self.edges.inferred["collective_wait"] += 1
        elif self.pending is not None:
            found += self._latest(stream, self.start[work], self.pending)
            self.edges.inferred["stream_wait"] += len(found)
        if not self.collective[work]:
            self.pending = None
            self.current[point.thread] = self.current[-1] = stream
        self.last[stream] = work
        self.queued[stream].append(work)
        if self.copies[work]:
            self.copied[point.thread] = stream

    def _latest(self, stream: int, start: float, asked: float) -> Iterator[int]:
        """The latest work of every other stream that the clock allows to have been waited for."""
        for other, works in self.queued.items():
            if other == stream:
                continue
            for work in itertools.islice(reversed(works), RECENT):
                if self.end[work] <= start + CLOCK and self.edges.points[self.edges.launched[work]].start <= asked:
                    yield work
                    break

    def _host(self, point: HostPoint) -> None:
        """What a call waits for."""
        if point.kind == "sync":
            stream = self.copied.get(point.thread, self.current.get(point.thread, -1))
            streams = [*self.last] if point.name in DEVICE_SYNCS else [stream]
            point.waits = [self.last[one] for one in streams if one in self.last and self.end[self.last[one]] <= point.end + CLOCK]
            self.edges.inferred["host_wait"] += len(point.waits)
        elif point.works and self._blocks(point, point.works[-1]):
            point.waits = [point.works[-1]]
            self.edges.inferred["copy_wait"] += 1

    def _blocks(self, point: HostPoint, work: int) -> bool:
        """Whether a launch returned only when its copy was done."""
        ends = self.start[work] < point.end and self.end[work] <= point.end + EARLY
        return self.pageable[work] and point.length > BLOCKS and ends

    def _asked(self) -> dict[int, list[int]]:
        """Waits of streams as newer profilers record them: works that a work waits for."""
        works, calls = self.trace.works, self.trace.calls
        place = {text: i for i, text in enumerate(self.trace.streams)}
        recorded = dict(zip(calls.correlation.tolist(), calls.start.tolist(), strict=True))
        began = {work: self.edges.points[point].start for work, point in enumerate(self.edges.launched) if point >= 0}
        by_stream: dict[int, list[int]] = defaultdict(list)
        for work in sorted(began, key=began.__getitem__):
            by_stream[int(works.stream[work])].append(work)
        found: dict[int, list[int]] = defaultdict(list)
        for sync in self.trace.syncs:
            args = sync.get("args") or {}
            told, source = place.get(str(args.get("stream"))), place.get(str(args.get("wait_on_stream")))
            recorded_at, asked_at = recorded.get(args.get("wait_on_cuda_event_record_corr_id")), recorded.get(args.get("correlation"))
            if None in (told, source, recorded_at, asked_at) or told == source:
                continue
            earlier = [work for work in by_stream[source] if began[work] <= recorded_at]  # type: ignore[index,operator]
            later = [work for work in by_stream[told] if began[work] >= asked_at]  # type: ignore[index,operator]
            if earlier and later:
                found[later[0]].append(earlier[-1])
        return found


def _stream_waits(trace: RankTrace) -> Iterator[float]:
    """When streams were told to wait, the waits of collectives apart. [s]"""
    near = sorted((start, end) for name, start, end in _marks(trace) if name.startswith("nccl:"))
    begins = [start for start, _ in near]
    for name, start in zip(trace.calls.name.tolist(), trace.calls.start.tolist(), strict=True):
        if trace.names[name] in STREAM_WAITS:
            i = bisect(begins, start) - 1
            inside = i >= 0 and near[i][1] + AFTER >= start
            if not inside and not (i + 1 < len(near) and near[i + 1][0] - start < BEFORE):
                yield start


def _marks(trace: RankTrace) -> Iterator[tuple[str, float, float]]:
    marks = trace.marks
    for name, start, end in zip(marks.name.tolist(), marks.start.tolist(), marks.end.tolist(), strict=True):
        yield trace.names[name], start, end


def _ready(edges: RankEdges, ends: Sequence[float], work: int) -> float:
    """When the last work ended that another waits for, 0 where there is none. [s]"""
    before = edges.previous[work]
    return max([ends[other] for other in edges.waits[work]] + [ends[before] if before >= 0 else -np.inf])


def _latencies(edges: RankEdges) -> None:
    """Times from calls to starts, from works that nothing else held: the lower quartile of each kind."""
    works = edges.trace.works
    start, ends, found = works.start.tolist(), works.end.tolist(), defaultdict(list)
    for work, point in enumerate(edges.launched):
        if point >= 0 and _ready(edges, ends, work) <= edges.points[point].start:
            found[edges.launch_class(work)].append(start[work] - edges.points[point].start)
    every = [time for times in found.values() for time in times]
    usual = _quartile(every, USUAL_LAUNCH)
    edges.launch = {kind: _quartile(found[kind], usual) for kind in range(COLLECTIVE + 1)}


def _quartile(times: list[float], otherwise: float) -> float:
    return sorted(times)[len(times) // 4] if times else otherwise


def _delays(edges: RankEdges) -> None:
    """Gaps between works, delays by kernels that fill the device, and those that nothing explains."""
    works = edges.trace.works
    start, ends, streams = works.start.tolist(), works.end.tolist(), works.stream.tolist()
    filling = np.flatnonzero((works.kind == KERNEL) & (works.warps >= FILLS) & (works.end - works.start > FILLS_LONG)).tolist()
    begins = [start[work] for work in filling]
    gaps: dict[int, list[float]] = defaultdict(list)
    for work, point in enumerate(edges.launched):
        if point < 0:
            continue
        ready, called = _ready(edges, ends, work), edges.points[point].start
        late = start[work] - max(ready, called + edges.launch[edges.launch_class(work)])
        if late < LATE:
            if ready > called + 2 * edges.launch[KERNEL]:
                gaps[int(works.kind[work])].append(max(0.0, start[work] - ready))
            continue
        place = bisect(begins, start[work])
        for other in reversed(filling[max(0, place - HOLDERS) : place]):
            near = max(NEAR, NEAR_SHARE * (ends[other] - start[other])) if start[other] <= start[work] - late + OWN_QUEUED else NEAR
            if streams[other] != streams[work] and edges.launched[other] <= point and abs(start[work] - ends[other]) < near:
                edges.held[work] = other
                edges.inferred["contention"] += 1
                break
        else:
            edges.unexplained[work] = late
    edges.gap = {kind: statistics.fmean(gaps[kind]) if gaps[kind] else USUAL_GAP for kind in range(COLLECTIVE)}
