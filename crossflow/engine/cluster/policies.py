"""Who is given devices next: one function a policy, which looks at the queue and at what is free.

References
----------
.. [1] D. Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; A. Mu'alem and D. Feitelson, "Utilization, predictability, workloads, and
   user runtime estimates in scheduling the IBM SP2 with backfilling", IEEE TPDS 12(6), 2001, Sec. 2 (EASY).
.. [2] J. Ousterhout, "Scheduling techniques for concurrent systems", ICDCS 1982 (jobs in slices, all their processes at once); W. Xiao et
   al., "Gandiva", OSDI 2018, Sec. 4.1 (the same of GPUs, by suspending and resuming).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Index, Mask

if TYPE_CHECKING:
    from crossflow.engine.cluster.events import ClusterState

_AT_ONCE = 4096  # waiting jobs that are looked at together


def dispatch(state: ClusterState) -> None:
    """Give devices to those whose turn it is."""
    kind = state.policy.kind
    _in_order(state)
    if not len(state.line):
        return
    if kind == "preemptive":
        _preempt(state)
    elif state.free > 0 and kind == "backfill":
        _backfill(state)
    elif (
        state.free > 0 and kind == "gang" and not state.given_back[0]
    ):  # what suspended jobs give back is for those that they were suspended for
        _fill(state, state.line.jobs, _Promise())


def _in_order(state: ClusterState) -> None:
    """Start jobs from the front of the queue, up to the first that does not fit."""
    while len(state.line) and state.fits(state.line.front):
        state.start(state.line.pop())


def _backfill(state: ClusterState) -> None:
    """EASY [1]_: the first job is promised devices as soon as running ones leave enough; others may run that do not delay it."""
    state.share()
    head = state.line.front
    promise = _reservation(state, head, state.ends)
    if np.isnan(state.promised[head]):
        state.promised[head] = promise.shadow
    line = state.line.jobs[1 : 1 + state.policy.depth]
    if state.slowdowns is None:
        _fill(state, line, promise)
    else:
        _fill_beside(state, line, head, promise)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Promise:
    """When the first job can start at the latest, and what is then left beside it; nothing is promised where it is never."""

    shadow: float = np.inf  # [s]
    devices: int = 0
    watts: float = 0.0
    slice: Mask | None = None  # devices of its slice


def _reservation(state: ClusterState, head: int, ends: Sequence[tuple[float, int]], beside: tuple[int, float] = (0, 0.0)) -> _Promise:
    """What the first job is promised: all that it needs once enough of the running jobs have ended, in order of their expected ends.

    beside : devices and power that are free beside those that are; less where a job begins.
    """
    (devices, watts), now, there = beside, state.map, None if state.map is None else state.map.copy()
    for expected, job in ends:
        devices, watts = devices + state.devices_of[job], watts + state.watts_of[job]
        if there is not None:
            there.put(state.places[job], taken=False)
        if not state.enough(head, beside=(devices, watts)):
            continue
        left = state.watts + watts - state.watts_of[head]
        if now is None or there is None:
            return _Promise(shadow=expected, devices=state.free + devices - state.devices_of[head], watts=left)
        if (place := there.sparing(state.jobs.slices[head], ~now.taken)) is not None:
            # All devices outside of its slice are left, of which as many as can be are free now.
            return _Promise(shadow=expected, devices=state.room.devices, watts=left, slice=there.only(place))
    raise AssertionError("a job that fits into the empty cluster fits once all have ended")


def _fill(state: ClusterState, line: Index, promise: _Promise) -> None:
    """Start jobs of a part of the queue that fit and end before what is promised begins, or need nothing of it."""
    all_devices, started, shadow, spare, spare_watts = state.jobs.devices, state.started, promise.shadow, promise.devices, promise.watts
    for at in range(0, len(line), _AT_ONCE):
        if state.free <= 0:
            break
        some = line[at : at + _AT_ONCE]
        some = some[(all_devices[some] <= state.free) & (state.needed_watts[some] <= state.watts + state.slack)]
        if len(some) and shadow < np.inf:
            some = some[(state.length[some] <= shadow - state.now) | (all_devices[some] <= spare)]
        for job in some.tolist():
            late = state.now + state.length[job] > shadow
            beyond = promise.slice if late else None
            if not state.fits(job, beyond=beyond):
                continue
            if late:
                if state.devices_of[job] > spare or state.watts_of[job] > spare_watts:
                    continue
                spare, spare_watts = spare - state.devices_of[job], spare_watts - state.watts_of[job]
            state.start(job, beyond=beyond)
            started[job] = True
    _leave(state)


def _fill_beside(state: ClusterState, line: Index, head: int, promise: _Promise) -> None:
    """Start jobs that slow others where they fit, and the first one is then expected to start no later, with all as slow as they will be.

    Who leaves slows no one, and who comes later is asked the same. So the promise holds wherever a job is never faster beside more others;
    elsewhere it is an estimate, as one that is slower when others leave ends later than planned.
    """
    for job in line.tolist():
        taken = -state.devices_of[job], -state.watts_of[job]
        if state.fits(job) and _reservation(state, head, state.ends_with(job), taken).shadow <= promise.shadow:
            state.start(job)
            state.share()
            state.started[job] = True
    _leave(state)


def _leave(state: ClusterState) -> None:
    """Take those that were started out of the queue."""
    gone = state.started[state.line.jobs]
    if gone.any():
        state.line.drop(gone)
        state.started[:] = False


def _preempt(state: ClusterState) -> None:
    """Take devices for the first job from running ones of lower priority, the lowest first, of these those that began last."""
    kill = state.policy.preemption == "kill"
    while len(state.line) and not state.fits(state.line.front):
        head = state.line.front
        if state.enough(head, beside=(state.given_back[0], state.given_back[1])):
            return  # devices are on their way
        victims = _victims(state, head)
        if not victims:
            return
        for job in victims:
            state.preempt(job, kill=kill)
        _in_order(state)


def _victims(state: ClusterState, head: int) -> list[int]:
    """Jobs whose devices and power are enough for the first one, none of them needlessly; none where all together are not."""
    jobs = state.jobs
    if not any(many and priority < jobs.priority[head] for priority, many in state.movable.items()):
        return []
    lower = [job for job in state.running if jobs.preemptible[job] and jobs.priority[job] < jobs.priority[head]]
    lower.sort(key=lambda job: (jobs.priority[job], -state.running[job].begin, -job))
    devices, watts, chosen = *state.given_back, list[int]()
    for job in lower:
        if state.enough(head, beside=(devices, watts)):
            break
        devices, watts = devices + state.devices_of[job], watts + state.watts_of[job]
        chosen.append(job)
    if not state.enough(head, beside=(devices, watts)):
        return []
    for job in chosen[-2::-1]:
        less = devices - state.devices_of[job], watts - state.watts_of[job]
        if state.enough(head, beside=less):
            (devices, watts), chosen = less, [one for one in chosen if one != job]
    return chosen


def rotate(state: ClusterState) -> None:
    """At the end of a slice [2]_: jobs that wait come first, then those that ran; who has no place any more is suspended."""
    line, keys = state.line.jobs, state.keys
    may_go = sorted((job for job in state.running if state.jobs.preemptible[job]), key=lambda job: float(keys[job]))
    devices = state.free + state.given_back[0] + sum(state.devices_of[job] for job in may_go)
    watts = state.watts + state.given_back[1] + sum(state.watts_of[job] for job in may_go)
    waiting = (job for start in range(0, len(line), _AT_ONCE) for job in line[start : start + _AT_ONCE].tolist())
    suspended = []
    for job in itertools.chain(waiting, may_go):
        if devices <= 0 and job not in state.running:
            continue
        if state.devices_of[job] <= devices and state.watts_of[job] <= watts + state.slack:
            devices, watts = devices - state.devices_of[job], watts - state.watts_of[job]
        elif job in state.running:
            suspended.append(job)
    for job in suspended:
        state.preempt(job, kill=False)
