"""Micro-architecture generator engine (AGE): budgets, technology and a template become an architecture [1]_.

Each component gets its share of area, power and perimeter and makes the most of it; every function works on all design
points at once, arrays of shape (n,) or (1,).

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.architecture.model import Architecture, BudgetUse, Level, Limit, Port
from crossflow.architecture.packaging import packaged, room
from crossflow.architecture.template import Budgets, BudgetShares, GeneratedSystem
from crossflow.architecture.voltage import OperatingPoint, operate
from crossflow.arrays import Array, Mask, divide
from crossflow.files import FileModel
from crossflow.technology.components import Compute, Link, LogicNode, OffChip, OnChip, Substrate
from crossflow.technology.library import Choice, TechLibrary, disordered, gather

NOTHING = np.zeros(1)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The components of one design, at its logic node, with the template's and the scenario's changes."""

    compute: Compute
    on_chip: Mapping[str, OnChip]
    memory: OffChip
    intra_link: Link
    inter_link: Link
    die_link: Link
    substrate: Substrate
    node: LogicNode


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """What one component may use, or does use: area [m2], power [W] and die edge [m]; shape (n,)."""

    area: Array
    power: Array
    perimeter: Array


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The compute units that fit and run; `built` counts all bundles on the die, those left dark too."""

    mcus: Array
    bundles: Array
    built: Array
    peak: Array
    frequency: Array
    point: OperatingPoint
    leakage_power: Array
    used: Allotment
    limit: Limit


@dataclass(frozen=True, kw_only=True)
class BuiltMemory:
    """One level of memory as built, on the chip or off it."""

    level: Level
    static_power: Array
    used: Allotment
    limit: Limit


@dataclass(frozen=True, kw_only=True)
class Links:
    """The links of one network level as built."""

    port: Port
    lanes: Array
    used: Allotment
    limit: Limit


def generate(system: GeneratedSystem, library: TechLibrary, choices: Mapping[str, Choice] | None = None) -> Architecture:
    """Generate the architecture of every design point.

    Parameters
    ----------
    system : the template with the scenario's changes; its quantities may have shape (n,).
    library : technology library to choose from.
    choices : for roles of `system.technology` that differ between points, the entry chosen at each of the n points.
    """
    parts = choose_parts(system, library, choices or {})
    budgets = system.budgets
    given = {name: allot(budgets, name) for name in ("compute", *system.levels, "memory", "intra_link", "inter_link")}
    cores = build_cores(parts.compute, given["compute"], system.mcus_per_bundle)
    caches = {
        name: build_on_chip(name, spec.scope, spec.utilisation, parts.on_chip[name], given[name], cores, system.mcus_per_bundle)
        for name, spec in system.levels.items()
    }
    memory = build_memory(parts.memory, budgets, given["memory"], system.memory_utilisation)
    intra = build_links("intra_link", parts.intra_link, given["intra_link"], parts.substrate.links_per_mm)
    inter = build_links("inter_link", parts.inter_link, given["inter_link"], None)
    package = packaged(
        parts,
        budgets,
        system.devices_per_node,
        levels=(*(cache.level for cache in caches.values()), memory.level),
        stacks=memory.level.capacity / parts.memory.device_capacity,
        memory_power=memory.used.power,
        intra_lanes=intra.lanes,
        inter_lanes=inter.lanes,
    )
    built: dict[str, Cores | BuiltMemory | Links] = {"compute": cores, **caches, "memory": memory, "intra_link": intra, "inter_link": inter}
    return Architecture(
        name=system.name,
        throughput={dtype: cores.peak * rate for dtype, rate in system.rates.items()},
        vector_throughput={dtype: cores.peak * rate for dtype, rate in system.vector_rates.items()},
        mcus=cores.mcus,
        units=cores.bundles,
        array_height=parts.compute.array_height,
        array_width=parts.compute.array_width,
        frequency=cores.frequency,
        voltage=cores.point.voltage,
        levels=package.levels,
        intra=intra.port if np.any(intra.port.bandwidth > 0) else None,
        inter=inter.port if np.any(inter.port.bandwidth > 0) else None,
        energy_per_flop={
            dtype: divide((cores.used.power - cores.leakage_power) / np.maximum(cores.peak, 1.0), rate)
            for dtype, rate in system.rates.items()
        },
        static_power=np.asarray(cores.leakage_power + memory.static_power + sum((c.static_power for c in caches.values()), NOTHING)),
        maximum_power=budgets.power,
        execution=system.execution,
        dataflow=system.dataflow,
        usage=_usage(given, {name: part.used for name, part in built.items()}),
        limits=tuple(part.limit for part in built.values()),
        problems=(*_problems(system, parts, cores, caches, memory), *package.problems),
        cost=package.cost,
        carbon=package.carbon,
    )


# ------------------------------------------------------------------------------------------ technology and budgets


def choose_parts(system: GeneratedSystem, library: TechLibrary, choices: Mapping[str, Choice]) -> Parts:
    """Gather the components that each design point names, changed as the template says, at the point's logic node."""
    choice = {role: choices.get(role) or Choice.of((name,)) for role, name in system.technology.model_dump().items()}
    changes = system.components
    # Each unit is scaled from its own node, and only then do the points choose among them.
    units = [
        library.scale(_changed(library.component("compute", name), changes.compute), choice["logic"]) for name in choice["compute"].names
    ]
    on_chip = {
        name: library.scale(_changed(library.component("on_chip", spec.component), changes.on_chip.get(name)), choice["logic"])
        for name, spec in system.levels.items()
    }
    return Parts(
        compute=gather(units, choice["compute"].index),
        on_chip=on_chip,
        memory=_changed(library.gather("memory", choice["memory"]), changes.memory),
        intra_link=_changed(library.gather("link", choice["intra_link"]), changes.intra_link),
        inter_link=_changed(library.gather("link", choice["inter_link"]), changes.inter_link),
        die_link=library.gather("link", choice["die_link"]),
        substrate=library.gather("substrate", choice["substrate"]),
        node=library.gather("logic", choice["logic"]),
    )


