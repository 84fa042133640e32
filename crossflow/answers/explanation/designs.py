"""Designs that differ from a scenario by settings, read once into what makes another scenario and numbers that vary in a batch."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.figures import usual_figure, usual_objective
from crossflow.answers.explanation.dividing import checked, count_path, legal, undecided
from crossflow.answers.points import variant, varied
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import Score, taken
from crossflow.base import files
from crossflow.base.arrays import Index
from crossflow.base.errors import CrossflowError, SpecError, StrategyError
from crossflow.base.files import held
from crossflow.base.paths import with_quantity
from crossflow.base.units import parse, show
from crossflow.hardware.architecture.generator import for_choices
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.architecture.template import GeneratedSystem, SystemSpec
from crossflow.parallel.strategy.kinds import ANY

ARRIVALS = "workload.serving.arrival_rate"  # a number with a unit that makes another scenario
AUTO = "auto"  # the strategy that is the fastest of those that fit
APART = 48  # strategies that are tried where each is a scenario of its own
DIGITS = 6  # of a number as text, where no more are needed


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """A design that somebody asks for, on a page or among decisions.

    Attributes
    ----------
    settings : what differs from the scenario that it began with, by path; numbers of the system and its library in SI units.
    scenario : the scenario with all settings but these numbers.
    quantities : these numbers by path.
    note : what was done otherwise than asked, as a sentence; empty where nothing was.
    auto : whether the strategy is chosen anew for every design, as the settings or the scenario ask.
    """

    settings: Mapping[str, Any]
    scenario: Scenario
    quantities: Mapping[str, float]
    note: str = ""
    auto: bool = False

    @property
    def key(self) -> str:
        """What tells scenarios of designs apart: the settings without the numbers that vary in a batch."""
        return json.dumps({path: value for path, value in self.settings.items() if path not in self.quantities}, sort_keys=True)

    def points(self, n: int) -> dict[str, Any]:
        """Points of n equal designs."""
        return {path: np.full(n, value) for path, value in self.quantities.items()}

    def score(self, *columns: str) -> Score:
        """Score of the design; with columns what these need alone."""
        return evaluate(self.scenario, self.points(1) or None, columns=columns or None)

    def device(self) -> Architecture:
        """The derived architecture, with its use of the budgets."""
        system: SystemSpec = self.scenario.system
        library = self.scenario.library
        if isinstance(system, GeneratedSystem):
            system = for_choices(system, library, {}, held(self.scenario.document.data, ("system", "components")) or {})
        for path, value in self.quantities.items():
            root, *rest = path.split(".")
            if root == "techlib":
                library = with_quantity(library, rest, np.array([value]))
            else:
                system = with_quantity(system, rest, np.array([value]))
        return architecture(system, library)

    def whole(self) -> Scenario:
        """The scenario with all settings, also the numbers."""
        texts = {path: text_of(self.scenario, path, value) for path, value in self.quantities.items()}
        return variant(self.scenario, texts)


def read_design(scenario: Scenario, settings: Any, *, chosen: str | None = None, kept: bool = False) -> Design:
    """A design from settings, as a page sends them.

    Parameters
    ----------
    scenario : what they differ from.
    settings : values by path; ``strategy: auto`` for the fastest strategy that fits.
    chosen : strategy that auto stood for last, which is kept while it divides the workload; None to search anew.
    kept : whether a strategy that does not divide the workload is an error, and no other is taken in its place.

    Where the scenario itself says ``strategy: auto``, settings without a strategy say so too; without any setting the strategy is the one
    that was chosen when the scenario was opened.

    Raises
    ------
    CrossflowError
        When a path or a value is none.

    Notes
    -----
    A strategy that does not divide the workload over the devices, as after another number of devices, gives way to the fastest.
    """
    if not isinstance(settings, Mapping):
        raise CrossflowError("settings: expected values by path")
    given = _counted(scenario, {str(path): _plain(path, value) for path, value in settings.items()})
    discrete = discrete_of(scenario, given)
    asked = discrete.pop("strategy", AUTO if scenario.auto is not None and given else None)
    here, strategy, note = _divided(scenario, discrete, asked, chosen, kept=kept)
    quantities = {path: _number(here, path, value) for path, value in given.items() if path not in discrete and path != "strategy"}
    design = Design(settings=given, scenario=here, quantities=quantities, note=note, auto=asked == AUTO)
    return design if strategy != AUTO else replace(design, scenario=variant(here, {"strategy": fastest(design)}))


def discrete_of(scenario: Scenario, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make another scenario: all but numbers that vary in a batch."""
    return {path: value for path, value in settings.items() if not _is_quantity(scenario, path)}


def _plain(path: Any, value: Any) -> Any:
    if not isinstance(value, (str, int, float, bool)) or (isinstance(value, str) and len(value) > 2000):
        raise CrossflowError(f"{path}: expected a number or text")
    return f"{value:.10g} 1/s" if path == ARRIVALS and not isinstance(value, str) else value


