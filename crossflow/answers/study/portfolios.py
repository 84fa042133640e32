"""The `portfolio` and the `uncertainty` of a study with searches: members, draws, and the problem that judges designs by all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossflow.answers.evaluation.figures import usual_objective
from crossflow.answers.points import STRATEGY, as_shipped, is_together, variant
from crossflow.answers.scenario import Scenario, check_strategy
from crossflow.answers.search.goals import LOSS, REGRET, USUAL, Constraint, Objective
from crossflow.answers.search.portfolio import Member, PortfolioProblem
from crossflow.answers.search.space import Space
from crossflow.answers.study import sweeps
from crossflow.answers.study.spaces import Known, check_path, column_problems, known_columns
from crossflow.answers.study.spec import StudyFile, money, recorded
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.files import Document, Path_, held
from crossflow.base.limits import shown
from crossflow.parallel.strategy.kinds import ANY
from crossflow.parallel.strategy.reading import AUTO

WEIGHT = "weight"  # the one key of a member that is no path
_NAME = re.compile(r"\w[\w +-]*")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A member as a study names it."""

    name: str = ""  # "" where there are only draws
    weight: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)  # by path

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario with the member's settings."""
        return variant(scenario, self.settings)


# ------------------------------------------------------------------------------------------ members


def members_of(spec: StudyFile, scenario: Scenario, document: Document) -> tuple[Variant, ...]:
    """Members of a study; SpecError for those that cannot be judged."""
    if spec.portfolio is None:
        return (Variant(),)
    found = tuple(_variant(name, given, spec, scenario, document) for name, given in spec.portfolio.members.items())
    if not any(one.weight for one in found):
        raise document.error(("portfolio", "members"), "all weights are 0; one at least must count")
    return found


