"""What studies compare, for `headlines`: points of a sweep, and points in draws of uncertain numbers.

Points whose budgets are divided anew are divided anew for every changed constant too, from the division of the point on. Draws are those
of the study, the same ones for every point and every constant, and keep the division that the study found for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.points import by_path
from crossflow.answers.score import larger_is_better
from crossflow.answers.study.headlines import Changed, Headline, headlines, own_value
from crossflow.answers.study.plots.spec import LinePlot
from crossflow.answers.study.reading import Study
from crossflow.base.arrays import Array

EVALUATIONS = 400  # designs for each point and changed constant
BLOCK = 24  # changed constants a batch
DRAWN = 64  # draws of each point, the first of those of the study
MOST_OFTEN = "most often: "  # before the path of a headline that counts draws
OF_DRAWS = (
    "Draws: the first {draws} of each point, the same for every constant, with the division of the budgets that the study has for them;"
    " `most often` counts the draws in which a point is the best, and its margin is in draws."
)


@dataclass(frozen=True, kw_only=True)
class SweptContest:
    """Points of a sweep, by what its first picture shows."""

    study: Study
    points: Mapping[str, Any]  # by path
    named: Mapping[str, Sequence[Any]]  # swept values, of settings that change together one name
    designs: Mapping[str, Array]  # how budgets are divided, by path
    note: str = ""

    @classmethod
    def of(cls, study: Study, rows: Sequence[Mapping[str, Any]]) -> SweptContest:
        """The contest of a finished study, from its rows."""
        designs = study.redivision.paths if study.redivision else ()
        return cls(
            study=study,
            points=_by_path(study, rows),
            named={name: [row[name] for row in rows] for name in study.values},
            designs={path: np.array([row[path] for row in rows], dtype=float) for path in designs},
        )

    @property
    def count(self) -> int:
        """Points. [1]"""
        return len(next(iter(self.named.values())))

    def own(self) -> Array:
        """Losses of the points."""
        return losses(self.study, {**self.points, **self.designs})

    def kept(self, cases: Sequence[Changed]) -> Iterator[Array]:
        """Losses with each constant changed, divisions as they are."""
        for start in range(0, len(cases), BLOCK):
            some = cases[start : start + BLOCK]
            yield from losses(self.study, changed({**self.points, **self.designs}, some, self.count)).reshape(len(some), self.count)

    def anew(self, cases: Sequence[Changed]) -> Iterator[Array]:
        """Losses with each constant changed and budgets divided anew where the study does so."""
        division = self.study.redivision
        if division is None:
            yield from self.kept(cases)
            return
        known = division.problem.space.placed(self.designs)
        for start in range(0, len(cases), BLOCK):
            some = cases[start : start + BLOCK]
            given = changed(self.points, some, self.count)
            found = division.from_each(given, np.tile(known, len(some)), EVALUATIONS, start)
            yield from losses(self.study, {**given, **division.values(found.designs)}).reshape(len(some), self.count)

    def told(self, loss: Array) -> tuple[Headline, ...]:
        """Who wins along each swept name."""
        return headlines(self.named, loss)


@dataclass(frozen=True, kw_only=True)
class DrawnContest:
    """Points of a sweep in draws of uncertain numbers: the best in the mean, and the one that is the best most often."""

    study: Study
    points: Mapping[str, Any]  # by path, of all draws of the first point, then of those of the next
    named: Mapping[str, Sequence[Any]]  # swept values of each point
    draws: int

    @classmethod
    def of(cls, study: Study, rows: Sequence[Mapping[str, Any]]) -> DrawnContest:
        """The contest of a finished study, from its rows: all draws of each point, in order."""
        assert study.sampling is not None  # the caller has looked
        whole, draws = study.sampling.settings.samples, min(study.sampling.settings.samples, DRAWN)
        kept = [row for i, row in enumerate(rows) if i % whole < draws]
        numbers = [number.path for number in study.sampling.numbers]
        chosen = study.redivision.paths if study.redivision else ()
        floats = {path: np.array([row[path] for row in kept], dtype=float) for path in (*numbers, *chosen)}
        named = {name: [row[name] for row in kept[::draws]] for name in study.values}
        return cls(study=study, points={**_by_path(study, kept), **floats}, named=named, draws=draws)

    @property
    def note(self) -> str:
        """What is approximated."""
        return OF_DRAWS.format(draws=self.draws)

    @property
    def count(self) -> int:
        """Points. [1]"""
        return len(next(iter(self.named.values())))

    def own(self) -> Array:
        """Losses of the points in each draw."""
        return losses(self.study, self.points).reshape(self.count, self.draws)

    def kept(self, cases: Sequence[Changed]) -> Iterator[Array]:
        """The same with each constant changed."""
        for start in range(0, len(cases), BLOCK):
            some = cases[start : start + BLOCK]
            found = losses(self.study, changed(self.points, some, self.count * self.draws))
            yield from found.reshape(len(some), self.count, self.draws)

    def anew(self, cases: Sequence[Changed]) -> Iterator[Array]:
        """The same: draws keep their divisions."""
        yield from self.kept(cases)

    def told(self, loss: Array) -> tuple[Headline, ...]:
        """Who wins in the mean over the draws in which all points run that ever do, and who wins most often."""
        runs = np.isfinite(loss).any(axis=1)
        common = np.isfinite(loss[runs]).all(axis=0)
        if not runs.any() or not common.any():
            return ()
        mean = np.where(runs, loss[:, common].mean(axis=1), np.inf)
        return (*headlines(self.named, mean), *self._most_often(loss[:, common]))

    def _most_often(self, loss: Array) -> Iterator[Headline]:
        """Who is the best in the most draws along each swept name, and in how many more than the next one, as a share of them."""
        best = loss.argmin(axis=0)
        for path, values in self.named.items():
            counts: dict[str, int] = {}
            for i in best:
                counts[values[i]] = counts.get(values[i], 0) + 1
            order = sorted(counts.items(), key=lambda pair: -pair[1])
            if len(set(map(str, values))) > 1:
                yield Headline(path=MOST_OFTEN + path, winner=order[0][0], margin=(order[0][1] - sum(n for _, n in order[1:2])) / len(best))


def _by_path(study: Study, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Swept values of rows by path."""
    return dict(by_path({name: [row[name] for row in rows] for name in study.values}, study.together))


