"""Reuse factors: how often the rows of an embedding table are hit in a batch [1]_, [2]_.

A histogram has `BINS` bins, rows that are hit (0, 1], (1, 2], (2, 4], ... times, the last without end. Reuse factors of indices say
which share of the look-ups go to rows of each bin, those of rows which share of the different rows are in it. Both say the same; as
published, to three digits, those of indices say more, for the few rows that most look-ups go to are 0.000 of all.

Inside a bin look-ups spread evenly over the logarithm of the hits, for neighbouring bins have similar shares.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms", TPDS 2024, Sec. III-E and Fig. 6.
.. [2] github.com/facebookresearch/dlrm_datasets, embedding_bag/*/locality_stats.txt.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:  # the chain of imports stays short
    from crossflow.base.arrays import Array, Index

BINS = 17
EDGES = np.concatenate([np.zeros(1), 2.0 ** np.arange(BINS)])  # hits between which each bin lies; the last is as wide as it begins
WHOLE = 16  # hits up to which every number is a class by itself
CLASSES = 5  # classes of a bin of more hits


class Classes(NamedTuple):
    """Rows of equal hits that stand for the bins."""

    hits: NDArray[np.float64]  # of a row of each class, shape (classes,). [1]
    bins: NDArray[np.intp]  # the bin of each class
    share: NDArray[np.float64]  # of a bin's look-ups that go to each of its classes. [1]


def _classes() -> Classes:
    hits = [np.arange(low + 1, high + 1) if high <= WHOLE else _spread(low) for low, high in itertools.pairwise(EDGES)]
    bins = np.repeat(np.arange(BINS), [len(some) for some in hits])
    within = [1.0 / some if high <= WHOLE else np.ones(len(some)) for some, high in zip(hits, EDGES[1:], strict=True)]
    return Classes(np.concatenate(hits), bins, np.concatenate([some / some.sum() for some in within]))


def _spread(low: float) -> Array:
    """Hits of classes that have equal parts of a bin's look-ups, whole numbers in the middle of each part."""
    return np.asarray(np.round(low * 2.0 ** ((np.arange(CLASSES) + 0.5) / CLASSES)))


HITS, OF_BIN, SHARE = _classes()
# Rows of a bin over the look-ups that go to them: the mean of one over hits. [1]
ROWS = np.bincount(OF_BIN, SHARE / HITS)


def by_class(factors: Array) -> Array:
    """Share of all look-ups that go to rows of each class, shape (classes, ...), from reuse factors of indices, shape (bins, ...). [1]"""
    return np.asarray(factors[OF_BIN] * SHARE.reshape(-1, *[1] * (factors.ndim - 1)))


def normalised(factors: ArrayLike) -> Array:
    """Reuse factors that add up to one; published ones are rounded. [1]"""
    found = np.asarray(factors, dtype=float)
    return np.asarray(found / found.sum(axis=0))


def _counted(indices: Index) -> tuple[Index, Index]:
    """Hits of every row that is hit, and their bin."""
    _, hits = np.unique(indices, return_counts=True)
    return hits, np.minimum(np.ceil(np.log2(hits)), BINS - 1).astype(np.intp)


def index_factors(indices: Index) -> Array:
    """Share of the look-ups of a batch that go to rows of each bin, shape (bins,). [1]

    >>> index_factors(np.array([0, 1, 4, 6, 1, 2, 3, 5, 7, 0, 5, 7, 1, 6]))[:3].round(3).tolist()  # Fig. 6 of [1]_
    [0.214, 0.571, 0.214]
    """
    hits, bins = _counted(indices)
    return np.bincount(bins, hits, minlength=BINS) / len(indices)


def row_factors(indices: Index) -> Array:
    """Share of the different rows of a batch that are in each bin, shape (bins,). [1]

    >>> row_factors(np.array([0, 1, 4, 6, 1, 2, 3, 5, 7, 0, 5, 7, 1, 6]))[:3].tolist()  # Fig. 6 of [1]_
    [0.375, 0.5, 0.125]
    """
    hits, bins = _counted(indices)
    return np.bincount(bins, minlength=BINS) / len(hits)


def rows_of(factors: Array) -> Array:
    """Reuse factors of rows from those of indices, shape (bins, ...). [1]"""
    rows = factors * ROWS.reshape(-1, *[1] * (factors.ndim - 1))
    return np.asarray(rows / rows.sum(axis=0))


def distinct_share(factors: Array, share: Array | float = 1.0) -> Array:
    """Different rows over look-ups of a part of the batch in which reuse factors of indices were counted, shape (...). [1]

    A row that is hit k times in the whole is missing in a part with a probability of (1 - share)^k.
    """
    hits = HITS.reshape(-1, *[1] * (factors.ndim - 1))
    there = -np.expm1(hits * np.log1p(-np.minimum(share, 1.0 - 1e-15)))
    return np.asarray((by_class(factors) / hits * there).sum(axis=0) / share)


def subsampled(factors: Array, share: float) -> Array:
    """Reuse factors of indices of a part of a batch from those of the whole, shape (bins,). [1]

    A row that is hit k times in the whole is hit Binomial(k, share) times in the part. Seen from one of its look-ups that is in the part,
    the other k - 1 are there by chance.
    """
    from scipy.special import bdtr

    upper = np.append(EDGES[1:-1], np.inf)[:, None]
    others = np.minimum(upper - 1.0, HITS - 1.0)  # a bin (a, b] holds rows of which at most b - 1 others are there
    below = np.where(others >= HITS - 1.0, 1.0, bdtr(others, (HITS - 1.0).astype(np.int64), share))
    return np.asarray(np.diff(below, axis=0, prepend=0.0) @ by_class(factors))


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Reuse factors of indices, and the batch in which they were counted."""

    factors: tuple[float, ...]  # share of the look-ups that go to rows of each bin. [1]
    samples: int  # of the batch. [1]

    @classmethod
    def of(cls, indices: Index, samples: int) -> Reuse:
        """Those of a batch's indices."""
        return cls(factors=tuple(index_factors(indices).tolist()), samples=samples)

    def table(self) -> Array:
        """Factors as an array, shape (bins, n), where they differ between n design points, or (bins, 1). [1]"""
        return np.stack(np.broadcast_arrays(*map(np.atleast_1d, self.factors)))

    def distinct(self, samples: Array | float) -> Array:
        """Different rows over look-ups of so many samples, shape (n,) or (1,). [1]"""
        return distinct_share(self.table(), np.atleast_1d(samples) / self.samples)

    def part(self, samples: int) -> Reuse:
        """Those of a smaller batch."""
        return Reuse(factors=tuple(subsampled(self.table()[:, 0], samples / self.samples).tolist()), samples=samples)
