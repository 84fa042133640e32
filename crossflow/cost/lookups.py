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

from dataclasses import dataclass

import numpy as np

from crossflow.architecture.model import Architecture
from crossflow.arrays import Array
from crossflow.cost.roofline import KernelCosts, joined, moving_costs
from crossflow.workload.dlrm import Tables

SECTOR = 32  # bytes that memory and cache move at least [B]
RADIX = 8  # bits of a key that one pass of a radix sort orders


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one device holds of a group of tables and looks up in it; arrays of shape (n,).

    Attributes
    ----------
    samples : samples whose rows are looked up on the device. [1]
    tables, rows, columns : ranks that share out whole tables, rows of each, and columns of each. [1]
    load : lookups of the fullest device over the mean. [1]
    replicas : ranks that hold the same tables and apply each other's updates. [1]
    """

    samples: Array
    tables: Array
    rows: Array
    columns: Array
    load: Array
    replicas: Array


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Sizes of what lookups move: an element of a table, of a pooled output, of its gradient, an index. [B]"""

    table: float
    output: float
    gradient: float
    index: float


@dataclass(frozen=True, kw_only=True)
class LookupCosts:
    """Forward and backward pass over one group of tables; of the latter, the sort of the rows and their update."""

    forward: KernelCosts
    backward: KernelCosts


def row_bytes(size: Array) -> Array:
    """Bytes in whole sectors that a row of `size` bytes spans in the mean, rows one after the other. [B]

    >>> row_bytes(np.array([32.0, 184.0, 2.0])).tolist()
    [32.0, 208.0, 32.0]
    """
    aligned = np.gcd(np.asarray(size, dtype=np.int64), SECTOR).astype(float)
    return np.asarray(size + SECTOR - aligned)


def lookup_costs(group: Tables, shard: Shard, widths: Widths, architecture: Architecture, *, states: str, launches: int = 1) -> LookupCosts:
    """Cost of a group's lookups on the fullest device, and of its updates.

    Parameters
    ----------
    states : optimizer of the tables: ``sgd``, ``adagrad`` (a state each parameter) or ``rowwise_adagrad`` (one a row), in fp32.
    launches : kernels of the forward pass: one a group, or one a table.
    """
    cache = architecture.levels[-2] if len(architecture.levels) > 1 else architecture.memory
    columns = np.ceil(group.width / shard.columns)
    row = row_bytes(columns * widths.table)
    looked = shard.load * shard.samples * group.lookups / (shard.tables * shard.rows)
    pooled = shard.load * shard.samples * group.count * columns / shard.tables
    # Rows of one table that a batch wants, and the share of repeated lookups that finds them gone from the cache.
    wanted = shard.samples * group.pooling * group.distinct / shard.rows
    missed = np.clip(1.0 - cache.capacity * cache.instances / (wanted * row), 0.0, 1.0)
    fetched = looked * (group.distinct + (1.0 - group.distinct) * missed) * row
    forward_traffic = fetched + pooled * widths.output + looked * widths.index
    # Sort: keys and the samples they came from, read and written once a pass, and keys once more for the histogram.
    held = np.maximum(group.count * group.rows / (shard.tables * shard.rows), 2.0)
    passes = np.ceil(np.log2(held) / RADIX)
    sorting = looked * (2.0 * passes * (widths.index + 4.0) + widths.index)
    gradients_gone = np.clip(1.0 - cache.capacity * cache.instances / (shard.samples * columns * widths.gradient), 0.0, 1.0)
    gradients = pooled * widths.gradient + gradients_gone * looked * row_bytes(columns * widths.gradient)
    updated = np.minimum(looked * group.distinct * shard.replicas, group.count * group.rows / (shard.tables * shard.rows))
    state = {"sgd": np.zeros(1), "rowwise_adagrad": np.full(1, 2.0 * SECTOR), "adagrad": 2.0 * row_bytes(columns * 4.0)}[states]
    updates = updated * (2.0 * row + state)
    from_cache = looked * row_bytes(columns * widths.gradient)
    nothing = np.zeros_like(looked)
    sort = kernel(sorting, sorting, 4.0 * passes, architecture)  # of each of its passes: histogram, prefix sums, scatter, copy
    update = kernel(gradients + updates, from_cache, nothing + 4.0, architecture)  # rows, lengths, gradients, update
    return LookupCosts(
        forward=kernel(forward_traffic, looked * row, nothing + launches, architecture),
        backward=joined([sort, update]),
    )


def kernel(moved: Array, cached: Array, launches: Array, architecture: Architecture) -> KernelCosts:
    """Cost of kernels that move bytes through main memory and the caches, each of shape (n,). [B]"""
    traffic = np.stack(np.broadcast_arrays(*[cached] * (len(architecture.levels) - 1), moved))[:, None]
    return moving_costs(traffic, launches[None], architecture)
