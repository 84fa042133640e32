"""The `space` of a study file as a space to search, and the columns that its scores have."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.figures import lacking
from crossflow.answers.guesses import guessed
from crossflow.answers.points import (
    SECTIONS,
    Split,
    path_as_shipped,
    place_of,
    split,
    technology_at,
    values_as_shipped,
    variant,
    varied,
    written,
)
from crossflow.answers.scenario import Scenario, check_strategy, strategy_of
from crossflow.answers.score import listed, no_column, of_run, unit_of
from crossflow.answers.search.goals import Constraint
from crossflow.answers.search.shares import FREE, budget_shares, free_ranges, held_shares
from crossflow.answers.search.space import SMALLEST_SHARE, Options, Range, Shares, Space
from crossflow.answers.settings import paths
from crossflow.answers.study.spec import SpacedRange, StudyFile, spaced
from crossflow.base import errors, files
from crossflow.base.errors import NEAREST, CrossflowError, SpecError, did_you_mean, either, with_article
from crossflow.base.files import Document, FileModel, Path_
from crossflow.base.limits import Finite, PositiveInt
from crossflow.base.units import parse
from crossflow.hardware.architecture.template import BUDGETS, Ends, GeneratedSystem
from crossflow.hardware.technology.library import kind_of
from crossflow.parallel.strategy.kinds import ANY
from crossflow.parallel.strategy.mesh import Mesh
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import every_strategy

AXES = ("kp1", "kp2", "dp", "lp")  # of the mesh, in the paper's notation
FILES = ("workload.model", "system.template")  # settings that name files: a wrong name is wrong whatever else is chosen
FORMING = ("system", "workload", "workload.task", "workload.model", "system.template")  # settings that decide which figures there are
STACKED = ".stacked_area"  # so do those that end so: dies on the chip have a price and carbon of their own
OPERATION = "system.operation."  # paths of quantities that do so by being given
TEXTS = ("bound_by", "trust", "reason")  # columns that are no figures
Asked = tuple[Path_, str, Sequence[str]]  # place of a name, the name, and names that it may be


_BOUND = re.compile(r"^\s*(<=|>=)\s*(\S.*?)\s*$")


class SharesEntry(FileModel):
    """Shares of one budget to divide anew."""

    shares: tuple[str, ...] | Literal["all"]
    min: Annotated[Finite, Field(gt=0, lt=1)] = SMALLEST_SHARE
    max: Annotated[Finite, Field(gt=0, le=1)] = 1.0


class RangeEntry(Ends):
    """The same, in a space."""

    count: PositiveInt | None = Field(default=None, le=10**6, description="values, where it is enumerated")
    when: Mapping[str, Any] = Field(default={}, description="only where options have these values, by path")


class OptionsEntry(FileModel):
    """Values to choose from."""

    values: tuple[Any, ...] = Field(min_length=1)
    when: Mapping[str, Any] = Field(default={}, description="only where other options have these values, by path")


# ------------------------------------------------------------------------------------------ space


def read_space(entries: Mapping[str, Any], scenario: Scenario, document: Document) -> Space:
    """Space of a study's entries; SpecError with the line of the first that cannot be read."""
    ranges = list(_microarchitecture(entries, scenario, document))
    shares: list[Shares] = []
    options: list[Options] = []
    placed = isinstance(scenario.strategy, Plan) and entries.get("placement") == "all"
    if placed and entries.get("strategy") != "legal":
        message = "the order of a transformer's ranks is part of its strategy; give strategy: legal, or list strategies with their orders"
        raise SpecError([document.problem(("space", "placement"), message)])
    # Strategies come last: which are legal depends on the devices and models to choose from.
    for path, given in sorted(entries.items(), key=lambda entry: entry[0] == "strategy"):
        if (placed and path == "placement") or _names_free(path, scenario):
            continue
        try:
            entry = _entry(path, given, document, scenario, options, placed=placed)
            {Range: ranges, Shares: shares, Options: options}[type(entry)].append(entry)  # type: ignore[attr-defined]
        except SpecError:
            raise
        except (CrossflowError, ValueError) as error:
            raise document.error(("space", path), str(error).removeprefix(f"{path}: ")) from None
    space = Space(ranges=tuple(ranges), shares=tuple(shares), options=tuple(options))
    _check_conditions(space, document)
    _check_paths(space, document)
    return space


