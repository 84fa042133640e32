"""How many rows experts get: evenly, or as a power law deals them out, on the rank that gets the most, for which a layer waits.

The power law is that of measured expert layers (ai-dynamo/aiconfigurator, collector/helper.py: `sample_power_law`): shares of the experts
are drawn with a density of share^-skew, from 1 to 0.8 times the tokens, or from 0.01 to 2 where there are fewer rows than experts, and
scaled to all rows. Figures are means over a few draws with a fixed seed, so that they are the same every time.

Experts lie on the ranks in their order, or as a balancer places them. Where there are more places than experts, it gives the fullest
experts copies; it packs all of them so that ranks have as many places and loads as alike as they get (EPLB [1]_, its global policy). It
knows the shares of the experts as they are drawn; rows of an expert are divided evenly over its copies.

References
----------
.. [1] DeepSeek, Expert Parallelism Load Balancer, 2025 (github.com/deepseek-ai/EPLB): `replicate_experts`, `balanced_packing`.
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


def expert_loads(
    tokens: Array, active: Array, experts: Array, ranks: Array, load: Array, skew: Array, reached: Array, slots: Array
) -> RowLoads:
    """RowLoads of the fullest rank, all arrays of one shape.

    Parameters
    ----------
    tokens, active : tokens of all ranks, and experts of each. [1]
    experts, ranks : experts of the layer, and ranks that share them out. [1]
    load : rows of the fullest rank over the mean, where `skew` is 0. [1]
    skew : exponent of the power law, 0 where experts are used alike. [1]
    reached : experts of a rank that any token goes to where they are used alike; as many as there can be where infinite. [1]
    slots : places for experts on all ranks that a balancer fills, more than experts where some have copies; 0 where experts lie in
        their order. [1]
    """
    given = (tokens, active, experts, ranks, load, skew, reached, slots)
    shape = np.broadcast_shapes(*(np.shape(one) for one in given))
    table = np.stack([np.broadcast_to(one, shape).ravel() for one in given], axis=1)
    rows, which = np.unique(table, axis=0, return_inverse=True)
    filled = np.where(rows[:, 7] > 0, rows[:, 7], rows[:, 2])
    found = _even(rows[:, 0], rows[:, 1], filled, rows[:, 3], rows[:, 4], rows[:, 6])
    for skewed in _alike(rows):
        tokens, active, each = rows[skewed][:, [0, 1, 5]].T
        found[:, skewed] = _drawn(tokens, active, each, *map(int, rows[skewed[0], [2, 3, 7]]))
    found = found[:, which.ravel()].reshape(-1, *shape)
    return RowLoads(experts=found[0], rows=found[1], tiles=found[2:])


def fullest(active: float | Array, experts: float | Array, ranks: Array, skew: float | Array, slots: float | Array) -> Array:
    """Rows of the fullest rank over the mean where very many tokens meet a power law, or copies of experts that are used alike. [1]"""
    each, whole, among, power, places = np.broadcast_arrays(
        *(np.asarray(one, dtype=float) for one in (active, experts, ranks, skew, slots))
    )
    every = np.ones_like(among)
    found = expert_loads(MANY * every, each, whole, among, every, power, np.inf * every, places)
    copied = [
        1.0 if own <= many else ranked / many * _share_of_fullest(int(many), int(ranked), int(own))
        for many, ranked, own in zip(whole.ravel(), among.ravel(), places.ravel(), strict=True)
    ]
    drawn = np.maximum(found.rows * among / (MANY * each), 1.0)
    return np.asarray(np.where(power > 0, drawn, np.reshape(copied, among.shape)))


def _alike(rows: Array) -> list[Index]:
    """Places of rows with a skew, together where they have as many experts, ranks and places, no more at once than `BLOCK` allows."""
    found = []
    for alike in np.unique(rows[rows[:, 5] > 0][:, [2, 3, 7]], axis=0):
        places = np.flatnonzero((rows[:, 5] > 0) & (rows[:, [2, 3, 7]] == alike).all(axis=1))
        step = max(1, BLOCK // int(max(alike[0], alike[2])))
        found += [places[start : start + step] for start in range(0, len(places), step)]
    return found


def _even(tokens: Array, active: Array, slots: Array, ranks: Array, load: Array, reached: Array) -> Array:
    """Rows as even as whole rows can be over the experts that are reached."""
    rows = np.ceil(tokens * active / ranks * load * (1.0 - 1e-12))
    used = np.minimum(np.minimum(slots / ranks, rows), reached)
    least = np.floor(rows / used)
    more = rows - least * used
    heights = np.array(TILE_ROWS)[:, None]
    tiles = (used - more) * np.ceil(least / heights) + more * np.ceil((least + 1.0) / heights)
    return np.concatenate([[used, rows], tiles])


def _drawn(tokens: Array, active: Array, skew: Array, experts: int, ranks: int, slots: int) -> Array:
    """Means over draws of a power law, of which no expert has more rows than there are tokens."""
    places, found = np.arange(len(tokens)), np.zeros((2 + len(TILE_ROWS), len(tokens)))
    for draw in range(DRAWS):
        rows = _rows_of_experts(tokens, active, skew, experts, draw)
        of_ranks = _in_order(rows, ranks) if slots == 0 else _balanced(rows, tokens, active, skew, ranks, slots, draw)
        most = np.minimum(of_ranks[places, of_ranks.sum(axis=2).argmax(axis=1)], tokens[:, None])
        found += [(most > 0).sum(axis=1), most.sum(axis=1), *(np.ceil(most / height).sum(axis=1) for height in TILE_ROWS)]
    return found / DRAWS


def _rows_of_experts(tokens: Array, active: Array, skew: Array, experts: int, draw: int) -> Array:
    """Whole rows of every expert in one draw, all of which add up to the rows of all tokens, shape (layers, experts). [1]"""
    few = tokens * active <= experts
    low, high = np.where(few, 0.01, 1.0), np.where(few, 2.0, np.maximum(0.8 * tokens, 1.0 + 1e-9))
    power = np.where(np.abs(1.0 - skew) < 1e-6, 1e-6, 1.0 - skew)[:, None]
    ends, total = [end[:, None] ** power for end in (low, high)], (tokens * active)[:, None]
    shares = (ends[0] + (ends[1] - ends[0]) * _uniform(experts)[draw]) ** (1.0 / power)
    sums = np.cumsum(_capped(shares, total, tokens[:, None]), axis=1)
    return np.asarray(np.diff(np.round(sums / sums[:, -1:] * total), axis=1, prepend=0.0))


def _in_order(rows: Array, ranks: int) -> Array:
    """Rows of the experts of every rank, which lie there in their order, shape (layers, ranks, experts of a rank). [1]"""
    own = -(-rows.shape[1] // ranks)
    return np.pad(rows, ((0, 0), (0, own * ranks - rows.shape[1]))).reshape(len(rows), ranks, own)


def _balanced(rows: Array, tokens: Array, active: Array, skew: Array, ranks: int, slots: int, draw: int) -> Array:
    """The same where a balancer has given copies to the fullest experts and packed all of them, shape (layers, ranks, places). [1]

    It has seen about as many tokens at once, to a power of two.
    """
    found = np.empty((len(rows), ranks, slots // ranks))
    kinds = np.stack([2.0 ** np.round(np.log2(tokens)), active, skew], axis=1)
    for kind in np.unique(kinds, axis=0):
        mine = (kinds == kind).all(axis=1)
        expert, copy, copies = _packed_draw(*kind, rows.shape[1], ranks, slots, draw)
        each, more = np.divmod(rows[mine], copies)
        found[mine] = each[:, expert] + (copy < more[:, expert])
    return found


@functools.lru_cache(maxsize=4096)
def _packed_draw(tokens: float, active: float, skew: float, experts: int, ranks: int, slots: int, draw: int) -> tuple[Index, Index, Array]:
    """`packed` for the rows of so many tokens in one draw."""
    one = np.ones(1)
    return packed(_rows_of_experts(tokens * one, active * one, skew * one, experts, draw)[0], ranks, slots)


@functools.lru_cache(maxsize=256)
def _share_of_fullest(experts: int, ranks: int, slots: int) -> float:
    """Experts of the fullest rank where experts are used alike and a balancer has placed them, a copy as its part of one. [1]"""
    expert, _, copies = packed(np.ones(experts), ranks, slots)
    return float((1.0 / copies)[expert].sum(axis=1).max())


def packed(loads: Array, ranks: int, slots: int) -> tuple[Index, Index, Array]:
    """Which expert, and which copy of it, lies in every place of every rank, shape (ranks, places), and how many copies each has.

    The expert whose copies have most to do gets one more, until all places are taken; then the fullest copy goes to the rank that has
    least to do and a place left (EPLB). An expert has no more copies than there are ranks.

    >>> packed(np.array([6.0, 1.0, 2.0]), 2, 4)
    (array([[0, 2],
           [0, 1]]), array([[0, 0],
           [1, 0]]), array([2., 1., 1.]))
    """
    copies = np.ones(len(loads))
    for _ in range(slots - len(loads)):
        copies[np.where(copies < ranks, loads / copies, -1.0).argmax()] += 1.0
    expert = np.repeat(np.arange(len(loads)), copies.astype(np.intp))
    copy = np.arange(slots) - np.repeat(np.cumsum(copies) - copies, copies.astype(np.intp)).astype(np.intp)
    places, taken, busy = np.zeros((ranks, slots // ranks), dtype=np.intp), np.zeros(ranks, dtype=np.intp), np.zeros(ranks)
    each = loads[expert] / copies[expert]
    for slot in np.argsort(-each, kind="stable"):
        rank = int(np.where(taken < places.shape[1], busy, np.inf).argmin())
        places[rank, taken[rank]] = slot
        taken[rank] += 1
        busy[rank] += each[slot]
    return expert[places], copy[places], copies


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
