"""What-ifs of a trace, as the command line writes them: ``compute*0.5, all_reduce+2ms, kernel[gemm]*0.8, rank[3]+1ms``."""

from __future__ import annotations

import fnmatch
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.base.rules import COMMAS, RULE, listed, ranks_of, value_of
from crossflow.evidence.replay.breakdown import union
from crossflow.evidence.replay.collectives import OPS, traced_collectives
from crossflow.evidence.replay.edges import HostPoints
from crossflow.evidence.replay.graph import GraphTimes, StepGraph, taken
from crossflow.evidence.replay.kineto import COPY, KERNEL, SET

COMPUTE, COPIES, COMMUNICATION, HOST, SYNCHRONISATION, RANK, KERNEL_WORD, OP, BATCH = (
    "compute", "copies", "communication", "host", "synchronisation", "rank", "kernel", "op", "batch",
)  # fmt: skip
NAMED = (KERNEL_WORD, OP, SYNCHRONISATION)  # words that take a name in brackets, ranks aside
WORDS = (*OPS, COMPUTE, COPIES, COMMUNICATION, HOST, SYNCHRONISATION, RANK, KERNEL_WORD, OP, BATCH)
GIVEN_BY_NETWORK = ("bandwidth", "latency", "all")
JoinedSpans = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class TraceRule:
    """One change of a trace.

    Attributes
    ----------
    word : what changes: a collective by name, all of them (communication), kernels that are none (compute), copies, the host, or of
        these kernels, operations with their kernels, waits of the host for the device, ranks that are named, or the batch.
    sign, value : ``*`` and a factor, or ``+`` and a time of every one of them. [1], [s]
    name : of the kernels, operations or calls, with ``*`` and ``?`` for letters that do not matter; of the batch what it is in the trace.
    ranks : whose start is later.
    written : as the user wrote it.
    """

    word: str
    sign: str
    value: float
    name: str
    ranks: tuple[int, ...]
    written: str

    def of(self, times: Array) -> Array:
        """Times with this change. [s]"""
        return times * self.value if self.sign == "*" else times + self.value


def read_trace_changes(text: str) -> tuple[TraceRule, ...]:
    """Read a list of changes; CrossflowError for the first that has no meaning.

    >>> [rule.word for rule in read_trace_changes("compute*0.5, kernel[*gemm*]*0.8")]
    ['compute', 'kernel']
    """
    return tuple(_read(written.strip()) for written in COMMAS.split(text)) if text.strip() else ()


def _read(written: str) -> TraceRule:
    found = RULE.match(written)
    if found is None:
        raise CrossflowError(f"what-if '{written}': expected a word, + or *, and a value, such as compute*0.5 or all_reduce+2ms")
    word, sign, inside = found["word"], found["sign"], found["inside"]
    if word in GIVEN_BY_NETWORK:
        cure = "communication*0.5 or all_reduce+1ms change its collectives"
        raise CrossflowError(f"what-if '{written}': a trace does not say what of a collective is {word}; {cure}")
    if word not in WORDS:
        raise CrossflowError(f"what-if '{written}': unknown word '{word}'{did_you_mean(word, WORDS)}; known words: {', '.join(WORDS)}")
    if word in (KERNEL_WORD, OP, RANK) and not inside:
        raise CrossflowError(f"what-if '{written}': say which, such as kernel[*gemm*]*0.8, op[aten::copy_]*0 or rank[3]+1ms")
    if inside is not None and word not in (*NAMED, RANK, BATCH):
        raise CrossflowError(f"what-if '{written}': '{word}' takes no brackets")
    value = value_of(written, sign, found["value"], zero=word != BATCH)
    if word == BATCH and (sign == "+" or not (inside or "1").isdecimal() or not int(inside or 1)):
        raise CrossflowError(f"what-if '{written}': write it as batch*2, or batch[1024]*2 where the trace has 1024 samples a rank")
    if word in (HOST, SYNCHRONISATION, RANK) and (sign == "+") != (word == RANK):
        example = {HOST: "host*0.5", SYNCHRONISATION: "synchronisation*0", RANK: "rank[3]+1ms"}[word]
        raise CrossflowError(f"what-if '{written}': write it as {example}")
    if word == SYNCHRONISATION and value:
        cure = "synchronisation*0 or synchronisation[cudaStreamSynchronize]*0"
        raise CrossflowError(f"what-if '{written}': a wait is there or not; write {cure}")
    ranks = ranks_of(inside, f"what-if '{written}'") if word == RANK and inside else ()
    return TraceRule(word=word, sign=sign, value=value, name=inside or "*", ranks=ranks, written=written)


