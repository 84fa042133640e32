"""The fastest strategy that fits at every point of a sweep, where the scenario or the point leaves the choice to the planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossflow.answers.planning.planner import best_strategy
from crossflow.answers.points import STRATEGY, Points, groups, variant, written
from crossflow.answers.scenario import Scenario, steady
from crossflow.base.arrays import python
from crossflow.base.errors import CrossflowError
from crossflow.parallel.strategy.kinds import ANY
from crossflow.parallel.strategy.reading import AUTO


def with_plans(scenario: Scenario, points: Points) -> dict[str, Any]:
    """The points with a strategy each: the planner's for that point where it says ``auto`` or nothing.

    A point that no strategy divides keeps `ANY`, of which its score says why there is none.
    """
    n = len(next(iter(points.values())))
    others = {path: values for path, values in points.items() if path != STRATEGY}
    chosen = list(points.get(STRATEGY, [AUTO] * n))
    for settings, index in groups(others, n):
        wanted = [i for i in index if chosen[i] == AUTO]
        best = _best(scenario, settings) if wanted else ANY
        for i in wanted:
            chosen[i] = best
    return {**others, STRATEGY: chosen}


def _best(scenario: Scenario, settings: Mapping[str, Any]) -> str:
    """The planner's strategy at a point, chosen as where a scenario is loaded by itself; the nearest to fitting where none fits."""
    try:
        values = {path: written(scenario, path, python(value)) for path, value in settings.items()}
        return best_strategy(steady(variant(scenario, {**values, STRATEGY: ANY})))[0]
    except CrossflowError:  # which is told where the point is evaluated
        return ANY
