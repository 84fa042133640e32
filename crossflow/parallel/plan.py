"""Plans: how a transformer is divided, by named degrees, one at a time (`Plan`) or as arrays over design points (`Layout`)."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from crossflow.arrays import Array, Index, Mask
from crossflow.errors import StrategyError, did_you_mean
from crossflow.parallel.schedules import RULES, schedule_problem
from crossflow.parallel.strategy import Axis
from crossflow.workload.transformer import Transformer

Recompute = Literal["none", "selective", "full"]
Offload = Literal["optimizer", "weights", "activations"]
Block = Literal["tp", "dp", "pp"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
OFFLOADS: tuple[Offload, ...] = ("optimizer", "weights", "activations")
DEGREES = ("tp", "cp", "ep", "dp", "pp")
BLOCKS: tuple[Block, ...] = ("tp", "dp", "pp")  # of ranks, as they lie on consecutive devices: Megatron's order


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to divide a transformer over devices.

    Attributes
    ----------
    tp, cp, dp, pp : tensor, context, data and pipeline degrees; their product is the number of devices.
    ep : expert degree; groups of experts lie along the data and context ranks, which it divides.
    zero : what data-parallel ranks share out: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too (FSDP).
    shard_group : ranks over which weights are sharded with zero 3, replicas of which hold the rest (hybrid sharding); 0 for all.
    sequence_parallel : norms and residuals divided over the tensor group.
    virtual_stages : model chunks a stage (interleaved schedule).
    micro_batch : samples of one microbatch and replica.
    recompute : what the backward pass computes again: nothing, attention's scores, or whole layers.
    schedule : order of forward and backward passes in a pipeline: a rule's name, or the path of a schedule's file.
    first_stage, last_stage : layers of the first and the last stage where they differ from the others; 0 for even stages.
    offload : what the host keeps: the optimizer's states, which it updates; with zero 3 the shards of the weights too; activations.
    placement : how ranks lie on consecutive devices, nearest first; context ranks lie nearest among those of dp.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    zero: int = 0
    shard_group: int = 0
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
        numbers = [f"{word}{getattr(self, name)}" for word, name in NUMBERS.items() if getattr(self, name) != _DEFAULTS[name]]
        words = [word for word, (name, value) in WORDS.items() if getattr(self, name) == value]
        kept = [OFFLOAD + "+".join(self.offload)] if self.offload else []
        placed = [] if self.placement == BLOCKS else [PLACED + "+".join(self.placement)]
        file = [] if self.schedule in RULES else [ORDER + self.schedule]
        return "-".join([*numbers, *words, *kept, *placed, *file]) or "dp1"


# A plan as text: numbers with the word before them, options as words of their own.
NUMBERS: Mapping[str, str] = {
    "tp": "tp", "cp": "cp", "ep": "ep", "dp": "dp", "pp": "pp", "v": "virtual_stages", "mb": "micro_batch", "z": "zero",
    "g": "shard_group", "first": "first_stage", "last": "last_stage",
}  # fmt: skip
WORDS: Mapping[str, tuple[str, Any]] = {
    "sp": ("sequence_parallel", True), "selective": ("recompute", "selective"), "full": ("recompute", "full"),
    **{rule.replace("-", ""): ("schedule", rule) for rule in RULES if rule != "1f1b"},
}  # fmt: skip
OFFLOAD = "offload:"  # before what a plan as text keeps on the host, joined by plus signs
PLACED = "placed:"  # before the blocks of a plan as text that are not placed as usual, joined by plus signs
ORDER = "order:"  # before the path of a schedule's file, to the end of the text
_SHORT = {"d": "dp", "p": "pp"}  # as in the notation of kernel graphs
_DEFAULTS = {field.name: field.default for field in fields(Plan)}
_NAMES = {field.name for field in fields(Plan)}
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
    if isinstance(given, str):
        return parse_plan(_written(given))
    problems = [
        f"unknown key '{key}'{did_you_mean(key, sorted(_NAMES))}; known: {', '.join(sorted(_NAMES))}" for key in given if key not in _NAMES
    ]
    for key, value in given.items():
        if key in _CHOICES and (value not in _CHOICES[key] or isinstance(value, (bool, float))):
            problems.append(f"{key} must be one of {', '.join(map(str, _CHOICES[key]))}, got {value!r}")
        elif key == "sequence_parallel" and not isinstance(value, bool):
            problems.append(f"sequence_parallel must be true or false, got {value!r}")
        elif key == "offload":
            problems += _not_offloaded(value)
        elif key == "schedule":
            problems += _no_schedule(value)
        elif key == "placement":
            problems += _not_placed(value)
        elif key in _NAMES and key not in _CHOICES and key != "sequence_parallel":
            least = 0 if key in ("first_stage", "last_stage", "shard_group") else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                problems.append(f"{key} must be a {'positive ' if least else ''}whole number, got {value!r}")
    if problems:
        raise StrategyError("strategy: " + "; ".join(problems))
    return Plan(**{**given, "offload": _offloaded(given.get("offload", ())), "placement": tuple(given.get("placement", BLOCKS))})


def _offloaded(given: Any) -> tuple[Any, ...]:
    """What is kept on the host, one or several, in the order of `OFFLOADS`."""
    return tuple(what for what in OFFLOADS if what == given or what in given)


def _not_offloaded(given: Any) -> list[str]:
    """What is wrong with a list of what is to be kept on the host."""
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, (list, tuple)) or any(what not in OFFLOADS for what in several) or len(set(several)) < len(several):
        return [f"offload must be one or several of {', '.join(OFFLOADS)}, each once, got {given!r}"]
    return []


def _not_placed(given: Any) -> list[str]:
    """What is wrong with an order of blocks of ranks."""
    if isinstance(given, (list, tuple)) and len(given) == len(BLOCKS) and set(given) == set(BLOCKS):
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
    text, _, file = text.strip().partition(f"-{ORDER}")
    if file:
        found["schedule"] = file
    for part in text.split("-"):
        if part.startswith(OFFLOAD) and "offload" not in found:
            found["offload"] = part.removeprefix(OFFLOAD).split("+")
            continue
        if part.startswith(PLACED) and "placement" not in found:
            found["placement"] = part.removeprefix(PLACED).split("+")
            continue
        match = None if part in WORDS else re.fullmatch(r"([a-z]+)(\d+)", part)
        word = _SHORT.get(match[1], match[1]) if match else part
        name, value = (NUMBERS.get(word), int(match[2])) if match else WORDS.get(part, (None, None))
        if name is None or name in found:
            raise StrategyError(
                f"strategy '{text}': '{part}' is {'there twice' if name else 'not understood'}; write degrees and options such as"
                f" tp8-pp4-dp16-mb2-z1-sp-full (numbers: {', '.join(NUMBERS)};"
                f" words: {', '.join(WORDS)}, {OFFLOAD}{'+'.join(OFFLOADS)}, {PLACED}dp+tp+pp, {ORDER}FILE.yaml), or a mapping"
            )
        found[name] = value
    return found


def stage_layers(depth: int, stages: int, first: int = 0, last: int = 0) -> tuple[int, ...]:
    """Layers of every stage, as even as whole layers allow, those with more in the middle.

    Where the layers do not divide but would with the embedding and the head counted as one layer each, the first and
    the last stage have one layer fewer, as Megatron does.

    >>> stage_layers(70, 12), stage_layers(10, 4)
    ((5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5), (2, 3, 3, 2))
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


