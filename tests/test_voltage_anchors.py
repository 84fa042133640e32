"""Voltages by hand: least voltages, leakage, clocks under a limit of power, and designs that cannot be built."""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest
from test_architecture_anchors import budgets, given, linear, link, memory, memory_system, of, system
from test_voltage import CORE, run

from crossflow.hardware.architecture.datasheet import sustained
from crossflow.hardware.architecture.generator import _throttle, build_cores, build_links, build_memory, choose_parts
from crossflow.hardware.architecture.model import CacheClock, Throttle
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.architecture.voltage import frugal_voltage, throttled, voltage_for
from crossflow.hardware.technology.alpha_power import relative_frequency, relative_power, voltage_at
from crossflow.hardware.technology.library import load_library

near = functools.partial(pytest.approx, rel=1e-9, abs=0.0)
ONE = np.ones(1)


# ------------------------------------------------------------------------------------------ the law

POINTS = [
    # voltage over the nominal one, frequency and power without leakage: (V - 0.2)^2 / V / 0.8^2 and V (V - 0.2)^2 / 0.8^2
    (1.0, 1.0, 1.0), (0.5, 0.09 / 0.5 / 0.64, 0.5 * 0.09 / 0.64), (0.6, 0.16 / 0.6 / 0.64, 0.6 * 0.16 / 0.64),
    (1.2, 1.0 / 1.2 / 0.64, 1.2 / 0.64),
]  # fmt: skip


@pytest.mark.parametrize(("voltage", "frequency", "power"), POINTS)
@pytest.mark.parametrize("leakage", [0.0, 0.1])
def test_frequency_and_power_of_a_voltage_and_back(voltage, frequency, power, leakage):
    """What leaks follows the voltage, what switches its square and the frequency."""
    spent = (1 - leakage) * power + leakage * voltage
    assert relative_frequency(of(voltage), of(1.0), of(0.2))[0] == near(frequency)
    assert relative_power(of(voltage), of(1.0), of(0.2), of(leakage))[0] == near(spent)
    assert voltage_at(of(frequency), of(1.0), of(0.2))[0] == near(voltage)
    assert voltage_for(of(spent), of(1.0), of(0.2), of(leakage))[0] == near(voltage)


def test_power_that_leakage_alone_takes_buys_the_threshold():
    """Half of the power leaks, a tenth of all at a threshold of 0.2; less than that switches nothing."""
    for power in (0.0, 0.05, 0.0999):
        assert voltage_for(of(power), of(1.0), of(0.2), of(0.5))[0] == near(0.2)
    assert voltage_for(of(0.11), of(1.0), of(0.2), of(0.5))[0] > 0.2


@pytest.mark.parametrize("nominal", [0.2, 0.19, 0.05])
def test_a_nominal_voltage_that_is_not_above_the_threshold_has_no_clock(nominal):
    assert np.isnan(relative_frequency(of(0.5), of(nominal), of(0.2))[0])
    assert np.isnan(relative_power(of(0.5), of(nominal), of(0.2), of(0.1))[0])


@pytest.mark.parametrize(("leakage", "cube"), [(0.5, 0.2 * 0.64), (0.1, 0.2 * 0.64 / 9), (0.0, 0.0)])
def test_the_frugal_voltage_by_hand_is_where_an_operation_takes_least(leakage, cube):
    """(V - Vt)^3 = leak Vt (Vn - Vt)^2 / (1 - leak)."""
    found = frugal_voltage(of(1.0), of(0.2), of(leakage))
    assert found[0] == near(0.2 + cube ** (1 / 3))
    if leakage:
        near_by = found[0] * np.array([0.99, 1.0, 1.01])
        energy = relative_power(near_by, of(1.0), of(0.2), of(leakage)) / relative_frequency(near_by, of(1.0), of(0.2))
        assert energy.argmin() == 1


