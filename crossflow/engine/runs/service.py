"""A service in steady state: continuous batching with chunked prefill, and its queue in closed form.

An engine holds many requests and writes one token for each in every step (Orca [1]_); beside them a step may read pieces of new prompts,
no more tokens in all than a chunk (Sarathi-Serve [2]_). So there are two kinds of step, with and without pieces; how often each occurs
follows from the balance of flows: the prompts that are read must be as many as the requests that end. Prompts wait for each other as in
a queue with one server and equal services (Pollaczek-Khinchine [3]_), of which a fixed number of requests sees itself left out (mean value
analysis [4]_). Where the cache has no room for all requests, or reading takes all that a step may compute, the others wait outside, and
Little's law [5]_ says how long.

An engine with p pipeline stages has p microbatches in flight, and each request that decodes is in one of them: its next token begins when
the one before has passed all stages [8]_. A prompt is read in one microbatch. At every stage the others wait behind it, so that it holds
up the round of all of them by p times what it takes more of a stage: as much as if all had read (a bubble of uneven microbatches [9]_).
Prompts hide behind each other only where they are read in the same round, which `layers_read` counts.

Requests of one length that begin at once are another steady state: those that were read in one step end in one step, and are read in one
step again, all N of them in B = N / G steps, of which each reads as many prompts, G, as it has room for. Pieces then hide behind each
other in all microbatches. An answer's end comes when the next step is scheduled, so that the first of the B groups waits for a step that
writes, and each other one while the one before is read. Lengths that differ, or other times to begin, mix the groups.

References
----------
.. [1] Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, Sec. 3.
.. [2] Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, Sec. 4.
.. [3] Kleinrock, "Queueing Systems", vol. 1, 1975, Sec. 5.6.
.. [4] Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing Networks", JACM 27(2), 1980.
.. [5] Little, "A Proof for the Queuing Formula L = lambda W", Operations Research 9(3), 1961.
.. [6] Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, Eq. 1.
.. [7] Zhong et al., "DistServe: Disaggregating Prefill and Decoding", OSDI 2024, Sec. 3 and 4.
.. [8] vLLM, vllm/v1/engine/core.py, `step_with_batch_queue`: `batch_queue_size` is the number of stages.
.. [9] Agrawal et al., Sarathi-Serve [2]_, Sec. 3.3, Fig. 8: bubbles of pipelines whose microbatches take unequal times.
.. [10] Takacs, "Introduction to the Theory of Queues", 1962, Ch. 3: busy periods of infinitely many servers with equal services.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Mask, divide, share_of
from crossflow.base.results import later
from crossflow.base.stages import stage
from crossflow.cost.machine import Machine
from crossflow.engine.runs.arriving import HandoverEnd, sent_outside, slowed_step
from crossflow.engine.runs.drafting import HostWork, asynchronous, hosted, service_step, with_draft
from crossflow.engine.runs.memory import ACTIVATIONS, CACHE, FRAMEWORK, Memory, memory
from crossflow.engine.runs.outcome import TAILS, Outcome, merged
from crossflow.engine.runs.rounds import busy_rounds, come_after, erlang, fuller, layers_read, rounds_behind, share_read, some_come
from crossflow.engine.runs.towers import added, encoded, with_tower
from crossflow.engine.runs.transformer import transformer_step
from crossflow.engine.service.policies import POLICIES
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.tables import tables_of
from crossflow.program.groups import Group, HandoverGroup
from crossflow.workload.job import Chunk, Job

if TYPE_CHECKING:  # what its arguments are; the chain of imports stays short
    from crossflow.engine.runs.apart import ExpertPool, PooledStep
else:
    ExpertPool, PooledStep = later("crossflow.engine.runs.apart", "ExpertPool", "PooledStep")

ROUNDS, CLOSE = 30, 1e-4  # rounds in which requests that decode are found at most, and how little they change in the last [1]
# Requests that decode at least of a fixed number, of those that arrive, and share of time that a queue is idle at least, while they are
# sought. A step of arrivals is priced with the request that sees it, whatever else decodes. [1]
LEAST, RARE, FULLEST = 1e-3, 1e-9, 1e-3
OVERRUN = "requests arrive faster than the service can answer them; lower serving.arrival_rate, or add replicas"
UNREAD = "a prompt does not fit in a worker of serving.prefill"
NO_ROOM = "the memory has no room for the cache of a single request beside weights and the activations of a chunk (serving.chunk)"
DRAWN, HALVED = 16, 52  # arrivals that stand for all in a step, and times that an interval of times is halved. [1]
NORMAL = {"p50": 0.0, "p90": 1.2816, "p99": 2.3263}  # quantiles of the normal distribution


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefill:
    """Workers of their own that read prompts, each with a plan, on devices that may be others; arrays of shape (n,)."""

    machine: Machine
    layout: Layout  # of one worker whose replicas, its ranks with prompts of their own, read one each
    workers: Array  # [1]

    @property
    def ranks(self) -> Array:
        """Ranks of all workers that read prompts of their own. [1]"""
        return np.asarray(self.workers * self.layout.dp)


@dataclass(frozen=True, kw_only=True, eq=False)
class Service:
    """Requests and how they are served; arrays of shape (n,)."""

    requests: Array  # in flight at all times, over all replicas; of arrivals infinite. [1]
    rate: Array  # that arrive in a second, over all replicas; of a fixed number in flight 0. [1/s]
    prompt: Array  # tokens of a request that are read. [1]
    hits: Array  # tokens before them that lie in the cache when it arrives. [1]
    output: Array  # tokens that are written for it; the first of them by the step that reads the end of the prompt. [1]
    chunk: Array  # tokens that a microbatch of a step computes at most. [1]
    most: Array  # requests that a replica works on at most. [1]
    gained: Array  # tokens that a step gives a request in the mean, more than one with speculation. [1]
    drafts: Array  # time of guessing in a step, over that of the step. [1]
    room: Array  # share of a device's memory that may be used. [1]
    cache: Array  # share of what is left of that beside weights and activations that the cache takes. [1]
    whole: bool  # whether a request waits until there is room for all that will be written of it
    gathers: bool  # whether replicas that share experts out read prompts in the same steps
    together: Mask  # whether requests in flight began at once, and as equals end at once for ever
    prefill: Prefill | None = None
    experts: ExpertPool | None = None  # devices of their own for the experts of the model

    @property
    def left(self) -> Array:
        """Share of a prompt that is read. [1]"""
        return divide(self.prompt, self.prompt + self.hits)

    @property
    def writes(self) -> Array:
        """Tokens that decoding gives a request: all but the first. [1]"""
        return np.asarray(self.output - 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Steady:
    """A service in steady state, figures of shape (n,)."""

    outcome: Outcome  # of the mean step of all replicas
    requests: Array  # that end in a step, all replicas. [1]
    figures: Mapping[str, Array]  # by column
    # energy of what the workers of `prefill` compute and move in the time of that step, which the outcome does not have. [J]
    reading: Array = field(default_factory=lambda: np.zeros(1))
    feeding: PooledStep | None = None  # the mean step with what the devices of the experts do in it, where they are others


def guessed(acceptance: Sequence[float]) -> float:
    """Tokens that a step gives in the mean where each guess is right with a probability, if all before it are; 1 + a1 + a1 a2 + ...

    Of equal probabilities that is (1 - a^(k+1)) / (1 - a) [6]_.

    >>> guessed([0.5, 0.5, 0.5]), guessed([1.0, 0.5])
    (1.875, 2.5)
    """
    return 1.0 + float(np.cumprod(acceptance).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class _StepKinds:
    """The two kinds of step while so many requests decode in a replica; arrays of shape (n,)."""

    decoding: Array  # requests of a replica that decode. [1]
    plain: Outcome  # a step that writes
    mixed: Outcome  # one that reads pieces of prompts too
    factor: Array  # time of a step with its guesses, over that without. [1]
    share: Array  # of steps that read. [1]
    filled: Array  # of the microbatches of a step that reads, the share that has something to read. [1]
    pieces: Array  # steps that read a part of one prompt. [1]
    load: Array  # prompts that it reads. [1]
    parts: Array  # microbatches of a step, each of which reads prompts of its own. [1]
    most: Array  # prompts that it can read at most. [1]
    together: Array  # prompts that are read together at most. [1]
    slowed: Array  # share of steps in which this replica reads, or one that makes every step with it as they share out experts. [1]
    # Whether prompts are read in steps of their own, of which `mixed` holds one and one that writes.
    alone: Mask = field(default_factory=lambda: np.zeros(1, dtype=bool))

    @functools.cached_property
    def endless(self) -> Mask:
        """Points whose steps never end; their times stand for any while the rest is sought."""
        return np.asarray(~(np.isfinite(self.plain.total) & np.isfinite(self.mixed.total)))

    @functools.cached_property
    def writing(self) -> Array:
        """Time of a step that writes, with its guesses. [s]"""
        return np.where(self.endless, 1.0, self.plain.total) * self.factor

    @functools.cached_property
    def reading(self) -> Array:
        """Time of a step that reads pieces of prompts too, with its guesses. [s]"""
        return np.where(self.endless, 1.0, self.mixed.total) * self.factor

    @property
    def own(self) -> Array:
        """Time of the step in which a prompt is read: with what is written in it, or by itself. [s]"""
        return np.where(self.alone, self.reading - self.writing, self.reading)

    @property
    def each(self) -> Array:
        """Time that a prompt takes where steps read as much as they can: its own work, and its share of what a step takes without. [s]

        A step that reads alone may follow another one.
        """
        return divide(self.reading - self.writing, self.load) + np.where(self.alone, 0.0, divide(self.writing, self.most))

    @property
    def reads(self) -> Array:
        """Share of the time in which prompts are read. [1]"""
        return divide(self.share * self.own, self.mean)

    @property
    def mean(self) -> Array:
        """Mean time of a step. [s]"""
        return np.asarray(self.writing + self.slowed * (self.reading - self.writing))

    @property
    def rest(self) -> Array:
        """Mean time until the step ends that runs when a request arrives. [s]"""
        square = np.where(self.alone, 1.0, 1.0 - self.slowed) * self.writing**2 + self.slowed * self.own**2
        return divide(square, 2.0 * self.mean)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Flow:
    """Balance of a service; arrays of shape (n,)."""

    steps: _StepKinds
    rate: Array  # requests of a replica that end in a second. [1/s]
    writing: Array  # time in which a request is written. [s]
    reading: Array  # time until a request that is first in the queue has its first token. [s]
    queue: Array  # time in the queue of prompts. [s]
    longest: Array  # time in the queue where all others are before it. [s]
    each: Array  # time that a prompt takes of the readers. [s]
    busy: Array  # share of what the readers of prompts can do that they do. [1]
    waits: Array  # share of prompts that wait in the queue. [1]
    rest: Array  # time until the step ends that runs when a request comes. [s]
    outside: Array  # time for which requests wait until cache or chunk have room for them; infinite where they come too fast. [s]
    found: Array  # share of requests that find others in their replica, and so a step that runs. [1]
    longer: Array  # time in which a request is written, over that of as many mean steps. [1]
    ahead: Array  # time of the step that is scheduled already behind that one. [s]

    @property
    def rounds(self) -> Array:
        """In how many steps the prompts of all requests in work are read, where these are read together; one prompt at least. [1]"""
        return np.maximum(divide(self.steps.decoding, self.steps.load), self.steps.pieces)

    @property
    def groups(self) -> Array:
        """In how many of these steps prompts are read to their end: of prompts that take several, one in each microbatch. [1]"""
        return np.maximum(np.minimum(self.rounds, divide(self.steps.decoding, self.steps.parts)), 1.0)

    @property
    def others(self) -> Array:
        """Steps that read others while the first of the groups is written. [1]"""
        return np.maximum(self.rounds - self.steps.pieces, 0.0)

    @property
    def first(self) -> Array:
        """Time to the first token. [s]"""
        return np.asarray(self.reading + self.queue + self.outside)


@dataclass(frozen=True, kw_only=True, eq=False)
class _PromptsRead:
    """What workers of their own for prompts take for one, arrays of shape (n,)."""

    step: Outcome  # the reading of a whole prompt by each rank of a worker that has prompts of its own
    time: Array  # in which a worker that has no other reads what is not known of it. [s]
    full: Array  # the same of a rank, of each of the prompts of a step for which all ranks have as many as they have room for. [s]
    sent: Array  # in which its keys and values travel to a replica, as long as nothing else does. [s]
    ends: tuple[HandoverEnd, HandoverEnd]  # of the worker, and of the replica

    @property
    def more(self) -> Array:
        """What a prompt takes more of a rank where all are full; nothing where neither ever ends. [s]"""
        return np.where(self.full == self.time, 0.0, self.full - self.time)

    def busy(self, rate: Array) -> Array:
        """Share of its time that a rank reads to which so many prompts come in a second: each takes the longer the busier the others are,
        u = rate (time + (full - time) u). [1]
        """
        idle = 1.0 - rate * self.more
        return np.where(idle > 0, np.minimum(divide(rate * self.time, np.where(idle > 0, idle, 1.0)), 1.0), 1.0)


@stage("run")
def steady_state(job: Job, layout: Layout, machine: Machine, service: Service) -> Steady:
    """A service of n points in steady state.

    Parameters
    ----------
    job : writing of tokens (``task: decode``).
    layout : plans of the replicas with all requests in flight.
    """
    held, most = cache_room(job.own, layout, machine, service)
    most = np.floor(most)
    read = None if service.prefill is None else _reading(job, machine, service, service.prefill)
    flow = _balanced(job, layout, machine, service, held, read, np.minimum(most, service.most))
    # The mean step over time, in which fewer decode than one that does sees.
    now = None if np.all(service.rate == 0.0) else _Coming(
        seen=np.maximum(flow.steps.decoding, LEAST), prompts=flow.rate * flow.steps.mean,
        times=(flow.steps.writing, flow.steps.reading),
    )  # fmt: skip
    over_time = flow.steps if now is None else _steps(job, layout, machine, service, held, now.seen, now, read)
    outcome = _mean(over_time)
    ends = flow.rate * over_time.mean * layout.dp  # requests that end in a step
    reading = tables_of(job.reading, _single(layout), machine.stack).model_flops * service.left
    stages = held.stages.copy()
    read_too = np.where(service.together, 0.0, flow.rate * flow.reading)
    requests = np.minimum(flow.steps.decoding + read_too, np.minimum(most, service.most))
    stages[CACHE] *= requests
    found = replace(held, stages=stages, far=held.far * np.stack([np.ones_like(requests), requests])[:, None])
    late = ~np.isfinite(flow.outside)
    outcome = replace(
        outcome, memory=found.kinds, second_memory=found.far_total, model_flops=outcome.model_flops + ends * reading,
        problems=((most < 1.0, NO_ROOM), (late & (most >= 1.0), OVERRUN)),
    )  # fmt: skip
    energy = np.zeros(1)
    if service.prefill is not None and read is not None:
        outcome, energy = _with_workers(job, service, service.prefill, read, outcome, ends)
    several = _at(layout, np.maximum(flow.steps.decoding, LEAST))
    feeding = None if service.experts is None else service.experts.step(job, several, machine, held)
    figures = _figures(service, flow, layout.dp) | ({} if feeding is None else dict(feeding.figures))
    never = (most < 1.0) | flow.steps.endless
    if never.any():
        figures = {
            name: np.where(never, np.inf if name.endswith("_s") and "_per_" not in name else 0.0, values)
            for name, values in figures.items()
        }
    return Steady(outcome=outcome, requests=np.where(never, 0.0, ends), figures=figures, reading=energy, feeding=feeding)


@stage("run")
def at_rest(job: Job, layout: Layout, machine: Machine, service: Service) -> Steady:
    """A service of n points with one request in each replica that has room for it: what devices hold, and whether a step ends.

    That is all that a replay needs to know of the closed form, at a step in the place of several. Replicas read their prompts themselves
    and hold their own experts. Parameters as of `steady_state`.
    """
    held, most = cache_room(job.own, layout, machine, service)
    step = service_step(transformer_step, job, _at(layout, np.ones(len(layout))), machine, held)
    stages = held.stages.copy()
    stages[CACHE] *= most >= 1.0
    outcome = replace(step, memory=replace(held, stages=stages).kinds, problems=((most < 1.0, NO_ROOM),))
    return Steady(outcome=outcome, requests=np.ones(len(layout)), figures={})


def _single(layout: Layout) -> Layout:
    """The same plans with one request in one replica."""
    ones = np.ones(len(layout))
    return replace(layout, dp=ones, micro_batch=ones, microbatches=ones)


def _at(layout: Layout, decoding: Array) -> Layout:
    """Plans with so many requests of a replica that decode, in as many microbatches as before. [1]"""
    return replace(layout, micro_batch=decoding / layout.microbatches)


def _seen(service: Service, decoding: Array, limit: Array) -> Array:
    """Requests of a replica that decode in the mean while one of them does, itself among them. [1]

    Where requests arrive, it sees those that decode at any time, and itself (arrivals of a Poisson process see time averages [3]_).
    """
    return np.where(service.rate > 0, np.minimum(1.0 + decoding, np.maximum(limit, decoding)), decoding)


def _begun(layout: Layout, service: Service, seen: Array) -> Layout:
    """Plans with the microbatches of a step while so many requests of a replica decode, each of which is in one microbatch."""
    share = np.where(service.rate > 0, np.minimum(seen / layout.pp, 1.0), 1.0)
    return replace(layout, microbatches=layout.microbatches * share)


def cache_room(job: Job, layout: Layout, machine: Machine, service: Service) -> tuple[Memory, Array]:
    """Memory with one request in a replica, and how many there is room for, with a part of one. [1]

    Activations are those of a step that computes a whole chunk. A request holds its mean length. An engine that evicts none keeps room
    for all that will be written of it; one that evicts computes again what it wrote, which is not counted.
    """
    one = _at(layout, np.ones(len(layout)))
    held = with_draft(memory(job, one, machine), job, one, machine)
    stages = held.stages.copy()
    if service.prefill is None:
        pieces = divide(service.chunk, service.prompt + service.hits)
        stages[ACTIVATIONS] = memory(job.reading, replace(layout, micro_batch=pieces, microbatches=np.ones(len(layout))), machine).stages[
            ACTIVATIONS
        ]
    stages[ACTIVATIONS] = np.maximum(stages[ACTIVATIONS], _sampling(job, layout, machine, service, len(stages[0])))
    held = replace(held, stages=stages)
    if service.prefill is None:
        held = with_tower(held, job, layout, machine, service.chunk)
    more = 1.0 + machine.stack.memory.fragmentation
    left = _left(held, machine, service, more)
    whole = job.at(staggered=False)
    longest = with_draft(memory(whole, one, machine), whole, one, machine) if service.whole else held
    cache = longest.stages[CACHE] * more
    room = left * service.cache / np.where(cache > 0, cache, 1.0)
    most = np.where(cache > 0, room, np.where(left >= 0, np.inf, 0.0)).min(axis=0)
    stays, (_, away) = held.far[0], longest.far
    beside = held.far_capacity - stays
    far = np.where(away > 0, divide(beside, away), np.where(beside >= 0, np.inf, 0.0)).min(axis=0)
    return held, np.asarray(np.maximum(np.minimum(most, far), 0.0))


def _sampling(job: Job, layout: Layout, machine: Machine, service: Service, stages: int) -> Array:
    """What sampling takes for the most requests of a replica, on the last stage, which has all logits, shape (stages, n). [B]"""
    last = np.arange(stages)[:, None] == layout.pp - 1.0
    return np.where(last, machine.stack.engine.sampling * service.most * job.model.vocabulary, 0.0)


def _left(held: Memory, machine: Machine, service: Service, more: Array) -> Array:
    """What the share of an engine leaves for the cache, shape (stages, n). [B]

    An engine that counts little of the framework's own memory leaves the rest of it outside its share, where it must have room.
    """
    counted = machine.stack.engine.counted
    whole = held.total_of_stages - held.stages[CACHE] * more
    if counted is None:
        return np.asarray(held.capacity * service.room - whole)
    inside = held.stages[:FRAMEWORK].sum(axis=0) - held.stages[CACHE] + counted
    return np.asarray(np.minimum(held.capacity * service.room - inside, held.capacity - whole))


@dataclass(frozen=True, kw_only=True, eq=False)
class _ReadPieces:
    """What steps read, arrays of shape (n,)."""

    chunk: Chunk  # pieces of each microbatch of a step that reads
    share: Array  # of steps that read. [1]
    filled: Array  # share of their microbatches that has something to read. [1]
    steps: Array  # that read a part of one prompt. [1]
    room: Array  # pieces that a microbatch has room for, whole ones. [1]
    slowed: Array  # share of steps in which one of the replicas reads that make every step together. [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Coming:
    """What one of the requests that decode sees of a replica; arrays of shape (n,)."""

    seen: Array  # requests that decode, itself among them. [1]
    prompts: Array  # that come in the mean step. [1]
    times: tuple[Array, Array] | None = None  # of a step that writes and of one that reads, as far as they are known. [s]


def _chunk(service: Service, layout: Layout, written: Array, coming: _Coming) -> _ReadPieces:
    """What steps read beside the requests that decode.

    Where requests arrive, how many come in a step of some length is known of the rate, and not of what comes in the mean step: the longer
    that is, the more come in it, so that more than one length of it would agree with itself.
    """
    stages, rounds = np.minimum(layout.pp, layout.microbatches), divide(service.writes, service.gained)
    micro, came = coming.seen / layout.microbatches, coming.prompts / layout.microbatches
    budget = np.maximum(service.chunk - micro * written, 1.0)
    steps = np.ceil(service.prompt / budget - 1e-9)
    length = service.prompt / steps  # a long prompt is cut into equal pieces
    each, room = came * steps, np.maximum(divide(budget, length), 1.0)
    times = (np.ones(1), np.ones(1))
    if coming.times is not None:
        often = divide(service.rate / layout.dp / layout.microbatches, came)
        times = (np.where(service.rate > 0, often * coming.times[0], 1.0), np.where(service.rate > 0, often * coming.times[1], 1.0))
    abreast, slowed = _abreast(service, layout), np.zeros(1)
    if np.any(abreast > 1.0):  # prompts that come to any of them in a step are read in the next one, divided over its parts
        parts = layout.microbatches / stages
        found = share_read(came * parts * abreast, times, steps, np.floor(room) * parts * abreast, np.ones(1))
        slowed = np.where(abreast > 1.0, found / parts, 0.0)
        times = (times[0] + slowed * (times[1] - times[0]), times[1])  # of a step in which this replica reads nothing
    # Of a fixed number, any number may come together.
    servers = np.where(service.rate > 0, np.floor(stages) * np.floor(room), np.inf)
    layers = layers_read(came * stages, steps, stages, np.floor(room), times, (servers, _dealt(service, layout)))
    pieces = np.clip(layers, 1.0, room)
    several = (service.rate > 0) & (stages == 1.0) & (steps == 1.0) & (room >= 2.0)
    if several.any():  # prompts that come in one step are read in one
        share = share_read(came, times, steps, np.floor(room), _dealt(service, layout))
        pieces = np.where(several, np.clip(np.maximum(layers, divide(came, share)), 1.0, room), pieces)
    pieces = np.where(service.together, np.clip(micro, 1.0, room), pieces)
    layers = np.where(service.together, each * rounds / (rounds + steps + np.where(micro > pieces, 1.0, 0.0)), layers)
    chunk = Chunk(pieces=pieces, length=length, before=service.hits + (service.prompt - length) / 2.0)
    filled = np.where(stages == 1.0, 1.0, np.minimum(divide(each, layers), 1.0))
    share = np.minimum(divide(layers, pieces), 1.0)
    slowed = np.where(abreast > 1.0, np.maximum(slowed, share), share)
    return _ReadPieces(chunk=chunk, share=share, filled=filled, steps=steps, room=np.floor(room), slowed=slowed)


def _abreast(service: Service, layout: Layout) -> Array:
    """Replicas that make every step together, and read prompts in different ones: those that share experts. [1]"""
    shared = (layout.replicas_meet | (service.experts is not None)) & ~service.together
    return np.where(shared & (not service.gathers), np.maximum(layout.dp, 1.0), 1.0)


def _dealt(service: Service, layout: Layout) -> Array:
    """Replicas to which requests that arrive are dealt in turn. [1]"""
    return np.where(service.rate > 0, np.maximum(np.round(layout.dp), 1.0), 1.0)


def _steps(
    job: Job, layout: Layout, machine: Machine, service: Service, held: Memory, decoding: Array, coming: _Coming | None = None,
    read: _PromptsRead | None = None,
) -> _StepKinds:  # fmt: skip
    """Both kinds of step while so many requests of a replica decode; `coming` is that of the mean step where absent.

    Where workers of their own `read` prompts, keys and values that come from them share the ports of steps that send between nodes.
    """
    if coming is None:
        coming = _Coming(seen=decoding, prompts=divide(decoding * service.gained, service.writes))
    begun, pool = _begun(layout, service, coming.seen), service.experts
    here = _at(begun, coming.seen)
    step_of = transformer_step if pool is None else pool.outcome
    plain = service_step(step_of, job, here, machine, held)
    if read is not None:
        engines = np.where(layout.replicas_meet | (pool is not None), np.maximum(layout.dp, 1.0), 1.0)
        plain = slowed_step(plain, read.ends[1].meets(read.sent, plain.total * (1.0 + service.drafts), sent_outside(plain, machine)),
            coming.prompts, engines)  # fmt: skip
        none = np.zeros(len(layout))
        return _StepKinds(
            decoding=decoding, plain=plain, mixed=plain, factor=1.0 + service.drafts, share=none, filled=none, pieces=none, load=none,
            parts=none, most=none, together=np.ones(len(layout)), slowed=none,
        )  # fmt: skip
    alone = np.full(len(layout), not POLICIES[machine.stack.engine.scheduler].mixed) & (service.rate > 0)
    written = np.where(alone, 0.0, job.written)
    pieces = _chunk(service, layout, written, coming)
    load = layout.microbatches * pieces.chunk.pieces / pieces.steps
    beside = _at(begun, np.where(service.together, np.maximum(coming.seen - load, LEAST), coming.seen))
    mixed = service_step(transformer_step, replace(job, chunk=pieces.chunk), beside, machine, held)
    if alone.any():
        nobody = service_step(transformer_step, replace(job, chunk=pieces.chunk), _at(begun, np.full(len(layout), LEAST)), machine, held)
        mixed = merged(added(plain, nobody, 1.0), mixed, lambda one, other: np.where(alone, one, other), ("memory", "problems"))
    found = _StepKinds(
        decoding=decoding, plain=plain, mixed=mixed, factor=1.0 + service.drafts, share=pieces.share, filled=pieces.filled,
        pieces=pieces.steps, load=load, parts=layout.microbatches, most=load, together=np.ones(len(layout)),
        slowed=np.maximum(pieces.slowed, pieces.share), alone=alone,
    )  # fmt: skip
    again = _chunk(service, layout, written, replace(coming, times=(found.writing, found.reading)))
    room = divide(np.maximum(service.chunk - coming.seen / layout.microbatches * written, pieces.chunk.tokens), pieces.chunk.tokens)
    share = np.minimum(divide(again.share * again.chunk.pieces, pieces.chunk.pieces), 1.0)
    return replace(
        found, share=share, slowed=np.maximum(again.slowed, share), filled=again.filled, most=load * room,
        together=np.maximum(np.floor(layout.microbatches * np.where(pieces.steps > 1.0, 1.0, pieces.room)), 1.0),
    )  # fmt: skip


def _balanced(job: Job, layout: Layout, machine: Machine, service: Service, held: Memory, read: _PromptsRead | None, most: Array) -> _Flow:
    """The number of requests that decode, such that as many begin as end."""
    closed, flight, arrivals = service.rate == 0.0, divide(service.requests, layout.dp), service.rate / layout.dp
    # No more prompts can be read than the rest of a chunk has room for.
    full = divide(service.chunk * service.writes * layout.microbatches, service.prompt * service.gained + service.writes * job.written)
    limit = most if service.prefill is not None else np.minimum(most, full)
    limit, least = np.maximum(np.where(closed, np.minimum(limit, flight), limit), LEAST), np.where(closed, LEAST, RARE)
    decoding = np.where(closed, limit, np.minimum(limit, 1.0))
    before, missed, settled, longer = decoding, np.zeros(len(layout)), np.zeros(len(layout), dtype=bool), np.ones(len(layout))
    times: tuple[Array, Array] | None = None
    for _ in range(ROUNDS):
        flow = _flow(job, layout, machine, service, held, read, _Balance(decoding=decoding, longer=longer, limit=limit, times=times))
        slotless = _slotless(job, service, flow, np.where(closed, flow.rate, arrivals))
        wanted = np.where(closed, flight * divide(flow.writing, flow.writing + flow.first + slotless), arrivals * flow.writing)
        wanted = np.where(service.together, flight, wanted)  # all write, or all but those that are read
        if service.prefill is not None:  # as many at most as the workers have read by then
            wanted = np.minimum(wanted, divide(flow.writing, flow.each * layout.dp))
        wanted = np.clip(wanted, least, limit)
        # Such a point stays, so that it does not depend on the others.
        settled |= (np.abs(wanted - decoding) <= CLOSE * decoding) & (np.abs(flow.longer - longer) <= CLOSE * longer)
        if settled.all():
            break
        missing = wanted - decoding
        slope = divide(missing - missed, decoding - before)  # a step of the secant method, where it goes the right way
        following = decoding - missing / np.where(slope < -0.1, slope, -1.0)
        before, missed = decoding, missing
        decoding = np.where(settled, decoding, np.clip(np.where(np.isfinite(following), following, wanted), least, limit))
        longer = np.where(settled, longer, flow.longer)
        # Half of the way where steps read alone: the longer a step is taken to be, the fewer prompts are read in one that reads, and the
        # shorter it is.
        now = (flow.steps.writing, flow.steps.reading)
        part = 1.0 if times is None else np.where(flow.steps.alone, 0.5, 1.0)
        before_them = now if times is None else times
        times = (part * now[0] + (1.0 - part) * before_them[0], part * now[1] + (1.0 - part) * before_them[1])
    outside = np.where(closed, divide(flight, flow.rate) - flow.writing - flow.first, slotless)
    late = ~closed & ((arrivals > flow.rate * (1.0 + 3.0 * CLOSE)) | (flow.busy >= 1.0))
    return replace(flow, outside=np.where(late, np.inf, np.maximum(outside, 0.0)))


def _slotless(job: Job, service: Service, flow: _Flow, rate: Array) -> Array:
    """Mean time that requests of a replica wait for a slot of their adapter, of which so many come in a second. [s]"""
    if job.adapters is None:
        return np.zeros(len(rate))
    return job.adapters.wait(rate, flow.writing + (flow.reading if service.prefill is None else 0.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Balance:
    """What a service is in balance with, or nearly; arrays of shape (n,)."""

    decoding: Array  # requests of a replica that decode. [1]
    longer: Array  # time in which a request is written, over that of as many mean steps. [1]
    limit: Array  # requests that can decode at most. [1]
    times: tuple[Array, Array] | None  # of a step that writes and of one that reads. [s]


def _flow(job: Job, layout: Layout, machine: Machine, service: Service, held: Memory, read: _PromptsRead | None, at: _Balance) -> _Flow:
    """Rates and times while so many requests of a replica decode."""
    rounds = divide(service.writes, service.gained)
    came = divide(at.decoding, rounds * at.longer)
    coming = _Coming(seen=_seen(service, at.decoding, at.limit), prompts=came, times=at.times)
    steps = _steps(job, layout, machine, service, held, at.decoding, coming, read)
    writing = rounds * steps.mean * at.longer
    rate = np.where(service.rate > 0, np.minimum(service.rate / layout.dp, divide(at.limit, writing)), divide(at.decoding, writing))
    found = _found(service, layout, rate * (writing + steps.pieces * steps.reading))
    late = asynchronous(job, layout, machine.stack) & (layout.pp == 1.0) & (service.rate > 0)
    ahead = np.where(late, divide(steps.mean, np.where(steps.alone, 1.0 + steps.slowed, 1.0)), 0.0)
    if service.prefill is None or read is None:
        now = found * _rest(service, layout, steps, rate)
        less, beside, crowded = _beside(service, layout, steps, rate * now)
        rest = now + found * ahead
        reading, server = rest + steps.pieces * steps.own - less, steps.each
        of_all, peers, readers, together = rate, divide(service.requests, layout.dp), np.ones(1), steps.together
    else:
        rest = beside = crowded = np.zeros(1)
        of_all = rate * layout.dp
        worker = read.ends[0].meets(read.sent, read.step.total, sent_outside(read.step, service.prefill.machine))
        replica = read.ends[1].meets(read.sent, steps.writing, sent_outside(steps.plain, machine))
        # Keys and values leave when a prompt is read: a worker reads meanwhile where another prompt waits, or where one comes soon.
        ranks = service.prefill.ranks
        busy = read.busy(of_all / ranks)
        waits = erlang(ranks, ranks * busy)[1]
        reads = waits - (1.0 - waits) * 0.5 * np.expm1(-of_all / ranks * np.where(np.isfinite(read.sent), read.sent, 0.0))
        time = read.time + read.more * busy + reads * worker.lost
        sent = np.maximum(read.sent + reads * worker.late, replica.time)
        # Ranks of a worker make every step together: a prompt waits for the end of the one that others began.
        others = service.prefill.layout.dp - 1.0
        begun = np.where(others > 0, 1.0 - (1.0 - busy * _besides(service.requests)) ** others, 0.0)
        begun = 0.5 * np.where(begun > 0, time, 0.0) * begun
        # The engine that writes sends the first token, with the step that begins when the one ends that runs.
        joins = np.where(np.isfinite(sent), found * (_rest(service, layout, steps, rate) + ahead), 0.0)
        reading, server = begun + time + sent + joins, time / ranks
        peers, readers, together = service.requests, ranks, ranks
    busy = np.minimum(of_all * server, 1.0)
    seen = busy * _besides(peers)
    longest = np.maximum(peers - readers, 0.0) * server  # those that are read beside it are not before it
    # Of requests that arrive; a fixed number is dealt with as at one server.
    together = np.where(service.rate > 0, together, 1.0)
    queues = together * (1.0 if service.prefill is not None else _dealt(service, layout))
    waits = erlang(queues, queues * seen)[1]
    whole = divide(0.5 * server * together / queues * waits, np.maximum(1.0 - seen, FULLEST))
    # What is left of the step that runs is counted already.
    more = 1.0 if service.prefill is not None else 1.0 - np.where(service.rate > 0, divide(1.0 - seen, steps.pieces), 0.0)
    queue = np.minimum(whole * more, longest) + beside
    behind = _behind(service, layout, steps, rate, whole, late) * (steps.reading - steps.writing)
    flow = _Flow(
        steps=steps, rate=rate, writing=rounds * steps.mean + behind, reading=reading, queue=queue, longest=longest, each=server, busy=busy,
        waits=np.where(queues > 1.0, np.maximum(waits, crowded), busy), rest=rest, outside=np.zeros(len(layout)), found=found,
        longer=1.0 + divide(behind, rounds * steps.mean), ahead=ahead,
    )  # fmt: skip
    return _together(service, flow) if np.any(service.together) else flow


def _besides(peers: Array) -> Array:
    """Share of so many requests that one of them sees: it does not wait for itself. [1]"""
    others = np.maximum(peers - 1.0, 0.0)
    return np.where(np.isfinite(peers), divide(others, np.where(np.isfinite(peers), peers, 1.0)), 1.0)


def _rest(service: Service, layout: Layout, steps: _StepKinds, rate: Array) -> Array:
    """Mean time until the step ends that runs when a request arrives. [s]

    Where requests are dealt to replicas in turn, one comes less soon after another to the same, and finds it reading less often.
    """
    dealt, work = _dealt(service, layout), rate * steps.pieces * steps.reading
    often = steps.reads * divide(some_come(work, dealt), -np.expm1(-work))
    return np.where(dealt > 1.0, 0.5 * (steps.writing + often * (steps.own - steps.writing)), steps.rest)


def _beside(service: Service, layout: Layout, steps: _StepKinds, came: Array) -> tuple[Array, Array, Array]:
    """What a step takes less that reads one prompt in a microbatch than the mean one, what it takes more than that for others that are read
    in the same one, and how often there are any: the longer a step is, the more prompts come in it; `came` until a step ends. [s], [s], [1]
    """
    stages, room = np.minimum(layout.pp, layout.microbatches), np.floor(divide(steps.together, layout.microbatches))
    before = come_after(2.0 * came, _dealt(service, layout))  # it, in the same step
    pieces = divide(steps.load * steps.pieces, layout.microbatches)
    each = divide(steps.reading - steps.writing, pieces)
    several = (steps.pieces == 1.0) & (room >= 2.0) & (service.rate > 0)
    return (
        np.where(several, (pieces - 1.0) * each, 0.0),
        np.where(several, fuller(before, stages, room, 0.0) * each, 0.0),
        np.where(several, fuller(before, stages, np.minimum(room, 2.0), 0.0), 0.0),
    )


def _behind(service: Service, layout: Layout, steps: _StepKinds, rate: Array, queue: Array, late: Mask) -> Array:
    """Steps that read others while a request is written, beyond their share of all; of requests that arrive. [1]

    The prompts that come while a prompt is read, and those of the queue that it leaves behind. Where steps are scheduled ahead (`late`),
    the first of them reads what came in the step before the prompt was read, which mostly wrote alone, and the others follow. Prompts of
    several pieces have others behind them by then.
    """
    if service.prefill is not None or np.all(service.rate == 0.0):
        return np.zeros(len(layout))
    dealt, arriving, several = _dealt(service, layout), rate * steps.reading, steps.together > 1.0
    free = np.maximum(1.0 - divide(arriving * steps.pieces, steps.together), FULLEST)
    came = np.where(
        several,
        busy_rounds(arriving, steps.pieces, steps.together, dealt) - steps.pieces,
        divide(come_after(arriving * steps.pieces, dealt) * steps.pieces, free),
    )
    left = came + divide(rate * queue * steps.pieces, steps.together * free)
    found = np.where(several, some_come(arriving * steps.pieces, dealt), steps.reads)
    first = found - (1.0 - found) * np.expm1(-rate * steps.writing)
    rounds, mean, late = divide(service.writes, service.gained), divide(steps.mean, steps.reading), late & (steps.pieces <= 1.0)
    more = rounds_behind(np.where(late, np.maximum(rounds - 1.0, 0.0), rounds), left, np.maximum(first, steps.slowed), steps.slowed, mean)
    soon = np.maximum(some_come(rate * steps.writing, dealt), steps.slowed - steps.share)
    more = np.where(late, more + np.minimum(rounds, 1.0) * (soon - steps.slowed), more)
    return np.where(service.rate > 0, more, 0.0)


def _found(service: Service, layout: Layout, held: Array) -> Array:
    """Share of requests that find others in their replica, of which it holds so many in the mean. [1]

    Arrivals of a Poisson process see time averages, of a number that is nearly Poisson itself where requests hardly wait; of a fixed number
    each sees the others [4]_. An idle engine begins at once.
    """
    others = np.where(service.rate > 0, 0.0, divide(service.requests, layout.dp) - 1.0)
    return np.where(service.rate > 0, some_come(held, _dealt(service, layout)), np.clip(others, 0.0, 1.0))


def _together(service: Service, flow: _Flow) -> _Flow:
    """The same where requests that were read in one step end in one step, and are read in one again: `decoding` are all of them.

    Of B groups one waits for a step that writes, and goes on while B - 1 others are read; each other one waits until the one before is
    read, and goes on while B - 2 are. So a cycle takes B steps that read, and as many that write as make two more than a request has. Of
    prompts that take s steps it has s + 1 more, and goes on while B - s or B - s - 1 steps read others.
    """
    steps, own = flow.steps, flow.steps.pieces * flow.steps.reading
    first = divide(np.ones(1), flow.groups)
    # All that end at once are read at once: no step runs meanwhile.
    reading, queue = own + np.where(flow.groups > 1.0, first * steps.writing, 0.0), (1.0 - first) * steps.reading
    more = np.maximum(flow.others - (1.0 - first), 0.0) * (steps.reading - steps.writing)
    writing = divide(service.writes, service.gained) * steps.writing + more

    def chosen(one: Array, other: Array) -> Array:
        return np.where(service.together, one, other)

    return replace(
        flow, reading=chosen(reading, flow.reading), queue=chosen(queue, flow.queue), writing=chosen(writing, flow.writing),
        rate=chosen(divide(steps.decoding, reading + queue + writing), flow.rate), longest=chosen(steps.reading, flow.longest),
    )  # fmt: skip


def _reading(job: Job, machine: Machine, service: Service, prefill: Prefill) -> _PromptsRead:
    """What reading takes of workers, which does not depend on how many requests decode.

    Keys and values leave by the network of the worker and arrive by that of the replica: the slower of both decides.
    """
    work = HostWork.of(job, prefill.layout, prefill.machine.stack)
    read = transformer_step(job.reading, prefill.layout, prefill.machine)
    step = encoded(transformer_step, read, job, prefill.layout, prefill.machine, service.prompt + service.hits)
    step = hosted(step, work, np.zeros(1))
    first = work.draw * prefill.layout.micro_batch * prefill.layout.microbatches  # tokens are drawn once prompts are read
    time = step.total * service.left + first
    alone, full = (time, time) if np.all(prefill.layout.dp == 1.0) else _ranks_read(job, service, prefill, work, time)
    worker = sending_over(job, prefill.machine, prefill, service.left)
    replica = worker if prefill.machine is machine else sending_over(job, machine, prefill, service.left)
    sent = np.maximum(worker, replica)
    ends = HandoverEnd(share=share_of(worker, sent)), HandoverEnd(share=share_of(replica, sent))
    return _PromptsRead(step=step, time=alone, full=full, sent=sent, ends=ends)


def _ranks_read(job: Job, service: Service, prefill: Prefill, work: HostWork, one: Array) -> tuple[Array, Array]:
    """What a prompt takes of a rank that reads prompts of its own, where the other ranks of its worker have none, and where each of them
    has as many as a step has room for; `one` where each has one. [s]

    Ranks share experts out: those of a rank read what all ranks send them.
    """
    layout, machine = prefill.layout, prefill.machine

    def read(job: Job, layout: Layout) -> Array:
        step = encoded(transformer_step, transformer_step(job, layout, machine), job, layout, machine, service.prompt + service.hits)
        each = layout.micro_batch * layout.microbatches
        return np.asarray(hosted(step, work, np.zeros(1)).total * service.left / each + work.draw)

    room = np.maximum(np.floor(divide(service.chunk, service.prompt)), 1.0)
    full = read(job.reading, replace(layout, micro_batch=layout.micro_batch * room)) if np.any(room > 1.0) else one
    return read(replace(job.reading, model=job.reading.model.meeting(layout.dp)), layout), np.minimum(full, one)


def sending_over(job: Job, machine: Machine, prefill: Prefill, share: Array) -> Array:
    """Time in which keys and values of a share of a worker's prompt pass the links of a machine, shape (n,). [s]"""
    layout = prefill.layout
    kind = Group if layout.part is None else HandoverGroup
    group = kind.across(layout.devices, layout.part)
    sent = memory(job.handed, layout, prefill.machine).stages[CACHE].max(axis=0) * share
    return np.asarray(machine.wires.time("send_recv", sent, group))


