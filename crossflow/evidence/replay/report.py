"""A real step, explained: what `crossflow trace` says of the traces of a job, as they are or with changes."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import provenance
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.base.rules import listed
from crossflow.evidence.replay.advice import StepAdvice, advise
from crossflow.evidence.replay.batch import batch_change
from crossflow.evidence.replay.breakdown import (
    RankShare,
    device_span,
    length,
    mean_shares,
    modelled_gaps,
    modelled_host,
    modelled_waits,
    shares_of,
    union,
)
from crossflow.evidence.replay.changes import BATCH, changed, read_trace_changes
from crossflow.evidence.replay.clocks import aligned
from crossflow.evidence.replay.collectives import traced_collectives
from crossflow.evidence.replay.critical import CriticalPath, LateRank, critical_path, late_ranks, owners
from crossflow.evidence.replay.crowd import AlikeRanks, RankCrowd, read_crowd
from crossflow.evidence.replay.edges import RankEdges
from crossflow.evidence.replay.execution import joined, read_executions
from crossflow.evidence.replay.graph import GraphStep, GraphTimes, StepGraph, graph_of, taken, times_of
from crossflow.evidence.replay.ills_engine import PhaseShare, engine_of, phases_of
from crossflow.evidence.replay.kineto import KERNEL, RankTrace, count_traces, read_traces, short_name
from crossflow.evidence.replay.overheads import Overheads, overheads_of
from crossflow.evidence.replay.reach import KernelModel, kernel_model, replaced, summary
from crossflow.program.embedding.reuse import Reuse

LARGEST = 10  # kernels and operations that a report lists
MANY = 16  # late ranks that plain data hold of a job of which some ranks stand for the others
WHOLE = 64  # ranks up to which all are read whole
MODELLED_NOTE = (
    "crossflow wrote {}: nothing in it was measured; `crossflow predict` says how far its scenario can be trusted, and what changes bring"
)
# What the parts of a predicted step are called where a measured one has its critical path.
_ON_PATH = {
    "busy": "kernels", "copies": "copies", "exposed_communication": "collectives", "waiting": "waiting", "host": "host", "idle": "bubble",
}  # fmt: skip
OF_DEVICE = ("stream_wait", "collective_wait", "host_wait", "copy_wait", "contention")


@dataclass(frozen=True, kw_only=True)
class KernelTotal:
    """Kernels of one name on one rank.

    Attributes
    ----------
    name : of the kernel, without its arguments.
    count, time : how many of them, and their time in all. [1], [s]
    """

    name: str
    count: int
    time: float


@dataclass(frozen=True, kw_only=True, eq=False)
class AlikeShare:
    """Where the step of ranks goes that one of the graph stands for.

    Attributes
    ----------
    rank : that stands for them.
    numbers : of the ranks, that one included.
    fastest, slowest : mean step of the fastest and of the slowest of them. [s]
    mean : of the mean steps of all.
    """

    rank: int
    numbers: tuple[int, ...]
    fastest: float
    slowest: float
    mean: RankShare

    @classmethod
    def of(cls, alike: AlikeRanks) -> AlikeShare:
        """That of some alike ranks."""
        times = [one.time for one in alike.shares]
        (mean,) = mean_shares([replace(one, rank=alike.rank) for one in alike.shares])
        return cls(rank=alike.rank, numbers=alike.numbers, fastest=min(times), slowest=max(times), mean=mean)


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceReport:
    """Steps of a job as their traces have them, or as a replay gives them.

    Attributes
    ----------
    name : of the job, from its files.
    graph : what waits for what.
    times : when everything happens: as measured, or as replayed where anything is changed. [s]
    given : what everything takes. [s]
    what_if : the changes as they were written.
    overheads : those that stand in for the measured ones, None where these are taken.
    model : of its kernels, None where no template of its device is shipped.
    kernels_from : where the times of kernels come from, as `crossflow.evidence.replay.reach.replaced` takes it.
    on : another device or system, "" for that of the trace.
    told : what the times of kernels are made of, as sentences.
    crowd : all ranks of the job, where those of the graph stand for them; None where all that were read are in the graph.
    """

    name: str
    graph: StepGraph
    times: Array
    given: GraphTimes
    what_if: str = ""
    overheads: Overheads | None = None
    model: KernelModel | None = None
    kernels_from: str = "trace"
    on: str = ""
    told: tuple[str, ...] = ()
    crowd: RankCrowd | None = None

    @property
    def changes(self) -> str:
        """What differs from the trace, for people; "" where nothing does."""
        kernels = {"trace": "", "model": "kernels by the model", "both": "kernels by the model, scaled by kind"}[self.kernels_from]
        overheads = "" if self.overheads is None else f"overheads of {self.overheads.host or 'another trace'}"
        return ", ".join(filter(None, [self.what_if, overheads, kernels, self.on and f"on {self.on}"]))

    @property
    def replayed(self) -> bool:
        """Whether its times come from a replay, not from the trace."""
        return bool(self.changes)

    @functools.cached_property
    def steps(self) -> tuple[RankShare, ...]:
        """Every step of every rank."""
        return shares_of(self.graph, self.times)

    @functools.cached_property
    def ranks(self) -> tuple[RankShare, ...]:
        """The mean step of every rank in the graph."""
        if self.crowd is not None and not self.replayed:  # which knows when all ranks came to each collective
            whole = {trace.rank for trace in self.graph.traces}
            return tuple(one for one in self.crowd.shares if one.rank in whole)
        return mean_shares(self.steps)

    @functools.cached_property
    def alike(self) -> tuple[AlikeShare, ...]:
        """Ranks for which one of the graph stands, with the mean of their mean steps; none where all are in the graph, or of a replay."""
        if self.crowd is None or self.replayed:
            return ()
        return tuple(AlikeShare.of(one) for one in self.crowd.alike if len(one.numbers) > 1)

    @property
    def read(self) -> int:
        """Ranks that were read. [1]"""
        return len(self.graph.traces) if self.crowd is None else len(self.crowd.shares)

    @property
    def world(self) -> int:
        """Ranks of the job. [1]"""
        return max(self.read, *(trace.world for trace in self.graph.traces))

    @functools.cached_property
    def slowest(self) -> RankShare:
        """The mean step of the slowest rank; of those that take the same, as all do that crossflow wrote, the one that idles least."""
        return max(self.ranks, key=lambda one: (one.time, -one.parts["idle"]))

    @property
    def modelled(self) -> bool:
        """Whether the step is a prediction that crossflow wrote as a trace."""
        return self.graph.traces[0].modelled

    @property
    def _slowest_place(self) -> int:
        """Place of the slowest rank among the traces."""
        return next(i for i, trace in enumerate(self.graph.traces) if trace.rank == self.slowest.rank)

    @property
    def step_time(self) -> float:
        """Mean time of a step of the slowest rank. [s]"""
        return self.slowest.time

    @functools.cached_property
    def measured(self) -> float:
        """The same as measured. [s]"""
        return _slowest_mean(self.graph, self.graph.moments)

    @functools.cached_property
    def unchanged(self) -> float:
        """The same as a replay without changes gives it. [s]"""
        return _slowest_mean(self.graph, times_of(self.graph))

    @functools.cached_property
    def path(self) -> CriticalPath:
        """The critical path of the longest step of the slowest rank; of a prediction, where that rank's time goes."""
        if self.modelled:
            parts = {_ON_PATH[part]: time for part, time in self.slowest.parts.items()}
            return CriticalPath(nodes=(), time=parts, names={}, ranks={self.slowest.rank: self.slowest.time})
        times = self.times if self.replayed else times_of(self.graph)
        mine = [step for step in self.graph.steps if self.graph.traces[step.rank].rank == self.slowest.rank]
        longest = max(mine, key=lambda step: float(times[step.end] - times[step.begin]))
        return critical_path(self.graph, longest, times, self.given.lags(self.graph))

    @property
    def engine(self) -> str:
        """The inference engine whose steps these are, "" for none."""
        return engine_of(self.graph)

    @functools.cached_property
    def phases(self) -> tuple[PhaseShare, ...]:
        """Where the steps of an inference engine go by phase; none for traces of no engine."""
        return phases_of(self.graph, self.steps)

    @functools.cached_property
    def late(self) -> tuple[LateRank, ...]:
        """Ranks that keep others waiting in collectives."""
        if self.crowd is not None and not self.replayed:
            return self.crowd.late
        return late_ranks(self.graph, self.times)

    @functools.cached_property
    def kernels(self) -> tuple[KernelTotal, ...]:
        """Kernels of the slowest rank by name, those that take most first; of all its steps."""
        rank = self._slowest_place
        trace, first = self.graph.traces[rank], int(self.graph.first[rank])
        times = self.given.work[first : first + len(trace.works)]
        found: dict[str, list[float]] = defaultdict(list)
        for work in np.flatnonzero((trace.works.kind == KERNEL) & ~trace.works.collective).tolist():
            found[short_name(trace.names[trace.works.name[work]])].append(float(times[work]))
        totals = [KernelTotal(name=name, count=len(each), time=sum(each)) for name, each in found.items()]
        return tuple(sorted(totals, key=lambda one: -one.time))

    @functools.cached_property
    def communication(self) -> Mapping[str, tuple[float, float]]:
        """Time of collectives in a step of the slowest rank, and what of it no kernel covers, by name. [s], [s]

        Of a step that crossflow wrote as a prediction has them: one collective beside another counts twice, and exposed is what
        lengthens a pass.
        """
        rank = self._slowest_place
        graph, trace = self.graph, self.graph.traces[rank]
        mine = slice(int(graph.first[rank]), int(graph.first[rank + 1]))
        spans = np.stack([self.times[graph.starts[mine]], self.times[graph.ends[mine]]], axis=1)
        hiding = spans[(trace.works.kind == KERNEL) & ~trace.works.collective]
        computing = union(np.concatenate([hiding, modelled_host(trace), modelled_gaps(trace)]) if self.modelled else hiding)
        waits = modelled_waits(trace) if self.modelled else np.zeros(len(spans), dtype=bool)
        by_name: dict[str, list[int]] = defaultdict(list)
        for work, one in traced_collectives(graph.edges[rank]).items():
            if not waits[work]:
                by_name[one.op].append(work)
        steps, found = len(trace.windows), {}
        for name, works in by_name.items():
            own = union(spans[works])
            total = float((spans[works, 1] - spans[works, 0]).sum()) if self.modelled else length(own)
            found[name] = total / steps, (length(union([*own, *computing])) - length(computing)) / steps
        return found

    @functools.cached_property
    def advice(self) -> StepAdvice:
        """Why the step is slow as it was measured, and what mending it brings.

        Raises
        ------
        CrossflowError
            For a step that crossflow wrote, or with changes.
        """
        if self.modelled:
            raise CrossflowError(not_replayed(self.graph.traces[0]))
        if self.replayed:
            raise CrossflowError(f"advice is of the step as it was measured; leave out the changes ({self.changes})")
        return advise(self.graph, self.model)

    @property
    def notes(self) -> tuple[str, ...]:
        """What had to be assumed, as sentences."""
        return tuple(_notes(self))

    def to_dict(self, *, judged: bool = True) -> dict[str, Any]:
        """Plain data with the keys of a prediction, and one entry a rank; times in s.

        Parameters
        ----------
        judged : whether to say how good a replay is, which takes several of them.
        """
        slowest = self.slowest
        parts = slowest.parts
        return {
            "name": self.name,
            "step_time_s": slowest.time,
            "measured_step_time_s": self.measured,
            "replayed_step_time_s": self.unchanged,
            "what_if": self.what_if or None,
            "kernel_times": self.kernels_from,
            "on": self.on or None,
            "feasible": True,
            "reason": None,
            "extrapolated": self.modelled,
            "trust": "unknown" if self.modelled else "measured",
            "notes": list(self.notes),
            "breakdown_s": {
                "compute": parts["busy"], "memory_bound_compute": 0.0,
                "exposed_communication": parts["exposed_communication"] + parts["waiting"], "bubble": parts["idle"],
                "other": parts["host"] + parts["copies"],
            },
            "communication_s": {name: {"total": total, "exposed": exposed} for name, (total, exposed) in self.communication.items()},
            **({"engine": self.engine, "phases": [one.to_dict() for one in self.phases]} if self.phases else {}),
            "memory": None,
            "throughput": {"steps_per_s": 1.0 / slowest.time if slowest.time else None},
            "mfu": None,
            "energy_j": None,
            "power_w": None,
            "bound_by": [{"resource": name, "share": share} for name, share in self.bound_by],
            "architecture": {"device": self.graph.traces[0].device or None},
            "system": {"devices": self.world, "strategy": None},
            "ranks": [_rank(self, share) for share in self.ranks],
            **({} if self.crowd is None else {"alike": [_alike(one) for one in self.alike], "ranks_read": self.read}),
            "waited_for": [
                {"rank": one.rank, "collectives": one.collectives, "waited_s": one.time}
                for one in (self.late if self.crowd is None else self.late[:MANY])
            ],
            "critical_path": {"time_s": dict(self.path.time), "by_rank_s": {str(rank): time for rank, time in self.path.ranks.items()},
                              "longest": [{"name": name, "time_s": time} for name, time in [*self.path.names.items()][:LARGEST]]},
            "kernels": [vars(one) for one in self.kernels[:LARGEST]],
            **summary(self.model, LARGEST),
            "replay": accuracy(self.graph) if judged and not self.modelled else None,
            "inferred": {name: sum(edges.inferred[name] for edges in self.graph.edges) for name in self.graph.edges[0].inferred},
            "unexplained_s": float(sum(edges.unexplained.sum() for edges in self.graph.edges)),
            "provenance": provenance.record(traces=[trace.source for trace in self.graph.traces], what_if=self.changes),
        }  # fmt: skip

    @property
    def bound_by(self) -> list[tuple[str, float]]:
        """What the critical path of the step runs over, with shares, largest first."""
        whole = sum(self.path.time.values())
        return sorted(((kind, time / whole) for kind, time in self.path.time.items() if time > 0), key=lambda pair: -pair[1])


