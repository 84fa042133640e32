"""Small studies of every kind, each with several blocks of points to be ended between."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SCENARIO = {
    "system": {"template": "pathfinder", "devices": 8},
    "workload": {"model": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "fp16"},
    "strategy": "d8",
}
POWER, AREA, PLAN = "system.budgets.power_shares", "system.budgets.area", "strategy"
AREAS = {"shares": ["compute", "memory", "on_chip.l2"], "min": 0.02}
MEMORIES = {"system.technology.memory": ["HBM2", "HBM4"]}
LOGIC = {"system.technology.logic": ["N7", "N5", "N3"]}
POWERS = [f"{watts} W" for watts in range(200, 400, 4)]
LONG = ("sweep", "exhaustive", "cma-es")  # which last while several of them begin


def searched(settings: Mapping[str, Any], space: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A study of one search."""
    return {"space": space or {POWER: "shares", AREA: AREAS}, "searches": {"only": dict(settings)}, **more}


KINDS: dict[str, dict[str, Any]] = {
    "sweep": {
        "sweep": {"workload.k": [1024, 2048, 4096], "system.budgets.power": {"from": "200 W", "to": "400 W", "count": 900}},
        "record": ["step_time_s", "energy_j"],
        "plots": [{"name": "p", "x": "system.budgets.power", "y": "step_time_s"}],
    },
    "draws": {"sweep": MEMORIES, "columns": ["step_time_s"], "plots": [], "uncertainty": {"samples": 1500, "seed": 4}},
    "random": searched({"searcher": "random", "evaluations": 6000}),
    "gradient": searched({"searcher": "gradient", "starts": 4, "steps": 20}),
    "evolution": searched({"searcher": "evolution", "evaluations": 3000, "population": 100}),
    "tpe": searched({"searcher": "tpe", "evaluations": 80}),
    "cma-es": searched({"searcher": "cma-es", "evaluations": 300, "population": 20}),
    "nsga2": searched({"searcher": "nsga2", "evaluations": 300, "population": 20}, objectives=["step_time_s", "energy_j"]),
    "exhaustive": searched({"searcher": "exhaustive", "prune": False}, {PLAN: "legal", "system.budgets.power": POWERS}),
    "nested": searched({"searcher": "gradient", "starts": 2, "steps": 6, "finalists": 2}, {POWER: "shares", PLAN: "legal"}, sweep=MEMORIES),
    "redivide": {"sweep": {**LOGIC, "workload.k": list(range(1024, 4096, 32))}, "redivide": {"evaluations": 60}},
}  # fmt: skip


def write(kind: str, folder: Path) -> Path:
    """The file of a study."""
    path = folder / f"{kind}.yaml"
    path.write_text(yaml.safe_dump({"name": kind, "scenario": SCENARIO, **KINDS[kind]}), encoding="utf-8")
    return path
