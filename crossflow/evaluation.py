"""The one composition: scenario and design points in, score out.

Technology names, budgets and every other quantity of the system vary within one batch, as arrays whose last axis is the
design point. Whatever changes the shape of the super-graph or the placement (strategy, workload, topology, device
counts) splits the points into groups, each evaluated in one go with its super-graph and placement cached.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from crossflow.architecture import Architecture, SystemSpec, architecture
from crossflow.arrays import Array, Index, Mask, tally
from crossflow.cost import Costs, cost
from crossflow.mapping import Network, Placement, best_placement, place
from crossflow.parallel import SuperGraph, transform
from crossflow.paths import with_quantity
from crossflow.points import Points, groups, split, variant
from crossflow.scenario import Scenario
from crossflow.score import OVERFULL, Score, scatter
from crossflow.technology import Choice
from crossflow.timeline import Schedule, schedule, simulate_shared
from crossflow.workload import Graph

CHUNK = 2048  # points a batch: memory stays flat, and the cost of the interpreter is spread over many points
INCONSISTENT = "internal error: the predicted time is below a lower bound of its own inputs; please report this scenario"

Makespan = Callable[[Array, Array], Array]  # of the times of works and of messages


def evaluate(scenario: Scenario, points: Points | None = None, *, least: bool = False) -> Score:
    """Score of every design point.

    Parameters
    ----------
    scenario : where all points start from.
    points : for each path (as in ``--set``) its value at every point, all of one length: quantities as text with unit
        or as SI floats, names, whole numbers, strategies. None for the scenario itself.
    least : take the lower bound of every kernel (its operations at peak, its compulsory traffic) for its time and
        energy: step time and energy are then lower bounds, which take a third of the time (not with several kernels at
        once on a device, where less work may end later).

    Returns
    -------
    Score of n points; one that cannot be built is infeasible there, not an exception.

    Raises
    ------
    CrossflowError
        When a path does not exist or a value cannot be read.

    Notes
    -----
    Memory is flat in the number of points but for the score itself: points are evaluated in chunks.
    """
    if points is None:
        return _batch(scenario, {}, {}, 1, least)
    lengths = {path: len(values) for path, values in points.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all paths must have as many values: {lengths}")
    n = next(iter(lengths.values()), 0)
    if n == 0:
        raise ValueError("points: at least one path with at least one value is needed; leave points out for the scenario itself")
    sorted_ = split(scenario, points)
    parts = []
    for settings, index in groups(sorted_.discrete, n):
        here = variant(scenario, settings)
        for start in range(0, len(index), CHUNK):
            chosen = index[start : start + CHUNK]
            choices = {role: choice.at(chosen) for role, choice in sorted_.choices.items()}
            quantities = {path: values[chosen] for path, values in sorted_.quantities.items()}
            parts.append((chosen, _batch(here, choices, quantities, len(chosen), least)))
    return scatter(parts, n)


# -------------------------------------------------------------------------------------------- one batch


def _batch(scenario: Scenario, choices: Mapping[str, Choice], quantities: Mapping[str, Array], n: int, least: bool) -> Score:
    """Score of points that share a super-graph and a placement."""
    system: SystemSpec = scenario.system
    library = scenario.library
    for path, values in quantities.items():
        root, *rest = path.split(".")
        if root == "techlib":
            library = with_quantity(library, rest, values)
        else:
            system = with_quantity(system, rest, values)
    device = architecture(system, library, choices)
    graph = scenario.graph()
    supergraph = transform(graph, scenario.strategy)
    placement = placed(scenario, supergraph, device)
    costs = cost(supergraph, placement, system.network, device, scenario.nodes[0], least=least)
    return _score(scenario, graph, supergraph, device, costs, n)


def placed(scenario: Scenario, supergraph: SuperGraph, device: Architecture) -> Placement:
    """Placement of the mesh: in the scenario's order, or in the best of all orders for the bytes that axes move."""
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


