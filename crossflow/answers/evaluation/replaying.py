"""A scenario's service by events: tables of its steps, room of its caches, engines behind a router, and a replay of requests."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from crossflow.answers.evaluation.common import Fleet, drawn_energy
from crossflow.answers.evaluation.layered import machine, pool_machine
from crossflow.answers.evaluation.members import check_strategy
from crossflow.answers.evaluation.serving import service_of
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import CACHE
from crossflow.engine.runs.service import NO_ROOM, Prefill, Service, cache_room, sending
from crossflow.engine.runs.service_table import Reach, Replicas, step_table
from crossflow.engine.service.cache import PrefixCache
from crossflow.engine.service.fleet import EnginePool, Readers, replay
from crossflow.engine.service.policies import POLICIES, policy_of
from crossflow.engine.service.replayed import Jumps, ServiceReplay
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.routers import router
from crossflow.engine.service.steps import StepTable
from crossflow.engine.service.ticket import Limits
from crossflow.parallel.batches import overlaps
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import AnyStrategy
from crossflow.workload.job import Job
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.spec import HostCacheSpec, TransformerSpec

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


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayedScenario:
    """A replay with the engines that it ran on; `problem` says why there is none where no request has room."""

    found: ServiceReplay | None
    writers: Engines
    readers: Engines | None
    problem: str = ""

    @functools.cached_property
    def kinds(self) -> tuple[Engines, ...]:
        """Engines by kind, in the order of the replay's jumps."""
        return (self.writers,) if self.readers is None else (self.readers, self.writers)

    @functools.cached_property
    def engines(self) -> tuple[tuple[Engines, Jumps], ...]:
        """What each engine is, and what it did."""
        assert self.found is not None  # who asks has looked
        each = [kind for kind in self.kinds for _ in range(kind.count)]
        return tuple(zip(each, self.found.jumps, strict=True))

    @functools.cached_property
    def energies(self) -> tuple[Array, ...]:
        """Energy of every jump of each engine, over all of its devices, at rest included. [J]"""
        return tuple(
            one.table.energy(did.writers, did.context, did.tokens, did.keys) * did.steps if len(did.steps) else np.zeros(0)
            for one, did in self.engines
        )

    @property
    def resting(self) -> tuple[float, ...]:
        """Power of each engine between its jumps. [W]"""
        return tuple(float(drawn_energy(one.fleet, np.ones(1))[0]) for one, _ in self.engines)


def replayed_scenario(scenario: Scenario, trace: RequestTrace, seed: int = 0) -> ReplayedScenario:
    """Replay requests through the service of a scenario.

    Raises
    ------
    CrossflowError
        Where the scenario is no service, or one that is not replayed.
    """
    workload, plan = scenario.workload, scenario.strategy
    if not isinstance(workload, TransformerSpec) or workload.task != "serving":
        raise CrossflowError(OF_A_SERVICE.format(task=getattr(workload, "task", workload.model)))
    assert isinstance(plan, Plan)  # a transformer has one
    assert scenario.stack is not None  # and software
    check_strategy(scenario, plan, workload, scenario.nodes)
    writers, readers, sent = _engines(scenario, trace)
    problem = _unbuilt(writers, readers) or ("" if writers.limits.pages else NO_ROOM)
    if problem:
        return ReplayedScenario(found=None, writers=writers, readers=readers, problem=problem)
    rng = np.random.default_rng(seed)
    return ReplayedScenario(
        found=replay(
            trace, _pool(scenario, trace, writers, rng),
            None if readers is None else Readers(pool=_pool(scenario, trace, readers, rng), fixed=sent[0], each=sent[1]),
        ),
        writers=writers, readers=readers,
    )  # fmt: skip


def _unbuilt(*engines: Engines | None) -> str:
    """Why the devices of engines cannot be built, as scores say it; nothing where they can."""
    kinds = [(one.fleet, mask, sentence) for one in engines if one is not None for mask, sentence in one.fleet.device.problems]
    return next((f"{fleet.prefix(': ')}cannot be built: {sentence}" for fleet, mask, sentence in kinds if np.any(mask)), "")


