"""Which plans divide a model: why one cannot, every one that does, and neighbours of one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crossflow.parallel.strategy.again import NOTHING, Again, levels, not_again
from crossflow.parallel.strategy.mesh import BIDIRECTIONAL, FOLDED, SCHEDULES, TYPES, RankBlock, Type, divisors
from crossflow.parallel.strategy.plan import OWN_SHARDS, OWN_TENSOR, Plan
from crossflow.parallel.strategy.schedules import pipeline_order, schedule_problem
from crossflow.workload.transformer import Transformer

if TYPE_CHECKING:
    from crossflow.workload.job import JobTask

MICRO_BATCHES = (1, 2, 4, 8, 16)
SLICE = 8192  # tokens of a sample that a context rank has at least, where plans are listed


def plan_problem(
    plan: Plan, model: Transformer, batch: int, *, balanced: bool = False, elements: bool = False, task: JobTask = "training"
) -> str | None:
    """Why a plan cannot divide a model with a global batch, in a sentence; None where it can.

    Layers need not divide: there may be up to two more stages than layers, the ends then hold the embedding and the head alone, and
    any number where `stage_layers` lists them. With `balanced` stages, where a stage may be left empty, up to twice as many. With
    `elements` tensor ranks divide the elements of each token, and not the tokens, where sequence parallelism is on.
    """
    return (
        _not_cut(plan, model)
        or _no_stages(plan, model, balanced=balanced)
        or _no_tokens(plan, model, task, elements=elements)
        or _no_microbatches(plan, batch)
        or _no_experts(plan, model, task)
        or _no_own_tensor(plan, task)
        or _not_distant(plan)
        or _not_shared_out(plan, model, task)
        or _not_sharded(plan)
        or _not_on_host(plan, task)
        or _not_adapted(plan, model)
        or _not_far(plan, model, task)
        or not_again(plan, model)
        or _no_order(plan, batch)
    )


def _not_adapted(plan: Plan, model: Transformer) -> str | None:
    """What of a plan is not modelled beside low-rank adapters."""
    if not model.adapted:
        return None
    kept = [what for what in plan.offload if what != "activations"]
    if kept or plan.far:
        where = f"offload = {kept[0]}" if kept else "far"
        return f"{where}, but weights and optimizer states beside adapters are modelled on the device only; leave it out"
    return None


def kinds_problem(plan: Plan, kinds: Sequence[int], depth: int) -> str | None:
    """Why the stages of a plan cannot be shared out over devices of several kinds, so many of each, in a sentence; None where they can."""
    if not kinds:
        return None
    ranks = plan.tp * plan.cp * plan.dp
    several = f"the system's devices are of {len(kinds)} kinds"
    if plan.pp < len(kinds):
        return (
            f"pp = {plan.pp}, but {several}, and each stage lies on one of them; give pp: {len(kinds)} or more"
            " (replicas on unlike devices are not modelled)"
        )
    uneven = next((count for count in kinds if count % ranks), None)
    if uneven is not None:
        stage = f"tp x cp x dp = {ranks} ranks"
        return f"{uneven} devices of one kind are no whole stages of {stage}; give degrees whose product divides the devices of each kind"
    if plan.placement[-1] != "pp":
        return f"placement: {several}, so that stages lie farthest apart; put pp last"
    if plan.schedule in BIDIRECTIONAL:
        return f"schedule: {plan.schedule} holds each layer on two stages, but {several}; use 1f1b"
    if plan.offload or plan.far:
        return f"{'offload' if plan.offload else 'far'} is not modelled where {several}; leave it out"
    if plan.pp * plan.virtual_stages > depth and not plan.stage_layers:
        chunks = f"pp x virtual_stages = {plan.pp} x {plan.virtual_stages} chunks"
        return f"{chunks} on devices of several kinds need a layer each, and the model has {depth}; give fewer, or stage_layers"
    return None


def _not_cut(plan: Plan, model: Transformer) -> str | None:
    """Why layers cannot be cut over the ranks that share each."""
    for heads in model.heads:
        if heads % plan.tensor_of("attention"):
            return f"{heads} attention heads are not divisible by {_named(plan, 'attention')}"
    for heads in model.ssm_heads:
        if heads % (plan.tensor_of("attention") * plan.cp):
            shared = f"{_named(plan, 'attention')}{f' x cp = {plan.cp}' if plan.cp > 1 else ''}"
            return f"{heads} state-space heads are not divisible by {shared}"
    selective = any(part.ssm is not None and part.ssm.kind == "mamba1" for part in model.parts)
    if selective and plan.cp > 1:
        return f"cp = {plan.cp}: context parallelism of mamba1 layers is not modelled; use dp or tp in its place"
    for width in model.mlp_widths:
        if width % plan.tensor_of("mlp"):
            return f"{width} inner elements of the MLP are not divisible by {_named(plan, 'mlp')}"
    return None


def _no_stages(plan: Plan, model: Transformer, *, balanced: bool) -> str | None:
    """Why layers cannot be laid out as stages."""
    chunks, depth = plan.pp * plan.virtual_stages, model.depth
    cut = f"pp x virtual_stages = {plan.pp} x {plan.virtual_stages}"
    if plan.pp > 1 and any(matrix.shared for layer in model.main for part in layer.parts for matrix in part.matrices):
        return f"pp = {plan.pp}, but layers share the weights of a block, of which each stage would need a copy; leave out pp"
    if plan.virtual_stages > 1 and plan.pp == 1:
        return "virtual_stages > 1 needs a pipeline, but pp = 1"
    if plan.stage_layers:
        return _not_listed(plan, depth, cut)
    if chunks > (2 * depth if balanced and plan.virtual_stages == 1 else depth + 2):
        listed = f"0+1x{depth}+0x{chunks - depth - 1}"
        return f"{cut} chunks, but the model has {depth} layers; stage_layers can list chunks without a layer, such as {listed}"
    if not (plan.first_stage or plan.last_stage):
        return None
    sizes = plan.division.layers(depth, chunks)
    told = f"first_stage = {plan.first_stage} and last_stage = {plan.last_stage}"
    if min(sizes) < 1:
        return f"{told} leave no layer for another of {chunks} stages; stage_layers can list stages without a layer"
    if (len(sizes), sum(sizes)) != (chunks, depth):
        return f"{told} do not add up to {depth} layers in {chunks} stages"
    return None


def _not_listed(plan: Plan, depth: int, cut: str) -> str | None:
    """Why a list of the stages' layers is not one of a model's, which its plan cuts so."""
    listed = plan.stage_layers
    if plan.first_stage or plan.last_stage:
        return "stage_layers lists the first and the last stage too; leave first_stage and last_stage out"
    chunks, missing = plan.pp * plan.virtual_stages, depth - sum(listed)
    if len(listed) != chunks:
        return f"stage_layers lists {len(listed)} chunks, but {cut} = {chunks} chunks need a number each, 0 where one has no layer"
    if missing:
        cure = f"place {abs(missing)} {'more' if missing > 0 else 'fewer'}"
        return f"stage_layers adds up to {sum(listed)} layers, but the model has {depth}; {cure}"
    return None


def _no_tokens(plan: Plan, model: Transformer, task: JobTask, *, elements: bool) -> str | None:
    """Why tokens, or with `elements` those of each token, cannot be divided over ranks.

    Ranks that hold copies of every layer have samples of their own; of a sample only those that share a layer have parts.
    """
    degrees = [plan.tensor_of(kind) for kind in TYPES if model.experts or kind != "experts"]
    divided = plan.sequence_parallel and not elements
    shared = min(max(degrees), plan.tp) if divided else 1
    wide = [part.width for part in model.parts if plan.sequence_parallel and elements and part.width % plan.tp]
    if wide:
        return f"the {wide[0]} elements of a token are not divisible by tp = {plan.tp}, as sequence_parallel needs"
    cuts = plan.cp * shared
    if task == "decode":
        if plan.cp > 1:
            return f"cp = {plan.cp} divides the tokens of a sample, and decoding writes one at a time; use dp or tp instead"
        if divided and plan.micro_batch % plan.tp:
            return f"the {plan.micro_batch} tokens that a microbatch writes are not divisible by tp = {plan.tp}, as sequence_parallel needs"
    uneven = [tokens for tokens in model.lengths if model.vocabulary and tokens % cuts]
    if uneven:
        degree = "tp" if shared == plan.tp else "ranks of a layer"
        return f"the {uneven[0]} tokens of a sample are not divisible by cp{f' x {degree}' if divided else ''} = {cuts}"
    odd = [tokens for tokens in model.masked_lengths if plan.cp > 1 and tokens % (2 * plan.cp)]
    if odd:
        return (
            f"the {odd[0]} tokens of a sample are not divisible by 2 x cp = {2 * plan.cp}: a context rank of a causal mask has two chunks"
        )
    return None


def _no_microbatches(plan: Plan, batch: int) -> str | None:
    """Why samples cannot be divided over replicas and microbatches."""
    if batch % (plan.dp * plan.micro_batch):
        return f"global_batch = {batch} is not divisible by dp x micro_batch = {plan.dp} x {plan.micro_batch}"
    microbatches = batch // (plan.dp * plan.micro_batch)
    if plan.virtual_stages > 1 and plan.schedule in SCHEDULES and plan.schedule not in FOLDED and microbatches % plan.pp:
        return f"{microbatches} microbatches are not divisible by pp = {plan.pp}, which the interleaved schedule needs"
    return None


def _no_experts(plan: Plan, model: Transformer, task: JobTask) -> str | None:
    """Why a model has no experts that could lie as a plan says."""
    if plan.ep > 1 and not model.experts:
        return f"ep = {plan.ep}, but the model has no experts"
    more = plan.redundant_experts
    if more and model.experts and (task in ("training", "forward") or plan.ep == 1):
        why = "only a service keeps copies of experts" if plan.ep > 1 else "copies of experts are shared out with them, but ep = 1"
        return f"redundant_experts = {more}: {why}; leave it out"
    for experts in model.experts:
        if more > experts * (plan.ep - 1):
            return f"redundant_experts = {more}: {experts} experts have at most a copy on each of ep = {plan.ep} ranks"
        if (experts + more) % plan.ep:
            held = f"{experts} experts and {more} copies" if more else f"{experts} experts"
            fewest = -experts % plan.ep
            cure = f"; re{fewest} (redundant_experts: {fewest}) makes {experts + fewest}" if task not in ("training", "forward") else ""
            return f"{held} are not divisible by ep = {plan.ep}{cure}"
    if model.experts:
        return None
    if more:
        return f"redundant_experts = {more}, but the model has no experts"
    for key in ("etp", "experts_shard_group"):
        if getattr(plan, key):
            return f"{key} = {getattr(plan, key)}, but the model has no experts"
    for key in ("unsharded", "distant", *(() if plan.apart == TYPES else ("apart",))):
        if "experts" in getattr(plan, key):
            return f"{key}: experts, but the model has no experts"
    return None


def _not_shared_out(plan: Plan, model: Transformer, task: JobTask) -> str | None:
    """Why experts cannot be cut and shared out over the ranks of a plan."""
    ranks = plan.tensor_of("experts")
    for width in model.expert_widths:
        if width % ranks:
            return f"{width} inner elements of an expert are not divisible by {_named(plan, 'experts')}"
    sharing = plan.tp * plan.dp * plan.cp
    if sharing % (ranks * plan.ep) == 0:
        return None
    beside = f"dp x cp = {plan.dp} x {plan.cp}"
    if ranks != plan.tp:
        beside = f"tp x dp x cp / etp = {plan.tp} x {plan.dp} x {plan.cp} / {ranks}"
    fewer = [degree for degree in divisors(plan.tp) if degree < ranks and sharing % (degree * plan.ep) == 0]
    cure = f"; they do with etp: {fewer[-1]}" if fewer else ""
    # Without gradients, experts that fill the tensor group need no exchange: each rank has all tokens and runs its own experts.
    filled = task != "training" and bool(fewer) and fewer[-1] * plan.ep == plan.tp
    if fewer and fewer[-1] < plan.tp and not plan.sequence_parallel and not filled:
        cure += " and sequence_parallel: true"
    return f"{beside} ranks are not divisible by ep = {plan.ep}{cure}"


def _not_on_host(plan: Plan, task: JobTask) -> str | None:
    """Why the host cannot keep what a plan says."""
    training = task == "training"
    if plan.unsharded and "weights" in plan.offload:
        return "offload: weights needs all weights sharded; leave unsharded out"
    if "weights" in plan.offload and (plan.zero != 3 or (training and "optimizer" not in plan.offload)):
        also = ", and the optimizer's states on the host too" if training else ""
        return f"offload: weights needs zero: 3, which shares them out{also}"
    if not training and set(plan.offload) - {"weights"}:
        return "offload: only training has an optimizer and keeps activations; otherwise only weights can lie on the host"
    if plan.offload_layers and "activations" not in plan.offload:
        return "offload_layers says of how many layers the host keeps activations; give offload: activations too, or leave it out"
    if plan.schedule == "pipedream" and "optimizer" in plan.offload:
        return "offload: pipedream updates the weights after every microbatch, on the device; leave optimizer out"
    return None


def _not_far(plan: Plan, model: Transformer, task: JobTask) -> str | None:
    """Why the second memory cannot keep what a plan says."""
    training = task == "training"
    for key, what in (("far_experts", "experts"), ("far_cache", "cache")):
        percent = getattr(plan, key)
        if percent > 100:
            return f"{key} = {percent}: it is a share in percent, 100 at most"
        if percent and what not in plan.far:
            return f"{key} says what share of it lies on the second memory; give far: {what} too, or leave it out"
    if plan.far and plan.offload:
        return "far and offload: a tensor leaves main memory for the second memory or for the host; give one of the two"
    if "optimizer" in plan.far and not training:
        return "far: optimizer, but only training has one"
    if "cache" in plan.far and task not in ("decode", "prefill"):
        return "far: cache, but only a service keeps one"
    if "experts" in plan.far and not model.experts:
        return "far: experts, but the model has no experts"
    if {"weights", "experts"} & {*plan.far} and plan.zero == 3:
        return "far: weights and experts with zero: 3: shards are gathered into main memory; it is not supported, use zero: 1"
    if plan.far and plan.schedule == "pipedream":
        return "far: pipedream keeps several versions of the weights; it is not supported, use another schedule"
    return None


def _no_order(plan: Plan, batch: int) -> str | None:
    """Why passes cannot follow a schedule."""
    if plan.schedule in ("1f1b", "gpipe"):
        return None
    if plan.schedule in BIDIRECTIONAL and plan.zero > 1:
        return f"schedule: {plan.schedule} keeps all weights twice; zero = {plan.zero} is not supported with it, 0 and 1 are"
    shape = plan.pp, plan.virtual_stages, batch // (plan.dp * plan.micro_batch)
    problem = schedule_problem(plan.schedule, *shape)
    if problem is None and plan.zero == 3 and (plan.schedule == "pipedream" or pipeline_order(plan.schedule, *shape).split):
        return (
            f"zero: 3 gathers a layer's weights for each pass and shares out its gradients after it, which schedule: {plan.schedule}"
            f" keeps for later; it is not supported, use 1f1b or gpipe, or zero: 1"
        )
    return problem


def _named(plan: Plan, kind: Type) -> str:
    """Tensor degree of a layer type, as the plan says it."""
    return f"{OWN_TENSOR[kind] if getattr(plan, OWN_TENSOR[kind]) else 'tp'} = {plan.tensor_of(kind)}"


def _no_own_tensor(plan: Plan, task: JobTask) -> str | None:
    """Why layer types cannot have tensor degrees of their own.

    Experts that a service shares out within a tensor group need no tokens of each rank's own: every rank has all of them, and the sum
    behind the layer adds up what the ranks' experts give.
    """
    for kind, key in OWN_TENSOR.items():
        ranks = getattr(plan, key)
        if ranks in (0, plan.tp):  # as the plan's
            continue
        wider = kind == "experts" and ranks > plan.tp
        if wider and ranks % plan.tp:
            return f"etp = {ranks} is not divisible by tp = {plan.tp}"
        if not wider and plan.tp % ranks:
            return f"tp = {plan.tp} is not divisible by {key} = {ranks}"
        needs = f"{key} = {ranks} {'above' if wider else 'below'} tp = {plan.tp} needs"
        whole = kind == "experts" and task != "training" and _fills_tensor(plan)
        if plan.tp > 1 and not (plan.sequence_parallel or whole):
            return f"{needs} sequence_parallel: true, which gives every tensor rank tokens of its own"
        if not _lies_along(plan, kind, ranks):
            return f"{needs} dp right after tp in placement, for ranks that hold the same lie along both"
        if kind == "attention" and plan.micro_batch % (plan.tp // ranks):
            who = "each rank" if ranks == 1 else "each group"
            return f"{needs} micro_batch to divide by {plan.tp // ranks}, for {who} attends to samples of its own"
    return None


def _fills_tensor(plan: Plan) -> bool:
    """Whether the ranks of a tensor group share out all experts among themselves."""
    return plan.ep > 1 and plan.tensor_of("experts") * plan.ep == plan.tp


def _lies_along(plan: Plan, kind: Type, ranks: int) -> bool:
    """Whether a placement has room for layers of a type that `ranks` ranks share each: experts may fill just the tensor group."""
    order = _blocks_beyond_tp(plan)
    if kind == "experts":
        return order == 1 or (_fills_tensor(plan) and kind not in plan.distant)
    return order == 1 or (order == -1 and ranks == 1)


def _not_sharded(plan: Plan) -> str | None:
    """Why weights cannot be sharded over the groups of ranks that a plan says."""
    groups = {key: getattr(plan, key) for key in OWN_SHARDS.values()}
    if not (plan.apart or plan.unsharded or plan.shard_group or any(groups.values())):
        return None
    said = [key for key in ("apart", "unsharded", *groups) if getattr(plan, key)]
    if said and plan.zero != 3:
        return f"{said[0]} says how weights are sharded, which zero: 3 does"
    if plan.apart and not (plan.shard_group or any(groups.values())):
        return "apart says how ranks of a shard group lie; give shard_group too"
    for kind in plan.apart if plan.apart != TYPES and not plan.shard_group else ():
        if not groups[OWN_SHARDS[kind]]:
            return f"apart: {kind} has no shard group whose ranks could lie apart; give {OWN_SHARDS[kind]} or shard_group too"
    if plan.shard_group and (plan.zero != 3 or plan.dp % plan.shard_group):
        return f"shard_group = {plan.shard_group} needs zero: 3 and must divide dp = {plan.dp}"
    for kind in plan.unsharded:
        if groups[OWN_SHARDS[kind]]:
            return f"unsharded: {kind} leaves its weights whole, but {OWN_SHARDS[kind]} = {groups[OWN_SHARDS[kind]]} shards them"
    for kind, key in OWN_SHARDS.items():
        same = plan.tp * plan.dp * plan.cp // (plan.tensor_of(kind) * (plan.ep if kind == "experts" else 1))
        if groups[key] and same % groups[key]:
            return f"{same} ranks hold the same of {kind}, which are not divisible by {key} = {groups[key]}"
    return None


def _several(plan: Plan) -> list[RankBlock]:
    """Blocks of more than one rank in the order in which they lie."""
    sizes = {"tp": plan.tp, "dp": plan.dp * plan.cp, "pp": plan.pp}
    return [block for block in plan.placement if sizes[block] > 1]


def _blocks_beyond_tp(plan: Plan) -> int:
    """Where the block of data ranks lies behind that of tensor ranks, of those of more than one rank; 1 where either is alone."""
    order = _several(plan)
    return order.index("dp") - order.index("tp") if "tp" in order and "dp" in order else 1


def _not_distant(plan: Plan) -> str | None:
    """Why ranks of layer types cannot lie the other way round; whether they may lie along data ranks, `_no_own_tensor` says."""
    for kind in plan.distant:
        ranks = plan.tensor_of(kind)
        if ranks == 1 and not (kind == "experts" and plan.ep > 1):
            return f"distant: {kind} is not shared by several ranks ({_named(plan, kind)}), so that none can lie far apart"
        if ranks == plan.tp and not (kind == "experts" and plan.ep > 1):
            return f"distant: {kind} has no copies within a tensor group that could lie nearer than what shares it ({_named(plan, kind)})"
        if ranks > 1 and plan.dp * plan.cp > 1:
            return (
                f"distant: {kind} with {_named(plan, kind)} would share each layer among ranks of other replicas; give tp all the ranks"
                f" (dp x cp = {plan.dp} x {plan.cp})"
            )
    return None


# -------------------------------------------------------------------------------------------- listing


def legal_plans(
    model: Transformer,
    devices: int,
    batch: int,
    *,
    node: int,
    task: JobTask = "training",
    zeros: Sequence[int] = (0, 1, 2, 3),
    micro_batches: Sequence[int] = MICRO_BATCHES,
    virtual_stages: Sequence[int] = (1, 2, 3, 4, 6, 8),
    again: Sequence[Again] | None = None,
    placed: bool = False,
) -> Iterator[Plan]:
    """Plans that use all devices and divide model and batch evenly, data parallelism first.

    Parameters
    ----------
    model, devices, batch : what is divided: a model, over how many devices, with how many samples a step.
    node : devices of one node, which a tensor group does not leave.
    task : training; any other has nothing to recompute, to shard (but weights), to interleave.
    zeros, micro_batches, virtual_stages, again : options to try; all `levels` of recomputation where it is None.
    placed : whether each plan is listed in every order of its ranks on the devices, not in the default order only.

    Notes
    -----
    Sequence parallelism goes with tensor parallelism, both ways are listed. Sharded weights (zero 3) are listed without a
    pipeline only, with which they are gathered for every microbatch and stage. Experts that are shared out are cut as layers
    are, or not at all. Chunks of interleaved stages have as many layers each, but in pipelines whose stages do not divide the layers
    in any case: there they are as even as whole layers allow. Context parallelism is listed for long samples alone, of which each rank
    keeps `SLICE` tokens or more: shorter slices pay more for messages than they save, and such plans can be given, as other degrees of
    experts and layers of stages.
    """
    training = task == "training"
    repeated = (NOTHING,) if not training else levels(model) if again is None else again
    shardings = zeros if training else tuple(zero for zero in zeros if zero in (0, 3))
    for (pp, tp, ep, etp), cp in itertools.product(_degrees(model, devices, node, task), _context_degrees(model, devices, task)):
        dp, over = divmod(devices, pp * tp * cp)
        if over or batch % dp or (dp * cp * (tp if etp else 1)) % ep:
            continue
        # A service takes as many requests at once as it likes.
        for micro in micro_batches if training else divisors(batch // dp):
            if (batch // dp) % micro:
                continue
            copies = -max(model.experts, default=0) % ep
            degrees: dict[str, Any] = {
                "tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp, "micro_batch": micro, "redundant_experts": copies,
            }  # fmt: skip
            tokens = (*model.lengths, micro) if task == "decode" else model.lengths  # a service divides its prompts too
            whole = not etp or (not training and ep * etp == tp)  # ranks may have all tokens each
            divided = (True,) if not whole else (False, True) if tp > 1 and not any(some % tp for some in tokens) else (False,)
            if plan_problem(Plan(**degrees, sequence_parallel=divided[0]), model, batch, task=task) is not None:
                continue
            chunks = _chunks(model.depth, pp, virtual_stages if training else (1,), batch // dp // micro)
            for v, zero, sp, level in itertools.product(chunks, shardings, divided, repeated):
                if not (zero and dp * cp == 1) and not (zero == 3 and pp > 1):
                    plan = Plan(**degrees, virtual_stages=v, zero=zero, sequence_parallel=sp, **level.options)
                    yield from (plan, *_replaced(plan)) if placed else (plan,)


def neighbouring_plans(
    plan: Plan, model: Transformer, batch: int, *, node: int, task: JobTask = "training", balanced: bool = False, elements: bool = False,
    fused: bool = False,
) -> tuple[Plan, ...]:  # fmt: skip
    """Plans on as many devices that divide model and batch too and are one change away.

    The change is a degree that grows by the smallest factor by which another can shrink, another number of ranks for the experts, of
    samples in a microbatch or of chunks in a stage, another order of the ranks on the devices, or another option. A service that takes
    all requests of a replica at once goes on to. With `fused` attention nothing computes scores again.
    """
    training = task == "training"
    whole = not training and plan == plan.serving(batch)

    def settled(changed: Plan) -> Plan:
        """The change with a service's microbatch, where the change is not about that."""
        moved = whole and changed.micro_batch == plan.micro_batch and batch % changed.dp == 0
        return changed.serving(batch) if moved else changed

    found = [settled(changed) for changed in _moved(plan, bool(model.experts), levels(model, fused=fused), training=training)]
    return tuple(
        changed
        for changed in dict.fromkeys([*found, *(() if training else (plan.serving(batch),))])
        if changed != plan and (changed.tp <= node or changed.tp <= plan.tp)
        and plan_problem(changed, model, batch, balanced=balanced, elements=elements, task=task) is None
    )  # fmt: skip


