"""Everything that there is to show of one name: its figures with their units and sources, its settings, the device that comes out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from crossflow.answers.sections import model_name, presets
from crossflow.base import files
from crossflow.base.errors import CrossflowError, did_you_mean, folded, known_name
from crossflow.base.files import Document
from crossflow.base.paths import quantity_at
from crossflow.base.results import Guided
from crossflow.base.units import parse
from crossflow.engine.lasting.spec import ReliabilitySpec
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.software import load_stack
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.technology.library import KINDS, library_document, load_library
from crossflow.parallel.strategy.mesh import sizes_text
from crossflow.program.file import is_program, read_program
from crossflow.workload.dlrm_spec import DlrmSpec
from crossflow.workload.huggingface import huggingface_document
from crossflow.workload.kinds import MODELS
from crossflow.workload.released import CONFIG, MTP_NOTE, file_notes
from crossflow.workload.spec import TransformerSpec

_TEMPLATES = {"generated": "generated template", "datasheet": "datasheet device", "system": "system of devices"}
_HEAD = ("name", "title", "notes", "sources")  # keys of a file that the head of its page shows


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of a file: as written there, in SI units where the model says which, and where it comes from."""

    path: str
    value: str
    si: float | None = None
    unit: str | None = None
    low: str | None = None
    high: str | None = None
    projected: bool = False
    status: str | None = None
    source: str | None = None
    citation: str | None = None
    note: str | None = None
    file: str | None = None
    line: int | None = None

    @property
    def range(self) -> str:
        """Bounds, the unit written once where both have it; nothing where they are one, because nothing is open.

        >>> Figure(path="x", value="4 pJ/bit", low="3.4 pJ/bit", high="4.2 pJ/bit").range
        '3.4 .. 4.2 pJ/bit'
        """
        if self.low == self.high:
            return ""
        low, high = self.low or self.value, self.high or self.value
        same = low.partition(" ")[2] == high.partition(" ")[2]
        return f"{low.partition(' ')[0] if same else low} .. {high}"


@dataclass(frozen=True, kw_only=True)
class Sheet(Guided):
    """What there is to show of one name; its settings are attributes too: ``show("qwen3-8b").parameters``."""

    name: str
    kind: str
    title: str
    file: str | None
    notes: str = ""
    figures: Sequence[Figure] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: Architecture | None = None
    also: tuple[str, ...] = ()

    @property
    def sources(self) -> dict[str, str]:
        """Citation behind each key that figures name, in the order of the page; equal keys of two files kept apart."""
        cited: dict[str, str] = {}
        for figure in self.figures:
            if figure.source is not None:
                text = figure.citation or "no citation in the file"
                same = cited.setdefault(figure.source, text) == text
                cited |= {} if same else {f"{figure.source} ({Path(str(figure.file)).name})": text}
        return cited

    def _column(self, name: str) -> Any:
        return self.settings[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.settings]

    def __repr__(self) -> str:
        return f"Sheet({self.name!r}: {self.kind}{f', {self.title}' if self.title else ''}, {len(self.figures)} figures)"

    def _repr_html_(self) -> str:
        from crossflow.base.drawing.html import heading, table

        settings = table(["setting", "value"], self.settings.items())
        rows = [(figure.path, figure.value, figure.range, figure.status or "", figure.source or "") for figure in self.figures]
        return heading(self.name, f"{self.kind}. {self.title}") + settings + table(["figure", "value", "range", "status", "source"], rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in ("name", "kind", "title", "file", "notes", "sources")}
        plain |= {"figures": [asdict(figure) for figure in self.figures], "settings": dict(self.settings)}
        return plain if self.device is None else {**plain, "architecture": _plain_device(self.device)}


# ------------------------------------------------------------------------------------------ names


def show(name: str) -> Sheet:
    """Everything that there is to show of one name.

    Parameters
    ----------
    name : of a technology library, an entry of one, a template, a model, a study, or the path of a file.

    Raises
    ------
    CrossflowError
        For an unknown name.

    Examples
    --------
    >>> import crossflow
    >>> sheet = crossflow.show("HBM3")
    >>> next(figure.value for figure in sheet.figures if figure.path == "device_capacity")
    '24 GiB'
    """
    return look_up(name)


def look_up(name: str) -> Sheet:
    """The same; the sheet of a techlib, template, model, study, component or file."""
    if (known := files.shipped_name("techlibs", name)) is not None:
        return techlib(known)
    if (known := model_name(name)) is not None:
        return model(known) if known in MODELS else preset(known)
    if (known := files.shipped_name("templates", name)) is not None:
        return template(known)
    if (known := files.shipped_name("studies", name)) is not None:
        return plain(known, "study", files.find("studies", known))
    found = list(_components(name))
    if found:
        library, kind, entry = found[0]
        return component(library, kind, entry, also=tuple("/".join(other) for other in found[1:]))
    if (Path(name) / CONFIG).is_file():  # the folder of a model
        return of_file(Path(name) / CONFIG)
    if Path(name).is_file():
        return of_file(Path(name))
    raise CrossflowError(f"unknown name '{name}'{did_you_mean(name, _names())}; `crossflow list` gives all names")


