"""Steps of a service whose tokens a draft model guesses: so many steps of the small model before one of the large model checks them.

The draft model runs on devices of the replica, one step for each token that is guessed, for all requests that write; pieces of prompts
that the large model reads beside are read in the first of its steps too [1]_. It keeps weights and a cache of its own on these devices.
Where it runs on fewer devices than the large model, the others wait, and the fullest device holds both.

Requests that are guided (by a grammar, or a schema) need a mask of the tokens that may come next, which the host fills for one request
after the other, beside the kernels of the step or before them [2]_. The same host prepares steps: while the one before runs, where the
engine schedules asynchronously, so that a step takes the longer of device and host [3]_; else between two steps.

Requests that draw among their likeliest tokens (top-k, top-p) need these found among all logits, which every rank of a replica does when
the layers are through. PyTorch sorts them [4]_; kernels made for it search for the least logit that counts.

References
----------
.. [1] Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, Algorithm 1.
.. [2] Dong et al., "XGrammar: Flexible and Efficient Structured Generation Engine for Large Language Models", 2024, Sec. 3.5.
.. [3] Zhu et al., "NanoFlow: Towards Optimal Large Language Model Serving Throughput", OSDI 2025, on asynchronous scheduling.
.. [4] vLLM, v1/sample/ops/topk_topp_sampler.py, `apply_top_k_top_p_pytorch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import CACHE, WEIGHTS, Memory, memory
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.towers import StepOf, added, encoded
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Draft, Job


def service_step(step_of: StepOf, job: Job, layout: Layout, machine: Machine, held: Memory) -> Outcome:
    """A step of a service, with those of its draft model and with the work of its host; `step_of` prices a step of one model."""
    step = drafted(step_of, job, layout, machine, held)
    return hosted(step, HostWork.of(job, layout, machine.stack), layout.micro_batch * layout.microbatches)


@dataclass(frozen=True, kw_only=True, eq=False)
class HostWork:
    """What the host does before the kernels of a step, and beside them: of the step, and of each request that it writes for, shape (n,).

    Beside them stands what the device does to draw tokens among the likeliest ones, after the layers.
    """

    before: tuple[Array, Array]  # [s]
    beside: tuple[Array, Array]  # [s]
    draw: Array = field(default_factory=lambda: np.zeros(1))  # time of the device for each token that is drawn, on all ranks alike. [s]
    drawn: Array = field(default_factory=lambda: np.ones(1))  # tokens that are drawn for a request in a step. [1]

    @classmethod
    def of(cls, job: Job, layout: Layout, stack: SoftwareStack) -> HostWork:
        """Of steps with plans, of which every stage has a microbatch that is prepared; masks are for all tokens of a request."""
        beside, batches = asynchronous(job, layout, stack), np.minimum(layout.microbatches, layout.pp)
        own = stack.host.schedule * batches, stack.host.request
        masks = job.mask * job.written
        return cls(
            before=(np.where(beside, 0.0, own[0]), np.where(beside, 0.0, own[1]) + masks * (not job.masks_beside)),
            beside=(np.where(beside, own[0], 0.0), np.where(beside, own[1], 0.0) + masks * job.masks_beside),
            draw=np.asarray(job.likeliest * job.model.vocabulary * stack.engine.selecting), drawn=np.asarray(job.written),
        )  # fmt: skip

    @property
    def nothing(self) -> bool:
        """Whether it takes no time."""
        return not any(np.any(time) for time in (*self.before, *self.beside, self.draw))

    @property
    def ahead(self) -> tuple[Array, Array]:
        """What passes before the kernels of a step, with the draw of the tokens of the step before."""
        return self.before[0], self.before[1] + self.drawn * self.draw


def asynchronous(job: Job, layout: Layout, stack: SoftwareStack) -> Mask:
    """Whether the engine prepares steps while those before run, shape (n,)."""
    engine = stack.engine
    found: dict[str, Mask | bool] = {
        "stages": layout.pp > 1.0, "speculation": job.written > 1, "draft": job.draft is not None, "guided": bool(np.any(job.mask > 0.0)),
    }  # fmt: skip
    one_by_one = np.any([np.broadcast_to(found[what], len(layout)) for what in engine.synchronous_with], axis=0)
    return np.asarray(engine.asynchronous & ~np.broadcast_to(one_by_one, len(layout)))


def hosted(step: Outcome, work: HostWork, requests: Array) -> Outcome:
    """A step with what its host does: it does not sample before the masks of all requests that write are there, one after the other, and
    the next one does not begin before it is prepared.
    """
    if work.nothing:
        return step
    beside, before = (fixed + each * requests for fixed, each in (work.beside, work.before))
    more, drawing = np.maximum(beside - step.total, 0.0) + before, work.drawn * work.draw * requests
    of_host, of_device = (step.bound.get(name, np.zeros(1)) for name in ("host", "compute"))
    return replace(
        step, total=step.total + more + drawing, breakdown={**step.breakdown, "other": step.breakdown["other"] + more + drawing},
        bound={**step.bound, "host": of_host + more, "compute": of_device + drawing},
    )  # fmt: skip


def drafted(step_of: StepOf, job: Job, layout: Layout, machine: Machine, held: Memory) -> Outcome:
    """A step with those of the draft model before it, and with the images of the prompts that it reads, without the work of the host."""
    step, draft = step_of(job, layout, machine, held), job.draft
    if job.chunk is not None:
        step = encoded(step_of, step, job, layout, machine, job.chunk.tokens * layout.microbatches)
    if draft is None:
        return step
    beside, small = _beside(draft, layout), draft.job
    chunk = None if job.chunk is None else replace(job.chunk, pieces=job.chunk.pieces * layout.microbatches)
    plain = step_of(replace(small, chunk=None), beside, machine, None)
    first = plain if chunk is None else step_of(replace(small, chunk=chunk), beside, machine, None)
    return added(added(step, first, 1.0), plain, job.written - 2.0)


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
