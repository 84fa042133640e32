"""Co-optimisation: an outer search over options, an inner search over the continuous rest for each combination [1]_.

All combinations are searched briefly, the most promising by their lower bounds first and in waves, so that the best of the
earlier waves rules out combinations of the later ones; the few best are then searched in full.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 9.2 and Fig. 10.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array, Index
from crossflow.search import gradient, local
from crossflow.search.oracle import BudgetSpent, Oracle
from crossflow.search.problem import Problem
from crossflow.search.settings import GradientSettings, Local, ScipySettings
from crossflow.search.space import Designs

WAVE = 16  # combinations between two looks at what can be left out, whatever the number of processes
BRIEF_STARTS, BRIEF_STEPS = 2, 20
SLACK = 0.02  # a bound may lie above what can be reached by the last unit or bank that its budget does not fill


@dataclass(frozen=True, kw_only=True)
class Task:
    """One inner search: the problem at one combination of options."""

    problem: Problem
    settings: Local
    seed: tuple[int, ...]
    evaluations: int | None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best coordinates of an inner search, shape (dimensions,), in the order of its own space; None where it found none."""

    coordinates: Array | None
    evaluations: int


Solve = Callable[[Iterable[Task]], Iterator[Found]]


def solve(task: Task) -> Found:
    """Run one inner search."""
    oracle = Oracle(problem=task.problem, evaluations=task.evaluations)
    rng = np.random.default_rng(task.seed)
    with contextlib.suppress(BudgetSpent):
        if isinstance(task.settings, GradientSettings):
            gradient.search(oracle, task.settings, rng)
        elif isinstance(task.settings, ScipySettings):
            local.search(oracle, task.settings, rng)
    return Found(coordinates=oracle.coordinates, evaluations=oracle.spent)


def search(oracle: Oracle, settings: Local, rng: np.random.Generator, solved: Solve) -> None:  # noqa: ARG001
    """Search the combinations of options, each with an inner search; `solved` runs inner searches, perhaps in parallel."""
    problem = oracle.problem
    combinations = problem.space.combinations()
    bounds = _bounds(problem, combinations)
    order = np.argsort(bounds, kind="stable")
    order = order[np.isfinite(bounds[order])] if np.isfinite(bounds).any() else order[:WAVE]
    oracle.pruned += combinations.shape[1] - len(order)
    brief = settings.model_copy(update={"starts": min(BRIEF_STARTS, settings.starts), "steps": min(BRIEF_STEPS, settings.steps)})
    merits = np.full(combinations.shape[1], np.inf)
    for start in range(0, len(order), WAVE):
        wave = order[start : start + WAVE]
        violation, merit = oracle.incumbent
        hopeful = wave if violation > 0 else wave[bounds[wave] < merit + SLACK]
        oracle.pruned += len(wave) - len(hopeful)
        merits[hopeful] = _inner(oracle, combinations[:, hopeful], hopeful, brief, solved)
    finalists = np.argsort(merits, kind="stable")[: settings.finalists]
    _inner(oracle, combinations[:, finalists], finalists, settings, solved)


def _bounds(problem: Problem, combinations: Index) -> Array:
    """Least merit of each combination as far as it is known, shape (combinations,)."""
    n = combinations.shape[1]
    middle = Designs(continuous=np.full((problem.space.dimensions, n), 0.5), discrete=combinations)
    found = None if problem.space.ranges or len(problem.objectives) > 1 else problem.bound(middle)
    if found is not None:
        return np.asarray(found[0])
    settings = [
        dict(zip(problem.space.paths[problem.space.dimensions :], _values(problem, column), strict=True)) for column in combinations.T
    ]
    return np.array([-np.inf if problem.illegal(given) is None else np.inf for given in settings])


def _values(problem: Problem, discrete: Index) -> list[object]:
    return [option.values[i] for option, i in zip(problem.space.options, discrete, strict=True)]


def _inner(oracle: Oracle, discrete: Index, numbers: Index, settings: Local, solved: Solve) -> Array:
    """Merits of the best designs that inner searches find at some combinations."""
    if not discrete.shape[1]:
        return np.empty(0)
    oracle.check()
    outcome = oracle.recall(discrete.shape[1])
    if outcome is None:
        share = None if oracle.evaluations is None else max(int(oracle.remaining) // discrete.shape[1], 1)
        tasks = [_task(oracle.problem, column, settings, int(i), share) for column, i in zip(discrete.T, numbers, strict=True)]
        found = list(solved(tasks))
        outcome = oracle.found(_designs(oracle.problem, discrete, tasks, found), [result.evaluations for result in found])
    return oracle.problem.merit(outcome) + 1e3 * (outcome.violation > 0)


def _task(problem: Problem, discrete: Index, settings: Local, number: int, share: int | None) -> Task:
    here = dataclasses.replace(problem, space=problem.space.at(discrete))
    return Task(problem=here, settings=settings, seed=(settings.seed, number), evaluations=share)


def _designs(problem: Problem, discrete: Index, tasks: Sequence[Task], found: Sequence[Found]) -> Designs:
    """The designs found, in the coordinates of the whole space; dimensions that a combination does not have stay in the middle."""
    continuous = np.full((problem.space.dimensions, discrete.shape[1]), 0.5)
    paths = problem.space.paths[: problem.space.dimensions]
    for column, (task, result) in enumerate(zip(tasks, found, strict=True)):
        own = task.problem.space
        if result.coordinates is not None:
            rows = [paths.index(path) for path in own.paths[: own.dimensions]]
            continuous[rows, column] = result.coordinates
    return Designs(continuous=problem.space.project(continuous), discrete=discrete)