def _pool(scenario: Scenario, trace: RequestTrace, engines: Engines, rng: np.random.Generator) -> EnginePool:
    """Engines with empty queues and caches, behind the scenario's router."""
    assert scenario.stack is not None
    assert isinstance(scenario.workload, TransformerSpec)
    habits, limits = scenario.stack.engine, engines.limits
    policy = policy_of(*((habits.scheduler, habits.admits) if limits.writes else ("vllm", "written")), habits.queue)
    size = max(trace.block // limits.page, 1)
    beyond = tuple(pages // size for pages in engines.beyond)
    return EnginePool(
        replicas=tuple(Replica(engines.table, limits, policy, PrefixCache(size, beyond)) for _ in range(engines.count)),
        route=router(scenario.workload.serving.router, trace, engines.count, rng),
        coupled=limits.writes and _coupled(scenario.strategy),
    )


def _coupled(plan: AnyStrategy) -> bool:
    """Whether replicas share out experts, and so make every step together."""
    return isinstance(plan, Plan) and plan.dp > 1 and plan.ep > 1


def _engines(scenario: Scenario, trace: RequestTrace) -> tuple[Engines, Engines | None, tuple[float, float]]:
    """Engines that write, those that only read, and the times that sending a prompt's keys and values takes: fixed, and for each token."""
    workload, plan, job = scenario.workload, scenario.strategy, scenario.job()
    assert isinstance(workload, TransformerSpec)
    assert isinstance(plan, Plan)
    runs_on = machine(scenario, scenario.architecture)
    pool = scenario.system.pooled.get("prefill")
    reads_on = runs_on if pool is None else pool_machine(scenario, scenario.pool_architectures["prefill"], pool)
    service = service_of(job, (workload,), np.zeros(1, dtype=np.intp), runs_on, reads_on)
    layout = Layout.of([plan], np.ones(1), runs_on.node)
    if not _coupled(plan):  # whose replicas have nothing to do with each other
        layout = replace(layout, dp=np.ones(1))
    parts = np.where(overlaps(job, replace(layout, micro_batch=np.full(1, 2.0)), runs_on.stack), 2.0, 1.0)
    layout = replace(layout, microbatches=layout.pp * parts)
    site = _Site(
        scenario=scenario, trace=trace, job=job, service=service, given=workload.serving.cache_tokens, tiers=workload.serving.tiers
    )
    fleet = Fleet(system=scenario.system, device=scenario.architecture)
    prefill = service.prefill
    writers = site.engines(plan.dp, fleet, layout, runs_on, reads=prefill is None, writes=True)
    if prefill is None:
        return writers, None, (0.0, 0.0)
    others = fleet if pool is None else Fleet(pool="prefill", system=pool, device=scenario.pool_architectures["prefill"])
    readers = site.engines(int(prefill.workers[0]), others, prefill.layout, reads_on, reads=True, writes=False)
    return writers, readers, _sent(job, runs_on, prefill, workload.tokens)


def _sent(job: Job, runs_on: Machine, prefill: Prefill, prompt: int) -> tuple[float, float]:
    """Times that sending the keys and values of a prompt takes: fixed, and for each of its tokens. [s], [s]"""
    half, whole = (float(sending(job, runs_on, prefill, np.full(1, share))[0]) for share in (0.5, 1.0))
    each = (whole - half) / (0.5 * prompt)
    return whole - each * prompt, each


@dataclass(frozen=True, kw_only=True, eq=False)
class _Site:
    """What all engines of a replay have in common."""

    scenario: Scenario
    trace: RequestTrace
    job: Job
    service: Service
    given: int | None  # tokens of the cache of an engine that writes, where the scenario says them. [1]
    tiers: tuple[HostCacheSpec, ...]  # further ones of the cache of an engine that reads

    def engines(self, count: int, fleet: Fleet, layout: Layout, runs_on: Machine, *, reads: bool, writes: bool) -> Engines:
        """So many engines on devices of a kind, each with a plan."""
        trace, service, habits = self.trace, self.service, runs_on.stack.engine
        longest = int((trace.prompt + trace.output).max())
        chunk = int(service.chunk[0] * layout.pp[0]) if writes else int(trace.prompt.max())
        most = min(int(service.most[0]) if writes else 1, len(trace))
        replicas = Replicas(
            job=self.job, layout=layout, machine=runs_on, microbatches=float(layout.microbatches[0]), gained=float(service.gained[0]),
            drafts=float(service.drafts[0]),
        )  # fmt: skip
        whole, replicas_of = replace(fleet, devices=layout.devices), layout.dp  # of a step, which several replicas may share
        table = step_table(
            replicas, Reach(requests=most if writes else 1, context=longest, tokens=min(chunk, most * longest)),
            lambda outcome: drawn_energy(replace(whole, energy=outcome.energy, sent=outcome.sent), outcome.total) / replicas_of,
        )  # fmt: skip
        page = math.gcd(int(habits.block), trace.block) if trace.block else int(habits.block)
        room, size, held = self._tokens(layout, runs_on, chunk)
        pages = (self.given if writes and self.given is not None else room) // page
        tiers = self.tiers if reads and size else ()
        limits = Limits(
            chunk=chunk, requests=most, pages=pages, page=page, written=self.job.written, reads=reads, writes=writes,
            fetch=tuple(page * size / tier.bandwidth for tier in tiers),
        )  # fmt: skip
        graphs = POLICIES[habits.scheduler].graphs if writes and runs_on.stack.kernels.launch == "graph" else ()
        return Engines(
            count=count, table=replace(table, graphs=graphs), limits=limits, fleet=replace(fleet, devices=layout.devices / layout.dp),
            beyond=tuple(int(tier.capacity / (page * size)) for tier in tiers), held=held,
        )  # fmt: skip

    def _tokens(self, layout: Layout, runs_on: Machine, chunk: int) -> tuple[int, float, float]:
        """Tokens whose keys and values an engine has room for, and the bytes of one on all of its devices and on the fullest. [1], [B], [B]

        By a mean request.
        """
        trace = self.trace
        mean = max(int(np.mean(trace.prompt + 0.5 * trace.output)), 1)
        job = replace(self.job, context=mean, cached=mean, staggered=False)
        service = replace(
            self.service, prefill=None, prompt=np.full(1, float(mean)), hits=np.zeros(1),
            chunk=np.full(1, chunk / float(layout.pp[0])), whole=False,
        )  # fmt: skip
        held, most = cache_room(job, layout, runs_on, service)
        size = float(held.stages[CACHE].sum() * layout.devices[0] / (layout.pp[0] * layout.dp[0])) / mean
        return int(min(most[0], 1e9) * mean), size, float(held.stages[CACHE].max()) / mean
