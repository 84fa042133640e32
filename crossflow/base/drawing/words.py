"""Words on pictures and tables: values, numbers and names as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from crossflow.base.units import show

LONGEST = 32  # characters of a name on an axis or in a legend
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_DOLLARS = ((1e9, "billion "), (1e6, "million "), (1e3, "thousand "), (1.0, ""))
_SCALES = {
    "USD": _DOLLARS, "m2": ((1e-6, "mm2"), (1e-12, "um2")), "m": ((1.0, "m"), (1e-3, "mm"), (1e-6, "um")),
    "s": ((86400.0, "days"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")), "V": _PREFIXES[5:6],
}  # fmt: skip
_PREFIXED = ("s", "J", "W", "B", "B/s", "flop", "flop/s", "Hz", "V", "USD")


def label(value: Any) -> str:
    """How a swept value is written in tables and plots; a system or workload by its name or title, where it has one.

    >>> label({"dp": 8, "pp": 2}), label(0.30000000000000004), label("N7"), label({"template": "dgx-h100", "name": "a pair", "nodes": 2})
    ('dp8 pp2', '0.3', 'N7', 'a pair')
    >>> label({"chunk": 128, "speculation": {"tokens": 3, "acceptance": 0.7}})
    'chunk=128, speculation=(tokens=3, acceptance=0.7)'
    """
    if isinstance(value, Mapping):
        if named := value.get("name", value.get("title")):
            return str(named)
        if all(type(part) is int and len(key) < 3 for key, part in value.items()):  # degrees, as strategies write them
            return " ".join(f"{key}{part}" for key, part in value.items())
        return ", ".join(f"{key}={f'({label(part)})' if isinstance(part, Mapping) else label(part)}" for key, part in value.items())
    return show(value, "1") if isinstance(value, float) else str(value)


def number(value: float, digits: int = 4) -> str:
    """A number as people read it.

    >>> number(65536), number(0.123456), number(3.2e9)
    ('65,536', '0.1235', '3.2e+09')
    """
    large = 10**digits <= abs(value) < 1e8
    return f"{value:,.0f}" if large else f"{value:.{digits}g}"


def signed(value: float, unit: str) -> str:
    """A difference with its unit and its sign.

    >>> signed(0.002, "s"), signed(-3.0, "s")
    ('+2 ms', '-3 s')
    """
    return f"{'+' if value >= 0 else '-'}{quantity(abs(value), unit)}"


def short(text: str, most: int = LONGEST) -> str:
    """A name cut in its middle where it is too long for an axis.

    >>> short("a-name-without-end", 11)
    'a-nam…t-end'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"


# ------------------------------------------------------------------------------------------ figures


def prefixed(largest: float, unit: str) -> tuple[float, str]:
    """How much of an SI unit an axis is written in, and its name, by the largest number on it.

    >>> prefixed(0.02, "s"), prefixed(3e5, "s"), prefixed(8e10, "B"), prefixed(6e-4, "m2"), prefixed(0.4, "1")
    ((0.001, 'ms'), (86400.0, 'days'), (1000000000.0, 'GB'), (1e-06, 'mm2'), (1.0, ''))
    """
    if unit in ("m2", "m"):
        return next((pair for pair in _SCALES[unit] if largest >= pair[0]), _SCALES[unit][-1])
    if unit not in _PREFIXED or not 0 < largest < math.inf:
        return 1.0, "" if unit == "1" else unit
    scales = _SCALES.get(unit, _PREFIXES)
    factor, prefix = next((pair for pair in scales if largest >= pair[0] * (1 - 1e-9)), scales[-1])
    return factor, prefix if unit == "s" else prefix + unit


def quantity(value: float, unit: str, digits: int = 3) -> str:
    """A number with its unit, as at the end of an axis.

    >>> quantity(0.0214, "s"), quantity(65536, "1"), quantity(4e-11, "J/B")
    ('21.4 ms', '65,536', '5 pJ/bit')
    """
    if unit not in ("1", "m2", "m", *_PREFIXED):
        return show(value, unit, digits)
    factor, written = prefixed(abs(value), unit)
    return f"{number(value / factor, digits)} {written}".strip()
