"""Figures of a service that was replayed: times, targets, throughput, queue, cache, energy and money of all requests together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.answers.evaluation.common import rents
from crossflow.answers.evaluation.replay_statistics import Phases, phases, spread
from crossflow.answers.evaluation.replaying import ReplayedScenario, replayed_scenario
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import Array, Mask
from crossflow.engine.service.replayed import ServiceReplay
from crossflow.workload.requests.record import RequestTrace

UNSERVED = "none of {n} requests has room: a prompt with its output is longer than the cache of an engine, or than a step may read"


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayFigures:
    """What a replay says of all of its requests together.

    Attributes
    ----------
    scenario : the service.
    trace : the requests.
    run : engines, and what became of requests.
    """

    scenario: Scenario
    trace: RequestTrace
    run: ReplayedScenario

    # ---------------------------------------------------------------------------------------- whether it works

    @property
    def feasible(self) -> bool:
        """Whether any request can be answered."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why no request can be answered, in a sentence; None where some can."""
        if self.run.found is None:
            return self.run.problem
        return UNSERVED.format(n=len(self.trace)) if self.run.found.dropped.all() else None

    @property
    def found(self) -> ServiceReplay:
        """Times of every request; only where the service is feasible."""
        assert self.run.found is not None
        return self.run.found

    # ---------------------------------------------------------------------------------------- times

    @functools.cached_property
    def times(self) -> Mapping[str, Array]:
        """Times of every request by name: ``ttft``, ``tpot``, ``e2e``. [s]"""
        return self.found.times

    @functools.cached_property
    def latency(self) -> Mapping[str, Mapping[str, float | None]]:
        """Mean and percentiles of ``ttft_s``, ``tpot_s``, ``itl_s`` (every time between two tokens) and ``e2e_s``. [s]"""
        found = {f"{name}_s": spread(values) for name, values in self.times.items()}
        gaps = spread(self.found.gap, self.found.gaps)
        return {"ttft_s": found["ttft_s"], "tpot_s": found["tpot_s"], "itl_s": gaps, "e2e_s": found["e2e_s"]}

    @functools.cached_property
    def on_target(self) -> Mask:
        """Requests that met all targets of their class; those without targets met them, those that were not answered did not."""
        met = ~self.found.dropped
        for name, values in self.times.items():
            most = np.array([np.inf if (target := getattr(one, name)) is None else target for one in self.trace.classes])
            met = met & ~(values > most[self.found.kind])
        return met

    @property
    def has_targets(self) -> bool:
        """Whether any class has a target."""
        return any(getattr(one, name) is not None for one in self.trace.classes for name in ("ttft", "tpot", "e2e"))

    @property
    def attained(self) -> float | None:
        """Share of requests that met their targets; None where no class has any. [1]"""
        return float(self.on_target.mean()) if self.has_targets else None

    # ---------------------------------------------------------------------------------------- throughput

    @functools.cached_property
    def span(self) -> float:
        """Time from the first arrival to the last token. [s]"""
        return max(float(np.nanmax(self.found.last) - self.found.arrival.min()), 1e-12)

    @functools.cached_property
    def phases(self) -> Phases:
        """How the run begins and ends."""
        answered = self.found.answered
        return phases(self.found.arrival[answered], self.found.last[answered])

    @property
    def requests_per_second(self) -> float:
        """Requests that are answered in a second of the run. [1/s]"""
        return float(self.found.answered.sum()) / self.span

    @property
    def output_tokens_per_second(self) -> float:
        """Tokens that are written in a second of the run. [1/s]"""
        return self.written / self.span

    @property
    def written(self) -> float:
        """Tokens that were written for requests. [1]"""
        return float(self.found.output[self.found.answered].sum())

    @property
    def goodput(self) -> float | None:
        """Requests a second that met their targets; None where no class has any. [1/s]"""
        return float(self.on_target.sum()) / self.span if self.has_targets else None

    @property
    def preemptions(self) -> int:
        """Times that a request lost its room in the cache and was computed anew. [1]"""
        return int(self.found.evicted.sum())

    @functools.cached_property
    def utilisation(self) -> tuple[float, ...]:
        """Share of the run in which each engine works, those that only read first. [1]"""
        return tuple(jumps.busy / self.span for _, jumps in self.run.engines)

    @functools.cached_property
    def cache(self) -> Mapping[str, float | None]:
        """Cache of the engines that write: its tokens, the share that requests use, and the share of prompts that was found in it."""
        engines = self.run.engines[-self.run.writers.count :]
        pages, page = self.run.writers.limits.pages, self.run.writers.limits.page
        used = sum(float(jumps.pages @ (jumps.ended - jumps.begun)) for _, jumps in engines) / (self.span * len(engines) * pages)
        most = max((float(jumps.pages.max(initial=0.0)) for _, jumps in engines), default=0.0) / pages
        answered = self.found.answered
        hits = float(self.found.hits[answered].sum()) / max(float(self.found.prompt[answered].sum()), 1.0)
        return {
            "tokens": float(pages * page), "page_tokens": float(page), "mean_use": used, "peak_use": most,
            "hit_rate": hits if self.trace.blocks is not None else None,
        }  # fmt: skip

    @functools.cached_property
    def queue(self) -> Mapping[str, float]:
        """Requests that wait for an engine that has others, in the mean of the run and at most. [1]"""
        waits = self.found.waits
        longest = max((float(jumps.queue.max(initial=0.0)) for _, jumps in self.run.engines), default=0.0)
        return {"mean": float(np.nansum(waits)) / self.span, "peak": longest, "mean_wait_s": float(np.nanmean(waits))}

    # ---------------------------------------------------------------------------------------- energy and money

    @functools.cached_property
    def energy(self) -> float:
        """Energy of all devices over the run, while they wait too. [J]"""
        resting = zip(self.run.engines, self.run.resting, strict=True)
        idle = sum(watts * (self.span - jumps.busy) for (_, jumps), watts in resting)
        return sum(float(each.sum()) for each in self.run.energies) + idle

    @property
    def power(self) -> float:
        """Mean power of all devices over the run. [W]"""
        return self.energy / self.span

    @functools.cached_property
    def rent(self) -> float | None:
        """Rent of all devices; None where the system has no price (``system.operation.price``). [USD/s]"""
        fleets = [replace(kind.fleet, devices=kind.count * kind.fleet.devices) for kind in self.run.kinds]
        rate = float(rents(fleets, self.scenario.workload.dtype, 1)[0][0])
        return None if np.isnan(rate) else rate

    @property
    def cost(self) -> Mapping[str, float | None]:
        """Rent of the run, of a million tokens that are written, and of an answered request (on target where there are targets). [USD]"""
        names = ("usd", "usd_per_million_output_tokens", "usd_per_request", "usd_per_request_on_target")
        if self.rent is None:
            return dict.fromkeys(names)
        spent, answered, good = self.rent * self.span, float(self.found.answered.sum()), float(self.on_target.sum())
        each = spent / good if good and self.has_targets else None
        return dict(zip(names, (spent, 1e6 * spent / self.written, spent / answered, each), strict=True))

    @functools.cached_property
    def classes(self) -> tuple[Mapping[str, Any], ...]:
        """Figures of every class that requests are of."""
        return tuple(self._class(i) for i in range(len(self.trace.classes)) if (self.found.kind == i).any())

    def _class(self, i: int) -> Mapping[str, Any]:
        one, mine = self.trace.classes[i], self.found.kind == i
        targets = {f"{name}_s": getattr(one, name) for name in ("ttft", "tpot", "e2e") if getattr(one, name) is not None}
        return {
            "name": one.name, "requests": int(mine.sum()), "dropped": int(self.found.dropped[mine].sum()), "targets": targets,
            "attained": float(self.on_target[mine].mean()) if targets else None,
            **{f"{name}_s": spread(values[mine]) for name, values in self.times.items()},
        }  # fmt: skip

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the run, as sentences."""
        if not self.feasible:
            return ()
        return tuple(self._noted())

    def _noted(self) -> list[str]:
        found, n = [], len(self.found.arrival)
        if lost := int(self.found.dropped.sum()):
            found.append(
                f"{lost:,} of {n:,} requests were dropped, which no engine can hold: prompt and output are longer than the cache "
                f"({self.cache['tokens']:,.0f} tokens), or prompts are read whole and one is longer than a step "
                f"({self.run.kinds[0].limits.chunk:,} tokens)"
            )
        if self.phases.grows:
            found.append(
                "requests come faster than they are answered: the queue still grows at the last arrival, and times depend on the run"
            )
        begun = self.phases.filled + self.phases.emptied
        if begun > 0.2 * self.span and not self.phases.grows:
            found.append(f"warm-up and cool-down are {100 * begun / self.span:.0f} % of the run: a longer trace says more of a steady load")
        ranked = self.scenario.stack is not None and self.scenario.stack.engine.queue == "priority"
        if ranked != (len({one.priority for one in self.trace.classes}) > 1):
            found.append(
                "software.engine.queue: priority changes nothing: all classes have one priority" if ranked
                else "priorities of classes change nothing: requests wait in order of arrival; give software.engine.queue: priority"
            )  # fmt: skip
        if getattr(self.scenario.workload.serving, "speculation", None) is not None:  # type: ignore[union-attr] # of a transformer
            found.append("speculation gives each request the mean number of tokens in every step")
        return found


def replayed_figures(scenario: Scenario, trace: RequestTrace) -> ReplayFigures:
    """Figures of requests that are replayed through the service of a scenario; see `replayed_scenario`."""
    return ReplayFigures(scenario=scenario, trace=trace, run=replayed_scenario(scenario, trace))
