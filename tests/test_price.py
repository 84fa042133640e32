# ruff: noqa: E501  (tables of cases)
"""Prices of parts: limits of the yield, dies on a wafer, and the sum of a device."""

import numpy as np
import pytest

import crossflow
from crossflow.hardware.architecture.price import die_cost, die_yield
from crossflow.hardware.architecture.system import architecture

MM2 = 1e-6


def test_yield_is_whole_without_defects_and_near_poisson_for_few():
    area = np.array([100.0, 800.0]) * MM2
    assert die_yield(area, np.zeros(1)) == pytest.approx([1.0, 1.0])
    few = np.array([1e-3]) / MM2 * 1e-2
    assert die_yield(area, few) == pytest.approx(np.exp(-area * few), rel=1e-4)
    assert (np.diff(die_yield(area, np.array([1e-3 / MM2]))) < 0).all()


@pytest.mark.parametrize(("area", "dies", "works"), [(100, 572, 0.906), (400, 130, 0.687), (814, 58, 0.487)])
def test_dies_of_a_wafer_at_a_tenth_of_a_defect_per_square_centimetre(standard, area, dies, works):
    """Whole dies of 300 mm wafers with 5 mm rim and 0.2 mm scribe lines, as counted by hand for the library."""
    node = standard.component("logic", "N5").model_copy(update={"defect_density": np.array([1e-3 / MM2])})
    wafer = float(node.wafer_cost[0]) * np.pi * 0.15**2
    assert die_cost(np.array([area * MM2]), node)[0] == pytest.approx(wafer / dies / works, rel=0.02)


def test_a_node_without_prices_has_no_price(standard):
    node = standard.component("logic", "N5").model_copy(update={"wafer_cost": None})
    assert die_cost(np.array([100 * MM2]), node) is None


def test_the_price_of_a_system_is_that_of_its_parts(lstm):
    scenario = lstm("d8")
    device = architecture(scenario.system, scenario.library)
    stacks = device.memory.capacity / scenario.library.memory["HBM2"].device_capacity
    assert device.cost["memory"] == pytest.approx(stacks * 120.0)
    assert crossflow.evaluate(scenario).cost == pytest.approx(8 * sum(device.cost.values()))


WAFER = "techlib.substrate.wafer"


def test_mounting_loses_what_the_bonding_yield_says(gemm):
    """A chip and four stacks at 0.98 each: one package in ten is thrown away, with all that is in it."""
    cost = gemm("pathfinder").architecture.cost
    parts = sum(cost[part] for part in ("chip", "memory", "package", "assembly"))
    assert cost["loss"] == pytest.approx(parts * (0.98**-5 - 1), rel=1e-12)


def test_spares_are_as_many_as_make_a_good_wafer_cheapest(gemm):
    case = gemm("waferscale")
    allowed = crossflow.evaluate(case, {f"{WAFER}.spare_share": np.array([0.0, 0.05, 0.1, 0.25])}).cost
    assert (np.diff(allowed) <= 0).all()
    assert allowed[0] > 1.1 * allowed[-1]
    sure = crossflow.from_dict({**case.document.data, "techlib": {"substrate": {"wafer": {"bonding_yield": 1}}}})
    assert sure.architecture.cost["loss"] == pytest.approx(0.0, abs=1e-9)


def test_a_wafer_of_twenty_is_dearer_than_twenty_chips(gemm):
    """Ports aside: what one chip loses in assembly, a wafer loses times its hundred parts, less what spares save."""
    single, wafer = (
        sum(price for part, price in gemm(template).architecture.cost.items() if "link" not in part)
        for template in ("pathfinder", "waferscale")
    )
    assert wafer > single


def test_a_die_divided_costs_less_silicon_and_more_mounting(gemm):
    costs = [gemm("pathfinder", system={"budgets": {"chiplets": dies}}).architecture.cost for dies in (1, 2, 4)]
    assert costs[0]["chip"] > costs[1]["chip"] > costs[2]["chip"]
    assert costs[0]["loss"] < costs[1]["loss"] < costs[2]["loss"]


def test_dies_reach_a_shared_cache_over_their_links(gemm):
    """Of four dies three quarters of the accesses cross: energy by the link's share, bandwidth by the power or the inner edges."""
    one, four = (gemm("pathfinder", system={"budgets": {"chiplets": dies}}).architecture.level("l2") for dies in (1, 4))
    link = gemm("pathfinder").library.link["UCIe-advanced"]
    assert four.energy == pytest.approx(one.energy + 0.75 * link.nominal_energy_per_bit)
    assert four.bandwidth == pytest.approx(one.bandwidth * one.energy / four.energy)
    narrow = gemm("pathfinder", system={"budgets": {"chiplets": 4, "area": {"compute": 0.61}}, "technology": {"die_link": "NVLink4"}})
    lanes = np.floor(4 * np.sqrt(850) * 2.7)
    assert narrow.architecture.level("l2").bandwidth <= lanes * 12.5e9 / 0.75 * (1 + 1e-12)
    assert "the shares of the chip area leave no room for the links between its dies (budgets.chiplets)" in [
        words for _, words in narrow.architecture.problems
    ]


