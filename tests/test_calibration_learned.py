"""Learned models: errors of held-out rows under those of Lin et al., what they are asked for, events filled."""

import csv
import functools
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from nccl_logs import ROWS

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation.events import events
from crossflow.base.files import Document
from crossflow.cost.profile import lookup_shape
from crossflow.edges.cli import calibrate as commands
from crossflow.evidence.calibration import learned
from crossflow.evidence.calibration.learned import learn
from crossflow.evidence.calibration.logs import LogOptions
from crossflow.evidence.calibration.measurements import MeasuredKernels, MeasuredProducts, _lookup
from crossflow.evidence.calibration.pricing import predicted
from crossflow.hardware.architecture.system import resolve

DATA = Path(__file__).parent / "data"
SENTENCE = "crossflow calibrate --learn needs scikit-learn, which is not installed; run: pip install 'crossflow[calibrate]'"


@pytest.fixture
def complaint(capsys):
    def of(*words):
        assert main(["calibrate", *map(str, words)]) == 2
        return capsys.readouterr().err.strip().removeprefix("crossflow: ")

    return of


@pytest.mark.slow
def test_without_scikit_learn_it_says_what_to_install(complaint, monkeypatch):
    monkeypatch.setattr("crossflow.evidence.calibration.learned.importlib.util.find_spec", lambda name: None)
    assert complaint(ROWS, "--system", "dgx-a100", "--learn") == SENTENCE


def needed():
    return pytest.importorskip("sklearn", reason="learned models need scikit-learn: pip install 'crossflow[calibrate]'")


@pytest.fixture(scope="module")
def lookups(tmp_path_factory):
    """Measured look-ups as their model has them on other rates, times a smooth factor of reuse that it does not know, with noise."""
    needed()
    rng, n = np.random.default_rng(2), 400
    draws = [2.0 ** rng.integers(low, high, n) for low, high in ((8, 15), (0, 6), (10, 22), (3, 8), (0, 7))]
    shapes = tuple(lookup_shape(*map(float, one)) for one in zip(*draws, strict=True))
    spec, _ = resolve(Document(file="test", data={"template": "a100-80gb"}))
    rows = MeasuredKernels(op="lookup", dtype="", shapes=shapes, time=np.ones(n), order=np.arange(n))
    missed = 0.6 + 0.4 / (1 + np.exp(-(np.log2(draws[2]) - 15) / 2)) + 0.15 * np.sin(np.log2(draws[4]))
    times = predicted(spec, rows) * missed * np.exp(0.02 * rng.standard_normal(n)) + 4e-6
    path = tmp_path_factory.mktemp("lookups") / "lookups.csv"
    path.write_text("\n".join(["op,shape,time", *(f"lookup,{shape},{time}" for shape, time in zip(shapes, times, strict=True))]) + "\n")
    return path


@pytest.mark.thorough
def test_lookups_are_learned_within_the_papers_errors(lookups):
    """Table I: 3 to 6 % geometric mean."""
    (kind,) = learn([lookups], "a100-80gb").kinds
    assert kind.errors("learned")["geometric_mean_abs_error"] < 0.05
    assert kind.errors("learned")["mean_abs_error"] < 0.5 * kind.errors("fitted")["mean_abs_error"]


XEON = """
kind: datasheet
name: xeon
family: cpu
year: 2023
sources: {lscpu: "lscpu of the machine; rates are usual ones"}
technology: {logic: N7, memory: DDR5, link: PCIe5}
units: {value: 1, source: lscpu}
clock: {value: 2.7 GHz, source: lscpu}
throughput: {fp32: {value: 80 Gflop/s, source: lscpu}}
vector_throughput: {fp32: {value: 80 Gflop/s, source: lscpu}}
levels:
  l1: {scope: unit, capacity: {value: 48 KiB, source: lscpu}, bandwidth: {value: 150 GB/s, source: lscpu}}
  l2: {scope: device, capacity: {value: 2 MiB, source: lscpu}, bandwidth: {value: 60 GB/s, source: lscpu}}
  l3: {scope: device, capacity: {value: 16 MiB, source: lscpu}, bandwidth: {value: 25 GB/s, source: lscpu}}
  memory: {scope: device, capacity: {value: 8 GiB, source: lscpu}, bandwidth: {value: 12 GB/s, source: lscpu}}
power: {tdp: {value: 100 W, source: lscpu}}
"""


