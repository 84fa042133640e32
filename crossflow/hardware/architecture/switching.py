"""What a network level of a generated system takes and costs where its switches are named, and whether its links reach.

Lengths follow from the room (`crossflow.hardware.architecture.room`), counts from the wiring (`crossflow.hardware.architecture.wires`). A
message takes the latency of the link's ends, a hop through every switch on the longest way, and the way along cables and through
modules. Switches and modules draw their power whatever passes. All figures are shares of one device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, divide, most_square
from crossflow.base.results import later
from crossflow.hardware.architecture.network import CLOS, OPTICAL, UNSWITCHED, NetworkLevel
from crossflow.hardware.technology.library import Choice, TechLibrary, kind_of

if TYPE_CHECKING:
    from crossflow.hardware.architecture.generator import Links, Parts
    from crossflow.hardware.architecture.template import GeneratedSystem, SystemSpec
    from crossflow.hardware.architecture.wires import Cause, Span, Wiring
    from crossflow.hardware.technology.components import Link, Switch
else:
    Links, Parts = later("crossflow.hardware.architecture.generator", "Links", "Parts")
    GeneratedSystem, SystemSpec = later("crossflow.hardware.architecture.template", "GeneratedSystem", "SystemSpec")
    Cause, Span, Wiring = later("crossflow.hardware.architecture.wires", "Cause", "Span", "Wiring")
    Link, Switch = later("crossflow.hardware.technology.components", "Link", "Switch")

ZERO, ONE = np.zeros(1), np.ones(1)
GRIDS = {"ring": 1, "mesh2d": 2, "torus2d": 2, "mesh3d": 3, "torus3d": 3}  # sizes of a shape
SAME_RATE = 1.15  # lanes of 100 Gbit/s run at 106 or 112 with their code
SEVERAL = 8  # different lengths that are told one by one


@dataclass(frozen=True, kw_only=True)
class Switching:
    """A network level as its switches and links make it; arrays of shape (n,) or (1,)."""

    figures: Mapping[str, Array] = field(default_factory=dict)  # tiers, hops, switches of the whole level, length of the longest link [m]
    latency: Array | None = None  # of a message, where switches are named. [s]
    reduction: Array | None = None  # of the switches, likewise. [1]
    power: Array = field(default_factory=lambda: ZERO)  # of switches and media, share of one device. [W]
    # price of links and of switches, share of one device, by part: None without named switches, empty where one is not known. [USD]
    cost: Mapping[str, Array] | None = None
    problems: tuple[Cause, ...] = ()


NOTHING = Switching()


@dataclass(frozen=True, kw_only=True)
class Levelled:
    """What a level joins: its name and settings, its medium, and how many devices."""

    name: str  # intra or inter
    level: NetworkLevel
    link: Link
    uplink: Link  # of the upper tiers, between groups, and between nodes of an optical torus
    own: bool  # whether the uplink is another one than the link
    lanes: Array  # of one device. [1]
    endpoints: int  # devices, or nodes where each device of a node has a network of its own
    abreast: int  # such networks
    nodes: int  # that the level joins, or devices of one
    packaged: bool = False  # whether all that it joins stands on one substrate, where no room says how long links are


def levels_of(system: GeneratedSystem, parts: Parts, lanes: tuple[Array, Array]) -> tuple[Levelled, Levelled]:
    """Both levels of a system's network, with the lanes that a device has on each."""
    inside = min(system.devices_per_node, system.device_count)
    nodes = system.device_count // inside
    inter = system.network.inter
    rails = inter.wiring == "rail-only"
    optical = inter.wiring == OPTICAL  # made of the links of the level inside nodes
    return (
        Levelled(
            name="intra", level=system.network.intra, link=parts.intra_link, uplink=parts.intra_uplink or parts.intra_link,
            own=parts.intra_uplink is not None, lanes=lanes[0], endpoints=inside, abreast=1, nodes=inside,
            packaged=system.packaged >= inside,
        ),
        Levelled(
            name="inter", level=inter, link=parts.intra_link if optical else parts.inter_link,
            uplink=parts.inter_uplink or (parts.intra_link if optical else parts.inter_link),
            own=parts.inter_uplink is not None, lanes=lanes[int(not optical)],
            endpoints=nodes if rails else system.device_count, abreast=inside if rails else 1, nodes=nodes,
        ),
    )  # fmt: skip


