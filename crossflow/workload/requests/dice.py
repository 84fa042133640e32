"""Generators of random numbers, one for each quantity, so that what is drawn of one does not move another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# What each generator draws; the numbers are part of the seed, so that they stay.
GAPS, SWITCHES, KINDS, PROMPTS, OUTPUTS, COUPLING, TURNS, THINKING, CALLS, TOOL_TIMES, TOOL_TOKENS, PREFIXES, USERS, SIZES, LENGTHS = range(
    15
)


class Dice(NamedTuple):
    """Generators of one class."""

    seed: int
    kind: int  # number of the class, 0 for what classes share

    def of(self, what: int) -> np.random.Generator:
        """The generator of a quantity."""
        return np.random.default_rng([self.seed, self.kind, what])