def _names() -> list[str]:
    known = [*MODELS, *(name for kind in files.KINDS for name in files.catalogue(kind))]
    for library in files.catalogue("techlibs"):
        loaded = load_library(library)
        for kind in KINDS:
            known += [text for entry in loaded.names(kind) for text in (entry, f"{kind}/{entry}", f"{library}/{kind}/{entry}")]
    return known


def _components(name: str) -> Iterator[tuple[str, str, str]]:
    """All (library, kind, name) that ``name``, ``kind/name`` or ``library/kind/name`` can mean."""
    parts = name.split("/")
    libraries = sorted(files.catalogue("techlibs"), key=lambda library: library != "standard")
    if len(parts) == 3:
        libraries = [library for library in libraries if library == files.shipped_name("techlibs", parts[0])]
    elif len(parts) > 3:
        return
    kinds = [kind for kind in KINDS if len(parts) == 1 or folded(kind) == folded(parts[-2])]
    for library in libraries:
        loaded = load_library(library)
        found = ((kind, known_name(parts[-1], loaded.names(kind))) for kind in kinds)
        yield from ((library, kind, known) for kind, known in found if known is not None)


def of_file(path: Path) -> Sheet:
    """Sheet of a user's own file: a template where it says so, a model of Hugging Face's, otherwise as it stands."""
    if path.suffix in (".json", ".gz"):
        return program(path) if is_program(path) else huggingface(path)
    document = files.read_yaml(path)
    data = document.data if isinstance(document.data, Mapping) else {}
    if data.get("kind") in ("generated", "datasheet", "system"):
        return template(str(path))
    if isinstance(data.get("extends"), str) or {"sources", "logic"} <= set(data):
        library = load_library(str(path), Path())
        return plain(library.name, "technology library", path)
    return plain(path.stem, "file", path)


# ------------------------------------------------------------------------------------------ sheets


def techlib(name: str) -> Sheet:
    """Sheet of a whole library, with what it extends."""
    path, document, library = files.find("techlibs", name), library_document(name), load_library(name)
    return _sheet(library.name, "technology library", str(path), document, library, citations=document.data.get("sources", {}))


def component(library: str, kind: str, name: str, also: tuple[str, ...] = ()) -> Sheet:
    """Sheet of one component of a library."""
    document, loaded = library_document(library), load_library(library)
    file, _ = document.lines.get((kind, name), (document.file, 0))
    citations = document.data.get("sources", {})
    below = document.under(kind, name)
    what = f"{kind.replace('_', '-')} of technology library {library}"
    return _sheet(name, what, file, below, loaded.component(kind, name), citations=citations, also=also)


def template(name: str) -> Sheet:
    """Sheet of a template with all that it builds on, and the device that comes out."""
    path = files.find("templates", name)
    own = files.read_yaml(path)
    kind = str(own.data.get("kind", "")) if isinstance(own.data, Mapping) else ""
    if path.parent.name == "families" or kind == "family":
        return plain(name, "family of devices", path)
    if kind == "hindcast":
        return plain(name, "facts of a chip before its announcement", path)
    if kind == "reliability":
        return _sheet(name, "reliability of clusters", str(path), own, files.validate(ReliabilitySpec, own, sourced=True))
    if kind == "software":
        stack, read = load_stack(name)
        return _sheet(stack.name, "software stack", str(path), read, stack)
    spec, document = resolve(Document(file=str(path), data={"template": name}))
    built = architecture(spec, load_library(spec.techlib, path.parent))
    return _sheet(spec.name, _TEMPLATES.get(kind, kind), str(path), document, spec, device=built)


def preset(name: str) -> Sheet:
    """Sheet of a model preset, defaults filled in."""
    path = presets()[name]
    document = files.read_yaml(path)
    kind: Any = MODELS[str(document.data.get("model"))]
    spec = files.validate(kind, document)
    data = {**document.data, **spec.model_dump(exclude_none=True), "parameters": _parameters(spec)}
    return _sheet(name, "model preset", str(path), Document(file=str(path), data=data, lines=document.lines), spec)


def huggingface(path: Path) -> Sheet:
    """Sheet of a ``config.json``: the model that it is, and what became of every field."""
    document, uses = huggingface_document(path, examples=True)
    spec = files.validate(TransformerSpec, document)
    settings: dict[str, Any] = {f"config.{use.key}": f"{use.value} -> {use.became}" for use in uses}
    model, notes = spec.transformer(), [*file_notes(spec, {"model": str(path)}), *([MTP_NOTE] if spec.mtp_layers else [])]
    settings |= {"parameters": model.parameters, "active parameters": round(model.active_parameters)}
    if spec.mtp_layers:
        settings["parameters of mtp_layers"] = model.mtp_parameters
    return Sheet(
        name=path.stem, kind="Hugging Face model", title=spec.title, file=str(path), notes="\n".join(notes), settings=settings
    )  # fmt: skip


