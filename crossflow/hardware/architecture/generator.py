"""Micro-architecture generator engine (AGE): budgets, technology and a template become an architecture [1]_.

Each component gets its share of area, power and perimeter and makes the most of it. More of a budget never gives a component
less: what does not pay is left unused. Every function works on all design points at once, arrays of shape (n,) or (1,).

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Mask, divide
from crossflow.base.files import FileModel
from crossflow.base.formats import with_like
from crossflow.hardware.architecture.datatypes import Rates, TypedUnits, gathered, with_types
from crossflow.hardware.architecture.harvest import lit, spares_of
from crossflow.hardware.architecture.model import Architecture, BudgetUse, CacheClock, Level, Limit, Port, SecondMemory, Throttle
from crossflow.hardware.architecture.packaging import Mounted, cooled, on_logic, packaged, room
from crossflow.hardware.architecture.price import Spares
from crossflow.hardware.architecture.shaping import edges, own_clock, shaped_cache, shaped_unit
from crossflow.hardware.architecture.supply import NO_LOSSES, PowerLosses, delivered, delivery_of, endured, losses
from crossflow.hardware.architecture.switching import NOTHING as UNSWITCHED
from crossflow.hardware.architecture.switching import Switching, with_switches, working
from crossflow.hardware.architecture.template import CHANGED, Budgets, BudgetShares, GeneratedSystem, OnChipLevel, is_none
from crossflow.hardware.architecture.voltage import OperatingPoint, frugal_voltage, operate
from crossflow.hardware.technology.components import Bond, Compute, Delivery, Link, LogicNode, OffChip, OnChip, Substrate, Switch
from crossflow.hardware.technology.library import Choice, TechLibrary, disordered, kind_of, taken

NOTHING, NO_LIMIT = np.zeros(1), np.full(1, np.inf)
OPTIONAL = ("intra_switch", "inter_switch", "intra_uplink", "inter_uplink")  # roles that a system may leave open
DELIVERY_PASSES = 4  # each takes what is left undelivered down by memory's share of the power
NO_SECOND = (
    "not one device of the second memory fits its package area (second_memory.room), controller area, edge and power"
    " (budgets.area, power_shares and perimeter have a share for second_memory)"
)
WORN = "its main memory is flash, which wears out and has no place for what is written again and again: name it as second_memory"
CELLS = 0.05  # share of an on-chip memory's area that is left for bits where its slices would take all


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The components of one design, at its logic node, with the template's and the scenario's changes."""

    typed: TypedUnits  # the compute unit with the types of the template, and the energy of each
    vector_part: Array  # vector units for each operation of the matrix units, over those of the library's unit. [1]
    on_chip: Mapping[str, OnChip]
    slice_voltages: Mapping[str, Array]  # of the caches whose slices have a clock of their own. [V]
    memory: OffChip | None  # None where the farthest on-chip level is main memory
    second_memory: OffChip | None  # a second memory, where there is one
    intra_link: Link
    inter_link: Link
    intra_switch: Switch | None
    inter_switch: Switch | None
    intra_uplink: Link | None
    inter_uplink: Link | None
    die_link: Link
    stacked: Mapping[str, OnChip]  # the on-chip memories once more, at the node of dies that stand on the compute die
    bond: Bond
    substrate: Substrate
    node: LogicNode
    stacked_node: LogicNode
    delivery: Delivery
    unit_delivery: Delivery  # that of the node which the unit's figures are for
    spares: Spares | None = None  # broken bundles that a die may have, where it may have any

    @property
    def compute(self) -> Compute:
        """The compute unit, as large as its types make it."""
        return self.typed.unit

    @property
    def lone(self) -> bool:
        """Whether main memory is the only one."""
        return self.second_memory is None

    @property
    def sharing(self) -> tuple[str, ...]:
        """Components among which the budgets are divided."""
        beside = [name for name, part in (("memory", self.memory), ("second_memory", self.second_memory)) if part is not None]
        return ("compute", *self.on_chip, *beside, "intra_link", "inter_link")


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """What one component may use, or does use: area [m2], power [W] and die edge [m]; shape (n,)."""

    area: Array
    power: Array
    perimeter: Array


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The compute units that fit and run, and the bundles that they are spread over."""

    mcus: Array
    bundles: Array
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
    fed: Array  # bandwidth that its power would feed, whatever else limits it, as far as it can be used. [B/s]
    stacked_area: Array = field(default_factory=lambda: NOTHING)  # of its dies that stand on the compute dies. [m2]
    vias_area: Array = field(default_factory=lambda: NOTHING)  # of the compute dies that the vias to those dies take. [m2]


@dataclass(frozen=True, kw_only=True)
class Links:
    """The links of one network level as built."""

    port: Port
    lanes: Array
    used: Allotment
    limit: Limit
    switching: Switching = UNSWITCHED


def generate(system: GeneratedSystem, library: TechLibrary, choices: Mapping[str, Choice] | None = None) -> Architecture:
    """Generate the architecture of every design point.

    Parameters
    ----------
    system : the template with the scenario's changes; its quantities may have shape (n,).
    library : technology library to choose from.
    choices : for roles of `system.technology` that differ between points, the entry chosen at each of the n points.
    """
    parts = choose_parts(system, library, choices or {})
    budgets, bound = within_package(system, parts)
    lost = losses(budgets.power / budgets.chip_area, parts.unit_delivery, parts.delivery, parts.node, parts.substrate)
    given = _given(system, parts, budgets)
    stores = build_stores(system, parts, budgets, given)
    caches, memory = {name: stores[name] for name in system.levels}, stores.get("memory")
    second = None if parts.second_memory is None else build_second(parts.second_memory, budgets, given["second_memory"], system)
    beside = stores if second is None else {**stores, "second_memory": second}
    intra, inter = network_links(system, parts, given)
    others: dict[str, BuiltMemory | Links] = {**beside, "intra_link": intra, "inter_link": inter}
    given["compute"] = _with_spare(given, others) if system.shared_power else given["compute"]
    cores = build_cores(parts.compute, given["compute"], system.bundles)
    built: dict[str, Cores | BuiltMemory | Links] = {"compute": cores, **others}
    static = _static(cores, beside, caches, lost)
    package = packaged(
        parts, budgets, system.packaged,
        levels=tuple(store.level for store in stores.values()), fed=tuple(store.fed for store in stores.values()),
        mounted=_mounted(parts, memory, second, tuple(caches.values())),
        links={name: (level.lanes, level.switching.cost) for name, level in (("intra_link", intra), ("inter_link", inter))},
    )  # fmt: skip
    return Architecture(
        name=system.name,
        throughput={dtype: cores.peak * rate for dtype, rate in system.product_rates.items()},
        vector_throughput={dtype: cores.peak * parts.vector_part * rate for dtype, rate in system.vector_rates.items()},
        mcus=cores.mcus,
        units=cores.bundles,
        array_height=parts.compute.array_height,
        array_width=parts.compute.array_width,
        frequency=cores.frequency,
        voltage=cores.point.voltage,
        levels=_supplied(package.levels, caches, lost),
        second=tier(second, parts.second_memory, system),
        intra=replace(intra.port, peers=system.peers) if np.any(intra.port.bandwidth > 0) else None,
        inter=inter.port if np.any(inter.port.bandwidth > 0) else None,
        energy_per_flop=_energies(parts.typed.operations, cores, lost),
        **_leaving_out(system, parts, cores, lost),
        static_power=static,
        temperature=lost.temperature,
        maximum_power=budgets.power,
        throttle=_throttle(parts, cores, budgets, static, _sum_of_stacks(caches), lost),
        execution=system.execution,
        dataflow=system.dataflow,
        types_area=_types_area(system, parts.typed, cores),
        usage=_usage(system, given, {name: part.used for name, part in built.items()}),
        limits=(*(part.limit for part in built.values()), bound),
        problems=(*_problems(system, parts, cores, caches, memory, second, static), *package.problems, *_refused(intra, inter)),
        network_power=intra.switching.power + inter.switching.power,
        networks=network_figures(intra, inter, package.cost),
        cost=package.cost,
        carbon=package.carbon,
    )


# ------------------------------------------------------------------------------------------ technology and budgets


def choose_parts(system: GeneratedSystem, library: TechLibrary, choices: Mapping[str, Choice]) -> Parts:
    """Gather the components that each design point names, changed as the template says, at the point's logic node."""
    own = system.technology.model_dump(exclude_none=True)
    choice = {role: choices.get(role) or Choice.of((own[role],)) for role in {**own, **choices}}
    delivery, grown = delivered(library, choice["logic"], choice.get("delivery"))
    changes = system.components
    # Each unit is scaled from its own node, and gets its shape and its types, and only then do the points choose among them.
    named = [_changed(library.component("compute", name), changes.compute) for name in choice["compute"].names]
    units = [library.scale(unit, choice["logic"], grown) for unit in named]
    shaped = [shaped_unit(unit, system.matrix_unit) for unit in units]
    typed = gathered(
        [with_types(unit, system.product_rates, library, with_like(system.sparse_rates)) for unit in shaped], choice["compute"].index
    )
    caches = {
        name: _changed(library.component("on_chip", spec.component), changes.on_chip.get(name)) for name, spec in system.levels.items()
    }
    bond: Bond = library.gather("bond", choice["bond"])
    formed = {name: shaped_cache(cache, system.levels[name], typed.unit) for name, cache in caches.items()}
    clocks = {name: own_clock(cache, system.levels[name], typed.unit) for name, cache in caches.items()}
    return Parts(
        typed=typed,
        vector_part=taken([edges(*pair) for pair in zip(units, shaped, strict=True)], choice["compute"].index),
        on_chip={name: library.scale(cache, choice["logic"], grown) for name, cache in formed.items()},
        slice_voltages={name: clock[1] for name, clock in clocks.items() if clock is not None},
        stacked={name: library.scale(cache, choice["stacked_logic"]) for name, cache in formed.items()},
        bond=bond,
        memory=_memory_devices(library, choice["memory"], changes.memory, bond),
        second_memory=_memory_devices(library, choice["second_memory"], changes.second_memory, bond) if "second_memory" in choice else None,
        intra_link=_changed(library.gather("link", choice["intra_link"]), changes.intra_link),
        inter_link=_changed(library.gather("link", choice["inter_link"]), changes.inter_link),
        **{role: library.gather(kind_of(role), choice[role]) if role in choice else None for role in OPTIONAL},
        die_link=library.gather("link", choice["die_link"]),
        substrate=library.gather("substrate", choice["substrate"]),
        node=library.gather("logic", choice["logic"]),
        stacked_node=library.gather("logic", choice["stacked_logic"]),
        delivery=delivery,
        unit_delivery=delivery_of(library, [unit.node for unit in named], choice["compute"].index),
        spares=spares_of(system),
    )


