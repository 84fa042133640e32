"""What a long run is asked with, and what comes of it; every array has one value a design point, last axis, n or 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from crossflow.base.arrays import Array, Mask, count, points

# Where the time of a run goes; the shares add up to 1.
KINDS_OF_TIME = ("useful", "saving", "lost_work", "detection", "restart", "waiting", "maintenance", "shrunk", "slowed")
JITTER = "jitter"  # what takes time where steps vary
PLANNED = "maintenance"  # what takes time where stops are planned
NEVER_FAILS = 1e-30  # the least rate that floats compute with: one failure in 1e22 years. [1/s]
NONE = points(0.0)


def _none() -> Array:
    return NONE


@dataclass(frozen=True, kw_only=True, eq=False)
class FailureCause:
    """Interruptions of a job by one cause.

    Attributes
    ----------
    name : for reports.
    rate : interruptions of the whole job while it runs, Poisson. [1/s]
    detection : from the failure to the begin of the restart, nodes at hand: until it is noticed, and until the culprit is known. [s]
    repair : mean time for which a node is away, exponential; 0 where no node is taken out. [s]
    silent : whether the job runs on in vain until it is noticed, so that the work of this time is lost too.
    again : probability that it strikes once more as soon as the job has restarted; `rate` is without these. [1]
    domain : nodes that break together and come back together, those of a rack or below a switch; `rate` is of all domains of the job. [1]
    """

    name: str
    rate: Array
    detection: Array = field(default_factory=_none)
    repair: Array = field(default_factory=_none)
    silent: bool = False
    again: float = 0.0
    domain: float = 1.0

    def taken(self, nodes: Array) -> tuple[tuple[Array, Array], ...]:
        """Of a job on so many nodes: the share of its strikes that hit whole domains, and what these take out; the same of the last one.

        A job fills its domains one after the other, so that the last may hold fewer of its nodes. [1]
        """
        whole, rest = np.divmod(nodes, self.domain)
        domains = np.ceil(nodes / self.domain)
        found = (whole / domains, np.full(1, self.domain)), (1.0 - whole / domains, np.where(rest > 0, rest, self.domain))
        return tuple((share, size) for share, size in found if share.any())


@dataclass(frozen=True, kw_only=True, eq=False)
class SlowCause:
    """What slows a job and does not stop it, such as a device that is too hot: all others wait for it.

    Attributes
    ----------
    name : for reports.
    rate : of such periods in the whole job at any time, Poisson. [1/s]
    length : of one in the mean, exponential. [s]
    slowdown : how many times as long what the job does takes meanwhile; of several the slowest counts. [1]
    """

    name: str
    rate: Array
    length: Array
    slowdown: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Jitter:
    """How times of a step vary by themselves; each step waits for the slowest.

    Attributes
    ----------
    spread : standard deviation of the time of a unit in a step, over its mean. [1]
    units : that wait for each other, each with times of its own: devices or nodes. [1]
    step : mean time of a step of units that are alike. [s]
    law : of these times.
    """

    spread: Array
    units: Array
    step: Array
    law: Literal["log-normal", "exponential"] = "log-normal"


@dataclass(frozen=True, kw_only=True, eq=False)
class LongRun:
    """A job that fails and comes back.

    Attributes
    ----------
    causes : what interrupts it.
    nodes : nodes that it computes on. [1]
    interval : of computing between two checkpoints. [s]
    stall : for which computing stops at each. [s]
    commit : from then until the checkpoint can be read again. [s]
    restart : from detection to the first new step: scheduling, loading, warm-up; a failure begins it anew. [s]
    spares : further nodes, which stand in for broken ones. [1]
    elastic : whether it goes on with fewer replicas where nodes are missing, instead of waiting; a single one waits.
    replica : nodes of one data-parallel replica. [1]
    idle : of an elastic job, the share of a step in which its stages have nothing to do and can take work of broken ones. [1]
    planned : planned stops while it runs, each after a checkpoint; at random in `renewal`, at equal distances in `events`. [1/s]
    maintenance : length of one, without its checkpoint and restart. [s]
    slow : what slows it.
    jitter : how its steps vary; None where all take the same time.
    """

    causes: tuple[FailureCause, ...]
    nodes: Array
    interval: Array
    stall: Array = field(default_factory=_none)
    commit: Array = field(default_factory=_none)
    restart: Array = field(default_factory=_none)
    spares: Array = field(default_factory=_none)
    elastic: bool = False
    replica: Array = field(default_factory=lambda: points(1.0))
    idle: Array = field(default_factory=_none)
    planned: Array = field(default_factory=_none)
    maintenance: Array = field(default_factory=_none)
    slow: tuple[SlowCause, ...] = ()
    jitter: Jitter | None = None

    @property
    def goes_on(self) -> Mask:
        """Whether it goes on without broken nodes: elastic, and of several replicas."""
        return np.asarray((self.nodes > self.replica) & self.elastic)

    def __len__(self) -> int:
        own = (self.nodes, self.interval, self.stall, self.commit, self.restart, self.spares, self.replica, self.planned)
        of_causes = (array for one in self.causes for array in (one.rate, one.detection, one.repair))
        of_slow = (array for one in self.slow for array in (one.rate, one.length))
        steps = () if self.jitter is None else (self.jitter.spread, self.jitter.units, self.jitter.step)
        return count(*own, self.idle, self.maintenance, *of_causes, *of_slow, *steps)

    @property
    def failures(self) -> Array:
        """Unplanned interruptions while it runs, of all causes. [1/s]"""
        return np.maximum(sum((one.rate for one in self.causes), np.zeros(1)), NEVER_FAILS)

    @property
    def stops(self) -> Array:
        """Interruptions while it runs, planned ones among them. [1/s]"""
        return np.asarray(self.failures + self.planned)

    @property
    def cycle(self) -> Array:
        """Time from one checkpoint to the next. [s]"""
        return np.asarray(self.interval + self.stall)


@dataclass(frozen=True, kw_only=True, eq=False)
class TimeShares:
    """Where the time of a long run goes; every array has shape (n,).

    Attributes
    ----------
    shares : share of the time by kind, `KINDS_OF_TIME`; they add up to 1. [1]
    by_cause : share of the time that each cause takes, also by slowing, planned stops as `maintenance`, steps that vary as `jitter`; with
        saving, shrinking and useful time 1. [1]
    interruptions : unplanned ones in calendar time. [1/s]
    missing : probability that a failure that takes a node out finds no spare. [1]
    away : nodes in repair, mean. [1]
    """

    shares: Mapping[str, Array]
    by_cause: Mapping[str, Array]
    interruptions: Array
    missing: Array
    away: Array

    @property
    def goodput(self) -> Array:
        """Share of the time in which work is done that counts. [1]"""
        return self.shares["useful"]
