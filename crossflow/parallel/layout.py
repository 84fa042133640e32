"""Plans as arrays over design points, and the groups of ranks that they make."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from crossflow.arrays import Array, Index, Mask
from crossflow.parallel.plan import BLOCKS, OFFLOADS, Block, Offload, Plan


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Ranks that communicate, shape (n,).

    Attributes
    ----------
    size, per_node : how many, and how many of them share a node. [1]
    stride, extent, devices : how they lie on a mesh of `devices`: `extent` ranks, `stride` devices apart; of the two
        neighbours in a pipeline `extent` is all its stages. [1]
    """

    size: Array
    per_node: Array
    stride: Array
    devices: Array
    extent: Array

    @functools.cached_property
    def several(self) -> bool:
        """Whether any of them has more than one rank."""
        return bool(self.size.max() > 1)

    @functools.cached_property
    def kinds(self) -> tuple[tuple[int, int, Index], ...]:
        """Different groups among the points: ranks, ranks that share a node, and the points that have such."""
        return tuple((ranks, per_node, members) for (ranks, per_node), members in _different(self.size, self.per_node))

    @functools.cached_property
    def places(self) -> tuple[tuple[int, int, int, Index], ...]:
        """The same by how they lie: stride, extent, devices, and the points."""
        found = _different(self.stride, self.extent, self.devices)
        return tuple((stride, extent, devices, members) for (stride, extent, devices), members in found)

    def at(self, members: Index) -> Group:
        """Some of the points."""
        return Group(**{field.name: getattr(self, field.name)[members] for field in fields(self)})


