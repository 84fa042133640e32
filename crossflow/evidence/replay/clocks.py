"""Clocks of ranks, aligned by the collectives in which they meet: a collective ends on all of its ranks at once.

Every host has a clock of its own. Between hosts clocks differ by up to milliseconds, and drift apart by tens of microseconds a second,
so that a rank seems to come late, or a collective to end before it began. The time of a rank by the first rank's clock is a line in its
own time. Its offset is the median over all collectives, its slope the median of the slopes between pairs of them, so that half of the
ends may be far off [1]_.

References
----------
.. [1] Theil, "A rank-invariant method of linear and polynomial regression analysis", 1950; Sen, 1968: the median of slopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.evidence.replay.collectives import op_of
from crossflow.evidence.replay.kineto import DeviceWorks, HostSpans, RankTrace
from crossflow.evidence.replay.matching import MatchedCollectives, RankCollectives, collectives_of, matched

RankTimes = TypeVar("RankTimes", HostSpans, DeviceWorks)
ENDS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})  # which end on all ranks together
# Clocks that agree this well are left as they are: kernels of one collective end so far apart on devices of one host, whose clock is one.
AGREE = 20e-6  # [s]
SPREAD = 100e-6  # of the ends once aligned, beyond which they are no ends of one collective [s]
FEW, MANY = 8, 128  # collectives from which a drift is sought, and of a group that are looked at
ROUNDS = 20  # of the alternation between moments of collectives and lines of ranks
STILL = 5e-8  # change of every clock in a round at which it ends [s]
SURE = 4.0  # standard errors that a drift must have to count
NORMAL, PAIRED = 1.4826, 2.0  # standard deviation over median of magnitudes; standard error of the median of slopes, over the least one


@dataclass(frozen=True, kw_only=True)
class RankClock:
    """Time of a rank by the clock of the first one: ``offset + rate * time``.

    Attributes
    ----------
    offset : what is added. [s]
    rate : how fast the first rank's clock runs by that of this rank. [1]
    """

    offset: float = 0.0
    rate: float = 1.0

    def at(self, times: Array) -> Array:
        """Times by the first rank's clock. [s]"""
        return np.asarray(self.offset + self.rate * times)


@dataclass(frozen=True, kw_only=True)
class ClockFit:
    """Clocks of all ranks.

    Attributes
    ----------
    clocks : of every rank; all as they are where they agree, or nothing aligns them.
    notes : what was found, as sentences.
    """

    clocks: tuple[RankClock, ...]
    notes: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """Whether any clock is changed."""
        return any(one != RankClock() for one in self.clocks)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ends:
    """Ends of collectives that ranks share: rank, collective and end of every one, shape (ends,)."""

    rank: Index
    event: Index
    time: Array


def clocks_of(ranks: Sequence[RankCollectives], numbers: Sequence[int]) -> ClockFit:
    """Clocks of ranks that make the ends of their collectives agree.

    Parameters
    ----------
    ranks : their collectives, each by the clock of its rank.
    numbers : of the ranks, for messages.
    """
    same = ClockFit(clocks=(RankClock(),) * len(ranks))
    ends = _ends(ranks, matched(ranks)[0])
    if not len(ends.rank):
        return same
    middle = np.array([float(np.median(one.end)) if len(one) else 0.0 for one in ranks])
    offset, reached = _offsets(ends, len(ranks))
    fitted = _refined(ends, offset, middle, reached)
    apart = _apart(ends, fitted, middle)
    span = np.array([float(np.ptp(one.end)) if len(one) else 0.0 for one in ranks])
    if (np.abs(fitted[:, 0]) + np.abs(fitted[:, 1]) * 0.5 * span).max() <= AGREE:
        return same
    typical = float(np.median(apart[reached[ends.rank]]))
    if typical > SPREAD:
        said = f"ends of collectives differ by {1e6 * typical:.0f} us between ranks however their clocks are set; they are left as they are"
        return replace(same, notes=(said,))
    clocks = [RankClock(offset=float(c - s * m), rate=1.0 + float(s)) for (c, s), m in zip(fitted, middle, strict=True)]
    return ClockFit(clocks=tuple(clocks), notes=tuple(_notes(fitted, reached, numbers, typical, int(ends.event.max()) + 1)))


