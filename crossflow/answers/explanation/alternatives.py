"""What the architect of a generated device could decide otherwise: the division of budgets, budgets, memory, links, the logic node.

Every other decision is told twice: with the division of budgets kept, and with budgets divided anew for it, which is what it could
bring. All are searched in one batch (`crossflow.answers.search.division`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.answers import DIVIDED, Alternative, paces
from crossflow.answers.points import variant, varied
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import Score, larger_is_better
from crossflow.answers.search.division import BudgetDivision
from crossflow.answers.search.goals import Objective
from crossflow.answers.search.problem import SearchProblem, standing
from crossflow.answers.search.shares import choices_of, whole_device
from crossflow.base.arrays import Array
from crossflow.base.units import show
from crossflow.hardware.architecture.template import GeneratedSystem, is_none
from crossflow.hardware.technology.components import Link

BUDGETS = ("system.budgets.power", "system.budgets.chip_area", "system.budgets.node_area")
MORE = 1.1  # times as much of a budget
STACKED = 0.4  # part of the chip under a cache on top of it, about that of V-Cache (36 of 81 mm2)
REACH = 4.0  # times the latency of a link, up to which another one is for such distances
CHEAPEST = 0.1  # part of the price of a link, below which another one lacks what it takes for them
SEARCHED, REFINED = 3000, 800  # designs for the scenario's own division, and for each alternative


def alternatives(scenario: Scenario, objective: str, value: float) -> tuple[Alternative, ...]:
    """Dividing the budgets anew, then other decisions, feasible ones first, the largest gain first; none for devices of datasheets."""
    if not isinstance(scenario.system, GeneratedSystem):
        return ()
    decided = [*_more(scenario), *_stacked(scenario), *_others(scenario)]
    own = {path: standing(scenario, path) for path, _ in decided}
    points = _points(own, decided)
    division = _division(scenario, objective)
    kept = evaluate(scenario, points, columns=(objective,))
    first = division.points({}, 1, (), SEARCHED)
    known = np.concatenate([first.designs, division.start], axis=1)
    count = len(decided) + 1  # the last one is the scenario itself
    whole = _points(own, [*decided, decided[0]])
    for path in whole:
        whole[path][-1] = own[path]
    found = division.anew(whole, known, count, REFINED)
    spread = np.zeros(count) if found.spread is None else np.expm1(found.spread)

    def divided_as(designs: Array) -> Score:
        return evaluate(scenario, {**whole, **division.values(designs)}, columns=(objective,))

    designs = found.designs
    anew = divided_as(designs)
    gains = [_gains(score, objective, value) for score in (kept, anew)]
    if evaluate(scenario).feasible[0]:  # what cannot be built with the division as it is brings nothing with it
        gains[0] = [gain if feasible else -np.inf for gain, feasible in zip(gains[0], kept.feasible, strict=True)]
    worse = np.array([*gains[0], 0.0]) > gains[1]
    if worse.any():  # a short search may end behind the division that the template has for it
        designs = np.where(worse, _own_divisions(scenario, decided, division), designs)
        anew = divided_as(designs)
        gains[1] = _gains(anew, objective, value)
    marginal = _gains(anew, objective, float(anew.columns()[objective][-1]))
    values = division.values(designs)
    shares = [{path: float(column[i]) for path, column in values.items()} for i in range(count)]
    rows = [
        Alternative(path=path, before=_text(scenario, path, own[path]), after=_text(scenario, path, to), kept=gains[0][i],
                    marginal=marginal[i], spread=float(spread[i]), settings={path: to, **shares[i]},
                    **_answer(anew, i, objective, gains[1][i]))
        for i, (path, to) in enumerate(decided)
    ]  # fmt: skip
    divided = Alternative(
        path=DIVIDED,
        before="as it is",
        after="re-optimised",
        kept=0.0,
        marginal=0.0,
        spread=float(spread[-1]),
        settings=shares[-1],
        **_answer(anew, -1, objective, gains[1][-1]),
    )
    return (divided, *_in_order(rows))


def _in_order(rows: Sequence[Alternative]) -> list[Alternative]:
    """Feasible ones first, the largest gain first; gains that the search cannot tell apart in the order of what is known without it."""
    groups: list[list[Alternative]] = []
    for one in sorted(rows, key=lambda one: (not one.feasible, -one.gain)):
        first = groups[-1][0] if groups else None
        near = first is not None and first.feasible == one.feasible and first.gain - one.gain <= first.spread + one.spread
        groups = [*groups[:-1], [*groups[-1], one]] if near else [*groups, [one]]
    return [one for group in groups for one in sorted(group, key=lambda one: -one.kept)]


def _own_divisions(scenario: Scenario, decided: Sequence[tuple[str, Any]], division: BudgetDivision) -> Array:
    """Divisions that the template has for each decision, and last for the scenario itself, shape (dimensions, decisions + 1)."""
    own = choices_of(scenario)
    each = [choices_of(variant(scenario, {path: to})) if path.startswith("system.technology.") else own for path, to in decided]
    return division.problem.space.placed({path: np.array([one[path] for one in (*each, own)]) for path in division.paths if path in own})


def _more(scenario: Scenario) -> list[tuple[str, Any]]:
    """Budgets with more of each."""
    return [(path, MORE * standing(scenario, path)) for path in BUDGETS]


def _stacked(scenario: Scenario) -> list[tuple[str, Any]]:
    """A die on the chip that holds more of the farthest cache."""
    path = f"system.levels.{list(scenario.system.levels)[-1]}.stacked_area"
    return [(path, max(MORE * standing(scenario, path), STACKED * standing(scenario, "system.budgets.chip_area")))]


def _others(scenario: Scenario) -> list[tuple[str, Any]]:
    """Other entries of the library for every role but the units and the substrate, which come with the template."""
    roles = {"logic": "logic", "memory": "memory", "intra_link": "link", "inter_link": "link"}
    used: dict[str, str] = scenario.system.technology.model_dump(exclude_none=True)
    if scenario.system.devices_per_node == 1:
        used.pop("intra_link", None)
    if is_none(used["memory"]):  # another memory needs shares of the budgets
        used.pop("memory")
    return [
        (f"system.technology.{role}", name)
        for role, kind in roles.items()
        for name, entry in (getattr(scenario.library, kind).items() if role in used else ())
        if name != used[role] and _takes_place(scenario, kind, used[role], entry)
    ]


def _takes_place(scenario: Scenario, kind: str, used: str, entry: Any) -> bool:
    """Whether an entry may take the place of another: a link of like reach, a main memory that does not wear out."""
    if kind == "link":
        return _reaches(scenario.library.link[used], entry)
    return kind != "memory" or not entry.wears.any()


def _reaches(link: Link, other: Link) -> bool:
    """Whether another link is for distances like those of a link, as far as kind, latency and price (of adapters, switches) tell.

    In the place of a link of a network there is none that leads from a package to the switches of its own node.
    """
    if link.kind == "network" and other.kind not in ("network", ""):
        return False
    one, two = float(link.latency[0]), float(other.latency[0])
    price, theirs = (0.0 if entry.link_cost is None else float(entry.link_cost[0]) for entry in (link, other))
    return max(one, two) <= REACH * min(one, two) and theirs >= CHEAPEST * price


def _points(own: Mapping[str, Any], decided: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A point for each decision, all else as it is."""
    points: dict[str, Any] = {path: [value] * len(decided) for path, value in own.items()}
    for i, (path, value) in enumerate(decided):
        points[path][i] = value
    return points


def _division(scenario: Scenario, objective: str) -> BudgetDivision:
    goal = Objective(name=objective, maximise=larger_is_better(objective))
    return BudgetDivision(problem=SearchProblem(scenario=scenario, space=whole_device(scenario), objectives=(goal,)))


def _gains(score: Score, objective: str, value: float) -> list[float]:
    sign = 1.0 if larger_is_better(objective) else -1.0
    with np.errstate(invalid="ignore"):
        found = sign * (np.asarray(score.columns()[objective], dtype=float) / value - 1.0)
    return [float(gain) for gain in np.where(np.isfinite(found), found, -np.inf)]


def _answer(score: Score, i: int, objective: str, gain: float) -> dict[str, Any]:
    columns, at = score.columns(), i % len(score)
    step_time, throughput = paces(score)[at]
    reason = columns["reason"][at]
    return {
        "value": float(columns[objective][at]), "gain": gain, "bound_by": columns["bound_by"][at],
        "feasible": bool(columns["feasible"][at]), "reason": reason, "step_time": step_time, "throughput": throughput,
    }  # fmt: skip


def _text(scenario: Scenario, path: str, value: Any) -> str:
    quantity = varied(scenario, path)
    return str(value) if quantity is None else show(float(value), quantity.unit)
