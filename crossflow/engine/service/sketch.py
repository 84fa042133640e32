"""Running statistics of many values in little memory: exact counts and means, quantiles with a bounded relative error.

References
----------
.. [1] Masson, Rim and Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees", PVLDB 12(12), 2019,
   Sec. 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossflow.base.arrays import Array

ERROR = 1e-3  # of a quantile, relative [1]
GROWTH = np.log((1.0 + ERROR) / (1.0 - ERROR))  # of a bin's bounds, as a logarithm [1]
LEAST, MOST = 1e-9, 1e9  # values that are told apart. [s]
BINS = int(np.ceil(np.log(MOST / LEAST) / GROWTH)) + 1


class Sketch:
    """Values that are counted in bins whose bounds grow alike [1]_; those below `LEAST` are one bin."""

    __slots__ = ("counts", "total", "values")

    def __init__(self) -> None:
        self.counts = np.zeros(BINS)
        self.total, self.values = 0.0, 0.0  # number of values, and their sum

    def add(self, values: Array, weights: Array | None = None) -> None:
        """Count values, each as often as its weight says."""
        if not len(values):
            return
        bins = np.clip(np.ceil(np.log(np.maximum(values, LEAST) / LEAST) / GROWTH).astype(np.intp), 0, BINS - 1)
        self.counts += np.bincount(bins, weights, BINS)
        self.total += float(len(values) if weights is None else weights.sum())
        self.values += float(values.sum() if weights is None else values @ weights)

    def merge(self, other: Sketch) -> None:
        """Count the values of another one too."""
        self.counts = self.counts + other.counts
        self.total, self.values = self.total + other.total, self.values + other.values

    @property
    def mean(self) -> float | None:
        """Mean of the values; None of no values."""
        return self.values / self.total if self.total else None

    def quantile(self, share: float) -> float | None:
        """The value that so large a share does not exceed, within `ERROR` of it; None of no values.

        >>> sketch = Sketch()
        >>> sketch.add(np.arange(1.0, 1001.0))
        >>> abs(sketch.quantile(0.5) / 500.0 - 1.0) <= ERROR
        True
        """
        if not self.total:
            return None
        place = int(np.searchsorted(np.cumsum(self.counts), share * self.total * (1.0 - 1e-12)))
        return float(LEAST * np.exp(place * GROWTH) * 2.0 / (1.0 + np.exp(GROWTH))) if place else 0.0


class Batches:
    """Sketches of batches of values that follow each other: never more than twice `least` of them, for two become one."""

    def __init__(self, least: int, size: int) -> None:
        self.least, self.size = least, size
        self.whole: list[Sketch] = []
        self.last, self.filled = Sketch(), 0

    def add(self, values: Array) -> None:
        """Count values, in order."""
        while len(values):
            some, values = values[: self.size - self.filled], values[self.size - self.filled :]
            self.last.add(some)
            self.filled += len(some)
            if self.filled == self.size:
                self.whole.append(self.last)
                self.last, self.filled = Sketch(), 0
                if len(self.whole) == 2 * self.least:
                    self._pair()

    def _pair(self) -> None:
        for one, other in zip(self.whole[::2], self.whole[1::2], strict=True):
            one.merge(other)
        self.whole, self.size = self.whole[::2], 2 * self.size

    @property
    def all(self) -> Sketch:
        """All values."""
        return merged([*self.whole, self.last])


def merged(sketches: Sequence[Sketch]) -> Sketch:
    """One sketch of the values of several."""
    found = Sketch()
    for one in sketches:
        found.merge(one)
    return found
