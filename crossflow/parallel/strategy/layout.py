"""Plans as arrays over design points, and the groups of ranks that they make."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, numbered
from crossflow.parallel.strategy.mesh import (
    BIDIRECTIONAL,
    BLOCKS,
    FARS,
    OFFLOADS,
    REPEATED,
    TYPES,
    Far,
    Offload,
    RankBlock,
    RepeatedModule,
    Type,
)
from crossflow.parallel.strategy.plan import NUMBERS, OWN_SHARDS, OWN_TENSOR, Plan, PlanWords, fields_of_words
from crossflow.parallel.strategy.stages import Division
from crossflow.program.groups import Group, JobPart, Pair
from crossflow.workload.transformer import Routing

Named = TypeVar("Named", bound=str)


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """How ranks share and repeat the weights of some layers, shape (n,)."""

    # ranks that hold the same: data and context ranks together, those of a tensor group that holds copies, and those of the mirrored stage
    # (Chimera, DualPipe)
    data: Group
    shards: Group  # ranks over which weights are sharded where they are (FSDP)
    copies: Group  # ranks that hold the same shard (hybrid sharding)
    zero: Array  # what they share out, as in `Plan`

    def like(self, other: Spread) -> Mask:
        """Whether the same ranks share and repeat other layers in the same way, shape (n,)."""
        groups = zip((self.data, self.shards, self.copies), (other.data, other.shards, other.copies), strict=True)
        same = [(one.size == two.size) & ((one.stride == two.stride) | (one.size == 1)) for one, two in groups]
        return np.asarray(np.logical_and.reduce([*same, self.zero == other.zero]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Plans as arrays over design points, shape (n,); degrees as floats, options as masks."""

    # tp, cp, ep, dp, pp, chunks, micro_batch, microbatches: degrees and counts. [1]
    tp: Array
    cp: Array
    ep: Array
    dp: Array
    pp: Array
    chunks: Array
    micro_batch: Array
    microbatches: Array
    redundant: Array  # copies of experts, as in `Plan`. [1]
    zero: Array  # as in `Plan`
    shard_group: Array  # as in `Plan`
    # ranks over which a layer type's weights are sharded, of those that any plan gives a group of its own; 0 without. [1]
    own_shards: Mapping[Type, Array]
    apart: Mapping[Type, Mask]  # points whose shard groups of a layer type lie far apart, by type; what none has is not there
    own_tensor: Mapping[Type, Array]  # tensor degrees by layer type, of those that any plan gives one of its own. [1]
    unsharded: Mapping[Type, Mask]  # points that keep a layer type's weights whole, by type; what none keeps is not there
    distant: Mapping[Type, Mask]  # points whose ranks of a layer type lie the other way round, by type; what none has is not there
    # sequence_parallel, full: options as masks; a rank alone in its tensor group has tokens of its own as well, which tells
    # where several such ranks share an expert
    sequence_parallel: Mask
    full: Mask
    recompute_layers: Array  # as in `Plan`
    repeated: Mapping[RepeatedModule, Mask]  # points that compute a module again by itself, by module; what none does is not there
    schedule: Index  # index of each point's schedule in `schedules`
    schedules: tuple[str, ...]
    offload: Mapping[Offload, Mask]  # points that keep something on the host, by what they keep; what none keeps is not there
    offload_layers: Array  # as in `Plan`
    far: Mapping[Far, Mask]  # points that keep something on the second memory, by what they keep; what none keeps is not there
    far_experts: Array  # as in `Plan`. [%]
    far_cache: Array  # [%]
    placement: Index  # index of each point's placement in `placements`
    placements: tuple[tuple[RankBlock, ...], ...]
    division: Index  # index of how each point's layers are divided over stages in `divisions`
    divisions: tuple[Division, ...]
    node: int  # devices of one node. [1]
    housed: Array  # stages on the devices among which groups lie: all, or of several kinds of devices those on one (`on_kind`). [1]
    part: JobPart | None = None  # of engines on a network that others share: where all that are equal lie among those of their service

    @classmethod
    def of(cls, plans: Sequence[Plan], batch: Array, node: int) -> Layout:
        """Arrays of plans; `batch` is the global batch of each. [samples]"""
        different = {id(plan): plan for plan in plans}
        if len(different) < len(plans):
            places = {one: i for i, one in enumerate(different)}
            found = cls.of(tuple(different.values()), np.ones(len(different)), node).at(np.array([places[id(plan)] for plan in plans]))
            return replace(found, microbatches=batch / (found.dp * found.micro_batch))

        table = np.frombuffer(b"".join([plan.numbers for plan in plans])).reshape(len(plans), len(NUMBERS))
        number = dict(zip(NUMBERS, table.T.copy(), strict=True))
        tp, dp, micro = number["tp"], number["dp"], number["micro_batch"]
        words = _Spoken.of(plans)
        (schedules, schedule), (placements, placement), (divisions, division) = map(words.numbered, ("schedule", "placement", "division"))
        own = {kind: np.where(number[key] > 0, number[key], tp) for kind, key in OWN_TENSOR.items()}
        return cls(
            tp=tp, cp=number["cp"], ep=number["ep"], dp=dp, pp=number["pp"], chunks=number["virtual_stages"],
            micro_batch=micro, microbatches=batch / (dp * micro), redundant=number["redundant_experts"], zero=number["zero"],
            shard_group=number["shard_group"],
            own_shards={kind: number[key] for kind, key in OWN_SHARDS.items() if number[key].any()},
            apart=words.named("apart", TYPES), own_tensor={kind: ranks for kind, ranks in own.items() if (ranks != tp).any()},
            unsharded=words.named("unsharded", TYPES), distant=words.named("distant", TYPES),
            sequence_parallel=(number["sequence_parallel"] > 0) | ((tp == 1) & (own["experts"] > 1)),
            full=np.array([said.recompute == "full" for said in words.different])[words.which], recompute_layers=number["recompute_layers"],
            repeated=words.named("repeated", REPEATED), schedule=schedule, schedules=schedules,
            offload=words.named("offload", OFFLOADS), offload_layers=number["offload_layers"],
            far=words.named("far", FARS), far_experts=number["far_experts"], far_cache=number["far_cache"],
            placement=placement, placements=placements, division=division, divisions=divisions, node=node,
            housed=number["pp"],
        )  # fmt: skip

    def __len__(self) -> int:
        return int(self.tp.size)

    def at(self, members: Index) -> Layout:
        """Some of the points."""
        kept = ("node", "schedules", "placements", "divisions", "part")
        tables = ("offload", "far", "repeated", "own_tensor", "own_shards", "apart", "unsharded", "distant")
        arrays = {field.name: getattr(self, field.name)[members] for field in fields(self) if field.name not in (*kept, *tables)}
        chosen: dict[str, Any] = {name: {key: points[members] for key, points in getattr(self, name).items()} for name in tables}
        return replace(self, **arrays, **chosen, part=self.part and self.part.at(members))

    def group(self, stride: Array, size: Array) -> Group:
        """Ranks `stride` apart: how many of them lie in one node of consecutive devices, as many in each (see `mapping.placement`)."""
        fitting = np.gcd(size.astype(int), (self.node // stride).astype(int))
        per_node = np.where(self.node % stride == 0, fitting, 1.0)
        return Group(size=size, per_node=per_node, stride=stride, devices=self.wired, extent=size, part=self.part)

    def on_kind(self, node: int, stages: Array) -> Layout:
        """The plans as they lie on devices of one kind, in nodes of so many, which hold so many stages of each, shape (n,). [1]"""
        return replace(self, node=node, housed=stages)

    @property
    def selective(self) -> Mask:
        """Points that compute attention's scores again, shape (n,)."""
        return self.repeated["core_attn"] if "core_attn" in self.repeated else np.zeros(len(self), dtype=bool)

    def recomputed(self, depth: Array | float) -> Array:
        """Share of a stage's layers that the backward pass computes again as a whole, of a model of so many layers, shape (n,). [1]"""
        some = np.minimum(self.recompute_layers * self.pp / np.maximum(depth, 1.0), 1.0)
        return np.where(self.full, np.where(self.recompute_layers > 0, some, 1.0), 0.0)

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
    def wired(self) -> Array:
        """Devices on one network: all, or those of one kind. [1]"""
        return self.tp * self.cp * self.dp * self.housed

    @functools.cached_property
    def strides(self) -> Mapping[RankBlock, Array]:
        """Devices between neighbours of a block of ranks, by how the blocks lie. [1]"""
        sizes: Mapping[RankBlock, Array] = {"tp": self.tp, "dp": self.cp * self.dp, "pp": self.pp}
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
        return np.where(np.array([name in BIDIRECTIONAL for name in self.schedules])[self.schedule], 2.0, 1.0)

    @functools.cached_property
    def unpaired(self) -> Array:
        """Microbatches whose forward pass no backward pass of another can run beside: the first of a pipeline, one for each stage.

        On a stage of DualPipe with n stages between it and the nearer end, 3 p / 2 - n - 1 forward passes are none of those that its
        order has beside a backward pass; 5 p / 4 - 1 / 2 in the mean. On one of DualPipeV, which is a half of 2 p stages, it is 3 p - n - 1
        of twice as many passes; 5 p / 4 - 1 / 4 microbatches in the mean.
        """
        beside = {"dualpipe": 0.5, "dualpipev": 0.25}
        less = np.array([beside.get(name, np.nan) for name in self.schedules])[self.schedule]
        return np.where(np.isnan(less), self.pp, 1.25 * self.pp - less)

    def _mirrored(self, group: Group) -> Group:
        """A group with the ranks of the stage that holds the same layers for the other direction, in another node if there are several."""
        if not (self.directions > 1).any():
            return group
        size = group.size * self.directions
        return replace(group, size=size, per_node=np.where(self.devices <= self.node, size, group.per_node))

    def placed(self, routing: Routing, *, balanced: bool) -> Routing:
        """How experts are routed with the copies that plans add, and where a balancer places them; the same where neither is so."""
        return replace(routing, redundant=self.redundant, placed=balanced) if balanced or self.redundant.any() else routing

    def tensor_of(self, kind: Type) -> Array:
        """Ranks that share each layer of a type. [1]"""
        return self.own_tensor.get(kind, self.tp)

    def tensor_share(self, kind: Type) -> Array | float:
        """Tokens and samples of the ranks that share each layer of a type, over those of a tensor group. [1]"""
        return self.own_tensor[kind] / self.tp if kind in self.own_tensor else 1.0

    @functools.cached_property
    def whole(self) -> Mask:
        """Points whose tensor ranks share experts out while each of them has all tokens, so that nothing is exchanged, shape (n,)."""
        return np.asarray(~self.sequence_parallel & (self.tensor_of("experts") < self.tp))

    @functools.cached_property
    def replicas_meet(self) -> Mask:
        """Points whose replicas share experts out, or parts of each: these lie over more ranks than share a layer, shape (n,)."""
        return np.asarray(self.ep * self.tensor_of("experts") > self.tp * self.cp)

    def gathers(self, kinds: Iterable[Type]) -> Mask:
        """Whether layers of any of some types are shared by several ranks."""
        return np.asarray(np.logical_or.reduce([self.tensor_of(kind) > 1 for kind in kinds]))

    @functools.cached_property
    def _sharing(self) -> dict[Type, Group]:
        return {}

    def sharing(self, kind: Type) -> Group:
        """Ranks that share each layer of a type: the tensor group itself where no plan gives the type one of its own."""
        if kind not in self._sharing:
            own = kind in self.own_tensor
            self._sharing[kind] = self.group(self._strides_of(kind)[0], self.tensor_of(kind)) if own else self.tensor
        return self._sharing[kind]

    def shares(self, group: Group) -> bool:
        """Whether a group is one of ranks that share a layer."""
        return group is self.tensor or any(group is one for one in self._sharing.values())

    @functools.cached_property
    def expert(self) -> Group:
        """Ranks that share out the experts."""
        return self.group(self._strides_of("experts")[1], self.ep)

    @functools.cached_property
    def expert_inside(self) -> Group:
        """Of the ranks that share out the experts, those of one node."""
        ranks = self.expert
        return replace(ranks, size=ranks.per_node, extent=ranks.per_node)

    @functools.cached_property
    def expert_across(self) -> Group:
        """Of the ranks that share out the experts, those in the same place of every node."""
        ranks, alone = self.expert, np.ones_like(self.ep)
        nodes = ranks.size / ranks.per_node
        return replace(ranks, size=nodes, per_node=alone, stride=ranks.stride * ranks.per_node, extent=nodes)

    def _strides_of(self, kind: Type) -> tuple[Array, Array, Array]:
        """Devices between neighbours among ranks that share each layer of a type, that share out its experts, and that repeat it. [1]

        They lie in this order, the nearest first, or where they are distant in the opposite one.
        """
        groups: Array | float = self.ep if kind == "experts" else 1.0
        sharing, data, nearest = self.strides["tp"], self.strides["dp"], np.minimum(self.strides["tp"], self.strides["dp"])
        shared, repeated = data, data * groups
        if kind in self.own_tensor:
            own = self.own_tensor[kind]
            sharing = np.where((self.tp == 1) & (own > 1), data, sharing)
            filling = own * groups == self.tp  # what they share out ends with the tensor group; data ranks repeat it
            beyond = np.where((own == 1) & ~filling, nearest, sharing * own)
            shared = np.where(own == self.tp, shared, beyond)
            repeated = np.where(own == self.tp, repeated, np.where(filling, data, beyond * groups))
        if kind in self.distant:
            far, same = self.distant[kind], self._repeats(kind)
            sharing, shared = np.where(far, nearest * same * groups, sharing), np.where(far, nearest * same, shared)
            repeated = np.where(far, nearest, repeated)
        return sharing, shared, repeated

    def _repeats(self, kind: Type) -> Array:
        """Ranks that hold the same of a layer type, apart from the mirrored stage's. [1]"""
        return np.asarray(self.tp * self.dp * self.cp / (self.tensor_of(kind) * (self.ep if kind == "experts" else 1.0)))

    @functools.cached_property
    def _spreads(self) -> dict[tuple[Type | None, bool], Spread]:
        return {}

    def spread(self, kind: Type) -> Spread:
        """How weights of a layer type are shared and repeated; the same object for all types that no plan treats apart."""
        tables: tuple[Mapping[Type, Any], ...] = (self.own_tensor, self.own_shards, self.apart, self.unsharded, self.distant)
        key = (kind if any(kind in table for table in tables) else None, kind == "experts")
        if key not in self._spreads:
            self._spreads[key] = self._spread(kind)
        return self._spreads[key]

    def _spread(self, kind: Type) -> Spread:
        """The same, worked out."""
        stride, same = self._strides_of(kind)[2], self._repeats(kind)
        split = self.tp * self.dp * self.cp / same
        within = np.maximum(np.floor(self.shard_group * self.tp / split), 1.0)  # of a shard group those that hold the same layers
        if kind in self.own_shards:
            within = np.where(self.own_shards[kind] > 0, self.own_shards[kind], within)
        grouped = (self.shard_group > 0) | (self.own_shards.get(kind, np.zeros(1)) > 0)
        size = np.where(grouped, np.gcd(within.astype(int), same.astype(int)), same)
        apart = self.apart.get(kind, np.zeros(1, dtype=bool))
        return Spread(
            data=self._mirrored(self.group(stride, same)),
            shards=self.group(np.where(apart, stride * same / size, stride), size),
            copies=self.group(np.where(apart, stride, stride * size), same / size),
            zero=np.where((self.zero >= 3) & self.unsharded[kind], 0.0, self.zero) if kind in self.unsharded else self.zero,
        )

    @functools.cached_property
    def neighbours(self) -> tuple[Pair, Pair]:
        """Neighbouring stages of a pipeline that lie in one node, and that lie in different ones."""
        none, every = np.zeros_like(self.pp), np.ones_like(self.pp)
        return self._pair(none, every, none > 0), self._pair(none, every, every > 0)

    @functools.cached_property
    def ends(self) -> Pair:
        """First and last stage of a pipeline."""
        first, last = np.zeros_like(self.pp), self.housed - 1.0
        return self._pair(first, last, self.crosses(first, last))

    @functools.cached_property
    def apart_from_others(self) -> Pair:
        """Two stages in different nodes, as those on devices of different kinds are."""
        every = np.ones_like(self.pp)
        stride = np.maximum(self.strides["pp"], self.node)
        return Pair(
            size=2.0 * every, per_node=every, stride=stride, devices=2.0 * stride, extent=2.0 * every, first=0.0 * every, last=every
        )

    def jump(self, first: int, last: int, crosses: Mask, members: Index) -> Pair:
        """Two stages of some points, which lie in different nodes where it `crosses`; other points have no pair."""
        every = np.ones_like(self.pp)
        there, far = np.zeros(len(self), dtype=bool), np.zeros(len(self), dtype=bool)
        there[members], far[members] = True, crosses
        pair = self._pair(first * every, last * every, far)
        return replace(pair, size=np.where(there, pair.size, 1.0), extent=np.where(there, pair.extent, 1.0))

    def _pair(self, first: Array, last: Array, crosses: Mask) -> Pair:
        size = np.minimum(self.pp, 2.0)
        return Pair(
            size=size, per_node=np.where(crosses, 1.0, size), stride=self.strides["pp"], devices=self.wired, extent=self.housed,
            first=first, last=last, part=self.part,
        )  # fmt: skip

    def crosses(self, first: Array, last: Array, members: Index | slice = slice(None)) -> Mask:
        """Whether a message between two stages leaves a node, for some of the points, shape (..., members).

        Each rank of a stage sends to the rank in the same place of the other. All of these messages stay inside nodes if all devices
        from the first rank of the earlier stage to the last rank of the later one share a node, in every pipeline.

        Parameters
        ----------
        first, last : numbers of the earlier and the later stage, shape (..., members) or (..., 1). [1]
        """
        stride, whole, turns = (values[members] for values in self._pipelines)
        low, high = stride * first, stride * (last + 1.0) - 1.0
        found = low // self.node != high // self.node
        for turn in range(1, int(turns.max())):
            begin = whole * (turn % turns)
            found |= (low + begin) // self.node != (high + begin) // self.node
        return np.asarray(found)

    @functools.cached_property
    def _pipelines(self) -> tuple[Array, Array, Array]:
        """Devices from a stage to the next, from a block of pipelines to the next, and blocks that lie differently in their nodes. [1]"""
        stride = self.strides["pp"]
        whole = stride * self.housed
        turns = self.node / np.gcd(whole.astype(int), self.node)
        return stride, whole, np.minimum(self.wired / whole, turns)


@dataclass(frozen=True, kw_only=True)
class _Spoken:
    """Different words of plans, and which of them each plan has."""

    different: tuple[PlanWords, ...]
    which: Index

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> _Spoken:
        _, which = numbered([*map(fields_of_words, plans)])
        _, first = np.unique(which, return_index=True)
        return cls(different=tuple(plans[i].words for i in first.tolist()), which=which)

    def numbered(self, name: str) -> tuple[tuple[Any, ...], Index]:
        """Different words of a name, and which of them each plan has."""
        different, which = numbered([getattr(words, name) for words in self.different])
        return different, which[self.which]

    def named(self, name: str, known: Sequence[Named]) -> dict[Named, Mask]:
        """Plans that name a word in one of their lists, by word; what none names is not there."""
        found = {word for words in self.different for word in getattr(words, name)}
        return {word: np.array([word in getattr(words, name) for words in self.different])[self.which] for word in known if word in found}
