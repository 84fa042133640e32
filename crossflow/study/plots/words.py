"""Words on pictures and tables: values, numbers and names as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossflow.units import show

LONGEST = 32  # characters of a name on an axis or in a legend


def label(value: Any) -> str:
    """How a swept value is written in tables and plots; a system or workload by its name or title, where it has one.

    >>> label({"dp": 8, "pp": 2}), label(0.30000000000000004), label("N7"), label({"template": "dgx-h100", "name": "a pair", "nodes": 2})
    ('dp8 pp2', '0.3', 'N7', 'a pair')
    """
    if isinstance(value, Mapping):
        named = value.get("name", value.get("title"))
        return str(named) if named else " ".join(f"{key}{part}" for key, part in value.items())
    return show(value, "1") if isinstance(value, float) else str(value)


def number(value: float, digits: int = 4) -> str:
    """A number as people read it.

    >>> number(65536), number(0.123456), number(3.2e9)
    ('65,536', '0.1235', '3.2e+09')
    """
    large = 10**digits <= abs(value) < 1e8
    return f"{value:,.0f}" if large else f"{value:.{digits}g}"


def short(text: str, most: int = LONGEST) -> str:
    """A name cut in its middle where it is too long for an axis.

    >>> short("a-name-without-end", 11)
    'a-nam…t-end'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"


# ------------------------------------------------------------------------------------------ figures