def _memory_devices(library: TechLibrary, choice: Choice, changes: FileModel | None, bond: Bond) -> OffChip | None:
    """The memory devices of each point; None where there are none, at all points or at none (such choices are scenarios of their own)."""
    if any(map(is_none, choice.names)):
        return None
    return _bonded(_changed(library.gather("memory", choice), changes), bond)


def _bonded(memory: OffChip, bond: Bond) -> OffChip:
    """Memory devices with the bonds of those that stand on the compute die: energy and time of an access, area of the vias."""
    if not memory.on_logic.any():
        return memory
    vias = memory.links_per_device * bond.area_per_lane
    return memory.model_copy(
        update={
            "interface_energy_per_bit": memory.interface_energy_per_bit + memory.on_logic * bond.energy_per_bit,
            "access_latency": memory.access_latency + memory.on_logic * bond.latency,
            "controller_area": memory.controller_area + memory.on_logic * vias,
        }
    )


def for_choices(system: GeneratedSystem, library: TechLibrary, choices: Mapping[str, Choice], own: Mapping[str, Any]) -> GeneratedSystem:
    """The system with its template's changes of library entries for the points that take the entry which the template names.

    Changes that the scenario makes itself, `own`, hold whichever entry is taken.
    """
    changes = {}
    for role in CHANGED:
        given: FileModel | None = getattr(system.components, role)
        if given is not None and role in choices:
            choice = choices[role]
            named = np.array([name == getattr(system.technology, role) for name in choice.names])[choice.index]
            entries = library.gather(kind_of(role), choice)
            fields = (
                (name, getattr(given, name), getattr(entries, name)) for name in type(given).model_fields if name not in own.get(role, {})
            )
            figures = {
                name: np.where(named, old, np.inf if new is None else new) for name, old, new in fields if isinstance(old, np.ndarray)
            }
            changes[role] = given.model_copy(update=figures)
    return system.model_copy(update={"components": system.components.model_copy(update=changes)}) if changes else system


