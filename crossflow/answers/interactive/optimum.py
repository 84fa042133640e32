"""Searches from Python: a space, objectives and constraints as plain data, the best design as a scenario."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from crossflow.answers.evaluation.figures import usual_objective
from crossflow.answers.interactive.sweeps import Direction, check_directed, sign_of
from crossflow.answers.planning.opening import ScenarioSource, load
from crossflow.answers.prediction import Prediction, predict
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import OwnFigure, larger_is_better, unit_of
from crossflow.answers.search.driver import search
from crossflow.answers.search.goals import Constraint, Objective
from crossflow.answers.search.oracle import Best
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.study.planning import planned
from crossflow.answers.study.searches import Judgement, designed, judgement, loss_rows
from crossflow.answers.study.spaces import read_constraints
from crossflow.answers.study.spec import StudyFile
from crossflow.base.drawing.picture import Picture
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document, validate
from crossflow.base.results import PlainData, Tabular

Searcher = Literal["gradient", "slsqp", "trust-constr", "tpe", "cma-es", "nsga2", "evolution", "random", "exhaustive"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Optimum(PlainData, Tabular):
    """What a search found.

    Attributes
    ----------
    scenario : the best design, as a scenario.
    row : its values by path of the space, and its objectives and other columns.
    front : rows that no other design beats in all objectives; none with one objective.
    evaluations : designs that were evaluated. [1]
    losses : with a portfolio or uncertainty, rows that say how far the best design, and the own best of each member and draw, are from
        these (`loss`, relative).
    spread : by how much ends of the search from other starts differ, None where there is one end. [1]
    rows : columns of all designs that were evaluated, in order.
    objective : column that comes first.
    """

    scenario: Scenario
    row: Mapping[str, Any]
    front: tuple[Mapping[str, Any], ...]
    evaluations: int
    spread: float | None
    objective: str
    rows: Mapping[str, Sequence[Any]] = field(repr=False)
    losses: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def feasible(self) -> bool:
        """Whether the best design keeps all constraints."""
        return bool(self.row["feasible"])

    @property
    def best(self) -> Mapping[str, Any]:
        """The row of the best design, `row`."""
        return self.row

    @functools.cached_property
    def prediction(self) -> Prediction:
        """Prediction of the best design."""
        return predict(self.scenario)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the best design, the front, the effort."""
        told = {"evaluations": self.evaluations, "spread": self.spread, "best": dict(self.row), "front": [dict(row) for row in self.front]}
        losses = {"losses": [dict(row) for row in self.losses]} if self.losses else {}
        return {**told, **losses, "scenario": self.scenario.to_dict()}

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Columns of all designs that were evaluated."""
        return self.rows

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the first objective of every design over the number of its evaluation; into a file as well where a path is given."""
        from crossflow.base.drawing.charts import Along, points_chart

        values = np.asarray(self.rows[self.objective], dtype=float)
        fits = np.asarray(self.rows["feasible"], dtype=bool)
        x, y = Along("designs evaluated", np.arange(1.0, len(values) + 1)), Along(self.objective, values, unit_of(self.objective))
        return points_chart(
            f"{self.objective} of the designs of a search", x, y, bound=list(self.rows["bound_by"]), feasible=fits, joined=False
        ).saved(path)

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html
        from crossflow.base.drawing.charts import written

        rows = [(name, written(value, unit_of(name))) for name, value in self.row.items() if value is not None]
        return html.text(repr(self)) + html.table(["", "best design"], rows)

    def __repr__(self) -> str:
        value = self.row[self.objective]
        reason = "" if self.feasible else f", infeasible: {self.row['reason']}"
        return f"Optimum({self.objective} {value:.4g} after {self.evaluations:,} designs{reason})"