def test_memory_may_stand_on_the_chip(gemm):
    """V-Cache class: a die of 64 MiB on every 36 mm2 of logic, which takes neither package area nor die edge."""
    budgets = {"area": {"memory": 0.06}, "perimeter": {"memory": 0.01}, "node_area": "851 mm2"}
    system = {"technology": {"memory": "SRAM-3D"}, "budgets": budgets}
    device = gemm("pathfinder", system=system).architecture
    assert device.memory.capacity == pytest.approx(np.floor(850 * 0.0278) * 64 * 2**20)
    assert not device.problems
    below = gemm("pathfinder", system={**system, "levels": {"l2": {"stacked_area": "400 mm2"}}}).architecture
    assert below.memory.capacity == pytest.approx(np.floor(450 * 0.0278) * 64 * 2**20)


def test_a_cache_may_stand_on_the_chip(gemm, standard):
    """V-Cache: 64 MiB of N7 on 36 mm2, over bonds; the share of its bits that stand there crosses, and needs vias."""
    one, two = (gemm("reference", system={"levels": {"l2": {"stacked_area": area}}}).architecture for area in ("0 mm2", "36 mm2"))
    flat, tall, bond = one.level("l2"), two.level("l2"), standard.bond["hybrid-bond"]
    assert tall.stacked == pytest.approx(64 * 2**20, rel=0.03)
    assert tall.capacity == pytest.approx(flat.capacity + tall.stacked)
    share = tall.stacked / tall.capacity
    macro = standard.on_chip["l2"].dynamic_energy_per_bit * (1 - standard.logic["N5"].sram_energy / standard.logic["N7"].sram_energy)
    assert tall.energy == pytest.approx(flat.energy + share * (bond.energy_per_bit + macro))
    assert tall.latency == pytest.approx(flat.latency + share * bond.latency)
    assert two.cost["stack"] == pytest.approx(die_cost(np.array([36 * MM2]), standard.logic["N7"]) + bond.assembly_cost)
    parts = sum(two.cost[part] for part in ("chip", "stack", "memory", "package", "assembly"))
    assert two.cost["loss"] == pytest.approx(parts * (0.98**-6 / 0.99 - 1))
    assert two.carbon["stack"] == pytest.approx(0.36 * 2.03)
    assert sum(two.carbon.values()) > sum(one.carbon.values()) + two.carbon["stack"]


def test_bonds_of_nothing_are_told(gemm):
    found = crossflow.predict(gemm("reference", system={"technology": {"bond": "micro-bump"}})).notes
    assert found == ("system.technology.bond changes nothing here: nothing stands on the compute die (stacked_area)",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"levels": {"l2": {"stacked_area": "900 mm2"}}}, "the dies on the chip are larger than it (levels.NAME.stacked_area)"),
        ({"levels": {"l2": {"stacked_area": "500 mm2"}}, "technology": {"bond": "micro-bump"}}, "the shares of the chip area leave no room for the vias to the dies on it (levels.NAME.stacked_area)"),
    ],
)  # fmt: skip
def test_what_cannot_stand_on_the_chip_is_infeasible(gemm, change, sentence):
    assert sentence in [words for mask, words in gemm("reference", system=change).architecture.problems if mask.any()]


def test_a_step_takes_its_share_of_the_carbon_of_making_the_devices(lstm):
    case = lstm("d8", operation={"lifetime": "5 years", "carbon_intensity": "400 g/kWh"})
    found = crossflow.predict(case).to_dict()
    made = 8 * sum(float(part[0]) for part in case.architecture.carbon.values())
    assert found["embodied_carbon_kg"] == pytest.approx(made * found["step_time_s"] / (5 * 365 * 86400), rel=1e-12)
    assert found["carbon_kg"] > found["embodied_carbon_kg"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"chip_area": "900 mm2"}, "a die is larger than a reticle: divide the chip into more dies (budgets.chiplets), or take a substrate that allows more exposures for one die, such as wafer"),
    ],
)  # fmt: skip
def test_what_cannot_be_printed_is_infeasible(gemm, change, sentence):
    case = gemm("pathfinder", system={"budgets": change})
    assert sentence in [words for mask, words in case.architecture.problems if mask.any()]
    assert not crossflow.predict(case).feasible
    assert crossflow.predict(gemm("pathfinder", system={"budgets": {"chip_area": "900 mm2", "chiplets": 2}})).feasible


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "watts", "why"),
    [
        ({}, 1.6 * 850, "cooling of the package (substrate.cooling_limit)"),
        ({"cooling_limit": "9 W/mm2", "delivery_limit": "1 W/mm2"}, None, "delivery to the die (substrate.delivery_limit)"),
    ],
)
def test_a_power_budget_is_used_as_far_as_the_package_allows(gemm, limits, watts, why):
    """More of it never makes a design infeasible or slower; the note says what is left."""
    data = gemm("pathfinder", system={"budgets": {"power": "3.9 kW"}}).document.data
    case = crossflow.from_dict({**data, "techlib": {"substrate": {"silicon-interposer": limits}}})
    device, found = case.architecture, crossflow.predict(case)
    memory = sum(use.used for use in device.usage if (use.component, use.resource) == ("memory", "power"))
    assert device.maximum_power == pytest.approx(850 + memory if watts is None else watts, rel=2e-3)
    assert found.feasible
    assert [why in note for note in found.notes if note.startswith("system.budgets.power: no more than")] == [True]
    times = crossflow.evaluate(case, {"system.budgets.power": np.linspace(300, 4000, 50)}).step_time
    assert (np.diff(times) <= 1e-12).all()


