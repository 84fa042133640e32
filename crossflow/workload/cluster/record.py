"""Jobs as they come, whatever they are: read from a trace, or drawn."""

from __future__ import annotations

from dataclasses import dataclass

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
    notes : sentences on what was done to the file that they come from.
    """

    arrival: Array
    devices: Index
    time: Array
    kind: Index
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival)

    def first(self, count: int | None) -> JobTrace:
        """Only so many of them."""
        arrays = {name: getattr(self, name)[:count] for name in ("arrival", "devices", "time", "kind")}
        return JobTrace(**arrays, classes=self.classes, notes=self.notes)

    def in_order(self) -> JobTrace:
        """Sorted by arrival, those of one moment as they stood."""
        order = np.argsort(self.arrival, kind="stable")
        arrays = {name: getattr(self, name)[order] for name in ("arrival", "devices", "time", "kind")}
        return JobTrace(**arrays, classes=self.classes, notes=self.notes)
