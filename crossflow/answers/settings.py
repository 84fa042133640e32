"""Paths of everything that a scenario may set, for messages about settings that stand elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel

from crossflow.base.errors import NEAREST, SYNONYMS, Problem, either, folded
from crossflow.engine.lasting.spec import CheckpointSpec, MaintenanceSpec, RestartSpec
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem
from crossflow.parallel.strategy.notation import PAPER_KEYS, PLAN_KEYS
from crossflow.workload.requests.post_training import PostTrainingSpec
from crossflow.workload.requests.spec import RequestsSpec
from crossflow.workload.spec import MODELS

DEEP = 6  # parts of a path that are looked at
RUN: Mapping[str, type[BaseModel]] = {"checkpoint": CheckpointSpec, "restart": RestartSpec, "maintenance": MaintenanceSpec}
TOP = ("system", "workload", "strategy", "techlib", "software", "profile", "run", "job", "placement", "kernels_per_device")


@functools.cache
def paths() -> tuple[str, ...]:
    """Every path of a scenario that models of files know, the shortest first."""
    models: list[tuple[str, type[BaseModel]]] = [("system", GeneratedSystem), ("system", DatasheetSystem)]
    models += [("workload", model) for model in MODELS.values()]
    found = [*TOP, "system.template", *(f"strategy.{key}" for key in (*PLAN_KEYS, *PAPER_KEYS))]
    found += [path for section, model in models for path in _below(model, section)]
    found += [
        f"run.{key}" for key in ("samples", "tokens", "steps", "failures", "checkpoint", "restart", "spares", "elastic", "maintenance")
    ]
    found += _below(PostTrainingSpec, "job")
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


def ending_in(key: str) -> list[str]:
    """Paths whose last part is a key, in any case of letters.

    >>> ending_in("devices"), ending_in("Global_Batch")
    (['system.devices'], ['workload.global_batch'])
    """
    asked = key.lower()
    found = [path for path in paths() if path.rpartition(".")[2].lower() == asked]
    found = [path for path in found if not path.startswith("job.")] or found  # which repeats keys of others, and few scenarios have
    return [path for path in found if path.count(".") <= found[0].count(".") + 1]  # none of much deeper ones beside the first


def pointed(problem: Problem, below: str = "") -> Problem:
    """A problem with an unknown key that a scenario knows elsewhere, with the paths where; `below` is where the scenario stands.

    >>> pointed(Problem(file="--set logic=N3", path="logic", message="unknown key 'logic'; known keys: a, b")).message
    "unknown key 'logic'; did you mean 'system.technology.logic'?"
    """
    said, _, _ = problem.message.partition("; ")
    key = problem.path.rpartition(".")[2]
    if not said.startswith(f"unknown key '{key}'"):
        return problem
    called = SYNONYMS.get(folded(key), ())
    if called and "did you mean" in problem.message:  # what the word means where it stands, before what has the word far below
        return problem
    if problem.path.startswith("requests."):  # which has what it takes in its own section
        own = [path for path in _below(RequestsSpec, "requests") if path.count(".") == 1 and path.endswith(f".{key}")]
        return replace(problem, message=f"{problem.message}; '{key}' stands at {own[0]}") if own and own[0] != problem.path else problem
    if below and problem.path in TOP:
        found = [f"{below}.{_written(problem)}"]
    else:
        found = [f"{below}.{path}" if below else path for path in ending_in(key) if path != problem.path]
        found = found or [path for path in called if "." in path]
    if found == [key]:
        return replace(problem, message=f"{problem.message}; '{key}' stands at the top of a scenario")
    if not found:
        return problem
    told = [f"'{path}'" for path in found[:NEAREST]]
    return replace(problem, message=f"{said}; did you mean {either(told)}?")


def _written(problem: Problem) -> str:
    """The whole path of a setting, as it was given."""
    given = problem.file.removeprefix("--set ")
    return given.partition("=")[0] if problem.file.startswith("--set ") else problem.path
