"""Partial rollouts: an iteration ends when enough answers are complete, and the others go on in the next one.

Engines have more prompts under way than an iteration trains on. It ends when as many groups as it needs are complete; engines then take new
weights, throw away the keys and values that older ones made, read again what was written (AReaL [1]_, Sec. 4.1) and go on, beside new
prompts. Answers are then written by weights of several iterations (Kimi k1.5 [2]_, Sec. 2.6.2).

References
----------
.. [1] Fu et al., "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning", 2025, arXiv:2505.24298.
.. [2] Kimi Team, "Kimi k1.5: Scaling Reinforcement Learning with LLMs", 2025, arXiv:2501.12599.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from crossflow.answers.evaluation.replaying import ReplayedScenario, engines_of, replayed_on
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.engine.service.replayed import Jumps
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.requests.shared import shared_blocks

COUNTED = 8  # iterations of which the mean is taken, from the first on at whose beginning no prompt of the very first is under way,
LEAST_COUNTED, ENOUGH = 2, 4096  # but fewer, and no fewer than these, where so many answers are trained on
MOST_ROUNDS = 40  # iterations in all: answers that last longer are there from the beginning of what is counted


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """What engines did in one iteration.

    Attributes
    ----------
    time : until enough groups were complete. [s]
    busy : share of it in which an engine works, in the mean. [1]
    energy : of all engines. [J]
    wrote : tokens. [1]
    complete : tokens of the answers on which the iteration trains, and those of them that earlier iterations wrote. [1]
    ages : iterations ago at which each of these began, shape (answers,). [1]
    """

    time: float
    busy: float
    energy: float
    wrote: int
    complete: tuple[int, int]
    ages: Index


@dataclass(frozen=True, kw_only=True, eq=False)
class Continued:
    """Iterations one after the other.

    Attributes
    ----------
    rounds : all of them.
    counted : those of a steady state.
    left : tokens of what is not trained on at the end. [1]
    """

    rounds: tuple[Round, ...]
    counted: tuple[Round, ...]
    left: int

    @property
    def time(self) -> float:
        """Of an iteration, in the mean. [s]"""
        return float(np.mean([one.time for one in self.counted]))

    @property
    def busy(self) -> float:
        """Share of the time in which an engine works, in the mean. [1]"""
        return sum(one.busy * one.time for one in self.counted) / sum(one.time for one in self.counted)

    @property
    def power(self) -> float:
        """Of all engines, in the mean. [W]"""
        return sum(one.energy for one in self.counted) / sum(one.time for one in self.counted)

    @property
    def stale(self) -> float:
        """Share of the tokens that an iteration trains on which earlier ones wrote. [1]"""
        return sum(one.complete[1] for one in self.counted) / sum(one.complete[0] for one in self.counted)

    @property
    def ages(self) -> Index:
        """Iterations ago at which each answer began that is trained on, shape (answers,). [1]"""
        return np.concatenate([one.ages for one in self.counted])


def continued(rollout: Scenario, prompts: int, under_way: int, answers: int) -> Continued:
    """Iterations that each train on so many prompts, of so many under way, until their mean is that of a steady state."""
    asked = rollout.replace({"requests.batch": prompts * (MOST_ROUNDS - 1) + under_way})
    lengths = requests_of(asked)
    engines = engines_of(rollout, replace(lengths, prompt=lengths.prompt + lengths.output, blocks=None, block=0))
    pool = _Prompts(lengths, answers)
    rounds: list[Round] = []
    counted = min(COUNTED, max(-(-ENOUGH // (prompts * answers)), LEAST_COUNTED))
    first = MOST_ROUNDS - counted
    while len(rounds) < min(first + counted, MOST_ROUNDS):
        pool.fill(under_way, len(rounds))
        if pool.oldest > 0:
            first = min(first, len(rounds))
        trace = pool.asked()
        found = replayed_on(rollout, engines, trace) if len(trace) else None
        if found is not None and (found.found is None or found.found.dropped.any()):
            raise CrossflowError(f"job.rollout: {found.problem or 'answers that go on have no room in the cache of an engine'}")
        rounds.append(pool.after(found, prompts, len(rounds)))
    return Continued(rounds=tuple(rounds), counted=tuple(rounds[first:]), left=int(pool.written[pool.groups].sum()))


class _Prompts:
    """Groups of answers that are under way, or complete and not trained on yet, the oldest first."""

    def __init__(self, lengths: RequestTrace, answers: int) -> None:
        shape = (-1, answers)
        self.prompt, self.output, self.block = lengths.prompt.reshape(shape), lengths.output.reshape(shape), lengths.block
        self.written = np.zeros_like(self.output)  # tokens of each answer so far, shape (groups, answers). [1]
        self.began = np.zeros(len(self.output), dtype=np.intp)  # iteration in which each group began
        self.groups = np.zeros(0, dtype=np.intp)
        self.next = 0

    @property
    def oldest(self) -> int:
        """The iteration in which the oldest group began."""
        return int(self.began[self.groups].min())

    def fill(self, under_way: int, now: int) -> None:
        """New prompts until so many are there."""
        new = np.arange(self.next, self.next + under_way - len(self.groups))
        self.began[new], self.next = now, self.next + len(new)
        self.groups = np.concatenate([self.groups, new])

    def _open(self) -> tuple[Index, Index]:
        """Groups and places of answers that are not complete."""
        rows, columns = np.nonzero(self.written[self.groups] < self.output[self.groups])
        return self.groups[rows], columns

    def asked(self) -> RequestTrace:
        """What engines are asked for: of each answer the rest, behind a prompt that ends with what is written of it."""
        at = self._open()
        own, done = self.prompt[at], self.written[at]
        n = len(own)
        blocks = shared_blocks(own + done, np.arange(n), at[0], own, self.block) if self.block else None
        return RequestTrace.of(np.zeros(n), own + done, self.output[at] - done, blocks=blocks, block=self.block)

    def after(self, found: ReplayedScenario | None, prompts: int, now: int) -> Round:
        """An iteration ends with the group that completes it; the answers that it trains on leave."""
        at, before = self._open(), self.written.copy()
        ends = np.zeros(self.output.shape)
        if found is not None:
            assert found.found is not None  # the caller has looked
            ends[at] = found.found.last
        complete = ends[self.groups].max(axis=1)
        order = np.argsort(complete, kind="stable")
        time = float(complete[order[prompts - 1]])
        if found is not None:
            self.written[at] += written_by(found, time)
        used = self.groups[order[:prompts]]
        self.groups = self.groups[np.sort(order[prompts:])]
        busy, energy = (0.0, 0.0) if found is None else worked(found, time)
        return Round(
            time=time, busy=busy, energy=energy, wrote=int((self.written - before).sum()),
            complete=(int(self.output[used].sum()), int(before[used].sum())), ages=np.repeat(now - self.began[used], self.output.shape[1]),
        )  # fmt: skip


def written_by(run: ReplayedScenario, time: float) -> Index:
    """Tokens that each request has by some time: one for each step of its engine since its first, in the order of requests. [1]"""
    found = run.found
    assert found is not None
    steps = np.zeros((3, len(found.last)))
    for i, jumps in enumerate(found.jumps):
        mine = found.where == i
        for row, when in zip(steps, (np.full(mine.sum(), time), found.first[mine], found.last[mine]), strict=True):
            row[mine] = _steps(jumps, when)
    now, first, last = steps
    share = (now - first) / np.maximum(last - first, 1e-9)
    some = 1 + np.floor(share * (found.output - 1) + 1e-6).astype(np.intp)
    some = np.clip(some, 1, np.maximum(found.output - 1, 1))
    return np.where(found.last <= time, found.output, np.where((found.first <= time) & (found.output > 1), some, 0))


def _steps(jumps: Jumps, when: Array) -> Array:
    """Steps that an engine has made by some times; those of a jump take the same time each. [1]"""
    if not len(jumps.steps):
        return np.zeros(len(when))
    done = np.cumsum(jumps.steps)
    times = np.stack([jumps.begun, jumps.ended]).T.ravel()
    return np.interp(when, times, np.stack([done - jumps.steps, done]).T.ravel())


def worked(run: ReplayedScenario, time: float) -> tuple[float, float]:
    """Share of a time in which an engine works, in the mean, and energy of all of them, at rest included. [1], [J]"""
    if time <= 0.0:
        return 0.0, 0.0
    busy = energy = 0.0
    for (_, did), each, rest in zip(run.engines, run.energies, run.resting, strict=True):
        inside = np.clip(time - did.begun, 0.0, did.ended - did.begun)
        share = inside / np.maximum(did.ended - did.begun, 1e-30)
        busy += float(inside.sum())
        energy += float((each * share).sum()) + rest * (time - float(inside.sum()))
    return busy / (time * len(run.engines)), energy
