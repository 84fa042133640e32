"""What a cluster took: devices, energy and carbon over time, as exact integrals of what its jobs hold."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.engine.cluster.record import ScheduledCluster

HOUR = 3600.0


def held_until(begin: Array, end: Array, weights: Array, times: Array) -> Array:
    """Integral over time, from the first begin to each of some times, of the weights of all that has begun and not ended."""
    moments = np.concatenate([begin, end])
    order = np.argsort(moments, kind="stable")
    moments, level = moments[order], np.cumsum(np.concatenate([weights, -weights])[order])
    if not len(moments):
        return np.zeros(len(times))
    reached = np.concatenate([np.zeros(1), np.cumsum(level[:-1] * np.diff(moments))])
    return np.asarray(np.interp(times, moments, reached))


def mean_held(begin: Array, end: Array, weights: Array, edges: Array) -> Array:
    """Mean of that in each interval between edges."""
    return np.asarray(np.diff(held_until(begin, end, weights, edges)) / np.maximum(np.diff(edges), 1e-12))


def intensity_until(by_hour: Array, times: Array) -> Array:
    """Integral of a carbon intensity from time 0 on, whose hours come again from the first after the last. [kg/J s]

    >>> intensity_until(np.array([1.0, 3.0]), np.array([1800.0, 3600.0, 3 * 3600.0])).tolist()
    [1800.0, 3600.0, 18000.0]
    """
    reached = np.concatenate([np.zeros(1), np.cumsum(by_hour) * HOUR])
    rounds, within = np.divmod(times, len(by_hour) * HOUR)
    return np.asarray(rounds * reached[-1] + np.interp(within, np.arange(len(by_hour) + 1) * HOUR, reached))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterAccount:
    """What jobs and devices at rest took from the first arrival to the last end.

    Attributes
    ----------
    found : what became of the jobs.
    """

    found: ScheduledCluster

    @functools.cached_property
    def begin(self) -> float:
        """The first arrival. [s]"""
        return float(self.found.jobs.arrival.min())

    @functools.cached_property
    def finish(self) -> float:
        """The last end. [s]"""
        return float(self.found.end.max())

    @property
    def span(self) -> float:
        """Time between them. [s]"""
        return max(self.finish - self.begin, 1e-12)

    @functools.cached_property
    def device_time(self) -> Mapping[str, float]:
        """Time of all devices by what they do. [s]

        That of devices that no job has is ``idle``; ``fragmented`` where the next job would take them if they were together.
        """
        devices = self.found.jobs.devices[self.found.stays.job]
        times = {kind: float(time @ devices) for kind, time in self.found.stays.times.items()}
        idle = self.found.room.devices * self.span - sum(times.values())
        if self.found.room.ground is None:
            return {**times, "idle": idle}
        return {**times, "fragmented": self.found.fragmented, "idle": idle - self.found.fragmented}

    @property
    def idle(self) -> float:
        """Time of all devices that no job has. [s]"""
        return self.device_time["idle"] + self.device_time.get("fragmented", 0.0)

    @property
    def utilisation(self) -> float:
        """Share of the time of all devices in which some job has them. [1]"""
        return 1.0 - self.idle / (self.found.room.devices * self.span)

    @functools.cached_property
    def energy_of(self) -> Array:
        """Energy of each job, shape (jobs,). [J]"""
        stays = self.found.stays
        return np.bincount(stays.job, stays.end - stays.begin, minlength=len(self.found.jobs)) * self.found.jobs.power

    @property
    def energy(self) -> float:
        """Energy of all devices, at rest too. [J]"""
        return float(self.energy_of.sum()) + self.found.room.idle_power * self.idle

    def carbon_of(self, by_hour: Array) -> Array:
        """Carbon of the energy of each job, shape (jobs,). [kg]"""
        stays = self.found.stays
        held = intensity_until(by_hour, stays.end) - intensity_until(by_hour, stays.begin)
        return np.bincount(stays.job, held, minlength=len(self.found.jobs)) * self.found.jobs.power

    def carbon(self, by_hour: Array) -> float:
        """Carbon of all of the energy. [kg]"""
        stays, room = self.found.stays, self.found.room
        first, last = intensity_until(by_hour, np.array([self.begin, self.finish]))
        busy = (intensity_until(by_hour, stays.end) - intensity_until(by_hour, stays.begin)) @ self.found.jobs.devices[stays.job]
        return float(self.carbon_of(by_hour).sum()) + room.idle_power * (room.devices * float(last - first) - float(busy))

    @functools.cached_property
    def peak_power(self) -> float:
        """Most that all devices draw at once. [W]"""
        stays, room = self.found.stays, self.found.room
        more = (self.found.jobs.power - room.idle_power * self.found.jobs.devices)[stays.job]
        moments = np.concatenate([stays.begin, stays.end])
        order = np.lexsort((np.concatenate([np.ones(len(more)), np.zeros(len(more))]), moments))  # ends before begins
        rises = np.cumsum(np.concatenate([more, -more])[order])
        return room.devices * room.idle_power + float(rises.max(initial=0.0))

    @functools.cached_property
    def waits(self) -> tuple[Array, Array]:
        """Begins and ends of all stretches in which a job waits: before its first stay, and between its stays. [s]"""
        stays = self.found.stays
        order = np.lexsort((stays.begin, stays.job))
        job, begin, end = stays.job[order], stays.begin[order], stays.end[order]
        first = np.concatenate([np.ones(1, dtype=bool), job[1:] != job[:-1]])
        since = np.where(first, self.found.jobs.arrival[job], np.concatenate([np.zeros(1), end[:-1]]))
        return since, begin

    def series(self, moments: int) -> Mapping[str, Array]:
        """What changes over time, as means of so many equal intervals: their middles ``time_s``, and by name what there was."""
        edges = self.begin + np.linspace(0.0, self.span, moments + 1)
        stays, jobs, room = self.found.stays, self.found.jobs, self.found.room
        devices = mean_held(stays.begin, stays.end, jobs.devices[stays.job].astype(float), edges)
        power = mean_held(stays.begin, stays.end, jobs.power[stays.job], edges)
        since, until = self.waits
        return {
            "time_s": 0.5 * (edges[1:] + edges[:-1]) - self.begin, "devices": devices,
            "waiting": mean_held(since, until, np.ones(len(since)), edges), "power_w": power + room.idle_power * (room.devices - devices),
        }  # fmt: skip
