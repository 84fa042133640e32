"""One step of a transformer: parts into layers, layers into chunks of a pipeline, passes into a step, for all points at once.

Every overlap is the longest path of in-order streams, written in closed form where layers are alike: of L layers that
compute c and communicate g each, on a stream of their own, the longest path changes streams once, so that it is the one
that changes first or last (`gathered`, `reduced`). The pipeline is walked slot by slot (`crossflow.timeline.pipeline`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from crossflow.arrays import Array, Index, divide
from crossflow.cost.parts import PartTimes, Wires, part_times
from crossflow.parallel.blocks import PHASES, Kernels, block_kernels, units
from crossflow.parallel.plan import Layout
from crossflow.parallel.schedules import NATURAL, pipeline_order
from crossflow.software import SoftwareStack
from crossflow.step.memory import Memory, activations, memory, weight_sizes
from crossflow.step.offload import Copies, flow, host_copies, kept_on_host
from crossflow.step.outcome import BREAKDOWN, Job, Machine, Outcome
from crossflow.step.stages import alike, row_counts
from crossflow.step.weights import Weights, weights_of
from crossflow.timeline.pipeline import pipeline_ends

FORWARD, END, INPUT, WEIGHT, AGAIN = range(len(PHASES))
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "host_copy")
OF = {name: i for i, name in enumerate(COLLECTIVES)}
KINDS = ("compute", "memory", "launch")  # of which a kernel's time consists


@dataclass(frozen=True, kw_only=True)
class Passes:
    """What one microbatch takes on one unit (part of a layer, embedding, head), forward and backward.

    Attributes
    ----------
    device : time of kernels by `KINDS`, shape (kinds, passes, units, n); the backward pass without the weights' gradients. [s]
    weight : the same of the weights' gradients, shape (kinds, units, n). [s]
    sent : time of collectives, shape (collectives, passes, units, n). [s]
    blocking : of it, what the device waits for when nothing hides it, shape as `sent`. [s]
    hides : time of collectives that run beside the weights' gradients, shape (collectives, units, n). [s]
    measured : of the time of collectives, what was measured, shape (passes, units, n). [s]
    moved : bytes that a device sends inside its node and out of it, shape (2, passes, units, n). [B]
    host : time that the host needs, shape (passes, units, n); of the weights' gradients, shape (units, n). [s]
    """

    device: Array
    weight: Array
    sent: Array
    blocking: Array
    hides: Array
    measured: Array
    moved: Array
    host: Array
    host_weight: Array


@dataclass(frozen=True, kw_only=True)
class State:
    """Weights of every unit on one device, and what keeping them in step takes; shape (units, n).

    Attributes
    ----------
    weights : what they are.
    reduce : time to reduce its gradients over the ranks that hold the same, shape (collectives, units, n). [s]
    gather : time to gather its weights, where they are sharded. [s]
    regather : time to gather updated weights after a sharded optimizer's step. [s]
    update : time of the optimizer on the parameters whose states the device holds. [s]
    copies : what is copied to the host and back, where anything is kept there.
    """

    weights: Weights
    reduce: Array
    gather: Array
    regather: Array
    update: Array
    copies: Copies | None


@dataclass(frozen=True, kw_only=True)
class Between:
    """What goes between the stages of a pipeline, each of shape (n,). [s]

    `transfer` takes activations from a stage to the next, each rank of a tensor group its part; `whole` puts the parts together
    where the receivers do not keep them divided; `tied` adds up the gradients of a table that first and last stage both hold.
    """

    transfer: Array
    whole: Array
    tied: Array


@dataclass(frozen=True, kw_only=True)
class Task:
    """What plans compute and send, whatever device and network they run on."""

    kernels: Kernels
    weights: Weights


def task_of(job: Job, layout: Layout, stack: SoftwareStack) -> Task:
    """What plans compute and send."""
    return Task(kernels=block_kernels(job, layout, stack), weights=weights_of(job, layout, stack))


def transformer_step(job: Job, layout: Layout, machine: Machine, held: Memory | None = None, task: Task | None = None) -> Outcome:
    """One step of every design point.

    Parameters
    ----------
    job : model and task.
    layout : n plans.
    machine : device, network and software; its quantities may vary over the n points too.
    held, task : memory of the step and what it computes, worked out here where they are not given.
    """
    n, found = len(layout), dict[str, Array]()
    with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
        steps = steps_of(job, layout, machine, task_of(job, layout, machine.stack) if task is None else task)
        for members, stages, chunks, microbatches, schedule in alike(layout):
            here = _pipeline(job, layout, machine, steps, members, stages, chunks, microbatches, schedule)
            for name, values in here.items():
                found.setdefault(name, np.zeros((*np.shape(values)[:-1], n)))[..., members] = values
    _endless(found)
    return _outcome(job, layout, machine, steps, found, memory(job, layout, machine) if held is None else held)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What steps consist of: kernels and passes of every unit, weights, and what goes between stages."""

    times: PartTimes
    passes: Passes
    state: State
    between: Between


