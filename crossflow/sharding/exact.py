"""The sharding whose most loaded rank has the least load: a mixed-integer program."""

from __future__ import annotations

import numpy as np

from crossflow.arrays import Array, Index

MOST = 20_000  # choices of a rank for a piece that are searched
GAP = 2e-3  # of the load, at which a search ends
NODES = 100  # of the search tree, after which it ends; no limit of time, so that equal inputs have equal answers


def largest(costs: Array, where: Index, ranks: int) -> float:
    """Cost of the most loaded rank."""
    return float(np.bincount(where, costs, minlength=ranks).max())


def least_largest(costs: Array, sizes: Array, ranks: int, capacity: float, start: Index) -> Index:
    """Rank of every piece, so that the most loaded rank has the least load, and all have memory; `start` where none better is found."""
    held = float(np.bincount(start, sizes, minlength=ranks).max())
    before, bound = largest(costs, start, ranks), _bound(costs, ranks)
    if held <= capacity and before <= bound * (1.0 + GAP):
        return start
    where = _solved(costs, sizes, ranks, capacity, before if held <= capacity else np.inf)
    if where is None or float(np.bincount(where, sizes, minlength=ranks).max()) > capacity * (1.0 + 1e-9):
        return start
    return where if held > capacity or largest(costs, where, ranks) < before else start


def _bound(costs: Array, ranks: int) -> float:
    """Load that no sharding is below: the mean, the most costly piece, or of the `ranks` + 1 most costly the two least together."""
    most = np.sort(costs)[::-1]
    pair = most[ranks - 1] + most[ranks] if len(costs) > ranks else 0.0
    return float(max(costs.sum() / ranks, most[0], pair))


def _solved(costs: Array, sizes: Array, ranks: int, capacity: float, before: float) -> Index | None:
    """Minimise z, where x of each kind of equal pieces on each rank is a whole number: over ranks they add up to all of the kind, on every
    rank sum of cost x <= z and sum of size x <= capacity. Ranks are alike; they are in the order of their loads.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    pairs, kind, count = np.unique(np.stack([costs, sizes]), axis=1, return_inverse=True, return_counts=True)
    kinds, scale, each = len(count), costs.sum() / ranks or 1.0, np.eye(ranks)
    cost, size, none = pairs[0] / scale, pairs[1] / capacity, np.zeros((ranks, 1))
    loads = np.kron(each, cost)  # x of the first rank, then of the second
    rows = [
        LinearConstraint(np.hstack([np.tile(np.eye(kinds), ranks), np.zeros((kinds, 1))]), count, count),
        LinearConstraint(np.hstack([loads, none - 1.0]), -np.inf, 0.0),
        LinearConstraint(np.hstack([np.kron(each, size), none]), -np.inf, 1.0),
        LinearConstraint(np.hstack([loads[1:] - loads[:-1], none[1:]]), -np.inf, 0.0),
    ]
    upper = np.append(np.tile(count, ranks), before / scale)
    found = milp(
        np.append(np.zeros(kinds * ranks), 1.0),
        integrality=np.append(np.ones(kinds * ranks), 0.0),
        bounds=Bounds(np.append(np.zeros(kinds * ranks), _bound(costs, ranks) / scale), upper),
        constraints=rows if ranks > 1 else rows[:3],
        options={"mip_rel_gap": GAP, "node_limit": NODES},
    )
    if found.x is None:
        return None
    held = np.round(found.x[:-1]).astype(np.intp).reshape(ranks, kinds)
    where = np.zeros(len(costs), dtype=np.intp)
    for i in range(kinds):
        where[np.flatnonzero(kind.ravel() == i)] = np.repeat(np.arange(ranks), held[:, i])
    return where
