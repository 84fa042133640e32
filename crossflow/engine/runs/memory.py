"""Memory of a transformer's step: what the fullest device holds at its fullest moment.

What a device holds all the time are weights, gradients, the optimizer's states [1]_ and the software's buffers. What comes
and goes with a microbatch are activations [2]_. Three moments can be the fullest, and each is worked out:

``backward``
    a backward pass begins: every microbatch in flight is kept, and the last layer's gradients, or the loss's logits, appear;
``finished``
    it ends: one microbatch less, but its weights' gradients are there, if the software does not sum them one by one;
``update``
    the optimizer steps: no activations, but the copies that gathering the updated weights takes.

Every quantity is an array over design points; sizes are in bytes.

References
----------
.. [1] Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, Sec. 3.1 and 5.
.. [2] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, arXiv:2205.05198, Eq. 1-6 and Sec. 4-5.
.. [3] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, Sec. 2.2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, at_points, by_point, distinct, once, summed, wide
from crossflow.base.stages import stage
from crossflow.cost.machine import Machine
from crossflow.engine.runs.columns import KindColumns
from crossflow.hardware.architecture.model import Architecture, SecondMemory
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.activations import activations
from crossflow.parallel.blocks import adapter_parameters, ends_of, parameters, trained_parameters, type_of, units, wide_units
from crossflow.parallel.caches import cache_units, kv_cache
from crossflow.parallel.offload import MASTER, activations_on_host, kept_on_host, master_size, states_size
from crossflow.parallel.shapes import Shape, alike, chunk_layers, row_counts
from crossflow.parallel.strategy.layout import Layout, Spread
from crossflow.parallel.strategy.mesh import FARS, Type
from crossflow.parallel.strategy.schedules import pipeline_order
from crossflow.parallel.tiers import far_share
from crossflow.parallel.weights import weight_sizes
from crossflow.workload.job import Job
from crossflow.workload.transformer import Part

KINDS = ("weights", "gradients", "optimizer", "activations", "kv_cache", "buffers", "framework")
MOMENTS = ("backward", "finished", "update")
COUNTED = ("1f1b", "gpipe")  # schedules that need not be walked to know what is kept
BACKWARD, FINISHED, UPDATE = range(len(MOMENTS))
WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, CACHE, BUFFERS, FRAMEWORK = range(len(KINDS))
BRANCHES = ("up", "shared_up", "expert_up")  # products that make both branches of a gated MLP
PASSING = [ACTIVATIONS, BUFFERS]  # kinds of which moments have more than what stays


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of devices at their fullest moment.

    Attributes
    ----------
    stages : of a device of every stage, shape (kinds, stages, n), zero where a pipeline has fewer stages; kinds are `KINDS`:
        weights, gradients as they are summed, optimizer's states with the fp32 weights, activations with the gradients that
        pass back through them, keys, values and states that a service keeps for the tokens to come, buffers (gathered or copied weights
        and gradients, collectives' work space), framework (context, libraries and what the allocator holds unused). [B]
    moment : index in `MOMENTS` of the fullest moment of every stage, shape (stages, n).
    update : what tensors take while the optimizer steps, on the fullest device of that moment, shape (n,). [B]
    capacity : of one device, shape (n,). [B]
    host, host_capacity : what a device of the fullest stage keeps on its host, and its share of the host's memory, shape (n,). [B]
    far : what a device of every stage keeps on its second memory: what stays, and the cache, shape (2, stages, n). [B]
    far_capacity : of the second memory of one device, shape (n,). [B]
    capacities : of a device of every stage where stages lie on devices of several kinds, shape (stages, n), infinite where a pipeline has
        fewer stages; `capacity` is then that of the stage that has least left. [B]
    """

    stages: Array
    moment: Index
    update: Array
    capacity: Array
    host: Array
    host_capacity: Array
    far: Array
    far_capacity: Array
    capacities: Array | None = None

    @functools.cached_property
    def fullest(self) -> Index:
        """Stage whose devices hold most, or of unlike ones have least left, shape (n,)."""
        left = 0.0 if self.capacities is None else self.capacities
        return np.asarray((self.total_of_stages - left).argmax(axis=0))

    def on(self, machine: Machine, layout: Layout) -> Memory:
        """The same on devices, and hosts, with other capacities."""
        n = len(layout)
        return replace(
            self, capacity=machine.architecture.memory_capacity * np.ones(n), host_capacity=host_share(machine, layout),
            far_capacity=second_capacity(machine.architecture, n),
        )  # fmt: skip

    def on_unlike(self, capacities: Array) -> Memory:
        """The same on devices of which those of every stage have a capacity, shape (stages, n). [B]"""
        known = replace(self, capacities=capacities)
        return replace(known, capacity=np.take_along_axis(capacities, known.fullest[None], axis=0)[0])

    @functools.cached_property
    def kinds(self) -> Mapping[str, Array]:
        """Bytes of the fullest device by kind, each of shape (n,). [B]"""
        chosen = np.take_along_axis(self.stages, self.fullest[None, None], axis=1)[:, 0]
        return dict(zip(KINDS, chosen, strict=True))

    @functools.cached_property
    def total_of_stages(self) -> Array:
        """Bytes of a device of every stage, shape (stages, n). [B]"""
        return np.asarray(self.stages.sum(axis=0))

    @functools.cached_property
    def total(self) -> Array:
        """Bytes of the fullest device, shape (n,). [B]"""
        return np.asarray(np.take_along_axis(self.total_of_stages, self.fullest[None], axis=0)[0])

    @property
    def allocated(self) -> Array:
        """What tensors take at most on the fullest device, without the framework, as torch.cuda.max_memory_allocated tells. [B]"""
        return np.asarray(self.stages[:FRAMEWORK].sum(axis=0).max(axis=0))

    @property
    def spare(self) -> Array:
        """Capacity that is left, negative where a plan does not fit, shape (n,). [B]"""
        return np.asarray(self.capacity - self.total)

    @property
    def fits(self) -> Mask:
        """Whether every device has the capacity, and its host, shape (n,)."""
        return np.asarray((self.spare >= 0) & (self.host <= self.host_capacity) & (self.far_total <= self.far_capacity))

    @functools.cached_property
    def far_total(self) -> Array:
        """Bytes on the second memory of the device that keeps most there, shape (n,). [B]"""
        return np.asarray(self.far.sum(axis=0).max(axis=0))

    @property
    def lacking(self) -> Array:
        """What a device lacks, or its share of the host's memory or its second memory if that lacks more, shape (n,). [B]"""
        return np.maximum(np.maximum(-self.spare, self.host - self.host_capacity), self.far_total - self.far_capacity)

    def at(self, points: Index) -> Memory:
        """Memory of some of the points."""
        held = ((field.name, getattr(self, field.name)) for field in fields(Memory))
        taken: dict[str, Any] = {name: None if values is None else at_points(values, points) for name, values in held}
        return Memory(**taken)


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What one unit (part of a layer, embedding, head) takes on a device, each of shape (units, n). [B]

    Attributes
    ----------
    weights, gradients, optimizer : of one, after sharding.
    still : of the weights, those that adapters leave as they are, as wide as others.
    trained : weights that train in the precision that products read, before sharding over data ranks.
    whole : its weights in the precision that products read, before sharding over data ranks.
    sharded : of it, what data ranks share out, so that it is gathered.
    piece : of that, its largest matrix, all its experts together.
    reduced : of it, what other ranks hold whole too, so that its gradients are reduced.
    owned : the share of `whole` that a rank with a sharded optimizer updates.
    kept : activations that one microbatch leaves for the backward pass.
    working : activations and their gradients that a backward pass through it adds while it runs.
    largest : gradient of its largest matrix, in the precision of the weights, where it is not shared out at once.
    cache : keys, values and states of all requests of a replica.
    host_weights, host_states : weights, and optimizer's states with its fp32 weights and gradients, that the host keeps.
    far_weights, far_states, far_cache : weights, optimizer's states with its fp32 weights, and cache, on the second memory.
    staged : of the weights there, those that come into main memory before they are used.
    """

    weights: Array
    gradients: Array
    optimizer: Array
    still: Array
    trained: Array
    whole: Array
    sharded: Array
    piece: Array
    reduced: Array
    owned: Array
    kept: Array
    working: Array
    largest: Array
    cache: Array
    host_weights: Array
    host_states: Array
    far_weights: Array
    far_states: Array
    far_cache: Array
    staged: Array


@stage("memory")
def memory(job: Job, layout: Layout, machine: Machine) -> Memory:
    """Memory of the fullest device of every design point.

    Parameters
    ----------
    job : model and task. Of a task without a backward pass, weights and what one layer needs while it runs are counted.
    layout : n plans.
    machine : its device's capacity, shape (n,) or (1,), and its software's habits.
    """
    n, stack = len(layout), machine.stack
    stages, moments, update, host, far = _of_stages(job, layout, stack, machine.architecture.second)
    return Memory(
        stages=stages, moment=moments, update=update, capacity=machine.architecture.memory_capacity * np.ones(n), host=host,
        host_capacity=host_share(machine, layout), far=far, far_capacity=second_capacity(machine.architecture, n),
    )  # fmt: skip


def held_by_stages(job: Job, layout: Layout, stack: SoftwareStack) -> Array:
    """What a device of every stage holds at its fullest moment, shape (stages, n), where nothing lies on a second memory. [B]"""
    return np.asarray(_of_stages(job, layout, stack, None)[0].sum(axis=0))


def _of_stages(job: Job, layout: Layout, stack: SoftwareStack, second: SecondMemory | None) -> tuple[Array, Index, Array, Array, Array]:
    """`stages`, `moment`, `update`, `host` and `far` of `Memory`."""
    n, deepest, held = len(layout), int(layout.pp.max()), _holdings(job, layout, stack, second)
    stages, moments, update = np.zeros((len(KINDS), deepest, n)), np.zeros((deepest, n), dtype=np.intp), np.zeros(n)
    host, far = np.zeros(n), np.zeros((2, deepest if layout.far else 1, n))
    shapes = list(_told_apart(job, alike(layout, together=COUNTED), balanced=stack.stages == "balanced"))
    for shape, (state, passing, its_host, away) in zip(shapes, _pipelines(job, layout, stack, held, shapes), strict=True):
        host[shape.at] = its_host
        moment = passing.sum(axis=1).argmax(axis=0)
        moments[: shape.stages, shape.at] = moment
        update[shape.at] = (state.sum(axis=0) + passing[UPDATE].sum(axis=0)).max(axis=0)
        state[PASSING] += np.take_along_axis(passing, moment[None, None], axis=0)[0]
        framework = stack.memory.context + stack.memory.fragmentation * state.sum(axis=0)
        stages[:, : shape.stages, shape.at] = np.concatenate([state, framework[None]])
        if layout.far:
            far[:, : shape.stages, shape.at] = away
    return stages, moments, update, host, np.broadcast_to(far, (2, deepest, n))


def second_capacity(architecture: Architecture, n: int) -> Array:
    """Capacity of the second memory of a device, none where there is none, shape (n,). [B]"""
    return np.zeros(n) if architecture.second is None else np.asarray(architecture.second.capacity * np.ones(n))


def _told_apart(job: Job, shapes: Sequence[Shape], *, balanced: bool) -> Iterator[Shape]:
    """Shapes of pipelines, of interleaved ones points whose chunks all have as many layers apart from the others."""
    for shape in shapes:
        uneven = np.zeros(len(shape.at), dtype=bool)
        if shape.chunks > 1:
            sizes = chunk_layers(job, shape, balanced=balanced)
            uneven |= (sizes != sizes[0]).any(axis=0)
        yield from (replace(shape, at=shape.at[which]) for which in (uneven, ~uneven) if which.any())


def host_share(machine: Machine, layout: Layout) -> Array:
    """A device's share of its host's memory, shape (n,); infinite where nothing is known of it. [B]"""
    room = np.inf if machine.host is None else machine.host.capacity
    return np.asarray(room / np.minimum(machine.node, layout.devices))


# -------------------------------------------------------------------------------------------- weights and their kin


def _holdings(job: Job, layout: Layout, stack: SoftwareStack, second: SecondMemory | None) -> Holdings:
    """All that each unit takes."""
    rows: dict[str, list[Array]] = {}
    kept, working = activations(job, layout, stack)
    states = states_size(job, stack)
    gradient, sizes = stack.gradient_size(job.element), weight_sizes(job, layout, stack)
    there, fetched = kept_on_host(layout, "optimizer"), kept_on_host(layout, "weights")
    far, staged = {what: far_share(layout, what) for what in FARS}, np.zeros(1) if second is None else second.staged
    leave = np.maximum(there * (layout.zero >= 2), fetched)  # gradients that ranks share out are summed where the optimizer is
    for (name, part), weight in zip(units(job.model), sizes, strict=True):
        dense, expert = parameters(part, layout)
        shares = [(dense, layout.spread(type_of(part))), *([(expert, layout.spread("experts"))] if expert.any() else [])]
        shared = [sum(_shared(amount, spread, level) for amount, spread in shares) for level in (1, 2, 3)]
        trains, updated, still = shares, weight, np.zeros(len(layout))
        if job.model.adapted:  # adapters alone have gradients and states
            amounts = trained_parameters(part, layout, job.model)
            trains, updated = (
                [(amount, spread) for amount, (_, spread) in zip(amounts, shares, strict=False)],
                stack.weight_size(job.element),
            )
            held = sum(_shared(amount, spread, 3) for amount, spread in trains)
            still = (shared[2] - held) * weight * (not job.base)
            shared[:2] = [sum(_shared(amount, spread, level) for amount, spread in trains) for level in (1, 2)]
        away = sum(_shared(amount, spread, 3) * far[what] for (amount, spread), what in zip(shares, FARS[:2], strict=False)) * weight
        found = {
            "far_weights": away,
            "staged": away * staged,
            "far_states": shared[0] * far["optimizer"] * (states + master_size(job, stack)),
            "weights": shared[2] * weight * (1.0 - fetched) - away + _beside(job, part, layout, weight),
            "still": still,
            "trained": sum(amount for amount, _ in trains) * updated,
            "gradients": shared[1] * gradient * (1.0 - leave),
            "optimizer": shared[0] * (states + master_size(job, stack)) * (1.0 - there) * (1.0 - far["optimizer"]),
            "host_weights": shared[0] * fetched * weight,
            "host_states": shared[0] * there * (states + MASTER + gradient),
            "whole": (dense + expert) * weight,
            "sharded": (sharded := sum(amount * (spread.zero >= 3) for amount, spread in shares) * weight),
            "piece": (piece := np.minimum(sharded, _largest(part, layout, adapted=False, level=4) * weight)),
            "reduced": sum(amount * ((spread.data.size > 1) & (spread.zero < 3)) for amount, spread in trains) * updated,
            "owned": shared[0] * updated,
            "kept": kept[name],
            "working": working[name] + _while_used(job, stack, sharded, piece, end=bool(ends_of([name])[0])),
            "largest": _largest(part, layout, adapted=job.model.adapted, level=2) * updated,
        }
        for kind, values in found.items():
            rows.setdefault(kind, []).append(values)
    cache = kv_cache(job, layout)
    away = cache * cache_units(job) * far["cache"]
    return Holdings(**{kind: np.stack(values) for kind, values in rows.items()}, cache=cache - away, far_cache=away)


def _beside(job: Job, part: Part, layout: Layout, weight: Array) -> Array | float:
    """What the adapters of a service take beside those of one in the type of the weights, of which parameters count one. [B]"""
    if job.adapters is None:
        return 0.0
    return sum(adapter_parameters(part, layout)) * (job.adapters.slots * job.element - weight)


def _while_used(job: Job, stack: SoftwareStack, sharded: Array, piece: Array, *, end: bool) -> Array | float:
    """What is gathered of a part's weights while it computes, where single matrices are: one, the next where it is fetched ahead, and a
    gradient; of embedding and head all. [B]
    """
    if stack.sharing.unit != "matrix":
        return 0.0
    grads = job.training * stack.gradient_size(job.element) / stack.weight_size(job.element) * (not job.model.adapted)
    return (1.0 + grads) * sharded if end else (1.0 + stack.overlap.gather + grads) * piece


def _largest(part: Part, layout: Layout, *, adapted: bool, level: int) -> Array:
    """Parameters of the largest matrix on one device, all its experts together, or of the table, below a `level` of ZeRO. [1]"""
    own = type_of(part)
    kept = layout.spread(own).zero < level
    sizes = [np.asarray(part.table / layout.tensor_of(own) * kept * (not adapted))]
    for matrix in part.matrices:
        if adapted and not np.any(matrix.adapters):
            continue
        kind: Type = "experts" if matrix.routed else own
        held = matrix.parameters * matrix.share(layout.tensor_of(kind))
        if kind == "experts":
            held = held * (1.0 + layout.redundant / matrix.experts) / layout.ep
        if part.gated and level > 3 and matrix.name in BRANCHES:  # its branches are matrices of their own
            held = held / 2.0
        sizes.append(np.asarray(held * (layout.spread(kind).zero < level)))
    return np.asarray(functools.reduce(np.maximum, sizes))


def _shared(amount: Array, spread: Spread, level: int) -> Array:
    """Parameters left on a device once ranks share out what a ZeRO `level` shares: 1 states, 2 gradients, 3 weights. [1]"""
    ranks = np.where(spread.zero >= 3, spread.shards.size, spread.data.size)
    return np.asarray(amount / np.where(spread.zero >= level, ranks, 1.0))


# -------------------------------------------------------------------------------------------- pipelines


def in_flight(schedule: str, stages: int, chunks: int, microbatches: int | Array, *, every: bool = False) -> Array:
    """Microbatches whose activations each row of each stage keeps when it keeps most, shape (moments, rows of a stage, stages). [1]

    1F1B keeps the p - i of the passes that stage i runs ahead of the first backward pass, and never more than there are;
    interleaved, a stage runs 2 (p - i - 1) + (v - 1) p passes of its v chunks ahead, p microbatches of one after those of
    the one before [3]_; GPipe keeps all; of other schedules their orders are counted. There is one moment, but where chunks are
    interleaved and `every` one of a round is asked for: as many are kept at each, of other chunks. Microbatches may be those of several
    points, where no order is counted; the result has an axis of points then.

    >>> in_flight("1f1b", 4, 1, 8)[0], in_flight("1f1b", 2, 2, 8).sum(axis=1)
    (array([[4., 3., 2., 1.]]), array([[5., 3.]]))
    """
    if np.ndim(microbatches) == 0:
        if schedule not in (*COUNTED, "pipedream"):
            return pipeline_order(schedule, stages, chunks, int(microbatches)).kept().astype(float)[None]
        return in_flight(schedule, stages, chunks, np.array([float(microbatches)]), every=every)[..., 0]
    many = np.asarray(microbatches)
    if schedule == "gpipe":
        return np.tile(many, (1, chunks, stages, 1))
    later = (stages - 1.0 - np.arange(stages))[:, None]
    if chunks == 1:
        return np.asarray(np.minimum(later + 1.0, many)[None, None])
    ahead = np.minimum(2.0 * later + (chunks - 1) * stages + 1.0, many * chunks)
    back = np.arange(float(stages * chunks) if every else 1.0)[:, None, None]  # backward passes done; each lets one more forward pass begin
    back = np.minimum(back, many * chunks - ahead)
    order = np.arange(float(chunks))[:, None, None]

    def done(passes: Array, place: Array) -> Array:
        """Of so many passes, those of each chunk, which comes at its place in a round."""
        rounds, rest = np.divmod(passes, stages * chunks)
        return np.asarray(rounds[:, None] * stages + np.clip(rest[:, None] - stages * place, 0, stages))

    return np.asarray(done(ahead + back, order) - done(back, order[::-1]))


def _in_flight(layout: Layout, shape: Shape, *, every: bool) -> Array:
    """`in_flight` of points whose pipelines have one shape, shape (moments, rows of a stage, stages, n), or 1 for n."""
    many: int | Array = layout.microbatches[shape.at] if shape.schedule in COUNTED and shape.stages > 1 else shape.microbatches
    found = in_flight(shape.schedule, shape.stages, shape.chunks, many, every=every)
    return found if np.ndim(many) else found[..., None]


@dataclass(frozen=True, kw_only=True, eq=False)
class _StageKinds:
    """Kinds of stages of pipelines of several shapes, as columns: what each passes, shape (1, units, columns). [1]"""

    columns: KindColumns
    forward: Array
    weights: Array
    passed: Array  # units that keep or need activations
    present: Array  # units whose weights are there
    chunks: tuple[Array, ...]  # of every shape `passed` of its rows, shape (rows of a stage, kinds, units), or with a last axis of points

    @classmethod
    def of(cls, job: Job, stack: SoftwareStack, shapes: Sequence[Shape]) -> _StageKinds:
        """Of pipelines of shapes; an encoder that read the prompts of what is decoded stays."""
        kinds, counted = list[tuple[Index, Index]](), list[Array]()
        for shape in shapes:
            jobs = (job, job.reading) if job.task == "decode" else (job, job)
            both = np.array([row_counts(one, shape, balanced=stack.stages == "balanced") for one in jobs])
            rows = both.reshape(6, -1, shape.stages, *both.shape[3:])
            kinds.append(distinct(np.moveaxis(rows, 2, -1).reshape(-1, shape.stages)))
            counted.append(rows[:, :, kinds[-1][0]])
        columns = KindColumns.of_kinds(shapes, kinds)
        passing = [np.maximum(one[1], one[2]) if job.training else one[0] for one in counted]
        forward, weights, present = (columns.counted([one[i].sum(axis=0) for one in counted]) for i in (0, 2, 3))
        passed = columns.counted([one.sum(axis=0) for one in passing])
        return cls(columns=columns, forward=forward, weights=weights, passed=passed, present=present, chunks=tuple(passing))


def _pipelines(
    job: Job, layout: Layout, stack: SoftwareStack, held: Holdings, shapes: Sequence[Shape]
) -> list[tuple[Array, Array, Array, Array]]:
    """Tensors of pipelines of each shape, by kind and stage: those that stay; those of moments, of kinds that are `PASSING`; those on the
    host; and those on the second memory, what stays and the cache. [B]
    """
    kinds = _StageKinds.of(job, stack, shapes)
    columns, at, trained, present = kinds.columns, kinds.columns.points, kinds.weights, kinds.present
    held = _untied(job, layout, held) if job.model.tied else held
    here = replace(held, **{field.name: wide(getattr(held, field.name), len(layout)).take(at, axis=-1) for field in fields(Holdings)})

    def most(values: Array, of: Array) -> Array:
        """Largest of the units that a stage has, shape (columns,)."""
        return np.asarray(np.where(of[0] > 0, values, 0.0).max(axis=0))

    state = np.zeros((FRAMEWORK, 1, len(at)))
    state[WEIGHTS] = summed(present, here.weights)
    if job.training and job.operand < job.element:
        state[WEIGHTS] -= _kept_narrow(job, stack, here, present, trained)
    state[GRADIENTS], state[OPTIMIZER] = summed(trained, here.gradients), summed(trained, here.optimizer)
    state[CACHE], staged = summed(present, here.cache), 2.0 * most(here.staged, kinds.forward)
    state[BUFFERS] = _buffers(job, layout, stack, here, at, present, trained) + staged
    copied = np.isin(layout.zero[at], (1, 2)) & _repeated(job, layout)[at] & stack.memory.gathered_copy
    beside = np.array([
        most(here.largest, trained), (summed(trained, here.trained) * stack.memory.late_gradients)[0],
        np.where(copied, summed(trained, here.trained + here.owned), 0.0)[0],
    ])  # fmt: skip
    host = summed(present, here.host_weights) + summed(trained, here.host_states)
    alone, working = most(here.kept, kinds.passed), most(here.working, kinds.passed)
    each = np.concatenate([state[:, 0], beside, host, np.array([working, alone]), _far(here, present, trained)[:, 0]])
    return [_pipeline(job, layout, stack, held, shape, kinds, i, columns.spread(i, each)) for i, shape in enumerate(shapes)]


def _pipeline(
    job: Job, layout: Layout, stack: SoftwareStack, held: Holdings, shape: Shape, kinds: _StageKinds, number: int, each: Array
) -> tuple[Array, Array, Array, Array]:
    """The same of one shape, from what `each` stage holds but for the activations of microbatches, shape (figures, stages, n)."""
    state, beside, (host, working, alone), away = np.split(each, np.cumsum([FRAMEWORK, len(MOMENTS), 3]))
    sizes = chunk_layers(job, replace(shape, at=shape.at[:1]), balanced=stack.stages == "balanced")
    every = bool((sizes != sizes[0]).any())  # chunks of other layers: which are kept matters
    at, flight, which, passed = shape.at, _in_flight(layout, shape, every=every), kinds.columns.which[number], kinds.chunks[number]
    _, chunks, stages, _ = flight.shape
    if shape.schedule == "pipedream":  # weights that a microbatch passed forward wait for its backward pass; otherwise there is one version
        state[WEIGHTS] *= flight.max(axis=(0, 1))
    rows = passed.reshape(-1, *passed.shape[2:])
    of_chunk = summed(rows, at_points(held.kept, at)).reshape(chunks, -1, len(at)).take(which, axis=1)
    rounds = (flight * of_chunk).sum(axis=1)
    ahead = rounds.max(axis=0)
    running = ahead + working  # a backward pass begins
    # The chunk whose backward pass is the last of a microbatch is the stage's first.
    left = np.maximum(ahead - of_chunk[0], 0.0)
    if len(flight) > 1:  # of the last chunk first, a round of microbatches each
        present = (rows if rows.ndim > 2 else rows[..., None]) > 0
        largest = np.where(present, at_points(held.working, at), 0.0).max(axis=1).reshape(chunks, -1, len(at)).take(which, axis=1)
        passing = chunks - 1 - np.arange(len(flight)) // stages % chunks
        running, left = (rounds + largest[passing]).max(axis=0), (rounds - of_chunk[passing]).max(axis=0)
    if "activations" in layout.offload:  # two units stay: one that is copied, and the next
        sent = (activations_on_host(layout, job.model.depth) * np.ones(len(layout)))[at]
        host = host + sent * ahead
        stays = np.where(sent > 0, 2.0 * alone + (1.0 - sent) * ahead, np.inf)
        running, left = np.minimum(running, stays + working), np.minimum(left, np.maximum(stays - of_chunk[0], 0.0))
    moments = np.stack([np.array([running, left, np.zeros_like(left)]), beside], axis=1)
    return state, moments, host.max(axis=0), away


def _kept_narrow(job: Job, stack: SoftwareStack, here: Holdings, present: Array, trained: Array) -> Array:
    """Weights of every stage that are kept in their narrow copies alone: those that train, those that do not, or none. [B]"""
    every, frozen = job.dtype in stack.memory.narrow_weights, stack.memory.narrow_frozen
    if job.model.adapted:
        return np.asarray(summed(present, _narrow(job) * here.still) * (every or frozen))
    moving, still = summed(trained, _narrow(job) * here.weights), summed(present - trained, _narrow(job) * here.weights)
    return np.asarray(moving * every + still * frozen)


def _far(here: Holdings, present: Array, trained: Array) -> Array:
    """What devices of every stage keep on their second memory: what stays, and the cache, shape (2, stages, n). [B]"""
    return np.array([summed(present, here.far_weights) + summed(trained, here.far_states), summed(present, here.far_cache)])


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What devices of one plan hold as a step passes. [B]

    Attributes
    ----------
    still : of every stage what stays all the time, with the framework's, shape (stages,).
    kept, working : of every row the activations that a microbatch leaves, and what its backward pass (its forward pass, where nothing
        trains) adds while it runs, with what the allocator holds beside, shape (rows,).
    finished, update : of every stage what is there beside for a moment when a backward pass ends, and while the optimizer steps,
        shape (stages,).
    """

    still: Array
    kept: Array
    working: Array
    finished: Array
    update: Array


