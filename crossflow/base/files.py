"""Reading files strictly: every problem of a file at once, each with its line, and nothing silently kept or dropped.

YAML as PyYAML loads it keeps the last of two equal keys, reads ``1e9`` as text and ``on`` as true; here a duplicate
key is an error, ``1e9`` is a number and only ``true`` and ``false`` are booleans.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import dataclasses
import difflib
import functools
import gzip
import importlib.util
import json
import math
import os
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from crossflow.base import contents, limits, platforms
from crossflow.base.errors import (
    LISTED,
    CrossflowError,
    Problem,
    SpecError,
    among,
    did_you_mean,
    either,
    known_name,
    shortened,
    with_article,
)
from crossflow.base.moved import RENAMED
from crossflow.base.stages import stage

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SINGULAR = {"techlibs": "techlib", "templates": "template", "studies": "study"}
KINDS = tuple(SINGULAR)
YAML = (".yaml", ".yml", ".json")  # endings of files that others name; JSON is YAML too
# What a file of some sub-folders is, where it is no template to people.
HELD = {
    "software": "software stack",
    "reliability": "reliability file",
    "models": "model",
    "hindcasts": "forecast of a chip",
    "families": "family of devices",
}
_FLOAT = re.compile(r"^[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?$")
_GROUPED = re.compile(r"[1-9]\d{0,2}(,\d{3}){1,6}")
_LETTERED = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?([kKmMgGbBtT])")
_INT = re.compile(r"^[+-]?\d+(_\d+)*$")
_SIGNS = frozenset("+-.")  # what a number may begin with beside digits
_QUOTED = frozenset("'\"|>")  # styles of YAML in which a value is text, whatever it looks like
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}
EXPECTED = {  # by what pydantic calls a value of another type
    "tuple_type": "a list", "list_type": "a list", "float_type": "a number", "int_type": "a whole number", "bool_type": "true or false",
}  # fmt: skip
_MAPPING = {"mapping_type", "dict_type", "model_type"}  # of them those of a mapping
_BOUND = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_COUNTED = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}  # lists
# What YAML 1.2 knows as printable, Sec. 5.1.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
KEPT = 1 << 18  # characters of a file whose text and data are kept, for scenarios name the same ones again and again
_SCALAR, _MAPPING_END = yaml.ScalarEvent, yaml.MappingEndEvent
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Path_ = tuple[str | int, ...]
Place = tuple[str, int | None]  # file and line, the line None for what no file says


def one_of(what: str, known: Collection[str]) -> AfterValidator:
    """Text of a file that is one of the known names."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"expected {what}, one of {', '.join(known)}, got {limits.shown(name)}{did_you_mean(name, known)}")
        return name

    return AfterValidator(check)


class FileModel(BaseModel):
    """Base of every model that a file is read into: frozen, unknown keys forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)


class NamedFileModel(FileModel):
    """Base of models of whole files that have a name: a notebook shows the name, where all that they hold would fill pages."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, 'name', '')!r})"

    __str__ = __repr__


Model = TypeVar("Model", bound=BaseModel)
Read = TypeVar("Read")


class LatePlaces(Mapping[Path_, Place]):
    """Places of paths that are worked out when one is asked for: only errors need them."""

    def __init__(self, found: Callable[[], Mapping[Path_, Place]]) -> None:
        self._find = found

    @functools.cached_property
    def _found(self) -> Mapping[Path_, Place]:
        return self._find()

    def __getitem__(self, path: Path_) -> Place:
        return self._found[path]

    def __contains__(self, path: object) -> bool:
        return path in self._found

    def __iter__(self) -> Iterator[Path_]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __reduce__(self) -> tuple[type[dict[Path_, Place]], tuple[Any, ...]]:
        return dict, (dict(self._found),)


