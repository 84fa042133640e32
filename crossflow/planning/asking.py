"""What the Python interface offers by name: each takes a scenario, the path of its file or its data, and settings.

>>> import crossflow
>>> crossflow.predict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "auto"}, workload__global_batch=64).feasible
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossflow import prediction
from crossflow.explanation import sensitivity
from crossflow.explanation.answers import Explanation
from crossflow.planning import planner
from crossflow.planning.opening import Overrides, ScenarioSource, as_settings, load, unplanned
from crossflow.planning.plans import Plans
from crossflow.prediction import Prediction
from crossflow.score import MARGIN
from crossflow.strategy.reading import every_strategy


def predict(scenario: ScenarioSource, settings: Overrides = (), **named: Any) -> Prediction:
    """Predict one scenario: its step time, what bounds it, whether it fits.

    Parameters
    ----------
    scenario : a scenario, the path of its file, or its data as a mapping.
    settings : what overrides its fields: one ``path=value``, several of them, or values by path.
    named : further settings by path, dots written as two underscores where the path is no keyword: ``system__nodes=8``.
    """
    return prediction.predict(load(scenario, _all(settings, named)))


def explain(scenario: ScenarioSource, objective: str = "step_time_s", settings: Overrides = (), **named: Any) -> Explanation:
    """What limits a scenario; see `crossflow.explanation.sensitivity.explain`, and `predict` for how the scenario is given."""
    return sensitivity.explain(load(scenario, _all(settings, named)), objective)


def plan(
    scenario: ScenarioSource,
    settings: Overrides = (),
    *,
    top: int = 10,
    objective: str = "step_time_s",
    margin: float = MARGIN,
    **named: Any,
) -> Plans:
    """The best strategies of a scenario; see `crossflow.planning.planner.plan`, and `predict` for how the scenario is given.

    The scenario's own strategy may be missing, ``auto``, or one for another number of devices.
    """
    found, notes = unplanned(scenario, _all(settings, named))
    plans = planner.plan(found, top=top, objective=objective, margin=margin)
    return replace(plans, notes=(*notes, *plans.notes))


def legal(scenario: ScenarioSource, settings: Overrides = (), **named: Any) -> tuple[str, ...]:
    """Every strategy that divides a scenario's workload over its devices, as text; see `predict` for how the scenario is given."""
    found, _ = unplanned(scenario, _all(settings, named))
    return every_strategy(found.workload, found.nodes, fused=found.fused_attention)


def _all(settings: Overrides, named: Mapping[str, Any]) -> tuple[str, ...]:
    """All settings as texts, those by keyword last.

    >>> _all("system.nodes=4", {"workload__global_batch": 64, "system.technology.logic": "N5"})
    ('system.nodes=4', 'workload.global_batch=64', 'system.technology.logic=N5')
    """
    return (*as_settings(settings), *as_settings({path.replace("__", "."): value for path, value in named.items()}))
