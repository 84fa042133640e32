"""2:4 sparsity of weights: bytes, rates of units that leave out half of the work, what they take, and what is refused."""

import csv
from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow.base.errors import SpecError
from crossflow.base.formats import DTYPE_BYTES, FORMATS, STORED_BYTES, structured
from crossflow.cost.roofline import product_costs
from crossflow.evidence.validation.tables import device_architecture
from crossflow.hardware.architecture.datatypes import cells, datapath_cells, with_types
from crossflow.hardware.technology.library import load_library

SERVICE = {"model": "llama3-8b", "global_batch": 4, "prompt": 1024, "output": 128, "task": "decode"}
LAYERS = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)  # parameters of matrices
MEASURED = Path(__file__).parent / "data" / "structured_products.csv"


def scenario(system="dgx-h100", changes=None, **workload):
    return crossflow.from_dict(
        {"system": {"template": system, "devices": 1, **(changes or {})}, "workload": {**SERVICE, **workload}, "strategy": "d1"}
    )


def score(system="dgx-h100", changes=None, **workload):
    return crossflow.predict(scenario(system, changes, **workload)).score


def gain(device, dtype, m, n=8192, k=8192):
    """Time of a product over that with 2:4 sparsity of B."""
    sizes, result = np.array([m, n, k, 1.0])[:, None, None], np.array([[2.0]])
    second = np.array([[STORED_BYTES[structured(dtype)] / DTYPE_BYTES[dtype]]])
    dense = product_costs(sizes, result, device, dtype)
    sparse = product_costs(sizes, result, device.leaving_out, dtype, second=second, leaves_out=True, as_is=np.array([[True]]))
    return dense.time[0, 0] / sparse.time[0, 0]


# ------------------------------------------------------------------------------------------ bytes


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 9),
        ("fp8", 5),
        ("int8", 5),
        ("mxfp8", 5 + 8 / 64),
        ("int4", 2.5 + 20 / 128),
        ("mxfp4", 2.5 + 8 / 64),
        ("nvfp4", 2.5 + 8 / 32),
    ],
)
def test_half_of_the_weights_and_two_bits_for_each_place(name, bits):
    """Mishra et al. (arXiv:2104.08378), Sec. 2: 44 % less of 16 bits, 38 % of 8."""
    assert 8 * STORED_BYTES[structured(name)] == bits


@pytest.mark.cases(1)
@pytest.mark.parametrize(("given", "stored"), [({}, "bf16"), ({"dtype": "fp8"}, "fp8"), ({"weight_dtype": "int4"}, "int4")])
def test_a_service_keeps_its_layers_so_and_embedding_and_head_whole(given, stored):
    whole, sparse = (score(**given, **more).memory["weights"][0] for more in ({}, {"weight_sparsity": "2:4"}))
    saved = DTYPE_BYTES[stored] - STORED_BYTES[structured(stored)]
    assert whole - sparse == pytest.approx(LAYERS * saved, rel=1e-3)  # norms are counted with the layers


# ------------------------------------------------------------------------------------------ rates


@pytest.mark.parametrize(
    ("device", "dtype", "rate"),
    [
        ("a100-80gb", "fp16", 624e12), ("a100-80gb", "tf32", 312e12), ("a100-80gb", "int8", 1248e12), ("h100-sxm", "fp16", 1979e12),
        ("h100-sxm", "fp8", 3958e12), ("b200", "fp8", 9e15), ("b200", "nvfp4", 18e15), ("gb300", "nvfp4", 20e15),
        ("mi300x", "fp16", 2614.9e12),
    ],
)  # fmt: skip
def test_rates_are_those_of_data_sheets(device, dtype, rate):
    assert device_architecture(device).sparse_throughput[dtype][0] == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("task", ["decode", "prefill"])
def test_units_that_leave_out_nothing_gain_bytes_alone_and_say_so(task):
    given = {"task": task, "prompt": 8192, "global_batch": 1} if task == "prefill" else {}
    dense, sparse = scenario("mi210-node", dtype="fp16", **given), scenario("mi210-node", dtype="fp16", weight_sparsity="2:4", **given)
    told = crossflow.predict(sparse)
    assert any("weights take fewer bytes" in note and note.endswith("give system.sparse_speedup.fp16") for note in told.notes)
    before, after = crossflow.predict(dense).score.step_time[0], told.score.step_time[0]
    assert after < 0.8 * before if task == "decode" else after > 0.99 * before


def test_reading_prompts_gains_where_units_leave_out_half():
    given = {"task": "prefill", "prompt": 8192, "global_batch": 1}
    whole, sparse = (crossflow.predict(scenario(**given, **more)) for more in ({}, {"weight_sparsity": "2:4"}))
    assert 1.4 < whole.score.step_time[0] / sparse.score.step_time[0] < 2
    assert not any("weight_sparsity" in note for note in sparse.notes)


