# ruff: noqa: E501  (tables of cases)
"""Components, packages and running costs worked out by hand from round numbers."""

import dataclasses
import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from crossflow.base.files import Document
from crossflow.evidence.validation.tables import device_architecture
from crossflow.hardware.architecture import packaging
from crossflow.hardware.architecture.generator import Allotment, _types_area, build_cores, build_links, build_memory, build_on_chip, tier
from crossflow.hardware.architecture.harvest import spares_of
from crossflow.hardware.architecture.model import Level
from crossflow.hardware.architecture.price import die_cost, die_yield, wafer_area
from crossflow.hardware.architecture.run_cost import facility_power, product, run_cost
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.architecture.template import OperationSpec

near = functools.partial(pytest.approx, rel=1e-12, abs=0.0)


def of(value):
    return np.array([float(value)])


def some(**figures):
    """A thing with figures of one design point; None and words stay as they are."""
    return SimpleNamespace(**{name: of(value) if isinstance(value, int | float) else value for name, value in figures.items()})


def system(template, **changes):
    return resolve(Document(file="system", data={"template": template, **changes}))[0]


# ------------------------------------------------------------------------------------------ systems


def test_devices_follow_from_nodes_and_one_node_is_there():
    base = system("dgx-a100").model_copy(update={"devices": None, "nodes": None, "devices_per_node": 8})
    assert base.device_count == 8
    assert base.model_copy(update={"nodes": 3}).device_count == 24
    assert base.model_copy(update={"devices": 5}).device_count == 5


@pytest.mark.parametrize(("device", "multipliers"), [("v100-sxm2-16gb", 8 * 64), ("a100-80gb", 4 * 256), ("h100-sxm", 4 * 512)])
def test_multipliers_of_a_units_tensor_cores_as_published(device, multipliers):
    """Multiply-accumulates of 16 bits a clock of tensor cores times their number in a unit: white papers of V100, A100 and H100."""
    found = device_architecture(device)
    assert (found.array_height * found.array_width).item() == pytest.approx(multipliers, rel=3e-3)  # 125 Tflop/s are rounded


def test_caches_of_a_device_have_energy_only_where_the_chips_power_is_not_known():
    known = system("a100-80gb")
    assert known.execution.chip_power is not None
    alone = known.model_copy(update={"execution": known.execution.model_copy(update={"chip_power": None})})
    assert [level.energy[0] > 0 for level in architecture(alone).levels] == [True] * len(architecture(alone).levels)
    assert [level.energy[0] > 0 for level in architecture(known).levels] == [False] * (len(architecture(known).levels) - 1) + [True]


# ------------------------------------------------------------------------------------------ components, Sec. 4.4


def linear(**figures):
    """Voltages of a component, between which it runs at its nominal point on its nominal power."""
    return {"nominal_voltage": 1.0, "threshold_voltage": 0.3, "minimum_voltage": 0.6, "maximum_voltage": 1.2, **figures}


def given(area=1.0, power=1.0, perimeter=1.0):
    return Allotment(area=of(area), power=of(power), perimeter=of(perimeter))


def test_cores_at_their_nominal_point():
    """Twelve units of 2 mm2 and 3 W fit 24 mm2 and run on 36 W at 1 GHz, 8 operations a clock; a tenth of it leaks."""
    unit = some(**linear(nominal_area=2e-6, nominal_power=3.0, nominal_frequency=1e9, nominal_flop_rate=8.0, leakage=0.1))
    cores = build_cores(unit, given(area=24e-6, power=36.0), of(4))
    assert cores.mcus[0] == near(12.0)
    assert cores.peak[0] == near(12 * 8 * 1e9)
    assert cores.leakage_power[0] == near(0.1 * 12 * 3.0)
    assert (cores.used.area[0], cores.used.power[0], cores.used.perimeter[0]) == (near(24e-6), near(36.0), 0.0)
    assert cores.limit.name(0) == "area and power"


