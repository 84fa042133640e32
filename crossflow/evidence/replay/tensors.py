"""Arguments and results of a traced operation: tensors by their sizes, and values, as far as a trace says them."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Bytes of an element by the names of types in traces, lower case without blanks.
BYTES: Mapping[str, int] = {
    "float": 4, "int": 4, "double": 8, "long": 8, "longint": 8, "half": 2, "bfloat16": 2, "short": 2, "char": 1, "byte": 1, "bool": 1,
    "unsignedchar": 1, "signedchar": 1, "c10::half": 2, "c10::bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "shortint": 2, "signedcharint": 1,
}  # fmt: skip
# Types of numbers with a point as a program names them.
DTYPES: Mapping[str, str] = {
    "float": "fp32", "double": "fp64", "half": "fp16", "c10::half": "fp16", "bfloat16": "bf16", "c10::bfloat16": "bf16",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8",
}  # fmt: skip
LISTS = ("tensorlist", "optionaltensorlist", "genericlist")
UNSAID = "(not recorded)"  # a list of tensors whose sizes the profiler did not write
UNKNOWN_ELEMENT = 4  # of tensors in lists, whose type the profiler does not write: that of fp32 [B]


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """What a trace says of a tensor.

    Attributes
    ----------
    shape : its sizes. [1]
    type : as the trace names it, "" where it does not.
    element : size of an element. [B]
    number : of the tensor in an execution trace, -1 without one.
    """

    shape: tuple[int, ...]
    type: str
    element: int
    number: int = -1

    def numel(self) -> int:
        """Its elements. [1]"""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Size of an element. [B]"""
        return self.element


TracedArgument = Any  # a tensor, a tuple of arguments, a plain value, or None for none and for what the trace does not say


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """Arguments of an operation in the order of its schema, and its results; None where these are not known."""

    args: tuple[TracedArgument, ...]
    out: tuple[TracedArgument, ...] | None = None


def plain_type(written: Any) -> str:
    """A type as traces write it, as `BYTES` names it.

    >>> plain_type("long int"), plain_type("torch.Float")
    ('longint', 'float')
    """
    return str(written).lower().replace(" ", "").removeprefix("torch.")


def tensors_of(given: TracedArgument) -> Iterator[TracedTensor]:
    """All tensors of some arguments, those of lists too."""
    if isinstance(given, TracedTensor):
        yield given
    elif isinstance(given, tuple):
        for one in given:
            yield from tensors_of(one)


def profiled(sizes: Sequence[Any], types: Sequence[Any], values: Sequence[Any]) -> TracedOperation:
    """An operation by what the profiler writes: sizes and types of its inputs, and values where it was asked for them."""
    rows = [(size, types[i] if i < len(types) else "", values[i] if i < len(values) else "") for i, size in enumerate(sizes)]
    return TracedOperation(tuple(_profiled(*row) for row in rows))


def _profiled(size: Any, written: Any, value: Any) -> TracedArgument:
    kind = plain_type(written)
    if kind in BYTES and str(written)[0].islower() and _is_shape(size):  # Int and Bool are plain values
        return TracedTensor(tuple(size), kind, BYTES[kind])
    if kind in LISTS:
        known = isinstance(size, list) and size and all(_is_shape(one) for one in size)
        return tuple(TracedTensor(tuple(one), "", UNKNOWN_ELEMENT) for one in size) if known else UNSAID
    return _literal(value)


def _is_shape(size: Any) -> bool:
    return isinstance(size, list) and all(isinstance(one, int) for one in size)


def _literal(value: Any) -> TracedArgument:
    """A value that the profiler wrote as text; nothing is executed."""
    if not isinstance(value, str):
        return value if isinstance(value, bool | int | float) else None
    try:
        found = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value or None
    return tuple(found) if isinstance(found, list) else found


def recorded(values: Any, shapes: Any, types: Any) -> tuple[TracedArgument, ...]:
    """Arguments as an execution trace writes them: values, shapes and types side by side."""
    if not all(isinstance(part, list) for part in (values, shapes, types)) or not len(values) == len(shapes) == len(types):
        return ()
    return tuple(_recorded(*row) for row in zip(values, shapes, types, strict=True))


def _recorded(value: Any, shape: Any, written: Any) -> TracedArgument:
    """One of them; a tensor is [its number, that of its memory, where it begins there, elements, bytes of one, device]."""
    text = str(written)
    if text.startswith("Tensor("):
        kind = plain_type(text[len("Tensor(") : -1])
        if not isinstance(value, list) or not _is_shape(value[:5]) or len(value) < 5 or not _is_shape(shape) or kind.startswith("nullptr"):
            return None
        return TracedTensor(tuple(shape), kind, value[4], value[0])
    if text.startswith(("GenericList[", "Tuple[")) and isinstance(value, list):
        kinds = [*_split(text.partition("[")[2][:-1])]
        inner = shape if isinstance(shape, list) and len(shape) == len(value) else [[]] * len(value)
        kinds = kinds if len(kinds) == len(value) else kinds[:1] * len(value)
        return tuple(_recorded(*row) for row in zip(value, inner, kinds, strict=False)) if kinds else ()
    return None if value == "<None>" else value


def _split(text: str) -> Iterator[str]:
    """Types of a list, which may hold lists.

    >>> [*_split("Tensor(float),GenericList[Int,Int],Int")]
    ['Tensor(float)', 'GenericList[Int,Int]', 'Int']
    """
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    if text[start:]:
        yield text[start:]
