"""An own chip with slips: all of them are told at once, each with its cure, and a figure that no device has is not believed silently."""

import pytest

import crossflow
from crossflow import SpecError
from crossflow.base.files import json_text

CHIP = {
    "kind": "datasheet", "name": "hydra", "family": "nvidia-blackwell", "technology": {"logic": "N2", "memory": "HBM4", "link": "NVLink5"},
    "units": 256, "clock": "2.2 GHz", "throughput": {"bf16": "4 Pflop/s", "fp8": "8 Pflop/s"}, "vector_throughput": {"fp32": "120 Tflop/s"},
    "levels": {
        "l2": {"scope": "device", "capacity": "256 MiB", "bandwidth": "30 TB/s"},
        "memory": {"scope": "device", "capacity": "288 GiB", "bandwidth": "16 TB/s"},
    },
    "network": {"intra": {"bandwidth": "1.8 TB/s"}}, "power": {"tdp": "1.8 kW", "idle": "150 W"},
}  # fmt: skip
SERVICE = {"model": "llama3-8b", "task": "decode", "prompt": 512, "output": 32, "global_batch": 8}


def scenario(chip):
    return crossflow.from_dict({"system": {"template": chip}, "workload": SERVICE, "strategy": "tp1-mb8"})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None), ({"clock": "22 GHz"}, "system.clock is 22 GHz, far outside the 1.05 GHz to 2.8 GHz of shipped devices"),
        ({"throughput": {"bf16": "4 Pflop/s", "fp8": "80 Tflop/s"}}, "system.throughput.fp8 is 80 Tflop/s, below the 4 Pflop/s of wider"),
        ({"power": {"tdp": "18 kW", "idle": "150 W"}}, "system.power.tdp is 18 kW, far outside the 70 W to 1.4 kW of shipped devices"),
    ],
)  # fmt: skip
def test_a_figure_that_no_device_has_is_told(changes, told):
    notes = scenario({**CHIP, **changes}).predict().notes
    found = [note for note in notes if "check it" in note]
    assert (len(found) == 1 and told in found[0]) if told else not found


def test_a_slip_of_a_unit_over_a_shipped_device_is_told_in_plans_too():
    slow = {"template": "dgx-h100", "levels": {"memory": {"bandwidth": "3 GB/s"}}}
    plans = crossflow.plan({"system": slow, "workload": SERVICE, "strategy": "auto"}, top=1)
    assert any("system.levels.memory.bandwidth is 3 GB/s, far outside the 192 GB/s to 8 TB/s" in note for note in plans.notes)


SLIP = "system.levels.memory.bandwidth is 3 GB/s, far outside the 192 GB/s to 8 TB/s"
SLOW = {"template": "dgx-h100", "devices": 2, "levels": {"memory": {"bandwidth": "3 GB/s"}}}
JOB = {
    "system": SLOW, "workload": {"model": "gpt2-345m", "sequence": 128, "global_batch": 4}, "strategy": "dp2",
    "job": {"kind": "grpo", "rollout": {"prompts": 2, "answers": 2, "prompt": 64, "answer": 64, "strategy": "tp2"}},
}  # fmt: skip


def test_a_slip_is_told_of_replays_and_jobs_too():
    requests = {"arrivals": {"law": "poisson", "rate": "1 1/s"}, "count": 5, "prompt": 64, "output": 4}
    replayed = {"system": SLOW, "workload": {"model": "gpt2-345m", "task": "serving"}, "strategy": "tp2", "requests": requests}
    answers = [crossflow.serve(replayed), crossflow.from_dict(replayed).predict(), crossflow.from_dict(JOB).predict()]
    assert [any(SLIP in note for note in one.notes) for one in answers] == [True] * 3


@pytest.mark.thorough
@pytest.mark.slow
def test_a_slip_is_told_of_plans_and_explanations_of_jobs():
    answers = [crossflow.plan({**JOB, "strategy": "auto"}, top=1), crossflow.from_dict(JOB).explain()]
    assert [any(SLIP in note for note in one.notes) for one in answers] == [True] * 2


@pytest.mark.parametrize("named", [None, "own"])
def test_a_device_without_a_known_family_is_told_of_all_that_is_wrong(named):
    level = {"capacity": "256 MiB", "bandwith": "30 TB/s"}
    chip = {key: value for key, value in CHIP.items() if key != "family"} | ({} if named is None else {"family": named})
    with pytest.raises(SpecError) as error:
        scenario({**chip, "levels": {**CHIP["levels"], "l2": level}})
    told = [problem.message for problem in error.value.problems]
    first = "the key 'family' is missing" if named is None else "unknown family 'own'"
    assert told[0].startswith(f"{first}; give the one whose efficiencies it adopts: amd-gpu, cpu, gaudi-3, gaudi, neuroncore, nvidia-ada, ")
    assert "fabrics" not in told[0]
    assert told[1:] == ["the key 'scope' is missing: unit or device", "unknown key 'bandwith'; did you mean 'bandwidth'?"]


def test_devices_whose_file_has_a_link_are_told_how_many_lie_in_a_node(tmp_path):
    path = tmp_path / "hydra.yaml"
    path.write_text(json_text(CHIP))
    given = {"model": "llama3-8b", "on": str(path), "devices": 8, "strategy": "tp8"}
    with pytest.raises(crossflow.CrossflowError, match=r"set system\.devices_per_node=8 for a node of so many"):
        crossflow.predict(**given)
    assert crossflow.predict(**given, settings={"system.devices_per_node": 8}).feasible


@pytest.mark.parametrize(("extends", "told"), [("devices", True), ("standard", False)])
def test_an_own_library_on_another_one_than_the_templates_is_told(extends, told, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(json_text({"name": "own", "title": "Mine", "extends": extends, "sources": {"own": "mine"}}))
    given = {"system": {"template": "reference", "devices": 8, "techlib": str(path)}, "workload": "llama3-8b", "strategy": "tp8"}
    notes = crossflow.predict(crossflow.from_dict(given)).notes
    sentence = (
        "system.techlib extends devices, and reference is made with standard: entries that the library leaves out are those of devices"
    )
    assert any(note.startswith(sentence) for note in notes) == told
