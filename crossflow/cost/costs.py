"""What a super-graph costs on an architecture: times, what binds them, energy and memory, for all design points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.architecture import Architecture, NetworkSpec
from crossflow.arrays import Array, tally
from crossflow.cost.network import MessageCosts, message_costs
from crossflow.cost.roofline import KernelCosts, joined, pass_costs, product_costs, resources
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
    floor = _kernels(gemms, streams, graph, architecture, least=True)
    kernels = floor if least else _kernels(gemms, streams, graph, architecture)
    members = _membership(graph.works, [*gemms, *streams])
    messages = message_costs(graph.messages, placement, network, architecture, devices_per_node)
    per_device = [np.zeros(1) if port is None else port.energy for port in (architecture.intra, architecture.inter)]
    return Costs(
        resources=resources(architecture),
        work_time=tally(members, kernels.time),
        bound_time=np.stack([tally(members, bound) for bound in kernels.bound_times]),
        launch_time=members @ kernels.launch,
        work_energy=members @ kernels.energy,
        work_flops=members @ kernels.flops,
        memory_traffic=members @ kernels.traffic[-1],
        lower_bound=tally(members, floor.resource_times.max(axis=0)),
        messages=messages,
        message_energy=messages.intra_bytes * per_device[0] + messages.inter_bytes * per_device[1],
    )


def _kernels(
    gemms: list[Gemm], streams: list[Stream], graph: SuperGraph, architecture: Architecture, *, least: bool = False
) -> KernelCosts:
    """Costs of the distinct operations, matrix products first."""
    parts, element = [], float(graph.element)
    if gemms:
        sizes = np.array([[[getattr(gemm, name)] for gemm in gemms] for name in ("m", "n", "k")] + [[[1.0]] * len(gemms)], dtype=float)
        result = np.array([[element * (2.0 if gemm.accumulate else 1.0)] for gemm in gemms])
        parts.append(product_costs(sizes, result, architecture, graph.dtype, least=least))
    if streams:
        flops, elements, launches = (np.array([[getattr(s, name)] for s in streams], float) for name in ("flops", "elements", "launches"))
        parts.append(pass_costs(elements * element, flops, launches, architecture, graph.dtype, least=least))
    return joined(parts)


def _membership(works: tuple[Work, ...], operations: list[Gemm | Stream]) -> Array:
    """How often each operation occurs in each work, shape (works, operations)."""
    index = {operation: i for i, operation in enumerate(operations)}
    members = np.zeros((len(works), len(operations)))
    for row, work in enumerate(works):
        for operation in work.operations:
            members[row, index[operation]] += 1
    return members
