"""Networks in files: two levels of fabric, the host bus, and how fabrics carry collectives beyond their line rates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from crossflow.files import FileModel
from crossflow.limits import Finite, Whole
from crossflow.units import Bandwidth, Information, Ratio, Time

TopologyName = Literal[
    "single", "ring", "mesh2d", "mesh3d", "torus2d", "torus3d", "optical-torus", "switch", "crossbar", "fat-tree", "dragonfly", "rail-only",
    "fully-connected", "hybrid-cube-mesh",
]  # fmt: skip
FabricKind = Literal[
    "ideal", "nvswitch", "nvswitch-sharp", "nvl72", "pairwise-nvlink", "hybrid-cube-mesh", "infinity-fabric", "pcie", "pcie-host",
    "ethernet-mesh", "torus3d", "infiniband", "infiniband-sharp", "roce", "gpudirect-tcpxo", "efa", "ethernet", "ici", "none",
]  # fmt: skip


class FabricParameters(FileModel):
    """What separates the achieved rate and the time of a step from the datasheet, by kind of fabric."""

    launch: Time = Field(description="launch and set-up of a collective, PCIe <= 4 platforms (A100, V100)")
    launch_pcie5_ratio: Ratio = Field(description="launch and step times of PCIe-5 platforms (Hopper on) over the older ones")
    launch_transfer: Time = Field(description="launch of a send/recv pair")
    switch_efficiency: Ratio = Field(description="achieved over datasheet rate, NVSwitch or bonded NVLink")
    reduction_copy: Ratio = Field(description="extra link-time of an all-reduce per buffer byte: local reduce/copy not hidden by transfer")
    switch_step: Time = Field(description="pipeline step of a ring over NVSwitch / bonded NVLink")
    post: Time = Field(description="post of a send to one more peer of an all-to-all over ideal links; their latencies overlap")
    in_switch_fill: Time = Field(description="in-switch reduction: fill time per rank")
    in_switch_efficiency_nvlink5: Ratio = Field(
        description="in-switch reduction on NVLink 5 (900 GB/s a GPU: Blackwell, NVL72), over switch_efficiency; 1 on NVLink 4,"
        " in between in proportion"
    )
    switch_transfer_efficiency: Ratio = Field(description="send/recv over NVSwitch")
    bridge_transfer_efficiency: Ratio = Field(description="send/recv over a bridged pair (timed to the last hand-over, so > 1)")
    direct_efficiency: Ratio = Field(description="achieved over raw rate of single direct NVLinks (cube mesh)")
    direct_step: Time = Field(description="ring step over direct links or PCIe")
    xgmi_efficiency: Ratio = Field(description="achieved over raw rate of xGMI links, rings")
    pcie_efficiency: Ratio = Field(description="achieved over raw PCIe rate, peer to peer through the host bridge")
    host_memory_efficiency: Ratio = Field(description="same, through host memory: devices on the host's own ports, pcie-host")
    rdma_efficiency: Ratio = Field(description="achieved over NIC line rate, whole nodes: infiniband, roce, gpudirect-tcpxo, unknown RDMA")
    efa_efficiency: Ratio = Field(description="same, EFA")
    ethernet_efficiency: Ratio = Field(description="same, TCP")
    rdma_fill: Time = Field(description="fill time per inter-node step, RDMA")
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
    group: Whole | None = Field(default=None, gt=0, description="nodes on a leaf switch of a fat tree, or in a group of a dragonfly")
    oversubscription: Finite | None = Field(
        default=None, ge=1, description="bandwidth of the ports of such a group over that out of it; 1 where absent"
    )
    bandwidth: Bandwidth | None = None
    latency: Time | None = None


class HostLink(FileModel):
    """The bus between a device and its host, over which devices without a direct link meet."""

    bandwidth: Bandwidth


class NetworkSpec(FileModel):
    """Two levels of network: inside a node (a package or a server) and between nodes; the host's bus beside them."""

    intra: NetworkLevel = NetworkLevel(topology="single")
    inter: NetworkLevel = NetworkLevel(topology="switch")
    host: HostLink
    parameters: FabricParameters
