"""Collectives on real fabrics: what the wiring makes of one, and how long that takes.

Three layers: the *wiring* decides how many bytes cross the tightest link per byte of buffer, at which rate, after how
many dependent steps; one *law* for all fabrics turns that into a time (`crossflow.cost.collectives.pipelined`); the
*parameters*, by kind of fabric, come from ``templates/families/fabrics.yaml``.

Sizes follow the convention of nccl-tests: the buffer of one rank (of an all-gather the whole output).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, fields, replace

import numpy as np

from crossflow.architecture.model import Architecture
from crossflow.architecture.network import FabricParameters, NetworkSpec
from crossflow.arrays import Array, Mask
from crossflow.cost.collectives import pipelined, ring, ring_steps
from crossflow.mapping.placement import AxisRoute, level_bandwidths
from crossflow.mapping.rings import has_chain, rings
from crossflow.mapping.topology import Topology
from crossflow.program.collectives import ring_volume

ZERO, INFINITE = np.zeros(1), np.array([np.inf])
BONDED = ("nvswitch", "nvswitch-sharp", "nvl72", "ideal")  # ideal links reach all others of a node, beside a real network
SOCKETS = ("ethernet", "none")
SOFTWARE = (*SOCKETS, "gpudirect-tcpxo")
VERBS = ("infiniband", "roce", "efa")
NVLINK4, NVLINK5 = 450e9, 900e9  # links of one GPU on which reduction in the switch was measured [B/s]
CUBE_MESH_LINKS = 6  # NVLinks of one GPU in a hybrid cube mesh


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Interconnect of one system; arrays of shape (n,)."""

    intra: str  # kind of fabric inside a node
    network: str  # kind of fabric between nodes
    devices_per_node: int  # devices that a node has
    # link, host, nic: rate of one device and direction to the others in its node, to its host, and to the network; `nic` is NaN where the
    # system states none. [B/s]
    link: Array
    host: Array
    nic: Array
    parameters: FabricParameters  # how the kinds of fabric behave
    rings: int | None = None  # of a group of a node that has direct links of its own; None: those of the first GPUs of a node
    spread: float = 1.0  # time that a collective takes on the wiring between nodes over that on one switch. [1]
    rails: bool = False  # whether a network joins only devices in the same place of each node

    @property
    def recent(self) -> Mask:
        """Platforms of the PCIe 5 age, whose software path from device to device is faster."""
        return np.asarray(self.host >= 60e9)

    @property
    def age(self) -> Array:
        """Launch and step times over those of older platforms. [1]"""
        return np.asarray(np.where(self.recent, self.parameters.launch_pcie5_ratio, 1.0))

    @property
    def line(self) -> Array:
        """Line rate of a device's share of the network, as the wiring spreads it. [B/s]"""
        return np.asarray(np.where(self.nic > 0, self.nic, self.parameters.default_nic) / self.spread)


@dataclass(frozen=True, kw_only=True)
class Path:
    """What the time law needs; arrays of shape (n,)."""

    per_byte: Array  # time per byte of a long message: volume on the tightest link over its rate. [s/B]
    base: Array  # fixed time. [s]
    fill: Array = field(default_factory=lambda: ZERO)  # time to fill the chain of steps. [s]
    # small_per_byte, small_base: the low-latency protocol of small messages, which pays in bandwidth. [s/B], [s]
    small_per_byte: Array = field(default_factory=lambda: ZERO)
    small_base: Array = field(default_factory=lambda: INFINITE)
    # below_per_byte, threshold: time per byte of messages below a size: rate into send buffers, another algorithm. [s/B], [B]
    below_per_byte: Array = field(default_factory=lambda: ZERO)
    threshold: Array = field(default_factory=lambda: ZERO)
    floor: Array = field(default_factory=lambda: ZERO)  # time of the host to issue the call. [s]

    @functools.cached_property
    def stepped(self) -> bool:
        """Whether messages below a size take another time per byte."""
        return bool(np.any(self.threshold > 0))

    @functools.cached_property
    def has_small(self) -> bool:
        """Whether there is a protocol of small messages."""
        return bool(np.isfinite(self.small_base).any())


def fabric_of(network: NetworkSpec, architecture: Architecture, devices_per_node: int) -> Fabric:
    """Fabric of a system; rates come from its ports."""
    missing = np.array([np.nan])
    return Fabric(
        intra=network.intra.fabric,
        network=network.inter.fabric,
        devices_per_node=devices_per_node,
        link=ZERO if architecture.intra is None else architecture.intra.bandwidth,
        host=network.host.bandwidth,
        nic=missing if architecture.inter is None else architecture.inter.bandwidth,
        parameters=network.parameters,
    )