@pytest.mark.parametrize("divisible", [True, False])
def test_what_takes_no_power_runs_whole_at_its_least_voltage(divisible):
    point = run(100.0, 0.0, CORE, divisible=divisible)
    assert (point.active[0], point.voltage[0], point.power[0]) == (1.0, 0.55, 0.0)
    assert point.frequency[0] == near(0.35**2 / 0.55 * 0.8 / 0.6**2)


@pytest.mark.parametrize("leakage", [0.0, 0.2])
def test_a_budget_below_the_least_voltage_by_hand(leakage):
    """At 0.55 V all 100 W take 0.55 (0.35)^2 / (0.8 0.6^2) of what switches and 0.55 / 0.8 of what leaks; 4 W feed a part of that."""
    whole = 100 * ((1 - leakage) * 0.55 * 0.35**2 / (0.8 * 0.36) + leakage * 0.55 / 0.8)
    clock = 0.35**2 / 0.55 * 0.8 / 0.36
    units, bus = (run(4.0, 100.0, CORE, leakage, divisible) for divisible in (True, False))
    assert (units.active[0], units.frequency[0], units.power[0]) == (near(4 / whole), near(clock), near(4.0))
    assert (bus.active[0], bus.frequency[0], bus.power[0]) == (1.0, near(clock * 4 / whole), near(4.0))
    assert units.voltage[0] == bus.voltage[0] == 0.55
    assert units.at_minimum[0]
    assert not units.at_maximum[0]


# ------------------------------------------------------------------------------------------ clocks under a limit


def limit(power, *, leakage=0.0, voltage=1.0, minimum=0.25, nominal=1.0, faster=1.0):
    """Without a threshold a clock and its voltage are in proportion."""
    names = ("power", "leakage", "voltage", "threshold", "minimum", "nominal", "faster")
    values = dict(zip(names, (power, leakage, voltage, 0.0, minimum, nominal, faster), strict=True))
    return Throttle(**{name: of(value) for name, value in values.items()})


CLOCKS = [
    # time of the operations alone, energy switched, of caches and of memory, leakage, least and full voltage, clock, power at that clock
    ("units follow their own clock", 1.0, 1.0, 0.0, 0.0, 0.0, 0.25, 1.0, 0.8, 0.8 * 0.8**2),
    ("and that of what they wait for", 0.5, 1.0, 0.0, 0.0, 0.0, 0.25, 1.0, 0.8, 0.8 * 0.4**2),
    ("caches that of the chip", 0.5, 0.0, 1.0, 0.0, 0.0, 0.25, 1.0, 0.8, 0.8 * 0.8**2),
    ("memory keeps its voltage", 0.5, 0.0, 0.0, 1.0, 0.0, 0.25, 1.0, 0.8, 0.8),
    ("each its own", 0.5, 1.0, 2.0, 3.0, 0.0, 0.25, 1.0, 0.8, 0.8 * (0.4**2 + 2 * 0.8**2 + 3)),
    ("leakage falls with the voltage", 1.0, 1.0, 0.0, 0.0, 0.5, 0.25, 1.0, 0.8, 0.8**3 + 0.5 * 0.8),
    ("below the least one units are dark", 1.0, 1.0, 0.0, 0.0, 0.5, 0.5, 1.0, 0.25, 0.25 * 0.5**2 + 0.5 * 0.5 * 0.5),
    ("caches stay at the least one", 1.0, 0.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.25, 0.25 * 0.5**2),
    ("units have a voltage of their own", 1.0, 1.0, 1.0, 0.0, 0.0, 0.3, 0.5, 0.4, 0.4 * (0.6**2 + 0.4**2)),
]  # fmt: skip


FASTER = [
    # units at full clock over caches, time of the operations, power, clock: energies of 1 J of units and of caches, but the last
    ("caches keep their voltage at their own clock", 2.0, 1.0, 0.75 * (0.75**2 + 1.0), 0.75),
    ("and lose it at a slower one", 2.0, 1.0, 0.4 * (0.4**2 + 0.8**2), 0.4),
    ("which is that of the units at work", 2.0, 0.75, 0.5 * (0.375**2 + 0.75**2), 0.5),
    ("never below that of the accesses", 2.0, 0.25, 0.8 * (0.25**2 + 0.8**2), 0.8),
    ("slower units change nothing", 0.5, 1.0, 0.8 * (0.8**2 + 0.8**2), 0.8),
]


