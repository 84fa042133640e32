"""Plots of studies, a module for each kind: a data step that tests can look at, and a drawing step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from crossflow.drawing.canvas import caption_below, save
from crossflow.study.plots import boxes, breakdown, convergence, heatmap, lines, parallel, pareto, uncertainty
from crossflow.study.plots.spec import Plot
from crossflow.study.plots.view import Convergence, Drawn, View

__all__ = ["Convergence", "Drawn", "Plot", "View", "draw"]

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
    caption_below(figure, view.caption)
    return save(figure, folder, plot.name)