def _different(*columns: Array) -> list[tuple[tuple[int, ...], Index]]:
    """Different rows of whole numbers, each with the points that have it."""
    if columns[0].size == 1:
        return [(tuple(int(column[0]) for column in columns), np.zeros(1, dtype=np.intp))]
    rows, which = np.unique(np.stack(columns), axis=1, return_inverse=True)
    which = which.ravel()
    return [(tuple(int(value) for value in rows[:, i]), np.flatnonzero(which == i)) for i in range(rows.shape[1])]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Plans as arrays over design points, shape (n,); degrees as floats, options as masks.

    Attributes
    ----------
    tp, cp, ep, etp, dp, pp, chunks, micro_batch, microbatches : degrees and counts. [1]
    zero, shard_group : as in `Plan`.
    sequence_parallel, full, selective : options as masks.
    schedule : index of each point's schedule in `schedules`.
    offload : points that keep something on the host, by what they keep; what none keeps is not there.
    placement : index of each point's placement in `placements`.
    node : devices of one node. [1]
    """

    tp: Array
    cp: Array
    ep: Array
    etp: Array
    dp: Array
    pp: Array
    chunks: Array
    micro_batch: Array
    microbatches: Array
    zero: Array
    shard_group: Array
    sequence_parallel: Mask
    full: Mask
    selective: Mask
    schedule: Index
    schedules: tuple[str, ...]
    offload: Mapping[Offload, Mask]
    placement: Index
    placements: tuple[tuple[Block, ...], ...]
    first_stage: Array
    last_stage: Array
    node: int

    @classmethod
    def of(cls, plans: Sequence[Plan], batch: Array, node: int) -> Layout:
        """Arrays of plans; `batch` is the global batch of each. [samples]"""
        column = functools.partial(_column, plans)
        dp, micro = column("dp"), column("micro_batch")
        schedules, placements = (tuple(dict.fromkeys(getattr(plan, name) for plan in plans)) for name in ("schedule", "placement"))
        recompute, hosted = [plan.recompute for plan in plans], {what for plan in plans for what in plan.offload}
        return cls(
            tp=column("tp"), cp=column("cp"), ep=column("ep"), etp=column("expert_tensor"), dp=dp, pp=column("pp"),
            chunks=column("virtual_stages"),
            micro_batch=micro, microbatches=batch / (dp * micro), zero=column("zero"), shard_group=column("shard_group"),
            sequence_parallel=column("sequence_parallel") > 0, full=np.array([r == "full" for r in recompute]),
            selective=np.array([r == "selective" for r in recompute]),
            schedule=np.array([schedules.index(plan.schedule) for plan in plans]), schedules=schedules,
            offload={what: np.array([what in plan.offload for plan in plans]) for what in OFFLOADS if what in hosted},
            placement=np.array([placements.index(plan.placement) for plan in plans]), placements=placements,
            first_stage=column("first_stage"), last_stage=column("last_stage"), node=node,
        )  # fmt: skip

    def __len__(self) -> int:
        return int(self.tp.size)

    def at(self, members: Index) -> Layout:
        """Some of the points."""
        shared = ("node", "offload", "schedules", "placements")
        arrays = {field.name: getattr(self, field.name)[members] for field in fields(self) if field.name not in shared}
        return replace(self, **arrays, offload={what: points[members] for what, points in self.offload.items()})

    def group(self, stride: Array, size: Array) -> Group:
        """Ranks `stride` apart: how many of them lie in one node of consecutive devices, as many in each (`crossflow.mapping.place`)."""
        fitting = np.gcd(size.astype(int), (self.node // stride).astype(int))
        per_node = np.where(self.node % stride == 0, fitting, 1.0)
        return Group(size=size, per_node=per_node, stride=stride, devices=self.devices, extent=size)

    @functools.cached_property
    def updates(self) -> Array:
        """Times that weights are updated in a step: once, or after every microbatch (PipeDream). [1]"""
        always = np.array([schedule == "pipedream" for schedule in self.schedules])[self.schedule]
        return np.where(always, self.microbatches, 1.0)

    @functools.cached_property
    def devices(self) -> Array:
        """Devices in use. [1]"""
        return self.tp * self.cp * self.dp * self.pp

    @functools.cached_property
    def strides(self) -> Mapping[Block, Array]:
        """Devices between neighbours of a block of ranks, by how the blocks lie. [1]"""
        sizes: Mapping[Block, Array] = {"tp": self.tp, "dp": self.cp * self.dp, "pp": self.pp}
        found = {block: np.ones_like(self.tp) for block in BLOCKS}
        for which, placement in enumerate(self.placements):
            mine, stride = self.placement == which, np.ones_like(self.tp)
            for block in placement:
                found[block] = np.where(mine, stride, found[block])
                stride = stride * sizes[block]
        return found

    @functools.cached_property
    def tensor(self) -> Group:
        """Ranks that share each layer."""
        return self.group(self.strides["tp"], self.tp)

    @functools.cached_property
    def context(self) -> Group:
        """Ranks that share each sample."""
        return self.group(self.strides["dp"], self.cp)

    @functools.cached_property
    def directions(self) -> Array:
        """Directions in which microbatches pass the stages; each has weights of its own. [1]"""
        both = "chimera" in self.schedules
        return np.where(self.schedule == self.schedules.index("chimera"), 2.0, 1.0) if both else np.ones_like(self.tp)

    @functools.cached_property
    def data(self) -> Group:
        """Ranks that hold the same weights: data and context ranks together, and those of the mirrored stage (Chimera)."""
        return self._mirrored(self.group(self.strides["dp"], self.dp * self.cp))

    def _mirrored(self, group: Group) -> Group:
        """A group with the ranks of the stage that holds the same layers for the other direction, which are far away."""
        return replace(group, size=group.size * self.directions) if "chimera" in self.schedules else group

    @functools.cached_property
    def shards(self) -> Group:
        """Ranks over which weights are sharded where they are (FSDP)."""
        return self.group(self.strides["dp"], np.where(self.shard_group > 0, self.shard_group, self.dp * self.cp))

    @functools.cached_property
    def copies(self) -> Group:
        """Ranks that hold the same shard of the weights (hybrid sharding)."""
        return self.group(self.strides["dp"] * self.shards.size, self.dp * self.cp / self.shards.size)

    @functools.cached_property
    def expert_tensor(self) -> Group:
        """Ranks that share each expert, where they are fewer than those that share a layer; one alone elsewhere."""
        return self.group(self.strides["tp"], np.where(self.etp < self.tp, self.etp, 1.0))

    @functools.cached_property
    def _apart(self) -> Array:
        """Devices between ranks that hold different experts. [1]"""
        return np.where(self.etp < self.tp, self.strides["tp"] * self.etp, self.strides["dp"])

    @functools.cached_property
    def expert(self) -> Group:
        """Ranks that share out the experts."""
        return self.group(self._apart, self.ep)

    @functools.cached_property
    def expert_data(self) -> Group:
        """Ranks that hold the same experts."""
        return self._mirrored(self.group(self._apart * self.ep, self.tp / self.etp * self.dp * self.cp / self.ep))

    @functools.cached_property
    def expert_shards(self) -> Group:
        """Ranks over which experts are sharded where they are: of the ranks that hold the same, those within a `shard_group`."""
        same = self.tp / self.etp * self.dp * self.cp / self.ep
        within = np.floor(self.shard_group * self.tp / (self.etp * self.ep))
        size = np.gcd(np.maximum(within, 1.0).astype(int), same.astype(int)).astype(float)
        return self.group(self._apart * self.ep, np.where(self.shard_group > 0, size, same))

    @functools.cached_property
    def expert_copies(self) -> Group:
        """Ranks that hold the same shard of the experts (hybrid sharding)."""
        same = self.tp / self.etp * self.dp * self.cp / self.ep
        return self.group(self._apart * self.ep * self.expert_shards.size, same / self.expert_shards.size)

    @functools.cached_property
    def stages(self) -> Group:
        """Neighbouring stages of a pipeline, as a pair."""
        stride = self.strides["pp"]
        per_node = np.minimum(self.group(stride, self.pp).per_node, 2.0)
        return Group(size=np.minimum(self.pp, 2.0), per_node=per_node, stride=stride, devices=self.devices, extent=self.pp)


def _column(plans: Sequence[Plan], name: str) -> Array:
    return np.array([getattr(plan, name) for plan in plans], dtype=float)