@dataclass(frozen=True, kw_only=True)
class Document:
    """The plain data of one file, or of files merged, with the file and line (from 1) at which each path begins."""

    file: str
    data: Any
    lines: Mapping[Path_, Place] = field(default_factory=dict)

    def problem(self, path: Path_, message: str) -> Problem:
        """Place a message at a path of this document, at the nearest line that is known."""
        known = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in self.lines), None)
        file, line = (self.file, None) if known is None else self.lines[known]
        set_below = [place for below, (place, _) in self.lines.items() if below[: len(path)] == path and place.startswith("--set ")]
        told = "" if file.startswith("--set ") or not path or not set_below else f" (with {', '.join(dict.fromkeys(set_below))})"
        return Problem(file=file, line=line, path=dotted(path), message=f"{message}{told}")

    def error(self, path: Path_, message: str) -> SpecError:
        """An error with a message at a path of this document."""
        return SpecError([self.problem(path, message)])

    @contextlib.contextmanager
    def telling(self, *path: str | int) -> Iterator[None]:
        """Give errors that say no place a path of this document."""
        try:
            yield
        except SpecError:
            raise
        except (CrossflowError, ValueError) as error:
            raise self.error(path, str(error).removeprefix(f"{path[0]}: ")) from None

    def blamed(self, section: str, message: str) -> Path_:
        """What a message about a whole section is about: an override below it, first one that the message names; else the section."""
        over = [path for path, (_, line) in self.lines.items() if path[:1] == (section,) and len(path) == 2 and line is None]
        named = (path for path in over if re.match(rf"{re.escape(str(path[1]))}\b", message) or f"'{path[1]}'" in message)
        return next(named, over[0] if over else (section,))

    def under(self, *path: str | int) -> Document:
        """The part of this document below a path, as a document of its own."""
        data = self.data
        for part in path:
            data = data[part]
        depth = len(path)
        lines = LatePlaces(lambda: {known[depth:]: place for known, place in self.lines.items() if known[:depth] == path})
        return Document(file=self.file, data=data, lines=lines)

    def at(self, *path: str | int) -> Document:
        """The document moved below a path of a larger one."""
        data = self.data
        for part in reversed(path):
            data = {part: data}
        lines = LatePlaces(lambda: {(*path, *known): place for known, place in self.lines.items()})
        return Document(file=self.file, data=data, lines=lines)

    def without(self, *keys: str) -> Document:
        """The document less some of its top-level keys."""
        data = {key: value for key, value in self.data.items() if key not in keys}
        lines = LatePlaces(lambda: {path: place for path, place in self.lines.items() if not path or path[0] not in keys})
        return Document(file=self.file, data=data, lines=lines)


def merge(base: Document, own: Document) -> Document:
    """The base document with the entries of another over it: mappings merge key by key, everything else is replaced."""
    inner: list[Path_] = []
    ends: list[Path_] = []
    data = _merge(base.data, own.data, (), inner, ends)
    return Document(file=own.file, data=data, lines=LatePlaces(lambda: _merged_places(base, own, inner, ends)))


def _merge(base: Any, own: Any, path: Path_, inner: list[Path_], ends: list[Path_]) -> Any:
    """The data of both; `inner` gets the paths of mappings that merge, `ends` those of what is replaced or added."""
    quantity = isinstance(base, Mapping) and "value" in base and "source" in base  # those of `latent` are widths
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)) or quantity:
        ends.append(path)
        return own
    inner.append(path)
    merged = dict(base)
    for key, value in own.items():
        if key in base:
            merged[key] = _merge(base[key], value, (*path, key), inner, ends)
        else:
            merged[key] = value
            ends.append((*path, key))
    return merged


def _merged_places(base: Document, own: Document, inner: Sequence[Path_], ends: Sequence[Path_]) -> dict[Path_, Place]:
    """Places of a merged document: of what is replaced or added its own, the others those of the base."""
    places: dict[Path_, dict[Path_, Place]] = {path: {} for path in ends}
    depths = sorted({len(path) for path in ends})

    def end_of(known: Path_) -> Path_ | None:
        return next((known[:depth] for depth in depths if known[:depth] in places), None)

    for known, place in own.lines.items():
        if (end := end_of(known)) is not None:
            places[end][known] = place
    lines = {known: place for known, place in base.lines.items() if end_of(known) is None}
    lines.update((path, own.lines[path]) for path in inner if path in own.lines)
    for path, found in places.items():
        lines.update(found or {path: _place_above(path, own)})
    return lines


def _place_above(path: Path_, document: Document) -> Place:
    """The place of the nearest path at or above one: plain data has none, and is the document's."""
    above = (document.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in document.lines)
    return next(above, (document.file, None))


