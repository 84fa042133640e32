"""What evaluations of all workloads share: widening to points, reasons of infeasibility, figures of a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossflow.architecture import Architecture, SystemSpec
from crossflow.arrays import Array, Index, Mask
from crossflow.operating import normalised, operation_of, reference_peak

INCONSISTENT = "internal error: the predicted time is below a lower bound of its own inputs; please report this scenario"
NO_BANDWIDTH = "no network or memory bandwidth where the strategy needs it"
Causes = list[tuple[Mask, str]]


def wide(array: Any, n: int) -> Any:
    """An array with one value a point even where all are equal."""
    found = np.asarray(array)
    if found.shape[-1:] == (n,):
        return found
    return np.array(np.broadcast_to(found, (*found.shape[:-1], n)))


def unbuildable(device: Architecture, n: int) -> Causes:
    """Points whose device cannot be built, with the sentences that say why."""
    return [(wide(mask, n), f"cannot be built: {sentence}") for mask, sentence in device.problems]


def first_cause(causes: Causes, n: int) -> tuple[Mask, Index, tuple[str, ...]]:
    """Which points nothing stands against, for the others the index of the first cause, and the sentences."""
    reason = np.full(n, -1)
    for code, (mask, _) in reversed(list(enumerate(causes))):
        reason[mask] = code
    return reason < 0, reason, tuple(sentence for _, sentence in causes)


def rents(system: SystemSpec, device: Architecture, devices: Array, dtype: str, n: int) -> dict[str, Array]:
    """Rent of all devices, and how many of the reference's they are worth by peak rate; NaN where it is not known. [USD/s], [1]"""
    operation = operation_of(system)
    rent = devices * (np.nan if operation.price is None else operation.price)
    worth = normalised(devices, device.throughput[dtype], reference_peak(dtype))
    return {"rent": wide(rent, n), "normalised_devices": wide(worth, n)}


def within_limit(energy: Array, device: Architecture, devices: Array | int, elapsed: Array) -> Array:
    """Energy of devices, no more than their power limit allows: memory that is busy beside long products shares it with them. [J]"""
    return np.asarray(np.minimum(energy, devices * device.maximum_power * elapsed))


def derived(device: Architecture) -> dict[str, Array]:
    """Figures of one device that people ask for, flat, in SI units; keys name the level or port."""
    figures: dict[str, Array] = {f"throughput.{dtype}": rate for dtype, rate in device.throughput.items()}
    figures |= {"units": device.units, "mcus": device.mcus, "frequency": device.frequency}
    figures["sustained_frequency"] = device.frequency * device.sustained_clock
    if device.voltage is not None:
        figures["voltage"] = device.voltage
    for level in device.levels:
        figures[f"{level.name}.capacity"] = level.capacity * level.instances
        figures[f"{level.name}.bandwidth"] = level.bandwidth
    for name, port in (("intra", device.intra), ("inter", device.inter)):
        if port is not None:
            figures[f"{name}.bandwidth"] = port.bandwidth
    for resource in dict.fromkeys(use.resource for use in device.usage):
        figures[f"used.{resource}"] = sum((use.used for use in device.usage if use.resource == resource), np.zeros(1))
    figures |= {f"cost.{part}": amount for part, amount in device.cost.items()}
    return figures