@pytest.mark.parametrize("case", FASTER, ids=[case[0] for case in FASTER])
def test_caches_beside_units_of_another_clock_by_hand(case):
    _, faster, compute, power, clock = case
    found, _ = throttled(ONE, compute * ONE, ONE, ONE, 0.0 * ONE, limit(power, faster=faster))
    assert found[0] == pytest.approx(clock, rel=1e-6)


OWN = [
    # units at full clock over the cache's own, its voltage, time of the operations, power, clock: 1 J of units and of the cache
    ("a slower cache keeps the voltage of its clock", 2.0, 0.5, 1.0, 0.75 * (0.75**2 + 1.0), 0.75),
    ("until the units are as slow", 2.0, 0.5, 1.0, 0.4 * (0.4**2 + 0.8**2), 0.4),
    ("and stays at the least voltage", 2.0, 0.5, 1.0, 0.2 * (0.25**2 + (0.25 / 0.5) ** 2), 0.2),
    ("a faster one falls with the chip", 0.8, 1.25, 1.0, 0.8 * (0.8**2 + 0.8**2), 0.8),
]


@pytest.mark.parametrize("case", OWN, ids=[case[0] for case in OWN])
def test_a_cache_with_its_own_clock_by_hand(case):
    """Half the clock at half the voltage: the energies of the others fell with the clock of the units, and its own a second time."""
    _, faster, voltage, compute, power, clock = case
    shared = limit(power)
    own = dataclasses.replace(shared, own=(CacheClock(level=0, voltage=of(voltage), faster=of(faster)),))
    found, energy = throttled(ONE, compute * ONE, ONE, 0.0 * ONE, 0.0 * ONE, own, own=(ONE,))
    assert found[0] == pytest.approx(clock, rel=1e-6)
    assert energy[0] == pytest.approx(power / clock, rel=1e-6)


def test_caches_of_one_clock_may_be_told_one_by_one(much_work):
    (compute, switched, cached, moved), limits = much_work
    shared = Throttle(**limits)
    apart = dataclasses.replace(shared, own=(CacheClock(level=0, voltage=shared.nominal, faster=shared.faster),))
    work = np.ones(20_000), compute, switched
    (clock, energy), (same, spent) = (
        throttled(*work, cached, moved, shared), throttled(*work, 0.4 * cached, moved, apart, own=(0.6 * cached,)),
    )  # fmt: skip
    np.testing.assert_allclose(same, clock, rtol=2e-6)
    np.testing.assert_allclose(spent, energy, rtol=2e-6)


@pytest.mark.parametrize("case", CLOCKS, ids=[case[0] for case in CLOCKS])
def test_clocks_under_a_limit_by_hand(case):
    """The clock draws the limit; energy beside leakage is that power, less the leakage that is static, over the longer time."""
    _, compute, switched, cached, moved, leakage, minimum, voltage, clock, power = case
    work = (of(part) for part in (1.0, compute, switched, cached, moved))
    found, energy = throttled(*work, limit(power, leakage=leakage, minimum=minimum, voltage=voltage))
    assert found[0] == pytest.approx(clock, rel=1e-6)
    assert energy[0] == pytest.approx((power - leakage) / clock, rel=1e-6)


def drawn(clock, compute, switched, cached, moved, power, leakage, voltage, threshold, minimum, nominal, faster):
    """Power of work of a second at a clock, straight from the law of the voltages."""
    units = np.clip(voltage_at(clock * compute, voltage, threshold), minimum, voltage) / voltage
    caches = np.clip(voltage_at(clock * np.maximum(compute * faster, 1.0), nominal, threshold), minimum, nominal) / nominal
    lit = np.minimum(clock * compute / relative_frequency(minimum, voltage, threshold), 1.0)
    return clock * (switched * units**2 + cached * caches**2 + moved) + leakage * units * lit


