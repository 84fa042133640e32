"""The program of a step: operations in order for each class of ranks, whatever model they come from.

Ranks that do the same work at the same time are one class; a pipeline has a class for each stage. Operations of a class run on
in-order streams: kernels on `compute`, collectives and transfers on `network` unless they name another. An operation starts when
its stream is free and all operations that it waits for have ended. Kernels on several streams of a class share its device.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

import numpy as np

from crossflow.base.arrays import Array, Index, different, uniform
from crossflow.base.formats import DTYPE_BYTES, kept_bytes
from crossflow.base.limits import NonNegativeInt
from crossflow.program.blocks import Block, CopyPlaces
from crossflow.program.collectives import Collective, sent_bytes
from crossflow.program.forms import Bytes, Seconds
from crossflow.program.groups import DeviceGroup, Group
from crossflow.program.kernels import ONCE, Kernel, KernelTable, Lookup, Number, Timed, filled, kernel_tables, repeated

OpPlaces = tuple[NonNegativeInt, ...]
NOTHING = np.zeros((0, 1))
COMPUTE, NETWORK, HOST = "compute", "network", "host"  # streams; the first two are those of operations that name none
HostTime = Literal["kernel", "layer", "microbatch", "step"]  # times of the host in a software stack that a call may take
HOST_TIMES: tuple[HostTime, ...] = get_args(HostTime)


@dataclass(frozen=True, kw_only=True)
class Message:
    """A collective or a transfer."""

    collective: Annotated[Collective, Collective, "what is sent"]
    size: Annotated[Number, Bytes, "whole buffer per rank: the full result of an all_gather, the full input otherwise"]
    axes: Annotated[tuple[str, ...], tuple[str, ...], "axes of the mesh whose devices take part, or one of `groups`"] = ()
    between: Annotated[
        tuple[int, int] | None,
        tuple[NonNegativeInt, NonNegativeInt] | None,
        "two places along its one axis, counted from 0, whose devices alone take part, such as the ends of a pipeline; all where absent",
    ] = None
    group: Group | None = None  # the ranks that take part, where they are no axes of the mesh
    time: Annotated[Number | None, Seconds | None, "measured time, on every system; that of the network where absent"] = None


# How the run of a block may hide a message: beside the weight gradients of its layer; in pieces, one a rank, beside each of some
# products that take or make what it carries; each of its equal transfers beside one of as many equal kernels; beside another batch, on the
# way to the experts or with their results on the way back.
Hiding = Literal["", "weights", "pieces", "kernels", "experts", "results"]


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation: kernels, or one message."""

    name: Annotated[str, str, "for people, in timelines"]
    rank: Annotated[int, NonNegativeInt, "class of ranks that runs it, along the axis `stages`"] = 0
    layer: Annotated[str, str, "layer that it belongs to, for people"] = ""  # and for sums; never parsed
    phase: Annotated[str, str, "forward, backward, update or any other word; a program with a backward phase trains"] = ""
    stream: Annotated[str, str, "in-order stream that it occupies; compute for kernels and network for a message where absent"] = COMPUTE
    kernels: Annotated[tuple[int, ...], OpPlaces, "rows of `kernels`, run one after the other"] = ()
    message: Annotated[int | None, NonNegativeInt | None, "row of `messages`"] = None
    calls: Annotated[
        int,
        NonNegativeInt,
        "calls that the host makes; each takes the time of the software, none without. With kernels, all of them start after so many calls "
        "(1 for a graph of kernels); without calls, each starts after one of its own",
    ] = 0
    host: Annotated[HostTime, HostTime, "which time of the software's `host` a call takes; `kernel` where it launches kernels"] = "kernel"
    after: Annotated[tuple[int, ...], OpPlaces, "operations that it waits for, by their place; they stand before it"] = ()
    count: Number = ONCE  # equal ones of it, one after the other. [1]
    hiding: Hiding = ""  # how a message of a block may be hidden
    beside: tuple[int, ...] = ()  # rows of `Program.kernels` beside which it runs
    carried: Annotated[
        tuple[int, ...], OpPlaces, "in a block, operations that it waits for in the copy before; the first copy waits for nothing here"
    ] = ()
    paired: Annotated[
        tuple[int, ...],
        OpPlaces,
        "in a block, operations of earlier blocks of as many copies that it waits for in the same copy, not in the last",
    ] = ()
    meets: Annotated[
        str,
        str,
        "name of a meeting: operations of several classes with one name are one collective, which starts when the last class "
        "arrives and ends for all at once",
    ] = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class MessageTable:
    """Messages among groups of ranks, over n design points."""

    sizes: Array  # shape (messages, n). [B]
    kinds: tuple[tuple[Collective, Group, list[int]], ...]  # messages that share a collective and a group

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
    """Memory of a device of one class of ranks; what an operation of a block makes is there once for each copy."""

    kind: Annotated[str, str, "weights, gradients, optimizer, activations, buffers ..."]
    size: Annotated[Number, Bytes, "bytes on one device"]
    rank: Annotated[int, NonNegativeInt, "class of ranks that holds it"] = 0
    made: Annotated[int | None, NonNegativeInt | None, "operation that makes it; there from the beginning where absent"] = None
    last: Annotated[int | None, NonNegativeInt | None, "last operation that needs it; there to the end where absent"] = None


