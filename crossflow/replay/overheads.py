"""Overheads T1 to T5 of a host by operation (Lin et al. [1]_, Algorithm 1), as traces give them, kept in a file of that host.

They belong to a host and its software: those of another one are 24 to 49 % off a step in the traces that this was tried on. Plain
means are taken: a rare long segment is real time, which a median loses.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on Multi-GPU Platforms", 2024.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import Field

from crossflow import files
from crossflow.arrays import Array
from crossflow.files import Document, FileModel
from crossflow.replay.edges import OverheadKind
from crossflow.replay.graph import StepGraph

KINDS: tuple[OverheadKind, ...] = get_args(OverheadKind)
UNKNOWN = 5e-6  # of a kind that no trace has [s]
Seconds = Annotated[float, Field(ge=0.0)]


class OverheadRow(FileModel):
    """OverheadKind of one operation."""

    kind: OverheadKind = Field(
        description="T1 before the operation, T2 before its first launch, T3 after its last, T4 of a launch, T5 between"
    )
    op: str = Field(description="operation, or call of the runtime; empty for the mean of all")
    mean: Seconds = Field(description="mean time in seconds")
    spread: Seconds = Field(description="standard deviation in seconds")
    count: int = Field(ge=1, description="how often it was seen")


class OverheadFile(FileModel):
    """Overheads of a host."""

    kind: Literal["overheads"] = Field(description="what the file is")
    version: Literal[1] = Field(description="of this form")
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
    rows: Mapping[tuple[OverheadKind, str], tuple[float, float, int]]

    def mean(self, kind: OverheadKind, op: str) -> float:
        """Of an operation; of all of its kind where that was not seen. [s]"""
        found = self.rows.get((kind, op)) or self.rows.get((kind, ""))
        return UNKNOWN if found is None else found[0]

    def host_times(self, graph: StepGraph) -> Array:
        """Time of the host along every edge of a graph with these overheads in place of the measured ones, shape (edges,). [s]"""
        found = graph.host.copy()
        edges = np.array([edge for edge, _ in graph.pieces], dtype=np.intp)
        means = [self.mean(kind, op) for _, (kind, op, _) in graph.pieces]
        found[edges] = 0.0
        np.add.at(found, edges, means)
        return found

    def seen(self, graph: StepGraph) -> float:
        """Share of a graph's segments of the host whose operation these overheads hold. [1]"""
        return float(np.mean([(kind, op) in self.rows for _, (kind, op, _) in graph.pieces])) if graph.pieces else 1.0


def overheads_of(
    graphs: Iterable[StepGraph], host: str = "", *, skip: Callable[[StepGraph, int], bool] = lambda _graph, _edge: False
) -> Overheads:
    """Overheads of the host that traces come from.

    Parameters
    ----------
    skip : segments to leave out, by graph and edge, for a check on what was not used.
    """
    times: dict[tuple[OverheadKind, str], list[float]] = defaultdict(list)
    sources: dict[str, None] = {}
    for graph in graphs:
        sources.update(dict.fromkeys(trace.source for trace in graph.traces))
        for edge, (kind, op, length) in graph.pieces:
            if not skip(graph, edge):
                times[kind, op].append(length)
    every: dict[tuple[OverheadKind, str], list[float]] = defaultdict(list)
    for (kind, _), lengths in times.items():
        every[kind, ""] += lengths
    rows = {key: (float(np.mean(one)), float(np.std(one)), len(one)) for key, one in sorted((times | every).items())}
    return Overheads(host=host, sources=tuple(sources), rows=rows)


def write_overheads(overheads: Overheads, path: Path) -> None:
    """Write the file of a host."""
    rows = [
        {"kind": kind, "op": op, "mean": mean, "spread": spread, "count": count}
        for (kind, op), (mean, spread, count) in overheads.rows.items()
    ]
    plain = {"kind": "overheads", "version": 1, "host": overheads.host, "sources": list(overheads.sources), "rows": rows}
    files.write_json(path, plain, indented=True)


def read_overheads(path: Path) -> Overheads:
    """Read the file of a host; SpecError with every problem of it."""
    document = Document(file=str(path), data=files.read_json(path, "overheads of a host"))
    found = files.validate(OverheadFile, document)
    rows = {(row.kind, row.op): (row.mean, row.spread, row.count) for row in found.rows}
    return Overheads(host=found.host, sources=found.sources, rows=rows)
