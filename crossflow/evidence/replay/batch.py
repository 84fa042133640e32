"""Another batch for a traced step: the sizes that go with it, and how much longer kernels and messages take.

A trace does not say which size of a tensor is the batch. What is no weight has it where a size equals the batch, else where one is a
multiple of it (samples times tokens or heads) that is no other size of a sample. Weights are known by the gradients that autograd
accumulates. Only the first such size of a tensor changes; offsets of look-ups have one more than their samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Mask, rows_of
from crossflow.base.errors import CrossflowError
from crossflow.evidence.replay.changes import TraceRule
from crossflow.evidence.replay.collectives import traced_collectives
from crossflow.evidence.replay.edges import RankEdges
from crossflow.evidence.replay.kernels import plain_name
from crossflow.evidence.replay.kineto import RankTrace
from crossflow.evidence.replay.lookups import index_places, looks_up, lookup_optimizer
from crossflow.evidence.replay.modelled import operation_of, units_of, work_times
from crossflow.evidence.replay.owners import owners
from crossflow.evidence.replay.reach import KernelModel
from crossflow.evidence.replay.tensors import TracedArgument, TracedOperation, TracedTensor, tensors_of
from crossflow.program.operations import nbytes

ACCUMULATES = "AccumulateGrad"  # what the operation that adds to a gradient is called
# Operations that name their weights, and where these are among the arguments.
WEIGHTS = {
    "linear": (1, 2),
    "convolution": (1, 2),
    "embedding": (0,),
    "layer_norm": (2, 3),
    "batch_norm": (1, 2, 3, 4),
    "embedding_bag": (0,),
}
PRODUCTS = {"mm": (0, 1), "addmm": (1, 2)}  # and where their factors are
OF_WEIGHTS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")  # collectives of gradients and weights, in flat buffers


@dataclass(frozen=True, kw_only=True)
class BatchChange:
    """What another batch does to the works of a graph.

    Attributes
    ----------
    ratio : time of every work over what it was, shape (works,). [1]
    told : what it rests on, as sentences.
    """

    ratio: Array
    told: tuple[str, ...]


class BatchSizes:
    """The sizes of one rank's tensors at another batch.

    Parameters
    ----------
    batch : samples of the rank in the trace, as its tensors show them where 0.
    factor : by which they grow.
    """

    def __init__(self, trace: RankTrace, batch: int, factor: float) -> None:
        self.trace, self.factor = trace, factor
        self.known: dict[tuple[int, int], TracedOperation] = {}
        sorts = self._sorts()
        self.weights = {shape for name, operation, _ in sorts for shape in _weights(name, operation)}
        self.products = self.weights | {shape[::-1] for shape in self.weights}  # as products take and make them
        self.batch = batch or self._usual(sorts)
        shapes = {one.shape for _, operation, _ in sorts for one in tensors_of(operation.args)} - self.products
        self.others = {size for shape in self.weights for size in shape}
        self.others |= {size for shape in shapes if len(shape) > 1 and shape[0] == self.batch for size in shape[1:]}

    def _sorts(self) -> Sequence[tuple[str, TracedOperation, int]]:
        """Operations of every name and sizes, and how often each ran."""
        ops, details = self.trace.ops, self.trace.details
        keys = ops.name * (len(self.trace.shapes) + 1) + ops.shape + 1
        _, places, counts = np.unique(keys, return_index=True, return_counts=True)
        sized = {place: count for place, count in rows_of(places, counts) if ops.shape[place] >= 0} | dict.fromkeys(details, 1)
        return [(self._name(op), operation_of(self.trace, op), count) for op, count in sized.items()]

    def _name(self, op: int) -> str:
        return plain_name(self.trace.names[self.trace.ops.name[op]])

    def _usual(self, sorts: Sequence[tuple[str, TracedOperation, int]]) -> int:
        """The size that comes first most often; of samples times tokens, the samples; 0 where no sizes are recorded."""
        shapes = Counter[tuple[int, ...]]()
        for _, operation, count in sorts:
            for one in {one.shape for one in tensors_of(operation.args) if len(one.shape) > 1} - self.products:
                shapes[one] += count
        firsts = Counter[int]()
        for shape, count in shapes.items():
            firsts[shape[0]] += count * (shape[0] > 1)
        usual = firsts.most_common(1)[0][0] if firsts.total() else 0
        joined = Counter(
            {shape[0]: count for shape, count in shapes.items() if len(shape) > 2 and shape[0] * shape[1] == usual > shape[0] > 1}
        )
        return joined.most_common(1)[0][0] if joined else usual

    def operation(self, op: int) -> TracedOperation:
        """An operation at the other batch."""
        key = (int(self.trace.ops.name[op]), int(self.trace.ops.shape[op])) if op not in self.trace.details else (-1, op)
        if key not in self.known:
            self.known[key] = self._operation(self._name(op), operation_of(self.trace, op))
        return self.known[key]

    def _operation(self, name: str, given: TracedOperation) -> TracedOperation:
        if looks_up(name) or name in ("_embedding_bag", "embedding_bag"):
            places = index_places(lookup_optimizer(name)) if looks_up(name) else (1, 2)
            args = tuple(self._indices(one) if i in places else one for i, one in enumerate(given.args))
        elif name in PRODUCTS and (product := self._product(given.args, PRODUCTS[name])) is not None:
            args = product
        else:
            args = tuple(map(self._sized, given.args))
        return TracedOperation(args, None if given.out is None else tuple(map(self._sized, given.out)))

    def _sized(self, given: TracedArgument) -> TracedArgument:
        if isinstance(given, tuple):
            return tuple(map(self._sized, given))
        if not isinstance(given, TracedTensor) or given.shape in self.weights:
            return given
        place = next((i for i, size in enumerate(given.shape) if size == self.batch), None)
        if place is None:
            place = next((i for i, size in enumerate(given.shape) if size and size % self.batch == 0 and size not in self.others), None)
        return given if place is None else self._grown(given, place)

    def _grown(self, given: TracedTensor, place: int) -> TracedTensor:
        grown = round(given.shape[place] * self.factor)
        return replace(given, shape=(*given.shape[:place], grown, *given.shape[place + 1 :]))

    def _indices(self, given: TracedArgument) -> TracedArgument:
        """Indices of look-ups, as many more as there are samples, and their offsets."""
        if not isinstance(given, TracedTensor) or not given.shape:
            return given
        size = given.shape[0]
        grown = round((size - 1) * self.factor) + 1 if size % self.batch == 1 else round(size * self.factor)
        return replace(given, shape=(grown, *given.shape[1:]))

    def _product(self, args: Sequence[TracedArgument], places: tuple[int, int]) -> tuple[TracedArgument, ...] | None:
        """Factors of a product of matrices: rows of the first, or where it makes the gradient of a weight what is summed over."""
        first, second = (args[place] if place < len(args) else None for place in places)
        if not isinstance(first, TracedTensor) or not isinstance(second, TracedTensor) or len(first.shape) != 2 or len(second.shape) != 2:
            return None
        made = [first.shape[0], second.shape[1]]
        summed = tuple(made) in self.products and first.shape[1] % self.batch == 0
        if not summed and made[0] % self.batch:
            return None
        grown = {places[0]: self._grown(first, int(summed)), **({places[1]: self._grown(second, 0)} if summed else {})}
        return tuple(grown.get(i, one) for i, one in enumerate(args))

    def wide(self, op: int) -> bool:
        """Whether an operation has a tensor of two sizes or more that grows."""
        rows = zip(tensors_of(operation_of(self.trace, op).args), tensors_of(self.operation(op).args), strict=True)
        return any(len(one.shape) > 1 and one.shape != other.shape for one, other in rows)

    def bytes_ratio(self, op: int) -> float:
        """Bytes of an operation's tensors over what they were, nan where it has none. [1]"""
        before, after = (sum(map(nbytes, tensors_of(one.args))) for one in (operation_of(self.trace, op), self.operation(op)))
        return after / before if before else math.nan


