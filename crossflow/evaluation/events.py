"""Different events of a step: what would have to be measured to know all of it, and how often each recurs [1]_.

References
----------
.. [1] Lu et al., "DistSim: A performance model of large-scale hybrid distributed DNN training", CF 2023, Sec. 4.1 and Table 3.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from crossflow.arrays import Array, plain
from crossflow.cost.parts import kernel_costs, kernel_shapes
from crossflow.cost.profile import PROFILED, SCOPES, message_shape, optimizer_shape, parties
from crossflow.cost.roofline import wide_type
from crossflow.errors import CrossflowError, with_article
from crossflow.evaluation.layered import machine
from crossflow.parallel import Layout, Plan
from crossflow.parallel.blocks import units
from crossflow.parallel.kernels import PHASES
from crossflow.parallel.layout import Group
from crossflow.scenario import Scenario, check_strategy
from crossflow.step import Machine
from crossflow.step.handovers import boundaries
from crossflow.step.offload import kept_on_host
from crossflow.step.passes import optimizer_costs
from crossflow.step.task import Task, task_of
from crossflow.step.transformer import transformer_step
from crossflow.workload.job import Job

NODES = 2  # on which everything can be measured: the fewest that have a network between them


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event and how often it recurs; its identity as in a profile (`crossflow.cost.profile`).

    Attributes
    ----------
    op, shape, dtype, device : what runs, on what, in which type, on which system.
    ranks, scope : of a collective how many take part, and whether inside a node (intra) or between nodes (inter).
    time, spread : of one, as predicted or measured. [s]
    count : how often it occurs in a step, on all devices; a collective once for all its ranks, a transfer once for its sender. [1]
    """

    op: str
    shape: str
    dtype: str
    device: str
    ranks: int
    scope: str
    time: float
    spread: float
    count: float


@dataclass(frozen=True, kw_only=True)
class EventList:
    """Different events of a step.

    Attributes
    ----------
    events : those that take most time on all devices first.
    step : device-time of a whole step, all devices. [s]
    profiling : device-time to run each event once on two nodes, all-reduces on 8 ranks at most. [s]
    """

    events: tuple[Event, ...]
    step: float
    profiling: float

    @property
    def recurrences(self) -> float:
        """Events of a step, each with its recurrences. [1]"""
        return sum(event.count for event in self.events)

    @property
    def relative(self) -> float:
        """Device-time of measuring over that of running the step, the paper's Table 3. [1]"""
        return self.profiling / self.step

    def to_dict(self) -> dict[str, Any]:
        """Plain data; times in s."""
        names = [field.name for field in fields(Event)]
        return {
            "events": [{name: plain(value) for name, value in zip(names, astuple(event), strict=True)} for event in self.events],
            "recurrences": self.recurrences,
            "step_device_time_s": self.step,
            "profiling_device_time_s": self.profiling,
            "relative": self.relative,
        }

    def to_csv(self) -> str:
        """A profile with the predicted times, to be filled with measured ones."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([field.name for field in fields(Event)])
        writer.writerows([f"{value:.9g}" if isinstance(value, float) else value for value in astuple(event)] for event in self.events)
        return text.getvalue()


def events(scenario: Scenario) -> EventList:
    """Different events of a transformer's step.

    Raises
    ------
    CrossflowError
        For other workloads.
    """
    plan = scenario.strategy
    if not isinstance(plan, Plan):
        raise CrossflowError(f"events are listed of transformers; {scenario.name} is {with_article(scenario.workload.model)}")
    check_strategy(scenario)
    runs_on = machine(scenario, scenario.architecture)
    layout, job = Layout.of([plan], np.array([float(scenario.workload_batch)]), runs_on.node), scenario.job()
    case = _Case(plan=plan, layout=layout, job=job, machine=runs_on, task=task_of(job, layout, runs_on.stack))
    sums: dict[tuple[str, str, str, int, str], list[float]] = {}
    for key, time, count in (*_kernels(case), *_updates(case), *_messages(case)):
        entry = sums.setdefault(key, [time, 0.0])
        entry[1] += count
    name, profile = scenario.system.name, runs_on.profile
    measured = {key: None if profile is None else profile.event(key) for key in sums}
    found = [
        Event(
            op=op, shape=shape, dtype=dtype, device=name, ranks=ranks, scope=scope, time=time, count=count,
            spread=0.0 if (one := measured[op, shape, dtype, ranks, scope]) is None else one.spread,
        )
        for (op, shape, dtype, ranks, scope), (time, count) in sums.items()
        if count and time > 0
    ]  # fmt: skip
    found.sort(key=lambda event: -event.time * event.count * event.ranks)
    step = float(transformer_step(job, layout, runs_on).total[0]) * plan.devices
    if not np.isfinite(step):
        raise CrossflowError(f"{scenario.name} never ends: something that it needs has no rate; `crossflow predict` says what")
    most = NODES * runs_on.node
    profiling = sum(event.time * min(event.ranks, PROFILED if event.op == "all_reduce" else most) for event in found)
    return EventList(events=tuple(found), step=step, profiling=profiling)


Found = tuple[tuple[str, str, str, int, str], float, float]  # identity, time [s], count


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One step of one plan: what it computes and runs on, and how often units run in it."""

    plan: Plan
    layout: Layout
    job: Job
    machine: Machine
    task: Task

    @property
    def ranks(self) -> int:
        """Ranks that a stage has. [1]"""
        return self.plan.tp * self.plan.cp * self.plan.dp

    @functools.cached_property
    def occurs(self) -> Array:
        """How often units run forward, and with gradients of their inputs and of their weights, on all devices, shape (3, units). [1]"""
        return np.asarray(self.task.occurs[..., 0] * float(self.layout.microbatches[0]) * self.ranks)

    @functools.cached_property
    def phases(self) -> Mapping[str, Array]:
        """The same of kernels and collectives of a phase, with what is computed again, by phase; shape (units,). [1]"""
        often = self.task.phases[..., 0].T * float(self.layout.microbatches[0]) * self.ranks
        return dict(zip(PHASES, often, strict=True))

    @property
    def held(self) -> Array:
        """Units that devices hold with weights that train, each once, shape (units,). [1]"""
        return np.asarray(self.task.occurs[2, :, 0] * float(self.layout.directions[0]) * self.ranks)