def _microarchitecture(entries: Mapping[str, Any], scenario: Scenario, document: Document) -> Iterator[Range]:
    """Ranges of what `microarchitecture` of the system or of a pool stands for in a space, but for what has an entry of its own."""
    every = {one.path: one for one in free_ranges(scenario)}
    for path, given in entries.items():
        place, _ = place_of(path)
        if not _names_free(path, scenario):
            continue
        system = scenario.system.places[place]
        own = list(system.microarchitecture) if isinstance(system, GeneratedSystem) else []
        names = own if given == "all" else given
        if not isinstance(names, list) or not names or any(name not in own for name in names):
            known = ", ".join(own) or f"{system.name} names none under `{FREE}`"
            raise document.error(("space", path), f"expected 'all' or a list of its paths, got {given!r}; paths: {known}")
        yield from (every[f"{place}.{name}"] for name in names if f"{place}.{name}" not in entries)


def _names_free(path: str, scenario: Scenario) -> bool:
    """Whether an entry of a space stands for what a template lets searches choose."""
    place, rest = place_of(path)
    return rest == FREE and place in scenario.system.places


def _check_paths(space: Space, document: Document) -> None:
    """SpecError for a path that two entries would change."""
    every = space.paths
    twice = next((path for i, path in enumerate(every) if path in every[:i]), None)
    if twice is not None:
        raise document.error(("space", twice), f"'{twice}' stands twice in the space, alone and among the shares of its budget")


def check_path(path: str) -> None:
    """Raise CrossflowError for a path that stands in no scenario."""
    if path.split(".")[0] not in SECTIONS:
        told = [f"'{known}'" for known in guessed(path, paths())[:NEAREST] if not known.endswith(".title")]
        cure = did_you_mean(path, SECTIONS) or (f"; did you mean {either(told)}?" if told else "")
        raise CrossflowError(f"'{path}' is not a path of a scenario{cure}")


def check_names(scenario: Scenario, path: str, values: Sequence[Any]) -> Split:
    """The values of a path by kind; CrossflowError for one that cannot be read, or names what the library lacks."""
    found = split(scenario, {path: list(values)})
    for chosen, choice in found.choices.items():
        place, role = technology_at(scenario, chosen)
        for name in choice.names:
            scenario.library_of(scenario.system.places[place]).component(kind_of(str(role)), name)
    return found


def _entry(
    path: str, given: Any, document: Document, scenario: Scenario, options: list[Options], *, placed: bool
) -> Range | Shares | Options:
    check_path(path)
    path = path_as_shipped(scenario, path)
    place, rest = place_of(path)
    if rest in [f"budgets.{budget}" for budget in BUDGETS] and place in scenario.system.places:
        return _shares(path, given, document, scenario, place)
    if path == "strategy" and given == "legal":
        return Options(path=path, values=_strategies(scenario, options, placed=placed))
    if path == "placement" and given == "all":
        if not isinstance(scenario.strategy, Mesh):
            raise CrossflowError(f"{with_article(scenario.workload.model)} lies as its strategy says; vary strategy instead")
        return Options(path=path, values=tuple(list(order) for order in itertools.permutations(_axes(scenario.strategy))))
    if isinstance(given, list) and given:
        return _options(path, tuple(given), {}, scenario)
    if isinstance(given, Mapping) and "values" in given:
        described = files.validate_at(OptionsEntry, document, "space", path)
        return _options(path, described.values, described.when, scenario)
    if isinstance(given, Mapping):
        return _range(path, files.validate_at(RangeEntry, document, "space", path), document, scenario)
    words = {"strategy": ", or 'legal' for all that fit", "placement": ", or 'all' for every order of the axes"}.get(path, "")
    raise CrossflowError(f"expected a list of values, {{values: ..., when: ...}} or {{from: ..., to: ...}}{words}; got {given!r}")


def _axes(strategy: Mesh) -> tuple[str, ...]:
    """Axes that can be laid out: a program's own, or those that strategies of graphs can have, which a study may vary too."""
    return tuple(axis.name for axis in strategy.axes if axis.role == "given") or AXES


