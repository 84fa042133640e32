"""Quantities around a device that lie far outside those of devices with measured runs: links and the memory of the host."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from crossflow.answers.scenario import Scenario
from crossflow.base import files
from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.paths import value_at
from crossflow.base.units import parse, show
from crossflow.hardware.architecture.template import DatasheetSystem
from crossflow.parallel.strategy.plan import Plan

FAR = 2.0  # below the least over this, and above the greatest times this, a quantity is far outside; judgement, the same for all
FARTHER = 10.0  # and by this factor so far that measured errors say nothing; judgement, the same for all
FULL = 3  # level of ZeRO from which weights are gathered from other replicas
# What can be changed around a device, with its unit. Of the device itself every change counts.
AROUND_IT: Mapping[str, str] = {
    "network.intra.bandwidth": "B/s", "network.inter.bandwidth": "B/s", "network.host.bandwidth": "B/s", "host.bandwidth": "B/s",
    "host.capacity": "B",
}  # fmt: skip
LATENCIES = ("intra", "inter")  # their range is what the measured steps of the fabrics hold


class Distance(NamedTuple):
    """Why a point is far from what was measured, in a sentence, and whether it is so far that no error is known; "" where it is near."""

    sentence: str = ""
    bare: bool = False


def far_off(
    scenario: Scenario, quantities: Mapping[str, Array] | None = None, meshes: Index | None = None
) -> tuple[tuple[Distance, ...], Index]:
    """Reasons why points are far from what was measured, the first of them none; and which of them each point has, shape (n,).

    quantities : values of the points by path; of other paths the scenario's own hold.
    meshes : devices of a node, and nodes, over which messages of each point go, shape (n, 2); those of the scenario, as the only point,
        where absent.
    """
    meshes = np.array([spoken_over(scenario, scenario.strategy, scenario.nodes)]) if meshes is None else meshes
    n, reasons, which = len(meshes), [Distance()], np.zeros(len(meshes), dtype=int)
    if not isinstance(scenario.system, DatasheetSystem):
        return tuple(reasons), which
    varied = {path.removeprefix("system."): values for path, values in (quantities or {}).items() if path.startswith("system.")}
    given = scenario.document.data["system"]
    named = given.get("template")
    shipped = isinstance(named, str) and named in files.catalogue("templates", "systems")  # what a user's own file says is looked at too
    for path in (*AROUND_IT, *(f"network.{level}.latency" for level in LATENCIES)):
        keys = path.split(".")
        known = shipped and files.held(given, keys) is None
        values = varied[path] if path in varied else None if known else value_at(scenario.system, keys)
        span = None if values is None else _span(scenario, path)
        if span is None:
            continue
        least, greatest = span
        held = np.broadcast_to(np.asarray(values, dtype=float).ravel(), (n,))
        for bare, beyond in ((True, FARTHER), (False, FAR)):
            outside = _takes_part(path, meshes) & ((held < least / beyond) | (held > greatest * beyond))
            fresh = outside & ~np.array([one.bare for one in reasons])[which] & (bare | (which == 0))
            if fresh.any():
                which = np.where(fresh, len(reasons), which)
                reasons.append(Distance(_sentence(path, least, greatest, bare=bare), bare))
    return tuple(reasons), which


def spoken_over(scenario: Scenario, strategy: object, nodes: tuple[int, int]) -> tuple[int, int]:
    """Devices of a node, and nodes, over which messages go: replicas of a service send each other nothing, so those of one of them."""
    served = scenario.workload.serves and not scenario.system.pools
    if not (served and isinstance(strategy, Plan)) or strategy.ep > 1 or strategy.zero >= FULL:
        return nodes
    ranks = strategy.devices // strategy.dp
    return (ranks, 1) if ranks <= nodes[0] and nodes[0] % ranks == 0 else nodes


def _takes_part(path: str, meshes: Index) -> Mask:
    """Whether a link carries anything: none does in a node of one device, or between nodes where there is one, shape (n,)."""
    level = {"network.intra": 0, "network.inter": 1}.get(path.rpartition(".")[0])
    return np.ones(len(meshes), dtype=bool) if level is None else np.asarray(meshes[:, level] > 1)


def _span(scenario: Scenario, path: str) -> tuple[float, float] | None:
    """The least and the greatest value of a quantity where runs were measured; None where none is known."""
    if path in AROUND_IT:
        return _spans().get(path)
    port = getattr(scenario.architecture, path.split(".")[1])
    if port is None:
        return None
    held = np.ravel(port.latency if port.known is None else port.known)
    return float(held.min()), float(held.max())


@functools.cache
def _spans() -> Mapping[str, tuple[float, float]]:
    """Least and greatest value of each quantity among the systems of the package whose device has measured runs."""
    devices = {name for name, path in files.catalogue("templates", "devices").items() if files.read_yaml(path).data.get("measured")}
    found: dict[str, list[float]] = {}
    for path in files.catalogue("templates", "systems").values():
        data = files.read_yaml(path).data
        if data.get("device") not in devices:
            continue
        for name, unit in AROUND_IT.items():
            value = files.held(data, name.split("."))
            value = value.get("value") if isinstance(value, Mapping) else value
            if value is not None:
                found.setdefault(name, []).append(parse(value, unit))
    return {name: (min(values), max(values)) for name, values in found.items()}


def _sentence(path: str, least: float, greatest: float, *, bare: bool) -> str:
    unit = AROUND_IT.get(path, "s")
    held = show(least, unit) if least == greatest else f"{show(least, unit)} to {show(greatest, unit)}"
    known = " that no error is known" if bare else ""
    return f"the value of system.{path} is {'so far' if bare else 'far'} outside the {held} of measured systems{known}"
