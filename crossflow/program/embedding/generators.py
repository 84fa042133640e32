"""Synthetic indices of embedding look-ups that have given reuse factors."""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.program.embedding.reuse import HITS, by_class


def row_hits(factors: Array, lookups: int) -> Index:
    """Hits of every row that is hit, so that they have reuse factors of indices, shape (bins,), and add up to the look-ups. [1]

    From the most hits to one, each class takes whole rows; look-ups that are too few for one more row go to the next class. So a bin
    whose rows are hit more often than its share of the look-ups leaves what it has to those below.
    """
    rest, found = 0.0, list[Index]()
    for hits, wanted in zip(HITS[::-1], by_class(factors)[::-1] * lookups, strict=True):
        rows, rest = divmod(rest + wanted, hits)
        found.append(np.full(int(rows), int(hits)))
    short = lookups - sum(int(some.sum()) for some in found)  # the last part of a row, by rounding
    return np.concatenate([*found, np.ones(short, dtype=np.intp)])


def indices(factors: Array, *, lookups: int, rows: int, rng: np.random.Generator) -> Index:
    """Indices of a batch in random order, shape (lookups,), whose reuse factors are those asked for, shape (bins,).

    Raises
    ------
    ValueError
        Where so many look-ups need more different rows than the table has.
    """
    hits = row_hits(factors, lookups)
    if len(hits) > rows:
        raise ValueError(f"{lookups} look-ups of these reuse factors hit {len(hits)} different rows, the table has {rows}")
    chosen = rng.permutation(rows)[: len(hits)] if rows < 8 * len(hits) else rng.choice(rows, len(hits), replace=False, shuffle=True)
    return np.asarray(rng.permutation(np.repeat(chosen, hits)))
