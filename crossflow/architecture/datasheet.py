"""Architecture of a device read off its datasheet; its energies come from the technology that it is made of."""

from __future__ import annotations

import numpy as np

from crossflow.architecture.model import Architecture, Level, Port
from crossflow.architecture.network import NetworkLevel
from crossflow.architecture.template import DatasheetLevel, DatasheetSystem
from crossflow.arrays import Array
from crossflow.technology import Choice, Compute, TechLibrary

ONE, ZERO, UNLIMITED = np.ones(1), np.zeros(1), np.array([np.inf])
REFERENCE_UNIT = "volta-tensor-core"  # whose energy per operation, scaled to a device's node, stands for its own


def from_datasheet(system: DatasheetSystem, library: TechLibrary) -> Architecture:
    """Architecture of a published device. A level without a published bandwidth does not limit."""
    technology, energy = system.technology, system.energy
    memory = library.component("memory", technology.memory)
    link = library.component("link", technology.link)
    unit: Compute = library.scale(library.component("compute", REFERENCE_UNIT), Choice.of((technology.logic,)))
    per_flop = unit.nominal_power * (1 - unit.leakage) / (unit.nominal_flop_rate * unit.nominal_frequency)
    levels = [_level(name, level, system, library) for name, level in system.levels.items() if name != "memory"]
    published = system.levels["memory"]
    assert published.bandwidth is not None  # the model has checked it
    main = Level(
        name="memory",
        scope="global",
        capacity=published.capacity,
        instances=ONE,
        bandwidth=published.bandwidth * system.memory_utilisation,
        latency=published.latency if published.latency is not None else memory.access_latency,
        energy=energy.memory if energy.memory is not None else memory.dynamic_energy_per_bit,
    )
    idle = system.power.idle if system.power.idle is not None else ZERO
    fastest = next(
        (system.throughput[dtype] for dtype in ("fp16", "bf16") if dtype in system.throughput), next(iter(system.throughput.values()))
    )
    side = np.sqrt(fastest / (2.0 * system.units * system.clock))  # multiply-accumulates of one unit, as a square
    return Architecture(
        name=system.name,
        throughput=system.throughput,
        vector_throughput=system.vector_throughput,
        mcus=system.units,
        units=system.units,
        array_height=side,
        array_width=side,
        frequency=system.clock,
        voltage=None,
        levels=(*levels, main),
        intra=_port(system.network.intra, link.latency, link.nominal_energy_per_bit if energy.intra_link is None else energy.intra_link),
        inter=_port(system.network.inter, link.latency, link.nominal_energy_per_bit if energy.inter_link is None else energy.inter_link),
        energy_per_flop=energy.flop if energy.flop is not None else per_flop,
        static_power=idle,
        maximum_power=system.power.tdp,
        execution=system.execution,
    )


def _level(name: str, level: DatasheetLevel, system: DatasheetSystem, library: TechLibrary) -> Level:
    shared = level.scope == "device"
    bank = library.on_chip.get(name)
    energy = ZERO if bank is None else library.scale(bank, Choice.of((system.technology.logic,))).dynamic_energy_per_bit
    return Level(
        name=name,
        scope="global" if shared else "bundle",
        capacity=level.capacity,
        instances=ONE if shared else system.units,
        bandwidth=UNLIMITED if level.bandwidth is None else level.bandwidth,
        latency=ZERO if level.latency is None else level.latency,
        energy=energy,
    )


def _port(level: NetworkLevel, latency: Array, energy: Array) -> Port | None:
    if level.bandwidth is None:
        return None
    return Port(bandwidth=level.bandwidth, latency=latency if level.latency is None else level.latency, energy=energy)
