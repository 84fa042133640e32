"""What is wrong with a config.json: fields, with sentences that say what was expected."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping

from crossflow.base import files
from crossflow.base.limits import LAYERS, shown
from crossflow.workload.conventions import (
    BY_NUMBER,
    CLASSIFIERS,
    LAYER_KINDS,
    MIXERS,
    OF_BLOCKS,
    OF_LAYERS,
    PERIODS,
    PLACES,
    PLAIN_LAYERS,
    Family,
    Setting,
    Values,
    conventions,
    ending,
    flat,
    kind_of,
    layers_by_number,
    layers_of,
    lettered,
    numbers_of_layers,
    whole,
    with_experts,
)


def too_deep(found: Mapping[str, Setting]) -> Iterator[tuple[str, str]]:
    """More layers than any model may have, before anything is done for each."""
    layers = found.get("layers")
    if layers is not None and whole(layers.value) > LAYERS:
        told = f"a model has at most {LAYERS:,} layers, got {shown(layers.value)} by {' and '.join(layers.fields)}"
        yield layers.fields[0], told


def endless(fields: Values) -> Iterator[tuple[str, str]]:
    """Fields that may matter and hold numbers that are not finite; those that do not, such as limits of time steps, often do."""
    for name, value in fields.items():
        odd = [number for _, number in files.walk(value) if isinstance(number, float) and not math.isfinite(number)]
        if odd and name not in conventions().no_cost:
            yield name, f"expected finite numbers, got {json.dumps(odd[0])}"


def wrong(fields: Values, family: Family, kind: str, found: Mapping[str, Setting], given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Fields, with sentences on what is wrong with them."""
    last = ending(fields, family)
    if not family.head and last not in family.heads and not (last in CLASSIFIERS and "Model" in family.heads):
        known = ", ".join(f"...{ending}" for ending in family.heads)
        yield "architectures", f"{json.dumps(fields['architectures'])} is not modelled for model_type '{kind}'; known: {known}"
    yield from _missing(family, kind, found, given)
    yield from _asked(family, found, given)
    for setting in found.values():
        if setting.own:
            yield from _mistyped(setting)
    for name, values in family.demanded.items():
        value = fields.get(name)
        entries = value if isinstance(value, list) and not any(isinstance(one, list) for one in values) else [value]
        strange = [entry for entry in entries if entry is not None and entry not in values]
        if strange:
            yield name, f"{json.dumps(strange[0])} is not modelled; known: {', '.join(json.dumps(value) for value in values)}"
    for name, other in family.equal.items():
        if fields.get(other) is not None and fields.get(name) not in (None, fields[other]):
            yield name, f"{json.dumps(fields[name])} is not modelled where {other} = {json.dumps(fields.get(other))}"
    for name, key in family.listed.items():
        every = (whole(found[key].value) if key in found else 0) or 1
        if fields.get(name) and fields[name] != list(range(every - 1, layers_of(found), every)):
            yield name, f"{json.dumps(fields[name])} is not modelled where {key} = {every}"
    for name, (first, other, key) in family.leading.items():
        many, layers = (whole(found[one].value) if one in found else 0 for one in (key, "layers"))
        if fields.get(name) is not None and fields[name] != [first] * many + [other] * (layers - many):
            yield name, f"expected {many} layers of kind {first} and {layers - many} of kind {other}, as other fields say"
    for name in (name for names in family.patterns.values() for name in names):
        if fields.get(name) is not None and (not isinstance(fields[name], list) or len(fields[name]) != layers_of(found)):
            yield name, f"expected an entry for each of {layers_of(found)} layers, got {json.dumps(fields[name])[:60]}"
    for name, key in family.last.items():
        every = (whole(found[key].value) if key in found else 0) or 1
        if fields.get(name) not in (None, every - 1):
            yield name, f"{json.dumps(fields[name])} is not modelled where {key} = {every}; known: {every - 1}"
    yield from _unruly(fields, family)
    if family.mixers:
        yield from _unmixed(fields, family, layers_of(found))
    if {"ssm.heads", "ssm.head_dim"} <= set(found):
        yield from _unexpanded(fields, found)
    if family.window:
        yield from _unlike(fields, layers_of(found))
    crossed, layers = fields.get(family.crossed), layers_of(found)
    if family.crossed and not (isinstance(crossed, list) and crossed and all(type(one) is int and 0 <= one < layers for one in crossed)):
        yield family.crossed, f"expected numbers of layers from 0 to {layers - 1}, got {json.dumps(crossed)}"
    if family.blocks:
        yield from _unblocked(fields, family, layers_of(found))
    yield from _unnumbered(fields, family, layers_of(found))
    if fields.get(PLAIN_LAYERS) is not None and not numbers_of_layers(fields[PLAIN_LAYERS], layers_of(found)):
        yield PLAIN_LAYERS, f"expected numbers of layers from 0 to {layers_of(found) - 1}, got {json.dumps(fields[PLAIN_LAYERS])[:60]}"
    for name in family.routed:
        if fields.get(name) is not None and with_experts(fields[name], layers_of(found)) is None and fields[name] != 1:
            marks = f"a mark for each of {layers_of(found)} layers (0 or 1, dense or sparse)"
            yield name, f"expected {marks}, or numbers of layers; got {json.dumps(fields[name])[:60]}"


