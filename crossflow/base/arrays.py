"""Array conventions shared by all stages: float64, the design-point axis last, read-only once published."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
Result = TypeVar("Result")
Value = TypeVar("Value", bound=Hashable)


BLOCK = 1 << 14  # rows that are plain numbers at once
MANY = 256  # columns from which it is quicker to compare them by numbers that stand for them
HASH = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, which spreads bits (Knuth, TAOCP 3, Sec. 6.4)


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberLists:
    """A list of whole numbers of each of many things: those of thing i are ``held[first[i]:first[i + 1]]``.

    >>> [*map(NumberLists.of([2, 0, 2], [5, 6, 7], 3).__getitem__, range(3))]
    [[6], [], [5, 7]]
    """

    first: Index
    held: Index

    @classmethod
    def of(cls, owner: Sequence[int] | Index, held: Sequence[int] | Index, count: int) -> NumberLists:
        """Lists of so many things, from pairs of a thing and a number in any order."""
        owners = np.asarray(owner, dtype=np.intp)
        first = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(np.bincount(owners, minlength=count))])
        return cls(first=first, held=np.asarray(held, dtype=np.intp)[np.argsort(owners, kind="stable")])

    @classmethod
    def none(cls, count: int) -> NumberLists:
        """An empty list of each of so many things."""
        return cls.of([], [], count)

    def __len__(self) -> int:
        return len(self.first) - 1

    def __getitem__(self, thing: int) -> list[int]:
        found: list[int] = self.held[self.first[thing] : self.first[thing + 1]].tolist()
        return found

    @property
    def counts(self) -> Index:
        """How many each thing has."""
        return np.diff(self.first)

    @property
    def owner(self) -> Index:
        """The thing that every number is of."""
        return np.repeat(np.arange(len(self)), self.counts)


def rows_of(*columns: Array | Index | Mask) -> Iterator[tuple[Any, ...]]:
    """Rows of columns as plain numbers, of which a block is held at once.

    >>> [*rows_of(np.array([1, 2]), np.array([0.5, 0.25]))]
    [(1, 0.5), (2, 0.25)]
    """
    blocks = range(0, len(columns[0]), BLOCK)
    return itertools.chain.from_iterable(zip(*(one[i : i + BLOCK].tolist() for one in columns), strict=True) for i in blocks)


def points(value: float | Sequence[float] | Array) -> Array:
    """Return `value` as a read-only float64 array of at least one dimension: a single point is n = 1."""
    array = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def count(*arrays: Any) -> int:
    """Number of design points that arrays with a trailing point axis broadcast to."""
    return int(np.broadcast_shapes(*(np.shape(array)[-1:] for array in arrays))[-1])


def wide(array: Any, n: int) -> Any:
    """An array with one value a point even where all are equal."""
    found = np.asarray(array)
    if found.shape[-1:] == (n,):
        return found
    whole = np.empty((*found.shape[:-1], n), found.dtype)
    whole[...] = found
    return whole


def uniform(values: Array) -> Array:
    """One value for all points where they have the same, shape (..., 1); the values themselves elsewhere, shape (..., n)."""
    return values[..., :1] if values.shape[-1] > 1 and (values == values[..., :1]).all() else values


def at_points(values: Array, points: Index) -> Array:
    """Values of some points, whose numbers rise, shape (..., points); the values themselves where they are of all, or one for all.

    Every row is in one piece, unlike that of ``values[..., points]``, which is many times slower to read.
    """
    return values if values.shape[-1] in (1, len(points)) else values.take(points, axis=-1)


def summed(often: Array, amounts: Array) -> Array:
    """Sums of what things amount to, by how often they occur in each row.

    often : shape (rows, things), or (rows, things, n) where it differs between points. amounts : shape (..., things, n).
    Returns shape (..., rows, n).
    """
    found: Array = often @ amounts if often.ndim == 2 else np.einsum("rtn,...tn->...rn", often, amounts)
    return found


def by_point(often: Array) -> Array:
    """How often things occur in each row, of shape (rows, things) or (rows, things, n), with an axis of points."""
    return often if often.ndim > 2 else often[..., None]


def once(work: Callable[..., Result]) -> Callable[..., Result]:
    """Work on an object, its first argument, that is done once for each way to ask for it, and kept with the object."""

    @functools.wraps(work)
    def kept(held: Any, **given: Any) -> Result:
        known, name = vars(held), f"_{work.__module__}.{work.__name__}{sorted(given.items())}"
        if name not in known:
            known[name] = work(held, **given)
        result: Result = known[name]
        return result

    return kept


def python(value: Any) -> Any:
    """A value as files hold it: numpy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def plain(value: Any) -> Any:
    """A value as JSON can hold it: numpy's numbers as Python's, None for what is not finite."""
    value = python(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value


def alike(table: Any) -> list[tuple[Any, Index]]:
    """Different columns of a table of shape (rows, n), each with the points that have it, the smaller ones first.

    >>> [(column.tolist(), points.tolist()) for column, points in alike(np.array([[2, 1, 2, 1], [5, 4, 5, 3]]))]
    [([1, 3], [3]), ([1, 4], [1]), ([2, 5], [0, 2])]
    """
    if (table == table[:, :1]).all():
        return [(table[:, 0], np.arange(table.shape[1]))]
    first, which = distinct(table)  # many times faster than to sort all columns
    columns = table[:, first]
    return [(columns[:, i], np.flatnonzero(which == i)) for i in np.lexsort(columns[::-1]).tolist()]


def numbered(values: Sequence[Value]) -> tuple[tuple[Value, ...], Index]:
    """Different values in the order in which they come, and which of them each is.

    >>> numbered("abca")
    (('a', 'b', 'c'), array([0, 1, 2, 0]))
    """
    known = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return tuple(known), np.array([*map(known.__getitem__, values)], dtype=np.intp)


def different(numbers: Index) -> list[int]:
    """The different ones of some whole numbers, in order.

    `numpy.unique` imports masked arrays when it is first called so, which takes longer than all that a short command asks of it.

    >>> different(np.array([3, 1, 3]))
    [1, 3]
    """
    return sorted(set(numbers.tolist()))


def distinct(table: NDArray[Any]) -> tuple[Index, Index]:
    """The first of every kind of equal columns of a table of shape (rows, n), and of which of these each column is a copy.

    >>> distinct(np.array([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0]]))
    (array([0, 1]), array([0, 1, 0]))
    """
    columns = np.ascontiguousarray(table.T)
    hashed = _by_hash(columns) if len(columns) >= MANY and columns.dtype.itemsize == HASH.nbytes else None
    return _by_bytes(columns) if hashed is None else hashed


def _by_bytes(columns: NDArray[Any]) -> tuple[Index, Index]:
    """The same of rows of shape (n, rows), one by one."""
    known: dict[bytes, int] = {}
    first = [known.setdefault(column.tobytes(), i) for i, column in enumerate(columns)]
    once_each = np.array(list(known.values()), dtype=np.intp)
    return once_each, np.searchsorted(once_each, first)


def _by_hash(columns: NDArray[Any]) -> tuple[Index, Index] | None:
    """The same of many rows by numbers that stand for their bits; None where two different rows have one number."""
    bits, keys = columns.view(np.uint64), np.zeros(len(columns), dtype=np.uint64)
    for one in bits.T:
        keys = (keys ^ one) * HASH
        keys ^= keys >> np.uint64(29)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    first, which = first[order], np.argsort(order)[which]
    return (first, which) if np.array_equal(bits[first[which]], bits) else None


def arrays_in(held: Any) -> Iterator[NDArray[Any]]:
    """All arrays in an object, its fields, and what these hold.

    >>> [array.size for array in arrays_in(({"one": np.zeros(1)}, [np.zeros(3), "text"]))]
    [1, 3]
    """
    if isinstance(held, np.ndarray):
        yield held
        return
    if isinstance(held, (str, float, int, type)) or held is None:
        return
    inside = held if isinstance(held, (tuple, list)) else (held if isinstance(held, Mapping) else getattr(held, "__dict__", {})).values()
    for one in inside:
        yield from arrays_in(one)


def by_points(held: Any) -> Callable[[Index], Any]:
    """What an object is at some of its points, whose numbers rise: with their values in all arrays in it, its fields and what these hold.

    What has no array of several values stays what it is.

    >>> by_points({"one": np.arange(3.0), "other": (np.zeros(1), "text")})(np.array([0, 2]))
    {'one': array([0., 2.]), 'other': (array([0.]), 'text')}
    """
    move = _moving(held)
    return lambda points: held if move is None else move(points)


def _moving(held: Any) -> Callable[[Index], Any] | None:
    """The same, None of what no point changes."""
    if isinstance(held, np.ndarray):
        return None if held.shape[-1:] in ((), (1,)) else functools.partial(at_points, held)
    if isinstance(held, (str, float, int, type)) or held is None:
        return None
    listed = isinstance(held, (tuple, list))
    inside = dict(enumerate(held)) if listed else held if isinstance(held, Mapping) else getattr(held, "__dict__", {})
    names = {field.name for field in fields(held)} if is_dataclass(held) else inside.keys()  # and nothing that was worked out of them
    moving = {name: move for name in names & inside.keys() if (move := _moving(inside[name])) is not None}
    if not moving:
        return None

    def at(points: Index) -> Any:
        found = {name: move(points) for name, move in moving.items()}
        if listed:
            return getattr(type(held), "_make", type(held))([found.get(i, part) for i, part in enumerate(held)])
        if isinstance(held, Mapping):
            return {**held, **found}
        return replace(held, **found) if is_dataclass(held) else held.model_copy(update=found)  # type: ignore[type-var, arg-type]

    return at


def largest(table: Array) -> Mask:
    """Which of its rows, along the first axis, has the largest number at each place: the first of those that have it.

    Several times faster than to compare their numbers with ``table.argmax(axis=0)``.

    >>> largest(np.array([[1.0, 3.0, 2.0], [2.0, 3.0, 1.0]]))
    array([[False,  True,  True],
           [ True, False, False]])
    """
    found: Mask = np.asarray(table == table.max(axis=0))
    before = found[0].copy()
    for row in found[1:]:
        row &= ~before
        before |= row
    return found


def divide(numerator: Array, denominator: Array) -> Array:
    """Quotient where anything over zero is infinite and zero over zero is zero (no traffic over no link takes no time)."""
    nothing = np.equal(denominator, 0)
    if not nothing.any():
        return np.asarray(numerator / denominator)
    return np.asarray(np.where(nothing, np.where(np.equal(numerator, 0), 0.0, np.inf), numerator / np.where(nothing, 1.0, denominator)))


def tally(counts: Array, amounts: Array) -> Array:
    """Matrix product of how often things occur with what each amounts to; what never occurs may be infinite.

    counts : shape (rows, things), or (rows, things, n). amounts : shape (things, n). Returns shape (rows, n).
    """
    endless = np.isinf(amounts)
    if not endless.any():
        return summed(counts, amounts)
    never = summed((counts > 0).astype(float), endless.astype(float)) == 0
    return np.asarray(np.where(never, summed(counts, np.where(endless, 0.0, amounts)), np.inf))


def share_of(some: Array, whole: Array) -> Array:
    """Share of a whole, zero of nothing."""
    return np.asarray(np.divide(some, whole, out=np.zeros(np.broadcast(some, whole).shape), where=whole > 0))


def most_square(nodes: int, dimensions: int) -> tuple[int, ...]:
    """The shape of `nodes` nodes with the smallest sum of sizes, longest first: 48 in two dimensions is 8 x 6."""
    return min(shapes_of(nodes, dimensions), key=lambda shape: (sum(shape), shape))


def shapes_of(nodes: int, dimensions: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `nodes` as a product of `dimensions` sizes, none larger than the one before."""
    if dimensions == 1:
        yield (nodes,)
        return
    # The smallest of k sizes is at most the k-th root; the margin absorbs its rounding.
    for last in range(1, int(nodes ** (1 / dimensions) + 1e-6) + 1):
        if nodes % last == 0:
            yield from ((*rest, last) for rest in shapes_of(nodes // last, dimensions - 1) if rest[-1] >= last)
