"""Reading a model's ``config.json``, as Hugging Face keeps it, into the keys of a transformer's file; offline.

What a family of models calls its dimensions, and what holds for all of it, is data: one `Family` each, in
``huggingface.yaml`` beside this module. A file whose family is not known, or that sets a switch that is not modelled, is an error that says
what was read; every field of a file that is read comes back with what became of it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossflow.base import contents, files
from crossflow.base.errors import Problem, SpecError, with_article
from crossflow.base.files import Document, Place
from crossflow.base.limits import json_value
from crossflow.workload.config_keys import settings, trimmed, without_mixers
from crossflow.workload.config_problems import endless, too_deep, wrong
from crossflow.workload.conventions import (
    BY_NUMBER,
    LAYER_KINDS,
    PERIODS,
    PLAIN_LAYERS,
    Family,
    Ingredient,
    Setting,
    Values,
    conventions,
    described,
    families,
    flat,
    whole,
)
from crossflow.workload.quantised import Stored, stored
from crossflow.workload.released import CONFIG
from crossflow.workload.spec import TransformerSpec
from crossflow.workload.towers import Tower, towers, vision_tower


@dataclass(frozen=True, kw_only=True)
class FieldUse:
    """One field of a file, and what it became: our keys with their values, or why it is not used."""

    key: str
    value: Any
    became: str


def _pieces(config: Values) -> list[Ingredient]:
    """What a file of an unknown family is read like: as a plain decoder, and for what its fields tell beyond."""
    there = {name for name, value in config.items() if value not in (None, 0, False, [], {})}
    return [piece for piece in conventions().composed if not piece.having or there & set(piece.having)]


def _nearest(config: Values) -> list[str]:
    """The known families that read most of a file's fields and lack least, the nearest first; of a file of diffusers those of diffusers."""
    drawn = bool(config.get("_class_name"))

    def likeness(family: Family) -> int:
        read = {name for aliases in family.names.values() for name in aliases} | {name for rule in family.rules for name in rule.when}
        needed = [aliases for key, aliases in family.names.items() if aliases and key not in conventions().optional]
        return len(read & set(config)) - 2 * sum(not set(aliases) & set(config) for aliases in needed)

    both = config.get("is_encoder_decoder") is True
    known = [name for name, family in families().items() if (family.head == LATENTS) == drawn]
    known = [
        name for name in known if not both or any(key.startswith("encoder.") for key in (*families()[name].names, *families()[name].fixed))
    ]
    return sorted(known, key=lambda name: -likeness(families()[name]))


def families_of_files() -> dict[str, tuple[str, str]]:
    """What files call their families, by `model_type` or class: whether it is read (family), read like another, or refused; and a title."""
    known, given = conventions(), families()
    read = {name: ("family", "of diffusers" if family.head == LATENTS else "") for name, family in given.items()}
    like = {name: ("like another", f"read like {other}") for name, other in known.aliases.items()}
    return {**read, **like, **{name: ("refused", why) for name, why in known.refused.items()}}


WIDE = ("float32", "float64")  # in which files keep weights that nobody computes in
UNKNOWN = "not used: not known to crossflow"
LATENTS = "latents"  # head of diffusion transformers
LISTED = 8  # unknown fields that are named of a file of an unknown family
NEAR = 3  # nearest families that are named where one is not known
DRAWN = (
    "{name} is a diffusion transformer: a step is one denoising step. A picture takes as many as its sampler has (20 to 50), each with two"
    " samples where guidance is classifier-free. Its text encoders and autoencoder are not described."
)
# Where a file of several models has its language model.
INNER = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"))
SUFFIXES = ("_text", "_text_model", "_vl", "_vl_text")  # of families' names, of the parts of larger models
BESIDE = "hf_quant_config.json"  # what describes its weights, where ModelOpt has made them and the other file does not say so


