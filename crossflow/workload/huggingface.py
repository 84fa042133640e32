"""Reading a model's ``config.json``, as Hugging Face keeps it, into the keys of a transformer's file; offline.

What a family of models calls its dimensions, and what holds for all of it, is data: one `Family` each, in
``data/huggingface.yaml``. A file whose family is not known, or that sets a switch that is not modelled, is an error that says
what was read; every field of a file that is read comes back with what became of it.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossflow import files
from crossflow.errors import Problem, SpecError, with_article
from crossflow.files import Document, FileModel, Place
from crossflow.limits import Whole, json_value
from crossflow.workload.quantised import Stored, stored
from crossflow.workload.spec import TransformerSpec
from crossflow.workload.towers import Tower, towers

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FieldUse:
    """One field of a file, and what it became: our keys with their values, or why it is not used."""

    key: str
    value: Any
    became: str


# ---------------------------------------------------------------------------------------------- the families


class Rule(FileModel):
    """Our keys that follow where fields of a file have some values."""

    when: Values
    then: Values


class Family(FileModel):
    """How the files of one `model_type` are read, as the head of ``data/huggingface.yaml`` says; later fields win over earlier ones."""

    fixed: Mapping[str, Any] = {}
    names: Mapping[str, tuple[str, ...]]
    products: Mapping[str, tuple[str | Whole, ...]] = {}
    shifts: Mapping[str, tuple[str, Whole]] = {}
    rules: tuple[Rule, ...] = ()
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
    loose: tuple[str, ...] = ()
    heads: tuple[str, ...]
    head: str = ""
    firsts: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()


class Ingredient(FileModel):
    """A base that a file of an unknown family is read like, where it has any of some fields, and what is assumed with it."""

    having: tuple[str, ...] = ()
    like: str
    assumed: str = ""


class Conventions(FileModel):
    """What ``data/huggingface.yaml`` says beside the families, each explained there."""

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
    return files.validate(Conventions, files.read_yaml(Path(files.__file__).parent / "data" / "huggingface.yaml"))


@functools.cache
def families() -> Mapping[str, Family]:
    """The families by their `model_type`."""
    return {name: _family(conventions().described(name)) for name in conventions().families}


def _family(given: Values) -> Family:
    """A family by its whole description."""
    return Family.model_validate({**given, "names": {key: aliases for key, aliases in given["names"].items() if aliases}})


def _pieces(config: Values) -> list[Ingredient]:
    """What a file of an unknown family is read like: as a plain decoder, and for what its fields tell beyond."""
    there = {name for name, value in config.items() if value not in (None, 0, False, [], {})}
    return [piece for piece in conventions().composed if not piece.having or there & set(piece.having)]


def _nearest(config: Values) -> str:
    """The known family that reads most of a file's fields and lacks least."""

    def likeness(family: Family) -> int:
        read = {name for aliases in family.names.values() for name in aliases} | {name for rule in family.rules for name in rule.when}
        needed = [aliases for key, aliases in family.names.items() if key not in conventions().optional]
        return len(read & set(config)) - 2 * sum(not set(aliases) & set(config) for aliases in needed)

    return max(families(), key=lambda name: likeness(families()[name]))


DTYPES = tuple(
    Rule(when={name: theirs}, then={"dtype": ours})
    for name in ("torch_dtype", "dtype")
    for theirs, ours in (("bfloat16", "bf16"), ("float16", "fp16"))
)
WIDE = ("float32", "float64")  # in which files keep weights that nobody computes in
# The ending of an architecture's name -> the head that it puts on the model.
HEADS: Mapping[str, Values] = {
    "ForCausalLM": {"head": "language"},
    "LMHeadModel": {"head": "language"},
    "LMHeadCustomModel": {"head": "language"},
    "ForConditionalGeneration": {"head": "language"},
    "ForMaskedLM": {"head": "masked"},
    "ForPreTraining": {"head": "masked", "pooler": True},
    "ForImageClassification": {"head": "classifier"},
    "Model": {"head": "none"},
}
UNKNOWN = "not used: not known to crossflow"
MTP_NOTE = "layers of multi-token prediction run in training only; a service that guesses with them has serving.speculation"
# What files call layers that see a window and layers that see all tokens; in `no_rope_layers` 1 is a layer with rotary positions.
LAYER_KINDS: Mapping[str, Mapping[Any, str]] = {
    "layer_types": {"sliding_attention": "local", "chunked_attention": "local", "full_attention": "global"},
    "no_rope_layers": {1: "local", 0: "global"},
    "hybrid_layer_pattern": {1: "local", 0: "global"},
}
# What a layer that is made in its own way may say of its attention and MLP.
OF_BLOCKS = {"n_heads_in_group", "num_key_value_heads", "no_op", "ffn_mult", "intermediate_size", "hidden_act", "gated"}
# Whether layers have experts, as lists say it.
ROUTED_LAYERS: Mapping[Any, bool] = {1: True, 0: False, "sparse": True, "dense": False}
# What hybrid models call layers, each with what mixes their tokens; layers of one part may have an MLP or experts alone.
MIXERS: Mapping[Any, str] = {
    "M": "ssm", "*": "attention", "-": "mlp", "E": "experts", "mamba": "ssm", "linear_attention": "ssm", "attention": "attention",
    "full_attention": "attention", "mlp": "mlp", "moe": "experts", "conv": "ssm", 0: "ssm", 1: "attention",
}  # fmt: skip
# Fields with the numbers of the layers of a hybrid that attend, and the number of the first layer.
PLACES: Mapping[str, int] = {"attn_layer_indices": 0, "full_attn_idxs": 0, "linear_attn_config.full_attn_layers": 1}
# What lists call kinds of layers of sparse attention: those of one indexer, and ratios of compressed entries.
MARKS: Mapping[Any, Any] = {
    1: "full", 0: "dense", "full_attention": "dense", "minimax_m3_sparse": "full", "deepseek_sparse_attention": "full",
    "sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128,
}  # fmt: skip
# Where a file of several models has its language model.
INNER = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"))
SUFFIXES = ("_text", "_text_model", "_vl", "_vl_text")  # of families' names, of the parts of larger models
PERIODS = (
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "no_rope_layer_interval",
    "global_attn_every_n_layers",
)  # each so-many-th layer is global


