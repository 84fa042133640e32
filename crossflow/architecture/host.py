"""The host of a node's devices, as far as tensors are kept and updated there."""

from __future__ import annotations

from pydantic import Field

from crossflow.files import FileModel
from crossflow.units import Bandwidth, Information, PositiveShare


class Host(FileModel):
    """Main memory of a node beside its devices, which share it evenly."""

    capacity: Information = Field(description="main memory of a node")
    bandwidth: Bandwidth = Field(description="peak rate of a node's main memory, all channels of all sockets")
    utilisation: PositiveShare = Field(description="share of that rate which an optimizer's update on all cores reaches")
