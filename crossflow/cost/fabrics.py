"""Collectives on real fabrics: what the wiring makes of one, and how long that takes.

Three layers: the *wiring* decides how many bytes cross the tightest link per byte of buffer, at which rate, after how
many dependent steps; one *law* for all fabrics turns that into a time (`crossflow.cost.collectives.pipelined`); the
*parameters*, by kind of fabric and generation of GPU, come from ``templates/families``.

A collective has several *ways*: the protocol of long messages and the low-latency one [1]_, rings and trees between nodes,
reduction in the switch, kernels of serving engines in which each rank reads the buffers of all others. It takes the fastest. Times
are those on the device: what the host needs to issue a call is the software's.

Sizes follow the convention of nccl-tests: the buffer of one rank (of an all-gather the whole output).

References
----------
.. [1] Hu et al., "Demystifying NCCL", Hot Interconnects 2025: protocols Simple, LL and LL128; rings and double binary trees.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, divide
from crossflow.cost.collectives import ROOTED, pipelined, ring, ring_steps
from crossflow.hardware.architecture.model import Architecture, Port
from crossflow.hardware.architecture.network import FabricParameters, NetworkSpec
from crossflow.hardware.architecture.software import PeerAllReduce
from crossflow.hardware.mapping.placement import AxisRoute, level_bandwidths
from crossflow.hardware.mapping.rings import has_chain, rings
from crossflow.hardware.mapping.topology import Topology
from crossflow.program.collectives import ring_volume

ZERO, INFINITE = np.zeros(1), np.array([np.inf])
BONDED = ("nvswitch", "nvswitch-sharp", "nvl72", "ideal")  # ideal links reach all others of a node, beside a real network
SOCKETS = ("ethernet", "none")
SOFTWARE = (*SOCKETS, "gpudirect-tcpxo")
VERBS = ("infiniband", "roce", "efa")
NVLINK4 = 400e9  # links of one GPU from which on its switches reduce [B/s]
PCIE5 = 60e9  # path from device to host from which on a platform is of the PCIe 5 age [B/s]
CUBE_MESH_LINKS = 6  # NVLinks of one GPU in a hybrid cube mesh
# Steps of short messages over NeuronLink, whose ranks write to all others at once; others have one. Source: AWS Neuron documentation,
# Intra-node Collective Communications, Mesh Algorithm.
MESH_STEPS = {"all_reduce": 4, "all_gather": 2, "reduce_scatter": 2}


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
    bridged: int = 2  # devices on one PCIe switch
    sockets: int = 2  # of the host, among which the devices of a node are divided
    peers: int | None = None  # devices that each has a link of its own to, of a node that is wired so; None: all others that are there
    rings: int | None = None  # of a group of a node that has direct links of its own; None: those of the first GPUs of a node
    spread: float = 1.0  # time that a collective takes on the wiring between nodes over that on one switch. [1]
    rails: bool = False  # whether a network joins only devices in the same place of each node
    all_reduce: PeerAllReduce | None = None  # kernels that software has of its own for it
    connected: bool = False  # whether it runs them over direct links between all devices of a node
    # near, far: what a hop inside a node and between nodes takes longer than over the links that were measured, where no step of the
    # parameters is one hop. [s]
    near: Array = field(default_factory=lambda: ZERO)
    far: Array = field(default_factory=lambda: ZERO)
    reduction: Array | None = None  # rate at which named switches of a node reduce, over that of the links; None where none is named. [1]

    @property
    def recent(self) -> Mask:
        """Platforms of the PCIe 5 age, whose software path from device to device is faster."""
        return np.asarray(self.host >= PCIE5)

    @property
    def age(self) -> Array:
        """Steps through the host over those of older platforms. [1]"""
        return np.asarray(np.where(self.recent, self.parameters.pcie5_step_ratio, 1.0))

    @property
    def switched(self) -> Array:
        """Rate of one device to the others of its node over switched or bonded links; ideal ones reach that of the datasheet. [B/s]"""
        return np.asarray(self.link if self.intra == "ideal" else self.parameters.switch_efficiency * self.link)

    @property
    def reduces(self) -> Mask:
        """Whether the switches of a node reduce: those that are named as they say, others from NVLink 4 on."""
        if self.reduction is not None:
            return np.asarray(self.reduction > 0)
        return np.asarray(self.intra in ("nvswitch-sharp", "nvl72", "ideal") or (self.intra == "nvswitch") & (self.link >= NVLINK4))

    @property
    def line(self) -> Array:
        """Line rate of a device's share of the network, as the wiring spreads it. [B/s]"""
        return np.asarray(np.where(self.nic > 0, self.nic, self.parameters.default_nic) / self.spread)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to carry a collective; arrays of shape (n,)."""

    base: Array  # fixed time; infinite where there is no such way. [s]
    per_byte: Array  # time per byte of a long message: volume on the tightest link over its rate. [s/B]
    fill: Array = field(default_factory=lambda: ZERO)  # time to fill the chain of steps. [s]
    # below_per_byte, threshold: time per byte of messages below a size: rate into send buffers, another algorithm. [s/B], [B]
    below_per_byte: Array = field(default_factory=lambda: ZERO)
    threshold: Array = field(default_factory=lambda: ZERO)
    limit: Array = field(default_factory=lambda: INFINITE)  # longest message that goes this way. [B]

    def time(self, size: Array) -> Array:
        """Time of messages of `size` bytes, shape (e, 1) or (n,). [s]"""
        per_byte = self.per_byte
        if self.threshold is not ZERO and np.any(self.threshold > 0):  # most ways have neither, and are asked many times
            above = np.where(self.threshold > 0, 1.0 / (1.0 + (self.threshold / np.maximum(size, 1.0)) ** 4), 1.0)
            per_byte = above * per_byte + (1.0 - above) * self.below_per_byte
        taken = pipelined(size, per_byte, self.base, self.fill)
        return taken if self.limit is INFINITE or np.all(np.isinf(self.limit)) else np.where(size <= self.limit, taken, np.inf)


@dataclass(frozen=True, kw_only=True)
class Path:
    """The ways of a collective among some ranks, of which it takes the fastest."""

    ways: tuple[Way, ...]

    @classmethod
    def each(cls, paths: Sequence[Path], which: Index) -> Path:
        """The path of every point, `which` of several it has, shape (n,); a way that a path lacks never ends."""
        together = itertools.zip_longest(*(one.ways for one in paths), fillvalue=NO_WAY)
        parts = ({part.name: _chosen([getattr(way, part.name) for way in ways], which) for part in fields(Way)} for ways in together)
        return cls(ways=tuple(Way(**way) for way in parts))


NO_WAY = Way(base=INFINITE, per_byte=ZERO)


def _chosen(values: Sequence[Array], which: Index) -> Array:
    """Of every point one of several values, each of shape (n,) or (1,); what all have in common is one for all."""
    if all(value is values[0] for value in values):
        return values[0]
    table = np.stack(np.broadcast_arrays(*values))
    return np.asarray(table[which, np.arange(len(which)) if table.shape[1] > 1 else 0])


def fabric_of(network: NetworkSpec, architecture: Architecture, devices_per_node: int, all_reduce: PeerAllReduce | None = None) -> Fabric:
    """Fabric of a system; rates come from its ports, kernels of their own for an all-reduce from its software."""
    missing = np.array([np.nan])
    near, far = (_later(port, ZERO) for port in (architecture.intra, architecture.inter))
    named = () if all_reduce is None else all_reduce.direct
    known = architecture.generation in named or bool(named and not architecture.generation)  # a generated chip is new
    return Fabric(
        intra=network.intra.fabric,
        network=network.inter.fabric,
        devices_per_node=devices_per_node,
        link=ZERO if architecture.intra is None else architecture.intra.bandwidth,
        host=network.host.bandwidth,
        nic=missing if architecture.inter is None else architecture.inter.bandwidth,
        parameters=delayed(network.parameters, architecture),
        peers=None if architecture.intra is None else architecture.intra.peers,
        bridged=network.host.bridged,
        sockets=network.host.sockets,
        all_reduce=all_reduce,
        connected=known and network.intra.fabric == "infinity-fabric",
        near=near,
        far=far,
        reduction=None if architecture.intra is None else architecture.intra.reduction,
    )


# Parameters that are times of one step, by whether it is one inside a node or between nodes.
NEAR = (
    "switch_step", "switch_line_step", "switch_fill", "exchange_fill", "direct_step", "node_hop", "peer_rank", "peer_phase",
    "peer_direct_phase", "neuron_step",
)  # fmt: skip
FAR = ("rdma_hop", "rdma_step", "rdma_fill", "software_step", "software_fill", "staged_step")


def delayed(parameters: FabricParameters, architecture: Architecture) -> FabricParameters:
    """The parameters with the steps of links whose latency is given, in place of that of the links that were measured."""
    ports = (port for port in (architecture.intra, architecture.inter) if port is not None and port.known is not None)
    if not any(True for _ in ports):
        return parameters
    levels = ((NEAR, architecture.intra), (FAR, architecture.inter))
    return parameters.model_copy(update={name: _later(port, getattr(parameters, name)) for names, port in levels for name in names})


def _later(port: Port | None, step: Array) -> Array:
    """A measured step with the latency that is given in place of the known one. [s]

    A longer latency adds the difference. A shorter one takes it away, from no more of the step than the known latency can be:
    t + L - L0 for L >= L0, else t - min(t, L0) (1 - L / L0).
    """
    if port is None or port.known is None:
        return step
    left = 1.0 - np.minimum(divide(port.latency, port.known), 1.0)
    return np.asarray(step + np.maximum(port.latency - port.known, 0.0) - np.minimum(step, port.known) * left)


def fabric_time(collective: str, size: Array, route: AxisRoute, fabric: Fabric, *, adjacent: bool, racks: bool = False) -> Array:
    """Time of a collective along one axis of a mesh in which every device of every node is busy. [s]

    `adjacent` says whether consecutive ranks of the axis are neighbouring devices, as bridged pairs must be; `racks` is that of `path`.
    """
    if fabric.intra == "pairwise-nvlink" and not adjacent:
        fabric = replace(fabric, intra="pcie")
    return path_time(size, path(fabric, collective, route.size, route.package_size, whole_nodes=True, racks=racks))


def direct_time(collective: str, size: Array, route: AxisRoute, network: NetworkSpec, architecture: Architecture, node: int) -> Array:
    """Time of a transfer among some devices of a node, or of one ring along counted routes where direct links do not join a group. [s]

    node : devices of the node that are in use; links to the others carry nothing. [1]
    """
    p = delayed(network.parameters, architecture)
    port = architecture.intra
    if port is None:
        return INFINITE
    efficiency = _direct_efficiency(p, network.intra.fabric)
    used = 1.0 if port.peers is None else min((node - 1) / port.peers, 1.0)
    link, _ = level_bandwidths(route, port.bandwidth * efficiency * used, port.bandwidth)
    launch = p.launch_transfer if collective == "send_recv" else p.launch
    return np.asarray(launch + ring(collective, size, route.size, link, route.hops * p.direct_step))


def path_time(size: Array, path: Path) -> Array:
    """Time of messages of `size` bytes, shape (e, 1) or (n,). [s]"""
    return functools.reduce(np.minimum, (way.time(size) for way in path.ways))


def path(fabric: Fabric, collective: str, ranks: int, ranks_per_node: int, *, whole_nodes: bool | None = None, racks: bool = False) -> Path:
    """Path of a collective over `ranks` devices, `ranks_per_node` of them in each node.

    `whole_nodes` says that the other devices of the nodes take part in other groups of the same job, so that every
    device has its share of the network to itself; where None, a group of fewer ranks than a node has devices runs alone.
    `racks` says that `ranks_per_node` counts the ranks of a rack on NVL72 too; otherwise ranks fill one rack after another there.
    """
    if ranks < 2:
        return Path(ways=(Way(base=ZERO, per_byte=ZERO),))
    in_node = ranks_per_node if racks or fabric.intra != "nvl72" else min(ranks, fabric.devices_per_node)
    if in_node >= ranks:
        return Path(ways=_inside(fabric, collective, ranks))
    whole = in_node >= fabric.devices_per_node if whole_nodes is None else whole_nodes
    if fabric.intra == "neuronlink":  # ranks of a compiled graph meet, whether or not they share a node
        start = fabric.parameters.neuron_launch
        fabric = replace(fabric, parameters=fabric.parameters.model_copy(update={"launch": start, "launch_transfer": start}))
    return Path(ways=_between(fabric, collective, ranks, in_node, whole))


# -------------------------------------------------------------------------------------------- inside a node


def _inside(fabric: Fabric, collective: str, ranks: int) -> tuple[Way, ...]:
    """Ways among ranks of one node."""
    bonded = _bonded(fabric, ranks)
    direct = fabric.intra in ("hybrid-cube-mesh", "infinity-fabric", "ethernet-mesh")
    if fabric.intra == "neuronlink":
        per_byte = ring_volume(collective, ranks) / (fabric.parameters.neuron_efficiency * fabric.link)
        return (Way(base=neuron_start(collective, fabric.parameters), per_byte=per_byte),)
    if collective == "send_recv":
        return (_transfer_inside(fabric, bonded, direct),)
    own = _peers(fabric, ranks, bonded) if collective == "all_reduce" else ()
    if bonded:
        return *_switched(fabric, collective, ranks), *own
    return *(_direct(fabric, collective, ranks) if direct else _over_host(fabric, collective, ranks)), *own


def _bonded(fabric: Fabric, ranks: int) -> bool:
    """Whether some ranks of a node reach one another over all of their links at once."""
    return fabric.intra in BONDED or (fabric.intra == "pairwise-nvlink" and ranks == 2)


def _transfer_inside(fabric: Fabric, bonded: bool, direct: bool) -> Way:
    """One device to one other: all links where they are bonded, one link where they are direct, else the host bus."""
    p = fabric.parameters
    if bonded:
        efficiency = p.bridge_transfer_efficiency if fabric.intra == "pairwise-nvlink" else p.switch_transfer_efficiency
        return Way(per_byte=1.0 / (efficiency * fabric.link), base=p.launch_transfer + fabric.near)
    if direct:
        efficiency = _direct_efficiency(p, fabric.intra)
        return Way(per_byte=_direct_links(fabric) / (efficiency * fabric.link), base=p.launch_transfer + fabric.near)
    return Way(per_byte=1.0 / _host_rate(fabric, 2), base=p.launch_transfer + fabric.near)


def _direct_efficiency(p: FabricParameters, intra: str) -> Array:
    """What a direct link achieves over its raw rate. [1]"""
    return {"hybrid-cube-mesh": p.direct_efficiency, "ethernet-mesh": p.mesh_efficiency}.get(intra, p.xgmi_efficiency)


def neuron_start(collective: str, p: FabricParameters) -> Array:
    """Time of a collective over NeuronLink beside that of its bytes: of the short messages that write to all others at once. [s]"""
    return np.asarray(p.neuron_launch + MESH_STEPS.get(collective, 1) * p.neuron_step)


def _direct_links(fabric: Fabric) -> int:
    """Links among which a device's rate is divided, used or not. [1]"""
    return CUBE_MESH_LINKS if fabric.intra == "hybrid-cube-mesh" else fabric.peers or max(fabric.devices_per_node - 1, 1)


