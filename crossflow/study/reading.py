"""Reading a study: its file, and everything that is wrong with it before the first point is evaluated."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow import files
from crossflow.drawing.words import label
from crossflow.errors import CrossflowError, Problem, SpecError, StrategyError
from crossflow.evaluation.members import together
from crossflow.files import Document
from crossflow.points import as_shipped, split, variant
from crossflow.scenario import Scenario, check_no_part, check_strategy, from_document, scenario_document, spelled_out, strategy_of
from crossflow.search.division import SPREAD, BudgetDivision
from crossflow.search.shares import shares_of
from crossflow.settings import pointed
from crossflow.strategy.reading import ANY
from crossflow.study import sweeps
from crossflow.study.planning import PlannedSearch, planned
from crossflow.study.plots.columns import PARTS
from crossflow.study.plots.spec import BoxPlot, ImportancePlot, IntervalPlot, LinePlot
from crossflow.study.redivision import caption, keeps_division, redivision
from crossflow.study.size import check_size
from crossflow.study.spaces import TEXTS, Asked, Known, check_names, check_path, column_problems, known_columns
from crossflow.study.spec import StudyFile, grid, plot_columns, sweep_values

BLOCK = 4096  # combinations that are looked at together
DRAWN = (LinePlot, BoxPlot, IntervalPlot, ImportancePlot)  # plots of the numbers of one column


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study read from a file, ready to run: `values` by swept path."""

    spec: StudyFile
    scenario: Scenario
    values: Mapping[str, list[Any]]
    document: Document
    runs: Sequence[PlannedSearch]
    sampling: sweeps.Sampling | None
    redivision: BudgetDivision | None

    @property
    def grid(self) -> sweeps.Grid:
        """Rows of the sweep, by number."""
        draws = 1 if self.sampling is None else self.sampling.settings.samples
        return sweeps.Grid(values=self.values, draws=draws, searched=self.redivision is not None)

    @property
    def divided(self) -> tuple[str, ...]:
        """Columns of rows whose budgets are divided anew: the shares, and how far ends of the search differ."""
        return () if self.redivision is None else (*self.redivision.paths, SPREAD)

    @property
    def bounded(self) -> tuple[str, ...]:
        """Columns that `constraints` bound where budgets are divided anew."""
        return () if self.redivision is None else tuple(constraint.name for constraint in self.redivision.problem.constraints)

    @property
    def timed(self) -> bool:
        """Whether a plot shows how searches converge over time, so that it is measured."""
        return any(getattr(plot, "over", None) == "seconds" for plot in self.spec.plots)

    @property
    def keeps_division(self) -> bool:
        """Whether technology or budgets of a generated device change and the division of its budgets does not."""
        searched = (path for run in self.runs for path in run.problem.space.paths)
        return self.redivision is None and keeps_division(self.scenario, (*self.values, *searched), self.sampling is not None)

    @property
    def caption(self) -> str:
        """What plots say of the division of budgets, "" where there is nothing to say."""
        told = self.redivision is not None or self.keeps_division
        return caption(self.spec.redivide, self.sampling is not None) if told else ""

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns of scores of the study's points."""
        return _known(self.spec, self.scenario, self.values).columns

    @property
    def recorded(self) -> tuple[str, ...] | None:
        """Columns of a row beside its values; None for all of them."""
        return sweeps.what_is_recorded(self.spec, self.columns)

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that the table and the plots show."""
        spec, kinds = self.spec, {plot.kind for plot in self.spec.plots}
        known = self.runs[0].problem.columns if self.runs else self.columns
        names = [*self.values, *spec.shown, "feasible", "bound_by", "search", "trust", "error_band.p90"]
        names += [self.redivision.goal, SPREAD, *self.bounded] if self.redivision is not None else []
        names += [name for name in self.divided for plot in spec.plots if name in plot_columns(plot, self.divided)]
        names += [name for plot in spec.plots for name in (*plot_columns(plot, known), *getattr(plot, "where", {}))]
        names += [figure for run in self.runs for figure in run.problem.figures] if self.runs else ["step_time_s"]
        names += [path for run in self.runs for path in run.problem.space.paths] if "parallel" in kinds else []
        shown = [name for plot in spec.plots for name in (getattr(plot, "x", None), *getattr(plot, "where", {}))]
        names += ["strategy"] if "heatmap" in kinds or any(name in PARTS for name in shown) else []
        names += self.sampling_columns if self.sampling is not None else []
        return tuple(dict.fromkeys(names))

    @property
    def sampling_columns(self) -> tuple[str, ...]:
        """Columns of which a study with draws tells intervals."""
        kept = self.columns if self.recorded is None else self.recorded
        asked = [name for name in self.divided if name in self.spec.shown or any(getattr(p, "y", None) == name for p in self.spec.plots)]
        return (*(name for name in kept if name not in (*TEXTS, "feasible")), *asked)

    @property
    def told(self) -> tuple[str, ...]:
        """Columns whose intervals the table shows, and in which designs are compared."""
        return tuple(name for name in self.spec.shown if name in self.sampling_columns) or ("step_time_s",)


def read_study(path: str | Path | Mapping[str, Any], settings: Iterable[str] = (), *, yes: bool = False, base: Path | None = None) -> Study:
    """Read a study: a file, the name of a shipped one, or plain data as a file holds it.

    `settings` override its fields, such as ``scenario.strategy=CR-8-d64``; `yes` to one of any size; `base` is the folder that paths in
    plain data start from.
    """
    return files.with_settings(functools.partial(_read, path, base, yes), tuple(settings))


def locate(name: str | Path) -> Path:
    """Path of a study: a file of the user's before a shipped one of that name."""
    return Path(name) if Path(name).is_file() else files.find("studies", str(name))


