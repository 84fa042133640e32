"""Rows predicted without what was fitted to their own chip, source or engine."""

import pytest
import yaml

import crossflow
from crossflow.base.errors import CrossflowError
from crossflow.base.units import parse
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.left_out import WAYS, leave_out
from crossflow.evidence.validation.tables import shipped

GEMM = "source,device,dtype,m,n,k,time_us\n" + "".join(
    f"{source},{device},fp16,4096,4096,{k},{time}\n"
    for source, device, k, time in (
        ("vidur-2024", "a100-80gb", 4096, 600), ("vidur-2024", "h100-80gb", 4096, 300), ("llmcompass-2024", "a100-80gb", 64, 40)
    )
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "gemm.csv").write_text(GEMM)
    return tmp_path


def of(report):
    return report.tables[0]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_chip_has_the_parameters_of_the_generation_before_it(folder):
    """Only the H100 has one; its rows move, and nothing is kept of it afterwards."""
    found = leave_out("chip", folder)
    assert of(found.fitted).groups["device"] == of(found.left_out).groups["device"] == ["h100-80gb"]
    assert of(found.fitted).predicted.tolist() == of(validate(folder)).predicted[1:2].tolist()
    assert of(found.left_out).predicted[0] != of(found.fitted).predicted[0]
    assert of(found.left_out).skipped == {"nothing was fitted to the rows of its chip alone": 2}


@pytest.mark.slow
def test_a_source_loses_what_was_fitted_of_how_it_measured(folder):
    """LLMCompass timed calls with the host's 24 us in them, which Vidur did not."""
    found = leave_out("source", folder)
    assert of(found.fitted).groups["source"] == ["llmcompass-2024"]
    assert of(found.fitted).predicted[0] - of(found.left_out).predicted[0] == pytest.approx(24e-6, rel=1e-9)


def test_a_source_of_services_takes_the_front_end_of_others_with_its_engine():
    """And nothing of what they have from it; what its benchmark's code says, and what it has from others, stays."""
    contents = yaml.safe_load(WAYS["source"]()[0][shipped() / "measurements.yaml"])
    mine, other = (contents[name]["service"]["vllm"] for name in ("nvidia-gap-analysis", "inferencex"))
    assert (parse(mine["front_end"], "s"), mine["front_token"], mine["requests_a_user"]) == (pytest.approx(14e-3), "2.7 us", 10)
    assert (parse(other["front_end"], "s"), parse(other["front_token"], "s")) == (pytest.approx(8e-3), 0.0)
    assert contents["llmcompass-2024"]["host_time"] == "0 us"


@pytest.mark.slow
def test_an_engine_is_told_by_a_similar_one(folder):
    """Steps of MLPerf by those of other software; products alone have no engine."""
    rows = [line for line in (shipped() / "mlperf_training.csv").read_text().splitlines() if not line.startswith("#")]
    (folder / "mlperf_training.csv").write_text("\n".join(rows[:7]) + "\n")
    found = leave_out("engine", folder)
    tables, fitted = ({table.name: table for table in report.tables} for report in (found.left_out, found.fitted))
    assert not len(tables["gemm"].measured)
    assert len(tables["mlperf_training"].measured) == len(fitted["mlperf_training"].measured) > 2
    assert (tables["mlperf_training"].predicted != fitted["mlperf_training"].predicted).any()
    data = found.to_dict()
    assert data["leave_out"] == "engine"
    entry = data["tables"]["mlperf_training"]
    assert entry["n"] == entry["fitted"]["n"]
    assert entry["median_abs_error"] != entry["fitted"]["median_abs_error"]


def test_what_cannot_be_left_out_is_said(folder, refused):
    assert crossflow.leave_out is leave_out
    with pytest.raises(CrossflowError, match="got 'chips'; did you mean 'chip'"):
        leave_out("chips", folder)
    with pytest.raises(CrossflowError, match="no number in the package belongs to one model"):
        leave_out("model", folder)
    assert tuple(WAYS) == ("chip", "source", "engine")
    assert "give one of them" in refused("validate", "--drop", "execution.kernel_launch", "--leave-out", "chip")


def test_the_page_shows_both_errors(folder, capsys):
    from crossflow.__main__ import main

    assert main(["validate", "--data", str(folder), "--leave-out", "chip"]) == 0
    shown = capsys.readouterr().out
    assert "1 rows without what was fitted to their own chip" in shown
    assert "median left out" in shown
