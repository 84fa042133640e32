"""Embedding lookups: pooled rows of tables, forward and backward, bound by memory or cache at the granularity of a sector.

One kernel serves all tables of a group (table-batched kernels of FBGEMM [1]_), table after table, so that a row that is wanted
again is found in the last cache as far as one table's rows fit there. The backward pass sorts the looked-up rows, adds up the
gradients of equal ones and updates each row once, its optimizer with it.

References
----------
.. [1] Khudia et al., "FBGEMM", arXiv:2101.05615; Mudigere et al., ISCA 2022, Sec. 4.1: fused lookups and exact updates.
.. [2] Lin et al., "Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms", TPDS 2024, Sec. III-E: reuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, wide
from crossflow.cost.roofline import KernelCosts, moving_costs
from crossflow.hardware.architecture.model import Architecture
from crossflow.program.embedding.caches import CachedLookups, beyond
from crossflow.program.embedding.reuse import BINS, distinct_share, normalised
from crossflow.program.kernels import SIZES, Lookup, filled

SECTOR = 32  # bytes that memory and cache move at least [B]
RADIX = 8  # bits of a key that one pass of a radix sort orders


def row_bytes(size: Array) -> Array:
    """Bytes in whole sectors that a row of `size` bytes spans in the mean, rows one after the other. [B]

    >>> row_bytes(np.array([32.0, 184.0, 2.0])).tolist()
    [32.0, 208.0, 32.0]
    """
    aligned = np.gcd(np.asarray(size, dtype=np.int64), SECTOR).astype(float)
    return np.asarray(size + SECTOR - aligned)


@dataclass(frozen=True, kw_only=True, eq=False)
class LookupWork:
    """Kernels that do one part of lookups, all with reuse factors or all without; arrays of shape (kernels, n) or (kernels, 1)."""

    sizes: Mapping[str, Array]  # as `crossflow.program.kernels.SIZES` names them. [1]
    lookups: Sequence[Lookup]
    architecture: Architecture
    reuse: Array | None  # reuse factors of indices, shape (bins, kernels, n) or (bins, kernels, 1). [1]

    @classmethod
    def of(cls, lookups: Sequence[Lookup], sizes: Array, architecture: Architecture) -> LookupWork:
        """Work of kernels whose sizes have the shape (sizes, kernels, n)."""
        factors = [one.reuse for one in lookups if one.reuse is not None]
        reuse = normalised(filled(factors).swapaxes(0, 1)) if factors else None
        return cls(sizes=dict(zip(SIZES[Lookup], sizes, strict=True)), lookups=lookups, architecture=architecture, reuse=reuse)

    def each(self, name: str) -> Array:
        """A size in bytes of every kernel, shape (kernels, n) or (kernels, 1). [B]"""
        return filled([[getattr(lookup, name)] for lookup in self.lookups])[:, 0]

    def times(self, *names: str) -> Array:
        """Product of sizes. [1]"""
        return np.asarray(math.prod(self.sizes[name] for name in names))

    @property
    def looked(self) -> Array:
        """Rows that are looked up in all tables. [1]"""
        return self.times("load", "samples", "tables", "pooling")

    @property
    def share(self) -> Array:
        """Samples over those of the batch in which reuse was counted. [1]"""
        return np.minimum(self.sizes["samples"] / self.sizes["counted"], 1.0)

    @property
    def distinct(self) -> Array:
        """Different rows over looked-up rows. [1]"""
        return self.sizes["distinct"] if self.reuse is None else distinct_share(self.reuse, self.share)

    def asked(self, stream: CachedLookups | None, missed: Array) -> Array:
        """Share of the lookups that every level of memory serves or passes on, nearest first, shape (levels, kernels, n). [1]

        Parameters
        ----------
        stream : what passes through the caches, points one after the other.
        missed : share of the lookups that the last cache does not hold, where there is no stream.
        """
        caches = self.architecture.levels[1:-1]  # registers, the first level, keep no rows that are wanted again
        ones = [np.ones_like(missed)] * len(self.architecture.levels)
        if stream is None or not caches:
            return np.stack([*ones[:-1], missed if stream is None else ones[-1]])
        rooms, units = ([np.broadcast_to(getattr(one, name), missed.shape).ravel() for one in caches] for name in ("capacity", "instances"))
        return np.concatenate([ones[:2], beyond(stream, rooms, units).reshape(-1, *missed.shape)])


def lookup_costs(lookups: Sequence[Lookup], sizes: Array, architecture: Architecture) -> KernelCosts:
    """Cost of lookups on the fullest device, of the sorts of their gradients, and of their updates, shape (kernels, n).

    Parameters
    ----------
    sizes : of every kernel, as `crossflow.program.kernels.SIZES` names them, shape (sizes, kernels, n). [1]
    """
    n = max(sizes.shape[-1], *(level.capacity.size for level in architecture.levels))
    traffic, launches = np.zeros((len(architecture.levels), len(lookups), n)), np.zeros((len(lookups), n))
    parts: dict[tuple[str, bool], list[int]] = {}
    for i, lookup in enumerate(lookups):
        parts.setdefault((lookup.part, lookup.reuse is not None), []).append(i)
    for (part, _), mine in parts.items():
        traffic[:, mine], launches[mine] = PARTS[part](LookupWork.of([lookups[i] for i in mine], wide(sizes[:, mine], n), architecture))
    return moving_costs(traffic, launches * [[not lookup.batched] for lookup in lookups], architecture)


Moved = tuple[Array, Array]  # bytes through every level of memory, shape (levels, kernels, n), and launches. [B], [1]


def _forward(work: LookupWork) -> Moved:
    """A pass forward [2]_."""
    row, distinct, looked = row_bytes(work.sizes["width"] * work.each("element")), work.distinct, work.looked
    # The share of repeated lookups that finds the rows of one table that a batch wants gone from the cache.
    gone = _gone(work.times("samples", "pooling") * distinct * row, work.architecture)
    traffic = looked * row * work.asked(_rows(work, row), distinct + (1.0 - distinct) * gone)
    traffic[-1] += work.times("load", "samples", "tables", "width") * work.each("output") + looked * work.each("index")
    return traffic, np.ones_like(looked)


def _sort(work: LookupWork) -> Moved:
    """Keys and the samples they came from, read and written once a pass, and keys once more for the histogram."""
    index = work.each("index")
    passes = np.ceil(np.log2(np.maximum(work.times("tables", "rows"), 2.0)) / RADIX)
    moved = work.looked * (2.0 * passes * (index + 4.0) + index)
    return np.stack([moved] * len(work.architecture.levels)), 4.0 * passes  # of each: histogram, prefix sums, scatter, copy


def _update(work: LookupWork) -> Moved:
    """The gradient of a pooled row for each lookup, in the order of the rows; each row once, with the states of its optimizer."""
    width, looked = work.sizes["width"], work.looked
    gradient = row_bytes(width * work.each("gradient"))
    once = work.times("load", "samples", "tables", "width") * work.each("gradient")
    gone = _gone(work.times("samples", "width") * work.each("gradient"), work.architecture)
    states = {"sgd": np.zeros(1), "rowwise_adagrad": np.full(1, 2.0 * SECTOR), "adagrad": 2.0 * row_bytes(width * 4.0)}
    state = sum(np.array([[one.optimizer == name] for one in work.lookups]) * size for name, size in states.items())
    rows = np.minimum(looked * work.distinct * work.sizes["replicas"], work.times("tables", "rows"))
    traffic = looked * gradient * work.asked(_gradients(work, gradient), gone)
    if work.reuse is None:
        traffic[-1] += once
    traffic[-1] += rows * (2.0 * row_bytes(width * work.each("element")) + state)
    return traffic, np.full_like(looked, 4.0)  # rows, lengths, gradients, update


def _gradient(work: LookupWork) -> Moved:
    """Rows of gradients are read, and rows of the table's gradient, which is there, read and written."""
    width = work.sizes["width"]
    gradient, row = row_bytes(width * work.each("gradient")), row_bytes(width * work.each("element"))
    moved = work.looked * (gradient + 2.0 * row + work.each("index"))
    return np.stack([moved] * len(work.architecture.levels)), np.ones_like(moved)


