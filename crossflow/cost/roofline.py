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
    """Cost of matrix products by tiling search and the slowest resource."""
    m, n, k, accumulate = (np.array([[getattr(g, name)] for g in gemms], dtype=float) for name in ("m", "n", "k", "accumulate"))
    flops = 2.0 * m * n * k
    delivered, tile = traffic_by_level(m, n, k, accumulate, element, architecture.levels)
    registers = element * register_accesses(flops, tile, architecture.array_height, architecture.array_width, architecture.dataflow)
    traffic = np.concatenate([np.broadcast_to(registers, delivered.shape[1:])[None], delivered])
    compute = flops / (architecture.throughput[dtype] * architecture.execution.matrix_utilisation)
    return _slowest(compute, traffic, flops, architecture, launches=np.ones_like(m))


def stream_costs(streams: Sequence[Stream], architecture: Architecture, dtype: str, element: int) -> KernelCosts:
    """Cost of work that passes over data once: its bytes cross every level of memory."""
    flops, elements, launches = (np.array([[getattr(s, name)] for s in streams], dtype=float) for name in ("flops", "elements", "launches"))
    compute = flops / (architecture.vector_throughput[dtype] * architecture.execution.vector_utilisation)
    traffic = np.repeat((elements * element)[None], len(architecture.levels), axis=0)
    return _slowest(compute, traffic, flops, architecture, launches=launches)


def _slowest(compute: Array, traffic: Array, flops: Array, architecture: Architecture, launches: Array) -> KernelCosts:
    bandwidth = np.stack(np.broadcast_arrays(*(level.bandwidth for level in architecture.levels)))[:, None, :]
    latency = np.stack(np.broadcast_arrays(*(level.latency for level in architecture.levels)))[:, None, :]
    memory = divide(traffic, bandwidth) + latency * (traffic > 0)
    times = np.concatenate([np.broadcast_to(compute, memory.shape[1:])[None], memory])
    launch = launches * architecture.execution.kernel_launch
    return KernelCosts(time=times.max(axis=0) + launch, launch=launch, resource_times=times, flops=flops, traffic=traffic)
