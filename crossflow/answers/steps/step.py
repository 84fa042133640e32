"""What every step can be asked, whatever it computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from crossflow.answers.steps.batch import PointBatch, Ran
from crossflow.cost.network import LaidGroups

if TYPE_CHECKING:
    from crossflow.engine.runs.uneven import Uneven
    from crossflow.engine.timeline.record import Timeline
    from crossflow.hardware.mapping.congestion import Slowdown

FoundEvent: TypeAlias = tuple[tuple[str, str, str, int, str], float, float]  # identity, time [s], count
Slowed: TypeAlias = "Mapping[tuple[str, LaidGroups], Slowdown]"  # what every collective between nodes loses


class StepEvents(NamedTuple):
    """Events of a step, which may name one several times."""

    found: Iterable[FoundEvent]
    step: float  # device-time of the step. [s]
    node: int  # devices of a node. [1]


@dataclass(frozen=True, kw_only=True)
class PlacedStage:
    """A stage of a pipeline on devices of one of several kinds."""

    place: str  # of the devices, such as `system` or `system.pools.older`
    devices: str  # their name
    layers: tuple[int, ...]  # of every chunk of the stage. [1]
    capacity: float  # memory of each device. [B]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScenarioStep(ABC):
    """A step of points that are evaluated together: what they compute, on the devices that they have.

    All but `run` is asked of scenarios as they stand, at one point.
    """

    batch: PointBatch

    @abstractmethod
    def run(self) -> Ran:
        """What comes of the step at every point: its program is made, what devices hold of it, what its parts take, and it runs."""

    @abstractmethod
    def timeline(self, title: str, uneven: Uneven) -> Timeline:
        """When everything starts and ends on every device, some of which may be slower; parameters as of `crossflow.simulate`."""

    @abstractmethod
    def events(self) -> StepEvents:
        """Kernels, collectives and transfers with their times, and how often they occur on all devices."""

    @abstractmethod
    def slowed(self) -> Slowed:
        """What collectives lose to congestion between nodes."""

    @property
    def apart(self) -> float | None:
        """Time of the step if each of its streams of messages had links of its own; None where that makes no difference. [s]"""
        return None

    @property
    def memory_by_stage(self) -> tuple[Mapping[str, float], ...]:
        """Bytes of a device of every stage by kind, each stage at its own fullest moment; none where all devices are alike. [B]"""
        return ()

    @property
    def placed_stages(self) -> tuple[PlacedStage, ...]:
        """Stages of a pipeline with their devices and layers; none where all devices are alike."""
        return ()

    @property
    def sharding(self) -> tuple[str, list[dict[str, float]]] | None:
        """Who gave embedding tables to ranks, and what every rank holds and takes; None where nobody did."""
        return None
