"""Hierarchical roofline: a kernel takes as long as its slowest resource, compute or any level of memory [1]_.

Four kinds of kernel are all that is priced: matrix products, fused attention, scans of states, and passes over memory. They are priced
here for every workload, so that the same work takes the same time and energy whoever asks.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 6.1; Williams et al., CACM 52(4), 2009.
.. [2] Dao, "FlashAttention-2", ICLR 2024, Sec. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, at_points, divide, largest
from crossflow.base.formats import DTYPE_BYTES, HALF, kept_bytes
from crossflow.cost.tiling import PowerLimit, register_accesses, traffic_by_level
from crossflow.cost.waves import WIDENING, Widening, padded, quantised, wave_times
from crossflow.hardware.architecture.execution import ProductLibrary, Quantising, TileExecution, WideningLibrary
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.voltage import throttled
from crossflow.program.kernels import QUERIES

COMPRESSED = 0.75  # of the two operands that registers feed to an array, one is half as large with 2:4 sparsity. [1]
WIDE = ("bf16", "fp16", "tf32", "fp32")  # types of what stays out of narrow products (attention, the head): the first that a device has


@dataclass(frozen=True, kw_only=True)
class KernelCosts:
    """Times of kernels and what they keep busy; arrays that broadcast to (kernels, n) unless said."""

    time: Array  # with the launch. [s]
    launch: Array  # share of `time` in which nothing runs. [s]
    launches: Array  # kernels launched. [1]
    # time that each resource would need alone, shape (1 + levels, kernels, n): compute, then the memory levels from the nearest to main
    # memory. [s]
    resource_times: Array
    flops: Array  # [flop]
    traffic: Array  # bytes read and written at each level, shape (levels, kernels, n). [B]
    energy: Array  # dynamic energy of operations, of traffic at every level, and of units at work where that is known apart. [J]
    working: Array  # time in which units work, as if all of them did. [s]

    @property
    def bound_times(self) -> Array:
        """Time in kernels that each resource binds, without launches, shape (1 + levels, kernels, n). [s]"""
        return np.asarray(np.where(largest(self.resource_times), self.time - self.launch, 0.0))

    @property
    def spare(self) -> Array:
        """Time that kernels which main memory binds would take less if it took none, shape (kernels, n). [s]"""
        others = self.resource_times[:-1].max(axis=0)
        binds = self.resource_times[-1] > others
        with np.errstate(invalid="ignore"):  # of a kernel that never ends nothing is spared
            return np.where(binds & np.isfinite(self.time), np.maximum(self.time - self.launch - others, 0.0), 0.0)

    def slowed(self, share: Array) -> KernelCosts:
        """Costs of kernels that take longer by a share, without their launches. [1]"""
        return replace(self, time=self.time + share * (self.time - self.launch), working=self.working * (1.0 + share))

    def launched(self, gap: Array) -> KernelCosts:
        """Costs of kernels with another gap before each. [s]"""
        launch = self.launches * gap
        return replace(self, time=self.time - self.launch + launch, launch=launch)

    def at(self, points: Index) -> KernelCosts:
        """Costs at some of the points."""
        return KernelCosts(**{field.name: at_points(getattr(self, field.name), points) for field in fields(self)})

    def __getitem__(self, kernels: Index | list[int]) -> KernelCosts:
        """Costs of some of the kernels."""
        return KernelCosts(**{field.name: getattr(self, field.name)[..., kernels, :] for field in fields(self)})


def powered(costs: KernelCosts, architecture: Architecture) -> KernelCosts:
    """Costs with the energy of units at work, as far as the power limit lets kernels draw it, where a device's is known apart.

    A kernel draws what its operations and its bytes take, and what clocks, schedulers and registers take while units work, whatever
    they work on; a few units draw their share. The clock follows the limit, so that no kernel draws more.
    """
    if architecture.working_power is None:
        return costs
    with np.errstate(invalid="ignore"):  # of a kernel that never ends nothing is known
        limit = np.maximum(architecture.maximum_power - architecture.static_power, 0.0) * (costs.time - costs.launch)
        return replace(costs, energy=np.minimum(costs.energy + architecture.working_power * costs.working, limit))


def resources(architecture: Architecture) -> tuple[str, ...]:
    """Names of the resources in the order of `KernelCosts.resource_times`."""
    return ("compute", *(level.name for level in architecture.levels))


def joined(parts: Sequence[KernelCosts], order: Index) -> KernelCosts:
    """Costs of several sets of kernels as one set; `order` gives, for each kernel of the set, its place among those of all parts."""
    n = max(getattr(part, field.name).shape[-1] for part in parts for field in fields(KernelCosts))
    places = np.split(np.argsort(order), np.cumsum([len(part.time) for part in parts])[:-1])
    found: dict[str, Array] = {}
    for field in fields(KernelCosts):
        arrays = [getattr(part, field.name) for part in parts]
        found[field.name] = np.empty((*arrays[0].shape[:-2], len(order), n))
        for array, place in zip(arrays, places, strict=True):
            found[field.name][..., place, :] = array
    return KernelCosts(**found)


def wide_type(architecture: Architecture, dtype: str) -> str:
    """Type of what keeps out of narrow products on a device; the type itself where it is wider, or where the device has no other."""
    if DTYPE_BYTES[dtype] >= HALF:
        return dtype
    return next((name for name in WIDE if name in architecture.throughput), dtype)


def vector_rate(architecture: Architecture, dtype: str) -> Array:
    """Peak rate of pointwise work: of the type itself, or in fp32, which every device computes in. [flop/s]"""
    rates = architecture.vector_throughput
    return rates[dtype] if dtype in rates else rates.get("fp32", architecture.throughput[dtype])


# -------------------------------------------------------------------------------------------- matrix products


def product_costs(
    sizes: Array, result: Array, architecture: Architecture, dtype: str, *,
    second: Array | float = 1.0, least: bool = False, library: TileExecution | None = None, leaves_out: bool = False,
    as_is: Mask | bool = False, widening: WideningLibrary | None = None,
) -> KernelCosts:  # fmt: skip
    """Cost of matrix products C[m, n] = A[m, k] B[k, n].

    By the library's tiles where they are known, by nested tiles elsewhere.

    Parameters
    ----------
    sizes : m, n, k, and how many equal products are launched at once, shape (4, kernels, n). [1]
    result : bytes that an element of C moves: those of one write, or of a read and a write where it is added to, shape (kernels, 1). [B]
    second : size of an element of B over that of A, less where B is stored in a narrower type, shape (kernels, 1). [1]
    least : take the lower bound: operations at the peak rate, every operand once from main memory.
    library : the library that multiplies, where it is not the usual one of the device.
    leaves_out : whether the units leave out the work that 2:4 sparsity of B saves; rates are those with it.
    as_is : whether the units read B as it is stored, where this is smaller, shape (kernels, 1).
    widening : kernels that widen B, where they are not those that multiply anyway.
    """
    m, n, k, batch = sizes
    element = DTYPE_BYTES[dtype]
    flops = 2.0 * batch * m * n * k
    moved = batch * (element * (m * k + k * n * second) + result * m * n)  # every operand once
    if least:
        return _least(flops, moved, architecture, architecture.throughput[dtype], architecture.energy_per_flop[dtype])
    tiles = library or architecture.execution.tiles
    if tiles is not None:
        return _tiled_costs(sizes, flops, moved, architecture, dtype, second, tiles, as_is, widening)
    return _nested_costs(sizes, flops, result - element, architecture, dtype, second, COMPRESSED if leaves_out else 1.0)


def _nested_costs(
    sizes: Array, flops: Array, added: Array, architecture: Architecture, dtype: str, second: Array | float, accessed: float
) -> KernelCosts:
    """Cost of matrix products on a device whose tiles are those of `crossflow.cost.tiling`.

    `added` is what an element of C moves beyond one write, shape (kernels, 1). [B] Units that multiply widen B as they read it, which
    takes no time. `accessed` are accesses of registers over those of products that leave out nothing. [1]
    """
    element, levels = DTYPE_BYTES[dtype], architecture.levels
    rate = architecture.throughput[dtype] * architecture.reached(architecture.execution.matrix_utilisation) * architecture.sustained_clock
    shapes = np.stack(np.broadcast_arrays(*sizes, second, added / element))
    # Points that share sizes are worked out once, and so are equal products.
    columns = shapes[..., :1] if (shapes == shapes[..., :1]).all() else shapes
    rows, which = np.unique(columns.swapaxes(0, 1).reshape(columns.shape[1], -1), axis=0, return_inverse=True)
    m, n, k, batch, ratio, more = rows.reshape(len(rows), len(shapes), -1).swapaxes(0, 1)
    work = 2.0 * batch * m * n * k
    array = architecture.array_height, architecture.array_width, architecture.dataflow
    nearest = element * (accessed * register_accesses(work, (m, n, k), levels[0], element, *array) + batch * more * m * n)
    busy = np.maximum(divide(work, rate), divide(nearest, levels[0].bandwidth) + levels[0].latency)
    throttle, energy = architecture.throttle, architecture.energy_per_flop[dtype]

    def every(outer: Array) -> Array:
        """Traffic of all products at once at each level, from that of one at all levels but the nearest."""
        traffic = np.empty((len(levels), *outer.shape[1:]))
        traffic[0], traffic[1:] = nearest, batch * outer
        return traffic

    limit: PowerLimit | None = None
    if throttle is not None:
        compute, switched = divide(work, rate), work * energy

        def price(outer: Array, within: Array | None) -> tuple[Array, Array]:
            _, busy, clock, spent = _busy(compute, every(outer), switched, architecture, within)
            return divide(busy, clock), spent

        limit = PowerLimit(
            power=throttle.power - throttle.leakage,
            switched=switched,
            nearest=nearest * levels[0].energy,
            compute=compute,
            least=divide(throttle.minimum, throttle.voltage) ** 2,
            price=price,
        )
    outer = np.empty((0, *nearest.shape))  # of a single level, from which the units read
    if len(levels) > 1:
        outer = traffic_by_level(m, n, k, element, levels, second=ratio, added=more, often=batch, busy=busy, limit=limit)
    traffic = every(outer)
    if len(rows) < len(flops) or (np.diff(which.ravel()) != 1).any():
        traffic = traffic[:, which.ravel()]
    waves = np.maximum(quantised(sizes[0], sizes[1], sizes[3], architecture), padded(sizes[0], sizes[1], sizes[2], architecture))
    return _slowest(divide(flops, rate) * waves, traffic, flops, architecture, energy, launches=np.ones((len(flops), 1)))


def _tiled_costs(
    sizes: Array, flops: Array, moved: Array, architecture: Architecture, dtype: str, second: Array | float, tiles: TileExecution,
    as_is: Mask | bool, library: WideningLibrary | None,
) -> KernelCosts:  # fmt: skip
    """Cost of matrix products on a device whose library's tiles are known (`crossflow.cost.waves`).

    `moved` crosses main memory, shape (kernels, n). [B] Where an element of B is smaller than one of A, the kernel widens B, but where
    units read it `as_is`. It may pad B for that.
    """
    m, n, k, batch = sizes
    widens = (np.asarray(second) < 1.0) & ~np.asarray(as_is)
    element, widening = DTYPE_BYTES[dtype], None
    if widens.any():
        each = widens * WIDENING / architecture.vector_throughput.get("fp32", vector_rate(architecture, dtype))
        widening = Widening(element=each, library=library)
    streamed = np.ones(1)
    if widening is not None and library is not None:
        columns, depth = (np.where(widens, multiple, 1.0) for multiple in (library.columns, library.depth))
        n, k, weights = np.ceil(n / columns) * columns, np.ceil(k / depth) * depth, batch * n * k
        moved = moved + (batch * n * k - weights) * element * second
        streamed = np.where(widens, library.memory, 1.0)
    timed = wave_times(m, n, k, architecture, dtype, element, tiles, batch=batch, second=second, widening=widening)
    compute, cache, together, again = timed
    own = tiles if isinstance(tiles, ProductLibrary) else None
    if own is not None and architecture.repeats is not None:
        moved = moved * _missed(moved + (architecture.repeats.copies - 1.0) * (k * n * element * second), architecture, own)
    if own is not None:
        moved = moved + again
    memory = divide(moved, architecture.memory.bandwidth * streamed * (1.0 if own is None else own.memory_rate))
    time = np.cbrt(together**3 + memory**3)
    energy = flops * architecture.energy_per_flop[dtype] + moved * architecture.memory.energy
    levels = len(architecture.levels)
    times, traffic = np.zeros((levels + 1, *time.shape)), np.zeros((levels, *time.shape))
    times[0], times[-2 if levels > 1 else -1] = compute, cache  # the last cache is the level before memory
    times[-1], traffic[-1] = memory, moved
    costs = _launched(times, time, traffic, flops, architecture, energy, np.ones((len(time), 1)))
    if own is None or not architecture.graphs:
        return costs
    return costs.launched(own.start if library is None or library.start is None else np.where(widens, library.start, own.start))


def _missed(footprint: Array, architecture: Architecture, library: ProductLibrary) -> Array:
    """Share of operands that are no longer in the last cache when a benchmark comes back to them; shape as `footprint`, in bytes. [1]"""
    cache = architecture.levels[-2]
    return np.asarray(1.0 / (1.0 + divide(library.kept * cache.capacity * cache.instances, footprint) ** 3))


# -------------------------------------------------------------------------------------------- passes and attention


def pass_costs(moved: Array, flops: Array, launches: Array, architecture: Architecture, dtype: str, *, least: bool = False) -> KernelCosts:
    """Cost of work that passes over data once: its bytes cross every level of memory.

    Parameters
    ----------
    moved, flops, launches : bytes, operations, and kernels that they take, shape (kernels, n). [B], [flop], [1]
    """
    rate, type_ = vector_rate(architecture, dtype), wide_type(architecture, dtype)
    if least:
        return _least(flops, moved, architecture, rate, architecture.energy_per_flop[type_], launches)
    compute = divide(flops, rate * architecture.execution.vector_utilisation)
    traffic = np.broadcast_to(moved, (len(architecture.levels), *moved.shape))
    return _slowest(compute, traffic, flops, architecture, architecture.energy_per_flop[type_], launches)


def quantised_costs(costs: KernelCosts, which: Mask, quantising: Quantising, architecture: Architecture, dtype: str) -> KernelCosts:
    """Costs of passes where some of them scale operands to a type as a library of matrix products does; `which` has shape (kernels, 1)."""
    read = kept_bytes(dtype) / (kept_bytes(dtype) + DTYPE_BYTES[dtype])  # of the bytes of a pass that reads once
    again = np.where(which, float(quantising.reads_twice) * read * costs.traffic[-1], 0.0)
    memory = divide(costs.traffic[-1] + again, architecture.memory.bandwidth * quantising.rate)
    times = costs.resource_times.copy()
    times[-1] = np.where(which, memory, times[-1])
    busy = np.where(which, memory, costs.time - costs.launch)
    launches = costs.launches * np.where(which, float(quantising.kernels), 1.0)
    alone = costs.launch * np.where(which, float(quantising.kernels), 1.0)
    launch = np.where(which & architecture.graphs, launches * quantising.start, alone)
    traffic = costs.traffic.copy()
    traffic[-1] += again
    energy = costs.energy + again * architecture.memory.energy
    return replace(
        costs, time=busy + launch, launch=launch, launches=launches, resource_times=times, traffic=traffic, energy=energy, working=busy
    )


def moving_costs(traffic: Array, launches: Array, architecture: Architecture) -> KernelCosts:
    """Cost of kernels that do nothing but move bytes through every level, shape (levels, kernels, n). [B]"""
    nothing = np.zeros(traffic.shape[1:])
    return _slowest(nothing, traffic, nothing, architecture, np.zeros(1), launches)


def timed_costs(time: Array, flops: Array, moved: Array, architecture: Architecture, dtype: str, *, least: bool = False) -> KernelCosts:
    """Cost of kernels whose time was measured: what binds them is what would take them longest by their operations and bytes.

    Parameters
    ----------
    time, flops, moved : shape (kernels, n). [s], [flop], [B]
    """
    bound = _least(flops, moved, architecture, architecture.throughput[dtype], architecture.energy_per_flop[dtype])
    times = bound.resource_times
    busy = times.max(axis=0) if least else time
    return _launched(times, busy, bound.traffic, flops, architecture, bound.energy, np.zeros((len(time), 1)))


def fused_costs(
    sizes: Sequence[Array] | Array, shapes: Sequence[Array], utilisation: Array, architecture: Architecture, dtype: str, element: float,
    *, alone: Mask | bool = False, least: bool = False,
) -> KernelCosts:  # fmt: skip
    """Cost of kernels that keep what lies between their products on chip: fused attention [2]_, chunked scans (`crossflow.program.scans`).

    Blocks of rows pass over the units in waves, at a share of the sustained matrix rate. Every block reads what its rows see through the
    caches; main memory sees it once. Products of a scan that was not measured reach the share of those of attention. The kernels of one
    scan are priced together, so that work on the matrix units of one hides behind the traffic of another.

    Parameters
    ----------
    sizes : operations, bytes that cross main memory, the least of them, blocks, and launches, each of shape (kernels, n). [flop], [B], [1]
    shapes : queries or tokens that a block works on, keys or elements of a state, and elements of a head, each of shape (kernels, n). [1]
    utilisation : share of the matrix rate that the kernels reach, shape (kernels, 1). [1]
    alone : kernels with a single query, which reads each key once, where others read all that a block sees.
    """
    (flops, moved, ends, blocks, launches), (rows, seen, width) = sizes, shapes
    type_ = wide_type(architecture, dtype)
    if least:
        return _least(flops, ends, architecture, architecture.throughput[type_], architecture.energy_per_flop[type_], launches)
    rows = np.minimum(rows, QUERIES)
    cached = np.where(alone, moved, np.maximum(moved, flops * element / (2.0 * rows)))
    execution = architecture.execution
    rate = architecture.throughput[type_] * execution.matrix_utilisation * architecture.sustained_clock * utilisation
    compute = divide(flops, rate) * _waves(blocks, architecture)
    crossed = [moved] * len(architecture.levels)
    if execution.tiles is None:  # the power of a whole chip has its caches' share in it
        crossed[:-1] = [cached] * (len(crossed) - 1)
        block, array = (rows, np.minimum(seen, QUERIES), width), (architecture.array_height, architecture.array_width)
        if len(crossed) > 1:  # registers of other sizes cross otherwise, where a kernel is the same at all points
            crossed[0] = element * register_accesses(flops, block, architecture.levels[0], element, *array, architecture.dataflow)
    traffic = np.stack(np.broadcast_arrays(*crossed))
    return _slowest(compute, traffic, flops, architecture, architecture.energy_per_flop[type_], launches)


def _waves(blocks: Array, architecture: Architecture) -> Array:
    """Time of blocks that pass over the units in waves, over that of blocks that divide evenly; shape (kernels, n). [1]

    The units of a known device are a whole number, and its last wave takes as long as a full one. Those of a generated
    device are a design's choice: they have the mean of that over designs, half a wave more, less near the first wave.
    """
    waves = blocks / architecture.units
    if not architecture.usage:
        return np.asarray(np.minimum(np.ceil(waves) * architecture.units / blocks, 4.0))
    return np.asarray(np.where(waves > 1.0, 1.0 + 0.5 * (waves - 1.0) / waves**2, np.minimum(1.0 / waves, 4.0)))


def _slowest(compute: Array, traffic: Array, flops: Array, architecture: Architecture, energy: Array, launches: Array) -> KernelCosts:
    """Kernels bound by the slowest resource; `energy` is that of an operation. [J/flop]

    A launch time that was measured on a device has the latency of its memory in it. Kernels that would draw more than the
    power of a device whose components are built for more run slower, at a lower voltage.
    """
    times, busy, clock, spent = _busy(compute, traffic, flops * energy, architecture)
    return _launched(times / clock, busy / clock, traffic, flops, architecture, spent, launches)


def _busy(
    compute: Array, traffic: Array, switched: Array, architecture: Architecture, within: Array | None = None
) -> tuple[Array, Array, Array, Array]:
    """Time that each resource takes for kernels at the full clock, and that of the slowest [s], the clock [1], and energy [J].

    The energy is that of operations and traffic. See `_slowest`, and `throttled` for `within`.
    """
    bandwidth, latency, per_byte = architecture.level_table
    memory = divide(traffic, bandwidth)
    if architecture.execution.tiles is None:
        memory = memory + latency * (traffic > 0)
    times = np.empty((len(memory) + 1, *np.broadcast(compute, memory[0]).shape))
    times[0], times[1:] = compute, memory
    busy, moved = times.max(axis=0), traffic * per_byte
    if architecture.throttle is None:
        return times, busy, np.ones(1), switched + moved.sum(axis=0)
    apart = [clock.level for clock in architecture.throttle.own]
    cached = moved[:-1].sum(axis=0) if not apart else moved[[level for level in range(len(moved) - 1) if level not in apart]].sum(axis=0)
    own = [moved[level] for level in apart]
    clock, spent = throttled(busy, compute, switched, cached, moved[-1], architecture.throttle, within, own)
    return times, busy, clock, spent


def _least(
    flops: Array, moved: Array, architecture: Architecture, rate: Array, energy: Array, launches: Array | float = 1.0
) -> KernelCosts:
    """Lower bound of kernels: operations at the peak `rate`, compulsory traffic at main memory's bandwidth."""
    compute, memory = divide(flops, rate), divide(moved, architecture.memory.bandwidth)
    levels, shape = len(architecture.levels), np.broadcast_shapes(compute.shape, memory.shape)
    times, traffic = np.zeros((levels + 1, *shape)), np.zeros((levels, *shape))
    times[0], times[-1], traffic[-1] = compute, memory, moved
    spent = flops * energy + moved * architecture.memory.energy
    costs = _launched(times, np.maximum(compute, memory), traffic, flops, architecture, spent, np.full((len(flops), 1), 1.0) * launches)
    return replace(costs, working=compute)  # a few units may keep memory busy


def _launched(
    times: Array, busy: Array, traffic: Array, flops: Array, architecture: Architecture, energy: Array, launches: Array
) -> KernelCosts:
    """Costs of kernels that are `busy` for some time. [s]"""
    launch = launches * architecture.execution.kernel_launch
    return KernelCosts(
        time=busy + launch,
        launch=launch,
        launches=launches,
        resource_times=times,
        flops=flops,
        traffic=traffic,
        energy=energy,
        working=busy,
    )
