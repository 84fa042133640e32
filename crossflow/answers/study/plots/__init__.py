"""Plots of studies, a module for each kind: a data step that tests can look at, and a drawing step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from crossflow.answers.study.plots import boxes, breakdown, convergence, heatmap, lines, losses, parallel, pareto, uncertainty
from crossflow.answers.study.plots.spec import Plot
from crossflow.answers.study.plots.view import Convergence, Drawn, View
from crossflow.base.drawing.canvas import caption_below, save
from crossflow.base.drawing.words import label

__all__ = ["Convergence", "Drawn", "Plot", "View", "draw"]

KEPT = ("lines", "breakdown", "intervals")  # kinds in which what a plot does not name stays at its first value
# What each kind shows, and how it is drawn.
_STEPS: dict[str, tuple[Callable[[View, Any], Any], Callable[[Any], Any]]] = {
    "lines": (lines.line_data, lines.draw_lines),
    "boxes": (boxes.box_data, boxes.draw_boxes),
    "convergence": (convergence.convergence_data, convergence.draw_convergence),
    "pareto": (pareto.pareto_data, pareto.draw_pareto),
    "parallel": (parallel.parallel_data, parallel.draw_parallel),
    "heatmap": (heatmap.heatmap_data, heatmap.draw_heatmap),
    "breakdown": (breakdown.breakdown_data, breakdown.draw_breakdown),
    "importance": (uncertainty.importance_data, uncertainty.draw_importance),
    "losses": (losses.loss_data, losses.draw_losses),
    "intervals": (uncertainty.interval_data, uncertainty.draw_intervals),
}


def draw(plot: Plot, view: View, folder: Path) -> list[Path]:
    """Draw a plot of a finished study as NAME.png and NAME.svg; the same study gives the same bytes.

    Raises
    ------
    CrossflowError
        When the folder cannot be written.
    """
    shown, drawn = _STEPS[plot.kind]
    figure = drawn(shown(view, plot))
    caption_below(figure, "; ".join(filter(None, (still(view, plot), view.caption))))
    return save(figure, folder, plot.name)


def still(view: View, plot: Plot) -> str:
    """At which of several swept values a plot shows what it does not name; nothing where there are none.

    >>> from crossflow.answers.study.plots.spec import LinePlot
    >>> view = View(columns={}, values={"system.devices": [8, 16], "system.technology.memory": ["HBM2", "HBM3"], "strategy": ["d8"]})
    >>> still(view, LinePlot(kind="lines", name="p", x="system.devices", y="mfu"))
    'shown at memory HBM2, the first of 2 values'
    >>> still(view, LinePlot(kind="lines", name="p", x="system.devices", where={"system.technology.memory": "HBM3"}))
    'shown at memory HBM3'
    """
    if plot.kind not in KEPT:
        return ""
    where = {path: value for path, value in getattr(plot, "where", {}).items() if len(view.values.get(path, ())) > 1}
    named = {*where, *(getattr(plot, field, None) for field in ("x", "series", "panels"))}
    counts = {path: len(values) for path, values in view.values.items() if path not in named and len(values) > 1}
    chosen = [f"{path.rpartition('.')[2]} {label(value)}" for path, value in where.items()]
    told = [*chosen, *(f"{path.rpartition('.')[2]} {label(view.values[path][0])}" for path in counts)]
    if not counts:
        return f"shown at {', '.join(told)}" if told else ""
    words = f"the first of {next(iter(counts.values()))} values" if len(counts) == 1 else "the first of their values"
    return f"shown at {', '.join(told)}, {words}"
