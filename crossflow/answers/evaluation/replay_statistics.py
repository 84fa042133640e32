"""Figures of a replay: means and percentiles with their confidence, and what changes over time.

References
----------
.. [1] Law and Kelton, "Simulation Modeling and Analysis", Sec. 9.5.3: means of correlated values.
.. [2] Geyer, "Practical Markov Chain Monte Carlo", Statistical Science 7(4), 1992, Sec. 3.3: initial sequence estimators.
.. [3] Woodruff, "Confidence Intervals for Medians and Other Position Measures", J. Am. Stat. Assoc. 47, 1952.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Mask

if TYPE_CHECKING:
    from crossflow.engine.service.replayed import Jumps

PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LEAST = 20.0  # independent values that a series is worth at least where its mean has an interval
LONGEST = 2**14  # values of a series; of a longer one neighbours are taken together


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


def half_of_mean(values: Array) -> float | None:
    """Half of the 95 % interval of the mean of a stationary series; None where it is too short for its own correlation [1]_, [2]_.

    The variance of the mean is the sum of all autocovariances over the number of values. They are summed in pairs while these are positive,
    made to fall (the initial monotone sequence). The quantile is that of Student's t with a quarter of the effective number of values as
    its degrees of freedom, as of batches that are four correlation times long.
    """
    found = _sum_of_covariances(values)
    return None if found is None else found[0] * _student(0.25 * found[1])


def _sum_of_covariances(values: Array) -> tuple[float, float] | None:
    """Standard error of the mean of a series, and how many independent values it is worth; None where these are too few."""
    size = max(-(-len(values) // LONGEST), 1)  # of neighbours that are one value, so that a long series costs no more
    means = values[: len(values) // size * size].reshape(-1, size).mean(axis=1)
    n = len(means)
    if n < LEAST:
        return None
    spectrum = np.abs(np.fft.rfft(means - means.mean(), 1 << (2 * n - 1).bit_length())) ** 2
    covariance = np.fft.irfft(spectrum)[:n] / n
    if covariance[0] <= 0:
        return 0.0, float(n)
    pairs = covariance[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs[: int(np.argmax(pairs <= 0))] if (pairs <= 0).any() else pairs
    whole = max(2.0 * float(np.minimum.accumulate(positive).sum()) - float(covariance[0]), float(covariance[0]))
    worth = n * float(covariance[0]) / whole
    return None if worth < LEAST else (float(np.sqrt(whole / (n - 2.0 * n / worth))), worth)


def _student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t.

    >>> round(_student(19.0), 3)
    2.093
    """
    from scipy.special import stdtrit

    return float(stdtrit(max(freedom, 1.0), 0.975))


def confidence(values: Array) -> dict[str, float | None]:
    """The larger half of the 95 % interval of the mean and of each percentile, of values in order of arrival; None where none can be given.

    Requests that come one after the other wait together: near the capacity of a service thousands of them. What follows from their
    autocorrelation holds for the mean, and for the share of values beyond a percentile. The interval of that share is read off the
    distribution itself [3]_. There is none where the run is short for its own correlation, or where it ends beyond the largest value.
    """
    found = values[np.isfinite(values)]
    halves: dict[str, float | None] = {"mean": half_of_mean(found), **dict.fromkeys(PERCENTILES)}
    if len(found) < LEAST:
        return halves
    for name, share in PERCENTILES.items():
        here = float(np.quantile(found, share))
        half = half_of_mean((found > here).astype(float))
        if half is not None and share + half < 1.0 - 1.0 / len(found):
            low, high = np.quantile(found, [max(share - half, 0.0), share + half])
            halves[name] = float(max(high - here, here - low))
    return halves


@dataclass(frozen=True, kw_only=True, eq=False)
class Phases:
    """How a run begins and ends, by the requests that are in engines."""

    filled: float  # time until as many are there as in the middle of the run, less two standard deviations of them. [s]
    emptied: float  # time from the last arrival to the last token. [s]
    grows: bool  # whether the queue is still growing when arrivals end that wait for no answer


def phases(arrival: Array, last: Array, first: Mask | None = None) -> Phases:
    """Warm-up, cool-down, and whether a run is one of a service that keeps up; of times of arrivals and of last tokens. [s]

    first : those that follow no answer, all where absent. Others come the later the slower the service is, so that a queue grows only
        while the first come.
    """
    begin, end = float(arrival.min()), float(arrival.max())
    edges = np.linspace(begin, end, 101)
    inside = mean_inside(arrival, last, edges) if end > begin else np.zeros(100)
    middle = float(inside[20:80].mean())
    there = np.flatnonzero(inside >= middle - 2.0 * float(inside[20:80].std()))  # within what the load varies by
    filled = float(edges[there[0]] - begin) if len(there) else 0.0
    until = end if first is None else float(arrival[first].max(initial=begin))
    if begin < until < end:
        inside = mean_inside(arrival, last, np.linspace(begin, until, 101))
    final, before = float(inside[90:].mean()), float(inside[45:55].mean())
    grows = until > begin and final > 1.5 * before + 10.0
    return Phases(filled=filled, emptied=max(float(np.nanmax(last)) - end, 0.0), grows=grows)


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
