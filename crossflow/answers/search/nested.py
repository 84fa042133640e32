"""Co-optimisation: an outer search over options, an inner search over the continuous rest for each combination [1]_.

All combinations are searched briefly, the most promising by their lower bounds first and in waves, so that the best of the
earlier waves rules out combinations of the later ones; the better ones are searched briefly once more, now all from the best design
of any, and the few best are then searched in full (successive halving [2]_). Designs that are known are
evaluated first; the best design found so far, and they, are where the search of every combination starts.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 9.2 and Fig. 10.
.. [2] K. Jamieson, A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.answers.search.deadline import Deadline
from crossflow.answers.search.oracle import Oracle
from crossflow.answers.search.settings import Local
from crossflow.answers.search.space import Designs
from crossflow.base.arrays import Array, Index
from crossflow.base.results import later

if TYPE_CHECKING:
    from crossflow.answers.search.problem import SearchProblem
else:
    SearchProblem = later("crossflow.answers.search.problem", "SearchProblem")

WAVE = 16  # combinations between two looks at what can be left out, whatever the number of processes
BRIEF_STARTS, BRIEF_STEPS = 2, 20
BRIEF_PART, AGAIN_PART = 0.45, 0.2  # parts of a budget of evaluations for the brief searches of all combinations, and of the better ones
AGAIN = 3  # combinations that are searched briefly again, for each finalist
SLACK = 0.02  # a bound may lie above what can be reached by the last unit or bank that its budget does not fill


@dataclass(frozen=True, kw_only=True)
class InnerSearch:
    """One inner search: the problem at one combination of options."""

    problem: SearchProblem
    settings: Local
    seed: tuple[int, ...]
    evaluations: int | None
    deadline: Deadline | None
    known: Designs  # to start from


@dataclass(frozen=True, kw_only=True)
class InnerResult:
    """The best coordinates of an inner search, shape (dimensions,), in the order of its own space; None where it found none."""

    coordinates: Array | None
    evaluations: int
    spread: float | None  # as of `Best`


Solve = Callable[[Iterable[InnerSearch]], Iterator[InnerResult]]


def search(oracle: Oracle, settings: Local, solved: Solve) -> None:
    """Search the combinations of options, each with an inner search; `solved` runs inner searches, perhaps in parallel."""
    problem = oracle.problem
    combinations = problem.space.combinations()
    bounds = _bounds(problem, combinations)
    if len(oracle.known):
        oracle(oracle.known)
    order = np.argsort(bounds, kind="stable")
    order = order[bounds[order] < np.inf] if (bounds < np.inf).any() else order[:1]  # at least the reason why there is none
    oracle.pruned += combinations.shape[1] - len(order)
    share = None if oracle.evaluations is None else max(int(BRIEF_PART * oracle.evaluations / len(order)), 1)
    brief = settings.model_copy(update={"starts": min(BRIEF_STARTS, settings.starts), "steps": min(BRIEF_STEPS, settings.steps)})
    merits = np.full(combinations.shape[1], np.inf)
    for start in range(0, len(order), WAVE):
        wave = order[start : start + WAVE]
        violation, loss = oracle.incumbent
        hopeful = wave if violation > 0 else wave[bounds[wave] < loss + SLACK * abs(loss)]
        oracle.pruned += len(wave) - len(hopeful)
        merits[hopeful] = _inner(oracle, combinations[:, hopeful], hopeful, brief, solved, share)
    again = _leading(merits, AGAIN * settings.finalists)
    if settings.finalists < len(again):
        share = None if oracle.evaluations is None else max(int(AGAIN_PART * oracle.evaluations / len(again)), 1)
        merits[again] = np.minimum(merits[again], _inner(oracle, combinations[:, again], again, brief, solved, share))
    finalists = _leading(merits, settings.finalists)
    share = None if oracle.evaluations is None else max(int(oracle.remaining) // max(len(finalists), 1), 1)
    _inner(oracle, combinations[:, finalists], finalists, settings, solved, share)


def _leading(merits: Array, count: int) -> Index:
    """The combinations with the best merits, at most so many, best first."""
    return np.argsort(merits, kind="stable")[: min(count, int(np.isfinite(merits).sum()))]


def _bounds(problem: SearchProblem, combinations: Index) -> Array:
    """Least loss of each combination as far as it is known, infinite where nothing can be found in it, shape (combinations,)."""
    n = combinations.shape[1]
    middle = Designs(continuous=np.full((problem.space.dimensions, n), 0.5), discrete=combinations)
    found = None if problem.space.ranges or len(problem.objectives) > 1 else problem.bound(middle)
    if found is not None:
        return np.asarray(found[0])
    return np.where(problem.possible(middle), -np.inf, np.inf)


def _inner(oracle: Oracle, discrete: Index, numbers: Index, settings: Local, solved: Solve, share: int | None) -> Array:
    """Merits of the best designs that inner searches of at most `share` evaluations find at some combinations."""
    if share is not None:
        affordable = max(int(oracle.remaining) // share, 1)
        rest = np.full(max(len(numbers) - affordable, 0), np.inf)
        discrete, numbers = discrete[:, :affordable], numbers[:affordable]
    else:
        rest = np.empty(0)
    if not len(numbers):
        return rest
    oracle.check()
    outcome = oracle.recall(len(numbers))
    if outcome is None:
        known = _known(oracle)
        tasks = [_task(oracle, known, column, settings, int(i), share) for column, i in zip(discrete.T, numbers, strict=True)]
        found = list(solved(tasks))
        spreads = [result.spread for result in found]
        outcome = oracle.found(_designs(oracle.problem, discrete, tasks, found), [result.evaluations for result in found], spreads)
    return np.concatenate([oracle.problem.merit(outcome) + 1e3 * (outcome.violation > 0), rest])


def _known(oracle: Oracle) -> Array:
    """Coordinates to start from, shape (dimensions, n): those of the best design so far, which any record gives too, and of known ones."""
    row = oracle.best.row
    best = None if row is None else oracle.problem.space.located(row)
    found = [designs.continuous for designs in (best, oracle.known) if designs is not None and len(designs)]
    return np.concatenate([np.empty((oracle.problem.space.dimensions, 0)), *found], axis=1)


def _task(oracle: Oracle, known: Array, discrete: Index, settings: Local, number: int, share: int | None) -> InnerSearch:
    here = dataclasses.replace(oracle.problem, space=oracle.problem.space.at(discrete))
    rows = [oracle.problem.space.paths.index(path) for path in here.space.paths[: here.space.dimensions]]
    seed = (settings.seed, number)
    own = here.space.designs(known[rows])
    return InnerSearch(problem=here, settings=settings, seed=seed, evaluations=share, deadline=oracle.deadline, known=own)


def _designs(problem: SearchProblem, discrete: Index, tasks: Sequence[InnerSearch], found: Sequence[InnerResult]) -> Designs:
    """The designs found, in the coordinates of the whole space; dimensions that a combination does not have stay in the middle."""
    continuous = np.full((problem.space.dimensions, discrete.shape[1]), 0.5)
    paths = problem.space.paths[: problem.space.dimensions]
    for column, (task, result) in enumerate(zip(tasks, found, strict=True)):
        own = task.problem.space
        if result.coordinates is not None:
            rows = [paths.index(path) for path in own.paths[: own.dimensions]]
            continuous[rows, column] = result.coordinates
    return Designs(continuous=problem.space.project(continuous), discrete=discrete)
