"""One engine by events: its queue, its cache, its steps.

Between two events (an arrival that can be admitted, an end, a full cache) the steps of an engine differ only in their context, and their
times are a straight line in it: all of them are one jump, whose length is an arithmetic series. A step that reads prompts is a jump of
one step. What jumps give is what single steps give, but for rounding.

With speculation a step gives a request several tokens, here the mean number, in whole ones: after r steps floor(r g). All tokens of a step
come at its end; those of the last step beyond the answer are computed and dropped.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

from crossflow.engine.service.adapters import AdapterSlots
from crossflow.engine.service.ahead import Ahead
from crossflow.engine.service.cache import FarBlock, PrefixCache
from crossflow.engine.service.dealing import StepRoom, dealt
from crossflow.engine.service.loads import PoolLoads
from crossflow.engine.service.policies import AFTER, CLIP, FALLS, LEAST_SHARE, SHARE, Policy
from crossflow.engine.service.queues import QUEUES, turn
from crossflow.engine.service.runs import Chain, divided, length
from crossflow.engine.service.steps import StepTable
from crossflow.engine.service.ticket import DROPPED, ENDED, FETCHING, NEVER, READING, WAITING, WRITING, Limits, ReadPiece, Ticket, Trail

TINY = 1e-9  # of a token, of rounding. [1]
ASIDE = -1  # in the place of tokens that a step reads: of a request that waits for blocks of its prompt, or that needs none


class Replica:
    """One engine; `submit` gives it a request, `commit` ends the jump that runs until `ends`.

    Between `plan` and `finish` a jump runs: so many `steps`, the first of which takes `first`, each other `slope` more than the one before.
    """

    __slots__ = (
        "adapters", "ahead", "alone", "along", "area", "cache", "capacity", "chunked", "context", "crowded", "ends", "fetched",
        "fetching", "finishing", "first", "gain", "grows", "in_a_row", "keys", "late", "left", "less", "limits", "link", "load", "loads",
        "longest", "lost", "mean", "missed", "mixed", "most_pages", "one_each", "order", "page", "pages", "phases", "pieces", "policy",
        "port", "ranked", "reading", "reads", "refused", "returned", "room", "rounds", "running", "seat", "seen", "sent", "share",
        "since", "slope", "step", "steps", "surplus", "swapped", "table", "tokens", "trail", "vain", "waiting", "writers", "writes",
        "writing",
    )  # fmt: skip

    def __init__(self, table: StepTable, limits: Limits, policy: Policy, cache: PrefixCache, adapters: AdapterSlots | None = None) -> None:
        self.table, self.limits, self.policy, self.cache, self.adapters = table, limits, policy, cache, adapters
        # What is asked at every step, out of these.
        self.room = policy.room
        self.mixed, self.grows, self.reads, self.writes = policy.mixed, policy.room != "whole", limits.reads, limits.writes
        self.page, self.capacity, self.gain, self.surplus = limits.page, limits.pages, limits.pace, limits.surplus
        self.longest = limits.page * limits.pages  # tokens. [1]
        self.chunked = policy.chunked
        self.waiting = QUEUES[policy.order]()
        self.ranked = self.waiting.ranked
        self.reading: deque[Ticket] = deque()
        self.running: list[tuple[int, Ticket]] = []  # in order of admission, with some that have left
        self.finishing: list[tuple[int, int, Ticket]] = []  # heap: step at which it ends, number of admission
        self.phases = [0] * limits.page  # requests that write, by tokens beyond a full page at step 0
        self.step = 0  # tokens that every request had that always wrote. [1]
        self.rounds = 0  # steps that gave them, where a step gives other numbers than one. [1]
        self.writers = self.order = 0
        self.context = self.left = 0  # tokens that those that write have in the cache, and have still to write. [1]
        self.pages = 0  # that requests have. [1]
        self.refused = False  # whether the head of the queue found no room, which does not change until others leave
        self.crowded = False  # whether one was evicted for the jump that runs, so that nobody is admitted to its step
        self.share = SHARE
        self.since, self.ends = 0.0, NEVER  # of the jump that runs. [s]
        self.pieces: Sequence[ReadPiece] = ()
        self.steps = self.writing = 0  # of the jump that runs
        self.first = self.slope = self.mean = self.keys = 0.0
        self.tokens = 0
        # Whether those that write have their tokens at the ends of steps that follow each other: no step is of prompts alone, and none
        # waits for an engine after its first token.
        self.in_a_row = policy.mixed and limits.reads
        self.missed: list[tuple[int, float]] = []  # requests that write, and when they had their last tokens
        self.loads, self.seat = PoolLoads(1), 0  # of all engines of a pool, and the place of this one among them
        self.load = 0  # requests that are here
        self.lost = 0  # tokens that were computed, and that failures lost. [1]
        self.area, self.seen = 0.0, 0.0  # integral of `load` over time until `seen`. [s]
        self.trail = Trail()
        self.one_each = limits.pace == 1.0  # whether a step gives each request one token
        self.most_pages = -(-(limits.surplus + 1) // limits.page)  # that the tokens of a step for one request take at most. [1]
        # Times of loads for which the next step waits before it begins, and of those that go along with it. [s]
        self.fetched = self.along = 0.0
        self.fetching: list[tuple[float, int, Ticket]] = []  # heap of requests that wait aside: until when, number of admission
        self.swapped = 0  # tokens whose keys and values lie on the host. [1]
        self.returned: list[
            float
        ] = []  # of requests that came back from there for the jump that runs, when they had their last tokens. [s]
        self.link = 0.0  # until when loads of those keep the link to further tiers busy. [s]
        self.ahead = Ahead() if limits.ahead else None
        self.port = 1.0  # share of the port between nodes that steps have while they send, beside keys and values that are handed over. [1]
        # Of the steps that run: for how long each keeps that port busy, its time with the whole port, and what the last takes longer as
        # hand-overs began or ended since it began. [s]
        self.sent = self.alone = self.late = 0.0
        self.vain = 0  # requests that the first step of the jump that runs computes in vain
        self.less = 0.0  # time that the step which runs takes less where no other engine reads in it. [s]

    # ---------------------------------------------------------------------------------------- from outside

    @property
    def to_do(self) -> int:
        """Requests that are here, and those on their way. [1]"""
        return self.loads.counts[self.seat]

    @property
    def queued(self) -> int:
        """Requests that wait. [1]"""
        return len(self.waiting) + (0 if self.ahead is None else len(self.ahead.coming))

    def holds(self, ticket: Ticket) -> bool:
        """Whether a request can ever be served here."""
        last = ticket.prompt + (ticket.output - 1 + self.surplus if self.writes else 0)
        return last <= self.longest and (self.chunked or not self.reads or ticket.prompt <= self.limits.chunk)

    def submit(self, ticket: Ticket, now: float) -> bool:
        """Take a request in; False where it can never be served here."""
        if not self.holds(ticket):
            ticket.place = DROPPED
            return False
        next_in_turn = self.take(ticket, now)
        if not self.steps:
            if now < self.ends:
                self.ends = now  # of no steps: others that come at the same time begin with it
        elif next_in_turn:
            self.interrupt(now)
        return True

    def take(self, ticket: Ticket, now: float, *, runs: bool = False) -> bool:
        """Put a request into the queue; whether the next step may admit it. `runs`: whether others with whom it makes all steps run."""
        self._count(1, now)
        if self.ahead is None or not (self.steps or runs):
            return self._queue(ticket)
        first = not self.ahead.coming
        self.ahead.coming.append((now, ticket))
        return first and self._open()

    def _open(self) -> bool:
        """Whether one that comes now may be next, of those that the schedule will know."""
        return (
            self.ranked or (not self.refused and not self.waiting and self._at_work() < self.limits.requests) or self.adapters is not None
        )

    def _queue(self, ticket: Ticket) -> bool:
        """Put a request that the schedule knows into the queue; whether the next step may admit it."""
        free = not self.refused and (not self.waiting or self.adapters is not None) and self._at_work() < self.limits.requests
        self.waiting.append(ticket)
        if self.ranked and self.waiting[0] is ticket:  # for which there may be room where the one behind it found none
            self.refused = False
            return self._at_work() < self.limits.requests
        return free

    def commit(self) -> list[Ticket]:
        """End the jump that runs, and begin the next; requests that have ended."""
        now = self.ends
        done = self.finish(now)
        self.plan(now)
        return done

    def finish(self, now: float) -> list[Ticket]:
        """End the jump that runs; requests that have ended."""
        done: list[Ticket] = []
        if self.ahead is not None and self.ahead.ended:
            self._let_go(self.ahead)
        if self.writing:
            self._write(now, done)
        elif self.steps:
            self._record(now, 0)
        for ticket, piece in self.pieces:
            ticket.read += piece
            if ticket.read >= ticket.need:
                self._read(ticket, now, done)
        return done

    # ---------------------------------------------------------------------------------------- failures

    def fail(self, now: float, *, keeps: bool) -> tuple[list[Ticket], list[Ticket]]:
        """Lose the cache and the step that runs; requests that had ended before it, and those that must go elsewhere.

        keeps : whether tokens that were written are kept.
        """
        done, ended = self._break_off(now)
        late = list[Ticket]()
        if self.ahead is not None:
            self._let_go(self.ahead)
            late = self.ahead.clear()
        left = [*self._writing(), *self.reading, *(ticket for _, _, ticket in self.fetching), *self.waiting, *late]
        for ticket in left:
            self._expel(ticket, now, ended, keeps=keeps)
        self._clear()
        return done, sorted(left, key=lambda ticket: ticket.index)

    def _break_off(self, now: float) -> tuple[list[Ticket], float]:
        """End the jump with the last of its steps that has ended; requests that have ended with that, and its time. [s]"""
        whole = 0
        while whole < self.steps and self.since + self.lasts(whole + 1) <= now:
            whole += 1
        if not whole:
            return [], self.since if self.steps else now
        self.steps, ended = whole, self.since + self.lasts(whole)
        return self.finish(ended), ended

    def _writing(self) -> list[Ticket]:
        return [ticket for _, order, ticket in self.finishing if ticket.place == WRITING and ticket.order == order]

    def _expel(self, ticket: Ticket, now: float, ended: float, *, keeps: bool) -> None:
        """Take a request out, and let it begin anew with what is kept of it; the last step has `ended` then. [s]"""
        begun, computed = ticket.place != WAITING, ticket.read
        if ticket.away:  # what the host keeps for an engine is lost with it
            self.swapped -= ticket.away
            self.lost += ticket.away
            ticket.away = 0
        if ticket.place == WRITING:
            more = self.step - ticket.start
            ticket.wrote, computed = ticket.wrote + more, ticket.need + more
            self._stop_writing(ticket)
        arrived = not self.reads and not begun and not ticket.evicted  # with keys and values that lay here
        if begun:
            self._give_back(ticket)
        if begun or arrived:
            self.lost += max((ticket.need if arrived else computed) - ticket.hits, 0)
            ticket.moved, ticket.evicted = ticket.moved + 1, ticket.evicted + 1
        if not keeps and (begun or arrived):
            ticket.wrote, ticket.first, ticket.stopped = 0, -1.0, -1.0
        elif ticket.first >= 0 and ticket.stopped < 0:
            ticket.stopped = ticket.first if arrived else max(ended, ticket.first)
        if ticket.given is not None:
            (ticket.chain, ticket.answer), ticket.given = ticket.given, None
            ticket.blocks = length(ticket.chain)
        ticket.need, ticket.place, ticket.read = ticket.prompt + ticket.wrote, WAITING, 0
        self._count(-1, now)

    def _clear(self) -> None:
        """Be as a new engine, with nothing in the queue and in the cache; what it did stays."""
        self.waiting.clear()
        self.reading.clear()
        self.running.clear()
        self.finishing.clear()
        self.missed.clear()
        self.fetching.clear()
        self.pieces, self.steps, self.writing, self.ends = (), 0, 0, NEVER
        self.fetched = self.along = self.link = 0.0
        self.refused, self.crowded, self.share = False, False, SHARE
        self.forget()

    def forget(self) -> None:
        """Empty the cache of an engine without requests."""
        self.cache = PrefixCache(self.cache.size, self.cache.beyond)
        if self.adapters is not None:
            self.adapters.fill()

    # ---------------------------------------------------------------------------------------- what comes next

    def _at_work(self) -> int:
        return self.writers + len(self.reading) + len(self.fetching) + (0 if self.ahead is None else len(self.ahead.ended))

    def plan(self, now: float, known: float | None = None) -> None:
        """Choose the next jump; `known` as of `last_begun`, of others with whom it makes all steps. [s]"""
        ahead, seen = self.ahead, now
        if ahead is not None and (ahead.ended or ahead.coming or self.fetching):
            seen = self._look(ahead, now, known)
        self.since, self.late, self.crowded = now, 0.0, False
        if not self.reads:
            self._receive(now)
        if self.fetching:
            self._land(seen)
        if self.mixed and self.writers * self.most_pages > self.capacity - self.pages:
            self._make_room(now)
        pieces = self.pieces = self._pieces(now) if self.reading or (self.waiting and not self.refused and not self.crowded) else ()
        self.writing = self.writers if self.mixed or not pieces else 0
        if ahead is not None:
            self.vain = len(ahead.ended) if self.writing else 0
        if pieces:
            self._one_step(pieces)
        elif self.writers:
            if self.writers * self.most_pages > self.capacity - self.pages:
                self._make_room(now)
            if not self.writers:  # what has ended kept the pages that the last of them lacked
                return self.plan(now, known)
            if self.crowded or (ahead is not None and (ahead.ended or ahead.coming) and self.awaits):
                self._many_steps(1)
            else:
                left = self._next_end() - self.step
                self._many_steps(left if self.one_each and left > 0 else self._rounds_of(left))
            if self.fetching and self.wakes < self.ends and self.steps > 1:
                self.shorten(self.wakes)
        else:
            self.steps, self.ends, self.share = 0, self.wakes, SHARE

    def _look(self, ahead: Ahead, now: float, known: float | None) -> float:
        """Of when is what the schedule of the next jump knows: when the last step of the one before began, or now without any. [s]"""
        idle = not self.writers and not self.reading  # with nothing to compute in vain beside
        if known is None:
            known = self.last_begun if self.steps and not idle else now
        if idle and ahead.ended:
            self._let_go(ahead)
        for ticket in ahead.seen(known) if ahead.coming else ():
            self._queue(ticket)
        return known

    @property
    def last_begun(self) -> float:
        """When the last step of the jump that runs begins. [s]"""
        return self.since + self.lasts(self.steps - 1)

    @property
    def awaits(self) -> bool:
        """Whether the schedule learns of something with the end of a single step: of room, or of a request that may be next."""
        return self.ahead is not None and (len(self.ahead) > 0 or (len(self.ahead.coming) > 0 and self._open()))

    def _rows(self, n: int) -> tuple[int, float]:
        """Requests that a step computes which writes for n and some in vain, and their mean tokens in the cache. [1], [1]"""
        assert self.ahead is not None  # else nothing is in vain
        return n + self.vain, (self.context + self.ahead.context) / (n + self.vain) + self._part

    def _let_go(self, ahead: Ahead) -> None:
        """Free what those keep that have ended."""
        for ticket in ahead.gone():
            self._give_back(ticket)
            self.refused = False

    @property
    def wakes(self) -> float:
        """When the next request has its blocks that waits for some aside. [s]"""
        return self.fetching[0][0] if self.fetching else NEVER

    def _land(self, now: float) -> None:
        """Requests whose blocks have come are read on, as the newest."""
        while self.fetching and self.fetching[0][0] <= now:
            _, _, ticket = heapq.heappop(self.fetching)
            self.order += 1
            ticket.order, ticket.place = self.order, READING
            self.running.append((self.order, ticket))
            self.reading.append(ticket)

    def _one_step(self, pieces: Sequence[ReadPiece]) -> None:
        """A step that reads pieces of prompts."""
        n, tokens, seen = self.writing, 0, 0.0
        for ticket, piece in pieces:
            tokens += piece
            seen += piece * (ticket.read + 0.5 * piece)
        rows, held, keys, table = n, 0.0, seen / tokens, self.table
        if n:
            held = self.mean = self.context / n if self.one_each else self.context / n + self._part
            if self.vain:
                rows, held = self._rows(n)
        else:
            self.mean = 0.0
        self.keys, self.tokens = keys, tokens
        more = table.more(rows, tokens, keys) if self.limits.microbatches == 1 else self._reading_more(rows)
        kernels = table.line(rows, held, alone=False)[0] + more
        first = self._waited(rows, kernels)
        if table.shares:
            self.less = first - self._waited(rows, kernels - table.less(rows, tokens, keys))
        self.fetched = self.along = 0.0
        self.first, self.slope, self.steps = first, 0.0, 1
        if table.sends:
            self._share_port(rows)
        self.ends = self.since + self.first

    def _waited(self, rows: int, kernels: float) -> float:
        """Time of a step that reads, of so long kernels, with what the host does for it and with the loads for which it waits. [s]"""
        time = self.table.with_host(rows, kernels) if self.table.hosted else kernels
        return max(time, self.along) + self.fetched if self.along or self.fetched else time

    def read_beside(self, tokens: int, ranks: int) -> None:
        """Let the step that reads take the less, the fewer tokens all of so many engines read that make it together: experts, which they
        share out, have the fewer rows.
        """
        shorter = self.less * (1.0 - min((tokens / self.tokens - 1.0) / (ranks - 1.0), 1.0))
        self.first -= shorter
        if self.table.sends:
            self.alone -= shorter

    def _share_port(self, rows: int) -> None:
        """Let a step take longer whose messages have a share of the port between nodes only."""
        self.sent, self.alone = self.table.sent(rows, self.tokens), self.first
        self.first = self.pace

    @property
    def pace(self) -> float:
        """Time of a step with the share of the port that it has now. [s]"""
        return self.alone + self.sent * (1.0 / self.port - 1.0)

    def stretch(self, now: float, longer: float) -> None:
        """Let what is left of the steps that run take so many times as long. [1]"""
        if self.steps and self.ends > now:
            more = (self.ends - now) * (longer - 1.0)
            self.late += more
            self.ends += more

    def interrupt(self, now: float) -> None:
        """Let a jump of several steps end with the one that runs, as those behind it are others."""
        if self.steps > 1 and not self.pieces:
            self.shorten(now)

    def _reading_more(self, n: int) -> float:
        """What a step of several microbatches takes more for reading. [s]

        Tables have steps whose microbatches all read the same. In a round of p stages the microbatch that reads t tokens holds up the
        others at each stage, so that the round takes what it does where all of them read t; those that read less wait for it.
        """
        p = self.limits.microbatches
        pieces = [(tokens, ticket.read) for ticket, tokens in self.pieces]
        return max(self.table.more(n, p * tokens, keys) for tokens, keys in dealt(pieces, self._step_room()))

    def _many_steps(self, steps: int) -> None:
        """So many steps that only write at most: until a page is short, or times leave their straight line."""
        n = rows = self.writing = self.writers
        pace = self.gain
        held = self.mean = self.context / n if self.one_each else self.context / n + self._part
        if self.vain:
            rows, held = self._rows(n)
        first, slope, upto = self.table.line(rows, held)
        if (upto - held) / pace < steps - 1:
            steps = int((upto - held) / pace) + 1
        if self.fetched:
            steps, first, self.fetched = 1, first + self.fetched, 0.0
        if self.grows:
            tokens = steps if self.one_each else self._tokens_of(steps)
            if n * (tokens // self.page + 1) > self.capacity - self.pages:
                steps = self._with_room(steps)
        self.first, self.slope, self.steps, self.keys, self.tokens = first, slope * pace, steps, 0.0, 0
        if self.table.sends:
            self._share_port(rows)
        self.ends = self.since + self.lasts(steps)

    def lasts(self, steps: int) -> float:
        """Time of so many steps of the jump that runs. [s]"""
        found = steps * (self.first + 0.5 * (steps - 1) * self.slope)
        return found + self.late if self.late and steps >= self.steps else found

    def shorten(self, now: float) -> None:
        """Let the jump end with the step that runs now, or the one that is scheduled behind it."""
        elapsed, first, rise = now - self.since, self.first, 0.5 * self.slope
        base = first - rise
        root = base * base + 4.0 * rise * elapsed
        near = 2.0 * elapsed / (base + math.sqrt(max(root, 0.0)))  # of the quadratic's roots the one that is right for any slope
        steps, most = math.ceil(near), self.steps
        steps = 1 if steps < 1 else min(steps, most)
        # As `lasts` has it of fewer steps than the jump has.
        while steps > 1 and (steps - 1) * (first + (steps - 2) * rise) >= elapsed:
            steps -= 1
        while steps < most and steps * (first + (steps - 1) * rise) < elapsed:
            steps += 1
        if self.ahead is not None and elapsed > 0 and steps < most:
            steps += 1  # for the next one is scheduled
        self.steps = steps
        self.ends = self.since + self.lasts(steps)

    def _next_end(self) -> int:
        """Step at which the next of those that write ends; entries of evicted ones are dropped."""
        heap = self.finishing
        last, order, ticket = heap[0]
        while ticket.place != WRITING or ticket.order != order:
            heapq.heappop(heap)
            last, order, ticket = heap[0]
        return last

    # ---------------------------------------------------------------------------------------- tokens of steps

    def _tokens_of(self, steps: int) -> int:
        """Tokens that so many steps give each request that writes: the mean number, in whole ones. [1]"""
        return steps if self.one_each else int((self.rounds + steps) * self.gain + TINY) - self.step

    @property
    def _part(self) -> float:
        """What the mean number has beyond whole tokens by now: with it the times of steps in a row are a straight line. [1]"""
        return 0.0 if self.one_each else self.rounds * self.gain - self.step

    def _rounds_of(self, tokens: int) -> int:
        """The fewest steps that give each request so many tokens. [1]"""
        if self.one_each:
            return max(tokens, 1)
        steps = max(int(tokens / self.gain), 1)
        while self._tokens_of(steps) < tokens:
            steps += 1
        while steps > 1 and self._tokens_of(steps - 1) >= tokens:
            steps -= 1
        return steps

    # ---------------------------------------------------------------------------------------- pages

    def _own(self, ticket: Ticket, tokens: int) -> int:
        """Pages beside its hashed blocks that a request has with so many tokens. [1]"""
        own = -(-tokens // self.page) - ticket.shared
        return own if own > 0 else 0  # what `max` takes twice as long for

    def _growing(self) -> int:
        """Pages that the next step takes. [1]"""
        if not self.grows:
            return 0
        return self.phases[-self.step % self.page] if self.one_each else self._grown(self._tokens_of(1))

    def _taken(self, ahead: int) -> int:
        """Pages that the token after so many others takes. [1]"""
        return self.phases[-(self.step + ahead) % self.page]

    def _grown(self, tokens: int) -> int:
        """Pages that so many tokens of each request that writes take. [1]"""
        phases, page = self.phases, self.page
        upto = -self.step % page + 1
        if tokens == 1:
            return phases[upto - 1]
        rounds, rest = divmod(tokens, page)
        found = sum(phases[upto - rest : upto]) if rest <= upto else sum(phases[:upto]) + sum(phases[upto - rest :])
        return rounds * self.writers + found

    def _with_room(self, steps: int) -> int:
        """How many of the steps have pages for what they write, where these may be too few; the first has them. [1]"""
        free, n, page, tokens = self.capacity - self.pages, self.writers, self.page, self._tokens_of(steps)
        rounds = free // n
        free -= rounds * n
        found = rounds * page
        while found < tokens and self._taken(found) <= free:
            free -= self._taken(found)
            found += 1
        while steps > 1 and self._tokens_of(steps) > found:
            steps = min(steps - 1, max(int(found / self.gain), 1))
        return steps

    def _make_room(self, now: float) -> None:
        """Evict requests until the next step has pages for what it writes, where it may have too few."""
        while self._growing() > self.capacity - self.pages:
            self._evict(self._leaving(), now)

    def _leaving(self) -> Ticket:
        """The request that gives its room up."""
        if self.policy.leaves == "shortest" and self.writers:
            writing = self._writing()
            return min(writing, key=lambda ticket: (ticket.wrote - ticket.start, -ticket.prompt, -ticket.order))
        if self.ranked:
            self._forget_gone()
            return max((each for _, each in self.running), key=turn)
        while True:
            order, ticket = self.running.pop()
            if ticket.order == order and ticket.place in (READING, WRITING):
                return ticket

    def _forget_gone(self) -> None:
        """Keep of the requests in order of admission those that are still here."""
        self.running = [(order, one) for order, one in self.running if one.order == order and one.place in (READING, WRITING)]

    def _evict(self, ticket: Ticket, now: float) -> None:
        """A request gives its room back, and is read anew with all that was written of it."""
        known: Chain = ()
        if ticket.place == WRITING:
            ticket.wrote += self.step - ticket.start
            self._stop_writing(ticket)
            self._swap_out(ticket)
            if not ticket.away and ticket.answer is not None and self.policy.remembers:
                known = self._remember(ticket, ticket.prompt + ticket.wrote - 1)
            if self.missed:
                self.missed[0] = (self.missed[0][0] - 1, self.missed[0][1])
        else:
            self.reading.remove(ticket)
        self._give_back(ticket)
        if known:
            if ticket.given is None:
                ticket.given = ticket.chain, ticket.answer or ()
            ticket.chain, ticket.blocks = ticket.chain + known, ticket.blocks + length(known)
            ticket.answer = divided(ticket.answer or (), length(known))[1]
        ticket.need, ticket.place, ticket.stopped = ticket.prompt + ticket.wrote, WAITING, now if ticket.stopped < 0 else ticket.stopped
        ticket.evicted += 1
        self.crowded = True
        self.waiting.appendleft(ticket) if self.policy.returns == "head" else self.waiting.append(ticket)
        self.refused = False
        if self.room == "share":
            writing = self._writing()
            most = sum(each.output for each in writing)
            done = sum(each.wrote + self.step - each.start for each in writing)
            self.share = min((done + AFTER * len(writing)) / most, 1.0) if most else SHARE

    def _swap_out(self, ticket: Ticket) -> None:
        """Copy the keys and values of a request that is evicted to the host, for which the next step waits, where there is room."""
        swap, tokens = self.limits.swap, ticket.prompt + ticket.wrote - 1
        if swap is not None and self.swapped + tokens <= self.limits.swap_tokens:
            ticket.away = tokens
            self.swapped += tokens
            self.fetched += tokens * swap

    def _swap_in(self, ticket: Ticket, kept: int, now: float) -> int:
        """Let the head of the queue write on with what lies on the host, for which the next step waits, if it has room."""
        tokens, swap = ticket.away, self.limits.swap or 0.0
        own = self._own(ticket, tokens)
        wanted = max(own, -(-(tokens + self._tokens_of(1)) // self.page))
        if self._at_work() >= self.limits.requests or not self._has_room(ticket, ticket.need, wanted, kept):
            self.refused = True
            return 0
        self._enter(ticket, tokens, own, now)
        self.swapped -= tokens
        self.fetched += tokens * swap
        self.returned.append(ticket.stopped)
        ticket.away, ticket.need, ticket.stopped = 0, tokens, -1.0
        self._begin(ticket, self.returned[-1])
        return ASIDE

    def _stop_writing(self, ticket: Ticket) -> None:
        """Take a request out of those that write; `wrote` says how much was."""
        tokens = ticket.prompt + ticket.wrote - 1
        self.phases[(tokens - self.step) % self.page] -= 1
        self.writers -= 1
        self.context -= tokens
        self.left -= ticket.output - ticket.wrote
        if self.grows:
            ticket.pages = self._own(ticket, tokens)

    def _remember(self, ticket: Ticket, tokens: int) -> Chain:
        """Leave the full blocks of what was written to the cache, of a request with so many tokens there."""
        assert ticket.answer is not None  # who asks has looked
        found = self.cache.names(ticket.answer, max(tokens // (self.cache.size * self.page) - ticket.blocks, 0))
        self.cache.keep(found)
        return found

    def _give_back(self, ticket: Ticket) -> None:
        """Free the pages of a request, and the slot of its adapter."""
        if self.adapters is not None:
            self.adapters.free(ticket.index)
        self.pages -= ticket.pages
        if ticket.shared:
            self.pages -= self.cache.free(ticket.chain)
        ticket.pages = ticket.shared = 0

    # ---------------------------------------------------------------------------------------- admission

    def _pieces(self, now: float) -> list[ReadPiece]:
        """What the next step reads: prompts that were begun, then new ones."""
        room, kept, waiting = self._step_room(), self._kept(), self.waiting
        pieces: list[ReadPiece] = []
        if self.reading:
            pieces, room, kept = self._begun(room, kept, now)
        if len(waiting) > 1 and self.reads and not self.refused and not self.crowded:
            waiting.arrange(self.cache, self.cache.size * self.page)
        aside: list[Ticket] = []
        while waiting and not self.refused and not self.crowded and room.most > 0:
            ticket = waiting[0]
            if not (self.reads or ticket.evicted):
                break
            if self.adapters is not None and self._lacks_slot(ticket):
                aside.append(waiting.popleft())
                continue
            piece = self._admit(ticket, room.most, kept, now)
            if not piece:
                break
            if piece == ASIDE:
                kept = self._kept()  # with what one writes that came back from the host
            else:
                pieces.append((ticket, piece))
                room.take(piece)
        for ticket in reversed(aside):
            waiting.appendleft(ticket)
        return pieces

    def _lacks_slot(self, ticket: Ticket) -> bool:
        """Whether a request waits for a slot of its adapter, and lets others pass."""
        return self.adapters is not None and not self.adapters.room(ticket.index)

    def _begun(self, room: StepRoom, kept: int, now: float) -> tuple[list[ReadPiece], StepRoom, int]:
        """Pieces of prompts that were begun, what is left of the step, and pages that it writes into. [1]"""
        pieces: list[ReadPiece] = []
        for ticket in list(self.reading):
            piece = min(ticket.need - ticket.read, room.most)
            if piece <= 0 or ticket.place != READING:
                break
            own = self._own(ticket, ticket.read + piece)
            if self.grows and own - ticket.pages > self.capacity - self.pages - kept:
                self._evict_for(ticket, own, now)
                pieces = [(other, tokens) for other, tokens in pieces if other.place == READING]
                room, kept = self._step_room(), self._kept()
                for _, tokens in pieces:
                    room.take(tokens)
                if ticket.place != READING:
                    break
            self._grow(ticket, max(own, ticket.pages))
            pieces.append((ticket, piece))
            room.take(piece)
        return pieces, room, kept

    def _step_room(self) -> StepRoom:
        """Tokens that the microbatches of a step have left beside what they write. [1]"""
        limits = self.limits
        return StepRoom(limits.chunk, limits.microbatches, self.writers if self.mixed else 0, limits.written)

    def _kept(self) -> int:
        """Pages that a step that reads writes into. [1]"""
        return self._growing() if self.mixed else 0

    def _evict_for(self, ticket: Ticket, own: int, now: float) -> None:
        """Evict requests until one that is read has so many pages, or gives way: as the newest does where there are no priorities."""
        while ticket.place == READING and own - ticket.pages > self.capacity - self.pages - self._kept():
            self._evict(self._leaving() if self.ranked and self.policy.leaves == "newest" else ticket, now)

    def _grow(self, ticket: Ticket, pages: int) -> None:
        """Let a request have so many pages."""
        self.pages += pages - ticket.pages
        ticket.pages = pages
        if self.cache.idle:
            self.cache.shrink(self.capacity - self.pages)

    def _admit(self, ticket: Ticket, budget: int, kept: int, now: float) -> int:
        """Admit the head of the queue if it has room; tokens of its prompt that the step reads, or `ASIDE`. [1]"""
        if ticket.away:
            return self._swap_in(ticket, kept, now)
        chain, away, hits = ticket.chain, 0.0, 0
        if chain:
            blocks, far = self.cache.found(chain)
            if far:
                blocks, away = self._worth(blocks, far)
            hits = min(blocks * self.cache.size * self.page, ticket.need - 1)
            ticket.shared = ticket.blocks * self.cache.size
        piece = rest = ticket.need - hits
        if rest > budget:
            piece = budget
            if not self.chunked and not (ticket.evicted and budget == self.limits.chunk):
                ticket.shared = 0
                return 0
        at_end = hits + piece if self.grows else ticket.prompt + ticket.output - 1 if self.writes else ticket.need
        own = self._own(ticket, at_end)
        wanted = self._own(ticket, ticket.need) if self.room == "prompt" else own
        if chain:
            wanted += self.cache.pages(chain)
        if self._at_work() >= self.limits.requests or not self._has_room(ticket, hits, wanted, kept):
            ticket.shared, self.refused = 0, True
            return 0
        if chain:
            self.pages += self.cache.take(chain)
        self._enter(ticket, hits, own, now)
        if away and self.policy.loads == "aside":
            self._set_aside(ticket, away, now)
            return ASIDE
        if away and self.policy.loads == "along":
            self.along += away
        else:
            self.fetched += away
        self.reading.append(ticket)
        return piece

    def _set_aside(self, ticket: Ticket, away: float, now: float) -> None:
        """A request that was just admitted waits until its blocks have come, behind those that come before them."""
        self.running.pop()
        self.link = max(self.link, now) + away
        ticket.place = FETCHING
        heapq.heappush(self.fetching, (self.link, ticket.order, ticket))

    def _worth(self, blocks: int, far: Sequence[FarBlock]) -> tuple[int, float]:
        """Leading blocks that are taken as they are, and the time in which those of further tiers come. [1], [s]

        A tier is left alone where its blocks, and all behind the first of them, are read in less time than they take to come.
        """
        pages = [(place, self.cache.size * self.limits.fetch[tier]) for place, tier in far]
        while pages:
            slowest = max(time for _, time in pages)
            cut = next(place for place, time in pages if time == slowest)
            if sum(time for place, time in pages if place >= cut) <= self._reading_time(cut, blocks):
                break
            blocks, pages = cut, [(place, time) for place, time in pages if place < cut]
        return blocks, sum(time for _, time in pages)

    def _reading_time(self, begin: int, end: int) -> float:
        """Time in which some blocks of a prompt are read beside what is written now, in steps as large as they may be. [s]"""
        size = self.cache.size * self.page
        tokens = (end - begin) * size
        step = min(tokens, self.limits.chunk)
        spread = step * self.limits.microbatches  # as a table has it of one that reads alone
        return self.table.more(self.writers if self.mixed else 0, spread, 0.5 * (begin + end) * size) * tokens / step

    def _enter(self, ticket: Ticket, hits: int, own: int, now: float) -> None:
        """The head of the queue leaves it."""
        self.waiting.popleft()
        self.order += 1
        ticket.order, ticket.place, ticket.read = self.order, READING, hits
        if ticket.begun < 0:
            ticket.begun, ticket.hits = now, hits
        self.running.append((self.order, ticket))
        if len(self.running) > 64 and len(self.running) > 64 + 4 * self._at_work():  # so that those that have left take no room
            self._forget_gone()
        self._grow(ticket, own)
        if self.adapters is not None:
            self.fetched += self.adapters.take(ticket.index)

    def _has_room(self, ticket: Ticket, hits: int, wanted: int, kept: int) -> bool:
        """Whether a request may be admitted that must find so many pages."""
        free = self.capacity - self.pages - kept
        if wanted > free:
            return False
        if self.room != "share" or not self._at_work():
            return True
        coming = ticket.need - hits + min(ticket.output - ticket.wrote, CLIP)
        return coming <= free * self.page - self.share * self.left

    def _receive(self, now: float) -> None:
        """Admit requests whose keys and values have arrived, while there is room."""
        while self.waiting and not self.refused and not self.waiting[0].evicted:
            ticket = self.waiting[0]
            own = self._own(ticket, ticket.prompt + ticket.output - 1 if not self.grows else ticket.need)
            kept = self._growing() - (-(ticket.need + self._tokens_of(1)) // self.page) + -ticket.need // self.page
            if self._at_work() >= self.limits.requests or not self._has_room(ticket, ticket.need, own, kept) or self._lacks_slot(ticket):
                self.refused = True
                return
            self._enter(ticket, ticket.need, own, now)
            ticket.waited, ticket.first = now - ticket.first, now  # this engine sends the first token too
            self._begin(ticket, now)

    # ---------------------------------------------------------------------------------------- what a jump did

    def _read(self, ticket: Ticket, now: float, done: list[Ticket]) -> None:
        """The last piece of a prompt is read, with which the next token is written."""
        self.reading.remove(ticket)
        ticket.wrote += 1
        if ticket.first < 0:
            ticket.first = now
        elif ticket.stopped >= 0:
            self.trail.gaps.append((1, now - ticket.stopped))
        ticket.stopped = -1.0
        if ticket.wrote >= ticket.output or not self.writes:
            self._leave(ticket, now, done)
        else:
            self._begin(ticket, now)

    def _begin(self, ticket: Ticket, since: float) -> None:
        """A request begins to write: all but the token that came with the end of its prompt, at some time."""
        tokens = ticket.need
        ticket.place, ticket.start = WRITING, self.step
        ticket.wrote = max(ticket.wrote, 1)
        left = ticket.output - ticket.wrote
        self.phases[(tokens - self.step) % self.page] += 1
        self.writers += 1
        self.context += tokens
        self.left += left
        heapq.heappush(self.finishing, (self.step + left, ticket.order, ticket))
        if not self.in_a_row:
            self.missed.append((1, since))

    def _ending(self, tokens: int) -> list[tuple[Ticket, int]]:
        """Requests that the jump ends, which gives each so many tokens, in order of admission; and tokens that its last step gives them
        beyond what they asked for. [1]
        """
        heap, end = self.finishing, self.step + tokens
        found: list[tuple[Ticket, int]] = []
        while heap and heap[0][0] <= end:
            last, order, ticket = heapq.heappop(heap)
            if ticket.place == WRITING and ticket.order == order:
                found.append((ticket, end - last))
        return sorted(found, key=lambda one: one[0].order) if self.surplus else found

    def _write(self, now: float, done: list[Ticket]) -> None:
        """Every request that writes has the tokens of the steps; some end."""
        steps = tokens = self.steps
        if not self.one_each:
            tokens = self._tokens_of(steps)
            self.rounds += steps
        given = tokens * self.writing
        ended: Sequence[tuple[Ticket, int]] = ()
        if self.finishing[0][0] <= self.step + tokens:
            ended = self._ending(tokens)
        self._record(now, given - sum(beyond for _, beyond in ended) if self.surplus else given)
        self.context += given
        self.left -= given
        if self.grows:
            self.pages += self.phases[-self.step % self.page] if tokens == 1 else self._grown(tokens)
            if self.cache.idle:
                self.cache.shrink(self.capacity - self.pages)
        self.step += tokens
        if self.room == "share":
            self.share = max(self.share - FALLS * steps, LEAST_SHARE)
        for ticket, beyond in ended:
            ticket.wrote = ticket.output + beyond
            self._stop_writing(ticket)
            ticket.wrote = ticket.output
            self._leave(ticket, now, done)
        if not self.in_a_row:
            self.missed = [(self.writers, now)]

    def _leave(self, ticket: Ticket, now: float, done: list[Ticket]) -> None:
        """A request ends here."""
        ticket.last, ticket.place = now, ENDED
        if ticket.answer is not None:
            self._remember(ticket, ticket.prompt + ticket.wrote - 1)
        if self.ahead is not None and self.writes:
            self.ahead.leave(ticket, ticket.prompt + ticket.wrote - 1)
        else:
            self._give_back(ticket)
            self.refused = False
        self._count(-1, now)
        done.append(ticket)

    def _count(self, change: int, now: float) -> None:
        self.area += self.load * (now - self.seen)
        self.load += change
        self.loads.change(self.seat, change)
        self.seen = now

    def _record(self, now: float, wrote: int) -> None:
        """Write the jump down, which gives requests so many of the tokens that they asked for, beside those at the ends of prompts."""
        steps, n, since = self.steps, self.writing, self.since
        context, alike = self.mean + 0.5 * (steps - 1) * self.gain, n * steps
        queued = len(self.waiting) if self.ahead is None else self.queued
        if n and not self.in_a_row:
            alike -= n
            later = (steps - 1) * ((now - since) / steps)  # time of the steps behind the first. [s]
            self.trail.gaps += [(many, now - before - later) for many, before in self.missed]
        if self.returned:  # whose first step is a jump of its own
            if n and self.in_a_row:
                alike -= len(self.returned)
                self.trail.gaps += [(1, now - last) for last in self.returned]
            self.returned.clear()
        self.trail.rows.extend((since, now, steps, n, context, self.tokens, self.keys, self.pages, queued, wrote, alike))
