"""A device's in-order streams as a longest path in which every design point has events of its own.

Strategies differ in which collectives they need and in which network carries each, so that the events of a step are the union
over design points: an event of no duration is not there at that point, keeps no stream busy and passes on what it waits for.
Where all points have the same events this is `crossflow.engine.schedule.longest_path`. What the computing stream waits for is kept,
by cause, as the events are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.program.program import Op

NOTHING, HOST = 0, 1  # causes of a wait; collectives follow in the order in which they are named


@dataclass(frozen=True, eq=False)
class Ending:
    """When an event ends, shape (n,) [s], and which cause a wait for it has."""

    end: Array
    cause: Index


class Streams:
    """Streams of one device: its host issues, its units compute, its links inside the node and to the network carry collectives.

    Collectives on the same wires take turns, in the order of issue; those inside a node and between nodes run side by side.

    Parameters
    ----------
    n : design points.
    causes : names by which waits for collectives are told apart.
    """

    def __init__(self, n: int, causes: Sequence[str]) -> None:
        self.names = ("nothing", "host", *causes)
        self.waits = np.zeros((len(self.names), n))
        self.start = Ending(np.zeros(n), np.zeros(n, dtype=np.intp))
        self._host, self._units, self._inside, self._outside = (np.zeros(n) for _ in range(4))
        self._points = np.arange(n)

    def compute(self, duration: Array, after: Sequence[Ending], host: Array | float = 0.0) -> Ending:
        """Kernels on the device's units, which the host took the time `host` to issue. [s]"""
        there = duration > 0
        self._host = self._host + np.where(there, host, 0.0)
        ready = self.latest((*after, Ending(self._host, np.full_like(self.start.cause, HOST))))
        begin = np.maximum(ready.end, self._units)
        self.waits[ready.cause, self._points] += np.where(there, begin - self._units, 0.0)
        passed = self.latest(after)
        end = np.where(there, begin + duration, passed.end)
        self._units = np.where(there, end, self._units)
        return Ending(end, np.where(there, NOTHING, passed.cause))

    def send(self, cause: str, duration: Array, outside: Mask, after: Sequence[Ending], host: Array | float = 0.0) -> Ending:
        """A collective on the network where `outside`, inside the node elsewhere; the host took the time `host` to issue it. [s]

        Waits for it have the `cause`, one of those that were named.
        """
        there = duration > 0
        self._host = self._host + np.where(there, host, 0.0)
        ready = self.latest(after)
        wires = np.where(outside, self._outside, self._inside)
        end = np.where(there, np.maximum(np.maximum(ready.end, self._host), wires) + duration, ready.end)
        self._outside = np.where(there & outside, end, self._outside)
        self._inside = np.where(there & ~outside, end, self._inside)
        return Ending(end, np.where(there, self.names.index(cause), ready.cause))

    def finish(self, after: Sequence[Ending]) -> Array:
        """End of the step: of the last kernel and of all that it waits for beyond; the wait is kept. [s]"""
        ready = self.latest(after)
        self.waits[ready.cause, self._points] += np.maximum(ready.end - self._units, 0.0)
        self._units = np.maximum(ready.end, self._units)
        return self._units

    def latest(self, events: Sequence[Ending]) -> Ending:
        """The last of several events at every point, the first of equals; the start where there are none."""
        last = self.start
        for event in events:
            later = event.end > last.end
            last = Ending(np.where(later, event.end, last.end), np.where(later, event.cause, last.cause))
        return last


def run(ops: Sequence[Op], durations: Array, outside: Sequence[Mask | None], issue: Array, causes: Sequence[str]) -> tuple[Streams, Ending]:
    """Run the operations of one class of ranks in the order of the program; the streams, and the last of all events.

    Parameters
    ----------
    durations, issue : time of every operation, and what the host needs to issue it, shape (ops, n). [s]
    outside : points at which a message leaves its node, None for kernels.
    causes : for every operation the cause of a wait for it.
    """
    streams, events = Streams(durations.shape[1], list(dict.fromkeys(causes))), list[Ending]()
    for op, duration, far, host, cause in zip(ops, durations, outside, issue, causes, strict=True):
        after = [events[i] for i in op.after]
        if far is None:
            events.append(streams.compute(duration, after, host))
        else:
            events.append(streams.send(cause, duration, far, after, host))
    return streams, streams.latest(events)
