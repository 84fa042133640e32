"""Buckets in which replicas reduce gradients: as many tensors as fill one, in the order in which their gradients are ready [1]_.

References
----------
.. [1] Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, arXiv:2006.15704, Sec. 3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crossflow.arrays import Array, Index, divide, once
from crossflow.parallel.blocks import unit_places, units
from crossflow.workload.transformer import Matrix, Part, Transformer


def bucketed(size: Array, model: Transformer, first: float, least: float) -> Array:
    """Mean message in which gradients of each unit are reduced, shape (units, n). [B]

    Parameters
    ----------
    size : gradients of one occurrence of each unit, shape (units, n). [B]
    first, least : what the first bucket and the others hold at least. [B]
    """
    unit, share = _tensors(model)
    distinct, which = np.unique(size, axis=1, return_inverse=True)
    found = np.empty_like(distinct)
    for i, column in enumerate(distinct.T):
        tensors = column[unit] * share
        messages = np.bincount(unit, tensors / np.maximum(_buckets(tensors, first, least), 1.0), len(column))
        found[:, i] = divide(np.bincount(unit, tensors, len(column)), messages)
    return np.where(size > 0, found[:, which.reshape(-1)], 0.0)


def _buckets(tensors: Array, first: float, least: float) -> Array:
    """Bytes of the bucket in which each of some tensors is. [B]"""
    found, begin, filled, needed = np.empty_like(tensors), 0, 0.0, first
    for i, size in enumerate(tensors.tolist()):
        filled += size
        if filled >= needed or i + 1 == len(tensors):
            found[begin : i + 1] = filled
            begin, filled, needed = i + 1, 0.0, least
    return found


@once
def _tensors(model: Transformer) -> tuple[Index, Array]:
    """Unit of each tensor of a model and its share of the unit's weights, in the order in which their gradients are ready."""
    parts, places = [part for _, part in units(model)], unit_places(model).tolist()
    order = places[:1]
    for layer, last in zip(model.layers, np.cumsum([len(layer.parts) for layer in model.layers]).tolist(), strict=True):
        order += places[1 + last - len(layer.parts) : 1 + last] * int(np.max(layer.count))
    unit, share = list[int](), list[float]()
    for place in [*order, *places[-1:]][::-1]:
        sizes = [*_sizes(parts[place], tied=model.tied and place == places[-1])]
        unit += [place] * len(sizes)
        share += [size / sum(sizes) for size in sizes]
    return np.array(unit, dtype=np.intp), np.array(share)


def _sizes(part: Part, *, tied: bool) -> Iterator[float]:
    """Parameters of each tensor of a part, last first; a head that is `tied` has no table of its own. [1]"""
    for matrix in part.matrices[::-1]:
        if not (tied and matrix.name == "vocabulary"):
            yield from (float(size) for size in _pieces(part, matrix) if size)
    if part.table:
        yield float(part.table)
    if part.vectors:
        yield float(part.vectors)


def _pieces(part: Part, matrix: Matrix) -> tuple[float, ...]:
    """A matrix as models of PyTorch keep it: queries, keys and values apart, and both branches of a gated MLP that all tokens pass. [1]"""
    if matrix.kv_heads:
        pair = matrix.parameters * matrix.kv_heads * matrix.kv_head / matrix.n
        return pair / 2.0, pair / 2.0, matrix.parameters - pair
    if part.gated and matrix.name.endswith("up") and not matrix.routed:
        return matrix.parameters / 2.0, matrix.parameters / 2.0
    return (matrix.parameters,)