def _switched(fabric: Fabric, collective: str, ranks: int) -> tuple[Way, ...]:
    """Rings over switched or bonded links, and reduction in the switch, which NCCL has for more than four ranks."""
    p = fabric.parameters
    volume = ring_volume(collective, ranks)
    per_byte = (volume + _copy(fabric, collective, ranks)) / fabric.switched
    if collective == "all_to_all" or collective in ROOTED:  # a gather is sends and receives of NCCL that are posted together
        return (Way(base=p.launch + (ranks - 2) * p.post, per_byte=per_byte, fill=p.exchange_fill),)
    steps = ring_steps(collective, ranks)
    passed = 2.0 if collective == "all_reduce" else 1.0  # times that a rank handles each byte with its flags, its own part too
    ways = (
        Way(base=p.launch + p.bulk_launch + steps * p.switch_step, per_byte=per_byte, fill=p.switch_fill),
        Way(base=p.launch + steps * p.switch_line_step, per_byte=passed / (p.switch_line_share * fabric.switched)),
        Way(base=p.launch + steps * p.switch_step, per_byte=passed / (p.switch_low_latency_share * fabric.switched)),
    )
    if collective != "all_reduce" or ranks <= 4 or not fabric.reduces.any():
        return ways
    base = np.where(fabric.reduces, p.launch + p.bulk_launch + 2 * fabric.near, np.inf)  # to the switch and back
    return *ways, Way(base=base, per_byte=_in_switch(fabric, ranks), fill=ranks * p.in_switch_fill)


