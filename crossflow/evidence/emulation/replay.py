"""A recorded run again, with other delays: the script's own time stays, collectives take what the changes make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossflow.base.errors import CrossflowError
from crossflow.evidence.emulation.delays import Delays
from crossflow.evidence.emulation.link import Fifo, Pace
from crossflow.evidence.emulation.measured import settled
from crossflow.evidence.emulation.record import CallRecord, CallRow, RankRecord, StepKind, StepRow, Sums, WaitRow, collectives, step_figures
from crossflow.evidence.emulation.what_if import LATENCY, Changes, Delay, read_what_if


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a rank did in a replay.

    Attributes
    ----------
    rank : its global rank.
    marks : when optimizers had stepped, and when backward passes were over. [s]
    sums : its collectives by kind and number of ranks.
    end : when it ended. [s]
    """

    rank: int
    marks: Mapping[StepKind, Sequence[float]]
    sums: Mapping[tuple[str, int], Sums]
    end: float

    @property
    def step_time(self) -> float | None:
        """Median time of a step, None where fewer than two ended. [s]"""
        found: float | None = step_figures(self.marks)["step_time_s"]
        return found

    def summary(self) -> dict[str, Any]:
        """Plain data, with the keys of the summary of an emulation."""
        exposed = sum(one.exposed for one in self.sums.values())
        return {"rank": self.rank, **step_figures(self.marks), "collectives": collectives(self.sums), "exposed_s": exposed}


def replay(record: CallRecord, what_if: Changes | str | None = None, delays: Delays | None = None) -> tuple[Replayed, ...]:
    """Every real rank of a record with other what-ifs, and with other delays where they are given.

    Parameters
    ----------
    record : of an emulation, or of a real run.
    what_if : changes in place of those of the record, None for its own.
    delays : in place of those of the record; its what-ifs come first.

    Raises
    ------
    CrossflowError
        For changes that do not fit the record.
    """
    changes = read_what_if(what_if) if isinstance(what_if, str) else what_if
    if changes is None:
        changes = read_what_if(record.what_if) if delays is None else Changes()
    changes = changes if delays is None else delays.what_if + changes
    changes.check_ranks(record.world_size, [one.rank for one in record.ranks])
    if record.real and delays is None and any(rule.word == LATENCY for rule in changes.rules):
        raise CrossflowError(f"what-if {changes.text}: a real run does not tell what of a call is latency; give --system or --delays")
    return tuple(_replayed(one, changes, delays) for one in settled(record).ranks)


def _replayed(rank: RankRecord, changes: Changes, delays: Delays | None) -> Replayed:
    queues, pace, sums = Fifo(), Pace(slow=changes.slow), dict[tuple[str, int], Sums]()
    ends: list[tuple[float, tuple[str, int]]] = []
    marks: dict[StepKind, list[float]] = {}
    now = before = 0.0
    for row in rank.rows:
        now, before = now + row.at - before, row.at
        if isinstance(row, CallRow):
            ranks = row.ranks or rank.groups[row.group].ranks
            delay = changes(row.op, _delay(row, ranks, delays)) if len(ranks) > 1 else Delay(time=0.0, latency=0.0)
            link = row.link if delays is None else delays.wire(row.op, rank.groups[row.group].name, ranks)
            _, end = queues.place(link, pace.arrival(now, ranks) + row.met, max(delay.time, row.fill))
            kind = row.op, len(ranks)
            one = sums.setdefault(kind, Sums())
            one.count, one.size, one.time = one.count + 1, one.size + row.size, one.time + delay.time
            ends.append((end, kind))
        elif isinstance(row, WaitRow):
            end, kind = max(ends[i] for i in row.of)
            sums[kind].exposed += max(end - now, 0.0)
            pace.reach(now)
            now, before = max(now, end), row.until
            pace.waited(now, end)
        elif isinstance(row, StepRow):
            marks.setdefault(row.of, []).append(now)
    return Replayed(rank=rank.rank, marks=marks, sums=sums, end=now)


def _delay(row: CallRow, ranks: tuple[int, ...], delays: Delays | None) -> Delay:
    return Delay(time=row.time, latency=row.latency) if delays is None else delays.base(row.op, row.size, ranks)
