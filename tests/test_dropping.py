"""Which rows a fitted number moves: it is left out, or another stands in its place, and no file is changed."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from crossflow.__main__ import main
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation import changes
from crossflow.evidence.validation.changes import effects
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.dropping import droppable, dropped
from crossflow.evidence.validation.report import Report, Table
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


@pytest.fixture
def moved(monkeypatch):
    """What a number moves where the tables with it and without it are as given: measured and predicted times of two sources."""

    def found(*tables):
        reports = iter(
            Report(data=Path(), tables=(Table(name="gemm", measured=np.array(measured), predicted=np.array(predicted),
                groups={"source": ["s", "t"]}, skipped={}),)) for measured, predicted in tables)  # fmt: skip
        monkeypatch.setattr(changes, "validate", lambda _: next(reports))
        monkeypatch.setattr(changes, "dropped", lambda _: {})
        return effects(None, "execution.kernel_launch")["tables"]["gemm"]

    return found


def test_errors_with_a_number_and_without_it_by_hand(moved):
    """Of two sources with a row each, one is 50 % too slow with the number and 25 % without it, the other right."""
    table = moved(([1.0, 2.0], [1.5, 2.0]), ([1.0, 2.0], [1.25, 2.0]))
    source = table["by_source"]
    assert (table["n"], table["moved"], source["s"]["n"], source["s"]["moved"], source["t"]["moved"]) == (2, 1, 1, 1, 0)
    assert (table["bias"], table["bias_without"]) == (0.25, 0.125)
    assert (table["median_abs_error"], table["median_abs_error_without"]) == (0.25, 0.125)
    assert (source["s"]["bias"], source["s"]["bias_without"]) == (0.5, 0.25)
    assert (source["t"]["bias"], source["t"]["bias_without"]) == (0.0, 0.0)


def test_rows_that_only_one_of_both_predicts_count_on_its_side(moved):
    table = moved(([1.0, 2.0], [1.5, 2.0]), ([1.0, np.nan], [1.25, np.nan]))
    assert (table["n"], table["moved"], table["by_source"]) == (2, None, {})
    assert (table["bias"], table["bias_without"]) == (0.25, 0.25)


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


def test_fitted_numbers_are_listed_a_line_each_that_no_longest_name_pads(capsys):
    assert main(["validate", "--drop"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(droppable())
    assert all(re.fullmatch(r"\S.*\S  \S+\.yaml(, \S+\.yaml)*", line) for line in lines)
    assert "execution.tiles.fill  amd-gpu.yaml, nvidia-ada.yaml" in "\n".join(lines)
