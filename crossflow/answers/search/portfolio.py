"""Designs judged over several workloads and over draws of uncertain numbers: one figure for each member and draw, one objective of all.

With f(m, k) the figure of member m in draw k and weights w(m) that add up to 1, draw k has

    J(k) = prod f(m, k)^w(m)  (geometric),   sum w(m) f(m, k)  (arithmetic),   1 + max w(m) (f(m, k) / f*(m) - 1)  (worst),

where f*(m) is what the best design for member m alone reaches with the library's values; the last takes the weights as they are given.
The geometric mean is that of benchmark suites [1]_: which of two designs has the smaller one depends neither on units nor on what the
figures are divided by, so that a decoding step of milliseconds counts as much as a training step of seconds. The objective is the mean
of J over the draws, a quantile, the worst, or the regret [2]_: the largest J(k) / J*(k) - 1, where J*(k) is the least that any design
reaches in draw k. Where a column is made large, ratios are turned over, and the lower tail of the draws is the bad one.

References
----------
.. [1] P. J. Fleming, J. J. Wallace, "How not to lie with statistics: the correct way to summarize benchmark results", CACM 29(3), 1986.
.. [2] L. J. Savage, "The theory of statistical decision", J. Am. Stat. Assoc. 46(253), 1951.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from crossflow.answers.points import Points
from crossflow.answers.scenario import Scenario
from crossflow.answers.search.goals import USUAL, Constraint, DesignOutcome, Objective, joined
from crossflow.answers.search.problem import ILLEGAL, SearchProblem
from crossflow.answers.search.settings import TAIL, Mean, Measure
from crossflow.answers.search.space import Designs
from crossflow.base.arrays import Array, Index

PART = 8192  # points, of a design for a member in a draw, that are evaluated together


@dataclass(frozen=True, kw_only=True)
class Member:
    """One workload of a portfolio."""

    name: str  # "" where there is one, and only draws
    scenario: Scenario
    weight: float = 1.0
    constraints: tuple[Constraint, ...] = ()  # on its own columns
    drawn: tuple[str, ...] = ()  # paths of uncertain numbers that it has
    goals: tuple[Objective, ...] = ()  # its own, where each member has another (`USUAL`)


class DrawnFigures(NamedTuple):
    """What n designs come to: J of each objective, and violations of each member, in each draw; and columns of rows."""

    figures: Array  # shape (goals, n, draws)
    violation: Array  # shape (members, n, draws)
    table: Mapping[str, Any]

    def take(self, index: Index) -> DrawnFigures:
        """Those of some designs."""
        table = {name: np.asarray(values)[index] for name, values in self.table.items()}
        return DrawnFigures(self.figures[:, index], self.violation[:, index], table)


@dataclass(frozen=True, kw_only=True)
class ListedDesigns:
    """All designs of a space with what they come to, so that a search need not evaluate them again."""

    place: Mapping[bytes, int]  # of each design, by its coordinates
    found: DrawnFigures

    @classmethod
    def of_all(cls, designs: Designs, parts: Sequence[DrawnFigures]) -> ListedDesigns:
        """The list of designs that were judged in parts."""
        table: dict[str, Any] = {name: np.concatenate([np.asarray(part.table[name]) for part in parts]) for name in parts[0].table}
        figures, violation = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
        return cls(place={key: i for i, key in enumerate(_keys(designs))}, found=DrawnFigures(figures, violation, table))

    def of(self, designs: Designs) -> DrawnFigures | None:
        """What designs come to, None where one of them is not in the list."""
        places = [self.place.get(key) for key in _keys(designs)]
        return None if None in places else self.found.take(np.array(places, dtype=np.intp))


def _keys(designs: Designs) -> list[bytes]:
    return [column.tobytes() for column in np.concatenate([designs.continuous, designs.discrete.astype(float)]).T.copy()]


@dataclass(frozen=True, kw_only=True)
class PortfolioProblem(SearchProblem):
    """A search problem over members and draws; `objectives` are columns of its rows, made of the members' `goals`."""

    members: tuple[Member, ...]
    goals: tuple[Objective, ...]
    draws: Mapping[str, Array] = field(default_factory=dict)  # values of uncertain numbers by path, shape (draws,); none without draws
    mean: Mean = "geometric"
    measure: Measure = "mean"
    quantile: float | None = None  # of the draws; the largest regret where absent
    own_members: Array | None = None  # what the best design of each member alone reaches, shape (members,); None where nobody asks
    own_draws: Array | None = None  # the least J of each draw, shape (draws,); likewise
    listed: ListedDesigns | None = None  # all designs of the space, where own bests were looked for among them

    # ------------------------------------------------------------------------------ members and draws

    @property
    def count(self) -> int:
        """Draws, 1 without any. [1]"""
        return max((len(values) for values in self.draws.values()), default=1)

    @property
    def cost(self) -> int:
        """Points, of a member in a draw, that are evaluated for each design. [1]"""
        return len(self.members) * self.count

    def of_member(self, member: Member) -> SearchProblem:
        """The problem of a member alone, with its figures."""
        names = tuple(dict.fromkeys(name for name in (*(c.name for c in self.constraints), *self.columns) if name != USUAL))
        return SearchProblem(
            scenario=member.scenario,
            space=self.space,
            objectives=member.goals or self.goals,
            constraints=member.constraints,
            fits=self.fits,
            columns=names,
            own=self.own,
        )

    def outcomes(self, designs: Designs, draw: Index | None) -> list[DesignOutcome]:
        """What became of designs for each member, each in the draw with its number; with the library's values without draws."""
        found = []
        for member in self.members:
            beside: dict[str, Any] = {} if draw is None else {path: self.draws[path][draw] for path in member.drawn}
            found.append(self.of_member(member).evaluate(designs, beside))
        return found

    @property
    def _weights(self) -> Array:
        return np.array([member.weight for member in self.members])

    def combined(self, values: Array, goal: Objective) -> Array:
        """J of figures of the members, shape (members, ...): one number for all members."""
        if self.mean != "worst" or self.own_members is None:
            return self._averaged(values)
        counts = self._weights > 0
        weights, own = (a[counts].reshape(-1, *[1] * (values.ndim - 1)) for a in (self._weights, self.own_members))
        return np.asarray(1.0 + (weights * (ratio(values[counts], own, larger=goal.maximise) - 1.0)).max(axis=0))

    def _averaged(self, values: Array) -> Array:
        """The weighted mean of figures of the members, shape (members, ...), the geometric one but where the other is asked for."""
        counts = self._weights > 0
        some, weights = values[counts], self._weights[counts].reshape(-1, *[1] * (values.ndim - 1))
        if len(some) == 1:
            return np.asarray(some[0])
        share = weights / weights.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((share * some).sum(axis=0) if self.mean == "arithmetic" else np.exp((share * np.log(some)).sum(axis=0)))

    def measured(self, figure: Array, goal: Objective) -> Array:
        """The objective of J in each draw, shape (n, draws); shape (n,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.measure == "regret" and self.own_draws is not None:
                return self._over_draws(ratio(figure, self.own_draws, larger=not self.rises(goal)) - 1.0, rises=True)
            found = self._over_draws(figure, rises=self.rises(goal))
        return found - 1.0 if self.mean == "worst" else found  # a loss

    def _over_draws(self, figure: Array, *, rises: bool) -> Array:
        """One number for all draws, shape (n,); of two, the larger is the worse where it `rises`."""
        if figure.shape[1] == 1:
            return figure[:, 0]
        if self.measure == "mean":
            return np.asarray(figure.mean(axis=1))
        if self.measure == "quantile" or self.quantile is not None:
            tail = TAIL if self.quantile is None else self.quantile
            return np.asarray(np.quantile(figure, tail if rises else 1.0 - tail, axis=1))
        return np.asarray(figure.max(axis=1) if rises else figure.min(axis=1))

    def rises(self, goal: Objective) -> bool:
        """Whether a larger J is a worse one."""
        return self.mean == "worst" or not goal.maximise

    # ------------------------------------------------------------------------------ as other problems

    @property
    def figures(self) -> tuple[str, ...]:
        """Columns of all members together, then those of each."""
        own = self._own_figures
        names = (
            *(o.name for o in self.objectives),
            *own,
            *(f"{goal.name}.{member.name}" for goal in self.goals for member in self.members if member.goals),
            *(f"{name}.{member.name}" for name in own for member in self.members if member.name),
        )
        return tuple(dict.fromkeys(names))

    @property
    def _own_figures(self) -> tuple[str, ...]:
        """Columns of a member, those that all have."""
        first, *others = (self.of_member(member).figures for member in self.members) if self.members else ((),)
        return tuple(name for name in first if all(name in other for other in others))

    def evaluate(self, designs: Designs, beside: Points | None = None) -> DesignOutcome:
        """Objectives, violation and rows of designs over all members and draws."""
        del beside
        known = None if self.listed is None else self.listed.of(designs)
        if known is not None:
            return self._outcome(known)
        return joined([self._outcome(self.in_draws(part)) for part in self.parts(designs)])

    def parts(self, designs: Designs) -> Iterator[Designs]:
        """Designs in parts that are worth a task each, the same wherever they are evaluated."""
        size = max(PART // self.cost, 1)
        yield from (designs.take(slice(at, at + size)) for at in range(0, max(len(designs), 1), size))

    def in_draws(self, designs: Designs) -> DrawnFigures:
        """What designs come to in each draw."""
        n, draws = len(designs), self.count
        found = self.outcomes(*self._paired(designs))
        shape = (len(self.members), len(self.goals), n, draws)
        values = np.array([outcome.objectives for outcome in found]).reshape(shape)
        violation = np.array([outcome.violation for outcome in found]).reshape(len(found), n, draws)
        table: dict[str, Any] = {
            **self._common(found, n),
            **{goal.name: _over(self._averaged(values[:, i])) for i, goal in enumerate(self.goals)},
            **self._of_each(found, n),
            **{
                f"{goal.name}.{m.name}": _over(values[k, i])
                for i, goal in enumerate(self.goals)
                for k, m in enumerate(self.members)
                if m.goals
            },
            "bound_by": self._bounds_by(found, n),
            "reason": self._why(found, n),
        }
        figures = np.array([self.combined(values[:, i], goal) for i, goal in enumerate(self.goals)])
        return DrawnFigures(figures, violation, table)

    def _outcome(self, found: DrawnFigures) -> DesignOutcome:
        """What becomes of designs over all draws."""
        objectives = np.array([self.measured(figure, goal) for figure, goal in zip(found.figures, self.goals, strict=True)])
        violation = together(found.violation)
        table = {**found.table, **{one.name: values for one, values in zip(self.objectives, objectives, strict=True)}}
        rows = {name: table[name] for name in self.figures}
        rows |= {"feasible": violation == 0.0, "violation": violation, "bound_by": table["bound_by"], "reason": table["reason"]}
        return DesignOutcome(objectives=objectives, violation=violation, rows=rows)

    def _paired(self, designs: Designs) -> tuple[Designs, Index | None]:
        """Every design with every draw."""
        if not self.draws:
            return designs, None
        n = len(designs)
        return designs.take(np.repeat(np.arange(n), self.count)), np.tile(np.arange(self.count), n)

    def _of_each(self, found: Sequence[DesignOutcome], n: int) -> dict[str, Array]:
        """Columns of each member: their means over the draws."""
        return {
            f"{name}.{member.name}": _over(_each(outcome, name, n))
            for name in self._own_figures
            for member, outcome in zip(self.members, found, strict=True)
            if member.name
        }

    def _common(self, found: Sequence[DesignOutcome], n: int) -> dict[str, Array]:
        """Columns of all members together: what constraints bound at its worst, others as weighted means; over the draws likewise."""
        bounded = {constraint.name: constraint.at_most for member in self.members for constraint in member.constraints}
        share = (self._weights / self._weights.sum()).tolist()
        table = {}
        for name in self._own_figures:
            values = [_each(outcome, name, n) for outcome in found]
            if name in bounded:
                mine = [v for v, m in zip(values, self.members, strict=True) if any(c.name == name for c in m.constraints)]
                whole = np.concatenate(mine, axis=1)
                table[name] = whole.max(axis=1) if bounded[name] else whole.min(axis=1)
            else:
                table[name] = np.sum([w * _over(v) for w, v in zip(share, values, strict=True) if w > 0], axis=0)
        return table

    def _bounds_by(self, found: Sequence[DesignOutcome], n: int) -> Array:
        """What bounds each member, in the first draw, in the order of the members; once where it is the same."""
        words = [np.asarray(outcome.rows["bound_by"], dtype=object).reshape(n, -1)[:, 0] for outcome in found]
        result = np.empty(n, dtype=object)
        result[:] = [" / ".join(dict.fromkeys(map(str, row))) for row in zip(*words, strict=True)]
        return result

    def _why(self, found: Sequence[DesignOutcome], n: int) -> Array:
        """Why each design is infeasible: the reason of the first member that has one, or a constraint that it misses."""
        result = np.full(n, None, dtype=object)
        for member, outcome in zip(self.members, found, strict=True):
            reasons = np.asarray(outcome.rows["reason"], dtype=object).reshape(n, -1)
            told = [[reason for reason in row if reason is not None] for row in reasons]
            for constraint in member.constraints if self.cost > 1 else ():
                missed = (constraint.violation(_each(outcome, constraint.name, n)) > 0.0).sum(axis=1)
                told = [one or [f"{constraint.name} misses its bound"] * int(count) for one, count in zip(told, missed, strict=True)]
            for i in [i for i in range(n) if told[i] and result[i] is None]:
                result[i] = _reason(member.name, told[i], self.count if self.draws else 0)
        return result

    def illegal(self, settings: Mapping[str, Any]) -> str | None:
        """Why settings make no scenario of a member, None where they make one of each."""
        for member in self.members:
            reason = self.of_member(member).illegal(settings)
            if reason is not None:
                return _reason(member.name, [reason], 0)
        return None

    def bound(self, designs: Designs) -> Array | None:
        """Losses that no design with the same options and ranges can go below; None with draws, and where members have none."""
        if self.draws or any(goal.maximise for goal in self.goals):
            return None
        found = [self.of_member(member).bound(designs) for member in self.members]
        if any(bound is None for bound in found):
            return None
        values = np.array(found)
        hopeless = np.isinf(values).any(axis=0)
        bounds = [self.measured(self.combined(values[:, i, :, None], goal), goal) for i, goal in enumerate(self.goals)]
        return np.where(hopeless, np.inf, np.array(bounds))

    def with_own(self, members: Array | None, draws: Array | None) -> PortfolioProblem:
        """The problem with what the best designs of its members and draws alone reach."""
        return replace(self, own_members=members, own_draws=draws)


def ratio(values: Array, own: Array, *, larger: bool) -> Array:
    """How many times worse values are than what the best reach; `larger` says whether larger ones are better. [1]"""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(own / values if larger else values / own)


def together(violation: Array) -> Array:
    """Violation of designs from those for every member and draw, shape (members, n, draws): their mean, of what is no scenario that."""
    whole = violation.mean(axis=(0, 2)) if violation.shape[0] * violation.shape[2] > 1 else violation[0, :, 0]
    return np.asarray(np.where((violation >= ILLEGAL).any(axis=(0, 2)), ILLEGAL, whole))


def _each(outcome: DesignOutcome, name: str, n: int) -> Array:
    return np.asarray(outcome.rows[name], dtype=float).reshape(n, -1)


def _over(values: Array) -> Array:
    """Mean over the draws, shape (n,)."""
    return values[:, 0] if values.shape[1] == 1 else np.asarray(values.mean(axis=1))


def _reason(member: str, reasons: Sequence[str], draws: int) -> str:
    """A reason, with its member and in how many draws it holds where there are some."""
    where = f" (in {len(reasons):,} of {draws:,} draws)" if draws else ""
    return f"{f'{member}: ' if member else ''}{reasons[0]}{where}"