def _notes(fitted: Array, reached: Mask, numbers: Sequence[int], apart: float, events: int) -> list[str]:
    largest, drift = 1e6 * float(np.abs(fitted[:, 0]).max()), 1e6 * float(np.abs(fitted[:, 1]).max())
    drifts = f" and drift by up to {drift:.3g} us a second" if drift else ""
    of = f"of {int((np.abs(fitted[:, 0]) > AGREE).sum())} of {len(numbers)} ranks"
    how = f"aligned by the ends of {events:,} collectives, which then agree to {1e6 * apart:.2g} us (median)"
    found = [f"clocks {of} differ by up to {largest:,.4g} us from that of rank {numbers[0]}{drifts}; they are {how}"]
    if not reached.all():
        alone = [number for number, here in zip(numbers, reached.tolist(), strict=True) if not here]
        shared = f"{len(alone)} ranks, such as {alone[0]}, share no collective that ends together with rank {numbers[0]}"
        found.append(f"{shared}, directly or through others; their clocks are left as they are")
    return found


def _ends(ranks: Sequence[RankCollectives], found: Sequence[MatchedCollectives]) -> _Ends:
    """Ends of matched collectives that end together, of every group at most `MANY`, evenly taken."""
    rank, event, time, events = [], [], [], 0
    for one in found:
        chosen = np.flatnonzero([op_of(name.split("(")[0].partition("Kernel")[2] or name) in ENDS for name in one.names])
        chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, min(MANY, len(chosen))).astype(np.intp))] if len(chosen) else chosen
        for place, mine in zip(one.ranks.tolist(), one.places[:, chosen], strict=True):
            rank.append(np.full(len(chosen), place))
            event.append(events + np.arange(len(chosen)))
            time.append(ranks[place].end[mine])
        events += len(chosen)
    if not events:
        return _Ends(rank=np.zeros(0, dtype=np.intp), event=np.zeros(0, dtype=np.intp), time=np.zeros(0))
    return _Ends(rank=np.concatenate(rank), event=np.concatenate(event), time=np.concatenate(time))


