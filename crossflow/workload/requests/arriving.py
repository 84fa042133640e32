"""Times of arrival drawn from laws.

References
----------
.. [1] Lewis and Shedler, "Simulation of Nonhomogeneous Poisson Processes by Thinning", Naval Research Logistics 26(3), 1979, Sec. 1
   (time-scale transformation).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.workload.requests.dice import GAPS, SWITCHES, Dice
from crossflow.workload.requests.laws import MOST_DRAWN, ArrivalLaw

HOUR = 3600.0  # of a curve whose rates are of hours. [s]


def arrivals(law: ArrivalLaw, dice: Dice, *, count: int | None, duration: float | None, scale: float = 1.0) -> Array:
    """Times of arrival, of a count or within a duration, not falling. [s]

    Gaps have a mean of one arrival on a clock that runs at the rate of arrivals; that clock's times are mapped back [1]_.

    scale : of all rates. [1]
    """
    if count is None:
        assert duration is not None  # the section is checked
        expected = law.mean_rate * scale * duration
        if expected > MOST_DRAWN:
            raise CrossflowError(
                f"arrivals: about {expected:,.0f} requests would come, more than the {MOST_DRAWN:,} that are drawn; shorten duration"
            )
    clock = _clock(law, dice, count, duration, scale)
    ticks = _ticks(law, dice.of(GAPS), count, None if duration is None else clock.ticks[-1])
    found = np.interp(ticks, clock.ticks, clock.times) if count is None else _mapped(law, dice, scale, ticks)
    return np.maximum.accumulate(found)


class _Clock(NamedTuple):
    """Arrivals that are expected until some times, between which the rate is constant."""

    times: Array  # [s]
    ticks: Array  # [1]


def _ticks(law: ArrivalLaw, rng: np.random.Generator, count: int | None, end: float | None) -> Array:
    """Arrivals on a clock of one arrival a tick: so many, or until an end. [1]"""
    if count is not None:
        return np.asarray(np.cumsum(_gaps(law, count, rng)))
    assert end is not None  # one of both is there
    parts: list[Array] = []
    reached = 0.0
    while reached < end:
        part = reached + np.cumsum(_gaps(law, int(1.1 * (end - reached)) + 64, rng, began=bool(parts)))
        parts.append(part)
        reached = float(part[-1])
    together = np.concatenate(parts)
    return together[together < end]


def _gaps(law: ArrivalLaw, n: int, rng: np.random.Generator, *, began: bool = False) -> Array:
    """Gaps of mean one, shape (n,). [1]"""
    if law.law == "deterministic":
        return np.concatenate([np.full(1, float(began)), np.ones(n - 1)])
    if law.law == "uniform":
        return rng.uniform(0.0, 2.0, n)
    if law.cv is not None:
        shape = 1.0 / law.cv**2
        return rng.gamma(shape, 1.0 / shape, n)
    return rng.standard_exponential(n)


def _mapped(law: ArrivalLaw, dice: Dice, scale: float, ticks: Array) -> Array:
    """The times of so many arrivals, on a clock that runs long enough."""
    last = float(ticks[-1])
    duration = 1.05 * last / (law.mean_rate * scale) + 1e-9
    while (clock := _clock(law, dice, None, duration, scale)).ticks[-1] < last:
        duration *= 1.5
    return np.interp(ticks, clock.ticks, clock.times)


def _clock(law: ArrivalLaw, dice: Dice, count: int | None, duration: float | None, scale: float) -> _Clock:
    """Expected arrivals over time until a duration."""
    if count is not None or duration is None:
        return _Clock(times=np.zeros(1), ticks=np.zeros(1))
    if law.law == "diurnal":
        return _curve(law, duration, scale)
    if law.law == "bursts":
        return _switching(law, dice.of(SWITCHES), duration, scale)
    assert law.rate is not None  # the law's keys are checked
    return _Clock(times=np.array([0.0, duration]), ticks=np.array([0.0, law.rate * scale * duration]))


def _curve(law: ArrivalLaw, duration: float, scale: float) -> _Clock:
    assert law.rates is not None  # the law's keys are checked
    step = HOUR if law.period is None else law.period / len(law.rates)
    if duration / step > MOST_DRAWN:
        raise CrossflowError(f"arrivals: the rate would change more than {MOST_DRAWN:,} times; lengthen period")
    n = int(np.ceil(duration / step))
    times = np.minimum(np.arange(n + 1) * step, duration)
    rates = scale * np.resize(np.array(law.rates), n)
    return _Clock(times=times, ticks=np.concatenate([np.zeros(1), np.cumsum(rates * np.diff(times))]))


def _switching(law: ArrivalLaw, rng: np.random.Generator, duration: float, scale: float) -> _Clock:
    """Bursts that are on and off in turn; whether it begins with one is as likely as at any other time."""
    assert law.rate is not None  # the law's keys are checked
    assert law.on is not None
    assert law.off is not None
    on = bool(rng.random() < law.on / (law.on + law.off))
    means, rates = np.array([law.on, law.off]), scale * np.array([law.rate, law.idle_rate or 0.0])
    if (bursts := duration / (law.on + law.off)) > MOST_DRAWN:
        raise CrossflowError(
            f"arrivals: about {bursts:,.0f} bursts would come, more than the {MOST_DRAWN:,} that are drawn; lengthen on or off"
        )
    spans: list[Array] = []
    reached = 0.0
    while reached < duration:
        spans.append((rng.standard_exponential((int(bursts) + 256, 2)) * (means if on else means[::-1])).ravel())
        reached += float(spans[-1].sum())
    ends = np.cumsum(np.concatenate(spans))
    n = int(np.searchsorted(ends, duration)) + 1
    times = np.concatenate([np.zeros(1), np.minimum(ends[:n], duration)])
    here = np.resize(rates if on else rates[::-1], n)
    return _Clock(times=times, ticks=np.concatenate([np.zeros(1), np.cumsum(here * np.diff(times))]))