def steps_of(job: Job, layout: Layout, machine: Machine, task: Task) -> Steps:
    """What the steps of all design points consist of."""
    names, kernels = [name for name, _ in units(job.model)], task.kernels
    times = part_times(kernels, names, machine.architecture, machine.stack, job.dtype, job.element, len(layout), machine.profile)
    state = _state(job, layout, machine, task.weights)
    return Steps(
        times=times,
        passes=_passes(kernels, times, layout, machine.wires, machine),
        state=state,
        between=_between(job, layout, machine, machine.wires, state),
    )


def _endless(found: dict[str, Array]) -> None:
    """Say of steps without end that communication never ends, and nothing of what it would have left to other parts."""
    endless = ~np.isfinite(found["total"])
    if endless.any():
        for values in found.values():
            part = values[..., endless]
            values[..., endless] = np.where(np.isnan(part), 0.0, part)
        found["total"][endless] = found["exposed_communication"][endless] = np.inf


def _passes(kernels: Kernels, times: PartTimes, layout: Layout, wires: Wires, machine: Machine) -> Passes:
    """Passes of every unit, with what is computed and sent again."""
    stack, names, n = machine.stack, list(times.units), len(layout)
    place = {name: i for i, name in enumerate(names)}
    outer = np.array([name in ("embedding", "head") for name in names])[:, None]
    full, selective = layout.full & ~outer, layout.selective & ~outer  # the ends are never computed again
    sent = np.zeros((len(COLLECTIVES), 2, len(names), n))
    hides, around = np.zeros((len(COLLECTIVES), len(names), n)), np.zeros((len(COLLECTIVES), 2, len(names), n))
    calls, listed = np.zeros((2, len(names), n)), np.zeros((2, len(names), n))
    moved = np.zeros((2, 2, len(names), n))
    messages = kernels.messages
    took, known, volumes = wires.times(messages, layout)
    measured = np.zeros((2, len(names), n))
    of = np.array([OF[message.collective] for message in messages], dtype=np.intp)
    phase = np.array([message.phase != "forward" for message in messages], dtype=np.intp)
    unit = np.array([place[message.part] for message in messages], dtype=np.intp)
    np.add.at(sent, (of, phase, unit), took)
    for where, amounts in zip(moved, volumes, strict=True):
        np.add.at(where, (phase, unit), amounts)
    np.add.at(calls, (phase, unit), took > 0)
    np.add.at(measured, (phase, unit), known)
    hiding = np.flatnonzero([message.hides for message in messages])
    np.add.at(hides, (of[hiding], unit[hiding]), took[hiding])
    ringed = np.flatnonzero([message.group == "context" for message in messages])
    np.add.at(around, (of[ringed], phase[ringed], unit[ringed]), took[ringed])
    shared = np.flatnonzero([message.group == "tensor" for message in messages])
    np.add.at(listed, (phase[shared], unit[shared]), np.where(took[shared] > 0, layout.tp, 0.0))
    parts = np.stack([times.compute - times.memory_bound - times.launch, times.memory_bound, times.launch])
    forward = parts[:, :, FORWARD] + parts[:, :, END]
    redone = parts[:, :, FORWARD] if stack.early_stop else forward
    # A layer has several parts, and stalls once.
    first = np.array([".0." in name for name in names])[:, None]
    stall = np.where(full & first, stack.host.stall, 0.0)
    again = np.where(full, redone, np.where(selective, parts[:, :, AGAIN], 0.0))
    again[2] += stall
    blocking = sent.copy()
    blocking[:, 1] -= hides
    if stack.overlap.context:  # around the ring while attention computes
        core, ring = np.stack([times.compute[:, FORWARD], times.compute[:, INPUT]]), around.sum(axis=0)
        beside = np.minimum(ring, core)
        share = _part(beside, ring)
        blocking -= share * around
    resent = np.where(full, sent[:, 0], 0.0)
    sent[:, 1] += resent
    blocking[:, 1] += np.where(full, blocking[:, 0], 0.0)
    moved[:, 1] += np.where(full, moved[:, 0], 0.0)
    measured[1] += np.where(full, measured[0], 0.0)
    launched, host = times.kernels, stack.host
    issued = launched[:, FORWARD] + launched[:, END] + calls[0]
    reissued = np.where(full, issued, np.where(selective, launched[:, AGAIN], 0.0))
    ranks = listed + np.stack([np.zeros_like(listed[0]), np.where(full, listed[0], 0.0)])
    return Passes(
        device=np.stack([forward, parts[:, :, INPUT] + again], axis=1),
        weight=parts[:, :, WEIGHT],
        sent=sent,
        blocking=blocking,
        hides=hides,
        measured=measured,
        moved=moved,
        host=np.stack([issued, launched[:, INPUT] + calls[1] + reissued]) * host.kernel + ranks * host.rank + host.layer,
        host_weight=launched[:, WEIGHT] * host.kernel,
    )


