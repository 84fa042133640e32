"""One search from its settings: the searcher, the budget, the end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.search import exhaustive, fronts, gradient, local, nested, trials
from crossflow.answers.search.deadline import Deadline
from crossflow.answers.search.oracle import Best, BudgetSpent, Mapper, Oracle, Recorder, Row
from crossflow.answers.search.settings import (
    EvolutionSettings,
    ExhaustiveSettings,
    GivenSettings,
    GradientSettings,
    Local,
    OptunaSettings,
    RandomSettings,
    ScipySettings,
    SearchSettings,
)
from crossflow.answers.search.space import Space
from crossflow.base.errors import CrossflowError

if TYPE_CHECKING:
    from crossflow.answers.search.problem import SearchProblem

DRAWN = 4096  # random designs of one batch
LARGEST = 5_000_000  # designs that are enumerated


def search(
    problem: SearchProblem,
    settings: SearchSettings,
    *,
    name: str = "crossflow",
    record: Recorder | None = None,
    replay: Sequence[Row] = (),
    mapper: Mapper | None = None,
    known: Sequence[Mapping[str, Any]] = (),
    timed: bool = False,
    solved: nested.Solve | None = None,
) -> Best:
    """Search a problem until the searcher or its budget ends.

    Parameters
    ----------
    problem, settings : what to search, and how.
    name : of the study in a shared storage.
    record : called with the columns of every batch as it is evaluated.
    replay : rows of an earlier run of the same search, which answer its first questions.
    known : designs by their values to start from, beside the scenario's own; what the space does not hold is left out.
    timed : whether rows record the time that the search had taken.
    mapper, solved : evaluate batches, and run inner searches, in other processes; in this one where absent.

    Raises
    ------
    CrossflowError
        When the searcher cannot search such a space, or the replayed rows are not of this search.
    """
    check(problem.space, settings)
    deadline = None if settings.seconds is None else Deadline.after(settings.seconds)
    given: dict[str, Any] = {
        "evaluations": settings.designs(len(problem.objectives)),
        "deadline": deadline,
        "record": record,
        "replay": replay,
    }
    oracle = Oracle(problem=problem, known=problem.known(known), mapper=mapper, timed=timed, **given)
    with contextlib.suppress(BudgetSpent):
        _run(oracle, settings, name, solved or functools.partial(map, solve))
    return oracle.best


def solve(task: nested.InnerSearch) -> nested.InnerResult:
    """Run one inner search."""
    oracle = Oracle(problem=task.problem, evaluations=task.evaluations, deadline=task.deadline, known=task.known)
    rng = np.random.default_rng(task.seed)
    with contextlib.suppress(BudgetSpent):
        descend(oracle, task.settings, rng)
    return nested.InnerResult(coordinates=oracle.coordinates, evaluations=oracle.spent, spread=oracle.spread)


def descend(oracle: Oracle, settings: Local, rng: np.random.Generator) -> None:
    """Search a space of quantities alone."""
    if isinstance(settings, GradientSettings):
        gradient.search(oracle, settings, rng)
    elif isinstance(settings, ScipySettings):
        local.search(oracle, settings, rng)


def _run(oracle: Oracle, settings: SearchSettings, name: str, solved: nested.Solve) -> None:
    rng = np.random.default_rng(settings.seed)
    if isinstance(settings, GivenSettings):
        oracle(oracle.problem.space.sample(rng, 1))  # the space holds the one design
    elif isinstance(settings, OptunaSettings):
        trials.search(oracle, settings, name)
    elif isinstance(settings, EvolutionSettings):
        fronts.search(oracle, settings, rng)
    elif isinstance(settings, RandomSettings):  # designs that do not depend on one another
        space, count = oracle.problem.space, settings.evaluations
        oracle.each(space.sample(rng, min(DRAWN, count - start)) for start in range(0, count, DRAWN))
    elif isinstance(settings, ExhaustiveSettings):
        exhaustive.search(oracle, settings)
    elif oracle.problem.space.options:
        nested.search(oracle, settings, solved)
    else:
        descend(oracle, settings, rng)


def check(space: Space, settings: SearchSettings) -> None:
    """Raise CrossflowError when a searcher cannot search such a space."""
    if not space.paths:
        raise CrossflowError("the space is empty: there is nothing to search")
    if isinstance(settings, ExhaustiveSettings):
        _check_enumerable(space)
    if isinstance(settings, Local) and not space.dimensions:
        searcher = getattr(settings, "searcher", "")
        raise CrossflowError(f"searcher {searcher}: the space has options only; use exhaustive, random, tpe or nsga2")
    if isinstance(settings, OptunaSettings) and settings.searcher == "cma-es" and any(len(option.values) > 1 for option in space.options):
        raise CrossflowError("searcher cma-es: it searches quantities only; the space has options; use tpe, nsga2 or gradient, or `over`")


def _check_enumerable(space: Space) -> None:
    if space.shares or any(r.count is None for r in space.ranges):
        raise CrossflowError(
            "searcher exhaustive: the space holds quantities without an end; give ranges a count, and search shares with gradient"
        )
    if space.size > LARGEST:
        raise CrossflowError(f"searcher exhaustive: the space holds {space.size:,} designs, more than {LARGEST:,}; draw some with random")
