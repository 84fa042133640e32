"""How the config.json files of Hugging Face are read: families and what else ``huggingface.yaml`` says, and words of their lists."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.base import files
from crossflow.base.files import FileModel
from crossflow.base.limits import LAYERS, Whole

Values = Mapping[str, Any]


class Rule(FileModel):
    """Our keys that follow where fields of a file have some values."""

    when: Values
    then: Values


class Family(FileModel):
    """How the files of one `model_type` are read, as the head of ``huggingface.yaml`` says; later fields win over earlier ones."""

    fixed: Mapping[str, Any] = {}
    names: Mapping[str, tuple[str, ...]]
    products: Mapping[str, tuple[str | Whole, ...]] = {}
    shifts: Mapping[str, tuple[str, Whole]] = {}
    sums: Mapping[str, tuple[str, ...]] = {}
    rules: tuple[Rule, ...] = ()
    divided: Mapping[str, tuple[str, str | Whole] | tuple[str, str | Whole, Whole]] = {}
    asked: Mapping[str, Whole] = {}
    assumed: Mapping[str, Any] = {}
    demanded: Mapping[str, tuple[Any, ...]] = {}
    equal: Mapping[str, str] = {}
    listed: Mapping[str, str] = {}
    patterns: Mapping[str, tuple[str, ...]] = {}
    padded: Mapping[str, str] = {}
    leading: Mapping[str, tuple[str, str, str]] = {}
    last: Mapping[str, str] = {}
    window: str = ""
    local: Mapping[str, Any] = {}
    mixers: tuple[str, ...] = ()
    routed: tuple[str, ...] = ()
    variants: Mapping[str, Mapping[str, tuple[str, ...]]] = {}
    blocks: str = ""
    crossed: str = ""
    loose: tuple[str, ...] = ()
    heads: tuple[str, ...]
    head: str = ""
    firsts: tuple[str, ...] = ()
    omits: str = ""
    nested: tuple[str, ...] = ()


class Ingredient(FileModel):
    """A base that a file of an unknown family is read like, where it has any of some fields, and what is assumed with it."""

    having: tuple[str, ...] = ()
    like: str
    assumed: str = ""


class Conventions(FileModel):
    """What ``huggingface.yaml`` says beside the families, each explained there."""

    bases: Mapping[str, Values]
    families: Mapping[str, Values]
    composed: tuple[Ingredient, ...]
    refused: Mapping[str, str]
    pooled: frozenset[str]
    optional: frozenset[str]
    switches: frozenset[str]
    factors: frozenset[str]
    words: frozenset[str]
    from_zero: frozenset[str]
    shared: tuple[str, ...]
    quantised: Mapping[str, str]
    dropout: frozenset[str]
    not_counted: Mapping[str, str]
    told: frozenset[str]
    no_cost: frozenset[str]
    no_cost_like: tuple[str, ...]
    untyped: Mapping[str, str]
    aliases: Mapping[str, str]

    def costs_nothing(self, name: str) -> bool:
        """Whether a field changes no cost, by its name or by what its name is like."""
        last = name.rpartition(".")[2]
        return name in self.no_cost or name in self.dropout or any(re.fullmatch(pattern, last) for pattern in self.no_cost_like)

    def described(self, name: str) -> dict[str, Any]:
        """A family or a base with all that it is like."""
        return self.merged({**self.bases, **self.families}[name])

    def merged(self, own: Values) -> dict[str, Any]:
        """A description with all that it is like."""
        merged: dict[str, Any] = {}
        for layer in (*map(self.described, own.get("like", ())), {key: value for key, value in own.items() if key != "like"}):
            for key, value in layer.items():
                old = merged.get(key, type(value)())
                merged[key] = {**old, **value} if isinstance(value, Mapping) else [*old, *value] if key in ("rules", "nested") else value
        return merged


@functools.cache
def conventions() -> Conventions:
    """How files of Hugging Face are read."""
    return files.validate(Conventions, files.read_yaml(Path(__file__).with_name("huggingface.yaml")))


@functools.cache
def families() -> Mapping[str, Family]:
    """The families by their `model_type`."""
    return {name: described(conventions().described(name)) for name in conventions().families}


def described(given: Values) -> Family:
    """A family by its whole description."""
    return Family.model_validate({**given, "names": {key: aliases for key, aliases in given["names"].items() if aliases}})


DTYPES = tuple(
    Rule(when={name: theirs}, then={"dtype": ours})
    for name in ("torch_dtype", "dtype")
    for theirs, ours in (("bfloat16", "bf16"), ("float16", "fp16"))
)
# Endings of rerankers and reward models, which any family without a head may have: one product of few columns, which is left out.
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
# The ending of an architecture's name -> the head that it puts on the model.
HEADS: Mapping[str, Values] = {
    "ForCausalLM": {"head": "language"},
    "LMHeadModel": {"head": "language"},
    "LMHeadCustomModel": {"head": "language"},
    "ForConditionalGeneration": {"head": "language"},
    "ForMaskedLM": {"head": "masked"},
    "ForPreTraining": {"head": "masked", "pooler": True},
    "ForImageClassification": {"head": "classifier"},
    **{name: {"head": "none"} for name in CLASSIFIERS},
    "Model": {"head": "none"},
}
# What files call layers that see a window and layers that see all tokens; in `no_rope_layers` 1 is a layer with rotary positions.
LAYER_KINDS: Mapping[str, Mapping[Any, str]] = {
    "layer_types": {"sliding_attention": "local", "chunked_attention": "local", "full_attention": "global"},
    "no_rope_layers": {1: "local", 0: "global"},
    "hybrid_layer_pattern": {1: "local", 0: "global"},
}
# What a layer that is made in its own way may say of its attention and MLP.
OF_BLOCKS = {"n_heads_in_group", "num_key_value_heads", "no_op", "ffn_mult", "intermediate_size", "hidden_act", "gated"}
# The field in which newer versions of transformers write what single layers have of their own, and our keys that it may hold.
BY_NUMBER = "per_layer_config"
OF_LAYERS = ("heads", "kv_heads", "head_dim", "value_dim", "ffn")
# The field with the numbers of layers that have an MLP in the place of experts (Qwen2-MoE and its kin).
PLAIN_LAYERS = "mlp_only_layers"
# Whether layers have experts, as lists say it.
ROUTED_LAYERS: Mapping[Any, bool] = {1: True, 0: False, "sparse": True, "dense": False}
# What hybrid models call layers, each with what mixes their tokens; layers of one part may have an MLP or experts alone.
MIXERS: Mapping[Any, str] = {
    "M": "ssm", "*": "attention", "-": "mlp", "E": "experts", "mamba": "ssm", "linear_attention": "ssm", "attention": "attention",
    "full_attention": "attention", "recurrent": "ssm", "mlp": "mlp", "moe": "experts", "conv": "ssm",
    "hybrid": "shared", 0: "ssm", 1: "attention",
}  # fmt: skip
# Fields with the numbers of the layers of a hybrid that attend, and the number of the first layer.
PLACES: Mapping[str, int] = {"attn_layer_indices": 0, "full_attn_idxs": 0, "hybrid_layer_ids": 0, "linear_attn_config.full_attn_layers": 1}
# What lists call kinds of layers of sparse attention: those of one indexer, and ratios of compressed entries.
MARKS: Mapping[Any, Any] = {
    1: "full", 0: "dense", "full_attention": "dense", "minimax_m3_sparse": "full", "deepseek_sparse_attention": "full",
    "sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128,
}  # fmt: skip
PERIODS = (
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "no_rope_layer_interval",
    "global_attn_every_n_layers",
)  # each so-many-th layer is global; or a letter for each layer of a period
LETTERS: Mapping[str, str] = {"L": "local", "G": "global"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A key of ours, its value, and the fields that it comes from; `own` where the value is what a field says, not a rule."""

    key: str
    value: Any
    fields: tuple[str, ...] = ()
    own: bool = False


