"""Ills of inference engines, and where the steps of each phase go: what the host does between steps, and rows that pad a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.evidence.replay.breakdown import PARTS, RankShare
from crossflow.evidence.replay.engines import SCOPES, EnginePhase, EngineStep, engine_step
from crossflow.evidence.replay.graph import StepGraph
from crossflow.evidence.replay.ills import Ill, TracedSteps, shorter
from crossflow.evidence.replay.kineto import KERNEL, RankTrace, Window

GRAPHS = ("cudaGraphLaunch", "hipGraphLaunch")  # calls that launch a graph
ASSUMED = "by the sizes at which the engine captures graphs by default"
MOST_SCOPES = 6  # parts of a step that are listed


def engine_steps(trace: RankTrace) -> list[tuple[Window, EngineStep]]:
    """Steps of an engine in a trace, none of a trace of another kind."""
    told = [(window, engine_step(window.name)) for window in trace.windows]
    return [(window, step) for window, step in told if step is not None]


def engine_of(graph: StepGraph) -> str:
    """The engine whose steps the traces hold, "" for none."""
    steps = engine_steps(graph.traces[0])
    return steps[0][1].engine if steps else ""


def marked_ends(trace: RankTrace) -> Array:
    """When the annotation of every step of an engine ends, shape (steps,). [s]"""
    begins = np.array([window.start for window, _ in engine_steps(trace)])
    named = np.array([*(engine_step(name) is not None for name in trace.names), False])[trace.marks.name]
    starts, ends = trace.marks.start[named], trace.marks.end[named]
    return np.asarray([float(ends[starts == begin].max()) for begin in begins.tolist()])


def between_steps(trace: RankTrace) -> tuple[Index, Array]:
    """Threads and spans of the host between the steps of an engine, shapes (spans,) and (spans, 2). [s]"""
    steps = engine_steps(trace)
    if len(steps) < 2:
        return np.zeros(0, dtype=np.intp), np.zeros((0, 2))
    ends, begins = marked_ends(trace)[:-1], np.array([window.start for window, _ in steps[1:]])
    threads = np.array([window.thread for window, _ in steps[:-1]], dtype=np.intp)
    kept = begins > ends
    return threads[kept], np.stack([ends, begins], axis=1)[kept]


# -------------------------------------------------------------------------------------------- padding


def padding(steps: TracedSteps) -> Iterator[Ill]:
    """Rows that fill a batch up to the size of its graph; mended they take nothing.

    What a row costs is the median slope of the time of kernels over the sizes of graphs in the trace. With one size there is none.
    """
    cut, padded, rows, worst = np.zeros(len(steps.graph.time)), 0, 0, 0
    for rank, trace in enumerate(steps.graph.traces):
        graphed = [
            (window, step) for window, step in engine_steps(trace) if _graphs(trace, window) and step.phase == "decode" and step.rows
        ]
        works = [_launched(steps, rank, window) for window, _ in graphed]
        slope = _slope(steps, [(step.padded, mine) for (_, step), mine in zip(graphed, works, strict=True)])
        for (_, step), mine in zip(graphed, works, strict=True):
            spent = float(steps.graph.time[mine].sum())
            if spent > 0:
                cut[mine] += steps.graph.time[mine] * min(slope * (step.padded - step.rows) / spent, 1.0)
            padded, rows, worst = padded + step.padded - step.rows, rows + step.padded, max(worst, step.padded - step.rows)
    lost = np.flatnonzero(cut > 0)
    if len(lost):
        said = f"{padded / rows:.0%} of the rows of graphs, at most {worst} of a step, {ASSUMED}"
        proof = steps.proof("padded rows", lost, cut[lost], said)
        title = "decode steps are padded to the sizes of captured graphs"
        yield Ill(kind="padding", title=title, time=proof.time / steps.count(), mend=shorter(cut), proofs=(proof,), trust="interpolated")


def _slope(steps: TracedSteps, graphs: Sequence[tuple[int, Index]]) -> float:
    """Time of kernels that a further row of a graph takes, 0 where it cannot be told. [s]"""
    by_size: dict[int, list[float]] = defaultdict(list)
    for size, works in graphs:
        by_size[size].append(float(steps.graph.time[works].sum()))
    sizes = np.array([*by_size], dtype=float)
    times = np.array([float(np.median(each)) for each in by_size.values()])
    first, second = np.triu_indices(len(sizes), 1)
    return max(float(np.median((times[second] - times[first]) / (sizes[second] - sizes[first]))), 0.0) if len(first) else 0.0


def _launched(steps: TracedSteps, rank: int, window: Window) -> Index:
    """Kernels, collectives apart, that were launched in a step, in the graph."""
    edges, mine = steps.graph.edges[rank], steps.works(rank)
    called = np.concatenate([edges.points.start, [-np.inf]])[edges.launched]
    works = edges.trace.works
    inside = (called >= window.start) & (called < window.end) & (works.kind == KERNEL) & ~works.collective
    return np.asarray(np.flatnonzero(inside) + mine.start)


def _graphs(trace: RankTrace, window: Window) -> bool:
    """Whether a graph is launched in a step."""
    named = np.array([*(name in GRAPHS for name in trace.names), False])[trace.calls.name]
    starts = trace.calls.start[named]
    return bool(((starts >= window.start) & (starts < window.end)).any())


ENGINE_ILLS: tuple[Callable[[TracedSteps], Iterator[Ill]], ...] = (padding,)


# -------------------------------------------------------------------------------------------- phases


@dataclass(frozen=True, kw_only=True, eq=False)
class PhaseShare:
    """Where the steps of an engine go that write tokens, that read prompts, or that do both.

    Attributes
    ----------
    phase : which of these.
    steps : how many, of all ranks. [1]
    time : of one, from its begin to that of the next. [s]
    requests, rows : of one; rows are nan where annotations do not say them. [1]
    graphs : share of the steps that launch a graph of CUDA. [1]
    padded : share of the rows of graphs that pad them, by the default sizes; nan without graphs. [1]
    between : of the host between one and the next. [s]
    parts : of the device, as those of `RankShare`. [s]
    scopes : of the host by annotated part, the longest first. [s]
    """

    phase: EnginePhase
    steps: int
    time: float
    requests: float
    rows: float
    graphs: float
    padded: float
    between: float
    parts: Mapping[str, float]
    scopes: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, times in s."""
        return {
            "phase": self.phase, "steps": self.steps, "step_time_s": self.time, "requests": self.requests, "rows": _told(self.rows),
            "graph_share": self.graphs, "padded_share": _told(self.padded), "between_steps_s": self.between,
            **{f"{part}_s": time for part, time in self.parts.items()}, "host_scopes_s": dict(self.scopes),
        }  # fmt: skip


