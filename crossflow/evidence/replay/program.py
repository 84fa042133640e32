"""A step of a trace as a program: the host, kernels on their streams and collectives, with the times that were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crossflow.base.arrays import rows_of
from crossflow.base.errors import CrossflowError
from crossflow.evidence.replay.collectives import TracedCollective, process_group, traced_collectives
from crossflow.evidence.replay.edges import OWN, HostPoints, RankEdges
from crossflow.evidence.replay.graph import StepGraph
from crossflow.evidence.replay.kineto import Window, short_name
from crossflow.program.builder import ProgramBuilder
from crossflow.program.collectives import COLLECTIVES, PRICED
from crossflow.program.groups import DeviceGroup
from crossflow.program.kernels import Timed
from crossflow.program.program import HOST, Program

RANKS = "ranks"  # the axis of all ranks


def traced_program(graph: StepGraph, name: str, *, modelled: bool = False) -> Program:
    """A program of the step of median length.

    Its operations take the measured times: segments of the host on its stream, works of the device on streams of their names, and
    collectives, which start when the last of the ranks that were read has come. What a work waits for is what `edges_of` found.

    Parameters
    ----------
    modelled : whether the network of the system gives the time of collectives whose bytes the trace says, in place of the trace.

    Raises
    ------
    CrossflowError
        Where ranks have no step in common.
    """
    several = len(graph.traces) > 1
    world = len(graph.traces) if several else max(graph.traces[0].world, 1)
    windows = _windows(graph)
    found = [traced_collectives(edges) for edges in graph.edges]
    groups = {} if several else _groups(graph, found[0], world)
    builder = ProgramBuilder(
        name=name, dtype="fp32", axes={RANKS: world} if world > 1 else {}, groups=groups, stages=RANKS if several else "",
    )  # fmt: skip
    meetings = {work: i for i, meeting in enumerate(graph.meetings) for work in meeting.works}
    first = min(window.start for window in windows)
    for rank, (edges, window) in enumerate(zip(graph.edges, windows, strict=True)):
        writer = _Writer(
            builder=builder, graph=graph, rank=rank, edges=edges, window=window, collectives=found[rank], groups=groups, world=world,
            meetings=meetings, modelled=modelled,
        )  # fmt: skip
        writer.write(window.start - first)
    training = any("backward" in trace.names[i].lower() for trace in graph.traces for i in np.unique(trace.ops.name).tolist())
    return builder.build(samples=world, training=training)


def _windows(graph: StepGraph) -> list[Window]:
    """The step of every rank that has the median length on the slowest of them."""
    count = min(len(trace.windows) for trace in graph.traces)
    if not count:
        raise CrossflowError("the ranks have no step in common")
    lengths = [max(trace.windows[i].time for trace in graph.traces) for i in range(count)]
    middle = sorted(range(count), key=lengths.__getitem__)[(count - 1) // 2]
    return [trace.windows[middle] for trace in graph.traces]


def _groups(graph: StepGraph, found: Mapping[int, TracedCollective], world: int) -> dict[str, DeviceGroup]:
    """Process groups of the only rank that are not the whole world, by name."""
    args = graph.traces[0].works.args
    named: dict[str, DeviceGroup] = {}
    for work in found:
        name, ranks = process_group(args[work])
        if 1 < len(ranks) < world and (group := DeviceGroup.of(ranks, world)) is not None:
            named[f"group {name}"] = group
    return named


@dataclass(kw_only=True)
class _Writer:
    """Writes the step of one rank."""

    builder: ProgramBuilder
    graph: StepGraph
    rank: int
    edges: RankEdges
    window: Window
    collectives: Mapping[int, TracedCollective]
    groups: Mapping[str, DeviceGroup]
    world: int
    meetings: Mapping[int, int]
    modelled: bool
    done: dict[int, int] = field(default_factory=dict)  # operation of every work
    before: set[int] = field(default_factory=set)  # what the host waits for before it goes on

    def write(self, begin: float) -> None:
        """All of it; `begin` is how much later than the first rank its step began. [s]"""
        points = self.edges.points
        self._host("start of the step", begin)
        at = self.window.start
        inside = np.flatnonzero((points.start >= self.window.start) & (points.start <= self.window.end))
        for i, start, end, name in rows_of(inside, points.start[inside], points.end[inside], points.name[inside]):
            self._host(_named(points, i), max(start - at, 0.0))
            begun = set(self.before)
            for work in points.works[i]:
                self.done[work] = self._launch(work, begun)
            waits = points.waits[i]
            self._host(points.names[name], min(end - start, OWN) if waits else end - start)
            self.before |= {self.done[work] for work in waits if work in self.done}
            at = max(at, end)
        self._host("end of the step", max(self.window.end - at, 0.0))

    def _host(self, name: str, time: float) -> None:
        """A segment of the host."""
        if time > 0:
            self.before = {self.builder.compute(name, Timed(name=name, time=time), after=self.before, rank=self.rank, stream=HOST)}

    def _launch(self, work: int, begun: Iterable[int]) -> int:
        """A work of the device behind its launch."""
        works, edges = self.edges.trace.works, self.edges
        stream = self.edges.trace.streams[int(works.stream[work])]
        launch = float(edges.launch[edges.launch_class[work]])
        issued = self.builder.compute(
            "launch", Timed(name="launch", time=launch), after=begun, rank=self.rank, stream=f"launches of {stream}"
        )
        after = {issued, *(self.done[other] for other in self._waits(work) if other in self.done)}
        name = short_name(edges.trace.names[int(works.name[work])])
        time = float(self.graph.time[int(self.graph.first[self.rank]) + work])
        if work not in self.collectives:
            gap = float(edges.gap[works.kind[work]])
            return self.builder.compute(name, Timed(name=name, time=time + gap), after=after, rank=self.rank, stream=f"stream {stream}")
        return self._send(self.collectives[work], work, time, after, f"stream {stream}")

    def _waits(self, work: int) -> Sequence[int]:
        held = int(self.edges.held[work])
        return [*self.edges.waits[work], *([held] if held >= 0 else [])]

    def _send(self, one: TracedCollective, work: int, time: float, after: Iterable[int], stream: str) -> int:
        op: Any = PRICED.get(one.op, one.op)
        known = op in COLLECTIVES and math.isfinite(one.size)
        name, _ = process_group(self.edges.trace.works.args[work])
        among = [group] if (group := f"group {name}") in self.groups else [RANKS]
        fields: dict[str, Any] = {"name": one.op, "after": after, "rank": self.rank, "stream": stream}
        meeting = self.meetings.get(int(self.graph.first[self.rank]) + work)
        if meeting is not None:
            fields["meets"] = f"{one.op} {meeting}"
        elif self.world == 1 or len(self.graph.traces) > 1:  # a collective of one rank, or one that met no other
            return self.builder.compute(one.op, Timed(name=one.op, time=time), after=after, rank=self.rank, stream=stream)
        size = one.size if known else 0.0
        taken = None if self.modelled and known else time
        return self.builder.send(op if op in COLLECTIVES else "all_to_all", size, among, time=taken, **fields)


def _named(points: HostPoints, point: int) -> str:
    """What a segment of the host before a point is mostly."""
    return max(points.pieces.of(point), key=lambda piece: piece[2], default=("", "host", 0.0))[1]
