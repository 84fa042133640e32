"""All figures of a case: what crossflow says of it now, as plain data that compares with what was recorded."""

import dataclasses
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.events import events
from crossflow.answers.scenario import Scenario, strategy_of
from crossflow.answers.steps.recommendation import recommendation_program
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.engine.runs.uneven import Uneven
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import as_text, every_strategy, fitting, near_strategies, strategy_problem
from crossflow.program.file import document_of
from tests.recorded import drawn

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
CASES, RECORD = DATA / "recorded.yaml", DATA / "recorded.jsonl"
DIGITS, CLOSE, NOTHING = 10, 1e-8, 1e-13  # that are written; relative difference that is none; what rounding leaves
# Of a prediction; bands are made anew with the data.
UNTOLD = {"name", "provenance", "system", "error_band", "error_band_reason", "trust", "trust_text", "trust_reason", "trust_of"}
Figures = dict[str, Any]


def cases() -> dict[str, Any]:
    """Cases by name: a scenario with what is asked for beside its prediction."""
    return {str(name): case for name, case in files.read_yaml(CASES).data.items()}


def recorded() -> dict[str, Figures]:
    """What was recorded of every case."""
    rows = map(json.loads, RECORD.read_text(encoding="utf-8").splitlines()) if RECORD.exists() else ()
    return {row.pop("case"): row for row in rows}


def figures(case: Mapping[str, Any]) -> Figures:
    """All figures of a case by name, without those that are zero; or the sentence that refuses it."""
    if isinstance(case.get("drawn"), Mapping):
        what, options = next(iter(case["drawn"].items()))
        return {name: value if name == "counts" else _rounded(sum_of(value)) for name, value in drawn.DRAWN[what](**options)}
    told = {**case}
    wanted = {name: told.pop(name) for name in MORE if name in told}
    try:
        given = crossflow.from_dict(told, "case", DATA)
        found = dict(_predicted(given))
        for name, how in wanted.items():
            found |= {f"{name}.{key}".strip("."): value for key, value in MORE[name](given, how)}
    except CrossflowError as error:
        return {"refused": str(error).replace(f"{ROOT}/", "")}
    return {name: plain for name, value in found.items() if (plain := _rounded(value)) not in (0, None, "")}


def moved(before: Figures, after: Figures) -> list[tuple[str, Any, Any]]:
    """Figures of a case that are not as they were recorded: name, before, after."""
    pairs = [(name, before.get(name, 0), after.get(name, 0)) for name in dict.fromkeys([*before, *after])]
    return [pair for pair in pairs if not _same(*pair[1:])]


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, str | list) or isinstance(new, str | list):
        return bool(old == new)
    return math.isclose(old, new, rel_tol=CLOSE, abs_tol=NOTHING)


def _predicted(given: Scenario) -> Iterator[tuple[str, Any]]:
    """What `crossflow predict --json` prints: the main figures as they are, each further group of figures and texts as its sum."""
    for name, value in crossflow.predict(given).to_dict().items():
        if name == "breakdown_s":
            yield name, list(value.values())
        elif name == "memory":
            yield name, value["total_bytes"]
            # What is left of it, and whether that is little, follows from the others.
            yield "memory by kind", sum_of({key: held for key, held in value.items() if key not in ("margin", "tight")})
        elif name not in UNTOLD:
            yield name, sum_of(value) if isinstance(value, str | Sequence | Mapping) else value
    yield "device", sum_of(given.architecture)


# ------------------------------------------------------------------------------------------ sums


def sum_of(*values: Any) -> float:
    """One number that any change of the numbers and texts in some objects changes, however large the others are."""
    found = np.array([number for value in values for number in _numbers(value)])
    return _weighted(found, np.arange(len(found)))


def _weighted(values: Any, places: Any) -> float:
    """Sum of the logarithms of numbers, each with the weight of its place."""
    values = np.nan_to_num(np.asarray(values, dtype=float), nan=-1e35, posinf=1e40, neginf=-1e40)
    logarithms = np.arcsinh(np.where(np.abs(values) < NOTHING, 0.0, values) * 1e9)
    return float((logarithms * (1 + 0.6180339887 * places % 1)).sum())


def _numbers(value: Any) -> Iterator[float]:
    """All numbers of an object; a text is one."""
    if isinstance(value, str):
        yield zlib.crc32(value.encode())
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield from (*_numbers(key), *_numbers(held))
    elif isinstance(value, Sequence | frozenset):
        for held in sorted(value) if isinstance(value, frozenset) else value:
            yield from _numbers(held)
    elif names := _fields(value):
        for name in names:
            yield from _numbers(getattr(value, name))
    elif value is not None and not callable(value):
        yield from map(float, np.ravel(value))