def _changed(component: Any, changes: FileModel | None) -> Any:
    """Component with the figures that a template or scenario replaces."""
    if changes is None:
        return component
    given = {name: getattr(changes, name) for name in type(changes).model_fields if getattr(changes, name) is not None}
    return component.model_copy(update=given)


def _with_spare(given: Mapping[str, Allotment], others: Mapping[str, BuiltMemory | Links]) -> Allotment:
    """The share of compute, with the power that the other components cannot use."""
    spare = sum((given[name].power - part.used.power for name, part in others.items()), NOTHING)
    return replace(given["compute"], power=np.asarray(given["compute"].power + spare))


def _given(system: GeneratedSystem, parts: Parts, budgets: Budgets) -> dict[str, Allotment]:
    """What the working bundles, and all else, get of the budgets."""
    return _dark(system, {name: allot(budgets, name, lone=parts.lone) for name in parts.sharing}, left_out=True)


def _dark(system: GeneratedSystem, parts: Mapping[str, Allotment], *, left_out: bool) -> dict[str, Allotment]:
    """Area, power and edge by component without what dark bundles take (`left_out`), or with it again; they take area alone."""
    share = {name: lit(system, name) if left_out else 1.0 / lit(system, name) for name in parts}
    return {name: replace(part, area=part.area * share[name]) for name, part in parts.items()}


