"""Changes as users write them, each a word, ``*`` or ``+``, and a value: ``all_reduce+2ms, compute*0.5, rank[7]*1.2``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from crossflow.base.errors import CrossflowError
from crossflow.base.units import parse

RULE = re.compile(r"^(?P<word>[A-Za-z_]+)(?:\[(?P<inside>[^\]]*)\])?\s*(?P<sign>[*+])\s*(?P<value>\S.*)$")
LARGEST_FACTOR, LONGEST = 1e6, 1e5  # of a change: a factor, and a time that is added, of more than a day [1], [s]
COMMAS = re.compile(r",(?![^\[]*\])")  # that stand in no brackets


def value_of(written: str, sign: str, text: str, *, zero: bool = False) -> float:
    """Value of a change: a factor, which is zero only where it may be, or an amount that is added; else CrossflowError. [1], [s]"""
    try:
        value = parse(text, "1" if sign == "*" else "s")
    except ValueError as error:
        raise CrossflowError(f"what-if '{written}': {error}") from None
    if value < 0 or (sign == "*" and value == 0 and not zero) or not math.isfinite(value):
        raise CrossflowError(f"what-if '{written}': expected a value above zero, got {text}")
    if value > (LARGEST_FACTOR if sign == "*" else LONGEST):
        most = f"a factor of at most {LARGEST_FACTOR:,.0f}" if sign == "*" else f"a time of at most {LONGEST:,.0f} s"
        raise CrossflowError(f"what-if '{written}': expected {most}, got {text}")
    return value


def ranks_of(text: str, place: str) -> tuple[int, ...]:
    """Ranks of a list such as ``0,7`` or ``0-3,8``, in order; CrossflowError names the place where it is none.

    >>> ranks_of("8,0-3", "--ranks")
    (0, 1, 2, 3, 8)
    """
    ranks = sorted(rank for part in text.split(",") for rank in _span(part.strip(), text, place))
    for rank, following in pairwise(ranks):
        if rank == following:
            raise CrossflowError(f"{place}: rank {rank} is given twice in '{text}'")
    return tuple(ranks)


def _span(part: str, text: str, place: str) -> Iterator[int]:
    first, dash, last = part.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
        raise CrossflowError(f"{place}: expected ranks such as 0,7 or 0-3, got '{text}'")
    yield from range(int(first), int(last if dash else first) + 1)


def listed(numbers: Sequence[int]) -> str:
    """Numbers of ranks in few words.

    >>> listed((0, 1, 2, 5, 7, 8))
    '0-2, 5, 7-8'
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, one)) for one in found)
