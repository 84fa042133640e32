"""What a replay of requests through a service has to say: times, targets, throughput, cache, energy, money."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.bands import Trust
from crossflow.answers.evaluation.likeness import ARRIVING, told_trust, trust
from crossflow.answers.evaluation.replay_figures import UNSERVED, ReplayFigures
from crossflow.answers.evaluation.replay_statistics import (
    PERCENTILES,
    Phases,
    confidence,
    half_of_mean,
    inside,
    mean_inside,
    over_time,
)
from crossflow.answers.evaluation.replaying import replayed_scenario, tallied_scenario
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import Array
from crossflow.base.drawing.picture import Picture
from crossflow.base.errors import CrossflowError
from crossflow.base.results import PlainData, Tabular
from crossflow.base.units import show
from crossflow.engine.service.fleet import Tallied
from crossflow.engine.service.sketch import ERROR, Batches, Sketch
from crossflow.engine.service.tally import Tally
from crossflow.workload.requests.record import RequestTrace

MOMENTS = 240  # points of series over time
STREAMED = 1_000_000  # requests beyond which a replay keeps running statistics where nobody says otherwise
NOT_KEPT = "a replay with running statistics keeps nothing of each request{why}; replay fewer (requests.limit), or say stream=False"
GROWS, SLACK = 1.5, 1.0  # times, and seconds beyond it, that first tokens take longer at the end than in the middle where a queue grows
BATCHES = 20  # of requests in order of arrival, at least, where a queue is told to grow
BEYOND = 5.0  # requests of a batch beyond a percentile that it takes at least, so that the percentile of a batch means something
TAILS = Trust(level="unknown", band=None, reason=ARRIVING)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedRequests(ReplayFigures, PlainData, Tabular):
    """Requests replayed through a service; `crossflow.serve` makes one.

    Attributes
    ----------
    scenario : the service.
    trace : the requests.
    run : engines, and what became of requests.
    """

    @functools.cached_property
    def confidence(self) -> Mapping[str, Mapping[str, float | None]]:
        """Half of the 95 % interval of each of them that is due to the length of the run, None where requests are too few. [s]"""
        return {f"{name}_s": confidence(values) for name, values in self.times.items()}

    @functools.cached_property
    def series(self) -> Mapping[str, Array]:
        """What changes over the run, in the mean of each of equal intervals: their middles ``time_s``, and by name what there was."""
        begin = float(self.found.arrival.min())
        edges, engines = begin + np.linspace(0.0, self.span, MOMENTS + 1), self.run.engines
        width, answered = np.diff(edges), self.found.answered
        resting = self.run.resting

        def sums(what: list[Array]) -> Array:
            return np.asarray(np.sum([over_time(jumps, values, edges) for (_, jumps), values in zip(engines, what, strict=True)], axis=0))

        lasts = [np.maximum(jumps.ended - jumps.begun, 1e-12) for _, jumps in engines]
        powers = [energy / last - watts for energy, last, watts in zip(self.run.energies, lasts, resting, strict=True)]
        paid = [inside(spans, edges) for spans in self.found.paid]
        encoding = 0.0 if self.run.encoders is None else self.run.encoders.power(self.found.arrival, edges)
        writers = self.run.writing
        used = sum(over_time(jumps, jumps.pages, edges) * one.limits.page for one, jumps in writers)
        room = sum(share * one.limits.pages * one.limits.page for (one, _), share in zip(writers, paid[-len(writers) :], strict=True))
        return {
            "time_s": 0.5 * (edges[1:] + edges[:-1]) - begin,
            "arrivals_per_s": np.histogram(self.found.arrival, edges)[0] / width,
            "requests": mean_inside(self.found.arrival[answered], self.found.last[answered], edges),
            "waiting": mean_inside(self.found.arrival[answered], self.found.begun[answered], edges)
            + mean_inside((self.found.first - self.found.waited)[answered], self.found.first[answered], edges),
            "output_tokens_per_s": sums([jumps.wrote / last for (_, jumps), last in zip(engines, lasts, strict=True)]),
            "prompt_tokens_per_s": sums([jumps.tokens / last for (_, jumps), last in zip(engines, lasts, strict=True)]),
            "cache_use": np.asarray(used) / np.maximum(room, 1e-12),
            "busy": sums([np.ones(len(jumps.begun)) for _, jumps in engines]) / np.maximum(sum(paid), 1e-12),
            "engines": np.asarray(sum(paid)),
            "power_w": sums(powers) + sum(watts * share for watts, share in zip(resting, paid, strict=True)) + encoding,
        }  # fmt: skip

    @functools.cached_property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """Steps of the engines of each kind, and requests for which they wrote, in sum. [1]"""
        mine = [[jumps for one, jumps in self.run.engines if one is kind] for kind in self.run.kinds]
        return tuple((sum(float(one.steps.sum()) for one in each), sum(float(one.steps @ one.writers) for one in each)) for each in mine)

    @property
    def jumps(self) -> tuple[int, int]:
        """Jumps and steps of all engines. [1]"""
        return sum(len(did.begun) for did in self.found.jumps), int(sum(did.steps.sum() for did in self.found.jumps))

    @functools.cached_property
    def trust(self) -> Trust:
        """How far the prices of steps can be trusted."""
        return trust(self.scenario)

    @property
    def trusts(self) -> Mapping[str, Trust]:
        """The same of queues and tails, which no measurement stands behind."""
        return {"tails": TAILS}

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the command-line contract; times in s, energy in J, power in W, money in USD."""
        head = {"name": self.scenario.name, "feasible": self.feasible, "reason": self.reason, "requests": len(self.trace)}
        tail = {**told_trust(self.scenario), "provenance": self.scenario.provenance()}
        tail["trust_of"] = {**tail["trust_of"], "tails": TAILS.to_dict()}
        if not self.feasible:
            return {**head, **tail}
        return {
            **head, "dropped": self.count - self.answered, **self.latency, "confidence": self.confidence, "attained": self.attained,
            "goodput_per_s": self.goodput, "requests_per_s": self.requests_per_second,
            "output_tokens_per_s": self.output_tokens_per_second, "span_s": self.span,
            "warm_up_s": None if math.isnan(self.phases.filled) else self.phases.filled,  # running statistics do not know it
            "cool_down_s": self.phases.emptied, "cache": dict(self.cache), "queue": dict(self.queue), "preemptions": self.preemptions,
            "adapter_loads": self.adapter_loads, "failures": None if self.availability is None else dict(self.availability),
            "replicas": None if self.running is None else dict(self.running), "utilisation": list(self.utilisation),
            "classes": list(self.classes), "encoders": None if self.encoders is None else dict(self.encoders),
            "cost": dict(self.cost), "energy_j": self.energy,
            "power_w": self.power, "joules_per_output_token": self.energy / self.written,
            "jumps": self.jumps[0], "steps": self.jumps[1], "notes": list(self.notes),
            **({} if self.congestion is None else {"congestion": self.congestion.to_dict()}), **tail,
        }  # fmt: skip

    def table(self) -> Mapping[str, Any]:
        """A row for each request: when it came, how long it is, how long it took."""
        found = self.found
        return {
            "arrival_s": found.arrival, "prompt": found.prompt, "output": found.output,
            "class": np.array([one.name for one in self.trace.classes])[found.kind], "engine": found.where,
            **{f"{name}_s": values for name, values in self.times.items()}, "queue_s": found.waits,
            "cached_tokens": found.hits, "preemptions": found.evicted, "dropped": found.dropped, "on_target": self.on_target,
        }  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Picture:
        """Load, queue, cache and power over time, and how times are distributed; into a file as well where a path is given."""
        from crossflow.answers.service.drawing import served_picture

        return served_picture(self).saved(path)

    def __repr__(self) -> str:
        if not self.feasible:
            return f"ServedRequests({self.scenario.name!r}: infeasible, {self.reason})"
        middle, tail = (show(float(self.latency["ttft_s"][name] or 0.0), "s") for name in ("p50", "p99"))
        met = "" if self.attained is None else f", {100 * self.attained:.1f} % on target"
        return f"ServedRequests({self.scenario.name!r}: {len(self.trace):,} requests, TTFT p50 {middle}, p99 {tail}{met})"


