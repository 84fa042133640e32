"""What waits for a resource of a system in a step, and what hides it: why a number of it changes the step little, or not at all.

A resource is made half as good (rates are halved, latencies doubled), or a setting is left out. The parts of a score that move then are
what uses it: collectives whose messages pass there, the part of them that lengthens the step, kernels that wait. Nothing is said that the
numbers do not say, so that it holds for resources of all kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.points import varied
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import Score
from crossflow.base.paths import value_at
from crossflow.base.units import show

WORSE = 2.0  # factor by which a resource is made worse
LITTLE = 0.01  # share of a step below which a setting changes little
NOTHING = 1e-9  # share below which two times are the same
_SLOWER = ("latency", "oversubscription")  # what the more of it there is, the slower a system


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a step loses where a resource is worse.

    Attributes
    ----------
    messages : time of communication that the worse resource adds, by collective, the largest first. [s]
    elsewhere : time of the collectives that it does not change, the largest first. [s]
    lost, step : by how much the step is longer, negative where it is shorter [s], and the step itself [s].
    only : what else changes where no time does, in words; "" where nothing does, or where time does.
    network : whether it is a link that messages pass.
    """

    messages: Mapping[str, float]
    elsewhere: Mapping[str, float]
    lost: float
    step: float
    only: str = ""
    network: bool = True

    @property
    def share(self) -> float:
        """By how much the step is longer, relative to itself. [1]"""
        return self.lost / self.step if self.step else 0.0

    @property
    def text(self) -> str:
        """What waits for the resource, and what hides it."""
        carries = self.messages and self.network
        if self.lost < 0 and not carries:
            return f"the step is {_percent(-self.share)} shorter with less of it, in which fewer requests or tokens take part"
        if self.only or not (self.lost or carries):
            idle = "no message passes there" if self.network else "nothing in this step waits for it"
            return self.only or f"{idle}{self._others}"
        if not carries:
            return f"{show(self.lost, 's')} of the step wait for it, {_percent(self.share)}"
        added = sum(self.messages.values())
        hidden = min(max(1.0 - self.lost / added, 0.0), 1.0)
        how = (
            "all of it hidden behind other work"
            if hidden > 1 - 1e-6
            else f"{_percent(hidden)} of it hidden"
            if hidden > 1e-3
            else "none hidden"
        )
        longer = f": {_percent(self.share)} of the step" if hidden <= 1 - 1e-6 else ""
        return f"{show(added, 's')} of messages wait for it ({_listed(self.messages)}), {how}{longer}{self._others}"

    @property
    def without(self) -> str:
        """Why a setting of the resource changes nothing: what passes there takes as long without it."""
        if not (self.messages and self.network):
            return self.text if not self.lost else "what waits there takes as long without it"
        return f"messages pass there ({', '.join(name.replace('_', ' ') for name in self.messages)}) and take as long without it"

    @property
    def _others(self) -> str:
        if not self.elsewhere or not self.network:
            return ""
        return f"; {_listed(self.elsewhere)} {'takes' if len(self.elsewhere) == 1 else 'take'} other links"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"messages_s": dict(self.messages), "elsewhere_s": dict(self.elsewhere), "lost_s": self.lost, "share": self.share,
                "text": self.text}  # fmt: skip


def _listed(times: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {show(time, 's')}" for name, time in times.items())


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def is_network(path: str) -> bool:
    """Whether a path is that of a link that messages pass."""
    return path.startswith(("system.network", "techlib.link"))


def lost(better: Score, worse: Score, path: str, i: int = 0) -> Use:
    """What the step of point `i` of one score, in which the number at a path is worse, loses against the only point of another."""
    step = float(better.step_time[0])
    before, after = ({name: float(times[k]) for name, times in s.communication.items()} for s, k in ((better, 0), (worse, i)))
    added = {name: after.get(name, 0.0) - time for name, time in before.items()}
    moved = {name: time for name, time in added.items() if time > NOTHING * step}  # what takes less time does less, and waits for nothing
    kept = {name: time for name, time in before.items() if time > NOTHING * step and abs(added[name]) <= NOTHING * step}
    longer = float(worse.step_time[i]) - step
    same = abs(longer) <= NOTHING * step
    return Use(
        messages=_by_size(moved),
        elsewhere=_by_size(kept),
        lost=0.0 if same else longer,
        step=step,
        only=_only(better, worse, i) if same and not any(abs(time) > NOTHING * step for time in added.values()) else "",
        network=is_network(path),
    )


def _by_size(times: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda pair: -abs(pair[1])))


def _only(better: Score, worse: Score, i: int) -> str:
    """What changes beside times."""
    if worse.memory_capacity[i] != better.memory_capacity[0] or worse.host_capacity[i] != better.host_capacity[0]:
        needed, there = float(better.memory_needed[0]), float(better.memory_capacity[0])
        return f"it decides what fits ({show(needed, 'B')} of {show(there, 'B')} are needed), not how long a step takes"
    return "it changes energy, not time" if not np.isclose(worse.energy[i], better.energy[0], rtol=NOTHING, equal_nan=True) else ""


def uses(scenario: Scenario, score: Score, paths: Iterable[str]) -> dict[str, Use]:
    """What a step loses where the numbers at some paths of the system are half as good, one at a time; those that have a value."""
    values = {path: value for path in paths if (value := _value(scenario, path)) is not None}
    numbers = {path: value for path, value in values.items() if varied(scenario, path) is not None}
    found: dict[str, Use] = {}
    if numbers:
        points: dict[str, Any] = {
            path: np.array([_worse(path, value) if path == other else value for other in numbers]) for path, value in numbers.items()
        }
        worse = evaluate(scenario, points)
        found = {path: lost(score, worse, path, i) for i, path in enumerate(numbers)}
    for path in values.keys() - numbers.keys():
        found[path] = lost(score, evaluate(scenario, {path: [_worse(path, values[path])]}), path)
    return {path: found[path] for path in values}


def _worse(path: str, value: float) -> float:
    return value * WORSE if path.endswith(_SLOWER) else value / WORSE


def _value(scenario: Scenario, path: str) -> float | None:
    """The number at a path of the system, None where it has none."""
    root, *rest = path.split(".")
    model: Any = scenario.system if root == "system" else scenario.library
    found = value_at(model, rest)
    if found is None:  # a number without a unit, such as an oversubscription
        for part in rest:
            model = model.get(part) if isinstance(model, Mapping) else getattr(model, part, None)
        found = model
    number = float(np.ravel(found)[0]) if isinstance(found, np.ndarray | int | float) and not isinstance(found, bool) else np.nan
    return number if np.isfinite(number) and number else None