def dotted(path: Sequence[str | int]) -> str:
    """Write a path as people do.

    >>> dotted(("levels", 2, "bandwidth"))
    'levels[2].bandwidth'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@stage("read")
def read_yaml(path: str | Path) -> Document:
    """Read a YAML file into a mapping with line numbers; SpecError if it cannot be read, or is not strict YAML or no mapping."""
    return read_mapping(read_text(path, limits.YAML_BYTES), str(path))


def read_mapping(text: str, file: str) -> Document:
    """The same of its text."""
    return _kept_mapping(text, file) if len(text) <= KEPT else _mapping(text, file)


def _mapping(text: str, file: str) -> Document:
    """What is no mapping is not quoted: the file may not be meant for crossflow."""
    document = parse_yaml(text, file)
    if not isinstance(document.data, Mapping):
        raise document.error((), f"expected a mapping, the file holds {'a list' if isinstance(document.data, list) else 'plain text'}")
    return document


_kept_mapping = functools.lru_cache(maxsize=128)(_mapping)  # of which nothing is changed in place


def read_text(path: str | Path, most: int = limits.DATA_BYTES) -> str:
    """Text of a file in UTF-8, with a byte-order mark or without; SpecError if it cannot be read or has more than `most` bytes."""
    try:
        content = contents.of_file(Path(path), functools.partial(limits.read, most=most))
        return _kept_text(content) if len(content) <= KEPT else _text(content)
    except (OSError, ValueError) as error:
        raise SpecError([Problem(file=str(path), message=f"cannot be read: {getattr(error, 'strerror', None) or error}")]) from None


def _text(content: bytes) -> str:
    return limits.text_of(content).replace("\r\n", "\n").replace("\r", "\n")


_kept_text = functools.lru_cache(maxsize=128)(_text)


def parse_yaml(text: str, file: str) -> Document:
    """Read YAML text into plain data with line numbers; `file` names it in messages."""
    if unprintable := _UNPRINTABLE.search(text):
        line, code = text.count("\n", 0, unprintable.start()) + 1, ord(unprintable[0])
        raise SpecError([Problem(file=file, line=line, message=f"not valid YAML: it holds the control character U+{code:04X}; remove it")])
    try:
        return _Composer(text, file).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or "it cannot be parsed"
        place = None if mark is None else mark.line + 1
        if "nesting depth" in reason:  # libyaml 0.2.6 has a limit of its own, and scans ahead of the events that are counted here
            raise SpecError([Problem(file=file, line=place, message=_TOO_DEEP)]) from None
        lines = text.splitlines()
        if place is not None and place <= len(lines) and lines[place - 1].lstrip(" ").startswith("\t"):
            reason = f"{reason}; the line is indented with a tab, write spaces"
        raise (_not_json(text, file) or SpecError([Problem(file=file, line=place, message=f"not valid YAML: {reason}")])) from None


def _not_json(text: str, file: str) -> SpecError | None:
    """What is wrong with the text of a JSON file; None for another file, and where JSON has nothing against it."""
    if not file.endswith(".json"):
        return None
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return SpecError([Problem(file=file, line=error.lineno, message=f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]}")])
    return None


_TOO_DEEP = f"more than {limits.DEPTH} lists and mappings stand inside one another here, the most that are read"


@dataclass(frozen=True, kw_only=True)
class _Anchored:
    """What an alias stands for."""

    path: Path_
    data: Any
    values: int


class _Composer:
    """Plain data from the events of one YAML document, within the limits: nothing beyond them is built, aliases included."""

    def __init__(self, text: str, file: str) -> None:
        self._next: Callable[[], Any] = _LOADER(text).get_event
        self._file = file
        self._values = 0
        self._anchors: dict[str, _Anchored | None] = {}  # None while what it names is being read
        self._lines: dict[Path_, Place] = {}
        self._problems: list[Problem] = []

    def document(self) -> Document:
        """The document with its lines; SpecError with all of its problems."""
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise SpecError([Problem(file=self._file, message="expected a mapping, the file is empty")])
        data = self._value(self._next(), ())
        self._next()
        if not isinstance(end := self._next(), yaml.StreamEndEvent):
            raise self._refused(end, "not valid YAML: but found another document")
        if self._problems:
            raise SpecError(self._problems)
        return Document(file=self._file, data=data, lines=self._lines)

    def _refused(self, event: Any, message: str, path: Path_ = ()) -> SpecError:
        """A problem that ends the reading, with those before it."""
        self._tell(event, message, path)
        return SpecError(self._problems)

    def _tell(self, event: Any, message: str, path: Path_) -> None:
        self._problems.append(Problem(file=self._file, line=event.start_mark.line + 1, path=dotted(path), message=message))

    def _count(self, event: Any, values: int, depth: int) -> None:
        self._values += values
        if self._values > limits.YAML_VALUES:
            what = " once its aliases are written out" if self._anchors else ""
            raise self._refused(event, f"the file holds more than {limits.YAML_VALUES:,} values{what}, the most that are read")
        if depth > limits.DEPTH:
            raise self._refused(event, _TOO_DEEP)

    def _value(self, event: Any, path: Path_) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        self._count(event, 1, len(path))
        self._lines[path] = (self._file, event.start_mark.line + 1)
        anchor, before = event.anchor, self._values
        if anchor is not None:
            if anchor in self._anchors:
                raise self._refused(event, f"not valid YAML: found duplicate anchor {limits.shown(anchor)}")
            self._anchors[anchor] = None
        data = self._held(event, path)
        if anchor is not None:
            self._anchors[anchor] = _Anchored(path=path, data=data, values=self._values - before + 1)
        return data

    def _held(self, event: Any, path: Path_) -> Any:
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := self._next(), yaml.SequenceEndEvent):
                items.append(self._value(item, (*path, len(items))))
            return items
        if len(event.value) > limits.TEXT:
            raise self._refused(event, f"a text has {len(event.value):,} characters, more than the {limits.TEXT:,} that are read", path)
        return event.value if event.style in _QUOTED else scalar(event.value)

    def _mapping(self, path: Path_) -> dict[str, Any]:
        result: dict[str, Any] = {}
        following, places, file, deep = self._next, self._lines, self._file, len(path) + 1 > limits.DEPTH
        while (named := following()).__class__ is not _MAPPING_END:
            plain = named.__class__ is _SCALAR and named.anchor is None and len(named.value) <= limits.KEY
            key = named.value if plain else self._key(named, path)
            below = (*path, key)
            if key in result:
                self._tell(named, f"duplicate key {limits.shown(key)} (first on line {places[below][1]})", below)
            held = following()
            if held.__class__ is _SCALAR and held.anchor is None and len(held.value) <= limits.TEXT and not deep:  # as thousands are
                self._values += 1
                if self._values > limits.YAML_VALUES:
                    self._count(held, 0, 0)
                result[key] = held.value if held.style in _QUOTED else scalar(held.value)
            else:
                result[key] = self._value(held, below)
            places[below] = (file, named.start_mark.line + 1)
        return result

    def _key(self, event: Any, path: Path_) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            kinds = {yaml.MappingStartEvent: "a mapping", yaml.SequenceStartEvent: "a list"}
            raise self._refused(event, f"expected a key as text, got {kinds.get(type(event), 'an alias')}; write it out", path)
        if len(event.value) > limits.KEY:
            raise self._refused(event, f"a key has {len(event.value):,} characters, more than the {limits.KEY} that are read", path)
        if event.anchor is not None:
            raise self._refused(event, "a key cannot be an anchor; write it out where it is needed", path)
        return str(event.value)

    def _alias(self, event: Any, path: Path_) -> Any:
        """What an alias stands for, as a copy with the lines of what it names."""
        self._lines[path] = (self._file, event.start_mark.line + 1)
        if event.anchor not in self._anchors:
            raise self._refused(event, f"not valid YAML: found undefined alias {limits.shown(event.anchor)}", path)
        named = self._anchors[event.anchor]
        if named is None:
            self._tell(event, "the alias stands inside what it names", path)
            return None
        self._count(event, named.values, len(path))
        for below, _ in walk(named.data):
            self._count(event, 0, len(path) + len(below))
            self._lines[(*path, *below)] = self._lines[(*named.path, *below)]
        return copy.deepcopy(named.data)


def scalar(text: str) -> Any:
    """Read an unquoted scalar as YAML 1.2 would: number, true, false, null or text; what no float holds stays text.

    >>> scalar("1e9"), scalar("on"), scalar("12"), scalar("true"), scalar("80 GiB")
    (1000000000.0, 'on', 12, True, '80 GiB')
    """
    if not text[:1].isdecimal() and text[:1] not in _SIGNS:
        return _WORDS.get(text.lower(), text)
    if len(text) > limits.DIGITS:  # which no model takes for a number
        return text
    if _INT.match(text):
        return int(text)
    number = float(text) if _FLOAT.match(text) else math.inf
    return text if math.isinf(number) else number


def validate(model: type[Model], document: Document, *, sourced: bool = False) -> Model:
    """Read a document into a model; SpecError with all of its problems.

    `sourced` demands ``{value, source}`` of every number, as libraries and templates must give.
    """
    try:
        return model.model_validate(document.data, context={"sourced": sourced})
    except ValidationError as error:
        details = error.errors()
        problems = [_problem(model, document, detail) for detail in details]
        raise SpecError(_either(problems, [detail["type"] for detail in details], [detail.get("input") for detail in details])) from None


def validate_at(model: type[Model], document: Document, *path: str) -> Model:
    """Read the part of a document below a path into a model; the problems carry the whole path."""
    try:
        return validate(model, document.under(*path))
    except SpecError as error:
        raise SpecError(problem.below(dotted(path)) for problem in error.problems) from None


def _either(problems: Sequence[Problem], kinds: Sequence[str], given: Sequence[Any]) -> Iterator[Problem]:
    """The problems, one in the place of those of a key that may hold several kinds of values and holds none of them."""
    found: dict[tuple[int | None, str], list[tuple[Problem, str]]] = {}
    for problem, kind in zip(problems, kinds, strict=True):
        found.setdefault((problem.line, problem.path), []).append((problem, kind))
    for problem, kind, value in zip(problems, kinds, given, strict=True):
        here = found[problem.line, problem.path]
        of_kinds = {one for _, one in here}
        words = [one for one, of in here if of == "literal_error"]
        inside = (f"{problem.path}.", f"{problem.path}[")
        told = kind in _COUNTED or (kind == "literal_error" and isinstance(value, Mapping))
        if told and any(one.path.startswith(inside) for one in problems):
            continue  # what is wrong inside it is told; of a list only entries without a problem are counted
        if "string_type" in of_kinds and of_kinds & _MAPPING:
            if kind == "string_type":
                yield dataclasses.replace(problem, message=f"expected text or a mapping, got {limits.shown(value)}")
        elif not words or len(words) == len(here):
            yield problem
        elif kind != "literal_error":
            yield dataclasses.replace(problem, message=_or_words(problem.message, words[0].message))


def _or_words(message: str, words: str) -> str:
    """A sentence on a value that could also have been one of some words, with these.

    >>> _or_words("expected a quantity in s, got 'soon'", "expected one of auto, got 'soon'")
    "expected a quantity in s or auto, got 'soon'"
    """
    listed = words.partition("; ")[0].removeprefix("expected one of ").rpartition(", got ")[0].split(", ")
    head, got, rest = message.partition(", got ")
    hint = "".join(words.partition("; did you mean ")[1:])
    return f"{head}{', ' if len(listed) > 1 else ' '}or {either(listed)}{got}{rest}{hint if 'did you mean' not in message else ''}"


def _problem(model: type[BaseModel], document: Document, detail: ErrorDetails) -> Problem:
    kind, given, message = detail["type"], detail.get("input"), detail["msg"].removeprefix("Value error, ")
    location, held = _trim(detail["loc"], document.data, missing=kind in ("missing", "extra_forbidden"))
    # A validator of a whole model, or of a quantity, begins its sentence with the path that it is about.
    about, separator, rest = message.partition(": ")
    if separator and re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", about) and isinstance(held, Mapping) and about.split(".")[0] in held:
        location, message = (*location, *about.split(".")), rest
    shape = f"an array of shape {given.shape}" if getattr(given, "shape", ()) else limits.shown(given)
    if kind == "extra_forbidden":
        known = _known_keys(model, location[:-1])
        renamed = RENAMED.get(str(location[-1]))
        hint = did_you_mean(str(location[-1]), known) if renamed is None else f"; {renamed}"
        message = f"unknown key {limits.shown(location[-1])}{hint}"
        message += "" if hint or not known else f"; known keys: {', '.join(sorted(known))}"
    elif kind == "missing":
        message = f"the key '{location[-1]}' is missing{_what_it_holds(model, location)}"
        location = location[:-1]
    elif kind == "union_tag_not_found":
        message = f"the key {detail['ctx']['discriminator']} is missing"
    elif kind == "union_tag_invalid":
        location = (*location, str(detail["ctx"]["discriminator"]).strip("'"))
        message = _one_of(str(detail["ctx"]["expected_tags"]), detail["ctx"]["tag"])
    elif kind == "literal_error":
        message = _one_of(str(detail.get("ctx", {}).get("expected", "")), given)
    elif kind in _COUNTED:
        word, key = _COUNTED[kind]
        count = detail["ctx"][key]
        message = f"expected {word} {count:,} {'entry' if count == 1 else 'entries'}, got {shape}"
    elif kind in _BOUND:
        word, bound = _BOUND[kind][0], detail["ctx"][_BOUND[kind][1]]
        message = f"expected {word} {limits.shown(int(bound) if bound == int(bound) < limits.COUNT else bound)}, got {shape}"
    elif kind in _MAPPING:
        message = f"expected a mapping, got {limits.shown(given)}"
    elif kind in EXPECTED:
        quoted = isinstance(given, str) and not isinstance(scalar(given), str)
        message = f"expected {EXPECTED[kind]}, got {shape}{'; write it without quotes' if quoted else _in_full(given)}"
    elif kind not in ("value_error", "assertion_error"):
        message = f"{message[0].lower()}{message[1:]}, got {shape}"
    return document.problem(location, message)


def _in_full(given: Any) -> str:
    """How a number with a letter for thousands, millions or more, or with commas, is written; empty for all else.

    >>> _in_full("15T"), _in_full("4k"), _in_full("two")
    ('; write it in full: 15000000000000', '; write it in full: 4000, or 4096 for binary thousands', '')
    >>> _in_full("64,128"), _in_full("64,12")
    ('; a number has no commas: 64128; crossflow sweep takes several values', '')
    """
    if isinstance(given, str) and _GROUPED.fullmatch(given):
        return f"; a number has no commas: {given.replace(',', '')}; crossflow sweep takes several values"
    found = _LETTERED.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        return ""
    number, power = float(found[1]), "kmbt".index(found[2].lower().replace("g", "b")) + 1
    binary = f", or {number * 1024**power:.0f} for binary {('thousands', 'millions')[power - 1]}" if power < 3 else ""
    return f"; write it in full: {number * 1000**power:.0f}{binary}"


def _one_of(expected: str, given: Any) -> str:
    """Sentence on a value that is none of those that pydantic names in quotes."""
    options = re.findall(r"'([^']*)'", expected) or [expected]
    return f"expected one of {', '.join(options)}, got {limits.shown(given)}{did_you_mean(str(given), options)}"


def _trim(location: tuple[str | int, ...], data: Any, *, missing: bool) -> tuple[Path_, Any]:
    """The parts of a pydantic location that are keys of the data (others name unions and validators), and what stands there.

    The last one of a `missing` key is kept.
    """
    kept: list[str | int] = []
    for part in location:
        held = dict(enumerate(data)) if isinstance(data, list) else data
        if isinstance(held, Mapping) and part in held:
            data = held[part]
            kept.append(part)
    if missing and kept[-1:] != list(location[-1:]):
        kept.append(location[-1])
    return tuple(kept), data


def _known_keys(model: Any, path: tuple[str | int, ...]) -> set[str]:
    """Keys that a model accepts at a path, as far as its annotations tell."""
    models = [model]
    for part in path:
        models = [inner for outer in models for inner in _inner(outer, part)]
    return {one.alias or key for found in models if hasattr(found, "model_fields") for key, one in found.model_fields.items()}


def _what_it_holds(model: Any, path: tuple[str | int, ...]) -> str:
    """What the key at a path may hold, as the end of a sentence: its words, else what it means; empty where nothing says it."""
    models = [model]
    for part in path[:-1]:
        models = [inner for outer in models for inner in _inner(outer, part)]
    for held in (found.model_fields[path[-1]] for found in models if path[-1] in getattr(found, "model_fields", {})):
        if getattr(held.annotation, "__origin__", None) is Literal:
            return f": {either(list(map(str, held.annotation.__args__)))}"
        return f": {held.description}" if held.description else ""
    return ""


def _inner(annotation: Any, part: str | int) -> list[Any]:
    fields = getattr(annotation, "model_fields", None)
    if fields is not None:
        return _options(fields[part].annotation) if part in fields else []
    arguments = [one for one in getattr(annotation, "__args__", ()) if one is not Ellipsis]  # of tuple[entry, ...]
    return [option for argument in arguments[-1:] for option in _options(argument)]


def _options(annotation: Any) -> list[Any]:
    origin = getattr(annotation, "__origin__", None)
    arguments = getattr(annotation, "__args__", ())
    if arguments and (origin is None or str(origin) == "typing.Union"):
        return [option for argument in arguments for option in _options(argument)]
    return [annotation]


# ---------------------------------------------------------------------------------------------- shipped files


IN_CHECKOUT = {"examples": "docs/examples"}  # kinds whose folder has another name beside the package than in it


@functools.cache
def data_folder(kind: str) -> Path:
    """Folder of the shipped files of a kind: inside the installed package, or beside it in a checkout."""
    wing = Path(__file__).parent
    installed = wing / "data" / kind
    return installed if installed.is_dir() else wing.parent.parent / IN_CHECKOUT.get(kind, kind)


@functools.cache
def catalogue(kind: str, *folders: str) -> Mapping[str, Path]:
    """Shipped files of a kind by name, of some sub-folders or all; they are looked through once."""
    paths = (path for folder in folders or ("",) for path in sorted((data_folder(kind) / folder).rglob("*.yaml")))
    return MappingProxyType({path.stem: path for path in paths})


@functools.lru_cache(maxsize=4096)
def shipped_name(kind: str, name: str, *folders: str) -> str | None:
    """Name of the shipped file that a name stands for, in any letter case; None where there is none, as for the path of a user's file."""
    return known_name(name, catalogue(kind, *folders))


