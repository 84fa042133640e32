"""A long run by events: every failure, repair, spare and restart by itself, from a seed.

It asks for what `renewal` asks for, of one design point, and has neither of its two approximations about spares: each node or domain is
repaired by itself, and failures strike only while the job runs or restarts. On the rest they agree, and a test says so.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.base.arrays import Array, points
from crossflow.engine.lasting.jitter import drawn, slowest
from crossflow.engine.lasting.record import KINDS_OF_TIME, PLANNED, FailureCause, Jitter, LongRun
from crossflow.engine.lasting.sparing import speed_without

MOST_EVENTS = 2_000_000  # interruptions of one draw, beyond which a run is said never to end


@dataclass(frozen=True, kw_only=True)
class RunSpan:
    """What a job does from one moment to another."""

    begin: float  # [s]
    end: float  # [s]
    kind: str  # of `KINDS_OF_TIME`; computing that is kept, with its saves, is ``useful``
    cause: str = ""  # what interrupted it, where something did
    speed: float = 1.0  # of its work, over that of a whole job which nothing slows. [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunHistory:
    """One draw of a long run.

    Attributes
    ----------
    duration : from its begin to its end; infinite where it does not end. [s]
    times : by kind. [s]
    interruptions : by cause. [1]
    spans : what happened when, in order; none where they were not asked for.
    phases : of a run of several phases each by itself, from its own begin, in order; none of another run.
    """

    duration: float
    times: Mapping[str, float]
    interruptions: Mapping[str, int]
    spans: tuple[RunSpan, ...] = ()
    phases: Mapping[str, RunHistory] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """Share of the time in which work is done that counts. [1]"""
        return self.times["useful"] / self.duration


class _Slowness:
    """Periods in which something slows a job, as they come and go; it is asked for moments in order."""

    def __init__(self, run: LongRun, rng: np.random.Generator) -> None:
        self.rng, self.under_way = rng, list[tuple[float, float]]()  # ends [s], and what they make of the speed. [1]
        self.causes = [(float(np.ravel(one.rate)[0]), float(np.ravel(one.length)[0]), 1.0 / one.slowdown) for one in run.slow]
        for rate, length, speed in self.causes:
            for _ in range(rng.poisson(rate * length)):
                self._begin(0.0, length, speed)
        self.coming = [self._next(0.0, rate) for rate, *_ in self.causes]

    def _next(self, now: float, rate: float) -> float:
        return now + (float(self.rng.exponential(1.0 / rate)) if rate else np.inf)

    def _begin(self, now: float, length: float, speed: float) -> None:
        heapq.heappush(self.under_way, (now + float(self.rng.exponential(length)), speed))

    def at(self, now: float) -> tuple[float, float]:
        """Speed at a moment [1], and until when it lasts at least. [s]"""
        for i, (rate, length, speed) in enumerate(self.causes):
            while self.coming[i] <= now:
                self._begin(self.coming[i], length, speed)
                self.coming[i] = self._next(self.coming[i], rate)
        while self.under_way and self.under_way[0][0] <= now:
            heapq.heappop(self.under_way)
        ends = self.under_way[0][0] if self.under_way else np.inf
        return min((speed for _, speed in self.under_way), default=1.0), min([ends, *self.coming])


@dataclass
class _Job:
    """How a run stands at one moment; lives inside `history`."""

    run: Mapping[str, float]
    rng: np.random.Generator
    keep: bool
    rates: Array  # of the causes in order. [1/s]
    slowness: _Slowness
    jitter: Jitter | None = None
    now: float = 0.0
    repairs: list[tuple[float, float]] = field(default_factory=list)  # when nodes are back [s], and how many. [1]
    away: float = 0.0  # nodes in repair. [1]
    times: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS_OF_TIME, 0.0))
    spans: list[RunSpan] = field(default_factory=list)

    def until_failure(self) -> float:
        """Time to the next failure of any cause. [s]"""
        failing = self.rates.sum()
        return self.rng.exponential(1.0 / failing) if failing else np.inf

    def cause(self) -> int:
        """Number of the cause of a failure."""
        return int(np.searchsorted(np.cumsum(self.rates), self.rng.random() * self.rates.sum(), side="right"))

    def spend(self, kind: str, time: float, cause: str = "", speed: float = 1.0) -> None:
        """Let time pass."""
        if time > 0:
            self.times[kind] += time
            self.mark(kind, self.now, self.now + time, cause, speed)
            self.now += time

    def mark(self, kind: str, begin: float, end: float, cause: str = "", speed: float = 1.0) -> None:
        if self.keep and end > begin:
            self.spans.append(RunSpan(begin=begin, end=end, kind=kind, cause=cause, speed=speed))

    def mended(self) -> None:
        while self.repairs and self.repairs[0][0] <= self.now:
            self.away -= heapq.heappop(self.repairs)[1]

    def taken(self, cause: FailureCause) -> float:
        """Nodes that a strike takes out: those of one of the job's domains, each of which is as likely. [1]"""
        sizes = cause.taken(points(self.run["nodes"]))
        struck = self.rng.random() if len(sizes) > 1 else 0.0
        return float(sizes[0 if struck < sizes[0][0][0] else 1][1][0])

    @property
    def speed(self) -> float:
        """Speed with the replicas that have all their nodes, over that with all replicas. [1]"""
        lacking = math.ceil(max(self.away - self.run["spares"], 0.0) / self.run["replica"])
        return float(speed_without(points(float(lacking)), points(self.run["nodes"] / self.run["replica"]), points(self.run["idle"]))[0])


