"""Topologies of a system's two network levels at the size in use."""

from __future__ import annotations

import functools
import operator
from typing import Literal

from crossflow.base.errors import StrategyError
from crossflow.hardware.architecture.network import FABRIC_TOPOLOGY, OPTICAL, NetworkSpec
from crossflow.hardware.mapping.topology import Network, Topology

# Fabrics inside nodes that are what they are measured as; others carry any topology.
ANY_WIRING = ("ideal", "neuronlink", "torus3d", "ici", "none")
TORI = ("ring", "torus2d", "torus3d")
WhichLevel = Literal["intra", "inter"]
LEVELS: tuple[WhichLevel, WhichLevel] = ("intra", "inter")


@functools.lru_cache(maxsize=1024)
def _built(
    kind: str, nodes: int, shape: tuple[int, ...], ports: int, group: int, oversubscription: float, wraps: tuple[bool, ...] = ()
) -> Topology:
    try:
        return Topology(kind=kind, nodes=nodes, shape=shape, ports=ports, group=group, oversubscription=oversubscription, wrapped=wraps)
    except ValueError as error:
        raise StrategyError(str(error)) from None


def topology_of(spec: NetworkSpec, which: WhichLevel, nodes: int) -> Topology:
    """Wiring of one level among so many nodes; StrategyError where it does not hold them."""
    level = getattr(spec, which)
    own = FABRIC_TOPOLOGY[level.fabric]
    kind = level.wiring
    if which == "intra" and level.fabric not in ANY_WIRING and kind not in (own, "crossbar" if own == "switch" else own):
        raise StrategyError(f"a node of fabric {level.fabric} is wired as {own}; topology {kind} needs fabric: ideal")
    if kind == OPTICAL:
        return _joined(spec, which, nodes)
    for key in ("wraps", "ring_from"):
        if getattr(level, key) is not None and kind not in TORI:
            raise StrategyError(
                f"{key} is of the rows of a ring or a torus, and network.{which} is wired as {kind}; leave it out, or give {key}: null"
            )
    given = {
        "ports": level.ports or 0, "group": level.group or 0, "oversubscription": level.oversubscription or 1.0, "wraps": level.wraps or (),
    }  # fmt: skip
    if nodes == 1:
        if kind != "single":
            _built(kind, 1, (), **given)
        return Topology(kind="single", nodes=1)
    if kind == "single":
        raise StrategyError(
            f"{nodes} devices are to be connected, but the network's topology is 'single'; give a topology such as switch or mesh2d"
        )
    if level.ring_from is not None and level.wraps is None:
        shape = _built(kind, nodes, level.shape or (), **given).shape
        return _built(kind, nodes, shape, **{**given, "wraps": tuple(size >= level.ring_from for size in shape)})
    return _built(kind, nodes, level.shape or (), **given)


def _joined(spec: NetworkSpec, which: str, nodes: int) -> Topology:
    """Nodes that optical switches join to one torus, as a torus of nodes; StrategyError where they cannot be."""
    inside, level = spec.intra, spec.inter
    torus = inside.wiring
    if which == "intra" or (nodes > 1 and torus not in TORI):
        raise StrategyError("an optical-torus joins nodes that are tori each: it is a topology of inter, where that of intra is a torus")
    if level.bandwidth is not None or level.latency is not None:
        raise StrategyError("an optical-torus is made of the links of intra; leave out the bandwidth and latency of inter")
    if nodes > 1 and inside.wraps is not None:
        raise StrategyError("optical switches close the rows of an optical-torus over all of its nodes; leave out wraps of intra")
    if level.ports or level.group or level.oversubscription or level.wraps or level.ring_from:
        raise StrategyError("an optical-torus has a shape only; ports, group, oversubscription, wraps and ring_from have no meaning")
    return _built(torus if nodes > 1 else "single", nodes, level.shape or (), 0, 0, 1.0)


def wired(spec: NetworkSpec, per_node: int, nodes: int) -> Network:
    """Network of `nodes` nodes (packages, servers) of `per_node` devices.

    Nodes that optical switches join are one torus of devices: its sizes are those of a node times those of the torus of nodes, which may
    have any shape (Jouppi et al., TPU v4, ISCA 2023, Sec. 2).
    """
    package, cluster = topology_of(spec, "intra", per_node), topology_of(spec, "inter", nodes)
    if spec.inter.topology != OPTICAL or nodes == 1:
        return Network(package=package, cluster=cluster)
    inside = package.shape if package.nodes > 1 else (1,) * len(cluster.shape)
    shape = tuple(map(operator.mul, inside, cluster.shape))
    return Network(package=_built(cluster.kind, per_node * nodes, shape, package.ports, 0, 1.0))


def switched(spec: NetworkSpec) -> bool:
    """Whether nodes meet in one switch, so that only how many ranks share a node decides what their messages take."""
    return spec.inter.wiring in ("switch", "crossbar", "single")