def find(kind: str, name: str, base: Path | None = None, *folders: str) -> Path:
    """Path of a shipped file by name, in some sub-folders alone where they are given, or of a user's file by path.

    Names are read in any letter case. Paths end in .yaml, .yml or .json, and are relative to `base`, then to the current folder. Raises
    CrossflowError naming the known names when there is no such file.
    """
    shipped = catalogue(kind, *folders)
    if (known := shipped_name(kind, name, *folders)) is not None:
        return shipped[known]
    candidates = [Path(name)] if base is None else [base / name, Path(name)]
    for candidate in candidates if Path(name).suffix in YAML else ():
        if contents.is_file(candidate):
            return candidate
    if Path(name).suffix in YAML and Path(name).stem in shipped and Path(name).parent.name in (*KINDS, ""):
        return shipped[Path(name).stem]
    likeness = {other: difflib.SequenceMatcher(None, name.lower(), other).quick_ratio() for other in shipped}
    listed = shipped if len(shipped) <= LISTED else sorted(shipped, key=lambda other: -likeness[other])  # of many the nearest
    there = f"known: {among(listed, f'`crossflow list {kind}`') or 'none'} (or give the path of a YAML file)"
    what = HELD.get(folders[0], SINGULAR[kind]) if len(folders) == 1 else SINGULAR[kind]
    if folders and (other := shipped_name(kind, name)) is not None:  # of another folder
        is_a = with_article(HELD.get(catalogue(kind)[other].parent.name, "system"))
        raise CrossflowError(f"'{other}' is {is_a}, and no {what}{did_you_mean(name, shipped)}; `crossflow show {other}` has what it holds")
    raise CrossflowError(f"unknown {what} '{name}'{did_you_mean(name, shipped)}; {there}")


