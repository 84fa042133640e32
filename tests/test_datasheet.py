"""Devices read off their datasheets: what the power limit leaves of the clock, what check bits take, which rates products have."""

import numpy as np
import pytest

import crossflow
from crossflow.base.files import Document
from crossflow.cost.roofline import product_costs
from crossflow.hardware.architecture.system import architecture, resolve

LIMITED = ["a10", "a40", "a100-80gb", "a100-pcie-80gb", "v100-sxm2-16gb", "l40s", "h100-sxm", "h200", "b200", "gb200"]


def spec(name, **changes):
    return resolve(Document(file="scenario", data={"template": name, **changes}))[0]


def device(name, **changes):
    return architecture(spec(name, **changes))


@pytest.mark.parametrize("name", LIMITED)
def test_long_products_of_every_type_would_draw_the_tdp_and_more(name):
    found = device(name)
    assert 0.3 < found.sustained_clock[0] < 1.0
    for dtype, rate in found.throughput.items():
        drawn = found.static_power + found.working_power + rate * found.sustained_clock * found.energy_per_flop[dtype]
        assert drawn >= found.maximum_power  # at the voltage of the boost clock


@pytest.mark.parametrize(("name", "dtype"), [("dgx-h100", "fp16"), ("dgx-h100", "fp8"), ("dgx-a100", "tf32"), ("a10-node", "int8")])
def test_a_product_of_any_type_keeps_to_the_tdp(name, dtype):
    workload = {"model": "gemm", "m": 16384, "n": 16384, "k": 16384, "dtype": dtype}
    found = crossflow.predict(crossflow.from_dict({"system": {"template": name, "devices": 1, "nodes": None}, "workload": workload}))
    limit = found.scenario.architecture.maximum_power[0]
    assert 0.6 * limit < found.score.power[0] <= limit


@pytest.mark.parametrize(("name", "dtype"), [("dgx-b200", "tf32"), ("tpu-v4-pod", "bf16")])
def test_memory_beside_products_does_not_add_to_the_limit(name, dtype):
    workload = {"model": "gemm", "m": 16384, "n": 16384, "k": 512, "dtype": dtype}
    found = crossflow.predict(crossflow.from_dict({"system": {"template": name, "devices": 1, "nodes": None}, "workload": workload}))
    assert found.score.power[0] <= found.scenario.architecture.maximum_power[0] * (1 + 1e-12)


def test_a_lower_limit_slows_every_workload_and_saves_energy():
    cards = [{"template": "dgx-a100", "power": {"tdp": f"{watts} W"}} for watts in (200, 400, 2000)]
    small = {"model": "lstm", "layers": 2, "hidden": 4096, "sequence": 8, "vocabulary": 1024, "global_batch": 4096, "dtype": "fp16"}
    for workload in (
        {"model": "gemm", "m": 8192, "n": 8192, "k": 8192, "dtype": "fp16"},
        small,
        {"model": "megatron-7.5b", "global_batch": 64},
    ):
        found = [crossflow.predict(crossflow.from_dict({"system": card, "workload": workload, "strategy": "d8"})) for card in cards]
        assert found[0].step_time > found[1].step_time > found[2].step_time
        assert found[0].score.energy[0] < found[1].score.energy[0] < found[2].score.energy[0]


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", LIMITED)
def test_a_higher_limit_never_lowers_the_clock_and_the_boost_clock_is_the_end(name):
    base = spec(name)
    limits = base.power.tdp * np.linspace(0.5, 6.0, 30)
    many = architecture(base.model_copy(update={"power": base.power.model_copy(update={"tdp": limits})}))
    assert (np.diff(many.sustained_clock) >= 0).all()
    assert many.sustained_clock[0] < 0.9
    assert many.sustained_clock[-1] == 1.0
    one = [architecture(base.model_copy(update={"power": base.power.model_copy(update={"tdp": limits[i : i + 1]})})) for i in range(30)]
    np.testing.assert_allclose(many.sustained_clock, [d.sustained_clock[0] for d in one], rtol=1e-12)
    for dtype, energy in many.energy_per_flop.items():
        np.testing.assert_allclose(np.broadcast_to(energy, 30), [d.energy_per_flop[dtype][0] for d in one], rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "power", "size", "published"),
    [
        ("bf16", 750, (10240, 15360, 8192), 668), ("bf16", 1000, (13312, 10240, 8192), 785),
        ("fp8", 750, (8192, 8192, 8192), 1159), ("fp8", 750, (6144, 12288, 12288), 1160), ("fp8", 750, (16384, 16384, 16384), 1015),
    ],
)  # fmt: skip
def test_large_products_of_the_mi300x_run_at_its_power_limit(dtype, power, size, published):
    """Best shapes of S. Bekman (MI300X, and MI325X at 1 kW) and Azure's products of random data, as cited in the family. [Tflop/s]"""
    limited = device("mi300x", power={"tdp": f"{power} W"})
    sizes = np.array([*size, 1], dtype=float).reshape(4, 1, 1)
    time = product_costs(sizes, np.full((1, 1), 2.0), limited, dtype).time[0, 0]
    assert 2e-12 * np.prod(size, dtype=float) / time == pytest.approx(published, rel=0.21)


