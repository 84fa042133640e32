"""Charts of a few numbers: parts of a whole as one bar, values over other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.base.drawing.canvas import (
    DOES_NOT_FIT,
    Scale,
    Ticks,
    bound_marks,
    coloured_lines,
    grey_mark,
    legend_below,
    legend_groups,
    marker_of,
    new_figure,
    nothing,
    number_axis,
    tick_axis,
    tidy,
)
from crossflow.base.drawing.palette import colour_of, colours_of
from crossflow.base.drawing.picture import Picture
from crossflow.base.drawing.words import label, prefixed, quantity

SPREAD = 30.0  # largest over smallest number, beyond which an axis is logarithmic
NAMED = 40  # different names along an axis, the most


def parts_chart(title: str, parts: Mapping[str, float], unit: str) -> Picture:
    """Parts of a whole, one after the other, with their values in the legend."""
    from matplotlib.patches import Patch

    kept = {name: part for name, part in parts.items() if part > 0 and np.isfinite(part)}
    if not kept:
        return Picture(figure=nothing(title, "no part is above zero"))
    figure = new_figure(7.2, 1.5, title)
    axis = figure.subplots()
    colours, start = colours_of(list(kept)), 0.0
    for colour, part in zip(colours, kept.values(), strict=True):
        axis.barh(0.0, part, left=start, height=0.7, color=colour, edgecolor="white", linewidth=0.6, zorder=2)
        start += part
    axis.set_yticks([])
    axis.set_xlim(0.0, start)
    factor, written = prefixed(start, unit)
    number_axis(axis.xaxis, Scale(f"[{written}]", factor))
    tidy(axis, "x")
    names = [f"{name.replace('_', ' ')} {quantity(part, unit)}" for name, part in kept.items()]
    legend_below(figure, [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)])
    return Picture(figure=figure)


class Along(NamedTuple):
    """What stands along one axis of a chart: its name, its values, their SI unit."""

    name: str
    values: Sequence[Any] | Array
    unit: str = "1"

    @property
    def numbers(self) -> Array | None:
        """The values as numbers, None where one of them is a name."""
        try:
            return np.asarray(self.values, dtype=float)
        except (TypeError, ValueError):
            return None


def points_chart(
    title: str,
    x: Along,
    y: Along,
    *,
    series: Along | None = None,
    bound: Sequence[str] = (),
    feasible: Mask | None = None,
    joined: bool = True,
) -> Picture:
    """Values over others, hollow where a design does not fit; `joined` where every series has one point at each place."""
    heights = np.asarray(y.values, dtype=float)
    fits = np.ones(heights.size, dtype=bool) if feasible is None else feasible
    at, ticks = _places(x)
    shown = np.isfinite(heights) & np.isfinite(at)
    if not shown.any():
        return Picture(figure=nothing(title, f"no point has a finite value of {y.name}"))
    figure = new_figure(6.4, 4.0, title)
    axis = figure.subplots()
    held = [""] * heights.size if series is None else [written(value, series.unit) for value in series.values]
    names = list(dict.fromkeys(name for name, there in zip(held, shown, strict=True) if there))
    for i, name in enumerate(names):
        mine = np.flatnonzero(shown & np.array([other == name for other in held]))
        mine = mine[np.argsort(at[mine], kind="stable")]
        if joined and len(set(at[mine].tolist())) == len(mine):
            axis.plot(at[mine], heights[mine], color=colour_of(i), linewidth=1.3, zorder=2)
        _draw_marks(axis, at, heights, mine, bound, fits, colour_of(i))
    tidy(axis, "both")
    if ticks is None:
        number_axis(axis.xaxis, _scale(x, at[shown]))
    else:
        tick_axis(axis.xaxis, ticks, 5.6)
    number_axis(axis.yaxis, _scale(y, heights[shown]))
    if not _far(heights[shown]) and series is not None:
        axis.set_ylim(bottom=min(0.0, float(heights[shown].min())))
    hollow = [] if fits[shown].all() else [grey_mark(f"hollow: {DOES_NOT_FIT}", marker="o", markerfacecolor="white", markeredgewidth=1.5)]
    groups = {
        "" if series is None else series.name: coloured_lines(names),
        "Bound by": bound_marks([what for what, there in zip(bound, shown, strict=False) if there]),
        "Marks": hollow,
    }
    legend_groups(figure, groups)
    return Picture(figure=figure)


def _draw_marks(axis: Any, at: Array, heights: Array, mine: Any, bound: Sequence[str], fits: Mask, colour: str) -> None:
    for marker in dict.fromkeys(marker_of(bound[i]) if bound else "o" for i in mine):
        for full in (True, False):
            some = [i for i in mine if (marker_of(bound[i]) if bound else "o") == marker and bool(fits[i]) == full]
            face = {"facecolor": colour if full else "white", "zorder": 3 if full else 4}
            axis.scatter(at[some], heights[some], s=38, marker=marker, edgecolor=colour, linewidth=1.4, **face)


def _places(x: Along) -> tuple[Array, Ticks | None]:
    """Where values lie along an axis; ticks where they are names."""
    numbers = x.numbers
    if numbers is not None:
        return numbers, None
    names = list(dict.fromkeys(label(value) for value in x.values))
    place = {name: float(i) for i, name in enumerate(names)}
    return np.array([place[label(value)] for value in x.values]), Ticks(x.name, list(place.values()), names)


def _far(values: Array) -> bool:
    return bool(values.min() > 0 and values.max() > SPREAD * values.min())


def _scale(along: Along, values: Array) -> Scale:
    factor, unit = prefixed(float(np.abs(values).max()), along.unit)
    return Scale(f"{along.name} [{unit}]" if unit else along.name, factor, _far(values))


def written(value: Any, unit: str) -> str:
    """A value of a table: numbers with their unit, names as they are.

    >>> written(0.0214, "s"), written("d8", "1"), written(None, "1"), written(True, "1")
    ('21.4 ms', 'd8', '', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | float | np.number):
        return quantity(float(value), unit, 4) if np.isfinite(value) else "" if np.isnan(value) else "endless"
    return label(value)
