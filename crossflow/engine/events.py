"""A plain event engine: for what cannot be ordered beforehand, and as the oracle of the longest path."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array


def run_tasks(
    durations: Sequence[float],
    after: Sequence[tuple[int, ...]],
    resources: Sequence[Hashable],
    *,
    slots: int = 1,
    in_order: bool = True,
    also: Mapping[int, Sequence[Hashable]] | None = None,
) -> tuple[Array, Array]:
    """Run tasks on resources, event by event.

    Parameters
    ----------
    durations : time of every task. [s]
    after : for every task the tasks that it waits for.
    resources : for every task the resource that it occupies.
    slots : tasks that one resource runs at once, at full speed.
    in_order : whether a resource starts its tasks in the order given; otherwise a free slot takes the first ready one.
    also : further resources that some tasks occupy at the same time: meetings.

    Returns
    -------
    start, end : ndarrays of shape (tasks,). [s]

    Raises
    ------
    ValueError
        When tasks wait for each other in a circle.
    """
    total = len(durations)
    start, end = np.full(total, np.nan), np.full(total, np.nan)
    places = _places(resources, also)
    pools = _Pools(after, places, slots={one: slots for mine in places for one in mine}, in_order=in_order)
    events: list[tuple[float, int]] = []

    def begin(where: Iterable[Hashable], now: float) -> None:
        """Start what resources can start."""
        for task in pools.started(where):
            start[task], end[task] = now, now + durations[task]
            heapq.heappush(events, (end[task], task))

    begin(pools.free, 0.0)
    finished = 0
    while events:
        now = events[0][0]
        touched: list[Hashable] = []
        while events and events[0][0] == now:  # all that ends now frees its slots before anything starts
            _, task = heapq.heappop(events)
            finished += 1
            touched += pools.ended(task)
        begin(dict.fromkeys(touched), now)
    if finished < total:
        raise ValueError(f"{total - finished} of {total} tasks can never start: they wait for each other")
    return start, end


def _places(resources: Sequence[Hashable], also: Mapping[int, Sequence[Hashable]] | None) -> list[tuple[Hashable, ...]]:
    """All resources of every task."""
    return [(one, *(also or {}).get(task, ())) for task, one in enumerate(resources)]


@dataclass
class _Pools:
    """What is ready to run on each resource, and the slots that are free there; a task that takes several starts on all at once."""

    after: Sequence[tuple[int, ...]]
    places: Sequence[tuple[Hashable, ...]]
    slots: Mapping[Hashable, int]
    in_order: bool = False

    def __post_init__(self) -> None:
        self.free = dict(self.slots)
        self._ready: dict[Hashable, list[int]] = {resource: [] for resource in self.free}
        self._queues: dict[Hashable, deque[int]] = {resource: deque() for resource in self.free}
        for task, mine in enumerate(self.places):
            for resource in mine if self.in_order else ():
                self._queues[resource].append(task)
        self._waiting, self._followers = _dependencies(self.after)
        for task, count in enumerate(self._waiting):
            if not count:
                self._add(task)

    def _add(self, task: int) -> None:
        """A task has nothing left to wait for."""
        for resource in self.places[task]:
            heapq.heappush(self._ready[resource], task)

    def ended(self, task: int) -> list[Hashable]:
        """A task has ended; resources that may start others."""
        touched = list(self.places[task])
        for resource in touched:
            self.free[resource] += 1
        for follower in self._followers[task]:
            self._waiting[follower] -= 1
            if not self._waiting[follower]:
                self._add(follower)
                touched += self.places[follower]
        return touched

    def started(self, where: Iterable[Hashable]) -> Iterator[int]:
        """Tasks that start on resources, the first ready first; in the order of the queues where that counts."""
        for resource in where:
            pool, later = self._ready[resource], list[int]()
            while self.free[resource] and pool and (not self.in_order or pool[0] == self._queues[resource][0]):
                task = heapq.heappop(pool)
                if len(self.places[task]) > 1 and not self._all_free(task, resource):
                    later.append(task)
                    if self.in_order:
                        break
                    continue
                self._take(task, resource)
                yield task
            for task in later:
                heapq.heappush(pool, task)

    def _all_free(self, task: int, resource: Hashable) -> bool:
        """Whether the other resources of a task can start it too."""
        others = [one for one in self.places[task] if one != resource]
        return all(self.free[one] and (not self.in_order or self._queues[one][0] == task) for one in others)

    def _take(self, task: int, resource: Hashable) -> None:
        for one in self.places[task]:
            self.free[one] -= 1
            if self.in_order:
                self._queues[one].popleft()
            if one != resource:
                self._ready[one].remove(task)
                heapq.heapify(self._ready[one])


def _dependencies(after: Sequence[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """For every task how many others it waits for, and which wait for it."""
    followers: list[list[int]] = [[] for _ in after]
    for task, before in enumerate(after):
        for earlier in set(before):
            followers[earlier].append(task)
    return [len(set(before)) for before in after], followers


def run_shared(
    fixed: Sequence[float],
    shared: Sequence[float],
    after: Sequence[tuple[int, ...]],
    resources: Sequence[Hashable],
    slots: Mapping[Hashable, int],
    also: Mapping[int, Sequence[Hashable]] | None = None,
) -> Array:
    """Run tasks on resources whose running tasks share them, and return when each ends.

    A task first takes its fixed time (a kernel's launch) whatever else runs, then the time that it would need alone,
    stretched by the number of tasks that use the resource at that moment: k kernels on a device never do more work than
    the device can.

    Parameters
    ----------
    fixed, shared : times of every task alone. [s]
    after : for every task the tasks that it waits for.
    resources : for every task the resource that it occupies.
    slots : tasks that a resource runs at once; the first ready ones take free slots.
    also : further resources that some tasks occupy at the same time; none of these tasks shares its resources.

    Returns
    -------
    ndarray, shape (tasks,). [s]
    """
    total = len(fixed)
    end = np.full(total, np.nan)
    pools = _Pools(after, _places(resources, also), slots=slots)
    running: dict[Hashable, dict[int, list[float]]] = {resource: {} for resource in slots}
    now, finished = 0.0, 0
    while finished < total:
        for task in pools.started(slots):
            running[resources[task]][task] = [fixed[task], shared[task]]
        left = {task: _time_left(parts, tasks) for tasks in running.values() for task, parts in tasks.items()}
        if not left:
            raise ValueError(f"{total - finished} of {total} tasks can never start: they wait for each other")
        step = min(left.values())
        now += step
        for tasks in running.values():
            for task in _advanced(tasks, step):
                end[task], finished = now, finished + 1
                pools.ended(task)
    return end


def _sharers(tasks: Mapping[int, Sequence[float]]) -> int:
    """Tasks that use a resource now: those beyond their fixed time."""
    return sum(parts[0] == 0 for parts in tasks.values())


def _time_left(parts: Sequence[float], tasks: Mapping[int, Sequence[float]]) -> float:
    """Time until a task's present phase ends, if nothing else changes. [s]"""
    return parts[0] if parts[0] > 0 else parts[1] * _sharers(tasks)


def _advanced(tasks: dict[int, list[float]], step: float) -> list[int]:
    """Let the running tasks of one resource go on for a step; those that end are taken out and returned."""
    sharers = _sharers(tasks)
    for parts in tasks.values():
        phase = 0 if parts[0] > 0 else 1
        done = step if phase == 0 else step / sharers
        parts[phase] = 0.0 if done >= parts[phase] * (1 - 1e-12) else parts[phase] - done
    ended = [task for task, parts in tasks.items() if parts[0] == 0 and parts[1] == 0]
    for task in ended:
        del tasks[task]
    return ended
