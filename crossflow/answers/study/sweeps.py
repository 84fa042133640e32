"""Points of a study that do not depend on one another: a sweep's combinations, each perhaps with draws of uncertain numbers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.parameters import Parameter, uncertain
from crossflow.answers.explanation.uncertainty import GENERATIONS, drawn_together, draws, entry_of, quantiles, technology_of
from crossflow.answers.points import Together, by_path, technology_at
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import absent
from crossflow.answers.search.division import SPREAD, BudgetDivision, Seen
from crossflow.answers.search.evolution import Evolved
from crossflow.answers.study import parquet, records
from crossflow.answers.study.spec import Redivide, StudyFile, Uncertainty, money, recorded
from crossflow.answers.workers import Here, Processes, Workers
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError

# Points a task: boundaries depend neither on the workers nor on resuming, so that the same study gives the same bytes.
# Small studies show progress often; in large ones a task is long enough to pay for its way to another process.
TASK, LARGE_TASK, LARGE = 512, 4096, 50_000
BAND = "error_band.p90"  # which ties are told by, also of points from an earlier run
SEARCHED = 128  # points of a task whose budgets are divided anew
PLANNED = 1  # of one whose strategy is the planner's, which takes a second or so


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of swept values, by number, the last path changing fastest; `draws` of each.

    Values are by path, or names of settings that change `together`.
    """

    values: Mapping[str, Sequence[Any]]
    together: Mapping[str, Together] = field(default_factory=dict)
    draws: int = 1
    searched: bool = False  # whether budgets are divided anew at every point
    planned: bool = False  # whether the strategy of every point is the planner's

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of a scenario that are swept, alone or with others."""
        return tuple(by_path({name: values[:1] for name, values in self.values.items()}, self.together))

    @property
    def points(self) -> int:
        """Combinations."""
        return int(np.prod([len(values) for values in self.values.values()], dtype=np.int64))

    def __len__(self) -> int:
        return self.points * self.draws

    @property
    def task(self) -> int:
        """Rows of one task."""
        if self.draws == 1 and (self.planned or self.searched):
            return PLANNED if self.planned else SEARCHED
        return TASK if len(self) < LARGE or self.searched else LARGE_TASK

    def parts(self) -> list[tuple[int, int]]:
        """First row and end of every task; where there are draws, no task holds those of two points."""
        whole = len(self) if self.draws == 1 else self.draws
        starts = [(first, start) for first in range(0, len(self), whole) for start in range(0, whole, self.task)]
        return [(first + start, first + min(start + self.task, whole)) for first, start in starts]

    def given(self, first: int, end: int) -> dict[str, list[Any]]:
        """Values of the points of rows, as the study names them."""
        sizes = [len(values) for values in self.values.values()]
        index = np.unravel_index(np.arange(first, end) // self.draws, sizes) if sizes else ()
        return {path: [values[i] for i in row] for (path, values), row in zip(self.values.items(), index, strict=True)}

    def point(self, number: int) -> dict[str, Any]:
        """Values of one combination, as the study names them."""
        return {path: values[0] for path, values in self.given(number * self.draws, number * self.draws + 1).items()}

    def settings(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Values of one combination by path."""
        return {path: values[0] for path, values in by_path({name: [value] for name, value in point.items()}, self.together).items()}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Draws of uncertain numbers, the same for every point."""

    numbers: tuple[Parameter, ...]
    settings: Uncertainty
    entries: tuple[str, ...] = ()  # technologies of the numbers, in the order of generations

    def variables(self, start: int, count: int) -> dict[str, Array]:
        """What the draws of a task vary, from a seed of their own: quantiles by technology, or the numbers themselves."""
        seed = (self.settings.seed, start)
        if self.settings.numbers == "independent":
            return draws(self.numbers, count, self.settings.distribution, seed)
        return quantiles(self.entries, count, self.settings.correlation, seed)

    def every(self) -> dict[str, Array]:
        """All draws, as a sweep has them: every number by path, shape (samples,)."""
        parts = [self.drawn(first, end - first) for first, end in Grid(values={}, draws=self.settings.samples).parts()]
        return {path: np.concatenate([part[path] for part in parts]) for path in parts[0]}

    def drawn(self, start: int, count: int) -> dict[str, Array]:
        """The draws of a task: every number by path."""
        found = self.variables(start, count)
        return found if self.settings.numbers == "independent" else drawn_together(self.numbers, self.settings.distribution, found)


@dataclass(frozen=True, kw_only=True)
class SweepTask:
    """One task: rows from `first` on."""

    scenario: Scenario
    grid: Grid
    first: int
    end: int
    sampling: Sampling | None
    redivision: BudgetDivision | None
    settings: Redivide | None  # of the division
    division: Evolved | None  # of all swept points, where there are draws
    record: tuple[str, ...] | None
    needed: tuple[str, ...]
    as_blocks: bool = False  # whether its rows become columns of a block, not lines


@dataclass(frozen=True, kw_only=True)
class RowBlock:
    """What became of a task: its rows as text or as a block, and the columns that tables and plots need."""

    text: str | bytes
    columns: Mapping[str, Sequence[Any]]
    count: int


def tasks(
    scenario: Scenario,
    layout: Grid,
    sampling: Sampling | None,
    redivision: BudgetDivision | None,
    settings: Redivide | None,
    record: tuple[str, ...] | None,
    needed: tuple[str, ...],
    seen: Seen | None = None,
    as_blocks: bool = False,
) -> list[SweepTask]:
    """The tasks of a sweep; where draws divide budgets anew, the swept points are divided first, for the draws to start from."""
    division = None
    if redivision is not None and settings is not None and sampling is not None:
        points = replace(layout, draws=1)
        sizes = [len(values) for values in layout.values.values()]
        division = redivision.points(
            by_path(points.given(0, points.points), points.together), points.points, sizes, settings.evaluations, seen=seen
        )
    common: dict[str, Any] = {
        "scenario": scenario,
        "grid": layout,
        "sampling": sampling,
        "settings": settings,
        "record": record,
        "needed": needed,
        "as_blocks": as_blocks,
    }
    return [SweepTask(first=first, end=end, redivision=redivision, division=division, **common) for first, end in layout.parts()]


def evaluated(part: SweepTask, seen: Seen | None = None) -> RowBlock:
    """Evaluate the points of one task; `seen` is told the scores of designs on the way to them."""
    count = part.end - part.first
    named = part.grid.given(part.first, part.end)
    given: dict[str, Any] = by_path(named, part.grid.together)
    if part.grid.planned:
        from crossflow.answers.planning.each import with_plans

        given = with_plans(part.scenario, given)
    if part.sampling is not None:
        given |= part.sampling.drawn(part.first % part.grid.draws, count)
    divided = _divided(part, given, count, seen)
    given |= divided
    asked = None if part.record is None else {*part.record, *part.needed}
    points = {path: values for path, values in given.items() if path != SPREAD}
    score = evaluate(part.scenario, points, columns=asked)
    columns = score.columns()
    kept = columns if part.record is None else {name: columns.get(name, np.full(count, absent(name))) for name in part.record}
    numbers = {records.in_si(path, score.units[path]): score.points[path] for path in part.grid.paths if path in score.units}
    table = {"id": np.arange(part.first, part.end), **named, **given, **kept, **numbers}
    shown = {**columns, **table}
    text = parquet.block_of(table) if part.as_blocks else records.to_lines(table)
    return RowBlock(text=text, columns={name: shown[name] for name in part.needed if name in shown}, count=count)


def _divided(part: SweepTask, given: Mapping[str, Sequence[Any]], count: int, seen: Seen | None) -> dict[str, Array]:
    """What is chosen for each row by path, and how far ends of the search differ there; nothing where nothing is divided anew."""
    redivision, settings = part.redivision, part.settings
    if redivision is None or settings is None:
        return {}
    if part.division is None:
        sizes = [len(values) for values in part.grid.values.values()]
        found = redivision.points(given, count, _inner(sizes, part.first, count), settings.evaluations, part.first, seen)
    else:
        point = part.first // part.grid.draws
        known = part.division.designs[:, point : point + 1]
        of_point = part.division
        spread, still = (None if one is None else np.repeat(one[point], count) for one in (of_point.spread, of_point.still))
        found = Evolved(designs=np.repeat(known, count, axis=1), merit=np.zeros(count), spread=spread, still=still)
        if settings.each == "draw":
            anew = redivision.about(given, known, count, settings.draw_evaluations, part.first, seen)
            found = replace(anew, spread=spread, still=still)
    spread = np.zeros(count) if found.spread is None else found.spread
    unknown = np.zeros(count, dtype=bool) if found.still is None else found.still
    return {**redivision.values(found.designs), SPREAD: np.where(unknown, np.nan, np.expm1(spread))}


def _inner(sizes: Sequence[int], first: int, count: int) -> tuple[int, ...]:
    """Sizes of the grid that rows of one task make; a row of points where a task begins or ends within a grid."""
    return tuple(sizes) if first == 0 and count == int(np.prod(sizes, dtype=np.int64)) else (count,)


def sampling(settings: Uncertainty, scenarios: Sequence[Scenario], values: Mapping[str, Sequence[Any]]) -> Sampling:
    """The uncertain numbers of some scenarios, those behind every technology that a study varies among them, less what it varies itself.

    Raises CrossflowError where none of them has any.
    """
    numbers = tuple(number for number in numbers_of(scenarios, values, settings.parameters) if number.path not in values)
    if not numbers:
        raise CrossflowError("uncertainty: every uncertain number is swept")
    return Sampling(numbers=numbers, settings=settings, entries=_generations(numbers, scenarios[0]))


def numbers_of(scenarios: Sequence[Scenario], values: Mapping[str, Sequence[Any]], wanted: Sequence[str] | None) -> tuple[Parameter, ...]:
    """Uncertain numbers of some scenarios, each once; CrossflowError where none of them has any."""
    found: dict[str, Parameter] = {}
    problems: list[CrossflowError] = []
    for scenario in scenarios:
        chosen = {path: names for path, names in values.items() if technology_at(scenario, path)[1] is not None}
        try:
            found = {**{p.path: p for p in uncertain(scenario, chosen, wanted)}, **found}
        except CrossflowError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    return tuple(found.values())


def _generations(numbers: Sequence[Parameter], scenario: Scenario) -> tuple[str, ...]:
    """Technologies of numbers; those of a section of the library in its order, which is that of generations."""
    sections = {section: getattr(scenario.library, section.removeprefix("techlib.")) for section in GENERATIONS}
    place = {f"{section}.{name}": i for section, held in sections.items() for i, name in enumerate(held)}
    return tuple(sorted(dict.fromkeys(entry_of(n.path) for n in numbers), key=lambda entry: place.get(technology_of(entry), -1)))


def what_is_recorded(spec: StudyFile, known: Sequence[str]) -> tuple[str, ...] | None:
    """Columns of a row beside its values, of those that a score has; None for all of them."""
    if spec.record == "all" or (spec.record is None and spec.uncertainty is None):
        return None
    always = ("feasible", "bound_by", "trust", BAND, "reason")
    usual = [*([] if spec.columns or spec.record else ["step_time_s"]), *money(spec, known)]
    return tuple(dict.fromkeys([*recorded(spec, known), *usual, *always]))


def run(parts: Sequence[SweepTask], done: Mapping[int, Any], workers: Workers, seen: Seen | None = None) -> Iterator[tuple[int, RowBlock]]:
    """Blocks of the tasks that are not done yet, by the first row of each, as they come.

    A task alone is done in this process, which has as much of it as a pool. In this process `seen` is told scores on the way to a block.
    """
    left = [part for part in parts if part.first not in done]
    hands = Here() if len(left) == 1 and isinstance(workers, Processes) else workers
    divides = isinstance(hands, Here) and any(part.redivision is not None for part in left)
    function = functools.partial(evaluated, seen=seen) if divides else evaluated
    for number, block in hands.completed(function, left):
        yield left[number].first, block


def finished(path: Path, parts: Iterable[SweepTask]) -> list[tuple[int, tuple[int, int]]]:
    """Tasks whose rows are all in a file, by first row, each with the place of its rows, which stand together."""
    ends = {part.first: part.end for part in parts}
    if path.name == records.BLOCKS:
        return parquet.finished(path, ends)
    found: dict[int, tuple[int, int]] = {}
    first = start = following = -1
    for offset, line in records.lines(path):
        number, _ = records.numbers_of(line)
        if number in ends:
            first, start, following = number, offset, number
        following = following + 1 if number == following else -1
        if following == ends.get(first):
            found[first] = (start, offset + len(line) - start)
    return sorted(found.items())
