"""Tables and parts of them, and the ranks that hold them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from crossflow.base.units import show
from crossflow.workload.dlrm import ShardingRule, Tables

Extent = tuple[int, int]  # the first, and one past the last


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows and columns of one table that a rank holds together."""

    table: int  # by its place among all tables, those of a group one after the other
    rows: Extent
    columns: Extent

    @classmethod
    def whole(cls, place: int, table: Tables) -> Piece:
        """All of a table."""
        return cls(table=place, rows=(0, table.rows), columns=(0, table.width))

    def of(self, tables: Sequence[Tables]) -> Tables:
        """The part as a table of its own: look-ups fall on its rows in their share of all."""
        table, rows = tables[self.table], self.rows[1] - self.rows[0]
        return replace(table, rows=rows, width=self.columns[1] - self.columns[0], pooling=table.pooling * rows / table.rows)

    def cut(self, parts: int, *, by_rows: bool) -> Iterator[Piece]:
        """Parts as equal as can be."""
        first, last = self.rows if by_rows else self.columns
        ends = [first + (last - first) * i // parts for i in range(parts + 1)]
        for part in itertools.pairwise(ends):
            yield replace(self, rows=part) if by_rows else replace(self, columns=part)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Pieces of all tables and the rank of each."""

    name: str  # who gave them, and how tables were cut
    ranks: int
    pieces: tuple[Piece, ...]
    where: tuple[int, ...]  # rank of every piece
    held: float = 0.0  # bytes of the pieces of the rank that holds most. [B]
    problem: str = ""  # why it does not work, in a sentence

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        """Pieces of one rank."""
        return tuple(piece for piece, held in zip(self.pieces, self.where, strict=True) if held == rank)


def singles(groups: Sequence[Tables]) -> tuple[Tables, ...]:
    """Every table by itself."""
    return tuple(replace(group, count=1) for group in groups for _ in range(group.count))


def checked(sharding: Sharding, sizes: Sequence[float], capacity: float, rule: ShardingRule) -> Sharding:
    """The same with what its fullest rank holds, and the sentence that says where that is too much. [B]"""
    held = [0.0] * sharding.ranks
    for rank, size in zip(sharding.where, sizes, strict=True):
        held[rank] += size
    fullest = max(range(sharding.ranks), key=held.__getitem__)
    sharding = replace(sharding, held=held[fullest])
    if held[fullest] <= capacity or sharding.problem:
        return sharding
    most = max(sizes)
    cure = "which split: rows or columns cuts" if rule.split == "none" else "the least that it is cut to; take more devices"
    cure = f"; its largest piece has {show(most, 'B')}, {cure}" if most > capacity else "; take more devices"
    limit = f"{100.0 * rule.memory:.4g}% of its memory, {show(capacity, 'B')}"
    told = f"sharding {sharding.name}: rank {fullest} would hold {show(held[fullest], 'B')} of tables, more than {limit}{cure}"
    return replace(sharding, problem=told)
