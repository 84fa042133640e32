"""Slots of a transformer's pipeline, and what every stage does after its last microbatch.

Every overlap is the longest path of in-order streams: unit by unit where weights travel beside a pass (`crossflow.engine.runs.sharded`),
in closed form where pieces are alike (`flow`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Mask, by_point, summed
from crossflow.cost.handovers import Handed
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps
from crossflow.cost.shared_links import USES, LinkStream, longer
from crossflow.engine.runs.meeting import meetings_of
from crossflow.engine.runs.sharded import UnitTimes, sharded_passes, unit_groups
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.parallel.blocks import unit_places, unit_starts, units
from crossflow.parallel.shapes import Shape, row_counts
from crossflow.workload.job import Job

WHOLE = ("1f1b", "gpipe", "chimera", "pipedream")  # rules that leave weight gradients in the backward pass


@dataclass(frozen=True, kw_only=True)
class SlotTimes:
    """What one slot of every row of a pipeline takes, for points whose pipelines have one shape; arrays of shape (rows, n). [s]"""

    # forward_of, input_of, weight_of: how often every unit occurs in a row: forward, and with a gradient of its input and of its weights,
    # shape (rows, units). [1]
    forward_of: Array
    input_of: Array
    weight_of: Array
    on_stage: Array  # the same three on every stage, and those of the second whose weights are frozen, shape (4, stages, units). [1]
    # met, shared: what a slot takes longer where collectives of passes meet others than those of weights on the same links, and others than
    # what is handed over, shape (2, rows, n)
    met: Array
    shared: Array
    # gpu, host: what the device and what the host take alone for a slot of each kind, shape (kinds x rows, n); the longer counts
    gpu: Array
    host: Array
    waits: Array  # what the host takes longer than the device, forward and backward, shape (2, rows, n)
    behind: Array  # what gathers and reductions of sharded weights, and copies, take longer than that, shape (2, rows, n)
    # grown, renewing: what reductions of gradients after each pass lengthen it, and what gathers of updated weights then take beyond the
    # next pass forward (PipeDream), shape (rows, n)
    grown: Array
    renewing: Array
    # time that slots of every kind keep their stage, shape (kinds x rows, n); kinds are forward, of a training step backward and, if apart,
    # weight
    busy: Array
    final: Array  # time of the last slot with gradients of weights
    handed: Handed  # what passes hand over to other stages
    # held, late: time that a row's stage is held up by what it hands over, and time that what a row receives travels while no stage is held
    # up, forward and backward, shape (2, rows, n)
    held: Array
    late: Array


def slots_of(job: Job, machine: Machine, sums: UnitSums, shape: Shape, handed: Handed) -> SlotTimes:
    """Slots of points whose pipelines have one shape; `sums` are theirs, and `handed` what their passes hand over."""
    schedule, stack, training = shape.schedule, machine.stack, job.training
    forward_of, input_of, weight_of = row_counts(job, shape, balanced=stack.stages == "balanced")
    split, frozen_of = is_split(shape), np.maximum(input_of - weight_of, 0.0)
    device, blocks, host, copied = sums.device, sums.blocks, sums.host, sums.copies
    gpu_f, gpu_w = summed(forward_of, device[0] + blocks[0]), summed(weight_of, device[2])
    gpu_i = summed(input_of, device[1] + blocks[1]) + summed(frozen_of, blocks[2])
    host_f, host_i, host_w = (summed(many, each) for many, each in zip((forward_of, input_of, weight_of), host, strict=True))
    if not split:
        gpu_i, host_i = gpu_i + gpu_w, host_i + host_w
    plain_f = np.maximum(gpu_f, host_f) if stack.token_counts == "device" else _in_step(job, forward_of, sums)
    plain_b = np.maximum(gpu_i, host_i) if training else np.zeros_like(gpu_i)
    plain_w = np.maximum(gpu_w, host_w)
    waits = np.array([plain_f - gpu_f, plain_b - (gpu_i if training else 0.0) + (plain_w - gpu_w if split else 0.0)])
    forward, backward = plain_f, plain_b
    if sums.gather.any() or sums.scatter.any() or copied is not None:
        often = np.array(row_counts(job, shape, balanced=stack.stages == "balanced", apart=True))
        forward, backward = _beside_weights(job, machine, sums, often, (plain_f, plain_b), split=split)
    counts, travels = (forward_of, input_of, weight_of), stack.overlap.pipeline
    idle = np.array([plain_f - gpu_f, (plain_b - gpu_i) * float(training)])
    found = meetings_of(sums, counts, (plain_f, plain_b), idle, (forward, backward), handed if travels else None)
    forward, backward = forward + found.weights[0], backward + found.weights[1]
    if copied is not None:  # each direction of the bus is a stream: activations and gradients down, weights and activations up
        forward = np.maximum(forward, np.maximum(summed(forward_of, copied.activations), summed(forward_of, copied.fetched)))
        upwards = summed(input_of, copied.activations + copied.fetched)
        backward = np.maximum(backward, np.maximum(upwards, summed(weight_of, copied.stored)) * float(training))
    none = np.zeros((2, *gpu_f.shape))
    held, late = (found.handing, handed.inwards_after(found.handing)) if travels else (handed.onwards, none)
    busy_f = forward + found.hidden[0] + float(stack.host.microbatch[0]) / shape.chunks + held[0]
    grown, renewing, update = np.zeros_like(backward), np.zeros_like(backward), np.zeros(1)
    if schedule == "pipedream":  # weights are updated after each pass, gradients reduced before that, or beside the next one
        update = summed(weight_of, sums.update)
        grown, renewing = _at_once(machine, sums, counts, (forward, backward), idle)
    busy = [busy_f]
    if training:
        busy += [backward + found.hidden[1] + grown + update + renewing + held[1], *([plain_w] if split else [])]
    return SlotTimes(
        forward_of=forward_of, input_of=input_of, weight_of=weight_of,
        on_stage=counts_by_stage(np.array([*counts, frozen_of]), shape.stages), waits=waits,
        gpu=np.concatenate([gpu_f, gpu_i, *([gpu_w] if split else [])]),
        host=np.concatenate([host_f, host_i, *([host_w] if split else [])]),
        behind=np.array([forward - plain_f, backward - plain_b]), grown=grown, renewing=renewing, busy=np.concatenate(busy),
        final=plain_w if split else backward, met=found.handing + found.hidden, shared=found.weights + found.hidden,
        handed=handed, held=held, late=late,
    )  # fmt: skip


def _at_once(machine: Machine, sums: UnitSums, counts: Sequence[Array], passes: Sequence[Array], idle: Array) -> tuple[Array, Array]:
    """What reductions of gradients after each pass lengthen it, and what gathers of updated weights then take beyond the next pass forward,
    which hides them, shape (rows, n); arguments as of `meetings_of`. [s]
    """
    overlap, found = machine.stack.overlap, list[Array]()
    for way, beside, times, use in (
        (1, overlap.data, sums.reduce, sums.reduce_use), (0, overlap.optimizer, sums.regather, sums.regather_use),
    ):  # fmt: skip
        sent = LinkStream(time=summed(counts[2], times), use=summed(counts[2], use))
        passing = _passing(way, counts[way], sums, passes[way], idle[way])
        apart = np.maximum(sent.time, passing.time)
        found.append(apart - passing.time + longer(passing, sent, apart) if beside else sent.time)
    return found[0], found[1]


def is_split(shape: Shape) -> bool:
    """Whether gradients of weights are slots of their own."""
    return shape.schedule not in WHOLE and shape.order.split


def split_points(shapes: Sequence[Shape], n: int) -> Mask:
    """Points whose gradients of weights are slots of their own, shape (n,)."""
    found = np.zeros(n, dtype=bool)
    for shape in shapes:
        found[shape.at] = is_split(shape)
    return found


def _in_step(job: Job, often: Array, sums: UnitSums) -> Array:
    """Time of passes forward in which the host waits in every layer with experts for the number of their tokens, shape (rows, n). [s]

    From there host and device begin together: the host launches the experts' kernels, then those of the rest of a layer, and the
    device never has kernels in store from before.

    `often` is how often every unit occurs in a row, shape (rows, units) or (rows, units, n). [1]
    """
    device, host = sums.device[0] + sums.blocks[0], sums.host[0]
    routed = np.array([[part.routing is not None and job.training] for _, part in units(job.model)])
    starts = unit_starts(job.model)
    with_experts = np.zeros_like(routed)
    np.logical_or.at(with_experts, starts, routed)
    inside, found = with_experts[starts], np.zeros((4, *np.broadcast_shapes(device.shape, host.shape)))
    for i, (values, which) in enumerate(((device, routed), (host, routed), (device, ~routed), (host, ~routed))):
        np.add.at(found[i], starts, np.where(which & inside, values, 0.0))
    first_device, first_host, device_rest, host_rest = found
    layers = np.maximum(np.maximum(first_device, first_host) + device_rest, first_host + host_rest)
    others = [summed(often, np.where(inside, 0.0, values)) for values in (device, host)]
    return np.asarray(summed(often, np.where(with_experts, layers, 0.0)) + np.maximum(*others))


def _beside_weights(
    job: Job, machine: Machine, sums: UnitSums, often: Array, plain: Sequence[Array], *, split: bool
) -> tuple[Array, Array]:
    """Time of passes forward and backward beside which weights, or their copies on the host, travel, shape (rows, n). [s]

    Parameters
    ----------
    often : how often parts of groups of layers occur in rows: forward, and with a gradient of their inputs and weights, shape
        (3, rows, parts). [1]
    plain : time of each row without them, forward and backward, shape (rows, n). [s]
    split : whether weight gradients are slots of their own.
    """
    gather, reduce, ahead = sums.gather, sums.scatter, machine.stack.overlap.gather
    arrive, leave, copied = gather, reduce, sums.copies
    if copied is not None:  # a shard comes from the host before it is gathered, and its gradients go there
        arrive, leave = fetched(gather, copied.fetched, ahead=ahead), fetched(reduce, copied.stored, ahead=ahead)
    before, nothing = sums.gathers, np.zeros_like(gather)
    compute = sums.device[:2] + sums.blocks[:2] - before
    forward = UnitTimes(before=before[0], compute=compute[0], arrive=arrive, leave=nothing, host=sums.host[0])
    backward = UnitTimes(before=before[1], compute=compute[1], arrive=arrive, leave=leave, host=sums.host[1])
    weight, launched = (nothing, nothing) if split else (sums.device[2], sums.host[2])
    first = gather + (nothing if copied is None else copied.fetched) - arrive
    places = unit_places(job.model)  # layers run in the order of the model
    units = forward.at(places), backward.at(places), weight[places], sums.blocks[2][places], launched[places]
    whole = machine.stack.sharing.unit == "layer"
    passing = functools.partial(sharded_passes, unit_groups(job.model), often, units, plain, first[places], whole=whole)
    alone = ~gather.any(axis=0) & reduce.any(axis=0)  # gradients that are shared out where weights are not (ZeRO 2)
    if machine.stack.overlap.data == ahead or not alone.any():
        return passing(ahead=ahead)
    if alone.all():
        return passing(ahead=not ahead)
    found, others = passing(ahead=ahead), passing(ahead=not ahead)
    return np.where(alone, others[0], found[0]), np.where(alone, others[1], found[1])


def by_stage(values: Array, stages: int) -> Array:
    """Sums over the rows of every stage, shape (..., stages, n)."""
    return np.asarray(values.reshape(*values.shape[:-2], -1, stages, values.shape[-1]).sum(axis=-3))


def counts_by_stage(often: Array, stages: int) -> Array:
    """Sums over the rows of every stage of counts of shape (kinds, rows, units) or (kinds, rows, units, n)."""
    return np.asarray(often.reshape(len(often), -1, stages, *often.shape[2:]).sum(axis=1))


@dataclass(frozen=True, kw_only=True)
class Closing:
    """What every stage does once its last microbatch is through; arrays of shape (stages, n). [s]"""

    lowered: Array  # copies of gradients to the host
    # of these, and of the reductions of gradients that are not reduced in the passes, what comes after the last pass: they may run in
    # buckets beside it, if no weights are sharded
    exposed: Array
    # update, on_host, renewed, regather: the optimizer on the device; on the host, and what copies of updated weights take beyond; and
    # gathers of updated weights that the next step waits for
    update: Array
    on_host: Array
    renewed: Array
    regather: Array


def reductions_of(steps: Steps, slots: SlotTimes) -> Array:
    """Reductions of gradients of every stage after its last microbatch, by collective, shape (collectives, stages, n). [s]"""
    return summed(slots.on_stage[2], steps.state.reduce)


def closing_of(machine: Machine, sums: UnitSums, slots: SlotTimes, shape: Shape) -> Closing:
    """End of a step of points whose pipelines have one shape."""
    stack, copied, stages = machine.stack, sums.copies, shape.stages
    forward, inputs, trained, _ = slots.on_stage
    none = np.zeros((stages, len(shape.at)))
    layers = np.maximum(by_point(forward)[:, 1:-1].sum(axis=1), 1.0)
    lowered = none if copied is None else summed(trained, copied.gradients)
    final, volume = by_stage(slots.final, stages), summed(trained, sums.reduce)
    beside = volume + lowered
    if stack.overlap.data:
        passing = LinkStream(time=final, use=np.zeros((USES, 1, 1)))
        if not is_split(shape):
            passing = _passing(1, inputs, sums, final, by_stage(slots.waits[1], stages))
        met = longer(passing, LinkStream(time=volume, use=summed(trained, sums.reduce_use)), flow((final, volume), layers))
        beside = flow((final, volume, lowered), layers) - final + met
    # Behind gathers and reductions of sharded weights they have to wait on the same stream.
    taken = summed(inputs, sums.gather) + summed(trained, sums.scatter) > 0
    # On the host, updated weights go to the device while the next ones are updated.
    on_host = none if copied is None else summed(trained, copied.update)
    return Closing(
        lowered=lowered,
        exposed=np.where(taken, volume + lowered, beside),
        update=summed(trained, sums.update),
        on_host=on_host,
        renewed=none if copied is None else flow((on_host, summed(trained, copied.renewed)), layers) - on_host,
        regather=_renewing(machine, sums, slots, shape),
    )


def _renewing(machine: Machine, sums: UnitSums, slots: SlotTimes, shape: Shape) -> Array:
    """Gathers of updated weights that the next step, or with PipeDream the next pass, waits for, shape (stages, n). [s]"""
    if shape.schedule == "pipedream":
        return by_stage(slots.renewing, shape.stages)
    gathers = summed(slots.on_stage[2], sums.regather)
    if not machine.stack.overlap.optimizer:
        return gathers
    first = by_stage(slots.busy[: len(slots.forward_of)], shape.stages)  # passes forward of the next step, which hide them
    passing = _passing(0, slots.on_stage[0], sums, first, by_stage(slots.waits[0], shape.stages))
    return longer(passing, LinkStream(time=gathers, use=summed(slots.on_stage[2], sums.regather_use)), np.maximum(first, gathers))


def _passing(way: int, often: Array, sums: UnitSums, time: Array, idle: Array) -> LinkStream:
    """Passes forward (0) or backward (1) of rows or stages that take a time and wait so long for their host [s], and pass every unit so
    `often`, shape (rows, units) or (rows, units, n). [1]
    """
    return LinkStream(time=time, use=summed(often, sums.use[:, way]), spare=summed(often, sums.spare[:, way]), idle=idle)


def fetched(one: Array, other: Array, *, ahead: bool) -> Array:
    """Time of a layer on two streams that work on different layers where one is fetched `ahead`, one after the other elsewhere. [s]"""
    return np.asarray(np.maximum(one, other) if ahead else one + other)


def flow(times: Sequence[Array], pieces: Array) -> Array:
    """Time of several stages through which equal pieces pass one after the other, each stage one piece at a time. [s]

    `times` are those of all pieces in each stage: one piece through all stages, then the slowest stage for the others.

    >>> float(flow([np.array(4.0), np.array(8.0)], np.array(4.0)))
    9.0
    """
    return np.asarray(sum(times) / pieces + functools.reduce(np.maximum, times) * (1.0 - 1.0 / pieces))
