"""Kernels of the operations of torch: products, convolutions as implicit products, attention, lookups, and passes over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from crossflow.program.kernels import Attention, Kernel, Lookup, Pass, Product, kernel_tables

# Operations without a kernel: what only describes or sets aside memory.
_FREE_SPACES = frozenset({"prim", "profiler", "inductor"})
_FREE = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "detach_", "lift_fresh", "alias", "set_", "resize_",
    "is_same_size", "_has_same_storage_numel", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "record_stream",
    "_assert_async", "is_pinned", "requires_grad_", "lift", "lift_fresh_copy", "_functional_assert_async",
})  # fmt: skip
_SETS = frozenset(
    {"copy_", "zero_", "fill_", "uniform_", "normal_", "random_", "exponential_", "bernoulli_", "_foreach_copy_", "_foreach_zero_"}
)
# Of the first tensor these read as many elements as they give, not all of it.
_PICKS = frozenset({
    "embedding", "index", "index_select", "gather", "take", "nll_loss_forward", "nll_loss2d_forward", "_unsafe_index", "take_along_dim",
})  # fmt: skip
_ADDS = frozenset({"index_put", "index_put_", "_index_put_impl_", "index_add", "index_add_", "scatter_add", "scatter_add_", "index_copy_"})
_TABLE_GRADIENT = "embedding_dense_backward"
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
    return func.namespace in _FREE_SPACES or name_of(func) in _FREE or func.is_view


def copies(func: Any) -> bool:
    """Whether an operation fills tensors that are given to it although its schema does not say so."""
    return str(func._schema.name) == "fsdp::all_gather_copy_in"


def fuses(func: Any) -> bool:
    """Whether a compiler joins an operation with pointwise ones around it: pointwise, a reduction, a copy."""
    return func.namespace not in ("fsdp", "crossflow") and name_of(func) not in _APART


def traffic(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[Iterator[tuple[Any, float]], Iterator[tuple[Any, float]]]:
    """Tensors that an operation reads and those that it writes, each with its bytes. [B]"""
    reads, writes = list[tuple[Any, float]](), list[tuple[Any, float]]()
    name, made = name_of(func), _tensors(out)
    if copies(func):
        sources, target = args[0], args[1]
        return ((one, _bytes(one)) for one in sources), iter([(target, sum(map(_bytes, sources)))])
    schema = func._schema.arguments
    given = [*zip(schema, args, strict=False), *((one, kwargs[one.name]) for one in schema if one.name in kwargs)]
    first = True
    for argument, value in given:
        written = argument.alias_info is not None and argument.alias_info.is_write
        for one in _tensors(value):
            size = _bytes(one)
            if first and name in _PICKS:
                size = min(size, sum(map(_bytes, made)))
            elif first and name in _ADDS:  # rows that are added to, not all
                size = min(size, 2.0 * max(map(_bytes, _tensors((args[1:], kwargs))), default=0.0))
            first = False
            if written:
                writes.append((one, size))
            if not written or not (name in _SETS or argument.kwarg_only):
                reads.append((one, size))
    filled = {id(one) for one, _ in writes}
    writes += [(one, _bytes(one)) for one in made if id(one) not in filled]
    return iter(reads), iter(writes)


def dtype_of(args: Any) -> str:
    """Name of the type of the first tensor of numbers with a point, empty where there is none."""
    found = next((one.dtype for one in _tensors(args) if one.dtype.is_floating_point), None)
    return {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}.get(found, "fp8" if found else "")


def pass_over(func: Any, reads: Mapping[int, float], writes: Mapping[int, float], out: Any) -> Pass:
    """A pass that reads and writes, with an operation for every element that it makes."""
    elements = sum(one.numel() for one in _tensors(out))
    return Pass(moved=sum(reads.values()) + sum(writes.values()), flops=float(elements), what=name_of(func))


def kernels_of(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[Kernel, ...] | None:
    """Kernels of an operation that is no plain pass over what it reads and writes; None for one that is."""
    made = _KERNELS.get(name_of(func))
    return made(args, kwargs, out) if made is not None and all(one.numel() for one in _tensors(out)[:1]) else None


# -------------------------------------------------------------------------------------------- products

KernelRows = tuple[Kernel, ...]


def _mm(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    (m, k), n = args[0].shape, args[1].shape[-1]
    return (Product(m=float(m), n=float(n), k=float(k)),)


def _addmm(args: Any, kwargs: Any, out: Any) -> KernelRows:
    return _mm(args[1:], kwargs, out)


def _linear(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    rows, (n, k) = math.prod(args[0].shape[:-1]), args[1].shape
    return (Product(m=float(rows), n=float(n), k=float(k)),)


def _bmm(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    batch, m, k = args[0].shape
    return (Product(m=float(m), n=float(args[1].shape[-1]), k=float(k), batch=float(batch)),)


def _baddbmm(args: Any, kwargs: Any, out: Any) -> KernelRows:
    return _bmm(args[1:], kwargs, out)


def _grouped(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    """Products of groups of rows, as many rows in each: forward (rows with weights), or the weights' gradient (columns with rows)."""
    first, second = args[0], args[1]
    if first.dim() == 2 and second.dim() == 3:
        groups, k, n = second.shape
        return (Product(m=first.shape[0] / groups, n=float(n), k=float(k), batch=float(groups)),)
    if first.dim() == 3 and second.dim() == 2:
        groups, m, k = first.shape
        return (Product(m=float(m), n=second.shape[1] / groups, k=float(k), batch=float(groups)),)
    if first.dim() == 3:
        return _bmm(args, _kwargs, _out)
    groups = _out.shape[0]
    return (Product(m=float(first.shape[0]), n=float(second.shape[1]), k=first.shape[1] / groups, batch=float(groups)),)


