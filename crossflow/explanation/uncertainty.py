"""Uncertain numbers: draws of all that carry low and high, and what the spread of results says.

All designs of a study are evaluated with the same draws, so that comparisons between designs are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from crossflow.arrays import Array

if TYPE_CHECKING:
    from crossflow.explanation.parameters import Parameter

Distribution = Literal["triangular", "uniform"]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What the draws say of one figure."""

    low: float
    median: float
    mean: float
    high: float


def draws(numbers: Sequence[Parameter], count: int, distribution: Distribution, seed: Sequence[int]) -> dict[str, Array]:
    """Independent draws of every number, by path, each of shape (count,); whole quantities are drawn whole."""
    rng = np.random.default_rng(list(seed))
    table = {}
    for number in numbers:
        low, high = float(number.low or 0.0), float(number.high or 0.0)
        uniform = distribution == "uniform"
        drawn = rng.uniform(low, high, count) if uniform else rng.triangular(low, min(max(number.value, low), high), high, count)
        table[number.path] = np.round(drawn) if number.quantity.whole else drawn
    return table


def interval(values: Array, share: float) -> Interval:
    """Median, mean, and the interval that holds a share of the values, as much above it as below; infinite ones count."""
    ordered = np.sort(np.where(np.isnan(values), np.inf, values))
    # By position, not interpolated: infinity minus infinity has no value.
    at = [round(part * (len(ordered) - 1)) for part in ((1.0 - share) / 2.0, 0.5, (1.0 + share) / 2.0)]
    low, median, high = (float(ordered[i]) for i in at)
    return Interval(low=low, median=median, mean=float(ordered.mean()), high=high)


def probability_better(one: Array, other: Array) -> float:
    """Share of the paired draws in which one is smaller than the other; equal ones count half. [1]"""
    return float(np.mean(one < other) + 0.5 * np.mean(one == other))


def importance(drawn: Mapping[str, Array], figure: Array) -> dict[str, float]:
    """Spearman rank correlation of a figure with every drawn number: sign and strength of what its spread does. [1]

    Zero where the figure does not vary. Numbers are drawn independently, so that the squares are about the shares of the
    figure's variance in ranks.
    """
    ranks = _ranks(figure)
    return {path: _correlation(_ranks(values), ranks) for path, values in drawn.items()}


def _ranks(values: Array) -> Array:
    """Ranks from 0, equal values sharing their mean rank."""
    _, which, counts = np.unique(np.where(np.isnan(values), np.inf, values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2.0)[which])


def _correlation(one: Array, other: Array) -> float:
    a, b = one - one.mean(), other - other.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else 0.0