def not_replayed(trace: RankTrace) -> str:
    """Why a trace that crossflow wrote cannot be replayed, and what to do."""
    why = "its times are predicted, and no host launches anything in it, so that there is nothing to replay"
    return f"{trace.source} was written by crossflow: {why}; change the scenario that it is of: crossflow predict FILE --set PATH=VALUE"


def _slowest_mean(graph: StepGraph, times: Array) -> float:
    """Mean step of the slowest rank. [s]"""
    steps: dict[int, list[float]] = defaultdict(list)
    for step in graph.steps:
        steps[step.rank].append(float(times[step.end] - times[step.begin]))
    return max(float(np.mean(each)) for each in steps.values())


def _alike(one: AlikeShare) -> dict[str, Any]:
    return {
        "ranks": listed(one.numbers), "count": len(one.numbers), "stands_for_them": one.rank, "step_time_s": one.mean.time,
        "fastest_s": one.fastest, "slowest_s": one.slowest, **{f"{part}_s": time for part, time in one.mean.parts.items()},
    }  # fmt: skip


def _rank(report: TraceReport, share: RankShare) -> dict[str, Any]:
    trace = next(trace for trace in report.graph.traces if trace.rank == share.rank)
    span = device_span(trace)
    mine = [step.time for step in report.steps if step.rank == share.rank]
    return {
        "rank": share.rank, **({"name": trace.label} if trace.label else {}), "step_time_s": share.time,
        **{f"{part}_s": time for part, time in share.parts.items()}, "steps_s": mine,
        "device_span": {"time_s": span.time, "idle_s": span.idle, "compute_s": span.compute, "non_compute_s": span.other,
                        "exposed_communication_s": span.exposed_communication},
    }  # fmt: skip


