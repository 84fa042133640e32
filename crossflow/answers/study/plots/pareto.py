"""Pareto plots: all designs by two columns, and the front that none of them beats in both, or one front a colour."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.answers.search.pareto import non_dominated
from crossflow.answers.study.plots.axes import RowGroups, groups, numeric, scale
from crossflow.answers.study.plots.columns import column, evenly, flags, floats, maximised, rows_with
from crossflow.answers.study.plots.spec import ParetoPlot
from crossflow.answers.study.plots.view import View
from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.drawing.canvas import Scale, grey_mark, legend_groups, new_figure, nothing, number_axis, tidy
from crossflow.base.drawing.palette import COLOURS, PALE, colour_of
from crossflow.base.drawing.words import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 2500  # designs of a kind that are drawn
MOST_MARKED = 60  # designs of a front with marks of their own
MOST_COLOURS = len(COLOURS) - 1  # names, the last colour being that of all others
OTHERS = "others"


class Colours(NamedTuple):
    """What colours the designs: a number of each on a scale, or the number of its name."""

    scale: Scale
    values: list[float]
    names: list[str]  # empty where numbers colour

    def of(self, kept: Mask) -> Colours:
        """Those of some of the designs."""
        return self._replace(values=[value for value, stays in zip(self.values, kept, strict=True) if stays])


class ParetoData(NamedTuple):
    """Everything that a Pareto plot shows."""

    title: str
    x: Scale
    y: Scale
    points: list[tuple[float, float]]  # feasible designs
    infeasible: list[tuple[float, float]]  # the others that lie where feasible ones do; all where none is feasible
    beyond: int  # infeasible designs that lie elsewhere
    front: list[tuple[float, float]]  # designs that none beats, by x; `after` where y changes at the next of them: where x is made small
    # the same among the designs of each name that colours, where each is to have its own; else none
    fronts: list[list[tuple[float, float]]]
    after: bool
    colours: Colours | None  # one for each of the points; None where one colour does


def pareto_data(view: View, plot: ParetoPlot) -> ParetoData:
    """Designs with finite values, evenly thinned where there are many, and the front of all feasible ones."""
    x, y = floats(view.columns, plot.x), floats(view.columns, plot.y)
    finite = np.isfinite(x) & np.isfinite(y) & rows_with(view.columns, plot.where)
    feasible = flags(view.columns, "feasible")
    fits, misfits = np.flatnonzero(finite & feasible), np.flatnonzero(finite & ~feasible)
    signs = [-1.0 if maximised(view, name) else 1.0 for name in (plot.x, plot.y)]
    ends = np.array([signs[0] * x, signs[1] * y])
    front = _front(fits, ends, x)
    colours = None if plot.colour is None else _colours(view, plot, plot.colour, fits)
    own = [_front(fits[held], ends, x) for held in _of_each(colours)] if colours is not None and plot.each else []
    every, fits, beside = fits, _thinned(fits, np.unique(np.concatenate([front, *own]))), misfits[_near(fits, misfits, x, y)]
    beyond, misfits = misfits.size - beside.size, beside[evenly(beside.size, MOST)]
    drawn = np.concatenate([fits, misfits])
    return ParetoData(
        title=plot.title,
        x=scale(view, plot.x, x[drawn], plot.x_label),
        y=scale(view, plot.y, y[drawn], plot.y_label),
        points=_pairs(x, y, fits),
        infeasible=_pairs(x, y, misfits),
        beyond=int(beyond),
        front=_pairs(x, y, front),
        fronts=[_pairs(x, y, designs) for designs in own],
        after=not maximised(view, plot.x),
        colours=None if colours is None else colours.of(np.isin(every, fits)),
    )


def _front(designs: Index, ends: Array, x: Array) -> Index:
    """Those of some designs that none of them beats, by x; `ends` is what is made small, shape (2, designs in all)."""
    front = designs[non_dominated(ends[:, designs])]
    return np.asarray(front[np.argsort(x[front], kind="stable")])


def _near(fits: Index, misfits: Index, x: Array, y: Array) -> Mask:
    """Which infeasible designs lie among the feasible ones, so that they do not stretch the axes; all where there are none of these."""
    if not fits.size:
        return np.ones(misfits.size, dtype=bool)
    inside = np.ones(misfits.size, dtype=bool)
    for values in (x, y):
        low, high = values[fits].min(), values[fits].max()
        room = 0.05 * (high - low)
        inside &= (values[misfits] >= low - room) & (values[misfits] <= high + room)
    return inside


def _of_each(colours: Colours) -> list[Mask]:
    """Which designs have each of the names."""
    values = np.array(colours.values)
    return [np.asarray(values == i) for i in range(len(colours.names))]


def _thinned(designs: Index, front: Index) -> Index:
    """The front, and as many others as may be drawn, evenly spread over the order in which they were evaluated."""
    others = np.setdiff1d(designs, front)
    return np.sort(np.concatenate([front, others[evenly(others.size, max(MOST - front.size, 1))]]))


def _pairs(x: Array, y: Array, designs: Index) -> list[tuple[float, float]]:
    return [(float(x[i]), float(y[i])) for i in designs]


def _colours(view: View, plot: ParetoPlot, name: str, designs: Index) -> Colours:
    """Numbers where the column holds nothing else, be it as quantities in one unit; names otherwise."""
    known = numeric(column(view.columns, name)[designs])
    if known is None:
        return _named(groups(view, view.columns, name, plot.labels, plot.labels.get(name, "")), designs)
    values, unit = known
    axis = scale(view, name, values)
    return Colours(axis._replace(label=f"{axis.label} [{unit}]") if unit else axis, [float(value) for value in values], [])


def _named(found: RowGroups, designs: Index) -> Colours:
    """The names that most designs have, in their order; the others share one."""
    held = found.group[designs]
    often = [i for i, _ in Counter(int(i) for i in held if i >= 0).most_common()]
    kept = sorted(often if len(often) <= MOST_COLOURS + 1 else often[:MOST_COLOURS])
    rest = len(kept) < len(often) or bool((held < 0).any())
    place = {i: float(n) for n, i in enumerate(kept)}
    names = [found.names[i] for i in kept] + ([OTHERS] if rest else [])
    return Colours(Scale(found.label), [place.get(int(i), float(len(kept))) for i in held], names)


def _apart(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def draw_pareto(data: ParetoData) -> Figure:
    """Draw designs as dots, those that do not fit as pale rings, the front as steps."""
    if not data.points and not data.infeasible:
        return nothing(data.title, f"no design has a finite {data.x.label} and {data.y.label}")
    figure = new_figure(7.2, 4.8, data.title)
    axis = figure.subplots()
    handles, coloured = [], []
    if data.infeasible or data.beyond:
        axis.scatter(*_apart(data.infeasible), s=10, facecolors="none", edgecolors=PALE, linewidths=0.6, zorder=1)
        aside = f" ({data.beyond:,} more beyond the axes)" if data.beyond else ""
        handles.append(grey_mark(f"not feasible{aside}", marker="o", markerfacecolor="none", color=PALE))
    if data.points:
        coloured = _draw_points(figure, axis, data)
        for i, front in enumerate(data.fronts or [data.front]):
            colour = colour_of(i) if data.fronts else "black"
            style = "steps-post" if data.after else "steps-pre"
            axis.plot(*_apart(front), color=colour, linewidth=2.0, drawstyle=style, zorder=3)
            if len(front) <= MOST_MARKED:
                axis.plot(*_apart(front), "D", color=colour, markerfacecolor="none", markersize=5.5, zorder=4)
        name = "front of each" if data.fronts else "front"
        marker = "D" if any(len(front) <= MOST_MARKED for front in data.fronts or [data.front]) else ""
        handles.append(grey_mark(name, marker=marker, color="black", markerfacecolor="none", linestyle="-"))
    else:
        axis.text(0.5, 0.95, "no design is feasible", transform=axis.transAxes, ha="center", va="top")
    tidy(axis, "both")
    number_axis(axis.xaxis, data.x)
    number_axis(axis.yaxis, data.y)
    legend_groups(figure, {data.colours.scale.label if coloured and data.colours else "": coloured, "Designs": handles})
    return figure


def _draw_points(figure: Figure, axis: Axes, data: ParetoData) -> list[Any]:
    """Feasible designs in their colours; what the legend says of them."""
    import matplotlib as mpl
    from matplotlib.colors import LogNorm

    x, y = _apart(data.points)
    colours = data.colours
    if colours is None:
        axis.scatter(x, y, s=14, color=COLOURS[0], alpha=0.6, linewidths=0, zorder=2)
        return [grey_mark("feasible designs", marker="o", color=COLOURS[0])]
    if colours.names:
        shown = [colour_of(int(value)) for value in colours.values]
        axis.scatter(x, y, s=9, c=shown, alpha=0.5, linewidths=0, zorder=2)  # in the order of the search, so that no name hides another
        return [grey_mark(short(name, 48), marker="o", color=colour_of(i)) for i, name in enumerate(colours.names)]
    norm = LogNorm() if colours.scale.log else None
    shades = mpl.colormaps["viridis"].with_extremes(bad=COLOURS[-1])
    dots = axis.scatter(x, y, s=16, c=colours.values, cmap=shades, norm=norm, linewidths=0, zorder=2, plotnonfinite=True)
    number_axis(figure.colorbar(dots, ax=axis, pad=0.02).ax.yaxis, colours.scale._replace(log=False))
    return []
