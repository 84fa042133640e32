"""What layered models of a scenario run on: devices with their network, host and software."""

from __future__ import annotations

import functools
from dataclasses import replace

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.batch import Fleet
from crossflow.cost.machine import Machine
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.template import SystemSpec


def machine(scenario: Scenario, device: Architecture, system: SystemSpec | None = None) -> Machine:
    """What a layered model of a scenario runs on, with a device and, where it varies between points, a system."""
    found = scenario.system if system is None else system
    if device is scenario.architecture and found is scenario.system:
        return own_machine(scenario)
    return _machine(scenario, device, found)


@functools.lru_cache(maxsize=64)
def own_machine(scenario: Scenario) -> Machine:
    """The machine of a scenario as it stands, whose paths of collectives are worth keeping."""
    return _machine(scenario, scenario.architecture, scenario.system)


def pool_machine(scenario: Scenario, device: Architecture, pool: SystemSpec, *, least: bool = False) -> Machine:
    """What a transformer of a scenario runs on in a pool of its system; `least` as of `crossflow.evaluate`."""
    return replace(_machine(scenario, device, pool), profile=None, least=least)  # a profile is of the devices of the system


def place_of_pool(scenario: Scenario, name: str, own: Machine) -> tuple[Machine, Fleet]:
    """Devices of a pool of the system; the system's own where there is no such pool."""
    pool = scenario.system.pooled.get(name)
    if pool is None:
        return own, Fleet(system=scenario.system, device=scenario.architecture)
    device = scenario.pool_architectures[name]
    return pool_machine(scenario, device, pool), Fleet(pool=name, system=pool, device=device)


def _machine(scenario: Scenario, device: Architecture, found: SystemSpec) -> Machine:
    assert scenario.stack is not None  # layered models have one
    # What a driver and its libraries hold lies on the host where the device's memory is on the chip.
    stack = scenario.stack.on_host if device.on_chip_only else scenario.stack
    return Machine(
        architecture=device,
        network=found.network,
        node=found.devices_per_node,
        stack=stack,
        host=found.host,
        profile=scenario.profile,
    )