def _shares(path: str, given: Any, document: Document, scenario: Scenario, place: str) -> Shares:
    system = scenario.system.places[place]
    if not isinstance(system, GeneratedSystem):
        raise CrossflowError(f"{system.name} is known by its datasheet and has no budgets to divide")
    if given != "shares" and not isinstance(given, Mapping):
        raise CrossflowError(f"expected 'shares', or {{shares: [...], min: ..., max: ...}}; got {given!r}")
    entry = SharesEntry(shares="all") if given == "shares" else files.validate_at(SharesEntry, document, "space", path)
    held = held_shares(scenario, path)
    names = tuple(held) if entry.shares == "all" else entry.shares
    if not entry.min < entry.max or len(set(names)) < len(names):
        ends = f"{entry.min:g} and {entry.max:g}"
        raise CrossflowError(f"expected different shares and a min below max, got {', '.join(names)}, {ends}")
    return budget_shares(scenario, path, names, entry.min, entry.max)


def _options(path: str, values: tuple[Any, ...], when: Mapping[str, Any], scenario: Scenario) -> Options:
    values = tuple(values_as_shipped(scenario, path, values))
    if path in check_names(scenario, path, values).discrete:
        _check_values(path, values, scenario)
    return Options(path=path, values=values, when=_conditions(when))


def _check_values(path: str, values: tuple[Any, ...], scenario: Scenario) -> None:
    """CrossflowError for a strategy that is none, and for a setting of which no value makes a scenario."""
    if path == "strategy":
        for value in values:
            strategy_of(scenario, value)
        return
    reasons = []
    for value in values:
        try:
            variant(scenario, {path: value, "strategy": ANY})
        except CrossflowError as error:
            if path in FILES and isinstance(error, SpecError) and any(problem.path == path for problem in error.problems):
                raise CrossflowError(error.said) from None
            reasons.append(error.said)
    if len(reasons) == len(values):
        raise CrossflowError(reasons[0])


def _range(path: str, entry: RangeEntry, document: Document, scenario: Scenario) -> Range | Options:
    quantity = varied(scenario, path)
    if quantity is None or (quantity.whole and entry.count is not None):
        if entry.count is None:
            raise CrossflowError("a setting that is no quantity needs a count, or a list of values")
        described = SpacedRange.model_validate({"from": entry.start, "to": entry.stop, "count": entry.count, "scale": entry.scale})
        numbers = [round(value) if isinstance(value, float) else value for value in spaced(described, document, ("space", path))]
        return _options(path, tuple(dict.fromkeys(numbers)), entry.when, scenario)
    low, high = entry.read(quantity)
    return Range(
        path=path, low=low, high=high, log=entry.scale == "log", whole=quantity.whole, count=entry.count, when=_conditions(entry.when)
    )


