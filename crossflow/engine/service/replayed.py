"""What came of a replay: times of every request, and what engines did over time, as arrays."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.workload.requests.record import RequestTrace, request_times

if TYPE_CHECKING:
    from crossflow.engine.service.ticket import Ticket, Trail


@dataclass(frozen=True, kw_only=True, eq=False)
class Jumps:
    """What one engine did, jump by jump: steps of the same requests in a row; arrays of shape (jumps,)."""

    begun: Array  # [s]
    ended: Array  # [s]
    steps: Array  # [1]
    writers: Array  # requests for which each of its steps writes. [1]
    context: Array  # tokens before those that they write, in the mean. [1]
    tokens: Array  # of prompts that it reads. [1]
    keys: Array  # that each of these sees in the mean. [1]
    pages: Array  # of the cache that requests have. [1]
    queue: Array  # requests that wait. [1]
    wrote: Array  # tokens that it gives to requests, beside those at the ends of prompts. [1]

    @property
    def busy(self) -> float:
        """Time in which the engine works. [s]"""
        return float((self.ended - self.begun).sum())


class EncoderSpans(NamedTuple):
    """What encoders of images did in a replay."""

    requests: tuple[int, ...]  # that had 0, 1, 2, ... images. [1]
    waited: float  # of all of them, for an encoder. [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineSpans:
    """Times for which engines were paid for, and had failed, in what is kept of a replay."""

    paid: tuple[Array, ...]  # spans of time in which each engine is paid for, shape (spans, 2), open ones infinite. [s]
    broken: tuple[Array, ...]  # spans in which it has failed. [s]
    lost: float = 0.0  # tokens that were computed, and that failures lost. [1]
    loads: int = 0  # adapters that engines have fetched from their hosts. [1]
    peak_queue: int = 0  # requests that wait at all engines together, at most. [1]
    images: EncoderSpans | None = None  # where images have encoders of their own

    @property
    def window(self) -> tuple[float, float]:
        """First arrival and last token. [s]"""
        raise NotImplementedError

    @functools.cached_property
    def paid_shares(self) -> Array:
        """Share of the run for which each engine is paid, shape (engines,). [1]"""
        return np.array([covered(spans, self.window) for spans in self.paid])

    @functools.cached_property
    def broken_shares(self) -> Array:
        """Share of the run for which each engine has failed, shape (engines,). [1]"""
        return np.array([covered(spans, self.window) for spans in self.broken])


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceReplay(EngineSpans):
    """What became of requests, in order of their indices in the trace; arrays of shape (n,), NaN where it did not come to it."""

    trace: RequestTrace
    index: Index  # of those that arrived
    arrival: Array  # [s]
    begun: Array  # time of admission. [s]
    first: Array  # time of the first token. [s]
    waited: Array  # for a place at the engine that writes, with keys and values that came from another. [s]
    last: Array  # time of the last token. [s]
    evicted: Index  # times that it lost its room. [1]
    moved: Index  # those of them at which its engine failed. [1]
    hits: Index  # tokens of its prompt that lay in the cache. [1]
    dropped: Mask  # whether no engine can ever hold it
    where: Index  # engine that wrote it
    jumps: tuple[Jumps, ...]  # of every engine, those that only read first
    gap: Array  # times between two steps that give a request tokens, each as often as `gaps` says. [s]
    gaps: Array  # [1]
    area: float  # integral over time of the requests that are in engines. [s]

    @property
    def prompt(self) -> Index:
        """Tokens of prompts. [1]"""
        return np.asarray(self.trace.prompt[self.index])

    @property
    def output(self) -> Index:
        """Tokens that are asked for. [1]"""
        return np.asarray(self.trace.output[self.index])

    @property
    def kind(self) -> Index:
        """Index of the class of each request."""
        return np.asarray(self.trace.kind[self.index])

    @functools.cached_property
    def times(self) -> Mapping[str, Array]:
        """What users wait for, by name: to the first token, for each further one (NaN where there is none), in all. [s]"""
        return request_times(self.arrival, self.first, self.last, self.output)

    @property
    def waits(self) -> Array:
        """Time in queues: before the admission, and before that to an engine that writes. [s]"""
        return self.begun - self.arrival + self.waited

    @property
    def answered(self) -> Mask:
        """Requests that have ended."""
        return np.asarray(~self.dropped)

    @functools.cached_property
    def window(self) -> tuple[float, float]:
        """First arrival and last token. [s]"""
        return float(self.arrival.min()), float(np.nanmax(self.last))


def covered(spans: Array, window: tuple[float, float]) -> float:
    """Share of a time that spans cover.

    >>> covered(np.array([[-np.inf, 2.0], [6.0, np.inf]]), (0.0, 8.0)), covered(np.array([[0.0, 2.0]]), (1.0, 1.0))
    (0.5, 1.0)
    """
    begin, end = window
    clipped = np.clip(spans, begin, end)
    return 1.0 if end <= begin else float((clipped[:, 1] - clipped[:, 0]).sum()) / (end - begin)


def _jumps(rows: Array) -> Jumps:
    return Jumps(**dict(zip(Jumps.__dataclass_fields__, rows.T.copy(), strict=True)))


def replayed(
    trace: RequestTrace, tickets: Sequence[Ticket], dropped: Mask, where: Sequence[int], trails: Sequence[Trail], area: float,
    spans: Mapping[str, Any],
) -> ServiceReplay:  # fmt: skip
    """Arrays of what happened to requests; `spans` are the fields of `EngineSpans`."""
    times = np.array([(each.arrival, each.begun, each.first, each.last) for each in tickets], dtype=float).reshape(-1, 4).T
    times = np.where(times < 0, np.nan, times)
    times[1:, dropped] = np.nan  # also of one that was read, and that no engine that writes can hold
    waited = np.array([each.waited for each in tickets], dtype=float)
    counts = np.array([(each.index, each.evicted, each.hits, each.moved) for each in tickets], dtype=np.intp).reshape(-1, 4).T
    rows, found = zip(*(trail.taken() for trail in trails), strict=True)
    gaps, gap = np.concatenate(found).T
    return ServiceReplay(
        trace=trace, index=counts[0], arrival=times[0], begun=times[1], first=times[2], last=times[3], waited=waited,
        evicted=counts[1], hits=counts[2], moved=counts[3], dropped=dropped, where=np.array(where, dtype=np.intp)[counts[0]],
        jumps=tuple(map(_jumps, rows)), gap=gap, gaps=gaps, area=area,
        **spans,
    )  # fmt: skip