def _convolution(args: Any, _kwargs: Any, out: Any) -> KernelRows | None:
    weight, groups = args[1], args[8]
    return _implicit(weight, groups, _pixels(out if not args[6] else args[0]), ("forward",))


def _convolution_backward(args: Any, _kwargs: Any, _out: Any) -> KernelRows | None:
    gradient, data, weight, groups, wanted = args[0], args[1], args[2], args[9], args[10]
    ways = tuple(way for way, want in zip(("input", "weight"), wanted, strict=False) if want)
    return _implicit(weight, groups, _pixels(gradient if not args[7] else data), ways)


def _pixels(tensor: Any) -> float:
    """Rows of the implicit product: the elements of one channel, over all samples. [1]"""
    return float(tensor.shape[0] * math.prod(tensor.shape[2:]))


def _implicit(weight: Any, groups: int, rows: float, ways: tuple[str, ...]) -> KernelRows | None:
    """Products with a kernel of shape (outputs, inputs of a group, ...); a depthwise convolution multiplies no matrices."""
    n, k = weight.shape[0] / groups, float(math.prod(weight.shape[1:]))
    if weight.shape[1] == 1 and groups > 1:
        return None
    shapes = {"forward": (rows, n, k), "input": (rows, k, n), "weight": (k, n, rows)}
    return tuple(Product(m=m, n=n_, k=k_, batch=float(groups)) for m, n_, k_ in (shapes[way] for way in ways))


# -------------------------------------------------------------------------------------------- attention and tables


