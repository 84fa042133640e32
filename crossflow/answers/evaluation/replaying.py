"""A scenario's service by events: tables of its steps, room of its caches, engines behind a router, and a replay of requests."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np

from crossflow.answers.evaluation.encoding import EncoderPool, encoder_pool
from crossflow.answers.evaluation.fleets import capacity, check_fleet, coupled, failures_of, scaling_of
from crossflow.answers.evaluation.scoring import NO_BANDWIDTH, drawn_energy
from crossflow.answers.scenario import Scenario, check_strategy
from crossflow.answers.steps.batch import Fleet
from crossflow.answers.steps.machines import machine, place_of_pool
from crossflow.answers.steps.services import lies_somewhere, parts_of, service_of
from crossflow.answers.steps.transformers import pool_of_experts
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.cost.machine import Machine
from crossflow.engine.runs.apart import ExpertPool, PooledStep
from crossflow.engine.runs.memory import CACHE, WEIGHTS, memory
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.service import NO_ROOM, Prefill, Service, cache_room, sending_over
from crossflow.engine.runs.service_table import Reach, Replicas, step_table
from crossflow.engine.service.adapters import AdapterSlots
from crossflow.engine.service.cache import PrefixCache
from crossflow.engine.service.encoders import EncoderTimes
from crossflow.engine.service.fleet import EnginePool, Readers, Tallied, replay, replay_tallied
from crossflow.engine.service.policies import POLICIES, policy_of
from crossflow.engine.service.replayed import Jumps, ServiceReplay
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.routers import router
from crossflow.engine.service.standing import Failures, Scaling
from crossflow.engine.service.steps import StepTable
from crossflow.engine.service.tally import KindTally
from crossflow.engine.service.ticket import Limits
from crossflow.hardware.architecture.template import FEEDING, READING
from crossflow.parallel.batches import overlaps
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.plans import engine_plans
from crossflow.workload.adapters import used_by
from crossflow.workload.job import Job
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.serving_spec import HostCacheSpec
from crossflow.workload.spec import TransformerSpec

FEW_LENGTHS = 2  # of prompts, for which tables of steps have points of their own
OF_A_SERVICE = "serve replays requests through a service: give workload.task: serving, not {task}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Engines:
    """Engines of one kind: how many, what their steps take, what they have room for, and the devices of one."""

    count: int
    table: StepTable
    limits: Limits
    fleet: Fleet
    beyond: tuple[int, ...] = ()  # pages that each further tier of its cache has room for. [1]
    held: float = 0.0  # keys and values of one token on the device that has most of them. [B]
    group: int = 1  # of those that only read, so many are ranks of one worker, which make every step together. [1]
    pool: str = ""  # of further engines; "" of the replicas of the strategy, and of workers for prompts
    load: float = 0.0  # time in which an adapter comes from the host. [s]
    rate: float = 1.0  # mean requests that one answers in a second with as many as it has room for. [1/s]
    received: float = 0.0  # time that keys and values of a token take over its links. [s]
    feeding: Fleet | None = None  # its share of the devices of the experts, where these are others

    @property
    def resting(self) -> float:
        """Power of one engine between its jumps. [W]"""
        return sum(float(drawn_energy(one, np.ones(1))[0]) for one in self.fleets)

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        """Devices of one engine."""
        return (self.fleet,) if self.feeding is None else (self.fleet, self.feeding)

    def energy(self, writers: Array, context: Array, tokens: Array, keys: Array, times: Array) -> Array:
        """Energy of steps that take so much time, at rest included; while stages wait for one of them they rest. [J]

        Ranks of a worker rest while they wait for one that reads more, and the less, the fewer of the others read beside them.
        """
        worked = self.table.energy(writers, context, tokens, keys)
        if self.limits.microbatches == 1 and self.group == 1:
            return worked
        waits = times - self.table.spread(writers, context, tokens, keys)
        if self.group == 1:
            waits = np.maximum(waits, 0.0)
        return np.asarray(worked + np.where(tokens > 0, waits, 0.0) * self.resting)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayedScenario:
    """A replay with the engines that it ran on; `problem` says why there is none where no request has room."""

    found: ServiceReplay | None
    writers: Engines
    readers: Engines | None
    further: tuple[Engines, ...] = ()  # of other pools that write
    encoders: EncoderPool | None = None
    problem: str = ""

    @functools.cached_property
    def kinds(self) -> tuple[Engines, ...]:
        """Engines by kind, in the order of the replay's jumps."""
        return (*(() if self.readers is None else (self.readers,)), self.writers, *self.further)

    @functools.cached_property
    def engines(self) -> tuple[tuple[Engines, Jumps], ...]:
        """What each engine is, and what it did."""
        assert self.found is not None  # who asks has looked
        each = [kind for kind in self.kinds for _ in range(kind.count)]
        return tuple(zip(each, self.found.jumps, strict=True))

    @property
    def writing(self) -> tuple[tuple[Engines, Jumps], ...]:
        """The same of engines that write."""
        return tuple(one for one in self.engines if one[0].limits.writes)

    @functools.cached_property
    def energies(self) -> tuple[Array, ...]:
        """Energy of every jump of each engine, over all of its devices, at rest included. [J]"""
        return tuple(
            one.energy(did.writers, did.context, did.tokens, did.keys, (did.ended - did.begun) / did.steps) * did.steps
            if len(did.steps) else np.zeros(0)
            for one, did in self.engines
        )  # fmt: skip

    @property
    def resting(self) -> tuple[float, ...]:
        """Power of each engine between its jumps while it is paid for. [W]"""
        each = {id(kind): kind.resting for kind in self.kinds}
        return tuple(each[id(one)] for one, _ in self.engines)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceEngines:
    """All engines of a service.

    Attributes
    ----------
    writing : engines that write: the replicas of the strategy, then those of pools.
    readers : engines that only read prompts, where these are apart.
    sent : times of sending the keys and values of a prompt: fixed, and for each token over the links of the sender. [s], [s]
    """

    writing: tuple[Engines, ...]
    readers: Engines | None = None
    sent: tuple[float, float] = (0.0, 0.0)
    full: str = ""  # why the experts do not fit in devices of their own; nothing where they do
    encoders: EncoderPool | None = None  # of the images of prompts, where these have some of their own

    @property
    def writers(self) -> Engines:
        """The replicas of the strategy."""
        return self.writing[0]

    @property
    def problem(self) -> str:
        """Why no request can be answered, whatever it asks for; empty where some can be."""
        if why := _unbuilt(self) or self.full or (self.encoders.problem if self.encoders else ""):
            return why
        if not all(one.limits.pages for one in self.writing):
            return NO_ROOM
        tables = [one.table for one in (*self.writing, *(() if self.readers is None else (self.readers,)))]
        return "" if all(np.isfinite(table.writing).all() and np.isfinite(table.reading).all() for table in tables) else NO_BANDWIDTH

    def counted(self, writers: int, readers: int = 0) -> ServiceEngines:
        """The same with other numbers of engines that write and of workers that only read, which share their tables: a step does not know
        how many others there are.
        """
        others = None if self.readers is None else replace(self.readers, count=readers * self.readers.group)
        return replace(self, writing=(replace(self.writers, count=writers), *self.writing[1:]), readers=others)