def optimise(
    scenario: ScenarioSource,
    space: Mapping[str, Any],
    objectives: str | Sequence[str] | Mapping[str, Direction] | None = None,
    *,
    constraints: Mapping[str, Any] | None = None,
    figures: Mapping[str, OwnFigure] | None = None,
    portfolio: Mapping[str, Any] | None = None,
    uncertainty: Mapping[str, Any] | None = None,
    searcher: Searcher | None = None,
    evaluations: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Optimum:
    """Search a space of designs for the best one.

    Parameters
    ----------
    scenario : where the search starts from: a scenario, its file or its plain data.
    space : what may change, by path, as in the `space` of a study: lists of values, ``{"from": ..., "to": ...}``, ``"shares"``,
        and ``"legal"`` for strategies.
    objectives : columns to make as good as can be, or each with its direction, which own figures need; what `plan` orders by where absent.
    constraints : bounds by column, such as ``{"power_w": "<= 160 kW"}``; ``{"fits": False}`` ignores memory.
    figures : own columns by name, functions of the columns of a score, which objectives and constraints may name.
    portfolio : workloads that one design is to serve, as the `portfolio` of a study: ``{"members": {"train": {}, "serve": {...}}}``.
    uncertainty : draws of uncertain numbers that designs are judged over, as the `uncertainty` of a study with searches:
        ``{"samples": 50, "measure": "regret"}``.
    searcher : as the searches of a study; where absent exhaustive for lists of values, evolution of several objectives or with
        options beside quantities, gradient for quantities.
    evaluations : designs to evaluate at most.
    seed : of everything that is drawn.
    settings : further settings of the searcher.

    Raises
    ------
    CrossflowError
        For a space, objectives or settings that cannot be searched, with all problems.

    Examples
    --------
    >>> import crossflow
    >>> scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
    >>> best = crossflow.optimise(scenario, {"strategy": ["tp8", "tp4-dp2"], "workload.global_batch": [8, 16]})
    >>> best.evaluations, best.scenario.workload_batch
    (4, 8)
    """
    start, own = load(scenario), dict(figures or {})
    goals = _goals(objectives or usual_objective(start), own)
    bounds = constraints or {}
    beside = {name: dict(given) for name, given in (("portfolio", portfolio), ("uncertainty", uncertainty)) if given is not None}
    found = {"search": _settings(searcher, space, goals, evaluations, seed, settings)}
    document = Document(file="optimise", data={**_study(start, space, goals, bounds, own), "searches": found, **beside})
    return _searched(document, start, goals, bounds, own)


def _study(
    start: Scenario, space: Mapping[str, Any], goals: Sequence[Objective], bounds: Mapping[str, Any], own: Mapping[str, OwnFigure]
) -> dict[str, Any]:
    """Sections of a study, less what is said of own figures."""
    named = [goal.name for goal in goals if goal.name not in own] or ["step_time_s"]
    return {
        "name": start.name,
        "scenario": dict(start.document.data),
        "space": {path: list(given) if isinstance(given, tuple | range | np.ndarray) else given for path, given in space.items()},
        "objectives": {goal.name: "maximise" if goal.maximise else "minimise" for goal in goals if goal.name in named}
        or {"step_time_s": "minimise"},
        "constraints": {name: bound for name, bound in bounds.items() if name not in own},
    }


def _searched(
    document: Document, start: Scenario, goals: Sequence[Objective], constraints: Mapping[str, Any], own: Mapping[str, OwnFigure]
) -> Optimum:
    """The best design of a study with one search, with objectives and bounds that are own figures."""
    run = planned(validate(StudyFile, document), start, [({}, {})], document)[0]
    if own and run.whole is not None:
        raise CrossflowError("optimise: own figures are functions of the columns of one workload; leave out portfolio and uncertainty")
    bounds = tuple(_own_bounds(document, {name: bound for name, bound in constraints.items() if name in own}))
    judged = judgement(run, None, map)
    problem = judged.problem(run) if judged is not None else run.problem
    if own:
        problem = replace(problem, objectives=tuple(goals), constraints=(*problem.constraints, *bounds), own=own)
    blocks: list[Mapping[str, Any]] = []
    known = [] if judged is None else judged.starts
    best = search(problem, run.settings, record=lambda _, columns: blocks.append(columns), known=known)
    return replace(_optimum(problem, best, blocks), losses=() if judged is None else _losses(judged, problem, best))


def _losses(judged: Judgement, problem: SearchProblem, best: Best) -> tuple[Mapping[str, Any], ...]:
    """Rows that say how far the best design, and each own best, are from own bests."""
    found = judged.losses(problem, best)
    return () if found is None else tuple(loss_rows(found))


def _goals(objectives: str | Sequence[str] | Mapping[str, Direction], own: Mapping[str, OwnFigure]) -> list[Objective]:
    """Objectives in order; CrossflowError for an own figure without a direction."""
    check_directed(objectives, own)
    if isinstance(objectives, Mapping):
        return [Objective(name=name, maximise=sign_of(name, way) < 0) for name, way in objectives.items()]
    listed = [objectives] if isinstance(objectives, str) else list(objectives)
    return [Objective(name=name, maximise=larger_is_better(name)) for name in listed]


def _settings(
    searcher: str | None,
    space: Mapping[str, Any],
    goals: Sequence[Objective],
    evaluations: int | None,
    seed: int,
    others: Mapping[str, Any],
) -> dict[str, Any]:
    listed = [not isinstance(given, Mapping | str) or given == "legal" for given in space.values()]
    chosen = searcher or ("exhaustive" if all(listed) else "evolution" if any(listed) or len(goals) > 1 else "gradient")
    return {"searcher": chosen, "seed": seed, **({} if evaluations is None else {"evaluations": evaluations}), **others}


def _own_bounds(document: Document, bounds: Mapping[str, Any]) -> Iterable[Constraint]:
    """Bounds on own figures, which have no unit."""
    spec = validate(StudyFile, document).model_copy(update={"constraints": bounds})
    return read_constraints(spec, document)


def _optimum(problem: SearchProblem, best: Best, blocks: Sequence[Mapping[str, Any]]) -> Optimum:
    if best.row is None or not blocks:
        raise CrossflowError("optimise: no design was evaluated; give a larger number of evaluations")
    rows = {name: [value for block in blocks for value in np.asarray(block[name], dtype=object).tolist()] for name in blocks[0]}
    return Optimum(
        scenario=designed(problem, best.row),
        row=best.row,
        front=best.front,
        evaluations=best.evaluations,
        spread=best.spread,
        objective=problem.objectives[0].name,
        rows=rows,
    )
