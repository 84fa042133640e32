"""`crossflow sweep`: every combination of some values, as a table, as JSON, as CSV, as a picture, or as the study that does the same."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from crossflow.answers.interactive.sweeps import sweep, swept_paths
from crossflow.answers.planning.opening import ScenarioSource, data_of, unplanned
from crossflow.answers.planning.question import INSTEAD
from crossflow.answers.score import Score, larger_is_better, no_column
from crossflow.answers.study.findings import cells, header, reach_of_ties
from crossflow.answers.study.reading import read_study
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.names import visible
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.outputs import PICTURES, TABLE
from crossflow.edges.cli.source import source_of
from crossflow.edges.cli.varying import MOST, parts, varied

_EXAMPLE = "strategy=tp8,tp4-dp2"
_RUN = "run.time_s"
_OF_RUNS = ("run.goodput", _RUN)
_TIMES = ("job.iteration_time_s", _RUN, "step_time_s")
_FIGURES = ("e2el_s", "job.iteration_time_s", "step_time_s", "tokens_per_second", "mfu", "memory_needed_bytes")
_MONEY = ("usd_per_million_tokens", "usd_per_million_samples")
_WHOLE = ("nodes", "devices", "batch")  # options of a question that are whole numbers
SweptValues = dict[str, Any]  # by path, or settings by name of what changes together


def run(arguments: argparse.Namespace) -> None:
    """Evaluate all combinations at once, and show them; or write the study that does the same."""
    _check_outputs(arguments)
    values = _asked(arguments)
    if not values:
        _refuse_lists(arguments)
        if arguments.scenario is not None and "=" in str(arguments.scenario) and not arguments.scenario.exists():
            raise CrossflowError(f"there is no file {arguments.scenario}; write --vary {shlex.quote(str(arguments.scenario))}")
        raise CrossflowError(f"nothing is varied: give --vary PATH=A,B, such as --vary {_EXAMPLE}")
    source, assumed, _ = source_of(arguments)
    try:
        values = _with_strategies(source, values, arguments.settings)
        values = _coupled(values, arguments.together)
        if arguments.write is not None:
            _write_study(arguments, source, values)
            return
        _check_size(values)
        score = sweep(source, values, settings=arguments.settings)
    except CrossflowError:
        _refuse_lists(arguments)
        raise
    score = replace(
        score, points={path: each for path, each in score.points.items() if path not in values or not isinstance(values[path], dict)}
    )
    _show(arguments, score, assumed, _ties(source, arguments.settings, score, arguments.sort))


def _with_strategies(source: Any, values: SweptValues, settings: Sequence[str]) -> SweptValues:
    """What is varied by path, degrees as whole strategies; CrossflowError in the words of options where they leave a degree open."""
    try:
        return swept_paths(source, values, settings=settings)
    except TypeError as error:
        cure = "give whole strategies, such as --vary strategy=tp4-dp2,tp8 (with --together where they change with another value)"
        raise CrossflowError(f"{str(error).partition(';')[0].replace('sweep() varies', '--vary changes')}; {cure}") from None


def _check_size(values: SweptValues) -> None:
    count = math.prod(map(len, values.values()))
    if count > MOST:
        raise CrossflowError(
            f"{count:,} combinations; more than {MOST:,} are for a study: --write study.yaml, then crossflow study study.yaml"
        )


def _check_outputs(arguments: argparse.Namespace) -> None:
    if arguments.write is not None and (given := [name for name in ("json", "output", "sort", "columns") if getattr(arguments, name)]):
        raise CrossflowError(f"--write writes a study and evaluates nothing; leave {'-o' if given[0] == 'output' else f'--{given[0]}'} out")
    for path in arguments.output:
        if path.suffix.lower() not in (*PICTURES, TABLE):
            raise CrossflowError(f"-o {path}: a table ends in .csv, a picture in .png or .svg")
        files.check_writable(path, "-o")


def _asked(arguments: argparse.Namespace) -> SweptValues:
    """What is varied: --vary, and lists of the options that stand for a file; those options keep their first value."""
    found: SweptValues = {}
    for text in arguments.vary:
        path, values = varied(text, _EXAMPLE)
        if path in found:
            raise CrossflowError(f"--vary {text}: {path} is varied twice; give all of its values in one list")
        found[path] = values
    for name, path in INSTEAD.items():
        given = getattr(arguments, name)
        if given is None:
            first = next((found[key][0] for key in (name, path) if key in found), None)
            if arguments.scenario is None and first is not None and name != "strategy":  # so that no default is told in its place
                setattr(arguments, name, first)
            continue
        _, values = varied(f"{path}={given}", _EXAMPLE)
        if name in _WHOLE and (strange := next((one for one in values if not isinstance(one, int) or one < 1), None)) is not None:
            raise CrossflowError(f"--{name} {given}: expected positive whole numbers, such as 8,16, got {strange}")
        if len(values) > 1:
            if arguments.scenario is not None:
                raise CrossflowError(f"--{name} is for questions without a file; with {arguments.scenario} write --vary {path}={given}")
            if path in found:
                raise CrossflowError(f"--{name} {given} and --vary {path} say the same; give one of them")
            found[path] = values
        setattr(arguments, name, values[0] if name in _WHOLE else str(values[0]))
    return found


def _refuse_lists(arguments: argparse.Namespace) -> None:
    """CrossflowError for lists among --set, with the line that varies them."""
    lists = [text for text in arguments.settings if len(parts(text.partition("=")[2])) > 1]
    if not lists:
        return
    words = ["crossflow", "sweep", *([] if arguments.scenario is None else [str(arguments.scenario)])]
    for name, path in INSTEAD.items():
        if (value := getattr(arguments, name)) is not None and not any(
            text.startswith((f"{path}=", f"{name}=")) for text in arguments.vary
        ):
            words += [f"--{name}", str(value)]
    words += [word for text in arguments.settings for word in (("--vary" if text in lists else "--set"), text)]
    words += [word for text in arguments.vary for word in ("--vary", text)]
    raise CrossflowError(f"--set {lists[0]}: --set gives one value, and --vary several: {shlex.join(words)}")


def _coupled(values: SweptValues, together: Sequence[str]) -> SweptValues:
    """SweptValues with those that change together under one name."""
    for number, text in enumerate(together, start=1):
        paths = [path.strip() for path in text.split(",") if path.strip()]
        known = {path: next((key for key in swept_paths({}, {path: [1]}) if key in values), path) for path in paths}
        if lacking := [path for path in paths if known[path] not in values]:
            raise CrossflowError(f"--together {text}: {lacking[0]} is not varied; give its values with --vary {lacking[0]}=A,B")
        lists = {known[path]: values[known[path]] for path in paths}
        if len(lists) < 2:
            raise CrossflowError(f"--together {text}: expected two paths or more, with a comma between them")
        if len(set(map(len, lists.values()))) > 1:
            told = ", ".join(f"{path} has {len(each)}" for path, each in lists.items())
            raise CrossflowError(f"--together {text}: what changes together has as many values each: {told}")
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        named = {f"{i}: {', '.join(map(str, row.values()))}": row for i, row in enumerate(rows, start=1)}
        first = next(iter(lists))
        values = {
            f"together{number}" if path == first else path: named if path == first else each
            for path, each in values.items()
            if path == first or path not in lists
        }
    return values


def _write_study(arguments: argparse.Namespace, source: ScenarioSource, values: SweptValues) -> None:
    """Write the study that does the same, which is read first."""
    path: Path = arguments.write
    if path.suffix not in files.YAML:
        raise CrossflowError(f"--write {path}: a study is a YAML file; give it a name that ends in .yaml")
    files.check_writable(path, "--write")
    if os.path.lexists(path):
        raise CrossflowError(f"--write: {path} exists; give another name, or remove it")
    named: Any = dict(data_of(source, arguments.settings))
    if isinstance(source, Path):
        if not arguments.settings:
            named = Path(os.path.relpath(source, path.parent)).as_posix()
        elif source.resolve().parent != path.resolve().parent:
            raise CrossflowError(
                f"--write {path}: with --set the study holds the scenario; write it beside {source}, as its paths start there"
            )
    data = {"name": path.stem, "scenario": named, "sweep": values}
    read_study(data, base=path.parent)
    files.write_text(path, files.yaml_text(data))
    page.log(f"wrote {path}: run it with crossflow study {shlex.quote(str(path))}")


def _show(arguments: argparse.Namespace, score: Score, assumed: Sequence[str], tied: Sequence[int]) -> None:
    """Write the table, or JSON, and the files that were asked for."""
    table = score.table()
    names = _columns(arguments, score, table)
    goal = arguments.sort or _usual(score, table)
    order = _order(score, table, goal)
    best = next((i for i in order if score.feasible[i] and np.isfinite(_number(table[goal][i]))), None)
    shown = order if arguments.sort else list(range(len(score)))
    if arguments.json:
        rows = [{name: _plain(table[name][i]) for name in names} for i in shown]
        page.emit_json({
            "points": len(score), "feasible": int(score.feasible.sum()), "goal": goal,
            "best": None if best is None else {name: _plain(table[name][best]) for name in names},
            "ties": [shown.index(i) for i in tied], "rows": rows, "assumptions": list(assumed), "notes": list(score.notes),
        })  # fmt: skip
    else:
        texts = [_texts(score, name, table[name]) for name in names]
        fits = score.feasible
        marks: dict[int | None, str] = {best: ">", **dict.fromkeys(tied, "=")}
        lines = [[marks.get(i, " " if fits[i] else "x"), *(column[i] for column in texts)] for i in shown]
        _emit(
            ["", *(header(name, names) for name in names)],
            lines,
            [*_notes(score, goal, best, tied, assumed), *(f"note: {one}" for one in score.notes)],
        )
    for path in arguments.output:
        if path.suffix.lower() == TABLE:
            score.to_csv(path)
        else:
            timed = np.isfinite(np.asarray(table[score.ranked], dtype=float))  # what makes no scenario has no place in a picture
            if not timed.any():
                raise CrossflowError(f"-o {path}: no point has a time, and there is nothing to draw")
            score.take(timed).plot(y=goal).save(path)
            if not timed.all():
                first = int(np.argmin(timed))
                where = ", ".join(f"{name} = {column[first]}" for name, column in score.points.items())
                many = f"{len(score) - int(timed.sum()):,} of {len(score):,} points, which make no scenario"
                page.log(f"{path} leaves out {many}; the first, {where}: {score.why(first)}")
        page.log(f"wrote {path}")


def _texts(score: Score, name: str, values: Sequence[Any]) -> Sequence[str]:
    """Cells of a column, quantities that are varied with their unit."""
    unit = score.unit_of(name) if name in score.points else "1"
    if unit == "1":
        return cells(name, values)
    return [show(float(value), unit) if isinstance(value, int | float) else str(value) for value in values]


def _emit(head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> None:
    if sys.stdout.isatty():
        cut = [f"the first {page.SHOWN:,} of {len(rows):,} rows; -o table.csv writes all"] * (len(rows) > page.SHOWN)
        page.emit(*page.columns_of(head, rows[: page.SHOWN]), *(Text(f"\n{note}", "dim") for note in [*cut, *notes]), unbroken=True)
        return
    page.write_rows(head, rows)
    sys.stdout.writelines(f"\n{visible(note)}\n" for note in notes)


def _columns(arguments: argparse.Namespace, score: Score, table: Mapping[str, Any]) -> list[str]:
    """The columns that are shown: what is varied, the figures, how far they can be trusted, and why a point cannot run."""
    asked = [name for text in arguments.columns for name in text.split(",") if name]
    for name in (*asked, *([arguments.sort] if arguments.sort else ())):
        if name not in table:
            raise CrossflowError(no_column(name, list(table)))
    if arguments.sort and not np.issubdtype(np.asarray(table[arguments.sort]).dtype, np.number):
        raise CrossflowError(f"--sort {arguments.sort}: it holds no numbers; sort by a column of numbers, such as step_time_s")
    of_runs = [*_OF_RUNS] if score.ranked == _RUN else []
    known = [name for name in (*of_runs, *_FIGURES, *_MONEY) if name in table and np.isfinite(np.asarray(table[name], dtype=float)).any()]
    figures = asked or [*known, "bound_by"]
    why = ["reason"] if not score.feasible.all() else []
    return list(dict.fromkeys([*score.points, *([arguments.sort] if arguments.sort else []), *figures, "trust", *why]))


def _usual(score: Score, table: Mapping[str, Any]) -> str:
    """The column that orders points where nobody names one: the time of the whole run where that differs, of a service a request's."""
    return "e2el_s" if "e2el_s" in table and score.ranked != _RUN else score.ranked


