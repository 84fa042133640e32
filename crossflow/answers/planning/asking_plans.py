"""The best strategies of a scenario, or for its requests the cheapest fleets, by name: `crossflow.plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from crossflow.answers.fleets.kinds import FleetSpace
from crossflow.answers.fleets.ranking import Fleets, check_of_fleets, plan_fleets
from crossflow.answers.planning import planner
from crossflow.answers.planning.asking import asked
from crossflow.answers.planning.keywords import named_so, with_other_names
from crossflow.answers.planning.opening import Overrides, ScenarioSource, unplanned
from crossflow.answers.planning.phased import RunPlans, plan_run
from crossflow.answers.planning.plans import Plans
from crossflow.answers.score import MARGIN
from crossflow.base.errors import CrossflowError
from crossflow.base.limits import shown


@named_so
@with_other_names
def plan(
    scenario: ScenarioSource | None = None,
    settings: Overrides = (),
    *,
    top: int = 10,
    objective: str | None = None,
    margin: float = MARGIN,
    share: float | None = None,
    space: FleetSpace | None = None,
    jobs: int | None = 1,
    **named: Any,
) -> Plans | RunPlans | Fleets:
    """The best strategies of a scenario; see `crossflow.answers.planning.planner.plan`, and `predict` for how the scenario is given.

    The scenario's own strategy may be missing, ``auto``, or one for another number of devices. A scenario with requests has `Fleets`: the
    cheapest numbers and kinds of engines that answer a `share` of the requests (0.99) within their targets, among those of a `space`; see
    `crossflow.answers.fleets.ranking.plan_fleets`, also for `jobs`. They are in order of their rents, and of their devices without prices.

    A run of several phases has `RunPlans`, the best strategies of each; see `crossflow.answers.planning.phased.plan_run`.

    Examples
    --------
    >>> import crossflow
    >>> plans = crossflow.plan(model="llama3-8b", on="dgx-h100", batch=64)
    >>> plans.best is not None and not plans.best.tight
    True
    """
    if not isinstance(top, int) or isinstance(top, bool):
        raise TypeError(f"plan() takes top as a whole number, such as top=3, not {shown(top)}")
    source, texts, assumed = asked("plan", scenario, settings, named)
    found, notes = unplanned(source, texts)
    if found.requests is not None:
        check_of_fleets(objective, margin)
        fleets = plan_fleets(found, top=top, share=share, space=space, jobs=jobs)
        return replace(fleets, notes=(*(f"assumed: {sentence}" for sentence in assumed), *fleets.notes))
    if space is not None or share is not None:
        raise CrossflowError("plan: space and share are of fleets for requests; give the scenario the key requests, or leave them out")
    plans = (plan_run if found.phased else planner.plan)(found, top=top, objective=objective, margin=margin)
    return replace(plans, notes=(*(f"assumed: {sentence}" for sentence in assumed), *notes, *plans.notes))
