"""The numbers that a prediction rests on: each with its path, its value, its range where the files give one, its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from crossflow.answers.points import place_of
from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError
from crossflow.base.files import dotted, held
from crossflow.base.paths import quantities
from crossflow.base.units import Quantity, parse
from crossflow.hardware.architecture.datasheet import REFERENCE_UNIT, sizing_types
from crossflow.hardware.architecture.datatypes import priced
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem, SystemSpec, is_none
from crossflow.hardware.technology.components import Compute
from crossflow.hardware.technology.library import TechLibrary, kind_of

ParameterKind = Literal["technology", "architecture", "budget", "system"]
# Who can change a number: decision is the reader's, device what another device has, technology what another entry of the library has,
# constant what was fitted, or what only restates a device as it is.
ParameterGroup = Literal["decision", "device", "technology", "constant"]
GROUPS: tuple[ParameterGroup, ...] = get_args(ParameterGroup)
ComponentPath = tuple[str, ...]  # path of a component in the library, such as (memory, HBM3)

VOLTAGES = ("speed", "nominal_voltage", "threshold_voltage", "minimum_voltage", "maximum_voltage")
LOGIC = ("area", "power", *VOLTAGES)  # what logic takes from its own node, and from that of the design
HEAT = ("leakage_temperature",)  # what counts only where leakage grows with the temperature
CELLS = ("sram_area", "sram_energy", "sram_leakage")  # what on-chip memory takes from its own node
MADE = ("wafer_cost", "defect_density", "carbon_per_area")  # what a die takes from its node to be made
KINDS: Mapping[str, ParameterKind] = {
    "components": "technology", "budgets": "budget", "network": "system", "devices_per_node": "system", "node_power": "system",
    "node_load": "system", "operation": "system",
}  # fmt: skip
# What fields of library entries end with that say at which voltage their figures hold, and how far it may be left: no other technology.
POINTS = "_voltage"
# What says how units are made that reach a published rate: less of it is a faster unit behind the same rate, which nobody can decide.
BEHIND = ("held_to",)
UNREAD = ("max_nodes", "devices_per_host", "chip_area")  # of a system: facts on file that no prediction reads


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One number behind a prediction."""

    path: str  # as ``--set`` and the points of `evaluate` take it
    value: float  # in the SI unit of `quantity`
    quantity: Quantity  # what it measures and the range that it may take
    kind: ParameterKind  # where it belongs: technology (library components), architecture, budget, or system (the network)
    source: str | None = None  # key of its source in the file that it stands in; None where the file names none
    low: float | None = None  # range that the file gives, in the same unit; None where it gives none
    high: float | None = None

    @property
    def fitted(self) -> bool:
        """Whether it belongs to a family of devices or a kind of fabric, and was fitted to measurements."""
        return self.path.startswith("system.") and self.inside.startswith(("execution.", "network.parameters."))

    @property
    def inside(self) -> str:
        """Its path below the system, or the pool, that it belongs to."""
        return place_of(self.path)[1]

    def group(self, *, generated: bool) -> ParameterGroup:
        """Who can change it: of a device with published figures nobody its technology; of a generated one the entries may be others."""
        if self.kind in ("budget", "system") and not self.fitted:
            return "decision"
        if self.kind == "technology":
            return "technology" if generated and not self.path.endswith(POINTS) else "constant"
        return "constant" if generated or self.fitted or self.inside in BEHIND else "device"

    @property
    def own(self) -> bool:
        """Whether it is a number of the system itself, such as a rate or capacity: neither fitted nor of the technology library."""
        return self.kind != "technology" and not self.fitted


def parameters(scenario: Scenario, choices: Mapping[str, Sequence[str]] | None = None) -> tuple[Parameter, ...]:
    """Every number of the technology in use and of the system that the prediction of a scenario reads.

    Parameters
    ----------
    scenario : the scenario.
    choices : by path, such as ``system.technology.memory``, further library entries that design points choose.

    Notes
    -----
    A figure that the system replaces (``system.components``) stands under the system, not under the library.
    """
    return (*_technology(scenario, choices or {}), *_system(scenario))


# ------------------------------------------------------------------------------------------ the library


