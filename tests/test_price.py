# ruff: noqa: E501  (tables of cases)
"""Prices of parts: limits of the yield, dies on a wafer, and the sum of a device."""

import numpy as np
import pytest

import crossflow
from crossflow.architecture.price import die_cost, die_yield
from crossflow.architecture.system import architecture

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
