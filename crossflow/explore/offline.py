"""What an exported page holds in place of the model: a grid over the few controls that matter most, everything computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossflow.errors import CrossflowError
from crossflow.evaluation import evaluate
from crossflow.explore.answers import CURVE, answer, curves, further
from crossflow.explore.controls import controls
from crossflow.explore.designs import read_design
from crossflow.explore.scenario import timeline
from crossflow.points import varied
from crossflow.scenario import Scenario

OWNERS = ("architect", "technology")  # of numbers that the page shows
AXES, STEPS = 3, 9  # controls of the grid, and values of each


def offline(scenario: Scenario) -> dict[str, Any]:
    """A grid of designs over the controls of the architect that move the step most, and curves of all numbers.

    `axes` are the controls with their values, `points` the figures of every combination, the last axis running fastest, `curves` those
    of the scenario itself, `further` its cures, notes and device, and `timeline` its timeline, or an error where it has none.
    """
    design = read_design(scenario, {})
    numbers = [control for control in controls(design.scenario) if control.kind == "number" and control.least is not None]
    known = {control.path: control for control in numbers if control.owner in OWNERS}
    _, told = curves(design, dict.fromkeys(known, CURVE), owners=OWNERS)
    own = [path for path in told if known[path].owner == "architect" and (known[path].unit != "1" or known[path].whole)]
    chosen = sorted(own, key=lambda path: -_reach(told[path]))[:AXES]
    axes = [_values(design.scenario, known[path]) for path in chosen]
    grid = np.meshgrid(*axes, indexing="ij") if axes else []
    points = {path: values.ravel() for path, values in zip(chosen, grid, strict=True)}
    score = evaluate(design.scenario, points or None)
    return {
        "axes": [{"path": path, "values": values.tolist()} for path, values in zip(chosen, axes, strict=True)],
        "points": [answer(design, score, i) for i in range(len(score))],
        "curves": told,
        "further": further(design),
        "timeline": _timeline(scenario),
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


def _values(scenario: Scenario, control: Any) -> np.ndarray[Any, Any]:
    """Values of a control over its slider, the scenario's own among them."""
    ends = (control.least, control.most)
    spread = np.geomspace(*ends, STEPS) if control.log else np.linspace(*ends, STEPS)
    quantity = varied(scenario, control.path)
    assert quantity is not None  # the control is a number
    if quantity.whole:
        spread = np.round(spread)
    found = {float(value) for value in spread if quantity.gt is None or value > quantity.gt}
    return np.array(sorted({*found, float(control.value)}))