@pytest.mark.parametrize(("power", "active", "said"), [(400.0, 1.0, 2), (0.36, 0.1, 1)])
def test_cores_between_their_least_and_their_largest_voltage(power, active, said):
    """Without leakage, at 0.6 V: power (0.6 x 0.3^2) / (1 x 0.7^2) of 36 W = 3.967 W for all, of which 0.36 W feeds a part; and at 1.2 V."""
    unit = some(**linear(nominal_area=2e-6, nominal_power=3.0, nominal_frequency=1e9, nominal_flop_rate=8.0, leakage=0.0))
    cores = build_cores(unit, given(area=24e-6, power=power), of(4))
    voltage = 0.6 if power < 1 else 1.2
    needed = 36.0 * voltage * (voltage - 0.3) ** 2 / 0.49
    assert cores.point.voltage[0] == voltage
    assert cores.mcus[0] == near(12.0 * min(1.0, power / needed))
    assert cores.frequency[0] == near(1e9 * (voltage - 0.3) ** 2 / voltage / 0.49)
    assert cores.used.power[0] == near(min(power, needed))
    assert cores.limit.code[0] == said


def on_chip(**changes):
    """Slices of 1 mm2 that read 64 B at 1 GHz; 10 mm2 a byte with a fifth of overhead; 2 W leak a byte; an access of a byte takes 4 J."""
    figures = {
        "logic_area": 1.0, "area_per_bit": 8.0, "area_overhead": 0.2, "static_power_per_bit": 2.0, "energy_per_bit": 4.0, "slice_width": 64.0,
        "frequency": 1.0, "latency": 3.0, "wire_latency": 5.0, "wire_length": 7.0,
    }  # fmt: skip
    return some(**figures | changes)


def on_chip_level(scope="global", slices=2.0, static_share=0.5, utilisation=0.25):
    return some(scope=scope, slices=slices, static_share=static_share, utilisation=utilisation, stacked_area=0.0)


def test_an_on_chip_memory_bound_by_its_area():
    """Of 102, two slices take 2, and 100 hold ten bytes, which leak 20 W; of 1000 W 500 feed 125 B/s, as far as 128 go."""
    found = build_on_chip("l2", on_chip_level(), on_chip(), given(area=102.0, power=1000.0), of(5))
    assert (found.level.capacity[0], found.level.instances[0], found.static_power[0]) == (near(10.0), 1.0, near(20.0))
    assert (found.level.bandwidth[0], found.level.latency[0], found.level.energy[0]) == (near(125 * 0.25), 3 + 5 * 7, 4.0)
    assert (found.used.area[0], found.used.power[0]) == (near(102.0), near(20 + 125 * 4))
    assert found.limit.name(0) == "capacity by area, bandwidth by power"


def test_an_on_chip_memory_bound_by_leakage_and_by_slices():
    """Half of 16 W carries four bytes; with accesses of 0.01 J the rest would feed 800 B/s, and two slices read 128."""
    found = build_on_chip("l2", on_chip_level(), on_chip(energy_per_bit=0.01), given(area=102.0, power=16.0), of(5))
    assert (found.level.capacity[0], found.level.bandwidth[0]) == (near(4.0), near(128 * 0.25))
    assert (found.used.area[0], found.used.power[0]) == (near(2 + 100 * 4 / 10), near(8 + 128 * 0.01))
    assert found.limit.name(0) == "capacity by leakage, bandwidth by slices"


def test_an_on_chip_memory_of_every_bundle_has_slices_of_its_own():
    """Five bundles of two slices take 10 of 110; where there is room for 9.5 only, a twentieth is left for bits."""
    found = build_on_chip("l1", on_chip_level("bundle"), on_chip(), given(area=110.0, power=1000.0), of(5))
    assert (found.level.capacity[0], found.level.instances[0]) == (near(10.0 / 5), 5.0)
    tight = build_on_chip("l1", on_chip_level("bundle"), on_chip(), given(area=10.0, power=1000.0), of(5))
    assert tight.level.capacity[0] == near(0.5 / 10 / 5)


def memory(**changes):
    """Devices of 4 m2 and 10 B with 8 pins at 16 Hz, so 16 B/s; 1 W idle a byte; 2 J an access of a byte; controllers of 3 m2."""
    figures = linear(
        on_logic=False, device_area=4.0, devices_per_area=None, controller_area=3.0, links_per_mm=2.0, links_per_device=8.0, device_capacity=10.0,
        static_power_per_bit=1.0, nominal_frequency=16.0, access_energy=2.0, access_latency=7.0,
    )  # fmt: skip
    return some(**figures | changes)


def budgets(**changes):
    return some(**{"node_area": 113.0, "chip_area": 100.0, "chiplets": 1.0, "power": 50.0} | changes)


def memory_system(utilisation=1.0):
    """A template whose memory may leak half of its power; nothing stands on its chip."""
    return some(memory_static_share=0.5, memory_utilisation=utilisation, first_room=1.0, levels={})