# -------------------------------------------------------------------------------------------- weights


def _state(job: Job, layout: Layout, machine: Machine, weights: Weights) -> State:
    """Time of the collectives that sharded or replicated weights need, and of the optimizer."""
    shape = weights.parameters.shape
    reduce, gather, regather = np.zeros((len(COLLECTIVES), *shape)), np.zeros(shape), np.zeros(shape)
    for message in weights.messages:
        time = machine.wires.time(message.collective, message.size, message.group)
        into = {"reduce": reduce[OF[message.collective]], "gather": gather, "regather": regather}[message.role]
        into += time
    return State(
        weights=weights, reduce=reduce, gather=gather, regather=regather,
        update=optimizer_time(job, weights.owned, machine) * (1.0 - kept_on_host(layout, "optimizer")),
        copies=_copies(job, layout, machine, weights.owned),
    )  # fmt: skip


def _copies(job: Job, layout: Layout, machine: Machine, owned: Array) -> Copies | None:
    """Copies to the host and back, where any plan keeps anything there."""
    if not layout.offload:
        return None
    kept, _ = activations(job, layout, machine.stack)
    return host_copies(
        job, layout, machine, np.stack([kept[name] for name, _ in units(job.model)]), owned, weight_sizes(job, machine.stack)
    )


def _between(job: Job, layout: Layout, machine: Machine, wires: Wires, state: State) -> Between:
    """Times of what goes between stages, none where there is one."""
    several = layout.pp > 1
    boundary = job.element * layout.micro_batch * job.tokens(job.model.tokens) / layout.cp * job.model.embedding.width
    shared = job.training and job.model.tied and not job.is_frozen("embedding", None)
    table = state.weights.parameters[-1] * machine.stack.gradient_size(job.element) * shared
    return Between(
        transfer=wires.time("send_recv", np.where(several, boundary / layout.tp, 0.0), layout.stages),
        whole=wires.time("all_gather", np.where(layout.sequence_parallel | ~several, 0.0, boundary), layout.tensor),
        tied=wires.time("all_reduce", np.where(several, table, 0.0), layout.stages),
    )


def optimizer_time(job: Job, owned: Array, machine: Machine) -> Array:
    """Time of the optimizer on `owned` parameters: gradients twice (norm, step), states and master weights in fp32. [s]"""
    weight = machine.stack.weight_size(job.element)
    master = 8.0 + weight if weight < 4 else 8.0
    moved = 2.0 * machine.stack.gradient_size(job.element) + master + 8.0 * job.optimizer_states
    passes = 1.0 if "optimizer" in machine.stack.fused else 2.0
    return divide(passes * owned * moved, machine.architecture.memory.bandwidth)


# -------------------------------------------------------------------------------------------- pipelines


