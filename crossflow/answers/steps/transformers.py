"""Steps of transformers: on devices of one kind, on those of several, and with experts on devices of their own."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.batch import Fleet, PointBatch, Ran
from crossflow.answers.steps.machines import machine, pool_machine
from crossflow.answers.steps.members import Members, own_members
from crossflow.answers.steps.step import PlacedStage, ScenarioStep, Slowed, StepEvents
from crossflow.base.arrays import Index
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import KINDS, Memory, memory
from crossflow.engine.runs.outcome import BREAKDOWN, Outcome
from crossflow.engine.runs.transformer import run_layers, transformer_step
from crossflow.hardware.architecture.template import FEEDING
from crossflow.parallel.batches import laid_out
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plans import experts_plan
from crossflow.parallel.tables import StepTables, tables_of
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec
from crossflow.workload.stacked import chosen

if TYPE_CHECKING:
    from crossflow.engine.runs.apart import ExpertPool
    from crossflow.engine.runs.uneven import Uneven
    from crossflow.engine.runs.unlike import KindWork, UnlikePlans
    from crossflow.engine.timeline.record import Timeline

HELD = (
    "memory",
    "host_memory",
    "host_capacity",
    "second_memory",
    "second_capacity",
    "problems",
    "least",
    "capacity",
)  # of an outcome, what is known of points that are not timed


def transformer_step_of(batch: PointBatch) -> TransformerStep:
    """The step of transformers that are not served in steady state."""
    kind = UnlikeStep if batch.system.kinds else ExpertsApartStep if batch.members.job.pooled else TransformerStep
    return kind(batch=batch)


@dataclass(frozen=True, kw_only=True, eq=False)
class TransformerStep(ScenarioStep):
    """Steps of transformers whose devices are all of one kind; with `fitting` those that do not fit are not timed."""

    @functools.cached_property
    def machine(self) -> Machine:
        """Devices with their network and software."""
        found = machine(self.batch.scenario, self.batch.device, self.batch.system)
        return replace(found, least=True) if self.batch.least else found

    @property
    def job(self) -> Job:
        """What is computed."""
        return self.batch.members.job  # type: ignore[no-any-return]

    @functools.cached_property
    def laid(self) -> LaidMembers:
        """Plans as the scenario's software runs them; kept where they are the scenario's own."""
        find = _laid_out if self.batch.members.own else _laid_out.__wrapped__
        return find(self.batch.scenario, self.batch.members, self.batch.system.devices_per_node)

    @property
    def held(self) -> Memory:
        """What devices hold."""
        return self.laid.held if self.batch.own else self.laid.held_on(self.machine)

    def run(self) -> Ran:
        """See `ScenarioStep.run`."""
        laid, held = self.laid, self.held
        fits = np.flatnonzero(held.fits) if self.batch.fitting else np.arange(self.batch.n)
        if len(fits) == self.batch.n:
            outcome = run_layers(self.job, laid.layout, self.machine, laid.tables, held)
        elif len(fits):
            timed = transformer_step(chosen(self.job, fits), laid.layout.at(fits), self.machine, held.at(fits))
            outcome = spread(timed, held, fits)
        else:
            outcome = untimed(held)
        return Ran(outcome=outcome, devices=laid.layout.devices)

    def timeline(self, title: str, uneven: Uneven) -> Timeline:
        """See `ScenarioStep.timeline`."""
        from crossflow.engine.runs.timeline import transformer_timeline

        return transformer_timeline(self.job, self.laid.layout, self.machine, title, uneven)

    def events(self) -> StepEvents:
        """See `ScenarioStep.events`."""
        from crossflow.answers.steps.transformer_events import transformer_events

        (plan,) = self.batch.members.strategies
        return transformer_events(plan, self.laid)

    def slowed(self) -> Slowed:
        """What collectives lose to congestion, from what the prices of the step ask for."""
        runs_on = replace(self.machine)  # with wires that have priced nothing yet
        transformer_step(self.job, self.laid.layout, runs_on)
        return runs_on.wires.slowed

    @property
    def apart(self) -> float | None:
        """See `ScenarioStep.apart`. [s]"""
        return float(transformer_step(self.job, self.laid.layout, replace(self.machine, apart=True)).total[0])

    @property
    def memory_by_stage(self) -> tuple[Mapping[str, float], ...]:
        """See `ScenarioStep.memory_by_stage`. [B]"""
        laid = self.laid
        return told_by_stage(memory(laid.job.own, laid.layout, laid.machine) if laid.job.pooled else laid.held)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertsApartStep(TransformerStep):
    """Steps whose experts lie on devices of their own."""

    def run(self) -> Ran:
        """See `ScenarioStep.run`."""
        pool, fleet = expert_pool(self.batch, self.machine)  # type: ignore[misc] # as the job says
        layout = self.laid.layout
        found = pool.step(self.job, layout, self.machine)
        beside = (replace(fleet, energy=found.energy, sent=found.sent),)
        return Ran(outcome=found.outcome, devices=layout.devices + fleet.devices, beside=beside, serving=found.figures)


@dataclass(frozen=True, kw_only=True, eq=False)
class UnlikeStep(TransformerStep):
    """Steps whose stages lie on the system's own devices and on those of its pools."""

    @functools.cached_property
    def plans(self) -> UnlikePlans:
        """Plans with the layers and the devices of every stage."""
        batch, layout = self.batch, self.laid.layout
        machines = [self.machine]
        machines += [pool_machine(batch.scenario, one.device, one.system, least=batch.least) for one in self._pools]
        ranks = layout.tp * layout.cp * layout.dp
        in_pools = [one.system.device_count / ranks for one in self._pools]
        stages = [layout.pp - sum(in_pools), *in_pools]
        from crossflow.engine.runs.unlike_prices import DeviceKind

        kinds = tuple(DeviceKind(machine=one, stages=many) for one, many in zip(machines, stages, strict=True))
        from crossflow.engine.runs.unlike import unlike_plans

        return unlike_plans(self.job, layout, kinds)

    @property
    def _pools(self) -> tuple[Fleet, ...]:
        """Pools whose devices hold stages."""
        staged = self.batch.system.staged
        return tuple(pool for name, pool in self.batch.pools.items() if name in staged)

    @property
    def held(self) -> Memory:
        """What devices hold, each kind within its own capacity."""
        return self.plans.held

    def run(self) -> Ran:
        """See `ScenarioStep.run`."""
        plans, held = self.plans, self.held
        fits = np.flatnonzero(held.fits) if self.batch.fitting else np.arange(self.batch.n)
        from crossflow.engine.runs.unlike import KindWork, unlike_step

        outcome, works = untimed(held), tuple[KindWork, ...]()
        if len(fits) == self.batch.n:
            outcome, works = unlike_step(plans)
        elif len(fits):
            timed, works = unlike_step(plans.at(fits))
            outcome = spread(timed, held, fits)
        return Ran(outcome=outcome, devices=plans.layout.devices, beside=self._beside(works[1:], fits))

    def _beside(self, works: Sequence[KindWork], fits: Index) -> tuple[Fleet, ...]:
        """Devices of pools with what they do in the steps of points that fit; others are not timed."""
        layout, found = self.plans.layout, list[Fleet]()
        ranks = layout.tp * layout.cp * layout.dp
        for i, pool in enumerate(self._pools):
            devices = ranks * np.round(pool.system.device_count / ranks)
            energy, *sent = np.zeros((3, self.batch.n))
            if works:
                energy[fits], sent[0][fits], sent[1][fits] = works[i].energy, *works[i].sent
            found.append(replace(pool, devices=devices, energy=energy, sent=(sent[0], sent[1])))
        return tuple(found)

    def timeline(self, title: str, uneven: Uneven) -> Timeline:
        """See `ScenarioStep.timeline`."""
        from crossflow.engine.runs.unlike_timeline import unlike_timeline

        return unlike_timeline(self.plans, title, uneven)

    @property
    def memory_by_stage(self) -> tuple[Mapping[str, float], ...]:
        """See `ScenarioStep.memory_by_stage`. [B]"""
        return told_by_stage(self.held)

    @property
    def placed_stages(self) -> tuple[PlacedStage, ...]:
        """See `ScenarioStep.placed_stages`."""
        (plan,), places = self.batch.members.strategies, list(self.batch.scenario.system.places.items())
        layout, held = self.plans.layout, self.held
        assert held.capacities is not None  # of several kinds of devices
        division = layout.divisions[layout.division[0]]
        chunks = division.layers(int(np.ravel(self.job.model.depth)[0]), plan.pp * plan.virtual_stages)
        return tuple(
            PlacedStage(
                place=places[kind][0], devices=places[kind][1].name, layers=chunks[i :: plan.pp], capacity=float(held.capacities[i, 0])
            )
            for i, kind in enumerate(division.kinds)
        )  # fmt: skip