def ledger(job: Job, layout: Layout, machine: Machine, shape: Shape) -> Ledger:
    """Ledger of a single plan."""
    stack = machine.stack
    held = _holdings(job, layout, stack, machine.architecture.second)
    forward, inputs, weights = row_counts(job, shape, balanced=stack.stages == "balanced")
    passed = np.maximum(inputs, weights) if job.training else forward
    ((state, moments, *_),) = _pipelines(job, layout, stack, held, [shape])
    kept, working = (passed @ held.kept)[:, 0], np.where(passed > 0, held.working[:, 0], 0.0).max(axis=1)
    if "activations" in layout.offload:  # two units stay while a pass runs, or all that the host has
        flight = in_flight(shape.schedule, shape.stages, shape.chunks, shape.microbatches)[0]
        ahead = (flight.ravel() * kept).reshape(flight.shape).sum(axis=0)
        away = float(np.ravel(activations_on_host(layout, job.model.depth))[0])
        stays = np.minimum(2.0 * np.where(passed > 0, held.kept[:, 0], 0.0).max(axis=1), np.resize(away * ahead, len(kept)))
        kept, working = (1.0 - away) * kept, working + stays
    backward, finished, update = moments[:, PASSING.index(BUFFERS), :, 0]
    more = 1.0 + float(stack.memory.fragmentation[0])
    return Ledger(
        still=float(stack.memory.context[0]) + more * state.sum(axis=0)[:, 0], kept=more * kept,
        working=more * (working + np.resize(backward, len(working))), finished=more * finished, update=more * update,
    )  # fmt: skip


