"""What limits a scenario: elasticities of an objective to every number behind it, what-ifs, and where the next bottleneck begins.

Everything is re-evaluation: a difference, a what-if and a scan are design points of `evaluate`, taken in three batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.congestion import congested_step
from crossflow.answers.evaluation.figures import check_objective, usual_objective
from crossflow.answers.evaluation.lasting import reliability_gains
from crossflow.answers.evaluation.likeness import trust
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.explanation.alternatives import REFINED, SEARCHED, alternatives
from crossflow.answers.explanation.answers import (
    FINE_STEP,
    STEP,
    Alternative,
    Decision,
    Effect,
    Explanation,
    OtherStrategy,
    Sides,
    WhatIf,
    paces,
)  # fmt: skip
from crossflow.answers.explanation.decisions import TIMED, better_moves, better_strategies, in_order, of_the_chip
from crossflow.answers.explanation.designs import Design
from crossflow.answers.explanation.farther import (
    changed_most,
    distinct,
    next_bottleneck,
    pairs,
    range_moves,
    range_of,
    scan_moves,
    swing,
)
from crossflow.answers.explanation.parameters import GROUPS, Parameter, ParameterGroup, parameters
from crossflow.answers.explanation.trials import (
    BASE,
    FACTORS,
    NOTHING,
    SMALLEST,
    Move,
    TrialOutcome,
    Trials,
    allowed,
    factor_moves,
    tried_strategies,
)  # fmt: skip
from crossflow.answers.explanation.uncertainty import larger_is_better as better_larger
from crossflow.answers.scenario import Scenario, check_one_phase, check_steady
from crossflow.answers.score import Score
from crossflow.answers.search.shares import SHARES as BUDGETS_OF
from crossflow.answers.uses import Use, uses
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.cost.roofline import WIDE
from crossflow.hardware.architecture.datasheet import sizing_types
from crossflow.hardware.architecture.template import GeneratedSystem
from crossflow.workload.spec import GemmSpec, LstmSpec

AGREEMENT = 0.01  # differences that agree within it come from a smooth function
SLIGHT = 0.005  # gain of 10 % below which it is told what hides a resource
RESOURCES = (
    *(f"system.network.{level}.{name}" for level in ("intra", "inter") for name in ("bandwidth", "latency", "oversubscription")),
    *(f"system.levels.{name}" for name in ("l2.bandwidth", "memory.bandwidth", "memory.capacity")),
)
LOST = 0.02  # part of a memory's capacity whose loss is that of a whole device: up to forty of them stand beside a chip
SURPRISING = 1e-3  # by how much a step must be longer to surprise
TOP = 10  # parameters that are improved further, and paired
SCANNED = 6  # parameters that are scanned for the next bottleneck
ALIKE = "Parameters with the same effect are shown once."
SHARES = (
    "A share of a budget is raised without taking from the others: where the shares then add up to more than 1 the design "
    "cannot be built, and its time is what that share would bring by itself."
)
OVERDRIVE = ("nominal_voltage", "threshold_voltage")  # a lower one is no better by itself: it moves where clock and power are known
RATED = ("nominal_voltage", "maximum_voltage")
ONE_RATE = "Nominal and largest voltage are equal where a standard fixes the rate of a link or memory; there neither counts as a gain."

PROFILED = (
    "What the profile does not hold of another strategy is modelled, where this one is measured: compare strategies without a profile."
)


def explain(scenario: Scenario, objective: str | None = None, *, tried: bool = True) -> Explanation:
    """Explain what limits a scenario.

    Parameters
    ----------
    scenario : the scenario.
    objective : numeric column of a score to explain; see `crossflow.answers.score.larger_is_better` for what counts as improving it. The
        step time where absent, of a service the time of a whole request.
    tried : whether decisions beside those about a generated chip are tried; a page asks for them by themselves.

    Raises
    ------
    CrossflowError
        When there is no such column, or the scenario has no positive, finite value of it.

    Notes
    -----
    Elasticities are central differences of the logarithms at +-1 % of each parameter (+-1 for whole numbers); on one side,
    through both steps to second order, where the range of the quantity forbids the other. The iteration of a job is explained by its phases
    (`crossflow.answers.explanation.jobs`).
    """
    start, objective = _start(scenario, objective)
    if scenario.post_training is not None:
        from crossflow.answers.explanation.jobs import explain_job  # with iterations, which few explanations need

        return explain_job(scenario, start, objective, tried=tried)
    return _of_a_step(scenario, start, objective, tried=tried)


def _of_a_step(scenario: Scenario, start: Score, objective: str, *, tried: bool) -> Explanation:
    """Explain what limits a step, or a service in steady state, whose score is known."""
    numbers = parameters(scenario)
    trials = Trials(scenario=scenario, objective=objective, values={number.path: number.value for number in numbers})
    movable = [number for number in numbers if number.value != 0.0]
    local = trials.run({BASE: {}, **_local_moves(movable), **range_moves(numbers)})
    base = local[BASE]
    levers = [number for number in movable if not _moves_with_others(number, trials.values, scenario)]
    first = {number: best for number in levers if (best := trials.best(number, SMALLEST, local, base)) is not None}
    groups = {number: number.group(generated=isinstance(scenario.system, GeneratedSystem)) for number in movable}
    leading = _leading(first, groups)
    top, scanned = _chosen(leading, changeable := [pair for pair in leading if groups[pair[0]] != "constant"])
    farther = trials.run({**factor_moves([n for n, _ in top]), **scan_moves(scanned)})
    singles = [w for n, own in top for w in (own, *(trials.best(n, factor, farther, base) for factor in FACTORS[1:])) if w is not None]
    told = {n: _surprise(n, local, base, objective) for n in levers if not n.path.endswith(OVERDRIVE)}
    effects = [_effect(n, local, base, first.get(n), told.get(n), groups[n]) for n in movable]
    strategies, chip = tried_strategies(trials, base), alternatives(scenario, objective, base.value)
    return Explanation(
        scenario=scenario,
        objective=objective,
        value=base.value,
        feasible=base.reason is None,
        reason=base.reason,
        bound=dict(sorted(((name, float(share[0])) for name, share in start.bound.items() if share[0] > 0), key=lambda pair: -pair[1])),
        effects=_with_alike(sorted(effects, key=_order)),
        fixed=tuple(number.path for number in numbers if number.value == 0.0),
        limiting=next((what_if for _, what_if in leading if not what_if.obstructed), None),
        lever=_lever(changeable, groups, scenario),
        what_ifs=tuple(singles),
        pairs=pairs(singles, trials, base),
        next_bottlenecks=tuple(next_bottleneck(n, w, farther, base, trials) for n, w in scanned),
        swings=tuple(swing(number, local) for number in numbers if range_of(number) is not None),
        alternatives=chip,
        strategies=strategies,
        reliability=reliability_gains(scenario, start),
        decisions=_decisions(trials, start, strategies if tried else None, chip),
        **dict(zip(("step_time", "throughput"), paces(start)[0], strict=True)),
        counts="tokens" if start.tokens_per_second.any() else "samples",
        uses=_uses(scenario, start, effects),
        trust=trust(scenario),
        notes=_notes(scenario, base, rated=any(_of_one_rate(number, trials.values) for number in movable)),
    )


def _leading(first: Mapping[Parameter, WhatIf], groups: Mapping[Parameter, ParameterGroup]) -> list[tuple[Parameter, WhatIf]]:
    """Parameters that gain, the largest gain first; of equal ones those that the reader decides."""
    gaining = ((n, w) for n, w in first.items() if w.gain > NOTHING)
    return sorted(gaining, key=lambda pair: (-round(pair[1].gain, 9), GROUPS.index(groups[pair[0]])))


def _lever(changeable: Sequence[tuple[Parameter, WhatIf]], groups: Mapping[Parameter, ParameterGroup], scenario: Scenario) -> WhatIf | None:
    """The largest gain of what can be built: of a generated device that of a decision, where any gains, else of all but constants."""
    built = [(number, what_if) for number, what_if in changeable if not what_if.obstructed]
    decided = [pair for pair in built if groups[pair[0]] == "decision" and isinstance(scenario.system, GeneratedSystem)]
    return next((what_if for _, what_if in decided or built), None)


def _chosen(
    leading: Sequence[tuple[Parameter, WhatIf]], changeable: Sequence[tuple[Parameter, WhatIf]]
) -> tuple[list[tuple[Parameter, WhatIf]], list[tuple[Parameter, WhatIf]]]:
    """Parameters that are improved further, and those of them that are scanned for the next bottleneck."""
    top = list(dict.fromkeys([*distinct(leading)[:TOP], *distinct(changeable)[:SCANNED]]))
    return top, list(dict.fromkeys([*top[:SCANNED], *(pair for pair in top if pair in changeable)]))[: 2 * SCANNED]


def _decisions(
    trials: Trials, start: Score, strategies: Sequence[OtherStrategy] | None, chip: Sequence[Alternative]
) -> tuple[Decision, ...]:
    """What the reader can decide at once, kind by kind; about a generated chip alone where no strategies are given."""
    scenario, objective = trials.scenario, trials.objective
    found = of_the_chip(scenario, start, chip)
    if strategies is not None:
        design = Design(settings={}, scenario=scenario, quantities={})
        found = (*better_strategies(start, strategies), *better_moves(scenario, design, start, objective), *found)
    return in_order(found)


def _uses(scenario: Scenario, start: Score, effects: Sequence[Effect]) -> dict[str, Use]:
    """What waits for links and memories whose numbers gain little, and what hides it."""
    gains = {effect.parameter.path: effect.gain or 0.0 for effect in effects}
    return uses(scenario, start, [path for path in RESOURCES if gains.get(path, 0.0) < SLIGHT])


def _moves_with_others(number: Parameter, values: Mapping[str, float], scenario: Scenario) -> bool:
    """Whether a number says little by itself, so that it is no lever and no surprise."""
    return _of_one_rate(number, values) or _of_another_node(number, scenario) or _of_idle_units(number, scenario)


def _of_idle_units(number: Parameter, scenario: Scenario) -> bool:
    """Whether this is the rate of a 16-bit type that the workload does not compute in: alone it only lets the matrix units draw more."""
    system, (path, _, dtype) = scenario.system, number.path.rpartition(".")
    if path != "system.throughput" or isinstance(system, GeneratedSystem) or dtype not in sizing_types(system):
        return False
    own, whole = scenario.workload.dtype, isinstance(scenario.workload, GemmSpec | LstmSpec)  # in which all is narrow, or nothing
    beside = () if own in WIDE or whole else tuple(wide for wide in WIDE if wide in system.throughput)[:1]
    return dtype not in (own, *beside)


def _of_one_rate(number: Parameter, values: Mapping[str, float]) -> bool:
    """Whether this is a voltage of a link or memory whose standard fixes its rate: nominal and largest voltage are one number."""
    entry, _, name = number.path.rpartition(".")
    ends = [values.get(f"{entry}.{one}") for one in RATED]
    return name in RATED and entry.startswith(("techlib.link.", "techlib.memory.")) and ends[0] == ends[1]


def _of_another_node(number: Parameter, scenario: Scenario) -> bool:
    """Whether this is a factor of the node at which a component is given, over which the design's own node is taken."""
    return number.path.startswith("techlib.logic.") and not number.path.startswith(f"techlib.logic.{scenario.system.technology.logic}.")


