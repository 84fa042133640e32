"""Max-min fair rates of flows that share links, and when such flows end.

All flows grow alike, each by its weight, until a link is full; its flows then keep what they have and the others grow on [1]_. The rates
that result are the only ones in which each flow has a bottleneck: a full link on which no flow has more for its weight. They are found
link by link, and all links at once that are tightest among the flows that pass them: whatever else is filled later, no such flow can
get more, and none of them is slowed elsewhere [2]_. So thousands of flows take a few rounds.

A flow may pass a link with any amount of its rate: 1 on a path, parts of 1 where adaptive routing spreads it over equal paths, more where
it stands for several transfers that keep pace (the edges of a ring), 1 on each link of a tree in which the network reduces.

References
----------
.. [1] Bertsekas, Gallager: Data Networks. 2nd ed., Prentice Hall 1992, Sec. 6.5.2.
.. [2] Ros-Giralt et al.: On the Bottleneck Structure of Congestion-Controlled Networks. Proc. ACM SIGMETRICS 2020, Sec. 2.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, divide

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

NO_LINK = -1  # bottleneck of a flow that no link slows


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowPaths:
    """Which flows pass which links: entry e says that flow `flow[e]` puts `amount[e]` times its rate on link `link[e]`.

    The entries are in the order of their flows; an amount of 0 is no passing.
    """

    flows: int  # how many there are
    links: int
    flow: Index  # shape (entries,)
    link: Index  # shape (entries,)
    amount: Array  # shape (entries, n). [1]

    @classmethod
    def of(cls, flow: Index, link: Index, amount: Array, *, flows: int, links: int) -> FlowPaths:
        """Paths from entries in any order, amounts of shape (entries,) or (entries, n)."""
        order = np.argsort(flow, kind="stable")
        amounts = np.asarray(amount, dtype=float)
        amounts = (amounts[:, np.newaxis] if amounts.ndim == 1 else amounts)[order]
        return cls(flows=flows, links=links, flow=np.asarray(flow)[order], link=np.asarray(link)[order], amount=amounts)

    def loads(self, rate: Array) -> Array:
        """What flows of such rates, shape (flows, n), put on every link, shape (links, n)."""
        return np.asarray(self._onto_links @ (self.amount * rate[self.flow]))

    def least_of_flows(self, values: Array) -> Array:
        """The least of the values of every flow's entries, shape (flows, n); inf without any."""
        passing, first = self._by_flow
        found = np.full((self.flows, values.shape[1]), np.inf)
        if passing.size:
            found[passing] = np.minimum.reduceat(values, first, axis=0)
        return found

    def least_of_links(self, values: Array) -> Array:
        """The least of the values of every link's entries, shape (links, n); inf without any."""
        order, passed, first = self._by_link
        found = np.full((self.links, values.shape[1]), np.inf)
        if passed.size:
            found[passed] = np.minimum.reduceat(values[order], first, axis=0)
        return found

    @functools.cached_property
    def _by_flow(self) -> tuple[Index, Index]:
        """Flows that pass a link, and where the entries of each begin."""
        passing, first = np.unique(self.flow, return_index=True)
        return passing, first

    @functools.cached_property
    def _by_link(self) -> tuple[Index, Index, Index]:
        """Entries in the order of their links, the links that are passed, and where the entries of each begin in that order."""
        order = np.argsort(self.link, kind="stable")
        passed, first = np.unique(self.link[order], return_index=True)
        return order, passed, first

    @functools.cached_property
    def _onto_links(self) -> csr_matrix:
        """Sums entries by link, shape (links, entries)."""
        from scipy.sparse import csr_matrix

        ones, entries = np.ones(self.link.size), np.arange(self.link.size)
        return csr_matrix((ones, (self.link, entries)), shape=(self.links, self.link.size))


@dataclass(frozen=True, kw_only=True)
class FairRates:
    """Rates of flows, and the link that keeps each from more."""

    rate: Array  # in the unit of the capacities, shape (flows, n)
    bottleneck: Index  # number of a link, `NO_LINK` where the flow's own limit or nothing keeps it, shape (flows, n)