def _technology(scenario: Scenario, choices: Mapping[str, Sequence[str]]) -> Iterator[Parameter]:
    library, changes = scenario.library, scenario.document.data.get("techlib", {})
    written = scenario.library_document().data
    used: dict[ComponentPath, set[str]] = {}
    for place, system in scenario.system.places.items():
        mine = {path.rpartition(".")[2]: names for path, names in choices.items() if path.startswith(f"{place}.technology.")}
        for entry, fields in in_use(system, library, mine).items() if system.techlib == scenario.system.techlib else ():
            used.setdefault(entry, set()).update(fields)
    for entry, fields in used.items():
        for path, quantity, value in quantities(library.component(*entry), entry):
            if path[-1] in fields:
                own = held(changes, path)
                yield _parameter("techlib", path, quantity, value, "technology", held(written, path) if own is None else own)


def in_use(system: SystemSpec, library: TechLibrary, choices: Mapping[str, Sequence[str]]) -> dict[ComponentPath, set[str]]:
    """Entries of the library that a system is made of, with the fields of each that count."""
    read = _generated(system, library, choices) if isinstance(system, GeneratedSystem) else _datasheet(system, library)
    used: dict[ComponentPath, set[str]] = {}
    for entry, fields in read:
        used.setdefault(entry, set()).update(fields)
    return used


def _generated(
    system: GeneratedSystem, library: TechLibrary, choices: Mapping[str, Sequence[str]]
) -> Iterator[tuple[ComponentPath, set[str]]]:
    """What the generator reads: components by role, banks by level, and the nodes that they are given for."""
    changes = system.components
    beside = not any(level.stacked_area.any() for level in system.levels.values())
    choices = {role: [name for name in names if name is not None and not is_none(name)] for role, names in choices.items()}
    memories = [name for name in (system.technology.memory, *choices.get("memory", ())) if not is_none(name)]
    unused = {
        "die_link": (system.budgets.chiplets == 1).all(),
        "stacked_logic": beside,
        "bond": beside and not any(library.component("memory", name).on_logic.any() for name in memories),
    }
    nodes = (system.technology.logic, *choices.get("logic", ()))
    still = set() if any(library.component("logic", name).leakage_doubling is not None for name in nodes) else set(HEAT)
    roles = system.technology.model_dump(exclude_none=True)
    for role, name in {**roles, **{role: None for role in choices if role not in roles}}.items():
        if unused.get(role):
            continue
        kind = kind_of(role)
        own = () if name is None or (kind == "memory" and is_none(name)) else (name,)
        for chosen in dict.fromkeys((*own, *choices.get(role, ()))):
            held = {*CELLS, *MADE} if role == "stacked_logic" else _fields(library, (kind, chosen)) - still
            yield (kind, chosen), held - _given(getattr(changes, role, None))
    if system.technology.delivery is None:
        yield from (_delivered(library, name) for name in nodes)
    for level, spec in system.levels.items():
        entry = ("on_chip", spec.component)
        yield entry, _fields(library, entry) - _given(changes.on_chip.get(level))
        yield ("logic", library.component(*entry).node), {*CELLS, "area", "power"}
    for chosen in dict.fromkeys((system.technology.compute, *choices.get("compute", ()))):
        unit: Compute = library.component("compute", chosen)
        yield ("logic", unit.node), set(LOGIC)
        yield _delivered(library, unit.node)
        yield ("compute", chosen), set() if "types" in _given(changes.compute) else {*unit.types}
        if unit.datapath is not None and (system.sparse_rates or priced(unit, system.product_rates)):
            yield ("compute", chosen), {"datapath_area", "datapath_power"} - _given(changes.compute)
            yield ("datapath", unit.datapath), _fields(library, ("datapath", unit.datapath))


def _delivered(library: TechLibrary, node: str) -> tuple[ComponentPath, set[str]]:
    """How power reaches the transistors of a node, with what is read of it; nothing where the node does not say."""
    name = library.component("logic", node).delivery
    return (("logic", node), set()) if name is None else (("delivery", name), {"supply_drop", "rail_area"})


def _datasheet(system: DatasheetSystem, library: TechLibrary) -> Iterator[tuple[ComponentPath, set[str]]]:
    """What `from_datasheet` reads where the device's own file leaves a figure open: energies and latencies."""
    technology, energy, network = system.technology, system.energy, system.network
    unit, node = ("compute", REFERENCE_UNIT), ("logic", technology.logic)
    if energy.flop is None:
        yield unit, {"nominal_power", "leakage", "nominal_flop_rate", "nominal_frequency"}
        yield from ((("logic", name), {"power"}) for name in (technology.logic, library.compute[REFERENCE_UNIT].node))
    if system.execution.chip_power is not None:
        yield unit, {"nominal_voltage", "threshold_voltage", "minimum_voltage"}
    beside = not is_none(technology.memory)
    if beside and system.levels["memory"].latency is None:
        yield ("memory", technology.memory), {"access_latency"}
    if beside and energy.memory is None:
        yield ("memory", technology.memory), {"dynamic_energy_per_bit", "interface_energy_per_bit"}
    for port, own in ((network.intra, energy.intra_link), (network.inter, energy.inter_link)):
        if port.bandwidth is not None:
            open_ = {"latency": port.latency, "nominal_energy_per_bit": own}
            yield ("link", technology.link), {name for name, value in open_.items() if value is None}
    caches = [name for name in system.levels if name in library.on_chip]
    for name in caches if system.execution.chip_power is None else ():  # else the chip's energy has theirs in it
        yield ("on_chip", name), {"dynamic_energy_per_bit"}
        yield from ((entry, {"sram_energy"}) for entry in (node, ("logic", library.on_chip[name].node)))


