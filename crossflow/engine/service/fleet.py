"""Several engines behind a router, and pools of readers and writers with the keys and values that travel between them.

References
----------
.. [1] Zhong et al., "DistServe: Disaggregating Prefill and Decoding", OSDI 2024.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from crossflow.engine.service.lockstep import Lockstep
from crossflow.engine.service.replayed import ServiceReplay, replayed
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.routers import Router
from crossflow.engine.service.ticket import DROPPED, NEVER, Ticket
from crossflow.workload.requests.record import RequestTrace


@dataclass(frozen=True, kw_only=True, eq=False)
class EnginePool:
    """Engines that share their requests."""

    replicas: tuple[Replica, ...]
    route: Router
    coupled: bool = False  # whether they make every step together


@dataclass(frozen=True, kw_only=True, eq=False)
class Readers:
    """A pool that reads prompts, whose keys and values then travel to those that write [1]_."""

    pool: EnginePool
    fixed: float = 0.0  # time that sending takes whatever the length. [s]
    each: float = 0.0  # and for each token. [s]


class _TraceRun:
    """A run of a trace through pools: the events that are to come, in order of time."""

    def __init__(self, trace: RequestTrace, writers: EnginePool, readers: Readers | None) -> None:
        self.trace, self.writers, self.readers = trace, writers, readers
        self.pools = [writers] if readers is None else [readers.pool, writers]
        self.replicas = [replica for pool in self.pools for replica in pool.replicas]
        self.first = 0 if readers is None else len(readers.pool.replicas)  # of the writers among all
        self.together = Lockstep(writers.replicas) if writers.coupled else None
        # What ends jumps: every engine, or all that write at once.
        self.actors: list[Replica | Lockstep] = [*self.replicas]
        if self.together is not None:
            self.actors[self.first :] = [self.together]
        self.ends: list[tuple[float, int]] = []  # of jumps, with the engine
        self.later: list[tuple[float, int, Ticket | None]] = []  # arrivals that events bring: with the request, or keys and values
        self.followers: dict[int, list[int]] = {}
        for i, before in enumerate(trace.follows.tolist()):
            if before >= 0:
                self.followers.setdefault(before, []).append(i)
        heirs = np.flatnonzero(trace.continues)[::-1]
        self.heirs: dict[int, int] = dict(zip(trace.follows[heirs].tolist(), heirs.tolist(), strict=True))  # first that goes on from each
        self.prompts: list[int] = trace.prompt.tolist()
        self.outputs: list[int] = trace.output.tolist()
        self.priorities = [trace.classes[kind].priority for kind in trace.kind.tolist()]
        self.tickets: list[Ticket | None] = [None] * len(trace)
        self.where = [-1] * len(trace)

    def run(self) -> None:
        """All events, in order of time; of equal times arrivals come first."""
        arrivals = [(time, i) for i, (time, before) in enumerate(zip(self.trace.arrival.tolist(), self.trace.follows.tolist(), strict=True))
                    if before < 0]  # fmt: skip
        arrivals.append((NEVER, -1))
        turn, ends, later, actors = 0, self.ends, self.later, self.actors
        while True:
            now, index = arrivals[turn]
            soon = later[0][0] if later else NEVER
            while ends and actors[ends[0][1]].ends != ends[0][0]:
                heapq.heappop(ends)  # of a jump that was shortened
            end = ends[0][0] if ends else NEVER
            if now <= soon and now <= end and now < NEVER:
                turn += 1
                self._arrive(index, now)
            elif soon <= end and soon < NEVER:
                when, index, ticket = heapq.heappop(later)
                self._arrive(index, when) if ticket is None else self._submit(self.writers, self.first, ticket, when)
            elif end < NEVER:
                self._commit(heapq.heappop(ends)[1])
            else:
                return

    def _arrive(self, index: int, now: float) -> None:
        """A request comes to the first pool."""
        prompt, blocks, block = self.prompts[index], self.trace.blocks, self.trace.block
        hashes = () if blocks is None else tuple(blocks[index])[: prompt // block]
        ticket = Ticket(index, now, prompt, self.outputs[index], hashes, self.priorities[index])
        if blocks is not None:
            heir = self.heirs.get(index)
            ticket.answer = () if heir is None else tuple(blocks[heir])[len(hashes) : (prompt + ticket.output - 1) // block]
        self.tickets[index] = ticket
        self._submit(self.pools[0], 0, ticket, now)

    def _submit(self, pool: EnginePool, offset: int, ticket: Ticket, now: float) -> None:
        """Give a request to the engine that the router names."""
        i = pool.route(pool.replicas, ticket) if len(pool.replicas) > 1 else 0
        replica, actor = pool.replicas[i], self.actors[offset + (0 if pool.coupled else i)]
        self.where[ticket.index] = i
        before = actor.ends
        taken = actor.submit(replica, ticket, now) if isinstance(actor, Lockstep) else actor.submit(ticket, now)
        if not taken:
            self._follow(ticket, now)
        elif actor.ends != before:
            heapq.heappush(self.ends, (actor.ends, offset + (0 if pool.coupled else i)))

    def _commit(self, i: int) -> None:
        """A jump of an engine ends, or of all that go together."""
        actor = self.actors[i]
        now = actor.ends
        done = actor.commit()
        if actor.ends < NEVER:
            heapq.heappush(self.ends, (actor.ends, i))
        for ticket in done:
            if i < self.first and ticket.output > 1:
                self._send(ticket, now)
            else:
                self._follow(ticket, now)

    def _send(self, ticket: Ticket, now: float) -> None:
        """Keys and values of a prompt travel to the writers; the first token comes with them."""
        assert self.readers is not None
        there = now + self.readers.fixed + self.readers.each * ticket.prompt
        sent = Ticket(ticket.index, ticket.arrival, ticket.prompt, ticket.output, priority=ticket.priority)
        sent.begun, sent.first, sent.hits, sent.evicted, sent.wrote = ticket.begun, there, ticket.hits, 0, 1
        self.tickets[ticket.index] = sent
        heapq.heappush(self.later, (there, ticket.index, sent))

    def _follow(self, ticket: Ticket, now: float) -> None:
        """Requests that follow one that has ended, or was given up."""
        for index in self.followers.get(ticket.index, ()):
            when = max(now + float(self.trace.pause[index]), float(self.trace.arrival[index]))
            heapq.heappush(self.later, (when, index, None))


def replay(trace: RequestTrace, writers: EnginePool, readers: Readers | None = None) -> ServiceReplay:
    """Every request of a trace through its engines.

    Parameters
    ----------
    trace : the requests.
    writers : engines that write; without readers they read prompts too.
    readers : engines that only read prompts.
    """
    run = _TraceRun(trace, writers, readers)
    run.run()
    tickets = [ticket for ticket in run.tickets if ticket is not None]
    dropped = np.array([ticket.place == DROPPED for ticket in tickets], dtype=bool)
    return replayed(
        trace, tickets, dropped, run.where, [replica.trail for replica in run.replicas], sum(each.area for each in run.replicas)
    )
