"""Gantt charts of timelines for terminals: a line a class of devices, a character for what fills each moment."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.base.drawing.words import quantity, short, signed
from crossflow.base.errors import with_article
from crossflow.base.names import visible
from crossflow.edges.trace.compare import TimePart, compare
from crossflow.edges.trace.gantt import COMPUTES, Pieces, families_of, mean, pieces_of, thinned
from crossflow.engine.timeline.record import ACTIVITIES, Timeline

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

MOST_LINES = 32
LONGEST, SHORTEST_BAR = 20, 10  # characters
PERCENT = 5  # characters at the end of a line
SLIVER = 1e-9  # of a cell: what rounding leaves
SEEN = 0.1  # of a cell: a kind of pass that takes so much of a line is seen in it


class Mark(NamedTuple):
    """How something looks: its name in the legend, its character, its style."""

    name: str
    character: str
    style: str


KINDS: Mapping[str, Mark] = {
    "forward": Mark("forward", "▒", "cyan"),
    "backward": Mark("backward", "█", "blue"),
    "weight gradient": Mark("weight gradient", "▚", "green"),
}
STYLES = ("magenta", "yellow", "bright_magenta")  # of other kinds of passes, whose characters are their first letters
OTHERWISE = (  # by fill, after what computes
    Mark("exposed communication", "~", "red"), Mark("waits in a collective", ":", "bright_red"), Mark("waits for the host", "h", "yellow"),
)  # fmt: skip
IDLE = Mark("idle", "·", "bright_black")
TURNS = "what shares a column takes turns in it, each for its share of the time"


def text_gantt(timeline: Timeline, width: int) -> Group:
    """A timeline as lines of a terminal of `width` columns; of more than `MOST_LINES` classes of devices some at even distances.

    A title; a line a class of devices, which ends with the share of the step that it computes; the axis of time; the legend; the
    table of where the time goes.
    """
    from rich.console import Group
    from rich.text import Text

    every = len(timeline.devices)
    shown = thinned(range(every), MOST_LINES)
    left = [f"{every - len(shown)} of {every} classes of devices are not shown"] * (len(shown) < every)
    return Group(
        Text(f"{visible(timeline.title)}: {quantity(timeline.total, 's')} {with_article(timeline.of)}", style="bold"), *_overfull(timeline),
        *gantt_lines(timeline, width, shown), *(Text(line, style="dim") for line in left), Text(), *activity_table(timeline, shown, width),
    )  # fmt: skip


def text_comparison(first: Timeline, second: Timeline, width: int) -> Group:
    """Two timelines as lines of a terminal of `width` columns, on one axis of time, and what makes the difference."""
    from rich.console import Group
    from rich.text import Text

    found, end = compare(first, second), max(first.total, second.total)
    charts = [gantt_lines(timeline, width, thinned(range(len(timeline.devices)), MOST_LINES // 2), end) for timeline in (first, second)]
    names = [Text(sentence, style="bold") for sentence in found.sentences()[:2]]
    told = [Text(sentence) for sentence in found.sentences()[2:]]
    lines = [[*_overfull(timeline), *chart] for timeline, chart in zip((first, second), charts, strict=True)]
    pairs = [part for name, chart in zip(names, lines, strict=True) for part in (name, *chart, Text())]
    groups = (("time of a device, mean of all", found.activities), ("events that differ most", found.events))
    return Group(*pairs, *told, Text(), *(_parts_table(title, parts) for title, parts in groups if parts))


def _overfull(timeline: Timeline) -> list[Text]:
    """A line about devices that do not have the memory that they need, if there are any."""
    from rich.text import Text

    return [] if timeline.overfull is None else [Text(timeline.overfull, style="bold red")]


def _parts_table(title: str, parts: Sequence[TimePart]) -> Table:
    table = _table(title, "first", "second", "difference")
    for part in parts:
        times = [quantity(time, "s") for time in (part.first, part.second)]
        same = abs(part.difference) <= 1e-9 * max(part.first, part.second)
        table.add_row(short(part.name.replace("_", " ")), *times, "same" if same else signed(part.difference, "s"))
    table.add_row("")
    return table


# ------------------------------------------------------------------------------------------ chart


def gantt_lines(timeline: Timeline, width: int, devices: Sequence[int], end: float = 0.0) -> list[Text]:
    """Lines of classes of devices, the axis of time and the legend, none longer than `width`; lines last until `end` or the step's. [s]"""
    from rich.text import Text

    names = [short(timeline.devices[device].name, LONGEST) for device in devices]
    margin = max(map(len, names), default=0) + 1
    whole = max(width - margin - PERCENT, SHORTEST_BAR)
    cells = max(round(whole * timeline.total / max(timeline.total, end)), 1)
    marks, filled = _marks(timeline), filling(timeline, devices, cells)
    lines = []
    for name, row, share in zip(names, filled, timeline.utilisation()[list(devices)], strict=True):
        runs = [(marks[i].character * int(n), marks[i].style) for i, n in zip(*_runs(row), strict=True)]
        lines.append(Text.assemble(name.ljust(margin), *runs, f"{100 * share:3.0f} %".rjust(PERCENT + whole - cells)))
    there = [mark for i, mark in enumerate(marks) if (filled == i).any()]
    return [*lines, Text(" " * margin + _axis(timeline.total, cells), style="dim"), *_legend(there, width)]


