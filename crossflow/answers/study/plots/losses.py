"""Losses against own bests: of the design for all, and of each own best elsewhere; a panel for the members and one for the draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.answers.study.plots.axes import written_as
from crossflow.answers.study.plots.spec import LossPlot
from crossflow.answers.study.plots.view import LossTable, View
from crossflow.base.drawing.canvas import Scale, Ticks, coloured_lines, grey_mark, legend_below, nothing, number_axis, panels, tick_axis
from crossflow.base.drawing.palette import PALE, colour_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALL = "best for all"
FAR = 1.0  # loss from which on the axis is one of ratios, and logarithmic. [1]
TOP = 1.12  # of the largest loss: where what cannot run is marked
MEMBERS, DRAWS = "Members, library's values", "Draws, by the loss of the best for all"


class LossLine(NamedTuple):
    """One design: how many times worse than each case's own best it is, 1 where it is that, infinite where it cannot run. [1]"""

    name: str
    times: list[float]


class LossPanel(NamedTuple):
    """Cases of one kind, with lines for designs that have names, and for the own bests of single draws."""

    name: str
    cases: list[str]
    named: list[LossLine]
    others: list[LossLine]


class LossData(NamedTuple):
    """Everything that a plot of losses shows."""

    title: str
    y_label: str
    panels: list[LossPanel]
    far: bool = False  # whether losses are so large that ratios are drawn


def loss_data(view: View, plot: LossPlot) -> LossData:
    """Losses of one search's best design and of own bests; of the first search where the plot names none."""
    known = [table for table in view.losses if plot.search in (None, table.search)]
    if not known:
        return LossData(plot.title, "", [])
    table = known[0]
    order = np.lexsort((table.loss[0],))
    kinds = (
        (MEMBERS, [i for i, draw in enumerate(table.draw) if not draw]),
        (DRAWS, [int(i) for i in order if table.draw[i]]),
    )
    found = [_panel(name, table, cases, plot) for name, cases in kinds if cases]
    far = bool(table.loss[np.isfinite(table.loss)].max(initial=0.0) > FAR)
    label = plot.y_label or ("Times its own best" if far else "Loss against own best [%]")
    return LossData(plot.title or title_of(table), label, found, far)


def title_of(table: LossTable) -> str:
    """What the picture says, where nobody gives it a title."""
    kinds = [name for name, there in (("each member's", not all(table.draw)), ("each draw's", any(table.draw))) if there]
    return f"How far one design is from {' and '.join(kinds)} own best"


def _panel(name: str, table: LossTable, cases: Sequence[int], plot: LossPlot) -> LossPanel:
    def line(row: int, called: str) -> LossLine:
        return LossLine(written_as(called, plot.labels), (1.0 + table.loss[row, list(cases)]).tolist())

    members = [i for i, draw in enumerate(table.draw) if not draw]
    named = [line(0, ALL), *(line(1 + i, f"best for {table.cases[i]}") for i in members)]
    others = [line(1 + i, table.cases[i]) for i, draw in enumerate(table.draw) if draw]
    return LossPanel(name, [written_as(table.cases[i], plot.labels) for i in cases], named, others)


def draw_losses(data: LossData) -> Figure:
    """Draw a line for each design over the cases: the best for all thick, own bests of members in colours, those of draws pale."""
    if not data.panels:
        return nothing(data.title, "no search found a design, or nothing was judged by several members or draws")
    figure, axes = panels([panel.name for panel in data.panels], data.title, width=4.4, height=3.4)
    far = data.far
    shown = [_as_drawn(panel, far) for panel in data.panels]
    top = _top(shown, far)
    for axis, panel in zip(axes, shown, strict=True):
        _draw_panel(axis, panel, top)
    axes[0].set_ylim(0.93 if far else -0.03 * top, 1.06 * top)
    number_axis(axes[0].yaxis, Scale(data.y_label, 1.0, far))
    handles = coloured_lines([line.name for line in data.panels[0].named])
    if any(panel.others for panel in data.panels):
        handles.append(grey_mark("best for one draw", marker="", linestyle="-", color=PALE, linewidth=2.0))
    if any(np.isinf(line.times).any() for panel in data.panels for line in panel.named):
        handles.append(grey_mark("cannot run there", marker="^"))
    legend_below(figure, handles)
    return figure


def _as_drawn(panel: LossPanel, far: bool) -> LossPanel:
    """Ratios as they are, or losses in per cent."""
    if far:
        return panel
    named, others = ([LossLine(name, [100.0 * (value - 1.0) for value in times]) for name, times in lines] for lines in panel[2:])
    return panel._replace(named=named, others=others)


def _top(shown: Sequence[LossPanel], far: bool) -> float:
    """Where what cannot run is marked."""
    every = np.array([value for panel in shown for line in (*panel.named, *panel.others) for value in line.times])
    most = float(every[np.isfinite(every)].max(initial=1.0 if far else 0.0))
    return max(TOP * most, 1.5 if far else 1.0)


def _draw_panel(axis: Axes, panel: LossPanel, top: float) -> None:
    places = np.arange(len(panel.cases), dtype=float)
    single = len(panel.cases) <= 8  # few enough for a name each
    style: dict[str, Any] = {"marker": "o", "markersize": 5} if single else {}
    for line in panel.others:
        axis.plot(places, np.where(np.isfinite(line.times), line.times, np.nan), color=PALE, linewidth=0.6, zorder=1)
    for i, line in reversed(list(enumerate(panel.named))):
        values = np.array(line.times)
        axis.plot(
            places,
            np.where(np.isfinite(values), values, top),
            color=colour_of(i),
            linewidth=1.4 + 1.2 * (i == 0),
            zorder=3 + (i == 0),
            **style,
        )
        endless = np.isinf(values)
        axis.plot(places[endless], np.full(endless.sum(), top), "^", color=colour_of(i), markersize=7, zorder=5)
    if single or panel.name == MEMBERS:
        tick_axis(axis.xaxis, Ticks("", places.tolist(), panel.cases), 3.6)
    else:
        axis.set_xlabel(f"{len(places):,} draws, in order")
        axis.set_xticks([])
