"""What a super-graph costs on an architecture: times, what binds them, energy and memory, for all design points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.architecture import Architecture, NetworkSpec
from crossflow.arrays import Array, tally
from crossflow.cost.network import MessageCosts, message_costs
from crossflow.cost.roofline import KernelCosts, gemm_costs, least_costs, resources, stream_costs
from crossflow.mapping import Placement
from crossflow.parallel import SuperGraph, Work
from crossflow.workload import Gemm, Stream


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a super-graph; arrays end in the design-point axis.

    Attributes
    ----------
    resources : compute and the memory levels, names of the resources that can bind a kernel.
    work_time : time of every work, shape (works, n). [s]
    bound_time : time of every work spent in kernels that each resource binds, shape (resources, works, n). [s]
    launch_time : time of every work in which nothing runs, shape (works, n). [s]
    work_energy : dynamic energy of every work on one device, shape (works, n). [J]
    work_flops : operations of every work on one device, shape (works, 1). [flop]
    memory_traffic : bytes that every work moves to and from main memory on one device, shape (works, n). [B]
    lower_bound : time below which no work can be: its operations at peak, or its least traffic at memory bandwidth,
        shape (works, n). [s]
    messages : costs of the messages.
    message_energy : energy of every message on one device, shape (messages, n). [J]
    """

    resources: tuple[str, ...]
    work_time: Array
    bound_time: Array
    launch_time: Array
    work_energy: Array
    work_flops: Array
    memory_traffic: Array
    lower_bound: Array
    messages: MessageCosts
    message_energy: Array


def cost(
    graph: SuperGraph,
    placement: Placement,
    network: NetworkSpec,
    architecture: Architecture,
    devices_per_node: int,
    *,
    least: bool = False,
) -> Costs:
    """Cost every distinct work and message of a super-graph once; with `least` every kernel at its lower bound."""
    operations = list(dict.fromkeys(operation for work in graph.works for operation in work.operations))
    gemms = [operation for operation in operations if isinstance(operation, Gemm)]
    streams = [operation for operation in operations if isinstance(operation, Stream)]
    floor = least_costs(gemms, streams, architecture, graph.dtype, graph.element)
    kernels = floor if least else _kernels(gemms, streams, graph, architecture)
    members = _membership(graph.works, [*gemms, *streams])
    bound = kernels.bound
    hit = bound[None] == np.arange(len(architecture.levels) + 1)[:, None, None]
    messages = message_costs(graph.messages, placement, network, architecture, devices_per_node)
    energies = np.stack(np.broadcast_arrays(*(level.energy for level in architecture.levels)))[:, None, :]
    energy = kernels.flops * architecture.energy_per_flop[graph.dtype] + (kernels.traffic * energies).sum(axis=0)
    per_device = [np.zeros(1) if port is None else port.energy for port in (architecture.intra, architecture.inter)]
    return Costs(
        resources=resources(architecture),
        work_time=tally(members, kernels.time),
        bound_time=np.stack([tally(members, np.where(mine, kernels.time - kernels.launch, 0.0)) for mine in hit]),
        launch_time=members @ np.broadcast_to(kernels.launch, kernels.time.shape),
        work_energy=members @ energy,
        work_flops=members @ kernels.flops,
        memory_traffic=members @ kernels.traffic[-1],
        lower_bound=tally(members, floor.resource_times.max(axis=0)),
        messages=messages,
        message_energy=messages.intra_bytes * per_device[0] + messages.inter_bytes * per_device[1],
    )


def _kernels(gemms: list[Gemm], streams: list[Stream], graph: SuperGraph, architecture: Architecture) -> KernelCosts:
    """Costs of the distinct operations, matrix products first."""
    parts = []
    if gemms:
        parts.append(gemm_costs(gemms, architecture, graph.dtype, graph.element))
    if streams:
        parts.append(stream_costs(streams, architecture, graph.dtype, graph.element))
    return _joined(parts)


def _membership(works: tuple[Work, ...], operations: list[Gemm | Stream]) -> Array:
    """How often each operation occurs in each work, shape (works, operations)."""
    index = {operation: i for i, operation in enumerate(operations)}
    members = np.zeros((len(works), len(operations)))
    for row, work in enumerate(works):
        for operation in work.operations:
            members[row, index[operation]] += 1
    return members


def _joined(parts: list[KernelCosts]) -> KernelCosts:
    """Costs of several sets of kernels as one set."""
    n = max(part.time.shape[-1] for part in parts)

    def join(name: str, axis: int) -> Array:
        arrays = [getattr(part, name) for part in parts]
        return np.concatenate([np.broadcast_to(array, (*array.shape[:-1], n)) for array in arrays], axis=axis)

    return KernelCosts(
        time=join("time", 0),
        launch=join("launch", 0),
        resource_times=join("resource_times", 1),
        flops=join("flops", 0),
        traffic=join("traffic", 1),
    )
