"""Jobs as they come, whatever they are: read from a trace, or drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index


@dataclass(frozen=True, kw_only=True, eq=False)
class JobTrace:
    """Jobs in order of their arrival; arrays of shape (n,).

    Attributes
    ----------
    arrival : [s]
    devices : [1]
    time : of running. [s]
    kind : number of the class of each.
    classes : their names.
    slice : number of the slice of each.
    slices : their sizes as a file says them, such as 4x4x8; "" where it says none.
    notes : sentences on what was done to the file that they come from.
    """

    arrival: Array
    devices: Index
    time: Array
    kind: Index
    classes: tuple[str, ...]
    slice: Index
    slices: tuple[str, ...] = ("",)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival)

    def first(self, count: int | None) -> JobTrace:
        """Only so many of them."""
        return self._taken(np.arange(len(self))[:count])

    def in_order(self) -> JobTrace:
        """Sorted by arrival, those of one moment as they stood."""
        return self._taken(np.argsort(self.arrival, kind="stable"))

    def _taken(self, which: Index) -> JobTrace:
        return replace(self, **{name: getattr(self, name)[which] for name in ("arrival", "devices", "time", "kind", "slice")})