def from_folder(path: Path, folder: Path) -> str:
    """A file's path from a folder, as a file of that folder names it; the whole path where they lie on different drives."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:
        return path.resolve().as_posix()


# ---------------------------------------------------------------------------------------------- overrides


def parts_of(path: str) -> tuple[str | int, ...]:
    """Keys and indices of a dotted path.

    >>> parts_of("levels.2.size"), parts_of("workload.²")
    (('levels', 2, 'size'), ('workload', '²'))
    """
    return tuple(int(part) if part.isdecimal() and part.isascii() else part for part in path.split("."))


def override(
    document: Document, settings: Iterable[str], origin: str = "--set", written: Mapping[str, str] = MappingProxyType({})
) -> Document:
    """Return the document with ``path=value`` settings applied; SpecError for one that cannot be.

    `written` has settings as a user wrote them, where they stand here in another form.

    >>> override(Document(file="s.yaml", data={"system": {"devices": 8}}), ["system.devices=512"]).data
    {'system': {'devices': 512}}
    """
    data = document.data
    places: list[tuple[Path_, str]] = []
    for setting in settings:
        path, separator, text = setting.partition("=")
        if not separator or not path:
            raise SpecError([Problem(file=origin, message=f"expected path=value, got {limits.shown(setting)}")])
        parts = parts_of(path)
        value = parse_yaml(text, f"{origin} {path}").data if text.lstrip()[:1] in ("{", "[") else scalar(text.strip())
        where = f"{origin} {shortened(written.get(setting, setting))}"
        data = replace(data, parts, value, where)
        places.append((parts, where))
    return Document(file=document.file, data=data, lines=LatePlaces(lambda: _set_places(document, places)))


def _set_places(document: Document, places: Iterable[tuple[Path_, str]]) -> dict[Path_, Place]:
    """Places of a document with settings, each of which has a path and an origin."""
    lines = dict(document.lines)
    for parts, where in places:
        lines = {known: place for known, place in lines.items() if known[: len(parts)] != parts}
        new = (parts[:end] for end in range(1, len(parts) + 1) if end == len(parts) or held(document.data, parts[:end]) is None)
        lines |= {one: (where, None) for one in new if one not in lines}
    return lines


def with_settings(read: Callable[[Sequence[str]], Read], settings: Sequence[str]) -> Read:
    """What is read with overrides; where only they make something else in the file wrong, its problems name them.

    Those are named without each of which the file is right; all of them where there is none.
    """
    try:
        return read(settings)
    except SpecError as error:
        elsewhere = [problem for problem in error.problems if "--set " not in f"{problem.file}{problem.message}"]
        if not settings or not elsewhere or not _is_read(read, ()):
            raise
        causes = [one for i, one in enumerate(settings) if _is_read(read, (*settings[:i], *settings[i + 1 :]))] or settings
        told = f" (with {', '.join(f'--set {shortened(one)}' for one in causes)})"
        raise SpecError(
            dataclasses.replace(one, message=f"{one.message}{told}") if one in elsewhere else one for one in error.problems
        ) from None


def _is_read(read: Callable[[Sequence[str]], Any], settings: Sequence[str]) -> bool:
    try:
        read(settings)
    except CrossflowError:
        return False
    return True


def replace(data: Any, path: Path_, value: Any, origin: str) -> Any:
    """Return a copy of plain data with one path set, making mappings on the way where there are none."""
    if not path:
        return value
    if len(path) > limits.DEPTH:
        raise SpecError([Problem(file=origin, message=f"a path has at most {limits.DEPTH} parts, got {limits.shown(dotted(path))}")])
    head, rest = path[0], path[1:]
    if isinstance(data, list):
        if not isinstance(head, int) or head >= len(data):
            raise SpecError([Problem(file=origin, message=f"'{head}' is not an index of a list of {len(data)}")])
        return [replace(item, rest, value, origin) if i == head else item for i, item in enumerate(data)]
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        # A name such as `template: v100` gives way to nothing: what is under it lives in its own file.
        raise SpecError([Problem(file=origin, message=f"nothing can be set under {data!r}; it has no key '{head}'")])
    return {**data, head: replace(data.get(head), rest, value, origin)}


def replaced(document: Document, values: Mapping[Path_, Any]) -> Document:
    """The document with other values at some paths, each at the place of what stood there."""
    data = document.data
    for path, value in values.items():
        data = replace(data, path, value, document.file)
    return Document(file=document.file, data=data, lines=document.lines)


def renamed(document: Document, path: Path_, name: str) -> Document:
    """The document with another name for the key at a path; SpecError where that stands beside it."""
    *above, key = path
    if key == name:
        return document
    held_here = held(document.data, above)
    if name in held_here:
        raise document.error(path, f"'{name}' stands beside it and means the same; give one of them")
    data = replace(document.data, tuple(above), {name if one == key else one: value for one, value in held_here.items()}, document.file)
    end = len(path)
    places = document.lines
    lines = LatePlaces(lambda: {(*above, name, *known[end:]) if known[:end] == path else known: place for known, place in places.items()})
    return Document(file=document.file, data=data, lines=lines)


# ---------------------------------------------------------------------------------------------- writing


class UnwrittenError(CrossflowError):
    """A file that the system does not let be written, with the option that names another place."""

    def __init__(self, path: Path, reason: str | None, option: str = "--out") -> None:
        self.path, self.reason = path, reason
        super().__init__(f"cannot write {path}: {reason}; choose another folder with {option}")


@contextlib.contextmanager
def named_by(option: str) -> Iterator[None]:
    """Blame what cannot be written on the option that named it."""
    try:
        yield
    except UnwrittenError as error:
        raise UnwrittenError(error.path, error.reason, option) from None


def check_writable(path: Path, option: str, *, folder: bool = False) -> None:
    """CrossflowError where a file, or a folder of files, could not be written, before what it shall hold is computed.

    Folders that are missing are made when the file is written; the nearest one that is there must take a file.
    """
    if path.is_dir() and not folder:
        raise CrossflowError(f"{path} is a folder; name a file in it with {option}")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CrossflowError(f"{path} is no regular file; name a file with {option}")
    there = path if folder else path.parent
    while not there.is_dir() and not os.path.lexists(there) and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UnwrittenError(path, error.strerror, option) from None


def check_new(*paths: Path, replace: bool) -> None:
    """CrossflowError where a file that would be written is there already, unless it may be replaced, and where it could not be written."""
    for path in paths:
        check_writable(path, "-o")
        if os.path.lexists(path) and not replace:
            raise CrossflowError(f"{path} exists; give --force to replace it, or another name with -o")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: into a temporary neighbour first, then renamed over `path`."""
    write_bytes(path, text.encode("utf-8"))