def medians(group: Index, values: Array, count: int) -> Array:
    """Median of the values of every group, nan where it has none, shape (count,).

    >>> medians(np.array([0, 1, 0, 0, 1]), np.array([3.0, 1.0, 1.0, 2.0, 2.0]), 3)
    array([2. , 1.5, nan])
    """
    order = np.lexsort((values, group))
    sizes = np.bincount(group, minlength=count)
    first = np.cumsum(sizes) - sizes
    last = max(len(values) - 1, 0)
    held = np.concatenate([values[order], np.zeros(1)])
    low, high = (np.minimum(first + np.maximum(sizes + shift, 0) // 2, last) for shift in (-1, 0))
    return np.where(sizes > 0, 0.5 * (held[low] + held[high]), np.nan)


def _offsets(ends: _Ends, ranks: int) -> tuple[Array, Mask]:
    """Offset of every rank from the first with ends, going from rank to rank by the collectives that they share, and which were reached."""
    events = int(ends.event.max()) + 1
    offset, moment = np.full(ranks, np.nan), np.full(events, np.nan)
    offset[int(ends.rank.min())] = 0.0
    while True:
        known = ~np.isnan(offset[ends.rank])
        fresh = known & np.isnan(moment[ends.event])
        if fresh.any():
            found = medians(ends.event[fresh], (ends.time + offset[ends.rank])[fresh], events)
            moment = np.where(np.isnan(moment), found, moment)
        told = ~known & ~np.isnan(moment[ends.event])
        if not told.any():
            return np.nan_to_num(offset), ~np.isnan(offset)
        found = medians(ends.rank[told], (moment[ends.event] - ends.time)[told], ranks)
        offset = np.where(np.isnan(offset), found, offset)


def _refined(ends: _Ends, offset: Array, middle: Array, reached: Mask) -> Array:
    """Offset at the middle of its time, and drift, of every rank, shape (ranks, 2): moments of collectives and lines in turns. [s], [1]"""
    kept = reached[ends.rank]
    rank, event, time = ends.rank[kept], ends.event[kept], ends.time[kept]
    since = time - middle[rank]
    found = np.stack([offset, np.zeros(len(offset))], axis=1)
    events, first = int(event.max()) + 1, int(rank.min())
    for _ in range(ROUNDS):
        before = found
        moment = medians(event, time + found[rank, 0] + found[rank, 1] * since, events)
        left = moment[event] - time
        found = _lines(rank, since, left, len(offset))
        # The first rank's clock is the one that counts: all others are told by it.
        shift, drift = found[first]
        found = found - np.stack([shift + drift * (middle - middle[first]), np.full(len(found), drift)], axis=1)
        found[~reached] = 0.0
        if np.abs(found - before).max() < STILL:
            break
    return found


def _lines(rank: Index, since: Array, left: Array, ranks: int) -> Array:
    """A line through what is left of every rank: the median of slopes between ends half of all apart, and the median of the rest."""
    order = np.lexsort((since, rank))
    mine, at, value = rank[order], since[order], left[order]
    sizes = np.bincount(mine, minlength=ranks)
    first = np.cumsum(sizes) - sizes
    place = np.arange(len(mine)) - first[mine]
    paired = place < sizes[mine] // 2
    other = np.minimum(np.arange(len(mine)) + (sizes[mine] + 1) // 2, len(mine) - 1)
    length = at[other] - at
    usable = paired & (length > 0) & (sizes[mine] >= FEW)
    slopes = (value[other] - value)[usable] / length[usable]
    slope = np.nan_to_num(medians(mine[usable], slopes, ranks))
    rest = value - slope[mine] * at
    shift = np.nan_to_num(medians(mine, rest, ranks))
    noise = NORMAL * np.nan_to_num(medians(mine, np.abs(rest - shift[mine]), ranks))
    spread = np.sqrt(np.maximum(np.bincount(mine, at**2, ranks) - np.bincount(mine, at, ranks) ** 2 / np.maximum(sizes, 1), 0.0))
    error = np.divide(PAIRED * noise, spread, out=np.full(ranks, np.inf), where=spread > 0)
    sure = np.abs(slope) > SURE * error
    plain = np.nan_to_num(medians(mine, value, ranks))
    return np.stack([np.where(sure, shift, plain), np.where(sure, slope, 0.0)], axis=1)


def _apart(ends: _Ends, fitted: Array, middle: Array) -> Array:
    """How far every end is from the median of its collective, by the fitted clocks, shape (ends,). [s]"""
    told = ends.time + fitted[ends.rank, 0] + fitted[ends.rank, 1] * (ends.time - middle[ends.rank])
    return np.asarray(np.abs(told - medians(ends.event, told, int(ends.event.max()) + 1)[ends.event]))


def aligned(traces: Sequence[RankTrace]) -> tuple[RankTrace, ...]:
    """Traces by the clock of the first rank, as far as collectives tell; those whose clocks agree as they are."""
    if len(traces) < 2 or any(trace.modelled for trace in traces):
        return tuple(traces)
    fit = clocks_of([collectives_of(trace) for trace in traces], [trace.rank for trace in traces])
    found = [by_clock(trace, clock) for trace, clock in zip(traces, fit.clocks, strict=True)] if fit.moved else [*traces]
    return (replace(found[0], notes=(*found[0].notes, *fit.notes)), *found[1:])


def by_clock(trace: RankTrace, clock: RankClock) -> RankTrace:
    """A trace by another clock."""
    if clock == RankClock():
        return trace
    windows = [replace(one, start=float(clock.at(np.array(one.start))), end=float(clock.at(np.array(one.end)))) for one in trace.windows]
    return replace(
        trace, ops=_moved(trace.ops, clock), calls=_moved(trace.calls, clock), marks=_moved(trace.marks, clock),
        works=_moved(trace.works, clock), windows=tuple(windows),
    )  # fmt: skip


def _moved(spans: RankTimes, clock: RankClock) -> RankTimes:
    return replace(spans, start=clock.at(spans.start), end=clock.at(spans.end))
