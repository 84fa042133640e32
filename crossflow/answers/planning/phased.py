"""The best strategies of a run of several phases: each phase has its own, on the same devices, and the run is their sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossflow.answers.evaluation.phases import added, figures_of_run, naming, phases_of, scenarios_of
from crossflow.answers.planning.opening import load
from crossflow.answers.planning.planner import plan
from crossflow.answers.planning.plans import Plans, RankedPlan
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import MARGIN
from crossflow.base.arrays import plain
from crossflow.base.results import PlainData, Tabular
from crossflow.base.units import show


@dataclass(frozen=True, kw_only=True, eq=False)
class RunPlans(PlainData, Tabular):
    """The best strategies of each phase of a run.

    Attributes
    ----------
    scenario : what was planned.
    phases : the plans of each phase by its name, in order; each phase is planned as a scenario of its own.
    total : what the run takes and costs with the plan to take in each phase, by the names of `Prediction.run`; none where a phase has none.
    own : the same with the strategies that the phases have; none where one of them does not run.
    times : of each phase with the plan to take, by name. [s]
    notes : sentences on how to read this.
    """

    scenario: Scenario
    phases: Mapping[str, Plans]
    total: Mapping[str, float]
    own: Mapping[str, float]
    times: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def chosen(self) -> Mapping[str, RankedPlan | None]:
        """The plan to take in each phase; None where none fits."""
        return {name: plans.chosen for name, plans in self.phases.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data; times in s, sizes in B, energy in J."""
        return {
            "name": self.scenario.name,
            "total": {name: plain(value) for name, value in self.total.items()} or None,
            "own": {name: plain(value) for name, value in self.own.items()} or None,
            "phases": [{"phase": name, "time_s": self.times.get(name), **plans.to_dict()} for name, plans in self.phases.items()],
            "notes": list(self.notes),
        }

    def table(self) -> dict[str, list[Any]]:
        """A row a phase: the plan to take, and what the phase takes with it."""
        chosen = self.chosen
        return {
            "phase": list(chosen), "strategy": [None if one is None else one.strategy for one in chosen.values()],
            "step_time_s": [None if one is None else one.step_time for one in chosen.values()],
            "time_s": [self.times.get(name) for name in chosen],
        }  # fmt: skip

    def __repr__(self) -> str:
        plans = ", ".join(f"{name} {'none fits' if one is None else one.strategy}" for name, one in self.chosen.items())
        whole = f", {show(self.total['time_s'], 's')}" if self.total else ""
        return f"RunPlans({self.scenario.name!r}: {plans}{whole})"


def plan_run(scenario: Scenario, *, top: int = 10, objective: str | None = None, margin: float = MARGIN) -> RunPlans:
    """The best strategies of each phase of a run, with what the whole run then takes and costs.

    Every phase has all devices, one after the other, so that the least sum is the sum of the least of each; see `planner.plan` for the
    parameters and errors, which name the phase. The objective is that of each phase by itself where none is given.
    """
    phases, taken = dict[str, Plans](), dict[str, Mapping[str, float]]()
    for name, one in scenarios_of(scenario):
        with naming(name):
            found = phases[name] = plan(one, top=top, objective=objective, margin=margin)
        if found.chosen is not None:
            taken[name] = _figures(_with(one, found.chosen))
    missing = [name for name in phases if name not in taken]
    return RunPlans(
        scenario=scenario, phases=phases, total={} if missing else added(list(taken.values())), own=_own(scenario, phases),
        times={name: figures["time_s"] for name, figures in taken.items()},
        notes=tuple(f"no strategy of the phase {name} fits, so that the run has no total" for name in missing),
    )  # fmt: skip


def _with(scenario: Scenario, chosen: RankedPlan) -> Scenario:
    """A phase with the plan to take; of a job also with its engines and their devices."""
    return load(scenario, (f"strategy={chosen.strategy}",) if chosen.part is None else chosen.part.settings)


def _figures(scenario: Scenario) -> dict[str, float]:
    from crossflow.answers.evaluation import evaluate

    return figures_of_run(evaluate(scenario))


def _own(scenario: Scenario, phases: Mapping[str, Plans]) -> dict[str, float]:
    """What the run takes with the strategies that its phases have."""
    if any(found.own is None or not found.own.feasible for found in phases.values()):
        return {}
    return added([one.figures for one in phases_of(scenario)])
