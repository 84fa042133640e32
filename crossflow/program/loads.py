"""How many rows experts get: evenly, or as a power law deals them out, on the rank that gets the most, for which a layer waits.

The power law is that of measured expert layers (ai-dynamo/aiconfigurator, collector/helper.py: `sample_power_law`): shares of the experts
are drawn with a density of share^-skew, from 1 to 0.8 times the tokens, or from 0.01 to 2 where there are fewer rows than experts, and
scaled to all rows. Figures are means over a few draws with a fixed seed, so that they are the same every time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array, Index, divide

TILE_ROWS = (16, 32, 64, 128)  # rows of tiles of grouped products
DRAWS = 4  # of the shares of all experts
MANY = 8192.0  # tokens of which the share of the fullest rank hardly depends on how many they are
FILLINGS = 4  # times that rows which full experts cannot take go to others
BLOCK = 1 << 20  # shares that are worked on at once


@dataclass(frozen=True, kw_only=True)
class RowLoads:
    """What the rank with the most rows has of a layer of experts; arrays of one shape, of `tiles` with an axis before it."""

    experts: Array  # experts with any row. [1]
    rows: Array  # of all its experts. [1]
    tiles: Array  # of each height of `TILE_ROWS`, of all its experts. [1]

    def __getitem__(self, places: Index) -> RowLoads:
        """RowLoads of some layers."""
        return RowLoads(experts=self.experts[places], rows=self.rows[places], tiles=self.tiles[:, places])


def expert_loads(tokens: Array, active: Array, experts: Array, ranks: Array, load: Array, skew: Array, reached: Array) -> RowLoads:
    """RowLoads of the fullest rank, all arrays of one shape.

    Parameters
    ----------
    tokens, active : tokens of all ranks, and experts of each. [1]
    experts, ranks : experts of the layer, and ranks that share them out. [1]
    load : rows of the fullest rank over the mean, where `skew` is 0. [1]
    skew : exponent of the power law, 0 where experts are used alike. [1]
    reached : experts of a rank that any token goes to where they are used alike; as many as there can be where infinite. [1]
    """
    shape = np.broadcast_shapes(*(np.shape(one) for one in (tokens, active, experts, ranks, load, skew, reached)))
    table = np.stack([np.broadcast_to(one, shape).ravel() for one in (tokens, active, experts, ranks, load, skew, reached)], axis=1)
    rows, which = np.unique(table, axis=0, return_inverse=True)
    found = _even(*rows[:, [0, 1, 2, 3, 4, 6]].T)
    for skewed in _alike(rows):
        tokens, active, each = rows[skewed][:, [0, 1, 5]].T
        found[:, skewed] = _drawn(tokens, active, each, int(rows[skewed[0], 2]), int(rows[skewed[0], 3]))
    found = found[:, which.ravel()].reshape(-1, *shape)
    return RowLoads(experts=found[0], rows=found[1], tiles=found[2:])


def fullest(active: float | Array, experts: float | Array, ranks: Array, skew: float | Array) -> Array:
    """Rows of the fullest rank over the mean where very many tokens meet a power law. [1]"""
    each, whole, among, power = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in (active, experts, ranks, skew)))
    every = np.ones_like(among)
    found = expert_loads(MANY * every, each, whole, among, every, power, np.inf * every)
    return np.asarray(np.maximum(found.rows * among / (MANY * each), 1.0))


def _alike(rows: Array) -> list[Index]:
    """Places of rows with a skew, together where they have as many experts and ranks, no more at once than `BLOCK` allows."""
    found = []
    for experts, ranks in np.unique(rows[rows[:, 5] > 0][:, 2:4], axis=0):
        places = np.flatnonzero((rows[:, 5] > 0) & (rows[:, 2] == experts) & (rows[:, 3] == ranks))
        step = max(1, BLOCK // int(experts))
        found += [places[start : start + step] for start in range(0, len(places), step)]
    return found


def _even(tokens: Array, active: Array, experts: Array, ranks: Array, load: Array, reached: Array) -> Array:
    """Rows as even as whole rows can be over the experts that are reached."""
    rows = np.ceil(tokens * active / ranks * load * (1.0 - 1e-12))
    used = np.minimum(np.minimum(experts / ranks, rows), reached)
    least = np.floor(rows / used)
    more = rows - least * used
    heights = np.array(TILE_ROWS)[:, None]
    tiles = (used - more) * np.ceil(least / heights) + more * np.ceil((least + 1.0) / heights)
    return np.concatenate([[used, rows], tiles])


def _drawn(tokens: Array, active: Array, skew: Array, experts: int, ranks: int) -> Array:
    """Means over draws of a power law, of which no expert has more rows than there are tokens."""
    few = tokens * active <= experts
    low, high = np.where(few, 0.01, 1.0), np.where(few, 2.0, np.maximum(0.8 * tokens, 1.0 + 1e-9))
    power = np.where(np.abs(1.0 - skew) < 1e-6, 1e-6, 1.0 - skew)[:, None]
    ends = [end[:, None] ** power for end in (low, high)]
    total, places, own = (tokens * active)[:, None], np.arange(len(tokens)), -(-experts // ranks)
    found = np.zeros((2 + len(TILE_ROWS), len(tokens)))
    for draw in _uniform(experts):
        sums = np.cumsum(_capped((ends[0] + (ends[1] - ends[0]) * draw) ** (1.0 / power), total, tokens[:, None]), axis=1)
        rows = np.diff(np.round(sums / sums[:, -1:] * total), axis=1, prepend=0.0)
        of_ranks = np.pad(rows, ((0, 0), (0, own * ranks - experts))).reshape(len(rows), ranks, own)
        most = np.minimum(of_ranks[places, of_ranks.sum(axis=2).argmax(axis=1)], tokens[:, None])
        found += [(most > 0).sum(axis=1), most.sum(axis=1), *(np.ceil(most / height).sum(axis=1) for height in TILE_ROWS)]
    return found / DRAWS


def _capped(shares: Array, total: Array, most: Array) -> Array:
    """Shares of experts as rows that add up to `total`, of which no expert has more than `most`; others take what it cannot. [1]"""
    rows = shares * (total / shares.sum(axis=1, keepdims=True))
    for _ in range(FILLINGS if (rows > most).any() else 0):
        full = rows >= most
        rows = np.where(full, most, rows)
        left = np.where(full, 0.0, rows)
        rows = rows + left * divide(total - rows.sum(axis=1, keepdims=True), left.sum(axis=1, keepdims=True))
    return np.asarray(np.minimum(rows, most))


@functools.lru_cache(maxsize=64)
def _uniform(experts: int) -> Array:
    """Draws between 0 and 1, shape (draws, experts)."""
    generator = np.random.default_rng(0)
    return generator.random((DRAWS, experts))
