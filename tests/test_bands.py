"""The band of error of every prediction: drawn from measured rows that are like it, and wide enough for rows that it was not drawn from."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import crossflow
from crossflow.answers import bands
from crossflow.answers.bands import Likeness
from crossflow.answers.evaluation.likeness import BLIND_DOMAIN, UNMEASURED, likeness, trust
from crossflow.answers.study.run import run_study
from crossflow.evidence.validation import comparison
from crossflow.evidence.validation import left_out as of_tables
from crossflow.evidence.validation.bands import JudgedRow, _across, band, coverage, left_out, lines, pairs, unseen_coverage
from crossflow.evidence.validation.hindcast_files import DatedWorkload, alone
from crossflow.workload.spec import TransformerSpec

DENSE = "training of dense language models"


def scenario(template="dgx-h100", workload=None, **given):
    plain = {"system": {"template": template}, "workload": {"model": "llama3-8b", "global_batch": 16, **(workload or {})}}
    return crossflow.from_dict({**plain, "strategy": "tp2-dp4", "software": "nemo", **given})


def row(error, item="a", **like):
    return JudgedRow(table="t", like=Likeness(kind="k", **like), error=error, item=item)


SERVED = {"task": "decode", "prompt": 1000, "output": 200, "global_batch": 64}


@pytest.mark.parametrize(
    ("template", "model", "nodes", "told"),
    [
        ("h20-cluster", "deepseek-v3", 2, True),  # 25 to 31 % too fast with 8 requests a device
        ("h800-ib-cluster", "kimi-k2", 2, True),
        ("dgx-h200", "deepseek-v3", 2, False),
        ("dgx-b200", "deepseek-v3", 2, False),
        ("h20-cluster", "llama3-8b", 1, False),
    ],
)
def test_latent_attention_is_extrapolated_to_chips_of_which_no_such_service_was_measured(template, model, nodes, told):
    found = scenario(
        system={"template": template, "nodes": nodes}, workload={"model": model, **SERVED}, strategy=f"tp{8 * nodes}", software="sglang"
    )
    judged = trust(found)
    assert ("Services with latent attention were measured only on b200, h100-sxm and h200" in judged.text) == told
    assert not told or judged.level == "extrapolated"
    assert bool(crossflow.evaluate(found).trusted[0] == judged.level)


@pytest.mark.parametrize(
    ("device", "task", "level"),
    [
        ("l4", "serving", "extrapolated"),  # of Ada only kernels were measured
        ("rtx-4090", "prefill", "extrapolated"),
        ("l40s", "serving", "interpolated"),  # on which these kernels were
        ("a40", "serving", "interpolated"),  # services were measured on the A100
        ("b300", "serving", "interpolated"),
    ],
)
def test_a_device_of_whose_generation_no_such_run_was_measured_is_extrapolated(device, task, level):
    workload = {"model": "llama3-8b", "prompt": 512, "task": task} | ({"output": 64} if task == "serving" else {})
    told = trust(scenario(system={"template": device}, workload=workload, strategy="tp1-dp1", software="vllm"))
    assert told.level == level
    assert ("no such run was measured on a device of it" in told.text) == (level == "extrapolated")


def test_a_band_by_hand():
    """Of 19 errors the 18th holds nine of ten further ones: 0.9 x (19 + 1)."""
    found = lines([replace(row(0.01 * i * (-1) ** i), item=str(i)) for i in range(1, 20)])[Likeness(kind="k")]
    assert (found.median, found.p90, found.n, found.tables) == (pytest.approx(0.10), pytest.approx(0.18), 19, "t")
    assert found.text == "typical error 10 %; 9 of 10 of 19 similar measured runs were within 18 %"


@pytest.mark.parametrize(("items", "edge"), [(1, 0.36), (3, 0.36), (4, 0.18), (19, 0.18)])
def test_a_band_of_fewer_than_four_models_is_twice_as_wide(items, edge):
    """Of three models, whatever their rows say, one in four of others is worse than the worst."""
    made = [replace(row(0.01 * i), item=str(i % items)) for i in range(1, 20)]
    assert lines(made)[Likeness(kind="k")].p90 == pytest.approx(edge, rel=0.05)
    late = [replace(one, like=replace(one.like, seen="none"), chip=f"chip {i % 2}") for i, one in enumerate([*made, *made])]
    assert lines(late)[Likeness(kind="k", seen="none")].p90 >= edge * 0.95


def test_the_likest_line_is_taken_and_unknown_devices_have_no_other():
    made = lines([row(0.1, device="x", stack="s", seen="device")] * 12 + [row(0.4, seen="none")] * 12)
    first = next(bands.candidates(Likeness(kind="k", device="x", stack="s", scale="any", seen="device"), made))
    assert (first[0].median, first[1]) == (0.1, Likeness(kind="k", device="x", stack="s"))
    assert next(bands.candidates(Likeness(kind="k", device="y", stack="s", seen="family"), made))[0].median == 0.4
    assert not list(bands.candidates(Likeness(kind="other"), made))


@pytest.mark.parametrize(
    ("given", "device", "seen"),
    [
        ({}, "h100-sxm", "device"),
        ({"template": "dgx-h200"}, "h200", "family"),
        ({"template": "gaudi2-node"}, "gaudi2", "none"),
        ({"template": "chip-h100", "system": {"template": "chip-h100", "devices": 8}}, "", "generated"),
        ({"system": {"template": "dgx-h100", "power": {"tdp": "500 W"}}}, "", "changed"),
        ({"system": {"template": "dgx-h100", "network": {"inter": {"bandwidth": "25 GB/s"}}}}, "h100-sxm", "device"),
    ],
)
def test_devices_that_are_not_as_measured_are_not_taken_for_seen(given, device, seen):
    found = likeness(scenario(**given))
    assert (found.device, found.seen) == (device, seen)


def test_a_prediction_says_what_its_band_is_drawn_from():
    found = crossflow.predict(scenario(workload={"dtype": "fp8"})).to_dict()["error_band"]
    assert found["drawn_from"] == f"{DENSE} on h100-sxm with nemo, 8 bits, 2 to 8 devices"
    assert 0 < found["median"] < found["p90"] < 1
    assert found["device_seen"] is True
    assert found["tables"] == ["mlperf_training", "published_training"]


@pytest.mark.slow
def test_where_nothing_was_measured_no_band_is_made_up(lstm):
    found = crossflow.predict(lstm("d8")).to_dict()
    assert found["error_band"] is None
    assert found["error_band_reason"] == "no such workload was ever compared with a measurement"
    assert (found["trust"], found["trust_text"]) == ("unknown", "unknown: no such workload was ever compared with a measurement")


def test_points_of_a_batch_have_bands_of_their_own():
    made = scenario(workload={"global_batch": 64})
    columns = crossflow.evaluate(made, {"system.nodes": [1, 8], "strategy": ["tp2-dp4", "tp2-dp32"]}).columns()
    alone = [bands.band_of(replace(likeness(made), scale=scale))[0].p90 for scale in ("2 to 8 devices", "9 to 128 devices")]
    assert columns["error_band.p90"].tolist() == alone
    changed = crossflow.evaluate(made, {"system.levels.memory.bandwidth": ["3 TB/s", "4 TB/s"]}).columns()
    assert changed["error_band.n"][0] == bands.band_of(likeness(made, changed=True))[0].n
    assert (columns["trust"], changed["trust"]) == (["interpolated", "interpolated"], ["extrapolated", "extrapolated"])


def test_points_at_the_devices_own_numbers_have_its_band():
    given = scenario()
    own, other = (
        crossflow.evaluate(given).error_band["median"],
        crossflow.evaluate(given, {"system.power.tdp": [600.0]}).error_band["median"],
    )
    tdp, latency = float(given.system.power.tdp[0]), float(given.library.memory["HBM3"].access_latency[0])
    for path, changed in (("system.power.tdp", [tdp, 600.0]), ("techlib.memory.HBM3.access_latency", [latency, 2 * latency])):
        assert crossflow.evaluate(given, {path: changed}).error_band["median"].tolist() == [*own, *other]
    assert own != other


@pytest.mark.thorough
def test_rows_kept_aside_lie_within_their_band():
    """Of others of the same distribution nine of ten do; each half of the models is judged by the other."""
    drawn = np.random.default_rng(1).normal(0, 0.1, 4000)
    (found,) = coverage([row(error, item=str(i)) for i, error in enumerate(drawn)])
    assert (found.kind, found.chip, found.n, found.share) == ("k", "", 4000, pytest.approx(0.9, abs=0.02))


def test_a_generation_that_is_left_out_is_predicted_by_the_one_before(monkeypatch):
    """Its rows are of no device that was fitted to, and their errors are larger; the parameters are put back afterwards."""
    products = [comparison.READERS[name] for name in ("gemm", "gemm_graph")]
    monkeypatch.setattr(of_tables, "validate", lambda *_, **__: SimpleNamespace(tables=[read(comparison.shipped()) for read in products]))
    before = crossflow.predict(scenario()).step_time
    found = [row for row in left_out(None) if row.like.kind == "matrix products"]
    assert {row.like.seen for row in found} == {"none"}
    assert np.median([abs(row.error) for row in found]) > 0.08
    assert crossflow.predict(scenario()).step_time == before


def test_runs_whose_memory_is_nearly_full_are_told():
    """Of a step that needs more than nine tenths of the memory the page and JSON say how slow such runs became."""
    assert bands.slowdown(0.9, 1.0) is None
    assert bands.slowdown(0.95, 1.0) == bands.FULL_SLOWDOWN
    assert bands.slowdown(1.01, 1.0) is None  # it does not fit at all
    assert bands.full_text(0.5, 1.0) == ""
    full = crossflow.predict(scenario(workload={"global_batch": 8, "sequence": 16384}, strategy="tp2-dp4-z1"))
    needed, capacity = (full.to_dict()["memory"][key] for key in ("total_bytes", "capacity_bytes"))
    assert full.slowdown == bands.slowdown(needed, capacity) == full.to_dict()["memory"].get("slowdown")
    assert full.slowdown is not None
    assert bool(full.slowdown) == any("one in ten" in note for note in full.notes)


def test_what_a_prediction_is_told_by_how_near_it_is_to_measured_runs():
    """A trait that no measured run has is extrapolated, one that other runs on the device have is interpolated."""
    known = Likeness(kind=DENSE, device="h100-sxm", stack="nemo", type="8 bits", scale="9 to 128 devices", seen="device")
    levels = {
        "measured": known,
        "interpolated": replace(known, stack="megatron-core"),
        "extrapolated": replace(known, device="", stack="", seen="none"),
        "unknown": Likeness(kind="training of models with sparse attention", device="h100-sxm", type="8 bits", seen="device"),
    }
    assert {level: bands.trust_of(run).level for level, run in levels.items()} == {level: level for level in levels}
    assert bands.trust_of(levels["interpolated"]).reason == "too few runs with megatron-core were measured on this device"
    assert bands.trust_of(levels["extrapolated"]).reason == bands.UNSEEN
    assert bands.trust_of(replace(known, type="64 bits")).reason == "too few runs of this kind were measured in 64 bits to say"
    assert bands.trust_of(replace(known, stack=bands.NO_STACK)).reason == "the software is not named, and differs between these runs"


def test_experts_that_lie_further_apart_than_in_any_measured_run_have_no_band():
    """Of prompts too few such services were measured; those of tokens are told by such services alone."""
    run = Likeness(kind="serving, reading prompts", device="h100-sxm", stack="sglang", experts=bands.EXPERTS[1], seen="device")
    written = bands.trust_of(replace(run, kind="serving, writing tokens"))
    assert (written.level, written.band.tables) == ("interpolated", "wide_experts")
    found = bands.trust_of(run)
    assert (found.level, found.band) == ("extrapolated", None)
    assert found.text == "extrapolated: too few runs of this kind were measured with experts shared out across nodes to say"


def test_a_maker_of_whose_devices_nothing_was_fitted_is_named():
    """AMD's products were measured, and enough services; of its training there are too few runs. A device of NVIDIA has no such reason."""

    def trust(system, **given):
        model = {"model": "llama3-8b", "global_batch": 16, "task": "decode", "prompt": 512, "output": 64}
        return crossflow.predict(crossflow.from_dict({"system": system, "workload": model, "strategy": "dp8", **given})).trust

    trained = trust("mi300x-node", workload={"model": "llama3-8b", "global_batch": 16})
    products = trust("mi300x-node", workload={"model": "gemm", "m": 4096, "n": 4096, "k": 4096}, strategy="d8")
    assert trained.level == "extrapolated"
    assert trained.reason == "nothing was fitted to such runs on devices of AMD, and what is known of errors is of chips of other makers"
    assert "AMD" not in products.reason
    assert "other makers" not in trust("mi355x-node").reason  # another chip of AMD was compared
    assert "other makers" not in trust("a40-node").reason


