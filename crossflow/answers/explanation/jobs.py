"""What limits an iteration of a post-training job: its phases, the numbers that shorten it, and what else can be decided.

A rollout is replayed anew for each number that is tried, which takes most of the time. So numbers are first put in order by what they do
to each phase in a batch: to passes and training steps as these are, to the rollout as to a service in steady state. The first of them are
then tried with all that an iteration has.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.post_training import Iteration, iteration_of, parts_of, step_of, whole_of
from crossflow.answers.explanation.answers import Effect, Explanation, WhatIf, paces, phases_of
from crossflow.answers.explanation.decisions import better_moves, better_strategies
from crossflow.answers.explanation.designs import Design
from crossflow.answers.explanation.parameters import GROUPS, Parameter, ParameterGroup, parameters
from crossflow.answers.explanation.trials import (
    BASE,
    NOTHING,
    SMALLEST,
    Move,
    TrialOutcome,
    Trials,
    change_of,
    factor_moves,
    scaled,
    strategies_of,
)  # fmt: skip
from crossflow.answers.scenario import Scenario, steady
from crossflow.answers.score import Score
from crossflow.base.arrays import Array
from crossflow.hardware.architecture.template import GeneratedSystem

TRIED = 8  # numbers that are tried with all that an iteration has
FARTHER, DOUBLED = 3, 2.0  # numbers that are improved further, and by how much
LINKS = ("system.network.intra.bandwidth", "system.network.inter.bandwidth", "system.network.host.bandwidth")
MOVED = 0.01  # share of an iteration in which weights move, from which on links are tried
IN_TIME = ("iteration_time_s", "samples_per_second", "tokens_per_second", "tokens_per_second_per_device")
NOTES = (
    "Of {all} numbers {tried} were tried: those that do most to the phases, the rollout taken for a service in steady state.",
    "Elasticities are those of a change by 10 %.",
)  # fmt: skip
EXTRAPOLATED = "Trust is that of the training step: an iteration with a rollout is extrapolated at best."


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A number that was changed, and what became of the iteration."""

    number: Parameter
    what_if: WhatIf
    times: Mapping[str, float]  # of its phases. [s]


def explain_job(scenario: Scenario, start: Score, objective: str, *, tried: bool) -> Explanation:
    """Explain what limits the iteration of a job whose score is known; see `sensitivity.explain`."""
    found = iteration_of(scenario, start)[0]
    assert found is not None  # the caller has looked
    numbers = [number for number in parameters(scenario) if number.value != 0.0]
    groups = {number: number.group(generated=isinstance(scenario.system, GeneratedSystem)) for number in numbers}
    movable = [number for number in numbers if groups[number] != "constant"]
    chosen = _chosen(scenario, found, movable, money=objective.removeprefix("job.") not in IN_TIME)
    trials = Trials(scenario=scenario, objective=objective, values={number.path: number.value for number, _ in chosen})
    base = trials.outcomes(start)[0]
    singles = _tried(trials, chosen, base, SMALLEST)
    best = sorted((one for one in singles if one.what_if.gain > NOTHING), key=lambda one: -round(one.what_if.gain, 9))
    first = next((one.what_if for one in best if not one.what_if.obstructed), None)
    farther = _tried(trials, [(one.number, _way(one.what_if)) for one in best[:FARTHER]], base, DOUBLED)
    strategies = strategies_of(trials, base) if tried else ()
    design = Design(settings={}, scenario=scenario, quantities={})
    effects = [_effect(one, groups[one.number], base) for one in singles]
    pace = paces(start)[0]
    return Explanation(
        scenario=scenario, objective=objective, value=base.value, feasible=True, reason=None,
        bound={name: time / pace[0] for name, time in sorted(phases_of(start, 0).items(), key=lambda pair: -pair[1])},
        effects=tuple(sorted(effects, key=lambda one: (GROUPS.index(one.group), -(one.gain or 0.0)))),
        fixed=(), limiting=first, lever=first,
        what_ifs=tuple(one.what_if for own in best for one in (own, *(far for far in farther if far.number == own.number))),
        pairs=(), next_bottlenecks=(), swings=(), alternatives=(), strategies=strategies,
        decisions=(*better_strategies(start, strategies), *better_moves(scenario, design, start, objective)) if tried else (),
        step_time=pace[0], throughput=pace[1], counts="tokens", uses={},
        notes=(*(note.format(all=len(movable), tried=len(chosen)) for note in NOTES), *([EXTRAPOLATED] if found.rollout.service else [])),
    )  # fmt: skip