def table_rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Rows of a table, CSV or a JSON object a line, with their line numbers; comment lines begin with #.

    Raises
    ------
    SpecError
        For rows with more or fewer cells than the header, and columns of one name.
    """
    return rows_of(read_text(path), path)


def rows_of(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The same of the text of a table; `path` names it."""
    lines = enumerate(text.splitlines(), start=1)
    kept = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    if path.suffix in (".jsonl", ".json"):
        for number, line in kept:
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
                raise SpecError([Problem(file=str(path), line=number, message=f"expected an object a line: {reason}")]) from None
            if not isinstance(row, dict):
                raise SpecError([Problem(file=str(path), line=number, message=f"expected an object a line, got {line[:40]}")])
            yield number, {str(key): "" if value is None else str(value).strip() for key, value in row.items()}
        return
    try:
        reader = csv.reader([line for _, line in kept], strict=True)
        table = [(reader.line_num, cells) for cells in reader]  # the line that a row ends on: cells in quotes may have several
    except csv.Error as error:
        raise SpecError([Problem(file=str(path), message=f"is not a table: {error}")]) from None
    header = [name.strip() for name in table[0][1]] if table else []
    begins = [end for end, _ in table]
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise SpecError([Problem(file=str(path), line=kept[0][0], message=f"column '{twice[0]}' is there twice")])
    problems, rows = [], []
    for begin, (_, cells) in zip(begins, table[1:], strict=False):
        number = kept[begin][0]
        if len(cells) != len(header):
            problems.append(Problem(file=str(path), line=number, message=f"expected {len(header)} cells as its header, got {len(cells)}"))
        rows.append((number, {name: cell.strip() for name, cell in zip(header, cells, strict=False)}))
    if problems:
        raise SpecError(problems)
    yield from rows


