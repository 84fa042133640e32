"""Different events of a step: those to measure to know all of it, and how often each recurs [1]_.

References
----------
.. [1] Lu et al., "DistSim: A performance model of large-scale hybrid distributed DNN training", CF 2023, Sec. 4.1 and Table 3.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from crossflow.answers.scenario import Scenario, check_alike, check_one_step, check_strategy
from crossflow.answers.steps import own_step
from crossflow.base.arrays import plain
from crossflow.base.errors import CrossflowError
from crossflow.base.names import cell
from crossflow.cost.profile import PROFILED, kernel_words, nearest

NODES = 2  # on which everything can be measured: the fewest that have a network between them


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event and how often it recurs; its identity as in a profile (`crossflow.cost.profile`)."""

    op: str  # what runs
    shape: str  # on what
    dtype: str  # in which type
    device: str  # on which system
    ranks: int  # of a collective, how many take part
    scope: str  # whether inside a node (intra) or between nodes (inter)
    time: float  # of one, as predicted or measured. [s]
    spread: float  # standard deviation of what was measured. [s]
    count: float  # how often it occurs in a step, on all devices; a collective once for all its ranks, a transfer once for its sender. [1]


@dataclass(frozen=True, kw_only=True)
class EventList:
    """Different events of a step."""

    events: tuple[Event, ...]  # those that take most time on all devices first
    step: float  # device-time of a whole step, all devices. [s]
    profiling: float  # device-time to run each event once on two nodes, all-reduces on 8 ranks at most. [s]

    @property
    def recurrences(self) -> float:
        """Events of a step, each with its recurrences. [1]"""
        return sum(event.count for event in self.events)

    @property
    def relative(self) -> float:
        """Device-time of measuring over that of running the step, the paper's Table 3. [1]"""
        return self.profiling / self.step

    def to_dict(self) -> dict[str, Any]:
        """Plain data; times in s."""
        names = [field.name for field in fields(Event)]
        return {
            "events": [{name: plain(value) for name, value in zip(names, astuple(event), strict=True)} for event in self.events],
            "recurrences": self.recurrences,
            "step_device_time_s": self.step,
            "profiling_device_time_s": self.profiling,
            "relative": self.relative,
        }

    def to_csv(self) -> str:
        """A profile with the predicted times, to be filled with measured ones."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([field.name for field in fields(Event)])
        writer.writerows(map(_written, astuple(event)) for event in self.events)
        return text.getvalue()


def _written(value: Any) -> Any:
    return f"{value:.9g}" if isinstance(value, float) else cell(value) if isinstance(value, str) else value


def events(scenario: Scenario) -> EventList:
    """Different events of a step."""
    check_strategy(scenario)
    check_one_step(scenario)
    check_alike(scenario, "a list of events")
    listed, step, node = own_step(scenario).events()
    sums: dict[tuple[str, str, str, int, str], list[float]] = {}
    for key, time, count in listed:
        entry = sums.setdefault(key, [time, 0.0])
        entry[1] += count
    name, profile = scenario.system.name, scenario.profile
    measured = {key: None if profile is None else profile.event(key) for key in sums}
    found = [
        Event(
            op=op, shape=shape, dtype=dtype, device=name, ranks=ranks, scope=scope, time=time, count=count,
            spread=0.0 if (one := measured[op, shape, dtype, ranks, scope]) is None else one.spread,
        )
        for (op, shape, dtype, ranks, scope), (time, count) in sums.items()
        if count and time > 0
    ]  # fmt: skip
    found.sort(key=lambda event: -event.time * event.count * event.ranks)
    if not np.isfinite(step):
        raise CrossflowError(f"{scenario.name} never ends: something that it needs has no rate; `crossflow predict` says what")
    most = NODES * node
    profiling = sum(event.time * min(event.ranks, PROFILED if event.op == "all_reduce" else most) for event in found)
    return EventList(events=tuple(found), step=step, profiling=profiling)


def unmatched(scenario: Scenario, most: int = 5) -> Iterator[str]:
    """Rows of the scenario's profile that give no event its time, as sentences: each with the nearest event, so many of them at most."""
    profile = scenario.profile
    if profile is None or scenario.document.data.get("profile") is None:  # that of a system serves any step
        return
    keys = [(one.op, one.shape, one.dtype, one.ranks, one.scope) for one in events(scenario).events]
    rows = profile.unmatched(keys)
    for line, key in rows[:most]:
        like = nearest(key, keys)
        yield f"profile: row {line} {kernel_words(key)} matches no event; " + (
            f"the step has no {key[0]}" if like is None else f"nearest: {kernel_words(like)}"
        )
    if len(rows) > most:
        yield f"profile: {len(rows) - most} more rows match no event; `crossflow events` lists the events of the step"
    for device, count in profile.others.items():
        yield f"profile: {count} row{'s are' if count > 1 else ' is'} of {device}, not of {scenario.system.name}, and left out"
