"""What may be chosen of a generated device, as dimensions of a space: shares of its budgets, and its microarchitecture."""

from __future__ import annotations

from collections.abc import Sequence

from crossflow.answers.points import varied
from crossflow.answers.scenario import Scenario
from crossflow.answers.search.space import SMALLEST_SHARE, Range, Shares, Space
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.hardware.architecture.divisions import shares
from crossflow.hardware.architecture.shaping import own_value
from crossflow.hardware.architecture.template import BUDGETS, GeneratedSystem

SHARES = tuple(f"system.budgets.{name}" for name in BUDGETS)  # of the system's own devices; pools have theirs below their place
FREE = "microarchitecture"  # what a space and searches may name, below the place of a device, for all that its template lets them choose


def generated(scenario: Scenario) -> dict[str, GeneratedSystem]:
    """Generated devices of a scenario by their place: of its system, and of pools."""
    return {place: one for place, one in scenario.system.places.items() if isinstance(one, GeneratedSystem)}


def share_paths(scenario: Scenario) -> tuple[str, ...]:
    """Paths of all budgets that are divided."""
    return tuple(f"{place}.budgets.{name}" for place in generated(scenario) for name in BUDGETS)


def held_shares(scenario: Scenario, path: str) -> dict[str, float]:
    """Shares of one budget of a generated device that have a value, by the rest of their path."""
    return {share.removeprefix(f"{path}."): value for share, value in shares_of(scenario).items() if share.startswith(f"{path}.")}


def budget_shares(scenario: Scenario, path: str, names: Sequence[str], low: float = SMALLEST_SHARE, high: float = 1.0) -> Shares:
    """Some shares of one budget, which divide what the others leave of it."""
    held = held_shares(scenario, path)
    for name in names:
        if varied(scenario, f"{path}.{name}") is None:
            raise CrossflowError(f"no share '{name}'{did_you_mean(name, held)}; shares: {', '.join(held)}")
    kept = sum(value for name, value in held.items() if name not in names)
    if low * len(names) > 1.0 - kept:
        raise CrossflowError(f"{len(names)} shares of at least {low:g} are more than the {1.0 - kept:.4g} that the other shares leave")
    return Shares(paths=tuple(f"{path}.{name}" for name in names), low=low, high=high, total=1.0 - kept)


def shares_of(scenario: Scenario) -> dict[str, float]:
    """Every share of the budgets of generated devices by path; none of a device known by its datasheet."""
    return {
        f"{place}.budgets.{path}": float(value[0])
        for place, system in generated(scenario).items() for path, value in shares(system.budgets).items()
    }  # fmt: skip


def free_ranges(scenario: Scenario) -> tuple[Range, ...]:
    """Quantities beside their budgets that generated devices let searches choose, between the ends that their templates give."""
    found = list[Range]()
    for place, system in generated(scenario).items():
        for path, ends in system.microarchitecture.items():
            quantity = system.free(path)
            low, high = ends.read(quantity)
            found.append(Range(path=f"{place}.{path}", low=low, high=high, log=ends.scale == "log", whole=quantity.whole))
    return tuple(found)


def choices_of(scenario: Scenario) -> dict[str, float]:
    """Every share and every free quantity of generated devices that has a value, by path."""
    values = {
        f"{place}.{path}": own_value(system, scenario.library_of(system), path)
        for place, system in generated(scenario).items() for path in system.microarchitecture
    }  # fmt: skip
    return {**{path: float(value[0]) for path, value in values.items() if value is not None}, **shares_of(scenario)}


def whole_device(scenario: Scenario) -> Space:
    """The space of all that may be chosen of generated devices."""
    held = {path: tuple(held_shares(scenario, path)) for path in share_paths(scenario)}
    return Space(ranges=free_ranges(scenario), shares=tuple(budget_shares(scenario, path, names) for path, names in held.items() if names))
