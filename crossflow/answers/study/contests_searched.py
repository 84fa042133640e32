"""What searches compare, for `headlines`: the best design of each kind that they found, refined for every changed constant.

A kind is a value of a choice that the space has, of a swept path, or a search. Candidates are the best designs of the first kinds along
each, so that runners-up may win. Their numbers and shares are refined from what the search found, within a budget of designs for the
whole test; their choices stay. So a kind that none of them has cannot win.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.search.evolution import refine
from crossflow.answers.search.goals import DesignOutcome, Objective
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.space import Designs
from crossflow.answers.study.contests import BLOCK, beside
from crossflow.answers.study.headlines import Changed, Headline, headlines
from crossflow.answers.study.planning import PlannedSearch
from crossflow.answers.study.reading import Study
from crossflow.base.arrays import Array

if TYPE_CHECKING:
    from crossflow.answers.search.portfolio import PortfolioProblem

KINDS = 4  # of each choice, whose best designs are compared
MOST, LEAST, WHOLE = 400, 40, 400_000  # designs for each candidate and changed constant: at most, at least, and for all together
FIRST = 1200  # designs from which each candidate starts, refined without any change
SEARCH = "search"
OF_A_SEARCH = (
    "Candidates: the {count} best designs of up to {kinds} values of each choice, with their choices kept; {fitted} for every constant"
    " that changes their order."
)
OF_MEMBERS = " Members and draws count by the mean over the draws."


@dataclass(frozen=True, kw_only=True)
class Corner:
    """Candidates of one search: designs of its problem."""

    problem: SearchProblem
    designs: Designs

    def losses(self, designs: Designs, cases: Sequence[Changed]) -> Array:
        """Losses of designs, those of each case after one another, shape (cases times candidates,)."""
        outcome = self._outcome(designs, cases)
        sign = self.problem.objectives[0].sign
        with np.errstate(divide="ignore"):
            value = outcome.objectives[0] if sign > 0 else 1.0 / outcome.objectives[0]
        return np.where((outcome.violation == 0.0) & np.isfinite(value), value, np.inf)

    def _outcome(self, designs: Designs, cases: Sequence[Changed]) -> DesignOutcome:
        if not cases:
            return self.problem.evaluate(designs)
        constants: Mapping[str, Any] = beside(cases, len(designs) // len(cases))
        return self.problem.evaluate(designs, constants)

    def times(self, cases: int) -> Designs:
        """The candidates once for each case."""
        return Designs(continuous=np.tile(self.designs.continuous, cases), discrete=np.tile(self.designs.discrete, cases))

    def refined(self, cases: Sequence[Changed], evaluations: int, seed: int) -> Designs:
        """Candidates with numbers and shares refined for each case; without a case for themselves."""
        start, each = self.times(max(len(cases), 1)), len(self.designs)
        if not self.problem.space.dimensions or not evaluations:
            return start
        rng = np.random.default_rng((0, seed))

        def merits(designs: Array) -> Array:
            found = Designs(continuous=designs.reshape(len(designs), -1), discrete=np.repeat(start.discrete, designs.shape[2], axis=1))
            return self.problem.merit(self._outcome(found, cases)).reshape(designs.shape[1:])

        ends = refine(self.problem.space, merits, start.continuous[:, :, None], evaluations, rng, _of_case(len(start), each, rng))
        return Designs(continuous=ends.designs, discrete=start.discrete)


def _of_case(count: int, each: int, rng: np.random.Generator) -> Any:
    """For every candidate another one of its own case, whose numbers are tried too, shape (count, 1)."""
    first = np.arange(count) // each * each
    return (first + rng.integers(0, each, count)).reshape(-1, 1)


@dataclass(frozen=True, kw_only=True)
class SearchedContest:
    """Candidates of all searches of a study."""

    corners: tuple[Corner, ...]
    named: Mapping[str, Sequence[Any]]  # of the candidates of all corners, in order
    note: str
    words: str = ""  # before each path, where a study has several objectives

    @property
    def count(self) -> int:
        """Candidates. [1]"""
        return sum(len(corner.designs) for corner in self.corners)

    def own(self) -> Array:
        """Losses of the candidates."""
        return np.concatenate([corner.losses(corner.designs, ()) for corner in self.corners])

    def kept(self, cases: Sequence[Changed]) -> Iterator[Array]:
        """Losses with each constant changed, designs as they are."""
        for start in range(0, len(cases), BLOCK):
            yield from self._of(cases[start : start + BLOCK], 0, start)

    def anew(self, cases: Sequence[Changed]) -> Iterator[Array]:
        """Losses with each constant changed, and designs refined for it."""
        share = WHOLE // max(len(cases) * self.count, 1)
        for start in range(0, len(cases), BLOCK):
            yield from self._of(cases[start : start + BLOCK], min(max(share, LEAST), MOST), start)

    def _of(self, cases: Sequence[Changed], evaluations: int, seed: int) -> Iterator[Array]:
        found = [corner.losses(corner.refined(cases, evaluations, seed), cases).reshape(len(cases), -1) for corner in self.corners]
        yield from np.concatenate(found, axis=1)

    def told(self, loss: Array) -> tuple[Headline, ...]:
        """Who wins along each choice, each swept name, and among searches."""
        return tuple(replace(one, path=f"{self.words}{one.path}") for one in headlines(self.named, loss))


@dataclass(frozen=True, kw_only=True)
class MembersCorner(Corner):
    """Candidates that several members, or draws, judge: a constant has its value in all of them."""

    def losses(self, designs: Designs, cases: Sequence[Changed]) -> Array:
        """The same, one case after the other."""
        each = len(designs) // max(len(cases), 1)
        found = []
        for i, (path, _, value) in enumerate(cases):
            corner = Corner(problem=with_constant(self.problem, path, value), designs=self.designs)  # type: ignore[arg-type]
            found.append(corner.losses(designs.take(slice(i * each, (i + 1) * each)), ()))
        return np.concatenate(found) if cases else Corner.losses(self, designs, ())

    def refined(self, cases: Sequence[Changed], evaluations: int, seed: int) -> Designs:
        """The candidates as they are: members and draws make each design dear."""
        del evaluations, seed
        return self.times(max(len(cases), 1))


def with_constant(problem: PortfolioProblem, path: str, value: float) -> PortfolioProblem:
    """A problem of members and draws in which a quantity of the system has a value in every draw."""
    members = tuple(replace(member, drawn=(*member.drawn, path)) for member in problem.members)
    return replace(problem, draws={**problem.draws, path: np.full(problem.count, value)}, members=members)


# ------------------------------------------------------------------------------------------ candidates


def contests(study: Study, rows: Iterable[Mapping[str, Any]]) -> list[SearchedContest]:
    """One contest for each objective of a study's searches; none where they found nothing."""
    objectives = goals_of(study.runs[0].problem)
    kept = [_best_of_kinds(study.runs, objectives, rows)]
    found = [_contest(study, i, one, kept[0][i], several=len(objectives) > 1) for i, one in enumerate(objectives)]
    return [one for one in found if one is not None]