def changed(
    graph: StepGraph, rules: Sequence[TraceRule], given: GraphTimes | None = None, batches: Mapping[str, Array] | None = None
) -> GraphTimes:
    """What everything takes with changes, in the order in which they are written.

    Parameters
    ----------
    given : what everything takes without them, as in the trace where absent.
    batches : of every change of the batch as it was written, the time of every work over what it was, shape (works,). [1]

    Raises
    ------
    CrossflowError
        Where a change finds nothing in the trace that it could change.
    """
    before = taken(graph) if given is None else given
    found = GraphTimes(work=before.work.copy(), host=before.host.copy(), begin=before.begin.copy(), kept=before.kept.copy())
    kinds = np.concatenate([trace.works.kind for trace in graph.traces])
    for rule in rules:
        if rule.word == RANK:
            _later(graph, rule, found)
        elif rule.word == HOST:
            found.host[:] = rule.of(found.host)
        elif rule.word == OP:
            _operations(graph, rule, found)
        elif rule.word == BATCH:
            found.work[:] *= (batches or {})[rule.written]
        elif rule.word == SYNCHRONISATION:
            _freed(graph, rule, found)
        else:
            chosen = _works(graph, rule, kinds)
            _expect(rule, chosen.any())
            found.work[chosen] = rule.of(found.work[chosen])
    return found


def _expect(rule: TraceRule, any_found: object) -> None:
    if not any_found:
        what = f"{rule.word}[{rule.name}]" if rule.word in NAMED else rule.word
        raise CrossflowError(f"what-if '{rule.written}': the trace has no {what}")


def _works(graph: StepGraph, rule: TraceRule, kinds: Array) -> Mask:
    """Works that a rule changes, shape (works,)."""
    if rule.word == COMPUTE:
        return np.asarray((kinds == KERNEL) & ~graph.collective)
    if rule.word == COPIES:
        return np.asarray((kinds == COPY) | (kinds == SET))
    if rule.word == COMMUNICATION:
        return graph.collective
    found = np.zeros(len(kinds), dtype=bool)
    for rank, edges in enumerate(graph.edges):
        first = int(graph.first[rank])
        if rule.word == KERNEL_WORD:
            names = [_matches(name, rule.name) for name in edges.trace.names]
            found[first : int(graph.first[rank + 1])] = np.array([*names, False])[edges.trace.works.name]
        else:
            mine = [first + work for work, one in traced_collectives(edges).items() if one.op == rule.word]
            found[mine] = True
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*{pattern}*")


def _operations(graph: StepGraph, rule: TraceRule, found: GraphTimes) -> None:
    """Change operations of a name: what the host spends inside of them, their launches, and the works that they launch."""
    some = False
    for rank, edges in enumerate(graph.edges):
        trace = edges.trace
        chosen = np.array([*(fnmatch.fnmatchcase(name, rule.name) for name in trace.names), False])[trace.ops.name]
        for thread in np.unique(trace.ops.thread[chosen]).tolist():
            mine, some = chosen & (trace.ops.thread == thread), True
            works = change_host(graph, rank, thread, np.stack([trace.ops.start[mine], trace.ops.end[mine]], axis=1), rule, found.host)
            found.work[works] = found.work[works] * rule.value if rule.sign == "*" else found.work[works]
    _expect(rule, some)


