"""Tasks of a program: what runs on its streams once blocks are written out, classes meet and the host launches every kernel."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.program.blocks import CopyPlaces
from crossflow.program.kernels import Pass
from crossflow.program.order import in_order
from crossflow.program.program import HOST, HOST_TIMES, HostTime, Program

TaskStream = tuple[int, str]  # class of ranks, and name


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """An operation as it runs: that of one copy of its block, on one class of ranks.

    Attributes
    ----------
    place, copy : operation of the program, and copy of its block.
    rank : class of ranks.
    after : copies that it waits for.
    meets : meeting that it takes part in, None for most.
    """

    place: int
    copy: int
    rank: int
    after: tuple[int, ...]
    meets: Hashable = None


def copies(program: Program, most: int | None = None) -> list[Copy]:
    """Operations with blocks written out, of which `most` copies."""
    found = []
    if not program.blocks:
        meetings = [(op.meets, 0) if op.meets else None for op in program.ops]
        pairs = enumerate(zip(program.ops, meetings, strict=True))
        return [Copy(place=i, copy=0, rank=op.rank, after=op.after, meets=meets) for i, (op, meets) in pairs]
    places = program.places if most is None else CopyPlaces.of(len(program.ops), program.blocks, most)
    for place, copy in places:
        op = program.ops[place]
        after = [places.at(j, copy) if places.together(j, place) else places.end(j) for j in op.after]
        after += [places.at(j, copy) for j in op.paired]
        after += [places.at(j, copy - 1) for j in op.carried if copy]
        meets = (op.meets, copy) if op.meets else None
        found.append(Copy(place=place, copy=copy, rank=op.rank, after=tuple(sorted(set(after))), meets=meets))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What occupies streams, from the moment when all of them are free and all that it waits for has ended.

    Attributes
    ----------
    copies : what it runs, or launches; several of a meeting.
    part : which task of its operation, in order.
    streams : several of a meeting.
    rows : rows of the table of times that it takes (`PriceRows`), one after the other.
    calls : calls of the host, each of which takes the row `call`. [1]
    after : tasks that it waits for, but for those before it on its streams.
    edges : all tasks that it waits for.
    """

    copies: tuple[int, ...]
    part: int
    streams: tuple[TaskStream, ...]
    rows: tuple[int, ...]
    calls: int
    call: int
    after: tuple[int, ...]
    edges: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PriceRows:
    """Rows of the table of times: kernels, messages, calls of the host (`HOST_TIMES`); with a host that launches, parts of every kernel.

    A kernel of several launches starts with the first of them, and its last part waits for the last of them.
    """

    kernels: int
    messages: int

    def call(self, time: HostTime = "kernel") -> int:
        """Row of a call of the host that takes one of its times."""
        return self.kernels + self.messages + HOST_TIMES.index(time)

    def issues(self, rows: Sequence[int]) -> bool:
        """Whether rows are launches of kernels."""
        return any(self.part(FIRST, 0) <= row < self.part(BODY, 0) for row in rows)

    def computes(self, rows: Sequence[int]) -> bool:
        """Whether rows are kernels, or parts of them."""
        return any(row < self.kernels or row >= self.part(BODY, 0) for row in rows)

    def part(self, which: int, kernel: int) -> int:
        """Row of a part of a kernel: its first launch, its further launches, all but the last of its time, and the last."""
        return self.kernels + self.messages + len(HOST_TIMES) + which * self.kernels + kernel


FIRST, FURTHER, BODY, TAIL = range(4)  # parts of kernels, in the order of their rows


