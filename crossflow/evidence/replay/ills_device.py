"""Ills of the device: kernels slower than the model says, passes that could be one, collectives, copies and bubbles that nothing hides."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.evidence.replay.changes import change_host, read_trace_changes, waits_of
from crossflow.evidence.replay.collectives import traced_collectives
from crossflow.evidence.replay.graph import GraphTimes
from crossflow.evidence.replay.ills import Ill, Mend, TracedSteps, longest, shorter
from crossflow.evidence.replay.kernels import ATTENTION, CONVOLUTION, OPTIMIZER, POINTWISE, PRODUCT, KernelPart, plain_name, result_of
from crossflow.evidence.replay.kineto import COPY, UPDATE
from crossflow.evidence.replay.modelled import ModelledUnit, device_architecture, operation_of, part_times, work_times
from crossflow.evidence.replay.reach import KernelModel
from crossflow.evidence.replay.tensors import TracedTensor, tensors_of
from crossflow.program.kernels import Pass
from crossflow.program.operations import nbytes

SLOW = 1.5  # times what is expected, from which a kernel counts as slow: most kernels that were measured are within that of the model
# Kinds of which the model is expected to hold. Of others it says too little (look-ups by 73 %, reductions by 56 % on an A100), so that a
# kernel of these is slow only beside the others of its kind in the trace.
HELD = (PRODUCT, CONVOLUTION, ATTENTION, POINTWISE, OPTIMIZER)
MOST = 8  # ills of one sort that are replayed, those that may bring most
SENT = ("send", "recv")  # what stages of a pipeline hand on
TO_DEVICE = ("HtoD", "Host -> Device", "H2D")


# -------------------------------------------------------------------------------------------- kernels


def slow_kernels(steps: TracedSteps) -> Iterator[Ill]:
    """Kernels that take far longer than is expected of them, by operation and name; mended they take what is expected.

    That is what the model of the device says; of kinds that it is not held to, times the median of measured over modelled time of all
    kernels of the kind where that is above 1.
    """
    model = steps.model
    if model is None or not model.units.units:
        return
    measured, graph = model.units_measured, steps.graph
    off = _off(model)
    expected = model.here * off
    lost = np.where(np.isfinite(expected) & (measured > SLOW * expected), measured - expected, 0.0)
    groups: dict[tuple[str, str, float], list[int]] = defaultdict(list)
    for place in np.flatnonzero(lost > 0).tolist():
        unit = model.units.units[place]
        if steps.inside[list(unit.works)].all():
            groups[unit.name, unit.kernels, float(off[place])].append(place)
    by_work = work_times(model.units, expected, model.measured)
    for (operation, kernel, usual), places in sorted(groups.items(), key=lambda item: -float(lost[item[1]].sum()))[:MOST]:
        works = np.array([work for place in places for work in model.units.units[place].works], dtype=np.intp)
        said = f"{float(measured[places].sum() / model.here[places].sum()):.1f} times what the model of {model.device} says"
        said += f"; the usual kernel of its kind {usual:.1f} times" if usual != 1.0 else ""
        proof = steps.proof(kernel, works, graph.time[works] - by_work[works], said)
        yield Ill(
            kind="slow_kernel", title=f"{kernel} of {plain_name(operation)} is slow", time=float(graph.time[works].sum()) / steps.count(),
            mend=_at_most(works, by_work[works]), proofs=(proof,), trust="unknown",
        )  # fmt: skip


def _off(model: KernelModel) -> Array:
    """How far above the model the usual kernel of the kind of every unit is, 1 of kinds that it is held to, shape (units,). [1]"""
    kinds = np.array([unit.part.kind for unit in model.units.units])
    ratio = np.divide(model.units_measured, model.here, out=np.full(len(kinds), np.nan), where=model.here > 0)
    found = np.ones(len(kinds))
    for kind in {*kinds.tolist()} - {*HELD}:
        mine = (kinds == kind) & np.isfinite(ratio)
        if mine.any():
            found[kinds == kind] = max(float(np.median(ratio[mine])), 1.0)
    return found


def _at_most(works: Index, times: Array) -> Mend:
    """Works take no longer than some times."""

    def mend(given: GraphTimes) -> GraphTimes:
        work = given.work.copy()
        work[works] = np.minimum(work[works], times)
        return replace(given, work=work)

    return mend


# -------------------------------------------------------------------------------------------- passes that could be one


@dataclass(frozen=True, kw_only=True)
class PassChain:
    """Pointwise kernels of a stream, one right after the other, each of which reads what the one before wrote.

    Attributes
    ----------
    units : of the kernels.
    between : what lies between two of them. [B]
    read_later : of it, what other kernels read later, so that it must be written all the same. [B]
    exact : whether the trace says which tensors they are, and not only their sizes.
    """

    units: tuple[ModelledUnit, ...]
    between: float
    read_later: float
    exact: bool

    @property
    def moved(self) -> float:
        """Bytes that the kernels read and write one by one. [B]"""
        return math.fsum(_moved(unit.part) for unit in self.units)

    @property
    def saved(self) -> float:
        """Bytes that one kernel does not write and read again. [B]"""
        return min(2.0 * self.between - self.read_later, self.moved)


def _moved(part: KernelPart) -> float:
    return float(sum(one.moved for one in part.kernels if isinstance(one, Pass)))


def unfused_passes(steps: TracedSteps) -> Iterator[Ill]:
    """Chains of pointwise kernels; mended each is one kernel that reads what the chain is given and writes what it makes.

    The time of the chain goes with the model's times of the one pass over those of its passes. The host does the first operation alone.
    """
    model = steps.model
    if model is None:
        return
    chains = [chain for rank in range(len(steps.graph.traces)) for chain in _chains(steps, model, rank)]
    for optimizer in (False, True):
        mine = [one for one in chains if _in_update(steps, one) == optimizer]
        ratios = _ratios(mine, model.device)
        kept = [(one, float(ratio)) for one, ratio in zip(mine, ratios, strict=True) if ratio < 1.0]
        if kept:
            yield _unfused(steps, kept, "optimizer" if optimizer else "passes")


def _ratios(chains: Sequence[PassChain], device: str) -> Array:
    """Time of the one pass over that of the passes of every chain, by the model. [1]"""
    if not chains:
        return np.ones(0)
    joined = [
        replace(one.units[0].part, kernels=(Pass(moved=one.moved - one.saved, flops=sum(_flops(unit.part) for unit in one.units)),))
        for one in chains
    ]
    apart = [unit.part for one in chains for unit in one.units]
    found = part_times([*joined, *apart], device_architecture(device))
    owner = np.repeat(np.arange(len(chains)), [len(one.units) for one in chains])
    return np.asarray(found[: len(chains)] / np.bincount(owner, found[len(chains) :]))


def _flops(part: KernelPart) -> float:
    return float(sum(one.flops for one in part.kernels if isinstance(one, Pass)))


def _unfused(steps: TracedSteps, chains: Sequence[tuple[PassChain, float]], kind: str) -> Ill:
    """The ill of all chains of a kind, each with the time of its one pass over that of its passes. [1]"""
    by_names: dict[str, list[PassChain]] = defaultdict(list)
    for chain, _ in chains:
        by_names[", ".join(plain_name(unit.name) for unit in chain.units)].append(chain)
    proofs, time = [], steps.graph.time
    for names, mine in by_names.items():
        firsts = np.array([one.units[0].works[0] for one in mine])
        times = np.array([sum(time[unit.works[0]] for unit in one.units) for one in mine])
        saved, sure = sum(one.saved for one in mine), all(one.exact for one in mine)
        said = f"{saved / 1e6:.3g} MB not written and read again" + ("" if sure else "; the chains are found by the sizes of tensors")
        proofs.append(steps.proof(names, firsts, times, said))
    sizes = sum(len(chain.units) for chain, _ in chains)
    of = " of the optimizer" if kind == "optimizer" else ""
    return Ill(
        kind=f"unfused_{kind}", title=f"{len(chains)} chains of {sizes} pointwise kernels{of} could be one kernel each",
        time=sum(one.time for one in proofs) / steps.count(), mend=_fused(steps, chains), proofs=longest(proofs), trust="unknown",
    )  # fmt: skip


def _fused(steps: TracedSteps, chains: Sequence[tuple[PassChain, float]]) -> Mend:
    (gone,) = read_trace_changes("host*0")
    spans: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for chain, _ in chains:
        for unit in chain.units[1:]:
            ops = steps.graph.traces[unit.rank].ops
            spans[unit.rank, int(ops.thread[unit.op])].append((float(ops.start[unit.op]), float(ops.end[unit.op])))

    def mend(given: GraphTimes) -> GraphTimes:
        work, host = given.work.copy(), given.host.copy()
        for chain, ratio in chains:
            works = [unit.works[0] for unit in chain.units]
            work[works[0]], work[works[1:]] = ratio * work[works].sum(), 0.0
        for (rank, thread), mine in spans.items():
            change_host(steps.graph, rank, thread, np.array(mine), gone, host)
        return replace(given, work=work, host=host)

    return mend


def _in_update(steps: TracedSteps, chain: PassChain) -> bool:
    """Whether a chain is launched by an optimizer."""
    first = chain.units[0]
    trace, moment = steps.graph.traces[first.rank], steps.graph.traces[first.rank].ops.start[first.op]
    named = np.array([*(name.startswith(UPDATE) for name in trace.names), False])[trace.marks.name]
    return bool((named & (trace.marks.start <= moment) & (moment <= trace.marks.end)).any())


def _chains(steps: TracedSteps, model: KernelModel, rank: int) -> Iterator[PassChain]:
    """Chains of a rank, of two kernels or more."""
    trace, first = steps.graph.traces[rank], int(steps.graph.first[rank])
    by_work = {unit.works[0] - first: unit for unit in model.units.units if unit.rank == rank and _is_single(unit)}
    readers = _readers(steps, model, rank)
    for stream in np.unique(trace.works.stream).tolist():
        open_: list[ModelledUnit] = []
        links: list[_Link] = []
        for work in np.flatnonzero(trace.works.stream == stream).tolist():
            unit = by_work.get(work) if steps.inside[first + work] else None
            link = _link(steps, open_[-1], unit, readers) if open_ and unit is not None else None
            if link is None:
                yield from _closed(open_, links)
                open_, links = [unit] if unit is not None else [], []
            elif unit is not None:
                open_.append(unit)
                links.append(link)
        yield from _closed(open_, links)


def _is_single(unit: ModelledUnit) -> bool:
    return unit.op >= 0 and len(unit.works) == 1 and unit.part.kind == POINTWISE


_Link = tuple[float, float, bool]  # bytes between two kernels, those that others read later, and whether the trace says which tensor it is


def _closed(units: Sequence[ModelledUnit], links: Sequence[_Link]) -> Iterator[PassChain]:
    if len(units) > 1:
        between, later = (sum(link[i] for link in links) for i in range(2))
        yield PassChain(units=tuple(units), between=between, read_later=later, exact=all(link[2] for link in links))


def _readers(steps: TracedSteps, model: KernelModel, rank: int) -> Mapping[int, list[int]]:
    """Operations with kernels that read each numbered tensor, by its number."""
    found: dict[int, list[int]] = defaultdict(list)
    trace = steps.graph.traces[rank]
    for op in {unit.op for unit in model.units.units if unit.rank == rank and unit.op >= 0}:
        for tensor in tensors_of(operation_of(trace, op).args):
            if tensor.number >= 0:
                found[tensor.number].append(op)
    return found


def _link(steps: TracedSteps, one: ModelledUnit, two: ModelledUnit, readers: Mapping[int, list[int]]) -> _Link | None:
    """What lies between two kernels that follow one another, None where the second does not read what the first wrote."""
    trace = steps.graph.traces[one.rank]
    if trace.ops.thread[one.op] != trace.ops.thread[two.op] or trace.ops.start[two.op] < trace.ops.end[one.op]:
        return None
    first, second = operation_of(trace, one.op), operation_of(trace, two.op)
    given = [*tensors_of(second.args)]
    numbered = next((made for made in tensors_of(first.out or ()) if made.number >= 0), None)
    if numbered is not None:
        if all(tensor.number != numbered.number for tensor in given):
            return None
        ends = trace.ops.end[two.op]
        others = [op for op in readers.get(numbered.number, ()) if op != two.op and trace.ops.start[op] > ends]
        size = nbytes(numbered)
        return size, size if others else 0.0, True
    made = result_of(one.name, first)
    if made is None or made.numel() < 2 or not any(_alike(made, tensor) for tensor in given):
        return None
    return nbytes(made), 0.0, False


def _alike(one: TracedTensor, two: TracedTensor) -> bool:
    return one.shape == two.shape and one.element == two.element


# -------------------------------------------------------------------------------------------- collectives and bubbles


def exposed_collectives(steps: TracedSteps) -> Iterator[Ill]:
    """Collectives beside which nothing is computed, by what they do; mended they run beside computing, as far as there is enough of it."""
    graph = steps.graph
    by_op = _collectives(steps)
    chosen = graph.collective.copy()
    chosen[np.concatenate([np.zeros(0, dtype=np.intp), *(by_op[op] for op in SENT if op in by_op)])] = False
    hidden = steps.hideable(chosen)
    for op, works in by_op.items():
        mine = np.where(np.isin(np.arange(len(hidden)), works), hidden, 0.0)
        lost = works[mine[works] > 0]
        if op not in SENT and len(lost):
            unread = max(trace.world for trace in graph.traces) > len(graph.numbers)
            proof = steps.proof(op, lost, mine[lost], "waits for ranks that were not read count in it" if unread else "")
            title = f"{op} is exposed: nothing is computed beside it"
            yield Ill(kind=f"exposed_{op}", title=title, time=proof.time / steps.count(), mend=shorter(mine), proofs=(proof,))


def _collectives(steps: TracedSteps) -> Mapping[str, Index]:
    """Collectives in steps, by what they do."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank, edges in enumerate(steps.graph.edges):
        for work, one in traced_collectives(edges).items():
            place = int(steps.graph.first[rank]) + work
            if steps.inside[place]:
                found[one.op].append(place)
    return {op: np.array(works, dtype=np.intp) for op, works in found.items()}


