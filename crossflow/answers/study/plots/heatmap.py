"""Heat maps: the best value of a column for each pair of two others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.answers.study.plots.axes import RowGroups, groups, scale
from crossflow.answers.study.plots.columns import flags, floats, maximised, rows_with
from crossflow.answers.study.plots.spec import HeatmapPlot
from crossflow.answers.study.plots.view import View
from crossflow.base.drawing.canvas import Scale, Ticks, legend_below, new_figure, nothing, number_axis, tick_axis
from crossflow.base.drawing.palette import COLOURS
from crossflow.base.drawing.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_WRITTEN = 400  # cells in which the value is written


class HeatmapData(NamedTuple):
    """Everything that a heat map shows."""

    title: str
    x: Ticks  # axis of names
    y: Ticks  # axis of names
    value: Scale  # scale of the colours
    values: list[list[float]]  # best feasible value by row (y) and column (x), NaN where there is none
    infeasible: list[list[bool]]  # cells in which there are points, but none that is feasible
    best: tuple[int, int] | None  # row and column of the best cell; None where nothing is feasible
    falls: bool  # whether less of the value is better


def heatmap_data(view: View, plot: HeatmapPlot) -> HeatmapData:
    """Cells of every x and y that occur together in some point."""
    columns, labels = view.columns, plot.labels
    x, y = groups(view, columns, plot.x, labels, plot.x_label), groups(view, columns, plot.y, labels, plot.y_label)
    values, falls = floats(columns, plot.value), not maximised(view, plot.value)
    inside = (x.group >= 0) & (y.group >= 0) & rows_with(columns, plot.where)
    chosen = inside & flags(columns, "feasible") & np.isfinite(values)
    cells = np.full((len(y.names), len(x.names)), np.inf if falls else -np.inf)
    (np.minimum if falls else np.maximum).at(cells, (y.group[chosen], x.group[chosen]), values[chosen])
    cells[np.isinf(cells)] = np.nan
    occupied = np.zeros(cells.shape, dtype=bool)
    occupied[y.group[inside], x.group[inside]] = True
    best = None
    if chosen.any():
        row, place = np.unravel_index(int(np.nanargmin(cells) if falls else np.nanargmax(cells)), cells.shape)
        best = (int(row), int(place))
    value, infeasible = scale(view, plot.value, cells), occupied & np.isnan(cells)
    return HeatmapData(plot.title, _ticks(x), _ticks(y), value, cells.tolist(), infeasible.tolist(), best, falls)


def _ticks(found: RowGroups) -> Ticks:
    return Ticks(found.label, [float(i) for i in range(len(found.names))], found.names)


def draw_heatmap(data: HeatmapData) -> Figure:
    """Draw cells, the best outlined; cells where nothing is feasible are hatched, those without a point are blank."""
    if data.best is None and not any(any(row) for row in data.infeasible):
        return nothing(data.title, "no point has a value on both axes")
    rows, columns = len(data.y.names), len(data.x.names)
    width, height = max(min(3.2 + 0.62 * columns, 14.0), 5.2), max(min(1.8 + 0.36 * rows, 14.0), 3.2)
    figure = new_figure(width, height, data.title)
    axis = figure.subplots()
    handles = _draw_infeasible(axis, data) + _draw_feasible(figure, axis, data)
    axis.set_xlim(-0.5, columns - 0.5)
    axis.set_ylim(-0.5, rows - 0.5)
    tick_axis(axis.xaxis, data.x, width - 2.2)
    tick_axis(axis.yaxis, data.y, height)
    axis.tick_params(length=0)
    legend_below(figure, handles)
    return figure


def _draw_infeasible(axis: Axes, data: HeatmapData) -> list[Any]:
    """Hatched cells; what the legend says of them."""
    from matplotlib.patches import Patch

    style: dict[str, Any] = {"facecolor": "#eeeeee", "hatch": "////", "edgecolor": "#aaaaaa", "linewidth": 0.0}
    cells = [(i, j) for i, row in enumerate(data.infeasible) for j, hatched in enumerate(row) if hatched]
    for row, column in cells:
        _rectangle(axis, row, column, style)
    return [Patch(label="no feasible design", **style)] if cells else []


def _draw_feasible(figure: Figure, axis: Axes, data: HeatmapData) -> list[Any]:
    """Coloured cells with their values, the best outlined; what the legend says of them."""
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch

    if data.best is None:
        return []
    cells = np.array(data.values)
    norm = LogNorm(np.nanmin(cells), np.nanmax(cells)) if data.value.log else None
    image = axis.imshow(cells, cmap="viridis" if data.falls else "viridis_r", norm=norm, aspect="auto", origin="lower", zorder=1)
    number_axis(figure.colorbar(image, ax=axis, pad=0.02).ax.yaxis, data.value._replace(log=False))
    if cells.size <= MOST_WRITTEN:
        _write_values(axis, data, image)
    _rectangle(axis, *data.best, {"fill": False, "edgecolor": COLOURS[1], "linewidth": 3.0, "zorder": 4})
    return [Patch(label="best", fill=False, edgecolor=COLOURS[1], linewidth=2.0)]


def _rectangle(axis: Axes, row: int, column: int, style: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1.0, 1.0, **style))


def _write_values(axis: Axes, data: HeatmapData, image: Any) -> None:
    """The value in each cell, light on dark colours and dark on light ones."""
    for i, row in enumerate(data.values):
        for j, value in enumerate(row):
            if np.isfinite(value):
                red, green, blue, _ = image.cmap(image.norm(value))
                dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                text = number(value / data.value.factor, 3)
                axis.text(j, i, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "black", zorder=5)
