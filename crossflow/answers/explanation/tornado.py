"""Tornado plots of explanations: a data step that tests can look at, and a drawing step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from crossflow.answers.explanation.answers import Explanation, Swing
from crossflow.answers.explanation.trials import NOTHING
from crossflow.answers.score import unit_of, words
from crossflow.base.drawing.canvas import save_as
from crossflow.base.drawing.palette import COLOURS
from crossflow.base.units import show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOW, HIGH = COLOURS[0], COLOURS[1]


class TornadoData(NamedTuple):
    """Everything that a plot shows: bars from the largest span to the smallest, about the scenario's own value."""

    title: str
    label: str
    value: float
    scale: float
    rows: tuple[Swing, ...]


def tornado(explanation: Explanation, top: int = 15, *, whole: bool = False) -> TornadoData:
    """What a tornado plot of an explanation shows: the parameters with the largest spans among those with a value at both ends.

    whole : constants too, which were fitted or restate the device.
    """
    swings = [swing for swing in explanation.swings if math.isfinite(_span(swing)) and _span(swing) > NOTHING * explanation.value]
    constants = set() if whole else {effect.parameter.path for effect in explanation.effects if effect.group == "constant"}
    swings = [swing for swing in swings if swing.path not in constants]
    unit = unit_of(explanation.objective)
    written, _, prefixed = show(explanation.value, unit, 15).partition(" ")
    objective = in_words(explanation.objective)
    return TornadoData(
        title=f"{explanation.scenario.name}: what moves the {objective}",
        label=f"{objective[0].upper()}{objective[1:]} [{prefixed or '1'}]",
        value=explanation.value,
        scale=explanation.value / float(written),
        rows=tuple(sorted(swings, key=lambda swing: -_span(swing))[:top]),
    )


def in_words(objective: str) -> str:
    """A column of a score as people say it, without the unit that its name ends in.

    >>> in_words("step_time_s"), in_words("bound_share.l2"), in_words("run.cost_usd"), in_words("job.iteration_time_s")
    ('step time', 'bound l2', 'cost of the run', 'iteration time')
    """
    group, _, part = objective.removeprefix("run.").removeprefix("job.").partition(".")
    parts = [words(group), part.replace("_", " "), "of the run" if objective.startswith("run.") else ""]
    return " ".join(filter(None, parts))


def _span(swing: Swing) -> float:
    return abs(swing.at_high - swing.at_low)


def draw(data: TornadoData, path: Path) -> list[Path]:
    """Draw a plot as PNG and SVG beside each other; an ending of `path` that names one of them is left off."""
    return save_as(figure_of(data), path)


def figure_of(data: TornadoData) -> Figure:
    """The drawn plot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 1.9 + 0.42 * len(data.rows)), layout="constrained")
    FigureCanvasAgg(figure)
    _draw_bars(figure.subplots(), data)
    _legend(figure, data)
    return figure


def _draw_bars(axis: Any, data: TornadoData) -> None:
    for place, row in enumerate(data.rows):
        for end, colour in ((row.at_low, LOW), (row.at_high, HIGH)):
            hatch = "////" if row.given else None
            width = (end - data.value) / data.scale
            axis.barh(place, width, left=data.value / data.scale, height=0.62, color=colour, edgecolor="white", hatch=hatch, zorder=2)
    axis.axvline(data.value / data.scale, color="#444444", linewidth=1.0, zorder=3)
    axis.set_yticks(range(len(data.rows)), [_words(row) for row in data.rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(data.label)
    axis.set_title(data.title, fontsize=10)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)


def _words(row: Swing) -> str:
    acts = f", acts on {row.resource}" if row.resource else ""
    return f"{row.path}\n{show(row.low, row.unit)} to {show(row.high, row.unit)}{acts}"


def _legend(figure: Any, data: TornadoData) -> None:
    """Colours name the ends of a range, hatching where the range comes from."""
    from matplotlib.patches import Patch

    handles = [Patch(color=LOW, label="at the low end"), Patch(color=HIGH, label="at the high end")]
    if not all(row.given for row in data.rows):
        handles.append(Patch(facecolor="#888888", edgecolor="white", label="plain: value over 1.1 to value times 1.1"))
    if any(row.given for row in data.rows):
        handles.append(Patch(facecolor="#888888", edgecolor="white", hatch="////", label="hatched: low to high of its file"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
