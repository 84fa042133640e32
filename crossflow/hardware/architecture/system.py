"""A scenario's `system` section becomes one specification: template, family and the scenario's own changes, merged."""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from crossflow.base import files
from crossflow.base.arrays import Array, points
from crossflow.base.errors import CrossflowError, Problem, SpecError, did_you_mean, folded
from crossflow.base.files import Document, Path_
from crossflow.base.limits import shown
from crossflow.base.stages import stage
from crossflow.hardware.architecture import divisions
from crossflow.hardware.architecture.datasheet import from_datasheet
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.template import CHANGED, READING, DatasheetSystem, GeneratedSystem, PoolName, SystemSpec, is_none
from crossflow.hardware.technology.library import Choice, TechLibrary, kind_of, load_library

_KINDS: Mapping[str, type[GeneratedSystem] | type[DatasheetSystem]] = {"generated": GeneratedSystem, "datasheet": DatasheetSystem}
REFERENCE = "a100-80gb"  # device that normalised device-hours are hours of
TEMPLATES = ("systems", "devices", "generated")  # folders of what a scenario can name as its system
PLAIN: Mapping[str, str] = {"a100": "a100-80gb", "h100": "h100-sxm"}  # forms in which most of these chips are
# Keys of a system file that describe the file rather than the device that it is made of.
_OF_THE_FILE = ("kind", "device")


# Keys of a pool that its own system has, and what they follow from.
OF_A_POOL = {"pools": "a pool has none"}
NO_ENGINES: Mapping[str, str] = {}
POOL = TypeAdapter(PoolName)


def resolve(document: Document, base: Path | None = None, engines: Mapping[str, str] = NO_ENGINES) -> tuple[SystemSpec, Document]:
    """Specification of a system section, and the merged data behind it, each line still known.

    engines : pools on which a part of a service runs, each with what says how many devices it has, as the begin of a sentence.

    Raises
    ------
    SpecError, CrossflowError
        For problems in the section, in its pools or in the files that they name.
    """
    below = _merged(document, base)
    spec, merged = _of_one_kind(below.without("pools"), base)
    return _with_pools(spec, merged, below, base, engines) if below.data.get("pools") else (spec, merged)


def _with_pools(
    spec: SystemSpec, merged: Document, below: Document, base: Path | None, engines: Mapping[str, str]
) -> tuple[SystemSpec, Document]:
    """A system with its pools, each read as a section of its own."""
    sections = below.data["pools"]
    if not isinstance(sections, Mapping):
        raise below.error(("pools",), f"expected systems by name, such as prefill; got {shown(sections)}")
    pools, problems = dict[str, SystemSpec](), list[Problem]()
    for name in sections:
        try:
            POOL.validate_python(name)
        except ValidationError:
            message = f"{shown(name)} is no name of a pool: a letter, then up to 39 letters, digits, _ and -"
            problems.append(below.problem(("pools", name), message))
            continue
        try:
            pools[name], found = _pool(below.under("pools", name), base, _refused_in(name, engines))
        except SpecError as error:
            problems += [problem.below(f"pools.{name}") for problem in error.problems]
        else:
            merged = files.merge(merged, found.at("pools", name))
    if problems:
        raise SpecError(problems)
    return spec.model_copy(update={"pools": pools}), merged


def _refused_in(name: str, engines: Mapping[str, str]) -> Mapping[str, str]:
    """Keys that a pool does not have, each with what it follows from."""
    says = "the workers of serving.prefill say" if name == READING else engines.get(name)
    return OF_A_POOL if says is None else OF_A_POOL | dict.fromkeys(("devices", "nodes"), f"{says} how many it has")


def _pool(section: Document, base: Path | None, refused: Mapping[str, str]) -> tuple[SystemSpec, Document]:
    """A pool of a system; SpecError for keys that only a whole system has."""
    data = {"template": section.data} if isinstance(section.data, str) else section.data
    wrong = [key for key in refused if isinstance(data, Mapping) and key in data]
    if wrong:
        raise SpecError([section.problem((key,), f"{refused[key]}; leave it out") for key in wrong])
    below = _merged(section, base)
    return _of_one_kind(below.without(*refused), base)


