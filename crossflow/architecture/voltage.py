"""Voltage and frequency scaling: what a power budget buys, in closed form over all design points.

The alpha-power law with alpha = 2: f ~ (V - Vt)^2 / V and dynamic power ~ f V^2, so that
P = P_nominal [(1 - leak) V (V - Vt)^2 / (Vn (Vn - Vt)^2) + leak V / Vn] is a cubic in V [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.4.1 ("standard voltage-frequency-power scaling").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.architecture.model import Throttle
from crossflow.arrays import Array, Mask, divide


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Where a component runs on its power budget; all arrays of shape (n,)."""

    voltage: Array  # operating voltage. [V]
    frequency: Array  # operating frequency over the nominal one. [1]
    active: Array  # share of the units that can run; below 1 only at the minimum voltage. [1]
    power: Array  # power used, never above the budget. [W]
    at_minimum: Mask  # whether the least voltage bound
    at_maximum: Mask  # whether the largest one did


def relative_frequency(voltage: Array, nominal: Array, threshold: Array) -> Array:
    """Frequency at a voltage over the frequency at the nominal one: [(V-Vt)^2/V] / [(Vn-Vt)^2/Vn]. [1]"""
    return np.asarray((voltage - threshold) ** 2 / voltage * nominal / (nominal - threshold) ** 2)


def relative_power(voltage: Array, nominal: Array, threshold: Array, leakage: Array) -> Array:
    """Power at a voltage over the power at the nominal one, at the frequency that the voltage allows. [1]"""
    dynamic = voltage * (voltage - threshold) ** 2 / (nominal * (nominal - threshold) ** 2)
    return np.asarray((1.0 - leakage) * dynamic + leakage * voltage / nominal)


def voltage_for(power: Array, nominal: Array, threshold: Array, leakage: Array) -> Array:
    """Voltage at which `relative_power` is `power`: the root above the threshold of its cubic, by Cardano. [V]

    With x = V/Vt the dynamic term is a x (x-1)^2; the cubic x^3 - 2x^2 + (1+b)x - q = 0 is monotone above x = 1.
    Where q is so small that the root lies below the threshold, the threshold is returned.
    """
    a = (1.0 - leakage) * threshold**3 / (nominal * (nominal - threshold) ** 2)
    b = leakage * threshold / nominal / a
    q = power / a
    shift = 2.0 / 3.0  # x = y + 2/3 removes the square term: y^3 + p y + r = 0
    p = (1.0 + b) - 4.0 / 3.0
    r = -16.0 / 27.0 + shift * (1.0 + b) - q
    discriminant = (r / 2.0) ** 2 + (p / 3.0) ** 3
    root = np.sqrt(np.maximum(discriminant, 0.0))
    larger = np.cbrt(-r / 2.0 + np.where(r > 0.0, -root, root))  # the other term follows from it without cancellation
    single = larger - np.divide(p / 3.0, larger, out=np.zeros(np.broadcast(p, larger).shape), where=larger != 0.0)
    radius = np.sqrt(np.maximum(-p / 3.0, 0.0))
    ratio = np.divide(-r / 2.0, radius**3, out=np.zeros(np.broadcast(r, radius).shape), where=radius > 0)
    triple = 2.0 * radius * np.cos(np.arccos(np.clip(ratio, -1.0, 1.0)) / 3.0)
    x = np.where(discriminant >= 0.0, single, triple) + shift
    return np.asarray(threshold * np.maximum(x, 1.0))


def frugal_voltage(nominal: Array, threshold: Array, leakage: Array) -> Array:
    """Voltage of least energy per operation: below it leakage costs more than slower switching saves. [V]

    With the law above an operation takes (1 - leak) V^2 / Vn^2 + leak V^2 (Vn - Vt)^2 / (Vn^2 (V - Vt)^2); the derivative is
    zero where (V - Vt)^3 = leak Vt (Vn - Vt)^2 / (1 - leak).
    """
    return np.asarray(threshold + np.cbrt(leakage * threshold * (nominal - threshold) ** 2 / np.maximum(1.0 - leakage, 1e-9)))