def switching(system: GeneratedSystem, one: Levelled, switch: Switch | None) -> Switching:
    """Latency, power, price and lengths of a level; nothing where it joins one device only, or has no lanes."""
    if one.nodes < 2 or not one.lanes.any():
        return NOTHING
    if switch is None:
        if one.packaged:
            return NOTHING
        alone = _unswitched(system, one)
        return Switching(problems=tuple(_short(one, alone)))
    made = _wiring(system, one, switch)
    if made is None:
        return Switching(problems=((np.ones(1, dtype=bool), UNSWITCHED.format(name=one.name, wiring=one.level.wiring)),))
    wiring, devices = made, one.endpoints * one.abreast
    chips = wiring.chips * one.abreast
    return Switching(
        figures={"tiers": wiring.tiers, "hops": wiring.hops, "switches": chips, **_lengths(wiring)},
        latency=None if one.level.wiring == OPTICAL else _latency(one, wiring, switch),
        reduction=switch.reduction,
        power=np.asarray(chips * switch.power / devices + _media_power(one, wiring)),
        cost=_cost(one, wiring, switch, chips / devices),
        problems=(*_told(one, wiring), *_unfit(system, one, switch), *_slow(one, switch), *_short(one, wiring)),
    )


# ------------------------------------------------------------------------------------------ wiring


def _wiring(system: GeneratedSystem, one: Levelled, switch: Switch) -> Wiring | None:
    """Switches and links of a level; None where its wiring has no switches."""
    level, kind, room = one.level, one.level.wiring, system.room
    taper = level.oversubscription or 1.0
    devices, ports = np.full(1, float(one.endpoints)), np.ceil(one.lanes / switch.lanes_per_port - 1e-9)
    from crossflow.hardware.architecture.wires import dragonfly, folded_clos, optical_torus

    if kind in CLOS:
        reach = one.link.reach if one.own else None
        near = np.full(1, np.inf) if reach is None else np.maximum(np.floor(room.within(reach) / one.abreast + 1e-9), 1.0)
        near = np.minimum(near, _group(system, one)) if kind == "fat-tree" else near
        return folded_clos(
            devices, ports, switch.ports, room, taper=taper, tiers=level.tiers, onward=level.onward, abreast=one.abreast, near=near
        )
    if kind == "dragonfly":
        return dragonfly(devices, _group(system, one), ports, switch.ports, room, taper=taper)
    torus = system.network.intra
    axes = GRIDS.get(torus.wiring)
    if kind != OPTICAL or axes is None:
        return None
    shape = torus.shape or most_square(system.devices_per_node, axes)
    ports = np.ceil(one.lanes / (torus.ports or 2 * axes) / switch.lanes_per_port - 1e-9)
    return optical_torus(np.full(1, float(one.nodes)), shape, ports, switch.ports, room)


def _group(system: GeneratedSystem, one: Levelled) -> Array:
    """Devices on a leaf of a fat tree, or in a group of a dragonfly, as the system says. [1]"""
    return np.full(1, float((one.level.group or 1) * (1 if one.name == "intra" else system.devices_per_node)))


def _unswitched(system: GeneratedSystem, one: Levelled) -> Wiring:
    """The longest link of a level whose switches are not named, or that has none: it must reach all the same."""
    devices, kind, room = np.full(1, float(one.endpoints * one.abreast)), one.level.wiring, system.room
    if kind in GRIDS:
        length = room.to_neighbour(devices, wraps=not kind.startswith("mesh"))
    else:
        direct = kind in ("fully-connected", "hybrid-cube-mesh", "dragonfly")
        length = room.across(devices) if direct else room.to_switch(devices)
    from crossflow.hardware.architecture.wires import Span, Wiring

    return Wiring(tiers=ZERO, hops=ZERO, chips=ZERO, spans=(Span(name="", share=ONE, length=length, passes=ONE, upper=kind == OPTICAL),))


