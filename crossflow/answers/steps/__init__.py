"""One step of a scenario, with the same doors whatever it computes.

A `ScenarioStep` says what a step takes and holds (`run`), when everything in it happens (`timeline`), which events it has (`events`)
and what congestion does to them (`slowed`). Here, and nowhere above, it is decided which kind of step a scenario has; each kind has a
module: layers of transformers on devices of one kind or several (`transformers`), requests in steady state (`services`), look-ups and
dense layers (`recommendation`), graphs of kernels and programs (`programs`).

All go the same way: what is computed becomes a program, divided and laid on devices; of it follow what devices hold and what its parts
take, and the engine runs it. `batch` says what points that are evaluated together share, `members` which points may be, `machines` what
layered models run on.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.batch import Fleet, PointBatch
from crossflow.answers.steps.members import own_members
from crossflow.answers.steps.step import ScenarioStep
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.workload.spec import TransformerSpec


def step_of(batch: PointBatch) -> ScenarioStep:
    """The step of points that are evaluated together.

    Only what a scenario needs is imported, so that a first prediction does not wait for the rest.
    """
    workload = batch.scenario.workload
    if isinstance(workload, TransformerSpec):
        if workload.task == "serving":
            from crossflow.answers.steps.services import ServiceStep

            return ServiceStep(batch=batch)
        from crossflow.answers.steps.transformers import transformer_step_of

        return transformer_step_of(batch)
    if workload.model == "dlrm":
        from crossflow.answers.steps.recommendation import RecommendationStep

        return RecommendationStep(batch=batch)
    from crossflow.answers.steps.programs import ProgramStep

    return ProgramStep(batch=batch)


def own_batch(scenario: Scenario, *, least: bool = False, fitting: bool = False) -> PointBatch:
    """A scenario as it stands, at one point."""
    return PointBatch(
        scenario=scenario, system=scenario.system, device=scenario.architecture, members=own_members(scenario),
        pools=fleets_in_pools(scenario.system, scenario.pool_architectures), least=least, fitting=fitting,
    )  # fmt: skip


def fleets_in_pools(system: SystemSpec, built: Mapping[str, Architecture]) -> dict[str, Fleet]:
    """Pools of a system by name, of devices as they are built."""
    return {name: Fleet(pool=name, system=pool, device=built[name]) for name, pool in system.pooled.items()}


@functools.lru_cache(maxsize=64)
def own_step(scenario: Scenario) -> ScenarioStep:
    """The step of a scenario as it stands; StrategyError where its strategy does not divide its workload."""
    return step_of(own_batch(scenario))
