"""Time and energy of messages on a placed mesh of devices [1]_.

Each axis of the mesh lies somewhere on the two levels of network; its bandwidth there is the device's, over its links
and over the logical edges that share one of them. A group that spans packages reduces inside each first.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 5.2 and 6.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.architecture.model import Architecture, Port
from crossflow.architecture.network import NetworkSpec
from crossflow.arrays import Array
from crossflow.cost import collectives
from crossflow.cost.fabrics import direct_time, fabric_time
from crossflow.mapping.placement import AxisRoute, Placement, level_bandwidths
from crossflow.mapping.topology import Network
from crossflow.program.collectives import ring_volume
from crossflow.program.program import Message

ANY_TO_ANY = ("switch", "fully-connected")
# Fabrics whose links reach their rate, so that placement and sharing say all; and those whose direct links several groups
# of one node share, by the placement, unless one group is the whole node.
PLACED = ("ideal", "torus3d", "ici", "none")
DIRECT = ("hybrid-cube-mesh", "infinity-fabric", "ethernet-mesh")
# Fabrics where nothing but how many ranks share a node decides what a collective takes.
SWITCHED = ("nvswitch", "nvswitch-sharp", "nvl72", "pcie", "pcie-host")
NO_PORT = Port(bandwidth=np.zeros(1), latency=np.zeros(1), energy=np.zeros(1))


@dataclass(frozen=True, kw_only=True)
class MessageCosts:
    """Times and bytes of messages, shape (messages, n).

    Attributes
    ----------
    time : [s]
    intra_bytes, inter_bytes : bytes that one device sends at each level of network. [B]
    """

    time: Array
    intra_bytes: Array
    inter_bytes: Array


def message_costs(
    messages: tuple[Message, ...], placement: Placement, network: NetworkSpec, architecture: Architecture, devices_per_node: int
) -> MessageCosts:
    """Cost of every message of a program.

    A message over several axes (the gradients of kernel rows and data replicas) is reduced along one after the other:
    along each further axis only the shard that is left moves.
    """
    rows = [_one(message, placement, network, architecture, devices_per_node) for message in messages]
    if not rows:
        nothing = np.zeros((0, 1))
        return MessageCosts(time=nothing, intra_bytes=nothing, inter_bytes=nothing)
    return MessageCosts(**{name: _stacked([row[name] for row in rows]) for name in rows[0]})


def _stacked(rows: list[Array]) -> Array:
    return np.stack(np.broadcast_arrays(*(np.atleast_1d(row) for row in rows)))


def _one(
    message: Message, placement: Placement, network: NetworkSpec, architecture: Architecture, devices_per_node: int
) -> dict[str, Array]:
    time, intra, inter = np.zeros(1), np.zeros(1), np.zeros(1)
    size = np.atleast_1d(message.size)
    for axis in message.axes:
        route = placement.route(axis)
        step = axis_time(message.collective, size, axis, placement, network, architecture, devices_per_node)
        inside, outside = _bytes(message.collective, size, route)
        time, intra, inter = time + step, intra + inside, inter + outside
        size = size / route.size
    return {"time": np.where(np.atleast_1d(message.size) > 0, time, 0.0), "intra_bytes": intra, "inter_bytes": inter}


def axis_time(
    collective: str, size: Array, axis: str, placement: Placement, network: NetworkSpec, architecture: Architecture, devices_per_node: int
) -> Array:
    """Time of a collective of `size` bytes, shape (n,) or (1,), along one axis of a placed mesh. [s]"""
    adjacent = placement.strides.get(axis, 1) == 1
    route = placement.route(axis)
    return route_time(collective, size, route, placement.network, network, architecture, devices_per_node, adjacent=adjacent)


def route_time(
    collective: str,
    size: Array,
    route: AxisRoute,
    wires: Network,
    network: NetworkSpec,
    architecture: Architecture,
    devices_per_node: int,
    *,
    adjacent: bool,
) -> Array:
    """The same along a route over the `wires` of a network; `adjacent` where its ranks are neighbouring devices. [s]"""
    if network.intra.fabric in PLACED and (network.inter.fabric in PLACED or not route.crosses):
        return _ideal_time(collective, size, route, wires, architecture)
    if network.intra.fabric in DIRECT and not route.crosses and route.size < devices_per_node:
        return direct_time(collective, size, route, network, architecture)
    return fabric_time(collective, size, route, network, architecture, devices_per_node, adjacent=adjacent)


def _ideal_time(collective: str, size: Array, route: AxisRoute, wires: Network, architecture: Architecture) -> Array:
    """Alpha-beta time on links that reach their rate: flat over all ranks, or package by package, whichever is faster."""
    intra, inter = architecture.intra or NO_PORT, architecture.inter or NO_PORT
    inside, outside = level_bandwidths(route, intra.bandwidth, inter.bandwidth)
    package_any, cluster_any = (level.kind in ANY_TO_ANY for level in (wires.package, wires.cluster))
    if not route.crosses:
        return collectives.best(collective, size, route.size, inside, route.hops * intra.latency, package_any)
    latency = route.hops * np.maximum(inter.latency, intra.latency if route.package_size > 1 else 0.0)
    flat = collectives.best(collective, size, route.size, np.minimum(inside, outside), latency, cluster_any)
    if route.package_size == 1 or collective == "send_recv":
        return flat
    return np.asarray(np.minimum(flat, _hierarchical(collective, size, route, (inside, outside), (intra, inter), package_any, cluster_any)))


def _hierarchical(
    collective: str,
    size: Array,
    route: AxisRoute,
    bandwidths: tuple[Array, Array],
    ports: tuple[Port, Port],
    package_any: bool,
    cluster_any: bool,
) -> Array:
    """Inside each package first, then between packages on the shard of each rank, then back inside."""
    p, packages = route.package_size, route.size // route.package_size
    phases = {"all_reduce": ("reduce_scatter", "all_gather"), "reduce_scatter": ("reduce_scatter",), "all_gather": ("all_gather",)}
    inside = sum(
        (collectives.best(phase, size, p, bandwidths[0], ports[0].latency, package_any) for phase in phases.get(collective, (collective,))),
        np.zeros(1),
    )
    between = size / p if collective in phases else size
    return np.asarray(inside + collectives.best(collective, between, packages, bandwidths[1], ports[1].latency, cluster_any))


def _bytes(collective: str, size: Array, route: AxisRoute) -> tuple[Array, Array]:
    """Bytes that a device sends inside its package and out of it; a ring's edges divide between the two levels."""
    total = ring_volume(collective, route.size) * size
    if not route.crosses:
        return total, np.zeros(1)
    outside = 1.0 / route.package_size
    return total * (1.0 - outside), total * outside
