"""How many rows experts get: evenly, or as a distribution deals them out, on the rank that gets the most, for which a layer waits.

The power law is that of measured expert layers (ai-dynamo/aiconfigurator, collector/helper.py: `sample_power_law`): shares of the experts
are drawn with a density of share^-skew, from 1 to 0.8 times the tokens, or from 0.01 to 2 where there are fewer rows than experts, and
scaled to all rows. Figures are means over a few draws with a fixed seed, so that they are the same every time.

Services were measured to use experts as a lognormal distribution does (`variation`, the standard deviation over the mean). Of DeepSeek-R1
on 32 ranks [2]_ it is 1.28, in the mean of layers and steps. The distribution with that one number has the fullest expert at 10.6 times the
mean (measured 11.9), the fullest of 32 ranks with experts in their order at 2.3 (2.6), with 32 copies the fullest place at 2.6 (2.8) and
the fullest rank at 1.06 (1.11). A power law cannot have all of them: the exponent 1.01 gives 8.2, 2.5, 3.9 and 1.00, the exponent 1.2 gives
15, 3.2, 4.6 and 1.02. Shares are the quantiles of the distribution, dealt out to the experts at random. Rows of a batch scatter around the
shares by chance, as those of independent tokens do.

Experts lie on the ranks in their order, or as a balancer places them. Where there are more places than experts, it gives the fullest
experts copies; it packs all of them so that ranks have as many places and loads as alike as they get (EPLB [1]_, its global policy). It
knows the shares of the experts as they are drawn; rows of an expert are divided evenly over its copies.

References
----------
.. [1] DeepSeek, Expert Parallelism Load Balancer, 2025 (github.com/deepseek-ai/EPLB): `replicate_experts`, `balanced_packing`.
.. [2] NVIDIA, "Scaling Expert Parallelism in TensorRT-LLM (Part 1)", 2025, Table 1 (TensorRT-LLM, docs/source/blogs/tech_blog): standard
   deviation 164.1 of a mean of 128 rows, imbalance ratios 10.948 and 1.564, with 288 places 1.792 and 0.109.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from crossflow.base.arrays import Array, Index, divide

TILE_ROWS = (16, 32, 64, 128)  # rows of tiles of grouped products
DRAWS = 4  # of the shares of all experts by a power law
LOTS = 16  # of which experts have which shares of a lognormal distribution, and of how rows scatter
MANY = 8192.0  # tokens of which the share of the fullest rank hardly depends on how many they are
ENDLESS = 2.0**40  # tokens whose rows no longer scatter
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
    tokens: Array, active: Array, experts: Array, ranks: Array, load: Array, skew: Array, reached: Array, slots: Array,
    variation: Array | float = 0.0,
) -> RowLoads:  # fmt: skip
    """RowLoads of the fullest rank, all arrays of one shape.

    Parameters
    ----------
    tokens, active : tokens of all ranks, and experts of each. [1]
    experts, ranks : experts of the layer, and ranks that share them out. [1]
    load : rows of the fullest rank over the mean, where `skew` and `variation` are 0. [1]
    skew : exponent of the power law, 0 where experts are used alike. [1]
    reached : experts of a rank that any token goes to where they are used alike; as many as there can be where infinite. [1]
    slots : places for experts on all ranks that a balancer fills, more than experts where some have copies; 0 where experts lie in
        their order. [1]
    variation : standard deviation of the rows of experts over their mean, lognormal, 0 where a power law holds or none. [1]
    """
    given = (tokens, active, experts, ranks, load, skew, reached, slots, variation)
    shape = np.broadcast_shapes(*(np.shape(one) for one in given))
    table = np.stack([np.broadcast_to(one, shape).ravel() for one in given], axis=1, dtype=float)
    rows, which = np.unique(table, axis=0, return_inverse=True)
    filled = np.where(rows[:, 7] > 0, rows[:, 7], rows[:, 2])
    found = _even(rows[:, 0], rows[:, 1], filled, rows[:, 3], rows[:, 4], rows[:, 6])
    for skewed in _alike(rows):
        law, parameter = (_Lognormal, 8) if rows[skewed[0], 8] > 0 else (_PowerLaw, 5)
        sizes = rows[skewed][:, [0, 1, parameter]].T
        found[:, skewed] = _drawn_once(law, sizes.tobytes(), *map(int, rows[skewed[0], [2, 3, 7]]))
    found = found[:, which.ravel()].reshape(-1, *shape)
    return RowLoads(experts=found[0], rows=found[1], tiles=found[2:])


def fullest(
    active: float | Array, experts: float | Array, ranks: Array, skew: float | Array, slots: float | Array, variation: float | Array = 0.0
) -> Array:
    """Rows of the fullest rank over the mean where very many tokens meet a law, or copies of experts that are used alike. [1]"""
    each, whole, among, power, places, varied = np.broadcast_arrays(
        *(np.asarray(one, dtype=float) for one in (active, experts, ranks, skew, slots, variation))
    )
    every = np.ones_like(among)
    many = np.where(varied > 0, ENDLESS, MANY)
    found = expert_loads(many, each, whole, among, every, power, np.inf * every, places, varied)
    copied = [
        1.0 if own <= many else ranked / many * _share_of_fullest(int(many), int(ranked), int(own))
        for many, ranked, own in zip(whole.ravel(), among.ravel(), places.ravel(), strict=True)
    ]
    drawn = np.maximum(found.rows * among / (many * each), 1.0)
    return np.asarray(np.where((power > 0) | (varied > 0), drawn, np.reshape(copied, among.shape)))


def _alike(rows: Array) -> list[Index]:
    """Places of rows with a law, together where they have as many experts, ranks and places, no more at once than `BLOCK` allows."""
    found, law = [], np.where(rows[:, 8] > 0, 2.0, rows[:, 5] > 0)
    kinds = np.column_stack([rows[:, [2, 3, 7]], law])
    for alike in np.unique(kinds[law > 0], axis=0):
        places = np.flatnonzero((kinds == alike).all(axis=1))
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


@dataclass(frozen=True)
class _PowerLaw:
    """Layers to whose experts a power law deals out the rows of tokens; arrays of one shape."""

    tokens: Array
    active: Array
    skew: Array

    draws = DRAWS

    def rows(self, experts: int, draw: int) -> Array:
        """Whole rows of every expert in one draw, all of which add up to the rows of all tokens, shape (layers, experts). [1]"""
        tokens, few = self.tokens, self.tokens * self.active <= experts
        low, high = np.where(few, 0.01, 1.0), np.where(few, 2.0, np.maximum(0.8 * tokens, 1.0 + 1e-9))
        power = np.where(np.abs(1.0 - self.skew) < 1e-6, 1e-6, 1.0 - self.skew)[:, None]
        ends, total = [end[:, None] ** power for end in (low, high)], (tokens * self.active)[:, None]
        shares = (ends[0] + (ends[1] - ends[0]) * _uniform(experts)[draw]) ** (1.0 / power)
        return _whole(_capped(shares, total, tokens[:, None]), total)

    def known(self, experts: int, draw: int) -> Array:
        """Rows of the experts that a balancer has seen: of about as many tokens at once, to a power of two. [1]"""
        return _PowerLaw(np.asarray(2.0 ** np.round(np.log2(self.tokens))), self.active, self.skew).rows(experts, draw)


@dataclass(frozen=True)
class _Lognormal:
    """Layers to whose experts a lognormal distribution deals out the rows of tokens; arrays of one shape."""

    tokens: Array
    active: Array
    variation: Array  # standard deviation over the mean. [1]

    draws = LOTS

    def known(self, experts: int, draw: int) -> Array:
        """Rows of the experts for each token, in the mean of very many batches, shape (layers, experts). [1]"""
        spread = np.sqrt(np.log1p(self.variation**2))[:, None]
        return _capped(np.exp(spread * _normal(experts)[0, draw]), self.active[:, None], np.ones((len(spread), 1)))

    def rows(self, experts: int, draw: int) -> Array:
        """Whole rows of every expert in one batch, which scatter by chance, shape (layers, experts). [1]"""
        mean = self.known(experts, draw) * self.tokens[:, None]
        scattered = np.clip(mean + np.sqrt(mean) * _normal(experts)[1, draw], 0.0, self.tokens[:, None])
        return _whole(scattered, (self.tokens * self.active)[:, None])


_Law = _PowerLaw | _Lognormal


@functools.lru_cache(maxsize=1024)
def _drawn_once(law: type[_Law], given: bytes, experts: int, ranks: int, slots: int) -> Array:
    """`_drawn` of a law with the three arrays that it takes, worked out once."""
    return _drawn(law(*np.frombuffer(given).reshape(3, -1)), experts, ranks, slots)


def _drawn(law: _Law, experts: int, ranks: int, slots: int) -> Array:
    """Means over draws of a law, of which no expert has more rows than there are tokens."""
    places, found = np.arange(len(law.tokens)), np.zeros((2 + len(TILE_ROWS), len(law.tokens)))
    for draw in range(law.draws):
        rows = law.rows(experts, draw)
        of_ranks = _in_order(rows, ranks) if slots == 0 else _balanced(rows, law.known(experts, draw), ranks, slots)
        most = np.minimum(of_ranks[places, of_ranks.sum(axis=2).argmax(axis=1)], law.tokens[:, None])
        found += [(most > 0).sum(axis=1), most.sum(axis=1), *(np.ceil(most / height).sum(axis=1) for height in TILE_ROWS)]
    return found / law.draws


def _whole(rows: Array, total: Array) -> Array:
    """Rows as whole ones, all of which add up to the total, shape (layers, experts). [1]"""
    sums = np.cumsum(rows, axis=1)
    return np.asarray(np.diff(np.round(sums / sums[:, -1:] * total), axis=1, prepend=0.0))


def _in_order(rows: Array, ranks: int) -> Array:
    """Rows of the experts of every rank, which lie there in their order, shape (layers, ranks, experts of a rank). [1]"""
    own = -(-rows.shape[1] // ranks)
    return np.pad(rows, ((0, 0), (0, own * ranks - rows.shape[1]))).reshape(len(rows), ranks, own)


def _balanced(rows: Array, known: Array, ranks: int, slots: int) -> Array:
    """The same where a balancer has given copies to the experts known as the fullest and packed all of them.

    Shape (layers, ranks, places). [1]
    """
    found = np.empty((len(rows), ranks, slots // ranks))
    seen = [one.tobytes() for one in known]
    for alike in dict.fromkeys(seen):
        mine = np.array([one == alike for one in seen])
        expert, copy, copies = _packed_once(alike, ranks, slots)
        each, more = np.divmod(rows[mine], copies)
        found[mine] = each[:, expert] + (copy < more[:, expert])
    return found


@functools.lru_cache(maxsize=4096)
def _packed_once(loads: bytes, ranks: int, slots: int) -> tuple[Index, Index, Array]:
    """`packed`, worked out once."""
    return packed(np.frombuffer(loads), ranks, slots)


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


@functools.lru_cache(maxsize=64)
def _normal(experts: int) -> Array:
    """Quantiles of a normal distribution in random order, and normal draws, shape (2, draws, experts)."""
    generator, normal = np.random.default_rng(0), NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / experts) for i in range(experts)])
    return np.stack([[generator.permutation(quantiles) for _ in range(LOTS)], generator.standard_normal((LOTS, experts))])
