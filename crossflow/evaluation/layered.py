"""Evaluation of layered models, transformers and recommendation models: strategies as arrays, one step, score."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from crossflow.architecture.model import Architecture
from crossflow.architecture.template import GeneratedSystem, SystemSpec
from crossflow.arrays import Array, Index
from crossflow.errors import StrategyError, with_article
from crossflow.evaluation.common import score_of
from crossflow.scenario import Scenario
from crossflow.score import Score
from crossflow.step.dlrm import dlrm_job, dlrm_step
from crossflow.step.memory import Memory, host_share, memory
from crossflow.step.outcome import BREAKDOWN, Machine, Outcome
from crossflow.step.task import Task, task_of
from crossflow.step.transformer import transformer_step
from crossflow.strategy.hierarchy import Hierarchy, hierarchy_of, hierarchy_problem
from crossflow.strategy.layout import Layout
from crossflow.strategy.levels import Hierarchies
from crossflow.strategy.notation import is_by_types
from crossflow.strategy.plan import Plan
from crossflow.strategy.reading import ANY, read_plan, strategy_problem
from crossflow.workload.dlrm import DlrmJob
from crossflow.workload.job import Job
from crossflow.workload.spec import DlrmSpec, TransformerSpec

BESIDE = ("workload.", "software")  # what may vary together with plans without changing the number of devices
BATCH = "workload.global_batch"


def plans_apart(
    scenario: Scenario, discrete: Mapping[str, Sequence[Any]], *, varying: bool
) -> tuple[Sequence[Any] | None, Mapping[str, Sequence[Any]]]:
    """Strategies of a layered model's points as they are written, which vary inside a batch, and other discrete settings, which do not.

    Where quantities or technology of a generated device are `varying` too, strategies are apart like any other setting: its
    tiles are searched for points that share their sizes.
    """
    rest = {path: values for path, values in discrete.items() if path != "strategy"}
    apart = varying and isinstance(scenario.system, GeneratedSystem)
    if apart or len(rest) == len(discrete) or not all(path.startswith(BESIDE) for path in rest):
        return None, discrete
    given = discrete["strategy"]
    of_types = isinstance(scenario.workload, TransformerSpec) and any(is_by_types(value) for value in given)
    if of_types or not isinstance(scenario.workload, DlrmSpec | TransformerSpec):
        return None, discrete
    return given, rest


def batches_apart(scenario: Scenario, discrete: Mapping[str, Sequence[Any]]) -> tuple[Array | None, Mapping[str, Sequence[Any]]]:
    """Global batches of points of a transformer in training, which vary inside a batch, and other discrete settings, which do not.

    Strategies written by layer type, or as `any`, follow the batch, and a service's requests are all in flight: those are apart.
    """
    written = scenario.document.data.get("strategy")
    follows = written == ANY or is_by_types(written) or not isinstance(scenario.strategy, Plan)
    trained = isinstance(scenario.workload, TransformerSpec) and scenario.workload.task == "training"
    given = discrete.get(BATCH, ())
    counts = all(isinstance(value, int | np.integer) and not isinstance(value, bool) and value > 0 for value in given)
    others = {path: values for path, values in discrete.items() if path != BATCH}
    if not len(given) or follows or not trained or not counts or {"strategy", "workload.task", "workload.model", "workload"} & set(others):
        return None, discrete
    return np.array(given, dtype=float), others


def plans_of(scenario: Scenario, given: Sequence[Any]) -> list[Plan] | list[Hierarchy]:
    """Strategies of points that share the workload of a scenario, which decides what they leave open."""
    if isinstance(scenario.workload, DlrmSpec):
        return [value if isinstance(value, Hierarchy) else hierarchy_of(value, scenario.nodes) for value in given]
    if not isinstance(scenario.workload, TransformerSpec):
        kind = with_article(scenario.workload.model)
        raise StrategyError(f"workload.model: {kind} has no strategies in common with layered models; evaluate it by itself")
    plans = [value if isinstance(value, Plan) else read_plan(value, scenario.workload) for value in given]
    counted = scenario.system.devices is not None or scenario.system.nodes is not None
    for plan in {plan for plan in plans if counted and plan.devices != scenario.system.device_count}:
        raise StrategyError(f"strategy {plan} needs {plan.devices} devices, but the system has {scenario.system.device_count}")
    return plans


def dlrm_inputs(scenario: Scenario) -> tuple[DlrmJob, Hierarchies, Machine]:
    """What a recommendation model of a scenario computes, how it is divided, and what it runs on, at one design point."""
    workload, strategy, (node, nodes) = scenario.workload, scenario.strategy, scenario.nodes
    assert isinstance(workload, DlrmSpec)  # the caller has looked
    assert isinstance(strategy, Hierarchy)  # such a model's is
    runs_on = replace(machine(scenario, scenario.architecture), node=node)
    return dlrm_job(workload), Hierarchies.of([strategy], workload.global_batch, node, nodes), runs_on


def dlrm_score(
    scenario: Scenario, system: SystemSpec, device: Architecture, n: int, chosen: Sequence[Hierarchy] | None, *, least: bool = False
) -> Score:
    """Score of n points of a recommendation model: its own strategy, or one a point."""
    workload, strategy = scenario.workload, scenario.strategy
    assert isinstance(workload, DlrmSpec)  # the caller has looked
    assert isinstance(strategy, Hierarchy)  # such a model's is
    node, nodes = scenario.nodes
    hierarchies = [strategy] * n if chosen is None else list(chosen)
    for hierarchy in dict.fromkeys(hierarchies):
        problem = hierarchy_problem(hierarchy, workload.dlrm(), workload.global_batch, node, nodes)
        if problem is not None:
            raise StrategyError(f"strategy {hierarchy}: {problem}")
    runs_on = replace(machine(scenario, device, system), node=node, least=least)
    with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
        outcome = dlrm_step(dlrm_job(workload), Hierarchies.of(hierarchies, workload.global_batch, node, nodes), runs_on)
    devices, parameters = np.full(n, float(scenario.devices)), workload.dlrm().parameters
    return score_of(scenario, system, device, outcome, devices, samples=workload.global_batch, tokens=0, parameters=parameters)


def transformer_score(
    scenario: Scenario,
    system: SystemSpec,
    device: Architecture,
    n: int,
    plans: Sequence[Plan] | None,
    *,
    batches: Array | None = None,
    least: bool = False,
    fitting: bool = False,
) -> Score:
    """Score of n points of a transformer: its own plan and batch, or one a point; with `fitting` those that do not fit are not timed."""
    job = scenario.job()
    batch = np.full(n, float(scenario.workload_batch)) if batches is None else batches
    runs_on = machine(scenario, device, system)
    runs_on = replace(runs_on, least=True) if least else runs_on
    if plans is None and batches is None:
        layout, task, held = _repeated(scenario, runs_on.node, n)
        if device is not scenario.architecture or system is not scenario.system:
            held = replace(held, capacity=device.memory.capacity * np.ones(n), host_capacity=host_share(runs_on, layout))
    else:
        chosen = [_own_plan(scenario)] * n if plans is None else plans
        for plan, size in dict.fromkeys(zip(chosen, batch.tolist(), strict=True)):
            _check(plan, scenario, int(size))
        layout, task = Layout.of(chosen, batch, runs_on.node), None
        held = memory(job, layout, runs_on)
    devices = layout.devices
    fits = held.fits if fitting else np.ones(n, dtype=bool)
    if fits.all():
        outcome = transformer_step(job, layout, runs_on, held, task)
    elif not fits.any():
        outcome = untimed(held)
    else:
        outcome = _partly(job, layout, runs_on, held, np.flatnonzero(fits))
    tokens, parameters = scenario.tokens_per_sample, job.model.parameters
    return score_of(scenario, system, device, outcome, devices, samples=batch, tokens=tokens, parameters=parameters)


@functools.lru_cache(maxsize=64)
def _repeated(scenario: Scenario, node: int, n: int) -> tuple[Layout, Task, Memory]:
    """Layout of n points with a scenario's own plan, what it computes and what it holds, which no quantity of the system changes."""
    plan, job = _own_plan(scenario), scenario.job()
    assert scenario.stack is not None  # a transformer has software
    _check(plan, scenario, scenario.workload_batch)
    layout = Layout.of([plan] * n, np.full(n, float(scenario.workload_batch)), node)
    held = memory(job, layout, machine(scenario, scenario.architecture))
    return layout, task_of(job, layout, scenario.stack), held


