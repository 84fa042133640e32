"""Networks in files: two levels of fabric, the host bus, and how fabrics carry collectives beyond their line rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from crossflow.base.files import FileModel
from crossflow.base.limits import Finite, Flag, PositiveFloat, PositiveInt, Seed, Whole
from crossflow.base.units import Bandwidth, Information, Ratio, Share, Time

TopologyName = Literal[
    "single", "ring", "mesh2d", "mesh3d", "torus2d", "torus3d", "optical-torus", "switch", "crossbar", "fat-tree", "dragonfly", "rail-only",
    "fully-connected", "hybrid-cube-mesh",
]  # fmt: skip
FabricKind = Literal[
    "ideal", "nvswitch", "nvswitch-sharp", "nvl72", "pairwise-nvlink", "hybrid-cube-mesh", "infinity-fabric", "pcie", "pcie-host",
    "ethernet-mesh", "neuronlink", "torus3d", "infiniband", "infiniband-sharp", "roce", "gpudirect-tcpxo", "efa", "ethernet", "ici", "none",
]  # fmt: skip


# Wiring of each kind of fabric, where a scenario does not say otherwise.
FABRIC_TOPOLOGY: Mapping[FabricKind, TopologyName] = {
    "ideal": "switch", "nvswitch": "switch", "nvswitch-sharp": "switch", "nvl72": "switch", "pairwise-nvlink": "switch", "pcie": "switch",
    "pcie-host": "switch", "hybrid-cube-mesh": "hybrid-cube-mesh", "infinity-fabric": "fully-connected",
    "ethernet-mesh": "fully-connected", "neuronlink": "torus2d", "torus3d": "torus3d",
    "infiniband": "switch", "infiniband-sharp": "switch", "roce": "switch", "gpudirect-tcpxo": "switch", "efa": "switch",
    "ethernet": "switch", "ici": "torus3d", "none": "switch",
}  # fmt: skip


JOINED: tuple[FabricKind, ...] = ("infinity-fabric", "ethernet-mesh")  # whose devices have a link of their own to each other one of a node


class FabricParameters(FileModel):
    """What separates the achieved rate and the time of a step from the datasheet, by kind of fabric."""

    launch: Time = Field(description="device time of a collective's kernel beside its steps; the host's time to issue it is the software's")
    bulk_launch: Time = Field(description="further time of the protocol of long messages: fences and the first chunk of a slice")
    launch_transfer: Time = Field(description="launch of a send/recv pair")
    pcie5_step_ratio: Ratio = Field(description="steps through the host of PCIe-5 platforms (Hopper on) over those of older ones")
    switch_efficiency: Ratio = Field(description="achieved over datasheet rate, NVSwitch or bonded NVLink")
    reduction_copy: Ratio = Field(
        description="all-reduce: time that a rank's own part of the buffer takes on the device, over its time on the link"
    )
    gather_copy: Ratio = Field(description="the same of an all-gather or reduce-scatter")
    exchange_copy: Ratio = Field(description="the same of an all-to-all")
    switch_fill: Time = Field(description="protocol of long messages: fill time of a step over NVSwitch / bonded NVLink")
    switch_step: Time = Field(description="low-latency protocol: step of a ring over NVSwitch / bonded NVLink")
    switch_low_latency_share: Ratio = Field(description="the same: rate over that of long messages")
    switch_line_step: Time = Field(description="protocol of whole lines (LL128): step of a ring over NVSwitch / bonded NVLink")
    switch_line_share: Ratio = Field(description="the same: rate over that of long messages")
    exchange_fill: Time = Field(description="fill time of an all-to-all over NVSwitch: its sends are posted at once")
    post: Time = Field(description="post of a send to one more peer of an all-to-all over ideal links; their latencies overlap")
    in_switch_fill: Time = Field(description="in-switch reduction: fill time per rank")
    in_switch_efficiency: Ratio = Field(description="in-switch reduction: achieved over datasheet rate of a link")
    peer_launch: Time = Field(description="all-reduce of serving engines, each rank reads all buffers: start and flags")
    peer_rank: Time = Field(description="the same: further time per rank")
    peer_efficiency: Ratio = Field(description="the same: achieved over datasheet rate, whole buffers read (one shot)")
    peer_phase: Time = Field(description="the same: further time of the second of two shots, a shard reduced and then gathered")
    peer_phase_efficiency: Ratio = Field(description="the same: achieved over datasheet rate, shards (two shots)")
    peer_direct_phase: Time = Field(description="the same over direct links to each of the others: further time of the second of two shots")
    peer_direct_efficiency: Ratio = Field(description="the same: achieved over datasheet rate of the links that lead to the others")
    peer_direct_rate: Bandwidth = Field(description="the same: rate at which its few blocks sum what they have read, one after the other")
    switch_transfer_efficiency: Ratio = Field(description="send/recv over NVSwitch")
    bridge_transfer_efficiency: Ratio = Field(description="send/recv over a bridged pair (timed to the last hand-over, so > 1)")
    direct_efficiency: Ratio = Field(description="achieved over raw rate of single direct NVLinks (cube mesh)")
    direct_step: Time = Field(description="ring step over direct links or PCIe")
    direct_low_latency_share: Ratio = Field(description="low-latency protocol over direct links or PCIe: rate over that of long messages")
    xgmi_efficiency: Ratio = Field(description="achieved over raw rate of xGMI links, rings")
    mesh_efficiency: Ratio = Field(description="achieved over raw rate of Ethernet between all devices of a node (ethernet-mesh)")
    neuron_launch: Time = Field(description="NeuronLink: start and end of a collective, in which all ranks of a compiled graph meet")
    neuron_step: Time = Field(description="the same: one of its steps, of which short messages have two, and all-reduces four")
    neuron_efficiency: Ratio = Field(description="the same: achieved over raw rate of all links of a device")
    pcie_efficiency: Ratio = Field(description="achieved over raw PCIe rate, peer to peer through the host bridge")
    host_memory_efficiency: Ratio = Field(description="same, through host memory: devices on the host's own ports, pcie-host")
    root_efficiency: Ratio = Field(description="same, at most, of each device of a group that no PCIe switch joins, on one socket")
    socket_efficiency: Ratio = Field(description="same, at most, of such a group on more than one socket")
    rdma_efficiency: Ratio = Field(description="achieved over NIC line rate, whole nodes: infiniband, roce, gpudirect-tcpxo, unknown RDMA")
    efa_efficiency: Ratio = Field(description="same, EFA")
    ethernet_efficiency: Ratio = Field(description="same, TCP")
    rdma_fill: Time = Field(description="trees: fill time per inter-node step, RDMA")
    rdma_hop: Time = Field(description="rings of long messages: time of a step to another node")
    node_hop: Time = Field(description="rings of long messages that leave the node: time of a step inside one")
    tree_efficiency: Ratio = Field(description="trees over more than two nodes: rate over that of rings")
    rdma_step: Time = Field(description="low-latency protocol: time per inter-node step, RDMA")
    software_step: Time = Field(description="same, software transport (tcpxo)")
    low_latency_share: Ratio = Field(description="low-latency protocol: rate over that of the full protocol")
    software_fill: Time = Field(description="fill time per inter-node step, software transport (tcpxo)")
    staged_efficiency: Ratio = Field(description="through host memory, over PCIe rate, one way (PCIe <= 4, part of a node)")
    staged_duplex: Ratio = Field(description="host-memory path: rate each way when both ways run")
    staged_step: Time = Field(description="ring step through host memory and NIC")
    flow_efficiency: Ratio = Field(description="one GPU's flow over NIC line rate with GPUDirect (PCIe 5, part of a node)")
    default_nic: Bandwidth = Field(description="network of a node for which none is given: 25 Gb/s Ethernet")
    tree_threshold: Information = Field(description="all-reduce between two nodes: smaller messages take rings, verbs")
    send_buffer_rate: Bandwidth = Field(description="rate into send buffers, sockets")
    send_buffer_size: Information = Field(description="send buffers: larger messages run at the wire's rate")


MOST_TIERS = 4  # of switches; five would be nine hops
OPTICAL: TopologyName = "optical-torus"
CLOS: tuple[TopologyName, ...] = ("switch", "crossbar", "fat-tree", "rail-only")  # wirings of tiers of switches
UNSWITCHED = "technology.{name}_switch names a switch, but network.{name} is wired as {wiring}: leave it out, or take topology switch"


class JobTraffic(FileModel):
    """What a job sends between its nodes, to all of them at once, as fast as its links let it."""

    traffic: Literal["ring", "all-to-all", "tree", "handover"] = Field(
        default="ring",
        description="what it sends: from each node to the next, to every other, up and down trees in which the network reduces, or from"
        " some of its nodes to each of the others, as workers of a service that read prompts hand over keys and values",
    )
    senders: Finite | None = Field(
        default=None, gt=0.0, lt=1.0, description="of `handover`: share of its nodes that send to the others; whole nodes"
    )
    duty: Finite = Field(default=1.0, ge=0.0, le=1.0, description="share of the time in which it sends")
    weight: PositiveFloat = Field(
        default=1.0, description="bandwidth of one of its flows on a full link, beside one of weight 1, as those of the step are"
    )
    priority: Whole = Field(
        default=0,
        ge=-8,
        le=8,
        description="its class of traffic, the step's being 0: lower ones are served first, and may leave the step nothing",
    )

    @model_validator(mode="after")
    def _of_a_handover(self) -> Self:
        if (self.traffic == "handover") != (self.senders is not None):
            cure = "give senders, such as senders: 0.25" if self.senders is None else f"a {self.traffic} has none; leave senders out"
            raise ValueError(f"senders: a handover goes from some nodes of a job to the others; {cure}")
        return self


class NeighbourJob(JobTraffic):
    """Another job on the same network."""

    devices: PositiveInt = Field(description="its devices; whole nodes, each with as many as the step's own, or whole rails of these")


TAIL = 0.95  # quantile of what congestion does that is told beside the mean


class Congestion(FileModel):
    """How flows between nodes share the links of a fat tree or dragonfly, with one another and with those of other jobs.

    Each draw is a moment: which of the other jobs send, and which of several equal paths each flow has by its hash.
    """

    jobs: tuple[NeighbourJob, ...] = Field(default=(), max_length=32, description="other jobs on the network")
    placement: Literal["packed", "spread", "by-rail"] = Field(
        default="packed",
        description="where jobs are: one after the other, the step's own first; node by node in turn; on further rails of the same nodes",
    )
    routing: Literal["ecmp", "adaptive"] = Field(
        default="ecmp",
        description="ecmp: each flow keeps one path, by its hash (the direct one in a dragonfly); adaptive: packets spread over all",
    )
    rails: Flag = Field(
        default=False, description="whether a leaf switch of a fat tree holds the devices of one place in the nodes of its group, not all"
    )
    paths: PositiveInt | None = Field(
        default=None,
        le=4096,
        description="equal paths out of a leaf switch: links to spines, which divide its bandwidth; links of a device's rate where absent",
    )
    connections: PositiveInt = Field(default=1, le=4096, description="connections of a transfer, each with a path by its own hash")
    draws: PositiveInt = Field(default=64, le=4096, description="moments that are drawn")
    seed: Seed = Field(default=0, description="of what is drawn")
    quantile: Finite | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="moment by which messages are priced: 0.95 is exceeded in a twentieth; the mean where absent",
    )


class NetworkLevel(FileModel):
    """One level of the network: its fabric, its wiring and, for datasheet systems, its bandwidth.

    `bandwidth` is that of one device and direction, all ports together: a torus of four links a device gives each of them a quarter.
    Where it is absent the link technology gives it.
    """

    fabric: FabricKind = Field(default="ideal", description="kind of fabric; ideal links reach their rate")
    topology: TopologyName | None = Field(default=None, description="wiring; the fabric's own where absent")
    shape: tuple[Whole, ...] | None = None
    ports: Whole | None = Field(
        default=None,
        gt=0,
        description="links of a device on a direct topology, among which its bandwidth is divided; those in use where absent",
    )
    wraps: tuple[Flag, ...] | None = Field(
        default=None,
        description="of a torus, for each size of its `shape` whether the rows along it are rings, as all are where absent; those of a"
        " slice that ends inside the torus are not",
    )
    ring_from: Whole | None = Field(
        default=None,
        gt=1,
        description="of a torus, size of its shortest rows that are rings where `wraps` does not say: a TPU v5e closes rows of 16 only",
    )
    group: Whole | None = Field(
        default=None,
        gt=0,
        description="nodes on a leaf switch of a fat tree, of which the last may have fewer, or in a group of a dragonfly",
    )
    oversubscription: Finite | None = Field(
        default=None, ge=1, description="bandwidth of the ports of such a group over that out of it; 1 where absent"
    )
    bandwidth: Bandwidth | None = None
    latency: Time | None = None
    tiers: Whole | None = Field(
        default=None, ge=1, le=MOST_TIERS,
        description="tiers of the named switches (`technology.intra_switch`, `inter_switch`); as few as hold the devices where absent, and"
        " fewer cannot be built",
    )  # fmt: skip
    onward: Finite | None = Field(
        default=None, gt=0,
        description="bandwidth to the devices over that of the ports which switches of one tier keep for a further network: 1 on DGX A100,"
        " 2 on DGX H100; needs a named switch; none are kept where absent",
    )  # fmt: skip
    spare: Share | None = Field(
        default=None,
        description="lanes of a device that stand by for broken ones, over those that work: they take area, edge, switches and money, and"
        " carry nothing until one breaks; needs a named switch; 0 where absent",
    )
    congestion: Congestion | None = Field(
        default=None,
        description="other jobs and colliding flows, of `inter` as a fat tree or dragonfly; nobody shares anything where absent",
    )

    @property
    def wiring(self) -> TopologyName:
        """Its topology, given or the fabric's own."""
        return self.topology or FABRIC_TOPOLOGY[self.fabric]


