"""Numbers drawn from laws: lengths, times, counts, and two lengths that are correlated.

References
----------
.. [1] Iman and Conover, "A Distribution-Free Approach to Inducing Rank Correlation Among Input Variables", Communications in
   Statistics B11(3), 1982.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.workload.requests.laws import TOKENS, CountLaw, LengthLaw, TimeLaw, normal_of

Lengths = Callable[[LengthLaw, int], Index]  # values of the file of an empirical law, none below a least one


def lengths(law: LengthLaw, n: int, rng: np.random.Generator, values_of: Lengths, least: int = 1) -> Index:
    """Tokens by a law, shape (n,). [1]"""
    if law.law == "fixed":
        found = np.full(n, law.tokens, dtype=np.intp)
    elif law.law == "uniform":
        assert law.low is not None  # the law's keys are checked
        assert law.high is not None
        found = rng.integers(law.low, law.high, n, dtype=np.intp, endpoint=True)
    elif law.law == "empirical":
        values = values_of(law, least) if law.values is None else np.array(law.values, dtype=np.intp)
        found = rng.choice(values, n)
    else:
        mean, deviation = normal_of(law.median, law.p95, law.mean, law.cv)
        found = np.rint(np.clip(np.exp(mean + deviation * rng.standard_normal(n)), 1.0, TOKENS)).astype(np.intp)
    return found if law.most is None else np.minimum(found, law.most)


def times(law: TimeLaw, n: int, rng: np.random.Generator) -> Array:
    """Times by a law, shape (n,). [s]"""
    if law.law == "fixed":
        return np.full(n, law.time, dtype=float)
    if law.law == "exponential":
        assert law.mean is not None  # the law's keys are checked
        return rng.exponential(law.mean, n)
    if law.law == "uniform":
        assert law.low is not None
        assert law.high is not None
        return rng.uniform(law.low, law.high, n)
    mean, deviation = normal_of(law.median, law.p95, law.mean, law.cv)
    return np.asarray(np.exp(mean + deviation * rng.standard_normal(n)))


def counts(law: CountLaw, n: int, rng: np.random.Generator, least: int) -> Index:
    """Whole numbers by a law, shape (n,); a geometric one begins at `least`. [1]"""
    if law.law == "fixed":
        return np.full(n, law.number, dtype=np.intp)
    if law.law == "uniform":
        assert law.low is not None  # the law's keys are checked
        assert law.high is not None
        return rng.integers(law.low, law.high, n, dtype=np.intp, endpoint=True)
    if law.law == "empirical":
        shares = None if law.weights is None else np.array(law.weights) / sum(law.weights)
        return rng.choice(np.array(law.values, dtype=np.intp), n, p=shares)
    assert law.mean is not None
    return rng.geometric(1.0 / (law.mean - least + 1.0), n).astype(np.intp) - 1 + least


def coupled(first: Index, second: Index, correlation: float, rng: np.random.Generator) -> Index:
    """The second lengths in another order, so that both have the ranks of normal variables of a correlation [1]_; both keep their laws."""
    z = rng.standard_normal((2, len(first)))
    z[1] = correlation * z[0] + np.sqrt(1.0 - correlation**2) * z[1]
    # Ranks of the first lengths, ties in the order of z, are those of z[0]: the second take the places of z[1] in that order.
    place = np.empty(len(first), dtype=np.intp)
    place[np.lexsort((rng.random(len(first)), first))] = np.argsort(z[0])
    ranks = np.empty(len(first), dtype=np.intp)
    ranks[np.argsort(z[1])] = np.arange(len(first))
    return np.asarray(np.sort(second)[ranks[place]])
