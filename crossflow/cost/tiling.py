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

# Shapes tried for the operand that stays: the share of the capacity that it gets, and its aspect ratio; shape (6, 1, 1).
_SHARE = np.repeat([0.34, 0.8], 3)[:, None, None]
_ASPECT = np.tile([0.5, 1.0, 2.0], 2)[:, None, None]


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
    elements = np.stack([crossing(outer, tile, stays) for stays, tile in tiles.items()])
    time = elements * (element / np.maximum(bandwidth, 1e-300))
    if nearer is not None and rate is not None:
        inner = np.stack([_inner_bound(outer, tile, nearer.capacity / element) for tile in tiles.values()])
        inner *= element / np.maximum(rate, 1e-300)
        time = np.maximum(time, inner) + 1e-3 * (time + inner)
    flat = time.reshape(-1, *time.shape[2:])
    best = flat.argmin(axis=0)[None]

    def pick(parts: Sequence[Array]) -> Array:
        whole = np.stack([np.broadcast_to(part, time.shape[1:]) for part in parts])
        return np.asarray(np.take_along_axis(whole.reshape(flat.shape), best, axis=0)[0])

    m, n, k = (pick([getattr(tile, name) for tile in tiles.values()]) for name in ("m", "n", "k"))
    chosen = Block(m=m, n=n, k=k, repeats=outer.repeats, accumulate=outer.accumulate)
    return inside(outer, chosen), pick(list(elements)) * element


def candidates(outer: Block, capacity: Array) -> dict[str, Block]:
    """Tiles to try, by the operand that stays: A (m x k), B (k x n) and C (m x n) of a tile fit the capacity together.

    The operand that stays is made about square (in three aspects) with a share of the capacity [elements], within the
    dimensions it has; the third dimension streams through what is left.
    """
    m, n, k = outer.m, outer.n, outer.k
    room = _SHARE * capacity
    side = np.maximum(np.sqrt(room) * _ASPECT, 1.0)
    tiles = {}
    for stays, (rows, columns, streamed) in {"c": (m, n, k), "b": (k, n, m), "a": (m, k, n)}.items():
        height = np.minimum(side, rows)
        width = np.minimum(np.maximum(room / height, 1.0), columns)
        height = np.minimum(np.maximum(room / width, 1.0), rows)
        depth = np.minimum(np.maximum((capacity - height * width) / (height + width), 1.0), streamed)
        sides = {"c": (height, width, depth), "b": (depth, width, height), "a": (height, depth, width)}[stays]
        tiles[stays] = Block(m=sides[0], n=sides[1], k=sides[2], repeats=outer.repeats, accumulate=outer.accumulate)
    return tiles


def crossing(outer: Block, tile: Block, stays: str) -> Array:
    """Elements that cross into a level that holds `tile` while it works through all blocks `outer`.

    The innermost loop runs over the dimension that the operand which stays does not have, so that it moves once; the two
    others move once for every tile along the dimension that they lack, and C is read and written where it does not stay.
    """
    a, b, c = outer.m * outer.k, outer.k * outer.n, outer.m * outer.n
    if stays != "a":
        a = a * _passes(outer.n, tile.n)
    if stays != "b":
        b = b * _passes(outer.m, tile.m)
    c = c * ((1.0 if stays == "c" else 2.0 * _passes(outer.k, tile.k) - 1.0) + outer.accumulate)
    return np.asarray(outer.repeats * (a + b + c))


def _passes(whole: Array, part: Array) -> Array:
    """How many parts cover a whole; one that is whole but for rounding counts as whole."""
    return np.asarray(np.ceil(whole / part - 1e-9))


def inside(outer: Block, tile: Block) -> Block:
    """The block that a tile holds, its dimensions cut evenly so that all tiles together are the whole."""
    passes_m, passes_n, passes_k = _passes(outer.m, tile.m), _passes(outer.n, tile.n), _passes(outer.k, tile.k)
    return Block(
        m=outer.m / passes_m,
        n=outer.n / passes_n,
        k=outer.k / passes_k,
        repeats=outer.repeats * passes_m * passes_n * passes_k,
        accumulate=(passes_k - 1.0 + outer.accumulate) / passes_k,
    )


def _inner_bound(outer: Block, tile: Block, capacity: Array) -> Array:
    """Elements that the level inside will at least need while this level holds `tile`.

    Every element is read once for a tile, and the two operands that stream past the one that stays are each read once
    for every block of it, which at best is square and fills the level; cuts are not rounded.
    """
    work = outer.repeats * outer.m * outer.n * outer.k
    side = np.sqrt(capacity)
    m, n, k = (np.maximum(1.0 / part, 1.0 / side) for part in (tile.m, tile.n, tile.k))
    c_stays, b_stays, a_stays = m + n + 1.0 / tile.k, n + 2.0 * k + 1.0 / tile.m, m + 2.0 * k + 1.0 / tile.n
    return np.asarray(work * np.minimum(c_stays, np.minimum(b_stays, a_stays)))


def register_accesses(flops: Array, tile: Block, height: Array, width: Array, dataflow: str) -> Array:
    """Reads and writes of the register file: flops (Nx Ny + K Nx + K Ny) / (2 K Nx Ny) (Eq. 5).

    `height` and `width` are Nx and Ny of the multiplier array; the reuse K is the extent of the dimension along which
    the stationary operand is reused, over the array: m for weights, n for activations, k for outputs.
    """
    reuse = {"weight": tile.m, "activation": tile.n, "output": tile.k}
    extent = np.maximum(np.maximum(tile.m, tile.n), tile.k) if dataflow == "best" else reuse[dataflow]
    K = np.maximum(np.ceil(extent / height - 1e-9), 1.0)
    return np.asarray(flops * (height * width + K * height + K * width) / (2.0 * K * height * width))