def fabric_time(collective: str, size: Array, route: AxisRoute, fabric: Fabric, *, adjacent: bool, racks: bool = False) -> Array:
    """Time of a collective along one axis of a mesh in which every device of every node is busy. [s]

    `adjacent` says whether consecutive ranks of the axis are neighbouring devices, as bridged pairs must be; `racks` is that of `path`.
    """
    if fabric.intra == "pairwise-nvlink" and not adjacent:
        fabric = replace(fabric, intra="pcie")
    return path_time(size, path(fabric, collective, route.size, route.package_size, whole_nodes=True, racks=racks))


def direct_time(collective: str, size: Array, route: AxisRoute, network: NetworkSpec, architecture: Architecture) -> Array:
    """Time of a transfer among some devices of a node, or of one ring along counted routes where direct links do not join a group. [s]"""
    p = network.parameters
    port = architecture.intra
    if port is None:
        return INFINITE
    efficiency = p.direct_efficiency if network.intra.fabric == "hybrid-cube-mesh" else p.xgmi_efficiency
    link, _ = level_bandwidths(route, port.bandwidth * efficiency, port.bandwidth)
    launch = p.launch_transfer if collective == "send_recv" else p.launch
    return np.asarray(launch + ring(collective, size, route.size, link, route.hops * p.direct_step))


def path_time(size: Array, path: Path) -> Array:
    """Time of messages of `size` bytes, shape (e, 1) or (n,). [s]"""
    per_byte = path.per_byte
    if path.stepped:
        above = np.where(path.threshold > 0, 1.0 / (1.0 + (path.threshold / np.maximum(size, 1.0)) ** 4), 1.0)
        per_byte = above * per_byte + (1.0 - above) * path.below_per_byte
    full = pipelined(size, per_byte, path.base, path.fill)
    if path.has_small:
        full = np.minimum(full, path.small_base + size * path.small_per_byte)
    return np.maximum(full, path.floor)


def path(fabric: Fabric, collective: str, ranks: int, ranks_per_node: int, *, whole_nodes: bool | None = None, racks: bool = False) -> Path:
    """Path of a collective over `ranks` devices, `ranks_per_node` of them in each node.

    `whole_nodes` says that the other devices of the nodes take part in other groups of the same job, so that every
    device has its share of the network to itself; where None, a group of fewer ranks than a node has devices runs alone.
    `racks` says that `ranks_per_node` counts the ranks of a rack on NVL72 too; otherwise ranks fill one rack after another there.
    """
    if ranks < 2:
        return Path(per_byte=ZERO, base=ZERO)
    in_node = ranks_per_node if racks or fabric.intra != "nvl72" else min(ranks, fabric.devices_per_node)
    if in_node >= ranks:
        found = _inside(fabric, collective, ranks)
    else:
        whole = in_node >= fabric.devices_per_node if whole_nodes is None else whole_nodes
        found = _between(fabric, collective, ranks, in_node, whole)
    return found if collective == "send_recv" else replace(found, floor=fabric.parameters.launch)


# -------------------------------------------------------------------------------------------- inside a node


def _inside(fabric: Fabric, collective: str, ranks: int) -> Path:
    """Path among ranks of one node."""
    bonded = _bonded(fabric, ranks)
    direct = fabric.intra in ("hybrid-cube-mesh", "infinity-fabric", "ethernet-mesh")
    if collective == "send_recv":
        return _transfer_inside(fabric, bonded, direct)
    if bonded:
        return _switched(fabric, collective, ranks)
    return _direct(fabric, collective, ranks) if direct else _over_host(fabric, collective, ranks)


def _bonded(fabric: Fabric, ranks: int) -> bool:
    """Whether some ranks of a node reach one another over all of their links at once."""
    return fabric.intra in BONDED or (fabric.intra == "pairwise-nvlink" and ranks == 2)


def _transfer_inside(fabric: Fabric, bonded: bool, direct: bool) -> Path:
    """One device to one other: all links where they are bonded, one link where they are direct, else the host bus."""
    p = fabric.parameters
    if bonded:
        efficiency = p.bridge_transfer_efficiency if fabric.intra == "pairwise-nvlink" else p.switch_transfer_efficiency
        return Path(per_byte=1.0 / (efficiency * fabric.link), base=p.launch_transfer)
    if direct:
        efficiency = p.direct_efficiency if fabric.intra == "hybrid-cube-mesh" else p.xgmi_efficiency
        return Path(per_byte=_direct_links(fabric) / (efficiency * fabric.link), base=p.launch_transfer)
    return Path(per_byte=1.0 / _host_rate(fabric), base=p.launch_transfer)


