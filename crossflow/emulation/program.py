"""A recorded emulation as a program: one step of a real rank, its own time as it was measured, its collectives as they are priced."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from crossflow.emulation.delays import ELEMENT, PRICED
from crossflow.emulation.record import WARM_UP, CallRecord, CallRow, RankRecord, RecordRow, StepRow, WaitRow
from crossflow.errors import CrossflowError, did_you_mean
from crossflow.program.builder import ProgramBuilder
from crossflow.program.collectives import COLLECTIVES
from crossflow.program.groups import DeviceGroup
from crossflow.program.kernels import Timed
from crossflow.program.program import NETWORK, Program

WORLD, OWN = "world", "script"
REPLAY = "replay the record instead (crossflow emulate --replay)"


def recorded_program(record: CallRecord, name: str = "record") -> Program:
    """The step of median length of the one real rank of a record.

    What the script did between its calls is one kernel after the other, each of the time that was measured. A collective is sent along
    the link for which it queued; what the script did after a wait follows what it waited for. On a system, collectives take what
    they take there.

    Raises
    ------
    CrossflowError
        Where there is no whole step, where several ranks ran for real, and for what a program does not say.
    """
    if len(record.ranks) > 1:
        cure = f"emulate with --ranks {record.ranks[0].rank}"
        raise CrossflowError(f"a program is made of one real rank, and the record has {len(record.ranks)}; {cure}")
    (rank,) = record.ranks
    rows, begin = _step(rank)
    members = {row.group: rank.groups[row.group].ranks for row in rows if isinstance(row, CallRow)}
    groups = {f"group{i}": _group(ranks, record.world_size) for i, ranks in members.items() if 1 < len(ranks) < record.world_size}
    builder = ProgramBuilder(name=name, dtype="fp32", axes={WORLD: record.world_size}, groups=groups)
    numbers = _numbers(rank)
    sent: dict[int, int] = {}
    last: set[int] = set()  # what the script waits for before it goes on
    now = begin
    for row in rows:
        if row.at > now:
            last = {builder.compute(OWN, Timed(name=OWN, time=row.at - now), after=last)}
        now = row.until if isinstance(row, WaitRow) else row.at
        if isinstance(row, WaitRow):
            last |= {sent[number] for number in row.of if number in sent}
        elif isinstance(row, CallRow) and len(members[row.group]) > 1:
            among = WORLD if len(members[row.group]) == record.world_size else f"group{row.group}"
            sent[numbers[id(row)]] = _send(builder, row, among, last)
    return builder.build()


def _step(rank: RankRecord) -> tuple[Sequence[RecordRow], float]:
    """Rows of the step of median length, those of the first steps left out, and when it begins. [s]"""
    for kind in ("optimizer", "backward"):
        ends = [i for i, row in enumerate(rank.rows) if isinstance(row, StepRow) and row.of == kind]
        if ends:
            break
    steps = [*pairwise(ends)]
    steps = steps[WARM_UP:] or steps
    if not steps:
        raise CrossflowError(f"the record has {len(ends)} steps; two or more are needed, between which one is whole")
    first, last = sorted(steps, key=lambda step: rank.rows[step[1]].at - rank.rows[step[0]].at)[(len(steps) - 1) // 2]
    return rank.rows[first + 1 : last + 1], rank.rows[first].at


def _numbers(rank: RankRecord) -> dict[int, int]:
    """Place of every call among the calls, by the identity of its row."""
    calls = [row for row in rank.rows if isinstance(row, CallRow)]
    return {id(row): number for number, row in enumerate(calls)}


def _group(ranks: Sequence[int], world: int) -> DeviceGroup:
    """A process group as devices that lie at equal distances, as those beside them do."""
    stride = ranks[1] - ranks[0]
    if any(later - earlier != stride for earlier, later in pairwise(ranks)) or world % (stride * len(ranks)):
        listed = f"{', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''}"
        raise CrossflowError(f"ranks {listed} are a group that does not divide the world of {world} evenly; {REPLAY}")
    return DeviceGroup(ranks=len(ranks), stride=stride)


def _send(builder: ProgramBuilder, row: CallRow, among: str, after: set[int]) -> int:
    """A collective of the script, as its network carries it."""
    if row.ranks is not None:
        raise CrossflowError(f"{row.op} between ranks {row.ranks[0]} and {row.ranks[1]}: transfers are not supported; {REPLAY}")
    collective: Any = PRICED.get(row.op, row.op)
    if collective not in COLLECTIVES:
        raise CrossflowError(f"'{row.op}' is no collective{did_you_mean(row.op, (*PRICED, *COLLECTIVES))}")
    size = float(ELEMENT if row.op == "barrier" else row.size)
    return builder.send(collective, size, [among], name=row.op, after=after, stream=f"{NETWORK} {row.link}")
