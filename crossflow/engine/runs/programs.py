"""A step of a program: its tasks as a longest path, or by events where kernels share a device, and what bounds it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, divide, summed, tally, wide
from crossflow.base.stages import stage
from crossflow.cost.price import Prices, stacked
from crossflow.engine.events import run_shared
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.schedule import Schedule, durations, schedule
from crossflow.engine.tasks import PriceRows, copies, tasks_of
from crossflow.program.kernels import Timed
from crossflow.program.program import HOST, Program, fullest

Makespan = Callable[[Array], Array]  # of the time of every row of tasks
Step = Callable[[Any], Array]  # of the messages that take no time


@stage("run")
def program_outcome(
    program: Program, prices: Prices, n: int, *, devices: int, slots: int | None = None, total: Array | None = None
) -> Outcome:
    """What comes out of a step of a program.

    Parameters
    ----------
    n : design points.
    devices : on which the program runs, in all.
    slots : kernels of a stream that a device runs at once, which share it; None where every kernel waits for the one before.
    total : time of the step, where it is known. [s]
    """
    launched = launches(prices)
    plan = schedule(program, launched=launched)
    ends: Makespan = plan.makespan if slots is None else functools.partial(_simulated, program, slots, prices, launched)

    def makespan(silent: Any, *, hosted: bool = True) -> Array:
        """Time of the step where some messages take no time, and calls of the host do or take none."""
        times = prices.without(silent)
        if not hosted and len(program.host_kernels):
            times = times.copy()
            times[program.host_kernels] = 0.0
        return np.asarray(wide(ends(table(prices, times, launched=launched, hosted=hosted)), n))

    none, every = (np.full(len(program.messages), chosen) for chosen in (False, True))
    total = makespan(none) if total is None else wide(total, n)
    # Kernels that share a device may end later without messages; no communication is exposed then.
    silent = np.minimum(makespan(every), total) if len(every) else total
    hosts = prices.call.any() or len(program.host_kernels) > 0
    waited = _difference(silent, makespan(every, hosted=False)) if hosts else np.zeros(n)
    kernels, calls = prices.kernels, summed(plan.calls, prices.call)
    stage = wide((tally(plan.busy, kernels.time) + calls).argmax(axis=0), n)
    overlapping = slots is not None or program.overlaps
    kinds, bound = _decompose(plan, prices, stage, total, silent, waited, host=program.host_kernels, overlapping=overlapping)
    communication, exposed = _by_collective(program, plan, prices, makespan, total, silent, stage)
    replicas = devices / program.classes
    often, sent = plan.busy.sum(axis=0)[None], plan.sent.sum(axis=0)[None] / program.classes
    flops, energy, traffic = (wide(replicas * summed(often, one)[0], n) for one in (kernels.flops, kernels.energy, kernels.traffic[-1]))
    return Outcome(
        total=total,
        breakdown=kinds,
        communication=communication,
        exposed=exposed,
        memory=_held(program, n),
        flops=flops,
        model_flops=flops,
        energy=energy,
        traffic=traffic,
        sent=(wide(summed(sent, prices.messages.intra_bytes)[0], n), wide(summed(sent, prices.messages.inter_bytes)[0], n)),
        bound=bound,
        least=wide(tally(plan.busy, prices.lower_bound).max(axis=0), n),
        measured=_measured(plan, prices),
        problems=_too_fast(program, prices, n),
    )


@stage("memory")
def _held(program: Program, n: int) -> dict[str, Array]:
    """Bytes of the fullest device by kind, each of shape (n,). [B]"""
    return {kind: wide(np.asarray(amount, dtype=float), n) for kind, amount in fullest(program.memory).items()}


def _too_fast(program: Program, prices: Prices, n: int) -> tuple[tuple[Mask, str], ...]:
    """Points at which a kernel's stated time is below what its stated operations and bytes take."""
    stated = {i: kernel.name for i, kernel in enumerate(program.kernels) if isinstance(kernel, Timed)}
    if not stated:
        return ()
    short = (prices.kernels.time < prices.lower_bound * (1.0 - 1e-6))[list(stated)]
    names = dict.fromkeys(name for name, one in zip(stated.values(), short, strict=True) if one.any())
    told = f"the stated times of these kernels are shorter than the device allows: {', '.join(names)}"
    return ((wide(short.any(axis=0), n), told),) if names else ()


def _measured(plan: Schedule, prices: Prices) -> Array:
    """Share of the time of kernels and messages that was measured, shape (n,) or (1,). [1]"""
    often = plan.of_class.sum(axis=0)[None, : len(prices.measured)]
    return divide(summed(often, prices.measured)[0], summed(often, prices.times[: len(prices.measured)])[0])


def launches(prices: Prices) -> bool:
    """Whether launching takes the host any time, so that kernels may wait for it."""
    return bool(prices.call[0].any())


def table(prices: Prices, times: Array, *, launched: bool, hosted: bool = True) -> Array:
    """Time of every row of a program's tasks (`crossflow.engine.tasks.PriceRows`), shape (rows, n). [s]

    Parameters
    ----------
    times : of every row of prices, shape (rows, n). [s]
    launched : whether a host launches kernels.
    hosted : whether its calls take any time.
    """
    if not hosted:
        times = times.copy()
        times[-len(prices.call) :] = 0.0
    if not launched:
        return times
    kernels = prices.kernels
    several = np.maximum(kernels.launches, 1.0)
    issued = np.stack(np.broadcast_arrays(np.minimum(kernels.launches, 1.0), several - 1.0)) * times[-len(prices.call)]
    return stacked(times, *issued, *_split(kernels.time, several))


