"""Queues in which requests wait for an engine: in the order in which they came, by priority, by what the cache has, by answers.

References
----------
.. [1] vLLM, vllm/v1/core/sched/request_queue.py: with `--scheduling-policy priority` the queue is a heap by priority, then by arrival;
   a request that is preempted goes back to its place in it.
.. [2] SGLang, python/sglang/srt/managers/schedule_policy.py, `_compute_prefix_matches`, `_determine_active_policy` and
   `_sort_by_longest_prefix`, `_sort_by_longest_output`: `--schedule-policy lpm` and `lof` sort the list of those that wait before each
   batch of prompts, so that equal ones stay in the order of the last sorting.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from crossflow.engine.service.cache import PrefixCache
from crossflow.engine.service.runs import length
from crossflow.engine.service.ticket import Ticket
from crossflow.hardware.architecture.software import QueueOrder

# Requests beyond which those that wait are not sorted by prefixes; tokens up to which a prefix counts as none in the cache, and from which
# on as one that another brings [2]_.
MOST_SORTED, BRIEF = 128, 32


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


class PrefixQueue(ArrivalQueue):
    """Requests of whose prompts the cache has most before others; those wait whose beginning another will bring [2]_.

    What another brings is known in whole blocks, and blocks of a request are in the cache from its admission on, where SGLang has them when
    its prompt is read. So of two alike that are admitted to one step the second finds what it reads twice.
    """

    def arrange(self, cache: PrefixCache, block: int) -> None:
        """Sort those that wait, unless they are too many to look each of them up."""
        if not 1 < len(self) <= MOST_SORTED:
            return
        coming: set[int] = set()  # runs of blocks that those bring which are not put off
        keys: list[float] = []
        for ticket in self:
            blocks, far = cache.found(ticket.chain)
            here = far[0][0] if far else blocks
            keys.append(-min(blocks * block, ticket.need - 1))
            if here * block <= BRIEF:
                runs = cache.parts(ticket.chain)
                brought = length(tuple(itertools.takewhile(lambda run: run[0] in coming, runs)))
                if brought * block >= BRIEF:
                    keys[-1] = math.inf
                else:
                    coming.update(begin for begin, _ in runs)
        _sort(self, keys)


class OutputQueue(ArrivalQueue):
    """Requests of the longest answers before others [2]_; an engine knows them as far as requests say how long they may be."""

    def arrange(self, cache: PrefixCache, block: int) -> None:  # noqa: ARG002 # as all queues take them
        """Sort those that wait."""
        _sort(self, [-ticket.output for ticket in self])


def _sort(queue: deque[Ticket], keys: Sequence[float]) -> None:
    """Put a queue in order of these keys of its requests; equal ones stay as they are."""
    if any(one > next_one for one, next_one in itertools.pairwise(keys)):
        tickets = list(queue)
        queue.clear()
        queue.extend(tickets[i] for i in sorted(range(len(keys)), key=keys.__getitem__))


QUEUES: Mapping[QueueOrder, Callable[[], ArrivalQueue | PriorityQueue]] = {
    "arrival": ArrivalQueue, "priority": PriorityQueue, "prefix": PrefixQueue, "output": OutputQueue,
}  # fmt: skip
