"""Breakdowns: stacked bars of the parts of a group of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.answers.study.plots.axes import GROUPS, panel_name, ticks, title_of, written_in
from crossflow.answers.study.plots.columns import Columns, fixed, flags, floats, having, places_of, rows_with, shown, values_of
from crossflow.answers.study.plots.spec import BreakdownPlot
from crossflow.answers.study.plots.view import View
from crossflow.base.drawing.canvas import (
    DOES_NOT_FIT,
    Scale,
    Ticks,
    first_of_rows,
    legend_below,
    nothing,
    number_axis,
    panels,
    tick_axis,
)
from crossflow.base.drawing.palette import RESOURCES, colours_of
from crossflow.base.drawing.words import number, quantity
from crossflow.engine.runs.outcome import BREAKDOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("", "///", "...", "xxx")  # tell parts apart that share a colour
# Parts of a step in the order in which they are stacked, whatever else a study shows of them.
ORDER = tuple(RESOURCES)
PARTS = tuple(f"breakdown_s.{part}" for part in BREAKDOWN)


class Bar(NamedTuple):
    """One bar at a place of the x axis: its parts in the order of the legend, their sum, whether the design fits, what is written above."""

    x: float
    parts: list[float]
    total: float
    feasible: bool
    above: str


class BreakdownPanel(NamedTuple):
    """One set of axes."""

    name: str
    bars: list[Bar]


class BreakdownData(NamedTuple):
    """Everything that a plot of a breakdown shows; parts that are zero everywhere are left out."""

    title: str
    x: Ticks
    y: Scale
    parts: list[str]
    panels: list[BreakdownPanel]


def breakdown_data(view: View, plot: BreakdownPlot) -> BreakdownData:
    """Bars of a study: the points of a sweep, the best designs of searches; what the plot does not name stays at its first value."""
    rows, axis = shown(view), ticks(view, plot.x, plot.labels, plot.x_label, real=False)
    at = places_of(rows, plot.x, values_of(view, plot.x))
    columns = sorted((name for name in rows if name.startswith(f"{plot.group}.")), key=_place)
    parts = {name: np.nan_to_num(floats(rows, name), posinf=0.0) for name in columns}
    chosen = rows_with(rows, fixed(view, plot.x, plot.panels)) & (at >= 0)
    chosen &= np.any([np.isfinite(floats(rows, name)) for name in columns], axis=0) if columns else False
    kept = {name: values for name, values in parts.items() if (values[chosen] != 0).any()}
    found = []
    for panel in values_of(view, plot.panels):
        mine = chosen & having(rows, plot.panels, panel)
        bars = _bars(rows, kept, mine, at, timed=plot.group.startswith("bound_share"))
        found.append(BreakdownPanel(panel_name(plot.panels, panel, plot.labels), bars))
    largest = max((bar.total for panel in found for bar in panel.bars), default=0.0)
    factor, unit = written_in(f"{plot.group}.", largest, view)
    title = GROUPS.get(plot.group, title_of(plot.group))
    y = Scale(plot.y_label, 1.0) if plot.y_label else Scale(f"{title} [{unit}]" if unit else title, factor)
    names = [name.removeprefix(f"{plot.group}.").replace("_", " ") for name in kept]
    return BreakdownData(plot.title, axis, y, [plot.labels.get(name, name) for name in names], found)


def _place(name: str) -> int:
    """Where a part stands among those of a step, or among the resources; what is neither stays as it comes."""
    resource = name.rpartition(".")[2]
    return PARTS.index(name) if name in PARTS else ORDER.index(resource) if resource in ORDER else len(PARTS) + len(ORDER)


def _bars(rows: Columns, parts: dict[str, Any], mine: Any, at: Any, *, timed: bool) -> list[Bar]:
    """Bars of the chosen rows; `timed` ones, of shares, have the step time above them."""
    feasible, times = flags(rows, "feasible"), floats(rows, "step_time_s")
    bars = []
    for i in sorted(np.flatnonzero(mine), key=at.__getitem__):
        own = [float(values[i]) for values in parts.values()]
        above = quantity(float(times[i]), "s") if timed and np.isfinite(times[i]) else ""
        bars.append(Bar(float(at[i]), own, sum(own), bool(feasible[i]), above))
    return bars


def draw_breakdown(data: BreakdownData) -> Figure:
    """Draw stacked bars with their totals, or the times of the steps where they are shares; bars of designs that do not fit are pale."""
    from matplotlib.patches import Patch

    if not data.parts:
        return nothing(data.title, f"no point has a breakdown ({data.y.label})")
    width = min(max(3.6, 0.5 * len(data.x.names)), 12.0 if len(data.panels) == 1 else 5.0)
    figure, axes = panels([panel.name for panel in data.panels], data.title, width=width)
    for axis, panel in zip(axes, data.panels, strict=True):
        _draw_bars(axis, panel, data, width)
        tick_axis(axis.xaxis, data.x, width - 0.7)
        axis.set_xlim(-0.6, len(data.x.names) - 0.4)
    axes[0].margins(y=0.16 if any(bar.above for panel in data.panels for bar in panel.bars) else 0.1)
    for axis in first_of_rows(axes):
        number_axis(axis.yaxis, data.y)
    shades = colours_of(data.parts)
    handles = [Patch(label=name, **_style(shades[i], i)) for i, name in enumerate(data.parts)]
    if not all(bar.feasible for panel in data.panels for bar in panel.bars):
        handles.append(Patch(label=f"pale: {DOES_NOT_FIT}", facecolor="#c9c9c9"))
    legend_below(figure, handles)
    return figure


def _style(colour: str, part: int, fits: bool = True) -> dict[str, Any]:
    """Colour and hatch of a part, its colour mixed with white where the design does not fit."""
    from matplotlib.colors import to_rgb

    shade = [share if fits else 0.4 * share + 0.6 for share in to_rgb(colour)]
    return {"facecolor": shade, "hatch": HATCHES[part // 8 % len(HATCHES)], "edgecolor": "white", "linewidth": 0.4}


def _draw_bars(axis: Axes, panel: BreakdownPanel, data: BreakdownData, width: float) -> None:
    written = "%" not in data.y.label
    upright = len(data.x.names) * (0.45 if written else 0.6) > width
    colours = colours_of(data.parts)
    for bar in panel.bars:
        ends = np.cumsum([0.0, *bar.parts])
        for i, part in enumerate(bar.parts):
            axis.bar(bar.x, part, bottom=ends[i], width=0.75, zorder=2, **_style(colours[i], i, bar.feasible))
        text, turn = bar.above or (number(bar.total / data.y.factor, 3) if written else ""), 90 if upright else 0
        if text:
            axis.annotate(text, (bar.x, bar.total), (0, 2), textcoords="offset points", ha="center", fontsize=8, rotation=turn)
