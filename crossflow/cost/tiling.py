"""Tiling search of the hierarchical roofline: how often each level of memory is read for a matrix product [1]_.

The traffic into a level depends on the tile held there and on the tile of the level outside it, so the levels nearly
decouple. Where the paper draws N random tiles at each of L levels and costs all N^L combinations, here each level, from
main memory inwards, tries some good tiles: for each operand that may stay (three orders of the loop nest), some splits of
the capacity between it and the streams, and some aspect ratios. A few tiles of the outermost cache, which balance what
crosses into it against what the level inside will need, are each followed inwards; the fastest of these tilings is taken.

Arrays have shape (tiles, gemms, n).

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 6.1-6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossflow.architecture.model import Level
from crossflow.arrays import Array, Index, divide

Single = NDArray[np.float32]
Numbers = NDArray[np.floating[Any]]
Shapes = tuple[Single, Single]


def _shapes(shares: Sequence[float], aspects: Sequence[float]) -> Shapes:
    """Shares of the capacity and aspect ratios to try for the operand that stays, each of shape (shapes, 1, 1)."""
    pairs = np.array([(share, aspect) for share in shares for aspect in aspects], np.float32)
    return pairs[:, :1, None], pairs[:, 1:, None]


# By level from main memory inwards: shapes tried for each operand that may stay, and ratios of the time that an element
# takes further inwards to the time that it takes to here, for each of which the best tile is kept. Every kept tile has a
# search of its own inside it, so that the levels inside try fewer.
FAR_SHAPES, NEAR_SHAPES, LAST_SHAPES = (
    _shapes((0.15, 0.4, 0.65, 0.9), (0.7, 1.4)),
    _shapes((0.3, 0.6, 0.9), (1.0,)),
    _shapes((0.8,), (1.0,)),
)
FAR_WEIGHTS, NEAR_WEIGHTS, LAST_WEIGHTS = (0.0, 0.35, 1.0), (0.05, 0.25), (0.0,)
STAYS = ("c", "b", "a")
CHUNK = 384  # design points a batch: the tiles of one batch stay in cache
SMALLEST = 256.0  # elements below which a memory is not tiled
_WHOLE = np.float32(1.0 - 1e-6)  # a quotient that is whole but for rounding counts as whole


@dataclass(frozen=True, kw_only=True)
class TileBlock:
    """A matrix product, or the part of it that one tile holds: dims of shape (gemms, n) or (tiles, gemms, n)."""

    # m, n, k: dimensions; not whole numbers where a dimension is cut evenly
    m: Numbers
    n: Numbers
    k: Numbers
    repeats: Numbers  # how many such blocks make up the whole product
    revisits: Numbers  # share of the visits to C that read what an earlier cut of k has left there
    second: Numbers  # size of an element of B over that of the others


def traffic_by_level(
    m: Array, n: Array, k: Array, element: float, levels: Sequence[Level], *, second: Array | float = 1.0
) -> tuple[Array, TileBlock]:
    """Bytes that every level but the nearest delivers to the level inside it, each summed over the device.

    Parameters
    ----------
    m, n, k : shape (gemms, n) or (gemms, 1). Dimensions. [1]
    element : size of an element. [B]
    levels : memory levels from the nearest to main memory.
    second : size of an element of B over `element`, shape (gemms, 1); tiles are made as if B were not smaller. [1]

    Returns
    -------
    traffic : shape (levels - 1, gemms, n); row i is what level i + 1 (counted from the nearest) delivers. [B]
    tile : the block that the nearest level holds.
    """
    work = m * n * k
    whole = TileBlock(m=m, n=n, k=k, repeats=np.ones_like(work), revisits=np.zeros_like(work), second=np.broadcast_to(second, work.shape))
    room = [_room(level, work, element) for level in levels[:-1]]
    costs = [divide(np.array([element]), level.bandwidth) for level in levels[1:]]
    points = max(array.shape[-1] for array in (work, *room, *costs))
    parts = []
    for start in range(0, points, CHUNK):
        here = slice(start, start + CHUNK)
        block = TileBlock(**{name: _points(part, here) for name, part in vars(whole).items()})
        parts.append(_search(block, [_points(array, here) for array in room], [_points(array, here) for array in costs]))
    tile = TileBlock(**{name: np.concatenate([getattr(block, name) for _, block in parts], axis=-1) for name in vars(whole)})
    return np.concatenate([moved for moved, _ in parts], axis=-1) * element, tile


def _room(level: Level, work: Array, element: float) -> Array:
    """Elements that one instance of a level holds of a product, shape (gemms, n) or (n,).

    A level with many instances is filled only as far as the work spreads over all of them.
    """
    capacity = level.capacity / element
    if level.scope != "global":
        capacity = np.minimum(capacity, 3.0 * np.cbrt(work / np.maximum(level.instances, 1.0)) ** 2)
    return np.maximum(capacity, SMALLEST)


def _points(array: Numbers, part: slice) -> Any:
    """Some of the design points of an array; one that has a single point for all stays."""
    return array if array.shape[-1] == 1 else array[..., part]


def _search(whole: TileBlock, room: Sequence[Array], costs: Sequence[Array]) -> tuple[Array, TileBlock]:
    """Elements that cross into each level from the one outside it, and the innermost tile, for the fastest tiling tried.

    Tiles are picked by what they make cross, never by the bandwidths of a point, and only the last choice is by time:
    `costs`, the time of an element into each level [s]. So no tiling is lost because a level became faster.
    """
    gemms = whole.m.shape[0]
    blocks = whole
    moved: list[Array] = []
    for level in range(len(room) - 1, -1, -1):
        weights = FAR_WEIGHTS if level == len(room) - 1 else NEAR_WEIGHTS if level else LAST_WEIGHTS
        shapes = FAR_SHAPES if level == len(room) - 1 else NEAR_SHAPES if level else LAST_SHAPES
        inner = None if level == 0 else _repeated(room[level - 1], blocks.m.shape[0] // gemms)
        blocks, crossed = _pick_tiles(blocks, _repeated(room[level], blocks.m.shape[0] // gemms), inner, weights, shapes)
        moved = [_repeated(earlier, len(weights)) for earlier in moved] + [crossed]
    amounts = np.stack(np.broadcast_arrays(*reversed(moved)))
    slowest = np.stack(np.broadcast_arrays(*(amount * cost for amount, cost in zip(amounts, costs, strict=True)))).max(axis=0)
    best = slowest.reshape(-1, gemms, slowest.shape[-1]).argmin(axis=0)[None]
    tile = TileBlock(**{name: _taken(part, best, slowest.shape) for name, part in vars(blocks).items()})
    return np.stack([_taken(amount, best, slowest.shape) for amount in amounts]), tile


def _repeated(array: Array, times: int) -> Array:
    """The rows of an array so often over, one set for each choice of outer tile; one row for all stays."""
    return array if times == 1 or array.ndim < 2 or array.shape[0] == 1 else np.concatenate([array] * times)


def _taken(array: Numbers, best: Index, shape: tuple[int, ...]) -> Array:
    """Entries of the chosen tiles, rows of one choice after those of the other; `best` has shape (choices, gemms, n)."""
    gemms, n = best.shape[1:]
    flat = np.broadcast_to(array, shape).reshape(-1)
    return np.asarray(flat[best * (gemms * n) + np.arange(gemms * n).reshape(gemms, n)].reshape(-1, n))


def _pick_tiles(
    outer: TileBlock, capacity: Array, nearer: Array | None, weights: Sequence[float], shapes: Shapes
) -> tuple[TileBlock, Array]:
    """Good tiles of one level within the tiles of the level outside, and the elements that each makes cross into it.

    One tile for each weight, rows after rows: the one with the least of what crosses into this level and of what the
    level inside (capacity `nearer`, None where there is none) will about need, times the weight, whichever is more.
    The search compares in single precision, which halves its time; what the picked tiles make cross is worked out in double.
    """
    rough = TileBlock(**{name: part.astype(np.float32) for name, part in vars(outer).items()})
    cuts, sides = candidates(rough, capacity.astype(np.float32), shapes)
    here = np.stack([crossing(rough, cuts[:, i], stays) for i, stays in enumerate(STAYS)])
    there = np.zeros(1, np.float32) if nearer is None else _inner_estimate(rough, sides, nearer.astype(np.float32))
    best = np.stack([_least(*np.broadcast_arrays(here, np.float32(max(weight, 1e-3)) * there)) for weight in weights])
    chosen = [_taken(cut, best, (*here.shape[:-1], best.shape[-1])).astype(np.float64) for cut in cuts]
    repeated = TileBlock(**{name: np.concatenate([np.atleast_2d(part)] * len(weights)) for name, part in vars(outer).items()})
    crossed = np.minimum(crossing(repeated, chosen, "c"), np.minimum(crossing(repeated, chosen, "b"), crossing(repeated, chosen, "a")))
    return inside(repeated, *chosen), np.asarray(crossed)


def _least(here: Single, inner: Single) -> Index:
    """Number of the tile with the least of two amounts, whichever is more, shape (gemms, n).

    Among tiles that one of the two levels holds back alike, the one that spares the other.
    """
    score = here + inner
    score *= np.float32(1e-3)
    score += np.maximum(here, inner)
    return np.asarray(score.reshape(-1, *score.shape[2:]).argmin(axis=0))


def candidates(outer: TileBlock, capacity: Single, shapes: Shapes) -> tuple[Single, Single]:
    """Tiles to try, as numbers of cuts of m, n and k and as sides, each of shape (3, 3 operands, shapes, gemms, n).

    A (m x k), B (k x n) and C (m x n) of a tile fit the capacity [elements] together. The operand that stays is made
    about square (in several aspects) with a share of the capacity; every side is an even cut of the block, and what a
    cut leaves free goes to the next side; the third dimension streams through what is left of the capacity.
    """
    m, n, k = outer.m, outer.n, outer.k
    room = shapes[0] * capacity
    side = np.sqrt(room) * shapes[1]
    shape = (3, 3, *np.broadcast_shapes(side.shape, m.shape, n.shape, k.shape))
    cuts, sides = np.empty(shape, np.float32), np.empty(shape, np.float32)
    # By operand that stays: its two dimensions and the one that streams past it, and their positions among m, n, k.
    orders = ((m, n, k, (0, 1, 2)), (k, n, m, (2, 1, 0)), (m, k, n, (0, 2, 1)))
    for stays, (rows, columns, streamed, (across, along, past)) in enumerate(orders):
        height, width, depth = sides[across, stays], sides[along, stays], sides[past, stays]
        _cut(rows, side, cuts[across, stays], height)
        _cut(columns, np.divide(room, height, out=width), cuts[along, stays], width)
        _cut(rows, np.divide(room, width, out=height), cuts[across, stays], height)
        np.multiply(height, width, out=depth)
        np.subtract(capacity, depth, out=depth)
        depth /= height + width
        _cut(streamed, depth, cuts[past, stays], depth)
    return cuts, sides


def _cut(whole: Single, largest: Single, cuts: Single, part: Single) -> None:
    """Cut a dimension evenly into as few parts as are no longer than `largest`: their number, and their length."""
    np.divide(whole * _WHOLE, largest, out=cuts)
    np.ceil(cuts, out=cuts)
    np.divide(whole, cuts, out=part)


def crossing(outer: TileBlock, cuts: Sequence[Numbers] | Numbers, stays: str) -> Numbers:
    """Elements that cross into a level whose tiles cut m, n and k so often, while it works through all blocks `outer`.

    The innermost loop runs over the dimension that the operand which stays does not have, so that it moves once; the two
    others move once for every cut of the dimension that they lack, and C is read and written where it does not stay.
    """
    a, b, c = (outer.repeats * size for size in (outer.m * outer.k, outer.k * outer.n * outer.second, outer.m * outer.n))
    if stays == "c":
        return np.asarray(a * cuts[1] + b * cuts[0] + c * (1.0 + outer.revisits))
    once = (b if stays == "b" else a) - c * (1.0 - outer.revisits)
    again = a * cuts[1] if stays == "b" else b * cuts[0]
    return np.asarray(again + (c + c) * cuts[2] + once)


def inside(outer: TileBlock, m: Array, n: Array, k: Array) -> TileBlock:
    """The block that a tile holds, from the numbers of cuts: all tiles together are the whole."""
    return TileBlock(
        m=outer.m / m, n=outer.n / n, k=outer.k / k, repeats=outer.repeats * m * n * k, revisits=(k - 1.0 + outer.revisits) / k,
        second=outer.second,
    )  # fmt: skip


def _inner_estimate(outer: TileBlock, sides: Single, capacity: Single) -> Single:
    """Elements that the level inside will about need while this level holds a tile, shape (3, shapes, gemms, n).

    C stays there in blocks that fill the level, as square as the tile allows; A and B are each read once for every block,
    and C is written, and read back, once for every cut of k here. Cuts are not rounded.
    """
    m, n, k = sides
    height = np.minimum(m, np.sqrt(capacity))
    width = np.minimum(n, capacity / height)
    np.minimum(m, capacity / width, out=height)
    estimate = outer.second / height + 1.0 / width + np.float32(2.0) / k
    estimate -= (1.0 - outer.revisits) / outer.k  # the first visit to C writes only
    estimate *= outer.repeats * outer.m * outer.n * outer.k
    return np.asarray(estimate)


def register_accesses(flops: Array, tile: TileBlock, height: Array, width: Array, dataflow: str) -> Array:
    """Reads and writes of the register file: flops (Nx Ny + K Nx + K Ny) / (2 K Nx Ny) (Eq. 5).

    `height` and `width` are Nx and Ny of the multiplier array; the reuse K is the extent of the dimension along which
    the stationary operand is reused, over the array: m for weights, n for activations, k for outputs.
    """
    reuse = {"weight": tile.m, "activation": tile.n, "output": tile.k}
    extent = np.maximum(np.maximum(tile.m, tile.n), tile.k) if dataflow == "best" else reuse[dataflow]
    K = np.maximum(np.ceil(extent / height - 1e-9), 1.0)
    return np.asarray(flops * (height * width + K * height + K * width) / (2.0 * K * height * width))
