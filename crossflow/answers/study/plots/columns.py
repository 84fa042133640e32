"""Rows and values that a plot shows, picked from the columns of a finished study."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crossflow.answers.study.plots.view import View
from crossflow.base.arrays import Array, Mask
from crossflow.base.drawing.words import label
from crossflow.base.errors import StrategyError
from crossflow.parallel.strategy.mesh import Mesh, Role
from crossflow.parallel.strategy.notation import parse_any

Columns = Mapping[str, Any]
SEARCH = "search"  # names the searches of a study where a swept path may stand
# Parts of a strategy: how it cuts kernels, and the degree to which the axes of each role divide the work.
PARTS = {
    "kernel": "kernel parallelism", "kernel_kind": "kind of kernel parallelism", "rows": "rows in so many parts (KP1)",
    "columns": "columns in so many parts (KP2)", "dp": "data parallel degree", "pp": "pipeline parallel degree",
}  # fmt: skip
_ROLES: dict[str, Role] = {"rows": "rows", "columns": "columns", "dp": "batch", "pp": "layers"}


def shown(view: View) -> Columns:
    """Columns that lines and bars run over: the best of each search where there are searches, all points otherwise."""
    if not view.searches and not view.best:
        return view.columns
    names = dict.fromkeys(name for row in view.best for name in row)
    return {name: objects([row.get(name) for row in view.best]) for name in names}


def objects(values: Sequence[Any]) -> Any:
    """Any values as an array of objects, lists among them included."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def count(columns: Columns) -> int:
    """Number of rows."""
    return len(next(iter(columns.values()), ()))


def floats(columns: Columns, name: str) -> Array:
    """A column as numbers, NaN where it holds none."""
    column = columns.get(name, ())
    if isinstance(column, np.ndarray) and column.dtype.kind != "O":
        return column.astype(float)
    known = np.full(count(columns), np.nan)
    for i, value in enumerate(column):
        if isinstance(value, int | float | np.number):
            known[i] = value
    return known


def flags(columns: Columns, name: str) -> Mask:
    """A column of yes and no; what is missing is no."""
    return np.asarray(columns.get(name, np.zeros(count(columns))), dtype=bool)


def column(columns: Columns, name: str) -> Any:
    """A column, or the part of the column `strategy` that a special word stands for; nothing but None where it is missing."""
    if name in PARTS and "strategy" in columns:
        return objects([None if value is None else strategy_part(_notation(value), name) for value in columns["strategy"]])
    return columns[name] if name in columns else objects([None] * count(columns))


def _notation(strategy: Any) -> str:
    return str(parse_any(strategy)) if isinstance(strategy, Mapping) else str(strategy)


@functools.cache
def strategy_part(strategy: str, part: str) -> str | int | None:
    """The kernel parallelism of a strategy as it is written, its kind, or the degree to which it divides something.

    >>> [strategy_part("RC-16-4-d8-p2", part) for part in ("kernel", "kernel_kind", "rows", "columns", "dp", "pp")]
    ['RC-16-4', 'RC', 16, 4, 8, 2]
    >>> strategy_part("d512", "kernel")
    'none'
    """
    try:
        parsed = parse_any(strategy)
    except StrategyError:
        return None
    if parsed.by_types:  # degrees follow from the system's nodes
        return None
    if part in _ROLES:
        return parsed.degree(_ROLES[part])
    cut = tuple(axis for axis in parsed.axes if axis.role in ("rows", "columns", "inner"))
    kernel = str(Mesh(axes=cut)) if cut else "none"
    return kernel if part == "kernel" else kernel.split("-")[0]


# ------------------------------------------------------------------------------------------ values and rows


def values_of(view: View, name: str | None) -> list[Any]:
    """Values of a swept path, or names of the searches; one None where nothing is named."""
    if name is None:
        return [None]
    return list(view.searches if name == SEARCH else view.values.get(name, ()))


def fixed(view: View, *free: str | None) -> dict[str, Any]:
    """What a plot does not name stays at its first value."""
    first = {path: values[0] for path, values in view.values.items() if path not in free}
    return first | ({SEARCH: view.searches[0]} if view.searches and SEARCH not in free else {})


def rows_with(columns: Columns, wanted: Mapping[str, Any]) -> Mask:
    """Rows that have all of the wanted values."""
    chosen = np.ones(count(columns), dtype=bool)
    for name, value in wanted.items():
        chosen &= equal(column(columns, name), value)
    return chosen


def having(columns: Columns, name: str | None, value: Any) -> Mask:
    """Rows that have a value of a column; all of them where none is named."""
    return rows_with(columns, {} if name is None else {name: value})


def equal(given: Any, value: Any) -> Mask:
    """Where a column has a value, which may be a list or a mapping."""
    if isinstance(value, str | int | float) and given.dtype.kind == "O":
        return np.asarray(given == value, dtype=bool)
    if isinstance(value, int | float):
        return np.asarray(given == value)
    return np.array([item == value for item in given], dtype=bool)


def places_of(columns: Columns, name: str | None, values: Sequence[Any]) -> Any:
    """Which of the values each row has, -1 for none of them; shape (rows,). A column without a name is all None."""
    places = np.full(count(columns), -1 if name is not None else 0)
    for i, value in enumerate(values if name is not None else ()):
        places[equal(column(columns, str(name)), value)] = i
    return places


def distinct(given: Any) -> list[Any]:
    """Values of a column, each once: numbers by size, names with their numbers by size; missing ones left out."""
    if given.dtype.kind == "f":
        return [float(value) for value in np.unique(given[np.isfinite(given)])]
    known = {label(value): value for value in given if value is not None}
    return [known[text] for text in sorted(known, key=lambda text: natural(known[text]))]


def natural(value: Any) -> tuple[float, list[Any]]:
    """Key that sorts N3 before N10, and numbers before names."""
    if isinstance(value, int | float | np.number):
        return float(value), []
    return np.inf, [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", label(value))]


def maximised(view: View, name: str) -> bool:
    """Whether more of a column is better."""
    return view.objectives.get(name, False)


def evenly(n: int, most: int) -> Any:
    """At most so many of n indices, evenly spread, the first and the last among them."""
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(int)
