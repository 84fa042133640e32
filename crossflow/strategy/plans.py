"""Every plan that a number of devices, a model and a batch allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from crossflow.strategy.legality import plan_problem
from crossflow.strategy.plan import RECOMPUTE, Plan, Recompute, divisors
from crossflow.strategy.schedules import RULES
from crossflow.workload.job import Task
from crossflow.workload.transformer import Transformer

MICRO_BATCHES = (1, 2, 4, 8, 16)


def legal_plans(
    model: Transformer,
    devices: int,
    batch: int,
    *,
    node: int,
    task: Task = "training",
    zeros: Sequence[int] = (0, 1, 2, 3),
    micro_batches: Sequence[int] = MICRO_BATCHES,
    virtual_stages: Sequence[int] = (1, 2, 3, 4, 6, 8),
    recompute: Sequence[Recompute] = RECOMPUTE,
) -> tuple[Plan, ...]:
    """Plans that use all devices and divide model and batch evenly, data parallelism first.

    Parameters
    ----------
    model, devices, batch : what is divided: a model, over how many devices, with how many samples a step.
    node : devices of one node, which a tensor group does not leave.
    task : training; any other has nothing to recompute, to shard (but weights), to interleave.
    zeros, micro_batches, virtual_stages, recompute : options to try.

    Notes
    -----
    Sequence parallelism goes with tensor parallelism, both ways are listed. Sharded weights (zero 3) are listed without a
    pipeline only, with which they are gathered for every microbatch and stage. Experts that are shared out are cut as layers
    are, or not at all. Chunks of interleaved stages have as many layers each, but in pipelines whose stages do not divide the layers
    in any case: there they are as even as whole layers allow. Context parallelism is left out: it pays for long sequences alone, and such
    plans can be given, as other degrees of experts, placements and layers of stages.
    """
    training = task == "training"
    repeated = recompute if training else ("none",)
    shardings = zeros if training else tuple(zero for zero in zeros if zero in (0, 3))
    found: list[Plan] = []
    for pp, tp, ep, etp in _degrees(model, devices, node):
        dp = devices // (pp * tp)
        if batch % dp or (dp * (tp if etp else 1)) % ep:
            continue
        # A service takes as many requests at once as it likes.
        for micro in micro_batches if training else divisors(batch // dp):
            if (batch // dp) % micro:
                continue
            first = Plan(tp=tp, pp=pp, dp=dp, ep=ep, etp=etp, micro_batch=micro, sequence_parallel=etp > 0)
            if plan_problem(first, model, batch, task=task) is not None:
                continue
            chunks = _chunks(model.depth, pp, virtual_stages if training else (1,), batch // dp // micro)
            tokens = {micro} if task == "decode" else {layer.tokens for layer in model.layers}
            divided = (True,) if etp else (False, True) if tp > 1 and not any(some % tp for some in tokens) else (False,)
            options = itertools.product(chunks, shardings, divided, repeated)
            found += [
                replace(first, virtual_stages=v, zero=zero, sequence_parallel=sp, recompute=again)
                for v, zero, sp, again in options
                if not (zero and dp == 1) and not (zero == 3 and pp > 1)
            ]
    return tuple(found)


def neighbouring_plans(
    plan: Plan, model: Transformer, batch: int, *, node: int, task: Task = "training", balanced: bool = False
) -> tuple[Plan, ...]:
    """Plans on as many devices that divide model and batch too and are one change away.

    The change is a degree that grows by the smallest factor by which another can shrink, another number of ranks for the experts, of
    samples in a microbatch or of chunks in a stage, or another option. A service that takes all requests of a replica at once goes on to.
    """
    training = task == "training"
    whole = not training and plan == plan.serving(batch)

    def settled(changed: Plan) -> Plan:
        """The change with a service's microbatch, where the change is not about that."""
        moved = whole and changed.micro_batch == plan.micro_batch and batch % changed.dp == 0
        return changed.serving(batch) if moved else changed

    found = [settled(changed) for changed in _moved(plan, bool(model.experts), training=training)]
    return tuple(
        changed
        for changed in dict.fromkeys([*found, *(() if training else (plan.serving(batch),))])
        if changed != plan and (changed.tp <= node or changed.tp <= plan.tp)
        and plan_problem(changed, model, batch, balanced=balanced, task=task) is None
    )  # fmt: skip


def _moved(plan: Plan, experts: bool, *, training: bool) -> Iterator[Plan]:
    """Every change of one kind, whether the result divides anything or not."""
    for more, less in itertools.permutations(("tp", "cp", "dp", "pp"), 2):
        for factor in divisors(getattr(plan, less))[1:2]:  # the smallest prime, none of 1
            moved = plan.but(**{more: getattr(plan, more) * factor, less: getattr(plan, less) // factor})
            yield replace(moved, sequence_parallel=moved.tp > 1 and (plan.sequence_parallel or plan.tp == 1))
    for name in ("ep", "micro_batch", "virtual_stages"):
        number = getattr(plan, name)
        if (name == "ep" and not experts) or (name == "virtual_stages" and (plan.pp == 1 or not training)):
            continue
        yield plan.but(**{name: 2 * number})
        if number % 2 == 0:
            yield plan.but(**{name: number // 2})
    if plan.tp > 1:
        yield replace(plan, sequence_parallel=not plan.sequence_parallel)
    if plan.dp > 1:
        yield from (replace(plan, zero=zero) for zero in ((0, 1, 2, 3) if training else (0, 3)))
    if training:
        yield from (replace(plan, recompute=recompute) for recompute in RECOMPUTE)
    if training and plan.pp > 1 and plan.schedule in RULES:
        yield from (replace(plan, schedule=rule) for rule in RULES if rule != "pipedream")  # whose steps are of other weights


def _degrees(model: Transformer, devices: int, node: int) -> Iterator[tuple[int, int, int, int]]:
    """Pipeline, tensor and expert degrees to try, and 1 where experts are not cut over the tensor ranks."""
    experts = [part.routing.experts for layer in model.layers for part in layer.parts if part.routing]
    spread = divisors(experts[0]) if experts else [1]
    for pp in divisors(devices):
        if pp > model.depth:
            break
        for tp in divisors(devices // pp):
            if tp <= node:
                yield from ((pp, tp, ep, etp) for ep in spread for etp in ((0, 1) if ep > 1 and tp > 1 else (0,)))


def _chunks(depth: int, pp: int, tried: Sequence[int], microbatches: int) -> list[int]:
    """Numbers of chunks of a stage to list: one, and those that divide the layers; all that none is idle of, where stages do not either."""
    interleaved = pp > 1 and microbatches % pp == 0
    several = [v for v in tried if (pp * v <= depth + 2 if depth % pp else depth % (pp * v) == 0)] if interleaved else []
    return [v for v in tried if v == 1 or v in several]
