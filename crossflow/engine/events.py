"""A plain event engine: for what cannot be ordered beforehand, and as the oracle of the longest path."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from crossflow.arrays import Array


def run_tasks(
    durations: Sequence[float],
    after: Sequence[tuple[int, ...]],
    resources: Sequence[Hashable],
    *,
    slots: int = 1,
    in_order: bool = True,
) -> tuple[Array, Array]:
    """Run tasks on resources, event by event.

    Parameters
    ----------
    durations : time of every task. [s]
    after : for every task the tasks that it waits for.
    resources : for every task the resource that it occupies.
    slots : tasks that one resource runs at once, each at its full speed.
    in_order : whether a resource starts its tasks in the order given; otherwise a free slot takes the first ready one.

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
    waiting, followers = _dependencies(after)
    queues: dict[Hashable, list[int]] = {}
    for task, resource in enumerate(resources):
        queues.setdefault(resource, []).append(task)
    program = {resource: list(reversed(tasks)) for resource, tasks in queues.items()}
    ready: dict[Hashable, list[int]] = {resource: [] for resource in queues}
    free = dict.fromkeys(queues, slots)
    events: list[tuple[float, int]] = []

    def begin(resource: Hashable, now: float) -> None:
        """Start what the resource can start."""
        pool, todo = ready[resource], program[resource]
        while free[resource] and pool and (not in_order or pool[0] == todo[-1]):
            task = heapq.heappop(pool)
            if in_order:
                todo.pop()
            free[resource] -= 1
            start[task], end[task] = now, now + durations[task]
            heapq.heappush(events, (end[task], task))

    for task in range(total):
        if not waiting[task]:
            heapq.heappush(ready[resources[task]], task)
    for resource in queues:
        begin(resource, 0.0)
    finished = 0
    while events:
        now = events[0][0]
        touched = []
        while events and events[0][0] == now:  # all that ends now frees its slots before anything starts
            _, task = heapq.heappop(events)
            finished += 1
            free[resources[task]] += 1
            touched.append(resources[task])
            for follower in followers[task]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready[resources[follower]], follower)
                    touched.append(resources[follower])
        for resource in dict.fromkeys(touched):
            begin(resource, now)
    if finished < total:
        raise ValueError(f"{total - finished} of {total} tasks can never start: they wait for each other")
    return start, end


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

    Returns
    -------
    ndarray, shape (tasks,). [s]
    """
    total = len(fixed)
    end = np.full(total, np.nan)
    waiting, followers = _dependencies(after)
    ready: dict[Hashable, list[int]] = {resource: [] for resource in resources}
    for task in range(total):
        if not waiting[task]:
            heapq.heappush(ready[resources[task]], task)
    running: dict[Hashable, dict[int, list[float]]] = {resource: {} for resource in ready}
    now, finished = 0.0, 0
    while finished < total:
        for resource, pool in ready.items():
            while pool and len(running[resource]) < slots[resource]:
                task = heapq.heappop(pool)
                running[resource][task] = [fixed[task], shared[task]]
        left = {task: _time_left(parts, tasks) for tasks in running.values() for task, parts in tasks.items()}
        if not left:
            raise ValueError(f"{total - finished} of {total} tasks can never start: they wait for each other")
        step = min(left.values())
        now += step
        for tasks in running.values():
            for task in _advanced(tasks, step):
                end[task], finished = now, finished + 1
                for follower in followers[task]:
                    waiting[follower] -= 1
                    if not waiting[follower]:
                        heapq.heappush(ready[resources[follower]], follower)
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
