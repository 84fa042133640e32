"""Which points of a long study a page is sent: those that matter as they are, and of the rest one for each cell of a grid.

A front, the best by each objective and the ends of every column are exact. The other points are counted: each is stood for by one point
of its cell, so that weights add up to the number of all points, and to that of those that fit.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.answers.search.pareto import non_dominated
from crossflow.base.arrays import Array, Index, Mask
from crossflow.edges.explore.study_rows import CODED, PointColumn, PointRows

WHOLE = 100_000  # points up to which a page is sent all
CELLS = 20_000  # cells of the grid that may hold a point
BEST = 100  # points by each objective
FINEST = 256  # bins of a column at most


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownRows:
    """Rows that a page is sent, and how many points each stands for; None where these are all points."""

    rows: PointRows
    weights: Array | None = None


@functools.lru_cache(maxsize=2)
def shown(found: PointRows, objectives: tuple[tuple[str, bool], ...], swept: tuple[str, ...]) -> ShownRows:
    """The points that a page is sent; `objectives` say of each column whether more of it is better."""
    if found.rows <= WHOLE:
        return ShownRows(rows=found)
    kept, weights = chosen(found, objectives, swept)
    columns = {name: PointColumn(values=own.values[kept], levels=own.levels, flag=own.flag) for name, own in found.columns.items()}
    return ShownRows(rows=PointRows(columns=columns, rows=len(kept), end=found.end), weights=weights)


def chosen(found: PointRows, objectives: Sequence[tuple[str, bool]], swept: Sequence[str]) -> tuple[Index, Array]:
    """Numbers of the rows that are sent, in their order, and how many points each stands for."""
    fits = _fits(found.columns, found.rows)
    exact = np.zeros(found.rows, dtype=bool)
    losses = [(-1.0 if larger else 1.0) * found.columns[name].values for name, larger in objectives if found.columns[name].levels is None]
    for loss in losses:
        order = np.lexsort((loss, ~fits))  # NaN last of those that fit
        exact[order[:BEST]] = True
    if losses:
        whole = np.flatnonzero(fits & np.isfinite(losses).all(axis=0))
        exact[whole[non_dominated(np.array(losses)[:, whole])]] = True
    for column in found.columns.values():
        exact[_ends(column, fits)] = True
    rest = np.flatnonzero(~exact)
    weights = exact.astype(float)
    if rest.size:
        cells = _cells(found.columns, [*(name for name, _ in objectives), *swept], fits, rest)
        draw = np.random.default_rng(0)
        mixed = draw.permutation(rest.size)  # or each cell would show what comes first in the sweep
        _, first, counts = np.unique(cells[mixed], return_index=True, return_counts=True)
        weights[rest[mixed[first]]] = counts
    kept = np.flatnonzero(weights)
    return kept, weights[kept]


def _fits(columns: Mapping[str, PointColumn], rows: int) -> Mask:
    """What fits, by the study's word."""
    return np.asarray(columns["feasible"].values == 1) if "feasible" in columns else np.ones(rows, dtype=bool)


def _ends(column: PointColumn, fits: Mask) -> list[int]:
    """Rows of the least and the largest value, of all and of those that fit, and of one that is missing; of few levels a row of each."""
    values = column.values
    if column.levels is not None:
        _, first = np.unique(values, return_index=True)
        return list(first[:CODED])
    found: list[int] = []
    for some in (np.flatnonzero(~np.isnan(values)), np.flatnonzero(fits & ~np.isnan(values))):
        if some.size:
            found += [int(some[np.argmin(values[some])]), int(some[np.argmax(values[some])])]
    return found + [int(row) for row in np.flatnonzero(np.isnan(values))[:1]]


def _cells(columns: Mapping[str, PointColumn], names: Sequence[str], fits: Mask, rest: Index) -> Index:
    """The cell of each of the `rest`: bins of equal numbers of points by the columns, as fine as their room allows; later columns give way.

    A cell holds only points that fit, or only ones that do not. A column that no bins but the coarsest leave room for is left out.
    """
    found = fits[rest].astype(np.intp)
    for name in names:
        values = columns[name].values[rest]
        bins = FINEST if name == names[0] else 32
        while bins > 1:
            codes = found * (bins + 2) + _bins(values, bins, columns[name].levels is not None)
            used, codes = np.unique(codes, return_inverse=True)
            if len(used) <= CELLS:
                found = codes
                break
            bins //= 2
    return found


def _bins(values: Array, bins: int, text: bool) -> Index:
    """Numbers of bins: each value by itself where there are few, else shares of equal size; the last one of what is missing."""
    missing = np.isnan(values)
    known = np.unique(values[~missing][:: max(1, len(values) // 100_000)])
    if not known.size:
        return np.zeros(len(values), dtype=np.intp)
    if text:
        return np.asarray(np.where(missing, bins, values % bins), dtype=np.intp)
    edges = known[1:] if len(known) <= bins else np.unique(np.quantile(known, np.arange(1, bins) / bins))
    return np.asarray(np.where(missing, bins, np.searchsorted(edges, values, side="right")), dtype=np.intp)
