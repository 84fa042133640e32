"""Sharders: who holds which piece, by simple rules [1]_, by the predicted cost of pieces, or exactly.

An indexing rule names a rank at once. The others are greedy: pieces in descending cost, each to the rank with the least cost so far
that has memory for it. Where none has, it goes to the one with the most room, and the sharding is told to hold too much.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms", TPDS 2024, Table III.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.parallel.sharding.exact import GAP, MOST, least_loaded
from crossflow.parallel.sharding.pieces import Piece, Sharding, checked
from crossflow.workload.dlrm import Sharder, ShardingRule, Tables, TableSplit

PRICED = ("cost", "exact")  # sharders that go by what pieces cost
SECTOR = 32  # bytes of a row that a piece has at least: memory moves no fewer [B]
RULES: Mapping[str, Callable[[Tables], float]] = {
    "size": lambda x: x.rows,
    "lookup": lambda x: x.pooling * x.width,
    "norm-lookup": lambda x: x.pooling / x.rows,
    "size-lookup": lambda x: x.pooling * x.width * np.log10(x.rows),
}  # Table III of [1]_: E rows, L pooling, D width


def greedy(costs: Array, sizes: Array, ranks: int, capacity: float) -> Index:
    """Rank of every piece, shape (pieces,).

    Parameters
    ----------
    costs, sizes : of every piece, in any unit and in bytes. [B]
    capacity : bytes of pieces that a rank can hold. [B]
    """
    load, room, found = [0.0] * ranks, [capacity] * ranks, np.zeros(len(costs), dtype=np.intp)
    order, each, bytes_ = [(0.0, rank) for rank in range(ranks)], costs.tolist(), sizes.tolist()  # the least loaded first
    for i in np.argsort(-costs, kind="stable").tolist():
        full = []
        while order and room[order[0][1]] < bytes_[i]:
            full.append(heapq.heappop(order)[1])
        found[i] = rank = order[0][1] if order else room.index(max(room))
        load[rank] += each[i]
        room[rank] -= bytes_[i]
        if order:
            heapq.heapreplace(order, (load[rank], rank))
        for other in full:
            heapq.heappush(order, (load[other], other))
    return found


def share_out(
    by: Sharder, tables: Sequence[Tables], pieces: Sequence[Piece], costs: Array, sizes: Array, *,
    ranks: int, capacity: float, rule: ShardingRule, name: str,
) -> Sharding:  # fmt: skip
    """Pieces of all tables on ranks.

    Parameters
    ----------
    costs, sizes : predicted cost of every piece in each phase of a step, shape (phases, pieces), and its bytes, shape (pieces,). [s], [B]
    capacity : bytes of tables that a rank can hold. [B]
    """
    problem = told = ""
    if by == "naive":
        where = np.arange(len(pieces)) % ranks
    elif by == "random":
        rng = np.random.default_rng(rule.seed)
        where = rng.integers(ranks, size=len(pieces))
    elif by in PRICED:
        where = greedy(costs.sum(axis=0), sizes, ranks, capacity)
    else:
        where = greedy(np.array([RULES[by](piece.of(tables)) for piece in pieces]), sizes, ranks, capacity)
    if by == "exact" == rule.by or (by == "exact" and len(pieces) * ranks <= MOST):
        found = least_loaded(costs, sizes, ranks, capacity, where)
        where, gap = found.where, found.gap(costs, ranks)
        told = f", at most {gap:.1%} above the least load" if gap > 2.0 * GAP and rule.by == "exact" else ""
    elif by == "exact":
        problem = f"sharding exact: {len(pieces)} pieces on {ranks} ranks are more than {MOST:,} choices"
    shared = Sharding(name=name + told, ranks=ranks, pieces=tuple(pieces), where=tuple(map(int, where)), problem=problem)
    return checked(shared, sizes.tolist(), capacity, rule)


def parts_needed(costs: Array, ranks: int) -> Array:
    """Parts of every table that cost no more than the mean of all ranks, shape (tables, n); of tables whose costs have this shape. [1]"""
    mean = costs.sum(axis=0) / ranks
    known = (mean > 0) & np.isfinite(mean)  # an endless look-up asks for no number of parts
    return np.where(known, np.ceil(costs / np.where(known, mean, 1.0)), 1.0)


def cut(
    split: TableSplit, tables: Sequence[Tables], needed: Array, sizes: Array, *, ranks: int, capacity: float, element: float
) -> list[Piece]:
    """All tables, those in parts that do not fit a rank, or that alone cost more than the mean of all ranks.

    Parts are the fewest that fit and cost no more, at most one a rank; columns have a sector of memory at least. Where ranks cannot hold
    them together, parts are halved until they can, three times at most.

    Parameters
    ----------
    needed, sizes : parts that the cost of every whole table asks for (`parts_needed`), and its bytes, shape (tables,). [1], [B]
    element : bytes of an element. [B]
    """
    by_rows = split == "rows"
    most = np.array([min(ranks, table.rows if by_rows else max(int(table.width * element // SECTOR), 1)) for table in tables])
    parts = np.ones(len(tables))
    for room in (capacity, capacity / 2.0, capacity / 4.0, capacity / 8.0):
        if split == "none":
            break
        parts = np.minimum(np.maximum(np.ceil(sizes / room), needed), most)
        held = np.repeat(sizes / parts, parts.astype(np.intp))
        if np.bincount(greedy(held, held, ranks, capacity), held).max() <= capacity:
            break
    pieces = ((Piece.whole(i, table), int(count)) for i, (table, count) in enumerate(zip(tables, parts, strict=True)))
    return [part for piece, count in pieces for part in (piece.cut(count, by_rows=by_rows) if count > 1 else [piece])]
