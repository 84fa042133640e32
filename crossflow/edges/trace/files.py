"""A timeline as files and pictures, by the ending of a path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from crossflow.base.drawing.picture import Picture
from crossflow.base.errors import CrossflowError
from crossflow.edges.trace.gantt import draw_gantt, gantt_figure, gantt_of
from crossflow.edges.trace.perfetto import write_ranks, write_trace
from crossflow.engine.timeline.record import Timeline

TRACES, PICTURES = (".json", ".gz"), (".png", ".svg")
ENDINGS = "a trace ends in .json or .json.gz, a picture in .png or .svg; a name without ending is a folder of traces"


def write_timeline(timeline: Timeline, path: str | Path, *, ranks: Literal["all"] | Sequence[int] | None = None) -> list[Path]:
    """Write a timeline: as a trace for Perfetto, as a picture (PNG and SVG beside each other), or as a folder with a trace a rank.

    Parameters
    ----------
    path : what is written is chosen by its ending: ``.json``, ``.json.gz``, ``.png``, ``.svg``, or none for a folder.
    ranks : of traces, one of every class of devices where absent, ``"all"``, or some by number.

    Returns
    -------
    The files that were written.
    """
    written = Path(path)
    ending = written.suffix.lower()
    if ending in PICTURES:
        return draw_gantt(gantt_of(timeline), written)
    if not ending:
        return write_ranks(timeline, written, ranks=ranks)
    if ending not in TRACES:
        raise CrossflowError(f"{written}: {ENDINGS}")
    write_trace(timeline, written, ranks=ranks)
    return [written]


def draw_timeline(timeline: Timeline) -> Picture:
    """Draw every class of devices over time."""
    return Picture(figure=gantt_figure(gantt_of(timeline)))
