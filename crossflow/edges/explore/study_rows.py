"""Points of a study's folder as columns: read fast, checked, and encoded for a page; new rows of a study that still runs."""

from __future__ import annotations

import base64
import json
import math
import operator
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import orjson

from crossflow.answers.study.parquet import ParquetPoints
from crossflow.answers.study.parquet import rows as parquet_rows
from crossflow.answers.study.records import PARQUET, RUN, TABLE, held_in
from crossflow.base import versions
from crossflow.base.arrays import Array
from crossflow.base.drawing.words import label
from crossflow.base.errors import CrossflowError, Problem, SpecError

PART = 4096  # rows that are turned into columns at once
CODED = 256  # different numbers of a column up to which it is sent as codes of one byte
SENTENCES = 1000  # different sentences of a column up to which their numbers are kept
_DIGITS = re.compile(r"[0-9][0-9.,]*(?:e[+-]?[0-9]+)?")
NO_POINT = "not a point of a study; run the study again into another folder"
AGAIN = "give the folder that `crossflow study STUDY.yaml --out FOLDER` has written"


@dataclass(frozen=True, kw_only=True, eq=False)
class PointColumn:
    """Values of one column: numbers, NaN where there is none; codes of `levels` where they are texts; 0 and 1 where they are flags."""

    values: Array
    levels: tuple[Any, ...] | None = None
    flag: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class PointRows:
    """Rows of a file of points from some place on; `end` is where the next row begins."""

    columns: Mapping[str, PointColumn]
    rows: int
    end: int


# ------------------------------------------------------------------------------------------ the folder


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a study's run; CrossflowError where the folder is none that this version can show."""
    if not folder.is_dir():
        raise CrossflowError(f"{folder}: there is no such folder; {AGAIN}")
    if not (folder / RUN).is_file():
        held = next(iter(sorted(folder.iterdir())), None)
        what = "is empty" if held is None else f"is no study: it has no {RUN}"
        raise CrossflowError(f"{folder} {what}; {AGAIN}")
    try:
        found = json.loads((folder / RUN).read_bytes())
    except (OSError, ValueError) as error:
        raise CrossflowError(f"{folder / RUN} cannot be read: {getattr(error, 'strerror', None) or error}; {AGAIN}") from None
    if not (isinstance(found, dict) and isinstance(found.get("name"), str) and isinstance(found.get("finished"), bool)):
        raise CrossflowError(f"{folder / RUN} is not the record of a study; {AGAIN}")
    found = versions.migrated("study", found, str(folder / RUN), found=0)
    path = folder / held_in(found)
    if not path.is_file() and path.name == PARQUET and not found["finished"]:
        raise CrossflowError(f"{path} is written when its study ends, and it has not; continue it with --resume, or wait for it")
    if not path.is_file():
        also = f" ({TABLE} alone cannot be shown)" if (folder / TABLE).is_file() else ""
        raise CrossflowError(f"{path} is missing{also}; run the study again")
    return found


def read_points(path: Path, *, finished: bool) -> PointRows:
    """All whole rows; CrossflowError where there is none, or a line is no row. The last line of a finished study must be whole."""
    if path.name == PARQUET:
        return _read_parquet(path)
    found = read_from(path, 0)
    if finished and found.end < path.stat().st_size:
        raise _broken(path, found.rows + 1, "the line is cut short; run the study again with --resume to mend it")
    if not found.rows:
        more = "" if finished else "; wait until the study has written some, or continue it with --resume"
        raise CrossflowError(f"{path} holds no point{more}")
    return found


def _read_parquet(path: Path) -> PointRows:
    """All rows of a Parquet file, a column at a time."""
    file = ParquetPoints(path)
    if not file.count():
        raise CrossflowError(f"{path} holds no point; run the study again")
    columns = {}
    for name in file:
        values, levels, flag = file.coded(name)
        columns[name] = PointColumn(values=values, levels=None if levels is None else tuple(map(_word, levels)), flag=flag)
    return PointRows(columns=columns, rows=file.count(), end=path.stat().st_size)


