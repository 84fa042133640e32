"""Voltage and frequency scaling: what a power budget buys, in closed form over all design points.

The alpha-power law with alpha = 2: f ~ (V - Vt)^2 / V and dynamic power ~ f V^2, so that
P = P_nominal [(1 - leak) V (V - Vt)^2 / (Vn (Vn - Vt)^2) + leak V / Vn] is a cubic in V [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.4.1 ("standard voltage-frequency-power scaling").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from crossflow.base.arrays import Array, Mask, divide
from crossflow.hardware.architecture.model import Throttle
from crossflow.hardware.technology.alpha_power import headroom, headroom_at, relative_frequency, relative_power

ITERATIONS, CLOSE = 60, 1e-6  # steps towards the clock within a power limit at most, and that after which the next changes nothing [1]
CHUNK = 8192  # kernels a batch: its arrays stay in cache
TINY = 1e-300


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
    x = single + shift
    if (discriminant < 0.0).any():  # three roots, as at few points
        radius = np.sqrt(np.maximum(-p / 3.0, 0.0))
        ratio = np.divide(-r / 2.0, radius**3, out=np.zeros(np.broadcast(r, radius).shape), where=radius > 0)
        triple = 2.0 * radius * np.cos(np.arccos(np.clip(ratio, -1.0, 1.0)) / 3.0)
        x = np.where(discriminant >= 0.0, x, triple + shift)
    return np.asarray(threshold * np.maximum(x, 1.0))


def frugal_voltage(nominal: Array, threshold: Array, leakage: Array) -> Array:
    """Voltage of least energy per operation: below it leakage costs more than slower switching saves. [V]

    With the law above an operation takes (1 - leak) V^2 / Vn^2 + leak V^2 (Vn - Vt)^2 / (Vn^2 (V - Vt)^2); the derivative is
    zero where (V - Vt)^3 = leak Vt (Vn - Vt)^2 / (1 - leak).
    """
    return np.asarray(threshold + np.cbrt(leakage * threshold * (nominal - threshold) ** 2 / np.maximum(1.0 - leakage, 1e-9)))


def throttled(
    time: Array, compute: Array, switched: Array, cached: Array, moved: Array, limit: Throttle, within: Array | None = None,
    own: Sequence[Array] = (),
) -> tuple[Array, Array]:  # fmt: skip
    """Clock of work that would draw more than a device's power, over the full one [1], and the energy it takes beside leakage. [J]

    Units that wait for another resource first run as slowly as that allows, which costs no time. Where that is not enough
    the clock of the chip falls, and with it the voltages of units and caches, down to the minimum voltage; below it units are
    left dark. Caches have the voltage that the clock of the units asks of them, and at most that of their own clock: a chip whose
    units could run faster has no slower and no more frugal caches at the clock that its power allows. A cache whose slices have a
    slower clock has the voltage of that clock already, and saves no more before the units are as slow. Main memory keeps its
    voltage. The leakage of the units falls with their voltage; that at full voltage is counted with the static power, so it is
    taken off here.

    Parameters
    ----------
    time, compute : that of the work, and of its operations alone, at the full clock. [s]
    switched, cached, moved : energy there of its operations, of its traffic on the chip, and of that of main memory. [J]
    within : a time that matters alone, where given: the clock of work that takes longer is zero, and it takes endless energy. [s]
    own : energy of the traffic of caches with a clock of their own, in the order of `limit.own`, beside `cached`. [J]
    """
    work = _Work.of(time, compute, switched, (cached, *own), moved, limit)
    rows = work.rows
    shape, most = np.broadcast_shapes(*map(np.shape, rows)), work.power * (1.0 + 1e-9)
    if within is None:
        clock, sought = np.ones(shape), work.drawn(np.ones(1)) > most
    else:
        with np.errstate(invalid="ignore"):  # of work that never ends nothing is sought
            least = divide(time, within)
        clock, sought = np.zeros(shape), (least <= 1.0) & (work.drawn(np.minimum(least, 1.0)) <= most)
    sought = np.broadcast_to(sought, shape)
    if sought.any():
        held = np.stack([np.broadcast_to(row, shape)[sought] for row in rows])
        parts = [_Work.from_rows(held[:, start : start + CHUNK]) for start in range(0, held.shape[1], CHUNK)]
        clock[sought] = np.concatenate([_clock_within(part) for part in parts])
    allowed = (limit.power - limit.leakage) * divide(time, clock)
    return clock, np.where(clock < 1.0, allowed, np.minimum(sum(own, switched + cached) + moved, allowed))


@dataclass(frozen=True)
class _Cached:
    """Accesses of caches that share a clock; arrays as in `_Work`."""

    headroom: Array  # x in `_voltage` at the full clock, were theirs not bounded. [V]
    highest: Array  # voltage at their own clock, where the units may ask for more. [V]
    least: Array  # voltage at least. [V]
    power: Array  # that of their traffic at the full clock, over the square of their voltage. [W/V^2]

    @classmethod
    def of(cls, energy: Array, often: Array, needed: Array, faster: Array, voltage: Array, limit: Throttle) -> _Cached:
        """Those of caches with a voltage at their own clock, beside units whose full clock is `faster`."""
        above = np.maximum(needed * faster, 1.0) if np.any(faster > 1.0) else np.ones(1)
        highest = np.where(above > 1.0, voltage, np.inf)
        return cls(above * headroom_at(voltage, limit.threshold), highest, np.minimum(limit.minimum, voltage), energy * often / voltage**2)


@dataclass(frozen=True)
class _Work:
    """What the power of work at a clock c follows from; arrays of one shape, or of (n,) where only the device matters.

    P(c) = c (switched u^2 + sum of cached w^2 + moved) + leakage u min(lit c, 1), with the voltages u of the units and w of caches.
    """

    units: Array  # x in `_voltage` of the units at the full clock. [V]
    threshold: Array  # [V]
    least: Array  # voltage of the units at least. [V]
    switched: Array  # power of the operations at the full clock, over the square of their voltage there. [W/V^2]
    moved: Array  # that of the traffic of main memory. [W]
    leakage: Array  # that of the units at full voltage, over it. [W/V]
    lit: Array  # units that are not left dark at the least voltage, at the full clock; more than one where none is. [1]
    power: Array  # that may be drawn. [W]
    caches: tuple[_Cached, ...]  # those that share a clock, and each that has its own

    @classmethod
    def of(cls, time: Array, compute: Array, switched: Array, cached: Sequence[Array], moved: Array, limit: Throttle) -> _Work:
        """Work as `throttled` has it; `cached` is the energy of the caches that share a clock, and of each that has its own."""
        needed, often = divide(compute, time), divide(np.ones(1), time)
        clocks = ((limit.faster, limit.nominal), *((one.faster, one.voltage) for one in limit.own))
        return cls(
            needed * headroom_at(limit.voltage, limit.threshold),
            limit.threshold,
            np.minimum(limit.minimum, limit.voltage),
            switched * often / limit.voltage**2,
            moved * often,
            limit.leakage / limit.voltage,
            divide(needed, relative_frequency(limit.minimum, limit.voltage, limit.threshold)),
            limit.power,
            tuple(_Cached.of(energy, often, needed, *clock, limit) for energy, clock in zip(cached, clocks, strict=True)),
        )

    @property
    def rows(self) -> list[Array]:
        """All arrays, from which `from_rows` makes the work again; `astuple` would copy them."""
        own = [getattr(self, name) for name in FIELDS]
        return own + [getattr(cache, field.name) for cache in self.caches for field in fields(cache)]

    @classmethod
    def from_rows(cls, rows: Array) -> _Work:
        """Work of the arrays of `rows`, all of one shape."""
        caches = rows[len(FIELDS) :].reshape(-1, len(fields(_Cached)), rows.shape[-1])
        return cls(*rows[: len(FIELDS)], tuple(_Cached(*one) for one in caches))  # type: ignore[call-arg]

    def drawn(self, clock: Array) -> Array:
        """Power at a clock of the chip, without the static power beside the leakage of the units. [W]"""
        units = np.maximum(_voltage(clock * self.units, self.threshold)[0], self.least)
        energy = self.switched * units * units + self.moved
        for cache in self.caches:
            voltage = np.clip(_voltage(clock * cache.headroom, self.threshold)[0], cache.least, cache.highest)
            energy = energy + cache.power * voltage * voltage
        return np.asarray(clock * energy + self.leakage * np.minimum(clock * self.lit, 1.0) * units)

    def rising(self, clock: Array) -> tuple[Array, Array]:
        """The same, and c dP/dc. [W]"""
        units, faster = _rising(clock * self.units, self.threshold, self.least)
        lit = clock * self.lit
        leakage, switched = self.leakage * np.minimum(lit, 1.0), self.switched * units
        energy, steeper = switched * units + self.moved, switched * faster
        for cache in self.caches:
            voltage, warmer = _rising(clock * cache.headroom, self.threshold, cache.least, cache.highest)
            cached = cache.power * voltage
            energy, steeper = energy + cached * voltage, steeper + cached * warmer
        slope = clock * (energy + 2.0 * steeper) + leakage * (faster + np.where(lit < 1.0, units, 0.0))
        return np.asarray(clock * energy + leakage * units), np.asarray(slope)


FIELDS = tuple(field.name for field in fields(_Work) if field.name != "caches")


def _voltage(x: Array, threshold: Array) -> tuple[Array, Array]:
    """Voltage u = Vt + x + sqrt(x (x + 2 Vt)) of `voltage_at`, and the root in it. [V]"""
    root = np.sqrt(x * (x + 2.0 * threshold))
    return x + root + threshold, root


def _rising(x: Array, threshold: Array, least: Array, most: Array | float = np.inf) -> tuple[Array, Array]:
    """The voltage, between the least and the largest one, and x du/dx. [V]"""
    voltage, root = _voltage(x, threshold)
    slope = x * voltage / (root + TINY)  # nothing where nothing is asked for
    return np.clip(voltage, least, most), slope * ((voltage > least) & (voltage < most))


@np.errstate(divide="ignore", invalid="ignore")  # a step from a clock at which nothing is drawn is no number
def _clock_within(work: _Work) -> Array:
    """Clock, no more than the full one, at which work draws no more than the power of its limit. [1]

    By Newton's method on log P over log c, which is nearly a line: P grows as a power of c between one and three. Where it would
    leave what is known to hold the root, that is halved.
    """
    clock, low, high = np.ones_like(work.power), np.zeros_like(work.power), np.ones_like(work.power)
    settled = np.zeros(clock.shape, dtype=bool)
    for _ in range(ITERATIONS):
        found, slope = work.rising(clock)
        above = found > work.power
        low, high = np.where(above, low, clock), np.where(above, clock, high)
        wanted = clock * (work.power / found) ** (found / slope)
        wanted = np.where((wanted >= low) & (wanted <= high), wanted, 0.5 * (low + high))
        wanted = np.where(settled, clock, wanted)  # a kernel does not depend on those beside it
        settled |= np.abs(wanted - clock) <= CLOSE * clock
        clock = wanted
        if settled.all():
            break
    return clock


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