def _told(value: float) -> float | None:
    return None if np.isnan(value) else value


@dataclass(frozen=True, kw_only=True, eq=False)
class _PhaseStep:
    """A step with its share, what a graph pads it with, the host behind it and its annotated parts. [s]"""

    step: EngineStep
    share: RankShare
    graph: bool
    between: float
    scopes: Mapping[str, float]


def phases_of(graph: StepGraph, shares: Sequence[RankShare]) -> tuple[PhaseShare, ...]:
    """Where the steps of each phase go; none for traces of no engine.

    Parameters
    ----------
    shares : of all steps of all ranks in the graph, in its order.
    """
    found: dict[str, list[_PhaseStep]] = defaultdict(list)
    left = iter(shares)
    for trace in graph.traces:
        mine = [next(left) for _ in trace.windows]
        if not engine_steps(trace):
            continue
        for (window, step), share, end in zip(engine_steps(trace), mine, marked_ends(trace).tolist(), strict=True):
            one = _PhaseStep(
                step=step, share=share, graph=_graphs(trace, window), between=max(window.end - end, 0.0), scopes=_scopes(trace, window)
            )
            found[step.phase].append(one)
    return tuple(_phase(phase, found[phase]) for phase in get_args(EnginePhase) if phase in found)


def _phase(phase: EnginePhase, steps: Sequence[_PhaseStep]) -> PhaseShare:
    rows = [one.step.rows for one in steps if one.step.rows]
    graphed = [one.step for one in steps if one.graph and one.step.rows and phase == "decode"]
    whole = sum(one.padded for one in graphed)
    scopes: dict[str, float] = defaultdict(float)
    for one in steps:
        for name, time in one.scopes.items():
            scopes[name] += time / len(steps)
    listed = sorted(scopes.items(), key=lambda item: -item[1])[:MOST_SCOPES]
    return PhaseShare(
        phase=phase, steps=len(steps), time=float(np.mean([one.share.time for one in steps])),
        requests=float(np.mean([one.step.requests for one in steps])), rows=float(np.mean(rows)) if rows else float("nan"),
        graphs=float(np.mean([one.graph for one in steps])),
        padded=sum(one.padded - one.rows for one in graphed) / whole if whole else float("nan"),
        between=float(np.mean([one.between for one in steps])),
        parts={part: float(np.mean([one.share.parts[part] for one in steps])) for part in PARTS}, scopes=dict(listed),
    )  # fmt: skip


def _scopes(trace: RankTrace, window: Window) -> dict[str, float]:
    """Time of the annotated parts of a step by name. [s]"""
    marks, found = trace.marks, dict[str, float]()
    mine = np.flatnonzero((marks.start >= window.start) & (marks.start < window.end))
    for mark in mine.tolist():
        name = trace.names[marks.name[mark]]
        if name.startswith(SCOPES):
            found[name] = found.get(name, 0.0) + float(marks.end[mark] - marks.start[mark])
    return found