def test_a_device_that_was_not_compared_is_no_surer_than_its_makers_others():
    """Trainium 2 has the wider band of Trainium's and of GPUs of a generation before; of Gaudi 2, whose errors reach further, its own."""

    def trust(system, **given):
        model = {"model": "llama3-8b", "global_batch": 64, "task": "decode", "prompt": 512, "output": 64, **given}
        return crossflow.predict(
            crossflow.from_dict({"system": {"template": system, "nodes": 1}, "workload": model, "strategy": "tp8-dp2"})
        ).trust

    newer, older = trust("trn2-node"), trust("trn1-node")
    assert newer.level == "extrapolated"
    assert newer.band.p90 >= older.band.p90
    run = Likeness(kind="serving, writing tokens", device="x", stack="vllm", type="16 bits", seen="none", memory="HBM")
    far = bands.trust_of(run, kin=("gaudi2",))
    assert far.band.p90 > bands.trust_of(run).band.p90
    assert far.reason == "too few such runs were measured on x; these ran on gaudi2, of the same maker, to which nothing was fitted"
    assert bands.trust_of(run, kin=("trainium",)).band.p90 >= bands.trust_of(run).band.p90
    assert bands.trust_of(run, kin=("gaudi2", "mi300x")).band.p90 >= bands.trust_of(run).band.p90
    assert bands.trust_of(replace(run, device="a40", seen="family"), kin=("gaudi2",)) == bands.trust_of(
        replace(run, device="a40", seen="family")
    )
    points = crossflow.sweep(model="llama3-8b", on="trn2-node", task="decode", batch=[64], prompt=512, output=64, strategy="tp8-dp2")
    assert points["error_band.p90"][0] == newer.band.p90