def from_json(text: str | bytes) -> Any:
    """Data of a JSON text; ValueError where it is not JSON, which knows no NaN, or where an object has a key twice."""
    return limits.json_value(text)


def json_data(path: Path) -> Any:
    """Data of a JSON file, compressed where its name ends in ``.gz``; OSError, or ValueError where it is not JSON."""
    raw = contents.of_file(path, limits.read)
    try:
        return from_json(limits.unpacked(raw) if path.suffix == ".gz" else raw)
    except (EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None


def read_json(path: Path, what: str) -> Any:
    """The same; SpecError where it cannot be read, or is no JSON of `what` it should hold."""
    try:
        return json_data(path)
    except OSError as error:
        raise SpecError([Problem(file=str(path), message=f"cannot be read: {error.strerror or error}")]) from None
    except ValueError as error:
        raise SpecError([Problem(file=str(path), message=f"expected {what} in JSON, {error}")]) from None


def write_json(path: Path, data: Any, *, indented: bool = False) -> None:
    """Write plain data as JSON, whole or not at all, compressed where the name ends in ``.gz``."""
    import orjson

    text = orjson.dumps(data, option=orjson.OPT_INDENT_2 if indented else None)
    write_bytes(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def python_module(path: Path) -> ModuleType:
    """The module of a Python file of the user, which runs here; whatever it raises."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where dataclasses look for the types of their fields
    spec.loader.exec_module(module)
    return module


def json_text(data: Any) -> str:
    """Plain data as JSON that people can read; numbers must be finite."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as the text of a YAML file."""
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; CrossflowError when the folder does not take it."""
    with replacing(path, binary=True) as stream:
        stream.write(content)


@contextlib.contextmanager
def replacing(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A stream into a temporary neighbour of a file, which takes the file's place at the end and is removed on any error."""
    temporary = None
    if path.exists() and not path.is_file():  # a device or a pipe would be gone, for everyone on the machine
        raise UnwrittenError(path, "it is a folder" if path.is_dir() else "it is a device or a pipe, not a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") if binary else os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            yield stream
        os.chmod(temporary, 0o644)
        platforms.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise UnwrittenError(path, error.strerror) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):  # with its folder, or renamed as a signal came
                os.unlink(temporary)


def held(data: Any, path: Sequence[str | int]) -> Any:
    """The value of plain data at a path, None where there is none."""
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def leaves(data: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Values of plain data with their paths; one may be a mapping with its value, bounds and source."""
    if isinstance(data, Mapping) and "value" not in data:
        for key, below in data.items():
            yield from leaves(below, (*path, key))
    else:
        yield path, data


def walk(data: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every value of plain data with its path, containers before what they hold."""
    yield path, data
    items = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if value is None or isinstance(value, (str, float, int)):  # as most are, which hold nothing
            yield (*path, key), value
        else:
            yield from walk(value, (*path, key))
