"""Evaluation of workloads that are graphs of kernels: super-graph, placement, costs, schedule, score."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable

import numpy as np

from crossflow.architecture import Architecture, SystemSpec
from crossflow.arrays import Array, Index, Mask, tally, wide
from crossflow.cost import Costs, cost
from crossflow.evaluation.common import INCONSISTENT, NO_BANDWIDTH, first_cause, rents, unbuildable, within_limit
from crossflow.mapping import Network, Placement, best_placement, place
from crossflow.parallel import Strategy, SuperGraph, transform
from crossflow.scenario import Scenario
from crossflow.score import OVERFULL, Score
from crossflow.timeline import Schedule, run_shared, schedule

Makespan = Callable[[Array, Array], Array]  # of the times of works and of messages


def graph_score(scenario: Scenario, system: SystemSpec, device: Architecture, n: int, *, least: bool) -> Score:
    """Score of n points that share a super-graph and a placement; `system` and `device` hold what varies between them."""
    assert isinstance(scenario.strategy, Strategy)  # a graph's is
    supergraph = transform(scenario.graph(), scenario.strategy)
    placement = placed(scenario, supergraph, device)
    costs = cost(supergraph, placement, system.network, device, scenario.nodes[0], least=least)
    return _score(scenario, system, supergraph, device, costs, n)


def placed(scenario: Scenario, supergraph: SuperGraph, device: Architecture) -> Placement:
    """Placement of the mesh: in the scenario's order, or in the best of all orders for the bytes that axes move."""
    assert isinstance(scenario.strategy, Strategy)  # a graph's is
    axes = tuple((axis.name, axis.size) for axis in scenario.strategy.axes)
    network = scenario.network()
    if scenario.order is not None:
        return place(axes, network, scenario.order)
    if len([size for _, size in axes if size > 1]) < 2:
        return place(axes, network)
    volumes = {axis: supergraph.volumes.get(axis, 0.0) for axis, _ in axes}
    return best_placement(axes, network, volumes, link_ratio=_link_ratio(network, device))


def _link_ratio(network: Network, device: Architecture) -> float:
    """Bandwidth of a link inside a package over one between packages, at the first design point."""
    if device.intra is None or device.inter is None or not device.intra.bandwidth[0] or not device.inter.bandwidth[0]:
        return 1.0
    inside = float(device.intra.bandwidth[0]) / max(network.package.degree, 1)
    return inside / (float(device.inter.bandwidth[0]) / max(network.cluster.degree, 1))


def _score(scenario: Scenario, system: SystemSpec, supergraph: SuperGraph, device: Architecture, costs: Costs, n: int) -> Score:
    graph, plan = scenario.graph(), schedule(supergraph)
    sent = costs.messages.time
    slots = scenario.kernels_per_device
    makespan: Makespan = plan.makespan if slots == 1 else functools.partial(_simulated, supergraph, slots, costs.launch_time)
    total = wide(makespan(costs.work_time, sent), n)
    silent = wide(makespan(costs.work_time, np.zeros_like(sent)) if len(sent) else total, n)
    busy = plan.busy_times(costs.work_time)
    stage = wide(busy.argmax(axis=0), n)
    kinds, bound = _decompose(costs, plan, stage, total, silent, n, overlapping=scenario.kernels_per_device > 1)
    communication, exposed = _by_collective(supergraph, plan, costs, makespan, total, silent, stage)
    memory, capacity = _memory(supergraph, device, n)
    replicas = scenario.devices / supergraph.stages
    static = scenario.devices * device.static_power
    timed = np.isfinite(total) & (total > 0)
    elapsed = np.where(timed, total, 1.0)
    links = replicas * (plan.sent.sum(axis=0) @ costs.message_energy)
    work = replicas * (plan.busy.sum(axis=0) @ costs.work_energy)
    drawn = within_limit(work + static * elapsed, device, scenario.devices, elapsed)
    energy = np.where(timed | (total == 0), wide(drawn + links, n), np.inf)
    flops = wide(replicas * (plan.busy.sum(axis=0) @ costs.work_flops), n)
    traffic = wide(replicas * (plan.busy.sum(axis=0) @ costs.memory_traffic), n)
    feasible, reason, reasons = _feasibility(device, costs, plan, total, sum(memory.values(), np.zeros(n)), capacity, n)
    samples = np.divide(graph.batch, total, out=np.zeros(n), where=timed)
    peak = device.throughput[graph.dtype] * scenario.devices
    used = wide(np.where(timed & (peak > 0), flops / np.where(peak > 0, peak * elapsed, 1.0), 0.0), n)
    devices = np.full(n, float(scenario.devices))
    rent, worth = rents(system, device, devices, graph.dtype, n)
    return Score(
        step_time=total,
        feasible=feasible,
        reason=reason,
        reasons=reasons,
        breakdown=kinds,
        communication=communication,
        exposed_communication=exposed,
        by_layer={},
        bound=bound,
        memory=memory,
        memory_capacity=capacity,
        measured_share=np.full_like(capacity, np.nan),
        host_memory=np.zeros_like(capacity),
        host_capacity=np.full_like(capacity, np.inf),
        energy=energy,
        power=wide(np.where(timed, np.where(timed, energy, 0.0) / elapsed, static), n),
        cost=wide(scenario.devices * sum(device.cost.values(), np.zeros(1)) if device.cost else np.nan, n),
        devices=devices,
        rent=rent,
        normalised_devices=worth,
        parameters=np.full(n, float(graph.parameters)),
        flops=flops,
        memory_traffic=traffic,
        mfu=used,
        hfu=used,
        samples_per_second=samples,
        tokens_per_second=samples * graph.tokens_per_sample,
        architecture={name: wide(value, n) for name, value in device.figures.items()},
    )


