"""Laws of physics on drawn scenarios: other units, other orders, more devices, limits, better parts.

Exceptions stand in `docs/model.md`, in the table below "Where a better part makes a step slower", which `exceptions` reads: nothing else is
let through.
"""

import contextlib
import copy
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.parameters import parameters
from crossflow.base.errors import CrossflowError
from crossflow.base.paths import quantities
from crossflow.cost import fabrics
from crossflow.cost.tiling import TIE
from crossflow.hardware.architecture import supply
from tests.generated.drawn_laws import EXACT, Case, figures_of, same

MODEL = Path(__file__).parents[2] / "docs" / "model.md"
HEADING = "Where a better part makes a step slower"
EXPONENTS = {"s": 1, "Hz": -1, "W": -1}  # of time, where energy is a dimension of its own
# Rates and powers that no file holds: those that tell generations of links apart, and the density at which a loss of voltage is given.
WITHIN = ((fabrics, "NVLINK4"), (fabrics, "PCIE5"), (supply, "DENSITY"))

# Whether more of a figure is better (1) or less (-1), by the end of its path.
BETTER = {
    "bandwidth": 1, "capacity": 1, "latency": -1, "kernel_launch": -1, "graph_launch": -1, "access_latency": -1, "direct_latency": -1,
    "vector_utilisation": 1, "matrix_utilisation": 1, "memory_utilisation": 1, "thermal_resistance": -1, "wire_latency": -1, "tdp": 1,
    "nominal_energy_per_bit": -1, "dynamic_energy_per_bit": -1, "interface_energy_per_bit": -1, "static_power_per_bit": -1,
}  # fmt: skip
FAMILIES = ("throughput", "vector_throughput")  # rates by data type: those of a better device are all higher
ROUNDING = 2.0 * TIE  # of tilings that are as fast the most frugal one is taken, and clocks at a power limit are found by steps


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """A better figure that may lengthen a step, and by how much at most."""

    figure: re.Pattern[str]
    where: str  # path of a document that must be given for it, "" where none is
    most: float


@functools.cache
def exceptions() -> tuple[Allowed, ...]:
    """The table in the notes on the model: figure, where it counts, at most, reason."""
    text = MODEL.read_text().split(f"## {HEADING}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([^`|]+)` \| ([^|]*) \| ([0-9.]+) % \| [^|]+ \|$", text, re.MULTILINE)
    assert rows, f"{MODEL.name} has no table below '{HEADING}'"
    return tuple(
        Allowed(
            figure=re.compile(re.escape(figure).replace(r"\*", ".*")),
            where="".join(re.findall("`([^`]+)`", where)[:1]),
            most=float(percent) / 100.0,
        )
        for figure, where, percent in rows
    )


def allowed(figure: str, document: Mapping[str, Any]) -> float:
    """By which share of a step a better figure may lengthen it."""
    given = [one for one in exceptions() if one.figure.fullmatch(figure) and (not one.where or _given(document, one.where.split(".")))]
    return max([ROUNDING, *(one.most for one in given)])


def _given(data: Any, path: list[str]) -> bool:
    """Whether something stands at a path; a star is any key."""
    if not path:
        return True
    inside = data if isinstance(data, dict) else {}
    return any(_given(value, path[1:]) for key, value in inside.items() if path[0] in ("*", key))


# ------------------------------------------------------------------------------------------ units


def time_exponent(unit: str) -> int:
    """Of a unit such as ``J/B`` or ``K*m2/W``."""
    over, *under = unit.split("/")
    return sum(EXPONENTS.get(one, 0) for one in over.split("*")) - sum(EXPONENTS.get(one, 0) for part in under for one in part.split("*"))


def timed(case: Case) -> dict[str, tuple[float, int]]:
    """Every number of the parts that has time in its unit: its value in SI units, and the exponent."""
    found = {one.path: (one.value, time_exponent(one.quantity.unit)) for one in parameters(case.scenario)}
    return {path: (value, exponent) for path, (value, exponent) in found.items() if exponent and value}


def slower_software(case: Case) -> crossflow.Scenario:
    """The scenario with software that takes twice the time for all that it does."""
    if case.scenario.stack is None:
        return case.scenario
    changes: dict[str, Any] = {}
    for path, quantity, value in quantities(case.scenario.stack):
        if quantity.unit == "s" and np.any(value):
            assert np.size(value) == 1
            *above, last = path
            functools.reduce(lambda inside, key: inside.setdefault(key, {}), above, changes)[last] = (
                f"{2.0 * float(np.ravel(value)[0])!r} s"
            )
    given = case.document.get("software")
    named = given if isinstance(given, dict) else {"like": case.scenario.stack.name}
    return crossflow.from_dict({**copy.deepcopy(case.document), "software": _merged(named, changes)})


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(one[key], dict)}
    return {**one, **other, **both}


def in_half_seconds(case: Case) -> None:
    """A machine all of whose rates are half, and all of whose latencies are twice, takes twice the time and the same energy.

    So no number of the model hides a time, but for those of `WITHIN`: the law is Buckingham's theorem for the unit of time.
    """
    if case.replayed or case.kind in ("job", "pools") or not np.isfinite(case.found.step_time) or _timed_otherwise(case.document):
        return
    numbers = timed(case)
    before = evaluate(case.scenario, {path: [value] for path, (value, _) in numbers.items()})
    with contextlib.ExitStack() as stack:
        for module, name in WITHIN:
            stack.enter_context(mock.patch.object(module, name, 0.5 * getattr(module, name)))
        after = evaluate(slower_software(case), {path: [value * 2.0**exponent] for path, (value, exponent) in numbers.items()})
    assert np.isclose(after.step_time[0], 2.0 * before.step_time[0], rtol=1e-7), ("time", after.step_time[0] / before.step_time[0])
    assert np.isclose(after.energy[0], before.energy[0], rtol=1e-6), ("energy", after.energy[0] / before.energy[0])


