"""The oracle that searchers question: it evaluates designs, keeps to the budget, and remembers what is best.

Searchers are deterministic in their seed and in the answers, so that a search is resumed by answering its first questions
from the record instead of evaluating them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.search.deadline import Deadline
from crossflow.answers.search.goals import DesignOutcome, joined
from crossflow.answers.search.pareto import beaten, non_dominated
from crossflow.answers.search.space import Designs
from crossflow.base.arrays import Array, Mask, plain
from crossflow.base.errors import CrossflowError
from crossflow.base.results import later

if TYPE_CHECKING:
    from crossflow.answers.search.problem import SearchProblem
else:
    SearchProblem = later("crossflow.answers.search.problem", "SearchProblem")

Row = Mapping[str, Any]
Recorder = Callable[[int, Mapping[str, Any]], None]  # of the rows recorded before, and the columns of a batch
# Evaluates batches of designs, perhaps in other processes, and gives the outcomes in order.
Mapper = Callable[["SearchProblem", Iterable[Designs]], Iterator[tuple[Designs, DesignOutcome]]]


NOTHING = Designs(continuous=np.empty((0, 0)), discrete=np.empty((0, 0), dtype=np.intp))


class BudgetSpent(Exception):  # noqa: N818  (an end, not an error)
    """The search has used its evaluations or its time."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """What a search has found."""

    evaluations: int  # designs evaluated
    # the best design with its figures, by the first objective; among designs that miss constraints, the one that misses them least. None
    # where nothing was evaluated.
    row: Row | None
    front: tuple[Row, ...]  # designs that no other beats in all objectives, where there are several; only those that keep all constraints
    # evaluations so far, the first objective of the best design by then, and whether it keeps all constraints
    improvements: tuple[tuple[int, float, bool], ...]
    seconds: tuple[float, ...]  # time that the search had taken at each improvement; none where it is not measured. [s]
    pruned: int  # designs that were left out because they cannot be best
    rows: int  # rows of the record, those of earlier runs among them
    # by how much ends of the search that did not see each other differ in the first objective; None where it has no such ends. [1]
    spread: float | None = None


@dataclass(kw_only=True)
class Oracle:
    """Answers a search's questions; one a search."""

    problem: SearchProblem  # what is searched
    evaluations: int | None = None  # the budget; None for no limit
    deadline: Deadline | None = None  # until when it may search; None for no limit
    record: Recorder | None = None  # called with every batch's columns
    timed: bool = False  # whether rows record the time that the search had taken
    replay: Sequence[Row] = ()  # rows of an earlier run, in order, that answer the first questions
    known: Designs = field(default_factory=lambda: NOTHING)  # designs to start from
    mapper: Mapper | None = None  # evaluates batches that do not depend on one another
    spent: int = 0
    pruned: int = 0
    spread: float | None = None  # as of `Best`
    coordinates: Array | None = None  # of the best design evaluated, shape (dimensions,); None where the record gave it
    _replayed: int = 0
    _rows: int = 0
    _best: tuple[float, float] = (np.inf, np.inf)
    _row: Row | None = None
    _front: list[Row] = field(default_factory=list)
    _losses: Array = field(default_factory=lambda: np.empty((0, 0)))
    _improvements: list[tuple[int, float, bool]] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)
    _begun: float = field(default_factory=time.perf_counter)

    def __call__(self, designs: Designs) -> DesignOutcome:
        """Outcome of designs; BudgetSpent when the budget ends before or within them, after what it still allowed."""
        allowed = self._allowed(len(designs))
        asked = designs if allowed == len(designs) else designs.take(slice(allowed))
        outcome = self._recalled(asked)
        if outcome is None:
            outcome = self._evaluated(asked)
            self._keep(asked, outcome, np.ones(len(asked), dtype=int))
        if allowed < len(designs):
            raise BudgetSpent
        return outcome

    def _evaluated(self, designs: Designs) -> DesignOutcome:
        """Outcome of designs, in parts where each is many points."""
        parts = list(self.problem.parts(designs))
        return (
            joined([outcome for _, outcome in (self.mapper or _in_turn)(self.problem, parts)])
            if len(parts) > 1
            else self.problem.evaluate(designs)
        )

    def each(self, batches: Iterable[Designs]) -> None:
        """Evaluate batches that do not depend on one another, in order, as many as the budget allows."""
        waiting = iter(batches)
        for designs in waiting:
            if len(designs) > self._left(len(designs)) or self._recalled(designs) is None:
                self._rest(designs, waiting)
                return

    def _rest(self, first: Designs, others: Iterator[Designs]) -> None:
        """Evaluate the batches that no record answers."""
        asked = self._within_budget(first, others)
        for designs, outcome in (self.mapper or _in_turn)(self.problem, asked):
            self._keep(designs, outcome, np.ones(len(designs), dtype=int))
            if self._late():
                raise BudgetSpent

    def _within_budget(self, first: Designs, others: Iterator[Designs]) -> Iterator[Designs]:
        left = self.remaining
        designs: Designs | None = first
        while designs is not None and left > 0:
            yield designs if len(designs) <= left else designs.take(slice(int(left)))
            left -= len(designs)
            designs = next(others, None)

    def found(self, designs: Designs, evaluations: Sequence[int], spreads: Sequence[float | None]) -> DesignOutcome:
        """Outcome of designs that inner searches found with so many evaluations each, and the spreads of their ends."""
        outcome = self.problem.evaluate(designs)
        outcome = replace(outcome, rows={**outcome.rows, "spread": list(spreads)})
        self._keep(designs, outcome, np.array(evaluations, dtype=int))
        return outcome

    def adopt(self) -> None:
        """Take every row of the record for evaluated, though this search would not ask for them again."""
        if len(self.replay):
            self.recall(len(self.replay))

    # ------------------------------------------------------------------------------ budget

    @property
    def remaining(self) -> float:
        """Evaluations left."""
        return np.inf if self.evaluations is None else max(self.evaluations - self.spent, 0)

    def check(self) -> None:
        """BudgetSpent when nothing is left."""
        self._allowed(1)

    def _left(self, wanted: int) -> int:
        return int(min(wanted, self.remaining))

    def _late(self) -> bool:
        return self.deadline is not None and self._replayed >= len(self.replay) and self.deadline.passed

    def _allowed(self, wanted: int) -> int:
        left = self._left(wanted)
        if left <= 0 or (self._late() and self.spent):
            raise BudgetSpent
        return 1 if self._late() else left  # one design at least, so that there is something to tell

    # ------------------------------------------------------------------------------ the record

    def _recalled(self, designs: Designs) -> DesignOutcome | None:
        """The record's answer to a question, None where it has none; a batch that was cut short is asked again as a whole."""
        if self._replayed < len(self.replay):
            self._same(designs, self.replay[self._replayed])
        return self.recall(len(designs))

    def recall(self, count: int) -> DesignOutcome | None:
        """The outcome of the next `count` rows of the record, None where it ends before."""
        rows = list(self.replay[self._replayed : self._replayed + count])
        if len(rows) < count:
            self.replay = self.replay[: self._replayed]
            return None
        self._replayed += count
        self._rows += count
        outcome = self._outcome(rows)
        names = (*self.problem.space.paths, *self.problem.recorded, "spread", "evaluations", "seconds")
        kept = [{name: row[name] for name in names if name in row} for row in rows]
        self._update(outcome, [row["evaluations"] for row in rows], lambda i: kept[i])
        return outcome

    def _same(self, designs: Designs, row: Row) -> None:
        values = self.problem.space.values(designs.take(slice(1)))
        for path, value in values.items():
            if row.get(path) is not None and not _alike(row[path], value[0]):
                raise CrossflowError(
                    f"the record's points are not those of this search ({path} is {row[path]}, expected {value[0]});"
                    " run without --resume into another folder with --out"
                )

    def _outcome(self, rows: Sequence[Row]) -> DesignOutcome:
        objectives = np.array(
            [[np.inf if row[o.name] is None else row[o.name] for row in rows] for o in self.problem.objectives], dtype=float
        )
        return DesignOutcome(objectives=objectives, violation=np.array([row["violation"] for row in rows], dtype=float), rows={})

    def _keep(self, designs: Designs, outcome: DesignOutcome, evaluations: Array) -> None:
        """Record what was evaluated, and note what is best of it."""
        columns: dict[str, Any] = {**self._columns(designs), **outcome.rows, "evaluations": evaluations}
        if self.timed:
            columns["seconds"] = np.full(len(designs), time.perf_counter() - self._begun)
        if self.record is not None:
            self.record(self._rows, columns)
        self._rows += len(designs)
        leads = self._update(outcome, evaluations, lambda i: {name: plain(values[i]) for name, values in columns.items()})
        if leads is not None:
            self.coordinates = designs.continuous[:, leads]

    def _columns(self, designs: Designs) -> dict[str, Sequence[Any]]:
        """Values of the space's paths, None where a path has no meaning."""
        active = self.problem.space.active(designs.discrete)
        table = self.problem.space.values(designs)
        return {
            path: table[path] if on.all() else [value if is_on else None for value, is_on in zip(table[path], on, strict=True)]
            for path, on in zip(self.problem.space.paths, active, strict=True)
        }

    # ------------------------------------------------------------------------------ what is best

    @property
    def best(self) -> Best:
        """What was found so far."""
        return Best(
            evaluations=self.spent,
            row=self._row,
            front=tuple(self._front),
            improvements=tuple(self._improvements),
            seconds=tuple(self._seconds),
            pruned=self.pruned,
            rows=self._rows,
            spread=self.spread if self._row is None else self._row.get("spread", self.spread),
        )

    @property
    def incumbent(self) -> tuple[float, float]:
        """Violation and first loss of the best design so far."""
        return self._best

    @property
    def losses(self) -> Array:
        """Losses of the front, shape (objectives, designs)."""
        return self._losses

    def _update(self, outcome: DesignOutcome, evaluations: Sequence[int] | Array, row: Callable[[int], Row]) -> int | None:
        """Note what is best; which design that is, None where it is none of these."""
        losses = self.problem.losses(outcome)
        first = int(np.lexsort((losses[0], outcome.violation))[0])  # of those that miss constraints least, the one that leads
        reached = (float(outcome.violation[first]), float(losses[0, first]))
        better = reached < self._best
        if better:
            self._best, self._row = reached, row(first)
            spent, value = self.spent + int(np.sum(evaluations[: first + 1])), float(outcome.objectives[0, first])
            self._improvements.append((spent, value, reached[0] == 0.0))
            self._seconds += [self._row["seconds"]] if self._row is not None and "seconds" in self._row else []
        self.spent += int(np.sum(evaluations))
        if len(losses) > 1:
            self._extend_front(losses, outcome.violation == 0, row)
        return first if better else None

    def _extend_front(self, losses: Array, feasible: Mask, row: Callable[[int], Row]) -> None:
        known = self._losses.reshape(len(losses), -1)
        kept = np.flatnonzero(feasible)
        kept = kept[non_dominated(losses[:, kept])]
        kept = kept[~beaten(losses[:, kept], known)]
        left = ~beaten(known, losses[:, kept])
        self._front = [old for old, stays in zip(self._front, left, strict=True) if stays] + [row(int(i)) for i in kept]
        self._losses = np.concatenate([known[:, left], losses[:, kept]], axis=1)


def _in_turn(problem: SearchProblem, batches: Iterable[Designs]) -> Iterator[tuple[Designs, DesignOutcome]]:
    yield from ((designs, problem.evaluate(designs)) for designs in batches)


def _alike(recorded: Any, asked: Any) -> bool:
    """Whether values are equal but for the last digits, which libraries of linear algebra do not promise."""
    if isinstance(recorded, float) and isinstance(asked, float):
        return bool(np.isclose(recorded, asked, rtol=1e-6, atol=0.0))
    return bool(recorded == asked)
