"""Plans and workloads as flat settings in one normal form, so that what two files say can be compared and nothing is lost between them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from crossflow.base.units import show
from crossflow.parallel.strategy.mesh import BLOCKS, RankBlock
from crossflow.parallel.strategy.plan import OWN_TENSOR, Plan
from crossflow.workload.spec import TransformerSpec

FlatSettings = Mapping[str, Any]  # by path, such as strategy.tp or workload.experts.count
TOLD = ("title", "notes", "sources")  # of a model's file, for readers
# What a workload says of a run of a model rather than of the model.
RUN = (
    "global_batch", "sequence", "dtype", "weight_dtype", "weight_sparsity", "kv_dtype", "wide_layers", "optimizer", "task", "frozen",
    "adapters", "prompt", "output", "serving", "dropout", "mtp_layers", "experts.capacity", "experts.uneven", "experts.skew",
    "experts.variation", "max_positions",
)  # fmt: skip


def plan_settings(plan: Plan, depth: int, *, normal: bool = True) -> dict[str, Any]:
    """Every degree and option of a plan; in normal form what means the same is written in one way.

    Parameters
    ----------
    depth : layers of the model, over which listed stages may be as even as those that are not listed.
    normal : whether degrees that repeat the plan's own are left at 0, and options without effect at their defaults.
    """
    found = {field.name: getattr(plan, field.name) for field in fields(Plan)}
    if normal:
        found |= {key: 0 for key in OWN_TENSOR.values() if found[key] == plan.tp}
        if plan.tp == 1:
            found["sequence_parallel"] = False
        if plan.dp * plan.cp == 1:
            found |= {"zero": 0, "shard_group": 0}
        if plan.shard_group == plan.dp and plan.cp == 1:
            found["shard_group"] = 0
        chunks = plan.pp * plan.virtual_stages
        if plan.division.layers(depth, chunks) == Plan().division.layers(depth, chunks):
            found |= {"stage_layers": (), "first_stage": 0, "last_stage": 0}
        elif plan.pp > 1:
            found |= {"stage_layers": plan.division.layers(depth, chunks), "first_stage": 0, "last_stage": 0}
        order = several(plan)
        rest = [block for block in BLOCKS if block not in order]
        found["placement"] = BLOCKS if order == [block for block in BLOCKS if block in order] else (*order, *rest)
    return {f"strategy.{key}": value for key, value in found.items()}


def several(plan: Plan) -> list[RankBlock]:
    """Blocks of more than one rank in the order in which they lie, which the others do not change."""
    sizes = {"tp": plan.tp, "dp": plan.dp * plan.cp, "pp": plan.pp}
    return [block for block in plan.placement if sizes[block] > 1]


def workload_settings(spec: TransformerSpec) -> dict[str, Any]:
    """Every setting of a transformer in normal form, as files write them; parts that it has not are None."""
    found: dict[str, Any] = dict(flat(spec.model_dump(exclude=set(TOLD)), "workload."))
    kv = spec.kv_heads or spec.heads
    plain = spec.hidden // spec.heads if spec.heads and spec.hidden % spec.heads == 0 else None
    same = {
        "kv_heads": kv == spec.heads, "head_dim": spec.head_dim == plain, "max_positions": spec.max_positions == spec.sequence,
        "qkv_bias": spec.qkv_bias == spec.biases, "mlp_bias": spec.mlp_bias == spec.biases,
        "norm_vectors": spec.norm_vectors == {"layernorm": 2, "rmsnorm": 1}[spec.norm],
        "prompt": spec.prompt == spec.sequence,
    }  # fmt: skip
    found |= {f"workload.{key}": None for key, repeats in same.items() if repeats}
    if spec.experts is not None:
        inner = spec.experts.ffn or spec.ffn
        if not spec.has("mlp"):  # so that no layer has the model's own width
            found["workload.ffn"] = inner
        if found["workload.ffn"] == inner:
            found["workload.experts.ffn"] = None
        if spec.experts.active_groups == spec.experts.groups:
            found["workload.experts.active_groups"] = None
        dense, every = spec.experts.dense_layers, spec.experts.every
        first = dense + -(dense + 1) % every  # the first layer with experts
        found["workload.experts.dense_layers"] = 0 if first == every - 1 else first
    if spec.serving.arrival_rate is not None:
        found["workload.serving.arrival_rate"] = show(spec.serving.arrival_rate, "1/s")
    return found


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Values of nested mappings with their paths."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nested(settings: FlatSettings) -> dict[str, Any]:
    """The inverse of `flat`.

    >>> nested({"layers": 2, "experts.count": 8})
    {'layers': 2, 'experts': {'count': 8}}
    """
    found: dict[str, Any] = {}
    for path, value in settings.items():
        *above, key = path.split(".")
        functools.reduce(lambda held, part: held.setdefault(part, {}), above, found)[key] = value
    return found


def section(settings: FlatSettings, name: str) -> dict[str, Any]:
    """The settings of one section, as the section would be written."""
    return nested({path.removeprefix(f"{name}."): value for path, value in settings.items() if path.startswith(f"{name}.")})


@functools.cache
def defaults() -> FlatSettings:
    """What every setting is where nothing is said; of parts that a model may have, what theirs are."""
    least = TransformerSpec(model="transformer", layers=1, hidden=2, heads=1, ffn=1, vocabulary=1, sequence=2, global_batch=1)
    found = workload_settings(least) | {f"strategy.{field.name}": field.default for field in fields(Plan)}
    required = [key for key, field in TransformerSpec.model_fields.items() if field.is_required()]
    for path in (*(f"workload.{key}" for key in required), "workload.heads", "workload.ffn", "workload.vocabulary"):
        del found[path]
    for name, field in TransformerSpec.model_fields.items():
        for option in getattr(field.annotation, "__args__", (field.annotation,)):
            inner = getattr(option, "model_fields", {})
            found |= {f"workload.{name}.{key}": below.default for key, below in inner.items() if not below.is_required()}
    return found


def differing(settings: FlatSettings) -> dict[str, Any]:
    """FlatSettings that are not at their defaults."""
    plain = defaults()
    return {path: value for path, value in settings.items() if path not in plain or plain[path] != value}


def of_model(path: str) -> bool:
    """Whether a setting describes the model rather than a run of it."""
    own = path.removeprefix("workload.")
    return path.startswith("workload.") and not any(own == key or own.startswith(f"{key}.") for key in RUN)