def test_no_product_gains_more_than_half_of_the_work_and_of_the_bytes():
    for device, dtype in (("a100-80gb", "bf16"), ("h100-sxm", "fp8"), ("b200", "nvfp4"), ("mi300x", "fp16")):
        architecture = device_architecture(device)
        gains = [gain(architecture, dtype, m) for m in (1.0, 64.0, 512.0, 8192.0)]
        assert all(1.0 <= one <= 2.0 for one in gains), (device, gains)


def test_energy_of_computing_is_halved_and_no_more():
    device = device_architecture("h100-sxm")
    assert device.sparse_energy["fp8"] == pytest.approx(device.energy_per_flop["fp8"] / 2, rel=1e-3)


def test_gains_are_those_of_measured_kernels():
    """cuSPARSELt beside cuBLASLt, of 1,024 rows and more; nothing is fitted. In bf16 the A100 gained 1.42 and is predicted with 1.90."""
    with MEASURED.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    told = {}
    for row in rows:
        if int(row["m"]) >= 1024:
            own = gain(device_architecture(row["device"]), row["dtype"], *(float(row[side]) for side in "mnk"))
            told.setdefault((row["device"], row["dtype"]), []).append((own, float(row["dense_us"]) / float(row["sparse_us"])))
    ratio = {key: np.exp(np.log(np.array(pairs)).mean(axis=0)) for key, pairs in told.items()}
    ratio = {key: own / measured for key, (own, measured) in ratio.items()}
    assert ratio.pop(("a100-pcie-80gb", "bf16")) == pytest.approx(1.34, abs=0.05)
    assert all(0.95 < one < 1.05 for one in ratio.values()), ratio


# ------------------------------------------------------------------------------------------ units


def test_choosing_takes_cells_by_hand():
    """fp16: 16 bits of a second element over two multipliers, two bits of a place likewise, two multiplexers of half a cell a bit."""
    path = load_library("standard").datapath["dot-product"]
    more = cells(FORMATS["fp16"], path, sparse=True) - cells(FORMATS["fp16"], path)
    assert more.sum() == pytest.approx(8 + 1 + 16)


def test_units_that_were_published_without_it_grow_and_those_with_it_do_not():
    library = load_library("standard")
    asked, sparse = {"fp16": np.ones(1)}, {"fp16": np.full(1, 2.0)}
    own, other = (library.component("compute", name) for name in ("gpu-matrix-unit", "cdna-matrix-unit"))
    assert with_types(own, asked, library, sparse).larger == pytest.approx(1.0)
    found = with_types(other, asked, library, sparse)
    path = library.datapath["dot-product"]
    grown = datapath_cells(other.types, path, sparse)[0] / datapath_cells(other.types, path)[0]
    assert found.larger[0] == pytest.approx(1 + other.datapath_area[0] * (grown - 1))
    assert 1.002 < found.larger[0] < 1.02
    drawn = 1 + 0.68 * 25 / cells(FORMATS["fp16"], path).sum()
    assert found.sparse["fp16"][0] / found.operations["fp16"][0] == pytest.approx(2.0 / drawn)  # operations for the energy of one
    assert with_types(own, asked, library, sparse).sparse["fp16"] == pytest.approx(2.0)


def test_generated_chips_gain_and_keep_their_power():
    changes = {"rates": {"fp16": 1, "bf16": 1, "fp32": 0.0333}, "sparse_rates": {"fp16": 2, "bf16": 2}}
    given = {"task": "prefill", "prompt": 8192, "global_batch": 1, "weight_sparsity": "2:4"}
    without, with_it = (crossflow.predict(scenario("chip-h100", more, **given)) for more in ({"rates": changes["rates"]}, changes))
    assert 1.2 < without.score.step_time[0] / with_it.score.step_time[0] < 2
    assert with_it.score.power[0] <= with_it.device.maximum_power[0] * (1 + 1e-9)


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("changes", "workload", "sentence"),
    [
        ({}, {"task": "training"}, "training with 2:4 sparsity is not modelled"),
        ({}, {"model": "mixtral-8x7b"}, "no library multiplies experts"),
        ({}, {"weight_sparsity": "1:4"}, "expected one of 2:4"),
        ({"sparse_speedup": {"bf16": 3}}, {}, "2:4 sparsity leaves half of the work"),
        ({"sparse_speedup": {"fp8": 0.2}}, {}, "2:4 sparsity leaves half of the work"),
        ({"sparse_speedup": {"nvfp4": 2}}, {}, "throughput has no nvfp4"),
    ],
)
def test_refused_in_one_sentence(changes, workload, sentence):
    with pytest.raises(SpecError, match=sentence):
        scenario("dgx-h100", changes, **{"weight_sparsity": "2:4", **workload})


def test_a_unit_whose_datapath_is_not_known_cannot_have_it():
    changes = {"technology": {"compute": "pascal-core"}, "matrix_unit": {"height": 4, "width": 4}, "sparse_rates": {"fp16": 2}}
    found = crossflow.predict(scenario("chip-h100", changes))
    assert not found.feasible
