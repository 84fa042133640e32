"""Plans: how a transformer is divided, by named degrees; as text, as mappings, and why one is impossible."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from crossflow.errors import StrategyError, did_you_mean
from crossflow.parallel.schedules import RULES, pipeline_order, schedule_problem
from crossflow.parallel.stages import stage_layers
from crossflow.parallel.strategy import Axis
from crossflow.workload.job import Task
from crossflow.workload.transformer import Transformer

Recompute = Literal["none", "selective", "full"]
Offload = Literal["optimizer", "weights", "activations"]
Block = Literal["tp", "dp", "pp"]
Type = Literal["attention", "mlp", "experts", "embedding"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
OFFLOADS: tuple[Offload, ...] = ("optimizer", "weights", "activations")
DEGREES = ("tp", "cp", "ep", "etp", "attention_tp", "mlp_tp", "embedding_tp", "dp", "pp")
TYPES: tuple[Type, ...] = ("attention", "mlp", "experts", "embedding")  # of layers; the head goes with the embedding
BLOCKS: tuple[Block, ...] = ("tp", "dp", "pp")  # of ranks, as they lie on consecutive devices: Megatron's order


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to divide a transformer over devices.

    Attributes
    ----------
    tp, cp, dp, pp : tensor, context, data and pipeline degrees; their product is the number of devices.
    ep : expert degree; groups of experts lie along the data and context ranks, which it divides.
    etp : tensor degree of routed experts; that of the layers where 0. Where it is less, experts lie along the other tensor
        ranks too, each of which then has tokens of its own.
    attention_tp, mlp_tp, embedding_tp : tensor degree of a layer type (of the embedding's table and the head); that of the plan
        where 0. Where it is less, the other tensor ranks hold copies, for tokens of their own (data-parallel attention).
    zero : what data-parallel ranks share out: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too (FSDP).
    shard_group : ranks over which weights are sharded with zero 3, replicas of which hold the rest (hybrid sharding); 0 for all.
    attention_shard_group, mlp_shard_group, experts_shard_group, embedding_shard_group : of the ranks that hold the same of a layer
        type, those over which its weights are sharded with zero 3; as `shard_group` says where 0.
    apart : layer types whose ranks of a shard group lie as far apart as they can, copies nearest; the other way round elsewhere.
    unsharded : layer types whose weights stay whole on every rank with zero 3.
    distant : layer types whose tensor, expert and data ranks lie in the opposite order: those that hold copies nearest, then those
        that share out experts, those that share a layer far apart.
    sequence_parallel : norms and residuals divided over the tensor group.
    virtual_stages : model chunks a stage (interleaved schedule).
    micro_batch : samples of one microbatch and replica.
    recompute : what the backward pass computes again: nothing, attention's scores, or whole layers.
    schedule : order of forward and backward passes in a pipeline: a rule's name, or the path of a schedule's file.
    first_stage, last_stage : layers of the first and the last stage, or chunk, where they differ from the others; 0 for even ones.
    offload : what the host keeps: the optimizer's states, which it updates; with zero 3 the shards of the weights too; activations.
    placement : how ranks lie on consecutive devices, nearest first; context ranks lie nearest among those of dp.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    attention_tp: int = 0
    mlp_tp: int = 0
    embedding_tp: int = 0
    dp: int = 1
    pp: int = 1
    zero: int = 0
    shard_group: int = 0
    attention_shard_group: int = 0
    mlp_shard_group: int = 0
    experts_shard_group: int = 0
    embedding_shard_group: int = 0
    apart: tuple[Type, ...] = ()
    unsharded: tuple[Type, ...] = ()
    distant: tuple[Type, ...] = ()
    sequence_parallel: bool = False
    virtual_stages: int = 1
    micro_batch: int = 1
    recompute: Recompute = "none"
    schedule: str = "1f1b"
    first_stage: int = 0
    last_stage: int = 0
    offload: tuple[Offload, ...] = ()
    placement: tuple[Block, ...] = BLOCKS

    @property
    def devices(self) -> int:
        """Devices in use."""
        return self.tp * self.cp * self.dp * self.pp

    def tensor_of(self, kind: Type) -> int:
        """Ranks that share each layer of a type."""
        return int(getattr(self, OWN_TENSOR[kind])) or self.tp

    def shards_of(self, kind: Type) -> int:
        """Ranks over which a layer type's weights are sharded where it has a shard group of its own; 0 where it has none."""
        return int(getattr(self, OWN_SHARDS[kind]))

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of the device mesh, nearest neighbours first."""
        found: Mapping[Block, tuple[Axis, ...]] = {
            "tp": (Axis(name="tp", size=self.tp, role="columns"),),
            "dp": (Axis(name="cp", size=self.cp, role="rows"), Axis(name="dp", size=self.dp, role="batch")),
            "pp": (Axis(name="pp", size=self.pp, role="layers"),),
        }
        return tuple(axis for block in self.placement for axis in found[block])

    def __str__(self) -> str:
        return self.text()

    def serving(self, requests: int) -> Plan:
        """The plan with a service's microbatch: all requests of a replica, divided over the stages where they divide."""
        mine = requests // self.dp
        return replace(self, micro_batch=max(mine // self.pp if mine % self.pp == 0 else mine, 1))

    def text(self, always: Collection[str] = ()) -> str:
        """The plan as text: what differs from the defaults, and the numbers named in `always`."""
        told = {word: name for word, name in NUMBERS.items() if name in always or getattr(self, name) != _DEFAULTS[name]}
        numbers = [f"{word}{getattr(self, name)}" for word, name in told.items()]
        words = [word for word, (name, value) in WORDS.items() if getattr(self, name) == value]
        chosen = {prefix: getattr(self, name) for prefix, name in LISTS.items() if getattr(self, name) != _DEFAULTS[name]}
        lists = [prefix + "+".join(values) for prefix, values in chosen.items() if not (prefix == "apart:" and values == TYPES)]
        file = [] if self.schedule in RULES else [ORDER + self.schedule]
        return "-".join([*numbers, *words, *lists, *file]) or "dp1"


# A plan as text: numbers with the word before them, options as words of their own.
NUMBERS: Mapping[str, str] = {
    "tp": "tp", "cp": "cp", "ep": "ep", "etp": "etp", "atp": "attention_tp", "mlptp": "mlp_tp", "embtp": "embedding_tp",
    "dp": "dp", "pp": "pp", "v": "virtual_stages", "mb": "micro_batch", "z": "zero",
    "g": "shard_group", "ag": "attention_shard_group", "mlpg": "mlp_shard_group", "eg": "experts_shard_group",
    "embg": "embedding_shard_group", "first": "first_stage", "last": "last_stage",
}  # fmt: skip
WORDS: Mapping[str, tuple[str, Any]] = {
    "sp": ("sequence_parallel", True), "apart": ("apart", TYPES), "selective": ("recompute", "selective"), "full": ("recompute", "full"),
    **{rule.replace("-", ""): ("schedule", rule) for rule in RULES if rule != "1f1b"},
}  # fmt: skip
# Before several words of a plan as text, which plus signs join.
LISTS: Mapping[str, str] = {
    "offload:": "offload", "unsharded:": "unsharded", "apart:": "apart", "distant:": "distant", "placed:": "placement",
}  # fmt: skip
ORDER = "order:"  # before the path of a schedule's file, to the end of the text
_SHORT = {"d": "dp", "p": "pp"}  # as in the notation of kernel graphs
_DEFAULTS = {field.name: field.default for field in fields(Plan)}
_NAMES = {field.name for field in fields(Plan)}
# The key of a plan that has the tensor degree of a layer type, 0 where it is that of the plan.
OWN_TENSOR: Mapping[Type, str] = {"attention": "attention_tp", "mlp": "mlp_tp", "experts": "etp", "embedding": "embedding_tp"}
# The key of a plan that has the shard group of a layer type, 0 where it is that of the plan.
OWN_SHARDS: Mapping[Type, str] = {
    "attention": "attention_shard_group", "mlp": "mlp_shard_group", "experts": "experts_shard_group", "embedding": "embedding_shard_group",
}  # fmt: skip
_FLAGS = ("sequence_parallel",)
_CHOSEN: Mapping[str, tuple[str, ...]] = {"offload": OFFLOADS, "unsharded": TYPES, "apart": TYPES, "distant": TYPES}
_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "recompute": RECOMPUTE, "zero": (0, 1, 2, 3),
}  # fmt: skip


def parse_plan(given: str | Mapping[str, Any]) -> Plan:
    """Read a plan from named degrees: ``{tp: 8, pp: 8, dp: 12, zero: 1, recompute: full}``, any subset, or ``tp8-pp8-dp12-z1-full``.

    Raises
    ------
    StrategyError
        With every key that is unknown and every value that is not possible.
    """
    return _parsed(given) if isinstance(given, str) else _read(given)


@functools.lru_cache(maxsize=65536)
def _parsed(text: str) -> Plan:
    """A plan from text, of which studies read the same over and over."""
    return _read(_written(text))


def _read(given: Mapping[str, Any]) -> Plan:
    problems = [
        f"unknown key '{key}'{did_you_mean(key, sorted(_NAMES))}; known: {', '.join(sorted(_NAMES))}" for key in given if key not in _NAMES
    ]
    for key, value in given.items():
        if key in _CHOICES and (value not in _CHOICES[key] or isinstance(value, (bool, float))):
            problems.append(f"{key} must be one of {', '.join(map(str, _CHOICES[key]))}, got {value!r}")
        elif key in _FLAGS and not isinstance(value, bool):
            problems.append(f"{key} must be true or false, got {value!r}")
        elif key in _CHOSEN:
            problems += _not_chosen(key, value)
        elif key == "schedule":
            problems += _no_schedule(value)
        elif key == "placement":
            problems += _not_placed(value)
        elif key in _NAMES and key not in (*_CHOICES, *_FLAGS):
            least = 0 if _DEFAULTS[key] == 0 else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                problems.append(f"{key} must be a {'positive ' if least else ''}whole number, got {value!r}")
    if problems:
        raise StrategyError("strategy: " + "; ".join(problems))
    lists = {key: _several(key, given[key]) for key in _CHOSEN if key in given}
    chosen = {key: tuple(what for what in _CHOSEN[key] if what in several) for key, several in lists.items()}
    return Plan(**{**given, **chosen, "placement": tuple(given.get("placement", BLOCKS))})


def _not_chosen(key: str, given: Any) -> list[str]:
    """What is wrong with a choice of one or several words."""
    several, known = _several(key, given), _CHOSEN[key]
    if not isinstance(several, (list, tuple)) or any(what not in known for what in several) or len(set(several)) < len(several):
        return [f"{key} must be none, or one or several of {', '.join(known)}, each once, got {given!r}"]
    return []


def _several(key: str, given: Any) -> Any:
    """A choice of words as a list: as it is, or from text that plus signs join; none is an empty one, apart alone all of them."""
    if key == "apart" and isinstance(given, bool):
        return list(_CHOSEN[key]) if given else []
    several = given.split("+") if isinstance(given, str) else given
    return [] if several in (["none"], ("none",)) else several


def _not_placed(given: Any) -> list[str]:
    """What is wrong with an order of blocks of ranks."""
    if isinstance(given, (list, tuple)) and len(given) == len(BLOCKS) and all(block in given for block in BLOCKS):
        return []
    return [f"placement must be {', '.join(BLOCKS)} in some order, the nearest ranks first, got {given!r}"]


def _no_schedule(given: Any) -> list[str]:
    """What is wrong with the name of a schedule; a file has a path that ends in .yaml."""
    if isinstance(given, str) and (given in RULES or given.endswith((".yaml", ".yml"))):
        return []
    meant = did_you_mean(given, RULES) if isinstance(given, str) else ""
    return [f"schedule must be one of {', '.join(RULES)} or the path of a .yaml file, got {given!r}{meant}"]


def _written(text: str) -> dict[str, Any]:
    """Values of a plan written as ``tp8-pp4-dp16-mb2-z1-sp-full``; ``d16`` stands for ``dp16``."""
    found: dict[str, Any] = {}
    degrees, _, file = f"-{text.strip()}".partition(f"-{ORDER}")
    if file:
        found["schedule"] = file
    for part in degrees[1:].split("-") if degrees or not file else ():
        prefix = part[: part.find(":") + 1]
        match = None if part in WORDS else re.fullmatch(r"([a-z]+)(\d+)", part)
        word = _SHORT.get(match[1], match[1]) if match else part
        name, value = (NUMBERS.get(word), int(match[2])) if match else WORDS.get(part, (None, None))
        if prefix in LISTS:
            name, value = LISTS[prefix], part.removeprefix(prefix).split("+")
        if name is None or name in found:
            raise StrategyError(
                f"strategy '{text}': '{part}' is {'there twice' if name else 'not understood'}; write degrees and options such as"
                f" tp8-pp4-dp16-mb2-z1-sp-full (numbers: {', '.join(NUMBERS)};"
                f" words: {', '.join(WORDS)}, offload:{'+'.join(OFFLOADS)}, unsharded:embedding, distant:mlp, placed:dp+tp+pp,"
                f" {ORDER}FILE.yaml), or a mapping"
            )
        found[name] = value
    return found


def plan_problem(plan: Plan, model: Transformer, batch: int, *, balanced: bool = False, task: Task = "training") -> str | None:
    """Why a plan cannot divide a model with a global batch, in a sentence; None where it can.

    With `balanced` stages, of which the last may hold the head alone, there may be more stages than layers.
    """
    attention = [part.attention for layer in model.layers for part in layer.parts if part.attention]
    inner = [part.inner for layer in model.layers for part in layer.parts if part.inner and not part.routing]
    inner += [part.shared for layer in model.layers for part in layer.parts]
    routing = [part.routing for layer in model.layers for part in layer.parts if part.routing]
    for heads in {a.heads for a in attention}:
        if heads % plan.tensor_of("attention"):
            return f"{heads} attention heads do not divide by {_named(plan, 'attention')}"
    for width in set(inner):
        if width % plan.tensor_of("mlp"):
            return f"{width} inner elements of the MLP do not divide by {_named(plan, 'mlp')}"
    if plan.pp * plan.virtual_stages > model.depth * (2 if balanced else 1):
        return f"pp x virtual_stages = {plan.pp} x {plan.virtual_stages} chunks, but the model has {model.depth} layers"
    if plan.virtual_stages > 1 and not (plan.first_stage or plan.last_stage):
        chunks = plan.pp * plan.virtual_stages
        if model.depth % chunks and (model.depth + 2) % chunks:
            return f"{model.depth} layers do not divide by pp x virtual_stages = {plan.pp} x {plan.virtual_stages}"
    if plan.virtual_stages > 1 and plan.pp == 1:
        return "virtual_stages > 1 needs a pipeline, but pp = 1"
    if plan.first_stage or plan.last_stage or not balanced:
        stages = plan.pp * plan.virtual_stages
        sizes = stage_layers(model.depth, stages, plan.first_stage, plan.last_stage)
        ends = f"first_stage = {plan.first_stage} and last_stage = {plan.last_stage}"
        if min(sizes) < 1:
            return f"{ends} leave no layer for another of {stages} stages"
        if (len(sizes), sum(sizes)) != (stages, model.depth):
            return f"{ends} do not add up to {model.depth} layers in {stages} stages"
    # Ranks that hold copies of every layer have samples of their own; of a sample only those that share a layer have parts.
    shared = max(plan.tensor_of(kind) for kind in TYPES if routing or kind != "experts")
    cuts = plan.cp * (shared if plan.sequence_parallel else 1)
    if task == "decode":
        if plan.cp > 1:
            return f"cp = {plan.cp} divides the tokens of a sample, of which one is written at a time; use dp or tp in its place"
        if plan.sequence_parallel and plan.micro_batch % plan.tp:
            return f"the {plan.micro_batch} tokens that a microbatch writes do not divide by tp = {plan.tp}, as sequence_parallel needs"
    uneven = [layer.tokens for layer in model.layers if model.vocabulary and layer.tokens % cuts]
    if uneven:
        degree = "tp" if shared == plan.tp else "ranks of a layer"
        return f"the {uneven[0]} tokens of a sample do not divide by cp{f' x {degree}' if plan.sequence_parallel else ''} = {cuts}"
    if batch % (plan.dp * plan.micro_batch):
        return f"global_batch = {batch} does not divide by dp x micro_batch = {plan.dp} x {plan.micro_batch}"
    interleaved = plan.virtual_stages > 1 and plan.schedule in RULES
    if interleaved and (batch // (plan.dp * plan.micro_batch)) % plan.pp:
        return f"{batch // (plan.dp * plan.micro_batch)} microbatches do not divide by pp = {plan.pp}, which the interleaved schedule needs"
    if plan.ep > 1 and not routing:
        return f"ep = {plan.ep}, but the model has no experts"
    for found in routing:
        if found.experts % plan.ep:
            return f"{found.experts} experts do not divide by ep = {plan.ep}"
    for key in ("etp", "experts_shard_group"):
        if getattr(plan, key) and not routing:
            return f"{key} = {getattr(plan, key)}, but the model has no experts"
    for key in ("unsharded", "distant"):
        if "experts" in getattr(plan, key) and not routing:
            return f"{key}: experts, but the model has no experts"
    problem = (
        _no_own_tensor(plan)
        or _not_distant(plan)
        or _no_experts(plan, [part.inner for layer in model.layers for part in layer.parts if part.routing])
    )
    if problem is not None:
        return problem
    problem = _not_sharded(plan)
    if problem is not None:
        return problem
    if plan.unsharded and "weights" in plan.offload:
        return "offload: weights needs all weights sharded; leave unsharded out"
    training = task == "training"
    if "weights" in plan.offload and (plan.zero != 3 or (training and "optimizer" not in plan.offload)):
        also = ", and the optimizer's states on the host too" if training else ""
        return f"offload: weights needs zero: 3, which shares them out{also}"
    if not training and set(plan.offload) - {"weights"}:
        return "offload: only training has an optimizer and keeps activations; without it weights alone can lie on the host"
    if plan.schedule == "pipedream" and "optimizer" in plan.offload:
        return "offload: pipedream updates the weights after every microbatch, on the device; leave optimizer out"
    if plan.schedule == "chimera" and plan.zero:
        return f"schedule: chimera keeps all weights twice; zero = {plan.zero} is not supported with it"
    if plan.schedule not in ("1f1b", "gpipe"):
        shape = plan.pp, plan.virtual_stages, batch // (plan.dp * plan.micro_batch)
        problem = schedule_problem(plan.schedule, *shape)
        if problem is not None:
            return problem
        if plan.zero == 3 and (plan.schedule == "pipedream" or pipeline_order(plan.schedule, *shape).split):
            return (
                f"zero: 3 gathers a layer's weights for each pass and shares out its gradients after it, which schedule: {plan.schedule}"
                f" keeps for later; it is not supported, use 1f1b or gpipe, or zero: 1"
            )
    return None


def _no_experts(plan: Plan, inner: Sequence[int]) -> str | None:
    """Why experts of so many `inner` elements cannot lie on the ranks of a plan."""
    ranks = plan.tensor_of("experts")
    for width in inner:
        if width % ranks:
            return f"{width} inner elements of an expert do not divide by {_named(plan, 'experts')}"
    copies = plan.tp // ranks
    if (copies * plan.dp * plan.cp) % plan.ep:
        beside = f"tp / etp x dp x cp = {copies} x {plan.dp} x {plan.cp}" if copies > 1 else f"dp x cp = {plan.dp} x {plan.cp}"
        return f"{beside} ranks do not divide by ep = {plan.ep}"
    return None


def _named(plan: Plan, kind: Type) -> str:
    """Tensor degree of a layer type, as the plan says it."""
    return f"{OWN_TENSOR[kind] if getattr(plan, OWN_TENSOR[kind]) else 'tp'} = {plan.tensor_of(kind)}"


def _no_own_tensor(plan: Plan) -> str | None:
    """Why layer types cannot have tensor degrees of their own."""
    for kind, key in OWN_TENSOR.items():
        ranks = plan.tensor_of(kind)
        if plan.tp % ranks:
            return f"tp = {plan.tp} does not divide by {key} = {ranks}"
        if ranks == plan.tp:
            continue
        below = f"{key} = {ranks} below tp = {plan.tp} needs"
        if not plan.sequence_parallel:
            return f"{below} sequence_parallel: true, which gives every tensor rank tokens of its own"
        order = _blocks_beyond_tp(plan)
        if order != 1 and not (order == -1 and ranks == 1 and kind != "experts"):
            return f"{below} dp right after tp in placement, for ranks that hold the same lie along both"
        if kind == "attention" and plan.micro_batch % (plan.tp // ranks):
            who = "each rank" if ranks == 1 else "each group"
            return f"{below} micro_batch to divide by {plan.tp // ranks}, for {who} attends to samples of its own"
    return None


def _not_sharded(plan: Plan) -> str | None:
    """Why weights cannot be sharded over the groups of ranks that a plan says."""
    groups = {key: getattr(plan, key) for key in OWN_SHARDS.values()}
    if not (plan.apart or plan.unsharded or plan.shard_group or any(groups.values())):
        return None
    said = [key for key in ("apart", "unsharded", *groups) if getattr(plan, key)]
    if said and plan.zero != 3:
        return f"{said[0]} says how weights are sharded, which zero: 3 does"
    if plan.apart and not (plan.shard_group or any(groups.values())):
        return "apart says how ranks of a shard group lie; give shard_group too"
    for kind in plan.apart if plan.apart != TYPES and not plan.shard_group else ():
        if not groups[OWN_SHARDS[kind]]:
            return f"apart: {kind} has no shard group whose ranks could lie apart; give {OWN_SHARDS[kind]} or shard_group too"
    if plan.shard_group and (plan.zero != 3 or plan.dp % plan.shard_group):
        return f"shard_group = {plan.shard_group} needs zero: 3 and must divide dp = {plan.dp}"
    for kind, key in OWN_SHARDS.items():
        same = plan.tp * plan.dp * plan.cp // (plan.tensor_of(kind) * (plan.ep if kind == "experts" else 1))
        if groups[key] and same % groups[key]:
            return f"{same} ranks hold the same of {kind}, which do not divide by {key} = {groups[key]}"
    return None


def _blocks_beyond_tp(plan: Plan) -> int:
    """Where the block of data ranks lies behind that of tensor ranks, of those of more than one rank; 1 where either is alone."""
    sizes = {"tp": plan.tp, "dp": plan.dp * plan.cp, "pp": plan.pp}
    order = [block for block in plan.placement if sizes[block] > 1]
    return order.index("dp") - order.index("tp") if "tp" in order and "dp" in order else 1


def _not_distant(plan: Plan) -> str | None:
    """Why ranks of layer types cannot lie the other way round; whether they may lie along data ranks, `_no_own_tensor` says."""
    for kind in plan.distant:
        ranks = plan.tensor_of(kind)
        if ranks == 1 and not (kind == "experts" and plan.ep > 1):
            return f"distant: {kind} is not shared by several ranks ({_named(plan, kind)}), so that none can lie far apart"
        if ranks == plan.tp and not (kind == "experts" and plan.ep > 1):
            return f"distant: {kind} has no copies within a tensor group that could lie nearer than what shares it ({_named(plan, kind)})"
        if ranks > 1 and plan.dp * plan.cp > 1:
            return (
                f"distant: {kind} with {_named(plan, kind)} would share each layer among ranks of other replicas; give tp all the ranks"
                f" (dp x cp = {plan.dp} x {plan.cp})"
            )
    return None


def divisors(number: int) -> list[int]:
    """Divisors in rising order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return low + [number // part for part in reversed(low) if part * part != number]
