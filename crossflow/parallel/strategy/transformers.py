"""Plans of transformers from any notation: degrees and options as they are, roles by layer type inside a node and between nodes.

``{attention: [ddp], mlp: [tp, ddp], embedding: [ddp]}`` reads: MLPs are cut among the devices of a node, which attend to samples of
their own and hold all of the vocabulary's table. Each type may have its roles in any order. Where the ranks of one plan cannot lie so
that what most types do is near, all devices are one tensor group, in which each type has a degree and an order of its own; where
weights are sharded over different groups, each type has its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from crossflow.base.errors import StrategyError
from crossflow.parallel.strategy.mesh import BLOCKS, TYPES, Levels, Mesh, RankBlock, Role, Type, divisors, levels_text
from crossflow.parallel.strategy.notation import TRANSFORMER, Written, parse
from crossflow.parallel.strategy.plan import OWN_SHARDS, OWN_TENSOR, Plan

INSIDE, BETWEEN = LEVELS = 0, 1
_FOLLOWS = {"shard_group", *OWN_SHARDS.values(), "apart", "unsharded", "distant"}  # options of a plan that roles decide
_PLAIN = {field.name: field.default for field in fields(Plan)}


@dataclass(frozen=True, kw_only=True)
class _Share:
    """How one layer type lies on the mesh."""

    # cut, experts, sharded: levels of more than one device over which each layer is cut, experts are shared out, and weights sharded
    cut: tuple[int, ...]
    experts: tuple[int, ...]
    sharded: tuple[int, ...]
    rest: tuple[int, ...]  # all levels that neither cut nor share out, which hold copies or shards

    @property
    def order(self) -> tuple[int, ...]:
        """Levels that cut each layer, then those that share out experts, then the rest: as ranks of a plan lie, the nearest first."""
        return (*self.cut, *self.experts, *self.rest)

    @classmethod
    def of(cls, roles: Levels, sizes: Sequence[int]) -> _Share:
        """Of roles on a mesh of so many devices a level."""
        found = {role: tuple(i for i in LEVELS if sizes[i] > 1 and roles[i] == role) for role in ("columns", "experts", "shard", "batch")}
        rest = tuple(sorted(found["shard"] + found["batch"]))
        return cls(cut=found["columns"], experts=found["experts"], sharded=found["shard"], rest=rest)


def plan_of(given: Written) -> Plan:
    """The plan that degrees and options mean, as ``{tp: 8, pp: 8, dp: 12, zero: 1}``, ``tp8-pp8-dp12-z1`` or ``RC-1-8-d12-p8-z1``."""
    return _of_text(given) if isinstance(given, str) else _of_degrees(parse(given, TRANSFORMER))


@functools.lru_cache(maxsize=65536)
def _of_text(text: str) -> Plan:
    return _of_degrees(parse(text, TRANSFORMER))


def _of_degrees(mesh: Mesh) -> Plan:
    values: dict[str, Any] = {axis.name: axis.size for axis in mesh.axes}
    return Plan(**values, **dict(mesh.options))


def plan_of_roles(mesh: Mesh, batch: int, node: int, nodes: int, *, experts: bool, training: bool) -> Plan:
    """The plan that roles by layer type mean, on so many nodes.

    Parameters
    ----------
    mesh : roles by layer type, and options; attention and MLPs follow transformer, embedding and experts the MLPs, where absent.
    experts : whether the model has experts.
    training : whether it trains: a replica then takes its whole batch at once, or, where microbatches fill a pipeline, as little as it
        can; a service always takes all requests of a replica, divided over the stages.

    Raises
    ------
    StrategyError
        Where no plan does that.
    """
    given, options = dict(mesh.own), dict(mesh.options)
    roles = _all_roles(given)
    if "experts" in given and not experts:
        raise StrategyError(f"strategy: experts {levels_text(roles['experts'])}, but the model has no experts")
    kinds = [kind for kind in TYPES if experts or kind != "experts"]
    piped = _piped({kind: roles[kind] for kind in kinds})
    pp = _size(piped, (node, nodes))
    sizes = tuple(1 if level in piped else (node, nodes)[level] for level in LEVELS)
    shares = {kind: _Share.of(roles[kind], sizes) for kind in kinds}
    cut, placement, distant = _arranged(shares, sizes)
    tp = _size(cut, sizes)
    dp = node * nodes // (tp * pp)
    degrees = {OWN_TENSOR[kind]: _size(share.cut, sizes) for kind, share in shares.items() if share.cut != cut}
    if piped == (INSIDE,):
        placement = ("pp", "tp", "dp")
    meant: dict[str, Any] = {"placement": placement, "distant": distant, **degrees, **_sharding(shares, sizes, tp, dp)}
    if "experts" in shares:
        meant["ep"] = _size(shares["experts"].experts, sizes)
    if degrees:
        meant["sequence_parallel"] = True
    sharded = meant["zero"] == 3
    for key, value in options.items():
        follows = _PLAIN[key] if key in _FOLLOWS else value  # from the roles, where they do not say
        if value != (value if key == "zero" and not sharded and value != 3 else meant.get(key, follows)):
            said = "+".join(value) if isinstance(value, tuple) else value
            raise StrategyError(f"strategy: {key} = {said} is not what the roles of layer types mean; leave it out")
    plan = Plan(tp=tp, dp=dp, pp=pp, **{**meant, **options})
    if "micro_batch" in options:
        return plan
    if not training:
        return _serving(plan, batch)
    # In stages as little as it can: each of the ranks that attend to samples of their own has one.
    return replace(plan, micro_batch=max(batch // dp, 1) if pp == 1 else tp // plan.tensor_of("attention"))


def _serving(plan: Plan, batch: int) -> Plan:
    """A service's plan with requests that all ranks of a tensor group have some of, where they divide so."""
    least = plan.serving(batch).micro_batch
    possible = [size for size in divisors(max(batch // plan.dp, 1)) if size % (plan.tp if plan.sequence_parallel else 1) == 0]
    return replace(plan, micro_batch=min((size for size in possible if size >= least), default=least))


def _all_roles(given: Mapping[str, Levels]) -> dict[Type, Levels]:
    """Roles of every layer type, those that were not given from those that were."""
    both = given.get("transformer", given.get("dense"))
    if given.get("dense", both) != both:
        raise StrategyError("strategy: a transformer's layers are of type transformer; leave dense out")
    alone = [kind for kind in ("attention", "mlp") if kind in given]
    if both is None and len(alone) == 1:
        other = "mlp" if alone == ["attention"] else "attention"
        raise StrategyError(f"strategy: {alone[0]} has roles and {other} has none; give {other} too, or transformer, which stands for both")
    plain: Levels = both or ("batch", "batch")
    layers = given.get("mlp", plain)
    table = given.get("embedding", layers)
    return {
        "attention": given.get("attention", plain),
        "mlp": layers,
        "experts": given.get("experts", layers),
        "embedding": (_of_table(table[INSIDE], layers[INSIDE]), _of_table(table[BETWEEN], layers[BETWEEN])),
    }


def _of_table(role: Role, layers: Role) -> Role:
    """A table of words that is shared out (mp) is sharded where layers are, and cut by rows elsewhere."""
    return role if not role.startswith("table") else "shard" if layers == "shard" else "columns"


def _size(levels: Sequence[int], sizes: Sequence[int]) -> int:
    return math.prod(sizes[level] for level in levels)


def _piped(roles: Mapping[Type, Levels]) -> tuple[int, ...]:
    """Levels over which layers are laid out as stages of a pipeline (pp).

    Raises
    ------
    StrategyError
        Where some layer types are and others are not: a stage holds whole layers.
    """
    levels = tuple(level for level in LEVELS if any(both[level] == "layers" for both in roles.values()))
    for kind, both in roles.items():
        if any(both[level] != "layers" for level in levels):
            other = next(other for other, theirs in roles.items() if any(theirs[level] == "layers" for level in levels))
            raise StrategyError(
                f"strategy: {other} {levels_text(roles[other])} beside {kind} {levels_text(both)}:"
                f" stages of a pipeline (pp) hold whole layers, so that all layer types have the role pp at a level, or none"
            )
    return levels


def _arranged(shares: Mapping[Type, _Share], sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[RankBlock, ...], tuple[Type, ...]]:
    """Levels of the tensor group, how blocks of ranks lie, and the layer types whose ranks lie the other way round.

    A tensor group over the levels that cut most is tried first; where other layer types do not lie along it, it is all devices.
    """
    largest = max((share.cut for share in shares.values()), key=len)
    between = largest == (BETWEEN,) and sizes[INSIDE] > 1
    if between and all(_lies_behind(kind, share) for kind, share in shares.items()):
        return largest, ("dp", "tp", "pp"), ()
    every = tuple(level for level in LEVELS if sizes[level] > 1)
    cut = every if between or not all(_lies_along(share, largest, every) for share in shares.values()) else largest
    return cut, BLOCKS, tuple(kind for kind, share in shares.items() if share.order != tuple(sorted(share.order)))


def _lies_behind(kind: Type, share: _Share) -> bool:
    """Whether ranks of a layer type lie as those of a plan whose tensor group is that between nodes, its replicas inside them."""
    whole = not share.cut and kind != "experts"
    return whole or (share.cut == (BETWEEN,) and share.order[0] == BETWEEN)


def _lies_along(share: _Share, cut: tuple[int, ...], every: tuple[int, ...]) -> bool:
    """Whether ranks of a layer type lie as those of a plan, its tensor group nearest, or the other way round.

    The other way round what shares a layer must lie within the tensor group.
    """
    near = share.order == tuple(sorted(share.order))
    return share.cut == cut[: len(share.cut)] if near else not share.cut or cut == every


def _sharding(shares: Mapping[Type, _Share], sizes: Sequence[int], tp: int, dp: int) -> dict[str, Any]:
    """Options of a plan that shard the layer types' weights as their roles say: the ZeRO stage, the groups, and what is left whole.

    One shard group for all is told where there is one; else each layer type that is not sharded over all its ranks has its own.
    """
    sharded = {kind: share for kind, share in shares.items() if share.sharded}
    if not sharded:
        return {"zero": 0}
    whole = tuple(kind for kind, share in shares.items() if share.rest and not share.sharded)
    plain: tuple[tuple[Type, ...], ...] = ((), TYPES)
    for group, apart in [(0, ()), *((group, apart) for apart in plain for group in divisors(dp))]:
        if all(_sharded_so(share, sizes, tp, group, apart=bool(apart)) for share in sharded.values()):
            return {"zero": 3, "shard_group": group, "apart": apart, "unsharded": whole}
    partly = {kind: share for kind, share in sharded.items() if share.sharded != share.rest}
    groups = {OWN_SHARDS[kind]: _size(share.sharded, sizes) for kind, share in partly.items()}
    apart = tuple(kind for kind, share in partly.items() if share.sharded[0] != share.rest[0])
    return {"zero": 3, "shard_group": 0, **groups, "apart": apart, "unsharded": whole}


def _sharded_so(share: _Share, sizes: Sequence[int], tp: int, group: int, *, apart: bool) -> bool:
    """Whether one shard group of a plan, its ranks near or `apart`, is what a layer type's roles say (`Layout.spread`)."""
    same, wanted = _size(share.rest, sizes), _size(share.sharded, sizes)
    split = _size((*share.cut, *share.experts), sizes)
    size = math.gcd(max(group * tp // split, 1), same) if group else same
    return size == wanted and (size == same or apart == (share.sharded[0] != share.rest[0]))
