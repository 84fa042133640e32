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

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, NumberLists, rows_of
from crossflow.evidence.replay.edges import (
    BEGIN,
    EARLY,
    END,
    LAUNCH,
    OVERHEAD_KINDS,
    OWN,
    OWN_IDLE,
    OWN_QUEUED,
    QUEUED,
    RETURN,
    HostPieces,
    HostPoints,
    OverheadKind,
    RankEdges,
    edges_of,
)
from crossflow.evidence.replay.kineto import KERNEL, RankTrace
from crossflow.evidence.replay.matching import MatchedCollectives, RankCollectives, collectives_of, matched

NONE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class OtherArrivals:
    """Ranks that come to a collective and are not in the graph: each comes with one that is, so much later; arrays of shape (ranks,).

    Attributes
    ----------
    ranks : their numbers.
    works : of the ranks that they come with, in the graph.
    later : how much later each comes, as measured; negative where it comes earlier. [s]
    """

    ranks: Index
    works: Index
    later: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMeeting:
    """A collective of several ranks: it transfers once the last of them has come.

    Attributes
    ----------
    works : of every rank of the graph that takes part.
    transfer : the shortest time that any rank was in it: that of the last to come. [s]
    others : ranks that take part and are not in the graph.
    """

    works: tuple[int, ...]
    transfer: float
    others: OtherArrivals | None = None

    def come(self, starts: Array) -> Array:
        """When each of its ranks comes, those of the graph first.

        Parameters
        ----------
        starts : of all works, shape (works,). [s]
        """
        mine = starts[list(self.works)]
        return mine if self.others is None else np.concatenate([mine, starts[self.others.works] + self.others.later])


@dataclass(frozen=True, kw_only=True, eq=False)
class ManyRanks:
    """All ranks of a job of which some are in a graph, and stand for the others.

    Attributes
    ----------
    collectives : of every rank, by one clock.
    numbers : of the ranks.
    like : place in the graph of the rank that stands for each, itself where it is in the graph, -1 for none, shape (ranks,).
    whole : places among all ranks of those in the graph, in its order.
    """

    collectives: tuple[RankCollectives, ...]
    numbers: tuple[int, ...]
    like: Index
    whole: tuple[int, ...]


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
    pieces : segments of the host by operation, each with its edge as its owner.
    contention : whether an edge is there because a kernel filled the device, shape (edges,).
    others : whether an edge stands for ranks that are not in the graph, shape (edges,).
    numbers : of the ranks whose collectives were read, with those that are not in the graph.
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
    pieces: HostPieces
    contention: Mask
    others: Mask
    numbers: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def traces(self) -> tuple[RankTrace, ...]:
        """The traces of its ranks."""
        return tuple(edges.trace for edges in self.edges)

    def rank_of(self, work: int) -> int:
        """Place of the rank that a work belongs to."""
        return int(np.searchsorted(self.first, work, side="right")) - 1

    def number_of(self, meeting: RankMeeting, place: int) -> int:
        """Number of a rank of a meeting, by its place in `RankMeeting.come`."""
        if place < len(meeting.works):
            return self.traces[self.rank_of(meeting.works[place])].rank
        return int(meeting.others.ranks[place - len(meeting.works)]) if meeting.others is not None else NONE


_ARROW = (("source", np.intp), ("target", np.intp), ("fixed", float), ("host", float), ("work", np.intp))  # columns of edges


