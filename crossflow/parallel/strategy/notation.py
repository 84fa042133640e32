"""Every notation of strategies read into one mesh: the paper's text, named degrees and roles by layer type, as text and as mappings."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossflow.base.errors import StrategyError, did_you_mean
from crossflow.base.limits import LAYERS
from crossflow.parallel.strategy.mesh import (
    AXIS_ROLES,
    BLOCKS,
    FARS,
    LISTS,
    MODULE_WORDS,
    NODE_AXES,
    NUMBERS,
    OFFLOADS,
    ORDER,
    RECOMPUTE,
    REPEATED,
    SCHEDULES,
    TYPES,
    WORD_ROLES,
    WORDS,
    Axis,
    Levels,
    Mesh,
)

Written = str | Mapping[str, Any]
PAPER_KEYS = ("kernel", "kp1", "kp2", "lp")
PLAN_KEYS = tuple(dict.fromkeys([*NUMBERS.values(), *(key for key, _ in WORDS.values()), *LISTS.values()]))
DEGREES = ("tp", "cp", "ep", "etp", "attention_tp", "mlp_tp", "embedding_tp", "dp", "pp", *PAPER_KEYS)
_CUT = ("ddp", "fsdp", "tp", "pp")


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """What strategies of one kind of workload may say."""

    workloads: str  # that are of this kind, for sentences
    keys: tuple[str, ...]  # degrees and options
    types: Mapping[str, tuple[str, ...]]  # roles that each layer type can have, as words
    example: str  # what to write as text
    beside: tuple[str, ...] = ()  # options that may stand beside layer types


GRAPH = Form(
    workloads="lstm and gemm",
    keys=("kernel", "kp1", "kp2", "tp", "cp", "dp", "pp", "lp", "placement"),
    types={"dense": ("ddp", "tp", "pp"), "embedding": ("ddp", "tp", "mp-columns", "pp")},
    example="RC-KP1-KP2-dDP-pLP, CR-KP1-dDP-pLP, a part of these such as d512, or degrees such as tp8-dp4-pp2",
)
TRANSFORMER = Form(
    workloads="transformers",
    keys=(*PLAN_KEYS, *PAPER_KEYS),
    types={  # transformer and dense stand for attention and MLPs
        "transformer": _CUT, "dense": _CUT, "attention": _CUT, "mlp": _CUT, "experts": ("ddp", "fsdp", "tp", "ep", "pp"),
        "embedding": ("ddp", "fsdp", "tp", "mp", "mp-rows", "pp"),
    },
    example=f"degrees and options such as tp8-pp4-dp16-mb2-z1-sp-full (numbers: {', '.join(NUMBERS)};"
    f" words: {', '.join(WORDS)}, offload:{'+'.join(OFFLOADS)}, far:{'+'.join(FARS)}, sel:{'+'.join(MODULE_WORDS)},"
    f" unsharded:embedding, distant:mlp, placed:dp+tp+pp, layers:3+4x2+2, {ORDER}FILE.yaml), or a mapping",
    beside=tuple(key for key in PLAN_KEYS if key not in DEGREES),
)  # fmt: skip
RECOMMENDATION = Form(
    workloads="recommendation models",
    keys=("tp", "dp", "ep", "zero", "placement", "kernel", "kp1", "kp2"),
    types={
        "dense": ("ddp", "fsdp", "tp"), "embedding": ("mp", "mp-rows", "mp-columns", "ddp"), "transformer": ("ddp", "fsdp", "tp"),
        "experts": ("ddp", "fsdp", "tp", "ep"),
    },
    example="roles by layer type such as 'dense (tp, ddp), embedding mp', or degrees such as tp8-dp2",
)  # fmt: skip
FORMS = (GRAPH, TRANSFORMER, RECOMMENDATION)
ADDRESSED = tuple(dict.fromkeys(kind for form in FORMS for kind in form.types))  # layer types that strategies of any model address
# Values of options: one of several, some of several, yes or no; of all others whole numbers, from 1 or, where they may be absent, from 0.
_CHOICES: Mapping[str, tuple[Any, ...]] = {"recompute": RECOMPUTE, "zero": (0, 1, 2, 3), "kernel": ("RC", "CR")}
_CHOSEN: Mapping[str, tuple[str, ...]] = {
    "offload": OFFLOADS,
    "far": FARS,
    "unsharded": TYPES,
    "apart": TYPES,
    "distant": TYPES,
    "recompute_modules": REPEATED,
}
_FLAGS = ("sequence_parallel",)
_POSITIVE = {"kp1", "kp2", "lp", "tp", "cp", "ep", "dp", "pp", "virtual_stages", "micro_batch", "far_experts", "far_cache"}
_SHORT = {"d": "dp", "p": "pp"}  # in text, as the paper has them
_PAPER = re.compile(r"(?:RC-(\d+)-(\d+)|CR-(\d+))(?=-|$)", re.ASCII)
_NUMBER = re.compile(r"([a-z]+)(\d+)", re.ASCII)
_RUN = re.compile(r"(\d+)(?:x([1-9]\d{0,4}))?", re.ASCII)  # layers of a stage, and of how many that follow each other
_ROLES = r"([a-z]+)\s+(?:\(([^()]*)\)|([a-z-]+))"  # a layer type and its roles


def is_by_types(given: object) -> bool:
    """Whether a strategy is written by layer types rather than by degrees, as a mapping or as text."""
    if isinstance(given, str):
        return re.match(rf"\s*({'|'.join(ADDRESSED)})\b", given) is not None
    return isinstance(given, Mapping) and any(key in ADDRESSED for key in given)


def parse(given: Written, form: Form) -> Mesh:
    """The mesh that a strategy says, in any notation that means something for a kind of workload.

    Raises
    ------
    StrategyError
        With everything that is unknown, not possible, or without meaning for the workload.
    """
    return _parsed(given, form) if isinstance(given, str) else _mesh(given, form)


def parse_any(given: Written) -> Mesh:
    """The mesh that a strategy says for the first kind of workload that could have it; StrategyError for one that none could have."""
    problems = {}
    for form in FORMS:
        try:
            return parse(given, form)
        except StrategyError as error:
            problems[form] = error
    paper = re.match(r"\s*(RC|CR|[dp]\d)", given) is not None if isinstance(given, str) else any(key in PAPER_KEYS for key in given)
    raise problems[RECOMMENDATION if is_by_types(given) else GRAPH if paper else TRANSFORMER]


@functools.lru_cache(maxsize=65536)
def _parsed(text: str, form: Form) -> Mesh:
    """A mesh from text, of which studies read the same over and over."""
    return _mesh(_types_said(text) if is_by_types(text) else _degrees_said(text, form), form)


def _mesh(given: Mapping[str, Any], form: Form) -> Mesh:
    typed = is_by_types(given)
    options = {key: value for key, value in given.items() if not (typed and key in ADDRESSED)}
    problems = [_strange(key, form, typed=typed) for key in options]
    levels = {kind: _levels(kind, roles, form, problems) for kind, roles in given.items() if typed and kind in ADDRESSED}
    problems += [_wrong(key, value) for key, value in options.items() if key in (*PLAN_KEYS, *PAPER_KEYS)]
    if told := [problem for problem in problems if problem]:
        raise StrategyError("strategy: " + "; ".join(told))
    read = _repeated({key: _value(key, value) for key, value in options.items()})
    degrees = _axes(read, form)
    axes = [Axis(name=name, size=degrees[name], role=role) for name, role in AXIS_ROLES.items() if name in degrees]
    if typed:
        axes = [Axis(name=name, size=0, role="batch") for name in NODE_AXES]
    ordered = {kind: levels[kind] for kind in form.types if kind in levels}
    beside = tuple((key, value) for key, value in read.items() if key not in (*AXIS_ROLES, *PAPER_KEYS))
    return Mesh(axes=tuple(axes), own=tuple(ordered.items()), options=beside)


def _strange(key: Any, form: Form, *, typed: bool) -> str:
    """Why a key has no place among those of a kind of workload, beside layer types where it is `typed`; empty where it has."""
    if typed and key in DEGREES:
        return f"{key} beside layer types, which say how devices are divided; write the one or the other"
    known = form.beside if typed else form.keys
    if key in known:
        return ""
    if key in (*PLAN_KEYS, *PAPER_KEYS):
        others = " and ".join(other.workloads for other in FORMS if key in (other.beside if typed else other.keys))
        where = f"{key} beside layer types" if typed else key
        return f"{where} is supported for {others} only; {form.workloads} take {', '.join(known or form.types)}"
    if typed and not known:
        return f"unknown layer type '{key}'{did_you_mean(str(key), form.types)}; known: {', '.join(form.types)}"
    tail = f"layer types: {', '.join(form.types)}; options beside them: {', '.join(sorted(known))}"
    meant = did_you_mean(str(key).lower(), [*form.types, *known]) if typed else did_you_mean(str(key), sorted(known))
    meant = meant or did_you_mean(str(key).lower(), form.types)
    return f"unknown key '{key}'{meant}; {tail if typed else 'known: ' + ', '.join(sorted(known))}"


def _axes(read: Mapping[str, Any], form: Form) -> dict[str, int]:
    """Sizes of the axes that degrees say, in the paper's words or others."""
    summed = read.get("kernel") == "CR"
    if summed:
        _check_summed(read, form)
    found: dict[str, tuple[str, int]] = {}
    for key, value in read.items():
        axis = {"kp1": "inner" if summed else "cp", "kp2": "tp", "lp": "pp"}.get(key, key)
        if axis not in AXIS_ROLES or (summed and axis in ("tp", "cp")):
            continue
        if axis in found:
            raise StrategyError(f"strategy: {found[axis][0]} and {key} name the same degree; give one of them")
        found[axis] = key, value
    return {axis: size for axis, (_, size) in found.items()}


