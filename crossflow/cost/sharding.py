"""What pieces of tables take in a step: their look-ups by the one price of kernels, and their share of what is exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, wide
from crossflow.cost.lookups import lookup_costs
from crossflow.cost.network import Wires
from crossflow.hardware.architecture.model import Architecture
from crossflow.parallel.sharding.pieces import Piece
from crossflow.program.groups import Group
from crossflow.program.kernels import Lookup, LookupPart, kernel_tables
from crossflow.workload.dlrm import DlrmJob, Tables

STATES = {"sgd": 0.0, "rowwise_adagrad": 0.0, "adagrad": 4.0}  # of the optimizer for each element [B]
ROW_STATES = {"sgd": 0.0, "rowwise_adagrad": 4.0, "adagrad": 0.0}  # and for each row [B]


@dataclass(frozen=True, kw_only=True, eq=False)
class PieceCosts:
    """Times of pieces in a step on the rank that holds them, shape (pieces, n). [s]"""

    forward: Array  # look-ups
    backward: Array  # sort and update
    exchange: Array  # of pooled rows and of their gradients

    @property
    def phases(self) -> Array:
        """All of them, shape (phases, pieces, n): ranks meet between one and the next. [s]"""
        return np.stack([self.forward, self.exchange, self.backward])


@dataclass(frozen=True, kw_only=True, eq=False)
class Pricing:
    """What look-ups of tables are priced on."""

    job: DlrmJob
    tables: tuple[Tables, ...]  # of the model, each by itself
    samples: Array  # of a batch, shape (n,). [1]
    group: Group  # all ranks
    architecture: Architecture
    wires: Wires

    def __call__(self, pieces: Sequence[Piece]) -> PieceCosts:
        """Costs of pieces; kernels of one rank serve all its pieces with one launch, which is none of theirs."""
        job, parts = self.job, [piece.of(self.tables) for piece in pieces]
        names: tuple[LookupPart, ...] = ("forward", "sort", "update") if job.trains("embedding") else ("forward",)
        kernels = [replace(job.lookup(part, self.samples, batched=True), part=name) for name in names for part in parts]
        (table,) = kernel_tables(kernels, job.element, narrow=False)
        found = lookup_costs([row for row in table.rows if isinstance(row, Lookup)], table.sizes, self.architecture).time
        forward, *backward = wide(found, len(self.samples)).reshape(len(names), len(parts), -1)
        widths = np.array([[float(part.width)] for part in parts])
        return PieceCosts(forward=forward, backward=sum(backward, np.zeros_like(forward)), exchange=self._exchange(widths))

    def _exchange(self, widths: Array) -> Array:
        """Share of every piece in the all-to-alls of a rank with the mean load, shape (pieces, n). [s]"""
        mean, ways = self.samples * widths.sum() / self.group.size, [self.job.forward]
        ways += [self.job.backward] if self.job.trains("embedding") else []
        whole = sum((self.wires.time("all_to_all", mean * size, self.group) for size in ways), np.zeros_like(mean))
        return np.asarray(widths / (widths.sum() / self.group.size) * whole)


def piece_bytes(job: DlrmJob, tables: Sequence[Tables], pieces: Sequence[Piece]) -> Array:
    """Bytes of every piece with the states of its optimizer, shape (pieces,). [B]"""
    trained = job.trains("embedding")
    element = job.table + STATES[job.table_optimizer] * trained
    parts = (piece.of(tables) for piece in pieces)
    return np.array([part.rows * (part.width * element + ROW_STATES[job.table_optimizer] * trained) for part in parts])
