"""What decides how long a step takes: its critical path, and who keeps the other ranks waiting."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.evidence.replay.edges import OverheadKind
from crossflow.evidence.replay.graph import NONE, GraphStep, StepGraph
from crossflow.evidence.replay.kineto import KERNEL, short_name

OTHERS = "ranks for which others stand"
KINDS = ("host", "kernels", "copies", "collectives", "gaps", "late_start")  # the last: of a rank that began later than the step


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """The path of a step, from its end back to its begin.

    Attributes
    ----------
    nodes : moments on it, in the order of time.
    time : by `KINDS`. [s]
    names : by operation of the host, kernel or collective. [s]
    ranks : by rank whose host or device it runs over. [s]
    """

    nodes: tuple[int, ...]
    time: Mapping[str, float]
    names: Mapping[str, float]
    ranks: Mapping[int, float]


def critical_path(graph: StepGraph, step: GraphStep, times: Array, lags: Array) -> CriticalPath:
    """The critical path of a step.

    Parameters
    ----------
    times, lags : when everything happens, shape (nodes,), and what every edge takes, shape (edges,). [s]
    """
    binding = _binding(graph, times, lags)
    owner = owners(graph)
    begin, node = float(times[step.begin]), step.end
    path, kinds, names, ranks = [node], Counter[str](), Counter[str](), Counter[int]()
    while binding[node] != NONE and times[node] > begin:
        edge = int(binding[node])
        source = int(graph.source[edge])
        passed = float(times[node] - max(times[source], begin))
        kind, parts = _edge(graph, edge)
        kinds[kind] += passed  # type: ignore[assignment]
        for name, share in parts.items():
            names[name] += share * passed  # type: ignore[assignment]
        ranks[graph.traces[owner[node]].rank] += passed  # type: ignore[assignment]
        node = source
        path.append(node)
    if times[node] > begin:
        late = graph.traces[owner[node]].rank
        kinds["late_start"], names[f"start of rank {late}"] = times[node] - begin, times[node] - begin
        ranks[late] += times[node] - begin
    time = {kind: float(kinds[kind]) for kind in dict.fromkeys((*KINDS, *kinds))}
    return CriticalPath(nodes=tuple(path[::-1]), time=time, names=dict(names.most_common()), ranks=dict(ranks))


def _binding(graph: StepGraph, times: Array, lags: Array) -> Index:
    """For every node the edge by which it was reached last, `NONE` for those that wait for nothing."""
    found = np.full(len(times), NONE)
    late = times[graph.source] + lags
    order = np.lexsort((late, graph.target))
    found[graph.target[order]] = order  # the last of each target is the latest
    return found


def _ops(graph: StepGraph, edge: int) -> Mapping[str, float]:
    """What share of an edge of the host each operation takes. [1]"""
    found: Counter[str] = Counter()
    for kind, op, length in graph.pieces.of(edge):
        found[_segment(kind, op)] += length  # type: ignore[assignment]
    whole = found.total()
    return {name: length / whole for name, length in found.items()} if whole > 0 else {"launch": 1.0}


def _segment(kind: OverheadKind, op: str) -> str:
    return f"before {op}" if kind in ("T1", "hand") else op


def _edge(graph: StepGraph, edge: int) -> tuple[str, Mapping[str, float]]:
    """What passes along an edge: its kind, and its names with their shares of it. [1]"""
    work = int(graph.work[edge])
    if work >= 0:
        rank = graph.rank_of(work)
        works, place = graph.traces[rank].works, work - int(graph.first[rank])
        name = short_name(graph.traces[rank].names[works.name[place]])
        return ("collectives" if graph.collective[work] else "kernels" if works.kind[place] == KERNEL else "copies"), {name: 1.0}
    if graph.others[edge]:
        return "other_ranks", {OTHERS: 1.0}
    return ("host", _ops(graph, edge)) if graph.host[edge] > 0 else ("gaps", {"gaps between works": 1.0})


def owners(graph: StepGraph) -> Index:
    """Place of the rank of every node; a meeting has that of its first."""
    found = np.zeros(len(graph.moments), dtype=np.intp)
    for rank, (begins, returns) in enumerate(graph.calls):
        mine = slice(int(graph.first[rank]), int(graph.first[rank + 1]))
        for nodes in (begins, returns, graph.starts[mine], graph.ends[mine]):
            found[nodes] = rank
    return found


@dataclass(frozen=True, kw_only=True)
class LateRank:
    """A rank for which others wait in collectives.

    Attributes
    ----------
    rank : its number.
    collectives : how often it was the last to come. [1]
    time : what the other ranks waited for it, all of them together. [s]
    """

    rank: int
    collectives: int
    time: float


def late_ranks(graph: StepGraph, times: Array) -> tuple[LateRank, ...]:
    """Ranks that keep others waiting, worst first."""
    waited: dict[int, list[float]] = defaultdict(list)
    starts = times[graph.starts]
    for meeting in graph.meetings:
        come = meeting.come(starts)
        waited[graph.number_of(meeting, int(come.argmax()))].append(float((come.max() - come).sum()))
    found = [LateRank(rank=rank, collectives=len(each), time=sum(each)) for rank, each in waited.items()]
    return tuple(sorted(found, key=lambda one: -one.time))
