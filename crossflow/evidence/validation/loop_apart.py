"""A benchmark with a fixed number of users of a service whose prompts are read by workers of their own: when first tokens come.

All users ask at once at first, and each again when it has its answer. Requests go to the workers in turn. A worker reads in a step what
waits there, as many prompts as its ranks have room for; a prompt that comes meanwhile waits for the end of the step. Its keys and values
then travel to an engine that writes. That has slots: a request waits until one is free, and has its first token at the end of the step
that runs: in Dynamo, TensorRT-LLM and SGLang the engine that writes streams the whole answer (from memory of their code).
So Little's law holds of writers that are full: users = requests a second x (first token + rest of the answer), and the first token takes
what the users have left of that.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from crossflow.base.arrays import Array
from crossflow.evidence.validation.closed_loop import answers

ROUNDS = 10  # requests of a user that are followed at most


@dataclass(frozen=True, kw_only=True)
class ApartRun:
    """A run: users, tokens of an answer and how far lengths spread about their mean, requests of a user; the engines of both sides.

    alone, full : what a prompt takes of a rank that reads it, where the other ranks of its worker read nothing, and of each prompt where
        all of them read as many as they have room for. [s]
    slots : requests that all writers together write for at most. [1]
    """

    users: int  # [1]
    output: int  # [1]
    spread: float = 0.0  # longest less shortest length, over the mean. [1]
    requests: float  # [1]
    writing: float  # of a step that writes. [s]
    alone: float
    full: float
    sent: float = 0.0  # until keys and values of a prompt are where it is written. [s]
    workers: int = 1  # [1]
    ranks: int = 1  # of a worker, which read prompts of their own. [1]
    room: int = 1  # prompts that a rank reads in a step. [1]
    slots: float = np.inf
    front: float = 0.0  # what server and client take from an answer's end to the next prompt. [s]
    texts: float = 0.0  # of that, what the server takes for one prompt after the other. [s]

    def step(self, prompts: int) -> float:
        """Time of a step in which a worker reads so many prompts, dealt out to its ranks. [s]"""
        busy = (min(prompts, self.ranks) - 1) / max(self.ranks - 1, 1)
        return self.alone + (self.full - self.alone) * busy + (-(-prompts // self.ranks) - 1) * self.full


@dataclass
class _Worker:
    """A worker: prompts that wait, with the user of each."""

    waiting: deque[int] = field(default_factory=deque)
    reads: bool = False


class _ApartLoop:
    """Where a run has come to."""

    def __init__(self, run: ApartRun, lengths: Array) -> None:
        self.run, self.lengths, self.rounds = run, lengths, lengths.shape[1]
        self.events: list[tuple[float, int, str, tuple[int, ...]]] = []
        self.workers = [_Worker() for _ in range(run.workers)]
        self.turn, self.asked = [0] * run.users, [0.0] * run.users
        self.first: list[list[float]] = [[] for _ in range(self.rounds)]
        self.ready = deque[int]()  # users whose prompts are read, and wait for a slot
        self.writing = self.count = self.next = 0
        self.texts = 0.0  # when the server has made tokens of all texts that it has

    def _later(self, time: float, kind: str, users: tuple[int, ...]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, kind, users))

    def follow(self) -> list[list[float]]:
        """Times to the first token of every round. [s]"""
        for user in range(self.run.users):
            self.asks(user, 0.0)
        while self.events:
            now, _, kind, users = heapq.heappop(self.events)
            getattr(self, kind)(now, users)
        return self.first

    def asks(self, user: int, now: float) -> None:
        """A user asks; its prompt comes when the server has made tokens of it, after those that it has."""
        self.asked[user] = now
        self.texts = max(self.texts, now) + self.run.texts
        self._later(self.texts + self.run.front - self.run.texts, "comes", (user,))

    def comes(self, now: float, users: tuple[int, ...]) -> None:
        """A prompt comes, to the next worker in turn."""
        place = self.next % len(self.workers)
        self.next += 1
        self.workers[place].waiting.append(users[0])
        if not self.workers[place].reads:
            self._read(place, now)

    def _read(self, place: int, now: float) -> None:
        """A worker begins a step with what waits there."""
        worker, run = self.workers[place], self.run
        worker.reads = bool(worker.waiting)
        if worker.reads:
            prompts = tuple(worker.waiting.popleft() for _ in range(min(len(worker.waiting), run.ranks * run.room)))
            self._later(now + run.step(len(prompts)), "has_read", (place, *prompts))

    def has_read(self, now: float, place_and_users: tuple[int, ...]) -> None:
        """A step of a worker ends: keys and values leave, and it begins the next."""
        place, *users = place_and_users
        self._later(now + self.run.sent, "arrive", tuple(users))
        self._read(place, now)

    def arrive(self, now: float, users: tuple[int, ...]) -> None:
        """Keys and values are where they are written."""
        self.ready.extend(users)
        self._admit(now)

    def _admit(self, now: float) -> None:
        """Requests that wait take the slots that are free."""
        run = self.run
        while self.ready and self.writing < run.slots:
            user = self.ready.popleft()
            self.writing += 1
            turn = self.turn[user]
            begins = now + 0.5 * run.writing * (self.writing > 1)  # in the mean, while others are written
            self.first[turn].append(begins - self.asked[user])
            self._later(begins + run.writing * float(self.lengths[user, turn] - 1.0), "ends", (user,))

    def ends(self, now: float, users: tuple[int, ...]) -> None:
        """An answer is whole."""
        user = users[0]
        self.writing -= 1
        self.turn[user] += 1
        self._admit(now)
        if self.turn[user] < self.rounds:
            self.asks(user, now)


def first_tokens_apart(run: ApartRun) -> float:
    """Mean time to the first token of all requests of a run. [s]

    >>> round(first_tokens_apart(ApartRun(users=1, output=101, requests=10, writing=0.01, alone=0.2, full=0.1, sent=0.05)), 6)
    0.25

    Three users of two slots, whose answers take a second each: a request every half second, so that each has 1.5 s, of which answers take
    1 s.

    >>> round(first_tokens_apart(ApartRun(users=3, output=101, requests=np.inf, writing=0.01, alone=0.0, full=0.0, slots=2)), 1)
    0.5
    """
    rounds = int(min(run.requests, ROUNDS))
    found = _ApartLoop(run, answers(run.users, run.output, run.spread, rounds)).follow()
    settled = found if np.isfinite(run.requests) else found[rounds // 2 :]
    return float(np.mean([time for times in settled for time in times]))
