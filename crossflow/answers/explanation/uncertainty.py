"""Uncertain numbers: draws of all that carry low and high, and what the spread of results says.

Numbers of one entry of the library, such as a logic node or a memory, are facets of one technology that turns out well or badly:
they move together, by one quantile between their best ends and their worst; its prices and yields by another, and its carbon by a
third. Quantiles of successive generations of one family (N7, N5, N3; HBM3, HBM4) are correlated through a Gaussian copula, and what
a later generation does better by its values in the library is never worse than in the earlier one, as far as its own range allows.

All designs of a study are evaluated with the same draws, so that comparisons between designs are paired.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from crossflow.base.arrays import Array

if TYPE_CHECKING:
    from crossflow.answers.explanation.parameters import Parameter

Distribution = Literal["triangular", "uniform"]
GENERATIONS = ("techlib.logic", "techlib.memory", "techlib.link")  # sections of the library whose entries follow one another
Movement = Literal["together", "independent"]
# What of a technology is better when it is larger: rates, capacities, densities of links; of voltages only the largest one.
BETTER_UNITS = ("Hz", "B", "B/s", "flop/s", "1/m")
BETTER_NAMES = (
    "maximum_voltage", ".speed", "leakage_doubling", "leakage_temperature", "maximum_temperature", "maximum_links", "per_step",
    "utilisation", "efficiency", "flop_rate", "rates.", "throughput.",
    "bonding_yield", "spare_share", "exposures", "cooling_limit", "delivery_limit", "devices_per_area", "maximum_area", "reticle",
    "power.tdp", "lanes",
)  # fmt: skip
# What does not turn out well because a technology performs well: markets and production decide it, and the fab's supply of energy.
APART = {
    "cost": ("wafer_cost", "defect_density", "device_cost", "link_cost", "cost_per_area", "assembly_cost", "bonding_yield", "spare_share"),
    "carbon": ("carbon_per_area", "carbon_per_capacity"),
}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What the draws say of one figure."""

    low: float
    median: float
    mean: float
    high: float


def draws(numbers: Sequence[Parameter], count: int, distribution: Distribution, seed: Sequence[int]) -> dict[str, Array]:
    """Independent draws of every number, by path, each of shape (count,); whole quantities are drawn whole."""
    rng = np.random.default_rng(list(seed))
    table = {}
    for number in numbers:
        low, high = float(number.low or 0.0), float(number.high or 0.0)
        uniform = distribution == "uniform"
        drawn = rng.uniform(low, high, count) if uniform else rng.triangular(low, min(max(number.value, low), high), high, count)
        table[number.path] = np.round(drawn) if number.quantity.whole else drawn
    return table


def entry_of(path: str) -> str:
    """The technology that a number belongs to: its entry of the library, with `cost` or `carbon` for what is apart; else the number itself.

    >>> entry_of("techlib.memory.HBM3.device_area"), entry_of("techlib.memory.HBM3.device_cost"), entry_of("system.budgets.power")
    ('techlib.memory.HBM3', 'techlib.memory.HBM3.cost', 'system.budgets.power')
    """
    parts = path.split(".")
    if parts[0] != "techlib":
        return path
    apart = next((facet for facet, names in APART.items() if parts[-1] in names), None)
    return ".".join([*parts[: min(3, len(parts) - 1)], *([apart] if apart else [])])


def technology_of(entry: str) -> str:
    """The entry of the library without what is apart."""
    return ".".join(entry.split(".")[:3])


def family_of(entry: str) -> str:
    """Generations of one family share it: all nodes, and memories and links whose names begin with the same letters; else the entry alone.

    Memories stacked on logic (HBM4-3D) are no generation of those beside it.

    >>> family_of("techlib.logic.N2") == family_of("techlib.logic.A14"), family_of("techlib.memory.HBM2e"), family_of("techlib.on_chip.l2")
    (True, 'techlib.memory.HBM', 'techlib.on_chip.l2')
    """
    section, _, name = technology_of(entry).rpartition(".")
    if section not in GENERATIONS:
        return entry
    apart = entry.removeprefix(technology_of(entry))
    if section == "techlib.logic":
        return section + apart
    kind = name.partition("-")[2] if section == "techlib.memory" else ""
    return f"{section}.{''.join(itertools.takewhile(str.isalpha, name))}{f'-{kind}' if kind else ''}{apart}"


