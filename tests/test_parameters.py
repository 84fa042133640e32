"""Parameters: all numbers that a prediction rests on and no others, with their ranges and sources as the files give them."""

import dataclasses

import numpy as np
import pytest

import crossflow
from crossflow.answers.explanation.parameters import parameters
from crossflow.base.files import Document
from crossflow.base.paths import quantities

GEMM = {"model": "gemm", "m": 512, "n": 512, "k": 512, "dtype": "fp16"}
HBM2 = "techlib.memory.HBM2"


def scenario(template, **sections):
    return crossflow.from_dict({"system": {"template": template}, "workload": GEMM, "strategy": "d1", **sections})


def by_path(case, choices=None):
    return {number.path: number for number in parameters(case, choices)}


def every_quantity(case):
    """Path, quantity and value of all numbers of the library and of the system, in use or not."""
    for root, model in (("techlib", case.library), ("system", case.system)):
        for path, quantity, value in quantities(model, (root,)):
            if not any("." in part for part in path):
                yield ".".join(path), quantity, float(value[0])


def nudged(quantity, value):
    value = value + 1 if quantity.whole else value * 0.9
    return value if value else (quantity.le or 1.0) / 2


def figures(score):
    """All of a score but the peak rates of other data types than the workload's, and the errors of devices that are as they are sold."""
    kept = {name: values for name, values in score.to_dict().items() if not name.startswith(("error_band", "trust"))}
    read = f".throughput.{GEMM['dtype']}", f"vector_throughput.{GEMM['dtype']}"  # no weight of it has 2:4 sparsity
    return {name: values for name, values in kept.items() if "throughput." not in name or name.endswith(read)}


CASES = ["pathfinder", "mcm", "v100", "h100-sxm", "gaudi2"]


@pytest.mark.parametrize("template", CASES)
def test_paths_and_values_are_those_of_the_scenario(template):
    case = scenario(template)
    same = crossflow.evaluate(case, {number.path: [number.value] for number in parameters(case)})
    np.testing.assert_equal(figures(same), figures(crossflow.evaluate(case)))


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("template", CASES)
def test_numbers_left_out_change_nothing(template):
    case = scenario(template)
    used = by_path(case)
    others = {path: [nudged(quantity, value)] for path, quantity, value in every_quantity(case) if path not in used}
    assert len(others) > 500
    np.testing.assert_equal(figures(crossflow.evaluate(case, others)), figures(crossflow.evaluate(case)))


def test_numbers_of_all_kinds_are_there():
    kinds = {number.path: number.kind for number in parameters(scenario("pathfinder"))}
    assert kinds[f"{HBM2}.nominal_frequency"] == kinds["techlib.logic.N12.area"] == "technology"
    assert kinds["system.budgets.power_shares.on_chip.l2"] == "budget"
    assert kinds["system.levels.l2.utilisation"] == kinds["system.execution.kernel_launch"] == "architecture"
    assert kinds["system.network.parameters.launch"] == "system"


def test_rates_are_those_of_the_workloads_type():
    generated, published = by_path(scenario("pathfinder")), by_path(scenario("gaudi2", workload={**GEMM, "dtype": "bf16"}))
    assert [path for path in generated if "rates" in path] == ["system.rates.fp16", "system.vector_rates.fp16"]
    # The faster of both types of 16 bits says how large the matrix units are.
    sizes = ["system.throughput.fp16", "system.throughput.bf16"]
    assert [path for path in published if "throughput" in path] == [*sizes, "system.vector_throughput.bf16"]


def test_the_rate_of_the_other_type_of_16_bits_is_listed_for_it_sizes_the_units():
    gaudi = scenario("gaudi2", workload={**GEMM, "dtype": "bf16"})
    rate = by_path(gaudi)["system.throughput.fp16"].value
    energy = crossflow.evaluate(gaudi, {"system.throughput.fp16": [rate, 2.0 * rate]}).energy
    assert energy[1] > 1.01 * energy[0]


