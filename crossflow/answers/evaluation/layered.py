"""Evaluation of transformers: strategies as arrays, one step, score; and what layered models run on."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.answers.evaluation.common import Fleet, PointBatch, Ran
from crossflow.answers.evaluation.members import Members, own_members
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import Index
from crossflow.cost.machine import Machine
from crossflow.engine.runs.apart import ExpertPool
from crossflow.engine.runs.memory import KINDS, Memory, memory
from crossflow.engine.runs.outcome import BREAKDOWN, Outcome
from crossflow.engine.runs.transformer import run_layers, transformer_step
from crossflow.engine.runs.unlike import KindWork, unlike_plans, unlike_step
from crossflow.engine.runs.unlike_prices import DeviceKind
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.template import FEEDING, SystemSpec
from crossflow.parallel.batches import laid_out
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import Mesh
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import experts_plan
from crossflow.parallel.tables import StepTables, tables_of
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec
from crossflow.workload.stacked import chosen

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


def transformer_run(batch: PointBatch) -> Ran:
    """Steps of a transformer; with `fitting` those that do not fit are not timed."""
    if batch.system.kinds:
        return _unlike_run(batch)
    if batch.members.job.pooled:
        return _pooled_run(batch)
    runs_on = machine(batch.scenario, batch.device, batch.system)
    runs_on = replace(runs_on, least=True) if batch.least else runs_on
    laid, job = _laid(batch), batch.members.job
    layout, held = laid.layout, laid.held if batch.own else laid.held_on(runs_on)
    fits = held.fits if batch.fitting else np.ones(batch.n, dtype=bool)
    if not fits.any():
        outcome = untimed(held)
    elif not fits.all():
        outcome = _partly(job, layout, runs_on, held, np.flatnonzero(fits))
    else:
        outcome = run_layers(job, layout, runs_on, laid.tables, held)
    return Ran(outcome=outcome, devices=layout.devices)


def _pooled_run(batch: PointBatch) -> Ran:
    """Steps of a transformer whose experts lie on devices of their own."""
    runs_on, layout = replace(machine(batch.scenario, batch.device, batch.system), least=batch.least), _laid(batch).layout
    pool, fleet = expert_pool(batch, runs_on)  # type: ignore[misc] # as the job says
    found = pool.step(batch.members.job, layout, runs_on)
    beside = (replace(fleet, energy=found.energy, sent=found.sent),)
    return Ran(outcome=found.outcome, devices=layout.devices + fleet.devices, beside=beside, serving=found.figures)


def expert_pool(batch: PointBatch, runs_on: Machine) -> tuple[ExpertPool, Fleet] | None:
    """Devices on which the experts of every point lie; None where those that attend hold them."""
    workloads: Any = batch.members.workloads  # of transformers
    if not any(map(experts_plan, workloads)):
        return None
    pool = batch.pools.get(FEEDING)
    lies_on = runs_on if pool is None else replace(pool_machine(batch.scenario, pool.device, pool.system), least=batch.least)
    return pool_of_experts(workloads, batch.members.which, lies_on, pool or Fleet(system=batch.system, device=batch.device))


def pool_of_experts(workloads: Sequence[TransformerSpec], which: Index, lies_on: Machine, fleet: Fleet) -> tuple[ExpertPool, Fleet]:
    """Experts of every point, `which` of the workloads it has, on devices of a fleet; all of these workloads have such a pool."""
    plans = [plan for plan in map(experts_plan, workloads) if plan is not None]
    mine = [plans[i] for i in which]
    cut = np.array([float(one.serving.experts.micro_batches) for one in workloads if one.serving.experts is not None])[which]
    layout = Layout.of(mine, np.array([float(plan.dp) for plan in mine]), lies_on.node)
    return ExpertPool(machine=lies_on, layout=layout, micro_batches=cut), replace(fleet, devices=layout.devices)


def _unlike_run(batch: PointBatch) -> Ran:
    """Steps of a transformer whose stages lie on the system's own devices and on those of its pools."""
    layout = _laid(batch).layout
    kinds = device_kinds(batch.scenario, layout, batch.device, batch.system, batch.pools, least=batch.least)
    plans = unlike_plans(batch.members.job, layout, kinds)
    layout, held = plans.layout, plans.held
    fits = np.flatnonzero(held.fits) if batch.fitting else np.arange(batch.n)
    outcome, works = untimed(held), tuple[KindWork, ...]()
    if len(fits) == batch.n:
        outcome, works = unlike_step(plans)
    elif len(fits):
        timed, works = unlike_step(plans.at(fits))
        outcome = _spread(timed, held, fits)
    return Ran(outcome=outcome, devices=layout.devices, beside=_beside(batch, layout, works[1:], fits))