def _kernels(case: _Case) -> Iterator[Found]:
    """Kernels with their times and counts."""
    job, runs_on, kernels = case.job, case.machine, case.task.kernels
    names, phases = _places(job), case.phases
    costs = kernel_costs(kernels, job, runs_on.architecture, runs_on.stack, runs_on.profile)
    times = [time for part, _ in costs for time in (part.time - part.launch)[:, 0].tolist()]
    shapes = kernel_shapes(kernels, job.dtype, wide_type(runs_on.architecture, job.dtype))
    before = len(kernels.products) + len(kernels.passes)
    counts = [*[1.0] * before, *kernels.score_counts[:, 0].tolist(), *[1.0] * len(kernels.scans)]
    identities = [one for group in shapes for one in group]
    for (unit, phase), (op, type_, shape), time, count in zip(kernels.places, identities, times, counts, strict=True):
        yield (op, shape[0], type_, 1, ""), time, float(phases[phase][names[unit]]) * count


def _updates(case: _Case) -> Iterator[Found]:
    """Steps of the optimizer, one for every unit that a device holds and updates itself."""
    if not case.job.training:
        return
    owned = case.task.weights.owned
    times, here = optimizer_costs(case.job, owned, case.machine).time, float(1.0 - kept_on_host(case.layout, "optimizer")[0])
    for size, time, held in zip(owned[:, 0].tolist(), times[:, 0].tolist(), case.held.tolist(), strict=True):
        if size > 0:
            yield ("optimizer", optimizer_shape(size), "", 1, ""), time, held * here * float(case.layout.updates[0])


def _messages(case: _Case) -> Iterator[Found]:
    """Collectives of passes, of weights and between stages, each once for all of its ranks."""
    job, runs_on, plan, layout, task = case.job, case.machine, case.plan, case.layout, case.task
    names, phases, (forward, backward, weight) = _places(job), case.phases, case.occurs
    sizes, counts = (values[:, 0].tolist() for values in (task.kernels.message_sizes, task.kernels.message_counts))
    for message, size, count in zip(task.kernels.messages, sizes, counts, strict=True):
        often = phases[message.phase][names[message.part]] * count
        yield from _message(runs_on, message.collective, size, getattr(layout, message.group), often)
    # Sharded weights come with every pass, and their gradients go with every microbatch; the rest comes with every update.
    updates = float(layout.updates[0]) * case.held
    for shared in task.weights.messages:
        passes = forward + backward if shared.role == "gather" else weight
        often = passes if shared.sharded else updates
        for size, count in zip(shared.size[:, 0].tolist(), often.tolist(), strict=True):
            yield from _message(runs_on, shared.collective, size, shared.group, count)
    microbatches = int(layout.microbatches[0])
    found = boundaries(plan.schedule, plan.pp, plan.virtual_stages, microbatches, training=job.training)
    often = found.often.sum(axis=0) * microbatches / float(layout.directions[0]) * case.ranks
    handed, outside = float(often.sum()), float(often @ layout.crosses(found.first, found.last)[:, 0])
    counts = (handed - outside, outside, handed, 2.0 * case.ranks)
    for (collective, size_, group), count in zip(task.between.each(layout), counts, strict=True):
        yield from _message(runs_on, collective, float(size_[0]), group, count)


def _places(job: Job) -> Mapping[str, int]:
    """Places of the units of a model by name."""
    return {name: i for i, (name, _) in enumerate(units(job.model))}


def _message(runs_on: Machine, collective: str, size: float, group: Group, count: float) -> Iterator[Found]:
    """A collective that `count` ranks take part in, or a transfer that they send, or none."""
    ranks = int(group.size[0])
    if size > 0 and ranks > 1 and count:
        scope = SCOPES[int(group.per_node[0] < ranks)]
        yield (
            (collective, message_shape(size), "", parties(collective, ranks), scope),
            float(runs_on.wires.time(collective, np.array([size]), group)[0]),
            count if collective == "send_recv" else count / ranks,
        )
