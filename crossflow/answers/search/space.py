"""Design spaces: what a search may change, as coordinates that every searcher shares.

A design is a column of coordinates in [0, 1], one row for each continuous dimension, and a column of indices, one row for
each discrete one. A range maps its coordinate linearly or logarithmically onto its ends; the coordinate of a share is the
share itself, and the shares of one budget add up to at most the whole of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crossflow.answers.points import Points
from crossflow.base.arrays import Array, Index, Mask, alike
from crossflow.base.errors import CrossflowError

SMALLEST_SHARE = 1e-3  # below it no component of a design works, and multiplicative steps would stall


_NOTHING = object()  # the value of an option that has no meaning


@dataclass(frozen=True, kw_only=True)
class Range:
    """A quantity between two ends, in SI units; `count` values of it where it is enumerated, whole numbers alone where it counts things."""

    path: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    count: int | None = None
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def coordinate(self, value: float | Array) -> Array:
        """Coordinate of a quantity, which is not in [0, 1] where the quantity lies outside."""
        if self.log:
            positive = np.maximum(value, np.finfo(float).tiny)
            return np.asarray(np.log(positive / self.low) / np.log(self.high / self.low))
        return np.asarray((value - self.low) / (self.high - self.low))

    def value(self, coordinate: Array) -> Array:
        """Quantity at coordinates in [0, 1], the nearest whole number where it is one."""
        found = self.low * (self.high / self.low) ** coordinate if self.log else self.low + (self.high - self.low) * coordinate
        return np.asarray(np.clip(np.rint(found) if self.whole else found, self.low, self.high))


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of one budget, each between two bounds, together at most `total`: what other shares leave of the budget."""

    paths: tuple[str, ...]
    low: float = SMALLEST_SHARE
    high: float = 1.0
    total: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """A setting with some values to choose from."""

    path: str
    values: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def place(self, value: Any) -> int | None:
        """Place of a value among the others, the first for None where the option may have no meaning; None where it is not among them."""
        if value is None:
            return 0 if self.when else None
        return next((i for i, known in enumerate(self.values) if known == value or str(known) == str(value)), None)


@dataclass(frozen=True, kw_only=True)
class Designs:
    """Designs of a space: `continuous` of shape (dimensions, n) in [0, 1], `discrete` of shape (options, n)."""

    continuous: Array
    discrete: Index

    def __len__(self) -> int:
        return int(self.continuous.shape[1])

    def take(self, index: Any) -> Designs:
        """Some of the designs, by index, mask or slice."""
        return Designs(continuous=self.continuous[:, index], discrete=self.discrete[:, index])


