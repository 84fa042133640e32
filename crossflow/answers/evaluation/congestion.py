"""What a step loses to congestion its network between nodes: by collective, with the link that slows it, and in all."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.common import PointBatch
from crossflow.answers.evaluation.figures import task_of
from crossflow.answers.evaluation.layered import own_laid
from crossflow.answers.evaluation.members import own_members
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import plain
from crossflow.cost.network import LaidGroups, Wires, message_steps
from crossflow.engine.runs.transformer import transformer_step
from crossflow.hardware.mapping.congestion import TAIL, Slowdown
from crossflow.parallel.strategy.plan import Plan

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
    slowed, streams = _slowed(scenario)
    found = dict(sorted(slowed.items(), key=lambda pair: -pair[1].priced))
    return CongestedStep(collectives=found, step=times[0], alone=times[1], tail=times[2], streams=streams)


_OTHERS: tuple[Mapping[str, Any], ...] = ({CONGESTION: None}, {f"{CONGESTION}.quantile": TAIL})


Slowed: TypeAlias = Mapping[tuple[str, LaidGroups], Slowdown]  # what every collective between nodes loses


def collectives_between(scenario: Scenario) -> tuple[tuple[str, LaidGroups], ...]:
    """Collectives of a step that go between nodes of a shared network, and how their groups lie."""
    return tuple(_slowed(scenario)[0])


def _slowed(scenario: Scenario) -> tuple[Slowed, SharedStreams | None]:
    """What collectives lose; and what the streams of a step do that is of no service."""
    if task_of(scenario) == "serving":
        return _of_service(scenario), None
    return _of_plan(scenario) if isinstance(scenario.strategy, Plan) else (_of_program(scenario), None)


def _of_plan(scenario: Scenario) -> tuple[Slowed, SharedStreams]:
    """What collectives of a transformer lose, from what the prices of its step ask for; and what its own streams do."""
    laid = own_laid(scenario)
    runs_on = replace(laid.machine)  # with wires that have priced nothing yet
    step, apart = (float(transformer_step(laid.job, laid.layout, one).total[0]) for one in (runs_on, replace(runs_on, apart=True)))
    return runs_on.wires.slowed, SharedStreams(step=step, apart=apart)


def _of_service(scenario: Scenario) -> Slowed:
    """What collectives of engines lose, and keys and values on their way between them."""
    from crossflow.answers.evaluation.serving import run_on  # with queues, which few congested steps need

    runs_on = replace(own_laid(scenario).machine)
    run_on(PointBatch(scenario=scenario, system=scenario.system, device=scenario.architecture, members=own_members(scenario)), runs_on)
    return runs_on.wires.slowed


def _of_program(scenario: Scenario) -> Slowed:
    """What collectives of a program lose."""
    # With what runs programs and shards tables, which few congested steps need, and no other.
    from crossflow.answers.evaluation.programs import placed
    from crossflow.answers.evaluation.recommendation import step_program

    program = step_program(scenario)
    own = None if scenario.stack is None else scenario.stack.peer_all_reduce
    wires = Wires(network=scenario.system.network, architecture=scenario.architecture, node=scenario.nodes[0], all_reduce=own)
    placement = placed(scenario, program, scenario.architecture)
    for message in program.messages:
        for size, route, model in message_steps(message, placement, wires):
            if size[0] > 0 and route.size > 1 and message.time is None:
                model(size)
    return wires.slowed
