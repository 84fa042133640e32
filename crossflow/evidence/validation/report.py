"""What a comparison with measurements says: errors of all rows, overall and in groups, nothing dropped without a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Mask

ERRORS = ("n", "median_abs_error", "mean_abs_error", "p90_abs_error", "bias")  # what is told of rows


@dataclass(frozen=True, kw_only=True)
class Table:
    """Predictions for one table of measurements."""

    name: str  # file name without ending
    measured: Array  # of the rows that could be predicted, shape (rows,). [s]
    predicted: Array  # of the same rows, shape (rows,). [s]
    groups: Mapping[str, Sequence[str]]  # for each way of grouping (source, device, regime) the group of every such row
    skipped: Mapping[str, int]  # reasons why other rows were not predicted, and how many rows each
    items: Sequence[str] = ()  # what every row is about, such as a model or a shape: rows of one item are alike
    notes: Sequence[str] = ()  # what a reader must know of the figures
    alike: Mapping[str, Sequence[str]] = field(default_factory=dict)  # what else makes a row like others, and is no way of grouping

    def to_dict(self) -> dict[str, Any]:
        """Overall errors, errors by group, and what was skipped."""
        by = {
            way: {name: self.statistics(np.array([other == name for other in members], dtype=bool)) for name in dict.fromkeys(members)}
            for way, members in self.groups.items()
        }
        return {
            **self.statistics(np.ones(len(self.measured), dtype=bool)),
            "skipped": sum(self.skipped.values()),
            "skipped_reasons": dict(self.skipped),
            "by": by,
            "notes": list(self.notes),
        }

    def statistics(self, mine: Mask) -> dict[str, float | int | None]:
        """Errors of some of the rows."""
        return errors(self.measured[mine], self.predicted[mine])


@dataclass(frozen=True, kw_only=True)
class Report:
    """All tables of a folder."""

    data: Path
    tables: Sequence[Table]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: one entry a table."""
        return {"data": str(self.data), "tables": {table.name: table.to_dict() for table in self.tables}}

    def __repr__(self) -> str:
        lines = [f"Report({self.data})"]
        for table in self.tables:
            found = errors(table.measured, table.predicted)
            lines.append(
                f"  {table.name}: {found['n']} rows, mean absolute error {_percent(found['mean_abs_error'])}, {dict(table.skipped)} skipped"
            )
        return "\n".join(lines)


def errors(measured: Array, predicted: Array) -> dict[str, float | int | None]:
    """Relative errors of all rows: median, mean and 90th percentile of their size, and their mean with sign (bias)."""
    if not measured.size:
        return {**dict.fromkeys(ERRORS), "n": 0}
    relative = predicted / measured - 1.0
    size = np.abs(relative)
    return {
        "n": int(size.size),
        "median_abs_error": float(np.median(size)),
        "mean_abs_error": float(size.mean()),
        "p90_abs_error": float(np.quantile(size, 0.9)),
        "bias": float(relative.mean()),
    }


def _percent(value: Any) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
