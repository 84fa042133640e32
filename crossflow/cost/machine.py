"""What a step runs on: device, network and software, with what is kept of the prices of its collectives."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.cost.network import Wires
from crossflow.cost.profile import Profile
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.network import NetworkSpec
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.hardware.architecture.template import Host


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a step runs on: device, network, devices of a node, software; the node's host and measured events where they are known.

    With `least` every kernel takes its lower bound, and a step is not longer than any that runs there. With `apart` each stream of messages
    of a step has links of its own.
    """

    architecture: Architecture
    network: NetworkSpec
    node: int
    stack: SoftwareStack
    host: Host | None = None
    profile: Profile | None = None
    least: bool = False
    apart: bool = False

    def host_rate(self, devices: Array) -> Array:
        """Rate of copies between each of so many devices and its host: of its bus, and of its share of the host's memory. [B/s]"""
        bus = self.network.host.bandwidth * self.network.parameters.pcie_efficiency
        return np.asarray(bus if self.host is None else np.minimum(bus, self.host.bandwidth / np.minimum(self.node, devices)))

    @functools.cached_property
    def wires(self) -> Wires:
        """Collectives on its network; the paths that they take are worked out once."""
        own = self.stack.peer_all_reduce
        return Wires(network=self.network, architecture=self.architecture, node=self.node, profile=self.profile, all_reduce=own)
