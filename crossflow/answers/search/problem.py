"""What a search is about: a scenario, a space, objectives and constraints; and how good designs are in their terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.points import Points, groups, place_of, refusal, technology_at
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import OwnFigure, Score, absent
from crossflow.answers.search.goals import ENDLESS, PENALTY, Constraint, DesignOutcome, Objective
from crossflow.answers.search.space import Designs, Space, picked
from crossflow.base.arrays import Array, Mask
from crossflow.hardware.architecture.divisions import ROLES, shares
from crossflow.hardware.architecture.shaping import own_value
from crossflow.hardware.architecture.template import GeneratedSystem

ILLEGAL = 1e6  # violation of a design that makes no scenario
UNBUILT = 1e3  # violation of one that cannot be built


@dataclass(frozen=True, kw_only=True)
class SearchProblem:
    """A search problem."""

    scenario: Scenario  # where it starts from
    space: Space  # what may change
    objectives: tuple[Objective, ...]  # columns of a score to make small, or large
    constraints: tuple[Constraint, ...] = ()  # columns of a score with bounds
    fits: bool = True  # whether a design must hold its model in memory
    columns: tuple[str, ...] = ()  # further columns to record of each design
    own: Mapping[str, OwnFigure] | None = None  # functions of columns, which objectives and constraints may name

    @property
    def figures(self) -> tuple[str, ...]:
        """Columns of a score that each row holds, beside those that every row does."""
        names = (*self._asked, *self.columns)
        return tuple(dict.fromkeys(name for name in names if name not in ("feasible", "bound_by", "trust", "reason")))

    @property
    def recorded(self) -> tuple[str, ...]:
        """Columns of each row, in order."""
        return (*self.figures, "feasible", "violation", "bound_by", "reason")

    def parts(self, designs: Designs) -> Iterator[Designs]:
        """Designs in parts that are worth a task each."""
        yield designs

    def evaluate(self, designs: Designs, beside: Points | None = None) -> DesignOutcome:
        """Objectives, violation and rows of designs; one that makes no scenario is infeasible, not an exception.

        beside : quantities of each design that are not of the space, such as draws of uncertain numbers, by path and of shape (n,).
        """
        n = len(designs)
        table: dict[str, Any] = {name: np.full(n, np.nan) for name in self.figures}
        violation, bound, reasons = np.full(n, ILLEGAL), np.full(n, "-", dtype=object), np.full(n, None, dtype=object)
        for index, chosen in self.space.points(designs):
            points = {**chosen, **picked(beside or {}, index)}
            for members, reason in self._legal(points, index):
                if reason is not None:
                    reasons[index[members]] = reason
                    continue
                score = evaluate(self.scenario, picked(points, members) or None, columns=self.figures, figures=self.own)
                columns = {**{name: np.full(len(score), absent(name)) for name in self.figures}, **score.columns()}
                for name in self.figures:
                    table[name][index[members]] = columns[name]
                violation[index[members]] = self._violation(score, columns)
                bound[index[members]], reasons[index[members]] = columns["bound_by"], self._reasons(columns)
        rows = {**table, "feasible": violation == 0.0, "violation": violation, "bound_by": bound, "reason": reasons}
        objectives = np.array([table[objective.name] for objective in self.objectives]).reshape(-1, n)
        return DesignOutcome(objectives=objectives, violation=violation, rows=rows)

    def known(self, others: Sequence[Mapping[str, Any]] = ()) -> Designs:
        """Designs of the space that are known: the scenario's own, others by their values, and the divisions of its template."""
        own = {path: standing(self.scenario, path) for path in self.space.paths}
        found = [self.space.located({**own, **other}) for other in ({}, *others, *self._tabled())]
        kept = [design for design in found if design is not None]
        if not kept:
            return Designs(continuous=np.empty((0, 0)), discrete=np.empty((0, 0), dtype=np.intp))
        continuous, discrete = ([getattr(design, name) for design in kept] for name in ("continuous", "discrete"))
        return Designs(continuous=np.concatenate(continuous, axis=1), discrete=np.concatenate(discrete, axis=1))

    def _tabled(self) -> list[dict[str, Any]]:
        """Divisions that the template has a table of, by the nodes and memories that the space chooses among."""
        system = self.scenario.system
        chosen = [role for role in ROLES if f"system.technology.{role}" in self.space.paths]
        if not isinstance(system, GeneratedSystem) or not self.space.shares or not chosen:
            return []
        own = {role: getattr(system.technology, role) for role in ROLES if role not in chosen}
        rows = [row for row in system.budgets.divisions[:-1] if all(getattr(row, role) == name for role, name in own.items())]
        return [
            {
                **{f"system.technology.{role}": getattr(row, role) for role in chosen},
                **{f"system.budgets.{path}": float(value[0]) for path, value in shares(row).items()},
                **{f"system.{path}": float(system.free(path).read(value)[0]) for path, value in row.microarchitecture.items()},
            }
            for row in rows
        ]

    def judged(self, score: Score) -> DesignOutcome:
        """Objectives and violation of designs that were evaluated elsewhere, with other settings of the scenario than the space's."""
        columns = {**{name: np.full(len(score), np.nan) for name in self._asked}, **score.columns()}
        objectives = np.array([columns[objective.name] for objective in self.objectives])
        return DesignOutcome(objectives=objectives, violation=self._violation(score, columns), rows={})

    @property
    def _asked(self) -> tuple[str, ...]:
        """Columns of which a design must have a value."""
        return tuple(dict.fromkeys((*(o.name for o in self.objectives), *(c.name for c in self.constraints))))

    def _reasons(self, columns: Mapping[str, Any]) -> Any:
        """Why each design is infeasible: for itself, or because an objective or a constraint has no value there."""
        reasons = np.array(columns["reason"], dtype=object)
        for name in self._asked:
            for i in np.flatnonzero(np.isnan(columns[name])):
                reasons[i] = reasons[i] or f"{name} has no value here"
        return reasons

    def _violation(self, score: Score, columns: Mapping[str, Any]) -> Array:
        missed = sum((constraint.violation(columns[constraint.name]) for constraint in self.constraints), np.zeros(len(score)))
        over = score.memory_needed > score.memory_capacity
        if self.fits:
            missed = missed + np.where(over, score.memory_needed / np.maximum(score.memory_capacity, 1.0) - 1.0, 0.0)
        unbuilt = ~score.buildable | ~np.isfinite(score.step_time)
        for name in self._asked:
            unbuilt = unbuilt | np.isnan(columns[name])
        return np.asarray(np.where(unbuilt, UNBUILT, np.log1p(missed)))

    def _legal(self, points: Mapping[str, Any], index: Any) -> list[tuple[Any, str | None]]:
        """Members by the settings that they share, each with the reason why these make no scenario, None where they do."""
        names = [option.path for option in self.space.options if not self._technology(option.path)]
        options = {path: points[path] for path in names if path in points}
        if not options:
            return [(np.arange(len(index)), None)]
        found: dict[str | None, list[int]] = {}
        for settings, members in groups(options, len(index)):
            found.setdefault(self.illegal(settings), []).extend(members.tolist())
        return [(np.array(sorted(chosen)), reason) for reason, chosen in found.items()]

    def _technology(self, path: str) -> bool:
        """Whether a path chooses a component by name, which makes no other scenario."""
        return technology_at(self.scenario, path)[1] is not None

    def illegal(self, settings: Mapping[str, Any]) -> str | None:
        """Why settings make no scenario, None where they do."""
        found = refusal(self.scenario, settings)
        return None if found is None else found.reason

    @property
    def _signs(self) -> Array:
        """What makes smaller better, shape (objectives, 1)."""
        return np.array([[objective.sign] for objective in self.objectives])

    def losses(self, outcome: DesignOutcome) -> Array:
        """The objectives with the sign that makes smaller better, shape (objectives, n); what has no value is worst."""
        return np.asarray(np.nan_to_num(self._signs * outcome.objectives, nan=np.inf, posinf=np.inf))

    def merit(self, outcome: DesignOutcome, weights: Array | None = None) -> Array:
        """One number a design, for searchers that know no constraints: weighted logarithms of the objectives, and a penalty.

        weights : shape (objectives, n) or (objectives, 1); equal ones where absent.
        """
        share = np.full((len(self.objectives), 1), 1.0 / len(self.objectives)) if weights is None else weights
        return np.asarray(np.minimum((share * self.logarithms(outcome)).sum(axis=0) + PENALTY * outcome.violation, ENDLESS))

    def logarithms(self, outcome: DesignOutcome) -> Array:
        """Logarithms of the objectives, smaller is better, shape (objectives, n)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.clip(np.nan_to_num(self._signs * np.log(outcome.objectives), nan=ENDLESS), -ENDLESS, ENDLESS))

    @property
    def _of_kernels(self) -> bool:
        """Whether pricing kernels is most of the work; of layered models it is little, and their step itself is the closest bound."""
        return not self.scenario.workload.layered

    @property
    def _shared_devices(self) -> bool:
        """Whether kernels may share a device, which less work does not always make faster."""
        return self.scenario.shares_devices or "kernels_per_device" in self.space.paths

    def bound(self, designs: Designs) -> Array | None:
        """Losses that no design with the same options and ranges can go below, shape (objectives, n); None where none is known.

        Every share is given the whole of its budget, and every kernel of a graph takes its lower bound: time and energy cannot be
        less. Infinite where the model cannot fit in memory or has too few parameters, or the options make no scenario.
        """
        bounded = {"step_time_s"} if self.space.shares else {"step_time_s", "energy_j"}
        if self.scenario.requests is not None or self.scenario.post_training is not None:  # of which no bound is known
            return None
        if any(o.name not in bounded or o.maximise for o in self.objectives) or self._shared_devices:
            return None
        whole = np.arange(self.space.dimensions)[:, None] >= len(self.space.ranges)
        generous = Designs(continuous=np.where(whole, 1.0, designs.continuous), discrete=designs.discrete)
        losses = np.full((len(self.objectives), len(designs)), np.inf)
        for index, points in self.space.points(generous):
            for members, reason in self._legal(points, index):
                if reason is None:
                    score = evaluate(self.scenario, picked(points, members) or None, least=self._of_kernels)
                    values = np.array([getattr(score, objective.name.rsplit("_", 1)[0]) for objective in self.objectives])
                    hopeless = self.fits & (score.memory_needed > score.memory_capacity) | self._other_model(score)
                    losses[:, index[members]] = np.where(hopeless, np.inf, values)
        return losses

    def possible(self, designs: Designs) -> Mask:
        """Whether other shares and ranges may mend a design, shape (n,): its options make a scenario, and its model is large enough."""
        found, counted = np.zeros(len(designs), dtype=bool), any(constraint.name == "parameters" for constraint in self.constraints)
        counted &= not any(one.path.startswith("workload") for one in self.space.ranges)
        for index, points in self.space.points(designs):
            for members, reason in self._legal(points, index):
                if reason is None:
                    other = self._other_model(evaluate(self.scenario, picked(points, members) or None)) if counted else False
                    found[index[members]] = ~np.asarray(other)
        return found

    def _other_model(self, score: Score) -> Mask:
        """Whether a model has too few or too many parameters, which no hardware changes, shape (n,)."""
        missed = [one.violation(score.parameters) > 0 for one in self.constraints if one.name == "parameters"]
        return np.asarray(np.any(np.broadcast_arrays(np.zeros(1, dtype=bool), *missed), axis=0))


def standing(scenario: Scenario, path: str) -> Any:
    """What a scenario has at a path: numbers in SI units, names; None where it has nothing there, or no plain value."""
    root, *rest = path.split(".")
    if path == "strategy":
        return scenario.strategy_text
    value: Any = {"system": scenario.system, "techlib": scenario.library, "workload": scenario.workload}.get(root)
    for part in rest:
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    if value is None and root == "system":
        place, below = place_of(path)
        system = scenario.system.places.get(place)
        own = isinstance(system, GeneratedSystem)
        value = own_value(system, scenario.library_of(system), below) if own else None  # type: ignore[arg-type]
    if isinstance(value, np.ndarray) and value.size == 1:
        return float(value[0])
    return value if isinstance(value, str | int | float) else None
