"""Running a study: its points or its searches on some workers, each block on disk as soon as it is done."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from crossflow.answers.score import Score
from crossflow.answers.study import findings, parquet, records, searches, sweeps, tables
from crossflow.answers.study.headlines import Hinges
from crossflow.answers.study.planning import PlannedSearch
from crossflow.answers.study.plots import draw
from crossflow.answers.study.plots.view import View
from crossflow.answers.study.reading import Study, read_study
from crossflow.answers.study.searches import Reporter, SearchResult
from crossflow.answers.workers import Workers, workers
from crossflow.base import files, packages, provenance, versions
from crossflow.base.arrays import Array, Mask
from crossflow.base.errors import CrossflowError
from crossflow.base.locks import owning
from crossflow.base.names import file_name
from crossflow.base.packages import pandas
from crossflow.base.results import Guided
from crossflow.base.units import show

HINGES = "hinges.csv"  # beside the tables of a study, what its answer hangs on


@dataclass(frozen=True, kw_only=True)
class StudyResult(Guided):
    """A finished study and the files that it wrote; its rows are read when asked for."""

    study: Study
    view: View
    results: Sequence[SearchResult]
    comparisons: Sequence[Mapping[str, Any]]
    out: Path
    files: Sequence[Path]

    @property
    def summary(self) -> str:
        """One sentence: how many points, how many fit, the best."""
        return findings.summary(self.study, self.view, self.results)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, in order."""
        return list(self.rows_from())

    def rows_from(self, first: int = 0) -> Iterator[dict[str, Any]]:
        """Rows in order, from one on, read as they are asked for."""
        return _rows(self.out, first)

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Row of the best design: of the first search that found one, or of the fastest point that fits; None where none fits."""
        if self.study.runs:
            return next((result.best.row for result in self.results if result.best.row is not None), None)
        found = findings.fastest(self.study, self.view.columns)
        return next(self.rows_from(found.place)) if found.fits else None

    def __len__(self) -> int:
        return tables.length(self.view.columns)

    @property
    def notes(self) -> list[str]:
        """What the table's reader must know."""
        return findings.notes(self.study, self.view, self.results)

    @property
    def listing(self) -> findings.StudyTable:
        """Column headers and rows of text, as the study's `columns` ask, one at a time."""
        return findings.listing(self.study, self.view, self.results)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column headers and rows of text."""
        found = self.listing
        return found.headers, list(map(list, found.rows))

    def hinges(self, report: Reporter | None = None) -> Hinges:
        """What the answer hangs on: who wins with each constant of the generated devices halved and doubled.

        Of a sweep its points, with draws also in their mean; of searches the best designs of each kind, refined for each constant.
        `report` is told constants that are done, those in all, and the last one. Raises CrossflowError for a study without a winner.
        """
        from crossflow.answers.study.hinges import hinges  # which few ask for

        return hinges(self.study, self.rows_from(), report)

    def write_hinges(self, found: Hinges) -> Path:
        """Write what the answer hangs on beside the tables of the study."""
        files.write_text(self.out / HINGES, records.csv_text(found.rows()))
        return self.out / HINGES

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the study's name, what was found, the files; the rows themselves of a plain sweep."""
        return {**self._head, **({"points": self.rows} if self._plain else {}), **self._tail}

    def to_json(self, more: Mapping[str, Any] = MappingProxyType({})) -> Iterator[str]:
        """Text of `to_dict` as JSON, in parts, however many points there are; each is on a line of its own, as in their file.

        more : further data, behind all else.
        """
        if not self._plain:
            yield files.json_text({**self.to_dict(), **more})
            return
        yield files.json_text(self._head).rstrip().removesuffix("}").rstrip() + ',\n  "points": ['
        between = "\n    "
        for line in self._lines():
            yield f"{between}{line.decode().rstrip()}"
            between = ",\n    "
        yield "\n  ],\n" + files.json_text({**self._tail, **more}).removeprefix("{\n")

    def _lines(self) -> Iterator[bytes]:
        """Rows as JSON."""
        path = _points(self.out)
        return map(orjson.dumps, self.rows_from()) if path.name == records.PARQUET else (line for _, line in records.lines(path))

    @property
    def _plain(self) -> bool:
        return not self.study.runs and self.study.sampling is None

    @property
    def _head(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.study.spec.name, "summary": self.summary}
        if self.study.runs:
            found["searches"] = [result.to_dict() for result in self.results]
        elif self.study.sampling is not None:
            found["intervals"] = list(findings.interval_rows(self.view))
            found["comparisons"] = list(self.comparisons)
            found["importance"] = list(findings.importance_rows(self.view))
        return found

    @property
    def _tail(self) -> dict[str, Any]:
        return {"notes": self.notes, "files": [str(path) for path in self.files]}

    def to_frame(self) -> Any:
        """Rows as a pandas DataFrame, which must be installed."""
        path = _points(self.out)
        return pandas().read_parquet(path) if path.name == records.PARQUET else pandas().read_json(path, lines=True)

    def to_pandas(self) -> Any:
        """The same as `to_frame`, by the name that other libraries give it."""
        return self.to_frame()

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html

        headers, rows = self.table()
        notes = "".join(f"<div>{html.text(note)}</div>" for note in self.notes)
        return html.text(repr(self)) + html.table(headers, rows, html.MOST) + notes

    def __repr__(self) -> str:
        return f"StudyResult({self.study.spec.name!r}: {self.summary})"


