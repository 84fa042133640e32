"""Figures of a service that was replayed: times, targets, throughput, queue, cache, energy and money of all requests together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.evaluation.replay_statistics import Phases, phases, spread
from crossflow.answers.evaluation.replaying import ReplayedScenario, replayed_scenario
from crossflow.answers.evaluation.scoring import rents
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.services import between_nodes, unlike_images
from crossflow.base.arrays import Array, Mask
from crossflow.base.results import later
from crossflow.base.stages import stage
from crossflow.engine.service.replayed import ServiceReplay
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.serving_spec import ServingSpec

if TYPE_CHECKING:
    from crossflow.answers.evaluation.congestion import CongestedStep
else:
    CongestedStep = later("crossflow.answers.evaluation.congestion", "CongestedStep")

UNSERVED = "none of {n} requests has room: a prompt with its output is longer than the cache of an engine, or than a step may read"
CROWDED = 0.25  # share of their time that requests of a closed loop wait, beyond which they are told to be too many
_TIMES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}  # columns begin so, and the times of a replay


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
        return None if self.answered else UNSERVED.format(n=len(self.trace))

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
        return ~self.found.dropped & self.trace.on_target(self.times, self.found.kind)

    @property
    def has_targets(self) -> bool:
        """Whether any class has a target."""
        return any(one.targeted for one in self.trace.classes)

    @property
    def attained(self) -> float | None:
        """Share of requests that met their targets; None where no class has any. [1]"""
        return self.met / self.count if self.has_targets else None

    # ---------------------------------------------------------------------------------------- numbers of requests

    @property
    def count(self) -> int:
        """Requests that arrived. [1]"""
        return len(self.found.arrival)

    @functools.cached_property
    def answered(self) -> int:
        """Requests that were answered. [1]"""
        return int(self.found.answered.sum())

    @functools.cached_property
    def met(self) -> int:
        """Requests that met all targets of their class. [1]"""
        return int(self.on_target.sum())

    @functools.cached_property
    def moved(self) -> int:
        """Times that an engine failed under a request. [1]"""
        return int(self.found.moved.sum())

    @functools.cached_property
    def computed(self) -> float:
        """Tokens of prompts that were read, and tokens that were written, those that were lost again included. [1]"""
        return sum(float(jumps.wrote.sum() + jumps.tokens.sum()) for jumps in self.found.jumps)

    # ---------------------------------------------------------------------------------------- throughput

    @functools.cached_property
    def span(self) -> float:
        """Time from the first arrival to the last token. [s]"""
        return max(float(np.nanmax(self.found.last) - self.found.arrival.min()), 1e-12)

    @functools.cached_property
    def phases(self) -> Phases:
        """How the run begins and ends."""
        answered = self.found.answered
        return phases(self.found.arrival[answered], self.found.last[answered], self.trace.first[self.found.index[answered]])

    @property
    def waiting(self) -> float:
        """Share of their time that requests spend in queues. [1]"""
        return self.queue["mean_wait_s"] / max(self.latency["e2e_s"]["mean"] or 0.0, 1e-12)

    @property
    def requests_per_second(self) -> float:
        """Requests that are answered in a second of the run. [1/s]"""
        return self.answered / self.span

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
        return self.met / self.span if self.has_targets else None

    @property
    def preemptions(self) -> int:
        """Times that a request lost its room in the cache and was computed anew. [1]"""
        return int(self.found.evicted.sum()) - self.moved

    @property
    def adapter_loads(self) -> int | None:
        """Adapters that engines fetched from their hosts; None where a service has none. [1]"""
        return None if self.scenario.job().adapters is None else self.found.loads

    @functools.cached_property
    def utilisation(self) -> tuple[float, ...]:
        """Share of the time that it is paid for in which each engine works, those that only read first. [1]"""
        shares = np.maximum(self.found.paid_shares * self.span, 1e-12)
        return tuple(jumps.busy / paid for (_, jumps), paid in zip(self.run.engines, shares.tolist(), strict=True))

    @functools.cached_property
    def cache(self) -> Mapping[str, float | None]:
        """Cache of the engines that write: its tokens (of a replica), the share that requests use, and that of prompts found in it."""
        engines, tokens = self.run.writing, self.run.writers.limits.pages * self.run.writers.limits.page
        held = [one.limits.pages * one.limits.page for one, _ in engines]
        paid = self.found.paid_shares[-len(engines) :] * self.span
        used = sum(float(jumps.pages @ (jumps.ended - jumps.begun)) * one.limits.page for one, jumps in engines) / float(paid @ held)
        most = max((float(jumps.pages.max(initial=0.0)) / one.limits.pages for one, jumps in engines), default=0.0)
        answered = self.found.answered
        hits = float(self.found.hits[answered].sum()) / max(float(self.found.prompt[answered].sum()), 1.0)
        return {
            "tokens": float(tokens), "page_tokens": float(self.run.writers.limits.page), "mean_use": used, "peak_use": most,
            "hit_rate": hits if self.trace.blocks is not None else None,
        }  # fmt: skip

    @functools.cached_property
    def queue(self) -> Mapping[str, float]:
        """Requests that wait at all engines together, in the mean of the run and at most. [1]"""
        waits = self.found.waits
        return {"mean": float(np.nansum(waits)) / self.span, "peak": float(self.found.peak_queue), "mean_wait_s": float(np.nanmean(waits))}

    # ---------------------------------------------------------------------------------------- energy and money

    @functools.cached_property
    def energy(self) -> float:
        """Energy of all devices over the run, while they wait or have failed too, but not of engines that are stopped. [J]"""
        resting = zip(self.run.engines, self.run.resting, self.found.paid_shares, strict=True)
        idle = sum(watts * (self.span * paid - jumps.busy) for (_, jumps), watts, paid in resting)
        return float(sum(float(each.sum()) for each in self.run.energies) + idle + self.encoding)

    @property
    def encoding(self) -> float:
        """Energy of encoders of images over the run, while they wait too; nothing without any. [J]"""
        pool, did = self.run.encoders, self.found.images
        return 0.0 if pool is None or did is None else pool.energy(did.requests, self.span)

    @property
    def power(self) -> float:
        """Mean power of all devices over the run. [W]"""
        return self.energy / self.span

    @functools.cached_property
    def rent(self) -> float | None:
        """Rent of all devices that run, in the mean; None where the system has no price (``system.operation.price``). [USD/s]"""
        paid = iter(self.found.paid_shares.tolist())
        often = [sum(next(paid) for _ in range(kind.count)) for kind in self.run.kinds]
        fleets = [replace(one, devices=n * one.devices) for n, kind in zip(often, self.run.kinds, strict=True) for one in kind.fleets]
        if (encoders := self.run.encoders) is not None:
            fleets.append(encoders.all)
        rate = float(rents(fleets, self.scenario.workload.dtype, 1)[0][0])
        return None if np.isnan(rate) else rate

    @property
    def cost(self) -> Mapping[str, float | None]:
        """Rent of the run, of a million tokens that are written, and of an answered request (on target where there are targets). [USD]"""
        names = ("usd", "usd_per_million_output_tokens", "usd_per_request", "usd_per_request_on_target")
        if self.rent is None:
            return dict.fromkeys(names)
        spent, answered, good = self.rent * self.span, self.answered, self.met
        each = spent / good if good and self.has_targets else None
        return dict(zip(names, (spent, 1e6 * spent / self.written, spent / answered, each), strict=True))

    # ---------------------------------------------------------------------------------------- engines that come and go

    @functools.cached_property
    def encoders(self) -> Mapping[str, float] | None:
        """Encoders of images: how many, the share of the run in which they work, and what a request waits for one; None without."""
        pool, did = self.run.encoders, self.found.images
        if pool is None or did is None:
            return None
        with_images = sum(did.requests[1:])
        return {
            "count": float(pool.times.count), "utilisation": pool.busy(did.requests) / (pool.times.count * self.span),
            "mean_wait_s": did.waited / max(with_images, 1), "requests": float(with_images),
        }  # fmt: skip

    @functools.cached_property
    def availability(self) -> Mapping[str, float] | None:
        """Failures of engines, share of their time that they serve, and of computed tokens that were lost; None where none can fail."""
        if self._serving.failures is None:
            return None
        found, paid = self.found, float(self.found.paid_shares.sum())
        begin, end = found.window
        failed = sum(int(((spans[:, 0] >= begin) & (spans[:, 0] < end)).sum()) for spans in found.broken)
        return {
            "failures": float(failed), "available": 1.0 - float(found.broken_shares.sum()) / paid,
            "lost_work": found.lost / max(self.computed, 1.0), "moved_requests": float(self.moved),
        }  # fmt: skip

    @functools.cached_property
    def running(self) -> Mapping[str, float] | None:
        """Replicas of the strategy that run, in the mean of the run and at most, and how many are started; None without autoscaling."""
        if self._serving.autoscale is None:
            return None
        first = 0 if self.run.readers is None else self.run.readers.count
        mine = slice(first, first + self.run.writers.count)
        spans = np.concatenate([one for one in self.found.paid[mine] if len(one)])
        times = np.concatenate([[-np.inf], spans[np.isfinite(spans)]])  # at which their number changes
        most = max(int(((spans[:, 0] <= time) & (time < spans[:, 1])).sum()) for time in times)
        return {"mean": float(self.found.paid_shares[mine].sum()), "most": float(most), "started": float(np.isfinite(spans[:, 0]).sum())}

    @property
    def _serving(self) -> ServingSpec:
        return self.scenario.workload.service

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
        return (*slips(self.scenario), *(self._noted() if self.feasible else ()))

    def _noted(self) -> list[str]:
        found, n = list[str](), self.count
        if lost := n - self.answered:
            found.append(
                f"{lost:,} of {n:,} requests were dropped, which no engine can hold: prompt and output are longer than the cache "
                f"({self.cache['tokens']:,.0f} tokens), or prompts are read whole and one is longer than a step "
                f"({self.run.kinds[0].limits.chunk:,} tokens)"
            )
        if self.phases.grows:
            found.append(
                "requests come faster than they are answered: the queue still grows at the last arrival, and times depend on the run"
            )
        overloaded = self.phases.grows
        if not overloaded and (self.trace.follows >= 0).any() and self.waiting > CROWDED:
            overloaded = True
            found.append(
                f"overload: requests spend {100 * self.waiting:.0f} % of their time in queues; as the next ones are sent only after an "
                "answer, the queue has an end, but times depend on how many users there are"
            )
        begun = self.phases.filled + self.phases.emptied
        if begun > 0.2 * self.span and not overloaded:
            found.append(f"warm-up and cool-down are {100 * begun / self.span:.0f} % of the run: a longer trace says more of a steady load")
        order = "arrival" if self.scenario.stack is None else self.scenario.stack.engine.queue
        ranked = order == "priority"
        if ranked != (len({one.priority for one in self.trace.classes}) > 1):
            found.append(
                "software.engine.queue: priority changes nothing: all classes have one priority" if ranked
                else f"priorities of classes change nothing: requests wait in order of {order}; give software.engine.queue: priority"
            )  # fmt: skip
        if getattr(self.scenario.workload.serving, "speculation", None) is not None:  # type: ignore[union-attr] # of a transformer
            found.append("speculation gives each request the mean number of tokens in every step")
        found.extend(between_nodes(self.scenario))
        found.extend(unlike_images(self.scenario.workload))
        if self.congestion is not None:
            found.extend(self.congestion.notes)
        return found

    @functools.cached_property
    def congestion(self) -> CongestedStep | None:
        """What engines lose to other jobs and to colliding flows on the network between nodes; None where they have that to themselves."""
        from crossflow.answers.evaluation.congestion import congested_step  # which evaluates, as what asks for this does

        return congested_step(self.scenario)


@stage("replay")
def replayed_figures(scenario: Scenario, trace: RequestTrace) -> ReplayFigures:
    """Figures of requests that are replayed through the service of a scenario; see `replayed_scenario`."""
    return ReplayFigures(scenario=scenario, trace=trace, run=replayed_scenario(scenario, trace))


def columns_of(found: ReplayFigures) -> dict[str, float]:
    """Figures of a replayed service by column; NaN where a run has none, as a time between tokens of requests that write one."""
    times = {
        f"{name}_s" if tail == "mean" else f"{name}_{tail}_s": value
        for name, held in _TIMES.items()
        for tail, value in found.latency[held].items()
    }
    read = float(found.found.prompt[found.found.answered].sum())
    figures: dict[str, float | None] = {
        **times, "input_throughput_tokens_per_s": read / found.span, "output_throughput_tokens_per_s": found.output_tokens_per_second,
        "request_throughput_per_s": found.requests_per_second, "requests_waiting": found.queue["mean"], "attained": found.attained,
        "goodput_per_s": found.goodput, "preemptions": found.preemptions, "dropped": found.count - found.answered,
        "queue_mean": found.queue["mean"], "queue_peak": found.queue["peak"], "cache_hit_rate": found.cache["hit_rate"],
        "cache_mean_use": found.cache["mean_use"], "cache_peak_use": found.cache["peak_use"], "replay_span_s": found.span,
        "replayed_requests": len(found.trace), **{f"attained.{one['name']}": one["attained"] for one in found.classes},
    }  # fmt: skip
    return {name: np.nan if value is None else float(value) for name, value in figures.items()}
