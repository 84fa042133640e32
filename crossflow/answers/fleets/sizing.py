"""The cheapest fleet of one kind that meets the targets: a bound in closed form, then replays of growing length.

More engines of a kind never serve fewer requests on target but for noise of routing, and never cost less, so the least number is sought.
It is guessed from the first eighth of the requests (a low fidelity, as successive halving has it [1]_), of which as large a share may
miss its targets as of all, and is then sought around that guess with all requests. Where the largest fleet below a limit of costs is not
enough, the kind is left.

References
----------
.. [1] Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.answers.evaluation.replay_figures import ReplayFigures, columns_of
from crossflow.answers.evaluation.replaying import replayed_on
from crossflow.answers.fleets.demand import engines_needed, reading_work, together, unread, writing_work
from crossflow.answers.fleets.growing import least
from crossflow.answers.fleets.kinds import FleetKind, FleetSite, site_of
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.base.errors import CrossflowError

FIRST = 1.0 / 8.0  # share of the requests from which a number is guessed
UNPRICED = "its devices have no price (system.operation.price), and others have: fleets are in order of their rents"
EQUAL = 1e-9  # relative difference of prices that is none


@dataclass(frozen=True, kw_only=True, eq=False)
class FleetTask:
    """A kind whose cheapest fleet is sought, below a limit of what one may cost."""

    scenario: Scenario
    kind: FleetKind
    most: int  # devices
    share: float  # of requests that must be on target. [1]
    priced: bool  # whether fleets are compared by their rents, else by their devices
    limit: float = math.inf  # [USD/s], or devices
    guess: int = 0  # engines that write of which about so many are expected to be enough
    bound: tuple[int, int] | None = None  # engines that write, and that only read, below which none can be enough, where that is known
    whole: bool = False  # whether nothing is left out: every number is replayed in full, as a check of the search


@dataclass(frozen=True, kw_only=True)
class SizedFleet:
    """The cheapest fleet of a kind; without engines where there is none below the limit, with the reason."""

    kind: FleetKind
    bound: tuple[int, int] = (0, 0)  # engines that write, and that only read, below which none can be enough
    writers: int = 0
    readers: int = 0
    devices: int = 0
    rent: float = math.nan  # [USD/s]
    reason: str = ""
    figures: dict[str, float] = field(default_factory=dict)  # columns of its replay
    power: float = math.nan  # [W]
    nearest: bool = False  # whether it is not enough, and only the largest that there may be
    replays: int = 0  # that were made in full
    replayed: float = 0.0  # all of them, in traces. [1]

    @property
    def found(self) -> bool:
        """Whether it meets the targets."""
        return self.writers > 0 and not self.nearest

    def cost(self, *, priced: bool) -> float:
        """What fleets are compared by. [USD/s], or devices"""
        return self.rent if priced else float(self.devices)


@dataclass(frozen=True, kw_only=True)
class GuessedFleet:
    """A kind with what its cheapest fleet is expected to cost, or why it can be none."""

    task: FleetTask
    cost: float = math.inf
    replayed: float = 0.0  # in traces. [1]
    refused: SizedFleet | None = None


def sized(task: FleetTask) -> SizedFleet:
    """The cheapest fleet of a kind; one that cannot be is told, and no error."""
    found = _sizing(task)
    return found if isinstance(found, SizedFleet) else found.found()


def guessed(task: FleetTask) -> GuessedFleet:
    """What the cheapest fleet of a kind is expected to cost."""
    found = _sizing(task)
    if isinstance(found, SizedFleet):
        return GuessedFleet(task=task, refused=found)
    cost = found.guessed()
    return GuessedFleet(task=replace(task, guess=found.guess, bound=found.bound), cost=cost, replayed=found.replayed)


def _sizing(task: FleetTask) -> _Sizing | SizedFleet:
    """The search of a kind, or why there is none."""
    try:
        site = site_of(task.scenario, task.kind, requests_of(task.scenario), task.most)
        if problem := site.engines.problem:
            return SizedFleet(kind=task.kind, reason=problem)
        if task.priced and math.isnan(site.rent(1, 1)):
            return SizedFleet(kind=task.kind, reason=UNPRICED)
        return _Sizing(task, site)
    except CrossflowError as error:
        return SizedFleet(kind=task.kind, reason=error.said)


class _Sizing:
    """The search among the numbers of engines of one kind, with the replays that it has made."""

    def __init__(self, task: FleetTask, site: FleetSite) -> None:
        self.task, self.site, self.trace = task, site, site.trace
        self.allowed = math.floor((1.0 - task.share) * len(self.trace) + EQUAL)  # requests that may miss their targets
        self.made: dict[tuple[int, int], ReplayFigures] = {}
        self.replays, self.replayed, self.guess = 0, 0.0, task.guess

    def found(self) -> SizedFleet:
        """The cheapest fleet, or why there is none."""
        bound = (0, 0) if self.task.whole else self.bound
        best = self._best(bound)
        if best is not None:
            return self._row(*best, bound)
        if not math.isinf(self.task.limit):
            return self._none(bound, "every fleet of it that might be enough costs more than those listed")
        largest = self._largest()
        if largest is None:
            return self._none(bound, f"no fleet of it fits on {self.task.most:,} devices")
        return self._row(*largest, bound, nearest=True)

    def _none(self, bound: tuple[int, int], reason: str) -> SizedFleet:
        return SizedFleet(kind=self.task.kind, bound=bound, reason=reason, replays=self.replays, replayed=self.replayed)

    # ------------------------------------------------------------------------------------------ how many are enough

    @functools.cached_property
    def bound(self) -> tuple[int, int]:
        """Engines that write and workers that read below which none can be enough, by the work of the requests."""
        if self.task.bound is not None:
            return self.task.bound
        engines, new = self.site.engines, unread(self.trace)
        writing = writing_work(self.trace, engines.writers.table, engines.writers.limits)
        needed = functools.partial(engines_needed, missed=self.allowed)
        if engines.readers is not None:
            reading = reading_work(self.trace, engines.readers.table, new)
            return math.ceil(needed(writing)), math.ceil(needed(reading) / engines.readers.group)
        reading = reading_work(self.trace, engines.writers.table, new)
        return math.ceil(max(needed(reading), needed(writing), needed(together(reading, writing)))), 0

    def _cost(self, writers: int, readers: int) -> float:
        return self.site.rent(writers, readers) if self.task.priced else float(self.site.devices(writers, readers))

    def _best(self, bound: tuple[int, int]) -> tuple[int, int] | None:
        """The cheapest numbers of engines: for every number of readers, the least of writers that is cheaper than what is known."""
        best, limit = None, self.task.limit
        for readers in self.site.readers:
            if readers < bound[1]:
                continue
            counts = [n for n in self.site.counts if n >= bound[0] and self._allowed(n, readers, limit, strict=best is not None)]
            if not counts:
                break  # more readers cost more
            writers = self._least(counts, readers)
            if writers is None:
                continue
            best, limit = (writers, readers), self._cost(writers, readers)
        return best

    def _allowed(self, writers: int, readers: int, limit: float, *, strict: bool) -> bool:
        """Whether so many fit on the devices and cost no more than the limit, or less than what is known."""
        cost = self._cost(writers, readers)
        below = cost < limit * (1.0 - EQUAL) if strict else cost <= limit * (1.0 + EQUAL)
        return below and self.site.devices(writers, readers) <= self.task.most

    def _least(self, counts: Sequence[int], readers: int) -> int | None:
        """The least number of engines that write and are enough with so many that read."""
        if self.task.whole:
            return next((n for n in counts if self._enough(n, readers)), None)
        if not self.guess:
            self.guess = self._guessed(counts, readers)
        if not math.isinf(self.task.limit) and not self._enough(counts[-1], readers):
            return None  # the largest that may cost so much
        return least(counts, lambda n: self._enough(n, readers), self.guess)

    def guessed(self) -> float:
        """About what the cheapest fleet of the kind costs; where engines that read are apart, with as few of them as might be enough."""
        bound = self.bound
        readers = next((n for n in self.site.readers if n >= bound[1]), self.site.readers[-1])
        counts = [n for n in self.site.counts if n >= bound[0] and self.site.devices(n, readers) <= self.task.most]
        self.guess = self._guessed(counts, readers) if counts else 0
        return self._cost(self.guess, readers) if counts else math.inf

    def _guessed(self, counts: Sequence[int], readers: int) -> int:
        """A number near the least that is enough, by the first requests; beyond all where it is none of these."""
        first = math.ceil(FIRST * len(self.trace))
        found = least(counts, lambda n: self._missed(n, readers, first) <= FIRST * self.allowed)
        return found or counts[-1] + 1

    def _enough(self, writers: int, readers: int) -> bool:
        """Whether no more of all requests miss their targets than may."""
        return self._missed(writers, readers, len(self.trace)) <= self.allowed

    def _missed(self, writers: int, readers: int, first: int) -> int:
        """Of so many first requests, those that miss their targets."""
        figures = self._figures(writers, readers, first)
        return first if figures.run.found is None else first - int(figures.on_target.sum())

    def _figures(self, writers: int, readers: int, first: int) -> ReplayFigures:
        """Replay so many first requests on so many engines; all of them once."""
        whole = first == len(self.trace)
        if whole and (writers, readers) in self.made:
            return self.made[writers, readers]
        self.replays, self.replayed = self.replays + whole, self.replayed + first / len(self.trace)
        engines = self.site.engines.counted(writers, readers)
        run = replayed_on(self.site.scenario, engines, self.trace, first=first)
        figures = ReplayFigures(scenario=self.site.scenario, trace=self.trace if whole else self.trace.at(np.arange(first)), run=run)
        if whole:
            self.made[writers, readers] = figures
        return figures

    # ------------------------------------------------------------------------------------------ what is told

    def _largest(self) -> tuple[int, int] | None:
        """The largest fleet, with as many engines that read as half of the devices have room for."""
        for readers in sorted(self.site.readers, key=lambda n: abs(n * self.site.each[1] - 0.5 * self.task.most)):
            fitting = [n for n in self.site.counts if self.site.devices(n, readers) <= self.task.most]
            if fitting:
                return fitting[-1], readers
        return None

    def _row(self, writers: int, readers: int, bound: tuple[int, int], *, nearest: bool = False) -> SizedFleet:
        """A fleet with what its replay says."""
        figures = self._figures(writers, readers, len(self.trace))
        if figures.reason is not None:
            return self._none(bound, figures.reason)
        rent = self.site.rent(writers, readers)
        return SizedFleet(
            kind=self.task.kind, bound=bound, writers=writers, readers=readers, devices=self.site.devices(writers, readers), rent=rent,
            figures=columns_of(figures), power=figures.power, nearest=nearest, replays=self.replays, replayed=self.replayed,
        )  # fmt: skip
