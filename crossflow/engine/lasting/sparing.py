"""Spares and repairs as a queue: how often a broken node finds no spare, and how many spares are worth their rent.

References
----------
.. [1] A. K. Erlang, "Solution of some problems in the theory of probabilities of significance in automatic telephone exchanges", 1917:
   the loss formula B. It holds for every law of repair times with the same mean (insensitivity).
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array

_REACH = 8.0  # standard deviations beyond the mean in which a Poisson sum ends
_NEVER = 1e-100  # probability that is none
MOST_SPARES = 20_000  # of one run


def erlang_loss(spares: Array, load: Array) -> Array:
    """Probability that a failure finds all spares in repair, Erlang's B [1]_.

    spares : nodes beside those at work; not only whole numbers of one value. [1]
    load : failures that take a node out, a time of repair. [1]

    >>> print(erlang_loss(np.array([0.0, 1.0, 2.0]), np.array([1.0])).round(3))
    [1.  0.5 0.2]
    """
    wanted, offered = np.broadcast_arrays(np.asarray(spares, dtype=float), np.asarray(load, dtype=float))
    lost, found = np.ones_like(offered), np.where(wanted <= 0, 1.0, np.nan)
    for number in range(1, int(wanted.max(initial=0.0)) + 1):
        lost = offered * lost / (number + offered * lost)
        found = np.where(wanted == number, lost, found)
        if not (lost > _NEVER).any():  # further spares change nothing
            break
    found = np.where(np.isnan(found), 0.0, found)
    return np.where(offered > 0, found, np.where(wanted <= 0, 1.0, 0.0))


def missing_replicas(spares: Array, load: Array, replica: Array) -> Array:
    """Mean number of replicas that a job has too few, where nodes in repair are Poisson of mean `load`.

    That is the mean of ceil((K - spares) / replica) where K exceeds the spares: whole nodes of a broken replica stand in for others.
    Summed as P(K > spares + j replica) over j = 0, 1, ...
    """
    from scipy.special import pdtrc

    extent = load + _REACH * np.sqrt(load) + _REACH - spares
    terms = int(np.clip(np.ceil((extent / replica).max(initial=0.0)), 1, MOST_SPARES))
    return np.asarray(sum((pdtrc(spares + j * replica, load) for j in range(terms)), np.zeros(1)))
