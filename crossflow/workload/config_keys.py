"""Our keys from the fields of a config.json, as its family says; what comes later in a family's description wins."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from crossflow.workload.conventions import (
    BY_NUMBER,
    CLASSIFIERS,
    DTYPES,
    HEADS,
    LAYER_KINDS,
    MARKS,
    MIXERS,
    OF_LAYERS,
    PERIODS,
    PLACES,
    PLAIN_LAYERS,
    Family,
    Setting,
    Values,
    conventions,
    ending,
    kind_of,
    layers_by_number,
    layers_of,
    lettered,
    numbers_of_layers,
    whole,
    with_experts,
)
from crossflow.workload.statespace import SHIFTS


def trimmed(fields: dict[str, Any], family: Family) -> dict[str, Any]:
    """Fields whose lists of layers end with those of the main model; some files list the layers that predict further tokens too."""
    counts = ([whole(fields.get(name)) for name in family.names.get(key, ())] for key in ("layers", "mtp_layers"))
    layers, further = (max(found, default=0) for found in counts)
    lists = {*LAYER_KINDS, *family.mixers, *family.routed, *(name for names in family.patterns.values() for name in names)}
    longer = {name for name in lists & set(fields) if isinstance(fields[name], list) and layers < len(fields[name]) <= layers + further}
    return {name: value[:layers] if name in longer else value for name, value in fields.items()}


def settings(fields: Values, family: Family, kind: str, title: str) -> dict[str, Setting]:
    """Settings by our key; what comes later in a family's description replaces what comes earlier."""
    plain = {"model": "transformer", "global_batch": 1, "title": title, **family.fixed}
    found = {key: Setting(key=key, value=value) for key, value in plain.items()}
    for read in (
        _named,
        _padded,
        _summed,
        _divided,
        _products,
        _by_factors,
        _active,
        _blocked,
        _shifted,
        _windowed,
        _patterned,
        _mixed,
        _ruled,
        _automatic,
        _routed,
        _varied,
        _listed,
        _by_number,
    ):
        found |= {setting.key: setting for setting in read(fields, family, found)}
    found |= {setting.key: setting for setting in (*_of_file(fields), *_headed(fields, family, kind))}
    return _without_lacking(family, _without_experts(found))


def without_mixers(found: dict[str, Setting]) -> dict[str, Setting]:
    """Settings of a hybrid without those of a mixer that no layer has, as small models of hybrid families may leave one out."""
    pattern = set(found["ssm.pattern"].value) if "ssm.pattern" in found else {"both"}
    lacking = (
        {"ssm"} if pattern == {"attention"} else set() if pattern & {"attention", "both", "shared"} else {"heads", "kv_heads", "head_dim"}
    )
    return {key: setting for key, setting in found.items() if key.partition(".")[0] not in lacking}


def _without_lacking(family: Family, found: dict[str, Setting]) -> dict[str, Setting]:
    """Settings without groups that files of the family may leave out, where the one that says how many there are is none."""
    counts = {"experts": "experts.count", "per_layer": "per_layer.width"}
    none = {group for group in family.loose if group in counts and not (counts[group] in found and found[counts[group]].value)}
    return {key: setting for key, setting in found.items() if key.split(".")[0] not in none or "." not in key}


def _named(fields: Values, family: Family, _: Mapping[str, Setting]) -> Iterator[Setting]:
    for key, aliases in family.names.items():
        switch = key in conventions().switches
        name = next((alias for alias in aliases if fields.get(alias) is not None and (switch or fields[alias] is not False)), None)
        if name is not None:
            # Labels of classes and kinds of layers stand in for their number.
            listed = key in ("image.classes", "layers") and isinstance(fields[name], Mapping | list)
            value = len(fields[name]) if listed else _alike(fields[name])
            value = value[0] if name in family.firsts and isinstance(value, list) and value else value
            yield Setting(key=key, value=value, fields=(name,), own=True)


