"""Points of a study as Parquet, for studies of millions: blocks of columns while a run goes on, one file of row groups at its end.

A Parquet file cannot be read before its footer is there. So a run appends each block as a message of its own, behind a line that says
what is in it, and what a killed run leaves is read back up to the last whole one. Neither writing, reading nor joining holds more than
a row group in memory. Values are those of the lines of JSON, to the last bit: no value is text that says a number.

References
----------
.. [1] Apache Parquet, "File Format", 2.10, 2023: row groups, and the footer behind them.
.. [2] Apache Arrow, "IPC Streaming Format", 1.0: the messages of blocks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import orjson

from crossflow.answers.study.records import BLOCK, Places, PointsFile, texts
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.packages import needed

GROUP = 1 << 15  # rows of a row group
SAFE = 2**63  # whole numbers below it have a type of their own
MIXED = b"crossflow.json"  # on columns whose values are of several kinds, each as the text of its JSON
_HEAD = 1 << 20  # characters that the line before a block has at most


class ColumnBlock(NamedTuple):
    """Some rows on their way to the file: what the line before them says."""

    first: int  # number of the first row
    rows: int
    size: int  # of what follows the line [B]
    kinds: Mapping[str, str]  # of the values by column: float, int, bool, text, null or json


# ------------------------------------------------------------------------------------------ blocks of a run that goes on


def block_of(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Rows as a block, from columns, of which ``id`` counts them; numbers that are not finite are missing."""
    arrow = needed("pyarrow")
    kinds, arrays = {}, []
    for name, values in columns.items():
        kinds[name], array = _array(arrow, values)
        arrays.append(array)
    batch = arrow.record_batch(arrays, names=list(columns))
    sink = io.BytesIO()
    with arrow.ipc.new_stream(sink, batch.schema, options=arrow.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_batch(batch)
    content = sink.getvalue()
    head = {"id": int(columns["id"][0]), "rows": batch.num_rows, "size": len(content), "kinds": kinds}
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + content


def _array(arrow: Any, values: Sequence[Any]) -> tuple[str, Any]:
    """What kind of values a column has, and the column."""
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        finite = np.isfinite(values)
        return ("float" if finite.any() else "null"), arrow.array(values, mask=None if finite.all() else ~finite)
    if isinstance(values, np.ndarray) and values.dtype.kind in "ib":
        return ("int" if values.dtype.kind == "i" else "bool"), arrow.array(values)
    written = texts(values)
    known = {text: orjson.loads(text) for text in set(written)}
    kind = _kind(known.values())
    if kind == "json":
        return kind, arrow.array([None if text == "null" else text for text in written], arrow.string())
    return kind, arrow.array([known[text] for text in written], _type(arrow, kind))


def _kind(values: Any) -> str:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 or not kinds <= {float, int, bool, str}:
        return "json"
    if kinds == {int} and any(not -SAFE <= value < SAFE for value in values if value is not None):
        return "json"
    return {float: "float", int: "int", bool: "bool", str: "text"}[kinds.pop()] if kinds else "null"


def _type(arrow: Any, kind: str) -> Any:
    made = {"float": arrow.float64, "int": arrow.int64, "bool": arrow.bool_, "null": arrow.null}
    return made.get(kind, arrow.string)()


def blocks(path: Path) -> Iterator[tuple[int, ColumnBlock]]:
    """Offset and head of every block of a file; a last one that was cut short is left out."""
    if not path.exists():
        return
    offset, end = 0, path.stat().st_size
    with path.open("rb") as stream:
        while offset < end and (found := _head(stream)) is not None:
            offset_after = stream.tell() + found.size
            if offset_after > end:
                return
            yield offset, found
            offset = stream.seek(offset_after)


def _head(stream: IO[bytes]) -> ColumnBlock | None:
    try:
        told = json.loads(stream.readline(_HEAD))
        return ColumnBlock(int(told["id"]), int(told["rows"]), int(told["size"]), dict(told["kinds"]))
    except (ValueError, KeyError, TypeError):
        return None


def finished(path: Path, ends: Mapping[int, int]) -> list[tuple[int, tuple[int, int]]]:
    """Tasks whose rows are all in a file of blocks, by first row, each with the place of its block; `ends` by first row."""
    found: dict[int, tuple[int, int]] = {}
    with path.open("rb") as stream:
        for offset, block in blocks(path):
            if block.first + block.rows == ends.get(block.first):
                stream.seek(offset)
                found[block.first] = (offset, len(stream.readline(_HEAD)) + block.size)
    return sorted(found.items())


def columns_of(path: Path, place: tuple[int, int], names: Sequence[str]) -> dict[str, list[Any]]:
    """Some columns of a block; what it lacks is missing."""
    block, batch = _read(path, place)
    there = set(batch.schema.names)
    return {name: _values(batch.column(name), block.kinds[name]) if name in there else [None] * block.rows for name in names}


def _read(path: Path, place: tuple[int, int]) -> tuple[ColumnBlock, Any]:
    arrow = needed("pyarrow")
    with path.open("rb") as stream:
        stream.seek(place[0])
        block = _head(stream)
        assert block is not None  # its sum was right
        return block, arrow.ipc.open_stream(stream.read(block.size)).read_next_batch()


def _values(column: Any, kind: str) -> list[Any]:
    found: list[Any] = column.to_pylist()
    return [None if text is None else orjson.loads(text) for text in found] if kind == "json" else found


# ------------------------------------------------------------------------------------------ the file of a finished run


def join(source: Path, places: Places, path: Path) -> None:
    """Write blocks, in the order of their numbers, as one Parquet file, which appears when all is written."""
    arrow, parquet = needed("pyarrow"), needed("pyarrow.parquet")
    kinds = _joined_kinds(source)
    schema = arrow.schema([_field(arrow, name, kind) for name, kind in kinds.items()])
    words = [name for name, kind in kinds.items() if kind in ("text", "json", "bool", "null")]
    with files.replacing(path, binary=True) as stream:
        writer = parquet.ParquetWriter(stream, schema, compression="zstd", use_dictionary=words)
        held: list[Any] = []
        try:
            for _, place in sorted(places):
                held.append(_as(arrow, *_read(source, place), schema, kinds))
                if sum(batch.num_rows for batch in held) >= GROUP:
                    writer.write_table(arrow.Table.from_batches(held, schema), row_group_size=2 * GROUP)
                    held = []
            if held:
                writer.write_table(arrow.Table.from_batches(held, schema), row_group_size=2 * GROUP)
        except OSError:
            writer.is_open = False  # whose end would ask for room again
            raise
        writer.close()


def _field(arrow: Any, name: str, kind: str) -> Any:
    return arrow.field(name, _type(arrow, kind), metadata={MIXED: b"true"} if kind == "json" else None)


def _joined_kinds(path: Path) -> dict[str, str]:
    """One kind a column for all blocks: text of JSON where blocks have several."""
    found: dict[str, str] = {}
    for _, block in blocks(path):
        for name, kind in block.kinds.items():
            before = found.setdefault(name, kind)
            if before != kind and kind != "null":
                found[name] = kind if before == "null" else "json"
    return found


def _as(arrow: Any, block: ColumnBlock, batch: Any, schema: Any, kinds: Mapping[str, str]) -> Any:
    """A block in the columns of all blocks."""
    arrays = []
    for name, kind in kinds.items():
        own = block.kinds.get(name, "null")
        if own == "null":
            arrays.append(arrow.nulls(block.rows, schema.field(name).type))
        elif kind == own:
            arrays.append(batch.column(name))
        else:
            arrays.append(arrow.array([None if v is None else json.dumps(v) for v in batch.column(name).to_pylist()], arrow.string()))
    return arrow.record_batch(arrays, schema=schema)


@dataclass(frozen=True, kw_only=True)
class JoinedTable:
    """Columns of all rows that stay on disk: blocks of a run that goes on, joined at its end."""

    path: Path  # of the joined file
    names: Sequence[str]

    def kept(self, file: PointsFile, number: int, place: tuple[int, int]) -> tuple[Mapping[str, Any], int]:
        """What is needed of a block that is on disk, and its rows."""
        del number
        columns = columns_of(file.path, place, self.names)
        return columns, len(next(iter(columns.values())))

    def add(self, block: int, columns: Mapping[str, Sequence[Any]], count: int) -> None:
        """Nothing: the block is on disk."""

    def end(self, file: PointsFile) -> None:
        """Join the blocks."""
        join(file.path, list(file.blocks.items()), self.path)

    def columns(self) -> ParquetPoints:
        """Columns over all rows."""
        return ParquetPoints(self.path, self.names)


class ParquetPoints(Mapping[str, Any]):
    """Columns of a finished study's points, each read when it is asked for, and not kept.

    Numbers are float arrays, NaN for what is missing; flags arrays of booleans; all else arrays of objects.
    """

    def __init__(self, path: Path, names: Sequence[str] | None = None) -> None:
        self.path = path
        self._file = opened(path)
        self._there = {field.name: field for field in self._file.schema_arrow}
        self._names = tuple(self._there if names is None else names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def count(self) -> int:
        """How many points there are."""
        return int(self._file.metadata.num_rows)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._there:
            return np.full(self.count(), None, dtype=object)
        return self._numpy(name, self._file.read([name]).column(0))

    def _numpy(self, name: str, column: Any) -> Any:
        field = self._there[name]
        if str(field.type) == "double":
            return column.fill_null(float("nan")).to_numpy()
        if str(field.type) == "bool" and not column.null_count:
            return column.to_numpy(zero_copy_only=False) if hasattr(column, "offset") else column.to_numpy()
        words = column.dictionary_encode() if str(field.type) == "string" else column
        if words is not column:
            words = words.combine_chunks() if hasattr(words, "combine_chunks") else words
            known = _values(words.dictionary, "json" if _mixed(field) else "text")
            table = np.empty(len(known) + 1, dtype=object)
            table[: len(known)] = known
            return table[words.indices.fill_null(len(known)).to_numpy()]
        found = np.empty(len(column), dtype=object)
        found[:] = column.to_pylist()
        return found

    def coded(self, name: str) -> tuple[Any, list[Any] | None, bool]:
        """A column as floats, NaN where one is missing, or as codes of its levels; and whether it is of flags."""
        kind = str(self._there[name].type)
        column = self._file.read([name], use_threads=False).column(0)
        if kind != "string":
            floats = column.cast("int8").cast("float64") if kind == "bool" else column.cast("float64")
            return floats.fill_null(float("nan")).to_numpy(), None, kind == "bool"
        words = column.dictionary_encode().combine_chunks()
        known = _values(words.dictionary, "json" if _mixed(self._there[name]) else "text")
        return words.indices.fill_null(len(known)).to_numpy().astype(float), [*known, None], False

    def blocks(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The same columns some rows at a time."""
        there = [name for name in names if name in self._there]
        for group in range(self._file.num_row_groups):
            table = self._file.read_row_group(group, columns=there or list(self._there)[:1], use_threads=False)
            nothing = np.full(table.num_rows, None, dtype=object)
            yield {name: self._numpy(name, table.column(name)) if name in there else nothing for name in names}


def _mixed(field: Any) -> bool:
    return MIXED in (field.metadata or {})


def opened(path: Path) -> Any:
    """A Parquet file of points; CrossflowError for what is none."""
    parquet = needed("pyarrow.parquet")
    try:
        found = parquet.ParquetFile(path, pre_buffer=False)  # which would hold all that will be read
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise CrossflowError(f"{path} cannot be read as Parquet: {told}; delete it and run the study again") from None
    if not found.schema_arrow.names or found.schema_arrow.names[0] != "id":
        raise CrossflowError(f"{path} holds no points of a study: its first column is not 'id'; give the folder that a study has written")
    return found


def rows(path: Path, first: int = 0) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet file, from one on, as the lines of JSON would say them; a column that a point lacks is null."""
    file = opened(path)
    kinds = {field.name: "json" if _mixed(field) else "" for field in file.schema_arrow}
    left = first
    for group in range(file.num_row_groups):
        if left >= (size := file.metadata.row_group(group).num_rows):
            left -= size
            continue
        table, left = file.read_row_group(group, use_threads=False).slice(left), 0
        for batch in table.to_batches(BLOCK):
            held = [_values(batch.column(name), kind) for name, kind in kinds.items()]
            yield from (dict(zip(kinds, row, strict=True)) for row in zip(*held, strict=True))
