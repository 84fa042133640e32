"""Joins pointwise operations into passes, as a compiler or the kernels of a framework do; eager code runs each by itself.

Pointwise operations, reductions and copies of one phase and module that data connects become one pass [1]_: it reads what comes from
outside and writes what is read outside. A group ends where anything else reads what it makes. Passes over the same tensor that make
others of its size become one too, where the later one could run first. The optimizer is one pass.

References
----------
.. [1] Ansel et al., "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph Compilation", ASPLOS
   2024, Sec. 4.4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from crossflow.evidence.torch.recorder import BACKWARD, FORWARD, UPDATE, Record
from crossflow.program.kernels import Pass


def fused(records: Sequence[Record], lasting: Iterable[int]) -> list[Record]:
    """The same operations with those joined that data connects.

    Parameters
    ----------
    lasting : storages that outlive the step, which are written whether anything reads them or not.
    """
    groups = [members for members in _groups(records) if len(members) > 1]
    sources = [_sources(records, members) for members in groups]
    records = _recomputed(records, groups, sources)
    last = {members[-1]: (members, made_of) for members, made_of in zip(groups, sources, strict=True)}
    inner = {i for members in groups for i in members}
    readers, kept, found = _readers(records), frozenset(lasting), list[Record]()
    for i, record in enumerate(records):
        if i in last:
            found.append(_joined(records, last[i][0], readers, kept))
        elif i not in inner:
            found.append(record)
    return _side_by_side(found)


def _side_by_side(records: Iterable[Record]) -> list[Record]:
    """Passes that go over one tensor of the size that they make, such as the gradients of a gated activation, as one pass."""
    found = list[Record]()
    over, writer, touched = dict[int, int](), dict[int, int](), dict[int, int]()  # places of passes over, last writer, last use
    for record in records:
        size = max(record.writes.values(), default=0.0)
        whole = [key for key, read in record.reads.items() if size and read >= size]
        places = {over[key] for key in whole if key in over} if record.fuses and record.phase != UPDATE else set[int]()
        at = next((place for place in sorted(places, reverse=True) if _joins(record, found[place], place, writer, touched)), None)
        if at is None:
            at = len(found)
            found.append(record)
        else:
            found[at] = _merged(found[at], record)
        if record.fuses:
            over |= dict.fromkeys(whole, at)
        writer |= dict.fromkeys(record.writes, at)
        for key in (*record.reads, *record.writes):
            touched[key] = max(touched.get(key, -1), at)
    return found


def _joins(record: Record, other: Record, place: int, writer: Mapping[int, int], touched: Mapping[int, int]) -> bool:
    """Whether a pass can run with another one at its place: all that it reads is there, and nothing later uses what it writes."""
    alike = (record.layer, record.phase, max(record.writes.values())) == (other.layer, other.phase, max(other.writes.values()))
    there = all(writer.get(key, -1) < place for key in record.reads)
    return alike and there and all(touched.get(key, -1) < place for key in record.writes)


def _merged(one: Record, other: Record) -> Record:
    """One pass that does what two passes do that read nothing of each other."""
    reads, writes = dict(one.reads), {**one.writes, **other.writes}
    for key, size in other.reads.items():
        reads[key] = max(reads.get(key, 0.0), size)
    flops = sum(float(kernel.flops) for record in (one, other) for kernel in record.kernels if isinstance(kernel, Pass))
    moved = Pass(moved=sum(reads.values()) + sum(writes.values()), flops=flops)
    return dataclasses.replace(one, name=f"{one.name}, {other.name}", kernels=(moved,), reads=reads, writes=writes)


def _groups(records: Sequence[Record]) -> Iterable[list[int]]:
    """Places of operations that are joined, each group in order."""
    members: dict[int, list[int]] = {}
    made_in: dict[int, int] = {}  # storage -> first place of the group that made it
    scopes: dict[int, tuple[str, str]] = {}  # of groups that are open
    moved: dict[int, int] = {}  # group -> group that it has become a part of

    def group_of(key: int) -> int | None:
        group = made_in.get(key)
        while group in moved:
            group = moved[group]
        return group if group in scopes else None

    sums: set[int] = set()  # groups that only add up gradients of one tensor, which autograd does between modules
    update: int | None = None  # all of an optimizer's passes are one
    for i, record in enumerate(records):
        scope = (record.layer, record.phase)
        before = dict.fromkeys(group for key in (*record.reads, *record.writes) if (group := group_of(key)) is not None)
        if record.fuses and record.phase == UPDATE and update in scopes:
            before[update] = None
        adds = {group for group in before if record.accumulates and group in sums}
        joins = [group for group in before if record.fuses and (scopes[group] == scope or group in adds)]
        for group in before:
            if group not in joins:  # what it makes is read elsewhere: nothing more can join it
                del scopes[group]
        if not record.fuses:
            update = None if record.phase == UPDATE else update
            continue
        members[i] = sorted([place for group in joins for place in members.pop(group)] + [i])
        for group in joins:
            moved[group] = i
            del scopes[group]
        made_in |= dict.fromkeys(record.writes, i)
        scopes[i], update = scope, i if record.phase == UPDATE else update
        if record.accumulates and len(adds) == len(joins):
            sums.add(i)
    return members.values()


def _readers(records: Sequence[Record]) -> dict[int, list[int]]:
    """Places of the operations that read each storage, in order."""
    found: dict[int, list[int]] = {}
    for i, record in enumerate(records):
        for key in record.reads:
            found.setdefault(key, []).append(i)
    return found


def _sources(records: Sequence[Record], members: Sequence[int]) -> dict[int, dict[int, float]]:
    """What each storage that a group makes is made of: storages from outside, with the bytes that are read of them. [B]"""
    found: dict[int, dict[int, float]] = {}
    for i in members:
        mine: dict[int, float] = {}
        for key, size in records[i].reads.items():
            for source, amount in found.get(key, {key: size}).items():
                mine[source] = max(mine.get(source, 0.0), amount)
        found |= dict.fromkeys(records[i].writes, mine)
    return found


def _recomputed(
    records: Sequence[Record], groups: Sequence[Sequence[int]], made_of: Sequence[Mapping[int, Mapping[int, float]]]
) -> list[Record]:
    """Operations whose backward pass computes pointwise results again where that keeps less in memory [1]_.

    A result of the forward pass that only passes of the backward pass read is not kept if what it is made of is kept anyway, or is
    smaller. Nothing may have been written over that meanwhile.
    """
    readers, found = _readers(records), list(records)
    written = {key: i for i, record in enumerate(records) if record.phase == FORWARD for key in record.writes}
    for members, sources in zip(groups, made_of, strict=True):
        if records[members[0]].phase != FORWARD:
            continue
        inside, kept = set(members), set[int]()
        outside = {key: [i for i in readers.get(key, ()) if i > members[0] and i not in inside] for key in sources}
        for key, places in outside.items():
            pointwise = all(records[i].fuses and records[i].phase == BACKWARD for i in places)
            intact = all(written.get(source, -1) < members[0] for source in sources[key])
            if not places or not pointwise or not intact or key in sources[key]:
                continue
            more = {one: size for one, size in sources[key].items() if one not in kept and not _kept_anyway(records, readers, one)}
            if sum(more.values()) > max(records[i].reads[key] for i in places):
                continue
            kept |= more.keys()
            for i in places:
                reads = {one: size for one, size in found[i].reads.items() if one != key}
                for one, size in sources[key].items():
                    reads[one] = max(reads.get(one, 0.0), size)
                found[i] = dataclasses.replace(found[i], reads=reads)
    return found


def _kept_anyway(records: Sequence[Record], readers: Mapping[int, Sequence[int]], key: int) -> bool:
    """Whether the backward pass reads a storage in any case."""
    return any(records[i].phase == BACKWARD for i in readers.get(key, ()))


def _joined(records: Sequence[Record], members: Sequence[int], readers: dict[int, list[int]], lasting: frozenset[int]) -> Record:
    """One pass for a group: what it reads from outside, and writes for outside."""
    inside, own = set(members), [records[i] for i in members]
    reads, writes = dict[int, float](), dict[int, float]()
    for record in own:
        for key, size in record.reads.items():
            if key not in writes:
                reads[key] = max(reads.get(key, 0.0), size)
        for key, size in record.writes.items():
            writes[key] = max(writes.get(key, 0.0), size)
    last = members[-1]
    left = {
        key: size for key, size in writes.items() if key in lasting or any(i not in inside for i in readers.get(key, ()) if i > members[0])
    } or {key: writes[key] for key in records[last].writes}  # fmt: skip
    flops = sum(float(kernel.flops) for record in own for kernel in record.kernels if isinstance(kernel, Pass))
    moved = Pass(moved=sum(reads.values()) + sum(left.values()), flops=flops)
    names = dict.fromkeys(record.name for record in own)
    name = " ".join(names) if len(names) < 4 else f"{next(iter(names))} ... {own[-1].name}"
    return dataclasses.replace(own[-1], name=name, kernels=(moved,), reads=reads, writes=left)