def goals_of(problem: SearchProblem) -> tuple[Objective, ...]:
    """Columns that say how good a design is, of members and draws their means."""
    return getattr(problem, "goals", problem.objectives)


BestOfKinds = dict[tuple[int, str, str], tuple[float, Mapping[str, Any]]]  # best loss and row by run, path and value


def _best_of_kinds(runs: Sequence[PlannedSearch], objectives: Sequence[Objective], rows: Iterable[Mapping[str, Any]]) -> list[BestOfKinds]:
    """For each objective the best design that each search found of each kind."""
    found: list[BestOfKinds] = [{} for _ in objectives]
    for row in rows:
        if not row["feasible"]:
            continue
        run = runs[row["run"]]
        kinds = [(run.number, option.path, str(row[option.path])) for option in run.problem.space.options]
        for best, objective in zip(found, objectives, strict=True):
            loss = objective.sign * row[objective.name]
            for key in (*kinds, (run.number, "", "")):
                if key not in best or loss < best[key][0]:
                    best[key] = loss, row
    return found


def _contest(study: Study, goal: int, objective: Objective, best: BestOfKinds, *, several: bool) -> SearchedContest | None:
    """The contest for one objective."""
    chosen = [(run, list(_candidates(run, best))) for run in study.runs]
    corners, named = [], list[dict[str, Any]]()
    for run, mine in chosen:
        problem, designs = _judged(run.problem, goal), [d for row in mine if (d := run.problem.space.located(row)) is not None]
        if not designs:
            continue
        whole = Designs(
            continuous=np.concatenate([one.continuous for one in designs], axis=1),
            discrete=np.concatenate([one.discrete for one in designs], axis=1),
        )
        corner = (MembersCorner if hasattr(problem, "members") else Corner)(problem=problem, designs=whole)
        corners.append(replace(corner, designs=corner.refined((), FIRST, run.number)))
        named += [_names(run, row) for row in mine if run.problem.space.located(row) is not None]
    if not corners:
        return None
    paths = list(dict.fromkeys(path for one in named for path in one))
    values = {path: [one.get(path) for one in named] for path in paths}
    differing = {path: own for path, own in values.items() if len(set(map(str, own))) > 1}
    words = f"{objective.name}: " if several else ""
    return SearchedContest(corners=tuple(corners), named=differing, note=_note(corners, len(named)), words=words)


def _judged(problem: SearchProblem, goal: int) -> SearchProblem:
    """A problem with one objective, members and draws judged by their mean."""
    if hasattr(problem, "members"):
        one = problem.goals[goal]  # type: ignore[attr-defined]
        return replace(problem, objectives=(one,), goals=(one,), measure="mean", quantile=None, own_members=None, own_draws=None)  # type: ignore[call-arg]
    return replace(problem, objectives=(problem.objectives[goal],), columns=())


def _candidates(run: PlannedSearch, best: BestOfKinds) -> Iterator[Mapping[str, Any]]:
    """The best designs of a search: of all, and of the first kinds of each choice, each once."""
    seen: set[int] = set()
    mine = {key: found for key, found in best.items() if key[0] == run.number}
    for path in ("", *(option.path for option in run.problem.space.options)):
        order = sorted((found for key, found in mine.items() if key[1] == path), key=lambda pair: pair[0])
        for _, row in order[:KINDS]:
            if row["id"] not in seen:
                seen.add(row["id"])
                yield row


def _names(run: PlannedSearch, row: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a candidate from others: swept values, its search, and its choices."""
    return {**run.point, SEARCH: run.name, **{option.path: row[option.path] for option in run.problem.space.options}}


def _note(corners: Sequence[Corner], count: int) -> str:
    """What is approximated."""
    members, numbers = any(isinstance(one, MembersCorner) for one in corners), any(one.problem.space.dimensions for one in corners)
    fitted = "their numbers and shares are as they were found" if members or not numbers else "their numbers and shares are refined"
    return OF_A_SEARCH.format(count=count, kinds=KINDS, fitted=fitted) + (OF_MEMBERS if members else "")