def mounted(devices):
    """Memory devices beside the compute dies, and no dies on them."""
    return packaging.Mounted(devices=of(devices), stacked=(), vias_area=of(0))


def test_memory_devices_that_the_package_holds():
    """13 m2 beside the chip hold three of 4 m2: 24 pins, 48 B/s on 96 W, beside 30 W idle."""
    found = build_memory(memory(), budgets(), given(area=100.0, power=126.0 / 0.5, perimeter=100.0), memory_system(0.8))
    assert (found.level.capacity[0], found.static_power[0]) == (near(30.0), near(30.0))
    assert found.used.area[0] == near(9.0)
    assert found.used.perimeter[0] == near(24 / 2)
    exact = build_memory(memory(), budgets(), given(area=100.0, power=192.0, perimeter=100.0), memory_system(0.8))
    assert (exact.level.bandwidth[0], exact.level.energy[0], exact.level.latency[0]) == (near(48 * 0.8), near(2.0), 7.0)
    assert exact.used.power[0] == near(30 + 96)
    assert exact.limit.name(0) == "package area"


LIMITS = [
    # area, perimeter, power, what changes, devices, capacity, what is said
    (6.0, 100.0, 1000.0, {}, 2, 20, "controller area"),
    (100.0, 4.0, 1000.0, {}, 1, 10, "perimeter"),
    (100.0, 100.0, 1000.0, {"devices_per_area": 0.02}, 2, 20, "package area"),
    (100.0, 100.0, 40.0, {}, 3, 20, "package area; idle power bounds their capacity; power slows its pins"),
]


@pytest.mark.parametrize(("area", "perimeter", "power", "changes", "devices", "capacity", "said"), LIMITS)
def test_what_bounds_memory_devices(area, perimeter, power, changes, devices, capacity, said):
    found = build_memory(memory(**changes), budgets(), given(area=area, power=power, perimeter=perimeter), memory_system())
    assert found.used.area[0] == near(3.0 * devices)
    assert found.level.capacity[0] == near(capacity)
    assert found.limit.name(0) == said


def link(**changes):
    figures = linear(
        links_per_mm=4.0,
        maximum_links=None,
        area_per_link=2.0,
        nominal_frequency=80.0,
        nominal_energy_per_bit=0.5,
        latency=3.0,
        link_cost=1.0,
    )
    return some(**figures | changes)


LANES = [
    # area, edge, wiring of the substrate, what changes, lanes, what is said: 10 B/s and 5 W a lane
    (20.0, 100.0, None, {}, 10, "area"),
    (100.0, 3.0, None, {}, 12, "perimeter"),
    (100.0, 3.0, 2.0, {}, 6, "perimeter"),
    (100.0, 100.0, None, {"maximum_links": 7.0}, 7, "the standard's port"),
]


@pytest.mark.parametrize(("area", "edge", "wiring", "changes", "lanes", "said"), LANES)
def test_lanes_of_a_port_by_hand(area, edge, wiring, changes, lanes, said):
    found = build_links(
        "intra_link", link(**changes), given(area=area, power=5.0 * lanes, perimeter=edge), None if wiring is None else of(wiring)
    )
    assert (found.lanes[0], found.port.bandwidth[0], found.port.energy[0], found.port.latency[0]) == (
        lanes,
        near(10.0 * lanes),
        near(0.5),
        3.0,
    )
    assert (found.used.area[0], found.used.power[0]) == (2.0 * lanes, near(5.0 * lanes))
    assert found.used.perimeter[0] == near(lanes / min(4.0, wiring or 4.0))
    assert found.limit.name(0) == said


# ------------------------------------------------------------------------------------------ dies and packages


@pytest.mark.parametrize(("way", "staged"), [("staged", 1.0), ("direct", 0.0)])
def test_writes_of_a_second_memory_are_a_quarter_as_fast_and_take_three_times_the_energy(way, staged):
    built = SimpleNamespace(level=some(capacity=100.0, bandwidth=8.0, latency=2.0, energy=5.0))
    memory = some(write_rate=0.25, write_energy=3.0, page=64.0, endurance=1e6)
    found = tier(built, memory, SimpleNamespace(second_memory=SimpleNamespace(way=way)))
    assert (found.bandwidth[0], found.write_bandwidth[0]) == (8.0, 2.0)
    assert (found.energy[0], found.write_energy[0]) == (5.0, 15.0)
    assert (found.capacity[0], found.latency[0], found.page[0], found.endurance[0], found.staged[0]) == (100.0, 2.0, 64.0, 1e6, staged)
    assert tier(None, memory, None) is None


