"""Which engine of a pool a request goes to.

Engines may have different speeds: what they have to do counts over their rate. Where all are alike that is the number of requests.

References
----------
.. [1] Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001.
.. [2] SGLang, sgl-router, policy cache_aware: the engine that has most of a prompt, or the one with the smallest cache, unless loads
   differ too much.
.. [3] NeMo RL, `repeat_interleave` of prompts and `shard_by_batch_size`; OpenRLHF, `RemoteExperienceMaker`: each engine gets the next
   part of a batch, in which the answers of a prompt stand beside each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from crossflow.engine.service.replica import Replica
from crossflow.engine.service.ticket import Ticket
from crossflow.workload.requests.record import RequestTrace

# Of the engines of a pool, a request, and the engines that take requests (in their order, at least one), one of these.
Router = Callable[[Sequence[Replica], Ticket, Sequence[int]], int]
SKEW = 1.5  # times the load of the emptiest engine beyond which a prefix no longer decides [2]


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutedPool:
    """What a router knows before the first request comes."""

    trace: RequestTrace
    rates: tuple[float, ...]  # of engines, over that of the fastest. [1]
    owners: Mapping[str, Sequence[int]] = field(default_factory=dict)  # engines that a class has for itself
    rng: np.random.Generator

    @property
    def engines(self) -> int:
        """Number of engines."""
        return len(self.rates)


def router(
    name: str, trace: RequestTrace, rates: Sequence[float], rng: np.random.Generator, owners: Mapping[str, Sequence[int]] | None = None
) -> Router:
    """The router with a name in `ROUTERS` of engines with such rates; `owners` are those that classes have for themselves."""
    fastest = max(rates)
    return ROUTERS[name](RoutedPool(trace=trace, rates=tuple(rate / fastest for rate in rates), owners=owners or {}, rng=rng))


def _emptiest(replicas: Sequence[Replica], among: Iterable[int], rates: Sequence[float]) -> int:
    """The engine that would be through with one request more first."""
    loads = replicas[0].loads.counts
    return min(among, key=lambda i: ((loads[i] + 1) / rates[i], i))


def _round_robin(_: RoutedPool) -> Router:
    turn = itertools.count()
    return lambda _, __, up: up[next(turn) % len(up)]


def _least_loaded(asked: RoutedPool) -> Router:
    """The engine with the fewest requests for its rate."""
    rates, even = asked.rates, set(asked.rates) == {1.0}

    def route(replicas: Sequence[Replica], _: Ticket, up: Sequence[int]) -> int:
        return replicas[0].loads.fewest() if even and len(up) == len(rates) else _emptiest(replicas, up, rates)

    return route


def _two_choices(asked: RoutedPool) -> Router:
    """Of two engines, drawn at random, the one with fewer requests for its rate [1]_."""
    drawn = asked.rng.random((len(asked.trace), 2))

    def route(replicas: Sequence[Replica], ticket: Ticket, up: Sequence[int]) -> int:
        return _emptiest(replicas, (up[int(share * len(up))] for share in drawn[ticket.index].tolist()), asked.rates)

    return route


def _prefix(asked: RoutedPool) -> Router:
    """The engine that has most of a prompt, of those that are not much fuller than the emptiest [2]_."""
    rates, even = asked.rates, set(asked.rates) == {1.0}

    def route(replicas: Sequence[Replica], ticket: Ticket, up: Sequence[int]) -> int:
        todo, chain = replicas[0].loads.counts, ticket.chain
        loads = todo if even else [load / rate for load, rate in zip(todo, rates, strict=True)]
        allowed = SKEW * (min(loads if len(up) == len(loads) else [loads[i] for i in up]) + 1)
        best, most, least = -1, -1, (0.0, 0)
        for i in up:
            if (load := loads[i]) <= allowed:
                cache = replicas[i].cache
                hits = cache.found(chain)[0] if chain and cache.begins(chain) else 0
                if hits > most or (hits == most and (load, len(cache)) < least):
                    best, most, least = i, hits, (load, len(cache))
        return best

    return route


def _length(asked: RoutedPool) -> Router:
    """By the length of prompts, such that all engines read as many tokens for their rate: short prompts do not wait behind long ones."""
    rising = np.sort(asked.trace.prompt)
    share, parts = np.cumsum(rising) / rising.sum(), np.cumsum(asked.rates) / np.sum(asked.rates)
    bounds = [rising[min(np.searchsorted(share, part), len(rising) - 1)] for part in parts[:-1]]

    def route(_: Sequence[Replica], ticket: Ticket, up: Sequence[int]) -> int:
        wanted = int(np.searchsorted(bounds, ticket.prompt, side="left"))
        return wanted if len(up) == asked.engines else min(up, key=lambda i: abs(i - wanted))

    return route


def _slices(asked: RoutedPool) -> Router:
    """By the place in the trace: as many requests in a row to each engine for its rate, as a batch is cut among engines [3]_."""
    bounds = np.cumsum(asked.rates) / np.sum(asked.rates) * len(asked.trace)

    def route(replicas: Sequence[Replica], ticket: Ticket, up: Sequence[int]) -> int:
        wanted = min(int(np.searchsorted(bounds, ticket.index, side="right")), asked.engines - 1)
        return wanted if wanted in up else _emptiest(replicas, up, asked.rates)

    return route


def _class(asked: RoutedPool) -> Router:
    """Each class has engines of its own: those that it owns, else of the others a share, as far as there are so many; of these the one
    with the fewest requests for its rate.
    """
    kinds, own = asked.trace.kind, _shared_out(asked)

    def route(replicas: Sequence[Replica], ticket: Ticket, up: Sequence[int]) -> int:
        mine = own[kinds[ticket.index]]
        among = mine if len(up) == asked.engines else [i for i in mine if i in up] or up
        return _emptiest(replicas, among, asked.rates)

    return route


def _shared_out(asked: RoutedPool) -> list[Sequence[int]]:
    """Engines of each class."""
    owned = {i for engines in asked.owners.values() for i in engines}
    free = [i for i in range(asked.engines) if i not in owned] or list(range(asked.engines))
    others = [one.name for one in asked.trace.classes if one.name not in asked.owners]
    many, count = len(others), len(free)

    def share(place: int) -> list[int]:
        return [i for turn, i in enumerate(free) if (turn % many == place if count >= many else place % count == turn)]

    shares = {name: share(place) for place, name in enumerate(others)}
    return [asked.owners.get(one.name) or shares[one.name] for one in asked.trace.classes]


ROUTERS: Mapping[str, Callable[[RoutedPool], Router]] = {
    "round_robin": _round_robin, "least_loaded": _least_loaded, "two_choices": _two_choices, "prefix": _prefix, "length": _length,
    "slices": _slices, "class": _class,
}  # fmt: skip