def _beside(batch: PointBatch, layout: Layout, works: Sequence[KindWork], fits: Index) -> tuple[Fleet, ...]:
    """Devices of pools with what they do in the steps of points that fit; others are not timed."""
    ranks, found = layout.tp * layout.cp * layout.dp, list[Fleet]()
    for i, pool in enumerate(batch.pools.values()):
        devices = ranks * np.round(pool.system.device_count / ranks)
        energy, *sent = np.zeros((3, batch.n))
        if works:
            energy[fits], sent[0][fits], sent[1][fits] = works[i].energy, *works[i].sent
        found.append(replace(pool, devices=devices, energy=energy, sent=(sent[0], sent[1])))
    return tuple(found)


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


def _laid(batch: PointBatch) -> LaidMembers:
    """The plans of a batch as its scenario's stack runs them; kept where they are the scenario's own."""
    find = _laid_out if batch.members.own else _laid_out.__wrapped__
    return find(batch.scenario, batch.members, batch.system.devices_per_node)


def own_laid(scenario: Scenario) -> LaidMembers:
    """The plan of a scenario laid out on its devices."""
    return _laid_out(scenario, own_members(scenario), scenario.system.devices_per_node)


@functools.lru_cache(maxsize=64)
def _laid_out(scenario: Scenario, members: Members, node: int) -> LaidMembers:
    runs_on = machine(scenario, scenario.architecture)
    return LaidMembers(
        job=members.job, layout=laid_out(members.job, members.strategies, members.batch, node, runs_on.stack), machine=runs_on
    )


def device_kinds(
    scenario: Scenario, layout: Layout, device: Architecture, system: SystemSpec, pools: Mapping[str, Fleet], *, least: bool = False
) -> tuple[DeviceKind, ...]:
    """Kinds of devices on which the stages of plans lie: the system's own, then those of its pools."""
    machines = [machine(scenario, device, system), *(pool_machine(scenario, pool.device, pool.system) for pool in pools.values())]
    ranks = layout.tp * layout.cp * layout.dp
    in_pools = [pool.system.device_count / ranks for pool in pools.values()]
    stages = [layout.pp - sum(in_pools), *in_pools]
    return tuple(DeviceKind(machine=replace(one, least=least), stages=many) for one, many in zip(machines, stages, strict=True))


def own_kinds(scenario: Scenario) -> tuple[Layout, tuple[DeviceKind, ...]]:
    """The plan of a scenario as a layout, and the kinds of devices that its stages lie on."""
    pools = {name: Fleet(pool=name, system=pool, device=scenario.pool_architectures[name]) for name, pool in scenario.system.staged.items()}
    layout = own_laid(scenario).layout
    return layout, device_kinds(scenario, layout, scenario.architecture, scenario.system, pools)


def _partly(job: Job, layout: Layout, runs_on: Machine, held: Memory, fits: Index) -> Outcome:
    """Outcome with the points that fit timed, and no end in sight for the others."""
    return _spread(transformer_step(chosen(job, fits), layout.at(fits), runs_on, held.at(fits)), held, fits)


