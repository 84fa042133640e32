"""Different events of a step: those to measure to know all of it, and how often each recurs [1]_.

References
----------
.. [1] Lu et al., "DistSim: A performance model of large-scale hybrid distributed DNN training", CF 2023, Sec. 4.1 and Table 3.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.layered import LaidMembers, own_laid
from crossflow.answers.evaluation.programs import placed
from crossflow.answers.evaluation.recommendation import step_program
from crossflow.answers.scenario import Scenario, check_alike, check_one_step, check_strategy
from crossflow.base.arrays import Array, plain
from crossflow.base.errors import CrossflowError
from crossflow.base.names import cell
from crossflow.cost.handovers import boundaries
from crossflow.cost.machine import Machine
from crossflow.cost.network import Wires, message_steps, route_time
from crossflow.cost.passes import optimizer_costs
from crossflow.cost.price import kernel_names, kernel_parts
from crossflow.cost.profile import PROFILED, SCOPES, Profile, kernel_words, message_shape, nearest, optimizer_shape, parties
from crossflow.engine.runs.transformer import transformer_step
from crossflow.engine.schedule import schedule
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.blocks import PHASES, units
from crossflow.parallel.offload import kept_on_host
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.groups import Group
from crossflow.program.kernels import Timed
from crossflow.program.program import Program
from crossflow.workload.job import Job

NODES = 2  # on which everything can be measured: the fewest that have a network between them


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event and how often it recurs; its identity as in a profile (`crossflow.cost.profile`)."""

    op: str  # what runs
    shape: str  # on what
    dtype: str  # in which type
    device: str  # on which system
    ranks: int  # of a collective, how many take part
    scope: str  # whether inside a node (intra) or between nodes (inter)
    time: float  # of one, as predicted or measured. [s]
    spread: float  # standard deviation of what was measured. [s]
    count: float  # how often it occurs in a step, on all devices; a collective once for all its ranks, a transfer once for its sender. [1]


@dataclass(frozen=True, kw_only=True)
class EventList:
    """Different events of a step."""

    events: tuple[Event, ...]  # those that take most time on all devices first
    step: float  # device-time of a whole step, all devices. [s]
    profiling: float  # device-time to run each event once on two nodes, all-reduces on 8 ranks at most. [s]

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
        writer.writerows(map(_written, astuple(event)) for event in self.events)
        return text.getvalue()


def _written(value: Any) -> Any:
    return f"{value:.9g}" if isinstance(value, float) else cell(value) if isinstance(value, str) else value


def events(scenario: Scenario) -> EventList:
    """Different events of a step."""
    check_strategy(scenario)
    check_one_step(scenario)
    check_alike(scenario, "a list of events")
    if isinstance(scenario.strategy, Plan):
        listed, step, node = _of_plan(scenario, scenario.strategy)
    else:
        listed, step, node = _of_program(scenario, step_program(scenario))
    sums: dict[tuple[str, str, str, int, str], list[float]] = {}
    for key, time, count in listed:
        entry = sums.setdefault(key, [time, 0.0])
        entry[1] += count
    name, profile = scenario.system.name, scenario.profile
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
    if not np.isfinite(step):
        raise CrossflowError(f"{scenario.name} never ends: something that it needs has no rate; `crossflow predict` says what")
    most = NODES * node
    profiling = sum(event.time * min(event.ranks, PROFILED if event.op == "all_reduce" else most) for event in found)
    return EventList(events=tuple(found), step=step, profiling=profiling)