def voltage_at(frequency: Array, nominal: Array, threshold: Array) -> Array:
    """Voltage at which `relative_frequency` is `frequency`: the larger root of its quadratic. [V]"""
    half = threshold + 0.5 * frequency * (nominal - threshold) ** 2 / nominal
    return np.asarray(half + np.sqrt(np.maximum(half**2 - threshold**2, 0.0)))


def throttled(time: Array, compute: Array, switched: Array, moved: Array, limit: Throttle) -> tuple[Array, Array]:
    """Clock of work that would draw more than a device's power, over the full one [1], and the energy it takes beside leakage. [J]

    Units that wait for another resource first run as slowly as that allows, which costs no time. Where that is not enough
    voltage and clock of the chip fall together down to the minimum voltage, and below it units are left dark. The leakage of
    the units falls with their voltage; that at full voltage is counted with the static power, so it is taken off here.

    Parameters
    ----------
    time, compute : that of the work, and of its operations alone, at the full clock. [s]
    switched, moved : energy of its operations and of its traffic there. [J]
    """
    wanted = voltage_at(divide(compute, time), limit.voltage, limit.threshold)
    voltage = np.clip(wanted, limit.minimum, limit.voltage)
    active = np.minimum(1.0, divide(divide(compute, time), relative_frequency(voltage, limit.voltage, limit.threshold)))
    drawn = divide(switched * (voltage / limit.voltage) ** 2 + moved, time)
    leakage = limit.leakage * voltage / limit.voltage * active
    point = operate(
        limit.power, drawn + leakage, nominal=voltage, threshold=limit.threshold, minimum=np.minimum(limit.minimum, voltage),
        maximum=voltage, leakage=divide(leakage, drawn + leakage), divisible=False,
    )  # fmt: skip
    clock = np.where(point.frequency < 1.0 - 1e-9, point.frequency, 1.0)
    allowed = (limit.power - limit.leakage) * divide(time, clock)
    return clock, np.where(clock < 1.0, allowed, np.minimum(switched + moved, allowed))


def operate(
    budget: Array,
    nominal_power: Array,
    *,
    nominal: Array,
    threshold: Array,
    minimum: Array,
    maximum: Array,
    leakage: Array,
    divisible: bool,
) -> OperatingPoint:
    """Highest operating point that a power budget allows (Sec. 4.4.1).

    Below the minimum voltage fewer units run (`divisible`), or, for one bus that cannot be divided, the same lanes run
    slower at the minimum voltage; at the maximum voltage the frequency stops rising and the rest of the budget is unused.

    Parameters
    ----------
    budget, nominal_power : shape (n,). Power allowed, and power of all units at the nominal point. [W]
    nominal, threshold, minimum, maximum : shape (n,). Voltages. [V]
    leakage : shape (n,). Share of the nominal power that flows without switching. [1]
    divisible : whether units can be switched off one by one.
    """
    share = budget / np.where(nominal_power > 0, nominal_power, np.inf)
    wanted = voltage_for(share, nominal, threshold, leakage)
    voltage = np.clip(wanted, minimum, maximum)
    frequency = relative_frequency(voltage, nominal, threshold)
    needed = nominal_power * relative_power(voltage, nominal, threshold, leakage)
    active = np.minimum(1.0, budget / np.where(needed > 0, needed, np.inf))
    active = np.where(needed > 0, active, 1.0)
    frequency = frequency if divisible else frequency * active
    return OperatingPoint(
        voltage=voltage,
        frequency=np.asarray(frequency),
        active=np.asarray(active if divisible else np.ones_like(active)),
        power=np.asarray(np.minimum(needed * active, budget)),
        at_minimum=np.asarray(wanted < minimum),
        at_maximum=np.asarray(wanted > maximum),
    )
