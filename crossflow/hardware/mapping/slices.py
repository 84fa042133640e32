"""Slices of a torus of devices: which shapes there are, which of their rows are rings, and the network that a job has in one.

- **Optical switches** join cubes to a torus of any shape. A slice of whole cubes takes any of them, wherever they are, and all of its rows
  are rings; a smaller one lies inside one cube, whose links are wires, and is a mesh [1]_, [2]_.
- **Wires alone.** A slice is a box of neighbours. A row is a ring where the slice spans a side that wraps, else a line.

Devices of a slice reach each other over links of their own, so that jobs in slices share none. Twisted tori are not modelled.

References
----------
.. [1] N. Jouppi et al., TPU v4: An Optically Reconfigurable Supercomputer for Machine Learning with Hardware Support for Embeddings,
   ISCA 2023, Sec. 2.
.. [2] Google Cloud, TPU v4 and TPU v5p, documentation of November 2026: sizes up to 4, or all multiples of 4; of v5p slices of a cube and
   more have all links of a 3D torus.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from crossflow.base.arrays import shapes_of
from crossflow.hardware.architecture.network import OPTICAL, NetworkSpec
from crossflow.hardware.mapping.topology import Topology
from crossflow.hardware.mapping.wiring import TORI, WhichLevel, topology_of

SliceShape: TypeAlias = tuple[int, ...]  # sizes along x, y, z


def text_of(shape: SliceShape) -> str:
    """As people write it: 4x4x8."""
    return "x".join(map(str, shape))


@dataclass(frozen=True, kw_only=True)
class SliceGround:
    """A torus or mesh of devices that is cut into slices: one box, or cubes that optical switches join."""

    box: SliceShape  # sizes of the whole, or of a cube
    wrapped: tuple[bool, ...]  # whether rows along each side of it are rings, where a slice spans it
    cubes: int  # boxes; more than one only behind optical switches
    optical: bool
    kind: str  # of topology
    level: WhichLevel  # of the network, that the devices of a box are joined by
    ports: int  # of a device, among which its bandwidth is divided, also where a slice leaves some unused

    def whole(self, shape: SliceShape) -> bool:
        """Whether a slice is one of whole cubes."""
        return self.optical and all(size % side == 0 for size, side in zip(shape, self.box, strict=True))

    def refusal(self, shape: SliceShape) -> str | None:
        """Why there is no such slice; None where there is."""
        sides, own = len(self.box), text_of(self.box)
        if len(shape) != sides:
            return f"a slice of {own} has {sides} size{'s' if sides > 1 else ''}, {text_of(shape)} has {len(shape)}"
        if any(size > side for size, side in zip(shape, self.box, strict=True)) and not self.whole(shape):
            cure = f"; a slice is part of a cube of {own}, or of whole cubes" if self.optical else ""
            return f"a slice of {text_of(shape)} does not fit into {own}{cure}"
        if self.whole(shape) and math.prod(shape) > self.cubes * math.prod(self.box):
            return f"a slice of {text_of(shape)} needs {math.prod(shape) // math.prod(self.box):,} cubes, and there are {self.cubes:,}"
        return None

    def rings(self, shape: SliceShape) -> tuple[bool, ...]:
        """Which rows of a slice wrap."""
        if self.optical:
            return (self.whole(shape),) * len(shape)
        return tuple(wraps and size == side for size, side, wraps in zip(shape, self.box, self.wrapped, strict=True))

    def shape_of(self, devices: int) -> SliceShape | None:
        """The slice of so many devices that is most like a cube, as clouds give it where none is named [2]_; None where there is none."""
        return _most_cubic(self, devices)

    def turns(self, shape: SliceShape) -> tuple[SliceShape, ...]:
        """The ways in which a slice can lie, as it is written first; all of them have the same sizes, and rings along the same of them."""
        return _turns(self, shape)

    def settings(self, shape: SliceShape) -> Mapping[tuple[str, ...], Any]:
        """The network of a job in a slice, as fields of its system by their paths."""
        found: dict[tuple[str, ...], Any] = {("devices",): math.prod(shape)}
        if self.optical:
            between = list(map(operator.floordiv, shape, self.box))
            found["network", "inter", "shape"] = between if math.prod(between) > 1 else None
        if not self.whole(shape):
            inside = {"shape": list(shape), "ports": self.ports, **({"wraps": list(self.rings(shape))} if self.kind in TORI else {})}
            found |= {("network", self.level, key): value for key, value in inside.items()}
        return found


@functools.lru_cache(maxsize=4096)
def _most_cubic(ground: SliceGround, devices: int) -> SliceShape | None:
    turned = (turn for one in shapes_of(devices, len(ground.box)) for turn in itertools.permutations(one))
    return min((one for one in turned if ground.refusal(one) is None), key=lambda one: (sum(one), one), default=None)


@functools.lru_cache(maxsize=4096)
def _turns(ground: SliceGround, shape: SliceShape) -> tuple[SliceShape, ...]:
    own = sorted(zip(shape, ground.rings(shape), strict=True))
    found = dict.fromkeys(itertools.permutations(shape))
    return tuple(one for one in found if ground.refusal(one) is None and sorted(zip(one, ground.rings(one), strict=True)) == own)


def slice_ground(spec: NetworkSpec, per_node: int, nodes: int) -> SliceGround | None:
    """The torus or mesh that a system's devices make; None where they make none."""
    inside = topology_of(spec, "intra", per_node)
    if spec.inter.wiring == OPTICAL and inside.is_grid:
        return _ground(inside, "intra", cubes=nodes, optical=True)
    if nodes == 1:
        return _ground(inside, "intra") if inside.is_grid else None
    between = topology_of(spec, "inter", nodes)
    return _ground(between, "inter") if per_node == 1 and between.is_grid else None


def _ground(topology: Topology, level: WhichLevel, *, cubes: int = 1, optical: bool = False) -> SliceGround:
    return SliceGround(
        box=topology.shape, wrapped=topology.wrapped, cubes=cubes, optical=optical, kind=topology.kind, level=level, ports=topology.degree
    )  # fmt: skip