def _fields(value: Any) -> Sequence[str]:
    """Fields of a record, none of what is no record."""
    return (
        [field.name for field in dataclasses.fields(value)]
        if dataclasses.is_dataclass(value)
        else list(getattr(type(value), "model_fields", ()))
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) or 0 for item in value]
    if isinstance(value, float):
        return str(value) if not math.isfinite(value) else 0 if abs(value) < NOTHING else float(f"{value:.{DIGITS}g}")
    return int(value) if isinstance(value, bool) else value


# ------------------------------------------------------------------------------------------ what may be asked for beside a prediction


def _timeline(given: Scenario, uneven: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Of every class of devices: its ranks, slots, events, where its time goes, what it holds, and how late its slots may end."""
    found = crossflow.simulate(given, Uneven.model_validate(uneven))
    yield "total", found.total
    yield "texts", sum_of(found.title, found.names, [one.label for one in found.passes])
    yield "counts", [found.event_count, found.world, len(found.passes), len(found.slots.start)]
    yield "late", _weighted(found.latest, found.slots.microbatch + 7 * found.slots.device)
    of_all = zip(found.devices, found.memory, *found.activity().values(), strict=True)
    yield "devices", sum_of([(len(found.events(place)), *of) for place, of in enumerate(of_all)])
    of = [found.events(place) for place in range(len(found.devices))]
    weight = np.concatenate([one.name + 11 * one.stream + 23 * one.kind + 37 * one.layer + 71 * one.microbatch for one in of])
    for name in ("start", "end"):
        yield name, _weighted(np.concatenate([getattr(one, name) for one in of]), weight)


def _events(given: Scenario, _: Any) -> Iterator[tuple[str, Any]]:
    """Of every kind of event: how many, their times, and their shapes."""
    found = events(given)
    yield "step", [found.step, found.profiling, found.recurrences]
    by_kind: dict[str, list[Any]] = {}
    for one in sorted(found.events, key=lambda one: (one.op, one.shape, one.dtype, one.ranks, one.scope)):
        by_kind.setdefault("kernels" if one.ranks == 1 else "messages", []).append(one)
    for kind, several in by_kind.items():
        yield kind, sum_of(several)


def _points(given: Scenario, points: Mapping[str, Any], *, least: bool = False) -> Iterator[tuple[str, Any]]:
    """Every column of a batch of design points, of the scenario alone where there are none."""
    groups: dict[str, list[Any]] = {}
    for name, values in evaluate(given, points or None, least=least, errors="raise").columns().items():
        groups.setdefault(name.partition(".")[0], []).append(list(values))
    for name, several in groups.items():
        if name not in UNTOLD:
            yield name, sum_of(several)


def _strategies(given: Scenario, options: Mapping[str, bool]) -> Iterator[tuple[str, Any]]:
    """Every column of all strategies on as many devices, and which are near the given one."""
    texts = every_strategy(given.workload, given.nodes, **options)
    yield "", [len(texts), sum_of(texts)]
    near = near_strategies(given.strategy, given.workload, given.strategy_limits, fused=given.fused_attention)
    yield "near", [len(near), sum_of(near)]
    yield from _points(given, {"strategy": list(texts)[:: -(-len(texts) // MOST)]})


def _program(given: Scenario, _: Any) -> Iterator[tuple[str, Any]]:
    """Each part of the program that ranks run."""
    made = recommendation_program(given) if isinstance(given.strategy, Hierarchy) else given.program()
    yield "", sum_of(document_of(made))


def _readings(given: Scenario, how: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """How strategies that people might write are understood, or why they are not."""
    texts = [_understood(given, written) for written in drawn.strategies(**how)]
    yield "", [len(set(texts)), sum_of(texts)]


def _understood(given: Scenario, written: Any) -> str:
    try:
        read = fitting(strategy_of(given, written), given.system, given.workload)
        layered = isinstance(read, Plan | Hierarchy)
        problem = strategy_problem(read, given.workload, given.strategy_limits) if layered else None
        return f"{as_text(read, given.workload)} {read!r} {problem}"
    except CrossflowError as error:
        return str(error)


def _bounds(given: Scenario, points: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The same of lower bounds."""
    yield from _points(given, points, least=True)


MOST = 128  # strategies of a case that are evaluated
MORE = {
    "timeline": _timeline, "events": _events, "points": _points, "bounds": _bounds, "strategies": _strategies, "program": _program,
    "readings": _readings,
}  # fmt: skip
