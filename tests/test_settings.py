"""Paths of scenarios by their last part, and names that are nearly right."""

import re

import pytest

import crossflow
from crossflow.answers.settings import paths, pointed
from crossflow.answers.study.reading import read_study
from crossflow.base.errors import LISTED, CrossflowError, Problem, SpecError, among, meant

SCENARIO = {"system": "pathfinder", "workload": "lstm-16k", "strategy": "d8"}


def told(data):
    with pytest.raises(SpecError) as caught:
        crossflow.from_dict(data)
    return [str(problem).partition(": ")[2] for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("key", "path"),
    [("devices", "system.devices"), ("logic", "system.technology.logic"), ("tp", "strategy.tp"), ("global_batch", "workload.global_batch")],
)
def test_a_key_that_stands_elsewhere_is_told_with_its_path(key, path):
    assert told({**SCENARIO, key: 1}) == [f"{key}: unknown key '{key}'; did you mean '{path}'?"]


def test_a_key_that_is_nowhere_is_told_with_those_that_are():
    (said,) = told({**SCENARIO, "quokka": 1})
    assert said.startswith("quokka: unknown key 'quokka'; known keys: job, kernels_per_device, ")


def test_settings_of_a_studys_scenario_are_told_with_their_place():
    study = {"name": "s", "scenario": SCENARIO, "sweep": {"system.technology.logic": ["N7"]}}
    for setting, path in (("techlib.logic.N7.power=1", "scenario.techlib.logic.N7.power"), ("devices=8", "scenario.system.devices")):
        with pytest.raises(SpecError, match=rf"did you mean '{path}'\?$"):
            read_study(study, [setting])


def test_paths_are_those_that_scenarios_take():
    """Each of them is known: setting it to nonsense is refused for its value, not for its key."""
    for path in ("system.technology.logic", "system.budgets.power", "workload.hidden"):
        assert path in paths()
        head, *rest = path.split(".")
        data = {"system": {"template": "pathfinder"}, "workload": {"model": "lstm-16k"}, "strategy": "d8"}
        inner = data[head]
        for part in rest[:-1]:
            inner = inner.setdefault(part, {})
        inner[rest[-1]] = ["nonsense"]
        assert not any("unknown key" in line for line in told(data))


def test_other_problems_are_left_as_they_are():
    problem = Problem(file="f", path="strategy", message="unknown key 'denze'; did you mean 'dense'?")
    assert pointed(problem) is problem


def test_a_name_stands_for_the_same_in_other_letters_then_a_close_one_then_those_that_hold_it():
    assert meant("HBM3E", ["hbm3e", "HBM3"]) == ["hbm3e"]
    assert meant("HBM5", ["HBM4", "N5"]) == ["HBM4"]
    assert meant("H100", ["v100", "dgx-h100", "h100-sxm"]) == ["h100-sxm", "dgx-h100"]
    assert meant("quokka", ["a", "b"]) == []


def test_long_lists_are_cut_and_say_where_the_rest_is():
    names = [f"n{i}" for i in range(LISTED + 1)]
    assert among(names, "`crossflow list`") == f"n0, n1, n2, n3, n4 and {LISTED - 4} more (`crossflow list`)"
    assert among(names[:-1]) == ", ".join(names[:-1])


def test_names_of_files_are_read_in_any_case():
    small, large = (crossflow.from_dict({**SCENARIO, "system": name}) for name in ("pathfinder", "Pathfinder"))
    assert crossflow.predict(small).step_time == crossflow.predict(large).step_time


def test_a_section_that_stands_too_deep_is_pointed_to_the_top():
    wrong = Problem(file="s.yaml", path="workload.serving.prefill.system", message="unknown key 'system'; known keys: strategy, workers")
    assert pointed(wrong).message == "unknown key 'system'; 'system' stands at the top of a scenario"


@pytest.mark.parametrize(
    ("path", "cure"),
    [
        ("workload.requests", "'requests' stands at the top of a scenario"),
        ("workload.strategy", "'strategy' stands at the top of a scenario"),  # and not below some part of a service
        ("workload.tp", "did you mean 'strategy.tp'?"),
        ("workload.arrivals", "did you mean 'requests.arrivals'?"),
        ("workload.serving.tp", "did you mean 'workload.serving.images.tp'?"),  # the place of which is as deep
    ],
)
def test_a_key_in_another_section_is_pointed_to_the_place_as_near_the_top(path, cure):
    """Keys of a section's parts came first, however deep, and `requests` in a workload was answered by 70 keys."""
    key = path.rpartition(".")[2]
    assert (
        pointed(Problem(file="s.yaml", path=path, message=f"unknown key '{key}'; known keys: a, b")).message
        == f"unknown key '{key}'; {cure}"
    )


