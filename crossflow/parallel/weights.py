"""Weights on devices under plans: how many each holds and updates, and the collectives that keep replicas and shards in step.

Replicas may reduce gradients in buckets: as many tensors as fill one, in the order in which their gradients are ready [1]_.

References
----------
.. [1] Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, arXiv:2006.15704, Sec. 3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossflow.base.arrays import Array, Index, divide, once, share_of
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.blocks import parameters, trained_parameters, type_of, unit_places, unit_starts, units, wide_units
from crossflow.parallel.strategy.layout import Layout, Spread
from crossflow.program.collectives import Collective, sent_bytes
from crossflow.program.groups import Group
from crossflow.workload.job import Job
from crossflow.workload.transformer import Matrix, Part, Transformer

WeightRole = Literal["reduce", "gather", "regather"]


@dataclass(frozen=True, kw_only=True)
class WeightMessage:
    """A collective among ranks that hold the same weights, of `size` bytes for every unit, shape (units, n). [B]

    Its `role` is to reduce gradients, to gather sharded weights for a pass, or to gather updated weights. One of `sharded`
    weights, or gradients, comes with every microbatch, others with every update.
    """

    collective: Collective
    size: Array
    whole: Array  # the message of which these bytes are a part, as of a whole layer, or the mean of those in which they go. [B]
    group: Group
    role: WeightRole
    sharded: bool

    @property
    def share(self) -> Array:
        """Messages that each unit's bytes make, or their share of one. [1]"""
        return share_of(self.size, self.whole)

    def rounds(self, layout: Layout) -> Array:
        """How often a step takes it: sharded weights are gathered twice a microbatch, forward and backward. [1]"""
        return layout.microbatches * (2.0 if self.role == "gather" else 1.0) if self.sharded else layout.updates


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of every unit, whatever device and network they are on; arrays of shape (units, n)."""

    parameters: Array  # of one layer, embedding or head, on one device, before sharding over data ranks. [1]
    owned: Array  # of these, those whose optimizer's states the device keeps. [1]
    messages: tuple[WeightMessage, ...]  # collectives that keep them in step
    moved: Array  # bytes that a device sends for them in a step inside its node and out of it, shape (2, units, n). [B]


def weight_sizes(job: Job, layout: Layout, stack: SoftwareStack) -> Array:
    """Size of a weight of every unit, shape (units, 1): a service keeps those of narrow layers narrow, embedding and head wide. [B]

    With adapters it is the mean of what they leave as it is, which may be narrow, and of what trains, shape (units, n).
    """
    wide = wide_units(job.model)
    sizes = (job.element if name in wide else job.weight_of(part.stored) for name, part in units(job.model))
    found = np.array([[stack.weight_size(size)] for size in sizes])
    if not (job.base and job.model.adapted):
        return found
    rows = []
    for (name, part), (size,) in zip(units(job.model), found, strict=True):
        base, vectors = job.base_size(wide=name in wide) or size, part.vectors
        held = np.maximum(sum(parameters(part, layout)), 1.0)
        trained = sum(trained_parameters(part, layout, job.model))
        rows.append(base + (size - base) * (trained + vectors) / held)
    return np.stack(rows)


def weights_of(job: Job, layout: Layout, stack: SoftwareStack) -> Weights:
    """Weights of all plans."""
    parts = [part for _, part in units(job.model)]
    dense, expert, spreads = _spread_out(job, layout, stack, [parameters(part, layout) for part in parts])
    trained = spreads
    if job.model.adapted:
        _, _, trained = _spread_out(job, layout, stack, [trained_parameters(part, layout, job.model) for part in parts])
    owned, moved, messages = np.zeros(dense.shape), np.zeros((2, *dense.shape)), list[WeightMessage]()
    for spread, amount in spreads.items():
        trains = trained.get(spread, np.zeros_like(amount))
        owned += _owned(spread, trains)
        messages += _messages(job, layout, stack, spread, amount, trains)
    messages += _repeated_heads(parts, layout, stack.gradient_size(job.element), adapted=job.model.adapted)
    for message in messages:
        moved += sent_bytes(message.collective, message.size * message.rounds(layout), message.group.size, message.group.per_node)
    return Weights(parameters=dense + expert, owned=owned, messages=tuple(messages), moved=moved)


def _spread_out(
    job: Job, layout: Layout, stack: SoftwareStack, amounts: Sequence[tuple[Array, Array]]
) -> tuple[Array, Array, dict[Spread, Array]]:
    """So many parameters of every unit, all tokens' and experts', and which of them ranks hold in which way, each (units, n). [1]"""
    parts = [part for _, part in units(job.model)]
    dense, expert = (np.stack(values) for values in zip(*amounts, strict=True))
    if job.model.tied and dense[-1].any():  # a tied table that embedding and head hold on one device is one
        table = job.model.head.width * job.model.vocabulary / layout.tensor_of("embedding")
        dense[-1] -= np.where(layout.pp == 1, table, 0.0)
    spreads: dict[Spread, Array] = {}
    for kind in {type_of(part): None for part in parts}:
        mine = np.array([[type_of(part) == kind] for part in parts])
        spread = layout.spread(kind)
        spreads[spread] = spreads.get(spread, 0.0) + dense * mine
    if expert.any():
        spread, common = layout.spread("experts"), layout.spread("mlp")
        joined = np.where(common.like(spread), expert, 0.0) if stack.sharing.unit == "layer" else np.zeros(1)
        spreads[common] = spreads[common] + joined
        spreads[spread] = expert - joined
    return dense, expert, spreads


def _whole(size: Array, model: Transformer, layout: Layout) -> Array:
    """Bytes of the layer that each unit is a part of, shape (units, n); embedding and head are one where they share a table. [B]"""
    starts = unit_starts(model)
    whole = np.zeros_like(size)
    np.add.at(whole, starts, size)
    whole = whole[starts]
    shared = np.where(model.tied & (layout.pp == 1), size[0] + size[-1], 0.0)
    whole[[0, -1]] = np.maximum(whole[[0, -1]], shared)
    return np.asarray(whole)


def _owned(spread: Spread, amount: Array) -> Array:
    """Of so many parameters, those whose optimizer's states a device keeps. [1]"""
    return np.asarray(amount / np.where(spread.zero >= 1, np.where(spread.zero >= 3, spread.shards.size, spread.data.size), 1.0))


