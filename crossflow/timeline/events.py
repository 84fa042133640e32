"""A plain event engine: for what cannot be ordered beforehand, and as the oracle of the longest path."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from crossflow.arrays import Array


def simulate(
    durations: Sequence[float],
    after: Sequence[tuple[int, ...]],
    resources: Sequence[Hashable],
    *,
    slots: int | Mapping[str, int] = 1,
    in_order: bool = True,
) -> tuple[Array, Array]:
    """Run tasks on resources, event by event.

    Parameters
    ----------
    durations : time of every task. [s]
    after : for every task the tasks that it waits for.
    resources : for every task the resource that it occupies.
    slots : tasks that one resource runs at once (the paper's k kernels per device, Sec. 6.5); by kind where resources
        are (place, kind) pairs.
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
    waiting = [len(set(before)) for before in after]
    followers: list[list[int]] = [[] for _ in range(total)]
    for task, before in enumerate(after):
        for earlier in set(before):
            followers[earlier].append(task)
    queues: dict[Hashable, list[int]] = {}
    for task, resource in enumerate(resources):
        queues.setdefault(resource, []).append(task)
    program = {resource: list(reversed(tasks)) for resource, tasks in queues.items()}
    ready: dict[Hashable, list[int]] = {resource: [] for resource in queues}
    free = {resource: slots[resource[1]] if isinstance(slots, Mapping) else slots for resource in queues}  # type: ignore[index]
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
