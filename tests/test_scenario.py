# ruff: noqa: E501  (exact sentences and tables of cases)
"""Scenarios: sections resolved together, all problems at once, and devices that fit the strategy."""

import re
from pathlib import Path

import pytest

import crossflow
from crossflow.base.errors import SpecError

FILE = Path(__file__).parent / "data" / "huggingface" / "mistral-7b.json"
GOOD = """\
name: small
system:
  template: pathfinder
  devices: 8
workload:
  model: lstm
  hidden: 512
  vocabulary: 8000
  sequence: 4
  global_batch: 256
strategy: RC-2-2-d2
"""


@pytest.fixture
def write(tmp_path):
    def file(text, name="s.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return file


def told(path, *settings):
    with pytest.raises(SpecError) as caught:
        crossflow.load(path, settings)
    return [str(problem).replace(f"{path}:", "s.yaml:") for problem in caught.value.problems]


def test_a_file_becomes_a_scenario(write):
    scenario = crossflow.load(write(GOOD))
    assert (scenario.name, scenario.devices, str(scenario.strategy)) == ("small", 8, "RC-2-2-d2")
    assert (scenario.workload.layers, scenario.workload.dtype, scenario.workload.task) == (2, "fp16", "training")
    assert (scenario.order, scenario.kernels_per_device) == (None, 1)
    assert repr(scenario) == "Scenario('small': lstm on 8 devices of pathfinder, strategy RC-2-2-d2)"


def test_a_scenario_round_trips_through_plain_data(write):
    scenario = crossflow.load(write(GOOD))
    again = crossflow.from_dict(scenario.to_dict())
    assert (again.system, again.workload, again.strategy) == (
        scenario.system,
        scenario.workload,
        scenario.strategy,
    ) or repr(again.system) == repr(scenario.system)
    assert crossflow.predict(again).step_time == crossflow.predict(scenario).step_time


def test_settings_override_any_field(write):
    path = write(GOOD)
    changed = crossflow.load(
        path,
        [
            "system.devices=16",
            "strategy=d16",
            "workload.hidden=1024",
            "system.budgets.power=400 W",
            "system.technology.memory=HBM4",
        ],
    )
    assert (
        changed.devices,
        changed.workload.hidden,
        changed.system.budgets.power[0],
        changed.system.technology.memory,
    ) == (16, 1024, 400.0, "HBM4")


@pytest.mark.parametrize("section", ["system: pathfinder", "system: {template: pathfinder}"])
def test_settings_reach_below_a_section_given_by_name(write, section):
    """`system: v100` is short for `system: {template: v100}`, `workload: lstm-16k` for its model: what is set goes beside the name."""
    path = write(f"{section}\nworkload: lstm-16k\nstrategy: d8\n")
    scenario = crossflow.load(path, ["system.devices=16", "strategy=d16", "workload.global_batch=32"])
    assert (scenario.devices, scenario.workload.global_batch, scenario.workload.hidden) == (16, 32, 16384)


def test_a_preset_can_be_changed(write):
    scenario = crossflow.load(write("system: pathfinder\nworkload: {model: lstm-16k, hidden: 1024, optimizer: adam}\n"))
    assert (scenario.workload.hidden, scenario.workload.vocabulary, scenario.workload.optimizer) == (
        1024,
        800000,
        "adam",
    )
    assert scenario.graph().optimizer_states == 2


def test_a_preset_may_be_a_file_beside_the_scenario(write):
    write("model: gemm\nm: 64\nn: 64\nk: 64\n", "mine.yaml")
    assert crossflow.load(write("system: v100\nworkload: mine.yaml\n")).workload.m == 64


def test_all_sections_tell_their_problems_at_once(write):
    text = GOOD.replace("devices: 8", "devces: 8").replace("hidden: 512", "hidden: -1").replace("RC-2-2-d2", "RC-2")
    assert told(write(text)) == [
        "s.yaml:4: system.devces: unknown key 'devces'; did you mean 'devices'?",
        "s.yaml:7: workload.hidden: expected more than 0, got -1",
        "s.yaml:11: strategy: strategy 'RC-2': 'RC' is not understood; write RC-KP1-KP2-dDP-pLP, CR-KP1-dDP-pLP, a part of these such as d512, or degrees such as tp8-dp4-pp2",
    ]


def test_unknown_names_are_told_with_their_lines_and_with_the_rest(write):
    """A template that does not exist is a problem of the file like any other."""
    lines = told(write(GOOD.replace("pathfinder", "pathfindr").replace("model: lstm", "model: lsmt")))
    assert [re.sub(r"; (known|models): .*", "", line) for line in lines] == [
        "s.yaml:3: system.template: unknown template 'pathfindr'; did you mean 'pathfinder'?",
        "s.yaml:6: workload.model: unknown model 'lsmt'; did you mean 'lstm'?",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("name: small", "nam: small", "s.yaml:1: nam: unknown key 'nam'; did you mean 'name'?"),
        ("strategy: RC-2-2-d2", "strategy: {dp: 8, tp: x}", "s.yaml:11: strategy: tp must be a positive whole number, got 'x'"),
        ("  model: lstm\n", "  modle: lstm\n",
         "s.yaml:5: workload: the key 'model' is missing: one of lstm, gemm, transformer, dlrm, program, or a preset; 'modle' looks like a misspelling of it"),
        ("  model: lstm\n", "", "s.yaml:5: workload: the key 'model' is missing: one of lstm, gemm, transformer, dlrm, program, or a preset"),
        ("  hidden: 512", "  hidden: 512.5", "s.yaml:7: workload.hidden: expected a whole number, got 512.5"),
        ("  hidden: 512", "  hidden: 512\n  dtype: fp4", "s.yaml:8: workload.dtype: expected one of fp64, fp32, tf32, fp16, bf16, int8, fp8, got 'fp4'; did you mean 'fp64'?"),
        ("  hidden: 512", "  hidden: 512\n  dtype: int8", "s.yaml:8: workload.dtype: pathfinder has no rates for int8; it has fp16, bf16, fp32"),
        ("strategy: RC-2-2-d2", "strategy: RC-2-2-d2\nplacement: [dp, kp1]", "s.yaml:12: placement: expected each of kp1, kp2, dp once, or auto; got dp, kp1"),
        ("strategy: RC-2-2-d2", "strategy: RC-2-2-d2\nkernels_per_device: 0", "s.yaml:12: kernels_per_device: expected more than 0, got 0"),
    ],
)  # fmt: skip
def test_problems_are_told_exactly(write, old, new, line):
    assert line in [re.sub(r"; did you mean 'fp\d+'\?", "; did you mean 'fp64'?", found) for found in told(write(GOOD.replace(old, new)))]