def expert_pool(batch: PointBatch, runs_on: Machine) -> tuple[ExpertPool, Fleet] | None:
    """Devices on which the experts of every point lie; None where those that attend hold them."""
    workloads: Any = batch.members.workloads  # of transformers
    if not any(map(experts_plan, workloads)):
        return None
    pool = batch.pools.get(FEEDING)
    lies_on = runs_on if pool is None else pool_machine(batch.scenario, pool.device, pool.system, least=batch.least)
    return pool_of_experts(workloads, batch.members.which, lies_on, pool or Fleet(system=batch.system, device=batch.device))


def pool_of_experts(workloads: Sequence[TransformerSpec], which: Index, lies_on: Machine, fleet: Fleet) -> tuple[ExpertPool, Fleet]:
    """Experts of every point, `which` of the workloads it has, on devices of a fleet; all of these workloads have such a pool."""
    plans = [plan for plan in map(experts_plan, workloads) if plan is not None]
    mine = [plans[i] for i in which]
    cut = np.array([float(one.serving.experts.micro_batches) for one in workloads if one.serving.experts is not None])[which]
    layout = Layout.of(mine, np.array([float(plan.dp) for plan in mine]), lies_on.node)
    from crossflow.engine.runs.apart import ExpertPool

    return ExpertPool(machine=lies_on, layout=layout, micro_batches=cut), replace(fleet, devices=layout.devices)