def _spread(timed: Outcome, held: Memory, fits: Index) -> Outcome:
    """Outcome of all points, from that of those that fit."""

    def spread(values: Any, rest: float = 0.0) -> Any:
        if isinstance(values, Mapping):
            return {name: spread(part) for name, part in values.items()}
        if isinstance(values, tuple):
            return tuple(map(spread, values))
        whole = np.full(held.total.size, rest)
        whole[fits] = values
        return whole

    known = {name: spread(values) for name, values in vars(timed).items() if name not in HELD}
    return replace(untimed(held), **{**known, "total": spread(timed.total, np.inf)})


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


def machine(scenario: Scenario, device: Architecture, system: SystemSpec | None = None) -> Machine:
    """What a transformer of a scenario runs on, with a device and, where it varies between points, a system."""
    found = scenario.system if system is None else system
    if device is scenario.architecture and found is scenario.system:
        return _own_machine(scenario)
    return _machine(scenario, device, found)


@functools.lru_cache(maxsize=64)
def _own_machine(scenario: Scenario) -> Machine:
    """The machine of a scenario as it stands, whose paths of collectives are worth keeping."""
    return _machine(scenario, scenario.architecture, scenario.system)


def pool_machine(scenario: Scenario, device: Architecture, pool: SystemSpec) -> Machine:
    """What a transformer of a scenario runs on in a pool of its system."""
    return replace(_machine(scenario, device, pool), profile=None)  # which is of the devices of the system


def _machine(scenario: Scenario, device: Architecture, found: SystemSpec) -> Machine:
    assert scenario.stack is not None  # layered models have one
    # What a driver and its libraries hold lies on the host where the device's memory is on the chip.
    stack = scenario.stack.on_host if device.on_chip_only else scenario.stack
    return Machine(
        architecture=device,
        network=found.network,
        node=found.devices_per_node,
        stack=stack,
        host=found.host,
        profile=scenario.profile,
    )


def stage_memory(scenario: Scenario) -> tuple[Mapping[str, float], ...]:
    """Bytes of a device of every stage by kind, each stage at its own fullest moment; none where all devices are alike. [B]"""
    if isinstance(scenario.strategy, Plan):
        if scenario.system.kinds:
            return _told(unlike_plans(scenario.job(), *own_kinds(scenario)).held)
        laid = own_laid(scenario)
        return _told(memory(laid.job.own, laid.layout, laid.machine) if laid.job.pooled else laid.held)
    if isinstance(scenario.strategy, Mesh):
        return tuple({kind: float(size) for kind, size in kinds.items()} for kinds in scenario.program().memory)
    return ()


def _told(held: Memory) -> tuple[Mapping[str, float], ...]:
    """Bytes of a device of every stage of the only plan by kind. [B]"""
    return tuple(dict(zip(KINDS, stage.tolist(), strict=True)) for stage in held.stages[:, :, 0].T)


@dataclass(frozen=True, kw_only=True)
class PlacedStage:
    """A stage of a pipeline on devices of one of several kinds."""

    place: str  # of the devices, such as `system` or `system.pools.older`
    devices: str  # their name
    layers: tuple[int, ...]  # of every chunk of the stage. [1]
    capacity: float  # memory of each device. [B]


def placed_stages(scenario: Scenario) -> tuple[PlacedStage, ...]:
    """Stages of a scenario's pipeline with their devices and layers; none where all devices are alike."""
    if not scenario.system.kinds or not isinstance(scenario.strategy, Plan):
        return ()
    plans = unlike_plans(scenario.job(), *own_kinds(scenario))
    layout, held = plans.layout, plans.held
    assert held.capacities is not None  # of several kinds of devices
    division, places = layout.divisions[layout.division[0]], list(scenario.system.places.items())
    chunks = division.layers(int(np.ravel(scenario.job().model.depth)[0]), scenario.strategy.pp * scenario.strategy.virtual_stages)
    return tuple(
        PlacedStage(
            place=places[kind][0],
            devices=places[kind][1].name,
            layers=chunks[i :: scenario.strategy.pp],
            capacity=float(held.capacities[i, 0]),
        )
        for i, kind in enumerate(division.kinds)
    )