def test_a_device_that_was_compared_has_its_own_errors_though_nothing_was_fitted_to_it():
    run = Likeness(
        kind="serving, writing tokens", device="mi300x", stack="vllm", type="8 bits", load="9 to 64 requests at once", seen="none"
    )
    found = bands.trust_of(run)
    assert (found.level, found.band.tables, found.reason) == ("measured", "accelerators_serving", "")
    other = bands.trust_of(replace(run, device="mi355x", memory="HBM"))
    assert (other.level, other.reason) == ("extrapolated", bands.UNSEEN)
    assert bands.trust_of(replace(run, device="gaudi3")).level == "interpolated"
    assert {"mi300x", "gaudi2", "gaudi3", "trainium"} <= bands.compared("serving, writing tokens")
    assert {"tpu-v5e", "tpu-v5p", "tpu-v6e"} <= bands.compared(DENSE)


def test_experts_across_nodes_have_no_band_of_runs_in_one():
    """Of chips that nobody fitted too few such runs are known; those of a generation that was fitted to have one."""
    run = Likeness(kind="serving, writing tokens", type="8 bits", load="9 to 64 requests at once", experts="experts shared out in a node")
    across = {"experts": "experts shared out across nodes"}
    assert bands.trust_of(replace(run, seen="none")).band is not None
    bare = bands.trust_of(replace(run, seen="none", **across))
    assert (bare.level, bare.band) == ("extrapolated", None)
    assert bare.reason == "too few runs with experts shared out across nodes were measured on such devices to say"
    assert bands.trust_of(replace(run, seen="family", **across)).band is not None


