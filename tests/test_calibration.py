# ruff: noqa: E501  (exact sentences)
"""Calibration: parameters recovered, what rows cannot decide, errors of held-out rows, the curve of Lin et al., files, sentences."""

import contextlib
import dataclasses
import importlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from nccl_logs import ROWS, log, logs, measured
from sampled import fewer

import crossflow
from crossflow.__main__ import main
from crossflow.base.files import Document
from crossflow.evidence.calibration import fit as fitting
from crossflow.evidence.calibration import writing
from crossflow.evidence.calibration.calibrate import BEFORE, FITTED, MEASURED, PAPER, WRITTEN, calibrate
from crossflow.evidence.calibration.curve import PiecewiseCurve, fit_curve
from crossflow.evidence.calibration.fit import fit, held_out
from crossflow.evidence.calibration.logs import LogOptions
from crossflow.evidence.calibration.measurements import MeasuredCollective, MeasuredProducts, read_measurements
from crossflow.evidence.calibration.parameters import DEVICE, FABRIC, parameters, with_values
from crossflow.evidence.calibration.pricing import PricedSystem, over_points, predicted
from crossflow.hardware.architecture.system import resolve
from crossflow.program.groups import Group

pytestmark = pytest.mark.slow

SIZES = 2.0 ** np.arange(10, 31)
MODULE = importlib.import_module("crossflow.evidence.calibration.calibrate")  # whose function has its name
PATH = ("network", "parameters")


@pytest.fixture(scope="module", autouse=True)
def remembered():
    """Equal rows of an equal system are fitted once: most tests are about what becomes of a fit, which takes seconds."""
    found = {}

    def once(*given):
        key = pickle.dumps((given, fitting.STARTS))
        if key not in found:
            found[key] = fit(*given)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "fit", once)
        yield found


