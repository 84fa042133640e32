"""Collectives among the global ranks of a system, one at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.cost.network import Wires, counted
from crossflow.cost.profile import system_profile
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.mapping.wiring import LEVELS, topology_of
from crossflow.program.collectives import PRICED
from crossflow.program.groups import Group, Pair

ELEMENT = 4  # size of the element that a barrier reduces [B]
RankGroup = tuple[int, ...]
Times = tuple[float, float]  # time of a collective, and processor time of the host in it [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class SystemDelays:
    """Times of collectives among ranks that lie on a system, one a device, node after node; see `Wires`."""

    name: str
    wires: Wires
    devices: int

    @classmethod
    def of(cls, name: str, devices: int) -> SystemDelays:
        """A system by its name or file, with as many devices; CrossflowError where it does not hold them."""
        spec, document = resolve(Document(file="--system", data={"template": name, "devices": devices}))
        node = min(spec.devices_per_node, devices)
        for level, nodes in zip(LEVELS, (node, devices // node), strict=True):
            try:
                topology_of(spec.network, level, nodes)
            except CrossflowError as error:
                raise CrossflowError(f"{document.file}: {name} does not hold {devices} devices: {error}") from None
        profile = system_profile(spec, document)
        wires = Wires(network=spec.network, architecture=architecture(spec), node=node, profile=profile)
        return cls(name=spec.name, wires=wires, devices=devices)

    def time(self, op: str, size: float, ranks: RankGroup) -> Times:
        """Time of a call of `size` bytes among the global ranks of a group. The collectives of accelerators take no host time. [s]"""
        buffer = np.array([float(size if op != "barrier" else ELEMENT)])
        group = self._pair(ranks) if op in ("send", "recv") else self._group(ranks)
        return float(self.wires.time(PRICED.get(op, op), buffer, group)[0]), 0.0

    def crosses(self, ranks: RankGroup) -> bool:
        """Whether a group has ranks on several nodes."""
        return len({rank // self.wires.node for rank in ranks}) > 1

    def _group(self, ranks: RankGroup) -> Group:
        """Ranks as a group: as many on a node as on the fullest, and evenly apart, as far as such groups fill the system."""
        size, nodes = len(ranks), [rank // self.wires.node for rank in ranks]
        apart = max((ranks[-1] - ranks[0]) // (size - 1), 1)
        stride = next((one for one in range(apart, 0, -1) if self.devices % (one * size) == 0), 0)
        if not stride and not counted(self.wires.network):
            raise CrossflowError(f"{self.name}: groups of {size} ranks do not fill {self.devices} devices, on which their links depend")
        return Group(
            part=None, **_columns(size=size, per_node=max(map(nodes.count, set(nodes))), stride=stride, devices=self.devices, extent=size)
        )

    def _pair(self, ranks: RankGroup) -> Group:
        """Two ranks of the whole system, one of which sends."""
        first, last = min(ranks), max(ranks)
        size = {"size": 2, "per_node": 1 if self.crosses(ranks) else 2, "stride": 1, "devices": self.devices, "extent": self.devices}
        return Pair(part=None, **_columns(**size, first=first, last=last))


def _columns(**values: int) -> dict[str, Array]:
    return {name: np.array([float(value)]) for name, value in values.items()}
