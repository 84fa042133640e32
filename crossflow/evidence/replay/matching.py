"""Which collective of one rank is which of another: of a process group, in the order in which each rank ran them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.evidence.replay.collectives import process_group
from crossflow.evidence.replay.kineto import RankTrace


@dataclass(frozen=True, kw_only=True, eq=False)
class RankCollectives:
    """The collectives of one rank in the order in which it ran them; arrays of shape (collectives,).

    Attributes
    ----------
    work : place among the works of the rank.
    start, end : of the kernel, by the clock of the rank. [s]
    name, group : kernel and process group, in `names` and `groups`; groups are named by their ranks where the trace says them.
    """

    work: Index
    start: Array
    end: Array
    name: Index
    group: Index
    names: tuple[str, ...]
    groups: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.work)


@dataclass(frozen=True, kw_only=True, eq=False)
class MatchedCollectives:
    """Collectives of one process group on the ranks that were read.

    Attributes
    ----------
    ranks : places of the ranks, shape (ranks,).
    places : each collective among those of each rank, shape (ranks, collectives).
    names : of the kernels, shape (collectives,).
    """

    ranks: Index
    places: Index
    names: tuple[str, ...]


def collectives_of(trace: RankTrace) -> RankCollectives:
    """The collectives of a trace."""
    works = trace.works
    mine = np.flatnonzero(works.collective)
    names: dict[int, int] = {}
    groups: dict[str, int] = {}
    known: dict[int, int] = {}  # what is said of a collective is one object for all of which the same is said
    group = np.empty(len(mine), dtype=np.intp)
    for place, work in enumerate(mine.tolist()):
        args = works.args[work]
        if id(args) not in known:
            said, members = process_group(args)
            known[id(args)] = groups.setdefault(str(members) if members else said, len(groups))
        group[place] = known[id(args)]
    name = np.array([names.setdefault(one, len(names)) for one in works.name[mine].tolist()], dtype=np.intp)
    return RankCollectives(
        work=mine, start=works.start[mine], end=works.end[mine], name=name, group=group, names=tuple(trace.names[one] for one in names),
        groups=tuple(groups),
    )  # fmt: skip


def matched(ranks: Sequence[RankCollectives]) -> tuple[list[MatchedCollectives], list[str]]:
    """Collectives of several ranks, and why others were not matched.

    Those of a process group match in the order in which each rank ran them; where traces name no group, all are one. They match where
    all ranks ran kernels of the same names.
    """
    known: dict[str, int] = {}
    runs: dict[str, dict[int, tuple[Index, Index]]] = defaultdict(dict)
    for rank, one in enumerate(ranks):
        numbers = np.array([known.setdefault(name, len(known)) for name in one.names], dtype=np.intp)
        for place, group in enumerate(one.groups):
            mine = np.flatnonzero(one.group == place)
            runs[group][rank] = mine, numbers[one.name[mine]]
    texts, found, odd = tuple(known), list[MatchedCollectives](), list[str]()
    for group, by_rank in runs.items():
        (_, first), *others = by_rank.values()
        if not others or not all(np.array_equal(first, names) for _, names in others):
            odd.append(group)
            continue
        places = np.stack([mine for mine, _ in by_rank.values()])
        found.append(MatchedCollectives(ranks=np.array([*by_rank]), places=places, names=tuple(texts[one] for one in first.tolist())))
    return found, [_unmatched(odd)] if odd else []


def _unmatched(groups: Sequence[str]) -> str:
    """Why the collectives of some groups do not meet."""
    named = [group for group in groups if group]
    called = f"of the group {named[0]} " if named else ""
    if len(named) > 1:
        called = f"of {len(named)} groups, such as {named[0]}, "
    return f"collectives {called}differ between the ranks that were read; they keep their measured times and do not meet"
