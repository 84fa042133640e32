"""The rule by which a chip is divided before it is announced; one for all chips, and no number of it is fitted to any of them.

1. Its memory is bought: every device for which there is room is fed at its rate.
2. The last cache keeps at least its bandwidth over that of the memory: what ran from the predecessor's cache runs from this one.
3. Units, caches, memory and links take no more of the die than they take of any chip that was known: the rest are repairs, hosts, fp64.
4. Its clock is at most that of the predecessor times the gain of the node at equal power, as nodes are claimed and modelled.
5. Within that, shares of area, power and edge, slices of the cache and bundles of units are those that make the step of a workload of its
   day shortest, at the power of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossflow.answers.interactive.optimum import Optimum, optimise
from crossflow.evidence.validation.hindcast_files import HindcastFile, alone, clock_limit, memory_rate, predecessor, system_of, template_of
from crossflow.hardware.architecture.divisions import shares
from crossflow.hardware.architecture.template import GeneratedSystem

EVALUATIONS = 20_000
FEWER, MORE = 4.0, 16.0  # how many times fewer, or more, slices and bundles than the predecessor's a search may take
FED = 0.98  # of the rate of the memory that must be fed: shares that just suffice are found from below
# Generated chips by the day of their announcement.
ANNOUNCED: Mapping[str, str] = {
    "chip-v100": "2017-05-10",
    "chip-a100": "2020-05-14",
    "chip-tpu-v4": "2021-05-18",
    "chip-mi210": "2021-11-08",
    "chip-h100": "2022-03-22",
    "chip-mi300x": "2023-06-13",
    "chip-h200": "2023-11-13",
    "chip-b200": "2024-03-18",
}


def search(file: HindcastFile, evaluations: int = EVALUATIONS, seed: int = 0) -> Optimum:
    """The design of a chip."""
    system, before = system_of(file), predecessor(file)
    last, stated = before.levels[-2], template_of(file.predecessor)
    balance = float(last.bandwidth[0] / before.memory.bandwidth[0])
    rate = FED * memory_rate(file) * float(stated.memory_utilisation[0])
    free = explained(file)
    system |= alone(file.divided_for.devices)
    system["budgets"]["area"] = {"inter_link": 1.0 - free}  # held by nothing: without an edge no such link is built
    scenario = {"system": system, "workload": dict(file.divided_for.workload), "strategy": file.divided_for.strategy}
    return optimise(
        scenario,
        space(stated),
        "step_time_s",
        figures={
            "balance": lambda columns: columns[f"architecture.{last.name}.bandwidth"] / columns["architecture.memory.bandwidth"],
            "memory_rate": lambda columns: columns["architecture.memory.bandwidth"],
            "clock": lambda columns: columns["architecture.frequency"],
        },
        constraints={
            "fits": False,
            "balance": f">= {balance:.6g}",
            "memory_rate": f">= {rate:.6g}",
            "clock": f"<= {clock_limit(file):.6g}",
        },
        searcher="gradient",
        evaluations=evaluations,
        seed=seed,
    )


def space(before: GeneratedSystem) -> dict[str, Any]:
    """What the search may change: shares of all budgets, slices of the last cache and bundles of units."""
    last = list(before.levels)[-1]
    named = [path.removeprefix("area.") for path in shares(before.budgets) if path.startswith("area.")]
    counts = {f"system.levels.{last}.slices": before.levels[last].slices[0], "system.bundles": before.bundles[0]}
    ranges = {path: {"from": max(round(n / FEWER), 1), "to": round(n * MORE)} for path, n in counts.items()}
    return {
        "system.budgets.area": {"shares": [name for name in named if name != "inter_link"]},
        "system.budgets.power_shares": "shares",
        "system.budgets.perimeter": "shares",
        **ranges,
    }


def explained(file: HindcastFile) -> float:
    """Largest share of the die that the components of a chip take which was announced before. [1]"""
    before = [name for name, day in ANNOUNCED.items() if day < file.announced.isoformat()]
    return max(sum(float(v[0]) for path, v in shares(template_of(name).budgets).items() if path.startswith("area.")) for name in before)
