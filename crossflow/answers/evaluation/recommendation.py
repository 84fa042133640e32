"""Evaluation of recommendation models: strategies as arrays, one step, score; and the step of a scenario as a program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crossflow.answers.evaluation.common import PointBatch, Ran
from crossflow.answers.evaluation.layered import machine
from crossflow.answers.evaluation.members import Members, own_members
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import Index
from crossflow.base.errors import CrossflowError, with_article
from crossflow.base.stages import stage
from crossflow.cost.machine import Machine
from crossflow.cost.price import Prices
from crossflow.engine.runs.dlrm import dlrm_outcome, dlrm_prices, dlrm_step
from crossflow.engine.runs.dlrm_point import point_program, point_programs
from crossflow.engine.runs.dlrm_sharded import chosen, joined_outcomes, rank_rows, sharded_outcome
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.programs import program_outcome
from crossflow.parallel.dlrm import DlrmStep, dlrm_memory
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.program.program import Program
from crossflow.workload.dlrm import DlrmJob
from crossflow.workload.dlrm_spec import DlrmSpec


def dlrm_inputs(scenario: Scenario) -> tuple[DlrmJob, Hierarchies, Machine]:
    """What a recommendation model of a scenario computes, how it is divided, and what it runs on, at one design point."""
    members = own_members(scenario)
    return members.job, _divided(members), replace(machine(scenario, scenario.architecture), node=members.nodes[0][0])


def _divided(members: Members) -> Hierarchies:
    """How the models of a batch are divided, all on nodes alike."""
    return Hierarchies.of(members.strategies, members.batch, members.nodes[0][0], members.node_counts)


def recommendation_program(scenario: Scenario) -> Program:
    """The whole step of a scenario's recommendation model as a program, which `crossflow.program.write_program` writes to a file.

    The file takes as long on the scenario's system with its software, and holds as much.

    Raises
    ------
    StrategyError
        Where the strategy cannot divide the model.
    CrossflowError
        Where the scenario's model is another one.
    """
    if not isinstance(scenario.workload, DlrmSpec):
        message = f"expected a recommendation model, this is {with_article(scenario.workload.model)}"
        raise CrossflowError(f"{scenario.name}: {message}; `scenario.program()` is that of an lstm, a gemm or a program")
    job, plans, runs_on = dlrm_inputs(scenario)
    if job.sharding:
        return next(steps for _, _, steps in chosen(job, plans, runs_on)).at(0)[0]
    step = dlrm_step(job, plans, runs_on)
    return point_program(step, dlrm_prices(step.program, 1, runs_on), [dlrm_memory(job, step, runs_on.stack)])[0]


def step_program(scenario: Scenario, *, unrolled: bool = False) -> Program:
    """The whole step of a scenario whose strategy is not a plan, as a program; `unrolled` as of `Scenario.program`."""
    return recommendation_program(scenario) if isinstance(scenario.strategy, Hierarchy) else scenario.program(unrolled=unrolled)


@stage("recommendation")
def dlrm_run(batch: PointBatch) -> Ran:
    """Steps of a recommendation model."""
    scenario, members = batch.scenario, batch.members
    job, plans = members.job, _divided(members)
    runs_on = replace(machine(scenario, batch.device, batch.system), node=members.nodes[0][0], least=batch.least)
    with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
        outcome = sharded_outcome(job, plans, runs_on, scenario.slots) if job.sharding else _outcome(job, plans, runs_on, scenario.slots)
    return Ran(outcome=outcome, devices=plans.devices)


def _outcome(job: DlrmJob, plans: Hierarchies, machine: Machine, slots: int | None) -> Outcome:
    """What comes out of a step of every point, whose ranks all have the mean of the look-ups."""
    step = dlrm_step(job, plans, machine)
    prices = dlrm_prices(step.program, len(plans), machine)
    outcome = dlrm_outcome(job, step, prices, machine.stack)
    return outcome if slots is None else _sharing(step, prices, outcome, slots)


def _sharing(step: DlrmStep, prices: Prices, alone: Outcome, slots: int) -> Outcome:
    """The same where kernels share a device: the program of each point on the event engine."""
    found, n = list[tuple[Index, Outcome]](), len(step.plans)
    for points, program, messages in point_programs(step, prices, [alone.memory], np.arange(n)):
        devices = int(step.plans.devices[points[0]])
        found.append((points, program_outcome(program, prices.at(points, messages), len(points), devices=devices, slots=slots)))
    layers = {name: values for name, values in alone.by_layer.items() if not name.endswith(".exposed")}
    shared = joined_outcomes(found, n)
    total = np.where(np.isfinite(alone.total), shared.total, alone.total)
    return replace(alone, total=total, breakdown=shared.breakdown, exposed=shared.exposed, bound=shared.bound, by_layer=layers)


def held_by_rank(scenario: Scenario) -> tuple[str, list[dict[str, float]]] | None:
    """The sharding of a scenario's tables, and what every rank holds and takes; None where there is none."""
    if not isinstance(scenario.workload, DlrmSpec) or scenario.workload.sharding is None:
        return None
    return rank_rows(*dlrm_inputs(scenario))
