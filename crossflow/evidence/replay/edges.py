"""What waits for what in the trace of one rank: the order of threads and streams, launches, and waits that the trace does not name.

A trace says when a call began and which work it launched, seldom what a stream or a thread waited for. What it does not say is
inferred: from the order of calls, and from the clock, which no wait may contradict (`INFERRED` lists the rules). The segments of the
host between two calls are kept by operation, as the overheads T1 to T5 of Lin et al. [1]_, Algorithm 1.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on Multi-GPU Platforms", 2024.
"""

from __future__ import annotations

import functools
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, NumberLists, rows_of
from crossflow.evidence.replay.kineto import COPY, KERNEL, RankTrace
from crossflow.evidence.replay.owners import call_of_works

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
# T1: between operations; T2, T5: in an operation before its first launch, and after it; T3: after its last, T5n: all of one without any;
# T4: the launch itself; hand: between a thread's last call and the first of another.
OverheadKind = Literal["T1", "T2", "T3", "T4", "T5", "T5n", "hand"]
OVERHEAD_KINDS: tuple[OverheadKind, ...] = get_args(OverheadKind)
LAUNCH, SYNC, BEGIN, END = range(4)  # what a point is: a launch of work, a wait for it, the begin of a step, the end of one
INFERRED = ("thread", "stream_wait", "collective_wait", "host_wait", "copy_wait", "contention", "queue")


@dataclass(frozen=True, kw_only=True, eq=False)
class HostPieces:
    """Segments of the host by operation, columns of shape (pieces,).

    Attributes
    ----------
    owner : point of a rank, or edge of a graph, that each is before, in order.
    kind : in `OVERHEAD_KINDS`.
    op : operation, or call of the runtime, in `names`.
    length : how long it is. [s]
    names : texts that `op` points to.
    """

    owner: Index
    kind: Index
    op: Index
    length: Array
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.owner)

    def of(self, owner: int) -> Iterator[tuple[OverheadKind, str, float]]:
        """Those of one point or edge."""
        first, last = np.searchsorted(self.owner, (owner, owner + 1)).tolist()
        for place in range(first, last):
            yield OVERHEAD_KINDS[self.kind[place]], self.names[self.op[place]], float(self.length[place])


