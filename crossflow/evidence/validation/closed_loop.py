"""A benchmark with a fixed number of users, each of whom asks again when it has its answer: when first tokens come.

All users ask at once at first. An engine reads prompts beside the tokens that it writes, as many in a step as have come and as it has room
for, and has scheduled a step when the one before begins: a prompt that comes meanwhile is in the step after that (asynchronous scheduling
of vLLM since 0.14, overlap schedulers of SGLang and TensorRT-LLM). One that schedules a step as it begins has that prompt in it. Answers of
equal lengths keep users in the order in which their prompts were read, so that a prompt comes while that of the one before is read. Where
steps that read write nothing, all answers grow together, end together, and all prompts come at once again.
Steady state, in which prompts come at random, knows nothing of this (`crossflow.engine.runs.service`).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from crossflow.base.arrays import Array

ROUNDS = 5  # requests of a user that are followed: two at first, two that stand for all that follow, and the last
SEED = 0


@dataclass(frozen=True, kw_only=True)
class LoopRun:
    """A run: users of one replica, tokens of an answer and how far lengths spread about their mean, requests of a user; a step that
    writes, how much longer it takes to read a prompt, what the host needs to issue a step that reads, and what server and client take
    from an answer's end to the next prompt.
    """

    users: int  # [1]
    output: int  # [1]
    writing: float  # [s]
    reading: float  # of the device, for each prompt. [s]
    requests: float  # [1]
    issue: float = 0.0  # the least that a step takes that reads, however few prompts. [s]
    front: float = 0.0  # [s]
    texts: float = 0.0  # of that, what the server takes for one prompt after the other: its text becomes tokens. [s]
    spread: float = 0.0  # longest less shortest length, over the mean. [1]
    apart: bool = False  # whether steps that read prompts write nothing, as SGLang's
    ahead: bool = True  # whether a step is scheduled when the one before begins
    room: int = 1  # prompts that a step reads at most. [1]


@dataclass
class _LoopClock:
    """Where a run has come to: time, when the step before began, steps, users whose prompts come, wait and are answered."""

    coming: list[tuple[float, int]] = field(default_factory=list)
    time: float = 0.0
    before: float = 0.0
    texts: float = 0.0  # when the server has made tokens of all texts that it has
    steps: int = 0
    waiting: deque[int] = field(default_factory=deque)
    writing: list[tuple[int, int]] = field(default_factory=list)

    def asks(self, user: int, run: LoopRun) -> None:
        """A user asks, and its prompt comes to the engine when the server has made tokens of it, after those that it has."""
        self.texts = max(self.texts, self.time) + run.texts
        heapq.heappush(self.coming, (self.texts + run.front - run.texts, user))


def loop_times(run: LoopRun) -> tuple[float, float]:
    """Mean time to the first token, and mean time for each further token, of all requests of a run. [s]

    >>> [round(time, 6) for time in loop_times(LoopRun(users=1, output=101, writing=0.01, reading=0.1, requests=10))]
    [0.1, 0.01]
    """
    rounds = int(min(run.requests, ROUNDS))
    lengths = answers(run.users, run.output, run.spread, rounds)
    first, further = (np.array([np.mean(one) for one in times]) for times in _rounds(run, lengths))
    often = np.ones(rounds)
    if rounds == ROUNDS and np.isfinite(run.requests):
        often[2:4] = 0.5 * (run.requests - 3.0)
    elif rounds == ROUNDS:
        often = np.array([0.0, 0.0, 1.0, 1.0, 0.0])
    return float(np.average(first, weights=often)), float(np.average(further, weights=often))


def answers(users: int, mean: int, spread: float, rounds: int) -> Array:
    """Tokens of every answer, uniform about the mean, shape (users, rounds). [1]"""
    rng = np.random.default_rng(SEED)
    drawn = rng.random((users, rounds)) - 0.5
    return np.maximum(np.round(mean * (1.0 + spread * drawn)), 2.0).astype(int)


def _rounds(run: LoopRun, lengths: Array) -> tuple[list[list[float]], list[list[float]]]:
    """Times to the first token, and for each further one, of every round. [s]"""
    since, turn = [0.0] * run.users, [0] * run.users  # when a user asked, or had the first token
    first: list[list[float]] = [[] for _ in range(lengths.shape[1])]
    further: list[list[float]] = [[] for _ in first]
    clock = _LoopClock()
    for user in range(run.users):
        clock.asks(user, run)
    while clock.coming or clock.waiting or clock.writing:
        seen = clock.before if clock.writing and run.ahead else clock.time
        while clock.coming and clock.coming[0][0] <= seen:
            clock.waiting.append(heapq.heappop(clock.coming)[1])
        if clock.waiting:
            users = [clock.waiting.popleft() for _ in range(min(run.room, len(clock.waiting)))]
            _read(clock, run, len(users))
            for user in users:
                first[turn[user]].append(clock.time - since[user])
                since[user] = clock.time
                heapq.heappush(clock.writing, (clock.steps + int(lengths[user, turn[user]]) - 1, user))
        else:
            _write(clock, run)
        while clock.writing and clock.writing[0][0] <= clock.steps:
            user = heapq.heappop(clock.writing)[1]
            further[turn[user]].append((clock.time - since[user]) / (lengths[user, turn[user]] - 1.0))
            turn[user], since[user] = turn[user] + 1, clock.time
            if turn[user] < len(first):
                clock.asks(user, run)
    return first, further


def _read(clock: _LoopClock, run: LoopRun, prompts: int) -> None:
    """A step that reads some prompts."""
    clock.before = clock.time
    clock.time += max(prompts * run.reading + (run.writing if clock.writing and not run.apart else 0.0), run.issue)
    clock.steps += 0 if run.apart else 1


def _write(clock: _LoopClock, run: LoopRun) -> None:
    """Steps that only write, until the first answer is whole or a prompt that has come is seen; with none to write, until one comes."""
    if not clock.writing:
        clock.time = clock.before = max(clock.time, clock.coming[0][0])
        return
    step, count = run.writing, max(clock.writing[0][0] - clock.steps, 1)
    if clock.coming:
        count = min(count, max(int(np.ceil((clock.coming[0][0] - clock.time) / step - 1e-9)) + run.ahead, 1))
    clock.time += count * step
    clock.steps += count
    clock.before = clock.time - step
