"""Weights on devices under plans: how many each holds and updates, and the collectives that keep replicas and shards in step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossflow.architecture.software import SoftwareStack
from crossflow.arrays import Array, share_of
from crossflow.parallel.blocks import parameters, type_of, unit_starts, units, wide_units
from crossflow.program.collectives import Collective, sent_bytes
from crossflow.program.groups import Group
from crossflow.step.buckets import bucketed
from crossflow.strategy.layout import Layout, Spread
from crossflow.workload.job import Job
from crossflow.workload.transformer import Part, Transformer

WeightRole = Literal["reduce", "gather", "regather"]


@dataclass(frozen=True, kw_only=True)
class WeightMessage:
    """A collective among ranks that hold the same weights, of `size` bytes for every unit, shape (units, n). [B]

    Its `role` is to reduce gradients, to gather sharded weights for a pass, or to gather updated weights. One of `sharded`
    weights comes with every microbatch, others with every update.
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


def weight_sizes(job: Job, stack: SoftwareStack) -> Array:
    """Size of a weight of every unit, shape (units, 1): a service keeps those of narrow layers narrow, embedding and head wide. [B]"""
    wide = wide_units(job.model)
    return np.array([[stack.weight_size(job.element if name in wide else job.weight)] for name, _ in units(job.model)])


def weights_of(job: Job, layout: Layout, stack: SoftwareStack) -> Weights:
    """Weights of all plans."""
    parts = [part for _, part in units(job.model)]
    dense, expert = (np.stack(values) for values in zip(*(parameters(part, layout) for part in parts), strict=True))
    if job.model.tied:  # a tied table that embedding and head hold on one device is one
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
    owned, moved, messages = np.zeros(dense.shape), np.zeros((2, *dense.shape)), list[WeightMessage]()
    for spread, amount in spreads.items():
        owned += _owned(spread, amount)
        messages += _messages(job, layout, stack, spread, amount)
    messages += _repeated_heads(parts, layout, stack.gradient_size(job.element))
    for message in messages:
        moved += sent_bytes(message.collective, message.size * message.rounds(layout), message.group.size, message.group.per_node)
    return Weights(parameters=dense + expert, owned=owned, messages=tuple(messages), moved=moved)


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


def _repeated_heads(parts: Sequence[Part], layout: Layout, gradient: float) -> list[WeightMessage]:
    """Sums of the gradients of key and value heads over the neighbouring tensor ranks that repeat them, of what each rank owns.

    Queries of every rank add to them; GQAQKVColumnParallelLinear of NeuronX Distributed sums them so.
    """
    ranks, group = layout.tensor_of("attention"), layout.sharing("attention")
    found = []
    several = {np.asarray(m.kv_heads).tobytes(): m.kv_heads for part in parts for m in part.matrices if np.any(m.kv_heads)}
    for heads in several.values():
        copies = np.ceil(ranks / heads)
        if (copies > 1).any():
            mine = [[m for m in part.matrices if np.array_equal(m.kv_heads, heads)] for part in parts]
            held = np.stack(np.broadcast_arrays(*(sum(((m.k + m.bias) * m.kv_head for m in ones), np.zeros(1)) for ones in mine)))
            size = gradient * _owned(layout.spread("attention"), np.where(copies > 1, held, 0.0))
            among = layout.group(group.stride, copies)
            found.append(WeightMessage(collective="all_reduce", size=size, whole=size, group=among, role="reduce", sharded=False))
    return found


def _messages(job: Job, layout: Layout, stack: SoftwareStack, spread: Spread, amount: Array) -> list[WeightMessage]:
    """All collectives that keep `amount` parameters of every unit in step, shape (units, n), as far as any plan has them."""
    weight, gradient = weight_sizes(job, stack), stack.gradient_size(job.element)
    sharded, shared = spread.zero >= 3, (spread.zero >= 1) & (spread.zero < 3)
    found: list[WeightMessage] = []

    def add(collective: Collective, size: Array, group: Group, role: WeightRole, *, sharded: bool = False) -> None:
        whole, bucket = size, stack.sharing.bucket
        if sharded and stack.sharing.unit == "layer":
            whole = _whole(size, job.model, layout)
        elif collective == "all_reduce" and not sharded and bucket is not None:
            first = bucket if stack.sharing.first_bucket is None else stack.sharing.first_bucket
            whole = bucketed(size, job.model, float(first[0]), float(bucket[0]))
        found.append(WeightMessage(collective=collective, size=size, whole=whole, group=group, role=role, sharded=sharded))

    size = amount * gradient
    add("all_reduce", np.where(spread.zero >= 1, 0.0, size), spread.data, "reduce")
    if shared.any():  # optimizer states shared out: gradients are reduced to shards, and the updated weights gathered
        add("reduce_scatter", np.where(shared, size, 0.0), spread.data, "reduce")
        add("all_gather", np.where(shared, amount * weight, 0.0), spread.data, "regather")
    if sharded.any():
        add("reduce_scatter", np.where(sharded, size, 0.0), spread.shards, "reduce", sharded=True)
        add("all_gather", np.where(sharded, amount * weight, 0.0), spread.shards, "gather", sharded=True)
        add("all_reduce", np.where(sharded, size / spread.shards.size, 0.0), spread.copies, "reduce", sharded=True)
    return found