def test_queues_and_tails_have_no_band(service):
    found = service.to_dict()["trust_of"]["tails"]
    assert (found["trust"], found["error_band"]) == ("unknown", None)
    assert found["reason"] == "queues and tails were compared with two measured runs only"
    assert service.to_dict()["trust"] == "interpolated"


@pytest.fixture(scope="module")
def service():
    workload = {"task": "serving", "prompt": 1000, "output": 100, "serving": {"arrival_rate": "2 1/s"}}
    return crossflow.predict(scenario(workload=workload, software="vllm", strategy="tp8"))


def test_generated_and_changed_chips_are_told_by_chips_that_were_predicted_blind_alone():
    product = {"model": "gemm", "m": 8192, "n": 8192, "k": 8192, "dtype": "fp16"}
    chip = {"template": "chip-h100", "devices": 1}
    found = crossflow.predict(crossflow.from_dict({"system": chip, "workload": product, "strategy": "d1"}))
    told = "matrix products on chips that were predicted before they were announced"
    assert (found.trust.level, found.trust.basis) == ("extrapolated", told)
    assert found.error_band.tables == "hindcasts"
    sheet = {"template": "h100-sxm", "devices": 1, "power": {"tdp": "500 W"}}
    changed = crossflow.predict(crossflow.from_dict({"system": sheet, "workload": product, "strategy": "d1"}))
    assert changed.error_band == found.error_band
    trained = crossflow.predict(scenario(system={**chip, "devices": 8}))
    assert (trained.trust.level, trained.error_band.tables) == ("extrapolated", "hindcasts")


