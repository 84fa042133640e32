"""The jobs of a cluster as a picture and as a trace for Perfetto, drawn as runs of months are."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.cluster.schedule import ScheduledJobs
from crossflow.base.arrays import Index
from crossflow.base.drawing.canvas import Scale, new_figure, number_axis, tidy
from crossflow.base.drawing.palette import COLOURS, GREY
from crossflow.base.drawing.picture import Picture
from crossflow.base.drawing.words import prefixed
from crossflow.base.errors import CrossflowError
from crossflow.edges.trace.months import DAY, draw_spans, slice_of
from crossflow.edges.trace.perfetto import write_events
from crossflow.engine.lasting.events import RunSpan
from crossflow.workload.requests.words import lasting

MOMENTS = 480  # of lines over time
MOST_ROWS = 40  # jobs of a picture
WORDS = {"useful": "running", "waiting": "waiting", "loading": "loading", "lost_work": "work that is lost", "saving": "saving"}
_CLUSTER, _JOBS = 0, 1  # processes of a trace


def spans_of(found: ScheduledJobs, job: int) -> list[RunSpan]:
    """What a job does from its arrival to its end."""
    mine = np.flatnonzero(found.found.stays.job == job)
    since, spans = float(found.found.jobs.arrival[job]), list[RunSpan]()
    for stay in mine[np.argsort(found.found.stays.begin[mine], kind="stable")].tolist():
        begin, *parts = _parts(found, stay)
        spans += [RunSpan(begin=since, end=begin.begin, kind="waiting")] * (begin.begin > since)
        spans += [one for one in (begin, *parts) if one.end > one.begin]
        since = parts[-1].end
    return spans


def _parts(found: ScheduledJobs, stay: int) -> list[RunSpan]:
    """What a job does in one of its stays, in order, parts without length among it."""
    stays = found.found.stays
    begin, loaded, stopped, end, lost = (float(getattr(stays, name)[stay]) for name in ("begin", "loaded", "stopped", "end", "lost"))
    edges = (
        ("loading", begin, loaded),
        ("useful", loaded, stopped - lost),
        ("lost_work", stopped - lost, stopped),
        ("saving", stopped, end),
    )
    return [RunSpan(begin=first, end=last, kind=kind) for kind, first, last in edges]


def largest(found: ScheduledJobs, most: int = MOST_ROWS) -> Index:
    """The jobs of most device-time, in order of their arrival."""
    jobs = found.found.jobs
    chosen = np.argsort(-(jobs.devices * jobs.time), kind="stable")[:most]
    return np.sort(chosen)


def draw_cluster(found: ScheduledJobs) -> Picture:
    """Jobs as rows over days, and below them devices, queue and power."""
    shown, account = largest(found), found.account
    rows = [(account.begin, spans_of(found, job)) for job in shown.tolist()]
    some = "" if len(shown) == len(found.found.jobs) else f"; rows are the {len(shown)} of most device-time"
    title = (
        f"{found.cluster.name}: {len(found.found.jobs):,} jobs on {found.found.room.devices:,} devices, {found.cluster.policy.kind}, "
        f"{100 * found.utilisation:.1f} % in use, {lasting(float(found.waiting['mean'] or 0.0))} of waiting on average{some}"
    )
    figure = new_figure(11.0, 4.6 + 0.2 * len(rows), title)
    axes = figure.subplots(4, 1, sharex=True, height_ratios=[1.0 + 0.25 * len(rows), 1.4, 1.4, 1.4])
    unit, word = (DAY, "days") if account.span > 2 * DAY else (3600.0, "hours")
    draw_spans(axes[0], rows, WORDS, unit)
    names = [f"{found.cluster.classes[found.cluster.kind[job]]}, {found.found.jobs.devices[job]:,}" for job in shown.tolist()]
    axes[0].set_yticks(range(len(rows)), names, fontsize=7 if len(rows) > 20 else 8)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    axes[0].set_xlim(0.0, account.span / unit)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    _lines(axes[1:], found, unit)
    axes[-1].set_xlabel(f"{word} from the first arrival")
    return Picture(figure=figure)


def _lines(axes: Any, found: ScheduledJobs, unit: float) -> None:
    """Devices in use, jobs that wait, power; with what there is of each as a dashed line."""
    series = found.account.series(MOMENTS)
    factor, prefix = prefixed(float(series["power_w"].max()), "W")
    room = found.found.room
    shown = (
        ("devices", "devices", 1.0, room.devices),
        ("waiting", "jobs waiting", 1.0, np.inf),
        ("power_w", f"power [{prefix}]", factor, room.power_cap),
    )
    for axis, (name, label, scale, most), colour in zip(axes, shown, COLOURS, strict=False):
        axis.plot(series["time_s"] / unit, series[name], color=colour, linewidth=1.1)
        if np.isfinite(most):
            axis.axhline(most, color=GREY, linestyle="--", linewidth=0.8)
        top = max(float(series[name].max()), most if np.isfinite(most) else 0.0)
        axis.set_ylim(0.0, 1.08 * top or 1.0)
        number_axis(axis.yaxis, Scale(label, scale))
        tidy(axis)


def write_cluster(found: ScheduledJobs, path: str | Path) -> Path:
    """Write what every job does as a trace, compressed where its path ends in ``.gz``: jobs in lanes, counters of the cluster."""
    written = Path(path)
    if written.suffix not in (".json", ".gz"):
        raise CrossflowError(f"{written}: a trace ends in .json or .json.gz; plot() draws a picture")
    write_events(list(_events(found)), written, packed=written.suffix == ".gz")
    return written


def lanes_of(found: ScheduledJobs) -> Index:
    """A lane for every stay, so that those of one lane follow each other; as few as jobs that run at once."""
    stays = found.found.stays
    lanes, free, busy = np.zeros(len(stays.job), dtype=np.intp), list[int](), list[tuple[float, int]]()
    for stay in np.argsort(stays.begin, kind="stable").tolist():
        while busy and busy[0][0] <= stays.begin[stay]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        lanes[stay] = lane
        heapq.heappush(busy, (float(stays.end[stay]), lane))
    return lanes


def _events(found: ScheduledJobs) -> Iterator[dict[str, Any]]:
    jobs, lanes = found.found.jobs, lanes_of(found)
    for process, name in ((_CLUSTER, found.cluster.name), (_JOBS, "jobs")):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for lane in range(int(lanes.max(initial=-1)) + 1):
        yield {"ph": "M", "name": "thread_name", "pid": _JOBS, "tid": lane, "args": {"name": f"lane {lane}"}}
    for stay, lane in enumerate(lanes.tolist()):
        job = int(found.found.stays.job[stay])
        label = f"{found.cluster.classes[found.cluster.kind[job]]} {job}"
        told = {"devices": int(jobs.devices[job]), "waited_s": float(found.found.waiting[job]), "priority": int(jobs.priority[job])}
        for one in _parts(found, stay):
            if one.end > one.begin:
                yield slice_of(
                    one, lane, label if one.kind == "useful" else f"{label}: {WORDS[one.kind]}", {"kind": one.kind, **told}, _JOBS
                )
    series = found.account.series(MOMENTS)
    for name, word in (("devices", "devices in use"), ("waiting", "jobs waiting"), ("power_w", "power [W]")):
        for time, value in zip((series["time_s"] + found.account.begin).tolist(), series[name].tolist(), strict=True):
            yield {"ph": "C", "name": word, "pid": _CLUSTER, "ts": time * 1e6, "args": {"value": value}}
