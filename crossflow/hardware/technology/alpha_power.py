"""The alpha-power law with alpha = 2: frequency and power of logic over its voltage [1]_.

f ~ (V - Vt)^2 / V and dynamic power ~ f V^2, leakage ~ V. Nodes scale by it (`technology.library`), and budgets of power buy voltage
by it (`architecture.voltage`).

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.4.1 ("standard voltage-frequency-power scaling").
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array


def headroom(nominal: Array, threshold: Array) -> Array:
    """Nominal voltage above the threshold; NaN where there is none, as in designs whose voltages are out of order. [V]"""
    return np.where(np.greater(nominal, threshold), nominal - threshold, np.nan)


def relative_frequency(voltage: Array, nominal: Array, threshold: Array) -> Array:
    """Frequency at a voltage over the frequency at the nominal one: [(V-Vt)^2/V] / [(Vn-Vt)^2/Vn]. [1]"""
    return np.asarray((voltage - threshold) ** 2 / voltage * nominal / headroom(nominal, threshold) ** 2)


def relative_power(voltage: Array, nominal: Array, threshold: Array, leakage: Array) -> Array:
    """Power at a voltage over the power at the nominal one, at the frequency that the voltage allows. [1]"""
    dynamic = voltage * (voltage - threshold) ** 2 / (nominal * headroom(nominal, threshold) ** 2)
    return np.asarray((1.0 - leakage) * dynamic + leakage * voltage / nominal)


def headroom_at(nominal: Array, threshold: Array) -> Array:
    """Half of (Vn - Vt)^2 / Vn, which sets the frequency at the nominal voltage: x in `voltage_at`. [V]"""
    return np.asarray(0.5 * (nominal - threshold) ** 2 / nominal)


def voltage_at(frequency: Array, nominal: Array, threshold: Array) -> Array:
    """Voltage at which `relative_frequency` is `frequency`: the larger root of its quadratic, with x that of `headroom_at`. [V]"""
    half = threshold + frequency * headroom_at(nominal, threshold)
    return np.asarray(half + np.sqrt(np.maximum(half**2 - threshold**2, 0.0)))
