"""Gantt charts of timelines: what each class of devices does when, the critical path, memory over time.

The data step cuts slots into pieces by what their device does in them. There may be millions, too short to be seen, so that short
neighbours are laid together and share the height of the bar by their times: an area is always a time.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.drawing.canvas import new_figure, save_as, tidy
from crossflow.base.drawing.palette import GREY, PALE
from crossflow.base.drawing.words import number, prefixed, quantity, short
from crossflow.base.errors import with_article
from crossflow.base.units import show
from crossflow.engine.timeline.record import COMPUTE, HOST, WAIT, WORK, PassEvents, Timeline
from crossflow.parallel.tables import COLLECTIVES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What a device does in a piece of a slot.
FILLS = ("computes", "exposed communication", "waits in a collective", "waits for the host")
COMPUTES, EXPOSED, WAITS, HOSTED = range(len(FILLS))
MOST_ROWS = 64
SHARED = 0.999  # of the height of a bar: less than what rounding leaves
CELLS, MOST_CELLS = 400, 16_000  # pieces shorter than the span over this are laid together; of a row, and of all rows
# Passes by the beginning of their labels, with colours that differ in grey too; others take those that are left, in turn.
FAMILIES: Mapping[str, tuple[str, str]] = {
    "F": ("forward", "#56B4E9"), "B": ("backward", "#0072B2"), "W": ("weight gradient", "#3cb592"), "U": ("update", "#D55E00"),
    "R": ("reduction", "#CC79A7"),
}  # fmt: skip
OTHERS, OTHER = ("#E69F00", "#7b6fae", "#b5b35c"), ("other", "#8a6d3b")
NEUTRAL = "#777777"  # of kinds that are all waiting, which hatching tells apart


# ------------------------------------------------------------------------------------------ data


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """Parts of slots in which a device does one thing, as rectangles; arrays of shape (pieces,), in order of rows and starts."""

    row: Index  # of the chart
    family: Index  # index of the kind of pass in the chart's families
    fill: Index  # index in `FILLS`
    start: Array  # [s]
    width: Array  # [s]
    base: Array  # place of its bottom, as a share of the height of the bar. [1]
    height: Array  # share of that height: it takes its width times this. [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """Spans of time in rows; arrays of shape (boxes,)."""

    row: Index  # of the chart
    start: Array  # [s]
    width: Array  # [s]
    label: tuple[str, ...]  # what stands in each: the number of its microbatch, or the label of its pass where it has none
    family: Index  # index of the kind of pass in the chart's families
    solid: Mask  # whether the device computes for most of each, so that its colour is dark

    def at(self, places: Mask) -> Boxes:
        """Some of the boxes."""
        label = tuple(itertools.compress(self.label, places.tolist()))
        arrays = ("row", "start", "width", "family", "solid")
        return Boxes(label=label, **{name: getattr(self, name)[places] for name in arrays})


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryLine:
    """What one class of devices holds over time: `held` from each of `times` on, shape (changes,). [B], [s]"""

    name: str
    times: Array
    held: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Gantt:
    """Everything that a chart shows."""

    title: str  # with the time of the step and the mean share of it in which devices compute
    span: tuple[float, float]  # first and last time shown. [s]
    rows: tuple[str, ...]  # names of classes of devices
    utilisation: Array  # share of the step that each computes, shape (rows,). [1]
    families: Mapping[str, str]  # kinds of passes with their colours
    pieces: Pieces  # what devices do
    slots: Boxes  # slots of the rows
    path: Boxes  # the critical path, slots that follow each other on one device as one box
    memory: tuple[MemoryLine, ...]  # the fullest and the emptiest class of devices
    capacity: float  # memory of one device. [B]
    note: str = ""  # what is left out or drawn otherwise


def gantt_of(timeline: Timeline, devices: Sequence[int] | None = None, span: tuple[float, float] | None = None) -> Gantt:
    """What a chart of a timeline shows.

    Parameters
    ----------
    devices : classes of devices, by default all; of more than `MOST_ROWS` some at even distances.
    span : first and last time shown, by default the whole step. [s]
    """
    wanted = list(range(len(timeline.devices)) if devices is None else devices)
    shown = thinned(wanted, MOST_ROWS)
    begin, end = span or (0.0, timeline.total)
    cells = min(CELLS, MOST_CELLS // max(len(shown), 1))
    utilisation = timeline.utilisation()
    pieces = pieces_of(timeline, shown, (begin, end), (end - begin) / cells)
    notes = [timeline.overfull] if timeline.overfull is not None else []
    notes += ["too dense to draw: bar height shows each kind's share"] * bool((pieces.height < SHARED).any())
    notes += [f"{len(shown)} of {len(wanted)} classes of devices, at even distances"] * (len(shown) < len(wanted))
    return Gantt(
        title=f"{timeline.title}: {quantity(timeline.total, 's')} {with_article(timeline.of)}, "
        f"devices compute {100 * mean(timeline, utilisation):.0f} % of it",
        span=(begin, end),
        rows=tuple(timeline.devices[device].name for device in shown),
        utilisation=utilisation[shown],
        families=families_of(timeline),
        pieces=pieces,
        slots=_slots(timeline, shown, (begin, end)),
        path=_path(timeline, shown, (begin, end)),
        memory=_memory(timeline),
        capacity=timeline.capacity,
        note="; ".join(notes),
    )


def thinned(devices: Sequence[int], most: int) -> list[int]:
    """Some of many devices at even distances, the first and the last among them.

    >>> thinned(range(9), 3), thinned(range(2), 3)
    ([0, 4, 8], [0, 1])
    """
    if len(devices) <= most:
        return list(devices)
    return [devices[i] for i in np.rint(np.linspace(0, len(devices) - 1, most)).astype(int)]


def mean(timeline: Timeline, values: Array) -> float:
    """Mean over all devices of what is known of each class of them."""
    ranks = np.array([len(device.ranks) for device in timeline.devices], dtype=float)
    return float(values @ ranks / ranks.sum())


# ------------------------------------------------------------------------------------------ kinds of passes


def family(label: str) -> str:
    """Kind of a pass by its label, or of a kernel that is a slot of its own.

    >>> family("F"), family("B3"), family("cell1.forward[0]"), family("all_reduce"), family("lookups")
    ('forward', 'backward', 'forward', 'collective', 'lookups')
    """
    stem = re.sub(r"\W*\d.*$", "", label) or label
    if stem in FAMILIES:
        return FAMILIES[stem][0]
    known = [name for name, _ in FAMILIES.values() if name in label]
    return known[0] if known else "collective" if stem.endswith(COLLECTIVES) else stem


def families_of(timeline: Timeline) -> dict[str, str]:
    """Kinds of passes of a timeline with their colours: those of every step first, some others as they come, and the rest as one."""
    found: dict[str, bool] = {}
    for one in timeline.passes:
        found[family(one.label)] = found.get(family(one.label), False) or bool(_computing(one).any())
    known = {name: colour for name, colour in FAMILIES.values() if name in found}
    others = [name for name, computes in found.items() if computes and name not in known]
    waiting = {name: NEUTRAL for name, computes in found.items() if not computes and name not in known}
    return known | waiting | dict(zip(others, OTHERS, strict=False)) | dict([OTHER] * (len(others) > len(OTHERS)))


def _computing(one: PassEvents) -> Mask:
    return np.asarray((one.stream == COMPUTE) & (one.kind == WORK))


def _kinds(timeline: Timeline) -> Index:
    place = {name: i for i, name in enumerate(families_of(timeline))}
    return np.array([place.get(family(one.label), len(place) - 1) for one in timeline.passes], dtype=np.intp)


# ------------------------------------------------------------------------------------------ pieces


@dataclass(frozen=True, eq=False)
class _Cut:
    """Pieces of a pass or of a row in order of their starts; `key` is the fill times the number of families, plus the family."""

    start: Array
    end: Array
    base: Array
    height: Array
    key: Index

    def at(self, places: Index | Mask) -> _Cut:
        """Some of the pieces."""
        return _Cut(*(getattr(self, field)[places] for field in self.__dataclass_fields__))


def pieces_of(timeline: Timeline, devices: Sequence[int], span: tuple[float, float], resolution: float) -> Pieces:
    """What devices do in their slots; neighbours shorter than `resolution` [s] are laid together."""
    kinds = len(families_of(timeline))
    passes = [_together(_cut(one, kind, kinds), resolution) for one, kind in zip(timeline.passes, _kinds(timeline), strict=True)]
    rows = [_together(_row(timeline, device, passes, span), resolution) for device in devices]
    whole = _joined(rows)
    return Pieces(
        row=np.repeat(np.arange(len(rows)), [len(row.key) for row in rows]), family=whole.key % kinds, fill=whole.key // kinds,
        start=whole.start, width=whole.end - whole.start, base=whole.base, height=whole.height,
    )  # fmt: skip


def _joined(cuts: Sequence[_Cut]) -> _Cut:
    return _Cut(*(np.concatenate([getattr(cut, field) for cut in cuts]) for field in _Cut.__dataclass_fields__))


def _cut(one: PassEvents, kind: int, kinds: int) -> _Cut:
    """Pieces of a pass: its units compute, else it waits in a collective, else for the host, else for what is exposed."""
    computes, waits, hosted = _computing(one), one.kind == WAIT, one.stream == HOST
    inside = np.concatenate([side[computes | waits | hosted] for side in (one.start, one.end)])
    edges = np.unique(np.append(np.clip(inside, 0.0, one.time), [0.0, one.time]))
    there = [_covered(edges[:-1], one.start[some], one.end[some]) for some in (computes, waits, hosted)]
    fill = np.select(there, [COMPUTES, WAITS, HOSTED], EXPOSED)
    first = np.flatnonzero(np.diff(fill, prepend=-1))
    start, end = edges[first], edges[np.append(first[1:], len(fill))[: len(first)]]
    return _Cut(start, end, np.zeros(len(first)), np.ones(len(first)), fill[first] * kinds + kind)


def _covered(times: Array, start: Array, end: Array) -> Mask:
    """Whether some event runs from each time on."""
    begun, over = (np.searchsorted(np.sort(side), times, side="right") for side in (start, end))
    return np.asarray(begun > over)


def _row(timeline: Timeline, device: int, passes: Sequence[_Cut], span: tuple[float, float]) -> _Cut:
    """Pieces of all slots of a class of devices, as far as they are shown."""
    mine, slots = timeline.slots_of(device), timeline.slots
    sizes = np.array([len(one.key) for one in passes], dtype=np.intp)
    of_slot = sizes[slots.passed[mine]]
    slot = np.repeat(mine, of_slot)
    # Place of every piece in its pass, and of that in all passes laid end to end.
    first = (np.cumsum(sizes) - sizes)[slots.passed[mine]] - (np.cumsum(of_slot) - of_slot)
    found = _joined(passes).at(np.arange(len(slot)) + np.repeat(first, of_slot))
    begin, stretch = slots.start[slot], timeline.stretch[slot]
    start, end = (np.clip(begin + stretch * side, *span) for side in (found.start, found.end))
    return dataclasses.replace(found, start=start, end=end).at(end > start)


def _together(row: _Cut, resolution: float) -> _Cut:
    """Lay short neighbours together: those that start in one cell of time share its height by how long each kind took."""
    if not len(row.key) or resolution <= 0:
        return row
    cell = np.where(row.end - row.start < resolution, row.start // resolution, -1.0)
    fresh = (cell < 0) | (np.diff(cell, prepend=-1.0) != 0)
    first, group, kinds = np.flatnonzero(fresh), np.cumsum(fresh) - 1, int(row.key.max()) + 1
    code, back = np.unique(group * kinds + row.key, return_inverse=True)
    of = code // kinds
    begin, end = row.start[first][of], np.maximum.reduceat(row.end, first)[of]
    height = np.bincount(back, (row.end - row.start) * row.height) / (end - begin)
    below = np.cumsum(height) - height
    base = np.where(np.bincount(group)[of] == 1, row.base[first][of], below - below[np.searchsorted(of, of)])
    return _Cut(begin, end, base, height, code % kinds)


# ------------------------------------------------------------------------------------------ slots, path, memory


def _boxes(timeline: Timeline, row: Index, slot: Index, start: Array, end: Array, span: tuple[float, float]) -> Boxes:
    """Boxes from spans of time, each with a slot that names it, as far as they are shown."""
    start, end = np.clip(start, *span), np.clip(end, *span)
    kept = end > start
    batches, passed = timeline.slots.microbatch[slot[kept]].tolist(), timeline.slots.passed[slot[kept]]
    label = tuple(str(batch) if batch >= 0 else timeline.passes[i].label for batch, i in zip(batches, passed.tolist(), strict=True))
    busy = np.array([(one.end - one.start)[_computing(one)].sum() > one.time / 2 for one in timeline.passes], dtype=bool)
    return Boxes(
        row=row[kept], start=start[kept], width=(end - start)[kept], label=label, family=_kinds(timeline)[passed], solid=busy[passed]
    )


def _slots(timeline: Timeline, devices: Sequence[int], span: tuple[float, float]) -> Boxes:
    mine = [timeline.slots_of(device) for device in devices]
    slot = np.concatenate(mine) if mine else np.zeros(0, dtype=np.intp)
    row = np.repeat(np.arange(len(mine)), [len(some) for some in mine])
    return _boxes(timeline, row, slot, timeline.slots.start[slot], timeline.slots.end[slot], span)


def _path(timeline: Timeline, devices: Sequence[int], span: tuple[float, float]) -> Boxes:
    """The critical path, as far as its devices are shown."""
    row_of = np.full(len(timeline.devices), -1)
    row_of[list(devices)] = np.arange(len(devices))
    path, slots = np.array(timeline.critical_path(), dtype=np.intp), timeline.slots
    first = np.flatnonzero(np.diff(slots.device[path], prepend=-1))
    last = np.append(first[1:], len(path))[: len(first)] - 1
    row = row_of[slots.device[path[first]]]
    shown = row >= 0
    start, end = slots.start[path[first]], slots.end[path[last]]
    return _boxes(timeline, row[shown], path[first][shown], start[shown], end[shown], span)


def _memory(timeline: Timeline) -> tuple[MemoryLine, ...]:
    """The classes of devices that hold most and least when they are fullest."""
    peaks = [float(held.max(initial=0.0)) for _, held in timeline.memory]
    if not any(peaks):
        return ()
    chosen = dict.fromkeys((int(np.argmax(peaks)), int(np.argmin(peaks))))
    return tuple(MemoryLine(name=timeline.devices[i].name, times=timeline.memory[i][0], held=timeline.memory[i][1]) for i in chosen)


# ------------------------------------------------------------------------------------------ drawing

WIDTH, MARGIN = 12.0, 1.3  # of a figure, and of it what stands beside the axes [inch]
ROW, TALLEST = 0.3, 10.0  # height of a row, and of all of them where there are many [inch]
CHARACTER, CLEAR = 0.066, 0.03  # width of a character in a box; of a box whose edge can be seen [inch]
THICK = 0.78  # of a row that is bar
MOST_LABELS = 2000
MANY = 200  # boxes of the critical path that thick lines would hide what is below
ZOOM = 2.5  # times what the fullest device holds: more memory than that is beyond the axis
AT_ONCE = 2000  # rectangles in one shape
# By fill: how much white is mixed into the colour of the pass, and what hatching is over it.
TINTS = ((0.0, ""), (0.62, "//////"), (0.88, "\\\\\\\\\\\\"), (0.75, "xxxxxx"))
PATH, GROUND = "#111111", "#f3f3f3"


def draw_gantt(gantt: Gantt, path: Path) -> list[Path]:
    """Draw a chart as PNG and SVG beside each other; an ending of `path` that names one of them is left off."""
    import matplotlib as mpl

    with mpl.rc_context({"hatch.linewidth": 0.5}):
        return save_as(gantt_figure(gantt), path)


def gantt_figure(gantt: Gantt) -> Figure:
    """Draw a chart as a figure of matplotlib."""
    height = rows_height(gantt)
    figure = new_figure(WIDTH, height + 1.1 + 1.7 * bool(gantt.memory), gantt.title)
    if gantt.memory:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[height, 1.3])
        draw_memory(below, gantt)
    else:
        above = below = figure.subplots()
    draw_rows(above, gantt, WIDTH - MARGIN)
    time_axis(below, gantt.span)
    legend(figure, gantt)
    return figure


def rows_height(gantt: Gantt) -> float:
    """Height of the rows of a chart. [inch]"""
    return min(max(ROW * len(gantt.rows), 0.8), TALLEST)


def draw_rows(axis: Axes, gantt: Gantt, width: float) -> None:
    """Draw a row for each class of devices on axes of a width in inches, the first on top."""
    scale = width / (gantt.span[1] - gantt.span[0])
    _draw_ground(axis, gantt)
    _draw_pieces(axis, gantt)
    clear = gantt.slots.width * scale > CLEAR
    _draw_boxes(axis, gantt.slots.at(clear), THICK, edgecolor="white", linewidth=0.5, zorder=3)
    _draw_labels(axis, gantt, scale)
    _draw_path(axis, gantt.path)
    axis.set(xlim=gantt.span, ylim=(len(gantt.rows) - 0.4, -0.6))
    if gantt.note:
        axis.set_title(gantt.note, fontsize=8, color=GREY, loc="left")


def _draw_ground(axis: Axes, gantt: Gantt) -> None:
    """Names at the left, shares of computing at the right, and pale bands on which what is left empty is idle."""
    places = np.arange(len(gantt.rows))
    begin, end = gantt.span
    axis.barh(places, end - begin, THICK, left=begin, color=GROUND, zorder=1)
    size = 8.0 if len(places) <= 40 else 6.0
    axis.set_yticks(places, [short(name) for name in gantt.rows], fontsize=size)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    for place, share in zip(places, gantt.utilisation, strict=True):
        axis.annotate(
            f"{100 * share:.0f} %", (1.0, place), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center", fontsize=size, color=GREY,
        )  # fmt: skip


def _add(axis: Axes, left: Array, width: Array, bottom: Array, height: Array, **style: Any) -> None:
    """Add rectangles of one style, many as one shape: each on its own takes a hundred times as long where there is hatching."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    right, top = left + width, bottom - height  # rows count downwards
    corners = np.stack([np.stack([left, right, right, left, left], 1), np.stack([top, top, bottom, bottom, top], 1)], axis=2)
    codes = np.tile([Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY], AT_ONCE)
    for first in range(0, len(corners), AT_ONCE):
        some = corners[first : first + AT_ONCE].reshape(-1, 2)
        axis.add_artist(PathPatch(Outline(some, codes[: len(some)]), **style))


