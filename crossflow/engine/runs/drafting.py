"""Steps of a service whose tokens a draft model guesses: so many steps of the small model before one of the large model checks them.

The draft model runs on devices of the replica, one step for each token that is guessed, for all requests that write; pieces of prompts
that the large model reads beside are read in the first of its steps too [1]_. It keeps weights and a cache of its own on these devices.
Where it runs on fewer devices than the large model, the others wait, and the fullest device holds both.

Requests that are guided (by a grammar, or a schema) need a mask of the tokens that may come next, which the host fills for one request
after the other, beside the kernels of the step or before them [2]_.

References
----------
.. [1] Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, Algorithm 1.
.. [2] Dong et al., "XGrammar: Flexible and Efficient Structured Generation Engine for Large Language Models", 2024, Sec. 3.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from crossflow.base.arrays import Array
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import CACHE, WEIGHTS, Memory, memory
from crossflow.engine.runs.outcome import Outcome, merged
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Draft, Job

StepOf = Callable[[Job, Layout, Machine, Memory | None], Outcome]
# Of an outcome what is told of the large model alone.
KEPT = (
    "memory", "problems", "measured", "model_flops", "host_memory", "host_capacity", "second_memory", "second_capacity", "capacity",
    "least",
)  # fmt: skip


def service_step(step_of: StepOf, job: Job, layout: Layout, machine: Machine, held: Memory) -> Outcome:
    """A step of a service, with those of its draft model and with masks of its host; `step_of` prices a step of one model."""
    step = step_of(job, layout, machine, held)
    if job.draft is not None:
        step = _drafted(step_of, step, job, job.draft, layout, machine)
    return guided(step, job, layout.micro_batch * layout.microbatches)


def guided(step: Outcome, job: Job, requests: Array) -> Outcome:
    """A step that does not sample before its host has the masks of all requests that write, one after the other, for all their tokens."""
    if np.all(job.mask == 0.0):
        return step
    host = job.mask * job.written * requests
    more = np.maximum(host - step.total, 0.0) if job.masks_beside else host
    return replace(
        step, total=step.total + more, breakdown={**step.breakdown, "other": step.breakdown["other"] + more},
        bound={**step.bound, "host": step.bound.get("host", np.zeros(1)) + more},
    )  # fmt: skip


def _drafted(step_of: StepOf, step: Outcome, job: Job, draft: Draft, layout: Layout, machine: Machine) -> Outcome:
    """A step with those of the draft model before it."""
    beside, small = _beside(draft, layout), draft.job
    chunk = None if job.chunk is None else replace(job.chunk, pieces=job.chunk.pieces * layout.microbatches)
    plain = step_of(replace(small, chunk=None), beside, machine, None)
    first = plain if chunk is None else step_of(replace(small, chunk=chunk), beside, machine, None)
    return _added(_added(step, first, 1.0), plain, job.written - 2.0)


def with_draft(held: Memory, job: Job, layout: Layout, machine: Machine) -> Memory:
    """What devices hold, with weights and cache of the draft model."""
    if job.draft is None:
        return held
    its, stages = memory(job.draft.job, _beside(job.draft, layout), machine), held.stages.copy()
    for kind in (WEIGHTS, CACHE):
        stages[kind] += its.stages[kind]
    return replace(held, stages=stages)


def _beside(draft: Draft, layout: Layout) -> Layout:
    """Where a draft model runs: in every replica, on some of its devices or on all, with all its requests at once."""
    degrees = np.where(np.asarray(draft.tp) > 0, draft.tp, layout.tp)
    pairs = [*zip(degrees.tolist(), layout.dp.tolist(), strict=True)]
    plans = {pair: Plan(tp=int(pair[0]), dp=int(pair[1])) for pair in dict.fromkeys(pairs)}
    each = [plans[pair] for pair in pairs]
    ones = np.ones(len(layout))
    return replace(Layout.of(each, ones, layout.node), micro_batch=layout.micro_batch * layout.microbatches, microbatches=ones)


def _added(one: Outcome, other: Outcome, often: Array | float) -> Outcome:
    """One step and another one so many times after it."""
    return merged(one, other, lambda first, second: first + often * second, KEPT)
