"""Plans: how a transformer is divided, by named degrees and options."""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from crossflow.parallel.strategy.mesh import (
    AXIS_ROLES,
    BLOCKS,
    REPEATED,
    Axis,
    Far,
    Offload,
    RankBlock,
    Recompute,
    RepeatedModule,
    Type,
    joined,
    said,
)
from crossflow.parallel.strategy.stages import Division


class PlanWords(NamedTuple):
    """What of a plan is no number, as its fields and properties of these names."""

    recompute: Recompute
    repeated: tuple[RepeatedModule, ...]
    schedule: str
    division: Division
    placement: tuple[RankBlock, ...]
    offload: tuple[Offload, ...]
    far: tuple[Far, ...]
    apart: tuple[Type, ...]
    unsharded: tuple[Type, ...]
    distant: tuple[Type, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to divide a transformer over devices."""

    # tp, cp, dp, pp: tensor, context, data and pipeline degrees; their product is the number of devices
    tp: int = 1
    cp: int = 1
    ep: int = 1  # expert degree; groups of experts lie along the data and context ranks. `ep` x `etp` divides `tp` x `cp` x `dp`.
    # tensor degree of routed experts; that of the layers where 0. Where it is less, experts lie along the other tensor ranks too, each of
    # which then has tokens of its own; where it is more, data ranks share each expert (MoE parallel folding, arXiv:2504.14960).
    etp: int = 0
    # copies of experts that a service holds beside one of each, so that ranks are used alike and `ep` need not divide the experts (EPLB)
    redundant_experts: int = 0
    # attention_tp, mlp_tp, embedding_tp: tensor degree of a layer type (of the embedding's table and the head); that of the plan where 0.
    # Where it is less, the other tensor ranks hold copies, for tokens of their own (data-parallel attention).
    attention_tp: int = 0
    mlp_tp: int = 0
    embedding_tp: int = 0
    dp: int = 1
    pp: int = 1
    zero: int = 0  # what data-parallel ranks share out: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too (FSDP)
    shard_group: int = 0  # ranks over which weights are sharded with zero 3, replicas of which hold the rest (hybrid sharding); 0 for all
    # attention_shard_group, mlp_shard_group, experts_shard_group, embedding_shard_group: of the ranks that hold the same of a layer type,
    # those over which its weights are sharded with zero 3; as `shard_group` says where 0
    attention_shard_group: int = 0
    mlp_shard_group: int = 0
    experts_shard_group: int = 0
    embedding_shard_group: int = 0
    # layer types whose ranks of a shard group lie as far apart as they can, copies nearest; the other way round elsewhere
    apart: tuple[Type, ...] = ()
    unsharded: tuple[Type, ...] = ()  # layer types whose weights stay whole on every rank with zero 3
    # layer types whose tensor, expert and data ranks lie in the opposite order: those that hold copies nearest, then those that share out
    # experts, those that share a layer far apart
    distant: tuple[Type, ...] = ()
    sequence_parallel: bool = False  # norms and residuals divided over the tensor group
    virtual_stages: int = 1  # model chunks a stage (interleaved schedule)
    micro_batch: int = 1  # samples of one microbatch and replica
    recompute: Recompute = "none"  # what the backward pass computes again: nothing, some modules of each layer, or whole layers
    recompute_modules: tuple[RepeatedModule, ...] = ()  # what selective recomputation repeats; attention's scores alone where empty
    recompute_layers: int = 0  # layers of a stage that are computed again, if whole layers are; 0 for all
    schedule: str = "1f1b"  # order of forward and backward passes in a pipeline: a rule's name, or the path of a schedule's file
    first_stage: int = 0  # layers of the first stage, or chunk, where they differ from the others; 0 for even ones
    last_stage: int = 0  # those of the last one
    stage_layers: tuple[int, ...] = ()  # layers of every stage, or chunk, in the order of the model, any of them 0; empty for even ones
    # what the host keeps: the optimizer's states, which it updates; with zero 3 the shards of the weights too; activations
    offload: tuple[Offload, ...] = ()
    offload_layers: int = 0  # layers of a stage whose activations the host keeps, if it keeps any; 0 for all
    # what lies on the second memory of each device: weights (all but those of routed experts), experts, the cache of a service, and the
    # states of the optimizer with its fp32 weights
    far: tuple[Far, ...] = ()
    far_experts: int = 0  # share of a rank's experts that lie there, if any do; 0 for all. [%]
    far_cache: int = 0  # share of the cache that lies there, if any does; 0 for all. [%]
    # how ranks lie on consecutive devices, nearest first; context ranks lie nearest among those of dp
    placement: tuple[RankBlock, ...] = BLOCKS

    @property
    def devices(self) -> int:
        """Devices in use."""
        return self.tp * self.cp * self.dp * self.pp

    def tensor_of(self, kind: Type) -> int:
        """Ranks that share each layer of a type."""
        return int(getattr(self, OWN_TENSOR[kind])) or self.tp

    @property
    def replicas_meet(self) -> bool:
        """Whether replicas share experts out, or parts of each: these lie over more ranks than share a layer."""
        return self.ep * self.tensor_of("experts") > self.tp * self.cp

    @property
    def repeated(self) -> tuple[RepeatedModule, ...]:
        """Modules of layers that the backward pass computes again by themselves."""
        return (self.recompute_modules or REPEATED[:1]) if self.recompute == "selective" else ()

    @property
    def division(self) -> Division:
        """What it says of how layers are divided over stages, or chunks."""
        return Division(first=self.first_stage, last=self.last_stage, listed=self.stage_layers)

    @functools.cached_property
    def numbers(self) -> bytes:
        """Its `NUMBERS` as doubles, of which columns of many plans are made at once."""
        return struct.pack(f"{len(NUMBERS)}d", *_numbers_of(self))

    @property
    def words(self) -> PlanWords:
        """What else it says, which few of many plans say differently; plans with the same `fields_of_words` have the same."""
        return PlanWords(*(getattr(self, name) for name in PlanWords._fields))

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of the device mesh, nearest neighbours first."""
        found: Mapping[RankBlock, tuple[str, ...]] = {"tp": ("tp",), "dp": ("cp", "dp"), "pp": ("pp",)}
        names = [name for block in self.placement for name in found[block]]
        return tuple(Axis(name=name, size=getattr(self, name), role=AXIS_ROLES[name]) for name in names)

    def __str__(self) -> str:
        return self.text()

    def but(self, **values: Any) -> Plan:
        """The plan with some values changed; a list of the stages' layers stays where there are as many stages, or chunks."""
        changed = replace(self, **values)
        return changed if changed.pp * changed.virtual_stages == self.pp * self.virtual_stages else replace(changed, stage_layers=())

    def serving(self, requests: int) -> Plan:
        """The plan with a service's microbatch: all requests of a replica, divided over the stages where they divide."""
        mine = requests // self.dp
        return replace(self, micro_batch=max(mine // self.pp if mine % self.pp == 0 else mine, 1))

    def changes(self, other: Plan) -> str:
        """What another plan has otherwise, as a sentence such as ``tp 8 to 4, dp 16 to 32``."""
        pairs = ((field.name, getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return ", ".join(f"{name} {_word(mine)} to {_word(its)}" for name, mine, its in pairs if mine != its)

    def text(self, always: Collection[str] = ()) -> str:
        """The plan as text: what differs from the defaults, and the numbers named in `always`."""
        told = {key: own for key, default in _DEFAULTS.items() if (own := getattr(self, key)) != default or key in always}
        return "-".join(said(told)) or "dp1"


def _word(value: Any) -> str:
    """A value of a plan as a word."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return joined(value) or "none" if isinstance(value, tuple) else str(value)


_DEFAULTS = {field.name: field.default for field in fields(Plan)}
# The key of a plan that has the tensor degree of a layer type, 0 where it is that of the plan.
OWN_TENSOR: Mapping[Type, str] = {"attention": "attention_tp", "mlp": "mlp_tp", "experts": "etp", "embedding": "embedding_tp"}
# The key of a plan that has the shard group of a layer type, 0 where it is that of the plan.
OWN_SHARDS: Mapping[Type, str] = {
    "attention": "attention_shard_group", "mlp": "mlp_shard_group", "experts": "experts_shard_group", "embedding": "embedding_shard_group",
}  # fmt: skip
# What of a plan is a number, or a switch.
NUMBERS = (
    "tp", "cp", "ep", "dp", "pp", "virtual_stages", "micro_batch", "redundant_experts", "zero", "shard_group", "sequence_parallel",
    "recompute_layers", "offload_layers", "far_experts", "far_cache", *OWN_TENSOR.values(), *OWN_SHARDS.values(),
)  # fmt: skip
_numbers_of = operator.attrgetter(*NUMBERS)
fields_of_words = operator.attrgetter(
    "recompute", "recompute_modules", "schedule", "first_stage", "last_stage", "stage_layers", "placement", "offload", "far", "apart",
    "unsharded", "distant",
)  # fmt: skip
