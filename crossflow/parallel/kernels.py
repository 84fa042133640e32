"""Kernels and collectives of the parts of a model on one device, for one microbatch, at every design point, and as tables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from crossflow.arrays import Array
from crossflow.parallel.supergraph import Collective

# forward; what the forward pass computes that only the next layer needs; the input's gradient, with all that goes with it;
# the weight's gradient alone, beside which a collective may run; again: what selective recomputation computes once more.
Phase = Literal["forward", "end", "input", "weight", "again"]
PHASES: tuple[Phase, ...] = ("forward", "end", "input", "weight", "again")


@dataclass(frozen=True, kw_only=True)
class Message:
    """A collective of a part: `size` [B] of shape (n,), among a group, in a phase.

    It may run beside the weight gradient where it `hides`, and in pieces beside the products of the indices `along`, which take or
    make what it carries.
    """

    part: str
    phase: Phase
    collective: Collective
    size: Array
    group: str
    hides: bool = False
    along: tuple[int, ...] = ()


class Product(NamedTuple):
    """C[m, n] = A[m, k] B[k, n], `batch` of them in one launch; each size broadcasts to (n,). [1]

    With `sums` the result is added to one in fp32. A `wide` one keeps to bf16 where a model computes in a narrower type.
    """

    unit: str
    phase: Phase
    m: Array
    n: Array
    k: Array
    batch: Array
    sums: bool = False
    wide: bool = False


class Scores(NamedTuple):
    """Fused attention of `heads` heads of all samples, `length` queries and `keys` keys each, of `width` elements; see `Kernels`.

    `mask` says which window limits the keys that a query sees, as profiles name it.
    """

    unit: str
    phase: Phase
    flops: Array
    moved: Array
    blocks: Array
    heads: Array
    length: Array
    keys: Array
    width: Array
    mask: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernels:
    """Kernels and messages of all units of a model; each value broadcasts to (n,).

    Attributes
    ----------
    units, n : names of the units, and number of design points.
    products, scores : matrix products, and fused attention.
    passes : what passes over memory once: unit, phase, bytes, operations, launches.
    messages : collectives of the units.
    """

    units: tuple[str, ...]
    n: int
    products: tuple[Product, ...]
    passes: tuple[tuple[str, Phase, Array, Array, float], ...]
    scores: tuple[Scores, ...]
    messages: tuple[Message, ...] = ()

    @functools.cached_property
    def product_sizes(self) -> Array:
        """m, n, k and batch of every product, shape (4, products, n). [1]"""
        return filled([product[2:6] for product in self.products], self.n).swapaxes(0, 1)

    @functools.cached_property
    def pass_sizes(self) -> Array:
        """Bytes, operations and launches of every pass, shape (3, passes, n). [B], [flop], [1]"""
        return filled([one[2:] for one in self.passes], self.n).swapaxes(0, 1)

    @functools.cached_property
    def score_sizes(self) -> Array:
        """Operations, bytes and blocks of every fused attention, shape (3, scores, n). [flop], [B], [1]"""
        return filled([one[2:5] for one in self.scores], self.n).swapaxes(0, 1)

    @functools.cached_property
    def message_sizes(self) -> Array:
        """Size of every message, shape (messages, n). [B]"""
        return filled([(message.size,) for message in self.messages], self.n)[:, 0]

    @functools.cached_property
    def kinds(self) -> dict[tuple[Collective, str], list[int]]:
        """Messages by collective and group."""
        found: dict[tuple[Collective, str], list[int]] = {}
        for i, message in enumerate(self.messages):
            found.setdefault((message.collective, message.group), []).append(i)
        return found

    @functools.cached_property
    def members(self) -> Array:
        """Which kernels (products, passes, scores) are of which unit and phase, shape (units x phases, kernels). [1]"""
        rows = {(unit, phase): i * len(PHASES) + j for i, unit in enumerate(self.units) for j, phase in enumerate(PHASES)}
        places = [rows[entry[0], entry[1]] for entries in (self.products, self.passes, self.scores) for entry in entries]
        found = np.zeros((len(rows), len(places)))
        found[places, np.arange(len(places))] = 1.0
        return found


def filled(rows: Sequence[Sequence[Array | float]], n: int) -> Array:
    """A table of values that broadcast to (n,), shape (rows, values of a row, n)."""
    table = np.empty((len(rows), len(rows[0]) if rows else 0, n))
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            table[i, j] = value
    return table