def _conditions(when: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {path: tuple(values) if isinstance(values, list | tuple) else (values,) for path, values in when.items()}


def _check_conditions(space: Space, document: Document) -> None:
    by_path = {option.path: option.values for option in space.options}
    entries: tuple[Range | Options, ...] = (*space.ranges, *space.options)
    for entry in entries:
        for path, values in entry.when.items():
            if path not in by_path:
                raise document.error(("space", entry.path), f"when: '{path}' is not an option of the space{did_you_mean(path, by_path)}")
            strange = [value for value in values if value not in by_path[path]]
            if strange:
                message = f"when: {path} is never {strange[0]!r}; it is one of {', '.join(map(str, by_path[path]))}"
                raise document.error(("space", entry.path), message)


SIZING = re.compile(r"system(\.pools\.[^.]+)?\.(devices|nodes|template)|workload\.")  # paths that change devices or model


def _strategies(scenario: Scenario, options: list[Options], *, placed: bool) -> tuple[str, ...]:
    """Every strategy that is legal for some combination of the options read so far that change devices or model.

    `placed` says whether plans of transformers are listed in every order of their ranks.
    """
    sizing = [o for o in options if SIZING.match(o.path)]
    software = any(option.path.startswith("software") for option in options)  # some of which may keep scores
    found: dict[str, None] = {}
    for values in itertools.product(*(option.values for option in sizing)):
        settings = {**{o.path: value for o, value in zip(sizing, values, strict=True)}, "strategy": ANY}
        made = variant(scenario, settings)
        listed = functools.partial(every_strategy, fused=made.fused_attention and not software, placed=placed, kinds=made.system.kinds)
        found |= dict.fromkeys(listed(made.workload, made.nodes))
    if not found:
        raise CrossflowError("no strategy divides this model over so many devices")
    return tuple(found)


# ------------------------------------------------------------------------------------------ columns


class Known(NamedTuple):
    """Columns that scores of a study have, those of them that are figures with a value, and what the scenario lacks for others."""

    columns: tuple[str, ...]
    figures: tuple[str, ...]
    lacks: Mapping[str, str]


def checked_columns(
    spec: StudyFile, scenario: Scenario, document: Document, goals: Mapping[Path_, str], settings: Mapping[str, Sequence[Any]]
) -> Known:
    """Columns of a search for goals, by their places in a study, under its constraints; SpecError for names that are no columns.

    `settings` are the values that decide which columns there are.
    """
    asked: dict[Path_, str] = {**goals, **{("constraints", name): name for name in spec.constraints if name != "fits"}}
    known = known_columns(scenario, settings, tuple(asked.values()))
    if problems := column_problems([(place, name, known.figures) for place, name in asked.items()], known, document):
        raise SpecError(problems)
    return known


def known_columns(scenario: Scenario, settings: Mapping[str, Sequence[Any]], asked: Sequence[str]) -> Known:
    """Columns of a scenario, and of what it becomes with the values of settings, as far as that is needed to know those asked for."""
    columns: dict[str, None] = {}
    figures: dict[str, None] = {}
    lacks: dict[str, str] = {}
    for form in _forms(scenario, settings):
        here = evaluate(form).columns()
        needs = {name: lacking(form, name) for name in (*here, *asked)}
        columns |= dict.fromkeys(here)
        figures |= {name: None for name in here if needs[name] is None and name not in (*TEXTS, "feasible")}
        lacks = {**{name: need for name, need in needs.items() if need is not None}, **lacks}
        if all(name in figures for name in asked):
            break
    return Known(tuple(columns), tuple(figures), lacks)


def _forms(scenario: Scenario, settings: Mapping[str, Sequence[Any]]) -> Iterator[Scenario]:
    """The scenario, and what it becomes with values of settings that decide which figures a score has."""
    yield scenario
    chosen = {path: settings[path] for path in FORMING if path in settings}
    chosen |= {path: [written(scenario, path, values[0])] for path, values in settings.items() if path.startswith(OPERATION)}
    chosen |= {path: [written(scenario, path, max(values))] for path, values in settings.items() if path.endswith(STACKED)}
    chosen |= {path: _of_each_kind(values) for path, values in settings.items() if of_run(path)}
    for values in itertools.product(*chosen.values()) if chosen else ():
        settings = dict(zip(chosen, values, strict=True))
        with contextlib.suppress(CrossflowError):  # a combination that makes no scenario is told where it is evaluated
            yield _divided(scenario, settings)


def _of_each_kind(values: Sequence[Any]) -> list[Any]:
    """One number of them, and all that are none: names and what is left out decide which figures there are, and no number does."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return [*numbers[:1], *(value for value in values if value not in numbers)]


def _divided(scenario: Scenario, settings: Mapping[str, Any]) -> Scenario:
    """The scenario with settings, and with any strategy where its own does not divide it."""
    try:
        found = variant(scenario, settings)
        check_strategy(found)
    except CrossflowError:
        return variant(scenario, {**settings, "strategy": ANY})
    return found


def column_problems(asked: Sequence[Asked], known: Known, document: Document) -> list[errors.Problem]:
    """What is wrong with names of columns: what the scenario lacks for them, or that there is no such column.

    asked : place, name, and the names that it may be. The last one that is no column lists those that are.
    """
    wrong = [(place, name, names) for place, name, names in asked if name not in names]
    unknown = [name for _, name, _ in wrong if name not in known.lacks]
    found = []
    for place, name, names in wrong:
        options = f"\n{listed(unknown, names)}" if name in unknown[-1:] else ""
        found.append(document.problem(place, known.lacks.get(name) or no_column(name, names) + options))
    return found


def read_constraints(spec: StudyFile, document: Document) -> Iterator[Constraint]:
    """Bounds of a study by column."""
    for name, given in spec.constraints.items():
        if name == "fits":
            if not isinstance(given, bool):
                raise document.error(("constraints", name), f"expected true or false, got {given!r}")
            continue
        found = _BOUND.match(str(given))
        if found is None:
            raise document.error(("constraints", name), f"expected a bound such as '<= 300 W' or '>= 0.4', got {given!r}")
        with document.telling("constraints", name):
            bound = parse(found[2], unit_of(name))
        yield Constraint(name=name, bound=bound, at_most=found[1] == "<=")