def unmatched(scenario: Scenario, most: int = 5) -> Iterator[str]:
    """Rows of the scenario's profile that give no event its time, as sentences: each with the nearest event, so many of them at most."""
    profile = scenario.profile
    if profile is None or scenario.document.data.get("profile") is None:  # that of a system serves any step
        return
    keys = [(one.op, one.shape, one.dtype, one.ranks, one.scope) for one in events(scenario).events]
    rows = profile.unmatched(keys)
    for line, key in rows[:most]:
        like = nearest(key, keys)
        yield f"profile: row {line} {kernel_words(key)} matches no event; " + (
            f"the step has no {key[0]}" if like is None else f"nearest: {kernel_words(like)}"
        )
    if len(rows) > most:
        yield f"profile: {len(rows) - most} more rows match no event; `crossflow events` lists the events of the step"
    for device, count in profile.others.items():
        yield f"profile: {count} row{'s are' if count > 1 else ' is'} of {device}, not of {scenario.system.name}, and left out"


FoundEvent = tuple[tuple[str, str, str, int, str], float, float]  # identity, time [s], count
Listed = tuple[Iterable[FoundEvent], float, int]  # what was found, device-time of the step [s], devices of a node


def _of_plan(scenario: Scenario, plan: Plan) -> Listed:
    """Events of a transformer."""
    laid = own_laid(scenario)
    case = _Case(plan=plan, laid=laid)
    step = float(transformer_step(laid.job, laid.layout, laid.machine).total[0]) * plan.devices
    return (*_kernels(case), *_updates(case), *_messages(case)), step, laid.machine.node


def _of_program(scenario: Scenario, program: Program) -> Listed:
    """Events of a program, which a scenario runs."""
    device, node = scenario.architecture, scenario.nodes[0]
    plan, replicas, placement = schedule(program), scenario.devices / program.classes, placed(scenario, program, device)
    found = [*_priced(program, device, scenario.stack, scenario.profile, plan.busy.sum(axis=0) * replicas)]
    own = None if scenario.stack is None else scenario.stack.peer_all_reduce
    wires = Wires(network=scenario.system.network, architecture=device, node=node, profile=scenario.profile, all_reduce=own)
    for message, often in zip(program.messages, (plan.sent.sum(axis=0) * replicas).tolist(), strict=True):
        for size, route, model in message_steps(message, placement, wires):
            if size[0] > 0 and route.size > 1 and often:
                scope, ranks = SCOPES[int(route.package_size < route.size)], route.size
                key = message.collective, message_shape(float(size[0])), "", parties(message.collective, ranks), scope
                time, _ = route_time(message.collective, size, route, model, wires.profile)
                found.append((key, float(time[0]), often if message.collective == "send_recv" else often / ranks))
    return found, float(evaluate(scenario).step_time[0]) * scenario.devices, node