def _energies(operations: Rates, cores: Cores, lost: PowerLosses) -> dict[str, Array]:
    """Energy that an operation of each type switches, with what the supply loses. [J/flop]

    `operations` are those that take the energy of one at the nominal rate, over the time of one. [1]
    """
    switched = lost.switched * (cores.used.power - cores.leakage_power) / np.maximum(cores.peak, 1.0)
    return {dtype: divide(switched, done) for dtype, done in operations.items()}


def _leaving_out(system: GeneratedSystem, parts: Parts, cores: Cores, lost: PowerLosses) -> dict[str, Any]:
    """Rates and energies of products whose weights have 2:4 sparsity, as fields of an architecture."""
    rates = {dtype: cores.peak * rate for dtype, rate in with_like(system.sparse_rates).items()}
    return {"sparse_throughput": rates, "sparse_energy": _energies(parts.typed.sparse, cores, lost)}


def _types_area(system: GeneratedSystem, typed: TypedUnits, cores: Cores) -> Array | None:
    """Area of what units have for types that they were not published with; None where it is none. [m2]"""
    return cores.used.area / lit(system, "compute") * (1.0 - 1.0 / typed.larger) if np.any(typed.larger > 1.0) else None


def _sum_of_stacks(caches: Mapping[str, BuiltMemory]) -> Array:
    """Area of all dies of caches that stand on the compute dies. [m2]"""
    return sum((cache.stacked_area for cache in caches.values()), NOTHING)


def _static(cores: Cores, stores: Mapping[str, BuiltMemory], caches: Mapping[str, BuiltMemory], lost: PowerLosses) -> Array:
    """Power that flows whatever is computed: leakage of units and caches, as warm as they are, and memory devices at rest. [W]"""
    leaked = cores.leakage_power + sum((cache.static_power for cache in caches.values()), NOTHING)
    return np.asarray(lost.leaked * leaked + sum((one.static_power for name, one in stores.items() if name not in caches), NOTHING))


def _supplied(levels: tuple[Level, ...], caches: Mapping[str, BuiltMemory], lost: PowerLosses) -> tuple[Level, ...]:
    """Levels whose accesses on the dies take what the supply loses as well; links between dies and main memory have their own supply."""
    more = {name: (lost.switched - 1.0) * cache.level.energy for name, cache in caches.items()}
    return tuple(replace(level, energy=np.asarray(level.energy + more[level.name])) if level.name in more else level for level in levels)


def _mounted(parts: Parts, memory: BuiltMemory | None, second: BuiltMemory | None, caches: tuple[BuiltMemory, ...]) -> Mounted:
    """What stands beside and on the compute dies."""
    return Mounted(
        devices=NOTHING if memory is None or parts.memory is None else memory.level.capacity / parts.memory.device_capacity,
        second=NOTHING if second is None or parts.second_memory is None else second.level.capacity / parts.second_memory.device_capacity,
        stacked=tuple(cache.stacked_area for cache in caches),
        vias_area=sum((cache.vias_area for cache in caches), NOTHING),
    )


def within_package(system: GeneratedSystem, parts: Parts) -> tuple[Budgets, Limit]:
    """Budgets with no more power than the package cools and delivers, dies endure and components draw together, and what bound it.

    What supply bumps deliver bounds the power of the compute dies, so memory beside them comes on top. Its power follows from
    that of the device, from below: after each pass the package delivers all that is drawn.
    """
    budgets, substrate, memory = system.budgets, parts.substrate, parts.memory
    bounds = (budgets.peak_power, cooled(substrate, budgets), endured(substrate, budgets.chip_area))
    fits = [budgets.power, *(NO_LIMIT if bound is None else bound for bound in bounds)]
    power = np.minimum.reduce(np.broadcast_arrays(*fits))
    delivered = NO_LIMIT if substrate.delivery_limit is None else substrate.delivery_limit * budgets.chip_area
    fed = np.minimum(power, delivered)
    for _ in range(DELIVERY_PASSES if np.any(power > delivered) else 0):
        here = budgets.model_copy(update={"power": fed})
        drawn = NOTHING if memory is None else build_memory(memory, here, allot(here, "memory", lone=parts.lone), system).used.power
        if parts.second_memory is not None:
            drawn = drawn + build_second(parts.second_memory, here, allot(here, "second_memory"), system).used.power
        fed = np.minimum(power, delivered + np.where(on_logic(memory), 0.0, drawn))
    names = (
        "budget", "peak_power", "cooling of the package (substrate.cooling_limit)",
        "heat of the dies (substrate.maximum_temperature)", "delivery to the die (substrate.delivery_limit)",
    )  # fmt: skip
    code = np.where(fed < power, 4, np.argmin(np.broadcast_arrays(*fits), axis=0))
    limit = Limit(component="power", names=names, code=np.asarray(code))
    return budgets.model_copy(update={"power": np.asarray(fed)}), limit


def perimeter(budgets: Budgets) -> Array:
    """Edge of the compute die, taken as a square. [m]"""
    return np.asarray(4.0 * np.sqrt(budgets.chip_area))