def _check_summed(read: Mapping[str, Any], form: Form) -> None:
    """StrategyError for a cut of the inner dimension (CR) that is not one, or not one that a workload can have."""
    for key in ("kp2", "tp", "cp"):
        if read.get(key, 1) != 1:
            raise StrategyError(f"strategy: CR cuts one dimension, kp1; {key} = {read[key]} has no meaning with it")
    if "kp1" not in read:
        raise StrategyError("strategy: kernel: CR cuts one dimension into kp1 parts; give kp1, or leave kernel out")
    if form is not GRAPH:
        raise StrategyError(
            f"strategy: CR-{read['kp1']} cuts the inner dimension of every product, which is supported for {GRAPH.workloads} only;"
            f" write tp{read['kp1']}, with which {form.workloads} cut products by columns and by rows in turn"
        )


# -------------------------------------------------------------------------------------------- text


def _degrees_said(text: str, form: Form) -> dict[str, Any]:
    """Degrees and options of a strategy as text: ``RC-1-8-d4-p2``, ``tp8-pp4-dp16-mb2-z1-sp-full``; ``d16`` stands for ``dp16``."""
    found: dict[str, Any] = {}
    rest, _, file = f"-{text.strip()}".partition(f"-{ORDER}")
    if file:
        found["schedule"] = file
    if paper := _PAPER.match(rest, 1):
        rows, columns, inner = paper.groups()
        found |= {"kernel": "CR", "kp1": int(inner)} if inner else {"kp1": int(rows), "kp2": int(columns)}
        rest = rest[paper.end() :]
    for part in rest[1:].split("-") if rest or not found else ():
        prefix = part[: part.find(":") + 1]
        match = None if part in WORDS else _NUMBER.fullmatch(part)
        word = _SHORT.get(match[1], match[1]) if match else part
        name, value = (NUMBERS.get(word), int(match[2])) if match else WORDS.get(part, (None, None))
        if prefix in LISTS:
            name, value = LISTS[prefix], part.removeprefix(prefix).split("+")
            value = [MODULE_WORDS.get(one, one) for one in value] if name == "recompute_modules" else value
        if name is None or name in found:
            why = "there twice" if name else "not understood"
            instead = "" if name else _meant(part, form, alone=part == text.strip()) or _divided_otherwise(text, form)
            cure = instead or f"; write {form.example}"
            raise StrategyError(f"strategy '{text}': '{part}' is {why}{cure}")
        found[name] = value
    return found


