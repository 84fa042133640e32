"""A cluster by events: jobs arrive, get all their devices at once, end, save and give them back.

Between two events nothing changes, so that the work is a few operations of a heap a job. All that happens at one moment is done before
the policy looks at the queue, so that the order of equal times does not matter.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Mask
from crossflow.engine.cluster.boxes import SliceMap, SlicePlace
from crossflow.engine.cluster.line import WaitingLine
from crossflow.engine.cluster.policies import dispatch, rotate
from crossflow.engine.cluster.record import (
    OF_SLICES,
    ClusterJobs,
    ClusterRoom,
    JobSlowdowns,
    JobStays,
    ScheduledCluster,
    SchedulerPolicy,
)

END, RELEASE, ARRIVE, TICK = range(4)  # kinds of events in the order in which those of one moment are done
_STEP = 1e9  # between keys of two priorities: more than jobs ever stand in a queue


@dataclass
class _Stay:
    """A job that has its devices."""

    begin: float
    loaded: float
    finish: float
    expected: float  # when the scheduler expects it to end, as fast as it is now
    saved: float  # of jobs that slow each other: the moment of the last checkpoint at a distance of its own, else of its begin
    done: float = 0.0  # of these: work that it has done since its begin. [s]

    def work(self, until: float, runs: float, done: float, interval: float) -> None:
        """Do some work in the time until a moment, evenly, with a checkpoint after every `interval` of it. [s]"""
        self.done += done
        beyond = self.done % interval
        if beyond < done:  # since a checkpoint in this time
            self.saved = until - beyond * runs / done


class ClusterState:
    """How a cluster stands at one moment; lives inside `scheduled`."""

    def __init__(self, jobs: ClusterJobs, room: ClusterRoom, policy: SchedulerPolicy, slowdowns: JobSlowdowns | None = None) -> None:
        n = len(jobs)
        self.slowdowns = slowdowns
        self.slower: dict[int, float] = {}  # how many times as long what running jobs do takes now. [1]
        self.alone, self.changed = np.zeros(n), False  # the last says whether other jobs run than those that this was found for
        self.lasting = np.zeros(n, dtype=bool) if jobs.lasting is None else jobs.lasting
        self.turn = np.zeros(n, dtype=np.intp)  # number of the only end of a job that is to come
        self.jobs, self.room, self.policy, self.now = jobs, room, policy, 0.0
        self.free, self.watts = room.devices, room.power_cap - room.devices * room.idle_power
        # Power beyond that of its devices at rest.
        self.needed_watts = jobs.power - jobs.devices * room.idle_power
        self.keys = -_STEP * jobs.priority + np.arange(n, dtype=float)
        self.line = WaitingLine(self.keys)
        self.running: dict[int, _Stay] = {}
        self.ends: list[tuple[float, int]] = []  # when running jobs are expected to end, in order
        self.given_back = [0, 0.0]  # devices and watts of jobs that save
        self.left = jobs.time.copy()  # of running. [s]
        self.length = jobs.expected  # for which it holds its devices, as backfill expects, which interrupts none. [s]
        self.started = np.zeros(n, dtype=bool)
        self.preemptions, self.turns = np.zeros(n, dtype=np.intp), n
        self.promised = np.full(n, np.nan)
        self.stays: list[tuple[int, float, float, float, float, float]] = []
        # Plain numbers are read one at a time some ten times as fast as those of arrays.
        self.devices_of: list[int] = jobs.devices.tolist()
        self.watts_of: list[float] = self.needed_watts.tolist()
        self.heap = list(zip(jobs.arrival.tolist(), [ARRIVE] * n, range(n), [0] * n, strict=True))
        heapq.heapify(self.heap)
        self.slack = 0.0 if np.isinf(room.power_cap) else 1e-9 * room.power_cap  # what rounding may take of the power
        self.movable: Counter[int] = Counter()  # running jobs whose devices may be taken, by priority
        self.map = None if room.ground is None else SliceMap(room.ground)
        self.places: dict[int, SlicePlace] = {}  # of all jobs that began
        self.boxless, self.fragmented, self.blocked = np.zeros(n), 0.0, -1  # the last is the job that no slice is free for
        self.ticking, self.slice = False, 0  # whether the end of the slice is an event, and the number of the last such slice

    def enough(self, job: int, *, beside: tuple[float, float] = (0, 0.0)) -> bool:
        """Whether there are devices and power for a job, others beside those that are free among them."""
        return bool(self.devices_of[job] <= self.free + beside[0] and self.watts_of[job] <= self.watts + beside[1] + self.slack)

    def fits(self, job: int, *, beyond: Mask | None = None) -> bool:
        """Whether a job can start now: there is enough for it, and where it needs a slice, one is free outside of some devices."""
        return self.enough(job) and (self.map is None or self.map.find(self.jobs.slices[job], beyond) is not None)

    def start(self, job: int, *, beyond: Mask | None = None) -> None:
        """Give a job its devices."""
        self._take(job, 1)
        if self.map is not None:
            place = self.map.find(self.jobs.slices[job], beyond)
            assert place is not None  # it fits
            self.map.put(place, taken=True)
            self.places[job] = place
        loaded = self.now + (float(self.jobs.load[job]) if self.preemptions[job] else 0.0)
        left = float(self.left[job])
        expected = self.now + float(self.length[job])
        self.slower[job], self.changed = 1.0, True
        self.running[job] = _Stay(begin=self.now, loaded=loaded, finish=loaded + left, expected=expected, saved=loaded)
        self.movable[int(self.jobs.priority[job])] += bool(self.jobs.preemptible[job])
        bisect.insort(self.ends, (expected, job))
        heapq.heappush(self.heap, (loaded + left, END, job, int(self.turn[job])))

    def _take(self, job: int, sign: int) -> None:
        self.free -= sign * self.devices_of[job]
        self.watts -= sign * self.watts_of[job]

    def _stop(self, job: int) -> _Stay:
        stay = self.running.pop(job)
        del self.slower[job]
        self.changed = True
        self.movable[int(self.jobs.priority[job])] -= bool(self.jobs.preemptible[job])
        del self.ends[bisect.bisect_left(self.ends, (stay.expected, job))]
        return stay

    def end(self, job: int) -> None:
        """A job has done all its work."""
        stay = self._stop(job)
        self._take(job, -1)
        if self.map is not None:
            self.map.put(self.places[job], taken=False)
        self.stays.append((job, stay.begin, stay.loaded, self.now, self.now, 0.0))

    def preempt(self, job: int, *, kill: bool) -> None:
        """Take the devices of a job, at once or once its state is saved."""
        stay = self._stop(job)
        ran = max(self.now - stay.loaded, 0.0)
        done = ran if self.slowdowns is None else stay.done
        interval = float(self.jobs.interval[job])
        kept = done if not kill else done // interval * interval if np.isfinite(interval) else 0.0
        saving = 0.0 if kill or ran == 0.0 else float(self.jobs.save[job])
        self.left[job] -= kept if self.slowdowns is None else kept - done
        lost = done - kept if self.slowdowns is None else max(self.now - stay.saved, 0.0) if kill else 0.0
        self.preemptions[job] += 1
        self.turn[job] += 1
        self.stays.append((job, stay.begin, min(stay.loaded, self.now), self.now, self.now + saving, lost))
        if saving:
            self.given_back[0] += self.devices_of[job]
            self.given_back[1] += self.watts_of[job]
            heapq.heappush(self.heap, (self.now + saving, RELEASE, job, 0))
        else:
            self.release(job)

    def release(self, job: int) -> None:
        """Give devices back, and let their job wait again: at the end of its priority where time is shared in slices."""
        self._take(job, -1)
        if self.policy.kind == "gang":
            self.keys[job] = -_STEP * self.jobs.priority[job] + self.turns
            self.turns += 1
        self.line.add(job)

    def happen(self, kind: int, job: int, time: int) -> None:
        """One event; ends of stays that were cut short are none."""
        if kind == ARRIVE:
            self.line.add(job)
        elif kind == END and job in self.running and self.turn[job] == time:
            self.end(job)
        elif kind == RELEASE:
            self.given_back[0] -= self.devices_of[job]
            self.given_back[1] -= self.watts_of[job]
            self.release(job)
        elif kind == TICK:
            self.ticking = False
            rotate(self)

    def wait_until(self, now: float) -> None:
        """Let time pass up to the next event."""
        if self.blocked >= 0:
            self.boxless[self.blocked] += now - self.now
            self.fragmented += self.free * (now - self.now)
        if self.slowdowns is not None:
            for job, slower in self.slower.items():
                stay = self.running[job]
                runs = max(now - max(self.now, stay.loaded), 0.0)
                self.alone[job] += runs / slower
                done = runs if self.lasting[job] else runs / slower
                self.left[job] -= done
                if runs:
                    stay.work(now, runs, done, float(self.jobs.interval[job]))
        self.now = now

    def share(self) -> None:
        """Where others run than before, find anew how fast each job is, and when it ends."""
        if self.slowdowns is None or not self.changed:
            return
        self.changed, running = False, tuple(self.running)
        for job, slower in zip(running, self.slowdowns(running), strict=True):
            if slower != self.slower[job]:
                stay, expected = self.running[job], self.expected_end(job, slower)
                del self.ends[bisect.bisect_left(self.ends, (stay.expected, job))]
                bisect.insort(self.ends, (expected, job))
                stay.expected, self.slower[job] = expected, slower
                if not self.lasting[job]:
                    self.turn[job] += 1
                    begins = max(self.now, stay.loaded)
                    heapq.heappush(self.heap, (begins + max(float(self.left[job]), 0.0) * slower, END, job, int(self.turn[job])))

    def expected_end(self, job: int, slower: float) -> float:
        """When a job that runs, or would begin now, is expected to end where what it does takes so many times as long from now on. [s]"""
        stay = self.running.get(job)
        if stay is not None and (self.lasting[job] or slower == self.slower[job]):
            return stay.expected
        longer = 1.0 if self.lasting[job] else slower
        return self.now + max(float(self.length[job] - self.alone[job]), 0.0) * longer

    def ends_with(self, job: int) -> list[tuple[float, int]]:
        """When running jobs are expected to end, in order, and one more beside them, which slows them and is slowed."""
        assert self.slowdowns is not None  # as who asks knows
        together = (*self.running, job)
        return sorted((self.expected_end(one, slower), one) for one, slower in zip(together, self.slowdowns(together), strict=True))

    def look(self) -> None:
        """See whether the next job waits for nothing but a slice."""
        waits = self.map is not None and len(self.line) and self.enough(self.line.front)
        self.blocked = self.line.front if waits else -1

    def tick(self) -> None:
        """The end of the slice, if anyone waits for it."""
        if self.policy.kind == "gang" and len(self.line) and not self.ticking:
            self.ticking = True
            # Counted in whole slices: the quotient of the end of a slice may be rounded to the one that it ends.
            self.slice = max(self.slice, int(self.now // self.policy.quantum)) + 1
            heapq.heappush(self.heap, (self.slice * self.policy.quantum, TICK, -1, 0))


def scheduled(jobs: ClusterJobs, room: ClusterRoom, policy: SchedulerPolicy, slowdowns: JobSlowdowns | None = None) -> ScheduledCluster:
    """What becomes of jobs, which slow each other where `slowdowns` say so.

    ValueError for one that never has room, and where devices are taken away from slices.
    """
    state = ClusterState(jobs, room, policy, slowdowns)
    _check(state)
    heap = state.heap
    while heap:
        state.wait_until(heap[0][0])
        while heap and heap[0][0] == state.now:
            _, kind, job, time = heapq.heappop(heap)
            state.happen(kind, job, time)
        dispatch(state)
        state.share()
        state.look()
        state.tick()
    columns = np.array(state.stays, dtype=float).reshape(-1, 6).T
    stays = JobStays(
        job=columns[0].astype(np.intp), begin=columns[1], loaded=columns[2], stopped=columns[3], end=columns[4], lost=columns[5]
    )
    start, end = np.full(len(jobs), np.inf), np.zeros(len(jobs))
    np.minimum.at(start, stays.job, stays.begin)
    np.maximum.at(end, stays.job, stays.end)
    held = np.bincount(stays.job, stays.end - stays.begin, minlength=len(jobs))
    # A job that never waits has a waiting time of exactly nothing.
    waiting = np.where(state.preemptions > 0, np.maximum(end - jobs.arrival - held, 0.0), start - jobs.arrival)
    return ScheduledCluster(
        jobs=jobs, room=room, start=start, end=end, waiting=waiting, preemptions=state.preemptions, promised=state.promised, stays=stays,
        boxless=state.boxless, fragmented=state.fragmented, places=tuple(state.places[job] for job in range(len(state.places))),
        alone=jobs.time if slowdowns is None else state.alone,
    )  # fmt: skip


def _check(state: ClusterState) -> None:
    """ValueError for a job that does not fit into the empty cluster, and for slices in which nothing is done."""
    jobs, policy = state.jobs, state.policy
    for job in range(len(jobs)):
        if not state.fits(job):
            raise ValueError(f"job {job} needs {jobs.devices[job]} devices and {jobs.power[job]:g} W, more than the cluster has")
    if state.map is not None and policy.kind not in OF_SLICES:
        raise ValueError(f"{policy.kind} takes devices away from jobs, and slices stay until their jobs end")
    if state.slowdowns is not None and state.map is not None:
        raise ValueError("slices have links of their own, and their jobs slow no others")
    moved = jobs.preemptible
    longest = jobs.load[moved].max(initial=0.0) + jobs.save[moved].max(initial=0.0)
    if policy.kind == "gang" and len(jobs) and not policy.quantum > longest:
        raise ValueError(f"a slice of {policy.quantum:g} s is no longer than the {longest:g} s that jobs take to save and to load")