def bubbles(steps: TracedSteps) -> Iterator[Ill]:
    """What stages of a pipeline wait for others in sends and receives; mended no rank waits for another one.

    What a rank waits for has been there before, where both ranks were read; else it takes what the shortest message of its sort takes.
    This is the bound of a pipeline without a bubble.
    """
    graph = steps.graph
    works = np.concatenate([np.zeros(0, dtype=np.intp), *(mine for op, mine in _collectives(steps).items() if op in SENT)])
    if not len(works):
        return
    shortest: dict[tuple[int, int], float] = defaultdict(lambda: np.inf)
    keys = [(graph.rank_of(work), int(steps.names[work])) for work in works.tolist()]
    for key, time in zip(keys, graph.time[works].tolist(), strict=True):
        shortest[key] = min(shortest[key], time)
    spans = steps.times[graph.ends[works]] - steps.times[graph.starts[works]]
    lost, cut = np.zeros(len(graph.time)), np.zeros(len(graph.time))
    lost[works] = np.maximum(spans - np.array([shortest[key] for key in keys]), 0.0)
    cut[works] = np.maximum(graph.time[works] - np.array([shortest[key] for key in keys]), 0.0)
    waiting = works[lost[works] > 0]
    if len(waiting):
        by_rank: dict[int, list[int]] = defaultdict(list)
        for work in waiting.tolist():
            by_rank[graph.rank_of(work)].append(work)
        proofs = (steps.proof(f"rank {graph.traces[rank].rank}", np.array(mine), lost[mine]) for rank, mine in by_rank.items())
        mend = _unmet(steps, {*works.tolist()}, shorter(cut))
        title = "stages of the pipeline wait for one another"
        yield Ill(kind="bubble", title=title, time=float(lost.sum()) / steps.count(), mend=mend, proofs=longest(proofs))