def _divided_otherwise(text: str, form: Form) -> str:
    """What a strategy in capitals, or with something else than hyphens between its parts, may stand for.

    >>> _divided_otherwise("TP8, pp=2", TRANSFORMER)
    "; did you mean 'tp8-pp2'?"
    """
    other = "-".join(re.findall(r"[^\s,;_/-]+", text.lower().replace("=", "")))
    if not re.search(r"[A-Z\s,;_=]", text) or other == text:
        return ""
    try:
        _degrees_said(other, form)
    except StrategyError:
        return ""
    return f"; did you mean '{other}'?"


def opened(written: Any) -> Any:
    """A strategy by degrees as a mapping of which single keys can be set, where it is text of such; all else as it is.

    >>> opened("tp8-dp4-mb2"), opened("auto")
    ({'tp': 8, 'dp': 4, 'micro_batch': 2}, 'auto')
    """
    try:
        return _degrees_said(written, TRANSFORMER) if isinstance(written, str) and not is_by_types(written) else written
    except StrategyError:
        return written


# What frameworks call an option that text has another word for.
CALLED = {"fsdp": "z3", "fsdp2": "z3", "recompute": "full"}
_NUMBERS_CALLED = {"zero": "z", "vpp": "v", "vp": "v", "mbs": "mb", "micro": "mb"}


