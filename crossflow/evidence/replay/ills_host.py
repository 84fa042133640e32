"""Ills of the host: ranks that come late, launches that the device waits for, long work between them, and waits for the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, rows_of
from crossflow.evidence.replay.changes import change_host, read_trace_changes, waits_of
from crossflow.evidence.replay.collectives import traced_collectives
from crossflow.evidence.replay.edges import BEGIN, LATE, LAUNCH, OVERHEAD_KINDS, top_level
from crossflow.evidence.replay.graph import GraphTimes
from crossflow.evidence.replay.ills import Ill, IllProof, Mend, TracedSteps, longest
from crossflow.evidence.replay.ills_device import MOST, SENT, copy_waits
from crossflow.evidence.replay.ills_engine import between_steps
from crossflow.evidence.replay.kineto import HostSpans

LONG = 0.5e-3  # of one stretch of the host between two calls or operations, from which it is no launch but work of its own [s]
LOADING = ("enumerate(DataLoader)",)  # how annotations of loaders begin
ALLOCATIONS = frozenset(
    f"{maker}{call}" for maker in ("cuda", "hip") for call in ("Malloc", "Free", "HostAlloc", "MallocHost", "FreeHost", "HostMalloc")
)  # calls that wait for the device or the driver, and which a cache of memory spares


# -------------------------------------------------------------------------------------------- ranks


@dataclass(frozen=True, kw_only=True)
class LateArrival:
    """How a rank came late to a collective.

    Attributes
    ----------
    work : of the rank in it.
    begin : when what made it late began: the end of the collective before, or of the rank's begin. [s]
    end : when it came. [s]
    excess : how much later than the median of the others. [s]
    """

    work: int
    begin: float
    end: float
    excess: float


def apart(steps: TracedSteps) -> Iterator[Ill]:
    """Ranks that begin their first step at different times, so that the first wait for the last; mended all begin with the first.

    That holds as far as the clocks of their hosts agree.
    """
    begins = np.array([steps.begin(rank) for rank in range(len(steps.graph.traces))])
    late = begins - begins.min()
    if not steps.graph.meetings or late.max() < LATE:
        return
    shift = np.where(steps.graph.begins, late[steps.owner], 0.0)
    proofs = [
        IllProof(
            name=f"rank {trace.rank}", count=1, time=float(late[rank]), rank=trace.rank, at=0.0, said="it begins so much after the first"
        )
        for rank, trace in enumerate(steps.graph.traces) if late[rank] > 0
    ]  # fmt: skip
    last = steps.graph.traces[int(late.argmax())].rank
    yield Ill(
        kind="apart", title=f"ranks begin the step up to {1e3 * late.max():.3g} ms apart, rank {last} last",
        time=float(late.max()) / len(steps.windows(int(late.argmax()))), mend=lambda given: replace(given, begin=given.begin - shift),
        proofs=longest(proofs),
    )  # fmt: skip


def late_comers(steps: TracedSteps) -> Iterator[Ill]:
    """Ranks that the others wait for in collectives; mended each comes when the median of the others does.

    What it has too much since the last collective is taken from all that its host and its device did since, in proportion.
    """
    by_rank: dict[int, list[LateArrival]] = defaultdict(list)
    for rank, arrival in _arrivals(steps):
        by_rank[rank].append(arrival)
    for rank, mine in sorted(by_rank.items(), key=lambda item: -sum(one.excess for one in item[1]))[:MOST]:
        works = np.array([one.work for one in mine])
        number = steps.graph.traces[rank].rank
        proof = steps.proof(f"rank {number}", works, np.array([one.excess for one in mine]), _doing(steps, rank, mine))
        times = len(mine)
        yield Ill(
            kind="late_rank", title=f"rank {number} comes last to {times} collective{'s' * (times > 1)}",
            time=proof.time / len(steps.windows(rank)), mend=_in_time(steps, rank, mine), proofs=(proof,),
        )  # fmt: skip


def _arrivals(steps: TracedSteps) -> Iterator[tuple[int, LateArrival]]:
    """Who came last to each collective, in the order of time."""
    graph, times = steps.graph, steps.times
    sent = {
        int(graph.first[rank]) + work
        for rank, edges in enumerate(graph.edges) for work, one in traced_collectives(edges).items() if one.op in SENT
    }  # fmt: skip
    begins = [steps.begin(rank) for rank in range(len(graph.traces))]
    since = dict(enumerate(begins))
    starts = times[graph.starts]
    for meeting in sorted(graph.meetings, key=lambda one: float(one.come(starts).max())):
        works = np.array(meeting.works)
        come = meeting.come(starts)
        last = int(come[: len(works)].argmax())
        rank, end = graph.rank_of(int(works[last])), float(come[last])
        with_ = works if meeting.others is None else np.concatenate([works, meeting.others.works])
        usual = come - np.array([begins[of] if since[of] == begins[of] else 0.0 for of in map(graph.rank_of, with_.tolist())])
        excess = float(usual[last] - np.median(np.delete(usual, last))) if len(come) > 1 else 0.0  # beside what a late begin explains
        if excess > LATE and steps.inside[works[last]] and not sent.intersection(meeting.works) and end > since[rank]:
            yield rank, LateArrival(work=int(works[last]), begin=since[rank], end=end, excess=excess)
        for work in works.tolist():
            since[graph.rank_of(work)] = float(times[graph.ends[work]])


def _doing(steps: TracedSteps, rank: int, arrivals: Sequence[LateArrival]) -> str:
    """What a late rank did before it came, in words."""
    mine, worst = steps.works(rank), max(arrivals, key=lambda one: one.excess)
    begins, ends = (steps.times[nodes[mine]] for nodes in (steps.graph.starts, steps.graph.ends))
    computing = ~steps.graph.collective[mine]
    busy = float(np.maximum(np.minimum(ends, worst.end) - np.maximum(begins, worst.begin), 0.0)[computing].sum())
    share = min(busy / (worst.end - worst.begin), 1.0)
    return f"its device computes {share:.0%} of the time before the latest"


def _in_time(steps: TracedSteps, rank: int, arrivals: Sequence[LateArrival]) -> Mend:
    graph, times = steps.graph, steps.times
    mine, owned = steps.works(rank), steps.owner[graph.target] == rank
    ends = times[graph.ends[mine]]
    factor, work_factor = np.ones(len(graph.source)), np.ones(len(graph.time))
    reached = times[graph.target]
    for one in arrivals:
        share = max(1.0 - one.excess / (one.end - one.begin), 0.0)
        factor[owned & (reached > one.begin) & (reached <= one.end)] = share
        work_factor[mine][(ends > one.begin) & (ends <= one.end) & ~graph.collective[mine]] = share
    return lambda given: replace(given, host=given.host * factor, work=given.work * work_factor)


# -------------------------------------------------------------------------------------------- launches


def launches(steps: TracedSteps) -> Iterator[Ill]:
    """Launches that the device waits for; mended a launch takes the host once for all kernels between two waits, as graphs of CUDA do."""
    graph = steps.graph
    host, counts, graphs = np.zeros(len(graph.source)), 0, 0
    stays = np.zeros(len(graph.source))
    long = _long_pieces(steps)
    np.add.at(stays, graph.pieces.owner[long], graph.pieces.length[long])
    for rank, edges in enumerate(graph.edges):
        points = edges.points
        inside = steps.within(rank, points.start)
        mine, begun = _captured(points.kind, points.waits.counts > 0, inside)
        before, call = graph.segments[rank]
        for places in (before[mine], call[mine]):
            host[places[places >= 0]] = 1.0
        counts, graphs = counts + int(mine.sum()), graphs + begun
    spared = np.where(host > 0, np.maximum(graph.host - stays, 0.0), 0.0)
    if not spared.any():
        return
    kept, length = graph.pieces, float(spared.sum())
    proofs = _by_operation(steps, np.flatnonzero((spared[kept.owner] > 0) & ~long))
    count = steps.count()
    idle = min(float(np.mean([one.parts["host"] for one in steps.shares])), length / count)
    title = f"the device waits for its launches: {counts / count:,.0f} a step, {1e6 * length / max(counts, 1):.3g} us of the host each"
    yield Ill(kind="launches", title=title, time=idle, mend=_spares(spared), proofs=proofs)


def _captured(kind: Index, waits: Mask, inside: Mask) -> tuple[Mask, int]:
    """Launches of steps that follow another one with no wait of the host between, and how many series of such there are."""
    found, open_, begun = np.zeros(len(kind), dtype=bool), False, 0
    for i, what, waiting, held in rows_of(np.arange(len(kind)), kind, waits, inside):
        if what != LAUNCH or waiting or not held:
            open_ = open_ and what != LAUNCH and not waiting and what != BEGIN
            continue
        begun += not open_
        found[i], open_ = open_, True
    return found, begun


def _long_pieces(steps: TracedSteps) -> Mask:
    """Stretches of the host that are no launches, shape (pieces,)."""
    return np.asarray(steps.graph.pieces.length > LONG)


def _by_operation(steps: TracedSteps, pieces: Index) -> tuple[IllProof, ...]:
    """What the host spends by operation, in some stretches of it."""
    graph = steps.graph
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    held = graph.pieces
    for piece, op, kind in rows_of(pieces, held.op[pieces], held.kind[pieces]):
        groups[op, int(OVERHEAD_KINDS[kind] in ("T1", "hand"))].append(piece)
    found = []
    for (op, before), mine in groups.items():
        worst = int(mine[int(held.length[mine].argmax())])
        node = int(graph.source[held.owner[worst]])
        rank = int(steps.owner[node])
        found.append(IllProof(
            name=f"before {held.names[op]}" if before else held.names[op], count=len(mine), time=float(held.length[mine].sum()),
            rank=graph.traces[rank].rank, at=float(steps.times[node]) - steps.begin(rank),
        ))  # fmt: skip
    return longest(found)


def busy_host(steps: TracedSteps) -> Iterator[Ill]:
    """Long stretches in which the host launches nothing: it loads data, allocates memory, or does what the trace does not say.

    Mended, another thread or process does it, and the host goes on.
    """
    sorts = (
        ("loading", "the host loads data between launches", _loads), ("allocations", "the host allocates and frees memory", _allocates),
        ("between_steps", "the engine schedules, and hands out tokens, between its steps", _between),
    )  # fmt: skip
    told = []
    for kind, title, chosen in sorts:
        found = [chosen(steps, rank) for rank in range(len(steps.graph.traces))]
        told.append(found)
        if any(len(spans) for spans in found):
            yield _spared_spans(steps, kind, title, found)
    known = [np.concatenate([spans[rank].times for spans in told]) for rank in range(len(steps.graph.traces))]
    yield from _unsaid(steps, known)


@dataclass(frozen=True, kw_only=True)
class NamedSpans:
    """Spans of the host of one rank: names, threads, and begins and ends of shape (spans, 2). [s]"""

    names: Sequence[str]
    threads: Index
    times: Array

    def __len__(self) -> int:
        return len(self.names)


def _spans_of(steps: TracedSteps, rank: int, spans: HostSpans, chosen: Callable[[str], bool]) -> NamedSpans:
    names = steps.graph.traces[rank].names
    mine = np.array([*map(chosen, names), False])[spans.name] & steps.within(rank, spans.start)
    times = np.stack([spans.start[mine], spans.end[mine]], axis=1)
    return NamedSpans(names=[names[name] for name in spans.name[mine].tolist()], threads=spans.thread[mine], times=times)


def _loads(steps: TracedSteps, rank: int) -> NamedSpans:
    trace = steps.graph.traces[rank]
    found = [_spans_of(steps, rank, spans, lambda name: name.startswith(LOADING)) for spans in (trace.marks, trace.ops)]
    return max(found, key=len)  # some profilers write them as operations, some as annotations


def _allocates(steps: TracedSteps, rank: int) -> NamedSpans:
    return _spans_of(steps, rank, steps.graph.traces[rank].calls, ALLOCATIONS.__contains__)


def _between(steps: TracedSteps, rank: int) -> NamedSpans:
    threads, spans = between_steps(steps.graph.traces[rank])
    return NamedSpans(names=["between steps"] * len(spans), threads=threads, times=spans)


def _spared_spans(steps: TracedSteps, kind: str, title: str, found: Sequence[NamedSpans]) -> Ill:
    """An ill of spans of every rank, in which the host has nothing to do once it is mended."""
    (gone,) = read_trace_changes("host*0")
    graph = steps.graph
    groups: dict[str, list[tuple[float, int, float]]] = defaultdict(list)  # length, rank, begin
    for rank, spans in enumerate(found):
        for name, (start, end) in zip(spans.names, spans.times.tolist(), strict=True):
            groups[name].append((end - start, rank, start - steps.windows(rank)[0].start))
    proofs = []
    for name, mine in groups.items():
        _, rank, at = max(mine)
        proofs.append(IllProof(name=name, count=len(mine), time=sum(one[0] for one in mine), rank=graph.traces[rank].rank, at=at))

    def mend(given: GraphTimes) -> GraphTimes:
        host = given.host.copy()
        for rank, spans in enumerate(found):
            for thread in np.unique(spans.threads).tolist():
                change_host(graph, rank, thread, spans.times[spans.threads == thread], gone, host)
        return replace(given, host=host)

    return Ill(kind=kind, title=title, time=sum(one.time for one in proofs) / steps.count(), mend=mend, proofs=longest(proofs))


def _unsaid(steps: TracedSteps, known: Sequence[Array]) -> Iterator[Ill]:
    """Long stretches of the host that no annotation or call explains, by operation."""
    graph, pieces = steps.graph, steps.graph.pieces
    long = np.flatnonzero(_long_pieces(steps))
    kept = []
    for piece, edge, length in rows_of(long, pieces.owner[long], pieces.length[long]):
        begin, end = graph.moments[[graph.source[edge], graph.target[edge]]].tolist()
        rank = int(steps.owner[graph.target[edge]])
        spans = known[rank]
        covered = np.maximum(np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], begin), 0.0).sum()
        if steps.within(rank, np.array([end]))[0] and covered < 0.5 * length:
            kept.append(piece)
    if kept:
        mine, spared = np.array(kept), np.zeros(len(graph.source))
        np.add.at(spared, pieces.owner[mine], pieces.length[mine])
        waits = any(edges.points.waits.counts.any() for edges in graph.edges)
        said = "" if waits else "the trace has no waits of the host for the device, so that it may wait here"
        proofs = tuple(replace(one, said=said) for one in _by_operation(steps, mine))
        title = f"the host is busy for long without a launch ({len(kept)} times)"
        time = sum(one.time for one in proofs) / steps.count()
        yield Ill(kind="busy_host", title=title, time=time, mend=_spares(spared), proofs=proofs)


def _spares(spared: Array) -> Mend:
    return lambda given: replace(given, host=np.maximum(given.host - spared, 0.0))


# -------------------------------------------------------------------------------------------- waits for the device


def synchronisations(steps: TracedSteps) -> Iterator[Ill]:
    """Waits of the host for the device, by the operation or call that waits; mended the host goes on at once.

    Waits for copies to the device belong to these.
    """
    graph, copied = steps.graph, copy_waits(steps)
    groups: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for rank, edges in enumerate(graph.edges):
        points = edges.points
        waiting = (points.waits.counts > 0) & ~copied[rank] & steps.within(rank, points.start)
        for point, name in _waiting(steps, rank, np.flatnonzero(waiting)):
            groups[name].append((rank, point))
    found = [(name, mine, [_length(steps, *one) for one in mine]) for name, mine in groups.items()]
    for name, mine, times in sorted(found, key=lambda one: -sum(one[2]))[:MOST]:
        freed = [np.zeros(len(edges.points), dtype=bool) for edges in graph.edges]
        for rank, point in mine:
            freed[rank][point] = True
        rank, point = mine[int(np.argmax(times))]
        at = float(steps.times[graph.calls[rank][0][point]]) - steps.begin(rank)
        proof = IllProof(name=name, count=len(mine), time=sum(times), rank=graph.traces[rank].rank, at=at)
        yield Ill(
            kind="synchronisation", title=f"the host waits for the device in {name}", time=proof.time / steps.count(),
            mend=_goes_on(waits_of(graph, freed)), proofs=(proof,),
        )  # fmt: skip


def _length(steps: TracedSteps, rank: int, point: int) -> float:
    return float(steps.graph.edges[rank].points.length[point])


def _waiting(steps: TracedSteps, rank: int, points: Index) -> Iterator[tuple[int, str]]:
    """Points, each with the outermost operation around it, or else its own name."""
    edges = steps.graph.edges[rank]
    trace, every = edges.trace, edges.points
    for thread in np.unique(every.thread[points]).tolist():
        tops = top_level(trace, thread)
        mine = points[every.thread[points] == thread]
        place = np.searchsorted(trace.ops.start[tops], every.start[mine], side="right") - 1
        for point, at in rows_of(mine, place):
            inside = at >= 0 and trace.ops.end[tops[at]] >= every.end[point]
            yield point, trace.names[trace.ops.name[tops[at]]] if inside else every.names[every.name[point]]


def _goes_on(dropped: Mask) -> Mend:
    return lambda given: replace(given, kept=given.kept & ~dropped)


HOST_ILLS: tuple[Callable[[TracedSteps], Iterator[Ill]], ...] = (apart, late_comers, launches, busy_host, synchronisations)