@dataclass
class _TaskWriter:
    """Collects tasks while copies are walked in order."""

    program: Program
    launched: bool
    copies_: list[tuple[int, ...]] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    streams: list[tuple[TaskStream, ...]] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    calls: list[tuple[int, int]] = field(default_factory=list)
    after: list[set[int]] = field(default_factory=list)
    edges: list[set[int]] = field(default_factory=list)
    last: dict[TaskStream, int] = field(default_factory=dict)
    meetings: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = PriceRows(kernels=len(self.program.kernels), messages=len(self.program.messages))
        self.several = [isinstance(one, Pass) and bool(np.any(np.asarray(one.launches) != 1)) for one in self.program.kernels]
        sizes = self.program.ranks
        there = [one.time is not None or bool(np.any(np.asarray(one.size) > 0)) for one in self.program.messages]
        reach = [any(sizes[axis] > 1 for axis in one.axes) for one in self.program.messages]
        self.sends = [sent and several for sent, several in zip(there, reach, strict=True)]

    def add(
        self, copy: int, part: int, stream: TaskStream, rows: tuple[int, ...], after: set[int], *, calls: int = 0, host: HostTime = "kernel"
    ) -> int:
        """Add a task behind the others of its stream; its number."""
        number = len(self.rows)
        before = {self.last[stream]} if stream in self.last else set()
        self.copies_.append((copy,))
        self.parts.append(part)
        self.streams.append((stream,))
        self.rows.append(rows)
        self.calls.append((calls, self.numbers.call(host)))
        self.after.append(after)
        self.edges.append(after | before)
        self.last[stream] = number
        return number

    def join(self, number: int, copy: int, stream: TaskStream, after: set[int]) -> None:
        """Let one more class take part in a meeting."""
        self.copies_[number] += (copy,)
        self.streams[number] += (stream,)
        self.after[number] |= after
        self.edges[number] |= after | ({self.last[stream]} if stream in self.last else set())
        self.last[stream] = number

    def run(self, number: int, copy: Copy, after: set[int]) -> int:
        """Tasks of an operation; the last of them."""
        op = self.program.ops[copy.place]
        stream, host = (copy.rank, op.stream), (copy.rank, HOST)
        if op.message is None:
            if not op.kernels:
                return self.add(number, 0, stream, (), after, calls=op.calls, host=op.host)
            if self.launched and not op.calls:
                return self._kernels(number, op.kernels, stream, host, after)
            issued = {self.add(number, 0, host, (), set(), calls=op.calls)} if self.launched else set()
            return self.add(number, len(issued), stream, op.kernels, after | issued)
        part = 0
        if self.launched and self.sends[op.message]:
            after, part = after | {self.add(number, 0, host, (), set(), calls=1)}, 1
        if copy.meets in self.meetings:
            self.join(self.meetings[copy.meets], number, stream, after)
            return self.meetings[copy.meets]
        task = self.add(number, part, stream, (self.numbers.kernels + op.message,), after)
        if copy.meets is not None:
            self.meetings[copy.meets] = task
        return task

    def _kernels(self, number: int, kernels: Sequence[int], stream: TaskStream, host: TaskStream, after: set[int]) -> int:
        """Kernels that the host launches one by one."""
        part = 0
        for kernel in kernels:
            pairs = ((FIRST, BODY), (FURTHER, TAIL)) if self.several[kernel] else ((FIRST, None),)
            for launch, runs in pairs:
                issued = self.add(number, part, host, (self.numbers.part(launch, kernel),), set())
                row = kernel if runs is None else self.numbers.part(runs, kernel)
                last = self.add(number, part + 1, stream, (row,), after | {issued})
                after, part = {last}, part + 2
        return last


def tasks_of(program: Program, runs: Sequence[Copy], *, launched: bool) -> tuple[list[Task], list[int]]:
    """Tasks of copies, in an order that respects what each waits for, and for every copy its last task.

    Parameters
    ----------
    launched : whether a host launches every kernel and every message, in the order of its class.

    Raises
    ------
    ValueError
        When classes wait for each other in a circle.
    """
    writer = _TaskWriter(program=program, launched=launched)
    last: list[int] = []
    for number, copy in enumerate(runs):
        last.append(writer.run(number, copy, {last[j] for j in copy.after}))
    tasks = [
        Task(
            copies=writer.copies_[i], part=writer.parts[i], streams=writer.streams[i], rows=writer.rows[i],
            calls=writer.calls[i][0], call=writer.calls[i][1],
            after=tuple(sorted(writer.after[i])), edges=tuple(sorted(writer.edges[i])),
        )
        for i in range(len(writer.rows))
    ]  # fmt: skip
    if not writer.meetings:
        return tasks, last
    order = list(in_order(writer.edges))
    if len(order) < len(tasks):
        stuck = sorted({program.ops[runs[tasks[i].copies[0]].place].name for i in set(range(len(tasks))) - set(order)})
        raise ValueError(f"these operations wait for each other: {', '.join(stuck)}")
    at = {old: new for new, old in enumerate(order)}
    return ordered(tasks, order), [at[i] for i in last]


def ordered(tasks: Sequence[Task], order: Sequence[int]) -> list[Task]:
    """Tasks in another order that respects what each waits for."""
    at = {old: new for new, old in enumerate(order)}

    def moved(numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(at[i] for i in numbers))

    return [replace(tasks[i], after=moved(tasks[i].after), edges=moved(tasks[i].edges)) for i in order]
