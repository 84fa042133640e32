"""Two timelines side by side: which is faster, by how much, and what makes the difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.drawing.canvas import new_figure, save_as, tidy
from crossflow.base.drawing.palette import GREY
from crossflow.base.drawing.words import number, prefixed, quantity, signed
from crossflow.base.units import show
from crossflow.edges.trace.gantt import WIDTH, draw_rows, gantt_of, legend, mean, rows_height, time_axis
from crossflow.engine.timeline.record import ACTIVITIES, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MATTERS = 0.01  # share of the difference of the totals below which an event is left out
MOST_EVENTS = 12
TOLD, MOST_TOLD = 0.1, 3  # share of the largest contribution below which a sentence leaves one out, and how many it names
COLOURS = ("#999999", "#0072B2")  # of the first and the second timeline


@dataclass(frozen=True, kw_only=True)
class TimePart:
    """Time of a device that goes to one activity or to events of one name, in the mean over all devices of each timeline. [s]"""

    name: str
    first: float
    second: float

    @property
    def difference(self) -> float:
        """What it adds to the second timeline over the first. [s]"""
        return self.second - self.first


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two timelines have and have not in common."""

    titles: tuple[str, str]  # of both
    totals: tuple[float, float]  # times of both steps. [s]
    activities: tuple[TimePart, ...]  # where the time goes; the differences add up to that of the totals
    events: tuple[TimePart, ...]  # events of the largest differences, which overlap in time and do not add up
    utilisation: tuple[float, float]  # mean share of the step in which devices compute, of both. [1]
    peak_memory: tuple[float, float]  # of the fullest devices of both. [B]

    @property
    def ratio(self) -> float:
        """How many times faster the second is. [1]"""
        return self.totals[0] / self.totals[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, times in seconds."""
        plain = dataclasses.asdict(self) | {"ratio": self.ratio}
        for group in ("activities", "events"):
            plain[group] = [dataclasses.asdict(part) | {"difference": part.difference} for part in getattr(self, group)]
        return plain

    def sentences(self) -> list[str]:
        """What a person would say about it."""
        compute, memory = self.utilisation, [show(peak, "B", 3) for peak in self.peak_memory]
        return [
            *(f"{name}: {title}, {quantity(total, 's')}" for name, title, total in zip(NAMES, self.titles, self.totals, strict=True)),
            _verdict(self.ratio) + _reasons(self.activities),
            f"devices compute {100 * compute[1]:.1f} % of the step instead of {100 * compute[0]:.1f} %",
            f"the fullest device holds {memory[1]} instead of {memory[0]}",
        ]


NAMES = ("first", "second")


def _verdict(ratio: float) -> str:
    if abs(ratio - 1) < 5e-4:
        return "both take the same time"
    return f"second is {number(max(ratio, 1 / ratio), 3)} times {'faster' if ratio > 1 else 'slower'}"


def _reasons(parts: Sequence[TimePart]) -> str:
    """Contributions, the largest first, as more or less of something."""
    largest = max((abs(part.difference) for part in parts), default=0.0)
    told = [part for part in sorted(parts, key=lambda part: -abs(part.difference)) if abs(part.difference) > TOLD * largest][:MOST_TOLD]
    words = [f"{'more' if part.difference > 0 else 'less'} {part.name.replace('_', ' ')} ({signed(part.difference, 's')})" for part in told]
    return f": {', '.join(words)}" if words else ""


# ------------------------------------------------------------------------------------------ data


def compare(first: Timeline, second: Timeline) -> Comparison:
    """Align two timelines, of the same or of different strategies and systems."""
    both = (first, second)
    activity = [timeline.activity() for timeline in both]
    activities = [TimePart(name=name, first=mean(first, activity[0][name]), second=mean(second, activity[1][name])) for name in ACTIVITIES]
    return Comparison(
        titles=(first.title, second.title),
        totals=(first.total, second.total),
        activities=tuple(activities),
        events=_events(first, second),
        utilisation=(mean(first, first.utilisation()), mean(second, second.utilisation())),
        peak_memory=(_peak(both[0]), _peak(both[1])),
    )


def _peak(timeline: Timeline) -> float:
    return max((float(held.max(initial=0.0)) for _, held in timeline.memory), default=0.0)


def _events(first: Timeline, second: Timeline) -> tuple[TimePart, ...]:
    """Names whose time differs by what matters, the largest difference first."""
    times = [time_by_name(timeline) for timeline in (first, second)]
    names = dict.fromkeys([*times[0], *times[1]])
    parts = [TimePart(name=name, first=times[0].get(name, 0.0), second=times[1].get(name, 0.0)) for name in names]
    least = MATTERS * abs(second.total - first.total)
    kept = [part for part in parts if part.difference and abs(part.difference) >= least]
    return tuple(sorted(kept, key=lambda part: -abs(part.difference))[:MOST_EVENTS])


def time_by_name(timeline: Timeline) -> dict[str, float]:
    """Time of a device in events of each name, in the mean over all devices. [s]"""
    slots, count = timeline.slots, len(timeline.passes)
    ranks = np.array([len(device.ranks) for device in timeline.devices], dtype=float)
    often = np.bincount(slots.passed, timeline.stretch * ranks[slots.device], count) / ranks.sum()
    table: Array = np.stack([np.bincount(one.name, one.end - one.start, len(timeline.names)) for one in timeline.passes])
    return dict(zip(timeline.names, (often @ table).tolist(), strict=True))


# ------------------------------------------------------------------------------------------ drawing


def draw_comparison(first: Timeline, second: Timeline, path: Path) -> list[Path]:
    """Draw both timelines above each other on one axis of time, and beside them where the time of a device goes; as PNG and SVG."""
    import matplotlib as mpl

    charts = [gantt_of(timeline) for timeline in (first, second)]
    span = (0.0, max(first.total, second.total))
    charts = [dataclasses.replace(chart, span=span) for chart in charts]
    compared, heights = compare(first, second), [rows_height(chart) + 0.3 for chart in charts]
    with mpl.rc_context({"hatch.linewidth": 0.5}):
        figure = new_figure(WIDTH + 3.0, max(sum(heights), 2.6) + 1.3, compared.sentences()[2])
        grid = figure.add_gridspec(2, 2, width_ratios=[3.4, 1.0], height_ratios=heights)
        above = figure.add_subplot(grid[0, 0])
        axes = [above, figure.add_subplot(grid[1, 0], sharex=above)]
        for axis, chart, name in zip(axes, charts, NAMES, strict=True):
            draw_rows(axis, chart, 0.7 * WIDTH)
            axis.set_title(f"{name}: {chart.title}", fontsize=9, loc="left")
        time_axis(axes[1], span)
        axes[0].tick_params(axis="x", labelbottom=False)
        _draw_activities(figure.add_subplot(grid[:, 1]), compared)
        legend(figure, *charts)
        return save_as(figure, path)


def _draw_activities(axis: Axes, compared: Comparison) -> None:
    """Pairs of bars, with what the second adds or saves at their ends."""
    parts = [part for part in compared.activities if part.first or part.second]
    largest = max(max(part.first, part.second) for part in parts)
    factor, unit = prefixed(largest, "s")
    places = np.arange(len(parts))
    for side, colour in zip(NAMES, COLOURS, strict=True):
        lengths = [getattr(part, side) / factor for part in parts]
        axis.barh(places + 0.2 * (2 * NAMES.index(side) - 1), lengths, 0.36, color=colour, label=side, zorder=2)
    for place, part in zip(places, parts, strict=True):
        text = signed(part.difference, "s") if abs(part.difference) > 1e-3 * largest else "same"
        end = (max(part.first, part.second) / factor, place)
        axis.annotate(text, end, (3, 0), textcoords="offset points", va="center", fontsize=8, color=GREY)
    axis.set_yticks(places, [part.name.replace("_", "\n") for part in parts], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_xlabel(f"Time of a device, mean of all [{unit}]", fontsize=9)
    axis.tick_params(axis="x", labelsize=8)
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    tidy(axis, "x")
