"""A replay as a picture: what came, what waited, what the engines did, and how long requests took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossflow.answers.evaluation.replay_statistics import PERCENTILES
from crossflow.base.arrays import Array
from crossflow.base.drawing.canvas import Scale, new_figure, nothing, number_axis, tidy
from crossflow.base.drawing.palette import COLOURS, GREY, PALE
from crossflow.base.drawing.picture import Picture
from crossflow.base.drawing.words import prefixed, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from crossflow.answers.service.served import ServedRequests

NAMES = {"ttft_s": "time to first token", "tpot_s": "time per output token", "e2e_s": "whole request"}


class ServicePanel(NamedTuple):
    """Lines over time in one panel: label of its axis, values by name."""

    label: str
    lines: Mapping[str, Array]
    factor: float = 1.0


def panels_over_time(found: ServedRequests) -> list[ServicePanel]:
    """What the picture shows over time."""
    series = found.series
    factor, unit = prefixed(float(series["power_w"].max()), "W")
    return [
        ServicePanel("requests / s", {"arrivals": series["arrivals_per_s"]}),
        ServicePanel("requests", {"in engines": series["requests"], "waiting": series["waiting"]}),
        ServicePanel("tokens / s", {"prompts": series["prompt_tokens_per_s"], "output": series["output_tokens_per_s"]}),
        ServicePanel("share [%]", {"engines busy": 100.0 * series["busy"], "cache in use": 100.0 * series["cache_use"]}),
        ServicePanel(f"power [{unit}]", {"power": series["power_w"]}, factor),
    ]


def served_picture(found: ServedRequests) -> Picture:
    """Time lines at the left, distributions of times at the right."""
    title = f"{found.scenario.name}: {len(found.trace):,} requests on {found.scenario.fleet}"
    if not found.feasible:
        return Picture(figure=nothing(title, str(found.reason)))
    shown = panels_over_time(found)
    figure = new_figure(11.0, 7.6, title)
    left, right = figure.subfigures(1, 2, width_ratios=[1.6, 1.0])  # type: ignore[misc] # of two columns an array
    rows = list(left.subplots(len(shown), 1, sharex=True))
    factor, unit = prefixed(float(found.series["time_s"][-1]), "s")
    for axis, panel in zip(rows, shown, strict=True):
        _over_time(axis, found.series["time_s"], panel)
    number_axis(rows[-1].xaxis, Scale(f"time [{unit}]", factor))
    for axis, (name, words) in zip(np.ravel(right.subplots(len(NAMES), 1)), NAMES.items(), strict=True):
        _distribution(axis, found, name, words)
    left.align_ylabels(rows)
    return Picture(figure=figure)


def _over_time(axis: Axes, times: Array, panel: ServicePanel) -> None:
    for (name, values), colour in zip(panel.lines.items(), COLOURS, strict=False):
        axis.plot(times, values, color=colour, linewidth=1.1, label=name)
    number_axis(axis.yaxis, Scale(panel.label, panel.factor))
    top = max(float(values.max()) for values in panel.lines.values())
    axis.set_ylim(0.0, (1.35 if len(panel.lines) > 1 else 1.08) * top or 1.0)  # room for the legend
    tidy(axis)
    if len(panel.lines) > 1:
        axis.legend(fontsize=8, frameon=False, loc="upper right", ncols=len(panel.lines))


def _distribution(axis: Axes, found: ServedRequests, name: str, words: str) -> None:
    """Share of requests that took at most so long, by class, with the percentiles of all and the targets."""
    values = found.times[name.removesuffix("_s")]
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        axis.text(0.5, 0.5, f"{words}: no request has any", ha="center", va="center", color=GREY, transform=axis.transAxes)
        axis.set_axis_off()
        return
    factor, unit = prefixed(float(np.median(values[known])), "s")
    for i, one in enumerate(found.trace.classes):
        mine = np.sort(values[known & (found.found.kind == i)])
        if len(mine):
            colour = COLOURS[i % len(COLOURS)]
            axis.plot(mine, 100.0 * np.arange(1, len(mine) + 1) / len(mine), color=colour, linewidth=1.4, label=one.name)
            if (target := getattr(one, name.removesuffix("_s"))) is not None:
                axis.axvline(target, color=colour, linestyle=":", linewidth=1.2)
    axis.set_xscale("log")
    number_axis(axis.xaxis, Scale(f"{words} [{unit}]", factor, log=True))
    axis.set_ylabel("requests [%]")
    axis.set_ylim(0.0, 102.0)
    tidy(axis, "both")
    told = [f"{tail} {quantity(found.latency[name][tail] or 0.0, 's')}" for tail in ("p50", "p99") if tail in PERCENTILES]
    axis.text(0.97, 0.06, "\n".join(told), ha="right", va="bottom", fontsize=8, color=GREY, transform=axis.transAxes,
              bbox={"facecolor": "white", "edgecolor": PALE, "linewidth": 0.5, "pad": 2.0})  # fmt: skip
    if len(found.trace.classes) > 1:
        axis.legend(fontsize=8, frameon=False, loc="upper left")
