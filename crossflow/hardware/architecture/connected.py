"""Whether anything connects the devices of a system, and what to name where nothing does."""

from __future__ import annotations

from crossflow.base import files
from crossflow.hardware.architecture.template import DatasheetSystem, SystemSpec


def unconnected(system: SystemSpec, devices: int) -> str | None:
    """What to do where nothing connects so many devices of a system, in a sentence; None where something does, or one is alone."""
    if not isinstance(system, DatasheetSystem) or devices == 1 or system.devices_per_node > 1:
        return None
    if system.network.inter.bandwidth is not None:
        return None
    known = files.catalogue("templates", "systems").items()
    of = [name for name, path in known if files.read_yaml(path).data.get("device") == system.name]
    of.sort(key=lambda name: not name.startswith("dgx"))
    if not of and system.network.intra.bandwidth is not None:
        node = f"set system.devices_per_node={devices} for a node of so many"
        return f"nothing connects {devices:,} of them; {node}, or describe a cluster: crossflow init cluster"
    such = f" such as {', '.join(of[:4])}" if of else ""
    return f"nothing connects {devices:,} of them; name a system of it{such}, or describe your own: crossflow init cluster"
