"""Which part of a blind prediction is how far off: Shapley's division of its error [1]_.

Between the chip as predicted and the same chip generated from its published division every group of settings is exchanged in every order;
a group's part is the mean of what its exchange adds to the logarithm of a figure. The parts add up. What is left is how far the chip from
its published division is off itself.

References
----------
.. [1] L. S. Shapley, "A Value for n-Person Games", Contributions to the Theory of Games II, 1953.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from crossflow.base import files
from crossflow.evidence.validation.hindcast_files import HindcastFile, alone, designed, folder, hindcasts
from crossflow.evidence.validation.hindcasts import answered, figures, unthrottled

SHOWN = ("product", "training, 7B", "training, 70B")
# Settings by what they are, as paths of a generated template; the last group is all others.
GROUPS: Mapping[str, Sequence[str]] = {
    "size and power": ("budgets.chip_area", "budgets.node_area", "budgets.chiplets", "budgets.power"),
    "memory": ("technology.memory", "components.memory"),
    "units off": ("harvest",),
    "shares": ("budgets.area", "budgets.perimeter", "budgets.power_shares", "budgets.peak_power"),
    "bundles and slices": ("bundles", "levels.l2.slices"),
    "kept": (),
}
LEFT, WHOLE = "published division", "all"
FILE = "factors.csv"


def divided(groups: Collection[str], value: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Part of each group in what `value` gains from none of the groups to all of them."""
    n, value = len(groups), functools.cache(value)
    found = dict.fromkeys(groups, 0.0)
    for group in groups:
        for others in _subsets([other for other in groups if other != group]):
            orders = math.factorial(len(others)) * math.factorial(n - len(others) - 1) / math.factorial(n)
            found[group] += orders * (value(others | {group}) - value(others))
    return found


def factors() -> Iterator[tuple[str, str, dict[str, float]]]:
    """Chip, figure, and the logarithm of predicted over later figures by group, of the chips whose published division is a template."""
    for name, file in hindcasts().items():
        if file.forecast or f"chip-{name}" not in files.catalogue("templates", "generated"):
            continue
        made, known = functools.cache(functools.partial(_figures, file)), answered(file)
        for figure in SHOWN:

            def value(groups: frozenset[str], figure: str = figure, made: Callable[..., Mapping[str, float]] = made) -> float:
                return math.log(made(groups)[figure])

            parts = divided(tuple(GROUPS), value)
            left = math.log(made(frozenset())[figure] / known[figure].answer)
            yield name, figure, {**parts, LEFT: left, WHOLE: sum(parts.values()) + left}


def kept() -> list[dict[str, str]]:
    """The rows of the file."""
    return list(csv.DictReader(line for line in files.read_text(folder() / FILE).splitlines() if not line.startswith("#")))


def _figures(file: HindcastFile, own: frozenset[str]) -> Mapping[str, float]:
    """Figures of a chip with the groups of settings `own` as predicted, and all others as published."""
    blind, published = _laid(_template(file.predecessor), designed(file)), _template(f"chip-{file.name}")
    data = _copied(blind if "kept" in own else published)
    for group, paths in GROUPS.items():
        for path in paths:
            _put(data, path, _got(blind if group in own else published, path))
    sources = {**published["sources"], **blind["sources"]}
    return figures({**data, "sources": sources, "devices_per_package": 1, **alone(8, file)}, cold=unthrottled(file))


def _template(name: str) -> dict[str, Any]:
    return dict(files.read_yaml(files.find("templates", name)).data)


def _laid(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Settings over those of a template; a quantity with its source is replaced as a whole."""
    found = {name: value for name, value in under.items() if name != "template"}
    for name, value in over.items():
        if name != "template":
            nested = isinstance(value, Mapping) and isinstance(found.get(name), Mapping) and "value" not in found[name]
            found[name] = _laid(found[name], value) if nested else value
    return found


def _copied(data: Any) -> Any:
    return {name: _copied(value) for name, value in data.items()} if isinstance(data, Mapping) else data


def _got(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set a value, or take it away where it is None."""
    *above, last = path.split(".")
    for key in above:
        data = data.setdefault(key, {})
    if value is None:
        data.pop(last, None)
    else:
        data[last] = _copied(value)


def _subsets(groups: Sequence[str]) -> Iterator[frozenset[str]]:
    for size in range(len(groups) + 1):
        yield from map(frozenset, itertools.combinations(groups, size))
