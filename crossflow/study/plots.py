"""Plots of studies: a data step that tests can look at, and a drawing step."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crossflow import files
from crossflow.study.spec import LinePlot, label

# Colour-blind safe (Okabe and Ito); one a series.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = {
    "compute": "^", "registers": "v", "l1": "<", "l2": "s", "l3": ">", "memory": "o", "network": "D", "launch": "P", "bubble": "X",
}  # fmt: skip
AXIS_LABELS = {"step_time_s": "Step time [s]", "energy_j": "Energy of a step [J]", "power_w": "Power [W]", "mfu": "Model flop utilisation"}


class Series(NamedTuple):
    """One line: values at the positions of the x axis, what bounds each point, whether it fits."""

    name: str
    x: list[int]
    y: list[float]
    bound: list[str]
    feasible: list[bool]


class Panel(NamedTuple):
    """One set of axes."""

    name: str
    series: list[Series]


class PlotData(NamedTuple):
    """Everything that a plot shows."""

    name: str
    title: str
    x_label: str
    y_label: str
    ticks: list[str]
    panels: list[Panel]


def plot_data(rows: Sequence[Mapping[str, Any]], plot: LinePlot, values: Mapping[str, list[Any]]) -> PlotData:
    """What a plot shows of a study's rows; paths that it does not name stay at their first value."""
    fixed = {path: given[0] for path, given in values.items() if path not in (plot.x, plot.series, plot.panels)}
    shown = [row for row in rows if all(row[path] == value for path, value in fixed.items())]
    panels = []
    for panel in values[plot.panels] if plot.panels else [None]:
        lines = []
        for line in values[plot.series] if plot.series else [None]:
            mine = [row for row in shown if plot.panels is None or row[plot.panels] == panel]
            mine = [row for row in mine if plot.series is None or row[plot.series] == line]
            lines.append(_series(mine, plot, values[plot.x], _written(line, plot)))
        panels.append(Panel(_written(panel, plot), lines))
    x_label = plot.x_label or plot.x.rsplit(".", 1)[-1]
    y_label = plot.y_label or AXIS_LABELS.get(plot.y, plot.y)
    return PlotData(plot.name, plot.title, x_label, y_label, [_written(value, plot) for value in values[plot.x]], panels)


def _written(value: Any, plot: LinePlot) -> str:
    return "" if value is None else plot.labels.get(str(value), label(value))


def _series(rows: Sequence[Mapping[str, Any]], plot: LinePlot, ticks: list[Any], name: str) -> Series:
    timed = [row for row in rows if row.get(plot.y) is not None]
    return Series(
        name=name,
        x=[ticks.index(row[plot.x]) for row in timed],
        y=[float(row[plot.y]) for row in timed],
        bound=[str(row["bound_by"]) for row in timed],
        feasible=[bool(row["feasible"]) for row in timed],
    )


def draw(data: PlotData, folder: Path) -> list[Path]:
    """Draw a plot as PNG and SVG: marker shapes say what bounds a point, hollow ones that it does not fit."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = 1.6 + 3.6 * len(data.panels)
    figure = Figure(figsize=(max(width, 5.2), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(data.panels), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, data.panels, strict=True):
        _draw_panel(axis, panel, data)
    axes[0].set_ylabel(data.y_label)
    if data.title:
        figure.suptitle(data.title)
    _legends(figure, data)
    written = []
    for ending, options in (("png", {"dpi": 150, "metadata": {"Software": None}}), ("svg", {"metadata": {"Date": None}})):
        stream = io.BytesIO()
        with mpl.rc_context({"svg.hashsalt": "crossflow"}):  # the same study gives the same bytes
            figure.savefig(stream, format=ending, **options)
        files.write_bytes(folder / f"{data.name}.{ending}", stream.getvalue())
        written.append(folder / f"{data.name}.{ending}")
    return written


def _draw_panel(axis: Any, panel: Panel, data: PlotData) -> None:
    for i, (series, colour) in enumerate(zip(panel.series, COLOURS * 9, strict=False)):
        # Later lines are thinner, their marks smaller, so that lines which lie on one another can all be seen.
        slimmer = i / max(len(panel.series) - 1, 1)
        axis.plot(series.x, series.y, color=colour, linewidth=4.0 - 2.8 * slimmer, zorder=2)
        for x, y, bound, feasible in zip(series.x, series.y, series.bound, series.feasible, strict=True):
            face = colour if feasible else "white"
            mark: dict[str, Any] = {"marker": MARKERS.get(bound, "*"), "markersize": 10 - 5 * slimmer, "linestyle": "none"}
            axis.plot([x], [y], color=colour, markerfacecolor=face, zorder=3, **mark)
    axis.set_title(panel.name, fontsize=10)
    axis.set_xticks(range(len(data.ticks)), data.ticks, rotation=0 if max(map(len, data.ticks)) < 6 else 30)
    axis.set_xlabel(data.x_label)
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)


def _legends(figure: Any, data: PlotData) -> None:
    """Colours name the series, marker shapes the resource that bounds, hollow markers what does not fit."""
    from matplotlib.lines import Line2D

    first = data.panels[0].series
    lines = [Line2D([], [], color=colour, label=series.name) for series, colour in zip(first, COLOURS * 9, strict=False) if series.name]
    every = [series for panel in data.panels for series in panel.series]
    bounds = dict.fromkeys(bound for series in every for bound in series.bound)
    grey: dict[str, Any] = {"color": "#444444", "linestyle": "none", "markersize": 6.5}
    marks = [Line2D([], [], marker=MARKERS.get(bound, "*"), label=f"bound by {bound}", **grey) for bound in bounds]
    if any(not fits for series in every for fits in series.feasible):
        marks.append(Line2D([], [], marker="o", markerfacecolor="white", label="hollow: does not fit in memory or cannot be built", **grey))
    handles = [*lines, *marks]
    columns = max(1, min(len(handles), int(figure.get_figwidth() // 2.9)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
