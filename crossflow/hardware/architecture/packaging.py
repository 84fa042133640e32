"""What an accelerator and its share of a package cost, in money and in carbon, and what no package can hold.

Dies and memory devices are tested before they are mounted (known good). Each survives mounting with the bonding yield of the
substrate, or of the bond where it stands on a compute die, and a broken one takes its accelerator along. A package is good where
all accelerators that it needs are; spares may stand by for broken ones, as many as make good packages cheapest [1]_, [2]_.

Prices are those of making, without design, margin, board, rack or hosts; a network lane's price holds its share of the switches.

References
----------
.. [1] Y. Feng, K. Ma, "Chiplet Actuary: A Quantitative Cost Model and Multi-Chiplet Architecture Exploration", DAC 2022.
.. [2] S. Pal et al., "Architecting Waferscale Processors: A GPU Case Study", HPCA 2019, Sec. IV (spare modules).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Mask, divide
from crossflow.hardware.architecture.model import Level
from crossflow.hardware.architecture.price import die_carbon, die_cost

if TYPE_CHECKING:
    from crossflow.hardware.architecture.generator import Parts
    from crossflow.hardware.architecture.template import Budgets
    from crossflow.hardware.technology.components import LogicNode, OffChip, Substrate

ONE, NOTHING = np.ones(1), np.zeros(1)
OVERSIZED = (
    "a die is larger than a reticle: divide the chip into more dies (budgets.chiplets),"
    " or take a substrate that allows more exposures for one die, such as wafer"
)


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """One accelerator with its share of a package: price [USD] and embodied carbon [kg] by part, shape (n,), empty where not known.

    `levels` are those of its memory, as units of all its dies see them.
    """

    levels: tuple[Level, ...]
    cost: Mapping[str, Array]
    carbon: Mapping[str, Array]
    problems: tuple[tuple[Mask, str], ...]


@dataclass(frozen=True, kw_only=True)
class Mounted:
    """What stands beside or on the compute dies of one accelerator; arrays of shape (n,)."""

    devices: Array  # devices of main memory. [1]
    stacked: tuple[Array, ...]  # area of the dies of each on-chip level that stand on the compute dies, one on each. [m2]
    vias_area: Array  # of the compute dies that the vias to those dies take. [m2]
    second: Array = field(default_factory=lambda: NOTHING)  # devices of the second memory. [1]

    @property
    def stacked_area(self) -> Array:
        """Area of all dies that stand on compute dies. [m2]"""
        return sum(self.stacked, np.zeros(1))

    def bonded(self, parts: Parts, budgets: Budgets) -> Array:
        """Dies and memory devices that are bonded on compute dies. [1]"""
        levels = sum((area > 0 for area in self.stacked), np.zeros(1))
        return np.asarray(budgets.chiplets * levels + sum(np.where(on_logic(part), count, 0.0) for part, count in self.memories(parts)))

    def beside(self, parts: Parts, budgets: Budgets) -> Array:
        """Compute dies and memory devices that are mounted on the substrate. [1]"""
        return np.asarray(budgets.chiplets + sum(np.where(on_logic(part), 0.0, count) for part, count in self.memories(parts)))

    def memories(self, parts: Parts) -> tuple[tuple[OffChip | None, Array], ...]:
        """Both memories, each with its devices. [1]"""
        return (parts.memory, self.devices), (parts.second_memory, self.second)


def packaged(
    parts: Parts,
    budgets: Budgets,
    sharing: int,
    *,
    levels: tuple[Level, ...],
    fed: tuple[Array, ...],
    mounted: Mounted,
    links: Mapping[str, tuple[Array, Mapping[str, Array] | None]],
) -> Packaged:
    """Price, carbon and limits of one accelerator.

    Parameters
    ----------
    parts : its components, at its logic node.
    budgets : its budgets.
    sharing : accelerators that work in one package. [1]
    levels : its memory levels, as if it were one die.
    fed : bandwidth that the power of each would feed, whatever else limits it. [B/s]
    mounted : its memory devices, and its dies that stand on compute dies.
    links : lanes of its ports inside the package and out of it [1], and price by part where the system names switches for them [USD].
    """
    cost, begun = bill(parts, budgets, sharing, mounted)
    prices, known = _ports(parts, links)
    cost = cost if known else {}
    seen, ports = across_dies(levels, fed, parts, budgets)
    return Packaged(
        levels=seen,
        cost={**cost, **prices} if cost else {},
        carbon=embodied(parts, budgets, mounted, begun),
        problems=(*limits(parts, budgets, mounted), *_roomless(budgets, ports, mounted.vias_area)),
    )


def _ports(parts: Parts, links: Mapping[str, tuple[Array, Mapping[str, Array] | None]]) -> tuple[dict[str, Array], bool]:
    """Price of its ports by part, and whether all that it has of them have one. [USD]"""
    prices: dict[str, Array] = {}
    for name, (lanes, switched) in links.items():
        price = getattr(parts, name).link_cost
        if switched is not None and not switched:
            return {}, False
        if switched is not None:
            prices |= switched
        elif price is not None:
            prices[name] = np.asarray(price * lanes)
        elif np.any(lanes > 0):
            return {}, False
    return prices, True


def on_logic(memory: OffChip | None) -> Mask:
    """Whether memory devices stand on the compute die, shape (n,); none do where there are none."""
    return np.zeros(1, dtype=bool) if memory is None else memory.on_logic


def room(memory: OffChip, budgets: Budgets, stacked: Array, share: Array = ONE) -> Array:
    """Memory devices that find a place, on a share of the package beside the chip, or on what `stacked` dies leave of it [m2]. [1]"""
    beside = divide(share * (budgets.node_area - budgets.chip_area), memory.device_area)
    above = np.inf if memory.devices_per_area is None else (budgets.chip_area - stacked) * memory.devices_per_area
    return np.asarray(np.minimum(beside, above))


# ------------------------------------------------------------------------------------------ several dies


def across_dies(levels: tuple[Level, ...], fed: tuple[Array, ...], parts: Parts, budgets: Budgets) -> tuple[tuple[Level, ...], Array]:
    """Memory levels of a chip divided into k dies, and the die area that the ports between its dies take. [m2]

    Addresses are spread over the slices of the farthest on-chip level that all units share, each beside its memory channel, so
    (k - 1) / k of its accesses cross between dies [1]_. They take the link's energy and time as well, so that what the level's power
    would feed (`fed`, of each level) is less by as much: that counts where it is then less than what slices or pins deliver. Lanes
    carry them as far as the inner edges let lanes through: 4 sqrt(A) (sqrt(k) - 1) for k square dies of an area A in a square. A chip
    that shares no cache crosses on the way to main memory. One die is unchanged.

    References
    ----------
    .. [1] A. Arunkumar et al., "MCM-GPU: Multi-Chip-Module GPUs for Continued Performance Scalability", ISCA 2017.
    """
    dies, link = budgets.chiplets, parts.die_link
    crossing = (dies - 1.0) / dies
    shared = [i for i, level in enumerate(levels[:-1]) if level.scope == "global"]
    at = shared[-1] if shared else len(levels) - 1
    level, rate = levels[at], link.nominal_frequency / 8.0
    energy = level.energy + crossing * link.nominal_energy_per_bit
    able = np.where(dies > 1, np.minimum(level.bandwidth, fed[at] * divide(level.energy, energy)), level.bandwidth)
    edge = 4.0 * np.sqrt(budgets.chip_area) * (np.sqrt(dies) - 1.0)
    lanes = np.floor(edge * np.minimum(link.links_per_mm, parts.substrate.links_per_mm) + 1e-9)
    bandwidth = np.where(dies > 1, np.minimum(able, divide(lanes * rate, crossing)), able)
    seen = replace(level, energy=np.asarray(energy), bandwidth=bandwidth, latency=np.asarray(level.latency + crossing * link.latency))
    used = np.ceil(bandwidth * crossing / rate - 1e-9)
    return (*levels[:at], seen, *levels[at + 1 :]), np.asarray(used * link.area_per_link)


def _roomless(budgets: Budgets, ports: Array, vias: Array) -> tuple[tuple[Mask, str], ...]:
    """Design points whose ports between dies, or vias to dies above, find no room beside the shares of the chip area."""
    area = budgets.area
    shares = (area.compute, area.memory, area.second_memory, area.intra_link, area.inter_link, *area.on_chip.values())
    left = budgets.chip_area * (1 + 1e-9) - sum((share for share in shares if share is not None), np.zeros(1)) * budgets.chip_area
    lacking = "the shares of the chip area leave no room for the"
    found = (
        (np.asarray((ports > left) & (ports > 0)), f"{lacking} links between its dies (budgets.chiplets)"),
        (np.asarray((ports + vias > left) & (vias > 0)), f"{lacking} vias to the dies on it (levels.NAME.stacked_area)"),
    )
    return tuple((mask, sentence) for mask, sentence in found if mask.any())


# ------------------------------------------------------------------------------------------ price and carbon


def bill(parts: Parts, budgets: Budgets, sharing: int, mounted: Mounted) -> tuple[dict[str, Array], Array]:
    """Price of one accelerator without its ports [USD], and accelerators mounted for each that works [1].

    `loss` is what mounting breaks, and spares. Where a price is missing there is none, and spares are as many as save accelerators.
    """
    substrate, dies = parts.substrate, budgets.chiplets
    chip, above = die_cost(budgets.chip_area / dies, parts.node, parts.spares), _stack_cost(parts, budgets, mounted)
    stack, more = (NOTHING if part is None else part.device_cost for part in (parts.memory, parts.second_memory))
    if chip is None or stack is None or more is None or above is None or substrate.cost_per_area is None or substrate.assembly_cost is None:
        return {}, good_package(parts, budgets, sharing, mounted, ONE, np.zeros(1))[1]
    cost = {
        "chip": np.asarray(dies * chip),
        **({"stack": above} if above.any() else {}),
        **({} if parts.memory is None else {"memory": np.asarray(mounted.devices * stack)}),
        **({} if parts.second_memory is None else {"second_memory": np.asarray(mounted.second * more)}),
        "package": np.asarray(substrate.cost_per_area * budgets.node_area),
        "assembly": np.asarray(substrate.assembly_cost / sharing + substrate.device_cost),
    }
    device = sum(cost.values()) - substrate.assembly_cost / sharing
    price, begun = good_package(parts, budgets, sharing, mounted, device, substrate.assembly_cost)
    return {**cost, "loss": np.asarray(price - sum(cost.values()))}, begun


def _stack_cost(parts: Parts, budgets: Budgets, mounted: Mounted) -> Array | None:
    """Price of the dies that stand on compute dies, and of bonding them and memory devices there; None where it is not known. [USD]"""
    bonded, dies = mounted.bonded(parts, budgets), _stacked(die_cost, parts, budgets, mounted)
    if not bonded.any():
        return np.zeros(1)
    return None if dies is None or parts.bond.assembly_cost is None else np.asarray(dies + bonded * parts.bond.assembly_cost)


def _stacked(of_die: Callable[[Array, LogicNode], Array | None], parts: Parts, budgets: Budgets, mounted: Mounted) -> Array | None:
    """Sum of a figure of dies over those that stand on compute dies; None where it is not known."""
    total = np.zeros(1)
    for area in (area for area in mounted.stacked if area.any()):
        die = of_die(area / budgets.chiplets, parts.stacked_node)
        if die is None:
            return None
        total = total + np.where(area > 0, budgets.chiplets * die, 0.0)
    return total


def good_package(parts: Parts, budgets: Budgets, sharing: int, mounted: Mounted, device: Array, package: Array) -> tuple[Array, Array]:
    """Price of one working accelerator in a good package, and accelerators mounted for each that works, both at the cheapest spares.

    With s spares for D accelerators, each good with probability p (yields of bonding to the numbers of dies and memory devices), a
    package is good with probability Y(s) = sum over i <= s of C(D + s, i) (1 - p)^i p^(D + s - i), and a working accelerator costs
    ((D + s) device + package) / (D Y). [USD], [1]
    """
    p = parts.substrate.bonding_yield ** mounted.beside(parts, budgets) * parts.bond.bonding_yield ** mounted.bonded(parts, budgets)
    room = np.floor(parts.substrate.maximum_area / budgets.node_area + 1e-9) - sharing
    spares = np.maximum(np.minimum(np.floor(parts.substrate.spare_share * sharing + 1e-9), room), 0.0)
    price, begun = np.full(1, np.inf), ONE
    for s in range(int(spares.max()) + 1):
        built = sharing + s
        good = np.asarray(sum(math.comb(built, i) * (1.0 - p) ** i * p ** (built - i) for i in range(s + 1)))
        here = np.where(s <= spares, divide(built * device + package, sharing * good), np.inf)
        begun = np.where(here < price, divide(ONE * built, sharing * good), begun)
        price = np.minimum(here, price)
    return price, begun


def embodied(parts: Parts, budgets: Budgets, mounted: Mounted, begun: Array) -> dict[str, Array]:
    """Carbon of making one accelerator's dies and memory, without package, board and host; empty where it is not known. [kg]

    `chip` and `stack` (dies on the compute dies) are those of the area itself; `yield_loss` that of the wafer's rim and broken dies,
    which good ones carry [1]_; `loss` that of what mounting breaks, and spares.

    begun : accelerators mounted for each that works. [1]

    References
    ----------
    .. [1] U. Gupta et al., "ACT: Designing Sustainable Computer Systems with an Architectural Carbon Modeling Tool", ISCA 2022.
    """
    dies, devices = budgets.chiplets, [_memory_carbon(*one) for one in mounted.memories(parts)]
    chip, stack = die_carbon(budgets.chip_area / dies, parts.node, parts.spares), _stacked(die_carbon, parts, budgets, mounted)
    if chip is None or stack is None or devices[0] is None or devices[1] is None:
        return {}
    (area, wafer), (above, theirs) = dies * chip, np.zeros((2, 1)) + stack
    wafers = wafer + theirs
    return {
        "chip": area,
        **({"stack": above} if above.any() else {}),
        "yield_loss": np.asarray(wafers - area - above),
        **({} if parts.memory is None else {"memory": devices[0]}),
        **({} if parts.second_memory is None else {"second_memory": devices[1]}),
        "loss": np.asarray((begun - 1.0) * (wafers + devices[0] + devices[1])),
    }


def _memory_carbon(memory: OffChip | None, devices: Array) -> Array | None:
    """Embodied carbon of memory devices, none where there are none; None where it is not known. [kg]"""
    if memory is None:
        return NOTHING
    return None if memory.carbon_per_capacity is None else np.asarray(devices * memory.device_capacity * memory.carbon_per_capacity)


# ------------------------------------------------------------------------------------------ limits


def cooled(substrate: Substrate, budgets: Budgets) -> Array | None:
    """Power that the package cools, of the compute dies and of all that stands beside and on them; None where it has no limit. [W]"""
    return None if substrate.cooling_limit is None else np.asarray(substrate.cooling_limit * budgets.chip_area)


def limits(parts: Parts, budgets: Budgets, mounted: Mounted) -> tuple[tuple[Mask, str], ...]:
    """Design points that cannot be printed or put together, with the sentence that says why."""
    substrate, area, found = parts.substrate, budgets.chip_area, []
    if parts.node.reticle is not None:
        printed = parts.node.reticle * substrate.exposures
        found.append((np.asarray(area / budgets.chiplets > printed * (1 + 1e-9)), OVERSIZED))
    for fine in (part.bump_pitch for part in (parts.memory, parts.second_memory) if part is not None and part.bump_pitch is not None):
        if substrate.bump_pitch is None:
            break
        coarse = np.asarray(substrate.bump_pitch > fine * (1 + 1e-9))
        found.append((coarse, "the bumps of the memory are finer than those of the substrate (bump_pitch): take an interposer"))
    found.append((mounted.stacked_area > area * (1 + 1e-9), "the dies on the chip are larger than it (levels.NAME.stacked_area)"))
    return tuple((mask, sentence) for mask, sentence in found if mask.any())
