"""Units: what each measures, and how many of the base units it is.

Base units are those of the SI, and beside them the byte, the operation, the dollar and the clock cycle. The bit is an eighth of a byte
and no bare number, so that "3" does not pass for "3 B".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

Measure = tuple[float, Mapping[str, int]]  # how many of the base units, and their powers

PREFIXES = {
    "": 1.0, "yotta": 1e24, "zetta": 1e21, "exa": 1e18, "peta": 1e15, "tera": 1e12, "giga": 1e9, "mega": 1e6, "kilo": 1e3, "centi": 1e-2,
    "milli": 1e-3, "micro": 1e-6, "nano": 1e-9, "pico": 1e-12, "femto": 1e-15, "atto": 1e-18, "kibi": 2.0**10, "mebi": 2.0**20,
    "gibi": 2.0**30, "tebi": 2.0**40, "Y": 1e24, "Z": 1e21, "E": 1e18, "P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "c": 1e-2,
    "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15, "a": 1e-18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30,
    "Ti": 2.0**40,
}  # fmt: skip
_UNITS: Mapping[str, Measure] = {
    name: (scale, powers)
    for names, scale, powers in (
        ("meter m", 1.0, {"m": 1}),
        ("second s", 1.0, {"s": 1}),
        ("minute min", 60.0, {"s": 1}),
        ("hour h", 3600.0, {"s": 1}),
        ("day", 86400.0, {"s": 1}),
        ("year", 365.0 * 86400.0, {"s": 1}),
        ("gram g", 1e-3, {"kg": 1}),
        ("tonne t", 1e3, {"kg": 1}),
        ("ampere A", 1.0, {"A": 1}),
        ("byte B", 1.0, {"B": 1}),
        ("bit b", 0.125, {"B": 1}),
        ("flop op", 1.0, {"flop": 1}),
        ("usd USD", 1.0, {"USD": 1}),
        ("cycle", 1.0, {"cycle": 1}),
        ("hertz Hz", 1.0, {"s": -1}),
        ("newton N", 1.0, {"kg": 1, "m": 1, "s": -2}),
        ("joule J", 1.0, {"kg": 1, "m": 2, "s": -2}),
        ("watt W", 1.0, {"kg": 1, "m": 2, "s": -3}),
        ("volt V", 1.0, {"kg": 1, "m": 2, "s": -3, "A": -1}),
        ("watt_hour Wh", 3600.0, {"kg": 1, "m": 2, "s": -2}),
    )
    for name in names.split()
}
_PART = re.compile(r"(?P<over>/)? ?(?P<name>[A-Za-zµ_%]+)(?:\*\*)?(?P<power>-?\d)?")


def measured(unit: str) -> Measure:
    """What a product or quotient of units measures, each of them a name, perhaps with a power; KeyError for the name of none.

    >>> measured("GB/s"), measured("1/mm2")[1]
    ((1000000000.0, {'B': 1, 's': -1}), {'m': -2})
    """
    scale, powers = 1.0, Counter[str]()
    for part in _PART.finditer(unit):
        own, of = _named(part["name"])
        often = int(part["power"] or 1) * (-1 if part["over"] else 1)
        scale *= own**often
        powers.update({base: power * often for base, power in of.items()})
    return scale, {base: power for base, power in powers.items() if power}


def _named(name: str) -> Measure:
    """A unit by its name or symbol, perhaps after a prefix; one that is longer than a letter may have the s of a plural."""
    for stem in dict.fromkeys((name, name.removesuffix("s"))):
        for prefix, scale in PREFIXES.items():
            rest = stem.removeprefix(prefix)
            if stem.startswith(prefix) and rest in _UNITS and (stem == name or len(rest) > 1):
                own, of = _UNITS[rest]
                return scale * own, of
    raise KeyError(name)