def _variant(name: str, given: Mapping[str, Any], spec: StudyFile, scenario: Scenario, document: Document) -> Variant:
    place = ("portfolio", "members", name)
    if _NAME.fullmatch(name) is None:
        raise document.error(place, f"'{shown(name)}' cannot end the name of a column; use letters, digits, spaces, _, + and -")
    weight = given.get(WEIGHT, 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
        raise document.error((*place, WEIGHT), f"expected a number from 0 on, got {shown(weight)}")
    settings: dict[str, Any] = {}
    for path, value in given.items():
        if path != WEIGHT:
            with document.telling(*place, path):
                check_path(path)
                _check_free(path, value, spec)
                settings |= {known: values[0] for known, values in as_shipped(scenario, {path: [value]}).items()}
    found = Variant(name=name, weight=float(weight), settings=settings)
    _check_member(found, spec, scenario, document)
    return found


def _check_free(path: str, value: Any, spec: StudyFile) -> None:
    """CrossflowError for a setting of a member that the space or the sweep would overwrite, and for a strategy that is none of its own."""
    if path == STRATEGY and value == AUTO:
        raise CrossflowError("auto is no strategy of a member; give one, or search one for all members: space: {strategy: legal}")
    for what, other in _varied(spec):
        below = other.removeprefix(f"{path}.")
        inside = below != other and isinstance(value, Mapping) and held(value, below.split(".")) is not None
        if path == other or path.startswith(f"{other}.") or inside:
            raise CrossflowError(f"the {what} changes '{other}'; a member differs in what nothing else changes")


def _check_member(member: Variant, spec: StudyFile, scenario: Scenario, document: Document) -> None:
    """SpecError for a member that makes no scenario."""
    searched = STRATEGY in [path for _, path in _varied(spec)]
    try:
        made = replace(member, settings={**member.settings, STRATEGY: ANY}).of(scenario) if searched else member.of(scenario)
        check_strategy(made)
    except CrossflowError as error:
        place = ("portfolio", "members", member.name)
        about = [p.path for p in error.problems] if isinstance(error, SpecError) else []
        key = next((path for path in member.settings if any(f"{one}.".startswith(f"{path}.") for one in about)), None)
        raise document.error((*place, *([key] if key else [])), f"{member.name}: {error.said}") from None


def _varied(spec: StudyFile) -> Iterator[tuple[str, str]]:
    """Paths that a study's space and sweep change, with the section that does."""
    yield from (("space", path) for path in spec.space)
    for name, values in spec.sweep.items():
        paths = dict.fromkeys(path for settings in values.values() for path in settings) if is_together(values) else (name,)
        yield from (("sweep", path) for path in paths)


def usual_goal(spec: StudyFile, scenario: Scenario, document: Document) -> str:
    """What designs are judged by where a study names no objective: the usual column of all members, `USUAL` where these differ."""
    found = {usual_objective(member.of(scenario)) for member in members_of(spec, scenario, document)}
    return found.pop() if len(found) == 1 else USUAL


# ------------------------------------------------------------------------------------------ columns


def plain_name(name: str, members: Sequence[Variant]) -> str:
    """The name of a column without that of the member that it ends with."""
    return next((name.removesuffix(f".{m.name}") for m in members if m.name and name.endswith(f".{m.name}")), name)


def known_of(members: Sequence[Variant], scenario: Scenario, settings: Mapping[str, Sequence[Any]], asked: Sequence[str]) -> list[Known]:
    """Columns of each member, as far as that is needed to know those asked for."""
    plain = tuple(dict.fromkeys(plain_name(name, members) for name in asked))
    return [known_columns(member.of(scenario), settings, plain) for member in members]


def known_together(spec: StudyFile, members: Sequence[Variant], known: Sequence[Known]) -> Known:
    """Columns of rows that are judged by members: what any of them has, and that of each with its name."""
    columns, figures = (dict.fromkeys(name for one in known for name in getattr(one, what)) for what in ("columns", "figures"))
    lacks = {name: why for one in known for name, why in one.lacks.items() if name not in figures}
    ended = [f"{name}.{member.name}" for member, one in zip(members, known, strict=True) if member.name for name in one.figures]
    ended += [USUAL, *(f"{USUAL}.{member.name}" for member in members)] if USUAL in spec.objectives else []
    return Known((*columns, *ended, *(one.name for one in _measured(spec, ()))), (*figures, *ended), lacks)


def _check_columns(spec: StudyFile, members: Sequence[Variant], known: Sequence[Known], document: Document) -> None:
    """SpecError for objectives and constraints that not all members have."""
    problems = []
    for name in (name for name in spec.objectives if name != USUAL):
        if (plain := plain_name(name, members)) != name:
            words = f"an objective is one of all members; give {plain}, or bound the member: constraints: {{{name}: ...}}"
            raise document.error(("objectives", name), f"'{name}': {words}")
        problems += _lacking(("objectives", name), name, members, known, document)
    for name in spec.constraints:
        if name != "fits":
            mine = [i for i, one in enumerate(members) if plain_name(name, [one]) != name] or range(len(members))
            some, columns = [members[i] for i in mine], [known[i] for i in mine]
            problems += _lacking(("constraints", name), plain_name(name, members), some, columns, document)
    if taken := [m.name for m, one in zip(members, known, strict=True) if any(f"{name}.{m.name}" in one.columns for name in one.columns)]:
        problems = [document.problem(("portfolio", "members", taken[0]), f"columns end with '{taken[0]}' already; give it another name")]
    if problems:
        raise SpecError(problems)


def _lacking(place: Path_, name: str, members: Sequence[Variant], known: Sequence[Known], document: Document) -> list[Problem]:
    """What is wrong with a column that some members lack."""
    without = [(member, one) for member, one in zip(members, known, strict=True) if name not in one.figures]
    if not without or len(without) == len(members):
        return column_problems([(place, name, known[0].figures)], known[0], document) if without else []
    having = next(member.name for member in members if member.name not in [one.name for one, _ in without])
    member, one = without[0]
    why = one.lacks.get(name) or f"{member.name} has no column '{name}'"
    cure = f"; bound a member that has it: {name}.{having}" if place[0] == "constraints" else ""
    return [document.problem(place, f"{member.name}: {why}{cure}")]


# ------------------------------------------------------------------------------------------ the problem


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What designs of a study are judged by."""

    members: tuple[Variant, ...]
    sampling: sweeps.Sampling | None

    @property
    def draws(self) -> Mapping[str, Array]:
        """All draws by path."""
        return {} if self.sampling is None else self.sampling.every()


def judged_by(spec: StudyFile, scenario: Scenario, values: Mapping[str, Sequence[Any]], document: Document) -> Judged:
    """What designs are judged by; `values` are swept or searched, by path."""
    members, sampling = members_of(spec, scenario, document), None
    if spec.uncertainty is not None:
        with document.telling("uncertainty"):
            sampling = sweeps.sampling(spec.uncertainty, [member.of(scenario) for member in members], values)
    return Judged(members=members, sampling=sampling)


def portfolio_problem(
    spec: StudyFile, scenario: Scenario, space: Space, judged: Judged, choices: Mapping[str, Sequence[Any]], goals: Sequence[Objective],
    constraints: Sequence[Constraint], document: Document,
) -> PortfolioProblem:  # fmt: skip
    """The problem of a study at one of its swept points."""
    members = judged.members
    asked = [name for name in (*spec.objectives, *spec.constraints) if name not in ("fits", USUAL)]
    known = known_of(members, scenario, choices, asked)
    _check_columns(spec, members, known, document)
    found = known_together(spec, members, known)
    columns = [plain_name(name, members) for name in (*recorded(spec, found.columns), *money(spec, found.columns))]
    measured = _measured(spec, goals)
    return PortfolioProblem(
        scenario=scenario,
        space=space,
        objectives=measured,
        constraints=tuple(replace(one, name=plain_name(one.name, members)) for one in constraints),
        fits=bool(spec.constraints.get("fits", True)),
        columns=tuple(dict.fromkeys(name for name in columns if name not in (REGRET, LOSS))),
        members=tuple(_member(member, scenario, judged, choices, constraints, each=USUAL in spec.objectives) for member in members),
        goals=tuple(goals),
        draws=judged.draws,
        mean="geometric" if spec.portfolio is None else spec.portfolio.mean,
        measure="mean" if spec.uncertainty is None else spec.uncertainty.measure,
        quantile=None if spec.uncertainty is None else spec.uncertainty.quantile,
    )


def _measured(spec: StudyFile, goals: Sequence[Objective]) -> tuple[Objective, ...]:
    """Objectives as columns of rows: those that are ratios to own bests have names of their own."""
    if spec.uncertainty is not None and spec.uncertainty.measure == "regret":
        return (Objective(name=REGRET),)
    if spec.portfolio is not None and spec.portfolio.mean == "worst":
        return (Objective(name=LOSS),)
    return tuple(goals)


def _member(
    member: Variant, scenario: Scenario, judged: Judged, choices: Mapping[str, Sequence[Any]], constraints: Sequence[Constraint],
    *, each: bool,
) -> Member:  # fmt: skip
    """A member of the problem: constraints on all members hold for it, and those on it alone; `each` has an objective of its own."""
    here = member.of(scenario)
    own = [replace(one, name=plain_name(one.name, [member])) for one in constraints]
    mine = [one for one in own if plain_name(one.name, judged.members) == one.name]
    drawn: tuple[str, ...] = ()
    if judged.sampling is not None:
        there = {number.path for number in sweeps.numbers_of([here], choices, judged.sampling.settings.parameters)}
        drawn = tuple(n.path for n in judged.sampling.numbers if n.path in there and n.path not in member.settings)
    goals = (Objective(name=usual_objective(here)),) if each else ()
    return Member(name=member.name, scenario=here, weight=member.weight, constraints=tuple(mine), drawn=drawn, goals=goals)


def shared_space(spaces: Sequence[Space], members: Sequence[Variant]) -> Space:
    """The space of all members, with the strategies that each of them has; CrossflowError where their devices have other quantities."""
    first = spaces[0]
    for member, other in zip(members, spaces, strict=True):
        if (other.ranges, other.shares) != (first.ranges, first.shares):
            raise CrossflowError(f"{member.name}: its device has other shares or ranges than that of {members[0].name}; search one device")
    options = []
    for option in first.options:
        others = [next((o.values for o in other.options if o.path == option.path), ()) for other in spaces]
        values = tuple(value for value in option.values if all(value in other for other in others))
        if not values:
            raise CrossflowError(f"{option.path}: no value suits all members")
        options.append(replace(option, values=values))
    return replace(first, options=tuple(options))
