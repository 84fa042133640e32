"""Kernels of a trace priced by the model of a device: what they could reach there, and what they take on another.

Every kernel belongs to the innermost operation around its launch whose sizes say what it does (`kernels`). The same prices as those
of a prediction hold, and nothing in them is fitted to a trace. A price is the time of a kernel from its start to its end, its launch time
from the start to its first block and from its last block to the end: what a profiler measures.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.files import Document
from crossflow.cost.price import kernel_prices
from crossflow.cost.roofline import WIDE
from crossflow.evidence.replay.edges import RankEdges
from crossflow.evidence.replay.graph import StepGraph
from crossflow.evidence.replay.kernels import KernelPart, parts_of, plain_name
from crossflow.evidence.replay.kineto import COPY, KERNEL, RankTrace, short_name
from crossflow.evidence.replay.lookups import looks_up, lookup_optimizer
from crossflow.evidence.replay.owners import Owners, owners
from crossflow.evidence.replay.tensors import TracedOperation, TracedTensor, profiled, tensors_of
from crossflow.evidence.validation.tables import template_of
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.program.builder import ProgramBuilder
from crossflow.program.embedding.reuse import Reuse
from crossflow.program.kernels import Kernel, Lookup, Pass
from crossflow.program.operations import FREE

DEVICE_COPY, FILL = "copy on the device", "fill"  # kinds of works that are no kernels
BETWEEN = "a copy between host and device"
UNLAUNCHED, NO_OPERATION = "it was launched before the trace began", "no operation around its launch"
TF32 = ("tf32", "s1688")  # what names of kernels hold that multiply fp32 on matrix units in tf32
ON_DEVICE = ("DtoD", "Device -> Device", "D2D")
MEMORY_DIFFERS = 0.25  # share by which the memory of a device may differ from that of its template
# Words in the names that drivers give devices which tell no device from another.
_MAKERS = frozenset({"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon", "graphics", "hbm2", "hbm2e", "hbm3", "hbm3e"})


# -------------------------------------------------------------------------------------------- devices


def device_of(traces: Sequence[RankTrace]) -> str | None:
    """Template of the device of a job, None where its name is not recorded or none is shipped.

    Memory decides between templates of one name; boards of a part number (PG509) are known by what stands before it.
    """
    return _template(traces[0].device, traces[0].memory) if traces else None


@functools.cache
def _template(device: str, memory: float) -> str | None:
    words = [word for word in device.lower().replace("-", " ").split() if word not in _MAKERS]
    words = words[: next((i for i, word in enumerate(words) if word.startswith("pg5")), len(words))]
    if not words:
        return None
    named = [word for word in words if word.endswith("gb") and word[:-2].isdigit()]
    size = f"{math.ceil(memory / 2**30 / 8) * 8}gb" if math.isfinite(memory) else "".join(named)
    found = template_of("-".join([*(word for word in words if word not in named), *filter(None, [size])]))
    if found is None or not math.isfinite(memory):
        return found
    held = float(device_architecture(found).memory.capacity[0])
    return found if abs(memory / held - 1.0) < MEMORY_DIFFERS else None


@functools.cache
def device_architecture(name: str, option: str = "--on") -> Architecture:
    """Architecture of a device or of the devices of a system, by the name of a template or by a file; `option` names it, for messages.

    Raises
    ------
    SpecError, CrossflowError
        Where there is no such template, or it is wrong.
    """
    spec, _ = resolve(Document(file=option, data={"template": name}))
    return architecture(spec)


# -------------------------------------------------------------------------------------------- what works do


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelledUnit:
    """Works of one operation that are priced together.

    Attributes
    ----------
    rank : place of the trace.
    name : of the operation, or of the kernel where it is priced by itself.
    kernels : by the short name of its longest kernel, for people.
    works : places in the graph.
    part : what they do.
    op : place of the operation in its trace, -1 of a copy or a fill.
    """

    rank: int
    name: str
    kernels: str
    works: tuple[int, ...]
    part: KernelPart
    op: int = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkUnits:
    """What the works of a graph do.

    Attributes
    ----------
    units : works whose sizes say it.
    reasons : of all others but collectives, why not, by work.
    """

    units: tuple[ModelledUnit, ...]
    reasons: Mapping[int, tuple[str, str]]  # operation or kernel, and the sentence


def units_of(graph: StepGraph, operations: Sequence[SizedOperation] | None = None) -> WorkUnits:
    """What all works of a graph do.

    Parameters
    ----------
    operations : of every rank, what gives the sizes of an operation, those of the trace where absent.
    """
    found, reasons = list[ModelledUnit](), dict[int, tuple[str, str]]()
    for rank, edges in enumerate(graph.edges):
        operation = functools.partial(operation_of, edges.trace) if operations is None else operations[rank]
        reader = _Reader(rank, edges, int(graph.first[rank]), operation)
        found += reader.units()
        reasons |= reader.reasons
    return WorkUnits(units=tuple(found), reasons=reasons)


SizedOperation = Callable[[int], TracedOperation]  # the operation at a place


class _Reader:
    """Finds what the works of one rank do."""

    def __init__(self, rank: int, edges: RankEdges, first: int, operation: SizedOperation) -> None:
        self.rank, self.edges, self.first, self.operation = rank, edges, first, operation
        self.trace = edges.trace
        self.owners: Owners = owners(self.trace)
        self.reasons: dict[int, tuple[str, str]] = {}
        self.pairs = _lookup_pairs(self.trace, operation)
        self.known: dict[tuple[int, int], tuple[KernelPart, ...] | str | None] = {}  # by name and shapes
        self.told: dict[tuple[KernelPart, bool, int], KernelPart] = {}  # parts are shared, so that each is held and priced once
        self.free = [plain_name(name) in FREE for name in self.trace.names]

    def units(self) -> Iterator[ModelledUnit]:
        """Works of every operation, by part."""
        by_op: dict[int, list[int]] = defaultdict(list)
        for work, (kind, collective) in enumerate(zip(self.trace.works.kind.tolist(), self.trace.works.collective.tolist(), strict=True)):
            if kind != KERNEL:
                yield from self._moved(work, kind)
            elif not collective and (op := self._operation(work)) is not None:
                by_op[op].append(work)
        for op, works in by_op.items():
            yield from self._split(op, works)

    def _moved(self, work: int, kind: int) -> Iterator[ModelledUnit]:
        """A copy or a fill, by the bytes that the profiler wrote."""
        name, size = self.trace.names[self.trace.works.name[work]], float(self.trace.works.moved[work])
        on_device = kind != COPY or any(word in name for word in ON_DEVICE)
        if not on_device or not math.isfinite(size):
            self.reasons[self.first + work] = name, BETWEEN if not on_device else "its bytes were not recorded"
            return
        part = KernelPart(kind=DEVICE_COPY if kind == COPY else FILL, kernels=(Pass(moved=(1.0 + (kind == COPY)) * size),))
        yield ModelledUnit(rank=self.rank, name=name, kernels=name, works=(self.first + work,), part=self._shared(part, [name]))

    def _operation(self, work: int) -> int | None:
        """The innermost operation around a kernel that says what it does; None with a reason where none does."""
        reason, innermost = "", ""
        for op in self.owners.chain(work):
            name = int(self.trace.ops.name[op])
            if self.free[name]:
                continue
            innermost = innermost or self.trace.names[name]
            found = self._parts(op)
            if isinstance(found, tuple):
                return op
            reason = reason or found or ""
        kernel = short_name(self.trace.names[self.trace.works.name[work]])
        if not innermost:
            reason = UNLAUNCHED if self.edges.launched[work] < 0 else NO_OPERATION
        self.reasons[self.first + work] = innermost or kernel, reason or "what its kernels do is not known"
        return None

    def _parts(self, op: int) -> tuple[KernelPart, ...] | str | None:
        ops, name = self.trace.ops, self.trace.names[self.trace.ops.name[op]]
        if lookup_optimizer(plain_name(name)):
            forward, gradient = self.pairs.get(op, (None, None))
            return parts_of(name, self.operation(op), gradient, forward)
        if op in self.trace.details:
            return parts_of(name, self.operation(op))
        key = int(ops.name[op]), int(ops.shape[op])
        if key not in self.known:
            self.known[key] = parts_of(name, self.operation(op))
        return self.known[key]

    def _split(self, op: int, works: Sequence[int]) -> Iterator[ModelledUnit]:
        """The works of an operation, each with the part that its name says, with the types that their names say."""
        parts = self._parts(op)
        assert isinstance(parts, tuple)  # `_operation` has looked
        names = {work: self.trace.names[self.trace.works.name[work]] for work in works}
        left = list(works)
        for part in sorted(parts, key=lambda one: not one.named):
            mine = [work for work in left if not part.named or any(word in names[work] for word in part.named)]
            left = [work for work in left if work not in mine]
            if mine:
                longest = max(mine, key=lambda work: self.trace.works.end[work] - self.trace.works.start[work])
                yield ModelledUnit(
                    rank=self.rank, name=self.trace.names[self.trace.ops.name[op]], kernels=short_name(names[longest]),
                    works=tuple(self.first + work for work in mine), part=self._shared(part, [names[work] for work in mine]), op=op,
                )  # fmt: skip

    def _shared(self, part: KernelPart, names: Sequence[str]) -> KernelPart:
        """A part with what the kernels of its operation tell: that products are in tf32, and how many kernels a pass takes."""
        tf32 = part.dtype == "fp32" and any(word in name for name in names for word in TF32)
        key = part, tf32, len(names)
        if key not in self.told:
            launches = len(names) / len(part.kernels)
            kernels = tuple(replace(one, launches=launches) if isinstance(one, Pass) else one for one in part.kernels)
            self.told[key] = replace(part, kernels=kernels, dtype="tf32" if tf32 else part.dtype)
        return self.told[key]


def operation_of(trace: RankTrace, op: int) -> TracedOperation:
    """Arguments and results of an operation, as far as its trace says them."""
    if op in trace.details:
        return trace.details[op]
    shape = int(trace.ops.shape[op])
    return profiled(*trace.shapes[shape]) if shape >= 0 else TracedOperation(())


def _lookup_pairs(trace: RankTrace, sized: SizedOperation) -> dict[int, tuple[TracedOperation | None, TracedTensor | None]]:
    """Of every look-up of FBGEMM and every pass back, the look-up and the gradient of its result.

    Autograd goes back in the order against that of the look-ups: a pass back belongs to the last look-up of as many samples that has none.
    """
    names = [lookup_optimizer(plain_name(name)) for name in trace.names]
    found: dict[int, tuple[TracedOperation | None, TracedTensor | None]] = {}
    open_: list[int] = []
    for op in [op for op, name in enumerate(trace.ops.name.tolist()) if names[name]]:
        name, operation = trace.names[trace.ops.name[op]], sized(op)
        if looks_up(plain_name(name)):
            open_.append(op)
            continue
        gradient = next(tensors_of(operation.args), None)
        same = (one for one in reversed(open_) if names[trace.ops.name[one]] == names[trace.ops.name[op]])
        forward = next((one for one in same if _fits(sized(one), gradient)), None)
        if forward is not None:
            open_.remove(forward)
            found[forward] = found[op] = sized(forward), gradient
    return found


def _fits(forward: TracedOperation, gradient: TracedTensor | None) -> bool:
    """Whether a gradient has the samples of a look-up: one fewer than its offsets, of each of its tables."""
    if gradient is None or len(gradient.shape) != 2:
        return False
    return any(one.numel() > 1 and not (one.numel() - 1) % gradient.shape[0] for one in tensors_of(forward.args) if len(one.shape) == 1)


# -------------------------------------------------------------------------------------------- prices


def modelled_times(units: WorkUnits, device: Architecture, reuse: Reuse | None = None) -> Array:
    """Time of every unit on a device as a trace has it, nan where the device has no such products, shape (units,). [s]

    Parameters
    ----------
    reuse : how often rows of tables are hit; where absent, and for tables with fewer rows than it hits, indices are drawn evenly.
    """
    parts = {id(unit.part): unit.part if reuse is None else reused(unit.part, reuse) for unit in units.units}
    times = dict(zip(parts, part_times([*parts.values()], device).tolist(), strict=True))
    return np.array([times[id(unit.part)] for unit in units.units])


def reused(part: KernelPart, reuse: Reuse) -> KernelPart:
    """A part whose look-ups hit rows as reuse factors say, where their tables have as many rows."""
    kernels = (replace(one, **_factors(one, reuse)) if isinstance(one, Lookup) else one for one in part.kernels)
    return replace(part, kernels=tuple(kernels))


def _factors(lookup: Lookup, reuse: Reuse) -> dict[str, Any]:
    samples = float(lookup.samples)
    hit = float(reuse.distinct(min(samples, reuse.samples))[0] * samples * lookup.pooling)
    return {} if hit > lookup.rows else {"reuse": reuse.factors, "counted": float(reuse.samples)}


def part_times(parts: Sequence[KernelPart], device: Architecture) -> Array:
    """Time of parts on a device, nan where the device has no such products, shape (parts,). [s]"""
    kernels: dict[str, list[tuple[int, Kernel]]] = defaultdict(list)
    plain = next(dtype for dtype in (*WIDE[::-1], *device.throughput) if dtype in device.throughput)
    found = np.zeros(len(parts))
    for place, part in enumerate(parts):
        dtype = _computed(part.dtype, device) if any(not isinstance(one, Pass) for one in part.kernels) else plain
        if part.dtype and not dtype:
            found[place] = np.nan
        kernels[dtype or plain] += [(place, one) for one in part.kernels]
    for dtype, rows in kernels.items():
        builder = ProgramBuilder(dtype=dtype)
        program_rows = [builder.compute("kernel", one) for _, one in rows]
        program = builder.build()
        costs, _ = kernel_prices(program, device, None)
        priced = [program.ops[row].kernels[0] for row in program_rows]
        np.add.at(found, [place for place, _ in rows], np.broadcast_to(costs.time, (len(program.kernels), 1))[priced, 0])
    return found


def _computed(dtype: str, device: Architecture) -> str:
    """Type in which a device multiplies what another multiplied in a type: where it has no tf32 in fp32; "" where it has none."""
    return next((one for one in (dtype, "fp32" if dtype == "tf32" else dtype) if one in device.throughput), "")


def work_times(units: WorkUnits, priced: Array, measured: Array) -> Array:
    """Time of every work by the price of its unit, divided as the trace divides it, nan where it is not modelled, shape (works,). [s]"""
    found = np.full(len(measured), np.nan)
    for unit, time in zip(units.units, priced.tolist(), strict=True):
        works = list(unit.works)
        whole = measured[works].sum()
        found[works] = time * (measured[works] / whole if whole > 0 else 1.0 / len(works))
    return found
