# ruff: noqa: E501  (exact sentences)
"""Accuracy told honestly: errors by hand, the excerpt's figures under the project's floors, every row counted."""

import csv
import json

import numpy as np
import pytest

import crossflow
from crossflow.answers import bands
from crossflow.answers.bands import Band, Likeness
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.bands import coverage, judged, lines, written
from crossflow.evidence.validation.comparison import READERS, validate
from crossflow.evidence.validation.report import Table, errors
from crossflow.evidence.validation.tables import device_architecture, numbers, shipped, template_of

GEMM = "source,device,dtype,m,n,k,time_us\n"
COLLECTIVES = "source,system,collective,ranks,ranks_per_node,size_bytes,time_us\n"
SYSTEMS = (
    "system,device,gpus_per_node,intra_fabric,intra_gb_s_per_direction,pcie_gb_s_per_direction,inter_network,inter_gbit_s_per_gpu,note\n"
)


# Tables that have tests of their own, and take three quarters of the time: steps of services, and replays.
APART = ("serving", "serving_latency", "accelerators_serving", "wide_experts", "post_training")


@pytest.fixture(scope="module", params=[APART, pytest.param((), marks=pytest.mark.thorough)], ids=["without services", "whole"])
def report(request):
    with pytest.MonkeyPatch.context() as patch:
        for name in request.param:
            patch.delitem(READERS, name)
        return validate()


@pytest.fixture(scope="module")
def excerpt(report):
    return {table.name: table for table in report.tables}


@pytest.fixture
def folder(tmp_path):
    """Write tables to a folder and validate it."""

    def check(**tables):
        for name, text in tables.items():
            (tmp_path / f"{name}.csv").write_text(text)
        return {table.name: table.to_dict() for table in validate(tmp_path).tables}

    return check


def shipped_bands():
    with bands.FILE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def data_rows(path):
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")][1:]


# ------------------------------------------------------------------------------------------ errors


def test_errors_by_hand():
    found = errors(np.array([1.0, 2.0, 4.0, 10.0]), np.array([1.1, 1.0, 4.0, 13.0]))
    assert found["n"] == 4
    assert found["median_abs_error"] == pytest.approx((0.1 + 0.3) / 2)
    assert found["mean_abs_error"] == pytest.approx((0.1 + 0.5 + 0.0 + 0.3) / 4)
    assert found["p90_abs_error"] == pytest.approx(0.3 + 0.7 * 0.2)
    assert found["bias"] == pytest.approx((0.1 - 0.5 + 0.0 + 0.3) / 4)


def test_errors_of_nothing_are_nothing():
    nothing = {"n": 0, "median_abs_error": None, "mean_abs_error": None, "p90_abs_error": None, "bias": None}
    assert errors(np.zeros(0), np.zeros(0)) == nothing


def test_errors_are_relative_to_what_was_measured():
    measured, predicted = np.array([3.0, 5.0]), np.array([4.0, 4.0])
    assert errors(1e-6 * measured, 1e-6 * predicted) == pytest.approx(errors(measured, predicted))
    assert errors(measured, predicted) != pytest.approx(errors(predicted, measured))


def test_groups_hold_their_own_rows():
    table = Table(
        name="t", measured=np.array([1.0, 1.0, 1.0]), predicted=np.array([1.1, 1.2, 2.0]), groups={"device": ["a", "a", "b"]}, skipped={"why": 2, "not": 1}
    )  # fmt: skip
    found = table.to_dict()
    assert found["by"]["device"]["a"]["mean_abs_error"] == pytest.approx(0.15)
    assert found["by"]["device"]["b"] == pytest.approx(
        {"n": 1, "median_abs_error": 1.0, "mean_abs_error": 1.0, "p90_abs_error": 1.0, "bias": 1.0}
    )
    assert (found["n"], found["skipped"], found["skipped_reasons"]) == (3, 3, {"why": 2, "not": 1})


# ------------------------------------------------------------------------------------------ the excerpt


