"""Why one design is faster than another: their differences exchanged one after another, the largest gain first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossflow.answers.explanation.designs import Design, read_design
from crossflow.answers.points import varied
from crossflow.answers.scenario import Scenario
from crossflow.answers.search.shares import SHARES
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.explore.controls import controls

MOST = 24  # differences that are exchanged one by one; the rest together
JOINED = ("strategy", "system.devices", "system.nodes", "system.template", "workload.model")  # what fits together only


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """A step from one design to another: which settings change, and the time of a step after it. [s]"""

    paths: tuple[str, ...]
    text: str
    time: float


def exchanges(scenario: Scenario, first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Design, Design, tuple[Exchanged, ...]]:
    """Both designs, and the steps that lead from the first to the second; the differences of their times add up to the whole.

    Every step takes the difference that brings most among those that are left, alone where that can be evaluated. What can only be
    exchanged together, as a strategy and the number of devices, is one difference, and so are the shares of a budget.
    """
    one, two = read_design(scenario, first), read_design(scenario, second)
    start, end = _resolved(one), _resolved(two)
    left = _differences(start, end)
    now, steps = dict(start), list[Exchanged]()
    while left:
        tried = [(time, paths) for paths in left[:MOST] if (time := _time(scenario, _with(now, end, paths))) is not None]
        if not tried:
            left = [tuple(path for paths in left for path in paths)]
            tried = [(_time(scenario, _with(now, end, left[0])) or math.inf, left[0])]
        time, paths = min(tried)
        now = _with(now, end, paths)
        left.remove(paths)
        steps.append(Exchanged(paths=paths, text=_text(scenario, paths, start, end), time=time))
    return one, two, tuple(steps)


def _resolved(design: Design) -> dict[str, Any]:
    """Settings of a design, the strategy that auto stands for in its place."""
    settings = dict(design.settings)
    if design.scenario.workload.divisible:
        settings["strategy"] = design.scenario.strategy_text
    return settings


def _differences(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Paths in which two designs differ, those together that belong together."""
    paths = [path for path in dict.fromkeys((*start, *end)) if start.get(path) != end.get(path)]
    groups = [tuple(path for path in paths if path.startswith(f"{budget}.")) for budget in SHARES]
    groups.append(tuple(path for path in paths if path in JOINED))
    together = [group for group in groups if group]
    return [*together, *((path,) for path in paths if not any(path in group for group in together))]


def _with(now: Mapping[str, Any], end: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Settings with those of some paths as the second design has them, which may be none."""
    found = {path: value for path, value in now.items() if path not in paths}
    return {**found, **{path: end[path] for path in paths if path in end}}


def _time(scenario: Scenario, settings: Mapping[str, Any]) -> float | None:
    """Time of a step, None where the settings are no design or the step never ends. [s]"""
    try:
        design = read_design(scenario, settings)
    except CrossflowError:
        return None
    time = float(design.score().step_time[0])
    return time if math.isfinite(time) and not design.note else None


def _text(scenario: Scenario, paths: Sequence[str], start: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    """What changes, in words."""
    budget = next((budget for budget in SHARES if all(path.startswith(f"{budget}.") for path in paths)), None)
    if budget is not None:
        return f"division of the {budget.rpartition('.')[2].removesuffix('_shares')}"
    told = [f"{path.removeprefix('system.')}: {_value(scenario, path, start)} to {_value(scenario, path, end)}" for path in paths]
    return "; ".join(told)


def _value(scenario: Scenario, path: str, settings: Mapping[str, Any]) -> str:
    """A setting as text, that of the scenario where it is not set."""
    value = settings.get(path, next((control.value for control in controls(scenario) if control.path == path), None))
    quantity = varied(scenario, path)
    if value is None or quantity is None or isinstance(value, str):
        return "as given" if value is None else str(value)
    return show(float(value), quantity.unit)
