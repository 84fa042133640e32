"""Software and the makers of devices: what runs where nothing is named, what is noted, and what is refused."""

import pytest

import crossflow
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.evidence.validation.serving import system_of

TRAINING = {"workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "dp64-z3"}


def trained(system, **given):
    return crossflow.predict(crossflow.from_dict({"system": {"template": system, "devices": 64}, **TRAINING, **given}))


def test_training_on_tpus_runs_on_software_that_they_have():
    tpu, own = trained("tpu-v4-pod"), trained("tpu-v4-pod", software="maxtext")
    assert tpu.step_time == own.step_time
    assert any("maxtext is assumed on devices of Google" in note for note in tpu.notes)
    assert not any("maxtext" in note for note in own.notes)
    assert not any("is assumed on devices" in note for note in trained("dgx-h100").notes)


@pytest.mark.parametrize(("system", "software"), [("tpu-v4-pod", "megatron-core"), ("dgx-h100", "t5x"), ("mi300x-node", "nemo")])
def test_software_that_does_not_run_on_the_devices_is_noted(system, software):
    assert any(note.startswith(f"software: {software} runs on devices of ") for note in trained(system, software=software).notes)


def test_software_of_recommendation_models_is_named_for_them():
    asked = {"system": {"template": "mi300x-node", "devices": 8}, "workload": {"model": "dlrm-a-transformer"}, "strategy": "auto"}
    notes = crossflow.predict(crossflow.from_dict({**asked, "software": "nemo"})).notes
    assert any(note.endswith("give software=torchrec for one that runs there") for note in notes)
    own, usual = (crossflow.evaluate(crossflow.from_dict({**asked, **given})) for given in ({"software": "torchrec"}, {}))
    assert own.step_time[0] == usual.step_time[0]


def test_plans_and_comparisons_say_where_their_software_does_not_run():
    asked = {"model": "llama3-8b", "task": "decode", "batch": 16, "settings": ["software=tensorrt-llm"]}
    told = "software: tensorrt-llm runs on devices of NVIDIA only, not on mi325x-node of AMD; this is what it would do there; "
    cure = f"{told}give software=vllm for one that runs there"
    assert cure in crossflow.plan(on="mi325x-node", **asked).notes
    assert cure in crossflow.compare(on=["dgx-h100", "mi325x-node"], devices=8, **asked).notes
    assert not any(note.startswith("software: ") for note in crossflow.plan(on="dgx-h200", **asked).notes)
    other = crossflow.plan(on="mi325x-node", **{**asked, "settings": ["software=vllm"]})
    assert not any(note.startswith("software: ") for note in other.notes)


def test_another_system_of_the_same_scenario_has_its_own_software():
    scenario = crossflow.from_dict({"system": {"template": "dgx-h100", "devices": 64}, **TRAINING})
    score = crossflow.evaluate(scenario, {"system.template": ["dgx-h100", "tpu-v4-pod"]})
    assert score.step_time[1] == trained("tpu-v4-pod").step_time


@pytest.mark.parametrize("software", ["vllm", "sglang", "tensorrt-llm", {"like": "vllm"}])
def test_serving_engines_do_not_train(software):
    with pytest.raises(
        SpecError,
        match=r"software: .* serves models, and workload\.task is training; give task: decode or serving, or software that trains",
    ):
        trained("dgx-h100", software=software)


@pytest.mark.parametrize(
    ("model", "on", "told"),
    [
        ("dgx-h100", "llama3-70b", "dgx-h100 is a system and llama3-70b a model: give model='llama3-70b' on='dgx-h100'"),
        ("llama3-8b", "dgx-h100,dgx-b200", "on='dgx-h100,dgx-b200': this takes one system; crossflow compare sets several side by side"),
    ],
)
def test_models_and_systems_in_each_others_place_are_told(model, on, told, exactly):
    with pytest.raises(CrossflowError, match=exactly(told)):
        crossflow.predict(model, on=on)


@pytest.mark.parametrize(("system", "software", "maker"), [("gaudi3-node", "optimum-habana", "Intel"), ("trn2-node", "neuron", "AWS")])
def test_training_on_chips_with_compilers_of_their_own_runs_on_software_that_they_have(system, software, maker):
    usual, own = trained(system), trained(system, software=software)
    assert usual.step_time == own.step_time
    assert any(f"{software} is assumed on devices of {maker}" in note for note in usual.notes)


def test_services_on_aws_run_on_software_that_its_compiler_made():
    served = {"model": "llama3-8b", "task": "decode", "prompt": 512, "output": 64, "global_batch": 16}
    asked = {"system": {"template": "trn2-node"}, "workload": served, "strategy": "tp16"}
    assert any("neuron is assumed on devices of AWS" in note for note in crossflow.predict(crossflow.from_dict(asked)).notes)


def test_a_changed_limit_of_power_that_slows_nothing_is_told():
    """Of NVIDIA's families it is known how a limit slows them."""

    def noted(system):
        given = {"system": system, "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": "dp8-z3"}
        found = crossflow.predict(crossflow.from_dict(given))
        return found.step_time, [note for note in found.notes if "system.power.tdp" in note]

    plain, told = noted("gaudi3-node"), noted({"template": "gaudi3-node", "power": {"tdp": "500 W"}})
    assert plain == (told[0], [])
    assert told[1] == [
        "system.power.tdp changes the energy of a step, not its time: how a limit of power slows devices of the family gaudi-3 is not known"
    ]
    slowed = noted({"template": "dgx-h100", "power": {"tdp": "500 W"}})
    assert slowed[1] == []
    assert slowed[0] > noted("dgx-h100")[0]


def given(template, **software):
    workload = {"model": "llama3-8b", "global_batch": 64}
    return {"system": {"template": template, "nodes": 1}, "workload": workload, "strategy": "dp8", **software}


def test_no_run_of_software_of_another_maker_was_measured():
    here, there = (crossflow.predict(crossflow.from_dict(given("dgx-h100", software=name))) for name in ("nemo", "neuron"))
    assert (here.trust.level, there.trust.level) == ("interpolated", "extrapolated")
    assert there.trust.reason.startswith("neuron does not run on devices of this maker, so no such run can have been measured")


def test_generations_of_devices_that_share_out_sums_are_those_that_there_are():
    def read(*named, **system):
        data = given("mi300x-node", software={"like": "vllm", "peer_all_reduce": {"direct": list(named)}})
        return crossflow.from_dict({**data, "system": {**data["system"], **system}, "workload": {**data["workload"], "task": "prefill"}})

    assert read("cdna3").stack.peer_all_reduce.direct == ("cdna3",)
    told = r"(?<!software\.)software\.peer_all_reduce\.direct: expected generations of devices \(.*cdna2, cdna3.*\), got 'cdna33'"
    with pytest.raises(crossflow.CrossflowError, match=rf"{told}; did you mean 'cdna3'"):
        read("cdna33")
    assert read("mine", generation="mine").stack.peer_all_reduce.direct == ("mine",)  # of a device of one's own


def test_tables_find_the_only_node_of_a_device():
    assert [system_of(device) for device in ("trainium", "trainium2", "mi300x", "h100-sxm")] == [
        "trn1-node",
        "trn2-node",
        "mi300x-node",
        "dgx-h100",
    ]
    assert system_of("tpu-v5p") == "tpu-v5p"  # a pod is no node


def test_scans_on_amds_gpus_reach_no_more_than_those_that_were_measured_elsewhere():
    """Of one share, the sustained rate of products decides: an MI300X, which draws more power for them, is behind an H100."""

    def read(system, model, **execution):
        given = {"template": system, "execution": execution} if execution else system
        workload = {"model": model, "task": "prefill", "global_batch": 8, "prompt": 8192}
        asked = {"system": given, "workload": workload, "strategy": "dp8-ep8", "software": "vllm"}
        return crossflow.predict(crossflow.from_dict(asked)).step_time

    amd = read("mi300x-node", "nemotron3-nano-30b-a3b")
    assert amd > read("dgx-h100", "nemotron3-nano-30b-a3b")
    assert amd > 1.05 * read("mi300x-node", "nemotron3-nano-30b-a3b", scan_utilisation=0.3)
