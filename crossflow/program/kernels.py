"""Kernels with their sizes at every design point: products, passes, fused attention, scans, look-ups, experts, measured ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.formats import DTYPE_BYTES, STORED_BYTES, STRUCTURED
from crossflow.base.limits import Flag
from crossflow.program.embedding.reuse import BINS
from crossflow.program.forms import Bytes, NonNegative, Positive, Seconds

Number = float | Array  # one value, or one for each design point, shape (n,)
ONCE = 1.0
QUERIES, KEYS = 128.0, 256.0  # queries, and keys of a single query, that one block works on (FlashAttention-2; split keys in decoding)
BACKWARD = 2.5  # products of the backward pass over those of the forward pass, five to two
LookupPart = Literal["forward", "sort", "update", "gradient"]
TableOptimizer = Literal["sgd", "adagrad", "rowwise_adagrad"]


@dataclass(frozen=True, kw_only=True)
class Product:
    """A matrix product C[m, n] = A[m, k] B[k, n]."""

    m: Annotated[Number, Positive, "rows of A and C"]
    n: Annotated[Number, Positive, "columns of B and C"]
    k: Annotated[Number, Positive, "columns of A, rows of B"]
    batch: Annotated[Number, Positive, "equal products in one launch"] = 1.0
    adds: Annotated[bool, Flag, "whether C is read, added to and written"] = False
    wide: Annotated[bool, Flag, "whether it keeps to 16 bits where the program computes in a narrower type"] = False
    result: Annotated[
        Number | None,
        Bytes | None,
        "what an element of C moves, read and written; an element of at least 16 bits, twice with `adds`, where absent",
    ] = None
    stored: Annotated[
        str, str, "data type of B in memory, where it is not that of the product; the kernel widens it. `bf16 2:4` has 2:4 sparsity"
    ] = ""

    @property
    def flops(self) -> Number:
        """Multiplications and additions: 2 m n k, those with weights that 2:4 sparsity leaves out among them. [flop]"""
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Work that passes over data once: pointwise operations, reductions, softmax, lookups, an optimizer."""

    moved: Annotated[Number, Bytes, "bytes read and written, all passes over memory counted"]
    flops: Annotated[Number, NonNegative, "operations"] = 0.0
    launches: Annotated[Number, NonNegative, "kernels that it takes"] = 1.0
    what: Annotated[str, str, "operation of a framework that it is alone, as profiles name it"] = ""
    narrows: Annotated[bool, Flag, "whether it scales an operand of a product to the narrower type of the program"] = False


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Fused attention, forward or backward."""

    samples: Annotated[Number, Positive, "samples of the batch"]
    heads: Annotated[Number, Positive, "heads of queries"]
    length: Annotated[Number, Positive, "queries of a head and sample"]
    seen: Annotated[Number, Positive, "keys that a query sees at most"]
    width: Annotated[Number, Positive, "elements of a head"]
    kv_heads: Annotated[Number | None, Positive | None, "heads of keys and values; as many as of queries where absent"] = None
    causal: Annotated[bool, Flag, "whether a query sees only the keys before it"] = True  # half of them in the mean
    backward: Annotated[bool, Flag, "whether it computes gradients, with five products instead of two"] = False
    work: Annotated[
        tuple[Number, Number, Number] | None,
        tuple[NonNegative, Bytes, Positive] | None,
        "operations, bytes of main memory and blocks of the kernel, where these do not follow from the sizes: of latents, "
        "of a step of a ring, of a cache",
    ] = None
    stored: Annotated[str, str, "data type of keys and values in memory, where it is not that of the queries"] = ""
    # As in `crossflow.workload.transformer.AttentionGeometry`.
    window: Annotated[Number, NonNegative, "tokens before a query, with itself, that it sees under a causal mask; 0 for no window"] = 0.0
    chunked: Annotated[bool, Flag, "whether the window is a fixed block of the sample rather than the last tokens"] = False
    chosen: Annotated[bool, Flag, "whether each query has keys of its own, which an indexer chose"] = False


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Lookups of embedding tables, or a part of their backward pass."""

    samples: Annotated[Number, Positive, "samples whose rows are looked up"]
    tables: Annotated[Number, Positive, "tables on the device"]
    rows: Annotated[Number, Positive, "rows of one table"]
    width: Annotated[Number, Positive, "elements of a row"]
    pooling: Annotated[Number, Positive, "rows of one table that a sample looks up and adds up"]
    part: Annotated[
        LookupPart, LookupPart, "the lookups; of the backward pass the sort of the rows, and their update, or what adds up a dense gradient"
    ] = "forward"
    # Where a row is wanted again it may be found in cache.
    distinct: Annotated[Number, Annotated[Positive, Field(le=1.0)], "distinct rows over looked-up rows"] = 1.0
    # With these, what each cache holds follows from them and its size (`crossflow.program.embedding.caches`), and `distinct` says nothing.
    reuse: Annotated[
        tuple[Number, ...] | None,
        Annotated[tuple[NonNegative, ...], Field(min_length=BINS, max_length=BINS)] | None,
        f"reuse factors of indices: share of the lookups that go to rows which are hit once, twice, 3 to 4, 5 to 8 ... times, {BINS} bins",
    ] = None
    counted: Annotated[
        Number | None, Positive | None, "samples of the batch in which the reuse factors were counted; those of the kernel where absent"
    ] = None
    batched: Annotated[bool, Flag, "whether the launches of the kernel before it serve these tables, too"] = False
    load: Annotated[Number, Annotated[Positive, Field(ge=1.0)], "lookups of the fullest device over the mean"] = 1.0
    replicas: Annotated[Number, Positive, "ranks that hold the same tables and apply each other's updates"] = 1.0
    element: Annotated[float, Annotated[Bytes, Field(gt=0.0)], "an element of a table"] = 4.0
    output: Annotated[float, Bytes, "a pooled element"] = 4.0
    gradient: Annotated[float, Bytes, "the gradient of a pooled element"] = 4.0
    index: Annotated[float, Bytes, "an index"] = 8.0
    # adagrad keeps a state for each parameter, rowwise_adagrad one a row.
    optimizer: Annotated[TableOptimizer, TableOptimizer, "optimizer of the tables, with states in fp32"] = "sgd"


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Chunked scan of a state-space layer, forward or backward (see `crossflow.program.scans`)."""

    samples: Annotated[Number, Positive, "samples of the batch"]
    heads: Annotated[Number, Positive, "heads; of the delta rule those of values"]
    length: Annotated[Number, Positive, "tokens of a sample"]
    width: Annotated[Number, Positive, "elements of a head"]
    state: Annotated[Number, Positive, "elements of B and C; of the delta rule those of a key"]
    groups: Annotated[Number, Positive, "groups of heads that share B and C; of the delta rule heads of keys and queries"] = 1.0
    chunk: Annotated[Number, Positive, "tokens of a chunk"] = 256.0
    delta: Annotated[bool, Flag, "whether the state follows the gated delta rule rather than state-space duality"] = False
    backward: Annotated[bool, Flag, "whether it computes gradients"] = False


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A kernel that takes the time that was measured, on every device."""

    name: Annotated[str, str, "which kernel it is, as profilers name it"]
    time: Annotated[Number, Seconds, "how long it takes"]
    flops: Annotated[Number, NonNegative, "operations, as far as they are known: they say what binds it and what energy it takes"] = 0.0
    moved: Annotated[Number, Bytes, "bytes of main memory, as far as they are known"] = 0.0


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A fused layer of experts, forward: choice, permutation, products up and down, activation, weighted sum."""

    tokens: Annotated[Number, Positive, "tokens of all ranks that share the experts out"]
    hidden: Annotated[Number, Positive, "elements of a token"]
    inner: Annotated[Number, Positive, "elements between the products, of the rank's share of one expert"]
    active: Annotated[Number, Positive, "experts that a token goes to"]
    experts: Annotated[Number, Positive, "experts of the layer"]
    ranks: Annotated[Number, Positive, "ranks that share the experts out, of which the one with the most rows counts"] = 1.0
    branches: Annotated[Number, Positive, "products before the activation: 2 with a gate"] = 2.0
    load: Annotated[Number, Annotated[Positive, Field(ge=1.0)], "rows of the fullest rank over the mean, with `skew` 0"] = 1.0
    skew: Annotated[Number, NonNegative, "exponent of the power law that deals rows out to experts; 0 where these are used alike"] = 0.0
    variation: Annotated[
        Number, NonNegative, "standard deviation of the rows of experts over their mean, lognormal; 0 where these are used alike"
    ] = 0.0
    reached: Annotated[
        Number | None, Positive | None, "experts of a rank that any token goes to, with `skew` 0; as many as there are rows where absent"
    ] = None
    slots: Annotated[
        Number | None,
        NonNegative | None,
        "places for experts on all ranks that a balancer fills, more than experts where some have copies; experts lie in their order where"
        " absent or 0",
    ] = None
    given: Annotated[
        Number | None,
        Positive | None,
        "rows that come to a rank on average: those of its experts after an exchange; those of all tokens, of experts elsewhere too, where"
        " absent",
    ] = None


Kernel = Product | Pass | Attention | Lookup | Scan | Experts | Timed


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelTable:
    """Kernels of one kind and type."""

    kind: type[Kernel]  # of all of them
    wide: bool  # of all of them
    rows: tuple[Kernel, ...]  # the kernels
    places: Index  # their places among those of a program
    sizes: Array  # as `SIZES` names them, shape (sizes, kernels, n)
    element: float  # size of an element as the program keeps it. [B]
    exchanged: bool = False  # whether they are layers of experts whose rows alone came to the rank
    structured: bool = False  # whether they are products with weights of 2:4 sparsity

    @functools.cached_property
    def result(self) -> Array:
        """What an element of the result of every product moves, shape (kernels, n) or (kernels, 1). [B]"""
        rows = [row for row in self.rows if isinstance(row, Product)]
        return filled([[self.element * (1.0 + row.adds) if row.result is None else row.result] for row in rows])[:, 0]

    @functools.cached_property
    def stored(self) -> Array:
        """Size of an element of B where it lies in memory in another type than A, NaN elsewhere, shape (kernels, 1). [B]"""
        rows = [row for row in self.rows if isinstance(row, Product)]
        return np.array([[STORED_BYTES[row.stored] if row.stored else np.nan] for row in rows])

    @functools.cached_property
    def attention(self) -> tuple[Array, Array, Mask]:
        """Operations, bytes and blocks of fused attention, shape (3, kernels, n); heads of all samples, queries, keys and elements of
        each, shape (4, kernels, n); which are backward, shape (kernels, 1). [flop], [B], [1]
        """
        rows = [row for row in self.rows if isinstance(row, Attention)]
        samples, heads, _, length, seen, width, _ = self.sizes
        shapes = np.stack([samples * heads, length, seen, width])
        return attention_sizes(self.sizes, self.element, rows), shapes, np.array([[row.backward] for row in rows])


SIZES: Mapping[type[Kernel], tuple[str, ...]] = {
    Product: ("m", "n", "k", "batch"),
    Pass: ("moved", "flops", "launches"),
    Attention: ("samples", "heads", "kv_heads", "length", "seen", "width", "window"),
    Scan: ("samples", "heads", "groups", "length", "width", "state", "chunk"),
    Lookup: ("samples", "tables", "rows", "width", "pooling", "distinct", "load", "replicas", "counted"),
    Experts: (
        "tokens",
        "hidden",
        "inner",
        "branches",
        "active",
        "experts",
        "ranks",
        "load",
        "skew",
        "variation",
        "reached",
        "slots",
        "given",
    ),
    Timed: ("time", "flops", "moved"),
}


def kernel_tables(kernels: Sequence[Kernel], element: float, *, narrow: bool) -> tuple[KernelTable, ...]:
    """Kernels that are priced together; those of `narrow` programs by whether they keep to 16 bits. An element has `element` bytes. [B]"""
    places: dict[tuple[type[Kernel], bool, bool, bool], list[int]] = {}
    for i, kernel in enumerate(kernels):
        exchanged = isinstance(kernel, Experts) and kernel.given is not None  # other libraries than where all tokens are gathered
        wide, sparse = (narrow and kernel.wide, kernel.stored.endswith(STRUCTURED)) if isinstance(kernel, Product) else (False, False)
        places.setdefault((type(kernel), wide, exchanged, sparse), []).append(i)
    found = []
    for (kind, wide, exchanged, sparse), mine in places.items():
        rows = tuple(kernels[i] for i in mine)
        sizes = filled([[size_of(row, name) for row in rows] for name in SIZES[kind]])
        found.append(
            KernelTable(
                kind=kind, wide=wide, rows=rows, places=np.array(mine), sizes=sizes, element=element, exchanged=exchanged,
                structured=sparse,
            )
        )  # fmt: skip
    return tuple(found)


def size_of(kernel: Kernel, name: str) -> Number:
    """One size of a kernel; where it says none, attention has as many heads of keys and values as of queries, lookups their batch.

    Of experts any number may be reached, they lie in their order, and the rows of all tokens come.
    """
    value: Number | None = getattr(kernel, name)
    if value is None and isinstance(kernel, Experts):
        return {"slots": 0.0, "given": kernel.tokens * kernel.active}.get(name, np.inf)
    if value is None:
        assert isinstance(kernel, Attention | Lookup)  # of which a size may be left open, too
        return kernel.heads if isinstance(kernel, Attention) else kernel.samples
    return value


def filled(table: Sequence[Sequence[Number]]) -> Array:
    """A table of values that broadcast to (n,), shape (rows, values of a row, n)."""
    n = max(value.size if isinstance(value, np.ndarray) else 1 for row in table for value in row)
    found = np.empty((len(table), len(table[0]), n))
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            found[i, j] = value
    return found


def repeated(values: Sequence[Number], n: int) -> Array:
    """Values that broadcast to (n,) as rows of a table, shape (values, n)."""
    found = np.empty((len(values), n))
    for row, value in zip(found, values, strict=True):
        row[:] = value
    return found


def masked_pairs(tokens: Number, window: Number, chunked: Mask | bool) -> Array:
    """Pairs of query and key that a causal mask leaves among the first tokens of a sample. [1]

    A token sees at most `window` tokens, itself among them, or where `chunked` those of its fixed block of as many; 0 is no window.
    """
    width = np.where(np.asarray(window) > 0, np.minimum(window, tokens), tokens)
    blocks, rest = np.divmod(tokens, np.maximum(width, 1.0))
    return np.where(chunked, (blocks * width**2 + rest**2) / 2.0, width * (tokens - width / 2.0))


def seen_pairs(length: Array, seen: Array, window: Array, *, causal: Mask, chunked: Mask) -> Array:
    """Pairs of query and key of one head and sample: `length` queries of `seen` keys, or fewer under a causal mask and a window. [1]"""
    tokens, reach = np.maximum(length, seen), np.where(window > 0, window, seen)
    left = masked_pairs(tokens, reach, chunked) - masked_pairs(tokens - length, reach, chunked)
    return np.where(causal & (length > 1), left, length * seen)


def attention_sizes(shapes: Array, element: float, rows: Sequence[Attention]) -> Array:
    """Operations, bytes of main memory and blocks of fused attention, shape (3, kernels, n). [flop], [B], [1]

    Two products forward and five backward. A causal mask leaves the keys before each query: of `length` queries that see as many keys or
    more at most, and of those that see fewer, a window. A single query is divided along the keys. Kernels that state their work keep it.

    Parameters
    ----------
    shapes : samples, heads, heads of keys and values, queries, keys, elements of a head, window, shape (7, kernels, n). [1]
    """
    stated = [i for i, row in enumerate(rows) if row.work is not None]
    work = filled([row.work for row in rows if row.work is not None]).swapaxes(0, 1) if stated else None
    if work is not None and len(stated) == len(rows):
        return work
    samples, heads, kv_heads, length, seen, width, window = shapes
    causal, backward, chunked = (np.array([[getattr(row, flag)] for row in rows]) for flag in ("causal", "backward", "chunked"))
    held = np.array([[DTYPE_BYTES[row.stored] if row.stored else element] for row in rows])
    pairs = seen_pairs(length, seen, window, causal=causal, chunked=chunked)
    flops = 4.0 * samples * heads * pairs * width * np.where(backward, BACKWARD, 1.0)
    moved = 2.0 * samples * width * (heads * length * element + kv_heads * seen * held) * np.where(backward, 2.0, 1.0)
    blocks = np.where(length > 1, samples * heads * np.ceil(length / QUERIES), samples * kv_heads * np.ceil(seen / KEYS))
    found = np.stack([flops, moved, blocks])
    if work is None:
        return found
    n = max(found.shape[-1], work.shape[-1])
    mixed = np.broadcast_to(found, (*found.shape[:-1], n)).copy()
    mixed[:, stated] = work
    return mixed
