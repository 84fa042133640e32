"""Collectives of torch as messages: what is sent, how many bytes, among which ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from crossflow.base.errors import CrossflowError
from crossflow.program.collectives import COLLECTIVES, GATHERED, PRICED, Collective, called

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
_QUIET = ("wait_tensor", "barrier", "monitored_barrier")


@dataclass(frozen=True, kw_only=True)
class TorchMessage:
    """A message, as `crossflow.program.program.Message` has it, among `ranks`, which may have a name; `blocks` where all that follows
    waits for it. [B]
    """

    collective: Collective
    size: float
    ranks: tuple[int, ...]
    axis: str
    blocks: bool


def waits(func: Any) -> bool:
    """Whether an operation sends nothing, and only waits."""
    return any(word in func._schema.name for word in _QUIET)


def message(func: Any, args: Any, kwargs: Mapping[str, Any]) -> TorchMessage:
    """The message of an operation."""
    name = func._schema.name.partition("::")[2]
    call = called(name)
    if not call:
        raise CrossflowError(f"the collective {name} of torch is not supported; supported: {', '.join(sorted({*COLLECTIVES, *PRICED}))}")
    collective: Any = PRICED.get(call, call)
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
    group = _group(given)
    members = dist.get_process_group_ranks(group)
    ranks = tuple(one - members[0] for one in members)  # groups of one kind lie alike, also those without rank 0
    inputs, outputs = (list(map(_bytes, sides)) for sides in _sides(func, args))
    # Of a scatter ranks without the whole buffer have their parts of it.
    size = sum(inputs) * (len(ranks) if call in GATHERED else 1) if inputs else sum(outputs) * (len(ranks) if call == "scatter" else 1)
    axis = str(group.group_desc).partition("mesh_")[2]  # as device meshes describe groups
    return TorchMessage(
        collective=collective, size=size, ranks=ranks, axis=axis, blocks=not given.get("asyncOp", given.get("async_op", True))
    )


def _sides(func: Any, args: Any) -> tuple[list[Any], list[Any]]:
    """Tensors that an operation sends, and those that it only fills."""
    inputs, outputs = list[Any](), list[Any]()
    both = any(argument.name.startswith("input") for argument in func._schema.arguments)
    for argument, value in zip(func._schema.arguments, args, strict=False):
        found = [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
        (outputs if both and argument.name.startswith("output") else inputs).extend(found)
    return inputs, outputs


def buffers(func: Any, args: Any, out: Any) -> tuple[Iterator[tuple[Any, float]], Iterator[tuple[Any, float]]]:
    """Tensors that a message reads, and those that it fills."""
    inputs, outputs = _sides(func, args)
    made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)] if func.namespace != "c10d" else outputs or inputs
    return ((one, _bytes(one)) for one in inputs), ((one, _bytes(one)) for one in made)


def _group(given: Mapping[str, Any]) -> Any:
    named = given.get("group_name")
    if isinstance(named, str):
        return dist.distributed_c10d._resolve_process_group(named)
    return next(dist.ProcessGroup.unbox(one) for one in given.values() if isinstance(one, torch.ScriptObject) and _is_group(one))


def _is_group(one: Any) -> bool:
    return "ProcessGroup" in str(one._type())


def _bytes(tensor: Any) -> float:
    return float(tensor.numel() * tensor.element_size())
