"""What a replay of requests through a service has to say: times, targets, throughput, cache, energy, money."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.bands import Trust
from crossflow.answers.evaluation.likeness import ARRIVING, told_trust, trust
from crossflow.answers.evaluation.replay_figures import ReplayFigures
from crossflow.answers.evaluation.replay_statistics import confidence, inside, mean_inside, over_time
from crossflow.answers.evaluation.replaying import replayed_scenario
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import Array
from crossflow.base.results import PlainData, Tabular
from crossflow.base.units import show
from crossflow.workload.requests.record import RequestTrace

if TYPE_CHECKING:
    from crossflow.base.drawing.picture import Picture

MOMENTS = 240  # points of series over time
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
        writers = self.run.writing
        used = sum(over_time(jumps, jumps.pages, edges) * one.limits.page for one, jumps in writers)
        room = sum(share * one.limits.pages * one.limits.page for (one, _), share in zip(writers, paid[-len(writers) :], strict=True))
        return {
            "time_s": 0.5 * (edges[1:] + edges[:-1]) - begin,
            "arrivals_per_s": np.histogram(self.found.arrival, edges)[0] / width,
            "requests": mean_inside(self.found.arrival[answered], self.found.last[answered], edges),
            "waiting": mean_inside(self.found.arrival[answered], self.found.begun[answered], edges)
            + mean_inside(self.found.first[answered], (self.found.first + self.found.waited)[answered], edges),
            "output_tokens_per_s": sums([jumps.steps * jumps.writers / last for (_, jumps), last in zip(engines, lasts, strict=True)]),
            "prompt_tokens_per_s": sums([jumps.tokens / last for (_, jumps), last in zip(engines, lasts, strict=True)]),
            "cache_use": np.asarray(used) / np.maximum(room, 1e-12),
            "busy": sums([np.ones(len(jumps.begun)) for _, jumps in engines]) / np.maximum(sum(paid), 1e-12),
            "engines": np.asarray(sum(paid)),
            "power_w": sums(powers) + sum(watts * share for watts, share in zip(resting, paid, strict=True)),
        }  # fmt: skip

    @functools.cached_property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """Steps of the engines of each kind, and tokens that they wrote. [1]"""
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
            "output_tokens_per_s": self.output_tokens_per_second, "span_s": self.span, "warm_up_s": self.phases.filled,
            "cool_down_s": self.phases.emptied, "cache": dict(self.cache), "queue": dict(self.queue), "preemptions": self.preemptions,
            "failures": None if self.availability is None else dict(self.availability),
            "replicas": None if self.running is None else dict(self.running), "utilisation": list(self.utilisation),
            "classes": list(self.classes),
            "cost": dict(self.cost), "energy_j": self.energy,
            "power_w": self.power, "joules_per_output_token": self.energy / self.written,
            "jumps": self.jumps[0], "steps": self.jumps[1], "notes": list(self.notes), **tail,
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

    def plot(self) -> Picture:
        """Load, queue, cache and power over time, and how times are distributed."""
        from crossflow.answers.service.drawing import served_picture

        return served_picture(self)

    def __repr__(self) -> str:
        if not self.feasible:
            return f"ServedRequests({self.scenario.name!r}: infeasible, {self.reason})"
        middle, tail = (show(float(self.latency["ttft_s"][name] or 0.0), "s") for name in ("p50", "p99"))
        met = "" if self.attained is None else f", {100 * self.attained:.1f} % on target"
        return f"ServedRequests({self.scenario.name!r}: {len(self.trace):,} requests, TTFT p50 {middle}, p99 {tail}{met})"


def served(scenario: Scenario, trace: RequestTrace, seed: int = 0) -> ServedRequests:
    """Replay requests through the service of a scenario; see `crossflow.serve`."""
    return ServedRequests(scenario=scenario, trace=trace, run=replayed_scenario(scenario, trace, seed))
