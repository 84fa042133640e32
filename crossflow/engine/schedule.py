"""In-order streams turn simulation into a longest path: start times are max-plus sums, for all design points at once.

Every class of ranks runs its operations on streams, each in program order, so that the order is an edge like any dependency (the
paper's resource constraint of one kernel a device and one transfer a link, Sec. 6.5). Of a block that repeats, the first and the last
copy are timed as they stand; those between are a power of one matrix (`crossflow.engine.loops`, `crossflow.engine.maxplus`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index, count, once, wide
from crossflow.engine.loops import Region, with_loops
from crossflow.engine.maxplus import NO_PATH, repeated
from crossflow.engine.tasks import Task, TaskStream, copies, tasks_of
from crossflow.program.blocks import COPIES
from crossflow.program.program import HOST_TIMES, Program

_CALL = 1000  # numbers that an array operation adds up in the time that it takes to be called


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Tasks of one stream that run back to back whatever the durations: they count as one.

    Attributes
    ----------
    after : segments that it waits for, the one before it in its stream included.
    tasks : places of its tasks.
    """

    after: tuple[int, ...]
    tasks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Loads:
    """Rows of times that segments take; equal loads are added up once.

    Attributes
    ----------
    rows, often : rows of the distinct loads, one load after the other, and how often each row occurs, shape (entries,).
    begin : first entry of every distinct load.
    which : load of every segment.
    """

    rows: Index
    often: Array
    begin: Index
    which: Index

    @classmethod
    def of(cls, loads: Sequence[Counter[int]]) -> Loads:
        """Loads of segments, each with its rows and how often they occur."""
        distinct: dict[tuple[tuple[int, int], ...], int] = {}
        which = [distinct.setdefault(tuple(sorted(load.items())) or ((0, 0),), len(distinct)) for load in loads]
        entries = [entry for load in distinct for entry in load]
        sizes = [len(load) for load in distinct]
        return cls(
            rows=np.array([row for row, _ in entries], dtype=np.intp), often=np.array([float(often) for _, often in entries]),
            begin=np.cumsum([0, *sizes[:-1]], dtype=np.intp), which=np.array(which, dtype=np.intp),
        )  # fmt: skip

    def times(self, table: Array) -> Array:
        """Time of every segment, from that of every row, shape (segments, n). [s]"""
        if not len(self.rows):
            return np.zeros((0, table.shape[1]))
        taken = table[self.rows]
        taken[self.often == 0] = 0.0  # an operation without work; its row may be endless
        taken *= self.often[:, None]
        return np.asarray(np.add.reduceat(taken, self.begin)[self.which])


