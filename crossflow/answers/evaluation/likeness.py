"""What a scenario is like among measured runs, and the band of error of each of its points."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.bands import (
    CHANGED,
    FIGURES_OF_A_BAND,
    GENERATED,
    LARGEST,
    LEVELS,
    NO_STACK,
    SCALES,
    Likeness,
    Trust,
    compared,
    experts_of,
    load_of,
    scale_of,
    trust_of,
    type_of,
)
from crossflow.answers.evaluation.distance import Distance, far_off
from crossflow.answers.scenario import Scenario
from crossflow.answers.sections import shipped_devices
from crossflow.answers.steps.members import Members
from crossflow.base import files
from crossflow.base.arrays import Array, Index, Mask, numbered
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.base.paths import alike
from crossflow.base.stages import stage
from crossflow.hardware.architecture.network import CLOS
from crossflow.hardware.architecture.software import load_stack
from crossflow.hardware.architecture.system import resolve
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem, SystemSpec
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.attended import FORMS
from crossflow.workload.kinds import Workload
from crossflow.workload.spec import GemmSpec, TransformerSpec

PROMPTS, TOKENS = "serving, reading prompts", "serving, writing tokens"
ITERATIONS = "post-training of"  # iterations that write answers, by what follows "training of" in the kind of their policy
# Of a scenario's system, what leaves the device itself as it is in its template.
AROUND = {
    "template", "name", "title", "notes", "devices", "nodes", "devices_per_node", "devices_per_host", "max_nodes", "network", "host",
    "operation", "node_power", "node_load", "pools",
}  # fmt: skip
OF_A_FILE = {"kind", "device", "sources"}  # and of the file of a system
# Kinds of runs, and what `measured` of a device's template calls the measurements that predictions of the kind rest on.
MEASURED: Mapping[str, tuple[str, ...]] = {
    "matrix products": ("gemm", "kernels"),
    "training of dense language models": ("training",),
    "training of mixtures of experts": ("training",),
    "training of models": ("training",),
    "training of recommendation models": ("recommendation",),
    PROMPTS: ("kernels",),
    TOKENS: ("kernels",),
    "attention kernels": ("kernels",),
    "expert kernels": ("kernels",),
    "exchanges of experts": ("kernels",),
    "kernels of training": ("gemm",),
    ITERATIONS: ("training",),
}
# Fields of a transformer whose models are a kind of their own, and what they are called.
UNMEASURED: Mapping[str, str] = {
    "ssm": "state-space layers", "sparse": "sparse attention", "compressed": "compressed attention", "encoder": "an encoder",
    "image": "images", "variants": "layers of different dimensions", "residual_block": "attention residuals",
    "residual_streams": "hyper-connections", "per_layer": "embeddings of each layer", "shared_block": "a block that layers share",
    "weight_sparsity": "2:4 sparsity of weights", **{key: form.unmeasured for key, form in FORMS.items() if form.unmeasured},
}  # fmt: skip
FROZEN = "no fine-tuning of only some layers was measured in this way"
OF_ADAPTERS = "no service with low-rank adapters was measured"
OF_FARTHER = "errors of measured runs say nothing of points so far away"
OF_CHANGED = "the device is changed"
OF_FAR = "no plan that keeps tensors on a second memory was measured"
ON_CHIP = "chip without main memory"  # a kind of its own: what lies between its kernels decides, which nobody publishes
OF_POOLS = "no service whose prompts are read by other devices was measured"
OF_EXPERTS = "no service whose experts lie on devices of their own was measured"
OF_IMAGES = "no service whose prompts hold images was measured"
OF_FLEETS = "no service with engines of several kinds was measured"
OF_KINDS = "no training on devices of several kinds was measured"
OF_GENERATED = "the device is generated"
OF_SHARED = "no step on a shared network was measured"
# Devices of the largest switched domain of measured runs (GB200 NVL72), and of those in which chips were predicted blind.
DOMAIN, BLIND_DOMAIN = 72, 8
LATENTS = "latents"  # what `measured` of a device's template calls services whose heads attend to latents in the cache
ARRIVING = "queues and tails were compared with two measured runs only"
WATTS, WATTS_ALONE = "watts of kernels", "watts of kernels were compared with measurements, those of whole steps were not"


def kind_of(workload: Workload) -> str:
    """Kind of a workload; nothing for one of which no kind of run was ever measured."""
    if isinstance(workload, GemmSpec):
        return "matrix products" if workload.task == "forward" else ""
    if workload.model == "dlrm":
        return "training of recommendation models"
    if not isinstance(workload, TransformerSpec):
        return ""
    service = workload.task != "training"
    if features := featured({key for key in UNMEASURED if getattr(workload, key, None)}):
        passing = "denoising steps" if workload.diffusion else PROMPTS
        return (TOKENS if workload.step == "decode" else passing if service else "training") + features
    if workload.head != "language" or not workload.causal:
        return f"{'serving' if service else 'training'} of other transformers"
    if service:
        return TOKENS if workload.step == "decode" else PROMPTS
    return "training of dense language models" if workload.experts is None else "training of mixtures of experts"


def iterations_of(step: Likeness) -> Likeness:
    """What iterations that write answers are like, whose training step is like this; of their engines and scale no more is known.

    >>> iterations_of(Likeness(kind="training of mixtures of experts", device="h100-sxm", stack="nemo", scale="9 to 128 devices")).text
    'post-training of mixtures of experts on h100-sxm'
    """
    return replace(step, kind=step.kind.replace("training of", ITERATIONS, 1), stack="", experts="", load="", scale="")


def featured(keys: Collection[str]) -> str:
    """What follows the kind of a run of models that have some of `UNMEASURED`.

    >>> featured({"ssm", "layers"}), featured({"layers"})
    (' of models with state-space layers', '')
    """
    features = [words for key, words in UNMEASURED.items() if key in keys]
    return f" of models with {' and '.join(features)}" if features else ""


def likeness(scenario: Scenario, *, changed: bool = False) -> Likeness:
    """What a scenario is like; with `changed` its device is another one than its template's."""
    system = scenario.system
    kind = ON_CHIP if scenario.architecture.on_chip_only else kind_of(scenario.workload)
    given = scenario.document.data["system"]
    other, generated = changed or is_changed(scenario), any(isinstance(one, GeneratedSystem) for one in system.places.values())
    device = "" if other or generated else device_of(given, scenario.base)
    made = seen(system, kind) if device else GENERATED if generated else CHANGED if other else "none"
    return _divided(
        Likeness(
            kind=kind,
            device=device,
            stack=_stack(scenario),
            type=type_of(scenario.workload.dtype),
            scale=scale_of(scenario.devices),
            seen=made,
            memory=getattr(system, "memory_kind", "") if made == "none" else "",
        ),
        scenario.workload,
        scenario.nodes[0],
        *_sharing(scenario.strategy),
    )


