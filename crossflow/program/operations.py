"""Kernels of PyTorch's operations by their names and the sizes of their tensors, without PyTorch.

Tensors are anything with a `shape`, a `numel()` and an `element_size()`: those of a program that is imported, and those that a trace
tells of. Arguments stand in the order of an operation's schema.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from crossflow.program.kernels import Attention, Kernel, Lookup, LookupPart, Pass, Product, kernel_tables

# Operations without a kernel: what only describes or sets aside memory.
FREE = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "detach_", "lift_fresh", "alias", "set_", "resize_",
    "is_same_size", "_has_same_storage_numel", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "record_stream",
    "_assert_async", "is_pinned", "requires_grad_", "lift", "lift_fresh_copy", "_functional_assert_async",
})  # fmt: skip
# Of what they write these read nothing.
SETS = frozenset(
    {"copy_", "zero_", "fill_", "uniform_", "normal_", "random_", "exponential_", "bernoulli_", "_foreach_copy_", "_foreach_zero_"}
)
# Of the first tensor these read as many elements as they give, not all of it.
PICKS = frozenset({
    "embedding", "index", "index_select", "gather", "take", "nll_loss_forward", "nll_loss2d_forward", "_unsafe_index", "take_along_dim",
})  # fmt: skip
ADDS = frozenset({"index_put", "index_put_", "_index_put_impl_", "index_add", "index_add_", "scatter_add", "scatter_add_", "index_copy_"})
TABLE_GRADIENT = "embedding_dense_backward"
CONVOLUTIONS = ("convolution", "convolution_backward")

KernelRows = tuple[Kernel, ...]
KernelMaker = Callable[[Sequence[Any], Any], KernelRows | None]  # of arguments and results


class TensorSizes(Protocol):
    """What is known of a tensor."""

    @property
    def shape(self) -> Sequence[float]:
        """Its sizes. [1]"""

    def numel(self) -> float:
        """Its elements. [1]"""

    def element_size(self) -> float:
        """Size of an element. [B]"""


def nbytes(tensor: TensorSizes) -> float:
    """Bytes of a tensor. [B]"""
    return float(tensor.numel() * tensor.element_size())


def touched(name: str, place: int, size: float, made: float, others: Iterable[float]) -> float:
    """Bytes of a tensor of so many that an operation touches: of what it picks from or adds to, as many as it gives or is given. [B]

    Parameters
    ----------
    place : of the tensor among those given.
    made : bytes of all results. [B]
    others : bytes of the other tensors given. [B]
    """
    if place == 0 and name in PICKS:
        return min(size, made)
    if place == 0 and name in ADDS:  # rows that are added to, not all
        return min(size, 2.0 * max(others, default=0.0))
    return size


def kernels_of(name: str, args: Sequence[Any], out: Any) -> KernelRows | None:
    """Kernels of an operation that is no plain pass over what it reads and writes; None for one that is."""
    made = KERNELS.get(name)
    return None if made is None else made(args, out)


# -------------------------------------------------------------------------------------------- products


def _mm(args: Sequence[Any], _out: Any) -> KernelRows:
    (m, k), n = args[0].shape, args[1].shape[-1]
    return (Product(m=float(m), n=float(n), k=float(k)),)


def _addmm(args: Sequence[Any], out: Any) -> KernelRows:
    return _mm(args[1:], out)


def _linear(args: Sequence[Any], _out: Any) -> KernelRows:
    rows, (n, k) = math.prod(args[0].shape[:-1]), args[1].shape
    return (Product(m=float(rows), n=float(n), k=float(k)),)


def _bmm(args: Sequence[Any], _out: Any) -> KernelRows:
    batch, m, k = args[0].shape
    return (Product(m=float(m), n=float(args[1].shape[-1]), k=float(k), batch=float(batch)),)


def _baddbmm(args: Sequence[Any], out: Any) -> KernelRows:
    return _bmm(args[1:], out)


def _grouped(args: Sequence[Any], out: Any) -> KernelRows:
    """Products of groups of rows, as many rows in each: forward (rows with weights), or the weights' gradient (columns with rows)."""
    first, second = args[0], args[1]
    ranks = len(first.shape), len(second.shape)
    if ranks == (2, 3):
        groups, k, n = second.shape
        return (Product(m=first.shape[0] / groups, n=float(n), k=float(k), batch=float(groups)),)
    if ranks == (3, 2):
        groups, m, k = first.shape
        return (Product(m=float(m), n=second.shape[1] / groups, k=float(k), batch=float(groups)),)
    if ranks[0] == 3:
        return _bmm(args, out)
    groups = out.shape[0]
    return (Product(m=float(first.shape[0]), n=float(second.shape[1]), k=first.shape[1] / groups, batch=float(groups)),)


