"""What it takes to run a system, as its file says: rent, power, the overhead of the building, carbon of the electricity."""

from __future__ import annotations

from pydantic import Field

from crossflow.files import FileModel
from crossflow.units import CarbonIntensity, Overhead, Power, Rent


class OperationSpec(FileModel):
    """Operation of a system; what is absent is not known. `crossflow.architecture.run_cost` turns it into the cost of a run."""

    price: Rent | None = Field(default=None, description="rent of one device, its share of the node included")
    device_power: Power | None = Field(default=None, description="power of one device under load; its TDP where absent")
    host_power: Power | None = Field(default=None, description="power of a node beside its devices: processors, memory, network, fans")
    pue: Overhead | None = Field(
        default=None, description="power usage effectiveness: power of the data centre over that of its nodes; 1 where absent"
    )
    carbon_intensity: CarbonIntensity | None = Field(
        default=None, description="CO2-equivalent that the electricity of the data centre emits per energy, such as 400 g/kWh"
    )
