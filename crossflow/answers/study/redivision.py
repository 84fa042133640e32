"""What a study's `redivide` asks for, and what its tables and plots say of the division of budgets (`search.division`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import larger_is_better
from crossflow.answers.search.division import BudgetDivision
from crossflow.answers.search.goals import Constraint, Objective
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.shares import budget_shares, free_ranges, generated, held_shares, share_paths
from crossflow.answers.search.space import Space
from crossflow.answers.study.spaces import checked_columns, read_constraints
from crossflow.answers.study.spec import Redivide, StudyFile
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.hardware.architecture.divisions import ROLES
from crossflow.hardware.architecture.template import BUDGETS

LOOSE = 0.01  # spread above which a division is marked as loose
WORDS = dict(zip(("area", "power", "perimeter"), BUDGETS, strict=True))  # what a study calls the budgets
TEMPLATE = "system.template"
MOVING = ("technology.", "techlib", "components.", "budgets.")  # parts of a device that move its best division
LOOSELY = "~ ends of the search that did not see each other differ by more than 1 % there; more evaluations may find a better design."


# ------------------------------------------------------------------------------------------ what is said of it


def caption(settings: Redivide | None, draws: bool) -> str:
    """What a plot says of the division of budgets at its points."""
    if settings is None:
        return "one division of the budgets for all points"
    return f"budgets re-divided at each {settings.each if draws else 'point'}"


def keeps_division(scenario: Scenario, varied_paths: Iterable[str], drawn: bool) -> bool:
    """Whether technology or budgets of a generated device change and the division of its budgets does not."""
    paths, places = tuple(varied_paths), generated(scenario)
    if not places or any(path.startswith(share_paths(scenario)) for path in paths):
        return False
    moving = ("techlib.", *(f"{place}.{part}" for place in places for part in MOVING))
    tabled = [f"{place}.technology.{role}" for place, one in places.items() if one.budgets.divisions for role in ROLES]
    return drawn or any(path.startswith(moving) and path not in tabled for path in paths)


def sentence(scenario: Scenario, *, searched: bool = False, study: str = "the study") -> str:
    """What a study that keeps a division is told; one that searches divides in its space."""
    names = " and ".join(one.name for one in generated(scenario).values())
    cure = "`system.budgets.area: shares` in the space divides" if searched else f"`redivide: {{}}` in {study} divides"
    each = "with each design" if searched else "at each point"
    return (
        f"The budgets keep the division of {names} at every point. Where technology or budgets change, another division"
        f" may be better: {cure} them anew {each}."
    )


def missed(constraints: Sequence[Constraint], columns: Mapping[str, Any]) -> str:
    """How many rows miss a constraint although their budgets were divided to keep it; "" where none does."""
    broken = [constraint.violation(np.asarray(columns[constraint.name], dtype=float)) > 0.0 for constraint in constraints]
    rows, names = np.any(broken, axis=0), [c.name for c, rows in zip(constraints, broken, strict=True) if rows.any()]
    if not names:
        return ""
    return (
        f"No division was found that keeps the constraints ({', '.join(names)}) in {rows.sum():,} of {len(rows):,} rows; these miss them."
    )


def unmoved(spread: Array, evaluations: int) -> str:
    """In how many rows no end of the search left the division that it began with; "" where in none.

    spread : of the ends of each row, NaN where neither moved. [1]
    """
    rows = int(np.isnan(spread).sum())
    if not rows:
        return ""
    where = "In all rows" if rows == len(spread) else f"In {rows:,} of {len(spread):,} rows"
    return (
        f"{where} neither end of the search left the division that it began with (`redivide: {{evaluations: {evaluations:,}}}`): how far"
        " two searches differ is not known there, and more evaluations may find a better design."
    )


# ------------------------------------------------------------------------------------------ reading


def redivision(spec: StudyFile, scenario: Scenario, values: Mapping[str, Sequence[Any]], document: Document) -> BudgetDivision | None:
    """What a study's `redivide` asks for; SpecError where its budgets cannot be divided anew."""
    if spec.redivide is None:
        return None
    with document.telling("redivide"):
        spaces = [_space(spec.redivide, here, values) for here in _systems(scenario, values)]
        if any(space != spaces[0] for space in spaces):
            raise CrossflowError("the templates that are swept have different shares, or another microarchitecture; make a study of each")
    goal = spec.redivide.goal
    checked_columns(spec, scenario, document, {("redivide", "goal"): goal}, values)
    problem = SearchProblem(
        scenario=scenario,
        space=spaces[0],
        objectives=(Objective(name=goal, maximise=larger_is_better(goal)),),
        constraints=tuple(read_constraints(spec, document)),
        fits=bool(spec.constraints.get("fits", True)),
    )
    return BudgetDivision(problem=problem, seed=spec.redivide.seed)


def _systems(scenario: Scenario, values: Mapping[str, Sequence[Any]]) -> Iterator[Scenario]:
    """The scenario with every template that is swept."""
    yield from (variant(scenario, {TEMPLATE: name}) for name in values[TEMPLATE]) if TEMPLATE in values else (scenario,)


def _space(settings: Redivide, scenario: Scenario, values: Mapping[str, Sequence[Any]]) -> Space:
    """The shares that are divided anew, and the microarchitecture that is chosen with them, but for what is swept."""
    places = generated(scenario)
    if not places:
        raise CrossflowError(f"{scenario.system.name} is known by its datasheet and has no budgets to divide")
    named = {name: [f"{place}.budgets.{WORDS[name]}" for place in places] if name in WORDS else [name] for name in settings.shares}
    wanted = [path for paths in named.values() for path in paths]
    groups = []
    for path in share_paths(scenario):
        held = [f"{path}.{name}" for name in held_shares(scenario, path)]
        chosen = tuple(share.removeprefix(f"{path}.") for share in held if any(share == w or share.startswith(f"{w}.") for w in wanted))
        swept = next((share for share in values if chosen and share.startswith(f"{path}.")), None)
        if swept is not None:
            raise CrossflowError(f"'{swept}' is swept, and the rest of its budget would be divided anew; leave this budget out of shares")
        groups += [budget_shares(scenario, path, chosen)] if chosen else []
    every = [path for group in groups for path in group.paths]
    lost = next((name for name, paths in named.items() if not any(f"{p}.".startswith(f"{w}.") for w in paths for p in every)), None)
    if lost is not None:
        raise CrossflowError(f"shares: '{lost}' is no budget and no share of {scenario.system.name}; budgets: {', '.join(WORDS)}")
    free = free_ranges(scenario) if settings.microarchitecture else ()
    return Space(ranges=tuple(one for one in free if one.path not in values), shares=tuple(groups))