@dataclass(frozen=True, kw_only=True, eq=False)
class Loop:
    """Segments of a block that repeat.

    Attributes
    ----------
    start, stop : first of its segments, and the one after the last.
    times : how often they run, one number or one for every point. [1]
    before, ends : segments of the copy before, and of the loop itself, that the next copy waits for: its state.
    inner : for every segment those of the loop that it waits for, from 0.
    outer : for every segment entries of the state that it waits for.
    """

    start: int
    stop: int
    times: int | Index
    before: tuple[int, ...]
    ends: tuple[int, ...]
    inner: tuple[tuple[int, ...], ...]
    outer: tuple[tuple[int, ...], ...]

    def run(self, durations: Array, state: Array) -> Array:
        """State after all copies, shape (state, n); durations of the loop's segments, shape (segments, n). [s]"""
        n, states, (edges, most, paths) = durations.shape[1], len(state), self._size
        steps = most.bit_length() if states > 1 else 1
        power = states * edges * n + 2 * steps * states**3 * n + _CALL * (edges + 4 * steps)
        if power > edges * most * (n + _CALL):
            for done in range(most):
                state = np.where(done < self.times, self._once(durations, state), state)
            return state
        with np.errstate(invalid="ignore"):  # an endless operation that no path leads to from an entry
            found = self._once(durations[:, None], paths)
            return repeated(np.where(np.isnan(found), NO_PATH, found), self.times, state)

    @functools.cached_property
    def _size(self) -> tuple[int, int, Array]:
        """Waits of a copy, most copies at any point, and the state after none of them, from each entry, shape (state, state, 1). [s]"""
        edges = sum(len(waits) for waits in (*self.inner, *self.outer))
        paths = np.where(np.eye(len(self.ends), dtype=bool), 0.0, NO_PATH)
        return edges, int(np.max(self.times)), paths[..., None]

    def _once(self, durations: Array, state: Array) -> Array:
        """State after one copy; both may have further axes before the points."""
        ends: list[Array] = []
        for duration, inner, outer in zip(durations, self.inner, self.outer, strict=True):
            start: Array = functools.reduce(np.fmax, [*(ends[i] for i in inner), *(state[i] for i in outer)])
            ends.append(start + duration)
        return np.stack([ends[i - self.start] for i in self.ends])


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A program's operations, merged into segments, ready to be timed for many design points.

    Attributes
    ----------
    segments : in an order that respects `after`.
    loops : those that stand for several copies of a block.
    loads : rows of times that every segment takes.
    kernels : rows of prices that are kernels; those after them are messages, and calls of the host.
    of_class : how often each row of prices occurs in each class of ranks, shape (classes, rows), or (classes, rows, n).
    """

    segments: tuple[Segment, ...]
    loops: tuple[Loop, ...]
    loads: Loads
    kernels: int
    of_class: Array

    @property
    def busy(self) -> Array:
        """How often each kernel occurs in each class of ranks, shape (classes, kernels), or (classes, kernels, n). [1]"""
        return self.of_class[:, : self.kernels]

    @property
    def sent(self) -> Array:
        """How often each message occurs in each class of ranks, shape (classes, messages), or (classes, messages, n). [1]"""
        return self.of_class[:, self.kernels : -len(HOST_TIMES)]

    @property
    def calls(self) -> Array:
        """How often each call of the host's own work occurs in each class of ranks, shape (classes, calls), or (classes, calls, n). [1]"""
        return self.of_class[:, -len(HOST_TIMES) :]

    def makespan(self, times: Array) -> Array:
        """Time from the first start to the last end, where every row takes some time, shape (rows, n). [s]"""
        n = count(times, *(np.atleast_1d(loop.times) for loop in self.loops))
        spans, after, done = wide(self.loads.times(times), n), [segment.after for segment in self.segments], 0
        ends = np.zeros_like(spans)
        for loop in self.loops:
            _walk(spans, after, ends, range(done, loop.start))
            ends[list(loop.ends)] = loop.run(spans[loop.start : loop.stop], ends[list(loop.before)])
            done = loop.stop
        _walk(spans, after, ends, range(done, len(spans)))
        return np.asarray(ends.max(axis=0))


def durations(tasks: Sequence[Task], times: Array) -> Array:
    """Time of every task alone, from that of every row, shape (tasks, n). [s]"""
    return Loads.of([_load([(task, 1)]) for task in tasks]).times(times)


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
    _walk(durations, after, ends, range(len(after)))
    return ends


def _walk(durations: Array, after: Sequence[tuple[int, ...]], ends: Array, part: Iterable[int]) -> None:
    """Fill in the ends of a part of the operations."""
    for i in part:
        before = after[i]
        if not before:
            ends[i] = durations[i]
            continue
        start = ends[before[0]]
        for j in before[1:]:
            start = np.maximum(start, ends[j])
        np.add(start, durations[i], out=ends[i])


@once
def schedule(program: Program, *, launched: bool = False) -> Schedule:
    """Merge the tasks of a program into segments, and copies of its blocks into loops.

    Parameters
    ----------
    launched : whether a host launches every kernel and message; times then have further rows (`crossflow.engine.tasks.PriceRows`).

    Raises
    ------
    ValueError
        When classes of ranks wait for each other in a circle.
    CrossflowError
        When blocks whose copies are no loops have too many of them.
    """
    runs = copies(program, COPIES)
    found = with_loops(program, runs, tasks_of(program, runs, launched=launched)[0])
    if found is None:
        program.places.check(f"{program.name}: copies of its blocks wait for each other in such a way that each is timed by itself")
        found = tasks_of(program, copies(program), launched=launched)[0], []
    tasks, regions = found
    straight = [one for one in regions if _is_straight(tasks, one)]
    often = {i: int(one.times) for one in straight for i in range(one.second, one.third)}
    regions = [one for one in regions if one not in straight]
    segments, of = _merged(tasks, [edge for one in regions for edge in (one.first, one.second, one.third)])
    return Schedule(
        segments=segments,
        loops=tuple(_loop(tasks, segments, of, region) for region in regions),
        loads=Loads.of([_load([(tasks[i], often.get(i, 1)) for i in segment.tasks]) for segment in segments]),
        kernels=len(program.kernels),
        of_class=of_class(program),
    )


