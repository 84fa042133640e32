"""Points that are evaluated together, the devices that they have, and what comes of running them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.results import later
from crossflow.engine.runs.outcome import Outcome
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.template import SystemSpec

if TYPE_CHECKING:  # the chain of imports stays short
    from crossflow.answers.scenario import Scenario
    from crossflow.answers.steps.members import Members
else:
    Scenario = later("crossflow.answers.scenario", "Scenario")
    Members = later("crossflow.answers.steps.members", "Members")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Devices of one kind, and what they do in a step; arrays of shape (n,) or (1,)."""

    system: SystemSpec
    device: Architecture
    pool: str = ""  # name of the pool that they are; none where they are as those of the system itself
    devices: Array = field(default_factory=lambda: np.zeros(1))  # how many there are. [1]
    energy: Array = field(default_factory=lambda: np.zeros(1))  # of their operations and traffic in a step. [J]
    # what each sends in its node, and out of it, of what is counted apart from `energy`. [B]
    sent: tuple[Array, Array] = field(default_factory=lambda: (np.zeros(1), np.zeros(1)))

    def prefix(self, mark: str) -> str:
        """What names of figures of its devices begin with."""
        return f"{self.pool}{mark}" if self.pool else ""


@dataclass(frozen=True, kw_only=True)
class PointBatch:
    """Points that are evaluated together: they share all but technology, quantities, and what their members have.

    Attributes
    ----------
    scenario : that the points are of.
    system, device : with the quantities that vary, one value a point.
    members : what each point computes, and how it is divided.
    pools : the pools of the system, likewise.
    least, fitting : as of `crossflow.evaluate`.
    """

    scenario: Scenario
    system: SystemSpec
    device: Architecture
    members: Members
    pools: Mapping[str, Fleet] = field(default_factory=dict)
    least: bool = False
    fitting: bool = False

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.members.which)

    @property
    def own(self) -> bool:
        """Whether nothing differs from the scenario as it stands."""
        return self.members.own and self.device is self.scenario.architecture and self.system is self.scenario.system


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of running a batch, and what its score is related to."""

    outcome: Outcome
    devices: Array  # of every point, shape (n,). [1]
    beside: tuple[Fleet, ...] = ()  # further devices, which `devices` counts too, and whose energy the outcome does not have
    serving: Mapping[str, Array] = field(default_factory=dict)  # figures of a service by column
    answered: tuple[Array, Array] | None = None  # requests of a step of a service, and the tokens that are written for each. [1]