def _changed(component: Any, changes: FileModel | None) -> Any:
    """Component with the figures that a template or scenario replaces."""
    if changes is None:
        return component
    given = {name: getattr(changes, name) for name in type(changes).model_fields if getattr(changes, name) is not None}
    return component.model_copy(update=given)


def perimeter(budgets: Budgets) -> Array:
    """Edge of the compute die, taken as a square. [m]"""
    return np.asarray(4.0 * np.sqrt(budgets.chip_area))


def allot(budgets: Budgets, component: str) -> Allotment:
    """Area, power and die edge that the breakdown gives to a component (Fig. 4); what is not named gets nothing."""
    return Allotment(
        area=_share(budgets.area, component) * budgets.chip_area,
        power=_share(budgets.power_shares, component) * budgets.power,
        perimeter=_share(budgets.perimeter, component) * perimeter(budgets),
    )


def _share(shares: BudgetShares, component: str) -> Array:
    value = shares.on_chip.get(component, getattr(shares, component, None))
    return NOTHING if value is None else value


def whole(value: Array) -> Array:
    """Largest whole number of things that fit; a ratio that is whole but for rounding counts as whole."""
    return np.asarray(np.floor(np.maximum(value, 0.0) * (1.0 + 1e-12) + 1e-9))


# ------------------------------------------------------------------------------------------ components


def build_cores(compute: Compute, given: Allotment, mcus_per_bundle: Array) -> Cores:
    """As many whole bundles of MCUs as the area holds, at the voltage that the power allows (Sec. 4.4.1, Eq. 1).

    Where the power does not carry all of them at the minimum voltage, bundles are left dark.
    """
    bundles = whole(whole(given.area / compute.nominal_area) / mcus_per_bundle)
    fitting = bundles * mcus_per_bundle
    point = _operated(compute, given.power, fitting * compute.nominal_power, leakage=compute.leakage, divisible=True)
    running = whole(bundles * point.active)
    power = point.power * running / np.maximum(bundles * point.active, 1e-300)
    mcus, frequency = running * mcus_per_bundle, compute.nominal_frequency * point.frequency
    leakage = compute.leakage * mcus * compute.nominal_power * point.voltage / compute.nominal_voltage
    return Cores(
        mcus=mcus,
        bundles=running,
        built=bundles,
        peak=mcus * compute.nominal_flop_rate * frequency,
        frequency=frequency,
        point=point,
        leakage_power=leakage,
        used=Allotment(area=fitting * compute.nominal_area, power=power, perimeter=NOTHING),
        limit=Limit(
            component="compute",
            names=("area and power", "power: units left dark at the minimum voltage", "area: the maximum voltage is reached"),
            code=np.where(point.at_minimum, 1, np.where(point.at_maximum, 2, 0)),
        ),
    )


