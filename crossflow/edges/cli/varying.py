"""Values of a path as the command line takes them: `--vary PATH=A,B,C`, and ranges of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from crossflow.answers.study.spec import SpacedRange, spaced
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document

MOST = 100_000  # values of a path, and points of a sweep without a study
_COUNTED = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_POWERS = re.compile(r"(\d{1,18})\^(\d{1,3})\.\.\1\^(\d{1,3})")
_SPACED = re.compile(r"([^:]+):([^:]+):(\d{1,9})")
_UNIT = re.compile(
    r"(.*\d)(?:\s*((?![eE]\d|[xX])[A-Za-zµ][A-Za-zµ0-9/*^ ]*)|\s+(1 ?/ ?[A-Za-z]+))"
)  # not an exponent, nor a number in other digits
_BARE = re.compile(r"[+\-.:^eE\d]*\d")  # a number or a range of numbers
_RANGE = re.compile(r"[:^]|\.\.")
_NUMBER = re.compile(r"\s*[+-]?\.?\d")


def varied(text: str, example: str) -> tuple[str, list[Any]]:
    """A path and its values.

    >>> varied("strategy=tp8,tp4-dp2", ""), varied("system.nodes=1..3, 8", ""), varied("batch=2^3..2^5", "")
    (('strategy', ['tp8', 'tp4-dp2']), ('system.nodes', [1, 2, 3, 8]), ('batch', [8, 16, 32]))
    >>> varied("system.network.inter.bandwidth=25 GB/s:50 GB/s:2", "")
    ('system.network.inter.bandwidth', ['25 GB/s', '50 GB/s'])

    A unit behind the last value or range is that of all, where they have none:

    >>> varied("system.network.inter.bandwidth=25,50,100 GB/s", ""), varied("system.power=600:700:3 W", "")
    (('system.network.inter.bandwidth', ['25 GB/s', '50 GB/s', '100 GB/s']), ('system.power', ['600 W', '650 W', '700 W']))
    >>> varied("rate=1,2 1/s", ""), varied("batch=100,1e3", "")
    (('rate', ['1 1/s', '2 1/s']), ('batch', [100, 1000.0]))
    >>> varied("system.power=600:700 W:2", "")
    ('system.power', ['600 W', '700 W'])
    """
    path, sign, given = text.partition("=")
    path = path.strip()
    if not (path and sign and given.strip()):
        raise CrossflowError(f"--vary {text}: expected a path with its values, such as {example}")
    listed, unit = _measured(parts(given))
    values = [f"{value} {unit}" if unit else value for part in listed for value in _values(text, path, part)]
    if len(values) > MOST:
        raise CrossflowError(f"--vary {text}: {len(values):,} values; at most {MOST:,} are taken here")
    return path, values


def parts(given: str) -> list[str]:
    """A list at its commas, or at its semicolons where there are any, but not inside brackets.

    >>> parts("tp8, tp4-dp2"), parts('{"tp": 4, "dp": 2}, tp8'), parts("tp=8,dp=1; tp=4,dp=2")
    (['tp8', 'tp4-dp2'], ['{"tp": 4, "dp": 2}', 'tp8'], ['tp=8,dp=1', 'tp=4,dp=2'])
    """
    mark, depth, found = ";" if ";" in given else ",", 0, [""]
    for letter in given:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == mark and depth <= 0:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found]


def _measured(listed: list[str]) -> tuple[list[str], str]:
    """Values and ranges without the unit that stands behind the last of them alone, and the unit; none where one has its own."""
    found = _UNIT.fullmatch(listed[-1])
    bare = [*listed[:-1], *([found[1]] if found else [])]
    if found is None or not all(map(_BARE.fullmatch, bare)) or (len(bare) == 1 and not _RANGE.search(bare[0])):
        return listed, ""
    return bare, found[2] or found[3]


def _values(text: str, path: str, part: str) -> Iterator[Any]:
    if not part:
        raise CrossflowError(f"--vary {text}: a value is empty; give values with a comma between two of them")
    if found := _POWERS.fullmatch(part) or _COUNTED.fullmatch(part):
        *powers, first, last = map(int, found.groups())
        if last < first:
            raise CrossflowError(f"--vary {text}: {part} ends before it begins; write the smaller number first")
        if last - first >= MOST:
            raise CrossflowError(f"--vary {text}: {last - first + 1:,} values; at most {MOST:,} are taken here")
        yield from (powers[0] ** one if powers else one for one in range(first, last + 1))
    elif (found := _SPACED.fullmatch(part)) and _NUMBER.match(found[1]) and _NUMBER.match(found[2]):
        if not 0 < int(found[3]) <= MOST:
            raise CrossflowError(f"--vary {text}: expected FROM:TO:COUNT with 1 to {MOST:,} values, got {part}")
        start, measured = found[1].strip(), _UNIT.fullmatch(found[2].strip())
        start = f"{start} {measured[2] or measured[3]}" if measured and _BARE.fullmatch(start) else start
        ends = SpacedRange.model_validate({"from": start, "to": found[2].strip(), "count": int(found[3])})
        numbers = spaced(ends, Document(file=f"--vary {text}", data={}), ("sweep", path))
        yield from (int(one) if isinstance(one, float) and one.is_integer() else one for one in numbers)
    elif part[0] in "{[":
        yield files.parse_yaml(part, f"--vary {path}").data
    else:
        yield files.scalar(part)
