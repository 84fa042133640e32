"""Cost of running: figures of the files against their sources, arithmetic against published runs, and limits."""

import csv
from pathlib import Path

import numpy as np
import pytest

from crossflow.answers.evaluation import evaluate
from crossflow.answers.scenario import from_dict
from crossflow.base.files import Document
from crossflow.base.units import parse, points, show
from crossflow.hardware.architecture.run_cost import (
    HOUR,
    KILOWATT_HOUR,
    facility_power,
    node_energy,
    node_power,
    operation_of,
    run_cost,
)
from crossflow.hardware.architecture.system import architecture, reference_peak, resolve
from crossflow.hardware.architecture.template import NodeLoad, OperationSpec

TABLE = Path(__file__).parent / "data" / "madmax_cloud_prices.csv"
SHEET = {row["system"]: row for row in csv.DictReader(line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[0] != "#")}
RENTED = [name for name, row in SHEET.items() if row["price"]]
# The sheet halves the node of eight modules for nodes of four cards; the files keep the cards' own, lower TDP.
CARDS = {"azure-nc24rs-v3": 250, "azure-nc96ads-a100-v4": 300}
TOKENS = {"amount": 1.4e12, "per_step": 2048 * 2048, "devices": 2048}  # LLaMA-65B, arXiv:2302.13971


def system(name, **changes):
    return resolve(Document(file="scenario", data={"template": name, **changes}))[0]


def operated(found):
    return operation_of(found, architecture(found))


def operation(**fields):
    return OperationSpec(**{name: np.atleast_1d(np.asarray(value, dtype=float)) for name, value in fields.items()})


def run(**changes):
    return run_cost(**{"amount": 1e6, "per_step": 1e3, "step_time": 2.0, "devices": 8, **changes})


# -------------------------------------------------------------------------------------------- the files


@pytest.mark.parametrize("name", RENTED)
def test_prices_are_those_of_the_sheet(name):
    rent = system(name).operation.price[0] * HOUR
    assert rent == pytest.approx(float(SHEET[name]["price"]), rel=1e-12)


@pytest.mark.parametrize("name", SHEET)
def test_nodes_are_those_of_the_sheet(name):
    row, found = SHEET[name], system(name)
    assert found.devices_per_node == int(row["gpus_per_node"])
    assert found.network.inter.bandwidth[0] == pytest.approx(float(row["inter_node_bandwidth"]) * 1e9)
    assert found.operation.host_power[0] == float(row["other_power"])
    devices = CARDS.get(name, float(row["gpu_power"]) / found.devices_per_node)
    assert operated(found).device_power[0] == devices


TABLE_III = [("zionex", 16, 20e15, 5e12, 38.4e12, 25.6e12), ("a100-ib-2048", 256, 319e15, 164e12, 614.4e12, 409.6e12)]


@pytest.mark.parametrize(("name", "nodes", "tf32", "memory", "intra", "inter"), TABLE_III)
def test_data_centres_add_up_to_table_iii(name, nodes, tf32, memory, intra, inter):
    """MAD-Max Table III: totals of the system, links in each direction, the network in bits a second."""
    found = system(name)
    devices = found.device_count
    assert devices == 8 * nodes
    assert devices * found.throughput["tf32"][0] == pytest.approx(tf32, rel=0.005)
    assert devices * found.levels["memory"].capacity[0] / 1.024**3 == pytest.approx(memory, rel=0.025)
    assert devices * found.network.intra.bandwidth[0] == pytest.approx(intra)
    assert devices * found.network.inter.bandwidth[0] * 8 == pytest.approx(inter)


TABLE_IV = [  # fp16, tf32 [Tflop/s], HBM [GB], [TB/s], inside a node [GB/s, one direction], between nodes [Gb/s]
    ("zionex", 312, 156, 40, 1.6, 300, 200),
    ("madmax-h100", 756, 378, 80, 2.0, 450, 400),
    ("madmax-h100-superpod", 756, 378, 80, 2.0, 450, 1800),
    ("madmax-mi250x", 383, 96, 128, 3.2, 250, 200),
    ("madmax-mi300x", 1307, 654, 192, 5.3, 448, 400),
    ("madmax-gaudi2", 400, 200, 96, 2.5, 262.5, 300),
]


@pytest.mark.parametrize(("name", "fp16", "tf32", "capacity", "memory", "intra", "inter"), TABLE_IV)
def test_hardware_is_that_of_table_iv(name, fp16, tf32, capacity, memory, intra, inter):
    found, main = system(name), system(name).levels["memory"]
    rates = [found.throughput["fp16"][0], found.throughput["tf32"][0]]
    assert rates == pytest.approx([fp16 * 1e12, tf32 * 1e12], rel=0.004)
    assert main.capacity[0] == capacity * 2**30
    assert main.bandwidth[0] == pytest.approx(memory * 1e12, rel=0.03)
    assert [found.network.intra.bandwidth[0], found.network.inter.bandwidth[0]] == pytest.approx([intra * 1e9, inter / 8 * 1e9])
    assert found.device_count == 128