def other_strategies(scenario: Scenario, objective: str | None = None) -> tuple[OtherStrategy, ...]:
    """What other strategies on the same devices bring, those that fit first: that part of `explain` alone, which takes a moment."""
    start, objective = _start(scenario, objective)
    trials = Trials(scenario=scenario, objective=objective, values={})
    return tried_strategies(trials, trials.outcomes(start)[0])


def _start(scenario: Scenario, objective: str | None) -> tuple[Score, str]:
    """Score of a scenario, and what is explained of it; CrossflowError unless it has a positive, finite value of that."""
    check_one_phase(scenario, "this explanation")
    if scenario.post_training is None:
        check_steady(scenario)
    start, objective = evaluate(scenario), objective or usual_objective(scenario)
    columns = start.columns()
    check_objective(scenario, columns, objective)
    if scenario.post_training is not None and not start.feasible[0]:
        raise CrossflowError(f"the job does not run, so that nothing can be explained: {start.why(0)}")
    if not math.isfinite(float(start.step_time[0])):
        raise CrossflowError(f"the step never ends, so that nothing can be explained: {start.why(0)}")
    value = float(columns[objective][0])
    if not (math.isfinite(value) and value > 0.0):
        raise CrossflowError(f"the {objective} of the scenario is {value:g}; only a positive, finite objective can be explained")
    return start, objective


