"""Which rows of measured tables a fitted number moves: predicted with it, and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base.arrays import Mask
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.dropping import dropped, instead
from crossflow.evidence.validation.report import Table, errors

SHOWN = ("median_abs_error", "p90_abs_error", "bias")
MOVED = 1e-3  # change of a row's prediction, relative, from which on it counts as moved


def effects(folder: str | Path | None, parameter: str) -> dict[str, Any]:
    """How a fitted number moves the errors of every table and source, against the number left out; see `dropped` for `parameter`."""
    contents = dropped(parameter)
    kept = validate(folder)
    with instead(contents):
        left = validate(folder)
    tables = {before.name: _moved(before, after) for before, after in zip(kept.tables, left.tables, strict=True)}
    return {"parameter": parameter, "files": sorted(path.name for path in contents), "tables": tables}


def _moved(before: Table, after: Table) -> dict[str, Any]:
    """Errors of a table and of its sources with a number and without it, and how many rows moved."""
    if not np.array_equal(before.measured, after.measured, equal_nan=True):  # other rows can be predicted
        return {**_both(before, after, np.isfinite(before.measured), np.isfinite(after.measured)), "moved": None, "by_source": {}}
    timed = np.isfinite(before.measured)
    moved = timed & ~(np.abs(after.predicted / before.predicted - 1.0) < MOVED)
    sources = np.array(before.groups.get("source", [before.name] * len(before.measured)), dtype=object)
    masks = {source: timed & (sources == source) for source in dict.fromkeys(sources.tolist())}
    by = {source: {**_both(before, after, mask, mask), "moved": int((moved & mask).sum())} for source, mask in masks.items()}
    return {**_both(before, after, timed, timed), "moved": int(moved.sum()), "by_source": by}


def _both(before: Table, after: Table, mine: Mask, its: Mask) -> dict[str, Any]:
    with_, without = errors(before.measured[mine], before.predicted[mine]), errors(after.measured[its], after.predicted[its])
    return {"n": with_["n"], **{f"{key}{end}": found[key] for key in SHOWN for end, found in (("", with_), ("_without", without))}}