def test_every_rented_system_runs_the_data_type_of_the_comparison():
    assert {name for name in SHEET if "tf32" not in system(name).throughput} == set()


def test_cards_have_the_peaks_of_their_units():
    """Units x flop a clock of one x clock: the check of a datasheet against itself."""
    for name, each in (("h100-pcie-80gb", 4096), ("v100-pcie-16gb", 1024)):
        found = system(name)
        assert found.units[0] * each * found.clock[0] == pytest.approx(found.throughput["fp16"][0], rel=0.01)


def test_an_operation_is_checked_like_any_section(problems):
    operation = {"price": "4 USD", "pue": 0.9, "devices_power": "400 W"}
    assert problems(system, "aws-p4d", operation=operation) == [
        ("operation.price", "expected a quantity in USD/hour, got '4 USD'; write '4 USD/hour'"),
        ("operation.pue", "expected at least 1, got 0.9"),
        ("operation.devices_power", "unknown key 'devices_power'; did you mean 'device_power'?"),
    ]


def test_rents_are_written_by_the_hour():
    assert show(parse("4.0975 USD/hour", "USD/s"), "USD/s", 5) == "4.0975 USD/hour"


def test_a_carbon_intensity_is_a_mass_per_energy(problems):
    assert problems(system, "aws-p4d", operation={"carbon_intensity": "400 g"}) == [
        ("operation.carbon_intensity", "expected a quantity in kg/J, got '400 g': 'g' is not a unit of kg/J")
    ]
    assert problems(system, "aws-p4d", operation={"carbon_intensity": "-1 g/kWh"}) == [
        ("operation.carbon_intensity", "expected at least 0 kg/J, got '-1 g/kWh'")
    ]


def test_carbon_is_written_as_it_is_read():
    per_joule = parse("400 g/kWh", "kg/J")
    assert {parse(text, "kg/J") for text in ("400 g CO2e/kWh", "400 gCO2eq/kWh")} == {per_joule}
    assert show(per_joule, "kg/J") == show(parse("0.4 t/MWh", "kg/J"), "kg/J") == "400 g/kWh"
    for written in ("1.9 t CO2e", "12 kg CO2e", "3 g CO2e"):
        assert show(parse(written, "kg"), "kg") == written
    with pytest.raises(ValueError, match="'W CO2e' is not a known unit"):
        parse("400 W CO2e", "W")


# -------------------------------------------------------------------------------------------- published runs


def test_days_of_llama():
    assert run_cost(**TOKENS, step_time=4.9732).days[0] == pytest.approx(19.213, abs=5e-4)


def test_gpu_hours_of_llama():
    """306,000 steps, as MAD-Max Table I counts them."""
    cost = run_cost(amount=306_000 * 2048**2, per_step=2048**2, devices=2048, step_time=4.9732)
    assert cost.device_hours[0] == pytest.approx(865_729, rel=2e-5)


def test_energy_of_llama():
    """1,022,362 GPU-hours x 400 W x PUE 1.1 = 449 MWh (LLaMA, Table 15): GPUs alone, without their hosts."""
    own = operated(system("a100-ib-2048")).model_copy(update={"host_power": None})
    cost = run_cost(amount=1, per_step=1, step_time=1_022_362 * HOUR / 2048, devices=2048, operation=own, devices_per_node=8)
    assert cost.facility_energy[0] / KILOWATT_HOUR == pytest.approx(449e3, rel=0.003)
    assert show(cost.facility_energy[0] * parse("0.385 kg/kWh", "kg/J"), "kg", 3) == "173 t CO2e"  # the table's total emissions


def test_a_row_of_the_cloud_sheet():
    """DLRM-A, FSDP on 512 V100 of AWS at 0.21 million samples a second, 5e9 samples: sheet row 23."""
    found = system("aws-p3")
    rest = {"operation": operated(found), "devices_per_node": found.devices_per_node, "peak": 14e12, "reference": 156e12}
    cost = run_cost(amount=5e9, per_step=65536, step_time=65536 / 210_000, devices=512, **rest)
    assert cost.time[0] / HOUR == pytest.approx(6.6138, rel=1e-4)
    assert cost.device_hours[0] == pytest.approx(3386.2434, rel=1e-6)
    assert cost.price[0] == pytest.approx(10361.9048, rel=1e-6)
    assert cost.facility_energy[0] / KILOWATT_HOUR == pytest.approx(2116.4, rel=1e-4)


# -------------------------------------------------------------------------------------------- laws and limits


