"""Timelines of scenarios."""

from __future__ import annotations

import numpy as np

from crossflow.errors import CrossflowError
from crossflow.evaluation.layered import machine
from crossflow.parallel import Layout, Plan
from crossflow.scenario import Scenario, check_strategy
from crossflow.step.timeline import transformer_timeline
from crossflow.step.uneven import EVEN, Uneven
from crossflow.timeline.record import Timeline


def timeline(scenario: Scenario, uneven: Uneven = EVEN) -> Timeline:
    """When everything starts and ends in one step of a scenario, on every device.

    Parameters
    ----------
    uneven : what makes devices, links and passes differ; nothing where absent.

    Raises
    ------
    StrategyError
        Where the strategy cannot divide the workload.
    CrossflowError
        Where `uneven` means a device that is not there.
    """
    check_strategy(scenario)
    title = f"{scenario.name}: {scenario.workload.model} on {scenario.devices} x {scenario.system.name}, {scenario.strategy}"
    if isinstance(scenario.strategy, Plan):
        runs_on = machine(scenario, scenario.architecture)
        layout = Layout.of([scenario.strategy], np.array([float(scenario.workload_batch)]), runs_on.node)
        return transformer_timeline(scenario.job(), layout, runs_on, title, uneven)
    raise CrossflowError(f"no timeline of {scenario.workload.model}")
