"""Switches and links of one network level, counted: folded Clos networks, dragonflies, tori that optical switches join.

A device spreads its ports over planes, one port a plane, and every plane is the same network of switch chips. Pure counts, arrays of
shape (n,) or (1,); what they cost and how long a message takes is the business of `crossflow.hardware.architecture.switching`.

References
----------
.. [1] C. E. Leiserson, "Fat-Trees: Universal Networks for Hardware-Efficient Supercomputing", IEEE Trans. Computers, 1985.
.. [2] J. Kim et al., "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008: a = 2p = 2h balances a dragonfly.
.. [3] N. P. Jouppi et al., "TPU v4: An Optically Reconfigurable Supercomputer", ISCA 2023, Sec. 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.hardware.architecture.network import MOST_TIERS
from crossflow.hardware.architecture.room import Room

ZERO, ENDLESS = np.zeros(1), np.full(1, np.inf)
MOST_PLANES = 64  # that one chip may have ports of
TOO_FEW = "its groups have too few ports for links to all others: take a switch of more ports"
NARROW = "an optical switch has fewer ports than two for each node: take one of more ports, or fewer nodes"
Cause = tuple[Mask, str]


@dataclass(frozen=True, kw_only=True)
class Span:
    """Links of one kind."""

    name: str  # from where to where
    share: Array  # lanes of them, over those of all devices. [1]
    length: Array  # of the longest. [m]
    passes: Array  # of them that a message takes, on the longest way. [1]
    upper: bool = False  # whether they are those of the upper tiers, which may be of another kind


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """Switches and links of one network."""

    tiers: Array  # of switches; routers of a dragonfly are one. [1]
    hops: Array  # switches on the longest way. [1]
    chips: Array  # in all planes. [1]
    spans: tuple[Span, ...]
    problems: tuple[Cause, ...] = ()


def folded_clos(
    devices: Array, ports: Array, radix: Array, room: Room,
    *, taper: float = 1.0, tiers: int | None = None, onward: float | None = None, abreast: int = 1, near: Array = ENDLESS,
) -> Wiring:  # fmt: skip
    """Fewest tiers of a folded Clos network that hold the devices [1]_, or `tiers`, of which too few are refused.

    One chip holds R devices, two tiers d R with d = R taper / (1 + taper) ports of a leaf for devices, each further one R / 2 times as
    many. A chip may have ports of several planes, as far as that takes fewer chips. Uplinks are as many as the devices need.

    Parameters
    ----------
    devices, ports, radix : shape (n,) or (1,). Devices of the network, ports of each, ports of a switch chip. [1]
    taper : bandwidth of the ports of a leaf over that of its uplinks. [1]
    onward : of switches of one tier, bandwidth to devices over that of ports which they keep for a further network; None keeps none. [1]
    abreast : networks of the kind side by side, one for each device of a node; it counts for lengths only. [1]
    near : devices that a leaf may have where its links reach no more, and uplinks of another kind go on from there. [1]
    """
    half, down = np.floor(radix / 2.0), np.maximum(np.floor(radix * taper / (1.0 + taper) + 1e-9), 1.0)
    single = radix if onward is None else np.floor(radix * onward / (1.0 + onward) + 1e-9)
    fewest = _fewest(devices, np.minimum(single, near), np.minimum(down, near), half, radix)
    used = np.minimum(np.maximum(fewest, tiers or 1), MOST_TIERS)
    up = np.ceil(devices / taper - 1e-9)
    shared = np.maximum(np.floor(single / devices + 1e-9), 1.0)
    chips, leaf = np.full(1, np.inf), devices
    for planes in range(1, int(min(ports.max(), down.max(), MOST_PLANES)) + 1):
        held = np.minimum(np.floor(down / planes), near)
        found = np.where(
            (held >= 1) & (planes <= np.maximum(ports, 1.0)) & (held * half ** (used - 2.0) * radix >= devices),
            _chips(devices, ports, float(planes), held, half, radix, up, used), np.inf,
        )  # fmt: skip
        chips, leaf = np.where(found < chips, found, chips), np.where(found < chips, np.minimum(held, devices), leaf)
    alone = used <= 1
    lengths = room.to_switch(np.where(alone, devices, leaf) * abreast), room.to_switch(devices * abreast)
    return Wiring(
        tiers=used,
        hops=2.0 * used - 1.0,
        chips=np.where(alone, np.ceil(ports / shared - 1e-9), np.where(np.isfinite(chips), chips, 0.0)),
        spans=(
            Span(name="from devices to switches", share=np.ones(1), length=lengths[0], passes=np.full(1, 2.0)),
            Span(
                name="between tiers of switches",
                share=np.where(alone, 0.0, (used - 1.0) * up / devices),
                length=lengths[1],
                passes=2.0 * (used - 1.0),
                upper=True,
            ),
        ),
        problems=(
            (fewest > MOST_TIERS, f"{MOST_TIERS} tiers of its switches do not hold the devices: take a switch of more ports"),
            *(() if onward is None else ((used > 1, "only switches of a single tier keep ports for a further network (onward)"),)),
            *(() if tiers is None or tiers >= MOST_TIERS else ((fewest > tiers, _too_few(tiers)),)),
        ),
    )


def _too_few(tiers: int) -> str:
    number, verb = ("1 tier", "does") if tiers == 1 else (f"{tiers} tiers", "do")
    return f"{number} of its switches {verb} not hold the devices: give it more tiers, or leave tiers out for as few as hold them"


def _fewest(devices: Array, single: Array, leaf: Array, half: Array, radix: Array) -> Array:
    """Fewest tiers that hold the devices, where one chip holds `single` of them and a leaf of several tiers `leaf`. [1]"""
    holds = [single, *(leaf * half ** (t - 2) * radix for t in range(2, MOST_TIERS + 1))]
    return np.asarray(1.0 + sum((devices > held for held in holds), ZERO))


def _chips(devices: Array, ports: Array, planes: float, leaf: Array, half: Array, radix: Array, up: Array, tiers: Array) -> Array:
    """Chips of several tiers whose leaves have `leaf` devices, and of each as many ports as `planes`; the last have what is left. [1]"""
    whole, left = np.divmod(ports, planes)
    leaves = np.ceil(devices / np.maximum(leaf, 1.0) - 1e-9)

    def above(count: Array | float) -> Array:
        return np.asarray((tiers - 2.0) * np.ceil(count * up / half) + np.ceil(count * up / radix))

    return np.asarray(whole * (leaves + above(planes)) + np.where(left > 0, leaves + above(left), 0.0))


def dragonfly(devices: Array, group: Array, ports: Array, radix: Array, room: Room, *, taper: float = 1.0) -> Wiring:
    """Routers of a balanced dragonfly [2]_: p = (R + 1) / 4 devices on a router, up to 2p routers in a group, all linked to each other.

    A group has `group` devices and `group` / `taper` links to other groups. A message passes four routers: its own, the one with the link
    to the other group, the one where that arrives, and the receiver's.
    """
    held = np.maximum(np.floor((radix + 1.0) / 4.0), 1.0)
    size = np.minimum(group, devices)
    routers, groups = np.ceil(size / held - 1e-9), np.ceil(devices / group - 1e-9)
    out = np.where(groups > 1, np.ceil(size / taper - 1e-9), 0.0)
    left = routers * (radix - held - (routers - 1.0))  # ports that a group has for other groups
    local, far = np.where(routers > 1, 2.0, 0.0), np.where(groups > 1, 1.0, 0.0)
    return Wiring(
        tiers=np.ones(1),
        hops=np.where(groups > 1, 4.0, np.where(routers > 1, 2.0, 1.0)),
        chips=ports * groups * routers,
        spans=(
            Span(name="from devices to routers", share=np.ones(1), length=room.to_switch(held), passes=np.full(1, 2.0)),
            Span(name="inside groups", share=routers * (routers - 1.0) / 2.0 / size, length=room.across(size), passes=local),
            Span(name="between groups", share=out / 2.0 / size, length=room.across(devices), passes=far, upper=True),
        ),
        problems=(
            (size > 2.0 * held**2, "a group has more devices than a balanced dragonfly of its switches holds: take smaller groups"),
            ((groups > 1) & (np.maximum(out, groups - 1.0) > left), TOO_FEW),
        ),
    )


def optical_torus(nodes: Array, shape: tuple[int, ...], ports: Array, radix: Array, room: Room) -> Wiring:
    """Tori that optical switches join [3]_: both ends of a line through a node go to the same switch, with those of all other nodes.

    A cube of 4 x 4 x 4 has 48 such lines and 96 links that leave it, so 48 switches with two ports for each cube.

    ports : of a switch, that one link takes. [1]
    """
    devices, axes = math.prod(shape), len(shape)
    lines = sum(devices // size for size in shape)
    out = lines / (2.0 * axes * devices)  # lanes of links between nodes over those of all devices; a link has two ends, counted once
    inside, between = room.to_neighbour(np.full(1, float(devices)), wraps=False), room.to_switch(nodes * devices)
    return Wiring(
        tiers=np.ones(1),
        hops=np.ones(1),
        chips=lines * ports,
        spans=(
            Span(name="inside nodes", share=np.full(1, 0.5 - out), length=inside, passes=ZERO),
            Span(name="between nodes", share=np.full(1, out), length=between, passes=ZERO, upper=True),
        ),
        problems=((2.0 * nodes > radix, NARROW),),
    )
