"""The searches of a study file, each with its problem: one for each name and swept point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario, load
from crossflow.answers.score import larger_is_better
from crossflow.answers.search.driver import check
from crossflow.answers.search.goals import Objective
from crossflow.answers.search.problem import SearchProblem, standing
from crossflow.answers.search.settings import BEST, Effort, GivenSettings, SearchSettings
from crossflow.answers.search.shares import FREE, generated
from crossflow.answers.search.space import Options, Space
from crossflow.answers.study.spaces import checked_columns, read_constraints, read_space
from crossflow.answers.study.spec import StudyFile, money, recorded
from crossflow.base.drawing.words import label
from crossflow.base.files import Document
from crossflow.base.results import later

if TYPE_CHECKING:
    from crossflow.answers.search.portfolio import PortfolioProblem
    from crossflow.answers.study.portfolios import Judged
else:
    PortfolioProblem = later("crossflow.answers.search.portfolio", "PortfolioProblem")
    Judged = later("crossflow.answers.study.portfolios", "Judged")

UNSTARTED = ("given", "random", "exhaustive")  # searchers that start from no design


@dataclass(frozen=True, kw_only=True)
class PlannedSearch:
    """One search to be run: its number, its name, the swept point, the problem."""

    number: int
    name: str
    point: Mapping[str, Any]
    settings: SearchSettings
    problem: SearchProblem
    there: Mapping[str, Any] = field(default_factory=dict)  # the swept point by path
    start: tuple[Mapping[str, Any], ...] = ()  # designs of other studies to start from, their values by path
    whole: PortfolioProblem | None = None  # the problem over the whole space, where members or draws judge designs, and their own bests do
    efforts: tuple[Effort, Effort] | None = None  # for the own bests of members and of draws

    @property
    def title(self) -> str:
        """How the run is written in a line."""
        return ", ".join([self.name, *(label(value) for value in self.point.values())])


def planned(
    spec: StudyFile,
    scenario: Scenario,
    points: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
    document: Document,
    swept: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> list[PlannedSearch]:
    """All searches of a study at its swept points, as it names them and by path; SpecError for what cannot be searched.

    swept : all values of the sweep by path.
    """
    runs: list[PlannedSearch] = []
    judged: Judged | None = None
    starts = {name: tuple(_starts(settings, name, document)) for name, settings in spec.searches.items()}
    for point, there in points:
        here = variant(scenario, there)
        space = read_space(spec.space, here, document)
        whole: SearchProblem | None = None
        if spec.portfolio is not None or spec.uncertainty is not None:
            judged, space = _for_all(spec, here, space, judged, swept, document)
            whole = read_problem(spec, here, space, document, judged)
        if "searches" not in document.data:
            _check_small(space, document)
        for name, settings in spec.searches.items():
            lost = [path for path in settings.over or () if not space.only(_paths((path,), here)).paths]
            if lost:
                raise document.error(("searches", name, "over"), f"over: '{lost[0]}' is not in the space; space: {', '.join(spec.space)}")
            with document.telling("searches", name):
                own = _own_space(space, settings, here)
                check(own, settings)
            problem = read_problem(spec, here, own, document, judged)
            start = tuple(_design(own, file, values, name, document) for file, values in starts[name])
            told: dict[str, Any] = {} if whole is None else {"whole": whole, "efforts": _efforts(spec)}
            planned_: dict[str, Any] = {"point": point, "there": there, "settings": settings, "problem": problem, "start": start, **told}
            runs.append(PlannedSearch(number=len(runs), name=name, **planned_))
    return runs


def _for_all(
    spec: StudyFile, here: Scenario, space: Space, judged: Judged | None, swept: Mapping[str, Sequence[Any]], document: Document
) -> tuple[Judged, Space]:
    """What designs of a study are judged by, which all swept points have in common, and the space of all members."""
    from crossflow.answers.study.portfolios import judged_by, shared_space  # which few studies need

    found = judged or judged_by(spec, here, {**swept, **_choices(space)}, document)
    with document.telling("portfolio"):
        return found, shared_space([read_space(spec.space, member.of(here), document) for member in found.members], found.members)


def _efforts(spec: StudyFile) -> tuple[Effort, Effort]:
    """What is spent on each member's own best, and on each draw's."""
    members, draws = spec.portfolio, spec.uncertainty
    return (
        Effort(evaluations=0, seed=0) if members is None else Effort(evaluations=members.member_evaluations, seed=members.seed),
        Effort(evaluations=0, seed=0) if draws is None else Effort(evaluations=draws.draw_evaluations, seed=draws.seed),
    )


def _check_small(space: Space, document: Document) -> None:
    """SpecError for a space without searches that is not looked at as a whole."""
    endless = [entry.path for entry in space.ranges if entry.count is None] + [path for group in space.shares for path in group.paths[:1]]
    cure = "say how it is searched, such as searches: {evolution: {searcher: evolution}}"
    if endless:
        raise document.error(("space", endless[0]), f"it has no end of values; give `count` or a list of values, or {cure}")
    if space.size > BEST:
        raise document.error(("space",), f"it has {space.size:,} designs, and without searches {BEST:,} at most are all looked at; {cure}")


def _starts(settings: SearchSettings, name: str, document: Document) -> Iterator[tuple[str, Scenario]]:
    """The scenarios that a search starts from, with their files; relative to the study's folder, or to the current one."""
    if settings.start is not None and settings.searcher in UNSTARTED:
        raise document.error(("searches", name, "start"), f"start: searcher {settings.searcher} starts from no design; leave it out")
    for file in settings.start or ():
        own = Path(document.file).parent / file
        with document.telling("searches", name, "start"):
            yield file, load(own if own.is_file() else Path(file))


