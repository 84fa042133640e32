"""Which engines of a pool take requests, and which are paid for: engines that fail and come back, that are started and stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossflow.base.arrays import Array
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.ticket import NEVER


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Failures of engines, each by itself."""

    mean_time: float  # between two of an engine, exponential. [s]
    repair: float  # time until it serves again. [s]
    keeps_output: bool = True  # whether tokens that were written are kept
    seed: int = 0

    def draws(self, engine: int) -> Callable[[], float]:
        """Times between failures of an engine. [s]"""
        rng = np.random.default_rng([self.seed, engine])
        return lambda: float(rng.exponential(self.mean_time))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """When engines of a pool are started and stopped."""

    most: int  # engines, the first of the pool; others always run. [1]
    least: int  # of them that always run. [1]
    start: float  # time from the start of one to its first request. [s]
    signal: Literal["waiting", "load"]
    up: float  # signal beyond which one is started, and below which one is stopped. [1]
    down: float
    interval: float  # between two looks at the signal. [s]
    cooldown: float = 0.0  # time after a change without another. [s]


class EngineState:
    """How one engine stands."""

    __slots__ = ("broken", "failed", "leaving", "on", "paid", "ready")

    def __init__(self, *, on: bool) -> None:
        self.on, self.ready = on, on  # whether it is paid for, and has started
        self.broken = self.leaving = False  # whether it has failed, or takes no further requests
        self.paid: list[list[float]] = [[-NEVER, NEVER]] if on else []  # spans of time. [s]
        self.failed: list[list[float]] = []  # spans of time. [s]


class Standing:
    """How the engines of a pool stand over time; `up` are those that take requests."""

    def __init__(self, replicas: Sequence[Replica], scaling: Scaling | None) -> None:
        self.replicas, self.scaling = replicas, scaling
        last = len(replicas) if scaling is None else scaling.least
        scaled = 0 if scaling is None else scaling.most
        self.engines = [EngineState(on=i < last or i >= scaled) for i in range(len(replicas))]
        self.after = -NEVER  # time of the next change at the earliest. [s]
        self.up: Sequence[int] = range(0)
        self._look_again()

    def _look_again(self) -> None:
        found = [i for i, one in enumerate(self.engines) if one.ready and not one.broken and not one.leaving]
        self.up = range(len(found)) if len(found) == len(self.engines) else found

    # ---------------------------------------------------------------------------------------- failures

    def fail(self, i: int, now: float) -> bool:
        """An engine fails; False where it does not run."""
        one = self.engines[i]
        if not one.ready or one.broken:
            return False
        one.broken = True
        one.failed.append([now, NEVER])
        if one.leaving:
            self._stop(i, now)
        self._look_again()
        return True

    def mend(self, i: int, now: float) -> None:
        """A failed engine serves again."""
        one = self.engines[i]
        one.broken = False
        one.failed[-1][1] = now
        self._look_again()

    # ---------------------------------------------------------------------------------------- scaling

    def look(self, now: float, held: int) -> int | None:
        """Change the number of engines by one where the signal says so; the engine that is started, None where there is none.

        held : requests that no engine could be given. [1]
        """
        scaling = self.scaling
        assert scaling is not None  # who looks has one
        running = [i for i in range(scaling.most) if self.engines[i].on and not self.engines[i].leaving and not self.engines[i].broken]
        if len(running) >= scaling.least and now < self.after:
            return None
        signal = (held + sum(self._seen(i) for i in running)) / max(len(running), 1)
        if signal > scaling.up or len(running) < scaling.least:
            return self._more(now)
        if signal < scaling.down and len(running) > scaling.least:
            self._fewer(running, now)
        return None

    def _seen(self, i: int) -> int:
        one = self.replicas[i]
        assert self.scaling is not None
        return one.queued if self.scaling.signal == "waiting" else one.to_do

    def _more(self, now: float) -> int | None:
        """Keep an engine that was to stop, or start one."""
        scaling = self.scaling
        assert scaling is not None
        for i in range(scaling.most):
            if self.engines[i].leaving:
                self.engines[i].leaving = False
                self._changed(now)
                return None
        for i in range(scaling.most):
            one = self.engines[i]
            if not one.on:
                one.on = True
                one.paid.append([now, NEVER])
                self._changed(now)
                return i
        return None

    def _changed(self, now: float) -> None:
        assert self.scaling is not None
        self.after = now + self.scaling.cooldown
        self._look_again()

    def _fewer(self, running: Iterable[int], now: float) -> None:
        """Let the emptiest engine that has started take no further requests."""
        started = [i for i in running if self.engines[i].ready]
        if len(started) > 1 or (started and len(self.up) > 1):
            i = min(started, key=lambda i: (self.replicas[i].to_do, -i))
            self.engines[i].leaving = True
            self._changed(now)
            self.rest(i, now)

    def begin(self, i: int) -> None:
        """An engine has started."""
        self.engines[i].ready = self.engines[i].on
        self._look_again()

    def rest(self, i: int, now: float) -> None:
        """Stop an engine that is to stop and has nothing left to do."""
        one, replica = self.engines[i], self.replicas[i]
        if one.leaving and not replica.to_do:
            self._stop(i, now)

    def _stop(self, i: int, now: float) -> None:
        one = self.engines[i]
        one.paid[-1][1] = now
        one.on = one.ready = one.leaving = False
        self.replicas[i].forget()

    # ---------------------------------------------------------------------------------------- what came of it

    @property
    def paid(self) -> list[Array]:
        """Spans of time in which each engine is paid for, shape (spans, 2). [s]"""
        return [np.array(one.paid, dtype=float).reshape(-1, 2) for one in self.engines]

    @property
    def broken(self) -> list[Array]:
        """Spans of time in which each engine has failed, shape (spans, 2). [s]"""
        return [np.array(one.failed, dtype=float).reshape(-1, 2) for one in self.engines]
