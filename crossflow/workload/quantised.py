"""In which types a checkpoint keeps its weights, by the ``quantization_config`` of its ``config.json``.

Methods name the modules that they quantise, or those that they leave in 16 bits: by names, prefixes, patterns of shells or regular
expressions. Here each layer's parts are asked for by the names that their matrices have in files of Hugging Face.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossflow.workload.transformer import LayerType

PartTypes = Sequence[frozenset[LayerType]]  # types of the parts of each layer
# Matrices of a layer's parts, each in the ways in which families name them; of a way all are there.
MODULES: Mapping[LayerType, tuple[tuple[str, ...], ...]] = {
    "attention": (
        ("self_attn.q_proj", "self_attn.o_proj"), ("self_attn.q_b_proj", "self_attn.o_proj"), ("self_attn.qkv_proj", "self_attn.o_proj"),
        ("attn.wq_b", "attn.wo_b"), ("mixer.q_proj", "mixer.o_proj"), ("attention.query_key_value", "attention.dense"),
    ),
    "ssm": (
        ("linear_attn.in_proj_qkv", "linear_attn.out_proj"), ("linear_attn.in_proj_qkvz", "linear_attn.out_proj"),
        ("mixer.in_proj", "mixer.out_proj"), ("mamba.in_proj", "mamba.out_proj"), ("self_attn.q_proj", "self_attn.o_proj"),
    ),
    "mlp": (("mlp.gate_proj", "mlp.down_proj"), ("mlp.up_proj", "mlp.down_proj"), ("mixer.up_proj", "mixer.down_proj"),
            ("feed_forward.gate_proj", "feed_forward.down_proj"), ("mlp.gate_up_proj", "mlp.down_proj")),
    "experts": (
        ("mlp.experts.0.gate_proj", "mlp.experts.0.down_proj"), ("block_sparse_moe.experts.0.w1", "block_sparse_moe.experts.0.w2"),
        ("ffn.experts.0.w1", "ffn.experts.0.w2"), ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        ("mixer.experts.0.up_proj", "mixer.experts.0.down_proj"), ("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),
    ),
}  # fmt: skip
FEW = (32, 64)  # integers that share a scale in groups with a type of their own; of others as many as in `int4`
LISTS = (
    "ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules", "dynamic_exclude", "exclude",
    "skip_modules",
)  # fmt: skip
# Kind and bits of numbers by the words for them in Quark, and before "weight" in the names of torchao's methods.
NUMBERS: Mapping[str, tuple[str, int]] = {
    "fp8_e4m3": ("float", 8), "fp8_e5m2": ("float", 8), "fp6_e2m3": ("float", 6), "fp6_e3m2": ("float", 6), "fp4": ("float", 4),
    "fp4_e2m1": ("float", 4), "int8": ("int", 8), "uint8": ("int", 8), "int4": ("int", 4), "uint4": ("int", 4), "float8": ("float", 8),
    "nvfp4": ("float", 4), "mxfp4": ("float", 4),
}  # fmt: skip
_TORCHAO = re.compile(r"(int4|uint4|int8|float8|nvfp4|mxfp4)weight")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Types of a checkpoint's weights, and what of them is not described."""

    weight: str | None = None  # type of most weights of layers, None where it is not known
    own: Mapping[str, str] = field(default_factory=dict)  # of layer types that differ
    wide: tuple[str, ...] = ()  # what stays in 16 bits, as `wide_layers` lists it
    told: tuple[str, ...] = ()  # sentences on what is not described


def stored(config: Any, known: Mapping[str, str], parts: PartTypes, expert_dtype: Any = None) -> Stored:
    """Types that a ``quantization_config`` describes.

    Parameters
    ----------
    config : it.
    known : types by the words of methods, as ``huggingface.yaml`` says them.
    parts : types of the parts of each layer.
    expert_dtype : what the file says beside it of the type of routed experts (DeepSeek-V4).
    """
    if not isinstance(config, Mapping):
        return Stored()
    found = _stored(config, known, parts, expert_dtype)
    return replace(found, told=(*found.told, *_pruned(config), *_cached(config)))


def _pruned(config: Mapping[str, Any]) -> Iterator[str]:
    """What a checkpoint of compressed-tensors says of weights that are left out."""
    found = config.get("sparsity_config")
    structure = found.get("sparsity_structure") if isinstance(found, Mapping) else None
    if structure not in (None, "", "0:0", "unstructured"):
        yield f"its weights have {structure} sparsity, which saves neither bytes nor time unless the workload gives weight_sparsity: 2:4"


