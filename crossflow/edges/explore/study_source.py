"""The scenario behind a study's folder, and any of its points as a scenario: as YAML, as settings, as a prediction."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.answers.points import varied, written
from crossflow.answers.prediction import predict
from crossflow.answers.scenario import Scenario, from_dict, from_document, load, spelled_out
from crossflow.answers.score import words
from crossflow.answers.study.records import RUN
from crossflow.answers.study.spec import StudyFile
from crossflow.base import files
from crossflow.base.contents import Contents
from crossflow.base.errors import CrossflowError
from crossflow.base.provenance import digest
from crossflow.parallel.strategy.kinds import ANY
from crossflow.parallel.strategy.reading import AUTO

SETTINGS = ("system", "workload", "techlib", "strategy", "software", "placement", "profile", "kernels_per_device")  # roots of paths
LENGTHS = ("run.samples", "run.tokens", "run.steps")  # the only paths below `run`, where figures stand too
AGREES = 1e-6  # relative difference of a figure up to which a design is the study's own


@dataclass(frozen=True, kw_only=True, eq=False)
class StudySource:
    """The scenario that a study starts from, the file where it was found, and what else the study says where that file holds it."""

    scenario: Scenario
    place: Path
    spec: StudyFile | None


def is_setting(column: str) -> bool:
    """Whether a column holds values of a path of scenarios.

    >>> is_setting("system.technology.logic"), is_setting("step_time_s"), is_setting("run.time_s"), is_setting("run.tokens")
    (True, False, False, True)
    >>> is_setting("system.budgets.power [W]")
    False
    """
    return (column.partition(".")[0] in SETTINGS or column in LENGTHS) and not column.endswith("]")  # which has the same values in SI units


def find_source(folder: Path, record: Mapping[str, Any]) -> StudySource | None:
    """The scenario of a study's folder: that of its record, of the study's file, known by its digest, or of a best design; None without."""
    with contextlib.suppress(CrossflowError):
        if (recorded := _recorded(folder, record)) is not None:
            return recorded
    for path in _candidates(folder, str(record["name"])):
        with contextlib.suppress(CrossflowError):
            found = study_at(path)
            if digest(found.scenario.document.data) == record.get("inputs", {}).get("scenario"):
                return found
    for path in sorted([*folder.glob("best*.yaml"), *folder.glob("best/*.yaml")]):
        with contextlib.suppress(CrossflowError):
            return StudySource(scenario=load(path), place=path, spec=None)
    return None


def _recorded(folder: Path, record: Mapping[str, Any]) -> StudySource | None:
    """The study that a record holds, with the files that its scenario names; None in records that hold none."""
    data, texts = record.get("document"), record.get("sources")
    if not isinstance(data, dict) or not isinstance(texts, dict):
        return None
    document = files.Document(file=str(folder / RUN), data=data)
    spec = files.validate(StudyFile, document)
    with Contents.at(folder, {str(path): str(text) for path, text in texts.items()}).used():
        scenario = from_document(_any_strategy(document.under("scenario"), spec), folder, spec.name)
    return StudySource(scenario=scenario, place=folder / RUN, spec=spec)


def _candidates(folder: Path, name: str) -> Iterator[Path]:
    """Files that may be the study's: in its folder, near it, in the current folder, and the one that is shipped under its name."""
    near = (folder.resolve().parent, folder.resolve().parent.parent, Path(), Path("studies"))
    yield from sorted(path for path in folder.glob("*.yaml") if not path.name.startswith("best"))
    yield from (path for place in near if (path := place / f"{name}.yaml").is_file())
    if (shipped := files.catalogue("studies").get(name)) is not None:
        yield shipped


def study_at(path: Path) -> StudySource:
    """A study's file with its scenario, without planning what it runs."""
    document = files.read_yaml(path)
    spec = files.validate(StudyFile, document)
    if isinstance(spec.scenario, str):
        own = path.parent / spec.scenario
        return StudySource(scenario=load(own if own.is_file() else Path(spec.scenario)), place=path, spec=spec)
    scenario = _any_strategy(spelled_out(document.under("scenario")), spec)
    return StudySource(scenario=from_document(scenario, path.parent, spec.name), place=path, spec=spec)


