"""Hierarchical roofline: a kernel takes as long as its slowest resource, compute or any level of memory [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 6.1; Williams et al., CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.architecture import Architecture
from crossflow.arrays import Array, Index, divide
from crossflow.cost.tiling import register_accesses, traffic_by_level
from crossflow.cost.waves import wave_times
from crossflow.workload import Gemm, Stream


@dataclass(frozen=True, kw_only=True)
class KernelCosts:
    """Times of kernels and what they keep busy; arrays of shape (kernels, n) unless said.

    Attributes
    ----------
    time : with the launch. [s]
    launch : share of `time` in which nothing runs. [s]
    resource_times : time that each resource would need alone, shape (1 + levels, kernels, n): compute, then the memory
        levels from the nearest to main memory. [s]
    flops : [flop]
    traffic : bytes read and written at each level, shape (levels, kernels, n). [B]
    """

    time: Array
    launch: Array
    resource_times: Array
    flops: Array
    traffic: Array

    @property
    def bound(self) -> Index:
        """Index of the slowest resource: 0 compute, 1 + i level i; shape (kernels, n)."""
        return np.asarray(self.resource_times.argmax(axis=0))


def resources(architecture: Architecture) -> tuple[str, ...]:
    """Names of the resources in the order of `KernelCosts.resource_times`."""
    return ("compute", *(level.name for level in architecture.levels))


def gemm_costs(gemms: Sequence[Gemm], architecture: Architecture, dtype: str, element: int) -> KernelCosts:
    """Cost of matrix products: by the library's tiles where they are known, by tiling search elsewhere."""
    m, n, k, accumulate = (np.array([[getattr(g, name)] for g in gemms], dtype=float) for name in ("m", "n", "k", "accumulate"))
    if architecture.execution.tiles is not None:
        return tiled_costs(m, n, k, accumulate, architecture, dtype, element)
    return searched_costs(m, n, k, accumulate, architecture, dtype, element)


def searched_costs(m: Array, n: Array, k: Array, accumulate: Array, architecture: Architecture, dtype: str, element: int) -> KernelCosts:
    """Cost of matrix products of shape (kernels, 1) on a device whose tiles are searched for (`crossflow.cost.tiling`)."""
    flops = 2.0 * m * n * k
    # Products that differ only in whether they add to C share their tiles: the sum in C crosses every level once more.
    distinct, which = np.unique(np.concatenate([m, n, k], axis=1), axis=0, return_inverse=True)
    delivered, tile = traffic_by_level(distinct[:, :1], distinct[:, 1:2], distinct[:, 2:], element, architecture.levels)
    registers = register_accesses(
        2.0 * distinct.prod(axis=1)[:, None], tile, architecture.array_height, architecture.array_width, architecture.dataflow
    )
    shape = np.broadcast_shapes(registers.shape, delivered.shape[1:])
    delivered = np.broadcast_to(delivered, (len(delivered), *shape))
    traffic = np.concatenate([np.broadcast_to(element * registers, shape)[None], delivered])[:, which.ravel()]
    traffic += element * accumulate * m * n
    rate = architecture.throughput[dtype] * architecture.execution.matrix_utilisation * architecture.sustained_clock
    return _slowest(divide(flops, rate), traffic, flops, architecture, launches=np.ones_like(m))