# ---------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A key of ours, its value, and the fields that it comes from; `own` where the value is what a field says, not a rule."""

    key: str
    value: Any
    fields: tuple[str, ...] = ()
    own: bool = False


CONFIG = "config.json"  # what describes a model in a folder of Hugging Face


def huggingface_document(path: str | Path, *, service: bool = False) -> tuple[Document, list[FieldUse]]:
    """Read a ``config.json`` into the keys of a transformer's file.

    Parameters
    ----------
    path : the file.
    service : whether the model is served, in the type that the file keeps its weights in; training has its own.

    Returns
    -------
    document : keys of `TransformerSpec`, for one sample of the longest sequence that the file allows; a scenario lays its
        own batch, sequence and task over it.
    uses : every field of the file, in its order, with what it became.

    Raises
    ------
    SpecError
        If the file is not whole, of an unknown family or architecture, lacks dimensions, or sets what is not modelled.
    """
    file = str(path)
    text = files.read_text(file)
    config = _parsed(text, file)
    at = _place(config)
    own, lines = _own(config, at), _lines(text)

    def problem(name: str, told: str) -> Problem:
        outer = ".".join((*at, "")) if name and at and name.partition(".")[0] in _within(config, at) else ""
        return Problem(file=file, line=lines.get(name.rpartition(".")[2]), path=outer + name, message=told)

    kind = _family_of(own)
    known = kind in families()
    pieces = [] if known else _pieces(own)
    if not known and (kind in conventions().refused or not _is_decoder(own, config)):
        raise SpecError([problem("model_type", _unknown(own))])
    family = families()[kind] if known else _family(conventions().merged({"like": [piece.like for piece in pieces]}))
    fields = _trimmed(_flat(own, family.nested), family)
    if endless := [problem(name, told) for name, told in _endless(fields)]:
        raise SpecError(endless)
    found = _settings(fields, family, kind, f"{kind} of {Path(file).name}")
    if not service:
        found.pop("ssm.state_dtype", None)
    wrong = [problem(name, told) for name, told in dict.fromkeys(_wrong(fields, family, kind, found))]
    kept = Stored() if wrong else _kept(fields, _document(file, found, lines))
    if service:
        found |= {setting.key: setting for setting in _of_weights(kept)}
    uses = list(_uses(config, at, family, found, kept))
    strange = {use.key: use.value for use in uses if use.became == UNKNOWN and not _idle(use.value)}
    costly = [key for key, value in strange.items() if not (isinstance(value, float) and abs(value) < 1.0)]
    if not known and (costly or wrong):
        wrong.insert(0, problem("model_type", _not_composed(own, costly)))
    if wrong:
        raise SpecError(wrong)
    if service and isinstance(fields.get("quantization_config"), Mapping) and kept.weight is None and not kept.told:
        strange["quantization_config (give weight_dtype)"] = None
    beside = list(towers(config, at))
    told = [*(kept.told if service else ()), *_left_out(uses, fields)]
    notes = " ".join(_notes(fields, Path(file).name, list(strange), [] if known else pieces, beside, told))
    if notes:
        found["notes"] = _Setting(key="notes", value=notes)
    return _document(file, found, lines), uses


def _place(config: Values) -> tuple[str, ...]:
    """Where a file has its language model; empty where its own fields are those of the model."""
    return next((at for at in INNER if isinstance(_within(config, at), Mapping)), ())


def _within(config: Values, at: Iterable[str]) -> Any:
    """What lies at a place of a file, None where there is nothing."""
    for name in at:
        config = config.get(name) if isinstance(config, Mapping) else None  # type: ignore[assignment]
    return config


def _own(config: Values, at: tuple[str, ...]) -> Values:
    """The fields of the language model; of the outer ones those that count for it too."""
    if not at:
        return config
    outer = [config, *(_within(config, at[:i]) for i in range(1, len(at)))]
    shared = {key: one[key] for one in outer for key in conventions().shared if key in one}
    own = {**shared, **_within(config, at)}
    return own if own.get("model_type") else {**own, "model_type": config.get("model_type")}


def family_of(config: Values) -> str:
    """The family that a whole file is read as, known or not."""
    return _family_of(_own(config, _place(config)))


def _family_of(config: Values) -> str:
    """The family of a file by its `model_type`, whose endings may name a part of a larger model, or by a field that only it has."""
    kind = config.get("model_type")
    if not kind:
        found = next((name for field_, name in conventions().untyped.items() if field_ in config), None)
        return str(found or kind)
    names = [str(kind), *(str(kind).removesuffix(suffix) for suffix in SUFFIXES)]
    names = [conventions().aliases.get(name, name) for name in names]
    return next((name for name in names if name in families() or name in conventions().refused), str(kind))