def _alike(value: Any) -> Any:
    """A number that a list gives for each layer, or each kind of tokens, where all are one."""
    same = isinstance(value, list) and value and all(type(one) is int and one == value[0] for one in value)
    return value[0] if same else value


def _padded(fields: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Sizes that are rounded up to a multiple."""
    for key, name in family.padded.items():
        if (multiple := whole(fields.get(name))) and key in found and whole(found[key].value):
            yield replace(found[key], value=-(-found[key].value // multiple) * multiple, fields=(*found[key].fields, name))


def _listed(_: Values, __: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Dimensions that a list gives for each layer: those of the first, and variants, each with all that its layers have of their own."""
    layers = layers_of(found)
    listed = {key: found[key].value for key in ("ffn", "heads", "kv_heads") if key in found and isinstance(found[key].value, list)}
    each = {key: value for key, value in listed.items() if len(value) == layers and all(type(one) is int and one > 0 for one in value)}
    yield from (replace(found[key], value=value[0]) for key, value in each.items())
    own = [{key: value[i] for key, value in each.items() if value[i] != value[0]} for i in range(layers if each else 0)]
    yield from _in_variants(own, tuple(dict.fromkeys(name for key in each for name in found[key].fields)), found)


def _products(fields: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    given = {name: Setting(key="", value=value, fields=(name,)) for name, value in fields.items() if value is not None}
    assumed = {name: Setting(key="", value=value) for name, value in family.assumed.items()}
    known = {**assumed, **given, **found}
    for key, parts in family.products.items():
        factors = [_factor(part, known) for part in parts]
        numbers = [factor for factor in factors if factor is not None and type(factor.value) in (int, float)]
        value = math.prod(factor.value for factor in numbers)
        if key not in found and len(numbers) == len(parts) and float(value).is_integer():  # a factor may be written as 3.0 or 3.5
            yield Setting(key=key, value=int(value), fields=tuple(name for factor in numbers for name in factor.fields), own=True)


def _by_factors(fields: Values, _: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Widths that a file gives as factors of the width of a token: of each layer's MLP (OpenELM), or of parts of all layers (xLSTM)."""
    hidden, heads = (whole(found[key].value) if key in found else 0 for key in ("hidden", "ssm.heads"))
    factors, multiple = fields.get("ffn_multipliers"), whole(fields.get("ffn_dim_divisor"))
    if isinstance(factors, list) and all(map(_positive, factors)) and hidden and multiple:
        yield Setting(
            key="ffn",
            value=[_nearest_multiple(factor * hidden, multiple) for factor in factors],
            fields=("ffn_multipliers", "ffn_dim_divisor"),
            own=True,
        )
    factor, multiple = fields.get("ffn_proj_factor"), whole(fields.get("ffn_round_up_to_multiple_of"))
    if isinstance(factor, int | float) and _positive(factor) and hidden and multiple:
        value = math.ceil(factor * hidden / multiple) * multiple
        yield Setting(key="ffn", value=value, fields=("ffn_proj_factor", "ffn_round_up_to_multiple_of"), own=True)
    for key, name in (("ssm.state", "qk_dim_factor"), ("ssm.head_dim", "v_dim_factor")):
        if _positive(fields.get(name)) and hidden and heads:
            yield Setting(key=key, value=int(hidden * fields[name]) // heads, fields=(name,), own=True)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _nearest_multiple(value: float, multiple: int) -> int:
    """The multiple next to a number, and the one above where that is less than 90 % of it (`make_divisible`, modeling_openelm.py)."""
    near = max(multiple, int(value + multiple / 2) // multiple * multiple)
    return near + multiple if near < 0.9 * value else near


def _active(fields: Values, _: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Experts that a token passes where some of those that it chooses among compute nothing (LongCat-Flash): in the mean their share."""
    idle, active, count = fields.get("zero_expert_num"), found.get("experts.active"), found.get("experts.count")
    if active is not None and count is not None and whole(idle) and whole(active.value) and whole(count.value):
        value = max(1, round(active.value * count.value / (count.value + idle)))
        yield replace(active, value=value, fields=(*active.fields, "zero_expert_num"))


def _summed(fields: Values, family: Family, _: Mapping[str, Setting]) -> Iterator[Setting]:
    for key, names in family.sums.items():
        if all(whole(fields.get(name)) for name in names):
            yield Setting(key=key, value=sum(fields[name] for name in names), fields=names, own=True)


def _divided(fields: Values, family: Family, _: Mapping[str, Setting]) -> Iterator[Setting]:
    for key, (name, by, *times) in family.divided.items():
        parts = by if isinstance(by, int) else whole(fields.get(by))
        if whole(fields.get(name)) and parts:
            given = (name,) if isinstance(by, int) else (name, by)
            yield Setting(key=key, value=math.prod((fields[name], *times)) // parts, fields=given, own=True)


def _factor(part: str | int, known: Mapping[str, Setting]) -> Setting | None:
    """A number, or a key or field that has one; of several, parted by bars, the first that is there."""
    if isinstance(part, int):
        return Setting(key="", value=part)
    found = next((known[name] for name in part.split("|") if name in known), None)
    return None if found is None else replace(found, value=_alike(found.value))


def _shifted(_: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    for key, (source, added) in family.shifts.items():
        if source in found and type(found[source].value) is int:
            yield replace(found[source], key=key, value=found[source].value + added)


def _ruled(fields: Values, family: Family, _: Mapping[str, Setting]) -> Iterator[Setting]:
    known = {**family.assumed, **{name: value for name, value in fields.items() if value is not None}}
    for rule in (*DTYPES, *family.rules):
        if all(name in known and known[name] == value for name, value in rule.when.items()):
            given = tuple(name for name in rule.when if name in fields)
            yield from (Setting(key=key, value=value, fields=given) for key, value in rule.then.items())


def _windowed(fields: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """The window of attention and the layers that have it; nothing where no layer has one."""
    known = {name: value for name, value in {**family.assumed, **fields}.items() if value is not None}
    kinds, name = _layer_kinds(known, layers_of(found))
    if family.window not in known or not known.get("use_sliding_window", True) or "local" not in kinds:
        return
    given = tuple(field for field in (family.window, "use_sliding_window") if field in fields)
    yield Setting(key="window.size", value=known[family.window], fields=given, own=bool(given))
    yield Setting(key="window.pattern", value=kinds, fields=(name,) if name in fields else ())
    yield from (Setting(key=key, value=value) for key, value in family.local.items())


def _layer_kinds(known: Values, layers: int) -> tuple[list[str], str]:
    """Kinds of successive layers as the shortest list that repeats, and the field that says them."""
    for name in LAYER_KINDS:
        if isinstance(known.get(name), list) and known[name]:
            return _repeating([kind_of(name, entry) for entry in known[name]]), name
    for name in PERIODS:
        if letters := lettered(known.get(name)):
            return letters, name
        if every := whole(known.get(name)):
            kinds = ["local"] * (every - 1)
            return ["global", *kinds] if name == "global_attn_every_n_layers" else [*kinds, "global"], name
    if first := whole(known.get("max_window_layers")):
        return ["global"] * min(first, layers) + ["local"] * (layers - first), "max_window_layers"
    return ["local"], ""


def _repeating(kinds: list[str]) -> list[str]:
    """The shortest list that repeats to a longer one."""
    period = next(n for n in range(1, len(kinds) + 1) if all(kind == kinds[i % n] for i, kind in enumerate(kinds)))
    return kinds[:period]


def _patterned(fields: Values, family: Family, _: Mapping[str, Setting]) -> Iterator[Setting]:
    for key, names in family.patterns.items():
        name = next((name for name in names if isinstance(fields.get(name), list) and fields[name]), None)
        if name is not None:
            ratios = key.endswith(".ratios") and all(type(entry) is int for entry in fields[name])
            kinds = (
                fields[name] if ratios else [MARKS.get(entry, entry) if isinstance(entry, int | str) else entry for entry in fields[name]]
            )
            yield Setting(key=key, value=_repeating(kinds), fields=(name,))


def _mixed(fields: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """What mixes the tokens of successive layers of a hybrid model."""
    if not family.mixers:
        return
    known = {name: value for name, value in {**family.assumed, **fields}.items() if value is not None}
    name = next((name for name in family.mixers if name in known), "")
    value, layers = known.get(name, []), range(layers_of(found))
    attends = "shared" if "shared_block.blocks" in found else "attention"
    if name in PLACES or not name:
        kinds = [attends if i + PLACES.get(name, 0) in value else "ssm" for i in layers]
    elif name == "attn_layer_period" and attends == "shared" and whole(value):  # Zamba: the third, then by the period from there
        places = {2, *(i + 3 for i in layers if i % value == known.get("attn_layer_offset"))}
        kinds = [attends if i in places else "ssm" for i in layers]
    elif every := whole(value):  # a period, and the one of its layers that attends
        place = known.get("attn_layer_offset", every - 1) if name == "attn_layer_period" else every - 1
        rest = len(layers) // every * every if name == "layer_group_size" else len(layers)  # layers of no whole group attend
        kinds = ["attention" if i % every == place or i >= rest else "ssm" for i in layers]
    else:
        kinds = [MIXERS.get(entry, "") for entry in (value if isinstance(value, list | str) else ())]
    if kinds and all(kinds):
        given = tuple(one for one in (name, "attn_layer_offset" if name == "attn_layer_period" else name) if one in fields)
        yield Setting(key="ssm.pattern", value=_repeating(kinds), fields=tuple(dict.fromkeys(given)))


def _blocked(fields: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Layers that a search of architectures made each in its own way (Nemotron-NAS): those of the first kind, and variants of it."""
    blocks = fields.get(family.blocks)
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        return
    heads, hidden = (whole(found[key].value) if key in found else 0 for key in ("heads", "hidden"))
    each = [_block(block, heads, hidden) for block in blocks]
    usual = {key: next((one[key] for one in each if one.get(key)), None) for key in ("kv_heads", "ffn")}
    for key, value in usual.items():
        if value:
            yield Setting(key=key, value=value, fields=(family.blocks,), own=True)
    differing = [{key: value for key, value in one.items() if value != usual.get(key, True)} for one in each]
    yield from _in_variants(differing, (family.blocks,), found)


def _block(block: Values, heads: int, hidden: int) -> dict[str, Any]:
    """What one of these layers has. The width of its MLP is rounded up to 256s (modeling_decilm.py of Llama-3_3-Nemotron-Super-49B)."""
    attention, ffn = (block.get(name) or {} for name in ("attention", "ffn"))
    group, multiple = whole(attention.get("n_heads_in_group")), ffn.get("ffn_mult")
    wide = -(-int(2 * multiple * hidden / 3) // 256) * 256 if isinstance(multiple, int | float) else 0
    own = {
        "attention": not attention.get("no_op", False),
        "mlp": not ffn.get("no_op", False),
        "kv_heads": whole(attention.get("num_key_value_heads")) or (heads // group if group else 0),
        "ffn": whole(ffn.get("intermediate_size")) or wide,
    }
    there = {"kv_heads": own["attention"], "ffn": own["mlp"]}
    return {key: value for key, value in own.items() if there.get(key, True)}


def _in_variants(differing: list[dict[str, Any]], fields: tuple[str, ...], found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Variants of layers of which each has some values of its own, beside those that are there."""
    kinds = {json.dumps(own, sort_keys=True): own for own in differing if own}
    listed = [{"layers": _ranges([i for i, one in enumerate(differing) if one == own]), **own} for own in kinds.values()]
    if listed:
        yield _with_variants(listed, fields, found)


def _with_variants(listed: list[dict[str, Any]], fields: tuple[str, ...], found: Mapping[str, Setting]) -> Setting:
    """The variants that are there, and further ones."""
    before = found.get("variants", Setting(key="", value=()))
    return Setting(key="variants", value=[*before.value, *listed], fields=tuple(dict.fromkeys((*before.fields, *fields))))


def _ranges(places: list[int]) -> list[str]:
    """Numbers of layers as text, those that follow each other as ranges."""
    firsts = [i for i in places if i - 1 not in places]
    lasts = [i for i in places if i + 1 not in places]
    return [f"{first}-{last}" if last > first else f"{first}" for first, last in zip(firsts, lasts, strict=True)]


def _routed(fields: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Which layers have experts, where a list says it."""
    layers, name = layers_of(found), next((name for name in family.routed if fields.get(name) is not None), "")
    sparse = with_experts(fields.get(name), layers)
    if not name and fields.get(PLAIN_LAYERS) and numbers_of_layers(fields[PLAIN_LAYERS], layers):
        name, sparse = PLAIN_LAYERS, [i not in fields[PLAIN_LAYERS] for i in range(layers)]
    if sparse is None or "experts.count" not in found:
        return
    dense = sparse.index(True) if True in sparse else layers
    if all(sparse[dense:]):
        yield Setting(key="experts.dense_layers", value=dense, fields=(name,))
        return
    yield Setting(key="experts.dense_layers", value=0, fields=(name,))
    yield from _in_variants([{} if one else {"experts": False} for one in sparse], (name,), found)


def _varied(fields: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Dimensions that local or global layers have of their own, and layers that attend to keys and values of others."""
    kinds = set(found["window.pattern"].value) if "window.pattern" in found else {"global"}
    listed: list[dict[str, Any]] = []
    names: list[str] = []
    for where, given in family.variants.items():
        if where not in kinds:
            continue
        read = {key: next((name for name in aliases if fields.get(name) is not None), "") for key, aliases in given.items()}
        own = {key: fields[name] for key, name in read.items() if name}
        names += [name for name in read.values() if name]
        own = {key: value for key, value in own.items() if value != (found[key].value if key in found else False)}
        listed += [{"layers": [where], **own}] if own else []
    last, layers = whole(fields.get("num_kv_shared_layers")), layers_of(found)
    if last and last < layers:
        wide = fields.get("use_double_wide_mlp") is True and "ffn" in found
        names += ["num_kv_shared_layers", *(["use_double_wide_mlp"] if wide else [])]
        own = {"shared_cache": True, **({"ffn": 2 * found["ffn"].value} if wide else {})}
        listed.append({"layers": [f"{layers - last}-{layers - 1}"], **own})
    every = whole(fields.get("cla_share_factor")) if fields.get("use_cla") is True else 0
    if every > 1:
        names += ["use_cla", "cla_share_factor"]
        listed.append({"layers": _ranges([i for i in range(layers) if i % every]), "shared_cache": True})
    crossed = fields.get(family.crossed)
    if isinstance(crossed, list) and all(type(place) is int and 0 <= place < layers for place in crossed) and crossed:
        names.append(family.crossed)
        listed.append({"layers": _ranges(sorted(crossed)), "cross": True})
    if listed:
        yield _with_variants(listed, tuple(names), found)


def _by_number(fields: Values, family: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Dimensions that single layers have of their own, by the number of the layer, as files of newer versions of transformers say it."""
    each = layers_by_number(fields, layers_of(found))
    keys = {name: key for key, names in family.names.items() if key in OF_LAYERS for name in names}
    own = {number: {keys[name]: value for name, value in values.items() if name in keys} for number, values in (each or {}).items()}
    differing = [
        {key: value for key, value in own.get(number, {}).items() if key not in found or value != found[key].value}
        for number in range(layers_of(found))
    ]
    yield from _in_variants(differing, (BY_NUMBER,), found)


def _automatic(fields: Values, _: Family, found: Mapping[str, Setting]) -> Iterator[Setting]:
    """Dimensions that a file leaves to others with the word auto, or does not give."""
    sizes = {key: whole(found[key].value) if key in found else 0 for key in ("hidden", "ssm.heads")}
    expand, rank = next((fields[name] for name in ("mamba_expand", "expand") if whole(fields.get(name))), 2), found.get("ssm.step_rank")
    head = found.get("ssm.head_dim")
    if head is not None and head.value == "auto" and all(sizes.values()):
        inner = whole(fields.get("mamba_d_ssm")) or expand * sizes["hidden"]
        yield replace(head, value=inner // sizes["ssm.heads"])
    if rank is not None and rank.value == "auto" and sizes["hidden"]:
        yield replace(rank, value=-(-sizes["hidden"] // 16))
    yield from _shifted_sizes(found, sizes["hidden"])
    heads = found.get("ssm.heads")
    if heads is not None and heads.value == "auto" and head is not None and whole(head.value):
        yield replace(heads, value=expand * sizes["hidden"] // head.value)
    patch = found["image.patch"].value if "image.patch" in found else None
    if isinstance(patch, list) and len(patch) == 3 and all(map(whole, patch)) and patch[1] == patch[2]:  # of a video, its frames first
        yield replace(found["image.patch"], value=patch[2])
        yield replace(found["image.patch"], key="image.frame_patch", value=patch[0])
    image = [whole(found[key].value) if key in found else 0 for key in ("image.size", "image.patch")]
    if all(image) and "image.compression" not in found:  # pixels beyond the last whole patch are left out
        yield replace(found["image.size"], value=image[0] // image[1] * image[1])
    ffn = found.get("ffn")
    if fields.get("block_auto_adjust_ff_dim") is True and ffn is not None and whole(ffn.value):  # LFM2: two thirds, rounded up
        multiple, factor = whole(fields.get("block_multiple_of")) or 256, fields.get("block_ffn_dim_multiplier") or 1.0
        yield replace(ffn, value=-(-int(factor * (2 * ffn.value // 3)) // multiple) * multiple)


def _shifted_sizes(found: Mapping[str, Setting], hidden: int) -> Iterator[Setting]:
    """Heads of RWKV, which share out the elements of a token, and the width of its channel mixing, 3.5 times that of a token in 32s."""
    kind, head = found.get("ssm.kind"), found.get("ssm.head_dim")
    if kind is None or kind.value not in SHIFTS or head is None or not whole(head.value):
        return
    for key in ("ssm.heads", "ssm.groups"):
        yield replace(head, key=key, value=hidden // head.value, own=False)
    if kind.value != "rwkv7" and ("ffn" not in found or found["ffn"].value is None):
        yield Setting(key="ffn", value=hidden * 7 // 2 // 32 * 32)


def _without_experts(found: dict[str, Setting]) -> dict[str, Setting]:
    """Settings of a model whose file names the sizes of experts that no layer has; what all tokens pass is then its MLP."""
    pattern, count = found.get("ssm.pattern"), found.get("experts.count")
    single = "ssm.mlp" in found and pattern is not None and "experts" not in pattern.value
    if not single and (count is None or count.value not in (0, 1)):
        return found
    shared = found.get("experts.shared")
    kept = {key: setting for key, setting in found.items() if not key.startswith("experts.")}
    return kept if single or shared is None else {**kept, "ffn": replace(shared, key="ffn")}


def _of_file(fields: Values) -> Iterator[Setting]:
    """What files of any family say: dropout."""
    rates = tuple(name for name in fields if name in conventions().dropout and isinstance(fields[name], float) and fields[name] > 0)
    if rates:
        yield Setting(key="dropout", value=True, fields=rates)


def _headed(fields: Values, family: Family, kind: str) -> Iterator[Setting]:
    """What the architecture that a file names puts after the last layer."""
    last, given = ending(fields, family), ("architectures",) if fields.get("architectures") else ()
    pooled = {"pooler": True} if last in ("Model", *CLASSIFIERS) and kind in conventions().pooled else {}
    head = {"head": family.head} if family.head else HEADS.get(last, {})
    for key, value in {**head, **pooled}.items():
        yield Setting(key=key, value=value, fields=given)