def _convolution(name: str, args: Sequence[Any], out: Any) -> KernelRows | None:
    return implicit(*_convolved(name, args, out))


def _convolved(name: str, args: Sequence[Any], out: Any) -> tuple[TensorSizes, int, float, tuple[str, ...]]:
    """Weight of a convolution, its groups, rows of its implicit product, and what it works out. [1]"""
    if name == "convolution":
        return args[1], args[8], _pixels(out if not args[6] else args[0]), ("forward",)
    gradient, data, weight, groups, wanted = args[0], args[1], args[2], args[9], args[10]
    ways = tuple(way for way, want in zip(("input", "weight"), wanted, strict=False) if want)
    return weight, groups, _pixels(gradient if not args[7] else data), ways


def flops_of_pass(name: str, args: Sequence[Any], out: Any, elements: float) -> float:
    """Operations of what multiplies no matrices: one for each of the elements that it makes, of a depthwise convolution its own. [flop]"""
    if name not in CONVOLUTIONS:
        return elements
    weight, _, rows, ways = _convolved(name, args, out)
    return depthwise_flops(weight, rows, ways)


def _pixels(tensor: TensorSizes) -> float:
    """Rows of the implicit product: the elements of one channel, over all samples. [1]"""
    return float(tensor.shape[0] * math.prod(tensor.shape[2:]))


def depthwise_flops(weight: TensorSizes, rows: float, ways: Iterable[str]) -> float:
    """Operations of a depthwise convolution: a multiplication and an addition for each weight and element of a channel, each way. [flop]"""
    return 2.0 * math.prod(weight.shape) * rows * len(tuple(ways))


def implicit(weight: TensorSizes, groups: int, rows: float, ways: Iterable[str]) -> KernelRows | None:
    """Products with a kernel of shape (outputs, inputs of a group, ...); a depthwise convolution multiplies no matrices."""
    n, k = weight.shape[0] / groups, float(math.prod(weight.shape[1:]))
    if weight.shape[1] == 1 and groups > 1:
        return None
    shapes = {"forward": (rows, n, k), "input": (rows, k, n), "weight": (k, n, rows)}
    return tuple(Product(m=m, n=n_, k=k_, batch=float(groups)) for m, n_, k_ in (shapes[way] for way in ways))


# -------------------------------------------------------------------------------------------- attention and tables


def attention_of(
    query: TensorSizes, key: TensorSizes, value: TensorSizes, *, causal: bool, window: float = 0.0, backward: bool
) -> Attention:
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


def _lookup(args: Sequence[Any], out: Any) -> KernelRows:
    """Rows of one table, added up a sample."""
    return (_table_rows(args[0], args[1], out[0].shape[0], "forward"),)


def _table_rows(table: TensorSizes, indices: TensorSizes, samples: float, part: LookupPart) -> Lookup:
    element = float(table.element_size())
    return Lookup(
        samples=float(samples), tables=1.0, rows=float(table.shape[0]), width=float(table.shape[1]), pooling=indices.numel() / samples,
        part=part, element=element, output=element, gradient=element, index=float(indices.element_size()),
    )  # fmt: skip


def scattered(gradient: TensorSizes, indices: TensorSizes, written: float) -> KernelRows:
    """The gradient of a table of so many bytes: written empty, then rows read and added. [B]"""
    rows = Pass(moved=3.0 * nbytes(gradient) + nbytes(indices), flops=float(gradient.numel()), what=TABLE_GRADIENT)
    return Pass(moved=written, what="zeros"), rows


def pooled_back(gradient: TensorSizes, indices: TensorSizes, out: TensorSizes) -> KernelRows:
    """The gradient of a table of pooled rows: written empty, then a row of gradients is added for each row that was looked up."""
    samples = gradient.shape[0]
    return Pass(moved=nbytes(out), what="zeros"), _table_rows(out, indices, samples, "gradient")


KERNELS: Mapping[str, KernelMaker] = {
    "mm": _mm, "addmm": _addmm, "_addmm_activation": _addmm, "_scaled_mm": _mm, "linear": _linear, "bmm": _bmm, "baddbmm": _baddbmm,
    "_grouped_mm": _grouped, "_scaled_grouped_mm": _grouped, "_embedding_bag": _lookup,
    **{name: functools.partial(_convolution, name) for name in CONVOLUTIONS},
}  # fmt: skip
