"""What draws of uncertain numbers say: which of them matter, and the interval of a column at each swept point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.answers.study.plots.axes import panel_name, scale, shorten, ticks, title_of, written_as
from crossflow.answers.study.plots.columns import SEARCH, fixed, values_of
from crossflow.answers.study.plots.spec import ImportancePlot, IntervalPlot
from crossflow.answers.study.plots.view import Drawn, View
from crossflow.base.drawing.canvas import (
    Scale,
    Ticks,
    coloured_lines,
    grey_mark,
    legend_below,
    legend_groups,
    new_figure,
    nothing,
    number_axis,
    panels,
    tick_axis,
    tidy,
)
from crossflow.base.drawing.palette import COLOURS, GREY, colour_of
from crossflow.base.drawing.words import label, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 9
LONGEST_PARAMETER = 44  # characters


# ------------------------------------------------------------------------------------------ importance


class ImportancePanel(NamedTuple):
    """Rank correlations at one swept point, one for each parameter. [1]"""

    name: str
    correlations: list[float]


class ImportanceData(NamedTuple):
    """Everything that a plot of importance shows; `left_out` swept points are not, and neither are `weak` parameters."""

    title: str
    x_label: str
    parameters: list[str]
    panels: list[ImportancePanel]
    left_out: int
    weak: int = 0  # parameters that are not shown, because chance alone gives such correlations
    chance: float = 0.0  # below which that is so. [1]


def importance_data(view: View, plot: ImportancePlot) -> ImportanceData:
    """Rank correlations of a column with the parameters that matter most at any swept point, the most important first."""
    drawn = [found for found in view.drawn if found.column == plot.y]
    largest: dict[str, float] = {}
    for found in drawn[:MOST_PANELS]:
        for path, value in found.importance.items():
            largest[path] = max(largest.get(path, 0.0), abs(value))
    chance = 2.0 / np.sqrt(view.draws) if view.draws else 0.0  # correlations of so many draws that mean nothing are below it
    paths = [path for path in sorted(largest, key=lambda path: -largest[path])[: plot.top] if largest[path] >= chance]
    written = dict(zip(largest, shorten(list(largest)), strict=True))
    shown = [_importance_panel(found, paths, plot) for found in drawn[:MOST_PANELS]]
    title = plot.x_label or f"Rank correlation with {title_of(plot.y).lower()}"
    names = [plot.labels.get(path, written[path]) for path in paths]
    weak = sum(value < chance for value in largest.values())
    return ImportanceData(plot.title, title, names, shown, max(len(drawn) - MOST_PANELS, 0), weak, chance)


def _importance_panel(found: Drawn, paths: list[str], plot: ImportancePlot) -> ImportancePanel:
    name = ", ".join(panel_name(path, value, plot.labels) for path, value in found.point.items())
    return ImportancePanel(name, [float(found.importance.get(path, 0.0)) for path in paths])


def draw_importance(data: ImportanceData) -> Figure:
    """Draw bars to the right for what raises the column, to the left for what lowers it."""
    from matplotlib.patches import Patch

    if not data.parameters:
        return nothing(data.title, "no uncertain number was drawn for this column")
    height = 0.8 + 0.26 * len(data.parameters)
    figure, axes = panels([panel.name for panel in data.panels], data.title, width=3.0, height=height)
    figure.set_figwidth(figure.get_figwidth() + 0.06 * max(len(short(name, LONGEST_PARAMETER)) for name in data.parameters))
    places = list(range(len(data.parameters)))
    for axis, panel in zip(axes, data.panels, strict=True):
        colours = [COLOURS[1] if value > 0 else COLOURS[0] for value in panel.correlations]
        axis.barh(places, panel.correlations, color=colours, height=0.7, zorder=2)
        axis.axvline(0.0, color="black", linewidth=0.8, zorder=3)
        axis.set_yticks(places, [short(name, LONGEST_PARAMETER) for name in data.parameters], fontsize=9)
        axis.set_xlim(-1.0, 1.0)
        axis.set_xticks([-0.5, 0.0, 0.5], ["-0.5", "0", "0.5"])
        axis.set_xlabel(data.x_label, fontsize=9)
        axis.grid(visible=False, axis="y")
        axis.grid(visible=True, axis="x", color="#dddddd", linewidth=0.6)
    axes[0].set_ylim(len(places) - 0.4, -0.6)
    handles = [Patch(color=COLOURS[1], label="raises it"), Patch(color=COLOURS[0], label="lowers it")]
    if data.left_out:
        handles.append(grey_mark(f"{data.left_out} more swept points are not shown", marker=""))
    if data.weak:
        handles.append(grey_mark(f"{data.weak} more below {data.chance:.2f}, as chance would give, are not shown", marker=""))
    legend_below(figure, handles)
    return figure


# ------------------------------------------------------------------------------------------ intervals


class IntervalSeries(NamedTuple):
    """One line: medians at places of the x axis, the ends of their intervals, which may be infinite, and the draws that are feasible."""

    name: str
    x: list[float]
    median: list[float]
    low: list[float]
    high: list[float]
    feasible: list[float]  # share of the draws


class IntervalData(NamedTuple):
    """Everything that a plot of intervals shows."""

    title: str
    x: Ticks
    y: Scale
    legend: str
    series: list[IntervalSeries]
    share: float = 0.0  # of the draws in an interval, 0 where that is not known. [1]


def interval_data(view: View, plot: IntervalPlot) -> IntervalData:
    """Intervals of a column at swept points with a finite median; what the plot does not name stays at its first value."""
    axis = ticks(view, plot.x, plot.labels, plot.x_label)
    still = {path: value for path, value in fixed(view, plot.x, plot.series).items() if path != SEARCH}
    drawn = [found for found in view.drawn if found.column == plot.y and np.isfinite(found.interval.median)]
    drawn = [found for found in drawn if all(found.point.get(path) == value for path, value in still.items())]
    place = dict(zip(map(label, values_of(view, plot.x)), axis.places, strict=True))
    series = []
    for line in values_of(view, plot.series):
        mine = [found for found in drawn if plot.series is None or found.point.get(plot.series) == line]
        placed = {place[label(found.point[plot.x])]: found for found in mine if plot.x in found.point}
        series.append(_interval_series(written_as(line, plot.labels), placed))
    ends = [end for one in series for end in (*one.median, *one.high)]
    log = plot.scale == "log"
    y = scale(view, plot.y, ends, plot.y_label, log=log)
    return IntervalData(plot.title, axis, y, title_of(plot.series or ""), series, view.interval)


def _interval_series(name: str, placed: Mapping[float, Drawn]) -> IntervalSeries:
    x = sorted(placed)
    found = [placed[at].interval for at in x]
    feasible = [placed[at].feasible for at in x]
    return IntervalSeries(name, x, [one.median for one in found], [one.low for one in found], [one.high for one in found], feasible)


def draw_intervals(data: IntervalData) -> Figure:
    """Draw medians joined by lines, their intervals as bars; an arrow where an interval has no upper end."""
    every = [end for series in data.series for end in (*series.median, *series.high)]
    if not every:
        return nothing(data.title, f"no swept point has a finite median ({data.y.label})")
    top = 1.08 * max(end for end in every if np.isfinite(end))
    lowest = min(end for series in data.series for end in series.low)
    width = min(max(5.6, 1.6 + 0.5 * len(data.x.names)), 12.0)
    figure = new_figure(width, 4.0, data.title)
    axis = figure.subplots()
    for i, series in enumerate(data.series):
        _draw_intervals(axis, series, _beside(data, i), top, colour_of(i))
    tick_axis(axis.xaxis, data.x, width - 0.9)
    number_axis(axis.yaxis, data.y)
    if data.y.log:
        axis.set_ylim(0.85 * lowest, 1.25 * top)
    else:
        axis.set_ylim(0, 1.12 * top)
    tidy(axis)
    named = coloured_lines([series.name for series in data.series])
    handles = [grey_mark(f"median and {f'{100 * data.share:.3g} % ' if data.share else ''}interval of the draws", marker="o", markersize=5)]
    if any(np.isinf(series.high).any() for series in data.series):
        handles.append(grey_mark("no upper end: too many draws cannot be built", marker="^", color=GREY))
    if any(share < 1 for series in data.series for share in series.feasible):
        handles.append(grey_mark("%: draws that can be built and fit in memory", marker=""))
    legend_groups(figure, {data.legend if named else "": named, "Marks": handles})
    return figure


def _beside(data: IntervalData, i: int) -> Any:
    """Places of a series, moved by a little so that the bars of one value stand beside one another."""
    places = np.array(data.series[i].x)
    along = np.sort(np.log(data.x.places) if data.x.log else np.array(data.x.places))
    gap = float(np.diff(along).min()) if along.size > 1 else 1.0
    shift = gap * min(0.2, 0.6 / len(data.series)) * (i - (len(data.series) - 1) / 2)
    return np.exp(np.log(places) + shift) if data.x.log else places + shift


def _draw_intervals(axis: Axes, series: IntervalSeries, places: Any, top: float, colour: str) -> None:
    median, high = np.array(series.median), np.array(series.high)
    drawn = np.where(np.isfinite(high), high, top)
    style: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 1.4, "elinewidth": 1.6, "capsize": 3}
    axis.errorbar(places, median, [median - series.low, drawn - median], color=colour, **style)
    endless = ~np.isfinite(high)
    axis.plot(places[endless], drawn[endless], "^", color=colour, markersize=8)
    for place, end, share in zip(places, drawn, series.feasible, strict=True):
        if share < 1:
            axis.annotate(f"{100 * share:.0f} %", (place, end), (0, 6), textcoords="offset points", ha="center", fontsize=8, color=colour)