def test_a_generated_chip_has_no_band_for_a_workload_of_which_no_chip_was_predicted_blind():
    mixed = {"model": "mixtral-8x7b", "global_batch": 16}
    found = crossflow.predict(scenario(system={"template": "reference", "devices": 8}, workload=mixed)).trust
    assert (found.level, found.band, found.reason) == ("extrapolated", None, bands.NEVER_HINDCAST)


def test_designs_that_differ_less_than_pairs_of_measured_runs_are_ties():
    run = Likeness(kind=DENSE, device="h100-sxm", seen="device")
    spread, between = bands.spread_of(run, run, same=True)
    assert between == bands.LAYOUTS
    near, far = 1.0 + 0.9 * spread.order, 1.0 + 1.1 * spread.order
    assert bands.ties([1.0, near, far], [run] * 3, ["a"] * 3) == [(1,), (0, 2), (1,)]
    assert bands.ties([1.0, 1.1], [run, replace(run, seen=bands.GENERATED)], ["a", "b"]) == [None, None]


def test_pairs_of_two_runs_are_of_their_systems(monkeypatch):
    """Layouts of one system, or two systems, of which perhaps one was not measured: its datasheet was changed, or no row has it."""
    made = {
        between: bands.PairSpread(n=i, even=0.1, order=0.2) for i, between in enumerate((bands.LAYOUTS, bands.CHIPS, bands.UNMEASURED_CHIP))
    }
    monkeypatch.setattr(bands, "_pairs", lambda: {(DENSE, between): spread for between, spread in made.items()})
    run = Likeness(kind=DENSE, seen="device")
    for other, same, between in (
        ("device", True, bands.LAYOUTS), ("none", True, bands.LAYOUTS), ("device", False, bands.CHIPS),
        ("none", False, bands.UNMEASURED_CHIP), (bands.CHANGED, False, bands.UNMEASURED_CHIP),
    ):  # fmt: skip
        assert bands.spread_of(run, replace(run, seen=other), same=same) == (made[between], between)
        assert bands.spread_of(replace(run, seen=other), run, same=same) == (made[between], between)
    assert bands.spread_of(run, replace(run, kind="another")) is None
    assert bands.spread_of(run, replace(run, seen=bands.GENERATED)) is None


def test_errors_of_runs_without_measured_pairs_are_independent(monkeypatch):
    """Bands of 3 and 4 % by the median, and 5 and 12 % by nine of ten: 5 and 13 % together. Layouts of one system are not independent."""
    run, other = (Likeness(kind=DENSE, seen="device", device=name) for name in "ab")
    held = {run: SimpleNamespace(median=0.03, p90=0.05), other: SimpleNamespace(median=0.04, p90=0.12)}
    monkeypatch.setattr(bands, "_pairs", dict)
    monkeypatch.setattr(bands, "trust_of", lambda one: SimpleNamespace(band=held.get(one)))
    spread, between = bands.spread_of(run, other)
    assert (spread.n, spread.even, spread.order, between) == (0, pytest.approx(0.05), pytest.approx(0.13), bands.BANDS)
    assert bands.spread_of(run, run, same=True) is None
    assert bands.spread_of(run, replace(run, device="c")) is None
    assert bands.ties([1.0, 1.13, 1.0 / 1.14], [run, other, other], ["a", "b", "c"]) == [(1,), (0,), ()]
    assert bands.ties([1.0, 1.1, math.inf, 0.0], [run, other, other, other], ["a", "b", "c", "d"]) == [(1,), (0,), (), None]
    assert bands.ties([1.0, 1.1, 1.2], [run, other, replace(run, device="c")], ["a", "b", "c"]) == [None, None, None]