def change_host(graph: StepGraph, rank: int, thread: int, spans: Array, rule: TraceRule, host: Array) -> list[int]:
    """Change what a thread of the host spends within some spans, shape (spans, 2), in place; the works that it launches there. [s]"""
    edges, (before, calls), first = graph.edges[rank], graph.segments[rank], int(graph.first[rank])
    joined, works = union(spans), list[int]()
    for i in np.flatnonzero(edges.points.thread == thread).tolist():
        inside = _change(rule, joined, edges.points, i, (int(before[i]), int(calls[i])), host)
        works += [first + work for work in edges.points.works[i] if inside]
    return works


def _change(rule: TraceRule, spans: JoinedSpans, points: HostPoints, point: int, segments: tuple[int, int], host: Array) -> bool:
    """Change the host before a point and in its call, as far as they lie in some spans; whether the call does."""
    last = points.hand[point] if points.hand[point] >= 0 else points.before[point]
    called, returned = float(points.start[point]), float(points.end[point])
    begin = float(points.end[last]) if last >= 0 else called
    for edge, start, end in ((segments[0], begin, called), (segments[1], called, returned)):
        within = _overlap(spans, start, end)
        if edge >= 0 and within[0] > 0:
            host[edge] += (rule.value - 1.0) * min(within[0], host[edge]) if rule.sign == "*" else rule.value * within[1]
    place = bisect(spans, (called, np.inf)) - 1
    return place >= 0 and spans[place][1] > called


def _overlap(spans: JoinedSpans, start: float, end: float) -> tuple[float, int]:
    """Time of a segment that lies in spans, and how many of them begin in it. [s], [1]"""
    first = max(bisect(spans, (start, -np.inf)) - 1, 0)
    time, begun, last = 0.0, 0, bisect(spans, (end, -np.inf))
    for one, two in spans[first:last]:
        time += max(min(two, end) - max(one, start), 0.0)
        begun += start <= one
    return time, begun


def _freed(graph: StepGraph, rule: TraceRule, found: GraphTimes) -> None:
    """Let the host go on without waiting for the device."""
    points = []
    for edges in graph.edges:
        named = np.array([fnmatch.fnmatchcase(name, rule.name) for name in edges.points.names])
        points.append((edges.points.waits.counts > 0) & named[edges.points.name])
    _expect(rule, any(one.any() for one in points))
    found.kept[waits_of(graph, points)] = False


def waits_of(graph: StepGraph, points: Sequence[Mask]) -> Mask:
    """Edges along which the host waits for the device in some calls, shape (edges,).

    Parameters
    ----------
    points : of every rank, which of its calls, shape (points,).
    """
    ends, works = (np.zeros(len(graph.moments), dtype=bool) for _ in range(2))
    for (_, returns), chosen in zip(graph.calls, points, strict=True):
        ends[returns[chosen]] = True
    works[graph.ends] = True
    return np.asarray(ends[graph.target] & works[graph.source])


def _later(graph: StepGraph, rule: TraceRule, found: GraphTimes) -> None:
    """Begin everything of some ranks later."""
    by_rank = {trace.rank: rank for rank, trace in enumerate(graph.traces)}
    for rank in rule.ranks:
        if rank not in by_rank:
            there = f"those of {listed([*by_rank])} were read"
            if len(graph.numbers) > len(by_rank):
                whole = f"{there} whole, and stand for the others; --whole says how many are"
                there = whole if rank in graph.numbers else f"there are ranks {listed(graph.numbers)}"
            raise CrossflowError(f"what-if '{rule.written}': there is no trace of rank {rank}; {there}")
        place = by_rank[rank]
        mine = slice(int(graph.first[place]), int(graph.first[place + 1]))
        for nodes in (*graph.calls[place], graph.starts[mine], graph.ends[mine]):
            found.begin[nodes] += np.where(graph.begins[nodes], rule.value, 0.0)
