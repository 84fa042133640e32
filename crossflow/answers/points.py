"""Design points: the paths of a scenario that differ between them, sorted by what it takes to vary them.

Technology names and quantities vary inside one batch; other settings may make another scenario (`crossflow.answers.steps.members`).
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from crossflow.answers.scenario import SHORT, Scenario, check_strategy, divides, from_document, spelled_out
from crossflow.answers.sections import names_at
from crossflow.base import files
from crossflow.base.arrays import Array, Index, python
from crossflow.base.errors import CrossflowError, SpecError, StrategyError, did_you_mean, known_name
from crossflow.base.files import Document
from crossflow.base.paths import quantity_at
from crossflow.base.units import Quantity
from crossflow.hardware.architecture import divisions
from crossflow.hardware.architecture.template import GeneratedSystem, is_none
from crossflow.hardware.technology.library import KINDS, Choice, kind_of

# Sections of a scenario that vary from point to point.
SECTIONS = ("system", "techlib", "workload", "strategy", "software", "placement", "kernels_per_device", "requests", "run", "job")
_DIVIDED = ("strategy", "placement", "system.network")  # sections of which values may be right, and clash with others
STRATEGY = "strategy"  # the path of it
Points = Mapping[str, Sequence[Any]]
Together = Mapping[str, Mapping[str, Any]]  # settings by path that change together, for each name of a swept value


@dataclass(frozen=True, kw_only=True)
class Split:
    """Points by kind of path: technology choices, quantities of system and library, and what makes another scenario."""

    choices: Mapping[str, Choice]  # by path
    quantities: Mapping[str, Array]
    discrete: Mapping[str, Sequence[Any]]


def is_together(given: Any) -> bool:
    """Whether values of a sweep are settings by name: ``{"H100": {"system.template": ...}, "B200": {...}}``."""
    return isinstance(given, Mapping) and bool(given) and all(isinstance(settings, Mapping) for settings in given.values())


def read_together(name: str, given: Together) -> Together:
    """Settings that change together; CrossflowError for a name that is a path, and where one value lacks what another sets."""
    if "." in name or name in SECTIONS:
        raise CrossflowError(f"'{name}' is a path of a scenario; what changes together has a name of its own, such as hardware")
    known = dict.fromkeys(path for settings in given.values() for path in settings)
    for value, settings in given.items():
        if not known:
            raise CrossflowError(f"{value} has no settings; give each value settings by path, such as {{system.template: dgx-h100}}")
        if lacking := [path for path in known if path not in settings]:
            raise CrossflowError(f"{value} says nothing of {', '.join(lacking)}, which other values of {name} set; give it there too")
    return given


def by_path(points: Points, together: Mapping[str, Together]) -> dict[str, Sequence[Any]]:
    """Points by path: settings in the place of names of what changes together.

    >>> by_path({"chip": ["a", "b"], "strategy": ["tp8", "tp8"]}, {"chip": {"a": {"system.nodes": 1}, "b": {"system.nodes": 2}}})
    {'system.nodes': [1, 2], 'strategy': ['tp8', 'tp8']}
    """
    found: dict[str, Sequence[Any]] = {}
    for name, values in points.items():
        if name not in together:
            found[name] = values
            continue
        known = together[name]
        found |= {path: [known[value][path] for value in values] for path in next(iter(known.values()))}
    return found


def written(scenario: Scenario, path: str, value: Any) -> Any:
    """A value as a scenario file gives it: a quantity with its unit."""
    quantity = varied(scenario, path)
    return value if quantity is None or not isinstance(value, float) or quantity.unit == "1" else f"{value!r} {quantity.unit}"


def as_shipped(scenario: Scenario, points: Points) -> Points:
    """The points with the names of shipped files and of library entries as these have them, in paths and in values."""
    return {path_as_shipped(scenario, path): values_as_shipped(scenario, path, values) for path, values in points.items()}


def path_as_shipped(scenario: Scenario, path: str) -> str:
    """A path with the name of the library entry in it as the library has it."""
    return ".".join(("techlib", *scenario.library.path_of(path.split(".")[1:]))) if path.startswith("techlib.") else path


def values_as_shipped(scenario: Scenario, path: str, values: Sequence[Any]) -> Sequence[Any]:
    """Values of a path with the names among them as the shipped files, or the library, have them."""
    parts = tuple(path.split("."))
    known = names_at(parts) or names_at((*parts, SHORT.get(path, "")))
    place, rest = place_of(path)
    role = rest.removeprefix("technology.")
    if place in scenario.system.places and role != rest and kind_of(role) in KINDS:
        library = scenario.library_of(scenario.system.places[place])
        known = functools.partial(known_name, known=library.names(kind_of(role)))
    if known is None:
        return values
    names = {value: known(value) for value in {value for value in values if isinstance(value, str)}}
    renamed = {value: name for value, name in names.items() if name not in (None, value)}
    return [renamed.get(value, value) if isinstance(value, str) else value for value in values] if renamed else values


def split(scenario: Scenario, points: Points) -> Split:
    """Sort the paths of points by kind, with their values read."""
    choices: dict[str, Choice] = {}
    quantities: dict[str, Array] = {}
    discrete: dict[str, Sequence[Any]] = {}
    for path, values in points.items():
        if not isinstance(values, np.ndarray) and any(value is None for value in values):  # null: another device, without that part
            discrete[path] = values
            continue
        place, role = technology_at(scenario, path)
        if role is not None:
            system = scenario.system.places[place]
            assert isinstance(system, GeneratedSystem)  # whose technology is chosen
            known = type(system.technology).model_fields
            if role not in known:
                raise CrossflowError(f"{path}: no such technology role{did_you_mean(role, known)}; known: {', '.join(known)}")
            if place != "system" and kind_of(role) == "switch":
                raise CrossflowError(f"{path}: named switches are counted for the devices of the system itself only")
            choice = Choice.of([*map(str, values)])
            if (role == "memory" and system.on_chip_only) or (kind_of(role) == "memory" and any(map(is_none, choice.names))):
                discrete[path] = values  # a chip without one of the memories has other levels, and no figures of it
                continue
            choices[path] = choice
        elif (quantity := varied(scenario, path)) is not None:
            quantities[path] = _read(path, quantity, values)
        else:
            discrete[path] = values
    if choices:
        choices, discrete = _with_memory(points, choices, discrete)
        quantities = {**_divisions(scenario, choices), **quantities}
    return Split(choices=choices, quantities=quantities, discrete=discrete)


def _with_memory(
    points: Points, choices: dict[str, Choice], discrete: dict[str, Sequence[Any]]
) -> tuple[dict[str, Choice], dict[str, Sequence[Any]]]:
    """Choices and discrete settings, nodes among the latter where memories are: divisions are found for both together."""
    apart = {path for path in choices if path.endswith(".logic") and f"{path.removesuffix('logic')}memory" in discrete}
    return {path: one for path, one in choices.items() if path not in apart}, {**discrete, **{path: points[path] for path in apart}}


def technology_at(scenario: Scenario, path: str) -> tuple[str, str | None]:
    """The generated system and the role of its technology that a path chooses an entry for; None for a path that chooses none.

    >>> import crossflow
    >>> technology_at(crossflow.load({"system": "reference", "workload": "llama3-8b", "strategy": "tp8"}), "system.technology.memory")
    ('system', 'memory')
    """
    place, rest = place_of(path)
    section, _, role = rest.partition(".")
    chooses = section == "technology" and role and "." not in role and isinstance(scenario.system.places.get(place), GeneratedSystem)
    return place, role if chooses else None


def place_of(path: str) -> tuple[str, str]:
    """The system, or the pool of it, that a path lies in, and the rest of the path.

    >>> place_of("system.budgets.power"), place_of("system.pools.prefill.budgets.power")
    (('system', 'budgets.power'), ('system.pools.prefill', 'budgets.power'))
    """
    parts = path.split(".")
    depth = 3 if parts[:2] == ["system", "pools"] else 1
    return ".".join(parts[:depth]), ".".join(parts[depth:])


def chosen_of(scenario: Scenario, choices: Mapping[str, Choice]) -> dict[str, dict[str, Choice]]:
    """Choices of technology of every generated system, by role."""
    found: dict[str, dict[str, Choice]] = {place: {} for place in scenario.system.places}
    for path, choice in choices.items():
        place, role = technology_at(scenario, path)
        if role is not None:
            found[place][role] = choice
    return found


def _divisions(scenario: Scenario, choices: Mapping[str, Choice]) -> dict[str, Array]:
    """Divisions of generated devices for the points that choose among nodes or memories, by path; empty where none has a table of them."""
    found: dict[str, Array] = {}
    for place, mine in chosen_of(scenario, choices).items():
        system = scenario.system.places[place]
        if not isinstance(system, GeneratedSystem) or not system.budgets.divisions or not set(mine) & set(divisions.ROLES):
            continue
        logic, memory = (mine.get(role, Choice.of((getattr(system.technology, role),))) for role in divisions.ROLES)
        tables = _tabled(scenario, place, logic.names, memory.names)
        found |= {f"{place}.{path}": table[logic.index, memory.index] for path, table in tables.items()}
    return found


def division_notes(scenario: Scenario, technology: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Iterator[str]:
    """Divisions of generated devices that their templates' tables do not hold, for their own technology or for each of several, by path."""
    for place, system in scenario.system.places.items():
        if not isinstance(system, GeneratedSystem) or not system.budgets.divisions:
            continue
        own = {role: (getattr(system.technology, role),) for role in divisions.ROLES}
        named = (dict.fromkeys(technology.get(f"{place}.technology.{role}", own[role])) for role in divisions.ROLES)
        for node, memory in itertools.product(*named):
            if note := divisions.origin(system, node, memory, scenario.library_of(system)).note:
                yield note


