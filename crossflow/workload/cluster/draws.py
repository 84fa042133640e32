"""Jobs that are drawn: arrivals, sizes and lengths by the laws that requests have, each from a generator of its own."""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.workload.cluster.record import JobTrace
from crossflow.workload.cluster.spec import MOST_JOBS, JobsSpec
from crossflow.workload.requests.arriving import arrivals
from crossflow.workload.requests.dice import LENGTHS, SIZES, Dice
from crossflow.workload.requests.numbers import counts, times


def drawn_jobs(spec: JobsSpec, seed: int, number: int, fixed: tuple[float, float | None] | None = None) -> JobTrace:
    """The jobs of an entry of a file that is no trace.

    number : of the entry, which with the seed says what is drawn.
    fixed : devices and time of each where a scenario says them; its time is None where the entry says it. [1], [s]
    """
    dice = Dice(seed=seed, kind=number)
    arrival = _arrivals(spec, dice)
    n = len(arrival)
    if fixed is None:
        assert spec.devices is not None  # the entry is checked
        devices = counts(spec.devices, n, dice.of(SIZES), 1)
    else:
        devices = np.full(n, round(fixed[0]), dtype=np.intp)
    if fixed is not None and fixed[1] is not None:
        length = np.full(n, fixed[1])
    else:
        assert spec.time is not None
        length = times(spec.time, n, dice.of(LENGTHS))
    none = np.zeros(n, dtype=np.intp)
    return JobTrace(arrival=arrival, devices=devices, time=length, kind=none, classes=(spec.name or f"job {number}",), slice=none)


def _arrivals(spec: JobsSpec, dice: Dice) -> Array:
    if spec.arrivals is None:
        return np.full(1, spec.arrival or 0.0)
    if spec.duration is not None and (many := spec.arrivals.mean_rate * spec.duration) > MOST_JOBS:
        raise CrossflowError(f"duration: about {many:,.0f} jobs would come, more than the {MOST_JOBS:,} that are taken; shorten it")
    return arrivals(spec.arrivals, dice, count=spec.count, duration=spec.duration)
