"""Traces as a section asks for them: a window of them, played several times, at other times, at another rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError, among, did_you_mean
from crossflow.workload.requests.dice import Dice
from crossflow.workload.requests.draws import both_targets, class_of, starts, timed
from crossflow.workload.requests.record import RequestClass, RequestTrace, joined
from crossflow.workload.requests.spec import MOST, TIMES, RequestsSpec


def asked_of(trace: RequestTrace, spec: RequestsSpec) -> RequestTrace:
    """The requests of a trace that a section asks for, at its times and with its targets."""
    found = _limited(_repeated(_window(trace, spec), spec), spec)
    if not len(found):
        raise CrossflowError("from: no request of the trace arrives in this window")
    found = replace(found, classes=tuple(_targets(found, spec)))
    if spec._said(TIMES):
        return _retimed(found, spec)
    return replace(found, arrival=found.arrival / spec.rate_scale)


def slowed(trace: RequestTrace, scale: float) -> RequestTrace:
    """The same with all times, pauses included, multiplied by a number."""
    return trace if scale == 1.0 else replace(trace, arrival=trace.arrival * scale, pause=trace.pause * scale)


def _window(trace: RequestTrace, spec: RequestsSpec) -> RequestTrace:
    """What arrives in a window after the first request, with the beginning of the window as time 0."""
    if spec.begin is None and spec.until is None:
        return trace
    since = trace.arrival - trace.arrival[0]
    begin = spec.begin or 0.0
    inside = trace.at(np.flatnonzero((since >= begin) & (since < (np.inf if spec.until is None else spec.until))))
    return replace(inside, arrival=inside.arrival - trace.arrival[0] - begin)


def _repeated(trace: RequestTrace, spec: RequestsSpec) -> RequestTrace:
    """The trace several times, one after another, a mean gap apart; no prompt has blocks of another time."""
    times = spec.repeat or 1
    if times == 1 or not len(trace):
        return trace
    if times * len(trace) > MOST:
        raise CrossflowError(
            f"repeat: there would be {times * len(trace):,} requests, more than the {MOST:,} that are read; repeat it less often"
        )
    span = float(trace.arrival[-1] - trace.arrival[0])
    period = spec.until - (spec.begin or 0.0) if spec.until is not None else span * len(trace) / max(len(trace) - 1, 1)
    lines = None if trace.lines is None else np.tile(trace.lines, times)
    parts = [replace(trace, arrival=trace.arrival + i * period) for i in range(times)]
    return replace(joined(parts), file=trace.file, lines=lines)


def _limited(trace: RequestTrace, spec: RequestsSpec) -> RequestTrace:
    return trace if spec.limit is None else trace.at(np.arange(min(spec.limit, len(trace))))


def _targets(trace: RequestTrace, spec: RequestsSpec) -> Iterator[RequestClass]:
    """Classes of a trace with what a section says of each."""
    said = {one.name: one for one in spec.classes}
    names = [one.name for one in trace.classes]
    for name in said:
        if name not in names:
            there = (
                f"there are: {among(names)}" if names != ["all"] else "it has no column of classes (columns.class); give requests.targets"
            )
            raise CrossflowError(f"classes: no request of the trace is of class '{name}'{did_you_mean(name, names)}; {there}")
    for one in trace.classes:
        own = said.get(one.name)
        if own is None:
            yield class_of(spec, one.name)
        else:
            yield class_of(own.model_copy(update={"targets": both_targets(own.targets, spec.targets)}))


def _retimed(trace: RequestTrace, spec: RequestsSpec) -> RequestTrace:
    """The sessions of a trace, or its requests where there are none, in their order at other times."""
    root = _roots(trace.follows)
    order = np.lexsort((np.arange(len(trace)), root))
    followed = trace.follows[trace.follows >= 0]
    if len(np.unique(followed)) < len(followed):
        raise CrossflowError(f"{spec._said(TIMES)[0]}: several requests of the trace follow the same one; leave it out, to keep its times")
    pause = np.where(trace.follows < 0, 0.0, _pauses(trace))
    chain = replace(trace.at(order), pause=pause[order])
    opens = np.flatnonzero(np.concatenate([np.ones(1, dtype=bool), root[order][1:] != root[order][:-1]]))
    if spec.batch is not None:
        if spec.batch > len(opens):
            raise CrossflowError(f"batch: the trace has {len(opens):,} requests, or sessions, got {spec.batch:,}; give repeat too")
        chain, opens = _cut(chain, opens, spec.batch)
    dice = Dice(seed=spec.seed, kind=0)
    source = spec.model_copy(update={"count": len(opens)})
    arrival, follows, pauses = timed(spec.users, chain.pause, opens, starts(source, dice, spec.rate_scale), dice)
    return replace(chain, arrival=arrival, follows=follows, pause=pauses, history=chain.continues).in_order()


def _cut(chain: RequestTrace, opens: Index, sessions: int) -> tuple[RequestTrace, Index]:
    """The first sessions of several that stand one after another."""
    end = len(chain) if sessions == len(opens) else int(opens[sessions])
    pause = chain.pause[:end]
    return replace(chain.at(np.arange(end)), pause=pause), opens[:sessions]


def _roots(follows: Index) -> Index:
    """The first request of the session of each, shape (n,)."""
    root = np.where(follows < 0, np.arange(len(follows)), follows)
    while not np.array_equal(further := root[root], root):
        root = further
    return root


def _pauses(trace: RequestTrace) -> Array:
    """Pauses of a trace's sessions; where it does not say them, the time from one arrival to the next."""
    gaps = np.where(trace.follows < 0, 0.0, trace.arrival - trace.arrival[trace.follows])
    return trace.pause if trace.pause.any() else gaps
