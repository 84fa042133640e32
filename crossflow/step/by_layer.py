"""A transformer's step by layer type: what a device of the busiest stage computes and sends for each unit, and what of that is exposed."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array, Index
from crossflow.step.passes import Steps, share_of
from crossflow.step.slots import SlotTimes, counts_by_stage
from crossflow.step.stages import Shape
from crossflow.strategy.layout import Layout

FIGURES = ("compute", "communication", "exposed")  # of every layer type
BETWEEN = "pipeline"  # stands for a layer type where stages hand over


def by_type(values: Array, units: tuple[str, ...]) -> dict[str, Array]:
    """Sums over the units of each layer type, shape (..., n), of values of shape (..., units, n)."""
    names, members = _layer_types(units)
    return {name: values[..., mine, :].sum(axis=-2) for name, mine in zip(names, members, strict=True)}


@functools.lru_cache(maxsize=256)
def _layer_types(units: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[list[int], ...]]:
    """Layer types of units, and which units are of each."""
    kinds = [name if name in ("embedding", "head") else name.split(".")[2] for name in units]
    names = tuple(dict.fromkeys(kinds))
    return names, tuple([i for i, kind in enumerate(kinds) if kind == name] for name in names)


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


def unit_times(steps: Steps, slots: SlotTimes, shape: Shape, counts: Counts, exposures: Exposures) -> Array:
    """`FIGURES` of every unit, shape (figures, units, n); what is exposed of a kind is shared out by the time of that kind. [s]

    Sums over units are the step's times of kernels, of collectives and of what is exposed of them, but for what stages hand over.
    """
    passes, state, at = steps.passes, steps.state, shape.at
    sent = passes.sent.sum(axis=0)[..., at]
    gather, scatter = state.gather[:, at], state.scatter[..., at].sum(axis=0)
    reduced, regathered, renewed = state.reduce[..., at].sum(axis=0), state.regather[:, at], np.zeros((1, 1))
    if state.copies is not None:
        copies = state.copies.at(at)
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
    device = passes.device.sum(axis=0)[..., at]
    kernels = counts.forward * device[0] + counts.backward * device[1] + counts.weight * passes.weight.sum(axis=0)[:, at]
    return np.stack([kernels + counts.update * state.update[:, at], communication, exposed])
