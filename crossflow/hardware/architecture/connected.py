"""Whether anything connects the devices of a system, and what to name where nothing does."""

from __future__ import annotations

import functools

from crossflow.base import files
from crossflow.hardware.architecture.template import DatasheetSystem, SystemSpec

USUAL = ("dgx", "-node", "-pod", "-servers")  # in names of systems, the one that a maker sells or that most people have first


def unconnected(system: SystemSpec, devices: int) -> str | None:
    """What to do where nothing connects so many devices of a system, in a sentence; None where something does, or one is alone."""
    if not isinstance(system, DatasheetSystem) or devices == 1 or system.devices_per_node > 1:
        return None
    if system.network.inter.bandwidth is not None:
        return None
    of = systems_of(system.name)
    if not of and system.network.intra.bandwidth is not None:
        node = f"set system.devices_per_node={devices} for a node of so many"
        return f"nothing connects {devices:,} of them; {node}, or describe a cluster: crossflow init cluster"
    such = f" such as {', '.join(of[:4])}" if of else ""
    return f"nothing connects {devices:,} of them; name a system of it{such}, or describe your own: crossflow init cluster"


@functools.cache
def systems_of(device: str) -> tuple[str, ...]:
    """Systems of the catalogue that are made of a device, the most usual one first.

    >>> systems_of("h100-sxm")[0], systems_of("mi300x")[0], systems_of("tpu-v4"), systems_of("p4")
    ('dgx-h100', 'mi300x-node', ('tpu-v4-pod',), ())
    """
    known = files.catalogue("templates", "systems").items()
    of = sorted(name for name, path in known if files.read_yaml(path).data.get("device") == device)
    return tuple(sorted(of, key=lambda name: next((i for i, part in enumerate(USUAL) if part in name), len(USUAL))))