def _attention(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    return (attention_of(*args[:3], causal=args[3], window=args[4], backward=False),)


def _attention_backward(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    return (attention_of(*args[1:4], causal=args[4], window=args[5], backward=True),)


def attention_of(query: Any, key: Any, value: Any, *, causal: bool, window: int, backward: bool) -> Attention:
    """Fused attention of tensors of shape (samples, heads, tokens, width); a width of values of its own makes its work its own."""
    samples, heads, length, width = map(float, query.shape)
    kv_heads, seen, value_width = float(key.shape[1]), float(key.shape[2]), float(value.shape[3])
    causal = causal and length > 1
    limit = float(window) if causal and 0 < window < seen and seen >= length else 0.0
    found = Attention(
        samples=samples, heads=heads, kv_heads=kv_heads, length=length, seen=seen, width=(width + value_width) / 2.0, causal=causal,
        window=limit, backward=backward,
    )  # fmt: skip
    if value_width == width:
        return found
    (table,) = kernel_tables((found,), query.element_size(), narrow=False)
    flops, moved, blocks = table.attention[0][:, 0, 0].tolist()
    return replace(found, width=width, work=(flops, moved, blocks))


def _lookup(args: Any, _kwargs: Any, out: Any) -> KernelRows:
    """Rows of one table, added up a sample."""
    table, indices = args[0], args[1]
    samples = out[0].shape[0]
    element = float(table.element_size())
    return (
        Lookup(
            samples=float(samples), tables=1.0, rows=float(table.shape[0]), width=float(table.shape[1]),
            pooling=indices.numel() / samples, element=element, output=element, gradient=element, index=float(indices.element_size()),
        ),
    )  # fmt: skip


def _scattered(args: Any, _kwargs: Any, out: Any) -> KernelRows:
    """The gradient of a table: written empty, then rows read and added."""
    rows = Pass(moved=3.0 * _bytes(args[0]) + _bytes(args[1]), flops=float(args[0].numel()), what=_TABLE_GRADIENT)
    return Pass(moved=_bytes(out), what="zeros"), rows


def _pooled_back(args: Any, _kwargs: Any, out: Any) -> KernelRows | None:
    """The gradient of a table of pooled rows: written empty, then a row of gradients is added for each row that was looked up."""
    gradient, indices = args[0], args[1]
    if out.is_sparse:
        return None
    element, samples = float(out.element_size()), float(gradient.shape[0])
    added = Lookup(
        samples=samples, tables=1.0, rows=float(out.shape[0]), width=float(out.shape[1]), pooling=indices.numel() / samples,
        part="gradient", element=element, output=element, gradient=element, index=float(indices.element_size()),
    )  # fmt: skip
    return Pass(moved=_bytes(out), what="zeros"), added


def _adamw(args: Any, _kwargs: Any, _out: Any) -> KernelRows:
    """Gradients are read twice (norm, step), states and what is updated are read and written; 16-bit weights are written."""
    weights, gradients, masters, states = (sum(map(_bytes, part)) for part in args)
    elements = sum(one.numel() for one in args[0])
    wide = sum(_bytes(one) for one in args[0] if one.element_size() >= 4)
    return (Pass(moved=2.0 * gradients + 2.0 * (masters + states) + weights + wide, flops=12.0 * elements),)


_KERNELS: Mapping[str, Callable[[Any, Any, Any], KernelRows | None]] = {
    "mm": _mm, "addmm": _addmm, "_addmm_activation": _addmm, "_scaled_mm": _mm, "linear": _linear, "bmm": _bmm, "baddbmm": _baddbmm,
    "_grouped_mm": _grouped, "_scaled_grouped_mm": _grouped, "convolution": _convolution, "convolution_backward": _convolution_backward,
    "attention": _attention, "attention_backward": _attention_backward, "_embedding_bag": _lookup, "adamw": _adamw,
    _TABLE_GRADIENT: _scattered, "_embedding_bag_backward": _pooled_back,
}  # fmt: skip


def _tensors(given: Any) -> list[Any]:
    return [one for one in tree_leaves(given) if isinstance(one, torch.Tensor)]


def _bytes(tensor: Any) -> float:
    """Bytes of a tensor, of an expanded one those that are there. [B]"""
    return float(min(tensor.numel() * tensor.element_size(), max(tensor.untyped_storage().nbytes(), tensor.element_size())))