@pytest.mark.parametrize("missing", ["system", "workload"])
def test_a_missing_section_is_told(write, missing):
    sections = {"system": "system: v100\n", "workload": "workload: {model: gemm, m: 8, n: 8, k: 8}\n"}
    lines = told(write("".join(text for name, text in sections.items() if name != missing)))
    assert lines == [f"s.yaml:1: the key '{missing}' is missing"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["strategy=d16"], "strategy d16 needs 16 devices (dp 16), but the system has 8; system.nodes=16 makes it 16"),
        (
            ["strategy=RC-2-4-d2"],
            "strategy RC-2-4-d2 needs 16 devices (kp1 2 x kp2 4 x dp 2), but the system has 8; system.nodes=16 makes it 16",
        ),
        (
            ["strategy="],
            "missing, and the system has 8 devices; write strategy: auto for the fastest that fits, or d8 for data parallelism over all of them",
        ),
    ],
)
def test_strategies_that_do_not_fit_the_system_are_told(write, settings, sentence, exactly):
    with pytest.raises(SpecError, match=exactly(f"{settings[0]}: strategy: {sentence}")):
        crossflow.load(write(GOOD), settings)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("strategy: 8\n", "strategy: expected text such as tp8-dp4 or d32, a mapping such as {tp: 8, dp: 4}, or auto; got 8"),
        ("strategy: d8\nsoftware: 9\n", "software: expected text or a mapping, got 9"),
    ],
)
def test_text_or_a_mapping_that_is_neither_is_one_problem(write, given, sentence):
    lines = told(write(f"system: {{template: v100, devices: 8}}\nworkload: {{model: gemm, m: 8, n: 8, k: 8}}\n{given}"))
    assert [line.partition(": ")[2] for line in lines] == [sentence]


SPOILT = "strategy: strategy RC-2-2-d2 needs 8 devices (kp1 2 x kp2 2 x dp 2), but the system has 4; system.nodes=8 makes it 8"


