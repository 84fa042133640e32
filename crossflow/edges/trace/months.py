"""A run of months as a picture, as a trace for Perfetto and in the terminal: when it computed, failed, waited and came back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossflow.base.drawing.canvas import new_figure
from crossflow.base.drawing.palette import COLOURS, PALE
from crossflow.base.drawing.picture import Picture
from crossflow.base.units import show
from crossflow.edges.trace.perfetto import write_events
from crossflow.engine.lasting.events import RunHistory, RunSpan
from crossflow.engine.lasting.record import KINDS_OF_TIME

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Group

DAY = 86400.0
_ROWS = 24  # of a picture, each of whole days
_MARKS = dict(zip(KINDS_OF_TIME, "█s×d▲wm-~", strict=True))
_WORDS = {"useful": "computing, saves among it", "lost_work": "work that is lost"}  # of spans


def words_of(kind: str) -> str:
    """A kind of time in words."""
    return _WORDS.get(kind, kind.replace("_", " "))


def months_summary(found: RunHistory, seed: int) -> dict[str, Any]:
    """Plain data of one draw."""
    return {
        "seed": seed, "time_s": found.duration, "goodput": found.goodput, "interruptions": dict(found.interruptions),
        "time_by_kind_s": dict(found.times),
        "spans": [
            {"begin_s": one.begin, "end_s": one.end, "kind": one.kind, "cause": one.cause, "speed": one.speed} for one in found.spans
        ],
        **({"phases": [_phase_summary(*one) for one in phases_of(found)]} if found.phases else {}),
    }  # fmt: skip


def _phase_summary(name: str, begin: float, one: RunHistory) -> dict[str, Any]:
    return {
        "name": name, "begin_s": begin, "end_s": begin + one.duration, "goodput": one.goodput, "interruptions": dict(one.interruptions),
        "time_by_kind_s": dict(one.times),
    }  # fmt: skip


def phases_of(found: RunHistory) -> Iterator[tuple[str, float, RunHistory]]:
    """Name, begin [s] and history of each phase; the whole run, without a name, where it has none."""
    begin = 0.0
    for name, one in (found.phases or {"": found}).items():
        yield name, begin, one
        begin += one.duration


def rows_of(found: RunHistory, most: int = _ROWS, *, length: float | None = None) -> tuple[float, list[list[RunSpan]]]:
    """Length of a row, whole days unless it is given [s], and the spans of every row, cut at its ends."""
    length = length or DAY * max(math.ceil(found.duration / DAY / most), 1)
    rows: list[list[RunSpan]] = [[] for _ in range(max(math.ceil(found.duration / length), 1))]
    for one in found.spans:
        for row in range(int(one.begin // length), min(int(one.end // length), len(rows) - 1) + 1):
            begin, end = max(one.begin, row * length), min(one.end, (row + 1) * length)
            if end > begin:
                rows[row].append(replace(one, begin=begin, end=end))
    return length, rows


def draw_months(found: RunHistory, name: str, path: Path) -> list[Path]:
    """Draw a run as rows of days; each of several phases begins a row."""
    length, _ = rows_of(found)
    rows, labels = list[tuple[float, list[RunSpan]]](), list[str]()
    for phase, begin, one in phases_of(found):
        for row, spans in enumerate(rows_of(one, length=length)[1]):
            rows.append((row * length, spans))
            labels.append(f"{phase}, {one.duration / DAY:.2f} days" if phase and not row else f"day {(begin + row * length) / DAY:.0f}")
    failures = sum(found.interruptions.values())
    title = f"{name}: {show(found.duration, 's')}, {100 * found.goodput:.1f} % of it useful, {failures:,} interruptions"
    figure = new_figure(11.0, 1.6 + 0.24 * len(rows), title)
    axis = figure.subplots()
    words = {kind: f"{words_of(kind)} {100 * found.times[kind] / found.duration:.1f} %" for kind in KINDS_OF_TIME}
    draw_spans(axis, rows, words, DAY)
    step = 1 if found.phases else max(len(rows) // 12, 1)
    axis.set_yticks(range(0, len(rows), step), labels[::step])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(0.0, length / DAY)
    axis.set_xlabel("days from the begin of the row")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return Picture(figure=figure).save(path)


def draw_spans(axis: Axes, rows: Sequence[tuple[float, Sequence[RunSpan]]], words: Mapping[str, str], unit: float) -> None:
    """Draw rows of spans, each from the time at which its row begins, by kind; a kind is in the legend where it is drawn.

    words : of every kind, for the legend; the first kind is pale.  unit : of the axis. [s]
    """
    for number, (kind, label) in enumerate(words.items()):
        shown: str | None = label
        colour = COLOURS[number % len(COLOURS)] if number else PALE
        for row, (begin, spans) in enumerate(rows):
            bars = [((one.begin - begin) / unit, (one.end - one.begin) / unit) for one in spans if one.kind == kind]
            if bars:
                edge = colour if number else "none"
                axis.broken_barh(bars, (row - 0.4, 0.8), facecolor=colour, edgecolor=edge, linewidth=0.4, label=shown)
                shown = None


def write_months(found: RunHistory, name: str, path: Path) -> int:
    """Write a trace of Chrome's events, compressed where its path ends in ``.gz``; number of its events."""
    return write_events([*_events(found, name)], path, packed=path.suffix == ".gz")


