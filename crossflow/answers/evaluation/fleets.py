"""What a scenario says of its fleet, as the replay takes it: rates of engines, failures, scaling, and what does not go together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.base.limits import ENGINES
from crossflow.engine.service.standing import Failures, Scaling
from crossflow.engine.service.steps import StepTable
from crossflow.engine.service.ticket import Limits
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import AnyStrategy
from crossflow.parallel.strategy.transformers import plan_of
from crossflow.workload.fleet import AutoscaleSpec, FailuresSpec
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.serving_spec import ServingSpec

ONE_BY_ONE = "replicas that share out experts make every step together, and none fails or starts by itself"
UNGATHERED = "a replay does not let replicas wait for each other's prompts; set it to false, or leave out requests for a steady state"


def coupled(plan: AnyStrategy | None, *, pooled: bool = False) -> bool:
    """Whether replicas share experts, or devices of their own for these (`pooled`), and so make every step together."""
    return isinstance(plan, Plan) and plan.dp > 1 and (plan.replicas_meet or pooled)


def capacity(table: StepTable, limits: Limits, trace: RequestTrace) -> float:
    """Mean requests of a trace that an engine answers in a second with as many at once as it has room for. [1/s]

    An engine reads each prompt, and writes for all that are there: it has done with one after what reading it takes more, and its share
    of the steps that write. With pipeline stages one prompt in each microbatch is read at a time.
    """
    prompt, output = float(np.mean(trace.prompt)), float(np.mean(trace.output))
    room = limits.pages * limits.page / max(prompt + 0.5 * output, 1.0)
    at_once = max(int(min(room, limits.requests)), 1) if limits.writes else 0
    piece = min(prompt, float(limits.chunk))
    stages = limits.microbatches
    time = table.more(at_once, piece * stages, 0.5 * prompt) * prompt / (piece * stages) if limits.reads else 0.0
    time += 0.0 if limits.writes else table.line(0, 0.0, alone=False)[0]
    if limits.writes:
        time += (output - 1.0) / limits.pace * table.line(at_once, prompt + 0.5 * output)[0] / at_once
    return 1.0 / max(time, 1e-12)


def failures_of(asked: FailuresSpec | None) -> Failures | None:
    """Failures of the engines of a scenario."""
    return None if asked is None else Failures(**asked.model_dump())


def scaling_of(asked: AutoscaleSpec | None, most: int) -> Scaling | None:
    """Scaling of the replicas of a strategy, of which there are so many at most."""
    return None if asked is None else Scaling(most=most, **asked.model_dump())


def check_fleet(scenario: Scenario, trace: RequestTrace) -> None:
    """Raise CrossflowError for keys of a fleet that do not go together, or name classes that there are not."""
    for place, count in _engines(scenario):
        if count > ENGINES:
            told = f"a replay has at most {ENGINES:,} engines of a pool, each with a queue and a cache, got {count:,}; give fewer"
            raise CrossflowError(f"{scenario.name}: {place}: {told}")
    for place, problem in _problems(scenario, trace):
        raise CrossflowError(f"{scenario.name}: workload.serving.{place}: {problem}")
    if scenario.stack is not None and scenario.stack.engine.gathers and coupled(scenario.strategy):
        raise CrossflowError(f"{scenario.name}: software.engine.gathers: {UNGATHERED}")


def _engines(scenario: Scenario) -> Iterator[tuple[str, int]]:
    """Where a scenario says how many engines there are, and how many."""
    assert isinstance(scenario.strategy, Plan)
    serving = scenario.workload.service
    yield "strategy", scenario.strategy.dp
    if serving.prefill is not None:
        yield "workload.serving.prefill.workers", serving.prefill.workers * plan_of(serving.prefill.strategy).dp
    if serving.images is not None and serving.images.encode is not None:
        yield "workload.serving.images.encode.workers", serving.images.encode.workers
    yield from ((f"workload.serving.pools.{name}.workers", pool.workers) for name, pool in serving.pools.items())


def _problems(scenario: Scenario, trace: RequestTrace) -> Iterator[tuple[str, str]]:
    assert isinstance(scenario.strategy, Plan)
    serving, plan = scenario.workload.service, scenario.strategy
    if coupled(plan, pooled=serving.experts is not None):
        found = (key for key in ("failures", "autoscale") if getattr(serving, key))
        other = "ep out of the strategy" if serving.experts is None else "serving.experts"
        yield from ((key, f"{ONE_BY_ONE}; leave it out, or {other}") for key in found)
    reading = None if serving.prefill is None else plan_of(serving.prefill.strategy)
    if serving.failures and coupled(reading):
        yield "failures", f"{ONE_BY_ONE}; leave it out, or dp out of serving.prefill.strategy"
    if reading is not None and reading.cp > 1:
        why = "steps of a replay read pieces of prompts, which are not divided over context ranks"
        yield "prefill.strategy", f"{why}, and {reading} has cp = {reading.cp}; give tp, dp or pp, or an arrival_rate and no requests"
    if (scaled := serving.autoscale) is not None:
        if scaled.least > plan.dp:
            yield "autoscale.least", f"{scaled.least} replicas always run, but {plan} has {plan.dp}; lower it, or raise dp"
        if scaled.down > scaled.up:
            yield "autoscale.down", f"{scaled.down:g} is more than up ({scaled.up:g}): replicas would start and stop at once; lower it"
    if serving.router == "slices" and trace.arrival[-1] > trace.arrival[0]:
        yield (
            "router",
            "slices cuts a batch that is there at once, and these requests arrive; use least_loaded, or requests without arrivals",
        )
    yield from _unknown_classes(serving, trace)


def _unknown_classes(serving: ServingSpec, trace: RequestTrace) -> Iterator[tuple[str, str]]:
    """Classes of pools that no request has, or that no router asks for."""
    known, seen = [one.name for one in trace.classes], dict[str, str]()
    for pool, one in serving.pools.items():
        place = f"pools.{pool}.classes"
        if one.classes and serving.router != "class":
            yield place, f"only router: class looks at classes, and router is {serving.router}; leave it out, or change the router"
        for name in one.classes:
            if name not in known:
                yield place, f"requests have no class '{name}'; they have {', '.join(known)}{did_you_mean(name, known)}"
            if name in seen:
                yield place, f"class '{name}' has the pool {seen[name]} for itself; name it once"
            seen[name] = pool