@functools.lru_cache(maxsize=64)
def is_changed(scenario: Scenario) -> bool:
    """Whether a system section changes the device of the template that it names, or a pool of it, and does not write what is there."""
    return _changes(scenario.document.data["system"], scenario.system, scenario.base)


def _changes(given: Any, system: SystemSpec, base: Path | None) -> bool:
    if not isinstance(given, Mapping):
        return False
    own = set(given) - AROUND if "template" in given else set()
    pools = given.get("pools") or {}
    return (bool(own) and _differs(own, given, system, base)) or any(_changes(pools[name], system.pooled[name], base) for name in pools)


def _differs(keys: Collection[str], given: Mapping[str, Any], system: SystemSpec, base: Path | None) -> bool:
    """Whether any of some keys of a system is another than in the template that its section names."""
    kept = {key: value for key, value in given.items() if key not in keys and key != "pools"}
    try:
        plain = resolve(Document(file="", data=kept), base)[0]
    except CrossflowError:  # a template that is no system without them
        return True
    return not all(alike(getattr(system, key, None), getattr(plain, key, None)) for key in keys)


def _divided(run: Likeness, workload: Workload, node: int, ep: float, span: float, dp: float) -> Likeness:
    """What a run is like that divides experts `ep` times, over `span` ranks, and has `dp` replicas."""
    if not isinstance(workload, TransformerSpec):
        return run
    mixed = workload.experts is not None
    service = workload.serves and not workload.arrives
    return replace(
        run,
        experts=experts_of(span, node) if mixed and ep > 1 else "",
        load=load_of(workload.global_batch / dp) if service else "",
        scale="" if workload.serves else run.scale,  # replicas of a service do not wait for each other
    )


def _stack(scenario: Scenario) -> str:
    if scenario.stack is None:
        return NO_STACK
    return scenario.stack.name if _unchanged(scenario.document.data.get("software"), scenario) else ""


