"""What a run costs: device-hours, their like in A100s, rent, and energy, from the time of a step and the system's `operation`.

Pure functions of arrays with one value a design point. The figures are those by which MAD-Max weighs cloud instances [1]_.

References
----------
.. [1] S. Hsia et al., "MAD-Max Beyond Single-Node", ISCA 2024, Sec. VI, Insight 7 and Fig. 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from crossflow.base.arrays import Array, count, divide, points
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.template import NodeLoad, OperationSpec, SystemSpec

HOUR, DAY, KILOWATT_HOUR = 3600.0, 86400.0, 3.6e6
UNKNOWN = points(np.nan)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunCost:
    """Cost of processing an amount of samples or tokens; every array has shape (n,), NaN where a figure is not known."""

    amount: Array  # samples or tokens. [1]
    steps: Array  # steps that they take. [1]
    time: Array  # wall-clock time; infinite where a step never ends. [s]
    device_time: Array  # time of all devices together. [s]
    normalised_device_time: Array  # the same in devices of the reference's peak rate, see `normalised`. [s]
    price: Array  # rent of the devices. [USD]
    device_energy: Array  # of the devices, by the model's energy of a step. [J]
    facility_energy: Array  # of whole nodes, by their load where it is known, else at rated power, with the data centre's overhead. [J]

    @property
    def days(self) -> Array:
        """Wall-clock time. [d]"""
        return self.time / DAY

    @property
    def device_hours(self) -> Array:
        """Time of all devices together, GPU-hours. [h]"""
        return self.device_time / HOUR

    @property
    def normalised_device_hours(self) -> Array:
        """Time of all devices together in those of the reference. [h]"""
        return self.normalised_device_time / HOUR


def run_cost(
    *,
    amount: ArrayLike,
    per_step: ArrayLike,
    step_time: ArrayLike,
    devices: ArrayLike,
    operation: OperationSpec | None = None,
    devices_per_node: int = 1,
    step_energy: ArrayLike | None = None,
    peak: ArrayLike | None = None,
    reference: ArrayLike | None = None,
    load: NodeLoad | None = None,
) -> RunCost:
    """Cost of a run of amount / per_step steps.

    time = amount / per_step x step_time; device_time = time x devices; price = device_time x rent;
    facility_energy = device_time x (device_power + host_power / devices_per_node) x PUE, or, with the `load` of a node,
    device_time x node_power / devices_per_node x PUE.

    Parameters
    ----------
    amount, per_step : samples, or tokens, of the run and of one step, shape (n,) or one number. [1]
    step_time : time of a step, shape (n,). [s]
    devices : devices that the run occupies, shape (n,) or one number. [1]
    operation : rent and power of the system; `operation_of` gives it with what follows from the rest of the file.
    devices_per_node : devices that share the power of a host. [1]
    step_energy : energy of a step, all devices, shape (n,). [J]
    load : what a node draws while it runs, by what its devices draw.
    peak, reference : peak rate of a device and of the reference in the data type of the run, shape (n,) or one number. [flop/s]

    Raises
    ------
    ValueError
        Where the amount of work is not positive.

    Notes
    -----
    A device is charged its share of a node, also in a run that leaves devices of the node idle. Rated power is an upper bound:
    devices draw less while they communicate. Neither restarts nor evaluations are counted.

    Examples
    --------
    LLaMA-65B as MAD-Max predicts it, 1.4e12 tokens on 2048 A100:

    >>> run = run_cost(amount=1.4e12, per_step=2048 * 2048, step_time=4.973, devices=2048)
    >>> print(f"{run.days[0]:.2f} days, {run.device_hours[0]:.0f} GPU-hours")
    19.21 days, 944309 GPU-hours
    """
    work, operation = _positive(amount), operation or OperationSpec()
    steps = divide(work, _array(per_step))
    time = product(steps, _array(step_time))
    device_time = time * _array(devices)
    figures = {
        "amount": work, "steps": steps, "time": time, "device_time": device_time,
        "normalised_device_time": normalised(device_time, _known(peak), _known(reference)),
        "price": product(device_time, _known(operation.price)), "device_energy": product(steps, _known(step_energy)),
    }  # fmt: skip
    figures["facility_energy"] = _facility_energy(figures, operation, devices_per_node, load)
    n = count(*figures.values())
    return RunCost(**{name: points(np.broadcast_to(figure, (n,))) for name, figure in figures.items()})


def normalised(device_time: Array, peak: Array, reference: Array) -> Array:
    """Time of devices in devices of another peak rate: T x peak / reference [1]_. [s]

    Equal device-hours of unequal devices are unequal amounts of compute capability; normalised ones are equal, so a device
    of twice the peak counts twice. MAD-Max's reference is the A100 [1]_; both peaks are those of the run's data type.

    References
    ----------
    .. [1] S. Hsia et al., "MAD-Max Beyond Single-Node", ISCA 2024, Sec. VI, Insight 7. The paper's "by the ratio" is read as
       a product: by a quotient the more capable device would count less.
    """
    return np.asarray(device_time * peak / reference)


def _facility_energy(figures: Mapping[str, Array], operation: OperationSpec, devices_per_node: int, load: NodeLoad | None) -> Array:
    """Energy that a run takes from the grid, of whole nodes: by their load, or at rated power. [J]"""
    if load is None:
        return product(figures["device_time"], facility_power(operation, devices_per_node))
    overhead = points(1.0) if operation.pue is None else operation.pue
    return node_energy(load, figures["device_energy"], figures["device_time"] / devices_per_node) * overhead


def facility_power(operation: OperationSpec, devices_per_node: int) -> Array:
    """Power that one device takes from the grid: its own, its share of the host, and the data centre's overhead. [W]

    A host of unknown power counts nothing, an unknown PUE is 1; without the power of the device there is no answer (NaN).
    """
    overhead = points(1.0) if operation.pue is None else operation.pue
    host = points(0.0) if operation.host_power is None else operation.host_power
    return np.asarray((_known(operation.device_power) + host / devices_per_node) * overhead)


def node_power(load: NodeLoad, device_power: Array, devices_per_node: int) -> Array:
    """Power of a node at the wall while each of its devices draws some power. [W]"""
    return node_energy(load, devices_per_node * device_power, np.ones(1))


def node_energy(load: NodeLoad, device_energy: Array, time: Array) -> Array:
    """Energy at the wall of nodes that run for some time, all together, while their devices take some energy. [J]"""
    return np.asarray((load.base * time + (1.0 + load.fans) * device_energy) / load.supply)


def load_of(system: SystemSpec) -> NodeLoad | None:
    """Load of a system's nodes, where it is known and `operation` does not state powers of its own."""
    given = system.operation
    return None if given is not None and (given.device_power is not None or given.host_power is not None) else system.node_load


