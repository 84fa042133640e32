"""In-order streams turn simulation into a longest path: start times are max-plus sums, for all design points at once.

Every class of ranks runs its operations on streams, each in program order, so that the order is an edge like any dependency (the
paper's resource constraint of one kernel a device and one transfer a link, Sec. 6.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array, once, tally
from crossflow.program import Op, Program


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """Operations of one stream that run back to back whatever the durations: they count as one.

    Attributes
    ----------
    rank, stream : the stream.
    after : segments that it waits for, the one before it in its stream included.
    ops : places of its operations.
    """

    rank: int
    stream: str
    after: tuple[int, ...]
    ops: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A program's operations, merged into segments, ready to be timed for many design points.

    Attributes
    ----------
    segments : in an order that respects `after`.
    kernels : rows of prices that are kernels; those after them are messages, and a call of the host.
    counts : how often each row of prices occurs in each segment, shape (segments, rows).
    of_class : the same in each class of ranks, shape (classes, rows).
    """

    segments: tuple[Segment, ...]
    kernels: int
    counts: Array
    of_class: Array

    @property
    def busy(self) -> Array:
        """How often each kernel occurs in each class of ranks, shape (classes, kernels). [1]"""
        return self.of_class[:, : self.kernels]

    @property
    def sent(self) -> Array:
        """How often each message occurs in each class of ranks, shape (classes, messages). [1]"""
        return self.of_class[:, self.kernels : -1]

    def makespan(self, times: Array) -> Array:
        """Time from the first start to the last end, where every row of prices takes some time, shape (rows, n). [s]"""
        return np.asarray(longest_path(tally(self.counts, times), [segment.after for segment in self.segments]).max(axis=0))


def durations(program: Program, times: Array) -> Array:
    """Time of every operation alone, from that of every row of prices and of a call of the host, shape (ops, n). [s]"""
    nothing = np.zeros(times.shape[1])
    alone = [sum((times[row] for row in rows), nothing) for rows in program.rows]
    return np.asarray(np.array(alone) + np.array([op.calls for op in program.ops])[:, None] * times[-1])


def longest_path(durations: Array, after: Sequence[tuple[int, ...]]) -> Array:
    """End of every operation when each starts as soon as all that it waits for has ended.

    Parameters
    ----------
    durations : shape (operations, n). [s]
    after : for every operation those before it in the sequence that it waits for.

    Returns
    -------
    ndarray, shape (operations, n). [s]
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


def stream_edges(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    """For every operation what it waits for, its predecessor in its own stream included."""
    last: dict[tuple[int, str], int] = {}
    edges = []
    for i, op in enumerate(ops):
        stream = (op.rank, op.stream)
        before = set(op.after) | ({last[stream]} if stream in last else set())
        edges.append(tuple(sorted(before)))
        last[stream] = i
    return edges


@once
def schedule(program: Program) -> Schedule:
    """Merge the operations of a program into segments.

    An operation joins the segment before it in its stream when it waits for nothing outside the stream and nothing outside the stream
    waits for an earlier part of that segment; the result has the same ends, with fewer steps.
    """
    ops = program.ops
    stream = [(op.rank, op.stream) for op in ops]
    watched = {j for op in ops for j in op.after if stream[j] != (op.rank, op.stream)}
    members: list[list[int]] = []
    waits: list[set[int]] = []
    segment_of: dict[int, int] = {}
    current: dict[tuple[int, str], int] = {}
    for i, op in enumerate(ops):
        outside = {j for j in op.after if stream[j] != stream[i]}
        open_segment = current.get(stream[i])
        if open_segment is not None and not outside and members[open_segment][-1] not in watched:
            members[open_segment].append(i)
        else:
            before = {segment_of[j] for j in outside} | ({open_segment} if open_segment is not None else set())
            members.append([i])
            waits.append(before)
            current[stream[i]] = len(members) - 1
        segment_of[i] = current[stream[i]]
    return _assemble(program, members, waits)


def _assemble(program: Program, members: list[list[int]], waits: list[set[int]]) -> Schedule:
    """Order segments so that each comes after what it waits for, and count what they hold."""
    order = sorted(range(len(members)), key=lambda s: members[s][0])
    rank = {old: new for new, old in enumerate(order)}
    rows = len(program.kernels) + len(program.messages) + 1
    counts, of_class = np.zeros((len(members), rows)), np.zeros((program.classes, rows))
    segments = []
    for new, old in enumerate(order):
        first = program.ops[members[old][0]]
        for i in members[old]:
            np.add.at(counts[new], list(program.rows[i]), 1.0)
            counts[new, -1] += program.ops[i].calls
        of_class[first.rank] += counts[new]
        after = tuple(sorted(rank[before] for before in waits[old]))
        segments.append(Segment(rank=first.rank, stream=first.stream, after=after, ops=tuple(members[old])))
    return Schedule(segments=tuple(segments), kernels=len(program.kernels), counts=counts, of_class=of_class)