def max_min(
    paths: FlowPaths,
    capacity: Array,
    *,
    weight: Array | float = 1.0,
    limit: Array | float = np.inf,
    priority: Index | None = None,
) -> FairRates:
    """Max-min fair rates, for all design points at once.

    Parameters
    ----------
    capacity : of every link, shape (links, n) or (links, 1), inf where it has no end. [B/s]
    weight : of every flow, shape (flows, n) or less; 0 for a flow that does not send. [1]
    limit : most that a flow can send by itself, likewise. [B/s]
    priority : class of every flow, shape (flows,): a class takes what those of lower numbers leave; one class where absent.

    >>> ways = FlowPaths.of(np.array([0, 0, 1]), np.array([0, 1, 1]), np.ones(3), flows=2, links=2)
    >>> max_min(ways, np.array([[1.0], [3.0]])).rate.ravel().tolist()
    [1.0, 2.0]
    """
    weights, limits = (np.asarray(value, dtype=float) for value in (weight, limit))
    n = np.broadcast_shapes((1, capacity.shape[1]), (1, paths.amount.shape[1]), (1, *weights.shape[1:]), (1, *limits.shape[1:]))[1]
    weights, limits = np.broadcast_to(weights, (paths.flows, n)), np.broadcast_to(limits, (paths.flows, n))
    own = np.where(weights > 0, divide(limits, weights), 0.0)
    rate, bottleneck = np.zeros((paths.flows, n)), np.full((paths.flows, n), NO_LINK)
    classes = np.zeros(paths.flows, dtype=int) if priority is None else priority
    for one in np.unique(classes):
        growing = (weights > 0) & (classes == one)[:, np.newaxis]
        while growing.any():
            level, link, stopped = _stopped(paths, _levels(paths, capacity, rate, weights * growing), own, growing)
            bottleneck = np.where(stopped, link, bottleneck)
            rate = np.where(stopped, weights * level, rate)
            growing = growing & ~stopped
    return FairRates(rate=rate, bottleneck=bottleneck)


def _levels(paths: FlowPaths, capacity: Array, rate: Array, weight: Array) -> Array:
    """Rate for its weight that a link can give to every flow that still grows, beside the others, shape (links, n); inf without any."""
    # A flow without end passes links without end alone.
    taken = paths.loads(np.where(np.isinf(rate), 0.0, rate))
    left = np.where(np.isinf(capacity), np.inf, np.maximum(capacity - taken, 0.0))
    wanted = paths.loads(weight)
    return np.where(wanted > 0, left / np.where(wanted > 0, wanted, 1.0), np.inf)


def _stopped(paths: FlowPaths, level: Array, own: Array, growing: Mask) -> tuple[Array, Index, Mask]:
    """Flows that grow no further: the level of each, the link that stops it, and which they are, shape (flows, n).

    A link stops its flows where none of them passes a tighter one: others that are filled later leave it only more.
    """
    passing = (paths.amount > 0) & growing[paths.flow]
    least = np.minimum(paths.least_of_flows(np.where(passing, level[paths.link], np.inf)), own)
    tight = (paths.least_of_links(np.where(passing, least[paths.flow], np.inf)) >= level) & np.isfinite(level)
    by = -paths.least_of_flows(np.where(passing & tight[paths.link], -paths.link[:, np.newaxis].astype(float), np.inf))
    held = np.isfinite(by)
    return least, np.where(held, by, NO_LINK).astype(np.intp), growing & (held | (own <= least))


def finish_times(paths: FlowPaths, capacity: Array, size: Array, start: Array) -> Array:
    """When flows end that share links fairly, each from its start on: rates are found anew whenever one begins or ends, shape (flows,). [s]

    Parameters
    ----------
    capacity : of every link, shape (links,). [B/s]
    size : of every flow, shape (flows,). [B]
    start : shape (flows,). [s]
    """
    left, ends, now = size.astype(float), np.where(size > 0, np.inf, start), float(start.min(initial=np.inf))
    while np.isinf(ends).any():
        sends = (start <= now) & np.isinf(ends)
        rate = max_min(paths, capacity[:, np.newaxis], weight=sends[:, np.newaxis].astype(float)).rate[:, 0]
        over = now + np.where(sends, divide(left, rate), np.inf)
        then = min(over.min(), start[start > now].min(initial=np.inf))
        if np.isinf(then):  # what is left cannot move
            break
        left = np.where(sends & np.isfinite(rate), np.maximum(left - rate * (then - now), 0.0), left)
        now, ends = then, np.where(over <= then, then, ends)
    return ends
