"""What plans compute, send and hold in a step, whatever device and network they run on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array, Index, Mask, once
from crossflow.cost.parts import message_bytes
from crossflow.parallel.blocks import block_kernels, ends_of, units
from crossflow.parallel.kernels import PHASES, Kernels
from crossflow.parallel.layout import Group, Layout
from crossflow.parallel.schedules import NATURAL
from crossflow.software import SoftwareStack
from crossflow.step.outcome import Job
from crossflow.step.stages import Shape, alike, row_counts
from crossflow.step.weights import Weights, weights_of
from crossflow.workload.transformer import Transformer

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "host_copy")
OF = {name: i for i, name in enumerate(COLLECTIVES)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Sends:
    """Collectives of passes, in the order of `Kernels.messages`.

    Attributes
    ----------
    collective, backward, unit : which of `COLLECTIVES` each is, whether it is of a backward pass, and its unit, shape (messages,).
    hiding, ringed, pieces : those that may run beside weight gradients, beside the kernels of ring attention, and in pieces beside
        products.
    shared : those among a tensor group; ranks : ranks of it, shape (shared, n). [1]
    """

    collective: Index
    backward: Index
    unit: Index
    hiding: Index
    ringed: Index
    pieces: Index
    shared: Index
    ranks: Array

    @classmethod
    def of(cls, kernels: Kernels, layout: Layout) -> Sends:
        """Collectives of kernels."""
        messages, place = kernels.messages, {name: i for i, name in enumerate(kernels.units)}
        shared = np.flatnonzero([message.group.endswith("tensor") for message in messages])
        return cls(
            collective=np.array([OF[message.collective] for message in messages], dtype=np.intp),
            backward=np.array([message.phase != "forward" for message in messages], dtype=np.intp),
            unit=np.array([place[message.part] for message in messages], dtype=np.intp),
            hiding=np.flatnonzero([message.hides for message in messages]),
            ringed=np.flatnonzero([message.beside is not None for message in messages]),
            pieces=np.flatnonzero([bool(message.along) for message in messages]),
            shared=shared,
            ranks=np.array([getattr(layout, messages[i].group).size for i in shared]).reshape(len(shared), len(layout)),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Between:
    """What goes between the stages of a pipeline, each of shape (n,): sizes [B], or times [s].

    `transfer` takes activations from a stage to the next, each rank of a tensor group its part; its times are of shape (2, n), between
    neighbours inside a node and in different nodes. `whole` puts the parts together where the receivers do not keep them divided;
    `tied` adds up the gradients of a table that first and last stage both hold.
    """

    transfer: Array
    whole: Array
    tied: Array

    def each(self, layout: Layout) -> tuple[tuple[str, Array, Group], ...]:
        """Collective, size and group of `transfer` inside a node and between nodes, of `whole` and of `tied`."""
        inside, outside = layout.neighbours
        return (
            ("send_recv", self.transfer, inside),
            ("send_recv", self.transfer, outside),
            ("all_gather", self.whole, layout.tensor),
            ("all_reduce", self.tied, layout.ends),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What plans compute, send and hold.

    Attributes
    ----------
    kernels : of the fullest rank, for which others wait.
    mean : of ranks in the mean, where experts load them unevenly.
    sends : collectives among the kernels.
    weights : what each rank holds.
    between : sizes of what goes between stages. [B]
    shapes : shapes of the pipelines.
    occurs : how often every unit runs in all stages together for a microbatch: forward, with a gradient of its input and of its
        weights, shape (3, units, n). [1]
    phases : how often each phase of a unit runs so, with what is computed again, shape (units, phases, n). [1]
    ahead, back : how often each phase runs in one pass forward and in one backward, shape as `phases`. [1]
    recomputed : units that a backward pass runs forward again, shape (units, n).
    model_flops : operations that the model needs for a step, without any that are done again, shape (n,). [flop]
    moved : bytes that a device sends in a step inside its node and out of it, without what stages hand over, shape (2, n). [B]
    """

    kernels: Kernels
    mean: Kernels | None
    sends: Sends
    weights: Weights
    between: Between
    shapes: tuple[Shape, ...]
    occurs: Array
    phases: Array
    ahead: Array
    back: Array
    recomputed: Mask
    model_flops: Array
    moved: Array


