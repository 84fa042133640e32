"""How many engines the work of requests needs at least, in closed form: a bound below which no replay has to be made.

Every request must be read, and written, between its arrival and its deadline. The work that falls into an interval as a whole, each
token at the best rate that a step can have, over the length of the interval, is a number of engines below which some deadlines are missed
(the demand bound function of real-time scheduling [1]_).

References
----------
.. [1] Baruah, Rosier and Howell, "Algorithms and Complexity Concerning the Preemptive Scheduling of Periodic, Real-Time Tasks on One
   Processor", Real-Time Systems 2(4), 1990.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.engine.service.steps import StepTable
from crossflow.engine.service.ticket import Limits
from crossflow.workload.requests.record import RequestTrace

EDGES = 33  # ends of intervals over a trace, by quantiles of its arrivals: all pairs of them are intervals
SLACK = 1e-6  # relative, of rounding


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestWork:
    """What each request of a trace asks of engines at least, and by when; arrays of shape (n,)."""

    arrival: Array  # [s]
    due: Array  # time at which it must be done; infinite where nothing says so. [s]
    work: Array  # of one engine. [s]


def unread(trace: RequestTrace) -> Array:
    """Tokens of each prompt that must be read even where one cache keeps every block for ever, shape (n,). [1]"""
    tokens = trace.prompt.astype(float)
    if trace.blocks is None:
        return tokens
    seen = set[int]()
    for i, prompt in enumerate(trace.prompt.tolist()):
        hashes = trace.blocks[i][: prompt // trace.block]
        there = next((k for k, one in enumerate(hashes) if one not in seen), len(hashes))
        seen.update(hashes)
        tokens[i] = max(prompt - there * trace.block, 1)
    return tokens


def reading_work(trace: RequestTrace, table: StepTable, new: Array) -> RequestWork:
    """Reading of prompts, of which so many tokens are `new`, before the first token is due.

    Ranks that share out experts read most where all of them read, though each step takes less where few do.
    """
    best = (table.reading / table.tokens[None, :, None]).min(axis=(0, 1))  # of a token by the keys that it sees. [s]
    seen = trace.prompt - 0.5 * new
    return RequestWork(arrival=trace.arrival, due=trace.arrival + _first_due(trace), work=new * np.interp(seen, table.keys, best))


def writing_work(trace: RequestTrace, table: StepTable, limits: Limits) -> RequestWork:
    """Writing of all tokens after the first, before the last one is due."""
    many = np.unique(np.append(table.requests[(table.requests >= 1) & (table.requests <= limits.requests)], 1.0))
    rows = np.stack([_interpolated(table, n) / (n * limits.pace) for n in many])
    best = rows.min(axis=0)  # of a token by the context of its request. [s]
    further = trace.output - 1.0
    context = trace.prompt + 0.5 * further
    return RequestWork(arrival=trace.arrival, due=trace.arrival + _last_due(trace), work=further * np.interp(context, table.context, best))


def _interpolated(table: StepTable, n: float) -> Array:
    """Times of steps that write for n requests, by context. [s]"""
    return np.array([np.interp(n, table.requests, column) for column in table.writing.T])


def _targets(trace: RequestTrace, name: str) -> Array:
    """A target of the class of each request, infinite where it has none. [s]"""
    return trace.targets(name)[trace.kind]


def _first_due(trace: RequestTrace) -> Array:
    """Time that may pass from an arrival to the first token. [s]"""
    return np.minimum(_targets(trace, "ttft"), _targets(trace, "e2e"))


def _last_due(trace: RequestTrace) -> Array:
    """Time that may pass from an arrival to the last token. [s]"""
    further = np.maximum(trace.output - 1.0, 0.0)
    each = _targets(trace, "tpot")
    writing = np.where(np.isinf(each), np.inf, np.where(np.isinf(each), 0.0, each) * further)
    return np.minimum(_targets(trace, "ttft") + writing, _targets(trace, "e2e"))


def together(one: RequestWork, other: RequestWork) -> RequestWork:
    """Both kinds of work of the same requests, done by the time of the later one."""
    return RequestWork(arrival=one.arrival, due=np.maximum(one.due, other.due), work=one.work + other.work)


def engines_needed(asked: RequestWork, missed: int) -> float:
    """Engines that the work needs at least where so many requests may miss their targets. [1]

    The largest of all intervals: the work of requests that come and are due inside, without the `missed` largest of them, over its length.
    A fleet may leave just these, and no others.
    """
    begins = np.unique(np.quantile(asked.arrival, np.linspace(0.0, 1.0, EDGES)))
    bounded = np.isfinite(asked.due)
    if not bounded.any():
        return 0.0
    ends = np.unique(np.quantile(asked.due[bounded], np.linspace(0.0, 1.0, EDGES)))
    most = 0.0
    for begin in begins:
        inside = bounded & (asked.arrival >= begin)
        for end in ends[ends > begin]:
            most = max(most, _kept(asked.work[inside & (asked.due <= end)], missed) / (end - begin))
    return most * (1.0 - SLACK)


def _kept(work: Array, missed: int) -> float:
    """Sum of all but the largest ones. [s]"""
    if len(work) <= missed:
        return 0.0
    return float(work.sum() if not missed else np.partition(work, len(work) - missed)[: len(work) - missed].sum())