def served(scenario: Scenario, trace: RequestTrace, seed: int = 0) -> ServedRequests:
    """Replay requests through the service of a scenario; see `crossflow.serve`."""
    return ServedRequests(scenario=scenario, trace=trace, run=replayed_scenario(scenario, trace, seed))


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
        return tuple((kind.steps, kind.served) for kind in self._tally.kinds)

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
        """Requests that wait at all engines together, in the mean of the run and at most. [1]"""
        tally = self._tally
        return {"mean": tally.waits / self.span, "peak": float(self.found.peak_queue), "mean_wait_s": tally.waits / max(tally.answered, 1)}

    @functools.cached_property
    def energy(self) -> float:
        """Energy of all devices over the run, while they wait or have failed too, but not of engines that are stopped. [J]"""
        paid, busy = self.found.paid_shares * self.span, np.concatenate([kind.busy for kind in self._tally.kinds])
        watts = np.repeat([one.resting for one in self.run.kinds], [one.count for one in self.run.kinds])
        return sum(kind.energy for kind in self._tally.kinds) + float(watts @ (paid - busy)) + self.encoding

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

    def plot(self, path: str | Path | None = None) -> Picture:  # noqa: ARG002
        """Nothing that could be drawn is kept."""
        raise CrossflowError(NOT_KEPT.format(why=""))

    def table(self) -> Mapping[str, Any]:
        """No rows of requests are kept."""
        raise CrossflowError(NOT_KEPT.format(why=""))


def _spread(sketch: Sketch) -> dict[str, float | None]:
    return {"mean": sketch.mean, **{name: sketch.quantile(share) for name, share in PERCENTILES.items()}}


def _halves(batches: Batches) -> dict[str, float | None]:
    """Half of the 95 % interval of the mean and of each percentile, from those of batches, which are correlated too."""
    spreads = [_spread(one) for one in batches.whole]
    beyond = {name: batches.size * (1.0 - PERCENTILES.get(name, 0.0)) for name in ("mean", *PERCENTILES)}
    return {
        name: half_of_mean(np.array([one[name] for one in spreads], dtype=float)) if many >= BEYOND else None
        for name, many in beyond.items()
    }  # fmt: skip


def streamed(scenario: Scenario, trace: RequestTrace, seed: int = 0) -> StreamedRequests:
    """Replay requests through the service of a scenario with running statistics; see `crossflow.serve`."""
    run, done = tallied_scenario(scenario, trace, seed)
    return StreamedRequests(scenario=scenario, trace=trace, run=run, done=done)