def _computed(run: Mapping[str, float], running: float) -> float:
    """Time of computing in so much time of running, saves taken out. [s]"""
    whole, rest = divmod(running, run["interval"] + run["stall"])
    return float(whole * run["interval"] + min(rest, run["interval"]))


def _running(run: Mapping[str, float], computed: float) -> float:
    """Time of running in which so much is computed. [s]"""
    whole, rest = divmod(computed, run["interval"])
    return float(whole * (run["interval"] + run["stall"]) + rest)


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part of a stretch of running. [s]"""

    begin: float
    end: float
    replicas: float  # speed with those that are there, over that with all. [1]
    pace: float  # of these, over what it is where nothing slows them. [1]

    @property
    def speed(self) -> float:
        """Work that it does, over that of a whole job which nothing slows. [1]"""
        return self.replicas * self.pace


def _pieces(job: _Job, running: float, *, elastic: bool, left: float) -> Iterator[_Piece]:
    """Parts of a stretch of running, between which repaired nodes join, and something slows the job or does so no longer.

    Steps that vary are drawn in each part, of no more steps than do what is `left` in the mean; a repair or a slow device cuts a step where
    it comes.
    """
    begin, start = 0.0, job.now
    while True:
        pace, changes = job.slowness.at(job.now)
        if elastic:
            job.mended()
            changes = min([changes, *(when for when, _ in job.repairs[:1])])
        ends, then = min(changes - start, running), changes
        if job.jitter is not None and ends > begin:
            longest = _running(job.run, left) * float(slowest(job.jitter, 1.0 / pace)[0])
            ends = min(ends, begin + max(longest, float(job.jitter.step[0])))
            then = min(changes, start + ends)
            pace = 1.0 / drawn(job.jitter, 1.0 / pace, ends - begin, job.slowness.rng)
        yield _Piece(begin=begin, end=ends, replicas=job.speed if elastic else 1.0, pace=pace)
        if ends >= running:
            return
        begin, job.now = ends, then


def _stretch(job: _Job, running: float, *, kept_all: bool, elastic: bool, left: float, cause: str) -> float:
    """Run for some time, then stop; the work that is kept, at most what is `left`. [s]"""
    run, start = job.run, job.now
    cycle = run["interval"] + run["stall"]
    whole = 0.0 if kept_all else np.floor(max(running - run["commit"], 0.0) / cycle)
    readable = running if kept_all else whole * cycle  # running time whose work is kept
    pieces, kept, ends = _kept(run, _pieces(job, running, elastic=elastic, left=left), readable, left)
    if ends is not None:  # with all that it did
        readable = running = ends
    for one in pieces:
        did = _computed(run, min(one.end, running)) - _computed(run, min(one.begin, running))
        held = max(_computed(run, min(one.end, readable)) - _computed(run, min(one.begin, readable)), 0.0)
        job.times["useful"] += held * one.speed
        job.times["shrunk"] += held * (1.0 - one.replicas)
        job.times["slowed"] += held * one.replicas * (1.0 - one.pace)
        job.times["lost_work"] += did - held
    job.times["saving"] += running - _computed(run, running)
    for one in pieces if job.keep else ():
        job.mark("useful", start + min(one.begin, readable), start + min(one.end, readable), speed=one.speed)
        job.mark("lost_work", start + max(one.begin, readable), start + min(max(one.end, readable), running), cause, one.speed)
    job.now = start + running
    return kept


def _kept(run: Mapping[str, float], pieces: Iterator[_Piece], readable: float, left: float) -> tuple[list[_Piece], float, float | None]:
    """Pieces as far as the run needs them, work that is kept [s], and when the run ends, if it does: where nothing is `left`. [s]"""
    used, work, kept = list[_Piece](), 0.0, 0.0
    for one in pieces:
        used.append(one)
        did = _computed(run, one.end) - _computed(run, one.begin)
        if one.speed > 0 and work + did * one.speed >= left:
            return used, left, _running(run, _computed(run, one.begin) + (left - work) / one.speed)
        kept += max(_computed(run, min(one.end, readable)) - _computed(run, min(one.begin, readable)), 0.0) * one.speed
        work += did * one.speed
    return used, kept, None


def history(run: LongRun, work: float, seed: int, *, spans: bool = False, draw: int = 0) -> RunHistory:
    """One draw of a run of one design point, until so much computing is kept.

    work : time of computing that the run needs. [s]  spans : whether to list what happens when.
    """
    plain = {name: float(np.ravel(getattr(run, name))[0]) for name in ("nodes", "interval", "stall", "commit", "restart", "spares",
        "replica", "idle", "planned", "maintenance")}  # fmt: skip
    rates = np.array([float(np.ravel(one.rate)[0]) for one in run.causes])
    slowness = _Slowness(run, np.random.default_rng([seed, draw, 1]))
    job = _Job(run=plain, rng=np.random.default_rng([seed, draw]), keep=spans, rates=rates, slowness=slowness, jitter=run.jitter)
    counts, done = dict.fromkeys((one.name for one in run.causes), 0), 0.0
    longest = 1e4 * (work + plain["interval"]) * (1.0 + plain["stall"] / plain["interval"])  # in which any run ends
    regular = 1.0 / plain["planned"] if plain["planned"] else np.inf
    until = regular  # the next planned stop; time of running between two of them is the same
    for _ in range(MOST_EVENTS):
        running = job.until_failure()
        planned = until <= running
        running, until = (until, regular) if planned else (running, until - running)
        which = None if planned or not rates.any() else job.cause()
        running = min(running, longest)
        name = PLANNED if which is None else run.causes[which].name
        done += _stretch(job, float(running), kept_all=planned, elastic=bool(run.goes_on.any()), left=work - done, cause=name)
        if done >= work * (1.0 - 1e-12):
            return RunHistory(duration=job.now, times=job.times, interruptions=counts, spans=tuple(job.spans))
        _come_back(job, run, which, counts)
    return RunHistory(duration=np.inf, times=job.times, interruptions=counts, spans=tuple(job.spans))


def undisturbed(work: float) -> RunHistory:
    """A run that nothing interrupts, which computes for so long. [s]"""
    times = dict.fromkeys(KINDS_OF_TIME, 0.0) | {"useful": work}
    return RunHistory(duration=work, times=times, interruptions={}, spans=(RunSpan(begin=0.0, end=work, kind="useful"),))


def in_turn(phases: Mapping[str, RunHistory]) -> RunHistory:
    """One run of phases that follow one another."""
    spans, begin, interruptions = list[RunSpan](), 0.0, dict[str, int]()
    for one in phases.values():
        spans += [replace(span, begin=begin + span.begin, end=begin + span.end) for span in one.spans]
        begin += one.duration
        for cause, count in one.interruptions.items():
            interruptions[cause] = interruptions.get(cause, 0) + count
    times = {kind: sum(one.times[kind] for one in phases.values()) for kind in KINDS_OF_TIME}
    return RunHistory(duration=begin, times=times, interruptions=interruptions, spans=tuple(spans), phases=phases)


def _come_back(job: _Job, run: LongRun, which: int | None, counts: dict[str, int]) -> None:
    """From a stop to the next first step: `which` cause stopped it, None of a planned stop."""
    kind, name = "restart", ""
    if which is None:
        kind, name = "maintenance", PLANNED
        job.spend(kind, job.run["stall"] + job.run["commit"] + job.run["maintenance"], name)
    while True:
        if which is not None:
            name = run.causes[which].name
            counts[name] += 1
            _fail(job, run, which)
        strikes = job.until_failure()
        if strikes >= job.run["restart"]:
            job.spend(kind, job.run["restart"], name)
            if which is None or not run.causes[which].again or job.rng.random() >= run.causes[which].again:
                return
            continue
        job.spend(kind, float(strikes), name)
        which = job.cause()


def _fail(job: _Job, run: LongRun, which: int) -> None:
    """Notice a failure, send its nodes to repair, and wait for others where spares are too few."""
    cause = run.causes[which]
    detection, repair = float(np.ravel(cause.detection)[0]), float(np.ravel(cause.repair)[0])
    job.spend("lost_work" if cause.silent else "detection", detection, cause.name)
    job.mended()
    if not repair:
        return
    heapq.heappush(job.repairs, (job.now + job.rng.exponential(repair), taken := job.taken(cause)))
    job.away += taken
    while not run.goes_on.any() and job.away > job.run["spares"]:
        job.spend("waiting", job.repairs[0][0] - job.now, cause.name)
        job.mended()


def histories(run: LongRun, work: float, seed: int, draws: int) -> tuple[RunHistory, ...]:
    """Several draws of the same run."""
    return tuple(history(run, work, seed, draw=draw) for draw in range(draws))