def _in_switch(fabric: Fabric, ranks: int) -> Array:
    """Time per buffer byte of a reduction in the switch: each rank sends all, and a share once more. [s/B]"""
    return np.asarray((1.0 + 1.0 / ranks) / (fabric.parameters.in_switch_efficiency * fabric.link))


def _copy(fabric: Fabric, collective: str, ranks: int) -> Array:
    """What a rank's own part of the buffer takes on the device, over the time of a whole buffer on the link. [1]"""
    p = fabric.parameters
    copies = {"all_reduce": p.reduction_copy, "all_to_all": p.exchange_copy, "all_gather": p.gather_copy, "reduce_scatter": p.gather_copy}
    if collective in ROOTED:
        return p.exchange_copy / ranks
    return p.exchange_copy if collective == "sendrecv" else copies.get(collective, ZERO) / ranks


def _peers(fabric: Fabric, ranks: int, bonded: bool) -> tuple[Way, ...]:
    """All-reduce of a serving engine: each rank reads all buffers in one shot, or a shard of all, then all shards, in two.

    Over bonded links among all ranks, over direct links to each of the others, or over the host's bus between two. Source: vLLM,
    csrc/custom_all_reduce.cuh; TensorRT-LLM, customAllReduceKernels.cu. Over direct links its blocks are so few that what they have read
    waits to be summed.
    """
    p, own = fabric.parameters, fabric.all_reduce
    if own is None or not (bonded or fabric.connected or (ranks == 2 and fabric.intra in ("pcie", "pairwise-nvlink"))):
        return ()
    base, volume = p.peer_launch + own.start + ranks * p.peer_rank, ring_volume("all_reduce", ranks)
    if not bonded and fabric.connected:
        links = p.peer_direct_efficiency * fabric.link * (ranks - 1) / _direct_links(fabric)
        byte = 1.0 / links + 1.0 / p.peer_direct_rate
        once, twice, phase = (ranks - 1) * byte, volume * byte, p.peer_direct_phase
    else:
        rate = fabric.link if bonded else fabric.host
        once, twice, phase = (ranks - 1) / (p.peer_efficiency * rate), volume / (p.peer_phase_efficiency * rate), p.peer_phase
    return Way(base=base, per_byte=once, limit=own.limit), Way(base=base + phase, per_byte=twice, limit=own.limit)