def test_pairs_of_rows_by_hand():
    """Of pairs whose errors differ by 10 % each, any that are predicted 10 % apart are in order."""
    made = [row(error, item=str(i), device="x", seen="device") for i in range(20) for error in (0.0, 0.1)]
    assert list(pairs(made, [])) == [("k", bands.LAYOUTS)]
    assert pairs(made, [])["k", bands.LAYOUTS].order == pytest.approx(0.1)


@pytest.mark.parametrize(("items", "rows", "each"), [(2, 7, 49), (4, 5, 25), (100, 1, 1), (125, 10, 80), (300, 7, 40)])
def test_pairs_across_chips_are_of_one_item_and_no_item_has_most_of_them(items, rows, each):
    """Every pair of few items; of many as many each as make ten thousand in all, but forty where there are more than that."""
    mine, others = ([row(0.0, str(i), device=chip) for i in range(items) for _ in range(rows)] for chip in ("x", "y"))
    mine, others = ([replace(one, chip=one.like.device) for one in some] for some in (mine, others))
    drawn = _across([*mine, *others], others)
    if items * rows**2 < 100:  # too few: pairs of all items of the table
        assert len(drawn) == (items * rows) ** 2
        return
    assert all(one.item == other.item and (one.chip, other.chip) == ("x", "y") for one, other in drawn)
    assert [*Counter(one.item for one, _ in drawn).values()] == [each] * items


def test_a_study_says_below_its_table_how_far_its_points_can_be_trusted(tmp_path):
    """With the points that cannot be told from the fastest, and as a column of every point."""
    workload = {"model": "llama3-8b", "global_batch": 16, "sequence": 1024}
    strategies = ["tp8", "tp4-dp2", "tp2-dp4", "dp8-z3"]
    data = {"name": "s", "scenario": {"system": "dgx-h100", "workload": workload, "strategy": "tp8"}, "sweep": {"strategy": strategies}}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(data))
    found = run_study(path, out=tmp_path / "out")
    times = {row["strategy"]: row["step_time_s"] for row in found.rows if row["feasible"]}
    spread, _ = bands.spread_of(run := Likeness(kind=DENSE, seen="device"), run, same=True)
    best = min(times, key=times.get)
    near = [name for name, time in times.items() if name != best and time <= times[best] * (1 + spread.order)]
    (note,) = found.notes
    assert note.startswith("trust: interpolated; 9 of 10 similar measured runs were within ")
    told = f"less than {100 * spread.order:.0f} % slower than the fastest, and not to be told from it: {'; '.join(near)}"
    assert note.endswith(told) if near else "not to be told" not in note
    assert {row["trust"] for row in found.rows} == {"interpolated"}
    assert "trust" in (tmp_path / "out" / "points.csv").read_text().splitlines()[0].split(",")


def test_a_trait_of_chips_that_nobody_fitted_counts_where_two_generations_have_it():
    """H100 and H200 are of one; a device that was fitted to is told by such rows where there are no others of its kind alone."""

    def of(chip, error, n=12, **like):
        return [replace(row(error, item=str(i), seen="none", **like), chip=chip) for i in range(n)]

    unseen, run = Likeness(kind="k", seen="none"), Likeness(kind="k", type="8 bits", seen="none")
    one = lines([*of("h100-sxm", 0.1, type="8 bits"), *of("h200", 0.2, type="8 bits"), *of("b200", 0.4, type="16 bits")])
    assert list(one) == [unseen]
    two = lines([*of("h100-sxm", 0.1, type="8 bits"), *of("b200", 0.2, type="8 bits"), *of("b200", 0.4, type="16 bits")])
    assert list(two) == [unseen, run]
    assert next(bands.candidates(run, two)) == (two[run], run)
    assert two[run].p90 == pytest.approx(0.4)  # twice that of the harder chip, as Student's tails of two reach further
    assert 0.4 < two[unseen].p90 <= 0.8
    assert next(bands.candidates(replace(run, seen="family"), two))[1] == unseen


