"""Jobs of more ranks than memory holds: every trace is reduced to what its device did, and some ranks are read whole for all.

The trace of a rank is read as a stream and reduced to the begins and ends of its works before the next one is read. This gives where the
step of every rank goes, and who waits for whom. Ranks that run the same sequence of collectives are alike. One of them, in the middle of
those that come early and late, is read whole and stands for the others in a replay: each comes to its collectives with it, so much
earlier or later as was measured. Ranks that keep others waiting, with those of their smallest group, stand for themselves; so do the
slowest rank and those that begin first and last. Where the collectives of alike ranks do not meet, nobody is seen to wait for the rank
with most to do, so it stands for itself, too.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossflow.answers.workers import in_order, workers
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.evidence.replay.breakdown import RankShare, RankWorks, launched_late, mean_shares, share_of
from crossflow.evidence.replay.clocks import ClockFit, RankClock, by_clock, clocks_of
from crossflow.evidence.replay.critical import LateRank
from crossflow.evidence.replay.edges import edges_of
from crossflow.evidence.replay.events import is_nsight, traces_in
from crossflow.evidence.replay.graph import NONE, ManyRanks
from crossflow.evidence.replay.kineto import RankTrace, TraceHead, Window, one_by_one, one_job, read_traces
from crossflow.evidence.replay.matching import MatchedCollectives, RankCollectives, collectives_of, matched

CULPRITS = 3  # ranks that keep others waiting, which are read whole
SMALL = 16  # ranks of a group that are read whole with one of them that keeps others waiting
MOST_WHOLE = 40  # ranks that are read whole


@dataclass(frozen=True, kw_only=True, eq=False)
class RankDigest:
    """What is kept of the trace of a rank; times from its own first event.

    Attributes
    ----------
    head, device, notes : as the trace has them.
    origin : when its time began, by its clock. [s]
    windows : its steps.
    works : what its device did.
    collectives : of its works.
    events : rows of the trace that were kept while it was read. [1]
    """

    head: TraceHead
    device: str
    notes: tuple[str, ...]
    origin: float
    windows: tuple[Window, ...]
    works: RankWorks
    collectives: RankCollectives
    events: int


@dataclass(frozen=True, kw_only=True, eq=False)
class AlikeRanks:
    """Ranks that run the same sequence of collectives.

    Attributes
    ----------
    rank : that is read whole and stands for the others.
    numbers : of those that it stands for, itself included.
    shares : where the mean step of each goes, the same order.
    """

    rank: int
    numbers: tuple[int, ...]
    shares: tuple[RankShare, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankCrowd:
    """All ranks of a job of which some were read whole.

    Attributes
    ----------
    many : their collectives, and which rank of the graph stands for each.
    shares : where the mean step of every rank goes, by rank.
    steps : times of the steps of every rank. [s]
    late : ranks that keep others waiting, the worst first.
    alike : groups of ranks, each with the one that stands for it.
    world : ranks of the job.
    notes : what had to be assumed, as sentences.
    """

    many: ManyRanks
    shares: tuple[RankShare, ...]
    steps: Mapping[int, tuple[float, ...]]
    late: tuple[LateRank, ...]
    alike: tuple[AlikeRanks, ...]
    world: int
    notes: tuple[str, ...]


def read_crowd(paths: Sequence[Path], jobs: int = 1) -> tuple[tuple[RankTrace, ...], RankCrowd | None]:
    """Traces of the ranks that stand for all, by rank, and what is known of all; all traces and None where crossflow wrote them.

    Parameters
    ----------
    jobs : processes that read files.

    Raises
    ------
    SpecError, CrossflowError
        As `read_traces`.
    """
    files, left = _files_of(paths)
    if exports := [path for path in files if is_nsight(path)]:
        raise CrossflowError(f"{exports[0]}: exports of Nsight Systems are read whole; give --whole {len(files)}, or fewer of them")
    digests, told = _ordered([one for found in _digests(files, jobs) for one in found])
    if digests[0].head.modelled:
        return read_traces(paths), None
    numbers = tuple(one.head.rank for one in digests)
    zero = min(one.origin for one in digests)
    digests = [_by(one, RankClock(offset=one.origin - zero)) for one in digests]
    fit = clocks_of([one.collectives for one in digests], numbers)
    digests = [_by(one, clock) for one, clock in zip(digests, fit.clocks, strict=True)]
    found, odd = matched([one.collectives for one in digests])
    digests = _waiting(digests, found)
    steps = [[share_of(one.head.rank, one.works, each.start, each.end) for each in one.windows] for one in digests]
    shares = mean_shares([share for mine in steps for share in mine])
    late = _late(digests, found)
    whole, like = _chosen(digests, found, shares, late)
    traces = _whole(files, digests, whole, zero, fit)
    many = ManyRanks(collectives=tuple(one.collectives for one in digests), numbers=numbers, like=like, whole=whole)
    alike = [
        AlikeRanks(rank=numbers[place], numbers=tuple(numbers[i] for i in mine), shares=tuple(shares[i] for i in mine))
        for at, place in enumerate(whole) if (mine := np.flatnonzero(like == at).tolist())
    ]  # fmt: skip
    notes = (*_joined_notes(digests), *left, *told, *fit.notes, *odd, *_told(digests, many))
    times = {one.head.rank: tuple(each.time for each in mine) for one, mine in zip(digests, steps, strict=True)}
    world = max(len(digests), *(one.head.world for one in digests))
    return traces, RankCrowd(many=many, shares=shares, steps=times, late=late, alike=tuple(alike), world=world, notes=notes)


# -------------------------------------------------------------------------------------------- reading


def _files_of(paths: Iterable[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """Files at some paths, those of folders one by one, so that several processes may read them; and what was left out, as sentences."""
    found, left = list[Path](), list[str]()
    for path in paths:
        inside = traces_in(path) if path.is_dir() else ([path], [])
        found += inside[0]
        left += [one.name for one in inside[1]]
    return found, (f"these files hold no trace and were left out: {', '.join(left)}",) if left else ()


def _digests(files: Sequence[Path], jobs: int) -> Iterator[list[RankDigest]]:
    """Digests of the ranks of every file, in order."""
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(workers(min(jobs, len(files))))
        yield from in_order(here.completed(digests_at, files))


def digests_at(path: Path) -> list[RankDigest]:
    """Digests of the ranks at a path."""
    return [digest_of(trace) for trace in one_by_one(path)]


def digest_of(trace: RankTrace) -> RankDigest:
    """What is kept of a trace."""
    works = trace.works
    edges = edges_of(trace)
    late = launched_late(edges, edges.points.start, works.start)
    kept = RankWorks(
        starts=works.start, ends=works.end, come=works.start, kind=works.kind.astype(np.int8), collective=works.collective.copy(), late=late
    )
    events = len(trace.ops) + len(trace.calls) + len(trace.marks) + len(works)
    return RankDigest(
        head=trace.head, device=trace.device, notes=trace.notes, origin=trace.origin, windows=trace.windows, works=kept,
        collectives=collectives_of(trace), events=events,
    )  # fmt: skip


def _ordered(digests: Sequence[RankDigest]) -> tuple[list[RankDigest], tuple[str, ...]]:
    """Digests by rank, and what had to be assumed."""
    ranks = [one.head.rank if one.head.ranked else place for place, one in enumerate(digests)]
    digests = [replace(one, head=replace(one.head, rank=rank)) for rank, one in zip(ranks, digests, strict=True)]
    begun = [replace(one.head, span=(one.head.span[0] + one.origin, one.head.span[1] + one.origin)) for one in digests]
    order, told = one_job(begun)
    return [digests[place] for place in order], told


def _by(one: RankDigest, clock: RankClock) -> RankDigest:
    """A digest by another clock."""
    if clock == RankClock():
        return one
    works, mine = one.works, one.collectives
    starts = clock.at(works.starts)
    windows = [replace(each, start=float(clock.at(np.array(each.start))), end=float(clock.at(np.array(each.end)))) for each in one.windows]
    return replace(
        one, windows=tuple(windows), works=replace(works, starts=starts, ends=clock.at(works.ends), come=starts),
        collectives=replace(mine, start=clock.at(mine.start), end=clock.at(mine.end)),
    )  # fmt: skip


def _whole(files: Sequence[Path], digests: Sequence[RankDigest], whole: Sequence[int], zero: float, fit: ClockFit) -> tuple[RankTrace, ...]:
    """The traces of some ranks, by the clock of all."""
    names = {digests[place].head.source: place for place in whole}
    found = {}
    held = [path for path in files if any(name == str(path) or name.startswith(f"{path}:") for name in names)]
    for trace in read_traces(held, names):
        place = names[trace.source]
        clock = fit.clocks[place]
        mine = by_clock(trace, RankClock(offset=clock.offset + clock.rate * (trace.origin - zero), rate=clock.rate))
        found[place] = replace(mine, rank=digests[place].head.rank, world=digests[place].head.world, notes=())
    return tuple(found[place] for place in whole)


# -------------------------------------------------------------------------------------------- what all ranks say


def _waiting(digests: Sequence[RankDigest], found: Sequence[MatchedCollectives]) -> list[RankDigest]:
    """Digests whose works know when the last rank came to each collective."""
    come = [one.works.starts.copy() for one in digests]
    for one in found:
        last = _starts(digests, one).max(axis=0)
        for rank, places in zip(one.ranks.tolist(), one.places, strict=True):
            mine = digests[rank].collectives.work[places]
            come[rank][mine] = np.minimum(last, digests[rank].works.ends[mine])
    return [replace(one, works=replace(one.works, come=moments)) for one, moments in zip(digests, come, strict=True)]


def _starts(digests: Sequence[RankDigest], one: MatchedCollectives) -> Array:
    """When every rank of a group came to each of its collectives, shape (ranks, collectives). [s]"""
    return np.stack([digests[rank].collectives.start[places] for rank, places in zip(one.ranks.tolist(), one.places, strict=True)])


def _late(digests: Sequence[RankDigest], found: Sequence[MatchedCollectives]) -> tuple[LateRank, ...]:
    """Ranks that keep others waiting, the worst first."""
    count, waited = np.zeros(len(digests), dtype=np.intp), np.zeros(len(digests))
    for one in found:
        starts = _starts(digests, one)
        last = one.ranks[starts.argmax(axis=0)]
        np.add.at(count, last, 1)
        np.add.at(waited, last, (starts.max(axis=0) - starts).sum(axis=0))
    order = [place for place in np.argsort(-waited, kind="stable").tolist() if count[place]]
    return tuple(LateRank(rank=digests[place].head.rank, collectives=int(count[place]), time=float(waited[place])) for place in order)


def _chosen(
    digests: Sequence[RankDigest], found: Sequence[MatchedCollectives], shares: Sequence[RankShare], late: Sequence[LateRank]
) -> tuple[tuple[int, ...], Index]:
    """Places of the ranks that are read whole, and the place among them of the rank that stands for each, -1 for none."""
    place_of = {one.head.rank: place for place, one in enumerate(digests)}
    culprits = [place_of[one.rank] for one in late[:CULPRITS] if one.time > 0]
    begins = np.array([one.windows[0].start for one in digests])
    usual = [int(np.argmax([one.time for one in shares])), int(begins.argmin()), int(begins.argmax())]
    near = [rank for place in culprits for rank in _smallest(found, place)]
    groups = sorted(_alike(digests).values(), key=len, reverse=True)[: MOST_WHOLE // 2]
    meets = np.bincount(np.concatenate([[], *(one.ranks for one in found)]).astype(np.intp), minlength=len(digests))
    apart = [mine for mine in groups if any(meets[place] < max(len(digests[place].collectives.groups), 1) for place in mine)]
    busiest = [max(mine, key=lambda place: shares[place].parts["busy"]) for mine in apart]
    own = {*culprits, *busiest, *near}
    stands = [_middle([digests[place] for place in mine], mine, own) for mine in groups]
    kept = [*dict.fromkeys([*stands, *culprits, *busiest, *usual, *near])][:MOST_WHOLE]
    whole = tuple(sorted(kept))
    like = np.full(len(digests), NONE)
    for mine, stand in zip(groups, stands, strict=True):
        like[mine] = whole.index(stand)
    like[list(whole)] = np.arange(len(whole))
    return whole, like


def _smallest(found: Sequence[MatchedCollectives], place: int) -> list[int]:
    """Places of the ranks of the smallest group that a rank meets in, none where it is larger than `SMALL`."""
    mine = [one.ranks.tolist() for one in found if place in one.ranks]
    smallest: list[int] = min(mine, key=len, default=[])
    return smallest if len(smallest) <= SMALL else []


def _alike(digests: Sequence[RankDigest]) -> Mapping[tuple[str, int], list[int]]:
    """Places of ranks that run the same sequence of collectives in as many steps."""
    names: dict[str, int] = {}
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, one in enumerate(digests):
        numbers = np.array([names.setdefault(name, len(names)) for name in one.collectives.names], dtype=np.int32)
        sequence = hashlib.sha1(numbers[one.collectives.name].tobytes(), usedforsecurity=False).hexdigest()
        found[sequence, len(one.windows)].append(place)
    return found


def _middle(digests: Sequence[RankDigest], places: Sequence[int], other: set[int]) -> int:
    """The rank in the middle of those that come early and late, of those that do not stand for themselves where there are any."""
    starts = np.stack([one.collectives.start for one in digests])
    if not starts.shape[1]:
        starts = np.array([[one.windows[-1].end - one.windows[0].start] for one in digests])
    behind = (starts - np.median(starts, axis=0)).mean(axis=1)
    order: list[int] = np.argsort(np.abs(behind - np.median(behind)), kind="stable").tolist()
    return next((places[i] for i in order if places[i] not in other), places[order[0]])


# -------------------------------------------------------------------------------------------- what is told


def _told(digests: Sequence[RankDigest], many: ManyRanks) -> Iterator[str]:
    """How many ranks were read whole, and what this means for a replay."""
    stand, alone = int((many.like >= 0).sum()) - len(many.whole), int((many.like == NONE).sum())
    events = sum(one.events for one in digests)
    read = f"{len(digests):,} ranks with {events:,} events of hosts and devices were read, {len(many.whole)} of them whole"
    same = f"; in replays and advice these stand for {stand:,} that run the same collectives, which come to each with them as measured"
    yield f"{read}{same if stand else ''}"
    if alone:
        yield f"{alone:,} ranks run sequences of collectives of which no rank was read whole; they are in no replay"


def _joined_notes(digests: Sequence[RankDigest]) -> Iterator[str]:
    """Notes of all traces, those that differ in the name of the file as one."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in digests:
        for note in one.notes:
            found[note.replace(one.head.source, "{}")].append(one.head.source)
    for note, sources in found.items():
        more = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
        yield note.replace("{}", f"{sources[0]}{more}") if "{}" in note else f"{note} ({sources[0]}{more})" if more else note
