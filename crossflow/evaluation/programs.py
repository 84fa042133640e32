"""Evaluation of programs, those of graphs of kernels and those that are given: placement, prices, schedule, outcome."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, replace

import numpy as np

from crossflow.architecture import Architecture, SystemSpec
from crossflow.arrays import Array, Index, tally, wide
from crossflow.cost import Prices, price
from crossflow.cost.network import MessageCosts, message_costs
from crossflow.engine import Schedule, durations, run_shared, schedule, stream_edges
from crossflow.evaluation.common import score_of
from crossflow.evaluation.members import Members
from crossflow.mapping import Network, Placement, best_placements, place
from crossflow.program import Program
from crossflow.program.program import fullest
from crossflow.scenario import Scenario
from crossflow.score import Score
from crossflow.step.outcome import Outcome

Makespan = Callable[[Array], Array]  # of the time of every row of prices


def program_score(scenario: Scenario, system: SystemSpec, device: Architecture, n: int, members: Members | None, *, least: bool) -> Score:
    """Score of n points that share a program but for its sizes; `system`, `device` and `members` hold what varies between them."""
    program = scenario.program() if members is None else members.job
    (placement, _), *others = placements = placed_apart(scenario, program, device)
    prices = price(program, placement, system.network, device, scenario.nodes[0], stack=scenario.stack, least=least)
    if others:
        costs = [(points, message_costs(program.messages, one, system.network, device, scenario.nodes[0])) for one, points in placements]
        prices = replace(prices, messages=_joined(costs, n))
    outcome = _outcome(scenario, program, prices, n)
    devices, parameters = np.full(n, float(scenario.devices)), program.parameters
    return score_of(scenario, system, device, outcome, devices, samples=program.samples, tokens=program.tokens, parameters=parameters)


def placed(scenario: Scenario, program: Program, device: Architecture) -> Placement:
    """Placement of the mesh: in the scenario's order, or in the best of all orders for the bytes that axes move."""
    return placed_apart(scenario, program, device)[0][0]


def placed_apart(scenario: Scenario, program: Program, device: Architecture) -> list[tuple[Placement, Index]]:
    """Placements of the mesh of a program whose sizes may differ between points, each with the points that have it."""
    network, every = scenario.network(), np.zeros(1, dtype=np.intp)
    if scenario.order is not None:
        return [(place(program.axes, network, scenario.order), every)]
    if len([size for _, size in program.axes if size > 1]) < 2:
        return [(place(program.axes, network), every)]
    volumes = {axis: np.atleast_1d(program.volumes.get(axis, 0.0)) for axis, _ in program.axes}
    tried, best = best_placements(program.axes, network, volumes, link_ratio=_link_ratio(network, device))
    return [(tried[which], np.flatnonzero(best == which)) for which in np.unique(best)]


def _joined(costs: Sequence[tuple[Index, MessageCosts]], n: int) -> MessageCosts:
    """Costs of messages at all points, from those of some points each."""
    found = {field.name: np.empty((len(costs[0][1].time), n)) for field in fields(MessageCosts)}
    for points, one in costs:
        for name, whole in found.items():
            whole[:, points] = wide(getattr(one, name), n)[:, points]
    return MessageCosts(**found)


def _link_ratio(network: Network, device: Architecture) -> float:
    """Bandwidth of a link inside a package over one between packages, at the first design point."""
    if device.intra is None or device.inter is None or not device.intra.bandwidth[0] or not device.inter.bandwidth[0]:
        return 1.0
    inside = float(device.intra.bandwidth[0]) / max(network.package.degree, 1)
    return inside / (float(device.inter.bandwidth[0]) / max(network.cluster.degree, 1))


def _outcome(scenario: Scenario, program: Program, prices: Prices, n: int) -> Outcome:
    """What comes out of a step of a program."""
    plan, slots = schedule(program), scenario.kernels_per_device
    simulated = functools.partial(_simulated, program, slots, prices.kernels.launch)
    makespan: Makespan = simulated if scenario.shares_devices else plan.makespan
    every = np.ones(len(program.messages), dtype=bool)
    total = wide(makespan(prices.times), n)
    # Kernels that share a device may end later without messages; no communication is exposed then.
    silent = np.minimum(wide(makespan(prices.without(every)), n), total) if len(every) else total
    kernels, calls = prices.kernels, plan.of_class[:, -1:] * prices.call
    stage = wide((tally(plan.busy, kernels.time) + calls).argmax(axis=0), n)
    kinds, bound = _decompose(plan, prices, stage, total, silent, n, overlapping=scenario.shares_devices)
    communication, exposed = _by_collective(program, plan, prices, makespan, total, silent, stage)
    replicas = scenario.devices / program.classes
    often, sent = plan.busy.sum(axis=0), plan.sent.sum(axis=0) / program.classes
    done = {name: wide(replicas * (often @ getattr(kernels, name)), n) for name in ("flops", "energy")}
    return Outcome(
        total=total,
        breakdown=kinds,
        communication=communication,
        exposed=exposed,
        memory={kind: wide(np.asarray(amount, dtype=float), n) for kind, amount in fullest(program.memory).items()},
        flops=done["flops"],
        model_flops=done["flops"],
        energy=done["energy"],
        traffic=wide(replicas * (often @ kernels.traffic[-1]), n),
        sent=(wide(sent @ prices.messages.intra_bytes, n), wide(sent @ prices.messages.inter_bytes, n)),
        bound=bound,
        least=wide(tally(plan.busy, prices.lower_bound).max(axis=0), n),
    )


