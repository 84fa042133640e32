"""Which quantities of a system can be fitted, and the ranges that physics leaves them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.paths import quantities, with_quantities
from crossflow.hardware.architecture.template import SystemSpec

FABRIC, DEVICE = "fabric", "device"
# Patterns of paths, the first that matches: what they belong to, and bounds; of `levels` over what the template has.
SHARE, TIME, WIDE = (0.01, 1.0), (1e-8, 1e-2), (0.1, 3.0)
BOUNDS: Mapping[str, tuple[str, tuple[float, float]]] = {
    "network.parameters.pcie5_step_ratio": (FABRIC, (0.02, 2.0)),
    "network.parameters.*_copy": (FABRIC, (1e-3, 3.0)),
    "network.parameters.bridge_transfer_efficiency": (FABRIC, (0.01, 2.0)),  # timed to the last hand-over, may exceed 1
    "network.parameters.staged_duplex": (FABRIC, (0.1, 2.0)),
    "network.parameters.send_buffer_rate": (FABRIC, (1e8, 1e12)),
    "network.parameters.send_buffer_size": (FABRIC, (2.0**12, 2.0**30)),
    "network.parameters.*_efficiency*": (FABRIC, SHARE),
    "network.parameters.*_share": (FABRIC, SHARE),
    "network.parameters.launch*": (FABRIC, TIME),
    "network.parameters.*_launch": (FABRIC, TIME),
    "network.parameters.*_hop": (FABRIC, TIME),
    "network.parameters.*_step": (FABRIC, TIME),
    "network.parameters.*_fill": (FABRIC, TIME),
    "execution.kernel_launch": (DEVICE, TIME),
    "execution.*_utilisation": (DEVICE, SHARE),
    "execution.chip_power": (DEVICE, (0.3, 10.0)),
    "execution.tiles.fill": (DEVICE, TIME),
    "execution.tiles.split": (DEVICE, TIME),
    "execution.tiles.cache_bytes_per_flop": (DEVICE, (5e-4, 0.5)),
    "memory_utilisation": (DEVICE, SHARE),
    "levels.*.utilisation": (DEVICE, SHARE),
    "levels.*.bandwidth": (DEVICE, WIDE),
}


@dataclass(frozen=True, kw_only=True)
class FitParameter:
    """A quantity that may be fitted."""

    path: tuple[str, ...]  # where it stands in the system
    unit: str  # SI unit
    value: float  # as the template has it
    low: float  # least that it may be
    high: float  # most

    @property
    def name(self) -> str:
        """Its path as people write it."""
        return ".".join(self.path)


def parameters(spec: SystemSpec, part: str) -> Iterator[FitParameter]:
    """Quantities of a system's fabric or device that may be fitted."""
    for path, quantity, value in quantities(spec):
        name = ".".join(path)
        pattern = next((one for one in BOUNDS if fnmatch.fnmatchcase(name, one)), None)
        if pattern is None or BOUNDS[pattern][0] != part:
            continue
        if path[0] == "levels" and (path[1] == "memory" or spec.execution.tiles is not None):  # which have parameters of their own
            continue
        low, high = BOUNDS[pattern][1]
        scale = float(value[0]) if path[0] == "levels" and path[-1] == "bandwidth" else 1.0
        yield FitParameter(path=path, unit=quantity.unit, value=float(value[0]), low=low * scale, high=high * scale)


def with_values(spec: SystemSpec, values: Mapping[tuple[str, ...], float | Array]) -> SystemSpec:
    """The system with other values of some of its quantities, one each or one a design point."""
    found: SystemSpec = with_quantities(spec, {path: np.atleast_1d(value) for path, value in values.items()})
    return found