def _weights(name: str, operation: TracedOperation) -> Iterator[tuple[int, ...]]:
    places = range(len(operation.args)) if name == ACCUMULATES else WEIGHTS.get(name, ())
    for place in places:
        if place < len(operation.args):
            yield from (one.shape for one in tensors_of(operation.args[place]) if one.numel() > 1)


def batch_change(model: KernelModel, rule: TraceRule, on: str = "") -> BatchChange:
    """What another batch does to the kernels and messages of a trace; the host stays.

    Kernels take longer as the model of the device says of their sizes, those that it does not know as the bytes of their tensors grow.
    Messages that grow take longer by their bytes, beyond the shortest collective of the trace.

    Parameters
    ----------
    rule : the change; its name says the samples of a rank in the trace, else its tensors show them.
    on : another device whose model says how kernels grow, that of the trace where empty.

    Raises
    ------
    CrossflowError
        Where the trace has no sizes, or the new batch is no whole number.
    """
    graph, factor, written, device = model.graph, rule.value, rule.written, on or model.device
    sizes = [BatchSizes(trace, int(rule.name) if rule.name.isdecimal() else 0, factor) for trace in graph.traces]
    found = sizes[0].batch
    if not found:
        cure = "record it with record_shapes=True, or give its execution trace with --execution"
        raise CrossflowError(f"what-if '{written}': the trace says no sizes of tensors, so that nothing tells what a batch changes; {cure}")
    if not math.isclose(found * factor, round(found * factor)) or round(found * factor) < 1:
        raise CrossflowError(f"what-if '{written}': {factor:g} times the batch of {found} that the trace has is no whole number")
    scaled = units_of(graph, [one.operation for one in sizes])
    before, after = (work_times(units, model.priced(units, device), model.measured) for units in (model.units, scaled))
    known = np.isfinite(before) & np.isfinite(after) & (before > 0)
    ratio = np.where(known, after / np.where(known, before, 1.0), np.nan)
    rest = ~known & ~graph.collective
    first = graph.first
    by_bytes = np.concatenate([_by_bytes(one, rest[first[i] : first[i + 1]]) for i, one in enumerate(sizes)])
    ratio[rest] = by_bytes[rest]
    unsized = ~np.isfinite(ratio) & ~graph.collective
    ratio[unsized] = 1.0
    messages = np.concatenate([_messages(edges, one) for edges, one in zip(graph.edges, sizes, strict=True)])
    ratio[graph.collective] = _longer(graph.time[graph.collective], messages[graph.collective])
    return BatchChange(ratio=ratio, told=tuple(_told(model, device, f"batch {found} to {round(found * factor)}", known, unsized, messages)))


