"""What of the looked-up rows caches hold, from how often rows are hit, by distances of reuse.

The look-ups of a batch are in random order. A cache that keeps what was used last holds a row if it was hit among the last so many
look-ups, a window in which as many bytes of different rows pass as the cache has room for: Che's approximation [1]_, which holds for
popularities that differ [2]_. Here the batch is finite and begins with rows that no cache holds: of a row that is hit k times in it,
the others lie anywhere. With windows as a share t of the batch,

    bytes(t)  = sum over rows of size (1 - (1 - t)^k)             of different rows in a window,
    missed(t) = (1 - (1 - t)^k) / k + (1 - t)^k-1 (1 - t)          of the look-ups of such a row,

where the second is the mean over the place x of a look-up of (1 - min(t, x))^(k - 1), for its row is missing if none of the others fell
into the window, or into what of the batch was before it. With a window of the whole batch every row is missed once, with none always.

References
----------
.. [1] Che, Tung, Wang, "Hierarchical Web Caching Systems: Modeling, Design and Experimental Results", IEEE JSAC 20(7), 2002, Eq. 6-7.
.. [2] Fricker, Robert, Roberts, "A versatile and accurate approximation for LRU cache performance", ITC 2012.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array
from crossflow.program.embedding.reuse import HITS, by_class

STEPS = 16  # of Newton's method in logarithms, of which a power law takes one, or of halving where that leaves the bracket
TINY = np.finfo(float).tiny
ALL = 1.0 - 1e-15  # a window of the whole batch, as far as a logarithm can tell


@dataclass(frozen=True, kw_only=True, eq=False)
class CachedLookups:
    """Look-ups in random order of one table, or of several whose rows share a cache; arrays end in the design-point axis."""

    lookups: Array  # that go to rows of each class, of the whole batch, shape (classes, n). [1]
    hits: Array  # of a row of each class in the whole batch, shape (classes, n) or (classes, 1). [1]
    size: Array  # bytes of a row, in whole lines of a cache, shape (classes, n) or (1, n). [B]
    share: Array  # of the batch that passes: a smaller batch, or what one of several units gets, shape (n,). [1]

    @classmethod
    def of(cls, factors: Array, lookups: Array, size: Array, share: Array) -> CachedLookups:
        """Those of a table with reuse factors of indices, shape (bins, n), in a batch of so many look-ups."""
        return cls(lookups=by_class(factors) * lookups, hits=HITS[:, None], size=np.atleast_2d(size), share=share)

    @classmethod
    def alike(cls, hits: Array, lookups: Array, size: Array) -> CachedLookups:
        """Those of rows that are all hit equally often."""
        return cls(lookups=np.atleast_2d(lookups), hits=np.atleast_2d(hits), size=np.atleast_2d(size), share=np.ones(1))

    def in_blocks(self, rows: Array, others: Array) -> CachedLookups:
        """The same look-ups of blocks of so many rows each, such as pages, which are hit with every row that they hold.

        Parameters
        ----------
        rows : in a block, shape (n,). [1]
        others : hits of a row of the table in the mean, shape (n,). [1]
        """
        return replace(self, hits=self.hits + (np.maximum(rows, 1.0) - 1.0) * others, size=np.ones((1, 1)))

    @classmethod
    def together(cls, streams: Sequence[CachedLookups]) -> CachedLookups:
        """Those of several tables, mixed in random order; all pass the same share of their batch."""
        n = max(one.lookups.shape[-1] for one in streams)
        shapes = [(one.lookups.shape[0], n) for one in streams]
        joined = {
            name: np.concatenate([np.broadcast_to(getattr(one, name), shape) for one, shape in zip(streams, shapes, strict=True)])
            for name in ("lookups", "hits", "size")
        }
        return cls(**joined, share=streams[0].share)

    def divided(self, units: Array) -> CachedLookups:
        """What one of several units gets, which divide the look-ups among them."""
        return replace(self, share=self.share / units)

    def distinct(self, window: Array) -> Array:
        """Bytes of different rows among a share of the batch's look-ups, shape (n,). [B]"""
        return np.asarray((self._rows * -np.expm1(self.hits * np.log1p(-np.minimum(window, ALL)))).sum(axis=0))

    @property
    def _rows(self) -> Array:
        """Bytes of all rows of each class. [B]"""
        return np.asarray(self.lookups / self.hits * self.size)

    def window(self, capacity: Array) -> Array:
        """Share of the batch whose different rows fill a cache of so many bytes, at most all that passes, shape (n,). [1]"""
        rows, room = self._rows, np.maximum(capacity, TINY)
        # All of a short window's rows are different: no shorter one fills the cache.
        high = np.minimum(self.share, ALL)
        t = low = np.minimum(room / (self.lookups * self.size).sum(axis=0), high)
        for _ in range(STEPS):
            left = np.log1p(-t)
            filled = np.maximum((rows * -np.expm1(self.hits * left)).sum(axis=0), TINY)
            slope = (rows * self.hits * np.exp((self.hits - 1.0) * left)).sum(axis=0) * t / filled
            low, high = np.where(filled <= room, t, low), np.where(filled <= room, high, t)
            further = t * np.exp(np.clip(np.log(room / filled) / np.maximum(slope, 1e-9), -300.0, 300.0))
            t = np.where((further >= low) & (further <= high), further, np.sqrt(low * high))
        return np.asarray(np.where(self.distinct(self.share) <= capacity, self.share, t))

    def missed(self, capacity: Array) -> Array:
        """Share of the look-ups that a cache of so many bytes does not hold, shape (n,). [1]"""
        return np.asarray((self.lookups * self.missed_by_class(capacity)).sum(axis=0) / self.lookups.sum(axis=0))

    def missed_at(self, capacity: Array, places: Array) -> Array:
        """The same of the look-ups at some places of what passes, shape (places, n): at the beginning no cache holds a row. [1]

        Parameters
        ----------
        places : what has passed before, as a share, shape (places,). [1]
        """
        t, lookups = np.minimum(self.window(capacity), ALL), self.lookups / self.lookups.sum(axis=0)
        left = [np.log1p(-np.minimum(t, place * self.share)) for place in places]
        return np.stack([(lookups * np.exp((self.hits - 1.0) * one)).sum(axis=0) for one in left])

    def missed_by_class(self, capacity: Array) -> Array:
        """The same of each class, shape (classes, n). [1]"""
        t, share = np.minimum(self.window(capacity), ALL), self.share
        left = np.log1p(-t)
        early = -np.expm1(self.hits * left) / self.hits  # before a window's length has passed
        late = np.exp((self.hits - 1.0) * left) * np.maximum(share - t, 0.0)
        return np.where(capacity > 0, np.clip((early + late) / share, 0.0, 1.0), 1.0)


def beyond(stream: CachedLookups, capacities: Sequence[Array], units: Sequence[Array]) -> Array:
    """Share of the look-ups that go beyond each cache, nearest first, shape (caches, n). [1]

    Parameters
    ----------
    capacities : of one instance of each cache. [B]
    units : instances of each, which divide the samples among them. [1]
    """
    found = [stream.divided(count).missed(capacity) for capacity, count in zip(capacities, units, strict=True)]
    return np.minimum.accumulate(np.stack(np.broadcast_arrays(*found)), axis=0)
