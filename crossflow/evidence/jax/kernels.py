"""Kernels of operations of XLA, from the sizes of their tensors.

Products are 2 m n k operations for each element of the batch dimensions, convolutions those of their implicit product without what falls
on padding, as XLA's own analysis counts them (`HloCostAnalysis`). A pass has an operation for each element.

References
----------
.. [1] Merrill and Grimshaw, "High Performance and Scalable Radix Sorting", Parallel Processing Letters 21(2), 2011: a pass over all keys
   for each digit, of eight bits in CUB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossflow.evidence.jax.hlo import HloWindow
from crossflow.evidence.jax.text import ELEMENTS, HloOp, HloTensor, TextError
from crossflow.program.kernels import Kernel, Product
from crossflow.program.operations import depthwise_flops, implicit

DIGIT = 8  # bits that a pass of a radix sort works on
FEW = 32  # elements of a window that is added up by itself; sums over more are built as trees


@dataclass(frozen=True)
class HloSizes:
    """Sizes of a tensor that no text has."""

    shape: tuple[float, ...]
    element: float = 2.0

    def numel(self) -> float:
        """Elements. [1]"""
        return math.prod(self.shape)

    def element_size(self) -> float:
        """Size of an element. [B]"""
        return self.element


def product(
    lhs: HloTensor, rhs: HloTensor, out: HloTensor, contract: Sequence[Sequence[int]], batch: Sequence[Sequence[int]], line: int
) -> Product:
    """A product over dimensions of both tensors; what its results move where they are of another size than what is multiplied."""
    for one, dims in ((lhs, (*contract[0], *batch[0])), (rhs, (*contract[1], *batch[1]))):
        if any(dim >= len(one.shape) for dim in dims):
            raise TextError(line, f"the product names dimension {max(dims)} of a tensor of {len(one.shape)}")
    k, copies = (float(math.prod(lhs.shape[dim] for dim in dims)) for dims in (contract[0], batch[0]))
    other = math.prod(rhs.shape[dim] for dim in contract[1])
    if k != other:
        raise TextError(line, f"the product adds up {k:g} elements of one tensor and {other} of the other")
    rows, columns = lhs.numel() / (k * copies), rhs.numel() / (k * copies)
    narrow = min(lhs.element_size(), rhs.element_size())
    wide = out.element_size() if out.element_size() != max(narrow, 2.0) else None
    return Product(m=rows, n=columns, k=k, batch=copies, result=wide)


def multiplies_in(*tensors: HloTensor) -> str:
    """Type in which tensors are multiplied, the one of fewest bits, "" where no unit multiplies in it."""
    return ELEMENTS[min(tensors, key=HloTensor.element_size).dtype][1]


def convolution(op: HloOp, lhs: HloTensor, rhs: HloTensor, out: HloTensor) -> tuple[tuple[Kernel, ...], float]:
    """Kernels of a convolution, and its operations; none of a depthwise one, which multiplies no matrices. [flop]"""
    given, weights, made = re.split(r"_|->", op.attributes["labels"])
    window: HloWindow = op.attributes["window"]
    valid = 1.0  # pairs of a place of the result and one of the window that meet an element, over places of the result
    for i, (size, stride, low, _, spread, apart) in enumerate(window):
        mark = str(i)
        length, places = lhs.shape[given.index(mark)], out.shape[made.index(mark)]
        valid *= _meetings(length, places, size, stride, low, spread, apart) / places
    groups = int(op.attributes.get("groups", 1)) * int(op.attributes.get("batch_groups", 1))
    outputs, inputs = rhs.shape[weights.index("o")], rhs.shape[weights.index("i")]
    rows = out.numel() / outputs
    shape = HloSizes((float(outputs), float(inputs), valid), rhs.element_size())
    found = implicit(shape, groups, rows, ("forward",))
    if found is None:
        return (), depthwise_flops(shape, rows, ("forward",))
    return found, sum(float(one.flops) for one in found if isinstance(one, Product))


def _meetings(length: int, places: int, size: int, stride: int, low: int, spread: int, apart: int) -> int:
    """Pairs of a place of the result and one of the window at which an element lies rather than padding or a gap."""
    found = 0
    for at in range(size):
        first = at * apart - low  # where the window's place lies in the spread input for the first place of the result
        if spread == 1:
            begin = max(0, -(first // stride)) if first < 0 else 0
            last = (length - 1 - first) // stride
            found += max(0, min(places - 1, last) - begin + 1)
        else:
            ends = (length - 1) * spread
            found += sum(1 for i in range(places) if 0 <= (place := first + i * stride) <= ends and place % spread == 0)
    return found


def window_flops(op: HloOp, out: HloTensor) -> float:
    """Operations of sums over windows; of long ones as a tree. [flop]"""
    size = math.prod(one[0] for one in op.attributes["window"])
    return out.numel() * (float(size) if size <= FEW else 2.0 * math.log2(size))


def sort_passes(keys: HloTensor) -> int:
    """Passes over all keys that a radix sort takes [1]_. [1]"""
    return max(1, math.ceil(keys.element_size() * 8 / DIGIT))


def fft_flops(out: HloTensor, given: HloTensor) -> float:
    """Operations of a fast Fourier transform of the last dimension, 5 n log2 n each. [flop]"""
    length = max(out.shape[-1:] + given.shape[-1:], default=1)
    count = max(out.numel(), given.numel())
    return 5.0 * count * math.log2(max(length, 2))


def ragged_product(lhs: HloTensor, rhs: HloTensor, out: HloTensor, groups: float, dims: Mapping[str, Sequence[int]], line: int) -> Product:
    """A product of groups of rows, each with a matrix of its own; or over rows, which gives a matrix for each group.

    `dims` names dimensions as HLO does: contracting, batch, and along which rows of the first tensor fall into groups. Rows are taken as
    spread evenly over the groups.
    """
    contract, batch = dims["lhs_contracting"], dims["lhs_batch"]
    if set(dims["lhs_ragged"]) & set(batch):
        return product(lhs, rhs, out, (contract, dims["rhs_contracting"]), (batch, dims["rhs_batch"]), line)
    k, copies = (float(math.prod(lhs.shape[dim] for dim in found)) for found in (contract, batch))
    rows = lhs.numel() / (k * copies)
    if set(dims["lhs_ragged"]) & set(contract):
        return Product(m=rows, n=rhs.numel() / (k * copies), k=k / groups, batch=groups * copies)
    return Product(m=rows / groups, n=rhs.numel() / (k * copies * groups), k=k, batch=groups * copies)
