"""Every plan that a number of devices, a model and a batch allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from crossflow.parallel.legality import plan_problem
from crossflow.parallel.plan import RECOMPUTE, Plan, divisors
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
) -> tuple[Plan, ...]:
    """Plans that use all devices and divide model and batch evenly, data parallelism first.

    Parameters
    ----------
    model, devices, batch : what is divided: a model, over how many devices, with how many samples a step.
    node : devices of one node, which a tensor group does not leave.
    task : training; any other has nothing to recompute, to shard (but weights), to interleave.
    zeros, micro_batches, virtual_stages : options to try.

    Notes
    -----
    Sequence parallelism goes with tensor parallelism, both ways are listed. Sharded weights (zero 3) are listed without a
    pipeline only, with which they are gathered for every microbatch and stage. Experts that are shared out are cut as layers
    are, or not at all. Context parallelism is left out: it pays for long sequences alone, and such plans can be given, as other
    degrees of experts and placements.
    """
    training = task == "training"
    recompute = RECOMPUTE if training else ("none",)
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
            chunks = [v for v in (virtual_stages if training else (1,)) if v == 1 or _interleaves(model, pp, v, batch // dp // micro)]
            tokens = {micro} if task == "decode" else {layer.tokens for layer in model.layers}
            divided = (True,) if etp else (False, True) if tp > 1 and not any(some % tp for some in tokens) else (False,)
            options = itertools.product(chunks, shardings, divided, recompute)
            found += [
                replace(first, virtual_stages=v, zero=zero, sequence_parallel=sp, recompute=again)
                for v, zero, sp, again in options
                if not (zero and dp == 1) and not (zero == 3 and pp > 1)
            ]
    return tuple(found)


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


def _interleaves(model: Transformer, pp: int, chunks: int, microbatches: int) -> bool:
    return pp > 1 and model.depth % (pp * chunks) == 0 and microbatches % pp == 0
