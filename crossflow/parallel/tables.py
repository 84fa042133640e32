"""What plans compute, send and hold in a step, whatever device and network they run on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index, once
from crossflow.base.stages import stage
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.blocks import PHASES, block_program, ends_of, units
from crossflow.parallel.repeated import WHOLE, repeats
from crossflow.parallel.shapes import Between, Shape, alike, row_counts
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import NATURAL
from crossflow.parallel.weights import Weights, weights_of
from crossflow.program.collectives import OF_LAYERS
from crossflow.program.kernels import repeated
from crossflow.program.program import MessageTable, Op, Program
from crossflow.workload.job import Job
from crossflow.workload.transformer import Transformer

COLLECTIVES = (*OF_LAYERS, "host_copy")  # of steps, copies to the host with them
OF = {name: i for i, name in enumerate(COLLECTIVES)}
HIDDEN = ("weights", "pieces", "kernels", "experts", "results")  # ways of `Hiding`


@dataclass(frozen=True, kw_only=True, eq=False)
class Sends:
    """Collectives of passes.

    Attributes
    ----------
    ops : operations that send them.
    table : their sizes and groups.
    counts : equal ones of each, shape (messages, n). [1]
    collective, backward, unit : which of `COLLECTIVES` each is, whether it is of a backward pass, and its unit, shape (messages,).
    weights, pieces, kernels, experts, results : those that may run beside weight gradients, in pieces beside products, beside kernels of a
        ring, and beside another microbatch, on the way to the experts and back.
    shared : those among ranks that share a layer; ranks : of these, shape (shared, n). [1]
    """

    ops: tuple[Op, ...]
    table: MessageTable
    counts: Array
    collective: Index
    backward: Index
    unit: Index
    weights: Index
    pieces: Index
    kernels: Index
    experts: Index
    results: Index
    shared: Index
    ranks: Array

    @classmethod
    def of(cls, program: Program, names: tuple[str, ...], layout: Layout) -> Sends:
        """Collectives of a program, whose layers are the units of these names."""
        ops, messages, place = (
            [op for op in program.ops if op.message is not None],
            program.messages,
            {name: i for i, name in enumerate(names)},
        )
        groups = [one.group for one in messages if one.group is not None]
        shared = np.flatnonzero([layout.shares(group) for group in groups])
        return cls(
            ops=tuple(ops),
            table=MessageTable.of(messages, len(layout)),
            counts=repeated([op.count for op in ops], len(layout)),
            collective=np.array([OF[message.collective] for message in messages], dtype=np.intp),
            backward=np.array([op.phase != "forward" for op in ops], dtype=np.intp),
            unit=np.array([place[op.layer] for op in ops], dtype=np.intp),
            **{how: np.flatnonzero([op.hiding == how for op in ops]) for how in HIDDEN},
            shared=shared,
            ranks=repeated([groups[i].size for i in shared], len(layout)),
        )

    @property
    def exchanged(self) -> Index:
        """Those of both ways between tokens and their experts that may run beside another microbatch."""
        return np.concatenate([self.experts, self.results])

    @property
    def moved(self) -> Array:
        """Bytes that a rank sends in every message, all equal ones of it, inside its node and out of it, shape (2, messages, n). [B]"""
        return self.table.moved * self.counts


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTables:
    """What plans compute, send and hold.

    Attributes
    ----------
    units : names of the parts of the model.
    program : kernels and collectives of one of each part, of the fullest rank, for which others wait.
    mean : the same of ranks in the mean, where experts load them unevenly.
    sends : collectives of the program.
    weights : what each rank holds.
    between : sizes of what goes between stages. [B]
    shapes : shapes of the pipelines.
    occurs : how often every unit runs in all stages together for a microbatch: forward, with a gradient of its input and of its
        weights, shape (3, units, n). [1]
    phases : how often each phase of a unit runs so, with what is computed again, shape (units, phases, n). [1]
    ahead, back : how often each phase runs in one pass forward and in one backward, shape as `phases`. [1]
    recomputed : how often a backward pass runs units forward again, shape (units, n). [1]
    model_flops : operations that the model needs for a step, without any that are done again, shape (n,). [flop]
    moved : bytes that a device sends in a step inside its node and out of it, without what stages hand over, shape (2, n). [B]
    """

    units: tuple[str, ...]
    program: Program
    mean: Program | None
    sends: Sends
    weights: Weights
    between: Between
    shapes: tuple[Shape, ...]
    occurs: Array
    phases: Array
    ahead: Array
    back: Array
    recomputed: Array
    model_flops: Array
    moved: Array


@stage("program")
def tables_of(job: Job, layout: Layout, stack: SoftwareStack, kind: int | None = None) -> StepTables:
    """What plans compute, send and hold; with a `kind` of devices what the stages on these do."""
    names, program, even = tuple(name for name, _ in units(job.model)), block_program(job, layout, stack), job.model.even
    even = job.model.levelled if layout.redundant.any() else even
    mean = None if even is job.model else block_program(dataclasses.replace(job, model=even), layout, stack)
    sends, weights = Sends.of(program, names, layout), weights_of(job, layout, stack)
    recomputed = _recomputed(names, layout, stack, job.model.depth)
    shape = (len(names), len(layout))
    once, none = np.ones(shape), np.zeros(shape)
    known = StepTables(
        units=names, program=program, mean=mean, sends=sends, weights=weights, between=_between(job, layout, stack), shapes=(),
        recomputed=recomputed, occurs=np.zeros((3, *shape)), phases=none, model_flops=np.zeros(len(layout)), moved=none,
        ahead=_phases((once, none, none), recomputed, names, layout, stack),
        back=_phases((none, once, none), recomputed, names, layout, stack),
    )  # fmt: skip
    return divided_tables(known, job, layout, stack, kind)


def divided_tables(known: StepTables, job: Job, layout: Layout, stack: SoftwareStack, kind: int | None = None) -> StepTables:
    """What plans do in a step, of what is `known` of others that differ only in how layers are divided over stages."""
    names, shapes, occurs = known.units, tuple(alike(layout, together=NATURAL)), np.empty((3, len(known.units), len(layout)))
    for shape in shapes:
        rows = np.stack(row_counts(job, shape, balanced=stack.stages == "balanced"))
        counts = (rows if kind is None else rows[:, shape.rows_on(kind, rows.shape[1])]).sum(axis=1)
        occurs[..., shape.at] = (counts if counts.ndim > 2 else counts[..., None]) / layout.directions[shape.at]
    # Energy of what is sent is that of ranks in the mean; their messages are those of the fullest one.
    sends = known.sends
    volumes = (sends if known.mean is None else Sends.of(known.mean, names, layout)).moved
    forward, inputs, held = occurs
    often = np.where(sends.backward[:, None] > 0, inputs[sends.unit], (forward + known.recomputed * inputs)[sends.unit])
    moved = layout.microbatches * (volumes * often).sum(axis=1) + (held * layout.directions * known.weights.moved).sum(axis=1)
    return dataclasses.replace(
        known, shapes=shapes, occurs=occurs, phases=_phases(occurs, known.recomputed, names, layout, stack),
        model_flops=_sample_flops(job, *occurs) * layout.microbatches * layout.micro_batch * layout.dp, moved=moved / layout.housed,
    )  # fmt: skip


def _recomputed(names: tuple[str, ...], layout: Layout, stack: SoftwareStack, depth: Array | float) -> Array:
    """How often a backward pass runs units forward again, shape (units, n). [1]

    Once those that a stack or a plan says; all of them with full recomputation, or on average that share of layers which a plan says.
    """
    again: dict[str, Array] = {what: repeats(what, layout, stack) for what in WHOLE}
    rows = [again.get(name.split(".")[-1], np.zeros(1)) for name in names]
    own = np.array([np.broadcast_to(row, len(layout)) for row in rows])
    return np.where(ends_of(names)[:, None], 0.0, np.maximum(layout.recomputed(depth), own))


def _phases(
    passes: tuple[Array, Array, Array] | Array, recomputed: Array, names: tuple[str, ...], layout: Layout, stack: SoftwareStack
) -> Array:
    """How often each phase of units runs in so many passes of them, with what a backward pass computes again. [1]

    Parameters
    ----------
    passes : forward, backward and with weights' gradients (apart from the backward ones), of every unit, each of shape (units, n).
    recomputed : how often a backward pass runs units forward again, shape (units, n). [1]

    Returns
    -------
    ndarray, shape (units, phases, n), phases as in `crossflow.parallel.blocks`.
    """
    forward, backward, weight = passes
    inner = np.where(ends_of(names)[:, None], 0.0, backward)
    full, selective = inner * recomputed, inner * layout.selective
    counts = {
        "forward": forward + full, "end": forward + full * (not stack.early_stop), "input": backward, "weight": weight, "again": selective,
    }  # fmt: skip
    return np.stack([counts[phase] for phase in PHASES], axis=1)


def _between(job: Job, layout: Layout, stack: SoftwareStack) -> Between:
    """Sizes of what goes between stages, nothing where there is one."""
    several = layout.pp > 1
    boundary = job.element * layout.micro_batch * job.tokens(job.model.tokens) / layout.cp * job.model.carried
    model, trains = job.model, job.training and not job.is_frozen("embedding", None)
    table = (model.head.width * model.vocabulary if model.tied else _copied_table(model)) / layout.tensor_of("embedding")
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
    products, backward, trained, scores = _unit_flops(job)
    if job.model.adapted:
        return np.asarray((products * forward + trained * weights + backward * inputs + scores * (forward + 2.0 * inputs)).sum(axis=0))
    return np.asarray((products * (forward + weights) + backward * inputs + scores * (forward + 2.0 * inputs)).sum(axis=0))


@once
def _unit_flops(job: Job) -> tuple[Array, Array, Array, Array]:
    """Operations of one sample in each unit's products, forward, for their inputs' gradients and for those of weights that train, and in
    its scores or states; shape (units, 1), or (units, n) where the numbers of the model differ between points. [flop]
    """
    layers = [layer for layer in job.model.kinds for _ in layer.parts]
    rows = list[tuple[Array | float, ...]]()
    for unit, (_, part) in enumerate(units(job.model)):
        layer = layers[unit - 1] if 0 < unit <= len(layers) else None
        tokens = job.tokens(job.model.tokens if layer is None else layer.tokens)
        if part is job.model.head and job.task == "prefill":  # the next token's probabilities alone
            tokens = 1
        if layer is not None and not job.takes_part(layer):
            rows.append((0.0, 0.0, 0.0, 0.0))
            continue
        # Keys and values of an encoder's tokens lie in the cache when a token is written.
        new = tuple(matrix for matrix in part.matrices if job.task != "decode" or matrix.over != "memory")
        products = job.model.part_flops(dataclasses.replace(part, attention=None, ssm=None, matrices=new), tokens)
        first = any(matrix.name in ("patches", "frames") for matrix in part.matrices)  # which need no gradient of their own
        scores: Array | float = 0.0
        if part.attention is not None:
            scores = part.attention.flops(tokens, job.seen(part.attention, tokens))
            if part.attention.selection is not None:
                scores = scores + part.attention.selection.indexing(tokens, job.seen(part.attention.whole, tokens))
        if part.ssm is not None:
            scores = part.ssm.flops(tokens)
        trained = products
        if job.model.adapted:
            own = tuple(matrix for matrix in new if np.any(matrix.adapters))
            trained = job.model.part_flops(dataclasses.replace(part, attention=None, ssm=None, matrices=own), tokens)
        rows.append((products, products * (not first), trained, scores))
    values = np.broadcast_arrays(*(np.atleast_1d(value) for row in rows for value in row))
    products, backward, trained_, scores_ = np.array(values, dtype=float).reshape(len(rows), 4, -1).swapaxes(0, 1)
    return products, backward, trained_, scores_