def filling(timeline: Timeline, devices: Sequence[int], cells: int) -> Index:
    """Index of the mark of each cell of time, shape (devices, cells); all that shares cells, idle time too, takes turns in them."""
    kinds = len(families_of(timeline))
    edges = np.linspace(0.0, timeline.total, cells + 1)
    pieces = pieces_of(timeline, devices, (0.0, timeline.total), timeline.total / cells / 4)
    mark = np.where(pieces.fill == COMPUTES, pieces.family, kinds - 1 + pieces.fill)
    table = np.stack([[_times(pieces, (pieces.row == row) & (mark == i), edges) for i in range(kinds + 3)] for row in range(len(devices))])
    idle = timeline.total / cells - table.sum(axis=1, keepdims=True)
    times = np.concatenate([table, idle], axis=1)
    return np.stack([_taking_turns(np.where(row > SLIVER * timeline.total / cells, row, 0.0), kinds) for row in times])


def _taking_turns(times: Array, kinds: int) -> Index:
    """What each cell shows of the times in it, shape (marks, cells): that which is owed most so far among what is there. [s]

    Whatever takes most of each cell would else hide all others: a stage that computes for 48 % of every cell would look idle. Of a
    device that is too little at work to be owed a cell, the one with most of its work shows it. So it is with each of the `kinds` of
    passes, the first marks, as with the update of weights, which comes once in a step; but no mark loses its last cell to another, and
    a line shows at most a cell more of passes than there is.
    """
    owed, shown = np.zeros(len(times)), []
    for there in times.T:
        owed += there
        shown.append(int(np.where(there > 0, owed, -np.inf).argmax()))
        owed[shown[-1]] -= there.sum()
    at_work = times[:-1]
    if at_work.any() and min(shown) == len(at_work):
        mark, place = np.unravel_index(at_work.argmax(), at_work.shape)
        shown[int(place)] = int(mark)
    taken = times[:kinds].sum(axis=1) / times[:, 0].sum()
    for kind in (int(kind) for kind in np.flatnonzero(taken >= SEEN) if kind not in shown):
        cell = int(np.argmax([there * (shown.count(mark) > 1) for there, mark in zip(times[kind], shown, strict=True)]))
        if times[kind, cell] > 0 and shown.count(shown[cell]) > 1 and _has_room(shown, times, taken, cell):
            shown[cell] = kind
    return np.array(shown)


def _has_room(shown: list[int], times: Array, taken: Array, cell: int) -> bool:
    """Whether a cell may show a pass, so that a line shows at most a cell more of passes than there is.

    Where it shows as many already, the kind of which it shows most too much leaves the cell that is idle for longest.
    """
    kinds = len(taken)
    if shown[cell] < kinds or sum(mark < kinds for mark in shown) <= taken.sum():
        return True
    most = int(np.argmax([shown.count(kind) - taken[kind] for kind in range(kinds)]))
    cells = [i for i, mark in enumerate(shown) if mark == most]
    if len(cells) < 2:
        return False
    shown[max(cells, key=lambda i: float(times[-1, i]))] = len(times) - 1
    return True


