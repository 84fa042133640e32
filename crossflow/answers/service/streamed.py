"""What a replay of very many requests has to say: running statistics, with nothing kept of each request."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.evaluation.replay_figures import UNSERVED
from crossflow.answers.evaluation.replay_statistics import BATCHES, BEYOND, PERCENTILES, Phases, student
from crossflow.answers.evaluation.replaying import tallied_scenario
from crossflow.answers.scenario import Scenario
from crossflow.answers.service.served import ServedRequests
from crossflow.base.errors import CrossflowError
from crossflow.engine.service.fleet import Tallied
from crossflow.engine.service.sketch import ERROR, Batches, Sketch
from crossflow.engine.service.tally import Tally
from crossflow.workload.requests.record import RequestTrace

if TYPE_CHECKING:
    from crossflow.base.drawing.picture import Picture

STREAMED = 1_000_000  # requests beyond which a replay keeps running statistics where nobody says otherwise
NOT_KEPT = "a replay with running statistics keeps nothing of each request{why}; replay fewer (requests.limit), or say stream=False"
GROWS, SLACK = 1.5, 1.0  # times, and seconds beyond it, that first tokens take longer at the end than in the middle where a queue grows


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamedRequests(ServedRequests):
    """Requests replayed through a service with running statistics; `crossflow.serve` makes one of very many requests.

    Attributes
    ----------
    done : what came of the replay; None where no request has room.
    """

    done: Tallied | None

    @property
    def reason(self) -> str | None:
        """Why no request can be answered, in a sentence; None where some can."""
        if self.done is None:
            return self.run.problem
        return None if self.answered else UNSERVED.format(n=len(self.trace))

    @property
    def found(self) -> Any:
        """What the replay kept of engines; it has no arrays of requests."""
        return self.done

    @property
    def _tally(self) -> Tally:
        assert self.done is not None  # who asks has looked
        return self.done.tally

    # ---------------------------------------------------------------------------------------- requests

    @property
    def count(self) -> int:
        """Requests that arrived. [1]"""
        return self._tally.count

    @property
    def answered(self) -> int:
        """Requests that were answered. [1]"""
        return self._tally.answered

    @property
    def met(self) -> int:
        """Requests that met all targets of their class. [1]"""
        return self._tally.on_target

    @property
    def moved(self) -> int:
        """Times that an engine failed under a request. [1]"""
        return self._tally.moved

    @property
    def preemptions(self) -> int:
        """Times that a request lost its room in the cache and was computed anew. [1]"""
        return self._tally.evicted - self.moved

    @property
    def written(self) -> float:
        """Tokens that were written for requests. [1]"""
        return self._tally.outputs

    @property
    def computed(self) -> float:
        """Tokens of prompts that were read, and tokens that were written, those that were lost again included. [1]"""
        return sum(kind.read + kind.written for kind in self._tally.kinds)

    @functools.cached_property
    def span(self) -> float:
        """Time from the first arrival to the last token. [s]"""
        return max(self._tally.end - self._tally.begin, 1e-12)

    # ---------------------------------------------------------------------------------------- times

    @functools.cached_property
    def latency(self) -> Mapping[str, Mapping[str, float | None]]:
        """Mean and percentiles of times, these within a thousandth. [s]"""
        tally = self._tally
        found = {f"{name}_s": _spread(batches.all) for name, batches in tally.times.items()}
        return {"ttft_s": found["ttft_s"], "tpot_s": found["tpot_s"], "itl_s": _spread(tally.gaps), "e2e_s": found["e2e_s"]}

    @functools.cached_property
    def confidence(self) -> Mapping[str, Mapping[str, float | None]]:
        """Half of the 95 % interval of each of them, by means and percentiles of batches; None where requests are too few. [s]"""
        return {f"{name}_s": _halves(batches) for name, batches in self._tally.times.items()}

    @functools.cached_property
    def phases(self) -> Phases:
        """How the run ends; how it begins is not kept."""
        means = [one.mean or 0.0 for one in self._tally.times["ttft"].whole]
        grows = len(means) >= BATCHES and np.mean(means[-2:]) > GROWS * np.mean(means[len(means) // 2 - 1 : len(means) // 2 + 1]) + SLACK
        return Phases(filled=float("nan"), emptied=max(self._tally.end - self._tally.arrived, 0.0), grows=bool(grows))

    @functools.cached_property
    def classes(self) -> tuple[Mapping[str, Any], ...]:
        """Figures of every class that requests are of."""
        whole = {name: batches.all for name, batches in self._tally.times.items()}
        several = len(self._tally.classes) > 1
        found = []
        for one, mine in zip(self.trace.classes, self._tally.classes, strict=True):
            targets = {f"{name}_s": getattr(one, name) for name in whole if getattr(one, name) is not None}
            if mine.count:
                found.append({
                    "name": one.name, "requests": mine.count, "dropped": mine.dropped, "targets": targets,
                    "attained": mine.on_target / mine.count if targets else None,
                    **{f"{name}_s": _spread(mine.times[name] if several else all_) for name, all_ in whole.items()},
                })  # fmt: skip
        return tuple(found)

    # ---------------------------------------------------------------------------------------- engines

    @functools.cached_property
    def utilisation(self) -> tuple[float, ...]:
        """Share of the time that it is paid for in which each engine works, those that only read first. [1]"""
        paid = np.maximum(self.found.paid_shares * self.span, 1e-12)
        return tuple((np.concatenate([kind.busy for kind in self._tally.kinds]) / paid).tolist())

    @functools.cached_property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """Steps of the engines of each kind, and tokens that they wrote. [1]"""
        return tuple((kind.steps, kind.written) for kind in self._tally.kinds)

    @functools.cached_property
    def cache(self) -> Mapping[str, float | None]:
        """Cache of the engines that write: its tokens (of a replica), the share that requests use, and that of prompts found in it."""
        pairs = [(one, done) for one, done in zip(self.run.kinds, self._tally.kinds, strict=True) if one.limits.writes]
        held = [one.limits.pages * one.limits.page for one, _ in pairs for _ in range(one.count)]
        room = float(self.found.paid_shares[-len(held) :] @ held) * self.span
        limits = self.run.writers.limits
        return {
            "tokens": float(limits.pages * limits.page), "page_tokens": float(limits.page),
            "mean_use": sum(done.pages * one.limits.page for one, done in pairs) / room,
            "peak_use": max(done.peak_pages / one.limits.pages for one, done in pairs),
            "hit_rate": self._tally.hits / max(self._tally.prompts, 1.0) if self.trace.blocks is not None else None,
        }  # fmt: skip

    @functools.cached_property
    def queue(self) -> Mapping[str, float]:
        """Requests that wait for an engine that has others, in the mean of the run and at most. [1]"""
        tally = self._tally
        longest = max(kind.peak_queue for kind in tally.kinds)
        return {"mean": tally.waits / self.span, "peak": longest, "mean_wait_s": tally.waits / max(tally.answered, 1)}

    @functools.cached_property
    def energy(self) -> float:
        """Energy of all devices over the run, while they wait or have failed too, but not of engines that are stopped. [J]"""
        paid, busy = self.found.paid_shares * self.span, np.concatenate([kind.busy for kind in self._tally.kinds])
        watts = np.repeat([one.resting for one in self.run.kinds], [one.count for one in self.run.kinds])
        return sum(kind.energy for kind in self._tally.kinds) + float(watts @ (paid - busy))

    @property
    def jumps(self) -> tuple[int, int]:
        """Jumps and steps of all engines. [1]"""
        return int(sum(kind.jumps for kind in self._tally.kinds)), int(sum(kind.steps for kind in self._tally.kinds))

    def _noted(self) -> list[str]:
        told = f"of {self.count:,} requests running statistics are kept: percentiles are within {100 * ERROR:g} % of an exact one"
        return [told, *super()._noted()]

    # ---------------------------------------------------------------------------------------- what is not kept

    @property
    def series(self) -> Any:
        """Nothing over time is kept."""
        raise CrossflowError(NOT_KEPT.format(why=", and nothing over time"))

    @property
    def times(self) -> Any:
        """No times of requests are kept."""
        raise CrossflowError(NOT_KEPT.format(why=""))

    def plot(self) -> Picture:
        """Nothing that could be drawn is kept."""
        raise CrossflowError(NOT_KEPT.format(why=""))

    def table(self) -> Mapping[str, Any]:
        """No rows of requests are kept."""
        raise CrossflowError(NOT_KEPT.format(why=""))


def _spread(sketch: Sketch) -> dict[str, float | None]:
    return {"mean": sketch.mean, **{name: sketch.quantile(share) for name, share in PERCENTILES.items()}}


def _halves(batches: Batches) -> dict[str, float | None]:
    """Half of the 95 % interval of the mean and of each percentile."""
    whole = batches.whole
    found: dict[str, float | None] = dict.fromkeys(("mean", *PERCENTILES))
    if len(whole) < BATCHES:
        return found
    spreads = [_spread(one) for one in whole]
    for name in found:
        if batches.size * (1.0 - PERCENTILES.get(name, 0.0)) >= BEYOND:
            each = np.array([one[name] for one in spreads], dtype=float)
            found[name] = float(student(len(each)) * each.std(ddof=1) / np.sqrt(len(each)))
    return found


def streamed(scenario: Scenario, trace: RequestTrace, seed: int = 0) -> StreamedRequests:
    """Replay requests through the service of a scenario with running statistics; see `crossflow.serve`."""
    run, done = tallied_scenario(scenario, trace, seed)
    return StreamedRequests(scenario=scenario, trace=trace, run=run, done=done)