def _unnumbered(fields: Values, family: Family, layers: int) -> Iterator[tuple[str, str]]:
    """What is wrong with dimensions that single layers have of their own."""
    each = layers_by_number(fields, layers)
    if each is None:
        told = f"expected fields of single layers by their numbers from 0 to {layers - 1}"
        yield BY_NUMBER, f"{told}, got {json.dumps(fields[BY_NUMBER])[:60]}"
        return
    usual = {names[0]: names for key, names in family.names.items() if key in OF_LAYERS}
    known = {name for names in usual.values() for name in names}
    for number, own in each.items():
        for name, value in own.items():
            if name not in known:
                listed = ", ".join(sorted(usual))
                yield BY_NUMBER, f"{name} of layer {number} is not modelled; known: {listed}; leave it out if it changes no cost"
            elif not whole(value):
                yield BY_NUMBER, f"{name} of layer {number}: expected a whole number of at least 1, got {json.dumps(value)}"


def _unblocked(fields: Values, family: Family, layers: int) -> Iterator[tuple[str, str]]:
    """What is wrong with a list of layers that each are made in their own way."""
    blocks = fields.get(family.blocks)
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        yield family.blocks, f"expected a list of layers, each with its attention and ffn, got {json.dumps(blocks)[:60]}"
    elif len(blocks) != layers:
        yield family.blocks, f"expected an entry for each of {layers} layers, got {len(blocks)}"
    else:
        for i, block in enumerate(blocks):
            whole = flat(block, ("attention", "ffn"))
            odd = [key for key, value in whole.items() if value and key.partition(".")[2] not in OF_BLOCKS]
            yield from ((family.blocks, f"{key} = {json.dumps(whole[key])} of layer {i} is not modelled; set it to null") for key in odd)


