"""The technology library: components by name, scaled to logic nodes, gathered for a whole batch of design points."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import PrivateAttr

from crossflow.base import files, limits
from crossflow.base.arrays import Array, Index, Mask, numbered
from crossflow.base.errors import CrossflowError, SpecError, among, did_you_mean, known_name
from crossflow.base.files import Document, FileModel, NamedFileModel
from crossflow.base.paths import quantity_at
from crossflow.base.provenance import digest
from crossflow.base.units import Quantity
from crossflow.hardware.technology.alpha_power import relative_power, voltage_at
from crossflow.hardware.technology.components import (
    Bond,
    Compute,
    Datapath,
    Delivery,
    Link,
    LogicNode,
    OffChip,
    OnChip,
    Substrate,
    Switch,
)

Component = TypeVar("Component", bound=FileModel)
# Sections of a library.
KINDS = ("logic", "delivery", "compute", "datapath", "on_chip", "memory", "link", "switch", "bond", "substrate")
Scaled = TypeVar("Scaled", Compute, OnChip)
ONE = np.ones(1)


def kind_of(role: str) -> str:
    """Section of the library from which a role of `system.technology` takes its entry.

    >>> kind_of("die_link"), kind_of("stacked_logic"), kind_of("second_memory"), kind_of("intra_switch")
    ('link', 'logic', 'memory', 'switch')
    """
    return next((kind for kind in ("link", "logic", "memory", "switch") if role.endswith(kind)), role)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Library entries by name, and which of them each design point takes: `names[index[i]]` for point i."""

    names: tuple[str, ...]
    index: Index

    @classmethod
    def of(cls, names: Sequence[str]) -> Choice:
        """Choice of one name a point."""
        different, index = numbered(names)
        return cls(names=different, index=index)

    def at(self, points: Index) -> Choice:
        """The same choice for some of the points."""
        return Choice(names=self.names, index=self.index[points])


class TechLibrary(NamedFileModel):
    """Components of every kind by name, and the logic nodes between which they scale.

    A file may extend another (``extends: standard``): its entries are added to the other's, or take their place. In the
    sections that a file names under `stated`, every number that the file itself gives says how it is known (`status`) and
    between which bounds it lies.
    """

    name: str
    title: str = ""
    extends: str | None = None
    sources: Mapping[str, str]
    stated: tuple[str, ...] = ()
    logic: Mapping[str, LogicNode]
    delivery: Mapping[str, Delivery] = {}
    compute: Mapping[str, Compute] = {}
    datapath: Mapping[str, Datapath] = {}
    on_chip: Mapping[str, OnChip] = {}
    memory: Mapping[str, OffChip] = {}
    link: Mapping[str, Link] = {}
    switch: Mapping[str, Switch] = {}
    bond: Mapping[str, Bond] = {}
    substrate: Mapping[str, Substrate] = {}
    _left_out: Mapping[str, tuple[str, ...]] = PrivateAttr(default={})  # names of the library below that it has no entries of, by kind

    def names(self, kind: str) -> tuple[str, ...]:
        """Names of the components of a kind (compute, datapath, on_chip, memory, link, switch, bond, substrate, logic, delivery)."""
        return tuple(getattr(self, kind))

    def component(self, kind: str, name: str) -> Any:
        """Component of a kind by name, in any letter case; CrossflowError with the known names when there is none."""
        return getattr(self, kind)[self.name_of(kind, name)]

    def name_of(self, kind: str, name: str) -> str:
        """Name of a component of a kind as the library has it; CrossflowError with the known names when there is none."""
        known: Mapping[str, Any] = getattr(self, kind)
        found = known_name(name, known)
        if found is None:
            left = known_name(name, dict.fromkeys(self._left_out.get(kind, ())))
            cure = (
                f"; '{self.extends}', which it extends, has it: `techlib: {self.extends}` takes all figures of that library, where the"
                " other parts of the template are in it too"
            )
            raise CrossflowError(
                f"technology library '{self.name}' has no {kind.replace('_', '-')} '{name}'"
                f"{did_you_mean(name, known) if left is None else cure}; known: {among(known, f'`crossflow show {self.name}`')}"
            )
        return found

    def quantity(self, path: Sequence[str]) -> Quantity | None:
        """The quantity at a path such as (memory, HBM3, device_capacity); CrossflowError for a component that is not there."""
        return quantity_at(self, self.path_of(path))

    def path_of(self, path: Sequence[str]) -> tuple[str, ...]:
        """A path such as (memory, hbm3, device_capacity) with the component's name as the library has it."""
        if len(path) > 2 and isinstance(getattr(self, path[0], None), Mapping):
            return (path[0], self.name_of(path[0], path[1]), *path[2:])
        return tuple(path)

    def gather(self, kind: str, choice: Choice) -> Any:
        """Component whose fields hold, for each design point, the figures of the component chosen there."""
        return gather([self.component(kind, name) for name in choice.names], choice.index)

    def scale(self, component: Scaled, nodes: Choice, grown: Array = ONE) -> Scaled:
        """Component carried from its own logic node to the node of each design point.

        Logic takes the node's factors of area and power at equal speed; bit cells have factors of their own, because they
        shrink less than logic [1]_. What stands beside the bits (slices, ports, control) is logic; the energy and delay of a
        wire of given length stay. Units take the node's voltages and speed as well, see `_operated`.

        grown : area of logic over what the factors of the nodes say, where power reaches it another way. [1]

        References
        ----------
        .. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 9.
        """
        own, target = self.component("logic", component.node), self.gather("logic", nodes)
        area, power = grown * target.area / own.area, target.power / own.power
        if isinstance(component, Compute):
            changed = {"nominal_area": component.nominal_area * area, **_operated(component, own, target, power)}
        else:
            changed = {
                "area_per_bit": component.area_per_bit * target.sram_area / own.sram_area,
                "dynamic_energy_per_bit": component.dynamic_energy_per_bit * target.sram_energy / own.sram_energy,
                "static_power_per_bit": component.static_power_per_bit * target.sram_leakage / own.sram_leakage,
                "slice_area": component.slice_area * area,
                "port_area": component.port_area * area,
                "control_energy_per_bit": component.control_energy_per_bit * power,
            }
        return component.model_copy(update=changed)