def refusal(name: str, level: NetworkLevel, *, switch: str | None, uplink: str | None) -> str | None:
    """Why a level cannot have what its file says of switches; None where it can."""
    tiered = level.wiring in CLOS
    if switch is not None and level.wiring not in (*CLOS, "dragonfly", OPTICAL):
        return UNSWITCHED.format(name=name, wiring=level.wiring)
    said = {f"network.{name}.{key}": getattr(level, key) for key in ("tiers", "onward", "spare")}
    if not tiered and (key := next((key for key in list(said)[:2] if said[key] is not None), None)):
        return f"{key}: a {level.wiring} has no tiers; leave it out"
    if switch is None and (key := next((key for key, value in said.items() if value is not None), None)):
        return f"{key} is of switches, and none is named: give technology.{name}_switch, or leave it out"
    if switch is None and uplink is not None and level.wiring != OPTICAL:
        return f"technology.{name}_uplink is a link between switches, and none is named: give technology.{name}_switch, or leave it out"
    if level.wiring == OPTICAL and level.spare is not None:
        return f"network.{name}.spare: the links of an optical-torus are those inside nodes; leave it out"
    return None


class HostLink(FileModel):
    """The bus between a device and its host, over which devices without a direct link meet."""

    bandwidth: Bandwidth
    bridged: Whole = Field(default=2, ge=1, description="devices on one PCIe switch; a larger group passes the processors of the host")
    sockets: Whole = Field(default=2, ge=1, description="processors of a host, among which the devices of a node are divided evenly")


class NetworkSpec(FileModel):
    """Two levels of network: inside a node (a package or a server) and between nodes; the host's bus beside them."""

    intra: NetworkLevel = NetworkLevel(topology="single")
    inter: NetworkLevel = NetworkLevel(topology="switch")
    host: HostLink
    parameters: FabricParameters