def plan_problem(plan: Plan, model: Transformer, batch: int, *, balanced: bool = False, training: bool = True) -> str | None:
    """Why a plan cannot divide a model with a global batch, in a sentence; None where it can.

    With `balanced` stages, of which the last may hold the head alone, there may be more stages than layers.
    """
    attention = [part.attention for layer in model.layers for part in layer.parts if part.attention]
    inner = [part.inner for layer in model.layers for part in layer.parts if part.inner]
    routing = [part.routing for layer in model.layers for part in layer.parts if part.routing]
    for heads in {a.heads for a in attention}:
        if heads % plan.tp:
            return f"{heads} attention heads do not divide by tp = {plan.tp}"
    for width in set(inner):
        if width % plan.tp:
            return f"{width} inner elements of the MLP do not divide by tp = {plan.tp}"
    if plan.pp * plan.virtual_stages > model.depth * (2 if balanced else 1):
        return f"pp x virtual_stages = {plan.pp} x {plan.virtual_stages} chunks, but the model has {model.depth} layers"
    if plan.virtual_stages > 1 and model.depth % (plan.pp * plan.virtual_stages):
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
    cuts = plan.cp * (plan.tp if plan.sequence_parallel else 1)
    if model.vocabulary and any(layer.tokens % cuts for layer in model.layers):
        return f"the sequence does not divide by cp{' x tp' if plan.sequence_parallel else ''} = {cuts}"
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
    if (plan.dp * plan.cp) % plan.ep:
        return f"dp x cp = {plan.dp} x {plan.cp} ranks do not divide by ep = {plan.ep}"
    if plan.shard_group and (plan.zero != 3 or plan.dp % plan.shard_group):
        return f"shard_group = {plan.shard_group} needs zero: 3 and must divide dp = {plan.dp}"
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
        problem = schedule_problem(plan.schedule, plan.pp, plan.virtual_stages, batch // (plan.dp * plan.micro_batch))
        if problem is not None:
            return problem
    if plan.zero == 3 and plan.pp > 1:
        return "zero: 3 with a pipeline gathers every layer once a microbatch and stage; it is not supported, use zero: 1 or pp: 1"
    return None


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
    tp, cp, ep, dp, pp, chunks, micro_batch, microbatches : degrees and counts. [1]
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
            tp=column("tp"), cp=column("cp"), ep=column("ep"), dp=dp, pp=column("pp"), chunks=column("virtual_stages"),
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
    def expert(self) -> Group:
        """Ranks that share out the experts."""
        return self.group(self.strides["dp"], self.ep)

    @functools.cached_property
    def expert_data(self) -> Group:
        """Ranks that hold the same experts."""
        return self._mirrored(self.group(self.strides["dp"] * self.ep, self.dp * self.cp / self.ep))

    @functools.cached_property
    def stages(self) -> Group:
        """Neighbouring stages of a pipeline, as a pair."""
        stride = self.strides["pp"]
        per_node = np.minimum(self.group(stride, self.pp).per_node, 2.0)
        return Group(size=np.minimum(self.pp, 2.0), per_node=per_node, stride=stride, devices=self.devices, extent=self.pp)


def _column(plans: Sequence[Plan], name: str) -> Array:
    return np.array([getattr(plan, name) for plan in plans], dtype=float)


def divisors(number: int) -> list[int]:
    """Divisors in rising order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return low + [number // part for part in reversed(low) if part * part != number]
