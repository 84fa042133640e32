"""Study files: a scenario, what varies or is searched, and what is shown of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from crossflow.answers.explanation.uncertainty import Distribution, Movement
from crossflow.answers.points import is_together
from crossflow.answers.search.settings import BEST, TAIL, Mean, Measure, SearchSettings
from crossflow.answers.study.plots.spec import Plot
from crossflow.base import files
from crossflow.base.files import Document, FileModel
from crossflow.base.limits import Finite, Flag, PositiveInt, Seed
from crossflow.base.units import parse

MOST_POINTS = 10**7  # of one study, unless more are asked for
MOST_VALUES = 10**6  # of one range


class SpacedRange(FileModel):
    """Evenly spaced values between two quantities, on a linear or a logarithmic scale."""

    start: str | Finite = Field(alias="from")
    stop: str | Finite = Field(alias="to")
    count: Annotated[PositiveInt, Field(le=MOST_VALUES)]
    scale: Literal["linear", "log"] = "linear"


class Uncertainty(FileModel):
    """Numbers that carry low and high, drawn together for every point of the study, or for every design of its searches."""

    samples: Annotated[PositiveInt, Field(ge=2)] = Field(
        default=1000, description="draws of all uncertain numbers; each design of a search is evaluated in all of them"
    )
    seed: Seed = Field(default=0, description="of the draws")
    distribution: Distribution = Field(default="triangular", description="between low and high: value as mode, or flat")
    numbers: Movement = Field(
        default="together",
        description="together: all numbers of one entry of the library (a node, a memory, a link) turn out well or badly by one quantile, "
        "and a later generation is no worse than an earlier one where their ranges allow; independent: each number by itself",
    )
    correlation: Annotated[Finite, Field(ge=0, le=1)] = Field(
        default=0.8, description="of the quantiles of successive generations of one family (N7 and N5, HBM3 and HBM4), an assumption"
    )
    parameters: tuple[str, ...] | None = Field(
        default=None, description="paths, or the beginnings of paths, of the numbers to draw; every one with low and high where absent"
    )
    interval: Annotated[Finite, Field(gt=0, lt=1)] = Field(
        default=0.9, description="share of the draws that an interval of a swept point holds"
    )
    measure: Measure = Field(
        default="mean",
        description="what searches make as good as can be: the mean of the objective over the draws; a `quantile` of it, on its bad "
        "side; the worst draw; or the regret, the largest loss in any draw against that draw's own best design (column `regret`)",
    )
    quantile: Annotated[Finite, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description=f"of the draws, for `measure: quantile` ({TAIL} where absent) and `measure: regret` (the largest regret where absent)",
    )
    draw_evaluations: PositiveInt = Field(
        default=1000,
        description="designs to evaluate for each draw's own best, with searches; a space of at most "
        f"{BEST:,} designs is looked at as a whole",
    )


class Portfolio(FileModel):
    """Workloads that one design of the searches is to serve, each a variant of the scenario."""

    members: Annotated[Mapping[str, Mapping[str, Any]], Field(min_length=1)] = Field(
        description="by name, what differs from the scenario: settings by path, as in `sweep` (`workload.task: decode` sets one field, "
        "`workload: {...}` the whole section), and `weight` (1 where absent)"
    )
    mean: Mean = Field(
        default="geometric",
        description="how an objective of the members becomes one number, by their weights: the geometric mean, which depends on no units; "
        "arithmetic, where weights are numbers of runs; or worst, the largest loss against a member's own best design, times its weight "
        "(column `loss`)",
    )
    member_evaluations: PositiveInt = Field(
        default=5000,
        description="designs to evaluate for each member's own best, with the library's values; a space of at most "
        f"{BEST:,} designs is looked at as a whole",
    )
    seed: Seed = Field(default=0, description="of the searches for members' own bests")


MONEY = ("usd_per_million_tokens", "usd_per_million_samples")  # columns that a study with a price has
OF_SEARCHES = ("measure", "quantile", "draw_evaluations")  # fields of `uncertainty` that only searches have a use for
PER_DRAW = ("each", "draw_evaluations")  # fields of `redivide` that only draws of uncertain numbers have a use for


class Redivide(FileModel):
    """Budgets of a generated device, divided anew at every point of the study."""

    goal: str = Field(
        default="step_time_s", description="column to make small, or large where more of it is better; for services `e2el_s` where absent"
    )
    shares: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        default=("area", "power", "perimeter"),
        description="`area`, `power` and `perimeter` for all shares of these budgets that the device has, or paths of shares or "
        "beginnings of paths; the others stay as they are",
    )
    microarchitecture: Flag = Field(
        default=True, description="whether the quantities that the template's `microarchitecture` names are chosen with the shares"
    )
    evaluations: PositiveInt = Field(default=20_000, description="designs to evaluate for each swept point")
    each: Literal["draw", "point"] = Field(
        default="draw",
        description="with `uncertainty`: divide anew for each draw, as a designer who knows the technology by then, or only for each swept "
        "point with the library's values, as one who decides before",
    )
    draw_evaluations: PositiveInt = Field(default=500, description="designs to evaluate for each draw, from the division of its point on")
    seed: Seed = Field(default=0, description="of everything that is drawn")


def _listed(given: Any) -> Any:
    """A single column as a list of one."""
    return (given,) if isinstance(given, str) else given


class StudyFile(FileModel):
    """A sweep over a scenario (every combination of the values listed for each path), or searches of a space."""

    name: str = Field(default="", description="of the folder of its results; that of the file where absent")
    title: str = ""
    notes: str = ""
    scenario: Any
    sweep: Mapping[str, Any] = Field(
        default={},
        description="values by path; every combination is a point, or is searched by itself. What changes together has a name of its own, "
        "and settings by path for each of its values: `hardware: {H100: {system.template: ...}, B200: {...}}`",
    )
    space: Mapping[str, Any] = Field(default={}, description="what searches may change, by path")
    objectives: Annotated[tuple[str, ...] | Mapping[str, Literal["minimise", "maximise"]], BeforeValidator(_listed)] = Field(
        default=("step_time_s",),
        min_length=1,
        description="columns to make small; or each with its direction; for services `e2el_s` where absent",
    )
    constraints: Mapping[str, Any] = Field(default={}, description="bounds by column, such as `<= 160 kW`; `fits: false` ignores memory")
    searches: Mapping[str, SearchSettings] = Field(
        default={}, description=f"searches by name, one after the other; exhaustive where absent and the space has at most {BEST:,} designs"
    )
    redivide: Redivide | None = Field(default=None, description="divide the budgets of a generated device anew at every point")
    uncertainty: Uncertainty | None = Field(
        default=None, description="draw the numbers that carry low and high at every point, or for every design of the searches"
    )
    portfolio: Portfolio | None = Field(default=None, description="search one design for several workloads")
    record: tuple[str, ...] | Literal["all"] | None = Field(
        default=None, description="columns of a point to write; all in a sweep, else those that the study names, where absent"
    )
    columns: tuple[str, ...] = ()
    headers: Mapping[str, str] = {}
    plots: tuple[Plot, ...] = Field(default=(), description="pictures; one that suits the study where absent, `[]` for none")

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, given: Any) -> Any:
        """With the search of a space that has none, and a plot where none is asked for."""
        if not isinstance(given, Mapping):
            return given
        whole = {"searches": {"all": {"searcher": "exhaustive"}}, **given} if given.get("space") else given
        return {"plots": _suiting(whole), **whole}

    @model_validator(mode="after")
    def _sections_agree(self) -> StudyFile:
        both = next((path for path in self.sweep if path in self.space), None)
        if both is not None:
            raise ValueError(f"space: '{both}' is swept too; a path is either swept or searched")
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"objectives: {', '.join(self.objectives)}: the same one twice")
        if self.searches and not self.space:
            raise ValueError("space: missing; a search needs what it may change")
        if not self.sweep and not self.space and self.uncertainty is None and self.redivide is None:
            raise ValueError("sweep: a study needs a sweep, searches with a space, redivide, or uncertainty")
        self._draws_and_members_agree()
        if self.searches and self.redivide is not None:
            raise ValueError("redivide: a study with searches divides budgets in its space: add `system.budgets.area: shares` there")
        ignored = [] if self.redivide is None else [name for name in PER_DRAW if name in self.redivide.model_fields_set]
        if ignored and self.uncertainty is None:
            raise ValueError(f"redivide: {ignored[0]}: it is about the draws of `uncertainty`, and this study has none")
        if "draw_evaluations" in ignored and self.redivide is not None and self.redivide.each == "point":
            raise ValueError("redivide: draw_evaluations: with `each: point` no draw is divided anew")
        if self.constraints and not self.searches and self.redivide is None:
            raise ValueError("constraints: they bound searches and `redivide`, and this study has neither")
        if "objectives" in self.model_fields_set and not self.searches:
            words = "; name the column in `redivide: {goal: ...}`" if self.redivide is not None else ""
            raise ValueError(f"objectives: they are those of searches, and this study has none{words}")
        return self

    def _draws_and_members_agree(self) -> None:
        """ValueError for sections about draws and members of which something would change nothing."""
        drawn = self.uncertainty
        if self.portfolio is not None and not self.searches:
            cure = "give a space, or sweep the workloads by name: sweep: {work: {train: {...}, serve: {...}}}"
            told = "; add `system.budgets.area: shares` to it in the place of `redivide`" if self.redivide is not None else ""
            raise ValueError(f"portfolio: only searches judge designs by it, and this study has none; {cure}{told}")
        unused = [] if drawn is None or self.searches else [name for name in OF_SEARCHES if name in drawn.model_fields_set]
        if unused:
            raise ValueError(f"uncertainty: {unused[0]}: it is about searches, and this study has none; draws of points have an `interval`")
        if drawn is not None and self.searches and "interval" in drawn.model_fields_set:
            raise ValueError("uncertainty: interval: it is told of swept points; a search has `measure: quantile` with a `quantile`")
        if drawn is not None and drawn.quantile is not None and drawn.measure not in ("quantile", "regret"):
            raise ValueError(f"uncertainty: quantile: `measure: {drawn.measure}` has none; give measure: quantile, or regret")
        ratios = (drawn is not None and drawn.measure == "regret", self.portfolio is not None and self.portfolio.mean == "worst")
        if any(ratios) and len(self.objectives) > 1:
            what = "uncertainty: measure: regret" if ratios[0] else "portfolio: mean: worst"
            raise ValueError(f"{what}: own bests are of one objective, and this study has {len(self.objectives)}; give one")

    @model_validator(mode="after")
    def _plots_use_the_sweep(self) -> StudyFile:
        for plot in self.plots:
            for field in ("x", "series", "panels"):
                path = getattr(plot, field, None)
                if plot.kind == "lines" and path is not None and path not in (*self.sweep, *(("search",) if self.searches else ())):
                    raise ValueError(f"plots: {plot.name}: {field} is '{path}', which is not swept; swept: {', '.join(self.sweep)}")
        return self

    @model_validator(mode="after")
    def _lines_are_at_swept_values(self) -> StudyFile:
        for plot in self.plots:
            for path, value in plot.where.items() if plot.kind == "lines" else ():
                if path not in self.sweep:
                    raise ValueError(f"plots: {plot.name}: where has '{path}', which is not swept; swept: {', '.join(self.sweep)}")
                values = self.sweep[path]
                if isinstance(values, list) and value not in values:
                    raise ValueError(f"plots: {plot.name}: where has {path} at {value}; swept: {', '.join(map(str, values))}")
        return self

    @model_validator(mode="after")
    def _plots_have_files_of_their_own(self) -> StudyFile:
        names = [plot.name.casefold() for plot in self.plots]
        if twice := next((plot.name for i, plot in enumerate(self.plots) if plot.name.casefold() in names[:i]), None):
            raise ValueError(f"plots: two are named '{twice}', and would be one file {twice}.png")
        return self

    @property
    def shown(self) -> tuple[str, ...]:
        """Columns of the table."""
        if self.columns:
            return self.columns
        return () if self.searches else ("step_time_s", "bound_by", "reason")


def _suiting(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The plot of a study that asks for none; nothing of sections that are not what they should be, which is told elsewhere."""
    sweep, space, asked = given.get("sweep") or {}, given.get("space") or {}, given.get("objectives", "step_time_s")
    if not isinstance(sweep, Mapping) or not isinstance(space, Mapping) or not isinstance(asked, str | list | tuple | Mapping):
        return []
    goals = [asked] if isinstance(asked, str) else [goal for goal in asked if isinstance(goal, str)]
    figure = goals[0] if goals and space else "step_time_s"
    swept = sorted((path for path in sweep if isinstance(path, str)), key=lambda path: -values_of(sweep[path]))
    lines = dict(zip(("x", "series", "panels"), swept, strict=False))
    if space and len(goals) > 1:
        return [{"name": "front", "kind": "pareto", "x": goals[0], "y": goals[1]}]
    if swept and not space and given.get("uncertainty") is not None:
        return [{"name": figure, "kind": "intervals", "y": figure, **{key: lines[key] for key in ("x", "series") if key in lines}}]
    if swept:
        return [{"name": figure, "y": figure, **lines}]
    if given.get("uncertainty") is not None and not space:
        return [{"name": "importance", "kind": "importance"}]
    if space and (given.get("uncertainty") is not None or given.get("portfolio") is not None):
        return [{"name": "losses", "kind": "losses"}]
    if space:
        return [{"name": "designs", "kind": "parallel"} if len(space) > 1 else {"name": "convergence", "kind": "convergence"}]
    return []


