"""Spares and repairs as a queue: how often a broken node finds no spare, and how many spares are worth their rent.

References
----------
.. [1] A. K. Erlang, "Solution of some problems in the theory of probabilities of significance in automatic telephone exchanges", 1917:
   the loss formula B. It holds for every law of repair times with the same mean (insensitivity).
.. [2] S. Gandhi et al., "ReCycle: Resilient Training of Large DNNs using Pipeline Adaptation", SOSP 2024, Sec. 3: data-parallel peers of a
   broken stage take its microbatches, in bubbles. I. Jang et al., "Oobleck: Resilient Distributed Training of Large Models Using Pipeline
   Templates", SOSP 2023 (nodes of a broken pipeline stand in for others).
.. [3] A. A. Fredericks, "Congestion in Blocking Systems - A Simple Approximation Technique", Bell System Technical Journal 59(6), 1980.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from crossflow.base.arrays import Array, points

_REACH = 8.0  # standard deviations beyond the mean in which a Poisson sum ends
_NEVER = 1e-100  # probability that is none
MOST_SPARES = 20_000  # of one run


def erlang_loss(spares: Array, load: Array) -> Array:
    """Probability that a failure finds all spares in repair, Erlang's B [1]_; between whole numbers of spares its logarithm is linear.

    spares : nodes beside those at work; not only of one value. [1]
    load : failures that take a node out, a time of repair. [1]

    >>> print(erlang_loss(np.array([0.0, 1.0, 2.0]), np.array([1.0])).round(3))
    [1.  0.5 0.2]
    """
    wanted, offered = np.broadcast_arrays(np.asarray(spares, dtype=float), np.asarray(load, dtype=float))
    lost, found = np.ones_like(offered), np.where(wanted <= 0, 1.0, np.nan)
    for number in range(1, int(np.ceil(wanted.max(initial=0.0))) + 1):
        before, lost = lost, offered * lost / (number + offered * lost)
        part = np.clip(wanted - (number - 1), 0.0, 1.0)
        found = np.where((part > 0) & (wanted <= number), before ** (1.0 - part) * lost**part, found)
        if not (lost > _NEVER).any():  # further spares change nothing
            break
    found = np.where(np.isnan(found), 0.0, found)
    return np.where(offered > 0, found, np.where(wanted <= 0, 1.0, 0.0))


def missing_replicas(spares: Array, load: Array, replica: Array) -> Array:
    """Mean number of replicas that a job has too few, where nodes in repair are Poisson of mean `load`.

    That is the mean of ceil((K - spares) / replica) where K exceeds the spares: whole nodes of a broken replica stand in for others.
    """
    return _mean_over_missing(spares, load, replica, lambda missing: missing)


def lost_speed(spares: Array, load: Array, replica: Array, replicas: Array, idle: Array) -> Array:
    """Mean share of its speed that a job lacks for want of replicas, of which so many were there; see `speed_without`. [1]"""
    return _mean_over_missing(spares, load, replica, lambda missing: 1.0 - speed_without(missing, replicas, idle))


def peakedness(broken: Sequence[Array], again: Sequence[float]) -> Array:
    """Variance of the nodes in repair over their mean, were there endless spares. [1]

    Of failures by themselves it is 1. A burst takes nodes out nearly together, in number geometric of mean 1 / (1 - a), and batches of N
    have 1 + E[N (N - 1)] / (2 E[N]) = 1 / (1 - a). What is offered in such peaks is lost as a load and spares that are as much smaller
    (Hayward's approximation) [3]_.

    broken : time of repair that each cause brings. [s]  again : share of each that strikes right after another of it. [1]
    """
    whole = sum(broken, np.zeros(1))
    peaks = sum((each / (1.0 - one) for each, one in zip(broken, again, strict=True)), np.zeros(1))
    return np.asarray(np.where(whole > 0, peaks / np.where(whole > 0, whole, 1.0), 1.0))


def speed_without(missing: Array, replicas: Array, idle: Array) -> Array:
    """Speed of a job that lacks some of its replicas, over that of a whole one. [1]

    The others do all of the work. Where they can do it in their pipelines' bubbles, these are filled first: stages that are `idle` for a
    share b of a step do 1 / (1 - b) times as much in the same time [2]_, so that with k of d replicas missing it is
    min(1, (1 - k / d) / (1 - b)). Without such rerouting b is 0.
    """
    return np.asarray(np.clip((1.0 - missing / replicas) / (1.0 - idle), 0.0, 1.0))


def _mean_over_missing(spares: Array, load: Array, replica: Array, value: Callable[[Array], Array]) -> Array:
    """Mean of what rises with the number j of missing replicas: its steps from j to j + 1, times P(K > spares + j replica), summed."""
    from scipy.special import pdtrc

    extent = load + _REACH * np.sqrt(load) + _REACH - spares
    terms = int(np.clip(np.ceil((extent / replica).max(initial=0.0)), 1, MOST_SPARES))
    steps = (value(points(j + 1.0)) - value(points(float(j))) for j in range(terms))
    return np.asarray(sum((step * pdtrc(spares + j * replica, load) for j, step in enumerate(steps)), np.zeros(1)))
