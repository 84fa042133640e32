"""Kernels of the operations of torch: those of `crossflow.program.operations`, attention, tables, and passes over memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from crossflow.evidence.torch import scans
from crossflow.evidence.torch.flexible import kernels_packed, kernels_packed_backward
from crossflow.evidence.torch.recurrent import kernels_backward, kernels_forward
from crossflow.program import operations
from crossflow.program.kernels import Pass
from crossflow.program.operations import FREE, SETS, TABLE_GRADIENT, KernelRows, attention_of, pooled_back, scattered, touched

# Operations without a kernel: what only describes or sets aside memory, beside those of `FREE`.
_FREE_SPACES = frozenset({"prim", "profiler", "inductor"})
_APART = frozenset({
    "sort", "topk", "argsort", "nonzero", "histc", "bincount", "unique", "embedding", "embedding_dense_backward", "_embedding_bag",
    "cumsum", "multinomial", "_fused_adamw_", "_fused_adam_", "_fused_sgd_", "adamw", "max_pool2d_with_indices", "index_put_", "index_put",
    "_index_put_impl_", "index_add", "index_add_", "scatter_add", "scatter_add_",
})  # fmt: skip


def name_of(func: Any) -> str:
    """Name of an operation without its overload."""
    return str(func._schema.name.partition("::")[2])


def free(func: Any) -> bool:
    """Whether an operation runs no kernel."""
    return func.namespace in _FREE_SPACES or name_of(func) in FREE or func.is_view


def result(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives. Torch says of grouped products in BF16 alone what they give; a GPU multiplies other types as well."""
    if name_of(func) != "_grouped_mm" or args[0].dtype == torch.bfloat16:
        return func(*args, **kwargs)
    typed = [one.to(torch.bfloat16) if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in args]
    return func(*typed, **kwargs).to(args[0].dtype)


def copies(func: Any) -> bool:
    """Whether an operation fills tensors that are given to it although its schema does not say so."""
    return str(func._schema.name) == "fsdp::all_gather_copy_in"


def fuses(func: Any) -> bool:
    """Whether a compiler joins an operation with pointwise ones around it: pointwise, a reduction, a copy."""
    return func.namespace not in ("fsdp", "crossflow", "torch_attn") and name_of(func) not in _APART


def traffic(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[Iterator[tuple[Any, float]], Iterator[tuple[Any, float]]]:
    """Tensors that an operation reads and those that it writes, each with its bytes. [B]"""
    reads, writes = list[tuple[Any, float]](), list[tuple[Any, float]]()
    name, made = name_of(func), _tensors(out)
    if copies(func):
        sources, target = args[0], args[1]
        return ((one, _bytes(one)) for one in sources), iter([(target, sum(map(_bytes, sources)))])
    schema = func._schema.arguments
    given = [*zip(schema, args, strict=False), *((one, kwargs[one.name]) for one in schema if one.name in kwargs)]
    total, place, others = sum(map(_bytes, made)), 0, _tensors((args[1:], kwargs))
    for argument, value in given:
        written = argument.alias_info is not None and argument.alias_info.is_write
        for one in _tensors(value):
            size = touched(name, place, _bytes(one), total, map(_bytes, others))
            place += 1
            if written:
                writes.append((one, size))
            if not written or not (name in SETS or argument.kwarg_only):
                reads.append((one, size))
    filled = {id(one) for one, _ in writes}
    writes += [(one, _bytes(one)) for one in made if id(one) not in filled]
    return iter(reads), iter(writes)


def dtype_of(args: Any) -> str:
    """Name of the type of the first tensor of numbers with a point, empty where there is none."""
    found = next((one.dtype for one in _tensors(args) if one.dtype.is_floating_point), None)
    return {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}.get(found, "fp8" if found else "")


def pass_over(func: Any, reads: Mapping[int, float], writes: Mapping[int, float], args: Any, out: Any) -> Pass:
    """A pass that reads and writes, with an operation for every element that it makes, or those of a depthwise convolution."""
    flops = operations.flops_of_pass(name_of(func), args, out, float(sum(one.numel() for one in _tensors(out))))
    return Pass(moved=sum(reads.values()) + sum(writes.values()), flops=flops, what=name_of(func))


def kernels_of(func: Any, args: Any, kwargs: Any, out: Any) -> KernelRows | None:
    """Kernels of an operation that is no plain pass over what it reads and writes; None for one that is."""
    if not all(one.numel() for one in _tensors(out)[:1]):
        return None
    name = name_of(func)
    made = _OWN.get(name)
    return operations.kernels_of(name, args, out) if made is None else made(args, kwargs, out)


def _attention(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    return attention_of(*args[:3], causal=args[3], window=args[4], backward=False), *_biased(args[5:], 1.0)


def _attention_backward(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    return attention_of(*args[1:4], causal=args[4], window=args[5], backward=True), *_biased(args[6:], 2.0)


def _biased(rest: Sequence[Any], passes: float) -> Iterator[Pass]:
    """What is added to the scores, read, and backward its gradient written, by a kernel that computes both [1]_.

    References
    ----------
    .. [1] `_efficient_attention_backward` of torch, with `bias_requires_grad`.
    """
    return (Pass(moved=passes * _bytes(one), what="bias") for one in rest if one is not None)


def _scattered(args: Any, _kwargs: Any, out: Any) -> KernelRows:
    return scattered(args[0], args[1], _bytes(out))


def _pooled_back(args: Any, _kwargs: Any, out: Any) -> KernelRows | None:
    return None if out.is_sparse else pooled_back(args[0], args[1], out)


def _adamw(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    """Gradients are read twice (norm, step), states and what is updated are read and written; 16-bit weights are written."""
    weights, gradients, masters, states = (sum(map(_bytes, part)) for part in args)
    elements = sum(one.numel() for one in args[0])
    wide = sum(_bytes(one) for one in args[0] if one.element_size() >= 4)
    return (Pass(moved=2.0 * gradients + 2.0 * (masters + states) + weights + wide, flops=12.0 * elements),)


_OWN: Mapping[str, Callable[[Any, Any, Any], KernelRows | None]] = {
    "attention": _attention, "attention_backward": _attention_backward, "adamw": _adamw, TABLE_GRADIENT: _scattered,
    "_embedding_bag_backward": _pooled_back, "recurrent": kernels_forward, "recurrent_backward": kernels_backward,
    "_varlen_attn": kernels_packed, "_varlen_attn_backward": kernels_packed_backward,
    "scan": scans.kernels_forward, "scan_backward": scans.kernels_backward,
}  # fmt: skip


def _tensors(given: Any) -> list[Any]:
    return [one for one in tree_leaves(given) if isinstance(one, torch.Tensor)]


def _bytes(tensor: Any) -> float:
    """Bytes of a tensor, of an expanded one those that are there. [B]"""
    return float(min(tensor.numel() * tensor.element_size(), max(tensor.untyped_storage().nbytes(), tensor.element_size())))
