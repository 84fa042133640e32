"""Matrix products on devices whose libraries are known: tiles in waves over the units, sharing cache, memory and power.

The library cuts C into tiles, optionally splits k among several blocks, and launches one block per tile and split. Four
things take time at once, and none of them hides the others entirely:

* waves: blocks run in waves over the units; the last wave costs as much as a full one;
* power: the chip as a whole does not multiply at its boost rate for long, however the blocks fall, so that a half-empty
  wave loses less than half of the throughput;
* cache: every block reads its own panels of A and B, and all share the last cache's bandwidth; small tiles read more;
* memory: each operand crosses the memory bus once.

The library is taken to choose the tile and split with the least time. The first three combine by a fourth-power mean, the
memory joins by a cubic one (exponents fixed; freed in a fit they stay there). Fits and errors: docs/validation.md.
"""

from __future__ import annotations

import numpy as np

from crossflow.architecture import Architecture
from crossflow.architecture.execution import TileExecution
from crossflow.arrays import Array

ACCUMULATOR = 4  # size of a partial sum [B]
CHUNK = 16384  # matrix products a batch: temporaries stay in cache


def wave_times(
    m: Array, n: Array, k: Array, architecture: Architecture, dtype: str, element: float, activity: float = 1.0
) -> tuple[Array, Array, Array]:
    """Times that computing, the last cache and both together take, without main memory and launch.

    Parameters
    ----------
    m, n, k : shape (gemms, 1). Dimensions of C[m, n] = A[m, k] B[k, n]. [1]
    element : size of an element. [B]
    activity : switching activity of the operands: 1 for random data, 0 for constant data, which never meets the power limit. [1]

    Returns
    -------
    compute, cache, together : shape (gemms, n). [s]
    """
    parts = [
        _wave_times(m[i : i + CHUNK], n[i : i + CHUNK], k[i : i + CHUNK], architecture, dtype, element, activity)
        for i in range(0, len(m), CHUNK)
    ]
    if len(parts) == 1:
        return parts[0]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]


def _wave_times(
    m: Array, n: Array, k: Array, architecture: Architecture, dtype: str, element: float, activity: float
) -> tuple[Array, Array, Array]:
    tiles = architecture.execution.tiles
    assert tiles is not None  # the caller has looked
    rate = architecture.throughput[dtype] * architecture.execution.matrix_utilisation
    units, cache_rate = architecture.units, architecture.units * architecture.frequency * tiles.cache_bytes_per_clock
    power = activity * 2.0 * m * n * k / rate
    partial = ACCUMULATOR * m * n / (tiles.partial_rate * architecture.memory.bandwidth)
    varying = (m, power, cache_rate, partial, units, tiles.fill, tiles.split)
    best = np.full(np.broadcast_shapes(*(array.shape for array in varying)), np.inf)
    compute, cache = np.zeros_like(best), np.zeros_like(best)
    for rows, columns, splits in _choices(tiles):
        blocks = np.ceil(m / rows) * np.ceil(n / columns) * splits
        depth = np.ceil(k / (splits * tiles.depth)) * tiles.depth
        waves = np.ceil(blocks / units) * (depth * (2.0 * rows * columns) * units / rate + tiles.fill)
        if splits > 1:
            waves = waves + tiles.split + (splits + 1) * partial
        panels = blocks * depth * ((rows + columns) * element) / cache_rate
        time = _fourth(waves) + _fourth(panels)
        better = time < best
        np.copyto(best, time, where=better)
        np.copyto(compute, waves, where=better)
        np.copyto(cache, panels, where=better)
    return np.maximum(compute, power), cache, np.sqrt(np.sqrt(best + _fourth(power)))


def _choices(tiles: TileExecution) -> list[tuple[int, int, int]]:
    return [(rows, columns, splits) for rows, columns in tiles.shapes for splits in tiles.splits]


def _fourth(x: Array) -> Array:
    """x^4 without the cost of a general power."""
    square = x * x
    return np.asarray(square * square)
