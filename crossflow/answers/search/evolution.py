"""Differential evolution of many problems at once: success-history adaptation with a shrinking population (L-SHADE) [1]_ [2]_.

Every problem (a point of a sweep, a draw of uncertain numbers) has a population of designs of one space; all populations advance
together, so that a generation is one batch of designs however many problems there are. A trial moves a design towards one of the
best of its population and along the difference of two others,

    v = x + F (x_best - x) + F (x_a - x_b),

coordinate by coordinate with probability CR; it takes the design's place where it is better. F and CR are drawn about values that
succeeded before, those with larger gains counting more. Departures from the paper: steps multiply shares and add to ranges
(`Space.moved`), so that every design keeps to its budgets; there is no archive; a population also tries the best designs of its
neighbours, so that a division that is good at one point of a sweep is tried beside it too, and the differences that it steps along
are those of its own designs or of a neighbour's, which is searched for much the same.

References
----------
.. [1] R. Tanabe, A. Fukunaga, "Improving the search performance of SHADE using linear population size reduction", CEC 2014.
.. [2] R. Storn, K. Price, "Differential evolution", Journal of Global Optimization 11, 1997.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from crossflow.answers.search.space import Space
from crossflow.base.arrays import Array, Index, Mask

# Merits of designs, smaller is better: shape (dimensions, problems, designs) in, (problems, designs) out.
Merits = Callable[[Array], Array]
LEADING = 0.1  # part of a population that trials move towards
SMALLEST, LARGEST = 4, 18  # designs of a population: at least, and for each dimension at most
FIRST, LAST = 0.7, 20  # designs of a population at the beginning, over the root of its evaluations; and at the end, if these are fewer
HISTORY, FIRST_F, FIRST_CR, SCATTER = 6, 0.5, 0.8, 0.1  # successes remembered, first values of F and CR, and how widely they are drawn
EXCHANGE = 8  # generations between two looks at the neighbours
NEAR, NEAR_RANGE = 0.5, 0.125  # spread of the designs about those that are known, of shares as a logarithm, and of ranges
WARM = 0.3  # that spread, as a part of it, where what is known is near the best
CONVERGED = 1e-4  # difference in merit between the designs of a population that have nothing left to find; of losses, a part of them
ISLANDS, ISLAND_PART = 2, 0.4  # populations of a problem that do not see each other, and the part of the budget for each


@dataclass(frozen=True, kw_only=True)
class Evolved:
    """What became of some problems."""

    designs: Array  # the best design of each, shape (dimensions, problems)
    merit: Array  # its merit, shape (problems,)
    # by how much the ends of populations that did not see each other differ in merit, shape (problems,); None where there was one each
    spread: Array | None
    # whether these populations ended at one design, which only one that both began with can be, shape (problems,); None likewise
    still: Mask | None = None


@dataclass(frozen=True, kw_only=True)
class Populations:
    """Designs of every problem, shape (dimensions, problems, designs), with their merits, the best first."""

    designs: Array
    merit: Array

    def sorted(self, size: int) -> Populations:
        """The best `size` of each, in order."""
        order = self.merit.argsort(axis=1, kind="stable")[:, :size]
        return Populations(designs=np.take_along_axis(self.designs, order[None], 2), merit=np.take_along_axis(self.merit, order, 1))


def evolve(space: Space, merits: Merits, known: Array, evaluations: int, rng: np.random.Generator, neighbours: Index) -> Evolved:
    """Search every problem from scratch: populations that do not see each other first, then both together, with their neighbours'.

    Parameters
    ----------
    space : of designs; it has no options.
    merits : of designs.
    known : designs of each problem to start from, shape (dimensions, problems, designs); no end is worse.
    evaluations : designs of each problem.
    rng : of everything that is drawn.
    neighbours : problems whose best designs are tried too, shape (problems, neighbours).
    """
    first = first_designs(space, np.tile(known, (1, ISLANDS, 1)), _part(evaluations), rng)
    return _joined(space, merits, first, evaluations, rng, neighbours)


def polish(space: Space, merits: Merits, known: Array, evaluations: int, rng: np.random.Generator) -> Evolved:
    """Search one problem from the designs of populations that did not see each other, shape (dimensions, ISLANDS, designs)."""
    first = _about(space, known, max(size_of(space, _part(evaluations)), known.shape[2]), rng, WARM)
    return _joined(space, merits, first, evaluations, rng, np.zeros((1, 1), dtype=np.intp))


def _part(evaluations: int) -> int:
    """Evaluations of a population that sees no other."""
    return max(int(ISLAND_PART * evaluations), 2 * SMALLEST)


def _joined(space: Space, merits: Merits, first: Array, evaluations: int, rng: np.random.Generator, neighbours: Index) -> Evolved:
    """What becomes of ISLANDS populations of each problem, shape (dimensions, ISLANDS problems, designs), apart and then together."""
    d, problems, part = len(first), first.shape[1] // ISLANDS, _part(evaluations)
    apart = np.concatenate([neighbours + problems * island for island in range(ISLANDS)])
    ends = evolved(space, _side_by_side(merits, ISLANDS), first, part, rng, apart)
    best = ends.merit[:, 0].reshape(ISLANDS, problems)
    together = ends.designs.reshape(d, ISLANDS, problems, -1).transpose(0, 2, 1, 3).reshape(d, problems, -1)
    rest = max(evaluations - ISLANDS * part, 2 * SMALLEST)
    start = _about(space, together, max(size_of(space, rest), together.shape[2]), rng, WARM)
    end = evolved(space, merits, start, rest, rng, neighbours)
    each = ends.designs[:, :, 0].reshape(d, ISLANDS, problems)
    still = (each == each[:, :1]).all(axis=(0, 1))
    return Evolved(designs=end.designs[:, :, 0], merit=end.merit[:, 0], spread=best.max(axis=0) - best.min(axis=0), still=still)


def refine(space: Space, merits: Merits, known: Array, evaluations: int, rng: np.random.Generator, neighbours: Index) -> Evolved:
    """Search every problem about a design that is good for one like it; parameters as of `evolve`."""
    first = _about(space, known, size_of(space, evaluations), rng, WARM)
    end = evolved(space, merits, first, evaluations, rng, neighbours)
    return Evolved(designs=end.designs[:, :, 0], merit=end.merit[:, 0], spread=None)


def first_designs(space: Space, known: Array, evaluations: int, rng: np.random.Generator) -> Array:
    """Designs to start from: half of them about known ones, half at random."""
    d, problems, count = known.shape
    size = max(size_of(space, evaluations), 2 * count)
    first, half = _about(space, known, size, rng, 1.0), size // 2
    first[:, :, half:] = space.sample(rng, problems * (size - half)).continuous.reshape(d, problems, -1)
    return first


def size_of(space: Space, evaluations: int) -> int:
    """Designs of a population that may evaluate so many."""
    return int(np.clip(round(FIRST * np.sqrt(evaluations)), 2 * SMALLEST, LARGEST * space.dimensions))


def _about(space: Space, known: Array, size: int, rng: np.random.Generator, wide: float) -> Array:
    """Designs about known ones, the first those themselves, shape (dimensions, problems, size)."""
    d, problems, count = known.shape
    steps = wide * NEAR * rng.standard_normal((d, problems, size))
    steps[: len(space.ranges)] *= NEAR_RANGE / NEAR
    steps[:, :, :count] = 0.0
    return _moved(space, known[:, :, np.arange(size) % count], steps)


def _moved(space: Space, designs: Array, steps: Array) -> Array:
    return space.moved(designs.reshape(len(designs), -1), steps.reshape(len(designs), -1)).reshape(designs.shape)


def _side_by_side(merits: Merits, islands: int) -> Merits:
    """Merits of problems that stand several times, one population after the other."""

    def found(designs: Array) -> Array:
        d, all_, size = designs.shape
        together = designs.reshape(d, islands, all_ // islands, size).transpose(0, 2, 1, 3).reshape(d, all_ // islands, -1)
        return merits(together).reshape(all_ // islands, islands, size).transpose(1, 0, 2).reshape(all_, size)

    return found


def evolved(
    space: Space,
    merits: Merits,
    first: Array,
    evaluations: int,
    rng: np.random.Generator,
    neighbours: Index,
) -> Populations:
    """Populations after so many evaluations of each, from the given ones on, or when no problem has anything left to find."""
    here = Populations(designs=first, merit=merits(first))
    start = spent = first.shape[2]
    last = min(start, LAST)
    memory = _Memory.fresh(first.shape[1])
    among = np.concatenate([np.arange(first.shape[1])[:, None], neighbours], axis=1)
    generation = 0
    while evaluations - spent >= SMALLEST:
        size = max(SMALLEST, round(start + (last - start) * spent / evaluations))
        here = here.sorted(min(size, evaluations - spent))
        if _converged(here):
            break
        generation += 1
        factor, crossing = memory.drawn(here.merit.shape, rng)
        tried = _trials(space, here.designs, factor, crossing, rng, among)
        if generation % EXCHANGE == 0 and neighbours.shape[1] < tried.shape[2]:
            tried[:, :, tried.shape[2] - neighbours.shape[1] :] = here.designs[:, :, 0][:, neighbours]
        merit = merits(tried)
        spent += merit.shape[1]
        gain = np.where(merit < here.merit, here.merit - merit, 0.0)
        memory = memory.after(gain, factor, crossing)
        here = Populations(designs=np.where(gain > 0, tried, here.designs), merit=np.where(gain > 0, merit, here.merit))
    return here.sorted(here.merit.shape[1])


def _converged(populations: Populations) -> bool:
    """Whether the designs of each population are nearly as good as its best; those that are all alike tell nothing yet."""
    difference = populations.merit[:, -1] - populations.merit[:, 0]
    return bool(((difference > 0) & (difference <= CONVERGED)).all())


def _trials(space: Space, designs: Array, factor: Array, crossing: Array, rng: np.random.Generator, among: Index) -> Array:
    """A trial for every design; the first of each population is the best.

    among : populations of whose designs the differences may be, shape (problems, populations).
    """
    d, problems, size = designs.shape
    leading = rng.integers(0, max(2, int(LEADING * size)), (problems, size))
    of = np.take_along_axis(among, rng.integers(0, among.shape[1], (problems, size)), 1)
    one, other = (designs[:, of, rng.integers(0, size, (problems, size))] for _ in range(2))
    towards = space.between(designs, np.take_along_axis(designs, leading[None], 2))
    crossed = rng.random(designs.shape) < crossing
    crossed |= np.arange(d)[:, None, None] == rng.integers(0, d, (problems, size))  # one coordinate at least
    return _moved(space, designs, np.where(crossed, factor * (towards + space.between(other, one)), 0.0))


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What succeeded: F and CR, shape (problems, HISTORY), and the place of each problem's next entry."""

    factor: Array
    crossing: Array
    place: Index

    @classmethod
    def fresh(cls, problems: int) -> _Memory:
        shape = (problems, HISTORY)
        return cls(factor=np.full(shape, FIRST_F), crossing=np.full(shape, FIRST_CR), place=np.zeros(problems, dtype=np.intp))

    def drawn(self, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Array, Array]:
        """F and CR of every design, shape (problems, designs)."""
        chosen = rng.integers(0, HISTORY, shape)
        factor = np.take_along_axis(self.factor, chosen, 1) + SCATTER * rng.standard_cauchy(shape)
        crossing = np.take_along_axis(self.crossing, chosen, 1) + SCATTER * rng.standard_normal(shape)
        return np.clip(factor, 0.05, 1.0), np.clip(crossing, 0.0, 1.0)

    def after(self, gain: Array, factor: Array, crossing: Array) -> _Memory:
        """The memory with the means of what succeeded, weighted by gains; of F the Lehmer mean."""
        which = np.flatnonzero(gain.sum(axis=1) > 0)
        weight = gain[which]
        at = (which, self.place[which])
        kept = _Memory(factor=self.factor.copy(), crossing=self.crossing.copy(), place=self.place.copy())
        kept.factor[at] = (weight * factor[which] ** 2).sum(axis=1) / (weight * factor[which]).sum(axis=1)
        kept.crossing[at] = (weight * crossing[which]).sum(axis=1) / weight.sum(axis=1)
        kept.place[which] = (self.place[which] + 1) % HISTORY
        return kept