def _word(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else _text(value)


# ------------------------------------------------------------------------------------------ reading


def read_from(path: Path, offset: int) -> PointRows:
    """Rows of a file from an offset on, at which a row begins; a last line that is not whole yet is left out."""
    gathered: dict[str, list[tuple[int, PointColumn]]] = {}
    levels: dict[str, dict[Any, int]] = {}
    rows = 0
    for part in _parts(path, offset):
        for name, column in part.columns(levels):
            gathered.setdefault(name, []).append((rows, column))
        rows += part.rows
        offset += part.size
    return PointRows(columns={name: _whole(parts, levels[name], rows) for name, parts in gathered.items()}, rows=rows, end=offset)


class _RowGroup:
    """Some rows with the same columns. Numbers go into one array at once: as objects that are kept they take twice the time."""

    def __init__(self, row: Mapping[str, Any], kinds: dict[str, bool]) -> None:
        """Columns of a row; `kinds` says of each whether all of its values were numbers so far."""
        self._kinds = kinds
        for name, value in row.items():
            if value is not None:
                kinds[name] = kinds.get(name, True) and type(value) in (int, float)
        self._names = tuple(row)
        self._numeric = [name for name in row if kinds.get(name)]
        self._others = [name for name in row if not kinds.get(name)]
        self._numbers_of, self._rest_of = _getter(self._numeric), _getter(self._others)
        self._numbers = array("d")
        self._rest: list[tuple[Any, ...]] = []
        self.size = 0

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._rest)

    def take(self, row: Mapping[str, Any], size: int) -> bool:
        """Add a row of so many bytes, if it has these columns, and numbers where they have them."""
        if self.rows == PART or len(row) != len(self._names):
            return False
        try:
            numbers, rest = self._numbers_of(row), self._rest_of(row)
        except KeyError:
            return False
        try:
            self._numbers.extend(numbers)
        except TypeError:
            del self._numbers[self.rows * len(self._numeric) :]
            if any(isinstance(value, str | list | dict) for value in numbers):
                return False
            self._numbers.extend([math.nan if value is None else value for value in numbers])
        self._rest.append(rest)
        self.size += size
        return True

    def columns(self, levels: dict[str, dict[Any, int]]) -> Iterator[tuple[str, PointColumn]]:
        """Names and values of the columns; `levels` are texts of all parts by column, with their codes."""
        values = np.asarray(self._numbers).reshape(self.rows, len(self._numeric)).T.copy()
        numbers = {name: PointColumn(values=own) for name, own in zip(self._numeric, values, strict=True)}
        rest = dict(zip(self._others, zip(*self._rest, strict=True), strict=True))
        for name in self._names:
            own = levels.setdefault(name, {})
            yield name, numbers[name] if name in numbers else _column(rest[name], own)


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Values of some columns of a row, in their order."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda row: tuple(row[name] for name in names)


def _parts(path: Path, offset: int) -> Iterator[_RowGroup]:
    """Some rows at once; all rows of a part have the same columns, for searches may differ in what they change."""
    part: _RowGroup | None = None
    kinds: dict[str, bool] = {}
    with path.open("rb") as stream:
        stream.seek(offset)
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                row = orjson.loads(line)
            except ValueError:
                raise _broken(path, number, NO_POINT) from None
            if not isinstance(row, dict) or "id" not in row:
                raise _broken(path, number, NO_POINT)
            if part is None or not part.take(row, len(line)):
                if part is not None:
                    yield part
                part = _RowGroup(row, kinds)
                part.take(row, len(line))
    if part is not None:
        yield part


def _broken(path: Path, line: int, message: str) -> SpecError:
    return SpecError([Problem(file=str(path), line=line, message=message)])


def _column(values: Sequence[Any], levels: dict[Any, int]) -> PointColumn:
    first = next((value for value in values if value is not None), None)
    if isinstance(first, int | float) or first is None:
        try:
            return PointColumn(values=np.array(values, dtype=float), flag=isinstance(first, bool))
        except (TypeError, ValueError):
            pass
    if not set(map(type, values)) <= {str, NoneType}:
        values = [value if value is None else _text(value) for value in values]
    for value in dict.fromkeys(values):
        levels.setdefault(value, len(levels))
    return PointColumn(values=np.fromiter(map(levels.__getitem__, values), dtype=float, count=len(values)), levels=())