def _score(scenario: Scenario, graph: Graph, supergraph: SuperGraph, device: Architecture, costs: Costs, n: int) -> Score:
    plan = schedule(supergraph)
    sent = costs.messages.time
    slots = scenario.kernels_per_device
    makespan: Makespan = plan.makespan if slots == 1 else functools.partial(_simulated, supergraph, slots, costs.launch_time)
    total = _wide(makespan(costs.work_time, sent), n)
    silent = _wide(makespan(costs.work_time, np.zeros_like(sent)) if len(sent) else total, n)
    busy = plan.busy_times(costs.work_time)
    stage = _wide(busy.argmax(axis=0), n)
    kinds, bound = _decompose(costs, plan, stage, total, silent, n, overlapping=scenario.kernels_per_device > 1)
    communication, exposed = _by_collective(supergraph, plan, costs, makespan, total, silent, stage)
    memory, capacity = _memory(supergraph, device, n)
    replicas = scenario.devices / supergraph.stages
    energy = replicas * (plan.busy.sum(axis=0) @ costs.work_energy + plan.sent.sum(axis=0) @ costs.message_energy)
    static = scenario.devices * device.static_power
    timed = np.isfinite(total) & (total > 0)
    elapsed = np.where(timed, total, 1.0)
    energy = np.where(timed | (total == 0), _wide(energy + static * elapsed, n), np.inf)
    flops = _wide(replicas * (plan.busy.sum(axis=0) @ costs.work_flops), n)
    traffic = _wide(replicas * (plan.busy.sum(axis=0) @ costs.memory_traffic), n)
    feasible, reason, reasons = _feasibility(device, costs, plan, total, sum(memory.values(), np.zeros(n)), capacity, n)
    samples = np.divide(graph.batch, total, out=np.zeros(n), where=timed)
    peak = device.throughput[graph.dtype] * scenario.devices
    return Score(
        step_time=total,
        feasible=feasible,
        reason=reason,
        reasons=reasons,
        breakdown=kinds,
        communication=communication,
        exposed_communication=exposed,
        bound=bound,
        memory=memory,
        memory_capacity=capacity,
        energy=energy,
        power=_wide(np.where(timed, np.where(timed, energy, 0.0) / elapsed, static), n),
        cost=_wide(scenario.devices * sum(device.cost.values(), np.zeros(1)) if device.cost else np.nan, n),
        parameters=np.full(n, float(graph.parameters)),
        flops=flops,
        memory_traffic=traffic,
        mfu=_wide(np.where(timed & (peak > 0), flops / np.where(peak > 0, peak * elapsed, 1.0), 0.0), n),
        samples_per_second=samples,
        tokens_per_second=samples * graph.tokens_per_sample,
        architecture={name: _wide(value, n) for name, value in derived(device).items()},
    )


def _wide(array: Any, n: int) -> Any:
    """A copy that has one value a point even where all are equal."""
    return np.array(np.broadcast_to(np.asarray(array), (*np.shape(array)[:-1], n)))


def _simulated(supergraph: SuperGraph, slots: int, launches: Array, work_times: Array, message_times: Array) -> Array:
    """Makespan with several kernels at once on a device, which share it, point by point on the event engine. [s]"""
    tasks = supergraph.tasks
    n = max(work_times.shape[1], message_times.shape[1] if len(message_times) else 1)
    works, fixed = _wide(work_times, n), _wide(launches, n)
    messages = _wide(message_times, n) if len(message_times) else message_times
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
        result[i] = simulate_shared(launch, [a - b for a, b in zip(alone, launch, strict=True)], after, streams, limits).max()
    return result


def _decompose(
    costs: Costs, plan: Schedule, stage: Index, total: Array, silent: Array, n: int, *, overlapping: bool
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Time of the busiest device by kind, and share of the step by what bounds it.

    Exposed communication is what the step would gain if messages took no time; the bubble is what is then still idle.
    Where several kernels share a device, their times overlap and are counted in proportion.
    """
    points = np.arange(n)
    parts = {name: _wide(tally(plan.busy, costs.bound_time[r]), n)[stage, points] for r, name in enumerate(costs.resources)}
    parts["launch"] = _wide(tally(plan.busy, costs.launch_time), n)[stage, points]
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
        in_all[name] = _wide(tally(plan.sent, np.where(mine, sent, 0.0)), n)[stage, np.arange(n)]
        if len(names) == 1:
            return in_all, {name: exposed}
        gain[name] = _difference(total, _wide(makespan(costs.work_time, np.where(mine, 0.0, sent)), n))
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
    return {kind: np.full(n, float(amount)) for kind, amount in fullest.items()}, _wide(device.memory.capacity * device.memory.instances, n)


def _feasibility(
    device: Architecture, costs: Costs, plan: Schedule, total: Array, needed: Array, capacity: Array, n: int
) -> tuple[Mask, Index, tuple[str, ...]]:
    """Which points can be built and hold their model, and for the others the first thing that stands against it."""
    causes = [(_wide(mask, n), f"cannot be built: {sentence}") for mask, sentence in device.problems]
    causes.append((~np.isfinite(total), "no network or memory bandwidth where the strategy needs it"))
    causes.append((needed > capacity, OVERFULL))
    bound = tally(plan.busy, costs.lower_bound).max(axis=0)
    causes.append((_wide(total < bound * (1 - 1e-6), n), INCONSISTENT))
    reason = np.full(n, -1)
    for code, (mask, _) in reversed(list(enumerate(causes))):
        reason[mask] = code
    return reason < 0, reason, tuple(sentence for _, sentence in causes)


def derived(device: Architecture) -> dict[str, Array]:
    """Figures of one device that people ask for, flat, in SI units; keys name the level or port."""
    figures: dict[str, Array] = {f"throughput.{dtype}": rate for dtype, rate in device.throughput.items()}
    figures |= {"units": device.units, "mcus": device.mcus, "frequency": device.frequency}
    if device.voltage is not None:
        figures["voltage"] = device.voltage
    for level in device.levels:
        figures[f"{level.name}.capacity"] = level.capacity * level.instances
        figures[f"{level.name}.bandwidth"] = level.bandwidth
    for name, port in (("intra", device.intra), ("inter", device.inter)):
        if port is not None:
            figures[f"{name}.bandwidth"] = port.bandwidth
    for resource in dict.fromkeys(use.resource for use in device.usage):
        figures[f"used.{resource}"] = sum((use.used for use in device.usage if use.resource == resource), np.zeros(1))
    figures |= {f"cost.{part}": amount for part, amount in device.cost.items()}
    return figures
