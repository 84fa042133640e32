"""Pareto fronts: designs that no other design beats in all objectives at once."""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array, Mask


def non_dominated(losses: Array) -> Mask:
    """Which columns no other column dominates: is nowhere worse and somewhere better. Of equal columns the first stays.

    Parameters
    ----------
    losses : shape (objectives, n), smaller is better.

    Returns
    -------
    ndarray of bool, shape (n,).

    Notes
    -----
    Columns are walked in lexicographic order, in which none is dominated by a later one; each that stays strikes out all
    that it dominates, so that the work is n times the size of the front.
    """
    n = losses.shape[1]
    order = np.lexsort((np.arange(n), *losses[::-1]))
    alive = losses[:, order]
    index = order
    front: list[int] = []
    while index.size:
        front.append(int(index[0]))
        beaten = (alive >= alive[:, :1]).all(axis=0)
        alive, index = alive[:, ~beaten], index[~beaten]
    result = np.zeros(n, dtype=bool)
    result[front] = True
    return result


def beaten(losses: Array, others: Array) -> Mask:
    """Which columns equal one of others or are dominated by it, shape (n,); losses of shapes (objectives, n) and (objectives, m)."""
    found = np.ones((losses.shape[1], others.shape[1]), dtype=bool)
    for own, other in zip(losses, others, strict=True):
        found &= other <= own[:, None]
    return np.asarray(found.any(axis=1))


def ahead(losses: Array, others: Array) -> Array:
    """By how much each column is ahead of the nearest of others, in the objective in which it is ahead most, shape (n,).

    Positive where no other equals or dominates it; finite losses of shapes (objectives, n) and (objectives, m).
    """
    found = np.full((losses.shape[1], others.shape[1]), -np.inf)
    for own, other in zip(losses, others, strict=True):
        np.maximum(found, other - own[:, None], out=found)
    return np.asarray(found.min(axis=1))
