"""Decisions that are tried about a scenario, one step to each side: nodes, network, types, batch, and what an engine lets be set.

Other strategies are of `crossflow.parallel.strategy.reading.near_strategies`, decisions about a generated chip of `alternatives`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from crossflow.answers.explanation.answers import DecisionKind
from crossflow.answers.explanation.dividing import count_path, divides, engine_text, nearest, undecided
from crossflow.answers.meaning import caches_in
from crossflow.answers.points import varied
from crossflow.answers.scenario import Scenario, strategy_of
from crossflow.base.formats import FORMATS
from crossflow.base.paths import value_at
from crossflow.base.units import show
from crossflow.hardware.architecture.network import NetworkLevel
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.plans import worker_plan
from crossflow.parallel.strategy.reading import as_text
from crossflow.workload.kinds import Workload
from crossflow.workload.requests.post_training import PostTrainingSpec
from crossflow.workload.spec import TransformerSpec

if TYPE_CHECKING:
    from crossflow.answers.explanation.designs import Design

STEP = 2.0  # factor by which counts, rates of links and oversubscription are moved
BATCH, CHUNK, SPECULATION, PREFILL = "workload.global_batch", *(f"workload.serving.{name}" for name in ("chunk", "speculation", "prefill"))
FULLER, FULLEST = 0.05, 0.95  # share of memory that an engine is given more, and at most: beyond it fragments have no room
ROLLOUT, PARTIAL = "job.rollout", 0.5  # prompts under way beyond those of an iteration, over these
WIDEST = "bf16"  # what a service keeps keys and values in where it says nothing and products are narrower
# Numbers of the network that whoever buys a system decides, by their last name, and whether more of them is better.
NETWORK = {"bandwidth": True, "oversubscription": False}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Settings that are tried, and what they are called."""

    kind: DecisionKind
    text: str
    settings: Mapping[str, Any]


def moves(design: Design) -> Iterator[Attempt]:
    """Everything that is tried beside strategies, in the order in which it is told."""
    scenario = design.scenario
    yield from _nodes(design)
    yield from _network(design)
    yield from _types(scenario)
    if scenario.post_training is not None:
        yield from _job(scenario, scenario.post_training)
        return
    yield from _batch(scenario)
    if scenario.workload.serves:
        assert isinstance(scenario.workload, TransformerSpec)  # which alone serves
        yield from _service(scenario, scenario.workload)
        yield from _experts(scenario, scenario.workload)


def _counts(kind: DecisionKind, label: str, settings: Mapping[str, Any], path: str, value: int) -> Iterator[Attempt]:
    """Twice a whole number and, where that is whole, half of it, with what must be set beside it."""
    for to in (STEP * value, value / STEP):
        if to == round(to):
            to = round(to)
            yield Attempt(kind=kind, text=f"{label} {value:,} to {to:,}", settings={**settings, path: to})


def _nodes(design: Design) -> Iterator[Attempt]:
    """More and fewer nodes, or devices, with the strategy nearest to that of the design."""
    scenario, path = design.scenario, count_path(design.scenario)
    if not scenario.workload.divisible:
        return
    count = scenario.system.nodes if path == "system.nodes" else scenario.system.device_count
    for move in _counts("nodes", path.split(".")[1], {}, path, int(count or 1)):
        factor = Fraction(move.settings[path], int(count or 1))
        yield replace(move, settings={**move.settings, **_strategy(design, move.settings, factor)})


def _strategy(design: Design, settings: Mapping[str, Any], factor: Fraction) -> Mapping[str, str]:
    """The strategy nearest to that of a design on so many times its devices: as many times the replicas, where that divides."""
    scenario = design.scenario
    more = _replicas(scenario, factor)
    if more is not None and divides(scenario, settings, more):
        return {"strategy": more}
    here = undecided(scenario, settings)
    near = None if here is None else nearest(here, scenario.strategy)
    return {} if near is None else {"strategy": near}


def _replicas(scenario: Scenario, factor: Fraction) -> str | None:
    """The plan with so many times the replicas, which take all requests of a service at once where they do now."""
    plan, spec = scenario.strategy, scenario.workload
    if not isinstance(plan, Plan) or (plan.dp * factor).denominator > 1:
        return None
    return as_text(_whole(plan.but(dp=int(plan.dp * factor)), plan, spec, spec.global_batch), spec)


def _whole(changed: Plan, plan: Plan, spec: Workload, batch: int) -> Plan:
    """A changed plan of another batch; where the replicas of a service take all requests at once, they go on to."""
    at_once = spec.serves and not spec.arrives and plan == plan.serving(spec.global_batch)
    return changed.serving(batch) if at_once else changed