def _any_strategy(scenario: files.Document, spec: StudyFile) -> files.Document:
    """The scenario of a study with some strategy, where the study's points have theirs."""
    given = scenario.data.get("strategy")
    if given != AUTO and (given is not None or "strategy" not in {**spec.space, **spec.sweep}):
        return scenario
    return files.merge(scenario, files.Document(file=scenario.file, data={"strategy": ANY}))


# ------------------------------------------------------------------------------------------ units and names


def unit_of_setting(source: StudySource | None, path: str) -> str:
    """SI unit of the values of a path, ``1`` where it has none or nobody knows."""
    with contextlib.suppress(CrossflowError, KeyError, TypeError, AttributeError):
        quantity = None if source is None else varied(source.scenario, path)
        return "1" if quantity is None else quantity.unit
    return "1"


def amounts(source: StudySource | None, path: str, texts: tuple[Any, ...]) -> list[float] | None:
    """Texts with units, as ``25 GB/s``, as numbers of a path's unit; None where some are names."""
    with contextlib.suppress(CrossflowError, ValueError, KeyError, TypeError, AttributeError):
        quantity = None if source is None else varied(source.scenario, path)
        return None if quantity is None else [float(quantity.read(text)[0]) for text in texts]
    return None


def in_words(column: str) -> str:
    """Name of a column as people read it.

    >>> in_words("breakdown_s.exposed_communication"), in_words("system.technology.logic"), in_words("mfu")
    ('breakdown: exposed communication', 'technology.logic', 'mfu')
    """
    if is_setting(column):
        return column.removeprefix("system.")
    head, *parts = column.split(".")
    return ": ".join([words(head), *(part.replace("_", " ") for part in parts)])


# ------------------------------------------------------------------------------------------ designs


def settings_of(source: StudySource, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row sets, by path, as a scenario file gives it."""
    return {path: written(source.scenario, path, value) for path, value in row.items() if is_setting(path) and value is not None}


def design(source: StudySource, row: Mapping[str, Any]) -> Scenario:
    """The scenario of a row."""
    data: Any = source.scenario.document.data
    for path, value in settings_of(source, row).items():
        data = files.replace(data, files.parts_of(path), value, path)
    with source.scenario.contents.used():  # its files may have changed since, or be held by the study's record alone
        return from_dict({**data, "name": f"{source.scenario.name}-{row['id']}"}, base=source.scenario.base)


def as_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as a YAML file."""
    return files.yaml_text(data)


def told(source: StudySource, row: Mapping[str, Any]) -> dict[str, Any]:
    """All that a page says of a row beside its columns: its files, commands, and where its step goes."""
    scenario = design(source, row)
    found = predict(scenario).to_dict()
    arguments = [f"{path}={_argument(value)}" for path, value in settings_of(source, row).items()]
    lines = "".join(f"    {json.dumps(argument, ensure_ascii=False)},\n" for argument in arguments)
    kept = ("step_time_s", "feasible", "reason", "breakdown_s", "bound_by", "memory", "remedies", "notes")
    return {
        "name": scenario.name,
        "yaml": as_yaml(scenario.to_dict()),
        "base": as_yaml(source.scenario.to_dict()),
        "settings": " ".join(f"--set {shlex.quote(argument)}" for argument in arguments),
        "python": f'import crossflow\n\nscenario = crossflow.load("scenario.yaml", [\n{lines}])\nprint(crossflow.predict(scenario))\n',
        "prediction": {name: found[name] for name in kept if name in found},
        "doubt": _doubt(source, row, found["step_time_s"]),
    }


def _argument(value: Any) -> str:
    """A value as `--set` reads it."""
    return json.dumps(value) if isinstance(value, dict | list | bool) or value is None else str(value)


def _doubt(source: StudySource, row: Mapping[str, Any], step_time: float | None) -> str | None:
    """That the scenario found is not quite the study's, where a row's step time is not what it gives."""
    recorded = row.get("step_time_s")
    if recorded is None or step_time is None or abs(step_time - recorded) <= AGREES * abs(recorded):
        return None
    anew = f"with the scenario of {source.place} the step takes {step_time:.6g} s"
    return f"{anew}, and the study says {recorded:.6g} s: it had another scenario"
