"""What a cluster and its jobs have to say: waiting, utilisation, energy, money, carbon."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.bands import LEVELS, Trust
from crossflow.answers.cluster.opening import OpenedCluster, opened_cluster
from crossflow.answers.evaluation.replay_statistics import spread
from crossflow.answers.planning.opening import Overrides, as_settings
from crossflow.answers.scenario import overridden
from crossflow.base import files
from crossflow.base.arrays import Array, divide
from crossflow.base.drawing.picture import Picture
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.base.limits import shown
from crossflow.base.results import PlainData, Tabular, public
from crossflow.engine.cluster.account import ClusterAccount
from crossflow.engine.cluster.events import scheduled
from crossflow.engine.cluster.record import ScheduledCluster
from crossflow.hardware.architecture.run_cost import operation_of
from crossflow.hardware.mapping.slices import text_of
from crossflow.workload.requests.words import lasting

QUEUES = Trust(level="unknown", band=None, reason="queues of clusters were never compared with a measurement")
LINKS = Trust(level="unknown", band=None, reason="what jobs lose to each other on shared links was never compared with a measurement")
SHORT = 10.0  # running time below which a slowdown is that of a job of this length, as is usual. [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduledJobs(PlainData, Tabular):
    """Jobs of a cluster with their times; `crossflow.schedule` makes one.

    Attributes
    ----------
    cluster : the cluster and its jobs.
    found : when each job had devices.
    """

    cluster: OpenedCluster
    found: ScheduledCluster

    @functools.cached_property
    def account(self) -> ClusterAccount:
        """What all of it took."""
        return ClusterAccount(found=self.found)

    @property
    def span(self) -> float:
        """Time from the first arrival to the last end. [s]"""
        return self.account.span

    @property
    def utilisation(self) -> float:
        """Share of the time of all devices in which some job has them. [1]"""
        return self.account.utilisation

    @functools.cached_property
    def waiting(self) -> Mapping[str, float | None]:
        """Mean and percentiles of the time that jobs wait. [s]"""
        return spread(self.found.waiting)

    @functools.cached_property
    def slowdowns(self) -> Array:
        """Time from arrival to end of each job over its running time, that of short jobs taken as 10 s; at least 1. [1]"""
        jobs = self.found.jobs
        return np.asarray(np.maximum((self.found.end - jobs.arrival) / np.maximum(jobs.time, SHORT), 1.0))

    @property
    def boxless(self) -> float | None:
        """Mean of the time in which a job is the next one and waits for a free slice alone; None where any devices will do. [s]"""
        return None if self.found.room.ground is None else float(self.found.boxless.mean())

    @functools.cached_property
    def shared(self) -> Array | None:
        """How many times as long what each job did took beside others, over alone; None where each has links of its own. [1]"""
        if self.cluster.slowdowns is None:
            return None
        ran = self._beside
        return np.asarray(np.where(ran > 0, divide(ran, self.found.alone), 1.0))

    @functools.cached_property
    def _beside(self) -> Array:
        """Time of each job's running beside others, with work that is lost. [s]"""
        stays = self.found.stays
        return np.asarray(np.bincount(stays.job, stays.stopped - stays.loaded, minlength=len(self.found.jobs)), dtype=float)

    @property
    def _ran(self) -> Array:
        """Time of each job's running, without what preemption adds. [s]"""
        if self.shared is None:
            return self.found.jobs.time
        return self._beside - np.bincount(self.found.stays.job, self.found.stays.lost, minlength=len(self.found.jobs))

    @property
    def queue(self) -> float:
        """Jobs that wait, in the mean over the span. [1]"""
        return float(self.found.waiting.sum()) / self.span

    @property
    def cost(self) -> float | None:
        """Rent of all devices over the span, at rest too; None where nobody says it. [USD]"""
        price = operation_of(self.cluster.system, self.cluster.device).price
        return None if price is None else float(price[0]) * self.found.room.devices * self.span

    @property
    def energy(self) -> float:
        """Of all devices at the wall, at rest too. [J]"""
        return self.account.energy

    @property
    def power(self) -> float:
        """The mean of it over the span. [W]"""
        return self.energy / self.span

    @functools.cached_property
    def carbon(self) -> float | None:
        """Carbon of the energy, hour by hour; None where nobody says the intensity. [kg]"""
        by_hour = self.cluster.carbon_by_hour
        return None if by_hour is None else self.account.carbon(by_hour)

    @property
    def embodied_carbon(self) -> float | None:
        """Share of the carbon of making the devices that the span takes of their lifetime; None where it is not known. [kg]"""
        device, lifetime = self.cluster.device, operation_of(self.cluster.system, self.cluster.device).lifetime
        if lifetime is None or not device.carbon:
            return None
        made = sum(float(one[0]) for one in device.carbon.values())
        return made * self.found.room.devices * self.span / float(lifetime[0])

    @property
    def trust(self) -> Trust | None:
        """That of the least trusted prediction behind its jobs; None where all are given facts."""
        known = [one.trust for one in self.cluster.kinds if one.trust is not None]
        return min(known, key=lambda one: LEVELS.index(one.level), default=None)

    @property
    def trusts(self) -> Mapping[str, Trust]:
        """The same of queues, and of links that jobs share, which no measurement stands behind."""
        return {"queues": QUEUES, **({} if self.shared is None else {"links": LINKS})}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to traces and taken for what."""
        return self.cluster.notes

    @functools.cached_property
    def classes(self) -> tuple[Mapping[str, Any], ...]:
        """Figures of the jobs of each class."""
        found, jobs, energy = [], self.found.jobs, self.account.energy_of
        for number, name in enumerate(self.cluster.classes):
            mine = self.cluster.kind == number
            if mine.any():
                found.append({
                    "name": name, "jobs": int(mine.sum()), "device_hours": float(jobs.devices[mine] @ self._ran[mine]) / 3600.0,
                    "waiting_s": spread(self.found.waiting[mine]), "slowdown": spread(self.slowdowns[mine]),
                    "preemptions": int(self.found.preemptions[mine].sum()), "energy_j": float(energy[mine].sum()),
                    **({} if self.shared is None else {"shared_links": spread(self.shared[mine])}),
                })  # fmt: skip
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; times in s, energy in J, power in W, carbon in kg, money in USD."""
        devices, trust = self.found.room.devices, self.trust
        return {
            "name": self.cluster.name, "system": self.cluster.system.name, "devices": devices, "scheduler": self.cluster.policy.kind,
            "placement": self.cluster.spec.placement,
            "jobs": len(self.found.jobs), "span_s": self.span, "utilisation": self.utilisation,
            "device_hours": {kind: time / 3600.0 for kind, time in self.account.device_time.items()},
            "waiting_s": self.waiting, "slowdown": spread(self.slowdowns), "waiting_jobs": self.queue,
            **({} if self.boxless is None else {"waiting_for_slice_s": self.boxless}),
            **({} if self.shared is None else {"shared_links": spread(self.shared)}),
            "preemptions": int(self.found.preemptions.sum()), "energy_j": self.energy, "idle_power_w": self.found.room.idle_power * devices,
            "power_w": {"mean": self.power, "peak": self.account.peak_power}, "cost_usd": self.cost, "carbon_kg": self.carbon,
            "embodied_carbon_kg": self.embodied_carbon, "classes": list(self.classes), "notes": list(self.notes),
            "trust": None if trust is None else trust.to_dict(), "trust_of": {name: one.to_dict() for name, one in self.trusts.items()},
        }  # fmt: skip

    def table(self) -> Mapping[str, Any]:
        """A row for each job: when it came, what it is, when it ran, what it took."""
        found, jobs, by_hour = self.found, self.found.jobs, self.cluster.carbon_by_hour
        carbon = {} if by_hour is None else {"carbon_kg": self.account.carbon_of(by_hour)}
        return {
            "arrival_s": jobs.arrival, "class": np.array(self.cluster.classes)[self.cluster.kind], "devices": jobs.devices,
            "time_s": jobs.time, "start_s": found.start, "end_s": found.end, "waiting_s": found.waiting, "preemptions": found.preemptions,
            "energy_j": self.account.energy_of, **carbon, **self._slices, **({} if self.shared is None else {"shared_links": self.shared}),
        }  # fmt: skip

    @property
    def _slices(self) -> Mapping[str, Any]:
        """Columns of the slice of each job: its sizes, its cubes (their numbers from 0), its corner in them, and waiting for it alone."""
        found = self.found
        if found.room.ground is None:
            return {}
        texts = {
            "slice": [text_of(one) for one in found.jobs.slices], "slice_cubes": [" ".join(map(str, one.cubes)) for one in found.places],
            "slice_corner": [" ".join(map(str, one.corner)) for one in found.places],
        }  # fmt: skip
        return {**{name: np.array(column) for name, column in texts.items()}, "waiting_for_slice_s": found.boxless}

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw its largest jobs over time, and devices, queue and power below them; into a file as well where a path is given."""
        return public("draw_cluster")(self).saved(path)  # type: ignore[no-any-return]

    def to_perfetto(self, path: str | Path) -> Path:
        """Write it as a trace, ``.json`` or ``.json.gz``, which ui.perfetto.dev opens."""
        return public("write_cluster")(self, path)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        mean = lasting(float(self.waiting["mean"] or 0.0))
        many = f"{len(self.found.jobs):,} jobs on {self.found.room.devices:,} devices"
        return f"ScheduledJobs({self.cluster.name!r}: {many}, {100 * self.utilisation:.1f} % in use, {mean} of waiting on average)"


def schedule(source: str | Path | Mapping[str, Any], settings: Overrides = ()) -> ScheduledJobs:
    """Schedule the jobs of a cluster, event by event.

    Parameters
    ----------
    source : the path of a cluster's file, or its data as a mapping.
    settings : what overrides its fields: one ``scheduler=backfill``, several of them, or values by path.

    Returns
    -------
    When each job ran, waiting, utilisation, energy, money and carbon.

    Raises
    ------
    SpecError
        With the line of what is wrong in the file, or in a trace of jobs.

    Examples
    --------
    >>> import crossflow
    >>> long, short = {"devices": 8, "time": "10 h"}, {"devices": 4, "time": "1 h", "arrival": "1 h"}
    >>> found = crossflow.schedule({"system": {"template": "dgx-h100", "nodes": 1}, "jobs": [long, short]})
    >>> found.found.start.tolist(), round(found.utilisation, 3)
    ([0.0, 36000.0], 0.955)
    """
    if isinstance(source, Mapping):
        document, base, name = Document(file="cluster", data=dict(source)), None, "cluster"
    elif isinstance(source, str | Path):
        document, base, name = files.read_yaml(source), Path(source).parent, Path(source).stem
    else:
        raise CrossflowError(f"schedule: expected the path of a cluster's file, or its data; got {shown(source)}")
    return files.with_settings(lambda some: _scheduled(document, base, name, some), as_settings(settings))


def _scheduled(document: Document, base: Path | None, name: str, settings: Any) -> ScheduledJobs:
    data = document.data
    if isinstance(data, Mapping) and isinstance(data.get("jobs"), str | Mapping):  # so that settings and lines reach below
        data = {**data, "jobs": [data["jobs"]]}
    if isinstance(data, Mapping) and data.get("kind") == "system":
        named = f"name it in one: system: {{template: {document.file}}}; `crossflow init example campus` writes one to begin with"
        raise document.error(("kind",), f"this is a system, and a cluster has jobs; {named}")
    document = Document(file=document.file, data=data, lines=document.lines)
    document = overridden(document, settings)
    if isinstance(document.data, Mapping) and "workload" in document.data and "jobs" not in document.data:
        raise document.error(("workload",), "this is a scenario, and a cluster has jobs; name it in one: jobs: [{scenario: FILE.yaml}]")
    cluster = opened_cluster(document, base, name)
    return ScheduledJobs(cluster=cluster, found=scheduled(cluster.jobs, cluster.room, cluster.policy, cluster.slowdowns))
