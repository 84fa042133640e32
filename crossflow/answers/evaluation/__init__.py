"""The one composition: scenario and design points in, score out.

Technology names, budgets and every other quantity of the system vary within one batch, as arrays whose last axis is the
design point; so do dimensions of the workload and, of layered models, strategies and numbers of devices
(`crossflow.answers.steps.members`). Whatever changes the structure of a model or a topology splits the points into groups, each
evaluated in one go.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from crossflow.answers.evaluation.distance import far_off, spoken_over
from crossflow.answers.evaluation.figures import PROMPTS, task_of, with_figures
from crossflow.answers.evaluation.likeness import AROUND, bands
from crossflow.answers.evaluation.scoring import fleets_of, score_of
from crossflow.answers.points import (
    Points,
    Split,
    as_shipped,
    chosen_of,
    groups,
    place_of,
    refusal,
    split,
    technology_at,
    variant,
    varied,
    written,
)
from crossflow.answers.scenario import Scenario, check_steady
from crossflow.answers.score import OwnFigure, Score, refused, scatter
from crossflow.answers.steps import fleets_in_pools, own_batch, step_of
from crossflow.answers.steps.batch import Fleet, PointBatch, Ran
from crossflow.answers.steps.members import Members, own_members, together
from crossflow.base import files
from crossflow.base.arrays import Array, Index, Mask, numbered
from crossflow.base.errors import CrossflowError
from crossflow.base.limits import shown
from crossflow.base.paths import value_at, with_quantities
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.architecture.template import GeneratedSystem, SystemSpec
from crossflow.hardware.technology.library import Choice, TechLibrary

NO_SCENARIO = "evaluate: expected a scenario, got {}; crossflow.load reads one, and crossflow.sweep takes files and mappings too"
CHUNK = 4096  # points a batch: memory stays flat, and the cost of the interpreter is spread over many points


def evaluate(
    scenario: Scenario,
    points: Points | None = None,
    *,
    least: bool = False,
    fitting: bool = False,
    columns: Collection[str] | None = None,
    figures: Mapping[str, OwnFigure] | None = None,
    errors: Literal["infeasible", "raise"] = "infeasible",
) -> Score:
    """Score of every design point.

    Parameters
    ----------
    scenario : where all points start from.
    points : for each path (as in ``--set``) its value at every point, all of one length: quantities as text with unit
        or as SI floats, names, whole numbers, strategies. None for the scenario itself.
    least : take the lower bound of every kernel (its operations at peak, its compulsory traffic) for its time and
        energy: step time and energy are then lower bounds (not with several kernels at once on a device, where less work may end
        later). Those of graphs take a third of the time; of layered models, kernels are a small part of the work.
    fitting : time only transformers that fit in memory, where no quantity varies; the step of one that does not is endless then.
    columns : columns that are asked for, all where absent. Those of a decode step that take the reading of its prompts (`ttft_s` and
        what follows from it) cost more than the step itself, and are left out where nobody asks for one of them.
    figures : own columns by name, each a function of the columns that a score has, as arrays of shape (n,).
    errors : what becomes of a point that makes no scenario, as one whose strategy does not divide its workload: a row that is infeasible,
        with the reason, or an exception.

    Returns
    -------
    Score of n points, with their values in `points`; one that cannot be built or run is infeasible there, not an exception.

    Raises
    ------
    CrossflowError
        When a path does not exist or a value cannot be read.

    Notes
    -----
    Memory is flat in the number of points but for the score itself: points are evaluated in chunks. Requests are replayed at every point.

    Examples
    --------
    >>> import crossflow
    >>> scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
    >>> score = crossflow.evaluate(scenario, {"strategy": ["tp8", "tp3"]}, figures={"edp": lambda c: c["energy_j"] * c["step_time_s"]})
    >>> score.feasible.tolist(), score.why(1)
    ([True, False], 'strategy tp3 needs 3 devices (tp 3 x cp 1 x dp 1 x pp 1), but the system has 8')
    """
    if not isinstance(scenario, Scenario):
        raise CrossflowError(NO_SCENARIO.format(shown(scenario)))
    prompts = bool(figures or columns is None or not PROMPTS.isdisjoint(columns))
    options = _Options(least=least, fitting=fitting, prompts=prompts and not least)
    if points is not None:
        score = _points(scenario, points, options, errors)
    else:
        score = _batch(scenario, {}, {}, own_members(scenario), scenarios=(scenario,), **options._asdict())
    return score.with_figures(figures) if figures else score


class _Options(NamedTuple):
    """What is asked of all points; see `evaluate`."""

    least: bool
    fitting: bool
    prompts: bool


def _points(scenario: Scenario, points: Points, options: _Options, errors: str) -> Score:
    """Score of every point."""
    for path, values in points.items():
        if isinstance(values, str) or not hasattr(values, "__len__") or getattr(values, "ndim", 1) != 1:
            got = f"an array of shape {values.shape}" if hasattr(values, "shape") else shown(values)
            raise CrossflowError(f"{path}: give a list with a value for each point, got {got}")
    lengths = {path: len(values) for path, values in points.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all paths must have as many values: {lengths}")
    n = next(iter(lengths.values()), 0)
    if n == 0:
        raise ValueError("points: at least one path with at least one value is needed; leave points out for the scenario itself")
    points = as_shipped(scenario, points)
    sorted_ = split(scenario, points)
    given = {path: np.array(sorted_.quantities[path]) if path in sorted_.quantities else tuple(points[path]) for path in points}
    try:
        parts = list(_parts(scenario, sorted_, np.arange(n), options))
    except CrossflowError:
        if errors == "raise":
            raise
        parts = _possible(scenario, sorted_, n, options)
    units = {path: quantity.unit for path in points if path in sorted_.quantities and (quantity := varied(scenario, path)) is not None}
    return scatter(parts, n).having(points=given, units=units)


def _parts(scenario: Scenario, points: Split, which: Index, options: _Options) -> Iterator[tuple[Index, Score]]:
    """Scores of some points, in chunks with the numbers of their points."""
    varying = bool(points.quantities or points.choices)
    whole = all(len(values) == len(which) for values in points.discrete.values())
    discrete = points.discrete if whole else {path: [values[i] for i in which] for path, values in points.discrete.items()}
    for here, members, index in together(scenario, discrete, len(which), points.choices):
        for start in range(0, len(index), CHUNK):
            some = np.arange(start, min(start + CHUNK, len(index)))
            chosen = which[index[some]]
            choices = {path: choice.at(chosen) for path, choice in points.choices.items()}
            quantities = {path: values[chosen] for path, values in points.quantities.items()}
            mine = members if len(some) == len(index) else own_members(here, len(some)) if members.own else members.at(some)
            fits = options.fitting and not varying
            apart = scenario.requests is not None or scenario.post_training is not None or scenario.phased
            each = () if not apart else _scenarios(scenario, discrete, index[some], choices, quantities)
            score = _batch(here, choices, quantities, mine, scenarios=each, least=options.least, fitting=fits, prompts=options.prompts)
            yield chosen, score


def _scenarios(
    scenario: Scenario, discrete: Mapping[str, Sequence[Any]], index: Index, choices: Mapping[str, Choice], quantities: Mapping[str, Array]
) -> tuple[Scenario, ...]:
    """The scenario of each of some points by itself: `index` are their places among the discrete settings alone."""

    def settings(i: int, place: int) -> dict[str, Any]:
        return {
            **{path: values[place] for path, values in discrete.items()},
            **{path: choice.names[choice.index[i]] for path, choice in choices.items()},
            **{path: written(scenario, path, float(values[i])) for path, values in quantities.items()},
        }

    return tuple(variant(scenario, settings(i, place)) for i, place in enumerate(index.tolist()))


def _possible(scenario: Scenario, points: Split, n: int, options: _Options) -> list[tuple[Index, Score]]:
    """The same where some points make no scenario; an error where a value cannot be read."""
    reasons: list[str | None] = [None] * n
    for settings, index in groups(points.discrete, n):
        found = refusal(scenario, settings)
        if found is not None and not found.divides:
            variant(scenario, settings)  # which raises what is wrong
        for i in index:
            reasons[i] = None if found is None else found.reason
    wrong = np.array([i for i, reason in enumerate(reasons) if reason is not None], dtype=np.intp)
    left = np.setdiff1d(np.arange(n), wrong)
    parts = list(_parts(scenario, points, left, options)) if len(left) else []
    return [*parts, (wrong, refused([str(reasons[i]) for i in wrong]))] if len(wrong) else parts


def _spoken_over(scenario: Scenario, members: Members) -> Index:
    """Devices of a node, and nodes, over which messages of every point go, shape (n, 2)."""
    if not scenario.workload.serves:  # whose replicas all send each other something
        return np.array(members.nodes)[members.which]
    strategies = {id(one): one for one in members.strategies}
    pairs, which = numbered([*zip(map(id, members.strategies), members.which.tolist(), strict=True)])
    return np.array([spoken_over(scenario, strategies[one], members.nodes[i]) for one, i in pairs])[which]


def _of_another_device(scenario: Scenario, choices: Mapping[str, Choice], quantities: Mapping[str, Array], n: int) -> Mask:
    """Points whose device is not that of the scenario, shape (n,)."""
    found = np.zeros(n, dtype=bool)
    for path, choice in choices.items():
        place, role = technology_at(scenario, path)
        own = getattr(scenario.system.places[place].technology, str(role))
        found |= np.array([name != own for name in choice.names])[choice.index]
    for path, values in quantities.items():
        root, *rest = path.split(".")
        if place_of(path)[1].split(".")[0] not in AROUND:
            own = value_at(scenario.library if root == "techlib" else scenario.system, rest)
            found |= True if own is None else np.asarray(values != own)
    return found


@functools.lru_cache(maxsize=64)
def _kept(scenario: Scenario, least: bool, fitting: bool) -> tuple[Ran, Score]:
    """What comes of running a scenario as it stands, which no point changes, and its score: worked out once."""
    batch = own_batch(scenario, least=least, fitting=fitting)
    ran = step_of(batch).run()
    return ran, score_of(batch, ran)


def run_once(scenario: Scenario) -> Ran:
    """What comes of running a scenario as it stands."""
    return _kept(scenario, False, False)[0]


def _built(
    scenario: Scenario, choices: Mapping[str, Choice], quantities: Mapping[str, Array]
) -> tuple[SystemSpec, Architecture, Mapping[str, Fleet]]:
    """System, device and pools of points that differ in technology and quantities."""
    if not quantities and not choices:
        return scenario.system, scenario.architecture, fleets_in_pools(scenario.system, scenario.pool_architectures)
    paths = {path: tuple(path.split(".")) for path in quantities}
    library = with_quantities(scenario.library, {path[1:]: quantities[name] for name, path in paths.items() if path[0] == "techlib"})
    chosen = chosen_of(scenario, choices)

    def library_of(place: str) -> TechLibrary:
        own = scenario.library_of(scenario.system.places[place])
        return library if own is scenario.library else own

    def with_choices(place: str) -> SystemSpec:
        spec, section = scenario.system.places[place], place.split(".")
        if not isinstance(spec, GeneratedSystem):
            return spec
        from crossflow.hardware.architecture.generator import for_choices

        own = files.held(scenario.document.data, (*section, "components")) or {}
        return for_choices(spec, library_of(place), chosen[place], own)

    system = with_choices("system")
    if system.pools:
        system = system.model_copy(update={"pools": {name: with_choices(f"system.pools.{name}") for name in system.pools}})
    system = with_quantities(system, {path[1:]: quantities[name] for name, path in paths.items() if path[0] != "techlib"})
    built = {place: architecture(spec, library_of(place), chosen[place]) for place, spec in system.places.items()}
    pools = fleets_in_pools(system, {name: built[f"system.pools.{name}"] for name in system.pools})
    return system, built["system"], pools


@np.errstate(over="ignore", invalid="ignore")  # what leaves the floats is a step without end, which a score tells as infeasible
def _batch(
    scenario: Scenario,
    choices: Mapping[str, Choice],
    quantities: Mapping[str, Array],
    members: Members,
    *,
    scenarios: Sequence[Scenario] = (),
    least: bool,
    fitting: bool,
    prompts: bool,
) -> Score:
    """Score of points that share all but technology, quantities and what their members have; with `prompts` those of decode are read.

    scenarios : the scenario of each point by itself, where there are requests to replay, a job, or phases of a run.
    """
    if least:
        check_steady(scenario)  # of a replay no bound is known
    system, device, pools = _built(scenario, choices, quantities)
    batch = PointBatch(scenario=scenario, system=system, device=device, pools=pools, members=members, least=least, fitting=fitting)
    if batch.own and batch.n == 1:
        ran, kept = _kept(scenario, least, fitting)
        score = kept.having(**{name: dict(held) for name, held in vars(kept).items() if isinstance(held, dict)})  # which others may change
    else:
        ran = step_of(batch).run()
        score = score_of(batch, ran)
    if scenario.requests is not None:
        from crossflow.answers.evaluation.replays import replayed_score

        score = replayed_score(score, scenarios)
    reading = None
    if prompts and task_of(scenario) == "decode" and not members.job.pooled:
        first = variant(scenario, {"workload.task": "prefill"})
        prompted = own_members(first, batch.n) if members.own else members.reading
        reading = _batch(first, choices, quantities, prompted, least=least, fitting=fitting, prompts=False)
    changed = _of_another_device(scenario, choices, quantities, batch.n)
    far = far_off(scenario, quantities, _spoken_over(scenario, members))
    band, levels = bands(scenario, score.devices, members, changed, far)
    score = with_figures(scenario, fleets_of(batch, ran), score.having(error_band=band, trust=levels), reading, members)
    if scenario.post_training is not None:
        from crossflow.answers.evaluation.post_training import job_score

        score = job_score(score, scenarios, strict=scenarios[0] is scenario)
    if scenario.phased:
        from crossflow.answers.evaluation.phases import phased_score

        score = phased_score(score, scenarios, strict=scenarios[0] is scenario, least=least)
    return score
