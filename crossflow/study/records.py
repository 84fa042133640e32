"""Finished points on disk: appended block by block as they come, read back on resume, put in order at the end.

Neither writing nor reading holds more than a block in memory, so that a study of millions of points is as easy as a small one.
"""

from __future__ import annotations

import csv
import io
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
import orjson

from crossflow import files
from crossflow.arrays import Array, plain
from crossflow.errors import CrossflowError
from crossflow.names import cell

POINTS, TABLE, RUN = "points.jsonl", "points.csv", "run.json"
BLOCK = 4096  # rows held in memory at once

# ------------------------------------------------------------------------------------------ rows as text


def to_lines(columns: Mapping[str, Sequence[Any]]) -> str:
    """Rows as lines of JSON, from columns; numbers that are not finite are null."""
    names = ",".join(f"{json.dumps(name)}:%s".replace("%", "%%").replace("%%s", "%s") for name in columns)
    line = f"{{{names}}}\n"
    return "".join([line % row for row in zip(*map(_texts, columns.values()), strict=True)])


def _texts(values: Sequence[Any]) -> list[str]:
    """Each value as JSON."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        return (
            orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",") if values.size else []
        )
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if set(map(type, listed)) <= {str, bool, type(None)}:  # few distinct ones
        known = {value: _text(value) for value in set(listed)}
        return list(map(known.__getitem__, listed))
    return list(map(_text, listed))


def _text(value: Any) -> str:
    return json.dumps(plain(value), separators=(",", ":"))


def numbers(values: Sequence[Any]) -> Array:
    """Values as numbers, NaN for what is missing."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


# ------------------------------------------------------------------------------------------ the folder of a run


def start(out: Path, run: Mapping[str, Any], resume: bool) -> bool:
    """Prepare the folder of a run; whether it holds points to go on from.

    Raises
    ------
    CrossflowError
        When the folder cannot be written, holds an unfinished run that is not to be resumed, or one of another study.
    """
    earlier = _read_run(out)
    if earlier is None and (out / POINTS).exists():
        raise CrossflowError(
            f"{out / POINTS} is there without the record of its run ({RUN}); move it away, or give another folder with --out"
        )
    goes_on = resume and earlier is not None
    if goes_on and earlier is not None:
        _same_study(out, earlier, run)
        for _ in scan(out / POINTS):
            pass  # to tell of a bad line in the middle before anything is touched
    elif earlier is not None and not earlier.get("finished") and (out / POINTS).exists():
        raise CrossflowError(
            f"{out} holds an unfinished run of {earlier.get('name')}; continue it with --resume, or give another folder with --out"
        )
    if earlier is not None and not goes_on:
        _remove_results(out, earlier)
    files.write_text(out / RUN, json.dumps({**run, "finished": False}, indent=2) + "\n")
    if not goes_on or not (out / POINTS).exists():
        files.write_text(out / POINTS, "")
    return goes_on


def _remove_results(out: Path, earlier: Mapping[str, Any]) -> None:
    """Remove what an earlier run wrote beside its points, and their table: none of it would be of the next one."""
    listed = earlier.get("files")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    for path in (out / name for name in (*names, TABLE)):
        if path.is_file() and path.resolve().is_relative_to(out.resolve()):
            try:
                path.unlink()
            except OSError as error:
                raise CrossflowError(f"{path} cannot be replaced ({error}); give another folder with --out") from None


