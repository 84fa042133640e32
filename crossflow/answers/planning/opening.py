"""Opening scenarios: from a file, plain data or another scenario, with settings in any form, and ``strategy: auto`` answered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossflow.answers import scenario
from crossflow.answers.scenario import Scenario, overridden, resolved, scenario_document, spelled_out, steady
from crossflow.answers.sections import model_name
from crossflow.base import files
from crossflow.base.arrays import plain
from crossflow.base.errors import CrossflowError, SpecError, StrategyError
from crossflow.base.files import Document
from crossflow.hardware.architecture.system import template_name
from crossflow.parallel.strategy.kinds import ANY, GIVEN
from crossflow.parallel.strategy.reading import AUTO
from crossflow.workload.released import CONFIG

ScenarioSource = str | Path | Mapping[str, Any] | Scenario | Document
SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm", ".toml")  # endings of launch files, which no scenario has
Overrides = str | Iterable[str] | Mapping[str, Any]


def load(source: ScenarioSource, settings: Overrides = ()) -> Scenario:
    """Read a scenario, and choose its strategy where it says ``strategy: auto``.

    Parameters
    ----------
    source : path of a scenario file, the same as plain data, or a scenario.
    settings : what overrides its fields: one ``path=value``, several of them, or values by path.

    Raises
    ------
    SpecError
        With every problem of the file, each with its line.
        A strategy that does not fit the system or the workload is one of them.

    >>> load({"system": "dgx-h100", "workload": "llama3-70b", "strategy": "auto"}, {"workload.task": "prefill"}).devices
    8
    """
    texts = as_settings(settings)
    if isinstance(source, Scenario) and not texts:
        return source
    document, base, name, like = _document(source)
    return files.with_settings(lambda some: _opened(document, base, name, like, some), texts)


def from_dict(data: Mapping[str, Any], name: str = "scenario", base: Path | None = None) -> Scenario:
    """Read a scenario from plain data; `base` is the folder that relative paths in it start from."""
    if data.get("strategy") != AUTO:
        return scenario.from_dict(data, name, base)
    return _chosen(spelled_out(Document(file=name, data=dict(data))), base, name, None)


def unplanned(source: ScenarioSource, settings: Overrides = ()) -> tuple[Scenario, tuple[str, ...]]:
    """A scenario whose strategy is to be found, which may have none, or one for another number of devices; with notes on that."""
    texts = as_settings(settings)
    document, base, name, like = _document(source)
    if isinstance(source, Scenario) and source.auto is not None and not texts:
        return source, ()
    anything = files.with_settings(lambda some: _opened(document, base, name, like, some, ANY), texts)
    if overridden(document, texts).data.get("strategy") in (None, ANY, AUTO):
        return anything, ()
    try:
        return _opened(document, base, name, like, texts), ()
    except SpecError as error:
        if any(problem.path.split(".")[0] != "strategy" for problem in error.problems):
            raise
        return anything, (f"the scenario's own strategy is not compared: {error.said.removeprefix('strategy: ')}",)


def left_open(source: ScenarioSource, settings: Overrides = (), *, given: bool = False) -> tuple[Scenario, bool]:
    """A scenario of which points are made, and whether its strategy is still to be chosen, for each of them.

    A strategy that was chosen already stays, and so does any other. Where the points give strategies (`given`) the scenario needs none.
    """
    texts = as_settings(settings)
    if isinstance(source, Scenario):
        return (load(source, texts) if texts else source), False
    document, base, name, like = _document(source)
    written = data_of(source, texts).get("strategy")
    if written != AUTO and not (given and written is None):
        return load(source, texts), False
    found = _opened(document, base, name, like, texts, ANY)
    if written == AUTO and not found.workload.divisible:
        raise document.error(("strategy",), GIVEN)
    return found, written == AUTO and not given


def data_of(source: ScenarioSource, settings: Overrides = ()) -> Mapping[str, Any]:
    """Plain data of a scenario with settings; empty where it is none, which reading it says."""
    texts = as_settings(settings)
    data = overridden(_document(source)[0], texts).data
    return data if isinstance(data, Mapping) else {}


def as_settings(settings: Overrides) -> tuple[str, ...]:
    """Settings as texts such as ``system.devices=512``.

    >>> as_settings({"system.nodes": 8, "strategy": "tp8-dp8"}), as_settings("system.nodes=8")
    (('system.nodes=8', 'strategy=tp8-dp8'), ('system.nodes=8',))
    """
    if isinstance(settings, str):
        return (settings,)
    if isinstance(settings, Mapping):
        return tuple(f"{path}={value if isinstance(value, str) else _json(path, value)}" for path, value in settings.items())
    texts = tuple(settings) if isinstance(settings, Iterable) else (settings,)
    if strange := [text for text in texts if not isinstance(text, str)]:
        raise CrossflowError(f"settings: expected texts such as 'system.devices=512', or values by path, got {strange[0]!r}")
    return texts


def _json(path: str, value: Any) -> str:
    if isinstance(value, type):  # such as numpy.float32
        raise CrossflowError(
            f"settings: {path}: expected text or a number, got the type {value.__name__}; types of numbers are text: 'bf16'"
        )
    if getattr(value, "shape", ()):
        raise CrossflowError(f"settings: {path}: expected one value, got an array; sweep and evaluate of crossflow take many")
    try:
        return json.dumps(value if isinstance(value, Mapping | list | tuple) else plain(value))
    except (TypeError, ValueError):
        raise CrossflowError(f"settings: {path}: expected text, a number, a list or a mapping, got {value!r}") from None


def _document(source: ScenarioSource) -> tuple[Document, Path | None, str, Scenario | None]:
    """What describes a scenario: its data, the folder that paths in it start from, its name, and the scenario that it changes."""
    if isinstance(source, Scenario):
        return source.document, source.base, source.name, source
    if isinstance(source, Document):
        return scenario_document(source, source.file), None, "scenario", None
    if isinstance(source, Mapping):
        return scenario_document(Document(file="scenario", data=dict(source)), "STUDY.yaml"), None, "scenario", None
    if not isinstance(source, str | Path):
        own = "; it holds one: give its .scenario" if isinstance(getattr(source, "scenario", None), Scenario) else ""
        raise CrossflowError(f"expected a scenario, the path of its file or its data as a mapping, got {type(source).__name__}{own}")
    path = Path(source)
    _check_no_model(path)
    return scenario_document(files.read_yaml(path), str(path)), path.parent, path.stem, None


def _check_no_model(path: Path) -> None:
    """CrossflowError for a model or a system in the place of a scenario, with what to do."""
    _check_no_name(path)
    if path.suffix in SCRIPTS and path.is_file():
        raise CrossflowError(f"{path} is a launch file, not a scenario; read its flags with: crossflow predict --from {path} --on dgx-h100")
    if path.name != CONFIG and not path.is_dir():
        return
    if path.is_dir() and not (path / CONFIG).is_file():
        raise CrossflowError(f"{path} is a folder; a scenario is a YAML file, and a model's folder holds a {CONFIG}")
    config = path / CONFIG if path.is_dir() else path
    if not config.is_file():
        return  # reading it says so
    raise CrossflowError(
        f"{path} describes a model, and a scenario also says what it runs on: crossflow predict --model {path} --on dgx-h100;"
        f' in Python load({{"system": "dgx-h100", "workload": {{"model": "{config}", "global_batch": 64}}, "strategy": "auto"}})'
    )


def _check_no_name(path: Path) -> None:
    """CrossflowError for the name of a model or a system in the place of a scenario."""
    if path.suffix in files.YAML or path.exists():
        return
    model, system = model_name(str(path)), template_name(str(path))
    if model is None and system is None:
        return
    what, lacking = ("model", "what it runs on") if model is not None else ("system", "what runs on it")
    asked = f"--model {model or 'llama3-8b'} --on {system or 'dgx-h100'}"
    named = f"model='{model or 'llama3-8b'}', on='{system or 'dgx-h100'}'"
    raise CrossflowError(f"{path} is a {what}, and a scenario also says {lacking}: crossflow predict {asked}; in Python predict({named})")


def _opened(
    document: Document, base: Path | None, name: str, like: Scenario | None, settings: Sequence[str], strategy: str | None = None
) -> Scenario:
    document = overridden(document, settings)
    if strategy is not None:
        return resolved(_with(document, strategy), base, name, like)
    if isinstance(document.data, Mapping) and document.data.get("strategy") == AUTO:
        return _chosen(document, base, name, like)
    return resolved(document, base, name, like)


def _with(document: Document, strategy: str) -> Document:
    """The document with another strategy."""
    return Document(file=document.file, data={**document.data, "strategy": strategy}, lines=document.lines)


def _chosen(document: Document, base: Path | None, name: str, like: Scenario | None) -> Scenario:
    """The scenario with the fastest of the strategies that fit, with memory to spare where any has; the nearest where none fits."""
    from crossflow.answers.planning.planner import best_strategy  # which scenarios that say their strategy do not wait for

    anything = resolved(_with(document, ANY), base, name, like)
    if not anything.workload.divisible:
        raise document.error(("strategy",), GIVEN)
    try:
        best, how = best_strategy(steady(anything))
    except StrategyError as error:
        raise document.error(("strategy",), str(error).removeprefix("strategy: ")) from None
    return replace(resolved(_with(document, best), base, name, anything), auto=how)
