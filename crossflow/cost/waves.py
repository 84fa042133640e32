"""Matrix products on devices whose libraries are known: tiles in waves over the units, sharing cache, memory and power.

The library cuts C into tiles, optionally splits k among several blocks, and launches one block per tile and split. Four
things take time at once, and none of them hides the others entirely:

* waves: blocks run in waves over the units; the last wave costs as much as a full one;
* power: the chip as a whole does not multiply faster than its power limit allows, however the blocks fall, so that a
  half-empty wave loses less than half of the throughput;
* cache: every block reads its own panels of A and B, and all share the last cache's bandwidth; small tiles read more. That bandwidth
  is a share of the rate of the matrix units, for which it is made: an A100, an H100 and an L40S get 0.016 to 0.017 bytes an operation;
* memory: each operand crosses the memory bus once.

Where B lies in memory in a narrower type (weights of 4 bits beside activations of 16), panels and operand are as small as that, and
every block widens the panels of B that it reads before it multiplies (Frantar et al., MARLIN, arXiv:2408.11743). Widening at the full
rate draws as much power as multiplying at it.

The library is taken to choose the tile and split with the least time. Waves and cache combine by a fourth-power mean, the
power limit joins by a sixth-power one, as it is nearly a hard limit, and the memory by a cubic one (exponents are fixed).

Libraries whose kernels were measured one by one (`ProductLibrary`) have in addition: units that need not wait for a whole wave to end;
panels that a unit draws at its own share of the cache's rate, whether or not others draw, with the store of C; panels read once more
where those of all units overflow the cache; some choose their tile by
the rows of C alone. A benchmark that repeats one kernel finds operands in the cache and, for a few milliseconds, a higher clock.
Fits and errors: docs/validation.md.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, at_points, distinct, divide
from crossflow.hardware.architecture.execution import ProductLibrary, TileExecution, WideningLibrary
from crossflow.hardware.architecture.model import Architecture

ACCUMULATOR = 4  # size of a partial sum [B]
# Instructions that widen eight 4-bit integers, over eight: a shift, 4 lop3 and 4 half2 operations make fp16 of them (Kim et al., "Who
# Says Elephants Can't Run", arXiv:2211.10017), 4 half2 products apply the scale. Each takes the place of an fp32
# multiply-add, two operations. Other narrow types need about as many. [flop]
WIDENING = 2.0 * 13.0 / 8.0
# Rows and columns of further tiles of kernels that widen B, which are made for few rows (MARLIN, arXiv:2408.11743, Sec. 3.4).
FEW_ROWS = ((16, 64), (16, 128), (16, 256), (32, 128), (32, 256))
# Columns of tiles of libraries that say which rows they take, and the share of a tile that an expert's rows may fill in the mean before
# they take a larger one (vLLM, fused_marlin_moe).
COLUMNS, FILLED = (64, 128, 256), 0.9
LOGISTIC, MANY = 1.702, 8  # scale of a logistic function that is like the normal distribution; tiles of which a half more stand for chance
STRIP = 16  # rows or columns in which tiles of small products come
STATIONARY = {
    "weight": (1, 2, 0),
    "activation": (0, 2, 1),
    "output": (0, 1, 2),
}  # sides (m, n, k) of what stays in an array, and the one that streams
CHUNK = 16384  # matrix products a batch: temporaries stay in cache


@dataclass(frozen=True, kw_only=True)
class Widening:
    """How kernels widen B."""

    element: Array  # time in which the whole chip widens an element of B, 0 where B is as wide as A, shape (gemms, 1) or (gemms, n). [s]
    library: WideningLibrary | None = None  # whose kernels they are; those that multiply anyway where absent

    def some(self, rows: slice | Index) -> Widening:
        """Of some products."""
        return replace(self, element=_some(self.element, rows))

    def at(self, points: Index) -> Widening:
        """At some design points, which are alike in all else."""
        return replace(self, element=at_points(self.element, points))

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of its tiles."""
        if self.library is None or not self.library.rows:
            return FEW_ROWS
        return tuple((rows, columns) for rows in self.library.rows for columns in COLUMNS)

    @property
    def matrix(self) -> Array:
        """Share of the matrix rate that main loops reach. [1]"""
        return np.ones(1) if self.library is None else np.where(self.element > 0.0, self.library.matrix, 1.0)

    def below(self, m: Array, rows: Array, batch: Array) -> Array:
        """Tiles of some rows, one below the other; of several products, which are of experts, whose rows differ. [1]"""
        return np.where((self.element > 0.0) & (batch > 1.0), unequal_blocks(m, rows), np.ceil(m / rows))

    def takes(self, m: Array, rows: Array) -> Mask:
        """Whether a kernel takes tiles of some rows: the first that rows fill less than `FILLED`, or the last."""
        widens = self.element > 0.0
        if self.library is None or not self.library.rows:
            return np.ones(np.broadcast_shapes(widens.shape, m.shape, rows.shape), dtype=bool)
        sides = np.array(self.library.rows, dtype=float)
        which = np.minimum((divide(m[..., None], sides) >= FILLED).sum(axis=-1), len(sides) - 1)
        return np.asarray(~widens | (sides[which] == rows))