@pytest.mark.parametrize(("every", "most"), [pytest.param(1, 0.05, marks=pytest.mark.thorough), (4, 0.12)])
def test_measured_embedding_bags_are_learned_within_the_papers_errors(tmp_path, every, most):
    """260 tables of a CPU, half of them held out; Table I has 4.4 to 5.6 % forward, geometric mean. A quarter of them teaches less."""
    needed()
    (tmp_path / "xeon.yaml").write_text(XEON)
    with (DATA / "embedding_bags.csv").open() as file:
        read = list(csv.DictReader(line for line in file if not line.startswith("#")))[::every]
    names = ["rows", "width", "samples", "pooling", *(f"reuse_{i}" for i in range(17))]
    rows = [",".join(["forward", str(1e6 * float(row["forward_s"])), *(row[name] for name in names)]) for row in read]
    (tmp_path / "bags.csv").write_text("\n".join([",".join(["part", "time_us", *names]), *rows]) + "\n")
    (kind,) = learn([tmp_path / "bags.csv"], str(tmp_path / "xeon.yaml")).kinds
    assert (kind.method, kind.samples.held_out.sum()) == ("Gaussian process", len(read) // 2)
    assert kind.errors("learned")["geometric_mean_abs_error"] < most


LOOKED = "part,rows,width,samples,pooling,distinct,time_us"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("fore,9,8,4,2,1,5", "part: expected one of forward, sort, update, gradient, got 'fore'"),
        ("forward,9,8,4,2,3,5", "distinct: expected different rows over look-ups, at most 1, got '3'"),
        ("forward,9,8,0,2,1,5", "samples: expected a number above zero, got '0'"),
    ],
)
def test_look_ups_that_cannot_be_read_are_told(complaint, tmp_path, row, sentence):
    (tmp_path / "t.csv").write_text(f"{LOOKED}\n{row}\n")
    assert complaint(tmp_path / "t.csv", "--system", "a100-80gb") == f"{tmp_path}/t.csv:2: {sentence}"


@pytest.mark.parametrize("distinct", [1.0, 0.25])
def test_look_ups_are_read_up_to_all_different_rows(distinct):
    row = dict(zip(LOOKED.split(","), f"forward,9,8,4,2,{distinct},5".split(","), strict=True))
    _, (time, _, kernel) = _lookup(row, 2)
    assert time == pytest.approx(5e-6)
    assert (kernel.distinct, kernel.rows, kernel.width, kernel.samples, kernel.pooling) == (distinct, 9, 8, 4, 2)


@pytest.fixture(scope="module")
def collectives(reduces, request):
    """What is learned of the rows of one collective, or of all."""
    if request.param == "all_reduce":
        return commands.learn([reduces], "dgx-a100", options=LogOptions(), rows=())
    return learn([ROWS], "dgx-a100", rows=["aic-a100-sxm"])


@pytest.mark.parametrize("collectives", ["all_reduce", pytest.param("all", marks=pytest.mark.thorough)], indirect=True)
def test_collectives_are_learned_within_the_papers_errors(collectives):
    """Table I: 5 to 6 % geometric mean; measured by nccl-tests on 2, 4 and 8 A100. The errors are of rows that were not seen."""
    for kind in collectives.kinds:
        if kind.kind[0] in ("all_reduce", "all_to_all"):
            errors = {law: kind.errors(law)["geometric_mean_abs_error"] for law in ("before", "fitted", "learned")}
            assert errors["learned"] < 0.05
            assert max(errors["learned"], errors["fitted"]) < errors["before"]  # of these rows the law alone is as good
        assert kind.times.size == kind.samples.held_out.sum() == kind.to_dict()["held_out"]
        assert 0.4 < kind.samples.held_out.mean() < 0.6
    assert "all_reduce" in {kind.kind[0] for kind in collectives.kinds}


def test_products_are_learned_beside_their_model(tmp_path):
    """Shapes of odd sizes, which take a time of their own."""
    needed()
    spec, _ = resolve(Document(file="test", data={"template": "a100-80gb"}))
    rng = np.random.default_rng(3)
    sizes = np.stack([*2.0 ** rng.integers(7, 13, (3, 60)), np.ones(60)])
    rows = MeasuredProducts(dtype="fp16", source="", sizes=sizes, time=np.ones(60))
    times = predicted(spec, rows) * (1 + 0.3 * np.tanh(np.log2(sizes[0] / 1024)))
    lines = [f"fp16,{m:.0f},{n:.0f},{k:.0f},{time * 1e6}" for (m, n, k), time in zip(sizes[:3].T, times, strict=True)]
    (tmp_path / "gemm.csv").write_text("\n".join(["dtype,m,n,k,time_us", *lines]) + "\n")
    (kind,) = learn([tmp_path / "gemm.csv"], "a100-80gb").kinds
    assert kind.errors("learned")["geometric_mean_abs_error"] < 0.03 < kind.errors("fitted")["geometric_mean_abs_error"]


def test_small_matrices_are_fitted_by_one_thread(monkeypatch):
    needed()
    threads = importlib.import_module("threadpoolctl")
    seen = []

    class Regressor:
        def fit(self, features, ratio):
            seen.extend(pool["num_threads"] for pool in threads.threadpool_info())

    monkeypatch.setitem(learned._METHODS, learned.PROCESS, lambda features: Regressor())
    learned._fitted(learned.PROCESS, np.ones((2, 1)), np.ones(2))
    assert set(seen) == {1}