@pytest.mark.parametrize(("harvest", "area"), [(0.0, 20.0), (0.25, 25.0)])
def test_area_of_further_types_by_hand(harvest, area):
    """Units of 120 that are 1.2 times what they were have 20 for further types; of dark bundles a quarter as much again."""
    system = SimpleNamespace(harvest=of(harvest), levels={})
    assert _types_area(system, some(larger=1.2), SimpleNamespace(used=some(area=120.0)))[0] == near(area)
    both = _types_area(system, SimpleNamespace(larger=np.array([1.0, 1.2])), SimpleNamespace(used=some(area=120.0)))
    assert both.tolist() == [0.0, near(area)]
    assert _types_area(system, some(larger=1.0), SimpleNamespace(used=some(area=120.0))) is None


def test_bundles_that_may_be_broken_by_hand():
    """Of 80 bundles that work 40 lie on each of two dies, and a quarter as many more; 0.3 and 0.1 of a die are theirs."""
    areas = {"compute": of(0.3), "l1": of(0.1), "l2": of(0.2)}
    levels = {"l1": SimpleNamespace(scope="bundle"), "l2": SimpleNamespace(scope="chip")}
    budgets = SimpleNamespace(chiplets=of(2.0), area=SimpleNamespace(of=areas.get))
    found, none = (spares_of(SimpleNamespace(harvest=of(share), bundles=of(80.0), levels=levels, budgets=budgets)) for share in (0.25, 0.0))
    assert (found.area[0], found.bundles[0], found.broken[0]) == (near(0.4), 50.0, 10.0)
    assert none is None


def test_dies_of_a_wafer_by_hand():
    """De Vries 2005: 1 cm2 with 0.2 mm of scribe lines on a wafer of 300 mm with 5 mm of rim; (1 + 0.3 / 3)^-3 of them work."""
    cut = (1.0 + 0.02) ** 2  # cm2
    dies = math.pi * 14.5**2 / cut - 2 * math.pi * 14.5 / math.sqrt(2 * cut)
    area = math.pi * 15.0**2 / dies * 1.1**3
    assert die_yield(of(1e-4), of(3000.0))[0] == near(1.1**-3)
    assert wafer_area(of(1e-4), of(3000.0))[0] == near(area * 1e-4)
    assert wafer_area(of(0.05), of(0.0))[0] == near(math.pi * 0.15**2)  # one die at least
    assert die_cost(of(1e-4), some(wafer_cost=2.0, defect_density=3000.0))[0] == near(2 * area * 1e-4)
    assert die_cost(of(1e-4), some(wafer_cost=None, defect_density=3000.0)) is None


def made(spare_share=0.0, bonding=0.5, **changes):
    substrate = some(
        bonding_yield=bonding, maximum_area=1130.0, spare_share=spare_share, cost_per_area=2.0, assembly_cost=6.0, device_cost=5.0
    )
    figures = {
        "bond": some(bonding_yield=0.9),
        "node": some(wafer_cost=None, defect_density=None, carbon_per_area=3.0),
        "memory": memory(),
        "second_memory": None,
        "substrate": substrate,
        "spares": None,
    }
    return SimpleNamespace(**figures | changes)


def test_a_package_without_spares_is_good_where_all_are():
    """A chip and two stacks mounted with 1/2 each: one of two accelerators is good with 1/8, both with 1/64."""
    price, begun = packaging.good_package(made(), budgets(), 2, mounted(2), of(10.0), of(6.0))
    assert (price[0], begun[0]) == (near((2 * 10 + 6) / (2 / 64)), near(2 / (2 / 64)))


def test_a_spare_stands_by_where_that_is_cheaper():
    """One accelerator, one spare, mounted with 1/2 (no stacks): good with 3/4 for two, with 1/2 for one."""
    price, begun = packaging.good_package(made(spare_share=1.0), budgets(), 1, mounted(0), of(1.0), of(20.0))
    assert (price[0], begun[0]) == (near((2 * 1 + 20) / 0.75), near(2 / 0.75))
    price, begun = packaging.good_package(made(spare_share=1.0), budgets(), 1, mounted(0), of(20.0), of(0.0))
    assert (price[0], begun[0]) == (near(20 / 0.5), near(1 / 0.5))


