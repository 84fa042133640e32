"""Plans of transformers: how they are read and which divide a model, beside the further parts of a service."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from crossflow.base.errors import StrategyError
from crossflow.base.results import later
from crossflow.parallel.strategy.again import levels
from crossflow.parallel.strategy.kinds import LayeredStrategies, Nodes, StrategyFilter, StrategyLimits
from crossflow.parallel.strategy.legality import kinds_problem, legal_plans, neighbouring_plans, plan_problem
from crossflow.parallel.strategy.notation import TRANSFORMER, Written, is_by_types, parse
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.transformers import plan_of, plan_of_roles
from crossflow.workload.sides import both_sides
from crossflow.workload.transformer import Transformer

if TYPE_CHECKING:
    from crossflow.parallel.strategy.reading import AnyStrategy
    from crossflow.workload.spec import TransformerSpec
    from crossflow.workload.traits import WorkloadSpec
else:
    AnyStrategy = later("crossflow.parallel.strategy.reading", "AnyStrategy")
    TransformerSpec = later("crossflow.workload.spec", "TransformerSpec")
    WorkloadSpec = later("crossflow.workload.traits", "WorkloadSpec")

ARRIVING = "micro_batch: a step takes the requests that have arrived (serving.arrival_rate); leave it out"
NO_HOST = (
    "it keeps tensors on the host, of which the system says nothing; give system.host its capacity, bandwidth and utilisation,"
    " such as {capacity: 2 TiB, bandwidth: 400 GB/s, utilisation: 0.45}"
)
NO_SECOND = (
    "far keeps tensors on a second memory, of which the system has none; name one as system.technology.second_memory of a generated"
    " device, such as LPDDR5X, with shares of its budgets, or give a published one system.second_memory: {capacity, bandwidth, energy}"
)


class TransformerStrategies(LayeredStrategies):
    """Plans of a transformer."""

    workload: TransformerSpec

    def read(self, written: Written, nodes: Nodes | None) -> Plan | None:
        """A plan from degrees, or from roles by layer type, which take nodes."""
        spec = self.workload
        if not is_by_types(written):
            return _plan(written, spec)
        mesh = parse(written, TRANSFORMER)
        if spec.arrives and "micro_batch" in dict(mesh.options):
            raise StrategyError(f"strategy: {ARRIVING}")
        if nodes is None:
            return None
        batch = math.prod(nodes) ** 2 if spec.arrives else spec.global_batch
        plan = plan_of_roles(mesh, batch, *nodes, experts=spec.experts is not None, training=spec.task == "training")
        return next(_settled([plan], spec))

    @property
    def alone(self) -> Plan:
        """All on one device; a service takes all its requests at once."""
        spec = self.workload
        return Plan() if spec.task == "training" or spec.arrives else Plan().serving(spec.global_batch)

    def legal(self, nodes: Nodes, wanted: StrategyFilter) -> Iterator[Plan]:
        """Every plan, as it is found."""
        spec, model, devices = self.workload, self.workload.transformer(), math.prod(nodes)
        batch, again = devices**2 if spec.arrives else spec.global_batch, levels(model, fused=wanted.fused)
        found = legal_plans(model, devices, batch, node=nodes[0], task=spec.step, again=again, placed=wanted.placed)
        return _settled(_that_lie(found, spec, model, wanted.kinds), spec)

    def problem(self, strategy: Plan, limits: StrategyLimits, model: Transformer | None) -> str | None:
        """Why a plan, or one of the further parts of a service, cannot divide the model."""
        if strategy.offload and not limits.hosted:
            return NO_HOST
        if strategy.far and not limits.tiered:
            return NO_SECOND
        spec, transformer, (plan, batch) = self.workload, model or self.workload.transformer(), _dealt(strategy, self.workload)
        found = plan_problem(plan, transformer, batch, balanced=limits.balanced, elements=limits.elements, task=spec.step)
        found = found or kinds_problem(plan, limits.kinds, transformer.depth)
        return found or next(service_problems(spec, strategy, transformer), None)

    def near(self, strategy: Plan, limits: StrategyLimits, wanted: StrategyFilter) -> Mapping[str, str]:
        """Plans one change away."""
        spec, model, (plan, batch) = self.workload, self.workload.transformer(), _dealt(strategy, self.workload)
        listed = neighbouring_plans(
            plan, model, batch, node=limits.nodes[0], task=spec.step, balanced=limits.balanced, elements=limits.elements,
            fused=wanted.fused,
        )  # fmt: skip
        near = _settled(_that_lie(listed, spec, model, limits.kinds), spec)
        return {self.text(one): strategy.changes(one) for one in near if one != strategy}

    def text(self, strategy: AnyStrategy) -> str:
        """Of a service with its microbatch, for what its plans mean by default is another."""
        spec = self.workload
        if spec.task == "training" or spec.arrives or not isinstance(strategy, Plan):
            return str(strategy)
        dealt = spec.global_batch % strategy.dp  # requests that are dealt out, without a microbatch
        return str(strategy) if dealt else strategy.text(always=("micro_batch",))

    def undivided(self, devices: int) -> str:
        """The same with the numbers that a plan divides; that of requests that arrive is not known."""
        spec, said = self.workload, super().undivided(devices)
        if spec.arrives:
            return said
        return (
            f"{said} with {spec.layers} layers, {spec.heads} heads and global_batch {spec.global_batch:,};"
            f" give another number of devices, or a global_batch that is a multiple of {devices:,}"
        )


def _plan(written: Written, workload: TransformerSpec) -> Plan:
    """A plan; where it does not say, a service takes all requests of a replica at once, divided over the stages.

    Requests that arrive have no number to divide; the plan has no microbatch of its own then.
    """
    plan, written_batch = plan_of(written), "micro_batch" in dict(parse(written, TRANSFORMER).options)
    if workload.arrives:
        if written_batch:
            raise StrategyError(f"strategy: {ARRIVING}")
        return plan
    said = workload.task == "training" or written_batch
    return plan if said or workload.global_batch % plan.dp else plan.serving(workload.global_batch)


def _dealt(plan: Plan, workload: TransformerSpec) -> tuple[Plan, int]:
    """A plan, and how many requests or samples it divides; those that arrive are as many as any plan of its devices divides.

    Requests that a service keeps in flight are dealt out to its replicas, of which some may have one more than others.
    """
    if not workload.arrives:
        dealt = workload.task == "serving" and plan.micro_batch == 1
        return plan, -(-workload.global_batch // plan.dp) * plan.dp if dealt else workload.global_batch
    return replace(plan, micro_batch=plan.devices), plan.devices**2


def _settled(plans: Iterable[Plan], workload: TransformerSpec) -> Iterator[Plan]:
    """Plans as they are; of requests that arrive without a microbatch, each once."""
    if not workload.arrives:
        yield from plans
        return
    seen = set[Plan]()
    for plan in (replace(plan, micro_batch=1) for plan in plans):
        if plan not in seen:
            seen.add(plan)
            yield plan


def _that_lie(plans: Iterable[Plan], workload: TransformerSpec, model: Transformer, kinds: tuple[int, ...]) -> Iterator[Plan]:
    """Those plans whose stages each lie on one kind of devices, and beside which experts may have devices of their own."""
    return (plan for plan in plans if kinds_problem(plan, kinds, model.depth) is None and lies_apart(plan, workload, model))


# ---------------------------------------------------------------------------------------------- further parts of a service


def worker_plan(workload: WorkloadSpec) -> Plan | None:
    """The plan of a worker that reads prompts, one at a time; None where replicas read them. StrategyError for what is none."""
    return None if workload.service.prefill is None else plan_of(workload.service.prefill.strategy)


def encoder_plan(workload: WorkloadSpec) -> Plan | None:
    """The plan of an encoder of images; None where the devices that read prompts encode. StrategyError for what is none."""
    images = workload.service.images if workload.is_service else None
    return None if images is None or images.encode is None else plan_of(images.encode.strategy)


def experts_plan(workload: WorkloadSpec) -> Plan | None:
    """The plan of the devices on which the experts lie; None where attention's hold them. StrategyError for what is none."""
    return None if workload.service.experts is None else plan_of(workload.service.experts.strategy)


