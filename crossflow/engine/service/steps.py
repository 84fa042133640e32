"""What steps of a service take, as tables: look-ups are linear between points, and fast for one point at a time.

A step that writes a token for each of n requests with c tokens of context in the mean takes D(n, c). One that also reads t tokens of
prompts, which see k keys each in the mean, takes M(n, t, k) more (Agrawal et al., OSDI 2024, Sec. 4: the two parts of a mixed step).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from crossflow.base.arrays import Array

Line = tuple[float, float, float]
NOTHING = np.zeros(0)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTable:
    """Times of the steps of one replica, on a grid; before its first and after its last points look-ups go on as between the nearest two.

    Attributes
    ----------
    requests : requests that write, rising from 0. [1]
    context : tokens that one of them has in its cache in the mean of all, rising. [1]
    tokens : tokens of prompts that a step reads, rising. [1]
    keys : keys that one of them sees in the mean, rising. [1]
    writing : D, shape (requests, context). [s]
    reading : M, shape (requests, tokens, keys). [s]
    beside_none : what M is less where the other engines that make the step together, and share out experts, read nothing, of the same
        shape; none where there are no others. [s]
    writing_energy, reading_energy : the same, of all devices of the replica, at rest included. [J]
    graphs : sizes of batches that were captured, rising: a microbatch that only writes takes what the next larger of them takes; none
        where steps take what their own requests take.
    stages : of the pipeline, to whose microbatches requests are dealt one after the other. [1]
    before, beside : what the host does for a step before its kernels, and beside them: of the step, and of each request that writes. [s]
    sends_writing, sends_reading : for how long what a device sends in a step keeps its port between nodes busy, shape (requests,), and by
        how much longer for tokens that are read, shape (tokens,); none where engines send nothing there. [s]
    """

    requests: Array
    context: Array
    tokens: Array
    keys: Array
    writing: Array
    reading: Array
    writing_energy: Array
    reading_energy: Array
    graphs: tuple[int, ...] = ()
    stages: int = 1
    before: tuple[float, float] = (0.0, 0.0)
    beside: tuple[float, float] = (0.0, 0.0)
    sends_writing: Array = field(default_factory=lambda: NOTHING)
    sends_reading: Array = field(default_factory=lambda: NOTHING)
    beside_none: Array = field(default_factory=lambda: NOTHING)
    hosted: bool = field(init=False, default=False)  # whether the host lengthens any step
    sends: bool = field(init=False, default=False)  # whether steps send between nodes
    shares: bool = field(init=False, default=False)  # whether steps that read take less where others do not
    _lines: dict[int, tuple[list[float], list[tuple[float, float, float, float]]]] = field(default_factory=dict, repr=False)
    _planes: dict[int, tuple[list[float], list[float], list[list[tuple[float, ...]]]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosted", self.before != (0.0, 0.0) or self.beside != (0.0, 0.0))
        object.__setattr__(self, "sends", self.sends_writing.size > 0)
        object.__setattr__(self, "shares", self.beside_none.size > 0)

    def line(self, n: int, context: float, *, alone: bool = True) -> Line:
        """D at a context, its slope, and the context up to which it is straight; `alone` where the step only writes. [s], [s], [1]"""
        key = n if alone else -n
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = self._line(n, alone=alone)
        inner, straight = found
        value, slope, begin, upto = straight[bisect_right(inner, context)]
        return value + slope * (context - begin), slope, upto

    def more(self, n: int, tokens: float, keys: float) -> float:
        """M, what a step that writes for n requests takes more for reading. [s]"""
        found = self._planes.get(n)
        if found is None:
            found = self._planes[n] = self._plane(n)
        first, second, cells = found
        begin, width, low, span, near, beside, far, across = cells[bisect_right(first, tokens)][bisect_right(second, keys)]
        u, v = (tokens - begin) / width, (keys - low) / span
        return (1.0 - u) * ((1.0 - v) * near + v * beside) + u * ((1.0 - v) * far + v * across)

    def less(self, n: int, tokens: float, keys: float) -> float:
        """What M is less where the other engines that make the step together read nothing. [s]"""
        places = _at(self.requests, np.array([float(n)])), _at(self.tokens, np.array([tokens])), _at(self.keys, np.array([keys]))
        return float(_linear(self.beside_none, places)[0])

    def sent(self, n: int, tokens: int) -> float:
        """For how long a step that writes for n requests and reads so many tokens keeps the port between nodes busy. [s]"""
        written = _linear(self.sends_writing, (_at(self.requests, np.array([float(n)])),))
        read = _linear(self.sends_reading, (_at(self.tokens, np.array([float(tokens)])),)) if tokens else np.zeros(1)
        return max(float((written + read)[0]), 0.0)

    def with_host(self, n: int, time: float) -> float:
        """The time of a step of kernels alone with what the host does for it and for its n requests that write. [s]"""
        share = min(max(n, 1), self.stages) / self.stages  # of the microbatches of a step that are there
        return max(time, share * self.beside[0] + n * self.beside[1]) + share * self.before[0] + n * self.before[1]

    def energy(self, n: Array, context: Array, tokens: Array, keys: Array) -> Array:
        """Energy of steps, shape of the arguments; steps without tokens of prompts only write. [J]"""
        grown = _at(self.requests, n), _at(self.context, context)
        written = _linear(self.writing_energy, grown)
        read = _linear(self.reading_energy, (grown[0], _at(self.tokens, tokens), _at(self.keys, keys)))
        return np.asarray(np.maximum(written + np.where(tokens > 0, read, 0.0), 0.0))

    def spread(self, n: Array, context: Array, tokens: Array, keys: Array) -> Array:
        """Time of steps that read, whose microbatches all read the same, shape of the arguments. [s]"""
        grown = _at(self.requests, n), _at(self.context, context)
        read = _linear(self.reading, (grown[0], _at(self.tokens, tokens), _at(self.keys, keys)))
        return np.asarray(_linear(self.writing, grown) + read)

    def _among(self, n: float, values: Array) -> Array:
        """Values at n requests, without their axis."""
        i, share = (each[0] for each in _at(self.requests, np.array([float(n)])))
        return np.asarray(values[i] * (1.0 - share) + values[i + 1] * share)

    def _padded(self, n: int) -> int:
        """Requests that steps compute which only write for n: every microbatch computes those of a whole graph. [1]"""
        each, more = divmod(n, self.stages)
        few, many = (next((size for size in self.graphs if size >= one > 0), one) for one in (each, each + 1))
        return (self.stages - more) * few + more * many

    def _line(self, n: int, *, alone: bool) -> tuple[list[float], list[tuple[float, float, float, float]]]:
        """D at n requests: contexts between its straight parts, and of each part the time and the slope at its begin, its begin and end.

        A graph of more requests than there are computes nothing for the keys of those that are not there.
        """
        padded = self._padded(n) if alone else n
        values = self._among(padded, self.writing)
        if padded > n:
            i, share = _at(self.context, self.context * n / padded)
            values = values[i] * (1.0 - share) + values[i + 1] * share
        if alone and self.hosted:
            values = np.array([self.with_host(n, time) for time in values.tolist()])
        slopes, inner = np.diff(values) / np.diff(self.context), self.context[1:-1].tolist()
        return inner, list(zip(values[:-1].tolist(), slopes.tolist(), self.context[:-1].tolist(), [*inner, inf], strict=True))

    def _plane(self, n: int) -> tuple[list[float], list[float], list[list[tuple[float, ...]]]]:
        """M at n requests: tokens and keys between its cells, and of each cell the begin and the width of both axes, and its corners."""
        values = self._among(n, self.reading)
        corners = np.stack([values[:-1, :-1], values[:-1, 1:], values[1:, :-1], values[1:, 1:]], axis=-1)
        sides = [np.broadcast_to(each, corners.shape[:-1]) for axis, wide in ((self.tokens, (slice(None), None)), (self.keys, slice(None)))
                 for each in (axis[:-1][wide], np.diff(axis)[wide])]  # fmt: skip
        cells = np.concatenate([np.stack(sides, axis=-1), corners], axis=-1).tolist()
        return self.tokens[1:-1].tolist(), self.keys[1:-1].tolist(), [[tuple(cell) for cell in row] for row in cells]


def _at(axis: Array, values: Array) -> tuple[Any, Array]:
    """Intervals in which values lie, and how far in them."""
    i = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, len(axis) - 2)
    return i, np.asarray((values - axis[i]) / (axis[i + 1] - axis[i]))


def _linear(table: Array, places: Sequence[tuple[Any, Array]]) -> Array:
    """Values between the points of a table, linear in each of its axes."""
    (i, share), *rest = places
    if not rest:
        return np.asarray(table[i] * (1.0 - share) + table[i + 1] * share)
    corners = [tuple(k + (number >> axis & 1) for axis, (k, _) in enumerate(places)) for number in range(2 ** len(places))]
    weights = [[1.0 - part, part] for _, part in places]
    return np.asarray(
        sum(
            table[corner] * np.prod([weights[axis][number >> axis & 1] for axis in range(len(places))], axis=0)
            for number, corner in enumerate(corners)
        )
    )
