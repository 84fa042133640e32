"""Images in the prompts of a service: a model of images turns each into tokens before the model of words reads these.

The tower runs on the devices that read the prompts, which wait for it: on as many of them as share an image, all others with images of
their own [1]_. In the steady state, and in a table of steps, images lie evenly in prompts, so that a step which reads a part of a prompt
has as large a part of its images; a step with less than one image stands for several, of which some have one. On the stages of a pipeline
the first one encodes.

References
----------
.. [1] vLLM, docs/configuration/optimization, "Batch-level DP for Multi-Modal Encoders": `--mm-encoder-tp-mode` weights or data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from crossflow.base.arrays import Array
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import ACTIVATIONS, WEIGHTS, Memory, memory
from crossflow.engine.runs.outcome import Outcome, merged
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import ImageTower, Job

StepOf = Callable[[Job, Layout, Machine, Memory | None], Outcome]
# Of an outcome what is told of the model of words alone.
KEPT = (
    "memory", "problems", "measured", "model_flops", "host_memory", "host_capacity", "second_memory", "second_capacity", "capacity",
    "least",
)  # fmt: skip


def added(one: Outcome, other: Outcome, often: Array | float) -> Outcome:
    """One step and another one so many times after it."""
    return merged(one, other, lambda first, second: first + often * second, KEPT)


def encoded(step_of: StepOf, step: Outcome, job: Job, layout: Layout, machine: Machine, tokens: Array | float) -> Outcome:
    """A step that reads so many tokens of prompts in each replica, with the images in them before it; `step_of` prices a step."""
    if job.tower is None:
        return step
    images = job.tower.often * tokens * np.ones(len(layout))
    beside = _beside(job.tower, layout, images)
    whole = np.maximum(beside.micro_batch, 1.0)
    encoding = step_of(job.tower.job, replace(beside, micro_batch=whole), machine, None)
    return added(step, encoding, beside.micro_batch / whole)


def with_tower(held: Memory, job: Job, layout: Layout, machine: Machine, tokens: Array | float) -> Memory:
    """What devices hold, with the weights of the model of images on the first stage, and what it needs while it runs: for as many images
    as so many tokens of prompts can be, at least one.
    """
    if job.tower is None:
        return held
    beside = _beside(job.tower, layout, tokens / job.tower.tokens * np.ones(len(layout)))
    beside = replace(beside, micro_batch=np.maximum(beside.micro_batch, 1.0))
    its, stages = memory(job.tower.job, beside, machine), held.stages.copy()
    stages[WEIGHTS, 0] += its.stages[WEIGHTS, 0]
    stages[ACTIVATIONS, 0] = np.maximum(stages[ACTIVATIONS, 0], its.stages[ACTIVATIONS, 0])
    return replace(held, stages=stages)


def _beside(tower: ImageTower, layout: Layout, images: Array) -> Layout:
    """Where a model of images runs in every replica: groups of devices, each with its share of the images of a step."""
    together = np.where(np.asarray(tower.tp) > 0, tower.tp, layout.tp)
    pairs = [*zip(together.tolist(), (layout.tp / together).tolist(), layout.dp.tolist(), strict=True)]
    plans = {one: Plan(tp=int(one[0]), dp=int(one[1] * one[2])) for one in dict.fromkeys(pairs)}
    ones = np.ones(len(layout))
    found = Layout.of([plans[one] for one in pairs], ones, layout.node)
    return replace(found, micro_batch=images * together / layout.tp, microbatches=ones)