def build_on_chip(
    name: str, scope: str, utilisation: Array, bank: OnChip, given: Allotment, cores: Cores, mcus_per_bundle: Array
) -> BuiltMemory:
    """Banks and the crossbar to the units in scope share the area; what static power leaves feeds accesses (Eq. 2, 3).

    Every bank has a crosspoint to every unit in its scope, so crossbar area and power grow with banks x ports
    (Sec. 4.4.2), the ports of bundles left dark among them. The number of banks that fit has a closed form, where the
    paper iterates.
    """
    instances, ports = {
        "mcu": (cores.mcus, np.ones(1)),
        "bundle": (cores.bundles, mcus_per_bundle),
        "global": (np.ones(1), cores.built),
    }[scope]
    bank_area = bank.area_per_bit * bank.bank_capacity / (1.0 - bank.area_overhead) + ports * bank.controller_area
    banks = whole(given.area / bank_area)
    total = banks * bank.bank_capacity
    static = bank.static_power_per_bit * total + banks * ports * bank.controller_power  # Eq. 2 and the crossbar
    left = np.maximum(given.power - static, 0.0)
    bandwidth = np.where(banks > 0, left / bank.dynamic_energy_per_bit, 0.0)  # Eq. 3
    level = Level(
        name=name,
        scope=scope,
        capacity=total / np.maximum(instances, 1.0),
        instances=instances,
        bandwidth=bandwidth * utilisation,
        latency=bank.latency,
        energy=bank.dynamic_energy_per_bit,
    )
    power = np.where(banks > 0, np.minimum(given.power, static + left), 0.0)
    return BuiltMemory(
        level=level,
        static_power=np.minimum(static, given.power),
        used=Allotment(area=banks * bank_area, power=power, perimeter=NOTHING),
        limit=Limit(
            component=name,
            names=("capacity by area, bandwidth by power", "static power takes the whole share"),
            code=np.where(static >= given.power, 1, 0),
        ),
    )


def build_memory(memory: OffChip, budgets: Budgets, given: Allotment, utilisation: Array) -> BuiltMemory:
    """As many devices as package, controllers and die edge allow (Eq. 4), their pins as fast as the power allows."""
    fits = np.stack(
        np.broadcast_arrays(
            room(memory, budgets),
            given.area / memory.controller_area,
            given.perimeter * memory.links_per_mm / memory.links_per_device,
        )
    )
    devices = whole(fits.min(axis=0))
    capacity, pins = devices * memory.device_capacity, devices * memory.links_per_device
    static = np.minimum(memory.static_power_per_bit * capacity, given.power)
    peak = pins * memory.nominal_frequency / 8.0
    point = _operated(memory, given.power - static, peak * memory.access_energy)
    level = Level(
        name="memory",
        scope="global",
        capacity=capacity,
        instances=np.ones(1),
        bandwidth=peak * point.frequency * utilisation,
        latency=memory.access_latency,
        energy=memory.access_energy * (point.voltage / memory.nominal_voltage) ** 2,
    )
    used = Allotment(
        area=devices * memory.controller_area,
        power=static + point.power,
        perimeter=pins / memory.links_per_mm,
    )
    names = ("package area", "controller area", "perimeter")
    limits = (*names, *(f"{name}; power slows its pins" for name in names))
    slowed = 3 * ((point.frequency < 1.0 - 1e-9) & (devices > 0))
    limit = Limit(component="memory", names=limits, code=fits.argmin(axis=0) + slowed)
    return BuiltMemory(level=level, static_power=static, used=used, limit=limit)


