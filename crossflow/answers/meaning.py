"""What the sections of a scenario mean together: devices in use, orders, and what of one section another one cannot have.

References
----------
.. [1] NVIDIA, TensorRT-LLM 1.4, "Quantization", hardware support matrix: NVFP4 KV Cache on Blackwell alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from crossflow.answers.scenario_top import OF_FAILURES, ScenarioTop
from crossflow.base import files
from crossflow.base.errors import CrossflowError, Problem, SpecError, with_article
from crossflow.base.files import Document
from crossflow.base.formats import FORMATS
from crossflow.hardware.architecture.network import Congestion
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.hardware.architecture.template import ENCODING, FEEDING, READING, DatasheetSystem, GeneratedSystem, SystemSpec, is_none
from crossflow.hardware.mapping.wiring import LEVELS, topology_of
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.mesh import Mesh
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import AnyStrategy
from crossflow.workload.idle import without_meaning
from crossflow.workload.kinds import Workload
from crossflow.workload.spec import TransformerSpec

if TYPE_CHECKING:
    from crossflow.answers.scenario import Scenario


def nodes_of(system: SystemSpec, devices: int) -> tuple[int, int]:
    """Devices of one node (package, server), and number of nodes, of so many devices."""
    per_node = min(system.devices_per_node, devices)
    return per_node, -(-devices // per_node)


def multiplied(system: SystemSpec) -> Collection[str]:
    """Types that the devices of a system multiply in; a rate of 0 is as one that is left out."""
    return {dtype: rate for dtype, rate in system.product_rates.items() if (rate > 0).any()}.keys()


def caches_in(system: SystemSpec, dtype: str) -> bool:
    """Whether engines have kernels for keys and values of a type: of less than a byte they have them where units multiply in it [1]_."""
    return FORMATS[dtype].bits >= 8 or dtype in multiplied_by_all(system)


def multiplied_by_all(system: SystemSpec) -> Collection[str]:
    """Types that every kind of device of a system multiplies in."""
    pools = [multiplied(pool) for pool in system.pooled.values()]
    return dict.fromkeys(dtype for dtype in multiplied(system) if all(dtype in rates for rates in pools)).keys()


def check_system(system: SystemSpec, workload: Workload, stack: SoftwareStack | None, top: ScenarioTop, document: Document) -> None:
    """SpecError for a workload that the devices of a system do not compute, or that its pools have no part in."""
    _check_types(system, workload, stack, document)
    _check_pools(system, workload, top, document)


def _check_types(system: SystemSpec, workload: Workload, stack: SoftwareStack | None, document: Document) -> None:
    """SpecError for data types that the device does not compute in, or the software does not keep weights in."""
    for one in system.places.values():
        dtypes, what = multiplied(one), "rates" if isinstance(one, GeneratedSystem) else "throughput"
        if workload.dtype not in dtypes:
            told = f"{one.name} has no {what} for {workload.dtype}; it has {', '.join(dtypes)}"
            asked = FORMATS[workload.dtype]
            like = (name for name in dtypes if FORMATS[name].bits == asked.bits and FORMATS[name].exponent and asked.exponent)
            as_wide = next(like, None)
            cure = "" if as_wide is None else f"; write workload.dtype: {as_wide}, which is as wide"
            raise document.error(("workload", "dtype"), told + cure)
    if isinstance(workload, TransformerSpec) and workload.weight_dtype and stack is not None and stack.weight == "fp32":
        raise document.error(("workload", "weight_dtype"), f"{stack.name} keeps weights in fp32; leave it out, or name other software")


def _check_pools(system: SystemSpec, workload: Workload, top: ScenarioTop, document: Document) -> None:
    """SpecError for pools that nothing runs on, and for what is not known of systems of several kinds of devices."""
    if not system.pools:
        return
    if top.run is not None:
        raise document.error(("run",), "a whole run is priced on devices of one kind only; leave it out, or system.pools")
    trains = workload.trains_transformer
    for name in system.pools:
        if problem := _unused(name, trains=trains, workload=workload):
            raise document.error(("system", "pools", name), problem)
    if trains and any(name != READING for name in system.pools):
        _check_staged(system, top, document)
    for place, one in system.places.items():
        _check_counted_once(place, one, document)


def _unused(name: str, *, trains: bool, workload: Workload) -> str | None:
    """Why the devices of a pool have no part in a workload, as a sentence; None where they have."""
    if name == FEEDING and workload.service.experts is not None:
        return None
    if name == ENCODING and workload.service.images and workload.service.images.encode:
        return None
    if name != READING and not trains:
        if name == FEEDING and workload.decodes and FEEDING not in workload.service.pools:
            return f"no experts lie on it; give workload.serving.{FEEDING}: {{strategy: dp8-ep8}}, or leave the pool out"
        if workload.is_service:
            if name in workload.service.pools:
                return None
            return f"no engines run on it; give workload.serving.pools.{name}: {{strategy: tp8, workers: 2}}, or leave the pool out"
        return "its devices hold stages of a transformer that is trained; give such a workload, or leave the pool out"
    reads = workload.is_service and workload.service.prefill is not None
    if name == READING and not reads:
        why = "its devices read the prompts of a service; give workload.task: serving and workload.serving.prefill, or leave it out"
        return f"{why}; further stages of a pipeline lie on a pool of any other name" if trains else why
    return None


def _check_staged(system: SystemSpec, top: ScenarioTop, document: Document) -> None:
    """SpecError for pools whose stages are not to be counted or priced."""
    for place, one in system.places.items():
        if not one.counted:
            message = "say how many devices it has, with nodes or devices: stages are shared out over all of them"
            raise document.error(tuple(place.split(".")), message)
        if isinstance(one, DatasheetSystem | GeneratedSystem) and is_none(one.technology.memory):
            raise document.error(
                tuple(place.split(".")), "chips without main memory hold no stages beside other devices; leave the pools out"
            )
    if top.profile is not None or system.profile is not None:
        raise document.error(("profile",), "measured times are of devices of one kind only; leave it out, or system.pools")


def _check_counted_once(place: str, one: SystemSpec, document: Document) -> None:
    """SpecError for what is counted for the devices of the system itself only, in it or in a pool."""
    if place != "system" and isinstance(one, GeneratedSystem) and (one.technology.intra_switch or one.technology.inter_switch):
        message = "named switches are counted for the devices of the system itself only; leave them out, or use network.topology"
        raise document.error((*place.split("."), "technology"), message)
    if one.operation is not None and one.operation.lifetime is not None:
        message = "the carbon of making devices is counted for one kind only; leave it out, or system.pools"
        raise document.error((*place.split("."), "operation", "lifetime"), message)


def order_of(placement: tuple[str, ...] | str, strategy: AnyStrategy, workload: Workload, document: Document) -> tuple[str, ...] | None:
    """Order in which axes are laid out, as far as the strategy has them; None where all are tried."""
    said = strategy.order if isinstance(strategy, Mesh) else None
    if isinstance(placement, str):
        return said
    if said is not None:
        raise document.error(("placement",), f"strategy {strategy} says how its axes lie, {', '.join(said)}; leave placement out")
    if not isinstance(strategy, Mesh):
        there = "leave placement out" if isinstance(strategy, Hierarchy) else "give placement there"
        raise document.error(("placement",), f"{with_article(workload.model)} lies as its strategy says; {there}")
    _check_order(placement, strategy, document)
    return tuple(name for name in placement if name in {axis.name for axis in strategy.axes})


def _check_order(order: tuple[str, ...], strategy: Mesh, document: Document) -> None:
    names = [axis.name for axis in strategy.axes if axis.size > 1]
    if sorted(set(order) & set(names)) != sorted(names) or len(set(order)) != len(order):
        raise document.error(("placement",), f"expected each of {', '.join(names)} once, or auto; got {', '.join(order)}")


def check_meaning(top: ScenarioTop, workload: Workload, system: SystemSpec, document: Document) -> None:
    """SpecError for everything that a scenario itself says and that has no meaning for its workload."""
    own, kind = document.data["workload"], with_article(workload.model)
    problems = [
        document.problem(("workload", *key.split(".")), sentence)
        for key, sentence in without_meaning(workload)
        if files.held(own, key.split(".")) is not None
    ]
    if top.run is not None and top.run.tokens is not None and not workload.in_tokens:
        what = "a model of images" if isinstance(workload, TransformerSpec) else kind
        problems.append(document.problem(("run", "tokens"), f"{what} has no tokens; give samples or steps"))
    problems += _interrupted(top, workload, system, document)
    problems += _of_job(top, workload, system, document)
    if workload.service.experts is not None and workload.service.pools:
        what = "engines of a pool hold a whole model, those of the strategy compute attention only; leave it out, or the experts"
        problems.append(document.problem(("workload", "serving", "pools"), what))
    if problems:
        raise SpecError(problems)


def _interrupted(top: ScenarioTop, workload: Workload, system: SystemSpec, document: Document) -> Iterator[Problem]:
    """What stands against interruptions of a run, or against how it saves its state."""
    if top.run is None:
        return
    if top.run.failures is None:
        beside = [name for name in OF_FAILURES if getattr(top.run, name) is not None]
        give = "give it, or " if top.job is None else "which are not known of an iteration of a job; "
        yield from (
            document.problem(("run",), f"{name} needs failures, such as failures: llama3-h100; {give}leave {name} out")
            for name in beside[:1]
        )
    given = [name for name in ("failures", "jitter") if getattr(top.run, name) is not None]
    if given and not workload.trains_transformer:
        what = f"workload.task is {workload.task}" if isinstance(workload, TransformerSpec) else f"this is {with_article(workload.model)}"
        does = {"failures": "is interrupted and comes back", "jitter": "has steps that wait for the slowest device"}[given[0]]
        yield document.problem(("run", given[0]), f"a transformer that is trained {does}; {what}; leave it out")
    saved = top.run.checkpoint
    if saved is not None and saved.to == "neighbours" and system.mesh[1] == 1:
        yield document.problem(("run", "checkpoint", "to"), "the system has one node, which has no neighbours; use storage, or more nodes")


def _of_job(top: ScenarioTop, workload: Workload, system: SystemSpec, document: Document) -> Iterator[Problem]:
    """What stands against a post-training job."""
    job = top.job
    if job is None:
        return
    if not isinstance(workload, TransformerSpec) or not workload.trains_transformer:
        what = (
            f"this is {with_article(workload.model)}" if not isinstance(workload, TransformerSpec) else f"workload.task is {workload.task}"
        )
        yield document.problem(("job",), f"a job trains a transformer, and {what}; leave job out, or give such a workload")
        return
    if system.pools:
        yield document.problem(("job",), "a job is priced on devices of one kind only; leave it out, or system.pools")
    for name, what in (("failures", "interruptions are"), ("jitter", "steps that vary are")):
        if top.run is not None and getattr(top.run, name) is not None:
            what += " supported for training steps only, and an iteration of a job has engines and other models beside them"
            yield document.problem(("run", name), f"{what}; leave it out, or job")
    if job.rolls_out and not workload.writes:
        yield document.problem(("job", "kind"), f"{job.kind} trains on answers, and this model writes no tokens; use dpo or distill")
    if job.rolls_out and job.samples % workload.global_batch:
        yield document.problem(
            ("job", "rollout", "prompts"),
            f"its {job.samples:,} answers do not fill training steps of {workload.global_batch:,} samples (workload.global_batch)",
        )


def unwired(system: SystemSpec, used: tuple[int, int], document: Document) -> Iterator[Problem]:
    """Levels of the networks that do not hold the nodes in use, of which there are so many where all devices are alike."""
    if not system.kinds:
        yield from network_problems(system, used, document)
        return
    for place, one in system.places.items():
        yield from network_problems(one, nodes_of(one, one.device_count), document, place)


def network_problems(system: SystemSpec, used: tuple[int, int], document: Document, below: str = "system") -> Iterator[Problem]:
    """Levels of the network that do not hold the nodes in use: devices of a node, and nodes; `below` is where the system stands."""
    for level, nodes in zip(LEVELS, used, strict=True):
        try:
            topology_of(system.network, level, nodes)
        except CrossflowError as error:
            place = (*below.split("."), "network", level)
            said = ((*place, key) for key in ("shape", "group", "oversubscription", "ports", "topology") if (*place, key) in document.lines)
            yield document.problem(next(said, place), str(error))
    if used[1] > 1 and system.network.inter.fabric == "none":
        told = f"{used[1]} nodes are to be connected, and no network between them is known (fabric: none); give nodes: 1, or a network of "
        cure = "your own, such as network.inter: {fabric: infiniband, bandwidth: 50 GB/s}"
        yield document.problem((*below.split("."), "network", "inter"), told + cure)


def uncongested(scenario: Scenario) -> Iterator[Problem]:
    """Why the network is not shared as the system says."""
    for place, one in scenario.system.places.items():
        for name in LEVELS:
            congestion = getattr(one.network, name).congestion
            path = (*place.split("."), "network", name, "congestion")
            why = "" if congestion is None else _congestion_problem(scenario, congestion, name)
            if why:
                yield scenario.document.problem(path, why)


def unhelped(scenario: Scenario) -> Iterator[str]:
    """What a layout leaves of a run that goes on without broken nodes, where it asks for that."""
    run, plan = scenario.run, scenario.strategy
    if run is not None and run.jitter is not None and scenario.devices == 1:
        yield "run.jitter changes nothing here: there is one device, which waits for no other"
    if run is None or not run.elastic or not isinstance(plan, Plan):
        return
    if plan.dp == 1:
        yield "run.elastic changes nothing here: there is one replica, which waits for its nodes"
    elif run.elastic == "reroute" and plan.pp == 1:
        yield "run.elastic: reroute is as elastic: true here: a pipeline of one stage has no bubbles"


def _congestion_problem(scenario: Scenario, congestion: Congestion, level: str) -> str | None:
    """Why a level of the network is not shared so; None where it is."""
    if level == "intra":
        return "jobs share the network between nodes; give it as network.inter.congestion"
    if scenario.system.pools:
        return "congestion is known of devices of one kind only; leave it out, or system.pools"
    if scenario.feeders and scenario.workload.task == "serving":  # type: ignore[union-attr] # of a transformer
        return "what experts on devices of their own lose to others is not known; leave it out, or serving.experts"
    if scenario.encoders:
        return "what images from encoders of their own lose to others is not known; leave it out, or serving.images.encode"
    if scenario.profile is not None:
        return "measured times hold for a network that is not shared; leave it out, or profile"
    from crossflow.hardware.mapping.congestion import refusal

    return refusal(congestion, scenario.network())
