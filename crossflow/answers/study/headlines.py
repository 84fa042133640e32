"""What the answer of a study hangs on: who wins, and by how much, with every constant of its template halved and doubled.

A constant is a quantity of the generated device that the study neither sweeps nor chooses. Where budgets are divided anew they are
divided anew for every changed constant too, from the division of the point on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.score import larger_is_better
from crossflow.answers.study.plots.spec import LinePlot
from crossflow.answers.study.reading import Study
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.base.paths import quantities
from crossflow.hardware.architecture.template import BUDGETS, GeneratedSystem

FACTORS = (0.5, 2.0)
TIE = 0.01  # margin below which nobody wins [1]
MOVES = 1e-3  # change of the order of the points, with their designs as they are, below which a constant is not looked at further [1]
EVALUATIONS = 400  # designs for each point and changed constant
BLOCK = 24  # changed constants a batch


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Who wins along one swept path."""

    path: str
    winner: Any  # value of the best point
    margin: float  # by how much the best point without that value is worse. [1]


@dataclass(frozen=True, kw_only=True)
class Hinge:
    """A constant with another value, and what that makes of the headlines."""

    constant: str
    factor: float  # on its value; less where a bound of the quantity ends it. [1]
    headlines: tuple[Headline, ...]


@dataclass(frozen=True, kw_only=True)
class Hinges:
    """Headlines of a study, and those with each constant that moves the order of its points."""

    headlines: tuple[Headline, ...]
    hinges: tuple[Hinge, ...]
    constants: int  # that were tried. [1]

    def flips(self, own: Headline) -> tuple[Hinge, ...]:
        """Constants with which somebody else wins along a path, by more than a tie."""
        found = ((hinge, _of(hinge, own.path)) for hinge in self.hinges)
        return tuple(hinge for hinge, new in found if new is not None and new.winner != own.winner and new.margin > TIE)

    def range(self, own: Headline) -> tuple[float, float]:
        """Least and largest margin of the winner over all constants, negative where it loses. [1]"""
        found = [new for hinge in self.hinges if (new := _of(hinge, own.path)) is not None]
        margins = [own.margin, *(one.margin if one.winner == own.winner else -one.margin for one in found)]
        return min(margins), max(margins)


def _of(hinge: Hinge, path: str) -> Headline | None:
    """The headline along a path with a changed constant; None where nothing runs with it."""
    return next((one for one in hinge.headlines if one.path == path), None)


def has_headlines(study: Study) -> bool:
    """Whether a study is a sweep of a generated device, without draws and searches."""
    return isinstance(study.scenario.system, GeneratedSystem) and bool(study.paths) and not study.runs and study.sampling is None


def hinges(study: Study, columns: Mapping[str, Sequence[Any]]) -> Hinges:
    """What the headlines of a finished study hang on; `columns` are those of its rows, as its table has them.

    Raises
    ------
    CrossflowError
        For a study without a sweep of a generated device, and for one that draws uncertain numbers or searches a space.
    """
    if not has_headlines(study):
        raise CrossflowError(f"{study.scenario.name}: who wins is told of sweeps of generated devices, without draws and searches")
    points: dict[str, Any] = {path: list(columns[path]) for path in study.paths}
    named = {name: list(columns[name]) for name in study.values}  # of settings that change together one name
    designs = {path: np.array(columns[path], dtype=float) for path in (study.redivision.paths if study.redivision else ())}
    loss, count = _losses(study, {**points, **designs}), len(columns[study.paths[0]])
    tried = list(constants(study))
    moved = [case for case, order in zip(tried, _orders(study, points, designs, tried, count), strict=True) if _differ(order, loss)]
    found = [
        Hinge(constant=path.removeprefix("system."), factor=factor, headlines=headlines(named, other))
        for (path, factor, _), other in zip(moved, _again(study, points, designs, moved, count), strict=True)
    ]
    return Hinges(headlines=headlines(named, loss), hinges=tuple(found), constants=len({path for path, _, _ in tried}))


