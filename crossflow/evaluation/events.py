"""Different events of a step: what would have to be measured to know all of it, and how often each recurs [1]_.

References
----------
.. [1] Lu et al., "DistSim: A performance model of large-scale hybrid distributed DNN training", CF 2023, Sec. 4.1 and Table 3.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np

from crossflow.arrays import Array, plain
from crossflow.cost.parts import kernel_shapes, kernel_times, wide_type
from crossflow.cost.profile import PROFILED, SCOPES, message_shape
from crossflow.errors import CrossflowError
from crossflow.evaluation.layered import machine
from crossflow.parallel import Layout, Plan
from crossflow.parallel.blocks import PHASES, block_kernels, units
from crossflow.parallel.plan import Group
from crossflow.scenario import Scenario, check_strategy
from crossflow.step import Machine
from crossflow.step.stages import alike, row_counts
from crossflow.step.transformer import transformer_step
from crossflow.step.weights import weights_of

NODES = 2  # on which everything can be measured: the fewest that have a network between them


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event and how often it recurs; its identity as in a profile (`crossflow.cost.profile`).

    Attributes
    ----------
    op, shape, dtype, device : what runs, on what, in which type, on which system.
    ranks, scope : of a collective how many take part, and whether inside a node (intra) or between nodes (inter).
    time, spread : of one, as predicted or measured. [s]
    count : how often it occurs in a step, on all devices; a collective once for all its ranks. [1]
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
        raise CrossflowError(f"events are listed of transformers; {scenario.name} is a {scenario.workload.model}")
    check_strategy(scenario)
    runs_on = machine(scenario, scenario.architecture)
    layout = Layout.of([plan], np.array([float(scenario.workload_batch)]), runs_on.node)
    sums: dict[tuple[str, str, str, int, str], list[float]] = {}
    for key, time, count in (*_kernels(scenario, layout), *_messages(scenario, layout)):
        entry = sums.setdefault(key, [time, 0.0])
        entry[1] += count
    name = scenario.system.name
    found = [
        Event(op=op, shape=shape, dtype=dtype, device=name, ranks=ranks, scope=scope, time=time, spread=0.0, count=count)
        for (op, shape, dtype, ranks, scope), (time, count) in sums.items()
        if count and time > 0
    ]
    found.sort(key=lambda event: -event.time * event.count * event.ranks)
    step = float(transformer_step(scenario.job(), layout, runs_on).total[0]) * plan.devices
    most = NODES * runs_on.node
    profiling = sum(event.time * min(event.ranks, PROFILED if event.op == "all_reduce" else most) for event in found)
    return EventList(events=tuple(found), step=step, profiling=profiling)


Found = tuple[tuple[str, str, str, int, str], float, float]  # identity, time [s], count


def _occurrences(scenario: Scenario, layout: Layout) -> Array:
    """How often every unit runs each phase in a step, on all devices, shape (units, phases). [1]"""
    plan, job = scenario.strategy, scenario.job()
    assert isinstance(plan, Plan)  # the caller has looked
    assert scenario.stack is not None  # a transformer's is
    microbatches = int(layout.microbatches[0])
    shape = replace(alike(layout)[0], microbatches=microbatches)
    forward, inputs, weights = (part.sum(axis=0) for part in row_counts(job, shape, balanced=scenario.balanced))
    again = np.array([name not in ("embedding", "head") for name, _ in units(job.model)]) * inputs
    full, selective = again * (plan.recompute == "full"), again * (plan.recompute == "selective")
    phases = {
        "forward": forward + full, "end": forward + full * (not scenario.stack.early_stop), "input": inputs, "weight": weights,
        "again": selective,
    }  # fmt: skip
    each = np.stack([phases[phase] for phase in PHASES], axis=1)
    return np.asarray(each * microbatches * plan.tp * plan.cp * plan.dp / float(layout.directions[0]))


def _kernels(scenario: Scenario, layout: Layout) -> Iterator[Found]:
    """Kernels with their times and counts."""
    job, runs_on = scenario.job(), machine(scenario, scenario.architecture)
    kernels, dtype = block_kernels(job, layout, runs_on.stack), job.dtype
    names = {name: i for i, (name, _) in enumerate(units(job.model))}
    occurs = _occurrences(scenario, layout)
    times = kernel_times(kernels, runs_on.architecture, runs_on.stack, dtype, job.element, 1, runs_on.profile)
    shapes = kernel_shapes(kernels, dtype, wide_type(runs_on.architecture, dtype), 1)
    places = [[(entry[0], entry[1]) for entry in entries] for entries in (kernels.products, kernels.passes, kernels.scores)]
    for entries, identities, part in zip(places, shapes, times, strict=False):
        for i, ((unit, phase), (op, type_, shape)) in enumerate(zip(entries, identities, strict=True)):
            time = float(part["compute"][i, 0] - part["launch"][i, 0])
            yield (op, shape[0], type_, 1, ""), time, float(occurs[names[unit], PHASES.index(phase)])


def _messages(scenario: Scenario, layout: Layout) -> Iterator[Found]:
    """Collectives of passes, of weights and between stages, each once for all of its ranks."""
    job, runs_on, plan = scenario.job(), machine(scenario, scenario.architecture), scenario.strategy
    assert isinstance(plan, Plan)  # the caller has looked
    names = {name: i for i, (name, _) in enumerate(units(job.model))}
    occurs, devices = _occurrences(scenario, layout), plan.devices
    for message in block_kernels(job, layout, runs_on.stack).messages:
        size = float(np.broadcast_to(message.size, (1,))[0])
        count = occurs[names[message.part], PHASES.index(message.phase)]
        yield from _message(runs_on, message.collective, size, getattr(layout, message.group), count)
    weights, microbatches = occurs[:, PHASES.index("weight")], float(layout.microbatches[0])
    for shared in weights_of(job, layout, runs_on.stack).messages:
        # Sharded weights come with every pass, their gradients go with every microbatch; the rest is once a step.
        passes = occurs[:, 0] + occurs[:, PHASES.index("input")] if shared.role == "gather" else weights
        often = passes if plan.zero >= 3 else weights / microbatches
        for size, count in zip(shared.size[:, 0].tolist(), often.tolist(), strict=True):
            yield from _message(runs_on, shared.collective, size, shared.group, count)
    if plan.pp > 1:
        boundary = float(job.element * plan.micro_batch * job.tokens(job.model.tokens) / plan.cp * job.model.embedding.width)
        handed = (plan.pp * plan.virtual_stages - 1) * (2.0 if job.training else 1.0) * microbatches * devices / plan.pp
        yield from _message(runs_on, "send_recv", boundary / plan.tp, layout.stages, handed * 2.0)
        if not plan.sequence_parallel:
            yield from _message(runs_on, "all_gather", boundary, layout.tensor, handed)


def _message(runs_on: Machine, collective: str, size: float, group: Group, count: float) -> Iterator[Found]:
    """A collective that `count` ranks take part in, or none."""
    ranks = int(group.size[0])
    if size > 0 and ranks > 1 and count:
        scope = SCOPES[int(group.per_node[0] < ranks)]
        yield (
            (collective, message_shape(size), "", ranks, scope),
            float(runs_on.wires.time(collective, np.array([size]), group)[0]),
            count / ranks,
        )