@pytest.mark.thorough
@pytest.mark.slow
def test_the_excerpt_is_predicted_whole(excerpt):
    for name, table in excerpt.items():
        found = table.to_dict()
        if name in ("generated_gemm", "kernel_power", "hindcasts"):  # rows of other tables once more, and those of files of their own
            continue
        if name in ("power", "wide_experts"):  # of most benchmarks no layout is known, and some rates no scenario says
            assert found["n"] + found["skipped"] == len(data_rows(shipped() / f"{name}.csv"))
            continue
        # A run that ended for lack of memory has a fate to compare, and no time.
        each = 2 if name in ("expert_exchange", "serving") else 1  # there and back; the first token and each further one
        rows = each * len(data_rows(shipped() / f"{name}.csv"))
        assert (
            found["n"] + found.get("oom_n", 0) == rows if name not in ("serving_latency", "accelerators_serving") else found["n"] >= rows
        )  # some tell of two times
        assert found["skipped"] == 0
        for groups in found["by"].values():
            assert sum(group["n"] for group in groups.values()) == found["n"]


@pytest.mark.slow
@pytest.mark.parametrize(("device", "floor"), [("a100-80gb", 0.08), ("h100-80gb", 0.10)])
def test_long_products_are_within_their_floor(excerpt, device, floor):
    found = excerpt["gemm"].to_dict()["by"]["device and regime"][f"{device}, >= 100 us"]
    assert found["n"] >= 30
    assert found["mean_abs_error"] < floor
    assert abs(found["bias"]) < floor / 2


@pytest.mark.parametrize(("regime", "floor"), [("inside NVSwitch nodes", 0.07), ("where the wiring matters", 0.15), ("across nodes", 0.15)])
def test_large_collectives_are_within_their_floor(excerpt, regime, floor):
    found = excerpt["collectives"].to_dict()["by"]["regime"][f"{regime}, >= 1 MiB"]
    assert found["n"] >= 40
    assert found["median_abs_error"] < floor


@pytest.mark.slow
def test_a_report_is_plain_data_and_reads_as_text(excerpt, report):
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["tables"].keys() == excerpt.keys()
    assert repr(report).splitlines()[1].startswith("  gemm: 173 rows, mean absolute error ")


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "system", "type_"), [("a100-80gb", "dgx-a100", ""), ("h100-80gb", "dgx-h100", ""), ("h100-80gb", "dgx-h100", "fp8")]
)
def test_products_are_validated_as_they_are_predicted(device, system, type_, folder):
    """The error that `validate` prints is that of `predict` on the same rows; in fp8 too, whose results stay in 16 bits."""
    mine = [row.split(",") for row in data_rows(shipped() / "gemm.csv") if row.split(",")[:2] == ["vidur-2024", device]][::8]
    mine = [[*row[:2], type_ or row[2], *row[3:]] for row in mine]
    relative = []
    for _, _, dtype, m, n, k, micros in mine:
        workload = {"model": "gemm", "m": int(m), "n": int(n), "k": int(k), "dtype": dtype}
        found = crossflow.predict(crossflow.from_dict({"system": {"template": system, "devices": 1, "nodes": None}, "workload": workload}))
        relative.append(found.step_time / float(micros) / 1e-6 - 1.0)
    told = folder(gemm=GEMM + "\n".join(map(",".join, mine)))["gemm"]
    assert told["n"] == len(relative) >= 8
    assert told["bias"] == pytest.approx(np.mean(relative), rel=1e-9)
    assert told["mean_abs_error"] == pytest.approx(np.mean(np.abs(relative)), rel=1e-9)


# ------------------------------------------------------------------------------------------ bands of error of its rows

DENSE = "training of dense language models"


@pytest.fixture(scope="module")
def rows(report):
    return list(judged(report.tables))


@pytest.mark.slow
def test_rows_of_the_excerpt_that_are_kept_aside_lie_within_their_band_by_kind_and_chip(rows):
    found = coverage(rows)
    assert {one.chip for one in found} >= {"", "a100-80gb", "h100-sxm", "b200", "h200"}
    assert {one.kind for one in found} >= {"matrix products", DENSE, "training of mixtures of experts", "collectives"}
    assert all(0.85 <= one.share <= 0.97 for one in found if one.n >= 100)


