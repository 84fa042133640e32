"""Optuna's samplers: TPE, CMA-ES and NSGA-II, asked and told in batches; a study may be shared through its storage.

What a sampler suggests are ranges in their own units, weights of shares (each share is its weight over the sum of all and
of one more for what is left over), and options by their text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from crossflow.answers.search.oracle import Oracle
from crossflow.answers.search.settings import OptunaSettings
from crossflow.answers.search.space import Designs, Space
from crossflow.base.errors import CrossflowError

TPE_BATCH = 8  # trials asked before they are told; the sampler keeps them apart (constant liar)


def search(oracle: Oracle, settings: OptunaSettings, name: str = "crossflow") -> None:
    """Ask and tell until the budget is spent."""
    with _study(oracle, settings, name) as study:
        _ask_and_tell(oracle, settings, study)


def _ask_and_tell(oracle: Oracle, settings: OptunaSettings, study: Any) -> None:
    space = oracle.problem.space
    batch = TPE_BATCH if settings.searcher == "tpe" else settings.population
    distributions = _distributions(space)
    if settings.storage is not None:
        oracle.adopt()  # the storage remembers the trials, with those of others
    if not study.trials:
        for i in range(len(oracle.known)):
            study.enqueue_trial(_params(space, oracle.known.take(slice(i, i + 1))))
    while True:
        oracle.check()
        trials = [_asked(study, distributions, settings) for _ in range(int(min(batch, oracle.remaining)))]
        outcome = oracle(_designs(space, [trial.params for trial in trials]))
        alone = settings.searcher == "cma-es"
        # CMA-ES knows no constraints and is told the penalised merit.
        losses = oracle.problem.merit(outcome)[None] if alone else oracle.problem.losses(outcome)
        losses = np.nan_to_num(losses, posinf=1e300, neginf=-1e300)
        for i, trial in enumerate(trials):
            if not alone:
                trial.set_constraint("violation", float(outcome.violation[i]))
            study.tell(trial, losses[:, i].tolist())


def _asked(study: Any, distributions: Mapping[str, Any], settings: OptunaSettings) -> Any:
    try:
        return study.ask(distributions)
    except ValueError as error:
        if settings.storage is None:
            raise
        raise CrossflowError(f"storage {settings.storage}: it holds a study of that name over another space ({error})") from None


@contextlib.contextmanager
def _study(oracle: Oracle, settings: OptunaSettings, name: str) -> Iterator[Any]:
    """The study of a search, in memory or in its storage, whose connections are closed at the end."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    several = len(oracle.problem.objectives)
    samplers: dict[str, Any] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=settings.seed, multivariate=True, constant_liar=True),
        "cma-es": lambda: optuna.samplers.CmaEsSampler(seed=settings.seed, popsize=settings.population, warn_independent_sampling=False),
        "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=settings.seed, population_size=settings.population),
    }
    with contextlib.ExitStack() as opened:
        try:
            storage = None if settings.storage is None else optuna.storages.RDBStorage(settings.storage)
            if storage is not None:
                opened.callback(storage.engine.dispose)
            study = optuna.create_study(
                study_name=name,
                storage=storage,
                load_if_exists=storage is not None,
                sampler=samplers[settings.searcher](),
                directions=["minimize"] * (1 if settings.searcher == "cma-es" else several),
            )
        except Exception as error:
            if settings.storage is None:
                raise
            raise CrossflowError(f"storage {settings.storage}: {str(error).splitlines()[0]}") from None
        yield study


def _distributions(space: Space) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {
        r.path: IntDistribution(int(r.low), int(r.high), log=r.log) if r.whole else FloatDistribution(r.low, r.high, log=r.log)
        for r in space.ranges
    }
    for number, group in enumerate(space.shares):
        names = (*group.paths, f"rest of budget {number + 1}")
        found |= {f"weight {name}": FloatDistribution(1e-6, 1.0) for name in names}
    return found | {option.path: CategoricalDistribution([str(value) for value in option.values]) for option in space.options}


def _designs(space: Space, trials: list[Mapping[str, Any]]) -> Designs:
    """Designs of the samplers' suggestions."""
    rows = [r.coordinate(np.array([trial[r.path] for trial in trials], dtype=float)) for r in space.ranges]
    for number, group in enumerate(space.shares):
        names = (*group.paths, f"rest of budget {number + 1}")
        # Exponential variates of uniform weights: uniform on the simplex, as random designs are.
        weights = -np.log(np.array([[trial[f"weight {name}"] for trial in trials] for name in names]) * (1.0 - 1e-9))
        rows += list(group.total * (weights / weights.sum(axis=0))[:-1])
    continuous = np.array(rows).reshape(space.dimensions, len(trials))
    index = {option.path: {str(value): i for i, value in enumerate(option.values)} for option in space.options}
    discrete = [[index[option.path][trial[option.path]] for trial in trials] for option in space.options]
    chosen = np.array(discrete, dtype=np.intp).reshape(len(space.options), len(trials))
    return Designs(continuous=space.project(continuous), discrete=space.canonical(chosen))


def _params(space: Space, design: Designs) -> dict[str, Any]:
    """What a sampler would suggest for a design."""
    values = {path: listed[0] for path, listed in space.values(design).items()}
    found: dict[str, Any] = {r.path: (int if r.whole else float)(values[r.path]) for r in space.ranges}
    found |= {option.path: str(values[option.path]) for option in space.options}
    for number, group in enumerate(space.shares):
        parts = np.array([values[path] for path in group.paths]) / group.total
        names = (*group.paths, f"rest of budget {number + 1}")
        weights = np.clip(np.exp(-np.append(parts, max(1.0 - parts.sum(), 0.0))), 1e-6, 1.0)
        found |= {f"weight {name}": float(weight) for name, weight in zip(names, weights, strict=True)}
    return found