def _unchanged(software: Any, scenario: Scenario) -> bool:
    """Whether software is as its name, or that of the one that it is like, stands for."""
    if not isinstance(software, Mapping):
        return True
    return "like" in software and alike(scenario.stack, load_stack(str(software["like"]), scenario.base)[0])


def seen(system: SystemSpec, kind: str) -> str:
    """Whether parameters of a system's device were fitted to measurements of a kind on it (device), or on others of its family."""
    if not isinstance(system, DatasheetSystem):
        return "none"
    needed = _needed(kind)
    if needed & set(system.measured):
        return "device"
    return "family" if needed & _fitted().get((system.family, system.generation), frozenset()) else "none"


def _needed(kind: str) -> set[str]:
    """What `measured` of a device's template calls the measurements that predictions of a kind rest on."""
    return set(next((what for start, what in MEASURED.items() if kind.startswith(start)), (kind,)))


@functools.cache
def _fitted() -> Mapping[tuple[str, str], frozenset[str]]:
    """Kinds of measurement on devices of each family and generation."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for data in shipped_devices():
        if measured := data.get("measured"):
            key = data["family"], data.get("generation", "")
            found[key] = found.get(key, frozenset()) | set(measured)
    return found


def device_of(system: Mapping[str, Any] | str, base: Path | None = None) -> str:
    """Template of the device of a system section; nothing where it is written out."""
    named = system if isinstance(system, str) else system.get("template")
    return _device(named, base) if isinstance(named, str) else ""


@functools.lru_cache(maxsize=256)
def _device(named: str, base: Path | None) -> str:
    try:
        path = files.find("templates", named, base, "systems", "devices", "generated")
    except CrossflowError:
        return ""
    data = files.read_yaml(path).data
    if not isinstance(data, Mapping) or (path not in files.catalogue("templates").values() and set(data) - AROUND - OF_A_FILE):
        return ""
    if data.get("kind") == "datasheet":
        return str(data.get("name", ""))
    return device_of({"template": data.get("device", data.get("template"))}, path.parent)


def trust(scenario: Scenario, *, changed: bool = False, farther: bool = False) -> Trust:
    """How far the step time of a scenario, or of a point of it whose device is `changed`, can be trusted, and what follows from it.

    farther : whether it speaks for points that lie farther from what was measured than itself, of which nothing is known.
    """
    reasons, which = far_off(scenario)
    far = reasons[which[0]]
    found = problem(scenario, scenario.nodes[0], far.sentence, changed=changed)
    own = trust_of(likeness(scenario, changed=changed), found, bare=far.bare, kin=_kin(scenario, changed=changed))
    return Trust(level="unknown", band=None, reason=OF_FARTHER) if farther and own.level != "unknown" else own


def problem(scenario: Scenario, node: int, far: str, *, changed: bool = False) -> str:
    """Why a scenario is not what was measured though its kind and size are, in a sentence; nothing where nothing speaks against it.

    node : devices of a node, its scale-up domain.
    far : which quantity around the device is far from measured ones, in a sentence; "" where none is.
    """
    shared = OF_SHARED if scenario.system.network.inter.congestion is not None else ""
    own = not changed and bool(device_of(scenario.document.data["system"], scenario.base))
    generation = generation_apart(scenario.system, kind_of(scenario.workload))
    of_device = (_maker(scenario), generation, _latents(scenario)) if own else ()
    of_software = (_otherwise(scenario, changed=changed), _foreign(scenario))
    return "; ".join(filter(None, (*of_software, _domain(scenario, node), far, shared, *of_device)))


def _foreign(scenario: Scenario) -> str:
    """What is to say of software that does not run on devices of this maker."""
    stack = scenario.stack
    if stack is None or stack.runs_on(getattr(scenario.system, "vendor", "")):
        return ""
    return f"{stack.name} does not run on devices of this maker, so no such run can have been measured"


def _maker(scenario: Scenario) -> str:
    """What is to say of a device whose maker has no device on which such runs were measured: errors of others' generations are told."""
    system, kind = scenario.system, kind_of(scenario.workload)
    if not isinstance(system, DatasheetSystem) or not system.vendor or seen(system, kind) != "none":
        return ""
    needed = _needed(kind)
    known = compared(kind)
    others = [device for device in shipped_devices() if needed & set(device.get("measured", ())) or device["name"] in known]
    if not others or any(device.get("vendor") == system.vendor for device in others):
        return ""
    maker = system.vendor.upper() if len(system.vendor) <= len("amd") else system.vendor.title()
    return f"nothing was fitted to such runs on devices of {maker}, and what is known of errors is of chips of other makers"


