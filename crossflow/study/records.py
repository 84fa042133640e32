"""Finished points on disk: appended as they come, read back on resume, written in order at the end."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossflow import files
from crossflow.errors import CrossflowError

POINTS, RUN = "points.jsonl", "run.json"


def to_line(row: Mapping[str, Any]) -> str:
    """One point as a line of JSON; the same row always gives the same bytes."""
    return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"


def start(out: Path, run: Mapping[str, Any], resume: bool) -> dict[int, dict[str, Any]]:
    """Prepare the folder of a run and return the points that it already holds.

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
    if resume and earlier is not None:
        _same_study(out, earlier, run)
        rows = read_points(out / POINTS)
    else:
        if earlier is not None and not earlier.get("finished") and (out / POINTS).exists():
            raise CrossflowError(
                f"{out} holds an unfinished run of {earlier.get('name')}; continue it with --resume, or give another folder with --out"
            )
        rows = {}
    files.write_text(out / RUN, json.dumps({**run, "finished": False}, indent=2) + "\n")
    # Rewritten even on resume: a line cut short by a kill must not stand before the points to come.
    files.write_text(out / POINTS, "".join(to_line(row) for row in rows.values()))
    return rows


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


def read_points(path: Path) -> dict[int, dict[str, Any]]:
    """Points by number; a last line that was cut short is left out, any other bad line is an error."""
    rows: dict[int, dict[str, Any]] = {}
    if not path.exists():
        return rows
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = json.loads(line)
            rows[int(row["id"])] = row
        except (ValueError, KeyError, TypeError):
            if number >= len(lines) - 1:
                break
            raise CrossflowError(f"{path}:{number}: not a point of a study; move the file away and start again") from None
    return rows


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append finished points and see them onto the disk."""
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write("".join(to_line(row) for row in rows))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise CrossflowError(
            f"cannot write {path}: {error.strerror}; finished points are kept, make room and continue with --resume"
        ) from None


def finish(out: Path, rows: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> list[Path]:
    """Write all points in order, as JSON lines and as CSV, and mark the run as finished."""
    files.write_text(out / POINTS, "".join(to_line(row) for row in rows))
    files.write_text(out / "points.csv", to_csv(rows))
    files.write_text(out / RUN, json.dumps({**run, "finished": True}, indent=2) + "\n")
    return [out / POINTS, out / "points.csv", out / RUN]


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Points as CSV with one header line."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()} for row in rows)
    return stream.getvalue()
