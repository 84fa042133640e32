"""Who has which devices of a torus that is cut into slices, and the first place where a slice fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Index, Mask
from crossflow.hardware.mapping.slices import SliceGround, SliceShape


@dataclass(frozen=True, kw_only=True)
class SlicePlace:
    """Where a slice lies: in one box, or as several whole cubes."""

    cubes: tuple[int, ...]
    corner: SliceShape  # of least coordinates
    shape: SliceShape  # as it lies in each of its cubes


class SliceMap:
    """Devices that jobs have, as an array of shape (cubes, *box); lives inside `scheduled`."""

    def __init__(self, ground: SliceGround) -> None:
        self.ground = ground
        self.taken = np.zeros((ground.cubes, *ground.box), dtype=bool)
        self._found: dict[SliceShape, SlicePlace | None] = {}  # where slices fit as things stand
        self._found_beyond: dict[SliceShape, SlicePlace | None] = {}  # the same outside of the devices that were asked about last
        self._beyond: Mask | None = None

    def copy(self) -> SliceMap:
        """Another one, in which jobs may have other devices."""
        other = SliceMap(self.ground)
        other.taken = self.taken.copy()
        return other

    def put(self, place: SlicePlace, *, taken: bool) -> None:
        """Take the devices of a place, or give them back."""
        self.taken[cells(self.ground, place)] = taken
        for known in (self._found, self._found_beyond):  # what fits nowhere fits nowhere beside one more
            kept = [shape for shape, found in known.items() if taken and found is None]
            known.clear()
            known.update(dict.fromkeys(kept))

    def only(self, place: SlicePlace) -> Mask:
        """The devices of a place, shape (cubes, *box)."""
        found = np.zeros_like(self.taken)
        found[cells(self.ground, place)] = True
        return found

    def find(self, shape: SliceShape, beyond: Mask | None = None) -> SlicePlace | None:
        """The first place where a slice fits, outside of some devices where they are given; None where it fits nowhere.

        Places are tried cube by cube, in the order of their corners; first as the slice is written, then turned.
        """
        if beyond is not None and beyond is not self._beyond:
            self._beyond, self._found_beyond = beyond, {}
        known = self._found if beyond is None else self._found_beyond
        if shape not in known:
            known[shape] = self._first(shape, self.taken if beyond is None else self.taken | beyond, None)
        return known[shape]

    def sparing(self, shape: SliceShape, spared: Mask) -> SlicePlace | None:
        """The same, in the place of the first cubes or corner those with the fewest of some devices."""
        return self._first(shape, self.taken, spared)

    def _first(self, shape: SliceShape, taken: Mask, spared: Mask | None) -> SlicePlace | None:
        ground = self.ground
        if ground.whole(shape):
            free = np.flatnonzero(~taken.reshape(ground.cubes, -1).any(axis=1))
            if spared is not None:
                free = free[np.argsort(spared.reshape(ground.cubes, -1).sum(axis=1)[free], kind="stable")]
            many = int(np.prod(shape)) // int(np.prod(ground.box))
            return SlicePlace(cubes=tuple(free[:many].tolist()), corner=(0,) * len(shape), shape=ground.box) if free.size >= many else None
        for turned in ground.turns(shape):
            held = _held(ground, turned, taken)
            corners = np.flatnonzero(held == 0)
            if corners.size:
                first = corners[0] if spared is None else corners[_held(ground, turned, spared).ravel()[corners].argmin()]
                cube, *corner = (int(one) for one in np.unravel_index(first, held.shape))
                return SlicePlace(cubes=(cube,), corner=tuple(corner), shape=turned)
        return None


def _held(ground: SliceGround, shape: SliceShape, taken: Mask) -> Index:
    """Devices that others have in the box at each corner, shape (cubes, *corners); a box may lie across the end of rows that wrap."""
    held: Index = taken.astype(np.int32)
    for axis, (size, side, wraps) in enumerate(zip(shape, ground.box, ground.wrapped, strict=True), start=1):
        if wraps and not ground.optical and size < side:
            held = np.concatenate([held, _part(held, 0, size - 1, axis)], axis=axis)
        held = _windows(held, size, axis)
    return held


def _windows(values: Index, size: int, axis: int) -> Index:
    """Sums of `size` neighbours along an axis, put together from those of 1, 2, 4, ... neighbours."""
    corners, found, begin, width = values.shape[axis] - size + 1, np.zeros(1, dtype=values.dtype), 0, 1
    while True:
        if size & width:
            found = found + _part(values, begin, begin + corners, axis)
            begin += width
        if 2 * width > size:
            return found
        values = _part(values, 0, values.shape[axis] - width, axis) + _part(values, width, values.shape[axis], axis)
        width *= 2


def _part(values: Index, begin: int, end: int, axis: int) -> Index:
    return values[(slice(None),) * axis + (slice(begin, end),)]


def cells(ground: SliceGround, place: SlicePlace) -> tuple[Index, ...]:
    """The devices of a place, as indices of an array of shape (cubes, *box)."""
    along = [(corner + np.arange(size)) % side for corner, size, side in zip(place.corner, place.shape, ground.box, strict=True)]
    return np.ix_(np.array(place.cubes), *along)
