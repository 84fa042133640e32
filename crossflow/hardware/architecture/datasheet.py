"""Architecture of a device read off its datasheet; its energies come from the technology that it is made of."""

from __future__ import annotations

import functools

import numpy as np

from crossflow.base.arrays import Array, Mask, divide
from crossflow.hardware.architecture.model import Architecture, Level, Port, SecondMemory
from crossflow.hardware.architecture.network import NetworkLevel
from crossflow.hardware.architecture.template import DatasheetLevel, DatasheetSystem
from crossflow.hardware.architecture.voltage import operate
from crossflow.hardware.technology.components import Compute, OffChip
from crossflow.hardware.technology.library import Choice, TechLibrary

TINY = 1e-30  # power that leaves any voltage free; of none `operate` takes the lowest [W]
ONE, ZERO, UNLIMITED = np.ones(1), np.zeros(1), np.array([np.inf])
REFERENCE_UNIT = "volta-tensor-core"  # whose energy per operation, scaled to a device's node, stands for its own
OF_DATASHEETS = "only energy and, at the power limit, the clock"  # what another technology changes of a published device


def from_datasheet(system: DatasheetSystem, library: TechLibrary) -> Architecture:
    """Architecture of a published device. A level without a published bandwidth does not limit."""
    technology, energy = system.technology, system.energy
    link = library.component("link", technology.link)
    unit: Compute = library.scale(library.component("compute", REFERENCE_UNIT), Choice.of((technology.logic,)))
    fastest = functools.reduce(np.maximum, (system.throughput[dtype] for dtype in sizing_types(system)))
    limit, voltage = sustained(system, unit, fastest)
    nominal = fastest * energy_per_flop(system, unit)  # by long products of any type at the boost clock [W]
    working = None if system.execution.chip_power is None else system.execution.working_share
    # Where units' own power is known, kernels draw what they do at the boost clock, as far as the limit lets them (`powered`).
    full = nominal * voltage**2 if working is None else nominal * (1.0 - working)
    main = system.main[0]
    levels = [_level(name, level, system, library) for name, level in system.levels.items() if name != main]
    side = np.sqrt(fastest / (2.0 * system.units * system.clock))  # multiply-accumulates of one unit, as a square
    return Architecture(
        name=system.name,
        generation=system.generation,
        throughput=system.product_rates,
        vector_throughput=system.vector_throughput,
        sparse_throughput=system.sparse_rates,
        # A unit that leaves out half of the work is as busy as with all of it, and draws as much.
        sparse_energy={dtype: divide(full, rate) for dtype, rate in system.sparse_rates.items()},
        mcus=system.units,
        units=system.units,
        array_height=side,
        array_width=side,
        frequency=system.clock,
        held_to=system.held_to,
        exponentials=UNLIMITED if system.exponentials is None else system.exponentials,
        power_clock=limit,
        voltage=None,
        levels=(*levels, _main_memory(system, library)),
        second=_second_memory(system),
        intra=_port(
            system.network.intra,
            link.latency,
            link.nominal_energy_per_bit if energy.intra_link is None else energy.intra_link,
            system.peers,
        ),
        inter=_port(system.network.inter, link.latency, link.nominal_energy_per_bit if energy.inter_link is None else energy.inter_link),
        energy_per_flop={dtype: divide(full, rate) for dtype, rate in system.product_rates.items()},
        static_power=at_rest(system) if system.power.active is None else system.power.active,
        maximum_power=system.power.tdp,
        working_power=None if working is None else nominal * working,
        execution=system.execution,
        problems=_problems(system),
    )


def _main_memory(system: DatasheetSystem, library: TechLibrary) -> Level:
    """Main memory as published: beside the chip, or the last on-chip level where there is none beside it."""
    name, published = system.main
    own = _level(name, published, system, library) if name != "memory" else None
    data = ONE if published.inline_ecc is None else 1.0 - published.inline_ecc
    if own is not None:
        latency, energy = own.latency, own.energy
    else:
        memory: OffChip = library.component("memory", system.technology.memory)
        latency, energy = memory.access_latency, memory.access_energy
    assert published.bandwidth is not None  # the model has checked it
    return Level(
        name=name,
        scope="global" if own is None else own.scope,
        capacity=published.capacity * data,
        instances=ONE if own is None else own.instances,
        bandwidth=published.bandwidth * data * system.memory_utilisation,
        latency=latency if published.latency is None else published.latency,
        energy=energy if system.energy.memory is None else system.energy.memory,
    )