def _direct(fabric: Fabric, collective: str, ranks: int) -> tuple[Way, ...]:
    """Rings over direct links; a chain where no ring exists; the host bus where not even that."""
    p = fabric.parameters
    cube = fabric.intra == "hybrid-cube-mesh"
    topology = _wiring("hybrid-cube-mesh" if cube else "fully-connected", ranks)
    laid = rings(topology) if fabric.rings is None else fabric.rings
    one_link = _direct_efficiency(p, fabric.intra) * fabric.link / _direct_links(fabric)
    if laid:
        return _in_steps(fabric, collective, ranks, ring_volume(collective, ranks) / (laid * one_link))
    if collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce") and has_chain(topology):
        return _in_steps(fabric, collective, ranks, 1.0 / one_link)  # up and down one chain: the buffer at most once each way
    return _over_host(fabric, collective, ranks)


def _in_steps(fabric: Fabric, collective: str, ranks: int, per_byte: Array) -> tuple[Way, Way]:
    """A ring over direct links or the host's bus, by the protocol of long messages and by that of short ones."""
    p = fabric.parameters
    base = p.launch + ring_steps(collective, ranks) * p.direct_step
    return Way(base=base + p.bulk_launch, per_byte=per_byte), Way(base=base, per_byte=per_byte / p.direct_low_latency_share)


