"""Budgets of a generated device divided anew for many points at once, and its microarchitecture chosen, in one batch of designs a step.

Designs are coordinates of a space without options (`evolution`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.points import Points, split
from crossflow.answers.score import Score
from crossflow.answers.search.evolution import Evolved, evolve, refine
from crossflow.answers.search.shares import choices_of
from crossflow.base.arrays import Array, Index
from crossflow.base.results import later

if TYPE_CHECKING:
    from crossflow.answers.search.problem import SearchProblem
else:
    SearchProblem = later("crossflow.answers.search.problem", "SearchProblem")

Seen = Callable[[Score], None]  # is told scores as they are made, for bars of progress
SPREAD = "division_spread"  # column: by how much ends of the search for a division differ at a point
STRANGERS = 2  # points that are no neighbours, whose divisions are tried too


@dataclass(frozen=True, kw_only=True)
class BudgetDivision:
    """How points divide the budgets of a generated device: `problem` over the shares and the microarchitecture, all else stays."""

    problem: SearchProblem
    seed: int = 0

    @property
    def start(self) -> Array:
        """The scenario's own division, shape (dimensions, 1)."""
        return self.problem.space.placed(choices_of(self.problem.scenario))

    @property
    def goal(self) -> str:
        """The column that is made small, or large."""
        return self.problem.objectives[0].name

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of what is chosen."""
        return self.problem.space.paths

    def values(self, designs: Array) -> dict[str, Any]:
        """What designs have by path, of shape (dimensions, ...)."""
        return self.problem.space.by_path(designs)

    def points(self, given: Points, count: int, sizes: Sequence[int], evaluations: int, seed: int = 0, seen: Seen | None = None) -> Evolved:
        """Divide the budgets of points from scratch; `sizes` are those of the sweep of which these are the rows, in order.

        `seen` is told the score of every batch of designs.
        """
        rng = np.random.default_rng((self.seed, seed))
        known = np.stack([np.repeat(self.start, count, axis=1), *self._tabled(given, count)], axis=2)
        neighbours = np.concatenate([beside(sizes, count), rng.integers(0, count, (count, STRANGERS))], axis=1)
        return evolve(self.problem.space, self._merits(given, count, seen), known, evaluations, rng, neighbours)

    def _tabled(self, given: Points, count: int) -> list[Array]:
        """The division of each point that the template has a table of, shape (dimensions, count); none where it has no table."""
        if not given:
            return []
        tabled = split(self.problem.scenario, dict(given)).quantities
        if not any(path in tabled for path in self.paths):
            return []
        own = choices_of(self.problem.scenario)
        held = {path: tabled[path] if path in tabled else own[path] for path in self.paths if path in tabled or path in own}
        return [self.problem.space.placed({path: np.broadcast_to(value, (count,)) for path, value in held.items()})]

    def about(self, given: Points, known: Array, count: int, evaluations: int, seed: int = 0, seen: Seen | None = None) -> Evolved:
        """Divide the budgets of points from known divisions of one like them on, shape (dimensions, divisions)."""
        rng = np.random.default_rng((self.seed, seed))
        strangers = rng.integers(0, count, (count, STRANGERS))
        starts = np.repeat(known[:, None, :], count, axis=1)
        return refine(self.problem.space, self._merits(given, count, seen), starts, evaluations, rng, strangers)

    def from_each(self, given: Points, known: Array, evaluations: int, seed: int = 0) -> Evolved:
        """Divide the budgets of points from a division of each on, shape (dimensions, points)."""
        count = known.shape[1]
        rng = np.random.default_rng((self.seed, seed))
        strangers = rng.integers(0, count, (count, STRANGERS))
        return refine(self.problem.space, self._merits(given, count, None), known[:, :, None], evaluations, rng, strangers)

    def anew(self, given: Points, known: Array, count: int, evaluations: int, seed: int = 0) -> Evolved:
        """Divide the budgets of points from scratch, with divisions that may be good among the first, shape (dimensions, divisions)."""
        rng = np.random.default_rng((self.seed, seed))
        strangers = rng.integers(0, count, (count, STRANGERS))
        starts = np.repeat(known[:, None, :], count, axis=1)
        return evolve(self.problem.space, self._merits(given, count, None), starts, evaluations, rng, strangers)

    def _merits(self, given: Points, count: int, seen: Seen | None) -> Any:
        def found(designs: Array) -> Array:
            each = designs.shape[2]
            points = {path: _each(values, each) for path, values in given.items()}
            score = evaluate(
                self.problem.scenario, {**points, **self.values(designs.reshape(len(designs), -1))}, columns=self.problem.figures
            )
            if seen is not None:
                seen(score)
            return self.problem.merit(self.problem.judged(score)).reshape(count, each)

        return found


def _each(values: Sequence[Any], times: int) -> Sequence[Any]:
    if isinstance(values, np.ndarray):
        return np.repeat(values, times)
    return [value for value in values for _ in range(times)]


def beside(sizes: Sequence[int], count: int) -> Index:
    """The points before and after each along every swept path, itself at an end, shape (count, 2 paths); of the first `count` of a grid."""
    sizes = sizes or (count,)
    where = np.array(np.unravel_index(np.arange(count), sizes), dtype=np.intp).reshape(len(sizes), count)
    found = []
    for axis, way in itertools.product(range(len(sizes)), (-1, 1)):
        moved = where.copy()
        moved[axis] = np.clip(moved[axis] + way, 0, sizes[axis] - 1)
        place = np.ravel_multi_index(tuple(moved), tuple(sizes))
        found.append(np.where(place < count, place, np.arange(count)))
    return np.array(found, dtype=np.intp).reshape(2 * len(sizes), count).T