@pytest.fixture
def much_work():
    """Work of a second, whatever part of it switches, moves or leaks, and limits that most of it exceeds."""
    rng = np.random.default_rng(0)
    compute, switched, cached, moved = rng.uniform(0.02, 1.0, (4, 20_000))
    threshold, nominal, leakage = rng.uniform(0.1, 0.35, 20_000), rng.uniform(0.7, 1.0, 20_000), rng.uniform(0.0, 0.3, 20_000) * switched
    minimum = threshold + rng.uniform(0.05, 0.3, 20_000)
    power = rng.uniform(0.05, 1.0, 20_000) * (switched + cached + moved)
    voltage = np.maximum(minimum, rng.uniform(0.6, 1.1, 20_000))
    names = ("power", "leakage", "voltage", "threshold", "minimum", "nominal", "faster")
    limits = (power, leakage, voltage, threshold, np.minimum(minimum, voltage), nominal, rng.uniform(0.5, 2.5, 20_000))
    return (compute, switched, cached, moved), dict(zip(names, limits, strict=True))


def test_any_work_over_its_limit_draws_it(much_work):
    """And not a watt more; some limits are met by a clock that is tried first."""
    work, limits = much_work
    clock, _ = throttled(np.ones(20_000), *work, Throttle(**limits))
    power = limits["power"]
    spent, over = drawn(clock, *work, **limits), drawn(np.ones(20_000), *work, **limits) > power * (1 + 1e-9)
    assert (clock[~over] == 1.0).all()
    assert over.sum() > 10_000
    assert (spent[~over] <= power[~over] * (1 + 1e-9)).all()
    np.testing.assert_allclose(spent[over], power[over], rtol=1e-9)


def test_work_that_is_not_done_within_a_time_is_not_worked_out(much_work):
    """What is done within it has the clock and the energy that it has anyway, whether its limit binds or not."""
    work, limits = much_work
    every = np.ones(20_000), *work, Throttle(**limits)
    within = np.random.default_rng(1).uniform(0.8, 3.0, 20_000)
    (clock, energy), (sought, spent) = throttled(*every), throttled(*every, within)
    done = 1.0 / clock <= within
    assert (done & (clock < 1.0)).sum() > 2_000
    assert (done & (clock == 1.0)).sum() > 500
    assert (sought[~done] == 0.0).all()
    assert np.isinf(spent[~done]).all()
    np.testing.assert_allclose(sought[done], clock[done], rtol=1e-12)
    np.testing.assert_allclose(spent[done], energy[done], rtol=1e-12)


def test_work_within_the_limit_keeps_the_full_clock_and_its_energy():
    """Units that wait run at half the clock and a quarter of the energy: 0.25 + 0.3 W, of 0.8 J that is told as long as 0.7 W allow it."""
    for power, told in ((2.0, 1.3), (0.8, 0.8)):
        clock, energy = throttled(ONE, 0.5 * ONE, ONE, 0.0 * ONE, 0.3 * ONE, limit(power))
        assert (clock[0], energy[0]) == (1.0, near(told))


# ------------------------------------------------------------------------------------------ components

UNIT = {"nominal_area": 2e-6, "nominal_power": 3.0, "nominal_frequency": 1e9, "nominal_flop_rate": 8.0}


def unit(**changes):
    return SimpleNamespace(**{name: of(value) for name, value in linear(**UNIT | changes).items()})


LEAST = [(0.5, 0.3 + (0.3 * 0.49) ** (1 / 3)), (0.01, 0.6), (0.9, 1.2)]


