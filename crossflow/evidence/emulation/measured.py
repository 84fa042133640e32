"""Calls of a real run as a replay needs them: what of a measured time was waiting for other ranks, and what the call itself took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from crossflow.base.errors import CrossflowError
from crossflow.evidence.emulation.record import CallRecord, CallRow, RankRecord, RecordRow

TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")  # which no rank leaves before all have come
CallPlace = tuple[Any, ...]  # of a call in the order of its group, equal on all its ranks
SameCall = dict[int, CallRow]  # the rows of one call by rank


def settled(record: CallRecord) -> CallRecord:
    """A real run as an emulation that takes as long: `met` and `time` of each call, and lanes for calls that ran at once.

    A call starts when the last of its ranks has come, as far as their clocks can be compared, and once its lane is free. A lane is what
    calls of one link share that end in the order in which they began. So a replay of the same times is the run.

    Raises
    ------
    CrossflowError
        Where ranks called different things at the same place.
    """
    if not record.real:
        return record
    meetings = dict[CallPlace, SameCall]()
    for rank in record.ranks:
        for place, row in _places(rank):
            meetings.setdefault(place, {})[rank.rank] = row
    for place, rows in meetings.items():
        _check(place, rows)
    origins = _origins(record.ranks, meetings.values())
    ranks = tuple(rank.model_copy(update={"rows": tuple(_rows(rank, meetings, origins))}) for rank in record.ranks)
    return record.model_copy(update={"ranks": ranks})


def _places(rank: RankRecord) -> Iterator[tuple[CallPlace, CallRow]]:
    """Calls in their order, each with its place: group and number; transfers are counted for each pair and direction."""
    counts = Counter[CallPlace]()
    for row in rank.rows:
        if isinstance(row, CallRow):
            group = rank.groups[row.group]
            kind = (group.name, group.ranks, row.ranks)
            counts[kind] += 1
            yield (*kind, counts[kind]), row


def _check(place: CallPlace, rows: SameCall) -> None:
    (first, row), *others = rows.items()
    for rank, other in others:
        if other.op != row.op and row.ranks is None:
            said = f"rank {first} calls {row.op} of {row.size} B, rank {rank} calls {other.op} of {other.size} B"
            raise CrossflowError(f"call {place[-1]} of group '{place[0]}': {said}; these ranks are not of one run")


def _origins(ranks: Iterable[RankRecord], meetings: Iterable[SameCall]) -> dict[int, float]:
    """When the rows of each rank begin on the clock of the first rank's machine; without ranks whose clocks are not known. [s]

    Clocks of two machines differ by an amount that lies between two bounds, since nobody leaves a call before the last has come: the
    middle of the narrowest bounds is taken.
    """
    known = {rank.rank: rank.began for rank in ranks}
    hosts = {rank.rank: rank.host for rank in ranks}
    here = next(iter(hosts.values()), "")
    bounds = {host: [-float("inf"), float("inf")] for host in hosts.values() if host != here}
    for rows in meetings:
        mine = [(known[rank] + row.at, row.time) for rank, row in rows.items() if hosts[rank] == here and row.op in TOGETHER]
        for rank, row in rows.items():
            for at, time in mine if hosts[rank] != here else ():
                least, most = bounds[hosts[rank]]
                begun = known[rank] + row.at
                bounds[hosts[rank]] = [max(least, begun - at - time), min(most, begun + row.time - at)]
    ahead = {here: 0.0} | {host: (least + most) / 2 for host, (least, most) in bounds.items() if most - least < float("inf")}
    return {rank: began - ahead[hosts[rank]] for rank, began in known.items() if hosts[rank] in ahead}


def _rows(rank: RankRecord, meetings: Mapping[CallPlace, SameCall], origins: Mapping[int, float]) -> Iterator[RecordRow]:
    """Rows of a rank with its calls split."""
    places, free = _places(rank), dict[str, float]()
    for row in rank.rows:
        if not isinstance(row, CallRow):
            yield row
            continue
        place, _ = next(places)
        came = [origins[one] + other.at for one, other in meetings[place].items() if one in origins]
        last = max(came) - origins[rank.rank] if rank.rank in origins else row.at
        met, end = min(last - row.at, row.time), row.at + row.time
        link = next(lane for i in count(1) if free.get(lane := row.link if i == 1 else f"{row.link}#{i}", 0.0) <= end)
        begin, free[link] = max(row.at + met, free.get(link, 0.0)), end
        yield row.model_copy(update={"link": link, "met": met, "time": max(end - begin, 0.0)})
