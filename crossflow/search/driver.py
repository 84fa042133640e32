"""One search from its settings: the searcher, the budget, the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from crossflow.errors import CrossflowError
from crossflow.search import exhaustive, nested, sampling, trials
from crossflow.search.oracle import Best, BudgetSpent, Mapper, Oracle, Recorder, Row
from crossflow.search.problem import Problem
from crossflow.search.settings import (
    ExhaustiveSettings,
    GivenSettings,
    Local,
    OptunaSettings,
    RandomSettings,
    SearchSettings,
)
from crossflow.search.space import Space


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
    check(problem.space, settings)
    deadline = None if settings.seconds is None else time.time() + settings.seconds
    oracle = Oracle(problem=problem, evaluations=settings.evaluations, deadline=deadline, record=record, replay=replay, mapper=mapper)
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
        trials.search(oracle, settings, name)
    elif isinstance(settings, RandomSettings):
        sampling.search(oracle, settings, rng)
    elif isinstance(settings, ExhaustiveSettings):
        exhaustive.search(oracle, settings)
    elif oracle.problem.space.options:
        nested.search(oracle, settings, solve)
    else:
        nested.descend(oracle, settings, rng)


def check(space: Space, settings: SearchSettings) -> None:
    """Raise CrossflowError when a searcher cannot search such a space."""
    if not space.paths:
        raise CrossflowError("the space is empty: there is nothing to search")
    if isinstance(settings, ExhaustiveSettings):
        exhaustive.check(space)
    if isinstance(settings, Local) and not space.dimensions:
        searcher = getattr(settings, "searcher", "")
        raise CrossflowError(f"searcher {searcher}: the space has options alone; use exhaustive, random, tpe or nsga2")
    if isinstance(settings, OptunaSettings) and settings.searcher == "cma-es" and any(len(option.values) > 1 for option in space.options):
        raise CrossflowError("searcher cma-es: it moves quantities alone, and the space has options; use tpe, nsga2 or gradient, or `over`")