VOLTAGES = ("nominal_voltage", "threshold_voltage", "minimum_voltage", "maximum_voltage")


def _operated(unit: Compute, own: LogicNode, target: LogicNode, power: Array) -> dict[str, Array]:
    """Voltages, clock and power of a unit at a node; its own, but for the power, where one of the nodes does not say them.

    Foundries publish the power at equal speed, which is met exactly: the node reaches the unit's clock at the voltage at which
    f(V) = 1 / speed, and draws `power` times the unit's power there. What it draws at its nominal voltage follows by the law.
    Leakage stays the same share of it.
    """
    speed, *factors = (_over(getattr(target, name), getattr(own, name)) for name in ("speed", *VOLTAGES))
    found = {name: getattr(unit, name) * factor for name, factor in zip(VOLTAGES, factors, strict=True)}
    nominal, threshold = found["nominal_voltage"], found["threshold_voltage"]
    equal = np.where(speed == 1.0, nominal, voltage_at(1.0 / speed, nominal, threshold))
    drawn = np.where(speed == 1.0, 1.0, relative_power(equal, nominal, threshold, unit.leakage))
    return {**found, "nominal_frequency": unit.nominal_frequency * speed, "nominal_power": unit.nominal_power * power / drawn}


def _over(target: Array | None, own: Array | None) -> Array:
    """A figure of a node over that of another; 1 at points where one of them lacks it, which `gather` writes as infinite. [1]"""
    if target is None or own is None:
        return np.ones(1)
    known = np.isfinite(target) & np.isfinite(own)
    return np.where(known, np.where(known, target, 1.0) / np.where(known, own, 1.0), 1.0)


def gather(components: Sequence[Component], index: Index) -> Component:
    """One component whose quantities have shape (n,): point i takes those of `components[index[i]]`, (1,) or (n,) themselves.

    A field that only some of them carry (a fixed number of lanes) is infinite, that is no limit, for the others.
    """
    if len(components) == 1:
        return components[0]
    changed: dict[str, Array] = {}
    for name in type(components[0]).model_fields:
        values = [getattr(component, name) for component in components]
        if any(isinstance(value, np.ndarray) for value in values):
            changed[name] = taken([np.atleast_1d(np.inf if value is None else value) for value in values], index)
    return components[0].model_copy(update=changed)