def _order(score: Score, table: Mapping[str, Any], goal: str) -> list[int]:
    """Points, the best first; those that cannot run, or have no such figure, last."""
    sign = -1.0 if larger_is_better(goal) else 1.0
    with np.errstate(all="ignore"):
        losses = sign * np.asarray(table[goal], dtype=float)
    losses = np.where(np.isfinite(losses), losses, np.inf)
    return [int(i) for i in np.lexsort((losses, ~score.feasible))]


def _ties(source: ScenarioSource, settings: Sequence[str], score: Score, sort: str | None) -> list[int]:
    """Points that measured runs do not tell from the fastest, where all do the same and time is the goal."""
    if sort not in (None, *_TIMES) or len(score) < 2 or not score.feasible.any():
        return []
    scenario, _ = unplanned(source, settings)
    reach = reach_of_ties(scenario, list(score.points), set(score.trusted))
    if reach is None:
        return []
    table = score.table()
    column = sort or _usual(score, table)
    times = np.where(score.feasible, np.asarray(table[column], dtype=float), np.inf)
    best = int(times.argmin())
    return [int(i) for i in np.flatnonzero(times <= times[best] * (1.0 + reach)) if i != best] if np.isfinite(times[best]) else []


def _notes(score: Score, goal: str, best: int | None, tied: Sequence[int], assumed: Sequence[str]) -> Iterator[str]:
    feasible = int(score.feasible.sum())
    of_run = ", the time of the whole run" if goal == _RUN else ""
    marks = [*([f"> is the best by {goal}{of_run}"] if best is not None else []), *(["= cannot be told from it"] if tied else [])]
    marks += ["x cannot run"] if feasible < len(score) else []
    yield f"{len(score):,} points, {feasible:,} feasible; {', '.join(marks)}"
    levels = Counter(level for level, fits in zip(score.trusted, score.feasible, strict=True) if fits)
    if levels:
        yield f"trust: {', '.join(f'{count:,} {level}' for level, count in levels.items())}"
    yield from itertools.chain(f"assumed: {one}" for one in assumed)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    found = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(found, float) and not math.isfinite(found) else found
