"""Plans: how a transformer is divided, by named degrees; as text and as mappings."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from crossflow.errors import StrategyError, did_you_mean
from crossflow.strategy.mesh import Axis
from crossflow.strategy.schedules import RULES
from crossflow.strategy.stages import Division

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
    ep : expert degree; groups of experts lie along the data and context ranks. `ep` x `etp` divides `tp` x `cp` x `dp`.
    etp : tensor degree of routed experts; that of the layers where 0. Where it is less, experts lie along the other tensor
        ranks too, each of which then has tokens of its own; where it is more, data ranks share each expert (MoE parallel folding,
        arXiv:2504.14960).
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
    stage_layers : layers of every stage, or chunk, in the order of the model, any of them 0; empty for even ones.
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
    stage_layers: tuple[int, ...] = ()
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
    def division(self) -> Division:
        """What it says of how layers are divided over stages, or chunks."""
        return Division(first=self.first_stage, last=self.last_stage, listed=self.stage_layers)

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
        told = {word: name for word, name in NUMBERS.items() if name in always or getattr(self, name) != _DEFAULTS[name]}
        numbers = [f"{word}{getattr(self, name)}" for word, name in told.items()]
        words = [word for word, (name, value) in WORDS.items() if getattr(self, name) == value]
        chosen = {prefix: getattr(self, name) for prefix, name in LISTS.items() if getattr(self, name) != _DEFAULTS[name]}
        lists = [prefix + _joined(values) for prefix, values in chosen.items() if not (prefix == "apart:" and values == TYPES)]
        file = [] if self.schedule in RULES else [ORDER + self.schedule]
        return "-".join([*numbers, *words, *lists, *file]) or "dp1"


def _word(value: Any) -> str:
    """A value of a plan as a word."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return _joined(value) or "none" if isinstance(value, tuple) else str(value)


def _joined(values: tuple[Any, ...]) -> str:
    """Several values as one word, those that follow themselves told once: ``3+4x14+2``."""
    runs = [(value, len(list(same))) for value, same in itertools.groupby(values)]
    return "+".join(f"{value}x{count}" if count > 1 else str(value) for value, count in runs)


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
    "layers:": "stage_layers",
}  # fmt: skip
ORDER = "order:"  # before the path of a schedule's file, to the end of the text
_NUMBER = re.compile(r"([a-z]+)(\d+)")
_RUN = re.compile(r"(\d+)(?:x([1-9]\d{0,4}))?")  # layers of a stage, and of how many that follow each other
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
_WHOLE = _NAMES - {*_FLAGS, *_CHOSEN, *_CHOICES, "schedule", "placement", "stage_layers"}  # keys of whole numbers


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
        if key in _WHOLE:
            least = 0 if _DEFAULTS[key] == 0 else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                problems.append(f"{key} must be a {'positive ' if least else ''}whole number, got {value!r}")
        elif key in _CHOICES and (value not in _CHOICES[key] or isinstance(value, (bool, float))):
            problems.append(f"{key} must be one of {', '.join(map(str, _CHOICES[key]))}, got {value!r}")
        elif key in _FLAGS and not isinstance(value, bool):
            problems.append(f"{key} must be true or false, got {value!r}")
        elif key in _CHOSEN:
            problems += _not_chosen(key, value)
        elif key == "schedule":
            problems += _no_schedule(value)
        elif key == "placement":
            problems += _not_placed(value)
        elif key == "stage_layers" and _layers(value) is None:
            problems.append(
                "stage_layers must list the layers of every stage (with virtual_stages: chunk), such as [3, 4, 4, 2] or 3+4x2+2,"
                f" got {value!r}"
            )
    if problems:
        raise StrategyError("strategy: " + "; ".join(problems))
    lists = {key: _several(key, given[key]) for key in _CHOSEN if key in given}
    chosen = {key: tuple(what for what in _CHOSEN[key] if what in several) for key, several in lists.items()}
    layers = _layers(given.get("stage_layers", ()))
    return Plan(**{**given, **chosen, "placement": tuple(given.get("placement", BLOCKS)), "stage_layers": layers})


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


def _layers(given: Any) -> tuple[int, ...] | None:
    """Layers of every stage from a list, or from text such as ``3+4x14+2``; None where they are neither."""
    several = _several("stage_layers", given)
    if not isinstance(several, (list, tuple)) or any(isinstance(one, bool) for one in several):
        return None
    runs = [_RUN.fullmatch(str(one)) for one in several]
    return None if None in runs else tuple(int(run[1]) for run in runs if run for _ in range(int(run[2] or 1)))


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
        match = None if part in WORDS else _NUMBER.fullmatch(part)
        word = _SHORT.get(match[1], match[1]) if match else part
        name, value = (NUMBERS.get(word), int(match[2])) if match else WORDS.get(part, (None, None))
        if prefix in LISTS:
            name, value = LISTS[prefix], part.removeprefix(prefix).split("+")
        if name is None or name in found:
            raise StrategyError(
                f"strategy '{text}': '{part}' is {'there twice' if name else 'not understood'}; write degrees and options such as"
                f" tp8-pp4-dp16-mb2-z1-sp-full (numbers: {', '.join(NUMBERS)};"
                f" words: {', '.join(WORDS)}, offload:{'+'.join(OFFLOADS)}, unsharded:embedding, distant:mlp, placed:dp+tp+pp,"
                f" layers:3+4x2+2, {ORDER}FILE.yaml), or a mapping"
            )
        found[name] = value
    return found


def divisors(number: int) -> list[int]:
    """Divisors in rising order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return low + [number // part for part in reversed(low) if part * part != number]
