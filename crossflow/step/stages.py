"""Stages of a pipeline: which layers each holds, and which design points share a pipeline's shape."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from crossflow.arrays import Array, Index
from crossflow.parallel.blocks import units
from crossflow.strategy.layout import Layout
from crossflow.strategy.schedules import NATURAL, PipelineOrder, pipeline_order
from crossflow.strategy.stages import Division, balanced_layers
from crossflow.workload.job import Job
from crossflow.workload.transformer import LayerType, Transformer


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """Points that share the shape of their pipeline.

    Attributes
    ----------
    at : the points.
    stages, chunks, microbatches : of the pipeline; chunks of one stage, microbatches of a replica, 1 where there is one stage. [1]
    schedule : name of its rule, or path of its file.
    division : how layers are divided over its stages.
    """

    at: Index
    stages: int
    chunks: int
    microbatches: int
    schedule: str
    division: Division

    @property
    def order(self) -> PipelineOrder:
        """Order of its slots."""
        return pipeline_order(self.schedule, self.stages, self.chunks, self.microbatches)


def alike(layout: Layout) -> list[Shape]:
    """Shapes of all pipelines, each with the points that have it."""
    keys = np.stack(
        [
            layout.pp, layout.chunks, np.where(layout.pp > 1, layout.microbatches, 1.0), layout.schedule.astype(float),
            layout.division.astype(float),
        ]
    )  # fmt: skip
    if (keys == keys[:, :1]).all():
        return [_shape(keys[:, 0], layout, np.arange(keys.shape[1]))]
    shapes, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.ravel()
    return [_shape(shapes[:, i], layout, np.flatnonzero(which == i)) for i in range(shapes.shape[1])]


def _shape(key: Array, layout: Layout, at: Index) -> Shape:
    stages, chunks, microbatches, schedule, division = (int(value) for value in key)
    return Shape(
        at=at, stages=stages, chunks=chunks, microbatches=microbatches, schedule=layout.schedules[schedule],
        division=layout.divisions[division],
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def chunk_layers(model: Transformer, stages: int, chunks: int, division: Division, balanced: bool) -> tuple[int, ...]:
    """Layers of every chunk of a pipeline in the order of the model."""
    if balanced and chunks == 1 and division == Division():
        costs = [float(layer.parameters) for layer in model.main for _ in range(layer.count)]
        return balanced_layers(costs, float(model.head.parameters + model.mtp_parameters), stages)
    return division.layers(model.depth, stages * chunks)


def row_counts(job: Job, shape: Shape, *, balanced: bool) -> tuple[Array, Array, Array]:
    """As `counts`, of the rows of a schedule, in which a chunk may lie anywhere, and once for each direction."""
    found = counts(job, shape.stages, shape.chunks, shape.division, balanced)
    if shape.schedule in NATURAL:
        return found
    chunk = shape.order.chunk
    return found[0][chunk], found[1][chunk], found[2][chunk]


class Occurrence(NamedTuple):
    """One unit of the model in its order: which, of which layer (None of the ends), and of what it needs gradients."""

    unit: int
    layer: int | None
    input: bool
    weight: bool


@functools.lru_cache(maxsize=256)
def _in_order(job: Job) -> tuple[Occurrence, ...]:
    """Units in the order of the model, layers that predict further tokens after the head.

    A frozen unit has no weight gradient; one with nothing that trains below it needs no gradient of its input either.
    """
    model, training = job.model, job.training
    place = {name: i for i, (name, _) in enumerate(units(model))}
    order: list[tuple[int, LayerType, int | None]] = []
    for layer, kind in enumerate(kind for kind, one in enumerate(model.layers) for _ in range(one.count)):
        if job.takes_part(model.layers[kind]):
            order += [(place[f"{kind}.{j}.{part.type}"], part.type, layer) for j, part in enumerate(model.layers[kind].parts)]
    further = sum(number is not None and number >= model.depth for _, _, number in order)
    order.insert(0, (place["embedding"], "embedding", None))
    order.insert(len(order) - further, (place["head"], "head", None))
    found, below = list[Occurrence](), False
    for unit, type_, number in order:
        trains = training and not job.is_frozen(type_, number)
        # The embedding's "input gradient" is the scatter into its own table.
        found.append(Occurrence(unit, number, training and (below or (type_ == "embedding" and trains)), trains))
        below = below or trains
    return tuple(found)


def _chunks_of(job: Job, stages: int, chunks: int, division: Division, balanced: bool) -> Index:
    """Chunk of every unit in the order of the model."""
    of_layer = np.repeat(np.arange(stages * chunks), chunk_layers(job.model, stages, chunks, division, balanced))
    main = [int(of_layer[one.layer]) for one in _in_order(job) if one.layer is not None and one.layer < len(of_layer)]
    behind = len(_in_order(job)) - 1 - len(main)  # the head, and layers that predict further tokens
    return np.array([0, *main, *[stages * chunks - 1] * behind])


@functools.lru_cache(maxsize=1024)
def sequence(job: Job, stages: int, chunks: int, division: Division, balanced: bool) -> tuple[tuple[Occurrence, ...], ...]:
    """Units of every chunk of a pipeline, in the order of the model."""
    found: list[list[Occurrence]] = [[] for _ in range(stages * chunks)]
    for chunk, one in zip(_chunks_of(job, stages, chunks, division, balanced).tolist(), _in_order(job), strict=True):
        found[chunk].append(one)
    return tuple(tuple(chunk) for chunk in found)


@functools.lru_cache(maxsize=1024)
def counts(job: Job, stages: int, chunks: int, division: Division, balanced: bool) -> tuple[Array, Array, Array]:
    """How often every unit occurs in every chunk: forward, with a gradient of its input, with one of its weights.

    Returns three arrays of shape (chunks of all stages, units).
    """
    result = np.zeros((3, stages * chunks, len(units(job.model))))
    unit, _, inputs, weights = zip(*_in_order(job), strict=True)
    chunk = _chunks_of(job, stages, chunks, division, balanced)
    for table, often in zip(result, (1.0, inputs, weights), strict=True):
        np.add.at(table, (chunk, np.array(unit)), np.array(often, dtype=float))
    return result[0], result[1], result[2]