def _moved(plan: Plan, experts: bool, again: Sequence[Again], *, training: bool) -> Iterator[Plan]:
    """Every change of one kind, whether the result divides anything or not."""
    for more, less in itertools.permutations(("tp", "cp", "dp", "pp"), 2):
        for factor in divisors(getattr(plan, less))[1:2]:  # the smallest prime, none of 1
            moved = plan.but(**{more: getattr(plan, more) * factor, less: getattr(plan, less) // factor})
            yield replace(moved, sequence_parallel=moved.tp > 1 and (plan.sequence_parallel or plan.tp == 1))
    if experts and not training and plan.ep > 1:  # as many more places on every rank, or fewer
        copies = plan.redundant_experts
        yield from (replace(plan, redundant_experts=count) for count in (copies + plan.ep, copies - plan.ep, 0) if count >= 0)
    for name in ("ep", "micro_batch", "virtual_stages"):
        number = getattr(plan, name)
        if (name == "ep" and not experts) or (name == "virtual_stages" and (plan.pp == 1 or not training)):
            continue
        yield plan.but(**{name: 2 * number})
        if number % 2 == 0:
            yield plan.but(**{name: number // 2})
    yield from _replaced(plan)
    if plan.tp > 1:
        yield replace(plan, sequence_parallel=not plan.sequence_parallel)
    if plan.dp > 1:
        yield from (replace(plan, zero=zero) for zero in ((0, 1, 2, 3) if training else (0, 3)))
    if training:
        some = plan.recompute_layers
        yield from (replace(level.of(plan), recompute_layers=some if level.recompute == "full" else 0) for level in again)
    if training and plan.pp > 1 and plan.schedule in SCHEDULES:
        rules = [rule for rule in SCHEDULES if rule != "pipedream" and (plan.virtual_stages == 2 or rule not in FOLDED)]
        yield from (replace(plan, schedule=rule) for rule in rules)  # steps of pipedream are of other weights


def _replaced(plan: Plan) -> Iterator[Plan]:
    """The plan in every other order of its ranks on the devices."""
    return (replace(plan, placement=order) for order in _orders(plan))


def _orders(plan: Plan) -> Iterator[tuple[RankBlock, ...]]:
    """Orders of the blocks of ranks on the devices that differ where blocks have several ranks."""
    several = _several(plan)
    single = [block for block in plan.placement if block not in several]
    yield from ((*order, *single) for order in itertools.permutations(several) if list(order) != several)


def _context_degrees(model: Transformer, devices: int, task: JobTask) -> list[int]:
    """Context degrees to try: 1, and for long samples the divisors of the devices that leave each rank a slice of tokens."""
    tokens = max(int(layer.tokens) for layer in model.layers) if task in ("training", "forward") else 0
    return [cp for cp in divisors(devices) if cp == 1 or tokens // cp >= SLICE]


def _degrees(model: Transformer, devices: int, node: int, task: JobTask) -> Iterator[tuple[int, int, int, int]]:
    """Pipeline, tensor and expert degrees to try, and 1 where experts are not cut over the tensor ranks.

    A service may share experts out over all ranks of a stage, which need not divide them: some then have copies.
    """
    experts = [part.routing.experts for layer in model.layers for part in layer.parts if part.routing]
    spread = divisors(experts[0]) if experts else [1]
    for pp in divisors(devices):
        if pp > model.depth:
            break
        every = devices // pp
        wide = task in ("prefill", "decode") and len(spread) > 1 and every not in spread and every < experts[0]
        for tp in divisors(every):
            if tp <= node:
                yield from ((pp, tp, ep, etp) for ep in spread for etp in ((0, 1) if ep > 1 and tp > 1 else (0,)))
                yield from ((pp, tp, every, int(tp > 1)) for _ in range(wide))


def _chunks(depth: int, pp: int, tried: Sequence[int], microbatches: int) -> list[int]:
    """Numbers of chunks of a stage to list: one, and those that divide the layers; all that none is idle of, where stages do not either."""
    interleaved = pp > 1 and microbatches % pp == 0
    several = [v for v in tried if (pp * v <= depth + 2 if depth % pp else depth % (pp * v) == 0)] if interleaved else []
    return [v for v in tried if v == 1 or v in several]