# ------------------------------------------------------------------------------------------ time, power, price


def _made_of(one: Levelled) -> str:
    """The level whose links it is made of: an optical torus of those inside nodes."""
    return "intra" if one.level.wiring == OPTICAL else one.name


def _medium(one: Levelled, span: Span) -> Link:
    return one.uplink if span.upper else one.link


def _latency(one: Levelled, wiring: Wiring, switch: Switch) -> Array:
    """Time of a message on the longest way: both ends, hops, cables and modules. [s]

    A link that does not tell its latency without a switch holds one hop in `latency`.
    """
    link = one.link
    least = np.maximum(link.latency - switch.latency, 0.0)
    ends = least if link.direct_latency is None else np.where(np.isfinite(link.direct_latency), link.direct_latency, least)
    way = ((_medium(one, span), span) for span in wiring.spans)
    along = sum((span.passes * (medium.medium_latency + span.length * medium.delay) for medium, span in way), ZERO)
    return np.asarray(ends + wiring.hops * switch.latency + along)


def _media_power(one: Levelled, wiring: Wiring) -> Array:
    """Power of retimers, modules and engines of a device's links, whose lanes run both ways all the time. [W]"""
    media = ((_medium(one, span), span) for span in wiring.spans)
    rate = 2.0 * one.lanes * one.link.nominal_frequency / 8.0
    return np.asarray(sum((span.share * medium.medium_energy_per_bit * rate for medium, span in media), ZERO))


def _cost(one: Levelled, wiring: Wiring, switch: Switch, chips: Array) -> dict[str, Array]:
    """Price of a device's links and of its share of the switches; empty where a part has no price. [USD]"""
    used = [(medium.medium_cost, span.share) for span in wiring.spans if np.any(span.share > 0) for medium in (_medium(one, span),)]
    if switch.cost is None or any(price is None for price, _ in used):
        return {}
    # In a batch the price that an entry does not have is endless.
    prices = ((np.where(share > 0, np.where(np.isinf(price), np.nan, price), 0.0), share) for price, share in used if price is not None)
    links = sum((price * share * one.lanes for price, share in prices), ZERO)
    return {f"{_made_of(one)}_link": np.asarray(links), f"{one.name}_switch": np.where(np.isinf(switch.cost), np.nan, switch.cost) * chips}


# ------------------------------------------------------------------------------------------ what cannot be


def _lengths(wiring: Wiring) -> dict[str, Array]:
    """Length of the longest link. [m]"""
    return {"length": np.maximum.reduce(np.broadcast_arrays(*(np.where(span.share > 0, span.length, 0.0) for span in wiring.spans)))}


def _told(one: Levelled, wiring: Wiring) -> Iterator[Cause]:
    """What the wiring cannot be, with the level that it is about."""
    yield from ((mask, f"network.{one.name}: {sentence}") for mask, sentence in wiring.problems)


def _unfit(system: GeneratedSystem, one: Levelled, switch: Switch) -> Iterator[Cause]:
    """A switch that is none for the wiring of its level."""
    mirrors = np.ones(1, dtype=bool) if switch.frequency is None else np.isinf(switch.frequency)
    if one.level.wiring == OPTICAL:
        yield ~mirrors, f"technology.{one.name}_switch switches messages, but an optical-torus has mirrors that turn light: take Palomar"
        return
    yield mirrors, f"technology.{one.name}_switch has mirrors that turn light and cannot switch messages: it is for an optical-torus"
    if one.level.wiring == "fat-tree":
        taper = one.level.oversubscription or 1.0
        small = np.minimum(_group(system, one), float(one.endpoints)) > np.floor(switch.ports * taper / (1.0 + taper) + 1e-9)
        yield small, f"network.{one.name}: a leaf switch has fewer ports for devices than its group: take a smaller group, or more ports"


