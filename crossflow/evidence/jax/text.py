"""What texts of XLA say, whichever of the two languages they are written in: computations of operations on tensors.

HLO and StableHLO name the same operations. Names here are those of HLO [1]_ with underscores; both readers give these objects.

References
----------
.. [1] OpenXLA, "XLA operation semantics", openxla.org/xla/operation_semantics.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crossflow.base.errors import CrossflowError, did_you_mean

# Bits of an element, and the name that the type of a product has here, "" where no unit multiplies in it.
ELEMENTS: Mapping[str, tuple[int, str]] = {
    "pred": (8, ""), "i1": (8, ""), "s2": (2, ""), "u2": (2, ""), "s4": (4, "int4"), "u4": (4, "int4"), "s8": (8, "int8"),
    "u8": (8, "int8"), "s16": (16, ""), "u16": (16, ""), "s32": (32, "int32"), "u32": (32, "int32"), "s64": (64, ""), "u64": (64, ""),
    "f4e2m1fn": (4, "mxfp4"), "f8e8m0fnu": (8, ""), "f8e3m4": (8, "fp8"), "f8e4m3": (8, "fp8"), "f8e4m3fn": (8, "fp8"),
    "f8e4m3b11fnuz": (8, "fp8"), "f8e4m3fnuz": (8, "fp8"), "f8e5m2": (8, "fp8"), "f8e5m2fnuz": (8, "fp8"), "f16": (16, "fp16"),
    "bf16": (16, "bf16"), "f32": (32, "fp32"), "f64": (64, "fp64"), "c64": (64, "fp32"), "c128": (128, "fp64"), "token": (0, ""),
    "opaque": (0, ""),
}  # fmt: skip


MOST_DEVICES = 1 << 20


class TextError(CrossflowError):
    """A text that is not what it must be, with its line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line, self.message = line, message


@contextlib.contextmanager
def readable(line: int, name: str) -> Iterator[None]:
    """TextError with the line for an operation that lacks what such operations have, or whose operands do not fit."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, StopIteration, OverflowError, RecursionError):
        raise TextError(line, f"the operation {name} lacks something, or its operands do not fit; the text is damaged or cut off") from None


@dataclass(frozen=True)
class HloTensor:
    """Sizes and type of a tensor; `shards` is into how many parts each dimension is cut over the devices, where the text says so."""

    shape: tuple[int, ...]
    dtype: str
    shards: tuple[int, ...] | None = None

    def numel(self) -> int:
        """Elements. [1]"""
        return math.prod(self.shape)

    def element_size(self) -> float:
        """Size of an element; types of fewer bits than eight are packed. [B]"""
        return ELEMENTS[self.dtype][0] / 8

    @property
    def nbytes(self) -> float:
        """Size. [B]"""
        return self.numel() * self.element_size()

    @property
    def floats(self) -> bool:
        """Whether its elements are floating-point or complex numbers."""
        return self.dtype[0] in "bfc"

    @property
    def whole(self) -> tuple[int, ...]:
        """Sizes of the tensor of all devices. [1]"""
        shards = self.shards or (1,) * len(self.shape)
        return tuple(size * count for size, count in zip(self.shape, shards, strict=True))


def tensor(shape: Sequence[int], dtype: str, line: int) -> HloTensor:
    """A tensor of a type that is known."""
    if dtype not in ELEMENTS:
        raise TextError(line, f"the element type '{dtype}' is not known{did_you_mean(dtype, ELEMENTS)}")
    return HloTensor(tuple(shape), dtype)


def check_devices(devices: int, line: int) -> int:
    """So many devices; TextError where nobody has as many."""
    if not 1 <= devices <= MOST_DEVICES:
        raise TextError(line, f"expected 1 to {MOST_DEVICES:,} devices, got {devices:,}")
    return devices


HloType = HloTensor | tuple[Any, ...]  # a tensor, or a tuple of types


@dataclass(frozen=True, kw_only=True)
class HloOp:
    """One operation.

    Attributes
    ----------
    name, op : of its result, and what it is, by its name in HLO with underscores.
    type : of its result.
    operands : names of what it is given.
    attributes : what else the text says of it, as both readers write it.
    scope : path of the names that the model gave to where it stands, as JAX writes it.
    line : of the text.
    """

    name: str
    op: str
    type: HloType
    operands: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""
    line: int = 0

    @property
    def tensors(self) -> tuple[HloTensor, ...]:
        """Tensors of the result."""
        return tuple(leaves(self.type))


def leaves(of: HloType) -> list[HloTensor]:
    """Tensors of a type, in order."""
    return [of] if isinstance(of, HloTensor) else [one for part in of for one in leaves(part)]


@dataclass(frozen=True, kw_only=True)
class HloComputation:
    """Operations in order; `parameters` and `results` are names of what it takes and gives."""

    name: str
    ops: tuple[HloOp, ...]
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class HloModule:
    """A text.

    Attributes
    ----------
    name, computations, entry : the computations by name, and which of them is the step.
    devices : that run it, replicas times partitions. [1]
    partitions : of those, among which its tensors are divided. [1]
    donated, donors : output and parameter that share memory, and parameters whose memory any output may take.
    names : of the parameters of the entry, "" where the text says none.
    axes : names and sizes of the mesh, nearest neighbours first, where the text says them. [1]
    ordered : whether the compiler has put its operations in the order in which they run.
    undivided : line of an operation that has the size of all devices together; None where all have that of one.
    """

    name: str
    computations: Mapping[str, HloComputation]
    entry: str
    devices: int = 1
    partitions: int = 1
    donated: Mapping[int, int] = field(default_factory=dict)
    donors: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()
    axes: Mapping[str, int] = field(default_factory=dict)
    ordered: bool = False
    undivided: int | None = None