def test_the_same_chip_on_a_card_of_less_power_is_slower():
    assert device("a100-pcie-80gb").sustained_clock < device("a100-80gb").sustained_clock
    assert device("a10").sustained_clock < device("a40").sustained_clock  # one design, 150 W and 300 W


def test_of_whose_power_nothing_is_known_keeps_its_clock():
    assert device("gaudi2").sustained_clock[0] == 1.0
    plain = device("a100-80gb", execution={"chip_power": None})
    assert plain.sustained_clock[0] == 1.0
    assert plain.energy_per_flop["fp16"][0] < device("a100-80gb").energy_per_flop["fp16"][0]
    assert device("a100-80gb", execution={"chip_power": 0}).sustained_clock[0] == 1.0


def test_the_energy_of_an_operation_that_a_file_states_takes_the_place_of_the_librarys():
    library = device("a100-80gb")
    stated = device("a100-80gb", energy={"flop": "0.9 pJ/flop"})
    assert stated.sustained_clock[0] < library.sustained_clock[0]
    drawn = stated.static_power + stated.throughput["fp16"] * stated.sustained_clock * stated.energy_per_flop["fp16"]
    assert drawn > stated.maximum_power  # which kernels never draw (tests/test_power.py)


def test_what_has_no_meaning_is_refused(problems):
    cache = {"l2": {"inline_ecc": "6 %"}}
    sentence = "l2: inline_ecc applies to main memory only; caches keep check bits beside their data"
    assert problems(spec, "a10", levels=cache) == [("levels", sentence)]
    sentence = "chip_power: the clock of a generated device follows from its budgets; leave it out"
    assert problems(spec, "pathfinder", execution={"chip_power": 3}) == [("execution", sentence)]
    sentence = "that of a generated device follows from technology.inter_link and its budgets; leave it out, or change techlib.link"
    assert problems(spec, "pathfinder", network={"inter": {"bandwidth": "10 GB/s"}}) == [("network.inter.bandwidth", sentence)]
    assert problems(spec, "pathfinder", network={"inter": {"latency": "1 us"}}) == [("network.inter.latency", sentence)]


def test_a_limit_below_what_the_device_draws_at_rest_cannot_be_built():
    workload = {"model": "gpt2-345m", "global_batch": 8}
    given = {"system": {"template": "dgx-a100", "power": {"tdp": "50 W"}}, "workload": workload, "strategy": "d8"}
    found = crossflow.predict(crossflow.from_dict(given)).to_dict()
    assert not found["feasible"]
    assert found["reason"] == "cannot be built: the power limit leaves nothing beside what the device draws at rest"


def test_check_bits_among_the_data_take_their_share_of_capacity_and_traffic():
    with_bits, without = device("a10"), device("a10", levels={"memory": {"inline_ecc": None}})
    for name in ("capacity", "bandwidth"):
        assert getattr(with_bits.memory, name) == pytest.approx(15 / 16 * getattr(without.memory, name))
    assert with_bits.memory.capacity[0] / 2**20 == pytest.approx(23028, rel=1e-3)  # as nvidia-smi shows it


def test_products_in_a_type_that_matrix_units_lack_run_on_the_vector_units():
    found = device("a100-80gb")
    assert found.throughput["fp32"] == found.vector_throughput["fp32"] == 19.5e12
    assert found.throughput["fp16"] > found.vector_throughput["fp16"]
    workload = {"model": "gpt2-345m", "global_batch": 8, "dtype": "fp32"}
    rates = [
        crossflow.predict(crossflow.from_dict({"system": "dgx-a100", "workload": {**workload, "dtype": d}, "strategy": "d8"})).step_time
        for d in ("fp32", "tf32")
    ]
    assert rates[0] > 2.0 * rates[1]


def test_the_rates_of_the_2080_ti_follow_from_its_units_and_clock():
    """68 units of 512 and 128 operations a clock, four fifths of 352 bit of 14 Gbit/s; GeForce cards add up in fp32 at half rate."""
    found = device("rtx-2080-ti")
    assert found.throughput["fp16"] == pytest.approx(68 * 512 * 1.545e9, rel=2e-3)
    assert found.vector_throughput["fp32"] == pytest.approx(68 * 128 * 1.545e9, rel=5e-3)
    assert found.memory.bandwidth == pytest.approx(0.8 * 352 / 8 * 14e9, rel=1e-3)
