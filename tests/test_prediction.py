"""Predictions as people and scripts read them: keys, sums, JSON without infinities, provenance, and what is extrapolated."""

import json
import re

import pytest

import crossflow
from crossflow.base import provenance

KEYS = {
    "name", "step_time_s", "feasible", "reason", "extrapolated", "breakdown_s", "communication_s", "memory", "throughput", "mfu",
    "energy_j", "cost_usd", "power_w", "bound_by", "architecture", "system", "provenance",
    "hfu", "remedies", "by_layer_s", "overlap", "cost_per_million", "error_band", "error_band_reason",
    "trust", "trust_text", "trust_reason", "trust_of",
}  # fmt: skip
SMALL = {"hidden": 1024, "vocabulary": 32000, "global_batch": 512, "sequence": 4}


@pytest.fixture(scope="module", params=["d8", "CR-8", "RC-2-2-d2", "d4-p2"])
def made(request, lstm):
    return crossflow.predict(lstm(request.param, workload=SMALL)).to_dict()


@pytest.fixture(scope="module")
def endless(gemm):
    """A device without links that is asked to communicate."""
    return crossflow.predict(gemm("p4", "d2", task="training"))


def test_all_keys_of_the_contract(made):
    assert set(made) - {"memory_by_stage"} == KEYS
    assert list(made["breakdown_s"]) == ["compute", "memory_bound_compute", "exposed_communication", "bubble", "other"]
    assert {"total_bytes", "capacity_bytes", "fits", "weights_bytes", "activations_bytes"} <= set(made["memory"])
    assert set(made["throughput"]) == {"samples_per_s", "tokens_per_s"}
    assert set(made["provenance"]) == {"version", "schema", "inputs", "seed"}


def test_parts_add_up(made):
    kinds = [
        made["memory"][key]
        for key in made["memory"]
        if key not in ("total_bytes", "capacity_bytes", "host_bytes", "host_capacity_bytes", "fits", "margin", "tight")
    ]
    assert sum(made["breakdown_s"].values()) == pytest.approx(made["step_time_s"], rel=1e-12)
    assert sum(kinds) == pytest.approx(made["memory"]["total_bytes"], rel=1e-12)
    assert sum(entry["share"] for entry in made["bound_by"]) == pytest.approx(1.0, rel=1e-9)
    exposed = sum(part["exposed"] for part in made["communication_s"].values())
    assert exposed == pytest.approx(made["breakdown_s"]["exposed_communication"], rel=1e-9, abs=1e-15)


def test_the_fullest_stage_is_what_the_prediction_tells(made):
    stages = made.get("memory_by_stage", [])
    assert len(stages) == (2 if made["system"]["strategy"].endswith("p2") else 0)
    fullest = max(stages, key=lambda held: held["total_bytes"], default={})
    assert {key: made["memory"][key] for key in fullest} == pytest.approx(fullest)


def test_overlap_is_what_communication_hides(made):
    sent, exposed = (sum(part[of] for part in made["communication_s"].values()) for of in ("total", "exposed"))
    assert made["overlap"]["hidden_communication_s"] == pytest.approx(sent - exposed, rel=1e-9, abs=1e-15)
    assert made["overlap"]["serialized_s"] == pytest.approx(made["step_time_s"] + sent - exposed, rel=1e-12)
    assert made["overlap"]["exposed_share"] == pytest.approx(exposed / sent, rel=1e-9)


def test_figures_follow_from_each_other(made):
    assert made["throughput"]["samples_per_s"] * made["step_time_s"] == pytest.approx(512, rel=1e-12)
    assert made["throughput"]["tokens_per_s"] == pytest.approx(4 * made["throughput"]["samples_per_s"], rel=1e-12)
    assert made["energy_j"] == pytest.approx(made["power_w"] * made["step_time_s"], rel=1e-12)
    assert all(0 <= part["exposed"] <= part["total"] * (1 + 1e-12) for part in made["communication_s"].values())
    assert made["bound_by"] == sorted(made["bound_by"], key=lambda entry: -entry["share"])


def test_no_budget_is_overdrawn(made):
    assert {use["resource"] for use in made["architecture"]["budgets"]} == {"area", "power", "perimeter"}
    for use in made["architecture"]["budgets"]:
        assert use["used"] <= use["budget"] * (1 + 1e-9), use