def losses(study: Study, points: Mapping[str, Any]) -> Array:
    """What is to be small at some points, endless where one cannot run; shape (n,)."""
    goal, times = _goal(study)
    columns = evaluate(study.scenario, points, columns={goal, *([times] if times else []), "feasible"}).columns()
    value = np.asarray(columns[goal], dtype=float) * (np.asarray(columns[times], dtype=float) if times else 1.0)
    with np.errstate(divide="ignore"):  # of what gives nothing the loss has no end
        loss = 1.0 / value if larger_is_better(goal) else value
    return np.where(np.asarray(columns["feasible"], dtype=bool) & np.isfinite(loss), loss, np.inf)


def _goal(study: Study) -> tuple[str, str | None]:
    """The column that the first picture shows, and the one that it is multiplied by; the goal of the division where it shows none."""
    drawn = next((plot for plot in study.spec.plots if isinstance(plot, LinePlot)), None)
    if drawn is not None:
        return drawn.y, drawn.times
    return (study.redivision.goal if study.redivision else "step_time_s"), None


def changed(points: Mapping[str, Any], cases: Sequence[Changed], count: int) -> dict[str, Any]:
    """Points for each case, one block of `count` after the other."""
    found: dict[str, Any] = {
        path: np.tile(values, len(cases)) if isinstance(values, np.ndarray) else [*values] * len(cases) for path, values in points.items()
    }
    return {**found, **beside(cases, count)}


def beside(cases: Sequence[Changed], count: int) -> dict[str, Array]:
    """Values of the constants of some cases, by path, one block of `count` after the other."""
    found = {}
    for path in dict.fromkeys(path for path, _, _ in cases):
        own = next(own_value(case) for case in cases if case[0] == path)
        found[path] = np.repeat([value if name == path else own for name, _, value in cases], count)
    return found
