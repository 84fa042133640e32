"""Encoders of their own for the images of a service's prompts: what they take, and the devices that they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from crossflow.answers.evaluation.replay_statistics import mean_inside
from crossflow.answers.evaluation.scoring import drawn_energy
from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.batch import Fleet
from crossflow.answers.steps.machines import machine, place_of_pool
from crossflow.base.arrays import Array
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import memory
from crossflow.engine.runs.transformer import transformer_step
from crossflow.engine.service.encoders import EncoderTimes, encoder_work
from crossflow.hardware.architecture.template import ENCODING
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plans import encoder_plan
from crossflow.program.groups import Group
from crossflow.workload.jobs import job_of
from crossflow.workload.spec import TransformerSpec

UNENCODED = "the model of images does not fit in an encoder; give serving.images.encode.strategy more tp, or devices with more memory"


@dataclass(frozen=True, kw_only=True, eq=False)
class EncoderPool:
    """Encoders, with the energy of one for requests with 0, 1, 2, ... images, at rest included [J], and its devices."""

    times: EncoderTimes
    energies: tuple[float, ...]
    fleet: Fleet
    problem: str = ""  # why there are none

    @property
    def all(self) -> Fleet:
        """Devices of all encoders."""
        return replace(self.fleet, devices=self.times.count * self.fleet.devices)

    @property
    def resting(self) -> float:
        """Power of one encoder while it waits. [W]"""
        return float(drawn_energy(self.fleet, np.ones(1))[0])

    def busy(self, requests: tuple[int, ...]) -> float:
        """Time in which all encoders work on requests, by how many images these have. [s]"""
        return float(np.dot(requests, self.times.times))

    def power(self, arrivals: Array, edges: Array) -> Array:
        """Power of all encoders in the mean of every interval between edges, with requests that arrive at such times. [W]"""
        begun, images = encoder_work(self.times, arrivals)
        drawn = np.full(len(edges) - 1, self.times.count * self.resting)
        for many in np.unique(images[images > 0]).tolist():
            mine, lasts = begun[images == many], self.times.times[many]
            drawn += (self.energies[many] / lasts - self.resting) * mean_inside(mine, mine + lasts, edges)
        return drawn

    def energy(self, requests: tuple[int, ...], span: float) -> float:
        """Energy of all encoders in a time in which they have such requests. [J]"""
        idle = max(span * self.times.count - self.busy(requests), 0.0)
        return float(np.dot(requests, self.energies)) + idle * self.resting


@np.errstate(invalid="ignore")  # of steps that never end
def encoder_pool(scenario: Scenario) -> EncoderPool | None:
    """Encoders of a scenario's service; None where the devices that read prompts encode their images."""
    workload = scenario.workload
    assert isinstance(workload, TransformerSpec)  # a service is one
    plan, images = encoder_plan(workload), workload.serving.images
    if plan is None or images is None or images.encode is None:
        return None
    runs_on, fleet = place_of_pool(scenario, ENCODING, machine(scenario, scenario.architecture))
    several = np.arange(1.0, math.ceil(images.count) + 1.0)
    layout = replace(Layout.of([plan] * len(several), np.ones(len(several)), runs_on.node), micro_batch=several)
    job = job_of(images.described)
    held = memory(job, layout, runs_on)
    step = transformer_step(job, layout, runs_on, held)
    one = replace(fleet, devices=np.full(1, float(plan.devices)))
    drawn = drawn_energy(replace(one, energy=step.energy, sent=step.sent), step.total)
    sent = _sent(runs_on, layout, several * images.each * workload.hidden * scenario.job().element)
    times = EncoderTimes(
        count=images.encode.workers, images=images.count, times=(0.0, *step.total.tolist()), sent=(0.0, *sent.tolist())
    )  # fmt: skip
    fits = bool(held.fits.all())
    return EncoderPool(times=times, energies=(0.0, *drawn.tolist()), fleet=one, problem="" if fits else UNENCODED)


def _sent(runs_on: Machine, layout: Layout, sizes: Array) -> Array:
    """Time in which the tokens of images leave an encoder, each rank with its share, shape (n,). [s]"""
    return np.asarray(runs_on.wires.time("send_recv", sizes / layout.tp, Group.across(layout.devices)))
