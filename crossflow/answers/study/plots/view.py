"""What plots see of a finished study: columns of its points, and what searches and draws found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crossflow.answers.explanation.uncertainty import Interval
from crossflow.base.arrays import Array


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """How one search came to its best."""

    search: str  # name of the search
    point: str  # how its swept point is written ("" where nothing is swept)
    evaluations: tuple[int, ...]  # designs evaluated
    best: tuple[float, ...]  # best objective (natural value, the first one) by then
    total: int  # designs evaluated in all
    seconds: tuple[float, ...] = ()  # time at each improvement, where it is measured. [s]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What draws of uncertain numbers did to one column at one swept point; `feasible` is the share of draws that are."""

    point: Mapping[str, Any]
    column: str
    interval: Interval
    importance: Mapping[str, float]
    feasible: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LossTable:
    """How far designs are from own bests: that of a search first, then the own best of each case. [1]"""

    search: str
    cases: tuple[str, ...]  # members, then draws
    draw: tuple[bool, ...]  # which of them are draws
    loss: Array  # shape (1 + cases, cases)


@dataclass(frozen=True, kw_only=True)
class View:
    """A finished study."""

    # columns over all points that some plot or the table needs: float arrays (NaN for what is missing), bool arrays, or object arrays;
    # `feasible` and `bound_by` always; `search` where there are searches
    columns: Mapping[str, Any]
    values: Mapping[str, Sequence[Any]]  # swept values by path
    units: Mapping[str, str] = field(default_factory=dict)  # SI units of the numbers of searched paths, where they have one
    searches: tuple[str, ...] = ()  # names of the searches
    space: tuple[str, ...] = ()  # searched paths
    objectives: Mapping[str, bool] = field(default_factory=dict)  # objectives, True where one is made large
    best: tuple[Mapping[str, Any], ...] = ()  # the best row of each search at each swept point, with its figures
    convergence: tuple[Convergence, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    draws: int = 0  # draws at every swept point; 0 where that is not known
    interval: float = 0.0  # share of the draws that an interval holds, 0 where that is not known. [1]
    losses: tuple[LossTable, ...] = ()  # of searches whose designs are judged by several members or draws
    caption: str = ""  # what stands below every plot