def _notes(scenario: Scenario, base: TrialOutcome, *, rated: bool) -> tuple[str, ...]:
    anew = f"Decisions are searched with {REFINED} designs each, and {SEARCHED} for the scenario's own division; a study finds more."
    notes = [*(f"{slip}." for slip in slips(scenario)), ALIKE, *([SHARES, anew] if isinstance(scenario.system, GeneratedSystem) else [])]
    notes += [ONE_RATE] if rated else []
    if scenario.profile is not None:
        notes.append(PROFILED)
    if base.reason is not None:
        notes.append(f"The scenario itself is infeasible and explained as if it were not: {base.reason}.")
    shared = congested_step(scenario)
    return (*notes, *([] if shared is None else (f"{note[0].upper()}{note[1:]}." for note in shared.notes)))


# ------------------------------------------------------------------------------------------ moves


def _stepped(number: Parameter, step: float, side: int) -> float | None:
    """Neighbouring value at a relative step, one or two away for a whole number; None where the range forbids it."""
    by = (1.0 if step == STEP else 2.0) if number.quantity.whole else number.value * step
    value = number.value + side * by
    return value if allowed(number.quantity, value) else None


def _local_moves(numbers: Sequence[Parameter]) -> dict[Hashable, Move]:
    """Both steps to both sides of every parameter, and the smallest factor."""
    moves: dict[Hashable, Move] = {}
    for number, step, side in itertools.product(numbers, (STEP, FINE_STEP), (-1, 1)):
        value = _stepped(number, step, side)
        if value is not None:
            moves[number.path, step, side] = {number.path: value}
    return {**moves, **factor_moves(numbers, (SMALLEST,))}


