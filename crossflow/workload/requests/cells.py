"""Cells of a trace's table as numbers, dates and lists; what is none is told with its line."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from crossflow.base.arrays import Array, Mask
from crossflow.base.errors import Problem, SpecError
from crossflow.base.limits import COUNT, shown
from crossflow.workload.requests.formats import UNITS
from crossflow.workload.requests.tables import ABSENT, and_more, text_of

HASHED = frozenset({int, bool, str})  # what hashes of blocks are in files
WANTED = {
    "prompt": "a whole number of tokens", "output": "a whole number of tokens", "arrival": "a number or a date",
    "elapsed": "a number", "follows": "the number of an earlier request, from 0, or -1", "pause": "a number",
    "block": "a whole number of tokens", "history": "1 or 0",
    "devices": "a number of devices", "time": "a time", "end": "a number or a date", "instances": "a whole number",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TraceTable:
    """A file whose columns are known: where each role stands, and what its times and blocks mean."""

    path: Path
    name: str  # of its format, "" for one that the user describes
    roles: Mapping[str, str]
    unit: str | None  # of times, None where they must be dates
    told_unit: bool  # whether the user says it
    block: int
    ordered: bool

    def error(self, role: str, line: int | None, message: str) -> SpecError:
        """What is wrong with a cell."""
        return SpecError([Problem(file=str(self.path), line=line, path=self.roles.get(role, ""), message=message)])


def numbers_of(table: TraceTable, role: str, cells: Sequence[Any], lines: Sequence[int]) -> Array:
    """Cells as numbers; SpecError for the first that is none."""
    whole = role in ("prompt", "output", "follows", "history", "block", "instances")
    try:
        values = np.fromiter(map(float, cells), float, len(cells))
    except (TypeError, ValueError):
        values = np.array([_number(cell, blank=0.0 if role in ("elapsed", "pause") else np.nan) for cell in cells])
    wrong = ~np.isfinite(values) | (whole & (values != np.rint(values))) | (np.abs(values) > COUNT)
    if bool in set(map(type, cells)):  # which Python takes for numbers
        wrong |= np.fromiter((isinstance(cell, bool) for cell in cells), bool, len(cells))
    refuse(table, role, wrong, cells, lines, f"expected {WANTED[role]}")
    return values


def _number(cell: Any, blank: float) -> float:
    if cell is ABSENT or cell is None or cell == "":
        return blank
    try:
        return float(cell)
    except (TypeError, ValueError):
        return float("nan")


def refuse(table: TraceTable, role: str, wrong: Mask, cells: Sequence[Any], lines: Sequence[int], wanted: str) -> None:
    """SpecError for the first cell that is wrong, with how many more there are."""
    if wrong.any():
        i = int(np.argmax(wrong))
        raise table.error(role, lines[i], f"{wanted}, got {text_of(cells[i])}{and_more(int(wrong.sum()) - 1)}")


def is_date(cell: Any) -> bool:
    """Whether a cell is a date, and no number."""
    return not isinstance(cell, (int, float)) and not np.isnat(dates_of([cell])[0])


def dates_of(cells: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.datetime64]]:
    """Cells as dates in UTC, not a time where they are none."""
    texts = [str(cell).strip() for cell in cells]
    plain_ = [text[:-6] if text.endswith("+00:00") else text.removesuffix("Z") for text in texts]
    try:
        if not any(text.count("+") or not text[:4].isdecimal() or text.isdecimal() for text in plain_):
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # numpy reads some texts as dates with a zone, and warns
                return np.array(plain_, dtype="datetime64[ns]")
    except (ValueError, UserWarning):
        pass
    return np.array([_date(text) for text in texts], dtype="datetime64[ns]")


def _date(text: str) -> np.datetime64:
    """One date; not a time where it is none."""
    try:
        if text.isdecimal():
            return np.datetime64("NaT", "ns")
        when = datetime.fromisoformat(text)
        return np.datetime64(when.replace(tzinfo=None) - (when.utcoffset() or datetime.min - datetime.min), "ns")
    except (ValueError, OverflowError):
        return np.datetime64("NaT", "ns")


def moments_of(
    table: TraceTable, role: str, cells: Sequence[Any], lines: Sequence[int], begin: np.datetime64 | None, key: str
) -> tuple[Array, np.datetime64 | None]:
    """Cells as times, dates from `begin` on, or from the first of them where it is None; and that date where they are dates. [s]

    key : what says the unit of numbers, for messages.
    """
    if begin is None and not is_date(cells[0]):
        values = numbers_of(table, role, cells, lines)
        if table.unit is None:
            raise table.error(role, None, f"the unit of {shown(table.roles[role])} is not known; give {key}: s, ms, us or ns")
        refuse(table, role, values < 0, cells, lines, "expected a time of at least 0")
        return np.asarray(values * UNITS[table.unit]), None
    if table.told_unit:
        raise table.error(role, None, f"it holds dates, which have no unit; leave out {key}")
    dates = dates_of(cells)
    refuse(table, role, np.isnat(dates), cells, lines, "expected a date such as 2026-11-16 18:15:46.68")
    begin = dates[0] if begin is None else begin
    return np.asarray((dates - begin) / np.timedelta64(1, "ns") * 1e-9), begin


def listed(cell: Any) -> Sequence[Any] | None:
    """A list of hashes, of CSV as the text of one; None for something else."""
    if isinstance(cell, str) and cell.lstrip()[:1] == "[":
        try:
            cell = orjson.loads(cell)
        except orjson.JSONDecodeError:
            return None
    if cell is ABSENT or cell is None or cell == "":
        return ()
    held = cell.tolist() if isinstance(cell, np.ndarray) else cell
    return held if isinstance(held, list) and HASHED.issuperset(map(type, held)) else None