PARTS: Mapping[str, Callable[[LookupWork], Moved]] = {"forward": _forward, "sort": _sort, "update": _update, "gradient": _gradient}


def _rows(work: LookupWork, row: Array) -> CachedLookups | None:
    """Lookups of rows of one table after the other."""
    if work.reuse is None:
        return None
    lookups, share = work.times("counted", "pooling"), work.share
    factors = np.broadcast_to(work.reuse, (BINS, *lookups.shape)).reshape(BINS, -1)
    return CachedLookups.of(factors, lookups.ravel(), np.broadcast_to(row, lookups.shape).ravel(), share.ravel())


def _gradients(work: LookupWork, gradient: Array) -> CachedLookups | None:
    """Reads of the gradients of one table's pooled rows: each as often as its sample looks up rows, in the order of the rows."""
    if work.reuse is None:
        return None
    hits = np.maximum(work.sizes["pooling"], 1.0)
    reads = work.sizes["samples"] * hits
    return CachedLookups.alike(hits.ravel(), reads.ravel(), np.broadcast_to(gradient, hits.shape).ravel())


def _gone(size: Array, architecture: Architecture) -> Array:
    """Share of so many bytes that the last cache does not hold. [1]"""
    cache = architecture.levels[-2] if len(architecture.levels) > 1 else architecture.memory
    return np.clip(1.0 - cache.capacity * cache.instances / size, 0.0, 1.0)