def engine_plans(workload: WorkloadSpec) -> dict[str, Plan]:
    """Plans of one engine of each pool of further engines, by the pool's name. StrategyError for what is none."""
    return {name: plan_of(pool.strategy) for name, pool in workload.service.pools.items()}


def engine_devices(workload: WorkloadSpec) -> dict[str, int]:
    """Devices of each pool of further engines, by its name. [1]"""
    return {name: plan.devices * workload.service.pools[name].workers for name, plan in engine_plans(workload).items()}


def service_problems(workload: TransformerSpec, plan: Plan, model: Transformer) -> Iterator[str]:
    """Why further parts of a service cannot be what they are beside replicas with a plan, as sentences."""
    return itertools.chain(
        _worker_problems(workload, model),
        _draft_problems(workload, plan),
        _tower_problems(workload, plan),
        _apart_problems(workload, plan, model),
    )


def _worker_problems(workload: TransformerSpec, model: Transformer) -> Iterator[str]:
    """Why plans of workers for prompts, and of further engines, are none, as sentences."""
    serving = workload.serving
    asked = [("serving.prefill", serving.prefill.strategy)] if serving.prefill else []
    asked += [(f"serving.pools.{name}", pool.strategy) for name, pool in serving.pools.items()]
    for place, written in asked:
        if problem := _worker_problem(place, written, model):
            yield f"{place}.strategy: {problem}"


def _draft_problems(workload: TransformerSpec, plan: Plan) -> Iterator[str]:
    """Why a draft model cannot guess for a service with a plan, as sentences."""
    guesses, place = workload.serving.speculation, "serving.speculation.draft"
    if guesses is None or guesses.draft is None:
        return
    draft, plans = guesses.draft, [plan, *engine_plans(workload).values()]
    if workload.serving.prefill is not None:
        yield f"{place}: workers of their own for prompts (serving.prefill) do not read them for a draft model; leave one of both out"
    for one in plans:
        tp = draft.tp or one.tp
        if one.pp > 1:
            yield f"{place}: a draft model guesses for layouts without pipeline stages, and {one} has {one.pp}; give pp 1, or no draft"
        elif one.cp > 1 or tp > one.devices // one.dp:
            yield f"{place}.tp: {tp} devices, and a replica of {one} has {one.devices // one.dp}; give fewer"
        elif problem := plan_problem(Plan(tp=tp), draft.described.transformer(), 1, task="decode"):
            yield f"{place}.tp: {problem}"