def _counted(scenario: Scenario, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which the number of devices stands where the scenario has it."""
    path = count_path(scenario)
    if path == "system.nodes" and "system.devices" in settings:
        devices, node = int(settings.pop("system.devices")), scenario.system.devices_per_node
        settings[path] = -(-devices // node)
    return settings


def _is_quantity(scenario: Scenario, path: str) -> bool:
    """Whether a path is that of a number which varies in a batch; paths of the system and its library that are no names are."""
    root, *rest = path.split(".")
    if root == "techlib":
        return True
    if root != "system" or rest[:1] in (["technology"], ["devices"], ["nodes"], ["template"], ["techlib"]):
        return False
    return varied(scenario, path) is not None or rest[:1] in (["budgets"], ["levels"], ["execution"])


def _number(scenario: Scenario, path: str, value: Any) -> float:
    quantity = varied(scenario, path)
    if quantity is None:
        raise CrossflowError(f"{path}: no number stands there; it may be of another system or technology")
    try:
        found = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else float(quantity.read(value)[0])
        return quantity.checked(found)
    except ValueError as error:
        raise CrossflowError(f"{path}: {error}") from None


def _divided(
    scenario: Scenario, discrete: dict[str, Any], asked: Any, chosen: str | None, *, kept: bool
) -> tuple[Scenario, str | None, str]:
    """The scenario with discrete settings and a strategy that divides it; `AUTO` beside it where one is still to be chosen."""
    wanted = chosen if asked == AUTO else asked
    if not scenario.workload.divisible:
        return checked(variant(scenario, discrete)), None, ""
    try:
        if asked != AUTO or wanted is not None:
            here = variant(scenario, {**discrete, "strategy": wanted} if wanted is not None else discrete)
            return checked(here), None, ""
        return variant(scenario, {**discrete, "strategy": ANY}), AUTO, ""
    except (StrategyError, SpecError) as error:
        left = None if kept else undecided(scenario, discrete)
        if left is None:
            raise error from None
        here = left
    if asked == AUTO:
        return here, AUTO, ""
    told = scenario.strategy_text if wanted is None else str(wanted)
    devices = f"{here.system.device_count:,} devices"
    return here, AUTO, f"strategy {told} does not divide this workload over {devices}: the fastest that fits is taken"


# ------------------------------------------------------------------------------------------ strategies


def ranked(design: Design) -> tuple[tuple[str, ...], Score]:
    """Strategies with their scores: all that divide a layered model, of a graph of kernels the first `APART`."""
    texts = legal(design.scenario)
    if not design.scenario.workload.layered:
        texts = thinned(texts, APART)
    points = {**design.points(len(texts)), "strategy": list(texts)}
    return texts, evaluate(design.scenario, points, columns=(usual_objective(design.scenario),), fitting=True)


def thinned(texts: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Some of many, at even distances."""
    return texts if len(texts) <= count else tuple(texts[i] for i in np.linspace(0, len(texts) - 1, count).astype(int))


def fastest(design: Design) -> str:
    """The fastest strategy that fits, with memory to spare where any has, as plans are chosen; where none fits, that which lacks least."""
    return _fastest(design.scenario, tuple(sorted(design.quantities.items())))


@functools.lru_cache(maxsize=256)
def _fastest(scenario: Scenario, quantities: tuple[tuple[str, float], ...]) -> str:
    design = Design(settings={}, scenario=scenario, quantities=dict(quantities))
    texts, score = ranked(design)
    if not texts:
        raise CrossflowError(f"no strategy divides this {scenario.workload.model} over {scenario.system.device_count} devices")
    return texts[int(chosen_first(scenario, score)[0])]


def best_first(scenario: Scenario, score: Score) -> Index:
    """Places of points, those that fit first and the fastest of them; the others, and equals, by the memory that they need."""
    return np.lexsort((score.memory_needed, np.where(score.feasible, usual_figure(scenario, score), np.inf)))


def chosen_first(scenario: Scenario, score: Score) -> Index:
    """Places of points as `best_first` has them; of those that fit, the ones that leave memory to spare come first."""
    order, last = best_first(scenario, score), np.where(score.feasible, score.tight(), 2)
    found = order[np.argsort(last[order], kind="stable")]
    if not score.feasible.any():
        return found
    fits = order[: int(score.feasible.sum())]
    first = fits[taken(usual_figure(scenario, score)[fits], score.tight()[fits])]
    return np.array([first, *found[found != first]])


# ------------------------------------------------------------------------------------------ texts


def text_of(scenario: Scenario, path: str, value: Any) -> Any:
    """A number of the system or its library as text with unit that reads back as itself to ten digits; other values as they are."""
    quantity = varied(scenario, path)
    if quantity is None or isinstance(value, str):
        return value
    number = float(value)
    plain = quantity.unit == "1"
    for digits in (DIGITS, 10, 17):
        text = f"{number:.{digits}g}" if plain else show(number, quantity.unit, digits)
        try:
            if abs(parse(files.scalar(text) if plain else text, quantity.unit) - number) <= 1e-10 * abs(number):
                return files.scalar(text) if plain else text
        except ValueError:
            break
    return number if plain else f"{number!r} {quantity.unit}"


def written(design: Design) -> dict[str, Any]:
    """Settings of a design as ``--set`` takes them, the strategy resolved."""
    scenario, found = design.scenario, dict[str, Any]()
    for path, value in design.settings.items():
        found[path] = text_of(scenario, path, design.quantities.get(path, value))
    if "strategy" in found or design.note or (found and design.auto):
        found["strategy"] = scenario.strategy_text
    return found
