"""From the file of a cluster to its jobs as arrays, ready to be scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.cluster.kinds import ClusterJobKind, kind_of_jobs, slice_of, wall_power
from crossflow.answers.cluster.sharing import SharedLinks, shared_as, traffic_of
from crossflow.answers.meaning import unwired
from crossflow.base import files
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.files import Document, Path_, dotted
from crossflow.base.units import show
from crossflow.engine.cluster.record import ClusterJobs, ClusterRoom, SchedulerPolicy
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.network import Congestion
from crossflow.hardware.architecture.run_cost import operation_of
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.hardware.mapping.slices import SliceGround, SliceShape, slice_ground
from crossflow.hardware.mapping.wiring import WhichLevel, topology_of
from crossflow.workload.cluster.draws import drawn_jobs
from crossflow.workload.cluster.reading import read_jobs
from crossflow.workload.cluster.record import JobTrace
from crossflow.workload.cluster.spec import MOST_JOBS, ClusterFile, JobsSpec, sizes_of
from crossflow.workload.requests.asking import found_file


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedCluster:
    """A cluster with its jobs.

    Attributes
    ----------
    name : of its file.
    spec : what the file says.
    system, device : what it is made of.
    kinds : what jobs of each entry are.
    jobs, room, policy : what the scheduler is asked with.
    slowdowns : what jobs take from each other on shared links; None where each has links of its own.
    kind, classes : number of the class of each job, and their names.
    notes : sentences on what was done to traces and taken for what.
    """

    name: str
    spec: ClusterFile
    system: SystemSpec
    device: Architecture
    kinds: tuple[ClusterJobKind, ...]
    jobs: ClusterJobs
    room: ClusterRoom
    policy: SchedulerPolicy
    slowdowns: SharedLinks | None
    kind: Index
    classes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def carbon_by_hour(self) -> Array | None:
        """Carbon intensity of each hour in turn; None where it is not known. [kg/J]"""
        if self.spec.carbon_by_hour is not None:
            return np.concatenate(self.spec.carbon_by_hour)
        return operation_of(self.system, self.device).carbon_intensity


def opened_cluster(document: Document, base: Path | None, name: str) -> OpenedCluster:
    """Read a cluster; SpecError with the place of what is wrong."""
    spec: ClusterFile = files.validate(ClusterFile, document)
    try:
        system, _ = resolve(document.under("system"), base)
    except SpecError as error:
        raise SpecError(problem.below("system") for problem in error.problems) from None
    device = architecture(system)
    _check_system(spec, system, device, document)
    ground = _ground(spec, system, document)
    with _placed(document):
        congestion = shared_as(system.network, *system.mesh) if spec.links == "shared" else None
    kinds, traces, slices = list[ClusterJobKind](), list[JobTrace](), list[SliceShape]()
    for number, entry in enumerate(spec.jobs):
        with _placed(document, "jobs", number):
            kinds.append(kind_of_jobs(entry, system, document.data["system"], device, base, ground))
            if congestion is not None:
                kinds[-1] = _sending(kinds[-1], entry, congestion, system.mesh[1])
            traces.append(_trace(entry, kinds[-1], spec.seed, number, base))
            slices += _slices(kinds[-1], traces[-1], ground, "devices" if entry.trace is None else "trace")
    power = wall_power(system, device, device.static_power) if spec.idle_power is None else float(spec.idle_power[0])
    cap = np.inf if spec.power_cap is None else float(spec.power_cap[0])
    room = ClusterRoom(devices=system.device_count, idle_power=power, power_cap=cap, ground=ground)
    order, jobs = _together(spec, kinds, traces, slices)
    policy, entries = _policy(spec), np.repeat(np.arange(len(traces)), [len(one) for one in traces])[order]
    _check(spec, jobs, entries, room, document)
    slowdowns = None if congestion is None else SharedLinks(
        congestion=congestion, network=system.network, width=system.mesh[0], nodes=system.mesh[1], kinds=tuple(kinds), kind=entries,
        devices=jobs.devices,
    )  # fmt: skip
    names: dict[str, int] = {}
    numbers = [np.array([names.setdefault(one, len(names)) for one in trace.classes])[trace.kind] for trace in traces]
    notes = [*(note for trace in traces for note in trace.notes), *(note for one in kinds for note in one.notes)]
    notes += _assumed(spec, system, kinds, traces)
    return OpenedCluster(
        name=spec.name or name, spec=spec, system=system, device=device, kinds=tuple(kinds), jobs=jobs, room=room, policy=policy,
        slowdowns=slowdowns, kind=np.concatenate(numbers)[order], classes=tuple(names), notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


@contextmanager
def _placed(document: Document, *at: str | int) -> Iterator[None]:
    """Give errors inside it their place in the file: the key below `at` that they begin with, else `at`; a scenario there has its own."""
    try:
        yield
    except SpecError as error:
        raise SpecError(one if not at or Path(one.file).is_file() else _of_scenario(one, document, at) for one in error.problems) from None
    except CrossflowError as error:
        key, separator, said = str(error).partition(": ")
        path = key.split(".")
        known = bool(separator) and path[0] in (JobsSpec if at else ClusterFile).model_fields
        raise document.error((*at, *(path if known else ())), said if known else str(error)) from None


def _of_scenario(problem: Problem, document: Document, at: Path_) -> Problem:
    """A problem of the scenario of an entry that is written in the file."""
    return replace(document.problem(at, problem.message), path=f"{dotted(at)}.scenario.{problem.path}".strip("."))


def _sending(kind: ClusterJobKind, entry: JobsSpec, congestion: Congestion, nodes: int) -> ClusterJobKind:
    """Jobs of an entry with what they send: as it says, else as a step of their scenario does; the cluster has so many nodes."""
    if entry.sends is not None or kind.scenario is None:
        return replace(kind, sends=entry.sends)
    return replace(kind, sends=traffic_of(kind.scenario, congestion, nodes))


def _trace(entry: JobsSpec, kind: ClusterJobKind, seed: int, number: int, base: Path | None) -> JobTrace:
    """The jobs of an entry, read or drawn."""
    if entry.trace is not None:
        found = read_jobs(found_file(entry.trace, "trace", base), entry)
        return found if entry.name is None else JobTrace(**{**found.__dict__, "classes": tuple(
            entry.name if found.classes == ("all",) else f"{entry.name} {one}" for one in found.classes)})  # fmt: skip
    return drawn_jobs(entry, seed, number, None if kind.devices is None else (kind.devices, kind.time))


def _ground(spec: ClusterFile, system: SystemSpec, document: Document) -> SliceGround | None:
    """The torus that jobs have slices of; None where any devices will do, SpecError where there is none."""
    if spec.placement != "slices":
        return None
    found = slice_ground(system.network, *system.mesh)
    if found is None:
        level: WhichLevel = "inter" if system.mesh[1] > 1 else "intra"
        wired = topology_of(system.network, level, system.mesh[level == "inter"])
        why = f"joins nodes of {system.mesh[0]} devices" if wired.is_grid else f"is wired as {wired.kind}"
        what = f"the devices of {system.name} are not on one torus or mesh (network.{level} {why})"
        raise document.error(("placement",), f"{what}; leave placement out, or take such a system, as tpu-v4-pod")
    if found.optical and system.mesh[0] < system.devices_per_node:
        what = f"optical switches join whole nodes of {system.devices_per_node} devices, and the cluster has {system.device_count}"
        raise document.error(("system", "devices"), f"{what}; give it nodes")
    return found


def _slices(kind: ClusterJobKind, trace: JobTrace, ground: SliceGround | None, key: str) -> list[SliceShape]:
    """The slice of each job of an entry, whose devices are said by a key of it; none where any devices will do."""
    if ground is None:
        return []
    said = [sizes_of(text) if text else None for text in trace.slices]
    for shape in said:
        if shape is not None and (why := ground.refusal(shape)):
            raise CrossflowError(f"{key}: {why}")
    named = [said[one] or kind.slice for one in trace.slice.tolist()]
    return [one or slice_of(many, ground, key) for one, many in zip(named, trace.devices.tolist(), strict=True)]


def _together(
    spec: ClusterFile, kinds: list[ClusterJobKind], traces: list[JobTrace], slices: list[SliceShape]
) -> tuple[Index, ClusterJobs]:
    """All jobs in order of their arrival, and the order that they are in."""
    if sum(map(len, traces)) > MOST_JOBS:
        raise CrossflowError(f"jobs: there are {sum(map(len, traces)):,} jobs, more than the {MOST_JOBS:,} that are taken")
    counts = [len(one) for one in traces]
    arrival, devices, time = (np.concatenate([getattr(one, name) for one in traces]) for name in ("arrival", "devices", "time"))
    order = np.argsort(arrival, kind="stable")

    def each(values: list[Any]) -> Any:
        return np.repeat(np.array(values), counts)[order]

    time = time[order]
    return order, ClusterJobs(
        arrival=arrival[order], devices=devices[order], time=time, power=devices[order] * each([one.power for one in kinds]),
        expected=time * each([one.expected for one in spec.jobs]), priority=each([one.priority for one in spec.jobs]),
        preemptible=each([one.preemptible for one in spec.jobs]), slices=tuple(slices[job] for job in order.tolist()) if slices else (),
        **{name: each([getattr(one, name) for one in kinds]) for name in ("save", "load", "interval", "lasting")},
    )  # fmt: skip


def _policy(spec: ClusterFile) -> SchedulerPolicy:
    said = spec.scheduler
    given = {"quantum": said.quantum, "preemption": said.preemption, "depth": said.depth}
    return SchedulerPolicy(kind=said.kind, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


def _check_system(spec: ClusterFile, system: SystemSpec, device: Architecture, document: Document) -> None:
    """SpecError for a cluster whose devices are not counted or of several kinds, and for what has no meaning."""
    if system.pools:
        raise document.error(("system", "pools"), "a cluster has devices of one kind; leave pools out")
    if not system.counted:
        raise document.error(("system",), "how many devices has the cluster? give nodes, or devices")
    if wrong := [*unwired(system, system.mesh, document)]:
        raise SpecError(wrong)
    if spec.carbon_by_hour is not None and operation_of(system, device).carbon_intensity is not None:
        raise document.error(("carbon_by_hour",), "system.operation.carbon_intensity says it too; leave one of them out")


def _check(spec: ClusterFile, jobs: ClusterJobs, entry: Index, room: ClusterRoom, document: Document) -> None:
    """SpecError for jobs that never have room, for a cap below what rests, and for slices in which nothing is done."""
    if room.devices * room.idle_power > room.power_cap:
        message = f"the devices draw {show(room.devices * room.idle_power, 'W')} at rest, more than {show(room.power_cap, 'W')}"
        raise document.error(("power_cap",), message)
    large = np.flatnonzero(jobs.devices > room.devices)
    if len(large):
        job = int(large[0])
        many = f"; so do {len(large) - 1:,} more" if len(large) > 1 else ""
        message = f"a job needs {jobs.devices[job]:,} devices, and the cluster has {room.devices:,}{many}; give it more nodes"
        raise document.error(("jobs", int(entry[job])), message)
    alone = jobs.power + (room.devices - jobs.devices) * room.idle_power
    hungry = np.flatnonzero(alone > room.power_cap * (1.0 + 1e-9))
    if len(hungry):
        job = int(hungry[0])
        message = f"with one job of {jobs.devices[job]:,} devices alone the cluster draws {show(float(alone[job]), 'W')}; raise the cap"
        raise document.error(("power_cap",), message)
    moved = jobs.preemptible
    longest = float(jobs.load[moved].max(initial=0.0) + jobs.save[moved].max(initial=0.0))
    if spec.scheduler.kind == "gang" and spec.scheduler.quantum is not None and spec.scheduler.quantum <= longest:
        message = f"a slice must be longer than the {show(longest, 's')} that jobs take to save and to load"
        raise document.error(("scheduler", "quantum"), message)


def _assumed(spec: ClusterFile, system: SystemSpec, kinds: list[ClusterJobKind], traces: list[JobTrace]) -> list[str]:
    """Sentences on what nobody gave and was taken for something."""
    found, kind = list[str](), spec.scheduler.kind
    for keys, kinds_of in ((("expected",), ("backfill",)), (("preemptible", "checkpoint"), ("gang", "preemptive"))):
        said = [key for key in keys if any(key in one.model_fields_set for one in spec.jobs)]
        if said and kind not in kinds_of:
            does = "does" if len(kinds_of) == 1 else "do"
            found.append(f"{kind} does not look at {' and '.join(said)} of jobs; only {' and '.join(kinds_of)} {does}")
    takes = spec.scheduler.kind in ("gang", "preemptive")
    if takes and any(one.save == 0.0 and one.load == 0.0 and two.preemptible for one, two in zip(kinds, spec.jobs, strict=True)):
        found.append("jobs without checkpoint save and load in no time")
    rated = [one for one, two in zip(kinds, spec.jobs, strict=True) if one.scenario is None and two.power is None]
    if rated:
        found.append("jobs without power draw the rated power of their devices")
    silent = [one for one, two in zip(kinds, spec.jobs, strict=True) if one.scenario is None and two.sends is None]
    if spec.links == "shared" and silent:
        found.append("jobs of given facts that do not say what they send slow no others, and are not slowed")
    if spec.placement != "slices" and any(any(one.slices) for one in traces):
        found.append("slices that a trace says are left out, and jobs have any devices; placement: slices cuts the cluster into them")
    if spec.idle_power is None and system.node_load is None:
        found.append("devices at rest draw what is known of them, and their hosts as when they work; give idle_power")
    return found