def _cached(config: Mapping[str, Any]) -> Iterator[str]:
    """What a method says of keys and values, which services keep in 16 bits unless they are told otherwise."""
    scheme, algorithm = config.get("kv_cache_scheme"), config.get("kv_cache_quant_algo")
    kept = algorithm or (scheme if isinstance(scheme, str) else None)
    if isinstance(scheme, Mapping) and scheme.get("num_bits"):
        kept = f"{scheme.get('type')} {scheme['num_bits']}"
    if kept:
        yield f"it has scales for keys and values in {kept}, which are kept in 16 bits; give kv_dtype: fp8 where the engine keeps them so"


def _stored(config: Mapping[str, Any], known: Mapping[str, str], parts: PartTypes, expert_dtype: Any) -> Stored:
    """The same without what is said of keys and values."""
    base = known.get(_words(config))
    own = _types_by_part(config, known, parts)
    experts = known.get(f"experts {expert_dtype or config.get('expert_dtype')}") or known.get(f"modelopt {config.get('moe_quant_algo')}")
    if experts and "experts" not in own:
        own = {**own, "experts": experts}
    if base is None and own:
        base = own.get("experts") or own.get("mlp") or next(iter(own.values()))
        missing = {kind for layer in parts for kind in layer} - set(own)
        return Stored(weight=base, own=_without(own, base), wide=tuple(sorted(missing)))
    if base is None:
        return Stored()
    wide, told = _wide(list(_ignored(config)), parts)
    if own:  # all else is in the method's own type
        own = {kind: value for kind, value in own.items() if any(kind in layer for layer in parts)}
        kept = tuple(entry for entry in wide if entry not in own) if config.get("layer_quant_config") else ()
        return Stored(weight=base, own=_without(own, base), wide=kept)
    if not _any_narrow(wide, parts):
        return Stored(told=("its quantization_config leaves all layers in 16 bits",))
    return Stored(weight=base, wide=wide, told=told)


def _any_narrow(wide: Iterable[str], parts: PartTypes) -> bool:
    """Whether any part of any layer is narrow beside those that are wide."""
    types = {entry for entry in wide if not entry.startswith("layers:")}
    layers = {i for entry in wide if entry.startswith("layers:") for i in _numbers(entry)}
    return any(kind not in types for i, layer in enumerate(parts) if i not in layers for kind in layer)


def _numbers(entry: str) -> range:
    first, _, last = entry.removeprefix("layers:").partition("-")
    return range(int(first), int(last or first) + 1)


def _without(own: Mapping[str, str], base: str) -> dict[str, str]:
    return {kind: value for kind, value in own.items() if value != base}


def _words(config: Mapping[str, Any]) -> str:
    """What a method and its numbers are called together."""
    groups = config.get("config_groups")
    method, shared = config.get("quant_method"), config.get("group_size")
    words = [method, config.get("bits", config.get("quant_algo"))]
    if isinstance(groups, Mapping) and method != "fp8" and len(groups) == 1:  # compressed-tensors
        found = (next(iter(groups.values())) or {}).get("weights") or {}
        words, shared = [found.get("type"), found.get("num_bits")], found.get("group_size")
        words += ["blocks"] * (found.get("strategy") == "block")
    elif method in ("quark", "torchao", "hqq"):
        words, shared = _numbers_of(config)
    elif method == "bitsandbytes":
        words = [method, 8 if config.get("load_in_8bit") else 4 if config.get("load_in_4bit") else None]
    elif method in ("fp8", "mxfp8"):
        words = [method, "blocks" if method == "fp8" and config.get("weight_block_size") else None]
    return _called(words, shared)


def _called(words: Sequence[Any], shared: Any) -> str:
    """Words together, with the numbers that share a scale where a type hangs on them."""
    words = [*words, *[shared] * (list(words) == ["float", 4] or (list(words[1:]) == [4] and shared in FEW))]
    return " ".join(str(word) for word in words if word is not None)