@functools.lru_cache(maxsize=256)  # a search asks with every batch of designs
def _tabled(scenario: Scenario, place: str, nodes: tuple[str, ...], memories: tuple[str, ...]) -> dict[str, Array]:
    system = scenario.system.places[place]
    assert isinstance(system, GeneratedSystem)  # the caller has looked
    return divisions.tables(system, nodes, memories, scenario.library_of(system))


@functools.lru_cache(maxsize=16384)  # a search asks for its paths with every batch of designs
def varied(scenario: Scenario, path: str) -> Quantity | None:
    """The quantity of the system or of its technology library at a path, None for any other path of a scenario."""
    root, *rest = path.split(".")
    if root == "system":
        return quantity_at(scenario.system, rest)
    if root == "techlib":
        return scenario.library.quantity(rest)
    return None


def _read(path: str, quantity: Quantity, values: Sequence[Any]) -> Array:
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return _checked(path, quantity, values)
    try:
        read = [value if isinstance(value, float) else float(quantity.read(value)[0]) for value in map(python, values)]
    except ValueError as error:
        raise CrossflowError(f"{path}: {error}") from None
    return _checked(path, quantity, np.array(read))


def _checked(path: str, quantity: Quantity, values: Array) -> Array:
    """The values, if all lie in the range of the quantity."""
    try:
        for value in (values.min(), values.max()):
            quantity.checked(float(value))
    except ValueError as error:
        raise CrossflowError(f"{path}: {error}") from None
    return values