def program(path: Path) -> Sheet:
    """Sheet of a program: what it holds, in counts."""
    read = read_program(path)
    rows = {name: len(getattr(read, name)) for name in ("kernels", "messages", "ops", "blocks", "tensors")}
    settings: dict[str, Any] = {name: getattr(read, name) for name in ("dtype", "samples", "tokens")}
    settings |= {"parameters": f"{read.parameters:.4g}", "mesh": sizes_text(read.axes)}
    settings |= {"devices": read.devices, "stages": read.stages or "none", **rows}
    settings |= {word: ", ".join(sorted({getattr(op, word[:-1]) for op in read.ops} - {""})) or "none" for word in ("phases", "streams")}
    return Sheet(name=path.name, kind="program", title=read.name, file=str(path), settings=settings)


def _parameters(spec: Any) -> int:
    """Parameters of a model, however its workload describes it."""
    if isinstance(spec, TransformerSpec):
        return spec.transformer().parameters
    return int((spec.dlrm() if isinstance(spec, DlrmSpec) else spec.graph()).parameters)


def model(name: str) -> Sheet:
    """Sheet of a kind of model: its dimensions, and what they are where a scenario does not say."""
    kind: Any = MODELS[name]
    fields = kind.model_fields
    settings = {key: _default(info) for key, info in fields.items() if key not in (*_HEAD, "model")}
    title = str(kind.__doc__).strip().splitlines()[0]
    return Sheet(name=name, kind="kind of model", title=title, file=None, settings=settings)


def _default(info: Any) -> Any:
    """Default of a dimension with what it may be, as far as the model lists that."""
    options = [option for option in get_args(info.annotation) if isinstance(option, str)]
    default = "required" if info.is_required() else info.default
    return f"{default} (of {', '.join(options)})" if options else default


def plain(name: str, kind: str, path: Path) -> Sheet:
    """Sheet of a file as it stands."""
    return _sheet(name, kind, str(path), files.read_yaml(path), None)


def _sheet(
    name: str,
    kind: str,
    file: str,
    document: Document,
    read: Any,
    *,
    citations: Mapping[str, str] | None = None,
    **more: Any,
) -> Sheet:
    data = document.data if isinstance(document.data, Mapping) else {"": document.data}
    body = {key: value for key, value in data.items() if key not in _HEAD}
    return Sheet(
        name=name,
        kind=kind,
        title=str(data.get("title", "")),
        notes=str(data.get("notes", "")),
        file=file,
        figures=tuple(_figures(body, read, document, citations)),
        settings={files.dotted(path): value for path, value in _settings(body, ())},
        **more,
    )


def _figures(data: Any, read: Any, document: Document, citations: Mapping[str, str] | None) -> Iterator[Figure]:
    """Every ``{value, source, ...}`` of plain data; without `citations` each file has its own."""
    for path, value in files.walk(data):
        if not isinstance(value, Mapping) or "value" not in value:
            continue
        file, line = document.lines.get(path, (document.file, None))
        known = _citations(document.file if file.endswith(".csv") else file) if citations is None else citations  # a table has none itself
        more = _texts(value) | _in_si(value, path, read) | {"citation": known.get(str(value.get("source")))}
        yield Figure(path=files.dotted(path), projected=bool(value.get("projected")), file=file, line=line, **more)


def _texts(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: str(value[key]) for key in ("value", "low", "high", "source", "status", "note") if value.get(key) is not None}


@functools.cache
def _citations(file: str) -> Mapping[str, str]:
    found: Mapping[str, str] = files.read_yaml(file).data.get("sources", {})
    return found


def _in_si(value: Mapping[str, Any], path: tuple[str | int, ...], read: Any) -> dict[str, Any]:
    """The figure in the SI unit of the model's field, where there is one."""
    quantity = None if read is None else quantity_at(read, [str(part) for part in path])
    return {} if quantity is None else {"si": parse(value["value"], quantity.unit), "unit": quantity.unit}


def _settings(data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every name, count and switch of plain data: what is no figure; lists of plain values whole."""
    if isinstance(data, Mapping):
        if "value" not in data:
            for key, value in data.items():
                yield from _settings(value, (*path, key))
    elif isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
        for i, item in enumerate(data):
            yield from _settings(item, (*path, i))
    elif data not in (None, ""):
        yield path, data


def _plain_device(built: Architecture) -> dict[str, Any]:
    figures = {name: float(np.ravel(value)[0]) for name, value in built.figures.items()}
    known = {name: value if value < float("inf") else None for name, value in figures.items()}
    return {**known, "limits": built.bound_by, "budgets": built.budget_rows()}
