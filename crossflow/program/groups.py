"""Groups of ranks that communicate, one group for each design point."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from crossflow.base.arrays import Array, Index, alike


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """Devices of a system that communicate although they are no axis of its mesh: `ranks` of them in each group, `stride` apart. [1]"""

    ranks: int
    stride: int = 1

    @classmethod
    def of(cls, ranks: Sequence[int], devices: int) -> DeviceGroup | None:
        """Ranks as such a group of so many devices; None where they lie at unequal distances, or such groups do not fill the devices."""
        stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        evenly = all(later - earlier == stride for earlier, later in itertools.pairwise(ranks))
        return cls(ranks=len(ranks), stride=stride) if evenly and devices % (stride * len(ranks)) == 0 else None


@dataclass(frozen=True, kw_only=True, eq=False)
class JobPart:
    """Which devices of a job equal engines are on, shape (n,): so many of them, after others, of all. [1]

    The job is a service: its engines have messages of their own, and lie on one network.
    """

    before: Array
    devices: Array
    whole: Array

    @classmethod
    def in_turn(cls, devices: Sequence[Array], node: int) -> tuple[JobPart, ...]:
        """Parts of so many devices, one after the other; each begins in a node of its own.

        >>> [(int(one.before[0]), int(one.whole[0])) for one in JobPart.in_turn([np.array([12.0]), np.array([8.0])], 8)]
        [(0, 24), (16, 24)]
        """
        held = [np.ceil(one / node) * node for one in devices]
        firsts = itertools.accumulate(held, initial=np.zeros(1))
        whole = np.asarray(sum(held, np.zeros(1)))
        return tuple(
            cls(**dict(zip(("before", "devices", "whole"), np.broadcast_arrays(first, one, whole), strict=True)))
            for first, one in zip(firsts, devices, strict=False)
        )

    def at(self, members: Index) -> JobPart:
        """Some of the points."""
        return JobPart(before=self.before[members], devices=self.devices[members], whole=self.whole[members])


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Ranks that communicate, shape (n,)."""

    size: Array  # how many. [1]
    per_node: Array  # how many of them share a node. [1]
    stride: Array  # how they lie on a mesh: devices between neighbours. [1]
    devices: Array  # devices of the mesh. [1]
    extent: Array  # ranks. [1]
    part: JobPart | None = None  # where the mesh and its equals lie in their job; it is the whole job where absent

    @classmethod
    def alike(cls, size: int, per_node: int, n: int) -> Group:
        """Neighbouring ranks, as many at each of n design points."""
        ranks, one = np.full(n, float(size)), np.ones(n)
        return cls(size=ranks, per_node=np.full(n, float(per_node)), stride=one, devices=ranks, extent=ranks)

    @classmethod
    def across(cls, stride: Array, part: JobPart | None = None) -> Self:
        """Two ranks in different nodes, so many devices apart."""
        pair = np.full(len(stride), 2.0)
        return cls(size=pair, per_node=np.ones(len(stride)), stride=stride, devices=pair * stride, extent=pair, part=part)

    @functools.cached_property
    def several(self) -> bool:
        """Whether any of them has more than one rank."""
        return bool(self.size.max() > 1)

    @functools.cached_property
    def kinds(self) -> tuple[tuple[int, int, Index], ...]:
        """Different groups among the points: ranks, ranks that share a node, and the points that have such."""
        return tuple((ranks, per_node, members) for (ranks, per_node), members in _different(self.size, self.per_node))

    @functools.cached_property
    def places(self) -> list[tuple[tuple[int, ...], Index]]:
        """The same by how they lie: stride, extent and devices, and the points."""
        return _different(self.stride, self.extent, self.devices)

    @functools.cached_property
    def parts(self) -> list[tuple[tuple[int, ...], Index]]:
        """The same by where their engines lie: devices before, of the part and of the job; none where there are no parts."""
        return [] if self.part is None else _different(self.part.before, self.part.devices, self.part.whole)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair(Group):
    """Two stages of a pipeline that communicate rank by rank, shape (n,); `extent` is the number of stages."""

    first: Array  # the stage that sends, 0 for any two neighbours. [1]
    last: Array  # the one that receives, 1 for any two neighbours. [1]

    @functools.cached_property
    def places(self) -> list[tuple[tuple[int, ...], Index]]:
        """The same with the ranks that share a node, and the two stages."""
        return _different(self.stride, self.extent, self.devices, self.per_node, self.first, self.last)


@dataclass(frozen=True, kw_only=True, eq=False)
class HandoverGroup(Group):
    """A device of an engine that reads prompts and one that it sends keys and values to, shape (n,); `stride` devices make an engine.

    Its part are the engines that send; engines on all devices before them receive.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertGroup(Group):
    """Ranks that share experts out and exchange tokens by a library made for it, shape (n,)."""

    libraries: tuple[str, ...]  # their names, in order of preference
    back: bool  # whether results travel back from the experts
    fast: bool = False  # whether only the low-latency method will do
    active: Array  # experts of a token. [1]
    experts: Array  # experts of a layer. [1]
    row: Array  # of a message, what a token and expert take. [B]
    token: Array  # a token as it travels. [B]


def _different(*columns: Array) -> list[tuple[tuple[int, ...], Index]]:
    """Different rows of whole numbers, each with the points that have it."""
    return [(tuple(map(int, row)), members) for row, members in alike(np.stack(columns))]
