"""The file of a cluster: its system, how it schedules, what power and carbon it has, and its jobs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from crossflow.base.files import FileModel
from crossflow.base.limits import DEVICES, Finite, Flag, NonNegativeInt, PositiveFloat, PositiveInt, Seed, Whole, shown
from crossflow.base.units import CarbonIntensity, Power
from crossflow.hardware.architecture.network import JobTraffic
from crossflow.workload.requests.laws import ArrivalLaw, CountLaw, PositiveWaitTime, TimeLaw, WaitTime

MOST_JOBS = 1_000_000  # of a cluster
JobText = Annotated[str, Field(min_length=1)]
OF_A_TRACE = ("columns", "time_unit", "limit")


def is_slice(text: str) -> bool:
    """Whether a text says the sizes of a slice, such as 4x4x8."""
    return re.fullmatch(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,2}", text) is not None


def sizes_of(text: str) -> tuple[int, ...]:
    """Sizes of a slice that a text says. [1]"""
    return tuple(map(int, text.split("x")))


def _sizes(given: Any) -> Any:
    if not isinstance(given, str) or not is_slice(given):
        raise ValueError(f"expected the sizes of a slice, such as 4x4x8, got {shown(given)}")
    return given


SliceText = Annotated[str, BeforeValidator(_sizes)]


class SchedulerSpec(FileModel):
    """How jobs are given devices; its kind alone where nothing else is said."""

    kind: Literal["fifo", "backfill", "gang", "preemptive"] = Field(
        description="fifo: in order of arrival; backfill: the same, and later jobs that do not delay the first one (EASY); gang: in slices "
        "of time, all devices of a job at once; preemptive: jobs of a higher priority take devices from others"
    )
    quantum: PositiveWaitTime | None = Field(None, description="of `gang`: length of a slice, such as 30 min")
    preemption: Literal["save", "kill"] | None = Field(
        None, description="of `preemptive`: save, as where absent: a job saves its state first; kill: it goes back to its last checkpoint"
    )
    depth: NonNegativeInt | None = Field(
        None, description="of `backfill`: waiting jobs behind the first that are looked at; all where absent"
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _of_its_kind(self) -> SchedulerSpec:
        for key, kind in (("quantum", "gang"), ("preemption", "preemptive"), ("depth", "backfill")):
            if getattr(self, key) is not None and self.kind != kind:
                raise ValueError(f"{key}: only {kind} has it; leave it out")
        return self


class JobCheckpointSpec(FileModel):
    """What it costs to take devices from a job."""

    save: WaitTime | None = Field(None, description="to save its state; from its scenario's run, else nothing")
    load: WaitTime | None = Field(None, description="from having devices again until it goes on; from its scenario's run, else nothing")
    interval: PositiveWaitTime | None = Field(
        None, description="running between two checkpoints of its own, which are part of its time; from its scenario's run, else none"
    )


class JobColumnsSpec(FileModel):
    """Names of a trace's columns where they are not recognised."""

    arrival: JobText | None = Field(None, description="when a job comes: a number or a date")
    devices: JobText | None = Field(None, description="devices that it needs")
    time: JobText | None = Field(None, description="how long it runs, in the unit of arrivals, seconds beside dates")
    kind: JobText | None = Field(None, alias="class", description="name of its class, by which figures are told apart")