def _network(design: Design) -> Iterator[Attempt]:
    """Links of twice the rate, and half the oversubscription; links of generated devices are choices of technology."""
    for level in ("inter", "intra"):
        for name, more in NETWORK.items():
            path = f"system.network.{level}.{name}"
            value = design.quantities.get(path, _number(design.scenario, path))
            quantity = varied(design.scenario, path)
            if value is None:
                continue
            to = value * STEP if more else max(value / STEP, 1.0)
            if to != value:
                said = [f"{one:g}" if quantity is None else show(one, quantity.unit) for one in (value, to)]
                yield Attempt(kind="network", text=f"{level} {name} {said[0]} to {said[1]}", settings={path: to})
    yield from _congestion(design.scenario.system.network.inter)


def _congestion(level: NetworkLevel) -> Iterator[Attempt]:
    """What keeps flows between nodes out of each other's way, of a network that is said to be shared."""
    given, path = level.congestion, "system.network.inter.congestion"
    if given is None:
        return
    if given.routing == "ecmp" and not {"paths", "connections"} & given.model_fields_set:
        yield Attempt(kind="network", text="ecmp to adaptive routing", settings={f"{path}.routing": "adaptive"})
    if given.jobs and given.placement == "spread":
        yield Attempt(kind="network", text="jobs packed, not spread", settings={f"{path}.placement": "packed"})
    if level.wiring == "fat-tree" and not given.rails:
        yield Attempt(kind="network", text="a leaf switch for each rail", settings={f"{path}.rails": True})


def _number(scenario: Scenario, path: str) -> float | None:
    """A number of the system, None where it has none."""
    parts = path.split(".")[1:]
    found = value_at(scenario.system, parts)
    if found is None:  # a number without a unit
        level = getattr(scenario.system.network, parts[1])
        found = getattr(level, parts[-1])
    return None if found is None else float(found if isinstance(found, int | float) else found.ravel()[0])


def _types(scenario: Scenario) -> Iterator[Attempt]:
    """Narrower types of products and, of a service, of its weights and its cache."""
    spec = scenario.workload
    if not spec.divisible:
        return
    serves = spec.serves
    for name in ("dtype", "weight_dtype", "kv_dtype") if serves else ("dtype",):
        own = getattr(spec, name) or (WIDEST if name == "kv_dtype" and FORMATS[spec.dtype].bits < FORMATS[WIDEST].bits else spec.dtype)
        narrower = (other for other in names_of(type(spec).model_fields[name].annotation) if FORMATS[other].bits < FORMATS[own].bits)
        for other in narrower:
            if (name == "weight_dtype" and not _widened(scenario, other)) or (name == "kv_dtype" and not caches_in(scenario.system, other)):
                continue
            yield Attempt(kind="type", text=f"{name.replace('_', ' ')} {own} to {other}", settings={f"workload.{name}": other})


def _widened(scenario: Scenario, dtype: str) -> bool:
    """Whether the engine has kernels that widen weights of a type; of software that lists no such kernels none is left out."""
    libraries = {} if scenario.stack is None else scenario.stack.kernels.widening
    return not libraries or dtype in libraries


def _batch(scenario: Scenario) -> Iterator[Attempt]:
    """A larger and a smaller batch; requests that arrive have none."""
    spec, plan = scenario.workload, scenario.strategy
    batch = getattr(spec, "global_batch", None)
    if batch is None or spec.arrives:
        return
    for move in _counts("batch", "requests at once" if spec.serves else "global batch", {}, BATCH, batch):
        strategy: dict[str, str] = {}
        if spec.serves and isinstance(plan, Plan):
            strategy = {"strategy": as_text(_whole(plan, plan, spec, move.settings[BATCH]), spec)}
        yield replace(move, settings={**move.settings, **strategy})


# ------------------------------------------------------------------------------------------ what an engine lets be set


def _service(scenario: Scenario, spec: TransformerSpec) -> Iterator[Attempt]:
    """What an engine that is in steady state takes in a step, how full it runs, guesses, and workers of their own for prompts."""
    stack = scenario.stack
    if spec.task != "serving" or stack is None:
        return
    own, engine = stacked(scenario), stack.engine
    yield from _counts("engine", "tokens of a step", {}, CHUNK, spec.serving.chunk or int(engine.chunk))
    yield from _counts("engine", "requests of a replica", own, "software.engine.requests", int(engine.requests))
    share = float(engine.memory.ravel()[0])
    if share < FULLEST:
        to = round(min(share + FULLER, FULLEST), 3)
        yield Attempt(kind="engine", text=f"memory of the engine {share:g} to {to:g}", settings={**own, "software.engine.memory": to})
    admits = "whole" if engine.admits == "written" else "written"
    yield Attempt(kind="engine", text=f"admits {engine.admits} to {admits}", settings={**own, "software.engine.admits": admits})
    if spec.serving.speculation is not None:
        yield from _beside("guessed tokens", f"{SPECULATION}.tokens", spec.serving.speculation.tokens)
    if spec.serving.prefill is not None:
        yield from _beside("workers for prompts", f"{PREFILL}.workers", spec.serving.prefill.workers)
    elif (worker := _worker(scenario)) is not None:
        pool = {f"{PREFILL}.strategy": worker, f"{PREFILL}.workers": 1}
        yield Attempt(kind="engine", text=f"workers for prompts 0 to 1 ({worker})", settings=pool)
    if isinstance(scenario.strategy, Plan):
        yield from _encoding(spec, (worker_plan(spec) or scenario.strategy).tp)