def _repeated_heads(parts: Sequence[Part], layout: Layout, gradient: float, *, adapted: bool) -> list[WeightMessage]:
    """Sums of the gradients of key and value heads over the neighbouring tensor ranks that repeat them, of what each rank owns.

    Queries of every rank add to them; GQAQKVColumnParallelLinear of NeuronX Distributed sums them so.
    """
    ranks, group = layout.tensor_of("attention"), layout.sharing("attention")
    found = []
    trained = [[m for m in part.matrices if np.any(m.kv_heads) and (not adapted or np.any(m.adapters))] for part in parts]
    several = {np.asarray(m.kv_heads).tobytes(): m.kv_heads for ones in trained for m in ones}
    for heads in several.values():
        copies = np.ceil(ranks / heads)
        if (copies > 1).any():
            mine = [[m for m in ones if np.array_equal(m.kv_heads, heads)] for ones in trained]
            held = np.stack(np.broadcast_arrays(*(sum(((m.k + m.bias) * m.kv_head for m in ones), np.zeros(1)) for ones in mine)))
            size = gradient * _owned(layout.spread("attention"), np.where(copies > 1, held, 0.0))
            among = layout.group(group.stride, copies)
            found.append(WeightMessage(collective="all_reduce", size=size, whole=size, group=among, role="reduce", sharded=False))
    return found


def _messages(job: Job, layout: Layout, stack: SoftwareStack, spread: Spread, amount: Array, trained: Array) -> list[WeightMessage]:
    """All collectives that keep `amount` parameters of every unit in step, of which some are `trained`, shape (units, n) each, as far as
    any plan has them.
    """
    weight, gradient = weight_sizes(job, layout, stack), stack.gradient_size(job.element)
    updated = np.asarray(stack.weight_size(job.element)) if job.model.adapted else weight
    sharded, late, early = spread.zero >= 3, spread.zero == 1, spread.zero == 2
    shared = late | early
    found: list[WeightMessage] = []

    def add(collective: Collective, size: Array, group: Group, role: WeightRole, *, sharded: bool = False) -> None:
        whole, bucket = size, stack.sharing.bucket
        if sharded and stack.sharing.unit == "layer":
            whole = _whole(size, job.model, layout)
        elif collective == "all_reduce" and not sharded and bucket is not None:
            first = bucket if stack.sharing.first_bucket is None else stack.sharing.first_bucket
            whole = bucketed(size, job.model, float(first[0]), float(bucket[0]))
        found.append(WeightMessage(collective=collective, size=size, whole=whole, group=group, role=role, sharded=sharded))

    size = trained * gradient
    add("all_reduce", np.where(spread.zero >= 1, 0.0, size), spread.data, "reduce")
    if shared.any():  # optimizer states shared out: gradients are reduced to shards, with each microbatch where no rank keeps all of them
        add("reduce_scatter", np.where(late, size, 0.0), spread.data, "reduce")
        add("reduce_scatter", np.where(early, size, 0.0), spread.data, "reduce", sharded=True)
        add("all_gather", np.where(shared, trained * updated, 0.0), spread.data, "regather")
    if sharded.any():
        add("reduce_scatter", np.where(sharded, size, 0.0), spread.shards, "reduce", sharded=True)
        add("all_gather", np.where(sharded, amount * weight, 0.0), spread.shards, "gather", sharded=True)
        add("all_reduce", np.where(sharded, size / spread.shards.size, 0.0), spread.copies, "reduce", sharded=True)
    return found