def allot(budgets: Budgets, component: str, *, lone: bool = False) -> Allotment:
    """Area, power and die edge that the breakdown gives to a component (Fig. 4); what is not named gets nothing.

    lone : whether there is no second memory, whose shares are main memory's then (`technology.second_memory: none`).
    """
    area, power, edge = (_share(shares, component, lone=lone) for shares in (budgets.area, budgets.power_shares, budgets.perimeter))
    return Allotment(
        area=area * budgets.chip_area,
        power=power * (budgets.power if budgets.peak_power is None else budgets.peak_power),
        perimeter=edge * perimeter(budgets),
    )


def _share(shares: BudgetShares, component: str, *, lone: bool) -> Array:
    """Share of one component; see `allot`. [1]"""
    own = shares.of(component)
    return own + shares.of("second_memory") if lone and component == "memory" and shares.second_memory is not None else own


def whole(value: Array) -> Array:
    """Largest whole number of things that fit; a ratio that is whole but for rounding counts as whole."""
    return np.asarray(np.floor(np.maximum(value, 0.0) * (1.0 + 1e-12) + 1e-9))


# ------------------------------------------------------------------------------------------ components


def build_cores(compute: Compute, given: Allotment, bundles: Array) -> Cores:
    """As many MCUs as the area holds, at the voltage that the power allows (Sec. 4.4.1, Eq. 1), spread over the bundles.

    A bundle is as wide as the MCUs allow, not in whole numbers of them: more area or denser logic widens the bundles, as
    the units of one maker grow from chip to chip, and never takes cache from them. Where the power does not carry all MCUs
    at the minimum voltage, or at the lower one of `frugal_voltage`, a part of each bundle is left dark.
    """
    built = given.area / compute.nominal_area
    low = frugal_voltage(compute.nominal_voltage, compute.threshold_voltage, compute.leakage)
    minimum = np.clip(low, compute.minimum_voltage, compute.maximum_voltage)
    point = _operated(compute, given.power, built * compute.nominal_power, minimum, leakage=compute.leakage, divisible=True)
    mcus, frequency = built * point.active, compute.nominal_frequency * point.frequency
    return Cores(
        mcus=mcus,
        bundles=bundles,
        peak=mcus * compute.nominal_flop_rate * frequency,
        frequency=frequency,
        point=point,
        leakage_power=compute.leakage * mcus * compute.nominal_power * point.voltage / compute.nominal_voltage,
        used=Allotment(area=built * compute.nominal_area, power=point.power, perimeter=NOTHING),
        limit=Limit(
            component="compute",
            names=("area and power", "power: units left dark at the minimum voltage", "area: the maximum voltage is reached"),
            code=np.where(point.at_minimum, 1, np.where(point.at_maximum, 2, 0)),
        ),
    )


def _throttle(
    parts: Parts, cores: Cores, budgets: Budgets, static: Array, stacked: Array, lost: PowerLosses = NO_LOSSES
) -> Throttle | None:
    """What switching and the leakage of the units may draw, and the voltages between which the chip may save. [W], [V]

    The energies of a cache hold at the clock that the template gives its slices; those of all other caches at one clock, that of the
    first of them that has one in the library, or where none has, at the nominal one of the units.

    None where components together draw no more than the device may: without `peak_power`, without losses, and without dies on the
    compute dies (`stacked`, their area [m2]), to which accesses take energy beside the shares.
    """
    if budgets.peak_power is None and not stacked.any() and not lost.any:
        return None
    compute, leaked, voltage = parts.compute, lost.leaked * cores.leakage_power, cores.point.voltage
    own = parts.slice_voltages
    shared = (cache.frequency for name, cache in parts.on_chip.items() if name not in own and cache.frequency is not None)
    return Throttle(
        power=np.maximum(budgets.power - static + leaked, 0.0),
        leakage=leaked,
        voltage=voltage,
        threshold=compute.threshold_voltage,
        minimum=np.minimum(compute.minimum_voltage, voltage),
        nominal=compute.nominal_voltage,
        faster=divide(cores.frequency, next(shared, compute.nominal_frequency)),
        own=tuple(
            CacheClock(level=i, voltage=own[name], faster=divide(cores.frequency, np.asarray(cache.frequency)))
            for i, (name, cache) in enumerate(parts.on_chip.items())
            if name in own and (parts.memory is not None or i < len(parts.on_chip) - 1)  # not what is main memory
        ),
    )


