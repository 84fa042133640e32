"""Points of a study that do not depend on one another: a sweep's combinations, each perhaps with draws of uncertain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.arrays import Array
from crossflow.errors import CrossflowError
from crossflow.evaluation import evaluate
from crossflow.explanation.parameters import Parameter, uncertain
from crossflow.explanation.uncertainty import draws
from crossflow.points import split
from crossflow.scenario import Scenario
from crossflow.score import absent
from crossflow.study import records
from crossflow.study.spec import StudyFile, Uncertainty, recorded
from crossflow.study.workers import Workers

# Points a task: boundaries depend neither on the workers nor on resuming, so that the same study gives the same bytes.
# Small studies show progress often; in large ones a task is long enough to pay for its way to another process.
TASK, LARGE_TASK, LARGE = 512, 4096, 50_000


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of swept values, by number, the last path changing fastest; `draws` of each."""

    values: Mapping[str, Sequence[Any]]
    draws: int = 1

    @property
    def points(self) -> int:
        """Combinations."""
        return int(np.prod([len(values) for values in self.values.values()], dtype=np.int64))

    def __len__(self) -> int:
        return self.points * self.draws

    @property
    def task(self) -> int:
        """Rows of one task."""
        return TASK if len(self) < LARGE else LARGE_TASK

    def parts(self) -> list[tuple[int, int]]:
        """First row and end of every task; where there are draws, no task holds those of two points."""
        whole = len(self) if self.draws == 1 else self.draws
        starts = [(first, start) for first in range(0, len(self), whole) for start in range(0, whole, self.task)]
        return [(first + start, first + min(start + self.task, whole)) for first, start in starts]

    def given(self, first: int, end: int) -> dict[str, list[Any]]:
        """Values of the points of rows by path."""
        sizes = [len(values) for values in self.values.values()]
        index = np.unravel_index(np.arange(first, end) // self.draws, sizes) if sizes else ()
        return {path: [values[i] for i in row] for (path, values), row in zip(self.values.items(), index, strict=True)}

    def point(self, number: int) -> dict[str, Any]:
        """Values of one combination."""
        return {path: values[0] for path, values in self.given(number * self.draws, number * self.draws + 1).items()}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Draws of uncertain numbers, the same for every point."""

    numbers: tuple[Parameter, ...]
    settings: Uncertainty

    def drawn(self, start: int, count: int) -> dict[str, Array]:
        """The draws of a task, by path, from a seed of their own."""
        return draws(self.numbers, count, self.settings.distribution, (self.settings.seed, start))


@dataclass(frozen=True, kw_only=True)
class SweepTask:
    """One task: rows from `first` on."""

    scenario: Scenario
    grid: Grid
    first: int
    end: int
    sampling: Sampling | None
    record: tuple[str, ...] | None
    needed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RowBlock:
    """What became of a task: its rows as text, and the columns that tables and plots need."""

    text: str
    columns: Mapping[str, Sequence[Any]]
    count: int


def evaluated(part: SweepTask) -> RowBlock:
    """Evaluate the points of one task."""
    count = part.end - part.first
    given: dict[str, Any] = dict(part.grid.given(part.first, part.end))
    if part.sampling is not None:
        given |= part.sampling.drawn(part.first % part.grid.draws, count)
    asked = None if part.record is None else {*part.record, *part.needed}
    columns = evaluate(part.scenario, given, columns=asked).columns()
    kept = columns if part.record is None else {name: columns.get(name, np.full(count, absent(name))) for name in part.record}
    table = {"id": np.arange(part.first, part.end), **given, **kept}
    shown = {**columns, **table}
    return RowBlock(text=records.to_lines(table), columns={name: shown[name] for name in part.needed if name in shown}, count=count)


def sampling(spec: StudyFile, scenario: Scenario, values: Mapping[str, Sequence[Any]]) -> Sampling | None:
    """The uncertain numbers of a study, those behind every technology that it sweeps among them."""
    if spec.uncertainty is None:
        return None
    chosen = {role: list(choice.names) for role, choice in split(scenario, dict(values)).choices.items()} if values else {}
    numbers = tuple(p for p in uncertain(scenario, chosen, spec.uncertainty.parameters) if p.path not in values)
    if not numbers:
        raise CrossflowError("uncertainty: every uncertain number is swept")
    return Sampling(numbers=numbers, settings=spec.uncertainty)


def what_is_recorded(spec: StudyFile, known: Sequence[str]) -> tuple[str, ...] | None:
    """Columns of a row beside its values, of those that a score has; None for all of them."""
    if spec.record == "all" or (spec.record is None and spec.uncertainty is None):
        return None
    always = ("feasible", "bound_by", "reason")
    return tuple(dict.fromkeys([*recorded(spec, known), *([] if spec.columns or spec.record else ["step_time_s"]), *always]))


def run(parts: Sequence[SweepTask], done: Mapping[int, Any], workers: Workers) -> Iterator[tuple[int, RowBlock]]:
    """Blocks of the tasks that are not done yet, by the first row of each, as they come."""
    left = [part for part in parts if part.first not in done]
    for number, block in workers.completed(evaluated, left):
        yield left[number].first, block


def finished(path: Any, parts: Iterable[SweepTask]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Tasks whose rows are all in a file, by first row, each with the places of its rows in order."""
    first_of = np.array([part.first for part in parts], dtype=np.int64)
    sizes = {part.first: part.end - part.first for part in parts}
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for offset, length, row in records.scan(path):
        position = int(np.searchsorted(first_of, row["id"], side="right")) - 1
        if position >= 0 and row["id"] - first_of[position] < sizes[int(first_of[position])]:
            found.setdefault(int(first_of[position]), {})[row["id"]] = (offset, length)
    return [(first, [places[id_] for id_ in sorted(places)]) for first, places in sorted(found.items()) if len(places) == sizes[first]]