@pytest.mark.parametrize(("fitted", "edge"), [(0.3, 0.3), (0.1, 0.2)])
def test_devices_whose_family_was_fitted_are_no_surer_than_those_that_were_fitted_to(fitted, edge):
    """An L40S would else be less sure than an RTX 4090, which has its parameters and no rows, because an H200 happens to be near."""
    known = [row(fitted, item=str(i), device="x", stack="s", seen="device") for i in range(20)]
    like = Likeness(kind="k", stack="s", seen="family")
    made = lines([*known, *(row(0.2, item=str(i), device="y", stack="s", seen="family") for i in range(20))])
    assert made[like].p90 == pytest.approx(edge)
    assert made[like].median == 0.2
    assert made[replace(like, seen="device")].p90 == pytest.approx(fitted)


def test_parts_of_a_model_that_no_measured_model_had_are_a_kind_of_their_own():
    """Each part that a model may have or lack is one of these kinds, or was in measured models, or adds a pass over a few bytes."""
    of_measured = {"kv_heads", "head_dim", "value_dim", "window", "latent", "experts", "qk_norm", "attention_sinks", "gate_limit"}
    of_few_bytes = {"attention_gate", "head_gate", "query_rank", "keys_as_values"}
    of_layers_alone = {"cross", "cross_tokens", "shared_cache"}  # which `variants` are told by, or a tower of images
    no_parts = {
        "served", "vocabulary", "tied_embeddings", "max_positions", "norm_vectors", "biases", "qkv_bias", "mlp_bias", "head_bias",
        "embedding_norm", "pooler", "parallel", "dropout", "weight_dtype", "kv_dtype", "wide_layers", "frozen", "adapters", "prompt",
        "output", "diffusion", "mtp_shared", "mtp_wide",
    }  # fmt: skip
    fields = TransformerSpec.model_fields.items()
    parts = {name for name, field in fields if field.default is None or field.default is False or field.default == ()}
    assert parts == set(UNMEASURED) | of_measured | of_few_bytes | of_layers_alone | no_parts


def test_the_next_chip_may_be_harder_than_those_that_are_known():
    """Chips that are alike say that the next is too; of chips that differ the band is wider than that of the hardest."""

    def edge_of(*edges):
        return band([replace(row(edge, item=str(i), seen="none"), chip=f"chip {edge}") for edge in edges for i in range(20)]).p90

    assert edge_of(0.1, 0.1 + 1e-9, 0.1 + 2e-9) == pytest.approx(0.1)
    assert edge_of(0.3) == pytest.approx(0.3)  # nothing says how chips differ
    assert 0.2 < edge_of(0.1, 0.12, 0.15, 0.17, 0.2) < edge_of(0.1, 0.15, 0.2) < edge_of(0.1, 0.2) <= 0.4
    # of three by hand: logarithms of mean -1.9364 and deviation 0.3483, and 1.886 of Student's t of two degrees of freedom (any table)
    assert edge_of(0.1, 0.15, 0.2) == pytest.approx(np.exp(-1.9364 + 1.886 * 0.3483 * np.sqrt(4 / 3)), rel=0.01)


def test_one_chip_of_a_kind_differs_from_the_next_as_those_of_other_kinds_do():
    def of(kind, edge, n=20):
        like = Likeness(kind=kind, seen="none", memory="HBM")
        return [JudgedRow(table="t", like=like, error=edge, item=str(i), chip=f"{edge}") for i in range(n)]

    alone, others = Likeness(kind="k", seen="none", memory="HBM"), [*of("o", 0.1), *of("o", 0.12), *of("o", 0.15)]
    assert lines(of("k", 0.3))[alone].p90 == pytest.approx(0.3)
    assert 0.3 < lines([*of("k", 0.3), *others])[alone].p90 < lines([*of("k", 0.3), *others, *of("o", 0.3)])[alone].p90


def on_chip(chip, memory, edge, n=20):
    """Rows of a chip that nobody fitted, whose errors are up to an edge."""
    like = Likeness(kind="k", seen="none", memory=memory)
    return [JudgedRow(table="t", like=like, error=edge * (i + 1) / n, item=str(i), chip=chip) for i in range(n)]


