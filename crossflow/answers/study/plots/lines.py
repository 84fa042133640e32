"""Lines over a swept path or the searches; marks say what bounds each point and whether it fits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.answers.study.plots.axes import panel_name, scale, ticks, title_of, written_as
from crossflow.answers.study.plots.columns import (
    Columns,
    column,
    fixed,
    flags,
    floats,
    having,
    maximised,
    places_of,
    rows_with,
    shown,
    values_of,
)
from crossflow.answers.study.plots.spec import LinePlot
from crossflow.answers.study.plots.view import View
from crossflow.base.arrays import Array
from crossflow.base.drawing.canvas import (
    DOES_NOT_FIT,
    Scale,
    Ticks,
    bound_marks,
    coloured_lines,
    first_of_rows,
    grey_mark,
    legend_groups,
    marker_of,
    nothing,
    number_axis,
    panels,
    tick_axis,
)
from crossflow.base.drawing.palette import GREY, colour_of
from crossflow.base.drawing.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NEAR = 0.035  # of the height of the axis, within which two points count as one mark
SAME = 0.005  # by which two lines may differ at every point to be called one
GAP = 6.0  # between marks that stand beside one another because they coincide [pt]
LETTER = 0.062  # width of a letter of a written speed-up [inch]
ROOM = 0.055  # of the height of the axis that a written speed-up takes
ALIKE = 1.05  # ratio of speed-ups of close points, up to which they are written as one range
# What the points are compared with above which a speed-up is written.
OVER = {"line": "the first point of its line", "series": "the first line there", "first": "the first point"}
STACKED = 5  # speed-ups at most that are written one above the other
LINE = 9.0  # height of a written speed-up above another one [pt]


class Series(NamedTuple):
    """One line: values at places of the x axis, what bounds each point, whether it fits, and its speed-up where one is asked for.

    Where numbers are drawn a point is the median of its draws, between the ends of the interval that holds a share of them.
    """

    name: str
    x: list[float]
    y: list[float]
    bound: list[str]
    feasible: list[bool]
    factors: list[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


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
    interval: float = 0.0  # share of the draws between the ends of a point, 0 where nothing is drawn. [1]
    speedup: str | None = None  # what written speed-ups are over, as a plot says it


def line_data(view: View, plot: LinePlot) -> LineData:
    """Lines of a study: the points of a sweep, the best designs of searches.

    What the plot does not name stays at its first value, or that of `where`; points without a finite value are left out.
    """
    rows, axis = shown(view), ticks(view, plot.x, plot.labels, plot.x_label)
    values = floats(rows, plot.y) * (floats(rows, plot.times) if plot.times is not None else 1.0)
    wanted = {**fixed(view, plot.x, plot.series, plot.panels), **plot.where}
    chosen = rows_with(rows, wanted) & np.isfinite(values)
    at = places_of(rows, plot.x, values_of(view, plot.x))
    found, interval = [], view.interval if view.draws > 1 else 0.0
    for panel in values_of(view, plot.panels):
        mine = chosen & having(rows, plot.panels, panel)
        series = [
            _series(rows, values, mine & having(rows, plot.series, line), at, axis, written_as(line, plot.labels), interval)
            for line in values_of(view, plot.series)
        ]
        found.append(Panel(panel_name(plot.panels, panel, plot.labels), series))
    found = [_with_factors(panel, plot.speedup, larger=maximised(view, plot.y)) for panel in found] if plot.speedup else found
    y = scale(view, plot.y, values[chosen], plot.y_label, log=None if plot.scale is None else plot.scale == "log")
    legend = plot.labels.get(plot.series or "", title_of(plot.series or ""))
    return LineData(plot.title, axis, y, legend, found, interval, plot.speedup)


def _with_factors(panel: Panel, over: str, *, larger: bool) -> Panel:
    """A panel with how many times better each point is than the one that it is compared with; NaN where there is none."""
    held = [series for series in panel.series if series.x]
    if not held:
        return panel
    first = dict(zip(held[0].x, held[0].y, strict=True))
    found = []
    for series in panel.series:
        one = held[0].y[0] if over == "first" else series.y[0] if series.x else np.nan
        bases = [first.get(x, np.nan) if over == "series" else one for x in series.x]
        factors = [y / base if larger else base / y for y, base in zip(series.y, bases, strict=True)]
        found.append(series._replace(factors=factors))
    return panel._replace(series=found)


def together(panel: Panel) -> list[list[str]]:
    """Names of lines that lie on one another at every place that they share, in groups.

    >>> line = lambda name, y: Series(name, [0, 1], y, [], [], [])
    >>> together(Panel("", [line("HBM3", [1, 2]), line("HBM2", [3, 4]), line("HBM4", [1, 2.001])]))
    [['HBM3', 'HBM4']]
    """
    found: list[list[Series]] = []
    for series in panel.series:
        group = next((group for group in found if _same(group[0], series)), None)
        if group is None:
            found.append([series])
        else:
            group.append(series)
    return [[series.name for series in group] for group in found if len(group) > 1]


def _same(one: Series, other: Series) -> bool:
    here = dict(zip(one.x, one.y, strict=True))
    shared = [(here[x], y) for x, y in zip(other.x, other.y, strict=True) if x in here]
    return len(shared) > 1 and all(abs(a - b) <= SAME * max(abs(a), abs(b)) for a, b in shared)


def beside(panel: Panel, low: float, high: float, log: bool) -> list[list[float]]:
    """By how much the mark of each point moves aside, so that those which coincide stand next to one another. [pt]"""
    height = (lambda y: float(np.log(y / low) / np.log(high / low))) if log else (lambda y: (y - low) / (high - low))
    moved = [[0.0] * len(series.x) for series in panel.series]
    at: dict[float, list[tuple[float, int, int]]] = {}
    for i, series in enumerate(panel.series):
        for j, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            at.setdefault(x, []).append((height(y), i, j))
    for marks in at.values():
        for group in near(sorted(marks), NEAR):
            for place, (_, i, j) in enumerate(sorted(group, key=lambda mark: mark[1])):
                moved[i][j] = GAP * (place - (len(group) - 1) / 2)
    return moved


def near(marks: list[tuple[float, int, int]], apart: float, *, piled: bool = False) -> list[list[tuple[float, int, int]]]:
    """Marks of one place, in groups whose neighbours are less than `apart` from one another; of a pile as many times that as it holds."""
    found = [[marks[0]]]
    for mark in marks[1:]:
        if mark[0] - found[-1][-1][0] < apart * (len(found[-1]) if piled else 1):
            found[-1].append(mark)
        else:
            found.append([mark])
    return found


def _series(rows: Columns, y: Array, mine: Any, at: Any, axis: Ticks, name: str, interval: float) -> Series:
    """The chosen rows that lie on the axis, from left to right; with an `interval` those of one place are its draws."""
    held = [int(i) for i in np.flatnonzero(mine & (at >= 0))]
    held.sort(key=lambda i: axis.places[at[i]])
    bound, feasible = column(rows, "bound_by"), flags(rows, "feasible")
    points = [list(some) for _, some in itertools.groupby(held, key=lambda i: axis.places[at[i]])] if interval else [[i] for i in held]
    low, high = ([float(np.quantile(y[some], 0.5 + end * interval)) for some in points] if interval else () for end in (-0.5, 0.5))
    return Series(
        name=name,
        x=[axis.places[at[some[0]]] for some in points],
        y=[float(np.median(y[some])) for some in points],
        bound=[Counter(str(bound[i]) for i in some).most_common(1)[0][0] for some in points],
        feasible=[2 * sum(bool(feasible[i]) for i in some) > len(some) for some in points],
        factors=[],
        low=low,
        high=high,
    )


def draw_lines(data: LineData) -> Figure:
    """Draw lines: marker shapes say what bounds a point, hollow ones that it does not fit."""
    every = [series for panel in data.panels for series in panel.series]
    if not any(series.x for series in every):
        return nothing(data.title, f"no point has a finite value ({data.y.label})")
    width = 3.6 if data.x.real or len(data.panels) > 1 else min(max(4.6, 0.3 * len(data.x.names)), 10.0)
    figure, axes = panels([panel.name for panel in data.panels], data.title, width=width)
    low, high = _ends(every, data.y.log)
    for axis, panel in zip(axes, data.panels, strict=True):
        moved = beside(panel, low, high, data.y.log)
        for i, series in enumerate(panel.series):
            _draw_series(axis, series, colour_of(i), moved[i])
        tick_axis(axis.xaxis, data.x, width - 0.7)
        axis.margins(x=0.08)
    for axis in first_of_rows(axes):
        axis.set_ylim(low, high)
        number_axis(axis.yaxis, data.y)
    for axis, panel in zip(axes, data.panels, strict=True):
        _write_factors(axis, panel)
    legend_groups(figure, _legend(data, every))
    return figure


def _ends(every: list[Series], log: bool) -> tuple[float, float]:
    """Ends of the y axis, with room for marks and words."""
    lowest, highest = (
        min(y for series in every for y in (*series.y, *series.low)),
        max(y for series in every for y in (*series.y, *series.high)),
    )
    if log:
        room = 1.12 * max(highest / lowest, 1.5) ** 0.06
        return lowest / room, highest * room
    return 0.0, 1.09 * highest if highest > 0 else 1.0


def _draw_series(axis: Axes, series: Series, colour: str, moved: list[float]) -> None:
    """A thin line, and over it the marks, hollow ones above solid ones."""
    from matplotlib.transforms import ScaledTranslation

    axis.plot(series.x, series.y, color=colour, linewidth=1.3, zorder=2)
    if series.low:
        axis.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0, zorder=1)
        axis.vlines(series.x, series.low, series.high, color=colour, linewidth=1.6, zorder=2)
    alike: dict[tuple[str, bool, float], list[tuple[float, float]]] = {}  # an artist for each point would take minutes for 10,000
    for x, y, bound, feasible, aside in zip(series.x, series.y, series.bound, series.feasible, moved, strict=True):
        alike.setdefault((marker_of(bound), feasible, aside), []).append((x, y))
    for (marker, feasible, aside), points in alike.items():
        place = axis.transData + ScaledTranslation(aside / 72.0, 0.0, axis.get_figure().dpi_scale_trans)  # type: ignore[union-attr]
        mark: dict[str, Any] = {"marker": marker, "markersize": 6.5, "linestyle": "none", "markeredgewidth": 1.5}
        face: dict[str, Any] = {"markerfacecolor": colour if feasible else "white", "zorder": 3 if feasible else 4}
        axis.plot(*zip(*points, strict=True), color=colour, transform=place, **mark, **face)


def _write_factors(axis: Axes, panel: Panel) -> None:
    """Speed-ups above their points; of points that are close to one another, one above the other, or those that are alike as a range.

    Where these words would touch those of the next place, only the last point of each line has them.
    """
    from matplotlib.patheffects import withStroke

    points = [(i, j) for i, series in enumerate(panel.series) for j, factor in enumerate(series.factors) if _told(factor)]
    found = _factors_at(axis, panel, points)
    places = sorted({float(axis.transData.transform((x, 1.0))[0]) for series in panel.series for x in series.x})
    room = float(np.diff(places).min()) / axis.figure.dpi if len(places) > 1 else np.inf
    if any(LETTER * len(label.words) > room for label in found):
        found = _factors_at(axis, panel, [(i, j) for i, j in points if j == len(panel.series[i].x) - 1])
    for x, y, words, colour, rise in found:
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 7.5, "color": colour, "zorder": 6}
        axis.annotate(words, (x, y), (0, 5 + rise), path_effects=[withStroke(linewidth=2.0, foreground="white")], **style)


class _Factor(NamedTuple):
    """A written speed-up: the point above which it stands, its words and colour, and how far above other words. [pt]"""

    x: float
    y: float
    words: str
    colour: str
    rise: float = 0.0


def _factors_at(axis: Axes, panel: Panel, points: list[tuple[int, int]]) -> list[_Factor]:
    """Speed-ups of some points, as they are written."""
    places: dict[float, list[tuple[float, int, int]]] = {}
    for i, j in points:
        x, y = panel.series[i].x[j], panel.series[i].y[j]
        height = float(axis.transAxes.inverted().transform(axis.transData.transform((x, y)))[1])
        places.setdefault(x, []).append((height, i, j))
    found = []
    for x, marks in places.items():
        for group in near(sorted(marks), ROOM, piled=True):
            _, i, j = group[-1]
            top, factors = panel.series[i].y[j], [panel.series[n].factors[m] for _, n, m in group]
            if len(group) == 1 or len(group) > STACKED or max(factors) <= ALIKE * min(factors):
                found.append(_Factor(x, top, written_factors(factors), colour_of(i) if len(group) == 1 else GREY))
                continue
            stacked = enumerate(zip(factors, group, strict=True))
            found += [_Factor(x, top, written_factors([one]), colour_of(n), LINE * k) for k, (one, (_, n, _)) in stacked]
    return found


def _told(factor: float) -> bool:
    """Whether a speed-up says something: it is known, and not that of the base itself."""
    return bool(np.isfinite(factor)) and abs(factor - 1.0) >= 0.005


def written_factors(factors: list[float]) -> str:
    """How many times better, the least and the largest of some; nothing where all are the base itself.

    >>> written_factors([1.0, 1.001]), written_factors([2.63, 2.691]), written_factors([12.34])
    ('', '2.63–2.69×', '12.3×')
    """
    ends = list(dict.fromkeys(number(factor, 3) for factor in (min(factors), max(factors))))
    return "" if ends == ["1"] else f"{'–'.join(ends)}×"


def _legend(data: LineData, every: list[Series]) -> dict[str, list[Any]]:
    """Groups of a legend: the lines, what bounds, what does not fit, and which lines are one."""
    marks = {"Bound by": bound_marks(bound for series in every for bound in series.bound)}
    said = [] if all(fits for series in every for fits in series.feasible) else [_hollow()]
    said += [grey_mark(f"×: times better than {OVER[data.speedup]}", marker="")] if data.speedup else []
    said += [grey_mark(words, marker="") for words in _coincide(data)]
    said += [grey_mark(f"bars: {100 * data.interval:.0f} % of the draws", marker="|", markersize=11)] if data.interval else []
    return {data.legend: coloured_lines([series.name for series in data.panels[0].series]), **marks, "Marks": said}


def _hollow() -> Any:
    return grey_mark(f"hollow: {DOES_NOT_FIT}", marker="o", markerfacecolor="white", markeredgewidth=1.5)


def _coincide(data: LineData) -> list[str]:
    """Sentences that name the lines which lie on one another, once where they do so in every panel."""
    found = {panel.name: [" = ".join(group) for group in together(panel)] for panel in data.panels if any(s.x for s in panel.series)}
    if len({tuple(groups) for groups in found.values()}) == 1:
        return next(iter(found.values()))
    return [f"{name}: {group}" for name, groups in found.items() for group in groups]
