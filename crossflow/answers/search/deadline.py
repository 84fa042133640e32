"""When a search must end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """The end of a budget of time, on a clock that nobody sets.

    In another process, perhaps on another machine, the time of day tells what is left of it, at most the whole budget.
    """

    seconds: float  # the whole budget [s]
    day: float  # the end by the time of day, `time.time` [s]
    clock: float  # the end by the clock of this process, `time.monotonic` [s]

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """A budget that begins now."""
        return cls(seconds=seconds, day=time.time() + seconds, clock=time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Whether the budget is spent."""
        return time.monotonic() > self.clock

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent with its end by the time of day."""
        return _arrived, (self.seconds, self.day)


def _arrived(seconds: float, day: float) -> Deadline:
    left = min(max(day - time.time(), 0.0), seconds)
    return Deadline(seconds=seconds, day=day, clock=time.monotonic() + left)
