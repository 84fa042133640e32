"""Overheads T1 to T5 of a host by operation (Lin et al. [1]_, Algorithm 1), as traces give them, kept in a file of that host.

They belong to a host and its software: those of another one are 24 to 49 % off a step in the traces that this was tried on. Plain
means are taken: a rare long segment is real time, which a median loses.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on Multi-GPU Platforms", 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from crossflow.base import files, versions
from crossflow.base.arrays import Array, Index, Mask, rows_of
from crossflow.base.files import Document, FileModel
from crossflow.base.limits import Finite, Whole
from crossflow.evidence.replay.edges import OVERHEAD_KINDS as KINDS
from crossflow.evidence.replay.edges import HostPieces, OverheadKind
from crossflow.evidence.replay.graph import StepGraph

UNKNOWN = 5e-6  # of a kind that no trace has [s]
Seconds = Annotated[Finite, Field(ge=0.0)]
OverheadSpread = tuple[Finite, Finite, Whole]  # mean, standard deviation, how often it was seen [s], [s], [1]


class OverheadRow(FileModel):
    """OverheadKind of one operation."""

    kind: OverheadKind = Field(
        description="T1 before the operation, T2 before its first launch, T3 after its last, T4 of a launch, T5 between"
    )
    op: str = Field(description="operation, or call of the runtime; empty for the mean of all")
    mean: Seconds = Field(description="mean time in seconds")
    spread: Seconds = Field(description="standard deviation in seconds")
    count: Whole = Field(ge=1, description="how often it was seen")


class OverheadFile(FileModel):
    """Overheads of a host."""

    kind: Literal["overheads"] = Field(description="what the file is")
    version: Annotated[Literal[1], BeforeValidator(versions.check("overheads"))] = Field(description="of this form")
    host: str = Field(description="machine that they were measured on; they hold there only")
    sources: tuple[str, ...] = Field(description="traces that they come from")
    rows: tuple[OverheadRow, ...] = Field(description="overheads by operation")


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Mean overheads of a host.

    Attributes
    ----------
    host : its name.
    sources : traces that they come from.
    rows : mean and standard deviation by kind and operation, "" for all operations of a kind, with how often it was seen. [s], [s], [1]
    """

    host: str
    sources: tuple[str, ...]
    rows: Mapping[tuple[OverheadKind, str], OverheadSpread]

    def mean(self, kind: OverheadKind, op: str) -> float:
        """Of an operation; of all of its kind where that was not seen. [s]"""
        found = self.rows.get((kind, op)) or self.rows.get((kind, ""))
        return UNKNOWN if found is None else found[0]

    def host_times(self, graph: StepGraph) -> Array:
        """Time of the host along every edge of a graph with these overheads in place of the measured ones, shape (edges,). [s]"""
        pieces, found = graph.pieces, graph.host.copy()
        of, key = _keys(pieces)
        means = np.array([self.mean(KINDS[one // len(pieces.names)], pieces.names[one % len(pieces.names)]) for one in key.tolist()])
        found[pieces.owner] = 0.0
        np.add.at(found, pieces.owner, means[of] if len(means) else means)
        return found

    def seen(self, graph: StepGraph) -> float:
        """Share of a graph's segments of the host whose operation these overheads hold. [1]"""
        pieces = graph.pieces
        of, key = _keys(pieces)
        held = np.array([(KINDS[one // len(pieces.names)], pieces.names[one % len(pieces.names)]) in self.rows for one in key.tolist()])
        return float(held[of].mean()) if len(pieces) else 1.0


def _keys(pieces: HostPieces) -> tuple[Index, Index]:
    """Sorts of pieces, by kind and operation, and the sort of every piece."""
    keys, of = np.unique(pieces.kind * max(len(pieces.names), 1) + pieces.op, return_inverse=True)
    return of, keys


def overheads_of(graphs: Iterable[StepGraph], host: str = "", *, skip: Callable[[StepGraph], Mask] | None = None) -> Overheads:
    """Overheads of the host that traces come from.

    Parameters
    ----------
    skip : edges of a graph whose segments are left out, shape (edges,), for a check on what was not used.
    """
    sources: dict[str, None] = {}
    sorts: dict[tuple[OverheadKind, str], int] = {}
    columns = [(np.zeros(0, dtype=np.intp), np.zeros(0))]
    for graph in graphs:
        sources.update(dict.fromkeys(trace.source for trace in graph.traces))
        pieces = graph.pieces
        of, keys = _keys(pieces)
        named = ((KINDS[key // len(pieces.names)], pieces.names[key % len(pieces.names)]) for key in keys.tolist())
        place = np.array([sorts.setdefault(name, len(sorts)) for name in named], dtype=np.intp)
        kept = slice(None) if skip is None else ~skip(graph)[pieces.owner]
        columns.append((place[of][kept], pieces.length[kept]))
    of, lengths = (np.concatenate(column) for column in zip(*columns, strict=True))
    kinds = np.array([KINDS.index(kind) for kind, _ in sorts], dtype=np.intp)
    rows = dict(zip(sorts, _spreads(of, lengths, len(sorts)), strict=True))
    rows |= {(kind, ""): row for kind, row in zip(KINDS, _spreads(kinds[of], lengths, len(KINDS)), strict=True)}
    seen = {key: row for key, row in sorted(rows.items()) if row[2]}
    return Overheads(host=host, sources=tuple(sources), rows=seen)


def _spreads(of: Index, lengths: Array, count: int) -> Iterable[OverheadSpread]:
    """Mean, standard deviation and number of the lengths of every sort."""
    numbers = np.bincount(of, minlength=count)
    divided = np.maximum(numbers, 1)
    means = np.bincount(of, lengths, minlength=count) / divided
    squares = np.bincount(of, (lengths - means[of]) ** 2, minlength=count) / divided
    return rows_of(means, np.sqrt(squares), numbers)


def write_overheads(overheads: Overheads, path: Path) -> None:
    """Write the file of a host."""
    rows = [
        {"kind": kind, "op": op, "mean": mean, "spread": spread, "count": count}
        for (kind, op), (mean, spread, count) in overheads.rows.items()
    ]
    plain = {"kind": "overheads", **versions.number("overheads"), "host": overheads.host, "sources": list(overheads.sources), "rows": rows}
    files.write_json(path, plain, indented=True)


def read_overheads(path: Path) -> Overheads:
    """Read the file of a host; SpecError with every problem of it."""
    document = Document(file=str(path), data=files.read_json(path, "overheads of a host"))
    found = files.validate(OverheadFile, document)
    rows = {(row.kind, row.op): (row.mean, row.spread, row.count) for row in found.rows}
    return Overheads(host=found.host, sources=found.sources, rows=rows)
