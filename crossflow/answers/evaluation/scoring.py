"""The score of a step, whatever its workload: throughput, energy within the power limit, use of the peak, what fits, rents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from crossflow.answers.score import OVERFULL, OVERFULL_HOST, OVERFULL_SECOND, Score
from crossflow.answers.steps.batch import Fleet, PointBatch, Ran
from crossflow.answers.steps.members import Members
from crossflow.base.arrays import Array, Index, Mask, divide, wide
from crossflow.base.limits import LARGEST
from crossflow.base.stages import stage
from crossflow.engine.runs.outcome import Outcome
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.run_cost import normalised
from crossflow.hardware.architecture.system import reference_peak
from crossflow.parallel.tables import COLLECTIVES

INCONSISTENT = "internal error: the predicted time is below a lower bound of its own inputs; please report this scenario"
BEYOND = f"a step would take more than {LARGEST:g} s, or numbers leave what floats hold: a rate, a share or an efficiency is near zero"
NO_RATE = "the device's rate in the data type of the workload is 0"
NO_BANDWIDTH = "no network or memory bandwidth where the strategy needs it"
NOTHING = np.zeros(1)
Causes = list[tuple[Mask, str]]


def first_cause(causes: Causes) -> tuple[Mask, Index, tuple[str, ...]]:
    """Which points nothing stands against, for the others the index of the first cause, and the sentences."""
    against = np.array([mask for mask, _ in causes])
    feasible = np.asarray(~against.any(axis=0))
    return feasible, np.where(feasible, -1, against.argmax(axis=0)), tuple(sentence for _, sentence in causes)


def rents(fleets: Sequence[Fleet], dtype: str, n: int) -> tuple[Array, Array]:
    """Rent of all devices, and how many of the reference's they are worth by peak rate; NaN where it is not known. [USD/s], [1]"""
    prices = [None if fleet.system.operation is None else fleet.system.operation.price for fleet in fleets]
    rent = sum((fleet.devices * (np.nan if price is None else price) for fleet, price in zip(fleets, prices, strict=True)), NOTHING)
    worth = sum((normalised(fleet.devices, fleet.device.throughput[dtype], reference_peak(dtype)) for fleet in fleets), NOTHING)
    return wide(rent, n), wide(worth, n)


def fleets_of(batch: PointBatch, ran: Ran) -> tuple[Fleet, ...]:
    """All devices of a batch, those of the system itself first."""
    outcome, devices = ran.outcome, ran.devices - sum((one.devices for one in ran.beside), NOTHING)
    own = Fleet(system=batch.system, device=batch.device, devices=devices, energy=outcome.energy, sent=outcome.sent)
    return own, *ran.beside


def energy_shares(fleets: Sequence[Fleet], total: Array) -> list[Array]:
    """Share of each of several fleets in the energy that all of them draw in a step of some length. [1]"""
    elapsed = np.where(np.isfinite(total) & (total > 0), total, 1.0)
    drawn = [drawn_energy(one, elapsed) for one in fleets]
    return [divide(each, sum(drawn, NOTHING)) for each in drawn]


def drawn_energy(fleet: Fleet, elapsed: Array) -> Array:
    """Energy of devices with their links, and of the switches that their system names, in a step of some length. [J]"""
    device, devices, sent = fleet.device, fleet.devices, fleet.sent
    intra, inter = (NOTHING if port is None else port.energy for port in (device.intra, device.inter))
    links = devices * (sent[0] * intra + sent[1] * inter)
    # No more than the power limit allows: memory that is busy beside long products shares it with them, and so do the links of a device
    # whose limit was measured with them.
    drawn, limit = fleet.energy + devices * device.static_power * elapsed, devices * device.maximum_power * elapsed
    beside = devices * device.network_power * elapsed  # of named switches, which have a supply of their own
    return beside + (np.minimum(drawn, limit) + links if device.working_power is None else np.minimum(drawn + links, limit))


def _port_use(batch: PointBatch, ran: Ran, elapsed: Array) -> Array:
    """Share of a step in which the bytes that a device sends keep its port between nodes busy. [1]"""
    port = batch.device.inter
    return NOTHING if port is None else np.minimum(divide(ran.outcome.sent[1], port.bandwidth * elapsed), 1.0)


