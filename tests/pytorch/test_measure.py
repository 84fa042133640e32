"""Microbenchmarks of this machine: structure and laws that hold however busy it is; accuracy where CROSSFLOW_MEASURE is set."""

import json
import os
import statistics
import time
from pathlib import Path

import pytest
import torch

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.base.locks import owning
from crossflow.cost.profile import kernel_of, read_profile
from crossflow.evidence.calibration.calibrate import calibrate
from crossflow.evidence.measurement import results
from crossflow.evidence.measurement.clock import Clock
from crossflow.evidence.measurement.kernels import KINDS, BenchmarkSettings, benchmarks, event_of
from crossflow.evidence.measurement.measure import MeasureOptions, measure
from crossflow.evidence.torch import record
from crossflow.evidence.validation.comparison import validate
from crossflow.hardware.architecture.system import resolve
from crossflow.program import write_program
from crossflow.program.kernels import Pass

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = BenchmarkSettings(device="cpu", dtype="fp32")
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A few rows of some kinds."""
    place = tmp_path_factory.mktemp("measured") / "m"
    measure(MeasureOptions(folder=place, only=["host", "gemm", "softmax"], threads=1, minutes=0.001))
    return place


def test_the_first_line_says_where_rows_come_from(folder):
    found = results.read_rows(folder)
    assert (found.header.threads, found.header.torch, found.header.on) == (1, torch.__version__, "cpu")
    assert found.header.machine.cpu
    assert found.header.machine.cores == os.cpu_count()
    assert (folder / results.PROFILE).read_text().startswith("# written by crossflow measure\n# device: ")


def test_every_kind_is_measured_however_short_the_time(folder):
    rows = results.read_rows(folder).rows
    assert [row.kind for row in rows] == ["host"] * 3 + ["gemm"] * 3 + ["softmax"] * 3
    assert all(row.time > 0 and row.count >= 5 and row.cpu is not None for row in rows)


def test_the_profile_and_the_template_are_read_as_any(folder):
    spec, _ = resolve(Document(file="test", data={"template": str(folder / results.TEMPLATE)}))
    profile = read_profile(folder / results.PROFILE, spec.name)
    assert profile.events
    assert not profile.others
    assert all(kernel_of(op, shape, dtype) is not None for op, shape, dtype, _, _ in profile.events)
    assert spec.nearby
    (folder / "over.yaml").write_text(f"kind: system\nname: over\ntemplate: {results.TEMPLATE}\n")
    gemm = write_program(record(lambda: (torch.nn.Linear(64, 64), torch.ones(4, 64)), kernels="eager"), folder / "one.program.json")
    over = crossflow.from_dict({"system": {"template": str(folder / "over.yaml")}, "workload": str(gemm)})
    assert over.profile.events.keys() == profile.events.keys()


def test_validate_and_calibrate_take_the_folder(folder, capsys):
    """Products as `validate` reads them, of the machine beside them; `calibrate` reads the profile of a folder."""
    table = validate(folder).to_dict()["tables"]["gemm"]
    assert (table["n"], table["skipped"]) == (3, 0)
    products = [row for row in results.read_rows(folder).rows if row.op == "gemm"]
    assert (folder / results.PRODUCTS).read_text().count("crossflow-measure") == len(products)
    with pytest.raises(CrossflowError, match=r"nothing to fit .*: 3 too few gemm, fp32"):
        calibrate([folder], str(folder / results.TEMPLATE))


def test_steps_keep_the_kernels_that_the_importer_counts(folder):
    steps = [row for row in results.read_rows(folder).rows if row.kind == "host"]
    assert all(any(op == "gemm" for op, *_ in row.kernels) for row in steps)
    assert sum(count for *_, count in steps[0].kernels) > 20
    host = results.read_rows(folder).host
    assert host.forward + host.backward + host.update > 0


def test_what_a_call_makes_is_kept_for_a_round():
    made = []
    calls = [lambda: made.append(torch.ones(8)) or made[-1]] * 4
    Clock(device="cpu", threads=1).timed(calls, 1e-3)
    assert len({one.data_ptr() for one in made[:4]}) == 4


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_measured_kernels_are_named_as_imported_ones(kind):
    """The smallest benchmark of every name is one kernel, whose name says all of its size."""
    smallest = {}
    for one in sorted(benchmarks(kind, SETTINGS), key=lambda one: one.held):
        smallest.setdefault(one.label.rstrip("0123456789x "), one)
    for one in list(smallest.values())[:40]:
        op, shape, dtype = one.event or event_of(one.make(), "fp32")
        assert not op or kernel_of(op, shape, dtype) is not None, one.label


def test_operations_keep_their_names():
    given = torch.ones(8, 8)
    _, shape, _ = event_of(lambda: torch.nn.functional.gelu(given), "fp32")
    assert shape == "1 gelu of 512 B"
    assert kernel_of("pass", shape, "") == Pass(moved=512.0, what="gelu")


def test_more_work_takes_longer():
    small, large = torch.ones(64, 64), torch.ones(1024, 1024)
    clock = Clock(device="cpu", threads=1)
    times = [clock.timed([lambda x=x: x @ x], 0.02).time for x in (small, large)]
    assert times[1] > 20 * times[0]


def test_a_run_goes_on_where_another_stopped(folder, tmp_path):
    place = tmp_path / "m"
    options = {"folder": place, "only": ["copies"], "threads": 1, "minutes": 0.001}
    before = measure(MeasureOptions(**options)).rows
    with (place / results.ROWS).open("a") as file:
        file.write('{"kind": "copies", "lab')  # killed while it wrote
    after = measure(MeasureOptions(**options, resume=True)).rows
    labels = [row.label for row in after]
    assert len(before) == 3
    assert [row.label for row in before] == labels[:3]
    assert len(set(labels)) == 6
    with pytest.raises(CrossflowError, match=r"rows\.jsonl exists; give --resume to go on with it, or another folder with -o"):
        measure(MeasureOptions(**options))
    with pytest.raises(CrossflowError, match="has rows of dtype fp32, this run of bf16; measure into another folder"):
        measure(MeasureOptions(**options, resume=True, dtype="bf16"))


def test_a_folder_has_one_writer(tmp_path):
    told = pytest.raises(CrossflowError, match=r" is being written by process \d+ on .*, or give another folder with -o$")
    with owning(tmp_path, "-o"), told:
        measure(MeasureOptions(folder=tmp_path))


def test_an_interrupted_run_keeps_its_rows(tmp_path):
    def stop(at):
        if at.rows == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(MeasureOptions(folder=tmp_path, only=["pointwise"], threads=1, minutes=1.0), stop)
    assert len(results.read_rows(tmp_path).rows) == 2
    assert (tmp_path / results.PROFILE).is_file()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--only", "gem"], "--only: expected some of host, copies, gemm,"),
        (["--minutes", "0"], "--minutes: expected more than 0 and at most a day, got 0"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, capsys, words, sentence):
    assert main(["measure", "-o", str(tmp_path / "m"), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path, capsys):
    assert main(["measure", "-o", str(tmp_path / "m"), "--device", "cuda"]) == 2
    assert "torch finds no GPU here; measure with --device cpu" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured_by_events(tmp_path):
    found = measure(MeasureOptions(folder=tmp_path / "m", only=["gemm", "copies"], device="cuda", dtype="bf16", minutes=0.05))
    assert {row.dtype for row in found.rows if row.kind == "gemm"} == {"bf16"}


def test_progress_is_for_terminals(tmp_path, capsys):
    assert main(["measure", "-o", str(tmp_path / "m"), "--only", "copies", "--threads", "1", "--minutes", "0.001", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"] == 3
    assert [line.partition(" ")[0] for line in err.splitlines()] == ["wrote"] * len(err.splitlines())


# -------------------------------------------------------------------------------------------- accuracy


@pytest.mark.skipif("CROSSFLOW_MEASURE" not in os.environ, reason="measures this machine for minutes; set CROSSFLOW_MEASURE=1")
def test_steps_that_were_not_measured_are_predicted_within_10_percent(tmp_path):
    """Processor time of eager steps on one thread, median, against a system that `measure` wrote."""
    measure(MeasureOptions(folder=tmp_path, threads=1, minutes=float(os.environ.get("CROSSFLOW_MINUTES", "6"))))
    errors = {}
    for name in ("perceptron", "encoder", "recommender"):
        source = f"{SCRIPTS / 'eager_steps.py'}:{name}"
        path = tmp_path / f"{name}.program.json"
        write_program(record(source, kernels="eager"), str(path))
        system = {"template": str(tmp_path / results.TEMPLATE)}
        predicted = crossflow.predict(crossflow.from_dict({"system": system, "workload": str(path)})).step_time
        errors[name] = predicted / _measured_step(source) - 1.0
    assert all(abs(error) < 0.1 for error in errors.values()), errors


def _measured_step(source):
    from crossflow.evidence.torch.source import function

    step, times = function(source)(), []
    for _ in range(24):
        begin = time.process_time()
        step()
        times.append(time.process_time() - begin)
    return statistics.median(times[3:])
