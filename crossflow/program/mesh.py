"""Axes of the ranks of a job, from the groups of rank 0 that communicate."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from dataclasses import dataclass

from crossflow.base.errors import CrossflowError
from crossflow.program.groups import DeviceGroup

RankSpan = tuple[int, int]  # distance of two neighbours, and of the ends of the group


@dataclass(frozen=True, kw_only=True)
class RankMesh:
    """Axes of the ranks, nearest neighbours first, and groups of ranks that are no axes.

    Attributes
    ----------
    axes : names and sizes.
    groups : by name.
    of : axes, or the group, of every set of ranks that communicates.
    """

    axes: Mapping[str, int]
    groups: Mapping[str, DeviceGroup]
    of: Mapping[tuple[int, ...], tuple[str, ...]]


def mesh_of(groups: Mapping[tuple[int, ...], str], world: int, axes: Mapping[str, int]) -> RankMesh:
    """Axes of the ranks 0 to `world`, from the groups of rank 0 that communicate.

    A group whose ranks lie `stride` apart covers the axes between `stride` and the end of its first cycle; one whose ranks lie so in
    several directions covers all of these. Groups whose cycles do not divide one another share no mesh; of these the first that
    communicates is an axis.

    Parameters
    ----------
    groups : ranks of each, with the name of the axis that they are.
    axes : names and sizes of axes that are known, nearest neighbours first, along which nothing may be sent; none where empty. [1]

    >>> mesh = mesh_of({(0, 1, 4, 5): "", (0, 2): ""}, 8, {})
    >>> dict(mesh.axes), mesh.of[0, 1, 4, 5]
    ({'d0': 2, 'd1': 2, 'd2': 2}, ('d0', 'd2'))
    """
    spans_of = {ranks: _spans(ranks, world) for ranks in groups}
    far_ends = list(itertools.accumulate(axes.values(), operator.mul))
    named = {(far // size, far): name for (name, size), far in zip(axes.items(), far_ends, strict=True)}
    ends, lying = {1, world, *far_ends}, {}
    for ranks, own in spans_of.items():
        both = sorted({*ends, *itertools.chain.from_iterable(own)})
        if all(larger % smaller == 0 for smaller, larger in itertools.pairwise(both)):
            ends, lying[ranks] = set(both), own
        elif len(own) > 1:
            raise _uneven(ranks, world)
    named |= {own[0]: groups[ranks] for ranks, own in lying.items() if len(own) == 1 and groups[ranks]}
    spans: dict[str, RankSpan] = {}
    for i, span in enumerate(itertools.pairwise(sorted(ends))):
        name = named.get(span, "")
        spans[name if name and name not in spans else f"d{i}"] = span
    of = {
        ranks: tuple(name for name, (near, far) in spans.items() if any(first <= near and far <= end for first, end in own))
        for ranks, own in lying.items()
    }
    beside = {f"group{i}": ranks for i, ranks in enumerate(ranks for ranks in groups if ranks not in lying)}
    return RankMesh(
        axes={name: far // near for name, (near, far) in spans.items()},
        groups={name: _device_group(ranks, world) for name, ranks in beside.items()},
        of={**of, **{ranks: (name,) for name, ranks in beside.items()}},
    )


def _spans(ranks: tuple[int, ...], world: int) -> tuple[RankSpan, ...]:
    """How the ranks of a group lie, direction by direction: at equal distances within each."""
    left, found = list(ranks), list[RankSpan]()
    while len(left) > 1:
        stride = left[1] - left[0]
        run = next((i for i in range(1, len(left)) if left[i] != left[0] + i * stride), len(left))
        blocks = [left[i : i + run] for i in range(0, len(left), run)]
        if ranks[0] or any([one - block[0] for one in block] != [i * stride for i in range(run)] for block in blocks):
            raise _uneven(ranks, world)
        found.append((stride, stride * run))
        left = [block[0] for block in blocks]
    if ranks[0] or any(world % end for _, end in found) or len(set(ranks)) < len(ranks):
        raise _uneven(ranks, world)
    return tuple(found) or ((1, 1),)


def _device_group(ranks: tuple[int, ...], world: int) -> DeviceGroup:
    """A group of rank 0."""
    group = DeviceGroup.of(ranks, world)
    if group is None or ranks[0]:
        raise _uneven(ranks, world)
    return group


def _uneven(ranks: tuple[int, ...], world: int) -> CrossflowError:
    return CrossflowError(
        f"ranks {', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''} communicate, which lie at no equal distances in "
        f"the world of {world}; use groups of a device mesh"
    )
