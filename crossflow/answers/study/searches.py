"""Searches of a study: one for each name and swept point, every evaluated design on disk at once, resumed by replay."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.points import varied, written
from crossflow.answers.scenario import Scenario, from_document, moved
from crossflow.answers.score import unit_of
from crossflow.answers.search.driver import search, solve
from crossflow.answers.search.goals import DesignOutcome, Losses, OwnCase
from crossflow.answers.search.gradient import planned as planned_steps
from crossflow.answers.search.nested import InnerResult, InnerSearch
from crossflow.answers.search.oracle import Best
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.settings import ExhaustiveSettings, GivenSettings, GradientSettings
from crossflow.answers.search.space import Designs
from crossflow.answers.study import records
from crossflow.answers.study.planning import PlannedSearch
from crossflow.answers.study.tables import PointsTable, numbers
from crossflow.answers.workers import Workers, in_order
from crossflow.base import files
from crossflow.base.arrays import plain
from crossflow.base.files import Document
from crossflow.base.results import later
from crossflow.base.units import show

if TYPE_CHECKING:
    from crossflow.answers.search.own import OwnBests, Shared
    from crossflow.answers.search.portfolio import PortfolioProblem
else:
    OwnBests, Shared = later("crossflow.answers.search.own", "OwnBests", "Shared")
    PortfolioProblem = later("crossflow.answers.search.portfolio", "PortfolioProblem")

BEST_FOR_ALL = "best for all"  # how the best design of a search is named beside own bests
Reporter = Callable[[int, int | None, str], None]


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A finished search."""

    run: PlannedSearch
    best: Best
    losses: Losses | None = None  # of the best design and of the own bests of members and draws, against these

    @property
    def convergence(self) -> list[tuple[int, float, float | None]]:
        """Evaluations, the first objective of the best design by then, and the time in seconds where it is measured.

        From the first design that keeps all constraints on.
        """
        improvements, seconds = self.best.improvements, self.best.seconds or (None,) * len(self.best.improvements)
        every = [(*improvement, at) for improvement, at in zip(improvements, seconds, strict=True) if np.isfinite(improvement[1])]
        kept = [(evaluations, value, at) for evaluations, value, feasible, at in every if feasible]
        return kept or [(evaluations, value, at) for evaluations, value, _, at in every]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "search": self.run.name,
            "searcher": self.run.settings.searcher,
            "seed": self.run.settings.seed,
            "point": dict(self.run.point),
            "evaluations": self.best.evaluations,
            "pruned": self.best.pruned,
            "spread": self.best.spread,
            "best": self.best.row,
            "front": list(self.best.front),
            "convergence": list(improvements(self)),
            **({} if self.losses is None else {"losses": list(loss_rows(self.losses))}),
        }


# ------------------------------------------------------------------------------------------ running


def expected(run: PlannedSearch) -> int | None:
    """Designs that a search will evaluate, None where nobody can tell."""
    if isinstance(run.settings, GradientSettings) and not run.problem.space.options:
        whole = planned_steps(run.problem.space, run.settings)
        return min(whole, run.settings.evaluations or whole)
    if isinstance(run.settings, ExhaustiveSettings):
        whole = run.problem.space.size
        return min(whole, run.settings.evaluations or whole)
    return 1 if isinstance(run.settings, GivenSettings) else run.settings.designs(len(run.problem.objectives))


@dataclass(kw_only=True)
class Book:
    """Keeps the file of points while searches write to it, with the columns that tables and plots need."""

    file: records.PointsFile
    table: PointsTable
    report: Reporter | None
    total: int | None
    rows: int = 0
    evaluations: int = 0
    lead: tuple[int, float] = (-1, np.inf)

    def write(self, run: PlannedSearch, columns: Mapping[str, Any]) -> None:
        """Append the rows of one batch of a run."""
        count = len(columns["evaluations"])
        whole: dict[str, Any] = {
            "id": np.arange(self.rows, self.rows + count),
            "run": np.full(count, run.number),
            "search": [run.name] * count,
        }
        whole |= {path: [value] * count for path, value in {**run.point, **run.there}.items()} | dict(columns)
        whole |= {name: [value] * count for name, value in _in_si(run).items()}
        self.file.append(self.rows, records.to_lines(whole))
        self.add(run, whole, count)

    def add(self, run: PlannedSearch, columns: Mapping[str, Any], count: int) -> None:
        """Note rows of a run that are on disk."""
        self.table.add(self.rows, columns, count)
        self.rows += count
        self.evaluations += int(np.sum(columns["evaluations"]))
        if self.report is not None:
            self.report(self.evaluations, self.total, self._best(run, columns))

    def say(self, words: str) -> None:
        """Report what is done between designs of the record."""
        if self.report is not None:
            self.report(self.evaluations, self.total, words)

    def end(self, expected: int | None, evaluations: int) -> None:
        """Note that a search ended, perhaps after fewer designs than were expected."""
        if self.total is not None and expected is not None:
            self.total += evaluations - expected

    def _best(self, run: PlannedSearch, columns: Mapping[str, Any]) -> str:
        """The best first objective of the run so far, in words."""
        objective = run.problem.objectives[0]
        values, sign = numbers(columns[objective.name]), objective.sign
        kept = sign * values[np.asarray(columns["feasible"], dtype=bool) & np.isfinite(values)]
        least = min(float(kept.min(initial=np.inf)), self.lead[1] if self.lead[0] == run.number else np.inf)
        self.lead = (run.number, least)
        return f"{run.title}: {show(sign * least, unit_of(objective.name)) if np.isfinite(least) else '-'}"