def _design(space: Space, file: str, scenario: Scenario, name: str, document: Document) -> Mapping[str, Any]:
    """What a scenario has for the paths of a space; SpecError where that is no design of the space."""
    values = {path: standing(scenario, path) for path in space.paths}
    if space.located(values) is None:
        words = "its design is not in the space: a quantity outside its range, a value that is not listed, or another template"
        raise document.error(("searches", name, "start"), f"start: {file}: {words}")
    return values


def _own_space(space: Space, settings: SearchSettings, scenario: Scenario) -> Space:
    """The part of the space that a search may change; the scenario's own strategy alone where nothing is searched."""
    if isinstance(settings, GivenSettings):
        return Space(options=(Options(path="strategy", values=(scenario.strategy_text,)),))
    return space if settings.over is None else space.only(_paths(settings.over, scenario))


def _paths(over: Iterable[str], scenario: Scenario) -> tuple[str, ...]:
    """Paths of a space that a search may change, those that the `microarchitecture` of a device stands for among them."""
    free = {f"{place}.{FREE}": [f"{place}.{path}" for path in one.microarchitecture] for place, one in generated(scenario).items()}
    return tuple(path for name in over for path in free.get(name, (name,)))


def read_problem(spec: StudyFile, scenario: Scenario, space: Space, document: Document, judged: Judged | None = None) -> SearchProblem:
    """Search problem of a study at one of its swept points."""
    if judged is not None:
        from crossflow.answers.study.portfolios import portfolio_problem

        goals, bounds = tuple(_objectives(spec)), tuple(read_constraints(spec, document))
        return portfolio_problem(spec, scenario, space, judged, _choices(space), goals, bounds, document)
    known = checked_columns(spec, scenario, document, {("objectives", name): name for name in spec.objectives}, _choices(space))
    return SearchProblem(
        scenario=scenario,
        space=space,
        objectives=tuple(_objectives(spec)),
        constraints=tuple(read_constraints(spec, document)),
        fits=bool(spec.constraints.get("fits", True)),
        columns=tuple(dict.fromkeys((*recorded(spec, known.columns), *money(spec, known.columns)))),
    )


def _choices(space: Space) -> dict[str, Sequence[Any]]:
    """Values that a space holds for each path, of ranges one."""
    return {**{found.path: [found.low] for found in space.ranges}, **{option.path: option.values for option in space.options}}


def _objectives(spec: StudyFile) -> Iterator[Objective]:
    if isinstance(spec.objectives, Mapping):
        yield from (Objective(name=name, maximise=way == "maximise") for name, way in spec.objectives.items())
    else:
        yield from (Objective(name=name, maximise=larger_is_better(name)) for name in spec.objectives)
