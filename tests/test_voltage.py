"""Voltage and frequency: the cubic's root, its limits, and a power that never exceeds its budget."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from crossflow.hardware.architecture.voltage import operate, voltage_for
from crossflow.hardware.technology.alpha_power import relative_frequency, relative_power

# V100 of deepflow.md 1.1: core of 643 units of 0.13 W, and the inter-node link of 57.05 mm x 20 lanes at 13 pJ/bit.
CORE = {"nominal": 0.8, "threshold": 0.2, "minimum": 0.55, "maximum": 1.1}
LINK = {"nominal": 1.2, "threshold": 0.35, "minimum": 0.85, "maximum": 1.2}
CORE_POWER, CORE_FREQUENCY = 643 * 0.13, 1.33e9
LINK_POWER, LINK_LANES, LINK_FREQUENCY = 1141 * 13e-12 * 20e9, 1141, 20e9


def run(budget, nominal_power, volts, leakage=0.0, divisible=True):
    arrays = {name: np.array([value]) for name, value in volts.items()}
    return operate(np.atleast_1d(budget), np.atleast_1d(nominal_power), **arrays, leakage=np.array([leakage]), divisible=divisible)


@st.composite
def components(draw):
    """Voltages in order, a leakage, a nominal power and a budget, each over the range that technology has."""
    threshold = draw(st.floats(0.1, 0.5))
    minimum = threshold + draw(st.floats(0.01, 0.5))
    nominal = minimum + draw(st.floats(0.0, 0.5))
    maximum = nominal + draw(st.floats(0.0, 0.5))
    volts = {"threshold": threshold, "minimum": minimum, "nominal": nominal, "maximum": maximum}
    return volts, draw(st.floats(0.0, 0.6)), 10 ** draw(st.floats(-3, 4)), 10 ** draw(st.floats(-4, 5))


@pytest.mark.parametrize("leakage", [0.0, 1e-9, 0.05, 0.3, 0.9])
def test_the_root_satisfies_the_cubic(leakage):
    rng = np.random.default_rng(0)
    threshold = rng.uniform(0.1, 0.5, 5000)
    nominal = threshold + rng.uniform(0.05, 1.0, 5000)
    power = 10 ** rng.uniform(-3, 3, 5000)
    voltage = voltage_for(power, nominal, threshold, np.array([leakage]))
    inner = voltage > threshold
    np.testing.assert_allclose(relative_power(voltage, nominal, threshold, np.array([leakage]))[inner], power[inner], rtol=1e-9)
    below = leakage * threshold[~inner] / nominal[~inner]  # leakage alone takes the budget at the threshold
    assert (power[~inner] <= below * (1 + 1e-9)).all()


def test_the_root_is_the_papers_equation_without_leakage():
    """V (V - Vt)^2 = (P / Pn) Vn (Vn - Vt)^2, deepflow.md 1.2, against numpy's roots."""
    for power in (0.01, 0.5, 1.0, 3.0):
        roots = np.roots([1.0, -2 * 0.2, 0.2**2, -power * 0.8 * 0.6**2])
        real = roots[abs(roots.imag) < 1e-9].real
        assert voltage_for(np.array([power]), np.array([0.8]), np.array([0.2]), np.zeros(1))[0] == pytest.approx(real.max(), rel=1e-9)


def test_nominal_power_buys_the_nominal_point():
    point = run(CORE_POWER, CORE_POWER, CORE, leakage=0.1)
    assert (point.voltage[0], point.frequency[0], point.active[0], point.power[0]) == pytest.approx((0.8, 1.0, 1.0, CORE_POWER), rel=1e-12)
    assert relative_frequency(np.array([0.8]), np.array([0.8]), np.array([0.2]))[0] == pytest.approx(1.0)


@given(components(), st.booleans())
def test_power_never_exceeds_its_budget(component, divisible):
    volts, leakage, nominal_power, budget = component
    point = run(budget, nominal_power, volts, leakage, divisible)
    assert 0 <= point.power[0] <= budget
    spent = point.active[0] * nominal_power * relative_power(point.voltage, volts["nominal"], volts["threshold"], leakage)[0]
    assert not divisible or spent <= budget * (1 + 1e-9)


@given(components(), st.booleans())
def test_limits_hold_and_the_budget_is_used_between_them(component, divisible):
    volts, leakage, nominal_power, budget = component
    point = run(budget, nominal_power, volts, leakage, divisible)
    assert volts["minimum"] <= point.voltage[0] <= volts["maximum"]
    assert 0 < point.active[0] <= 1
    assert point.power[0] == pytest.approx(budget, rel=1e-9) or point.at_maximum[0]
    assert point.active[0] == pytest.approx(1, rel=1e-9) or (point.at_minimum[0] and divisible)


