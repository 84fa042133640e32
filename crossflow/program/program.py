"""The program of a step: operations in order for each class of ranks, whatever model they come from.

Ranks that do the same work at the same time are one class; a pipeline has a class for each stage. Operations of a class run on
in-order streams: kernels on `compute`, collectives and transfers on `network` unless they name another. An operation starts when
its stream is free and all operations that it waits for have ended. Kernels on several streams of a class share its device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossflow.arrays import Array, Index, Mask
from crossflow.formats import DTYPE_BYTES, kept_bytes
from crossflow.program.collectives import Collective, ring_volume, sent_bytes
from crossflow.program.groups import Group

Number = float | Array  # one value, or one for each design point, shape (n,)
ONCE = 1.0
QUERIES, KEYS = 128.0, 256.0  # queries, and keys of a single query, that one block works on (FlashAttention-2; split keys in decoding)
BACKWARD = 2.5  # products of the backward pass over those of the forward pass, five to two
COMPUTE, NETWORK, HOST = "compute", "network", "host"  # streams; the first two are those of operations that name none


LookupPart = Literal["forward", "sort", "update"]
TableOptimizer = Literal["sgd", "adagrad", "rowwise_adagrad"]


@dataclass(frozen=True, kw_only=True)
class Product:
    """Matrix product C[m, n] = A[m, k] B[k, n], `batch` equal ones in one launch. [1]

    `adds` means that C is read, added to and written; a `wide` product keeps to 16 bits where the program computes in a narrower type.
    `result` is what an element of C moves, read and written; by default an element, of at least 16 bits, twice where it is added to. [B]
    Where B lies in memory in another type than that of the product, it is `stored` in that type, and the kernel widens what it reads.
    """

    m: Number
    n: Number
    k: Number
    batch: Number = 1.0
    adds: bool = False
    wide: bool = False
    result: Number | None = None
    stored: str = ""

    @property
    def flops(self) -> Number:
        """Multiplications and additions: 2 m n k. [flop]"""
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Work that passes over data once: pointwise operations, reductions, softmax, lookups, an optimizer.

    Attributes
    ----------
    moved : bytes read and written, all passes over memory counted. [B]
    flops : operations. [flop]
    launches : kernels that it takes. [1]
    """

    moved: Number
    flops: Number = 0.0
    launches: Number = 1.0


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Fused attention forward, or backward, over `samples` samples. [1]

    Attributes
    ----------
    heads, kv_heads : heads of queries, and of keys and values. [1]
    length, seen : queries of a head and sample, and keys that each sees at most. [1]
    width : elements of a head. [1]
    causal : whether a query sees only the keys before it, half of them in the mean.
    backward : whether gradients are computed, with five products instead of two.
    work : operations, bytes of main memory and blocks of one kernel, where these do not follow from the sizes: of latents, windows
        and rings. [flop], [B], [1]
    stored : type in which keys and values lie in memory, where it is not that of the queries.
    window : which window limits the keys that a query sees, as profiles name it.
    """

    samples: Number
    heads: Number
    length: Number
    seen: Number
    width: Number
    kv_heads: Number | None = None
    causal: bool = True
    backward: bool = False
    work: tuple[Number, Number, Number] | None = None
    stored: str = ""
    window: str = ""


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Rows of embedding tables that a device looks up for `samples` samples and adds up, or a part of what their gradients take. [1]

    Attributes
    ----------
    tables, rows, width : tables that the device holds, rows of one, and elements of a row.
    pooling : rows of one table that a sample looks up on the device.
    part : the lookups themselves; of the backward pass the sort of the looked-up rows, and their update.
    distinct : distinct rows over looked-up rows: where a row is wanted again it may be found in cache.
    load : lookups of the fullest device over the mean.
    replicas : ranks that hold the same tables and apply each other's updates.
    element, output, gradient, index : sizes of an element of a table, of a pooled one, of its gradient, and of an index. [B]
    optimizer : ``sgd``, ``adagrad`` (a state each parameter) or ``rowwise_adagrad`` (one a row), in fp32.
    """

    samples: Number
    tables: Number
    rows: Number
    width: Number
    pooling: Number
    part: LookupPart = "forward"
    distinct: Number = 1.0
    load: Number = 1.0
    replicas: Number = 1.0
    element: float = 4.0
    output: float = 4.0
    gradient: float = 4.0
    index: float = 8.0
    optimizer: TableOptimizer = "sgd"


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Chunked scan of a state-space layer forward, or backward, over `samples` samples (see `crossflow.program.scans`). [1]

    Attributes
    ----------
    heads, groups : heads, and groups of them that share B and C; of the delta rule heads of values, and of keys and queries. [1]
    length : tokens of a sample. [1]
    width, state : elements of a head, and of B and C; a head's state has width x state elements. [1]
    chunk : tokens of a chunk. [1]
    delta : whether the state follows the gated delta rule rather than state-space duality.
    backward : whether gradients are computed.
    """

    samples: Number
    heads: Number
    length: Number
    width: Number
    state: Number
    groups: Number = 1.0
    chunk: Number = 256.0
    delta: bool = False
    backward: bool = False


Kernel = Product | Pass | Attention | Lookup | Scan


@dataclass(frozen=True, kw_only=True)
class Message:
    """A collective or a transfer.

    Attributes
    ----------
    collective : what it is.
    size : bytes of the whole buffer per rank: of the full result for all_gather, of the full input otherwise. [B]
    axes : mesh axes whose devices take part.
    group : the ranks that take part, where they are no axes of the mesh.
    """

    collective: Collective
    size: Number
    axes: tuple[str, ...] = ()
    group: Group | None = None


# How the run of a block may hide a message: beside the weight gradients of its layer; in pieces, one a rank, beside each of some
# products that take or make what it carries; each of its equal transfers beside one of as many equal kernels.
Hiding = Literal["", "weights", "pieces", "kernels"]


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of a class of ranks.

    Attributes
    ----------
    name, layer : what it is, for people and for sums; never parsed.
    phase : forward, backward, update, or anything else; products of a program with a backward pass lose what training steps lose.
    rank : class of ranks that runs it.
    stream : in-order stream that it occupies.
    kernels : rows of `Program.kernels` that it runs one after the other; none for a message.
    message : row of `Program.messages` that it sends, None for kernels.
    calls : calls that the host makes for it, where it is host work: it runs no kernels and sends nothing. [1]
    after : operations whose end it waits for, by their place in the program.
    count : equal ones of it, one after the other. [1]
    hiding, beside : how a message of a block may be hidden, and the rows of `Program.kernels` beside which it runs.
    """

    name: str
    rank: int = 0
    layer: str = ""
    phase: str = ""
    stream: str = COMPUTE
    kernels: tuple[int, ...] = ()
    message: int | None = None
    calls: int = 0
    after: tuple[int, ...] = ()
    count: Number = ONCE
    hiding: Hiding = ""
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelTable:
    """Kernels of one kind and type.

    Attributes
    ----------
    kind, wide : of all of them.
    rows, places : the kernels, and their places among those of a program.
    sizes : as `SIZES` names them, shape (sizes, kernels, n).
    element : size of an element as the program keeps it. [B]
    """

    kind: type[Kernel]
    wide: bool
    rows: tuple[Kernel, ...]
    places: Index
    sizes: Array
    element: float

    @functools.cached_property
    def result(self) -> Array:
        """What an element of the result of every product moves, shape (kernels, n) or (kernels, 1). [B]"""
        rows = [row for row in self.rows if isinstance(row, Product)]
        return filled([[self.element * (1.0 + row.adds) if row.result is None else row.result] for row in rows])[:, 0]

    @functools.cached_property
    def stored(self) -> Array:
        """Size of an element of B where it lies in memory in another type than A, NaN elsewhere, shape (kernels, 1). [B]"""
        rows = [row for row in self.rows if isinstance(row, Product)]
        return np.array([[DTYPE_BYTES[row.stored] if row.stored else np.nan] for row in rows])

    @functools.cached_property
    def attention(self) -> tuple[Array, Array, Mask]:
        """Operations, bytes and blocks of fused attention, shape (3, kernels, n); heads of all samples, queries, keys and elements of
        each, shape (4, kernels, n); which are backward, shape (kernels, 1). [flop], [B], [1]
        """
        rows = [row for row in self.rows if isinstance(row, Attention)]
        samples, heads, _, length, seen, width = self.sizes
        shapes = np.stack([samples * heads, length, seen, width])
        return attention_sizes(self.sizes, self.element, rows), shapes, np.array([[row.backward] for row in rows])


