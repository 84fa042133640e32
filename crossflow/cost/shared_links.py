"""Streams of messages of one device that overlap on the same links, and what both take longer.

A message keeps the links of a tier (inside a node, or between nodes) busy for a share d of the time that it takes alone: what a message of
twice the size takes longer. In this share it sends at the full rate, and else waits for latencies, which keep nothing busy. While two
messages both send, each has half of the rate, which is max-min fair [1]_.

Two streams that take T1 and T2 alone, and R together on links of their own, overlap for O = T1 + T2 - R, since always at least one of
them goes on. Their messages lie evenly in their times, and what they send in those of the messages. Messages of time t1 and t2 then meet
for O (t1 / T1) (t2 / T2), both send in the share c = d1 d2 of that, and both streams take longer by so much. Four laws follow. Streams
never end sooner than alone. They never end later than one after the other, as no more than O is added. No tier carries more than it can:
for R = max(T1, T2) = T what is left of the tier's time is at least (T - b1) (T - b2) / T >= 0, with what they send, b = d t; a larger R
leaves more. And a longer latency never ends both sooner: with R = T1 >= T2 what is added is b1 b2 / T1, which falls by no more than T1
grows.

Messages of the first stream may hide beside kernels that leave them the time s before they would block, s <= t1 in all. Where the second
stream is under way they add c t1 - s, and meet as much of the second as goes on meanwhile: O (t2 / T2) (c t1 - s) / (T1 - s). Where the
device waits for its host, that much is not added. In both cases the tier's time for the bytes of both is the least.

References
----------
.. [1] Bertsekas and Gallager, "Data Networks", 2nd ed., 1992, Sec. 6.5.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from crossflow.base.arrays import Array, share_of

# What is kept of messages, the first axis of `LinkUse`: their time inside a node and between nodes, for how long the former keep the links
# inside busy, and for how long the latter keep those between nodes and those inside. [s]
INSIDE, OUTSIDE, INSIDE_BUSY, OUTSIDE_BUSY, BESIDE_BUSY = range(5)
USES = 5
ROUNDING = 1e-12  # by which a tier may be busy longer than streams take
LinkUse = Array  # shape (USES, ..., n)


NOTHING = np.zeros(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkStream:
    """What a device does one after the other, and the messages in it; arrays of shape (..., n)."""

    time: Array  # of all of it. [s]
    use: LinkUse  # of its messages, shape (USES, ..., n). [s]
    # by how much longer messages inside a node and between nodes could be that hide beside kernels, at most as much as they take, shape
    # (2, ..., n)
    spare: Array = field(default_factory=lambda: np.zeros((2, 1)))
    idle: Array = field(default_factory=lambda: NOTHING)  # of its time, what the device waits for its host. [s]

    @property
    def under_way(self) -> tuple[Array, Array]:
        """Time in which a message inside a node is under way, and one between nodes. [s]"""
        return np.minimum(self.use[INSIDE], self.time), np.minimum(self.use[OUTSIDE], self.time)

    @property
    def busy(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Share of the time of messages inside a node, and of those between nodes, in which they keep both tiers' links busy. [1]"""
        within, out, beside = (
            np.minimum(share_of(self.use[i], self.use[of]), 1.0) if self.use[i].any() else NOTHING
            for i, of in ((INSIDE_BUSY, INSIDE), (OUTSIDE_BUSY, OUTSIDE), (BESIDE_BUSY, OUTSIDE))
        )
        return (within, NOTHING), (beside, out)


def longest_busy(*uses: LinkUse) -> Array:
    """For how long messages keep the busiest tier busy, which no step can be shorter than. [s]"""
    whole = sum(uses[1:], uses[0])
    return np.asarray(np.maximum(whole[INSIDE_BUSY] + whole[BESIDE_BUSY], whole[OUTSIDE_BUSY]))


def longer(one: LinkStream, other: LinkStream, apart: Array) -> Array:
    """What two streams take longer that overlap, and would take the time `apart` together on links of their own. [s]"""
    return beside(one, other, apart)[0]


def beside(one: LinkStream, other: LinkStream, apart: Array) -> tuple[Array, LinkStream]:
    """The same, and both as one stream. Only the first has kernels beside which its messages hide, and a host that it waits for."""
    if not (one.use.any() and other.use.any()):
        shape = np.broadcast_shapes(one.time.shape, other.time.shape, apart.shape)
        return np.zeros(shape), LinkStream(time=apart, use=one.use + other.use, spare=one.spare, idle=one.idle)
    finite = np.isfinite(one.time) & np.isfinite(other.time) & np.isfinite(apart)
    overlap = np.where(finite, np.clip(one.time + other.time - apart, 0.0, np.minimum(one.time, other.time)), 0.0)
    use, added = one.use + other.use, np.zeros(overlap.shape)
    mine_by_tier = [(i, *each) for i, each in enumerate(zip(one.under_way, one.busy, one.spare, strict=True)) if each[0].any()]
    theirs_by_tier = [(i, *each) for i, each in enumerate(zip(other.under_way, other.busy, strict=True)) if each[0].any()]
    for first, mine, kept, spare in mine_by_tier:
        for second, theirs, held in theirs_by_tier:
            slower = np.maximum(kept[0] * held[0], kept[1] * held[1])  # share of the time in which both send on one tier
            if first != second and not slower.any():  # on links of their own
                continue
            meets = overlap * share_of(theirs, other.time)  # time of the other's messages while the first goes on
            absorbed = np.minimum(spare, slower * mine)
            added = added + meets * share_of(slower * mine - absorbed, one.time - absorbed)
            met = meets * share_of(mine, one.time)
            if first == second:  # both are under way at once, and both keep the links busy
                use[first] += (slower - 1.0) * met
            else:
                use[first] += slower * met
                use[second] += slower * met
    with np.errstate(invalid="ignore"):
        least = np.where(finite, longest_busy(one.use, other.use) - apart, 0.0)
    found = np.minimum(np.maximum(added - one.idle, np.where(least > ROUNDING * apart, least, 0.0)), overlap)
    return found, LinkStream(time=apart + found, use=use, spare=one.spare, idle=np.maximum(one.idle - added, 0.0))