# ------------------------------------------------------------------------------------------ a job


def _job(scenario: Scenario, job: PostTrainingSpec) -> Iterator[Attempt]:
    """How models share the devices of a job, how its engines are divided, and how old answers may be; its samples stay."""
    yield Attempt(kind="job", text=f"offload {_word(job.offload)} to {_word(not job.offload)}", settings={"job.offload": not job.offload})
    spec = job.rollout
    if spec is None:
        return
    plan = strategy_of(scenario, spec.strategy)
    assert isinstance(plan, Plan)  # the job runs
    for tp in (2 * plan.tp, plan.tp / 2):
        if tp == round(tp):
            other = engine_text(plan.but(tp=round(tp)))
            yield Attempt(kind="job", text=f"engines {spec.strategy} to {other}", settings={f"{ROLLOUT}.strategy": other})
    if spec.devices is not None:
        yield from _counts("job", "devices of engines", {}, f"{ROLLOUT}.devices", spec.devices)
        yield Attempt(
            kind="job", text=f"staleness {spec.staleness} to {spec.staleness + 1}", settings={f"{ROLLOUT}.staleness": spec.staleness + 1}
        )
    if spec.partial is None:
        yield Attempt(kind="job", text=f"partial rollouts, {PARTIAL:g} more prompts under way", settings={f"{ROLLOUT}.partial": PARTIAL})


def _beside(label: str, path: str, value: int) -> Iterator[Attempt]:
    """One more and one less of what there are few of."""
    for to in (value + 1, value - 1):
        if to:
            yield Attempt(kind="engine", text=f"{label} {value} to {to}", settings={path: to})


def _encoding(spec: TransformerSpec, ranks: int) -> Iterator[Attempt]:
    """Images on a device each, and divided by all tensor ranks of those that read prompts; encoders of their own have a plan."""
    images = spec.serving.images
    if images is None or images.encode is not None:
        return
    own = images.tp or ranks
    for to in sorted({1, ranks} - {own}):
        yield Attempt(kind="engine", text=f"devices of an image {own} to {to}", settings={"workload.serving.images.tp": to})


def _worker(scenario: Scenario) -> str | None:
    """A worker that reads prompts, divided as one replica of the service is."""
    plan = scenario.strategy
    if not isinstance(plan, Plan):
        return None
    return str(plan.but(dp=1, micro_batch=1) if plan.ep == 1 else plan.but(micro_batch=1))


def _experts(scenario: Scenario, spec: TransformerSpec) -> Iterator[Attempt]:
    """How an engine shares experts out: where they lie, how tokens reach them, and what runs beside that."""
    stack, plan = scenario.stack, scenario.strategy
    if stack is None or spec.experts is None or not isinstance(plan, Plan) or plan.ep == 1:
        return
    own = stacked(scenario)
    balances, overlaps = stack.engine.balances, stack.overlap.experts
    for path, label, flag in (("engine.balances", "balance of experts", balances), ("overlap.experts", "two-batch overlap", overlaps)):
        text = f"{label} {_word(flag)} to {_word(not flag)}"
        yield Attempt(kind="engine", text=text, settings={**own, f"software.{path}": not flag})
    gathers = stack.kernels.gathers
    for other in names_of(type(stack.kernels).model_fields["gathers"].annotation):
        if other != gathers:
            settings = {**own, "software.kernels.gathers": other}
            yield Attempt(kind="engine", text=f"tokens of experts gathered {gathers} to {other}", settings=settings)


def _word(flag: bool) -> str:
    return "on" if flag else "off"


def stacked(scenario: Scenario) -> dict[str, Any]:
    """What must be set before a setting of the software can be: its name, where the scenario leaves it to its default."""
    written = scenario.document.data.get("software")
    return {} if isinstance(written, Mapping) or scenario.stack is None else {"software.like": scenario.stack.name}


def names_of(annotation: Any) -> tuple[str, ...]:
    """Names that a field may have, where its type lists them."""
    if get_origin(annotation) is Literal:
        return tuple(name for name in get_args(annotation) if isinstance(name, str))
    return next((found for inner in get_args(annotation) if (found := names_of(inner))), ())