HOT = {"cooling_limit": "9 W/mm2", "delivery_limit": "9 W/mm2"}  # a package that lets dies become 166 C and more


def test_dies_become_no_hotter_than_they_endure(gemm):
    """Water of 40 C and 45 K mm2/W: 125 C at (398 - 313) / 45 W/mm2, whatever the budget."""
    data = gemm("pathfinder", system={"budgets": {"power": "2.5 kW"}}).document.data
    case = crossflow.from_dict({**data, "techlib": {"substrate": {"silicon-interposer": HOT}}})
    assert case.architecture.temperature[0] == pytest.approx(398)
    assert case.architecture.maximum_power[0] == pytest.approx(850 * 85 / 45)
    assert case.architecture.bound_by["power"] == "heat of the dies (substrate.maximum_temperature)"
    notes = " ".join(crossflow.predict(case).notes)
    assert "the dies are at 125 C at the power that the package allows; makers keep theirs below 105 C" in notes


def test_dies_as_hot_as_those_of_products_are_not_told(gemm):
    assert not any("the dies are at" in note for note in crossflow.predict(gemm("pathfinder")).notes)


def test_a_coolant_as_hot_as_dies_may_become_cools_nothing(gemm):
    data = gemm("pathfinder").document.data
    case = crossflow.from_dict({**data, "techlib": {"substrate": {"silicon-interposer": {"coolant": "400 K"}}}})
    assert "the coolant is as hot as the dies may become" in crossflow.predict(case).reason


def test_stacks_need_a_substrate_with_bumps_as_fine_as_theirs(gemm):
    found = crossflow.predict(gemm("pathfinder", system={"technology": {"substrate": "organic"}}))
    assert "the bumps of the memory are finer than those of the substrate (bump_pitch): take an interposer" in found.reason
    assert crossflow.predict(gemm("p4")).reason is None  # GDDR on an organic substrate


def test_a_stitched_die_may_be_larger_than_a_reticle(gemm):
    system = {"budgets": {"chip_area": "1000 mm2", "node_area": "1410 mm2"}, "technology": {"substrate": "wafer"}}
    assert crossflow.predict(gemm("waferscale", system=system)).feasible


def test_embodied_carbon_counts_the_area_its_yield_and_the_memory(gemm):
    """ACT: 1.36 kg a cm2 at N12, 100 g a GB of HBM."""
    carbon = gemm("pathfinder").architecture.carbon
    assert carbon["chip"] == pytest.approx(8.5 * 1.36)
    assert carbon["memory"] == pytest.approx(4 * 8 * 2**30 / 1e9 * 0.1)
    assert carbon["yield_loss"] > carbon["chip"] * 0.3
    assert carbon["loss"] == pytest.approx((0.98**-5 - 1) * (carbon["chip"] + carbon["yield_loss"] + carbon["memory"]))


def test_a_datasheet_device_has_no_price():
    scenario = crossflow.from_dict({"system": "h100-sxm", "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64}})
    assert np.isnan(crossflow.evaluate(scenario).cost).all()
    assert crossflow.predict(scenario).to_dict()["cost_usd"] is None


def test_dearer_parts_make_dearer_systems(lstm):
    paths = [
        "techlib.logic.N12.wafer_cost", "techlib.logic.N12.defect_density", "techlib.memory.HBM2.device_cost",
        "techlib.link.NDR-x8.link_cost", "techlib.substrate.silicon-interposer.cost_per_area", "techlib.substrate.silicon-interposer.assembly_cost",
    ]  # fmt: skip
    scenario = lstm("d8")
    for path in paths:
        _, kind, name, field = path.split(".")
        value = getattr(scenario.library.component(kind, name), field)
        cost = crossflow.evaluate(scenario, {path: np.array([1.0, 2.0]) * value}).cost
        assert cost[1] > cost[0], path
