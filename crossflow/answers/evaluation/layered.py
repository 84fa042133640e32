"""Evaluation of transformers: strategies as arrays, one step, score; and what layered models run on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from crossflow.answers.evaluation.common import PointBatch, Ran
from crossflow.answers.evaluation.members import check_strategy
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import Index
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import KINDS, Memory, host_share, memory, second_capacity
from crossflow.engine.runs.outcome import BREAKDOWN, Outcome
from crossflow.engine.runs.transformer import run_layers, transformer_step
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.parallel.batches import laid_out
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import Mesh
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.tables import StepTables, tables_of
from crossflow.workload.job import Job
from crossflow.workload.jobs import tokens_of
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
)  # of an outcome, what is known of points that are not timed


def transformer_run(batch: PointBatch) -> Ran:
    """Steps of a transformer; with `fitting` those that do not fit are not timed."""
    scenario, n, members = batch.scenario, batch.n, batch.members
    runs_on = machine(scenario, batch.device, batch.system)
    runs_on = replace(runs_on, least=True) if batch.least else runs_on
    if members is None:
        job, (layout, tables, held) = scenario.job(), _repeated(scenario, runs_on.node, n)
        if not batch.own:
            device = runs_on.architecture
            held = replace(
                held, capacity=device.memory_capacity * np.ones(n), host_capacity=host_share(runs_on, layout),
                far_capacity=second_capacity(device, n),
            )  # fmt: skip
    else:
        job, tables = members.job, None
        layout = laid_out(job, members.strategies, members.batch, runs_on.node, runs_on.stack)
        held = memory(job, layout, runs_on)
    fits = held.fits if batch.fitting else np.ones(n, dtype=bool)
    if not fits.any():
        outcome = untimed(held)
    elif not fits.all():
        outcome = _partly(job, layout, runs_on, held, np.flatnonzero(fits))
    elif tables is None:
        outcome = transformer_step(job, layout, runs_on, held)
    else:
        outcome = run_layers(job, layout, runs_on, tables, held)
    samples = scenario.workload_batch if members is None else members.batch
    return Ran(outcome=outcome, devices=layout.devices, samples=samples, tokens=tokens_of(job), parameters=job.model.parameters)


@functools.lru_cache(maxsize=64)
def _repeated(scenario: Scenario, node: int, n: int) -> tuple[Layout, StepTables, Memory]:
    """Layout of n points with a scenario's own plan, what it computes and what it holds, which no quantity of the system changes."""
    plan, job, workload = scenario.strategy, scenario.job(), scenario.workload
    assert scenario.stack is not None  # a transformer has software
    assert isinstance(plan, Plan)  # and a plan
    assert isinstance(workload, TransformerSpec)
    check_strategy(scenario, plan, workload, (1, 1))
    layout = laid_out(job, [plan] * n, np.full(n, float(scenario.workload_batch)), node, scenario.stack)
    held = memory(job, layout, machine(scenario, scenario.architecture))
    return layout, tables_of(job, layout, scenario.stack), held


def _partly(job: Job, layout: Layout, runs_on: Machine, held: Memory, fits: Index) -> Outcome:
    """Outcome with the points that fit timed, and no end in sight for the others."""
    timed = transformer_step(chosen(job, fits), layout.at(fits), runs_on, held.at(fits))

    def spread(values: Any, rest: float = 0.0) -> Any:
        if isinstance(values, Mapping):
            return {name: spread(part) for name, part in values.items()}
        if isinstance(values, tuple):
            return tuple(map(spread, values))
        whole = np.full(len(layout), rest)
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


def stage_memory(scenario: Scenario, device: Architecture) -> tuple[Mapping[str, float], ...]:
    """Bytes of a device of every stage by kind, each stage at its own fullest moment; none where all devices are alike. [B]"""
    strategy = scenario.strategy
    if isinstance(scenario.workload, TransformerSpec) and isinstance(strategy, Plan):
        runs_on = machine(scenario, device)
        job, batch = scenario.job(), np.array([float(scenario.workload_batch)])
        held = memory(job, laid_out(job, [strategy], batch, runs_on.node, runs_on.stack), runs_on)
        return tuple(dict(zip(KINDS, stage.tolist(), strict=True)) for stage in held.stages[:, :, 0].T)
    if isinstance(strategy, Mesh):
        return tuple({kind: float(size) for kind, size in kinds.items()} for kinds in scenario.program().memory)
    return ()
