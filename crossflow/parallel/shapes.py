"""Stages of a pipeline: which layers each holds, and which design points share a pipeline's shape.

Layers may differ in number between the points: what is counted then has an axis of points.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from crossflow.base import arrays
from crossflow.base.arrays import Array, Index, Mask, once, wide
from crossflow.parallel.blocks import unit_places
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import NATURAL, PipelineOrder, pipeline_order
from crossflow.parallel.strategy.stages import Division, balanced_layers
from crossflow.program.groups import Group
from crossflow.workload.job import Job
from crossflow.workload.transformer import Transformer


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """Points that share the shape of their pipeline."""

    at: Index  # the points
    # stages, chunks, microbatches: of the pipeline; chunks of one stage, microbatches of a replica, the most of the points where they
    # differ, 1 where there is one stage. [1]
    stages: int
    chunks: int
    microbatches: int
    schedule: str  # name of its rule, or path of its file
    division: Division  # how layers are divided over its stages, by the plan of the first of the points
    # layers of every chunk of all plans, shape (chunks, plans), where those of the points list them and differ in it; else None. [1]
    listed: Array | None = None

    @property
    def order(self) -> PipelineOrder:
        """Order of its slots."""
        return pipeline_order(self.schedule, self.stages, self.chunks, self.microbatches)

    def stages_on(self, kind: int) -> Mask:
        """Stages that lie on devices of a kind, shape (stages,)."""
        return np.asarray(np.array(self.division.kinds or (0,) * self.stages) == kind)

    def rows_on(self, kind: int, rows: int) -> Mask:
        """Of so many rows of its schedule those of stages on devices of a kind, shape (rows,)."""
        return np.resize(self.stages_on(kind), rows)


def alike(layout: Layout, *, together: Collection[str] = ()) -> list[Shape]:
    """Shapes of all pipelines, each with the points that have it; schedules that are `together` whatever their microbatches."""
    apart = np.array([name not in together for name in layout.schedules])[layout.schedule]
    # Plans that list their layers, as many lists long, are counted together, each with its own.
    kind = arrays.numbered([(one.kinds, len(one.listed)) if one.listed else one for one in layout.divisions])[1]
    keys = [layout.pp, layout.chunks, np.where(apart & (layout.pp > 1), layout.microbatches, 1.0), layout.schedule, kind[layout.division]]
    return [_shape(key, layout, at) for key, at in arrays.alike(np.stack(keys))]


def _shape(key: Array, layout: Layout, at: Index) -> Shape:
    stages, chunks, _, schedule, _ = (int(value) for value in key)
    division = layout.division[at]
    return Shape(
        at=at, stages=stages, chunks=chunks, microbatches=int(layout.microbatches[at].max()) if stages > 1 else 1,
        schedule=layout.schedules[schedule], division=layout.divisions[division[0]],
        listed=_lists(layout, at) if (division != division[0]).any() else None,
    )  # fmt: skip


def _lists(layout: Layout, at: Index) -> Array:
    """Layers of every chunk of all plans, shape (chunks, plans), of those whose lists are as long as those of some points. [1]"""
    length = len(layout.divisions[layout.division[at[0]]].listed)
    table = np.zeros((length, len(layout.divisions)))
    for which in np.unique(layout.division[at]).tolist():
        table[:, which] = layout.divisions[which].listed
    return table[:, layout.division]


def chunk_layers(job: Job, shape: Shape, *, balanced: bool) -> Array:
    """Layers of every chunk of a pipeline in the order of the model, shape (chunks, n), or (chunks, 1) where all points have the same."""
    if shape.listed is not None:
        return shape.listed[:, shape.at]
    by_weight = balanced and shape.chunks == 1 and shape.division == Division()
    distinct, which = _distinct(_at(_figures(job.model, by_weight=by_weight), shape.at))
    groups, chunks = len(job.model.main), shape.stages * shape.chunks
    return np.array([_chunk_layers(tuple(one), groups, chunks, shape.division) for one in distinct.T.tolist()], dtype=float).T[:, which]


def _figures(model: Transformer, *, by_weight: bool) -> list[Array | float]:
    """Layers of every group of the main model; where stages are made by weight also the weight of a layer of each, and of the head."""
    numbers: list[Array | float] = [layer.count for layer in model.main]
    return [*numbers, *(layer.parameters for layer in model.main), model.head.parameters + model.mtp_parameters] if by_weight else numbers


@functools.lru_cache(maxsize=4096)
def _chunk_layers(figures: tuple[float, ...], groups: int, chunks: int, division: Division) -> tuple[int, ...]:
    """Layers of every chunk, from the `_figures` of a model with so many groups of layers."""
    numbers, weights = [int(number) for number in figures[:groups]], figures[groups:]
    if not weights:
        return division.layers(sum(numbers), chunks)
    return balanced_layers([cost for cost, number in zip(weights, numbers, strict=False) for _ in range(number)], weights[-1], chunks)


def _at(values: Sequence[Array | float], at: Index) -> Array:
    """Numbers at some of the points, shape (values, points), or (values, 1) where they differ at none."""
    here = [np.asarray(value, dtype=float)[at] if np.ndim(value) else np.full(1, float(value)) for value in values]
    return np.array(np.broadcast_arrays(*here))


def _distinct(table: Array) -> tuple[Array, Index]:
    """Different columns of a table, and which of them each column is."""
    if table.shape[1] == 1:
        return table, np.zeros(1, dtype=np.intp)
    distinct, which = np.unique(table, axis=1, return_inverse=True)
    return distinct, which.ravel()


def row_counts(job: Job, shape: Shape, *, balanced: bool, apart: bool = False) -> tuple[Array, Array, Array]:
    """As `counts`, of the rows of a schedule, in which a chunk may lie anywhere, and once for each direction.

    Where points differ in their numbers of layers, arrays are of shape (rows, units, n).
    """
    in_number, in_weight = _differing(job)
    if shape.listed is None and not (in_number or (balanced and in_weight)):
        found: Array | tuple[Array, ...] = counts(job, shape.stages, shape.chunks, shape.division, balanced, apart)
    else:
        numbers = [layer.count for layer in job.model.layers]
        parts = _at(numbers, shape.at), chunk_layers(job, shape, balanced=balanced)
        distinct, which = _distinct(np.concatenate([wide(part, len(shape.at)) for part in parts]))
        found = _counted(job, distinct[: len(numbers)], distinct[len(numbers) :], apart=apart)[..., which]
    rows = slice(None) if shape.schedule in NATURAL else shape.order.chunk
    return found[0][rows], found[1][rows], found[2][rows]


@once
def _differing(job: Job) -> tuple[bool, bool]:
    """Whether numbers of layers differ between points, and whether their weights do."""
    numbers, weights = [layer.count for layer in job.model.layers], _figures(job.model, by_weight=True)
    return any(map(np.ndim, numbers)), any(map(np.ndim, weights))


def counts(job: Job, stages: int, chunks: int, division: Division, balanced: bool, apart: bool = False) -> tuple[Array, Array, Array]:
    """How often every unit occurs in every chunk: forward, with a gradient of its input, with one of its weights.

    Returns three arrays of shape (chunks of all stages, units), which are kept with the job. Parts of groups of layers that are of one
    kind are one unit, or `apart` as in `crossflow.parallel.blocks.unit_places`.
    """
    known: dict[Any, tuple[Array, Array, Array]] = vars(job).setdefault("_counts", {})
    key = stages, chunks, division, balanced, apart
    if key not in known:
        forward, inputs, weights = _counted(job, *_division_of(job, stages, chunks, division, balanced), apart=apart)[..., 0]
        known[key] = forward, inputs, weights
    return known[key]


class Occurrence(NamedTuple):
    """One unit of the model in its order: which, of which layer (None of the ends), and of what it needs gradients."""

    unit: int
    layer: int | None
    input: bool
    weight: bool


@functools.lru_cache(maxsize=1024)
def sequence(job: Job, stages: int, chunks: int, division: Division, balanced: bool) -> tuple[tuple[Occurrence, ...], ...]:
    """Units of every chunk of a pipeline, in the order of the model."""
    numbers, sizes = _division_of(job, stages, chunks, division, balanced)
    runs, head = _runs(job, numbers)[..., 0], 1 + job.model.depth
    ends = 1 + np.cumsum(sizes[:-1, 0])
    found: list[list[Occurrence]] = [[] for _ in range(stages * chunks)]
    units = unit_places(job.model).tolist()
    for place, part in np.argwhere(runs[0].T).tolist():
        layer = None if place in (0, head) else place - 1 - (place > head)
        one = Occurrence(units[part], layer, bool(runs[1, part, place]), bool(runs[2, part, place]))
        found[int(np.searchsorted(ends, place, side="right"))].append(one)
    return tuple(tuple(chunk) for chunk in found)


def _division_of(job: Job, stages: int, chunks: int, division: Division, balanced: bool) -> tuple[Array, Array]:
    """Layers of every group, and of every chunk, each of shape (..., 1)."""
    shape = Shape(at=np.zeros(1, dtype=np.intp), stages=stages, chunks=chunks, microbatches=1, schedule="1f1b", division=division)
    return np.array([[float(layer.count)] for layer in job.model.layers]), chunk_layers(job, shape, balanced=balanced)


def _counted(job: Job, numbers: Array, sizes: Array, *, apart: bool) -> Array:
    """How often every unit occurs in every chunk: forward, with a gradient of its input, with one of its weights; `apart` as `counts`.

    Parameters
    ----------
    numbers, sizes : layers of every group of the model, and of every chunk, shape (groups, n) and (chunks, n). [1]

    Returns
    -------
    ndarray, shape (3, chunks, units, n).
    """
    runs = _runs(job, numbers)
    ends = 1 + np.cumsum(sizes, axis=0).astype(int)
    begins = ends - sizes.astype(int)
    begins[0], ends[-1] = 0, runs.shape[2]  # the embedding; the head, and layers that predict further tokens
    before, points = np.zeros((*runs.shape[:2], runs.shape[2] + 1, runs.shape[3]), dtype=np.int32), np.arange(runs.shape[3])
    before[:, :, 1:] = runs
    np.add.accumulate(before, axis=2, out=before)
    found = (before[:, :, ends, points] - before[:, :, begins, points]).swapaxes(1, 2).astype(float)
    places = unit_places(job.model)
    return found if apart or len(places) == places[-1] + 1 else _together(found, places)


def _together(often: Array, units: Index) -> Array:
    """Sums of counts over the parts of each unit, shape (3, chunks, units, n), from those of the parts, shape (3, chunks, parts, n)."""
    order = np.argsort(units, kind="stable")
    return np.asarray(np.add.reduceat(often[:, :, order], np.searchsorted(units[order], np.arange(units[-1] + 1)), axis=2))


def _runs(job: Job, numbers: Array) -> Mask:
    """Which parts of groups of layers run in every place of the model: forward, for a gradient of their inputs, and of their weights.

    A frozen part has no weight gradient; one with nothing that trains below it needs no gradient of its input either.

    Parameters
    ----------
    numbers : layers of every group, shape (groups, n). [1]

    Returns
    -------
    ndarray, shape (3, parts, places, n), parts as in `crossflow.parallel.blocks.unit_places`; places are the embedding, the layers,
    the head, and layers that predict further tokens.
    """
    model = job.model
    types = [model.embedding.type, *(part.type for layer in model.layers for part in layer.parts), model.head.type]
    ahead = np.array([layer.predicts for layer in model.layers])
    depth, further = (int(numbers[which].sum(axis=0).max()) if which.any() else 0 for which in (~ahead, ahead))
    place = np.arange(depth + further + 2)[:, None]
    forward, within = np.zeros((len(types), len(place), numbers.shape[1]), dtype=bool), np.zeros((len(types), 1, 1))
    forward[0, 0], forward[-1, depth + 1] = True, True
    unit, first, beyond = 1, np.ones(numbers.shape[1]), np.full(numbers.shape[1], depth + 2.0)
    for layer, number in zip(model.layers, numbers, strict=True):
        begin, parts = beyond if layer.predicts else first, slice(unit, unit + len(layer.parts))
        forward[parts] = (place >= begin) & (place < begin + number) & job.takes_part(layer)
        within[parts, 0, 0] = np.arange(len(layer.parts))
        begin += number
        unit += len(layer.parts)
    if model.adapted and job.training:  # what goes to the first factor of an adapter passes its part on the way, also of the lowest one
        every = [model.embedding, *(part for layer in model.layers for part in layer.parts), model.head]
        adapted = np.array([any(matrix.adapted for matrix in part.matrices) for part in every])[:, None, None]
        order, trains = place * len(types) + within, forward & adapted
        return np.array([forward, forward & (np.where(trains, order, np.inf).min(axis=(0, 1)) <= order), trains])
    if job.frozen is None:
        return np.array([forward, forward & job.training, forward & job.training])
    still = np.zeros(len(place), dtype=bool)
    still[[layer + 1 for layer in job.frozen.layers if layer < depth]] = True
    free = np.array([not job.is_frozen(kind, None) for kind in types])
    weights = forward & job.training & free[:, None, None] & ~still[:, None]
    order = place * len(types) + within
    below = np.where(weights, order, np.inf).min(axis=(0, 1)) < order
    # The embedding's "input gradient" is the scatter into its own table.
    inputs = (forward & job.training & below) | (weights & np.array([kind == "embedding" for kind in types])[:, None, None])
    return np.array([forward, inputs, weights])


@dataclass(frozen=True, kw_only=True, eq=False)
class Between:
    """What goes between the stages of a pipeline, each of shape (n,): sizes [B], or times [s].

    `transfer` takes activations from a stage to the next, each rank of a tensor group its part; its times are of shape (2, n), between
    neighbours inside a node and in different nodes. `whole` puts the parts together where the receivers do not keep them divided;
    `tied` adds up the gradients of a table that first and last stage both hold.
    """

    transfer: Array
    whole: Array
    tied: Array

    def each(self, layout: Layout) -> tuple[tuple[str, Array, Group], ...]:
        """Collective, size and group of `transfer` inside a node and between nodes, of `whole` and of `tied`."""
        inside, outside = layout.neighbours
        return (
            ("send_recv", self.transfer, inside),
            ("send_recv", self.transfer, outside),
            ("all_gather", self.whole, layout.tensor),
            ("all_reduce", self.tied, layout.ends),
        )