def _is_decoder(config: Values, outer: Values) -> bool:
    """Whether a file of an unknown family is one of a causal language model, by its architecture and its dimensions."""
    architectures = config.get("architectures") or outer.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    sizes = conventions().bases["any"]["names"]
    whole = all(any(config.get(alias) for alias in sizes[key]) for key in ("layers", "hidden", "heads", "vocabulary"))
    return whole and name.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")) and not config.get("is_encoder_decoder")


def _idle(value: Any) -> bool:
    """Whether a field that is not known says nothing that could cost: none, no, an empty list, a name."""
    return value is None or isinstance(value, str) or value in (False, 0, [], {})


def _not_composed(config: Values, strange: Iterable[str]) -> str:
    """Why a file of an unknown family cannot be read by its fields, and what to do."""
    names = ", ".join(strange)
    unknown = f"model_type {json.dumps(config.get('model_type'))} is not known"
    cure = f"give model_type {json.dumps(_nearest(config))}, the nearest known family"
    if not names:
        return f"{unknown}, and its fields do not make a decoder; mend them, or {cure}"
    return f"{unknown}, nor are its fields {names}; leave out those that change no cost, or {cure}"


def _left_out(uses: Iterable[FieldUse], fields: Values) -> Iterator[str]:
    """Sentences on fields that would change the cost and are not counted, where they say anything."""
    known, longest = conventions(), _count(fields.get("max_position_embeddings"))
    for use in uses:
        name = use.key.rpartition(".")[2]
        if name == "sliding_window" and (fields.get("use_sliding_window") is False or _count(use.value) >= longest):
            continue
        if name in known.told and not _idle(use.value) and use.became == f"not used: {known.not_counted[name]}":
            yield f"{name}: {known.not_counted[name]}"


def _notes(
    fields: Values, name: str, strange: Sequence[str], pieces: Sequence[Ingredient], beside: Sequence[Tower], told: Sequence[str]
) -> Iterator[str]:
    """Sentences on what is not described, or not as the file might be understood."""
    if pieces:
        assumed = "; ".join(piece.assumed for piece in pieces if piece.assumed)
        yield f"model_type {json.dumps(fields.get('model_type'))} is not known: {name} is read by its fields. Assumed: {assumed}."
    if strange:
        yield f"Fields of {name} that are not known are left out: {', '.join(strange)}."
    if beside:
        listed = " and ".join(str(tower) for tower in beside)
        yield f"Only the language model of {name} is described, not its {listed}."
    if told:
        yield f"Of {name} is not counted as it is: {'; '.join(dict.fromkeys(told))}."
    stored = next((fields[key] for key in ("torch_dtype", "dtype") if fields.get(key) in WIDE), None)
    if stored:
        yield f"{name} stores weights in {stored}; they are computed with in bf16, as frameworks do (workload.dtype changes it)."


def file_notes(spec: TransformerSpec, given: Values) -> Iterator[str]:
    """Sentences on what a workload takes from a ``config.json`` where it gives nothing itself.

    Parameters
    ----------
    spec : the workload as it was read.
    given : its own keys, ``model`` among them; other models than a ``config.json`` have no notes.
    """
    name = Path(str(given["model"])).name
    if not name.endswith(".json"):
        return
    prompted = spec.serves and spec.prompt  # which counts in the place of the sequence
    if "sequence" not in given and spec.image is None and not prompted:
        yield f"sequence = {spec.sequence} is the longest that {name} allows; give workload.sequence to change it"
    if "global_batch" not in given and not spec.arrives:  # then as many are in flight as come and go
        yield f"global_batch = {spec.global_batch} because {name} gives none; give workload.global_batch to change it"
    if spec.notes and "notes" not in given:
        yield spec.notes


def _parsed(text: str, file: str) -> dict[str, Any]:
    """The object that a file holds."""
    try:
        config = json_value(text, infinite=True)  # as Python writes them into files
    except json.JSONDecodeError as error:
        early = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        reason = "it ends before it is complete; was it copied whole?" if early else f"{error.msg[0].lower()}{error.msg[1:]}"
        raise SpecError([Problem(file=file, line=error.lineno, message=f"not valid JSON: {reason}")]) from None
    except ValueError as error:
        raise SpecError([Problem(file=file, message=f"not valid JSON: {error}")]) from None
    if not isinstance(config, dict):
        raise SpecError([Problem(file=file, message=f"expected the fields of a model, got {with_article(type(config).__name__)}")])
    return config


def _lines(text: str) -> dict[str, int]:
    """Lines of the fields whose name stands in the file once, so that it is sure which is meant."""
    lines: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r'"([^"\\]+)"\s*:', line):
            lines.setdefault(name, []).append(number)
    return {name: found[0] for name, found in lines.items() if len(found) == 1}


def _unknown(config: Values) -> str:
    """What to say of a file whose family is not known: what was read of it, and what is known."""
    kind = config.get("model_type")
    if _family_of(config) in conventions().refused:
        return f"model_type {json.dumps(kind)} is refused: {conventions().refused[_family_of(config)]}"
    names = ("architectures", *(name for key, aliases in conventions().bases["any"]["names"].items() if key != "title" for name in aliases))
    read = ", ".join(f"{name} = {json.dumps(config[name])}" for name in names if config.get(name) is not None)
    what = "the key 'model_type' is missing" if kind is None else f"unknown model_type {json.dumps(kind)}"
    return f"{what}; read: {read or 'no dimensions'}; known: {', '.join(families())}"