def generation_apart(system: SystemSpec, kind: str) -> str:
    """What is to say of a device whose parameters are those of a generation of which no run of a kind was compared; else nothing."""
    if not isinstance(system, DatasheetSystem) or seen(system, kind) != "family":
        return ""
    own, known = (system.family, system.generation), compared(kind)
    if any((device["family"], device.get("generation", "")) == own for device in shipped_devices() if device["name"] in known):
        return ""
    return "its parameters were fitted to kernels of its generation, but no such run was measured on a device of it"


def _kin(scenario: Scenario, *, changed: bool) -> tuple[str, ...]:
    """Other devices of a device's maker on which such runs were compared, where nothing was fitted to any device of it."""
    system, kind = scenario.system, kind_of(scenario.workload)
    if changed or not isinstance(system, DatasheetSystem) or not system.vendor or seen(system, kind) != "none":
        return ()
    made = [device for device in shipped_devices() if device.get("vendor") == system.vendor]
    if any(_needed(kind) & set(device.get("measured", ())) for device in made):
        return ()
    return tuple(sorted(str(device["name"]) for device in made if device["name"] in compared(kind)))


def _latents(scenario: Scenario) -> str:
    """What is to say of tokens that are written with attention to latents on a device of which no such service was measured."""
    workload, system = scenario.workload, scenario.system
    if not isinstance(system, DatasheetSystem) or LATENTS in system.measured:
        return ""
    if not isinstance(workload, TransformerSpec) or workload.latent is None or kind_of(workload) != TOKENS:
        return ""
    known = [str(device["name"]) for device in shipped_devices() if LATENTS in device.get("measured", ())]
    return f"services with latent attention were measured only on {' and '.join((', '.join(known[:-1]), known[-1]))}"


def _domain(scenario: Scenario, node: int) -> str:
    """What is to say of a scale-up domain that is larger than those of which errors are known."""
    generated = any(isinstance(one, GeneratedSystem) for one in scenario.system.places.values())
    most, runs = (BLIND_DOMAIN, "predicted blind") if generated else (DOMAIN, "measured")
    if node <= most or scenario.system.network.intra.wiring not in CLOS:  # devices of a torus are joined by neighbours, however many
        return ""
    return f"nodes of {node:,} devices joined by switches were never {runs}, at most {most}"


def _otherwise(scenario: Scenario, *, changed: bool) -> str:
    """What else of a scenario was not measured."""
    if any(isinstance(one, GeneratedSystem) for one in scenario.system.places.values()):
        return OF_GENERATED
    if scenario.workload.service.adapters:
        return OF_ADAPTERS
    if getattr(scenario.workload, "frozen", ()) or getattr(scenario.workload, "adapters", None):
        return FROZEN
    if changed or is_changed(scenario):
        return OF_CHANGED
    if isinstance(scenario.strategy, Plan) and scenario.strategy.far:
        return OF_FAR
    if scenario.feeders:
        return OF_EXPERTS
    if scenario.further:
        return OF_FLEETS
    if scenario.workload.service.images:
        return OF_IMAGES
    return OF_KINDS if scenario.system.kinds else OF_POOLS if scenario.system.pools else ""


def trusts(scenario: Scenario) -> dict[str, Trust]:
    """The same of figures that were compared with other measurements than the step, or with none: tails of a service, energy."""
    found: dict[str, Trust] = {}
    if scenario.workload.arrives:
        found["tails"] = Trust(level="unknown", band=None, reason=ARRIVING)
    run = likeness(scenario)
    watts = trust_of(Likeness(kind=WATTS, device=run.device, stack=run.stack, type=run.type, seen=run.seen))
    if watts.level in ("measured", "interpolated"):
        watts = replace(watts, level="interpolated", reason=WATTS_ALONE)
    return {**found, "energy": watts}