def _tower_problems(workload: TransformerSpec, plan: Plan) -> Iterator[str]:
    """Why a model of images cannot run on the devices that read prompts, as sentences."""
    images, place, reads = workload.serving.images, "serving.images.tp", worker_plan(workload)
    if images is None:
        return
    if images.encode is not None:
        yield from _encoder_problems(images.encode.strategy, images.described.transformer())
        return
    for one in [plan, *engine_plans(workload).values()] if reads is None else [reads]:
        tp = images.tp or one.tp
        if tp > one.tp or one.tp % tp:
            yield f"{place}: {tp} devices work on one image, and the {one.tp} tensor ranks of {one} are no multiple of them; give another"
        elif problem := plan_problem(Plan(tp=tp), images.described.transformer(), 1, task="forward"):
            yield f"{place}: {problem}"


def _encoder_problems(written: str, model: Transformer) -> Iterator[str]:
    """Why the plan of an encoder is none, as sentences."""
    place = "serving.images.encode.strategy"
    try:
        plan = plan_of(written)
    except StrategyError as error:
        yield f"{place}: {error}"
        return
    if plan.devices > plan.tp or plan.far or plan.offload:
        yield f"{place}: an encoder divides the vision model by tp only, and this is {plan}; give the number of encoders as workers"
    elif problem := plan_problem(plan, model, 1, task="forward"):
        yield f"{place}: {problem}"


def _apart_problems(workload: TransformerSpec, plan: Plan, model: Transformer) -> Iterator[str]:
    """Why attention with a plan and experts with theirs cannot have devices of their own, as sentences."""
    pool, place = workload.serving.experts, "serving.experts.strategy"
    if pool is None:
        return
    if max(plan.ep, plan.pp, plan.cp) > 1 or plan.etp or plan.mlp_tp or plan.redundant_experts or _moves_weights(plan):
        yield f"{plan} divides attention, which takes tp and dp only; experts have devices of their own, and {place} divides them"
    whole = 1 if workload.arrives or workload.global_batch % plan.dp else workload.global_batch // plan.dp
    if plan.micro_batch != whole:
        yield f"serving.experts.micro_batches says how a step is cut; leave mb{plan.micro_batch} out"
    try:
        its = plan_of(pool.strategy)
    except StrategyError as error:
        yield f"{place}: {error}"
        return
    if its.pp > 1 or its.cp > 1 or its.micro_batch > 1 or _moves_weights(its):
        yield f"{place}: experts are divided by tp, dp and ep only, and this is {its}; leave out the rest"
    elif problem := plan_problem(its, both_sides(model)[1], its.dp, task="decode"):
        yield f"{place}: {problem}"
    if not workload.arrives and workload.global_batch // plan.dp < pool.micro_batches:
        yield (
            f"serving.experts.micro_batches: {workload.global_batch // plan.dp} requests of each of {plan.dp} copies of attention "
            f"make no {pool.micro_batches} micro-batches; give fewer, or a larger workload.global_batch"
        )


def _moves_weights(plan: Plan) -> bool:
    """Whether weights do not lie where they are used: shared out over data ranks, on the host or on a second memory."""
    return plan.zero >= 3 or bool(plan.far or plan.offload)


def lies_apart(plan: Plan, workload: TransformerSpec, model: Transformer) -> bool:
    """Whether attention may lie by a plan where the experts have devices of their own; any plan where they have none."""
    return next(_apart_problems(workload, plan, model), None) is None


def _worker_problem(place: str, written: str, model: Transformer) -> str | None:
    """Why the plan of a worker is none, in a sentence."""
    reads = place == "serving.prefill"
    try:
        plan = plan_of(written)
    except StrategyError as error:
        return str(error)
    if plan.dp > 1 and not (reads and plan.replicas_meet):
        return f"{'a worker' if reads else 'an engine'} has no replicas, and {plan} has {plan.dp}; give their number as workers"
    ranks, span = plan.tp * plan.cp * plan.dp, plan.ep * plan.tensor_of("experts")
    if plan.dp > 1 and span < ranks and not ranks % span and not span % (plan.tp * plan.cp):
        one, many = replace(plan, dp=span // (plan.tp * plan.cp)), ranks // span
        lie = f"experts of {plan} lie over {span} of its {ranks} ranks"
        return f"{lie}, so that it is {many} workers; give {one} and so many times as many"
    if plan.far:
        return f"{'workers for prompts' if reads else 'such engines'} keep all in their main memory; leave far out"
    if reads:
        return plan_problem(plan, model, plan.dp, task="prefill")
    return plan_problem(replace(plan, micro_batch=plan.devices), model, plan.devices**2, task="decode")
