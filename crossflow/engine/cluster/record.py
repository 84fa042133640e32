"""What a cluster is asked with, and what becomes of its jobs; arrays have one value a job, shape (n,), unless they say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.engine.cluster.boxes import SlicePlace
from crossflow.hardware.mapping.slices import SliceGround, SliceShape

# How many times as long what each of some jobs does takes while all of them run, by their numbers, over alone. [1]
JobSlowdowns: TypeAlias = Callable[[Sequence[int]], Sequence[float]]
# What devices of a job do; the times of a job's devices add up to those that it holds.
KINDS_OF_STAY = ("useful", "loading", "lost_work", "saving")
SchedulerKind = Literal["fifo", "backfill", "gang", "preemptive"]
OF_SLICES: tuple[SchedulerKind, ...] = ("fifo", "backfill")  # those that leave a job its devices until it ends


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterJobs:
    """Jobs in order of their arrival.

    Attributes
    ----------
    arrival : [s]
    devices : all of which it needs at once, for as long as it runs. [1]
    time : of running, without what preemption adds. [s]
    power : of all its devices at the wall while it has them. [W]
    expected : time of running that the scheduler expects, never shorter than `time`. [s]
    priority : larger ones stand before smaller ones in the queue. [1]
    save : to save its state where devices are taken from it. [s]
    load : from having devices again until it goes on. [s]
    interval : of running between two of its own checkpoints, infinite without any. [s]
    preemptible : whether devices may be taken from it.
    slices : sizes of its slice where the cluster is cut into slices; none where any devices will do.
    lasting : whether it runs as long as it does, however slowly, as a service does; none where all end once their work is done.
    """

    arrival: Array
    devices: Index
    time: Array
    power: Array
    expected: Array
    priority: Index
    save: Array
    load: Array
    interval: Array
    preemptible: Mask
    slices: tuple[SliceShape, ...] = ()
    lasting: Mask | None = None

    def __len__(self) -> int:
        return len(self.arrival)


@dataclass(frozen=True, kw_only=True)
class ClusterRoom:
    """What jobs share.

    Attributes
    ----------
    devices : [1]
    idle_power : of one device that no job has, at the wall. [W]
    power_cap : most that all of them may draw. [W]
    ground : the torus or mesh of the devices where each job has a slice of it; None where any devices will do.
    """

    devices: int
    idle_power: float = 0.0
    power_cap: float = np.inf
    ground: SliceGround | None = None


@dataclass(frozen=True, kw_only=True)
class SchedulerPolicy:
    """How jobs are given devices.

    Attributes
    ----------
    kind : in order of arrival (``fifo``); the same, and later jobs that delay the first one not (``backfill``); in slices of time
        (``gang``); jobs of a higher priority take devices from others (``preemptive``).
    quantum : length of a slice of ``gang``. [s]
    preemption : whether a job saves its state first (``save``) or goes back to its last checkpoint (``kill``).
    depth : waiting jobs behind the first that ``backfill`` looks at. [1]
    """

    kind: SchedulerKind = "fifo"
    quantum: float = np.inf
    preemption: Literal["save", "kill"] = "save"
    depth: int = 1_000_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class JobStays:
    """Stretches of time in which a job has its devices, in order of their ends; arrays of shape (stays,). [s]

    A stay loads from `begin` to `loaded`, runs to `stopped` and saves to `end`; of what it ran the last part `lost` is done again.
    """

    job: Index
    begin: Array
    loaded: Array
    stopped: Array
    end: Array
    lost: Array

    @property
    def times(self) -> Mapping[str, Array]:
        """What the devices of each do, by kind. [s]"""
        return {
            "useful": self.stopped - self.loaded - self.lost, "loading": self.loaded - self.begin, "lost_work": self.lost,
            "saving": self.end - self.stopped,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduledCluster:
    """When each job had devices.

    Attributes
    ----------
    start, end : of its first stay and of its last. [s]
    waiting : time since its arrival in which it had no devices. [s]
    preemptions : times that devices were taken from it. [1]
    promised : when ``backfill`` first promised devices to a job that had come to the front of the queue; NaN for others. [s]
    stays : all stays of all jobs.
    boxless : time in which a job was the next one and devices and power were enough for it, but no slice was free. [s]
    fragmented : device-time of the devices that no job had meanwhile. [s]
    places : of each job, where its slice lay; none where any devices will do.
    alone : time in which it would have done alone what it did beside others, work that is lost too. [s]
    """

    jobs: ClusterJobs
    room: ClusterRoom
    start: Array
    end: Array
    waiting: Array
    preemptions: Index
    promised: Array
    stays: JobStays
    boxless: Array
    fragmented: float
    places: tuple[SlicePlace, ...]
    alone: Array
