"""What a reader can decide at once, and what it brings: strategies, nodes, network, types, batches, settings of an engine, technology.

What more of a number brings is of `explanation.sensitivity`: here are decisions, each with the settings that make it. The terminal,
plain data and the page tell the same ones in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from crossflow.answers.evaluation.figures import usual_objective
from crossflow.answers.explanation.answers import DIVIDED, Alternative, Decision, DecisionKind, OtherStrategy, bound_of, paces
from crossflow.answers.explanation.designs import Design, read_design, text_of
from crossflow.answers.explanation.moves import PREFILL, Attempt, moves
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import Score, larger_is_better
from crossflow.base.errors import CrossflowError

STRATEGIES = 4  # that are told
CHOICES = 2  # of each setting of a chip
LEAST = 5e-4  # relative change that is worth a row
ARRIVING = 5e-3  # the same of the rate of requests that arrive by themselves, which settles to about a thousandth
TIMED = ("step_time_s", "samples_per_second", "tokens_per_second")  # objectives that follow the pace of a step
# Objectives that a smaller batch makes smaller, as it does less in a step, or answers fewer requests at once.
OF_A_STEP = ("energy_j", "carbon_kg", "embodied_carbon_kg", "e2el_s")
LESS = ("batch", "engine")  # kinds of which a shorter step may only do less
KINDS: tuple[DecisionKind, ...] = get_args(DecisionKind)
CHIP: Mapping[str, DecisionKind] = {
    **dict.fromkeys(("system.technology.inter_link", "system.technology.intra_link"), "network"),
    "system.technology.memory": "memory",
}  # kinds of decisions about a generated chip; the others are of budgets, or of technology
_BESIDE = ("strategy", "software.like")  # settings that come with another


def in_order(found: Iterable[Decision]) -> tuple[Decision, ...]:
    """Decisions kind by kind, those of a kind as they come."""
    return tuple(sorted(found, key=lambda one: KINDS.index(one.kind)))


def better_strategies(base: Score, others: Iterable[OtherStrategy]) -> tuple[Decision, ...]:
    """Of other strategies, the fastest first, those that gain; where the design of a score does not fit, those that do."""
    fits = bool(base.feasible[0])
    better = [other for other in others if other.feasible and (other.gain > LEAST or not fits)][:STRATEGIES]
    return tuple(
        Decision(
            kind="strategy", path="strategy", text=other.changes or other.strategy, settings={"strategy": other.strategy},
            overrides=(f"strategy={other.strategy}",), value=other.value, gain=other.gain, bound_by=other.bound_by,
            feasible=True, reason=None, **_pace((other.step_time, other.throughput), paces(base)[0]),
        )
        for other in better
    )  # fmt: skip


def better_moves(scenario: Scenario, design: Design, base: Score, objective: str | None = None) -> tuple[Decision, ...]:
    """Other decisions that improve a design of a scenario, whose score is `base`; of the types of one thing the best is told.

    A decision is told where it fits, and shortens the step or brings more a second and device; for an objective that does not follow the
    pace of a step, where it improves that. Whatever fits is told of a design that does not.
    """
    objective = objective or usual_objective(scenario)
    tried = [one for move in moves(design) if (one := _tried(scenario, design, base, move, objective)) is not None]
    timed = objective in TIMED
    types = sorted((one for one in tried if one.kind == "type"), key=lambda one: (round(one.time if timed else -one.gain, 1), one.text))
    best: dict[str, Decision] = {}
    for one in types:
        best.setdefault(one.path, one)
    return in_order([*best.values(), *(one for one in tried if one.kind != "type")])


def _tried(scenario: Scenario, design: Design, base: Score, move: Attempt, objective: str) -> Decision | None:
    """What a move brings; None where it is no design, or is not worth a row."""
    settings = dict(move.settings)
    if design.auto or scenario.auto is not None:  # the strategy that is told is the one that a setting must keep
        settings.setdefault("strategy", design.scenario.strategy_text)
    try:
        other = read_design(scenario, {**design.settings, **settings}, kept=True)
        score = other.score(objective)
        before, after = (float(one.columns()[objective][0]) for one in (base, score))
    except (CrossflowError, KeyError):  # the figure is one of those that only some designs have
        return None
    if not score.feasible[0]:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (1.0 if larger_is_better(objective) else -1.0) * float(np.divide(after, before) - 1.0)
    found = Decision(
        kind=move.kind, path=next(path for path in settings if path not in _BESIDE), text=move.text, settings=settings,
        overrides=overrides(other, settings), value=after, gain=gain, bound_by=bound_of(score, 0), feasible=True, reason=None,
        **_pace(paces(score)[0], paces(base)[0]),
    )  # fmt: skip
    return found if _worth(other.scenario, found, base, objective) else None


def _worth(scenario: Scenario, found: Decision, base: Score, objective: str) -> bool:
    if not base.feasible[0]:
        return True
    if objective not in TIMED:
        return found.gain > LEAST and not (found.kind == "batch" and objective in OF_A_STEP)
    spec = scenario.workload
    most = ARRIVING if spec.arrives else LEAST
    more = found.kind not in LESS or found.path.startswith(PREFILL) or found.rate >= -most
    return found.rate > most or (found.time < -LEAST and more)


def _pace(after: tuple[float, float], before: tuple[float, float]) -> dict[str, float]:
    """Step time and throughput, and how they differ from others."""
    with np.errstate(divide="ignore", invalid="ignore"):
        time, rate = (float(np.divide(one, other) - 1.0) for one, other in zip(after, before, strict=True))
    return {"step_time": after[0], "throughput": after[1], "time": time, "rate": rate}


def overrides(design: Design, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings of a design as ``--set`` takes them."""
    texts = ((path, text_of(design.scenario, path, value)) for path, value in settings.items())
    return tuple(f"{path}={text if isinstance(text, str) else json.dumps(text)}" for path, text in texts)


# ------------------------------------------------------------------------------------------ a generated chip


def of_the_chip(scenario: Scenario, base: Score, alternatives: Sequence[Alternative]) -> tuple[Decision, ...]:
    """Decisions about a generated chip that can be built and gain: the division of its budgets, and the best of each other setting."""
    if not alternatives:
        return ()
    better = [one for one in alternatives if one.feasible and _brings(one) > LEAST]
    best = [one for path in dict.fromkeys(one.path for one in better) for one in [o for o in better if o.path == path][:CHOICES]]
    own, anew = paces(base)[0], next((one.step_time, one.throughput) for one in alternatives if one.path == DIVIDED)
    found = [one for one in better if one in best]
    return tuple(_of_the_chip(scenario, one, own if one.path == DIVIDED else anew) for one in found)


def _brings(one: Alternative) -> float:
    """What an alternative brings by itself. [1]"""
    return one.gain if one.path == DIVIDED else one.marginal


def _of_the_chip(scenario: Scenario, one: Alternative, before: tuple[float, float]) -> Decision:
    design = Design(settings={}, scenario=scenario, quantities={})
    name = one.path.removeprefix("system.").removeprefix("technology.").replace("_", " ")
    text = f"{name} {one.after if one.path == DIVIDED else f'{one.before} to {one.after}'}"
    kind: DecisionKind = "budgets" if one.path.startswith(DIVIDED) else CHIP.get(one.path, "technology")
    return Decision(
        kind=kind, path=one.path, text=text, settings=one.settings,
        overrides=overrides(design, one.settings), value=one.value, gain=_brings(one), bound_by=one.bound_by, feasible=True, reason=None,
        spread=one.spread, kept=None if one.path == DIVIDED else one.kept, **_pace((one.step_time, one.throughput), before),
    )  # fmt: skip
