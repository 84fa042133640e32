"""Boxes: how a column spreads over all points that share a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossflow.answers.study.plots.axes import groups, scale
from crossflow.answers.study.plots.columns import floats, rows_with
from crossflow.answers.study.plots.spec import BoxPlot
from crossflow.answers.study.plots.view import View
from crossflow.base.arrays import Array
from crossflow.base.drawing.canvas import Scale, Ticks, new_figure, nothing, number_axis, tick_axis, tidy
from crossflow.base.drawing.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Box(NamedTuple):
    """Spread of the points of one value: extremes, quartiles, and how many there are."""

    name: str
    low: float
    lower: float
    median: float
    upper: float
    high: float
    points: int


class BoxData(NamedTuple):
    """Everything that a plot of boxes shows."""

    title: str
    x_label: str
    y: Scale
    boxes: list[Box]


def box_data(view: View, plot: BoxPlot) -> BoxData:
    """Boxes of the finite values of a column (above zero on a logarithmic scale), over values that have any."""
    log = plot.scale == "log"
    values = floats(view.columns, plot.y)
    chosen = rows_with(view.columns, plot.where) & np.isfinite(values)
    if log:
        chosen &= values > 0
    found = groups(view, view.columns, plot.x, plot.labels, plot.x_label)
    boxes = [_box(name, values[chosen & (found.group == i)]) for i, name in enumerate(found.names) if (chosen & (found.group == i)).any()]
    return BoxData(plot.title, found.label, scale(view, plot.y, values[chosen], plot.y_label, log=log), boxes)


def _box(name: str, values: Array) -> Box:
    low, lower, median, upper, high = (float(value) for value in np.percentile(values, [0, 25, 50, 75, 100]))
    return Box(name, low, lower, median, upper, high, int(values.size))


def draw_boxes(data: BoxData) -> Figure:
    """Draw boxes with whiskers to the extremes, and the number of points above each."""
    if not data.boxes:
        return nothing(data.title, f"no point has a finite value ({data.y.label})")
    width = min(max(2.0 + 0.55 * len(data.boxes), 5.2), 14.0)
    figure = new_figure(width, 4.2, data.title)
    axis = figure.subplots()
    places = [float(i) for i in range(len(data.boxes))]
    stats = [{"whislo": box.low, "q1": box.lower, "med": box.median, "q3": box.upper, "whishi": box.high} for box in data.boxes]
    blue = COLOURS[0]
    axis.bxp(
        stats, positions=places, widths=0.6, showfliers=False, patch_artist=True, manage_ticks=False,
        boxprops={"facecolor": "#cfe3f1", "edgecolor": blue}, medianprops={"color": COLOURS[1], "linewidth": 1.8},
        whiskerprops={"color": blue}, capprops={"color": blue},
    )  # fmt: skip
    small = 8.0 if len(data.boxes) <= 20 else 6.0
    for place, box in zip(places, data.boxes, strict=True):
        axis.annotate(
            f"{box.points:,}", (place, box.high), (0, 3), textcoords="offset points", ha="center", fontsize=small, color="#444444"
        )
    axis.margins(y=0.08)
    tick_axis(axis.xaxis, Ticks(data.x_label, places, [box.name for box in data.boxes]), width - 0.9)
    number_axis(axis.yaxis, data.y)
    tidy(axis)
    return figure