def _slow(one: Levelled, switch: Switch) -> Iterator[Cause]:
    """Lanes that are faster than those of the switch."""
    fastest = np.full(1, np.inf) if switch.frequency is None else switch.frequency
    for medium, role in ((one.link, "link"), (one.uplink, "uplink")) if one.own else ((one.link, "link"),):
        fast = np.asarray(medium.nominal_frequency > fastest * SAME_RATE)
        yield (
            fast,
            f"the lanes of technology.{one.name}_{role} are faster than those of its switch: take a switch as fast",
        )
    uneven = np.asarray((one.uplink.nominal_frequency < one.link.nominal_frequency / SAME_RATE) & one.own)
    yield uneven, f"the lanes of technology.{one.name}_uplink are slower than those of technology.{one.name}_link: take an uplink as fast"


def _short(one: Levelled, wiring: Wiring) -> Iterator[Cause]:
    """Links that are longer than they reach."""
    for span in wiring.spans:
        medium = _medium(one, span)
        if medium.reach is None:
            continue
        length, reach, share = np.broadcast_arrays(span.length, medium.reach, span.share)
        short = np.asarray((share > 0) & (length > reach * (1 + 1e-9)))
        pairs = np.unique(np.stack([length[short], reach[short]]), axis=1)
        for far, near in pairs.T[:SEVERAL] if pairs.shape[1] <= SEVERAL else pairs.T[:1]:
            here = short & (length == far) & (reach == near) if pairs.shape[1] <= SEVERAL else short
            yield here, _sentence(one, span, float(far), float(near))


def _sentence(one: Levelled, span: Span, length: float, reach: float) -> str:
    role = f"{one.name}_uplink" if span.upper and one.own else f"{_made_of(one)}_link"
    fewer = "system.devices_per_node" if one.name == "intra" else "system.devices"
    where = f" {span.name}" if span.name else ""
    return (
        f"network.{one.name}: the longest link{where} is {show_length(length)}, technology.{role} reaches {show_length(reach)}: take one of"
        f" longer reach, fewer devices ({fewer}), or more of them in a rack (system.room.devices_per_rack)"
    )


def show_length(length: float) -> str:
    """A length of a room, in metres.

    >>> show_length(2.3)
    '2.3 m'
    """
    return f"{length:.3g} m"


def of_their_number(system: SystemSpec, library: TechLibrary, choices: Mapping[str, Choice]) -> bool:
    """Whether a device depends on how many there are: where switches are named for it, and links that have a reach, or chosen so."""
    if system.kind != "generated":
        return False
    named = [(role, (name,)) for role, name in system.technology.model_dump(exclude_none=True).items()]
    used = [(role, name) for role, names in (*named, *((role, one.names) for role, one in choices.items())) for name in names]
    if any(kind_of(role) == "switch" for role, _ in used):
        return True
    # Inside a rack links are as long with fewer devices.
    apart = system.room.racks(np.full(1, float(system.devices_per_node))) > 1
    far = ("intra_link", "inter_link") if apart.any() else ("inter_link",)
    return any(role in far and library.component("link", name).reach is not None for role, name in used)


# ------------------------------------------------------------------------------------------ links with their switches


def with_switches(system: GeneratedSystem, parts: Parts, intra: Links, inter: Links) -> tuple[Links, Links]:
    """Links of both levels with what their switches make of latency, power and price."""
    both = levels_of(system, parts, (intra.lanes, inter.lanes))
    switches = (parts.intra_switch, parts.inter_switch)
    found = [switching(system, one, switch) for one, switch in zip(both, switches, strict=True)]
    return _switched(intra, found[0], both[0].level.spare), _switched(inter, found[1], both[1].level.spare)


def _switched(links: Links, found: Switching, spare: Array | None) -> Links:
    """Links with the latency of their switches in the place of that of one hop."""
    port = links.port
    if found.latency is not None:
        port = replace(port, latency=found.latency, known=port.latency, reduction=found.reduction)
    if spare is not None and found.figures:
        found = replace(found, figures={**found.figures, "spare": np.asarray(links.lanes - working(links.lanes, spare))})
    return replace(links, port=port, switching=found)


def working(lanes: Array, spare: Array | None) -> Array:
    """Of the lanes that a device has those that carry something, the others stand by. [1]"""
    return lanes if spare is None else np.floor(divide(lanes, 1.0 + spare) * (1.0 + 1e-12) + 1e-9)
