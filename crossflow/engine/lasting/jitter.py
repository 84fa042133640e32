"""Steps that wait for the slowest of many devices: time that varies from step to step and from device to device by itself.

Let the times of n units in a step, over their mean, be independent of each other and of the steps before. A step takes as long as the
slowest, whose distribution is F^n [1]_: with t exponential, its tail is 1 - exp(-t / n), so that its mean is an integral over t of the
quantile there times exp(-t), here with t = exp(y) by the trapezoidal rule, whose ends fall off doubly exponentially. Of exponential delays
that is 1 + s (H_n - 1), with the harmonic number H_n; it grows with the logarithm of n, and of log-normal times more slowly [2]_. Over a
run the mean of the slowest counts, not its draw in one step.

Where one unit is f times as slow as it was, a step takes max(f Y, B), with its own time Y and the slowest of the others B; its mean is
that of B P(f Y <= B) + f E[Y; f Y > B] over B.

References
----------
.. [1] H. A. David, H. N. Nagaraja, "Order Statistics", 3rd ed., 2003, Sec. 2.1 and 3.1; of exponential times A. Renyi, 1953.
.. [2] S. Agarwal, R. Garg, N. K. Vishnoi, "The Impact of Noise on the Scaling of Collectives: A Theoretical Approach", HiPC 2005.
   F. Petrini, D. Kerbyson, S. Pakin, "The Case of the Missing Supercomputer Performance", SC 2003, and T. Hoefler et al., SC 2010
   (measured).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, points
from crossflow.engine.lasting.record import Jitter

_AT = np.linspace(-36.0, 4.5, 406)[:, np.newaxis]  # logarithms of t
_T = np.exp(_AT)
_WEIGHTS = _T * np.exp(-_T) * (_AT[1] - _AT[0])
MOST_DRAWN = 4096  # steps at once that are drawn each by itself


@dataclass(frozen=True, kw_only=True, eq=False)
class _LogNormal:
    """Times of a unit over their mean: log-normal."""

    spread: Array  # standard deviation. [1]

    @property
    def width(self) -> Array:
        """Standard deviation of the logarithm. [1]"""
        return np.sqrt(np.log1p(self.spread**2))

    def above(self, tail: Array) -> Array:
        """The time that is exceeded with a probability. [1]"""
        from scipy.special import ndtri

        return np.asarray(np.exp(-self.width * (0.5 * self.width + ndtri(tail))))

    def longer(self, than: Array) -> tuple[Array, Array]:
        """Probability of a longer time, and the mean of times that are longer times that probability. [1]"""
        from scipy.special import ndtr

        beyond = np.log(np.maximum(than, 1e-300)) / self.width
        return ndtr(-beyond - 0.5 * self.width), ndtr(0.5 * self.width - beyond)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Delayed:
    """A time that every step takes, and an exponential delay."""

    spread: Array  # mean of the delay, and its standard deviation. [1]

    def above(self, tail: Array) -> Array:
        """See `_LogNormal.above`."""
        return np.asarray(1.0 - self.spread * (1.0 + np.log(tail)))

    def longer(self, than: Array) -> tuple[Array, Array]:
        """See `_LogNormal.longer`."""
        least = 1.0 - self.spread
        tail = np.exp(-np.maximum(than - least, 0.0) / self.spread)
        return tail, (np.maximum(than, least) + self.spread) * tail


def _law(jitter: Jitter) -> _LogNormal | _Delayed:
    spread = np.maximum(jitter.spread, 1e-12)  # below which floats see no difference
    return _LogNormal(spread=spread) if jitter.law == "log-normal" else _Delayed(spread=spread)


def slowest(jitter: Jitter | None, slowdown: float = 1.0) -> Array:
    """How many times as long a step takes in the mean as it would if all took their mean, where one unit is so many times as slow. [1]

    >>> two = Jitter(spread=np.array([0.1]), units=np.array([2.0]), step=np.array([1.0]), law="exponential")
    >>> slowest(two).round(6)  # 1 + 0.1 (1 + 1 / 2 - 1)
    array([1.05])
    """
    if jitter is None:
        return points(slowdown)
    law = _law(jitter)
    others = law.above(_tails(jitter, _T))
    longer, held = law.longer(others / slowdown)
    return np.asarray((_WEIGHTS * (others * (1.0 - longer) + slowdown * held)).sum(axis=0))


def exceeded(jitter: Jitter, share: float) -> Array:
    """How many times as long the steps take that are exceeded in so small a share of all. [1]"""
    return _law(jitter).above(-np.expm1(np.log1p(-share) / jitter.units))


def _tails(jitter: Jitter, t: Array) -> Array:
    """Tails in which the slowest of all units but one lies; of none all of the distribution. [1]"""
    return np.asarray(np.where(jitter.units > 1, np.clip(-np.expm1(-t / np.maximum(jitter.units - 1.0, 1e-9)), 1e-300, 1.0), 1.0))


def drawn(jitter: Jitter, slowdown: float, running: float, rng: np.random.Generator) -> float:
    """How many times as long steps take that fill some time [s], of one design point: the mean of as many draws of the slowest. [1]

    Of many steps so many are drawn, and what their mean is off is made as small as that of all.
    """
    law, mean = _law(jitter), float(slowest(jitter, slowdown)[0])
    steps = max(round(running / (float(jitter.step[0]) * mean)), 1)
    few = min(steps, MOST_DRAWN)
    others = law.above(_tails(jitter, rng.exponential(size=few)))
    own = slowdown * law.above(np.maximum(rng.random(few), 1e-300))
    return mean + (float(np.maximum(others, own).mean()) - mean) * float(np.sqrt(few / steps))