def _text(value: Any) -> str:
    return label(value) if isinstance(value, str | float | int | dict) else json.dumps(value)


def _whole(parts: Sequence[tuple[int, PointColumn]], levels: dict[Any, int], rows: int) -> PointColumn:
    """One column of all rows; what a part of the rows lacks is missing there."""
    told = [part for _, part in parts if part.levels is not None or not np.isnan(part.values).all()]
    texts = any(part.levels is not None for part in told)
    flag = bool(told) and all(part.flag for part in told)
    missing = float(levels.setdefault(None, len(levels))) if texts else np.nan
    found = np.full(rows, missing)
    for start, part in parts:
        values = part.values
        if texts and part.levels is None:
            numbers, inverse = np.unique(values, return_inverse=True)
            codes = [levels.setdefault(None if np.isnan(number) else label(float(number)), len(levels)) for number in numbers]
            values = np.array(codes, dtype=float)[inverse]
        found[start : start + len(values)] = values
    return PointColumn(values=found, levels=tuple(levels) if texts else None, flag=flag)


def row_of(path: Path, number: int) -> dict[str, Any]:
    """The row with a number, as it stands in the file; CrossflowError where there is none."""
    if path.name == PARQUET:
        found = next(iter(parquet_rows(path, number)), None)
        if found is None or found["id"] != number:
            raise CrossflowError(f"{path}: there is no point {number}; load the page again")
        return {name: value for name, value in found.items() if value is not None}
    begins = f'{{"id":{number},'.encode()
    with path.open("rb") as stream:
        for line in stream:
            if line.startswith(begins) and line.endswith(b"\n"):
                return dict(orjson.loads(line))
    raise CrossflowError(f"{path}: there is no point {number}; load the page again")


# ------------------------------------------------------------------------------------------ for a page


def sent(column: PointColumn, rows: int) -> dict[str, Any]:
    """A column as a page reads it: one `constant`; `levels` with a `code` of each row; or `numbers`, as base64 of little-endian values."""
    values, levels = column.values[:rows], column.levels
    if levels is not None:
        return _coded(values.astype(np.uint32), _without_numbers(levels))
    if column.flag:
        return _coded(np.where(np.isnan(values), 2, values).astype(np.uint32), (False, True, None))
    if len(np.unique(values[::97])) <= CODED:  # a few, before all
        found, codes = np.unique(values, return_inverse=True)
        if len(found) <= CODED:
            return _coded(codes.astype(np.uint32), tuple(None if np.isnan(value) else float(value) for value in found))
    return {"numbers": _base64(values, "<f8")}


def size_of(data: Mapping[str, Any]) -> int:
    """Characters that a column takes in a page, about."""
    return sum(len(part) if isinstance(part, str) else 8 * len(str(part)) for part in data.values())


def _coded(codes: Any, levels: Sequence[Any]) -> dict[str, Any]:
    used, codes = np.unique(codes, return_inverse=True)
    kept = [levels[i] for i in used]
    known = {level: i for i, level in reversed(list(enumerate(kept)))}  # two levels may have become one sentence
    if len(known) < len(kept):
        codes = np.array([list(known).index(level) for level in kept])[codes]
        kept = list(known)
    if len(kept) == 1:
        return {"constant": kept[0]}
    width = 1 if len(kept) <= 2**8 else 2 if len(kept) <= 2**16 else 4
    return {"levels": kept, "width": width, "codes": _base64(codes, f"<u{width}")}


def _without_numbers(levels: Sequence[Any]) -> Sequence[Any]:
    """Sentences without their numbers where there are so many that each point has one of its own."""
    if len(levels) <= SENTENCES or sum(" " in level for level in levels[:SENTENCES] if level) < SENTENCES // 2:
        return levels
    return [level if level is None else _DIGITS.sub("…", level) for level in levels]


def _base64(values: Any, kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()
