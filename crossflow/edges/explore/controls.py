"""What of a scenario can be moved: numbers with their ranges and sources, names with the names in their place, shares that add up."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args, get_origin

from crossflow.answers.explanation.dividing import count_path
from crossflow.answers.explanation.moves import names_of
from crossflow.answers.explanation.parameters import Parameter, ParameterGroup, in_use, parameters
from crossflow.answers.scenario import Scenario
from crossflow.answers.search.shares import SHARES
from crossflow.answers.sections import presets
from crossflow.base import files
from crossflow.base.files import FileModel, held
from crossflow.hardware.architecture.datasheet import OF_DATASHEETS, of_a_datasheet
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem, is_none
from crossflow.hardware.technology.library import kind_of
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.plan import Plan

REACH = 4.0  # a slider goes from a quarter of a number to four times of it
FIRST = (
    "Design",
    "Workload",
    "Technology",
    "Budgets",
    "Shares of area",
    "Shares of power",
    "Shares of perimeter",
    "Network",
)  # groups that come first
DIMENSIONS = ("global_batch", "sequence", "prompt", "output", "m", "n", "k", "task", "dtype")  # of a workload, what jobs differ in
TEMPLATES = ("generated", "systems", "devices")  # folders of systems, as a scenario names them
KEPT = ("model", "title", "notes", "sources")  # of a workload, what no control of its own changes
ControlKind = Literal["number", "whole", "name"]


@dataclass(frozen=True, kw_only=True)
class Control:
    """One thing that can be moved, as the page needs it.

    Attributes
    ----------
    path : as ``--set`` has it.
    label, group : what it is called, and what it stands under.
    kind : a number with a slider, a whole number that makes another scenario, or one of some names.
    value : as the scenario has it before it is moved; numbers in the SI unit `unit`.
    least, most : ends of the slider; None for a number that has no slider, as one that is 0.
    log : whether the slider goes by factors.
    whole : whether only whole numbers count.
    low, high : range that the files give.
    source, cited, note, about : where the value comes from: its key, what that stands for, a note beside it, what the field means.
    options : names that may stand in its place.
    stack : budget that it is a share of.
    owner : architect for what whoever designs or runs the system turns, technology for what the library gives, fit for parameters of
        the model that were fitted to measurements.
    lever : who can change it, as ``crossflow explain`` groups numbers; pages fold constants away.
    half : what a move of it leaves as it is, in a sentence, where it changes less than its name says.
    """

    path: str
    label: str
    group: str
    kind: ControlKind
    value: Any
    unit: str = "1"
    least: float | None = None
    most: float | None = None
    log: bool = False
    whole: bool = False
    low: float | None = None
    high: float | None = None
    source: str | None = None
    cited: str | None = None
    note: str | None = None
    about: str | None = None
    options: tuple[Any, ...] = ()
    stack: str | None = None
    owner: str = "architect"
    lever: ParameterGroup = "decision"
    half: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value not in (None, (), "") or name == "value"}


@functools.lru_cache(maxsize=64)
def numbers(scenario: Scenario) -> tuple[Parameter, ...]:
    """Numbers behind a scenario, each once."""
    return tuple({number.path: number for number in parameters(scenario)}.values())


@functools.lru_cache(maxsize=64)
def controls(scenario: Scenario) -> tuple[Control, ...]:
    """Everything of a scenario that can be moved, the groups in the order of the page."""
    found = [*_design(scenario), *_workload(scenario), *_technology(scenario), *(_number(scenario, number) for number in numbers(scenario))]
    groups = [*FIRST, *dict.fromkeys(control.group for control in found if control.owner == "architect")]
    order = {name: place for place, name in reversed(list(enumerate([*groups, *(control.group for control in found)])))}
    return tuple(sorted(found, key=lambda control: order[control.group]))


# ------------------------------------------------------------------------------------------ what makes another scenario


def _design(scenario: Scenario) -> Iterator[Control]:
    system, data = scenario.system, scenario.document.data
    if not scenario.workload.divisible:
        return
    named = held(data, ("system", "template"))
    if isinstance(named, str):
        options = tuple(dict.fromkeys((named, *(name for folder in TEMPLATES for name in files.catalogue("templates", folder)))))
        yield Control(path="system.template", label="system", group="Design", kind="name", value=named, options=options)
    path = count_path(scenario)
    count = system.nodes if path == "system.nodes" else scenario.devices
    about = _about(type(system), [path.split(".")[1]])
    yield _whole(path, path.split(".")[1], "Design", count, about)
    if isinstance(scenario.strategy, Plan | Hierarchy):
        software = data.get("software")
        name = software.get("like") if isinstance(software, Mapping) else software
        if scenario.stack is not None and (name is None or isinstance(name, str)):
            options = tuple(dict.fromkeys((scenario.stack.name, *files.catalogue("templates", "software"))))
            path = "software.like" if isinstance(software, Mapping) else "software"
            yield Control(path=path, label="software", group="Design", kind="name", value=name or scenario.stack.name, options=options)


def _workload(scenario: Scenario) -> Iterator[Control]:
    """The model, and its fields that are whole numbers or names."""
    spec, data = scenario.workload, scenario.document.data["workload"]
    if not spec.divisible:
        return
    named = data.get("model")
    if named in presets():
        yield Control(path="workload.model", label="model", group="Workload", kind="name", value=named, options=tuple(presets()))
    fields = [name for name in type(spec).model_fields if name not in KEPT]
    for name in sorted(fields, key=lambda name: DIMENSIONS.index(name) if name in DIMENSIONS else len(DIMENSIONS)):
        value, info = getattr(spec, name), type(spec).model_fields[name]
        path, label, about = f"workload.{name}", name.replace("_", " "), info.description
        names = names_of(info.annotation)
        if type(value) is int and value > 0:
            yield _whole(path, label, "Workload" if name in DIMENSIONS else "Model", value, about)
        elif isinstance(value, str) and len(names) > 1:
            group = "Workload" if name in DIMENSIONS else "Model"
            yield Control(path=path, label=label, group=group, kind="name", value=value, options=names, about=about)
    yield from _serving(scenario)


def _serving(scenario: Scenario) -> Iterator[Control]:
    """How many requests come to a service, and the tokens that its step computes at most: its own number, or that of its engine."""
    spec, stack = scenario.workload, scenario.stack
    if not spec.is_service:
        return
    rate = 0.0 if spec.service.arrival_rate is None else float(spec.service.arrival_rate)
    if rate >= 1 and rate.is_integer():  # sliders of what makes another scenario go by doublings
        about = type(spec.service).model_fields["arrival_rate"].description
        yield _whole("workload.serving.arrival_rate", "requests a second", "Workload", int(rate), about)
    chunk = spec.service.chunk or (None if stack is None else stack.engine.chunk)
    if chunk is not None:
        about = type(spec.service).model_fields["chunk"].description
        yield _whole("workload.serving.chunk", "tokens of a step", "Workload", int(chunk), about)


def _whole(path: str, label: str, group: str, value: int | None, about: str | None) -> Control:
    count = int(value or 1)
    least, most = max(1, count // 16), max(16 * count, 16)
    return Control(
        path=path, label=label, group=group, kind="whole", value=count, least=least, most=most, log=True, whole=True, about=about
    )  # fmt: skip


def _technology(scenario: Scenario) -> Iterator[Control]:
    """Roles of the technology that count, with the entries of the library that may take them."""
    system, library = scenario.system, scenario.library
    for role, name in system.technology.model_dump(exclude_none=True).items():
        kind = kind_of(role)
        if role == "memory" and is_none(name):
            continue
        if not _counts(scenario, role, kind, name):
            continue
        entry = library.component(kind, name)
        about = getattr(entry, "title", "") or None
        path, label = f"system.technology.{role}", role.replace("_", " ")
        half = of_a_datasheet(path, OF_DATASHEETS) if isinstance(system, DatasheetSystem) else None
        options = tuple(library.names(kind))
        yield Control(path=path, label=label, group="Technology", kind="name", value=name, options=options, about=about, half=half)


def _counts(scenario: Scenario, role: str, kind: str, name: str) -> bool:
    """Whether anything depends on the entry of a role, as nothing does on a link between dies where there is one die."""
    system, library = scenario.system, scenario.library
    used = in_use(system, library, {})
    if not isinstance(system, GeneratedSystem):
        return (kind, name) in used
    other = next((other for other in library.names(kind) if (kind, other) not in used), None)
    return (kind, name) in used if other is None else (kind, other) in in_use(system, library, {role: (other,)})


# ------------------------------------------------------------------------------------------ numbers


def _number(scenario: Scenario, number: Parameter) -> Control:
    parts = number.path.split(".")
    label, group = _called(parts)
    least, most, log = span(number)
    written, sources = _written(scenario, parts)
    return Control(
        path=number.path, label=label, group=group, kind="number", value=number.value, unit=number.quantity.unit, least=least, most=most,
        log=log, whole=number.quantity.whole, low=number.low, high=number.high, source=number.source,
        cited=sources.get(number.source or ""), note=written.get("note"), about=_told(scenario, parts), stack=_stack(scenario, number.path),
        owner="technology" if number.kind == "technology" else "fit" if number.fitted else "architect",
        lever=number.group(generated=isinstance(scenario.system, GeneratedSystem)),
    )  # fmt: skip


def span(number: Parameter) -> tuple[float | None, float | None, bool]:
    """Ends of the slider of a number, and whether it goes by factors; shares go from 0 to 1."""
    value, quantity = number.value, number.quantity
    if quantity.le is not None and quantity.unit == "1" and not quantity.whole:
        return max(quantity.ge or 0.0, quantity.gt or 0.0), quantity.le, False
    if not (value > 0 and math.isfinite(value)):
        return None, None, False
    least, most = min(value / REACH, number.low or value), max(value * REACH, number.high or value)
    if quantity.whole:
        least, most = max(math.ceil(least), 1), max(math.floor(most), 2)
    if quantity.ge is not None:
        least = max(least, quantity.ge)
    if quantity.gt is not None and least <= quantity.gt:
        least = (quantity.gt + value) / 2
    if quantity.le is not None:
        most = min(most, quantity.le)
    return (least, most, True) if least < most else (None, None, False)


def _stack(scenario: Scenario, path: str) -> str | None:
    generated = isinstance(scenario.system, GeneratedSystem)
    return next((budget for budget in SHARES if generated and path.startswith(f"{budget}.")), None)


def _called(parts: list[str]) -> tuple[str, str]:
    """Label and group of a number."""
    if parts[0] == "techlib":
        return " ".join(parts[3:]).replace("_", " "), f"{parts[1].replace('_', ' ')} {parts[2]}"
    head, rest = parts[1], parts[2:] or parts[1:]
    if head == "budgets" and rest[0] in ("area", "power_shares", "perimeter"):
        return " ".join(rest[1:]).replace("_", " ").removeprefix("on chip "), f"Shares of {rest[0].removesuffix('_shares')}"
    if parts[1:3] == ["network", "parameters"]:
        return " ".join(parts[3:]).replace("_", " "), "Network protocols"
    groups = {"budgets": "Budgets", "network": "Network", "levels": "Memory levels", "execution": "Execution", "operation": "Operation"}
    group = groups.get(head, "Device")
    whole = rest if head in groups else parts[1:]
    return " ".join(whole).replace("_", " "), group


def _written(scenario: Scenario, parts: list[str]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """What stands beside a number in its file, and the sources that the file names."""
    own = scenario.document.data.get("techlib" if parts[0] == "techlib" else "system")
    data = library_data(scenario) if parts[0] == "techlib" else scenario.system_document.data
    found = held(own, parts[1:]) if parts[0] == "techlib" else None
    found = held(data, parts[1:]) if found is None else found
    sources = data.get("sources", {})
    return (found if isinstance(found, Mapping) else {}), (sources if isinstance(sources, Mapping) else {})


@functools.lru_cache(maxsize=64)
def library_data(scenario: Scenario) -> Mapping[str, Any]:
    """Plain data of the technology library of a scenario."""
    data: Mapping[str, Any] = scenario.library_document().data
    return data


def _told(scenario: Scenario, parts: list[str]) -> str | None:
    if parts[0] == "techlib":
        return _about(type(scenario.library.component(parts[1], parts[2])), parts[3:])
    return _about(type(scenario.system), parts[1:])


def _about(model: Any, path: list[str]) -> str | None:
    """What a field of a file model means, as its description says."""
    if not path:
        return None
    if isinstance(model, type) and issubclass(model, FileModel):
        info = model.model_fields.get(path[0])
        if info is None:
            return None
        return info.description if len(path) == 1 else _about(info.annotation, path[1:]) or info.description
    inner = get_args(model)
    if get_origin(model) is not None and _is_mapping(get_origin(model)):
        return _about(inner[-1], path[1:])
    return next((found for one in inner if (found := _about(one, path)) is not None), None)


def _is_mapping(origin: Any) -> bool:
    """Whether an annotation is of a mapping."""
    return isinstance(origin, type) and issubclass(origin, Mapping)


def controls_against(scenario: Scenario, start: Scenario) -> tuple[Control, ...]:
    """Controls of a scenario; names and whole numbers that the one which it started from has too with the values that they had there."""
    before = {control.path: control.value for control in controls(start) if control.kind != "number"}
    return tuple(replace(control, value=before.get(control.path, control.value)) for control in controls(scenario))