def _split(amount: Array, several: Array) -> tuple[Array, Array]:
    """All but the last launch of what kernels take, and the last, shape (kernels, n)."""
    tail = amount / several
    with np.errstate(invalid="ignore"):  # of a kernel that no device ends
        return np.where(several > 1, tail * (several - 1.0), 0.0), tail


def _simulated(program: Program, slots: int, prices: Prices, launched: bool, times: Array) -> Array:
    """Makespan with several kernels at once on a device, which share it, point by point on the event engine. [s]

    With one slot a stream of kernels, each stream keeps its order; with more, a free slot takes the first kernel that is ready. The
    host launches in order.
    """
    program.places.check(f"{program.name}: kernels that share a device are timed copy by copy")
    runs, n = copies(program), times.shape[1]
    tasks, _ = tasks_of(program, runs, launched=launched)
    rows = PriceRows(kernels=len(program.kernels), messages=len(program.messages))
    kernels = prices.kernels
    launch = stacked(kernels.launch, np.zeros((rows.messages + len(prices.call), 1)))
    if launched:
        launch = stacked(launch, np.zeros((2 * rows.kernels, 1)), *_split(kernels.launch, np.maximum(kernels.launches, 1.0)))
    computes = [rows.computes(task.rows) for task in tasks]
    streams = [
        [(rank, "kernels" if runs_kernels else stream) for rank, stream in task.streams]
        for task, runs_kernels in zip(tasks, computes, strict=True)
    ]
    limits: dict[Hashable, int] = {place: 1 for places in streams for place in places}
    limits |= {places[0]: slots * program.kernel_streams for places, mine in zip(streams, computes, strict=True) if mine}
    in_order = [slots == 1 or (launched and task.streams[0][1] == HOST) for task in tasks]
    after = [task.edges if ordered else task.after for task, ordered in zip(tasks, in_order, strict=True)]
    also = {i: places[1:] for i, places in enumerate(streams) if len(places) > 1}
    every, fixed, result = durations(tasks, times), durations(tasks, wide(launch, n)), np.empty(n)
    for i in range(n):
        if not np.isfinite(every[:, i]).all():
            result[i] = np.inf
            continue
        alone, own = every[:, i], fixed[:, i]
        result[i] = run_shared(own.tolist(), (alone - own).tolist(), after, [places[0] for places in streams], limits, also).max()
    return result


def _decompose(
    plan: Schedule, prices: Prices, stage: Index, total: Array, silent: Array, waited: Array, *, host: Index, overlapping: bool
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Time of the busiest device by kind, and by what bounds it.

    Exposed communication is what the step would gain if messages took no time; `waited` what it would then gain if calls of the host
    took none; the bubble is what is then still idle. Where several kernels share a device, their times overlap and are counted in
    proportion. Measured times of the host are kernels of its own, `host`, which occupy no device.
    """
    n, kernels = total.size, prices.kernels
    points, often = np.arange(n), plan.busy.copy()
    often[:, host] = 0
    bounds = zip(prices.resources, kernels.bound_times, strict=True)
    parts = {name: wide(tally(often, times), n)[stage, points] for name, times in bounds}
    parts["launch"] = wide(tally(often, kernels.launch), n)[stage, points]
    busy = sum(parts.values(), np.zeros(n))
    working = _difference(silent, waited)
    if overlapping:
        squeeze = np.where(np.isfinite(working), np.minimum(1.0, working / np.maximum(busy, 1e-300)), 1.0)
        parts = {name: part * squeeze for name, part in parts.items()}
        busy = busy * squeeze
    bubble = _difference(working, busy)
    bubble[bubble < 1e-12 * silent] = 0.0
    exposed = _difference(total, silent)
    kinds = {
        "compute": parts["compute"],
        "memory_bound_compute": sum((parts[name] for name in prices.resources if name != "compute"), np.zeros(n)),
        "exposed_communication": exposed,
        "bubble": bubble,
        "other": parts["launch"] + waited,
    }
    return kinds, {**parts, "host": waited, "network": exposed, "bubble": bubble}


def _difference(longer: Array, shorter: Array) -> Array:
    """What is gained, infinite where only the shorter is finite, never negative for rounding."""
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isinf(longer) & np.isinf(shorter), 0.0, longer - shorter)
    return np.asarray(np.maximum(gain, 0.0))


def _by_collective(
    program: Program, plan: Schedule, prices: Prices, makespan: Step, total: Array, silent: Array, stage: Index
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
        gain[name] = _difference(total, makespan(mine))
    sum_gain, sum_all = sum(gain.values(), np.zeros(n)), sum(in_all.values(), np.zeros(n))
    with np.errstate(invalid="ignore"):
        share = {
            name: np.where(sum_gain > 0, gain[name] / np.maximum(sum_gain, 1e-300), in_all[name] / np.maximum(sum_all, 1e-300))
            for name in names
        }
    return in_all, {name: np.where(share[name] > 0, exposed, 0.0) * np.where(share[name] > 0, share[name], 1.0) for name in names}