def _simulated(supergraph: SuperGraph, slots: int, launches: Array, work_times: Array, message_times: Array) -> Array:
    """Makespan with several kernels at once on a device, which share it, point by point on the event engine. [s]"""
    tasks = supergraph.tasks
    n = max(work_times.shape[1], message_times.shape[1] if len(message_times) else 1)
    works, fixed = wide(work_times, n), wide(launches, n)
    messages = wide(message_times, n) if len(message_times) else message_times
    streams = [(task.stage, task.kind) for task in tasks]
    limits: dict[Hashable, int] = {stream: slots if stream[1] == "compute" else 1 for stream in streams}
    after = [task.after for task in tasks]
    result = np.empty(n)
    for i in range(n):
        launch = [float(fixed[task.index, i]) if task.kind == "compute" else 0.0 for task in tasks]
        alone = [float(works[task.index, i] if task.kind == "compute" else messages[task.index, i]) for task in tasks]
        if not np.isfinite(alone).all():
            result[i] = np.inf
            continue
        result[i] = run_shared(launch, [a - b for a, b in zip(alone, launch, strict=True)], after, streams, limits).max()
    return result


def _decompose(
    costs: Costs, plan: Schedule, stage: Index, total: Array, silent: Array, n: int, *, overlapping: bool
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Time of the busiest device by kind, and share of the step by what bounds it.

    Exposed communication is what the step would gain if messages took no time; the bubble is what is then still idle.
    Where several kernels share a device, their times overlap and are counted in proportion.
    """
    points = np.arange(n)
    parts = {name: wide(tally(plan.busy, costs.bound_time[r]), n)[stage, points] for r, name in enumerate(costs.resources)}
    parts["launch"] = wide(tally(plan.busy, costs.launch_time), n)[stage, points]
    busy = sum(parts.values(), np.zeros(n))
    if overlapping:
        squeeze = np.where(np.isfinite(silent), np.minimum(1.0, silent / np.maximum(busy, 1e-300)), 1.0)
        parts = {name: part * squeeze for name, part in parts.items()}
        busy = busy * squeeze
    bubble = _difference(silent, busy)
    bubble[bubble < 1e-12 * silent] = 0.0
    exposed = _difference(total, silent)
    kinds = {
        "compute": parts["compute"],
        "memory_bound_compute": sum((parts[name] for name in costs.resources if name != "compute"), np.zeros(n)),
        "exposed_communication": exposed,
        "bubble": bubble,
        "other": parts["launch"],
    }
    shares = {**parts, "network": exposed, "bubble": bubble}
    with np.errstate(invalid="ignore"):
        bound = {
            name: np.where(np.isfinite(total) & (total > 0), part / np.where(total > 0, total, 1.0), part == np.inf)
            for name, part in shares.items()
        }
    return kinds, {name: np.asarray(share, dtype=float) for name, share in bound.items()}


def _difference(longer: Array, shorter: Array) -> Array:
    """What is gained, infinite where only the shorter is finite, never negative for rounding."""
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isinf(longer) & np.isinf(shorter), 0.0, longer - shorter)
    return np.asarray(np.maximum(gain, 0.0))


def _by_collective(
    supergraph: SuperGraph, plan: Schedule, costs: Costs, makespan: Makespan, total: Array, silent: Array, stage: Index
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Time of messages by collective on the busiest stage, and the share of the exposed time that each causes.

    The share is by what the step would gain without that collective alone, scaled so that the shares add up.
    """
    n = total.size
    names = list(dict.fromkeys(message.collective for message in supergraph.messages))
    exposed = _difference(total, silent)
    kind = np.array([names.index(message.collective) for message in supergraph.messages], dtype=int)
    sent = costs.messages.time
    in_all: dict[str, Array] = {}
    gain: dict[str, Array] = {}
    for i, name in enumerate(names):
        mine = (kind == i)[:, None]
        in_all[name] = wide(tally(plan.sent, np.where(mine, sent, 0.0)), n)[stage, np.arange(n)]
        if len(names) == 1:
            return in_all, {name: exposed}
        gain[name] = _difference(total, wide(makespan(costs.work_time, np.where(mine, 0.0, sent)), n))
    sum_gain, sum_all = sum(gain.values(), np.zeros(n)), sum(in_all.values(), np.zeros(n))
    with np.errstate(invalid="ignore"):
        share = {
            name: np.where(sum_gain > 0, gain[name] / np.maximum(sum_gain, 1e-300), in_all[name] / np.maximum(sum_all, 1e-300))
            for name in names
        }
    return in_all, {name: np.where(share[name] > 0, exposed, 0.0) * np.where(share[name] > 0, share[name], 1.0) for name in names}


def _memory(supergraph: SuperGraph, device: Architecture, n: int) -> tuple[dict[str, Array], Array]:
    """Memory of the fullest stage by kind, and the capacity of a device."""
    fullest = max(supergraph.memory, key=lambda kinds: sum(kinds.values()))
    return {kind: np.full(n, float(amount)) for kind, amount in fullest.items()}, wide(device.memory.capacity * device.memory.instances, n)


def _feasibility(
    device: Architecture, costs: Costs, plan: Schedule, total: Array, needed: Array, capacity: Array, n: int
) -> tuple[Mask, Index, tuple[str, ...]]:
    """Which points can be built and hold their model, and for the others the first thing that stands against it."""
    causes = unbuildable(device, n)
    causes.append((~np.isfinite(total), NO_BANDWIDTH))
    causes.append((needed > capacity, OVERFULL))
    bound = tally(plan.busy, costs.lower_bound).max(axis=0)
    causes.append((wide(total < bound * (1 - 1e-6), n), INCONSISTENT))
    return first_cause(causes)
