"""Engines behind a router, and pools of readers and writers with the keys and values that travel between them.

References
----------
.. [1] Zhong et al., "DistServe: Disaggregating Prefill and Decoding", OSDI 2024.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.base.arrays import Index
from crossflow.engine.service.encoders import Encoders, EncoderTimes
from crossflow.engine.service.loads import PoolLoads
from crossflow.engine.service.lockstep import Lockstep
from crossflow.engine.service.replayed import EncoderSpans, EngineSpans, ServiceReplay, replayed
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.routers import Router
from crossflow.engine.service.runs import TraceRuns
from crossflow.engine.service.standing import Failures, Scaling, Standing
from crossflow.engine.service.tally import KindTally, Tally
from crossflow.engine.service.ticket import DROPPED, NEVER, Ticket
from crossflow.engine.service.transfers import Transfers, Wire
from crossflow.workload.requests.record import RequestTrace

PIECE = 50_000  # requests that are taken out of arrays at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class EnginePool:
    """Engines that share their requests."""

    replicas: tuple[Replica, ...]
    route: Router
    coupled: int = 0  # engines, the first, that make every step together. [1]
    each: int = 0  # of these, so many together, one group after the other; all of them where 0. [1]
    received: tuple[float, ...] = ()  # time that a token takes over the links of each engine that receives it; none where absent. [s]
    scaling: Scaling | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Readers:
    """A pool that reads prompts, whose keys and values then travel to those that write [1]_."""

    pool: EnginePool
    fixed: float = 0.0  # time that sending takes whatever the length. [s]
    each: float = 0.0  # and for each token over the links of a sender. [s]


class _Side:
    """A pool in a run."""

    def __init__(self, pool: EnginePool, first: int) -> None:
        self.pool, self.first = pool, first  # number of its first engine among all
        self.loads = PoolLoads(len(pool.replicas))
        for i, replica in enumerate(pool.replicas):
            replica.loads, replica.seat = self.loads, i
        self.standing = Standing(pool.replicas, pool.scaling)
        self.held: deque[tuple[Ticket, int]] = deque()  # requests that no engine could be given, and engines that have read them or -1

    def route(self, ticket: Ticket) -> int:
        """The engine for a request, where any is up: one that can hold it, if there is any."""
        up, replicas = self.standing.up, self.pool.replicas
        i = self.pool.route(replicas, ticket, up) if len(up) > 1 else up[0]
        if replicas[i].holds(ticket):
            return i
        able = [one for one in up if replicas[one].holds(ticket)]
        return self.pool.route(replicas, ticket, able) if len(able) > 1 else able[0] if able else i


class _TraceRun:
    """A run of a trace through pools: the events that are to come, in order of time."""

    def __init__(
        self, trace: RequestTrace, writers: EnginePool, readers: Readers | None, failures: Failures | None,
        encoders: EncoderTimes | None = None, tally: Tally | None = None,
    ) -> None:  # fmt: skip
        self.trace, self.readers, self.failures, self.tally = trace, readers, failures, tally
        self.encoders = None if encoders is None else Encoders(encoders)
        pools = [writers] if readers is None else [readers.pool, writers]
        self.first = 0 if readers is None else len(readers.pool.replicas)  # of the writers among all
        self.sides = [_Side(pool, self.first if pool is writers else 0) for pool in pools]
        self.replicas = [replica for pool in pools for replica in pool.replicas]
        # What ends jumps: every engine, or all that write at once.
        self.actors: list[Replica | Lockstep] = [*self.replicas]
        self.places = list(range(len(self.replicas)))  # of each engine, the first that makes every step with it
        for side in self.sides:
            coupled, each = side.pool.coupled, side.pool.each or side.pool.coupled
            for begin in range(0, coupled, max(each, 1)):
                place, members = side.first + begin, side.pool.replicas[begin : begin + each]
                self.actors[place : place + len(members)] = [Lockstep(members)] * len(members)
                self.places[place : place + len(members)] = [place] * len(members)
        self.ends: list[tuple[float, int]] = []  # of jumps, with the engine
        self.later: list[tuple[float, int, Ticket | None]] = []  # arrivals that events bring: with the request, or keys and values
        self.changes: list[tuple[float, int, Callable[[float], None]]] = []  # of which engines are up
        self.turns = itertools.count()  # of changes at the same time
        self.sent = Transfers([] if readers is None else [readers.each] * self.first, writers.received or [0.0] * len(writers.replicas))
        # Engines whose steps send between nodes, over the ports that keys and values take, with the ends of these. [1]
        wires: list[Wire] = [(0, i) if i < self.first else (1, i - self.first) for i in range(len(self.replicas))]
        self.senders = {} if readers is None else {i: wires[i] for i, one in enumerate(self.replicas) if one.table.sends}
        self.followers: dict[int, list[int]] = {}
        for i in np.flatnonzero(trace.follows >= 0).tolist():
            self.followers.setdefault(int(trace.follows[i]), []).append(i)
        heirs = np.flatnonzero(trace.continues)[::-1]
        follow = dict(zip(trace.follows[heirs].tolist(), heirs.tolist(), strict=True))  # first that goes on from each
        whole = (trace.prompt + trace.output - 1) // max(trace.block, 1)
        self.runs = None if trace.blocks is None else TraceRuns(trace.blocks, trace.prompt // max(trace.block, 1), whole, follow)
        self.priorities = [one.priority for one in trace.classes]
        self.asked: dict[int, tuple[int, int, int]] = {}  # of requests that arrive next
        self.tickets: dict[int, Ticket] = {}
        self.where: dict[int, int] = {}
        self.queues = [0] * len(self.replicas)  # requests that wait at each engine, or at all that make every step with it. [1]
        self.waiting = self.peak_queue = 0  # requests that wait at all of them, now and at most. [1]

    @property
    def spans(self) -> dict[str, Any]:
        """Fields of `EngineSpans` as far as the run has come."""
        standing = [side.standing for side in self.sides]
        paid, broken = (tuple(spans for one in standing for spans in getattr(one, name)) for name in ("paid", "broken"))
        return {
            "paid": paid,
            "broken": broken,
            "lost": sum(each.lost for each in self.replicas),
            "loads": sum(each.adapters.loads for each in self.replicas if each.adapters is not None),
            "peak_queue": self.peak_queue,
            "images": None if self.encoders is None else EncoderSpans(tuple(self.encoders.requests), self.encoders.waited),
        }

    # ---------------------------------------------------------------------------------------- events

    def run(self) -> None:
        """All events, in order of time; of equal times arrivals come first."""
        feed = self._feed()
        now, index = next(feed)
        self._plan_changes(now)
        ends, later, actors, changes, sent = self.ends, self.later, self.actors, self.changes, self.sent
        while True:
            while ends:
                end, first = ends[0]
                if actors[first].ends == end:
                    break
                heapq.heappop(ends)  # of a jump that was shortened
            else:
                end = NEVER
            there = sent.ends
            if not later and not changes and there == NEVER:  # as nearly always
                if end < now:
                    self._commit(first)
                elif now < NEVER:
                    self._arrive(index, now)
                    now, index = next(feed)
                else:
                    return
                continue
            soon, change = later[0][0] if later else NEVER, changes[0][0] if changes else NEVER
            if now <= soon and now <= end and now <= change and now <= there and now < NEVER:
                self._arrive(index, now)
                now, index = next(feed)
            elif soon <= end and soon <= change and soon <= there and soon < NEVER:
                when, mine, ticket = heapq.heappop(later)
                self._arrive(mine, when) if ticket is None else self._receive(ticket, when)
            elif there <= end and there <= change and there < NEVER:
                self._travelled(sent.end(), there)
                self._share_ports(there)
            elif change <= end and (end < NEVER or min(now, soon, there) < NEVER or any(side.held for side in self.sides)):
                when, _, act = heapq.heappop(changes)
                act(when)
            elif end < NEVER:
                self._commit(first)
            else:
                return

    def _feed(self) -> Iterator[tuple[float, int]]:
        """Times of requests that follow no other, with their indices; as plain numbers a piece at a time, for they take much room."""
        first = np.flatnonzero(self.trace.follows < 0)
        for begin in range(0, len(first), PIECE):
            some = first[begin : begin + PIECE]
            self.asked.update(zip(some.tolist(), self._asked_of(some), strict=True))
            yield from zip(self.trace.arrival[some].tolist(), some.tolist(), strict=True)
            for replica in self.replicas:
                replica.trail.pack()
        while True:
            yield NEVER, -1

    def _asked_of(self, some: Index | slice) -> list[tuple[int, int, int]]:
        """Tokens of prompt and answer of some requests, and the numbers of their classes, as plain numbers."""
        trace = self.trace
        return list(zip(trace.prompt[some].tolist(), trace.output[some].tolist(), trace.kind[some].tolist(), strict=True))

    def _arrive(self, index: int, now: float) -> None:
        """A request comes to the first pool, after its images have been to the encoders."""
        arrival = now
        if self.encoders is not None:
            known = self.encoders.arrivals
            if index not in known and (there := self.encoders.take(index, now)) > now:
                known[index] = now
                heapq.heappush(self.later, (there, index, None))
                return
            arrival = known.pop(index, now)
        prompt, output, kind = self.asked.pop(index) if index in self.asked else self._asked_of(slice(index, index + 1))[0]
        ticket = Ticket(index, arrival, prompt, output, self.priorities[kind])
        if self.runs is not None:
            (ticket.chain, ticket.blocks), ticket.answer = self.runs.prompt(index), self.runs.answer(index)
        self.tickets[index] = ticket
        self._submit(self.sides[0], ticket, now)

    def _submit(self, side: _Side, ticket: Ticket, now: float) -> None:
        """Give a request to the engine that the router names; it waits where none is up."""
        if side.standing.up:
            self._give(side, side.route(ticket), ticket, now)
        else:
            side.held.append((ticket, -1))
            self._see_peak()

    def _give(self, side: _Side, i: int, ticket: Ticket, now: float) -> None:
        """Give a request to an engine of a pool."""
        pool = side.pool
        place = self.places[side.first + i]
        actor = self.actors[place]
        self.where[ticket.index] = i
        before = actor.ends
        taken = actor.submit(ticket, now) if isinstance(actor, Replica) else actor.submit(pool.replicas[i], ticket, now)
        ends = actor.ends
        if ends != now:  # else it may begin at once, and does not wait
            self._see_queue(place)
        if not taken:
            self._follow(ticket, now)
        elif ends != before:
            heapq.heappush(self.ends, (ends, place))

    def _commit(self, i: int) -> None:
        """The next jump ends of those that run, which is of this engine, or of all that go with it."""
        actor = self.actors[i]
        now = actor.ends
        done = actor.commit()
        if actor.queued != self.queues[i]:
            self._see_queue(i)
        ends = actor.ends
        if ends < NEVER:
            heapq.heapreplace(self.ends, (ends, i))
        else:
            heapq.heappop(self.ends)
        if done:
            self._ended(i, done, now)
        if self.senders and self.sent.paths:
            self._take_ports(now)

    def _see_queue(self, i: int) -> None:
        """Count anew who waits at an engine whose queue may have changed; the sum over all is largest behind an arrival or an eviction."""
        waiting = self.actors[i].queued
        more = waiting - self.queues[i]
        if more:
            self.queues[i] = waiting
            self.waiting += more
            if more > 0:
                self._see_peak()

    def _see_peak(self) -> None:
        waiting = self.waiting
        for side in self.sides:
            waiting += len(side.held)
        if waiting > self.peak_queue:
            self.peak_queue = waiting

    def _ended(self, i: int, done: list[Ticket], now: float) -> None:
        """Requests have ended at an engine."""
        for ticket in done:
            if i < self.first and ticket.output > ticket.wrote:
                self._read(ticket, self.where[ticket.index], now)
            else:
                self._follow(ticket, now)
        side = self.sides[-1 if i >= self.first else 0]
        if side.pool.scaling is not None:
            side.standing.rest(i - side.first, now)

    # ---------------------------------------------------------------------------------------- keys and values

    def _read(self, ticket: Ticket, reader: int, now: float) -> None:
        """A prompt is read; its keys and values go to an engine that writes, and the first token comes with them."""
        sent = Ticket(ticket.index, ticket.arrival, ticket.prompt, ticket.output, priority=ticket.priority)
        sent.begun, sent.hits, sent.wrote = ticket.begun, ticket.hits, ticket.wrote
        sent.evicted, sent.moved = 0, ticket.moved
        self.tickets[ticket.index] = sent
        self._send(sent, reader, now)

    def _send(self, ticket: Ticket, reader: int, now: float) -> None:
        """Keys and values begin to travel to the engine that the router names; they wait where none is up."""
        side = self.sides[1]
        if not side.standing.up:
            side.held.append((ticket, reader))
            self._see_peak()
            return
        i = side.route(ticket)
        self.where[ticket.index] = i
        side.loads.change(i, 1)
        self.sent.begin(ticket.index, reader, i, float(ticket.prompt), now)
        self._share_ports(now)

    def _share_ports(self, now: float) -> None:
        """Hand-overs have begun or ended: steps that send over the same ports have other shares of them."""
        if not self.senders:
            return
        for i, wire in self.senders.items():
            share, replica, actor = self.sent.left_for_steps(wire), self.replicas[i], self.actors[i]
            if share == replica.port:
                continue
            actor.interrupt(now)
            before, replica.port = actor.pace, share
            if before:
                actor.stretch(now, actor.pace / before)
            if actor.ends < NEVER:
                heapq.heappush(self.ends, (actor.ends, self.places[i]))
        self._take_ports(now)

    def _take_ports(self, now: float) -> None:
        """Steps leave hand-overs what they do not take of the ports."""
        found = dict[Wire, float]()
        for i, wire in self.senders.items():
            if self.replicas[i].steps and (pace := self.actors[i].pace):
                found[wire] = self.replicas[i].sent / pace
        self.sent.take(found, now)

    def _travelled(self, index: int, now: float) -> None:
        """The last bytes of a prompt's keys and values are on their way."""
        assert self.readers is not None
        heapq.heappush(self.later, (now + self.readers.fixed, index, self.tickets[index]))

    def _receive(self, ticket: Ticket, now: float) -> None:
        """Keys and values arrive, and with them the first token, which the engine sends once there is a place; all is lost where it has
        failed by now.
        """
        side, i = self.sides[1], self.where[ticket.index]
        side.loads.change(i, -1)
        ticket.first = now
        if side.standing.engines[i].broken:
            side.pool.replicas[i].lost += ticket.prompt - ticket.hits
            ticket.moved, ticket.evicted, ticket.stopped = ticket.moved + 1, 1, now
            ticket.need = ticket.prompt + ticket.wrote
            self._submit(side, ticket, now)
        else:
            self._give(side, i, ticket, now)

    # ---------------------------------------------------------------------------------------- engines that come and go

    def _plan_changes(self, now: float) -> None:
        """First failures, and the first looks at the signals of scaling."""
        for side in self.sides:
            if side.pool.scaling is not None:
                self._later(now + side.pool.scaling.interval, functools.partial(self._look, side))
            for i in range(len(side.pool.replicas) if self.failures is not None else 0):
                assert self.failures is not None
                draw = self.failures.draws(side.first + i)
                self._later(now + draw(), functools.partial(self._fail, side, i, draw))

    def _later(self, when: float, act: Callable[[float], None]) -> None:
        """Let a change happen."""
        heapq.heappush(self.changes, (when, next(self.turns), act))

    def _look(self, side: _Side, now: float) -> None:
        """Start or stop an engine by the signal, and look again later."""
        scaling = side.pool.scaling
        assert scaling is not None
        started = side.standing.look(now, len(side.held))
        if started is not None:
            self._later(now + scaling.start, functools.partial(self._begin, side, started))
        self._later(now + scaling.interval, functools.partial(self._look, side))

    def _begin(self, side: _Side, i: int, now: float) -> None:
        """An engine has started."""
        side.standing.begin(i)
        self._free(side, now)

    def _fail(self, side: _Side, i: int, draw: Callable[[], float], now: float) -> None:
        """An engine fails: its requests go back to the router of its pool."""
        assert self.failures is not None
        back = now + self.failures.repair
        if side.standing.fail(i, now):
            done, left = side.pool.replicas[i].fail(now, keeps=self.failures.keeps_output)
            self._see_queue(side.first + i)
            self._later(back, functools.partial(self._mend, side, i))
            self._ended(side.first + i, done, now)
            for ticket in left:
                self._submit(side, ticket, now)
        self._later(back + draw(), functools.partial(self._fail, side, i, draw))

    def _mend(self, side: _Side, i: int, now: float) -> None:
        """A failed engine serves again."""
        side.standing.mend(i, now)
        self._free(side, now)

    def _free(self, side: _Side, now: float) -> None:
        """Give requests that were held to engines that are up now."""
        held, side.held = side.held, deque()
        for ticket, reader in held:
            self._submit(side, ticket, now) if reader < 0 else self._send(ticket, reader, now)

    def _follow(self, ticket: Ticket, now: float) -> None:
        """Requests that follow one that has ended, or was given up; a tally takes it."""
        if self.tally is not None:
            self.tickets.pop(ticket.index)
            self.where.pop(ticket.index, None)
            if self.tally.take(ticket):
                self.tally.collect(self.replicas)
        for index in self.followers.get(ticket.index, ()):
            when = max(now + float(self.trace.pause[index]), float(self.trace.arrival[index]))
            heapq.heappush(self.later, (when, index, None))