def _read(path: str | Path | Mapping[str, Any], base: Path | None, yes: bool, settings: Sequence[str]) -> Study:
    if isinstance(path, Mapping):
        document, base = _with_scenario(Document(file="study", data=dict(path)), base or Path())
    else:
        file = locate(path)
        document, base = _with_scenario(_no_other(files.read_yaml(file), file), file.parent)
    document = files.override(document, settings)
    if isinstance(document.data, Mapping) and "scenario" in document.data and "name" not in document.data:
        document = files.merge(Document(file=document.file, data={"name": Path(document.file).stem}), document)
    try:
        spec = files.validate(StudyFile, document)
    except SpecError as error:
        raise SpecError(pointed(problem, "scenario") for problem in error.problems) from None
    if not isinstance(spec.scenario, Mapping):
        raise document.error(("scenario",), f"expected a scenario or the path of one, got {spec.scenario!r}")
    if ("strategy" in spec.space or "strategy" in spec.sweep) and "strategy" not in spec.scenario:
        document = files.merge(document, Document(file=document.file, data={"scenario": {"strategy": ANY}}))
    if not yes:
        check_size(spec, document)
    try:
        scenario = from_document(document.under("scenario"), base, spec.name)
    except StrategyError as error:
        raise document.error(("scenario", "strategy"), str(error).removeprefix("strategy: ")) from None
    values: dict[str, list[Any]] = {}
    for swept, given in spec.sweep.items():
        listed = sweep_values(swept, given, document)
        with document.telling("sweep", swept):
            values |= {path: list(named) for path, named in as_shipped(scenario, {swept: listed}).items()}
    _check_values(spec, scenario, values, document)
    points = sweeps.Grid(values=values)
    runs = planned(spec, scenario, (points.point(i) for i in range(points.points)), document) if spec.searches else ()
    with document.telling("uncertainty"):
        sampling = sweeps.sampling(spec, scenario, values)
    anew = redivision(spec, scenario, values, document)
    return Study(spec=spec, scenario=scenario, values=values, document=document, runs=runs, sampling=sampling, redivision=anew)


def _no_other(read: Document, file: Path) -> Document:
    """What a file holds, if it may be a study; SpecError with the right command for a scenario, or a part of one."""
    check_no_part(read, str(file))
    if isinstance(read.data, Mapping) and "system" in read.data and "scenario" not in read.data:
        cure = f"predict it with: crossflow predict {file}; a study names it: scenario: {file.name}"
        raise read.error(("system",), f"this is a scenario; {cure}")
    return read


def _with_scenario(document: Document, base: Path) -> tuple[Document, Path]:
    """The study with its scenario written out, whether it stands there or in a file of its own, and the folder it starts from."""
    data = document.data
    given = data.get("scenario") if isinstance(data, Mapping) else None
    if isinstance(given, str):
        path = base / given if (base / given).is_file() else Path(given)
        if path.suffix not in files.YAML or not path.is_file():
            why = "there is no file" if path.suffix in files.YAML else "expected a scenario, or the path of its YAML file, got"
            raise document.error(("scenario",), f"{why} {given}")
        named = spelled_out(scenario_document(files.read_yaml(path), str(path)))
        return files.merge(document.without("scenario"), named.at("scenario")), path.parent
    if isinstance(given, Mapping):
        return files.merge(document, spelled_out(document.under("scenario")).at("scenario")), base
    return document, base