def flat(config: Values, nested: Iterable[str]) -> dict[str, Any]:
    """Fields by name, those of some mappings as ``outer.inner``."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value.items() if name in nested and isinstance(value, Mapping) else ()
        flat.update({f"{name}.{key}": below for key, below in inner} or {name: value})
    return flat


def lettered(value: Any) -> list[str]:
    """Kinds of the layers of a period that has a letter for each, as those of EXAONE have; none for all else.

    >>> lettered("LLLG"), lettered("none"), lettered(6)
    (['local', 'local', 'local', 'global'], [], [])
    """
    return [LETTERS[letter] for letter in value] if isinstance(value, str) and value and set(value) <= set(LETTERS) else []


def kind_of(name: str, entry: Any) -> str:
    """Kind of a layer by its entry in a list, empty where it is not known."""
    return LAYER_KINDS[name].get(entry, "") if isinstance(entry, str | int) else ""


def whole(value: Any) -> int:
    """A whole number of at least 1, or 0 for all else."""
    return value if type(value) is int and value > 0 else 0


def layers_of(found: Mapping[str, Setting]) -> int:
    """Layers of the model, 0 where the file does not say, or says more than any model may have, which is refused."""
    layers = whole(found["layers"].value) if "layers" in found else 0
    return layers if layers <= LAYERS else 0


def layers_by_number(fields: Values, layers: int) -> dict[int, Values] | None:
    """What single layers have of their own, by their numbers; None where a field does not say it so."""
    given = fields.get(BY_NUMBER) or {}
    if not isinstance(given, Mapping) or not all(name.isdecimal() and isinstance(own, Mapping) for name, own in given.items()):
        return None
    numbered = {int(name): own for name, own in given.items()}
    return numbered if len(numbered) == len(given) and all(number < layers for number in numbered) else None


def numbers_of_layers(value: Any, layers: int) -> bool:
    """Whether a field lists numbers of layers, from 0."""
    return isinstance(value, list) and all(type(one) is int and 0 <= one < layers for one in value)


def with_experts(value: Any, layers: int) -> list[bool] | None:
    """Whether each layer has experts, by a list of marks of all layers or of the numbers of those that have; None for all else."""
    if isinstance(value, str):
        value = [int(one) if one.strip().isdigit() else one for one in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(one, int | str) for one in value):
        return None
    if len(value) == layers and all(one in ROUTED_LAYERS for one in value):
        return [ROUTED_LAYERS[one] for one in value]
    numbers = [one for one in value if type(one) is int and 0 <= one < layers]
    return [i in numbers for i in range(layers)] if len(numbers) == len(set(value)) else None


def ending(fields: Values, family: Family) -> str:
    """The ending of the architecture's name that tells its head, empty where none is known."""
    architectures = fields.get("architectures")
    if not architectures:
        return family.heads[0]
    name = str(architectures[0]) if isinstance(architectures, list) else str(architectures)
    return next((ending for ending in HEADS if name.endswith(ending)), "")