def replay(
    trace: RequestTrace, writers: EnginePool, readers: Readers | None = None, failures: Failures | None = None,
    encoders: EncoderTimes | None = None,
) -> ServiceReplay:  # fmt: skip
    """Every request of a trace through its engines.

    Parameters
    ----------
    trace : the requests.
    writers : engines that write; without readers they read prompts too.
    readers : engines that only read prompts.
    failures : of all of them; engines that make every step together have none.
    encoders : of the images of prompts; none where engines encode them.
    """
    run = _TraceRun(trace, writers, readers, failures, encoders)
    run.run()
    tickets = [run.tickets[i] for i in range(len(trace)) if i in run.tickets]
    dropped = np.array([ticket.place == DROPPED for ticket in tickets], dtype=bool)
    return replayed(
        trace, tickets, dropped, [run.where.get(i, -1) for i in range(len(trace))],
        [replica.trail for replica in run.replicas], sum(each.area for each in run.replicas), run.spans,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Tallied(EngineSpans):
    """A replay of which only running statistics are kept."""

    tally: Tally

    @property
    def window(self) -> tuple[float, float]:
        """First arrival and last token. [s]"""
        return self.tally.begin, self.tally.end


def replay_tallied(
    trace: RequestTrace, writers: EnginePool, readers: Readers | None, failures: Failures | None, kinds: Sequence[KindTally],
    encoders: EncoderTimes | None = None,
) -> Tallied:  # fmt: skip
    """The same requests through the same engines as `replay`, with running statistics of `kinds` of engines, in memory that does not grow
    with the requests but for the trace itself.
    """
    run = _TraceRun(trace, writers, readers, failures, encoders, Tally(trace, kinds))
    run.run()
    assert run.tally is not None
    run.tally.collect(run.replicas)
    return Tallied(tally=run.tally, **run.spans)