def _check_values(spec: StudyFile, scenario: Scenario, values: Mapping[str, list[Any]], document: Document) -> None:
    """SpecError with what no point could be made of, or no score shows, before the first point is evaluated."""
    problems = [problem for path in values for problem in _value_problems(scenario, path, values, document)]
    if not problems:
        problems = _combination_problems(scenario, values, document, strategies="strategy" not in spec.space)
    if not problems:
        problems = _column_problems(spec, scenario, values, document)
    if problems:
        raise SpecError(problems)


def _value_problems(scenario: Scenario, path: str, values: Mapping[str, Sequence[Any]], document: Document) -> list[Problem]:
    """What is wrong with the values of one path, each by itself; with strategies, where the sweep leaves what they divide as it is."""
    found = []
    try:
        check_path(path)
        check_names(scenario, path, values[path])
    except CrossflowError as error:
        found.append(str(error).removeprefix(f"{path}: "))
    divided = any(other.split(".")[0] in ("workload", "system") for other in values)
    for value in values[path] if path == "strategy" and not divided else ():
        try:
            strategy_of(scenario, value)
        except CrossflowError as error:
            found.append(str(error).removeprefix("strategy: "))
    return [document.problem(("sweep", path), message) for message in dict.fromkeys(found)]


def _combination_problems(scenario: Scenario, values: Mapping[str, list[Any]], document: Document, strategies: bool) -> list[Problem]:
    """The first combination of discrete values that makes no scenario."""
    discrete = {path: listed for path, listed in values.items() if split(scenario, {path: listed}).discrete}  # of any length each
    if strategies and _all_possible(scenario, discrete):
        return []
    for combination in grid(discrete):
        settings = dict(zip(discrete, combination, strict=True))
        try:
            made = variant(scenario, settings)
            if strategies:
                check_strategy(made)
        except CrossflowError as error:
            where = ", ".join(f"{name} = {label(value)}" for name, value in settings.items())
            return [document.problem(("sweep", _blamed(settings, error)), f"{where}: {error.said}")]
    return []


def _all_possible(scenario: Scenario, discrete: Mapping[str, list[Any]]) -> bool:
    """Whether all combinations make scenarios whose strategies divide them, without a scenario of its own for each."""
    combinations = grid(discrete)
    try:
        while block := list(itertools.islice(combinations, BLOCK)):
            columns = dict(zip(discrete, zip(*block, strict=True), strict=True))
            for made, members, _ in together(scenario, columns, len(block)):
                if members is None:
                    check_strategy(made)
    except CrossflowError:
        return False
    return True


def _blamed(settings: Mapping[str, Any], error: CrossflowError) -> str:
    """The swept path at which an error of a combination lies: the strategy's for one of a strategy, else the first."""
    about = isinstance(error, StrategyError) or (isinstance(error, SpecError) and any(p.path == "strategy" for p in error.problems))
    return "strategy" if about and "strategy" in settings else next(iter(settings), "")


def _column_problems(spec: StudyFile, scenario: Scenario, values: Mapping[str, list[Any]], document: Document) -> list[Problem]:
    """Names of columns in the table and the plots that no point has."""
    known = _known(spec, scenario, values)
    searched = [*spec.space, "search", "evaluations", "violation"] if spec.searches else []
    searched += _shares(spec, scenario)
    names = [*values, *known.columns, *searched]
    numeric = [name for name in names if name not in (*values, *TEXTS)]
    asked: list[Asked] = [(("columns",), name, names) for name in spec.columns]
    asked += [(("record",), name, names) for name in (spec.record if isinstance(spec.record, tuple) else ())]
    asked += [(("plots",), plot.y, numeric) for plot in spec.plots if isinstance(plot, DRAWN)]
    return column_problems(asked, known, document)


def _shares(spec: StudyFile, scenario: Scenario) -> list[str]:
    """Columns that only rows with budgets divided anew have; whether they can be is told later."""
    return [SPREAD, *shares_of(scenario)] if spec.redivide is not None else []


def _known(spec: StudyFile, scenario: Scenario, values: Mapping[str, Sequence[Any]]) -> Known:
    """Columns of scores of the study's points."""
    named = (*spec.columns, *(spec.record if isinstance(spec.record, tuple) else ()), *(p.y for p in spec.plots if isinstance(p, DRAWN)))
    others = (*values, *spec.space, *_shares(spec, scenario), *TEXTS, "feasible", "search", "evaluations", "violation")
    asked = [name for name in named if name not in others]
    return known_columns(scenario, {**values, **{path: v for path, v in spec.space.items() if isinstance(v, list)}}, asked)
