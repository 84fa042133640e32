"""The components of a technology library: the attributes of the paper's Table 2, one model a component [1]_.

Every quantity is a read-only array of shape (1,) as read from a file, or (n,) once design points differ in it.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.1 and Table 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from crossflow.base.arrays import Array, Mask, points
from crossflow.base.files import FileModel, one_of
from crossflow.base.formats import FORMATS
from crossflow.base.units import (
    Area,
    AreaOrZero,
    AreaPerBit,
    CarbonPerArea,
    CarbonPerCapacity,
    Cost,
    CostPerArea,
    EnergyPerBit,
    EnergyPerBitLength,
    FlopPerCycle,
    Frequency,
    Information,
    Length,
    LengthOrZero,
    PerArea,
    PerLength,
    PositiveCount,
    PositiveRatio,
    PositiveShare,
    Power,
    PowerDensity,
    PowerPerBit,
    Ratio,
    Share,
    Temperature,
    ThermalResistance,
    Time,
    TimePerLength,
    Voltage,
)

ZERO = points(0.0)
TypeName = Annotated[str, one_of("a data type", FORMATS)]


class Compute(FileModel):
    """A minimal compute unit (MCU): a matrix or vector unit, or a systolic array, at its own logic node."""

    title: str = ""
    node: str = Field(description="logic node at which the figures below hold")
    nominal_power: Power = Field(description="power of one unit at nominal voltage and frequency")
    nominal_flop_rate: FlopPerCycle = Field(description="operations of one unit per cycle")
    nominal_area: Area = Field(description="die area of one unit")
    nominal_voltage: Voltage
    threshold_voltage: Voltage
    minimum_voltage: Voltage = Field(description="below it the unit does not work: fewer units run instead")
    maximum_voltage: Voltage = Field(description="above it the unit must not run: the frequency stops rising")
    nominal_frequency: Frequency
    leakage: Share = Field(description="share of the nominal power that flows without switching")
    array_height: PositiveCount = Field(description="N_x of Eq. 5: rows of the unit's multiplier array")
    array_width: PositiveCount = Field(description="N_y of Eq. 5: columns of the unit's multiplier array")
    edge_area: Share | None = Field(
        default=None,
        description="share of the unit's area along the edges of its array: registers and feeds of operands, accumulators, control;"
        " it grows with rows plus columns, the rest with rows times columns; not known where absent",
    )
    edge_power: Share | None = Field(default=None, description="share of the unit's power there")
    types: Mapping[TypeName, Ratio] = Field(
        default={}, description="data types that the unit has at the area and power above, each with its rate over the nominal one"
    )
    sparse_types: tuple[TypeName, ...] = Field(
        default=(), description="those of `types` whose products leave out what 2:4 sparsity of weights saves, at the same area and power"
    )
    datapath: str | None = Field(
        default=None, description="entry of `datapath` that prices further types of a template's `rates`; none can be had where absent"
    )
    datapath_area: Share = Field(default=ZERO, description="share of the unit's area that its multiply-accumulate datapath takes")
    datapath_power: Share = Field(default=ZERO, description="share of the unit's switched power that its datapath takes")


class Datapath(FileModel):
    """A dot-product datapath of several data types, in cells of one full adder; `architecture.datatypes` counts them."""

    title: str = ""
    shift: Ratio = Field(description="cells of one bit of one stage of a shifter that aligns products")
    flip_flop: Ratio = Field(description="cells of one bit of a register")
    window: PositiveCount = Field(description="bits to which products of long exponents are aligned before they are added")
    accumulator: PositiveCount = Field(description="bits of an accumulator, or those of the type where it has more")
    lanes: PositiveCount = Field(description="products of 16 bits that are added before they reach an accumulator; of 8 bits twice as many")
    split: Ratio = Field(description="further cells of a multiplier that narrow types have from a wider one, over their own")
    apart: Share = Field(description="share of a type's cells that types of another width cannot use")


class OnChip(FileModel):
    """On-chip memory cut into slices, with the network between the slices and the units that share them."""

    title: str = ""
    node: str = Field(description="logic node at which the figures below hold")
    area_per_bit: AreaPerBit
    area_overhead: Share = Field(description="share of a macro's area that is periphery, not bit cells")
    slice_area: AreaOrZero = Field(default=ZERO, description="logic of one slice: tags, queues, check bits")
    port_area: AreaOrZero = Field(default=ZERO, description="port of one slice: its part of the routers and wires that lead to the units")
    slice_width: Information | None = Field(default=None, description="what one slice delivers in a cycle; no limit where it is absent")
    frequency: Frequency | None = Field(default=None, description="clock of the slices and of their network; no limit where it is absent")
    dynamic_energy_per_bit: EnergyPerBit = Field(description="access to a macro")
    control_energy_per_bit: EnergyPerBit = Field(
        default=ZERO, description="tags, queues, arbitration and clocks, which scale as logic does"
    )
    wire_energy: EnergyPerBitLength = Field(default=ZERO, description="wires of the network, which do not scale with the node")
    wire_length: LengthOrZero = Field(default=ZERO, description="mean way from a unit to the slice that holds its data")
    wire_latency: TimePerLength = Field(default=ZERO, description="time that a signal takes along those wires, both ways")
    static_power_per_bit: PowerPerBit
    latency: Time = Field(description="time of an access without the way through the network")

    @property
    def energy_per_bit(self) -> Array:
        """Energy of an access by a unit: macro, control and wires. [J/B]"""
        return np.asarray(self.dynamic_energy_per_bit + self.control_energy_per_bit + self.wire_energy * self.wire_length)

    @property
    def logic_area(self) -> Array:
        """Area of one slice beside its bits. [m2]"""
        return np.asarray(self.slice_area + self.port_area)


class OffChip(FileModel):
    """An off-chip memory device (an HBM stack, a GDDR chip) and its controller on the compute die."""

    title: str = ""
    links_per_device: PositiveCount = Field(description="data pins of one device")
    links_per_mm: PerLength = Field(description="data pins that a length of die edge lets through")
    dynamic_energy_per_bit: EnergyPerBit = Field(description="energy of an access inside the memory device")
    interface_energy_per_bit: EnergyPerBit = Field(
        default=points(0.0), description="energy of the same access on the compute die: controller, I/O and the way to the last cache"
    )
    static_power_per_bit: PowerPerBit = Field(description="refresh and idle power")
    device_capacity: Information
    device_area: AreaOrZero = Field(description="package area that one device takes beside the die")
    controller_area: Area = Field(description="die area of the controller and I/O of one device")
    bump_pitch: Length | None = Field(default=None, description="pitch of its bumps, which the substrate must reach; any where absent")
    nominal_voltage: Voltage
    threshold_voltage: Voltage
    minimum_voltage: Voltage
    maximum_voltage: Voltage
    nominal_frequency: Frequency = Field(description="one bit per pin and cycle: 2 Gbit/s pins are 2 GHz")
    access_latency: Time
    device_cost: Cost | None = Field(default=None, description="price of one device")
    carbon_per_capacity: CarbonPerCapacity | None = Field(default=None, description="embodied carbon over capacity")
    write_rate: PositiveRatio = Field(default=points(1.0), description="rate of writes over that of reads, less than 1 of flash")
    write_energy: PositiveRatio = Field(default=points(1.0), description="energy of a write over that of a read")
    page: Information = Field(default=points(1.0), description="bytes that are read together, of which a smaller piece takes one")
    endurance: PositiveCount | None = Field(default=None, description="writes that a cell stands; it does not wear out where absent")
    devices_per_area: PerArea | None = Field(
        default=None, description="devices that stand on an area of the compute die, where they are stacked on it; else they lie beside it"
    )

    @property
    def access_energy(self) -> Array:
        """Energy of an access as the chip sees it: the device and the way to it on the compute die. [J/B]"""
        return self.dynamic_energy_per_bit + self.interface_energy_per_bit

    @property
    def wears(self) -> Mask:
        """Whether its cells wear out, shape (n,): flash, which is no main memory."""
        return np.zeros(1, dtype=bool) if self.endurance is None else np.isfinite(self.endurance)

    @property
    def on_logic(self) -> Mask:
        """Whether its devices stand on the compute die."""
        return np.zeros(1, dtype=bool) if self.devices_per_area is None else np.isfinite(self.devices_per_area)


class Bond(FileModel):
    """How a die stands on the compute die, face to face: cells of a cache, or memory devices. A lane carries one bit a cycle."""

    title: str = ""
    frequency: Frequency = Field(description="one bit per lane and cycle")
    energy_per_bit: EnergyPerBit = Field(description="energy of a bit that crosses from one die to the other")
    area_per_lane: Area = Field(description="area of the compute die that the vias of one lane take, with their part of those for supply")
    latency: Time = Field(description="time that an access takes longer, there and back")
    bonding_yield: PositiveShare = Field(description="share of dies that survive being bonded; a broken one takes its accelerator along")
    assembly_cost: Cost | None = Field(default=None, description="price of thinning and bonding one die")


class Link(FileModel):
    """One lane of an interconnect, one direction: on the package, off the package, or to the network."""

    title: str = ""
    kind: str = ""
    nominal_voltage: Voltage
    threshold_voltage: Voltage
    minimum_voltage: Voltage
    maximum_voltage: Voltage
    nominal_frequency: Frequency = Field(description="one bit per lane and cycle")
    nominal_energy_per_bit: EnergyPerBit
    area_per_link: Area = Field(description="die area of the I/O of one lane")
    links_per_mm: PerLength = Field(description="lanes that a length of die edge lets through")
    latency: Time
    link_cost: Cost | None = Field(default=None, description="price of one lane: its share of adapter, cable or optics, and switch port")
    maximum_links: PositiveCount | None = Field(default=None, description="lanes of one port, where the standard fixes them")
    reach: Length | None = Field(default=None, description="longest link that it works on; any length where absent")
    direct_latency: Time | None = Field(
        default=None,
        description="`latency` without a switch between the two ends; where it is absent, `latency` holds one hop of the named switch",
    )
    delay: TimePerLength = Field(default=ZERO, description="time that a signal takes along cable or fibre; counted where a switch is named")
    medium_latency: Time = Field(default=ZERO, description="time in retimers or modules of one link, both ends; counted likewise")
    medium_energy_per_bit: EnergyPerBit = Field(
        default=ZERO,
        description="energy of a bit in retimers, modules or optical engines of one link, both ends, beside the die; they draw it at the"
        " full rate whether bits travel or not; counted where a switch is named",
    )
    medium_cost: Cost | None = Field(
        default=None,
        description="price of the cable or the optics of one lane over one link, both ends; in the place of `link_cost` where a switch is"
        " named, which has a price of its own",
    )


class Switch(FileModel):
    """One switch chip with its share of tray, supply and cooling; a port carries lanes both ways."""

    title: str = ""
    ports: PositiveCount = Field(description="ports of one chip, its radix")
    lanes_per_port: PositiveCount = Field(default=points(1.0), description="lanes of a device that one port takes together")
    frequency: Frequency | None = Field(
        default=None,
        description="fastest lane, one bit per lane and cycle; absent of mirrors that turn light of any rate, which join the nodes of an"
        " optical-torus and cannot switch messages",
    )
    latency: Time = Field(description="time of one hop through the chip")
    power: Power = Field(description="power that it draws, whatever passes")
    cost: Cost | None = Field(default=None, description="price of one chip with its share of the tray")
    reduction: Share = Field(
        default=ZERO, description="rate at which it reduces messages that pass, over the rate of its ports; 0: it only forwards"
    )


class Substrate(FileModel):
    """What dies and memories are mounted on: it bounds the area of a package and the wires that leave a die."""

    title: str = ""
    maximum_area: Area
    exposures: PositiveCount = Field(default=points(1.0), description="exposures that may be stitched into one die on it")
    links_per_mm: PerLength
    bump_pitch: Length | None = Field(default=None, description="finest pitch of bumps on it; memory devices may ask for as fine a one")
    cost_per_area: CostPerArea | None = None
    assembly_cost: Cost | None = Field(default=None, description="price of assembling one package")
    device_cost: Cost = Field(
        default=points(0.0), description="price of test and of what else the package needs for one accelerator: power modules, cold plate"
    )
    bonding_yield: PositiveShare = Field(
        default=points(1.0),
        description="share of dies and memory devices that survive being mounted; a broken one takes its accelerator along",
    )
    spare_share: Share = Field(
        default=points(0.0), description="accelerators that may stand by for broken ones in a package, over those that are needed"
    )
    cooling_limit: PowerDensity | None = Field(default=None, description="power of an accelerator over its die area that can be cooled")
    delivery_limit: PowerDensity | None = Field(
        default=None, description="power of the die, without the memory devices, over its area that supply bumps or pads carry"
    )
    coolant: Temperature | None = Field(
        default=None, description="temperature of the air or water that cools the dies; leakage is as the units have it where it is absent"
    )
    thermal_resistance: ThermalResistance | None = Field(
        default=None, description="rise of the dies over the coolant for the power of the accelerator over its die area, likewise"
    )
    usual_temperature: Temperature | None = Field(
        default=None,
        description="hottest that makers let dies become; it changes nothing, but predictions say where dies are hotter",
    )
    maximum_temperature: Temperature | None = Field(
        default=None,
        description="hottest that dies may become: an accelerator draws no more power than keeps them so cool; no limit where it is absent",
    )


class Delivery(FileModel):
    """How power reaches the transistors from the bumps: above them, among the wires of signals, or from behind."""

    title: str = ""
    supply_drop: Share = Field(
        description="share of the voltage that is lost on the way where the accelerator draws 0.5 W over a mm2 of its dies, as the chips"
        " do whose energies are known; it grows with that density, and the supply is higher by what is lost"
    )
    rail_area: Share = Field(description="share of the area of logic that its rails and taps take")


class LogicNode(FileModel):
    """A logic node: area and power of logic and of on-chip memory over those of a base node, and what its dies take to make."""

    title: str = ""
    area: PositiveRatio = Field(description="area of logic of equal function, base node = 1")
    power: PositiveRatio = Field(description="power of logic of equal function at equal speed, base node = 1")
    sram_area: Ratio = Field(description="area of a bit cell, base node = 1")
    sram_energy: Ratio = Field(description="dynamic energy of an access, base node = 1")
    sram_leakage: Ratio = Field(description="static power of a bit, base node = 1")
    wafer_cost: CostPerArea | None = Field(default=None, description="price of a processed 300 mm wafer over its area")
    defect_density: PerArea | None = Field(default=None, description="defects that kill a die, per area")
    carbon_per_area: CarbonPerArea | None = Field(default=None, description="embodied carbon of a processed wafer over its area")
    reticle: Area | None = Field(default=None, description="largest die that one exposure prints")
    speed: PositiveRatio | None = Field(
        default=None,
        description="frequency of logic of equal function at the nominal voltage, base node = 1; units that come from another node keep"
        " their clock and their voltages where one of the two lacks the figure, as for the four voltages",
    )
    nominal_voltage: Voltage | None = Field(default=None, description="supply at which `speed` holds")
    threshold_voltage: Voltage | None = Field(default=None, description="threshold of the alpha-power law, not of a transistor")
    minimum_voltage: Voltage | None = Field(default=None, description="least supply at which logic works")
    maximum_voltage: Voltage | None = Field(default=None, description="largest supply that transistors bear")
    leakage_temperature: Temperature | None = Field(default=None, description="temperature at which the leakage of units and cells holds")
    leakage_doubling: Temperature | None = Field(
        default=None, description="rise of the temperature that doubles the leakage; it does not change where this is absent"
    )
    delivery: str | None = Field(
        default=None, description="entry of `delivery`: how power reaches its transistors, with which `area` holds; no loss where absent"
    )
