"""The sharding with the least load: a mixed-integer program.

Ranks meet after the look-ups, in each exchange, and after the updates, so that the load of a step is the sum of what the fullest rank
takes in each of these phases; with one phase it is the load of the most loaded rank. Costs have the shape (phases, pieces).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crossflow.base.arrays import Array, Index

MOST = 20_000  # choices of a rank for a piece that are searched
GAP = 5e-3  # of the load, at which a search ends
NODES = 20  # of the search tree, after which it ends; no limit of time, so that equal inputs have equal answers
TINY = 1e-9  # by which sums of floats may differ


class LeastLoaded(NamedTuple):
    """A sharding, and how far it may be from the best."""

    where: Index  # rank of every piece, shape (pieces,)
    bound: float  # load that no sharding is below

    def gap(self, costs: Array, ranks: int) -> float:
        """How much its load is above the bound at most. [1]"""
        return fullest(costs, self.where, ranks) / self.bound - 1.0 if self.bound > 0 else 0.0


def fullest(costs: Array, where: Index, ranks: int) -> float:
    """Sum over phases of the cost on the fullest rank."""
    return float(sum(np.bincount(where, phase, minlength=ranks).max() for phase in costs))


def held(sizes: Array, where: Index, ranks: int) -> float:
    """Bytes on the fullest rank. [B]"""
    return float(np.bincount(where, sizes, minlength=ranks).max())


def least_loaded(costs: Array, sizes: Array, ranks: int, capacity: float, start: Index) -> LeastLoaded:
    """Rank of every piece, so that the load is least and all ranks have memory; `start` where none better is found, or too many are."""
    bound = float(_bounds(costs, ranks).sum())
    if ranks == 1 or len(sizes) * ranks > MOST:
        return LeastLoaded(start, bound)
    start = _exchanged(costs, sizes, ranks, capacity, start)
    fits, before = held(sizes, start, ranks) <= capacity, fullest(costs, start, ranks)
    if fits and before <= bound * (1.0 + GAP):
        return LeastLoaded(start, bound)
    where, proven = _solved(costs, sizes, ranks, capacity)
    bound = max(bound, proven)
    if where is None or held(sizes, where, ranks) > capacity * (1.0 + TINY):
        return LeastLoaded(start, bound)
    where = _exchanged(costs, sizes, ranks, capacity, where)
    return LeastLoaded(where if not fits or fullest(costs, where, ranks) < before else start, bound)


def _exchanged(costs: Array, sizes: Array, ranks: int, capacity: float, where: Index) -> Index:
    """Exchange a piece of a rank that is the fullest in a phase for one of another rank, or for none, as long as the load falls."""
    found, pieces, none = where.copy(), len(sizes), np.zeros((len(costs), 1))
    costs, sizes = np.hstack([costs, none]), np.append(sizes, 0.0)  # and nothing, for moves
    for _ in range(2 * pieces):
        load = np.stack([np.bincount(found, phase[:-1], minlength=ranks) for phase in costs])
        room = capacity - np.bincount(found, sizes[:-1], minlength=ranks)
        best = load.max(axis=1).sum() * (1.0 - TINY)
        chosen: tuple[int, int, int] | None = None
        for rank in dict.fromkeys(load.argmax(axis=1).tolist()):
            mine, others = np.flatnonzero(found == rank), np.append(np.flatnonzero(found != rank), np.full(ranks - 1, pieces))
            to = np.append(found[others[: len(others) - ranks + 1]], [other for other in range(ranks) if other != rank])
            less, bytes_ = costs[:, mine, None] - costs[:, None, others], sizes[mine][:, None] - sizes[others]
            rest = np.stack([np.delete(load, [rank, other], axis=1).max(axis=1, initial=0.0) for other in range(ranks)], axis=1)
            after = np.maximum(np.maximum(load[:, rank, None, None] - less, load[:, None, to] + less), rest[:, None, to]).sum(axis=0)
            after[(room[to] - bytes_ < np.minimum(room[to], 0.0)) | (room[rank] + bytes_ < min(room[rank], 0.0))] = np.inf  # too full
            if after.size and after.min() < best:
                i, j = np.unravel_index(after.argmin(), after.shape)
                best, chosen = after[i, j], (int(mine[i]), int(others[j]), int(to[j]))
        if chosen is None:
            break
        piece, other, rank_of_other = chosen
        if other < pieces:
            found[other] = found[piece]
        found[piece] = rank_of_other
    return found


def _bounds(costs: Array, ranks: int) -> Array:
    """Load in each phase that no sharding is below: the mean, or the most costly piece."""
    return np.asarray(np.maximum(costs.sum(axis=1) / ranks, costs.max(axis=1)))


def _solved(costs: Array, sizes: Array, ranks: int, capacity: float) -> tuple[Index | None, float]:
    """The best sharding that the search finds, None where it finds none, and the load that it proves no sharding is below.

    Minimise the sum of z, where x of each kind of equal pieces on each rank is a whole number: over ranks they add up to all of the kind,
    on every rank sum of cost x <= z in every phase and sum of size x <= capacity. Ranks are alike: in the order of the first phase.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    pairs, kind, count = np.unique(np.vstack([costs, sizes]), axis=1, return_inverse=True, return_counts=True)
    kinds, phases, each, scale = len(count), len(costs), np.eye(ranks), costs.sum() / ranks or 1.0
    none = np.zeros((ranks, phases))
    loads = [np.kron(each, cost / scale) for cost in pairs[:-1]]  # x of the first rank, then of the second
    rows = [
        LinearConstraint(np.hstack([np.tile(np.eye(kinds), ranks), np.zeros((kinds, phases))]), count, count),
        LinearConstraint(np.hstack([np.kron(each, pairs[-1] / capacity), none]), -np.inf, 1.0),
        *(LinearConstraint(np.hstack([load, none - np.eye(phases)[i]]), -np.inf, 0.0) for i, load in enumerate(loads)),
        LinearConstraint(np.hstack([loads[0][1:] - loads[0][:-1], none[1:]]), -np.inf, 0.0),
    ]
    whole = np.append(np.ones(kinds * ranks), np.zeros(phases))
    found = milp(
        1.0 - whole,
        integrality=whole,
        bounds=Bounds(
            np.append(np.zeros(kinds * ranks), _bounds(costs, ranks) / scale), np.append(np.tile(count, ranks), np.full(phases, np.inf))
        ),
        constraints=rows,
        options={"mip_rel_gap": GAP, "node_limit": NODES},
    )
    proven = scale * (found.mip_dual_bound or 0.0)
    if found.x is None:
        return None, 0.0
    on = np.round(found.x[: kinds * ranks]).astype(np.intp).reshape(ranks, kinds)
    where = np.zeros(len(sizes), dtype=np.intp)
    for i in range(kinds):
        where[np.flatnonzero(kind.ravel() == i)] = np.repeat(np.arange(ranks), on[:, i])
    return where, proven