def _flat(config: Values, nested: Iterable[str]) -> dict[str, Any]:
    """Fields by name, those of some mappings as ``outer.inner``."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value.items() if name in nested and isinstance(value, Mapping) else ()
        flat.update({f"{name}.{key}": below for key, below in inner} or {name: value})
    return flat


def _trimmed(fields: dict[str, Any], family: Family) -> dict[str, Any]:
    """Fields whose lists of layers end with those of the main model; some files list the layers that predict further tokens too."""
    counts = ([_count(fields.get(name)) for name in family.names.get(key, ())] for key in ("layers", "mtp_layers"))
    layers, further = (max(found, default=0) for found in counts)
    lists = {*LAYER_KINDS, *family.mixers, *family.routed, *(name for names in family.patterns.values() for name in names)}
    longer = {name for name in lists & set(fields) if isinstance(fields[name], list) and layers < len(fields[name]) <= layers + further}
    return {name: value[:layers] if name in longer else value for name, value in fields.items()}


def _settings(fields: Values, family: Family, kind: str, title: str) -> dict[str, _Setting]:
    """Settings by our key; what comes later in a family's description replaces what comes earlier."""
    plain = {"model": "transformer", "global_batch": 1, "title": title, **family.fixed}
    found = {key: _Setting(key=key, value=value) for key, value in plain.items()}
    for read in (
        _named,
        _padded,
        _products,
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
    ):
        found |= {setting.key: setting for setting in read(fields, family, found)}
    found |= {setting.key: setting for setting in (*_of_file(fields), *_headed(fields, family, kind))}
    return _without_lacking(family, _without_experts(found))


def _without_lacking(family: Family, found: dict[str, _Setting]) -> dict[str, _Setting]:
    """Settings without groups that files of the family may leave out, where the one that says how many there are is none."""
    counts = {"experts": "experts.count", "per_layer": "per_layer.width"}
    none = {group for group in family.loose if group in counts and not (counts[group] in found and found[counts[group]].value)}
    return {key: setting for key, setting in found.items() if key.split(".")[0] not in none or "." not in key}


def _named(fields: Values, family: Family, _: Mapping[str, _Setting]) -> Iterator[_Setting]:
    for key, aliases in family.names.items():
        switch = key in conventions().switches
        name = next((alias for alias in aliases if fields.get(alias) is not None and (switch or fields[alias] is not False)), None)
        if name is not None:
            # Labels of classes and kinds of layers stand in for their number.
            listed = key in ("image.classes", "layers") and isinstance(fields[name], Mapping | list)
            value = len(fields[name]) if listed else _alike(fields[name])
            value = value[0] if name in family.firsts and isinstance(value, list) and value else value
            yield _Setting(key=key, value=value, fields=(name,), own=True)


def _alike(value: Any) -> Any:
    """A number that a list gives for each layer, or each kind of tokens, where all are one."""
    same = isinstance(value, list) and value and all(type(one) is int and one == value[0] for one in value)
    return value[0] if same else value


