"""Queues in which requests wait for an engine: in the order in which they came, or by priority.

References
----------
.. [1] vLLM, vllm/v1/core/sched/request_queue.py: with `--scheduling-policy priority` the queue is a heap by priority, then by arrival;
   a request that is preempted goes back to its place in it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from crossflow.engine.service.cache import PrefixCache
from crossflow.engine.service.ticket import Ticket
from crossflow.hardware.architecture.software import QueueOrder


def turn(ticket: Ticket) -> tuple[int, float, int]:
    """What requests are sorted by: those of larger priority first, of these the one that came first."""
    return -ticket.priority, ticket.arrival, ticket.index


class ArrivalQueue(deque[Ticket]):
    """Requests in the order in which they came."""

    ranked: ClassVar[bool] = False  # whether one that comes may be before all others, and one of those at work gives way by its turn

    def arrange(self, cache: PrefixCache, block: int) -> None:
        """Put requests in order for a schedule, by what lies in the cache, of whose blocks each has so many tokens; here as they are."""


class PriorityQueue:
    """A heap of requests by their turn [1]_, with the methods of a deque that an engine calls."""

    __slots__ = ("heap",)

    ranked: ClassVar[bool] = True

    def __init__(self) -> None:
        self.heap: list[tuple[tuple[int, float, int], Ticket]] = []

    def __len__(self) -> int:
        return len(self.heap)

    def __getitem__(self, place: int) -> Ticket:
        """The request at a place, of which only that of the first, 0, is in order."""
        return self.heap[place][1]

    def __iter__(self) -> Iterator[Ticket]:
        """All requests, in no order."""
        return (ticket for _, ticket in self.heap)

    def append(self, ticket: Ticket) -> None:
        """Put a request at its place."""
        heapq.heappush(self.heap, (turn(ticket), ticket))

    appendleft = append  # one that was evicted has its old turn

    def clear(self) -> None:
        """Take all requests out."""
        self.heap.clear()

    def arrange(self, cache: PrefixCache, block: int) -> None:
        """Requests are in order at any time."""

    def popleft(self) -> Ticket:
        """Take out the request whose turn it is."""
        return heapq.heappop(self.heap)[1]


QUEUES: Mapping[QueueOrder, Callable[[], ArrivalQueue | PriorityQueue]] = {"arrival": ArrivalQueue, "priority": PriorityQueue}