def _in_si(run: PlannedSearch) -> dict[str, float]:
    """Swept quantities of a run as numbers, by column."""
    found = {path: varied(run.problem.scenario, path) for path in run.there}
    return {
        records.in_si(path, quantity.unit): float(quantity.read(run.there[path])[0])
        for path, quantity in found.items()
        if quantity is not None and isinstance(run.there[path], str)
    }


@dataclass(kw_only=True)
class _Recorder:
    """Records one run: first what an earlier run left, as far as it was used, then what comes."""

    book: Book
    run: PlannedSearch
    left: records.Rows
    begun: bool = False
    fresh: bool = False

    def __call__(self, recorded: int, columns: Mapping[str, Any]) -> None:
        self.begin(recorded)
        self.fresh = True
        self.book.write(self.run, columns)

    def begin(self, used: int) -> None:
        """Keep the rows that answered questions, and cut off those of a batch that was not whole."""
        if self.begun:
            return
        self.begun = True
        if used < len(self.left):
            self.fresh = True
            self.book.file.cut(self.left.offset(used))
        for start in range(0, used, records.BLOCK):
            kept = list(self.left[start : min(start + records.BLOCK, used)])
            self.book.add(self.run, {name: [row[name] for row in kept] for name in kept[0]}, len(kept))