def told_trust(scenario: Scenario, whole: Trust | None = None) -> dict[str, Any]:
    """Trust of a scenario as plain data; the band is under `error_band`, and `error_band_reason` says why there is none.

    whole : trust of what is told, where that is more than a step.
    """
    run, found = likeness(scenario), whole or trust(scenario)
    told: dict[str, Any] = {"trust": found.level, "trust_text": found.text, "trust_reason": found.reason or None}
    told["trust_of"] = {name: one.to_dict() for name, one in trusts(scenario).items()}
    if found.band is None:
        return {"error_band": None, "error_band_reason": found.reason, **told}
    more = {"text": found.band.text, "drawn_from": found.basis, "tables": found.band.tables.split(), "device_seen": run.seen == "device"}
    return {"error_band": {**found.band.figures, **more}, **told}


@stage("trust")
def bands(
    scenario: Scenario, devices: Array, members: Members, changed: Mask, far: tuple[Sequence[Distance], Index]
) -> tuple[dict[str, Array], Index]:
    """Figures of the band of error of every point, by name, none where no point has one; and their levels of trust, shape (n,).

    devices : of every point, shape (n,). [1]
    changed : whether the device of a point is another one than its template's, shape (n,).
    far : why points are far from measured ones, and which of these reasons each point has, shape (n,).
    """
    names = [*(name for _, name in SCALES), LARGEST]
    workloads, nodes, which = members.workloads, [node for node, _ in members.nodes], members.which
    if not members.own:  # workloads that differ in dimensions alone are alike
        kinds, of_each = numbered([_told_apart(one, node) for one, node in zip(workloads, nodes, strict=True)])
        first = [int((of_each == i).argmax()) for i in range(len(kinds))]
        workloads, nodes, which = tuple(workloads[i] for i in first), [nodes[i] for i in first], of_each[members.which]
    columns, levels = np.full((len(FIGURES_OF_A_BAND), len(devices)), np.nan), np.zeros(len(devices), dtype=int)
    shapes, shape = _sharings(members.strategies[:1] if members.own else members.strategies)
    codes = ((which * len(names) + np.searchsorted([most for most, _ in SCALES], devices)) * 2 + changed) * len(shapes) + shape
    codes = codes * len(far[0]) + far[1]
    for code in sorted(set(codes.tolist())):
        rest, outside = divmod(code, len(far[0]))
        rest, mesh = divmod(rest, len(shapes))
        (at, scale), other = divmod(rest // 2, len(names)), bool(rest % 2)
        found = _trust_at(scenario, workloads[at], nodes[at], names[scale], shapes[mesh], changed=other, far=far[0][outside])
        levels[codes == code] = LEVELS.index(found.level)
        if found.band is not None:
            columns[:, codes == code] = np.array(list(found.band.figures.values()))[:, None]
    return ({} if np.isnan(columns).all() else dict(zip(FIGURES_OF_A_BAND, columns, strict=True))), levels


def _told_apart(workload: Workload, node: int) -> tuple[Any, ...]:
    """What `_trust_at` reads of a workload of a scenario, and devices of a node."""
    if not isinstance(workload, TransformerSpec):
        return kind_of(workload), workload.dtype, node
    requests = workload.global_batch if workload.serves and not workload.arrives else 0
    return kind_of(workload), workload.dtype, node, workload.experts is None, workload.serves, workload.arrives, requests


@functools.lru_cache(maxsize=4096)
def _trust_at(scenario: Scenario, workload: Workload, node: int, scale: str, shape: Sharing, *, changed: bool, far: Distance) -> Trust:
    """Trust of points of a scenario with a workload on so many devices, whose experts are divided in a way."""
    kind = ON_CHIP if scenario.architecture.on_chip_only else kind_of(workload)
    like = replace(likeness(scenario, changed=changed), scale=scale, kind=kind, type=type_of(workload.dtype))
    why = problem(scenario, node, far.sentence, changed=changed)
    return trust_of(_divided(like, workload, node, *shape), why, bare=far.bare, kin=_kin(scenario, changed=changed))


Sharing = tuple[float, float, float]  # how often experts are divided, over how many ranks, and replicas


def _sharing(strategy: Any) -> Sharing:
    if not isinstance(strategy, Plan):
        return 1.0, 1.0, 1.0
    return float(strategy.ep), float(strategy.ep * max(strategy.etp, 1)), float(strategy.dp)


def _sharings(strategies: Sequence[Any]) -> tuple[list[Sharing], Index]:
    """Different shapes of strategies, and which one every strategy has."""
    each, known = list(map(_sharing, strategies)), dict[Sharing, int]()
    which = np.array([known.setdefault(one, len(known)) for one in each], dtype=int)
    return list(known), which
