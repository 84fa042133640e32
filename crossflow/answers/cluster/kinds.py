"""What a job of a cluster is: devices, time, power and checkpoints, from the prediction of its scenario or as a file gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.bands import Trust
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.figures import task_of
from crossflow.answers.evaluation.lasting import interrupted
from crossflow.answers.planning.opening import from_dict
from crossflow.answers.scenario import Scenario, check_strategy, scenario_document, spelled_out
from crossflow.answers.score import Score
from crossflow.answers.steps.members import own_members
from crossflow.base import files
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError, StrategyError
from crossflow.base.files import Document
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.network import JobTraffic
from crossflow.hardware.architecture.run_cost import load_of, operation_of, run_cost
from crossflow.hardware.architecture.template import SystemSpec, fills
from crossflow.hardware.mapping.slices import SliceGround, SliceShape, text_of
from crossflow.workload.cluster.spec import JobsSpec
from crossflow.workload.requests.asking import found_file


@dataclass(frozen=True, kw_only=True)
class ClusterJobKind:
    """What jobs of one entry of a file have in common.

    Attributes
    ----------
    devices, time : of each; None where the entry draws them, or a trace has them. [1], [s]
    slice : sizes of the slice of each, where the entry says its devices or its slice and the cluster is cut into slices.
    power : of one device at the wall. [W]
    save, load, interval : of its checkpoints, see `ClusterJobs`. [s]
    scenario : whose prediction this is; None for given facts.
    lasting : whether it runs as long as it does, however slowly.
    sends : what it sends between nodes, where jobs share links; None of those that send nothing.
    trust : of that prediction.
    notes : sentences on what was taken for what.
    """

    devices: int | None
    time: float | None
    power: float
    slice: SliceShape | None = None
    save: float = 0.0
    load: float = 0.0
    interval: float = np.inf
    scenario: Scenario | None = None
    lasting: bool = False
    sends: JobTraffic | None = None
    trust: Trust | None = None
    notes: tuple[str, ...] = ()


def wall_power(system: SystemSpec, device: Architecture, power: Array) -> float:
    """Power at the wall of one device that draws some power, its share of the node and the data centre's overhead included. [W]"""
    operation = operation_of(system, device)
    if load_of(system) is None:
        operation = operation.model_copy(update={"device_power": power})
    cost = run_cost(
        amount=1, per_step=1, step_time=1.0, devices=1, operation=operation, devices_per_node=system.devices_per_node, step_energy=power,
        load=load_of(system),
    )  # fmt: skip
    return float(cost.facility_energy[0])


def kind_of_jobs(
    spec: JobsSpec, system: SystemSpec, section: Any, device: Architecture, base: Path | None, ground: SliceGround | None = None
) -> ClusterJobKind:
    """What jobs of an entry are; CrossflowError, or SpecError, that begins with the key of the entry that is wrong.

    section : the cluster's system as its file writes it, for scenarios without one.
    ground : the torus that the cluster is cut into slices of, if it is.
    """
    shape = None if ground is None else _slice(spec, ground)
    if spec.scenario is None:
        rated = operation_of(system, device).device_power
        assert rated is not None  # a device has a TDP
        power = wall_power(system, device, rated) if spec.power is None else float(spec.power[0])
        devices = None if shape is None else math.prod(shape)
        return _with_checkpoint(ClusterJobKind(devices=devices, time=None, power=power, slice=shape), spec)
    network = {} if ground is None or shape is None else ground.settings(shape)
    _check_whole_nodes(spec, system)
    scenario = _scenario(spec, section, base, network)
    if scenario.system.name != system.name:
        raise CrossflowError(f"scenario: it runs on {scenario.system.name}, and the cluster is of {system.name}; leave its system out")
    if scenario.system.pools:
        raise CrossflowError("scenario: a cluster has devices of one kind; leave system.pools out")
    score = evaluate(scenario)
    if not score.feasible[0]:
        raise CrossflowError(f"scenario: {score.why(0)}")
    found = _with_checkpoint(_predicted(spec, scenario, score), spec)
    if shape is not None and found.devices != math.prod(shape):
        many = f"the job needs {found.devices:,} devices, its spares among them"
        raise CrossflowError(f"scenario: {many}, and its slice has {math.prod(shape):,}; leave out spares, or give another slice")
    lasting = spec.time is not None and task_of(scenario) == "serving"
    return replace(found, slice=shape, lasting=lasting)


def _check_whole_nodes(spec: JobsSpec, system: SystemSpec) -> None:
    """CrossflowError for devices of a scenario that leave a node in parts, which the system would say of itself."""
    node, many = system.devices_per_node, spec.devices.number if spec.devices is not None else None
    if many is not None and not fills(many, node):
        raise CrossflowError(f"devices: {many:,} devices do not fill nodes of {node}; give a multiple of {node}, or fewer than that")


def _slice(spec: JobsSpec, ground: SliceGround) -> SliceShape | None:
    """The slice of the jobs of an entry; None where their devices are drawn, or a trace has them."""
    if spec.sizes is not None:
        if why := ground.refusal(spec.sizes):
            raise CrossflowError(f"slice: {why}")
        return spec.sizes
    if spec.devices is not None and spec.devices.number is not None:
        return slice_of(spec.devices.number, ground)
    if spec.scenario is not None:
        raise CrossflowError("scenario: the cluster is cut into slices; give slice, such as slice: 4x4x8, or devices, of the job")
    return None