@pytest.mark.parametrize(("leakage", "voltage"), LEAST)
def test_units_that_leak_have_a_least_voltage_of_their_own(leakage, voltage):
    """Twelve units on 1 W of 36: dark ones rather than a voltage below that of least energy, within what units stand."""
    cores = build_cores(unit(leakage=leakage), given(area=24e-6, power=1.0), of(4))
    each = 3.0 * ((1 - leakage) * voltage * (voltage - 0.3) ** 2 / 0.49 + leakage * voltage)
    assert cores.point.voltage[0] == near(voltage)
    assert cores.mcus[0] == near(1.0 / each)
    assert cores.leakage_power[0] == near(leakage * 3.0 / each * voltage)  # of those that run
    assert cores.frequency[0] == near(1e9 * (voltage - 0.3) ** 2 / voltage / 0.49)


def test_pins_and_lanes_at_a_lower_voltage_take_its_square_a_byte():
    """At 0.8 V: 0.8 (0.5)^2 / 0.49 of the power, and 0.25 / 0.8 / 0.49 of the rate."""
    share, clock = 0.8 * 0.25 / 0.49, 0.25 / 0.8 / 0.49
    pins = build_memory(memory(), budgets(), given(area=100.0, power=2 * 96.0 * share, perimeter=100.0), memory_system())
    assert pins.level.bandwidth[0] == near(48 * clock)
    assert pins.level.energy[0] == near(2.0 * 0.64)
    lanes = build_links("intra_link", link(maximum_links=4.0), given(area=100.0, power=20.0 * share, perimeter=100.0), None)
    assert (lanes.lanes[0], lanes.port.bandwidth[0], lanes.port.energy[0]) == (4.0, near(40 * clock), near(0.5 * 0.64))


def test_what_a_chip_may_draw_beside_what_is_static():
    """Of 100 W, 30 W flow always, 10 W of them leak in the units at their voltage and fall with it."""

    def found(power=100, peak=200, stacked=0, voltage=0.7, clock=None, own=None, memory=True):
        cores = SimpleNamespace(leakage_power=of(10), point=SimpleNamespace(voltage=of(voltage)), frequency=of(3e9))
        clocks = {"registers": None, "l1": clock, "l2": of(2e9)}
        caches = {name: SimpleNamespace(frequency=each) for name, each in clocks.items()}
        voltages = {} if own is None else {"l2": of(own)}
        parts = SimpleNamespace(
            compute=unit(minimum_voltage=0.6, nominal_frequency=1e9), on_chip=caches, slice_voltages=voltages, memory=memory or None
        )
        return _throttle(parts, cores, SimpleNamespace(power=of(power), peak_power=peak and of(peak)), of(30), of(stacked))

    assert {name: value and float(value[0]) for name, value in vars(found()).items()} == {
        "power": 80.0, "leakage": 10.0, "voltage": 0.7, "threshold": 0.3, "minimum": 0.6, "nominal": 1.0, "faster": 1.5, "own": (),
    }  # fmt: skip
    assert found(own=0.8).faster[0] == 3.0  # of the unit's clock: the only cache with one in the library has its own
    assert [(one.level, one.voltage[0], one.faster[0]) for one in found(own=0.8).own] == [(2, 0.8, 1.5)]
    assert found(own=0.8, memory=False).own == ()  # the farthest level is main memory then, which keeps its voltage
    assert found(clock=of(1.5e9)).faster[0] == 2.0
    assert found(voltage=0.5).minimum[0] == 0.5
    assert found(power=10).power[0] == 0.0
    assert found(peak=None) is None
    assert found(peak=None, stacked=1) is not None


@pytest.mark.parametrize("voltage", [0.8, 1.0, 1.2])
def test_the_sustained_clock_of_a_published_device_draws_its_limit(voltage):
    """The voltage is that of the reference unit over its nominal one, and no higher; the clock goes on."""
    known, compute = system("a100-80gb"), unit(leakage=0.0)
    known = known.model_copy(update={"energy": known.energy.model_copy(update={"flop": of(1e-12)})})
    nominal = 1e14 * 1e-12 * known.execution.chip_power[0]
    idle = 0.0 if known.power.idle is None else known.power.idle[0]
    tdp = idle + nominal * voltage * (voltage - 0.3) ** 2 / 0.49
    known = known.model_copy(update={"power": known.power.model_copy(update={"tdp": of(tdp)})})
    clock, at = sustained(known, compute, of(1e14))
    assert clock[0] == near((voltage - 0.3) ** 2 / voltage / 0.49)
    assert at[0] == near(min(voltage, 1.0))