def task_of(job: Job, layout: Layout, stack: SoftwareStack) -> Task:
    """What plans compute, send and hold."""
    kernels, even = block_kernels(job, layout, stack), job.model.even
    mean = None if even is job.model else block_kernels(dataclasses.replace(job, model=even), layout, stack)
    sends, weights, shapes = Sends.of(kernels, layout), weights_of(job, layout, stack), tuple(alike(layout, together=NATURAL))
    occurs = np.empty((3, len(kernels.units), len(layout)))
    for shape in shapes:
        counts = np.stack(row_counts(job, shape, balanced=stack.stages == "balanced")).sum(axis=1)
        occurs[..., shape.at] = (counts if counts.ndim > 2 else counts[..., None]) / layout.directions[shape.at]
    names = kernels.units
    recomputed = np.asarray(layout.full & ~ends_of(names)[:, None])
    once, none = np.ones(occurs.shape[1:]), np.zeros(occurs.shape[1:])
    # Energy of what is sent is that of ranks in the mean; their messages are those of the fullest one.
    volumes = message_bytes(kernels if mean is None else mean, layout)
    forward, inputs, held = occurs
    often = np.where(sends.backward[:, None] > 0, inputs[sends.unit], (forward + recomputed * inputs)[sends.unit])
    moved = layout.microbatches * (volumes * often).sum(axis=1) + (held * layout.directions * weights.moved).sum(axis=1)
    return Task(
        kernels=kernels, mean=mean, sends=sends, weights=weights, between=_between(job, layout, weights, stack), shapes=shapes,
        occurs=occurs, phases=_phases(occurs, names, layout, stack), ahead=_phases((once, none, none), names, layout, stack),
        back=_phases((none, once, none), names, layout, stack), recomputed=recomputed,
        model_flops=_sample_flops(job, *occurs) * layout.microbatches * layout.micro_batch * layout.dp, moved=moved / layout.pp,
    )  # fmt: skip


def _phases(passes: tuple[Array, Array, Array] | Array, names: tuple[str, ...], layout: Layout, stack: SoftwareStack) -> Array:
    """How often each phase of units runs in so many passes of them, with what a backward pass computes again. [1]

    Parameters
    ----------
    passes : forward, backward and with weights' gradients (apart from the backward ones), of every unit, each of shape (units, n).

    Returns
    -------
    ndarray, shape (units, phases, n), phases as in `crossflow.parallel.kernels`.
    """
    forward, backward, weight = passes
    inner = np.where(ends_of(names)[:, None], 0.0, backward)
    full, selective = inner * layout.full, inner * layout.selective
    counts = {
        "forward": forward + full, "end": forward + full * (not stack.early_stop), "input": backward, "weight": weight, "again": selective,
    }  # fmt: skip
    return np.stack([counts[phase] for phase in PHASES], axis=1)


def _between(job: Job, layout: Layout, weights: Weights, stack: SoftwareStack) -> Between:
    """Sizes of what goes between stages, nothing where there is one."""
    several = layout.pp > 1
    boundary = job.element * layout.micro_batch * job.tokens(job.model.tokens) / layout.cp * job.model.embedding.width
    model, trains = job.model, job.training and not job.is_frozen("embedding", None)
    table = weights.parameters[-1] if model.tied else _copied_table(model) / layout.tensor_of("embedding")
    table = table * stack.gradient_size(job.element) * trains
    return Between(
        transfer=np.where(several, boundary / layout.tp, 0.0),
        whole=np.where(layout.sequence_parallel | ~several, 0.0, boundary),
        tied=np.where(several, table, 0.0),
    )


def _copied_table(model: Transformer) -> Array | float:
    """Parameters of the embedding's table of which the last stage holds a copy, 0 where it needs none. [1]"""
    return sum((layer.count * part.table for layer in model.layers for part in layer.parts if part.holder == "apart"), 0.0)


def _sample_flops(job: Job, forward: Array, inputs: Array, weights: Array) -> Array:
    """Operations that one sample needs: forward, and as many again for each gradient; attention's backward pass takes twice. [flop]

    Of scores those count that mask and window leave.
    """
    products, backward, scores = _unit_flops(job)
    return np.asarray((products * (forward + weights) + backward * inputs + scores * (forward + 2.0 * inputs)).sum(axis=0))


@once
def _unit_flops(job: Job) -> tuple[Array, Array, Array]:
    """Operations of one sample in each unit's products, forward and for their inputs' gradients, and in its scores; shape (units, 1), or
    (units, n) where the numbers of the model differ between points. [flop]
    """
    layers = [layer for layer in job.model.layers for _ in layer.parts]
    rows = list[tuple[Array | float, ...]]()
    for unit, (_, part) in enumerate(units(job.model)):
        layer = layers[unit - 1] if 0 < unit <= len(layers) else None
        tokens = job.tokens(job.model.tokens if layer is None else layer.tokens)
        if part is job.model.head and job.task == "prefill":  # the next token's probabilities alone
            tokens = 1
        if layer is not None and not job.takes_part(layer):
            rows.append((0.0, 0.0, 0.0))
            continue
        # Keys and values of an encoder's tokens lie in the cache when a token is written.
        new = tuple(matrix for matrix in part.matrices if job.task != "decode" or matrix.over != "memory")
        products = job.model.part_flops(dataclasses.replace(part, attention=None, matrices=new), tokens)
        first = any(matrix.name == "patches" for matrix in part.matrices)  # which need no gradient of their own
        scores: Array | float = 0.0
        if part.attention is not None:
            scores = part.attention.flops(tokens, job.seen(part.attention, tokens))
        rows.append((products, products * (not first), scores))
    values = np.broadcast_arrays(*(np.atleast_1d(value) for row in rows for value in row))
    products, backward, scores_ = np.array(values, dtype=float).reshape(len(rows), 3, -1).swapaxes(0, 1)
    return products, backward, scores_
