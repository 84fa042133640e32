"""Which operation of the host launched which work of the device: by time, a call lies inside of its operations on their thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Index
from crossflow.replay.kineto import RankTrace


@dataclass(frozen=True, kw_only=True, eq=False)
class Owners:
    """Operations around works.

    Attributes
    ----------
    innermost : operation that launched every work, -1 for none, shape (works,).
    around : operation around every operation, -1 for none, shape (ops,).
    """

    innermost: Index
    around: Index

    def chain(self, work: int) -> Iterator[int]:
        """Operations around a work, the innermost first."""
        op = int(self.innermost[work])
        while op >= 0:
            yield op
            op = int(self.around[op])


def owners(trace: RankTrace) -> Owners:
    """Operations around every work of a trace."""
    launches = dict(zip(trace.calls.correlation.tolist(), range(len(trace.calls)), strict=True))
    launches.pop(-1, None)
    works: dict[int, list[int]] = {}
    for work, correlation in enumerate(trace.works.correlation.tolist()):
        if correlation in launches:
            works.setdefault(launches[correlation], []).append(work)
    innermost, around = np.full(len(trace.works), -1), np.full(len(trace.ops), -1)
    rows = [(start, 0, -end, thread, op) for op, (start, end, thread) in enumerate(_rows(trace))]
    begins, threads = trace.calls.start.tolist(), trace.calls.thread.tolist()
    rows += [(begins[call], 1, 0.0, threads[call], call) for call in works]
    open_: dict[int, list[tuple[float, int]]] = {}  # operations of every thread that have not ended, the innermost last
    for start, is_call, end, thread, place in sorted(rows):
        mine = open_.setdefault(thread, [])
        while mine and (mine[-1][0] < start or (mine[-1][0] == start and not is_call)):
            mine.pop()
        if is_call:
            innermost[works[place]] = mine[-1][1] if mine else -1
        else:
            around[place] = mine[-1][1] if mine else -1
            mine.append((-end, place))
    return Owners(innermost=innermost, around=around)


def _rows(trace: RankTrace) -> Iterator[tuple[float, float, int]]:
    return zip(trace.ops.start.tolist(), trace.ops.end.tolist(), trace.ops.thread.tolist(), strict=True)
