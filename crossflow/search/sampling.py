"""Random search: designs that do not depend on one another, drawn batch by batch from seeds of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crossflow.search.oracle import Oracle
from crossflow.search.settings import RandomSettings
from crossflow.search.space import Designs, Space

BATCH = 4096


def search(oracle: Oracle, settings: RandomSettings, rng: np.random.Generator) -> None:
    """Evaluate `settings.evaluations` random designs."""
    oracle.each(drawn(oracle.problem.space, settings.evaluations, rng))


def drawn(space: Space, n: int, rng: np.random.Generator) -> Iterator[Designs]:
    """Random designs in batches."""
    for start in range(0, n, BATCH):
        yield space.sample(rng, min(BATCH, n - start))