def build_on_chip(
    name: str, level: OnChipLevel, part: OnChip, given: Allotment, bundles: Array, above: tuple[OnChip, Bond] | None = None
) -> BuiltMemory:
    """Bits and slices share the area; what is kept from leakage feeds accesses (Eq. 2 and 3, for a sliced memory).

    The area holds the slices that the template asks for, with their ports on the network, and bits in the rest. A twentieth
    at least is left for bits, in an area too small for all slices. Capacity stops where its leakage would take more than the
    level's `static_share` of the power. The rest of the power always feeds accesses, so that bandwidth never falls with
    capacity; it stops at what the slices deliver at their clock. What is then left of area and power is not used.

    above : the component at the node of dies on the compute die, and their bonds. Such a die holds nothing but bits; slices and
    network stay below. Addresses are spread over all bits, so the part of accesses that crosses is that of the capacity above.
    What these take beyond an access below does not come out of the level's share, so that bandwidth does not fall (`_throttle`).
    """
    instances = bundles if level.scope == "bundle" else np.ones(1)
    room = divide((1.0 - CELLS) * given.area, part.logic_area)
    slices = np.where(part.logic_area > 0, np.minimum(level.slices * instances, room), level.slices * instances)
    fits = (given.area - slices * part.logic_area) / area_of_byte(part)
    kept = level.static_share * given.power
    below = _held(part, fits, kept)
    over, bond = (part, None) if above is None else above
    wanted = level.stacked_area / area_of_byte(over)
    stacked = _held(over, wanted, np.where(below < fits, 0.0, kept - below * part.static_power_per_bit))
    capacity = below + stacked
    share = divide(stacked, capacity)
    mean = part if bond is None or not stacked.any() else _mean(part, over, bond, share)
    fed = divide(given.power - kept, np.minimum(part.energy_per_bit, mean.energy_per_bit))
    wide = NO_LIMIT if part.slice_width is None or part.frequency is None else slices * part.slice_width * part.frequency
    bandwidth = np.where(capacity > 0, np.minimum(fed, wide), 0.0)
    static = mean.static_power_per_bit * capacity
    return BuiltMemory(
        level=Level(
            name=name,
            scope=level.scope,
            capacity=capacity / instances,
            stacked=stacked / instances,
            instances=instances,
            bandwidth=bandwidth * level.utilisation,
            latency=mean.latency + part.wire_latency * part.wire_length,
            energy=mean.energy_per_bit,
        ),
        static_power=static,
        used=Allotment(
            area=np.where(capacity > 0, slices * part.logic_area, 0.0) + (given.area - slices * part.logic_area) * divide(below, fits),
            power=static + bandwidth * np.minimum(part.energy_per_bit, mean.energy_per_bit),
            perimeter=NOTHING,
        ),
        limit=Limit(
            component=name,
            names=tuple(f"capacity by {one}, bandwidth by {other}" for other in ("power", "slices") for one in ("area", "leakage")),
            code=np.asarray(((below < fits) | (stacked < wanted)) + 2 * (wide < fed)),
        ),
        fed=np.asarray(fed * level.utilisation),
        stacked_area=stacked * np.where(stacked > 0, area_of_byte(over), 0.0),
        vias_area=NOTHING if bond is None else np.ceil(8.0 * bandwidth * share / bond.frequency - 1e-9) * bond.area_per_lane,
    )


def area_of_byte(part: OnChip) -> Array:
    """Area of cells and their periphery. [m2/B]"""
    return divide(part.area_per_bit, 1.0 - part.area_overhead)


def _held(part: OnChip, fits: Array, power: Array) -> Array:
    """Bytes that fit and whose leakage the power carries. [B]"""
    return np.where(part.static_power_per_bit > 0, np.minimum(fits, divide(power, part.static_power_per_bit)), fits)


def _mean(part: OnChip, above: OnChip, bond: Bond, share: Array) -> OnChip:
    """A memory of which a share of the bits stands on the compute die: energy, time and leakage of a mean access and a mean bit."""
    macro = above.dynamic_energy_per_bit + bond.energy_per_bit
    return part.model_copy(
        update={
            "dynamic_energy_per_bit": part.dynamic_energy_per_bit + share * (macro - part.dynamic_energy_per_bit),
            "static_power_per_bit": part.static_power_per_bit + share * (above.static_power_per_bit - part.static_power_per_bit),
            "latency": part.latency + share * bond.latency,
        }
    )


def build_stores(system: GeneratedSystem, parts: Parts, budgets: Budgets, given: Mapping[str, Allotment]) -> dict[str, BuiltMemory]:
    """All levels of memory by name from the nearest to the farthest, main memory last where there is any beside the chip."""
    found = {
        name: build_on_chip(name, spec, parts.on_chip[name], given[name], system.bundles, (parts.stacked[name], parts.bond))
        for name, spec in system.levels.items()
    }
    return found if parts.memory is None else {**found, "memory": build_memory(parts.memory, budgets, given["memory"], system)}