def _fields(library: TechLibrary, entry: ComponentPath) -> set[str]:
    """Fields of an entry; without those that count only where further types are priced."""
    return set(type(library.component(*entry)).model_fields) - {"datapath_area", "datapath_power"}


def _given(changes: Any) -> set[str]:
    """Fields that a system replaces in a component."""
    return set() if changes is None else {name for name in type(changes).model_fields if getattr(changes, name) is not None}


# ------------------------------------------------------------------------------------------ the system


def _system(scenario: Scenario) -> Iterator[Parameter]:
    system, written = scenario.system, scenario.system_document.data
    unread = UNREAD if isinstance(system, DatasheetSystem) else UNREAD[:-1]
    for path, quantity, value in quantities(system):
        if path[0] not in unread and _read_for(path, scenario):
            kind = KINDS.get(place_of(dotted(("system", *path)))[1].split(".")[0], "architecture")
            yield _parameter("system", path, quantity, value, kind, held(written, path))


def _read_for(path: tuple[str, ...], scenario: Scenario) -> bool:
    """Whether a figure counts for the workload's data type; vector units without its rate work in fp32."""
    system, dtype = scenario.system, scenario.workload.dtype
    if path[0] in ("rates", "throughput"):
        if isinstance(system, GeneratedSystem) and _takes_area(path[1], system, scenario.library):
            return True
        if isinstance(system, DatasheetSystem) and path[1] in sizing_types(system):
            return True  # the size of the matrix units, from which the power that they draw follows
        return path[1] == dtype
    if path[0] in ("sparse_rates", "sparse_speedup"):  # a rate takes area and power whether or not the workload has use of it
        return path[0] == "sparse_rates" or (path[1] == dtype and getattr(scenario.workload, "weight_sparsity", None) is not None)
    if path[0] in ("vector_rates", "vector_throughput"):
        widens = path[1] == "fp32" and getattr(scenario.workload, "weight_dtype", None) is not None
        return widens or path[1] == (dtype if dtype in getattr(system, path[0]) else "fp32")
    return True


def _takes_area(dtype: str, system: GeneratedSystem, library: TechLibrary) -> bool:
    """Whether a type's rate counts whatever type the workload has: units are larger or hotter for it."""
    unit: Compute = library.component("compute", system.technology.compute)
    return priced(unit, {dtype: system.product_rates[dtype]})


# ------------------------------------------------------------------------------------------ files


def _parameter(root: str, path: tuple[str, ...], quantity: Quantity, value: Any, kind: ParameterKind, written: Any) -> Parameter:
    """A parameter with what stands beside its value in the file."""
    beside: Mapping[str, Any] = written if isinstance(written, Mapping) else {}
    low, high = (parse(beside[key], quantity.unit) if key in beside else None for key in ("low", "high"))
    return Parameter(
        path=".".join((root, *path)),
        value=float(value[0]),
        quantity=quantity,
        kind=kind,
        source=beside.get("source"),
        low=low,
        high=high,
    )


def uncertain(
    scenario: Scenario, choices: Mapping[str, Sequence[str]] | None = None, wanted: Sequence[str] | None = None
) -> tuple[Parameter, ...]:
    """Numbers behind a scenario that carry low and high; those at or below the `wanted` paths alone, where given.

    Raises
    ------
    CrossflowError
        When a wanted path names no uncertain number, or there are none at all.
    """
    found = tuple(p for p in parameters(scenario, choices) if p.low is not None and p.high is not None and p.low < p.high)
    for path in wanted or ():
        if not any(_within(p.path, path) for p in found):
            raise CrossflowError(f"{path}: no number with low and high stands there")
    if not found:
        raise CrossflowError("no number of this scenario carries low and high")
    return tuple(p for p in found if wanted is None or any(_within(p.path, path) for path in wanted))


def _within(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}.")
