"""Kinds of ranks: those of a class that always do the same at the same time, where devices differ in speed.

Ranks are of one kind when their class and speed are the same, ranks of the same kinds take part in their collectives, and ranks of
the same kinds stand beside them in the other classes: the coarsest partition of the mesh that is stable under these relations [1]_.
A collective among several kinds is then a meeting of them, and every kind is simulated once.

References
----------
.. [1] Paige, Tarjan: "Three partition refinement algorithms", SIAM Journal on Computing 16(6), 1987.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.engine.tasks import Copy
from crossflow.program.program import Program


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds:
    """Kinds of ranks of a program.

    Attributes
    ----------
    of : kind of every device, shape (classes, devices along each axis of the mesh but for that of the classes).
    groups : by the axes of a message, or its group, the number of the group that every device communicates in, alike in all classes.
    """

    of: Index
    groups: Mapping[tuple[str, ...], Index]

    @functools.cached_property
    def classes(self) -> tuple[int, ...]:
        """Class of every kind."""
        return tuple(int(np.unravel_index(np.argmax(self.of == kind), self.of.shape)[0]) for kind in range(self.of.max() + 1))

    def members(self, kind: int) -> Index:
        """Devices of a kind, places in the flattened mesh of classes."""
        return np.flatnonzero(self.of == kind)

    def value(self, values: Array) -> Array:
        """What every kind has of something that all of its devices have alike, in the shape of `of`; shape (kinds,)."""
        return np.array([values.ravel()[self.members(kind)[0]] for kind in range(len(self.classes))])

    @functools.cached_property
    def _first(self) -> list[tuple[int, ...]]:
        """Where the first device of every kind lies in its class."""
        return [tuple(int(i) for i in np.unravel_index(self.members(kind)[0], self.of.shape)[1:]) for kind in range(len(self.classes))]

    def beside(self, kind: int, rank: int) -> int:
        """Kind of the devices of another class that stand beside those of a kind."""
        return int(self.of[(rank, *self._first[kind])])

    @functools.cached_property
    def _met(self) -> dict[tuple[int, frozenset[int], tuple[str, ...]], frozenset[int]]:
        return {}

    def group(self, kind: int, ranks: frozenset[int], axes: tuple[str, ...]) -> frozenset[int]:
        """Kinds that meet those of a kind in some classes along some axes, or in a group."""
        key = kind, ranks, axes
        if key not in self._met:
            groups, here = self.groups[axes], (self.classes[kind], *self._first[kind])
            mine = groups[here[0]] == groups[here]
            self._met[key] = frozenset(int(one) for rank in ranks for one in np.unique(self.of[rank][mine]))
        return self._met[key]


def kinds_of(program: Program, rates: Sequence[Array], ranks: Index, *, apart: bool = False) -> Kinds:
    """Kinds of ranks.

    Parameters
    ----------
    rates : speed and other rates of every device, each of shape (classes, sizes of the other axes in the order of the program). [1]
    ranks : rank of every device in the system, in the same shape.
    apart : whether no two devices are alike.
    """
    groups = {axes: _groups(program, ranks, axes) for axes in sorted({message.axes for message in program.messages})}
    found = np.arange(ranks.size).reshape(ranks.shape)
    if not apart:
        classes = np.broadcast_to(np.arange(len(ranks)).reshape(-1, *[1] * (ranks.ndim - 1)), ranks.shape)
        found = _numbered([classes, *(np.unique(rate, return_inverse=True)[1].reshape(ranks.shape) for rate in rates)])
        while found.max() >= len(ranks):  # one kind a class is stable
            signs = [found, *(np.broadcast_to(one, found.shape) for one in found)]
            finer = _numbered([*signs, *(_sets(found, group) for group in groups.values())])
            if finer.max() == found.max():
                break
            found = finer
    return Kinds(of=found, groups=groups)


def _groups(program: Program, ranks: Index, axes: tuple[str, ...]) -> Index:
    """Number of the group that every device communicates in along some axes, or in a group beside the mesh; in the shape of `ranks`."""
    beside = dict(program.groups)
    if axes and axes[0] in beside:
        group = beside[axes[0]]
        return np.asarray(ranks // (group.ranks * group.stride) * group.stride + ranks % group.stride)
    names = (program.stages, *(name for name, _ in program.axes if name != program.stages))
    shape = [1 if i == 0 or name in axes else size for i, (name, size) in enumerate(zip(names, ranks.shape, strict=True))]
    return np.broadcast_to(np.arange(np.prod(shape)).reshape(shape), ranks.shape)


def _numbered(signs: Sequence[Index]) -> Index:
    """One number for each different combination of signs, in the order in which they first occur."""
    _, first, which = np.unique(np.stack([sign.ravel() for sign in signs]), axis=1, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[which.ravel()].reshape(signs[0].shape))


def _sets(found: Index, groups: Index) -> Index:
    """A number for the set of kinds in the group of every device; groups of different classes are apart."""
    own = groups + np.arange(len(groups)).reshape(-1, *[1] * (groups.ndim - 1)) * (groups.max() + 1)
    order = np.argsort(own.ravel(), kind="stable")
    rows = np.sort(found.ravel()[order].reshape(len(np.unique(own)), -1), axis=1)
    rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
    which = np.empty(found.size, dtype=np.intp)
    which[order] = np.repeat(np.unique(np.sort(rows, axis=1), axis=0, return_inverse=True)[1].ravel(), rows.shape[1])
    return which.reshape(found.shape)


def split(program: Program, runs: Sequence[Copy], kinds: Kinds) -> list[Copy]:
    """The same copies, one for each kind of their class; `rank` is the kind. Collectives start when the last of their kinds arrives."""
    meetings: dict[str, set[int]] = {}
    for op in program.ops:
        if op.meets:
            meetings.setdefault(op.meets, set()).add(op.rank)
    mine: list[list[int]] = [[] for _ in range(program.classes)]
    for kind, rank in enumerate(kinds.classes):
        mine[rank].append(kind)
    number: dict[tuple[int, int], int] = {}
    found: list[Copy] = []
    for i, run in enumerate(runs):
        op = program.ops[run.place]
        for kind in mine[run.rank]:
            number[i, kind] = len(found)
            after = tuple(sorted(number[j, kind if runs[j].rank == run.rank else kinds.beside(kind, runs[j].rank)] for j in run.after))
            meets = run.meets
            if op.message is not None:
                group = kinds.group(kind, frozenset(meetings.get(op.meets, {run.rank})), program.messages[op.message].axes)
                meets = None if len(group) == 1 else (op.meets or run.place, run.copy, group)
            found.append(replace(run, rank=kind, after=after, meets=meets))
    return found
