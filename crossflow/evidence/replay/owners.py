"""Which operation of the host launched which work of the device: by time, a call lies inside of its operations on their thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Index, rows_of
from crossflow.evidence.replay.kineto import RankTrace


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


def call_of_works(trace: RankTrace) -> Index:
    """The first call with the correlation of every work, -1 for none, shape (works,)."""
    numbers, first = np.unique(trace.calls.correlation, return_index=True)
    if not len(numbers):
        return np.full(len(trace.works), -1)
    wanted = trace.works.correlation
    place = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where((numbers[place] == wanted) & (wanted >= 0), first[place], -1)


def owners(trace: RankTrace) -> Owners:
    """Operations around every work of a trace."""
    ops, calls, called = trace.ops, trace.calls, call_of_works(trace)
    mine = np.unique(called[called >= 0])
    start, end = np.concatenate([ops.start, calls.start[mine]]), np.concatenate([ops.end, np.zeros(len(mine))])
    thread, is_call = np.concatenate([ops.thread, calls.thread[mine]]), np.arange(len(start)) >= len(ops)
    place = np.concatenate([np.arange(len(ops)), mine])
    order = np.lexsort((place, thread, -end, is_call, start))
    around, of_call = np.full(len(ops), -1), np.full(len(calls) + 1, -1)  # the last is of works without a call
    open_: dict[int, list[tuple[float, int]]] = {}  # operations of every thread that have not ended, the innermost last
    for moment, until, of, call, one in rows_of(*(column[order] for column in (start, end, thread, is_call, place))):
        stack = open_.setdefault(of, [])
        while stack and (stack[-1][0] < moment or (stack[-1][0] == moment and not call)):
            stack.pop()
        (of_call if call else around)[one] = stack[-1][1] if stack else -1
        if not call:
            stack.append((until, one))
    return Owners(innermost=of_call[called], around=around)
