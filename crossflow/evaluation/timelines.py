"""Timelines of scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crossflow.cost import price
from crossflow.engine import durations, longest_path, stream_edges
from crossflow.errors import CrossflowError, with_article
from crossflow.evaluation.layered import machine
from crossflow.evaluation.programs import placed
from crossflow.parallel import Layout, Plan, Strategy
from crossflow.parallel.hierarchy import Hierarchies, Hierarchy
from crossflow.scenario import Scenario, check_strategy
from crossflow.step.dlrm import dlrm_job, dlrm_log
from crossflow.step.timeline import transformer_timeline
from crossflow.step.uneven import EVEN, Uneven
from crossflow.timeline.flat import Run, timeline_of
from crossflow.timeline.record import COMPUTE, DATA, HOST, PIPELINE, TENSOR, Device, Timeline
from crossflow.workload.spec import DlrmSpec


def simulate(scenario: Scenario, uneven: Uneven = EVEN) -> Timeline:
    """When everything starts and ends in one step of a scenario, on every device.

    Parameters
    ----------
    uneven : what makes devices, links and passes of a transformer differ; nothing where absent.

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
    elif not uneven.even:
        raise CrossflowError(f"uneven worlds are of transformers; {with_article(scenario.workload.model)} has even ones alone")
    else:
        found = _graph(scenario, title) if isinstance(scenario.strategy, Strategy) else _dlrm(scenario, title)
    if not np.isfinite(found.total):
        raise CrossflowError(f"{scenario.name}: the step never ends, so it has no timeline; `crossflow predict` says why")
    return found


def _classes(scenario: Scenario, stages: int) -> tuple[Device, ...]:
    """A class of devices for every stage, whose ranks lie together."""
    block = scenario.devices // stages
    return tuple(Device(name=f"stage {i}", stage=i, ranks=range(i * block, (i + 1) * block)) for i in range(stages))


def _graph(scenario: Scenario, title: str) -> Timeline:
    """Timeline of a program: its operations as longest path."""
    if scenario.kernels_per_device > 1:
        raise CrossflowError(
            f"{scenario.name}: kernels_per_device = {scenario.kernels_per_device}: kernels that share a device have no timeline"
        )
    device, program = scenario.architecture, scenario.program()
    if scenario.shares_devices:
        raise CrossflowError(f"{scenario.name}: kernels on several streams share a device and have no timeline")
    prices = price(program, placed(scenario, program, device), scenario.system.network, device, scenario.nodes[0], stack=scenario.stack)
    times, of_kernels = durations(program, prices.times[:, :1])[:, 0], {(op.rank, op.stream) for op in program.ops if op.kernels}
    ends = longest_path(times[:, None], stream_edges(program.ops))[:, 0]
    runs = []
    for op, time, end in zip(program.ops, times.tolist(), ends.tolist(), strict=True):
        name, stream = op.name, HOST if op.calls else COMPUTE
        if op.message is not None:
            name = program.messages[op.message].collective
            stream = PIPELINE if name == "send_recv" else TENSOR
        beside = (op.rank, op.stream) not in of_kernels
        runs.append(Run(device=op.rank, stream=stream, name=name, start=end - time, end=end, after=op.after, beside=beside))
    memory = device.memory
    return timeline_of(
        runs, _classes(scenario, program.classes), title=title, total=float(ends.max()), node=scenario.nodes[0],
        held=[float(sum(kinds.values())) for kinds in program.memory], capacity=float(memory.capacity[0] * memory.instances[0]),
    )  # fmt: skip


def _dlrm(scenario: Scenario, title: str) -> Timeline:
    """Timeline of a recommendation model: its events on in-order streams, alike on all devices."""
    assert isinstance(scenario.workload, DlrmSpec)  # the only other workload
    assert isinstance(scenario.strategy, Hierarchy)  # as is its strategy
    node, nodes = scenario.nodes
    runs_on = replace(machine(scenario, scenario.architecture), node=node)
    outcome, log = dlrm_log(
        dlrm_job(scenario.workload), Hierarchies.of([scenario.strategy], scenario.workload.global_batch, node, nodes), runs_on
    )
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
        runs, _one_class(scenario), title=title, total=total, node=node, held=[sum(float(part[0]) for part in outcome.memory.values())],
        capacity=float(memory.capacity[0] * memory.instances[0]),
    )  # fmt: skip


def _one_class(scenario: Scenario) -> Sequence[Device]:
    return (Device(name="every device", stage=0, ranks=range(scenario.devices)),)
