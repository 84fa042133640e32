"""Timelines of scenarios."""

from __future__ import annotations

import numpy as np

from crossflow.answers.evaluation.layered import own_kinds, own_laid
from crossflow.answers.evaluation.program_timelines import program_timeline, replica_axes
from crossflow.answers.evaluation.recommendation import step_program
from crossflow.answers.scenario import Scenario, check_one_step, check_strategy
from crossflow.base.errors import CrossflowError
from crossflow.base.limits import shown
from crossflow.engine.runs.timeline import transformer_timeline
from crossflow.engine.runs.uneven import EVEN, Uneven
from crossflow.engine.runs.unlike_timeline import unlike_timeline
from crossflow.engine.timeline.record import Timeline
from crossflow.parallel.strategy.plan import Plan


@np.errstate(invalid="ignore")  # of a step without end, which is refused
def simulate(scenario: Scenario, uneven: Uneven = EVEN) -> Timeline:
    """When everything starts and ends in one step of a scenario, on every device; of a job, the phases of an iteration.

    Parameters
    ----------
    uneven : what makes devices, links and passes differ; nothing where absent.

    Raises
    ------
    StrategyError
        Where the strategy cannot divide the workload.
    CrossflowError
        Where the step never ends, where several kernels share a device, and where `uneven` means a device or a link that is not there.
    """
    if not isinstance(scenario, Scenario):
        raise CrossflowError(f"simulate: expected a scenario, got {shown(scenario)}; crossflow.timeline takes files and mappings too")
    check_strategy(scenario)
    if scenario.post_training is not None:
        from crossflow.answers.evaluation.job_timelines import job_timeline  # with iterations, which few timelines need

        return job_timeline(scenario, uneven)
    check_one_step(scenario)
    title = f"{scenario.name}: {scenario.workload.model} on {scenario.own_fleet}, {scenario.strategy_text}"
    if scenario.system.kinds:
        found = unlike_timeline(scenario.job(), *own_kinds(scenario), title, uneven)
    elif isinstance(scenario.strategy, Plan):
        laid = own_laid(scenario)
        found = transformer_timeline(laid.job, laid.layout, laid.machine, title, uneven)
    else:
        found = program_timeline(scenario, step_program(scenario, unrolled=True), replica_axes(scenario.strategy), title, uneven)
    if not np.isfinite(found.total):
        raise CrossflowError(f"{scenario.name}: the step never ends, so it has no timeline; `crossflow predict` says why")
    return found
