"""Steps of recommendation models: strategies as arrays, one step; and the step of a scenario as a program."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps import own_batch
from crossflow.answers.steps.batch import Ran
from crossflow.answers.steps.machines import machine
from crossflow.answers.steps.programs import ProgramStep
from crossflow.base.arrays import Index
from crossflow.base.errors import CrossflowError, with_article
from crossflow.cost.machine import Machine
from crossflow.cost.price import Prices
from crossflow.engine.runs.dlrm import dlrm_outcome, dlrm_prices, dlrm_step
from crossflow.engine.runs.dlrm_point import NODE, NODES, point_program, point_programs
from crossflow.engine.runs.dlrm_sharded import chosen, joined_outcomes, rank_rows, sharded_outcome
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.programs import program_outcome
from crossflow.parallel.dlrm import DlrmStep, dlrm_memory
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.program.program import Program
from crossflow.workload.dlrm import DlrmJob
from crossflow.workload.dlrm_spec import DlrmSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class RecommendationStep(ProgramStep):
    """Steps of recommendation models, whose strategies and quantities are arrays; at one point the step is a program like any other."""

    @functools.cached_property
    def job(self) -> DlrmJob:
        """What is computed."""
        return self.batch.members.job  # type: ignore[no-any-return]

    @functools.cached_property
    def plans(self) -> Hierarchies:
        """How models are divided, all on nodes alike."""
        members = self.batch.members
        return Hierarchies.of(members.strategies, members.batch, members.nodes[0][0], members.node_counts)

    @functools.cached_property
    def machine(self) -> Machine:
        """Devices with their network and software."""
        batch = self.batch
        return replace(machine(batch.scenario, batch.device, batch.system), node=batch.members.nodes[0][0], least=batch.least)

    def run(self) -> Ran:
        """See `ScenarioStep.run`."""
        job, plans, runs_on, slots = self.job, self.plans, self.machine, self.batch.scenario.slots
        with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
            outcome = sharded_outcome(job, plans, runs_on, slots) if job.sharding else _outcome(job, plans, runs_on, slots)
        return Ran(outcome=outcome, devices=plans.devices)

    def program(self) -> Program:
        """See `ProgramStep.program`."""
        job, plans, runs_on = self.job, self.plans, self.machine
        if job.sharding:
            return next(steps for _, _, steps in chosen(job, plans, runs_on)).at(0)[0]
        step = dlrm_step(job, plans, runs_on)
        return point_program(step, dlrm_prices(step.program, 1, runs_on), [dlrm_memory(job, step, runs_on.stack)])[0]

    def unrolled(self) -> Program:
        """The same, as there are no time steps."""
        return self.program()

    @property
    def replicas(self) -> tuple[str, ...]:
        """Axes along which ranks hold the same dense weights, or shards of them."""
        (strategy,) = self.batch.members.strategies
        return tuple(name for name, role in zip((NODE, NODES), strategy.dense, strict=True) if role in ("batch", "shard"))

    @property
    def memory_by_stage(self) -> tuple[Mapping[str, float], ...]:
        """None: all devices hold what the fullest does."""
        return ()

    @property
    def sharding(self) -> tuple[str, list[dict[str, float]]] | None:
        """See `ScenarioStep.sharding`."""
        return rank_rows(self.job, self.plans, self.machine) if self.job.sharding else None


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
    return RecommendationStep(batch=own_batch(scenario)).program()


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
