"""Which of many similar cases run: by default a part that is always the same, with ``ALL_CASES=1`` in the environment all of them."""

import os
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")
ALL = os.environ.get("ALL_CASES", "") not in ("", "0")


def every(step: int, cases: Sequence[Case], first: int = 0) -> list[Case]:
    """Every `step`-th case, from the one whose number has the same rest as `first`: tests with other `first` take the others."""
    return list(cases) if ALL else list(cases)[first % step :: step]


def fewer(many: int, few: int) -> int:
    """How many examples are drawn."""
    return many if ALL else few
