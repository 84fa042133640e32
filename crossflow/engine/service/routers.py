"""Which engine of a pool a request goes to.

References
----------
.. [1] Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001.
.. [2] SGLang, sgl-router, policy cache_aware: the engine that has most of a prompt, or the one with the smallest cache, unless loads
   differ too much.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from crossflow.engine.service.replica import Replica
from crossflow.engine.service.ticket import Ticket
from crossflow.workload.requests.record import RequestTrace

Router = Callable[[Sequence[Replica], Ticket], int]
SKEW = 1.5  # times the load of the emptiest engine beyond which a prefix no longer decides [2]


class _RoutedTrace(NamedTuple):
    trace: RequestTrace
    engines: int  # of the pool
    rng: np.random.Generator


def router(name: str, trace: RequestTrace, count: int, rng: np.random.Generator) -> Router:
    """The router of `count` engines that has a name in `ROUTERS`."""
    return ROUTERS[name](_RoutedTrace(trace, count, rng))


def _emptiest(replicas: Sequence[Replica], among: Iterable[int]) -> int:
    return min(among, key=lambda i: (replicas[i].load, i))


def _round_robin(asked: _RoutedTrace) -> Router:
    turn = itertools.cycle(range(asked.engines))
    return lambda _, __: next(turn)


def _least_loaded(asked: _RoutedTrace) -> Router:
    """The engine with the fewest requests."""
    return lambda replicas, _: _emptiest(replicas, range(asked.engines))


def _two_choices(asked: _RoutedTrace) -> Router:
    """Of two engines, drawn at random, the one with fewer requests [1]_."""
    drawn = asked.rng.integers(0, asked.engines, (len(asked.trace), 2)).tolist()
    return lambda replicas, ticket: _emptiest(replicas, drawn[ticket.index])


def _prefix(_: _RoutedTrace) -> Router:
    """The engine that has most of a prompt, of those that are not much fuller than the emptiest [2]_."""

    def route(replicas: Sequence[Replica], ticket: Ticket) -> int:
        allowed = SKEW * (min(replica.load for replica in replicas) + 1)
        rows = [(-replica.cache.found(ticket.hashes)[0], replica.load, len(replica.cache), i)
                for i, replica in enumerate(replicas) if replica.load <= allowed]  # fmt: skip
        return min(rows)[-1]

    return route


def _length(asked: _RoutedTrace) -> Router:
    """By the length of prompts, such that all engines read as many tokens: short prompts do not wait behind long ones."""
    rising = np.sort(asked.trace.prompt)
    share = np.cumsum(rising) / rising.sum()
    bounds = [rising[np.searchsorted(share, (i + 1) / asked.engines)] for i in range(asked.engines - 1)]
    return lambda _, ticket: int(np.searchsorted(bounds, ticket.prompt, side="left"))


def _class(asked: _RoutedTrace) -> Router:
    """Each class has engines of its own, as far as there are so many; of these the one with the fewest requests."""
    kinds, many, count = asked.trace.kind.tolist(), len(asked.trace.classes), asked.engines
    own = [[i for i in range(count) if (i % many == kind if count >= many else kind % count == i)] for kind in range(many)]
    return lambda replicas, ticket: _emptiest(replicas, own[kinds[ticket.index]])


ROUTERS: Mapping[str, Callable[[_RoutedTrace], Router]] = {
    "round_robin": _round_robin, "least_loaded": _least_loaded, "two_choices": _two_choices, "prefix": _prefix, "length": _length,
    "class": _class,
}  # fmt: skip
