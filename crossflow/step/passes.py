"""What one microbatch takes on every unit of a transformer, and what its weights take: the parts of which steps consist."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array, Mask, divide
from crossflow.cost.parts import PartTimes, Wires, part_times
from crossflow.cost.profile import Profile, optimizer_shape, where_measured
from crossflow.parallel.blocks import PHASES, Kernels, block_kernels, units
from crossflow.parallel.layout import Layout
from crossflow.software import SoftwareStack
from crossflow.step.activations import activations
from crossflow.step.memory import weight_sizes
from crossflow.step.offload import Copies, host_copies, kept_on_host
from crossflow.step.outcome import Job, Machine
from crossflow.step.weights import Weights, weights_of

FORWARD, INPUT, WEIGHT = (PHASES.index(phase) for phase in ("forward", "input", "weight"))
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
    reduce, scatter : time to reduce its gradients over the ranks that hold the same, with every update, and of sharded weights with
        every microbatch, shape (collectives, units, n). [s]
    gather : time to gather its weights, where they are sharded. [s]
    regather : time to gather updated weights after a sharded optimizer's step. [s]
    update : time of the optimizer on the parameters whose states the device holds. [s]
    copies : what is copied to the host and back, where anything is kept there.
    """

    weights: Weights
    reduce: Array
    scatter: Array
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
    """What plans compute and send, whatever device and network they run on.

    Attributes
    ----------
    kernels : of the fullest rank, for which others wait.
    mean : of ranks in the mean, where experts load them unevenly.
    weights : what each holds.
    """

    kernels: Kernels
    mean: Kernels | None
    weights: Weights