@dataclass(frozen=True, kw_only=True)
class Space:
    """Everything that a search may change."""

    ranges: tuple[Range, ...] = ()
    shares: tuple[Shares, ...] = ()
    options: tuple[Options, ...] = ()

    # ------------------------------------------------------------------------------ dimensions

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths in the order of coordinates: ranges, shares, then options."""
        shares = (path for group in self.shares for path in group.paths)
        return (*(r.path for r in self.ranges), *shares, *(option.path for option in self.options))

    @property
    def dimensions(self) -> int:
        """Number of continuous coordinates."""
        return len(self.ranges) + sum(len(group.paths) for group in self.shares)

    @property
    def groups(self) -> tuple[slice, ...]:
        """Rows of each budget's shares."""
        ends = list(itertools.accumulate((len(group.paths) for group in self.shares), initial=len(self.ranges)))
        return tuple(slice(start, end) for start, end in itertools.pairwise(ends))

    @property
    def low(self) -> Array:
        """Least value of each coordinate, shape (dimensions, 1)."""
        return self._bound([0.0] * len(self.ranges), "low")

    @property
    def high(self) -> Array:
        """Largest value of each coordinate, shape (dimensions, 1)."""
        return self._bound([1.0] * len(self.ranges), "high")

    def _bound(self, ranges: list[float], name: str) -> Array:
        return np.array([*ranges, *(getattr(group, name) for group in self.shares for _ in group.paths)])[:, None]

    @property
    def size(self) -> int:
        """Combinations of options and counted values, those without a meaning among them."""
        return math.prod(len(option.values) for option in self.options) * math.prod(r.count or 1 for r in self.ranges)

    def only(self, paths: Iterable[str]) -> Space:
        """The space over some of its paths: a path, or the beginning of several up to a dot.

        Raises CrossflowError when a path that is kept depends on one that is not.
        """
        wanted = tuple(paths)

        def kept(path: str) -> bool:
            return any(path == name or path.startswith(f"{name}.") for name in wanted)

        entries: tuple[Range | Options, ...] = (*self.ranges, *self.options)
        for entry in (entry for entry in entries if kept(entry.path)):
            for path in entry.when:
                if not kept(path):
                    raise CrossflowError(f"over: '{entry.path}' depends on '{path}', which the search leaves out")
        return Space(
            ranges=tuple(r for r in self.ranges if kept(r.path)),
            shares=tuple(group for group in self.shares if all(kept(path) for path in group.paths)),
            options=tuple(option for option in self.options if kept(option.path)),
        )

    def at(self, discrete: Index) -> Space:
        """The space left when the options are chosen, shape (options,): inactive ranges go, options have one value."""
        chosen = self._chosen(discrete[:, None])
        options = tuple(
            Options(path=option.path, values=(option.values[index],))
            for option, index, active in zip(self.options, discrete, self._active_options(discrete[:, None])[:, 0], strict=True)
            if active
        )
        return Space(ranges=tuple(r for r in self.ranges if _holds(r.when, chosen, 1)[0]), shares=self.shares, options=options)

    # ------------------------------------------------------------------------------ designs

    def sample(self, rng: np.random.Generator, n: int) -> Designs:
        """Random designs: ranges and options uniform, shares uniform on their simplex, with what is left over."""
        parts = [rng.random((len(self.ranges), n))]
        for group in self.shares:
            parts.append(group.total * rng.dirichlet(np.ones(len(group.paths) + 1), n).T[:-1])
        discrete = [rng.integers(0, len(option.values), n) for option in self.options]
        index = np.array(discrete, dtype=np.intp).reshape(len(self.options), n)
        return Designs(continuous=self.project(np.concatenate(parts)), discrete=self.canonical(index))

    def located(self, values: Mapping[str, Any]) -> Designs | None:
        """The design that has these values by path, numbers in SI units; None where the space does not hold it.

        Paths without a value have no meaning beside the others, or none at all: the first of options, the middle of ranges.
        """
        coordinates = [float(r.coordinate(values[r.path])) if values.get(r.path) is not None else 0.5 for r in self.ranges]
        chosen = [option.place(values.get(option.path)) for option in self.options]
        shares = [path for group in self.shares for path in group.paths]
        if None in chosen or any(values.get(path) is None for path in shares):
            return None
        continuous = np.array([*coordinates, *(values[path] for path in shares)], dtype=float)[:, None]
        rounding = 1e-6  # of records and of coordinates
        if (continuous < self.low - rounding).any() or (continuous > self.high + rounding).any():
            return None
        if any(continuous[rows].sum() > group.total + rounding for rows, group in zip(self.groups, self.shares, strict=True)):
            return None
        discrete = self.canonical(np.array(chosen, dtype=np.intp).reshape(-1, 1))
        return Designs(continuous=self.project(continuous), discrete=discrete)

    def placed(self, values: Mapping[str, float | Array]) -> Array:
        """Coordinates of values by path, in SI units, or the nearest that the space holds; shape (dimensions, n).

        A range without a value has its middle.
        """
        ranges = [r.coordinate(values[r.path]) if r.path in values else 0.5 for r in self.ranges]
        shares = [values[path] for group in self.shares for path in group.paths]
        return self.project(np.array(np.broadcast_arrays(*map(np.atleast_1d, (*ranges, *shares))), dtype=float))

    def by_path(self, coordinates: Array) -> dict[str, Any]:
        """Values by path at coordinates of shape (dimensions, ...), where no option is left: what `placed` reads."""
        flat = coordinates.reshape(len(coordinates), -1)
        found = self.values(self.designs(flat))
        return {path: found[path].reshape(coordinates.shape[1:]) for path in self.paths[: self.dimensions]}

    def relaxed(self) -> Space:
        """The space whose options are ranges of their places: for searchers that move coordinates alone (`unrelaxed`)."""
        places = tuple(Range(path=option.path, low=0.0, high=1.0) for option in self.options)
        return Space(ranges=(*self.ranges, *places), shares=self.shares)

    def unrelaxed(self, coordinates: Array) -> Designs:
        """Designs at coordinates of the relaxed space."""
        own, end = len(self.ranges), len(self.ranges) + len(self.options)
        sizes = np.array([[len(option.values)] for option in self.options]).reshape(-1, 1)
        index = np.minimum((coordinates[own:end] * sizes).astype(np.intp), sizes - 1)
        return Designs(continuous=np.concatenate([coordinates[:own], coordinates[end:]]), discrete=self.canonical(index))

    def coordinates(self, designs: Designs) -> Array:
        """Coordinates of designs in the relaxed space: the middles of the places of options."""
        own = len(self.ranges)
        sizes = np.array([[len(option.values)] for option in self.options]).reshape(-1, 1)
        return np.concatenate([designs.continuous[:own], (designs.discrete + 0.5) / sizes, designs.continuous[own:]])

    def project(self, coordinates: Array) -> Array:
        """Nearest coordinates that respect all bounds and budgets (Eq. 6, "Project")."""
        result = np.clip(coordinates, self.low, self.high)
        for rows, group in zip(self.groups, self.shares, strict=True):
            over = result[rows].sum(axis=0) > group.total
            if over.any():
                result[rows, over] = _onto_simplex(coordinates[rows][:, over], group)
        return result

    def moved(self, coordinates: Array, step: Array) -> Array:
        """Coordinates after a step: ranges add it, shares are multiplied by its exponential; budgets are then kept to."""
        ranges, rest = slice(0, len(self.ranges)), slice(len(self.ranges), None)
        result = np.array(np.broadcast_to(coordinates, np.broadcast_shapes(coordinates.shape, step.shape)))
        result[ranges] += step[ranges]
        result[rest] *= np.exp(step[rest])
        result = np.clip(result, self.low, self.high)
        for rows, group in zip(self.groups, self.shares, strict=True):
            spare = result[rows] - group.low  # what may shrink, so that no share falls below its least
            room = group.total - group.low * len(group.paths)
            result[rows] = group.low + spare * np.minimum(1.0, room / np.maximum(spare.sum(axis=0), 1e-300))
        return result

    def between(self, start: Array, end: Array) -> Array:
        """The step that `moved` takes from one design to another, shape (dimensions, ...)."""
        rest = slice(len(self.ranges), None)
        step = np.asarray(end - start)
        step[rest] = np.log(end[rest] / start[rest])  # no share is zero
        return step

    def designs(self, coordinates: Array) -> Designs:
        """Designs at coordinates, where all options are chosen."""
        return Designs(continuous=coordinates, discrete=np.zeros((len(self.options), coordinates.shape[1]), dtype=np.intp))

    def combinations(self) -> Index:
        """Every combination of the options, shape (options, combinations), each once however many are inactive."""
        sizes = [range(len(option.values)) for option in self.options]
        listed = list(itertools.product(*sizes))
        every = self.canonical(np.array(listed, dtype=np.intp).reshape(len(listed), len(sizes)).T)
        first = dict.fromkeys(map(tuple, every.T.tolist()))
        return np.array(list(first), dtype=np.intp).reshape(len(first), len(sizes)).T

    def canonical(self, discrete: Index) -> Index:
        """The indices with 0 for options that the others make inactive."""
        return np.where(self._active_options(discrete), discrete, 0)

    def grid(self) -> Array:
        """Every combination of the counted values of the ranges, shape (dimensions, combinations)."""
        axes = [np.linspace(0.0, 1.0, r.count or 1) for r in self.ranges]
        listed = list(itertools.product(*axes))
        return np.array(listed, dtype=float).reshape(len(listed), len(axes)).T

    # ------------------------------------------------------------------------------ to points

    def points(self, designs: Designs) -> list[tuple[Index, dict[str, Any]]]:
        """Points to evaluate, split by which dimensions are active: the designs' numbers, and values by path."""
        values = self.values(designs)
        if not any(r.when for r in self.ranges) and not any(option.when for option in self.options):
            return [(np.arange(len(designs)), values)]
        return [
            (index, picked({path: values[path] for path, on in zip(self.paths, active, strict=True) if on}, index))
            for active, index in alike(self.active(designs.discrete))
        ]

    def values(self, designs: Designs) -> dict[str, Any]:
        """Values by path: arrays in SI units, lists of settings."""
        table: dict[str, Any] = {r.path: r.value(row) for r, row in zip(self.ranges, designs.continuous, strict=False)}
        for rows, group in zip(self.groups, self.shares, strict=True):
            table |= dict(zip(group.paths, designs.continuous[rows], strict=True))
        for option, row in zip(self.options, designs.discrete, strict=True):
            table[option.path] = [option.values[i] for i in row]
        return table

    def active(self, discrete: Index) -> Mask:
        """Which paths have a meaning for each design, shape (paths, n)."""
        n = discrete.shape[1]
        chosen = self._chosen(discrete)
        ranges = np.array([_holds(r.when, chosen, n) for r in self.ranges], dtype=bool).reshape(len(self.ranges), n)
        shares = np.ones((self.dimensions - len(self.ranges), n), dtype=bool)
        return np.concatenate([ranges, shares, self._active_options(discrete)])

    def _active_options(self, discrete: Index) -> Mask:
        """Which options have a meaning; one that has none fulfils no condition of another."""
        n = discrete.shape[1]
        active = np.ones((len(self.options), n), dtype=bool)
        for _ in self.options:
            chosen = self._valued(discrete, active)
            found = np.array([_holds(option.when, chosen, n) for option in self.options], dtype=bool).reshape(len(self.options), n)
            if (found == active).all():
                break
            active = found
        return active

    def _chosen(self, discrete: Index) -> dict[str, list[Any]]:
        return self._valued(discrete, self._active_options(discrete))

    def _valued(self, discrete: Index, active: Mask) -> dict[str, list[Any]]:
        return {
            option.path: [option.values[i] if on else _NOTHING for i, on in zip(row, mask, strict=True)]
            for option, row, mask in zip(self.options, discrete, active, strict=True)
        }


def _holds(when: Mapping[str, tuple[Any, ...]], chosen: Mapping[str, Sequence[Any]], n: int) -> Mask:
    result = np.ones(n, dtype=bool)
    for path, values in when.items():
        result &= np.array([value in values for value in chosen[path]], dtype=bool)
    return result


def picked(points: Points, index: Index) -> dict[str, Any]:
    """Some of the points."""
    return {path: values[index] if isinstance(values, np.ndarray) else [values[i] for i in index] for path, values in points.items()}


def _onto_simplex(coordinates: Array, group: Shares) -> Array:
    """Nearest points within the bounds that add up to the total, by bisection on the shift common to all entries."""
    low, high = group.low, group.high
    below, above = coordinates.min(axis=0) - high, coordinates.max(axis=0) - low
    for _ in range(60):
        shift = 0.5 * (below + above)
        excess = np.clip(coordinates - shift, low, high).sum(axis=0) > group.total
        below, above = np.where(excess, shift, below), np.where(excess, above, shift)
    return np.asarray(np.clip(coordinates - above, low, high))
