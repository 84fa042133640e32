"""The language of strategies: a device mesh with named axes, what each axis does to each layer type, and options beside.

Three notations say a mesh (`crossflow.parallel.strategy.notation` reads them): the paper's, ``RC-{KP1}-{KP2}-d{DP}-p{LP}`` and
``CR-{KP1}-d{DP}-p{LP}`` [1]_; named degrees, ``tp8-pp4-dp16``; roles by layer type, inside a node and between nodes,
``dense (tp, ddp), embedding mp`` [2]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 3.3.
.. [2] Hsia et al., "MAD-Max Beyond Single-Node", ISCA 2024, Sec. II-B and V.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from crossflow.base.errors import StrategyError

# What an axis does. rows, columns, inner: cuts the rows of the first factor of every product, the columns of the second, or the
# dimension that is summed over; batch: replicas, each with samples of its own; shard: the same, but weights are shared out and gathered
# layer by layer; experts: shares out experts, to which samples travel; tables, table_rows, table_columns: shares out embedding tables
# whole, by rows or by columns; layers: stages of a pipeline; given: what a program says by itself.
Role = Literal["rows", "columns", "inner", "batch", "shard", "experts", "tables", "table_rows", "table_columns", "layers", "given"]
Levels = tuple[Role, Role]  # roles of the two axes of a mesh of nodes: inside a node, between nodes

Recompute = Literal["none", "selective", "full"]
# As Megatron-Core calls what selective recomputation repeats (`recompute_modules` of its TransformerConfig).
RepeatedModule = Literal["core_attn", "layernorm", "mla_up_proj", "moe_act", "shared_experts", "mlp", "moe"]
Offload = Literal["optimizer", "weights", "activations"]
Far = Literal["weights", "experts", "cache", "optimizer"]
RankBlock = Literal["tp", "dp", "pp"]
Type = Literal["attention", "mlp", "experts", "embedding"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
REPEATED: tuple[RepeatedModule, ...] = get_args(RepeatedModule)
OFFLOADS: tuple[Offload, ...] = ("optimizer", "weights", "activations")
FARS: tuple[Far, ...] = get_args(Far)
TYPES: tuple[Type, ...] = ("attention", "mlp", "experts", "embedding")  # of a transformer's layers; the head goes with the embedding
BLOCKS: tuple[RankBlock, ...] = ("tp", "dp", "pp")  # of ranks, as they lie on consecutive devices: Megatron's order
SCHEDULES = ("1f1b", "gpipe", "zb-h1", "chimera", "pipedream", "dualpipe", "zb-v", "dualpipev")  # rules by which pipelines order passes
BIDIRECTIONAL = ("chimera", "dualpipe")  # of them, those in which microbatches come from both ends, and every stage holds two chunks
FOLDED = ("zb-v", "dualpipev")  # and those in which they pass every stage twice, there and back, in two chunks of one model

# Roles as words, where strategies are written by layer type.
WORD_ROLES: Mapping[str, Role] = {
    "ddp": "batch", "fsdp": "shard", "tp": "columns", "ep": "experts", "mp": "tables", "mp-rows": "table_rows",
    "mp-columns": "table_columns", "pp": "layers",
}  # fmt: skip
ROLE_WORDS: Mapping[Role, str] = {role: word for word, role in WORD_ROLES.items()}
# Axes as named degrees and what they do; the paper's names for them.
AXIS_ROLES: Mapping[str, Role] = {"cp": "rows", "tp": "columns", "inner": "inner", "dp": "batch", "pp": "layers"}
PAPER_NAMES: Mapping[str, str] = {"cp": "kp1", "tp": "kp2", "inner": "kp1", "dp": "dp", "pp": "lp"}
NODE_AXES = ("node", "nodes")  # of strategies by layer type, nearest neighbours first; how many there are the system says

# Degrees and options as text: numbers with the word before them, options as words of their own.
NUMBERS: Mapping[str, str] = {
    "tp": "tp", "cp": "cp", "ep": "ep", "etp": "etp", "re": "redundant_experts", "atp": "attention_tp", "mlptp": "mlp_tp",
    "embtp": "embedding_tp",
    "dp": "dp", "pp": "pp", "v": "virtual_stages", "mb": "micro_batch", "z": "zero",
    "g": "shard_group", "ag": "attention_shard_group", "mlpg": "mlp_shard_group", "eg": "experts_shard_group",
    "embg": "embedding_shard_group", "first": "first_stage", "last": "last_stage", "ol": "offload_layers",
    "rl": "recompute_layers", "fe": "far_experts", "fc": "far_cache",
}  # fmt: skip
WORDS: Mapping[str, tuple[str, Any]] = {
    "sp": ("sequence_parallel", True), "apart": ("apart", TYPES), "selective": ("recompute", "selective"), "full": ("recompute", "full"),
    **{rule.replace("-", ""): ("schedule", rule) for rule in SCHEDULES if rule != "1f1b"},
}  # fmt: skip
# Before several words that plus signs join.
LISTS: Mapping[str, str] = {
    "offload:": "offload", "far:": "far", "unsharded:": "unsharded", "apart:": "apart", "distant:": "distant", "placed:": "placement",
    "layers:": "stage_layers", "sel:": "recompute_modules",
}  # fmt: skip
# Modules that selective recomputation repeats, as text has them.
MODULE_WORDS: Mapping[str, RepeatedModule] = {
    "attn": "core_attn", "norm": "layernorm", "up": "mla_up_proj", "act": "moe_act", "shared": "shared_experts", "mlp": "mlp", "moe": "moe",
}  # fmt: skip
_SHORT_OF = {module: word for word, module in MODULE_WORDS.items()}
ORDER = "order:"  # before the path of a schedule's file, to the end of the text


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of the device mesh; `size` 0 where the system says how many there are, `role` for layer types without roles of their own."""

    name: str
    size: int
    role: Role


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A strategy as it is written."""

    axes: tuple[Axis, ...] = ()  # of the device mesh, cut products first, then replicas, then stages; of a mesh of nodes its two levels
    own: tuple[tuple[str, Levels], ...] = ()  # roles of the axes for layer types that have their own, by layer type
    options: tuple[tuple[str, Any], ...] = ()  # everything else that a strategy says, by key

    def degree(self, *roles: Role) -> int:
        """Number of parts into which the axes of these roles divide what they divide."""
        return math.prod(axis.size for axis in self.axes if axis.role in roles)

    @property
    def devices(self) -> int:
        """Devices that the mesh holds."""
        return math.prod(axis.size for axis in self.axes)

    def names(self, *roles: Role) -> tuple[str, ...]:
        """Names of the axes of these roles that have more than one device."""
        return tuple(axis.name for axis in self.axes if axis.role in roles and axis.size > 1)

    @property
    def by_types(self) -> bool:
        """Whether it is a mesh of nodes, whose axes have roles by layer type."""
        return bool(self.own)

    @property
    def order(self) -> tuple[str, ...] | None:
        """Names of the axes in the order in which its blocks lie on consecutive devices; None where it does not say."""
        placed = dict(self.options).get("placement")
        kinds: Mapping[str, tuple[Role, ...]] = {"tp": ("rows", "columns", "inner"), "dp": ("batch",), "pp": ("layers",)}
        return None if placed is None else tuple(axis.name for block in placed for axis in self.axes if axis.role in kinds[block])

    def __str__(self) -> str:
        if self.own:
            return ", ".join(f"{kind} {levels_text(levels)}" for kind, levels in self.own)
        given = [f"{axis.name}{axis.size}" for axis in self.axes if axis.role == "given"]
        degrees = {axis.role: axis.size for axis in self.axes}
        kernel = [f"CR-{degrees['inner']}"] if "inner" in degrees else []
        if "rows" in degrees or "columns" in degrees:
            kernel = [f"RC-{degrees.get('rows', 1)}-{degrees.get('columns', 1)}"]
        data = [f"d{degrees['batch']}"] if "batch" in degrees else []
        stages = [f"p{degrees['layers']}"] if "layers" in degrees else []
        return "-".join([*([*given, *kernel, *data, *stages] or ["d1"]), *said(dict(self.options))])


def said(values: Mapping[str, Any]) -> list[str]:
    """Degrees and options as parts of text, each of which reads back as itself.

    >>> "-".join(said({"tp": 8, "dp": 2, "zero": 3, "stage_layers": (3, 4, 4, 2)}))
    'tp8-dp2-z3-layers:3+4x2+2'
    >>> "-".join(said({"recompute": "selective", "recompute_modules": ("layernorm", "moe_act")}))
    'sel:norm+act'
    """
    modules = tuple(_SHORT_OF[name] for name in values.get("recompute_modules", ()))
    values = {**values, "recompute_modules": modules} if modules else values
    numbers = [f"{word}{values[key]}" for word, key in NUMBERS.items() if key in values]
    listed = "selective" if modules else ""  # its list says so
    words = [word for word, (key, value) in WORDS.items() if key in values and values[key] == value and word != listed]
    lists = [prefix + joined(values[key]) for prefix, key in LISTS.items() if key in values and (key, values[key]) != WORDS["apart"]]
    schedule = values.get("schedule", SCHEDULES[0])
    return [*numbers, *words, *lists, *([] if schedule in SCHEDULES else [ORDER + schedule])]


def sizes_text(axes: Iterable[tuple[str, int]]) -> str:
    """Names and sizes of the axes of a mesh: ``tp 8 x dp 4``."""
    return " x ".join(f"{name} {size}" for name, size in axes) or "one device"


def needs(strategy: object, axes: Iterable[Axis], devices: int, given: int, node: int = 0) -> StrategyError:
    """Say that a strategy takes other devices than there are, with what would make both the same.

    That is the data parallelism that takes them all, or a larger system; `node` is the devices of one of its nodes, 0 where more would
    not help.

    >>> str(needs("tp4", [Axis(name="tp", size=4, role="rows")], 4, 8))
    'strategy tp4 needs 4 devices (tp 4), but the system has 8; dp2 beside it takes all of them'
    >>> error = needs("tp16", [Axis(name="tp", size=16, role="rows")], 16, 8, node=8)
    >>> error.clash, error.resize
    ('strategy tp16 needs 16 devices (tp 16), but the system has 8', 'system.nodes=2 makes it 16')
    """
    listed = tuple(axes)
    needed = f"{devices} devices ({sizes_text((axis.name, axis.size) for axis in listed)})" if devices > 1 else "one device"
    replicas = next((axis.size for axis in listed if axis.name == "dp"), 1)
    more, over = divmod(given, max(devices, 1))
    told = f"dp{replicas * more} {'in the place of' if replicas > 1 else 'beside it'}{f' dp{replicas}' if replicas > 1 else ''}"
    clash = f"strategy {strategy} needs {needed}, but the system has {given}"
    if devices > given and node:
        larger = f"system.nodes={devices // node}" if devices % node == 0 else f"system.devices={devices}"
        return StrategyError(clash, f"{larger} makes it {devices}", devices)
    return StrategyError(f"{clash}; {told} takes all of them" if more > 1 and not over else clash)


def joined(values: tuple[Any, ...]) -> str:
    """Several values as one word, those that follow themselves told once: ``3+4x14+2``."""
    runs = [(value, len(list(same))) for value, same in itertools.groupby(values)]
    return "+".join(f"{value}x{count}" if count > 1 else str(value) for value, count in runs)


def levels_text(levels: Levels) -> str:
    """Roles of both levels as text.

    >>> levels_text(("columns", "batch"))
    '(tp, ddp)'
    """
    words = [ROLE_WORDS[role] for role in levels]
    return words[0] if words[0] == words[1] else f"({words[0]}, {words[1]})"


def divisors(number: int) -> list[int]:
    """Divisors in rising order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return low + [number // part for part in reversed(low) if part * part != number]