@dataclass(kw_only=True)
class _Draft:
    """A graph while it is drawn, nodes in the order in which they were added; moments and edges in blocks of columns."""

    edges: tuple[RankEdges, ...]
    numbers: tuple[int, ...]
    moments: list[Array] = field(default_factory=list)
    nodes: int = 0
    arrows: list[tuple[Array | Index, ...]] = field(default_factory=list)  # by `_ARROW`
    drawn: int = 0
    pieces: list[HostPieces] = field(default_factory=list)
    contention: list[Index] = field(default_factory=list)
    others: list[Index] = field(default_factory=list)
    starts: list[Index] = field(default_factory=list)  # of works
    ends: list[Index] = field(default_factory=list)
    calls: list[tuple[Index, Index]] = field(default_factory=list)
    segments: list[tuple[Index, Index]] = field(default_factory=list)

    def add(self, moments: Array) -> Index:
        """Nodes at some moments."""
        self.moments.append(moments)
        self.nodes += len(moments)
        return np.arange(self.nodes - len(moments), self.nodes)

    def arrow(
        self, source: Index, target: Index, *, fixed: float | Array = 0.0, host: float | Array = 0.0, work: int | Index = NONE
    ) -> Index:
        """Edges; their numbers."""
        columns = zip(_ARROW, (source, target, fixed, host, work), strict=True)
        self.arrows.append(tuple(np.broadcast_to(np.asarray(column, dtype=kind), target.shape) for (_, kind), column in columns))
        self.drawn += len(target)
        return np.arange(self.drawn - len(target), self.drawn)

    def rank(self, edges: RankEdges, *, contention: bool) -> None:
        """Add a rank."""
        works, points = edges.trace.works, edges.points
        starts, ends = self.add(works.start), self.add(works.end)
        self.starts.append(starts)
        self.ends.append(ends)
        begins, returns = self.add(points.start), self.add(points.end)
        self.calls.append((begins, returns))
        self.segments.append((self._before(points, begins, returns), self._call(edges, begins, returns, ends)))
        self._works(edges, begins, starts, ends, contention=contention)

    def _before(self, points: HostPoints, begins: Index, returns: Index) -> Index:
        """From the call before: on another thread the time between the two, on the own one what the thread did."""
        found = np.full(len(points), NONE)
        handed = np.flatnonzero(points.hand >= 0)
        passed = np.maximum(points.start[handed] - points.end[points.hand[handed]], 0.0)
        found[handed] = self.arrow(returns[points.hand[handed]], begins[handed], host=passed)
        self._piece(points, found[handed], "hand", points.op[handed], passed)
        own = np.flatnonzero((points.hand < 0) & (points.before >= 0))
        pieces = points.pieces
        done = np.zeros(len(points))
        np.add.at(done, pieces.owner, pieces.length)
        found[own] = self.arrow(returns[points.before[own]], begins[own], host=done[own])
        mine = np.isin(pieces.owner, own)
        columns = {name: getattr(pieces, name)[mine] for name in ("kind", "op", "length")}
        self.pieces.append(HostPieces(owner=found[pieces.owner[mine]], names=pieces.names, **columns))
        return found

    def _piece(self, points: HostPoints, edges: Index, kind: OverheadKind, op: Index, length: Array) -> None:
        kinds = np.full(len(edges), OVERHEAD_KINDS.index(kind))
        self.pieces.append(HostPieces(owner=edges, kind=kinds, op=op, length=length, names=points.pieces.names))

    def _call(self, edges: RankEdges, begins: Index, returns: Index, ends: Index) -> Index:
        """The calls themselves, and what they wait for."""
        points, done = edges.points, edges.trace.works.end
        waits, waiting = points.waits, points.waits.counts > 0
        queue = np.where((points.queue >= 0) & (edges.launched[points.queue] >= 0), points.queue, NONE) if len(done) else points.queue
        full = np.zeros(len(points), dtype=bool)
        full[queue >= 0] = done[queue[queue >= 0]] > points.start[queue >= 0] - QUEUED
        own = np.where(waiting, np.minimum(points.length, OWN), points.length)
        own[full] = np.minimum(own[full], OWN_QUEUED)
        some = np.flatnonzero(waiting)
        idle = some[done[waits.held[waits.first[some + 1] - 1]] <= points.start[some]]
        own[idle] = np.minimum(points.length[idle], OWN_IDLE)
        found = self.arrow(begins, returns, host=own)
        plain = np.flatnonzero((points.kind == LAUNCH) & ~waiting & ~full)
        self._piece(points, found[plain], "T4", points.name[plain], own[plain])
        held = np.flatnonzero(queue >= 0)
        self.arrow(ends[queue[held]], returns[held], host=own[held])
        point, work = waits.owner, waits.held
        back = points.end[point] - done[work]
        after = np.where(done[work] > points.start[point], np.clip(back, 0.0, RETURN), 0.0)
        late = np.where(points.kind[point] == LAUNCH, np.clip(back, -EARLY, RETURN), after)
        self.arrow(ends[work], returns[point], fixed=late)
        return found

    def _works(self, edges: RankEdges, begins: Index, starts: Index, ends: Index, *, contention: bool) -> None:
        """What works wait for: their launches, the works before them on their streams, works of other streams."""
        works, launched = edges.trace.works, edges.launched >= 0
        mine = np.flatnonzero(launched)
        self.arrow(begins[edges.launched[mine]], starts[mine], host=edges.launch[edges.launch_class[mine]])
        after = np.flatnonzero(launched & (edges.previous >= 0))
        self.arrow(ends[edges.previous[after]], starts[after], fixed=edges.gap[works.kind[after]])
        self.arrow(ends[edges.waits.held], starts[edges.waits.owner], fixed=edges.gap[KERNEL])
        if contention:
            held = np.flatnonzero(launched & (edges.held >= 0))
            passed = works.start[held] - works.end[edges.held[held]]
            self.contention.append(self.arrow(ends[edges.held[held]], starts[held], fixed=passed))

    def run(self, time: Array, meetings: Sequence[RankMeeting]) -> None:
        """Add the time of every work; works that meet start together."""
        starts, ends, moments = np.concatenate(self.starts), np.concatenate(self.ends), np.concatenate(self.moments)
        begun = moments[starts]
        works = np.array([work for meeting in meetings for work in meeting.works], dtype=np.intp)
        meets = np.repeat(np.arange(len(meetings)), [len(meeting.works) for meeting in meetings])
        come = self.add(np.array([meeting.come(begun).max() for meeting in meetings]))
        self.arrow(starts[works], come[meets])
        self.arrow(come[meets], ends[works], work=works)
        others = [(meeting.others, int(node)) for meeting, node in zip(meetings, come, strict=True) if meeting.others is not None]
        if others:
            rows = np.array([row for one, node in others for row in _latest_others(one, node)])
            self.others.append(self.arrow(starts[rows[:, 0].astype(np.intp)], rows[:, 1].astype(np.intp), fixed=rows[:, 2]))
        alone = np.flatnonzero(~np.isin(np.arange(len(time)), works))
        self.arrow(starts[alone], ends[alone], work=alone)