def operation_of(system: SystemSpec, device: Architecture) -> OperationSpec:
    """Operation of a system with what its file leaves open taken from elsewhere in the file.

    The power of a device is its TDP, or what a generated one may draw with its share of the switches that the system names; that of a
    host what `node_power` leaves beside the devices.
    """
    given = OperationSpec() if system.operation is None else system.operation
    rated = device.maximum_power + device.network_power if given.device_power is None else given.device_power
    host = given.host_power
    if host is None and system.node_power is not None:
        host = np.maximum(system.node_power - system.devices_per_node * rated, 0.0)
    return given.model_copy(update={"device_power": rated, "host_power": host})


def _positive(amount: ArrayLike) -> Array:
    """An amount of work."""
    work = _array(amount)
    if not (work > 0).all():
        raise ValueError(f"amount = {work.min():g}, but a run processes a positive number of samples or tokens")
    return work


def _array(value: ArrayLike) -> Array:
    return points(np.asarray(value, dtype=np.float64))


def _known(value: ArrayLike | None) -> Array:
    """An array, NaN where there is no value."""
    return UNKNOWN if value is None else _array(value)


def product(amount: Array, rate: Array) -> Array:
    """Product in which what costs nothing a piece costs nothing, however often."""
    amount, rate = np.broadcast_arrays(amount, rate)
    return np.multiply(amount, rate, out=np.zeros(rate.shape), where=rate != 0)
