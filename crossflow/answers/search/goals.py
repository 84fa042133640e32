"""What a search wants, in columns of a score, and what became of designs in its terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.base.arrays import Array

PENALTY = 10.0  # weight of the violation against the logarithm of an objective
REGRET, LOSS = "regret", "loss"  # objectives that are ratios to own bests, as columns
USUAL = "usual_s"  # of members that are judged by other columns each, where nobody names an objective: steps, and requests of services
ENDLESS = 60.0  # merit, and logarithm, beyond which nothing is told apart


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A column of a score to make small, or large."""

    name: str
    maximise: bool = False

    @property
    def sign(self) -> float:
        """Factor that makes a smaller value the better one."""
        return -1.0 if self.maximise else 1.0


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A column of a score that must not be above, or below, a bound."""

    name: str
    bound: float
    at_most: bool = True

    def violation(self, values: Array) -> Array:
        """By how much of the bound it is missed, 0 where it is kept."""
        excess = values - self.bound if self.at_most else self.bound - values
        return np.asarray(np.maximum(np.nan_to_num(excess, nan=np.inf, posinf=np.inf) / max(abs(self.bound), 1e-300), 0.0))


@dataclass(frozen=True, kw_only=True)
class DesignOutcome:
    """What became of some designs."""

    objectives: Array  # shape (objectives, n), natural values
    violation: Array  # shape (n,), 0 where all constraints hold; grows with the logarithm of what is missed. [1]
    rows: Mapping[str, Sequence[Any]]  # columns to record, by name

    def __len__(self) -> int:
        return int(self.violation.size)


def joined(parts: Sequence[DesignOutcome]) -> DesignOutcome:
    """Outcomes of some designs after those of others."""
    if len(parts) == 1:
        return parts[0]
    rows: dict[str, Any] = {name: np.concatenate([np.asarray(part.rows[name]) for part in parts]) for name in parts[0].rows}
    return DesignOutcome(
        objectives=np.concatenate([part.objectives for part in parts], axis=1),
        violation=np.concatenate([part.violation for part in parts]),
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True)
class OwnCase:
    """What a design may be the best for alone: a member with the library's values, or all members in a draw."""

    name: str
    number: int  # of the member, or of the draw
    draw: bool


@dataclass(frozen=True, kw_only=True)
class Losses:
    """How far designs are from each case's own best: that of the search, then the own best of each case."""

    cases: tuple[OwnCase, ...]
    own: Array  # what the own best of each case reaches, shape (cases,)
    loss: Array  # shape (1 + cases, cases), 0 where none is better, infinite where a design cannot run. [1]