def build_memory(memory: OffChip, budgets: Budgets, given: Allotment, system: GeneratedSystem) -> BuiltMemory:
    """As many devices as package, controllers and die edge allow (Eq. 4), their pins as fast as the power allows.

    Idle and refresh may take `static_share` of the power and no more. Where whole devices would take more, they are of less
    capacity, as stacks of fewer dies are; the rest of the power always feeds the pins. So another device, or one of more
    capacity, never slows them.
    """
    stacked = sum((level.stacked_area for level in system.levels.values()), NOTHING)
    places = room(memory, budgets, stacked, system.first_room)
    return _devices("memory", memory, given, places, static_share=system.memory_static_share, utilisation=system.memory_utilisation)


def build_second(memory: OffChip, budgets: Budgets, given: Allotment, system: GeneratedSystem) -> BuiltMemory:
    """A second memory in the same way, on its share of the package area."""
    use, stacked = system.second_memory, sum((level.stacked_area for level in system.levels.values()), NOTHING)
    places = room(memory, budgets, stacked, use.room)
    return _devices("second_memory", memory, given, places, static_share=use.static_share, utilisation=use.utilisation)


def tier(built: BuiltMemory | None, memory: OffChip | None, system: GeneratedSystem) -> SecondMemory | None:
    """The second memory as kernels see it, where there is one."""
    if built is None or memory is None:
        return None
    level = built.level
    return SecondMemory(
        capacity=level.capacity,
        bandwidth=level.bandwidth,
        write_bandwidth=level.bandwidth * memory.write_rate,
        latency=level.latency,
        energy=level.energy,
        write_energy=level.energy * memory.write_energy,
        page=memory.page,
        endurance=NO_LIMIT if memory.endurance is None else memory.endurance,
        staged=np.ones(1) * (system.second_memory.way == "staged"),
    )


def _devices(name: str, memory: OffChip, given: Allotment, places: Array, *, static_share: Array, utilisation: Array) -> BuiltMemory:
    """Memory devices in so many places at most, as far as area, edge and power of the chip allow; see `build_memory`."""
    kept = static_share * given.power
    fits = np.stack(
        np.broadcast_arrays(
            places,
            given.area / memory.controller_area,
            given.perimeter * memory.links_per_mm / memory.links_per_device,
        )
    )
    devices = whole(fits.min(axis=0))
    pins, full = devices * memory.links_per_device, devices * memory.device_capacity
    capacity = np.where(memory.static_power_per_bit > 0, np.minimum(full, divide(kept, memory.static_power_per_bit)), full)
    static = memory.static_power_per_bit * capacity
    peak = pins * memory.nominal_frequency / 8.0
    point = _operated(memory, given.power - kept, peak * memory.access_energy, memory.minimum_voltage)
    level = Level(
        name=name,
        scope="global",
        capacity=capacity,
        instances=np.ones(1),
        bandwidth=np.where(capacity > 0, peak * point.frequency * utilisation, 0.0),
        latency=memory.access_latency,
        energy=memory.access_energy * (point.voltage / memory.nominal_voltage) ** 2,
    )
    used = Allotment(
        area=devices * memory.controller_area,
        power=static + point.power,
        perimeter=pins / memory.links_per_mm,
    )
    names = ("package area", "controller area", "perimeter")
    lower = (*names, *(f"{name}; idle power bounds their capacity" for name in names))
    limits = (*lower, *(f"{name}; power slows its pins" for name in lower))
    code = fits.argmin(axis=0) + 3 * (capacity < full * (1.0 - 1e-9)) + 6 * ((point.frequency < 1.0 - 1e-9) & (devices > 0))
    limit = Limit(component=name, names=limits, code=np.asarray(code))
    fed = divide(given.power - kept, level.energy) * utilisation
    return BuiltMemory(level=level, static_power=static, used=used, limit=limit, fed=np.asarray(fed))


def network_links(system: GeneratedSystem, parts: Parts, given: Mapping[str, Allotment]) -> tuple[Links, Links]:
    """Links inside nodes and between them, with the switches that the system names."""
    wires, network = parts.substrate.links_per_mm, system.network
    intra = build_links("intra_link", parts.intra_link, given["intra_link"], wires, network.intra.spare)
    inter = build_links("inter_link", parts.inter_link, given["inter_link"], None, network.inter.spare)
    return with_switches(system, parts, intra, inter)


def _refused(*links: Links) -> tuple[tuple[Mask, str], ...]:
    """Design points whose switches and links cannot be."""
    return tuple((mask, sentence) for one in links for mask, sentence in one.switching.problems if np.any(mask))


def network_figures(intra: Links, inter: Links, cost: Mapping[str, Array]) -> dict[str, Array]:
    """What there is to tell of the switches and of the lengths of both levels, by level and figure; power and price of a device's share."""
    levels = {"intra": intra, "inter": inter}
    found = {f"{name}.{figure}": value for name, links in levels.items() for figure, value in links.switching.figures.items()}
    if any(links.switching.latency is not None or links.switching.power.any() for links in levels.values()):
        found["network.power"] = np.asarray(intra.switching.power + inter.switching.power)
        parts = [cost[part] for level in levels for part in (f"{level}_link", f"{level}_switch") if part in cost]
        found |= {"network.cost": np.asarray(sum(parts, NOTHING))} if parts else {}
    return found