@functools.lru_cache(maxsize=64)
def _wiring(kind: str, ranks: int) -> Topology:
    """Direct links among the first ranks of a node."""
    return Topology(kind=kind, nodes=ranks)


def _over_host(fabric: Fabric, collective: str, ranks: int) -> tuple[Way, Way]:
    """Ring through the host's bridges, or through its memory."""
    return _in_steps(fabric, collective, ranks, ring_volume(collective, ranks) / _host_rate(fabric, ranks))


def _host_rate(fabric: Fabric, ranks: int) -> Array:
    """Rate of each device of a ring over the host bus. [B/s]

    The processors of a host forward traffic between devices worse than a PCIe switch does (NVIDIA/nccl#1603, #1639), and the link
    between its sockets worse than a processor. Of a bridged pair one device at a time passes the host, so two pairs are two devices.
    """
    p, passing = fabric.parameters, -(-ranks // 2) if fabric.intra == "pairwise-nvlink" else ranks
    peers = p.host_memory_efficiency if fabric.intra == "pcie-host" else p.pcie_efficiency
    if passing > fabric.bridged:
        peers = np.minimum(peers, p.root_efficiency)
        if ranks * fabric.sockets > fabric.devices_per_node:
            peers = np.minimum(peers, p.socket_efficiency)
    return np.asarray(peers * fabric.host)


# -------------------------------------------------------------------------------------------- between nodes


def _between(fabric: Fabric, collective: str, ranks: int, in_node: int, whole: bool) -> tuple[Way, ...]:
    if fabric.network in SOCKETS:
        return (_sockets(fabric, collective, ranks, in_node),)
    if not whole:
        return _part_of_nodes(fabric, collective, ranks, in_node)
    if collective == "send_recv":  # one flow from a device to another in a different node
        p = fabric.parameters
        return (Way(per_byte=1.0 / (p.flow_efficiency * fabric.line), base=p.launch_transfer + p.staged_step * fabric.age),)
    return _whole_nodes(fabric, collective, ranks, in_node)


def _sockets(fabric: Fabric, collective: str, ranks: int, in_node: int) -> Way:
    """TCP: into the send buffers first, then at the wire's rate; the ranks of a node share its card."""
    p, volume = fabric.parameters, ring_volume(collective, ranks)
    if collective == "all_to_all":  # all that goes to other nodes passes the node's one card
        volume = in_node * (ranks - in_node) / ranks
    elif collective in ROOTED:  # and what goes to the root, that of its node
        volume = (ranks - in_node) / ranks
    transfer = collective == "send_recv"
    # The ranks of the node share its card. Of a ring or a chain one of them sends out. On older platforms each rank's share passes
    # through host memory.
    wire = p.ethernet_efficiency * fabric.line * in_node
    staged = np.where(fabric.recent, np.inf, p.staged_efficiency * fabric.host * (1 if transfer else in_node))
    per_byte = volume / np.fmin(wire, staged)
    return Way(
        per_byte=per_byte,
        base=(p.launch_transfer if transfer else p.launch + p.bulk_launch) + ring_steps(collective, ranks) * fabric.far,
        below_per_byte=np.minimum(volume / p.send_buffer_rate, per_byte),
        threshold=p.send_buffer_size,
    )


def _part_of_nodes(fabric: Fabric, collective: str, ranks: int, in_node: int) -> tuple[Way, ...]:
    """Some devices of each node alone: through host memory on older platforms, one flow per device on recent ones.

    With two ranks a node there is one ring, which enters and leaves each node through one card.
    """
    p, transfer = fabric.parameters, collective == "send_recv"
    volume, cards = ring_volume(collective, ranks), 1 if in_node <= 2 or transfer else in_node
    if collective in ROOTED:  # of one device
        volume, cards = (ranks - in_node) / ranks, 1
    staged = np.minimum(p.staged_efficiency * fabric.host, fabric.line) * (1.0 if transfer else p.staged_duplex)
    rate = np.where(fabric.recent, p.flow_efficiency * fabric.line, staged)
    per_byte = volume / (rate * cards)
    steps = ring_steps(collective, ranks)
    if transfer:
        return (Way(per_byte=per_byte, base=p.launch_transfer + steps * p.staged_step * fabric.age),)
    return (
        Way(per_byte=per_byte, base=p.launch + p.bulk_launch + steps * p.staged_step * fabric.age),
        Way(per_byte=per_byte / p.low_latency_share, base=p.launch + steps * p.rdma_step),
    )


def _whole_nodes(fabric: Fabric, collective: str, ranks: int, in_node: int) -> tuple[Way, ...]:
    """Every device has its share of the network: rings and trees between nodes while the node's own links run along.

    A ring passes every rank of every node, one step after the other; only an all-reduce has trees, or reduction in the network.
    """
    p = fabric.parameters
    nodes = -(-ranks // in_node)
    if collective == "all_to_all" or collective in ROOTED:
        return (_posted_nodes(fabric, collective, ranks, in_node),)
    hop = p.switch_step if _bonded(fabric, in_node) else p.direct_step
    long, short = (p.software_fill, p.software_step) if fabric.network in SOFTWARE else (p.rdma_hop, p.rdma_step)
    out, within = (nodes - 1, ranks - nodes) if ring_steps(collective, ranks) > 1 else (1, 0)
    turns = 2 if collective == "all_reduce" else 1
    summed = collective == "all_reduce" and fabric.network.endswith("-sharp")  # in the network, which leaves the node its own ring
    inside = _beside_network(fabric, collective, in_node, in_node if summed else ranks)
    per_byte = np.maximum(ring_volume(collective, ranks) / _outside(fabric, in_node), inside)
    chain = turns * (out * long + within * p.node_hop)
    piped = collective in ("broadcast", "reduce")  # whose pieces follow one another
    around = Way(base=p.launch + p.bulk_launch + (0.0 if piped else chain), per_byte=per_byte, fill=chain if piped else ZERO)
    if collective == "all_reduce":
        deep = 1 if summed else math.ceil(math.log2(nodes))
        near = 2 * (in_node - 1) * hop
        tree = _tree(fabric, ranks, in_node, 2 * deep, near, inside)
        return around, tree, Way(base=p.launch + near + 2 * deep * short, per_byte=per_byte / p.low_latency_share)
    return around, Way(base=p.launch + out * short + within * hop, per_byte=per_byte / p.low_latency_share)


def _outside(fabric: Fabric, in_node: int) -> Array:
    """Rate of the network cards of a node together. [B/s]"""
    p = fabric.parameters
    return np.asarray(in_node * (p.efa_efficiency if fabric.network == "efa" else p.rdma_efficiency) * fabric.line)


def _tree(fabric: Fabric, ranks: int, in_node: int, steps: int, chain: Array, inside: Array) -> Way:
    """All-reduce by double binary trees between nodes, or in the network's switches.

    steps : of the tree between nodes, which are piped.
    chain : time of the steps inside a node. [s]
    inside : time per byte there. [s/B]

    Between two nodes a tree sends each byte once each way; over verbs below a size a ring all the same, because NCCL rates trees
    lower there (`treeCorrectionFactor` of its src/graph/tuning.cc, for messages below 512 MiB).
    """
    p, nodes, rate = fabric.parameters, -(-ranks // in_node), _outside(fabric, in_node)
    once = nodes == 2 or fabric.network.endswith("-sharp")
    around = ring_volume("all_reduce", ranks)
    return Way(
        base=p.launch + p.bulk_launch + chain,
        per_byte=np.maximum((1.0 if once else around / p.tree_efficiency) / rate, inside),
        fill=p.switch_fill + steps * (p.software_fill if fabric.network in SOFTWARE else p.rdma_fill),
        below_per_byte=np.maximum(around / rate, inside),
        threshold=p.tree_threshold if nodes == 2 and fabric.network in VERBS else ZERO,
    )


def _posted_nodes(fabric: Fabric, collective: str, ranks: int, in_node: int) -> Way:
    """All-to-all, gather or scatter between nodes, all sends posted at once: what leaves a node passes its cards, the rest its links.

    Of a gather or scatter the parts of other nodes pass the one card of the root's device, as many bytes of the buffer as pass each card
    of an all-to-all.
    """
    p = fabric.parameters
    if collective in ROOTED:
        inside = in_node / ranks * _beside_network(fabric, "gather", in_node, in_node)
    else:
        inside = _beside_network(fabric, "all_to_all", in_node, ranks)
        if fabric.rails and in_node > 1:  # each part first goes to the device on the rail of its receiver
            inside = inside + (ranks - in_node) / ranks * _beside_network(fabric, "all_to_all", in_node, in_node)
    fill = p.software_fill if fabric.network in SOFTWARE else p.rdma_fill
    per_byte = np.maximum(in_node * (ranks - in_node) / ranks / _outside(fabric, in_node), inside)
    return Way(base=p.launch + p.bulk_launch + (ranks - 2) * p.post, per_byte=per_byte, fill=p.exchange_fill + fill)


def _beside_network(fabric: Fabric, collective: str, in_node: int, ring: int) -> Array:
    """Time per buffer byte on the links inside a node while the network runs: a ring over all ranks passes through each. [s/B]

    Switches that reduce do so beside a network that does not.
    """
    if in_node < 2:
        return ZERO
    if not _bonded(fabric, in_node):
        return _inside(fabric, collective, in_node)[0].per_byte
    around = (ring_volume(collective, ring) + _copy(fabric, collective, ring)) / fabric.switched
    if collective != "all_reduce" or in_node <= 4 or fabric.network.endswith("-sharp"):
        return np.asarray(around)
    return np.where(fabric.reduces, np.minimum(around, _in_switch(fabric, in_node)), around)
