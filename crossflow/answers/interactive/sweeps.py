"""Every combination of some values as one batch, and the best of what comes out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.planning.asking import of_question
from crossflow.answers.planning.each import with_plans
from crossflow.answers.planning.keywords import OF_STRATEGY, paths, plain_names, short_paths, varied_degrees
from crossflow.answers.planning.opening import Overrides, ScenarioSource, data_of, left_open
from crossflow.answers.points import Together, by_path, is_together, read_together
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import OwnFigure, Score, larger_is_better, no_column
from crossflow.answers.search.pareto import non_dominated
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.parallel.strategy.reading import AUTO

Direction = Literal["minimise", "maximise"]
Objectives = str | OwnFigure | Sequence[str | OwnFigure] | Mapping[str, Direction]
Results = TypeVar("Results")


def sweep(
    scenario: ScenarioSource | None = None,
    values: Mapping[str, Iterable[Any]] | None = None,
    *,
    settings: Overrides = (),
    figures: Mapping[str, OwnFigure] | None = None,
    errors: Literal["infeasible", "raise"] = "infeasible",
    **named: Iterable[Any],
) -> Score:
    """Score of every combination of values, the last path changing fastest.

    Parameters
    ----------
    scenario : where all points start from: a scenario, its file or its plain data; left out where ``model`` and ``on`` say it. A file
        or data with ``strategy: auto`` has the fastest strategy that fits at every point; a loaded scenario keeps its own.
    values : values by path, as ``--set`` takes them: quantities as text with unit or as SI floats, names, whole numbers, strategies. What
        changes together has a name of its own, and settings by path for each of its values: ``{"hardware": {"H100": {"system.template":
        "dgx-h100", "system.operation.price": "2 USD/hour"}, "B200": {...}}}``.
    named : further values, by the keywords of `crossflow.predict`: ``nodes=[1, 2, 4]``, ``sequence=[4096, 8192]``.
    settings : what all points have in place of what the scenario says, as in `crossflow.predict`.
    figures : own columns by name, each a function of the columns that a score has, as arrays.
    errors : what becomes of a combination that makes no scenario: an infeasible row with the reason, or an exception.

    Returns
    -------
    Score, a row a combination; `to_frame` begins with the swept values, in SI units, `notes` say what a technology leaves as it is.

    Raises
    ------
    CrossflowError
        For paths that do not exist and values that cannot be read.

    Examples
    --------
    >>> import crossflow
    >>> scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
    >>> score = crossflow.sweep(scenario, {"strategy": ["tp8", "tp4-dp2"], "workload.global_batch": [8, 16]})
    >>> len(score), score.points["workload.global_batch"]
    (4, (8, 16, 8, 16))
    >>> crossflow.sweep(scenario, batch=[8, 16]).points
    {'workload.global_batch': (8, 16)}
    >>> crossflow.sweep(model="llama3-8b", on="dgx-h100", batch=64, nodes=[1, 2]).points["strategy"]
    ('dp8-z3', 'dp16-z3')
    """
    values, named = (None, {"on": values, **named}) if isinstance(values, str | list | tuple) else (values, named)  # names of systems
    source, varied = of_question("sweep", scenario, named)
    given = swept_paths(source, values or {}, varied, settings)
    together = {name: _together(name, settings) for name, settings in given.items() if is_together(settings)}
    held = {path: list(together[path]) if path in together else listed(path, each) for path, each in given.items()}
    if not held:
        raise CrossflowError("sweep: no values; give values by path, such as {'workload.global_batch': [8, 16]}")
    columns = map(list, zip(*itertools.product(*held.values()), strict=True))
    named_points = dict(zip(held, columns, strict=True))
    points = by_path(named_points, together)
    start, planned = left_open(source, settings, given="strategy" in points)
    if planned or AUTO in points.get("strategy", ()):
        points = with_plans(start, points)
    found = evaluate(start, points, figures=figures, errors=errors)
    names = {name: named_points[name] for name in together}
    return replace(found, points={**names, **found.points}, notes=_notes(start, points))


def _notes(start: Scenario, points: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """What a study of the same points says of their technology; nothing where they differ in the workload and its strategy alone."""
    if not any(path.startswith(("system.", "techlib.")) for path in points):
        return ()
    from crossflow.answers.study.findings import technology_notes  # with all that studies need

    return tuple(technology_notes(start, points, "a study of these points (`crossflow sweep --write`)"))


def swept_paths(
    source: ScenarioSource, values: Mapping[str, Any], named: Mapping[str, Any] | None = None, settings: Overrides = ()
) -> dict[str, Any]:
    """What is varied by path, keywords among it, with degrees as strategies."""
    by_name, named = plain_names("sweep", values), named or {}
    if twice := [key for key in by_name if key in named]:
        raise TypeError(f"sweep() was given '{twice[0]}' twice, among its values and as a keyword; give one of them")
    given = {**by_name, **named}
    if set(given) & set(OF_STRATEGY):
        start = data_of(source, settings)
        given = varied_degrees("sweep", given, start.get("system"), start.get("strategy"))
    keywords = {key: value for key, value in given.items() if key not in values or key in named}
    by_path, by_keyword = short_paths("sweep", {key: one for key, one in given.items() if key not in keywords}), paths("sweep", keywords)
    if twice := [path for path in by_path if path in by_keyword]:
        raise TypeError(f"sweep() was given {twice[0]} twice, among its values and as a keyword; give one of them")
    return {**by_path, **by_keyword}


def _together(name: str, given: Together) -> Together:
    try:
        return read_together(name, given)
    except CrossflowError as error:
        raise CrossflowError(f"sweep: {name}: {error}") from None


def listed(path: str, given: Iterable[Any]) -> list[Any]:
    """Values of one path; a text or a number alone is one."""
    if isinstance(given, np.ndarray):
        return list(given.tolist())
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else [given]
    if not found:
        raise CrossflowError(f"sweep: {path} has no values")
    return found


def front(results: Results, objectives: Objectives = ("step_time_s", "energy_j"), *, feasible: bool = True) -> Results:
    """The points that no other point beats in all objectives at once: a Pareto front, in the order of the points.

    Parameters
    ----------
    results : a score, or a table of columns such as a DataFrame.
    objectives : columns, made small or, where more is better, large; by name with ``"minimise"`` or ``"maximise"``, which own figures
        need; or functions of the columns, made small.
    feasible : whether points that are infeasible are left out.

    Returns
    -------
    The same as `results`, of these points alone.

    Raises
    ------
    CrossflowError
        For names that are no columns of numbers.

    Examples
    --------
    >>> import crossflow
    >>> scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
    >>> score = crossflow.sweep(scenario, {"strategy": ["tp8", "tp4-dp2", "tp2-dp4"], "workload.global_batch": [16]})
    >>> best = crossflow.front(score, ["step_time_s", "memory_needed_bytes"])
    >>> len(best) <= len(score), bool(best.step_time.min() == score.step_time[score.feasible].min())
    (True, True)
    """
    frame: Any = results
    columns = results.table() if isinstance(results, Score) else frame
    if isinstance(results, Score):
        check_directed(objectives, results.own)
    with np.errstate(all="ignore"):  # infeasible points hold inf and NaN
        losses = np.array([_loss(columns, objective, sign) for objective, sign in _signed(objectives)])
    kept = np.isfinite(losses).all(axis=0)
    if feasible and "feasible" in columns:
        kept &= np.asarray(columns["feasible"], dtype=bool)
    index = np.flatnonzero(kept)
    index = index[non_dominated(losses[:, index])] if index.size else index
    chosen: Any = results.take(index) if isinstance(results, Score) else _rows(frame, index)
    return chosen  # type: ignore[no-any-return]


def _signed(objectives: Objectives) -> list[tuple[str | OwnFigure, float]]:
    """Objectives, each with the sign that makes less the better."""
    if isinstance(objectives, Mapping):
        return [(name, sign_of(name, way)) for name, way in objectives.items()]
    listed: Sequence[Any] = [objectives] if isinstance(objectives, str) or callable(objectives) else list(objectives)
    if not listed:
        raise CrossflowError("front: no objectives; give columns such as ['step_time_s', 'energy_j']")
    return [(one, -1.0 if isinstance(one, str) and larger_is_better(one) else 1.0) for one in listed]


def check_directed(objectives: Objectives, own: Collection[str]) -> None:
    """CrossflowError for an own figure among objectives without a direction: only its author knows whether more of it is better."""
    if isinstance(objectives, Mapping):
        return
    listed: Sequence[Any] = [objectives] if isinstance(objectives, str) or callable(objectives) else list(objectives)
    for name in (one for one in listed if isinstance(one, str) and one in own):
        raise CrossflowError(f'objective \'{name}\' is an own figure; say which way: {{"{name}": "maximise"}}, or "minimise"')


def sign_of(name: str, way: str) -> float:
    """Sign that makes less the better; CrossflowError for a word that is no direction."""
    if way not in ("minimise", "maximise"):
        raise CrossflowError(f"objectives: {name}: expected minimise or maximise, got {way!r}")
    return -1.0 if way == "maximise" else 1.0


def _loss(columns: Mapping[str, Any], objective: str | Callable[..., Any], sign: float) -> Array:
    if callable(objective):
        return np.asarray(objective(columns), dtype=float)
    if objective not in columns:
        raise CrossflowError(no_column(objective, list(columns)))
    try:
        return sign * np.asarray(columns[objective], dtype=float)
    except (TypeError, ValueError):
        raise CrossflowError(f"{objective} holds no numbers; objectives are numeric columns") from None


def _rows(frame: Any, index: Index) -> Any:
    """Some rows of a DataFrame, or of a mapping of columns."""
    if hasattr(frame, "iloc"):
        return frame.iloc[index]
    return {name: [values[i] for i in index] for name, values in frame.items()}
