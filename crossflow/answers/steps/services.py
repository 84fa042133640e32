"""Services in steady state: what scenarios say of them as arrays, and the mean step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.batch import Fleet, Ran
from crossflow.answers.steps.machines import machine, pool_machine
from crossflow.answers.steps.members import own_members
from crossflow.answers.steps.step import Slowed
from crossflow.answers.steps.transformers import TransformerStep, expert_pool
from crossflow.base import files
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import CACHE, memory
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.hardware.architecture.template import ENCODING
from crossflow.hardware.mapping.topology import GROUPED
from crossflow.parallel.batches import laid_out, overlaps
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plans import encoder_plan, engine_devices, worker_plan
from crossflow.program.groups import JobPart
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

if TYPE_CHECKING:
    from crossflow.engine.runs.apart import ExpertPool
    from crossflow.engine.runs.service import Service, Steady
    from crossflow.workload.traits import WorkloadSpec

UNQUEUED = "a steady state knows no queue of images; give requests, which are replayed, or leave encode out"
OF_A_REPLAY = "a steady state knows engines of one kind; give requests, which are replayed, or leave the pools out"


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceParts:
    """Where the engines of a service lie on a network that others share, each kind after the one before."""

    writing: tuple[JobPart, ...]  # the replicas of the strategy, then those of pools
    reading: JobPart  # workers for prompts

    @classmethod
    def of(cls, writing: Sequence[Array], reading: Array, node: int) -> ServiceParts:
        """Engines on so many devices, in nodes of so many; `reading` is 0 where no workers are apart. [1]"""
        *written, read = JobPart.in_turn([*writing, reading], node)
        return cls(writing=tuple(written), reading=read)

    def service(self, service: Service) -> Service:
        """A service whose workers for prompts lie so."""
        if service.prefill is None:
            return service
        return replace(service, prefill=replace(service.prefill, layout=replace(service.prefill.layout, part=self.reading)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceStep(TransformerStep):
    """The mean step of services in steady state, of all replicas; a sample is a request."""

    def run(self) -> Ran:
        """See `ScenarioStep.run`."""
        return self._run_on(self.machine)

    def _run_on(self, runs_on: Machine) -> Ran:
        """The same on a machine, which also keeps what was worked out of its network."""
        batch, job, pool = self.batch, self.job, self.batch.pools.get("prefill")
        reads_on = runs_on if pool is None else pool_machine(batch.scenario, pool.device, pool.system, least=batch.least)
        layout = Layout.of(batch.members.strategies, batch.members.batch, runs_on.node)
        service = service_of(job, batch.members.workloads, batch.members.which, runs_on, reads_on)  # type: ignore[arg-type] # of transformers
        found, further = expert_pool(batch, runs_on), self._further()
        service = service if found is None else replace(service, experts=found[0])
        replicas = layout.devices
        if lies_somewhere(batch.scenario):
            places = _parts_of(layout, service, [one.devices for one in further])
            layout, service = replace(layout, part=places.writing[0]), places.service(service)
        layout, service = _cut(job, _at_work(layout, service), service, runs_on.stack)
        # A replay has its own times. What lies on other devices, or on a second memory, still follows from the balance.
        alone = service.prefill is None and service.experts is None and runs_on.architecture.second is None
        from crossflow.engine.runs.service import at_rest, steady_state

        steady = (at_rest if alone and batch.scenario.requests is not None else steady_state)(job, layout, runs_on, service)
        beside = self._beside(steady, service, found, further)
        return Ran(
            outcome=steady.outcome, devices=sum((one.devices for one in beside), replicas), beside=beside, serving=steady.figures,
            answered=(steady.requests, service.output),
        )  # fmt: skip

    def slowed(self) -> Slowed:
        """What collectives of engines lose to congestion, and keys and values on their way between them."""
        runs_on = replace(self.machine)  # with wires that have priced nothing yet
        self._run_on(runs_on)
        return runs_on.wires.slowed

    @property
    def apart(self) -> None:
        """None: what streams of a step do to each other is told of no service."""
        return

    def _beside(
        self, steady: Steady, service: Service, experts: tuple[ExpertPool, Fleet] | None, further: tuple[Fleet, ...]
    ) -> tuple[Fleet, ...]:
        """Devices beside those of the replicas: workers for prompts, further engines, and those that hold experts."""
        batch, beside = self.batch, (*further, *self._encoders())
        if service.prefill is not None:
            fleet = batch.pools.get("prefill") or Fleet(system=batch.system, device=batch.device)
            devices = service.prefill.workers * service.prefill.layout.devices
            beside = (replace(fleet, devices=devices, energy=steady.reading), *beside)
        if experts is not None and steady.feeding is not None:
            beside = (*beside, replace(experts[1], energy=steady.feeding.energy, sent=steady.feeding.sent))
        return beside

    def _further(self) -> tuple[Fleet, ...]:
        """Devices of pools of further engines, which only a replay puts to work."""
        batch = self.batch
        counts = [engine_devices(one) for one in batch.members.workloads]
        names = dict.fromkeys(name for count in counts for name in count)
        if names and batch.scenario.requests is None:
            raise CrossflowError(f"{batch.scenario.name}: workload.serving.pools: {OF_A_REPLAY}")
        return tuple(self._fleet(name, [count.get(name, 0) for count in counts]) for name in names)

    def _encoders(self) -> tuple[Fleet, ...]:
        """Devices of encoders of images, which only a replay puts to work."""
        batch = self.batch
        counts = [_encoding(one) for one in batch.members.workloads]
        if not any(counts):
            return ()
        if batch.scenario.requests is None:
            raise CrossflowError(f"{batch.scenario.name}: workload.serving.images.encode: {UNQUEUED}")
        return (self._fleet(ENCODING, counts),)

    def _fleet(self, name: str, counts: Sequence[int]) -> Fleet:
        """Devices of a pool, those of the system where there is no such pool, of which each workload has so many."""
        batch = self.batch
        own = batch.pools.get(name) or Fleet(system=batch.system, device=batch.device)
        return replace(own, devices=np.array(counts, dtype=float)[batch.members.which])


def _encoding(workload: WorkloadSpec) -> int:
    """Devices of the encoders of images. [1]"""
    plan, images = encoder_plan(workload), workload.service.images
    return 0 if plan is None or images is None or images.encode is None else plan.devices * images.encode.workers


def _cut(job: Job, layout: Layout, service: Service, stack: SoftwareStack) -> tuple[Layout, Service]:
    """Plans with the microbatches of their steps, and the service with the pieces of prompts that such a microbatch reads."""
    microbatches = _microbatches(layout, service)
    requests = np.where(service.rate > 0, 2.0, layout.micro_batch * layout.microbatches / microbatches)  # of arrivals any number
    parts = np.where(overlaps(job, replace(layout, micro_batch=requests), stack), 2.0, 1.0)
    return replace(layout, microbatches=microbatches * parts), replace(service, chunk=np.maximum(service.chunk / parts, 1.0))


def handed_over(scenario: Scenario) -> float:
    """Keys and values of a prompt that a worker of its own hands over, on all of its devices. [B]"""
    members, runs_on = own_members(scenario), machine(scenario, scenario.architecture)
    service = service_of(members.job, members.workloads, members.which, runs_on, runs_on)  # type: ignore[arg-type] # of a transformer
    assert service.prefill is not None  # as who asks knows
    layout = service.prefill.layout
    held = memory(members.job.handed, layout, runs_on).stages[CACHE].max(axis=0)
    return float((held * layout.devices / layout.dp * service.left)[0])


def lies_somewhere(scenario: Scenario) -> bool:
    """Whether it matters in which nodes engines are: of a network that others share, or of nodes in groups, on devices of one kind."""
    inter = scenario.system.network.inter
    return inter.congestion is not None or (
        inter.wiring in GROUPED and not (scenario.system.pools or scenario.feeders or scenario.encoders or scenario.profile)
    )


def parts_of(scenario: Scenario) -> ServiceParts:
    """Where the engines of a scenario lie."""
    *writing, reading = (np.full(1, float(one)) for one in (scenario.devices, *scenario.further.values(), scenario.readers))
    return ServiceParts.of(writing, reading, scenario.system.devices_per_node)


def _parts_of(layout: Layout, service: Service, further: Sequence[Array]) -> ServiceParts:
    """Where the engines of every point lie: replicas, those of further pools, and workers for prompts."""
    prefill = service.prefill
    reading = np.zeros(len(layout)) if prefill is None else prefill.workers * prefill.layout.devices
    return ServiceParts.of([layout.devices, *further], reading, layout.node)


def between_nodes(scenario: Scenario) -> Iterator[str]:
    """What to say where a scenario describes links inside nodes, which its workers for prompts do not send over."""
    workload, network = scenario.workload, files.held(scenario.document.data, ("system", "network"))
    if workload.service.prefill and isinstance(network, Mapping) and network.get("intra"):
        yield (
            "system.network.intra does not carry keys and values of prompts: workers of serving.prefill lie on other nodes, and send over "
            "system.network.inter"
        )


def unlike_images(workload: WorkloadSpec) -> Iterator[str]:
    """What to say where images become more tokens of the prompt than their model makes."""
    images = workload.service.images if workload.is_service else None
    image = images.described.image if images else None
    if images is None or image is None or images.each <= image.tokens:
        return
    yield (
        f"workload.serving.images.tokens: an image becomes {images.each:,} tokens of the prompt, and {images.model or 'the tower'} makes "
        f"{image.tokens:,} of it, which is what is computed; of images in tiles count tiles, or name a model of larger images"
    )


def _at_work(layout: Layout, service: Service) -> Layout:
    """Plans with the replicas that have something to do: of fewer requests in flight than replicas each is alone, and the others rest.

    Replicas that share out experts make every step together, and each has its share of the requests on average.
    """
    flight = layout.micro_batch * layout.microbatches
    share = np.where((service.rate == 0) & (layout.ep == 1.0), np.minimum(flight, 1.0), 1.0)
    return replace(layout, dp=layout.dp * share, microbatches=layout.microbatches / share)


def _microbatches(layout: Layout, service: Service) -> Array:
    """Microbatches of a step, one a stage unless a strategy says otherwise: also of arrivals, of requests in flight that replicas do not
    divide, and where stages do not divide them. A request is in one of them, so that of fewer requests than stages each has its own. [1]
    """
    flight = layout.micro_batch * layout.microbatches
    mean = flight % 1.0 > 0  # of which a replica has its share in the mean
    whole = (layout.microbatches == 1.0) & (flight % layout.pp > 0)
    few = np.clip(flight, 1.0, layout.pp)
    return np.where(service.rate > 0, layout.pp, np.where(mean | whole, few, layout.microbatches))


def service_of(job: Job, workloads: Sequence[TransformerSpec], which: Index, runs_on: Machine, reads_on: Machine) -> Service:
    """How the requests of every point are served, `which` of the workloads it has; workers of their own for prompts on `reads_on`."""
    engine, ones = runs_on.stack.engine, np.ones(len(which))

    def column(value: Callable[[TransformerSpec], float]) -> Array:
        return np.array([float(value(workload)) for workload in workloads])[which]

    rate, tokens = column(lambda one: one.serving.arrival_rate or 0.0), column(lambda one: one.tokens)
    hits = np.minimum(np.floor(tokens * column(lambda one: one.serving.prefix_hits)), tokens - 1.0)
    plans = [worker_plan(one) for one in workloads]
    workers = column(lambda one: one.serving.prefill.workers if one.serving.prefill else 0)
    readers = [plan for plan in (plans[i] for i in which) if plan is not None]
    from crossflow.engine.runs.service import Prefill, Service

    return Service(
        requests=np.where(rate > 0, np.inf, column(lambda one: one.global_batch)), rate=rate, prompt=tokens - hits, hits=hits,
        output=column(lambda one: one.output or 0), chunk=column(lambda one: one.serving.chunk or engine.chunk),
        most=engine.requests * ones, room=engine.memory * ones, cache=engine.cache * ones,
        whole=engine.admits == "whole", gathers=engine.gathers, together=column(lambda one: one.serving.together) > 0,
        gained=column(_gained), drafts=column(_drafts),
        prefill=None if not readers else Prefill(
            machine=reads_on, workers=workers,
            layout=laid_out(job.reading, readers, np.array([float(plan.dp) for plan in readers]), reads_on.node, reads_on.stack),
        ),
    )  # fmt: skip


def _gained(workload: TransformerSpec) -> float:
    """Tokens that a step gives a request in the mean. [1]"""
    guesses = workload.serving.speculation
    from crossflow.engine.runs.service import guessed

    return 1.0 if guesses is None else guessed(guesses.positions)


def _drafts(workload: TransformerSpec) -> float:
    """Time of guessing, over that of a step. [1]"""
    guesses = workload.serving.speculation
    return 0.0 if guesses is None else guesses.tokens * guesses.cost