@dataclass(frozen=True, kw_only=True, eq=False)
class LaidMembers:
    """Members of a batch laid out on their devices: what no quantity of the system changes."""

    job: Job
    layout: Layout
    machine: Machine  # of the scenario itself

    @functools.cached_property
    def held(self) -> Memory:
        """What devices hold, with the capacity of the scenario's own."""
        return memory(self.job, self.layout, self.machine)

    def held_on(self, machine: Machine) -> Memory:
        """The same on other devices, which hold as much where none has a second memory, of several kinds."""
        second = self.machine.architecture.second, machine.architecture.second
        return self.held.on(machine, self.layout) if second == (None, None) else memory(self.job, self.layout, machine)

    @functools.cached_property
    def tables(self) -> StepTables:
        """What a step computes and sends."""
        return tables_of(self.job, self.layout, self.machine.stack)


def own_laid(scenario: Scenario) -> LaidMembers:
    """The plan of a scenario laid out on its devices."""
    return _laid_out(scenario, own_members(scenario), scenario.system.devices_per_node)


@functools.lru_cache(maxsize=64)
def _laid_out(scenario: Scenario, members: Members, node: int) -> LaidMembers:
    runs_on = machine(scenario, scenario.architecture)
    return LaidMembers(
        job=members.job, layout=laid_out(members.job, members.strategies, members.batch, node, runs_on.stack), machine=runs_on
    )


def spread(timed: Outcome, held: Memory, fits: Index) -> Outcome:
    """Outcome of all points, from that of those that fit; no end is in sight for the others."""

    def of_all(values: Any, rest: float = 0.0) -> Any:
        if isinstance(values, Mapping):
            return {name: of_all(part) for name, part in values.items()}
        if isinstance(values, tuple):
            return tuple(map(of_all, values))
        whole = np.full(held.total.size, rest)
        whole[fits] = values
        return whole

    known = {name: of_all(values) for name, values in vars(timed).items() if name not in HELD}
    return replace(untimed(held), **{**known, "total": of_all(timed.total, np.inf)})


def untimed(held: Memory) -> Outcome:
    """Outcome of points that were not timed because they do not fit."""
    n = held.total.size
    nothing, never = np.zeros(n), np.full(n, np.inf)
    parts = dict.fromkeys(BREAKDOWN, nothing)
    return Outcome(
        total=never, breakdown=parts, communication={}, exposed={}, memory=held.kinds, flops=nothing, model_flops=nothing, energy=nothing,
        traffic=nothing, sent=(nothing, nothing), bound={}, host_memory=held.host,
        host_capacity=held.host_capacity, second_memory=held.far_total, second_capacity=held.far_capacity,
        capacity=() if held.capacities is None else (held.capacity,),
    )  # fmt: skip


def told_by_stage(held: Memory) -> tuple[Mapping[str, float], ...]:
    """Bytes of a device of every stage of the only plan by kind. [B]"""
    return tuple(dict(zip(KINDS, stage.tolist(), strict=True)) for stage in held.stages[:, :, 0].T)
