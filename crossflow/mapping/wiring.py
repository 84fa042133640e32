"""Topologies of a system's two network levels at the size in use."""

from __future__ import annotations

import functools

from crossflow.architecture.network import NetworkLevel, NetworkSpec
from crossflow.errors import StrategyError
from crossflow.mapping.topology import Network, Topology

# Wiring of each kind of fabric, where a scenario does not say otherwise.
FABRIC_TOPOLOGY = {
    "ideal": "switch", "nvswitch": "switch", "nvswitch-sharp": "switch", "nvl72": "switch", "pairwise-nvlink": "switch", "pcie": "switch",
    "pcie-host": "switch", "hybrid-cube-mesh": "hybrid-cube-mesh", "infinity-fabric": "fully-connected",
    "ethernet-mesh": "fully-connected", "torus3d": "torus3d",
    "infiniband": "switch", "infiniband-sharp": "switch", "roce": "switch", "gpudirect-tcpxo": "switch", "efa": "switch",
    "ethernet": "switch", "ici": "torus3d", "none": "switch",
}  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _built(kind: str, nodes: int, shape: tuple[int, ...]) -> Topology:
    try:
        return Topology(kind=kind, nodes=nodes, shape=shape)
    except ValueError as error:
        raise StrategyError(str(error)) from None


def topology_of(level: NetworkLevel, nodes: int) -> Topology:
    """Wiring of one level among so many nodes; StrategyError where it does not hold them."""
    kind = level.topology or FABRIC_TOPOLOGY[level.fabric]
    if nodes == 1:
        return Topology(kind="single", nodes=1)
    if kind == "single":
        raise StrategyError(
            f"{nodes} devices are to be connected, but the network's topology is 'single'; give a topology such as switch or mesh2d"
        )
    return _built(kind, nodes, level.shape or ())


def wired(spec: NetworkSpec, per_node: int, nodes: int) -> Network:
    """Network of `nodes` nodes (packages, servers) of `per_node` devices."""
    return Network(package=topology_of(spec.intra, per_node), cluster=topology_of(spec.inter, nodes))
