"""Strategies of all workloads: from any notation to what a workload's builder takes, checked against it, and listed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from crossflow.base.errors import StrategyError
from crossflow.base.limits import shown
from crossflow.hardware.architecture.connected import unconnected
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.parallel.strategy.again import levels
from crossflow.parallel.strategy.graphs import graph_mesh, legal_meshes, mesh_of
from crossflow.parallel.strategy.hierarchy import Hierarchy, hierarchy_of, hierarchy_problem, legal_hierarchies
from crossflow.parallel.strategy.legality import kinds_problem, legal_plans, neighbouring_plans, plan_problem
from crossflow.parallel.strategy.mesh import Mesh, needs, sizes_text
from crossflow.parallel.strategy.notation import TRANSFORMER, Written, is_by_types, parse, parse_any
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.transformers import plan_of, plan_of_roles
from crossflow.workload.dlrm import Dlrm
from crossflow.workload.dlrm_spec import DlrmSpec
from crossflow.workload.sides import both_sides
from crossflow.workload.spec import GemmSpec, LstmSpec, ProgramSpec, TransformerSpec
from crossflow.workload.transformer import Transformer

DATA_PARALLEL = "d*"  # the strategy that is data parallel over all devices, however many
NO_HOST = (
    "it keeps tensors on the host, of which the system says nothing; give system.host its capacity, bandwidth and utilisation,"
    " such as {capacity: 2 TiB, bandwidth: 400 GB/s, utilisation: 0.45}"
)
NO_SECOND = (
    "far keeps tensors on a second memory, of which the system has none; name one as system.technology.second_memory of a generated"
    " device, such as LPDDR5X, with shares of its budgets, or give a published one system.second_memory: {capacity, bandwidth, energy}"
)
ANY = "any"  # the first strategy that divides a workload, where a study tries others anyway
AUTO = "auto"  # the fastest strategy that fits, which `crossflow.answers.planning` chooses when it loads a scenario
ARRIVING = "micro_batch: a step takes the requests that have arrived (serving.arrival_rate); leave it out"
GIVEN = "a program says by itself how it is divided; leave strategy out, or write another program"
BY_TYPES = "roles by layer type say nothing of stages on devices of several kinds; give degrees, such as tp8-dp4-pp4"
Divided = LstmSpec | GemmSpec | TransformerSpec | DlrmSpec  # workloads that a strategy divides
Workload = Divided | ProgramSpec
AnyStrategy = Mesh | Plan | Hierarchy


LONGEST = 2000  # characters of a strategy


def read_strategy(written: Written | None, workload: Workload | None, system: SystemSpec | None) -> AnyStrategy | None:
    """A strategy in the form that a workload's builder takes, from any notation; None where that takes what is not known."""
    if written is None:
        return None
    if not isinstance(written, (str, Mapping)):
        raise StrategyError(f"strategy: expected text or a mapping, got {written!r}")
    if isinstance(written, str) and len(written) > LONGEST:
        raise StrategyError(f"strategy: {shown(written)} has {len(written):,} characters, and {LONGEST:,} at most are read")
    if written == "legal":
        raise StrategyError("strategy: 'legal' stands for all that fit; it belongs in the space of a study, a scenario has one strategy")
    if written == AUTO:
        raise StrategyError(
            "strategy: auto cannot be used here, where a strategy is read by itself; give one, such as the first that crossflow plan lists,"
            " or search them all in a study: space: {strategy: legal}"
        )
    if workload is None:
        if written not in (ANY, DATA_PARALLEL):
            parse_any(written)  # the workload has its own problems by then; a strategy is wrong that none could have
        return None
    if isinstance(workload, ProgramSpec):
        if written in (ANY, str(mesh_of(workload.program))):  # its own
            return None
        raise StrategyError(f"strategy: {GIVEN}")
    if system is None:
        return None if written in (ANY, DATA_PARALLEL) else _lowered(written, workload, None)
    if written == ANY:
        first = _first_strategy(workload, system.mesh, system.kinds)
        if first is None:
            raise StrategyError(undivided(workload, system.whole_count))
        written = as_text(first, workload)
    if system.kinds and is_by_types(written):
        raise StrategyError(f"strategy: {BY_TYPES}")
    return _lowered(f"d{system.whole_count}" if written == DATA_PARALLEL else written, workload, system.mesh)


def undivided(workload: Divided, devices: int) -> str:
    """What to say where no strategy divides a workload over so many devices, with what would let one."""
    said = f"no strategy divides this {workload.model} over {devices:,} devices"
    if not isinstance(workload, TransformerSpec) or workload.arrives:
        return said
    return (
        f"{said} with {workload.layers} layers, {workload.heads} heads and global_batch {workload.global_batch:,};"
        f" give another number of devices, or a global_batch that is a multiple of {devices:,}"
    )