def _mean(steps: _StepKinds) -> Outcome:
    """The mean step, with its guesses; a step that never ends is the one that writes.

    Of the microbatches of a step that reads, those without a prompt do what they do in a step that writes; for the rest of the time the
    stages wait.
    """
    work = steps.share * steps.filled
    parts = ((1.0 - work) * steps.factor, work * steps.factor)

    def mean(one: Array, other: Array) -> Array:
        return np.where(steps.endless, one, parts[0] * np.where(steps.endless, 0.0, one) + parts[1] * np.where(steps.endless, 0.0, other))

    kept = ("memory", "problems", "measured", "host_memory", "host_capacity", "second_memory", "second_capacity", "least")
    found = merged(steps.plain, steps.mixed, mean, kept)
    if np.all(work == steps.slowed):
        return found
    waits = np.where(steps.endless, 0.0, (steps.slowed - work) * (steps.reading - steps.writing))
    return replace(
        found, total=found.total + waits, breakdown={**found.breakdown, "bubble": found.breakdown["bubble"] + waits},
        bound={**found.bound, "bubble": found.bound.get("bubble", np.zeros(1)) + waits},
    )  # fmt: skip


def _with_workers(
    job: Job, service: Service, prefill: Prefill, reading: _PromptsRead, outcome: Outcome, ends: Array
) -> tuple[Outcome, Array]:
    """The step of replicas with what workers do in the same time, and the energy that these take [J].

    Where prompts do not fit in them, the service cannot run.
    """
    read, held = reading.step, memory(job.handed, prefill.layout, prefill.machine)
    held = with_tower(held, job, prefill.layout, prefill.machine, service.prompt + service.hits)
    more = ends * service.left / prefill.layout.dp
    outcome = replace(
        outcome, flops=outcome.flops + more * read.flops, traffic=outcome.traffic + more * read.traffic,
        problems=((~held.fits, UNREAD), *outcome.problems),
    )  # fmt: skip
    return outcome, np.asarray(more * read.energy)


