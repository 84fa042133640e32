"""Tables of what the steps of a service take, filled with the times of a transformer's step: all points in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, wide
from crossflow.cost.machine import Machine
from crossflow.engine.runs.apart import ExpertPool, PooledStep
from crossflow.engine.runs.arriving import sent_outside
from crossflow.engine.runs.drafting import HostWork, asynchronous, drafted, hosted
from crossflow.engine.runs.memory import memory
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.transformer import transformer_step
from crossflow.engine.service.steps import StepTable
from crossflow.parallel.strategy.layout import Layout
from crossflow.workload.job import Chunk, Job

NOBODY = 1e-3  # requests that stand for none, of which a step cannot be priced. [1]
# Points of an axis for each doubling of what it counts, and the number up to which every one is a point.
FINE, COARSE, EACH = 3.0, 1.5, 8
SEVERAL = (1, 2, 3)  # prompts of a frequent length that a microbatch reads at once, which are points. [1]


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far a trace goes in a table."""

    requests: int  # that write at once, at most. [1]
    context: int  # tokens of the longest request. [1]
    tokens: int  # of prompts that a step reads, at most. [1]
    # Tokens of prompts that most requests have, where these have few lengths: times of steps that read rise in steps (tiles of a product),
    # and a straight line between points that lie around such a step misses it by up to a tenth. [1]
    lengths: tuple[int, ...] = ()
    parts: int = 1  # microbatches of a step, all of which a point of the table has read as much. [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Replicas:
    """What a replica runs on: of one point."""

    job: Job  # writing of tokens
    layout: Layout
    machine: Machine
    microbatches: float  # of a step. [1]
    drafts: float = 0.0  # time of guessing in a step, over that of the step. [1]
    experts: ExpertPool | None = None  # devices of their own for the experts, where replicas share some
    # Of those that make every step together, share out experts and only read; each is one of so many. [1]
    ranks: int = 1

    @property
    def host(self) -> HostWork:
        """What the host does for a step, which is of requests, not of graphs that are padded."""
        return HostWork.of(self.job, self.layout, self.machine.stack)

    @property
    def ahead(self) -> bool:
        """Whether a step is scheduled while the one before runs; on stages as many microbatches as these are in flight anyway."""
        return bool(asynchronous(self.job, self.layout, self.machine.stack)[0] and self.layout.pp[0] == 1.0)


def _axis(most: float, *, least: float, each: float) -> Array:
    """Points from `least` to `most`, so many for each doubling, all of them whole; two at least."""
    most = max(most, least + 1.0)
    count = max(int(np.ceil(each * np.log2(most / least))) + 1, 2)
    return np.unique(np.round(np.geomspace(least, most, count)))


PricedStep = tuple[Outcome, PooledStep | None]  # of a replica, with what devices of the experts do in it, where these are others


def step_table(replicas: Replicas, reach: Reach, energy: Callable[[Outcome, PooledStep | None], Array]) -> StepTable:
    """Tables of a replica's steps.

    With speculation they are steps that check all guesses, and give a request several tokens (Leviathan et al., ICML 2023).

    Parameters
    ----------
    energy : energy of steps of all devices of the replica, at rest included, shape (n,). [J]
    """
    few = np.arange(0.0, min(reach.requests, EACH) + 1.0)
    requests = np.union1d(few, _axis(reach.requests, least=1.0, each=FINE))
    context = np.union1d([0.0], _axis(reach.context, least=16.0, each=COARSE))
    tokens, keys = _axis(reach.tokens, least=1.0, each=COARSE), _axis(reach.context, least=8.0, each=1.0)
    often = [n * length * reach.parts for length in reach.lengths for n in SEVERAL]
    tokens = np.union1d(tokens, [each for each in often if each <= reach.tokens])
    keys = np.union1d(keys, [0.5 * length for length in reach.lengths])
    n, c = _grid(requests, np.append(context, np.median(context)))
    m, t, k = _grid(requests, tokens, keys)
    plain, written = _steps(replicas, reach.parts, n, c)
    mixed, both = _steps(replicas, reach.parts, m, np.full(len(m), np.median(context)), (t, k))
    slower, work = 1.0 + replicas.drafts, replicas.host

    def tables(writes: Array, reads: Array) -> tuple[Array, Array]:
        columns = writes.reshape(len(requests), -1) * slower
        whole = reads.reshape(len(requests), len(tokens), -1) * slower
        with np.errstate(invalid="ignore"):  # of steps that never end
            read = np.where(np.isfinite(whole), whole - columns[:, -1, None, None], whole)
        return columns[:, :-1], np.maximum(read, 0.0)

    (writing, reading), (writing_energy, reading_energy) = (
        tables(plain[0].total, mixed[0].total),
        tables(energy(hosted(written[0], work, n), written[1]), energy(hosted(both[0], work, m), both[1])),
    )
    sends = _sends(replicas, written[0], (len(requests), -1)), _sends(replicas, both[0], (len(requests), len(tokens), -1))
    sends_writing, sends_reading = sends[0][:, 0], sends[1][0, :, 0] - sends[0][0, 0]  # contexts and keys change nothing that is sent
    if not (sends_writing.any() or sends_reading.any()):
        sends_writing = sends_reading = np.zeros(0)
    beside_none = np.zeros(0)
    if replicas.ranks > 1:
        alone = replace(replicas, job=replace(replicas.job, model=replicas.job.model.meeting(replicas.ranks)))
        lone, _ = _steps(alone, reach.parts, m, np.full(len(m), np.median(context)), (t, k))
        beside_none = _less(mixed[0].total, lone[0].total).reshape(reading.shape) * slower
    return StepTable(
        requests=requests, context=context, tokens=tokens, keys=keys, writing=writing, reading=reading, writing_energy=writing_energy,
        reading_energy=reading_energy, before=_scaled(work.ahead, slower), beside=_scaled(work.beside, slower),
        sends_writing=sends_writing, sends_reading=sends_reading, beside_none=beside_none,
    )  # fmt: skip