@pytest.mark.slow
def test_the_shipped_file_is_what_the_script_writes_of_the_full_data(rows):
    """Of the excerpt it writes lines of the same kinds and form, whose medians are near where they have rows enough."""
    made = {Likeness(**{key: line[key] for key in Likeness.__dataclass_fields__}): line for line in shipped_bands()}
    ours = lines(rows)
    assert written({like: Band(**figures(line)) for like, line in made.items()}) == bands.FILE.read_text(encoding="utf-8")
    for like, band in ours.items():
        if band.n >= 40 and like.kind != "collectives":  # of which the excerpt has other sources
            assert 0.4 < float(made[like]["median"]) / band.median < 2.5, like


def figures(line):
    return {
        "median": float(line["median"]),
        "p90": float(line["p90"]),
        "bias": float(line["bias"]),
        "n": int(line["n"]),
        "tables": line["tables"],
    }


# ------------------------------------------------------------------------------------------ devices and systems


@pytest.mark.parametrize(
    ("device", "template"),
    [
        ("a100-80gb", "a100-80gb"),
        ("A100-80GB", "a100-80gb"),
        (" h100-80gb", "h100-sxm"),
        ("a40-48gb", "a40"),
        ("h100-sxm", "h100-sxm"),
        ("mi210-64gb", "mi210"),
        ("a100-40gb", "a100-40gb"),
        ("v100-32gb", "v100-sxm2-32gb"),
        ("tpu-v5", None),
        ("h100-pcie", "h100-pcie-80gb"),
        ("dgx-a100", None),
        ("ampere", None),
        ("", None),
    ],
)
def test_devices_find_their_template(device, template):
    assert template_of(device) == template
    assert getattr(device_architecture(device), "name", None) == template


def test_unknown_devices_and_types_are_skipped_with_the_reason(folder):
    rows = [
        "s,a100-80gb,fp16,64,64,64,9",
        "s,z900,fp16,64,64,64,9",
        "s,z900,fp16,8,8,8,9",
        "s,a100-80gb,fp7,8,8,8,9",
        "s,gaudi2,bf16,8,8,8,9",
    ]
    found = folder(gemm=GEMM + "\n".join(rows))["gemm"]
    assert (found["n"], found["skipped"]) == (1, 4)
    assert found["skipped_reasons"] == {
        "no template for device 'z900'": 2,
        "template 'a100-80gb' has no fp7 matrix products that were ever measured": 1,
        "template 'gaudi2' has no bf16 matrix products that were ever measured": 1,
    }


def test_unknown_systems_and_collectives_are_skipped_with_the_reason(folder):
    rows = ["s,one,all_reduce,8,8,1048576,99", "s,two,all_reduce,8,8,1048576,99", "s,one,all_dance,8,8,1048576,99"]
    found = folder(collectives=COLLECTIVES + "\n".join(rows), systems=SYSTEMS + "one,a100,8,nvswitch,300,32,,,x\n")["collectives"]
    assert (found["n"], found["skipped"]) == (1, 2)
    assert found["skipped_reasons"] == {
        "system 'two' is not in systems.csv": 1,
        "unknown collective 'all_dance'; did you mean 'all_reduce'?": 1,
    }


def test_a_device_without_rows_of_its_own_is_predicted_from_its_template(folder):
    rows = "s,a40-48gb,fp16,4096,4096,4096,1000\ns,mi250x,fp16,4096,4096,4096,900\n"
    found = folder(gemm=GEMM + rows)["gemm"]
    assert (found["n"], found["skipped"]) == (2, 0)


def test_training_runs_are_among_the_tables(folder):
    """They run on the machines of sources.csv; what else holds of them is in test_training_runs.py."""
    head = "source,model,device,gpus,layers,hidden,heads,ffn,gated_ffn,vocab,seq,global_batch,micro_batch,tp,pp,dp,dtype,iter_time_s\n"
    run = "gpt,a100-80gb,8,8,1024,16,4096,0,32000,512,64,2,2,2,2,bf16,0.5\n"
    sources = "source,software,intra_fabric,inter_network,inter_gbit_s_per_node\ns,Megatron-LM (2022),nvswitch,infiniband,1600\n"
    found = folder(training_runs=f"{head}s,{run}t,{run}", sources=sources)["training_runs"]
    assert (found["n"], found["skipped"]) == (1, 1)
    assert found["skipped_reasons"] == {"source 't' is not in sources.csv": 1}


