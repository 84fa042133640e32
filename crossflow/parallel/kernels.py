"""Kernels and collectives of the parts of a model on one device, for one microbatch, at every design point, and as tables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from crossflow.arrays import Array, Mask
from crossflow.formats import DTYPE_BYTES
from crossflow.program import Scan
from crossflow.program.collectives import Collective

# forward; what the forward pass computes that only the next layer needs; the input's gradient, with all that goes with it;
# the weight's gradient alone, beside which a collective may run; again: what selective recomputation computes once more.
Phase = Literal["forward", "end", "input", "weight", "again"]
PHASES: tuple[Phase, ...] = ("forward", "end", "input", "weight", "again")


@dataclass(frozen=True, kw_only=True)
class Message:
    """A collective of a part: `size` [B] of shape (n,), among a group, in a phase.

    It may run beside the weight gradient where it `hides`, and in pieces beside the products of the indices `along`, which take or
    make what it carries. There are `number` equal ones, one after the other; of a ring each may run beside one kernel of the index
    `beside` in `Kernels.scores`.
    """

    part: str
    phase: Phase
    collective: Collective
    size: Array
    group: str
    hides: bool = False
    along: tuple[int, ...] = ()
    number: Array | float = 1.0
    beside: int | None = None


class Product(NamedTuple):
    """C[m, n] = A[m, k] B[k, n], `batch` of them in one launch; each size broadcasts to (n,). [1]

    With `sums` the result is added to one in fp32. A `wide` one keeps to bf16 where a model computes in a narrower type. Where B lies in
    memory in another type than that of the product, it is `stored`, and the kernel widens what it reads.
    """

    unit: str
    phase: Phase
    m: Array
    n: Array
    k: Array
    batch: Array
    sums: bool = False
    wide: bool = False
    stored: str = ""


class Scores(NamedTuple):
    """Fused attention in `number` equal kernels (see `Kernels`).

    Each has `heads` heads of all samples, `length` queries and `keys` keys a head, of `width` elements. Keys and values lie in memory
    in the type `stored`, where that is another than that of the queries; `mask` says which window limits the keys that a query sees,
    as profiles name it.
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
    number: Array | float = 1.0
    stored: str = ""
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
    scans : chunked scans of state-space layers: unit, phase, kernel.
    """

    units: tuple[str, ...]
    n: int
    products: tuple[Product, ...]
    passes: tuple[tuple[str, Phase, Array, Array, Array | float], ...]
    scores: tuple[Scores, ...]
    messages: tuple[Message, ...] = ()
    scans: tuple[tuple[str, Phase, Scan], ...] = ()

    @functools.cached_property
    def product_sizes(self) -> Array:
        """m, n, k and batch of every product, shape (4, products, n). [1]"""
        return filled([product[2:6] for product in self.products], self.n).swapaxes(0, 1)

    @functools.cached_property
    def product_types(self) -> tuple[Mask, Mask, Array]:
        """Which products keep to 16 bits, which add to sums in fp32, shape (products,), and the size of an element of B where it lies in
        memory in another type than A, NaN elsewhere, shape (products, 1). [B]
        """
        keeps, sums = (np.array([getattr(product, flag) for product in self.products], dtype=bool) for flag in ("wide", "sums"))
        return keeps, sums, np.array([[DTYPE_BYTES[product.stored] if product.stored else np.nan] for product in self.products])

    @functools.cached_property
    def pass_sizes(self) -> Array:
        """Bytes, operations and launches of every pass, shape (3, passes, n). [B], [flop], [1]"""
        return filled([one[2:] for one in self.passes], self.n).swapaxes(0, 1)

    @functools.cached_property
    def score_sizes(self) -> Array:
        """Operations, bytes and blocks of one kernel of every fused attention, shape (3, scores, n). [flop], [B], [1]"""
        return filled([one[2:5] for one in self.scores], self.n).swapaxes(0, 1)

    @functools.cached_property
    def score_shapes(self) -> Array:
        """Heads of all samples, queries and keys of each, and elements of a head, of every fused attention, shape (4, scores, n). [1]"""
        return filled([one[5:9] for one in self.scores], self.n).swapaxes(0, 1)

    @functools.cached_property
    def score_counts(self) -> Array:
        """Kernels of every fused attention, shape (scores, n). [1]"""
        return repeated([one.number for one in self.scores], self.n)

    @functools.cached_property
    def message_sizes(self) -> Array:
        """Size of every message, shape (messages, n). [B]"""
        return repeated([message.size for message in self.messages], self.n)

    @functools.cached_property
    def message_counts(self) -> Array:
        """Equal ones of every message, shape (messages, n). [1]"""
        return repeated([message.number for message in self.messages], self.n)

    @functools.cached_property
    def kinds(self) -> dict[tuple[Collective, str], list[int]]:
        """Messages by collective and group."""
        found: dict[tuple[Collective, str], list[int]] = {}
        for i, message in enumerate(self.messages):
            found.setdefault((message.collective, message.group), []).append(i)
        return found

    @functools.cached_property
    def places(self) -> list[tuple[str, Phase]]:
        """Unit and phase of every kernel, in the order in which they are priced."""
        return [(entry[0], entry[1]) for entries in (self.products, self.passes, self.scores, self.scans) for entry in entries]

    @functools.cached_property
    def members(self) -> Array:
        """Which kernels (products, passes, scores, scans) are of which unit and phase, shape (units x phases, kernels). [1]"""
        rows = {(unit, phase): i * len(PHASES) + j for i, unit in enumerate(self.units) for j, phase in enumerate(PHASES)}
        places = [rows[place] for place in self.places]
        found = np.zeros((len(rows), len(places)))
        found[places, np.arange(len(places))] = 1.0
        return found


def repeated(values: Sequence[Array | float], n: int) -> Array:
    """Values that broadcast to (n,) as rows of a table, shape (values, n)."""
    return np.array([np.broadcast_to(value, (n,)) for value in values], dtype=float).reshape(len(values), n)


def filled(rows: Sequence[Sequence[Array | float]], n: int) -> Array:
    """A table of values that broadcast to (n,), shape (rows, values of a row, n)."""
    table = np.empty((len(rows), len(rows[0]) if rows else 0, n))
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            table[i, j] = value
    return table