def test_vector_units_without_a_rate_of_the_type_work_in_fp32():
    paths = by_path(scenario("h100-sxm", workload={**GEMM, "dtype": "fp8"}))
    # Of a device with a power limit those of 16 bits count too: the power of the matrix units follows from their size.
    rates = {"system.throughput.fp16", "system.throughput.bf16", "system.throughput.fp8", "system.vector_throughput.fp32"}
    assert {path for path in paths if "throughput" in path} == rates


def test_what_the_system_replaces_stands_under_the_system():
    changes = {"memory": {"device_capacity": "9 GiB"}, "on_chip": {"l2": {"latency": "100 ns"}}}
    paths = by_path(scenario("pathfinder", system={"template": "pathfinder", "components": changes}))
    assert paths["system.components.memory.device_capacity"].value == 9 * 2**30
    assert paths["system.components.memory.device_capacity"].kind == "technology"
    assert f"{HBM2}.device_capacity" not in paths
    assert "system.components.on_chip.l2.latency" in paths
    assert "techlib.on_chip.l2.latency" not in paths


def test_ranges_and_sources_are_those_of_the_files():
    energy = by_path(scenario("pathfinder"))[f"{HBM2}.dynamic_energy_per_bit"]
    assert (energy.low, energy.value, energy.high) == pytest.approx((3.92e-12 * 8, 4.2e-12 * 8, 7e-12 * 8))
    assert energy.source == "deepflow-code"
    l2 = by_path(scenario("h100-sxm"))["system.levels.l2.bandwidth"]
    assert (l2.low, l2.high, l2.source) == (6.65e12, 9.37e12, "luo2024")


def test_a_range_gives_way_with_the_value_that_it_belongs_to():
    plain = by_path(scenario("pathfinder", techlib={"memory": {"HBM2": {"access_latency": "80 ns"}}}))[f"{HBM2}.access_latency"]
    assert (plain.value, plain.low, plain.high, plain.source) == (pytest.approx(80e-9), None, None, None)
    own = {"value": "100 ns", "low": "70 ns", "source": "jesd235"}
    written = Document(file="own", data={"techlib": {"memory": {"HBM2": {"access_latency": own}}}})
    given = by_path(dataclasses.replace(scenario("pathfinder"), document=written))[f"{HBM2}.access_latency"]
    assert (given.low, given.high, given.source) == (pytest.approx(70e-9), None, "jesd235")


def test_choices_add_the_components_that_points_choose():
    case = scenario("pathfinder")
    more = by_path(case, {"system.technology.memory": ["HBM2", "HBM4"], "system.technology.logic": ["N3"]}).keys() - by_path(case).keys()
    assert {path.rsplit(".", 1)[0] for path in more} == {"techlib.memory.HBM4", "techlib.logic.N3"}
    assert "techlib.memory.HBM4.nominal_frequency" in more


def test_published_energies_leave_the_librarys_out():
    energy = {"flop": "1 pJ/flop", "memory": "4 pJ/bit", "intra_link": "5 pJ/bit"}
    paths = by_path(scenario("h100-sxm", system={"template": "h100-sxm", "energy": energy}))
    technology = {path for path in paths if path.startswith("techlib.") and "on_chip" not in path and "logic" not in path}
    voltages = {f"techlib.compute.volta-tensor-core.{name}_voltage" for name in ("nominal", "threshold", "minimum")}
    assert technology == {"techlib.memory.HBM3.access_latency", "techlib.link.NVLink4.latency"} | voltages
    assert "techlib.logic.N5.power" not in paths


def test_whole_numbers_say_so():
    whole = [path for path, number in by_path(scenario("pathfinder")).items() if number.quantity.whole]
    assert {path.rsplit(".", 1)[-1] for path in whole} >= {"array_height", "array_width", "links_per_device", "bundles"}