def _direct_links(fabric: Fabric) -> int:
    return CUBE_MESH_LINKS if fabric.intra == "hybrid-cube-mesh" else max(fabric.devices_per_node - 1, 1)


def _switched(fabric: Fabric, collective: str, ranks: int) -> Path:
    """Ring over switched or bonded links, or reduction in the switch, which switches of NVLink 4 on do for p > 4."""
    p = fabric.parameters
    launch, rate = p.launch * fabric.age, p.switch_efficiency * fabric.link
    around = Path(
        per_byte=(ring_volume(collective, ranks) + _copy(fabric, collective)) / rate,
        base=launch,
        fill=ring_steps(collective, ranks) * p.switch_step * fabric.age,
    )
    if collective != "all_reduce" or ranks <= 4 or fabric.intra == "pairwise-nvlink":
        return around
    reduces = np.asarray((fabric.intra != "nvswitch") | (fabric.link >= 400e9))
    # As measured on links of both generations, in between in proportion, so that a faster link never is slower.
    generation = np.clip((fabric.link - NVLINK4) / (NVLINK5 - NVLINK4), 0.0, 1.0)
    slower = 1.0 - generation * (1.0 - p.in_switch_efficiency_nvlink5)
    in_switch = Path(per_byte=(1.0 + 1.0 / ranks + p.reduction_copy) / (rate * slower), base=launch, fill=ranks * p.in_switch_fill)
    return Path(**{part.name: np.where(reduces, getattr(in_switch, part.name), getattr(around, part.name)) for part in fields(Path)})


def _copy(fabric: Fabric, collective: str) -> Array:
    """Time on the link that local copies and additions cost per buffer byte: half for one phase of an all-reduce. [1]"""
    copy = fabric.parameters.reduction_copy
    return copy if collective in ("all_reduce", "sendrecv") else copy / 2.0


def _direct(fabric: Fabric, collective: str, ranks: int) -> Path:
    """Rings over direct links; a chain where no ring exists; the host bus where not even that."""
    p = fabric.parameters
    cube = fabric.intra == "hybrid-cube-mesh"
    topology = _wiring("hybrid-cube-mesh" if cube else "fully-connected", ranks)
    laid = rings(topology) if fabric.rings is None else fabric.rings
    base = p.launch * fabric.age + ring_steps(collective, ranks) * p.direct_step
    one_link = (p.direct_efficiency if cube else p.xgmi_efficiency) * fabric.link / _direct_links(fabric)
    if laid:
        return Path(per_byte=ring_volume(collective, ranks) / (laid * one_link), base=base)
    if collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast") and has_chain(topology):
        return Path(per_byte=1.0 / one_link, base=base)  # up and down one chain: the buffer at most once each way
    return _over_host(fabric, collective, ranks)


@functools.lru_cache(maxsize=64)
def _wiring(kind: str, ranks: int) -> Topology:
    """Direct links among the first ranks of a node."""
    return Topology(kind=kind, nodes=ranks)


def _over_host(fabric: Fabric, collective: str, ranks: int) -> Path:
    """Ring through the host's bridges, or through its memory."""
    p = fabric.parameters
    base = p.launch * fabric.age + ring_steps(collective, ranks) * p.direct_step
    return Path(per_byte=ring_volume(collective, ranks) / _host_rate(fabric), base=base)


def _host_rate(fabric: Fabric) -> Array:
    """Rate of a device over the host bus: peer to peer through bridges, or by way of host memory where there are none. [B/s]"""
    p = fabric.parameters
    return (p.host_memory_efficiency if fabric.intra == "pcie-host" else p.pcie_efficiency) * fabric.host


# -------------------------------------------------------------------------------------------- between nodes


def _between(fabric: Fabric, collective: str, ranks: int, in_node: int, whole: bool) -> Path:
    if fabric.network in SOCKETS:
        return _sockets(fabric, collective, ranks, in_node)
    if not whole:
        return _part_of_nodes(fabric, collective, ranks, in_node)
    if collective == "send_recv":  # one flow from a device to another in a different node
        p = fabric.parameters
        return Path(per_byte=1.0 / (p.flow_efficiency * fabric.line), base=p.launch_transfer + p.staged_step * fabric.age)
    return _whole_nodes(fabric, collective, ranks, in_node)