def _lowered(written: Written, workload: Divided, nodes: tuple[int, int] | None) -> AnyStrategy | None:
    """What a strategy means for a workload, on so many devices of a node, and nodes."""
    if isinstance(workload, DlrmSpec):
        return hierarchy_of(written, nodes)
    if not isinstance(workload, TransformerSpec):
        return graph_mesh(written, nodes, table=isinstance(workload, LstmSpec))
    if not is_by_types(written):
        return read_plan(written, workload)
    mesh = parse(written, TRANSFORMER)
    if workload.arrives and "micro_batch" in dict(mesh.options):
        raise StrategyError(f"strategy: {ARRIVING}")
    if nodes is None:
        return None
    experts, training = workload.experts is not None, workload.task == "training"
    batch = math.prod(nodes) ** 2 if workload.arrives else workload.global_batch
    return _settled([plan_of_roles(mesh, batch, *nodes, experts=experts, training=training)], workload)[0]


def read_plan(written: Written, workload: TransformerSpec) -> Plan:
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


def as_text(strategy: AnyStrategy, workload: Workload) -> str:
    """A strategy as text that reads back as itself: of a service with its microbatch, for what its plans mean by default is another."""
    if not isinstance(workload, TransformerSpec) or workload.task == "training" or workload.arrives or not isinstance(strategy, Plan):
        return str(strategy)
    dealt = workload.global_batch % strategy.dp  # requests that are dealt out, without a microbatch
    return str(strategy) if dealt else strategy.text(always=("micro_batch",))


def _alone(workload: Workload) -> AnyStrategy:
    """The strategy of a workload on one device; a service takes all its requests at once."""
    if isinstance(workload, DlrmSpec):
        return Hierarchy()
    if not isinstance(workload, TransformerSpec):
        return graph_mesh("d1")
    return Plan() if workload.task == "training" or workload.arrives else Plan().serving(workload.global_batch)


def fitting(strategy: AnyStrategy | None, system: SystemSpec, workload: Workload) -> AnyStrategy:
    """The strategy, if it fits the number of devices; on one device none is needed, then it is the trivial one."""
    counted, devices = system.counted, system.whole_count
    if isinstance(workload, ProgramSpec):
        strategy = mesh_of(workload.program)
        if counted and strategy.devices != devices:
            mesh = sizes_text(workload.program.axes)
            mine = f"a mesh of {strategy.devices} devices ({mesh})" if strategy.devices > 1 else mesh
            raise StrategyError(
                f"system: the program is written for {mine}, but the system has {devices}",
                f"give the system devices: {strategy.devices}", strategy.devices,
            )  # fmt: skip
    if strategy is None:
        if counted and devices > 1:
            plain = str(_alone(workload)) if isinstance(workload, DlrmSpec) else f"d{devices}"
            raise StrategyError(
                f"strategy: missing, and the system has {devices} devices; write strategy: auto for the fastest that fits,"
                f" or {plain} for data parallelism over all of them"
            )
        return _alone(workload)
    if isinstance(strategy, Hierarchy):
        return strategy
    if counted and strategy.devices != devices:
        told = needs(strategy, strategy.axes, strategy.devices, devices, _more(strategy, system, workload))
        apart = unconnected(system, strategy.devices) if strategy.devices > devices else None
        raise StrategyError(f"{told}; {apart}") if apart else told
    if not system.kinds and strategy.devices > system.devices_per_node and strategy.devices % system.devices_per_node:
        raise StrategyError(f"strategy {strategy} needs {strategy.devices} devices, which do not fill nodes of {system.devices_per_node}")
    return strategy