def tiled_costs(
    m: Array,
    n: Array,
    k: Array,
    accumulate: Array,
    architecture: Architecture,
    dtype: str,
    element: float,
    *,
    batch: Array | float = 1.0,
) -> KernelCosts:
    """Cost of matrix products on a device whose library's tiles are known (`crossflow.cost.waves`)."""
    compute, cache, together = wave_times(m, n, k, architecture, dtype, element, batch=batch)
    moved = batch * element * (m * k + k * n + m * n * (1.0 + accumulate))
    memory = divide(moved, architecture.memory.bandwidth)
    time = np.cbrt(together**3 + memory**3)
    names = [level.name for level in architecture.levels]
    shape = np.broadcast_shapes(time.shape, architecture.execution.kernel_launch.shape)
    times, traffic = np.zeros((len(names) + 1, *shape)), np.zeros((len(names), *shape))
    launch, flops = np.zeros((2, *shape))
    launch += architecture.execution.kernel_launch
    flops += 2.0 * batch * m * n * k
    times[0], times[-2 if len(names) > 1 else -1] = compute, cache  # the last cache is the level before memory
    times[1 + names.index("memory")] = memory
    traffic[names.index("memory")] = moved
    return KernelCosts(time=time + launch, launch=launch, resource_times=times, flops=flops, traffic=traffic)


def stream_costs(streams: Sequence[Stream], architecture: Architecture, dtype: str, element: int) -> KernelCosts:
    """Cost of work that passes over data once: its bytes cross every level of memory."""
    flops, elements, launches = (np.array([[getattr(s, name)] for s in streams], dtype=float) for name in ("flops", "elements", "launches"))
    compute = divide(flops, vector_rate(architecture, dtype) * architecture.execution.vector_utilisation)
    traffic = np.repeat((elements * element)[None], len(architecture.levels), axis=0)
    return _slowest(compute, traffic, flops, architecture, launches=launches)


def least_costs(gemms: Sequence[Gemm], streams: Sequence[Stream], architecture: Architecture, dtype: str, element: int) -> KernelCosts:
    """Lower bound of kernels, products first: operations at the peak rate, compulsory traffic at main memory's bandwidth."""
    flops = np.array([[gemm.flops] for gemm in gemms] + [[stream.flops] for stream in streams])
    moved = [g.m * g.k + g.k * g.n + g.m * g.n * (2 if g.accumulate else 1) for g in gemms] + [s.elements for s in streams]
    launches = np.array([[1.0]] * len(gemms) + [[float(s.launches)] for s in streams])
    matrix = np.arange(len(flops))[:, None] < len(gemms)
    rate = np.where(matrix, architecture.throughput[dtype], vector_rate(architecture, dtype))
    compute, memory = np.broadcast_arrays(
        divide(flops, rate), divide(np.array(moved)[:, None] * float(element), architecture.memory.bandwidth)
    )
    inner = np.zeros((len(architecture.levels) - 1, *compute.shape))
    launch = launches * architecture.execution.kernel_launch
    traffic = np.concatenate([inner, np.broadcast_to(np.array(moved)[:, None] * float(element), compute.shape)[None]])
    return KernelCosts(
        time=np.maximum(compute, memory) + launch,
        launch=launch,
        resource_times=np.concatenate([compute[None], inner, memory[None]]),
        flops=flops,
        traffic=traffic,
    )


def vector_rate(architecture: Architecture, dtype: str) -> Array:
    """Peak rate of pointwise work: of the type itself, or in fp32, which every device computes in. [flop/s]"""
    rates = architecture.vector_throughput
    return rates[dtype] if dtype in rates else rates.get("fp32", architecture.throughput[dtype])


def _slowest(compute: Array, traffic: Array, flops: Array, architecture: Architecture, launches: Array) -> KernelCosts:
    bandwidth = np.stack(np.broadcast_arrays(*(level.bandwidth for level in architecture.levels)))[:, None, :]
    latency = np.stack(np.broadcast_arrays(*(level.latency for level in architecture.levels)))[:, None, :]
    memory = divide(traffic, bandwidth) + latency * (traffic > 0)
    shape = np.broadcast_shapes(compute.shape, memory.shape[1:])
    times = np.concatenate([np.broadcast_to(compute, shape)[None], np.broadcast_to(memory, (len(memory), *shape))])
    launch = launches * architecture.execution.kernel_launch
    return KernelCosts(time=times.max(axis=0) + launch, launch=launch, resource_times=times, flops=flops, traffic=traffic)