def _padded(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """Sizes that are rounded up to a multiple."""
    for key, name in family.padded.items():
        if (multiple := _count(fields.get(name))) and key in found and _count(found[key].value):
            yield replace(found[key], value=-(-found[key].value // multiple) * multiple, fields=(*found[key].fields, name))


def _listed(_: Values, __: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """Dimensions that a list gives for each layer: those of the first, and variants."""
    for key in ("ffn", "heads", "kv_heads"):
        value = found[key].value if key in found else None
        if isinstance(value, list) and len(value) == _layers(found) and all(type(one) is int and one > 0 for one in value):
            yield replace(found[key], value=value[0])
            yield from _in_variants([{} if one == value[0] else {key: one} for one in value], found[key].fields, found)


def _products(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    given = {name: _Setting(key="", value=value, fields=(name,)) for name, value in fields.items() if value is not None}
    assumed = {name: _Setting(key="", value=value) for name, value in family.assumed.items()}
    known = {**assumed, **given, **found}
    for key, parts in family.products.items():
        factors = [_factor(part, known) for part in parts]
        numbers = [factor for factor in factors if factor is not None and type(factor.value) is int]
        if key not in found and len(numbers) == len(parts):
            value = math.prod(factor.value for factor in numbers)
            yield _Setting(key=key, value=value, fields=tuple(name for factor in numbers for name in factor.fields), own=True)


def _factor(part: str | int, known: Mapping[str, _Setting]) -> _Setting | None:
    """A number, or a key or field that has one; of several, parted by bars, the first that is there."""
    if isinstance(part, int):
        return _Setting(key="", value=part)
    found = next((known[name] for name in part.split("|") if name in known), None)
    return None if found is None else replace(found, value=_alike(found.value))


def _shifted(_: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    for key, (source, added) in family.shifts.items():
        if source in found and type(found[source].value) is int:
            yield replace(found[source], key=key, value=found[source].value + added)


def _ruled(fields: Values, family: Family, _: Mapping[str, _Setting]) -> Iterator[_Setting]:
    known = {**family.assumed, **{name: value for name, value in fields.items() if value is not None}}
    for rule in (*DTYPES, *family.rules):
        if all(name in known and known[name] == value for name, value in rule.when.items()):
            given = tuple(name for name in rule.when if name in fields)
            yield from (_Setting(key=key, value=value, fields=given) for key, value in rule.then.items())


def _windowed(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """The window of attention and the layers that have it; nothing where no layer has one."""
    known = {name: value for name, value in {**family.assumed, **fields}.items() if value is not None}
    kinds, name = _layer_kinds(known, _layers(found))
    if family.window not in known or not known.get("use_sliding_window", True) or "local" not in kinds:
        return
    given = tuple(field for field in (family.window, "use_sliding_window") if field in fields)
    yield _Setting(key="window.size", value=known[family.window], fields=given, own=bool(given))
    yield _Setting(key="window.pattern", value=kinds, fields=(name,) if name in fields else ())
    yield from (_Setting(key=key, value=value) for key, value in family.local.items())


def _layer_kinds(known: Values, layers: int) -> tuple[list[str], str]:
    """Kinds of successive layers as the shortest list that repeats, and the field that says them."""
    for name in LAYER_KINDS:
        if isinstance(known.get(name), list) and known[name]:
            return _repeating([_kind(name, entry) for entry in known[name]]), name
    for name in PERIODS:
        if every := _count(known.get(name)):
            kinds = ["local"] * (every - 1)
            return ["global", *kinds] if name == "global_attn_every_n_layers" else [*kinds, "global"], name
    if first := _count(known.get("max_window_layers")):
        return ["global"] * min(first, layers) + ["local"] * (layers - first), "max_window_layers"
    return ["local"], ""


def _repeating(kinds: list[str]) -> list[str]:
    """The shortest list that repeats to a longer one."""
    period = next(n for n in range(1, len(kinds) + 1) if all(kind == kinds[i % n] for i, kind in enumerate(kinds)))
    return kinds[:period]


def _patterned(fields: Values, family: Family, _: Mapping[str, _Setting]) -> Iterator[_Setting]:
    for key, names in family.patterns.items():
        name = next((name for name in names if isinstance(fields.get(name), list) and fields[name]), None)
        if name is not None:
            ratios = key.endswith(".ratios") and all(type(entry) is int for entry in fields[name])
            kinds = (
                fields[name] if ratios else [MARKS.get(entry, entry) if isinstance(entry, int | str) else entry for entry in fields[name]]
            )
            yield _Setting(key=key, value=_repeating(kinds), fields=(name,))


def _mixed(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """What mixes the tokens of successive layers of a hybrid model."""
    if not family.mixers:
        return
    known = {name: value for name, value in {**family.assumed, **fields}.items() if value is not None}
    name = next((name for name in family.mixers if name in known), "")
    value, layers = known.get(name, []), range(_layers(found))
    if name in PLACES or not name:
        kinds = ["attention" if i + PLACES.get(name, 0) in value else "ssm" for i in layers]
    elif every := _count(value):  # a period, and the one of its layers that attends
        place = known.get("attn_layer_offset", every - 1) if name == "attn_layer_period" else every - 1
        rest = len(layers) // every * every if name == "layer_group_size" else len(layers)  # layers of no whole group attend
        kinds = ["attention" if i % every == place or i >= rest else "ssm" for i in layers]
    else:
        kinds = [MIXERS.get(entry, "") for entry in (value if isinstance(value, list | str) else ())]
    if kinds and all(kinds):
        given = tuple(one for one in (name, "attn_layer_offset" if name == "attn_layer_period" else name) if one in fields)
        yield _Setting(key="ssm.pattern", value=_repeating(kinds), fields=tuple(dict.fromkeys(given)))


def _blocked(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """Layers that a search of architectures made each in its own way (Nemotron-NAS): those of the first kind, and variants of it."""
    blocks = fields.get(family.blocks)
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        return
    heads, hidden = (_count(found[key].value) if key in found else 0 for key in ("heads", "hidden"))
    each = [_block(block, heads, hidden) for block in blocks]
    usual = {key: next((one[key] for one in each if one.get(key)), None) for key in ("kv_heads", "ffn")}
    for key, value in usual.items():
        if value:
            yield _Setting(key=key, value=value, fields=(family.blocks,), own=True)
    differing = [{key: value for key, value in one.items() if value != usual.get(key, True)} for one in each]
    yield from _in_variants(differing, (family.blocks,), found)


def _block(block: Values, heads: int, hidden: int) -> dict[str, Any]:
    """What one of these layers has. The width of its MLP is rounded up to 256s (modeling_decilm.py of Llama-3_3-Nemotron-Super-49B)."""
    attention, ffn = (block.get(name) or {} for name in ("attention", "ffn"))
    group, multiple = _count(attention.get("n_heads_in_group")), ffn.get("ffn_mult")
    wide = -(-int(2 * multiple * hidden / 3) // 256) * 256 if isinstance(multiple, int | float) else 0
    own = {
        "attention": not attention.get("no_op", False),
        "mlp": not ffn.get("no_op", False),
        "kv_heads": _count(attention.get("num_key_value_heads")) or (heads // group if group else 0),
        "ffn": _count(ffn.get("intermediate_size")) or wide,
    }
    there = {"kv_heads": own["attention"], "ffn": own["mlp"]}
    return {key: value for key, value in own.items() if there.get(key, True)}


def _in_variants(differing: list[dict[str, Any]], fields: tuple[str, ...], found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """Variants of layers of which each has some values of its own, beside those that are there."""
    kinds = {json.dumps(own, sort_keys=True): own for own in differing if own}
    listed = [{"layers": _ranges([i for i, one in enumerate(differing) if one == own]), **own} for own in kinds.values()]
    if listed:
        yield _with_variants(listed, fields, found)


def _with_variants(listed: list[dict[str, Any]], fields: tuple[str, ...], found: Mapping[str, _Setting]) -> _Setting:
    """The variants that are there, and further ones."""
    before = found.get("variants", _Setting(key="", value=()))
    return _Setting(key="variants", value=[*before.value, *listed], fields=tuple(dict.fromkeys((*before.fields, *fields))))


def _ranges(places: list[int]) -> list[str]:
    """Numbers of layers as text, those that follow each other as ranges."""
    firsts = [i for i in places if i - 1 not in places]
    lasts = [i for i in places if i + 1 not in places]
    return [f"{first}-{last}" if last > first else f"{first}" for first, last in zip(firsts, lasts, strict=True)]


def _routed(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """Which layers have experts, where a list says it."""
    layers, name = _layers(found), next((name for name in family.routed if fields.get(name) is not None), "")
    sparse = _sparse(fields.get(name), layers)
    if sparse is None or "experts.count" not in found:
        return
    dense = sparse.index(True) if True in sparse else layers
    if all(sparse[dense:]):
        yield _Setting(key="experts.dense_layers", value=dense, fields=(name,))
        return
    yield _Setting(key="experts.dense_layers", value=0, fields=(name,))
    yield from _in_variants([{} if one else {"experts": False} for one in sparse], (name,), found)


def _sparse(value: Any, layers: int) -> list[bool] | None:
    """Whether each layer has experts, by a list of marks of all layers or of the numbers of those that have; None for all else."""
    if isinstance(value, str):
        value = [int(one) if one.strip().isdigit() else one for one in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(one, int | str) for one in value):
        return None
    if len(value) == layers and all(one in ROUTED_LAYERS for one in value):
        return [ROUTED_LAYERS[one] for one in value]
    numbers = [one for one in value if type(one) is int and 0 <= one < layers]
    return [i in numbers for i in range(layers)] if len(numbers) == len(set(value)) else None


def _varied(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
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
    last, layers = _count(fields.get("num_kv_shared_layers")), _layers(found)
    if last and last < layers:
        wide = fields.get("use_double_wide_mlp") is True and "ffn" in found
        names += ["num_kv_shared_layers", *(["use_double_wide_mlp"] if wide else [])]
        own = {"shared_cache": True, **({"ffn": 2 * found["ffn"].value} if wide else {})}
        listed.append({"layers": [f"{layers - last}-{layers - 1}"], **own})
    every = _count(fields.get("cla_share_factor")) if fields.get("use_cla") is True else 0
    if every > 1:
        names += ["use_cla", "cla_share_factor"]
        listed.append({"layers": _ranges([i for i in range(layers) if i % every]), "shared_cache": True})
    if listed:
        yield _with_variants(listed, tuple(names), found)


def _automatic(fields: Values, _: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """Dimensions that a file leaves to others with the word auto, or does not give."""
    sizes = {key: _count(found[key].value) if key in found else 0 for key in ("hidden", "ssm.heads")}
    expand, rank = next((fields[name] for name in ("mamba_expand", "expand") if _count(fields.get(name))), 2), found.get("ssm.step_rank")
    head = found.get("ssm.head_dim")
    if head is not None and head.value == "auto" and all(sizes.values()):
        inner = _count(fields.get("mamba_d_ssm")) or expand * sizes["hidden"]
        yield replace(head, value=inner // sizes["ssm.heads"])
    if rank is not None and rank.value == "auto" and sizes["hidden"]:
        yield replace(rank, value=-(-sizes["hidden"] // 16))
    heads = found.get("ssm.heads")
    if heads is not None and heads.value == "auto" and head is not None and _count(head.value):
        yield replace(heads, value=expand * sizes["hidden"] // head.value)
    image = [_count(found[key].value) if key in found else 0 for key in ("image.size", "image.patch")]
    if all(image):  # pixels beyond the last whole patch are left out
        yield replace(found["image.size"], value=image[0] // image[1] * image[1])
    ffn = found.get("ffn")
    if fields.get("block_auto_adjust_ff_dim") is True and ffn is not None and _count(ffn.value):  # LFM2: two thirds, rounded up
        multiple, factor = _count(fields.get("block_multiple_of")) or 256, fields.get("block_ffn_dim_multiplier") or 1.0
        yield replace(ffn, value=-(-int(factor * (2 * ffn.value // 3)) // multiple) * multiple)


def _without_experts(found: dict[str, _Setting]) -> dict[str, _Setting]:
    """Settings of a model whose file names the sizes of experts that no layer has; what all tokens pass is then its MLP."""
    pattern, count = found.get("ssm.pattern"), found.get("experts.count")
    single = "ssm.mlp" in found and pattern is not None and "experts" not in pattern.value
    if not single and (count is None or count.value not in (0, 1)):
        return found
    shared = found.get("experts.shared")
    kept = {key: setting for key, setting in found.items() if not key.startswith("experts.")}
    return kept if single or shared is None else {**kept, "ffn": replace(shared, key="ffn")}


def _kind(name: str, entry: Any) -> str:
    """Kind of a layer by its entry in a list, empty where it is not known."""
    return LAYER_KINDS[name].get(entry, "") if isinstance(entry, str | int) else ""


def _count(value: Any) -> int:
    """A whole number of at least 1, or 0 for all else."""
    return value if type(value) is int and value > 0 else 0


def _layers(found: Mapping[str, _Setting]) -> int:
    """Layers of the model, 0 where the file does not say."""
    return _count(found["layers"].value) if "layers" in found else 0


def _of_file(fields: Values) -> Iterator[_Setting]:
    """What files of any family say: dropout."""
    rates = tuple(name for name in fields if name in conventions().dropout and isinstance(fields[name], float) and fields[name] > 0)
    if rates:
        yield _Setting(key="dropout", value=True, fields=rates)


def _kept(fields: Values, document: Document) -> Stored:
    """Types in which the checkpoint keeps its weights; those of a document whose layers do not go together are not known."""
    data = {key: value for key, value in document.data.items() if key != "ssm"}
    if "ssm" in document.data:
        data["ssm"] = {key: value for key, value in document.data["ssm"].items() if key != "state_dtype"}  # which only a service has
    try:
        spec = files.validate(TransformerSpec, replace(document, data=data))
    except SpecError:  # told where the document is read
        return Stored()
    parts = [frozenset(part for part in (*kind.mixers, kind.beside) if part) for kind in spec.kinds(spec.layers)]
    return stored(fields.get("quantization_config"), conventions().quantised, parts, fields.get("expert_dtype"))


def _of_weights(kept: Stored) -> Iterator[_Setting]:
    """Types of weights that a service keeps."""
    given = ("quantization_config", *(("expert_dtype",) if "experts" in kept.own else ()))
    for key, value in (("weight_dtype", kept.weight), ("weight_dtypes", dict(kept.own)), ("wide_layers", list(kept.wide))):
        if value:
            yield _Setting(key=key, value=value, fields=given if key == "weight_dtypes" else given[:1])


def _headed(fields: Values, family: Family, kind: str) -> Iterator[_Setting]:
    """What the architecture that a file names puts after the last layer."""
    ending, given = _ending(fields, family), ("architectures",) if fields.get("architectures") else ()
    pooled = {"pooler": True} if ending == "Model" and kind in conventions().pooled else {}
    head = {"head": family.head} if family.head else HEADS.get(ending, {})
    for key, value in {**head, **pooled}.items():
        yield _Setting(key=key, value=value, fields=given)


def _ending(fields: Values, family: Family) -> str:
    """The ending of the architecture's name that tells its head, empty where none is known."""
    architectures = fields.get("architectures")
    if not architectures:
        return family.heads[0]
    name = str(architectures[0]) if isinstance(architectures, list) else str(architectures)
    return next((ending for ending in HEADS if name.endswith(ending)), "")


# ---------------------------------------------------------------------------------------------- what is wrong


def _endless(fields: Values) -> Iterator[tuple[str, str]]:
    """Fields that may matter and hold numbers that are not finite; those that do not, such as limits of time steps, often do."""
    for name, value in fields.items():
        odd = [number for _, number in files.walk(value) if isinstance(number, float) and not math.isfinite(number)]
        if odd and name not in conventions().no_cost:
            yield name, f"expected finite numbers, got {json.dumps(odd[0])}"


def _wrong(fields: Values, family: Family, kind: str, found: Mapping[str, _Setting]) -> Iterator[tuple[str, str]]:
    """Fields, with sentences on what is wrong with them."""
    if not family.head and _ending(fields, family) not in family.heads:
        known = ", ".join(f"...{ending}" for ending in family.heads)
        yield "architectures", f"{json.dumps(fields['architectures'])} is not modelled for model_type '{kind}'; known: {known}"
    yield from _missing(family, kind, found)
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
        every = (_count(found[key].value) if key in found else 0) or 1
        if fields.get(name) and fields[name] != list(range(every - 1, _layers(found), every)):
            yield name, f"{json.dumps(fields[name])} is not modelled where {key} = {every}"
    for name, (first, other, key) in family.leading.items():
        many, layers = (_count(found[one].value) if one in found else 0 for one in (key, "layers"))
        if fields.get(name) is not None and fields[name] != [first] * many + [other] * (layers - many):
            yield name, f"expected {many} layers of kind {first} and {layers - many} of kind {other}, as other fields say"
    for name in (name for names in family.patterns.values() for name in names):
        if fields.get(name) is not None and (not isinstance(fields[name], list) or len(fields[name]) != _layers(found)):
            yield name, f"expected an entry for each of {_layers(found)} layers, got {json.dumps(fields[name])[:60]}"
    for name, key in family.last.items():
        every = (_count(found[key].value) if key in found else 0) or 1
        if fields.get(name) not in (None, every - 1):
            yield name, f"{json.dumps(fields[name])} is not modelled where {key} = {every}; known: {every - 1}"
    yield from _unruly(fields, family)
    if family.mixers:
        yield from _unmixed(fields, family, _layers(found))
    if {"ssm.heads", "ssm.head_dim"} <= set(found):
        yield from _unexpanded(fields, found)
    if family.window:
        yield from _unlike(fields, _layers(found))
    if family.blocks:
        yield from _unblocked(fields, family, _layers(found))
    for name in family.routed:
        if fields.get(name) is not None and _sparse(fields[name], _layers(found)) is None and fields[name] != 1:
            marks = f"a mark for each of {_layers(found)} layers (0 or 1, dense or sparse)"
            yield name, f"expected {marks}, or numbers of layers; got {json.dumps(fields[name])[:60]}"


def _unblocked(fields: Values, family: Family, layers: int) -> Iterator[tuple[str, str]]:
    """What is wrong with a list of layers that each are made in their own way."""
    blocks = fields.get(family.blocks)
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        yield family.blocks, f"expected a list of layers, each with its attention and ffn, got {json.dumps(blocks)[:60]}"
    elif len(blocks) != layers:
        yield family.blocks, f"expected an entry for each of {layers} layers, got {len(blocks)}"
    else:
        for i, block in enumerate(blocks):
            whole = _flat(block, ("attention", "ffn"))
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
        elif len(value) != layers:
            yield name, f"expected an entry for each of {layers} layers, got {len(value)}"
    elif name and not _count(value):
        yield name, f"expected a whole number of at least 1, got {json.dumps(value)}"


def _unexpanded(fields: Values, found: Mapping[str, _Setting]) -> Iterator[tuple[str, str]]:
    """Widths of a state space that its heads do not make up."""
    heads, width, hidden = (_count(found[key].value) if key in found else 0 for key in ("ssm.heads", "ssm.head_dim", "hidden"))
    inner, name = fields.get("mamba_d_ssm"), "mamba_d_ssm"
    if inner is None and fields.get("model_type") != "nemotron_h":  # whose heads alone count
        name = next((one for one in ("mamba_expand", "expand") if _count(fields.get(one))), "")
        inner = fields[name] * hidden if name else heads * width
    if inner is not None and heads and width and inner != heads * width:
        yield name, f"{inner} elements are not those of {heads} heads of {width}"


def _unlike(fields: Values, layers: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the fields that say which layers see a window."""
    listed = any(isinstance(fields.get(name), list) for name in LAYER_KINDS)
    for name in PERIODS:
        if fields.get(name) is not None and not _count(fields[name]) and not listed:
            yield name, f"expected a whole number of at least 1, got {json.dumps(fields[name])}"
    lists = {name: fields[name] if isinstance(fields[name], list) else [fields[name]] for name in LAYER_KINDS if fields.get(name)}
    for name, entries in lists.items():
        other = [entry for entry in entries if not _kind(name, entry)]
        if other:
            yield name, f"{json.dumps(other[0])} is not modelled; known: {', '.join(map(json.dumps, LAYER_KINDS[name]))}"
        elif len(entries) != layers:
            yield name, f"expected an entry for each of {layers} layers, got {len(entries)}"
    if len({tuple(_kind(name, entry) for entry in entries) for name, entries in lists.items()}) > 1:
        yield "no_rope_layers", "is not modelled where layer_types makes other layers local"


def _missing(family: Family, kind: str, found: Mapping[str, _Setting]) -> Iterator[tuple[str, str]]:
    """All dimensions that are not there, in one sentence; a product is missing only with one of its factors."""
    routed = not family.mixers or ("ssm.pattern" in found and any(key.startswith("experts.") for key in found))
    lacking = {group for group in family.loose if "." not in group and not any(key.startswith(f"{group}.") for key in found)}
    lacking |= set() if routed else {"experts"}
    optional = {*conventions().optional, *family.products, *family.loose, *(key for key in family.names if key.split(".")[0] in lacking)}
    needed = [aliases for key, aliases in family.names.items() if key not in found and key not in optional]
    names = list(dict.fromkeys(f"'{aliases[0]}'" + (f" (or '{aliases[1]}')" if len(aliases) > 1 else "") for aliases in needed))
    if names:
        many = f"keys {', '.join(names)} are" if len(names) > 1 else f"key {names[0]} is"
        yield "", f"the {many} missing; a file of model_type '{kind}' needs {'them' if len(names) > 1 else 'it'}"


def _mistyped(setting: _Setting) -> Iterator[tuple[str, str]]:
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


# ---------------------------------------------------------------------------------------------- what comes out


def _document(file: str, found: Mapping[str, _Setting], lines: Mapping[str, int]) -> Document:
    data: Any = {}
    places: dict[files.Path_, Place] = {(): (file, None)}
    for setting in found.values():
        path = tuple(setting.key.split("."))
        data = files.replace(data, path, setting.value, file)
        places[path] = (file, next((lines[name] for name in setting.fields if name in lines), None))
    return Document(file=file, data=data, lines=places)


def _uses(config: Values, at: Sequence[str], family: Family, found: Mapping[str, _Setting], kept: Stored) -> Iterator[FieldUse]:
    """Every field of a file in its order; of a nested file, the outer levels' with why they are passed over."""
    became: dict[str, list[str]] = {}
    for setting in found.values():
        for name in setting.fields:
            became.setdefault(name, []).append(f"{setting.key} = {json.dumps(setting.value)}")
    yield from _uses_within(config, at, "", lambda name, value: _fate(name, value, family, became, kept), family)


def _uses_within(config: Values, at: Sequence[str], prefix: str, fate: Callable[[str, Any], str], family: Family) -> Iterator[FieldUse]:
    """The same of a level of a file, whose language model lies at a place below it."""
    inner = _within(config, at)
    for name, value in config.items():
        if at and name == at[0]:
            yield from _uses_within(value, at[1:], f"{prefix}{name}.", fate, family)
        elif at and (name not in conventions().shared or name in inner):
            place = ".".join(at)
            yield FieldUse(key=f"{prefix}{name}", value=value, became=f"not used: only {place} is read")
        else:
            for below, held in _flat({name: value}, family.nested).items():
                yield FieldUse(key=f"{prefix}{below}", value=held, became=fate(below, held))


def _fate(name: str, value: Any, family: Family, became: Mapping[str, list[str]], kept: Stored) -> str:
    """What became of a field."""
    if name == "model_type":
        return "chose how the file is read"
    if name in became:
        return ", ".join(became[name])
    if value is None:
        return "not used: null"
    if name == "quantization_config":
        return (
            f"not used in training: a service keeps weights in {kept.weight}"
            if kept.weight
            else "not used: not known to crossflow; give weight_dtype"
        )
    if name in (*family.demanded, *family.equal, *family.listed, *family.leading, *family.last):
        return "checked: as it is modelled"
    windows = (*LAYER_KINDS, *PERIODS) if family.window else ()
    own = [*(names for given in family.variants.values() for names in given.values()), *family.patterns.values(), family.padded.values()]
    if name in (family.blocks, *family.routed) or any(name in group for group in own):
        return "not used: other fields decide"
    if any(name in group for group in (windows, family.mixers, *family.names.values(), *(rule.when for rule in family.rules))):
        return "not used: other fields decide"
    known = conventions()
    if name in known.not_counted:
        return f"not used: {known.not_counted[name]}"
    return "not used: does not change the cost" if known.costs_nothing(name) else UNKNOWN
