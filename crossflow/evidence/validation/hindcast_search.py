"""The rule by which a chip is divided before it is announced; one for all chips, and no number of it is fitted to any of them.

1. Its memory is bought: every device for which there is room is fed at its rate.
2. The last cache keeps at least its bandwidth over that of the memory: what ran from the cache of the chip before it runs from this one.
3. Units, caches, memory and links take no more of the die than they take of any chip that was known: the rest are repairs, hosts, fp64.
4. At their peaks they together draw no more, over the power of the chip's class, than those of any chip that was known.
5. Within that, shares of area, power and edge, slices of the last cache and bundles of units are those that make the step of a workload of
   its day shortest, at the power of its class.

The first four are each a field of `DesignRule`, so that what they do can be told (``docs/scripts/make_hindcasts.py --tried``). So are two
that were tried and left. One is a clock of at most that of the predecessor times the gain of the node: foundries claim that at equal power,
and chips were given more. The other is a first-level memory that grows with the cells of its node alone, as its wires set its latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crossflow.answers.scenario import from_dict
from crossflow.answers.search.driver import search as run
from crossflow.answers.search.goals import Constraint, Objective
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.settings import GradientSettings
from crossflow.answers.study.spaces import read_space
from crossflow.base.arrays import Array
from crossflow.base.files import Document
from crossflow.base.units import parse
from crossflow.evidence.validation.hindcast_files import (
    HindcastFile,
    alone,
    balance,
    clock_limit,
    denser_cells,
    known,
    memory_rate,
    predecessor,
    system_of,
    template_of,
)
from crossflow.hardware.architecture.divisions import shares
from crossflow.hardware.architecture.template import GeneratedSystem

EVALUATIONS = 20_000
FEWER, MORE = 4.0, 16.0  # how many times fewer, or more, slices and bundles than the predecessor's a search may take
LEAST_LEVELS = 3  # of chips without a first-level memory: registers, the last cache and main memory
FREE = 6.0  # times the power of its class that all components may draw at their peaks where no rule binds them
FED = 0.98  # of the rate of the memory that must be fed: shares that just suffice are found from below
BoundFigure = Callable[[Mapping[str, Any]], Any]  # of the columns of a score


@dataclass(frozen=True, kw_only=True)
class DesignRule:
    """Which parts of the rule bind a search."""

    memory: bool = True  # all memory devices are fed
    balance: bool = True  # the last cache keeps its bandwidth over the memory's
    explained: bool = True  # no more of the die is used than of the best known chip
    peaks: bool = True  # no more power is drawn by all components at their peaks than by those of a known chip
    clock: bool = False  # the clock gains no more than the node is claimed to at equal power
    first: bool = False  # the first-level memory of a bundle takes no more area than the predecessor's


RULE = DesignRule()


def search(file: HindcastFile, rule: DesignRule = RULE, evaluations: int = EVALUATIONS, seed: int = 0) -> Mapping[str, Any]:
    """The design of a chip: values by path, and other columns of a row of a search."""
    system, entries = under(rule, file) | alone(file.divided_for.devices, file), space(template_of(file.predecessor))
    if rule.explained:  # what is left is held by links without an edge, of which none is built
        system["budgets"]["area"] = {"inter_link": 1.0 - explained(file)}
    scenario = from_dict({"system": system, "workload": dict(file.divided_for.workload), "strategy": file.divided_for.strategy})
    bounds = list(_bounds(file, rule))
    problem = SearchProblem(
        scenario=scenario,
        space=read_space(entries, scenario, Document(file=file.name, data={"space": entries})),
        objectives=(Objective(name="step_time_s"),),
        constraints=tuple(bound for _, bound in bounds),
        fits=False,
        own={bound.name: figure for figure, bound in bounds} or None,
    )
    row = run(problem, GradientSettings(evaluations=evaluations, seed=seed)).row
    return {} if row is None else row


def under(rule: DesignRule, file: HindcastFile) -> dict[str, Any]:
    """The system that a search under a rule starts from."""
    system = system_of(file)
    if not rule.peaks:
        system["budgets"]["peak_power"] = f"{FREE * parse(file.facts.power.value, 'W'):g} W"
    return system


def _bounds(file: HindcastFile, rule: DesignRule) -> Iterator[tuple[BoundFigure, Constraint]]:
    """Figures of a design that a rule bounds, with their bounds."""
    before, utilisation = predecessor(file), float(template_of(file.predecessor).memory_utilisation[0])
    last, memory = (f"architecture.{level.name}.bandwidth" for level in before.levels[-2:])
    if rule.memory:
        yield lambda columns: columns[memory], Constraint(name="memory", bound=FED * utilisation * memory_rate(file), at_most=False)
    if rule.balance:
        yield lambda columns: columns[last] / columns[memory], Constraint(name="balance", bound=balance(file), at_most=False)
    if rule.clock:
        yield lambda columns: columns["architecture.frequency"], Constraint(name="clock", bound=clock_limit(file))
    if rule.first and len(before.levels) > LEAST_LEVELS:
        held = f"architecture.{before.levels[1].name}.capacity"
        bound = float(before.levels[1].capacity[0]) * denser_cells(file)
        yield lambda columns: columns[held] / columns["architecture.units"], Constraint(name="first", bound=bound)


def space(before: GeneratedSystem) -> dict[str, Any]:
    """What the search may change: shares of all budgets, slices of the last cache and bundles of units."""
    last = list(before.levels)[-1]
    named = [path.removeprefix("area.") for path, _ in _areas(before)]
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
    return max(sum(float(share[0]) for _, share in _areas(spec)) for spec in known(file))


def _areas(spec: GeneratedSystem) -> Iterator[tuple[str, Array]]:
    """Shares of the die of a generated chip, by path."""
    return ((path, share) for path, share in shares(spec.budgets).items() if path.startswith("area."))
