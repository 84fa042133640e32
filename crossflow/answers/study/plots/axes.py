"""What stands at the axes of a plot: names of columns with their units, places of values, groups of rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from crossflow.answers import score
from crossflow.answers.study.plots.columns import PARTS, SEARCH, Columns, column, distinct, places_of, values_of
from crossflow.answers.study.plots.view import View
from crossflow.base.arrays import Array
from crossflow.base.drawing.canvas import Scale, Ticks
from crossflow.base.drawing.words import label, number, prefixed
from crossflow.base.units import converted, parse

SPREAD = 10.0  # largest over smallest value, beyond which an axis is logarithmic
MOST_NUMBERS, BINS = 40, 20  # different numbers of a column, beyond which they are shown in so many ranges
NAMES = {
    "ttft_s": "Time to first token", "tpot_s": "Time per output token", "e2el_s": "Time of a request",
    "input_throughput_tokens_per_s": "Input tokens per second", "output_throughput_tokens_per_s": "Output tokens per second",
    "request_throughput_per_s": "Requests per second", "usd_per_million_samples": "Rent of a million samples",
    "usd_per_million_tokens": "Rent of a million tokens",
    "energy_j": "Energy of a step", "mfu": "Model flop utilisation", "flops": "Operations of a step",
    "intensity_flop_per_byte": "Computation intensity", SEARCH: "Search", **{word: text.capitalize() for word, text in PARTS.items()},
}  # fmt: skip
GROUPS = {
    "breakdown_s": "Step time", "communication_s": "Communication time", "exposed_communication_s": "Exposed communication time",
    "bound_share": "Share of the step", "memory_bytes": "Memory of the fullest device", "architecture.cost": "Cost of a device",
    "run": "Whole run",
}  # fmt: skip
SHARES = ("bound_share.", "mfu", "exposed_share", "measured_share")  # columns that are written in percent
_QUANTITY = re.compile(r"^\s*[+-]?\d[\d_]*\.?\d*(?:[eE][+-]?\d+)?\s*([A-Za-z%µ]\S*)\s*$")


class RowGroups(NamedTuple):
    """Rows by what they have of a column: the names of the groups in order, and the group of each row, -1 for none."""

    label: str
    names: list[str]
    group: Any  # shape (rows,)


# ------------------------------------------------------------------------------------------ names and units


def unit_of(name: str, units: Mapping[str, str]) -> str:
    """SI unit of a column or a searched path, ``1`` where it has none.

    >>> unit_of("breakdown_s.compute", {}), unit_of("system.budgets.power", {"system.budgets.power": "W"}), unit_of("mfu", {})
    ('s', 'W', '1')
    """
    return units.get(name) or score.unit_of(name)


def title_of(name: str) -> str:
    """What a column is called at an axis; of a path its last part.

    >>> title_of("memory_needed_bytes"), title_of("bound_share.l2"), title_of("architecture.used.area"), title_of("run.time_s")
    ('Memory needed', 'Share of the step: l2', 'Used area', 'Whole run: time')
    """
    group, dot, part = name.rpartition(".")
    if name in NAMES:
        return NAMES[name]
    if name.startswith("architecture.") and group not in GROUPS:
        part = name.removeprefix("architecture.").replace(".", " ")
    text = score.words(part) if not dot or group == "run" else part.replace("_", " ")
    if group in GROUPS:
        return f"{GROUPS[group]}: {text}"
    return text[:1].upper() + text[1:]


def shorten(names: Sequence[str]) -> list[str]:
    """Paths by as few of their last parts as tell them apart.

    >>> shorten(["a.memory.latency", "a.link.latency", "a.memory.energy"])
    ['memory.latency', 'link.latency', 'energy']
    """
    parts = [name.split(".") for name in names]
    kept = []
    for own in parts:
        others = [other for other in parts if other != own]
        length = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        kept.append(".".join(own[-length:]))
    return kept


def scale(view: View, name: str, values: Any, given: str = "", log: bool | None = None) -> Scale:
    """Axis of the numbers of a column; logarithmic where they spread far, unless that is given.

    A label that the study gives stands as it is, over numbers in the SI unit.
    """
    finite = np.abs(np.asarray(values, dtype=float))
    finite = finite[np.isfinite(finite)]
    factor, unit = written_in(name, float(finite.max(initial=0.0)), view)
    wide = far(values) if log is None else log and bool((np.asarray(values) > 0).any())
    return Scale(given, 1.0, wide) if given else Scale(f"{title_of(name)} [{unit}]" if unit else title_of(name), factor, wide)


def written_in(name: str, largest: float, view: View) -> tuple[float, str]:
    """How much of the SI unit a column is written in, and its name; percent where it is a share."""
    return (0.01, "%") if name.startswith(SHARES) else prefixed(largest, unit_of(name, view.units))


def far(values: Any) -> bool:
    """Whether numbers, all greater than zero, spread so far that their logarithm is shown."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    return bool(finite.size and finite.min() > 0 and finite.max() > SPREAD * finite.min())


