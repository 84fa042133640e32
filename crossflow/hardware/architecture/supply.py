"""What the dies of an accelerator lose beside their work: voltage on its way to the transistors, and leakage that grows with heat.

Both follow from the power that the package allows over the area of the dies, in closed form: the power that is drawn is not known
before the clock is, which follows from them. Both come on top of what the shares of the power pay, as the shares hold for logic that
sees its whole voltage at the temperature of its figures; where an accelerator then draws more than it may, it runs slower (`Throttle`).
So less of a loss is never slower, and a library that says nothing of either has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.hardware.technology.components import Delivery, LogicNode, Substrate
from crossflow.hardware.technology.library import Choice, TechLibrary, gather

DENSITY = 5e5  # power over die area at which `supply_drop` is given, 0.5 W/mm2. [W/m2]
MOST = 0.3  # of the voltage: a larger drop would let more power bring less work. [1]
HOTTEST = 8.0  # doublings of the leakage: no die stands more, and `exp` does not overflow. [1]
NONE = Delivery(supply_drop=np.zeros(1), rail_area=np.zeros(1))


@dataclass(frozen=True, kw_only=True)
class PowerLosses:
    """What dies draw over what they would without losses; arrays of shape (n,) or (1,)."""

    switched: Array  # of energies of switching on the dies. [1]
    leaked: Array  # of the power that leaks there. [1]
    temperature: Array | None  # of the dies; None where nothing is known of their cooling. [K]

    @property
    def any(self) -> bool:
        """Whether something is lost, or less than where the figures of the units hold."""
        return bool(np.any(self.switched != 1.0) or np.any(self.leaked != 1.0))


NO_LOSSES = PowerLosses(switched=np.ones(1), leaked=np.ones(1), temperature=None)


def delivered(library: TechLibrary, nodes: Choice, chosen: Choice | None) -> tuple[Delivery, Array]:
    """Delivery of each point, its node's where it chooses none, and area of logic over that with the node's: rails stand among gates.

    Raises
    ------
    CrossflowError
        Where a delivery is chosen for a node that does not say with which one its figures hold.
    """
    silent = [name for name in nodes.names if library.component("logic", name).delivery is None]
    if chosen is not None and silent:
        raise CrossflowError(
            f"technology.delivery: the logic node '{silent[0]}' of the library '{library.name}' does not say with which delivery its own"
            f" figures hold (logic.{silent[0]}.delivery); leave technology.delivery out, or take techlib: standard"
        )
    own = delivery_of(library, nodes.names, nodes.index)
    used: Delivery = own if chosen is None else library.gather("delivery", chosen)
    return used, np.asarray((1.0 - own.rail_area) / (1.0 - used.rail_area))


def delivery_of(library: TechLibrary, nodes: Sequence[str], index: Index) -> Delivery:
    """Delivery that each point's node has: `nodes[index[i]]` at point i."""
    named = (library.component("logic", name).delivery for name in nodes)
    return gather([NONE if name is None else library.component("delivery", name) for name in named], index)


def losses(density: Array, unit: Delivery, chosen: Delivery, node: LogicNode, substrate: Substrate) -> PowerLosses:
    """PowerLosses of dies that draw a power over their area. [W/m2]

    A part of the logic sees the whole drop and still has to keep up, so the supply is 1 / (1 - drop) times what it needs [1]_, and the
    logic that sees none of the drop draws the square of that. The figures of a unit hold with the drop of its own node at `DENSITY`.
    Subthreshold leakage grows as an exponential of the temperature [2]_, and with the supply.

    Parameters
    ----------
    density : power over die area. [W/m2]
    unit : delivery of the node that the unit's figures are for.
    chosen, node, substrate : delivery, logic node and package of the dies.

    References
    ----------
    .. [1] imec on back-side power delivery networks: a margin of 10 % is kept between regulator and transistors (techlibs/standard.yaml).
    .. [2] K. De Vogeleer et al., "Modeling the Temperature Bias of Power Consumption for Nanometer-Scale CPUs in Application
       Processors", arXiv:1404.3381, 2014: exponential between 20 and 85 degrees Celsius.
    """
    drop = np.minimum(chosen.supply_drop * density / DENSITY, MOST)
    supply = np.asarray((1.0 - unit.supply_drop) / (1.0 - drop)) if np.any(chosen.supply_drop) or np.any(unit.supply_drop) else np.ones(1)
    temperature = junction(density, substrate)
    return PowerLosses(switched=supply**2, leaked=supply * heated(temperature, node), temperature=temperature)


def junction(density: Array, substrate: Substrate) -> Array | None:
    """Temperature of dies: that of the coolant and the rise over it. [K]"""
    if substrate.coolant is None or substrate.thermal_resistance is None:
        return None
    return np.asarray(substrate.coolant + substrate.thermal_resistance * density)


def endured(substrate: Substrate, area: Array) -> Array | None:
    """Power of the accelerator that keeps its dies as cool as they must be; None where there is no such limit. [W]

    Chips hold the temperature of their dies by a slower clock. The power that leaks is a part of what is drawn, so that heat and
    leakage cannot drive each other up: what leaks more leaves less to switch.
    """
    coolant, resistance, limit = substrate.coolant, substrate.thermal_resistance, substrate.maximum_temperature
    if coolant is None or resistance is None or limit is None:
        return None
    known = np.isfinite(coolant) & np.isfinite(resistance) & np.isfinite(limit)  # `gather` writes infinite where an entry has none
    rise = np.where(known, limit, 0.0) - np.where(known, coolant, 0.0)
    return np.where(known, np.maximum(rise, 0.0) / np.where(known, resistance, 1.0) * area, np.inf)


def heated(temperature: Array | None, node: LogicNode) -> Array:
    """Leakage at a temperature over that at which the figures hold, 2^((T - T0) / doubling). [1]"""
    if temperature is None or node.leakage_temperature is None or node.leakage_doubling is None:
        return np.ones(1)
    known = np.isfinite(temperature) & np.isfinite(node.leakage_temperature) & np.isfinite(node.leakage_doubling)
    rise = np.where(known, temperature, 0.0) - np.where(known, node.leakage_temperature, 0.0)
    return np.where(known, 2.0 ** np.minimum(rise / node.leakage_doubling, HOTTEST), 1.0)
