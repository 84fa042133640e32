"""Times of passes and updates of which a second memory holds a part of what they read.

Where kernels read it directly, its bytes do not pass through main memory, and both stream beside each other and beside computing: a part
of a layer takes as long as the slowest of them. Where they are staged, they are copied into main memory ahead and read there again,
so that main memory carries them twice; that is beside computing too. Only experts, which are known once tokens are routed, wait
for the latency of the second memory. Streams of one part run beside that part alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, divide
from crossflow.cost.roofline import KernelCosts
from crossflow.hardware.architecture.model import Level, SecondMemory

if TYPE_CHECKING:
    from crossflow.cost.price import LayerCosts
    from crossflow.parallel.tiers import FarTraffic

SECOND = "second_memory"  # as a resource that binds
STAGING = "staging"  # likewise: main memory, by the bytes of the second one that are copied into it and read there


def over_products(far: FarTraffic, times: LayerCosts) -> FarTraffic:
    """Traffic of passes forward, shared out by what main memory would move: some of their products only the next layer needs (`end`)."""
    forward, end = (times.phases.index(phase) for phase in ("forward", "end"))
    ends = divide(times.traffic[:, end], times.traffic[:, forward] + times.traffic[:, end])

    def shared(whole: Array) -> Array:
        parts = whole.copy()
        parts[:, forward], parts[:, end] = whole[:, forward] * (1.0 - ends), whole[:, forward] * ends
        return parts

    return replace(far, read=shared(far.read), written=shared(far.written))


def with_second_memory(times: LayerCosts, far: FarTraffic, near: Level, second: SecondMemory) -> LayerCosts:
    """Costs of layers of which a second memory holds a part; that it binds is told apart, and that its staging does, before main memory.

    Of the time for which main memory binds, staging has the share of the bytes that main memory carries for it.

    times : of layers whose tensors all lie on main memory.
    far : what every part reads and writes on the second memory. [B]
    """
    moved = far.read + far.written
    saved = np.minimum(times.spare, (1.0 - second.staged) * divide(moved, near.bandwidth))
    piled = second.staged * divide(times.traffic + moved, near.bandwidth) * (moved > 0)
    stream = stream_time(far.read, far.written, second) + far.sought * second.latency * (far.read > 0)
    rest = times.bound.sum(axis=0) - saved
    on_memory = np.maximum(rest, piled)
    late = np.maximum(stream - on_memory, 0.0)
    near_bound = times.bound[-1] - saved + on_memory - rest
    carried = second.staged * divide(2.0 * moved, times.traffic + moved)
    staging = np.minimum(carried, 1.0) * near_bound
    bound = np.concatenate([times.bound[:-1], late[None], staging[None], (near_bound - staging)[None]])
    return replace(
        times,
        resources=(*times.resources[:-1], SECOND, STAGING, times.resources[-1]),
        bound=bound,
        compute=times.compute - saved + (on_memory - rest) + late,
        energy=times.energy + further_energy(far.read, far.written, near, second),
        traffic=np.maximum(times.traffic + (2.0 * second.staged - 1.0) * moved, 0.0),
    )


def stream_time(read: Array, written: Array, second: SecondMemory) -> Array:
    """Time of reads and writes of a second memory, one after the other. [s]"""
    return divide(read, second.bandwidth) + divide(written, second.write_bandwidth)


def further_energy(read: Array, written: Array, near: Level, second: SecondMemory) -> Array:
    """Energy of bytes on a second memory, beyond that of the same bytes on main memory; what is staged takes both, and is copied. [J]"""
    beside = (2.0 * second.staged - 1.0) * near.energy
    return np.asarray(read * (second.energy + beside) + written * (second.write_energy + beside))


def updated_far(costs: KernelCosts, moved: Array, near: Level, second: SecondMemory) -> KernelCosts:
    """Costs of an optimizer which reads and writes `moved` bytes on a second memory, shape (2, units, n). [B]"""
    read, written = moved
    both = read + written
    through = divide(both, near.bandwidth)
    on_memory = costs.time - np.minimum(costs.spare, (1.0 - second.staged) * through) + second.staged * through
    time = np.maximum(on_memory, stream_time(read, written, second) + costs.launch)
    traffic = costs.traffic.copy()
    traffic[-1] = np.maximum(traffic[-1] + (2.0 * second.staged - 1.0) * both, 0.0)
    return replace(costs, time=time, energy=costs.energy + further_energy(read, written, near, second), traffic=traffic)