@contextlib.contextmanager
def near_the_template():
    """Fits that begin at the template alone, where it does not matter whether another optimum is better."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "STARTS", fitting.STARTS[: fewer(len(fitting.STARTS), 1)])
        yield


@pytest.fixture
def near():
    with near_the_template():
        yield


def system(name):
    return resolve(Document(file="test", data={"template": name}))[0]


def collectives(spec, ranks, *names, per_node=8, noise=0.0):
    """Rows as if they were measured on a system, with scatter of a given size."""
    rng = np.random.default_rng(0)
    for name in names:
        for count in ranks:
            one = MeasuredCollective(
                collective=name, ranks=count, ranks_per_node=min(per_node, count), size=SIZES, time=np.ones_like(SIZES)
            )
            time = predicted(spec, one) * np.exp(noise * rng.standard_normal(SIZES.size))
            yield MeasuredCollective(collective=name, ranks=count, ranks_per_node=one.ranks_per_node, size=SIZES, time=time)


def products(spec, dtype="fp16"):
    """The same of matrix products."""
    rng = np.random.default_rng(1)
    sizes = np.stack([*2.0 ** rng.integers(6, 14, (3, 240)), np.ones(240)])
    one = MeasuredProducts(dtype=dtype, source="", sizes=sizes, time=np.ones(240))
    return [MeasuredProducts(dtype=dtype, source="", sizes=sizes, time=predicted(spec, one))]


# ------------------------------------------------------------------------------------------ recovery


FABRICS = {
    "dgx-a100": ((2, 4, 8), 8, {"launch": 11e-6, "switch_efficiency": 0.8, "reduction_copy": 0.7, "switch_step": 1.4e-6}),
    "dgx-1": ((2, 8), 8, {"launch": 20e-6, "direct_efficiency": 0.75, "direct_step": 5e-6}),
    "a100-ib-cluster": ((16, 32, 64), 8, {"launch": 25e-6, "rdma_efficiency": 0.7, "rdma_fill": 12e-6, "rdma_step": 6e-6, "low_latency_share": 0.2}),
    "l40s": ((2, 8), 8, {"launch": 12e-6, "pcie_efficiency": 0.5, "direct_step": 7e-6}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-1", "a100-ib-cluster"])
def test_parameters_of_a_fabric_are_recovered(name):
    ranks, per_node, true = FABRICS[name]
    spec = system(name)
    real = with_values(spec, {(*PATH, key): value for key, value in true.items()})
    found = fit(spec, FABRIC, list(collectives(real, ranks, "all_reduce", "all_gather", per_node=per_node)))
    values = {path[-1]: value for path, value in found.values.items()}
    for key, value in true.items():
        assert values[key] == pytest.approx(value, rel=0.02), key


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-1", "a100-ib-cluster"])
def test_systems_priced_together_are_each_by_itself(name):
    """The derivatives of a fit take the times of all changed parameters at once."""
    ranks, per_node, true = FABRICS[name]
    spec, values = system(name), np.array([[value, 1.1 * value, 0.5 * value] for value in true.values()])
    paths = [(*PATH, key) for key in true]
    rows = next(collectives(spec, ranks[-1:], "all_reduce", per_node=per_node))
    together = over_points(PricedSystem(with_values(spec, dict(zip(paths, values, strict=True)))), rows, rows.size)
    for i, column in enumerate(values.T.tolist()):
        alone = predicted(with_values(spec, dict(zip(paths, column, strict=True))), rows)
        assert together[:, i] == pytest.approx(alone, rel=1e-14)
    assert (np.ptp(together, axis=1) > 0).all()


def test_noise_moves_parameters_by_no_more_than_their_errors_say():
    spec = system("dgx-a100")
    true = FABRICS["dgx-a100"][2]
    real = with_values(spec, {(*PATH, key): value for key, value in true.items()})
    found = fit(spec, FABRIC, list(collectives(real, (2, 4, 8), "all_reduce", "all_gather", noise=0.05)))
    for one in found.fitted:
        if one.parameter.path[-1] in true:
            assert abs(np.log(one.value / true[one.parameter.path[-1]])) < 4 * max(one.error, 0.005)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_parameters_of_a_device_are_recovered():
    spec = system("a100-80gb")
    true = {
        ("execution", "kernel_launch"): 6e-6, ("execution", "matrix_utilisation"): 0.8, ("memory_utilisation",): 0.65,
        ("execution", "tiles", "cache_bytes_per_flop"): 0.0146, ("execution", "tiles", "fill"): 2e-6,
    }  # fmt: skip
    found = fit(spec, DEVICE, products(with_values(spec, true)))
    for path, value in true.items():
        assert found.values[path] == pytest.approx(value, rel=0.02), path


def test_parameters_of_a_device_without_tiles_are_recovered():
    """Its products are searched for; each of its rates counts."""
    spec = system("tpu-v4")
    true = {("execution", "kernel_launch"): 2e-6, ("execution", "matrix_utilisation"): 0.5, ("memory_utilisation",): 0.6}
    found = fit(spec, DEVICE, products(with_values(spec, true), dtype="bf16"))
    assert found.values == pytest.approx(true, rel=0.02)


@pytest.mark.usefixtures("near")
def test_parameters_that_rows_do_not_move_stay_as_they_are():
    """Inside switched nodes nothing tells of networks, and all-gathers of two ranks do not tell a link from what is copied beside it."""
    found = fit(system("dgx-a100"), FABRIC, list(collectives(system("dgx-a100"), (2,), "all_gather", "reduce_scatter", noise=0.02)))
    assert {"network.parameters.rdma_efficiency", "network.parameters.pcie_efficiency"} <= set(found.untouched)
    assert found.left["network.parameters.gather_copy"] in (
        "the rows cannot tell it from network.parameters.switch_efficiency",
        "the rows hardly depend on it",
        "22 rows are too few for another parameter",
    )
    assert ("network", "parameters", "gather_copy") not in found.values


@pytest.mark.usefixtures("near")
def test_values_keep_to_their_physical_ranges():
    spec = system("dgx-a100")
    fast = [
        MeasuredCollective(collective=one.collective, ranks=one.ranks, ranks_per_node=8, size=one.size, time=one.time / 5)
        for one in collectives(spec, (2, 4, 8), "all_reduce")
    ]
    found = fit(spec, FABRIC, fast)
    assert any(one.at_bound for one in found.fitted)
    ranges = {one.path: (one.low, one.high) for one in parameters(spec, FABRIC)}
    assert all(ranges[path][0] <= value <= ranges[path][1] for path, value in found.values.items())


def test_every_other_size_is_held_out():
    assert held_out(np.array([8.0, 1.0, 2.0, 4.0, 1.0])).tolist() == [True, False, True, False, False]


def test_a_shape_that_was_measured_twice_is_held_out_whole(tmp_path):
    rows = "".join(f"pass,1 kernel of {size} B,{size * scale} ns\n" for size in range(1000, 1020) for scale in (1, 1.3))
    (tmp_path / "p.csv").write_text("op,shape,time\n" + rows)
    (one,) = read_measurements([tmp_path / "p.csv"], ["any"], 8, LogOptions()).sets
    held = {shape for shape, mask in zip(one.shapes, held_out(one.order), strict=True) if mask}
    assert len(held) == 10
    assert not held & {shape for shape, mask in zip(one.shapes, held_out(one.order), strict=True) if not mask}


# ------------------------------------------------------------------------------------------ measured logs


@pytest.fixture(scope="module")
def curved(tmp_path_factory):
    """A calibration to logs of a system that needs curves, too."""
    with near_the_template():
        return calibrate(logs(tmp_path_factory.mktemp("logs"), measured()["aic-a100-sxm"]), "dgx-a100")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "base"), [("dgx-a100", "dgx-a100"), ("a100-sxm4-40gb oci", "a100-ib-cluster")])
def test_logs_of_measured_systems_calibrate_within_six_percent(tmp_path, name, base):
    """Median of the rows that nothing was fitted to; the system file alone, by its parameters or by the curves that it names."""
    cases = next(rows for key, rows in measured().items() if key.startswith(name))
    found = calibrate(logs(tmp_path, cases), base)
    before, after = (found.errors(law, held_out=True) for law in (BEFORE, WRITTEN))
    assert after["median_abs_error"] < 0.06
    assert after["median_abs_error"] < before["median_abs_error"]
    assert after["n"] + found.errors(WRITTEN, held_out=False)["n"] == sum(map(len, cases.values()))


@pytest.mark.thorough
def test_curves_are_written_where_parameters_are_not_enough(curved):
    law, written = (curved.errors(name, held_out=True)["median_abs_error"] for name in (FITTED, WRITTEN))
    assert written < law < 0.06
    for one in curved.scored:
        assert not one.curved or one.errors(FITTED, ~one.held_out)["median_abs_error"] > 0.04
        assert (one.predicted[WRITTEN] == one.predicted[MEASURED if one.curved else FITTED]).all()


@pytest.mark.thorough
@pytest.mark.usefixtures("near")
def test_sets_that_were_better_before_are_told(run, tmp_path):
    """Half of the rows are of this system, the others of one half as fast."""
    spec = system("dgx-a100")
    rows = ["collective,ranks,ranks_per_node,size_bytes,time_us"]
    for name, slower in (("all_reduce", 1.0), ("all_gather", 2.0)):
        for one in collectives(spec, (4, 8), name):
            rows += [f"{name},{one.ranks},8,{size},{slower * 1e6 * time}" for size, time in zip(one.size, one.time, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    notes = json.loads(run(tmp_path / "t.csv", "--system", "dgx-a100", "--no-curves", "--json"))["notes"]
    assert [note for note in notes if note.startswith("all_reduce, 4 ranks: worse than before on the rows held out, 0.0 % to ")]
    assert not [note for note in notes if note.startswith("all_gather")]


@pytest.mark.thorough
@pytest.mark.usefixtures("near")
def test_logs_and_tables_of_one_system_calibrate_alike(tmp_path):
    cases = measured()["dgx-a100"]
    of_logs = calibrate(logs(tmp_path, cases, version="2.17"), "dgx-a100")
    of_table = calibrate([ROWS], "dgx-a100", rows=["dgx-a100"])
    assert [fit.values for fit in of_logs.fits] == [fit.values for fit in of_table.fits]


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.usefixtures("near")
def test_every_law_is_scored_on_the_same_rows(tmp_path):
    found = calibrate(logs(tmp_path, measured()["dgx-a100"]), "dgx-a100").to_dict()
    for one in found["sets"]:
        assert set(one["errors"]) == {BEFORE, FITTED, PAPER, MEASURED, WRITTEN}
        assert len({entry["held_out"]["n"] for entry in one["errors"].values()}) == 1
        assert set(one["paper_curve"]) == {"ts", "BWmax", "m1", "m2", "L", "x0", "k", "b"}


def test_what_was_scored_is_what_predicts(tmp_path, curved):
    """A scenario on the written system takes the times of the table of errors."""
    found, path = curved, tmp_path / "mine.yaml"
    assert writing.write_system(found, path) == [path, tmp_path / "mine.profile.csv"]
    law = next(one for one in found.scored if not one.curved)
    curve = next(one for one in found.scored if one.curved)
    spec = system(str(path))
    assert predicted(spec, law.rows) == pytest.approx(law.predicted[WRITTEN], rel=1e-6)
    size = curve.rows.size[-1]
    document = {
        "system": str(path), "strategy": "d8",
        "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64},
    }  # fmt: skip
    profile = crossflow.from_dict(document).profile
    time, known = profile.messages(
        curve.rows.collective, np.array([size]), Group.alike(curve.rows.ranks, curve.rows.ranks, 1), lambda size: size
    )
    assert known.all()
    assert time[0] == pytest.approx(curve.rows.time[-1], rel=1e-6)


# ------------------------------------------------------------------------------------------ the curve of Lin et al.

CURVE = PiecewiseCurve(start=20e-6, bandwidth=2e11, first=3e4, last=6e7, x0=6.0, k=1.5)


def test_the_curve_is_continuous_at_both_ends_of_its_middle():
    for end in (CURVE.first, CURVE.last):
        below, at, above = CURVE.time(np.array([end * (1 - 1e-9), end, end * (1 + 1e-9)]))
        assert below == pytest.approx(at, rel=1e-6)
        assert above == pytest.approx(at, rel=1e-6)


def test_small_messages_take_one_time_and_large_ones_a_line():
    assert (CURVE.time(np.array([1.0, 100.0, 3e4])) == 20e-6).all()
    large = CURVE.time(np.array([1e8, 2e8, 3e8]))
    assert np.diff(large) == pytest.approx(1e8 / 2e11)
    assert large[0] == pytest.approx(20e-6 + 1e8 / 2e11)


def test_the_middle_is_a_sigmoid_of_the_bandwidth():
    height, offset = CURVE.ends
    size = np.geomspace(CURVE.first, CURVE.last, 9)
    sigmoid = height / (1 + np.exp(-CURVE.k * (np.log10(size) - CURVE.x0))) + offset
    assert np.log10(size / CURVE.time(size)) == pytest.approx(sigmoid)


def test_the_curve_is_found_again():
    size = 2.0 ** np.arange(8, 33)
    found = fit_curve(size, CURVE.time(size))
    assert found.time(size) == pytest.approx(CURVE.time(size), rel=0.02)
    assert found.bandwidth == pytest.approx(2e11, rel=0.02)
    assert found.start == pytest.approx(20e-6, rel=0.02)


def test_few_sizes_have_no_curve():
    assert fit_curve(np.array([1.0, 2.0, 3.0]), np.ones(3)) is None


# ------------------------------------------------------------------------------------------ files


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.usefixtures("near")
def test_the_written_system_inherits_all_but_what_changed(tmp_path):
    """Over a file of the user's, which builds on one that ships."""
    (tmp_path / "base.yaml").write_text(
        "kind: system\ntemplate: dgx-a100\nname: base\nnodes: 3\nnetwork: {parameters: {rdma_step: 9 us}}\n"
    )
    found = calibrate(logs(tmp_path, measured()["dgx-a100"]), str(tmp_path / "base.yaml"))
    writing.write_system(found, tmp_path / "out" / "mine.yaml")
    text = (tmp_path / "out" / "mine.yaml").read_text()
    assert 'template: "../base.yaml"' in text
    assert "rdma_step" not in text
    spec = system(str(tmp_path / "out" / "mine.yaml"))
    assert (spec.name, spec.device_count, float(spec.network.parameters.rdma_step[0])) == ("mine", 24, pytest.approx(9e-6))
    (fitted,) = found.fits
    for path, value in fitted.values.items():
        assert float(getattr(spec.network.parameters, path[-1])[0]) == pytest.approx(value, rel=1e-5)
    source = next(text for name, text in spec.sources.items() if name == "calibrated-mine")
    assert "55 rows fitted; median error on 50 held-out rows 1.4 %, 2.0 % before" in source