def _notes(report: TraceReport) -> Iterable[str]:
    graph = report.graph
    for trace in graph.traces:
        yield from trace.notes
    yield from graph.notes if report.crowd is None else report.crowd.notes
    if report.modelled:
        yield MODELLED_NOTE.format(graph.traces[0].source)
        return
    worlds = {trace.world for trace in graph.traces}
    if max(worlds) > report.read and graph.collective.any():
        read = f"traces of {report.read} of {max(worlds)} ranks were read"
        yield f"{read}: what collectives wait for the other ranks counts as communication"
    yield from report.told
    if report.model is not None and (said := report.model.lookups):
        yield said
    if report.model is None and (device := graph.traces[0].device):
        yield f"no template is shipped of the device '{device}', so that its kernels are not held against a model; name one with --device"
    inferred = sum(edges.inferred[rule] for edges in graph.edges for rule in OF_DEVICE if not (edges.read and rule == "stream_wait"))
    if inferred:
        yield f"{inferred} waits of streams and of the host are inferred from the clock and the order of calls, not read"
    late = sum(float(edges.unexplained.sum()) for edges in graph.edges)
    if late > 0.001 * sum(step.measured for step in graph.steps):
        yield f"device work began {1e3 * late:.1f} ms late in all for reasons that no edge explains; a replay leaves these delays out"
    if report.overheads is not None:
        named = report.overheads.host or f"the host of {', '.join(report.overheads.sources)}"
        yield f"overheads of {named} stand in for those of the trace; they hold on that host only"
    if report.overheads is not None and (seen := report.overheads.seen(graph)) < 1:
        yield f"{seen:.0%} of the segments of the host are of operations that the overheads hold; the rest takes the mean of its kind"