_OF_WEIGHTS = (
    "weights", "gradients", "optimizer", "still", "trained", "whole", "sharded", "piece", "reduced", "owned", "host_weights", "host_states",
    "far_weights", "far_states", "staged",
)  # fmt: skip


def _untied(job: Job, layout: Layout, held: Holdings) -> Holdings:
    """Holdings where a device that has the embedding too does not hold the table again for a tied head."""
    table = sum(matrix.k * matrix.n for matrix in job.model.head.matrices if matrix.name == "vocabulary")
    own = table / layout.tensor_of("embedding") / np.maximum(sum(parameters(job.model.head, layout)), 1.0) * (layout.pp == 1)

    def without(values: Array) -> Array:
        return np.concatenate([np.broadcast_to(values[:-1], (len(values) - 1, len(layout))), values[-1:] * (1.0 - own)])

    return replace(held, **{kind: without(getattr(held, kind)) for kind in _OF_WEIGHTS})


def _buffers(job: Job, layout: Layout, stack: SoftwareStack, here: Holdings, at: Index, present: Array, trained: Array) -> Array:
    """Buffers that stay through all of a step, of every stage. [B]

    Copies of gradients in buckets, weights of sharded layers that are gathered (two where the next is fetched ahead) with
    the gradients of one, embedding and head among them all the time, if not single matrices are gathered; low-precision copies of
    weights; tensors of a microbatch that collectives of a tensor group gather into; work space of libraries.
    """
    habits, layers = stack.memory, _layers(job)
    buckets = summed(trained, here.reduced) * habits.buckets
    there = layers @ by_point(present) > 0  # layers of which a stage has any
    single, at_ends = stack.sharing.unit == "matrix", _ends(job)

    def at_once(part: Array | float) -> Array:
        """What is gathered at once of a part of the weights, of the layer, or matrix, that has most of it."""
        found = (layers[..., None] * part * here.piece).max(axis=1) if single else layers @ (part * here.sharded)
        return np.asarray(np.where(there, found, 0.0).max(axis=1))

    stays = float(not single)  # else they come and go with what the part needs while it runs
    largest, ends = stays * at_once(1.0), stays * summed(present[:, at_ends], here.sharded[at_ends])
    weight = stack.weight_size(job.element)
    grads = job.training * stack.gradient_size(job.element) / weight
    gathered = ((2.0 if stack.overlap.gather else 1.0) + grads * (not job.model.adapted)) * largest + ends
    if job.model.adapted:
        gathered = gathered + grads * np.where(there, layers @ (here.trained * (here.sharded > 0)), 0.0).max(axis=1)
        gathered = gathered + _widened(job, layout)[at]
    apart = (layout.zero[at] == 2) & _repeated(job, layout)[at]
    gathered = gathered + np.where(apart, grads * np.where(there, layers @ here.trained, 0.0).max(axis=1), 0.0)
    low, whole = np.zeros(len(at)), here.whole - here.sharded
    # Narrow copies, as products read them forward and, transposed, backward.
    if job.training and job.operand < job.element and not job.base:
        narrow = _narrow(job)
        gathers = at_once(narrow)
        kept, one = summed(present, narrow * whole), np.where(there, layers @ (narrow * whole), 0.0).max(axis=1)
        transposed = kept if habits.transposed_weights or job.dtype != "fp8" else one
        low = low + job.operand / weight * (2.0 * gathers + kept + transposed)
    if weight > job.element and not job.base:  # autocast keeps its casts to the end of a pass; those of gathered weights go with them
        low = low + (largest + summed(present, whole)) * (job.element / weight)
    width = functools.reduce(np.maximum, (layer.parts[0].width * job.tokens(layer.tokens) for layer in job.model.kinds))
    space = habits.workspaces * job.element * (layout.micro_batch / layout.cp * width)[at]
    return np.asarray(buckets + gathered + low + np.where(layout.gathers(_kinds(job))[at], space, 0.0) + habits.library)


