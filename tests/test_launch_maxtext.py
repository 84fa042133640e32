# ruff: noqa: E501  (exact sentences)
"""Configuration files of MaxText: against a table of its options, read back, and what it cannot express."""

import math
from pathlib import Path

import pytest
import yaml

import crossflow
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.edges.launch.launch import read, write
from crossflow.edges.launch.table import table
from crossflow.workload.model_names import model_names

OPTIONS = yaml.safe_load((Path(__file__).parent / "data" / "maxtext_options.yaml").read_text(encoding="utf-8"))["options"]
TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool}
KEPT = ["norm", "activation"]  # what MaxText computes again where it keeps all that it can


def made(strategy, model="llama3-70b", devices=256, system="tpu-v5p-pod", again=(), **workload):
    software = {"like": "maxtext", "recomputed": list(again)} if again else "maxtext"
    data = {"system": {"template": system, "devices": devices}, "workload": {"model": model, "global_batch": 1024, **workload}}
    return crossflow.from_dict({**data, "strategy": strategy, "software": software})


# Plans on four slices of 64 chips, and settings beside them.
PLANS = [
    ("dp256-z3-full", {}),
    ("dp256-z3-g64-full", {}),
    ("tp4-dp64-z3-sp-full", {}),
    ("tp4-dp64-z1-full", {}),
    ("tp8-dp32-z1-sp-mb2-full", {}),
    ("tp2-cp2-dp64-z3-sp-full", {"global_batch": 512}),
    ("tp4-dp16-pp4-gpipe-z1-sp-full", {}),
    ("tp8-dp8-pp4-v2-gpipe-sp-full", {}),
    ("dp256-z3-full-offload:optimizer+weights", {}),
    ("dp256-z3-full-offload:activations", {}),
    ("tp4-dp64-z3-sp", {"again": KEPT}),
    ("tp4-dp64-z3-sp", {"again": [*KEPT, "attention"]}),
    ("tp4-dp64-z3-sp", {"again": [*KEPT, "attention", "output", "mlp"]}),
    ("tp4-dp64-z3-sp", {"again": [*KEPT, "output", "mlp"]}),
    ("tp4-dp64-z3-sp-sel:mlp", {"again": KEPT}),
    ("tp4-dp64-z3-sp-full", {"dtype": "fp8", "system": "tpu-v7-pod"}),
    ("dp256-ep8-z3-full", {"model": "mixtral-8x7b"}),
    ("tp2-dp128-ep16-z3-full", {"model": "qwen3-235b-a22b"}),
    ("dp256-ep64-z3-full", {"model": "deepseek-v3"}),
    ("dp256-ep8-z3-full", {"model": "mixtral-8x7b", "experts": {"capacity": 1.25}}),
]


def ids(case):
    return case if isinstance(case, str) else "-".join(map(str, case.values())) if case else ""


@pytest.mark.parametrize(("strategy", "more"), PLANS, ids=ids)
def test_what_is_written_is_taken_and_comes_back(strategy, more):
    scenario = made(strategy, **more)
    text = write(scenario, "maxtext")
    said = yaml.safe_load(text)
    check(said, scenario)
    launch = read(text)
    again = launch.scenario()
    assert (launch.kind, launch.devices) == ("maxtext", 256)
    assert not launch.unmodelled
    one, other = crossflow.predict(scenario), crossflow.predict(again)
    assert one.step_time == other.step_time
    assert one.to_dict()["memory"] == other.to_dict()["memory"]
    assert yaml.safe_load(write(again, "maxtext")) == said


def check(said, scenario):
    """What MaxText refuses, by its table of options and the comments of base.yml."""
    for name, value in said.items():
        row = OPTIONS[name]
        assert isinstance(value, TYPES[row["type"]]), name
        assert isinstance(value, bool) == (row["type"] == "bool"), name
        assert "choices" not in row or value in row["choices"], name
    given = {name: said.get(name, row.get("default")) for name, row in OPTIONS.items()}
    within, over = (math.prod(size for name, size in given.items() if name.startswith(f"{level}_")) for level in ("ici", "dcn"))
    assert (within, over) == scenario.nodes
    axes = {name[4:-12]: given[name] * given[name.replace("ici_", "dcn_")] for name in given if name.startswith("ici_")}
    at_once = given["per_device_batch_size"] * within * over
    assert at_once % (axes["data"] * axes["fsdp"] * axes["expert"]) == 0
    assert at_once * given["gradient_accumulation_steps"] == scenario.workload.global_batch
    if axes["pipeline"] > 1:
        assert given["num_pipeline_microbatches"] % axes["pipeline"] == 0
        stages = axes["pipeline"] * given["num_layers_per_pipeline_stage"] * given["num_pipeline_repeats"]
        assert stages == scenario.workload.layers


