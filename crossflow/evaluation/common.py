"""What evaluations of all workloads share: reasons of infeasibility, rents, energy within the power limit."""

from __future__ import annotations

import numpy as np

from crossflow.architecture import Architecture, SystemSpec
from crossflow.arrays import Array, Index, Mask, wide
from crossflow.operating import normalised, reference_peak

INCONSISTENT = "internal error: the predicted time is below a lower bound of its own inputs; please report this scenario"
NO_BANDWIDTH = "no network or memory bandwidth where the strategy needs it"
Causes = list[tuple[Mask, str]]


def unbuildable(device: Architecture, n: int) -> Causes:
    """Points whose device cannot be built, with the sentences that say why."""
    return [(wide(mask, n), f"cannot be built: {sentence}") for mask, sentence in device.problems]


def first_cause(causes: Causes) -> tuple[Mask, Index, tuple[str, ...]]:
    """Which points nothing stands against, for the others the index of the first cause, and the sentences."""
    against = np.array([mask for mask, _ in causes])
    feasible = np.asarray(~against.any(axis=0))
    return feasible, np.where(feasible, -1, against.argmax(axis=0)), tuple(sentence for _, sentence in causes)


def rents(system: SystemSpec, device: Architecture, devices: Array, dtype: str, n: int) -> tuple[Array, Array]:
    """Rent of all devices, and how many of the reference's they are worth by peak rate; NaN where it is not known. [USD/s], [1]"""
    operation = system.operation
    rent = devices * (np.nan if operation is None or operation.price is None else operation.price)
    worth = normalised(devices, device.throughput[dtype], reference_peak(dtype))
    return wide(rent, n), wide(worth, n)


def within_limit(energy: Array, device: Architecture, devices: Array | int, elapsed: Array) -> Array:
    """Energy of devices, no more than their power limit allows: memory that is busy beside long products shares it with them. [J]"""
    return np.asarray(np.minimum(energy, devices * device.maximum_power * elapsed))