def _sockets(fabric: Fabric, collective: str, ranks: int, in_node: int) -> Path:
    """TCP: into the send buffers first, then at the wire's rate; the ranks of a node share its card."""
    p, volume = fabric.parameters, ring_volume(collective, ranks)
    if collective == "all_to_all":  # all that goes to other nodes passes the node's one card
        volume = in_node * (ranks - in_node) / ranks
    transfer = collective == "send_recv"
    # The ranks of the node share its card. Of a ring or a chain one of them sends out. On older platforms each rank's share passes
    # through host memory.
    wire = p.ethernet_efficiency * fabric.line * in_node
    staged = np.where(fabric.recent, np.inf, p.staged_efficiency * fabric.host * (1 if transfer else in_node))
    per_byte = volume / np.fmin(wire, staged)
    return Path(
        per_byte=per_byte,
        base=p.launch_transfer if transfer else p.launch * fabric.age,
        below_per_byte=np.minimum(volume / p.send_buffer_rate, per_byte),
        threshold=p.send_buffer_size,
    )


def _part_of_nodes(fabric: Fabric, collective: str, ranks: int, in_node: int) -> Path:
    """Some devices of each node alone: through host memory on older platforms, one flow per device on recent ones.

    With two ranks a node there is one ring, which enters and leaves each node through one card.
    """
    p, transfer = fabric.parameters, collective == "send_recv"
    staged = np.minimum(p.staged_efficiency * fabric.host, fabric.line) * (1.0 if transfer else p.staged_duplex)
    rate = np.where(fabric.recent, p.flow_efficiency * fabric.line, staged)
    per_byte = ring_volume(collective, ranks) / (rate * (1 if in_node <= 2 or transfer else in_node))
    steps = ring_steps(collective, ranks)
    launch = p.launch_transfer if transfer else p.launch * fabric.age
    return Path(
        per_byte=per_byte,
        base=launch + steps * p.staged_step * fabric.age,
        small_per_byte=ZERO if transfer else per_byte / p.low_latency_share,
        small_base=INFINITE if transfer else p.launch + steps * p.rdma_step,
    )


def _whole_nodes(fabric: Fabric, collective: str, ranks: int, in_node: int) -> Path:
    """Every device has its share of the network: rings or a tree between nodes while the node's own links run along.

    All-reduce between two nodes: a tree, which sends each byte once each way; over verbs below a size a ring all the same, because
    NCCL rates trees lower there (`treeCorrectionFactor` of its src/graph/tuning.cc, for messages below 512 MiB).
    """
    p = fabric.parameters
    nodes = -(-ranks // in_node)
    in_network = fabric.network.endswith("-sharp")
    around = volume = ring_volume(collective, ranks)
    if collective == "all_reduce" and (nodes == 2 or in_network):
        volume = 1.0
    if collective == "all_to_all":
        volume = in_node * (ranks - in_node) / ranks
    efficiency = p.efa_efficiency if fabric.network == "efa" else p.rdma_efficiency
    software = fabric.network in SOFTWARE
    if software and fabric.network in SOCKETS:
        efficiency = p.ethernet_efficiency
    outside = volume / (in_node * efficiency * fabric.line)
    inside = _beside_network(fabric, collective, in_node, in_node if in_network else ranks)
    if fabric.rails and collective == "all_to_all" and in_node > 1:  # each part first goes to the device on the rail of its receiver
        inside = inside + (ranks - in_node) / ranks * _beside_network(fabric, collective, in_node, in_node)
    steps = (2 if collective == "all_reduce" else 1) * (1 if in_network else math.ceil(math.log2(nodes)))
    hop = p.switch_step * fabric.age if _bonded(fabric, in_node) else p.direct_step
    per_byte = np.maximum(outside, inside)
    rated = collective == "all_reduce" and nodes == 2 and fabric.network in VERBS
    return Path(
        per_byte=per_byte,
        base=p.launch * fabric.age,
        fill=ring_steps(collective, in_node) * hop + steps * (p.software_fill if software else p.rdma_fill),
        small_per_byte=per_byte / p.low_latency_share,
        small_base=p.launch + steps * (p.software_step if software else p.rdma_step),
        below_per_byte=np.maximum(outside * around / volume, inside),
        threshold=p.tree_threshold if rated else ZERO,
    )


def _beside_network(fabric: Fabric, collective: str, in_node: int, ring: int) -> Array:
    """Time per buffer byte on the links inside a node while the network runs: a ring over all ranks passes through each. [s/B]"""
    if in_node < 2:
        return ZERO
    if _bonded(fabric, in_node):
        return np.asarray((ring_volume(collective, ring) + _copy(fabric, collective)) / (fabric.parameters.switch_efficiency * fabric.link))
    return _inside(fabric, collective, in_node).per_byte