class JobsSpec(FileModel):
    """One job, jobs that are drawn, or a trace of jobs; a text alone is the trace."""

    name: JobText | None = Field(None, description="for reports")
    arrival: WaitTime | None = Field(None, description="of one job: when it comes, at the beginning where absent")
    arrivals: ArrivalLaw | None = Field(None, description="of jobs that are drawn: when they come")
    count: Annotated[PositiveInt, Field(le=MOST_JOBS)] | None = Field(None, description="of `arrivals`: how many come")
    duration: PositiveWaitTime | None = Field(None, description="of `arrivals`: how long they come, in the place of `count`")
    trace: JobText | None = Field(None, description="table of jobs (CSV, JSONL, JSON, Parquet), recognised by its columns")
    columns: JobColumnsSpec | None = Field(None, description="of `trace`: columns that are not recognised")
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="of `trace`: unit of times that are numbers")
    limit: PositiveInt | None = Field(None, description="of `trace`: only its first jobs")
    scenario: str | Mapping[str, Any] | None = Field(
        None,
        description="what each of them is: the path of a scenario, or a scenario without `system`, which is the cluster's; its step and "
        "`run` say time, devices, power and checkpoints",
    )
    steps: PositiveFloat | None = Field(None, description="of `scenario`: steps, or iterations of post-training, in the place of its `run`")
    devices: CountLaw | None = Field(
        None,
        description="devices of each, which it needs at once: a number, or a law; of a scenario that stands here its `system.devices`",
    )
    slice: SliceText | None = Field(
        None,
        description="of `placement: slices`: sizes of the slice of each, such as 4x4x8, in the place of `devices`; the one of its devices"
        " that is most like a cube where absent",
    )
    time: TimeLaw | None = Field(None, description="how long each runs: a time, or a law; of a scenario in the place of its `run`")
    power: Power | None = Field(
        None, description="of one device at the wall while a job has it, host and data centre included; rated power where absent"
    )
    expected: Annotated[Finite, Field(ge=1.0, le=1000.0)] = Field(
        1.0, description="what the scheduler takes for the length of a job, over its length; people ask for more time than they need"
    )
    priority: Annotated[Whole, Field(ge=-1000, le=1000)] = Field(0, description="larger ones go first")
    preemptible: Flag = Field(True, description="whether `gang` and `preemptive` may take devices away")
    checkpoint: JobCheckpointSpec | None = None
    sends: JobTraffic | None = Field(
        None,
        description="of `links: shared`: what each sends between its nodes; of a scenario what its step sends, where absent, and of others"
        " nothing",
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"trace": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_kind(self) -> JobsSpec:
        for key, other, why in self._clashes():
            if getattr(self, key) is not None and (other is None or getattr(self, other) is not None):
                raise ValueError(f"{key}: {why}")
        if self.arrivals is not None and (self.count is None) == (self.duration is None):
            raise ValueError("arrivals: give one of count and duration")
        if self.scenario is None and self.trace is None:
            for key, example in (("devices", "devices: 8"), ("time", "time: 5 h")):
                if getattr(self, key) is None and not (key == "devices" and self.slice is not None):
                    raise ValueError(f"a job needs {key}, such as {example}, or a scenario, or a trace")
        if self.scenario is not None and self.devices is not None and (isinstance(self.scenario, str) or self.devices.law != "fixed"):
            raise ValueError("devices: a scenario that stands here takes a number of them, and the file of one says it; leave it out")
        if self.sizes is not None and math.prod(self.sizes) > DEVICES:
            raise ValueError(f"slice: expected at most {DEVICES:,} devices, got {math.prod(self.sizes):,}")
        if self.devices is not None and self.devices.least < 1:
            raise ValueError("devices: a job needs at least one")
        return self

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Those of its slice. [1]"""
        return None if self.slice is None else sizes_of(self.slice)

    def _clashes(self) -> Sequence[tuple[str, str | None, str]]:
        """Keys that have no meaning: beside another key, or, without one, here."""
        said = "the trace says it; leave it out"
        found: list[tuple[str, str | None, str]] = [
            *((key, "trace", said) for key in ("arrival", "arrivals", "devices", "slice", "time", "scenario")),
            ("devices", "slice", "the slice says it; leave it out"),
            ("arrival", "arrivals", "arrivals say when jobs come; leave it out"),
            ("power", "scenario", "the scenario says it; leave it out"),
            ("steps", "time", "time says how long it runs; leave it out"),
        ]
        if self.trace is None:
            found += [(key, None, "only a trace has it; leave it out") for key in OF_A_TRACE]
        if self.arrivals is None:
            found += [(key, None, "only arrivals have it; leave it out") for key in ("count", "duration")]
        if self.scenario is None:
            found.append(("steps", None, "only a scenario has steps; give time"))
        return found


class ClusterFile(FileModel):
    """A cluster and its jobs."""

    name: str = ""
    title: str = ""
    notes: str = ""
    system: Any = Field(description="the cluster: a section as `system` of a scenario, whose `operation` says rent, PUE and carbon")
    scheduler: SchedulerSpec = Field(SchedulerSpec(kind="fifo"), description="how jobs are given devices, fifo where absent")
    placement: Literal["any", "slices"] = Field(
        "any",
        description="any: a job has any devices that are free; slices: each has a slice of the torus or mesh of devices, of `fifo` and"
        " `backfill`",
    )
    links: Literal["own", "shared"] = Field(
        "own",
        description="own: no job slows another; shared: jobs that run at once share links between nodes, of a fat tree or dragonfly;"
        " `system.network.inter.congestion` says how",
    )
    power_cap: Power | None = Field(None, description="most that the cluster may draw at the wall; jobs wait for power as for devices")
    idle_power: Power | None = Field(
        None, description="of one device at the wall that no job has; from the system's `node_load` or rated host where absent"
    )
    carbon_by_hour: Annotated[tuple[CarbonIntensity, ...], Field(min_length=1, max_length=100_000)] | None = Field(
        None, description="carbon intensity of each hour in turn, and again from the first after the last; the first is that of time 0"
    )
    seed: Seed = Field(0, description="of jobs that are drawn")
    jobs: tuple[JobsSpec, ...] = Field(description="the jobs: a list, each entry one job, jobs that are drawn, or a trace")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and isinstance(given.get("jobs"), str | Mapping):
            return {**given, "jobs": [given["jobs"]]}
        return given

    @model_validator(mode="after")
    def _some(self) -> ClusterFile:
        if not self.jobs:
            raise ValueError("jobs: expected at least one")
        if self.placement == "slices" and self.scheduler.kind not in ("fifo", "backfill"):
            raise ValueError(f"placement: {self.scheduler.kind} takes devices away, and slices stay until their jobs end; take backfill")
        if self.links == "shared" and self.placement == "slices":
            raise ValueError("links: slices of a torus share none; leave it out")
        if self.scheduler.kind == "gang" and self.scheduler.quantum is None:  # asked for where gang can be had at all
            raise ValueError("scheduler: gang needs a quantum, such as {kind: gang, quantum: 30 min}")
        for i, job in enumerate(self.jobs):
            if job.sends is not None and self.links == "own":
                raise ValueError(f"jobs[{i}].sends: only links: shared looks at it; give that to the cluster, or leave it out")
            if job.slice is not None and self.placement != "slices":
                raise ValueError(f"jobs[{i}].slice: only placement: slices has slices; give that to the cluster, or devices to the job")
        return self
