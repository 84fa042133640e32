"""How large, deep and long what a file holds may be, checked before anything is built of it; and the forms of numbers."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, Strict

YAML_BYTES = 16 << 20  # a shipped file has at most 0.2 MB
DATA_BYTES = 256 << 20  # JSON and tables, unpacked
EVENT_BYTES = 16 << 20  # one event of a trace; the trace itself is read piece by piece
YAML_VALUES = 200_000  # aliases count as what they stand for
DATA_VALUES = 5_000_000
DEPTH = 64  # mappings and lists inside one another
DIGITS = 100  # characters of a number
TEXT = 20_000  # characters of a text in YAML
KEY = 200  # characters of a key in YAML
COUNT = 10**12  # the largest whole number
SMALLEST, LARGEST = 1e-30, 1e30  # magnitude of a number that is not 0, in SI units, so that products of several are floats
DEVICES = 10**7  # of a system
ENGINES = 10**5  # of a pool in a replay; a quarter of a millisecond and 9 kB each
SIZE = 10**9  # a dimension of a model
LAYERS = 2000  # of a model; each is priced as a layer of its own
SHOWN = 60  # characters of a value that a message quotes


class LimitError(ValueError):
    """What goes beyond a limit, with the limit and the cure."""


def shown(value: Any) -> str:
    """A value as messages quote it, long ones cut.

    >>> shown("a" * 10), len(shown(["a"] * 1000))
    ("'aaaaaaaaaa'", 60)
    """
    text = repr(value[:SHOWN] if isinstance(value, str | bytes | list | tuple) else value)
    cut = len(text) > SHOWN or (isinstance(value, str | bytes | list | tuple) and len(value) > SHOWN)
    return f"{text[: SHOWN - 4]} ..." if cut else text


def in_range(number: float) -> float:
    """A number whose magnitude floats can compute with; ValueError for others.

    >>> in_range(0.0), in_range(-1e9)
    (0.0, -1000000000.0)
    """
    if number and not SMALLEST <= abs(number) <= LARGEST:
        raise ValueError(f"expected 0 or a magnitude from {SMALLEST:g} to {LARGEST:g}, got {number:g}")
    return number


def _plain(given: Any) -> Any:
    """A number of NumPy, which has no shape, as one of Python; all else as it is."""
    return given.item() if getattr(given, "shape", None) == () else given


def _as_whole(given: Any) -> Any:
    """A whole number that is written with a point, or as 1e9, as an int; all else as it is."""
    number = _plain(given)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _counted(number: int) -> int:
    if abs(number) > COUNT:
        raise ValueError(f"expected a whole number of at most {COUNT:g}, got {shown(number)}")
    return number


def _of_a_column(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"expected a letter, then letters, digits and _, such as long_context, got {shown(name)}")
    return name


ColumnName = Annotated[str, AfterValidator(_of_a_column)]  # what is part of the name of a column
# Forms of numbers in files: a number is neither text nor true and false.
Whole = Annotated[int, Strict(), BeforeValidator(_as_whole), AfterValidator(_counted)]
PositiveInt = Annotated[int, Strict(), Field(gt=0), BeforeValidator(_as_whole), AfterValidator(_counted)]
NonNegativeInt = Annotated[int, Strict(), Field(ge=0), BeforeValidator(_as_whole), AfterValidator(_counted)]
Dimension = Annotated[int, Strict(), Field(gt=0, le=SIZE), BeforeValidator(_as_whole)]  # a dimension
DimensionOrZero = Annotated[int, Strict(), Field(ge=0, le=SIZE), BeforeValidator(_as_whole)]
LayerCount = Annotated[int, Strict(), Field(gt=0, le=LAYERS), BeforeValidator(_as_whole)]
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**32), BeforeValidator(_as_whole)]  # as NumPy and Optuna take them
Finite = Annotated[float, Strict(), Field(allow_inf_nan=False), BeforeValidator(_plain), AfterValidator(in_range)]
PositiveFloat = Annotated[float, Strict(), Field(gt=0.0, allow_inf_nan=False), BeforeValidator(_plain), AfterValidator(in_range)]
NonNegativeFloat = Annotated[float, Strict(), Field(ge=0.0, allow_inf_nan=False), BeforeValidator(_plain), AfterValidator(in_range)]
Flag = Annotated[bool, Strict(), BeforeValidator(_plain)]


def read(path: str | Path, most: int = DATA_BYTES) -> bytes:
    """Bytes of a file or a pipe; LimitError for more than `most`.

    Raises
    ------
    OSError
        Where it cannot be read: a device, such as ``/dev/zero``, is not opened.
    """
    with opened(path) as stream:
        return _bounded(stream, most, "")


def unpacked(content: bytes, most: int = DATA_BYTES) -> bytes:
    """What gzip packed; LimitError for more than `most`, EOFError, zlib.error or OSError for what it did not write."""
    return _bounded(gzip.GzipFile(fileobj=io.BytesIO(content), mode="rb"), most, ", unpacked")


def _bounded(stream: IO[bytes] | gzip.GzipFile, most: int, how: str) -> bytes:
    content = stream.read(most + 1)
    if len(content) > most:
        raise LimitError(f"it has more than {most >> 20} MiB{how}, the most that is read of such a file")
    return content


PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}  # by their first bytes


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """A file or a pipe, open for reading; OSError for a device."""
    if stat.S_ISCHR(mode := os.stat(path).st_mode) or stat.S_ISBLK(mode):
        raise OSError(None, "it is a device, not a file", str(path))
    with open(path, "rb") as stream:
        yield stream


def text_of(content: bytes) -> str:
    """Text in UTF-8, with a byte-order mark or without; ValueError with the line that is something else."""
    if packed := next((name for first, name in PACKED.items() if content.startswith(first)), None):
        raise ValueError(f"it is compressed ({packed}); unpack it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"it is not UTF-8 text (line {line}); save it as UTF-8") from None
    if (place := text.find("\0")) >= 0:
        raise ValueError(f"it is not UTF-8 text (line {text.count(chr(10), 0, place) + 1} holds a NUL byte); save it as UTF-8")
    return text


def json_value(text: str | bytes, *, infinite: bool = False) -> Any:
    """Data of a JSON text within the limits, which knows no key twice and, unless `infinite`, no NaN; ValueError says what is wrong."""
    raw = text.encode() if isinstance(text, str) else text
    if sum(raw.count(mark) for mark in (b",", b"[", b"{")) > DATA_VALUES:
        raise LimitError(f"it holds more than {DATA_VALUES:,} values, the most that are read of a file")
    try:
        data = json.loads(
            text_of(raw), object_pairs_hook=_unique, parse_constant=float if infinite else _refused, parse_int=_whole, parse_float=_number
        )
    except RecursionError:
        raise LimitError(_too_deep()) from None
    check_depth(data)
    return data


def check_depth(data: Any) -> None:
    """LimitError for plain data of too many lists and mappings inside one another."""
    level = [data]
    for _ in range(DEPTH + 1):
        level = [
            below
            for held in level
            for below in (held.values() if isinstance(held, dict) else held if isinstance(held, list) else ())
            if isinstance(below, dict | list)
        ]
        if not level:
            return
    raise LimitError(_too_deep())


def _too_deep() -> str:
    return f"it is nested too deeply: more than {DEPTH} lists and mappings inside one another"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate key {shown(next(key for i, key in enumerate(keys) if key in keys[:i]))}")
    return result


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise LimitError(f"a number has {len(text):,} digits, more than {DIGITS}: {text[:20]} ...")
    return int(text)


def _number(text: str) -> float:
    if len(text) > DIGITS or abs(number := float(text)) == float("inf"):
        raise LimitError(f"{shown(text)[1:-1]} is no number of at most {DIGITS} characters and 1.8e308")
    return number