def _chosen(scenario: Scenario, found: Iteration, numbers: Sequence[Parameter], *, money: bool) -> list[tuple[Parameter, float]]:
    """Numbers that are worth trying, each with the factor that helps; those that do most first."""
    moves = factor_moves(numbers, (SMALLEST,))
    estimates = _estimates(scenario, found, numbers, moves)
    base = estimates[BASE]
    better: dict[Parameter, tuple[float, float]] = {}
    for number in numbers:
        ways = [(estimates[number.path, way], way) for way in (SMALLEST, 1 / SMALLEST) if (number.path, way) in estimates]
        better[number] = min(ways, default=(base, SMALLEST))
    helping = sorted((n for n in numbers if better[n][0] < base * (1 - NOTHING)), key=lambda n: better[n][0])[:TRIED]
    moving = found.rollout.transfer + found.times.get("moving", 0.0)
    links = [n for n in numbers if n.path in LINKS and moving > MOVED * base]
    paid = [n for n in numbers if money and n.path.startswith("system.operation.")]
    factors = {**dict.fromkeys(links, SMALLEST), **dict.fromkeys(paid, 1 / SMALLEST), **{n: better[n][1] for n in helping}}
    return [(number, factors[number]) for number in dict.fromkeys([*helping, *links, *paid])]


def _estimates(scenario: Scenario, found: Iteration, numbers: Sequence[Parameter], moves: Mapping[Hashable, Move]) -> dict[Hashable, float]:
    """The iteration after every move as its phases by themselves say, and as it is. [s]"""
    keys: list[Hashable] = [BASE, *moves]
    points: dict[str, Any] = {number.path: np.full(len(keys), number.value) for number in numbers}
    for i, key in enumerate(keys):
        for path, value in moves.get(key, {}).items():
            points[path][i] = value
    parts, service = parts_of(scenario), found.rollout.service
    steps = {f"{name}_pass": one for name, one in parts.passes.items()} | {f"{name}_training": one for name, one in parts.trained.items()}
    training = np.full(len(keys), sum(time for name, time in found.times.items() if name not in found.steps))
    for name, one in {**steps, "training": step_of(scenario)}.items():
        training = training + found.steps[name][0] * _times(one, points)
    rollout = np.full(len(keys), found.rollout.time)
    if service is not None:
        steps_of_engines = _times(steady(service), points)
        rollout = rollout * steps_of_engines / steps_of_engines[0]
    job = scenario.post_training
    assert job is not None
    whole = whole_of(job, training, rollout) + found.rollout.transfer + found.rollout.refit
    return dict(zip(keys, np.where(np.isfinite(whole), whole, np.inf).tolist(), strict=True))


def _times(scenario: Scenario, points: Mapping[str, Any]) -> Array:
    """Step times of a part of a job at points of the system. [s]"""
    score = evaluate(scenario, points, columns=("step_time_s",))
    return np.where(score.feasible, score.step_time, np.inf)


def _way(what_if: WhatIf) -> float:
    """The factor by which a number was changed. [1]"""
    (change,) = what_if.changes
    return DOUBLED if change.after > change.before else 1 / DOUBLED


def _tried(trials: Trials, chosen: Sequence[tuple[Parameter, float]], base: TrialOutcome, factor: float) -> list[_Trial]:
    """What becomes of an iteration where each of some numbers is changed; those that cannot move are left out."""
    moves: dict[Hashable, Move] = {
        number.path: {number.path: value} for number, way in chosen if (value := scaled(number, way)) != number.value
    }
    outcomes = trials.run(moves)
    return [
        _Trial(
            number=number, times=(outcome := outcomes[number.path]).times,
            what_if=trials.what_if(factor, (change_of(number, way),), outcome, base),
        )
        for number, way in chosen
        if number.path in outcomes
    ]  # fmt: skip


def _effect(trial: _Trial, group: ParameterGroup, base: TrialOutcome) -> Effect:
    """What a number does to the iteration, and to which phase most."""
    (change,), what_if = trial.what_if.changes, trial.what_if
    known = math.isfinite(what_if.value)
    changed = {name: abs(time - base.times.get(name, 0.0)) for name, time in trial.times.items()}
    return Effect(
        parameter=trial.number, group=group, gain=what_if.gain if known else None, smooth=False,
        elasticity=math.log(what_if.value / base.value) / math.log(change.after / change.before) if known else None,
        sides="none" if not known else "above" if change.after > change.before else "below",
        resource=max(changed, key=lambda name: changed[name], default=None),
    )  # fmt: skip