def _priced(
    program: Program, device: Architecture, stack: SoftwareStack | None, profile: Profile | None, often: Array
) -> Iterator[FoundEvent]:
    """Kernels of a program with their times, each as often as it runs on all devices, shape (kernels,); those to measure. [1]"""
    for table, costs, _ in kernel_parts(program, device, stack, profile):
        if table.kind is Timed:
            continue
        times, names = (costs.time - costs.launch)[:, 0].tolist(), kernel_names(table, program.dtype, device)
        for place, (kind, type_, shape), time in zip(table.places.tolist(), names, times, strict=True):
            yield (kind, shape[0], type_, 1, ""), time, float(often[place])


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One step of one plan: what it computes and runs on, and how often units run in it."""

    plan: Plan
    laid: LaidMembers

    @property
    def ranks(self) -> int:
        """Ranks that a stage has. [1]"""
        return self.plan.tp * self.plan.cp * self.plan.dp

    @functools.cached_property
    def occurs(self) -> Array:
        """How often units run forward, and with gradients of their inputs and of their weights, on all devices, shape (3, units). [1]"""
        return np.asarray(self.laid.tables.occurs[..., 0] * float(self.laid.layout.microbatches[0]) * self.ranks)

    @functools.cached_property
    def phases(self) -> Mapping[str, Array]:
        """The same of kernels and collectives of a phase, with what is computed again, by phase; shape (units,). [1]"""
        often = self.laid.tables.phases[..., 0].T * float(self.laid.layout.microbatches[0]) * self.ranks
        return dict(zip(PHASES, often, strict=True))

    @property
    def held(self) -> Array:
        """Units that devices hold with weights that train, each once, shape (units,). [1]"""
        return np.asarray(self.laid.tables.occurs[2, :, 0] * float(self.laid.layout.directions[0]) * self.ranks)


def _kernels(case: _Case) -> Iterator[FoundEvent]:
    """Kernels with their times and counts."""
    runs_on, program, phases, places = case.laid.machine, case.laid.tables.program, case.phases, _places(case.laid.job)
    often = np.zeros(len(program.kernels))
    for op in program.ops:
        often[list(op.kernels)] = phases[op.phase][places[op.layer]] * np.broadcast_to(op.count, (1,)) if op.kernels else 0.0
    return _priced(program, runs_on.architecture, runs_on.stack, runs_on.profile, often)


def _updates(case: _Case) -> Iterator[FoundEvent]:
    """Steps of the optimizer, one for every unit that a device holds and updates itself."""
    if not case.laid.job.training:
        return
    owned = case.laid.tables.weights.owned
    times, here = optimizer_costs(case.laid.job, owned, case.laid.machine).time, float(1.0 - kept_on_host(case.laid.layout, "optimizer")[0])
    for size, time, held in zip(owned[:, 0].tolist(), times[:, 0].tolist(), case.held.tolist(), strict=True):
        if size > 0:
            yield ("optimizer", optimizer_shape(size), "", 1, ""), time, held * here * float(case.laid.layout.updates[0])


def _messages(case: _Case) -> Iterator[FoundEvent]:
    """Collectives of passes, of weights and between stages, each once for all of its ranks."""
    job, runs_on, plan, layout, tables = case.laid.job, case.laid.machine, case.plan, case.laid.layout, case.laid.tables
    names, phases, (forward, backward, weight) = _places(job), case.phases, case.occurs
    sizes, counts = (values[:, 0].tolist() for values in (tables.sends.table.sizes, tables.sends.counts))
    for op, message, size, count in zip(tables.sends.ops, tables.program.messages, sizes, counts, strict=True):
        assert message.group is not None
        yield from _message(runs_on, message.collective, size, message.group, phases[op.phase][names[op.layer]] * count)
    # Sharded weights come with every pass, and their gradients go with every microbatch; the rest comes with every update.
    updates = float(layout.updates[0]) * case.held
    for shared in tables.weights.messages:
        passes = forward + backward if shared.role == "gather" else weight
        often = passes if shared.sharded else updates
        for size, count in zip(shared.whole[:, 0].tolist(), (often * shared.share[:, 0]).tolist(), strict=True):
            yield from _message(runs_on, shared.collective, size, shared.group, count)
    microbatches = int(layout.microbatches[0])
    found = boundaries(plan.schedule, plan.pp, plan.virtual_stages, microbatches, training=job.training)
    often = found.often.sum(axis=0) * microbatches / float(layout.directions[0]) * case.ranks
    handed, outside = float(often.sum()), float(often @ layout.crosses(found.first, found.last)[:, 0])
    counts = (handed - outside, outside, handed, 2.0 * case.ranks)
    for (collective, size_, group), count in zip(tables.between.each(layout), counts, strict=True):
        yield from _message(runs_on, collective, float(size_[0]), group, count)


def _places(job: Job) -> Mapping[str, int]:
    """Places of the units of a model by name."""
    return {name: i for i, (name, _) in enumerate(units(job.model))}


def _message(runs_on: Machine, collective: str, size: float, group: Group, count: float) -> Iterator[FoundEvent]:
    """A collective that `count` ranks take part in, or a transfer that they send, or none."""
    ranks = int(group.size[0])
    if size > 0 and ranks > 1 and count:
        scope = SCOPES[int(group.per_node[0] < ranks)]
        yield (
            (collective, message_shape(size), "", parties(collective, ranks), scope),
            float(runs_on.wires.time(collective, np.array([size]), group)[0]),
            count if collective == "send_recv" else count / ranks,
        )