# -------------------------------------------------------------------------------------------- buckets


def bucketed(size: Array, model: Transformer, first: float, least: float) -> Array:
    """Mean message in which gradients of each unit are reduced, shape (units, n). [B]

    Parameters
    ----------
    size : gradients of one occurrence of each unit, shape (units, n). [B]
    first, least : what the first bucket and the others hold at least. [B]
    """
    unit, share = _tensors(model)
    distinct, which = np.unique(size, axis=1, return_inverse=True)
    found = np.empty_like(distinct)
    for i, column in enumerate(distinct.T):
        tensors = column[unit] * share
        messages, carried = np.zeros((2, len(column)))
        np.add.at(messages, unit, tensors / np.maximum(_buckets(tensors, first, least), 1.0))
        np.add.at(carried, unit, tensors)
        found[:, i] = divide(carried, messages)
    return np.where(size > 0, found[:, which.reshape(-1)], 0.0)


def _buckets(tensors: Array, first: float, least: float) -> Array:
    """Bytes of the bucket in which each of some tensors is. [B]"""
    found, begin, filled, needed = np.empty_like(tensors), 0, 0.0, first
    for i, size in enumerate(tensors.tolist()):
        filled += size
        if filled >= needed or i + 1 == len(tensors):
            found[begin : i + 1] = filled
            begin, filled, needed = i + 1, 0.0, least
    return found


@once
def _tensors(model: Transformer) -> tuple[Index, Array]:
    """Unit of each tensor of a model and its share of the unit's weights, in the order in which their gradients are ready."""
    parts, places = [part for _, part in units(model)], unit_places(model).tolist()
    order = places[:1]
    for layer, last in zip(model.layers, np.cumsum([len(layer.parts) for layer in model.layers]).tolist(), strict=True):
        order += places[1 + last - len(layer.parts) : 1 + last] * int(np.max(layer.count))
    unit, share = list[int](), list[float]()
    for place in [*order, *places[-1:]][::-1]:
        sizes = [*_sizes(parts[place], tied=model.tied and place == places[-1])]
        unit += [place] * len(sizes)
        share += [size / sum(sizes) for size in sizes]
    return np.array(unit, dtype=np.intp), np.array(share)


def _sizes(part: Part, *, tied: bool) -> Iterator[float]:
    """Parameters of each tensor of a part, last first; a head that is `tied` has no table of its own. [1]"""
    if any(matrix.adapted for matrix in part.matrices):
        yield from (float(size) for matrix in part.matrices[::-1] if np.any(matrix.adapters) for size in _pieces(part, matrix))
        return
    for matrix in part.matrices[::-1]:
        if not (tied and matrix.name == "vocabulary"):
            yield from (float(size) for size in _pieces(part, matrix) if size)
    if part.table:
        yield float(part.table)
    if part.vectors:
        yield float(part.vectors)


def _pieces(part: Part, matrix: Matrix) -> tuple[float, ...]:
    """A matrix as models of PyTorch keep it: queries, keys and values apart, and both branches of a gated MLP that all tokens pass. [1]"""
    if np.any(matrix.adapters):
        return (matrix.parameters / matrix.adapters,) * int(np.max(matrix.adapters))
    if matrix.kv_heads:
        pair = matrix.parameters * matrix.kv_heads * matrix.kv_head / matrix.n
        return pair / 2.0, pair / 2.0, matrix.parameters - pair
    if part.gated and matrix.name.endswith("up") and not matrix.routed:
        return matrix.parameters / 2.0, matrix.parameters / 2.0
    return (matrix.parameters,)