def _unmixed(fields: Values, family: Family, layers: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the field that says what mixes the tokens of layers."""
    name = next((name for name in family.mixers if fields.get(name) is not None), "")
    value = fields.get(name)
    if name in PLACES:
        first = PLACES[name]
        if not isinstance(value, list) or not all(type(place) is int and first <= place < layers + first for place in value):
            yield name, f"expected numbers of layers from {first} to {layers + first - 1}, got {json.dumps(value)}"
    elif isinstance(value, list | str):
        other = [entry for entry in value if not (isinstance(entry, str | int) and entry in MIXERS)]
        if other:
            known = ", ".join(json.dumps(one) for one in MIXERS if isinstance(one, str) or type(one) is type(other[0]))
            yield name, f"{json.dumps(other[0])} is not modelled; known: {known}"
        elif len(value) != layers and name not in ("block_types", "_block_types"):  # which repeat
            yield name, f"expected an entry for each of {layers} layers, got {len(value)}"
    elif name and not whole(value):
        yield name, f"expected a whole number of at least 1, got {json.dumps(value)}"


def _unexpanded(fields: Values, found: Mapping[str, Setting]) -> Iterator[tuple[str, str]]:
    """Widths of a state space that its heads do not make up."""
    heads, width, hidden = (whole(found[key].value) if key in found else 0 for key in ("ssm.heads", "ssm.head_dim", "hidden"))
    inner, name = fields.get("mamba_d_ssm"), "mamba_d_ssm"
    if inner is None and fields.get("model_type") != "nemotron_h":  # whose heads alone count
        name = next((one for one in ("mamba_expand", "expand") if whole(fields.get(one))), "")
        inner = fields[name] * hidden if name else heads * width
    if inner is not None and heads and width and inner != heads * width:
        yield name, f"{inner} elements are not those of {heads} heads of {width}"


def _unlike(fields: Values, layers: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the fields that say which layers see a window."""
    listed = any(isinstance(fields.get(name), list) for name in LAYER_KINDS)
    for name in PERIODS:
        if fields.get(name) is not None and not whole(fields[name]) and not lettered(fields[name]) and not listed:
            yield name, f"expected a whole number of at least 1, got {json.dumps(fields[name])}"
    lists = {name: fields[name] if isinstance(fields[name], list) else [fields[name]] for name in LAYER_KINDS if fields.get(name)}
    for name, entries in lists.items():
        other = [entry for entry in entries if not kind_of(name, entry)]
        if other:
            yield name, f"{json.dumps(other[0])} is not modelled; known: {', '.join(map(json.dumps, LAYER_KINDS[name]))}"
        elif len(entries) != layers:
            yield name, f"expected an entry for each of {layers} layers, got {len(entries)}"
    if len({tuple(kind_of(name, entry) for entry in entries) for name, entries in lists.items()}) > 1:
        yield "no_rope_layers", "is not modelled where layer_types makes other layers local"


def _missing(family: Family, kind: str, found: Mapping[str, Setting], given: Collection[str]) -> Iterator[tuple[str, str]]:
    """All dimensions that are not there, in one sentence; a product is missing only with one of its factors."""
    routed = not family.mixers or ("ssm.pattern" in found and any(key.startswith("experts.") for key in found))
    lacking = {group for group in family.loose if "." not in group and not any(key.startswith(f"{group}.") for key in found)}
    lacking |= set() if routed else {"experts"}
    lacking |= {"ffn"} if _all_routed(found) else set()
    optional = {*conventions().optional, *family.products, *family.loose, *(key for key in family.names if key.split(".")[0] in lacking)}
    needed = [aliases for key, aliases in family.names.items() if key not in found and key not in optional and key not in given]
    names = list(dict.fromkeys(f"'{aliases[0]}'" + (f" (or '{aliases[1]}')" if len(aliases) > 1 else "") for aliases in needed))
    if names:
        many = f"keys {', '.join(names)} are" if len(names) > 1 else f"key {names[0]} is"
        keys = [key for key, aliases in family.names.items() if aliases in needed and key not in found and key not in optional]
        cure = f", or give {', '.join(f'workload.{key}' for key in dict.fromkeys(keys))}"
        yield "", f"the {many} missing; a file of model_type '{kind}' needs {'them' if len(names) > 1 else 'it'}{cure}"


def _all_routed(found: Mapping[str, Setting]) -> bool:
    """Whether all layers have experts of a width of their own, so that no layer has the MLP of the model."""
    dense = found["experts.dense_layers"].value if "experts.dense_layers" in found else 0
    every = found["experts.every"].value if "experts.every" in found else 1
    return {"experts.count", "experts.ffn"} <= set(found) and dense == 0 and every == 1


def _asked(family: Family, found: Mapping[str, Setting], given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Keys that a scenario gives because files of the family do not say them, in one sentence."""
    lacking = [key for key in family.asked if key not in found and key not in given]
    if lacking:
        keys = " and ".join(", ".join(f"workload.{key}" for key in lacking).rsplit(", ", 1))
        example = ", ".join(f"{family.asked[key]:,}".replace(",", "") for key in lacking)
        what = "videos are" if "image.frames" in family.asked else "pictures are"
        yield "", f"the file does not say how large {what}: give {keys}, such as {example} (pixels of the picture, not latents)"
    sizes = {"layers": family.sums.get("layers", ()), "hidden": family.products.get("hidden", ())}
    names = [f"'{name}'" for key, parts in sizes.items() if key not in found and key not in given for name in parts]
    if names:
        yield "", f"the keys {', '.join(names)} are needed; at least one is missing, or is no whole number of at least 1"


def _mistyped(setting: Setting) -> Iterator[tuple[str, str]]:
    """A value that is not of its key's type."""
    value, least = setting.value, 0 if setting.key in conventions().from_zero else 1
    if setting.key in conventions().words:
        expected, right = "text", isinstance(value, str)
    elif setting.key in conventions().factors:
        expected, right = "a number above 0", type(value) in (int, float) and value > 0
    elif setting.key in conventions().switches:
        expected, right = "true or false", isinstance(value, bool)
    else:
        expected, right = f"a whole number of at least {least}", type(value) is int and value >= least
    if not right:
        yield setting.fields[0], f"expected {expected}, got {json.dumps(value)}"


def _unruly(fields: Values, family: Family) -> Iterator[tuple[str, str]]:
    """Switches whose value is of another type than those that the rules know."""
    known = {name: value for rule in family.rules for name, value in rule.when.items()}
    for name, example in known.items():
        value = fields.get(name)
        if value is not None and type(value) is not type(example):
            expected = {bool: "true or false", str: "text"}.get(type(example), "a whole number")
            yield name, f"expected {expected}, got {json.dumps(value)}"