def run_study(
    path: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    jobs: int = 1,
    dask: str | None = None,
    resume: bool = False,
    settings: Iterable[str] = (),
    yes: bool = False,
    progress: Reporter | None = None,
    hinged: bool = False,
    format: str | None = None,  # noqa: A002 (the word of the command line)
) -> StudyResult:
    """Run a study and write its tables, plots and record.

    Parameters
    ----------
    path, out : study file, name of a shipped study, or plain data as a file holds it; folder to write, ``results/NAME`` where not given.
    jobs : processes to use.
    dask : address of the scheduler of a Dask cluster to use instead.
    resume : go on with the points that an earlier run left in `out`.
    settings : overrides of fields of the study file.
    yes : whether a study may be of any size.
    progress : called with the designs evaluated, those in all (None where that is not known), and the best so far; a design is a point,
        or one that is tried on the way to the division of a point's budgets.
    hinged : whether `StudyResult.hinges` is to follow: a study that cannot have a winner is refused before anything is computed.
    format : of the points: ``jsonl``, or ``parquet`` for millions; that of the run that goes on where not given, else ``jsonl``.

    Raises
    ------
    CrossflowError
        For wrong files and folders that cannot be written; finished points are kept.

    Examples
    --------
    >>> import crossflow
    >>> result = crossflow.run_study("technology-scaling", out="results/scaling")  # doctest: +SKIP
    >>> frame = result.to_frame()  # doctest: +SKIP
    """
    study = read_study(path, settings, yes=yes)
    _check_packages(study)
    if hinged:
        _check_winner(study)
    folder = Path(out) if out is not None else Path("results") / file_name(study.spec.name)
    record = _run_record(study)
    if (written := records.format_of(folder, format, resume=resume)) != "jsonl":
        _check_parquet(study)
        record["format"] = written
    with workers(jobs, dask) as hands, owning(folder):
        found = records.unchanged(folder, record) if resume else []
        if (columns := _columns_of(study, folder, found)) is not None:
            return _as_found(study, folder, columns, found)
        if (folder / records.RUN).exists():
            (folder / HINGES).unlink(missing_ok=True)  # of points that may be others now
        records.start(folder, record, resume, findings.names(study))
        return _run(study, folder, record, hands, progress)


def _run(study: Study, folder: Path, record: dict[str, Any], hands: Workers, progress: Reporter | None) -> StudyResult:
    """Evaluate what is left of a study in a folder that is ready for it, and write what was found."""
    results: list[SearchResult] = []
    if study.runs:
        table = tables.PointsTable(names=study.needed)
        results = list(_searched(study, folder, table, hands, progress))
        columns: Mapping[str, Any] = table.columns()
    else:
        columns = _swept(study, folder, hands, progress, as_blocks="format" in record).columns()
    view = findings.view(study, columns, results)
    comparisons = findings.comparisons(study, view)
    written = _written(study, folder, view, results, comparisons)
    record["columns"] = findings.units(study, next(_rows(folder), {}))
    written = [*records.finish(folder, record, written), *written]
    return StudyResult(study=study, view=view, results=results, comparisons=comparisons, out=folder, files=written)


def _points(folder: Path) -> Path:
    """The file of the points of a finished run."""
    return folder / (records.PARQUET if (folder / records.PARQUET).exists() else records.POINTS)