def _meant(part: str, form: Form, *, alone: bool) -> str:
    """What a word of a strategy may stand for: the same in small letters and without what stands between, or another name.

    An option that stands `alone` is told with degrees, which it needs.

    >>> _meant("vpp2", TRANSFORMER, alone=False), _meant("fsdp", TRANSFORMER, alone=True)
    ("; did you mean 'v2'?", "; did you mean 'z3' beside degrees, as in 'dp8-z3'?")
    """
    plain = re.sub("[=:_ ]", "", part.lower())
    known = plain in WORDS or ((found := _NUMBER.fullmatch(plain)) is not None and found[1] in (*NUMBERS, *_SHORT))
    listed = part.lower().partition("selective:")[2]
    number = _NUMBER.fullmatch(plain)
    other = f"{_NUMBERS_CALLED[number[1]]}{number[2]}" if number is not None and number[1] in _NUMBERS_CALLED else ""
    word = f"sel:{listed}" if listed else CALLED.get(plain, plain if known else other)
    beside = f" beside degrees, as in 'dp8-{word}'" if alone and not re.match(r"(?:[tpcde]p|d|p)\d", word) else ""
    return f"; did you mean '{word}'{beside}?" if word and form is TRANSFORMER else ""


def _types_said(text: str) -> dict[str, list[str]]:
    """Roles by layer type of a strategy as text."""
    if not re.fullmatch(rf"\s*{_ROLES}(?:\s*,\s*{_ROLES})*\s*", text):
        raise StrategyError(
            f"strategy '{text}' is not of the form 'dense (tp, ddp), embedding mp', or {{dense: [tp, ddp], embedding: [mp]}}"
        )
    found: dict[str, list[str]] = {}
    for kind, pair, one in re.findall(_ROLES, text):
        if kind in found:
            raise StrategyError(f"strategy '{text}': {kind} is there twice")
        found[kind] = _role_words(pair or one)
    return found


def _role_words(text: str) -> list[str]:
    """Roles of one layer type as text, ``(tp, ddp)`` or ``ddp``."""
    return [role.strip() for role in text.strip().removeprefix("(").removesuffix(")").split(",")]


# -------------------------------------------------------------------------------------------- values


def _levels(kind: str, given: Any, form: Form, problems: list[str]) -> Levels:
    """Roles of one layer type; what is wrong with them is added to `problems`."""
    if kind not in form.types:
        problems.append(f"unknown layer type '{kind}'{did_you_mean(kind, form.types)}; known: {', '.join(form.types)}")
        return "batch", "batch"
    words: Sequence[Any] = _role_words(given) if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
    if not 1 <= len(words) <= 2:
        problems.append(f"{kind}: expected one role for all devices, or two [inside a node, between nodes], got {given!r}")
        return "batch", "batch"
    known = form.types[kind]
    wrong = [word for word in words if word not in known]
    problems += [f"{kind}: {_why_not(kind, word, known)}; it can be {', '.join(known)}" for word in wrong]
    return ("batch", "batch") if wrong else (WORD_ROLES[words[0]], WORD_ROLES[words[-1]])