def values_of(given: Any) -> int:
    """How many values a swept path has; what is wrong with them is told later."""
    if is_together(given):
        return len(given)
    count = given.get("count", 1) if isinstance(given, Mapping) else len(given) if isinstance(given, list) else 1
    return int(count) if isinstance(count, int | float) and count >= 1 else 1


def sweep_values(path: str, values: Any, document: Document) -> list[Any]:
    """Values of one swept path: a list as it stands, a range worked out in its unit, or names of settings that change together."""
    place = ("sweep", path)
    if isinstance(values, list) and values:
        return values
    if is_together(values):
        return list(values)
    if not isinstance(values, Mapping):
        words = "; 'legal' belongs in the space of a search" if path == "strategy" and values == "legal" else ""
        raise document.error(place, f"expected a list of values, {{from: ..., to: ..., count: ...}}, or settings by name{words}")
    if any(isinstance(value, list) for value in values.values()):  # a guess at how paths are coupled
        raise document.error(
            place,
            "what changes together is written by name, with settings by path for each of its values: "
            "{small: {system.nodes: 1, workload.global_batch: 64}, large: {system.nodes: 4, workload.global_batch: 256}}",
        )
    if any(isinstance(value, Mapping) for value in values.values()):
        name, strange = next((name, value) for name, value in values.items() if not isinstance(value, Mapping))
        raise document.error((*place, name), f"expected settings by path, such as {{system.nodes: 4}}, got {strange!r}")
    described = files.validate_at(SpacedRange, document, *place)
    return spaced(described, document, place)