def table(found: Hinges) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows that tell what the headlines hang on: one row for each swept path."""
    head: tuple[str, ...] = ("along", "best", "better by", "with a constant halved or doubled", "another wins with")
    rows: list[tuple[str, ...]] = []
    for own in found.headlines:
        least, most = found.range(own)
        told = f"{_percent(least)} to {_percent(most)}"
        rows.append((own.path.rpartition(".")[2], str(own.winner), _percent(own.margin), told, _told(found.flips(own), own)))
    return head, rows


def _told(flips: Sequence[Hinge], own: Headline) -> str:
    """Constants that make another one win, each with the factors and the winners."""
    told = []
    for constant in dict.fromkeys(hinge.constant for hinge in flips):
        mine = [(hinge, _of(hinge, own.path)) for hinge in flips if hinge.constant == constant]
        told.append(f"{constant} " + ", ".join(f"x {hinge.factor:.3g} ({new.winner})" for hinge, new in mine if new is not None))
    return "; ".join(told) or "none"


def _percent(margin: float) -> str:
    """A margin; without end where no point with another value runs."""
    return f"{100.0 * margin + 0.0:.3g} %" if np.isfinite(margin) else "without end"


def headlines(points: Mapping[str, Sequence[Any]], loss: Array) -> tuple[Headline, ...]:
    """Who wins along each swept name of points, of which every combination is there; `loss` is to be small, shape (n,)."""
    if not np.isfinite(loss).any():
        return ()
    best, found = int(np.argmin(loss)), []
    for path, values in points.items():
        others = np.array([value != values[best] for value in values])
        if others.any():
            margin = float(np.min(loss[others]) / loss[best] - 1.0)
            found.append(Headline(path=path, winner=values[best], margin=margin))
    return tuple(found)


Changed = tuple[str, float, float]  # a path, the factor on its value, and the value in SI units


def constants(study: Study) -> Iterator[Changed]:
    """Quantities of the generated device that a study neither sweeps nor chooses, each with other values."""
    system = study.scenario.system
    chosen = {*study.every, *(study.redivision.paths if study.redivision else ())}
    for parts, quantity, value in quantities(system):
        path = ".".join(("system", *parts))
        if path in chosen or (parts[0] == "budgets" and parts[1] in (*BUDGETS, "divisions")) or value.size != 1:
            continue
        for factor in FACTORS:
            other = float(value[0]) * factor
            other = min(other, np.inf if quantity.le is None else quantity.le)
            other = max(round(other), 1.0) if quantity.whole else other
            if value[0] and abs(other / float(value[0]) - 1.0) > 1e-9:
                yield path, other / float(value[0]), other


def _losses(study: Study, points: Mapping[str, Any]) -> Array:
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


def _changed(points: Mapping[str, Any], cases: Sequence[Changed], count: int) -> dict[str, Any]:
    """Points for each case, one block of `count` after the other."""
    found: dict[str, Any] = {
        path: np.tile(values, len(cases)) if isinstance(values, np.ndarray) else [*values] * len(cases) for path, values in points.items()
    }
    for path in dict.fromkeys(path for path, _, _ in cases):
        own = next(value / factor for name, factor, value in cases if name == path)
        found[path] = np.repeat([value if name == path else own for name, _, value in cases], count)
    return found


def _orders(study: Study, points: Mapping[str, Any], designs: Mapping[str, Array], cases: Sequence[Changed], count: int) -> Iterator[Array]:
    """Losses with each constant changed and the designs as they are, shape (count,) each."""
    for start in range(0, len(cases), BLOCK):
        some = cases[start : start + BLOCK]
        yield from _losses(study, _changed({**points, **designs}, some, count)).reshape(len(some), count)


def _differ(one: Array, other: Array) -> bool:
    """Whether losses stand to each other otherwise than other ones."""
    both = np.isfinite(one) & np.isfinite(other)
    if (np.isfinite(one) != np.isfinite(other)).any() or not both.any():
        return True
    ratio = one[both] / other[both]
    return bool(ratio.max() / ratio.min() - 1.0 > MOVES)


def _again(study: Study, points: Mapping[str, Any], designs: Mapping[str, Array], cases: Sequence[Changed], count: int) -> Iterator[Array]:
    """Losses with each constant changed and budgets divided anew where the study does so, shape (count,) each."""
    division = study.redivision
    if division is None:
        yield from _orders(study, points, designs, cases, count)
        return
    known = division.problem.space.placed(designs)
    for start in range(0, len(cases), BLOCK):
        some = cases[start : start + BLOCK]
        given = _changed(points, some, count)
        found = division.from_each(given, np.tile(known, len(some)), EVALUATIONS, start)
        yield from _losses(study, {**given, **division.values(found.designs)}).reshape(len(some), count)
