"""Events of a transformer's step: its kernels, the optimizer's, and collectives, with how often each occurs on all devices."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from crossflow.answers.steps.program_events import priced_kernels
from crossflow.answers.steps.step import FoundEvent, StepEvents
from crossflow.answers.steps.transformers import LaidMembers
from crossflow.base.arrays import Array
from crossflow.cost.handovers import boundaries
from crossflow.cost.machine import Machine
from crossflow.cost.passes import optimizer_costs
from crossflow.cost.profile import SCOPES, message_shape, optimizer_shape, parties
from crossflow.engine.runs.transformer import transformer_step
from crossflow.parallel.blocks import PHASES, units
from crossflow.parallel.offload import kept_on_host
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.groups import Group
from crossflow.workload.job import Job


def transformer_events(plan: Plan, laid: LaidMembers) -> StepEvents:
    """Events of one plan."""
    case = _Case(plan=plan, laid=laid)
    step = float(transformer_step(laid.job, laid.layout, laid.machine).total[0]) * plan.devices
    return StepEvents((*_kernels(case), *_updates(case), *_messages(case)), step, laid.machine.node)


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
    return priced_kernels(program, runs_on.architecture, runs_on.stack, runs_on.profile, often)


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
