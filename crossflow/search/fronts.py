"""Evolution of one space, its options among the coordinates: of one objective, or of several at once to a front of designs.

A front is found from its ends: first each objective is searched by itself, side by side; then a population that starts from all
that was seen on the way spreads between these ends, by differential evolution with non-dominated sorting and crowding [1]_ [2]_.

References
----------
.. [1] S. Kukkonen, J. Lampinen, "GDE3: the third evolution step of generalized differential evolution", CEC 2005.
.. [2] K. Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE TEVC 6(2), 2002.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.arrays import Array, Index, Mask
from crossflow.search import evolution
from crossflow.search.goals import ENDLESS, PENALTY
from crossflow.search.oracle import Oracle
from crossflow.search.settings import EvolutionSettings
from crossflow.search.space import Space

ENDS_PART = 0.35  # part of the evaluations for the ends of a front
CHANGED, SWAPPED = (0.2, 0.9), 0.3  # least and largest chance of a coordinate to move, and of an option to be another design's
LONGEST, JOGGLED = 0.8, 0.05  # longest multiple of a difference, and a disturbance of every coordinate that moves


def search(oracle: Oracle, settings: EvolutionSettings, rng: np.random.Generator) -> None:
    """Search until the evaluations are spent."""
    space = oracle.problem.space.relaxed()
    known = oracle.problem.space.coordinates(oracle.known) if len(oracle.known) else space.sample(rng, 1).continuous
    allowed, goals = int(min(settings.evaluations, oracle.remaining)), len(oracle.problem.objectives)
    ends = _Ends(oracle=oracle)
    if goals == 1:
        found = evolution.evolve(space, ends.merits, known[:, None], allowed, rng, np.zeros((1, 1), dtype=np.intp))
        oracle.spread = None if found.spread is None else float(np.expm1(found.spread[0]))
        return
    part = int(ENDS_PART * allowed / goals)
    first = evolution.first_designs(space, np.repeat(known[:, None], goals, axis=1), part, rng)
    evolution.evolved(space, ends.merits, first, part, rng, np.empty((goals, 0), dtype=np.intp))
    front = ends.seen.best(settings.population)
    options = slice(len(oracle.problem.space.ranges), len(space.ranges))
    while True:
        oracle.check()
        front = front.joined(ends.judged(_varied(space, front.designs, options, rng))).best(settings.population)


@dataclass(frozen=True, kw_only=True)
class _Front:
    """Designs, shape (dimensions, n), the logarithms of their objectives, shape (objectives, n), and their violation."""

    designs: Array
    losses: Array
    violation: Array

    def joined(self, other: _Front) -> _Front:
        """These designs and others."""
        return _Front(
            designs=np.concatenate([self.designs, other.designs], axis=1),
            losses=np.concatenate([self.losses, other.losses], axis=1),
            violation=np.concatenate([self.violation, other.violation]),
        )

    def take(self, index: Index) -> _Front:
        """Some of the designs."""
        return replace(self, designs=self.designs[:, index], losses=self.losses[:, index], violation=self.violation[index])

    def best(self, size: int) -> _Front:
        """So many designs, front after front; of the last front that has room those in the widest gaps. Feasible ones come first."""
        rest, kept = np.argsort(self.violation, kind="stable"), np.empty(0, dtype=np.intp)
        feasible = int((self.violation == 0).sum())
        if feasible <= size:
            return self.take(rest[:size])
        rest = rest[:feasible]
        while len(kept) < size:
            ahead = undominated(self.losses[:, rest])
            layer, rest = rest[ahead], rest[~ahead]
            kept = np.concatenate([kept, spread_out(self.losses, layer, size - len(kept))])
        return self.take(kept)


def undominated(losses: Array) -> Mask:
    """Which designs no other beats in all objectives."""
    no_worse = (losses[:, :, None] <= losses[:, None, :]).all(axis=0)
    better = (losses[:, :, None] < losses[:, None, :]).any(axis=0)
    return np.asarray(~(no_worse & better).any(axis=0), dtype=bool)


def spread_out(losses: Array, layer: Index, room: int) -> Index:
    """The designs of a layer without those that are nearest to others, one after the other, until there is room."""
    if len(layer) <= room:
        return layer
    scaled = losses[:, layer] - losses[:, layer].min(axis=1, keepdims=True)
    scaled = scaled / np.maximum(scaled.max(axis=1, keepdims=True), 1e-12)
    gaps = np.sqrt(((scaled[:, :, None] - scaled[:, None, :]) ** 2).sum(axis=0))
    np.fill_diagonal(gaps, np.inf)
    gaps[:, scaled.argmin(axis=1)] += 10.0  # ends stay
    gaps[scaled.argmin(axis=1)] += 10.0
    alive = np.ones(len(layer), dtype=bool)
    for _ in range(len(layer) - room):
        lost = int(gaps.min(axis=1).argmin())
        alive[lost] = False
        gaps[lost], gaps[:, lost] = np.inf, np.inf
    return layer[alive]


def _varied(space: Space, designs: Array, options: slice, rng: np.random.Generator) -> Array:
    """A trial for each design: differences of others are added, options are taken from others."""
    d, n = designs.shape
    one, other, third = (rng.integers(0, n, n) for _ in range(3))
    moves = rng.random((d, n)) < rng.uniform(*CHANGED, n)
    step = space.between(designs[:, other], designs[:, one]) * LONGEST * rng.random(n)
    noise = JOGGLED * rng.standard_normal((d, n))
    step = np.where(moves, step + noise, 0.0)
    swapped = rng.random((options.stop - options.start, n)) < SWAPPED
    step[options] = np.where(swapped, designs[options][:, third] - designs[options], 0.0)
    return space.moved(designs, step)


@dataclass(kw_only=True)
class _Ends:
    """Every objective by itself, as problems side by side; `seen` holds all that was evaluated."""

    oracle: Oracle
    _seen: list[_Front] = field(default_factory=list)

    @property
    def seen(self) -> _Front:
        """All designs evaluated."""
        fronts = self._seen
        joined = (np.concatenate([getattr(front, name) for front in fronts], axis=-1) for name in ("designs", "losses", "violation"))
        designs, losses, violation = joined
        return _Front(designs=designs, losses=losses, violation=violation)

    def judged(self, designs: Array) -> _Front:
        """Evaluated designs, shape (dimensions, n)."""
        problem = self.oracle.problem
        outcome = self.oracle(problem.space.unrelaxed(designs))
        return _Front(designs=designs, losses=problem.logarithms(outcome), violation=outcome.violation)

    def merits(self, designs: Array) -> Array:
        """Merits of designs, each by the objective of its own population, shape (objectives, designs)."""
        found = self.judged(designs.reshape(len(designs), -1))
        self._seen.append(found)
        goals, size = designs.shape[1:]
        own = found.losses.reshape(-1, goals, size)[np.arange(goals), np.arange(goals)]
        return np.asarray(np.minimum(own + PENALTY * found.violation.reshape(goals, size), ENDLESS))
