"""Strategies of all workloads: from any notation to what a workload's builder takes, checked against it, and listed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from crossflow.base.errors import StrategyError
from crossflow.base.limits import shown
from crossflow.hardware.architecture.connected import unconnected
from crossflow.hardware.architecture.template import SystemSpec, fills
from crossflow.parallel.strategy.hierarchy import Hierarchy, RecommendationStrategies
from crossflow.parallel.strategy.kinds import ANY, LayeredStrategies, Nodes, StrategyFilter, StrategyKind, StrategyLimits
from crossflow.parallel.strategy.mesh import Mesh, needs, sizes_text
from crossflow.parallel.strategy.notation import Written, is_by_types, parse_any
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.plans import TransformerStrategies

if TYPE_CHECKING:
    from crossflow.workload.kinds import Workload

AnyStrategy = Mesh | Plan | Hierarchy
DATA_PARALLEL = "d*"  # the strategy that is data parallel over all devices, however many
AUTO = "auto"  # the fastest strategy that fits, which `crossflow.answers.planning` chooses when it loads a scenario
BY_TYPES = "roles by layer type say nothing of stages on devices of several kinds; give degrees, such as tp8-dp4-pp4"
LONGEST = 2000  # characters of a strategy

_LAYERED: Mapping[str, type[LayeredStrategies]] = {"transformer": TransformerStrategies, "dlrm": RecommendationStrategies}


def strategies_of(workload: Workload) -> StrategyKind:
    """Strategies of a workload, as its kind has them."""
    if workload.layered:
        return _LAYERED[workload.model](workload)
    from crossflow.parallel.strategy.graphs import GraphStrategies, ProgramStrategies

    return (GraphStrategies if workload.divisible else ProgramStrategies)(workload)


def read_strategy(written: Written | None, workload: Workload | None, system: SystemSpec | None) -> AnyStrategy | None:
    """A strategy in the form that a workload's builder takes, from any notation; None where that takes what is not known."""
    if written is None:
        return None
    if not isinstance(written, (str, Mapping)):
        raise StrategyError(f"strategy: expected text or a mapping, got {written!r}")
    if isinstance(written, str) and len(written) > LONGEST:
        raise StrategyError(f"strategy: {shown(written)} has {len(written):,} characters, and {LONGEST:,} at most are read")
    if written == "legal":
        raise StrategyError("strategy: 'legal' stands for all that fit; it belongs in the space of a study, a scenario has one strategy")
    if written == AUTO:
        raise StrategyError(
            "strategy: auto cannot be used here, where a strategy is read by itself; give one, such as the first that crossflow plan lists,"
            " or search them all in a study: space: {strategy: legal}"
        )
    if workload is None:
        if written not in (ANY, DATA_PARALLEL):
            parse_any(written)  # the workload has its own problems by then; a strategy is wrong that none could have
        return None
    kind = strategies_of(workload)
    if not workload.divisible:
        return kind.read(written, None)
    if system is None:
        return None if written in (ANY, DATA_PARALLEL) else kind.read(written, None)
    if written == ANY:
        first = next(kind.legal(system.mesh, StrategyFilter(kinds=system.kinds)), None)
        if first is None:
            raise StrategyError(kind.undivided(system.whole_count))
        written = kind.text(first)
    if system.kinds and is_by_types(written):
        raise StrategyError(f"strategy: {BY_TYPES}")
    return kind.read(f"d{system.whole_count}" if written == DATA_PARALLEL else written, system.mesh)


def undivided(workload: Workload, devices: int) -> str:
    """What to say where no strategy divides a workload over so many devices, with what would let one."""
    return strategies_of(workload).undivided(devices)


def as_text(strategy: AnyStrategy, workload: Workload) -> str:
    """A strategy as text that reads back as itself."""
    return strategies_of(workload).text(strategy)


def as_texts(strategies: Iterable[AnyStrategy], workload: Workload) -> list[str]:
    """The same of several strategies."""
    return list(map(strategies_of(workload).text, strategies))