def _less(one: Array, other: Array) -> Array:
    """How much less another time is than one; nothing where neither ends. [s]"""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(one), np.maximum(one - other, 0.0), 0.0)


def _sends(replicas: Replicas, steps: Outcome, shape: tuple[int, ...]) -> Array:
    """For how long what a device sends in steps keeps its port between nodes busy, by the axes of a table. [s]"""
    return np.reshape(wide(sent_outside(steps, replicas.machine), len(steps.total)), shape)


def _scaled(times: tuple[Array, Array], slower: float) -> tuple[float, float]:
    """Times of the host of one point, in steps with guesses, which are so much longer. [s]"""
    fixed, each = (float(np.ravel(time)[0]) * slower for time in times)
    return fixed, each


def _grid(*axes: Array) -> tuple[Array, ...]:
    """All combinations of the points of axes, the last of which varies first, shape (n,) each."""
    return tuple(each.ravel() for each in np.meshgrid(*axes, indexing="ij"))


def _steps(
    replicas: Replicas, stages: int, requests: Array, context: Array, read: tuple[Array, Array] | None = None
) -> tuple[PricedStep, PricedStep]:
    """Steps that write for so many requests of a replica, of shape (n,), and that `read` so many tokens which see so many keys in the mean:
    with their times, and with their work and the same times.

    A request is in one microbatch, so that fewer requests than stages pass the stages in fewer microbatches. Each of these reads as much
    as if all did, which is how long a round takes (`crossflow.engine.service.replica`), and does no more work than its share.
    """
    whole = np.full(len(requests), replicas.microbatches)
    many = whole * np.clip(requests + (read is not None), 1.0, float(stages)) / stages
    step = _priced(replicas, many, requests, context, None if read is None else (read[0] / whole, read[1]))
    if read is None or np.all(many == whole):
        return step, step
    work, feeding = _priced(replicas, many, requests, context, (read[0] / many, read[1]))
    return step, (replace(work, total=step[0].total), feeding)


def _priced(replicas: Replicas, many: Array, requests: Array, context: Array, read: tuple[Array, Array] | None) -> PricedStep:
    """Steps of so `many` microbatches, of which each reads so many tokens.

    Tokens are of one piece where that can be, of several that begin their prompts where keys are fewer.
    """
    n = len(requests)
    layout = replicas.layout.at(np.zeros(n, dtype=np.intp))
    layout = replace(layout, micro_batch=np.maximum(requests, NOBODY) / many, microbatches=many)
    job = replicas.job.at(context=context, cached=context)
    if read is not None:
        tokens, keys = read
        length = np.where(keys >= tokens / 2.0, tokens, 2.0 * keys)
        job = replace(job, chunk=Chunk(pieces=tokens / length, length=length, before=np.maximum(keys - length / 2.0, 0.0)))
    if replicas.experts is None:
        return drafted(transformer_step, job, layout, replicas.machine, memory(job, layout, replicas.machine)), None
    pool = replace(replicas.experts, layout=replicas.experts.layout.at(np.zeros(n, dtype=np.intp)))
    step = pool.step(job, layout, replicas.machine)
    return step.outcome, step