def _latest_others(others: OtherArrivals, node: int) -> Iterator[tuple[int, int, float]]:
    """Of every rank of the graph with which others come, its work, a node, and how much later the last of these comes. [s]"""
    order = np.lexsort((others.later, others.works))
    works, later = others.works[order], others.later[order]
    last = np.flatnonzero(np.concatenate([works[1:] != works[:-1], np.ones(min(len(works), 1), dtype=bool)]))
    for work, time in rows_of(works[last], later[last]):
        yield work, node, time


def _order(moments: Array, source: Index, target: Index) -> tuple[Index, int]:
    """Nodes in an order that respects every edge, by measured time among those that may come; how many came before their time.

    Edges are inferred. Where some contradict each other, the node that was first in time goes on without what it waits for.
    """
    follow = NumberLists.of(source, target, len(moments))
    first, held = follow.first.data, follow.held.data
    waits = np.bincount(target, minlength=len(moments)).tolist()
    free = np.flatnonzero(np.bincount(target, minlength=len(moments)) == 0).tolist()
    left: Iterator[int] | None = None
    found, forced, done = array("q"), 0, bytearray(len(waits))
    while len(found) < len(waits):
        if not free:
            left = (row[0] for row in rows_of(np.argsort(moments, kind="stable"))) if left is None else left
            free.append(next(node for node in left if not done[node]))
            forced += 1
        node = free.pop()
        if done[node]:
            continue
        done[node] = True
        found.append(node)
        for other in held[first[node] : first[node + 1]]:
            waits[other] -= 1
            if not waits[other]:
                free.append(other)
    return np.frombuffer(found, dtype=np.intp), forced


