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
SHAPES = len(_SHARE)
STAYS = ("c", "b", "a")
CHUNK = 256  # design points a batch: the tiles of one batch stay in cache
SMALLEST = 256.0  # elements below which a memory is not tiled
_WHOLE = 1.0 - 1e-12  # a quotient that is whole but for rounding counts as whole


@dataclass(frozen=True, kw_only=True)
class Block:
    """A matrix product, or the part of it that one tile holds: dims of shape (gemms, n) or (tiles, gemms, n).

    Attributes
    ----------
    m, n, k : dimensions; not whole numbers where a dimension is cut evenly.
    repeats : how many such blocks make up the whole product.
    revisits : share of the visits to C that read what an earlier cut of k has left there.
    """

    m: Array
    n: Array
    k: Array
    repeats: Array
    revisits: Array


def traffic_by_level(m: Array, n: Array, k: Array, element: float, levels: Sequence[Level]) -> tuple[Array, Block]:
    """Bytes that every level but the nearest delivers to the level inside it, each summed over the device.

    Parameters
    ----------
    m, n, k : shape (gemms, 1). Dimensions. [1]
    element : size of an element. [B]
    levels : memory levels from the nearest to main memory.

    Returns
    -------
    traffic : shape (levels - 1, gemms, n); row i is what level i + 1 (counted from the nearest) delivers. [B]
    tile : the block that the nearest level holds.
    """
    work = m * n * k
    whole = Block(m=m, n=n, k=k, repeats=np.ones_like(work), revisits=np.zeros_like(work))
    room = [_room(level, work, element) for level in levels[:-1]]
    costs = [element / np.maximum(level.bandwidth, 1e-300) for level in levels]
    points = max(array.shape[-1] for array in (*room, *costs))
    parts = []
    for start in range(0, points, CHUNK):
        here = slice(start, start + CHUNK)
        parts.append(_search(whole, [_points(array, here) for array in room], [_points(array, here) for array in costs]))
    tile = Block(**{name: np.concatenate([getattr(block, name) for _, block in parts], axis=-1) for name in vars(whole)})
    return np.concatenate([moved for moved, _ in parts], axis=-1) * element, tile


def _room(level: Level, work: Array, element: float) -> Array:
    """Elements that one instance of a level holds of a product, shape (gemms, n) or (n,).

    A level with many instances is filled only as far as the work spreads over all of them.
    """
    capacity = level.capacity / element
    if level.scope != "global":
        capacity = np.minimum(capacity, 3.0 * np.cbrt(work / np.maximum(level.instances, 1.0)) ** 2)
    return np.maximum(capacity, SMALLEST)


def _points(array: Array, part: slice) -> Array:
    """Some of the design points of an array; one that has a single point for all stays."""
    return array if array.shape[-1] == 1 else array[..., part]


def _search(block: Block, room: Sequence[Array], costs: Sequence[Array]) -> tuple[Array, Block]:
    """Elements that cross into each level from the one outside it, and the innermost tile, level by level from outside."""
    moved: list[Array] = []
    for level in range(len(room) - 1, -1, -1):
        block, amount = _best_tile(block, room[level], (costs[level + 1], costs[level]), room[level - 1] if level else None)
        moved.append(amount)
    return np.stack(np.broadcast_arrays(*reversed(moved))), block


def _best_tile(outer: Block, capacity: Array, costs: tuple[Array, Array], nearer: Array | None) -> tuple[Block, Array]:
    """Best tile of one level within the tile of the level outside, and the elements that it makes cross between them.

    `costs` are the times that an element takes from the level outside to this one and from this one inwards [s],
    `nearer` the capacity of the level inside [elements], None where there is none.
    """
    tiles = candidates(outer, capacity)
    elements = np.stack([crossing(outer, tiles[i], stays) for i, stays in enumerate(STAYS)])
    time = elements * costs[0]
    if nearer is not None:
        bound = _inner_bound(outer, tiles, nearer)
        bound *= costs[1]
        slower = np.maximum(bound, time)
        time += bound
        time *= 1e-3  # among tiles that one of the two levels holds back alike, the one that spares the other
        time += slower
    gemms, n = time.shape[2:]
    best = time.reshape(-1, gemms, n).argmin(axis=0)[None]

    def pick(parts: Array) -> Array:
        return np.asarray(np.take_along_axis(parts.reshape(-1, gemms, n), best, axis=0)[0])

    return inside(outer, pick(tiles[:, 0]), pick(tiles[:, 1]), pick(tiles[:, 2])), pick(elements)