def _longest_wait(flow: _Flow, share: float, *, apart: bool) -> Array:
    """Time that the rest of a step and the queue after it take no longer than in a share of all arrivals, found by halving. [s]

    A request comes anywhere in a step, and in a long one more often than in a short one. Of all arrivals `busy` wait in the queue,
    exponentially long; of those in a step the more the longer it is, as they are those that find others who came in it too.

    apart : whether workers of their own read prompts, which begin at once.
    """
    steps, waits = flow.steps, divide(flow.queue, flow.waits)
    lengths = np.array([steps.writing, steps.own]) * (not apart)
    often = np.array([1.0 - steps.reads, steps.reads])
    found = np.ones(1) if apart else flow.found  # others wait for nothing
    busy = np.minimum(divide(flow.waits, found) * (np.ones_like(lengths) if apart else divide(lengths, 2.0 * steps.rest)), 1.0)
    mean = np.zeros(1) if apart else flow.ahead
    ahead = np.array([np.minimum(steps.writing, mean), np.where(mean > 0, np.maximum(steps.own, mean), 0.0)])
    reads = divide(mean - ahead[0], ahead[1] - ahead[0])  # of steps that are scheduled ahead, those that read. [1]
    often = often[:, None] * np.array([1.0 - reads, reads])
    rests = (lengths * ((np.arange(DRAWN) + 0.5) / DRAWN)[:, None, None])[:, :, None] + ahead
    least = np.zeros(1)
    most = lengths.max(axis=0) + ahead[1] + waits * np.log(np.maximum(busy.max(axis=0) / (1.0 - share), 1.0))
    for _ in range(HALVED):
        middle = 0.5 * (least + most)
        after = middle - rests
        late = np.where(after < 0.0, 1.0, busy[:, None] * np.exp(-divide(np.maximum(after, 0.0), waits * np.ones_like(after))))
        longer = found * (often * late.mean(axis=0)).sum(axis=(0, 1)) > 1.0 - share
        least, most = np.where(longer, middle, least), np.where(longer, most, middle)
    return np.asarray(most)