def groups(discrete: Mapping[str, Sequence[Any]], n: int) -> Iterator[tuple[dict[str, Any], Index]]:
    """Points that agree in all discrete settings, with the settings; one group where there are none."""
    if not discrete:
        yield {}, np.arange(n)
        return
    members: dict[str, list[int]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for i in range(n):
        here = {path: values[i] for path, values in discrete.items()}
        key = repr(here)
        members.setdefault(key, []).append(i)
        settings.setdefault(key, here)
    for key, index in members.items():
        yield settings[key], np.array(index)


def variant(scenario: Scenario, settings: Mapping[str, Any]) -> Scenario:
    """The scenario with discrete settings applied; sections that they leave alone are not read again."""
    return _variant(scenario, json.dumps(settings, default=_plain)) if settings else scenario


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


@functools.lru_cache(maxsize=4096)
def _variant(scenario: Scenario, settings: str) -> Scenario:
    chosen = json.loads(settings)
    data = spelled_out(scenario.document, chosen).data
    for path, value in chosen.items():
        data = files.replace(data, files.parts_of(path), value, f"{path}={value}")
    document = Document(file=scenario.document.file, data=data, lines=scenario.document.lines)
    return from_document(document, scenario.base, scenario.name, like=scenario)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why settings make no scenario."""

    reason: str  # a sentence
    divides: bool  # whether it is about dividing a workload over devices, not about a value that cannot be read


def refusal(scenario: Scenario, settings: Mapping[str, Any]) -> Refusal | None:
    """Why discrete settings make no scenario whose strategy divides its workload, None where they do."""
    return _refusal(scenario, json.dumps(settings, default=_plain))


@functools.lru_cache(maxsize=65536)
def _refusal(scenario: Scenario, settings: str) -> Refusal | None:
    chosen = json.loads(settings)
    if list(chosen) == ["strategy"] and divides(scenario, chosen["strategy"]):
        return None  # without a scenario of its own for each of thousands of strategies
    try:
        check_strategy(variant(scenario, chosen))
    except StrategyError as error:
        return Refusal(reason=str(error), divides=True)
    except SpecError as error:
        return Refusal(reason=str(error), divides=all(problem.path.startswith(_DIVIDED) for problem in error.problems))
    except CrossflowError as error:
        return Refusal(reason=str(error), divides=False)
    return None
