"""Types in which makers release weights: what services take, what training does not, and what a workload says instead."""

import pytest

import crossflow
from crossflow.base.errors import SpecError
from crossflow.workload.released import as_released

BLOCKS = {"served": {"weight_dtype": "fp8_block"}}
FOURS = {"served": {"weight_dtype": "mxfp4", "wide_layers": ["attention"]}}
RATES = {"bf16", "fp8", "fp8_block"}


def made(model, system="dgx-h100", **workload):
    data = {"task": "decode", "prompt": 1000, "output": 100, "global_batch": 8, **workload}
    return crossflow.from_dict({"system": {"template": system, "devices": 8}, "workload": {"model": model, **data}, "strategy": "tp8"})


@pytest.mark.parametrize(
    ("preset", "given", "rates", "types"),
    [
        (BLOCKS, {"task": "serving"}, RATES, {"dtype": "fp8_block"}),
        (BLOCKS, {"task": "serving"}, {"bf16"}, {"weight_dtype": "fp8_block"}),
        (FOURS, {"task": "decode"}, {*RATES, "mxfp4"}, {"weight_dtype": "mxfp4", "wide_layers": ["attention"]}),
        (FOURS, {"task": "training"}, RATES, {}),
        (FOURS, {"sequence": 4096}, RATES, {}),
        (FOURS, {"task": "decode", "dtype": "bf16"}, RATES, {}),
        (FOURS, {"task": "decode", "weight_dtype": "int8"}, RATES, {}),
        ({"weight_dtype": "fp8_block"}, {"task": "decode", "dtype": "bf16"}, RATES, {"weight_dtype": "fp8_block"}),
        ({"weight_dtype": "fp8"}, {"task": "decode", "dtype": "fp8_block"}, RATES, {}),
        ({}, {"task": "decode"}, RATES, {}),
    ],
)
def test_a_service_takes_the_types_of_the_release_where_it_says_none(preset, given, rates, types):
    assert as_released(preset, given, rates) == types


def test_a_service_of_gpt_oss_keeps_its_experts_in_four_bits():
    released, wide = made("gpt-oss-120b"), made("gpt-oss-120b", dtype="bf16")
    assert (released.workload.dtype, released.workload.weight_dtype, released.workload.wide_layers) == ("bf16", "mxfp4", ("attention",))
    one, other = (crossflow.predict(scenario) for scenario in (released, wide))
    assert one.step_time < 0.8 * other.step_time
    assert one.score.memory["weights"][0] < 0.3 * other.score.memory["weights"][0]
    assert "weights are in mxfp4, as released, products in bf16; give workload.dtype to change it" in crossflow.predict(released).notes
    assert not any("as released" in note for note in crossflow.predict(wide).notes)


@pytest.mark.parametrize(("system", "types"), [("dgx-h200", ("fp8_block", None)), ("dgx-a100", ("bf16", "fp8_block"))])
def test_products_are_in_the_type_of_the_weights_where_the_device_has_it(system, types):
    workload = made("deepseek-v3", system).workload
    assert (workload.dtype, workload.weight_dtype) == types


def test_a_sweep_of_systems_has_the_types_of_each():
    base = made("deepseek-v3", "dgx-h200")
    found = crossflow.evaluate(base, {"system.template": ["dgx-h200", "dgx-a100"]}).step_time
    alone = [float(crossflow.predict(made("deepseek-v3", system)).step_time) for system in ("dgx-h200", "dgx-a100")]
    assert found.tolist() == pytest.approx(alone, rel=1e-12)


def test_only_the_file_of_a_model_says_how_it_was_released():
    with pytest.raises(SpecError, match="only the file of a model says how it was released; give weight_dtype and wide_layers"):
        made("llama3-8b", served={"weight_dtype": "fp8"})


@pytest.mark.parametrize(
    ("place", "devices", "cure"),
    [
        ("Qwen3-8B-FP8.json", "dgx-h100", "workload.dtype=fp8"), ("Qwen3-8B-NVFP4/config.json", "dgx-b200", "workload.dtype=nvfp4"),
        ("Qwen3-8B-NVFP4.json", "dgx-h100", "workload.weight_dtype=nvfp4"), ("qwen3-8b-awq.json", "dgx-h100", "workload.weight_dtype=int4"),
        ("Qwen3-8B.json", "dgx-h100", None),
    ],
)  # fmt: skip
def test_a_name_that_says_a_type_that_the_file_does_not_is_told(place, devices, cure, tmp_path):
    """As the config.json of ModelOpt's checkpoints, whose types lie in a file beside it: 16 bits took twice the time without a word."""
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text((crossflow.example("llama").parent / "tutorial" / "config.json").read_text())
    asked = {"model": str(path), "on": devices, "task": "decode", "strategy": "tp8"}
    told = [note for note in crossflow.predict(**asked).notes if "by its name" in note]
    assert [f"--set {cure} changes that" in note for note in told] == ([True] if cure else [])
    if cure:
        key, _, kind = cure.partition("=")
        assert not [note for note in crossflow.predict(**asked, settings={key: kind}).notes if "by its name" in note]
    assert [note for note in crossflow.plan(**asked, top=1).notes if "by its name" in note] == told


def test_a_comparison_tells_once_that_a_name_says_another_type(tmp_path):
    path = tmp_path / "Qwen3-8B-NVFP4.json"
    path.write_text((crossflow.example("llama").parent / "tutorial" / "config.json").read_text())
    asked = {"devices": 1, "task": "decode", "batch": 8, "workload__prompt": 256, "workload__output": 16}
    notes = crossflow.compare(str(path), "dgx-h100,dgx-b200", **asked).notes
    assert ["--set workload.weight_dtype=nvfp4 changes that" in note for note in notes if "by its name" in note] == [True]
