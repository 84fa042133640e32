"""Times that crossflow predicts for measured rows, by the functions that `validate` scores and `predict` prices with."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.cost.fabrics import Fabric, fabric_of
from crossflow.cost.network import PLACED
from crossflow.cost.price import kernel_prices
from crossflow.cost.profile import Profile
from crossflow.evidence.calibration.measurements import MeasuredCollective, MeasuredKernels, MeasuredProducts, MeasuredRows
from crossflow.evidence.validation.tables import architecture_at, collective_times, conditions, product_times
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.hardware.technology.library import TechLibrary
from crossflow.program.groups import Group
from crossflow.program.kernels import Kernel, Product
from crossflow.program.program import Program


@dataclass(frozen=True, eq=False)
class PricedSystem:
    """A system with what its rows are priced by, worked out once for many rows; `library` as in `architecture`.

    `known` is the architecture of its devices where that is at hand, as systems have one that differ in their fabrics alone.
    """

    spec: SystemSpec
    library: TechLibrary | None = None
    known: Architecture | None = None

    @functools.cached_property
    def device(self) -> Architecture:
        """Architecture of a device."""
        return architecture(self.spec, self.library) if self.known is None else self.known

    @functools.cached_property
    def fabric(self) -> Fabric:
        """Fabric of a node's devices and of the nodes."""
        return fabric_of(self.spec.network, self.device, self.spec.devices_per_node)


def problem(spec: SystemSpec, rows: MeasuredRows) -> str | None:
    """Why rows cannot be priced on a system, in words; None where they can."""
    if isinstance(rows, MeasuredCollective):
        if spec.network.intra.fabric in PLACED:
            kind = spec.network.intra.fabric
            return f"collectives of a fabric of kind {kind} follow from its links; give network.intra.fabric its real kind"
        found = collective_times(PricedSystem(spec).fabric, rows.collective, rows.ranks, rows.ranks_per_node, rows.size[:1, None])
        if isinstance(found, str):
            return found
        return None if np.isfinite(found).all() else f"{rows.name} never ends on {spec.name}: a rate that it needs is missing"
    if isinstance(rows, MeasuredKernels) and None in rows.kernels:
        return f"{rows.op} has no model of its own that its shape tells all of"
    device, dtype = architecture(spec), rows.dtype.partition(" x ")[0]
    return f"{spec.name} has no rate of {dtype} products" if dtype and dtype not in device.throughput else None


def predicted(system: SystemSpec | PricedSystem, rows: MeasuredRows, profile: Profile | None = None) -> Array:
    """Predicted times of rows that can be priced, those of a profile where it has them, shape (rows,). [s]"""
    priced = system if isinstance(system, PricedSystem) else PricedSystem(system)
    if isinstance(rows, MeasuredCollective):
        return _modelled(priced, rows, rows.size) if profile is None else _along(priced, rows, profile)
    if isinstance(rows, MeasuredProducts):
        host, activity = conditions(rows.source)
        device = architecture_at(priced.spec, activity, priced.library)
        if profile is None:
            return product_times(device, rows.dtype, rows.sizes) + host
        products = (Product(m=m, n=n, k=k, batch=batch) for m, n, k, batch in rows.sizes.T.tolist())
        return _times(tuple(products), rows.dtype, device, profile, launched=True) + host
    return kernel_times(rows, priced.device, profile)


def _along(priced: PricedSystem, rows: MeasuredCollective, profile: Profile) -> Array:
    """Times of a collective by a profile, by the model where it has none. [s]"""
    group = Group.alike(rows.ranks, rows.ranks_per_node, 1)
    return profile.messages(rows.collective, rows.size[:, None], group, lambda size: _modelled(priced, rows, size[:, 0])[:, None])[0][:, 0]


def _modelled(priced: PricedSystem, rows: MeasuredCollective, size: Array) -> Array:
    """Times of one collective for other sizes, shape (sizes,). [s]"""
    return over_points(priced, rows, size)[:, 0]


def over_points(priced: PricedSystem, rows: MeasuredCollective, size: Array) -> Array:
    """The same of systems that differ in quantities of their fabric, shape (sizes, points). [s]"""
    found = collective_times(priced.fabric, rows.collective, rows.ranks, rows.ranks_per_node, size[:, None])
    assert not isinstance(found, str)  # `problem` has found none
    return found


def kernel_times(rows: MeasuredKernels, device: Architecture, profile: Profile | None = None) -> Array:
    """Times of kernels without their launches, shape (rows,). [s]"""
    kernels = tuple(kernel for kernel in rows.kernels if kernel is not None)
    return _times(kernels, rows.dtype.partition(" x ")[0] or next(iter(device.throughput)), device, profile, launched=False)


def _times(kernels: tuple[Kernel, ...], dtype: str, device: Architecture, profile: Profile | None, *, launched: bool) -> Array:
    costs, _ = kernel_prices(_program(kernels, dtype), device, None, profile)
    return np.asarray(np.broadcast_to(costs.time - (0.0 if launched else costs.launch), (len(kernels), 1))[:, 0])


def _program(kernels: tuple[Kernel, ...], dtype: str) -> Program:
    return Program(name="measured", dtype=dtype, axes=(), kernels=kernels, messages=(), ops=(), tensors=())
