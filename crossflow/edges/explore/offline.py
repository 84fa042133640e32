"""What an exported page holds in place of the model: a grid over the controls that can be moved on it, everything computed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.designs import Design, chosen_first, ranked, read_design
from crossflow.answers.explanation.dividing import legal
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.answers import CURVE, answer, curves
from crossflow.edges.explore.axes import STRATEGY, GridAxis, grid_axes
from crossflow.edges.explore.controls import controls
from crossflow.edges.explore.origin import Origin
from crossflow.edges.explore.scenario import timeline, told_further
from crossflow.parallel.strategy.kinds import ANY

OWNERS = ("architect", "technology")  # of numbers that the page shows


@dataclass(frozen=True, kw_only=True)
class Held:
    """Figures of the designs of a grid: None where there is none, with the reason for each of the scenarios that cannot be."""

    points: tuple[dict[str, Any] | None, ...]
    missing: dict[int, str]


def offline(scenario: Scenario, wanted: Sequence[str] = (), origin: Origin | None = None) -> dict[str, Any]:
    """A grid of designs over the controls that can be moved, and curves of all numbers.

    `axes` are the controls with their values, `points` the figures of every combination, the last axis running fastest, `missing` why
    there are none, by the number of the combination of the axes before the strategy and the numbers; `curves` those of the scenario
    itself, `further` its cures, notes and device, `timeline` its timeline, or an error where it has none, and `told` what the grid is.
    """
    design = read_design(scenario, {})
    numbers = [control for control in controls(design.scenario) if control.kind == "number" and control.least is not None]
    known = {control.path: control for control in numbers if control.owner in OWNERS}
    _, told = curves(design, dict.fromkeys(known, CURVE), owners=OWNERS)
    own = [path for path in told if known[path].owner == "architect" and (known[path].unit != "1" or known[path].whole)]
    axes = grid_axes(scenario, wanted, {path: _reach(told[path]) for path in own})
    held = _held(scenario, axes)
    return {
        "axes": [axis.to_dict() for axis in axes],
        "points": held.points,
        "missing": held.missing,
        "curves": told,
        "further": told_further(scenario, {"settings": {}}, origin),
        "timeline": _timeline(scenario),
        "told": _told(axes, held),
    }


def _timeline(scenario: Scenario) -> dict[str, Any]:
    """The timeline of the scenario itself; the reason where it has none."""
    try:
        return timeline(scenario, {"settings": {}})
    except CrossflowError as error:
        return {"error": error.said}


def _reach(curve: dict[str, Any]) -> float:
    """How far the step goes along a curve, largest over smallest time where it ends."""
    times = [time for time in curve["y"] if time]
    return max(times) / min(times) if times else 0.0


def _told(axes: Sequence[GridAxis], held: Held) -> str:
    """What a grid is, for whoever writes the page."""
    moved = ", ".join(f"{axis.path} ({'the best ' if axis.kind == 'strategy' else ''}{len(axis.values)})" for axis in axes)
    found = sum(point is not None for point in held.points)
    lacking = ""
    if held.missing:
        combinations = "1 combination cannot be" if len(held.missing) == 1 else f"{len(held.missing)} combinations cannot be"
        lacking = f"; {combinations}: {next(iter(held.missing.values()))}"
    return f": {found:,} designs of {moved}{lacking}" if axes else ": nothing can be moved"


# ------------------------------------------------------------------------------------------ the grid


def _held(scenario: Scenario, axes: Sequence[GridAxis]) -> Held:
    """Figures of every combination of the axes."""
    discrete, numbers = [axis for axis in axes if axis.discrete], [axis for axis in axes if axis.kind == "number"]
    kept = next((len(axis.values) for axis in axes if axis.kind == "strategy"), 0)
    grids = np.meshgrid(*(axis.values for axis in numbers), indexing="ij") if numbers else []
    values = {axis.path: grid.ravel() for axis, grid in zip(numbers, grids, strict=True)}
    each = int(np.prod([len(axis.values) for axis in numbers])) if numbers else 1
    points: list[dict[str, Any] | None] = []
    missing: dict[int, str] = {}
    for number, combination in enumerate(itertools.product(*(axis.values for axis in discrete))):
        settings = {axis.path: value for axis, value in zip(discrete, combination, strict=True) if value != axis.values[axis.own]}
        try:
            points += _combination(scenario, settings, values, kept, each)
        except CrossflowError as error:
            missing[number] = error.said
            points += [None] * (max(kept, 1) * each)
    return Held(points=tuple(points), missing=missing)


def _combination(scenario: Scenario, settings: dict[str, Any], values: dict[str, Any], kept: int, each: int) -> list[dict[str, Any] | None]:
    """Figures of all numbers with the settings of one scenario: of its best strategies, or of the one that it has."""
    if not kept:
        design = read_design(scenario, settings)
        score = evaluate(design.scenario, values or None)
        return [answer(design, score, i) for i in range(each)]
    design = _undivided(scenario, settings)
    texts = _strategies(scenario, design, kept)
    points: dict[str, Any] = {path: np.tile(column, len(texts)) for path, column in values.items()}
    score = evaluate(design.scenario, {STRATEGY: [text for text in texts for _ in range(each)], **points})
    found = [{**answer(design, score, i), STRATEGY: texts[i // each]} for i in range(len(texts) * each)]
    return [*found, *[None] * ((kept - len(texts)) * each)]


def _undivided(scenario: Scenario, settings: dict[str, Any]) -> Design:
    """The design with any strategy, in whose place those that are tried come."""
    if not settings:
        return read_design(scenario, {})
    return Design(settings=settings, scenario=variant(scenario, {**settings, STRATEGY: ANY}), quantities={})


def _strategies(scenario: Scenario, design: Design, count: int) -> list[str]:
    """The best strategies of a design, and the scenario's own one where it divides the workload there too."""
    texts, score = ranked(design)
    if not texts:
        raise CrossflowError(
            f"no strategy divides this {design.scenario.workload.model} over {design.scenario.system.device_count} devices"
        )
    best = [texts[i] for i in chosen_first(design.scenario, score)[:count].tolist()]
    own = scenario.strategy_text
    if own not in best and (not design.settings or own in legal(design.scenario)):
        best = [*best[: count - 1], own]
    return best