@dataclass(frozen=True, kw_only=True)
class Slots:
    """What one slot of every row of a pipeline takes, for points whose pipelines have one shape; arrays of shape (rows, n). [s]

    Attributes
    ----------
    forward_of, input_of, weight_of : how often every unit occurs in a row: forward, and with a gradient of its input and of its
        weights, shape (rows, units). [1]
    device : time of kernels by `KINDS`, forward and backward, shape (kinds, 2, rows, n).
    net : time that collectives of the passes themselves block, by collective, forward and backward, shape (collectives, 2, rows, n).
    gpu, host : what the device and what the host take alone for a slot of each kind, shape (kinds x rows, n); the longer counts.
    waits : what the host takes longer than the device, forward and backward, shape (2, rows, n).
    behind : what gathers and reductions of sharded weights, and copies, take longer than that, shape (2, rows, n).
    busy : time that slots of every kind keep their stage, shape (kinds x rows, n); kinds are forward, backward and, if apart, weight.
    final : time of the last slot with gradients of weights.
    hands : how often a pass of a row hands over to another stage, forward and backward, shape (2, rows). [1]
    hop, flight : time to hand over, and as far as no stage is held up by it, shape (n,).
    """

    forward_of: Array
    input_of: Array
    weight_of: Array
    device: Array
    net: Array
    gpu: Array
    host: Array
    waits: Array
    behind: Array
    busy: Array
    final: Array
    hands: Array
    hop: Array
    flight: Array


def slots_of(
    job: Job,
    layout: Layout,
    machine: Machine,
    steps: Steps,
    at: Index,
    stages: int,
    chunks: int,
    microbatches: int,
    schedule: str,
) -> Slots:
    """Slots of points whose pipelines have one shape."""
    stack, training = machine.stack, job.training
    passes, state, between = steps.passes, steps.state, steps.between
    ends = int(layout.first_stage[at[0]]), int(layout.last_stage[at[0]])
    forward_of, input_of, weight_of = row_counts(job, schedule, stages, chunks, microbatches, *ends, stack.stages == "balanced")
    split = schedule not in WHOLE and pipeline_order(schedule, stages, chunks, microbatches).split
    device_f = forward_of @ passes.device[:, 0][..., at]
    device_i, device_w = input_of @ passes.device[:, 1][..., at], weight_of @ passes.weight[..., at]
    hidden = passes.hides[..., at]
    beside = np.zeros(1) if split else passes.weight[..., at].sum(axis=0)
    spill = np.maximum(hidden.sum(axis=0) - beside, 0.0)
    share = _part(spill, hidden.sum(axis=0))
    net_f = forward_of @ passes.blocking[:, 0][..., at]
    # What would hide beside a frozen weight's gradient has nothing to hide beside.
    frozen_of = np.maximum(input_of - weight_of, 0.0)
    net_b = input_of @ (passes.blocking[:, 1][..., at] + share * hidden) + frozen_of @ ((1.0 - share) * hidden)
    gpu_f, gpu_i, gpu_w = device_f.sum(axis=0) + net_f.sum(axis=0), device_i.sum(axis=0) + net_b.sum(axis=0), device_w.sum(axis=0)
    host_f = forward_of @ passes.host[0][:, at]
    host_i, host_w = input_of @ passes.host[1][:, at], weight_of @ passes.host_weight[:, at]
    if not split:
        gpu_i, host_i = gpu_i + gpu_w, host_i + host_w
    plain_f, plain_b = np.maximum(gpu_f, host_f), np.maximum(gpu_i, host_i) if training else np.zeros_like(gpu_i)
    plain_w = np.maximum(gpu_w, host_w)
    waits = np.stack([plain_f - gpu_f, plain_b - (gpu_i if training else 0.0) + (plain_w - gpu_w if split else 0.0)])
    # Weights sharded over data ranks are gathered layer by layer, forward and backward, and their gradients reduced.
    sharded = layout.zero[at] >= 3
    gather, reduce = state.gather[:, at], state.reduce[..., at].sum(axis=0)
    depth = np.maximum(forward_of[:, 1:-1].sum(axis=1), 1.0)[:, None]
    ahead, copied = stack.overlap.gather, None if state.copies is None else state.copies.at(at)
    arrive, leave, first, last = gather, reduce, gather.max(axis=0), reduce.max(axis=0)
    if copied is not None:  # a shard comes from the host before it is gathered, and its gradients go there
        arrive, first = fetched(gather, copied.fetched, ahead=ahead), first + copied.fetched.max(axis=0)
        leave, last = fetched(reduce, copied.stored, ahead=ahead), last + copied.stored.max(axis=0)
    forward = np.where(sharded, gathered(plain_f, forward_of @ arrive, first, depth, ahead=ahead), plain_f)
    back = reduced(plain_b, input_of @ arrive, weight_of @ leave, first, last, depth, ahead=ahead)
    backward = np.where(sharded & training, back, plain_b)
    if copied is not None:  # each direction of the bus is a stream: activations and gradients go down, fetched weights and activations up
        forward = np.maximum(forward, np.maximum(forward_of @ copied.activations, forward_of @ copied.fetched))
        upwards = input_of @ (copied.activations + copied.fetched)
        backward = np.maximum(backward, np.maximum(upwards, weight_of @ copied.stored) * float(training))
    # Activations between stages.
    hands = _hands(schedule, stages, chunks, microbatches) * np.array([[1.0], [float(training)]])
    hop = between.transfer[at] + between.whole[at]
    held = np.zeros_like(hop) if stack.overlap.pipeline else hop
    busy_f = forward + float(stack.host.microbatch[0]) / chunks + held * hands[0][:, None]
    busy = [busy_f, backward + held * hands[1][:, None], *([plain_w] if split else [])]
    return Slots(
        forward_of=forward_of, input_of=input_of, weight_of=weight_of,
        device=np.stack([device_f, device_i + device_w], axis=1), net=np.stack([net_f, net_b], axis=1), waits=waits,
        gpu=np.concatenate([gpu_f, gpu_i, *([gpu_w] if split else [])]),
        host=np.concatenate([host_f, host_i, *([host_w] if split else [])]),
        behind=np.stack([forward - plain_f, backward - plain_b]), busy=np.concatenate(busy), final=plain_w if split else backward,
        hands=hands, hop=hop, flight=hop - held,
    )  # fmt: skip