def test_spares_need_room():
    """A substrate for ten of 113 holds no spare of ten."""
    price, _ = packaging.good_package(made(spare_share=1.0), budgets(), 10, mounted(0), of(1.0), of(0.0))
    assert price[0] == near(10 / (10 * 0.5**10))


def test_a_bill_by_hand():
    """Two dies, three stacks of 7; a package of 113 m2 at 2; assembly of 6 among four; what mounting breaks on top."""
    node = some(wafer_cost=2.0, defect_density=0.0)
    parts = made(node=node, memory=memory(device_cost=7.0), bonding=1.0)
    chosen = budgets(chip_area=1e-4, chiplets=2.0)
    cost, begun = packaging.bill(parts, chosen, 4, mounted(3))
    dies = 2 * die_cost(of(0.5e-4), node)[0]
    assert {name: amount[0] for name, amount in cost.items() if name != "loss"} == {
        "chip": near(dies), "memory": 21.0, "package": 226.0, "assembly": 6 / 4 + 5,
    }  # fmt: skip
    assert cost["loss"][0] == pytest.approx(0.0, abs=1e-9)
    assert begun[0] == 1.0
    broken, begun = packaging.bill(made(node=node, memory=memory(device_cost=7.0)), chosen, 1, mounted(1))
    once = dies + 7 + 226 + 5
    assert broken["loss"][0] == near((once + 6) / 0.5**3 - once - 6)
    assert begun[0] == near(8.0)


def test_carbon_of_a_chip_and_its_memory_by_hand():
    node = some(carbon_per_area=3.0, defect_density=3000.0)
    parts = SimpleNamespace(node=node, memory=memory(carbon_per_capacity=0.5), second_memory=None, spares=None)
    found = packaging.embodied(parts, budgets(chip_area=2e-4, chiplets=2.0), mounted(4), of(1.25))
    wafer, stacks = 3 * 2 * wafer_area(of(1e-4), of(3000.0))[0], 4 * 10 * 0.5
    assert {name: amount[0] for name, amount in found.items()} == {
        "chip": near(3 * 2e-4), "yield_loss": near(wafer - 3 * 2e-4), "memory": stacks, "loss": near(0.25 * (wafer + stacks)),
    }  # fmt: skip


def test_a_cache_that_two_dies_share_pays_for_half_of_its_accesses():
    """A link of 0.5 J/B and 3 s: 4 J/B become 4.25, so that the same power feeds 4 / 4.25 as much; its lanes carry 10 B/s each.

    Slices that deliver less than what is fed then are not slowed.
    """
    level = Level(name="l2", scope="global", capacity=of(1), instances=of(1), bandwidth=of(17.0), latency=of(2.0), energy=of(4.0))
    parts = SimpleNamespace(die_link=link(), substrate=some(links_per_mm=1e3))
    (seen, last), ports = packaging.across_dies((level, level), (of(17.0), of(17.0)), parts, budgets(chiplets=2.0))
    assert (seen.energy[0], seen.latency[0], seen.bandwidth[0]) == (4.25, 3.5, near(17 * 4 / 4.25))
    assert last is level
    assert ports[0] == 2.0  # one lane of 10 B/s carries half of 16
    (sliced, _), _ = packaging.across_dies((level, level), (of(18.0), of(17.0)), parts, budgets(chiplets=2.0))
    assert sliced.bandwidth[0] == near(18 * 4 / 4.25)
    (sliced, _), _ = packaging.across_dies((level, level), (of(19.0), of(17.0)), parts, budgets(chiplets=2.0))
    assert sliced.bandwidth[0] == 17.0
    narrow = SimpleNamespace(die_link=link(links_per_mm=0.07), substrate=some(links_per_mm=1e3))
    fast = dataclasses.replace(level, bandwidth=of(34.0))
    (seen, _), _ = packaging.across_dies((fast, level), (of(34.0), of(17.0)), narrow, budgets(chiplets=2.0))
    assert seen.bandwidth[0] == near(10 / 0.5)  # an inner edge of 4 x 10 x 0.414 has one lane, of 20 B/s by both halves
    (alone, _), ports = packaging.across_dies((level, level), (of(17.0), of(17.0)), parts, budgets())
    assert (alone.energy[0], alone.latency[0], alone.bandwidth[0], ports[0]) == (4.0, 2.0, 17.0, 0.0)


# ------------------------------------------------------------------------------------------ runs