@stage("score")
def score_of(batch: PointBatch, ran: Ran) -> Score:
    """Score of a batch that ran: throughput, energy, use of the peak, what fits."""
    scenario, device, outcome, devices = batch.scenario, batch.device, ran.outcome, ran.devices
    n, dtype = outcome.total.size, scenario.workload.dtype
    fleets, kinds = fleets_of(batch, ran), (Fleet(system=batch.system, device=device), *(one for one in ran.beside if one.pool))
    beyond = np.isnan(outcome.total) | (np.isfinite(outcome.total) & (outcome.total > LARGEST))
    total = np.where(beyond, np.inf, outcome.total)
    timed = np.isfinite(total) & (total > 0)
    elapsed = np.where(timed, total, 1.0)
    energy = wide(np.where(timed, sum((drawn_energy(one, elapsed) for one in fleets), NOTHING), np.inf), n)
    peak = sum((one.device.throughput[dtype] * one.devices for one in fleets), NOTHING)
    used = divide(wide(outcome.flops, n), wide(peak * elapsed, n))
    held = {kind: wide(amount, n) for kind, amount in outcome.memory.items()}
    capacity = wide(outcome.capacity[0] if outcome.capacity else device.memory_capacity, n)
    wrong = timed & ((used > 1.0 + 1e-6) | (total < outcome.least * (1.0 - 1e-6)))
    unrunnable = [
        (wide(beyond, n), BEYOND),
        (wide(~np.isfinite(total) & (peak == 0), n), NO_RATE),
        *_unrunnable(outcome, held, capacity, ~np.isfinite(total)),
    ]
    unbuildable = [
        (wide(mask, n), f"{one.prefix(': ')}cannot be built: {sentence}") for one in kinds for mask, sentence in one.device.problems
    ]
    feasible, reason, reasons = first_cause([*unbuildable, *unrunnable, (wrong, INCONSISTENT)])
    (rate, token_rate), bound = _rates(batch.members, ran, elapsed, timed), _table(outcome.bound, n)
    rent, worth = rents(fleets, dtype, n)
    return Score(
        step_time=total,
        feasible=feasible,
        reason=reason,
        reasons=reasons,
        breakdown=dict(zip(outcome.breakdown, np.fmax(_table(outcome.breakdown, n), 0.0), strict=True)),
        communication=_every_collective(outcome.communication, n),
        exposed_communication=_every_collective(outcome.exposed, n),
        by_layer={name: wide(part, n) for name, part in outcome.by_layer.items()},
        bound=dict(zip(outcome.bound, np.where(timed, np.where(timed, bound, 0.0) / elapsed, np.isinf(bound)), strict=True)),
        memory=held,
        memory_capacity=capacity,
        measured_share=wide(outcome.measured if scenario.profile or outcome.measured.any() else np.nan, n),
        host_memory=wide(outcome.host_memory, n),
        host_capacity=wide(outcome.host_capacity, n),
        second=_second(outcome, device, devices, total),
        energy=energy,
        power=wide(np.where(timed, energy, 0.0) / elapsed, n),
        cost=wide(_cost(fleets), n),
        devices=devices,
        rent=rent,
        normalised_devices=worth,
        port_use=wide(_port_use(batch, ran, elapsed), n),
        parameters=wide(np.asarray(batch.members.parameters, dtype=float), n),
        flops=wide(outcome.flops, n),
        memory_traffic=wide(outcome.traffic, n),
        mfu=np.where(timed, divide(wide(outcome.model_flops, n), wide(peak * elapsed, n)), 0.0),
        hfu=np.where(timed, used, 0.0),
        samples_per_second=rate,
        tokens_per_second=token_rate,
        trust=np.zeros(n, dtype=int),
        serving=ran.serving,
        architecture={f"{one.prefix('.')}{name}": wide(value, n) for one in kinds for name, value in one.device.figures.items()},
    )


def _rates(members: Members, ran: Ran, elapsed: Array, timed: Mask) -> tuple[Array, Array]:
    """Samples, or answered requests, and tokens a second. [1/s]"""
    samples, tokens = ran.answered or (members.batch, members.tokens)
    rate = np.where(timed, samples / elapsed, 0.0)
    return rate, rate * tokens


def _cost(fleets: Sequence[Fleet]) -> Array:
    """Price of all devices; NaN where that of some is not known. [USD]"""
    each = (fleet.devices * sum(fleet.device.cost.values(), NOTHING) if fleet.device.cost else np.full(1, np.nan) for fleet in fleets)
    return sum(each, NOTHING)


def _second(outcome: Outcome, device: Architecture, devices: Array, total: Array) -> dict[str, Array]:
    """What devices keep on their second memory and write there, and how long it lasts, by column; none where there is no such memory.

    Cells wear evenly: a memory lasts until all of it has been written as often as a cell stands.
    """
    second, n = device.second, total.size
    if second is None:
        return {}
    read, written = (wide(amount, n) for amount in outcome.second_moved)
    rate = np.where(np.isfinite(total), divide(written, devices * np.where(np.isfinite(total), total, 1.0)), 0.0)  # of one device [B/s]
    lasts = np.where(rate > 0, divide(wide(second.capacity * second.endurance, n), rate), np.inf)
    return {
        "second_memory_bytes": wide(outcome.second_memory, n), "second_memory_capacity_bytes": wide(second.capacity, n),
        "second_memory_read_bytes": read, "second_memory_written_bytes": written, "second_memory_lifetime_s": lasts,
    }  # fmt: skip


def _unrunnable(outcome: Outcome, held: Mapping[str, Array], capacity: Array, endless: Mask) -> Causes:
    """What keeps a step from running on a device that can be built, each with its sentence."""
    full = sum(held.values(), np.zeros_like(capacity)) > capacity
    told = [(wide(mask, capacity.size), sentence) for mask, sentence in outcome.problems]
    return [
        *told,
        (full, OVERFULL),
        (wide(outcome.host_memory > outcome.host_capacity, capacity.size), OVERFULL_HOST),
        (wide(outcome.second_memory > outcome.second_capacity, capacity.size), OVERFULL_SECOND),
        (endless, NO_BANDWIDTH),
    ]


def _every_collective(found: Mapping[str, Array], n: int) -> dict[str, Array]:
    """Times of all collectives, also of those that a strategy has no use for: points of one study have the same columns. [s]"""
    none = np.zeros(n)
    return {name: wide(found.get(name, none), n) for name in dict.fromkeys([*COLLECTIVES, *found])}


def _table(found: Mapping[str, Array], n: int) -> Array:
    """Values of all names, shape (names, n)."""
    return np.array([wide(values, n) for values in found.values()]).reshape(len(found), n)
