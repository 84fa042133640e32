"""Rows and stages of pipelines of several shapes as columns of arrays, those that are alike once.

Between its ends a pipeline has many stages that hold as many layers and hand over as far. They take the same at every point, so that one
of each kind is worked out, for all shapes at once. Columns follow each other shape by shape, in each kind by kind, and point by point.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Index, by_point, distinct
from crossflow.base.results import later

if TYPE_CHECKING:  # the chain of imports stays short
    from crossflow.parallel.shapes import Shape
else:
    Shape = later("crossflow.parallel.shapes", "Shape")


@dataclass(frozen=True, kw_only=True, eq=False)
class KindColumns:
    """Rows, or stages, of shapes: which are worked out, and which of these each is like."""

    shapes: tuple[Shape, ...]
    first: tuple[Index, ...]  # of every shape those that stand for all that are alike
    which: tuple[Index, ...]  # of every shape, for each row or stage, which of these it is like

    def stages(self) -> KindColumns:
        """Of the stages of these rows, by the kinds of their rows."""
        return self.of_kinds(self.shapes, [distinct(self.by_stage(i)) for i in range(len(self.shapes))])

    @classmethod
    def every(cls, shape: Shape, many: int) -> KindColumns:
        """Of so many rows, or stages, of one shape, each by itself."""
        return cls.of_kinds([shape], [(np.arange(many), np.arange(many))])

    @classmethod
    def of_kinds(cls, shapes: Sequence[Shape], kinds: Sequence[tuple[Index, Index]]) -> KindColumns:
        """Of rows or stages of shapes, of each shape the first of every kind, and of which kind each is."""
        return cls(shapes=tuple(shapes), first=tuple(first for first, _ in kinds), which=tuple(which for _, which in kinds))

    @functools.cached_property
    def begins(self) -> list[int]:
        """First column of every shape, and the number of all."""
        return [0, *np.cumsum([len(shape.at) * len(first) for shape, first in zip(self.shapes, self.first, strict=True)]).tolist()]

    @functools.cached_property
    def points(self) -> Index:
        """Point of every column."""
        return np.concatenate([np.tile(shape.at, len(first)) for shape, first in zip(self.shapes, self.first, strict=True)])

    def by_stage(self, shape: int) -> Index:
        """Kinds of the rows of every stage of a shape, shape (rows of a stage, stages)."""
        return self.which[shape].reshape(-1, self.shapes[shape].stages)

    def kinds(self, shape: int, values: Array) -> Array:
        """Values of the kinds of a shape, shape (..., kinds, n), of those of all columns, shape (..., columns)."""
        mine = values[..., self.begins[shape] : self.begins[shape + 1]]
        return mine.reshape(*values.shape[:-1], len(self.first[shape]), len(self.shapes[shape].at))

    def spread(self, shape: int, values: Array) -> Array:
        """The same of all rows, or stages, of a shape, shape (..., rows, n)."""
        return self.kinds(shape, values).take(self.which[shape], axis=-2)

    def at(self, shape: int, chosen: Index) -> Index:
        """Columns of one row, or stage, of every point of a shape."""
        n = len(self.shapes[shape].at)
        return np.asarray(self.begins[shape] + self.which[shape][chosen] * n + np.arange(n))

    def of_stages(self, rows: KindColumns, values: Array) -> Array:
        """Sums over the rows of stages as columns of these, shape (..., 1, columns), of values of shape (..., columns of rows)."""
        members = (rows.by_stage(i)[:, first] for i, first in enumerate(self.first))
        return self.joined([rows.kinds(i, values).take(mine, axis=-2).sum(axis=-3) for i, mine in enumerate(members)])

    def counted(self, counts: Sequence[Array]) -> Array:
        """Columns, shape (1, units, columns), of how often units occur in the kinds of every shape, (kinds, units) or (kinds, units, n)."""
        return self.joined([by_point(each).swapaxes(0, 1) for each in counts]).swapaxes(0, 1)

    def joined(self, parts: Sequence[Array]) -> Array:
        """Columns, shape (..., 1, columns), of values of the kinds of every shape, (..., kinds, n) or (..., kinds, 1)."""
        wide = [np.broadcast_to(part, (*part.shape[:-1], len(shape.at))) for part, shape in zip(parts, self.shapes, strict=True)]
        return np.concatenate([part.reshape(*part.shape[:-2], 1, -1) for part in wide], axis=-1)