@dataclass(frozen=True, kw_only=True, eq=False)
class HostPoints:
    """Calls that launch work or wait for it, and begins and ends of steps, by time; columns of shape (points,).

    Attributes
    ----------
    kind : `LAUNCH`, `SYNC`, `BEGIN` or `END`.
    name : of the call in `names`, those of the trace first.
    thread : of the host.
    start, end : of the call. [s]
    window : step that it begins or ends, -1 for none.
    before : point before it on its thread, -1 for none.
    hand : point of another thread that it follows, -1 for none.
    queue : work that must end before the queue of launches takes it, -1 for none.
    works : that each launches.
    waits : works that each waits for.
    pieces : what the threads did since the points before.
    """

    kind: Index
    name: Index
    thread: Index
    start: Array
    end: Array
    window: Index
    before: Index
    hand: Index
    queue: Index
    works: NumberLists
    waits: NumberLists
    pieces: HostPieces
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> Array:
        """Time of every call. [s]"""
        return self.end - self.start

    @functools.cached_property
    def op(self) -> Index:
        """The operation that each belongs to, that of its last piece, or else its own name, in the names of the pieces."""
        found = self.name.copy()
        found[self.pieces.owner] = self.pieces.op  # of several the last one stays
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class RankEdges:
    """What waits for what on one rank.

    Attributes
    ----------
    points : of the host.
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
    points: HostPoints
    launched: Index
    previous: Index
    waits: NumberLists
    held: Index
    unexplained: Array
    launch: Array
    gap: Array
    inferred: Mapping[str, int]
    read: bool

    @property
    def launch_class(self) -> Index:
        """What the time of the launch of every work depends on: its kind, or that it is a collective."""
        return _launch_class(self.trace)


COLLECTIVE = 3  # beside the kinds of work


def _launch_class(trace: RankTrace) -> Index:
    return np.where(trace.works.collective, COLLECTIVE, trace.works.kind)


def edges_of(trace: RankTrace) -> RankEdges:
    """Everything that waits in a trace."""
    points, launched = _points(trace)
    previous = _before(trace.works.stream)
    inference = _Inference(trace, points, launched)
    inference.run()
    points = replace(points, hand=inference.hands(), waits=NumberLists.of(*inference.host_waits, len(points)))
    waits = NumberLists.of(*inference.waits, len(launched))
    ready, called = _ready(trace, previous, waits), points.start[launched]
    launch = _latencies(trace, launched, ready, called)
    held, unexplained, gap = _delays(trace, launched, ready, called, launch)
    inferred = {**inference.inferred, "contention": int((held >= 0).sum())}
    return RankEdges(
        trace=trace, points=points, launched=launched, previous=previous, waits=waits, held=held, unexplained=unexplained, launch=launch,
        gap=gap, inferred=inferred, read=bool(len(trace.syncs)),
    )  # fmt: skip


def _points(trace: RankTrace) -> tuple[HostPoints, Index]:
    """Launches, waits and ends of steps of all threads, by time, and the point that launched every work."""
    calls, names = trace.calls, (*trace.names, "begin", "end")
    call_of = call_of_works(trace)
    launches, known = np.zeros(len(calls), dtype=bool), call_of >= 0
    launches[call_of[known]] = True
    matched = np.isin(calls.correlation, trace.works.correlation[known])
    active = np.isin(calls.thread, np.concatenate([np.unique(trace.ops.thread), np.unique(calls.thread[matched])]))
    syncs = np.array([*(name in SYNC_CALLS for name in trace.names), False])[calls.name]
    mine = np.flatnonzero(active & (launches | syncs))
    steps = [(side, i, at) for i, one in enumerate(trace.windows) for side, at in ((BEGIN, one.start), (END, one.end))]
    sides, windows, moments = (np.array([row[i] for row in steps]) for i in range(3))
    threads = np.array([trace.windows[i].thread for i in windows.tolist()], dtype=np.intp)
    start, end = np.concatenate([calls.start[mine], moments]), np.concatenate([calls.end[mine], moments])
    order = np.lexsort((end, start))
    kind = np.concatenate([np.where(launches[mine], LAUNCH, SYNC), sides])[order]
    place = np.full(len(calls) + 1, -1)  # the last is of works without a call
    place[mine[order[order < len(mine)]]] = np.flatnonzero(order < len(mine))
    launched = place[call_of]
    started = np.flatnonzero(launched >= 0)
    works = NumberLists.of(launched[started], started, len(order))
    queue, ahead = np.full(len(order), -1), np.flatnonzero(kind == LAUNCH)
    queue[ahead[QUEUE:]] = works.held[works.first[ahead[:-QUEUE] + 1] - 1]
    points = HostPoints(
        kind=kind, name=np.concatenate([calls.name[mine], len(trace.names) + sides - BEGIN])[order], start=start[order], end=end[order],
        thread=np.concatenate([calls.thread[mine], threads])[order], window=np.concatenate([np.full(len(mine), -1), windows])[order],
        before=np.full(len(order), -1), hand=np.full(len(order), -1), queue=queue, works=works, waits=NumberLists.none(len(order)),
        pieces=_no_pieces(()), names=names,
    )  # fmt: skip
    return _cut(trace, points), launched


def _before(group: Index) -> Index:
    """Of every row the last one before it of the same group, -1 for none."""
    order = np.argsort(group, kind="stable")
    found = np.full(len(group), -1)
    same = group[order[1:]] == group[order[:-1]]
    found[order[1:][same]] = order[:-1][same]
    return found


def _no_pieces(names: tuple[str, ...]) -> HostPieces:
    none = np.zeros(0, dtype=np.intp)
    return HostPieces(owner=none, kind=none, op=none, length=np.zeros(0), names=names)


def _cut(trace: RankTrace, points: HostPoints) -> HostPoints:
    """Points with what their threads did before them, by top-level operation."""
    cut = [_cut_thread(trace, points, thread) for thread in np.unique(points.thread).tolist()]
    names = (*points.names, *(f"call {name}" for name in points.names))
    owner, kind, op, length = (np.concatenate(column) for column in zip(*cut, strict=True))
    order = np.argsort(owner, kind="stable")
    pieces = HostPieces(owner=owner[order], kind=kind[order], op=op[order], length=length[order], names=names)
    return replace(points, before=_before(points.thread), pieces=pieces)


def _cut_thread(trace: RankTrace, points: HostPoints, thread: int) -> tuple[Index, Index, Index, Array]:
    """Points, kinds, operations and lengths of the pieces of a thread.

    The begins and ends of its top-level operations and its points are put in order; a piece goes from the latest moment so far to each.
    """
    tops, here = top_level(trace, thread), np.flatnonzero(points.thread == thread)
    begins, ends = trace.ops.start[tops], trace.ops.end[tops]
    time = np.concatenate([np.stack([begins, ends], axis=1).ravel(), points.start[here]])
    rank = np.concatenate([np.stack([np.ones(len(tops)), np.where(ends > begins, 0.0, 2.0)], axis=1).ravel(), np.full(len(here), 1.5)])
    name = np.concatenate([np.repeat(trace.ops.name[tops], 2), len(points.names) + points.name[here]])
    what = np.concatenate([np.tile([BEGIN, END], len(tops)), np.full(len(here), LAUNCH)])
    until = np.concatenate([time[: 2 * len(tops)], np.maximum(points.start, points.end)[here]])
    called = np.concatenate([np.zeros(2 * len(tops), dtype=bool), points.window[here] < 0])
    order = np.lexsort((rank, time))
    time, name, what, until, called = (column[order] for column in (time, name, what, until, called))
    length = np.maximum(time - np.concatenate([time[:1], np.maximum.accumulate(until)[:-1]]), 0.0)
    edge, ran = _latest(what != LAUNCH), np.concatenate([[0], np.cumsum(called)])
    inside = (edge >= 0) & (what[edge] == BEGIN)
    launches = ran[:-1] > ran[np.maximum(_latest(what == BEGIN), 0)]
    t1, t2, t3, _, t5, t5n, _ = range(len(OVERHEAD_KINDS))
    of_point = np.where(inside, np.where(launches, t5, t2), t1)
    kind = np.where(what == LAUNCH, of_point, np.where(what == BEGIN, t1, np.where(launches, t3, t5n)))
    op = np.where((what == LAUNCH) & inside, name[edge], name)
    to = np.searchsorted(np.flatnonzero(what == LAUNCH), np.arange(len(what)))  # the point that each is before
    kept = to < len(here)
    return here[to[kept]], kind[kept], op[kept], length[kept]


def _latest(chosen: Mask) -> Index:
    """The last chosen row before every row, -1 for none."""
    found = np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1))
    return np.concatenate([np.full(1, -1), found])[: len(chosen)]


def top_level(trace: RankTrace, thread: int) -> Index:
    """Operations of a thread that lie in no other."""
    mine = np.flatnonzero(trace.ops.thread == thread)
    found, last = array("q"), -np.inf
    for op, start, end in rows_of(mine, trace.ops.start[mine], trace.ops.end[mine]):
        if start >= last:
            found.append(op)
            last = end
    return np.array(found, dtype=np.intp)


class _Inference:
    """Goes through the points of a rank in time, and remembers what each stream and thread did last.

    Columns are read through views of their memory, which hold no objects.

    Attributes
    ----------
    waits, host_waits : works, and points, with the works that they wait for, pair by pair.
    inferred : how many edges each rule gave. [1]
    """

    def __init__(self, trace: RankTrace, points: HostPoints, launched: Index) -> None:
        self.trace, self.points, self.launched, self.read = trace, points, launched, bool(len(trace.syncs))
        self.waits, self.host_waits = (array("q"), array("q")), (array("q"), array("q"))
        self.inferred = dict.fromkeys(INFERRED, 0)
        works, names = trace.works, trace.names
        self.start, self.end, self.stream = works.start.data, works.end.data, works.stream.data
        self.collective, self.copies = works.collective.data, (works.kind == COPY).data
        self.pageable = np.array([*("Pageable" in name for name in names), False])[works.name].data
        self.called, self.launcher = points.start.data, launched.data
        self.last: dict[int, int] = {}  # work of every stream
        self.current: dict[int, int] = {}  # stream of every thread; of any under -1
        self.copied: dict[int, int] = {}  # stream of a thread's last copy
        self.queued: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=RECENT))  # latest works of every stream as they were launched
        self.pending: float | None = None  # when a stream was told to wait, until the next launch
        self.asked = self._asked() if self.read else {}

    def run(self) -> None:
        """Find the waits of every point and every work."""
        flags = iter([] if self.read else [*_stream_waits(self.trace)])
        flag, points = next(flags, None), self.points
        first, held = points.works.first.data, points.works.held.data
        blocks = points.length > BLOCKS
        columns = (np.arange(len(points)), points.kind, points.thread, points.name, points.start, points.end, blocks)
        for i, kind, thread, name, start, end, long in rows_of(*columns):
            while flag is not None and flag < start:
                self.pending, flag = flag, next(flags, None)
            for work in held[first[i] : first[i + 1]]:
                self._work(thread, work)
            if kind == SYNC:
                self._sync(i, thread, points.names[name], end)
            elif kind == LAUNCH and long and self._blocks(held[first[i + 1] - 1], end):
                self._wait(self.host_waits, i, [held[first[i + 1] - 1]], "copy_wait")

    def hands(self) -> Index:
        """The point of another thread that every point follows, -1 for none."""
        thread = self.points.thread
        found = np.full(len(thread), -1)
        changed = np.flatnonzero(thread[1:] != thread[:-1])
        found[changed + 1] = changed
        self.inferred["thread"] = len(changed)
        return found

    def _wait(self, pairs: tuple[array[int], array[int]], waiting: int, works: Iterable[int], rule: str = "") -> None:
        """Note what a work or a point waits for, and by which rule."""
        for work in works:
            pairs[0].append(waiting)
            pairs[1].append(work)
            if rule:
                self.inferred[rule] += 1

    def _work(self, thread: int, work: int) -> None:
        """What a work waits for on other streams."""
        stream = self.stream[work]
        if self.read:
            self._wait(self.waits, work, self.asked.get(work, ()))
        elif self.collective[work]:  # waits for what the thread launched last
            here = self.current.get(thread, self.current.get(-1, -1))
            if here in self.last and self.end[self.last[here]] <= self.start[work] + CLOCK:
                self._wait(self.waits, work, [self.last[here]], "collective_wait")
        elif self.pending is not None:
            self._wait(self.waits, work, self._latest(stream, self.start[work], self.pending), "stream_wait")
        if not self.collective[work]:
            self.pending = None
            self.current[thread] = self.current[-1] = stream
        self.last[stream] = work
        self.queued[stream].append(work)
        if self.copies[work]:
            self.copied[thread] = stream

    def _latest(self, stream: int, start: float, asked: float) -> Iterator[int]:
        """The latest work of every other stream that the clock allows to have been waited for."""
        for other, works in self.queued.items():
            if other == stream:
                continue
            for work in reversed(works):
                if self.end[work] <= start + CLOCK and self.called[self.launcher[work]] <= asked:
                    yield work
                    break

    def _sync(self, point: int, thread: int, name: str, end: float) -> None:
        """What a call that waits for the device waits for."""
        stream = self.copied.get(thread, self.current.get(thread, -1))
        works = self.last.values() if name in DEVICE_SYNCS else [self.last[stream]] if stream in self.last else []
        self._wait(self.host_waits, point, [work for work in works if self.end[work] <= end + CLOCK], "host_wait")

    def _blocks(self, work: int, end: float) -> bool:
        """Whether a launch returned only when its copy was done."""
        return bool(self.pageable[work]) and self.start[work] < end and self.end[work] <= end + EARLY

    def _asked(self) -> dict[int, list[int]]:
        """Waits of streams as newer profilers record them: works that a work waits for."""
        calls, syncs = self.trace.calls, self.trace.syncs
        recorded = dict(rows_of(calls.correlation, calls.start))
        known = np.flatnonzero(self.launched >= 0)
        began = self.points.start[self.launched[known]]
        order = np.argsort(began, kind="stable")
        streams = self.trace.works.stream[known[order]]
        by_stream = {int(one): (known[order][streams == one], began[order][streams == one]) for one in np.unique(streams)}
        found: dict[int, list[int]] = defaultdict(list)
        for told, source, record, correlation in rows_of(syncs.stream, syncs.source, syncs.record, syncs.correlation):
            recorded_at, asked_at = recorded.get(record), recorded.get(correlation)
            if recorded_at is None or asked_at is None or told == source or not {told, source} <= by_stream.keys():
                continue
            works, moments = by_stream[source]
            earlier = int(np.searchsorted(moments, recorded_at, side="right")) - 1
            others, moments = by_stream[told]
            later = int(np.searchsorted(moments, asked_at))
            if earlier >= 0 and later < len(others):
                found[int(others[later])].append(int(works[earlier]))
        return found


def _stream_waits(trace: RankTrace) -> Iterator[float]:
    """When streams were told to wait, the waits of collectives apart. [s]"""
    marks, calls = trace.marks, trace.calls
    near = _of_names(trace, marks.name, lambda name: name.startswith("nccl:"))
    begins, ends = marks.start[near], marks.end[near]
    order = np.lexsort((ends, begins))
    begins, ends = begins[order], ends[order]
    told = calls.start[_of_names(trace, calls.name, STREAM_WAITS.__contains__)]
    after = np.searchsorted(begins, told, side="right")
    inside = np.concatenate([[-np.inf], ends])[after] + AFTER >= told
    before = np.concatenate([begins, [np.inf]])[after] - told < BEFORE
    yield from told[~inside & ~before].tolist()


def _of_names(trace: RankTrace, name: Index, chosen: Callable[[str], bool]) -> Mask:
    """Rows whose name is chosen."""
    return np.array([*(chosen(text) for text in trace.names), False])[name]


def _ready(trace: RankTrace, previous: Index, waits: NumberLists) -> Array:
    """When the last work ended that every work waits for, -inf where there is none, shape (works,). [s]"""
    ends = np.concatenate([trace.works.end, [-np.inf]])
    found = ends[previous]
    np.maximum.at(found, waits.owner, ends[waits.held])
    return found


def _latencies(trace: RankTrace, launched: Index, ready: Array, called: Array) -> Array:
    """Times from calls to starts of works that nothing else held: the lower quartile of each kind, then of collectives. [s]"""
    free, kind = (launched >= 0) & (ready <= called), _launch_class(trace)
    passed = trace.works.start - called
    usual = _quartile(passed[free], USUAL_LAUNCH)
    return np.array([_quartile(passed[free & (kind == one)], usual) for one in range(COLLECTIVE + 1)])


def _quartile(times: Array, otherwise: float) -> float:
    return float(np.sort(times)[len(times) // 4]) if len(times) else otherwise


def _delays(trace: RankTrace, launched: Index, ready: Array, called: Array, launch: Array) -> tuple[Index, Array, Array]:
    """Kernels that held back works by filling the device, delays that nothing explains, and gaps between works by kind."""
    works = trace.works
    late = works.start - np.maximum(ready, called + launch[_launch_class(trace)])
    follows = (launched >= 0) & (late < LATE) & (ready > called + 2 * launch[KERNEL])
    gaps = [np.maximum(works.start - ready, 0.0)[follows & (works.kind == kind)] for kind in range(COLLECTIVE)]
    gap = np.array([each.mean() if len(each) else USUAL_GAP for each in gaps])
    held, unexplained = np.full(len(works), -1), np.zeros(len(works))
    filling = np.flatnonzero((works.kind == KERNEL) & (works.warps >= FILLS) & (works.end - works.start > FILLS_LONG))
    begins = works.start[filling]
    delayed = np.flatnonzero((launched >= 0) & (late >= LATE))
    for work, place in zip(delayed.tolist(), np.searchsorted(begins, works.start[delayed], side="right").tolist(), strict=True):
        holders = filling[max(0, place - HOLDERS) : place][::-1]
        length = works.end[holders] - works.start[holders]
        long = works.start[holders] <= works.start[work] - late[work] + OWN_QUEUED
        near = np.where(long, np.maximum(NEAR, NEAR_SHARE * length), NEAR)
        close = (works.stream[holders] != works.stream[work]) & (np.abs(works.start[work] - works.end[holders]) < near)
        found = holders[close & (launched[holders] <= launched[work])]
        held[work] = found[0] if len(found) else -1
        unexplained[work] = 0.0 if len(found) else late[work]
    return held, unexplained, gap
