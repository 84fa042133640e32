"""Kinds of fleets: engines that are alike in all but their number, and the scenario of so many of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossflow.answers.evaluation.fleets import coupled
from crossflow.answers.evaluation.replaying import ServiceEngines, engines_of
from crossflow.answers.evaluation.scoring import rents
from crossflow.answers.points import Together, is_together, read_together, variant
from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.batch import Fleet
from crossflow.base.errors import CrossflowError
from crossflow.hardware.architecture.template import fills
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import legal_strategies
from crossflow.parallel.strategy.transformers import plan_of
from crossflow.workload.requests.record import RequestTrace

FleetSpace = Mapping[str, Sequence[Any] | Together]  # values by path, or settings that change together by name
STRATEGY, DEVICES, NODES = "strategy", "system.devices", "system.nodes"
WORKERS, ROUTER = "workload.serving.prefill.workers", "workload.serving.router"
ENCODERS = "workload.serving.images.encode.workers"
_ANY_ROUTER = "round_robin"  # tables know no router
SPREAD = 2  # nodes over which an engine lies at most, unless a space says otherwise
SHARING = "{text}: its replicas share out experts and are one engine; say the whole of it, such as ep within tp, or leave it out"


@dataclass(frozen=True, kw_only=True)
class FleetKind:
    """Engines that are alike: how one is laid out, and all else that the fleet is made of, by path."""

    strategy: str  # of one engine, such as tp4
    settings: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)  # the same by the last word of each path, or the name of what changes together

    @property
    def name(self) -> str:
        """What it is, in words that tell it from others.

        >>> FleetKind(strategy="tp4", told={"chip": "H200", "router": "prefix"}).name
        'tp4, chip H200, router prefix'
        """
        return ", ".join([self.strategy, *(f"{name} {value}" for name, value in self.told.items())])

    @property
    def hardware(self) -> frozenset[tuple[str, str]]:
        """What its system is made of where that is varied, without its size and its price: equal for layouts of one system."""
        varied = {path: value for path, value in self.settings.items() if path.startswith("system.")}
        size = (DEVICES, NODES, "system.operation")
        return frozenset((path, repr(value)) for path, value in varied.items() if not path.startswith(size))


@dataclass(frozen=True, kw_only=True, eq=False)
class FleetSite:
    """A kind of fleet on its devices: tables of its engines, what each costs, and how many there may be."""

    kind: FleetKind
    scenario: Scenario  # of the smallest fleet
    trace: RequestTrace
    plan: Plan  # of one engine
    counts: tuple[int, ...]  # engines that write and fill whole nodes, rising
    readers: tuple[int, ...]  # workers that only read prompts, (0,) where they are not apart

    @functools.cached_property
    def engines(self) -> ServiceEngines:
        """Engines with the tables that all fleets of the kind share."""
        return _engines(variant(self.scenario, {ROUTER: _ANY_ROUTER}), self.trace)

    @functools.cached_property
    def each(self) -> tuple[float, float]:
        """Devices of an engine that writes, and of a worker that only reads."""
        found = self.engines
        return tuple(0.0 if one is None else one.group * float(one.fleet.devices[0]) for one in (found.writers, found.readers))  # type: ignore[return-value] # of two

    @functools.cached_property
    def rents(self) -> tuple[float, float]:
        """Rent of an engine that writes, and of a worker that only reads; NaN where a device has no price. [USD/s]"""
        found = self.engines
        return self._rent(found.writers.fleet), 0.0 if found.readers is None else found.readers.group * self._rent(found.readers.fleet)

    @functools.cached_property
    def beside(self) -> tuple[float, float]:
        """Devices that every fleet has beside its engines, those of the encoders of images, and their rent. [1], [USD/s]"""
        pool = self.engines.encoders
        return (0.0, 0.0) if pool is None else (float(pool.all.devices[0]), self._rent(pool.all))

    def _rent(self, fleet: Fleet) -> float:
        return float(rents([fleet], self.scenario.workload.dtype, 1)[0][0])

    def devices(self, writers: int, readers: int = 0) -> int:
        """Devices of so many engines, and of what is beside them."""
        return round(writers * self.each[0] + readers * self.each[1] + self.beside[0])

    def rent(self, writers: int, readers: int = 0) -> float:
        """Rent of the same; NaN where a device has no price. [USD/s]"""
        return writers * self.rents[0] + readers * self.rents[1] + self.beside[1]

    def scenario_of(self, writers: int, readers: int = 0) -> Scenario:
        """The scenario of so many engines."""
        return variant(self.scenario, _counted(self.plan, writers, readers))


@functools.lru_cache(maxsize=64)
def _engines(scenario: Scenario, trace: RequestTrace) -> ServiceEngines:
    """Engines with their tables, which cost as much as a replay and which kinds with other routers share."""
    return engines_of(scenario, trace)


def _counted(plan: Plan, writers: int, readers: int = 0) -> dict[str, Any]:
    settings: dict[str, Any] = {STRATEGY: replace(plan, dp=writers).text(), DEVICES: writers * plan.devices}
    return settings | ({WORKERS: readers} if readers else {})


def site_of(scenario: Scenario, kind: FleetKind, trace: RequestTrace, most: int) -> FleetSite:
    """A kind of fleet of a scenario on at most so many devices.

    Raises
    ------
    CrossflowError
        Where an engine cannot be laid out so, with why.
    """
    others = {path: value for path, value in kind.settings.items() if path not in (STRATEGY, DEVICES)}
    plan = _plan_of(kind.strategy)
    readers: tuple[int, ...] = (0,)
    moved = _moved(scenario, others, plan)
    counts = tuple(n for n in range(1, most // plan.devices + 1) if fills(n * plan.devices, moved.system.devices_per_node))
    if not counts:
        raise CrossflowError(f"{kind.strategy}: an engine has {plan.devices} devices, and there are {most:,}")
    for key in ("pools", "autoscale", "experts"):
        if getattr(moved.workload.service, key):
            raise CrossflowError(f"workload.serving.{key}: plan counts engines of one kind; leave it out, or compare files with `serve`")
    if moved.system.network.inter.congestion is not None:
        why = "engines share links with each other, and a fleet of another size would lose something else to others"
        raise CrossflowError(f"system.network.inter.congestion: {why}; leave it out, or compare files with `serve`")
    if (apart := moved.workload.service.prefill) is not None:
        each = plan_of(apart.strategy).devices
        readers = tuple(range(1, (most - counts[0] * plan.devices) // each + 1)) or (apart.workers,)
    return FleetSite(kind=kind, scenario=moved, trace=trace, plan=plan, counts=counts, readers=readers)


def _plan_of(text: str) -> Plan:
    """The plan of one engine; replicas that it counts are left to the search, unless they share experts."""
    plan = plan_of(text)
    if coupled(plan):
        raise CrossflowError(SHARING.format(text=text))
    return replace(plan, dp=1)


def _moved(scenario: Scenario, others: Mapping[str, Any], plan: Plan) -> Scenario:
    """The scenario of one engine of a kind."""
    asked = scenario.document.data.get("system")
    nodes: dict[str, Any] = {NODES: None} if isinstance(asked, Mapping) and "nodes" in asked else {}  # devices are counted here
    return variant(scenario, {**nodes, **others, **_counted(plan, 1)})


def kinds_of(scenario: Scenario, space: FleetSpace, trace: RequestTrace, most: int) -> tuple[FleetKind, ...]:
    """All kinds of a space: layouts of an engine, with every combination of the values of other paths.

    Where the space says no `strategy`, every layout over a node and fewer devices, or over two, is one; where neither it nor the scenario
    says a router, requests go to the engine with the fewest, or, where prompts begin alike, to the one that has most of them.
    """
    given = dict(space)
    if ROUTER not in given:
        given[ROUTER] = _routers(scenario, trace)
    layouts = given.pop(STRATEGY, None)
    together = {name: read_together(name, values) for name, values in given.items() if isinstance(values, Mapping) and is_together(values)}
    found = list[FleetKind]()
    for values in itertools.product(*given.values()):
        told = dict(zip(given, values, strict=True))
        settings = {path: value for name, one in told.items() for path, value in _meant(together, name, one).items()}
        names = {"encoders" if name == ENCODERS else name.rpartition(".")[2]: one for name, one in told.items()}
        own = layouts if layouts is not None else _layouts(scenario, settings, most)
        found += [FleetKind(strategy=str(text), settings=settings, told=names) for text in own]
    return tuple(found)


def _meant(together: Mapping[str, Together], name: str, value: Any) -> Mapping[str, Any]:
    """Settings by path that a value of a space means."""
    return together[name][value] if name in together else {name: value}


def _routers(scenario: Scenario, trace: RequestTrace) -> list[str]:
    said = scenario.document.data.get("workload")
    named = said.get("serving", {}) if isinstance(said, Mapping) else {}
    if isinstance(named, Mapping) and "router" in named:
        return [named["router"]]
    return ["least_loaded", *(["prefix"] if trace.blocks is not None else [])]


def _layouts(scenario: Scenario, settings: Mapping[str, Any], most: int) -> list[str]:
    """Layouts of one engine on 1, 2, 4 and more devices, without those that only options of training tell apart."""
    plain = {path: value for path, value in settings.items() if path.startswith(("system.", "workload."))}
    there = variant(scenario, {**plain, STRATEGY: "any", DEVICES: 1})
    node, found = there.system.devices_per_node, dict[str, None]()
    for size in _sizes(min(most, SPREAD * node)):
        if fills(size, node):
            found |= dict.fromkeys(_laid_out(there, size, node))
    return list(found)


def _sizes(most: int) -> Iterator[int]:
    return itertools.takewhile(lambda size: size <= most, (2**k for k in itertools.count()))


def _laid_out(scenario: Scenario, size: int, node: int) -> Iterator[str]:
    """Layouts of one engine over so many devices; tokens between the parts of a layer are divided in mixtures of experts alone."""
    mixture = getattr(scenario.workload, "experts", None) is not None
    inside = (min(size, node), max(size // node, 1))
    seen = set[tuple[int, ...]]()
    for plan in legal_strategies(scenario.workload, inside, fused=scenario.fused_attention, kinds=scenario.system.kinds):
        if not isinstance(plan, Plan) or plan.dp > 1 or plan.cp > 1 or (plan.sequence_parallel and not mixture):
            continue
        key = (plan.tp, plan.pp, plan.ep, plan.etp or plan.tp)
        if key not in seen:
            seen.add(key)
            yield plan.text(("tp",))