def _more(strategy: Plan | Mesh, system: SystemSpec, workload: Workload) -> int:
    """Devices of a node of a system that would take a strategy if it had more of them; 0 where it would not. [1]"""
    node, needed = system.devices_per_node, strategy.devices
    if system.kinds or unconnected(system, needed) or (needed > node and needed % node):
        return 0
    nodes = (min(node, needed), -(-needed // node))
    return 0 if isinstance(strategy, Plan) and strategy_problem(strategy, workload, nodes, balanced=True) else node


def strategy_problem(
    strategy: Plan | Hierarchy,
    workload: Workload,
    nodes: tuple[int, int],
    *,
    balanced: bool,
    elements: bool = False,
    hosted: bool = True,
    tiered: bool = True,
    kinds: tuple[int, ...] = (),
    model: Transformer | Dlrm | None = None,
) -> str | None:
    """Why a strategy cannot divide a layered model on nodes of devices, in a sentence; None where it can.

    `hosted` says whether the system knows its host's memory, which offloading needs, `tiered` whether its devices have a second memory,
    which `far` needs; `kinds` are the devices of each kind where there are several (`SystemSpec.kinds`); `model` is the workload's, where
    it is at hand.
    """
    if isinstance(strategy, Hierarchy):
        assert isinstance(workload, DlrmSpec)  # only such a model has one
        dlrm = model if isinstance(model, Dlrm) else workload.dlrm()
        return hierarchy_problem(strategy, dlrm, workload.global_batch, *nodes, sharded=workload.sharding is not None)
    assert isinstance(workload, TransformerSpec)  # only such a model has one
    if strategy.offload and not hosted:
        return NO_HOST
    if strategy.far and not tiered:
        return NO_SECOND
    transformer = model if isinstance(model, Transformer) else workload.transformer()
    plan, batch = _divided(strategy, workload)
    problem = plan_problem(plan, transformer, batch, balanced=balanced, elements=elements, task=workload.step)
    problem = problem or kinds_problem(plan, kinds, transformer.depth)
    others = (
        _worker_problems(workload, transformer),
        _draft_problems(workload, strategy),
        _tower_problems(workload, strategy),
        _apart_problems(workload, strategy, transformer),
    )
    return problem or next(itertools.chain(*others), None)


def _divided(plan: Plan, workload: TransformerSpec) -> tuple[Plan, int]:
    """A plan, and how many requests or samples it divides; those that arrive are as many as any plan of its devices divides.

    Requests that a service keeps in flight are dealt out to its replicas, of which some may have one more than others.
    """
    if not workload.arrives:
        dealt = workload.task == "serving" and plan.micro_batch == 1
        return plan, -(-workload.global_batch // plan.dp) * plan.dp if dealt else workload.global_batch
    return replace(plan, micro_batch=plan.devices), plan.devices**2


def _settled(plans: Iterable[Plan], workload: TransformerSpec) -> tuple[Plan, ...]:
    """Plans as they are; of requests that arrive without a microbatch."""
    return tuple(dict.fromkeys(replace(plan, micro_batch=1) for plan in plans) if workload.arrives else plans)


def worker_plan(workload: TransformerSpec) -> Plan | None:
    """The plan of a worker that reads prompts, one at a time; None where replicas read them. StrategyError for what is none."""
    return None if workload.serving.prefill is None else plan_of(workload.serving.prefill.strategy)


def encoder_plan(workload: TransformerSpec) -> Plan | None:
    """The plan of an encoder of images; None where the devices that read prompts encode. StrategyError for what is none."""
    images = workload.serving.images if workload.task == "serving" else None
    return None if images is None or images.encode is None else plan_of(images.encode.strategy)


def experts_plan(workload: TransformerSpec) -> Plan | None:
    """The plan of the devices on which the experts lie; None where attention's hold them. StrategyError for what is none."""
    return None if workload.serving.experts is None else plan_of(workload.serving.experts.strategy)


def engine_plans(workload: TransformerSpec) -> dict[str, Plan]:
    """Plans of one engine of each pool of further engines, by the pool's name. StrategyError for what is none."""
    return {name: plan_of(pool.strategy) for name, pool in workload.serving.pools.items()}


def engine_devices(workload: TransformerSpec) -> dict[str, int]:
    """Devices of each pool of further engines, by its name. [1]"""
    return {name: plan.devices * workload.serving.pools[name].workers for name, plan in engine_plans(workload).items()}


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
        yield f"{place}: an encoder divides the model of images by tp alone, and this is {plan}; give the number of encoders as workers"
    elif problem := plan_problem(plan, model, 1, task="forward"):
        yield f"{place}: {problem}"


def _apart_problems(workload: TransformerSpec, plan: Plan, model: Transformer) -> Iterator[str]:
    """Why attention with a plan and experts with theirs cannot have devices of their own, as sentences."""
    pool, place = workload.serving.experts, "serving.experts.strategy"
    if pool is None:
        return
    if max(plan.ep, plan.pp, plan.cp) > 1 or plan.etp or plan.mlp_tp or plan.redundant_experts or _moves_weights(plan):
        yield f"{plan} says how attention lies, by tp and dp alone; experts have devices of their own, and {place} divides them"
    whole = 1 if workload.arrives or workload.global_batch % plan.dp else workload.global_batch // plan.dp
    if plan.micro_batch != whole:
        yield f"serving.experts.micro_batches says how a step is cut; leave mb{plan.micro_batch} out"
    try:
        its = plan_of(pool.strategy)
    except StrategyError as error:
        yield f"{place}: {error}"
        return
    if its.pp > 1 or its.cp > 1 or its.micro_batch > 1 or _moves_weights(its):
        yield f"{place}: experts lie on their devices by tp, dp and ep alone, and this is {its}; leave out the rest"
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


def _lies_apart(plan: Plan, workload: TransformerSpec, model: Transformer) -> bool:
    """Whether attention may lie by a plan where the experts have devices of their own; any plan where they have none."""
    return next(_apart_problems(workload, plan, model), None) is None


def _worker_problem(place: str, written: str, model: Transformer) -> str | None:
    """Why the plan of a worker is none, in a sentence."""
    reads = place == "serving.prefill"
    try:
        plan = plan_of(written)
    except StrategyError as error:
        return str(error)
    if plan.dp > 1:
        return f"{'a worker' if reads else 'an engine'} has no replicas, and {plan} has {plan.dp}; give their number as workers"
    if plan.far:
        return f"{'workers for prompts' if reads else 'such engines'} keep all in their main memory; leave far out"
    if reads:
        return plan_problem(plan, model, 1, task="prefill")
    return plan_problem(replace(plan, micro_batch=plan.devices), model, plan.devices**2, task="decode")


def near_strategies(
    strategy: AnyStrategy, workload: Workload, nodes: tuple[int, int], *, balanced: bool, elements: bool = False, fused: bool = False,
    kinds: tuple[int, ...] = (),
) -> Mapping[str, str]:  # fmt: skip
    """Strategies of a layered model on as many devices that are worth comparing with one, as text, each with what it changes.

    With `fused` attention no change to recomputation of scores is among them, which equals none.

    Plans one change away from a transformer's; of a recommendation model all that divide it; of a graph of kernels none.
    """
    if isinstance(strategy, Hierarchy):
        return {text: text for text in every_strategy(workload, nodes) if text != str(strategy)}
    if not isinstance(strategy, Plan) or not isinstance(workload, TransformerSpec):
        return {}
    (plan, batch), model, task = _divided(strategy, workload), workload.transformer(), workload.step
    listed = neighbouring_plans(plan, model, batch, node=nodes[0], task=task, balanced=balanced, elements=elements, fused=fused)
    near = (one for one in listed if kinds_problem(one, kinds, model.depth) is None and _lies_apart(one, workload, model))
    return {as_text(plan, workload): strategy.changes(plan) for plan in _settled(near, workload) if plan != strategy}


@functools.lru_cache(maxsize=16)
def every_strategy(
    workload: Workload, nodes: tuple[int, int], *, fused: bool = False, placed: bool = False, kinds: tuple[int, ...] = ()
) -> tuple[str, ...]:
    """Every strategy of `legal_strategies`, as text that reads back as itself."""
    return tuple(as_text(found, workload) for found in legal_strategies(workload, nodes, fused=fused, placed=placed, kinds=kinds))


def legal_strategies(
    workload: Workload, nodes: tuple[int, int], *, fused: bool = False, placed: bool = False, kinds: tuple[int, ...] = ()
) -> tuple[AnyStrategy, ...]:
    """Every strategy that divides a workload over all devices of so many nodes; StrategyError for a program, which has its own.

    With `fused` attention scores are not computed again: such attention never keeps them.
    With `placed` plans of transformers are listed in every order of their ranks on the devices. Of devices of several `kinds` those are
    listed whose stages each lie on one kind.
    """
    node, count = nodes
    if isinstance(workload, ProgramSpec):
        raise StrategyError(f"strategy: {GIVEN}")
    if isinstance(workload, DlrmSpec):
        return legal_hierarchies(workload.dlrm(), workload.global_batch, node, count, sharded=workload.sharding is not None)
    if isinstance(workload, TransformerSpec):
        return _settled(_plans(workload, nodes, fused=fused, placed=placed, kinds=kinds), workload)
    return legal_meshes(workload.graph(), node * count)


def _plans(
    workload: TransformerSpec, nodes: tuple[int, int], *, fused: bool = False, placed: bool = False, kinds: tuple[int, ...] = ()
) -> Iterator[Plan]:
    """Every plan that divides a transformer over all devices of so many nodes, with a microbatch though requests arrive."""
    node, count = nodes
    model, devices = workload.transformer(), node * count
    batch = devices**2 if workload.arrives else workload.global_batch
    found = legal_plans(model, devices, batch, node=node, task=workload.step, again=levels(model, fused=fused), placed=placed)
    return (plan for plan in found if kinds_problem(plan, kinds, model.depth) is None and _lies_apart(plan, workload, model))


def _first_strategy(workload: Divided, nodes: tuple[int, int], kinds: tuple[int, ...]) -> AnyStrategy | None:
    """The first of `legal_strategies`, for which those of a transformer are not all listed; None where there is none."""
    if isinstance(workload, TransformerSpec):
        return next(iter(_settled(itertools.islice(_plans(workload, nodes, kinds=kinds), 1), workload)), None)
    return next(iter(legal_strategies(workload, nodes)), None)
