"""What turns settings that are no design into one, and what keeps a strategy that gave way: sentences, each with settings that do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from crossflow.answers.evaluation.remedies import Remedy
from crossflow.answers.explanation.designs import AUTO, discrete_of, read_design
from crossflow.answers.explanation.dividing import count_path, nearest, undecided
from crossflow.answers.explanation.moves import names_of
from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError
from crossflow.base.formats import FORMATS
from crossflow.edges.explore.controls import controls
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.reading import read_strategy

MOST_TYPES = 2  # data types that are offered


def repairs(scenario: Scenario, settings: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """Changes of settings that make a design of them, the mildest first; none where they are one.

    Another data type, where a device lacks that of the workload; the nearest strategy, or as many devices as it needs, where it does
    not divide; and each setting put back. Of settings whose strategy gave way to the fastest, what is about strategies alone.
    """
    try:
        gave_way = bool(read_design(scenario, settings).note)
    except CrossflowError:
        found = [*_types(scenario, settings), *_about_strategy(scenario, settings), *_put_back(scenario, settings)]
        return tuple(remedy for remedy in found if _reads(scenario, settings, remedy))
    return tuple(_about_strategy(scenario, settings)) if gave_way else ()


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, of which None puts a value back."""
    return {path: value for path, value in {**settings, **changes}.items() if value is not None}


def _reads(scenario: Scenario, settings: Mapping[str, Any], remedy: Remedy) -> bool:
    try:
        read_design(scenario, changed(settings, remedy.settings))
    except CrossflowError:
        return False
    return True


def _types(scenario: Scenario, settings: Mapping[str, Any]) -> Iterator[Remedy]:
    """Data types of products that read, the nearest in bits first."""
    if not scenario.workload.divisible:
        return
    names = names_of(type(scenario.workload).model_fields["dtype"].annotation)
    own = settings.get("workload.dtype")
    bits = FORMATS[own if isinstance(own, str) and own in FORMATS else scenario.workload.dtype].bits
    tried = (Remedy(f"use {name}", {"workload.dtype": name}) for name in sorted(names, key=lambda name: abs(FORMATS[name].bits - bits)))
    yield from [remedy for remedy in tried if _reads(scenario, settings, remedy)][:MOST_TYPES]


def _about_strategy(scenario: Scenario, settings: Mapping[str, Any]) -> Iterator[Remedy]:
    """The nearest strategy on the devices as they are, and the devices that the strategy needs."""
    text = settings.get("strategy", scenario.strategy_text)
    if not scenario.workload.divisible or text == AUTO:
        return
    here = undecided(scenario, discrete_of(scenario, settings))
    try:
        wanted = None if here is None else read_strategy(text, here.workload, here.system)
    except CrossflowError:
        return
    if here is None or wanted is None:
        return
    near = nearest(here, wanted)
    if near is not None and near != text:
        yield Remedy(f"use {near}, the nearest strategy that divides it", {"strategy": near})
    yield from _devices_for(here, wanted, text)


def _devices_for(scenario: Scenario, wanted: Any, text: str) -> Iterator[Remedy]:
    """As many devices as a strategy needs, where these are others and fill nodes."""
    path, node = count_path(scenario), scenario.system.devices_per_node
    if isinstance(wanted, Hierarchy) or wanted.devices == scenario.devices or (path == "system.nodes" and wanted.devices % node):
        return
    count, what = (wanted.devices // node, "nodes") if path == "system.nodes" else (wanted.devices, "devices")
    remedy = Remedy(f"take {count:,} {what}, which {text} needs", {path: count, "strategy": text})
    if _reads(scenario, {}, remedy):
        yield remedy


def _put_back(scenario: Scenario, settings: Mapping[str, Any]) -> Iterator[Remedy]:
    """Each setting as the scenario has it."""
    own = {control.path: control for control in controls(scenario)}
    for path in settings:
        told = f"put {own[path].label} back to {own[path].value}" if path in own and own[path].kind != "number" else f"put {path} back"
        yield Remedy(told, {path: None})
