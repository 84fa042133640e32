"""The piecewise curve of Lin et al. for the time of a collective over its size [1]_, Eq. 2 to 4, with eight parameters.

    t(m) = ts                       m <= m1
         = m / 10^sigmoid(log10 m)  m1 <= m <= m2
         = ts + m / BWmax           m >= m2
    sigmoid(x) = L / (1 + exp(-k (x - x0))) + b

Eq. 3 is garbled in print ("log m2 / 10 sigmoid(m, param)"). It is read here as what Fig. 4 and the text around it show: between m1
and m2 the logarithm of the bandwidth, m / t, is a sigmoid of the logarithm of the size. The figure has no jumps, so the curve is
continuous: L and b follow from the two ends of the middle part, which leaves six parameters to fit.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms", TPDS 2024, Sec. III-C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.base.arrays import Array

LEAST = 6  # sizes that a fit needs, one a free parameter
SCALE = 0.05  # of the robust loss, in log(time)
STEEPEST = 12.0  # of the sigmoid, over decades of size


@dataclass(frozen=True, kw_only=True)
class PiecewiseCurve:
    """Eq. 2 of [1]_."""

    start: float  # ts: time of the smallest messages. [s]
    bandwidth: float  # BWmax: slope of the largest. [B/s]
    first: float  # m1: where the time begins to rise. [B]
    last: float  # m2: where the bandwidth is constant. [B]
    x0: float  # logarithm of the size in the middle of the sigmoid. [1]
    k: float  # its steepness. [1]

    @property
    def ends(self) -> tuple[float, float]:
        """L and b, which make the curve continuous at m1 and m2. [1]"""
        low, high = (_logistic(np.log10(size), self.k, self.x0) for size in (self.first, self.last))
        at_first = np.log10(self.first / self.start)
        at_last = np.log10(self.last / (self.start + self.last / self.bandwidth))
        height = (at_last - at_first) / max(float(high - low), 1e-12)
        return float(height), float(at_first - height * low)

    def time(self, size: Array) -> Array:
        """Times of messages. [s]

        size : shape (sizes,). [B]
        """
        height, offset = self.ends
        at = np.log10(np.maximum(size, 1e-9))
        between = 10.0 ** np.clip(at - height * _logistic(at, self.k, self.x0) - offset, -30.0, 30.0)
        above = self.start + size / self.bandwidth
        return np.asarray(np.where(size <= self.first, self.start, np.where(size >= self.last, above, between)))

    def to_dict(self) -> dict[str, Any]:
        """The eight parameters by the paper's names, in s, B and B/s."""
        height, offset = self.ends
        return {
            "ts": self.start, "BWmax": self.bandwidth, "m1": self.first, "m2": self.last,
            "L": height, "x0": self.x0, "k": self.k, "b": offset,
        }  # fmt: skip


def _logistic(x: Any, k: float, x0: float) -> Any:
    return 1.0 / (1.0 + np.exp(-k * (x - x0)))


def fit_curve(size: Array, time: Array) -> PiecewiseCurve | None:
    """The curve that fits measured times best, by least squares of the logarithms; None where there are too few sizes. [B], [s]"""
    from scipy.optimize import least_squares

    if np.unique(size).size < LEAST:
        return None
    low, high, fastest = np.log10(size.min()), np.log10(size.max()), float((size / time).max())
    first = np.log10(time.min())
    bounds = np.array([(first - 1, first + 1), (np.log10(fastest) - 0.5, np.log10(fastest) + 1.5), (low - 1, high), (1e-2, high - low + 1),
                       (low - 2, high + 2), (0.05, STEEPEST)]).T  # fmt: skip

    def curve(x: Array) -> PiecewiseCurve:
        start, bandwidth, begins, width, x0, k = x.tolist()
        return PiecewiseCurve(start=10**start, bandwidth=10**bandwidth, first=10**begins, last=10 ** (begins + width), x0=x0, k=k)

    def residuals(x: Array) -> Array:
        return np.asarray(np.log(curve(x).time(size) / time))

    tried = []
    for share, width in ((0.2, 0.6), (0.3, 0.3), (0.5, 0.45)):
        begins, spans = low + share * (high - low), width * (high - low)
        guess = np.array([first, np.log10(fastest), begins, spans, begins + spans / 2, 2.0])
        inside = np.clip(guess, bounds[0] + 1e-6, bounds[1] - 1e-6)
        tried.append(least_squares(residuals, inside, bounds=bounds, loss="soft_l1", f_scale=SCALE))
    return curve(min(tried, key=lambda one: one.cost).x)