def _read_run(out: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads((out / RUN).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise CrossflowError(f"{out / RUN} cannot be read ({error}); give another folder with --out") from None


def _same_study(out: Path, earlier: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    for what in ("study", "version"):
        if earlier.get(what) != run.get(what):
            raise CrossflowError(
                f"{out} holds a run of a different {what} ({earlier.get(what)}, now {run.get(what)}); its points would not fit."
                " Run without --resume into another folder with --out"
            )


def scan(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Offset, length and content of every row of a file; a last line that was cut short is left out."""
    if not path.exists():
        return
    offset, bad = 0, None
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if bad is not None:
                raise CrossflowError(f"{path}:{bad}: not a point of a study; move the file away and start again")
            if line.strip():
                row = _row(line)
                bad = number if row is None else None
                if row is not None and line.endswith(b"\n"):
                    yield offset, len(line), row
            offset += len(line)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8"))
        return row if isinstance(row, dict) and isinstance(row["id"], int) else None
    except (ValueError, KeyError):
        return None


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a file in its order."""
    return (row for _, _, row in scan(path))


def finish(out: Path, run: Mapping[str, Any], written: Sequence[Path] = ()) -> list[Path]:
    """Write the points as CSV, and mark the run as finished, with the names of the files `written` beside."""
    write_csv(out / POINTS, out / TABLE)
    names = sorted(path.relative_to(out).as_posix() for path in written)
    files.write_text(out / RUN, json.dumps({**run, "finished": True, "files": names}, indent=2) + "\n")
    return [out / POINTS, out / TABLE, out / RUN]


def write_csv(points: Path, table: Path) -> None:
    """Rows of a JSON-lines file as CSV with one header line, holding one row at a time."""
    with files.replacing(table) as stream:
        if not _rewritten(points, stream):
            _write_table(stream, lambda: rows(points))


def _rewritten(points: Path, stream: IO[str]) -> bool:
    """Write rows that all have the same columns from their text, ten times as fast as through their values; else False.

    Quotes inside a JSON string are escaped, so that a comma before a quote always ends a value, but for those inside lists
    and mappings: these give more parts than there are columns.
    """
    first = next(rows(points), None)
    if first is None:
        return True
    starts = [f"{json.dumps(name)[1:]}:" for name in first]
    cuts = [slice(len(start), None) for start in starts]
    known: dict[str, str] = {"null": ""}
    stream.write(csv_text([dict.fromkeys(first)]).splitlines()[0] + "\n")
    with points.open(encoding="utf-8") as lines:
        for line in lines:
            parts = line[2:-2].split(',"')
            if len(parts) != len(starts) or not all(map(str.startswith, parts, starts)):
                stream.seek(0)
                stream.truncate()
                return False
            texts: Iterator[Any] = map(operator.getitem, parts, cuts)
            cells = [text if text[0] in _NUMBER else known[text] if text in known else _written(text, known) for text in texts]
            stream.write(",".join(cells) + "\n")
    return True


_NUMBER = frozenset("-0123456789")


def _written(text: str, known: dict[str, str]) -> str:
    """A JSON value that is no number as a CSV cell; `known` remembers those that recur."""
    cell = csv_text([{"a": json.loads(text), "b": 0}]).split("\n", 1)[1].removesuffix(",0\n")
    if len(known) < 10_000:
        known[text] = cell
    return cell


def csv_text(found: Iterable[Mapping[str, Any]]) -> str:
    """A few rows as CSV with one header line."""
    listed, stream = list(found), io.StringIO()
    _write_table(stream, lambda: listed)
    return stream.getvalue()


def _write_table(stream: IO[str], found: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Write rows, which are gone through twice, under a header of all their columns."""
    names = list(dict.fromkeys(name for row in found() for name in row))
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(cell, names))
    writer.writerows([_cell(row.get(name)) for name in names] for row in found())


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else cell(value) if isinstance(value, str) else value


# ------------------------------------------------------------------------------------------ the file of points


@dataclass(kw_only=True)
class PointsFile:
    """The file of points while a run writes to it, in blocks of rows that belong together."""

    path: Path  # the file
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # place of each block: offset and length, by its number

    def append(self, block: int, text: str) -> None:
        """Append a block and see it onto the disk."""
        content = text.encode("utf-8")
        try:
            with self.path.open("ab") as stream:
                offset = stream.seek(0, os.SEEK_END)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise CrossflowError(
                f"cannot write {self.path}: {error.strerror}; finished points are kept, make room and continue with --resume"
            ) from None
        self.blocks[block] = (offset, len(content))

    def keep(self, blocks: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Rewrite the file with some of its rows alone: numbers of blocks, each with the places of its rows."""
        self.blocks = {}
        offset = 0
        with files.replacing(self.path, binary=True) as stream, self.path.open("rb") as source:
            for number, places in blocks:
                length = 0
                for start, size in places:
                    source.seek(start)
                    stream.write(source.read(size))
                    length += size
                self.blocks[number] = (offset, length)
                offset += length

    def cut(self, offset: int) -> None:
        """Drop everything from an offset on."""
        with self.path.open("r+b") as stream:
            stream.truncate(offset)

    def put_in_order(self) -> None:
        """Rewrite the file with its blocks in the order of their numbers, if they are not."""
        starts = [self.blocks[number][0] for number in sorted(self.blocks)]
        if starts != sorted(starts):
            self.keep([(number, [self.blocks[number]]) for number in sorted(self.blocks)])


class Rows(Sequence[dict[str, Any]]):
    """Some rows of a file of points, read when asked for."""

    def __init__(self, path: Path, places: Any) -> None:
        self._path = path
        self._places = np.array(places, dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Rows:
        """One row, or some of the rows."""
        if isinstance(index, slice):
            return Rows(self._path, self._places[index])
        start, size = self._places[index]
        with self._path.open("rb") as stream:
            stream.seek(start)
            return dict(json.loads(stream.read(size)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as stream:
            for start, size in self._places.tolist():
                stream.seek(start)
                yield json.loads(stream.read(size))

    @property
    def places(self) -> Sequence[tuple[int, int]]:
        """Offset and length of each row."""
        return [(int(start), int(size)) for start, size in self._places]


@dataclass(kw_only=True)
class PointsTable:
    """Columns of all rows that tables and plots need: `add` blocks in any order, then `columns` in the order of blocks."""

    names: tuple[str, ...]
    _blocks: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, block: int, columns: Mapping[str, Sequence[Any]], count: int) -> None:
        """Keep what is needed of a block of `count` rows."""
        self._blocks[block] = {name: _packed(columns.get(name, [None] * count)) for name in self.names}

    def columns(self) -> dict[str, Any]:
        """Columns over all rows: float arrays with NaN for what is missing where all are numbers, object arrays otherwise."""
        ordered = [self._blocks[number] for number in sorted(self._blocks)]
        return {name: _joined([block[name] for block in ordered]) for name in self.names}


def _packed(values: Sequence[Any]) -> Any:
    if isinstance(values, np.ndarray) and values.dtype.kind in "fb":
        return values
    if all(isinstance(value, float) or value is None for value in values) and any(value is not None for value in values):
        return numbers(values)
    packed = np.empty(len(values), dtype=object)
    packed[:] = list(values)
    return packed


def _joined(parts: Sequence[Any]) -> Any:
    kinds = {part.dtype.kind for part in parts}
    return np.concatenate(parts) if len(kinds) == 1 else np.concatenate([part.astype(object) for part in parts]) if parts else np.empty(0)
