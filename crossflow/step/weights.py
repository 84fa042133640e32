"""Weights on devices under plans: how many each holds and updates, and the collectives that keep replicas and shards in step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossflow.arrays import Array
from crossflow.cost.parts import sent_bytes
from crossflow.parallel.blocks import units
from crossflow.parallel.layout import Group, Layout
from crossflow.parallel.supergraph import Collective
from crossflow.software import SoftwareStack
from crossflow.step.memory import parameters, weight_sizes
from crossflow.workload.job import Job

Role = Literal["reduce", "gather", "regather"]


@dataclass(frozen=True, kw_only=True)
class WeightMessage:
    """A collective among ranks that hold the same weights, of `size` bytes for every unit, shape (units, n). [B]

    Its `role` is to reduce gradients, to gather sharded weights for a pass, or to gather updated weights.
    """

    collective: Collective
    size: Array
    group: Group
    role: Role


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of every unit, whatever device and network they are on; arrays of shape (units, n).

    Attributes
    ----------
    parameters : of one layer, embedding or head, on one device, before sharding over data ranks. [1]
    owned : of these, those whose optimizer's states the device keeps. [1]
    messages : collectives that keep them in step.
    moved : bytes that a device sends for them in a step inside its node and out of it, shape (2, units, n). [B]
    """

    parameters: Array
    owned: Array
    messages: tuple[WeightMessage, ...]
    moved: Array


def weights_of(job: Job, layout: Layout, stack: SoftwareStack) -> Weights:
    """Weights of all plans."""
    dense, expert = (np.stack(values) for values in zip(*(parameters(part, layout) for _, part in units(job.model)), strict=True))
    if job.model.tied:  # a tied table that embedding and head hold on one device is one
        dense[-1] -= np.where(layout.pp == 1, job.model.head.width * job.model.vocabulary / layout.tp, 0.0)
    owned = np.zeros(dense.shape)
    for amount, group, shards in ((dense, layout.data, layout.shards), (expert, layout.expert_data, layout.expert_shards)):
        owned += amount / np.where(layout.zero >= 1, np.where(layout.zero >= 3, shards.size, group.size), 1.0)
    messages = tuple(_messages(job, layout, stack, dense, expert))
    moved = np.zeros((2, *dense.shape))
    for message in messages:
        moved += sent_bytes(message.collective, message.size * rounds(layout, message.role), message.group)
    return Weights(parameters=dense + expert, owned=owned, messages=messages, moved=moved)


def rounds(layout: Layout, role: Role) -> Array:
    """How often a step takes a collective of weights: sharded weights are gathered twice, and their gradients reduced, with every
    microbatch; the rest comes with every update. [1]
    """
    return np.where(layout.zero >= 3, layout.microbatches * (2.0 if role == "gather" else 1.0), layout.updates)


def _messages(job: Job, layout: Layout, stack: SoftwareStack, dense: Array, expert: Array) -> list[WeightMessage]:
    """All collectives that keep weights in step, as far as any plan has them."""
    weight, gradient = weight_sizes(job, stack), stack.gradient_size(job.element)
    sharded, shared = layout.zero >= 3, (layout.zero >= 1) & (layout.zero < 3)
    found: list[WeightMessage] = []

    def add(collective: Collective, size: Array, group: Group, role: Role) -> None:
        found.append(WeightMessage(collective=collective, size=size, group=group, role=role))

    for amount, group, shards, copies in (
        (dense, layout.data, layout.shards, layout.copies),
        (expert, layout.expert_data, layout.expert_shards, layout.expert_copies),
    ):
        if not amount.any():
            continue
        size = amount * gradient
        add("all_reduce", np.where(layout.zero >= 1, 0.0, size), group, "reduce")
        if shared.any():  # optimizer states shared out: gradients are reduced to shards, and the updated weights gathered
            add("reduce_scatter", np.where(shared, size, 0.0), group, "reduce")
            add("all_gather", np.where(shared, amount * weight, 0.0), group, "regather")
        if sharded.any():
            add("reduce_scatter", np.where(sharded, size, 0.0), shards, "reduce")
            add("all_gather", np.where(sharded, amount * weight, 0.0), shards, "gather")
            add("all_reduce", np.where(sharded, size / shards.size, 0.0), copies, "reduce")
    return found
