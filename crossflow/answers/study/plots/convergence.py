"""Convergence: the best objective of each search over the designs that it evaluated, or over the time that it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossflow.answers.study.plots.axes import scale, unit_of
from crossflow.answers.study.plots.spec import ConvergencePlot
from crossflow.answers.study.plots.view import Convergence, View
from crossflow.base.drawing.canvas import Scale, nothing, number_axis, panels, tidy
from crossflow.base.drawing.palette import colour_of
from crossflow.base.drawing.words import quantity, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 12
LEAST = 1e-3  # shortest time on the axis [s]
STYLES = ("-", "--", "-.", ":")


class ConvergenceLine(NamedTuple):
    """One search: the best so far from each number of evaluations, or of seconds, on, and how its last one is written."""

    name: str
    spent: list[float]
    best: list[float]
    final: str


class ConvergencePanel(NamedTuple):
    """The searches of one swept point."""

    name: str
    steps: list[ConvergenceLine]


class ConvergenceData(NamedTuple):
    """Everything that a plot of convergence shows."""

    title: str
    x: Scale
    y: Scale
    panels: list[ConvergencePanel]
    left_out: int = 0  # swept points that are not shown


def convergence_data(view: View, plot: ConvergencePlot) -> ConvergenceData:
    """Steps of every search in the order of the study, up to its last evaluation."""
    objective = next(iter(view.objectives), "objective")
    unit = unit_of(objective, view.units)
    points = list(dict.fromkeys(found.point for found in view.convergence))
    left_out, points = max(len(points) - MOST_PANELS, 0), points[:MOST_PANELS]
    found = [
        ConvergencePanel(plot.labels.get(point, point), [_steps(one, unit, plot) for one in view.convergence if one.point == point])
        for point in points
    ]
    every = [value for panel in found for steps in panel.steps for value in steps.best]
    y = scale(view, objective, every, plot.y_label)._replace(log=plot.scale == "log")
    label = plot.x_label or {"evaluations": "Designs evaluated", "seconds": "Time of the search [s]"}[plot.over]
    return ConvergenceData(plot.title, Scale(label, 1.0, True), y, found, left_out)


def _steps(found: Convergence, unit: str, plot: ConvergencePlot) -> ConvergenceLine:
    timed = plot.over == "seconds"
    spent: tuple[float, ...] = found.seconds if timed else found.evaluations
    known = [(n, value) for n, value in zip(spent, found.best, strict=True) if np.isfinite(value)]
    steps, best = [max(n, LEAST if timed else 1) for n, _ in known], [float(value) for _, value in known]
    name = plot.labels.get(found.search, found.search)
    if not known:
        return ConvergenceLine(name, [], [], "nothing found")
    end = max(found.total, steps[-1]) if not timed else steps[-1]
    return ConvergenceLine(name, [*steps, end], [*best, best[-1]], quantity(best[-1], unit, 4))


def draw_convergence(data: ConvergenceData) -> Figure:
    """Draw the best so far over evaluations: a panel for each swept point, the last value in its legend."""
    if not any(steps.best for panel in data.panels for steps in panel.steps):
        return nothing(data.title, "no search found a design")
    names = [panel.name for panel in data.panels]
    more = f" (the first {len(names)} of {len(names) + data.left_out} swept points)" if data.left_out else ""
    figure, axes = panels(names, f"{data.title}{more}", width=4.2, height=3.6, share=False)
    for axis, panel in zip(axes, data.panels, strict=True):
        for i, steps in enumerate(panel.steps):
            style = STYLES[i % len(STYLES)]
            text = f"{short(steps.name)}: {steps.final}"
            axis.step(steps.spent, steps.best, style, where="post", color=colour_of(i), linewidth=2.0, label=text)
            axis.plot(steps.spent[-1:], steps.best[-1:], "o", color=colour_of(i), markersize=4)
        axis.margins(y=0.1)
        tidy(axis, "both")
        number_axis(axis.xaxis, data.x)
        number_axis(axis.yaxis, data.y)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8, frameon=False)
    return figure