def test_power_from_the_grid_by_hand():
    """400 W, an eighth of 1600 W, and a quarter more for the data centre."""
    operation = OperationSpec(device_power=of(400), host_power=of(1600), pue=of(1.25))
    assert facility_power(operation, 8)[0] == near((400 + 200) * 1.25)
    assert facility_power(OperationSpec(device_power=of(400)), 8)[0] == 400.0
    assert np.isnan(facility_power(OperationSpec(host_power=of(1600)), 8)[0])


def test_a_run_by_hand():
    """1000 tokens, 10 a step of 3 s on 4 devices of twice the reference's rate; 2 USD a device-second; 5 J a step."""
    operation = OperationSpec(device_power=of(400), host_power=of(1600), pue=of(1.25), price=of(2.0))
    run = run_cost(
        amount=1000.0,
        per_step=10.0,
        step_time=3.0,
        devices=4,
        operation=operation,
        devices_per_node=8,
        step_energy=5.0,
        peak=2.0,
        reference=1.0,
    )
    assert (run.steps[0], run.time[0], run.device_time[0], run.normalised_device_time[0]) == (100.0, 300.0, 1200.0, 2400.0)
    assert (run.price[0], run.device_energy[0], run.facility_energy[0]) == (2400.0, 500.0, 1200.0 * 750.0)
    assert (run.days[0], run.device_hours[0], run.normalised_device_hours[0]) == (near(300 / 86400), near(1 / 3), near(2 / 3))


def test_what_costs_nothing_costs_nothing_for_ever():
    assert product(np.array([np.inf, 2.0]), np.array([0.0, 3.0])).tolist() == [0.0, 6.0]


# ------------------------------------------------------------------------------------------ as published, and what finds no room

SECOND = {
    "capacity": "480 GB", "bandwidth": "450 GB/s", "write_bandwidth": "100 GB/s", "utilisation": 0.8, "latency": "2 us",
    "energy": "1 pJ/bit", "write_energy": "3 pJ/bit", "page": "4 KiB", "endurance": 1e5, "way": "direct",
}  # fmt: skip


def second_memory(**changes):
    given = {name: value for name, value in {**SECOND, **changes}.items() if value is not None}
    found = architecture(resolve(Document(file="test", data={"template": "a100-80gb", "second_memory": given}))[0]).second
    return {field.name: np.ravel(getattr(found, field.name)).tolist() for field in dataclasses.fields(found)}


def test_a_second_memory_as_published():
    """Rates are reached to a share; writes are as reads where nothing is said of them, and cells then do not wear out."""
    assert second_memory() == {
        "capacity": [480e9], "bandwidth": [0.8 * 450e9], "write_bandwidth": [0.8 * 100e9], "latency": [2e-6], "energy": [8e-12],
        "write_energy": [24e-12], "page": [4096.0], "endurance": [1e5], "staged": [0.0],
    }  # fmt: skip
    plain = second_memory(**dict.fromkeys(("write_bandwidth", "write_energy", "utilisation", "latency", "page", "endurance", "way")))
    assert plain == {
        "capacity": [480e9], "bandwidth": [450e9], "write_bandwidth": [450e9], "latency": [1e-6], "energy": [8e-12],
        "write_energy": [8e-12], "page": [1.0], "endurance": [np.inf], "staged": [1.0],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ports", "vias", "told"),
    [(0.4, 0.0, ""), (0.41, 0.0, "links"), (0.0, 0.4, ""), (0.2, 0.21, "vias"), (0.41, 0.01, "links vias"), (0.0, 0.0, "")],
)
def test_ports_and_vias_may_take_all_that_the_shares_leave(ports, vias, told):
    """Shares of 0.4 and 0.2 leave as much, but for the last digit of their sum; shares that leave nothing are told where there is any."""
    shares = {"compute": 0.4, "memory": None, "second_memory": None, "intra_link": None, "inter_link": None}

    def found(cache, *areas):
        budgets = SimpleNamespace(area=SimpleNamespace(**shares, on_chip={"l2": np.array([cache])}), chip_area=np.full(1, 2.0))
        return packaging._roomless(budgets, *areas)

    sentences = [sentence for _, sentence in found(0.2, np.array([0.0, 2.0 * ports]), np.array([0.0, 2.0 * vias]))]
    assert " ".join("links" if "links between its dies" in sentence else "vias" for sentence in sentences) == told
    assert found(0.7, np.zeros(1), np.zeros(1)) == ()
