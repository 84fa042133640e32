"""Paths of everything that a scenario may set, for messages about settings that stand elsewhere."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel

from crossflow.answers.guesses import DEGREES, Described, guessed, section
from crossflow.base.errors import NEAREST, SYNONYMS, Problem, either, folded
from crossflow.base.moved import RENAMED
from crossflow.engine.lasting.spec import CheckpointSpec, JitterSpec, MaintenanceSpec, RestartSpec
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem
from crossflow.parallel.strategy.notation import PAPER_KEYS, PLAN_KEYS
from crossflow.workload.kinds import MODELS
from crossflow.workload.requests.post_training import PostTrainingSpec
from crossflow.workload.requests.spec import RequestsSpec

ANY = Described()
_QUOTED = re.compile(r"'([^']+)'")
DEEP = 6  # parts of a path that are looked at
RUN: Mapping[str, type[BaseModel]] = {
    "checkpoint": CheckpointSpec, "restart": RestartSpec, "maintenance": MaintenanceSpec, "jitter": JitterSpec,
}  # fmt: skip
SYSTEMS: Mapping[str, type[BaseModel]] = {"generated": GeneratedSystem, "datasheet": DatasheetSystem}
# Parts of a published device that stand under a name.
PUBLISHED = (
    *(f"system.levels.{level}.{key}" for level in ("memory", "l2", "l1") for key in ("capacity", "bandwidth", "latency")),
    *(f"system.throughput.{dtype}" for dtype in ("bf16", "fp8")),
)
TOP = ("system", "workload", "strategy", "techlib", "software", "profile", "run", "job", "requests", "placement", "kernels_per_device")
OF_WORKLOADS = frozenset(key for model in MODELS.values() for key in model.model_fields)  # what requests have too is meant of these


@functools.cache
def paths(scenario: Described = ANY) -> tuple[str, ...]:
    """Every path that models of files know of such a scenario, the shortest first."""
    kinds = [kind for kind in SYSTEMS if kind == scenario.system] or [*SYSTEMS]
    models: list[tuple[str, type[BaseModel]]] = [("system", SYSTEMS[kind]) for kind in kinds]
    models += [("workload", MODELS[kind]) for kind in [kind for kind in MODELS if kind == scenario.workload] or MODELS]
    found = [*TOP, "system.template", *(PUBLISHED if "datasheet" in kinds else ())]
    found += [] if scenario.automatic else [f"strategy.{key}" for key in (*PLAN_KEYS, *PAPER_KEYS)]
    found += [path for section, model in models for path in _below(model, section)]
    found += [
        f"run.{key}"
        for key in ("samples", "tokens", "steps", "failures", "checkpoint", "restart", "spares", "elastic", "maintenance", "jitter")
    ]
    found += _below(PostTrainingSpec, "job")
    found += [f"requests.{key}" for key in RequestsSpec.model_fields if key not in OF_WORKLOADS]
    found += [path for key, model in RUN.items() for path in _below(model, f"run.{key}")]
    return tuple(sorted(dict.fromkeys(found), key=lambda path: (path.count("."), path)))


def _below(model: type[BaseModel], path: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}"
        yield here
        if here.count(".") < DEEP:
            for inner in _models(field.annotation):
                yield from _below(inner, here)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models that a field of a model holds itself, not under names of its own."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif getattr(annotation, "__origin__", None) not in (dict, list, tuple, Mapping):
        for inner in get_args(annotation):
            yield from _models(inner)


def pointed(problem: Problem, below: str = "", scenario: Described = ANY) -> Problem:
    """A problem with an unknown key that a scenario knows elsewhere, with the paths where; `below` is where the scenario stands.

    >>> pointed(Problem(file="--set logic=N3", path="logic", message="unknown key 'logic'; known keys: a, b")).message
    "unknown key 'logic'; did you mean 'system.technology.logic'?"
    """
    said, _, hint = problem.message.partition("; ")
    key = problem.path.rpartition(".")[2]
    if not said.startswith(f"unknown key '{key}'"):
        return problem
    if problem.path.startswith("requests."):  # which has what it takes in its own section
        own = [path for path in _below(RequestsSpec, "requests") if path.count(".") == 1 and path.endswith(f".{key}")]
        return replace(problem, message=f"{problem.message}; '{key}' stands at {own[0]}") if own and own[0] != problem.path else problem
    if below and "." in problem.path and not problem.path.startswith(f"{below}."):  # a section of the study's own, which no scenario has
        return problem
    beside, known = hint.startswith("did you mean"), paths(scenario)
    here = beside and "." not in problem.path and any(f"'{name}'" in hint for name in SYNONYMS.get(folded(key), ()))
    if here or key in RENAMED:
        return problem
    if beside and SYNONYMS.get(folded(key)) and "." in problem.path and not any(path.endswith(f".{key}") for path in known):
        return _in_full(problem, said, hint)  # what the word means where it stands, before what has the word elsewhere
    written = _written(problem)
    found = [written] if below and problem.path in TOP else guessed(written, known, problem.path, slips=not beside)
    inside = problem.path.startswith((f"{written}.", f"{written}["))  # of what the setting holds: its own path is no other place
    found = [path for path in found if path != problem.path and not (inside and path == written)]
    if not below and (found == [key] or (key in TOP and (not found or problem.path.count(".") == 1))):
        return replace(problem, message=f"{said}; '{key}' stands at the top of a scenario")
    if scenario.automatic and _of_plan(written):
        cure = f"give a whole one, such as --set strategy={_whole(problem)}"
        return replace(problem, message=f"{said}; auto chooses all of a strategy here; {cure}")
    if not found:
        return _in_full(problem, said, hint) if beside else problem
    told = [f"'{below}.{path}'" if below else f"'{path}'" for path in found[:NEAREST]]
    return replace(problem, message=f"{said}; did you mean {either(told)}?")


def _in_full(problem: Problem, said: str, hint: str) -> Problem:
    """A problem of ``--set`` whose keys are told with their whole path, as ``--set`` takes them."""
    if not problem.file.startswith("--set ") or "." not in problem.path:
        return problem
    place = problem.path.rpartition(".")[0]
    told = _QUOTED.sub(lambda name: f"'{place}.{name[1]}'", hint)
    return replace(problem, message=f"{said}; {told}")


def _of_plan(path: str) -> bool:
    """Whether a path is that of a key of a plan, by itself or in the section of strategies."""
    above, _, last = path.rpartition(".")
    return section(above or "strategy") == "strategy" and any(name in PLAN_KEYS for name in (last.lower(), *SYNONYMS.get(folded(last), ())))


def _whole(problem: Problem) -> str:
    """A strategy that is no more than the degree that was set, such as tp8 of ``--set tp=8``; any for what is no degree."""
    path, _, value = problem.file.partition("=")
    last = path.removeprefix("--set ").rpartition(".")[2]
    degree = next((name for name in (last.lower(), *SYNONYMS.get(folded(last), ())) if name in DEGREES), None)
    return f"{degree}{value}" if degree is not None and value.isdecimal() else "tp4-dp2"


def _written(problem: Problem) -> str:
    """The whole path of a setting, as it was given."""
    given = problem.file.removeprefix("--set ")
    return given.partition("=")[0] if problem.file.startswith("--set ") else problem.path