def test_a_setting_that_spoils_another_section_is_named(write, exactly):
    """Of several those without which the file is right; none where the file is wrong by itself."""
    path, settings = write(GOOD), ["name=other", "system.devices=4"]
    with pytest.raises(SpecError, match=exactly(f"{path}:11: {SPOILT} (with system.devices=4)")):
        crossflow.load(path, settings)
    wrong = write(GOOD.replace("devices: 8", "devices: 4"))
    with pytest.raises(SpecError, match=exactly(f"{wrong}:11: {SPOILT}")):
        crossflow.load(wrong, ["name=other"])


def test_one_device_needs_no_strategy(write):
    scenario = crossflow.load(write(GOOD), ["strategy=", "system.devices=1"])
    assert (str(scenario.strategy), scenario.devices) == ("d1", 1)


def test_the_strategy_counts_the_devices_where_the_system_does_not(write):
    assert crossflow.load(write(GOOD.replace("  devices: 8\n", ""))).devices == 8


def test_unknown_technology_is_told_when_the_file_is_read(write):
    text = GOOD.replace("devices: 8", "technology: {memory: HBM9, logic: N6}")
    assert [re.sub(r"; known: .*", "", line) for line in told(write(text))] == [
        "s.yaml:4: system.technology.logic: technology library 'deepflow-2024' has no logic 'N6'; did you mean 'N16'?",
        "s.yaml:4: system.technology.memory: technology library 'deepflow-2024' has no memory 'HBM9'; did you mean 'HBM4'?",
    ]
    with pytest.raises(
        SpecError,
        match=r"system.technology.memory: technology library 'deepflow-2024' has no memory 'HBM9'; did you mean 'HBM4'\?",
    ):
        crossflow.load(write(GOOD), ["system.technology.memory=HBM9"])


def test_nodes_of_several_devices(write):
    scenario = crossflow.load(
        write(GOOD),
        ["system.devices_per_node=4", "system.network={intra: {topology: ring}, inter: {topology: switch}}"],
    )
    assert scenario.nodes == (4, 2)
    assert (str(scenario.network().package.kind), scenario.network().cluster.nodes) == ("ring", 2)


def test_nodes_without_a_network_between_them_are_told(write):
    asked = "system: {template: mi210-node, nodes: 2}\nworkload: {model: llama3-8b, global_batch: 16, dtype: fp16}\nstrategy: dp8\n"
    assert (
        "2 nodes are to be connected, and no network between them is known (fabric: none); give nodes: 1, or a network"
        in told(write(asked))[0]
    )
    own = ["system.network.inter.fabric=infiniband", "system.network.inter.bandwidth=50 GB/s"]
    assert crossflow.load(write(asked), own).devices == 8


def test_devices_without_a_wiring_are_told(write):
    path = write(GOOD)
    words = "4 devices are to be connected, but the network's topology is 'single'; give a topology such as switch or mesh2d"
    with pytest.raises(SpecError, match=re.escape(words)):
        crossflow.load(path, ["system.devices_per_node=4"])


def test_a_shape_that_does_not_hold_the_nodes_is_told_where_it_stands(write):
    """Also of a layered model, none of whose collectives may ever cross that level."""
    text = """
        system:
          template: tpu-v4-pod
          devices: 64
          network:
            intra: {shape: [5, 5, 5]}
        workload: {model: mpt-125m, global_batch: 64}
        strategy: tp1-dp64
        """
    with pytest.raises(SpecError) as found:
        crossflow.load(write(text))
    (problem,) = found.value.problems
    assert (problem.line, problem.path) == (6, "system.network.intra.shape")
    assert problem.message == "torus3d shape 5x5x5 holds 125 nodes, the system has 64"


def test_a_network_that_is_set_is_blamed_on_the_setting(write):
    with pytest.raises(SpecError, match=re.escape("system.network.inter={topology: torus2d, shape: [3, 3]}: system.network.inter: ")):
        crossflow.load(write(GOOD), ["system.network.inter={topology: torus2d, shape: [3, 3]}"])


def test_a_wrong_workload_makes_no_plan_wrong(write):
    text = """
        system: dgx-a100
        workload: {model: gpt3-175b, dtype: bf17}
        strategy: {tp: 8, zero: 4}
        """
    with pytest.raises(SpecError) as found:
        crossflow.load(write(text))
    assert [problem.path for problem in found.value.problems] == ["workload.dtype", "strategy"]
    assert found.value.problems[1].message == "zero must be one of 0, 1, 2, 3, got 4"


