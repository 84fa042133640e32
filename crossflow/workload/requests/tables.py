"""Tables of requests in files, as columns, a chunk of rows at a time: CSV, JSONL, JSON, Parquet, each perhaps with gzip."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from crossflow.base import limits
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.limits import shown
from crossflow.base.packages import needed

CHUNK = 1 << 17  # rows that are held as Python objects at once
ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet", ".pq": "parquet"}
LINE = 1 << 24  # characters of a line of JSON
ABSENT = object()  # in the place of a cell that a row lacks


@dataclass(frozen=True, kw_only=True)
class TraceRows:
    """Some rows of a table by column, with the lines on which they begin."""

    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int]


def ending(path: Path) -> str | None:
    """What kind of table a file is by its name; None for others.

    >>> ending(Path("day.csv.gz")), ending(Path("scenario.yaml"))
    ('csv', None)
    """
    suffixes = [one.lower() for one in path.suffixes]
    last = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
    return ENDINGS.get(last[0]) if last else None


def chunks(path: Path) -> Iterator[TraceRows]:
    """The rows of a table; SpecError with the line of what is none."""
    kind = ending(path)
    if kind is None:
        raise SpecError(
            [Problem(file=str(path), message=f"expected a trace of requests, a file that ends in {', '.join(ENDINGS)}, or these with .gz")]
        )
    try:
        yield from _parquet(path) if kind == "parquet" else _text_chunks(path, kind)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SpecError([Problem(file=str(path), message=f"is no whole gzip file: {error}")]) from None
    except UnicodeDecodeError:
        raise SpecError([Problem(file=str(path), message="it is not UTF-8 text; save it as UTF-8")]) from None
    except OSError as error:
        raise SpecError([Problem(file=str(path), message=f"cannot be read: {error.strerror or error}")]) from None


def _text_chunks(path: Path, kind: str) -> Iterator[TraceRows]:
    with limits.opened(path) as raw:
        stream: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if path.suffix.lower() == ".gz" else raw
        if kind == "json":
            yield from _json(path, stream)
            return
        with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="" if kind == "csv" else None) as text:
            yield from _csv(path, text) if kind == "csv" else _json_lines(path, text)


# ------------------------------------------------------------------------------------------ CSV


def _csv(path: Path, text: Iterable[str]) -> Iterator[TraceRows]:
    """Rows with the line on which each ends; comment lines, which begin with #, and empty ones are left out."""
    reader = csv.reader(text, strict=True)
    rows = ((reader.line_num, cells) for cells in reader if cells and not cells[0].startswith("#"))
    try:
        first = next(rows, None)
        if first is None:
            raise SpecError([Problem(file=str(path), message="expected a header and rows, the file is empty")])
        header = [cell.strip() for cell in first[1]]
        if twice := [name for name in header if header.count(name) > 1]:
            raise SpecError([Problem(file=str(path), line=first[0], message=f"column {shown(twice[0])} is there twice")])
        began = False
        while block := list(itertools.islice(rows, CHUNK)):
            began = True
            lines, cells = zip(*block, strict=True)
            _check_widths(path, header, lines, cells)
            yield TraceRows(columns=dict(zip(header, zip(*cells, strict=True), strict=True)), lines=lines)
        if not began:
            yield TraceRows(columns=dict.fromkeys(header, ()), lines=())
    except csv.Error as error:
        raise SpecError([Problem(file=str(path), line=reader.line_num, message=f"is not a table: {error}")]) from None


def _check_widths(path: Path, header: Sequence[str], lines: Sequence[int], cells: Sequence[Sequence[str]]) -> None:
    wrong = [i for i, row in enumerate(cells) if len(row) != len(header)]
    if wrong:
        message = f"expected {len(header)} cells as its header has, got {len(cells[wrong[0]])}{and_more(len(wrong) - 1)}"
        raise SpecError([Problem(file=str(path), line=lines[wrong[0]], message=message)])


def and_more(count: int) -> str:
    """How many more rows have a problem of the same kind.

    >>> and_more(0), and_more(2)
    ('', ' (and 2 more rows)')
    """
    return f" (and {count:,} more row{'s' if count > 1 else ''})" if count else ""


# ------------------------------------------------------------------------------------------ JSON


