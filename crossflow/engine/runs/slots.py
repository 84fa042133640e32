"""Slots of a transformer's pipeline, and what every stage does after its last microbatch.

Every overlap is the longest path of in-order streams: unit by unit where weights travel beside a pass (`crossflow.engine.runs.sharded`),
in closed form where pieces are alike (`flow`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, at_points, by_point, by_points, distinct, summed
from crossflow.cost.handovers import Handed, HandedRows
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps
from crossflow.cost.shared_links import USES, LinkStream, longer
from crossflow.engine.runs.columns import KindColumns
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

    # how often every unit occurs in a row: forward, with a gradient of its input, of its weights, and of the second those whose weights are
    # frozen, shape (4, rows, units). [1]
    often: Array
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
    held: Array  # time that a row's stage is held up by what it hands over, forward and backward, shape (2, rows, n)

    def lines(self, handed: HandedRows) -> Array:
        """What stages sum up of their rows, shape (lines, rows, n): see `StageTimes`."""
        both = (each.sum(axis=0) for each in (self.waits, self.behind, self.met))
        busy = self.busy.reshape(-1, *self.grown.shape)
        return np.concatenate([np.array([*both, self.grown, *handed.parts, *self.waits, self.renewing, self.final]), busy])


@dataclass(frozen=True, kw_only=True, eq=False)
class RowPasses:
    """What rows of pipelines pass, and how their slots follow each other.

    Attributes
    ----------
    often : how often every unit occurs in a row: forward, and with a gradient of its input and of its weights, shape (3, rows, units) or
        (3, rows, units, n). [1]
    apart : the same of parts of groups of layers, shape (3, rows, parts) or (3, rows, parts, n). [1]
    chunks : rows of a stage, one number or one for every point. [1]
    split : whether gradients of weights are slots of their own.
    at_once : whether weights are updated after each pass (PipeDream).
    """

    often: Array
    apart: Array
    chunks: int | Array
    split: bool
    at_once: bool

    @classmethod
    def of(cls, job: Job, machine: Machine, shape: Shape) -> RowPasses:
        """Of pipelines of one shape."""
        counted = functools.partial(row_counts, job, shape, balanced=machine.stack.stages == "balanced")
        return cls(
            often=np.array(counted()), apart=np.array(counted(apart=True)), chunks=shape.chunks, split=is_split(shape),
            at_once=is_updated_at_once(shape),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class RowColumns:
    """Rows of pipelines of several shapes whose slots are of the same kinds, as columns."""

    columns: KindColumns
    rows: RowPasses  # arrays of shape (..., 1, columns)
    handed: HandedRows  # arrays of shape (..., 1, columns)

    @classmethod
    def of(cls, job: Job, machine: Machine, shapes: Sequence[Shape], handed: Sequence[Handed]) -> RowColumns:
        """Of what rows pass and hand over."""
        each = [RowPasses.of(job, machine, shape) for shape in shapes]
        columns = KindColumns.of_kinds(shapes, [_alike(one, other) for one, other in zip(each, handed, strict=True)])

        def counted(name: str) -> Array:
            counts = [getattr(one, name)[:, first] for one, first in zip(each, columns.first, strict=True)]
            return np.array([columns.counted([one[kind] for one in counts]) for kind in range(len(counts[0]))])

        chunks = np.repeat([float(shape.chunks) for shape in shapes], np.diff(columns.begins))
        parts = [one.rows(first) for one, first in zip(handed, columns.first, strict=True)]
        given = {field.name: columns.joined([getattr(part, field.name) for part in parts]) for field in fields(HandedRows)}
        return cls(
            columns=columns,
            rows=replace(each[0], often=counted("often"), apart=counted("apart"), chunks=chunks),
            handed=HandedRows(**given),
        )


def _alike(rows: RowPasses, handed: Handed) -> tuple[Index, Index]:
    """The first of every kind of rows of a shape, and of which kind each is."""
    distance = distinct(np.concatenate([handed.sent, handed.crosses], axis=1).T)[1]  # of every boundary
    counts = np.moveaxis(np.concatenate([rows.often, rows.apart], axis=2), 1, -1)
    onwards = np.append(distance, -1)[handed.boundaries.onwards]
    return distinct(np.concatenate([counts.reshape(-1, counts.shape[-1]), onwards]))


def slots_of(job: Job, machine: Machine, sums: UnitSums, rows: RowPasses, handed: HandedRows) -> SlotTimes:
    """Slots of rows; `sums` are those of their points, and `handed` is what their passes hand over."""
    stack, training, split = machine.stack, job.training, rows.split
    forward_of, input_of, weight_of = rows.often
    frozen_of = np.maximum(input_of - weight_of, 0.0)
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
        forward, backward = _beside_weights(job, machine, sums, rows.apart, (plain_f, plain_b), split=split)
    counts, travels = (forward_of, input_of, weight_of), stack.overlap.pipeline
    idle = np.array([plain_f - gpu_f, (plain_b - gpu_i) * float(training)])
    found = meetings_of(sums, counts, (plain_f, plain_b), idle, (forward, backward), handed if travels else None)
    forward, backward = forward + found.weights[0], backward + found.weights[1]
    if copied is not None:  # each direction of the bus is a stream: activations and gradients down, weights and activations up
        forward = np.maximum(forward, np.maximum(summed(forward_of, copied.activations), summed(forward_of, copied.fetched)))
        upwards = summed(input_of, copied.activations + copied.fetched)
        backward = np.maximum(backward, np.maximum(upwards, summed(weight_of, copied.stored)) * float(training))
    held = found.handing if travels else handed.onwards
    busy_f = forward + found.hidden[0] + float(stack.host.microbatch[0]) / rows.chunks + held[0]
    grown, renewing, update = np.zeros_like(backward), np.zeros_like(backward), np.zeros(1)
    if rows.at_once:  # weights are updated after each pass, gradients reduced before that, or beside the next one
        update = summed(weight_of, sums.update)
        grown, renewing = _at_once(machine, sums, counts, (forward, backward), idle)
    busy = [busy_f]
    if training:
        busy += [backward + found.hidden[1] + grown + update + renewing + held[1], *([plain_w] if split else [])]
    return SlotTimes(
        often=np.array([*counts, frozen_of]), waits=waits,
        gpu=np.concatenate([gpu_f, gpu_i, *([gpu_w] if split else [])]),
        host=np.concatenate([host_f, host_i, *([host_w] if split else [])]),
        behind=np.array([forward - plain_f, backward - plain_b]), grown=grown, renewing=renewing, busy=np.concatenate(busy),
        final=plain_w if split else backward, met=found.handing + found.hidden, shared=found.weights + found.hidden,
        held=held,
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


def is_updated_at_once(shape: Shape) -> bool:
    """Whether weights are updated after each pass (PipeDream)."""
    return shape.schedule == "pipedream"


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
        (3, rows, parts), or (3, rows, parts, n) where it differs. [1]
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
    passing = functools.partial(sharded_passes, unit_groups(job.model), whole=machine.stack.sharing.unit == "layer")
    gathered, reduced, travels = (np.asarray(each.any(axis=0)) for each in (gather, reduce, arrive + leave))
    alone = ~gathered & reduced & (machine.stack.overlap.data != ahead)  # gradients that are shared out where weights are not (ZeRO 2)
    given, found = (units, tuple(plain), first[places]), np.array(np.broadcast_arrays(*plain))
    for here, way in ((travels & ~alone, ahead), (alone, not ahead)):  # where nothing travels passes take what they take
        points = np.flatnonzero(here)
        if len(points) == len(travels):
            return passing(often, *given, ahead=way)
        if len(points):
            counts = often if often.shape == often.shape[:3] else at_points(often, points)
            found[..., points] = passing(counts, *by_points(given)(points), ahead=way)
    return found[0], found[1]


def by_stage(values: Array, stages: int) -> Array:
    """Sums over the rows of every stage, shape (..., stages, n)."""
    return np.asarray(values.reshape(*values.shape[:-2], -1, stages, values.shape[-1]).sum(axis=-3))


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """What one slot of every kind and row of a stage takes, all together. [s]"""

    often: Array  # how often a stage passes every unit, as of `SlotTimes`, shape (4, stages, units) or (4, stages, units, n). [1]
    # sums over rows, shape (lines, stages, n): of both directions what waits, is behind, and met; grown; the parts of what is handed over;
    # what waits forward and backward; renewing; final; and slots of every kind
    lines: Array

    @classmethod
    def of(cls, slots: SlotTimes, handed: HandedRows, stages: int) -> StageTimes:
        """Of pipelines of so many stages."""
        often = slots.often.reshape(len(slots.often), -1, stages, *slots.often.shape[2:]).sum(axis=1)
        return cls(often=often, lines=by_stage(slots.lines(handed), stages))

    @property
    def decided(self) -> Array:
        """What the parts of a step are made of, shape (6, stages, n): all but what only its end needs."""
        return self.lines[:6]

    @property
    def waits(self) -> Array:
        """What the host takes longer than the device, forward and backward, shape (2, stages, n)."""
        return self.lines[6:8]

    @property
    def renewing(self) -> Array:
        """See `SlotTimes`, shape (stages, n)."""
        return np.asarray(self.lines[8])

    @property
    def final(self) -> Array:
        """See `SlotTimes`, shape (stages, n)."""
        return np.asarray(self.lines[9])

    @property
    def busy(self) -> Array:
        """Slots of every kind, shape (kinds, stages, n)."""
        return self.lines[10:]


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

    def each(self, work: Callable[[Array], Array]) -> Closing:
        """With all arrays as `work` makes them."""
        return Closing(**{field.name: work(getattr(self, field.name)) for field in fields(Closing)})


def closing_of(machine: Machine, sums: UnitSums, rows: RowPasses, stages: StageTimes) -> Closing:
    """End of a step of stages; `sums` are those of their points."""
    stack, copied = machine.stack, sums.copies
    forward, inputs, trained, _ = stages.often
    final, none = stages.final, np.zeros_like(stages.final)
    layers = np.maximum(by_point(forward)[:, 1:-1].sum(axis=1), 1.0)
    lowered = none if copied is None else summed(trained, copied.gradients)
    volume = summed(trained, sums.reduce)
    beside = volume + lowered
    if stack.overlap.data:
        passing = LinkStream(time=final, use=np.zeros((USES, 1, 1)))
        if not rows.split:
            passing = _passing(1, inputs, sums, final, stages.waits[1])
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
        regather=_renewing(machine, sums, rows, stages),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ShapeSlots:
    """Slots of points whose pipelines have one shape, and what follows them; arrays of shape (..., rows, n) or (..., stages, n)."""

    shape: Shape
    handed: Handed
    slots: SlotTimes
    times: StageTimes
    closing: Closing

    @classmethod
    def of(cls, job: Job, machine: Machine, sums: UnitSums, shape: Shape, handed: Handed) -> ShapeSlots:
        """On devices of one kind; `sums` are those of the shape's points."""
        rows, given = RowPasses.of(job, machine, shape), handed.rows()
        slots = slots_of(job, machine, sums, rows, given)
        times = StageTimes.of(slots, given, shape.stages)
        return cls(shape=shape, handed=handed, slots=slots, times=times, closing=closing_of(machine, sums, rows, times))

    def reductions(self, steps: Steps) -> Array:
        """Reductions of gradients of every stage after its last microbatch, by collective, shape (collectives, stages, n). [s]"""
        return summed(self.times.often[2], steps.state.reduce)


def _renewing(machine: Machine, sums: UnitSums, rows: RowPasses, stages: StageTimes) -> Array:
    """Gathers of updated weights that the next step, or with PipeDream the next pass, waits for, shape (stages, n). [s]"""
    if rows.at_once:
        return stages.renewing
    gathers = summed(stages.often[2], sums.regather)
    if not machine.stack.overlap.optimizer:
        return gathers
    first = stages.busy[0]  # passes forward of the next step, which hide them
    passing = _passing(0, stages.often[0], sums, first, stages.waits[0])
    return longer(passing, LinkStream(time=gathers, use=summed(stages.often[2], sums.regather_use)), np.maximum(first, gathers))


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