def test_keys_and_models_are_those_of_the_options():
    known = table("maxtext")
    assert set(known.flags) == set(OPTIONS)
    for name, row in known.flags.items():
        assert row.default in (None, OPTIONS[name].get("default")) or name == "model_name", name
        assert not row.values or "choices" not in OPTIONS[name] or set(row.values) <= set(OPTIONS[name]["choices"]), name
    named = {name for names in model_names().presets.values() for name in names.maxtext}
    assert named
    assert named <= set(OPTIONS["model_name"]["choices"])


def test_a_file_by_hand():
    """256 ranks of fsdp on four slices, two samples of each at once, four times a step."""
    lines = [line for line in write(made("dp256-z3-full-mb1"), "maxtext").splitlines() if not line.startswith("#")]
    assert lines == [
        'base_config: "base.yml"', 'model_name: "llama3-70b"', 'hardware: "tpu"', "per_device_batch_size: 1.0", "gradient_accumulation_steps: 4",
        "max_target_length: 8192", 'remat_policy: "full"', "dcn_data_parallelism: 1", "dcn_fsdp_parallelism: 4", "ici_fsdp_parallelism: 64",
    ]  # fmt: skip


def test_a_command_of_maxtext_is_read():
    """As its recipes start it: words KEY=VALUE, of which fsdp takes the rest of the devices."""
    text = (
        "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3.1-70b per_device_batch_size=2 max_target_length=8192"
        " ici_tensor_parallelism=4 ici_fsdp_parallelism=-1 remat_policy=minimal steps=30 attention=flash weight_dtype=bfloat16\n"
    )
    launch = read(text, devices=64)
    assert launch.strategy == {"tp": 4, "dp": 16, "zero": 3, "micro_batch": 8, "pp": 1}
    assert launch.workload == {"model": "llama3-70b", "global_batch": 128}
    assert launch.software == {"like": "maxtext", "recomputed": ["norm", "activation", "attention"]}
    assert [remark.flag for remark in launch.unmodelled] == ["--weight_dtype"]
    assert {remark.flag for remark in launch.ignored} == {"--steps", "--attention"}


UNSAID = [
    ("tp4-dp64-z2-sp-full", {}, "zero: 2: MaxText shards optimizer states alone (zero: 1), weights too (zero: 3), or nothing"),
    ("tp4-dp64-z3-sp", {}, "recompute: none: MaxText computes norms and activations again in any case; write recompute: full, or --set 'software={like: maxtext, recomputed: [norm, activation]}'"),
    ("tp4-dp16-pp4-z1-sp-full", {}, "schedule: 1f1b: MaxText runs all forward passes, and then all backward passes; write schedule: gpipe"),
    ("tp4-dp32-cp2-z1-full", {}, "cp with zero: 1: MaxText shares out weights over its cp ranks; set zero: 3"),
    ("tp2-dp128-ep8-etp1-z3-sp-full", {"model": "mixtral-8x7b"}, "etp: 1: MaxText cuts experts over all tensor ranks; set etp: 2, or tp: 1"),
    ("dp256-z3-full", {"model": "opt-66b"}, "workload: opt-66b: MaxText has no model_name of it that crossflow knows"),
    ("tp4-dp64-z3-sp-full-rl8", {}, "recompute_layers: 8: MaxText has one policy for all layers"),
    ("dp256-z3-full", {"system": "dgx-h100"}, "system: dgx-h100: maxtext does not run on devices of NVIDIA, only on those of Google; export to megatron, torchtitan, deepspeed"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "more", "sentence"), UNSAID)
