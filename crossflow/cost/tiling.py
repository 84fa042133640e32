"""Tiling search of the hierarchical roofline: how often each level of memory is read for a matrix product [1]_.

The traffic into a level depends on the tile held there and on the tile of the level outside it, so the levels nearly
decouple. Where the paper draws N random tiles at each of L levels and costs all N^L combinations, here each level, from
main memory inwards, tries some twenty good tiles: for each operand that may stay (three dataflows of the loop nest), two
splits of the capacity between it and the streams, and three aspect ratios. A tile is chosen by the time it causes at its
own level and a bound of the time it leaves to the level inside.

Arrays have shape (tiles, gemms, n).

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 6.1-6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.architecture import Level
from crossflow.arrays import Array

# Candidate tiles: which operand stays (C, B, A), the share of the capacity it gets, its aspect ratio.
_STAYS = np.repeat([0, 1, 2], 6)[:, None, None]
_SHARE = np.tile(np.repeat([0.34, 0.8], 3), 3)[:, None, None]
_ASPECT = np.tile([0.5, 1.0, 2.0], 6)[:, None, None]
CANDIDATES = _STAYS.shape[0]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A matrix product, or the part of it that one tile holds: dims of shape (gemms, n) or (tiles, gemms, n).

    Attributes
    ----------
    m, n, k : dimensions; not whole numbers where a dimension is cut evenly.
    repeats : how many such blocks make up the whole product.
    accumulate : share of the visits to C that read it before they write it.
    """

    m: Array
    n: Array
    k: Array
    repeats: Array
    accumulate: Array


def traffic_by_level(m: Array, n: Array, k: Array, accumulate: Array, element: float, levels: Sequence[Level]) -> tuple[Array, Block]:
    """Bytes that every level but the nearest delivers to the level inside it, each summed over the device.

    Parameters
    ----------
    m, n, k : shape (gemms, 1) or (gemms, n). Dimensions. [1]
    accumulate : shape (gemms, 1). 1 where C is read before it is written, 0 where not.
    element : size of an element. [B]
    levels : memory levels from the nearest to main memory.

    Returns
    -------
    traffic : shape (levels - 1, gemms, n); row i is what level i + 1 (counted from the nearest) delivers. [B]
    tile : the block that the nearest level holds.
    """
    work = m * n * k
    block = Block(m=m, n=n, k=k, repeats=np.ones_like(work), accumulate=accumulate)
    moved: list[Array] = []
    for inner in range(len(levels) - 2, -1, -1):
        source, here = levels[inner + 1], levels[inner]
        capacity = here.capacity / element
        # A level with many instances is filled only as far as the work spreads over all of them.
        if here.scope != "global":
            capacity = np.minimum(capacity, 3.0 * (work / np.maximum(here.instances, 1.0)) ** (2.0 / 3.0))
        nearer = levels[inner - 1] if inner > 0 else None
        rate = here.bandwidth if inner > 0 else None
        block, amount = _best_tile(block, np.maximum(capacity, 3.0), element, source.bandwidth, nearer, rate)
        moved.append(amount)
    return np.stack(np.broadcast_arrays(*reversed(moved))), block


def _best_tile(
    outer: Block, capacity: Array, element: float, bandwidth: Array, nearer: Level | None, rate: Array | None
) -> tuple[Block, Array]:
    """Best tile of one level within the tile of the level outside, and the bytes that it makes cross between them."""
    tiles = candidates(outer, capacity)
    elements = crossing(outer, tiles)
    time = elements * element / np.maximum(bandwidth, 1e-300)
    if nearer is not None and rate is not None:
        bound = _inner_bound(outer, tiles, nearer.capacity / element) * element / np.maximum(rate, 1e-300)
        time = np.maximum(time, bound) + 1e-3 * (time + bound)
    best = time.argmin(axis=0)[None]
    pick = [np.take_along_axis(np.broadcast_to(part, time.shape), best, axis=0)[0] for part in (tiles.m, tiles.n, tiles.k, elements)]
    chosen = Block(m=pick[0], n=pick[1], k=pick[2], repeats=outer.repeats, accumulate=outer.accumulate)
    return inside(outer, chosen), pick[3] * element