def _numbers_of(config: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Kind and bits of the weights of methods that name them in their own ways, and how many share a scale; nothing where unknown."""
    if config["quant_method"] == "quark":
        return _of_quark(config.get("global_quant_config"))
    if config["quant_method"] == "hqq":
        weights = _held(config, "quant_config", "weight_quant_params")
        return (["int", weights["nbits"]], weights.get("group_size")) if weights.get("nbits") else ([], None)
    how = config.get("quant_type")  # the name of a method with its arguments beside it, or a class of torchao as it writes itself
    described = _held(config, "quant_type", "default")
    name, given = (how, config.get("quant_type_kwargs")) if isinstance(how, str) else (described.get("_type"), described.get("_data"))
    found = _TORCHAO.search(str(name).replace("_", "").lower())
    shared = given.get("group_size") if isinstance(given, Mapping) else None
    kind = None if found is None else found[1]
    return ([], None) if kind is None else ([*NUMBERS[kind]], {"nvfp4": 16, "mxfp4": 32}.get(kind, shared))


def _of_quark(config: Any) -> tuple[list[Any], Any]:
    """The same of weights that Quark describes; of those that are quantised twice the second type is kept."""
    weight = config.get("weight") if isinstance(config, Mapping) else None
    last = weight[-1] if isinstance(weight, list) and weight else weight
    held = last if isinstance(last, Mapping) else {}
    kind = NUMBERS.get(str(held.get("dtype")))
    return ([], None) if kind is None else ([*kind], 32 if kind == ("float", 4) else held.get("group_size"))


def _held(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """What stands below some keys, where that is a mapping; else nothing."""
    found: Any = config
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _ignored(config: Mapping[str, Any]) -> Iterable[str]:
    """Patterns of modules that stay in 16 bits."""
    for name in LISTS:
        listed = config.get(name)
        yield from (one for one in (listed if isinstance(listed, list) else ()) if isinstance(one, str))


def _inside(name: str) -> str:
    """A module's name from its layer on; those of layers that predict further tokens as they are."""
    if name.startswith("mtp"):
        return name
    _, there, rest = name.partition("layers.")
    return there + rest if there else name


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern covers a module such as ``layers.3.self_attn.q_proj``."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], f"model.{name}") is not None or re.match(pattern[3:], name) is not None
    plain = _inside(pattern)
    if "*" in plain:
        return fnmatch.fnmatchcase(name, plain) or fnmatch.fnmatchcase(name, f"*{plain}") or fnmatch.fnmatchcase(name, f"{plain}.*")
    return name == plain or name.startswith(f"{plain}.") or ("layers." not in plain and f".{plain}." in f".{name}.")


def _covered(patterns: Sequence[str], layer: int, kind: LayerType) -> bool:
    """Whether all matrices of a layer's part, in one of the ways in which they may be named, are covered."""
    near = [one for one in patterns if "layers." not in one or "*" in one or one.startswith("re:") or f"layers.{layer}." in f"{one}."]
    return any(all(any(_matches(one, f"layers.{layer}.{name}") for one in near) for name in way) for way in MODULES[kind])


def _wide(patterns: Sequence[str], parts: PartTypes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What stays in 16 bits: layer types, and whole layers; and what cannot be said so."""
    each = [{kind for kind in layer if kind in MODULES and _covered(patterns, i, kind)} for i, layer in enumerate(parts)]
    types = sorted({kind for layer in parts for kind in layer})
    all_of = [kind for kind in types if all(kind in wide for wide, layer in zip(each, parts, strict=True) if kind in layer)]
    whole = [i for i, layer in enumerate(parts) if layer - set(all_of) and layer <= each[i]]
    rest = sum(bool(wide - set(all_of)) for i, wide in enumerate(each) if i not in whole)
    told = (f"{rest} layers have parts in 16 bits that are counted like those of other layers",) if rest else ()
    firsts = [i for i in whole if i - 1 not in whole]
    lasts = [i for i in whole if i + 1 not in whole]
    listed = [f"layers:{first}-{last}" if last > first else f"layers:{first}" for first, last in zip(firsts, lasts, strict=True)]
    return (*all_of, *listed), told


def _types_by_part(config: Mapping[str, Any], known: Mapping[str, str], parts: PartTypes) -> dict[str, str]:
    """Types of the layer types of which a file lists the modules with their methods (mixed precision of ModelOpt and Quark)."""
    if patterns := _held(config, "layer_quant_config"):
        types = {pattern: known.get(_called(*_of_quark(how))) for pattern, how in patterns.items()}
        kinds = {kind for layer in parts for kind in layer if kind in MODULES}
        layers = {kind: [i for i, layer in enumerate(parts) if kind in layer] for kind in kinds}
        return {
            kind: value for pattern, value in types.items() if value
            for kind, numbers in layers.items() if all(_covered([pattern], i, kind) for i in numbers)
        }  # fmt: skip
    listed = config.get("quantized_layers")
    if not isinstance(listed, Mapping) or not listed:
        return {}
    found: dict[str, Counter[str]] = {}
    for name, how in listed.items():
        kind = _kind_of(_inside(name), parts)
        algorithm = known.get(f"modelopt {(how or {}).get('quant_algo')}") if isinstance(how, Mapping) else None
        if kind and algorithm:
            found.setdefault(kind, Counter())[algorithm] += 1
    return {kind: counts.most_common(1)[0][0] for kind, counts in found.items()}


def _kind_of(name: str, parts: PartTypes) -> LayerType | None:
    """Layer type of a module by its name."""
    number = re.match(r"layers\.(\d+)\.", name)
    layer = parts[int(number[1])] if number and int(number[1]) < len(parts) else frozenset[LayerType]()
    inside = name.partition(".")[2].partition(".")[2]
    if "shared_expert" in inside:
        return None
    if ".experts" in f".{inside}":
        return "experts" if "experts" in layer else None
    for kind in ("ssm", "attention", "mlp"):
        if kind in layer and any(inside.split(".")[0] == way[0].split(".")[0] for way in MODULES[kind]):
            return kind
    return None
