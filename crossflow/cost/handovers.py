"""What the stages of a pipeline hand over to each other, and what that takes over each boundary between two stages."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, share_of
from crossflow.cost.machine import Machine
from crossflow.cost.network import counted
from crossflow.cost.shared_links import USES, LinkUse
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.shapes import Shape
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import NATURAL, pipeline_order

if TYPE_CHECKING:  # what its arguments are; the chain of imports stays short
    from crossflow.cost.passes import Steps


@dataclass(frozen=True, kw_only=True, eq=False)
class Boundaries:
    """Boundaries between two stages that the passes of a pipeline cross."""

    first: Array  # earlier stage of every boundary, shape (boundaries, 1). [1]
    last: Array  # later stage, shape (boundaries, 1). [1]
    # onwards, inwards: boundary over which each row hands over its result, and over which it receives what it needs, forward and backward,
    # shape (2, rows); the number of boundaries where there is none
    onwards: Index
    inwards: Index
    senders: Index  # row that hands over to each row, forward and backward, itself where there is none, shape (2, rows)
    often: Array  # how often a microbatch crosses every boundary from each row, shape (rows, boundaries). [1]


def boundaries(schedule: str, stages: int, chunks: int, microbatches: int, *, training: bool) -> Boundaries:
    """Boundaries that a schedule's passes cross; without `training` nothing is handed back."""
    natural = schedule in NATURAL
    chains = (tuple(range(stages * chunks)),) if natural else pipeline_order(schedule, stages, chunks, microbatches).chains
    return _boundaries(stages, chains, training)


@functools.lru_cache(maxsize=256)
def _boundaries(stages: int, chains: tuple[tuple[int, ...], ...], training: bool) -> Boundaries:
    """Boundaries along chains of rows; row r lies on stage r modulo the number of stages."""
    links = {link: sorted(row % stages for row in link) for chain in chains for link in itertools.pairwise(chain)}
    pairs = sorted({(first, last) for first, last in links.values() if first < last})
    onwards = np.full((2, sum(map(len, chains))), len(pairs))
    senders = np.tile(np.arange(onwards.shape[1]), (2, 1))
    for (one, later), (first, last) in links.items():
        if first < last:
            senders[0, later], senders[1, one] = one, later
            onwards[0, one] = onwards[1, later] = pairs.index((first, last))
    inwards = onwards[::-1].copy()
    if not training:
        onwards[1] = len(pairs)
    often = (onwards[:, :, None] == np.arange(len(pairs))).sum(axis=0).astype(float)
    first_stage, last_stage = np.array(pairs, dtype=float).reshape(-1, 2).T[:, :, None]
    return Boundaries(first=first_stage, last=last_stage, onwards=onwards, inwards=inwards, senders=senders, often=often)


@dataclass(frozen=True, kw_only=True, eq=False)
class HandedRows:
    """What rows of pipelines hand over."""

    onwards: Array  # time that each row takes to hand over its result, forward and backward, shape (2, rows, n). [s]
    use: LinkUse  # how these transfers use the links, shape (USES, 2, rows, n). [s]
    parts: Array  # of the time of both the way itself, and that to put its parts together, shape (2, rows, n). [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class Handed:
    """What the stages of pipelines of one shape hand over."""

    boundaries: Boundaries  # which stages hand over to which
    crosses: Mask  # whether a transfer over each boundary leaves the node, shape (boundaries, n)
    sent: Array  # time of a transfer over each boundary, shape (boundaries, n). [s]
    gathered: Array  # time to put its parts together where receivers do not keep them divided, shape (boundaries, n). [s]
    use: LinkUse  # how a transfer over each boundary uses the links, shape (USES, boundaries, n). [s]

    @functools.cached_property
    def _times(self) -> Array:
        """Time to hand over at each boundary and, in the last row, where there is none, shape (boundaries + 1, n). [s]"""
        return np.concatenate([self.sent + self.gathered, np.zeros((1, self.sent.shape[-1]))])

    @property
    def inwards(self) -> Array:
        """Time that what each row needs takes to be handed over to it, forward and backward, shape (2, rows, n). [s]"""
        return np.asarray(self._times[self.boundaries.inwards])

    def rows(self, rows: Index | slice = slice(None)) -> HandedRows:
        """What some of the rows hand over."""
        onwards, none = self.boundaries.onwards[:, rows], np.zeros((1, self.sent.shape[-1]))
        use = np.concatenate([self.use, np.zeros((USES, *none.shape))], axis=1)
        parts = (np.concatenate([part, none])[onwards].sum(axis=0) for part in (self.sent, self.gathered))
        return HandedRows(onwards=self._times[onwards], use=use[:, onwards], parts=np.stack([*parts]))

    def late(self, held: Array, stack: SoftwareStack) -> Array:
        """Time that what each row needs travels while no stage is held up, as its sender is for so long, shape (2, rows, n). [s]"""
        if not stack.overlap.pipeline:
            return np.zeros_like(held)
        senders = np.stack([way[mine] for way, mine in zip(held, self.boundaries.senders, strict=True)])
        return np.where(self.inwards > 0, np.maximum(self.inwards - senders, 0.0), 0.0)

    @property
    def whole(self) -> Array:
        """Transfers of one microbatch in all stages inside nodes and between nodes [1], and the time of all of them [s], shape (3, n)."""
        often = self.boundaries.often.sum(axis=0)
        outside = often @ self.crosses
        return np.stack([often.sum() - outside, outside, often @ self._times[:-1]])


def handed_of(layout: Layout, machine: Machine, steps: Steps, shape: Shape, *, training: bool) -> Handed:
    """What the stages of pipelines of one shape hand over, from the steps of all points."""
    at, times = shape.at, steps.between
    found = boundaries(shape.schedule, shape.stages, shape.chunks, shape.microbatches, training=training)
    crosses = layout.crosses(found.first, found.last, at)
    inside, outside = times.transfer[:, at]
    sent = np.where(crosses, outside, inside)
    use = share_of(np.where(crosses, steps.transfer_use[:, 1][:, None, at], steps.transfer_use[:, 0][:, None, at]), sent)
    if not counted(machine.network):  # the routes between stages that are no neighbours are others
        for i in np.flatnonzero(found.last - found.first > 1):
            pair = layout.jump(int(found.first[i, 0]), int(found.last[i, 0]), crosses[i], at)
            sent[i] = machine.wires.time("send_recv", steps.tables.between.transfer, pair)[at]
    return Handed(boundaries=found, crosses=crosses, sent=sent, gathered=times.whole[at] + np.zeros_like(sent), use=use * sent)
