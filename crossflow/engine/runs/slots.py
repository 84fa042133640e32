"""Slots of a transformer's pipeline, and what every stage does after its last microbatch.

Every overlap is the longest path of in-order streams: unit by unit where weights travel beside a pass (`crossflow.engine.runs.sharded`),
in closed form where pieces are alike (`flow`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index, by_point, share_of, summed
from crossflow.cost.handovers import Handed, handed_of
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Passes, Steps
from crossflow.engine.runs.sharded import UnitTimes, sharded_passes, unit_groups
from crossflow.parallel.blocks import unit_places, unit_starts, units
from crossflow.parallel.shapes import Shape, row_counts
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.tables import OF
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
    on_stage: Array  # the same three on every stage, shape (3, stages, units). [1]
    device: Array  # time of kernels by kind, as in `Passes`, forward and backward, shape (kinds, 2, rows, n)
    net: Array  # time that collectives of the passes themselves block, by collective, forward and backward, shape (collectives, 2, rows, n)
    # the same of every unit, in a pass forward, in one backward, and in that what there is more where its weights are frozen, shape (3,
    # units, n)
    blocks: Array
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


def slots_of(job: Job, layout: Layout, machine: Machine, steps: Steps, shape: Shape) -> SlotTimes:
    """Slots of points whose pipelines have one shape; `steps` are theirs (`Steps.of`), as in the functions below."""
    schedule, stack, training = shape.schedule, machine.stack, job.training
    passes, state = steps.passes, steps.state
    forward_of, input_of, weight_of = row_counts(job, shape, balanced=stack.stages == "balanced")
    split = schedule not in WHOLE and shape.order.split
    device_f = summed(forward_of, passes.device[:, 0])
    device_i, device_w = summed(input_of, passes.device[:, 1]), summed(weight_of, passes.weight)
    hidden = passes.hides
    beside = np.zeros(1) if split else passes.weight.sum(axis=0)
    spill = np.maximum(hidden.sum(axis=0) - beside, 0.0)
    share = share_of(spill, hidden.sum(axis=0))
    # What would hide beside a frozen weight's gradient has nothing to hide beside.
    block_f, block_b, block_frozen = passes.blocking[:, 0], passes.blocking[:, 1] + share * hidden, (1.0 - share) * hidden
    net_f = summed(forward_of, block_f)
    net_b = summed(input_of, block_b) + summed(np.maximum(input_of - weight_of, 0.0), block_frozen)
    gpu_f, gpu_i, gpu_w = device_f.sum(axis=0) + net_f.sum(axis=0), device_i.sum(axis=0) + net_b.sum(axis=0), device_w.sum(axis=0)
    host_f, host_i = (summed(many, passes.host[way]) for way, many in enumerate((forward_of, input_of)))
    host_w = summed(weight_of, passes.host_weight)
    if not split:
        gpu_i, host_i = gpu_i + gpu_w, host_i + host_w
    plain_f = np.maximum(gpu_f, host_f) if stack.token_counts == "device" else _in_step(job, forward_of, passes, block_f)
    plain_b = np.maximum(gpu_i, host_i) if training else np.zeros_like(gpu_i)
    plain_w = np.maximum(gpu_w, host_w)
    waits = np.array([plain_f - gpu_f, plain_b - (gpu_i if training else 0.0) + (plain_w - gpu_w if split else 0.0)])
    forward, backward = plain_f, plain_b
    if state.gather.any() or state.scatter.any() or state.copies is not None:
        often = np.array(row_counts(job, shape, balanced=stack.stages == "balanced", apart=True))
        blocks = block_f, block_b, block_frozen
        forward, backward = _beside_weights(job, machine, steps, often, blocks, (plain_f, plain_b), split=split)
    if state.copies is not None:  # each direction of the bus is a stream: activations and gradients down, weights and activations up
        copied = state.copies
        forward = np.maximum(forward, np.maximum(summed(forward_of, copied.activations), summed(forward_of, copied.fetched)))
        upwards = summed(input_of, copied.activations + copied.fetched)
        backward = np.maximum(backward, np.maximum(upwards, summed(weight_of, copied.stored)) * float(training))
    handed, none = handed_of(layout, machine, steps.tables.between, steps.between, shape, training=training), np.zeros((2, *gpu_f.shape))
    held, late = (none, handed.inwards) if stack.overlap.pipeline else (handed.onwards, none)
    busy_f = forward + float(stack.host.microbatch[0]) / shape.chunks + held[0]
    grown, renewing, update = np.zeros_like(backward), np.zeros_like(backward), np.zeros(1)
    if schedule == "pipedream":  # weights are updated after each pass, gradients reduced before that, or beside the next one
        volume, update = summed(weight_of, state.reduce.sum(axis=0)), summed(weight_of, state.update)
        gathers = summed(weight_of, state.regather)
        renewing = np.maximum(gathers - forward, 0.0) if stack.overlap.optimizer else gathers  # the next pass forward hides them
        grown = np.maximum(volume - backward, 0.0) if stack.overlap.data else volume
    busy = [busy_f]
    if training:
        busy += [backward + grown + update + renewing + held[1], *([plain_w] if split else [])]
    return SlotTimes(
        forward_of=forward_of, input_of=input_of, weight_of=weight_of,
        on_stage=counts_by_stage(np.array([forward_of, input_of, weight_of]), shape.stages),
        device=np.stack([device_f, device_i + device_w], axis=1), net=np.stack([net_f, net_b], axis=1), waits=waits,
        blocks=np.array([block.sum(axis=0) for block in (block_f, block_b, block_frozen)]),
        gpu=np.concatenate([gpu_f, gpu_i, *([gpu_w] if split else [])]),
        host=np.concatenate([host_f, host_i, *([host_w] if split else [])]),
        behind=np.array([forward - plain_f, backward - plain_b]), grown=grown, renewing=renewing, busy=np.concatenate(busy),
        final=plain_w if split else backward,
        handed=handed, held=held, late=late,
    )  # fmt: skip


def _in_step(job: Job, often: Array, passes: Passes, block: Array) -> Array:
    """Time of passes forward in which the host waits in every layer with experts for the number of their tokens, shape (rows, n). [s]

    From there host and device begin together: the host launches the experts' kernels, then those of the rest of a layer, and the
    device never has kernels in store from before.

    Parameters
    ----------
    often : how often every unit occurs in a row, shape (rows, units) or (rows, units, n). [1]
    block : collectives that block, shape (collectives, units, n). [s]
    """
    device, host = passes.device[:, 0].sum(axis=0) + block.sum(axis=0), passes.host[0]
    routed = np.array([[part.routing is not None and job.training] for _, part in units(job.model)])
    starts = unit_starts(job.model)
    with_experts = np.zeros_like(routed)
    np.logical_or.at(with_experts, starts, routed)
    inside, sums = with_experts[starts], np.zeros((4, *np.broadcast_shapes(device.shape, host.shape)))
    for i, (values, which) in enumerate(((device, routed), (host, routed), (device, ~routed), (host, ~routed))):
        np.add.at(sums[i], starts, np.where(which & inside, values, 0.0))
    first_device, first_host, device_rest, host_rest = sums
    layers = np.maximum(np.maximum(first_device, first_host) + device_rest, first_host + host_rest)
    others = [summed(often, np.where(inside, 0.0, values)) for values in (device, host)]
    return np.asarray(summed(often, np.where(with_experts, layers, 0.0)) + np.maximum(*others))


def _beside_weights(
    job: Job, machine: Machine, steps: Steps, often: Array, blocks: Sequence[Array], plain: Sequence[Array], *, split: bool
) -> tuple[Array, Array]:
    """Time of passes forward and backward beside which weights, or their copies on the host, travel, shape (rows, n). [s]

    Parameters
    ----------
    often : how often parts of groups of layers occur in rows: forward, and with a gradient of their inputs and weights, shape
        (3, rows, parts). [1]
    blocks : collectives that block forward, backward, and where weights are frozen, shape (collectives, units, n). [s]
    plain : time of each row without them, forward and backward, shape (rows, n). [s]
    split : whether weight gradients are slots of their own.
    """
    passes, state, ahead = steps.passes, steps.state, machine.stack.overlap.gather
    gather, reduce = state.gather, state.scatter.sum(axis=0)
    arrive, leave, copied = gather, reduce, state.copies
    if copied is not None:  # a shard comes from the host before it is gathered, and its gradients go there
        arrive, leave = fetched(gather, copied.fetched, ahead=ahead), fetched(reduce, copied.stored, ahead=ahead)
    device, host, nothing = passes.device.sum(axis=0), passes.host, np.zeros_like(gather)
    before, block = [one[OF["all_gather"]] for one in blocks], [one.sum(axis=0) for one in blocks]
    forward = UnitTimes(before=before[0], compute=device[0] + block[0] - before[0], arrive=arrive, leave=nothing, host=host[0])
    backward = UnitTimes(before=before[1], compute=device[1] + block[1] - before[1], arrive=arrive, leave=leave, host=host[1])
    weight, launched = (nothing, nothing) if split else (passes.weight.sum(axis=0), passes.host_weight)
    first = gather + (nothing if copied is None else copied.fetched) - arrive
    places = unit_places(job.model)  # layers run in the order of the model
    units = forward.at(places), backward.at(places), weight[places], block[2][places], launched[places]
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

    reductions: Array  # of gradients that are not reduced in the passes, by collective, shape (collectives, stages, n)
    lowered: Array  # copies of gradients to the host
    exposed: Array  # of both, what comes after the last pass: they may run in buckets beside it, if no weights are sharded
    # update, on_host, renewed, regather: the optimizer on the device; on the host, and what copies of updated weights take beyond; and
    # gathers of updated weights that the next step waits for
    update: Array
    on_host: Array
    renewed: Array
    regather: Array


def closing_of(machine: Machine, steps: Steps, slots: SlotTimes, shape: Shape) -> Closing:
    """End of a step of points whose pipelines have one shape."""
    stack, state, stages = machine.stack, steps.state, shape.stages
    forward, inputs, trained = slots.on_stage
    copied = state.copies
    none = np.zeros((stages, len(shape.at)))
    reductions = summed(trained, state.reduce)
    layers = np.maximum(by_point(forward)[:, 1:-1].sum(axis=1), 1.0)
    lowered = none if copied is None else summed(trained, copied.gradients)
    final, volume = by_stage(slots.final, stages), reductions.sum(axis=0)
    beside = flow((final, volume, lowered), layers) - final if stack.overlap.data else volume + lowered
    # Behind gathers and reductions of sharded weights they have to wait on the same stream.
    taken = summed(inputs, state.gather) + summed(trained, state.scatter.sum(axis=0)) > 0
    # On the host, updated weights go to the device while the next ones are updated.
    on_host = none if copied is None else summed(trained, copied.update)
    return Closing(
        reductions=reductions,
        lowered=lowered,
        exposed=np.where(taken, volume + lowered, beside),
        update=summed(trained, state.update),
        on_host=on_host,
        renewed=none if copied is None else flow((on_host, summed(trained, copied.renewed)), layers) - on_host,
        regather=_renewing(machine, steps, slots, shape),
    )


def _renewing(machine: Machine, steps: Steps, slots: SlotTimes, shape: Shape) -> Array:
    """Gathers of updated weights that the next step, or with PipeDream the next pass, waits for, shape (stages, n). [s]"""
    if shape.schedule == "pipedream":
        return by_stage(slots.renewing, shape.stages)
    if machine.stack.overlap.optimizer:
        return np.zeros((shape.stages, len(shape.at)))
    return summed(slots.on_stage[2], steps.state.regather)


def fetched(one: Array, other: Array, *, ahead: bool) -> Array:
    """Time of a layer on two streams that work on different layers where one is fetched `ahead`, one after the other elsewhere. [s]"""
    return np.asarray(np.maximum(one, other) if ahead else one + other)


# -------------------------------------------------------------------------------------------- by unit


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How often a step of one device passes every unit, shape (units, n): forward, backward, with gradients of its weights, backward
    without these, and how often it updates it. [1]
    """

    forward: Array
    backward: Array
    weight: Array
    frozen: Array
    update: Array

    @classmethod
    def of(cls, slots: SlotTimes, layout: Layout, shape: Shape, rounds: Array, stage: Index) -> Counts:
        """Of one stage at every point, which runs `rounds` slots of a kind in each of its rows."""
        extra = np.maximum(slots.input_of - slots.weight_of, 0.0)
        table = np.concatenate([slots.on_stage, counts_by_stage(extra[None], shape.stages)])
        if table.ndim > 3:
            forward, backward, weight, frozen = np.take_along_axis(table, stage[None, None, None], axis=1)[:, 0]
        else:
            forward, backward, weight, frozen = table[:, stage].swapaxes(1, 2)
        return cls(
            forward=rounds * forward, backward=rounds * backward, weight=rounds * weight, frozen=rounds * frozen,
            update=weight * layout.updates[shape.at],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Exposures:
    """Communication of weights that lengthens a step, shape (n,): that of sharded ones and copies beside the passes, of gradients after
    them, of copies of updated weights, and of gathers of them. [s]
    """

    beside: Array
    after: Array
    renewed: Array
    regather: Array


def unit_times(steps: Steps, slots: SlotTimes, counts: Counts, exposures: Exposures) -> Array:
    """`FIGURES` of every unit, shape (figures, units, n); what is exposed of a kind is shared out by the time of that kind. [s]

    Sums over units are the step's times of kernels, of collectives and of what is exposed of them, but for what stages hand over.
    """
    passes, state = steps.passes, steps.state
    sent = passes.sent.sum(axis=0)
    gather, scatter = state.gather, state.scatter.sum(axis=0)
    reduced, regathered, renewed = state.reduce.sum(axis=0), state.regather, np.zeros((1, 1))
    if state.copies is not None:
        copies = state.copies
        gather, scatter = gather + copies.activations + copies.fetched, scatter + copies.stored
        reduced, renewed = reduced + copies.gradients, copies.renewed
    exposed = counts.forward * slots.blocks[0] + counts.backward * slots.blocks[1] + counts.frozen * slots.blocks[2]
    communication = counts.forward * sent[0] + counts.backward * sent[1]
    for amount, shown in (
        ((counts.forward + counts.backward) * gather + counts.weight * scatter, exposures.beside),
        (counts.update * reduced, exposures.after),
        (counts.update * regathered, exposures.regather),
        (counts.update * renewed, exposures.renewed),
    ):
        if amount.any():
            communication = communication + amount
            exposed = exposed + shown * share_of(amount, amount.sum(axis=0))
    device = passes.device.sum(axis=0)
    kernels = counts.forward * device[0] + counts.backward * device[1] + counts.weight * passes.weight.sum(axis=0)
    return np.array([kernels + counts.update * state.update, communication, exposed])


def flow(times: Sequence[Array], pieces: Array) -> Array:
    """Time of several stages through which equal pieces pass one after the other, each stage one piece at a time. [s]

    `times` are those of all pieces in each stage: one piece through all stages, then the slowest stage for the others.

    >>> float(flow([np.array(4.0), np.array(8.0)], np.array(4.0)))
    9.0
    """
    return np.asarray(sum(times) / pieces + functools.reduce(np.maximum, times) * (1.0 - 1.0 / pieces))