def _why_not(kind: str, word: Any, known: Sequence[str]) -> str:
    if not isinstance(word, str) or word not in WORD_ROLES:
        return f"unknown role {word!r}{did_you_mean(str(word), known)}"
    if kind != "embedding" and word.startswith("mp"):
        return f"{word} shares out embedding tables, of which {kind} layers have none"
    if word == "ep":
        return f"ep shares out experts, of which {kind} layers have none"
    if word == "mp-columns":
        return "mp-columns would cut every word's vector, which a product with the vocabulary needs whole"
    if word.startswith("mp"):
        return f"{word} shares out whole rows of a table, which here is cut by columns as other layers are"
    if "mp" in known:
        return f"{word} gathers or cuts what every sample needs whole, but a sample looks up a few rows of a table"
    able = " and ".join(form.workloads for form in FORMS if word in form.types.get(kind, ()))
    return f"{word} is supported for {able} only"


def _wrong(key: str, value: Any) -> str:
    """What is wrong with the value of an option; empty where nothing is."""
    if key in _CHOICES:
        good = value in _CHOICES[key] and not isinstance(value, (bool, float))
        return "" if good else f"{key} must be one of {', '.join(map(str, _CHOICES[key]))}, got {value!r}"
    if key in _FLAGS:
        return "" if isinstance(value, bool) else f"{key} must be true or false, got {value!r}"
    if key in _CHOSEN:
        several, known = _several(key, value), _CHOSEN[key]
        good = isinstance(several, (list, tuple)) and all(what in known for what in several) and len(set(several)) == len(several)
        return "" if good else f"{key} must be none, or one or several of {', '.join(known)}, each once, got {value!r}"
    if key == "schedule":
        if isinstance(value, str) and (value in SCHEDULES or value.endswith((".yaml", ".yml"))):
            return ""
        meant = did_you_mean(value, SCHEDULES) if isinstance(value, str) else ""
        return f"schedule must be one of {', '.join(SCHEDULES)} or the path of a .yaml file, got {value!r}{meant}"
    if key == "placement":
        good = isinstance(value, (list, tuple)) and len(value) == len(BLOCKS) and all(block in value for block in BLOCKS)
        return "" if good else f"placement must be {', '.join(BLOCKS)} in some order, the nearest ranks first, got {value!r}"
    if key == "stage_layers":
        return "" if _layers(value) is not None else (
            f"stage_layers must list the layers of every stage (with virtual_stages: chunk), such as [3, 4, 4, 2] or 3+4x2+2, got {value!r}"
        )  # fmt: skip
    least = 1 if key in _POSITIVE else 0
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least
    cure = f"; write {value:.0f}" if isinstance(value, float) and value.is_integer() and value >= least else ""
    return "" if good else f"{key} must be a {'positive ' if least else ''}whole number, got {value!r}{cure}"


def _value(key: str, value: Any) -> Any:
    """The value of an option as it is kept: several words in one order, lists as tuples."""
    if key in _CHOSEN:
        several = _several(key, value)
        return tuple(what for what in _CHOSEN[key] if what in several)
    if key == "stage_layers":
        return _layers(value)
    return tuple(value) if key == "placement" else value


def _repeated(read: dict[str, Any]) -> dict[str, Any]:
    """Options in which a list of modules says that recomputation is selective, and scores alone need no list."""
    modules = read.get("recompute_modules")
    if not modules or read.get("recompute", "selective") != "selective":
        return read
    return {**read, "recompute": "selective", "recompute_modules": () if modules == REPEATED[:1] else modules}


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
    if None in runs or sum(int(run[2] or 1) for run in runs if run) > LAYERS:
        return None
    return tuple(int(run[1]) for run in runs if run for _ in range(int(run[2] or 1)))
