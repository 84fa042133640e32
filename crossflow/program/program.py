"""The program of a step: operations in order for each class of ranks, whatever model they come from.

Ranks that do the same work at the same time are one class; a pipeline has a class for each stage. Operations of a class run on
in-order streams: kernels on `compute`, collectives and transfers on `network` unless they name another. An operation starts when
its stream is free and all operations that it waits for have ended. Kernels on several streams of a class share its device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.arrays import Array
from crossflow.formats import DTYPE_BYTES
from crossflow.program.collectives import Collective, ring_volume

Number = float | Array  # one value, or one for each design point, shape (n,)
COMPUTE, NETWORK, HOST = "compute", "network", "host"  # streams; the first two are those of operations that name none


@dataclass(frozen=True, kw_only=True)
class Product:
    """Matrix product C[m, n] = A[m, k] B[k, n], `batch` equal ones in one launch. [1]

    `adds` means that C is read, added to and written; a `wide` product keeps to 16 bits where the program computes in a narrower type.
    `result` is what an element of C moves, read and written; by default an element, of at least 16 bits, twice where it is added to. [B]
    """

    m: Number
    n: Number
    k: Number
    batch: Number = 1.0
    adds: bool = False
    wide: bool = False
    result: Number | None = None

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
    """

    samples: Number
    heads: Number
    length: Number
    seen: Number
    width: Number
    kv_heads: Number | None = None
    causal: bool = True
    backward: bool = False


Kernel = Product | Pass | Attention


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
    size: Number
    axes: tuple[str, ...]


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
    size: Number
    rank: int = 0
    made: int | None = None
    last: int | None = None


def fullest(held: Sequence[Mapping[str, Number]]) -> Mapping[str, Number]:
    """What is held by kind where most is held in all, at every point. [B]"""
    if len(held) == 1:
        return held[0]
    kinds = list(dict.fromkeys(kind for one in held for kind in one))
    table = np.array(np.broadcast_arrays(*(np.atleast_1d(one.get(kind, 0.0)) for one in held for kind in kinds)))
    table = table.reshape(len(held), len(kinds), -1)
    most = np.take_along_axis(table, table.sum(axis=1).argmax(axis=0)[None, None], axis=0)[0]
    return dict(zip(kinds, most if most.shape[1] > 1 else most[:, 0].tolist(), strict=True))


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
    """

    name: str
    dtype: str
    axes: tuple[tuple[str, int], ...]
    kernels: tuple[Kernel, ...]
    messages: tuple[Message, ...]
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    stages: str = ""
    samples: int | Array = 1
    tokens: int = 0
    parameters: Number = 0.0

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
        product = 1
        for _, size in self.axes:
            product *= size
        return product

    @functools.cached_property
    def trains(self) -> bool:
        """Whether any operation belongs to a backward pass."""
        return any(op.phase == "backward" for op in self.ops)

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
    def memory(self) -> tuple[Mapping[str, Number], ...]:
        """Bytes of a device of every class of ranks by kind, when it holds most: tensors live between the operations that need them. [B]

        Operations of a class count in the order of the program.
        """
        return tuple(self._fullest(rank) for rank in range(self.classes))

    def _fullest(self, rank: int) -> Mapping[str, Number]:
        mine = [tensor for tensor in self.tensors if tensor.rank == rank]
        begin, end = -1, len(self.ops)
        spans = [(begin if one.made is None else one.made, end if one.last is None else one.last, one) for one in mine]
        moments = sorted({begin, *(first for first, _, _ in spans)})

        def held(moment: int) -> dict[str, Number]:
            kinds: dict[str, Number] = dict.fromkeys((one.kind for one in mine), 0.0)
            for first, last, one in spans:
                if first <= moment <= last:
                    kinds[one.kind] = kinds[one.kind] + one.size
            return kinds

        return fullest([held(moment) for moment in moments])

    @functools.cached_property
    def volumes(self) -> Mapping[str, Number]:
        """Bytes that one device sends along each axis in a step, for placement; along each further axis only a shard moves. [B]"""
        sizes = dict(self.axes)
        volumes: dict[str, Number] = {axis: 0.0 for message in self.messages for axis in message.axes}
        for op in self.ops:
            if op.message is None:
                continue
            message = self.messages[op.message]
            size = message.size
            for axis in message.axes:
                volumes[axis] = volumes[axis] + ring_volume(message.collective, sizes[axis]) * size
                size = size / sizes[axis]
        return volumes
