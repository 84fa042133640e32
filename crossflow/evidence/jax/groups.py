"""Groups of devices as texts of XLA write them: lists, reshaped and transposed ranges, axes of a mesh; pairs of permutations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from crossflow.evidence.jax.text import MOST_DEVICES

_LIST = re.compile(r"\{([\d,\s]*)\}")
_RANGE = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"(?:@\w+)?mesh\[(.*?)\]\s*(?:,\s*device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)\s*)?\{(.*?)\}")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_PART = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")
_PAIR = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}|\[\s*(\d+)\s*,\s*(\d+)\s*\]")

DeviceGroups = tuple[tuple[int, ...], ...]


def groups_of(text: str, devices: int) -> DeviceGroups | None:
    """Groups of devices; all devices in one where the text names none, None where it cannot be read.

    >>> groups_of("[2,4]<=[4,2]T(1,0)", 8)
    ((0, 2, 4, 6), (1, 3, 5, 7))
    >>> groups_of("{{0,1},{2,3}}", 4)
    ((0, 1), (2, 3))
    >>> groups_of("mesh['a'=4,'b'=2] {'b'}", 8)
    ((0, 1), (2, 3), (4, 5), (6, 7))
    """
    text = text.strip()
    if text in ("", "{}"):
        return (tuple(range(devices)),)
    if found := _RANGE.fullmatch(text):
        shape, whole, order = (tuple(map(int, part.split(","))) if part else None for part in found.groups())
        if math.prod(whole or ()) > MOST_DEVICES:
            return None
        return _rows(np.arange(np.prod(whole or ())).reshape(whole or ()).transpose(order).reshape(shape or ()))
    if found := _MESH.fullmatch(text):
        return _of_mesh(*found.groups())
    if re.fullmatch(r"\{\s*\{.*\}\s*\}", text):
        return tuple(tuple(map(int, one.split(","))) for one in _LIST.findall(text[1:-1]) if one.strip())
    return None


def _rows(table: np.ndarray) -> DeviceGroups:
    return tuple(tuple(row) for row in table.reshape(table.shape[0], -1).tolist())


def _of_mesh(axes: str, ids: str | None, order: str | None, along: str) -> DeviceGroups | None:
    """Groups along some axes of a mesh, or along parts of them, written `'a':(2)4`: 4 places, those before it being 2."""
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    wanted = {name: (int(before or 1), int(size or sizes.get(name, 0))) for name, before, size in _PART.findall(along)}
    whole = tuple(map(int, ids.split(","))) if ids else tuple(sizes.values())
    if not wanted.keys() <= sizes.keys() or math.prod(whole) > MOST_DEVICES or math.prod(whole) != math.prod(sizes.values()):
        return None
    shape, taken = list[int](), list[int]()
    for name, size in sizes.items():
        before, own = wanted.get(name, (1, 1))
        if size % (before * own):
            return None
        taken += [len(shape) + 1] if name in wanted else []
        shape += [before, own, size // (before * own)]
    table = np.arange(math.prod(whole)).reshape(whole)
    table = table.transpose(tuple(map(int, order.split(",")))) if order else table
    left = [i for i in range(len(shape)) if i not in taken]
    count = math.prod(shape[i] for i in left)
    return _rows(table.reshape(shape).transpose([*left, *taken]).reshape(count, -1))


def pairs_of(text: str) -> tuple[tuple[int, int], ...]:
    """Sources and targets of a permutation."""
    return tuple((int(a or c), int(b or d)) for a, b, c, d in _PAIR.findall(text.strip()[1:-1]))


def contradiction(groups: DeviceGroups, world: int, *, equal: bool) -> str:
    """What is wrong with the groups of a collective, "" where nothing is.

    Parameters
    ----------
    world : devices that there are. [1]
    equal : whether all groups must be as large, for the sizes of tensors depend on it.

    >>> contradiction(((0, 1), (1, 2)), 4, equal=False)
    'the device 1 is in its groups twice'
    >>> contradiction(((0, 1), (2, 4)), 4, equal=False)
    'the device 4 is in its groups, and there are 0 to 3'
    >>> contradiction(((0, 1), (2,)), 4, equal=True)
    'its groups have 1 and 2 devices, and must be of one size'
    """
    return _once([device for group in groups for device in group], world, "in its groups") or _unequal(groups if equal else ())


def crossing(pairs: Sequence[tuple[int, int]], world: int) -> str:
    """What is wrong with the pairs of a permutation, "" where nothing is.

    >>> crossing([(0, 1), (0, 2)], 4), crossing([(0, 1), (1, 0)], 2)
    ('the device 0 is a source twice', '')
    """
    return _once([source for source, _ in pairs], world, "a source") or _once([target for _, target in pairs], world, "a target")


def _once(devices: Sequence[int], world: int, what: str) -> str:
    """A device that there is not, or that is there twice."""
    seen = set[int]()
    for device in devices:
        if not 0 <= device < world:
            return f"the device {device} is {what}, and there are 0 to {world - 1}"
        if device in seen:
            return f"the device {device} is {what} twice"
        seen.add(device)
    return ""


def _unequal(groups: DeviceGroups) -> str:
    sizes = sorted({len(group) for group in groups})
    return f"its groups have {' and '.join(map(str, sizes))} devices, and must be of one size" if len(sizes) > 1 else ""


def moving(pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The ranks of the longest chain or cycle of a permutation, in ascending order from 0; those that stay where they are send nothing.

    >>> moving([(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)])
    (0, 2, 4)
    """
    longest = max(_chains(dict(pairs)), key=len, default=[])
    ranks = sorted(longest)
    return tuple(rank - ranks[0] for rank in ranks)


def _chains(target: dict[int, int]) -> Iterator[list[int]]:
    """Chains, each from the rank that nobody sends to, and cycles."""
    starts = [one for one in target if one not in set(target.values())] + list(target)
    seen = set[int]()
    for start in starts:
        chain = list[int]()
        at: int | None = start
        while at is not None and at not in seen:
            seen.add(at)
            chain.append(at)
            at = target.get(at)
        if len(chain) > 1:
            yield chain
