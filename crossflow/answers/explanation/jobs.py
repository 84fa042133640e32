"""What limits an iteration of a post-training job: its phases, the numbers that shorten it, and what else can be decided.

A rollout is replayed anew for each number that is tried, which takes most of the time. So numbers are first put in order by what they do
to each phase in a batch: to passes and training steps as these are, to the rollout as to a service in steady state. The first of them are
then tried with all that an iteration has, and the best in pairs. How far each leads, and what it does over its range, is told by phases.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.post_training import Iteration, iteration_of, parts_of, step_of, whole_of, whole_trust
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.explanation.answers import Effect, Explanation, NextBottleneck, Swing, WhatIf, paces, phases_of, waited_for
from crossflow.answers.explanation.decisions import better_moves, better_strategies
from crossflow.answers.explanation.designs import Design
from crossflow.answers.explanation.farther import next_bottleneck, pairs, range_moves, range_of, scan_moves, swing
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
    tried_strategies,
)  # fmt: skip
from crossflow.answers.scenario import Scenario, steady
from crossflow.answers.score import Score, larger_is_better
from crossflow.base.arrays import Array
from crossflow.hardware.architecture.template import GeneratedSystem

TRIED = 8  # numbers that are tried with all that an iteration has
FARTHER, DOUBLED, SCANNED = 3, 2.0, 6  # numbers that are improved further and paired, by how much, and those that are scanned
HOST = "system.network.host.bandwidth"
LINKS = ("system.network.intra.bandwidth", "system.network.inter.bandwidth", HOST)
MOVED = 0.01  # share of an iteration in which weights move, from which on links are tried
IN_TIME = ("iteration_time_s", "samples_per_second", "tokens_per_second", "tokens_per_second_per_device")
NOTES = (
    "Of {all} numbers {tried} were tried: those that do most to the phases, the rollout taken for a service in steady state.",
    "Elasticities are those of a change by 10 %.",
)  # fmt: skip
BY_PHASES = "Spans, and how far a number leads, take the rollout for a service in steady state, and leave the transfer to engines as it is."
OF_TIMES = "Spans, and how far a number leads, are given for times and rates only."


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
    ends, swings = _farther(scenario, found, movable, best, trials, base) if objective.removeprefix("job.") in IN_TIME else ((), ())
    strategies = tried_strategies(trials, base) if tried else ()
    design = Design(settings={}, scenario=scenario, quantities={})
    effects = [_effect(one, groups[one.number], base) for one in singles]
    pace = paces(start)[0]
    return Explanation(
        scenario=scenario, objective=objective, value=base.value, feasible=True, reason=None,
        bound={name: time / pace[0] for name, time in sorted(phases_of(start, 0).items(), key=lambda pair: -pair[1])},
        effects=tuple(sorted(effects, key=lambda one: (GROUPS.index(one.group), -(one.gain or 0.0)))),
        fixed=(), limiting=first, lever=first,
        what_ifs=tuple(one.what_if for own in best for one in (own, *(far for far in farther if far.number == own.number))),
        pairs=pairs([one.what_if for one in (*best[:FARTHER], *farther)], trials, base), next_bottlenecks=ends, swings=swings,
        alternatives=(), strategies=strategies,
        decisions=(*better_strategies(start, strategies), *better_moves(scenario, design, start, objective)) if tried else (),
        trust=whole_trust(scenario), step_time=pace[0], throughput=pace[1], counts="tokens", uses={},
        notes=(
            *(f"{slip}." for slip in slips(scenario)), *(note.format(all=len(movable), tried=len(chosen)) for note in NOTES),
            BY_PHASES if swings else OF_TIMES,
        ),
    )  # fmt: skip


def _chosen(scenario: Scenario, found: Iteration, numbers: Sequence[Parameter], *, money: bool) -> list[tuple[Parameter, float]]:
    """Numbers that are worth trying, each with the factor that helps; those that do most first."""
    moves = factor_moves(numbers, (SMALLEST,))
    estimates = {key: one.value for key, one in _estimates(scenario, found, numbers, moves).items()}
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


def _farther(
    scenario: Scenario, found: Iteration, numbers: Sequence[Parameter], best: Sequence[_Trial], trials: Trials, base: TrialOutcome
) -> tuple[tuple[NextBottleneck, ...], tuple[Swing, ...]]:
    """How far the best numbers lead, and the objective over the range of every number that moves an iteration, as its phases say."""
    moves = {**scan_moves([(one.number, one.what_if) for one in best[:SCANNED]]), **range_moves(numbers)}
    whole = _estimates(scenario, found, numbers, moves)
    inverse = larger_is_better(trials.objective)  # samples or tokens a second
    ratios = {key: one.value / whole[BASE].value for key, one in whole.items()}
    told = {key: one._replace(value=base.value / ratios[key] if inverse else base.value * ratios[key]) for key, one in whole.items()}
    scanned = [one for one in best[:SCANNED] if abs(ratios[one.number.path, "scan", 1] - 1.0) > NOTHING]
    ends = tuple(next_bottleneck(one.number, one.what_if, told, told[BASE], trials) for one in scanned)
    swings = (swing(number, told) for number in numbers if range_of(number) is not None)
    return ends, tuple(one for one in swings if one.at_low != one.at_high)


def _estimates(
    scenario: Scenario, found: Iteration, numbers: Sequence[Parameter], moves: Mapping[Hashable, Move]
) -> dict[Hashable, TrialOutcome]:
    """What becomes of the time of an iteration after every move as its phases by themselves say, and as it is. [s]"""
    keys: list[Hashable] = [BASE, *moves]
    points: dict[str, Any] = {number.path: np.full(len(keys), number.value) for number in numbers}
    for i, key in enumerate(keys):
        for path, value in moves.get(key, {}).items():
            points[path][i] = value
    parts, service = parts_of(scenario), found.rollout.service
    steps = {f"{name}_pass": one for name, one in parts.passes.items()} | {f"{name}_training": one for name, one in parts.trained.items()}
    phases = {name: np.full(len(keys), time) for name, time in found.times.items() if name not in found.steps}
    if "moving" in phases and HOST in points:
        phases["moving"] = phases["moving"] * points[HOST][0] / points[HOST]
    phases |= {name: found.steps[name][0] * _times(one, points) for name, one in {**steps, "training": step_of(scenario)}.items()}
    training, rollout = np.sum(list(phases.values()), axis=0), np.full(len(keys), found.rollout.time)
    if service is not None:
        steps_of_engines = _times(steady(service), points)
        rollout = rollout * steps_of_engines / steps_of_engines[0]
    job = scenario.post_training
    assert job is not None
    after = {"transfer": found.rollout.transfer, "refit": found.rollout.refit}
    whole = whole_of(job, training, rollout) + sum(after.values())
    phases |= {"rollout": rollout, **{name: np.full(len(keys), time) for name, time in after.items()}}
    return {key: _estimate({name: float(times[i]) for name, times in phases.items()}, float(whole[i])) for i, key in enumerate(keys)}


def _estimate(phases: Mapping[str, float], whole: float) -> TrialOutcome:
    """An iteration by its phases. [s]"""
    times = waited_for(phases, whole)
    known = math.isfinite(whole)
    longest = max(times, key=lambda name: times[name], default="")
    return TrialOutcome(value=whole if known else math.inf, bound_by=longest, cause=None, reason=None, times=times, pace=(whole, math.nan))


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
