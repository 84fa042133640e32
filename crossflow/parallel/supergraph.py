"""The super-graph: what one device of each pipeline stage computes and sends, as tasks in program order.

Devices of one stage that differ only in their shard do the same work at the same time, so a stage stands for all of
them (Sec. 6.5 of the paper); `crossflow.parallel.materialise` builds the full graph with every replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from crossflow.parallel.strategy import Strategy
from crossflow.workload import Operation

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations that a device runs one after the other as one task."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, kw_only=True)
class Message:
    """A collective or a transfer.

    Attributes
    ----------
    collective : what it is.
    size : bytes of the whole buffer per rank: of the full result for all_gather, of the full input otherwise. [B]
    axes : mesh axes whose devices take part.
    """

    collective: Collective
    size: float
    axes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One entry in the program of a stage.

    Attributes
    ----------
    name : name of the graph node and of the part of it.
    stage : pipeline stage.
    kind : ``compute`` runs `index` of the works, ``network`` sends `index` of the messages.
    after : tasks whose end it waits for; the order of tasks on one stage and kind is the order of their program.
    """

    name: str
    stage: int
    kind: Literal["compute", "network"]
    index: int
    after: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class SuperGraph:
    """A model under a strategy, one representative device a pipeline stage.

    Attributes
    ----------
    works, messages : distinct works and messages, each costed once.
    tasks : all tasks in an order that respects both dependencies and the order of each stream.
    memory : bytes per device by kind, one mapping a stage. [B]
    volumes : bytes that a device moves along each axis in one step, for placement. [B]
    """

    strategy: Strategy
    stages: int
    works: tuple[Work, ...]
    messages: tuple[Message, ...]
    tasks: tuple[Task, ...]
    memory: tuple[Mapping[str, float], ...]
    volumes: Mapping[str, float]
    dtype: str
    element: float
    layers_of_stage: tuple[tuple[str, ...], ...]