def spaced(described: SpacedRange, document: Document, place: tuple[str, str]) -> list[Any]:
    """Numbers where both ends are numbers, quantities in the unit of the first end otherwise."""
    unit = str(described.start).lstrip("+-.0123456789eE_").strip() if isinstance(described.start, str) else ""
    plain = unit in ("", "%")
    with document.telling(*place):
        ends = [parse(end, "1" if plain else unit) for end in (described.start, described.stop)]
    if described.scale == "log" and min(ends) <= 0:
        raise document.error(place, "a logarithmic scale needs ends greater than zero")
    space = np.geomspace if described.scale == "log" else np.linspace
    numbers = [float(f"{value:.12g}") for value in space(ends[0], ends[1], described.count)]
    if unit == "%":
        return [f"{100 * number:.12g} %" for number in numbers]
    return numbers if plain else [f"{number:.12g} {unit}" for number in numbers]


def money(spec: StudyFile, known: Collection[str]) -> tuple[str, ...]:
    """The column of money that a study has where it names no columns: that of tokens where there are any; none without a price."""
    return () if spec.columns or isinstance(spec.record, tuple) else tuple(name for name in MONEY if name in known)[:1]


def recorded(spec: StudyFile, known: Sequence[str]) -> tuple[str, ...]:
    """Columns of a score that the rows of searches and samples hold beside objectives and constraints."""
    if spec.record == "all":
        return tuple(known)
    asked = [*(spec.record or ()), *spec.columns, *(name for plot in spec.plots for name in plot_columns(plot, known))]
    return tuple(dict.fromkeys(name for name in asked if name in known))


def plot_columns(plot: Any, known: Sequence[str]) -> list[str]:
    """Columns that a plot shows, groups written out."""
    names = [value for field in ("x", "y", "times", "value", "colour") if isinstance(value := getattr(plot, field, None), str)]
    names += getattr(plot, "axes", ())
    group = getattr(plot, "group", None)
    return names + [name for name in known if group is not None and name.startswith(f"{group}.")]