def replayed_scenario(scenario: Scenario, trace: RequestTrace, seed: int = 0) -> ReplayedScenario:
    """Replay requests through the service of a scenario.

    Raises
    ------
    CrossflowError
        Where the scenario is no service, or one that is not replayed.
    """
    return replayed_on(scenario, engines_of(scenario, trace), trace, seed=seed)


def tallied_scenario(scenario: Scenario, trace: RequestTrace, seed: int = 0) -> tuple[ReplayedScenario, Tallied | None]:
    """The same with running statistics in the place of what became of each request; None where no request has room."""
    trace = _as_cached(scenario, trace, seed)
    found, ready = _ready(scenario, engines_of(scenario, trace), trace, seed)
    if ready is None:
        return found, None
    kinds = [KindTally(engines=kind.count, energy_of=kind.energy) for kind in found.kinds]
    pool, reading, failures, encoders = ready
    return found, replay_tallied(trace, pool, reading, failures, kinds, encoders)


def _adapters_of(scenario: Scenario, trace: RequestTrace, seed: int) -> Index | None:
    """Adapter of every request, -1 of one that uses none, drawn by the shares of each; a turn that goes on from another has its own.

    None where a service has no adapters.
    """
    mix = scenario.job().adapters
    if mix is None:
        return None
    shares, rng = used_by(mix.count, mix.share, mix.skew), np.random.default_rng([seed, 1])
    drawn = np.searchsorted(np.cumsum(shares), rng.random(len(trace)), side="right")
    if mix.share == 1.0:
        drawn = np.minimum(drawn, len(shares) - 1)
    chosen = np.where(drawn < len(shares), drawn, -1)
    for i in np.flatnonzero(trace.continues).tolist():  # a request follows one that stands before it
        chosen[i] = chosen[trace.follows[i]]
    return chosen


