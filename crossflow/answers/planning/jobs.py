"""The best plans of a post-training job: how training and engines are divided, and how many devices each has.

Strategies of training are surveyed as those of a step; on the front of step time and memory the fastest are tried in an iteration. Engines
are tried with the fastest of them, then the best engines with all of these. Where engines have devices of their own, all of this is done
for several shares of the devices that both have together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.figures import check_objective
from crossflow.answers.evaluation.post_training import step_of
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.explanation.answers import bound_of
from crossflow.answers.explanation.dividing import count_path, engine_text
from crossflow.answers.planning.planner import Survey, legal_of, sampled, survey, texts_of
from crossflow.answers.planning.plans import JobPlan, Plans, RankedPlan, RefusedPlans, figure, ranked
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario, strategy_of
from crossflow.answers.score import Score, larger_is_better, taken
from crossflow.base.errors import CrossflowError, StrategyError
from crossflow.parallel.strategy.kinds import ANY
from crossflow.parallel.strategy.plan import Plan

FRONT, ALONE = 5, 24  # strategies of training that are tried in an iteration: beside engines, and where nothing is written
BEST = 2  # engines with which all of them are tried
SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)  # of the devices of both, that training has
DEEPEST = 4  # pipeline stages of an engine that are tried
NEAREST = 3  # plans that are listed where none runs
SURVEYED = (
    "{count:,} strategies of training were surveyed by their steps; iterations were tried of the fastest, and of those with less memory"
)
ENGINES, DEVICES = "job.rollout.strategy", "job.rollout.devices"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tried:
    """Plans of a job that were tried on one division of its devices."""

    settings: Mapping[str, Any]  # that make the division
    points: Sequence[tuple[str, str | None]]  # strategies of training, plans of an engine
    score: Score
    cost: np.ndarray[Any, Any]  # the objective, negative where more is better, infinite where there is none

    def row(self, scenario: Scenario, i: int, rank: int | None, objective: str, margin: float) -> RankedPlan:
        """One of them with all of its figures."""
        strategy, engine = self.points[i]
        settings = {**self.settings, **({} if engine is None else {ENGINES: engine})}
        made = variant(scenario, {**settings, "strategy": strategy})
        job, score, capacity = self.score.job, self.score, float(self.score.memory_capacity[i])
        time, energy = (float(job.get(name, np.full(len(score), np.nan))[i]) for name in ("iteration_time_s", "energy_j"))
        spent = {name: job[name] for name in ("cost_usd", "usd_per_million_tokens") if name in job}
        left = 1.0 - float(job.get("memory_bytes", score.memory_needed)[i]) / capacity
        found = ranked(score, i, strategy, rank, objective, margin, variant(scenario, {**settings, "strategy": ANY}))
        apart = made.post_training.rollout.devices if made.post_training and made.post_training.rollout else None
        part = JobPlan(
            iteration=time, devices=(made.devices, apart or 0), engines=engine,
            settings=tuple(f"{path}={value}" for path, value in {**settings, "strategy": strategy}.items()),
        )  # fmt: skip
        rate = {f"{name}_per_s": float(job[f"{name}_per_second"][i]) for name in ("samples", "tokens") if f"{name}_per_second" in job}
        return replace(
            found, part=part, throughput=rate, energy=energy, power=energy / time, left=left, tight=found.feasible and left < margin,
            money={name: float(values[i]) for name, values in spent.items() if np.isfinite(values[i])}, bound_by=bound_of(score, i),
        )  # fmt: skip


def plan_job(scenario: Scenario, top: int, objective: str, margin: float, *, engines: bool) -> Plans:
    """The best plans of the iteration of a job; see `planner.plan`.

    engines : whether plans of engines and their share of the devices are chosen, or kept as the scenario has them.
    """
    job = scenario.post_training
    assert job is not None  # the caller has looked
    writes = job.rollout is not None
    tried, surveyed, legal, problems = list[_Tried](), list[Survey](), 0, dict[str, tuple[int, str]]()
    for settings in _divisions(scenario) if engines and writes else [{}]:
        try:
            here = variant(scenario, {**settings, "strategy": ANY})
            step = step_of(here)
            found = survey(step, sampled(step, every := legal_of(step), "step_time_s"), "step_time_s")
        except CrossflowError as error:
            _count(problems, error.said, 1, str(settings))
            continue
        legal += len(every)
        surveyed.append(found)
        options = [None] if not writes else list(_engines(here)) if engines else [job.rollout.strategy] if job.rollout is not None else []
        tried += _iterations(here, settings, texts_of(step, _front(found, FRONT if writes else ALONE)), options, objective)
    if not tried:
        first = next(iter(problems), "no strategy of training fits")
        raise StrategyError(f"job: no plan can be made: {first}")
    return _listed(scenario, tried, surveyed, legal, problems, top, objective, margin)


def _divisions(scenario: Scenario) -> list[dict[str, Any]]:
    """How devices are shared between training and engines: as the scenario has them first; one way where they take turns."""
    job = scenario.post_training
    assert job is not None
    own = None if job.rollout is None else job.rollout.devices
    if own is None:
        return [{}]
    whole, (node, _), path = scenario.devices + own, scenario.nodes, count_path(scenario)
    grain = node if path == "system.nodes" or whole >= 2 * node else 1
    counts = dict.fromkeys([scenario.devices, *(grain * round(share * whole / grain) for share in SHARES)])
    return [{path: count // node if path == "system.nodes" else count, DEVICES: whole - count} for count in counts if 0 < count < whole]


def _engines(scenario: Scenario) -> Iterator[str]:
    """Plans of one engine: its own first, then powers of two of tensor parallelism in a node, and stages over nodes."""
    job = scenario.post_training
    assert job is not None
    assert job.rollout is not None
    given = strategy_of(scenario, job.rollout.strategy)
    assert isinstance(given, Plan)  # the scenario was checked
    devices, node = job.rollout.devices or scenario.devices, scenario.nodes[0]
    tensor = [2**power for power in range(node.bit_length()) if 2**power <= node]
    plans = [given.but(tp=tp, pp=1) for tp in tensor] + [given.but(tp=tensor[-1], pp=pp) for pp in range(2, DEEPEST + 1, 2)]
    yield from dict.fromkeys(engine_text(plan) for plan in (given, *plans) if devices % plan.devices == 0)


def _front(found: Survey, most: int) -> list[Any]:
    """The fastest strategies, each of which needs less memory than all faster ones, and the fastest beside them."""
    front, least = list[int](), np.inf
    for i in found.order.tolist():
        if found.score.memory_needed[i] < least:
            front.append(i)
            least = found.score.memory_needed[i]
    chosen = list(dict.fromkeys([*front[:most], *found.order[:most].tolist()]))[:most]
    return [found.strategies[i] for i in chosen]


def _iterations(
    here: Scenario, settings: Mapping[str, Any], strategies: Sequence[str], engines: Sequence[str | None], objective: str
) -> Iterator[_Tried]:
    """Iterations of strategies of training and of engines on one division of the devices."""
    if not strategies or not engines:
        return
    first = _evaluated(here, settings, [(strategies[0], engine) for engine in engines], objective)
    yield first
    best = [engines[i] for i in np.argsort(first.cost, kind="stable")[:BEST]]
    others = [(strategy, engine) for strategy in strategies[1:] for engine in best]
    if others:
        yield _evaluated(here, settings, others, objective)


def _evaluated(here: Scenario, settings: Mapping[str, Any], points: Sequence[tuple[str, str | None]], objective: str) -> _Tried:
    given: dict[str, list[Any]] = {"strategy": [strategy for strategy, _ in points]}
    if points[0][1] is not None:
        given[ENGINES] = [engine for _, engine in points]
    score = evaluate(here, given)
    if score.feasible.any():
        check_objective(here, score.columns(), objective)
    known = objective in score.columns()
    values = np.asarray(figure(score, objective), dtype=float) if known else np.full(len(score), np.nan)
    cost = np.where(score.feasible & np.isfinite(values), -values if larger_is_better(objective) else values, np.inf)
    return _Tried(settings=settings, points=points, score=score, cost=cost)


def _count(problems: dict[str, tuple[int, str]], reason: str, count: int, nearest: str) -> None:
    """One more of those that fail for a reason."""
    before, first = problems.get(reason, (0, nearest))
    problems[reason] = before + count, first


def _listed(
    scenario: Scenario, tried: Sequence[_Tried], surveyed: Sequence[Survey], legal: int, problems: dict[str, tuple[int, str]], top: int,
    objective: str, margin: float,
) -> Plans:  # fmt: skip
    """Plans in order, and why others fail."""
    places = [(one, i) for one in tried for i in range(len(one.points))]
    runs = sorted((place for place in places if np.isfinite(place[0].cost[place[1]])), key=lambda place: place[0].cost[place[1]])
    for one, i in places:
        if not one.score.feasible[i]:
            _count(problems, str(one.score.why(i)), 1, _named(one.points[i]))
    shown = runs[:top] if runs else places[:NEAREST]
    rows = tuple(one.row(scenario, i, k + 1 if runs else None, objective, margin) for k, (one, i) in enumerate(shown))
    costs, tight = np.array([one.cost[i] for one, i in shown]), np.array([row.tight for row in rows])
    chosen = rows[taken(costs, tight)] if runs else None
    return Plans(
        scenario=scenario, objective=objective, margin=margin, plans=rows, chosen=chosen,
        own=_own(scenario, objective, margin), legal=legal, tried=len(places), fitting=len(runs),
        tight=sum(float(one.score.job["memory_bytes"][i]) > (1 - margin) * float(one.score.memory_capacity[i]) for one, i in runs),
        refusals=tuple(
            RefusedPlans(reason=reason, count=count, strategy=first)
            for reason, (count, first) in sorted(problems.items(), key=lambda pair: -pair[1][0])
        ),
        remedies=(),
        notes=(*slips(scenario), SURVEYED.format(count=sum(len(one.strategies) for one in surveyed)),),
    )  # fmt: skip


def _named(point: tuple[str, str | None]) -> str:
    return point[0] if point[1] is None else f"{point[0]}, engines {point[1]}"


def _own(scenario: Scenario, objective: str, margin: float) -> RankedPlan | None:
    """The scenario's own plan; None where it leaves the choice to others."""
    job = scenario.post_training
    if scenario.auto is not None or scenario.document.data.get("strategy") in (None, ANY) or job is None:
        return None
    engine = None if job.rollout is None else job.rollout.strategy
    return _evaluated(scenario, {}, [(scenario.strategy_text, engine)], objective).row(scenario, 0, None, objective, margin)