def run_all(runs: Sequence[PlannedSearch], book: Book, workers: Workers, study: str, timed: bool) -> Iterator[SearchResult]:
    """Run searches one after the other; designs and inner searches that do not depend on one another are shared out.

    A search starts from the best designs of those before it at its swept point that may change less than it does, so that it never
    ends worse than they do.
    """
    left = _left(book.file, len(runs))
    nothing = records.Rows(book.file.path, [])
    fresh = False

    def mapper(problem: SearchProblem, batches: Iterable[Designs]) -> Iterator[tuple[Designs, DesignOutcome]]:
        tasks = ((problem, designs) for designs in batches)
        near = getattr(problem, "listed", None) is not None  # which is no work, and more to send than to look up
        yield from map(_evaluated, tasks) if near else in_order(workers.completed(_evaluated, tasks))

    def shared(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for found in in_order(workers.completed(function, tasks)):
            book.say("own bests of members and draws")
            yield found

    def solved(tasks: Iterable[InnerSearch]) -> Iterator[InnerResult]:
        yield from in_order(workers.completed(solve, tasks))

    best_of: list[SearchResult] = []
    judged: Judgement | None = None
    for run in runs:
        judged = judgement(run, judged, shared)
        problem = run.problem if judged is None else judged.problem(run)
        known = [
            *run.start,
            *(() if judged is None else judged.starts),
            *(row for result in best_of if smaller(result.run, run) and (row := result.best.row) is not None),
        ]
        rows = nothing if fresh else left[run.number]
        recorder = _Recorder(book=book, run=run, left=rows)
        title = "-".join([study, run.name, *(str(value) for value in run.point.values())])
        best = search(
            problem, run.settings, name=title, record=recorder, replay=rows, mapper=mapper, known=known, timed=timed, solved=solved
        )
        recorder.begin(best.rows)
        fresh |= recorder.fresh
        book.end(expected(run), best.evaluations)
        best_of.append(SearchResult(run=run, best=best, losses=None if judged is None else judged.losses(problem, best)))
        yield best_of[-1]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Own bests of the members and draws of a swept point, which its searches have in common."""

    point: Mapping[str, Any]
    whole: PortfolioProblem  # over the whole space
    bests: OwnBests | None  # None where the one member without draws is the problem itself

    def problem(self, run: PlannedSearch) -> SearchProblem:
        """The problem of a search, with what own bests reach."""
        known: dict[str, Any] = {name: getattr(self.whole, name) for name in ("own_members", "own_draws")}
        if isinstance(run.settings, ExhaustiveSettings) and run.problem.space == self.whole.space:
            known["listed"] = self.whole.listed
        return replace(run.problem, **known)

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Designs for single cases that are best for all, by path."""
        if self.bests is None:
            return []
        table = self.whole.space.values(self.bests.starts)
        return [{path: plain(values[i]) for path, values in table.items()} for i in range(len(self.bests.starts))]

    def losses(self, problem: SearchProblem, best: Best) -> Losses | None:
        """How far the best design of a search and each own best are from these; None where nothing was found."""
        from crossflow.answers.search.own import losses

        design = None if best.row is None or self.bests is None else problem.space.located(best.row)
        return None if design is None or self.bests is None else losses(problem, self.bests, design)  # type: ignore[arg-type]


def judgement(run: PlannedSearch, before: Judgement | None, shared: Shared) -> Judgement | None:
    """Own bests of a search's swept point, those of the search before it where it is the same point."""
    if run.whole is None or run.efforts is None:
        return None
    if before is not None and before.point == run.point:
        return before
    from crossflow.answers.search.own import own_bests  # which few studies need

    whole, bests = own_bests(run.whole, run.efforts, shared)
    return Judgement(point=run.point, whole=whole, bests=bests)


def smaller(one: PlannedSearch, other: PlannedSearch) -> bool:
    """Whether one search, at the same point, may change less than another."""
    own = set() if isinstance(one.settings, GivenSettings) else set(one.problem.space.paths)
    return one.point == other.point and own < set(other.problem.space.paths)


def _evaluated(task: tuple[SearchProblem, Designs]) -> tuple[Designs, DesignOutcome]:
    problem, designs = task
    return designs, problem.evaluate(designs)


def _left(file: records.PointsFile, runs: int) -> list[records.Rows]:
    """Rows that an earlier run left of each search; whatever follows the last good one is cut off."""
    places = [array("q") for _ in range(runs)]
    end = 0
    for expected, (offset, line) in enumerate(records.lines(file.path)):
        number, run = records.numbers_of(line)
        if number != expected or not 0 <= run < runs:
            break
        places[run].extend((offset, len(line)))
        end = offset + len(line)
    file.cut(end)
    return [records.Rows(file.path, own) for own in places]


# ------------------------------------------------------------------------------------------ what is written of them


def recalled(runs: Sequence[PlannedSearch], path: Path) -> list[SearchResult]:
    """Results of finished searches, from the file of their best designs."""
    found = files.json_data(path)
    return [SearchResult(run=run, best=_best(run, told), losses=_losses(told)) for run, told in zip(runs, found, strict=True)]


def _losses(told: Mapping[str, Any]) -> Losses | None:
    """Losses as `loss_rows` tells them; None where there are none."""
    if "losses" not in told:
        return None
    names = [(row["case"], row["draw"]) for row in told["losses"]]
    cases = list(dict.fromkeys(names))
    loss = np.array([np.inf if row["loss"] is None else row["loss"] for row in told["losses"]], dtype=float).reshape(-1, len(cases))
    own = [np.nan if row["own_best"] is None else row["own_best"] for row in told["losses"][: len(cases)]]
    known = tuple(OwnCase(name=name, number=i, draw=draw) for i, (name, draw) in enumerate(cases))
    return Losses(cases=known, own=np.array(own, dtype=float), loss=loss)


def _best(run: PlannedSearch, told: Mapping[str, Any]) -> Best:
    """What a search has found, as `SearchResult.to_dict` tells it."""
    row, steps = told["best"], told["convergence"]
    kept = row is not None and row["violation"] == 0
    nothing = [(told["evaluations"], run.problem.objectives[0].sign * np.inf, False)]
    return Best(
        evaluations=told["evaluations"],
        row=row,
        front=tuple(told["front"]),
        improvements=tuple((step["evaluations"], step["best"], kept) for step in steps) or tuple(nothing),
        seconds=tuple(step["seconds"] for step in steps if "seconds" in step),
        pruned=told["pruned"],
        rows=0,  # none of this run
        spread=told["spread"],
    )


def best_scenario(problem: SearchProblem, result: SearchResult, folder: Path) -> str:
    """The best design of a search, in the scenario of a problem, as a scenario file of a folder."""
    return files.yaml_text(moved(design(problem, result.best.row or {}), problem.scenario, folder))


def design(problem: SearchProblem, row: Mapping[str, Any]) -> Any:
    """Plain data of the scenario that a row of a search is of."""
    data = problem.scenario.document.data
    for path in problem.space.paths:
        if row.get(path) is not None:
            data = files.replace(data, tuple(path.split(".")), written(problem.scenario, path, row[path]), path)
    return data


def designed(problem: SearchProblem, row: Mapping[str, Any]) -> Scenario:
    """The scenario that a row of a search is of."""
    start = problem.scenario
    return from_document(Document(file=start.document.file, data=design(problem, row)), start.base, start.name, like=start)


def loss_rows(found: Losses) -> Iterator[dict[str, Any]]:
    """Rows of losses.csv: how far the best design, and the own best of each case, are from the own best of each case."""
    for name, row in zip((BEST_FOR_ALL, *(case.name for case in found.cases)), found.loss, strict=True):
        for case, own, loss in zip(found.cases, found.own, row, strict=True):
            yield {"design": name, "case": case.name, "draw": case.draw, "own_best": plain(own), "loss": plain(loss)}


def convergence_rows(results: Sequence[SearchResult]) -> Iterator[dict[str, Any]]:
    """Rows of convergence.csv: every improvement of every search."""
    for result in results:
        for row in improvements(result):
            yield {"search": result.run.name, **result.run.point, **row}


def improvements(result: SearchResult) -> Iterator[dict[str, Any]]:
    """Every improvement of one search."""
    for evaluations, best, seconds in result.convergence:
        yield {"evaluations": evaluations, "best": best, **({} if seconds is None else {"seconds": seconds})}