# What people write for a setting, and what each was meant to be on a published device and on a generated one.
GUESSES = {
    "system.memory.bandwidth": ("system.levels.memory.bandwidth", "system.technology.memory"),
    "device.hbm": ("system.technology.memory", "system.technology.memory"),
    "hbm.capacity": ("system.levels.memory.capacity", "system.technology.memory"),
    "nvlink.bandwidth": ("system.network.intra.bandwidth", "system.network.intra.bandwidth"),
    "network.bandwidth": ("system.network.inter.bandwidth", "system.network.inter.bandwidth"),
    "system.gpus": ("system.devices", "system.devices"),
    "cluster.nodes": ("system.nodes", "system.nodes"),
    "model.num_layers": ("workload.layers", "workload.layers"),
    "batch_size": ("workload.global_batch", "workload.global_batch"),
    "seq_len": ("workload.sequence", "workload.sequence"),
    "precision": ("workload.dtype", "workload.dtype"),
    "system.tdp": ("system.power.tdp", "system.budgets.power"),
    "cost.price": ("system.operation.price", "system.operation.price"),
    "system.compute.flops": ("system.throughput.bf16", "system.technology.compute"),
    "framework": ("software", "software"),
}


def refusal(path, on):
    """What is said of a setting that is no value of anything, `?` where it was taken."""
    try:
        crossflow.predict(model="llama3-8b", on=on, devices=8, batch=32, strategy="tp8", settings=[f"{path}=[?]"])
    except CrossflowError as error:
        return str(error)
    return "?"


@pytest.mark.cases(6)
@pytest.mark.parametrize("on", ["dgx-h100", "chip-h100"])
@pytest.mark.parametrize("guess", GUESSES)
def test_a_guess_of_a_path_is_answered_by_paths_that_are_taken(guess, on):
    said = refusal(guess, on)
    told = re.findall("'([^']+)'", said.partition("did you mean")[2])
    assert GUESSES[guess][on == "chip-h100"] in told, said
    assert len(told) <= 4
    assert not [path for path in told if "unknown key" in refusal(path, on)]


def test_a_degree_by_itself_is_answered_by_a_whole_strategy_where_it_is_found():
    with pytest.raises(CrossflowError, match=r"give a whole one, such as strategy=tp8$"):
        crossflow.predict(model="llama3-8b", on="dgx-h100", devices=8, batch=32, settings=["tp=8"])


@pytest.mark.parametrize("section", ["workload", "system"])
def test_a_section_that_is_a_number_is_refused(section):
    with pytest.raises(CrossflowError, match=f"{section}: expected a mapping with a "):
        crossflow.predict(model="llama3-8b", on="dgx-h100", settings=[f"{section}=8"])


@pytest.mark.parametrize("settings", [["system=dgx-h200", "system.devices=16"], ["system.nodes=2", "system=dgx-h200"]])
def test_a_section_by_name_and_a_key_of_it_are_set_together_in_any_order(settings):
    """The second was refused for having nothing to be set under, or dropped by the first."""
    data = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": "tp8-dp2"}
    system = crossflow.load(data, settings).system
    assert (system.name, system.device_count) == ("dgx-h200", 16)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("area.total", "900 mm2", "system.budgets.area.total: unknown key 'total'; known keys: compute, "),
        ("power_shares.on_chip.l1", 2, "system.budgets.power_shares.on_chip.l1: expected at most 1, got 2"),
    ],
)
def test_a_wrong_share_is_told_once_and_not_again_for_every_row_of_the_divisions(key, value, message):
    data = {"system": "reference-training", "workload": "llama3-8b", "strategy": "tp8"}
    with pytest.raises(SpecError) as caught:
        crossflow.load(data, {f"system.budgets.{key}": value})
    (problem,) = caught.value.problems
    assert message in str(problem)


TRAINED = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "auto"}


@pytest.mark.parametrize(
    ("settings", "system", "devices"),
    [
        (["system.devices=8", "system={template: dgx-h200, devices: 16}"], "dgx-h200", 16),  # which says all of it, and comes later
        (["system={template: dgx-h200, devices: 16}", "system=dgx-b200", "system.nodes=1"], "dgx-b200", 8),
        (["system.template=dgx-h200", "system=dgx-b200", "system.nodes=2"], "dgx-b200", 16),
        (["system=dgx-b200", "system.template=dgx-h200", "system.nodes=2"], "dgx-h200", 16),
    ],
)
def test_a_later_setting_wins_over_an_earlier_one(settings, system, devices):
    made = crossflow.load(TRAINED, settings)
    assert (made.system.name, made.devices) == (system, devices)


def test_a_setting_is_told_as_it_was_written():
    with pytest.raises(CrossflowError) as caught:
        crossflow.load(TRAINED, ["system=nonsense", "system.devices=16"])
    assert str(caught.value).startswith("system=nonsense: system.template: unknown template 'nonsense'")
