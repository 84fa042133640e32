"""Strategies of all workloads: read in the form that a workload knows, checked against it, and listed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from crossflow.architecture import SystemSpec
from crossflow.errors import StrategyError, did_you_mean
from crossflow.parallel import Plan, Strategy, legal_plans, legal_strategies, mesh_of, parse_plan, parse_strategy, plan_problem
from crossflow.parallel.hierarchy import (
    Hierarchy,
    hierarchy_problem,
    is_hierarchy,
    legal_hierarchies,
    parse_hierarchy,
)
from crossflow.parallel.layer_types import ROLES, plan_of_roles, roles_and_options
from crossflow.parallel.plan import DEGREES, RECOMPUTE
from crossflow.parallel.plans import neighbouring_plans
from crossflow.workload.dlrm import Dlrm
from crossflow.workload.spec import DlrmSpec, GemmSpec, LstmSpec, ProgramSpec, TransformerSpec
from crossflow.workload.transformer import Transformer

DATA_PARALLEL = "d*"  # the strategy that is data parallel over all devices, however many
NO_HOST = (
    "it keeps tensors on the host, of which the system says nothing; give system.host its capacity, bandwidth and utilisation,"
    " such as {capacity: 2 TiB, bandwidth: 400 GB/s, utilisation: 0.45}"
)
ANY = "any"  # the first strategy that divides a workload, where a study tries others anyway
GIVEN = "a program says by itself how it is divided; leave strategy out, or write another program"
Workload = LstmSpec | GemmSpec | TransformerSpec | DlrmSpec | ProgramSpec
AnyStrategy = Strategy | Plan | Hierarchy


def read_strategy(written: str | Mapping[str, Any] | None, workload: Workload | None, system: SystemSpec | None) -> AnyStrategy | None:
    """A strategy in the form that its workload knows; a transformer's may be written by layer types too."""
    if written is None:
        return None
    if not isinstance(written, (str, Mapping)):
        raise StrategyError(f"strategy: expected text or a mapping, got {written!r}")
    if workload is None:
        _check_of_any_workload(written)
        return None
    if isinstance(workload, ProgramSpec):
        raise StrategyError(f"strategy: {GIVEN}")
    if written == ANY:
        if system is None:
            return None
        node = min(system.devices_per_node, system.device_count)
        legal = every_strategy(workload, (node, system.device_count // node))
        if not legal:
            raise StrategyError(f"no strategy divides this {workload.model} over {system.device_count} devices")
        written = legal[0]
    if written == DATA_PARALLEL and system is not None:
        written = {"dense": "ddp", "embedding": "mp"} if isinstance(workload, DlrmSpec) else f"d{system.device_count}"
    if isinstance(workload, DlrmSpec):
        return parse_hierarchy(written)
    if not isinstance(workload, TransformerSpec):
        return parse_strategy(written)
    if is_hierarchy(written):
        roles, options = roles_and_options(written)
        if system is None:
            return None
        node = min(system.devices_per_node, system.device_count)
        nodes, experts = system.device_count // node, workload.experts is not None
        training = workload.task == "training"
        return plan_of_roles(roles, workload.global_batch, node, nodes, experts=experts, training=training, options=_options(options))
    return read_plan(written, workload)


def _check_of_any_workload(written: str | Mapping[str, Any]) -> None:
    """Without a workload, which has its own problems by then, a strategy is wrong that none could have."""
    if written in (ANY, DATA_PARALLEL):
        return
    forms: tuple[Callable[[Any], object], ...] = (
        (parse_hierarchy, roles_and_options) if is_hierarchy(written) else (parse_strategy, parse_plan)
    )
    problems = []
    for parse in forms:
        try:
            parse(written)
        except StrategyError as error:
            problems.append(error)
        else:
            return
    raise problems[_of_a_graph(written) - 1]


def _of_a_graph(written: str | Mapping[str, Any]) -> bool:
    """Whether what cannot be read was meant for a graph of kernels rather than for a transformer."""
    if isinstance(written, str):
        return re.match(r"(RC|CR)\b|[dp]\d", written.strip(), re.IGNORECASE) is not None
    return is_hierarchy(written) or bool({"kernel", "kp1", "kp2", "lp"} & set(written))


def read_plan(written: str | Mapping[str, Any], workload: TransformerSpec) -> Plan:
    """A plan; where it does not say, a service takes all requests of a replica at once, divided over the stages."""
    plan = parse_plan(written)
    said = "micro_batch" in written if isinstance(written, Mapping) else re.search(r"(^|-)mb\d", written)
    if workload.task == "training" or said or workload.global_batch % plan.dp:
        return plan
    return plan.serving(workload.global_batch)


def as_text(strategy: AnyStrategy, workload: Workload) -> str:
    """A strategy as text that reads back as itself: of a service with its microbatch, for what its plans mean by default is another."""
    service = isinstance(workload, TransformerSpec) and workload.task != "training"
    return strategy.text(always=("micro_batch",)) if service and isinstance(strategy, Plan) else str(strategy)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Further options beside layer types, as a plan has them; its degrees follow from the layer types."""
    known = sorted(field.name for field in fields(Plan) if field.name not in DEGREES)
    strange = [f"unknown key '{key}'{did_you_mean(str(key).lower(), [*ROLES, *known])}" for key in given if key not in (*known, *DEGREES)]
    if strange:
        raise StrategyError(f"strategy: {'; '.join(strange)}; layer types: {', '.join(ROLES)}; options beside them: {', '.join(known)}")
    plan = parse_plan(given)
    wrong = [key for key in given if key in DEGREES]
    if wrong:
        raise StrategyError(
            f"strategy: {', '.join(wrong)} beside layer types, which say how devices are divided; write the one or the other"
        )
    return {key: getattr(plan, key) for key in given}


def _alone(workload: Workload) -> AnyStrategy:
    """The strategy of a workload on one device."""
    if isinstance(workload, DlrmSpec):
        return parse_hierarchy({"dense": "ddp", "embedding": "mp"})
    return Plan() if isinstance(workload, TransformerSpec) else parse_strategy("d1")


def fitting(strategy: AnyStrategy | None, system: SystemSpec, workload: Workload) -> AnyStrategy:
    """The strategy, if it fits the number of devices; on one device none is needed, then it is the trivial one."""
    counted = system.devices is not None or system.nodes is not None
    devices = system.device_count
    if isinstance(workload, ProgramSpec):
        strategy = mesh_of(workload.program)
        if counted and strategy.devices != devices:
            mesh = " x ".join(f"{axis.name} {axis.size}" for axis in strategy.axes) or "one device"
            raise StrategyError(f"the program is written for a mesh of {strategy.devices} devices ({mesh}), but the system has {devices}")
    if strategy is None:
        if counted and devices > 1:
            plain = str(_alone(workload)) if isinstance(workload, DlrmSpec) else f"d{devices}"
            raise StrategyError(
                f"strategy: missing, and the system has {devices} devices; for data parallelism over all of them write {plain}"
            )
        return _alone(workload)
    if isinstance(strategy, Hierarchy):
        return strategy
    if counted and strategy.devices != devices:
        product = " x ".join(f"{axis.name} {axis.size}" for axis in strategy.axes)
        raise StrategyError(f"strategy {strategy} needs {strategy.devices} devices ({product}), but the system has {devices}")
    if strategy.devices > system.devices_per_node and strategy.devices % system.devices_per_node:
        raise StrategyError(f"strategy {strategy} needs {strategy.devices} devices, which do not fill nodes of {system.devices_per_node}")
    return strategy


def strategy_problem(
    strategy: Plan | Hierarchy,
    workload: Workload,
    nodes: tuple[int, int],
    *,
    balanced: bool,
    hosted: bool = True,
    model: Transformer | Dlrm | None = None,
) -> str | None:
    """Why a strategy cannot divide a layered model on nodes of devices, in a sentence; None where it can.

    `hosted` says whether the system knows its host's memory, which offloading needs; `model` is the workload's, where it is at hand.
    """
    if isinstance(strategy, Hierarchy):
        assert isinstance(workload, DlrmSpec)  # only such a model has one
        dlrm = model if isinstance(model, Dlrm) else workload.dlrm()
        return hierarchy_problem(strategy, dlrm, workload.global_batch, *nodes)
    assert isinstance(workload, TransformerSpec)  # only such a model has one
    if strategy.offload and not hosted:
        return NO_HOST
    transformer = model if isinstance(model, Transformer) else workload.transformer()
    return plan_problem(strategy, transformer, workload.global_batch, balanced=balanced, task=workload.task)


def near_strategies(
    strategy: AnyStrategy, workload: Workload, nodes: tuple[int, int], *, balanced: bool, fused: bool = False
) -> Mapping[str, str]:
    """Strategies of a layered model on as many devices that are worth comparing with one, as text, each with what it changes.

    With `fused` attention no change to selective recomputation is among them, which equals none.

    Plans one change away from a transformer's; of a recommendation model all that divide it; of a graph of kernels none.
    """
    if isinstance(strategy, Hierarchy):
        return {text: text for text in every_strategy(workload, nodes) if text != str(strategy)}
    if not isinstance(strategy, Plan) or not isinstance(workload, TransformerSpec):
        return {}
    model, batch, task = workload.transformer(), workload.global_batch, workload.task
    found = neighbouring_plans(strategy, model, batch, node=nodes[0], task=task, balanced=balanced)
    same = fused and strategy.recompute != "selective"
    return {as_text(plan, workload): strategy.changes(plan) for plan in found if not (same and plan.recompute == "selective")}


@functools.lru_cache(maxsize=16)
def every_strategy(workload: Workload, nodes: tuple[int, int], *, fused: bool = False) -> tuple[str, ...]:
    """Every strategy that divides a workload over all devices of so many nodes, as text; StrategyError for a program, which has its own.

    With `fused` attention selective recomputation is left out: it repeats scores that such attention never keeps, and equals none.
    """
    node, count = nodes
    if isinstance(workload, ProgramSpec):
        raise StrategyError(f"strategy: {GIVEN}")
    if isinstance(workload, DlrmSpec):
        return tuple(str(found) for found in legal_hierarchies(workload.dlrm(), workload.global_batch, node, count))
    if isinstance(workload, TransformerSpec):
        again = tuple(level for level in RECOMPUTE if not (fused and level == "selective"))
        plans = legal_plans(workload.transformer(), node * count, workload.global_batch, node=node, task=workload.task, recompute=again)
        return tuple(as_text(plan, workload) for plan in plans)
    return legal_strategies(workload.graph(), node * count)
