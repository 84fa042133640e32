"""Timelines of scenarios."""

from __future__ import annotations

import numpy as np

from crossflow.errors import CrossflowError, with_article
from crossflow.evaluation.layered import dlrm_inputs, machine
from crossflow.evaluation.program_timelines import program_timeline
from crossflow.scenario import Scenario, check_strategy
from crossflow.step.dlrm import dlrm_log
from crossflow.step.timeline import transformer_timeline
from crossflow.step.uneven import EVEN, Uneven
from crossflow.strategy.layout import Layout
from crossflow.strategy.mesh import Mesh
from crossflow.strategy.plan import Plan
from crossflow.timeline.flat import Run, timeline_of
from crossflow.timeline.record import COMPUTE, DATA, HOST, TENSOR, Device, Timeline


def simulate(scenario: Scenario, uneven: Uneven = EVEN) -> Timeline:
    """When everything starts and ends in one step of a scenario, on every device.

    Parameters
    ----------
    uneven : what makes devices, links and passes differ; nothing where absent.

    Raises
    ------
    StrategyError
        Where the strategy cannot divide the workload.
    CrossflowError
        Where the step never ends, where several kernels share a device, and where `uneven` means a device that is not there or a
        workload that has none.
    """
    check_strategy(scenario)
    title = f"{scenario.name}: {scenario.workload.model} on {scenario.devices} x {scenario.system.name}, {scenario.strategy_text}"
    if isinstance(scenario.strategy, Plan):
        runs_on = machine(scenario, scenario.architecture)
        layout = Layout.of([scenario.strategy], np.array([float(scenario.workload_batch)]), runs_on.node)
        found = transformer_timeline(scenario.job(), layout, runs_on, title, uneven)
    elif isinstance(scenario.strategy, Mesh):
        found = program_timeline(scenario, title, uneven)
    elif uneven.even:
        found = _dlrm(scenario, title)
    else:
        message = "uneven worlds are supported for transformers, lstm, gemm and programs only; this is"
        raise CrossflowError(f"{message} {with_article(scenario.workload.model)}, whose devices all run in step; leave --uneven out")
    if not np.isfinite(found.total):
        raise CrossflowError(f"{scenario.name}: the step never ends, so it has no timeline; `crossflow predict` says why")
    return found


def _dlrm(scenario: Scenario, title: str) -> Timeline:
    """Timeline of a recommendation model: its events on in-order streams, alike on all devices."""
    outcome, log = dlrm_log(*dlrm_inputs(scenario))
    runs: list[Run] = []
    for one in log:
        end, time = float(one.end[0]), float(one.duration[0])
        stream = COMPUTE if one.computes else DATA if bool(np.broadcast_to(one.outside, (1,))[0]) else TENSOR
        if time > 0:
            runs.append(Run(device=0, stream=stream, name=one.name, start=end - time, end=end))
    total, last = float(outcome.total[0]), max((run.end for run in runs), default=0.0)
    if total > last:
        runs.append(Run(device=0, stream=HOST, name="the host, between steps", start=last, end=total))
    memory = scenario.architecture.memory
    return timeline_of(
        runs, [Device(name="every device", stage=0, ranks=range(scenario.devices))], title=title, total=total, node=scenario.nodes[0],
        memory=[(np.zeros(1), np.array([sum(float(part[0]) for part in outcome.memory.values())]))],
        capacity=float(memory.capacity[0] * memory.instances[0]),
    )  # fmt: skip
