"""What a workload's kind decides about its strategies: how they are read, which divide it, which are near each other.

Graphs of kernels have meshes (`graphs`, also of programs, which say by themselves how they lie), recommendation models roles by layer type
(`hierarchy`), transformers plans (`plans`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossflow.parallel.strategy.notation import Written
    from crossflow.parallel.strategy.reading import AnyStrategy

Nodes = tuple[int, int]  # devices of a node, and nodes
ANY = "any"  # the first strategy that divides a workload, where a study tries others anyway
GIVEN = "a program says by itself how it is divided; leave strategy out, or write another program"


@dataclass(frozen=True, kw_only=True)
class StrategyLimits:
    """What of a system and its software decides whether a layered model can be divided in a way."""

    nodes: Nodes
    kinds: tuple[int, ...] = ()  # devices of each kind where there are several (`SystemSpec.kinds`)
    balanced: bool = False  # whether the software makes pipeline stages by weight, not by number of layers
    elements: bool = False  # whether sequence parallelism divides the elements of each token, not the tokens
    hosted: bool = True  # whether the system knows its host's memory, which offloading needs
    tiered: bool = True  # whether its devices have a second memory, which `far` needs


@dataclass(frozen=True, kw_only=True)
class StrategyFilter:
    """Which of the legal strategies are listed."""

    fused: bool = False  # attention keeps no scores, so that computing them again changes nothing
    placed: bool = False  # plans are listed in every order of their ranks on the devices
    kinds: tuple[int, ...] = ()  # of devices of several kinds, those whose stages each lie on one kind


@dataclass(frozen=True)
class StrategyKind(ABC):
    """Strategies of a workload."""

    workload: Any  # of the kind that it is for

    @abstractmethod
    def read(self, written: Written, nodes: Nodes | None) -> AnyStrategy | None:
        """What a strategy means for the workload; None where that takes nodes that are not known."""

    @property
    @abstractmethod
    def alone(self) -> AnyStrategy:
        """The strategy on one device."""

    @abstractmethod
    def legal(self, nodes: Nodes, wanted: StrategyFilter) -> Iterator[AnyStrategy]:
        """Every strategy that divides the workload over all devices of so many nodes; StrategyError where it has its own."""

    def text(self, strategy: AnyStrategy) -> str:
        """A strategy as text that reads back as itself."""
        return str(strategy)

    def over_all(self, devices: int) -> str:
        """Data parallelism over so many devices as a user writes it."""
        return f"d{devices}"

    def undivided(self, devices: int) -> str:
        """What to say where no strategy divides the workload over so many devices."""
        return f"no strategy divides this {self.workload.model} over {devices:,} devices"


class LayeredStrategies(StrategyKind):
    """Strategies of a layered model, which are checked against it one by one."""

    @abstractmethod
    def problem(self, strategy: Any, limits: StrategyLimits, model: Any) -> str | None:
        """Why a strategy cannot divide the model, in a sentence; None where it can. `model` is the workload's, None if not at hand."""

    @abstractmethod
    def near(self, strategy: Any, limits: StrategyLimits, wanted: StrategyFilter) -> Mapping[str, str]:
        """Strategies that are worth comparing with one, as text, each with what it changes."""