def fullest(held: Sequence[Mapping[str, Number]]) -> Mapping[str, Number]:
    """What is held by kind where most is held in all, at every point. [B]"""
    if len(held) == 1 or not any(held):
        return held[0]
    kinds = list(dict.fromkeys(kind for one in held for kind in one))
    table = np.array(np.broadcast_arrays(*(np.atleast_1d(one.get(kind, 0.0)) for one in held for kind in kinds)))
    table = table.reshape(len(held), len(kinds), -1)
    most = np.take_along_axis(table, table.sum(axis=1).argmax(axis=0)[None, None], axis=0)[0]
    return dict(zip(kinds, most if most.shape[1] > 1 else most[:, 0].tolist(), strict=True))


def _most_streams(streams: set[tuple[int, str]]) -> int:
    """Most streams of one class of ranks. [1]"""
    return max(Counter(rank for rank, _ in streams).values(), default=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerMembers:
    """Which kernels of a program are of which layer and phase."""

    kernels: Mapping[int, Index]  # those of each layer and phase that have any, as tables have them one after the other (`in_tables`)
    counts: tuple[tuple[int, Number], ...]  # kernels that occur other than once, with how often. [1]

    def totals(self, table: Array, rows: int) -> Array:
        """Sums over the kernels of each layer and phase, shape (..., rows, n), of values of shape (..., kernels, n)."""
        found = np.zeros((*table.shape[:-2], rows, table.shape[-1]))
        for row, kernels in self.kernels.items():  # `reduceat` along an axis that is not the last takes many times as long
            table[..., kernels, :].sum(axis=-2, out=found[..., row, :])
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """What a step computes, sends and holds, one representative device a class of ranks.

    Attributes
    ----------
    name : for reports.
    dtype : data type of its products.
    axes : mesh of the devices: names and sizes of its axes.
    groups : groups of devices beside the mesh by name. They count devices as they stand in the system, wherever the axes lie.
    stages : the axis along which ranks run different programs, "" where all run the same.
    kernels, messages : distinct kernels and messages, each priced once.
    ops : all operations in an order that respects both dependencies and the order of each stream.
    tensors : what devices hold.
    blocks : operations that repeat.
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
    groups: tuple[tuple[str, DeviceGroup], ...] = ()
    stages: str = ""
    blocks: tuple[Block, ...] = ()
    samples: int | Array = 1
    tokens: int | Array = 0
    parameters: Number = 0.0
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
    def ranks(self) -> Mapping[str, int]:
        """Ranks along every axis and in every group, by name. [1]"""
        return {**dict(self.axes), **{name: group.ranks for name, group in self.groups}}

    @functools.cached_property
    def trains(self) -> bool:
        """Whether it is a training step: where it does not say, whether any operation belongs to a backward pass."""
        return any(op.phase == "backward" for op in self.ops) if self.training is None else self.training

    @functools.cached_property
    def kernel_tables(self) -> tuple[KernelTable, ...]:
        """Kernels that are priced together, once for all points where their sizes do not differ; look-ups have more than sizes."""
        tables = kernel_tables(self.kernels, kept_bytes(self.dtype), narrow=kept_bytes(self.dtype) > self.element)
        return tuple(table if table.kind is Lookup else replace(table, sizes=uniform(table.sizes)) for table in tables)

    @functools.cached_property
    def _sending(self) -> tuple[Index, Index]:
        """Operations that send, and the message of each."""
        found = [(i, op.message) for i, op in enumerate(self.ops) if op.message is not None]
        return np.array([i for i, _ in found], dtype=np.intp), np.array([message for _, message in found], dtype=np.intp)

    @functools.cached_property
    def _running(self) -> tuple[Index, Index, Index]:
        """Operations that run kernels, all of their kernels one after the other, and where those of each begin."""
        computing = [i for i, op in enumerate(self.ops) if op.kernels]
        counts = [len(self.ops[i].kernels) for i in computing]
        first = np.concatenate([[0], np.cumsum(counts)[:-1]]) if computing else np.zeros(0)
        kernels = [kernel for op in self.ops for kernel in op.kernels]
        return np.array(computing, dtype=np.intp), np.array(kernels, dtype=np.intp), first.astype(np.intp)

    def by_op(self, kernels: Array, messages: Array) -> Array:
        """Sums for every operation of values of its kernels, shape (kernels, n), and of its message, shape (messages, n)."""
        found, (computing, rows, first), (sending, sent) = np.zeros((len(self.ops), kernels.shape[-1])), self._running, self._sending
        if len(computing):
            found[computing] = np.add.reduceat(kernels[rows], first, axis=0)
        found[sending] = messages[sent]
        return found

    @functools.cached_property
    def in_tables(self) -> Index:
        """Place of every kernel among those of all tables, one table after the other."""
        return np.concatenate([table.places for table in self.kernel_tables]).argsort()

    @functools.cached_property
    def _members(self) -> dict[tuple[tuple[str, ...], tuple[str, ...]], LayerMembers]:
        return {}

    def members(self, layers: tuple[str, ...], phases: tuple[str, ...]) -> LayerMembers:
        """Kernels of every layer and phase."""
        if (layers, phases) not in self._members:
            rows = {(layer, phase): i * len(phases) + j for i, layer in enumerate(layers) for j, phase in enumerate(phases)}
            row, counts = np.zeros(len(self.kernels), dtype=np.intp), []
            for op in self.ops:
                mine = self.in_tables[list(op.kernels)]
                row[mine] = rows[op.layer, op.phase]
                counts += [(kernel, op.count) for kernel in mine.tolist() if op.count is not ONCE]
            kernels = {one: np.flatnonzero(row == one) for one in different(row)}
            self._members[layers, phases] = LayerMembers(kernels=kernels, counts=tuple(counts))
        return self._members[layers, phases]

    @functools.cached_property
    def kernel_streams(self) -> int:
        """Most streams of one class that run kernels which share the device; measured ones were timed beside the others. [1]"""
        streams = {(op.rank, op.stream) for op in self.ops if any(not isinstance(self.kernels[i], Timed) for i in op.kernels)}
        return _most_streams(streams)

    @functools.cached_property
    def overlaps(self) -> bool:
        """Whether kernels of one class run on several streams, the host's apart, so that their times do not add up."""
        return _most_streams({(op.rank, op.stream) for op in self.ops if op.kernels and op.stream != HOST}) > 1

    @functools.cached_property
    def host_kernels(self) -> Index:
        """Kernels that run on the stream of the host only: its measured times."""
        elsewhere = {i for op in self.ops if op.stream != HOST for i in op.kernels}
        return np.array(sorted({i for op in self.ops if op.stream == HOST for i in op.kernels} - elsewhere), dtype=np.intp)

    @functools.cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Rows of prices that every operation takes, but for its calls: kernels first, then messages."""
        kernels = len(self.kernels)
        return tuple(op.kernels if op.message is None else (kernels + op.message,) for op in self.ops)

    @functools.cached_property
    def places(self) -> CopyPlaces:
        """Where operations stand once blocks are written out."""
        return CopyPlaces.of(len(self.ops), self.blocks)

    @functools.cached_property
    def often(self) -> Sequence[Number]:
        """How often every operation runs, one number or one for every point. [1]"""
        found: list[Number] = [1] * len(self.ops)
        for block in self.blocks:
            copies = block.count if isinstance(block.count, int) else block.count.astype(float)
            found[block.first : block.last + 1] = [copies] * (block.last + 1 - block.first)
        return found

    @functools.cached_property
    def memory(self) -> tuple[Mapping[str, Number], ...]:
        """Bytes of a device of every class of ranks by kind, when it holds most: tensors live between the operations that need them. [B]

        Operations of a class count in the order of the program.
        """
        return tuple(self._fullest(rank) for rank in range(self.classes))

    def held(self, rank: int) -> tuple[Index, Array]:
        """Places at which a class of ranks comes to hold other tensors, and bytes from then on, shape (changes, n). [1], [B]

        The place of what an operation makes is its own, once blocks are written out, and -1 before all of them; what it is the last to
        need goes after it, at a place of its own. Places are doubled, plus one for those that follow an operation.
        """
        tensors = [tensor for tensor in self.tensors if tensor.rank == rank]
        spans = [self.places.spans(one.made, one.last) for one in tensors]
        sizes = np.repeat(filled([[one.size] for one in tensors])[:, 0], [len(first) for first, _ in spans], axis=0) if tensors else NOTHING
        come = np.concatenate([np.full(1, -1), *(first for first, _ in spans)]).astype(np.intp)
        go = np.concatenate([np.zeros(0), *(last for _, last in spans)]).astype(np.intp)
        places, which = np.unique(np.concatenate([2 * come, 2 * go + 1]), return_inverse=True)
        changes = np.zeros((len(places), sizes.shape[1]))
        np.add.at(changes, which.ravel(), np.concatenate([np.zeros((1, sizes.shape[1])), sizes, -sizes]))
        return places, np.cumsum(changes, axis=0)

    def _fullest(self, rank: int) -> Mapping[str, Number]:
        tensors = [tensor for tensor in self.tensors if tensor.rank == rank]
        kinds: dict[str, Number] = dict.fromkeys((one.kind for one in tensors), 0.0)
        if all(one.made is None and one.last is None for one in tensors):
            for one in tensors:
                kinds[one.kind] = kinds[one.kind] + one.size
            return kinds
        places, amounts = self.held(rank)
        moment = places[np.argmax(amounts >= amounts.max(axis=0) * (1 - 1e-12), axis=0)] // 2
        for one in tensors:
            first, last = (ends[:, None] for ends in self.places.spans(one.made, one.last))
            often = ((first <= moment) & (moment <= last)).sum(axis=0)
            kinds[one.kind] = kinds[one.kind] + one.size * (often if len(often) > 1 else int(often[0]))
        return kinds
