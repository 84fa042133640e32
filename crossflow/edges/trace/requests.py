"""A replay of requests as a trace for Perfetto: engines as processes, each request a row of its queue, its prompt and its tokens.

The format is that of Chrome's trace events: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMh4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.service.served import ServedRequests
from crossflow.edges.trace.perfetto import write_events
from crossflow.engine.service.replayed import Jumps

MICROSECONDS = 1e6


def write_requests(found: ServedRequests, path: Path) -> int:
    """Write a trace, packed; number of its events."""
    found.table()  # which says why there are none of running statistics
    return write_events([*_engines(found), *_requests(found)], path)


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
    begin, free = float(run.arrival.min()), dict[int, list[tuple[float, int]]]()
    rows = dict[int, int]()
    for i in sorted(np.flatnonzero(~run.dropped).tolist(), key=lambda i: float(run.arrival[i])):
        engine, arrived, ended = int(run.where[i]) + first, float(run.arrival[i]), float(run.last[i])
        left = free.setdefault(engine, [])
        if left and left[0][0] <= arrived:
            _, row = heapq.heappop(left)
        else:
            row = rows[engine] = rows.get(engine, 0) + 1
        heapq.heappush(left, (ended, row))
        marks = (arrived, float(run.begun[i]), float(run.first[i]), ended)
        about = {"request": int(run.index[i]), "prompt": int(run.prompt[i]), "output": int(run.output[i]), "preempted": int(run.evicted[i])}
        for name, start, end in zip(("queue", "prompt", "tokens"), marks, marks[1:], strict=False):
            if end > start:
                at = {"ts": round((start - begin) * MICROSECONDS, 3), "dur": round((end - start) * MICROSECONDS, 3)}
                yield {"ph": "X", "name": name, "pid": engine, "tid": row, **at, "args": about}