def build_links(component: str, link: Link, given: Allotment, wiring: Array | None, spare: Array | None = None) -> Links:
    """As many lanes as area, die edge and the standard's port allow, as fast as the power allows (Sec. 4.4.4).

    spare : lanes that stand by, over those that work. [1]
    """
    density = link.links_per_mm if wiring is None else np.minimum(link.links_per_mm, wiring)
    port = np.array([np.inf]) if link.maximum_links is None else link.maximum_links
    fits = np.stack(np.broadcast_arrays(given.area / link.area_per_link, given.perimeter * density, port))
    lanes = whole(fits.min(axis=0))
    peak = working(lanes, spare) * link.nominal_frequency / 8.0
    point = _operated(link, given.power, peak * link.nominal_energy_per_bit, link.minimum_voltage)
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
    part: Compute | OffChip | Link,
    power: Array,
    nominal_power: Array,
    minimum: Array,
    *,
    leakage: Array = NOTHING,
    divisible: bool = False,
) -> OperatingPoint:
    """Operating point of a component; the lanes of a bus, which is not divisible, run alike: too little power slows all of them."""
    return operate(
        power,
        nominal_power,
        nominal=part.nominal_voltage,
        threshold=part.threshold_voltage,
        minimum=minimum,
        maximum=part.maximum_voltage,
        leakage=leakage,
        divisible=divisible,
    )


# ------------------------------------------------------------------------------------------ reports


def _usage(system: GeneratedSystem, given: Mapping[str, Allotment], used: Mapping[str, Allotment]) -> tuple[BudgetUse, ...]:
    given, used = (_dark(system, each, left_out=False) for each in (given, used))
    return tuple(
        BudgetUse(resource=resource, component=name, budget=getattr(given[name], resource), used=getattr(used[name], resource))
        for resource in ("area", "power", "perimeter")
        for name in given
        if np.any(getattr(given[name], resource) > 0)
    )


def _problems(
    system: GeneratedSystem,
    parts: Parts,
    cores: Cores,
    caches: Mapping[str, BuiltMemory],
    memory: BuiltMemory | None,
    second: BuiltMemory | None,
    static: Array,
) -> tuple[tuple[Mask, str], ...]:
    """Design points that cannot be built, with the sentence that says why; `static` is the power that flows whatever is computed. [W]"""
    budgets = system.budgets
    found: list[tuple[Mask, str]] = []
    for resource, shares in (("area", budgets.area), ("power", budgets.power_shares), ("perimeter", budgets.perimeter)):
        total = sum((_share(shares, name, lone=parts.lone) for name in parts.sharing), NOTHING)
        found.append((np.asarray(total > 1 + 1e-9), f"the {resource} shares add up to more than 1"))
    if memory is None:
        found.append((np.asarray(budgets.chip_area > budgets.node_area), "the chip is larger than its share of the package"))
    else:
        found.append(
            (
                np.asarray(budgets.chip_area >= budgets.node_area),
                "the chip leaves no package area for memory devices: raise budgets.node_area",
            )
        )
    package = budgets.node_area * system.packaged
    found.append(
        (
            np.asarray(package > parts.substrate.maximum_area),
            "the accelerators of a package exceed the area of its substrate: lower budgets.node_area",
        )
    )
    for name in (name for name in parts.sharing if name not in parts.on_chip):
        found.append((disordered(getattr(parts, name)), f"the voltages of {name} must satisfy threshold < minimum <= nominal <= maximum"))
    found += parts.typed.refused
    within = endured(parts.substrate, budgets.chip_area)
    if within is not None:
        found.append((np.asarray(within <= 0), "the coolant is as hot as the dies may become (substrate.coolant, maximum_temperature)"))
    found.append((np.asarray(cores.mcus < 1), "not one compute unit fits its area and power"))
    if memory is not None:
        none = np.asarray(memory.level.bandwidth <= 0)
        found.append((none, "not one memory device fits its package area, controller area, edge and power"))
    if second is not None:
        found.append((np.asarray(second.level.bandwidth <= 0), NO_SECOND))
    if parts.memory is not None:
        found.append((parts.memory.wears, WORN))
    found.append((np.asarray(static >= budgets.power), "its power budget does not exceed the power that it draws at rest"))
    found += [(np.asarray(c.level.bandwidth <= 0), f"{name} has no bandwidth: area or power are missing") for name, c in caches.items()]
    return tuple((mask, sentence) for mask, sentence in found if np.any(mask))