def _tails_together(service: Service, flow: _Flow) -> dict[str, Array]:
    """Percentiles of requests that are read together: the first of their groups begins soonest, and then waits for one group more."""
    steps, own, first = flow.steps, flow.steps.pieces * flow.steps.reading, divide(np.ones(1), flow.groups)
    found: dict[str, Array] = {}
    for name, share in TAILS.items():
        wait = np.where(share <= first, np.where(flow.groups > 1.0, steps.writing, 0.0), steps.reading)
        found[f"ttft_{name}_s"] = own + flow.outside + wait
        others = flow.others - np.where(share > 1.0 - first, 0.0, 1.0)
        found[f"tpot_{name}_s"] = (
            steps.writing / service.gained + np.maximum(others, 0.0) * (steps.reading - steps.writing) / service.writes
        )
    return found


def _figures(service: Service, flow: _Flow, replicas: Array) -> dict[str, Array]:
    """What users of a service see, and what its operators do, by column."""
    steps, first = flow.steps, flow.first
    each = flow.writing / service.writes
    rounds = divide(service.writes, service.gained)
    spread = np.sqrt(divide(steps.slowed * (1.0 - steps.slowed), rounds)) * (steps.reading - steps.writing)
    requests = flow.rate * replicas
    rest = flow.rest
    # No wait is longer than for all others; of these all may be read before a request, those that wait for room too. Nobody waits longer
    # for the end of a step than a whole one, and for the one behind it.
    most = np.maximum(first, flow.reading + flow.longest) + (steps.reading + flow.ahead if service.prefill is None else 0.0) - rest
    tails = {
        f"ttft_{name}_s": np.minimum(first - flow.queue - rest + _longest_wait(flow, share, apart=service.prefill is not None), most)
        for name, share in TAILS.items()
    }
    slow = {
        f"tpot_{name}_s": np.minimum(each + normal * spread / service.gained, steps.reading / service.gained)
        for name, normal in NORMAL.items()
    }
    if np.any(service.together):
        alike = _tails_together(service, flow)
        tails, slow = ({name: np.where(service.together, alike[name], values) for name, values in some.items()} for some in (tails, slow))
    return {
        "ttft_s": first, **tails, "tpot_s": each, **slow,
        "itl_p99_s": np.where(steps.slowed > 1.0 - TAILS["p99"], steps.reading, steps.writing),
        "e2el_s": first + flow.writing,
        "input_throughput_tokens_per_s": requests * (service.prompt + service.hits),
        "output_throughput_tokens_per_s": requests * service.output,
        "request_throughput_per_s": requests,
        "requests_decoding": np.where(service.together | (service.rate > 0), flow.rate * flow.writing, steps.decoding) * replicas,
        "requests_waiting": requests * (flow.queue + flow.outside),
        "prompt_time_s": flow.each,
        "prefill_share": steps.reads if service.prefill is None else flow.busy,
    }  # fmt: skip