def test_json_reads_back_the_same(made):
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_a_step_without_end_is_null_and_says_why(endless):
    text = json.dumps(endless.to_dict(), allow_nan=False)
    found = json.loads(text)
    assert (found["step_time_s"], found["energy_j"], found["feasible"]) == (None, None, False)
    assert found["reason"] == "no network or memory bandwidth where the strategy needs it"
    assert found["throughput"]["samples_per_s"] == found["mfu"] == 0
    assert repr(endless).startswith("Prediction('scenario': ")
    assert repr(endless).endswith(f"infeasible: {found['reason']})")


def test_products_have_no_tokens(gemm):
    assert set(crossflow.predict(gemm()).to_dict()["throughput"]) == {"samples_per_s"}


def test_an_overfull_design_has_a_time_and_a_reason(lstm):
    found = crossflow.predict(lstm("d512")).to_dict()
    assert found["memory"]["fits"] is found["feasible"] is False
    assert found["step_time_s"] > 0
    assert found["reason"].startswith("needs 114.9 GiB of memory per device, 82.91 GiB more than its 32 GiB")


def test_a_prediction_reads_as_one_line(gemm):
    assert re.fullmatch(r"Prediction\('scenario': [\d.]+ [mu]s, bound by \w+\)", repr(crossflow.predict(gemm())))


def test_a_system_of_measured_devices_is_measured(gemm):
    assert not crossflow.predict(gemm("dgx-a100", "d8")).to_dict()["extrapolated"]


@pytest.mark.parametrize(
    ("template", "extrapolated"),
    [("a100-80gb", False), ("h100-sxm", False), ("h200", False), ("a10", False), ("pathfinder", True), ("v100", True), ("mi300x", True)],
)
def test_what_was_never_measured_is_extrapolated(gemm, template, extrapolated):
    assert crossflow.predict(gemm(template)).to_dict()["extrapolated"] is extrapolated


def test_a_model_that_was_never_measured_is_extrapolated(lstm):
    assert crossflow.predict(lstm("d8", "dgx-a100", workload=SMALL)).to_dict()["extrapolated"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "workload", "extrapolated"),
    [
        ("dgx-a100", {"model": "llama2-7b"}, False),
        ("dgx-h100", {"model": "gpt3-5b", "dtype": "fp16"}, False),
        ("dgx-b200", {"model": "llama3-8b"}, False),
        ("tpu-v4", {"model": "mpt-125m"}, True),  # a device
        ("dgx-h100", {"model": "mixtral-8x7b"}, True),  # experts in 16 bits
        ("dgx-a100", {"model": "vit-l"}, True),
        ("dgx-a100", {"model": "bert-large"}, True),
        ("dgx-h100", {"model": "llama2-7b", "dtype": "fp8"}, False),
        ("dgx-h100", {"model": "llama2-7b", "task": "prefill"}, False),
        ("dgx-h100", {"model": "llama2-7b", "frozen": ["layers:0-3"]}, True),
    ],
)
def test_training_runs_that_were_measured_are_of_dense_decoders(template, workload, extrapolated):
    scenario = crossflow.from_dict({"system": {"template": template, "devices": 1}, "workload": {"global_batch": 1, **workload}})
    assert crossflow.predict(scenario).to_dict()["extrapolated"] is extrapolated


@pytest.mark.parametrize(
    ("change", "extrapolated"),
    [({"network": {"inter": {"bandwidth": "50 GB/s"}}}, False), ({"levels": {"memory": {"bandwidth": "10 TB/s"}}}, True)],
    ids=["network", "memory"],
)
def test_a_device_that_is_changed_was_not_measured(gemm, change, extrapolated):
    assert crossflow.predict(gemm("dgx-a100", "d8", system=change)).to_dict()["extrapolated"] is extrapolated


SERVICE = {"model": "llama3-8b", "task": "decode", "prompt": 1024, "output": 128, "global_batch": 16}


@pytest.mark.parametrize(
    ("key", "value", "as_it_is"),
    [
        ("system", {"template": "dgx-h100", "levels": {"memory": {"bandwidth": "3.35 TB/s"}}}, True),
        ("system", {"template": "dgx-h100", "levels": {"memory": {"bandwidth": {"value": "3350 GB/s", "source": "data sheet"}}}}, True),
        ("system", {"template": "dgx-h100", "levels": {"memory": {"bandwidth": "3.36 TB/s"}}}, False),
        ("software", {"like": "vllm", "engine": {"queue": "arrival"}}, True),
        ("software", {"like": "vllm", "engine": {"queue": "priority"}}, False),
    ],
)
def test_what_is_written_as_it_is_shipped_changes_no_trust(key, value, as_it_is):
    plain = {"system": "dgx-h100", "workload": SERVICE, "strategy": "tp8", "software": "vllm"}
    usual, given = (crossflow.predict(crossflow.from_dict(data)).trust for data in (plain, {**plain, key: value}))
    assert usual.level == "measured"
    assert (given == usual) == as_it_is


