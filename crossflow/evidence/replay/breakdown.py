"""Where the time of a step goes on every rank, from when things start and end: as measured, or as replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, rows_of
from crossflow.evidence.replay.edges import LATE, RankEdges
from crossflow.evidence.replay.graph import GraphStep, StepGraph
from crossflow.evidence.replay.kineto import KERNEL, STEP, DeviceWorks, HostSpans, RankTrace
from crossflow.evidence.replay.owners import call_of_works

PARTS = ("busy", "copies", "exposed_communication", "waiting", "host", "idle")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankShare:
    """Where a step of one rank goes; the parts add up to its time.

    Attributes
    ----------
    rank : its number.
    time : of the step. [s]
    parts : by `PARTS`. Busy is what kernels compute; copies, exposed communication and waiting are what each adds beside the ones before,
        waiting being the time in collectives before their last rank comes; host is what the device has nothing to do since the next
        work was not launched yet; the rest is idle. [s]
    """

    rank: int
    time: float
    parts: Mapping[str, float]


def union(spans: Sequence[tuple[float, float]] | Array) -> list[tuple[float, float]]:
    """JoinedSpans joined where they touch, in order.

    >>> union([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    table = np.asarray(spans, dtype=float).reshape(-1, 2)
    table = table[table[:, 1] > table[:, 0]]
    table = table[np.argsort(table[:, 0], kind="stable")]
    reached = np.maximum.accumulate(table[:, 1])
    new = np.flatnonzero(np.concatenate([np.ones(min(len(table), 1), dtype=bool), table[1:, 0] > reached[:-1]]))
    last = np.concatenate([new[1:] - 1, [len(table) - 1]])[: len(new)]
    return [*rows_of(table[new, 0], reached[last])]


def length(spans: Sequence[tuple[float, float]]) -> float:
    """Time that joined spans cover. [s]"""
    return sum(end - begin for begin, end in spans)


def shares_of(graph: StepGraph, times: Array) -> tuple[RankShare, ...]:
    """Where every step of every rank goes.

    Parameters
    ----------
    times : when everything happens, shape (nodes,), from `times_of`; `graph.moments` for what was measured. [s]
    """
    come = last_to_come(graph, times)
    late = _launched_late(graph, times)
    return tuple(_share(graph, step, times, come, late) for step in graph.steps)


def last_to_come(graph: StepGraph, times: Array) -> Array:
    """When the last rank came to the collective that a work is of; of all others its own start, shape (works,). [s]"""
    found = times[graph.starts].copy()
    begun = found.copy()
    for meeting in graph.meetings:
        works = list(meeting.works)
        found[works] = np.minimum(meeting.come(begun).max(), times[graph.ends[works]])
    return found


def _launched_late(graph: StepGraph, times: Array) -> Mask:
    """Whether a work began as soon as it was launched, so that the host decided when, shape (works,)."""
    found = [
        launched_late(edges, times[graph.calls[rank][0]], times[graph.starts[graph.first[rank] : graph.first[rank + 1]]])
        for rank, edges in enumerate(graph.edges)
    ]
    return np.concatenate([np.zeros(0, dtype=bool), *found])


def launched_late(edges: RankEdges, begins: Array, starts: Array) -> Mask:
    """Whether a work of a rank began as soon as it was launched, from begins of calls and starts of works, shape (works,)."""
    found = np.zeros(len(starts), dtype=bool)
    mine = np.flatnonzero(edges.launched >= 0)
    point = edges.launched[mine]
    usual = edges.launch[edges.launch_class[mine]] + LATE
    found[mine] = starts[mine] - begins[point] <= np.maximum(usual, edges.points.length[point])  # a launch may prepare a copy for long
    return found


def _share(graph: StepGraph, step: GraphStep, times: Array, come: Array, late: Mask) -> RankShare:
    begin, end = float(times[step.begin]), float(times[step.end])
    trace = graph.traces[step.rank]
    if trace.modelled:
        return _modelled_share(trace, begin, end)
    mine = slice(*graph.first[step.rank : step.rank + 2].tolist())
    works, starts, ends = trace.works, times[graph.starts[mine]], times[graph.ends[mine]]
    done = RankWorks(starts=starts, ends=ends, come=come[mine], kind=works.kind, collective=works.collective, late=late[mine])
    return share_of(trace.rank, done, begin, end)


@dataclass(frozen=True, kw_only=True, eq=False)
class RankWorks:
    """What the device of a rank did; arrays of shape (works,).

    Attributes
    ----------
    starts, ends : of every work. [s]
    come : when the last rank came to the collective that it is of, else its own start. [s]
    kind, collective : as in `DeviceWorks`.
    late : whether it began as soon as it was launched.
    """

    starts: Array
    ends: Array
    come: Array
    kind: Index
    collective: Mask
    late: Mask


def share_of(rank: int, works: RankWorks, begin: float, end: float) -> RankShare:
    """Where a step of a rank goes that lasts from one moment to another."""
    mine = np.flatnonzero((works.ends > begin) & (works.starts < end))
    kinds, collective = works.kind[mine], works.collective[mine]
    starts, ends, here = works.starts[mine], works.ends[mine], works.come[mine]
    groups = (
        (starts, ends, (kinds == KERNEL) & ~collective), (starts, ends, kinds != KERNEL), (here, ends, collective),
        (starts, here, collective),
    )  # fmt: skip
    added, spans = _added([np.stack([one[chosen], two[chosen]], axis=1) for one, two, chosen in groups], begin, end)
    host = _host(spans, begin, end, starts, works.late[mine])
    parts = [*added, host, max(end - begin - sum(added) - host, 0.0)]
    return RankShare(rank=rank, time=end - begin, parts=dict(zip(PARTS, parts, strict=True)))


def _added(groups: Sequence[Array], begin: float, end: float) -> tuple[list[float], list[tuple[float, float]]]:
    """What each group of spans covers between two moments beside the groups before it, and all that they cover. [s]"""
    spans, covered = list[tuple[float, float]](), [0.0]
    for group in groups:
        spans = union(np.concatenate([np.reshape(spans, (-1, 2)), np.clip(group, begin, end)]))
        covered.append(length(spans))
    return np.diff(covered).tolist(), spans


def _modelled_share(trace: RankTrace, begin: float, end: float) -> RankShare:
    """Where a step goes that crossflow wrote: as in `Timeline.activity`, passes of which nothing else is known exchange data.

    Between passes a device waits for others, so that a transfer there is part of the bubble.
    """
    works, waits = trace.works, modelled_waits(trace)
    groups = (
        _spans(works, (works.kind == KERNEL) & ~works.collective), _spans(works, waits), modelled_host(trace), modelled_passes(trace),
    )  # fmt: skip
    busy, waiting, host, exposed = _added(groups, begin, end)[0]
    parts = (busy, 0.0, exposed, waiting, host, max(end - begin - busy - exposed - waiting - host, 0.0))
    return RankShare(rank=trace.rank, time=end - begin, parts=dict(zip(PARTS, parts, strict=True)))


def _spans(rows: DeviceWorks | HostSpans, chosen: Mask) -> Array:
    return np.stack([rows.start[chosen], rows.end[chosen]], axis=1)


def modelled_waits(trace: RankTrace) -> Mask:
    """Works of a trace that crossflow wrote in which a rank waits for others, shape (works,)."""
    named = np.array([*("waiting" in name for name in trace.names), False])
    return np.asarray(trace.works.collective & named[trace.works.name])


def modelled_host(trace: RankTrace) -> Array:
    """When the host of a trace that crossflow wrote keeps its device waiting, shape (waits, 2). [s]"""
    return _spans(trace.ops, np.ones(len(trace.ops), dtype=bool))


def modelled_gaps(trace: RankTrace) -> Array:
    """What lies between the passes of a trace that crossflow wrote, and around them, shape (gaps, 2). [s]"""
    passes = np.reshape(union(modelled_passes(trace)), (-1, 2))
    begin, end = float(trace.works.start.min(initial=0.0)), float(trace.works.end.max(initial=trace.windows[-1].end))
    return np.stack([np.concatenate([[begin], passes[:, 1]]), np.concatenate([passes[:, 0], [end]])], axis=1)


def modelled_passes(trace: RankTrace) -> Array:
    """Begins and ends of the passes of a trace that crossflow wrote, shape (passes, 2). [s]"""
    named = np.array([*(not name.startswith(STEP) for name in trace.names), False])
    return _spans(trace.marks, named[trace.marks.name])


def _host(spans: Sequence[tuple[float, float]], begin: float, end: float, starts: Array, late: Mask) -> float:
    """Time without work of the device that ends with a work that the host launched late, or with the step."""
    by_start = dict(zip(starts.tolist(), late.tolist(), strict=True))
    at, found = begin, 0.0
    for first, last in spans:
        if by_start.get(first, False):
            found += max(first - at, 0.0)
        at = last
    return found + max(end - at, 0.0)


def mean_shares(shares: Sequence[RankShare]) -> tuple[RankShare, ...]:
    """The mean step of every rank, by rank."""
    ranks: dict[int, list[RankShare]] = {}
    for share in shares:
        ranks.setdefault(share.rank, []).append(share)
    return tuple(
        RankShare(
            rank=rank,
            time=float(np.mean([one.time for one in mine])),
            parts={part: float(np.mean([one.parts[part] for one in mine])) for part in PARTS},
        )
        for rank, mine in ranks.items()
    )


@dataclass(frozen=True, kw_only=True)
class DeviceSpan:
    """What the device did from its first to its last work, as Holistic Trace Analysis divides it.

    Attributes
    ----------
    time : from the first to the last work. [s]
    idle : without any. [s]
    compute : with a kernel that is no collective. [s]
    other : with copies and collectives only. [s]
    exposed_communication : with collectives and no such kernel. [s]
    """

    time: float
    idle: float
    compute: float
    other: float
    exposed_communication: float


def device_span(trace: RankTrace) -> DeviceSpan:
    """The device of a rank over its whole trace, as measured.

    Work that was launched in the last of several steps is left out, as Holistic Trace Analysis 0.5.0 does: its end may be cut.
    """
    works, kept = trace.works, _whole(trace)
    starts, ends = works.start[kept], works.end[kept]
    if not len(starts):
        return DeviceSpan(time=0.0, idle=0.0, compute=0.0, other=0.0, exposed_communication=0.0)
    kernels, collectives = ((works.kind == KERNEL) & ~works.collective)[kept], works.collective[kept]
    everything = length(union(np.stack([starts, ends], axis=1)))
    compute = length(union(np.stack([starts[kernels], ends[kernels]], axis=1)))
    both = length(union(np.stack([starts[kernels | collectives], ends[kernels | collectives]], axis=1)))
    time = float(ends.max() - starts.min())
    return DeviceSpan(time=time, idle=time - everything, compute=compute, other=everything - compute, exposed_communication=both - compute)


def _whole(trace: RankTrace) -> Mask:
    """Works that were launched before the last of several steps, or within the only one, shape (works,)."""
    steps = [window for window in trace.windows if window.name.startswith("ProfilerStep")]
    if len(steps) < 2:
        return np.ones(len(trace.works), dtype=bool)
    last = max(window.start for window in steps)
    call = call_of_works(trace)
    return np.concatenate([trace.calls.start, [-np.inf]])[call] < last
