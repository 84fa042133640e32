"""Reliability in files: rates of interruptions by cause, and what a scenario's `run` says of checkpoints, restarts and spares."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from crossflow.base import files
from crossflow.base.arrays import Array, points
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.files import Document, FileModel
from crossflow.base.limits import Finite, Flag, NonNegativeInt, PositiveInt, shown
from crossflow.base.units import Bandwidth, Duration, Quantity, Time

CONFIDENCE = 0.9  # of the interval of a rate that was counted
KIND = "reliability"
LIKE = "like"
EXAMPLE = "{rate: 2 1/year, per: node, detection: 5 min}"  # of a cause
FailureRate = Annotated[Array, Quantity("1/s", ge=0)]


class CauseSpec(FileModel):
    """Interruptions by one cause: a rate, or how many were counted; how long they are noticed, told apart and repaired."""

    rate: FailureRate | None = Field(default=None, description="interruptions of one device, node or job, such as 0.5 1/year")
    low: FailureRate | None = Field(default=None, description="lower end of the rate, where it is uncertain")
    high: FailureRate | None = Field(default=None, description="upper end of the rate")
    count: NonNegativeInt | None = Field(
        default=None, description="interruptions that were counted in the time and on the machines of `observed`; only in a file"
    )
    per: Literal["device", "node", "domain", "job"] = Field(
        description="whose rate it is: of a device, of a node, of a domain of `nodes` that break together, or of the job whatever its size"
    )
    nodes: PositiveInt | None = Field(
        default=None,
        description="of a domain: nodes that one strike takes out, and one repair brings back, such as those of a rack or below a switch",
    )
    detection: Time = Field(description="until it is noticed; of silent errors the time for which the job runs on in vain")
    diagnosis: Time = Field(default=points(0.0), description="from then until the culprit is known and isolated")
    repair: Time = Field(default=points(0.0), description="mean time for which a node, or all of a domain, is away; 0 where none is")
    silent: Flag = Field(default=False, description="whether it is a silent error: work since the error is lost")
    again: Finite = Field(
        default=0.0,
        ge=0.0,
        le=0.95,
        description="share of its interruptions that strike right after the restart from another of them: bursts",
    )
    slowdown: Finite | None = Field(
        default=None,
        ge=1.0,
        description="of what slows the job and does not stop it, for detection and diagnosis: how many times as long steps take",
    )
    source: str = Field(default="", description="key of `sources`, in a file")

    @model_validator(mode="after")
    def _goes_on(self) -> CauseSpec:
        if self.slowdown is not None and (self.silent or self.again or self.repair.any()):
            name = "silent" if self.silent else "again" if self.again else "repair"
            raise ValueError(f"{name} is of what stops the job, and a slowdown does not; leave one of them out")
        return self

    @model_validator(mode="after")
    def _of_domains(self) -> CauseSpec:
        if self.per == "domain" and self.nodes is None:
            raise ValueError("a domain has a number of nodes; give it, such as nodes: 8")
        if self.per != "domain" and self.nodes is not None:
            raise ValueError(f"nodes is of a domain, and this is per {self.per}; take per: domain, or leave nodes out")
        return self

    @model_validator(mode="after")
    def _one_rate(self) -> CauseSpec:
        if (self.rate is None) == (self.count is None):
            raise ValueError("give one of rate and count")
        bounds = [float(one[0]) for one in (self.low, self.rate, self.high) if one is not None]
        if self.rate is None and len(bounds):
            raise ValueError("low and high are of a rate; those of a count follow from it")
        if bounds != sorted(bounds):
            raise ValueError("low, rate and high must not decrease")
        return self

    def many(self, devices: Array, nodes: Array) -> Array:
        """How many of what its rate is of a job has. [1]"""
        if self.per == "domain":
            return np.ceil(nodes / self.domain)
        return {"device": devices, "node": nodes, "job": points(1.0)}[self.per]

    @property
    def domain(self) -> float:
        """Nodes that break together. [1]"""
        return float(self.nodes or 1)


class Observed(FileModel):
    """Where and how long interruptions were counted."""

    time: Duration = Field(description="length of the observation")
    devices: PositiveInt = Field(description="devices of the job")
    nodes: PositiveInt = Field(description="nodes of the job")
    source: str


class RestartSpec(FileModel):
    """From the moment that the culprit is known, and its node replaced, to the first new step."""

    schedule: Time | None = Field(default=None, description="to start processes, and to join them into groups")
    load: Time | None = Field(default=None, description="to load the checkpoint; from its size and bandwidth where absent")
    warm_up: Time | None = Field(default=None, description="compilation, caches, first slow steps")


class ReliabilitySpec(FileModel):
    """A file of rates of interruptions, with their sources."""

    kind: Literal["reliability"]
    name: str
    title: str
    notes: str = ""
    sources: Mapping[str, str]
    observed: Observed | None = None
    causes: Mapping[str, CauseSpec]
    restart: RestartSpec = RestartSpec()
    storage: Bandwidth | None = Field(default=None, description="what one node reads and writes on the storage")

    @model_validator(mode="after")
    def _counted_somewhere(self) -> ReliabilitySpec:
        if self.observed is None and any(one.count is not None for one in self.causes.values()):
            raise ValueError("causes have a count, and nothing says where: give observed its time, devices and nodes")
        return self


class Reliability(ReliabilitySpec):
    """The same as it was read, with the numbers that the file marks as assumed."""

    assumed: tuple[str, ...] = ()


UNBROKEN = Reliability(kind="reliability", name="own", title="", sources={}, causes={})  # of runs that nothing interrupts


class CheckpointSpec(FileModel):
    """How a run saves its state."""

    kind: Literal["behind", "synchronous"] = Field(
        default="behind", description="behind: copied to the host, then written while the next steps run; synchronous: steps wait for all"
    )
    to: Literal["storage", "neighbours"] = Field(
        default="storage", description="where it is written: storage, or the memory of another node"
    )
    layout: Literal["sharded", "consolidated"] = Field(
        default="sharded", description="sharded: every device saves its part of one copy; consolidated: those of one replica save it all"
    )
    interval: Duration | Literal["auto"] = Field(default="auto", description="computing time between two saves; auto: that of least loss")
    steps: PositiveInt | None = Field(default=None, description="steps between two saves, in the place of interval")
    bandwidth: Bandwidth | None = Field(
        default=None, description="what one node reads and writes on the storage; 1 GB/s is assumed where absent"
    )
    links: Literal["own", "shared"] | None = Field(
        default=None,
        description="of `behind`, whether it is written over the links between nodes that steps send over, and both are slowed; where"
        " absent, shared to neighbours, and own to storage, which then has a network of its own",
    )
    storage_bandwidth: Bandwidth | None = Field(default=None, description="what the storage delivers to all nodes; no limit where absent")

    @model_validator(mode="after")
    def _means_something(self) -> CheckpointSpec:
        if self.steps is not None and self.interval != "auto":
            raise ValueError("give one of interval and steps")
        if self.links == "shared" and self.kind == "synchronous":
            raise ValueError("links: no step runs while a synchronous checkpoint is written; leave it out")
        if self.to == "neighbours" and (self.bandwidth is not None or self.storage_bandwidth is not None):
            raise ValueError("bandwidth and storage_bandwidth are of a storage, and it is written to neighbours; leave them out")
        return self


class JitterSpec(FileModel):
    """How the computing of devices varies from step to step; each step waits for the slowest."""

    spread: Finite = Field(ge=0.0, le=1.0, description="standard deviation of the computing of one device or node in a step, over its mean")
    per: Literal["device", "node"] = Field(default="device", description="what varies by itself; devices of one node may vary together")
    law: Literal["log-normal", "exponential"] = Field(
        default="log-normal",
        description="of these times; exponential: a time that each step takes, and an exponential delay, whose tail is longer",
    )


class MaintenanceSpec(FileModel):
    """Planned stops, each after a checkpoint."""

    every: Duration = Field(description="time of running between two of them")
    length: Time = Field(description="length of one, without checkpoint and restart")


@dataclass(frozen=True, kw_only=True, eq=False)
class RateInterval:
    """Interruptions by one cause as rates: of one device, node or job. [1/s]"""

    low: float
    rate: float
    high: float


def load_reliability(given: str | Mapping[str, Any], document: Document, base: Path | None) -> Reliability:
    """A reliability file by name or path; or causes written out, over those of the file that their `like` names."""
    if isinstance(given, str):
        found = _file(given, document, base)
        if not found.causes:
            raise document.error((), f"{given} has no causes; name another file, or write causes into the scenario")
        return found
    named = given.get(LIKE)
    if named is not None and not isinstance(named, str):
        raise document.error((LIKE,), f"expected the name of a reliability file, got {named!r}")
    below = None if named is None else _file(named, document.under(LIKE), base)
    if any(not str(name).strip() for name in given):
        raise document.error((), f"the name of a cause is empty; give it one, such as gpu: {EXAMPLE}")
    own, problems = dict[str, CauseSpec](), list[Problem]()
    for name in map(str, given):
        try:
            own |= {} if name == LIKE else {name: files.validate(CauseSpec, _over(below, name, document))}
        except SpecError as error:
            problems += [problem.below(name) for problem in error.problems]
    if problems:
        raise SpecError(problems)
    if any(one.count is not None for one in own.values()) and below is None:
        name = next(name for name, one in own.items() if one.count is not None)
        raise document.error((name, "count"), "only a file says where interruptions were counted; give a rate")
    if below is None:
        if not own:
            raise document.error((), f"no cause stands here; give one, such as node: {EXAMPLE}")
        return Reliability(kind="reliability", name="own", title="", sources={}, causes=own)
    return below.model_copy(update={"causes": {**below.causes, **own}})


def _over(below: Reliability | None, name: str, document: Document) -> Document:
    """A cause as it is written, over the cause of that name below."""
    own = document.under(name)
    if not isinstance(own.data, Mapping):  # such as a mean time between failures, which says nothing of what follows them
        raise own.error((), f"a cause says its rate and how it is noticed, such as {name}: {EXAMPLE}; got {shown(own.data)}")
    if below is None or name not in below.causes:
        return own
    base = below.causes[name].model_dump(exclude_none=True)
    if own.data.get("rate") is not None:
        base = {key: value for key, value in base.items() if key not in ("count", "rate", "low", "high")}
    kept = {
        key: (f"{value} 1/s" if key in ("rate", "low", "high") else f"{value} s" if key in _TIMES else value) for key, value in base.items()
    }
    return Document(file=own.file, data={**kept, **own.data}, lines=own.lines)


_TIMES = ("detection", "diagnosis", "repair")


def _file(named: str, document: Document, base: Path | None) -> Reliability:
    try:
        path = files.find("templates", named, base, KIND)
    except CrossflowError as error:
        raise document.error((), str(error)) from None
    found = files.read_yaml(path)
    if not isinstance(found.data, Mapping) or found.data.get("kind") != KIND:
        raise document.error((), f"{named} is no reliability file; its kind is not {KIND}")
    spec: ReliabilitySpec = files.validate(ReliabilitySpec, found)
    return Reliability.model_construct(**dict(spec), assumed=tuple(_assumed(found.data)))


def _assumed(data: Mapping[str, Any]) -> dict[str, None]:
    """Numbers of a file that are assumed: those of all causes once each, others by their path."""
    paths = (path for path, value in files.leaves(data) if isinstance(value, Mapping) and value.get("status") == "assumed")
    return dict.fromkeys(f"{path[-1]} of causes" if path[0] == "causes" else ".".join(map(str, path)) for path in paths)


def rates(spec: ReliabilitySpec, name: str) -> RateInterval:
    """The rate of a cause with its interval: the 90 % interval of a Poisson mean (Garwood 1936) where it was counted."""
    cause = spec.causes[name]
    if cause.rate is not None:
        value = float(cause.rate[0])
        low, high = (value if one is None else float(one[0]) for one in (cause.low, cause.high))
        return RateInterval(low=low, rate=value, high=high)
    from scipy.special import gammaincinv

    assert cause.count is not None
    assert spec.observed is not None  # its validators have looked
    exposure = float((spec.observed.time * cause.many(points(spec.observed.devices), points(spec.observed.nodes)))[0])
    tail = (1.0 - CONFIDENCE) / 2.0
    least = float(gammaincinv(cause.count, tail)) if cause.count else 0.0
    most = float(gammaincinv(cause.count + 1, 1.0 - tail))
    return RateInterval(low=least / exposure, rate=cause.count / exposure, high=most / exposure)


@functools.cache
def load_named(name: str) -> ReliabilitySpec:
    """A shipped reliability file."""
    path = files.catalogue("templates", KIND)[name]
    found: ReliabilitySpec = files.validate(ReliabilitySpec, files.read_yaml(path))
    return found


def common() -> ReliabilitySpec:
    """What is assumed where nothing else says it: the shipped file `common`."""
    return load_named("common")
