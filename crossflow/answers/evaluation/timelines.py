"""Timelines of scenarios."""

from __future__ import annotations

import numpy as np

from crossflow.answers.scenario import Scenario, check_one_step, check_strategy
from crossflow.answers.steps import own_step
from crossflow.base.errors import CrossflowError
from crossflow.base.limits import shown
from crossflow.engine.runs.uneven import EVEN, Uneven
from crossflow.engine.timeline.record import Timeline


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
    found = own_step(scenario).timeline(title, uneven)
    if not np.isfinite(found.total):
        raise CrossflowError(f"{scenario.name}: the step never ends, so it has no timeline; `crossflow predict` says why")
    return found
