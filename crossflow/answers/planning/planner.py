"""The best strategies of a scenario: every legal one is evaluated in batches, those that fit are put in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.figures import check_objective, usual_objective
from crossflow.answers.evaluation.scoring import NO_BANDWIDTH
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.planning.plans import Plans, RankedPlan, RefusedPlans, figure, ranked, with_ties
from crossflow.answers.points import variant
from crossflow.answers.scenario import AutoStrategy, Scenario, check_one_phase, check_steady, divides
from crossflow.answers.score import CRAMPED, MARGIN, OVERFULLS, Score, larger_is_better, scatter, taken
from crossflow.answers.sections import of_other_makers
from crossflow.answers.steps.machines import machine
from crossflow.answers.steps.members import LegalStrategies
from crossflow.base.arrays import Array, Index, Mask, different
from crossflow.base.errors import CrossflowError, StrategyError
from crossflow.base.units import show
from crossflow.hardware.architecture.connected import unconnected
from crossflow.parallel.strategy.kinds import ANY, GIVEN
from crossflow.parallel.strategy.mesh import RECOMPUTE, Mesh
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import AnyStrategy, as_text, as_texts, legal_strategies, undivided
from crossflow.parallel.tiers import placements

MOST = 75_000  # strategies that are evaluated, some seconds of a processor
FEW = 32  # strategies with equal degrees of which a sample has at least as many
GOLDEN = (5.0**0.5 - 1.0) / 2.0
LARGEST = 64  # times as many devices, at most, that are tried where nothing fits
NEAREST = 3  # plans that are listed where none fits
PLACED = 40  # strategies that are tried with each placement of tensors on a second memory
CRAMPED_TAKEN = f"a tight plan is the one to take: every one that leaves the margin is more than {CRAMPED:g} times as bad"
RANKED = 1e-9  # relative difference within which two values are equal


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Strategies with their scores; `cost` is the objective, negative where more is better, infinite where it has no value."""

    strategies: tuple[AnyStrategy, ...]
    score: Score
    cost: Array

    @property
    def order(self) -> Index:
        """Those that fit, best first; of equal ones those that keep all on main memory, and the one that needs less of it."""
        far, cost = self.score.second.get("second_memory_bytes", np.zeros(1)) > 0, self.cost
        if far.any():  # what hides behind other work adds a rounding, and is no gain
            best = np.abs(cost[np.isfinite(cost)]).min(initial=np.inf)
            cost = np.round(cost / best, 9) if np.isfinite(best) and best > 0 else cost
        found = np.lexsort((self.score.memory_needed, np.broadcast_to(far, cost.shape), cost))
        return found[self.score.feasible[found]]

    @property
    def lacking(self) -> Array:
        """Memory that the device, its host or its second memory lacks, shape (n,). [B]"""
        score = self.score
        lacking = [score.memory_needed - score.memory_capacity, score.host_memory - score.host_capacity]
        return np.asarray(np.maximum.reduce([*lacking, *([score.far_lacking] if score.second else [])]))

    @property
    def nearest(self) -> Index:
        """Those that lack nothing but memory, the least lacking first; all where there are none."""
        found = np.argsort(self.lacking, kind="stable")
        short = self.score.buildable & ~self.score.feasible
        return found[short[found]] if short.any() else found


def plan(scenario: Scenario, *, top: int = 10, objective: str | None = None, margin: float = MARGIN, engines: bool = True) -> Plans:
    """The best strategies of a scenario's workload on its devices, and why the others fail.

    Parameters
    ----------
    scenario : what is divided, on what; its own strategy is set beside the best ones.
    top : how many plans are listed.
    objective : column of a score that orders them, the largest value first where larger is better; the step time where absent, of a
        service the time of a whole request.
    margin : share of a device's memory that should be left. Plans that leave less are marked as tight, and none of them is chosen
        while another fits that is not several times as bad. [1]
    engines : of a job that writes answers, whether the plan of its engines and their share of the devices are chosen too.

    Raises
    ------
    CrossflowError
        For a program, which is divided already, for a workload that no strategy divides, and for an objective that is no numeric
        column of the scenario's score.

    Notes
    -----
    All legal strategies are tried where they are at most 75,000. Of more, an even sample is tried first, then all those that share
    their degrees of parallelism with the best of the sample. Where devices have a second memory, the best of them, and those that lack
    least memory, are tried with each placement of tensors on it.
    """
    if top < 1:
        raise ValueError(f"top: expected at least one plan, got {top}")
    if not 0.0 <= margin < 1.0:
        raise ValueError(f"margin: expected a share of memory from 0 to below 1, got {margin:g}")
    check_one_phase(scenario, "a plan of a step")
    if scenario.post_training is not None:
        from crossflow.answers.planning.jobs import plan_job  # with iterations, which few plans need

        return plan_job(scenario, top, objective or usual_objective(scenario), margin, engines=engines)
    check_steady(scenario)
    return _steps(scenario, top, objective or usual_objective(scenario), margin)


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """All legal strategies tried, and the one to take."""

    survey: Survey
    legal: int
    made: int  # of the legal ones those that the scenario can have
    unmade: tuple[RefusedPlans, ...]
    tight: Mask  # whether those that fit leave less than the margin, in their order
    chosen: int | None  # place of the one to take; None where none fits


