"""Trials of an explanation: parameters moved by a factor, what comes of each, and what an outcome brings over the scenario itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.answers import Change, OtherStrategy, WhatIf, bound_of, paces, phases_of
from crossflow.answers.explanation.parameters import Parameter
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import Score, larger_is_better
from crossflow.base.units import Quantity
from crossflow.parallel.strategy.reading import near_strategies

NOTHING = 1e-9  # elasticities and gains below it are rounding
FACTORS = (1.1, 2.0, 10.0)
SMALLEST = FACTORS[0]

Move = Mapping[str, float]  # new values by path

BASE = "the scenario itself"


class TrialOutcome(NamedTuple):
    """What an evaluation says of one trial: `cause` is the kind of reason, `times` the step by resource [s], `pace` as of `paces`."""

    value: float
    bound_by: str
    cause: str | None
    reason: str | None
    times: Mapping[str, float]
    pace: tuple[float, float]
    held: tuple[float, float] = (0.0, 0.0)  # capacities of main memory and of the second one. [B]


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Evaluations of an objective about a scenario whose parameters have the given values."""

    scenario: Scenario
    objective: str
    values: Mapping[str, float]

    def run(self, moves: Mapping[Hashable, Move]) -> dict[Hashable, TrialOutcome]:
        """TrialOutcome of every move, all in one batch."""
        place = {move: i for i, move in enumerate(dict.fromkeys(tuple(move.items()) for move in moves.values()))}
        if not place:
            return {}
        points: dict[str, Any] = {path: np.full(len(place), value) for path, value in self.values.items()}
        for move, i in place.items():
            for path, value in move:
                points[path][i] = value
        outcomes = self.outcomes(evaluate(self.scenario, points, columns=(self.objective,)))
        return {key: outcomes[place[tuple(move.items())]] for key, move in moves.items()}

    def outcomes(self, score: Score) -> list[TrialOutcome]:
        """TrialOutcome of every point of a score; of a job `times` are those of the phases of its iteration."""
        columns, pace = score.columns(), paces(score)
        nothing = np.zeros(len(score))
        capacities = score.memory_capacity, score.second.get("second_memory_capacity_bytes", nothing)
        times = self._times(score)
        return [
            TrialOutcome(
                value=float(columns[self.objective][i]),
                bound_by=bound_of(score, i),
                cause=score.reasons[code] if code >= 0 else None,
                reason=columns["reason"][i],
                times=times[i],
                pace=pace[i],
                held=(float(capacities[0][i]), float(capacities[1][i])),
            )
            for i, code in enumerate(score.reason)
        ]

    def _times(self, score: Score) -> list[dict[str, float]]:
        """Parts of every step by resource, or of every iteration by phase. [s]"""
        if score.job:
            return [phases_of(score, i) for i in range(len(score))]
        with np.errstate(invalid="ignore"):
            times = np.stack([share * score.step_time for share in score.bound.values()], axis=1)
        return [dict(zip(score.bound, row, strict=True)) for row in times.tolist()]

    def gain(self, outcome: TrialOutcome, base: TrialOutcome) -> float:
        """Relative improvement, minus infinity where there is no value. [1]"""
        if not math.isfinite(outcome.value):
            return -math.inf
        return (1.0 if larger_is_better(self.objective) else -1.0) * (outcome.value / base.value - 1.0) + 0.0

    def best(self, number: Parameter, factor: float, outcomes: Mapping[Hashable, TrialOutcome], base: TrialOutcome) -> WhatIf | None:
        """The better of both directions, one that stays feasible before one that does not; None where it cannot move."""
        tried = [
            self.what_if(factor, (change_of(number, way),), outcomes[number.path, way], base)
            for way in (factor, 1.0 / factor)
            if (number.path, way) in outcomes
        ]
        return max(tried, key=lambda w: (w.gain > NOTHING, w.gain > NOTHING and not w.obstructed, w.gain), default=None)

    def what_if(self, factor: float, changes: tuple[Change, ...], outcome: TrialOutcome, base: TrialOutcome) -> WhatIf:
        """An outcome as an answer."""
        obstructed = outcome.cause not in (None, base.cause)
        return WhatIf(factor=factor, changes=changes, obstructed=obstructed, **self.answer(outcome, base))

    def answer(self, outcome: TrialOutcome, base: TrialOutcome) -> dict[str, Any]:
        """What every `Answer` says of an outcome."""
        return {
            "value": outcome.value, "gain": self.gain(outcome, base), "bound_by": outcome.bound_by,
            "feasible": outcome.reason is None, "reason": outcome.reason, "step_time": outcome.pace[0], "throughput": outcome.pace[1],
        }  # fmt: skip


def allowed(quantity: Quantity, value: float) -> bool:
    """Whether a value is in the range of a quantity."""
    try:
        quantity.checked(value)
    except ValueError:
        return False
    return True


def scaled(number: Parameter, factor: float) -> float:
    """The value times a factor, as far as the range of the quantity and whole numbers let it go."""
    value = number.value * factor
    if number.quantity.le is not None:
        value = min(value, number.quantity.le)
    if number.quantity.whole:
        value = math.floor(value + NOTHING) if factor > 1.0 else math.ceil(value - NOTHING)
    return value if allowed(number.quantity, value) else number.value


def change_of(number: Parameter, factor: float) -> Change:
    """The move of a parameter by a factor."""
    after, wanted = scaled(number, factor), number.value * factor
    short = not math.isclose(after, wanted, rel_tol=1e-12)
    return Change(path=number.path, unit=number.quantity.unit, before=number.value, after=after, short=short)


def factor_moves(numbers: Sequence[Parameter], factors: Sequence[float] = FACTORS[1:]) -> dict[Hashable, Move]:
    """Every parameter multiplied and divided by every factor, where it moves at all."""
    ways = [way for factor in factors for way in (factor, 1.0 / factor)]
    moved = {(number.path, way): (number, scaled(number, way)) for number, way in itertools.product(numbers, ways)}
    return {key: {number.path: value} for key, (number, value) in moved.items() if value != number.value}


def tried_strategies(trials: Trials, base: TrialOutcome) -> tuple[OtherStrategy, ...]:
    """What other strategies on the same devices bring, those that fit first."""
    scenario = trials.scenario
    near = near_strategies(scenario.strategy, scenario.workload, scenario.strategy_limits, fused=scenario.fused_attention)
    if not near:
        return ()
    score = evaluate(scenario, {"strategy": list(near)}, columns=(trials.objective,))
    found = [
        OtherStrategy(strategy=strategy, changes=changes, **trials.answer(outcome, base))
        for (strategy, changes), outcome in zip(near.items(), trials.outcomes(score), strict=True)
    ]
    return tuple(sorted(found, key=lambda other: (not other.feasible, -other.gain)))