def graph_of(traces: Sequence[RankTrace], *, meet: bool = True, contention: bool = True, many: ManyRanks | None = None) -> StepGraph:
    """The graph of a step on all ranks whose traces are there.

    Parameters
    ----------
    meet : whether collectives of several ranks wait for the last of them.
    contention : whether kernels that fill the device hold back those of other streams, where the trace shows that they did. These
        edges are fitted to the delays that they explain.
    many : all ranks of the job, where the traces are of some that stand for them.
    """
    numbers = tuple(trace.rank for trace in traces) if many is None else many.numbers
    draft = _Draft(edges=tuple(edges_of(trace) for trace in traces), numbers=numbers)
    first = np.cumsum([0, *(len(trace.works) for trace in traces)], dtype=np.intp)
    for edges in draft.edges:
        draft.rank(edges, contention=contention)
    time = np.concatenate([trace.works.end - trace.works.start for trace in traces])
    meetings, notes = meetings_of(traces, first, time, many)
    for meeting in meetings:
        time[list(meeting.works)] = meeting.transfer
    draft.run(time, meetings if meet else ())
    return _graph(draft, first, time, meetings, notes)


def _graph(draft: _Draft, first: Index, time: Array, meetings: Sequence[RankMeeting], notes: Sequence[str]) -> StepGraph:
    moments = np.concatenate(draft.moments)
    source, target, fixed, host, work = (np.concatenate(column) for column in zip(*draft.arrows, strict=True))
    draft.arrows.clear()
    order, forced = _order(moments, source, target)
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    source, target = place[source], place[target]
    kept = np.argsort(target, kind="stable")
    kept = kept[source[kept] < target[kept]]  # what a node waited for that went on without it comes later
    renumbered = np.full(len(target) + 1, NONE)  # the last is of edges that are none
    renumbered[kept] = np.arange(len(kept))
    contention, begins = np.zeros(len(target), dtype=bool), np.ones(len(order), dtype=bool)
    contention[np.concatenate([np.zeros(0, dtype=np.intp), *draft.contention])] = True
    others = np.zeros(len(target), dtype=bool)
    others[np.concatenate([np.zeros(0, dtype=np.intp), *draft.others])] = True
    begins[target[kept]] = False
    calls = tuple((place[begin], place[done]) for begin, done in draft.calls)
    steps = [step for rank in range(len(draft.edges)) for step in _steps(draft.edges[rank], rank, calls[rank][1])]
    odd = [f"{forced} waits that were inferred contradict each other and were left out"] if forced else []
    return StepGraph(
        edges=draft.edges, moments=moments[order], source=source[kept], target=target[kept], fixed=fixed[kept],
        host=host[kept], work=work[kept], begins=begins, starts=place[np.concatenate(draft.starts)],
        ends=place[np.concatenate(draft.ends)], calls=calls, first=first, time=time,
        collective=np.concatenate([edges.trace.works.collective for edges in draft.edges]), meetings=tuple(meetings),
        segments=tuple((renumbered[before], renumbered[call]) for before, call in draft.segments), steps=tuple(steps),
        pieces=_joined_pieces(draft.pieces, renumbered), contention=contention[kept], others=others[kept],
        numbers=draft.numbers, notes=(*notes, *odd),
    )  # fmt: skip


def _joined_pieces(pieces: Sequence[HostPieces], renumbered: Index) -> HostPieces:
    """Pieces of all ranks by the edges of the graph, names that are equal as one."""
    names: dict[str, int] = {}
    ops = [np.array([names.setdefault(name, len(names)) for name in one.names], dtype=np.intp)[one.op] for one in pieces]
    owner = renumbered[np.concatenate([one.owner for one in pieces])]
    order = np.argsort(owner, kind="stable")
    order = order[owner[order] >= 0]
    kind, op, length = (np.concatenate(each)[order] for each in ([one.kind for one in pieces], ops, [one.length for one in pieces]))
    return HostPieces(owner=owner[order], kind=kind, op=op, length=length, names=tuple(names))


