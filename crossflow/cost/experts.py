"""Fused layers of experts as libraries run them: choose, sort, two grouped products in tiles and waves, activation, weighted sum.

The rank with the most rows counts (`crossflow.program.loads`). A grouped product cuts the rows of every expert into tiles by itself, so
that an expert with a few rows costs a whole tile. Tiles run in waves over the units; the last wave takes as long as a full one. A tile
takes as long as its multiplications or as its panels take through the last cache. The weights of every expert that has a row cross the
memory bus, once for so many tiles one below the other (`group`) where they do not fit the last cache.
Tiles, memory and the power limit join as in `crossflow.cost.waves`; the library is taken to choose the tile with the least time.

Some kernels carry the rows of other ranks through: they write zeros for them (`carried`), or even multiply them (`multiplied`). So they do
where all tokens of the ranks that share the experts out are gathered on each; after an exchange there are none (`given`).

A kernel whose host does not know how many rows each expert gets may have room for the most that there can be (`padded`): each expert of
the rank, with rows or without, begins a block of so many rows. Blocks without any row pass through the last cache and are written like
the others, they are only not multiplied (DeepGEMM's products of contiguous groups [1]_). In steps that write few tokens they are nearly
all blocks, so that such a layer takes as long for one token as for a hundred.
Fits and errors: docs/validation.md.

References
----------
.. [1] deepseek-ai/DeepGEMM, include/deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh: the warp that loads does so for all blocks, those that multiply
   skip blocks whose place in `grouped_layout` is negative. Rows: vLLM, model_executor/layers/fused_moe/deep_gemm_utils.py,
   `compute_aligned_M`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, count, divide
from crossflow.base.formats import DTYPE_BYTES, HALF, kept_bytes
from crossflow.cost.roofline import KernelCosts, pass_costs, product_costs, timed_costs
from crossflow.hardware.architecture.execution import ExpertLibrary, preferred
from crossflow.hardware.architecture.model import Architecture
from crossflow.program.loads import TILE_ROWS, RowLoads, expert_loads

TILES = tuple((i, columns) for i in range(len(TILE_ROWS)) for columns in (32, 64, 128, 256))  # places in `TILE_ROWS`, and columns
DEPTH = 64  # elements of k that one step of the main loop handles
KERNELS = 8.0  # of a layer: choice, sort, permutation, product, activation, product, weighted sum, and one that prepares
ALIKE = {"fp16": "bf16"}
CHUNK = 16384  # layers at once: temporaries stay in cache


@dataclass(frozen=True, kw_only=True)
class _Layers:
    """Layers of experts as rows of sizes, shape (layers,) each, with their loads."""

    hidden: Array
    inner: Array  # of the rank's share of an expert
    branches: Array  # products before the activation: 2 with a gate
    rows: Array  # that are multiplied, those of other ranks too where the library does so
    others: Array  # of other ranks
    loads: RowLoads
    blank: Array | float = 0.0  # blocks of `padded` rows without any row. [1]


def expert_library(architecture: Architecture, names: Sequence[str], dtype: str) -> ExpertLibrary | None:
    """The first of some libraries that was measured on a device in a data type, None without any; fp16 is as fast as bf16."""
    known = {name: types for name, types in architecture.execution.libraries.experts.items() if ALIKE.get(dtype, dtype) in types}
    types = preferred(names, known)
    return None if types is None else types[ALIKE.get(dtype, dtype)]


def grouped_costs(
    sizes: Array, library: ExpertLibrary, architecture: Architecture, dtype: str,
    *, eager: bool = False, warm: bool = False, boosted: bool = False,
) -> KernelCosts:  # fmt: skip
    """Cost of fused layers of experts.

    Parameters
    ----------
    sizes : as `crossflow.program.kernels.SIZES` names them, shape (sizes, kernels, n). [1]
    library : whose parameters are those of `dtype`.
    eager : the host launches each kernel, rather than a captured graph.
    warm : weights that fit the last cache are there already, as where one layer runs again and again.
    boosted : the layer is over before the power limit slows the clock down.
    """
    device = _Device.of(architecture, library, dtype)
    shape = (sizes.shape[1], max(sizes.shape[2], device.points))
    sizes = np.broadcast_to(sizes, (len(sizes), *shape))
    # Equal layers are timed once, on each of the devices where these differ between points.
    points = np.broadcast_to(np.arange(shape[1]) if device.points > 1 else 0, shape)
    rows, which = np.unique(np.concatenate([sizes, points[None]]).reshape(len(sizes) + 1, -1).T, axis=0, return_inverse=True)
    layers, on = rows[:, :-1].T, rows[:, -1].astype(int)
    loads = layer_loads(layers)
    found = _times(layers, loads, device.at(on), dtype, warm=warm, boosted=boosted)
    busy, compute, cache, memory, moved, working = found[:, which.ravel()].reshape(-1, *shape)
    multiplied, levels = loads.rows[which.ravel()].reshape(shape), len(architecture.levels)
    flops = 2.0 * multiplied * (sizes[3] + 1.0) * sizes[1] * sizes[2]
    times, traffic = np.zeros((levels + 1, *shape)), np.zeros((levels, *shape))
    times[0], times[-2 if levels > 1 else -1] = compute, cache
    times[-1], traffic[-1] = memory, moved
    launches = np.full((len(sizes[0]), 1), KERNELS)
    launch = np.maximum(library.start, launches * architecture.execution.kernel_launch * eager)
    energy = flops * architecture.energy_per_flop[dtype] + moved * architecture.memory.energy
    return KernelCosts(
        time=busy + launch,
        launch=launch,
        launches=launches,
        resource_times=times,
        flops=flops,
        traffic=traffic,
        energy=energy,
        working=working,
    )


def layer_loads(sizes: Array) -> RowLoads:
    """RowLoads of layers by their sizes, shape (sizes, layers)."""
    tokens, _, _, _, active, experts, ranks, load, skew, variation, reached, slots, _ = sizes
    return expert_loads(tokens, active, experts, ranks, load, skew, reached, slots, variation)


@dataclass(frozen=True, kw_only=True)
class _Device:
    """What layers of experts use of a device and of a library, each of shape (layers,) or (1,)."""

    units: Array
    throughput: Array
    frequency: Array
    power_clock: Array
    capacity: Array  # of the last cache. [B]
    cache: Array  # bandwidth of the last cache. [B/s]
    memory: Array  # bandwidth of main memory. [B/s]
    library: ExpertLibrary

    @classmethod
    def of(cls, architecture: Architecture, library: ExpertLibrary, dtype: str) -> _Device:
        last = architecture.levels[-2]
        return cls(
            units=np.atleast_1d(architecture.units), throughput=architecture.throughput[dtype], frequency=architecture.frequency,
            power_clock=np.atleast_1d(architecture.power_clock), capacity=last.capacity * last.instances, cache=last.bandwidth,
            memory=architecture.memory.bandwidth, library=library,
        )  # fmt: skip

    @property
    def points(self) -> int:
        """Design points that differ."""
        own = [value for value in vars(self).values() if isinstance(value, np.ndarray)]
        return count(*own, *(value for _, value in self.library if isinstance(value, np.ndarray)))

    def at(self, points: Index) -> _Device:
        """The devices of some points, one after the other; what does not differ stays one value."""

        def taken(held: Iterable[tuple[str, Any]]) -> dict[str, Array]:
            return {name: value[points] for name, value in held if isinstance(value, np.ndarray) and value.size > 1}

        return replace(self, **taken(vars(self).items()), library=self.library.model_copy(update=taken(self.library)))


def _times(sizes: Array, loads: RowLoads, device: _Device, dtype: str, *, warm: bool, boosted: bool) -> Array:
    """Times of layers without their start: whole, of computing, cache and memory [s], bytes [B], units at work [s]; (6, layers)."""
    chunks = [np.arange(start, min(start + CHUNK, sizes.shape[1])) for start in range(0, sizes.shape[1], CHUNK)]
    parts = [_layer_times(sizes[:, places], loads[places], device.at(places), dtype, warm, boosted) for places in chunks]
    return np.concatenate(parts, axis=1)


def _layer_times(sizes: Array, loads: RowLoads, device: _Device, dtype: str, warm: bool, boosted: bool) -> Array:
    library = device.library
    tokens, hidden, inner, branches, active = sizes[:5]
    element, given = DTYPE_BYTES[dtype], np.maximum(sizes[-1], loads.rows)
    beside = given - loads.rows
    others = np.minimum(np.maximum(np.minimum(tokens, loads.rows) * active - loads.rows, 0.0), beside) * library.multiplied
    heights = np.array(TILE_ROWS)[:, None]
    layers = _Layers(
        hidden=hidden, inner=inner, branches=branches, rows=loads.rows + others, others=beside,
        loads=RowLoads(experts=loads.experts, rows=loads.rows, tiles=loads.tiles + others / heights),
        blank=_blank(sizes, loads, given, library.padded),
    )  # fmt: skip
    held = loads.experts * (branches + 1.0) * hidden * inner * element + 2.0 * (layers.rows + layers.blank * library.padded) * (
        hidden + inner
    )
    missing = _missing(held, device.capacity)
    weights = missing if warm else np.ones_like(held)
    found = [_product(n, k, layers, weights, missing, device, dtype, boosted) for n, k in ((branches * inner, hidden), (hidden, inner))]
    bandwidth = device.memory * library.memory
    between = _between(layers, element, library)
    missed = _missing(between, device.capacity)
    passing = between * (missed / bandwidth + (1.0 - missed) / device.cache)
    steady = library.token * given / active + library.expert * loads.experts
    extra = np.stack(np.broadcast_arrays(passing + steady, 0.0 * steady, 0.0 * steady, passing, between * missed, passing))
    return np.asarray(found[0] + found[1] + extra)


def _blank(sizes: Array, loads: RowLoads, given: Array, padded: int) -> Array | float:
    """Blocks of so many rows for which a kernel has room, and which have none. [1]"""
    if not padded:
        return 0.0
    places = np.maximum(sizes[5], sizes[11]) / sizes[6]  # for experts on the rank
    room = np.ceil((given + places * (padded - 1.0)) / padded)
    return np.asarray(np.maximum(room - loads.tiles[TILE_ROWS.index(padded)], 0.0))


def _missing(held: Array, capacity: Array) -> Array:
    """Share of some bytes that the last cache does not keep from one kernel to the next. [1]"""
    return np.asarray(1.0 / (1.0 + divide(capacity, np.maximum(held, 1.0)) ** 3))


def _between(layers: _Layers, element: float, library: ExpertLibrary) -> Array:
    """Bytes that move between the products. [B]

    Of a row: permutation r1 w1 in the type of the products, weighted sum r1 w1; activation r2 w1, r1 to quantise. Of a row of another
    rank results r1 w1 of both products, where the kernels carry it through.
    """
    own = layers.loads.rows * (layers.hidden * (3.0 * HALF + 2.0 * element) + layers.inner * (4.0 * HALF + 2.0 * element))
    activated = layers.blank * library.padded * layers.inner * (4.0 * HALF + 2.0 * element)  # and quantised, of blocks without rows too
    return np.asarray(own * library.passes + layers.others * (layers.hidden + 3.0 * layers.inner) * HALF * library.carried + activated)


def _product(
    n: Array, k: Array, layers: _Layers, weights: Array, missing: Array, device: _Device, dtype: str, boosted: bool,
) -> Array:  # fmt: skip
    """Time of a grouped product with the best tile, its computing, cache, memory [s], bytes [B], units at work [s]; (6, layers).

    weights, missing : share of the weights, and of rows and results, that are not in the last cache, shape (layers,). [1]
    """
    library, element, units, rows = device.library, DTYPE_BYTES[dtype], device.units, layers.rows
    shapes = TILES if not library.padded else tuple(one for one in TILES if TILE_ROWS[one[0]] == library.padded)
    rate = device.throughput / units * library.matrix
    per_unit = device.frequency * library.cache_bytes_per_clock
    one = n * k * element
    away = _missing(one, device.capacity)
    tiles = layers.loads.tiles[[i for i, _ in shapes]]
    height, width = (np.array(side, dtype=float)[:, None] for side in ([TILE_ROWS[i] for i, _ in shapes], [w for _, w in shapes]))
    depth = np.ceil(k / DEPTH) * DEPTH
    blocks = tiles + layers.blank
    filled = blocks * np.ceil(n / width) / units
    waves = np.ceil(filled)
    compute = 2.0 * height * width * depth / rate * divide(tiles, blocks)
    panels = ((height + width) * depth * element) / per_unit
    block = np.sqrt(np.sqrt(_fourth(compute) + _fourth(panels))) + HALF * height * width / per_unit
    again = np.maximum(np.ceil(tiles / np.maximum(layers.loads.experts, 1.0) / library.group) - 1.0, 0.0)
    passing = rows + layers.blank * library.padded
    moved = layers.loads.experts * one * (weights + again * away) + passing * (k * element + n * HALF) * missing
    memory = moved / (device.memory * library.memory)
    whole = np.sqrt(np.sqrt(_fourth(waves * block) + _fourth(memory)))
    if not boosted:
        power = divide(2.0 * rows * n * k, device.throughput * device.power_clock)
        whole = np.cbrt(np.sqrt(whole**6 + power**6))
    best = whole.argmin(axis=0)[None]
    table = (whole, waves * compute, waves * panels, memory, moved, whole * np.minimum(filled, 1.0))
    return np.concatenate([np.take_along_axis(np.broadcast_to(one, whole.shape), best, axis=0) for one in table])


def _fourth(x: Array) -> Array:
    square = x * x
    return np.asarray(square * square)


# -------------------------------------------------------------------------------------------- without a library


def general_costs(sizes: Array, architecture: Architecture, dtype: str, *, least: bool = False) -> KernelCosts:
    """Cost of layers of experts where no library is known: equal products and passes over memory, on as many rows each.

    Parameters
    ----------
    sizes : as in `grouped_costs`.
    least : take the lower bound: operations at peak, weights and rows once from memory.
    """
    loads = layer_loads(sizes.reshape(len(sizes), -1))
    experts, rows = (one.reshape(sizes.shape[1:]) for one in (loads.experts, loads.rows))
    _, hidden, inner, branches = sizes[:4]
    element, kept = DTYPE_BYTES[dtype], kept_bytes(dtype)
    if least:
        flops = 2.0 * rows * (branches + 1.0) * hidden * inner
        moved = experts * (branches + 1.0) * hidden * inner * element + 2.0 * rows * hidden * element
        return timed_costs(0.0 * flops, flops, moved, architecture, dtype, least=True)
    result, once = np.full((len(hidden), 1), kept), np.ones((len(hidden), 1))
    each = divide(rows, experts)
    products = [
        product_costs(np.stack([each, n, k, experts]), result, architecture, dtype)
        for n, k in ((branches * inner, hidden), (hidden, inner))
    ]
    activation = pass_costs((branches + 1.0) * kept * rows * inner, 8.0 * rows * inner, once, architecture, dtype)
    permutation = pass_costs(4.0 * kept * rows * hidden, 0.0 * rows, KERNELS * once, architecture, dtype)
    return _one_after_the_other([*products, activation, permutation])


def _one_after_the_other(parts: Sequence[KernelCosts]) -> KernelCosts:
    """Costs of kernels that follow one another, as those of one."""
    return KernelCosts(**{field.name: sum((getattr(part, field.name) for part in parts), np.zeros(1)) for field in fields(KernelCosts)})
