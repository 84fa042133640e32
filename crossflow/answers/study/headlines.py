"""What the answer of a study hangs on: who wins, and by how much, with every constant of its template halved and doubled.

A constant is a quantity of a generated device that the study neither sweeps nor chooses. Contests say what is compared and how it is
fitted to a changed constant (`contests`); here they are held, one constant after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.drawing.words import label

if TYPE_CHECKING:
    from crossflow.answers.study.searches import Reporter

TIE = 0.01  # margin below which nobody wins [1]
MOVES = 1e-3  # change of the order of the points, with their designs as they are, below which a constant is not looked at further [1]
Changed = tuple[str, float, float]  # a path, the factor on its value, and the value in SI units


@dataclass(frozen=True, kw_only=True)
class Headline:
    """Who wins along one swept path or choice."""

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
    note: str = ""  # what is approximated, in sentences

    def flips(self, own: Headline) -> tuple[Hinge, ...]:
        """Constants with which somebody else wins along a path, by more than a tie."""
        found = ((hinge, _of(hinge, own.path)) for hinge in self.hinges)
        return tuple(hinge for hinge, new in found if new is not None and new.winner != own.winner and new.margin > TIE)

    def range(self, own: Headline) -> tuple[float, float]:
        """Least and largest margin of the winner over all constants, negative where it loses. [1]"""
        found = [new for hinge in self.hinges if (new := _of(hinge, own.path)) is not None]
        margins = [own.margin, *(one.margin if one.winner == own.winner else -one.margin for one in found)]
        return min(margins), max(margins)

    @property
    def title(self) -> str:
        """What its table tells."""
        return f"Who wins, again with each of {self.constants} constants of the devices halved and doubled"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of text: who wins along each path, between which margins, and with which constants another one does."""
        rows = []
        for own in self.headlines:
            least, most = self.range(own)
            margins = f"{_percent(least)} to {_percent(most)}"
            rows.append([_short(own.path), label(own.winner), _percent(own.margin), margins, _told(self.flips(own), own)])
        return ["along", "best", "better by", "with a constant halved or doubled", "another wins with"], rows

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every headline, as the study has it and with each constant that moves its points, as plain data."""
        for constant, factor, found in (("", 1.0, self.headlines), *((one.constant, one.factor, one.headlines) for one in self.hinges)):
            for own in found:
                told = {"best": label(own.winner), "better_by": _finite(own.margin)}
                yield {"along": own.path, "constant": constant, "factor": factor, **told}

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"constants": self.constants, "note": self.note, "headlines": list(self.rows())}


class Contest(Protocol):
    """What is compared, and how: candidates that differ in named values, and their losses, which are to be small."""

    @property
    def note(self) -> str:
        """What is approximated, in sentences; "" where nothing is."""

    def own(self) -> Array:
        """Losses of the candidates, endless where one cannot run, shape (candidates,) or (candidates, draws)."""

    def kept(self, cases: Sequence[Changed]) -> Iterator[Array]:
        """The same with each constant changed, candidates as they are."""

    def anew(self, cases: Sequence[Changed]) -> Iterator[Array]:
        """The same with each constant changed, candidates fitted to it."""

    def told(self, loss: Array) -> tuple[Headline, ...]:
        """Who wins."""


def held(contest: Contest, tried: Sequence[Changed], report: Reporter | None = None) -> Hinges:
    """What a contest comes to with each of some constants changed, its candidates fitted anew to those that change their order."""
    own, moved = contest.own(), []
    for i, (case, order) in enumerate(zip(tried, contest.kept(tried), strict=True)):
        moved += [case] if _differ(order, own) else []
        _tell(report, i + 1, 2 * len(tried), case)
    found, skipped = [], len(tried) - len(moved)
    for i, ((path, factor, _), other) in enumerate(zip(moved, contest.anew(moved), strict=True)):
        found.append(Hinge(constant=path.removeprefix("system."), factor=factor, headlines=contest.told(other)))
        _tell(report, len(tried) + skipped + i + 1, 2 * len(tried), moved[i])
    return Hinges(headlines=contest.told(own), hinges=tuple(found), constants=len({path for path, _, _ in tried}), note=contest.note)


def _tell(report: Reporter | None, done: int, total: int, case: Changed) -> None:
    if report is not None:
        report(done, total, f"{case[0].removeprefix('system.')} x {case[1]:.3g}")


def _finite(margin: float) -> float | None:
    return margin if np.isfinite(margin) else None


def _of(hinge: Hinge, path: str) -> Headline | None:
    """The headline along a path with a changed constant; None where nothing runs with it."""
    return next((one for one in hinge.headlines if one.path == path), None)


def _short(path: str) -> str:
    """The end of a path, with the words before it."""
    words, colon, rest = path.rpartition(": ")
    return f"{words}{colon}{rest.rpartition('.')[2]}"


def _told(flips: Sequence[Hinge], own: Headline) -> str:
    """Constants that make another one win, each with the factors and the winners."""
    told = []
    for constant in dict.fromkeys(hinge.constant for hinge in flips):
        mine = [(hinge, _of(hinge, own.path)) for hinge in flips if hinge.constant == constant]
        told.append(f"{constant} " + ", ".join(f"x {hinge.factor:.3g} ({label(new.winner)})" for hinge, new in mine if new is not None))
    return "; ".join(told) or "none"


def _percent(margin: float) -> str:
    """A margin; in words where no point with another value runs, or none with the value of the winner."""
    if np.isfinite(margin):
        return f"{100.0 * margin + 0.0:.3g} %"
    return "no other runs" if margin > 0 else "it cannot run"


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


def own_value(case: Changed) -> float:
    """What a changed constant is without the change, in SI units."""
    return case[2] / case[1]


def _differ(one: Array, other: Array) -> bool:
    """Whether losses stand to each other otherwise than other ones."""
    both = np.isfinite(one) & np.isfinite(other)
    if (np.isfinite(one) != np.isfinite(other)).any() or not both.any():
        return True
    ratio = one[both] / other[both]
    return bool(ratio.max() / ratio.min() - 1.0 > MOVES)