@pytest.mark.usefixtures("near")
def test_a_system_with_a_profile_is_scored_and_kept_with_it(tmp_path, curved, run):
    """Its curves are part of `before`; what is measured again replaces them, what is not stays."""
    writing.write_system(curved, tmp_path / "mine.yaml")
    with (tmp_path / "mine.profile.csv").open("a") as file:
        file.write("gemm,64x64x64,fp16,mine,1,,9 us,,\n")
    again, other = [(one.rows.collective, one.rows.ranks) for one in curved.scored if one.curved][:2]
    cases = {key: rows for key, rows in measured()["aic-a100-sxm"].items() if key[:2] == again}
    found = json.loads(
        run(*logs(tmp_path, cases), "--system", tmp_path / "mine.yaml", "--no-curves", "-o", tmp_path / "again.yaml", "--json")
    )
    (one,) = found["sets"]
    assert one["errors"][BEFORE]["held_out"]["median_abs_error"] < 1e-3
    assert one["errors"][WRITTEN] == one["errors"][FITTED]
    assert (
        found["notes"][1] == f"before is with the profile that {tmp_path}/mine.yaml names, mine.profile.csv, which may hold these very rows"
    )
    kept = crossflow.from_dict(
        {"system": str(tmp_path / "again.yaml"), "strategy": "d8", "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64}}
    )
    assert ("gemm", "64x64x64", "fp16", 1, "") in kept.profile.events
    assert (*again, "intra") not in kept.profile.curves
    assert (*other, "intra") in kept.profile.curves


def test_parameters_that_are_hardly_known_are_written_with_their_whole_range(curved, tmp_path):
    vague = [dataclasses.replace(fit, fitted=tuple(dataclasses.replace(one, error=1e6) for one in fit.fitted)) for fit in curved.fits]
    text = writing.system_text(dataclasses.replace(curved, fits=tuple(vague)), tmp_path / "x.yaml")
    assert "low: 10 ns, high: 10 ms" in text


def test_nothing_is_half_written(tmp_path, monkeypatch, curved):
    """Where the second file fails, or Ctrl-C falls between the two, the first is taken away."""
    real = writing.files.write_text

    def interrupted(path, text):
        if path.suffix == ".yaml":
            raise KeyboardInterrupt
        real(path, text)

    monkeypatch.setattr(writing.files, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writing.write_system(curved, tmp_path / "mine.yaml")
    assert not list(tmp_path.glob("mine*"))


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture
def run(capsys, tmp_path):
    """Run the command; its stdout, or what it complains of."""

    def of(*words):
        status = main(["calibrate", *map(str, words)])
        out, err = capsys.readouterr()
        said = err.strip().replace(f"{tmp_path}/", "").removeprefix("crossflow: ")
        return out if status == 0 else said.partition("\ncrossflow: ")[0]

    return of


@pytest.fixture
def table(tmp_path):
    return Path(shutil.copy(ROWS, tmp_path / "collectives.csv"))


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.usefixtures("near")
def test_the_command_writes_a_system_that_predicts(run, table, tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    found = json.loads(run(table, "--system", "dgx-a100", "--rows", "dgx-a100", "-o", path, "--json"))
    assert found["written"] == [str(path)]
    assert found["errors"]["written"]["held_out"]["median_abs_error"] < 0.03
    assert found["skipped_reasons"] == {"not of dgx-a100 (--rows)": 283}
    (tmp_path / "run.yaml").write_text("system: {template: mine.yaml}\nworkload: gpt2-345m\nstrategy: dp8\n")
    assert main(["predict", str(tmp_path / "run.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["system"]["name"] == "mine"


@pytest.mark.usefixtures("near")
def test_the_page_has_errors_parameters_and_reasons(run, table):
    page = run(table, "--system", "dgx-a100", "--rows", "dgx-a100")
    for words in (
        "55 rows fitted, 50 of every other size held out",
        "Lin et al.",
        "network.parameters.launch",
        "7.96 us",
        "283 left out: not of dgx-a100 (--rows)",
    ):
        assert words in page


KNOWN = "known: products: dtype, m, n, k, time_us; collectives: collective, ranks, ranks_per_node, size_bytes, time_us; look-ups: part, rows, width, samples, pooling, time_us; profile: op, shape, time; or a log of nccl-tests"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--events", "e.csv"], "--events is for --learn: the list whose times are to be filled"),
        (["--learn", "-o", "x.csv"], "--learn -o needs --events, the list to fill"),
        (["--learn", "--events", "e.csv"], "--learn --events needs -o, the profile to write"),
        (["--learn", "--no-curves"], "--no-curves is for fits; --learn writes no curves"),
        (["--force"], "--force is for -o, and nothing is written"),
        (["--nodes", "2"], "--nodes needs --ranks"),
        (["--ranks", "9", "--nodes", "2"], "--ranks 9 do not fill --nodes 2"),
        (["--ranks", "8"], "--ranks is for logs of nccl-tests, and no file is one; tables say it themselves"),
        (["--op", "all_reduce"], "--op is for logs of nccl-tests, and no file is one; tables say it themselves"),
        (["--rows", "nobody"], "nothing to fit dgx-a100 to: 388 not of nobody (--rows)"),
        (["--rows", "dgx-a100", "-o", "mine.txt"], "mine.txt is no name of a system file; end it in .yaml"),
    ],
)
def test_options_that_do_not_apply_are_refused(run, table, words, sentence):
    assert run(table, "--system", "dgx-a100", *words) == sentence


def test_tables_of_several_systems_must_say_which(run, table):
    assert run(table, "--system", "dgx-h100") == (
        "collectives.csv: its system is dgx-a100, a100-sxm4-40gb oci rdma (roce, 16 vfs/node), aic-a100-sxm, none of which is dgx-h100; "
        "say which are yours with --rows, such as --rows 'a100-sxm4-40gb oci rdma (roce, 16 vfs/node)'"
    )
    found = read_measurements([table], ["dgx-h100"], 8, LogOptions(), ["aic-a100-sxm"])
    assert (found.rows, found.skipped) == (252, {"not of aic-a100-sxm (--rows)": 136})


def test_products_of_another_device_are_refused(run, tmp_path):
    (tmp_path / "gemm.csv").write_text("source,device,dtype,m,n,k,time_us\nme,a100-80gb,fp16,64,64,64,5\n")
    assert (
        run(tmp_path / "gemm.csv", "--system", "dgx-h100")
        == "gemm.csv: its device is a100-80gb, none of which is dgx-h100; name another --system"
    )


def test_few_rows_are_refused(run, tmp_path):
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(log("all_reduce", 8, 8, [(1024.0, 30.0), (4096.0, 31.0)]))
    assert (
        run(path, "--system", "dgx-a100")
        == "nothing to fit dgx-a100 to: 2 too few all_reduce, 8 ranks: a fit needs 8 rows beside those held out"
    )


def test_rows_do_not_choose_logs(run, tmp_path):
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(log("all_reduce", 8, 8, [(1024.0, 30.0)]))
    assert run(path, "--system", "dgx-a100", "--rows", "x") == (
        "--rows chooses rows of tables, and all files are logs of nccl-tests; name the logs that are to count"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n", f"t.csv: is no table of measurements, for it has none of these columns; {KNOWN}"),
        ("", f"t.csv: is no table of measurements, for it holds no row; {KNOWN}"),
        ("device,dtype,m,n,k,time_us\n,fp16,64,64,x,5\n,fp16,64,0,64,5\n", "t.csv:2: k: expected a number above zero, got 'x'\nt.csv:3: n: expected a number above zero, got '0'"),
        ("collective,ranks,ranks_per_node,size_bytes,time_us\nall_redux,8,8,64,5\n", "t.csv:2: collective: expected one of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send_recv, sendrecv, got 'all_redux'; did you mean 'all_reduce'?"),
        ("collective,ranks,ranks_per_node,size_bytes,time_us\nall_reduce,1,1,64,5\n", "t.csv:2: ranks, ranks_per_node: expected whole numbers, two ranks or more, got 1, 1"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read_are_told(run, tmp_path, text, sentence):
    (tmp_path / "t.csv").write_text(text)
    assert run(tmp_path / "t.csv", "--system", "dgx-a100") == sentence


@pytest.mark.usefixtures("near")
def test_files_that_are_there_are_not_replaced(run, table, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("mine: yes\n")
    words = (table, "--system", "dgx-a100", "--rows", "dgx-a100", "-o", path)
    assert run(*words) == "mine.yaml exists; give --force to replace it, or another name with -o"
    assert path.read_text() == "mine: yes\n"
    assert "wrote" not in run(*words, "--force")
    assert "kind: system" in path.read_text()
    assert run(table, "--system", path, "--rows", "dgx-a100", "-o", path, "--force") == (
        "mine.yaml is the system that the calibration starts from; give another name with -o"
    )


def test_a_fabric_that_places_its_links_has_nothing_to_fit(run, table):
    assert run(table, "--system", "pathfinder", "--rows", "aic-nccl-tests") == (
        "nothing to fit pathfinder to: 136 not of aic-nccl-tests (--rows); 252 collectives of a fabric of kind ideal follow from its links; "
        "give network.intra.fabric its real kind"
    )


def test_rows_of_a_profile_calibrate_too(tmp_path, run):
    """Kernels and collectives as profiles name them: kernels without their launches, collectives between nodes of full nodes."""
    spec = system("dgx-a100")
    rows = ["op,shape,dtype,ranks,scope,time"]
    for one in collectives(spec, (8,), "all_reduce"):
        rows += [f"all_reduce,{size:.0f} B,,8,intra,{time}" for size, time in zip(one.size, one.time, strict=True)]
    rows += ["all_reduce,1024 B,,8,inter,1 us", "optimizer,5 parameters,,,,1 us"]
    rows += [f"pass,1 kernel of {size:.0f} B,,,,{size / 1.2e12}" for size in 2.0 ** np.arange(18, 34)]
    (tmp_path / "p.csv").write_text("\n".join(rows) + "\n")
    found = json.loads(run(tmp_path / "p.csv", "--system", "dgx-a100", "--json"))
    assert found["skipped_reasons"] == {
        "a collective between nodes of no more ranks than a node has: a profile does not say how many share one": 1,
        "optimizer has no model of its own that its shape tells all of": 1,
    }
    values = {one["name"]: one["value"] for one in found["parameters"]}
    assert values["memory_utilisation"] == pytest.approx(1.2e12 / 2.039e12, rel=0.02)


# ------------------------------------------------------------------------------------------ what is told


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("device", "told"),
    [
        (
            "NVIDIA H100 80GB HBM3",
            "all_reduce_perf.log: measured on NVIDIA H100 80GB HBM3, and dgx-a100 has a100-80gb; name another --system",
        ),
        (
            "NVIDIA GeForce RTX 3060",
            "all_reduce_perf.log: measured on NVIDIA GeForce RTX 3060, which crossflow does not know; taken for a100-80gb",
        ),
        ("NVIDIA A100-SXM4-40GB", "in-place times differ by 1.0 % (median)"),
    ],
)
@pytest.mark.usefixtures("near")
def test_logs_of_other_devices_are_told(run, tmp_path, device, told):
    rows = [(2.0**i, 30.0 + 2.0**i / 2e5) for i in range(10, 30)]
    (tmp_path / "all_reduce_perf.log").write_text(log("all_reduce", 8, 8, rows, device=device))
    found = run(tmp_path / "all_reduce_perf.log", "--system", "dgx-a100", "--json")
    assert told in (found if "measured on NVIDIA H100" in found else json.loads(found)["notes"][0])


def test_logs_of_more_ranks_than_a_node_has_are_left_out_with_the_reason(run, tmp_path):
    (tmp_path / "all_reduce_perf.log").write_text(log("all_reduce", 16, 16, [(2.0**i, 30.0) for i in range(10, 30)]))
    assert run(tmp_path / "all_reduce_perf.log", "--system", "dgx-a100") == (
        "nothing to fit dgx-a100 to: 20 16 ranks, 16 a node, do not fit nodes of 8 devices"
    )


@pytest.mark.usefixtures("near")
def test_times_of_another_unit_are_told(run, tmp_path):
    rows = "".join(f"all_reduce,8,8,{2.0**i},{(30 + 2.0**i / 2e5) * 1e4}\n" for i in range(10, 30))
    (tmp_path / "t.csv").write_text("collective,ranks,ranks_per_node,size_bytes,time_us\n" + rows)
    (note,) = json.loads(run(tmp_path / "t.csv", "--system", "dgx-a100", "--no-curves", "--json"))["notes"]
    assert note.endswith(" % off on the rows held out; no parameter describes them, check their unit and the system")
    (tmp_path / "t.csv").write_text("collective,ranks,ranks_per_node,size_bytes,time_us\nall_reduce,8,3,64,5\nall_reduce,8,8,64,1e300\n")
    assert run(tmp_path / "t.csv", "--system", "dgx-a100") == (
        "t.csv:2: ranks, ranks_per_node: 8 ranks do not fill nodes of 3\nt.csv:3: time_us: expected at most a day, got '1e300'"
    )


@pytest.mark.usefixtures("near")
def test_what_a_table_says_beside_is_told(run, tmp_path):
    spec = system("a100-80gb")
    (one,) = products(spec)
    rows = [f"mine,fp16,{m:.0f},{n:.0f},{k:.0f},4,{4e6 * time},nn" for m, n, k, _, time in zip(*one.sizes, one.time, strict=True)]
    (tmp_path / "t.csv").write_text("device,dtype,m,n,k,batch,time_us,layout\n" + "\n".join(rows) + "\n")
    notes = json.loads(run(tmp_path / "t.csv", "--system", "a100-80gb", "--json"))["notes"]
    assert notes[:2] == ["t.csv: columns that are not read: layout", "t.csv: rows of the device mine are taken for a100-80gb"]
    (read,) = read_measurements([tmp_path / "t.csv"], ["a100-80gb"], 1, LogOptions()).sets
    assert (read.sizes[3] == 4).all()
    assert run(tmp_path / "t.csv", tmp_path / "t.csv", "--system", "a100-80gb") == "t.csv is given twice"
