"""Which strategies divide the workload of a scenario over its devices, and which of them is nearest to another one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario, check_strategy
from crossflow.base.errors import CrossflowError
from crossflow.parallel.strategy.kinds import ANY
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import AnyStrategy, as_text, every_strategy, legal_strategies
from crossflow.workload.spec import TransformerSpec

DEGREES = ("tp", "cp", "ep", "dp", "pp")  # of a plan
WEIGHTS = {**dict.fromkeys(DEGREES, 1.0), "dp": 0.9}  # of the distance of each
TRIED = 24  # nearest degrees with which a plan is tried as it is otherwise


def count_path(scenario: Scenario) -> str:
    """The setting that gives the number of devices: that which the scenario writes itself."""
    return "system.nodes" if scenario.system.devices is None and scenario.system.nodes is not None else "system.devices"


def engine_text(plan: Plan) -> str:
    """The plan of one engine of a job as a scenario takes it; that of one device is named too, as the number of engines follows it."""
    return str(plan) if plan.devices > 1 else "tp1"


def legal(scenario: Scenario) -> tuple[str, ...]:
    """Every strategy that divides the workload of a scenario over its devices, as text; none for a program."""
    if not scenario.workload.divisible:
        return ()
    return every_strategy(scenario.workload, _nodes(scenario), fused=scenario.fused_attention, kinds=scenario.system.kinds)


def _nodes(scenario: Scenario) -> tuple[int, int]:
    """Devices of a node, and nodes."""
    if scenario.system.kinds:
        return scenario.system.mesh
    devices, node = scenario.system.device_count, scenario.system.devices_per_node
    return min(node, devices), max(devices // node, 1)


def nearest(scenario: Scenario, wanted: AnyStrategy) -> str | None:
    """The strategy nearest to one that divides the workload of a scenario, as text: its degrees alone differ, where such a plan divides.

    Degrees are as near as their ratios are to 1, and other strategies as they share words. None where nothing divides.
    """
    if isinstance(wanted, Plan) and isinstance(scenario.workload, TransformerSpec):
        listed = legal_strategies(scenario.workload, _nodes(scenario), fused=scenario.fused_attention, kinds=scenario.system.kinds)
        plans = {degrees_of(plan): plan for plan in listed if isinstance(plan, Plan)}
        order = sorted(plans, key=lambda degrees: _apart(degrees, degrees_of(wanted)))
        tried = (as_text(wanted.but(**dict(zip(DEGREES, degrees, strict=True))), scenario.workload) for degrees in order[:TRIED])
        found = next((text for text in tried if divides(scenario, {}, text)), None)
        return found or next((as_text(plans[degrees], scenario.workload) for degrees in order), None)
    words = set(str(wanted).split("-"))
    return min(legal(scenario), key=lambda text: len(words ^ set(text.split("-"))), default=None)


def degrees_of(plan: Plan) -> tuple[int, ...]:
    """`DEGREES` of a plan."""
    return tuple(getattr(plan, name) for name in DEGREES)


def _apart(one: Sequence[int], other: Sequence[int]) -> float:
    """Distance of degrees: how many doublings lie between them; replicas are what a run has more or less of first."""
    return sum(WEIGHTS[name] * abs(math.log2(a / b)) for name, a, b in zip(DEGREES, one, other, strict=True))


def divides(scenario: Scenario, settings: Mapping[str, Any], strategy: str) -> bool:
    """Whether a strategy divides the workload of a scenario with other settings."""
    try:
        checked(variant(scenario, {**settings, "strategy": strategy}))
    except CrossflowError:
        return False
    return True


def undecided(scenario: Scenario, settings: Mapping[str, Any]) -> Scenario | None:
    """The scenario with other settings, its strategy left open; None where the settings make no scenario."""
    try:
        return variant(scenario, {**settings, "strategy": ANY})
    except CrossflowError:
        return None


def checked(scenario: Scenario) -> Scenario:
    """The scenario itself; StrategyError where its strategy does not divide its workload."""
    check_strategy(scenario)
    return scenario