def _of_one_kind(below: Document, base: Path | None) -> tuple[SystemSpec, Document]:
    """Specification of a merged section of devices of one kind, and its data."""
    spec, merged = _read(below)
    if renamed := _technology_names(spec, merged, base):
        spec, merged = _read(files.replaced(below, renamed))
    if isinstance(spec, GeneratedSystem) and (values := divisions.between(spec, load_library(spec.techlib, base))):
        merged = files.replaced(merged, values)
        spec = _specified(merged)
    return spec, merged


def _read(below: Document) -> tuple[SystemSpec, Document]:
    merged = divisions.chosen(below)
    return _specified(merged), merged


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A document that is like every other with the same data."""

    data: bytes
    document: Document = field(compare=False)


def _specified(merged: Document) -> SystemSpec:
    """The specification that a merged section writes down; equal sections, of which many scenarios stand on, share one."""
    kind = _kind(merged)
    try:
        written = _Written(data=pickle.dumps(merged.data), document=merged)
    except (pickle.PicklingError, TypeError, AttributeError):  # something of a program of the user's, which is refused
        return _validated(kind, merged)
    return _kept(kind, written)


def _validated(kind: str, document: Document) -> SystemSpec:
    spec: SystemSpec = files.validate(_KINDS[kind], document)
    return spec


@functools.lru_cache(maxsize=256)
def _kept(kind: str, written: _Written) -> SystemSpec:
    return _validated(kind, written.document)


def _kind(document: Document) -> str:
    """Kind of a merged template; SpecError at the file that says none."""
    kind = document.data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = (*_KINDS, "system")
        if kind is None and {"system", "workload"} & set(document.data):
            raise document.error((), "this is a scenario and no system; give what its section `system` holds, or the scenario by itself")
        raise document.error(("kind",), f"expected one of {', '.join(known)}, got {shown(kind)}{did_you_mean(str(kind), known)}")
    return kind


def kind_of_system(document: Document, base: Path | None = None) -> str:
    """Kind of the devices of a system section, read without its other keys; errors as `resolve`."""
    return _kind(_merged(document, base))


def _technology_names(spec: SystemSpec, document: Document, base: Path | None) -> dict[Path_, str]:
    """Technology names of a system that its library writes otherwise, by path; SpecError with every one that the library does not have."""
    _found("techlibs", spec.techlib, base, document, "techlib")
    parts = load_library(spec.techlib, base)
    named: list[tuple[Path_, str, str]] = [
        (("technology", role), kind_of(role), name)
        for role, name in spec.technology.model_dump(exclude_none=True).items()
        if not (kind_of(role) == "memory" and is_none(name))
    ]
    if isinstance(spec, GeneratedSystem):
        named += [(("levels", level, "component"), "on_chip", entry.component) for level, entry in spec.levels.items()]
        tabled = enumerate(spec.budgets.divisions[:-1])  # the last one is for all others
        named += [(("budgets", "divisions", i, role), role, getattr(row, role)) for i, row in tabled for role in divisions.ROLES]
    problems: list[Problem] = []
    renamed: dict[Path_, str] = {}
    if (library := files.shipped_name("techlibs", spec.techlib)) not in (None, spec.techlib):
        renamed["techlib",] = str(library)
    for path, kind, name in named:
        try:
            if (known := parts.name_of(kind, name)) != name:
                renamed[path] = known
        except CrossflowError as error:
            problems.append(document.problem(path, str(error)))
    if problems:
        raise SpecError(problems)
    return renamed


def _merged(document: Document, base: Path | None, above: tuple[Path, ...] = ()) -> Document:
    """The section over its template, a system over its device, a datasheet device over its family; `above` are the files that led here."""
    if isinstance(document.data, str):
        document = Document(file=document.file, data={"template": document.data}, lines=document.lines)
    if not isinstance(document.data, Mapping):
        raise document.error((), f"expected a mapping with a template, got {document.data!r}")
    if "template" in document.data:
        below = _template(document, base, above)
        own = document.without("template")
    elif "kind" in document.data:
        below, own = _with_device(document, base, above), None
    else:
        raise document.error((), "the key 'template' is missing: a template name, a path, or an inline template")
    if own is None:
        return below
    if own.data.get("devices") is not None and own.data.get("nodes") is None:
        below = below.without("nodes")
    if own.data.get("nodes") is not None and own.data.get("devices") is None:
        below = below.without("devices")
    _check_overridden(below, own)
    below, own = _without_levels(below, own)
    below = _without_memory(below, own)
    return divisions.over(_without_changes(below, own), own)


def _without_levels(below: Document, own: Document) -> tuple[Document, Document]:
    """A generated template without the cache levels that are null in the section, their shares and their microarchitecture."""
    given, held = files.held(own.data, ("levels",)), files.held(below.data, ("levels",))
    if not isinstance(given, Mapping) or not isinstance(held, Mapping) or below.data.get("kind") != "generated":
        return below, own
    gone = [name for name, level in given.items() if level is None]
    if lost := next((name for name in gone if name not in held), None):
        message = f"null leaves out nothing: there is no level '{lost}'{did_you_mean(lost, held)}; levels: {', '.join(held)}"
        raise own.error(("levels", lost), message)
    if not gone:
        return below, own
    kept = files.replace(own.data, ("levels",), {name: level for name, level in given.items() if name not in gone}, own.file)
    return divisions.without_levels(below, gone), Document(file=own.file, data=kept, lines=own.lines)


def _without_memory(below: Document, own: Document) -> Document:
    """A generated template without its main memory, where the section says that there is none: shares, figures and changes of it."""
    if below.data.get("kind") != "generated" or not is_none(files.held(own.data, ("technology", "memory"))):
        return below
    return divisions.without_memory(below)


def _without_changes(below: Document, own: Document) -> Document:
    """The template without its changes of library entries in whose place the section names others."""
    levels = files.held(below.data, ("levels",))
    named: dict[tuple[str, ...], tuple[str, ...]] = {("components", role): ("technology", role) for role in CHANGED}
    named |= {("components", "on_chip", name): ("levels", name, "component") for name in (levels if isinstance(levels, Mapping) else ())}
    for (*above, last), entry in named.items():
        given, changes = files.held(own.data, entry), files.held(below.data, above)
        if not _same(given, files.held(below.data, entry)) and isinstance(changes, Mapping) and last in changes:
            left = {name: change for name, change in changes.items() if name != last}
            below = Document(file=below.file, data=files.replace(below.data, tuple(above), left, below.file), lines=below.lines)
    return below


def _same(given: Any, held: Any) -> bool:
    """Whether a section names no other library entry than the template below it."""
    return given in (None, held) or (isinstance(given, str) and isinstance(held, str) and folded(given) == folded(held))


@functools.lru_cache(maxsize=4096)
def template_name(name: str) -> str | None:
    """The shipped system or device that a name stands for, in any letter case, with or without hyphens; None where there is none.

    >>> template_name("DGX_H100"), template_name("RTX 4090"), template_name("h100")
    ('dgx-h100', 'rtx-4090', None)
    """
    if (known := files.shipped_name("templates", name, *TEMPLATES)) is not None:
        return known
    alike = [other for other in files.catalogue("templates", *TEMPLATES) if _letters(other) == _letters(name)]
    return alike[0] if len(alike) == 1 else None


def _letters(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def asked_system(name: str) -> str | None:
    """The same of a question, where the plain name of a chip that is sold in several forms stands for one of them, which has to be told.

    >>> asked_system("H100"), asked_system("H100 NVL")
    ('h100-sxm', 'h100-nvl')
    """
    return template_name(name) or PLAIN.get(name.lower())


def _template(document: Document, base: Path | None, above: tuple[Path, ...], key: str = "template") -> Document:
    named = document.data[key]
    if isinstance(named, Mapping):
        return _with_device(document.under(key), base, above)
    if not isinstance(named, str):
        raise document.error((key,), f"expected a template name, a path or a mapping, got {shown(named)}")
    path = _found("templates", named, base, document, key, *TEMPLATES)
    led = (*above, path.resolve())
    if led[-1] in above:
        raise document.error((key,), f"a template cannot stand on itself: {' -> '.join(one.name for one in led)}")
    return _with_device(divisions.read_divisions(files.read_yaml(path), path.parent), path.parent, led)


def _found(kind: str, name: str, base: Path | None, document: Document, key: str, *folders: str) -> Path:
    """Path of the file that a key of a document names; SpecError at that key when there is none."""
    with document.telling(key):
        return files.find(kind, name, base, *folders)


def _with_device(document: Document, base: Path | None, above: tuple[Path, ...]) -> Document:
    """A template with what it builds on: a file on its template, a system on its device, a datasheet device on its family."""
    data = document.data
    if not isinstance(data, Mapping):
        raise document.error((), "expected a mapping with a template")
    if "template" in data:  # another system, or a device, over which the file lays its own values
        below = _merged(document.without("kind"), base, above)
        if data.get("kind", "system") not in ("system", below.data.get("kind")):
            held = f"kind: {below.data.get('kind')}, as what it builds on"
            raise document.error(("kind",), f"expected {held}, or system, or nothing; got {shown(data['kind'])}")
        return below
    if data.get("kind") == "system":
        if "device" not in data:
            raise document.error((), "the key 'device' is missing: a system names the template of its devices")
        device = _template(document, base, above, key="device")
        _check_overridden(device, document)
        return files.merge(device, document.without(*_OF_THE_FILE))
    _kind(document)
    fabrics = files.find("templates", "fabrics")
    below = _fabrics(str(fabrics), files.read_text(fabrics))
    if data.get("kind") == "datasheet":
        below = files.merge(below, _family(document, below, base).without("kind", "name", "title"))
    return files.merge(below, document)


def _family(document: Document, below: Document, base: Path | None) -> Document:
    """The family of a datasheet device; SpecError, with what else is wrong with the device, where it names none that is known."""
    named, known = document.data.get("family"), files.catalogue("templates", "families")
    if isinstance(named, str) and ("/" in named or named.endswith(files.YAML) or files.shipped_name("templates", named, "families")):
        return files.read_yaml(_found("templates", named, base, document, "family", "families"))
    families = [name for name, path in known.items() if files.read_yaml(path).data.get("kind") == "family"]
    cure = f"; give the one whose efficiencies it adopts: {', '.join(families)}, or the path of a file"
    told = "the key 'family' is missing" if named is None else f"unknown family {shown(named)}{did_you_mean(str(named), families)}"
    problem = document.problem(() if named is None else ("family",), f"{told}{cure}")
    filled = Document(file=document.file, data={**document.data, "family": families[0]}, lines=document.lines)
    try:
        another = files.read_yaml(known[families[0]]).without("kind", "name", "title")
        files.validate(DatasheetSystem, files.merge(files.merge(below, another), filled))
    except SpecError as error:
        raise SpecError([problem, *error.problems]) from None
    raise SpecError([problem])


def _check_overridden(below: Document, own: Document) -> None:
    """SpecError for what is wrong in a user's template where a system says something else, so that nobody would see it."""
    kind = below.data.get("kind")
    if Path(below.file).is_relative_to(files.data_folder("templates")) or not isinstance(kind, str) or kind not in _KINDS:
        return  # a shipped one is right; a kind is told where the system is read
    try:
        files.validate(_KINDS[kind], divisions.chosen(below))
    except SpecError as error:
        kept = set(files.merge(below, own).lines.values())
        if hidden := [problem for problem in error.problems if (problem.file, problem.line) not in kept]:
            raise SpecError(hidden) from None


@functools.lru_cache(maxsize=4)
def _fabrics(file: str, text: str) -> Document:
    """How fabrics carry collectives: under every system, like a family under its devices."""
    return files.parse_yaml(text, file).without("kind", "name", "title")


@stage("device")
def architecture(spec: SystemSpec, library: TechLibrary | None = None, choices: Mapping[str, Choice] | None = None) -> Architecture:
    """Architecture of a system's devices.

    Parameters
    ----------
    spec : the system.
    library : technology library; the shipped one that the system names where absent.
    choices : the technology that differs between design points.
    """
    parts = load_library(spec.techlib) if library is None else library
    if isinstance(spec, DatasheetSystem):
        return from_datasheet(spec, parts)
    from crossflow.hardware.architecture.generator import generate

    return generate(spec, parts, choices)


@functools.cache
def reference_peak(dtype: str) -> Array:
    """Peak rate of the A100 in a data type: of its matrix units, else of its vector units; NaN where it has none. [flop/s]"""
    system, _ = resolve(Document(file=REFERENCE, data={"template": REFERENCE}))
    assert isinstance(system, DatasheetSystem)  # it ships with the package
    return system.product_rates.get(dtype, points(np.nan))