def _draw_pieces(axis: Axes, gantt: Gantt) -> None:
    pieces = gantt.pieces
    bottom, height = pieces.row + THICK * (0.5 - pieces.base), THICK * pieces.height
    for kind, colour in enumerate(gantt.families.values()):
        for fill in range(len(FILLS)):
            mine = (pieces.family == kind) & (pieces.fill == fill)
            _add(axis, pieces.start[mine], pieces.width[mine], bottom[mine], height[mine], **_style(colour, fill), zorder=2)


def _style(colour: str, fill: int) -> dict[str, Any]:
    """How a piece looks: its pass's colour where the device computes, else a tint of it with hatching."""
    if fill == COMPUTES:
        return {"facecolor": colour, "linewidth": 0.0}
    white, hatch = TINTS[fill]
    return {"facecolor": tint(colour, white), "edgecolor": colour, "hatch": hatch, "linewidth": 0.0}


def tint(colour: str, white: float) -> str:
    """A colour mixed with a share of white."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = (white + (1 - white) * part for part in to_rgb(colour))
    return to_hex((red, green, blue))


def _draw_boxes(axis: Axes, boxes: Boxes, thick: float, **style: Any) -> None:
    """Frames of boxes."""
    _add(axis, boxes.start, boxes.width, boxes.row + np.float64(thick / 2), np.full_like(boxes.start, thick), facecolor="none", **style)


def _draw_labels(axis: Axes, gantt: Gantt, scale: float) -> None:
    """What stands in slots, where it fits."""
    from matplotlib.patheffects import withStroke

    boxes = gantt.slots
    needed = CHARACTER * np.array([len(text) + 0.5 for text in boxes.label])
    size = min(7.0, 60 * rows_height(gantt) / max(len(gantt.rows), 1) * THICK)
    grounds = [(tint(colour, TINTS[EXPOSED][0]), colour) for colour in gantt.families.values()]
    styles = [[{"color": _ink(one), "path_effects": [withStroke(linewidth=1.6, foreground=one)]} for one in pair] for pair in grounds]
    for i in np.flatnonzero(boxes.width * scale > needed)[:MOST_LABELS] if size > 5 else ():
        place = (boxes.start[i] + boxes.width[i] / 2, float(boxes.row[i]))
        style = styles[boxes.family[i]][int(boxes.solid[i])]
        axis.text(*place, boxes.label[i], ha="center", va="center_baseline", fontsize=size, zorder=5, **style)


def _ink(colour: str) -> str:
    """Black or white, whichever can be read on a colour."""
    from matplotlib.colors import to_rgb

    return "black" if np.dot(to_rgb(colour), (0.3, 0.59, 0.11)) > 0.5 else "white"


def _draw_path(axis: Axes, path: Boxes) -> None:
    """Boxes about the critical path, and lines from each to the next."""
    from matplotlib.collections import LineCollection

    style: dict[str, Any] = {"edgecolor": PATH, "linewidth": 1.0 if len(path.row) < MANY else 0.6, "zorder": 4}
    _draw_boxes(axis, path, THICK + 0.06, **style)
    leaves = np.stack([path.start + path.width, path.row], axis=1)[:-1]
    arrives = np.stack([path.start, path.row], axis=1)[1:]
    axis.add_collection(LineCollection(list(np.stack([leaves, arrives], axis=1)), **style), autolim=False)


def draw_memory(axis: Axes, gantt: Gantt) -> None:
    """Draw what the fullest and the emptiest class of devices hold, against what a device has."""
    gib = 2.0**30
    for line, colour, style, words in zip(gantt.memory, (GREY, "#8c8c8c"), ("-", "--"), ("fullest", "emptiest"), strict=False):
        times, held = np.append(line.times, gantt.span[1]), np.append(line.held, line.held[-1:]) / gib
        axis.plot(times, held, drawstyle="steps-post", color=colour, linestyle=style, linewidth=1.1, label=f"{words}: {line.name}")
    fullest = max(float(line.held.max()) for line in gantt.memory)
    beyond = gantt.capacity > ZOOM * fullest
    if np.isfinite(gantt.capacity):
        words = f"memory of a device: {show(gantt.capacity, 'B', 3)}{', above' * beyond}"
        axis.axhline(gantt.capacity / gib, color="#D55E00", linewidth=1.0, linestyle=":", label=words)
    axis.set_ylim(0, 1.15 * (fullest if beyond else max(fullest, gantt.capacity)) / gib)
    axis.set_ylabel("Memory [GiB]", fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.legend(fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 0.98), ncols=3, borderaxespad=0.0)
    tidy(axis)


def time_axis(axis: Axes, span: tuple[float, float]) -> None:
    """Make the x axis one of times, in the unit that fits them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    factor, unit = prefixed(span[1], "s")
    axis.xaxis.set_major_locator(MaxNLocator(10))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value / factor)))
    axis.set_xlabel(f"Time [{unit}]", fontsize=9)
    axis.tick_params(axis="x", labelsize=8)


def legend(figure: Figure, *charts: Gantt) -> None:
    """Legend below charts: kinds of passes, what else happens in them, the critical path."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = [[*chart.families.items()][i] for chart in charts for i in np.unique(chart.pieces.family)]
    found: list[Any] = [Patch(facecolor=colour, label=name) for name, colour in dict.fromkeys(shown) if colour != NEUTRAL]
    there = {int(fill) for chart in charts for fill in np.unique(chart.pieces.fill)} - {COMPUTES}
    found += [Patch(**_style(NEUTRAL, fill), label=FILLS[fill]) for fill in sorted(there)]
    found.append(Patch(facecolor=GROUND, edgecolor=PALE, linewidth=0.4, label="idle"))
    found.append(Line2D([], [], color=PATH, linewidth=1.2, label="critical path"))
    lines = -(-sum(0.6 + 0.065 * len(handle.get_label()) for handle in found) // WIDTH)
    figure.legend(handles=found, loc="outside lower center", ncols=-(-len(found) // int(lines)), frameon=False, fontsize=8)
