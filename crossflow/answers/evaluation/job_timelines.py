"""Timelines of post-training jobs: what engines and devices of training do in an iteration, phase by phase.

Weights travel to the engines first, then answers are written, models read them, and the policy trains. Each engine has a line of its own,
which shows how long it waits for the longest answer of the others. A step is one event: `simulate` without the job shows its inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.post_training import Iteration, Rollout, iteration_of, peaks_of
from crossflow.answers.evaluation.replaying import replayed_scenario
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.engine.runs.uneven import Uneven
from crossflow.engine.timeline.flat import Run, timeline_of
from crossflow.engine.timeline.record import COMPUTE, DATA, FROM_HOST, HOST, Device, Timeline
from crossflow.parallel.strategy.plan import Plan

MOST_EVENTS = 20_000  # of steps; of more, those of a phase are one event
WRITING = "rollout"
PASS, TRAINING = "_pass", "training"
UNEVEN = "{name}: devices that differ are supported for a single step only; leave out job to see its training step, or leave out --uneven"


@dataclass(frozen=True, kw_only=True)
class _PhaseSpan:
    """What a line of devices does for a while."""

    name: str
    label: str  # of its pass, whose kind it begins or ends with
    begin: float  # [s]
    end: float  # [s]
    stream: int = COMPUTE


def job_timeline(scenario: Scenario, uneven: Uneven) -> Timeline:
    """When the phases of an iteration begin and end, on every device.

    Raises
    ------
    CrossflowError
        Where the job cannot run, with the reason, and where devices differ.
    """
    if not uneven.even:
        raise CrossflowError(UNEVEN.format(name=scenario.name))
    job, score = scenario.post_training, evaluate(scenario)
    assert job is not None  # the caller has looked
    found = iteration_of(scenario, score)[0] if score.feasible[0] else None
    if found is None:
        raise CrossflowError(f"{scenario.name}: {score.why(0)}")
    rollout, ends = found.rollout, _ends(found.rollout)
    sent = _sent(rollout)
    begin = sent[-1].end if sent else 0.0
    beside = job.rollout is not None and job.rollout.beside
    trained = _trained(found, begin if beside else begin + rollout.time, len(ends) if not rollout.devices else 1)
    written = [_PhaseSpan(name=WRITING, label=WRITING, begin=begin, end=begin + end) for end in ends]
    devices = _devices(scenario, rollout, len(ends))
    if rollout.devices:
        lines = [[*sent, *trained], *([*sent, one] for one in written)]
    else:
        lines = [[*sent, *([written[i]] if ends else []), *trained] for i in range(len(devices))]
    fleet = scenario.system.in_words(scenario.devices + rollout.devices)
    made = timeline_of(
        _runs(lines, None if beside else begin + rollout.time), devices,
        title=f"{scenario.name}: {job.kind} of {scenario.workload.model} on {fleet}, {scenario.strategy_text}",
        total=float(score.job["iteration_time_s"][0]), node=scenario.nodes[0],
        memory=_memory(found, trained, begin, devices, offload=job.offload), capacity=float(score.memory_capacity[0]),
    )  # fmt: skip
    return replace(made, of="iteration")


def _ends(rollout: Rollout) -> list[float]:
    """Time that each engine writes answers of an iteration; of partial rollouts the mean of all. [s]"""
    service = rollout.service
    if service is None:
        return []
    if rollout.went is not None:
        assert isinstance(service.strategy, Plan)
        return [rollout.time * rollout.busy] * service.strategy.dp
    found = replayed_scenario(service, requests_of(service))
    ends = [float(did.ended.max(initial=0.0)) for _, did in found.writing]
    return [rollout.time * end / max(ends) for end in ends]  # those of an iteration, of answers of several that are written at once


def _devices(scenario: Scenario, rollout: Rollout, engines: int) -> list[Device]:
    """Lines of devices: those of every engine, and of training where they are others."""
    training = Device(name=TRAINING, stage=0, ranks=range(scenario.devices))
    if not engines:
        return [training]
    first, each = scenario.devices if rollout.devices else 0, (rollout.devices or scenario.devices) // engines
    stage = int(first > 0)
    own = [Device(name=f"engine {i}", stage=stage, ranks=range(first + i * each, first + (i + 1) * each)) for i in range(engines)]
    return [training, *own] if rollout.devices else own


def _sent(rollout: Rollout) -> list[_PhaseSpan]:
    """How weights reach the engines, and these wake up."""
    return _in_a_row(0.0, [
        ("weights send_recv" if rollout.devices else "weights all_gather", "transfer", rollout.transfer, DATA),
        ("engines wake up", "refit", rollout.refit, HOST),
    ])  # fmt: skip


def _trained(found: Iteration, begin: float, lines: int) -> list[_PhaseSpan]:
    """What devices of training do with the answers: passes, training steps, and what the trainer takes beside them."""
    many = sum(often for often, _ in found.steps.values()) * lines > MOST_EVENTS
    spans = list[tuple[str, str, float, int]]()
    if "handling" in found.times:
        spans.append(("answers are packed", "handling", found.times["handling"], HOST))
    for name, (often, score) in found.steps.items():
        label = f"{name.removesuffix(PASS)} forward" if name.endswith(PASS) else name.replace("_", " ")
        steps = 1 if many else round(often)
        time = float(score.step_time[0]) * often / steps
        spans += [(label, f"{label} {i}", time, COMPUTE) for i in range(steps)]
    if "moving" in found.times:
        spans.append(("models host_copy", "moving", found.times["moving"], FROM_HOST))
    return _in_a_row(begin, spans)


def _in_a_row(begin: float, spans: Sequence[tuple[str, str, float, int]]) -> list[_PhaseSpan]:
    """Spans one after the other, without those that take no time."""
    found = list[_PhaseSpan]()
    for name, label, time, stream in spans:
        if time > 0:
            found.append(_PhaseSpan(name=name, label=label, begin=begin, end=begin + time, stream=stream))
            begin += time
    return found


def _runs(lines: Sequence[Sequence[_PhaseSpan]], written: float | None) -> list[Run]:
    """Events of all lines; what begins when all answers are written waits for the engine that ends last."""
    where = [(i, span) for i, line in enumerate(lines) for span in line]
    writes = [k for k, (_, span) in enumerate(where) if span.name == WRITING]
    last = max(writes, key=lambda k: where[k][1].end, default=None)
    return [
        Run(
            device=i, stream=span.stream, name=span.name, label=span.label, start=span.begin, end=span.end,
            after=(last,) if last is not None and span.begin == written and k not in writes else (),
        )
        for k, (i, span) in enumerate(where)
    ]  # fmt: skip


def _memory(
    found: Iteration, trained: Sequence[_PhaseSpan], begin: float, devices: Sequence[Device], *, offload: bool
) -> list[tuple[Array, Array]]:
    """What devices hold from the beginning of each phase on: of each model the most that its phase takes. [s], [B]"""
    peaks, rollout = peaks_of(found.held, found.rollout, offload=offload), found.rollout
    own = [(span.begin, _peak_of(span, peaks)) for span in trained if span.stream == COMPUTE]
    waiting = 0.0 if offload else sum(one.state for one in found.held.values())
    first = [(0.0, waiting)] if rollout.devices or rollout.service is None else [(0.0, waiting), (begin, peaks[WRITING])]
    training, engines = first + own, [(0.0, rollout.weights), (begin, rollout.memory)]
    each = [training if device.name == TRAINING or not rollout.devices else engines for device in devices]
    return [(np.array([time for time, _ in one]), np.array([size for _, size in one])) for one in each]


def _peak_of(span: _PhaseSpan, peaks: dict[str, float]) -> float:
    """What the device holds in a phase of a model. [B]"""
    if span.name.endswith(" forward"):
        model = span.name.removesuffix(" forward")
        return peaks[f"{model} pass" if f"{model} pass" in peaks else model]
    return peaks["policy" if span.name == TRAINING else span.name.removesuffix(f" {TRAINING}")]
