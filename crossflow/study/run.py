"""Running a study: points in chunks, in this process or in a pool, each chunk on disk as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow import files, provenance
from crossflow.errors import CrossflowError, Problem, SpecError, did_you_mean
from crossflow.evaluation import evaluate
from crossflow.files import Document
from crossflow.parallel import transform
from crossflow.points import check_choice, groups, split, variant
from crossflow.scenario import Scenario, from_document, spelled_out
from crossflow.study import records
from crossflow.study.plots import draw, plot_data
from crossflow.study.spec import StudyFile, grid, label, sweep_values
from crossflow.technology.library import library_document
from crossflow.units import show

# Points a task: boundaries do not depend on jobs or on resuming, so that the same study gives the same bytes.
TASK = 512

Progress = Callable[[int, int, str], None]
VARIABLE = ("system", "techlib", "workload", "strategy", "placement", "kernels_per_device")  # sections of a scenario that points vary


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study read from a file, ready to run: `values` by swept path, `points` in order."""

    spec: StudyFile
    scenario: Scenario
    values: Mapping[str, list[Any]]
    points: Sequence[tuple[Any, ...]]
    document: Document

    def part(self, first: int) -> dict[str, list[Any]]:
        """Values of the points of one task, by path."""
        chunk = self.points[first : first + TASK]
        return {path: [point[i] for point in chunk] for i, path in enumerate(self.values)}


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """A finished study: its rows in order, and the files written."""

    study: Study
    rows: Sequence[Mapping[str, Any]]
    out: Path
    files: Sequence[Path]

    @property
    def summary(self) -> str:
        """One sentence: how many points, how many fit, the fastest."""
        fits = [row for row in self.rows if row["feasible"]]
        timed = [row for row in (fits or self.rows) if row["step_time_s"] is not None]
        text = f"{len(self.rows)} points, {len(fits)} feasible"
        if not timed:
            return text
        best = min(timed, key=lambda row: row["step_time_s"])
        where = ", ".join(label(best[path]) for path in self.study.values)
        return f"{text}; fastest{'' if fits else ' (none fits)'}: {show(best['step_time_s'], 's')} at {where}"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column headers and rows of text, as the study's `columns` ask."""
        spec = self.study.spec
        names = [*self.study.values, *spec.columns]
        headers = [spec.headers.get(name, name.rsplit(".", 1)[-1]) for name in names]
        return headers, [[_cell(name, row.get(name)) for name in names] for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the study's name, every row, the files."""
        return {
            "name": self.study.spec.name,
            "summary": self.summary,
            "points": list(self.rows),
            "files": [str(path) for path in self.files],
        }

    def to_frame(self) -> Any:
        """Rows as a pandas DataFrame, which must be installed."""
        import pandas

        return pandas.DataFrame(list(self.rows))

    def __repr__(self) -> str:
        return f"StudyResult({self.study.spec.name!r}: {self.summary})"


def _cell(name: str, value: Any) -> str:
    unit = next((unit for ending, unit in _UNITS.items() if name.split(".")[0].endswith(ending)), None)
    if value is None:
        return "" if name == "reason" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit is not None and isinstance(value, int | float):
        return show(float(value), unit)
    return label(value)


_UNITS = {"_bytes": "B", "_share": "1", "_s": "s", "_j": "J", "_w": "W"}


def read_study(path: str | Path, settings: Iterable[str] = ()) -> Study:
    """Read a study file; `settings` override its fields, such as ``scenario.strategy=CR-8-d64``."""
    document, base = _with_scenario(files.read_yaml(path), Path(path).parent)
    document = files.override(document, settings)
    spec = files.validate(StudyFile, document)
    if not isinstance(spec.scenario, Mapping):
        raise SpecError([document.problem(("scenario",), f"expected a scenario or the path of one, got {spec.scenario!r}")])
    scenario = from_document(document.under("scenario"), base, spec.name)
    values = {swept: sweep_values(swept, given, document) for swept, given in spec.sweep.items()}
    study = Study(spec=spec, scenario=scenario, values=values, points=grid(values), document=document)
    _check_points(study)
    return study


def _with_scenario(document: Document, base: Path) -> tuple[Document, Path]:
    """The study with its scenario written out, whether it stands there or in a file of its own, and the folder it starts from."""
    data = document.data
    given = data.get("scenario") if isinstance(data, Mapping) else None
    if isinstance(given, str):
        path = base / given if (base / given).is_file() else Path(given)
        return files.merge(document.without("scenario"), spelled_out(files.read_yaml(path)).at("scenario")), path.parent
    if isinstance(given, Mapping):
        return files.merge(document, spelled_out(document.under("scenario")).at("scenario")), base
    return document, base


def _check_points(study: Study) -> None:
    """SpecError with what no point could be made of, or no score shows, before the first point is evaluated."""
    problems = [problem for path, values in study.values.items() for problem in _value_problems(study, path, values)]
    if not problems:
        problems = _combination_problems(study)
    if not problems:
        problems = _column_problems(study)
    if problems:
        raise SpecError(problems)


def _value_problems(study: Study, path: str, values: Sequence[Any]) -> list[Problem]:
    """What is wrong with the values of one path, each by itself."""
    place = ("sweep", path)
    if path.split(".")[0] not in VARIABLE:
        return [study.document.problem(place, f"'{path}' is not a path of a scenario{did_you_mean(path, VARIABLE)}")]
    try:
        for role, choice in split(study.scenario, {path: values}).choices.items():
            check_choice(study.scenario, role, choice)
    except CrossflowError as error:
        return [study.document.problem(place, str(error).removeprefix(f"{path}: "))]
    return []


def _combination_problems(study: Study) -> list[Problem]:
    """The first combination of discrete values that makes no scenario."""
    discrete = split(study.scenario, {path: [point[i] for point in study.points] for i, path in enumerate(study.values)}).discrete
    for settings, _ in groups(discrete, len(study.points)):
        try:
            made = variant(study.scenario, settings)
            transform(made.graph(), made.strategy)
        except CrossflowError as error:
            path = next(iter(settings), "")
            where = ", ".join(f"{name} = {label(value)}" for name, value in settings.items())
            return [study.document.problem(("sweep", path), f"{where}: {error}")]
    return []


def _column_problems(study: Study) -> list[Problem]:
    """Names of columns in the table and the plots that no point has."""
    known = [*study.values, *evaluate(study.scenario).columns()]
    numeric = [name for name in known if name not in (*study.values, "bound_by", "reason")]
    asked = [(("columns",), name, known) for name in study.spec.columns]
    asked += [(("plots",), plot.y, numeric) for plot in study.spec.plots]
    return [
        study.document.problem(place, f"no column '{name}'{did_you_mean(name, names)}; columns: {', '.join(names)}")
        for place, name, names in asked
        if name not in names
    ]


def run_study(
    path: str | Path,
    *,
    out: str | Path | None = None,
    jobs: int = 1,
    resume: bool = False,
    settings: Iterable[str] = (),
    progress: Progress | None = None,
) -> StudyResult:
    """Run a study and write its tables, plots and record.

    Parameters
    ----------
    path : study file.
    out : folder to write to; ``results/NAME`` under the current folder where not given.
    jobs : processes to use.
    resume : go on with the points that an earlier run left in `out`.
    settings : overrides of fields of the study file.
    progress : called with points done, points in all, and the fastest so far.

    Raises
    ------
    CrossflowError
        For wrong files and folders that cannot be written; finished points are kept.
    """
    study = read_study(path, settings)
    folder = Path(out) if out is not None else Path("results") / study.spec.name
    run = _run_record(study)
    rows = records.start(folder, run, resume)
    whole = {id_: row for id_, row in rows.items() if _task_done(rows, id_, len(study.points))}
    if len(whole) < len(rows):
        files.write_text(folder / records.POINTS, "".join(records.to_line(row) for row in whole.values()))
    if progress is not None:
        progress(len(whole), len(study.points), _fastest(whole.values()))
    for fresh in _evaluated(study, sorted(set(range(0, len(study.points), TASK)) - set(whole)), jobs):
        records.append(folder / records.POINTS, fresh)
        whole |= {row["id"]: row for row in fresh}
        if progress is not None:
            progress(len(whole), len(study.points), _fastest(whole.values()))
    ordered = [whole[id_] for id_ in range(len(study.points))]
    written = records.finish(folder, ordered, run)
    for plot in study.spec.plots:
        written += draw(plot_data(ordered, plot, study.values), folder)
    return StudyResult(study=study, rows=ordered, out=folder, files=written)


def _task_done(rows: Mapping[int, Any], id_: int, total: int) -> bool:
    """Whether all points of a point's task are there: a task is redone whole or not at all."""
    first = id_ // TASK * TASK
    return all(other in rows for other in range(first, min(first + TASK, total)))


def _run_record(study: Study) -> dict[str, Any]:
    scenario = study.scenario
    named = dict.fromkeys((scenario.system.techlib, *study.values.get("system.techlib", ())))
    libraries = [library_document(str(name), scenario.base).data for name in named]
    record = provenance.record(scenario=scenario.document.data, system=scenario.system_document.data, techlib=libraries)
    return {
        "name": study.spec.name,
        "study": provenance.digest([study.document.data, scenario.document.data, scenario.system_document.data, libraries]),
        "points": len(study.points),
        **record,
    }


def _fastest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Time of the fastest point that fits, of the fastest of all where none does."""
    timed = [row for row in rows if row["step_time_s"] is not None]
    times = [row["step_time_s"] for row in timed if row["feasible"]] or [row["step_time_s"] for row in timed]
    return show(min(times), "s") if times else "-"


def _evaluated(study: Study, tasks: Sequence[int], jobs: int) -> Iterator[list[dict[str, Any]]]:
    """Rows of each task, in the order in which they are done."""
    if jobs < 1:
        raise CrossflowError(f"--jobs must be at least 1, got {jobs}")
    if jobs == 1 or len(tasks) < 2:
        for first in tasks:
            yield task_rows(study.scenario, study.part(first), first)
        return
    import multiprocessing

    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from _pooled(pool, study, tasks)


def _pooled(pool: Executor, study: Study, tasks: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
    scenario = study.scenario
    futures = [pool.submit(_remote, scenario.document, scenario.base, scenario.name, study.part(first), first) for first in tasks]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


_scenarios: dict[str, Scenario] = {}


def _remote(document: Document, base: Path | None, name: str, part: dict[str, list[Any]], first: int) -> list[dict[str, Any]]:
    """One task in a worker process, which reads the scenario once."""
    key = provenance.digest(document.data)
    if key not in _scenarios:
        _scenarios[key] = from_document(document, base, name)
    return task_rows(_scenarios[key], part, first)


def task_rows(scenario: Scenario, part: dict[str, list[Any]], first: int) -> list[dict[str, Any]]:
    """Evaluate the points of one task: rows of plain data, numbers that are not finite as None."""
    columns = evaluate(scenario, part).columns()
    plain = {name: _plain(values) for name, values in columns.items()}
    count = len(next(iter(part.values())))
    return [
        {"id": first + i, **{path: values[i] for path, values in part.items()}, **{name: values[i] for name, values in plain.items()}}
        for i in range(count)
    ]


def _plain(values: Any) -> list[Any]:
    if not isinstance(values, np.ndarray):
        return list(values)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return [float(value) if np.isfinite(value) else None for value in values]
    return list(values.tolist())