def _timed_otherwise(document: Mapping[str, Any]) -> bool:
    """Whether times stand in it that are no numbers of a part: measured events, and requests that arrive, wait or are read from a host."""
    model = document["workload"]
    serving = model.get("serving", {}) if isinstance(model, dict) else {}
    return "profile" in document or bool({"arrival_rate", "host_cache", "guided", "failures", "autoscale"} & set(serving))


# ------------------------------------------------------------------------------------------ orders


def in_another_order(case: Case) -> None:
    """The order of keys in a file says nothing, nor that of the tables of a recommendation model."""
    same(case.figures, figures_of(crossflow.predict(reversed_keys(case.document))))
    tables = case.document["workload"].get("tables") if isinstance(case.document["workload"], dict) else None
    if isinstance(tables, list) and "sharding" not in case.document["workload"]:
        document = copy.deepcopy(case.document)
        document["workload"]["tables"] = tables[::-1]
        after = crossflow.predict(document)
        assert np.isclose(after.step_time, case.found.step_time, rtol=EXACT), (after.step_time, case.found.step_time)


def reversed_keys(data: Any) -> Any:
    """The same data, the keys of every mapping from last to first, but for pools, whose order is that of stages."""
    if isinstance(data, dict):
        return {key: data[key] if key == "pools" else reversed_keys(data[key]) for key in reversed(data)}
    return [reversed_keys(one) for one in data] if isinstance(data, list) else data


# ------------------------------------------------------------------------------------------ more devices, limits


def twice_the_machine(case: Case) -> None:
    """Twice the nodes for twice the samples: the work of each device stays, so that no step is shorter, and none holds more.

    Where an optimizer's work is divided too (ZeRO), each has less of it; a mesh or torus of more nodes has another shape.
    """
    document = case.document
    plan, model = document.get("strategy"), document["workload"]
    if (
        not isinstance(plan, dict)
        or plan.get("zero")
        or not isinstance(model, dict)
        or "dp" not in plan
        or "global_batch" not in model
        or "nodes" not in document["system"]
    ):
        return
    if case.replayed or "job" in document or "run" in document or "topology" in str(document) or "serving" in model:
        return
    larger = copy.deepcopy(document)
    larger["system"]["nodes"] *= 2
    larger["strategy"]["dp"] *= 2
    larger["workload"]["global_batch"] *= 2
    try:
        after = crossflow.predict(larger)
    except CrossflowError:  # such as a torus of a fixed shape
        return
    assert after.step_time >= case.found.step_time * (1 - EXACT), ("step", after.step_time / case.found.step_time - 1)
    before, held = (found.memory.get("total_bytes", found.memory.get("total")) for found in (case.found, after))
    assert held is None or before is None or held <= before * (1 + EXACT), ("memory", before, held)


def with_endless_links(case: Case) -> None:
    """Without latencies, and with endless bandwidth, communication takes no time."""
    if case.replayed or not np.isfinite(case.found.step_time) or case.kind in ("job", "pools") or "profile" in case.document:
        return
    points, rates = {}, 0
    for one in parameters(case.scenario):
        of_links = one.path.startswith(("system.network.", "techlib.link."))
        if of_links and one.quantity.unit == "s":
            points[one.path] = [0.0]
        elif of_links and one.quantity.unit == "B/s":
            points[one.path] = [1e12 * one.value]
            rates += one.path.startswith(("system.network.intra", "system.network.inter"))
    if not rates:
        return
    found = evaluate(case.scenario, points)
    assert found.step_time[0] <= case.found.step_time * (1 + EXACT)
    assert found.breakdown["exposed_communication"][0] <= 1e-3 * found.step_time[0], found.breakdown


# ------------------------------------------------------------------------------------------ better parts


def better_figures(case: Case) -> dict[str, dict[str, float]]:
    """What changes where a figure is better, by its path; rates of all data types change together."""
    found: dict[str, dict[str, float]] = {}
    for one in parameters(case.scenario):
        above, _, last = one.path.rpartition(".")
        if one.value <= 0:
            continue
        if above.rpartition(".")[2] in FAMILIES:
            found.setdefault(f"{above}.*", {})[one.path] = 1.5 * one.value
        elif last in BETTER or (one.path.startswith("system.network.") and one.quantity.unit == "s"):
            value = one.value * (1.5 if BETTER.get(last, -1) > 0 else 0.5)
            if one.quantity.le is None or value <= one.quantity.le:
                found[one.path] = {one.path: value}
    return found


def better_parts(case: Case) -> None:
    """No faster, larger or more frugal part lengthens a step, but as the table in the notes on the model says.

    A service writes for more requests at once where there is more memory, in longer steps.
    """
    if case.replayed or not np.isfinite(case.found.step_time) or not (figures := better_figures(case)):
        return
    values = {one.path: one.value for one in parameters(case.scenario)}
    points = {path: [change.get(path, values[path]) for change in ({}, *figures.values())] for path in set().union(*figures.values())}
    before, *after = evaluate(case.scenario, points).step_time
    left = "capacity" if getattr(case.scenario.workload, "task", "") == "serving" else None
    slower = {
        name: float(time / before - 1.0)
        for name, time in zip(figures, after, strict=True)
        if np.isfinite(time) and name.rpartition(".")[2] != left
    }
    broken = {name: by for name, by in slower.items() if by > allowed(name, case.document)}
    assert not broken, broken


PHYSICS = (in_half_seconds, in_another_order, twice_the_machine, with_endless_links, better_parts)