def unequal_blocks(m: Array, rows: Array) -> Array:
    """Tiles, one below the other, of one of several products whose rows differ by chance and are m in the mean. [1]

    Of Poisson numbers X of rows, 1 + P(X > rows) + P(X > 2 rows) + ..., with the logistic function for the normal distribution. Where the
    mean is many tiles, half a tile more than they fill.
    """
    more = [1.0 / (1.0 + np.exp(-LOGISTIC * np.clip((m - i * rows - 0.5) / np.sqrt(m), -20.0, 20.0))) for i in range(1, MANY + MANY // 2)]
    return np.where(m > MANY * rows, m / rows + 0.5, 1.0 + np.sum(more, axis=0))


def padded(m: Array, n: Array, k: Array, architecture: Architecture) -> Array:
    """Time of products on arrays of multipliers over that on arrays which every product fills, shape (kernels, n). [1]

    One operand stays in an array, in pieces of its rows and columns, while the third side streams past it. Pieces at the edges take as
    long as others. The next piece is loaded meanwhile, a row in a cycle, so that a stream shorter than the array has rows waits for it.
    One for devices that are known by their datasheets, which do not say how many arrays of what shape a unit has.
    """
    if architecture.voltage is None:
        return np.ones(1)
    sides: list[Array] = [m, n, k]
    rows, columns = architecture.array_height, architecture.array_width
    flows = STATIONARY.values() if architecture.dataflow == "best" else [STATIONARY[architecture.dataflow]]
    cycles = [
        np.ceil(sides[one] / height) * np.ceil(sides[other] / width) * np.maximum(sides[streamed], height)
        for one, other, streamed in flows
        for height, width in ((rows, columns), (columns, rows))
    ]
    return divide(np.minimum.reduce(np.broadcast_arrays(*cycles)) * rows * columns, m * n * k)


def quantised(m: Array, n: Array, often: Array, architecture: Architecture) -> Array:
    """Time of products on a generated device over that of units that divide the work evenly, shape (kernels, n). [1]

    Tiles of C run in waves over the units, the last wave as long as a full one, and tiles at the edges as long as others;
    the best of the tiles that a unit may work on is taken. A tile is no larger than a product of few rows.

    Parameters
    ----------
    m, n, often : sizes, and how many equal products are launched at once, shape (kernels, n). [1]
    """
    waves = []
    for rows, columns in architecture.execution.blocks:
        height, width = (np.minimum(side, STRIP * np.ceil(size / STRIP)) for side, size in ((rows, m), (columns, n)))
        blocks = often * np.ceil(m / height) * np.ceil(n / width)
        waves.append(np.ceil(blocks / architecture.units) * (architecture.units * height * width))
    return divide(np.minimum.reduce(waves), often * m * n) if waves else np.ones(1)


def wave_times(
    m: Array,
    n: Array,
    k: Array,
    architecture: Architecture,
    dtype: str,
    element: float,
    tiles: TileExecution | None = None,
    *,
    batch: Array | float = 1.0,
    second: Array | float = 1.0,
    widening: Widening | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Times that computing, the last cache and both together take, without main memory and launch.

    Parameters
    ----------
    m, n, k : shape (gemms, 1) or (gemms, n). Dimensions of C[m, n] = A[m, k] B[k, n]. [1]
    element : size of an element. [B]
    tiles : the library that multiplies; the usual one of the device where absent.
    batch : equal products in one launch, shape as m. [1]
    second : size of an element of B over that of A, shape (gemms, 1). [1]
    widening : how B is widened, where it is.

    Returns
    -------
    compute, cache, together : shape (gemms, n). [s]
    again : bytes that blocks read from main memory once more, shape (gemms, n). [B]
    """
    tiles = tiles or architecture.execution.tiles
    assert tiles is not None  # the caller has looked
    many = np.asarray(batch, dtype=float)
    many = many if many.shape == m.shape else np.broadcast_to(many, m.shape)
    ratio, slots = np.asarray(second), () if widening is None else (widening.element,)
    again = functools.partial(wave_times, architecture=architecture, dtype=dtype, element=element, tiles=tiles)
    if m.shape[-1] > 1 and len(m) > 1:  # of many points, products alike are timed once
        first, which = _distinct(m, n, k, many, ratio, *slots)
        if len(first) < len(m):
            own = None if widening is None else widening.some(first)
            found = again(m[first], n[first], k[first], batch=many[first], second=_some(ratio, first), widening=own)
            return tuple(part[which] for part in found)  # type: ignore[return-value]
    if m.shape[-1] > 1 and architecture.single:  # and so are points alike on one device
        tables = m, n, k, many, ratio
        first, which = distinct(np.concatenate([np.atleast_2d(table) for table in (*tables, *slots) if table.shape[-1:] == m.shape[-1:]]))
        if len(first) < len(which):
            m, n, k, many, ratio = (at_points(np.atleast_1d(table), first) for table in tables)
            own = None if widening is None else widening.at(first)
            return tuple(at_points(part, which) for part in again(m, n, k, batch=many, second=ratio, widening=own))  # type: ignore[return-value]
    chunks = (slice(start, start + CHUNK) for start in range(0, len(m), CHUNK))
    parts = [
        _wave_times(m[i], n[i], k[i], many[i], _some(ratio, i), widening and widening.some(i), architecture, dtype, element, tiles)
        for i in chunks
    ]
    if len(parts) == 1:
        return parts[0]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]


def _distinct(*tables: Array) -> tuple[Index, Index]:
    """Of rows that are alike in all tables the first, and of every row which of these it is like."""
    whole = [table for table in tables if table.ndim > 1]
    known: dict[tuple[bytes, ...], int] = {}
    rows = [known.setdefault(tuple(table[i].tobytes() for table in whole), i) for i in range(len(whole[0]))]
    first, which = np.unique(rows, return_inverse=True)
    return first, which


def _some(values: Array, rows: slice | Index) -> Array:
    """Some rows of a table; what holds for all products is given without an axis of them."""
    return values[rows] if values.ndim > 1 else values


def _wave_times(
    m: Array, n: Array, k: Array, batch: Array, second: Array, widening: Widening | None, architecture: Architecture, dtype: str,
    element: float, tiles: TileExecution,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    own = tiles if isinstance(tiles, ProductLibrary) else None
    rate = architecture.throughput[dtype] * architecture.reached((own or architecture.execution).matrix_utilisation)
    units, cache_rate = architecture.units, architecture.operand_rate * tiles.cache_bytes_per_flop
    power = power_times(2.0 * batch * m * n * k, architecture, dtype, own)
    partial = divide(ACCUMULATOR * batch * m * n, tiles.partial_rate * architecture.memory.bandwidth)
    per_flop = units / rate if widening is None else units / (rate * widening.matrix)
    per_element = np.zeros(1) if widening is None else widening.element * units
    shape = np.broadcast(power, partial, per_flop, cache_rate, tiles.fill, tiles.split, per_element, *_of_library(architecture, own)).shape
    best = np.full(shape, np.inf)
    compute, cache, both, drawn = np.zeros((4, *shape))
    taken = np.full(shape, -1)  # place of the best choice, -1 where a product never ends
    choices = _choices(tiles.shapes if widening is None else (*tiles.shapes, *widening.shapes), tiles.splits)
    limits = np.array(own.rows_up_to, dtype=float) if own is not None and own.rows_up_to else None
    together = max(1, CHUNK // max(best.size, 1))  # choices of tile at once: all of them for a few products, one for many
    of_height, stacked, fitting = _stacked(choices, m, batch, widening)
    for start in range(0, choices.shape[1], together):
        rows, columns, splits, which = choices[:, start : start + together]
        high = of_height[start : start + together]
        blocks = stacked[high] * np.ceil(n / columns) * (splits * batch)
        depth = np.ceil(k / (splits * tiles.depth)) * tiles.depth
        block = depth * (2.0 * rows * columns) * per_flop + tiles.fill
        if widening is not None:
            block = block + depth * columns * per_element
        filled = np.ceil(blocks / units)
        if own is not None:
            filled = np.maximum(own.rounding * filled + (1.0 - own.rounding) * (blocks / units), 1.0)
            blocks = filled * units  # that the cache has to feed
        waves = filled * block
        waves = waves + np.where(splits > 1, tiles.split + (splits + 1) * partial, 0.0)
        panels = blocks * depth * ((rows + columns * second) * element) / cache_rate
        if own is not None:
            panels = panels + blocks * (rows * columns) * (own.stored / cache_rate)
        time = score = _fourth(waves) + _fourth(panels)
        wanted = [(compute, waves), (cache, panels)]
        if widening is not None:
            draws = power + divide(blocks * depth * columns * widening.element, architecture.power_clock)
            score = np.where(fitting[high], time + _fourth(draws), np.inf)
            wanted += [(both, time), (drawn, draws)]
        if limits is not None:
            score = np.where(which == np.searchsorted(limits, m), score, np.inf)
        whole = np.broadcast_shapes(score.shape, *(all_.shape for _, all_ in wanted))  # points may differ in what the choice does not see
        score = np.broadcast_to(score, whole)
        first = score.argmin(axis=0)
        chosen = first * first.size + np.arange(first.size).reshape(first.shape)
        least = score.take(chosen)
        better = least < best
        np.copyto(best, least, where=better)
        np.copyto(taken, first + start, where=better)
        for kept, all_ in wanted:
            np.copyto(kept, (all_ if all_.shape == score.shape else np.broadcast_to(all_, score.shape)).take(chosen), where=better)
    if widening is None:
        both, drawn = best, power
    third = drawn * drawn * drawn
    again = np.zeros(shape) if own is None else _again(taken, choices, (m, n, k), batch, second, element, architecture, own)
    return np.maximum(compute, drawn), cache, np.sqrt(np.cbrt(both * np.sqrt(both) + third * third)), again


def _stacked(choices: Array, m: Array, batch: Array, widening: Widening | None) -> tuple[Index, Array, Mask]:
    """Of few heights of tile, which all choices share: that of each choice, tiles one below the other, and whether kernels take them."""
    heights, of_height = np.unique(choices[0, :, 0, 0], return_inverse=True)
    tall = heights[:, None, None]
    if widening is None:
        return of_height, np.ceil(m / tall), np.ones(1, dtype=bool)
    return of_height, widening.below(m, tall, batch), widening.takes(m, tall)


def _again(
    taken: Index, choices: Array, sizes: tuple[Array, Array, Array], batch: Array, second: Array, element: float,
    architecture: Architecture, library: ProductLibrary,
) -> Array:  # fmt: skip
    """Bytes that the best tiles alone read once more, for no choice depends on it; none of products that never end. [B]"""
    rows, columns = choices[:2, taken, 0, 0]
    return np.where(taken < 0, 0.0, batch * overflow(*sizes, rows, columns * second, columns, element, architecture, library))


def _of_library(architecture: Architecture, library: ProductLibrary | None) -> tuple[Array, ...]:
    """What else may differ from point to point where tiles are those of a library: its own numbers, and the cache whose overflow counts."""
    if library is None:
        return ()
    cache = architecture.levels[-2]
    return library.rounding, library.stored, library.reread, library.span, cache.capacity, cache.instances


@functools.lru_cache(maxsize=64)
def _choices(shapes: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> Array:
    """Rows and columns of tiles, splits of k, and places of the tiles among `shapes`, shape (4, choices, 1, 1)."""
    found = [(rows, columns, parts, i) for i, (rows, columns) in enumerate(shapes) for parts in splits]
    return np.array(found, dtype=float).T[:, :, None, None]


def overflow(
    m: Array,
    n: Array,
    k: Array,
    rows: Array,
    read: Array,
    columns: Array,
    element: float,
    architecture: Architecture,
    library: ProductLibrary,
) -> Array:
    """Bytes of panels that come from main memory once more, for tiles of so many rows and columns. [B]

    Blocks start along the rows of C, and units drift apart along k. Where the panels of all units at work overflow the last cache, a unit
    finds a share of its own gone that another has read. `read` are the columns over how much narrower B is.
    """
    high, wide, cache = np.ceil(m / rows), np.ceil(n / columns), architecture.levels[-2]
    active = np.minimum(high, architecture.units) * rows + np.clip(architecture.units / high, 1.0, wide) * read
    room = library.span * cache.capacity * cache.instances / (active * k * element)
    share = library.reread / (1.0 + room * room * room)  # without the cost of a general power
    return np.asarray(high * wide * (rows + read) * k * element * share)


def power_times(flops: Array, architecture: Architecture, dtype: str, library: ProductLibrary | None) -> Array:
    """Time of products by the clock that the power limit allows, shape as `flops`. [s]

    From rest a chip starts at its boost clock: a benchmark of a few short calls sees the limit only in part.
    """
    clock, peak = architecture.power_clock, architecture.throughput[dtype]
    time = divide(flops, peak * (clock if library is None else clock * library.clock))
    repeats = architecture.repeats
    if repeats is None or not repeats.settling:
        return time
    boost = np.minimum(time, divide(flops, peak))
    return np.asarray(boost + (time - boost) * divide(time, time + repeats.settling))


def _fourth(x: Array) -> Array:
    """x^4 without the cost of a general power."""
    square = x * x
    return np.asarray(square * square)