@given(components(), st.booleans(), st.floats(1.0, 10.0))
def test_more_power_never_buys_less(component, divisible, factor):
    volts, leakage, nominal_power, budget = component
    less, more = (run(power, nominal_power, volts, leakage, divisible) for power in (budget, budget * factor))
    assert more.frequency[0] * more.active[0] >= less.frequency[0] * less.active[0] * (1 - 1e-9)
    assert more.voltage[0] >= less.voltage[0] * (1 - 1e-12)


def test_at_the_minimum_voltage_fewer_units_run():
    """Paper, 4.4.1; half the power then is half the units at one frequency."""
    whole, half = run(10.0, CORE_POWER, CORE), run(5.0, CORE_POWER, CORE)
    assert whole.at_minimum
    assert whole.voltage[0] == half.voltage[0] == 0.55
    assert whole.frequency[0] == half.frequency[0]
    assert whole.active[0] == pytest.approx(2 * half.active[0], rel=1e-12)


def test_a_bus_at_the_minimum_voltage_slows_in_proportion_to_its_power():
    whole, half = run(2.0, LINK_POWER, LINK, divisible=False), run(1.0, LINK_POWER, LINK, divisible=False)
    assert whole.active[0] == half.active[0] == 1
    assert whole.frequency[0] == pytest.approx(2 * half.frequency[0], rel=1e-12)


def test_at_the_maximum_voltage_power_is_left_over():
    point, more = run(1000.0, CORE_POWER, CORE), run(2000.0, CORE_POWER, CORE)
    assert point.at_maximum
    assert point.voltage[0] == 1.1
    assert point.frequency[0] == more.frequency[0]
    assert point.power[0] == more.power[0] < 1000


def test_ten_watts_of_core_give_what_the_papers_code_gives():
    """deepflow.md 1.2: V = 0.55 V, 10.000 W; its 0.33663 GHz on all units is our frequency times the units that run."""
    point = run(10.0, CORE_POWER, CORE)
    assert point.voltage[0] == 0.55
    assert point.power[0] == pytest.approx(10.0, rel=1e-12)
    assert point.frequency[0] * point.active[0] * CORE_FREQUENCY == pytest.approx(0.33663e9, rel=1e-4)


def test_full_core_power_gives_the_v100_point():
    """deepflow.md 1.3: 0.8679 V and 1.519 GHz on 0.3745 x 300 W."""
    point = run(0.3745 * 300, CORE_POWER, CORE)
    assert point.voltage[0] == pytest.approx(0.8679, abs=5e-5)
    assert point.frequency[0] * CORE_FREQUENCY == pytest.approx(1.519e9, rel=1e-3)


@pytest.mark.parametrize(("watts", "bandwidth"), [(2.805, 51.6e9), (15.0, 276e9), (90.0, 1501e9)])
def test_inter_node_link_of_the_v100(watts, bandwidth):
    """deepflow.md 1.2: 51.6, 276 and 1501 GB/s with util 0.96, both below (0.48 V wanted, 0.85 V least) and above the minimum."""
    point = run(watts, LINK_POWER, LINK, divisible=False)
    assert LINK_LANES * LINK_FREQUENCY * point.frequency[0] * 0.96 / 8 == pytest.approx(bandwidth, rel=2e-3)
    assert point.power[0] == pytest.approx(watts, rel=1e-9)
    assert point.at_minimum[0] == (watts < 90)


def test_the_link_wants_less_than_its_minimum_voltage():
    wanted = voltage_for(np.array([2.805 / LINK_POWER]), np.array([1.2]), np.array([0.35]), np.zeros(1))
    assert wanted[0] == pytest.approx(0.4806, abs=5e-5)


def test_points_one_by_one_are_the_batch():
    rng = np.random.default_rng(3)
    budget = 10 ** rng.uniform(-2, 4, 200)
    batch = run(budget, CORE_POWER, CORE, leakage=0.1)
    for i in range(200):
        one = run(budget[i], CORE_POWER, CORE, leakage=0.1)
        assert (one.voltage[0], one.frequency[0], one.active[0], one.power[0]) == (
            batch.voltage[i],
            batch.frequency[i],
            batch.active[i],
            batch.power[i],
        )


def test_nothing_to_power_takes_nothing():
    point = run(100.0, 0.0, CORE)
    assert point.power[0] == 0
    assert np.isfinite([point.voltage[0], point.frequency[0]]).all()


def test_no_power_runs_nothing():
    point = run(0.0, CORE_POWER, CORE, leakage=0.1)
    assert point.active[0] == point.power[0] == 0
