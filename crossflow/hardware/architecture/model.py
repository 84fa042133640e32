"""The architecture that every later stage sees, whether it was generated from technology or read off a datasheet."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Mask, arrays_in, plain
from crossflow.hardware.architecture.execution import Execution

MAIN = "memory"  # name of the level beside the chip


@dataclass(frozen=True, kw_only=True)
class Level:
    """One level of the memory hierarchy; arrays of shape (n,)."""

    name: str  # level name, also its key in budgets and reports
    scope: str  # ``mcu``, ``bundle`` or ``global``: what shares one instance
    capacity: Array  # capacity of one instance. [B]
    instances: Array  # how many instances the device has. [1]
    bandwidth: Array  # bandwidth of all instances together, as far as it can be used. [B/s]
    latency: Array  # time of one access. [s]
    energy: Array  # dynamic energy of a byte read or written. [J/B]
    stacked: Array = field(default_factory=lambda: np.zeros(1))  # part of the capacity that stands on the compute die. [B]


@dataclass(frozen=True, kw_only=True)
class SecondMemory:
    """A second memory beside main memory, of one device, on which plans may keep tensors (`far`); arrays of shape (n,)."""

    capacity: Array  # [B]
    bandwidth: Array  # of reads, as far as it can be used. [B/s]
    write_bandwidth: Array  # [B/s]
    latency: Array  # time of a read whose address was not known before. [s]
    energy: Array  # of a byte read. [J/B]
    write_energy: Array  # of a byte written. [J/B]
    page: Array  # bytes that are read together. [B]
    endurance: Array  # writes that a cell stands, infinite where it does not wear out. [1]
    staged: Array  # 1 where what is read passes through main memory, 0 where kernels read it directly. [1]


@dataclass(frozen=True, kw_only=True)
class Port:
    """What one device sends into a network level, per direction, all lanes together; arrays of shape (n,)."""

    bandwidth: Array  # [B/s]
    latency: Array  # time until the first byte arrives over one hop. [s]
    energy: Array  # energy of a byte sent. [J/B]
    known: Array | None = None  # latency of such links, which the measured steps of a fabric hold, where another is given for this one. [s]
    reduction: Array | None = None  # rate at which its switches reduce, over that of the links; None where they are not named. [1]
    peers: int | None = None  # devices of a node that it has links of their own to, whether or not they take part; None where it has none


@dataclass(frozen=True, kw_only=True)
class BudgetUse:
    """How much of one share of a budget is used: resource ``power`` [W], ``area`` [m2] or ``perimeter`` [m]; shape (n,)."""

    resource: str
    component: str
    budget: Array
    used: Array


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What bound a component: `names[code]` for each design point."""

    component: str
    names: tuple[str, ...]
    code: Array

    def name(self, point: int) -> str:
        """What bound the component at a design point."""
        return self.names[int(self.code[point if self.code.size > 1 else 0])]


@dataclass(frozen=True, kw_only=True)
class CacheClock:
    """A cache whose slices have a clock of their own, and so a voltage of their own at which its energies hold; arrays of shape (n,)."""

    level: int  # which of the device's levels it is, from the nearest
    voltage: Array  # of its own clock. [V]
    faster: Array  # full clock of the units over its own. [1]


