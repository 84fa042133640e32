"""An order in which everything comes after what it waits for."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence


def in_order(edges: Sequence[Collection[int]]) -> Iterator[int]:
    """Tasks after all that they wait for, the earliest first; those in a circle are left out."""
    followers: list[list[int]] = [[] for _ in edges]
    for task, before in enumerate(edges):
        for earlier in before:
            followers[earlier].append(task)
    waiting = [len(before) for before in edges]
    ready = [task for task, count in enumerate(waiting) if not count]
    while ready:
        task = heapq.heappop(ready)
        yield task
        for follower in followers[task]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
