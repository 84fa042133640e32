"""Evolution of one space, its options among the coordinates: of one objective, or of several at once to a front of designs.

A front is found from its ends: first each objective is searched by itself, side by side (L-SHADE, `crossflow.answers.search.evolution`). A
little of the others is added to it, by which designs differ that are alike on a stair of their own objective.
Then all designs that no other beats are kept, and the front spreads and moves on from some of them: one for each box of a grid over
the logarithms of the objectives (epsilon dominance [1]_), so that every part of the front has its chances however crowded it is. The
grid is coarse at first, for few parents improve faster, and becomes finer (`Front.parents`). The more the front gained by a parent when
it was found, the better are the parent's chances: that part of the front still moves. Some batches leave one objective out, and move a
face of the front on. A trial is made of a parent and of others near it on the front, by differences, along the front, by crossing, and
by moves of a few coordinates, as in [2]_ [3]_.

References
----------
.. [1] M. Laumanns et al., "Combining convergence and diversity in evolutionary multiobjective optimization", Evol. Comput. 10(3), 2002.
.. [2] D. Hadka, P. Reed, "Borg: an auto-adaptive many-objective evolutionary computing framework", Evol. Comput. 21(2), 2013.
.. [3] H. Li, Q. Zhang, "Multiobjective optimization problems with complicated Pareto sets, MOEA/D and NSGA-II", IEEE TEVC 13(2), 2009.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from crossflow.answers.search import evolution
from crossflow.answers.search.goals import ENDLESS, PENALTY
from crossflow.answers.search.oracle import Oracle
from crossflow.answers.search.pareto import ahead, beaten, non_dominated
from crossflow.answers.search.settings import EvolutionSettings
from crossflow.answers.search.space import Space
from crossflow.base.arrays import Array, Index

ENDS_PART = 0.3  # part of the evaluations for the ends of a front
OTHERS = 0.02  # weight of all objectives in the merit of an end, so that flat stretches of its own are no end
BATCH, FACES = 100, 0.2  # trials at once, and the part of these batches that leaves one objective out
FIRST_PARENTS, FIRST_DIVISIONS, LEAST_DIVISIONS = 20, 8, 4  # parents that are wanted at first; divisions of the grid
INFEASIBLE = 50  # designs that are kept while none keeps the constraints
LARGEST_GAIN = 0.1  # what a design can count for that the front gained by, as a logarithm
NEAR, NEAREST = 0.85, 20  # part of the mates that are near on the front, and among how many
UNLIKE = 0.01  # added to the square of a distance on the front, whose extent is 1, for each option that differs
FACTOR, CROSSED, ALONG = (0.05, 0.6), (0.1, 1.0), (-0.4, 0.9)  # multiples of differences, chances of a coordinate, steps along the front
SMALLEST, WIDEST, FEW = 0.05, 0.5, 6.0  # moves of a few coordinates: least and largest spread as a logarithm, and how many
PER_RANGE, JOGGLED = 0.25, 0.1  # move of a range's coordinate for one of a share's logarithm; noise beside differences
SWAPPED, REDRAWN = 0.15, 0.15  # chance of an option to be a mate's, and of a design to have one of its options drawn
ALIKE = np.ones((1, 1))  # weights of a single objective, or of several alike
COLUMNS = ("designs", "losses", "violation", "gain")  # of a front


def search(oracle: Oracle, settings: EvolutionSettings, rng: np.random.Generator) -> None:
    """Search until the evaluations are spent."""
    space = oracle.problem.space.relaxed()
    known = oracle.problem.space.coordinates(oracle.known) if len(oracle.known) else space.sample(rng, 1).continuous
    allowed, goals = int(oracle.remaining), len(oracle.problem.objectives)
    judge = Judge(oracle=oracle)
    if goals == 1:
        found = evolution.evolve(space, judge.merits, known[:, None], allowed, rng, np.zeros((1, 1), dtype=np.intp))
        oracle.spread = None if found.spread is None else float(np.expm1(found.spread[0]))
        return
    part = int(ENDS_PART * allowed / goals)
    first = evolution.first_designs(space, np.repeat(known[:, None], goals, axis=1), part, rng)
    others = (np.arange(goals)[:, None] + np.arange(1, goals)) % goals
    weights = (1 - OTHERS) * np.eye(goals) + OTHERS / goals
    evolution.evolved(space, functools.partial(judge.merits, weights=weights), first, part, rng, others)
    spread(judge, int(oracle.remaining), settings.population, rng)


def spread(judge: Judge, evaluations: int, population: int, rng: np.random.Generator) -> None:
    """Spread the front of what was judged by so many evaluations, at their end from about `population` parents."""
    goals, spent = len(judge.front.losses), 0
    divisions = [FIRST_DIVISIONS] * (goals + 1)  # of the face without each objective, and of the whole front
    while spent < evaluations:
        face = int(rng.integers(goals)) if goals > 2 and rng.random() < FACES else goals
        front = judge.front if face == goals else judge.front.without(face)
        wanted = FIRST_PARENTS * (population / FIRST_PARENTS) ** (spent / evaluations)
        parents = front.parents(divisions[face])
        finer = len(parents) < min(wanted, len(front))
        divisions[face] = divisions[face] + 1 if finer else max(divisions[face] - 1, LEAST_DIVISIONS)
        trials = _varied(judge.oracle.problem.space, parents, min(BATCH, evaluations - spent), rng)
        judge.judged(trials)
        spent += trials.shape[1]


@dataclass(frozen=True, kw_only=True)
class Front:
    """Designs, shape (dimensions, n), with the logarithms of their objectives, shape (objectives, n), and others of shape (n,)."""

    designs: Array
    losses: Array
    violation: Array
    gain: Array  # by how much each was ahead of the front when it was found, as a logarithm

    def __len__(self) -> int:
        return int(self.violation.size)

    def merit(self, weights: Array) -> Array:
        """Merits by weighted logarithms of the objectives, smaller is better, shape (n,); `weights` has shape (objectives, n)."""
        return np.asarray(np.minimum((weights * self.losses).sum(axis=0) + PENALTY * self.violation, ENDLESS))

    def take(self, index: Index) -> Front:
        """Some of the designs."""
        return replace(self, **{name: getattr(self, name)[..., index] for name in COLUMNS})

    def joined(self, other: Front) -> Front:
        """These designs and others."""
        return Front(**{name: np.concatenate([getattr(self, name), getattr(other, name)], axis=-1) for name in COLUMNS})

    def without(self, objective: int) -> Front:
        """A face: those that no other beats in the other objectives; all while none is feasible."""
        if self.violation.any():
            return self
        losses = np.delete(self.losses, objective, axis=0)
        return replace(self, losses=losses).take(np.flatnonzero(non_dominated(losses)))

    def best(self) -> Front:
        """Those that no other beats, once for each loss; while none is feasible those that miss least."""
        feasible = np.flatnonzero(self.violation == 0)
        if not len(feasible):
            return self.take(np.argsort(self.violation, kind="stable")[:INFEASIBLE])
        return self.take(feasible[non_dominated(self.losses[:, feasible])])

    def extended(self, others: Front) -> Front:
        """The best of these, which no other of them beats, and of others."""
        fresh = others.best()
        if len(fresh) and len(self) and self.violation[0] == fresh.violation[0] == 0:
            fresh = replace(fresh, gain=np.minimum(ahead(fresh.losses, self.losses), LARGEST_GAIN))
            fresh = fresh.take(np.flatnonzero(fresh.gain > 0))
            return self.take(np.flatnonzero(~beaten(self.losses, fresh.losses))).joined(fresh)
        return self.joined(fresh).best()

    def parents(self, divisions: int) -> Front:
        """The ends, and the design nearest to the ideal in each box of a grid over the losses that no other box dominates."""
        if len(self) < 2 or self.violation.any():
            return self
        least, extent = self.losses.min(axis=1, keepdims=True), np.ptp(self.losses, axis=1, keepdims=True)
        place = divisions * (self.losses - least) / np.maximum(extent, 1e-9)
        box = np.floor(place)
        order = np.lexsort((((place - box) ** 2).sum(axis=0), *box))
        leads = order[np.append(True, (np.diff(box[:, order]) != 0).any(axis=0))]
        leads = leads[non_dominated(box[:, leads])]
        return self.take(np.union1d(self.losses.argmin(axis=1), leads))


def _varied(space: Space, parents: Front, count: int, rng: np.random.Generator) -> Array:
    """Trials of parents, coordinates of the relaxed space, shape (dimensions, count)."""
    near, designs = space.relaxed(), parents.designs
    chances = parents.gain + parents.gain.mean()
    chosen = rng.choice(len(parents), count, p=chances / chances.sum())
    base, (one, other, third) = designs[:, chosen], (designs[:, mate] for mate in _mates(space, parents, chosen, rng))
    step = _steps(near, base, (one, other, third), rng)
    options = slice(len(space.ranges), len(near.ranges))
    swapped = rng.random(base[options].shape) < SWAPPED
    step[options] = np.where(swapped, third[options] - base[options], 0.0)
    if space.options:
        redrawn = np.flatnonzero(rng.random(count) < REDRAWN)
        which = rng.integers(0, len(space.options), len(redrawn))
        sizes = np.array([len(option.values) for option in space.options])[which]
        rows = options.start + which
        step[rows, redrawn] = (rng.integers(0, sizes) + 0.5) / sizes - base[rows, redrawn]
    return near.moved(base, step)


def _mates(space: Space, parents: Front, chosen: Index, rng: np.random.Generator) -> list[Index]:
    """Three mates of each chosen design, most of them near it on the front, rather with its options."""
    scaled = parents.losses / np.maximum(np.ptp(parents.losses, axis=1, keepdims=True), 1e-9)
    options = space.unrelaxed(parents.designs).discrete
    nearest = min(NEAREST, len(parents))
    gaps = ((scaled[:, chosen, None] - scaled[:, None, :]) ** 2).sum(axis=0)
    gaps += UNLIKE * (options[:, chosen, None] != options[:, None, :]).sum(axis=0)
    beside = gaps.argsort(axis=1, kind="stable")[:, :nearest]
    every, n = np.arange(len(chosen)), len(chosen)
    drawn = ((beside[every, rng.integers(0, nearest, n)], rng.integers(0, len(parents), n)) for _ in range(3))
    return [np.where(rng.random(n) < NEAR, by, any_) for by, any_ in drawn]


def _steps(space: Space, base: Array, mates: tuple[Array, Array, Array], rng: np.random.Generator) -> Array:
    """A step for each design, of one of five kinds: a difference, the same with noise, along the front, crossed, a few coordinates."""
    (d, n), (one, other, third) = base.shape, mates
    mask = rng.random((d, n)) < rng.uniform(*CROSSED, n)
    noise = rng.standard_normal((d, n)) * np.exp(rng.uniform(np.log(SMALLEST), np.log(WIDEST), n))
    noise[: len(space.ranges)] *= PER_RANGE
    few = rng.random((d, n)) < rng.uniform(1.0, FEW, n) / d
    few |= np.arange(d)[:, None] == rng.integers(0, d, n)
    difference = rng.uniform(*FACTOR, n) * space.between(one, other) * mask
    joggled = difference + JOGGLED * noise * few
    along = rng.uniform(*ALONG, n) * space.between(base, one) * mask
    crossed = space.between(base, third) * mask
    kind = rng.integers(0, 5, n)
    return np.asarray(np.select([kind == number for number in range(5)], [difference, joggled, along, crossed, noise * few]))


@dataclass(kw_only=True)
class Judge:
    """Judges designs, and keeps the front of all of them."""

    oracle: Oracle
    _front: Front | None = None

    @property
    def front(self) -> Front:
        """Designs that no other beats."""
        assert self._front is not None
        return self._front

    def judged(self, designs: Array) -> Front:
        """Evaluated designs, shape (dimensions, n)."""
        problem = self.oracle.problem
        outcome = self.oracle(problem.space.unrelaxed(designs))
        gain = np.full(len(outcome.violation), LARGEST_GAIN)
        found = Front(designs=designs, losses=problem.logarithms(outcome), violation=outcome.violation, gain=gain)
        if len(problem.objectives) > 1:
            self._front = found.best() if self._front is None else self._front.extended(found)
        return found

    def merits(self, designs: Array, weights: Array = ALIKE) -> Array:
        """Merits of populations of designs, shape (populations, designs).

        designs : shape (dimensions, populations, designs).
        weights : of the objectives in each population, shape (objectives, populations).
        """
        found, (populations, size) = self.judged(designs.reshape(len(designs), -1)), designs.shape[1:]
        of_each = np.broadcast_to(weights, (len(found.losses), populations))
        return found.merit(np.repeat(of_each, size, axis=1)).reshape(populations, size)
