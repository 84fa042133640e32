"""How kernels run on a device beyond its peak rates: few physical parameters, in files, each with its source."""

from __future__ import annotations

from pydantic import Field

from crossflow.files import FileModel
from crossflow.units import Share, Time


class Execution(FileModel):
    """What separates achieved from peak rates."""

    kernel_launch: Time = Field(description="time between kernels of one stream that no work fills")
    matrix_utilisation: Share = Field(description="highest share of the matrix peak that a long kernel reaches")
    vector_utilisation: Share = Field(description="highest share of the vector peak that a long kernel reaches")
