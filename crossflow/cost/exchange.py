"""Exchange of tokens between ranks that share experts out, by libraries made for it: dispatch to the experts, and combine.

Two methods (DeepEP, github.com/deepseek-ai/DeepEP). *Normal*, for many tokens: a token goes once to every node that holds any of its
experts, over the network, and from there once to every rank, over the links inside a node; some units of the device copy. *Low latency*,
for few: a copy goes to every chosen expert by itself, straight over links or network. Units, links and network work at the same time,
the slowest decides (fourth-power mean); a chain of small steps fills as in `crossflow.cost.collectives.pipelined`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, divide
from crossflow.cost.collectives import pipelined
from crossflow.hardware.architecture.execution import ExchangeKernel, preferred
from crossflow.hardware.architecture.model import Architecture
from crossflow.program.groups import ExpertGroup

BONDED = ("nvswitch", "nvswitch-sharp", "nvl72")  # fabrics over which the libraries were measured


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What is exchanged, and among whom; arrays of one shape."""

    tokens: Array  # of each rank. [1]
    size: Array  # of a token as it travels. [B]
    active: Array  # experts of a token. [1]
    experts: Array  # experts of the layer. [1]
    ranks: Array  # that share them out. [1]
    nodes: Array  # over which the ranks lie. [1]
    units: Array  # that copy, in the normal method. [1]
    link: Array  # rate of a rank's links inside a node. [B/s]
    network: Array  # rate of a rank's share of the network. [B/s]


def reached(groups: Array, active: Array, experts: Array) -> Array:
    """Of so many groups that share the experts out, those that have any of a token's, in the mean; its experts are different ones. [1]"""
    own, none = experts / groups, np.ones(np.broadcast_shapes(np.shape(groups), np.shape(active), np.shape(experts)))
    for i in range(int(np.max(active))):
        none = none * np.where(i < active, np.maximum(experts - own - i, 0.0) / np.maximum(experts - i, 1.0), 1.0)
    return np.asarray(groups * (1.0 - none))


def exchange_time(exchange: Exchange, kernel: ExchangeKernel) -> Array:
    """Time of a dispatch or a combine. [s]"""
    one, nodes = exchange, exchange.nodes
    per_node, across = one.ranks / nodes, nodes > 1
    bytes_, copied = one.tokens * one.size, np.zeros(1)
    if kernel.copies is None:
        inside, outside = one.active * (1.0 - 1.0 / per_node) / nodes, one.active * (1.0 - 1.0 / nodes)
    else:
        ranks, to_nodes = reached(one.ranks, one.active, one.experts), reached(nodes, one.active, one.experts)
        inside, outside = ranks * (1.0 - 1.0 / per_node), to_nodes * (1.0 - 1.0 / nodes)
        copies = np.where(across, (ranks + to_nodes) * kernel.copies.forwarded, ranks)
        copied = one.tokens * copies * (kernel.copies.start + one.size / kernel.copies.rate) / one.units
    links = bytes_ * inside / (one.link * kernel.link)
    # The more nodes send to a rank at once, the less of its rate they reach.
    crowded = 1.0 if kernel.crowd is None else 1.0 + ((nodes - 1.0) / kernel.crowd) ** 4
    network = np.where(across, divide(bytes_ * outside * crowded, one.network * kernel.network), 0.0)
    busy = (copied**4 + links**4 + network**4) ** 0.25
    start = kernel.start + kernel.expert * one.experts + kernel.node_step * np.log2(nodes) + one.size / kernel.first_token
    return pipelined(busy, np.ones(1), start, kernel.fill)


def group_time(size: Array, group: ExpertGroup, architecture: Architecture, fabric: str, node: int) -> Array | None:
    """Time of messages of `size` bytes, shape (..., n), among ranks that share experts out; None where no library was measured. [s]

    The faster of both methods is taken, but for tokens that are written the low-latency one: the rows that arrive by the other have shapes
    that a captured graph of kernels cannot have (SGLang, "Large-scale Expert Parallelism on 96 H100 GPUs", 2025). `fabric` is the kind
    inside a node of `node` devices.
    """
    library = preferred(group.libraries, architecture.execution.libraries.exchange)
    intra, inter = architecture.intra, architecture.inter
    per_node = np.minimum(group.size, node) if fabric == "nvl72" else group.per_node
    nodes = group.size / per_node
    if library is None or intra is None or fabric not in BONDED or (inter is None and bool((nodes > 1).any())):
        return None
    exchange = Exchange(
        tokens=size / (group.row * group.active), size=group.token, active=group.active, experts=group.experts, ranks=group.size,
        nodes=nodes, units=library.units, link=intra.bandwidth,
        network=intra.bandwidth if inter is None else inter.bandwidth,
    )  # fmt: skip
    kernels = (library.combine, library.fast_combine) if group.back else (library.dispatch, library.fast_dispatch)
    once, fast = (exchange_time(exchange, kernel) for kernel in kernels)
    found = fast if group.fast else np.minimum(once + library.notify * float(not group.back), fast)
    return np.asarray(np.where((size > 0) & (group.size > 1), found, 0.0))


def held_time(size: Array, group: ExpertGroup, architecture: Architecture) -> Array:
    """For how long a low-latency exchange of messages of `size` bytes keeps all units of a device, 0 where nothing is known of it. [s]

    Units send, and what has arrived they put in its place; between the two they are free for kernels of another batch.
    """
    library = preferred(group.libraries, architecture.execution.libraries.exchange)
    held = None if library is None else (library.fast_combine if group.back else library.fast_dispatch).held
    if held is None:
        return np.zeros(np.shape(size))
    return np.asarray(np.where((size > 0) & (group.size > 1), held.start + size / group.row * group.token / held.rate, 0.0))