def _by_bytes(sizes: BatchSizes, chosen: Mask) -> Array:
    """How many times more bytes the tensors have of the operations around chosen works, nan where none has any, shape (works,). [1]"""
    found, own = np.full(len(chosen), np.nan), owners(sizes.trace)
    for work in np.flatnonzero(chosen).tolist():
        ratios = (sizes.bytes_ratio(op) for op in own.chain(work))
        found[work] = next((ratio for ratio in ratios if math.isfinite(ratio)), math.nan)
    return found


def _messages(edges: RankEdges, sizes: BatchSizes) -> Array:
    """How many times more bytes collectives have, 1 of what is none, shape (works,).

    Flat buffers are of gradients and weights where they are reduced or gathered, and of samples where ranks exchange them. [1]
    """
    found, own = np.ones(len(edges.trace.works)), owners(edges.trace)
    for work, one in traced_collectives(edges).items():
        if one.op not in OF_WEIGHTS or any(sizes.wide(op) for op in own.chain(work)):
            found[work] = sizes.factor
    return found


def _longer(times: Array, ratio: Array) -> Array:
    """How many times longer collectives take that have so many times more bytes: the shortest of all is taken as latency. [1]"""
    whole = np.where(times > 0, times, 1.0)
    shortest = np.minimum(times.min(initial=np.inf), whole)
    return np.where(times > 0, (shortest + (times - shortest) * ratio) / whole, 1.0)


def _told(model: KernelModel, device: str, change: str, known: Mask, unsized: Mask, messages: Array) -> Iterator[str]:
    kernels = ~model.graph.collective
    whole = float(model.measured[kernels].sum()) or 1.0
    modelled, stays = (float(model.measured[chosen & kernels].sum()) / whole for chosen in (known, unsized))
    by = f"{modelled:.0%} of the time of kernels and copies is scaled by the model of {device}"
    rest = f"{max(1.0 - modelled - stays, 0.0):.0%} by the bytes of its tensors, {stays:.0%} says no sizes and stays"
    yield f"{change}: {by}, {rest}; the host stays, and so do the weights"
    grow = int((messages[model.graph.collective] != 1.0).sum())
    if model.graph.collective.any():
        yield f"{grow} of {int(model.graph.collective.sum())} collectives go with the batch; those of weights do not"