def candidates(outer: Block, capacity: Array) -> Block:
    """Tiles to try: A (m x k), B (k x n) and C (m x n) of a tile fit the capacity together [elements].

    The operand that stays is made about square (in three aspects) with a share of the capacity, within the dimensions
    it has; the third dimension streams through what is left.
    """
    m, n, k = outer.m, outer.n, outer.k
    rows = np.where(_STAYS == 1, k, m)  # C: m x n, B: k x n, A: m x k
    columns = np.where(_STAYS == 2, k, n)
    streamed = np.where(_STAYS == 0, k, np.where(_STAYS == 1, m, n))
    room = _SHARE * capacity
    height = np.minimum(np.maximum(np.sqrt(room) * _ASPECT, 1.0), rows)
    width = np.minimum(np.maximum(room / height, 1.0), columns)
    height = np.minimum(np.maximum(room / width, 1.0), rows)
    depth = np.minimum(np.maximum((capacity - height * width) / (height + width), 1.0), streamed)
    return Block(
        m=np.where(_STAYS == 1, depth, height),
        n=np.where(_STAYS == 2, depth, width),
        k=np.where(_STAYS == 0, depth, np.where(_STAYS == 1, height, width)),
        repeats=outer.repeats,
        accumulate=outer.accumulate,
    )


def crossing(outer: Block, tile: Block) -> Array:
    """Elements that cross into a level that holds `tile` while it works through all blocks `outer`.

    The cheapest of the three loop orders: the innermost loop runs over m, n or k, so that B, A or C stays.
    """
    passes_m, passes_n, passes_k = passes(outer, tile)
    a, b, c = outer.m * outer.k, outer.k * outer.n, outer.m * outer.n
    spilled = c * (2.0 * passes_k - 1.0 + outer.accumulate)
    c_stays = a * passes_n + b * passes_m + c * (1.0 + outer.accumulate)
    b_stays = a * passes_n + b + spilled
    a_stays = a + b * passes_m + spilled
    return np.asarray(outer.repeats * np.minimum(c_stays, np.minimum(b_stays, a_stays)))


def passes(outer: Block, tile: Block) -> tuple[Array, Array, Array]:
    """How many tiles cover each dimension of a block."""
    return tuple(np.ceil(whole / part - 1e-9) for whole, part in ((outer.m, tile.m), (outer.n, tile.n), (outer.k, tile.k)))  # type: ignore[return-value]


def inside(outer: Block, tile: Block) -> Block:
    """The block that a tile holds, its dimensions cut evenly so that all tiles together are the whole."""
    passes_m, passes_n, passes_k = passes(outer, tile)
    return Block(
        m=outer.m / passes_m,
        n=outer.n / passes_n,
        k=outer.k / passes_k,
        repeats=outer.repeats * passes_m * passes_n * passes_k,
        accumulate=(passes_k - 1.0 + outer.accumulate) / passes_k,
    )


def _inner_bound(outer: Block, tile: Block, capacity: Array) -> Array:
    """Elements that the level inside will at least need: square tiles of its capacity, C visited once a cut of k."""
    side = np.sqrt(np.maximum(capacity, 1.0))
    work = outer.repeats * outer.m * outer.n * outer.k
    return np.asarray(
        work * (1.0 / np.minimum(side, tile.m) + 1.0 / np.minimum(side, tile.n)) + outer.repeats * outer.m * outer.n * outer.k / tile.k
    )


def register_accesses(flops: Array, tile: Block, height: Array, width: Array, dataflow: str) -> Array:
    """Reads and writes of the register file: flops (Nx Ny + K Nx + K Ny) / (2 K Nx Ny) (Eq. 5).

    `height` and `width` are Nx and Ny of the multiplier array; the reuse K is the extent of the dimension along which
    the stationary operand is reused, over the array: m for weights, n for activations, k for outputs.
    """
    reuse = {"weight": tile.m, "activation": tile.n, "output": tile.k}
    extent = np.maximum(np.maximum(tile.m, tile.n), tile.k) if dataflow == "best" else reuse[dataflow]
    K = np.maximum(np.ceil(extent / height - 1e-9), 1.0)
    return np.asarray(flops * (height * width + K * height + K * width) / (2.0 * K * height * width))