def test_a_wrong_key_hides_no_problem_of_the_sections(write):
    text = """
        softwre: nemo
        system: {template: dgx-h10, nodes: 2}
        workload: {model: gpt3-175c}
        strategy: tp8
        """
    with pytest.raises(SpecError) as found:
        crossflow.load(write(text))
    first, system, workload = found.value.problems
    assert (first.line, first.message[:21]) == (2, "unknown key 'softwre'")
    assert system.path == "system.template"
    assert "dgx-h100" in system.message
    assert "gpt3-175b" not in system.message  # which is no system
    assert (workload.path, workload.line) == ("workload.model", 4)


def test_both_levels_of_a_network_are_told_on_the_settings_that_shape_them(write):
    text = """
        system: {template: tpu-v4-pod, devices: 128, network: {intra: {shape: [3, 3, 3]}}}
        workload: {model: mpt-125m, global_batch: 128}
        strategy: dp128
        """
    with pytest.raises(SpecError) as found:
        crossflow.load(write(text), ["system.network.inter.shape=[2, 2, 2]"])
    assert [problem.path for problem in found.value.problems] == ["system.network.intra.shape", "system.network.inter.shape"]
    assert found.value.problems[1].file == "system.network.inter.shape=[2, 2, 2]"


def test_a_wrong_key_hides_neither_the_software_nor_the_strategy(write):
    text = """
        fo: 1
        system: dgx-a100
        workload: {model: llama2-7b}
        software: {like: nem}
        strategy: tp8x
        """
    with pytest.raises(SpecError) as found:
        crossflow.load(write(text))
    assert [problem.path.split(".")[0] for problem in found.value.problems] == ["fo", "strategy", "software"]


@pytest.mark.parametrize("model", [{}, ["a"], 5])
def test_a_model_that_is_no_name_is_told(write, model):
    with pytest.raises(
        SpecError, match=re.escape("workload.model: expected one of lstm, gemm, transformer, dlrm, program, or a preset, got")
    ):
        crossflow.load(write(f"system: dgx-a100\nworkload: {{model: {model}}}\nfo: 1\n"))


@pytest.mark.parametrize(("system", "workload"), [("gpt3-175b", "mpt-125m"), ("nemo", "mpt-125m"), ("dgx-a100", "dgx-a100")])
def test_a_template_of_another_kind_is_told_as_what_it_is(write, system, workload):
    kinds = "'gpt3-175b' is a model, and no template|'nemo' is a software stack, and no template|'dgx-a100' is a system, and no model"
    with pytest.raises(SpecError, match=kinds):
        crossflow.load(write(f"system: {system}\nworkload: {workload}\n"))


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama3-70b"), ("DeepSeek-R1-0528", "deepseek-v3"), ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron3-nano-30b-a3b"), ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
    ],
)  # fmt: skip
def test_a_preset_is_found_by_the_name_that_its_maker_gives_the_model(write, name, preset):
    scenario = crossflow.load(write(f"system: dgx-h100\nworkload: {{model: {name}, global_batch: 64}}\nstrategy: tp8\n"))
    assert (
        scenario.workload
        == crossflow.load(write(f"system: dgx-h100\nworkload: {{model: {preset}, global_batch: 64}}\nstrategy: tp8\n")).workload
    )


@pytest.mark.parametrize("name", ["gpt-3.5b", "Qwen/Qwen3-32B-FP8", "mistralai/Mistral-7B-v0.3"])
def test_names_of_other_models_are_no_preset_s(write, name):
    assert f"unknown model '{name}'" in told(write(f"system: dgx-h100\nworkload: {{model: {name}, global_batch: 64}}\nstrategy: tp8\n"))[0]


def test_a_folder_counts_before_a_maker_s_name(tmp_path, write):
    """A folder of that name beside the scenario, with the file of another model."""
    folder = tmp_path / "meta-llama" / "Llama-3.1-70B"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(FILE.read_text())
    scenario = crossflow.load(write("system: dgx-h100\nworkload: {model: meta-llama/Llama-3.1-70B, global_batch: 64}\nstrategy: tp8\n"))
    assert (scenario.workload.layers, scenario.workload.hidden) == (32, 4096)
