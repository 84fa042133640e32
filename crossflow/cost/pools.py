"""What devices that attend send to devices that hold the experts, and get back, layer by layer.

Each of M devices sends its tokens' vectors to those of N others that hold their experts, and these send results back (M-to-N [1]_). Every
row travels once in either direction, so that all that leaves one side arrives at the other. A device sends and receives at the rate of its
own links; the slower side decides, and there the device that has most rows. Ranks that share a layer share its rows out while they travel,
and gather them afterwards over their own links.

References
----------
.. [1] Zhu et al., "MegaScale-Infer", 2025, arXiv:2504.02263 (M2N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.cost.machine import Machine
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.blocks import units, wide_units
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import Type
from crossflow.program.groups import Group
from crossflow.workload.job import Job
from crossflow.workload.sides import feeds
from crossflow.workload.transformer import Part


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolExchange:
    """Of one micro-batch, both ways: to the experts and back; arrays of shape (2, units, n), zero of units that stay."""

    size: Array  # bytes that all devices of a side send together. [B]
    time: Array  # [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolEnd:
    """Devices of one side with their plans, each for one micro-batch."""

    machine: Machine
    layout: Layout

    @property
    def devices(self) -> Array:
        """[1]"""
        return self.layout.devices


def pool_exchange(job: Job, attending: PoolEnd, feeding: PoolEnd) -> PoolExchange:
    """Exchange of every unit of a job of which the experts' devices have their side."""
    n, stack, model = len(attending.layout), attending.machine.stack, job.sides[1].model
    parts, size, most = [part for _, part in units(model)], np.zeros((2, len(units(model)), n)), np.ones((len(units(model)), n))
    rows = (attending.layout.micro_batch * job.written + job.read_beside) * attending.layout.dp
    for unit, (name, part) in enumerate(units(model)):
        if feeds(part):
            widths = _widths(part, feeding.layout)
            size[0, unit] = rows * widths * _narrow(job, stack, wide=name in wide_units(model))
            size[1, unit] = rows * widths * job.element
            if part.routing is not None:
                placed = feeding.layout.placed(part.routing, balanced=stack.engine.balances)
                most[unit] = placed.load(feeding.layout.ep)
    near = near_each_other(attending, feeding)
    ends = [
        _passing(end, size / end.devices * load, near) for end, load in ((attending, np.ones(1)), (feeding, most))
    ]  # of an uneven load the fullest device of the experts decides
    return PoolExchange(size=size, time=np.maximum(*ends) + _gathering(job, attending, feeding, parts, size, most))


def near_each_other(attending: PoolEnd, feeding: PoolEnd) -> Mask:
    """Whether all devices of both sides share a node, so that rows pass its links, shape (n,)."""
    alike = attending.machine is feeding.machine
    return np.asarray((attending.devices + feeding.devices <= attending.machine.node) & alike)


def _widths(part: Part, layout: Layout) -> Array:
    """Elements of a token that travel to the experts, and back: a vector for each group of ranks that has any of its experts.

    A group adds up what its experts give of a token. One of them has the shared expert too, which takes the same vector, but where routed
    experts take a latent. Of groups that hold one expert each, as in [1]_, that is a copy for every expert of a token. [1]
    """
    if part.routing is None:
        return np.asarray(1.0 * part.width)
    copies = np.where(layout.ep > 1, part.routing.reached(layout.ep), 1.0)
    return np.asarray(copies * part.routed_width + part.width * float(bool(part.shared) and part.routed_width != part.width))


def _narrow(job: Job, stack: SoftwareStack, *, wide: bool) -> float:
    """Size of an element on its way to the experts: that of their products where the stack sends it so. [B]"""
    narrows = bool(stack.narrow_dispatch or stack.kernels.exchange) and not wide
    return min(job.operand, job.element) if narrows else job.element


def _passing(end: PoolEnd, size: Array, near: Mask) -> Array:
    """Time in which a device sends or receives so many bytes, shape as `size`. [s]"""
    layout = end.layout
    pair, one = np.full(len(layout), 2.0), np.ones(len(layout))
    group = Group(
        size=pair, per_node=np.where(near, pair, one), stride=np.where(near, one, layout.devices),
        devices=np.where(near, float(end.machine.node), pair * layout.devices), extent=pair,
    )  # fmt: skip
    return np.asarray(end.machine.wires.time("send_recv", size, group))


def _gathering(job: Job, attending: PoolEnd, feeding: PoolEnd, parts: Sequence[Part], size: Array, most: Array) -> Array:
    """Time in which ranks that share a layer gather the rows that each of them got a share of, shape (2, units, n). [s]

    On the way to the experts of all rows of their group; on the way back of the tokens of theirs, whose results are summed before.
    With sequence parallelism each keeps its share, or gathers it with the layer.
    """
    found, its, mine = np.zeros_like(size), feeding.layout, attending.layout
    for unit, part in enumerate(parts):
        if feeds(part):
            kind: Type = "mlp" if part.routing is None else "experts"
            group, ranks = its.sharing(kind), its.tensor_of(kind)
            rows = np.where(its.sequence_parallel | (ranks == 1), 0.0, size[0, unit] * most[unit] * ranks / feeding.devices)
            tokens = (mine.micro_batch * job.written + job.read_beside) * part.width * job.element
            found[0, unit] = feeding.machine.wires.time("all_gather", rows, group)
            found[1, unit] = attending.machine.wires.time("all_gather", np.where(mine.sequence_parallel, 0.0, tokens), mine.tensor)
    return found