def _simulated(program: Program, slots: int, launches: Array, times: Array) -> Array:
    """Makespan with several kernels at once on a device, which share it, point by point on the event engine. [s]

    With one slot a stream of kernels, each stream keeps its order; with more, a free slot takes the first kernel that is ready.
    """
    ops, n = program.ops, times.shape[1]
    fixed = wide(launches, n)
    streams = [(op.rank, "kernels" if op.kernels else op.stream) for op in ops]
    limits: dict[Hashable, int] = {
        (op.rank, stream): slots * program.kernel_streams if op.kernels else 1 for op, (_, stream) in zip(ops, streams, strict=True)
    }
    after, result = stream_edges(ops) if slots == 1 else [op.after for op in ops], np.empty(n)
    every = durations(program, times)
    for i in range(n):
        launch = [float(sum(fixed[row, i] for row in op.kernels)) for op in ops]
        alone = every[:, i]
        if not np.isfinite(alone).all():
            result[i] = np.inf
            continue
        result[i] = run_shared(launch, (alone - launch).tolist(), after, streams, limits).max()
    return result


def _decompose(
    plan: Schedule, prices: Prices, stage: Index, total: Array, silent: Array, n: int, *, overlapping: bool
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Time of the busiest device by kind, and by what bounds it.

    Exposed communication is what the step would gain if messages took no time; the bubble is what is then still idle.
    Where several kernels share a device, their times overlap and are counted in proportion.
    """
    points, kernels = np.arange(n), prices.kernels
    bounds = zip(prices.resources, kernels.bound_times, strict=True)
    parts = {name: wide(tally(plan.busy, times), n)[stage, points] for name, times in bounds}
    parts["launch"] = wide(tally(plan.busy, kernels.launch), n)[stage, points]
    busy = sum(parts.values(), np.zeros(n))
    if overlapping:
        squeeze = np.where(np.isfinite(silent), np.minimum(1.0, silent / np.maximum(busy, 1e-300)), 1.0)
        parts = {name: part * squeeze for name, part in parts.items()}
        busy = busy * squeeze
    host = np.minimum((plan.of_class[:, -1:] * wide(prices.call, n))[stage, points], _difference(silent, busy))
    bubble = _difference(silent, busy + host)
    bubble[bubble < 1e-12 * silent] = 0.0
    exposed = _difference(total, silent)
    kinds = {
        "compute": parts["compute"],
        "memory_bound_compute": sum((parts[name] for name in prices.resources if name != "compute"), np.zeros(n)),
        "exposed_communication": exposed,
        "bubble": bubble,
        "other": parts["launch"] + host,
    }
    return kinds, {**parts, "host": host, "network": exposed, "bubble": bubble}


def _difference(longer: Array, shorter: Array) -> Array:
    """What is gained, infinite where only the shorter is finite, never negative for rounding."""
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isinf(longer) & np.isinf(shorter), 0.0, longer - shorter)
    return np.asarray(np.maximum(gain, 0.0))


def _by_collective(
    program: Program, plan: Schedule, prices: Prices, makespan: Makespan, total: Array, silent: Array, stage: Index
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Time of messages by collective on the busiest class of ranks, and the share of the exposed time that each causes.

    The share is by what the step would gain without that collective alone, scaled so that the shares add up.
    """
    n = total.size
    names = list(dict.fromkeys(message.collective for message in program.messages))
    exposed = _difference(total, silent)
    kind = np.array([names.index(message.collective) for message in program.messages], dtype=int)
    in_all: dict[str, Array] = {}
    gain: dict[str, Array] = {}
    for i, name in enumerate(names):
        mine = kind == i
        in_all[name] = wide(tally(plan.sent, np.where(mine[:, None], prices.messages.time, 0.0)), n)[stage, np.arange(n)]
        if len(names) == 1:
            return in_all, {name: exposed}
        gain[name] = _difference(total, wide(makespan(prices.without(mine)), n))
    sum_gain, sum_all = sum(gain.values(), np.zeros(n)), sum(in_all.values(), np.zeros(n))
    with np.errstate(invalid="ignore"):
        share = {
            name: np.where(sum_gain > 0, gain[name] / np.maximum(sum_gain, 1e-300), in_all[name] / np.maximum(sum_all, 1e-300))
            for name in names
        }
    return in_all, {name: np.where(share[name] > 0, exposed, 0.0) * np.where(share[name] > 0, share[name], 1.0) for name in names}