def _is_straight(tasks: Sequence[Task], region: Region) -> bool:
    """Whether the copies of a loop, as many at every point, run back to back whatever the durations."""
    stream, mine = tasks[region.second].streams, tasks[region.second : region.third]
    alone = all(task.streams == stream and all(tasks[j].streams == stream for j in task.edges) for task in mine)
    return alone and len(stream) == 1 and isinstance(region.times, int)


def _merged(tasks: Sequence[Task], fences: Iterable[int]) -> tuple[tuple[Segment, ...], list[int]]:
    """Segments of tasks, and the segment of every task.

    A task joins the segment before it in its stream when it waits for nothing outside the stream and nothing outside the stream
    waits for an earlier part of that segment; the result has the same ends, with fewer steps. None reaches over a fence.
    """
    waiting = [_waits(tasks, task) for task in tasks]
    watched = {j for task, before in zip(tasks, waiting, strict=True) for j in before if tasks[j].streams != task.streams}
    members: list[list[int]] = []
    waits: list[set[int]] = []
    of: list[int] = []
    current: dict[tuple[TaskStream, ...], int] = {}
    closed = set(fences)
    for i, task in enumerate(tasks):
        if i in closed:
            current.clear()
        before = current.get(task.streams)
        alone = len(task.streams) == 1 and all(tasks[j].streams == task.streams for j in waiting[i])
        if before is not None and alone and members[before][-1] not in watched:
            members[before].append(i)
        else:
            members.append([i])
            waits.append({of[j] for j in waiting[i]})
            current[task.streams] = len(members) - 1
        of.append(current[task.streams])
    # A segment may end behind tasks that were begun after it.
    order = sorted(range(len(members)), key=lambda s: members[s][0])
    rank = {old: new for new, old in enumerate(order)}
    segments = tuple(Segment(after=tuple(sorted(rank[j] for j in waits[old])), tasks=tuple(members[old])) for old in order)
    return segments, [rank[old] for old in of]


def _waits(tasks: Sequence[Task], task: Task) -> set[int]:
    """What a task waits for, of its own stream only the last."""
    own = [j for j in task.edges if tasks[j].streams == task.streams]
    return set(task.edges) - set(own[:-1])


def _loop(tasks: Sequence[Task], segments: Sequence[Segment], of: Sequence[int], region: Region) -> Loop:
    """The second of three copies as a loop: its state is what it waits for in the first."""
    first, second, third = region.first, region.second, region.third
    start, stop = of[second], of[third]
    twin = dict(zip(range(first, second), range(second, third), strict=True))
    state: dict[int, int] = {}
    inner, outer = [], []
    for segment in segments[start:stop]:
        waits = {j for i in segment.tasks for j in _waits(tasks, tasks[i])}
        inner.append(tuple(sorted({of[j] - start for j in waits if j >= second} - {of[segment.tasks[0]] - start})))
        # What stands before the block holds up the first copy, and so, in its streams, all others.
        outer.append(tuple(state.setdefault(j, len(state)) for j in sorted(waits) if first <= j < second))
    return Loop(
        start=start, stop=stop, times=region.times, before=tuple(of[j] for j in state), ends=tuple(of[twin[j]] for j in state),
        inner=tuple(inner), outer=tuple(outer),
    )  # fmt: skip


def _load(tasks: Iterable[tuple[Task, int]]) -> Counter[int]:
    """Rows that tasks take, each of which runs so often, and how often."""
    found: Counter[int] = Counter()
    for task, often in tasks:
        for row in task.rows:
            found[row] += often
        if task.calls:
            found[task.call] += often * task.calls
    return found


def of_class(program: Program) -> Array:
    """How often each row of prices occurs in each class of ranks, shape (classes, rows), or (classes, rows, n) where copies differ."""
    n, calls = count(*(np.atleast_1d(one) for one in program.often)), len(program.kernels) + len(program.messages)
    found = np.zeros((program.classes, calls + len(HOST_TIMES), n))
    for op, rows, often in zip(program.ops, program.rows, program.often, strict=True):
        np.add.at(found[op.rank], list(rows), often)
        if not op.kernels:
            found[op.rank, calls + HOST_TIMES.index(op.host)] += np.multiply(often, op.calls)
    return found if n > 1 else found[..., 0]
