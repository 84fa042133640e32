"""A step of a recommendation model at one design point as a program of its own: on a mesh, with the host's work and what devices hold.

The program of `crossflow.engine.runs.dlrm` is that of many points, whose ranks communicate in groups that differ. At one point it is a
program like any other: it runs in uneven worlds, its kernels share devices, and it is written to a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, wide
from crossflow.cost.price import Prices
from crossflow.parallel.dlrm import RANKS, DlrmStep
from crossflow.program.groups import DeviceGroup, Group
from crossflow.program.program import HOST, NETWORK, Message, Op, Program, Tensor

NODE, NODES = "node", "nodes"  # axes of the mesh: devices of a node, and nodes
OUTSIDE = "between nodes"  # stream of collectives that leave a node


def point_program(step: DlrmStep, prices: Prices, memory: Sequence[Mapping[str, Array]], point: int = 0) -> tuple[Program, Index]:
    """The program of one design point, and the message of all points that each of its messages is.

    Parameters
    ----------
    step, prices : of all points.
    memory : of a device of every class by kind, each of shape (n,). [B]
    """
    plans, program = step.plans, step.program
    several = len(step.tables) > 1  # classes, which meet in collectives of all of them
    ops = _ops(step, prices, point)
    used = sorted({op.message for op in ops if op.message is not None})
    groups = {_name(group, point): _device_group(group, point) for group in (program.messages[i].group for i in used) if group}
    at_point = replace(
        program,
        axes=program.axes if several else ((NODE, int(plans.dense.node)), (NODES, int(_at(plans.dense.nodes, point)))),
        groups=() if several else tuple(groups.items()),
        kernels=tuple(replace(one, **{name: _at(value, point) for name, value in vars(one).items()}) for one in program.kernels),
        messages=tuple(_message(program.messages[i], point, (RANKS,) if several else None) for i in used),
        ops=tuple(op if op.message is None else replace(op, message=used.index(op.message)) for op in ops),
        tensors=tuple(
            Tensor(kind=kind, size=_at(size, point), rank=rank) for rank, held in enumerate(memory) for kind, size in held.items()
        ),
        samples=int(_at(plans.batch, point)),
        parameters=_at(step.parameters, point),
    )
    return at_point, np.array(used, dtype=np.intp)


def _ops(step: DlrmStep, prices: Prices, point: int) -> list[Op]:
    """Operations that take time at a point, with the host's work; the others pass on what they wait for."""
    program, n, none = step.program, len(step.plans), np.zeros_like(prices.messages.time)
    times = program.by_op(wide(prices.kernels.time, n), prices.messages.time)[:, point]
    launches = program.by_op(wide(prices.kernels.launches, n), none)[:, point]
    ops: list[Op] = []
    stands: list[tuple[int, ...]] = []
    for i, op in enumerate(program.ops):
        after = tuple(sorted({place for j in op.after for place in stands[j]}))
        if times[i] > 0:
            if i in step.hooks:
                ops.append(Op(name=f"hooks of {op.name}", rank=op.rank, layer=op.layer, phase=op.phase, stream=HOST, calls=1, host="layer"))
            group = None if op.message is None else program.messages[op.message].group
            stream = op.stream if group is None else OUTSIDE if _at(group.size > group.per_node, point) else NETWORK
            ops.append(replace(op, after=after, stream=stream, calls=round(launches[i])))
            after = (len(ops) - 1,)
        stands.append(after)
    waited = {place for op in ops for place in op.after}
    for rank in range(program.classes):
        last = tuple(i for i, op in enumerate(ops) if op.rank == rank and i not in waited and op.stream != HOST)
        ops.append(Op(name="the host, between steps", rank=rank, stream=HOST, calls=1, host="step", after=last))
    return ops


def _message(message: Message, point: int, axes: tuple[str, ...] | None) -> Message:
    """A message along axes, or among a group that has a name."""
    return replace(message, size=_at(message.size, point), axes=axes or (_name(message.group, point),), group=None)


def _name(group: Group | None, point: int) -> str:
    """Name of the ranks that a group has at a point."""
    assert group is not None  # every message of such a step has one
    size, per_node, devices = (_at(values, point) for values in (group.size, group.per_node, group.devices))
    return "all devices" if size == devices else "in a node" if size == per_node else "between nodes"


def _device_group(group: Group, point: int) -> DeviceGroup:
    return DeviceGroup(ranks=int(_at(group.size, point)), stride=int(_at(group.stride, point)))


def _at(value: Any, point: int) -> Any:
    """A value at one point."""
    if isinstance(value, tuple):
        return tuple(_at(part, point) for part in value)
    return value[point if value.size > 1 else 0].item() if isinstance(value, np.ndarray) else value
