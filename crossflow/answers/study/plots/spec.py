"""The `plots` of a study file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from crossflow.base.files import FileModel
from crossflow.base.limits import Finite, Flag, PositiveInt, Whole
from crossflow.base.names import own_file


class PlotFields(FileModel):
    """What all plots have."""

    name: Annotated[str, AfterValidator(own_file)]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    labels: Mapping[str, str] = Field(default={}, description="how values, and axes by their columns, are written in the plot")


class LinePlot(PlotFields):
    """Lines over a swept path: one line a value of `series`, one panel a value of `panels`."""

    kind: Literal["lines"] = "lines"
    x: str
    y: str = "step_time_s"
    times: str | None = Field(
        default=None, description="column by which y is multiplied, such as a cost by a time; `y_label` says what that is"
    )
    series: str | None = None
    panels: str | None = None
    where: Mapping[str, str | Whole | Finite | Flag] = Field(
        default={}, description="only rows with these values; of a swept path that nothing names, those with its first one"
    )
    scale: Literal["linear", "log"] | None = Field(
        default=None, description="of y; logarithmic where absent and the values spread over more than a decade"
    )
    speedup: Literal["line", "series", "first"] | None = Field(
        default=None,
        description="write how many times better each point is: than the first point of its `line`, than the first of the `series` at the "
        "same place, or than the `first` point of the first line in its panel",
    )


class BoxPlot(PlotFields):
    """Spread of a column over all points that share a value: quartiles, and all of the rest between the whiskers."""

    kind: Literal["boxes"]
    x: str
    y: str
    where: Mapping[str, str | Whole | Finite | Flag] = Field(default={}, description="only rows with these values")
    scale: Literal["linear", "log"] = "linear"


class ConvergencePlot(PlotFields):
    """Best objective over evaluations or time, a line for each search and a panel for each swept point."""

    kind: Literal["convergence"]
    over: Literal["evaluations", "seconds"] = Field(
        default="evaluations", description="what was spent; seconds are measured where the study ran, and differ from run to run"
    )
    scale: Literal["linear", "log"] = Field(default="log", description="of the objective")


class ParetoPlot(PlotFields):
    """All designs by two columns, with the front that none beats in both."""

    kind: Literal["pareto"]
    x: str
    y: str
    colour: str | None = Field(default=None, description="column that colours the designs")
    each: Flag = Field(default=False, description="a front for each name that colours, in place of one for all")
    where: Mapping[str, str | Whole | Finite | Flag] = Field(default={}, description="only rows with these values")


class ParallelPlot(PlotFields):
    """Parallel coordinates: one line for each of the best designs over what was searched, coloured by the objective."""

    kind: Literal["parallel"]
    axes: tuple[str, ...] = Field(default=(), description="columns, from left to right; the space and the objective where absent")
    best: PositiveInt = Field(default=200, description="designs to show")


class HeatmapPlot(PlotFields):
    """Best value of a column over two others, such as parts of the strategy (kernel, data and pipeline parallel degrees)."""

    kind: Literal["heatmap"]
    x: str
    y: str
    value: str = "step_time_s"
    where: Mapping[str, str | Whole | Finite | Flag] = Field(default={}, description="only rows with these values")


class BreakdownPlot(PlotFields):
    """Stacked bars of the parts of a column group, such as breakdown_s, over a swept path or the searches."""

    kind: Literal["breakdown"]
    x: str
    group: str = Field(default="breakdown_s", description="group of columns: breakdown_s or bound_share")
    panels: str | None = None


class ImportancePlot(PlotFields):
    """What the spread of each uncertain number does to a column, the most important first."""

    kind: Literal["importance"]
    y: str = "step_time_s"
    top: PositiveInt = 12


class IntervalPlot(PlotFields):
    """Interval and median of a column at each swept point, over the draws of uncertain numbers."""

    kind: Literal["intervals"]
    x: str
    y: str = "step_time_s"
    series: str | None = None
    scale: Literal["linear", "log"] = Field(default="linear", description="of y")


class LossPlot(PlotFields):
    """How far the best design of a search, and each own best, are from the own bests of members and draws."""

    kind: Literal["losses"]
    search: str | None = Field(default=None, description="name of the search; the first where absent")


def _with_kind(given: Any) -> Any:
    return {"kind": "lines", **given} if isinstance(given, Mapping) else given


_Kinds = (
    LinePlot | BoxPlot | ConvergencePlot | ParetoPlot | ParallelPlot | HeatmapPlot | BreakdownPlot | ImportancePlot | IntervalPlot
    | LossPlot
)  # fmt: skip
Plot = Annotated[Annotated[_Kinds, Field(discriminator="kind")], BeforeValidator(_with_kind)]