def _apart(trace: RequestTrace, chosen: Index) -> RequestTrace:
    """Requests whose prompts share blocks only where they use one adapter, which gives them other keys and values."""
    if trace.blocks is None:
        return trace
    each = np.repeat(chosen, np.diff(trace.blocks.first)) + 1
    apart = int(trace.blocks.held.max(initial=0)) + 1  # so that numbers in a row stay in a row
    return replace(trace, blocks=replace(trace.blocks, held=trace.blocks.held + each * apart))


def _as_cached(scenario: Scenario, trace: RequestTrace, seed: int = 0) -> RequestTrace:
    """The requests without what they share, where the engines' caches keep nothing of it."""
    stack = scenario.stack
    if stack is not None and not stack.engine.prefixes:
        return replace(trace, blocks=None, block=0)
    chosen = None if trace.blocks is None else _adapters_of(scenario, trace, seed)
    return trace if chosen is None else _apart(trace, chosen)


@np.errstate(invalid="ignore")  # of steps that never end
def engines_of(scenario: Scenario, trace: RequestTrace) -> ServiceEngines:
    """Engines of the service of a scenario, with tables that reach as far as the requests; see `replayed_scenario`."""
    workload, plan = scenario.workload, scenario.strategy
    if not workload.is_service:
        raise CrossflowError(OF_A_SERVICE.format(task=getattr(workload, "task", workload.model)))
    assert isinstance(plan, Plan)  # a transformer has one
    assert scenario.stack is not None  # and software
    check_strategy(scenario)
    check_fleet(scenario, trace)
    return _engines(scenario, _as_cached(scenario, trace))


def replayed_on(
    scenario: Scenario, engines: ServiceEngines, trace: RequestTrace, *, seed: int = 0, first: int | None = None
) -> ReplayedScenario:
    """Replay requests, or the `first` of them alone, on engines that a service has.

    Routers see the whole trace, so that the first requests go where they go among all.
    """
    trace = _as_cached(scenario, trace, seed)
    found, ready = _ready(scenario, engines, trace, seed)
    asked = trace if first is None else trace.at(np.arange(min(first, len(trace))))
    return found if ready is None else replace(found, found=replay(asked, *ready))


_Ready = tuple[EnginePool, Readers | None, Failures | None, EncoderTimes | None]


def _ready(scenario: Scenario, engines: ServiceEngines, trace: RequestTrace, seed: int) -> tuple[ReplayedScenario, _Ready | None]:
    """Engines of a scenario, and what a replay takes; None where no request has room."""
    writing, readers = engines.writing, engines.readers
    found = ReplayedScenario(
        found=None, writers=writing[0], further=writing[1:], readers=readers, encoders=engines.encoders, problem=engines.problem
    )  # fmt: skip
    if found.problem:
        return found, None
    rng, serving = np.random.default_rng(seed), scenario.workload.service
    chosen = _adapters_of(scenario, trace, seed)
    pool = _pool(scenario, trace, writing, rng, scaling_of(serving.autoscale, engines.writers.count), chosen)
    reading = None
    if readers is not None:
        reading = Readers(pool=_pool(scenario, trace, (readers,), rng, chosen=chosen), fixed=engines.sent[0], each=engines.sent[1])
    return found, (pool, reading, failures_of(serving.failures), None if engines.encoders is None else engines.encoders.times)


def _unbuilt(made: ServiceEngines) -> str:
    """Why the devices of engines cannot be built, as scores say it; nothing where they can."""
    engines = (*made.writing[:1], *(() if made.readers is None else (made.readers,)), *made.writing[1:])
    kinds = [(fleet, mask, sentence) for one in engines for fleet in one.fleets for mask, sentence in fleet.device.problems]
    return next((f"{fleet.prefix(': ')}cannot be built: {sentence}" for fleet, mask, sentence in kinds if np.any(mask)), "")


def _pool(
    scenario: Scenario,
    trace: RequestTrace,
    kinds: Sequence[Engines],
    rng: np.random.Generator,
    scaling: Scaling | None = None,
    chosen: Index | None = None,
) -> EnginePool:
    """Engines with empty queues and caches, behind the scenario's router."""
    serving = scenario.workload.service
    each = [kind for kind in kinds for _ in range(kind.count)]
    adapters = None if chosen is None else chosen.tolist()
    owners = {name: [i for i, kind in enumerate(each) if kind.pool == pool] for pool, one in serving.pools.items() for name in one.classes}
    return EnginePool(
        replicas=tuple(_engine(scenario, trace, kind, adapters) for kind in each),
        route=router(serving.router, trace, [kind.rate for kind in each], rng, owners if kinds[0].limits.writes else None),
        **_in_step(scenario, kinds[0]),
        received=tuple(kind.received for kind in each), scaling=scaling,
    )  # fmt: skip


