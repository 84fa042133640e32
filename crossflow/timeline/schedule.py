"""In-order streams turn simulation into a longest path: start times are max-plus sums, for all design points at once.

Every stage of a pipeline has two streams, one that computes and one that sends; each runs its tasks in program order,
so that the order is an edge like any dependency (the paper's resource constraint of one kernel a device and one
transfer a link, Sec. 6.5).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array, tally
from crossflow.parallel import SuperGraph, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """Tasks of one stream that run back to back whatever the durations: they count as one.

    Attributes
    ----------
    stage, kind : the stream.
    rows : costs of this kind (works or messages) that it consists of, and how often each.
    after : segments that it waits for, the one before it in its stream included.
    tasks : indices of its tasks.
    """

    stage: int
    kind: str
    rows: tuple[tuple[int, int], ...]
    after: tuple[int, ...]
    tasks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A super-graph's tasks, merged into segments, ready to be timed for many design points.

    Attributes
    ----------
    segments : in an order that respects `after`.
    counts : how often each work (and message) occurs in each segment, shape (segments, works + messages).
    busy, sent : how often each work, and each message, occurs in each stage, shape (stages, works) and (stages, messages).
    """

    stages: int
    works: int
    segments: tuple[Segment, ...]
    counts: Array
    busy: Array
    sent: Array

    def makespan(self, work_times: Array, message_times: Array) -> Array:
        """Time from the first start to the last end. [s]

        Parameters
        ----------
        work_times, message_times : shape (works, n) and (messages, n). Time of each distinct work and message. [s]
        """
        durations = tally(self.counts, np.concatenate(_same_points(work_times, message_times)))
        return np.asarray(longest_path(durations, [segment.after for segment in self.segments]).max(axis=0))

    def busy_times(self, work_times: Array) -> Array:
        """Time that each stage computes, shape (stages, n). [s]"""
        return tally(self.busy, work_times)


def _same_points(first: Array, second: Array) -> tuple[Array, Array]:
    n = max(first.shape[1], second.shape[1])
    return np.broadcast_to(first, (first.shape[0], n)), np.broadcast_to(second, (second.shape[0], n))


def longest_path(durations: Array, after: Sequence[tuple[int, ...]]) -> Array:
    """End of every task when each starts as soon as all that it waits for has ended.

    Parameters
    ----------
    durations : shape (tasks, n). [s]
    after : for every task the tasks before it in the sequence that it waits for.

    Returns
    -------
    ndarray, shape (tasks, n). [s]
    """
    ends = np.empty_like(durations)
    for i, before in enumerate(after):
        if not before:
            ends[i] = durations[i]
            continue
        start = ends[before[0]]
        for j in before[1:]:
            start = np.maximum(start, ends[j])
        np.add(start, durations[i], out=ends[i])
    return ends


def stream_edges(tasks: Sequence[Task]) -> list[tuple[int, ...]]:
    """For every task what it waits for, its predecessor in its own stream included."""
    last: dict[tuple[int, str], int] = {}
    edges = []
    for i, task in enumerate(tasks):
        stream = (task.stage, task.kind)
        before = set(task.after) | ({last[stream]} if stream in last else set())
        edges.append(tuple(sorted(before)))
        last[stream] = i
    return edges


@functools.lru_cache(maxsize=256)
def schedule(graph: SuperGraph) -> Schedule:
    """Merge the tasks of a super-graph into segments.

    A task joins the segment before it in its stream when it waits for nothing outside the stream and nothing outside
    the stream waits for an earlier part of that segment; the result has the same ends, with fewer steps.
    """
    tasks = graph.tasks
    stream = [(task.stage, task.kind) for task in tasks]
    watched = {j for task in tasks for j in task.after if stream[j] != (task.stage, task.kind)}
    members: list[list[int]] = []
    waits: list[set[int]] = []
    segment_of: dict[int, int] = {}
    current: dict[tuple[int, str], int] = {}
    for i, task in enumerate(tasks):
        outside = {j for j in task.after if stream[j] != stream[i]}
        open_segment = current.get(stream[i])
        if open_segment is not None and not outside and members[open_segment][-1] not in watched:
            members[open_segment].append(i)
        else:
            before = {segment_of[j] for j in outside} | ({open_segment} if open_segment is not None else set())
            members.append([i])
            waits.append(before)
            current[stream[i]] = len(members) - 1
        segment_of[i] = current[stream[i]]
    return _assemble(graph, members, waits)


def _assemble(graph: SuperGraph, members: list[list[int]], waits: list[set[int]]) -> Schedule:
    """Order segments so that each comes after what it waits for, and count what they hold."""
    order = sorted(range(len(members)), key=lambda s: members[s][0])
    rank = {old: new for new, old in enumerate(order)}
    works = len(graph.works)
    counts = np.zeros((len(members), works + len(graph.messages)))
    per_stage = np.zeros((graph.stages, works + len(graph.messages)))
    segments = []
    for new, old in enumerate(order):
        first = graph.tasks[members[old][0]]
        offset = 0 if first.kind == "compute" else works
        for i in members[old]:
            counts[new, offset + graph.tasks[i].index] += 1
        per_stage[first.stage] += counts[new]
        rows = tuple((int(row), int(counts[new, row])) for row in np.flatnonzero(counts[new]))
        after = tuple(sorted(rank[before] for before in waits[old]))
        segments.append(Segment(stage=first.stage, kind=first.kind, rows=rows, after=after, tasks=tuple(members[old])))
    return Schedule(
        stages=graph.stages, works=works, segments=tuple(segments), counts=counts, busy=per_stage[:, :works], sent=per_stage[:, works:]
    )