STEADY = 4  # rounds of `stages` microbatches after which a pipeline without flush is full
WHOLE = ("1f1b", "gpipe", "chimera", "pipedream")  # rules that leave weight gradients in the backward pass


@functools.lru_cache(maxsize=256)
def _hands(schedule: str, stages: int, chunks: int, microbatches: int) -> Array:
    """How often a pass of each row hands over to another stage, forward and backward, shape (2, rows). [1]"""
    if schedule in NATURAL:
        row = np.arange(stages * chunks)
        return np.stack([row < stages * chunks - 1, row > 0]).astype(float) * (stages > 1)
    order = pipeline_order(schedule, stages, chunks, microbatches)
    found = np.zeros((2, order.rows))
    for chain in order.chains:
        for one, later in itertools.pairwise(chain):
            found[0, one] = found[1, later] = (one - later) % stages > 0
    return found


def _by_stage(values: Array, stages: int) -> Array:
    """Sums over the rows of every stage, shape (..., stages, n)."""
    return np.asarray(values.reshape(*values.shape[:-2], -1, stages, values.shape[-1]).sum(axis=-3))


@dataclass(frozen=True, kw_only=True)
class Closing:
    """What every stage does once its last microbatch is through; arrays of shape (stages, n). [s]

    Attributes
    ----------
    reductions : of gradients that are not reduced in the passes, by collective, shape (collectives, stages, n).
    lowered : copies of gradients to the host.
    exposed : of both, what comes after the last pass: they may run in buckets beside it.
    update, on_host, renewed, regather : the optimizer on the device; on the host, and what copies of updated weights take beyond;
        and gathers of updated weights that the next step waits for.
    """

    reductions: Array
    lowered: Array
    exposed: Array
    update: Array
    on_host: Array
    renewed: Array
    regather: Array


def closing_of(layout: Layout, machine: Machine, steps: Steps, slots: Slots, at: Index, stages: int) -> Closing:
    """End of a step of points whose pipelines have one shape."""
    stack, state = machine.stack, steps.state
    trained, copied = _by_stage(slots.weight_of, stages), None if state.copies is None else state.copies.at(at)
    none = np.zeros((stages, len(at)))
    reductions = np.where(layout.zero[at] >= 3, 0.0, trained @ state.reduce[..., at])
    layers = np.maximum(_by_stage(slots.forward_of, stages)[:, 1:-1].sum(axis=1), 1.0)[:, None]
    lowered = none if copied is None else trained @ copied.gradients
    final, volume = _by_stage(slots.final, stages), reductions.sum(axis=0)
    # On the host, updated weights go to the device while the next ones are updated.
    on_host = none if copied is None else trained @ copied.update
    return Closing(
        reductions=reductions,
        lowered=lowered,
        exposed=flow((final, volume, lowered), layers) - final if stack.overlap.data else volume + lowered,
        update=trained @ state.update[:, at],
        on_host=on_host,
        renewed=none if copied is None else flow((on_host, trained @ copied.renewed), layers) - on_host,
        regather=none if stack.overlap.optimizer else trained @ state.regather[:, at],
    )


