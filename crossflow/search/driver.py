"""One search from its settings: the searcher, the budget, the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from crossflow.errors import CrossflowError
from crossflow.search import exhaustive, gradient, local, nested, sampling, trials
from crossflow.search.oracle import Best, BudgetSpent, Mapper, Oracle, Recorder, Row
from crossflow.search.problem import Problem
from crossflow.search.settings import (
    ExhaustiveSettings,
    GivenSettings,
    GradientSettings,
    Local,
    OptunaSettings,
    RandomSettings,
    ScipySettings,
    SearchSettings,
)


def search(
    problem: Problem,
    settings: SearchSettings,
    *,
    name: str = "crossflow",
    record: Recorder | None = None,
    replay: Sequence[Row] = (),
    mapper: Mapper | None = None,
    solve: nested.Solve | None = None,
) -> Best:
    """Search a problem until the searcher or its budget ends.

    Parameters
    ----------
    problem, settings : what to search, and how.
    name : of the study in a shared storage.
    record : called with the columns of every batch as it is evaluated.
    replay : rows of an earlier run of the same search, which answer its first questions.
    mapper, solve : evaluate batches, and run inner searches, in other processes; in this one where absent.

    Raises
    ------
    CrossflowError
        When the searcher cannot search such a space, or the replayed rows are not of this search.
    """
    if not problem.space.paths:
        raise CrossflowError("the space is empty: there is nothing to search")
    oracle = Oracle(
        problem=problem, evaluations=settings.evaluations, seconds=settings.seconds, record=record, replay=replay, mapper=mapper
    )
    with contextlib.suppress(BudgetSpent):
        _run(oracle, settings, name, solve or here)
    return oracle.best


def here(tasks: Iterable[nested.Task]) -> Iterator[nested.Found]:
    """Inner searches one after the other in this process."""
    yield from map(nested.solve, tasks)


def _run(oracle: Oracle, settings: SearchSettings, name: str, solve: nested.Solve) -> None:
    rng = np.random.default_rng(settings.seed)
    if isinstance(settings, GivenSettings):
        oracle(oracle.problem.space.sample(rng, 1))  # the space holds the one design
    elif isinstance(settings, OptunaSettings):
        trials.search(oracle, settings, rng, name)
    elif isinstance(settings, RandomSettings):
        sampling.search(oracle, settings, rng)
    elif isinstance(settings, ExhaustiveSettings):
        exhaustive.search(oracle, settings, rng)
    elif oracle.problem.space.options:
        _check_continuous(oracle, settings)
        nested.search(oracle, settings, rng, solve)
    elif isinstance(settings, GradientSettings):
        gradient.search(oracle, settings, rng)
    elif isinstance(settings, ScipySettings):
        local.search(oracle, settings, rng)


def _check_continuous(oracle: Oracle, settings: Local) -> None:
    if not oracle.problem.space.dimensions:
        raise CrossflowError(
            f"searcher {getattr(settings, 'searcher', '')}: the space has options alone; use exhaustive, random, tpe or nsga2"
        )