def _times(pieces: Pieces, mine: Array, edges: Array) -> Array:
    """Time that some pieces take of each cell, shape (cells,). [s]"""
    start, width, height = pieces.start[mine], pieces.width[mine], pieces.height[mine]
    if not len(start):
        return np.zeros(len(edges) - 1)
    knots = np.stack([start, start + width], axis=1).ravel()
    done = np.cumsum(np.stack([np.zeros(len(start)), width * height], axis=1).ravel())
    return np.diff(np.interp(edges, knots, done))


def _marks(timeline: Timeline) -> list[Mark]:
    """Looks of kinds of passes, of what else a slot holds, and of idle time."""
    others = [name for name in families_of(timeline) if name not in KINDS]
    plain = {name: Mark(name, name[:1].upper(), STYLES[i % len(STYLES)]) for i, name in enumerate(others)}
    return [*(KINDS.get(name) or plain[name] for name in families_of(timeline)), *OTHERWISE, IDLE]


def _runs(row: Index) -> tuple[Index, Index]:
    """Equal neighbours: what they are, and how many."""
    first = np.flatnonzero(np.diff(row, prepend=-1))
    return row[first], np.diff(first, append=len(row))


def _axis(total: float, cells: int) -> str:
    """The beginning, the middle and the end of the step."""
    middle, end = quantity(total / 2, "s"), quantity(total, "s")
    return "0" + middle.center(cells - 1 - len(end)) + end


def _legend(marks: Sequence[Mark], width: int) -> list[Text]:
    """Characters and what they mean, in as many lines as it takes, and how columns show several."""
    from rich.text import Text

    lines = [Text()]
    for mark in marks:
        if len(lines[-1]) and len(lines[-1]) + len(mark.name) + 4 > width:
            lines.append(Text())
        lines[-1].append("  " * bool(len(lines[-1]))).append(mark.character, mark.style).append(f" {mark.name}")
    return [*lines, *(Text(line, style="dim") for line in textwrap.wrap(TURNS, width))]


# ------------------------------------------------------------------------------------------ table


def activity_table(timeline: Timeline, devices: Sequence[int], width: int) -> list[Table | Text]:
    """Where the time of classes of devices goes, and the mean over all of them; in percent of the step.

    Of a table that is too wide for so many columns of a terminal the last activities are left out, and named below.
    """
    from rich.text import Text

    activity = timeline.activity()
    names = [short(timeline.devices[device].name, LONGEST) for device in devices]
    first = f"% of the {timeline.of}"
    needed = [max(map(len, (first, "mean of all", *names))), *(max(map(len, name.split("_"))) for name in ACTIVITIES)]
    ends = itertools.accumulate(size + 2 for size in needed)
    shown = ACTIVITIES[: max(sum(end - 2 <= width for end in ends) - 1, 1)]
    table = _table(first, *(name.replace("_", " ") for name in shown))
    for name, device in zip(names, devices, strict=True):
        table.add_row(name, *_percents(timeline, [activity[what][device] for what in shown]))
    table.add_row("mean of all", *_percents(timeline, [mean(timeline, activity[what]) for what in shown]), style="bold")
    left = ", ".join(name.replace("_", " ") for name in ACTIVITIES[len(shown) :])
    return [table, *([Text(f"left out, because the page is narrow: {left}", style="dim")] if left else [])]


def _table(*titles: str) -> Table:
    """An empty table of numbers behind names."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for i, title in enumerate(titles):
        least = max(map(len, title.split())) if i else None
        table.add_column(title, justify="right" if i else "left", no_wrap=not i, min_width=least)
    return table


def _percents(timeline: Timeline, times: Sequence[float]) -> list[str]:
    return [f"{100 * time / timeline.total:.1f}" for time in times]
