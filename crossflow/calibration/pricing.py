"""Times that crossflow predicts for measured rows, by the functions that `validate` scores and `predict` prices with."""

from __future__ import annotations

import numpy as np

from crossflow.architecture.model import Architecture
from crossflow.architecture.system import architecture
from crossflow.architecture.template import SystemSpec
from crossflow.arrays import Array
from crossflow.calibration.measurements import MeasuredCollective, MeasuredKernels, MeasuredProducts, MeasuredRows
from crossflow.cost.fabrics import Fabric, fabric_of
from crossflow.cost.network import PLACED
from crossflow.cost.price import kernel_prices
from crossflow.cost.profile import kernel_of
from crossflow.program.kernels import Kernel
from crossflow.program.program import Program
from crossflow.validation.tables import architecture_at, collective_times, conditions, product_times


def problem(spec: SystemSpec, rows: MeasuredRows) -> str | None:
    """Why rows cannot be priced on a system, in words; None where they can."""
    if isinstance(rows, MeasuredCollective):
        if spec.network.intra.fabric in PLACED:
            kind = spec.network.intra.fabric
            return f"collectives of a fabric of kind {kind} follow from its links; give network.intra.fabric its real kind"
        found = collective_times(_fabric(spec), rows.collective, rows.ranks, rows.ranks_per_node, rows.size[:1, None])
        if isinstance(found, str):
            return found
        return None if np.isfinite(found).all() else f"{rows.name} never ends on {spec.name}: a rate that it needs is missing"
    if isinstance(rows, MeasuredKernels) and any(kernel_of(rows.op, shape, rows.dtype) is None for shape in rows.shapes):
        return f"{rows.op} has no model of its own that its shape tells all of"
    device, dtype = architecture(spec), rows.dtype.partition(" x ")[0]
    return f"{spec.name} has no rate of {dtype} products" if dtype and dtype not in device.throughput else None


def predicted(spec: SystemSpec, rows: MeasuredRows) -> Array:
    """Predicted times of rows that can be priced, shape (rows,). [s]"""
    if isinstance(rows, MeasuredCollective):
        return modelled(spec, rows, rows.size)
    if isinstance(rows, MeasuredProducts):
        host, activity = conditions(rows.source)
        return product_times(architecture_at(spec, activity), rows.dtype, rows.sizes) + host
    return kernel_times(rows, architecture(spec))


def modelled(spec: SystemSpec, rows: MeasuredCollective, size: Array) -> Array:
    """Times of one collective for other sizes, shape (sizes,). [s]"""
    found = collective_times(_fabric(spec), rows.collective, rows.ranks, rows.ranks_per_node, size[:, None])
    assert not isinstance(found, str)  # `problem` has found none
    return found


def kernel_times(rows: MeasuredKernels, device: Architecture) -> Array:
    """Times of kernels without their launches, shape (rows,). [s]"""
    kernels = tuple(kernel for shape in rows.shapes if (kernel := kernel_of(rows.op, shape, rows.dtype)) is not None)
    costs, _ = kernel_prices(_program(kernels, rows.dtype.partition(" x ")[0] or next(iter(device.throughput))), device, None)
    return np.asarray(np.broadcast_to(costs.time - costs.launch, (len(kernels), 1))[:, 0])


def _program(kernels: tuple[Kernel, ...], dtype: str) -> Program:
    return Program(name="measured", dtype=dtype, axes=(), kernels=kernels, messages=(), ops=(), tensors=())


def _fabric(spec: SystemSpec) -> Fabric:
    return fabric_of(spec.network, architecture(spec), spec.devices_per_node)
