"""Runs of several phases that follow one another: each is a scenario of its own, and what they take and cost adds up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.answers.bands import Trust
from crossflow.answers.evaluation.lasting import drawn
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import Score
from crossflow.base.errors import CrossflowError
from crossflow.engine.lasting.events import RunHistory, in_turn, undisturbed

# Figures of a run that add up over its phases, whatever interrupts it.
ADDED = (
    "steps", "time_s", "undisturbed_time_s", "device_hours", "normalised_device_hours", "cost_usd", "energy_j", "facility_energy_j",
    "interruptions",
)  # fmt: skip
PHASE = "phase."


@dataclass(frozen=True, kw_only=True, eq=False)
class PhaseOfRun:
    """A phase of a run by itself."""

    name: str
    scenario: Scenario  # whose run is the phase
    score: Score  # of one point

    @property
    def figures(self) -> dict[str, float]:
        """What it takes and costs, by the names of `Prediction.run`."""
        return figures_of_run(self.score)

    def to_dict(self, trust: Trust) -> dict[str, Any]:
        """Its figures as plain data, and how far its step can be trusted."""
        step = self.score.job.get("iteration_time_s", self.score.step_time)
        return {
            "name": self.name, "strategy": str(self.scenario.strategy_text), "step_time_s": _number(step[0]),
            **{name: _number(value) for name, value in self.figures.items() if name in (*ADDED, "goodput")},
            "trust": trust.level, "trust_text": trust.text, "error_band": trust.figures,
        }  # fmt: skip


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def figures_of_run(score: Score) -> dict[str, float]:
    """What the run of a score of one point takes and costs, by name."""
    return {name: float(values[0]) for name, values in score.run.items()}


@contextmanager
def naming(phase: str) -> Iterator[None]:
    """What a CrossflowError that is raised meanwhile says names the phase."""
    try:
        yield
    except CrossflowError as error:
        raise CrossflowError(f"run.phases: {phase}: {error.said}") from None


def scenarios_of(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """The scenario of each phase, whose run is as long as the phase; CrossflowError that names the phase where its settings make none."""
    assert scenario.run is not None
    whole = {key: value for key, value in scenario.document.data["run"].items() if key != "phases"}
    for phase in scenario.run.phases:
        with naming(phase.name):
            found = variant(scenario, {"run": {**whole, **phase.length}, **phase.settings})
        yield phase.name, found


def phases_of(scenario: Scenario, *, least: bool = False) -> list[PhaseOfRun]:
    """Each phase of a run, evaluated by itself, with lower bounds of kernels where these are asked for."""
    from crossflow.answers.evaluation import evaluate

    return [PhaseOfRun(name=name, scenario=one, score=evaluate(one, least=least)) for name, one in scenarios_of(scenario)]


def drawn_phases(scenario: Scenario, seed: int) -> RunHistory:
    """One draw of a run of phases by events, each phase independent of the others; one that nothing interrupts only computes.

    The first phase is the draw of the same run by itself. CrossflowError where no phase is interrupted, or one does not run or end.
    """
    found = dict[str, RunHistory]()
    phases = phases_of(scenario)
    if all(one.scenario.reliability is None for one in phases):
        raise CrossflowError(f"{scenario.name}: nothing interrupts any phase of its run; give run.failures, such as failures: llama3-h100")
    for i, one in enumerate(phases):
        if not one.score.feasible[0]:
            raise CrossflowError(f"{scenario.name}: phase {one.name}: {one.score.why(0)}")
        if one.scenario.reliability is None:
            found[one.name] = undisturbed(one.figures["time_s"])
            continue
        with naming(one.name):
            (found[one.name],) = drawn(one.scenario, one.score, seed, spans=True, first=i)
    return in_turn(found)


def phased_score(score: Score, scenarios: Sequence[Scenario], *, strict: bool, least: bool) -> Score:
    """The score of steps with what runs of phases take and cost; one phase that does not run makes its point infeasible.

    scenarios : that of each point.
    strict : whether a phase that makes no scenario is an error.
    """
    found = [_row(one, strict=strict, least=least) for one in scenarios]
    names = dict.fromkeys(["time_s", *(name for figures, _ in found for name in figures)])  # which choices order points by
    reasons = tuple(dict.fromkeys((*score.reasons, *(problem for _, problem in found if problem))))
    return score.having(
        run={name: np.array([figures.get(name, np.nan) for figures, _ in found]) for name in names},
        feasible=np.array([ok and not problem for ok, (_, problem) in zip(score.feasible.tolist(), found, strict=True)]),
        reasons=reasons,
        reason=np.array([
            reasons.index(problem) if code < 0 and problem else code
            for code, (_, problem) in zip(score.reason.tolist(), found, strict=True)
        ]),
    )  # fmt: skip


def added(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What a run takes and costs whose phases have these figures."""
    found = {name: sum(figures[name] for figures in each) for name in ADDED if all(name in figures for figures in each)}
    if "undisturbed_time_s" in found:
        found["goodput"] = found["undisturbed_time_s"] / found["time_s"]
    return found


def _row(scenario: Scenario, *, strict: bool, least: bool) -> tuple[Mapping[str, float], str]:
    """What the run of a scenario takes and costs, by name, and why it cannot run."""
    try:
        phases = phases_of(scenario, least=least)
    except CrossflowError as error:
        if strict:
            raise
        return {}, error.said
    problem = next((f"phase {one.name}: {one.score.why(0)}" for one in phases if not one.score.feasible[0]), "")
    each = [one.figures for one in phases]
    return {**added(each), **{f"{PHASE}{one.name}_s": figures["time_s"] for one, figures in zip(phases, each, strict=True)}}, problem