def _steps(edges: RankEdges, rank: int, returns: Index) -> list[GraphStep]:
    """The steps of a rank."""
    points, windows = edges.points, edges.trace.windows
    begin, end = (dict(rows_of(points.window[points.kind == side], returns[points.kind == side])) for side in (BEGIN, END))
    return [GraphStep(rank=rank, name=one.name, begin=begin[i], end=end[i], measured=one.time) for i, one in enumerate(windows)]


def meetings_of(
    traces: Sequence[RankTrace], first: Index, time: Array, many: ManyRanks | None = None
) -> tuple[tuple[RankMeeting, ...], list[str]]:
    """Collectives of several ranks, and what kept others from meeting."""
    if len(many.numbers if many is not None else traces) < 2 or any(trace.modelled for trace in traces):
        return (), []  # what crossflow wrote says itself who waits
    if many is None:
        everyone, numbers = np.arange(len(traces)), tuple(trace.rank for trace in traces)
        mine = tuple(collectives_of(trace) for trace in traces)
        many = ManyRanks(collectives=mine, numbers=numbers, like=everyone, whole=tuple(everyone.tolist()))
    found, notes = matched(many.collectives)
    inside = np.full(len(many.numbers), NONE)
    inside[list(many.whole)] = np.arange(len(many.whole))
    met: list[RankMeeting] = []
    for one in found:
        here = inside[one.ranks]
        graphed = np.flatnonzero(here >= 0).tolist()
        if graphed:
            ranks = [many.collectives[rank] for rank in one.ranks.tolist()]
            works = np.stack([first[here[i]] + ranks[i].work[one.places[i]] for i in graphed])
            spent = np.stack([rank.end[places] - rank.start[places] for rank, places in zip(ranks, one.places, strict=True)])
            shortest = np.minimum(spent.min(axis=0), time[works].min(axis=0))
            rows = zip(works.T.tolist(), shortest.tolist(), _others(many, one, first, here), strict=True)
            met += [RankMeeting(works=tuple(together), transfer=transfer, others=others) for together, transfer, others in rows]
    return tuple(met), notes


def _others(many: ManyRanks, one: MatchedCollectives, first: Index, here: Index) -> list[OtherArrivals | None]:
    """Of every collective of a group the ranks that are not in the graph."""
    like = many.like[one.ranks]
    rows = np.flatnonzero((here < 0) & (like >= 0))
    if not len(rows):
        return [None] * one.places.shape[1]
    numbers = np.array(many.numbers)[one.ranks[rows]]
    works, later = np.empty((len(rows), one.places.shape[1]), dtype=np.intp), np.empty((len(rows), one.places.shape[1]))
    for place, row in enumerate(rows.tolist()):
        mine, other = many.collectives[int(one.ranks[row])], many.collectives[many.whole[int(like[row])]]
        works[place] = first[like[row]] + other.work[one.places[row]]
        later[place] = mine.start[one.places[row]] - other.start[one.places[row]]
    return [OtherArrivals(ranks=numbers, works=works[:, i], later=later[:, i]) for i in range(one.places.shape[1])]


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
    for source, target, lag in rows_of(graph.source, graph.target, lags):
        reached = found[source] + lag
        if reached > found[target]:
            found[target] = reached
    return np.array(found)


def _longest(graph: StepGraph, lags: Array, begin: Array) -> Array:
    """The same for many points."""
    found = np.repeat(begin[:, None], lags.shape[1], axis=1)
    for edge, (source, target) in enumerate(rows_of(graph.source, graph.target)):
        np.maximum(found[target], found[source] + lags[edge], out=found[target])
    return found