def _json_lines(path: Path, text: IO[str]) -> Iterator[TraceRows]:
    lines: list[int] = []
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(_lines(path, text), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        rows.append(_object(path, number, line))
        lines.append(number)
        if len(rows) == CHUNK:
            yield _rows(rows, lines)
            lines, rows = [], []
    if rows:
        yield _rows(rows, lines)


def _lines(path: Path, text: IO[str]) -> Iterator[str]:
    """Lines of a bounded length."""
    number = 0
    while line := text.readline(LINE):
        number += 1
        if len(line) == LINE:
            raise SpecError([Problem(file=str(path), line=number, message=f"the line is longer than the {LINE >> 20} MiB that are read")])
        yield line


def _object(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SpecError([Problem(file=str(path), line=number, message=f"expected a JSON object a line: {error.msg}")]) from None
    if not isinstance(row, dict):
        raise SpecError([Problem(file=str(path), line=number, message=f"expected a JSON object a line, got {shown(row)}")])
    return row


def _rows(rows: Sequence[Mapping[str, Any]], lines: Sequence[int]) -> TraceRows:
    """Rows as columns; one line may hold a list of each figure, as results of benchmarks do."""
    if len(rows) == 1 and (lists := _lists(rows[0])):
        return TraceRows(columns=lists, lines=range(1, 1 + len(next(iter(lists.values())))))
    names = dict.fromkeys(name for row in rows for name in row)
    return TraceRows(columns={name: [row.get(name, ABSENT) for row in rows] for name in names}, lines=lines)


def _lists(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists of a result of a benchmark that are as long as its prompts; none of another row."""
    prompts = row.get("input_lens")
    if not isinstance(prompts, list):
        return {}
    return {name: held for name, held in row.items() if isinstance(held, list) and len(held) == len(prompts)}


def _json(path: Path, stream: Any) -> Iterator[TraceRows]:
    """One JSON value: a list of requests, a result of a benchmark, or a report of guidellm; or lines of objects after all."""
    try:
        content = limits._bounded(stream, limits.DATA_BYTES, "")
        data = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        if "\n{" in content.decode("utf-8", "replace").strip():
            yield from _json_lines(path, io.StringIO(limits.text_of(content)))
            return
        raise SpecError([Problem(file=str(path), line=error.lineno, message=f"not valid JSON: {error.msg}")]) from None
    except limits.LimitError as error:
        raise SpecError([Problem(file=str(path), message=f"{error}; write it as JSONL, which is read in pieces")]) from None
    rows = _requests_in(data)
    if rows is None:
        message = "expected a list of requests, a result with input_lens and output_lens, or a report with benchmarks"
        raise SpecError([Problem(file=str(path), message=f"{message}; got {shown(data)}")])
    for start in range(0, len(rows), CHUNK):
        yield _rows(rows[start : start + CHUNK], range(start + 1, start + 1 + len(rows[start : start + CHUNK])))
    if not rows:
        raise SpecError([Problem(file=str(path), message="it holds no requests")])


def _requests_in(data: Any) -> list[Mapping[str, Any]] | None:
    """The requests of a JSON file as rows; None where there are none."""
    if isinstance(data, dict) and isinstance(data.get("benchmarks"), list):
        return [row for one in data["benchmarks"] for row in _completed(one)]
    if isinstance(data, dict) and _lists(data):
        return [data]
    return data if isinstance(data, list) and all(isinstance(row, dict) for row in data) else None


def _completed(benchmark: Any) -> Iterator[Mapping[str, Any]]:
    """The requests of a benchmark of guidellm that were answered."""
    requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
    found = requests.get("successful", ()) if isinstance(requests, dict) else requests
    yield from (row for row in found or () if isinstance(row, dict))


# ------------------------------------------------------------------------------------------ Parquet


def _parquet(path: Path) -> Iterator[TraceRows]:
    """All of it at once, through pandas."""
    frame: Any = needed("pandas")
    try:
        table = frame.read_parquet(path)
    except ImportError:
        raise CrossflowError(f"{path}: Parquet is read through pandas and pyarrow; run: pip install 'crossflow[frames]' pyarrow") from None
    except OSError:
        raise
    except Exception as error:  # whatever its reader says of what is no Parquet
        raise SpecError([Problem(file=str(path), message=f"cannot be read as Parquet: {str(error).splitlines()[0]}")]) from None
    for start in range(0, max(len(table), 1), CHUNK):
        part = table.iloc[start : start + CHUNK]
        columns = {str(name): part[name].astype(object).where(part[name].notna(), None).tolist() for name in part}
        yield TraceRows(columns=columns, lines=range(start + 1, start + 1 + len(part)))


def text_of(value: Any) -> str:
    """A cell as a message quotes it."""
    if value is ABSENT or value is None or value == "":
        return "nothing"
    return json.dumps(value) if isinstance(value, int | float) else shown(value)
