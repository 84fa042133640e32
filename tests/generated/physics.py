"""Laws of physics on drawn scenarios: other units, other orders, more devices, limits, better parts.

Exceptions stand in `docs/model.md`, in the table below "Where a better part makes a step slower", which `exceptions` reads: nothing else is
let through.
"""

import copy
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.parameters import Parameter, parameters
from crossflow.base.errors import CrossflowError
from crossflow.base.paths import quantities
from tests.generated.drawn_laws import EXACT, Case, answered, same

MODEL = Path(__file__).parents[2] / "docs" / "model.md"
HEADING = "Where a better part makes a step slower"
EXPONENTS = {"s": 1, "Hz": -1, "W": -1}  # of time, where energy is a dimension of its own
TIMES = {"supply_drop": 1}  # and of figures whose unit is 1: a drop at 1 W/mm2

# Whether more of a figure is better (1) or less (-1), by the end of its path; and of what figures only energy may grow with it.
BETTER = {
    "bandwidth": 1, "capacity": 1, "latency": -1, "matrix_rate": 1, "vector_rate": 1, "kernel_launch": -1, "graph_launch": -1, "clock": 1,
    "throughput": 1, "access_latency": -1, "direct_latency": -1, "vector_utilisation": 1, "matrix_utilisation": 1,
    "memory_utilisation": 1, "thermal_resistance": -1, "wire_latency": -1,
}  # fmt: skip
FRUGAL = ("nominal_energy_per_bit", "dynamic_energy_per_bit", "interface_energy_per_bit", "static_power_per_bit", "chip_power")


@dataclass(frozen=True, kw_only=True)
class Exception_:
    """A better part that may lengthen a step, and by how much at most."""

    path: re.Pattern[str]
    kinds: str  # what the exception holds for: a pattern of kinds of generated scenarios
    most: float


@functools.cache
def exceptions() -> tuple[Exception_, ...]:
    """The table in the notes on the model."""
    text = MODEL.read_text().split(f"## {HEADING}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([^`|]+)` \| ([^|]+) \| ([0-9.]+) % \| [^|]+ \|$", text, re.MULTILINE)
    assert rows, f"{MODEL.name} has no table below '{HEADING}'"
    return tuple(
        Exception_(path=re.compile(re.escape(path).replace(r"\*", ".*")), kinds=kinds.strip(), most=float(percent) / 100.0)
        for path, kinds, percent in rows
    )


def allowed(path: str) -> float:
    """By which share of a step a better part at a path may lengthen it."""
    return max([EXACT, *(one.most for one in exceptions() if one.path.fullmatch(path))])


# ------------------------------------------------------------------------------------------ units


def time_exponent(unit: str, path: str = "") -> int:
    """Of a unit such as ``J/B`` or ``K*m2/W``."""
    last = path.rpartition(".")[2]
    if last in TIMES:
        return TIMES[last]
    over, *under = unit.split("/")
    return sum(EXPONENTS.get(one, 0) for one in over.split("*")) - sum(EXPONENTS.get(one, 0) for part in under for one in part.split("*"))


def timed(case: Case) -> dict[str, tuple[float, int]]:
    """Every number behind a scenario that has time in its unit: its value in SI units, and the exponent."""
    found = {one.path: (one.value, time_exponent(one.quantity.unit, one.path)) for one in parameters(case.scenario)}
    sections = {"software": case.scenario.stack}
    for section, model in sections.items():
        for path, quantity, value in quantities(model) if model is not None else ():
            if np.size(value) == 1:
                found[f"{section}.{'.'.join(path)}"] = (float(np.ravel(value)[0]), time_exponent(quantity.unit))
    return {path: (value, exponent) for path, (value, exponent) in found.items() if exponent and value}


def in_half_seconds(case: Case) -> None:
    """A machine all of whose rates are half, and all of whose latencies are twice, takes twice the time and the same energy.

    So no number of the model hides a time: the law is Buckingham's theorem for the unit of time.
    """
    if case.replayed or case.kind in ("job", "pools") or not np.isfinite(case.found.step_time) or _timed_otherwise(case.document):
        return
    points = {path: [value, value * 2.0**exponent] for path, (value, exponent) in timed(case).items()}
    found = evaluate(case.scenario, points)
    assert np.isclose(found.step_time[1], 2.0 * found.step_time[0], rtol=1e-7), found.step_time[1] / found.step_time[0]
    assert np.isclose(found.energy[1], found.energy[0], rtol=1e-6), found.energy[1] / found.energy[0]


def _timed_otherwise(document: Mapping[str, Any]) -> bool:
    """Whether times stand in it that are no numbers of a part: arrivals of requests, and measured events."""
    return "profile" in document or "arrival_rate" in document["workload"].get("serving", {}) if isinstance(document["workload"], dict) else False


# ------------------------------------------------------------------------------------------ orders


def in_another_order(case: Case) -> None:
    """The order of keys in a file says nothing, nor that of the tables of a recommendation model."""
    same({**case.told, "notes": None}, {**answered(crossflow.predict(reversed_keys(case.document))), "notes": None})
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
    """Twice the nodes for twice the samples: the work of each device stays, so that no step is shorter, and none holds more."""
    document = case.document
    plan, model = document.get("strategy"), document["workload"]
    if not isinstance(plan, dict) or "dp" not in plan or "global_batch" not in model or "nodes" not in document["system"]:
        return
    if case.replayed or "job" in document or "run" in document or "congestion" in str(document) or "serving" in model:
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


def better_figures(case: Case) -> Iterator[tuple[Parameter, float]]:
    """Every figure of a part, and what it is when it is better."""
    for one in parameters(case.scenario):
        last = one.path.rpartition(".")[2]
        way = BETTER.get(last, BETTER.get(one.path.rpartition(".")[0].rpartition(".")[2]))
        if last in FRUGAL:
            way = -1
        if way is None or one.value <= 0 or one.path.startswith(("techlib.logic", "system.budgets")):
            continue
        value = one.value * (1.5 if way > 0 else 0.5)
        if one.quantity.le is None or value <= one.quantity.le:
            yield one, value


def better_parts(case: Case) -> None:
    """No faster, larger or more frugal part lengthens a step, but as the table in the notes on the model says."""
    if case.replayed or not np.isfinite(case.found.step_time):
        return
    figures = list(better_figures(case))
    if not figures:
        return
    points = {one.path: [value if place == i else one.value for place in range(len(figures) + 1)] for i, (one, value) in enumerate(figures)}
    before, after = np.split(evaluate(case.scenario, points).step_time, [-1])[::-1]
    slower = [(one.path, float(time / before[0] - 1.0)) for (one, _), time in zip(figures, after, strict=True) if np.isfinite(time)]
    broken = [(path, by) for path, by in slower if by > allowed(path)]
    assert not broken, broken


PHYSICS = (in_half_seconds, in_another_order, twice_the_machine, with_endless_links, better_parts)
