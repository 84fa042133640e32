"""Steps of a trace as a timeline: what the device of every rank does, as measured or as replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from crossflow.base.arrays import Array
from crossflow.engine.timeline.flat import Run, timeline_of
from crossflow.engine.timeline.record import COMPUTE, DATA, HOST, Device, Timeline
from crossflow.evidence.replay.breakdown import last_to_come, modelled_host, modelled_waits, union
from crossflow.evidence.replay.graph import StepGraph
from crossflow.evidence.replay.kineto import short_name

NO_MEMORY = (np.zeros(1), np.zeros(1))


def traced_timeline(graph: StepGraph, times: Array, title: str) -> Timeline:
    """Timeline of all steps of all ranks.

    Kernels and copies of all streams of a rank are on one line, each shown from where the one before it ends; collectives are beside
    them, what they wait for the last rank apart; where the device has nothing to do, the host keeps it waiting.

    Parameters
    ----------
    times : when everything happens, shape (nodes,). [s]
    """
    begin = min(float(times[step.begin]) for step in graph.steps)
    end = max(float(times[step.end]) for step in graph.steps)
    come = last_to_come(graph, times)
    runs = [run for rank in range(len(graph.traces)) for run in _runs(graph, times, come, rank, (begin, end))]
    devices = [Device(name=f"rank {trace.rank}", stage=i, ranks=[trace.rank]) for i, trace in enumerate(graph.traces)]
    return timeline_of(
        runs, devices, title=title, total=end - begin, node=max(len(devices), 1), memory=[NO_MEMORY] * len(devices), capacity=np.inf,
    )  # fmt: skip


def _runs(graph: StepGraph, times: Array, come: Array, rank: int, span: tuple[float, float]) -> Iterator[Run]:
    """What the device of a rank does between two moments, from the first on."""
    trace, first = graph.traces[rank], int(graph.first[rank])
    begin, end = span
    works = np.arange(first, first + len(trace.works))
    starts, ends = times[graph.starts[works]], times[graph.ends[works]]
    waits = modelled_waits(trace) if trace.modelled else np.zeros(len(works), dtype=bool)
    at = begin
    for work in np.argsort(starts, kind="stable").tolist():
        start, stop = max(float(starts[work]), begin), min(float(ends[work]), end)
        if stop <= start:
            continue
        name = short_name(trace.names[int(trace.works.name[work])])
        if trace.works.collective[work]:
            met = stop if waits[work] else min(max(float(come[first + work]), start), stop)
            if met > start:
                yield Run(device=rank, stream=DATA, name=name, start=start - begin, end=met - begin, waits=True)
            if stop > met:
                yield Run(device=rank, stream=DATA, name=name, start=met - begin, end=stop - begin)
        elif stop > at:
            yield Run(device=rank, stream=COMPUTE, name=name, start=max(start, at) - begin, end=stop - begin)
            at = stop
    busy = union(np.stack([np.clip(starts, begin, end), np.clip(ends, begin, end)], axis=1))
    held = union(modelled_host(trace)) if trace.modelled else _between(busy, begin, end)
    for start, stop in held:
        yield Run(device=rank, stream=HOST, name="host", start=start - begin, end=stop - begin, beside=True)


def _between(busy: Sequence[tuple[float, float]], begin: float, end: float) -> Iterator[tuple[float, float]]:
    """What lies between two moments and in none of some spans in order."""
    at = begin
    for start, stop in [*busy, (end, end)]:
        if start > at:
            yield at, start
        at = max(at, stop)