def _stage_ends(slots: Slots, rounds: Array, stages: int, chunks: int, microbatches: int, schedule: str) -> Array:
    """Time at which every stage has finished its last slot, shape (stages, n). [s]"""
    if stages == 1 and schedule in NATURAL:
        return np.asarray((rounds * slots.busy.sum(axis=0))[None])
    rows = len(slots.hands[0])
    forward, backward, *weight = (slots.busy[i : i + rows] for i in range(0, len(slots.busy), rows))
    ends = functools.partial(pipeline_ends, forward, backward, slots.flight, *weight, stages=stages, chunks=chunks)
    if schedule == "pipedream":  # what a microbatch adds once the pipeline is full
        return (ends(microbatches=2 * STEADY * stages) - ends(microbatches=STEADY * stages)) * microbatches / (STEADY * stages)
    return ends(microbatches=microbatches, schedule=schedule)


def _pipeline(
    job: Job,
    layout: Layout,
    machine: Machine,
    steps: Steps,
    at: Index,
    stages: int,
    chunks: int,
    microbatches: int,
    schedule: str,
) -> dict[str, Array]:
    """Step of points whose pipelines have one shape: its time, and its parts on the stage that ends last."""
    stack, passes, state, between = machine.stack, steps.passes, steps.state, steps.between
    slots = slots_of(job, layout, machine, steps, at, stages, chunks, microbatches, schedule)
    forward_of, input_of, weight_of = slots.forward_of, slots.input_of, slots.weight_of
    microbatch = layout.microbatches[at]
    rounds = microbatch / layout.directions[at]  # slots of a kind that a row has
    sharded = layout.zero[at] >= 3
    gather, copied = state.gather[:, at], None if state.copies is None else state.copies.at(at)
    transfer, whole, tied = between.transfer[at], between.whole[at], between.tied[at]
    hop, extra = slots.hop, float(stack.host.microbatch[0])

    def by_stage(values: Array) -> Array:
        return _by_stage(values, stages)

    closing, trained = closing_of(layout, machine, steps, slots, at, stages), by_stage(weight_of)
    reductions, lowered, exposed, regather = closing.reductions, closing.lowered, closing.exposed, closing.regather
    update, on_host, renewed = closing.update, closing.on_host, closing.renewed
    ends = _stage_ends(slots, rounds, stages, chunks, microbatches, schedule)
    if schedule == "pipedream":  # every stage reduces and updates after each microbatch
        reductions, update = microbatch * reductions, microbatch * update
        exposed = np.maximum(reductions.sum(axis=0) - ends, 0.0) if stack.overlap.data else reductions.sum(axis=0)
    finish = update + on_host + renewed + regather
    after = ends + exposed
    step = float(stack.host.step[0])
    total = after.max(axis=0) + tied + finish.max(axis=0) + step
    s, points = after.argmax(axis=0), np.arange(len(at))

    def of(values: Array) -> Array:
        """Values of the stage that ends last."""
        if values.shape[-2:] != (stages, len(at)):
            values = np.broadcast_to(values, (*values.shape[:-2], stages, len(at)))
        return np.asarray(values[..., s, points])

    f, i, w = (by_stage(part)[s].T for part in (forward_of, input_of, weight_of))
    device = rounds * of(by_stage(slots.device.sum(axis=1)))
    net = rounds * of(by_stage(slots.net.sum(axis=1)))
    waits = rounds * of(by_stage(slots.waits.sum(axis=0)))
    gathering = rounds * of(by_stage(slots.behind.sum(axis=0)))
    late = after.max(axis=0) - of(ends)
    handed = rounds * of(by_stage(slots.hands.sum(axis=0)[:, None] * np.ones(len(at))))
    sending = np.zeros(len(at)) if stack.overlap.pipeline else handed * hop
    compute = device[0]
    memory_bound = device[1] + of(update)
    host = waits + microbatch * extra + step + of(on_host)
    other = device[2] + host
    outside = net.sum(axis=0) + gathering + late + sending + tied + of(renewed) + of(regather)
    bubble = total - compute - memory_bound - other - outside
    bubble[bubble < 1e-12 * total] = 0.0
    sent = rounds * of(by_stage(forward_of @ passes.sent[:, 0][..., at] + input_of @ passes.sent[:, 1][..., at]))
    sent[OF["send_recv"]] += handed * transfer
    sent[OF["all_gather"]] += handed * whole
    gathers = rounds * of(by_stage(forward_of @ gather + input_of @ gather))
    sent[OF["all_gather"]] += of(trained @ state.regather[:, at])
    # Behind the passes of sharded weights run their gathers, reductions and copies; behind the last pass, reductions and copies.
    inner, final_ = np.zeros_like(sent), of(reductions)
    inner[OF["all_gather"]] = gathers
    inner += np.where(sharded, rounds * of(by_stage(weight_of @ state.reduce[..., at])), 0.0)
    if copied is not None:
        through = copied.activations + copied.fetched
        inner[OF["host_copy"]] = rounds * of(by_stage(forward_of @ through + input_of @ through + weight_of @ copied.stored))
        final_[OF["host_copy"]] = of(lowered)
        sent[OF["host_copy"]] += of(trained @ copied.renewed)
    sent += inner + final_
    sent[OF["all_reduce"]] += tied
    shown = net.copy()
    if not stack.overlap.pipeline:
        shown[OF["send_recv"]] += handed * transfer
        shown[OF["all_gather"]] += handed * whole
    shown[OF["all_gather"]] += of(regather)
    shown[OF["host_copy"]] += of(renewed)
    shown += gathering * _part(inner, inner.sum(axis=0)) + late * _part(final_, final_.sum(axis=0))
    shown[OF["all_reduce"]] += tied
    # Where no reduction takes time nothing can be late for it but the stages' own order.
    waited = np.where(final_.any(axis=0), 0.0, late)
    bubble += waited
    outside -= waited
    return {
        "total": total,
        "compute": compute,
        "memory_bound_compute": memory_bound,
        "exposed_communication": outside,
        "bubble": bubble,
        "other": other,
        "sent": sent,
        "exposed": shown,
        "waits": host,
        "unit_compute": rounds
        * (f * passes.device[:, 0][..., at] + i * passes.device[:, 1][..., at] + w * passes.weight[..., at]).sum(axis=0),
        "unit_sent": rounds * (f * passes.sent[:, 0][..., at] + i * passes.sent[:, 1][..., at]).sum(axis=0),
        "occurs": np.stack([forward_of, input_of, weight_of]).sum(axis=1)[..., None] / layout.directions[at],
    }