def _own_plan(scenario: Scenario) -> Plan:
    assert isinstance(scenario.strategy, Plan)  # a transformer's is
    return scenario.strategy


def _check(plan: Plan, scenario: Scenario, batch: int) -> None:
    """StrategyError for a plan that cannot divide a scenario's model and a global batch."""
    problem = _problem(plan, scenario.workload, batch, scenario.balanced, scenario.system.host is not None)
    if problem is not None:
        raise StrategyError(f"strategy {plan}: {problem}")


def _partly(job: Job, layout: Layout, runs_on: Machine, held: Memory, fits: Index) -> Outcome:
    """Outcome with the points that fit timed, and no end in sight for the others."""
    n = len(layout)
    timed = transformer_step(job, layout.at(fits), runs_on, held.at(fits))
    empty = untimed(held)

    def spread(values: Array, rest: float) -> Array:
        whole = np.full(n, rest)
        whole[fits] = values
        return whole

    def spread_all(parts: Mapping[str, Array]) -> dict[str, Array]:
        return {name: spread(values, 0.0) for name, values in parts.items()}

    return replace(
        empty,
        total=spread(timed.total, np.inf),
        breakdown=spread_all(timed.breakdown),
        communication=spread_all(timed.communication),
        exposed=spread_all(timed.exposed),
        flops=spread(timed.flops, 0.0),
        model_flops=spread(timed.model_flops, 0.0),
        energy=spread(timed.energy, 0.0),
        traffic=spread(timed.traffic, 0.0),
        sent=(spread(timed.sent[0], 0.0), spread(timed.sent[1], 0.0)),
        measured=spread(timed.measured, 0.0),
        bound=spread_all(timed.bound),
        by_layer=spread_all(timed.by_layer),
    )


def untimed(held: Memory) -> Outcome:
    """Outcome of points that were not timed because they do not fit."""
    n = held.total.size
    nothing, never = np.zeros(n), np.full(n, np.inf)
    parts = dict.fromkeys(BREAKDOWN, nothing)
    return Outcome(
        total=never, breakdown=parts, communication={}, exposed={}, memory=held.kinds, flops=nothing, model_flops=nothing, energy=nothing,
        traffic=nothing, sent=(nothing, nothing), bound={}, host_memory=held.host,
        host_capacity=held.host_capacity,
    )  # fmt: skip


@functools.lru_cache(maxsize=65536)
def _problem(plan: Plan, workload: TransformerSpec, batch: int, balanced: bool, hosted: bool) -> str | None:
    return strategy_problem(plan, workload, (1, 1), balanced=balanced, hosted=hosted, batch=batch)


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


def _machine(scenario: Scenario, device: Architecture, found: SystemSpec) -> Machine:
    assert scenario.stack is not None  # layered models have one
    return Machine(
        architecture=device,
        network=found.network,
        node=found.devices_per_node,
        stack=scenario.stack,
        host=found.host,
        profile=scenario.profile,
    )