def test_a_chip_of_a_known_kind_is_told_by_its_kind_and_another_one_by_twice_the_hardest():
    """A chip with HBM by chips with HBM, though cards are harder; where a kind has no chip, all the others speak, with twice their edge."""
    known = lines([*on_chip("a", "HBM", 0.1), *on_chip("b", "HBM", 0.1 + 1e-9), *on_chip("c", "GDDR", 0.4)])

    def edge_for(memory):
        return next(bands.candidates(Likeness(kind="k", type="8 bits", seen="none", memory=memory), known))[0].p90

    assert edge_for("HBM") == pytest.approx(0.095)  # of 20 errors the 19th
    assert edge_for("GDDR") >= 0.38
    assert edge_for("") == pytest.approx(2 * 0.38)


def test_coverage_of_unseen_chips_is_judged_by_the_other_chips_alone():
    """The card has no like: twice the edge of the others, 0.19, holds 9 of its 20 errors up to 0.4."""
    rows = [*on_chip("a", "HBM", 0.1), *on_chip("b", "HBM", 0.1), *on_chip("c", "GDDR", 0.4)]
    shares = {one.chip: one.share for one in unseen_coverage(rows)}
    assert shares["c"] == pytest.approx(9 / 20)
    assert shares["a"] == shares["b"] >= 0.95
    assert shares[""] == pytest.approx(np.mean([shares[chip] for chip in "abc"]))


def test_kinds_of_memory_of_published_devices():
    kinds = {name: likeness(scenario(system={"template": name}, strategy="tp1-dp1")).memory for name in ("h100-sxm", "gaudi2", "rtx-4090")}
    assert kinds == {"h100-sxm": "", "gaudi2": "HBM", "rtx-4090": "GDDR"}  # nothing of a device whose family was fitted


@pytest.mark.thorough
def test_nine_of_ten_rows_of_a_further_chip_keep_to_the_band():
    """Of chips whose logarithms of edges are drawn from one normal distribution, over many draws."""
    rng, within = np.random.default_rng(3), []
    for _ in range(200):
        edges = np.exp(rng.normal(-1.5, 0.4, 4))
        drawn = [(k, error) for k in range(3) for error in rng.normal(0, edges[k], 60)]
        some = [replace(row(error, item=str(i), seen="none"), chip=str(k)) for i, (k, error) in enumerate(drawn)]
        within.append(np.mean(np.abs(rng.normal(0, edges[3], 200)) <= band(some).p90))
    assert 0.88 < np.mean(within) < 0.95


def test_an_outlier_among_few_models_makes_a_band_no_more_than_twice_as_wide():
    made = lines([row(0.1, item=str(i)) for i in range(12)] + [row(9.0, item="odd")] + [row(0.1, item="0")] * 20)
    assert made[Likeness(kind="k")].p90 == pytest.approx(0.1)
    few = lines([row(0.1, item=str(i // 10)) for i in range(40)] + [row(9.0, item="odd")] * 3)
    assert few[Likeness(kind="k")].p90 == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ({"template": "reference-training", "devices": 144, "devices_per_node": 144, "network": {"intra": {"topology": "switch"}}},
         "nodes of 144 devices joined by switches were never predicted blind, at most 8"),
        ({"template": "gb200-nvl72", "nodes": 1, "devices_per_node": 144},
         "nodes of 144 devices joined by switches were never measured, at most 72"),
    ],
)  # fmt: skip
def test_larger_scale_up_domains_than_those_of_measured_runs_are_extrapolated(system, words):
    run = {"workload": {"model": "llama3-8b", "global_batch": 144}, "strategy": "dp144-z1"}
    found = crossflow.predict(crossflow.from_dict({"system": system, **run}))
    assert found.trust.level == "extrapolated"
    assert words in found.trust.reason
    torus = {**system, "network": {"intra": {"fabric": "ideal", "topology": "torus3d", "shape": [4, 6, 6]}}}
    assert "joined by switches" not in crossflow.predict(crossflow.from_dict({"system": torus, **run})).trust.reason


def test_chips_were_predicted_blind_in_nodes_of_eight():
    assert alone(DatedWorkload.model_fields["devices"].default)["devices_per_node"] == BLIND_DOMAIN