def huggingface_document(
    path: str | Path, *, service: bool = False, given: Collection[str] = (), examples: bool = False
) -> tuple[Document, list[FieldUse]]:
    """Read a ``config.json`` into the keys of a transformer's file.

    Parameters
    ----------
    path : the file.
    service : whether the model is served, in the type that the file keeps its weights in; training has its own.
    given : our keys that a scenario gives itself, which the file may then lack.
    examples : whether what a scenario must give, such as the size of pictures, takes examples, which a note tells; else it is a problem.

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
    file, text = str(path), files.read_text(str(path))
    config = _parsed(text, file)
    at = _place(config)
    own, lines = _own(config, at), _lines(text)

    def problem(name: str, told: str) -> Problem:
        outer = ".".join((*at, "")) if name and at and name.partition(".")[0] in _within(config, at) else ""
        return Problem(file=file, line=lines.get(name.rpartition(".")[2]), path=outer + name, message=told)

    kind, pieces = _family_of(own), _pieces(own)
    if (known := families().get(kind)) is None and (kind in conventions().refused or not _is_decoder(own, config)):
        raise SpecError([problem("_class_name" if own.get("_class_name") else "model_type", _unknown(own))])
    family = known or described(conventions().merged({"like": [piece.like for piece in pieces]}))
    fields = {**_quantised_beside(Path(file)), **trimmed(flat(own, family.nested), family)}
    _refuse(itertools.starmap(problem, endless(fields)))
    found = settings(fields, family, kind, f"{kind} of {Path(file).name}")
    _refuse(itertools.starmap(problem, too_deep(found)))
    stand_ins = [Setting(key=key, value=value) for key, value in family.asked.items() if examples and key not in found]
    found |= {setting.key: setting for setting in stand_ins}
    found = found if service else {key: setting for key, setting in found.items() if key != "ssm.state_dtype"}
    problems = [problem(name, told) for name, told in dict.fromkeys(wrong(fields, family, kind, found, given))]
    kept = Stored() if problems else _kept(fields, _document(file, found := without_mixers(found), lines))
    if service:
        found |= {setting.key: setting for setting in _of_weights(kept)}
    uses = list(_uses(config, at, family, found, kept))
    strange = {use.key: use.value for use in uses if use.became == UNKNOWN and not _idle(use.value)}
    costly = [key for key, value in strange.items() if not (isinstance(value, float) and abs(value) < 1.0)]
    if not known and (costly or problems):
        problems.insert(0, problem("model_type", _not_composed(own, costly)))
    if problems:
        raise SpecError(problems)
    left = [*(kept.told if service else ()), *_left_out(uses, fields), *([family.omits] if family.omits else ())]
    odd = [*strange, *_unread(fields, kept, service=service)]
    told = _notes(fields, Path(file).name, odd, [] if known else pieces, list(towers(config, at)), left)
    if notes := " ".join((*_of_pictures(family, Path(file).name, stand_ins), *told, *_tied_twice(config, at))):
        found["notes"] = Setting(key="notes", value=notes)
    return _document(file, found, lines), uses


def tower_of(path: str) -> dict[str, Any]:
    """The tower of images of a ``config.json``, as `vision_tower` has it; empty where it has none."""
    config = _parsed(files.read_text(path), path)
    return vision_tower(config, _place(config))


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
    kind = config.get("model_type") or config.get("_class_name")  # the latter of diffusers
    if not kind:
        found = next((name for field_, name in conventions().untyped.items() if field_ in config), None)
        return str(found or kind)
    names = [str(kind), f"{kind} {config.get('norm_type')}", *(str(kind).removesuffix(suffix) for suffix in SUFFIXES)]
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


def _refuse(problems: Iterable[Problem]) -> None:
    """SpecError where there are problems."""
    if found := [*problems]:
        raise SpecError(found)


def _not_composed(config: Values, strange: Iterable[str]) -> str:
    """Why a file of an unknown family cannot be read by its fields, and what to do."""
    names = ", ".join(strange)
    unknown = f"model_type {json.dumps(config.get('model_type'))} is not known"
    cure = f"give model_type {json.dumps(_nearest(config)[0])}, the nearest known family"
    if not names:
        return f"{unknown}, and its fields do not make a decoder; mend them, or {cure}"
    return f"{unknown}, nor are its fields {names}; leave out those that change no cost, or {cure}"


def _left_out(uses: Iterable[FieldUse], fields: Values) -> Iterator[str]:
    """Sentences on fields that would change the cost and are not counted, where they say anything."""
    known, longest = conventions(), whole(fields.get("max_position_embeddings"))
    for use in uses:
        name = use.key.rpartition(".")[2]
        if name == "sliding_window" and (fields.get("use_sliding_window") is False or whole(use.value) >= longest):
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


def _tied_twice(config: Values, at: Sequence[str]) -> Iterator[str]:
    """A sentence on a file that says two things about its head: older readers take that of the language model, newer ones the outer one."""
    key = "tie_word_embeddings"
    inner, outer = (_within(config, (*place, key)) for place in (at, ()))
    if at and isinstance(inner, bool) and isinstance(outer, bool) and inner != outer:
        both = f"{key} is {json.dumps(outer)} outside {'.'.join(at)} and {json.dumps(inner)} within"
        yield f"{both}; the latter counts (workload.tied_embeddings changes it)."


def _unread(fields: Values, kept: Stored, *, service: bool) -> list[str]:
    """What to give in the place of types of weights that a service cannot read from a file."""
    unread = service and isinstance(fields.get("quantization_config"), Mapping) and kept.weight is None
    return ["quantization_config (give weight_dtype)"] if unread else []


def _of_pictures(family: Family, name: str, stand_ins: Sequence[Setting]) -> Iterator[str]:
    """Sentences on a diffusion transformer: what a step is, and what stands for the size of its pictures."""
    if family.head == LATENTS:
        yield DRAWN.format(name=name)
    if stand_ins:
        listed = ", ".join(f"{setting.key} = {setting.value}" for setting in stand_ins)
        yield f"The file does not say how large pictures are; examples stand here: {listed}."


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
        given = f"model_type {json.dumps(kind)}" if kind else json.dumps(config.get("_class_name"))
        return f"{given} is refused: {conventions().refused[_family_of(config)]}"
    near = f"the nearest known: {', '.join(_nearest(config)[:NEAR])} (`crossflow list families` names all)"
    if config.get("_class_name"):
        return (
            f"a file of diffusers, whose {config['_class_name']} is not modelled; {near}. Give a model of your own in its place:"
            " workload.model: transformer with its dimensions, image, causal: false, head: latents, and what it has of a text in diffusion"
        )
    names = ("architectures", *(name for key, aliases in conventions().bases["any"]["names"].items() if key != "title" for name in aliases))
    read = ", ".join(f"{name} = {json.dumps(config[name])}" for name in names if config.get(name) is not None)
    odd = [key for key, value in config.items() if not (_idle(value) or conventions().costs_nothing(key) or key in _known_names())]
    beyond = f"; not known: {', '.join(odd[:LISTED])}{' and others' if len(odd) > LISTED else ''}" if odd else ""
    cure = "; if its layers are those of one, give its model_type and leave out architectures"
    what = "the key 'model_type' is missing" if kind is None else f"unknown model_type {json.dumps(kind)}"
    return (
        f"{what}; read: {read}{beyond}; {near}{cure}"
        if read
        else f"{what}; read: no dimensions; `crossflow list families` names those that are known"
    )


def _known_names() -> frozenset[str]:
    """Fields that any family reads or that are known to count for nothing, as the names of families and of what is not counted."""
    read = (name for family in families().values() for aliases in family.names.values() for name in aliases)
    return frozenset((*read, *conventions().not_counted, "model_type", "architectures", "auto_map"))


def _kept(fields: Values, document: Document) -> Stored:
    """Types in which the checkpoint keeps its weights; those of a document whose layers do not go together are not known."""
    lacking = {} if "image" in document.data else {"vocabulary": 1, "sequence": 1}  # which a scenario may give
    data = {**lacking, **{key: value for key, value in document.data.items() if key != "ssm"}}
    if "ssm" in document.data:
        data["ssm"] = {key: value for key, value in document.data["ssm"].items() if key != "state_dtype"}  # which only a service has
    try:
        spec = files.validate(TransformerSpec, replace(document, data=data))
    except SpecError:  # told where the document is read
        return Stored()
    parts = [frozenset(part for part in (*kind.mixers, kind.beside) if part) for kind in spec.kinds(spec.layers)]
    return stored(fields.get("quantization_config"), conventions().quantised, parts, fields.get("expert_dtype"))


def _quantised_beside(path: Path) -> dict[str, Any]:
    """What ModelOpt writes of a model's weights into a file beside its ``config.json``, as a field of it; nothing without that file."""
    other = path.with_name(BESIDE)
    if path.name != CONFIG or not contents.is_file(other):
        return {}
    found = _parsed(files.read_text(str(other)), str(other)).get("quantization")
    return {"quantization_config": {"quant_method": "modelopt", **found}} if isinstance(found, dict) else {}