def report_of(
    paths: str | Path | Iterable[str | Path], *, execution: Iterable[str | Path] = (), contention: bool = True, name: str = "",
    whole: int = WHOLE, jobs: int = 1, **changes: Any,
) -> TraceReport:  # fmt: skip
    """Read traces of a job, and explain them: `advice` of the report says why the step is slow.

    Parameters
    ----------
    paths : Kineto traces of its ranks: one or several files, archives or folders.
    execution : execution traces of the same ranks.
    contention : whether kernels that fill the device hold back others in a replay.
    whole : ranks up to which all are read whole; of more, some stand for the others, so that memory holds any number.
    jobs : processes that read the files of more.
    changes : as `report_on` takes them.
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    executions, called = [*execution], name or given[0].name.partition(".")[0]
    if count_traces(given, whole + 1) <= whole:
        traces = aligned(joined(read_traces(given), read_executions(executions)))
        return report_on(graph_of(traces, contention=contention), name=called, **changes)
    if executions:
        raise CrossflowError(f"--execution needs all ranks whole, and more than {whole} traces are given; give a larger --whole, or fewer")
    traces, crowd = read_crowd(given, jobs)
    many = None if crowd is None else crowd.many
    return report_on(graph_of(traces, contention=contention, many=many), name=called, crowd=crowd, **changes)


trace = report_of  # its public name


def report_on(
    graph: StepGraph, *, what_if: str = "", overheads: Overheads | None = None, name: str = "trace", kernels: str = "trace", on: str = "",
    device: str = "", reuse: Reuse | None = None, crowd: RankCrowd | None = None,
) -> TraceReport:  # fmt: skip
    """Explain a graph, with changes where there are any; the step is replayed with them.

    Parameters
    ----------
    what_if : changes, as `read_trace_changes` takes them; they come after all others.
    overheads : of a host, in place of the measured ones.
    kernels, on : where the times of kernels come from, and on which device, as `crossflow.evidence.replay.reach.replaced` takes them.
    device : template of the device of the trace, that of its name where empty.
    reuse : how often rows of embedding tables are hit; drawn evenly where absent.
    crowd : all ranks of the job, where those of the graph stand for them.
    """
    if graph.traces[0].modelled and (what_if or overheads or kernels != "trace" or on or device or reuse):
        raise CrossflowError(not_replayed(graph.traces[0]))
    base = taken(graph)
    host = base.host if overheads is None else overheads.host_times(graph)
    rules = read_trace_changes(what_if)
    batches = [rule for rule in rules if rule.word == BATCH]
    if batches and not len(graph.time):
        raise CrossflowError(f"what-if '{batches[0].written}': the trace has no work of a device, and the host stays at another batch")
    needed = f"--on {on}" if on else f"--kernels {kernels}" if kernels != "trace" else ""
    needed = needed or next((f"--what-if {rule.written}" for rule in batches), "")
    model, work, told = kernel_model(graph, device, needed or ("--reuse" if reuse else ""), reuse), base.work, tuple[str, ...]()
    if (on or kernels != "trace") and model is not None:
        work, told = replaced(model, kernels, on)
    grown = {rule.written: batch_change(model, rule, on) for rule in batches if model is not None}
    told = (*told, *(text for one in grown.values() for text in one.told))
    given = changed(graph, rules, replace(base, work=work, host=host), {written: one.ratio for written, one in grown.items()})
    times = times_of(graph, given) if what_if or overheads is not None or needed else graph.moments
    return TraceReport(
        name=name, graph=graph, times=times, given=given, what_if=what_if, overheads=overheads, model=model, kernels_from=kernels, on=on,
        told=told, crowd=crowd,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ how good a replay is


def accuracy(graph: StepGraph) -> dict[str, dict[str, float | None]]:
    """Error of a replay on its own trace: with the times of the trace, with mean overheads of other ranks or steps, and the baseline.

    The first is a reconstruction, the second a prediction of the host, the baseline the largest sum of kernel times of a stream [1]_,
    Sec. IV-B. Of each the mean and the largest absolute error over all steps and ranks; None where there is one step of one rank.
    """
    several = len(graph.steps) > 1
    return {
        "measured_times": _figures(_errors(graph.steps, times_of(graph))),
        "mean_overheads": _figures(_held_out(graph)) if several else {"mean": None, "largest": None},
        "largest_stream_sum": _figures(_baseline(graph)),
    }


def _figures(errors: Sequence[float]) -> dict[str, float | None]:
    sizes = np.abs(errors)
    return {"mean": float(sizes.mean()), "largest": float(sizes.max())} if len(errors) else {"mean": None, "largest": None}


def _errors(steps: Iterable[GraphStep], times: Array) -> list[float]:
    return [float((times[step.end] - times[step.begin]) / step.measured - 1.0) for step in steps if step.measured > 0]


FOLDS = 8  # parts of the ranks, or of the steps of the only rank, that are held out one after the other


def _held_out(graph: StepGraph) -> list[float]:
    """Errors of every step with mean overheads of the other ranks, or of the other steps of the only rank; a few at once where many."""
    base, target = taken(graph), graph.target
    owner = owners(graph) if len(graph.traces) > 1 else _step_of(graph)
    units = max(len(graph.traces), 1) if len(graph.traces) > 1 else len(graph.steps)
    own = [step.rank if len(graph.traces) > 1 else place for place, step in enumerate(graph.steps)]
    found = []
    for fold in range(min(FOLDS, units)):
        held = (owner >= 0) & (owner % FOLDS == fold)
        overheads = overheads_of([graph], skip=lambda _, held=held: held[target])  # type: ignore[misc]
        mine = [step for step, unit in zip(graph.steps, own, strict=True) if unit % FOLDS == fold]
        found += _errors(mine, times_of(graph, replace(base, host=overheads.host_times(graph))))
    return found


def _step_of(graph: StepGraph) -> Index:
    """The step of the only rank that every node lies in, -1 for none."""
    begins, ends = (graph.moments[[getattr(step, side) for step in graph.steps]] for side in ("begin", "end"))
    place = np.searchsorted(begins, graph.moments, side="right") - 1
    return np.where((place >= 0) & (graph.moments <= ends[place]), place, -1)


def _baseline(graph: StepGraph) -> list[float]:
    found = []
    for rank, edges in enumerate(graph.edges):
        steps = [step for step in graph.steps if step.rank == rank]
        measured = sum(step.measured for step in steps)
        if measured > 0:
            found.append(_largest_sum(edges) / measured - 1.0)
    return found


def _largest_sum(edges: RankEdges) -> float:
    """Largest sum of kernel times of a stream within the steps. [s]"""
    trace = edges.trace
    inside = np.zeros(len(trace.works), dtype=bool)
    for window in trace.windows:
        inside |= (trace.works.start >= window.start) & (trace.works.start < window.end)
    times = (trace.works.end - trace.works.start)[inside]
    return float(np.bincount(trace.works.stream[inside], times).max()) if len(times) else 0.0
