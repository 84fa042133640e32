"""What comes of numbers that are improved further: pairs of them, how far each leads, and the span of the objective over each range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from crossflow.answers.explanation.answers import STEP, Change, NextBottleneck, Swing, WhatIf
from crossflow.answers.explanation.parameters import Parameter
from crossflow.answers.explanation.trials import FACTORS, NOTHING, SMALLEST, Move, TrialOutcome, Trials, allowed, scaled
from crossflow.answers.score import larger_is_better

PAIRS = 5  # best pairs kept of every factor
SCAN = np.geomspace(1.0, 100.0, 97)  # factors of a scan, each 4.9 % above the one before


def distinct(leading: Sequence[tuple[Parameter, WhatIf]]) -> list[tuple[Parameter, WhatIf]]:
    """The first of those that act alike: equal outcomes of the smallest factor."""
    kept: list[tuple[Parameter, WhatIf]] = []
    for number, best in leading:
        if not any(math.isclose(best.value, other.value, rel_tol=NOTHING) for _, other in kept):
            kept.append((number, best))
    return kept


def scan_moves(top: Sequence[tuple[Parameter, WhatIf]]) -> dict[Hashable, Move]:
    """Every parameter along its scan."""
    return {(n.path, "scan", i): {n.path: value} for n, best in top for i, value in enumerate(_scan_values(n, best))}


def _scan_values(number: Parameter, best: WhatIf) -> list[float]:
    """Values of a scan in the direction that helps, each once, as far as the range goes."""
    change = best.changes[0]
    factors = SCAN if change.after > change.before else 1.0 / SCAN
    return list(dict.fromkeys(scaled(number, float(factor)) for factor in factors))


def range_moves(numbers: Sequence[Parameter]) -> dict[Hashable, Move]:
    """Every parameter at both ends of its range."""
    found = {number.path: range_of(number) for number in numbers}
    ends = ((path, "range", end, ends[end]) for path, ends in found.items() if ends is not None for end in (0, 1))
    return {(path, word, end): {path: float(value)} for path, word, end, value in ends}


def range_of(number: Parameter) -> tuple[float, float, bool] | None:
    """Ends of the range to swing over, and whether the file gives it; None where the parameter cannot move."""
    low = number.value if number.low is None else number.low
    high = number.value if number.high is None else number.high
    if low < high and allowed(number.quantity, low) and allowed(number.quantity, high):
        return low, high, True
    low, high = scaled(number, 1.0 / SMALLEST), scaled(number, SMALLEST)
    return (low, high, False) if low < high else None


def pairs(singles: Sequence[WhatIf], trials: Trials, base: TrialOutcome) -> tuple[WhatIf, ...]:
    """The best pairs by every factor: each parameter as far as it goes alone."""
    helping = [single for single in singles if single.gain > NOTHING]
    chosen: dict[Hashable, tuple[float, tuple[Change, ...]]] = {
        (one.factor, one.changes, other.changes): (one.factor, one.changes + other.changes)
        for one, other in itertools.combinations(helping, 2)
        if one.factor == other.factor
    }
    outcomes = trials.run({key: {change.path: change.after for change in changes} for key, (_, changes) in chosen.items()})
    answers = [trials.what_if(factor, changes, outcomes[key], base) for key, (factor, changes) in chosen.items()]
    best = [sorted((a for a in answers if a.factor == factor), key=lambda a: -round(a.gain, 9))[:PAIRS] for factor in FACTORS]
    return tuple(itertools.chain.from_iterable(best))


def next_bottleneck(
    number: Parameter, best: WhatIf, outcomes: Mapping[Hashable, TrialOutcome], base: TrialOutcome, trials: Trials
) -> NextBottleneck:
    """First factor of a scan at which the gain of the next step has halved, or the largest bound is another."""
    found = [outcomes[number.path, "scan", i] for i in range(len(_scan_values(number, best)))]
    found = list(itertools.takewhile(lambda outcome: _counts(outcome, best, base), found))
    ratio = np.array(_scan_values(number, best)[: len(found)]) / number.value
    factors = np.maximum(ratio, 1.0 / ratio)
    sign = 1.0 if larger_is_better(trials.objective) else -1.0
    slope = sign * np.diff(np.log([outcome.value for outcome in found])) / np.diff(np.log(factors))
    ended = next((i for i in range(1, len(slope)) if slope[i] < slope[0] / 2.0), len(found))
    other = next((i for i, outcome in enumerate(found) if outcome.bound_by != base.bound_by), len(found))
    at = min(ended, other)
    turned = at < len(found)
    return NextBottleneck(
        path=number.path,
        multiplied=best.changes[0].after > number.value,
        factor=float(factors[at]) if turned else None,
        because=None if not turned else "another resource" if other <= ended else "falling elasticity",
        bound_by=found[at if turned else -1].bound_by,
        reach=float(factors[-1]),
    )


def _counts(outcome: TrialOutcome, best: WhatIf, base: TrialOutcome) -> bool:
    """Whether a step of a scan has a value, and nothing stands against it that does not against its first step."""
    return 0.0 < outcome.value < math.inf and (best.obstructed or outcome.cause in (None, base.cause))


def swing(number: Parameter, outcomes: Mapping[Hashable, TrialOutcome]) -> Swing:
    """The objective at both ends of the range of a parameter that can move."""
    ends = range_of(number)
    assert ends is not None  # the caller has looked
    low, high = (outcomes[number.path, "range", end] for end in (0, 1))
    return Swing(
        path=number.path,
        unit=number.quantity.unit,
        low=ends[0],
        high=ends[1],
        at_low=low.value,
        at_high=high.value,
        resource=changed_most(low.times, high.times) if math.isfinite(low.value) and math.isfinite(high.value) else None,
        given=ends[2],
    )


def changed_most(before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    """The resource whose part of the step differs most, None where none differs."""
    changed = {name: abs(after[name] - before[name]) for name in before}
    most = max(changed, key=lambda name: changed[name])
    return most if changed[most] > NOTHING * STEP * sum(before.values()) else None