def _outcome(job: Job, layout: Layout, machine: Machine, steps: Steps, found: Mapping[str, Array], held: Memory) -> Outcome:
    """Totals over all devices, and the names that people read."""
    times, passes, state = steps.times, steps.passes, steps.state
    forward, inputs, weights = found["occurs"]
    ranks = layout.tp * layout.cp * layout.dp
    outer = np.array([name in ("embedding", "head") for name in times.units])[:, None]

    def done(amount: Array) -> Array:
        """Sum over all units, passes and devices of what a unit does in a pass, shape (units, phases, n)."""
        redone = amount[:, FORWARD] + (0.0 if machine.stack.early_stop else amount[:, END])
        again = np.where(outer, 0.0, np.where(layout.full, redone, np.where(layout.selective, amount[:, AGAIN], 0.0)))
        one = forward * (amount[:, FORWARD] + amount[:, END]) + inputs * (amount[:, INPUT] + again) + weights * amount[:, WEIGHT]
        return np.asarray(one.sum(axis=0) * layout.microbatches * ranks)

    moved = layout.microbatches * (forward * passes.moved[:, 0] + inputs * passes.moved[:, 1]).sum(axis=1) / layout.pp
    moved = moved + (weights * layout.directions * state.weights.moved).sum(axis=1) / layout.pp
    sent = (forward * passes.sent[:, 0] + inputs * passes.sent[:, 1]).sum(axis=(0, 1)) * layout.microbatches * ranks
    known = (forward * passes.measured[0] + inputs * passes.measured[1]).sum(axis=0) * layout.microbatches * ranks
    measured = divide(done(times.measured) + known, done(times.compute) + sent) if machine.profile is not None else np.zeros(1)
    host = found["waits"]
    types = {name: (name if name in ("embedding", "head") else name.split(".")[2]) for name in times.units}
    by_layer: dict[str, Array] = {}
    for unit, kind in enumerate(types.values()):
        for what, values in (("compute", found["unit_compute"]), ("communication", found["unit_sent"])):
            key = f"{kind}.{what}"
            by_layer[key] = by_layer.get(key, np.zeros(len(layout))) + values[unit]
    used = [i for i, _ in enumerate(COLLECTIVES) if found["sent"][i].any()]
    return Outcome(
        total=found["total"],
        breakdown={name: found[name] for name in BREAKDOWN},
        communication={COLLECTIVES[i]: found["sent"][i] for i in used},
        exposed={COLLECTIVES[i]: found["exposed"][i] for i in used},
        memory=held.kinds,
        flops=done(times.flops),
        model_flops=_model_flops(job, forward, inputs, weights) * layout.microbatches * layout.micro_batch * layout.dp,
        traffic=done(times.traffic),
        sent=(moved[0], moved[1]),
        bound={
            "compute": found["compute"], "memory": found["memory_bound_compute"], "launch": found["other"] - host, "host": host,
            "network": found["exposed_communication"], "bubble": found["bubble"],
        },
        by_layer=by_layer,
        measured=measured,
        host_memory=held.host,
        host_capacity=held.host_capacity,
    )  # fmt: skip