def best_strategy(scenario: Scenario, objective: str | None = None) -> tuple[str, AutoStrategy]:
    """The strategy that `plan` takes, the nearest to fitting where none fits, without the figures of any; and how it was found."""
    if scenario.post_training is not None:
        plans = plan(scenario, top=1, objective=objective, engines=False)
        best = plans.plans[0] if plans.chosen is None else plans.chosen
        return best.strategy, AutoStrategy(legal=plans.legal, tried=plans.tried, fitting=plans.fitting)
    check_steady(scenario)
    found = surveyed(scenario, objective or usual_objective(scenario))
    place = int(found.survey.nearest[0]) if found.chosen is None else found.chosen
    how = AutoStrategy(legal=found.legal, tried=len(found.survey.strategies), fitting=len(found.tight))
    return texts_of(scenario, [found.survey.strategies[place]])[0], how


def surveyed(scenario: Scenario, objective: str, margin: float = MARGIN) -> Surveyed:
    """All legal strategies of a step, or of a service in steady state, with the best one; errors as `plan`."""
    legal = legal_of(scenario)
    made, unmade = _makeable(scenario, legal)
    if not made:
        raise StrategyError(f"strategy: none of {len(legal)} can be made: {unmade[0].reason}")
    if objective != usual_objective(scenario):  # which every score has
        check_objective(scenario, evaluate(scenario, {"strategy": texts_of(scenario, made[:1])}).columns(), objective)
    divided = survey(scenario, sampled(scenario, made, objective), objective)
    found = _with_placements(scenario, divided, objective)
    order, placed = found.order, len(found.strategies) - len(divided.strategies)
    if len(order) and not np.isfinite(found.cost[order]).any():
        raise CrossflowError(f"{objective} has no value for any strategy of this scenario; order plans by another column")
    tight = found.score.tight(margin)[order]
    chosen = int(order[taken(found.cost[order], tight)]) if len(order) else None
    return Surveyed(survey=found, legal=len(legal) + placed, made=len(made) + placed, unmade=unmade, tight=tight, chosen=chosen)


def _steps(scenario: Scenario, top: int, objective: str, margin: float) -> Plans:
    """The best strategies of a step, or of a service in steady state."""
    tried = surveyed(scenario, objective, margin)
    found, chosen = tried.survey, tried.chosen
    order = found.order
    shown = _shown(found, top, chosen)
    texts = texts_of(scenario, [found.strategies[i] for i in shown])
    rows = _rows(scenario, texts, found, objective, margin)
    refusals = tuple(sorted([*_refusals(scenario, found), *tried.unmade], key=lambda refusal: -refusal.count))
    return Plans(
        scenario=scenario,
        objective=objective,
        margin=margin,
        plans=rows,
        chosen=None if chosen is None else rows[shown.index(chosen)],
        own=_own(scenario, found, objective, margin),
        legal=tried.legal,
        tried=len(found.strategies),
        fitting=len(order),
        tight=int(tried.tight.sum()),
        refusals=refusals,
        remedies=() if len(order) else _remedies(scenario, texts[0]),
        notes=(
            *_notes(scenario, tried.made, len(found.strategies), refusals),
            *((CRAMPED_TAKEN,) if chosen is not None and found.score.tight(margin)[chosen] and not tried.tight.all() else ()),
        ),
    )


def _shown(found: Survey, top: int, chosen: int | None) -> list[int]:
    """Places of the strategies that are listed, that which is chosen among them."""
    shown = [int(i) for i in (found.order[:top] if len(found.order) else found.nearest[: min(top, NEAREST)])]
    return shown if chosen is None or chosen in shown else [*shown[:-1], chosen]


def legal_of(scenario: Scenario) -> tuple[AnyStrategy, ...]:
    """Every legal strategy; an error where there is none to choose from."""
    if not scenario.workload.divisible:
        raise StrategyError(f"there is nothing to plan: {GIVEN}")
    found = legal_strategies(scenario.workload, scenario.nodes, fused=scenario.fused_attention, kinds=scenario.system.kinds)
    if not found:
        raise StrategyError(undivided(scenario.workload, scenario.devices))
    return found


def texts_of(scenario: Scenario, strategies: Sequence[AnyStrategy]) -> list[str]:
    """Strategies as text that reads back as themselves."""
    return as_texts(strategies, scenario.workload)


