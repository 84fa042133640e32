"""All kinds of fleets in order of what they cost: guesses first, then the likeliest kinds, each below the limit that others leave."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from crossflow.answers.fleets.kinds import FleetKind, site_of
from crossflow.answers.fleets.sizing import FleetTask, GuessedFleet, SizedFleet, guessed, sized
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.answers.workers import Workers, workers
from crossflow.base.errors import CrossflowError

MOST_JOBS = 2  # processes unless a caller says otherwise: more gain little of a few dozen kinds
ALONE = 4  # kinds up to which no second process is worth its start
Told = Callable[[int, int], None]  # how many kinds are done, of how many


@dataclass(kw_only=True)
class FleetRun:
    """A search as far as it has come: what is found stays where it is interrupted."""

    kinds: int
    priced: bool = False  # whether any devices have a price
    done: dict[int, SizedFleet] = field(default_factory=dict)  # by the number of the kind
    guesses: float = 0.0  # traces that were replayed for guesses. [1]
    interrupted: bool = False

    @property
    def replayed(self) -> float:
        """Requests that were replayed, over those of the trace. [1]"""
        return self.guesses + sum(one.replayed for one in self.done.values())


@dataclass(frozen=True, kw_only=True)
class FleetQuestion:
    """What is sought: so many of the cheapest fleets, on so many devices, with such a share of requests on target."""

    top: int
    most: int
    share: float
    jobs: int | None = None
    whole: bool = False  # nothing is left out, as a check


def is_priced(scenario: Scenario, kinds: Sequence[FleetKind], most: int) -> bool:
    """Whether the devices of any kind have a price; fleets are then in order of their rents."""
    for kind in kinds:
        try:
            site = site_of(scenario, kind, requests_of(scenario), most)
        except CrossflowError:
            continue
        if all(fleet.operation is not None and fleet.operation.price is not None for fleet in site.scenario.system.places.values()):
            return True
    return False


def searched(scenario: Scenario, kinds: Sequence[FleetKind], asked: FleetQuestion, told: Told | None = None) -> FleetRun:
    """The cheapest fleet of each kind, as far as it may be among the best; a key that interrupts ends it with what there is."""
    told = told or _silent
    priced = is_priced(scenario, kinds, asked.most)
    tasks = [
        FleetTask(scenario=scenario, kind=kind, most=asked.most, share=asked.share, priced=priced, whole=asked.whole) for kind in kinds
    ]
    run = FleetRun(kinds=len(kinds), priced=priced)
    jobs = asked.jobs or (1 if len(kinds) <= ALONE else min(MOST_JOBS, os.cpu_count() or 1))
    try:
        with workers(jobs) as hands:
            order = list(range(len(kinds))) if asked.whole else _likeliest(hands, tasks, run, told)
            _size(hands, [(i, tasks[i]) for i in order], asked, run, told)
    except KeyboardInterrupt:
        if not run.done:
            raise
        run.interrupted = True
    return run


def _silent(done: int, of: int) -> None:
    """Tell nothing."""


def _likeliest(hands: Workers, tasks: list[FleetTask], run: FleetRun, told: Told) -> list[int]:
    """Numbers of the kinds that can be, those whose fleets are expected to be cheapest first; each task learns its guess."""
    found: dict[int, GuessedFleet] = {}
    for i, one in hands.completed(guessed, tasks):
        found[i] = one
        run.guesses += one.replayed
        told(len(found), 2 * len(tasks))
        tasks[i] = one.task
        if one.refused is not None:
            run.done[i] = one.refused
    return sorted((i for i in found if found[i].refused is None), key=lambda i: (found[i].cost, i))


def _size(hands: Workers, tasks: list[tuple[int, FleetTask]], asked: FleetQuestion, run: FleetRun, told: Told) -> None:
    """Size kinds one after the other, each below what the best so far cost when it begins."""
    costs: list[float] = []

    def below() -> Iterator[FleetTask]:
        for _, task in tasks:
            limit = costs[asked.top - 1] if len(costs) >= asked.top and not asked.whole else math.inf
            yield replace(task, limit=limit)

    for place, one in hands.completed(sized, below()):
        run.done[tasks[place][0]] = one
        told(run.kinds + len(run.done), 2 * run.kinds)
        if one.found:
            costs.append(one.cost(priced=tasks[place][1].priced))
            costs.sort()