def taken(figures: Sequence[Array], index: Index) -> Array:
    """Of some arrays of shape (1,) or (n,) the one that each design point takes: `figures[index[i]]` at point i."""
    if all(figure.size == 1 for figure in figures):
        return np.concatenate(figures)[index]
    return np.asarray(np.stack(np.broadcast_arrays(*figures))[index, np.arange(index.size)])


def load_library(name: str, base: Path | None = None) -> TechLibrary:
    """Read a technology library by shipped name or path, with what it extends."""
    return _library(_chain(name, base))


def library_document(name: str, base: Path | None = None) -> Document:
    """Plain data of a library after `extends` has been followed; an entry that is null leaves out that of the library below."""
    return _merged(_chain(name, base))


def library_digest(name: str, base: Path | None = None) -> str:
    """`digest` of that data, worked out once for a library: it is long, and every result has it."""
    return _digested(_chain(name, base))


Texts = tuple[tuple[str, str], ...]  # files and what they hold


def _chain(name: str, base: Path | None) -> Texts:
    """A library's file and text, and after it those that it extends, as far down as they go."""
    found: list[tuple[str, str]] = []
    places: list[str] = []
    while True:
        path = files.find("techlibs", name, base)
        text = files.read_text(path, limits.YAML_BYTES)
        document = _own(str(path), text)
        found.append((str(path), text))
        places.append(os.path.normpath(path))
        parent = document.data.get("extends")
        if parent is None:
            return tuple(found)
        if parent == document.data.get("name") or places[-1] in places[:-1]:
            raise document.error(("extends",), "a library cannot extend itself")
        if not isinstance(parent, str):
            raise document.error(("extends",), f"expected the name of a library, or its path, got {limits.shown(parent)}")
        with document.telling("extends"):
            files.find("techlibs", parent, path.parent)
        name, base = parent, path.parent


@functools.lru_cache(maxsize=32)
def _own(file: str, text: str) -> Document:
    """What one file of a library says."""
    document = files.read_mapping(text, file)
    if not set(TechLibrary.model_fields) & set(document.data):
        raise document.error((), f"is no technology library: it has none of its keys, {', '.join(TechLibrary.model_fields)}")
    if "like" in document.data:
        other = document.data["like"] if isinstance(document.data["like"], str) else "standard"
        raise document.error(("like",), f"a library begins with another one by `extends`: write extends: {other}")
    _check_whole(document)
    _check_stated(document)
    return document


def _check_whole(document: Document) -> None:
    """SpecError for entries that would begin with the figures of another one."""
    problems = []
    for section in (key for key in document.data if key in TechLibrary.model_fields):
        entries = document.data[section]
        for name in entries if isinstance(entries, Mapping) else ():
            if isinstance(other := files.held(document.data, (section, name, "like")), str):
                message = f"an entry has all of its figures itself; copy those of `crossflow show {section}/{other}`, and change some"
                problems.append(document.problem((section, name, "like"), message))
    if problems:
        raise SpecError(problems)


@functools.lru_cache(maxsize=32)
def _merged(chain: Texts) -> Document:
    (file, text), *rest = chain
    if not rest:
        return _with_nodes(_own(file, text))
    below = _merged(tuple(rest))
    return _with_nodes(_without_null(files.merge(below, _own(file, text)), below))


@functools.lru_cache(maxsize=32)
def _digested(chain: Texts) -> str:
    return digest(_merged(chain).data)


@functools.lru_cache(maxsize=32)
def _library(chain: Texts) -> TechLibrary:
    document = _merged(chain)
    library = files.validate(TechLibrary, document, sourced=True)
    _check(library, document)
    if chain[1:]:
        below = _merged(chain[1:]).data
        library._left_out = {kind: tuple(set(below.get(kind, ())) - set(library.names(kind))) for kind in KINDS}
    return library


def _with_nodes(document: Document) -> Document:
    """A library whose components name their logic nodes as it does itself."""
    nodes, data = document.data.get("logic"), document.data
    for kind in ("compute", "on_chip") if isinstance(nodes, Mapping) else ():
        for name in data[kind] if isinstance(data.get(kind), Mapping) else ():
            named = files.held(data, (kind, name, "node"))
            with document.telling(kind, name, "node"):
                known = known_name(named, nodes) if isinstance(named, str) else None
            if known not in (None, named):
                data = files.replace(data, (kind, name, "node"), known, document.file)
    return document if data is document.data else Document(file=document.file, data=data, lines=document.lines)