def _of_weights(kept: Stored) -> Iterator[Setting]:
    """Types of weights that a service keeps."""
    given = ("quantization_config", *(("expert_dtype",) if "experts" in kept.own else ()))
    for key, value in (("weight_dtype", kept.weight), ("weight_dtypes", dict(kept.own)), ("wide_layers", list(kept.wide))):
        if value:
            yield Setting(key=key, value=value, fields=given if key == "weight_dtypes" else given[:1])


def _document(file: str, found: Mapping[str, Setting], lines: Mapping[str, int]) -> Document:
    data: Any = {}
    places: dict[files.Path_, Place] = {(): (file, None)}
    for setting in found.values():
        path = tuple(setting.key.split("."))
        data = files.replace(data, path, setting.value, file)
        places[path] = (file, next((lines[name] for name in setting.fields if name in lines), None))
    return Document(file=file, data=data, lines=places)


def _uses(config: Values, at: Sequence[str], family: Family, found: Mapping[str, Setting], kept: Stored) -> Iterator[FieldUse]:
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
            for below, held in flat({name: value}, family.nested).items():
                yield FieldUse(key=f"{prefix}{below}", value=held, became=fate(below, held))


def _fate(name: str, value: Any, family: Family, became: Mapping[str, list[str]], kept: Stored) -> str:
    """What became of a field."""
    if name in ("model_type", "_class_name"):
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
    if name in (family.blocks, BY_NUMBER, PLAIN_LAYERS, *family.routed) or any(name in group for group in own):
        return "not used: other fields decide"
    if any(name in group for group in (windows, family.mixers, *family.names.values(), *(rule.when for rule in family.rules))):
        return "not used: other fields decide"
    known = conventions()
    if name in known.not_counted:
        return f"not used: {known.not_counted[name]}"
    return "not used: does not change the cost" if known.costs_nothing(name) else UNKNOWN
