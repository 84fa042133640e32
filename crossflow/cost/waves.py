"""Matrix products on devices whose libraries are known: tiles in waves over the units, sharing cache, memory and power.

The library cuts C into tiles, optionally splits k among several blocks, and launches one block per tile and split. Four
things take time at once, and none of them hides the others entirely:

* waves: blocks run in waves over the units; the last wave costs as much as a full one;
* power: the chip as a whole does not multiply faster than its power limit allows, however the blocks fall, so that a
  half-empty wave loses less than half of the throughput;
* cache: every block reads its own panels of A and B, and all share the last cache's bandwidth; small tiles read more;
* memory: each operand crosses the memory bus once.

The library is taken to choose the tile and split with the least time. Waves and cache combine by a fourth-power mean, the
power limit joins by a sixth-power one, as it is nearly a hard limit, and the memory by a cubic one (exponents are fixed).
Fits and errors: docs/validation.md.
"""

from __future__ import annotations

import functools

import numpy as np

from crossflow.architecture import Architecture
from crossflow.arrays import Array, divide

ACCUMULATOR = 4  # size of a partial sum [B]
CHUNK = 16384  # matrix products a batch: temporaries stay in cache


def wave_times(
    m: Array,
    n: Array,
    k: Array,
    architecture: Architecture,
    dtype: str,
    element: float,
    *,
    batch: Array | float = 1.0,
) -> tuple[Array, Array, Array]:
    """Times that computing, the last cache and both together take, without main memory and launch.

    Parameters
    ----------
    m, n, k : shape (gemms, 1) or (gemms, n). Dimensions of C[m, n] = A[m, k] B[k, n]. [1]
    element : size of an element. [B]
    batch : equal products in one launch, shape as m. [1]

    Returns
    -------
    compute, cache, together : shape (gemms, n). [s]
    """
    many = np.asarray(batch, dtype=float)
    many = many if many.shape == m.shape else np.broadcast_to(many, m.shape)
    parts = [
        _wave_times(m[i : i + CHUNK], n[i : i + CHUNK], k[i : i + CHUNK], many[i : i + CHUNK], architecture, dtype, element)
        for i in range(0, len(m), CHUNK)
    ]
    if len(parts) == 1:
        return parts[0]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]


def _wave_times(
    m: Array, n: Array, k: Array, batch: Array, architecture: Architecture, dtype: str, element: float
) -> tuple[Array, Array, Array]:
    tiles = architecture.execution.tiles
    assert tiles is not None  # the caller has looked
    rate = architecture.throughput[dtype] * architecture.execution.matrix_utilisation
    units, cache_rate = architecture.units, architecture.units * architecture.frequency * tiles.cache_bytes_per_clock
    power = divide(2.0 * batch * m * n * k, architecture.throughput[dtype] * architecture.power_clock)
    partial = divide(ACCUMULATOR * batch * m * n, tiles.partial_rate * architecture.memory.bandwidth)
    per_flop = units / rate
    shape = np.broadcast_shapes(power.shape, partial.shape, per_flop.shape, cache_rate.shape, tiles.fill.shape, tiles.split.shape)
    best = np.full(shape, np.inf)
    compute, cache = np.zeros(shape), np.zeros(shape)
    choices = _choices(tiles.shapes, tiles.splits)
    together = max(1, CHUNK // max(best.size, 1))  # choices of tile at once: all of them for a few products, one for many
    for start in range(0, choices.shape[1], together):
        rows, columns, splits = choices[:, start : start + together]
        blocks = np.ceil(m / rows) * np.ceil(n / columns) * (splits * batch)
        depth = np.ceil(k / (splits * tiles.depth)) * tiles.depth
        waves = np.ceil(blocks / units) * (depth * (2.0 * rows * columns) * per_flop + tiles.fill)
        waves = waves + np.where(splits > 1, tiles.split + (splits + 1) * partial, 0.0)
        panels = blocks * depth * ((rows + columns) * element) / cache_rate
        time = _fourth(waves) + _fourth(panels)
        first = time.argmin(axis=0)
        chosen = first * first.size + np.arange(first.size).reshape(first.shape)
        least = time.take(chosen)
        better = least < best
        np.copyto(best, least, where=better)
        for kept, all_ in ((compute, waves), (cache, panels)):
            np.copyto(kept, (all_ if all_.shape == time.shape else np.broadcast_to(all_, time.shape)).take(chosen), where=better)
    third = power * power * power
    return np.maximum(compute, power), cache, np.sqrt(np.cbrt(best * np.sqrt(best) + third * third))


@functools.lru_cache(maxsize=64)
def _choices(shapes: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> Array:
    """Rows and columns of tiles and splits of k, shape (3, choices, 1, 1)."""
    return np.array([(rows, columns, parts) for rows, columns in shapes for parts in splits], dtype=float).T[:, :, None, None]


def _fourth(x: Array) -> Array:
    """x^4 without the cost of a general power."""
    square = x * x
    return np.asarray(square * square)