def candidates(outer: Block, capacity: Array) -> Array:
    """Tiles to try: their m, n and k by the operand that stays, shape (3 operands, 3 sides, 6 shapes, gemms, n).

    A (m x k), B (k x n) and C (m x n) of a tile fit the capacity [elements] together. The operand that stays is made
    about square (in three aspects) with a share of the capacity, within the dimensions it has; the third dimension
    streams through what is left.
    """
    m, n, k = outer.m, outer.n, outer.k
    room = _SHARE * capacity
    side = np.sqrt(room) * _ASPECT
    tiles = np.empty((3, 3, *np.broadcast_shapes(side.shape, m.shape, n.shape, k.shape)))
    # Sides of the operand that stays, and of the stream past it, as positions among m, n, k.
    for tile, rows, columns, streamed, (across, along, past) in zip(tiles, (m, k, m), (n, n, k), (k, m, n), ((0, 1, 2), (2, 1, 0), (0, 2, 1)), strict=True):
        height, width, depth = tile[across], tile[along], tile[past]
        np.minimum(side, rows, out=height)
        np.divide(room, height, out=width)
        np.minimum(width, columns, out=width)
        np.divide(room, width, out=height)
        np.minimum(height, rows, out=height)
        np.multiply(height, width, out=depth)
        np.subtract(capacity, depth, out=depth)
        np.divide(depth, height + width, out=depth)
        np.minimum(depth, streamed, out=depth)
    return tiles


def crossing(outer: Block, tile: Array, stays: str) -> Array:
    """Elements that cross into a level that holds a tile (its m, n, k) while it works through all blocks `outer`.

    The innermost loop runs over the dimension that the operand which stays does not have, so that it moves once; the two
    others move once for every tile along the dimension that they lack, and C is read and written where it does not stay.
    """
    a, b, c = (outer.repeats * size for size in (outer.m * outer.k, outer.k * outer.n, outer.m * outer.n))
    if stays == "c":
        return np.asarray(a * _passes(outer.n, tile[1]) + b * _passes(outer.m, tile[0]) + c * (1.0 + outer.revisits))
    spilled = c * (2.0 * _passes(outer.k, tile[2]) - 1.0 + outer.revisits)
    if stays == "b":
        return np.asarray(a * _passes(outer.n, tile[1]) + b + spilled)
    return np.asarray(a + b * _passes(outer.m, tile[0]) + spilled)


def _passes(whole: Array, part: Array) -> Array:
    """How many parts cover a whole."""
    count = (whole * _WHOLE) / part
    return np.asarray(np.ceil(count, out=count))


def inside(outer: Block, m: Array, n: Array, k: Array) -> Block:
    """The block that a tile holds, its dimensions cut evenly so that all tiles together are the whole."""
    passes_m, passes_n, passes_k = _passes(outer.m, m), _passes(outer.n, n), _passes(outer.k, k)
    return Block(
        m=outer.m / passes_m,
        n=outer.n / passes_n,
        k=outer.k / passes_k,
        repeats=outer.repeats * passes_m * passes_n * passes_k,
        revisits=(passes_k - 1.0 + outer.revisits) / passes_k,
    )


def _inner_bound(outer: Block, tiles: Array, capacity: Array) -> Array:
    """Elements that the level inside will at least need while this level holds a tile, shape (3, 6, gemms, n).

    Every element of the tile once, and 2 / sqrt(capacity) a multiplication, the bound of Hong and Kung (STOC 1981); it
    falls with the least dimension where that is shorter than a square block that fills the level.
    """
    bound = np.minimum(np.minimum(tiles[:, 0], tiles[:, 1]), tiles[:, 2])
    bound *= 2.0 / capacity
    np.minimum(bound, 2.0 / np.sqrt(capacity), out=bound)
    np.maximum(bound, (1.0 / tiles).sum(axis=1), out=bound)
    bound *= outer.repeats * outer.m * outer.n * outer.k
    return np.asarray(bound)


def register_accesses(flops: Array, tile: Block, height: Array, width: Array, dataflow: str) -> Array:
    """Reads and writes of the register file: flops (Nx Ny + K Nx + K Ny) / (2 K Nx Ny) (Eq. 5).

    `height` and `width` are Nx and Ny of the multiplier array; the reuse K is the extent of the dimension along which
    the stationary operand is reused, over the array: m for weights, n for activations, k for outputs.
    """
    reuse = {"weight": tile.m, "activation": tile.n, "output": tile.k}
    extent = np.maximum(np.maximum(tile.m, tile.n), tile.k) if dataflow == "best" else reuse[dataflow]
    K = np.maximum(np.ceil(extent / height - 1e-9), 1.0)
    return np.asarray(flops * (height * width + K * height + K * width) / (2.0 * K * height * width))
