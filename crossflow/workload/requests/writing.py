"""Requests as a file: the columns that every trace may have, read again as the same requests."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from crossflow.base import files
from crossflow.base.arrays import rows_of
from crossflow.base.errors import CrossflowError
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.requests.tables import ending

KINDS = ("csv", "jsonl")


def write(trace: RequestTrace, path: Path) -> Path:
    """Write requests as CSV or JSONL, whole or not at all, compressed where the name ends in ``.gz``."""
    kind = ending(path)
    if kind not in KINDS:
        raise CrossflowError(f"{path}: requests are written as CSV or JSONL; name it {path.with_suffix('.csv')}")
    with files.replacing(path, binary=True) as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed, _text(packed) as text:
                _write(trace, kind, text)
        else:
            text = _text(raw)
            _write(trace, kind, text)
            text.detach()
    return path


def _text(stream: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(stream, encoding="utf-8", newline="")


def _write(trace: RequestTrace, kind: str, text: IO[str]) -> None:
    rows = _rows(trace)
    first = next(rows)
    if kind == "csv":
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(first)
        writer.writerow(_cells(first))
        writer.writerows(_cells(row) for row in rows)
    else:
        text.write(json.dumps(first) + "\n")
        text.writelines(json.dumps(row) + "\n" for row in rows)
    text.flush()


def _cells(row: Mapping[str, Any]) -> list[Any]:
    return [json.dumps(value) if isinstance(value, list) else value for value in row.values()]


def _rows(trace: RequestTrace) -> Iterator[dict[str, Any]]:
    """Rows with the columns that the requests need."""
    several, chained = len(trace.classes) > 1, bool((~trace.first).any())
    columns = (trace.arrival, trace.prompt, trace.output, trace.kind, trace.follows, trace.pause, trace.continues.astype(int))
    told = bool(trace.continues.any())
    for i, (arrival, prompt, output, kind, follows, pause, history) in enumerate(rows_of(*columns)):
        row = {"arrival_s": arrival, "prompt": prompt, "output": output}
        row |= {"class": trace.classes[kind].name} if several else {}
        row |= {"follows": follows, "pause_s": pause} if chained else {}
        row |= {"history": history} if told else {}
        yield row if trace.blocks is None else {**row, "block": trace.block, "hash_ids": trace.blocks[i]}
