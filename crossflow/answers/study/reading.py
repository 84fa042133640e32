"""Reading a study: its file, and everything that is wrong with it before the first point is evaluated."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossflow.answers.evaluation.figures import usual_objective
from crossflow.answers.points import STRATEGY, Together, as_shipped, by_path, is_together, read_together, split, variant
from crossflow.answers.scenario import Scenario, check_no_part, check_strategy, from_document, scenario_document, spelled_out, strategy_of
from crossflow.answers.score import INTERRUPTED, WHOLE_RUN, of_run
from crossflow.answers.search.division import SPREAD, BudgetDivision
from crossflow.answers.search.shares import choices_of
from crossflow.answers.settings import pointed
from crossflow.answers.steps.members import together
from crossflow.answers.study import sweeps
from crossflow.answers.study.planning import PlannedSearch, planned
from crossflow.answers.study.plots.columns import PARTS
from crossflow.answers.study.plots.spec import BoxPlot, ImportancePlot, IntervalPlot, LinePlot
from crossflow.answers.study.redivision import caption, keeps_division, redivision
from crossflow.answers.study.size import check_size
from crossflow.answers.study.spaces import TEXTS, Asked, Known, check_names, check_path, column_problems, known_columns
from crossflow.answers.study.spec import MONEY, StudyFile, money, plot_columns, sweep_values
from crossflow.base import files
from crossflow.base.drawing.words import label
from crossflow.base.errors import CrossflowError, Problem, SpecError, StrategyError
from crossflow.base.files import Document, Path_
from crossflow.parallel.strategy.kinds import ANY, GIVEN
from crossflow.parallel.strategy.reading import AUTO

BLOCK = 4096  # combinations that are looked at together
OF_EACH_POINT = "; scenario.strategy: auto takes the fastest strategy of each point"
SWEPT_AUTO = (
    "auto is no value of a sweep: strategy: auto in the scenario is the best strategy of every point,"
    " and settings by name compare it: sweep: {plan: {best: {strategy: auto}, mine: {strategy: tp8-dp4}}}"
)
DRAWN = (LinePlot, BoxPlot, IntervalPlot, ImportancePlot)  # plots of the numbers of one column


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study read from a file, ready to run: `values` by swept path, or by the name of settings that change `together`."""

    spec: StudyFile
    scenario: Scenario
    values: Mapping[str, list[Any]]
    together: Mapping[str, Together]
    planned: bool  # whether the strategy of every point is the planner's
    document: Document
    runs: Sequence[PlannedSearch]
    sampling: sweeps.Sampling | None
    redivision: BudgetDivision | None

    @property
    def grid(self) -> sweeps.Grid:
        """Rows of the sweep, by number."""
        draws = 1 if self.sampling is None else self.sampling.settings.samples
        return sweeps.Grid(
            values=self.values, together=self.together, draws=draws, searched=self.redivision is not None, planned=self.planned
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of a scenario that are swept, alone or with others."""
        return self.grid.paths

    @property
    def every(self) -> Mapping[str, Sequence[Any]]:
        """Swept values by path, of settings that change together each with its own."""
        return by_path(self.values, self.together)

    @property
    def shown(self) -> tuple[str, ...]:
        """Columns of the table beside the swept values; where the file names none, what ranks points stands before the step.

        The strategy comes first, where it is the planner's.
        """
        first = [STRATEGY] if self.planned else []
        if self.spec.shown and not self.spec.columns:
            first += [INTERRUPTED] if self.ranked == WHOLE_RUN and INTERRUPTED in self.columns else []
            first += [self.ranked]
        return tuple(dict.fromkeys((*(name for name in first if name not in self.spec.shown), *self.spec.shown)))

    @property
    def ranked(self) -> str:
        """The column of the times by which points are faster than others.

        That of the whole run where points differ in `run`, which leaves steps as they are; else what a scenario like the study's is
        judged by.
        """
        of_runs = WHOLE_RUN in self.columns and any(map(of_run, self.paths))
        usual = WHOLE_RUN if of_runs else usual_objective(self.scenario)
        return usual if usual in self.columns else "step_time_s"

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
        return self.redivision is None and keeps_division(self.scenario, (*self.paths, *searched), self.spec.uncertainty is not None)

    @property
    def caption(self) -> str:
        """What plots say of the division of budgets, "" where there is nothing to say."""
        told = self.redivision is not None or self.keeps_division
        return caption(self.spec.redivide, self.sampling is not None) if told else ""

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns of scores of the study's points."""
        return _known(self.spec, self.scenario, self.values, self.together, self.document).columns

    @property
    def recorded(self) -> tuple[str, ...] | None:
        """Columns of a row beside its values; None for all of them."""
        return sweeps.what_is_recorded(self.spec, self.columns)

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that the table and the plots show."""
        spec, kinds = self.spec, {plot.kind for plot in self.spec.plots}
        known = self.runs[0].problem.columns if self.runs else self.columns
        names = [*self.values, *self.shown, "feasible", "bound_by", "search", "trust", "error_band.p90"]
        names += [self.redivision.goal, SPREAD, *self.bounded] if self.redivision is not None else []
        names += [name for name in self.divided for plot in spec.plots if name in plot_columns(plot, self.divided)]
        names += [name for plot in spec.plots for name in (*plot_columns(plot, known), *getattr(plot, "where", {}))]
        names += [figure for run in self.runs for figure in run.problem.figures] if self.runs else ["step_time_s"]
        names += [self.ranked] if not self.runs else []
        names += [path for run in self.runs for path in run.problem.space.paths] if "parallel" in kinds else []
        shown = [name for plot in spec.plots for name in (getattr(plot, "x", None), *getattr(plot, "where", {}))]
        names += ["strategy"] if "heatmap" in kinds or any(name in PARTS for name in shown) else []
        names += self.sampling_columns if self.sampling is not None else [] if spec.columns else MONEY
        return tuple(dict.fromkeys(names))

    @property
    def sampling_columns(self) -> tuple[str, ...]:
        """Columns of which a study with draws tells intervals; bands of error that are kept for its ties have none."""
        given = (*self.spec.columns, *(self.spec.record or ()))
        kept = self.columns if self.recorded is None else [name for name in self.recorded if name != sweeps.BAND or name in given]
        asked = [name for name in self.divided if name in self.spec.shown or any(getattr(p, "y", None) == name for p in self.spec.plots)]
        return (*(name for name in kept if name not in (*TEXTS, "feasible")), *asked)

    @property
    def told(self) -> tuple[str, ...]:
        """Columns whose intervals the table shows, and in which designs are compared."""
        known = self.sampling_columns
        return (*(tuple(name for name in self.spec.shown if name in known) or ("step_time_s",)), *money(self.spec, known))


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
        file = Path(document.file)
    else:
        file = locate(path)
        document, base = _with_scenario(_no_other(files.read_yaml(file), file), file.parent)
    document = files.override(document, settings)
    if isinstance(document.data, Mapping) and "scenario" in document.data and "name" not in document.data:
        # The study's own file, not that of its scenario: studies of one scenario would write into one folder.
        document = files.merge(Document(file=document.file, data={"name": file.stem}), document)
    try:
        spec = files.validate(StudyFile, document)
    except SpecError as error:
        raise SpecError(pointed(problem, "scenario") for problem in error.problems) from None
    if not isinstance(spec.scenario, Mapping):
        raise document.error(("scenario",), f"expected a scenario or the path of one, got {spec.scenario!r}")
    document, planned_ = _without_plan(spec, document)
    if not yes:
        check_size(spec, document)
    try:
        scenario = from_document(document.under("scenario"), base, spec.name)
    except StrategyError as error:
        section = "system" if str(error).startswith("system: ") else "strategy"
        raise document.error(("scenario", section), str(error).removeprefix(f"{section}: ")) from None
    if planned_ and not scenario.workload.divisible:
        raise document.error(("scenario", "strategy"), GIVEN)
    spec = _with_goals(spec, scenario, document)
    swept = _Swept.read(spec, scenario, document)
    _check_values(spec, scenario, swept, document)
    every = swept.by_path
    layout = sweeps.Grid(values=swept.values, together=swept.together)
    points = (layout.point(i) for i in range(layout.points))
    runs = planned(spec, scenario, ((point, layout.settings(point)) for point in points), document, every) if spec.searches else ()
    sampling = None
    if spec.uncertainty is not None and not spec.searches:
        with document.telling("uncertainty"):
            sampling = sweeps.sampling(spec.uncertainty, [scenario], every)
    anew = redivision(spec, scenario, every, document)
    study = Study(
        spec=spec, scenario=scenario, values=swept.values, together=swept.together, planned=planned_,
        document=document, runs=runs, sampling=sampling, redivision=anew,
    )  # fmt: skip
    return study if spec.searches else replace(study, spec=_ranked_as(study))


def _ranked_as(study: Study) -> StudyFile:
    """The file of a sweep with what ranks its points as its objective, and in the plot that suits it, where it names no other."""
    spec, given, figure = study.spec, study.document.data, study.ranked
    changes: dict[str, Any] = {} if "objectives" in given else {"objectives": (figure,)}
    if "plots" not in given:
        named = {"name": figure.replace(".", "_"), "y": figure}
        changes["plots"] = tuple(plot.model_copy(update=named if getattr(plot, "y", "") == "step_time_s" else {}) for plot in spec.plots)
    return spec.model_copy(update=changes)


def _with_goals(spec: StudyFile, scenario: Scenario, document: Document) -> StudyFile:
    """A study with what a scenario like its own is judged by, where the file names no objective, and none to divide budgets for."""
    usual, given = usual_objective(scenario), spec.model_fields_set
    changes: dict[str, Any] = {} if "objectives" in given else {"objectives": (usual,)}
    if changes and spec.portfolio is not None:
        from crossflow.answers.study.portfolios import usual_goal  # which few studies need

        changes = {"objectives": (usual_goal(spec, scenario, document),)}
    if spec.redivide is not None and "goal" not in spec.redivide.model_fields_set:
        changes["redivide"] = spec.redivide.model_copy(update={"goal": usual})
    return spec.model_copy(update=changes)


def _without_plan(spec: StudyFile, document: Document) -> tuple[Document, bool]:
    """The study with a scenario that has some strategy, and whether each point is to have that of the planner.

    So it is with ``strategy: auto``. Strategies that are swept or searched, and those of all members of a portfolio, replace that of the
    scenario, which may leave it out.
    """
    written = spec.scenario.get(STRATEGY)
    settings = [one for given in spec.sweep.values() if is_together(given) for one in given.values()]
    members = () if spec.portfolio is None else spec.portfolio.members.values()
    others = STRATEGY in (*spec.space, *spec.sweep, *(path for one in settings for path in one))
    others |= bool(members) and all(STRATEGY in one for one in members)
    named = next((name for name, given in spec.sweep.items() if is_together(given) and _says_auto(given)), None)
    if written != AUTO and not (others and written is None):
        return document, named is not None
    auto = named is not None or (written == AUTO and not others)
    if auto and (why := _unplannable(spec)):
        raise document.error(("scenario", STRATEGY) if named is None else ("sweep", named), f"auto cannot be used here: {why}")
    return files.merge(document, Document(file=document.file, data={"scenario": {STRATEGY: ANY}})), auto


def _says_auto(given: Together) -> bool:
    """Whether settings that change together leave a strategy to the planner."""
    return any(settings.get(STRATEGY) == AUTO for settings in given.values())


def _unplannable(spec: StudyFile) -> str:
    """What to write in place of ``strategy: auto`` in a study whose points do not choose theirs one by one; "" for all others."""
    if spec.searches:
        return "a search chooses the strategy with everything else; leave it out, and add to the space: {strategy: legal}"
    if spec.redivide is not None:
        return "budgets are divided for one strategy; give one, or search both: space: {strategy: legal, system.budgets.area: shares}"
    return "" if spec.sweep else "nothing is swept; give a strategy, such as the first that crossflow plan lists"


@dataclass(frozen=True, kw_only=True)
class _Swept:
    """What a study sweeps: values by path or name, and the settings behind names."""

    values: Mapping[str, list[Any]]
    together: Mapping[str, Together]

    @classmethod
    def read(cls, spec: StudyFile, scenario: Scenario, document: Document) -> _Swept:
        """The values of a sweep, names of shipped files and library entries as these have them."""
        values: dict[str, list[Any]] = {}
        together: dict[str, Together] = {}
        for swept, given in spec.sweep.items():
            listed = sweep_values(swept, given, document)
            with document.telling("sweep", swept):
                if is_together(given):
                    values[swept], together[swept] = listed, _as_shipped(scenario, read_together(swept, given))
                else:
                    values |= {path: list(named) for path, named in as_shipped(scenario, {swept: listed}).items()}
        paths = [path for name in values for path in by_path({name: values[name]}, together)]
        if twice := next((path for i, path in enumerate(paths) if path in paths[:i]), None):
            raise document.error(("sweep",), f"'{twice}' is swept twice; sweep a path by itself, or with others under one name")
        return cls(values=values, together=together)

    @property
    def by_path(self) -> dict[str, list[Any]]:
        """Values by path, of settings that change together each with its own; any strategy where the planner is to choose one."""
        found = {path: list(values) for path, values in by_path(self.values, self.together).items()}
        if any(_says_auto(given) for given in self.together.values()):
            found[STRATEGY] = [ANY if value == AUTO else value for value in found[STRATEGY]]
        return found

    def place(self, path: str) -> tuple[str, str]:
        """Where the values of a path stand in the file."""
        return "sweep", next((name for name, values in self.together.items() if path in next(iter(values.values()))), path)

    def combinations(self, paths: Collection[str]) -> Iterator[dict[str, Any]]:
        """Every combination of the values of some paths, by path."""
        held = self.by_path
        axes = [{path: held[path] for path in by_path({name: values}, self.together)} for name, values in self.values.items()]
        kept = [{path: values for path, values in axis.items() if path in paths} for axis in axes]
        rows = [[dict(zip(axis, row, strict=True)) for row in zip(*axis.values(), strict=True)] for axis in kept if axis]
        return (functools.reduce(operator.or_, combination, {}) for combination in itertools.product(*rows))


def _as_shipped(scenario: Scenario, given: Together) -> Together:
    """Settings that change together, with the names of shipped files as these have them."""
    return {
        name: {path: values[0] for path, values in as_shipped(scenario, {path: [value] for path, value in settings.items()}).items()}
        for name, settings in given.items()
    }


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
    if isinstance(given, Scenario):  # from Python
        named = Document(file=document.file, data={"scenario": dict(given.document.data)})
        return files.merge(document.without("scenario"), named), given.base or base
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


def _check_values(spec: StudyFile, scenario: Scenario, swept: _Swept, document: Document) -> None:
    """SpecError with what no point could be made of, or no score shows, before the first point is evaluated."""
    values = swept.by_path
    problems = [problem for path in values for problem in _value_problems(scenario, path, values, document, swept.place(path))]
    if not problems:
        cure = "" if _unplannable(spec) else OF_EACH_POINT
        problems = _combination_problems(scenario, swept, document, strategies=STRATEGY not in spec.space, cure=cure)
    if not problems:
        problems = _column_problems(spec, scenario, swept, document)
    if problems:
        raise SpecError(problems)


def _value_problems(scenario: Scenario, path: str, values: Mapping[str, Sequence[Any]], document: Document, place: Path_) -> list[Problem]:
    """What is wrong with the values of one path, each by itself; with strategies, where the sweep leaves what they divide as it is."""
    found = []
    try:
        check_path(path)
        check_names(scenario, path, values[path])
    except CrossflowError as error:
        found.append(str(error).removeprefix(f"{path}: "))
    divided = any(other.split(".")[0] in ("workload", "system") for other in values)
    if path == STRATEGY and AUTO in values[path]:
        return [document.problem(place, SWEPT_AUTO)]
    for value in values[path] if path == STRATEGY and not divided else ():
        try:
            strategy_of(scenario, value)
        except CrossflowError as error:
            found.append(str(error).removeprefix("strategy: "))
    return [document.problem(place, message) for message in dict.fromkeys(found)]


def _combination_problems(scenario: Scenario, swept: _Swept, document: Document, *, strategies: bool, cure: str) -> list[Problem]:
    """The first combination of discrete values that makes no scenario; the cure is for a strategy that does not suit all of them."""
    values = swept.by_path
    discrete = tuple(path for path in values if split(scenario, {path: values[path]}).discrete)  # of any length each
    if not discrete or (strategies and _all_possible(scenario, swept, discrete)):
        return []
    for settings in swept.combinations(discrete):
        try:
            made = variant(scenario, settings)
            if strategies:
                check_strategy(made)
        except CrossflowError as error:
            where = ", ".join(f"{name} = {label(value)}" for name, value in settings.items())
            told = f"{where}: {error.said}{cure if _of_strategy(error) and STRATEGY not in settings else ''}"
            return [document.problem(swept.place(_blamed(settings, error)), told)]
    return []


def _all_possible(scenario: Scenario, swept: _Swept, discrete: Sequence[str]) -> bool:
    """Whether all combinations make scenarios whose strategies divide them, without a scenario of its own for each."""
    combinations = swept.combinations(discrete)
    try:
        while block := list(itertools.islice(combinations, BLOCK)):
            columns = {path: tuple(settings[path] for settings in block) for path in block[0]}
            for made, members, _ in together(scenario, columns, len(block)):
                if members is None:
                    check_strategy(made)
    except CrossflowError:
        return False
    return True


def _blamed(settings: Mapping[str, Any], error: CrossflowError) -> str:
    """The swept path at which an error of a combination lies: the strategy's for one of a strategy, else the first."""
    return STRATEGY if _of_strategy(error) and STRATEGY in settings else next(iter(settings), "")


def _of_strategy(error: CrossflowError) -> bool:
    """Whether a strategy does not suit its workload and system."""
    return isinstance(error, StrategyError) or (isinstance(error, SpecError) and any(p.path == STRATEGY for p in error.problems))


def _column_problems(spec: StudyFile, scenario: Scenario, swept: _Swept, document: Document) -> list[Problem]:
    """Names of columns in the table and the plots that no point has, and names of settings that are columns already."""
    known = _known(spec, scenario, swept.values, swept.together, document)
    if taken := [name for name in swept.together if name in (*known.columns, "id", "run")]:
        return [document.problem(("sweep", taken[0]), f"'{taken[0]}' is a column of the results; give what changes together another name")]
    values = (*swept.values, *swept.by_path, STRATEGY)
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
    return [SPREAD, *choices_of(scenario)] if spec.redivide is not None else []


def _known(
    spec: StudyFile, scenario: Scenario, swept: Mapping[str, Sequence[Any]], together: Mapping[str, Together], document: Document
) -> Known:
    """Columns of scores of the study's points."""
    values = by_path(swept, together)
    named = (*spec.columns, *(spec.record if isinstance(spec.record, tuple) else ()), *(p.y for p in spec.plots if isinstance(p, DRAWN)))
    others = (*swept, *values, STRATEGY, *spec.space, *_shares(spec, scenario), *TEXTS, "feasible", "search", "evaluations", "violation")
    asked = [name for name in (*named, *([WHOLE_RUN] if any(map(of_run, values)) else ())) if name not in others]
    settings = {**values, **{path: v for path, v in spec.space.items() if isinstance(v, list)}}
    if not spec.searches or (spec.portfolio is None and spec.uncertainty is None):
        return known_columns(scenario, settings, asked)
    from crossflow.answers.study.portfolios import known_of, known_together, members_of  # which few studies need

    members = members_of(spec, scenario, document)
    return known_together(spec, members, known_of(members, scenario, settings, asked))
