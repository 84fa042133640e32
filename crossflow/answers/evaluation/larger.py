"""What would make a model fit that no change of its plan does on as many devices: more devices, or fewer requests at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import Memory, memory
from crossflow.engine.runs.transformer import transformer_step
from crossflow.parallel.batches import laid_out
from crossflow.parallel.strategy.again import further_levels
from crossflow.parallel.strategy.legality import plan_problem
from crossflow.parallel.strategy.mesh import divisors
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Job

MOST = 256  # times as many devices, at most, that are asked for


def fewer_requests(job: Job, plan: Plan, batch: int, machine: Machine) -> tuple[int, Plan, float] | None:
    """The most requests at once that fit a service, its plan for them, and the memory to spare [B]; None where no fewer do.

    Requests that divide over replicas, stages and, with sequence parallelism, tensor ranks, or over replicas where no such do.
    """

    def held(requests: int) -> Memory:
        return memory(job, laid_out(job, [plan.serving(requests)], np.array([float(requests)]), machine.node, machine.stack), machine)

    for unit in dict.fromkeys((plan.dp * plan.pp * (plan.tp if plan.sequence_parallel else 1), plan.dp)):
        low, high = 0, (batch - 1) // unit
        while low < high:  # more requests need more memory
            middle = (low + high + 1) // 2
            low, high = (middle, high) if held(middle * unit).fits[0] else (low, middle - 1)
        requests = low * unit
        if requests and possible(job, plan.serving(requests), requests, machine):
            return requests, plan.serving(requests), float(held(requests).spare[0])
    return None


def more_devices(job: Job, plan: Plan, batch: int, machine: Machine) -> tuple[Plan, float] | None:
    """A plan that fits on more devices, and the memory to spare [B]; None where none is found on `MOST` times as many.

    Devices are doubled until one does: the fastest of those with larger degrees, and with more recomputation, sharding or a smaller
    microbatch where it trains.
    """
    factor = 2
    while factor <= MOST:
        grown = [
            larger
            for one in _variants(plan, job, fused=machine.stack.attention.kernel == "flash")
            for larger in _grown(one, factor, job, batch)
            if (larger.devices <= machine.node or larger.devices % machine.node == 0) and possible(job, larger, batch, machine)
        ]
        if grown:
            layout = laid_out(job, grown, np.full(len(grown), float(batch)), machine.node, machine.stack)
            found = memory(job, layout, machine)
            fits = np.flatnonzero(found.fits)
            if fits.size:
                best = int(fits[transformer_step(job, layout.at(fits), machine, found.at(fits)).total.argmin()])
                return grown[best], float(found.spare[best])
        factor *= 2
    return None


def possible(job: Job, plan: Plan, batch: int, machine: Machine) -> bool:
    """Whether a plan divides a job's model with a global batch."""
    stack = machine.stack
    balanced, elements = stack.stages == "balanced", stack.residual == "elements"
    return plan_problem(plan, job.model, batch, balanced=balanced, elements=elements, task=job.task) is None


def _variants(plan: Plan, job: Job, *, fused: bool) -> Iterator[Plan]:
    """The plan with what a training step can do to need less memory on the same ranks."""
    if not job.training:
        yield plan
        return
    again = plan, *(level.of(plan) for level in further_levels(plan, job.model, fused=fused))
    for one, zero, micro in itertools.product(again, range(plan.zero, 4), dict.fromkeys((plan.micro_batch, 1))):
        yield replace(one, zero=zero, micro_batch=micro)


def _grown(plan: Plan, factor: int, job: Job, batch: int) -> Iterator[Plan]:
    """The plan on `factor` times as many devices, with larger tensor, pipeline, data and, with data, expert degrees."""
    for tensor in divisors(factor):
        for pipeline in divisors(factor // tensor):
            data = factor // (tensor * pipeline)
            for experts in dict.fromkeys((1, data)):
                grown = plan.but(
                    tp=plan.tp * tensor,
                    pp=plan.pp * pipeline,
                    dp=plan.dp * data,
                    ep=plan.ep * experts,
                    sequence_parallel=plan.sequence_parallel or (tensor > 1 and job.training),
                )
                yield grown if job.training else grown.serving(batch)
