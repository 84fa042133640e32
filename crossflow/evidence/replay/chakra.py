"""Chakra traces in protobuf, as the converter of PyTorch's execution traces writes them [1]_, without a library of protobuf.

A file is a list of messages, each behind its length: what the file says of itself, then a node each. Of a node its name, its tensors and
its attributes count; tensors are written as Python writes lists, and are read as plain values: nothing in a file is executed.

References
----------
.. [1] MLCommons Chakra, schema/protobuf/et_def.proto (messages `Node`, `IOInfo` and `AttributeProto`) and
   src/converter/pytorch_converter.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import IO, Any

from crossflow.evidence.replay.events import LARGEST

VARINT, FIXED64, BYTES_FOLLOW, FIXED32 = 0, 1, 2, 5  # how protobuf writes a field
# Numbers of fields: of `Node`, of `IOInfo`, and of `AttributeProto`, where numbers of all widths and texts count.
NAME, SIDES, ATTRIBUTE = 2, {8: "inputs", 9: "outputs"}, 10
PARTS_OF_SIDE = {1: "values", 2: "shapes", 3: "types"}
ATTRIBUTE_NAME, NUMBERS, SIGNED, TEXT = 1, (7, 9, 11, 13, 27), (15, 17), 29


def chakra_nodes(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Nodes of a Chakra trace that are operations of the host, as execution traces in JSON write them; ValueError where it is none."""
    first = True
    while (size := _length(stream)) is not None:
        message = stream.read(size) if size <= LARGEST else b""
        if len(message) < size:
            raise ValueError("a message ends in the middle")
        if not first:  # the first says which version of the schema it is
            node = _node(message)
            if node is not None:
                yield node
        first = False


def _length(stream: IO[bytes]) -> int | None:
    """The length of the next message, None at the end."""
    found, shift = 0, 0
    while piece := stream.read(1):
        found |= (piece[0] & 0x7F) << shift
        if piece[0] < 0x80:
            return found
        shift += 7
        if shift > 35:
            raise ValueError("the length of a message is none")
    return None


def _node(message: bytes) -> dict[str, Any] | None:
    found: dict[str, Any] = {"attrs": []}
    for number, value in _fields(message):
        if number == NAME:
            found["name"] = _text(value)
        elif number in SIDES and isinstance(value, bytes):
            parts = {PARTS_OF_SIDE[part]: _literal(_text(text)) for part, text in _fields(value) if part in PARTS_OF_SIDE}
            found[SIDES[number]] = parts
        elif number == ATTRIBUTE and isinstance(value, bytes):
            found["attrs"].append(_attribute(value))
    on_device = any(one["name"] == "is_cpu_op" and not one["value"] for one in found["attrs"])
    return None if on_device else found


def _attribute(message: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "", "value": 0}  # a number of 0 may be left out
    for number, value in _fields(message):
        if number == ATTRIBUTE_NAME:
            found["name"] = _text(value)
        elif number in NUMBERS and isinstance(value, int):
            found["value"] = value - (1 << 64) if value >= 1 << 63 else value
        elif number in SIGNED and isinstance(value, int):
            found["value"] = (value >> 1) ^ -(value & 1)
        elif number == TEXT:
            found["value"] = _text(value)
    return found


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, way = key >> 3, key & 7
        if way == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if way == BYTES_FOLLOW:
            size, at = _varint(message, at)
        elif way in (FIXED64, FIXED32):
            size = 8 if way == FIXED64 else 4
        else:
            raise ValueError(f"a field is written in the way {way}, which protobuf does not have")
        if at + size > len(message):
            raise ValueError("a field ends in the middle")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    found, shift = 0, 0
    while at < len(message) and shift < 70:
        found |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 0x80:
            return found, at
    raise ValueError("a number ends in the middle")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise ValueError("a text is a number")


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
