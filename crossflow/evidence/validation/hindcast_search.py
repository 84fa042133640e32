"""The rule by which a chip is divided before it is announced; one for all chips, and no number of it is fitted to any of them.

1. Its memory is bought: every device for which there is room is fed at its rate.
2. The last cache keeps at least its bandwidth over that of the memory: what ran from the predecessor's cache runs from this one.
3. Units, caches, memory and links take no more of the die than they take of any chip that was known: the rest are repairs, hosts, fp64.
4. Within that, shares of area, power and edge, slices of the last cache and bundles of units are those that make the step of a workload of
   its day shortest, at the power of its class.

The first three are each a field of `DesignRule`, so that what they do can be told (``docs/scripts/make_hindcasts.py --tried``). So is a
fourth that was tried and left: a clock of at most that of the predecessor times the gain of the node. Foundries claim that at equal power,
and chips were given more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crossflow.answers.interactive.optimum import Optimum, optimise
from crossflow.evidence.validation.hindcast_files import (
    HindcastFile,
    alone,
    clock_limit,
    memory_rate,
    predecessor,
    system_of,
    template_of,
)
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
Columns = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class DesignRule:
    """Which parts of the rule bind a search."""

    memory: bool = True  # all memory devices are fed
    balance: bool = True  # the last cache keeps its bandwidth over the memory's
    explained: bool = True  # no more of the die is used than of the best known chip
    clock: bool = False  # the clock gains no more than the node is claimed to at equal power


RULE = DesignRule()


def search(file: HindcastFile, rule: DesignRule = RULE, evaluations: int = EVALUATIONS, seed: int = 0) -> Optimum:
    """The design of a chip."""
    system, before = system_of(file) | alone(file.divided_for.devices), template_of(file.predecessor)
    if rule.explained:  # what is left is held by links without an edge, of which none is built
        system["budgets"]["area"] = {"inter_link": 1.0 - explained(file)}
    bounds = {name: (figure, bound) for name, figure, bound in _bounds(file, rule)}
    return optimise(
        {"system": system, "workload": dict(file.divided_for.workload), "strategy": file.divided_for.strategy},
        space(before),
        "step_time_s",
        figures={name: figure for name, (figure, _) in bounds.items()},
        constraints={"fits": False, **{name: bound for name, (_, bound) in bounds.items()}},
        searcher="gradient",
        evaluations=evaluations,
        seed=seed,
    )


def _bounds(file: HindcastFile, rule: DesignRule) -> Iterator[tuple[str, Callable[[Columns], Any], str]]:
    """Figures of a design that a rule bounds, with their bounds."""
    before, utilisation = predecessor(file), float(template_of(file.predecessor).memory_utilisation[0])
    last = f"architecture.{before.levels[-2].name}.bandwidth"
    memory = "architecture.memory.bandwidth"
    if rule.memory:
        yield "memory_rate", lambda columns: columns[memory], f">= {FED * utilisation * memory_rate(file):.6g}"
    if rule.balance:
        kept = float(before.levels[-2].bandwidth[0] / before.memory.bandwidth[0])
        yield "balance", lambda columns: columns[last] / columns[memory], f">= {kept:.6g}"
    if rule.clock:
        yield "clock", lambda columns: columns["architecture.frequency"], f"<= {clock_limit(file):.6g}"


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
    known = [name for name, day in ANNOUNCED.items() if day < file.announced.isoformat()]
    return max(sum(float(share[0]) for path, share in shares(template_of(name).budgets).items() if path.startswith("area.")) for name in known)