def _rows(folder: Path, first: int = 0) -> Iterator[dict[str, Any]]:
    path = _points(folder)
    return parquet.rows(path, first) if path.name == records.PARQUET else itertools.islice(records.rows(path), first, None)


def _columns_of(study: Study, folder: Path, found: Sequence[Path]) -> Mapping[str, Any] | None:
    """Columns of a finished study whose files are `found` as it wrote them; None where there are none."""
    if folder / records.PARQUET in found:
        return parquet.ParquetPoints(folder / records.PARQUET, study.needed)
    return tables.load(folder / tables.COLUMNS) if folder / tables.COLUMNS in found else None


def _check_parquet(study: Study) -> None:
    """CrossflowError for a study whose points cannot be Parquet, before anything is computed."""
    if study.runs:
        raise CrossflowError("--format parquet is for the points of sweeps, and this study has searches; leave it out")
    packages.check("pyarrow")


Gathered = tables.PointsTable | parquet.JoinedTable  # where columns of all rows are: here, or on disk


# What searchers are made of; another version of the first may ask for other designs, so that a record names it.
LIBRARIES: Mapping[str, Sequence[str]] = {
    "tpe": ("optuna",), "cma-es": ("optuna", "cmaes"), "nsga2": ("optuna",), "slsqp": ("scipy",), "trust-constr": ("scipy",),
}  # fmt: skip


def _check_packages(study: Study) -> None:
    """CrossflowError for what a light installation lacks, before anything is computed."""
    for run in study.runs:
        for name in LIBRARIES.get(run.settings.searcher, ()):
            packages.check(name)
    if study.spec.plots and "plots" in study.document.data:
        packages.check("matplotlib")


def _check_winner(study: Study) -> None:
    """CrossflowError for a study that cannot have a winner."""
    from crossflow.answers.study.hinges import why_not  # which few ask for

    if reason := why_not(study):
        raise CrossflowError(f"--hinges: {reason}")


def _draws(study: Study) -> bool:
    """Whether there are pictures to draw, and what draws them; a light installation draws none where none are asked for."""
    return bool(study.spec.plots) and packages.there("matplotlib")


def _written(
    study: Study, folder: Path, view: View, results: Sequence[SearchResult], comparisons: Sequence[Mapping[str, Any]]
) -> list[Path]:
    """Write the files beside the points: their columns, what was found, plots."""
    written = []
    if not isinstance(view.columns, parquet.ParquetPoints):  # which are columns on disk already
        tables.save(folder / tables.COLUMNS, view.columns)
        written = [folder / tables.COLUMNS]
    for name, text in findings.contents(view, results, comparisons, folder).items():
        files.write_text(folder / name, text)
        written.append(folder / name)
    try:
        for plot in study.spec.plots if _draws(study) else ():
            written += draw(plot, view, folder)
    except Exception:
        if (folder / records.POINTS).exists():
            records.write_csv(folder / records.POINTS, folder / records.TABLE)  # which a picture that fails shall not cost
        raise
    return written


def _as_found(study: Study, folder: Path, columns: Mapping[str, Any], found: Sequence[Path]) -> StudyResult:
    """A finished study from its files, which are as it wrote them."""
    results = searches.recalled(study.runs, folder / "best.json") if study.runs else []
    view = findings.view(study, columns, results)
    return StudyResult(study=study, view=view, results=results, comparisons=findings.comparisons(study, view), out=folder, files=found)


def _run_record(study: Study) -> dict[str, Any]:
    scenario = study.scenario
    named = dict.fromkeys((scenario.system.techlib, *study.every.get("system.techlib", ())))
    libraries = [scenario.library_document(str(name)).data for name in named]
    inputs = provenance.record(scenario=scenario.document.data, system=scenario.system_document.data, techlib=libraries)
    seeds = {name: settings.seed for name, settings in study.spec.searches.items()}
    seed: Any = study.sampling.settings.seed if study.sampling is not None else (seeds or None)
    if study.runs and study.spec.uncertainty is not None:
        seed = {**seeds, "uncertainty": study.spec.uncertainty.seed}
    if study.redivision is not None:
        seed = {"redivide": study.redivision.seed, **({} if seed is None else {"uncertainty": seed})}
    whole = study.runs[0].whole if study.runs else None
    members = [] if whole is None else [[m.scenario.document.data, m.scenario.system_document.data] for m in whole.members]
    contents = [study.document.data, scenario.document.data, scenario.system_document.data, libraries, *members]
    return {
        "name": study.spec.name,
        "study": provenance.digest(contents),
        **({"searches": [_search_record(run) for run in study.runs]} if study.runs else {"points": len(study.grid)}),
        **inputs,
        **versions.number("study"),
        "division": study.caption or None,
        "seed": seed,
        "document": json.loads(json.dumps(study.document.data, default=str)),
        "sources": scenario.contents.below(scenario.base),
    }


