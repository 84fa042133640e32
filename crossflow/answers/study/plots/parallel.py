"""Parallel coordinates: the best designs, one line each over what was searched."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.answers.study.plots.axes import far, numeric, scale, shorten, title_of, unit_of, written_as
from crossflow.answers.study.plots.columns import column, distinct, evenly, flags, floats, maximised, objects
from crossflow.answers.study.plots.spec import ParallelPlot
from crossflow.answers.study.plots.view import View
from crossflow.base.arrays import Array
from crossflow.base.drawing.canvas import Scale, new_figure, nothing, number_axis
from crossflow.base.drawing.palette import GREY
from crossflow.base.drawing.words import number, quantity, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_WRITTEN = 16  # names along one axis
DIGITS = 6  # to which two designs at the same height are one


class Coordinate(NamedTuple):
    """One axis from 0 to 1: its ends as numbers with units, or names with their heights."""

    name: str
    low: str
    high: str
    names: list[tuple[float, str]]


class ParallelData(NamedTuple):
    """Everything that a plot of parallel coordinates shows."""

    title: str
    coordinates: list[Coordinate]  # axes from left to right, but for those on which all designs have one value
    alike: list[str]  # what all designs have, in words
    lines: list[list[float]]  # heights of each design, the best first, NaN where it has no value
    objective: Scale  # what colours the lines
    values: list[float]  # its value for each of them
    feasible: list[bool]  # of each of them
    falls: bool  # whether less of the objective is better


def parallel_data(view: View, plot: ParallelPlot) -> ParallelData:
    """The best designs by the first objective, feasible ones first, each different one once."""
    objective = next(iter(view.objectives), "step_time_s")
    axes = plot.axes or (*(view.space or view.values), objective)
    losses = floats(view.columns, objective)
    falls = not maximised(view, objective)
    feasible = flags(view.columns, "feasible")
    order = np.lexsort((losses if falls else -losses, ~feasible))
    order = _different(view, axes, order[np.isfinite(losses[order])], plot.best)
    titles = [plot.labels.get(name, title) for name, title in zip(axes, _titles(view, axes), strict=True)]
    found = [_coordinate(view, plot, name, title, order) for name, title in zip(axes, titles, strict=True)]
    alike = [_one(coordinate) if len(order) > 1 else "" for coordinate, _ in found]
    if alike.count("") < 2:  # nothing to run between
        alike = [""] * len(found)
    found = [pair for pair, one in zip(found, alike, strict=True) if not one]
    return ParallelData(
        title=plot.title,
        coordinates=[coordinate for coordinate, _ in found],
        alike=[one for one in alike if one],
        lines=[[float(heights[i]) for _, heights in found] for i in range(len(order))],
        objective=scale(view, objective, losses[order]),
        values=[float(value) for value in losses[order]],
        feasible=[bool(feasible[i]) for i in order],
        falls=falls,
    )


def _titles(view: View, axes: tuple[str, ...]) -> list[str]:
    """Columns by their titles, paths by as few of their last parts as tell them apart."""
    paths = [name for name in axes if name in view.space or name in view.values]
    written = dict(zip(paths, shorten(paths), strict=True))
    return [written.get(name) or title_of(name) for name in axes]


def _different(view: View, axes: tuple[str, ...], order: Any, most: int) -> Any:
    """The first designs that differ in what the axes show."""
    held = [column(view.columns, name) for name in axes]
    seen: dict[tuple[str, ...], int] = {}
    for i in order:
        value = tuple(f"{values[i]:.{DIGITS}g}" if isinstance(values[i], float) else str(values[i]) for values in held)
        seen.setdefault(value, int(i))
        if len(seen) == most:
            break
    return np.array(list(seen.values()), dtype=int)


def _coordinate(view: View, plot: ParallelPlot, name: str, title: str, designs: Any) -> tuple[Coordinate, Array]:
    """One axis and the height of each design on it."""
    held = column(view.columns, name)[designs]
    known = numeric(held)
    if known is None:
        return _categories(plot, title, held)
    values, unit = known
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Coordinate(title, "", "", []), values
    low, high = float(finite.min()), float(finite.max())
    ends = [f"{number(end)} {unit}" if unit else quantity(end, unit_of(name, view.units)) for end in (low, high)]
    return Coordinate(title, ends[0], ends[1], []), _heights(values, low, high)


def _one(coordinate: Coordinate) -> str:
    """The one value of an axis, with its name; nothing where there are several."""
    if coordinate.names:
        return f"{coordinate.name} {coordinate.names[0][1]}" if len(coordinate.names) == 1 else ""
    return f"{coordinate.name} {coordinate.low}" if coordinate.low and coordinate.low == coordinate.high else ""


def _heights(values: Array, low: float, high: float) -> Array:
    """Where numbers lie between the ends, by their logarithms where these are far apart; half-way up where all are one."""
    if low == high:
        return np.where(np.isfinite(values), 0.5, np.nan)
    if far([low, high]):
        return np.asarray(np.log(values / low) / np.log(high / low))
    return np.asarray((values - low) / (high - low))


def _categories(plot: ParallelPlot, title: str, held: Any) -> tuple[Coordinate, Array]:
    names = distinct(held)
    heights = [i / (len(names) - 1) if len(names) > 1 else 0.5 for i in range(len(names))]
    place = {str(value): height for value, height in zip(names, heights, strict=True)}
    written = [(height, written_as(value, plot.labels)) for value, height in zip(names, heights, strict=True)]
    return Coordinate(title, "", "", written), np.array([place.get(str(value), np.nan) for value in objects(list(held))])


def draw_parallel(data: ParallelData) -> Figure:
    """Draw designs from the worst to the best, so that the best lie on top; designs that do not fit are dashed."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    if not data.lines:
        return nothing(data.title, f"no design has a finite value ({data.objective.label})")
    figure = new_figure(2.4 + 1.25 * len(data.coordinates), 5.4, data.title)
    axis = figure.subplots()
    low, high = min(data.values), max(data.values)
    shades = ScalarMappable((LogNorm if data.objective.log else Normalize)(low, high), "viridis" if data.falls else "viridis_r")
    places = list(range(len(data.coordinates)))
    colours = shades.to_rgba(np.array(data.values))
    for i in reversed(range(len(data.lines))):
        style: dict[str, Any] = {"linewidth": 2.6, "alpha": 1.0} if i == 0 else {"linewidth": 1.0, "alpha": 0.7}
        axis.plot(places, data.lines[i], "-" if data.feasible[i] else "--", color=colours[i], **style)
    for place, coordinate in enumerate(data.coordinates):
        _draw_coordinate(axis, place, coordinate)
    axis.set_axis_off()
    axis.set_xlim(-0.3, len(places) - 0.3)
    axis.set_ylim(-0.12, 1.35)
    number_axis(figure.colorbar(shades, ax=axis, pad=0.02, shrink=0.8).ax.yaxis, data.objective._replace(log=False))
    said = [f"All have {', '.join(data.alike)}."] if data.alike else []
    said += [] if all(data.feasible) else ["dashed: not feasible"]
    if said:
        figure.text(0.02, 0.01, textwrap.fill(" ".join(said), int(15 * figure.get_figwidth())), fontsize=9, color=GREY)
    return figure


def _draw_coordinate(axis: Axes, place: int, coordinate: Coordinate) -> None:
    """A vertical line with its name above and its ends, or its names, beside it."""
    box: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5}
    axis.plot([place, place], [0, 1], color="black", linewidth=1.0, zorder=4)
    axis.text(place, 1.08, short(coordinate.name), rotation=30, ha="left", va="bottom", rotation_mode="anchor", fontsize=9)
    axis.text(place, -0.03, coordinate.low, ha="center", va="top", fontsize=8)
    axis.text(place, 1.02, coordinate.high, ha="center", va="bottom", fontsize=8)
    for i in evenly(len(coordinate.names), MOST_WRITTEN):
        height, name = coordinate.names[i]
        axis.text(place + 0.04, height, short(name, 18), ha="left", va="center", fontsize=7.5, bbox=box, zorder=5)