@pytest.fixture(scope="module")
def reduces(tmp_path_factory):
    """The rows of one collective alone, of which the command learns once for all tests."""
    needed()
    lines = [line for line in ROWS.read_text().splitlines() if line.startswith("source,") or "aic-a100-sxm,all_reduce" in line]
    path = tmp_path_factory.mktemp("reduces") / "collectives.csv"
    path.write_text("\n".join(lines) + "\n")
    once = functools.cache(lambda files, system, options, rows: learn(list(files), system, options=options, rows=list(rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "learn", lambda files, system, *, options, rows: once(tuple(files), system, options, tuple(rows)))
        yield path


def test_a_list_of_events_is_filled(tmp_path, capsys, reduces):
    """Events of what was learned take its times, and the step is predicted with them; the others are left to the model, with the reason."""
    given = {"system": {"template": "dgx-a100"}, "workload": "gpt2-345m", "strategy": "tp8", "software": "megatron-core"}
    plain = crossflow.from_dict(given)
    (tmp_path / "events.csv").write_text(events(plain).to_csv())
    out = tmp_path / "filled.csv"
    words = ["calibrate", str(reduces), "--system", "dgx-a100", "--learn"]
    assert main([*words, "--events", str(tmp_path / "events.csv"), "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader(out.read_text().splitlines()[1:]))
    sent = [one for one in events(plain).events if one.ranks == 8 and one.op == "all_reduce"]
    assert found["filled"] == len(rows) == len(sent) > 0
    assert any(reason.startswith("nothing was learned of gemm, ") for reason in found["left_reasons"])
    by_shape = {(row["op"], row["shape"]): float(row["time"]) for row in rows}
    for one in sent:
        assert 0.2 < by_shape[one.op, one.shape] / one.time < 3
    prediction = crossflow.predict(crossflow.from_dict({**given, "profile": str(out)}))
    assert prediction.to_dict()["measured_share"] > 0.01
    assert not [note for note in prediction.notes if note.startswith("profile")]


def test_events_beyond_twice_the_measured_sizes_are_left_to_the_model(tmp_path, capsys, reduces):
    with reduces.open() as file:
        sizes = [float(row["size_bytes"]) for row in csv.DictReader(file)]
    near, far = ([min(sizes) / factor, max(sizes) * factor] for factor in (1.9, 2.1))
    shapes = (*(f"{size} B,8,intra" for size in (*near, *far)), "1e6 B,64,inter", "1e6 B,8,inter")
    rows = ["op,shape,ranks,scope,time", *(f"all_reduce,{shape},1 s" for shape in shapes)]
    (tmp_path / "events.csv").write_text("\n".join(rows) + "\n")
    words = ["calibrate", str(reduces), "--system", "dgx-a100", "--learn", "--events", str(tmp_path / "events.csv")]
    assert main([*words, "-o", str(tmp_path / "out.csv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["filled"] == len(near)
    assert found["left_reasons"] == {
        "all_reduce lies beyond the measured sizes": 3,
        "all_reduce has a shape that cannot be priced by itself": 1,
    }


def test_a_list_without_any_learned_event_is_refused(tmp_path, complaint, reduces):
    (tmp_path / "events.csv").write_text("op,shape,dtype,time\ngemm,8x8x8,fp16,1 s\n")
    words = (reduces, "--system", "dgx-a100", "--learn", "--events", tmp_path / "events.csv", "-o", tmp_path / "out.csv")
    assert complaint(*words) == (f"{tmp_path}/events.csv: none of its events has a learned time (1: nothing was learned of gemm, fp16)")
    assert not (tmp_path / "out.csv").exists()


def test_too_few_rows_are_refused(tmp_path, complaint):
    needed()
    (tmp_path / "t.csv").write_text("op,shape,time\n" + "".join(f"pass,1 kernel of {n} B,{n} ns\n" for n in range(1000, 1010)))
    assert (
        complaint(tmp_path / "t.csv", "--system", "a100-80gb", "--learn")
        == "nothing to learn: 10 too few of pass: a learned model needs 30"
    )


def test_the_profile_is_not_replaced_unasked(tmp_path, complaint):
    (tmp_path / "out.csv").write_text("mine\n")
    words = (ROWS, "--system", "dgx-a100", "--learn", "--events", tmp_path / "e.csv", "-o", tmp_path / "out.csv")
    assert complaint(*words) == f"{tmp_path}/out.csv exists; give --force to replace it, or another name with -o"


@pytest.mark.slow
def test_nothing_of_scikit_learn_is_loaded_before_it_is_needed():
    import subprocess

    code = "import sys; import crossflow.edges.cli.calibrate; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
