"""Which rows a fitted number moves: it is left out, or another stands in its place, and no file is changed."""

import pytest
import yaml

from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.changes import effects
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.dropping import droppable, dropped
from crossflow.evidence.validation.tables import shipped

ROWS = "source,device,dtype,m,n,k,time_us\ns,a100-80gb,fp16,4096,4096,4096,600\nt,h100-80gb,fp16,4096,4096,4096,300\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "gemm.csv").write_text(ROWS)
    return tmp_path


@pytest.mark.thorough
@pytest.mark.slow
def test_a_number_moves_the_rows_of_its_kernels(folder):
    before = validate(folder).tables[0].predicted
    found = effects(folder, "execution.kernel_launch")
    table = found["tables"]["gemm"]
    assert (table["moved"], table["by_source"]["s"]["moved"]) == (2, 1)
    assert {"nvidia-ampere.yaml", "nvidia-hopper.yaml"} <= set(found["files"])
    assert table["bias_without"] < table["bias"]
    assert validate(folder).tables[0].predicted.tolist() == before.tolist()


@pytest.mark.slow
def test_a_number_of_other_kernels_moves_none(folder):
    assert effects(folder, "software.nemo.host.step")["tables"]["gemm"]["moved"] == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_another_value_stands_in_its_place(folder):
    slower = effects(folder, "execution.kernel_launch=50 us")["tables"]["gemm"]
    assert slower["bias_without"] > slower["bias"]


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "neutral"),
    [
        ("network.parameters.launch", "0 us"), ("execution.matrix_utilisation", 1), ("software.nemo.product_slowdown", 0),
        ("execution.chip_power", None),
    ],
)  # fmt: skip
def test_left_out_means_that_it_does_nothing(name, neutral):
    for path, text in dropped(name).items():
        data = yaml.safe_load(text)
        for key in name.removeprefix("software.nemo.").split("."):
            data = data.get(key) if isinstance(data, dict) else data
        assert data == neutral, path


@pytest.mark.slow
def test_a_condition_of_a_source_can_be_left_out():
    text = dropped("measurements.hf-ultrascale-2025.host.rank")[shipped() / "measurements.yaml"]
    assert yaml.safe_load(text)["hf-ultrascale-2025"]["host"] == {"rank": "0 us"}


def test_misnamed_numbers_are_refused(exactly):
    sentence = (
        "no fitted number is called 'exection.tiles.fill'; did you mean 'execution.tiles.fill'? (`crossflow validate --drop` lists them)"
    )
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        dropped("exection.tiles.fill")


def test_what_cannot_be_absent_asks_for_a_value():
    with pytest.raises(CrossflowError, match=r"send_buffer_rate cannot be left out: .* --drop network\.parameters\.send_buffer_rate=VALUE"):
        dropped("network.parameters.send_buffer_rate")


def test_only_fitted_numbers_can_be_left_out():
    """Those of datasheets and those that no row decides are no part of a fit."""
    known = droppable()
    assert {"execution.tiles.fill", "network.parameters.launch", "software.megatron-core.host.kernel"} <= set(known)
    assert "network.parameters.rdma_efficiency" not in known  # adopted
    text = files.catalogue("templates", "families")["fabrics"].read_text(encoding="utf-8")
    assert "rdma_efficiency: {value: 0.92, source: adopted" in text