def _model_flops(job: Job, forward: Array, inputs: Array, weights: Array) -> Array:
    """Operations that one sample needs: forward, and as many again for each gradient; attention's backward pass takes twice. [flop]

    All scores are counted, masked or not, as published counts do.
    """
    products, backward, scores = _unit_flops(job)
    return np.asarray(products @ (forward + weights) + backward @ inputs + scores @ (forward + 2.0 * inputs))


@functools.lru_cache(maxsize=256)
def _unit_flops(job: Job) -> tuple[Array, Array, Array]:
    """Operations of one sample in each unit's products, forward and for their inputs' gradients, and in its scores. [flop]"""
    lengths = [layer.tokens for layer in job.model.layers for _ in layer.parts]
    rows = []
    for unit, (_, part) in enumerate(units(job.model)):
        tokens = lengths[unit - 1] if 0 < unit <= len(lengths) else job.model.tokens
        products = job.model.part_flops(replace(part, attention=None), tokens)
        scores = job.model.part_flops(part, tokens) - products
        if job.task == "decode":
            products, scores = products / tokens, scores / tokens * job.context / tokens
        rows.append((products, products * (part.type != "embedding"), scores))
    products, backward, scores = np.array(rows).T
    return products, backward, scores


def gathered(compute: Array, gathers: Array, first: Array, layers: Array, *, ahead: bool) -> Array:
    """Time of a pass whose layers' weights arrive on a stream of their own. [s]

    With L layers of c and g: the first gather then all layers, or all gathers then the last layer, max(g + L c, L g + c);
    one after the other where nothing is gathered `ahead`.
    """
    if not ahead:
        return np.asarray(compute + gathers)
    return np.asarray(np.maximum(first + compute, gathers + compute / layers))


def reduced(compute: Array, gathers: Array, reduces: Array, first: Array, last: Array, layers: Array, *, ahead: bool) -> Array:
    """Time of a backward pass that gathers weights ahead and reduces gradients behind, both on one stream. [s]

    With L > 1 layers of c, g and r in the order g1 g2 r1 g3 r2 ...: computing all the way, g + L c + r; communicating all the
    way, L (g + r) + max(0, c - min(g, r)); or computing first and last and communicating between, 2 c + (L - 1) (g + r).
    """
    if not ahead:
        return np.asarray(compute + gathers + reduces)
    one, both = compute / layers, gathers + reduces
    beside = both + np.maximum(compute - np.minimum(gathers, reduces), 0.0) / layers
    between = np.where(layers > 1, 2.0 * one + both * (layers - 1.0) / layers, 0.0)
    return np.asarray(np.maximum(np.maximum(first + compute + last, beside), between))


def fetched(one: Array, other: Array, *, ahead: bool) -> Array:
    """Time of a layer on two streams that work on different layers where one is fetched `ahead`, one after the other elsewhere. [s]"""
    return np.asarray(np.maximum(one, other) if ahead else one + other)


def _part(some: Array, whole: Array) -> Array:
    """Share of a whole, zero of nothing."""
    return np.asarray(np.divide(some, whole, out=np.zeros(np.broadcast_shapes(some.shape, whole.shape)), where=whole > 0))
