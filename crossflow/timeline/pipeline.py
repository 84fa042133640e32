"""Pipelines of forward and backward passes: when each stage ends, as longest paths over all design points.

A schedule is an order of slots (forward or backward pass, chunk of the model, microbatch) for every stage. A slot starts
when its stage is free and its input has arrived. Slots are sorted once by depth of dependence; then one pass over the
depths, each a single array operation over slots and design points, gives every finishing time.

A long schedule repeats: a slot needs only what is at most one slot back on its own or a neighbouring stage, so that once
a whole slice of the pipeline ends later than the slice one round of `stages` microbatches before it by one time everywhere,
all later rounds add that time too. Long schedules are walked to that point, longer and longer ones until it is found, and continued.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, Sec. 2.2.
.. [2] Huang et al., "GPipe", NeurIPS 2019.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array, Index, Mask
from crossflow.parallel.plan import Pipeline

Slot = tuple[str, int, int]  # "F" or "B", chunk of the model, microbatch
ROUNDS = 3  # rounds of `stages` microbatches after which the repetition is looked for: warm-up, and two to compare
FEW = 12_000  # slots times points up to which plain numbers are faster than arrays


def order(schedule: Pipeline, stages: int, chunks: int, microbatches: int, stage: int) -> list[Slot]:
    """Slots of one stage in their order; `chunks` is the number of model chunks that a stage holds.

    >>> order("1f1b", 2, 1, 2, 0)
    [('F', 0, 0), ('F', 0, 1), ('B', 0, 0), ('B', 0, 1)]
    """
    total = microbatches * chunks
    forward = [("F", *_chunk(k, stages, chunks, forward=True)) for k in range(total)]
    backward = [("B", *_chunk(k, stages, chunks, forward=False)) for k in range(total)]
    if schedule == "gpipe":
        return forward + backward
    ahead = min(_ahead(stages, chunks, stage), total)
    steady = [slot for pair in zip(forward[ahead:], backward, strict=False) for slot in pair]
    return forward[:ahead] + steady + backward[total - ahead :]


def _ahead(stages: int, chunks: int, stage: int) -> int:
    """Forward passes of a stage before its first backward pass, where there are as many."""
    return stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages


def _chunk(k: int, stages: int, chunks: int, *, forward: bool) -> tuple[int, int]:
    """Chunk and microbatch of the k-th pass: `stages` microbatches go through one chunk before the next (Megatron's interleaving)."""
    if chunks == 1:
        return 0, k
    group, within = divmod(k, stages * chunks)
    chunk = within // stages
    return (chunk if forward else chunks - 1 - chunk), group * stages + within % stages


@dataclass(frozen=True, eq=False)
class _Walk:
    """Slots by depth: for each depth its slots, the slot before each on its stage, and the slot that its input comes from.

    Indices into a flat table of finishing times whose last row is zero, for slots without a predecessor.
    """

    depths: tuple[tuple[Index, Index, Index, Index, Mask], ...]  # slots, before, source, row of durations, from another stage
    order: tuple[tuple[int, int, int, bool], ...]  # the same slot by slot, in an order that respects dependence
    stages: Index  # slots of every stage in its order, shape (stages, slots of a stage)


@functools.lru_cache(maxsize=512)
def _walk(schedule: Pipeline, stages: int, chunks: int, microbatches: int) -> _Walk:
    virtual = stages * chunks  # chunks of the whole model; a slot is (kind, chunk of the model, microbatch) as one number
    count = 2 * virtual * microbatches
    orders = [
        [
            ((kind == "B") * virtual + chunk * stages + stage) * microbatches + batch
            for kind, chunk, batch in order(schedule, stages, chunks, microbatches, stage)
        ]
        for stage in range(stages)
    ]
    source = _sources(virtual, microbatches)
    number, depth = [-1] * (count + 1), [0] * (count + 1)
    depth[count] = -1
    number[count] = count
    made: list[tuple[int, int, int, bool]] = []
    ranked: list[int] = []
    position, before, level = [0] * stages, [count] * stages, [0] * stages
    left = count
    while left:
        moved = left
        for stage, todo in enumerate(orders):
            at, here, first = position[stage], level[stage], before[stage]
            while at < len(todo):
                slot = todo[at]
                needs = source[slot]
                if number[needs] < 0:
                    break
                here = max(here, depth[needs] + 1)
                number[slot], depth[slot] = len(made), here
                row = slot // microbatches
                crosses = stages > 1 and needs != count and needs // microbatches % virtual != row % virtual
                made.append((first, number[needs], row, crosses))
                ranked.append(here)
                first, here, at = number[slot], here + 1, at + 1
            left -= at - position[stage]
            position[stage], level[stage], before[stage] = at, here, first
        assert left < moved, "the schedule waits for itself"
    by_depth = np.argsort(np.array(ranked), kind="stable")
    table = np.array(made)[by_depth]
    cuts = np.flatnonzero(np.diff(np.array(ranked)[by_depth])) + 1
    depths = tuple(
        (slots, part[:, 0], part[:, 1], part[:, 2], part[:, 3:] > 0)
        for slots, part in zip(np.split(by_depth, cuts), np.split(table, cuts), strict=True)
    )
    return _Walk(depths=depths, order=tuple(made), stages=np.array(number)[np.array(orders)])


def _sources(virtual: int, microbatches: int) -> list[int]:
    """For every slot the one whose result it needs: the same microbatch one chunk earlier, backward one chunk later."""
    count = 2 * virtual * microbatches
    slots = np.arange(count + 1)
    chunk = slots // microbatches
    source = np.where(chunk < virtual, slots - microbatches, slots + microbatches)
    source[:microbatches] = count  # the first chunk's forward passes need nothing
    last = chunk == 2 * virtual - 1
    source[last] = slots[last] - virtual * microbatches  # the last chunk goes back from where it went forward
    found: list[int] = source.tolist()
    return found


def pipeline_ends(
    forward: Array, backward: Array, transfer: Array, *, stages: int, microbatches: int, schedule: Pipeline = "1f1b"
) -> Array:
    """Time at which every stage has finished its last slot, shape (stages, n). [s]

    Parameters
    ----------
    forward, backward : time of a pass through every chunk of the model in its order, shape (chunks of all stages, n); the
        chunks of a stage are every `stages`-th. [s]
    transfer : time from one stage to the next during which neither stage is held up, shape (n,). [s]
    """
    chunks = len(forward) // stages
    durations = np.concatenate([forward, backward])
    result, left, short = np.zeros((stages, len(transfer))), np.arange(len(transfer)), ROUNDS * stages + microbatches % stages
    while schedule == "1f1b" and left.size and short + stages < microbatches:
        walk = _walk(schedule, stages, chunks, short)
        ends = _ends(walk, durations[:, left], transfer[left])
        round_, repeats = _repetition(ends, walk, chunks)
        result[:, left] = ends[walk.stages[:, -1]] + round_ * ((microbatches - short) / stages)
        left, short = left[~repeats], 2 * short - microbatches % stages
    if left.size:
        walk = _walk(schedule, stages, chunks, microbatches)
        result[:, left] = _ends(walk, durations[:, left], transfer[left])[walk.stages[:, -1]]
    return result


def _repetition(ends: Array, walk: _Walk, chunks: int) -> tuple[Array, Mask]:
    """What a round of microbatches adds, shape (n,) [s], and where it adds that to every slot.

    The last `stages` pairs of a forward and a backward pass on each stage, before it has no more forward passes, are compared
    with those a round before: between them they hold a slice through all stages that all later slots come after.
    """
    stages, total = walk.stages.shape
    stop = np.array([total - _ahead(stages, chunks, stage) for stage in range(stages)])
    window = stop[:, None] - np.arange(1, 2 * stages + 1)
    slots = np.take_along_axis(walk.stages, window, axis=1).ravel()
    earlier = np.take_along_axis(walk.stages, window - 2 * stages * chunks, axis=1).ravel()
    with np.errstate(invalid="ignore"):  # a stage that never ends repeats nothing
        added = ends[slots] - ends[earlier]
    round_ = added.max(axis=0)
    return round_, np.asarray(round_ - added.min(axis=0) <= 1e-9 * round_)


def _ends(walk: _Walk, durations: Array, transfer: Array) -> Array:
    """Finishing time of every slot, and a row of zeros, shape (slots + 1, n). [s]"""
    n = durations.shape[1]
    if len(walk.order) * n <= FEW:
        return np.stack([_walked(walk, durations[:, i].tolist(), float(transfer[i])) for i in range(n)], axis=1)
    ends = np.zeros((len(walk.order) + 1, n))
    late = bool(transfer.any())
    for slots, before, source, row, crosses in walk.depths:
        arrived = np.where(crosses, ends[source] + transfer, ends[source]) if late else ends[source]
        ends[slots] = np.maximum(ends[before], arrived) + durations[row]
    return ends


def _walked(walk: _Walk, durations: list[float], transfer: float) -> Array:
    """The same for one point, slot by slot in plain numbers."""
    ends = [0.0] * (len(walk.order) + 1)
    for me, (before, source, row, crosses) in enumerate(walk.order):
        free, arrived = ends[before], ends[source] + transfer if crosses else ends[source]
        ends[me] = (free if free > arrived else arrived) + durations[row]
    return np.array(ends)


def slots(schedule: Pipeline, stages: int, chunks: int, microbatches: int) -> Iterator[tuple[int, Slot]]:
    """All slots with their stages, stage by stage."""
    for stage in range(stages):
        for slot in order(schedule, stages, chunks, microbatches, stage):
            yield stage, slot
