"""A recorded run as a program: one step of a real rank, its own time as it was measured, its collectives as they are priced."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.cost.ranks import ELEMENT
from crossflow.evidence.emulation.record import CallRecord, CallRow, RankRecord, StepKind, StepRow, WaitRow, step_ends, warm
from crossflow.program.builder import ProgramBuilder
from crossflow.program.collectives import COLLECTIVES, PRICED
from crossflow.program.groups import DeviceGroup
from crossflow.program.kernels import Timed
from crossflow.program.program import NETWORK, Program

WORLD, OWN = "world", "script"
REPLAY = "replay the record instead (crossflow emulate --replay)"


def recorded_program(record: CallRecord, name: str = "record", rank: int | None = None) -> Program:
    """The step of median length of one rank of a record: the one that is named, or the only one.

    What the script did between its calls is one kernel after the other, each of the time that was measured. A collective is sent along
    the link for which it queued; what the script did after a wait follows what it waited for. On a system, collectives take what
    they take there, and all their ranks come at once.

    Raises
    ------
    CrossflowError
        Where there is no whole step, where it is not said which of several ranks is meant, and for what a program does not say.
    """
    one = _rank(record, rank)
    first, last = _step(one)
    rows, number = one.rows[first + 1 : last + 1], sum(isinstance(row, CallRow) for row in one.rows[: first + 1])
    members = {row.group: one.groups[row.group].ranks for row in rows if isinstance(row, CallRow)}
    groups = {f"group{i}": _group(ranks, record.world_size) for i, ranks in members.items() if 1 < len(ranks) < record.world_size}
    builder = ProgramBuilder(name=name, dtype="fp32", axes={WORLD: record.world_size}, groups=groups)
    sent: dict[int, int] = {}
    before: set[int] = set()  # what the script waits for before it goes on
    now = one.rows[first].at
    for row in rows:
        if row.at > now:
            before = {builder.compute(OWN, Timed(name=OWN, time=row.at - now), after=before)}
        now = row.until if isinstance(row, WaitRow) else row.at
        if isinstance(row, WaitRow):
            before |= {sent[call] for call in row.of if call in sent}
        elif isinstance(row, CallRow):
            many = len(members[row.group])
            if many > 1:
                sent[number] = _send(builder, row, WORLD if many == record.world_size else f"group{row.group}", before)
            number += 1
    return builder.build()


def _rank(record: CallRecord, asked: int | None) -> RankRecord:
    """A rank of a record, the only one where none is asked for."""
    known = {one.rank: one for one in record.ranks}
    listed = f"the record has rank{'s' if len(known) > 1 else ''} {', '.join(map(str, known))}"
    if asked is None and len(known) > 1:
        raise CrossflowError(f"a program is made of one rank, and {listed}; say which with --rank")
    if asked is not None and asked not in known:
        raise CrossflowError(f"--rank {asked}: {listed}")
    return record.ranks[0] if asked is None else known[asked]


def _step(rank: RankRecord) -> tuple[int, int]:
    """The step of median length, those of the first steps left out: the row before it, and its last one."""
    marks: dict[StepKind, list[int]] = {}
    for i, row in enumerate(rank.rows):
        if isinstance(row, StepRow):
            marks.setdefault(row.of, []).append(i)
    ends = step_ends(marks)
    steps = warm([*pairwise(ends)])
    if not steps:
        raise CrossflowError(f"the record has {len(ends)} steps; two or more are needed, between which one is whole")
    return sorted(steps, key=lambda step: rank.rows[step[1]].at - rank.rows[step[0]].at)[(len(steps) - 1) // 2]


def _group(ranks: Sequence[int], world: int) -> DeviceGroup:
    """A process group as devices that lie at equal distances, as those beside them do."""
    group = DeviceGroup.of(ranks, world)
    if group is None:
        listed = f"{', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''}"
        raise CrossflowError(f"ranks {listed} are a group that does not divide the world of {world} evenly; {REPLAY}")
    return group


def _send(builder: ProgramBuilder, row: CallRow, among: str, after: set[int]) -> int:
    """A collective of the script, as its network carries it."""
    if row.ranks is not None:
        raise CrossflowError(f"{row.op} between ranks {row.ranks[0]} and {row.ranks[1]}: transfers are not supported; {REPLAY}")
    collective: Any = PRICED.get(row.op, row.op)
    if collective not in COLLECTIVES:
        raise CrossflowError(f"'{row.op}' is no collective{did_you_mean(row.op, (*PRICED, *COLLECTIVES))}")
    size = float(ELEMENT if row.op == "barrier" else row.size)
    return builder.send(collective, size, [among], name=row.op, after=after, stream=f"{NETWORK} {row.link}")
