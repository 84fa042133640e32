"""Groups of ranks that communicate, one group for each design point."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

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
class Group:
    """Ranks that communicate, shape (n,)."""

    size: Array  # how many. [1]
    per_node: Array  # how many of them share a node. [1]
    stride: Array  # how they lie on a mesh: devices between neighbours. [1]
    devices: Array  # devices of the mesh. [1]
    extent: Array  # ranks. [1]

    @classmethod
    def alike(cls, size: int, per_node: int, n: int) -> Group:
        """Neighbouring ranks, as many at each of n design points."""
        ranks, one = np.full(n, float(size)), np.ones(n)
        return cls(size=ranks, per_node=np.full(n, float(per_node)), stride=one, devices=ranks, extent=ranks)

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
