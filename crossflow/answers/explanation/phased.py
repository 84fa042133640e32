"""What limits a run of several phases: each phase is explained by itself, and counts as much as it brings to the total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossflow.answers.evaluation.phases import ADDED, naming, scenarios_of
from crossflow.answers.explanation.answers import Explanation
from crossflow.answers.explanation.sensitivity import explain
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import unit_of
from crossflow.base.errors import CrossflowError
from crossflow.base.results import PlainData, Tabular
from crossflow.base.units import show

OBJECTIVE = "run.time_s"
NOT_MOVED = ("steps",)  # of the sums of a run those that nothing but its length moves
TRIED_IN_JOBS = "Of a job few numbers are tried, those that do most to its phases; another number counts as without effect in it."
IN_EACH = "A parameter is that of all phases at once, each with its own settings; its gain is the sum of what it brings to each."


@dataclass(frozen=True, kw_only=True)
class RunEffect:
    """What one parameter does to a whole run.

    Attributes
    ----------
    path, group : the parameter, and who can change it.
    gain : relative improvement of the run's total when it is improved by 10 %. [1]
    elasticity : d ln(total) / d ln(parameter). [1]
    phases : the part of the gain that each phase brings, by name; negative where it gets worse. [1]
    """

    path: str
    group: str
    gain: float
    elasticity: float
    phases: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "path": self.path, "group": self.group, "gain_10_percent": self.gain, "elasticity": self.elasticity,
            "phases": dict(self.phases),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class RunExplanation(PlainData, Tabular):
    """What limits a run of several phases.

    Attributes
    ----------
    scenario, objective : what was explained, and the total of a run that it is about.
    value : of the whole run.
    shares : part of the total that each phase has, by name. [1]
    phases : each phase explained by itself.
    effects : every parameter that moves the total, the largest gain first.
    reliability : what a tenth less of each part of an interrupted run gains of the time of the whole run, largest first. [1]
    notes : sentences on how to read this.
    """

    scenario: Scenario
    objective: str
    value: float
    shares: Mapping[str, float]
    phases: Mapping[str, Explanation]
    effects: tuple[RunEffect, ...]
    reliability: Mapping[str, float]
    notes: tuple[str, ...]

    def effect(self, path: str) -> RunEffect:
        """Effect of the parameter at a path."""
        return next(one for one in self.effects if one.path == path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; all values in SI units."""
        return {
            "name": self.scenario.name, "objective": self.objective, "unit": unit_of(self.objective), "value": self.value,
            "elasticities": [one.to_dict() for one in self.effects],
            "reliability": dict(self.reliability),
            "phases": [{"phase": name, "share": self.shares[name], **one.to_dict()} for name, one in self.phases.items()],
            "notes": list(self.notes),
        }  # fmt: skip

    def table(self) -> dict[str, list[Any]]:
        """A row a parameter, in the order of `effects`; what each phase brings is a column."""
        return {
            "path": [one.path for one in self.effects], "group": [one.group for one in self.effects],
            "gain_10_percent": [one.gain for one in self.effects], "elasticity": [one.elasticity for one in self.effects],
            **{f"phase.{name}": [one.phases[name] for one in self.effects] for name in self.phases},
        }  # fmt: skip

    def __repr__(self) -> str:
        start = f"RunExplanation({self.scenario.name!r}: {self.objective} {show(self.value, unit_of(self.objective))}"
        if not self.effects or self.effects[0].gain <= 0.0:
            return f"{start}, nothing gains)"
        return f"{start}, limited by {self.effects[0].path}: {100 * self.effects[0].gain:.3g} % for 10 %)"


def explain_run(scenario: Scenario, objective: str | None = None, *, tried: bool = True) -> RunExplanation:
    """Explain what limits a run of several phases.

    Parameters
    ----------
    objective : total of a run, such as ``run.cost_usd``; its time where absent.
    tried : as of `sensitivity.explain`.

    Notes
    -----
    A total T is the sum of T_i of the phases, so that d ln T / d ln p is the sum of T_i / T times d ln T_i / d ln p, and the same holds
    for the improvement by a change of p. Where p should be larger in one phase and smaller in another, the latter counts negatively,
    to first order.
    """
    objective = objective or OBJECTIVE
    known = [f"run.{name}" for name in ADDED if name not in NOT_MOVED]
    if objective not in known:
        raise CrossflowError(f"a run of phases is explained by a total, not by {objective}: give one of {', '.join(known)}")
    phases = dict[str, Explanation]()
    totals = dict[str, float]()
    for name, one in scenarios_of(scenario):
        # The time of a job's run is that of its iterations, of whose phases `explain_job` knows more.
        own = "job.iteration_time_s" if objective == OBJECTIVE and one.post_training is not None else objective
        with naming(name):
            phases[name] = explain(one, own, tried=tried)
        totals[name] = phases[name].value if own == objective else float(phases[name].value * _iterations(one))
    whole = sum(totals.values())
    shares = {name: value / whole for name, value in totals.items()}
    jobs = any(one.scenario.post_training is not None for one in phases.values())
    return RunExplanation(
        scenario=scenario, objective=objective, value=whole, shares=shares, phases=phases, effects=_effects(phases, shares),
        reliability=_reliability(phases, shares) if objective == OBJECTIVE else {}, notes=(IN_EACH, *((TRIED_IN_JOBS,) if jobs else ())),
    )  # fmt: skip


def _iterations(scenario: Scenario) -> float:
    from crossflow.answers.evaluation import evaluate

    return float(evaluate(scenario).run["steps"][0])


def _effects(phases: Mapping[str, Explanation], shares: Mapping[str, float]) -> tuple[RunEffect, ...]:
    """The effects of all phases on their sum, the largest gain first."""
    each = {name: {one.parameter.path: one for one in found.effects} for name, found in phases.items()}
    effects = list[RunEffect]()
    for path in dict.fromkeys(path for own in each.values() for path in own):
        mine = {name: own[path] for name, own in each.items() if path in own}
        slopes = {name: shares[name] * (one.elasticity or 0.0) for name, one in mine.items()}
        way = sum(slopes.values())
        gains = {
            name: shares[name] * (one.gain or 0.0) * (-1.0 if slopes[name] * way < 0.0 and (one.gain or 0.0) > 0.0 else 1.0)
            for name, one in mine.items()
        }
        if any(gains.values()) or way:
            parts = {name: gains.get(name, 0.0) for name in phases}
            group = next(iter(mine.values())).group
            effects.append(RunEffect(path=path, group=group, gain=sum(parts.values()), elasticity=way, phases=parts))
    return tuple(sorted(effects, key=lambda one: (-round(one.gain, 9), -round(abs(one.elasticity), 9))))


def _reliability(phases: Mapping[str, Explanation], shares: Mapping[str, float]) -> dict[str, float]:
    """What a tenth less of what interrupts brings to the whole run, largest first."""
    names = dict.fromkeys(name for one in phases.values() for name in one.reliability)
    found = {name: sum(shares[phase] * one.reliability.get(name, 0.0) for phase, one in phases.items()) for name in names}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
