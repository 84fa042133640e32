"""Pipeline stages: contiguous layers, as evenly loaded as whole layers allow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple


class Division(NamedTuple):
    """What a plan says of how the layers of a model are divided over stages; with several chunks a stage, over chunks."""

    first: int = 0  # layers of the first one, 0 where they are like the others. [1]
    last: int = 0  # of the last one, 0 where they are like the others. [1]
    # layers of every one, in the order of the model; empty where the others are as even as whole layers allow. [1]
    listed: tuple[int, ...] = ()
    # kind of the devices that every stage lies on, in the order of the stages; empty where all are alike
    kinds: tuple[int, ...] = ()

    def layers(self, depth: int, stages: int) -> tuple[int, ...]:
        """Layers of every stage or chunk of a model of so many layers. [1]"""
        return self.listed or stage_layers(depth, stages, self.first, self.last)


@functools.lru_cache(maxsize=4096)
def stage_layers(depth: int, stages: int, first: int = 0, last: int = 0) -> tuple[int, ...]:
    """Layers of every stage, as even as whole layers allow: all have as many or one more, those with one more in the middle.

    The first and the last stage also hold the embedding and the head. Where the layers do not divide but would with these two counted
    as one layer each, both ends have one layer fewer, as with Megatron's account_for_embedding_in_pipeline_split and
    account_for_loss_in_pipeline_split. An odd stage with fewer layers is the last one. With up to two more stages than layers, the
    ends hold the embedding and the head alone.

    >>> stage_layers(70, 12), stage_layers(10, 4)
    ((5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5), (2, 3, 3, 2))
    >>> stage_layers(61, 4), stage_layers(2, 4)
    ((15, 16, 15, 15), (0, 1, 1, 0))
    """
    if first or last:
        middle = stages - (first > 0) - (last > 0)
        inner = depth - first - last
        even = stage_layers(inner, middle) if middle else ()
        return ((first,) if first else ()) + even + ((last,) if last else ())
    if depth % stages and (depth + 2) % stages == 0 and stages > 1:
        each = (depth + 2) // stages
        return (each - 1, *(each,) * (stages - 2), each - 1)
    least, extra = divmod(depth, stages)
    start = (stages - extra) // 2
    return tuple(least + (start <= i < start + extra) for i in range(stages))


def balanced_layers(costs: Sequence[float], head: float, stages: int) -> tuple[int, ...]:
    """Layers of every stage where each takes layers until its share of all costs is passed; the last stage has the head.

    As nanotron's pipeline builder does; a stage may be left without a layer.

    >>> balanced_layers([1.0] * 6, 3.0, 3)
    (4, 2, 0)
    """
    total, done, stage = sum(costs) + head, 0.0, 0
    sizes = [0] * stages
    for cost in costs:
        sizes[stage] += 1
        done += cost
        if done > total * (stage + 1) / stages and stage < stages - 1:
            stage += 1
    return tuple(sizes)