def _search_record(run: PlannedSearch) -> dict[str, Any]:
    import importlib.metadata

    settings = run.settings.model_dump(exclude_none=True)
    used = {library: importlib.metadata.version(library) for library in LIBRARIES.get(settings["searcher"], ())[:1]}
    designs = {"designs": list(map(dict, run.start))} if run.start else {}
    return {"search": run.name, "point": dict(run.point), **settings, **designs, **used}


def _swept(study: Study, folder: Path, hands: Workers, progress: Reporter | None, *, as_blocks: bool) -> Gathered:
    """Evaluate every point of a sweep that is not on disk yet, and put all in order; where their columns are."""
    bar = _Bar(study, progress)
    table: Gathered = tables.PointsTable(names=study.needed)
    if as_blocks:
        table = parquet.JoinedTable(path=folder / records.PARQUET, names=study.needed)
    if as_blocks and not (folder / records.BLOCKS).exists():
        return table  # joined by a run that was finished
    parts = sweeps.tasks(
        study.scenario, study.grid, study.sampling, study.redivision, study.spec.redivide, study.recorded, study.needed, bar.seen, as_blocks
    )
    file = records.PointsFile(path=folder / (records.BLOCKS if as_blocks else records.POINTS))
    done = sweeps.finished(file.path, parts)
    for number, place in done:
        columns, count = table.kept(file, number, place)
        bar.rows(columns, count)
    file.keep(done)
    bar.tell()
    for first, block in sweeps.run(parts, dict(done), hands, bar.seen):
        file.append(first, block.text)
        table.add(first, block.columns, block.count)
        bar.rows(block.columns, block.count)
        bar.tell()
    table.end(file)
    return table


class _Bar:
    """How far a sweep is, counted in designs, and the time of the fastest that fits, of the fastest of all where none does.

    A row counts as much as the search of its division, which is told on the way to it.
    """

    def __init__(self, study: Study, report: Reporter | None) -> None:
        settings, draws = study.spec.redivide, study.sampling is not None
        points, rows = study.grid.points, len(study.grid)
        first = 0 if settings is None or not draws else settings.evaluations * points  # before the first row
        again = draws and settings is not None and settings.each == "draw"
        each = 1 if settings is None or (draws and not again) else settings.draw_evaluations if again else settings.evaluations
        self._study, self._report, self._first, self._each, self._total = study, report, first, each, first + each * rows
        self._rows = self._seen = 0
        self._best = (True, np.inf)

    def seen(self, score: Score) -> None:
        """Scores of designs on the way to rows."""
        self._seen += len(score)
        self._see(score.ranked_times, ~score.feasible)
        self.tell()

    def rows(self, columns: Mapping[str, Any], count: int) -> None:
        """Rows that are done."""
        self._rows += count
        self._seen = self._first + self._each * self._rows
        self._see(tables.numbers(columns[findings.ranked_in(self._study, columns)]), ~np.array(columns["feasible"], dtype=bool))

    def _see(self, times: Array, infeasible: Mask) -> None:
        times = np.nan_to_num(times, nan=np.inf, posinf=np.inf)
        first = int(np.lexsort((times, infeasible))[0])
        self._best = min(self._best, (bool(infeasible[first]), float(times[first])))

    def tell(self) -> None:
        """Report how far it is."""
        if self._report is not None:
            best = show(self._best[1], "s") if np.isfinite(self._best[1]) else "-"
            self._report(min(self._seen, self._total), self._total, best)


def _searched(study: Study, folder: Path, table: tables.PointsTable, hands: Workers, progress: Reporter | None) -> Iterator[SearchResult]:
    """Run every search."""
    budgets = [searches.expected(run) for run in study.runs]
    known = [budget for budget in budgets if budget is not None]
    total = sum(known) if len(known) == len(budgets) else None
    book = searches.Book(file=records.PointsFile(path=folder / records.POINTS), table=table, report=progress, total=total)
    yield from searches.run_all(study.runs, book, hands, study.spec.name, study.timed)