def test_what_maxtext_cannot_express_is_told(strategy, more, sentence):
    if more.get("system"):
        data = {
            "system": {"template": "dgx-h100", "devices": 256},
            "workload": {"model": "llama3-70b", "global_batch": 1024},
            "strategy": strategy,
        }
        scenario = crossflow.from_dict(data)
    else:
        scenario = made(strategy, **more)
    with pytest.raises(CrossflowError) as caught:
        write(scenario, "maxtext")
    assert f"- {sentence}" in str(caught.value).splitlines()


WRONG = [
    ("ici_fsdp_parallelism: 32", "the axes make 32 devices, and there are 64"),
    ("ici_fsdp_parallelism: -1\nici_data_parallelism: -1", "only one axis of ici can take the rest (-1)"),
    ("ici_fsdp_parallelism: 48", "the axes make 48 devices, and there are 64"),
    ("ici_tensor_parallelism: 5", "64 devices are not divisible by slices x other axes = 1 x 5 = 5"),
    ("per_device_batch_size: 0.3", "0.3 samples of each of 64 devices are not divisible by 64 data-parallel ranks"),
    ("ici_pipeline_parallelism: 4\nnum_layers_per_pipeline_stage: 7", "80 layers are not 4 stages of 7 layers"),
    ("per_device_batch_size: -3", "expected more than 0, got -3"),
    ("ici_tensor_parallelism: 0", "expected a whole number from 1, or -1 for the rest, got 0"),
    ("num_slices: 3", "64 devices are not divisible by slices x other axes = 3 x 1 = 3"),
    ("quantization: int4", 'expected one of "", int8, fp8_full, fp8, nanoo_fp8, got'),
    ("remat_policy: none", "expected one of full, minimal, minimal_with_context, save_qkv_proj, custom, got 'none'"),
    ("ici_tensor_parallelism: 2\nici_tensor_sequence_parallelism: 2", "tensor and tensor_sequence together are not modelled; give one"),
]


@pytest.mark.parametrize(("lines", "sentence"), WRONG)
def test_wrong_files_are_told(lines, sentence):
    with pytest.raises(SpecError) as caught:
        read(f'base_config: "base.yml"\nmodel_name: llama3-70b\n{lines}\n', devices=64)
    assert any(sentence in problem.message for problem in caught.value.problems)
    assert len(caught.value.problems) == 1


def test_an_empty_quantization_is_that_of_base_yml():
    assert read('base_config: "base.yml"\nmodel_name: llama3-70b\nquantization: ""\n', devices=64).workload["model"] == "llama3-70b"


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (("mlpwi_0", "mlpwi_1"), "computed again"),
        (("mlpwo",), "kept"),
        (("mlpwi", "mlpwo"), None),
        (("mlpwi_0", "mlpwi_1", "mlpwo"), None),
    ],
)
def test_an_mlp_of_which_a_part_is_kept_is_told(kept, told):
    lines = "".join(f"{name}: device\n" for name in (*kept, "query_proj", "key_proj", "value_proj"))
    launch = read(f'base_config: "base.yml"\nmodel_name: llama3-70b\nremat_policy: custom\n{lines}', devices=64)
    assert [remark.why.endswith(told) for remark in launch.unmodelled] == ([True] if told else [])


@pytest.mark.parametrize(
    ("lines", "capacity", "flag"),
    [
        ("capacity_factor: 1.25\nsparse_matmul: false", 1.25, None),
        ("capacity_factor: 1.25", None, "capacity_factor"),
        ("sparse_matmul: false", None, "sparse_matmul"),
        ("sparse_matmul: true", None, None),
    ],
)
def test_only_padded_experts_leave_tokens_out(lines, capacity, flag):
    """moe.py of MaxText: sparse products take all tokens whatever the capacity, and others without a capacity all experts."""
    launch = read(f'base_config: "base.yml"\nmodel_name: mixtral-8x7b\n{lines}\n', devices=64)
    assert launch.workload.get("experts", {}).get("capacity") == capacity
    assert [remark.flag for remark in launch.unmodelled] == ([flag] if flag else [])


def test_a_file_whose_devices_are_not_known_asks_for_them():
    launch = read('base_config: "base.yml"\nmodel_name: llama3-70b\nper_device_batch_size: 1\n')
    assert launch.missing["devices"] == "the file does not say how many devices there are"