# ------------------------------------------------------------------------------------------ designs that cannot be built


def told(**changes):
    """Sentences of a generated design that cannot be built."""
    return reasons(system("pathfinder", **changes))


def of_part(name, **volts):
    return {"components": {name: {f"{which}_voltage": f"{value} V" for which, value in volts.items()}}}


ORDERS = [
    # threshold, minimum, nominal, maximum, whether they are in order
    (0.3, 0.6, 0.8, 1.0, True), (0.3, 0.8, 0.8, 0.8, True), (0.6, 0.6, 0.8, 1.0, False), (0.3, 0.81, 0.8, 1.0, False),
    (0.3, 0.6, 0.8, 0.79, False), (0.9, 0.6, 0.8, 1.0, False),
]  # fmt: skip


@pytest.mark.parametrize("name", ["compute", "memory", "intra_link", "inter_link"])
def test_voltages_that_are_out_of_order(name):
    sentence = f"the voltages of {name} must satisfy threshold < minimum <= nominal <= maximum"
    for *volts, fine in ORDERS:
        named = dict(zip(("threshold", "minimum", "nominal", "maximum"), volts, strict=True))
        assert (sentence not in told(**of_part(name, **named))) == fine, named


def with_areas(spec, **shares):
    """A design whose shares of the area are changed, as points of a search are."""
    area = spec.budgets.area.model_copy(update={name: of(value) for name, value in shares.items()})
    return spec.model_copy(update={"budgets": spec.budgets.model_copy(update={"area": area})})


def reasons(spec):
    return [sentence for mask, sentence in architecture(spec).problems if mask.any()]


@pytest.mark.parametrize(("units", "fine"), [(1.01, True), (0.99, False)])
def test_less_than_one_unit_is_none(units, fine):
    base = system("pathfinder")
    one = choose_parts(base, load_library(base.techlib), {}).compute.nominal_area[0] / base.budgets.chip_area[0]
    assert ("not one compute unit fits its area and power" not in reasons(with_areas(base, compute=units * one))) == fine


@pytest.mark.parametrize(("compute", "fine"), [(0.25, True), (0.26, False)])
def test_shares_of_a_budget_are_no_more_than_all_of_it(compute, fine):
    base = system("pathfinder")
    spec = with_areas(base, compute=compute, memory=0.125, intra_link=0.125, inter_link=0.125)
    caches = {name: of(0.375 / len(base.levels)) for name in base.levels}
    area = spec.budgets.area.model_copy(update={"on_chip": caches})
    spec = spec.model_copy(update={"budgets": spec.budgets.model_copy(update={"area": area})})
    assert ("the area shares add up to more than 1" not in reasons(spec)) == fine


def test_a_chip_as_large_as_its_node_leaves_no_room_for_memory():
    area = "1000 mm2"
    assert "the chip leaves no package area for memory devices: raise budgets.node_area" in told(
        budgets={"node_area": area, "chip_area": area}
    )
    assert "not one memory device fits its package area, controller area, edge and power" in told(
        budgets={"node_area": "1001 mm2", "chip_area": area}
    )


def test_the_accelerators_of_a_package_share_its_substrate():
    """As many of them as fit its area, and one more."""
    sentence, base = "the accelerators of a package exceed the area of its substrate: lower budgets.node_area", system("pathfinder")
    substrate = choose_parts(base, load_library(base.techlib), {}).substrate.maximum_area[0]
    for share, many, fine in ((0.34, 2, True), (0.34, 3, False), (0.26, 3, True), (0.26, 4, False)):
        area = base.budgets.model_copy(update={"node_area": of(share * substrate), "chip_area": of(0.5 * share * substrate)})
        spec = base.model_copy(update={"budgets": area, "devices_per_node": many, "devices_per_package": many})
        assert (sentence not in reasons(spec)) == fine