SIZES: Mapping[type[Kernel], tuple[str, ...]] = {
    Product: ("m", "n", "k", "batch"),
    Pass: ("moved", "flops", "launches"),
    Attention: ("samples", "heads", "kv_heads", "length", "seen", "width"),
    Scan: ("samples", "heads", "groups", "length", "width", "state", "chunk"),
    Lookup: ("samples", "tables", "rows", "width", "pooling", "distinct", "load", "replicas"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class MessageTable:
    """Messages among groups of ranks, over n design points.

    Attributes
    ----------
    sizes : shape (messages, n). [B]
    kinds : messages that share a collective and a group.
    """

    sizes: Array
    kinds: tuple[tuple[Collective, Group, list[int]], ...]

    @classmethod
    def of(cls, messages: Sequence[Message], n: int) -> MessageTable:
        """Table of messages, each of which has a group."""
        kinds: dict[tuple[Collective, int], tuple[Collective, Group, list[int]]] = {}
        for i, one in enumerate(messages):
            if one.group is not None:
                kinds.setdefault((one.collective, id(one.group)), (one.collective, one.group, []))[2].append(i)
        return cls(sizes=repeated([one.size for one in messages], n), kinds=tuple(kinds.values()))

    @functools.cached_property
    def moved(self) -> Array:
        """Bytes that a rank sends in every message inside its node and out of it, shape (2, messages, n). [B]"""
        found = np.zeros((2, *self.sizes.shape))
        for collective, group, rows in self.kinds:
            found[:, rows] = sent_bytes(collective, self.sizes[rows], group.size, group.per_node)
        return found


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """Memory of a device of one class of ranks.

    Attributes
    ----------
    kind : what it holds: weights, gradients, optimizer, activations, buffers ...
    size : [B]
    rank : class of ranks that holds it.
    made, last : operations between whose start and end it lives; from the beginning, and to the end, where None.
    """

    kind: str
    size: float
    rank: int = 0
    made: int | None = None
    last: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """What a step computes, sends and holds, one representative device a class of ranks.

    Attributes
    ----------
    name : for reports.
    dtype : data type of its products.
    axes : mesh of the devices: names and sizes of its axes.
    stages : the axis along which ranks run different programs, "" where all run the same.
    kernels, messages : distinct kernels and messages, each priced once.
    ops : all operations in an order that respects both dependencies and the order of each stream.
    tensors : what devices hold.
    samples, tokens : samples of a step over all devices, and tokens of a sample, 0 where the word has no meaning. [1]
    parameters : parameters of the whole model. [1]
    training : whether its products lose what training steps lose; None for what has an operation of a backward phase.
    """

    name: str
    dtype: str
    axes: tuple[tuple[str, int], ...]
    kernels: tuple[Kernel, ...]
    messages: tuple[Message, ...]
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    stages: str = ""
    samples: int = 1
    tokens: int = 0
    parameters: float = 0.0
    training: bool | None = None

    @property
    def element(self) -> float:
        """Size of one element. [B]"""
        return DTYPE_BYTES[self.dtype]

    @functools.cached_property
    def classes(self) -> int:
        """Classes of ranks. [1]"""
        return dict(self.axes).get(self.stages, 1)

    @functools.cached_property
    def devices(self) -> int:
        """Devices in use. [1]"""
        return math.prod(size for _, size in self.axes)

    @functools.cached_property
    def trains(self) -> bool:
        """Whether it is a training step: where it does not say, whether any operation belongs to a backward pass."""
        return any(op.phase == "backward" for op in self.ops) if self.training is None else self.training

    @functools.cached_property
    def kernel_tables(self) -> tuple[KernelTable, ...]:
        """Kernels that are priced together."""
        places, kept = dict[tuple[type[Kernel], bool], list[int]](), kept_bytes(self.dtype)
        narrow = kept > self.element  # in a wider type all products are alike
        for i, kernel in enumerate(self.kernels):
            places.setdefault((type(kernel), narrow and isinstance(kernel, Product) and kernel.wide), []).append(i)
        found = []
        for (kind, wide), mine in places.items():
            rows = tuple(self.kernels[i] for i in mine)
            sizes = [[_size(row, name) for row in rows] for name in SIZES[kind]]
            found.append(KernelTable(kind=kind, wide=wide, rows=rows, places=np.array(mine), sizes=filled(sizes), element=kept))
        return tuple(found)

    @functools.cached_property
    def occurrences(self) -> tuple[Array, Array]:
        """How often every operation runs each kernel, shape (ops, kernels), and sends each message, shape (ops, messages). [1]"""
        kernels, messages = np.zeros((len(self.ops), len(self.kernels))), np.zeros((len(self.ops), len(self.messages)))
        for i, op in enumerate(self.ops):
            np.add.at(kernels[i], list(op.kernels), 1.0)
            if op.message is not None:
                messages[i, op.message] = 1.0
        return kernels, messages

    @functools.cached_property
    def _members(self) -> dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Array, tuple[tuple[int, Number], ...]]]:
        return {}

    @functools.cached_property
    def places(self) -> Index:
        """Place of every kernel among those of all tables, one table after the other."""
        return np.concatenate([table.places for table in self.kernel_tables]).argsort()

    def members(self, layers: tuple[str, ...], phases: tuple[str, ...]) -> tuple[Array, tuple[tuple[int, Number], ...]]:
        """Which kernels, in the order of `places`, are of which layer and phase, shape (layers x phases, kernels), and those that occur
        other than once, with how often. [1]
        """
        if (layers, phases) not in self._members:
            rows = {(layer, phase): i * len(phases) + j for i, layer in enumerate(layers) for j, phase in enumerate(phases)}
            found, counts = np.zeros((len(rows), len(self.kernels))), []
            for op in self.ops:
                mine = self.places[list(op.kernels)]
                found[rows[op.layer, op.phase], mine] = 1.0
                counts += [(kernel, op.count) for kernel in mine.tolist() if op.count is not ONCE]
            self._members[layers, phases] = found, tuple(counts)
        return self._members[layers, phases]

    @functools.cached_property
    def kernel_streams(self) -> int:
        """Most streams of one class that run kernels, which then share the device. [1]"""
        streams = {(op.rank, op.stream) for op in self.ops if op.kernels}
        return max((sum(rank == mine for rank, _ in streams) for mine, _ in streams), default=0)

    @functools.cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Rows of prices that every operation takes, but for its calls: kernels first, then messages."""
        kernels = len(self.kernels)
        return tuple(op.kernels if op.message is None else (kernels + op.message,) for op in self.ops)

    @functools.cached_property
    def memory(self) -> tuple[Mapping[str, float], ...]:
        """Bytes of a device of every class of ranks by kind, when it holds most: tensors live between the operations that need them. [B]

        Operations of a class count in the order of the program.
        """
        return tuple(self._fullest(rank) for rank in range(self.classes))

    def _fullest(self, rank: int) -> Mapping[str, float]:
        mine = [tensor for tensor in self.tensors if tensor.rank == rank]
        begin, end = -1, len(self.ops)
        spans = [(begin if one.made is None else one.made, end if one.last is None else one.last, one) for one in mine]
        moments = sorted({begin, *(first for first, _, _ in spans)})

        def held(moment: int) -> dict[str, float]:
            kinds = dict.fromkeys((one.kind for one in mine), 0.0)
            for first, last, one in spans:
                if first <= moment <= last:
                    kinds[one.kind] += one.size
            return kinds

        return max((held(moment) for moment in moments), key=lambda kinds: sum(kinds.values()))

    @functools.cached_property
    def volumes(self) -> Mapping[str, float]:
        """Bytes that one device sends along each axis in a step, for placement; along each further axis only a shard moves. [B]"""
        sizes = dict(self.axes)
        volumes = {axis: 0.0 for message in self.messages for axis in message.axes}
        for op in self.ops:
            if op.message is None:
                continue
            message = self.messages[op.message]
            size = float(message.size)
            for axis in message.axes:
                volumes[axis] += float(ring_volume(message.collective, sizes[axis])) * size
                size /= sizes[axis]
        return volumes


def _size(kernel: Kernel, name: str) -> Number:
    """One size of a kernel; attention has as many heads of keys and values as of queries where it does not say."""
    value: Number | None = getattr(kernel, name)
    if value is None:
        assert isinstance(kernel, Attention)  # of which alone a size may be left open
        return kernel.heads
    return value


def filled(table: Sequence[Sequence[Number]]) -> Array:
    """A table of values that broadcast to (n,), shape (rows, values of a row, n)."""
    n = max(np.size(value) for row in table for value in row)
    found = np.empty((len(table), len(table[0]), n))
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            found[i, j] = value
    return found


def repeated(values: Sequence[Number], n: int) -> Array:
    """Values that broadcast to (n,) as rows of a table, shape (values, n)."""
    return np.array([np.broadcast_to(value, (n,)) for value in values], dtype=float).reshape(len(values), n)


def attention_sizes(shapes: Array, element: float, rows: Sequence[Attention]) -> Array:
    """Operations, bytes of main memory and blocks of fused attention, shape (3, kernels, n). [flop], [B], [1]

    Two products forward and five backward. A causal mask leaves the keys before each query: of `length` queries that see as many keys or
    more at most, and of those that see fewer, a window. A single query is divided along the keys. Kernels that state their work keep it.

    Parameters
    ----------
    shapes : samples, heads, heads of keys and values, queries, keys, elements of a head, shape (6, kernels, n). [1]
    """
    stated = [i for i, row in enumerate(rows) if row.work is not None]
    work = filled([row.work for row in rows if row.work is not None]).swapaxes(0, 1) if stated else None
    if work is not None and len(stated) == len(rows):
        return work
    samples, heads, kv_heads, length, seen, width = shapes
    causal, backward = (np.array([[getattr(row, flag)] for row in rows]) for flag in ("causal", "backward"))
    held = np.array([[DTYPE_BYTES[row.stored] if row.stored else element] for row in rows])
    share = np.where(causal & (length > 1), 1.0 - 0.5 * np.minimum(length, seen) / np.maximum(length, seen), 1.0)
    flops = 4.0 * samples * heads * length * seen * width * share * np.where(backward, BACKWARD, 1.0)
    moved = 2.0 * samples * width * (heads * length * element + kv_heads * seen * held) * np.where(backward, 2.0, 1.0)
    blocks = np.where(length > 1, samples * heads * np.ceil(length / QUERIES), samples * kv_heads * np.ceil(seen / KEYS))
    found = np.stack([flops, moved, blocks])
    if work is None:
        return found
    n = max(found.shape[-1], work.shape[-1])
    mixed = np.broadcast_to(found, (*found.shape[:-1], n)).copy()
    mixed[:, stated] = work
    return mixed