def fitting(strategy: AnyStrategy | None, system: SystemSpec, workload: Workload) -> AnyStrategy:
    """The strategy, if it fits the number of devices; on one device none is needed, then it is the trivial one."""
    counted, devices, kind = system.counted, system.whole_count, strategies_of(workload)
    if not workload.divisible:
        return _own(kind.alone, system)
    if strategy is None:
        if counted and devices > 1:
            raise StrategyError(
                f"strategy: missing, and the system has {devices} devices; write strategy: auto for the fastest that fits,"
                f" or {kind.over_all(devices)} for data parallelism over all of them"
            )
        return kind.alone
    if isinstance(strategy, Hierarchy):
        return strategy
    if counted and strategy.devices != devices:
        told = needs(strategy, strategy.axes, strategy.devices, devices, _more(strategy, system, workload))
        apart = unconnected(system, strategy.devices) if strategy.devices > devices else None
        raise StrategyError(f"{told}; {apart}") if apart else told
    return _filling(strategy, system)


def _filling(strategy: Mesh | Plan, system: SystemSpec) -> AnyStrategy:
    """A strategy, if its devices fill nodes."""
    if not system.kinds and not fills(strategy.devices, system.devices_per_node):
        raise StrategyError(f"strategy {strategy} needs {strategy.devices} devices, which do not fill nodes of {system.devices_per_node}")
    return strategy


def _own(mesh: AnyStrategy, system: SystemSpec) -> AnyStrategy:
    """The mesh that a program is written for, if it fits the number of devices."""
    assert isinstance(mesh, Mesh)  # a program's is
    if system.counted and mesh.devices != system.whole_count:
        axes = sizes_text(tuple((axis.name, axis.size) for axis in mesh.axes))
        raise StrategyError(
            f"system: the program is written for {f'a mesh of {mesh.devices} devices ({axes})' if mesh.devices > 1 else axes},"
            f" but the system has {system.whole_count}",
            f"give the system devices: {mesh.devices}", mesh.devices,
        )  # fmt: skip
    return _filling(mesh, system)


def _more(strategy: Plan | Mesh, system: SystemSpec, workload: Workload) -> int:
    """Devices of a node of a system that would take a strategy if it had more of them; 0 where it would not. [1]"""
    node, needed = system.devices_per_node, strategy.devices
    if system.kinds or unconnected(system, needed) or not fills(needed, node):
        return 0
    nodes = (min(node, needed), -(-needed // node))
    return 0 if isinstance(strategy, Plan) and strategy_problem(strategy, workload, StrategyLimits(nodes=nodes, balanced=True)) else node


def strategy_problem(strategy: Plan | Hierarchy, workload: Workload, limits: StrategyLimits, model: Any = None) -> str | None:
    """Why a strategy cannot divide a layered model, in a sentence; None where it can. `model` is the workload's, where it is at hand."""
    kind = strategies_of(workload)
    assert isinstance(kind, LayeredStrategies)  # a graph's is checked as it is laid out
    return kind.problem(strategy, limits, model)


def near_strategies(strategy: AnyStrategy, workload: Workload, limits: StrategyLimits, *, fused: bool = False) -> Mapping[str, str]:
    """Strategies of a layered model on as many devices that are worth comparing with one, as text, each with what it changes.

    With `fused` attention no change to recomputation of scores is among them, which equals none.

    Plans one change away from a transformer's; of a recommendation model all that divide it; of a graph of kernels none.
    """
    kind = strategies_of(workload)
    return kind.near(strategy, limits, StrategyFilter(fused=fused)) if isinstance(kind, LayeredStrategies) else {}


@functools.lru_cache(maxsize=16)
def every_strategy(
    workload: Workload, nodes: Nodes, *, fused: bool = False, placed: bool = False, kinds: tuple[int, ...] = ()
) -> tuple[str, ...]:
    """Every strategy of `legal_strategies`, as text that reads back as itself."""
    return tuple(as_texts(legal_strategies(workload, nodes, fused=fused, placed=placed, kinds=kinds), workload))


def legal_strategies(
    workload: Workload, nodes: Nodes, *, fused: bool = False, placed: bool = False, kinds: tuple[int, ...] = ()
) -> tuple[AnyStrategy, ...]:
    """Every strategy that divides a workload over all devices of so many nodes; StrategyError for a program, which has its own.

    With `fused` attention scores are not computed again: such attention never keeps them.
    With `placed` plans of transformers are listed in every order of their ranks on the devices. Of devices of several `kinds` those are
    listed whose stages each lie on one kind.
    """
    return tuple(strategies_of(workload).legal(nodes, StrategyFilter(fused=fused, placed=placed, kinds=kinds)))
