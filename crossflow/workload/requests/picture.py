"""The picture of requests: arrivals over time, how long prompts and outputs are, and both of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.base.drawing.canvas import Scale, caption_below, coloured_lines, grey_mark, legend_below, new_figure, number_axis, tidy
from crossflow.base.drawing.palette import GREY, colour_of
from crossflow.base.drawing.picture import Picture
from crossflow.base.drawing.words import prefixed, short
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.requests.words import lasting

if TYPE_CHECKING:
    from crossflow.workload.requests.describe import DescribedRequests

BARS, STEPS = 48, 120  # of a histogram, and of the line of arrivals at most
STEP = (
    0.1,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1200.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    86400.0,
)  # windows of that line. [s]


class RateLine(NamedTuple):
    """Arrivals in windows of one length."""

    times: Array  # at which the windows begin. [s]
    rates: Array  # [1/s]
    window: float  # [s]


def rate_line(times: Array, most: int = STEPS) -> RateLine:
    """Arrivals a second over time, in at most so many windows of a round length; of arrivals at once, one window."""
    span = float(times[-1] - times[0]) if len(times) else 0.0
    window = next((step for step in STEP if span / step <= most), span / most)
    counts = np.bincount(((times - times[0]) / window).astype(np.intp))
    return RateLine(times=times[0] + np.arange(len(counts)) * window, rates=counts / window, window=window)


def bins_of(*lengths: Index) -> Array:
    """Edges of bins on a logarithmic axis that hold all lengths. [1]"""
    low, high = min(int(one.min()) for one in lengths), max(int(one.max()) for one in lengths)
    return np.geomspace(max(low, 1) * 0.95, max(high, 2) * 1.05, BARS + 1)


def draw(found: DescribedRequests) -> Picture:
    """Three panels side by side."""
    figure = new_figure(12.4, 3.7, f"{short(found.name, 60)}: {len(found):,} requests")
    over_time, spread, joint = figure.subplots(1, 3)
    _arrivals(over_time, found.trace)
    _lengths(spread, found.trace)
    _joint(joint, found.trace)
    names = [one.name for one in found.trace.classes]
    legend_below(figure, [*coloured_lines(names), grey_mark("all", linestyle="-", marker="")] if len(names) > 1 else [])
    caption_below(figure, "requests that follow others: as if answers took no time" if (found.trace.follows >= 0).any() else "")
    return Picture(figure=figure)


def _arrivals(axis: Any, trace: RequestTrace) -> None:
    line = rate_line(trace.arrival)
    last = float(line.times[-1] + line.window)
    factor, unit = (3600.0, "h") if last > 7200 else (60.0, "min") if last > 300 else prefixed(last, "s")
    ends = np.append(line.times, last)
    edges = ends / factor  # here, so that ticks are round in the unit
    axis.stairs(
        line.rates, edges, color=GREY if len(trace.classes) > 1 else colour_of(0), fill=len(trace.classes) == 1, alpha=0.9, zorder=2
    )
    for i in range(len(trace.classes) if len(trace.classes) > 1 else 0):
        counts = np.histogram(trace.arrival[trace.kind == i], bins=ends)[0]
        axis.stairs(counts / line.window, edges, color=colour_of(i), linewidth=1.3, zorder=3)
    tidy(axis, "both")
    axis.set_xlim(min(0.0, float(edges[0])), float(edges[-1]))
    axis.set_ylim(bottom=0.0)
    number_axis(axis.xaxis, Scale(f"time [{unit}]"))
    number_axis(axis.yaxis, Scale("arrivals [1/s]"))
    axis.set_title(f"Arrivals, in windows of {lasting(line.window)}", fontsize=10)


def _lengths(axis: Any, trace: RequestTrace) -> None:
    edges = bins_of(trace.prompt, trace.output)
    top = 0.0
    for i, (name, tokens) in enumerate((("prompt", trace.prompt), ("output", trace.output))):
        shares = np.histogram(tokens, bins=edges)[0] / len(tokens)
        colour = (GREY, colour_of(8))[i]
        axis.stairs(shares, edges, color=colour, fill=True, alpha=0.35, zorder=2)
        axis.stairs(shares, edges, color=colour, linewidth=1.2, zorder=3)
        middle = float(np.median(tokens))
        axis.axvline(middle, color=colour, linewidth=1.0, linestyle="--", zorder=4)
        words = f"{name}, median {middle:,.0f}"
        plate = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85}
        axis.text(
            0.98, 0.97 - 0.09 * i, words, color=colour, fontsize=9, ha="right", va="top", transform=axis.transAxes, bbox=plate, zorder=5
        )
        top = max(top, float(shares.max()))
    tidy(axis, "both")
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(0.0, 1.35 * top)
    number_axis(axis.xaxis, Scale("tokens", log=True))
    number_axis(axis.yaxis, Scale("share of requests"))
    axis.set_title("Lengths", fontsize=10)


def _joint(axis: Any, trace: RequestTrace) -> None:
    """Points where there are few, shaded cells where there are many."""
    x, y = bins_of(trace.prompt), bins_of(trace.output)
    if len(trace) <= 2000:
        for i in range(len(trace.classes)):
            mine = trace.kind == i
            axis.scatter(trace.prompt[mine], trace.output[mine], s=9, color=colour_of(i), alpha=0.5, linewidth=0, zorder=2)
    else:
        counts, _, _ = np.histogram2d(trace.prompt, trace.output, bins=(x, y))
        shades = np.log10(np.where(counts.T > 0, counts.T, np.nan))
        axis.pcolormesh(x, y, shades, cmap="Blues", vmin=-0.4 * float(np.log10(counts.max() + 1)), zorder=2, rasterized=True)
    tidy(axis, "both")
    axis.set_xlim(x[0], x[-1])
    axis.set_ylim(y[0], y[-1])
    number_axis(axis.xaxis, Scale("prompt tokens", log=True))
    number_axis(axis.yaxis, Scale("output tokens", log=True))
    axis.set_title("Both of each request", fontsize=10)
