"""What a step loses to congestion its network between nodes: by collective, with the link that slows it, and in all."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.answers.steps import own_step
from crossflow.base.arrays import plain
from crossflow.base.results import later
from crossflow.cost.network import LaidGroups
from crossflow.hardware.architecture.network import TAIL

if TYPE_CHECKING:
    from crossflow.hardware.mapping.congestion import Slowdown
else:
    Slowdown = later("crossflow.hardware.mapping.congestion", "Slowdown")

CONGESTION = "system.network.inter.congestion"
SLOWER = 1e-9  # share by which a collective takes longer, from which on it is told
LITTLE = 0.01  # share of a step from which on it is told what its own streams add
MOST_TOLD = 4  # collectives in a note


@dataclass(frozen=True, kw_only=True)
class CongestedStep:
    """What congestion the network between nodes does to a step."""

    collectives: Mapping[tuple[str, LaidGroups], Slowdown]  # those that go between nodes, the slowest first
    # step, alone, tail: the step as it is priced, on a network of its own, and in a moment of which a twentieth is worse; None of requests
    # that are replayed, whose steps are many. [s]
    step: float | None
    alone: float | None
    tail: float | None
    streams: SharedStreams | None  # of a transformer that is no service

    def to_dict(self) -> dict[str, Any]:
        """Plain data; times in s."""
        rows = [
            {
                "collective": "handover" if laid.hands_over else name, "ranks": laid.ranks, "devices_apart": laid.stride,
                "slowdown": plain(one.priced), "slowdown_mean": plain(one.mean), "slowdown_p95": plain(one.tail),
                "bottleneck": one.bottleneck,
            }
            for (name, laid), one in self.collectives.items()
        ]  # fmt: skip
        streams = {} if self.streams is None else {"streams": self.streams.to_dict()}
        if self.alone is None or self.tail is None:
            return {"collectives": rows}
        return {"collectives": rows, "alone_step_time_s": plain(self.alone), "p95_step_time_s": plain(self.tail), **streams}

    @property
    def notes(self) -> Iterator[str]:
        """The same as sentences."""
        yield from self._of_links
        if self.streams is not None:
            yield from self.streams.notes

    @property
    def _of_links(self) -> Iterator[str]:
        """What other jobs and colliding flows do."""
        slowed = {key: one for key, one in self.collectives.items() if abs(one.priced - 1.0) > SLOWER}
        if not slowed:
            return
        told = [
            f"{_what(name, laid)} takes {_times(one.priced)} ({_times(one.tail)} in 1 of {1 / (1 - TAIL):.0f} moments; {one.bottleneck})"
            for (name, laid), one in [*slowed.items()][:MOST_TOLD]
        ]
        more = f", and {len(slowed) - MOST_TOLD} more" if len(slowed) > MOST_TOLD else ""
        yield f"congestion between nodes: {'; '.join(told)}{more}"
        if self.step is not None and self.tail is not None and np.isfinite(self.step) and self.alone:
            yield (
                f"congestion changes the step by {100 * (self.step / self.alone - 1):+.2g} %, and by"
                f" {100 * (self.tail / self.alone - 1):+.2g} % in 1 of {1 / (1 - TAIL):.0f} moments, against a network of its own"
            )


@dataclass(frozen=True, kw_only=True)
class SharedStreams:
    """What a step takes where its own streams of messages overlap on the same links, and where each has links of its own. [s]"""

    step: float
    apart: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data; times in s."""
        return {"apart_step_time_s": plain(self.apart), "longer_s": plain(self.step - self.apart)}

    @property
    def notes(self) -> Iterator[str]:
        """The same as a sentence, where it matters."""
        if np.isfinite(self.step) and self.step > (1.0 + LITTLE) * self.apart:
            yield (
                "the step's own streams of messages share links where they overlap:"
                f" it is {100 * (self.step / self.apart - 1):.2g} % longer than with links for each"
            )


def _what(name: str, laid: LaidGroups) -> str:
    """A collective in words."""
    return "handing over keys and values" if laid.hands_over else f"{name.replace('_', ' ')} of {laid.ranks}"


def _times(factor: float) -> str:
    return f"{factor:.3g} times as long" if np.isfinite(factor) else "for ever"


@functools.lru_cache(maxsize=16)
def congested_step(scenario: Scenario) -> CongestedStep | None:
    """What congestion does to the step of a scenario; None where its network is its own."""
    if scenario.system.network.inter.congestion is None:
        return None
    times: list[float | None] = [None] * 3
    if scenario.requests is None:
        times = [float(evaluate(one).step_time[0]) for one in (scenario, *(variant(scenario, given) for given in _OTHERS))]
    step, streams = own_step(scenario), None
    found = dict(sorted(step.slowed().items(), key=lambda pair: -pair[1].priced))
    if times[0] is not None and (apart := step.apart) is not None:
        streams = SharedStreams(step=times[0], apart=apart)
    return CongestedStep(collectives=found, step=times[0], alone=times[1], tail=times[2], streams=streams)


_OTHERS: tuple[Mapping[str, Any], ...] = ({CONGESTION: None}, {f"{CONGESTION}.quantile": TAIL})


def collectives_between(scenario: Scenario) -> tuple[tuple[str, LaidGroups], ...]:
    """Collectives of a step that go between nodes of a shared network, and how their groups lie."""
    return tuple(own_step(scenario).slowed())