def test_a_device_of_twice_the_peak_counts_twice():
    cost = run(peak=np.array([312e12, 624e12]), reference=reference_peak("bf16"))
    np.testing.assert_allclose(cost.normalised_device_hours, cost.device_hours * [1, 2])


@pytest.mark.parametrize(("dtype", "peak"), [("bf16", 312e12), ("tf32", 156e12), ("fp32", 19.5e12)])
def test_the_reference_is_the_a100(dtype, peak):
    assert reference_peak(dtype)[0] == peak


def test_a_type_that_the_reference_lacks_has_no_normalised_time():
    cost = run(peak=2e15, reference=reference_peak("fp8"))
    assert np.isnan(cost.normalised_device_hours).all()
    assert np.isfinite(cost.device_hours).all()


def test_a_step_that_never_ends_costs_without_end():
    known = operation(price=1e-3, device_power=400, host_power=3300)
    cost = run(step_time=[1.0, np.inf], operation=known, step_energy=[5.0, np.inf], peak=1.0, reference=1.0)
    for figure in (cost.time, cost.device_time, cost.normalised_device_time, cost.price, cost.device_energy, cost.facility_energy):
        assert list(np.isinf(figure)) == [False, True]


def test_what_is_not_known_is_nan():
    cost = run(step_time=[1.0, np.inf])
    for figure in (cost.price, cost.device_energy, cost.facility_energy, cost.normalised_device_time):
        assert np.isnan(figure).all()
    assert cost.device_hours[0] == 1e3 * 8 / HOUR


def test_price_and_energy_grow_with_devices_and_time():
    known = operation(price=2.0, device_power=300, host_power=800, pue=1.5)
    once = run(operation=known, devices_per_node=4, step_energy=7.0)
    assert (once.price[0], once.device_energy[0]) == (2.0 * 1e3 * 2.0 * 8, 7.0 * 1e3)
    assert once.facility_energy[0] == 1e3 * 2.0 * 8 * (300 + 800 / 4) * 1.5
    twice = run(operation=known, devices_per_node=4, devices=16)
    assert (twice.time[0], twice.price[0], twice.facility_energy[0]) == (once.time[0], 2 * once.price[0], 2 * once.facility_energy[0])


def test_a_batch_costs_what_its_points_cost():
    step, devices, known = np.array([0.5, 1.0, 3.0]), np.array([8, 16, 64]), operation(price=[1.0, 2.0, 3.0], device_power=400)
    batch = run(step_time=step, devices=devices, operation=known)
    for i in range(3):
        one = run(step_time=step[i], devices=devices[i], operation=operation(price=known.price[i], device_power=400))
        assert (batch.price[i], batch.facility_energy[i], batch.days[i]) == (one.price[0], one.facility_energy[0], one.days[0])


def test_no_work_is_refused(exactly):
    with pytest.raises(ValueError, match=exactly("amount = 0, but a run processes a positive number of samples or tokens")):
        run(amount=[1.0, 0.0])


def test_a_system_says_its_power_once():
    """Device: TDP or budget, unless told; host: what the node has beside its devices, unless told."""
    assert operated(system("dgx-a100")).host_power[0] == 6500 - 8 * 400
    assert operated(system("madmax-h100")).device_power[0] == 700
    assert operated(system("v100")).device_power[0] == system("v100").budgets.power[0]
    assert facility_power(operated(system("aws-p4d")), 8)[0] == 812.5  # W per GPU in the sheet


@pytest.mark.parametrize("workload", [{"model": "llama2-7b", "global_batch": 64}, {"model": "gemm", "m": 4096, "n": 4096, "k": 4096}])
def test_a_rent_that_varies_between_points_is_theirs(workload):
    scenario = from_dict({"system": "dgx-h100", "workload": workload, "strategy": "d8" if "m" in workload else "tp8"})
    column = evaluate(scenario, {"system.operation.price": ["2 USD/hour", "4 USD/hour"]}).columns()["usd_per_million_samples"]
    assert 0 < 2 * column[0] == pytest.approx(column[1])


def test_the_load_of_a_node_and_the_overhead_of_its_house_count_once_by_hand():
    """Ten seconds of a node of four devices: (1000 W x 10 s + 1.2 x 8000 J) / 0.8 at the wall, 1.5 times that from the grid."""
    load = NodeLoad(base=points(1000.0), fans=points(0.2), supply=points(0.8))
    assert node_energy(load, points(8000.0), points(10.0)) == pytest.approx(24_500.0, rel=1e-12)
    assert node_power(load, points(200.0), 4) == pytest.approx(2_450.0, rel=1e-12)
    cost = run_cost(
        amount=5.0, per_step=1.0, step_time=2.0, devices=4, step_energy=1600.0, devices_per_node=4, load=load,
        operation=OperationSpec(pue=points(1.5)),
    )  # fmt: skip
    assert cost.facility_energy == pytest.approx(36_750.0, rel=1e-12)
