"""Devices read off their datasheets: what the power limit leaves of the clock, what check bits take, which rates products have."""

import numpy as np
import pytest

import crossflow
from crossflow.architecture import architecture, resolve
from crossflow.files import Document

LIMITED = ["a10", "a40", "a100-80gb", "a100-pcie-80gb", "v100-sxm2-16gb", "l40s", "h100-sxm", "h200", "b200", "gb200"]


def spec(name, **changes):
    return resolve(Document(file="scenario", data={"template": name, **changes}))[0]


def device(name, **changes):
    return architecture(spec(name, **changes))


@pytest.mark.parametrize("name", LIMITED)
def test_long_products_draw_the_tdp_and_no_more(name):
    found = device(name)
    drawn = found.static_power + found.throughput["fp16"] * found.sustained_clock * found.energy_per_flop
    assert 0.3 < found.sustained_clock[0] < 1.0
    assert drawn == pytest.approx(found.maximum_power, rel=1e-9)


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
    np.testing.assert_allclose(many.energy_per_flop, [d.energy_per_flop[0] for d in one], rtol=1e-12)


def test_the_same_chip_on_a_card_of_less_power_is_slower():
    assert device("a100-pcie-80gb").sustained_clock < device("a100-80gb").sustained_clock
    assert device("a10").sustained_clock < device("a40").sustained_clock  # one design, 150 W and 300 W


def test_of_whose_power_nothing_is_known_keeps_its_clock():
    assert device("mi300x").sustained_clock[0] == 1.0
    plain = device("a100-80gb", execution={"chip_power": None})
    assert plain.sustained_clock[0] == 1.0
    assert plain.energy_per_flop[0] < device("a100-80gb").energy_per_flop[0]


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