def test_order_and_comments_of_rows_do_not_matter(folder):
    rows = data_rows(shipped() / "gemm.csv")
    there = folder(gemm=GEMM + "\n".join(rows))["gemm"]
    back = folder(gemm="# a comment\n" + GEMM + "\n".join(rows[::-1]))["gemm"]
    for name in ("n", "median_abs_error", "mean_abs_error", "p90_abs_error", "bias"):
        assert back[name] == pytest.approx(there[name], rel=1e-12)


# ------------------------------------------------------------------------------------------ wrong folders


def test_a_missing_column_is_told_with_what_was_meant(folder, tmp_path, exactly):
    sentence = (
        f"{tmp_path / 'gemm.csv'}: column device is missing; did you mean 'devise'?\n{tmp_path / 'gemm.csv'}: column dtype is missing"
    )
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        folder(gemm="source,devise,m,n,k,time_us\ns,a100-80gb,1,1,1,1\n")


@pytest.mark.parametrize("wrong", ["fast", "", "64 B"])
def test_what_is_no_number_is_told_with_its_row(folder, tmp_path, exactly, wrong):
    row = f"s,a100-80gb,fp16,{wrong},64,64,9"
    with pytest.raises(CrossflowError, match=exactly(f"{tmp_path / 'gemm.csv'}: m: expected a number, got {wrong!r} in the row {row}")):
        folder(gemm=GEMM + "s,a100-80gb,fp16,64,64,64,9\n" + row + "\n")


ONE = "one,a100,8,nvswitch,300,32,,,x\n"


@pytest.mark.parametrize(
    ("row", "system"), [("s,one,all_reduce,eight,8,99,99", ONE), ("s,one,all_reduce,8,8,99,99", ONE.replace("300", "fast"))]
)
def test_what_is_no_number_in_other_columns_is_told(folder, row, system):
    with pytest.raises(CrossflowError, match=r"expected a number, got '(eight|fast)'"):
        folder(collectives=COLLECTIVES + row, systems=SYSTEMS + system)


def test_a_row_without_a_finite_prediction_is_counted(folder):
    found = folder(
        collectives=COLLECTIVES + "s,one,all_reduce,8,8,1048576,99\ns,one,all_reduce,8,8,1048576,98\n",
        systems=SYSTEMS + ONE.replace("300", ""),
    )["collectives"]
    assert (found["n"], found["skipped"]) == (0, 2)


@pytest.mark.parametrize("value", ["nan", "0", "-4"])
def test_what_no_measurement_can_be_is_told(folder, value):
    with pytest.raises(CrossflowError, match=f"m: expected a number above zero, got '{value}'"):
        folder(gemm=GEMM + f"s,a100-80gb,fp16,{value},64,64,9\n")


@pytest.mark.parametrize("system", [ONE.replace("nvswitch", "warp"), ONE.replace(",,,x", ",pigeon,200,x")])
def test_a_fabric_that_is_not_known_is_told_or_skipped(folder, system):
    found = folder(collectives=COLLECTIVES + "s,one,all_reduce,16,8,1048576,99\n", systems=SYSTEMS + system)["collectives"]
    assert (found["n"], found["skipped"]) == (0, 1)


def test_numbers_are_floats_in_order(tmp_path):
    assert numbers(tmp_path, [{"x": "1"}, {"x": "2.5e3"}], "x").tolist() == [1.0, 2500.0]


def test_missing_systems_are_told(folder, tmp_path, exactly):
    with pytest.raises(
        CrossflowError, match=exactly(f"{tmp_path / 'systems.csv'} is missing: collectives.csv names systems that it describes")
    ):
        folder(collectives=COLLECTIVES + "s,one,all_reduce,8,8,1048576,99\n")


def test_folders_without_tables_are_told(tmp_path, exactly):
    listed = ", ".join(f"{name}.csv" for name in READERS)
    runs = "and no run of a service (NAME.requests.jsonl, results of vLLM's or guidellm's benchmarks)"
    with pytest.raises(CrossflowError, match=exactly(f"{tmp_path} holds none of {listed}, {runs}")):
        validate(tmp_path)
    with pytest.raises(
        CrossflowError,
        match=exactly(f"{tmp_path / 'no'} is not a folder; give one with gemm.csv, collectives.csv or training_runs.csv as --data"),
    ):
        validate(tmp_path / "no")