def _widened(job: Job, layout: Layout) -> Array:
    """The largest matrix that a product widens before it reads it, of experts one, shape (n,). [B]"""
    matrices = [(matrix, "experts" if matrix.routed else type_of(part)) for _, part in units(job.model) for matrix in part.matrices]
    sizes = [matrix.k * matrix.n * matrix.share(layout.tensor_of(kind)) for matrix, kind in matrices if matrix.adapted]
    largest: Array = functools.reduce(np.maximum, sizes, np.zeros(len(layout)))
    return largest * job.element * job.widens_base


def _repeated(job: Job, layout: Layout) -> Mask:
    """Whether any weights lie on several ranks, shape (n,)."""
    return np.asarray(np.logical_or.reduce([layout.spread(kind).data.size > 1 for kind in _kinds(job)]))


@once
def _kinds(job: Job) -> frozenset[Type]:
    """Layer types of which a model has any."""
    parts = [part for _, part in units(job.model)]
    return frozenset(type_of(part) for part in parts) | {"experts" for part in parts if part.routing}


@once
def _narrow(job: Job) -> Array:
    """1 for units whose products are narrow where the job's are, shape (units, 1)."""
    wide = wide_units(job.model)
    return np.array([[float(name not in wide)] for name, _ in units(job.model)])


@once
def _layers(job: Job) -> Array:
    """Which units make up a layer of each kind, embeddings and heads left out, shape (layers, units)."""
    names = [name for name, _ in units(job.model)]
    return np.array([[name.startswith(f"{i}.") for name in names] for i in range(len(job.model.kinds))], dtype=float) * ~_ends(job)


@once
def _ends(job: Job) -> Mask:
    """Which units are embeddings and heads, shape (units,)."""
    return ends_of([name for name, _ in units(job.model)])