def slice_of(devices: int, ground: SliceGround, key: str = "devices") -> SliceShape:
    """The slice of so many devices; CrossflowError where there is none, with the key of the entry that says how many."""
    found = ground.shape_of(devices)
    if found is None:
        of = f"cubes of {text_of(ground.box)}" if ground.optical else text_of(ground.box)
        more = next((many for many in range(devices + 1, ground.cubes * math.prod(ground.box) + 1) if ground.shape_of(many)), None)
        cure = "take fewer" if more is None else f"the next larger one has {more:,}; take as many"
        raise CrossflowError(f"{key}: no slice of {of} has {devices:,} devices; {cure}, or placement: any")
    return found


def _scenario(spec: JobsSpec, section: Any, base: Path | None, network: Mapping[tuple[str, ...], Any]) -> Scenario:
    """The scenario of an entry, on the cluster's system where it names none.

    network : fields of its system that its slice says, by their paths.
    """
    if isinstance(spec.scenario, str):
        path = found_file(spec.scenario, "scenario", base)
        data, base, name = scenario_document(files.read_yaml(path), str(path)).data, path.parent, path.stem
    else:
        data, name = spec.scenario, spec.name or "scenario"
    data = spelled_out(Document(file=name, data=dict(data))).data
    own, whole = data.get("system"), {"template": section} if isinstance(section, str) else dict(section)
    if network and own is not None:
        raise CrossflowError("slice: it says the devices of the job and their network; leave the scenario's system out")
    if own is None or (isinstance(own, dict) and "template" not in own):
        data = {**data, "system": {**{key: value for key, value in whole.items() if key not in ("devices", "nodes")}, **(own or {})}}
        for field, value in network.items():
            data = files.replace(data, ("system", *field), value, name)
        if spec.devices is not None:
            if said := sorted({"devices", "nodes"} & (own or {}).keys()):
                raise CrossflowError(f"devices: the scenario says system.{said[0]}; leave one of them out")
            data["system"]["devices"] = spec.devices.number
    elif spec.devices is not None:
        raise CrossflowError("devices: the scenario's system says it; leave it out")
    if spec.steps is not None and data.get("job") is None:
        if data.get("run") is not None:
            raise CrossflowError("steps: the scenario's run says how long it is; leave one of them out")
        data = {**data, "run": {"steps": spec.steps}}
    if spec.time is not None and data.get("run") is not None:
        raise CrossflowError("time: the scenario's run says how long it is; leave one of them out")
    try:
        scenario = from_dict(data, name, base)
        check_strategy(scenario)
    except StrategyError as error:
        if own is None and spec.devices is None and not network:
            raise CrossflowError(f"{error}; or say how many devices the job needs, such as devices: 8") from None
        if own is None and error.devices:  # the job says its system here
            cure = f"a slice of {error.devices:,} devices" if network else f"devices: {error.devices}"
            raise CrossflowError(f"{error.clash}; give the job {cure}") from None
        raise
    return scenario


def _predicted(spec: JobsSpec, scenario: Scenario, score: Score) -> ClusterJobKind:
    """Devices, time and power of a job by the prediction of its scenario."""
    from crossflow.answers.evaluation.post_training import whole_trust  # with iterations, which few jobs need

    system, device = scenario.system, scenario.architecture
    devices, notes = float(score.devices[0]), list[str]()
    if scenario.post_training is not None:
        devices = float(score.job["devices"][0])
        time = None if spec.steps is None else spec.steps * float(score.job["iteration_time_s"][0])
        power = wall_power(system, device, score.job["energy_j"] / score.job["iteration_time_s"] / score.job["devices"])
    else:
        time = float(score.run["time_s"][0]) if scenario.run is not None else None
        power = wall_power(system, device, score.energy / score.step_time / score.devices)
    found = ClusterJobKind(
        devices=round(devices), time=time, power=power, scenario=scenario, trust=whole_trust(scenario), notes=tuple(notes)
    )
    if time is None and spec.time is None:
        cure = "steps: 1000" if scenario.post_training is not None else "its run, such as run: {tokens: 1.0e12}"
        raise CrossflowError(f"scenario: nothing says how long it runs; give {cure}, or time of the job")
    if time is not None and not np.isfinite(time):
        raise CrossflowError("scenario: its run never ends; save more often, or have fewer failures")
    return _interrupted(found, scenario, score) if scenario.reliability is not None else found


def _interrupted(found: ClusterJobKind, scenario: Scenario, score: Score) -> ClusterJobKind:
    """The same with the spares and the checkpoints of a run that fails; its power is the mean of the run."""
    run, saved = (one := interrupted(scenario, scenario.system, scenario.architecture, score, own_members(scenario))).run, one.saved
    assert found.devices is not None
    assert found.time is not None
    devices = found.devices + round(float(run.spares[0])) * scenario.system.devices_per_node
    return ClusterJobKind(
        devices=devices, time=found.time, power=float(score.run["facility_energy_j"][0]) / found.time / devices,
        save=float(saved.stall[0] + saved.commit[0]), load=float(run.restart[0]), interval=float(run.interval[0]),
        scenario=found.scenario, trust=found.trust, notes=found.notes,
    )  # fmt: skip


def _with_checkpoint(found: ClusterJobKind, spec: JobsSpec) -> ClusterJobKind:
    """The same with the checkpoints that the entry says."""
    if spec.checkpoint is None:
        return found
    said = {name: value for name in ("save", "load", "interval") if (value := getattr(spec.checkpoint, name)) is not None}
    return ClusterJobKind(**{**found.__dict__, **said})
