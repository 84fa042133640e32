"""The least number that passes a test which more of the same pass too, by few tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def least(numbers: Sequence[int], passes: Callable[[int], bool], guess: int = 0) -> int | None:
    """The first of rising numbers that passes; None where none does. Steps double away from a guess, then their last one is halved.

    Every number after one that passes is taken to pass.

    Parameters
    ----------
    guess : number near which the first that passes is expected.

    >>> asked = []
    >>> least(range(1, 101), lambda n: bool(asked.append(n)) or n >= 13, guess=14), asked
    (13, [14, 13, 11, 12])
    """
    start = min(sum(number < guess for number in numbers), len(numbers) - 1)
    if start < 0:
        return None
    low, high = _down(numbers, passes, start) if passes(numbers[start]) else _up(numbers, passes, start)
    if high == len(numbers):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(numbers[middle]) else (middle, high)
    return numbers[high]


def _down(numbers: Sequence[int], passes: Callable[[int], bool], high: int) -> tuple[int, int]:
    """Places of a number that fails, -1 for none, and of a later one that passes, from one that passes."""
    step = 1
    while high > 0:
        low = max(high - step, 0)
        if not passes(numbers[low]):
            return low, high
        high, step = low, 2 * step
    return -1, 0


def _up(numbers: Sequence[int], passes: Callable[[int], bool], low: int) -> tuple[int, int]:
    """Places of a number that fails, and of a later one that passes, their count for none, from one that fails."""
    step, last = 1, len(numbers) - 1
    while low < last:
        high = min(low + step, last)
        if passes(numbers[high]):
            return low, high
        low, step = high, 2 * step
    return last, last + 1
