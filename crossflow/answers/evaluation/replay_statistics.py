"""Figures of a replay: means and percentiles with their confidence, and what changes over time.

References
----------
.. [1] Law and Kelton, "Simulation Modeling and Analysis", Sec. 9.5.3: the method of batch means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array

if TYPE_CHECKING:
    from crossflow.engine.service.replayed import Jumps

PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
BATCHES = 20  # batches of requests in order of arrival
BEYOND = 5.0  # requests of a batch beyond a percentile that it takes at least, so that the percentile of a batch means something


def spread(values: Array, weights: Array | None = None) -> dict[str, float | None]:
    """Mean and percentiles of values, each as often as its weight says; None of no values.

    >>> spread(np.array([1.0, 2.0, 3.0, np.nan]))["p50"]
    2.0
    """
    kept = np.isfinite(values) if weights is None else np.isfinite(values) & (weights > 0)
    found = values[kept]
    if not len(found):
        return dict.fromkeys(("mean", *PERCENTILES))
    if weights is None:
        quantiles = np.quantile(found, list(PERCENTILES.values()))
        return {"mean": float(found.mean()), **dict(zip(PERCENTILES, quantiles.tolist(), strict=True))}
    order = np.argsort(found, kind="stable")
    found, counts = found[order], weights[kept][order]
    upto = np.cumsum(counts)
    places = np.searchsorted(upto, np.array(list(PERCENTILES.values())) * upto[-1])
    quantiles = found[np.minimum(places, len(found) - 1)]
    return {"mean": float(found @ counts / upto[-1]), **dict(zip(PERCENTILES, quantiles.tolist(), strict=True))}


def student(batches: int) -> float:
    """The 97.5 % quantile of Student's t with one degree of freedom less than batches.

    >>> round(student(20), 3)
    2.093
    """
    from scipy.special import stdtrit

    return float(stdtrit(batches - 1, 0.975))


def confidence(values: Array) -> dict[str, float | None]:
    """Half of the 95 % interval of the mean and of each percentile, of values in order of arrival; None where they are too few [1]_.

    Requests that come one after the other wait together, so that their times are not independent; means of long batches nearly are.
    """
    found = values[np.isfinite(values)]
    size = len(found) // BATCHES
    needed = {"mean": 2.0 * BEYOND, **{name: BEYOND / (1.0 - share) for name, share in PERCENTILES.items()}}
    batches = found[: size * BATCHES].reshape(BATCHES, size)

    def half(name: str) -> float | None:
        if size < needed[name]:
            return None
        each = batches.mean(axis=1) if name == "mean" else np.quantile(batches, PERCENTILES[name], axis=1)
        return float(student(BATCHES) * each.std(ddof=1) / np.sqrt(BATCHES))

    return {name: half(name) for name in needed}


@dataclass(frozen=True, kw_only=True, eq=False)
class Phases:
    """How a run begins and ends, by the requests that are in engines."""

    filled: float  # time until as many are there as in the middle of the run, less two standard deviations of them. [s]
    emptied: float  # time from the last arrival to the last token. [s]
    grows: bool  # whether the queue is still growing when arrivals end


def phases(arrival: Array, last: Array) -> Phases:
    """Warm-up, cool-down, and whether a run is one of a service that keeps up; of times of arrivals and of last tokens. [s]"""
    begin, end = float(arrival.min()), float(arrival.max())
    edges = np.linspace(begin, end, 101)
    inside = mean_inside(arrival, last, edges) if end > begin else np.zeros(100)
    middle = float(inside[20:80].mean())
    there = np.flatnonzero(inside >= middle - 2.0 * float(inside[20:80].std()))  # within what the load varies by
    final, before = float(inside[90:].mean()), float(inside[45:55].mean())
    filled = float(edges[there[0]] - begin) if len(there) else 0.0
    return Phases(filled=filled, emptied=max(float(np.nanmax(last)) - end, 0.0), grows=final > 1.5 * before + 10.0)


def mean_inside(arrival: Array, last: Array, edges: Array) -> Array:
    """Requests that are in engines, in the mean of every interval between edges. [1]"""
    came, left = (np.sort(times[np.isfinite(times)]) for times in (arrival, last))

    def integral(times: Array) -> Array:
        """Integral up to every edge of how many of the times have passed. [s]"""
        count = np.searchsorted(times, edges, side="right")
        sums = np.concatenate([[0.0], np.cumsum(times)])
        return np.asarray(count * edges - sums[count])

    return np.asarray(np.diff(integral(came) - integral(left)) / np.diff(edges))


def inside(spans: Array, edges: Array) -> Array:
    """Share of every interval between edges that spans of time cover, shape (intervals,). [1]

    >>> inside(np.array([[1.0, np.inf]]), np.array([0.0, 2.0, 4.0])).tolist()
    [0.5, 1.0]
    """
    clipped = np.clip(spans[:, None, :], edges[None, :-1, None], edges[None, 1:, None])
    return np.asarray((clipped[..., 1] - clipped[..., 0]).sum(axis=0) / np.diff(edges))


def over_time(jumps: Jumps, values: Array, edges: Array) -> Array:
    """Mean of a quantity of one engine in every interval between edges, 0 between its jumps."""
    if not len(values):
        return np.zeros(len(edges) - 1)
    times = np.column_stack([jumps.begun, jumps.ended]).ravel()
    grown = np.cumsum(values * (jumps.ended - jumps.begun))
    sums = np.column_stack([np.concatenate([[0.0], grown[:-1]]), grown]).ravel()
    return np.asarray(np.diff(np.interp(edges, times, sums)) / np.diff(edges))