# ------------------------------------------------------------------------------------------ answers


def _order(effect: Effect) -> tuple[int, float, float]:
    """What the reader decides first and constants last, then by gain, then by elasticity."""
    gain = effect.gain if effect.gain is not None else -math.inf
    return GROUPS.index(effect.group), -round(max(gain, 0.0), 9), -round(abs(effect.elasticity or 0.0), 9)


def _with_alike(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Effects in their order, each with the paths of later ones that do the same: equal gains, and elasticities of equal size."""
    firsts: dict[tuple[float, float], str] = {}
    others: dict[str, list[str]] = {}
    for effect in effects:
        done = round(effect.gain or 0.0, 7), round(abs(effect.elasticity or 0.0), 5)
        first = firsts.setdefault(done, effect.parameter.path)
        if first != effect.parameter.path and done[0] > 0.0:
            others.setdefault(first, []).append(effect.parameter.path)
    return tuple(replace(effect, alike=tuple(others.get(effect.parameter.path, ()))) for effect in effects)


def _surprise(number: Parameter, outcomes: Mapping[Hashable, TrialOutcome], base: TrialOutcome, objective: str) -> str | None:
    """Why the step is longer by what should shorten it: the resource whose part grows most."""
    shares = any(f"system.{number.inside}".startswith(f"{path}.") for path in BUDGETS_OF)
    unclear = number.quantity.unit == "1" and not better_larger(number) and ".sram_" not in number.path
    if objective not in TIMED or shares or unclear or number.kind == "system":
        return None
    way = SMALLEST if number.kind == "budget" or better_larger(number) else 1.0 / SMALLEST
    outcome = outcomes.get((number.path, way))
    if outcome is None or not outcome.times or sum(outcome.times.values()) < (1.0 + SURPRISING) * sum(base.times.values()):
        return None
    after, before = sum(outcome.times.values()), sum(base.times.values())
    if not math.isfinite(after):
        return f"{_sign(way)}: cannot be built" if outcome.reason is None else f"{_sign(way)}: {outcome.reason}"
    most = max(outcome.times, key=lambda name: outcome.times[name] - base.times.get(name, 0.0))
    parts = f"{most} takes {show(outcome.times[most], 's')} of the step, {show(base.times.get(most, 0.0), 's')} before"
    return f"{_sign(way)} makes the step {100 * (after / before - 1):.2g} % longer: {parts}{_lost(outcome, base)}"


def _lost(outcome: TrialOutcome, base: TrialOutcome) -> str:
    """What memories hold where they lose whole devices, which do not fit in part; "" where they lose none."""
    pairs = zip(("main memory", "the second memory"), outcome.held, base.held, strict=True)
    told = [f"{name} loses a device and has {show(now, 'B')} of {show(then, 'B')}" for name, now, then in pairs if now < (1 - LOST) * then]
    return "".join(f"; {one}" for one in told)


def _sign(way: float) -> str:
    return f"x{way:g}" if way > 1.0 else f"/{1.0 / way:g}"


def _effect(
    number: Parameter, outcomes: Mapping[Hashable, TrialOutcome], base: TrialOutcome, best: WhatIf | None, surprise: str | None,
    group: ParameterGroup,
) -> Effect:  # fmt: skip
    wide, fine = (_differences(number, step, outcomes, base) for step in (STEP, FINE_STEP))
    sides = sorted(wide.keys() & fine.keys())
    elasticity, smooth = _elasticity([wide[side] for side in sides], [fine[side] for side in sides])
    words: Sides = "both" if len(sides) == 2 else "none" if not sides else "below" if sides[0] < 0 else "above"
    ends = [outcomes[number.path, STEP, side].times for side in sides]
    return Effect(
        parameter=number,
        elasticity=elasticity,
        smooth=smooth,
        sides=words,
        resource=changed_most(ends[0], ends[1] if len(ends) == 2 else base.times) if ends else None,
        gain=None if best is None else best.gain,
        surprise=surprise,
        group=group,
    )


def _differences(
    number: Parameter, step: float, outcomes: Mapping[Hashable, TrialOutcome], base: TrialOutcome
) -> dict[int, tuple[float, float]]:
    """By side, the differences of the logarithms of the parameter and of the objective."""
    found = {}
    for side in (-1, 1):
        outcome, value = outcomes.get((number.path, step, side)), _stepped(number, step, side)
        if outcome is not None and value is not None and 0.0 < outcome.value < math.inf:
            found[side] = math.log(value / number.value), math.log(outcome.value / base.value)
    return found


def _elasticity(wide: Sequence[tuple[float, float]], fine: Sequence[tuple[float, float]]) -> tuple[float | None, bool]:
    """Slope at zero through differences on one side or both, and whether all slopes agree."""
    if not wide:
        return None, False
    if len(wide) == 1:
        (x, y), (u, v) = wide[0], fine[0]
        slopes = [y / x, v / u]
        value = (slopes[1] * x - slopes[0] * u) / (x - u)
    else:
        slopes = [*(_slope(pair) for pair in (wide, fine)), *(v / u for u, v in fine)]
        value = slopes[0]
    return value, max(slopes) - min(slopes) <= max(AGREEMENT * max(map(abs, slopes)), NOTHING)


def _slope(pair: Sequence[tuple[float, float]]) -> float:
    (x, y), (u, v) = pair
    return (v - y) / (u - x)