def sampled(scenario: Scenario, legal: tuple[AnyStrategy, ...], objective: str) -> tuple[AnyStrategy, ...]:
    """The strategies to try: all of them, or where they are too many a sample, and then those with the degrees of its best."""
    if len(legal) <= MOST:
        return legal
    sample = _sample([_degrees(strategy) for strategy in legal], MOST // 2)
    found = survey(scenario, tuple(legal[i] for i in sample), objective)
    best = np.lexsort((found.lacking, found.cost, ~found.score.feasible))
    ranks: dict[object, int] = {}
    for i in best:
        ranks.setdefault(_degrees(found.strategies[i]), len(ranks))
    known = set(sample)
    rest = sorted((ranks.get(_degrees(strategy), len(ranks)), i) for i, strategy in enumerate(legal) if i not in known)
    chosen = sorted([*sample, *(i for _, i in rest[: max(MOST - len(sample), 0)])])
    return tuple(legal[i] for i in chosen)


def _sample(degrees: Sequence[object], some: int) -> list[int]:
    """About `some` places, of those with equal degrees as large a share of each, and no fewer than a few.

    They are as even as multiples of the golden ratio are: whole steps would miss the same options of every plan.
    """
    alike: dict[object, list[int]] = {}
    for i, one in enumerate(degrees):
        alike.setdefault(one, []).append(i)
    found = list[int]()
    for places in alike.values():
        many = min(max(some * len(places) // len(degrees), FEW), len(places))
        found += {places[int(len(places) * (i * GOLDEN % 1.0))] for i in range(many)}
    return sorted(found)


def _degrees(strategy: AnyStrategy) -> object:
    """What strategies that differ in options alone have in common."""
    return (strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.etp) if isinstance(strategy, Plan) else None


def survey(scenario: Scenario, strategies: tuple[AnyStrategy, ...], objective: str) -> Survey:
    """Legal strategies with their scores; the steps of those that do not fit are not timed."""
    # Plans are read faster as they are; a plan alone would become a scenario of its own, for which it must be text.
    layered = len(strategies) > 1 and not isinstance(strategies[0], Mesh)
    points = LegalStrategies(strategies) if layered else texts_of(scenario, strategies)
    score = evaluate(scenario, {"strategy": points}, fitting=True, columns=(objective,))
    values = np.asarray(figure(score, objective), dtype=float)
    cost = np.where(np.isnan(values), np.inf, -values if larger_is_better(objective) else values)
    return Survey(strategies=strategies, score=score, cost=cost)


def _makeable(scenario: Scenario, legal: Sequence[AnyStrategy]) -> tuple[tuple[AnyStrategy, ...], tuple[RefusedPlans, ...]]:
    """The strategies that the scenario can have; of a graph whose axes are placed by hand, others cannot lie so."""
    if "placement" not in scenario.document.data or not isinstance(scenario.strategy, Mesh):
        return tuple(legal), ()
    found, refused = list[AnyStrategy](), list[tuple[str, str]]()
    for strategy in legal:
        try:
            variant(scenario, {"strategy": str(strategy)})
            found.append(strategy)
        except CrossflowError as error:
            refused.append((error.said, str(strategy)))
    why = (RefusedPlans(reason=refused[0][0], count=len(refused), strategy=refused[0][1]),) if refused else ()
    return tuple(found), why


def _with_placements(scenario: Scenario, found: Survey, objective: str) -> Survey:
    """The strategies, and the best of them once more with each placement of tensors on a second memory."""
    if not scenario.tiered:
        return found
    best = [found.strategies[i] for i in dict.fromkeys([*found.order[:PLACED].tolist(), *found.nearest[:PLACED].tolist()])]
    apart = [replace(one, **changes) for one in best if isinstance(one, Plan) for changes in placements(scenario.job())]
    legal = tuple(one for one in apart if divides(scenario, str(one)))
    if not legal:
        return found
    more, n = survey(scenario, legal, objective), len(found.strategies)
    whole = n + len(legal)
    return Survey(
        strategies=(*found.strategies, *legal), score=scatter([(np.arange(n), found.score), (np.arange(n, whole), more.score)], whole),
        cost=np.concatenate([found.cost, more.cost]),
    )  # fmt: skip


def _rows(scenario: Scenario, strategies: Sequence[str], found: Survey, objective: str, margin: float) -> tuple[RankedPlan, ...]:
    """All figures of some strategies, with their ranks among those that fit."""
    score = evaluate(scenario, {"strategy": list(strategies)})
    values = np.asarray(figure(score, objective), dtype=float)
    cost = np.where(np.isnan(values), np.inf, -values if larger_is_better(objective) else values)
    best = np.sort(found.cost[found.order])
    ranks = [int(np.searchsorted(best, one * (1 - RANKED) if one > 0 else one * (1 + RANKED))) + 1 for one in cost]
    rows = [
        ranked(score, i, text, ranks[i] if score.feasible[i] else None, objective, margin, scenario) for i, text in enumerate(strategies)
    ]
    return with_ties(scenario, rows, objective)


def _own(scenario: Scenario, found: Survey, objective: str, margin: float) -> RankedPlan | None:
    """The scenario's own strategy; None where it leaves the choice to others."""
    if scenario.auto is not None or scenario.document.data.get("strategy") in (None, ANY):
        return None
    return _rows(scenario, [scenario.strategy_text], found, objective, margin)[0]


def _refusals(scenario: Scenario, found: Survey) -> Iterator[RefusedPlans]:
    """Why strategies fail, those with one reason together, each with the one that is nearest to working."""
    score, lacking = found.score, found.lacking
    for code in different(score.reason[~score.feasible & (score.reason >= 0)]):
        points = np.flatnonzero(~score.feasible & (score.reason == code))
        memory = score.reasons[code] in OVERFULLS
        nearest = int(points[lacking[points].argmin()]) if memory else int(points[0])
        text = as_text(found.strategies[nearest], scenario.workload)
        lack = float(lacking[nearest]) if memory else None
        yield RefusedPlans(reason=str(score.why(nearest)), count=len(points), strategy=text, lacking=lack)


def _remedies(scenario: Scenario, nearest: str) -> tuple[str, ...]:
    """What would make the nearest strategy fit: changes of a transformer's plan, and more devices."""
    made = variant(scenario, {"strategy": nearest})
    if made.system.kinds:  # what helps one kind of devices may not help another
        return ()
    if not isinstance(made.strategy, Plan):
        return tuple(_on_more_devices(scenario))
    from crossflow.answers.evaluation.remedies import remedies

    own = remedies(made.job().own, made.strategy, made.workload_batch, machine(made, made.architecture))
    from crossflow.answers.evaluation.fewer_bits import fewer_bits  # only where nothing fits

    alone = [one for one in own if not one.startswith("on ")]
    return (*alone[:1], *fewer_bits(made), *alone[1:], *_on_more_devices(scenario))


def _on_more_devices(scenario: Scenario) -> Iterator[str]:
    """On how many more devices a strategy would fit, devices doubled until one does."""
    counted = scenario.system.devices is None and scenario.system.nodes is not None
    path, count = ("system.nodes", scenario.nodes[1]) if counted else ("system.devices", scenario.devices)
    factor = 2
    while factor <= LARGEST:
        try:
            made = variant(scenario, {path: factor * count, "strategy": ANY})
            legal = legal_of(made)
            lean = _leanest(legal)
            found = survey(made, lean, "step_time_s")
            if len(found.order) and len(lean) < len(legal):
                found = survey(made, legal, "step_time_s")
        except CrossflowError:  # such as more nodes than the network takes
            return
        if len(order := found.order):
            spare = show(-float(found.lacking[order[0]]), "B")
            yield f"on {made.devices:,} devices {found.strategies[order[0]]} fits with {spare} to spare"
            return
        factor *= 2


def _leanest(strategies: tuple[AnyStrategy, ...]) -> tuple[AnyStrategy, ...]:
    """Of plans with equal degrees and sharding those that keep least: they recompute most, in the smallest microbatches.

    Where none of these fits, no other plan does.
    """
    kept: dict[object, tuple[int, int]] = {}
    for one in strategies:
        if not isinstance(one, Plan):
            return strategies
        key = _degrees(one), one.zero
        kept[key] = max(kept.get(key, (-1, -LARGEST)), _lean(one))
    return tuple(one for one in strategies if isinstance(one, Plan) and _lean(one) == kept[_degrees(one), one.zero])


def _lean(plan: Plan) -> tuple[int, int]:
    return RECOMPUTE.index(plan.recompute), -plan.micro_batch


def _notes(scenario: Scenario, made: int, tried: int, refusals: Iterable[RefusedPlans]) -> tuple[str, ...]:
    """Sentences on how far the list can be trusted, and on what does not connect the devices."""
    sampled = f"{tried:,} of {made:,} legal strategies were tried: a sample, and all with the degrees of its best"
    measured = "the profile holds events of some strategies and others are modelled: compare strategies without a profile"
    own = of_other_makers(scenario)
    endless = any(refusal.reason == NO_BANDWIDTH for refusal in refusals)
    apart = unconnected(scenario.system, scenario.devices) if endless else None
    return (
        *slips(scenario),
        *((f"{scenario.system.name}: {apart}",) if apart else ()),
        *((sampled,) if tried < made else ()),
        *((measured,) if scenario.profile is not None else ()),
        *own,
    )