def _in_step(scenario: Scenario, kind: Engines) -> dict[str, int]:
    """Engines of a kind that make every step together, and so many of each group: all replicas that write, or ranks of a worker that
    reads. [1]
    """
    if kind.limits.writes:
        return {"coupled": kind.count if coupled(scenario.strategy, pooled=kind.feeding is not None) else 0}
    return {"coupled": kind.count, "each": kind.group} if kind.group > 1 else {}


def _engine(scenario: Scenario, trace: RequestTrace, kind: Engines, chosen: Sequence[int] | None) -> Replica:
    """An engine of a kind with an empty queue and cache."""
    assert scenario.stack is not None
    habits, limits = scenario.stack.engine, kind.limits
    own = (habits.scheduler, habits.admits, habits.queue, habits.chunked) if limits.writes else ("vllm", "written", habits.queue, None)
    size = max(trace.block // limits.page, 1)
    mix = scenario.job().adapters
    slots = None if mix is None or chosen is None else AdapterSlots(chosen, int(mix.slots), kind.load)
    return Replica(kind.table, limits, policy_of(*own), PrefixCache(size, tuple(pages // size for pages in kind.beyond)), slots)


class _Ground(NamedTuple):
    """What engines of a pool run on, and how."""

    machine: Machine
    fleet: Fleet
    layout: Layout  # of one engine, or of several that make every step together
    engines: int
    pool: str = ""


def _engines(scenario: Scenario, trace: RequestTrace) -> ServiceEngines:
    """Engines that write, those that only read, and the times of sending between them."""
    workload, plan, job = scenario.workload, scenario.strategy, scenario.job()
    assert isinstance(workload, TransformerSpec)
    assert isinstance(plan, Plan)
    own = machine(scenario, scenario.architecture)
    reads_on, beside = place_of_pool(scenario, READING, own)
    one = np.zeros(1, dtype=np.intp)
    experts = pool_of_experts((workload,), one, *place_of_pool(scenario, FEEDING, own)) if job.pooled else None
    grounds = [_ground(job, plan, plan.dp, own, Fleet(system=scenario.system, device=scenario.architecture)), *_further(scenario, own, job)]
    services = [service_of(job, (workload,), one, ground.machine, reads_on) for ground in grounds]
    if lies_somewhere(scenario):
        parts = parts_of(scenario)
        grounds = [ground._replace(layout=replace(ground.layout, part=part)) for ground, part in zip(grounds, parts.writing, strict=True)]
        services = [parts.service(service) for service in services]
    sites = [
        (ground, _Site(
            scenario=scenario, trace=trace, job=job, service=service,
            given=workload.serving.cache_tokens if not ground.pool else None, tiers=workload.serving.tiers, experts=experts,
        ))
        for ground, service in zip(grounds, services, strict=True)
    ]  # fmt: skip
    prefill = sites[0][1].service.prefill
    writing = [site.engines(ground, reads=prefill is None, writes=True) for ground, site in sites]
    encoders = encoder_pool(scenario)
    if prefill is None:
        return ServiceEngines(writing=tuple(writing), encoders=encoders)
    readers = sites[0][1].engines(_Ground(reads_on, beside, prefill.layout, int(prefill.ranks[0])), reads=True, writes=False)
    ends = (reads_on, *(ground.machine for ground in grounds))
    fixed, each = zip(*(_sent(job, end, prefill, workload.tokens) for end in ends), strict=True)
    received = (replace(kind, received=time) for kind, time in zip(writing, each[1:], strict=True))
    full = "" if experts is None else _unheld(job, grounds[0], experts[0])
    return ServiceEngines(writing=tuple(received), readers=readers, sent=(max(fixed), each[0]), full=full, encoders=encoders)


def _unheld(job: Job, ground: _Ground, pool: ExpertPool) -> str:
    """Why the experts do not fit in their devices, of one request in each engine; nothing where they do."""
    layout = replace(ground.layout, micro_batch=np.ones(1), microbatches=np.ones(1))
    (full, why), *_ = pool.step(job, layout, ground.machine).outcome.problems
    return why if np.any(full) else ""


def _further(scenario: Scenario, own: Machine, job: Job) -> Iterator[_Ground]:
    """What the engines of pools run on."""
    for name, plan in engine_plans(scenario.workload).items():
        runs_on, fleet = place_of_pool(scenario, name, own)
        yield _ground(job, plan, scenario.workload.service.pools[name].workers, runs_on, fleet)._replace(pool=name)


def _ground(job: Job, plan: Plan, count: int, runs_on: Machine, fleet: Fleet) -> _Ground:
    """So many engines with a plan on devices."""
    layout = Layout.of([plan], np.ones(1), runs_on.node)
    if not coupled(plan, pooled=job.pooled):  # whose replicas have nothing to do with each other
        layout = replace(layout, dp=np.ones(1))
    parts = np.where(overlaps(job, replace(layout, micro_batch=np.full(1, 2.0)), runs_on.stack), 2.0, 1.0)
    return _Ground(runs_on, fleet, replace(layout, microbatches=layout.pp * parts), count)


def _sent(job: Job, runs_on: Machine, prefill: Prefill, prompt: int) -> tuple[float, float]:
    """Times that keys and values of a prompt take over the links of one end: fixed, and for each of its tokens. [s], [s]"""
    half, whole = (float(sending_over(job, runs_on, prefill, np.full(1, share))[0]) for share in (0.5, 1.0))
    each = (whole - half) / (0.5 * prompt)
    return whole - each * prompt, each


def _lengths(trace: RequestTrace) -> tuple[int, ...]:
    """Lengths of prompts, where a few are all that there are. [1]"""
    lengths = np.unique(trace.prompt)
    return tuple(lengths.tolist()) if len(lengths) <= FEW_LENGTHS else ()


@dataclass(frozen=True, kw_only=True)
class _Stepped:
    """What steps are of; it is like every other with the same data."""

    job: tuple[Any, ...]
    data: tuple[bytes, ...]
    reach: Reach
    graphs: tuple[int, ...]  # sizes of batches that were captured
    replicas: Replicas = field(compare=False)
    whole: Fleet = field(compare=False)  # devices of a step, which several replicas may share
    feeding: Fleet | None = field(compare=False)  # those of the experts, where these are others

    @classmethod
    def of(cls, replicas: Replicas, reach: Reach, whole: Fleet, graphs: tuple[int, ...], feeding: Fleet | None = None) -> Self:
        """Steps of replicas on devices."""
        job, runs_on = replicas.job, replicas.machine
        asked = *(getattr(job, one.name) for one in fields(job) if one.name != "model"), astuple(job.model)
        # Each by itself: which of them share an object is no difference. What was worked out of them by now is none either.
        parts: tuple[Any, ...] = (
            replace(runs_on.architecture), runs_on.network, runs_on.node, runs_on.stack, runs_on.host, runs_on.profile, whole.system,
            replace(replicas.layout), replicas.microbatches, replicas.drafts, replicas.ranks,
        )  # fmt: skip
        if (pool := replicas.experts) is not None and feeding is not None:
            its = pool.machine
            parts = (
                *parts, replace(its.architecture), its.network, its.node, its.stack, its.profile, feeding.system, replace(pool.layout),
                pool.micro_batches, its is runs_on,
            )  # fmt: skip
        data = tuple(map(pickle.dumps, parts))
        return cls(job=asked, data=data, reach=reach, graphs=graphs, replicas=replicas, whole=whole, feeding=feeding)


@functools.lru_cache(maxsize=64)  # requests and routers vary, and steps do not
def _table(stepped: _Stepped) -> StepTable:
    """Times and energies of steps."""
    replicas, whole = stepped.replicas, stepped.whole

    def energy(outcome: Outcome, step: PooledStep | None) -> Array:
        with np.errstate(invalid="ignore"):  # of steps that never end
            drawn = drawn_energy(replace(whole, energy=outcome.energy, sent=outcome.sent), outcome.total)
            if step is not None and stepped.feeding is not None:
                drawn = drawn + drawn_energy(replace(stepped.feeding, energy=step.energy, sent=step.sent), outcome.total)
        return drawn / replicas.layout.dp

    return replace(step_table(replicas, stepped.reach, energy), graphs=stepped.graphs, stages=stepped.reach.parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Site:
    """What all engines of a replay have in common."""

    scenario: Scenario
    trace: RequestTrace
    job: Job
    service: Service
    given: int | None  # tokens of the cache of an engine that writes, where the scenario says them. [1]
    tiers: tuple[HostCacheSpec, ...]  # further ones of the cache of an engine that reads
    experts: tuple[ExpertPool, Fleet] | None  # devices of their own, which engines that write share

    def engines(self, ground: _Ground, *, reads: bool, writes: bool) -> Engines:
        """The engines that run on some ground."""
        runs_on, fleet, layout = ground.machine, ground.fleet, ground.layout
        trace, service, habits = self.trace, self.service, runs_on.stack.engine
        longest = int((trace.prompt + trace.output).max())
        serving = self.scenario.workload.service
        chunk, stages = (int(service.chunk[0]), int(layout.pp[0])) if writes else (int(trace.prompt.max()), 1)
        most = min(int(service.most[0]) if writes else 1, len(trace))
        pool, feeding = self.experts if self.experts is not None and writes else (None, None)
        job = self.job if reads else replace(self.job, tower=None)  # images are encoded where prompts are read
        group = 1 if writes else int(layout.dp[0])
        replicas = Replicas(
            job=job if writes else replace(job, pooled=False), layout=layout, machine=runs_on,
            microbatches=float(layout.microbatches[0]), drafts=float(service.drafts[0]), experts=pool, ranks=group,
        )  # fmt: skip
        reach = Reach(
            requests=most if writes else 1,
            context=longest,
            tokens=min(chunk, most * longest) * stages,
            lengths=_lengths(trace),
            parts=stages,
        )
        graphs = POLICIES[habits.scheduler].graphs if writes and runs_on.stack.kernels.launch == "graph" else ()
        table = _table(_Stepped.of(replicas, reach, replace(fleet, devices=layout.devices), graphs, feeding))
        page = math.gcd(int(habits.block), trace.block) if trace.block else int(habits.block)
        room, size, held = self._tokens(job, layout, runs_on, chunk if writes else chunk / float(layout.pp[0]), writes=writes)
        pages = (self.given if writes and self.given is not None else room) // page
        tiers = self.tiers if reads and size else ()
        swaps, space = writes and held > 0 and serving.preemption_mode == "swap", serving.swap_space
        limits = Limits(
            chunk=chunk, requests=most, pages=pages, page=page, written=self.job.written, reads=reads, writes=writes, microbatches=stages,
            swap=held / float(runs_on.host_rate(layout.devices)[0]) if swaps else None,
            swap_tokens=math.inf if space is None or not swaps else int(space / held),
            pace=float(service.gained[0]) if writes else 1.0, ahead=replicas.ahead,
            fetch=tuple(page * size / tier.bandwidth for tier in tiers),
        )  # fmt: skip
        return Engines(
            count=ground.engines, group=group,
            table=table, limits=limits, fleet=replace(fleet, devices=layout.devices / layout.dp), pool=ground.pool,
            beyond=tuple(int(tier.capacity / (page * size)) for tier in tiers), held=held, load=self._load(layout, runs_on),
            rate=capacity(table, limits, trace), feeding=feeding and replace(feeding, devices=feeding.devices / layout.dp),
        )  # fmt: skip

    def _load(self, layout: Layout, runs_on: Machine) -> float:
        """Time in which the weights of one adapter come from the host, to all devices at once. [s]"""
        mix = self.job.adapters
        if mix is None:
            return 0.0
        sizes = [memory(replace(self.job, adapters=replace(mix, slots=slots)), layout, runs_on).stages[WEIGHTS] for slots in (1, 2)]
        return float(((sizes[1] - sizes[0]).max(axis=0) / runs_on.host_rate(layout.devices))[0])

    def _tokens(self, job: Job, layout: Layout, runs_on: Machine, chunk: float, *, writes: bool) -> tuple[int, float, float]:
        """Tokens whose keys and values an engine has room for, and the bytes of one on all of its devices and on the fullest. [1], [B], [B]

        By a mean request.
        """
        trace = self.trace
        mean = max(int(np.mean(trace.prompt + 0.5 * trace.output)), 1)
        job = (job.own if writes else job).at(context=mean, cached=mean, staggered=False)
        service = replace(
            self.service, prefill=None, prompt=np.full(1, float(mean)), hits=np.zeros(1),
            chunk=np.full(1, float(chunk)), whole=False,
        )  # fmt: skip
        held, most = cache_room(job, layout, runs_on, service)
        size = float(held.stages[CACHE].sum() * layout.devices[0] / (layout.pp[0] * layout.dp[0])) / mean
        return int(min(most[0], 1e9) * mean), size, float(held.stages[CACHE].max()) / mean
