"""A step of a recommendation model at one design point as a program of its own: on a mesh, with the host's work and what devices hold.

The program of `crossflow.engine.runs.dlrm` is that of many points, whose ranks communicate in groups that differ. At one point, or at
several whose groups and operations are alike, it is a program like any other: it runs in uneven worlds, its kernels share devices, and
it is written to a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, alike, wide
from crossflow.cost.price import Prices
from crossflow.parallel.dlrm import RANKS, DlrmStep
from crossflow.program.groups import DeviceGroup, Group
from crossflow.program.program import HOST, NETWORK, Op, Program, Tensor

NODE, NODES = "node", "nodes"  # axes of the mesh: devices of a node, and nodes
OUTSIDE = "between nodes"  # stream of collectives that leave a node


def point_program(step: DlrmStep, prices: Prices, memory: Sequence[Mapping[str, Array]], point: int = 0) -> tuple[Program, Index]:
    """The program of one design point, and the message of all points that each of its messages is.

    Parameters
    ----------
    step, prices : of all points.
    memory : of a device of every class by kind, each of shape (n,). [B]
    """
    return _program(step, prices, memory, np.array([point]))


def point_programs(
    step: DlrmStep, prices: Prices, memory: Sequence[Mapping[str, Array]], points: Index
) -> Iterator[tuple[Index, Program, Index]]:
    """Programs of some design points, of those with the same operations and groups as one whose sizes are arrays, with the points."""
    program, plans = step.program, step.plans
    told: list[Any] = [plans.dense.nodes, *_times(step, prices), *_launches(step, prices)]
    for message in program.messages:
        assert message.group is not None  # every message of such a step has one
        told += (message.group.size, message.group.per_node, message.group.stride, message.group.devices)
    for _, same in alike(np.stack([wide(np.atleast_1d(row), len(plans))[points] for row in told])):
        yield (points[same], *_program(step, prices, memory, points[same]))


def _program(step: DlrmStep, prices: Prices, memory: Sequence[Mapping[str, Array]], points: Index) -> tuple[Program, Index]:
    """The program of design points that have the same operations and groups; sizes of several points are arrays."""
    plans, program, first = step.plans, step.program, int(points[0])
    several = len(step.tables) > 1  # classes, which meet in collectives of all of them
    ops = _ops(step, prices, first)
    used = sorted({op.message for op in ops if op.message is not None})
    groups = {_name(group, first): _device_group(group, first) for group in (program.messages[i].group for i in used) if group}
    samples = _at(plans.batch, points)
    whole = replace(
        program,
        axes=program.axes if several else ((NODE, int(plans.dense.node)), (NODES, int(_at(plans.dense.nodes, points[:1])))),
        groups=() if several else tuple(groups.items()),
        kernels=tuple(replace(one, **{name: _at(value, points) for name, value in vars(one).items()}) for one in program.kernels),
        messages=tuple(
            replace(one, size=_at(one.size, points), axes=(RANKS,) if several else (_name(one.group, first),), group=None)
            for one in (program.messages[i] for i in used)
        ),
        ops=tuple(op if op.message is None else replace(op, message=used.index(op.message)) for op in ops),
        tensors=tuple(
            Tensor(kind=kind, size=_at(size, points), rank=rank) for rank, held in enumerate(memory) for kind, size in held.items()
        ),
        samples=samples.astype(int) if isinstance(samples, np.ndarray) else int(samples),
        parameters=_at(step.parameters, points),
    )
    return whole, np.array(used, dtype=np.intp)


def _times(step: DlrmStep, prices: Prices) -> Mask:
    """Whether every operation takes time, shape (operations, n)."""
    found: Mask = step.program.by_op(wide(prices.kernels.time, len(step.plans)), prices.messages.time) > 0
    return found


def _launches(step: DlrmStep, prices: Prices) -> Array:
    """Kernels that every operation launches, shape (operations, n). [1]"""
    launches = step.program.by_op(wide(prices.kernels.launches, len(step.plans)), np.zeros_like(prices.messages.time))
    return np.asarray(np.round(launches))


def _ops(step: DlrmStep, prices: Prices, point: int) -> list[Op]:
    """Operations that take time at a point, with the host's work; the others pass on what they wait for."""
    program, takes, launches = step.program, _times(step, prices)[:, point], _launches(step, prices)[:, point]
    ops: list[Op] = []
    stands: list[tuple[int, ...]] = []
    for i, op in enumerate(program.ops):
        after = tuple(sorted({place for j in op.after for place in stands[j]}))
        if takes[i]:
            if i in step.hooks:
                ops.append(Op(name=f"hooks of {op.name}", rank=op.rank, layer=op.layer, phase=op.phase, stream=HOST, calls=1, host="layer"))
            group = None if op.message is None else program.messages[op.message].group
            stream = op.stream if group is None else OUTSIDE if _value(group.size > group.per_node, point) else NETWORK
            ops.append(replace(op, after=after, stream=stream, calls=int(launches[i])))
            after = (len(ops) - 1,)
        stands.append(after)
    waited = {place for op in ops for place in op.after}
    for rank in range(program.classes):
        last = tuple(i for i, op in enumerate(ops) if op.rank == rank and i not in waited and op.stream != HOST)
        ops.append(Op(name="the host, between steps", rank=rank, stream=HOST, calls=1, host="step", after=last))
    return ops


def _name(group: Group | None, point: int) -> str:
    """Name of the ranks that a group has at a point."""
    assert group is not None  # every message of such a step has one
    size, per_node, devices = (_value(values, point) for values in (group.size, group.per_node, group.devices))
    return "all devices" if size == devices else "in a node" if size == per_node else "between nodes"


def _device_group(group: Group, point: int) -> DeviceGroup:
    return DeviceGroup(ranks=int(_value(group.size, point)), stride=int(_value(group.stride, point)))


def _value(values: Array | Mask, point: int) -> Any:
    """A value at one point."""
    return _at(values, np.array([point]))


def _at(value: Any, points: Index) -> Any:
    """A value at some points, a plain number where they are one or have the same."""
    if isinstance(value, tuple):
        return tuple(_at(part, points) for part in value)
    if not isinstance(value, np.ndarray):
        return value
    if value.size == 1 or len(points) == 1:
        return value[points[0] if value.size > 1 else 0].item()
    return value[points]