def _unmet(steps: TracedSteps, works: set[int], then: Mend) -> Mend:
    """Ranks that wait in messages of some works for another one go on at once, as if these had been there before."""
    graph = steps.graph
    waits = np.zeros(len(graph.time) + 1, dtype=bool)  # the last is of edges without a work
    starts = steps.times[graph.starts]
    for meeting in graph.meetings:
        mine = np.array(meeting.works)
        if works.issuperset(meeting.works):
            waits[mine[starts[mine] < meeting.come(starts).max()]] = True
    dropped = waits[graph.work]

    def mend(given: GraphTimes) -> GraphTimes:
        return then(replace(given, kept=given.kept & ~dropped))

    return mend


# -------------------------------------------------------------------------------------------- copies


def copies(steps: TracedSteps) -> Iterator[Ill]:
    """Copies to the device beside which no kernel runs, or which the host waits for; mended they run beside kernels, and nobody waits."""
    graph = steps.graph
    chosen = to_device(steps) & steps.inside
    if not chosen.any():
        return
    hidden, waiting = steps.hideable(chosen), copy_waits(steps)
    dropped = waits_of(graph, waiting)
    held = [
        float(edges.points.length[mine & steps.within(rank, edges.points.start)].sum())
        for rank, (edges, mine) in enumerate(zip(graph.edges, waiting, strict=True))
    ]
    by_name: dict[str, list[int]] = defaultdict(list)
    for work in np.flatnonzero(chosen).tolist():
        rank = graph.rank_of(work)
        by_name[graph.traces[rank].names[int(steps.names[work])]].append(work)
    said = f"the host waits {1e3 * sum(held) / steps.count():.3g} ms a step for copies" if sum(held) else ""
    proofs = longest(steps.proof(name, np.array(mine), graph.time[mine], said) for name, mine in by_name.items())
    pinned = not any("Pageable" in name for name in by_name)

    def mend(given: GraphTimes) -> GraphTimes:
        return shorter(hidden)(replace(given, kept=given.kept & ~dropped))

    title = "copies to the device keep it, or the host, waiting"
    time = max(float(graph.time[chosen].sum()), sum(held)) / steps.count()
    yield Ill(kind="copies_pinned" if pinned else "copies", title=title, time=time, mend=mend, proofs=proofs)


def to_device(steps: TracedSteps) -> Mask:
    """Whether a work copies to the device, shape (works,)."""
    found = [
        np.array([*(any(word in name for word in TO_DEVICE) for name in trace.names), False])[trace.works.name]
        for trace in steps.graph.traces
    ]
    return np.asarray(np.concatenate(found) & (steps.kinds == COPY))


def copy_waits(steps: TracedSteps) -> list[Mask]:
    """Of every rank the calls in which the host waits for a copy to the device."""
    copied, found = to_device(steps), []
    for rank, edges in enumerate(steps.graph.edges):
        waits, mine = edges.points.waits, np.zeros(len(edges.points), dtype=bool)
        mine[waits.owner[copied[steps.works(rank)][waits.held]]] = True
        found.append(mine)
    return found


DEVICE_ILLS: tuple[Callable[[TracedSteps], Iterator[Ill]], ...] = (
    slow_kernels, unfused_passes, exposed_collectives, bubbles, copies,
)  # fmt: skip