def quantiles(entries: Sequence[str], count: int, correlation: float, seed: Sequence[int]) -> dict[str, Array]:
    """How badly each technology turns out, from 0 to 1, each uniform and of shape (count,); `entries` in the order of generations."""
    from scipy.special import ndtr

    rng = np.random.default_rng(list(seed))
    last: dict[str, Array] = {}
    found = {}
    for entry in entries:
        family, fresh = family_of(entry), rng.standard_normal(count)
        before = last.get(family)
        last[family] = fresh if before is None else correlation * before + np.sqrt(1.0 - correlation**2) * fresh
        found[entry] = np.asarray(ndtr(last[family]))
    return found


def drawn_together(numbers: Sequence[Parameter], distribution: Distribution, worse: Mapping[str, Array]) -> dict[str, Array]:
    """Values of every number by path, from the quantile of its entry; a later generation is no worse than an earlier one.

    worse : quantiles by entry, in the order of generations.
    """
    place = {entry: i for i, entry in enumerate(worse)}
    table: dict[str, Array] = {}
    latest: dict[tuple[str, str], Parameter] = {}
    for number in sorted(numbers, key=lambda n: place[entry_of(n.path)]):
        entry, name = entry_of(number.path), number.path.rsplit(".", 1)[1]
        sign = -1.0 if larger_is_better(number) else 1.0
        at = worse[entry] if sign > 0 else 1.0 - worse[entry]
        value = _inverse(number, distribution, at)
        before = latest.get((family_of(entry), name)) if entry != number.path else None
        if before is not None and sign * number.value <= sign * before.value:
            value = sign * np.minimum(sign * value, sign * table[before.path])
        value = np.clip(value, number.low, number.high)
        table[number.path] = np.round(value) if number.quantity.whole else value
        latest[family_of(entry), name] = number
    return {number.path: table[number.path] for number in numbers}


def larger_is_better(number: Parameter) -> bool:
    """Whether a technology is better where the number is larger."""
    return number.quantity.unit in BETTER_UNITS or any(word in number.path for word in BETTER_NAMES)


def _inverse(number: Parameter, distribution: Distribution, at: Array) -> Array:
    """Values at quantiles of a number's distribution."""
    low, high = float(number.low or 0.0), float(number.high or 0.0)
    if distribution == "uniform":
        return np.asarray(low + (high - low) * at)
    mode = min(max(number.value, low), high)
    rising, falling = np.sqrt(at * (high - low) * (mode - low)), np.sqrt((1.0 - at) * (high - low) * (high - mode))
    return np.asarray(np.where(at * (high - low) < mode - low, low + rising, high - falling))


def interval(values: Array, share: float) -> Interval:
    """Median, mean, and the interval that holds a share of the values, as much above it as below; infinite ones count."""
    ordered = np.sort(np.where(np.isnan(values), np.inf, values))
    # By position, not interpolated: infinity minus infinity has no value.
    at = [round(part * (len(ordered) - 1)) for part in ((1.0 - share) / 2.0, 0.5, (1.0 + share) / 2.0)]
    low, median, high = (float(ordered[i]) for i in at)
    return Interval(low=low, median=median, mean=float(ordered.mean()), high=high)


def probability_better(one: Array, other: Array) -> float:
    """Share of the paired draws in which one is smaller than the other; equal ones count half. [1]"""
    return float(np.mean(one < other) + 0.5 * np.mean(one == other))


def importance(drawn: Mapping[str, Array], figure: Array) -> dict[str, float]:
    """Spearman rank correlation of a figure with everything drawn: sign and strength of what its spread does. [1]

    Zero where the figure does not vary. Where what is drawn is independent, the squares are about the shares of the figure's
    variance in ranks.
    """
    ranks = _ranks(figure)
    return {path: _correlation(_ranks(values), ranks) for path, values in drawn.items()}


def _ranks(values: Array) -> Array:
    """Ranks from 0, equal values sharing their mean rank."""
    _, which, counts = np.unique(np.where(np.isnan(values), np.inf, values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2.0)[which])


def _correlation(one: Array, other: Array) -> float:
    a, b = one - one.mean(), other - other.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else 0.0
