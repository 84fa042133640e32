"""How often to save: Young's and Daly's intervals, and the exact optimum.

References
----------
.. [1] J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
.. [2] J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array
from crossflow.engine.lasting.record import NEVER_FAILS

_LONGEST = 1e9  # interval of a job that does not fail, thirty years. [s]
_NEWTON = 60  # steps of a bisection to the last digit of a float


def young(stall: Array, failures: Array) -> Array:
    """Interval of least loss to first order, sqrt(2 stall / failures) [1]_. [s]

    stall : time of one save. [s]  failures : of the job. [1/s]

    >>> print(young(np.array([5.0]), np.array([1e-5])).round(1))
    [1000.]
    """
    return np.sqrt(2.0 * stall / np.maximum(failures, NEVER_FAILS))


def daly(stall: Array, failures: Array) -> Array:
    """The same to higher order [2]_, Eq. 37; the mean time between failures where saving takes more than twice as long. [s]"""
    mean = 1.0 / np.maximum(failures, NEVER_FAILS)
    ratio = np.sqrt(stall / (2.0 * mean))
    return np.where(stall < 2.0 * mean, np.sqrt(2.0 * stall * mean) * (1.0 + ratio / 3.0 + ratio**2 / 9.0) - stall, mean)


def best_interval(stall: Array, failures: Array, least: Array) -> Array:
    """Interval of least loss: where Daly's complete time of a run, [2]_ Eq. 20, is least; never shorter than `least`. [s]

    That is the root of x + exp(-(x + s)) = 1 with x = failures x interval and s = failures x stall, here by bisection: the left side
    rises in x from exp(-s) < 1. Neither the time of a restart nor that until a checkpoint can be read moves it.

    least : the shortest interval there is: a step, or the time until the checkpoint before can be read. [s]
    """
    rate = np.maximum(failures, NEVER_FAILS)
    loss = rate * stall
    low, high = np.broadcast_arrays(np.zeros_like(loss), np.ones_like(loss))
    for _ in range(_NEWTON):
        middle = (low + high) / 2.0
        # x - (1 - exp(-(x + s))), whose second part keeps its digits where x and s are small
        above = middle + np.expm1(-(middle + loss)) > 0.0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    # Of small rates the root of the equation is that of Young's; floats lose it there.
    found = np.where(loss < 1e-12, young(stall, rate), (low + high) / 2.0 / rate)
    return np.minimum(np.maximum(found, least), _LONGEST)
