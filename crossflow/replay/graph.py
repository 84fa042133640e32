"""All ranks of a trace as one graph of times: a longest path gives when everything starts and ends.

A node is a moment: the begin and the end of a call of the host, the start and the end of a work of the device, and the moment at which
the last rank of a collective has come. An edge is what has to pass between two of them: a time that stays, a segment of the host, or
the time of a work, so that another time for any of them gives other moments for all that follow (Lin et al. [1]_, Algorithm 1: a host
thread, streams, and synchronisation in a rank and between ranks).

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on Multi-GPU Platforms", 2024.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from crossflow.arrays import Array, Index, Mask
from crossflow.replay.collectives import process_group
from crossflow.replay.edges import EARLY, OWN, OWN_IDLE, OWN_QUEUED, QUEUED, RETURN, HostPiece, HostPoint, RankEdges, edges_of
from crossflow.replay.kineto import KERNEL, RankTrace

NONE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMeeting:
    """A collective of several ranks: it transfers once the last of them has come.

    Attributes
    ----------
    works : of every rank that takes part, in the graph.
    transfer : the shortest time that any rank was in it: that of the last to come. [s]
    """

    works: tuple[int, ...]
    transfer: float


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphStep:
    """A step of one rank in the graph: its nodes and its measured time."""

    rank: int  # place among the traces
    name: str
    begin: int
    end: int
    measured: float  # [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepGraph:
    """What waits for what on all ranks of a trace; nodes are numbered in an order that respects every edge.

    Attributes
    ----------
    edges : of every rank, as inferred from its trace.
    moments : measured time of every node, shape (nodes,). [s]
    source, target : ends of every edge, sorted by target, shape (edges,).
    fixed, host : time that stays, and time of the host, shape (edges,). [s]
    work : work whose time an edge takes, -1 for none, shape (edges,).
    begins : nodes that wait for nothing.
    starts, ends : node of the start, and of the end, of every work of all ranks, shape (works,).
    calls : nodes at which the call of every point begins, and at which it ends, by rank.
    first : first work of every rank in the graph, and their number at the end, shape (ranks + 1,).
    time : time of every work; of one that meets, its transfer, shape (works,). [s]
    collective : whether a work is a collective, shape (works,).
    meetings : collectives that meet.
    steps : steps of all ranks.
    segments : edges of the host to the begin of every point, and through its call, by rank; -1 where there is none.
    pieces : segments of the host by operation, each with its edge.
    contention : whether an edge is there because a kernel filled the device, shape (edges,).
    notes : what had to be assumed, as sentences.
    """

    edges: tuple[RankEdges, ...]
    moments: Array
    source: Index
    target: Index
    fixed: Array
    host: Array
    work: Index
    begins: Mask
    starts: Index
    ends: Index
    calls: tuple[tuple[Index, Index], ...]
    first: Index
    time: Array
    collective: Mask
    meetings: tuple[RankMeeting, ...]
    steps: tuple[GraphStep, ...]
    segments: tuple[tuple[Index, Index], ...]
    pieces: tuple[tuple[int, HostPiece], ...]
    contention: Mask
    notes: tuple[str, ...]

    @property
    def traces(self) -> tuple[RankTrace, ...]:
        """The traces of its ranks."""
        return tuple(edges.trace for edges in self.edges)

    def rank_of(self, work: int) -> int:
        """Place of the rank that a work belongs to."""
        return int(np.searchsorted(self.first, work, side="right")) - 1


@dataclass(kw_only=True)
class _Draft:
    """A graph while it is drawn, nodes in the order in which they were added."""

    edges: tuple[RankEdges, ...]
    moments: list[float] = field(default_factory=list)
    arrows: list[tuple[int, int, float, float, int]] = field(default_factory=list)  # source, target, fixed, host, work
    pieces: list[tuple[int, HostPiece]] = field(default_factory=list)
    contention: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # of works
    ends: list[int] = field(default_factory=list)
    calls: list[tuple[list[int], list[int]]] = field(default_factory=list)
    segments: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def node(self, moment: float) -> int:
        self.moments.append(moment)
        return len(self.moments) - 1

    def arrow(self, source: int, target: int, *, fixed: float = 0.0, host: float = 0.0, work: int = NONE) -> int:
        self.arrows.append((source, target, fixed, host, work))
        return len(self.arrows) - 1

    def rank(self, edges: RankEdges, first: int, *, contention: bool) -> None:
        """Add a rank whose works begin at `first`."""
        works = edges.trace.works
        start, end = works.start.tolist(), works.end.tolist()
        self.starts += [self.node(moment) for moment in start]
        self.ends += [self.node(moment) for moment in end]
        begins, returns = [self.node(point.start) for point in edges.points], [self.node(point.end) for point in edges.points]
        self.calls.append((begins, returns))
        self.segments.append(
            (
                [self._before(edges, point, begin, returns) for point, begin in zip(edges.points, begins, strict=True)],
                [self._call(edges, point, begin, done, first) for point, begin, done in zip(edges.points, begins, returns, strict=True)],
            )
        )
        for work in range(len(works)):
            if edges.launched[work] >= 0:
                self._work(edges, work, begins[edges.launched[work]], first, contention=contention)

    def _before(self, edges: RankEdges, point: HostPoint, begin: int, returns: Sequence[int]) -> int:
        """From the call before: on another thread the time between the two, on the own one what the thread did."""
        if point.hand >= 0:
            passed = max(0.0, point.start - edges.points[point.hand].end)
            edge = self.arrow(returns[point.hand], begin, host=passed)
            self.pieces.append((edge, ("hand", _op(point), passed)))
            return edge
        if point.before < 0:
            return NONE
        edge = self.arrow(returns[point.before], begin, host=sum(length for _, _, length in point.pieces))
        self.pieces += [(edge, piece) for piece in point.pieces]
        return edge

    def _call(self, edges: RankEdges, point: HostPoint, begin: int, done: int, first: int) -> int:
        """The call itself, and what it waits for."""
        ends = edges.trace.works.end
        own = min(point.length, OWN) if point.waits else point.length
        queue = point.queue if point.queue >= 0 and edges.launched[point.queue] >= 0 else NONE
        full = queue >= 0 and ends[queue] > point.start - QUEUED
        own = min(own, OWN_QUEUED) if full else own
        if point.waits and ends[point.waits[-1]] <= point.start:
            own = min(point.length, OWN_IDLE)
        edge = self.arrow(begin, done, host=own)
        if point.launches and not point.waits and not full:
            self.pieces.append((edge, ("T4", point.name, own)))
        if queue >= 0:
            self.arrow(self.ends[first + queue], done, host=own)
        for work in point.waits:
            back = point.end - ends[work]
            late = min(RETURN, max(-EARLY, back)) if point.launches else min(RETURN, max(0.0, back)) if ends[work] > point.start else 0.0
            self.arrow(self.ends[first + work], done, fixed=float(late))
        return edge

    def _work(self, edges: RankEdges, work: int, begin: int, first: int, *, contention: bool) -> None:
        """What a work waits for: its launch, the work before it on its stream, works of other streams."""
        start, ends, kinds = self.starts[first + work], edges.trace.works.end, edges.trace.works.kind
        self.arrow(begin, start, host=edges.launch[edges.launch_class(work)])
        if edges.previous[work] >= 0:
            self.arrow(self.ends[first + edges.previous[work]], start, fixed=edges.gap[int(kinds[work])])
        for other in edges.waits[work]:
            self.arrow(self.ends[first + other], start, fixed=edges.gap[KERNEL])
        if contention and edges.held[work] >= 0:
            passed = float(edges.trace.works.start[work] - ends[edges.held[work]])
            self.contention.append(self.arrow(self.ends[first + edges.held[work]], start, fixed=passed))

    def run(self, time: Array, meetings: Sequence[RankMeeting]) -> None:
        """Add the time of every work; works that meet start together."""
        met: set[int] = set()
        for meeting in meetings:
            come = self.node(max(self.moments[self.starts[work]] for work in meeting.works))
            for work in meeting.works:
                self.arrow(self.starts[work], come)
                self.arrow(come, self.ends[work], work=work)
            met.update(meeting.works)
        for work in range(len(time)):
            if work not in met:
                self.arrow(self.starts[work], self.ends[work], work=work)

    def order(self) -> tuple[list[int], int]:
        """Nodes in an order that respects every edge, by measured time among those that may come; how many came before their time.

        Edges are inferred. Where some contradict each other, the node that was first in time goes on without what it waits for.
        """
        follow: list[list[int]] = [[] for _ in self.moments]
        waits = [0] * len(self.moments)
        for source, target, *_ in self.arrows:
            follow[source].append(target)
            waits[target] += 1
        free = [node for node, count in enumerate(waits) if not count]
        left = deque(sorted(range(len(waits)), key=self.moments.__getitem__))
        found, forced, done = list[int](), 0, [False] * len(waits)
        while len(found) < len(waits):
            if not free:
                while done[left[0]]:
                    left.popleft()
                free.append(left.popleft())
                forced += 1
            node = free.pop()
            if done[node]:
                continue
            done[node] = True
            found.append(node)
            for other in follow[node]:
                waits[other] -= 1
                if not waits[other]:
                    free.append(other)
        return found, forced


def _op(point: HostPoint) -> str:
    """The operation that a call belongs to."""
    return point.pieces[-1][1] if point.pieces else point.name


def graph_of(traces: Sequence[RankTrace], *, meet: bool = True, contention: bool = True) -> StepGraph:
    """The graph of a step on all ranks whose traces are there.

    Parameters
    ----------
    meet : whether collectives of several ranks wait for the last of them.
    contention : whether kernels that fill the device hold back those of other streams, where the trace shows that they did. These
        edges are fitted to the delays that they explain.
    """
    draft = _Draft(edges=tuple(edges_of(trace) for trace in traces))
    first = np.cumsum([0, *(len(trace.works) for trace in traces)], dtype=np.intp)
    for edges, begin in zip(draft.edges, first.tolist(), strict=False):
        draft.rank(edges, begin, contention=contention)
    time = np.concatenate([trace.works.end - trace.works.start for trace in traces])
    meetings, notes = meetings_of(traces, first, time)
    for meeting in meetings:
        time[list(meeting.works)] = meeting.transfer
    draft.run(time, meetings if meet else ())
    return _graph(draft, first, time, meetings, notes)


def _graph(draft: _Draft, first: Index, time: Array, meetings: Sequence[RankMeeting], notes: Sequence[str]) -> StepGraph:
    order, forced = draft.order()
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    source, target, fixed, host, work = map(np.array, zip(*draft.arrows, strict=True))
    source, target = place[source], place[target]
    kept = np.argsort(target, kind="stable")
    kept = kept[source[kept] < target[kept]]  # what a node waited for that went on without it comes later
    renumbered = np.full(len(target) + 1, NONE)  # the last is of edges that are none
    renumbered[kept] = np.arange(len(kept))
    contention, begins = np.zeros(len(target), dtype=bool), np.ones(len(order), dtype=bool)
    contention[draft.contention] = True
    begins[target[kept]] = False
    calls = tuple((place[begin], place[done]) for begin, done in draft.calls)
    steps = [step for rank in range(len(draft.edges)) for step in _steps(draft.edges[rank], rank, calls[rank][1])]
    odd = [f"{forced} waits that were inferred contradict each other and were left out"] if forced else []
    return StepGraph(
        edges=draft.edges, moments=np.array(draft.moments)[order], source=source[kept], target=target[kept], fixed=fixed[kept],
        host=host[kept], work=work[kept], begins=begins, starts=place[draft.starts], ends=place[draft.ends], calls=calls, first=first,
        time=time, collective=np.concatenate([edges.trace.works.collective for edges in draft.edges]), meetings=tuple(meetings),
        segments=tuple((renumbered[before], renumbered[call]) for before, call in draft.segments), steps=tuple(steps),
        pieces=tuple((int(renumbered[edge]), piece) for edge, piece in draft.pieces if renumbered[edge] >= 0),
        contention=contention[kept], notes=(*notes, *odd),
    )  # fmt: skip


def _steps(edges: RankEdges, rank: int, returns: Index) -> list[GraphStep]:
    """The steps of a rank."""
    begin = {point.window: int(node) for point, node in zip(edges.points, returns, strict=True) if point.kind == "begin"}
    end = {point.window: int(node) for point, node in zip(edges.points, returns, strict=True) if point.kind == "end"}
    windows = edges.trace.windows
    return [GraphStep(rank=rank, name=one.name, begin=begin[i], end=end[i], measured=one.time) for i, one in enumerate(windows)]


def meetings_of(traces: Sequence[RankTrace], first: Index, time: Array) -> tuple[tuple[RankMeeting, ...], list[str]]:
    """Collectives of several ranks, and what kept others from meeting.

    Works of a process group meet in the order in which each rank ran them; where traces name no group, all collectives are one. They
    meet where all ranks ran kernels of the same names.
    """
    if len(traces) < 2:
        return (), []
    runs: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, trace in enumerate(traces):
        for work in np.flatnonzero(trace.works.collective).tolist():
            name, members = process_group(trace.works.args[work])
            runs[str(members) if members else name][rank].append(work)
    met: list[RankMeeting] = []
    notes = []
    for group, by_rank in runs.items():
        named = {rank: tuple(traces[rank].names[traces[rank].works.name[work]] for work in works) for rank, works in by_rank.items()}
        if len(by_rank) < 2 or len(set(named.values())) > 1:
            called = f"of the group {group} " if group else ""
            notes.append(f"collectives {called}differ between the ranks that were read; they keep their measured times and do not meet")
            continue
        for together in zip(*by_rank.values(), strict=True):
            works = tuple(int(first[rank]) + work for rank, work in zip(by_rank, together, strict=True))
            met.append(RankMeeting(works=works, transfer=float(time[list(works)].min())))
    return tuple(met), notes


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphTimes:
    """What everything in a graph takes; one set of times, or n of them in a last axis.

    Attributes
    ----------
    work : of every work, shape (works,) or (works, n). [s]
    host : of the host along every edge, shape (edges,) or (edges, n). [s]
    begin : moment of every node, of which those count that wait for nothing, shape (nodes,). [s]
    kept : whether an edge holds, shape (edges,).
    """

    work: Array
    host: Array
    begin: Array
    kept: Mask

    def lags(self, graph: StepGraph) -> Array:
        """Time along every edge, shape (edges,) or (edges, n); -inf where it does not hold. [s]"""
        many = self.work.ndim + self.host.ndim > 2
        works = np.concatenate([self.work, np.zeros((1, *self.work.shape[1:]))])[graph.work]  # the last is of edges without a work
        parts = [part[:, None] if many and part.ndim == 1 else part for part in (works, self.host, graph.fixed, self.kept)]
        return np.where(parts[3], parts[0] + parts[1] + parts[2], -np.inf)


def taken(graph: StepGraph) -> GraphTimes:
    """What everything takes as the trace has it; collectives that meet take their transfer."""
    return GraphTimes(work=graph.time, host=graph.host, begin=graph.moments, kept=np.ones(len(graph.host), dtype=bool))


def times_of(graph: StepGraph, given: GraphTimes | None = None) -> Array:
    """When everything happens, shape (nodes,), or (nodes, n) for n sets of times at once. [s]"""
    given = taken(graph) if given is None else given
    lags, begin = given.lags(graph), np.where(graph.begins, given.begin, -np.inf)
    return _longest_of_one(graph, lags, begin) if lags.ndim == 1 else _longest(graph, lags, begin)


def _longest_of_one(graph: StepGraph, lags: Array, begin: Array) -> Array:
    """The longest path to every node, in plain numbers, which is faster for one point."""
    found = begin.tolist()
    for source, target, lag in zip(graph.source.tolist(), graph.target.tolist(), lags.tolist(), strict=True):
        reached = found[source] + lag
        if reached > found[target]:
            found[target] = reached
    return np.array(found)


def _longest(graph: StepGraph, lags: Array, begin: Array) -> Array:
    """The same for many points."""
    found = np.repeat(begin[:, None], lags.shape[1], axis=1)
    for edge, (source, target) in enumerate(zip(graph.source.tolist(), graph.target.tolist(), strict=True)):
        np.maximum(found[target], found[source] + lags[edge], out=found[target])
    return found