def test_pools_as_they_are_shipped_change_no_trust():
    def trust(memory):
        pool = {"template": "dgx-h100", "levels": {"memory": {"bandwidth": memory}}}
        serving = {"prefill": {"strategy": "tp8", "workers": 1}}
        workload = {**SERVICE, "task": "serving", "serving": serving}
        return crossflow.predict(
            crossflow.from_dict({"system": {"template": "dgx-h100", "pools": {"prefill": pool}}, "workload": workload, "strategy": "tp8"})
        ).trust

    assert trust("3.35 TB/s").reason != trust("3 TB/s").reason


def test_what_a_prediction_says_cannot_be_written_over(gemm):
    """Arrays that later evaluations share with it would change them."""
    score = crossflow.predict(gemm()).score
    for values in (score.step_time, *score.architecture.values(), *score.memory.values(), *score.communication.values()):
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0.0


# ------------------------------------------------------------------------------------------ provenance


def inputs(data):
    return crossflow.predict(crossflow.from_dict(data)).to_dict()["provenance"]["inputs"]


@pytest.fixture
def data():
    return {"system": {"template": "v100"}, "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "fp16"}, "strategy": "d1"}


def test_provenance_does_not_depend_on_the_order_of_keys(data):
    turned = {key: dict(reversed(value.items())) if isinstance(value, dict) else value for key, value in reversed(data.items())}
    assert list(turned) != list(data)
    assert inputs(turned) == inputs(data)


@pytest.mark.parametrize(
    ("path", "value", "changed"),
    [
        (("workload", "m"), 128, {"scenario"}),
        (("system", "budgets"), {"power": "290 W"}, {"scenario", "system"}),
        (("system", "template"), "pathfinder", {"scenario", "system"}),
        (("system", "template"), "a100-80gb", {"scenario", "system", "techlib"}),
    ],
)
def test_provenance_changes_with_what_went_in(data, path, value, changed):
    other = {**data, path[0]: {**data[path[0]], path[1]: value}}
    before, after = inputs(data), inputs(other)
    assert {name for name in before if before[name] != after[name]} == changed
    assert set(before) == {"scenario", "system", "techlib"}


def test_a_record_holds_version_hashes_and_seed():
    made = provenance.record(seed=3, a={"x": 1}, b=[1, 2])
    assert (made["version"], made["seed"], set(made["inputs"])) == (crossflow.__version__, 3, {"a", "b"})
    assert all(re.fullmatch(r"[0-9a-f]{16}", text) for text in made["inputs"].values())
    assert provenance.record()["seed"] is None


def test_a_hash_tells_values_and_types_apart():
    different = [{"a": 1}, {"a": 2}, {"b": 1}, {"a": "1"}, {"a": [1]}, {"a": None}, {"a": 1.5}, [1, 2], [2, 1]]
    assert len({provenance.digest(data) for data in different}) == len(different)


CHIP = {
    "system": {"template": "reference-training", "devices": 64, "technology": {"logic": "N3", "memory": "HBM4"}},
    "workload": "llama3-70b",
    "strategy": "tp8-dp2-pp4-z1-sp",
}


def test_most_figures_of_a_future_component_are_told_to_be_projected():
    def notes(**technology):
        chip = crossflow.load(CHIP, {f"system.technology.{kind}": name for kind, name in technology.items()})
        return [note for note in crossflow.predict(chip).notes if "projected" in note]

    assert notes(logic="N5", memory="HBM3") == []
    assert notes(logic="N1", memory="HBM4E") == [
        "logic N1: 14 of its 16 figures are projected, not published; crossflow show N1 has them",
        "memory HBM4E: 15 of its 17 figures are projected, not published; crossflow show HBM4E has them",
    ]


@pytest.mark.cases(1)
@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_device_has_more_power_than_it_draws_at_rest(share):
    resting = 50.0
    for _ in range(8):  # cooler dies leak less: what is drawn at rest where no more may be drawn
        resting = float(crossflow.predict(CHIP, {"system.budgets.power": f"{resting} W"}).device.static_power[0])
    found = crossflow.predict(CHIP, {"system.budgets.power": f"{share * resting} W"})
    assert float(found.device.static_power[0]) == pytest.approx(resting, rel=0.01)
    assert found.reason == (None if share > 1 else "cannot be built: its power budget does not exceed the power that it draws at rest")