def build_links(component: str, link: Link, given: Allotment, wiring: Array | None) -> Links:
    """As many lanes as area, die edge and the standard's port allow, as fast as the power allows (Sec. 4.4.4)."""
    density = link.links_per_mm if wiring is None else np.minimum(link.links_per_mm, wiring)
    port = np.array([np.inf]) if link.maximum_links is None else link.maximum_links
    fits = np.stack(np.broadcast_arrays(given.area / link.area_per_link, given.perimeter * density, port))
    lanes = whole(fits.min(axis=0))
    peak = lanes * link.nominal_frequency / 8.0
    point = _operated(link, given.power, peak * link.nominal_energy_per_bit)
    names = ("area", "perimeter", "the standard's port")
    limits = (*names, *(f"{name}; power slows its lanes" for name in names))
    return Links(
        port=Port(
            bandwidth=peak * point.frequency,
            latency=link.latency,
            energy=link.nominal_energy_per_bit * (point.voltage / link.nominal_voltage) ** 2,
        ),
        lanes=lanes,
        used=Allotment(area=lanes * link.area_per_link, power=point.power, perimeter=lanes / density),
        limit=Limit(component=component, names=limits, code=fits.argmin(axis=0) + 3 * ((point.frequency < 1.0 - 1e-9) & (lanes > 0))),
    )


def _operated(
    part: Compute | OffChip | Link, power: Array, nominal_power: Array, leakage: Array = NOTHING, *, divisible: bool = False
) -> OperatingPoint:
    """Operating point of a component; the lanes of a bus, which is not divisible, run alike: too little power slows all of them."""
    return operate(
        power,
        nominal_power,
        nominal=part.nominal_voltage,
        threshold=part.threshold_voltage,
        minimum=part.minimum_voltage,
        maximum=part.maximum_voltage,
        leakage=leakage,
        divisible=divisible,
    )


# ------------------------------------------------------------------------------------------ reports


def _usage(given: Mapping[str, Allotment], used: Mapping[str, Allotment]) -> tuple[BudgetUse, ...]:
    return tuple(
        BudgetUse(resource=resource, component=name, budget=getattr(given[name], resource), used=getattr(used[name], resource))
        for resource in ("area", "power", "perimeter")
        for name in given
        if np.any(getattr(given[name], resource) > 0)
    )


def _problems(
    system: GeneratedSystem, parts: Parts, cores: Cores, caches: Mapping[str, BuiltMemory], memory: BuiltMemory
) -> tuple[tuple[Mask, str], ...]:
    """Design points that cannot be built, with the sentence that says why."""
    budgets = system.budgets
    found: list[tuple[Mask, str]] = []
    for resource, shares in (("area", budgets.area), ("power", budgets.power_shares), ("perimeter", budgets.perimeter)):
        names = ("compute", *caches, "memory", "intra_link", "inter_link")
        total = sum((_share(shares, name) for name in names), NOTHING)
        found.append((np.asarray(total > 1 + 1e-9), f"the {resource} shares add up to more than 1"))
    found.append((np.asarray(budgets.chip_area >= budgets.node_area), "the chip leaves no package area for memory devices"))
    package = budgets.node_area * system.devices_per_node
    found.append((np.asarray(package > parts.substrate.maximum_area), "the accelerators of a package exceed the area of its substrate"))
    for name in ("compute", "memory", "intra_link", "inter_link"):
        found.append((disordered(getattr(parts, name)), f"the voltages of {name} must satisfy threshold < minimum <= nominal <= maximum"))
    found.append((np.asarray(cores.mcus < 1), "not one bundle of compute units fits its area and power"))
    found.append((np.asarray(memory.level.bandwidth <= 0), "not one memory device fits its package area, controller area, edge and power"))
    found += [(np.asarray(c.level.bandwidth <= 0), f"{name} has no bandwidth: banks or power are missing") for name, c in caches.items()]
    return tuple((mask, sentence) for mask, sentence in found if np.any(mask))
