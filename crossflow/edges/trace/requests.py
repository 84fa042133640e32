"""A replay of requests as a trace for Perfetto: engines as processes, each request a row of its queue, its prompt and its tokens; encoders
of images as a process with a row each.

The format is that of Chrome's trace events: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMh4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.service.served import ServedRequests
from crossflow.edges.trace.perfetto import write_events
from crossflow.engine.service.encoders import encoder_work
from crossflow.engine.service.replayed import Jumps

MICROSECONDS = 1e6


def write_requests(found: ServedRequests, path: Path) -> int:
    """Write a trace, packed; number of its events."""
    found.table()  # which says why there are none of running statistics
    return write_events([*_engines(found), *_requests(found), *_encoders(found)], path)


def _engines(found: ServedRequests) -> Iterator[dict[str, Any]]:
    """Names of processes, and what each engine holds over time."""
    begin, first = float(found.found.arrival.min()), len(found.found.jumps) - len(found.run.writing)
    for i, (kind, jumps) in enumerate(found.run.engines):
        name = f"engine {i - first}" if i >= first else f"reader {i}"
        yield {"ph": "M", "name": "process_name", "pid": i, "args": {"name": name}}
        yield from _counters(jumps, i, begin, kind.limits.pages)


def _counters(jumps: Jumps, engine: int, begin: float, pages: int) -> Iterator[dict[str, Any]]:
    for now, writers, queue, held in zip(jumps.begun, jumps.writers, jumps.queue, jumps.pages, strict=True):
        at = {"ph": "C", "pid": engine, "ts": round((now - begin) * MICROSECONDS, 3)}
        yield {**at, "name": "requests", "args": {"writing": int(writers), "waiting": int(queue)}}
        yield {**at, "name": "cache in use [%]", "args": {"share": round(100.0 * held / pages, 2)}}


def _requests(found: ServedRequests) -> Iterator[dict[str, Any]]:
    """Slices of requests that were answered, on as few rows of their engine as hold them side by side."""
    run, first = found.found, len(found.found.jumps) - len(found.run.writing)
    begin, rows = float(run.arrival.min()), defaultdict[int, _Rows](_Rows)
    for i in sorted(np.flatnonzero(~run.dropped).tolist(), key=lambda i: float(run.arrival[i])):
        engine, arrived, ended = int(run.where[i]) + first, float(run.arrival[i]), float(run.last[i])
        row = rows[engine].take(arrived, ended)
        marks = (arrived, float(run.begun[i]), float(run.first[i]), ended)
        about = {"request": int(run.index[i]), "prompt": int(run.prompt[i]), "output": int(run.output[i]), "preempted": int(run.evicted[i])}
        for name, start, end in zip(("queue", "prompt", "tokens"), marks, marks[1:], strict=False):
            if end > start:
                yield _slice(name, engine, row, start - begin, end - start, about)


def _encoders(found: ServedRequests) -> Iterator[dict[str, Any]]:
    """Slices of the requests whose images encoders of their own turn into tokens, a row for each encoder that ever works."""
    pool, run = found.run.encoders, found.found
    if pool is None:
        return
    process, begin, rows = len(run.jumps), float(run.arrival.min()), _Rows()
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": "encoders of images"}}
    begun, images = encoder_work(pool.times, run.arrival)
    requests = run.index[np.argsort(run.arrival, kind="stable")]
    for request, start, many in zip(requests.tolist(), begun.tolist(), images.tolist(), strict=True):
        if many:
            lasts = pool.times.times[many]
            about = {"request": request, "images": many}
            yield _slice("images", process, rows.take(start, start + lasts), start - begin, lasts, about)


class _Rows:
    """Rows, on as few of which as can be slices lie side by side, in order of their beginning."""

    def __init__(self) -> None:
        self._free = list[tuple[float, int]]()

    def take(self, start: float, end: float) -> int:
        """The row of a slice: the one that is free longest, else another one."""
        free = self._free and self._free[0][0] <= start
        row = heapq.heappop(self._free)[1] if free else len(self._free) + 1
        heapq.heappush(self._free, (end, row))
        return row


def _slice(name: str, process: int, row: int, start: float, lasts: float, about: dict[str, int]) -> dict[str, Any]:
    at = {"ts": round(start * MICROSECONDS, 3), "dur": round(lasts * MICROSECONDS, 3)}
    return {"ph": "X", "name": name, "pid": process, "tid": row, **at, "args": about}
