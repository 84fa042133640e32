"""The generator: published devices, budgets that hold, and each equation of Sec. 4.4 by hand."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from crossflow.base.paths import with_quantity
from crossflow.base.units import parse
from crossflow.hardware.architecture.generator import Allotment, build_cores, build_links, build_memory, build_on_chip, whole
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.architecture.template import OnChipLevel
from crossflow.hardware.technology.library import Choice

ONE = np.ones(1)
LOGIC = ["N16", "N12", "N10", "N7", "N5", "N3", "N2", "N1"]
MEMORY = ["HBM2", "HBM2e", "HBM3", "HBM3e", "HBM4", "GDDR6", "LPDDR5X", "DDR5"]
LINK = ["NDR-x8", "XDR-x8", "GDR-x8", "NVLink4", "PCIe5", "inter-2021", "EDR"]
UNIT = ["matrix-unit-8x8", "volta-tensor-core", "pascal-core"]
QUANTITIES = {
    "budgets.power": (50.0, 1000.0),
    "budgets.chip_area": (100e-6, 900e-6),
    "budgets.node_area": (950e-6, 2800e-6),
    "budgets.area.compute": (0.02, 0.5),
    "budgets.area.on_chip.registers": (0.01, 0.12),
    "budgets.area.on_chip.l1": (0.01, 0.12),
    "budgets.area.on_chip.l2": (0.02, 0.14),
    "budgets.area.memory": (0.01, 0.06),
    "budgets.area.inter_link": (0.001, 0.05),
    "budgets.power_shares.compute": (0.005, 0.5),
    "budgets.power_shares.on_chip.registers": (0.001, 0.1),
    "budgets.power_shares.on_chip.l1": (0.001, 0.1),
    "budgets.power_shares.on_chip.l2": (0.001, 0.1),
    "budgets.power_shares.memory": (0.001, 0.15),
    "budgets.power_shares.inter_link": (0.0001, 0.05),
    "budgets.perimeter.memory": (0.05, 0.6),
    "budgets.perimeter.inter_link": (0.01, 0.4),
    "bundles": (1.0, 200.0),
    "levels.l2.stacked_area": (0.0, 300e-6),
}


def allot(area=0.0, power=0.0, perimeter=0.0):
    return Allotment(area=np.array([area]), power=np.array([power]), perimeter=np.array([perimeter]))


def changed(system, values):
    for path, value in values.items():
        system = with_quantity(system, path.split("."), np.atleast_1d(value))
    return system


def random_designs(seed, n):
    rng = np.random.default_rng(seed)
    values = {path: rng.uniform(*limits, n) for path, limits in QUANTITIES.items()}
    values["bundles"] = np.floor(values["bundles"])
    names = {"logic": LOGIC, "memory": MEMORY, "inter_link": LINK, "compute": UNIT}
    return values, {role: [str(name) for name in rng.choice(known, n)] for role, known in names.items()}


def chosen(names):
    return {role: Choice.of(picked) for role, picked in names.items()}


def used(device, resource):
    return sum(use.used for use in device.usage if use.resource == resource)


def outward(device):
    """Bandwidth out of the package; a device without lanes has no port."""
    return np.zeros(1) if device.inter is None else device.inter.bandwidth


@pytest.fixture(scope="module")
def system(gemm):
    return gemm("pathfinder").system


# ------------------------------------------------------------------------------------------ published devices


def test_v100_lands_on_its_datasheet(v100):
    """NVIDIA WP-08608: 125 Tflop/s, 900 GB/s, 16 GB, 6 MiB L2, 80 SM, 300 W; within 5 % (design.md, section 3)."""
    assert v100.throughput["fp16"][0] == pytest.approx(125e12, rel=0.05)
    assert v100.throughput["fp32"][0] == pytest.approx(15.7e12, rel=0.05)
    assert v100.memory.bandwidth[0] == pytest.approx(900e9, rel=0.05)
    assert v100.memory.capacity[0] == 16 * 2**30
    assert v100.level("l2").capacity[0] == pytest.approx(6 * 2**20, rel=0.05)
    assert v100.units[0] == 80
    assert v100.maximum_power[0] == 300


def test_p4_lands_on_its_datasheet(p4):
    """NVIDIA Tesla P4: 5.5 Tflop/s fp32, 22 Top/s int8, 192 GB/s, 8 GB, 20 SM; within 5 %."""
    assert p4.throughput["fp32"][0] == pytest.approx(5.5e12, rel=0.05)
    assert p4.throughput["int8"][0] == pytest.approx(22e12, rel=0.05)
    assert p4.memory.bandwidth[0] == pytest.approx(192e9, rel=0.05)
    assert p4.memory.capacity[0] == 8 * 2**30
    assert p4.units[0] == 20


def test_v100_has_the_figures_of_the_papers_code(v100):
    """deepflow.md 1.3: the L2 of 2.307 TB/s at 45 %, L1 30.03 TB/s and 10 MiB, registers 103.0 TB/s and 20.03 MiB."""
    levels = {level.name: (level.bandwidth[0], (level.capacity * level.instances)[0] / 2**20) for level in v100.levels}
    assert levels["l2"] == pytest.approx((2.307e12 * 0.45, 6), rel=4e-3)
    assert levels["l1"] == pytest.approx((30.03e12, 10), rel=2e-3)
    assert levels["registers"] == pytest.approx((103.0e12, 20.03), rel=2e-3)
    assert v100.inter.bandwidth[0] == pytest.approx(51.6e9 / 0.96, rel=2e-3)


# ------------------------------------------------------------------------------------------ laws


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_no_design_uses_more_than_its_budgets(system, seed):
    """Every share, and the whole chip, in power, area and perimeter."""
    values, names = random_designs(seed, 64)
    device = architecture(changed(system, values), choices=chosen(names))
    for use in device.usage:
        assert (use.used <= use.budget * (1 + 1e-12)).all(), (use.resource, use.component)
        assert (use.used >= 0).all()
    assert (used(device, "power") <= values["budgets.power"] * (1 + 1e-9)).all()
    assert (used(device, "area") <= values["budgets.chip_area"] * (1 + 1e-9)).all()
    assert (used(device, "perimeter") <= 4 * np.sqrt(values["budgets.chip_area"]) * (1 + 1e-9)).all()


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_a_batch_is_its_designs_one_by_one(system, seed):
    values, names = random_designs(seed, 12)
    batch = architecture(changed(system, values), choices=chosen(names))
    for i in range(12):
        one = architecture(
            changed(system, {path: value[[i]] for path, value in values.items()}),
            choices=chosen({role: [name[i]] for role, name in names.items()}),
        )
        for some, alone in (
            (batch.throughput["fp16"], one.throughput["fp16"]),
            (batch.static_power, one.static_power),
            (outward(batch), outward(one)),
        ):
            assert np.broadcast_to(some, 12)[i] == alone[0]
        for some, alone in zip(batch.levels, one.levels, strict=True):
            assert np.broadcast_to(some.bandwidth, 12)[i] == alone.bandwidth[0]
            assert np.broadcast_to(some.capacity * some.instances, 12)[i] == (alone.capacity * alone.instances)[0]


RESULTS = {
    "budgets.area.compute": lambda device: device.mcus,
    "budgets.power_shares.compute": lambda device: device.throughput["fp16"],
    "budgets.power_shares.on_chip.l2": lambda device: device.level("l2").bandwidth,
    "budgets.power_shares.on_chip.l1": lambda device: device.level("l1").bandwidth,
    "budgets.area.on_chip.l2": lambda device: device.level("l2").capacity,
    "budgets.area.on_chip.l1": lambda device: device.level("l1").capacity,
    "budgets.area.memory": lambda device: device.memory.capacity,
    "budgets.power_shares.memory": lambda device: device.memory.bandwidth,
    "budgets.perimeter.memory": lambda device: device.memory.capacity,
    "budgets.node_area": lambda device: device.memory.capacity,
    "budgets.power_shares.inter_link": outward,
    "budgets.area.inter_link": outward,
    "budgets.perimeter.inter_link": outward,
}


@pytest.mark.cases(9)
@pytest.mark.parametrize("path", RESULTS)
@pytest.mark.parametrize("seed", range(4))
def test_a_larger_share_never_gives_its_component_less(system, path, seed):
    """At equal rest."""
    values, names = random_designs(seed, 1)
    sweep = np.linspace(*QUANTITIES[path], 400)
    device = architecture(changed(system, {**values, path: sweep}), choices=chosen(names))
    result = np.broadcast_to(RESULTS[path](device), 400)
    assert (np.diff(result) >= -1e-9 * result[1:]).all()


@pytest.mark.parametrize(("logic", "steps"), list(zip(LOGIC, range(-1, 7), strict=True)))
def test_nodes_scale_the_number_of_mcus_and_their_power_exactly(system, paper, logic, steps):
    """Sec. 9: at equal area 1.8 times the MCUs a step, each with 1/1.3 of the power; the bundles stay, and each gets wider."""
    device = architecture(system, choices=chosen({"logic": [logic]}))
    area = next(use.used[0] for use in device.usage if (use.component, use.resource) == ("compute", "area"))
    assert area == pytest.approx(0.35 * 850e-6, rel=1e-12)
    assert device.mcus[0] == pytest.approx(0.35 * 850e-6 * 1.8**steps / 0.38e-6, rel=1e-12) or "dark" in device.limits[0].name(0)
    assert device.units[0] == 96
    unit = paper.scale(paper.compute["matrix-unit-8x8"], Choice.of([logic]))
    assert unit.nominal_power[0] * 1.3**steps == pytest.approx(0.13, rel=1e-14)


@pytest.mark.parametrize(("role", "names"), [("memory", ["HBM2", "HBM2e", "HBM3", "HBM4"]), ("inter_link", ["NDR-x8", "XDR-x8", "GDR-x8"])])
def test_generations_of_memory_and_network_give_more_bandwidth(system, role, names):
    device = architecture(system, choices=chosen({role: names}))
    bandwidth = device.memory.bandwidth if role == "memory" else device.inter.bandwidth
    assert (np.diff(bandwidth) > 0).all()


# ------------------------------------------------------------------------------------------ the equations of Sec. 4.4


def test_throughput_is_eq_1(standard):
    """N x flop x f_op / f_nominal; at nominal power the units run at nominal frequency."""
    unit = standard.compute["volta-tensor-core"]
    cores = build_cores(unit, allot(area=100 * 0.38e-6, power=100 * 0.13), np.array([10.0]))
    assert cores.mcus[0] == pytest.approx(100, rel=1e-12)
    assert cores.bundles[0] == 10
    assert cores.peak[0] == pytest.approx(100 * 128 * 1.33e9, rel=1e-12)
    assert cores.used.area[0] == pytest.approx(100 * 0.38e-6, rel=1e-12)


def test_more_mcus_widen_the_bundles_and_dark_ones_do_not_count(standard):
    unit = standard.compute["volta-tensor-core"]
    wide = build_cores(unit, allot(area=107 * 0.38e-6, power=50.0), np.array([10.0]))
    assert (wide.bundles[0], wide.mcus[0]) == (10, pytest.approx(107, rel=1e-12))
    dark = build_cores(unit, allot(area=100 * 0.38e-6, power=1.0), np.array([10.0]))
    at_minimum = 0.13 * 0.55 * 0.35**2 / (0.8 * 0.6**2)  # one MCU at 0.55 V
    assert (dark.bundles[0], dark.mcus[0]) == (10, pytest.approx(1.0 / at_minimum, rel=1e-9))
    assert dark.used.power[0] == pytest.approx(1.0, rel=1e-9)


def test_units_that_leak_stay_dark_below_the_voltage_of_least_energy(standard):
    """With half the power leaking, more area at 0.55 V would take more energy per operation than at the frugal voltage."""
    unit = standard.compute["volta-tensor-core"].model_copy(update={"leakage": np.array([0.5])})
    peaks = [build_cores(unit, allot(area=mm2 * 1e-6, power=1.0), np.array([10.0])).peak[0] for mm2 in (3.0, 10.0, 40.0)]
    assert peaks[0] < peaks[1] == pytest.approx(peaks[2], rel=1e-12)


def test_leakage_is_part_of_the_power_but_not_of_the_energy_per_operation(system):
    device = architecture(system)
    volts = device.voltage[0]
    leaking = 0.05 * device.mcus[0] * 0.13 * volts / 0.8
    power = next(use.used[0] for use in device.usage if (use.component, use.resource) == ("compute", "power"))
    assert device.energy_per_flop["fp16"][0] * device.throughput["fp16"][0] == pytest.approx(power - leaking, rel=1e-9)


def level(scope="global", utilisation=1.0, slices=1.0, static_share=0.05):
    values = {"utilisation": utilisation, "slices": slices, "static_share": static_share}
    return OnChipLevel(component="l2", scope=scope, **{name: np.array([value]) for name, value in values.items()})


def changed_part(part, **values):
    return part.model_copy(update={name: np.array([value]) for name, value in values.items()})


@pytest.fixture
def sliced(paper):
    """0.1 um2/bit with periphery, 1 mm2 a slice, 64 B a cycle at 1 GHz; 1 pJ/bit and 0.1 pJ/bit/mm over 10 mm and back."""
    return changed_part(
        paper.on_chip["l2"], area_per_bit=0.08e-12 * 8, area_overhead=0.2, slice_area=0.6e-6, port_area=0.4e-6, slice_width=64.0,
        frequency=1e9, dynamic_energy_per_bit=8e-12, wire_energy=8e-10, wire_length=0.01, wire_latency=1e-6,
    )  # fmt: skip


def test_slices_and_bits_share_the_area_and_leakage_is_eq_2(sliced):
    built = build_on_chip("l2", level(slices=4.0), sliced, allot(area=20e-6, power=10.0), ONE)
    assert built.level.capacity[0] * 8 == pytest.approx((20e-6 - 4e-6) / 0.1e-12, rel=1e-12)
    assert built.static_power[0] == pytest.approx(8.4e-12 * 8 * built.level.capacity[0], rel=1e-12)
    assert built.used.area[0] == pytest.approx(20e-6, rel=1e-12)


def test_energy_and_latency_of_a_sliced_memory_grow_with_the_distance(sliced):
    built = build_on_chip("l2", level(slices=4.0), sliced, allot(area=20e-6, power=10.0), ONE)
    assert built.level.energy[0] == pytest.approx(8e-12 * (1 + 0.1 * 10), rel=1e-12)
    assert built.level.latency[0] == pytest.approx(sliced.latency[0] + 10e-9, rel=1e-12)


def test_bandwidth_is_what_slices_deliver_or_power_feeds(sliced):
    """4 x 64 B x 1 GHz, or Eq. 3: what is left of the power over the energy per byte; the rest is left unused."""
    poor, rich = (build_on_chip("l2", level(slices=4.0), sliced, allot(area=20e-6, power=watts), ONE) for watts in (1.0, 10.0))
    assert poor.level.bandwidth[0] == pytest.approx(0.95 / 16e-12, rel=1e-12)
    assert rich.level.bandwidth[0] == pytest.approx(256e9, rel=1e-12)
    assert rich.used.power[0] == pytest.approx(256e9 * 16e-12 + rich.static_power[0], rel=1e-12)
    assert (poor.limit.name(0), rich.limit.name(0)) == ("capacity by area, bandwidth by power", "capacity by area, bandwidth by slices")


def test_capacity_stops_where_leakage_would_eat_the_bandwidth(paper):
    small, large = (build_on_chip("l2", level(), paper.on_chip["l2"], allot(area=mm2 * 1e-6, power=1e-3), ONE) for mm2 in (10.0, 1000.0))
    assert large.static_power[0] == pytest.approx(0.05e-3, rel=1e-9)
    assert large.level.bandwidth[0] == small.level.bandwidth[0] == pytest.approx(0.95e-3 / 8e-12, rel=1e-9)
    assert large.limit.name(0) == "capacity by leakage, bandwidth by power"
    assert large.used.area[0] < 1000e-6


def test_a_small_area_holds_fewer_slices_and_still_bits(sliced):
    built = build_on_chip("l2", level(slices=100.0), sliced, allot(area=20e-6, power=10.0), ONE)
    assert built.level.capacity[0] * 8 == pytest.approx(0.05 * 20e-6 / 0.1e-12, rel=1e-9)
    assert built.used.area[0] == pytest.approx(20e-6, rel=1e-9)


def test_power_that_nothing_can_use_goes_to_compute_where_it_is_shared(system):
    alone, shared = architecture(system), architecture(system.model_copy(update={"shared_power": True}))
    assert shared.throughput["fp16"][0] > 1.1 * alone.throughput["fp16"][0]
    assert used(alone, "power")[0] < used(shared, "power")[0] <= 300 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("node", "controllers", "edge", "devices", "limit"),
    [
        (1260, 100, 100, 4, "package area"),
        (5000, 20, 100, 4, "controller area"),
        (5000, 100, 20, 3, "perimeter"),
        (940, 100, 100, 0, "package area"),
    ],
)
def test_memory_devices_are_eq_4(system, paper, node, controllers, edge, devices, limit):
    """min((node - die) / device area, controller area / controller, edge x links per mm / links per device)."""
    wide = changed(system, {"budgets.node_area": node * 1e-6, "memory_static_share": 0.1})
    given = allot(area=controllers * 1e-6, power=1000.0, perimeter=edge * 1e-3)
    built = build_memory(paper.memory["HBM2"], wide.budgets, given, wide)
    assert built.level.capacity[0] == devices * 8 * 2**30
    assert built.level.bandwidth[0] == pytest.approx(devices * 1024 * 2.0e9 / 8, rel=1e-12)
    assert built.limit.name(0) == limit


def test_memory_power_is_energy_per_bit_at_full_rate_and_no_more(system, paper):
    full = 4 * 1024 * 2.0e9 * 4.2e-12
    static = 0.6e-12 * 4 * 8 * 2**33
    tenth = changed(system, {"memory_static_share": 0.1})
    rich, poor = (
        build_memory(paper.memory["HBM2"], system.budgets, allot(area=1e-3, power=watts, perimeter=1.0), tenth) for watts in (500.0, 5.0)
    )
    assert rich.used.power[0] == pytest.approx(full + static, rel=1e-9)
    assert poor.used.power[0] == pytest.approx(0.9 * 5.0 + static, rel=1e-9)
    assert poor.level.bandwidth[0] < rich.level.bandwidth[0]
    assert poor.limit.name(0) == "package area; power slows its pins"


@pytest.mark.parametrize(
    ("area", "edge", "wiring", "lanes", "limit"),
    [(0.45, 10, None, 10, "area"), (45, 1.0, None, 20, "perimeter"), (45, 1.0, 7, 7, "perimeter")],
)
def test_lanes_are_as_many_as_area_and_edge_allow(area, edge, wiring, lanes, limit):
    from crossflow.hardware.technology.library import load_library

    link = load_library("deepflow-2024").link["inter-2021"]
    wires = None if wiring is None else np.array([wiring * 1e3])
    built = build_links("inter_link", link, allot(area=area * 1e-6, power=1e3, perimeter=edge * 1e-3), wires)
    assert built.port.bandwidth[0] == pytest.approx(lanes * 20e9 / 8, rel=1e-12)
    assert built.used.power[0] == pytest.approx(lanes * 20e9 * 13e-12, rel=1e-9)
    assert built.limit.name(0) == limit


def test_a_standards_port_has_its_lanes_and_no_more(standard):
    built = build_links("inter_link", standard.link["NDR"], allot(area=1.0, power=1e3, perimeter=1.0), None)
    assert built.port.bandwidth[0] == pytest.approx(parse("50 GB/s", "B/s"), rel=1e-12)
    assert built.limit.name(0) == "the standard's port"


@pytest.mark.parametrize(("value", "count"), [(2.9999, 2), (3.0, 3), (3 * (1 - 1e-15), 3), (0.0, 0), (-1.0, 0), (1e6 - 1e-7, 1e6)])
def test_whole_forgives_rounding_alone(value, count):
    assert whole(np.array([value]))[0] == count


def test_mcus_never_go_dark_for_rounding(system):
    """Between the voltage limits the power carries all of them: a lost one would be the root's rounding."""
    device = architecture(changed(system, {"budgets.power": np.linspace(300.0, 600.0, 20001)}))
    assert (device.mcus > (1 - 1e-9) * device.mcus.max()).all()
