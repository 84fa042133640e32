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
* Starts are in two halves that do not see each other until the last restart; by how much their ends differ then is the spread
  that tells how far the search has converged.
* Where whole numbers of things leave no slope, differences between the starts' best designs still point somewhere: after
  the first third of the steps, designs recombined from them are probed too (differential evolution [2]_).

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 7.
.. [2] R. Storn, K. Price, "Differential evolution", Journal of Global Optimization 11, 1997.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.arrays import Array, Index
from crossflow.search.oracle import Oracle
from crossflow.search.settings import GradientSettings
from crossflow.search.space import Space

WIDTHS, RATES = (0.405, 0.02), (3.0, 0.1)  # first and last: width of the differences (as a logarithm), rate eta
PULL = 0.5  # weight of a start's best design in the average at the end
RESTARTS = (0.4, 0.6, 0.75, 0.85, 0.92)  # parts of the run after which the worse half starts anew
SPREAD = 0.1  # of designs that start anew, around the best ones, as a logarithm
FURTHEST = 2.0  # largest step of a coordinate, as a logarithm
PER_RANGE = 0.25  # step of a range's coordinate for one of a share's logarithm
RECOMBINED_FROM, RECOMBINED = 0.3, 2.0  # part of the run from which designs are recombined, and how many for each dimension
CROSSED, SWAPPED, JOGGLED = 0.9, 0.15, 0.4  # chance of a coordinate to move by a difference, to be another's, to be disturbed
APART = 4  # least starts of a half
LONGEST = 1.2  # longest multiple of a difference


@dataclass(frozen=True, kw_only=True)
class Descent:
    """All starts at one step: position, average, and the best that each has probed, shapes (dimensions, starts)."""

    position: Array
    average: Array
    best: Array
    merit: Array


def search(oracle: Oracle, settings: GradientSettings, rng: np.random.Generator) -> None:
    """Descend from the designs that are known and random ones until the steps or the budget are used up."""
    space = oracle.problem.space
    position = space.sample(rng, settings.starts).continuous
    if len(oracle.known) > settings.starts:
        oracle(oracle.known)
    if len(oracle.known):
        known = oracle.known.continuous[:, : settings.starts]
        position[:, : known.shape[1]] = known
    state = Descent(position=position, average=position, best=position, merit=np.full(settings.starts, np.inf))
    weights = _weights(len(oracle.problem.objectives), settings.starts, rng)
    anew = {round(part * settings.steps) for part in RESTARTS}
    halves = _halves(settings.starts)
    for step in range(settings.steps):
        part = step / max(settings.steps - 1, 1)
        if len(halves) > 1 and step == max(anew):
            oracle.spread = _spread(state, halves) if len(oracle.problem.objectives) == 1 else None
            halves = [np.arange(settings.starts)]
        if step in anew and settings.starts > 1 and len(oracle.problem.objectives) == 1:
            for half in halves:
                state = _restarted(state, half, space, rng)
        width, rate = (first * (last / first) ** part for first, last in (WIDTHS, RATES))
        slopes = probed(space, state.position, width, rng)
        mixed = recombined(space, state, halves, width, rng) if part >= RECOMBINED_FROM and settings.starts > 2 else slopes[:, :0]
        probes = np.concatenate([slopes, mixed], axis=1)
        outcome = oracle(space.designs(probes.reshape(len(position), -1)))
        merit = oracle.problem.merit(outcome, np.tile(weights, probes.shape[1])).reshape(probes.shape[1:])
        slope = gradient(space, slopes, merit[: slopes.shape[1]])
        state = _stepped(_noted(state, probes, merit), space, slope, rate, settings.averaging, part)


def planned(space: Space, settings: GradientSettings) -> int:
    """Designs that a search evaluates when no budget ends it."""
    mixed = 0 if settings.starts <= 2 else round(RECOMBINED * space.dimensions)
    late = sum(step / max(settings.steps - 1, 1) >= RECOMBINED_FROM for step in range(settings.steps))
    return settings.starts * (settings.steps * (1 + space.dimensions) + late * mixed)


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


def recombined(space: Space, state: Descent, halves: Sequence[Index], width: float, rng: np.random.Generator) -> Array:
    """Designs between and beyond the best of the starts of one half, shape (dimensions, RECOMBINED dimensions, starts)."""
    d, starts = state.best.shape
    shape = (round(RECOMBINED * d), starts)
    leads = np.empty(starts, dtype=np.intp)
    drawn = np.empty((3, *shape), dtype=np.intp)
    for half in halves:
        leads[half] = half[state.merit[half].argmin()]
        drawn[:, :, half] = rng.choice(half, (3, shape[0], len(half)))
    base = np.where(rng.random(shape) < 0.5, np.arange(starts), leads)
    one, other, third = drawn
    best, everywhere = state.best, (d, *shape)
    step = space.between(best[:, other], best[:, one]) * LONGEST * rng.random(shape) * (rng.random(everywhere) < CROSSED)
    step = np.where(rng.random(everywhere) < SWAPPED, space.between(best[:, base], best[:, third]), step)
    noise = width * rng.standard_normal(everywhere) * (rng.random(everywhere) < JOGGLED)
    noise[: len(space.ranges)] *= PER_RANGE
    return space.moved(best[:, base].reshape(d, -1), (step + noise).reshape(d, -1)).reshape(everywhere)


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


def _spread(state: Descent, halves: Sequence[Index]) -> float:
    """By how much the ends of the halves differ. [1]"""
    ends = [float(state.merit[half].min()) for half in halves]
    return float(np.expm1(max(ends) - min(ends)))


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
