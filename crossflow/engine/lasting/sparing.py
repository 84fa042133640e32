"""Spares and repairs as a queue: how often broken nodes find too few spares, how long they wait, and what a job lacks without them.

Outages of several kinds are in repair at once: of b nodes each, which break and come back together (1 of a node by itself, more of a rack,
a switch or a power feed), a in the mean, were there endless spares, and of which another follows at once with the probability q. Of
bursts at one moment, whose number is geometric, nodes in repair are negative binomial where repairs are exponential: their peakedness,
variance over mean, is 1 / (1 - q). Strikes that are g apart find e^(-g / repair) of those before them still in repair, which leaves
1 / (1 - q e^(-g / repair)), so that `again` is taken as so much less. The law of all nodes in repair follows a recursion [1]_, [2]_, of
which Panjer's [3]_ is that without a limit,

    n Q(n) = sum over kinds of b a (1 - q) F(n - b),   F(n) = Q(n) + q F(n - b)

A job that waits knows Q up to its spares S, Q / C with C = Q(0) + ... + Q(S). A strike that finds n of them taken lacks nodes where
n > S - b; the j-th of a burst finds (j - 1) b more, so that they are [F(S - b + 1) + ... + F(S)] / C of all. Of single nodes that is
Erlang's B [4]_. It then waits for nodes to come back at the rates of the outages that such a strike finds, and of its own.

Exact are nodes that break alone, or in bursts at one moment, whose repairs take the same time in the mean. Where whole domains break, the
outages that a waiting job finds differ a little from those of one that does not wait, as they do between causes with other repairs.
Spares lie outside the domains of the job.

References
----------
.. [1] J. S. Kaufman, "Blocking in a Shared Resource Environment", IEEE Trans. Communications 29(10), 1981; J. W. Roberts, "A service
   system with heterogeneous user requirements", Performance of Data Communications Systems and Their Applications, 1981 (q = 0).
.. [2] L. E. N. Delbrouck, "On the Steady-State Distribution in a Service Facility Carrying Mixtures of Traffic with Different Peakedness
   Factors and Capacity Requirements", IEEE Trans. Communications 31(11), 1983 (bursts, as Pascal traffic).
.. [3] H. H. Panjer, "Recursive Evaluation of a Family of Compound Distributions", ASTIN Bulletin 12(1), 1981.
.. [4] A. K. Erlang, "Solution of some problems in the theory of probabilities of significance in automatic telephone exchanges", 1917:
   the loss formula B. It holds for every law of repair times with the same mean (insensitivity).
.. [5] S. Gandhi et al., "ReCycle: Resilient Training of Large DNNs using Pipeline Adaptation", SOSP 2024, Sec. 3: data-parallel peers of a
   broken stage take its microbatches, in bubbles. I. Jang et al., "Oobleck: Resilient Distributed Training of Large Models Using Pipeline
   Templates", SOSP 2023 (nodes of a broken pipeline stand in for others).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from crossflow.base.arrays import Array, Index, points, share_of

_REACH = 8.0  # standard deviations beyond the mean in which the law of nodes in repair ends
_TAIL = 25.0  # of bursts, decays of the geometric law beyond that
_NEVER = 1e-100  # probability that is none
_LARGE = 1e100  # sum of a law that is not divided by it yet, beyond which it is
MOST_SPARES = 20_000  # of one run


@dataclass(frozen=True, kw_only=True, eq=False)
class Outage:
    """Nodes that are away for one cause; arrays of shape (n,) or (1,)."""

    load: Array  # outages in repair in the mean, were there endless spares. [1]
    repair: Array  # mean time of one, more than 0. [s]
    nodes: Array = field(default_factory=lambda: points(1.0))  # that each takes out, whole numbers. [1]
    again: Array = field(default_factory=lambda: points(0.0))  # probability that another follows at once. [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shortage:
    """What strikes of one cause find where spares are few."""

    missing: Array  # probability that a strike finds too few spares. [1]
    wait: Array  # of one that does, the mean time until enough nodes are back. [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kind:
    """Outages of as many nodes, and of the same bursts."""

    load: Array  # [1]
    back: Array  # at which each comes back, the mean over its causes. [1/s]
    nodes: Index  # shape (n,). [1]
    again: Array  # [1]

    @property
    def begun(self) -> Array:
        """Load of the outages that begin a burst. [1]"""
        return np.asarray(self.load * (1.0 - self.again))


def _kinds(outages: Sequence[Outage], n: int) -> tuple[list[_Kind], list[int]]:
    """Outages by their nodes and bursts, and the kind of each: the law knows no more of them."""
    alike: list[list[Outage]] = []
    which = list[int]()
    for one in outages:
        same = (i for i, some in enumerate(alike) if np.array_equal(some[0].again, one.again) and np.array_equal(some[0].nodes, one.nodes))
        which.append(next(same, len(alike)))
        alike[which[-1] : which[-1] + 1] = [[*(alike[which[-1]] if which[-1] < len(alike) else []), one]]
    found = list[_Kind]()
    for some in alike:
        load = sum((one.load for one in some), np.zeros(n))
        back = sum((one.load / one.repair for one in some), np.zeros(n))
        nodes = np.broadcast_to(np.round(some[0].nodes).astype(int), n)
        found.append(_Kind(load=load, back=share_of(back, load), nodes=nodes, again=some[0].again))
    return found, which


class _Law:
    """The law of nodes in repair, level by level, each value over that of level 0 times `scale`; lives inside this module."""

    def __init__(self, kinds: Sequence[_Kind], n: int) -> None:
        self.kinds, self.level = kinds, 0
        self.width = 2 * max((int(one.nodes.max()) for one in kinds), default=1)
        self.here = np.arange(n)
        self.single, self.total, self.logged = np.ones(n), np.ones(n), np.zeros(n)
        self.past = np.zeros((self.width, n))  # Q of the last levels
        self.bursts = [np.zeros((self.width, n)) for _ in kinds]  # F of the last levels, by kind
        self._keep()

    def _before(self, kind: int) -> Array:
        """F of a kind as many levels ago as it takes nodes; 0 below level 0."""
        return np.asarray(self.bursts[kind][(self.level - self.kinds[kind].nodes) % self.width, self.here])

    def _keep(self) -> None:
        self.past[self.level % self.width] = self.single
        for i, one in enumerate(self.kinds):
            self.bursts[i][self.level % self.width] = self.single + (one.again * self._before(i) if one.again.any() else 0.0)

    def rise(self) -> None:
        """To the next level."""
        self.level += 1
        parts = (one.nodes * one.begun * self._before(i) for i, one in enumerate(self.kinds))
        self.single = sum(parts, np.zeros(len(self.here))) / self.level
        self._keep()
        self.total = self.total + self.single
        if (self.total > _LARGE).any():
            self.past, self.bursts = self.past / self.total, [each / self.total for each in self.bursts]
            self.single, self.logged, self.total = self.single / self.total, self.logged + np.log(self.total), np.ones_like(self.total)

    def ends(self) -> bool:
        """Whether no level above matters."""
        return self.level % self.width == 0 and not any((each / self.total > _NEVER).any() for each in self.bursts)

    def shortage(self, kind: int, repair: Array, at: Index) -> tuple[Array, Array]:
        """Where the level is the number of spares, at some points: how often a strike of a kind lacks nodes [1], and for how long. [s]"""
        rows = (self.level - np.arange(self.width)) % self.width  # this level and those below it
        nodes = self.kinds[kind].nodes[at]
        most = int(nodes.max())
        lacks = np.arange(most)[:, None] < nodes
        found = np.where(lacks, self.past[rows[:most]][:, at], 0.0)
        whole = found.sum(axis=0)
        missing = np.where(lacks, self.bursts[kind][rows[:most]][:, at], 0.0).sum(axis=0) / self.total[at]
        rates = list[Array]()  # at which outages of each kind come back while the job waits. [1/s]
        for one, bursts in zip(self.kinds, self.bursts, strict=True):
            there = np.take_along_axis(bursts[rows][:, at], np.arange(most)[:, None] + one.nodes[at], axis=0)
            rates.append(one.begun[at] * one.back[at] * share_of(np.where(lacks, there, 0.0).sum(axis=0), whole))
        waits = np.zeros((most + 1, len(at)))  # until so many nodes are back. [s]
        every = sum(rates, 1.0 / repair)
        for lack in range(1, most + 1):
            still = (waits[np.maximum(lack - one.nodes[at], 0), np.arange(len(at))] for one in self.kinds)
            then = (rate * wait for rate, wait in zip(rates, still, strict=True))
            waits[lack] = (1.0 + sum(then, np.zeros(1))) / every
        after = np.take_along_axis(waits, np.maximum(nodes - np.arange(most)[:, None], 0), axis=0)
        return missing, share_of((found * after).sum(axis=0), whole)


def shortages(spares: Array, outages: Sequence[Outage]) -> tuple[Shortage, ...]:
    """What strikes of each cause find where there are so many spares, whole numbers; arrays of shape (n,).

    >>> (one,) = shortages(np.array([0.0, 1.0, 2.0]), [Outage(load=np.array([1.0]), repair=np.array([60.0]))])
    >>> print(one.missing.round(3), one.wait)
    [1.  0.5 0.2] [60. 30. 20.]
    """
    n = max(len(spares), *(len(array) for one in outages for array in (one.load, one.repair, one.nodes, one.again)), 1)
    kinds, which = _kinds(outages, n)
    wanted = np.broadcast_to(np.round(spares), n)
    missing, waits = np.zeros((len(outages), n)), np.zeros((len(outages), n))
    law = _Law(kinds, n)
    for level in range(int(wanted.max(initial=0.0)) + 1):
        if level:
            law.rise()
        at = np.flatnonzero(wanted == level)
        for i, one in enumerate(outages) if at.size else ():
            missing[i, at], waits[i, at] = law.shortage(which[i], np.broadcast_to(one.repair, n)[at], at)
        if law.ends():  # further spares change nothing
            break
    return tuple(Shortage(missing=lacks, wait=wait) for lacks, wait in zip(missing, waits, strict=True))


def missing_replicas(spares: Array, outages: Sequence[Outage], replica: Array) -> Array:
    """Mean number of replicas that a job has too few, which goes on without them.

    That is the mean of ceil((K - spares) / replica) where the nodes in repair K exceed the spares: whole nodes of a broken replica stand in
    for others.
    """
    return _mean_over_missing(spares, outages, replica, np.inf, lambda missing: missing)


def lost_speed(spares: Array, outages: Sequence[Outage], replica: Array, replicas: Array, idle: Array) -> Array:
    """Mean share of its speed that a job lacks for want of replicas, of which so many were there; see `speed_without`. [1]"""
    most = float(np.ceil(replicas).max(initial=1.0))
    return _mean_over_missing(spares, outages, replica, most, lambda missing: 1.0 - speed_without(missing, replicas, idle))


def speed_without(missing: Array, replicas: Array, idle: Array) -> Array:
    """Speed of a job that lacks some of its replicas, over that of a whole one. [1]

    The others do all of the work. Where they can do it in their pipelines' bubbles, these are filled first: stages that are `idle` for a
    share b of a step do 1 / (1 - b) times as much in the same time [5]_, so that with k of d replicas missing it is
    min(1, (1 - k / d) / (1 - b)). Without such rerouting b is 0.
    """
    return np.asarray(np.clip((1.0 - missing / replicas) / (1.0 - idle), 0.0, 1.0))


def _mean_over_missing(spares: Array, outages: Sequence[Outage], replica: Array, most: float, value: Callable[[Array], Array]) -> Array:
    """Mean of what rises with the number j of missing replicas: its steps from j to j + 1, times P(K > spares + j replica), summed.

    most : missing replicas from which on it rises no more. [1]
    """
    mean = sum((one.load * one.nodes for one in outages), np.zeros(1))
    spread = sum((one.load * one.nodes**2 / (1.0 - one.again) for one in outages), np.zeros(1))
    longest = max((float((one.nodes * np.where(one.again > 0, _TAIL, 1.0) / (1.0 - one.again)).max()) for one in outages), default=0.0)
    extent = mean + _REACH * np.sqrt(spread) + _REACH * longest
    terms = int(np.clip(np.ceil(((extent - spares) / replica).max(initial=0.0)), 1, min(MOST_SPARES, most)))
    tails = _tails([spares + j * replica for j in range(terms)], outages, mean, int(np.ceil(extent.max(initial=0.0))))
    steps = (value(points(j + 1.0)) - value(points(float(j))) for j in range(terms))
    return np.asarray(sum((step * above for step, above in zip(steps, tails, strict=True)), np.zeros(1)))


def _tails(levels: Sequence[Array], outages: Sequence[Outage], mean: Array, extent: int) -> Iterator[Array]:
    """Probabilities that more nodes than each of some numbers are in repair, were there endless spares; none are beyond `extent`."""
    if all(not one.again.any() and (one.nodes == 1).all() for one in outages):  # Poisson, which needs no recursion
        from scipy.special import pdtrc

        yield from (pdtrc(level, mean) for level in levels)
        return
    highest = min(int(max(float(level.max(initial=0.0)) for level in levels)), extent)
    many = tuple((one.load.tobytes(), one.nodes.astype(float).tobytes(), one.again.tobytes()) for one in outages)
    sums = _sums(many, 1 << highest.bit_length())
    for level in levels:
        below = np.minimum(np.floor(level), highest).astype(int)
        n = max(len(below), sums.shape[1])
        column = np.broadcast_to(np.arange(sums.shape[1]), n)
        yield np.where(level > extent, 0.0, -np.expm1(np.minimum(sums[np.broadcast_to(below, n), column], 0.0)))


@functools.lru_cache(maxsize=2)  # the search for spares asks again and again for the law of the same outages
def _sums(outages: tuple[tuple[bytes, bytes, bytes], ...], levels: int) -> Array:
    """Logarithms of the probabilities that at most so many nodes are in repair, from 0 on; shape (levels, n).

    With endless spares Q(0) is known, so that no level above is needed: exp(-a) of outages by themselves, and of bursts
    (1 - q)^(a (1 - q) / q).

    outages : load, nodes and `again` of each, as the bytes of their arrays.
    """
    found = [Outage(load=load, repair=points(1.0), nodes=nodes, again=again)
             for load, nodes, again in (map(np.frombuffer, one) for one in outages)]  # fmt: skip
    n = max(len(array) for one in found for array in (one.load, one.nodes, one.again))
    law = _Law(_kinds(found, n)[0], n)
    none = np.zeros(n)  # logarithm of Q(0)
    for one in found:
        q = np.maximum(one.again, 1e-12)
        none = none + np.where(one.again > 0, one.load * (1.0 - q) / q * np.log1p(-q), -one.load)
    sums = np.zeros((levels, n))
    for each in sums[1:]:
        law.rise()
        each[:] = law.logged + np.log(law.total)
    return np.asarray(sums + none)
