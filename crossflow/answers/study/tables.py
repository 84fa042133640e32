"""Columns of a study's points: gathered block by block, kept as numpy's arrays beside the points of a finished run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from crossflow.answers.study.records import BLOCK, PointsFile, texts
from crossflow.base import files
from crossflow.base.arrays import Array

COLUMNS = "points.npz"
_NAMES = "names"  # of the columns, as JSON; column i is `i`, or `i.codes` in the values of `i.values` (JSON) where it holds no numbers


def numbers(values: Sequence[Any]) -> Array:
    """Values as numbers, NaN for what is missing."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def length(columns: Mapping[str, Any]) -> int:
    """How many rows columns have; those on disk are not read for it."""
    own = getattr(columns, "count", None)
    return int(own()) if own is not None else len(next(iter(columns.values()), ()))


def in_blocks(columns: Mapping[str, Any], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Some columns a block of rows at a time, so that of those on disk no more is held."""
    listed = [name for name in names if name in columns]
    own = getattr(columns, "blocks", None)
    if own is not None:
        yield from own(listed)
        return
    for first in range(0, length(columns), BLOCK):
        yield {name: columns[name][first : first + BLOCK] for name in listed}


def save(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns of equal length as arrays; of words and the like each different value once.

    The same rows give the same bytes, whether they were evaluated or read back.
    """
    arrays = {_NAMES: _bytes(list(columns))}
    for i, values in enumerate(columns.values()):
        array = _array(values)
        if array is not None:
            arrays[str(i)] = array
        else:
            known: dict[str, int] = {}
            arrays[f"{i}.codes"] = np.array([known.setdefault(text, len(known)) for text in texts(values)], dtype=np.int32)
            arrays[f"{i}.values"] = _bytes([json.loads(text) for text in known])
    with files.replacing(path, binary=True) as stream:
        np.savez(stream, **arrays)


def _array(values: Any) -> Any:
    """A column of numbers, NaN for what is missing or not finite, or one of booleans, as such; None for others."""
    if values.dtype.kind == "O":
        kinds = set(map(type, values))
        if kinds == {bool} or kinds == {np.bool_}:
            return values.astype(bool)
        if not kinds <= {float, np.float64, type(None)} or kinds == {type(None)}:
            return None
        values = numbers(values)
    return np.where(np.isfinite(values), values, np.nan) if values.dtype.kind == "f" else values


def load(path: Path) -> dict[str, Any] | None:
    """Columns that `save` wrote; None where the file is none of its."""
    found: dict[str, Any] = {}
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            for i, name in enumerate(orjson.loads(arrays[_NAMES].tobytes())):
                if str(i) in arrays:
                    found[name] = arrays[str(i)]
                else:
                    values = orjson.loads(arrays[f"{i}.values"].tobytes())
                    distinct = np.empty(len(values), dtype=object)
                    distinct[:] = values
                    found[name] = distinct[arrays[f"{i}.codes"]]
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, MemoryError, zipfile.BadZipFile):
        return None
    return found


def _bytes(data: Any) -> Any:
    return np.frombuffer(json.dumps(data, separators=(",", ":")).encode(), dtype=np.uint8)


@dataclass(kw_only=True)
class PointsTable:
    """Columns of all rows that tables and plots need: `add` blocks in any order, then `columns` in the order of blocks."""

    names: tuple[str, ...]
    _blocks: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, block: int, columns: Mapping[str, Sequence[Any]], count: int) -> None:
        """Keep what is needed of a block of `count` rows."""
        self._blocks[block] = {name: _packed(columns.get(name, [None] * count)) for name in self.names}

    def add_rows(self, block: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Keep what is needed of rows that were read back; these columns."""
        columns = {name: [row.get(name) for row in rows] for name in self.names}
        self.add(block, columns, len(rows))
        return columns

    def kept(self, file: PointsFile, number: int, place: tuple[int, int]) -> tuple[Mapping[str, Any], int]:
        """Keep what is needed of a block that is on disk; these columns, and its rows."""
        rows = file.read(place)
        return self.add_rows(number, rows), len(rows)

    def end(self, file: PointsFile) -> None:
        """Put the blocks on disk in order."""
        file.put_in_order()

    def __len__(self) -> int:
        return len(self._blocks)

    def columns(self) -> dict[str, Any]:
        """Columns over all rows: float arrays with NaN for what is missing where all are numbers, object arrays otherwise."""
        ordered = [self._blocks[number] for number in sorted(self._blocks)]
        return {name: _joined([block[name] for block in ordered]) for name in self.names}


def _packed(values: Sequence[Any]) -> Any:
    if isinstance(values, np.ndarray) and values.dtype.kind in "fb":
        return values
    if all(isinstance(value, float) or value is None for value in values) and any(value is not None for value in values):
        return numbers(values)
    known: dict[str, str] = {}  # words recur, and are many objects where they were read from a file
    packed = np.empty(len(values), dtype=object)
    packed[:] = [known.setdefault(value, value) if type(value) is str else value for value in values]
    return packed


def _joined(parts: Sequence[Any]) -> Any:
    kinds = {part.dtype.kind for part in parts}
    return np.concatenate(parts) if len(kinds) == 1 else np.concatenate([part.astype(object) for part in parts]) if parts else np.empty(0)
