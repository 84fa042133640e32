"""`crossflow validate`: predictions against measurements, for every table of measured data."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.cli import page
from crossflow.validate import validate

# Statistics of a table, and the words above their columns; all errors are relative.
_ERRORS = {"median_abs_error": "median", "mean_abs_error": "mean", "p90_abs_error": "p90", "bias": "bias"}
_SHARES = {"memory_median_abs_error": "memory median", "oom_accuracy": "fits told right"}

Row = tuple[str, Mapping[str, Any]]


def run(arguments: argparse.Namespace) -> None:
    """Compare, and show every table of the report."""
    report = validate(arguments.data).to_dict()
    if arguments.json:
        page.emit_json(report)
    else:
        page.emit(*sections(report))


def sections(report: Mapping[str, Any]) -> list[RenderableType]:
    """One table of errors for each table of data; what else the report says is left to JSON."""
    tables = {name: list(rows(entry, "")) for name, entry in report.items() if isinstance(entry, Mapping)}
    return [table(name, found) for name, found in tables.items() if found] or [Text("nothing to compare")]


def rows(entry: Mapping[str, Any], label: str) -> Iterator[Row]:
    """Every set of statistics in an entry of the report, at any depth, with the words that lead to it."""
    if "n" in entry:
        yield label or "all", entry
    for key, value in entry.items():
        if isinstance(value, Mapping) and key != "skipped":
            yield from rows(value, "all" if key == "overall" else f"{label} {key}".strip())


def table(name: str, found: list[Row]) -> Group:
    """Statistics in columns, and below them why rows were skipped."""
    extra = [key for key in ("rank_correlation", *_SHARES) if any(entry.get(key) is not None for _, entry in found)]
    header = ["", "n", "skipped", *_ERRORS.values(), *(_SHARES.get(key, "rank correlation") for key in extra)]
    body = [[label, *_cells(entry, extra)] for label, entry in found]
    shown = page.grid(body, right=range(1, len(header)), header=header)
    reasons = [Text(f"{count} skipped: {reason}", "dim") for reason, count in _reasons(found[0][1]).items()]
    return Group(page.heading(name.replace("_", " "), aside="relative errors"), page.indented(Group(shown, *reasons)))


def _cells(entry: Mapping[str, Any], extra: list[str]) -> Iterator[RenderableType]:
    yield page.count(entry["n"])
    yield page.count(_skipped(entry))
    for key in _ERRORS:
        yield _percent(entry.get(key))
    for key in extra:
        value = entry.get(key)
        yield _percent(value) if key in _SHARES or value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _reasons(entry: Mapping[str, Any]) -> Mapping[str, int]:
    skipped = entry.get("skipped", 0)
    return skipped if isinstance(skipped, Mapping) else {}


def _skipped(entry: Mapping[str, Any]) -> int:
    skipped = entry.get("skipped", 0)
    return sum(skipped.values()) if isinstance(skipped, Mapping) else int(skipped)
