"""What a page is about: what a file, a folder or a name is, told by its name and content, with what to type where no page shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from crossflow.answers.scenario import SYSTEM_KINDS
from crossflow.answers.sections import model_name
from crossflow.answers.study.records import POINTS, RUN
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError, did_you_mean
from crossflow.evidence.replay.events import is_traces
from crossflow.hardware.architecture.system import template_name
from crossflow.hardware.technology.library import KINDS
from crossflow.program.file import is_named_program, is_program
from crossflow.workload.kinds import MODELS
from crossflow.workload.released import CONFIG

SourceKind = Literal["scenario", "study", "results", "program", "traces"]
ARCHIVES = (".tar.gz", ".tgz", ".tar")
LAUNCHES = (".sh", ".bash", ".toml", ".args")  # endings of files that start a run
PACKED = (".json", ".json.gz")
SHOWN = "give a scenario, a study or the folder of its results, a program, traces, or --model NAME --on SYSTEM"
MODEL, SYSTEM = "llama3-70b", "dgx-h100"  # what examples name


def kind_of(path: Path) -> SourceKind:
    """What a path is; CrossflowError with what to type for what no page shows."""
    if path.is_dir():
        return _folder(path)
    if path.name in (RUN, POINTS, "points.csv", "points.npz") and (path.parent / RUN).is_file():
        return "results"
    if not path.is_file():
        return _name(path)
    if path.name.endswith(ARCHIVES):
        return "traces"
    if path.name == CONFIG:
        raise CrossflowError(_model(path))
    if path.name.endswith(PACKED):
        return _json(path)
    if path.suffix in files.YAML:
        return _yaml(path)
    if is_traces(path):  # an export of Nsight Systems, whatever its name
        return "traces"
    raise CrossflowError(_other(path))


def results_of(path: Path) -> Path:
    """The folder of results that a path of kind results means: itself, or the one that a file of it lies in."""
    return path if path.is_dir() else path.parent


def unplaced(path: Path) -> str:
    """What to type for a program that no system is given for."""
    return f"{path} is a program; say what it runs on: crossflow explore {path} --on {SYSTEM}"


# ------------------------------------------------------------------------------------------ folders


def _folder(path: Path) -> SourceKind:
    if (path / RUN).is_file() or (path / POINTS).is_file():
        return "results"
    if (path / CONFIG).is_file():
        raise CrossflowError(_model(path))
    if studies := sorted(one.parent for one in path.glob(f"*/{RUN}")):
        held = "of a study" if len(studies) == 1 else f"of {len(studies)} studies"
        raise CrossflowError(f"{path} holds results {held} in folders of their own; give one of them: crossflow explore {studies[0]}")
    if is_traces(path) and any(is_traces(one) and not is_named_program(one) for one in path.iterdir() if one.is_file()):
        return "traces"
    if found := sorted(one for ending in (".yaml", ".yml") for one in path.glob(f"*{ending}")):
        raise CrossflowError(f"{path} is a folder; give one of its files: crossflow explore {found[0]}")
    what = "is an empty folder" if not any(path.iterdir()) else "is a folder that holds nothing to show"
    raise CrossflowError(f"{path} {what}; {SHOWN}")


# ------------------------------------------------------------------------------------------ names


def _name(path: Path) -> SourceKind:
    """What a path means that is no file: the name of a shipped study; all others are refused."""
    name = str(path)
    if name in files.catalogue("studies"):
        return "study"
    if path.suffix in files.YAML:
        raise CrossflowError(f"{path}: there is no such file; {SHOWN}")
    if (model := model_name(name)) is not None:
        raise CrossflowError(f"{path} is a model; say what it runs on: crossflow explore --model {model} --on {SYSTEM}")
    if (system := template_name(name)) is not None:
        raise CrossflowError(f"{path} is a system; say what runs on it: crossflow explore --model {MODEL} --on {system}")
    near = did_you_mean(name, files.catalogue("studies"))
    raise CrossflowError(f"{path}: there is no such file, folder or study{near or f'; {SHOWN}'}")


# ------------------------------------------------------------------------------------------ files


def _json(path: Path) -> SourceKind:
    if not is_named_program(path) and is_traces(path):
        return "traces"
    if path.suffix == ".gz" or is_program(path):
        return "program"
    return _yaml(path)


def _yaml(path: Path) -> SourceKind:
    try:
        data = files.read_yaml(path).data
    except SpecError:  # reading it as a scenario says what is wrong
        return "scenario"
    if not isinstance(data, Mapping):
        return "scenario"
    if "scenario" in data:
        return "study"
    if "system" not in data and (cure := _part(path, data)):
        raise CrossflowError(cure)
    return "scenario"


def _part(path: Path, data: Mapping[str, Any]) -> str:
    """What to type for a file that is a part of a scenario, or made of one; "" for all others."""
    kind = data.get("kind")
    if "workload" in data:
        return ""
    if data.get("model") in MODELS or "architectures" in data:
        return _model(path)
    if kind in SYSTEM_KINDS or "template" in data:
        return f"{path} is a system; say what runs on it: crossflow explore --model {MODEL} --on {path}"
    if kind == "software":
        return f"{path} is a software stack; give a model and a system too: --model {MODEL} --on {SYSTEM} --set software={path}"
    if kind == "collectives":
        return f"{path} is a record of emulate; make a program of it: crossflow import {path} -o step.program.json.gz"
    if any(isinstance(data.get(section), Mapping) for section in KINDS):
        library = f"--set system.techlib={path}"
        return f"{path} is a technology library; give what it changes too: --model {MODEL} --on reference-training {library}"
    return ""


def _model(path: Path) -> str:
    return f"{path} is a model; say what it runs on: crossflow explore --model {path} --on {SYSTEM}"


def _other(path: Path) -> str:
    """What to type for a file of a kind that no page shows."""
    if path.suffix in LAUNCHES:
        return f"{path} starts a run; say so, and what it runs on: crossflow explore --from {path} --on {SYSTEM}"
    if path.suffix in (".html", ".htm"):
        return f"{path} is a page already; open it in a browser"
    if path.suffix == ".py":
        program = f"{path.stem}.program.json.gz"
        made = f"crossflow import {path}:FUNCTION -o {program}"
        return f"{path} is a script; make a program of its model: {made}, then crossflow explore {program} --on {SYSTEM}"
    return f"{path} is nothing that a page shows; {SHOWN}"