def _second_memory(system: DatasheetSystem) -> SecondMemory | None:
    """The second memory as published."""
    figures = system.second_memory
    if figures is None:
        return None
    writes = figures.bandwidth if figures.write_bandwidth is None else figures.write_bandwidth
    return SecondMemory(
        capacity=figures.capacity,
        bandwidth=figures.bandwidth * figures.utilisation,
        write_bandwidth=writes * figures.utilisation,
        latency=figures.latency,
        energy=figures.energy,
        write_energy=figures.energy if figures.write_energy is None else figures.write_energy,
        page=figures.page,
        endurance=UNLIMITED if figures.endurance is None else figures.endurance,
        staged=ONE * (figures.way == "staged"),
    )


def _problems(system: DatasheetSystem) -> tuple[tuple[Mask, str], ...]:
    """Design points at which the device cannot run."""
    short = np.asarray(system.power.tdp <= at_rest(system))
    return ((short, "the power limit leaves nothing beside what the device draws at rest"),) if short.any() else ()


def sizing_types(system: DatasheetSystem) -> tuple[str, ...]:
    """Data types whose highest peak rate stands for the size of the matrix units: those of 16 bits, or what there is."""
    return tuple(dtype for dtype in ("fp16", "bf16") if dtype in system.throughput) or tuple(system.throughput)[:1]


def at_rest(system: DatasheetSystem) -> Array:
    """Power drawn whatever is computed; none where it is not known. [W]"""
    return ZERO if system.power.idle is None else system.power.idle


def energy_per_flop(system: DatasheetSystem, unit: Compute) -> Array:
    """Energy of a 16-bit operation at the boost clock: of the matrix unit alone, or of the chip where its share is known. [J/flop]"""
    alone = unit.nominal_power * (1 - unit.leakage) / (unit.nominal_flop_rate * unit.nominal_frequency)
    own = alone if system.energy.flop is None else system.energy.flop
    chip = system.execution.chip_power
    return np.asarray(own if chip is None else own * chip)


def sustained(system: DatasheetSystem, unit: Compute, fastest: Array) -> tuple[Array, Array]:
    """Clock at which long matrix products draw the power limit, and the voltage that they run at, over those of the boost clock. [1], [1]

    The generator's law of voltage, frequency and power [1]_ read the other way round: the boost clock is the nominal point,
    at which the chip would draw ``fastest x energy_per_flop`` beside what it draws at rest, and the TDP is the budget. The
    clock is not cut off at the boost clock (the voltage is), so that a limit far above what the chip draws costs nothing. A
    device whose chip power is not known has no limit.

    References
    ----------
    .. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.4.1.
    """
    if system.execution.chip_power is None:
        return UNLIMITED, ONE
    point = operate(
        np.maximum(system.power.tdp - at_rest(system), 0.0),
        np.maximum(fastest * energy_per_flop(system, unit), TINY),
        nominal=unit.nominal_voltage,
        threshold=unit.threshold_voltage,
        minimum=np.minimum(unit.minimum_voltage, unit.nominal_voltage),
        maximum=UNLIMITED,
        leakage=ZERO,
        divisible=False,
    )
    return point.frequency, np.minimum(point.voltage / unit.nominal_voltage, 1.0)


def _level(name: str, level: DatasheetLevel, system: DatasheetSystem, library: TechLibrary) -> Level:
    shared = level.scope == "device"
    # What the whole chip switches for an operation has its caches' share in it.
    bank = library.on_chip.get(name) if system.execution.chip_power is None else None
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


def _port(level: NetworkLevel, latency: Array, energy: Array, peers: int | None = None) -> Port | None:
    if level.bandwidth is None:
        return None
    given = level.latency
    own, known = (latency, None) if given is None else (given, latency)
    return Port(bandwidth=level.bandwidth, latency=own, energy=energy, known=known, peers=peers)


def of_a_datasheet(path: str, what: str) -> str:
    """What is to be known of another technology of a device whose figures are published."""
    generated = "for a device that follows its technology take a generated one, such as reference-training"
    return f"{path} changes {what} here: rates and bandwidths are those of the datasheet; {generated}"
