"""JSON schema of scenario, study and cluster files, from the models that read them, for editors that complete and check YAML.

A schema knows keys and forms of values; what names resolve to, units, and what belongs together is checked when a file is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from crossflow.answers.scenario_file import ScenarioFile
from crossflow.answers.sections import presets
from crossflow.answers.study.spec import StudyFile
from crossflow.base.files import FileModel, catalogue
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem
from crossflow.parallel.strategy.notation import PAPER_KEYS, PLAN_KEYS
from crossflow.workload.cluster.spec import ClusterFile
from crossflow.workload.kinds import MODELS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT, OBJECT = {"type": "string"}, {"type": "object"}
SHORT = {"type": ["string", "number", "array"]}  # forms that stand for a mapping
Schema = dict[str, Any]


class _Quiet(GenerateJsonSchema):
    """Defaults that are arrays are left out without a word."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Say nothing."""


def schema(kind: Literal["scenario", "study", "cluster"]) -> Schema:
    """Schema of a kind of file.

    >>> sorted(schema("scenario")["required"]), schema("study")["properties"]["scenario"]["anyOf"][1]
    (['system', 'workload'], {'type': 'string'})
    """
    shared: Schema = {}
    found = {"scenario": _scenario, "study": _study, "cluster": _cluster}[kind](shared)
    return {"$schema": DIALECT, "title": f"crossflow {kind}", **found, "$defs": shared}


def _scenario(shared: Schema) -> Schema:
    """A scenario, its sections as overrides of templates and presets."""
    found = _of_model(ScenarioFile, shared)
    workload = _joined("workload", tuple(MODELS.values()), shared)
    models = [*MODELS, *sorted(presets())]
    workload["properties"] |= {"model": {"anyOf": [{"enum": models}, TEXT]}, "file": TEXT}
    strategy = {"type": "object", "properties": {key: {} for key in (*PLAN_KEYS, *PAPER_KEYS)}}
    found["properties"] |= {
        "system": _system(shared),
        "workload": {"anyOf": [workload, {"enum": models}, TEXT]},
        "strategy": {"anyOf": [strategy, TEXT]},
    }
    return found


def _system(shared: Schema) -> Schema:
    """A system, its keys as overrides of a template."""
    names = sorted(name for name, path in catalogue("templates").items() if path.parent.name in ("systems", "devices", "generated"))
    # A section is laid over a template or a preset, which has what it leaves out.
    system = _joined("system", (GeneratedSystem, DatasheetSystem), shared)
    system["properties"] |= {"template": {"anyOf": [{"enum": names}, TEXT, OBJECT]}}
    return {"anyOf": [system, {"enum": names}, TEXT]}


def _study(shared: Schema) -> Schema:
    found = _of_model(StudyFile, shared)
    scenario = _scenario(shared)
    found["properties"]["scenario"] = {"anyOf": [scenario, TEXT]}
    return found


def _cluster(shared: Schema) -> Schema:
    found = _of_model(ClusterFile, shared)
    found["properties"]["system"] = _system(shared)
    found["properties"]["jobs"] = {"anyOf": [found["properties"]["jobs"], TEXT, OBJECT]}
    return found


def _of_model(model: type[FileModel], shared: Schema) -> Schema:
    """Schema of one model; its definitions join the shared ones under names of their own."""
    shortened = {one.__name__ for one in _all_models(FileModel) if _has_short_form(one)}
    written = model.model_json_schema(ref_template=f"#/$defs/{model.__name__}.{{model}}", schema_generator=_Quiet)
    for name, inner in written.pop("$defs", {}).items():
        shared[f"{model.__name__}.{name}"] = {"anyOf": [inner, SHORT]} if name in shortened else inner
    return dict(written)


def _all_models(model: type[FileModel]) -> Iterator[type[FileModel]]:
    for below in model.__subclasses__():
        yield below
        yield from _all_models(below)


def _has_short_form(model: type[FileModel]) -> bool:
    """Whether a model is read from other forms than a mapping too, such as a name alone."""
    return any(found.info.mode == "before" for found in model.__pydantic_decorators__.model_validators.values())


def _joined(title: str, models: tuple[type[FileModel], ...], shared: Schema) -> Schema:
    """Properties of several models, none of them required, whatever stands below them included."""
    properties: Schema = {}
    for model in models:
        before = set(shared)
        own = _of_model(model, shared)
        for name in set(shared) - before:
            shared[name].pop("required", None)
        for key, value in own["properties"].items():
            known = properties.get(key)
            options = known["anyOf"] if isinstance(known, Mapping) and set(known) == {"anyOf"} else [] if known is None else [known]
            properties[key] = value if not options or options == [value] else {"anyOf": [*options, *([] if value in options else [value])]}
    return {"title": title, "type": "object", "properties": properties, "additionalProperties": False}