@dataclass(frozen=True, kw_only=True)
class Throttle:
    """How a device that would draw more than its power slows down; arrays of shape (n,)."""

    power: Array  # power that switching and the leakage of the compute units may draw. [W]
    leakage: Array  # that of the compute units at `voltage`. [W]
    voltage: Array  # operating point that its rates hold at. [V]
    threshold: Array  # [V]
    minimum: Array  # voltage below which units are left dark instead. [V]
    nominal: Array  # voltage of the caches at the clock that they share. [V]
    faster: Array = field(default_factory=lambda: np.ones(1))  # full clock of the units over that of the caches. [1]
    own: tuple[CacheClock, ...] = ()  # caches that do not share it


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """How a benchmark calls one kernel over and over, where a program calls many in turn."""

    copies: Array  # copies of B that the calls go through in turn, shape (n,); their operands may still lie in the last cache. [1]
    settling: float = 0.0  # time of a call in which the clock has come half of the way down to what power sustains; 0 for long runs. [s]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One accelerator and its ports; arrays of shape (n,) or (1,)."""

    name: str
    throughput: Mapping[str, Array]  # peak rate of the matrix units, by data type. [flop/s]
    vector_throughput: Mapping[str, Array]  # of the vector units. [flop/s]
    mcus: Array  # minimal compute units that run. [1]
    units: Array  # bundles of them (SMs, CUs) that share a first cache. [1]
    array_height: Array  # of the multiplier array of one unit, N_x of Eq. 5. [1]
    array_width: Array  # N_y of Eq. 5. [1]
    frequency: Array  # operating point. [Hz]
    voltage: Array | None  # operating point; None where the maker does not state it. [V]
    levels: tuple[Level, ...]  # memory levels from the nearest to main memory
    intra: Port | None  # port inside a node (package, server)
    inter: Port | None  # port out of it
    # dynamic energy of one operation, by data type: at full rate types of 16 bits and more draw the same power. [J/flop]
    energy_per_flop: Mapping[str, Array]
    static_power: Array  # power that flows whatever is computed. [W]
    maximum_power: Array  # budget or TDP. [W]
    execution: Execution  # how kernels run on it
    # clock at which long matrix products draw the power limit, over `frequency`; above 1 it does not bind. [1]
    power_clock: Array = field(default_factory=lambda: np.full(1, np.inf))
    held_to: Array = field(default_factory=lambda: np.ones(1))  # share of the rate of its matrix units that they are let reach. [1]
    exponentials: Array = field(default_factory=lambda: np.full(1, np.inf))  # a clock of one unit, for softmax. [1]
    working_power: Array | None = None  # of all units while they work, beside their operations; None where it is in these [W]
    second: SecondMemory | None = None  # a memory beside main memory, where there is one
    repeats: Repeats | None = None  # for kernels that a benchmark repeats; None in programs
    graphs: bool = False  # whether captured graphs launch its kernels
    throttle: Throttle | None = None  # of a device whose components together may draw more than its power
    dataflow: str = "best"
    # products whose weights have 2:4 sparsity, by data type, where units leave out half of the work: peak rate [flop/s] and energy of an
    # operation [J/flop], those that are left out counted
    sparse_throughput: Mapping[str, Array] = field(default_factory=dict)
    sparse_energy: Mapping[str, Array] = field(default_factory=dict)
    fed: Array | None = None  # what `operand_rate` is where it does not follow from `throughput`. [flop/s]
    types_area: Array | None = None  # of the compute units, for types that these were not published with; None without any. [m2]
    temperature: Array | None = None  # of the dies at that power; None where nothing is known of their cooling. [K]
    usage: tuple[BudgetUse, ...] = ()  # budgets used; empty for a datasheet device
    limits: tuple[Limit, ...] = ()  # what bound each component; empty for a datasheet device
    problems: tuple[tuple[Mask, str], ...] = ()  # design points that cannot be built, each with the sentence that says why
    # price of one device with its share of package and network, by part; empty where it is not known. [USD]
    cost: Mapping[str, Array] = field(default_factory=dict)
    # embodied carbon of one device's dies and memory, by part; empty where it is not known. [kg]
    carbon: Mapping[str, Array] = field(default_factory=dict)
    # of levels whose switches are named: tiers, hops, switches, length of the longest link [m], by level and figure
    networks: Mapping[str, Array] = field(default_factory=dict)
    network_power: Array = field(default_factory=lambda: np.zeros(1))  # of named switches and their links, beside the device's own. [W]
    generation: str = ""  # of a device that was read off its datasheet, where its family has several

    def __repr__(self) -> str:
        return f"Architecture({self.name!r})"

    @functools.cached_property
    def single(self) -> bool:
        """Whether this is one device for all design points."""
        return all(array.shape[-1:] in ((), (1,)) for array in arrays_in(self))

    @property
    def sustained_clock(self) -> Array:
        """Clock of long matrix products, over `frequency`: no more than the boost clock, nor than the power limit allows. [1]"""
        return np.asarray(np.minimum(self.power_clock, 1.0))

    def reached(self, utilisation: Array) -> Array:
        """Share of the matrix rate that a main loop reaches which reaches `utilisation` of it where nothing holds the units back. [1]

        What keeps units from their whole rate, such as reading operands from shared memory, goes on while units that are held to a share of
        it (`held_to`) take so much longer. So these reach nearly all of their share: square products of random numbers run at 0.96 of the
        16-bit rate on the H20 and the L20 and at 0.96 to 1.05 of it on the RTX 4090 (`docs/model.md`).
        """
        return np.asarray(np.minimum(utilisation / self.held_to, 1.0))

    @property
    def operand_rate(self) -> Array:
        """16-bit operations a second for which the matrix units are made, whose operands the caches have to feed. [flop/s]"""
        if self.fed is not None:
            return self.fed
        wide = next((self.throughput[dtype] for dtype in ("bf16", "fp16") if dtype in self.throughput), None)
        return np.asarray((next(iter(self.throughput.values())) if wide is None else wide) / self.held_to)

    @property
    def memory(self) -> Level:
        """Main memory: the farthest level, an on-chip one where there is no memory beside the chip."""
        return self.levels[-1]

    @property
    def on_chip_only(self) -> bool:
        """Whether main memory is on the chip, for there is none beside it."""
        return self.memory.name != MAIN

    @property
    def memory_capacity(self) -> Array:
        """Capacity of main memory, all its instances together, shape (n,). [B]"""
        return np.asarray(self.memory.capacity * self.memory.instances)

    @functools.cached_property
    def level_table(self) -> Array:
        """Bandwidth [B/s], latency [s] and energy [J/B] of all levels, shape (3, levels, 1, n)."""
        columns = [[level.bandwidth, level.latency, level.energy] for level in self.levels]
        n = max(values.size for row in columns for values in row)
        table = np.empty((3, len(self.levels), 1, n))
        for i, row in enumerate(columns):
            for j, values in enumerate(row):
                table[j, i, 0] = values
        return table

    @functools.cached_property
    def in_graphs(self) -> Architecture:
        """The same device where captured graphs launch its kernels."""
        launch = self.execution.graph_launch
        execution = self.execution if launch is None else self.execution.model_copy(update={"kernel_launch": launch})
        return replace(self, execution=execution, graphs=True)

    @functools.cached_property
    def leaving_out(self) -> Architecture:
        """The same device for products whose weights have 2:4 sparsity: their rates and energies, with the caches as they are."""
        return replace(
            self, throughput={**self.throughput, **self.sparse_throughput}, energy_per_flop={**self.energy_per_flop, **self.sparse_energy},
            fed=self.operand_rate, sparse_throughput={}, sparse_energy={},
        )  # fmt: skip

    def level(self, name: str) -> Level:
        """Level by name."""
        return next(level for level in self.levels if level.name == name)

    @property
    def bound_by(self) -> dict[str, str]:
        """What bound each component at the first design point, by component."""
        return {limit.component: limit.name(0) for limit in self.limits}

    def budget_rows(self) -> list[dict[str, Any]]:
        """Use of every budget at the first design point, as plain data."""
        figures = ((use, *(plain(float(np.ravel(value)[0])) for value in (use.budget, use.used))) for use in self.usage)
        return [{"resource": use.resource, "component": use.component, "budget": budget, "used": used} for use, budget, used in figures]

    @functools.cached_property
    def figures(self) -> Mapping[str, Array]:
        """Figures of one device that people ask for, flat, in SI units; keys name the level or port."""
        found: dict[str, Array] = {f"throughput.{dtype}": rate for dtype, rate in self.throughput.items()}
        found |= {f"sparse_throughput.{dtype}": rate for dtype, rate in self.sparse_throughput.items()}
        found |= {"units": self.units, "mcus": self.mcus, "frequency": self.frequency}
        found["sustained_frequency"] = self.frequency * self.sustained_clock
        if self.voltage is not None:
            found["voltage"] = self.voltage
        if self.temperature is not None:
            found["temperature"] = self.temperature
        for level in self.levels:
            found[f"{level.name}.capacity"] = level.capacity * level.instances
            found[f"{level.name}.bandwidth"] = level.bandwidth
            if level.stacked.any():
                found[f"{level.name}.stacked"] = level.stacked * level.instances
        if self.second is not None:
            found |= {f"second_memory.{name}": getattr(self.second, name) for name in ("capacity", "bandwidth", "write_bandwidth")}
        for name, port in (("intra", self.intra), ("inter", self.inter)):
            if port is not None:
                found[f"{name}.bandwidth"] = port.bandwidth
        found |= self.networks
        if self.types_area is not None:
            found["types.area"] = self.types_area
        for resource in dict.fromkeys(use.resource for use in self.usage):
            found[f"used.{resource}"] = sum((use.used for use in self.usage if use.resource == resource), np.zeros(1))
        found |= {f"cost.{part}": amount for part, amount in self.cost.items()}
        found |= {f"carbon.{part}": amount for part, amount in self.carbon.items()}
        return found
