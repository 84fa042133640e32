"""Voltage and frequency scaling: what a power budget buys, in closed form over all design points.

The alpha-power law with alpha = 2: f ~ (V - Vt)^2 / V and dynamic power ~ f V^2, so that
P = P_nominal [(1 - leak) V (V - Vt)^2 / (Vn (Vn - Vt)^2) + leak V / Vn] is a cubic in V [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.4.1 ("standard voltage-frequency-power scaling").
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import numpy as np

from crossflow.base.arrays import Array, Mask, divide
from crossflow.hardware.architecture.model import Throttle
from crossflow.hardware.technology.alpha_power import headroom, relative_frequency, relative_power, voltage_at

ITERATIONS, LEAST = 9, 1e-12  # steps towards the clock within a power limit, and the least one [1]


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Where a component runs on its power budget; all arrays of shape (n,)."""

    voltage: Array  # operating voltage. [V]
    frequency: Array  # operating frequency over the nominal one. [1]
    active: Array  # share of the units that can run; below 1 only at the minimum voltage. [1]
    power: Array  # power used, never above the budget. [W]
    at_minimum: Mask  # whether the least voltage bound
    at_maximum: Mask  # whether the largest one did


def voltage_for(power: Array, nominal: Array, threshold: Array, leakage: Array) -> Array:
    """Voltage at which `relative_power` is `power`: the root above the threshold of its cubic, by Cardano. [V]

    With x = V/Vt the dynamic term is a x (x-1)^2; the cubic x^3 - 2x^2 + (1+b)x - q = 0 is monotone above x = 1.
    Where q is so small that the root lies below the threshold, the threshold is returned.
    """
    a = (1.0 - leakage) * threshold**3 / (nominal * headroom(nominal, threshold) ** 2)
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


def throttled(time: Array, compute: Array, switched: Array, cached: Array, moved: Array, limit: Throttle) -> tuple[Array, Array]:
    """Clock of work that would draw more than a device's power, over the full one [1], and the energy it takes beside leakage. [J]

    Units that wait for another resource first run as slowly as that allows, which costs no time. Where that is not enough
    the clock of the chip falls, and with it the voltages of units and caches, down to the minimum voltage; below it units are
    left dark. Main memory keeps its voltage. The leakage of the units falls with their voltage; that at full voltage is
    counted with the static power, so it is taken off here.

    Parameters
    ----------
    time, compute : that of the work, and of its operations alone, at the full clock. [s]
    switched, cached, moved : energy there of its operations, of its traffic on the chip, and of that of main memory. [J]
    """
    work = np.stack(np.broadcast_arrays(time, compute, switched, cached, moved, *astuple(limit)))
    flat = work.reshape(len(work), -1)
    clock = np.ones(flat.shape[1])
    over = _drawn(clock, flat) > _limit(flat).power * (1.0 + 1e-9)
    if over.any():
        clock[over] = _clock_within(flat[:, over])
    found = clock.reshape(work.shape[1:])
    allowed = (limit.power - limit.leakage) * divide(time, found)
    return found, np.where(found < 1.0, allowed, np.minimum(switched + cached + moved, allowed))


def _clock_within(work: Array) -> Array:
    """Clock at which work draws the power of its limit, which it exceeds at the full clock; by regula falsi (Illinois). [1]

    Where the root is twice on one side of the new clock, the end that stays counts half, so that it moves as well. What is found
    draws no more than the limit.
    """
    power = _limit(work).power
    low, high, before = np.full_like(power, LEAST), np.ones_like(power), np.zeros_like(power)
    under, over = -power, _drawn(high, work) - power
    for _ in range(ITERATIONS):
        clock = low - under * np.where(over > under, divide(high - low, over - under), 0.0)
        found = _drawn(clock, work) - power
        above = found > 0.0
        side = np.where(above, 1.0, -1.0)
        stays = np.where(side == before, 0.5, 1.0)
        under, over = np.where(above, stays * under, found), np.where(above, found, stays * over)
        low, high, before = np.where(above, low, clock), np.where(above, clock, high), side
    return low


def _drawn(clock: Array, work: Array) -> Array:
    """Power of work at a clock of the chip, without the static power beside the leakage of the units; see `throttled`. [W]"""
    time, compute, switched, cached, moved = work[: -len(fields(Throttle))]
    limit = _limit(work)
    needed = clock * divide(compute, time)
    units = np.clip(voltage_at(needed, limit.voltage, limit.threshold), limit.minimum, limit.voltage) / limit.voltage
    caches = np.clip(voltage_at(clock, limit.nominal, limit.threshold), limit.minimum, limit.nominal) / limit.nominal
    lit = np.minimum(divide(needed, relative_frequency(limit.minimum, limit.voltage, limit.threshold)), 1.0)
    energy = switched * units**2 + cached * caches**2 + moved
    return np.asarray(divide(clock * energy, time) + limit.leakage * units * lit)


def _limit(work: Array) -> Throttle:
    """The last rows of an array of work, see `throttled`."""
    return Throttle(**{field.name: row for field, row in zip(fields(Throttle), work[-len(fields(Throttle)) :], strict=True)})


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
