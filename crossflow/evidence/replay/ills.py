"""What may be wrong with a traced step: an ill, with what it takes now and the change of the step's times that mends it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.evidence.replay.breakdown import RankShare, last_to_come, mean_shares, shares_of, union
from crossflow.evidence.replay.critical import owners
from crossflow.evidence.replay.graph import GraphTimes, StepGraph, taken, times_of
from crossflow.evidence.replay.kineto import KERNEL, Window
from crossflow.evidence.replay.reach import KernelModel

Mend = Callable[[GraphTimes], GraphTimes]  # what everything takes once an ill is mended, from what it takes before


@dataclass(frozen=True, kw_only=True)
class IllProof:
    """What shows an ill.

    Attributes
    ----------
    name : of kernels, operations, calls or ranks.
    count : how many of them in all steps of all ranks. [1]
    time : that they take, or lose, in all. [s]
    rank : of the longest of them.
    at : when that begins, from the begin of its rank's first step. [s]
    said : more of it, "" for nothing.
    """

    name: str
    count: int
    time: float
    rank: int
    at: float
    said: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ill:
    """Something that makes a step slow.

    Attributes
    ----------
    kind : in `crossflow.evidence.replay.advice.CURES`.
    title : what it is, in words.
    time : what it takes of a step now, of the mean rank. [s]
    mend : the change that mends it.
    proofs : what shows it, the longest first.
    trust : how far the times of the mended step can be trusted: measured where all of them are of the trace.
    """

    kind: str
    title: str
    time: float
    mend: Mend
    proofs: tuple[IllProof, ...]
    trust: str = "measured"


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedSteps:
    """The steps of a trace as their replay gives them, in which ills are sought.

    Attributes
    ----------
    graph : what waits for what.
    model : of its kernels, None where no template of its device is shipped.
    """

    graph: StepGraph
    model: KernelModel | None

    @functools.cached_property
    def given(self) -> GraphTimes:
        """What everything takes as the trace has it."""
        return taken(self.graph)

    @functools.cached_property
    def times(self) -> Array:
        """When everything happens in a replay without changes, shape (nodes,). [s]"""
        return times_of(self.graph)

    @functools.cached_property
    def step_time(self) -> float:
        """Time of a step in it. [s]"""
        return self.step(self.times)

    def step(self, times: Array) -> float:
        """Time of a step of the slowest rank, from the begin of its first step until host and device have done what its steps launched.

        A host that waits for nothing ends its steps before the device has done them: what is only put off is no gain. [s]
        """
        found = []
        for rank, (first, last) in enumerate(self._ends):
            begin, mine = float(times[first]), self.inside[self.works(rank)]
            done = times[self.graph.ends[self.works(rank)][mine]].max(initial=float(times[last]))
            found.append((float(done) - begin) / len(self.windows(rank)))
        return max(found)

    def replayed(self, *mends: Mend) -> float:
        """Time of a step with some changes, one after the other. [s]"""
        return self.step(times_of(self.graph, functools.reduce(lambda given, mend: mend(given), mends, self.given)))

    @functools.cached_property
    def _ends(self) -> list[tuple[int, int]]:
        """Nodes at which the first step of every rank begins, and its last one ends."""
        by_rank = [[step for step in self.graph.steps if step.rank == rank] for rank in range(len(self.graph.traces))]
        return [(mine[0].begin, mine[-1].end) for mine in by_rank]

    def begin(self, rank: int) -> float:
        """When the first step of a rank begins. [s]"""
        return float(self.times[self._ends[rank][0]])

    def windows(self, rank: int) -> Sequence[Window]:
        """Steps of a rank."""
        return self.graph.traces[rank].windows

    def works(self, rank: int) -> slice:
        """Works of a rank."""
        return slice(int(self.graph.first[rank]), int(self.graph.first[rank + 1]))

    def count(self) -> int:
        """Steps of all ranks. [1]"""
        return sum(len(trace.windows) for trace in self.graph.traces)

    @functools.cached_property
    def inside(self) -> Mask:
        """Whether a work was launched in a step, shape (works,)."""
        found = np.zeros(len(self.graph.time), dtype=bool)
        for rank, edges in enumerate(self.graph.edges):
            called = np.concatenate([edges.points.start, [-np.inf]])[edges.launched]
            found[self.works(rank)] = self.within(rank, called)
        return found

    def within(self, rank: int, moments: Array) -> Mask:
        """Whether moments of the trace lie in steps of a rank, from the first to the last."""
        windows = self.windows(rank)
        return np.asarray((moments >= windows[0].start) & (moments <= windows[-1].end))

    @functools.cached_property
    def owner(self) -> Index:
        """Place of the rank of every node."""
        return owners(self.graph)

    @functools.cached_property
    def kinds(self) -> Index:
        """Kind of every work."""
        return np.concatenate([trace.works.kind for trace in self.graph.traces])

    @functools.cached_property
    def names(self) -> Index:
        """Name of every work, in the names of its rank."""
        return np.concatenate([trace.works.name for trace in self.graph.traces])

    @functools.cached_property
    def shares(self) -> tuple[RankShare, ...]:
        """Where the mean step of every rank goes."""
        return mean_shares(shares_of(self.graph, self.times))

    @functools.cached_property
    def spans(self) -> Array:
        """Start and end of every work, of one that meets from when its last rank came, shape (works, 2). [s]"""
        return np.stack([last_to_come(self.graph, self.times), self.times[self.graph.ends]], axis=1)

    def hideable(self, chosen: Mask) -> Array:
        """Time of chosen works beside which no kernel runs and which kernels could hide that run beside none of them, shape (works,). [s]

        Where there is less such computing than exposed time, each exposed work is hidden by its share.
        """
        found = np.zeros(len(self.graph.time))
        for rank in range(len(self.graph.traces)):
            mine = self.works(rank)
            place = np.flatnonzero(chosen[mine] & self.inside[mine]) + mine.start
            computing = (self.kinds[mine] == KERNEL) & ~self.graph.collective[mine] & self.inside[mine]
            kernels, moved = self.spans[mine][computing], self.spans[place]
            exposed = uncovered(moved, union(kernels)) * _apart(moved)
            free = float(uncovered(np.reshape(union(kernels), (-1, 2)), union(moved)).sum())
            whole = float(exposed.sum())
            found[place] = exposed * (min(1.0, free / whole) if whole > 0 else 0.0)
        return found

    def proof(self, name: str, works: Index, times: Array, said: str = "") -> IllProof:
        """What shows an ill, by works and what each takes or loses. [s]"""
        worst = int(works[int(np.argmax(times))])
        rank = self.graph.rank_of(worst)
        at = float(self.times[self.graph.starts[worst]]) - self.begin(rank)
        return IllProof(name=name, count=len(works), time=float(times.sum()), rank=self.graph.traces[rank].rank, at=at, said=said)


def longest(proofs: Iterable[IllProof]) -> tuple[IllProof, ...]:
    """Proofs, the longest first."""
    return tuple(sorted(proofs, key=lambda one: -one.time))


def uncovered(spans: Array, cover: Sequence[tuple[float, float]]) -> Array:
    """Time of every span, of shape (spans, 2), that joined spans do not cover, shape (spans,). [s]

    >>> uncovered(np.array([[0.0, 4.0], [5.0, 6.0]]), [(1.0, 2.0), (3.0, 5.5)])
    array([2. , 0.5])
    """
    whole = np.asarray(spans[:, 1] - spans[:, 0])
    if not len(cover):
        return whole
    table = np.asarray(cover)
    done = np.cumsum(table[:, 1] - table[:, 0])
    moments = table.ravel()
    reached = np.stack([np.concatenate([[0.0], done[:-1]]), done], axis=1).ravel()
    covered = np.interp(spans[:, 1], moments, reached) - np.interp(spans[:, 0], moments, reached)
    return np.asarray(np.maximum(whole - covered, 0.0))


def _apart(spans: Array) -> Array:
    """Share of every span, of shape (spans, 2) in the order of starts, that none before it covers, shape (spans,). [1]"""
    if not len(spans):
        return np.ones(0)
    order = np.argsort(spans[:, 0], kind="stable")
    reached = np.concatenate([[-np.inf], np.maximum.accumulate(spans[order, 1])[:-1]])
    whole = spans[order, 1] - spans[order, 0]
    own = np.maximum(spans[order, 1] - np.maximum(spans[order, 0], reached), 0.0)
    found = np.ones(len(spans))
    found[order] = np.divide(own, whole, out=np.ones(len(spans)), where=whole > 0)
    return found


def shorter(amounts: Array) -> Mend:
    """Works take so much less, shape (works,). [s]"""
    return lambda given: replace(given, work=np.maximum(given.work - amounts, 0.0))