def _events(found: RunHistory, name: str) -> Iterator[dict[str, Any]]:
    """Spans as slices, a row a kind of time; failures as marks."""
    yield {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": name}}
    threads = {kind: i for i, kind in enumerate(KINDS_OF_TIME)}
    for kind, thread in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": thread, "args": {"name": words_of(kind)}}
    if found.phases:
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": len(threads), "args": {"name": "phases"}}
    for name, begin, phase in phases_of(found) if found.phases else ():
        figures = {"goodput": phase.goodput, "interruptions": sum(phase.interruptions.values())}
        yield slice_of(RunSpan(begin=begin, end=begin + phase.duration, kind="phase"), len(threads), name, figures)
    for one in found.spans:
        told = {"kind": one.kind, **({"cause": one.cause} if one.cause else {}), **({"speed": one.speed} if one.speed < 1 else {})}
        yield slice_of(one, threads[one.kind], one.cause or words_of(one.kind), told)


def slice_of(span: RunSpan, thread: int, label: str, told: Mapping[str, Any], process: int = 0) -> dict[str, Any]:
    """A span as a slice of a thread."""
    at = {"pid": process, "tid": thread, "ts": span.begin * 1e6, "dur": (span.end - span.begin) * 1e6}
    return {"ph": "X", "name": label, "cat": span.kind, **at, "args": dict(told)}


def text_months(found: RunHistory, width: int) -> Group:
    """A row of marks for some days each; a mark is what took longest of its time beside useful work, where that is a tenth of it."""
    from rich.console import Group
    from rich.text import Text

    room = max(width - 14, 20)
    length, _ = rows_of(found)
    lines = [Text(f"{show(found.duration, 's')}, {100 * found.goodput:.1f} % of it useful; a row is {length / DAY:.0f} days", "bold")]
    for name, begin, one in phases_of(found):
        if name:
            told = f"{name}: {one.duration / DAY:.2f} days, {100 * one.goodput:.1f} % of it useful"
            lines.append(Text(f"{told}, {sum(one.interruptions.values()):,} interruptions"))
        for row, spans in enumerate(rows_of(one, length=length)[1]):
            marks = "".join(_mark(spans, row * length + i * length / room, length / room) for i in range(room))
            lines.append(Text(f"day {(begin + row * length) / DAY:>5.0f}  {marks}".rstrip()))
    used = [kind for kind in KINDS_OF_TIME if found.times[kind] > 0]
    lines.append(
        Text("  ".join(f"{_MARKS[kind]} {words_of(kind)} {100 * found.times[kind] / found.duration:.1f} %" for kind in used), "dim")
    )
    return Group(*lines)


def _mark(spans: Sequence[RunSpan], begin: float, length: float) -> str:
    times = dict.fromkeys(KINDS_OF_TIME, 0.0)
    for one in spans:
        times[one.kind] += max(min(one.end, begin + length) - max(one.begin, begin), 0.0)
    lost = {kind: time for kind, time in times.items() if kind != "useful"}
    kind = max(lost, key=lambda each: lost[each])
    if lost[kind] >= 0.1 * length:
        return _MARKS[kind]
    return _MARKS["useful"] if times["useful"] else " "
