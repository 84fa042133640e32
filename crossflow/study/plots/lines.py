"""Lines over a swept path or the searches; marks say what bounds each point and whether it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.drawing.canvas import (
    DOES_NOT_FIT,
    MARKERS,
    Scale,
    Ticks,
    bound_marks,
    colour_of,
    coloured_lines,
    first_of_rows,
    grey_mark,
    legend_below,
    nothing,
    number_axis,
    panels,
    tick_axis,
)
from crossflow.study.plots.axes import panel_name, scale, ticks, title_of, written_as
from crossflow.study.plots.columns import Columns, column, fixed, flags, floats, having, places_of, rows_with, shown, values_of
from crossflow.study.plots.spec import LinePlot
from crossflow.study.plots.view import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Series(NamedTuple):
    """One line: values at places of the x axis, what bounds each point, whether it fits."""

    name: str
    x: list[float]
    y: list[float]
    bound: list[str]
    feasible: list[bool]


class Panel(NamedTuple):
    """One set of axes."""

    name: str
    series: list[Series]


class LineData(NamedTuple):
    """Everything that a plot of lines shows."""

    title: str
    x: Ticks
    y: Scale
    legend: str
    panels: list[Panel]


def line_data(view: View, plot: LinePlot) -> LineData:
    """Lines of a study: the points of a sweep, the best designs of searches.

    What the plot does not name stays at its first value; points without a finite value are left out.
    """
    rows, axis = shown(view), ticks(view, plot.x, plot.labels, plot.x_label)
    values = floats(rows, plot.y)
    chosen = rows_with(rows, fixed(view, plot.x, plot.series, plot.panels)) & np.isfinite(values)
    at = places_of(rows, plot.x, values_of(view, plot.x))
    found = []
    for panel in values_of(view, plot.panels):
        mine = chosen & having(rows, plot.panels, panel)
        series = [_series(rows, mine & having(rows, plot.series, line), at, axis, plot, line) for line in values_of(view, plot.series)]
        found.append(Panel(panel_name(plot.panels, panel, plot.labels), series))
    y = scale(view, plot.y, values[chosen], plot.y_label, log=False)
    return LineData(plot.title, axis, y, title_of(plot.series or ""), found)


def _series(rows: Columns, mine: Any, at: Any, axis: Ticks, plot: LinePlot, line: Any) -> Series:
    """The chosen rows that lie on the axis, from left to right."""
    held = [int(i) for i in np.flatnonzero(mine & (at >= 0))]
    held.sort(key=lambda i: axis.places[at[i]])
    y, bound, feasible = floats(rows, plot.y), column(rows, "bound_by"), flags(rows, "feasible")
    return Series(
        name=written_as(line, plot.labels),
        x=[axis.places[at[i]] for i in held],
        y=[float(y[i]) for i in held],
        bound=[str(bound[i]) for i in held],
        feasible=[bool(feasible[i]) for i in held],
    )


def draw_lines(data: LineData) -> Figure:
    """Draw lines: marker shapes say what bounds a point, hollow ones that it does not fit."""
    every = [series for panel in data.panels for series in panel.series]
    if not any(series.x for series in every):
        return nothing(data.title, f"no point has a finite value ({data.y.label})")
    width = 3.6 if data.x.real or len(data.panels) > 1 else min(max(3.6, 0.3 * len(data.x.names)), 10.0)
    figure, axes = panels([panel.name for panel in data.panels], data.title, width=width)
    for axis, panel in zip(axes, data.panels, strict=True):
        for i, series in enumerate(panel.series):
            # Later lines are thinner, their marks smaller, so that lines which lie on one another can all be seen.
            _draw_series(axis, series, colour_of(i), i / max(len(panel.series) - 1, 1))
        tick_axis(axis.xaxis, data.x, width - 0.7)
    for axis in first_of_rows(axes):
        number_axis(axis.yaxis, data.y)
        highest = max((y for series in every for y in series.y), default=1.0)
        axis.set_ylim(0, 1.06 * highest if highest > 0 else 1.0)
    marks = bound_marks(bound for series in every for bound in series.bound)
    if not all(fits for series in every for fits in series.feasible):
        marks.append(grey_mark(f"hollow: {DOES_NOT_FIT}", marker="o", markerfacecolor="white"))
    legend_below(figure, [*coloured_lines(data.legend, [series.name for series in data.panels[0].series]), *marks])
    return figure


def _draw_series(axis: Axes, series: Series, colour: str, slimmer: float) -> None:
    axis.plot(series.x, series.y, color=colour, linewidth=4.0 - 2.8 * slimmer, zorder=2)
    for x, y, bound, feasible in zip(series.x, series.y, series.bound, series.feasible, strict=True):
        mark: dict[str, Any] = {"marker": MARKERS.get(bound, "*"), "markersize": 10 - 5 * slimmer, "linestyle": "none"}
        axis.plot([x], [y], color=colour, markerfacecolor=colour if feasible else "white", zorder=3, **mark)
