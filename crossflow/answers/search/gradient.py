"""Projected gradient descent with exponential averaging in the parameter space: the paper's search engine [1]_.

    W_t = W_(t-1) - eta g_t / |g_t|,   M_t = beta M_(t-1) + (1 - beta) W_t,   W_t = Project(M_t)            (Eq. 6)

from S starts for T steps; the gradients of all starts come from one batched evaluation a step. Departures from the paper:

* A step multiplies shares (an exponentiated gradient) and adds to ranges; gradients are normalised for each budget, as in
  the paper's code, not the parameters, and are those of the logarithm of the objective.
* Differences are taken inside the budgets: a share that grows takes from the others, so that every design that is probed
  could be built. Their width and the rate fall over the steps, geometrically: wide differences see over the steps that
  whole banks, bundles and stacks make, narrow ones tell the end from its neighbourhood.
* Each start is drawn to the best design that it has probed, ever more over the steps, and the worse half of the starts is
  sent near the better half's best designs a few times.
* Starts are in two halves that do not see each other until the last part of the polishing; by how much their ends differ then is
  the spread that tells how far the search has converged.
* Where whole numbers of things leave no slope, differences between the starts' best designs still point somewhere: after the
  descent, populations of these are polished by differential evolution (`crossflow.answers.search.evolution`); of several objectives, for
  which every start has weights of its own, the front of all that was probed spreads (`crossflow.answers.search.fronts`).
* Starts and steps are fewer where the budget of evaluations is too small for them, so that every search is carried to its end.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.answers.search import evolution, fronts
from crossflow.answers.search.oracle import Oracle
from crossflow.answers.search.settings import GradientSettings
from crossflow.answers.search.space import Space
from crossflow.base.arrays import Array, Index

WIDTHS, RATES = (0.405, 0.02), (3.0, 0.1)  # first and last: width of the differences (as a logarithm), rate eta
PULL = 0.5  # weight of a start's best design in the average at the end
RESTARTS = (0.4, 0.6, 0.75, 0.85, 0.92)  # parts of the run after which the worse half starts anew
SPREAD = 0.1  # of designs that start anew, around the best ones, as a logarithm
FURTHEST = 2.0  # largest step of a coordinate, as a logarithm
PER_RANGE = 0.25  # step of a range's coordinate for one of a share's logarithm
POLISHED = 1.5  # evaluations for polishing, for one of the descent
DRAWN = 8  # random designs of which each start is the best
LEAST_STEPS = 8  # steps below which there are fewer starts instead
POPULATION = 100  # parents of a front of several objectives at its end
APART = 4  # least starts of a half


@dataclass(frozen=True, kw_only=True)
class Descent:
    """All starts at one step: position, average, and the best that each has probed, shapes (dimensions, starts)."""

    position: Array
    average: Array
    best: Array
    merit: Array


def search(oracle: Oracle, settings: GradientSettings, rng: np.random.Generator) -> None:
    """Descend from the designs that are known and random ones, and polish the ends, until the steps or the budget are used up."""
    space, objectives, allowed = oracle.problem.space, len(oracle.problem.objectives), oracle.remaining
    starts, steps = fitted(space, settings, allowed)
    judge = fronts.Judge(oracle=oracle)
    if len(oracle.known) > starts:
        judge.judged(space.coordinates(oracle.known))
    weights = _weights(objectives, starts, rng)
    state = _first(judge, weights, rng)
    anew = {round(part * steps) for part in RESTARTS} if starts > 1 and objectives == 1 else set()
    halves = _halves(starts)
    for step in range(steps):
        part = step / max(steps - 1, 1)
        for half in halves if step in anew else ():
            state = _restarted(state, half, space, rng)
        width, rate = (first * (last / first) ** part for first, last in (WIDTHS, RATES))
        probes = probed(space, state.position, width, rng)
        merit = judge.judged(_relaxed(space, probes)).merit(np.tile(weights, probes.shape[1])).reshape(probes.shape[1:])
        slope = gradient(space, probes, merit)
        state = _stepped(_noted(state, probes, merit), space, slope, rate, settings.averaging, part)
    _polish(judge, state, halves, int(min(_polished(space, starts, steps), oracle.remaining)), rng)


def _first(judge: fronts.Judge, weights: Array, rng: np.random.Generator) -> Descent:
    """The state where each start is the best of some random designs and of a known one; most of a space cannot be built."""
    space, known, starts = judge.oracle.problem.space, judge.oracle.known.continuous, weights.shape[1]
    drawn = space.sample(rng, DRAWN * starts).continuous.reshape(space.dimensions, DRAWN, starts)
    if known.size:
        drawn[:, 0, : known.shape[1]] = known[:, :starts]
    merit = judge.judged(_relaxed(space, drawn)).merit(np.tile(weights, DRAWN)).reshape(DRAWN, starts)
    best = merit.argmin(axis=0), np.arange(starts)
    position = drawn[:, best[0], best[1]]
    return Descent(position=position, average=position, best=position, merit=merit[best])


def _polish(judge: fronts.Judge, state: Descent, halves: Sequence[Index], evaluations: int, rng: np.random.Generator) -> None:
    """Go on from the best designs of the starts."""
    space, oracle = judge.oracle.problem.space, judge.oracle

    def merits(designs: Array) -> Array:
        return judge.merits(_relaxed(space, designs).reshape(-1, *designs.shape[1:]))

    if len(oracle.problem.objectives) > 1:
        fronts.spread(judge, evaluations, POPULATION, rng)
    elif len(halves) == evolution.ISLANDS:
        size = min(map(len, halves))
        known = np.stack([state.best[:, half[:size]] for half in halves], axis=1)
        found = evolution.polish(space, merits, known, evaluations, rng)
        oracle.spread = None if found.spread is None else float(np.expm1(found.spread[0]))
    else:
        evolution.refine(space, merits, state.best[:, None], evaluations, rng, np.zeros((1, 1), dtype=np.intp))


def _relaxed(space: Space, coordinates: Array) -> Array:
    """Coordinates, shape (dimensions, ...), as those of the relaxed space, shape (dimensions and options, n)."""
    return space.coordinates(space.designs(coordinates.reshape(len(coordinates), -1)))


def fitted(space: Space, settings: GradientSettings, allowed: float) -> tuple[int, int]:
    """Starts and steps that so many evaluations allow; of starts at least one, of steps too."""
    each = (1.0 + POLISHED) * (1 + space.dimensions)
    starts = int(min(settings.starts, max(allowed // (DRAWN + min(LEAST_STEPS, settings.steps) * each), 1)))
    return starts, int(min(settings.steps, max((allowed / starts - DRAWN) // each, 1)))


def _polished(space: Space, starts: int, steps: int) -> int:
    """Evaluations for polishing."""
    return max(int(POLISHED * starts * steps * (1 + space.dimensions)), 2 * evolution.SMALLEST)


def planned(space: Space, settings: GradientSettings) -> int:
    """Designs that a search evaluates at most when no more than its own budget ends it."""
    starts, steps = fitted(space, settings, np.inf if settings.evaluations is None else settings.evaluations)
    return starts * (DRAWN + steps * (1 + space.dimensions)) + _polished(space, starts, steps)


def probed(space: Space, position: Array, width: float, rng: np.random.Generator) -> Array:
    """The designs and, for each coordinate, one above or below, shape (dimensions, 1 + dimensions, starts)."""
    d, starts = position.shape
    signs = rng.choice((-1.0, 1.0), (d, starts))
    steps = np.zeros((d, 1 + d, starts))
    steps[np.arange(d), 1 + np.arange(d)] = width * signs
    steps[: len(space.ranges)] *= PER_RANGE
    whole = np.repeat(position[:, None], 1 + d, axis=1)
    return space.moved(whole.reshape(d, -1), steps.reshape(d, -1)).reshape(steps.shape)


def gradient(space: Space, probes: Array, merit: Array) -> Array:
    """Differences of the merits of `probed` designs over the steps that were made, shape (dimensions, starts)."""
    d = len(probes)
    near = np.minimum(merit, merit[:1] + 5.0)  # a wall is as steep as it need be
    steps = space.between(np.repeat(probes[:, :1], d, axis=1), probes[:, 1:])
    made = steps[np.arange(d), np.arange(d)]
    made[: len(space.ranges)] /= PER_RANGE
    return np.asarray(np.where(np.abs(made) > 1e-9, (near[1:] - near[0]) / np.where(np.abs(made) > 1e-9, made, 1.0), 0.0))


def _noted(state: Descent, probes: Array, merit: Array) -> Descent:
    """The state with the best of what was probed."""
    starts = np.arange(merit.shape[1])
    first = merit.argmin(axis=0)
    better = merit[first, starts] < state.merit
    best, least = np.where(better, probes[:, first, starts], state.best), np.where(better, merit[first, starts], state.merit)
    return replace(state, best=best, merit=least)


def _stepped(state: Descent, space: Space, slope: Array, rate: float, averaging: float, part: float) -> Descent:
    """One step of Eq. 6."""
    direction = np.zeros_like(slope)
    for rows in (slice(0, len(space.ranges)), *space.groups):
        length = np.linalg.norm(slope[rows], axis=0)
        direction[rows] = np.where(length > 1e-9, slope[rows] / np.maximum(length, 1e-300), 0.0)
    step = np.clip(-rate * direction, -FURTHEST, FURTHEST)
    step[: len(space.ranges)] *= PER_RANGE
    average = averaging * state.average + (1.0 - averaging) * space.moved(state.position, step)
    average = (1.0 - PULL * part) * average + PULL * part * state.best
    return replace(state, position=space.project(average), average=average)


def _halves(starts: int) -> list[Index]:
    """Starts that see one another: two halves, one whole where there are too few."""
    return [np.arange(first, starts, 2) for first in (0, 1)] if starts >= 2 * APART else [np.arange(starts)]


def _restarted(state: Descent, starts: Index, space: Space, rng: np.random.Generator) -> Descent:
    """The state with the worse half of some starts near the best designs of their better half."""
    order = starts[state.merit[starts].argsort()]
    half = len(order) // 2
    worse, better = order[len(order) - half :], order[:half]
    noise = SPREAD * rng.standard_normal((len(state.position), half))
    noise[: len(space.ranges)] *= PER_RANGE
    position, average, merit = state.position.copy(), state.average.copy(), state.merit.copy()
    position[:, worse] = average[:, worse] = space.moved(state.best[:, better], noise)
    merit[worse] = np.inf
    return replace(state, position=position, average=average, merit=merit)


def _weights(objectives: int, starts: int, rng: np.random.Generator) -> Array:
    """Weights of the objectives, a direction of its own for each start, so that together they trace the front."""
    if objectives == 1:
        return np.ones((1, starts))
    return np.asarray(rng.dirichlet(np.ones(objectives), starts).T)