# ------------------------------------------------------------------------------------------ places


def numbers(values: Sequence[Any]) -> tuple[list[float], str] | None:
    """Values as numbers with the one unit that they are written in; None where one of them is a name.

    >>> numbers(["300 W", "250 W"]), numbers([8, 64]), numbers(["N7", "N5"])
    (([300.0, 250.0], 'W'), ([8.0, 64.0], ''), None)
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], ""
    found = [_QUANTITY.match(value) if isinstance(value, str) else None for value in values]
    units = {match[1] for match in found if match is not None}
    if None in found or len(units) != 1:
        return None
    unit = units.pop()
    try:
        if unit != "%":
            converted(unit, unit)  # a ValueError for what is none
        return [parse(value, "1" if unit == "%" else unit) * (100.0 if unit == "%" else 1.0) for value in values], unit
    except ValueError:
        return None


def numeric(held: Any) -> tuple[Array, str] | None:
    """A column as numbers, NaN for what is missing, with the unit that they are written in; None where it holds names."""
    if held.dtype.kind == "f":
        return held, ""
    present = [i for i, value in enumerate(held) if value is not None]
    known = numbers([held[i] for i in present])
    if known is None or not present:
        return None
    values = np.full(len(held), np.nan)
    values[present] = known[0]
    return values, known[1]


def ticks(view: View, name: str, labels: Mapping[str, str], given: str = "", *, real: bool = True) -> Ticks:
    """Axis of a swept path or of the searches: numbers where they are, unless labels name them; else names in their order."""
    values = values_of(view, name)
    written = [written_as(value, labels) for value in values]
    title = given or title_of(name)
    known = numbers(values) if real and not any(label(value) in labels for value in values) else None
    if known is None or len(values) < 2:
        return Ticks(title, [float(i) for i in range(len(values))], written)
    places, unit = known
    title = title if given or not unit else f"{title} [{unit}]"
    return Ticks(title, places, [number(place) for place in places], True, far(places))


def written_as(value: Any, labels: Mapping[str, str]) -> str:
    """How a value is written in a plot; nothing for None."""
    return "" if value is None else labels.get(str(value), label(value))


def panel_name(path: str | None, value: Any, labels: Mapping[str, str]) -> str:
    """What stands above a panel: a name as it is, a bare number after what it is a number of."""
    text = written_as(value, labels)
    return f"{title_of(path)}: {text}" if path is not None and isinstance(value, int | float) else text


def groups(view: View, columns: Columns, name: str, labels: Mapping[str, str], given: str = "") -> RowGroups:
    """Rows by their value of a column or swept path: numbers by size, many of them in ranges; names in their order."""
    held = column(columns, name)
    values = values_of(view, name) or distinct(held)
    known = numbers(values)
    if known is None or not values:
        return RowGroups(given or title_of(name), [written_as(value, labels) for value in values], places_of(columns, name, values))
    sizes, unit = known
    if len(values) > MOST_NUMBERS and held.dtype.kind == "f":
        return _ranges(view, name, held, given)
    values = [values[i] for i in np.argsort(sizes, kind="stable")]
    factor, si = prefixed(max(map(abs, sizes)), unit_of(name, view.units)) if not unit and not given else (1.0, unit)
    names = [labels.get(label(value), number(size / factor)) for value, size in zip(values, sorted(sizes), strict=True)]
    title = given or (f"{title_of(name)} [{si}]" if si else title_of(name))
    return RowGroups(title, names, places_of(columns, name, values))


def _ranges(view: View, name: str, held: Array, given: str) -> RowGroups:
    """Rows by ranges of equal width of a number, or of its logarithm where it spreads far."""
    axis = scale(view, name, held, given)
    finite = held[np.isfinite(held)]
    edges = (np.geomspace if axis.log else np.linspace)(finite.min(), finite.max(), BINS + 1)
    index = np.clip(np.searchsorted(edges, held, side="right") - 1, 0, BINS - 1)
    names = [f"{number(low / axis.factor, 3)}–{number(high / axis.factor, 3)}" for low, high in itertools.pairwise(edges)]
    return RowGroups(axis.label, names, np.where(np.isfinite(held), index, -1))
