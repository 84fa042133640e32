"""SciPy's constrained minimisers on the gradients of the batched evaluator."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from crossflow.answers.search.oracle import Oracle
from crossflow.answers.search.settings import ScipySettings
from crossflow.base.arrays import Array

DRAWN = 16  # random designs for each start: most of a space cannot be built, and there is no slope to follow there
WIDTH = 0.02  # relative step of the differences: wide enough to see over a bank, a bundle of units


def search(oracle: Oracle, settings: ScipySettings, rng: np.random.Generator) -> None:
    """Minimise from one design after the other: those that are known, then each the best of some random ones."""
    from scipy.optimize import Bounds, LinearConstraint, minimize

    space = oracle.problem.space
    bounds = Bounds(space.low[:, 0], space.high[:, 0], keep_feasible=True)
    sums = np.array([_indicator(rows, space.dimensions) for rows in space.groups]).reshape(-1, space.dimensions)
    method = {"slsqp": "SLSQP", "trust-constr": "trust-constr"}[settings.searcher]
    weights = np.ones((1, 1)) if len(oracle.problem.objectives) == 1 else None
    if len(oracle.known):
        oracle(oracle.known)
    ends: list[float] = []
    for number in range(settings.starts):
        share = weights if weights is not None else rng.dirichlet(np.ones(len(oracle.problem.objectives)))[:, None]
        drawn = space.sample(rng, DRAWN)
        start = drawn.continuous[:, oracle.problem.merit(oracle(drawn), share).argmin()]
        start = oracle.known.continuous[:, number] if number < len(oracle.known) else start
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a function that is flat in places, and of steps cut back at bounds
            end = minimize(
                lambda x, share=share: with_gradient(oracle, x, share),
                start,
                jac=True,
                method=method,
                bounds=bounds,
                constraints=[LinearConstraint(sums, -np.inf, [group.total for group in space.shares])] if len(sums) else (),
                options={"maxiter": settings.steps},
            )
        ends = sorted([*ends, float(end.fun)])
        oracle.spread = float(np.expm1(ends[1] - ends[0])) if len(ends) > 1 and len(oracle.problem.objectives) == 1 else None


def with_gradient(oracle: Oracle, x: Array, weights: Array) -> tuple[float, Array]:
    """Merit of a design and its one-sided differences, all from one evaluation; budgets are kept to."""
    space = oracle.problem.space
    x = space.project(np.asarray(x, dtype=float)[:, None])
    width = np.maximum(WIDTH * x, 1e-4)
    # Downwards, so that no budget is overdrawn, except where a coordinate is at its least.
    sign = np.where(x - width < space.low, 1.0, -1.0)
    probes = space.project(np.concatenate([x, x + np.eye(len(x)) * (sign * width)], axis=1))
    merit = oracle.problem.merit(oracle(space.designs(probes)), weights)
    slope = (merit[1:] - merit[0]) / (sign * width)[:, 0]
    return float(merit[0]), np.asarray(np.clip(slope, -1e3, 1e3))


def _indicator(rows: slice, dimensions: int) -> Any:
    found = np.zeros(dimensions)
    found[rows] = 1.0
    return found
