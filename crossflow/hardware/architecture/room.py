"""Where devices stand, and how long the links between them are.

Racks stand side by side in rows. Switches that serve several racks stand in the middle of them, and cables take the shortest way along
the rows and across them, so that lengths are the least that a room allows: slack and the way up to a cable tray come on top
(`rack_cable` of a user's own room may hold them).
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from crossflow.base.arrays import Array, points
from crossflow.base.files import FileModel
from crossflow.base.units import Length, PositiveCount


class Room(FileModel):
    """Racks of devices in rows."""

    devices_per_rack: PositiveCount = Field(
        default=points(72.0), description="devices of one rack, with the switches that serve it alone; 72 as in NVIDIA's NVL72"
    )
    rack_cable: Length = Field(
        default=points(2.0), description="longest link inside a rack, from a device to a switch; some 2 m in an NVL72"
    )
    rack_pitch: Length = Field(default=points(0.6), description="from one rack to the next in a row; racks of 600 mm (Open Rack, MGX)")
    racks_per_row: PositiveCount = Field(default=points(16.0), description="racks side by side, before the next row begins")
    row_pitch: Length = Field(default=points(3.0), description="from one row to the next: a rack's depth and an aisle; a usual figure")

    def racks(self, devices: Array) -> Array:
        """Racks of so many devices. [1]"""
        return np.ceil(devices / self.devices_per_rack - 1e-9)

    def to_switch(self, devices: Array) -> Array:
        """Longest link from a device, or from a switch of its rack, to switches in the middle of the racks of so many devices. [m]"""
        return np.asarray(self.rack_cable + self._extent(devices) / 2.0)

    def across(self, devices: Array) -> Array:
        """Longest link between any two of so many devices, or switches beside them. [m]"""
        return np.asarray(self.rack_cable + self._extent(devices))

    def within(self, length: Array) -> Array:
        """Devices whose switches in the middle of their racks are no farther than a length, endless where no rack is so near. [1]"""
        left = 2.0 * (length - self.rack_cable)
        along = np.floor(left / self.rack_pitch + 1e-9) + 1.0
        row = (self.racks_per_row - 1.0) * self.rack_pitch
        rows = np.floor((left - row) / self.row_pitch + 1e-9) + 1.0
        racks = np.where(along < self.racks_per_row, along, self.racks_per_row * np.maximum(rows, 1.0))
        return np.asarray(np.where(left < -1e-9, np.inf, racks * self.devices_per_rack))

    def to_neighbour(self, devices: Array, *, wraps: bool) -> Array:
        """Longest link between neighbours of a grid of so many devices. [m]

        A grid is laid out along the rows, and across them where it fills several. One that wraps is folded: neighbours are two racks apart.
        """
        racks = self.racks(devices)
        step = np.where(racks > self.racks_per_row, np.maximum(self.rack_pitch, self.row_pitch), self.rack_pitch)
        near = np.where(racks > 2, 2.0, 1.0) if wraps else 1.0
        return np.asarray(self.rack_cable + np.where(racks > 1, near * step, 0.0))

    def _extent(self, devices: Array) -> Array:
        """Way from the first to the last of the racks of so many devices, along the row and across the rows. [m]"""
        racks = self.racks(devices)
        along, rows = np.minimum(racks, self.racks_per_row), np.ceil(racks / self.racks_per_row - 1e-9)
        return np.asarray((along - 1.0) * self.rack_pitch + (rows - 1.0) * self.row_pitch)
