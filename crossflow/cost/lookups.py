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

import numpy as np

from crossflow.architecture.model import Architecture
from crossflow.arrays import Array
from crossflow.cost.roofline import KernelCosts, moving_costs
from crossflow.program.kernels import Lookup

SECTOR = 32  # bytes that memory and cache move at least [B]
RADIX = 8  # bits of a key that one pass of a radix sort orders


def row_bytes(size: Array) -> Array:
    """Bytes in whole sectors that a row of `size` bytes spans in the mean, rows one after the other. [B]

    >>> row_bytes(np.array([32.0, 184.0, 2.0])).tolist()
    [32.0, 208.0, 32.0]
    """
    aligned = np.gcd(np.asarray(size, dtype=np.int64), SECTOR).astype(float)
    return np.asarray(size + SECTOR - aligned)


def lookup_costs(lookup: Lookup, sizes: Array, architecture: Architecture) -> KernelCosts:
    """Cost of one group's lookups on the fullest device, of the sort of their gradients, or of their updates, shape (1, n).

    Parameters
    ----------
    sizes : samples, tables, rows, width, pooling, distinct, load and replicas, shape (8, n). [1]
    """
    samples, tables, rows, width, pooling, distinct, load, replicas = sizes
    looked, pooled, held = load * samples * tables * pooling, load * samples * tables * width, tables * rows
    if lookup.part == "forward":
        return _kernel(*_forward(lookup, sizes, looked, pooled, architecture), np.ones_like(looked), architecture)
    if lookup.part == "sort":  # keys and the samples they came from, read and written once a pass, and keys once more for the histogram
        passes = np.ceil(np.log2(np.maximum(held, 2.0)) / RADIX)
        moved = looked * (2.0 * passes * (lookup.index + 4.0) + lookup.index)
        return _kernel(moved, moved, 4.0 * passes, architecture)  # of each pass: histogram, prefix sums, scatter, copy
    gradient = row_bytes(width * lookup.gradient)
    if lookup.part == "gradient":  # rows of gradients are read, and rows of the table's gradient, which is there, read and written
        moved = looked * (gradient + 2.0 * row_bytes(width * lookup.element) + lookup.index)
        return _kernel(moved, moved, np.ones_like(looked), architecture)
    gradients = pooled * lookup.gradient + _gone(samples * width * lookup.gradient, architecture) * looked * gradient
    state = {"sgd": np.zeros(1), "rowwise_adagrad": np.full(1, 2.0 * SECTOR), "adagrad": 2.0 * row_bytes(width * 4.0)}[lookup.optimizer]
    updates = np.minimum(looked * distinct * replicas, held) * (2.0 * row_bytes(width * lookup.element) + state)
    return _kernel(gradients + updates, looked * gradient, np.full_like(looked, 4.0), architecture)  # rows, lengths, gradients, update


def _forward(lookup: Lookup, sizes: Array, looked: Array, pooled: Array, architecture: Architecture) -> tuple[Array, Array]:
    """Bytes of main memory and of the caches of a pass forward [2]_, each of shape (n,). [B]"""
    samples, _, _, width, pooling, distinct, _, _ = sizes
    row = row_bytes(width * lookup.element)
    # The share of repeated lookups that finds the rows of one table that a batch wants gone from the cache.
    missed = _gone(samples * pooling * distinct * row, architecture)
    fetched = looked * (distinct + (1.0 - distinct) * missed) * row
    return fetched + pooled * lookup.output + looked * lookup.index, looked * row


def _gone(size: Array, architecture: Architecture) -> Array:
    """Share of so many bytes that the last cache does not hold. [1]"""
    cache = architecture.levels[-2] if len(architecture.levels) > 1 else architecture.memory
    return np.clip(1.0 - cache.capacity * cache.instances / size, 0.0, 1.0)


def _kernel(moved: Array, cached: Array, launches: Array, architecture: Architecture) -> KernelCosts:
    """Cost of kernels that move bytes through main memory and the caches, each of shape (n,). [B]"""
    traffic = np.stack(np.broadcast_arrays(*[cached] * (len(architecture.levels) - 1), moved))[:, None]
    return moving_costs(traffic, launches[None], architecture)
