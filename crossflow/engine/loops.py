"""Loops: an order of tasks in which the copies of every block that repeats stand together.

A block is a loop where each of its copies can run before the next begins. Classes of ranks may also pass through it one after the
other, such as where one meets the others before it and another behind it: then the block is several loops. Two blocks whose copies
are paired are one loop where no copy of the second waits for the last of the first.

Operations of a block have a level: those that wait for the last copy of others of a block, by whatever path, are on a higher one, and
each level of a block is a loop. What an operation waits for in the loop of a lower level needs no edge where its first copy waits for
it too; elsewhere both belong to one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Index
from crossflow.engine.tasks import Copy, Task, ordered
from crossflow.program.blocks import COPIES, CopyPlaces
from crossflow.program.program import Program


@dataclass(frozen=True, kw_only=True)
class Region:
    """Tasks of three copies of a loop.

    Attributes
    ----------
    first, second, third : first task of each copy.
    times : how often the second runs. [1]
    """

    first: int
    second: int
    third: int
    times: int | Index


@dataclass(frozen=True, kw_only=True)
class _CopyTask:
    """A task among those of its strand, which differ in their copy alone; its block is the first of those that are paired, -1 outside."""

    block: int
    strand: tuple[int, int]
    copy: int


def with_loops(program: Program, runs: Sequence[Copy], tasks: Sequence[Task]) -> tuple[Sequence[Task], list[Region]] | None:
    """Tasks of three copies of every block in such an order, and their loops; None where there is no such order."""
    block = _blocks(program)
    parts = [_part(block, runs[task.copies[0]], i, task.part) for i, task in enumerate(tasks)]
    if all(part.block < 0 for part in parts):
        return tasks, []
    level = _levels(tasks, parts, len(program.blocks) + program.classes)
    if level is None:
        return None
    order = sorted(range(len(tasks)), key=lambda i: (level[parts[i].strand], parts[i].block, parts[i].copy, i))
    begin: dict[tuple[int, int], list[int]] = {}
    for at, i in enumerate(order):
        part = parts[i]
        copies = begin.setdefault((level[part.strand], part.block), [])
        if part.block >= 0 and len(copies) == part.copy:
            copies.append(at)
    found = [
        Region(first=copies[0], second=copies[1], third=copies[2], times=program.blocks[i].count - 2)
        for (_, i), copies in begin.items()
        if i >= 0
    ]
    return ordered(tasks, order), found


def _blocks(program: Program) -> list[int]:
    """The block of every operation, of those that are paired the first; -1 outside and where there is no copy between first and last."""
    of = CopyPlaces.of(len(program.ops), program.blocks, COPIES).block.tolist()
    first = list(range(len(program.blocks)))
    for place, op in enumerate(program.ops):
        for j in op.paired:
            one, other = sorted((first[of[place]], first[of[j]]))
            first = [one if i == other else i for i in first]
    return [first[i] if i >= 0 and np.min(program.blocks[i].count) >= COPIES else -1 for i in of]


def _part(block: Sequence[int], run: Copy, number: int, part: int) -> _CopyTask:
    mine = block[run.place]
    return _CopyTask(block=mine, strand=(run.place, part) if mine >= 0 else (-1, number), copy=run.copy if mine >= 0 else 0)


StrandLevels = dict[tuple[int, int], int]  # of every strand, one task outside blocks


def _levels(tasks: Sequence[Task], parts: Sequence[_CopyTask], rounds: int) -> StrandLevels | None:
    """Levels, even in blocks and odd outside; None where none are found in so many rounds."""
    level = {part.strand: 0 if part.block >= 0 else -1 for part in parts}
    for _ in range(rounds):
        if not _raised(tasks, parts, level):
            return None
        apart = _apart(tasks, parts, level)
        if not apart:
            return level
        for one, other in apart:
            level[one] = max(level[one], level[other])
    return None


def _raised(tasks: Sequence[Task], parts: Sequence[_CopyTask], level: StrandLevels) -> bool:
    """Raise levels to what tasks wait for; whether that comes to an end."""
    for _ in range(len(level) + 1):
        before = dict(level)
        for task, part in zip(tasks, parts, strict=True):
            for j in task.edges:
                level[part.strand] = max(level[part.strand], level[parts[j].strand] + _rise(parts[j], part))
        if level == before:
            return True
    return False


def _rise(one: _CopyTask, other: _CopyTask) -> int:
    """Levels between a task and another that waits for it."""
    if one.block < 0 or other.block < 0:
        return int(one.block >= 0) + int(other.block >= 0)
    return 0 if one.block == other.block and one.copy <= other.copy else 2


def _apart(tasks: Sequence[Task], parts: Sequence[_CopyTask], level: StrandLevels) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Strands on different levels, one of which waits for the other in each copy, but not its first copy for the second of the other."""
    at = {(part.strand, part.copy): i for i, part in enumerate(parts)}
    waits: dict[int, set[int]] = {}
    for task, part in zip(tasks, parts, strict=True):
        for j in task.edges if part.block >= 0 and part.copy == 1 else ():
            one = parts[j]
            if one.block == part.block and one.copy <= 1 and level[one.strand] < level[part.strand]:
                waits.setdefault(at[part.strand, 0], set()).add(at[one.strand, 1])
    return [(parts[j].strand, parts[i].strand) for i, needed in waits.items() for j in needed - _before(tasks, i, min(needed))]


def _before(tasks: Sequence[Task], last: int, first: int) -> set[int]:
    """Tasks from the first that have to end before the last begins."""
    found, todo = set[int](), [last]
    while todo:
        for j in tasks[todo.pop()].edges:
            if j >= first and j not in found:
                found.add(j)
                todo.append(j)
    return found