def task_of(job: Job, layout: Layout, stack: SoftwareStack) -> Task:
    """What plans compute and send."""
    even = job.model.even
    mean = None if even is job.model else block_kernels(dataclasses.replace(job, model=even), layout, stack)
    return Task(kernels=block_kernels(job, layout, stack), mean=mean, weights=weights_of(job, layout, stack))


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What steps consist of: kernels and passes of every unit, weights, and what goes between stages."""

    times: PartTimes
    passes: Passes
    state: State
    between: Between


def steps_of(job: Job, layout: Layout, machine: Machine, task: Task) -> Steps:
    """What the steps of all design points consist of."""
    names = [name for name, _ in units(job.model)]

    def times_of(kernels: Kernels) -> PartTimes:
        return part_times(kernels, names, machine.architecture, machine.stack, job.dtype, job.element, len(layout), machine.profile)

    times, state = times_of(task.kernels), _state(job, layout, machine, task.weights)
    if task.mean is not None:  # the fullest rank takes the time, all ranks together do what they do in the mean
        mean = times_of(task.mean)
        times = dataclasses.replace(times, flops=mean.flops, energy=mean.energy, traffic=mean.traffic)
    return Steps(
        times=times,
        passes=_passes(task, times, layout, machine.wires, machine),
        state=state,
        between=_between(job, layout, machine, machine.wires, state),
    )


def _passes(task: Task, times: PartTimes, layout: Layout, wires: Wires, machine: Machine) -> Passes:
    """Passes of every unit, with what is computed and sent again."""
    stack, names, n = machine.stack, list(times.units), len(layout)
    place = {name: i for i, name in enumerate(names)}
    full = layout.full & ~ends_of(times.units)
    sent = np.zeros((len(COLLECTIVES), 2, len(names), n))
    hides, around = np.zeros((len(COLLECTIVES), len(names), n)), np.zeros((len(COLLECTIVES), 2, len(names), n))
    calls, listed = np.zeros((2, len(names), n)), np.zeros((2, len(names), n))
    moved = np.zeros((2, 2, len(names), n))
    messages = task.kernels.messages
    took, known, volumes = wires.times(messages, layout)
    if task.mean is not None:
        *_, volumes = wires.times(task.mean.messages, layout)
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
    shared = np.flatnonzero([message.group.endswith("tensor") for message in messages])
    ranks = np.array([getattr(layout, messages[i].group).size for i in shared]).reshape(len(shared), n)
    np.add.at(listed, (phase[shared], unit[shared]), np.where(took[shared] > 0, ranks, 0.0))
    parts = np.stack([times.compute - times.memory_bound - times.launch, times.memory_bound, times.launch])
    ahead, back = (recurrences(names, layout, stack, **{way: 1.0}) for way in ("forward", "backward"))
    backward = (parts * back).sum(axis=2)
    # A layer has several parts, and stalls once.
    first = np.array([".0." in name for name in names])[:, None]
    backward[2] += np.where(full & first, stack.host.stall, 0.0)
    blocking = sent.copy()
    blocking[:, 1] -= hides
    covered = np.zeros((2, len(names), n))
    for i in (i for i, message in enumerate(messages) if message.along):
        product = times.products[list(messages[i].along)].sum(axis=0)
        hidden = hidden_in_pieces(took[i], product, getattr(layout, messages[i].group).size)
        blocking[of[i], phase[i], unit[i]] -= hidden
        covered[phase[i], unit[i]] += hidden
    if stack.overlap.context:  # around the ring while attention computes
        core, ring = np.stack([times.compute[:, FORWARD], times.compute[:, INPUT]]), around.sum(axis=0)
        beside = np.minimum(ring, core - covered)
        share = share_of(beside, ring)
        blocking -= share * around
    resent = np.where(full, sent[:, 0], 0.0)
    sent[:, 1] += resent
    blocking[:, 1] += np.where(full, blocking[:, 0], 0.0)
    moved[:, 1] += np.where(full, moved[:, 0], 0.0)
    measured[1] += np.where(full, measured[0], 0.0)
    launched, host = times.kernels, stack.host
    calls[1] += np.where(full, calls[0], 0.0)
    listed[1] += np.where(full, listed[0], 0.0)
    issued = np.stack([(launched * way).sum(axis=1) for way in (ahead, back)]) + calls
    return Passes(
        device=np.stack([(parts * ahead).sum(axis=2), backward], axis=1),
        weight=parts[:, :, WEIGHT],
        sent=sent,
        blocking=blocking,
        hides=hides,
        measured=measured,
        moved=moved,
        host=issued * host.kernel + listed * host.rank + host.layer,
        host_weight=launched[:, WEIGHT] * host.kernel,
    )


def hidden_in_pieces(sent: Array, product: Array, ranks: Array) -> Array:
    """Part of the time of a gather or scatter that a product hides which takes or makes its pieces one by one. [s]

    There is a piece a rank. Its own is there at once, or is made last, and does not travel: nothing moves beside the product of
    one piece in so many (Wang et al., "Overlap Communication with Dependent Computation via Decomposition", ASPLOS 2023).
    """
    return np.minimum(sent, product * (ranks - 1.0) / ranks)


@functools.lru_cache(maxsize=256)
def ends_of(names: tuple[str, ...]) -> Mask:
    """Which units are the ends of a model, which no plan computes again, shape (units, 1)."""
    return np.array([name in ("embedding", "head") for name in names])[:, None]


def recurrences(
    names: Sequence[str],
    layout: Layout,
    stack: SoftwareStack,
    *,
    forward: Array | float = 0.0,
    backward: Array | float = 0.0,
    weight: Array | float = 0.0,
) -> Array:
    """How often each phase of units runs in so many passes of them, with what a backward pass computes again. [1]

    Parameters
    ----------
    forward, backward, weight : passes of every unit, weights' gradients apart from the backward ones, shape (units, n) or a number.

    Returns
    -------
    ndarray, shape (units, phases, n), phases as in `crossflow.parallel.blocks`.
    """
    again = np.where(ends_of(tuple(names)), 0.0, backward)
    full, selective = again * layout.full, again * layout.selective
    counts = {
        "forward": forward + full, "end": forward + full * (not stack.early_stop), "input": backward, "weight": weight, "again": selective,
    }  # fmt: skip
    often = np.empty((len(names), len(PHASES), len(layout)))
    for i, phase in enumerate(PHASES):
        often[:, i] = counts[phase]
    return often


def _state(job: Job, layout: Layout, machine: Machine, weights: Weights) -> State:
    """Time of the collectives that sharded or replicated weights need, and of the optimizer."""
    shape = weights.parameters.shape
    reduce, scatter = np.zeros((2, len(COLLECTIVES), *shape))
    gather, regather = np.zeros((2, *shape))
    for message in weights.messages:
        time = machine.wires.time(message.collective, message.size, message.group)
        reductions = (scatter if message.sharded else reduce)[OF[message.collective]]
        into = {"reduce": reductions, "gather": gather, "regather": regather}[message.role]
        into += time
    return State(
        weights=weights, reduce=reduce, scatter=scatter, gather=gather, regather=regather,
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
    transfer, whole, tied = between_sizes(job, layout, state.weights, machine.stack)
    return Between(
        transfer=wires.time("send_recv", transfer, layout.stages),
        whole=wires.time("all_gather", whole, layout.tensor),
        tied=wires.time("all_reduce", tied, layout.stages),
    )


def between_sizes(job: Job, layout: Layout, weights: Weights, stack: SoftwareStack) -> tuple[Array, Array, Array]:
    """Sizes of what `Between` takes, each of shape (n,). [B]"""
    several = layout.pp > 1
    boundary = job.element * layout.micro_batch * job.tokens(job.model.tokens) / layout.cp * job.model.embedding.width
    shared = job.training and job.model.tied and not job.is_frozen("embedding", None)
    table = weights.parameters[-1] * stack.gradient_size(job.element) * shared
    whole = np.where(layout.sequence_parallel | ~several, 0.0, boundary)
    return np.where(several, boundary / layout.tp, 0.0), whole, np.where(several, table, 0.0)


def optimizer_time(job: Job, owned: Array, machine: Machine) -> Array:
    """Time of the optimizer on `owned` parameters: gradients twice (norm, step), states and master weights in fp32; or as measured. [s]"""
    weight = machine.stack.weight_size(job.element)
    master = 8.0 + weight if weight < 4 else 8.0
    moved = 2.0 * machine.stack.gradient_size(job.element) + master + 8.0 * job.optimizer_states
    passes = 1.0 if machine.stack.fuses("optimizer", job.element) else 2.0
    time = divide(passes * owned * moved, machine.architecture.memory.bandwidth)
    return time if machine.profile is None else where_measured(time, measured_optimizer(owned, machine.profile))[0]


def measured_optimizer(owned: Array, profile: Profile) -> Array:
    """Measured times of the optimizer on `owned` parameters, shape (units, n), NaN where they were not measured. [s]"""
    return profile.kernels("optimizer", "", [[optimizer_shape(count) for count in row] for row in owned.tolist()])


def between_measured(job: Job, layout: Layout, machine: Machine, steps: Steps, handed: Array) -> tuple[Array, Array]:
    """Time of transfers between stages and of a tied table's sum in a step, and what of it was measured, of shape (n,). [s]

    `handed` is how often stages hand over to another one, all ranks together.
    """
    sizes = between_sizes(job, layout, steps.state.weights, machine.stack)
    groups = (("send_recv", layout.stages), ("all_gather", layout.tensor), ("all_reduce", layout.stages))
    known = [np.nan_to_num(machine.wires.measured(name, size, group)) for size, (name, group) in zip(sizes, groups, strict=True)]
    between, both = steps.between, 2.0 * layout.tp * layout.cp * layout.dp  # ends of a pipeline that hold a tied table
    return handed * (between.transfer + between.whole) + both * between.tied, handed * (known[0] + known[1]) + both * known[2]


def weights_measured(layout: Layout, machine: Machine, state: State, profile: Profile) -> tuple[Array, Array]:
    """Time of the optimizer and the collectives of weights in a step, and what of it was measured, each of shape (units, n). [s]"""
    onto = (1.0 - kept_on_host(layout, "optimizer")) * layout.updates
    whole, known = state.update * layout.updates, np.nan_to_num(measured_optimizer(state.weights.owned, profile)) * onto
    for message in state.weights.messages:
        often = message.rounds(layout)
        whole = whole + often * machine.wires.time(message.collective, message.size, message.group)
        known = known + often * np.nan_to_num(machine.wires.measured(message.collective, message.size, message.group))
    return whole, known


def share_of(some: Array, whole: Array) -> Array:
    """Share of a whole, zero of nothing."""
    return np.asarray(np.divide(some, whole, out=np.zeros(np.broadcast_shapes(some.shape, whole.shape)), where=whole > 0))