def _without_null(document: Document, below: Document) -> Document:
    """A library without the entries that are null; SpecError for those that leave nothing out of the library below."""
    absent = [
        (part, name) for part, entries in document.data.items() if isinstance(entries, Mapping) for name in entries if entries[name] is None
    ]
    if lost := [where for where in absent if files.held(below.data, where) is None]:
        known = {part: files.held(below.data, (part,)) or {} for part, _ in lost}
        raise SpecError(
            [
                document.problem((part, name), f"null leaves out nothing: there is no '{name}' below{did_you_mean(name, known[part])}")
                for part, name in lost
            ]
        )
    data = dict(document.data)
    for part, name in absent:
        data[part] = {key: entry for key, entry in data[part].items() if key != name}
    return Document(file=document.file, data=data, lines=document.lines)


def _check_stated(document: Document) -> None:
    """Numbers of the sections named under `stated` that leave open how they are known, or between which bounds they lie."""
    problems, said = [], document.data.get("stated")
    stated = said if isinstance(said, list) else ()  # what else it may be is told when the library is read
    for section in (name for name in document.data if name in stated):
        for path, number in _numbers(document.data[section], (section,)):
            if missing := [key for key in ("status", "low", "high") if key not in number]:
                message = f"expected the key '{missing[0]}': the file says under `stated` that every number of '{section}' has it"
                problems.append(document.problem(path, message))
    if problems:
        raise SpecError(problems)


def _numbers(data: Any, path: files.Path_ = ()) -> list[tuple[files.Path_, Mapping[str, Any]]]:
    """Numbers with their sources in plain data, with their paths; what is no container is passed over, for it is most of a library."""
    found: list[tuple[files.Path_, Mapping[str, Any]]] = [(path, data)] if isinstance(data, dict) and "value" in data else []
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        if isinstance(value, (dict, list)):
            found += _numbers(value, (*path, key))
    return found


def _check(library: TechLibrary, document: Document) -> None:
    """Problems that no single field shows: unknown sources and nodes, voltages out of order."""
    problems = []
    for path, number in _numbers(document.data):
        if (source := number.get("source")) not in library.sources:
            message = f"source '{source}' is not among the file's sources{did_you_mean(str(source), library.sources)}"
            problems.append(document.problem((*path, "source"), message))
    for kind in KINDS:
        dotted = [name for name in library.names(kind) if "." in name]
        problems += [document.problem((kind, name), f"a name must not hold a dot, which parts paths: '{name}'") for name in dotted]
    for kind in ("compute", "on_chip"):
        for name, part in getattr(library, kind).items():
            if part.node not in library.logic:
                problems.append(
                    document.problem((kind, name, "node"), f"no logic node '{part.node}'{did_you_mean(part.node, library.logic)}")
                )
    for name, unit in library.compute.items():
        if unit.datapath is not None and unit.datapath not in library.datapath:
            known = did_you_mean(unit.datapath, library.datapath)
            problems.append(document.problem(("compute", name, "datapath"), f"no datapath '{unit.datapath}'{known}"))
    for name, node in library.logic.items():
        if node.delivery is not None and node.delivery not in library.delivery:
            known = did_you_mean(node.delivery, library.delivery)
            problems.append(document.problem(("logic", name, "delivery"), f"no delivery '{node.delivery}'{known}"))
        if all(getattr(node, field) is not None for field in VOLTAGES) and disordered(node).any():
            problems.append(document.problem(("logic", name), DISORDER))
    for kind in ("compute", "memory", "link"):
        problems += [document.problem((kind, name), DISORDER) for name, part in getattr(library, kind).items() if disordered(part).any()]
    if problems:
        raise SpecError(problems)


DISORDER = "voltages must satisfy threshold < minimum <= nominal <= maximum"


def disordered(part: Any) -> Mask:
    """Design points at which the voltages of a unit, memory, link or node are out of order."""
    rising = (part.threshold_voltage < part.minimum_voltage) & (part.minimum_voltage <= part.nominal_voltage)
    return np.asarray(~(rising & (part.nominal_voltage <= part.maximum_voltage)))
