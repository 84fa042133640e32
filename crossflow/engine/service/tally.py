"""What comes of a replay as running statistics: nothing is kept of a request that has ended, nor of a jump."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.sketch import Batches, Sketch
from crossflow.engine.service.ticket import DROPPED, NEVER, Ticket
from crossflow.workload.requests.record import RequestTrace, request_times

TIMES = ("ttft", "tpot", "e2e")
EACH = 20_000  # requests that end between two collections of what engines did
LEAST_BATCHES, FIRST_SIZE = 60, 1000  # of batches for intervals
Energy = Callable[[Array, Array, Array, Array, Array], Array]


@dataclass(kw_only=True, eq=False)
class KindTally:
    """What engines of one kind did, in sum."""

    engines: int
    energy_of: Energy  # of steps, by their requests, context, tokens, keys and times. [J]
    busy: Array = field(init=False)  # of each engine. [s]
    jumps: float = 0.0
    steps: float = 0.0
    served: float = 0.0  # requests for which steps wrote, in sum. [1]
    written: float = 0.0  # tokens. [1]
    read: float = 0.0  # tokens of prompts. [1]
    energy: float = 0.0  # of steps, at rest included. [J]
    pages: float = 0.0  # integral over time of pages in use. [s]
    peak_pages: float = 0.0

    def __post_init__(self) -> None:
        self.busy = np.zeros(self.engines)

    def add(self, engine: Array, rows: Array) -> None:
        """Count jumps, shape (jumps, 10) as in a `Trail`, each of an engine."""
        begun, ended, steps, writers, context, tokens, keys, pages, _, wrote = rows.T
        self.busy += np.bincount(engine, ended - begun, self.engines)
        self.jumps += len(rows)
        self.steps += float(steps.sum())
        self.served += float(steps @ writers)
        self.written += float(wrote.sum())
        self.read += float(tokens.sum())
        self.energy += float(self.energy_of(writers, context, tokens, keys, (ended - begun) / steps) @ steps)
        self.pages += float(pages @ (ended - begun))
        self.peak_pages = max(self.peak_pages, float(pages.max(initial=0.0)))


class ClassTally:
    """Requests of one class."""

    def __init__(self) -> None:
        self.count = self.dropped = self.on_target = 0
        self.times: Mapping[str, Sketch] = {name: Sketch() for name in TIMES}


class Tally:
    """Running statistics of a replay.

    Parameters
    ----------
    trace : the requests, of whose classes targets are.
    kinds : engines by kind, in the order of all engines.
    """

    def __init__(self, trace: RequestTrace, kinds: Sequence[KindTally]) -> None:
        self.trace, self.kinds = trace, kinds
        self.classes = [ClassTally() for _ in trace.classes]
        self.times = {name: Batches(LEAST_BATCHES, FIRST_SIZE) for name in TIMES}
        self.gaps = Sketch()
        self.count = self.answered = self.on_target = self.evicted = self.moved = 0
        self.prompts = self.outputs = self.hits = 0.0  # tokens of answered requests. [1]
        self.waits = 0.0  # times in queues, in sum. [s]
        self.begin, self.end, self.arrived = NEVER, -NEVER, -NEVER  # first arrival, last token, last arrival. [s]
        self._done: list[Ticket] = []

    def take(self, ticket: Ticket) -> bool:
        """Count a request that has ended; whether it is time to collect what engines did."""
        self._done.append(ticket)
        return len(self._done) >= EACH

    def collect(self, replicas: Sequence[Replica]) -> None:
        """Count the requests that were taken, and what engines did since, which they forget."""
        if self._done:
            self._requests()
        first = 0
        for kind in self.kinds:
            mine = replicas[first : first + kind.engines]
            first += kind.engines
            self._did(kind, mine)

    def _did(self, kind: KindTally, replicas: Sequence[Replica]) -> None:
        rows, gaps = zip(*(one.trail.taken() for one in replicas), strict=True)
        if any(map(len, rows)):
            kind.add(np.repeat(np.arange(kind.engines), list(map(len, rows))), np.concatenate(rows))
        times = np.concatenate(gaps)
        self.gaps.add(times[:, 1], times[:, 0])

    def _requests(self) -> None:
        done = sorted(self._done, key=lambda ticket: ticket.index)  # in order of arrival, as far as they have ended
        self._done = []
        index = np.array([ticket.index for ticket in done], dtype=np.intp)
        dropped = np.array([ticket.place == DROPPED for ticket in done], dtype=bool)
        columns = [(t.arrival, t.begun, t.first, t.last, t.waited, t.output, t.prompt, t.hits, t.evicted, t.moved) for t in done]
        arrival, begun, first, last, waited, output, prompt, hits, evicted, moved = np.array(columns, dtype=float).T
        self.count += len(done)
        self.evicted, self.moved = self.evicted + int(evicted.sum()), self.moved + int(moved.sum())
        self.begin, self.arrived = min(self.begin, float(arrival.min())), max(self.arrived, float(arrival.max()))
        kept = ~dropped
        self.end = max(self.end, float(last[kept].max(initial=-NEVER)))
        self.answered += int(kept.sum())
        self.prompts, self.outputs = self.prompts + float(prompt[kept].sum()), self.outputs + float(output[kept].sum())
        self.hits, self.waits = self.hits + float(hits[kept].sum()), self.waits + float((begun - arrival + waited)[kept].sum())
        self._times(index, dropped, request_times(arrival, first, last, output))

    def _times(self, index: Index, dropped: Mask, times: Mapping[str, Array]) -> None:
        """Times of requests, and whether they met the targets of their class."""
        kind = self.trace.kind[index]
        met = ~dropped & self.trace.on_target(times, kind)
        known = {name: np.isfinite(values) & ~dropped for name, values in times.items()}
        for name, values in times.items():
            self.times[name].add(values[known[name]])
        self.on_target += int(met.sum())
        for i in np.unique(kind).tolist():
            mine, one = kind == i, self.classes[i]
            one.count, one.dropped = one.count + int(mine.sum()), one.dropped + int((mine & dropped).sum())
            one.on_target += int((met & mine).sum())
            if len(self.classes) > 1:
                for name, values in times.items():
                    one.times[name].add(values[known[name] & mine])
