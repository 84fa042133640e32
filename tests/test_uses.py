"""What waits for a resource, and what hides it: sentences whose numbers are those of two predictions."""

from types import SimpleNamespace

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.explanation.alternatives import _in_order
from crossflow.answers.explanation.answers import Alternative
from crossflow.answers.uses import Use, lost, uses

LLM = {"system": {"template": "dgx-h100", "nodes": 2}, "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp8-dp2"}
TREE = {"topology": "fat-tree", "group": 1, "oversubscription": 1.05}
INTER, INTRA, MEMORY = "system.network.inter.bandwidth", "system.network.intra.bandwidth", "system.levels.memory.bandwidth"


def asked(data, *paths):
    scenario = crossflow.load(data)
    return scenario, uses(scenario, crossflow.evaluate(scenario), paths)


def test_what_a_resource_takes_is_the_difference_of_two_predictions():
    scenario, found = asked(LLM, INTER, INTRA, MEMORY)
    base = crossflow.predict(scenario)
    for path, use in found.items():
        half = float(np.ravel(crossflow.load(scenario).system.network.inter.bandwidth)[0]) if path == INTER else None
        if half is not None:
            worse = crossflow.predict(scenario, {INTER: f"{half / 2} B/s"})
            assert use.share == pytest.approx(worse.step_time / base.step_time - 1)
            assert sum(use.messages.values()) == pytest.approx(worse.communication.total - base.communication.total)
        assert use.share > 0


def test_a_step_that_takes_no_time_loses_no_share_of_it():
    assert Use(messages={}, elsewhere={}, lost=0.0, step=0.0).share == 0.0
    assert Use(messages={}, elsewhere={}, lost=1.5, step=6.0).share == 0.25


def test_messages_that_stay_in_a_node_are_told_to_take_other_links():
    _, found = asked({**LLM, "system": {"template": "dgx-h100", "nodes": 1}, "strategy": "tp8"}, INTER)
    use = found[INTER]
    assert not use.messages
    assert use.share == 0.0
    assert use.text.startswith("no message passes there; ")
    assert use.text.endswith(" takes other links")


def test_capacity_decides_what_fits():
    _, found = asked(LLM, "system.levels.memory.capacity", "system.levels.l9.bandwidth")
    assert list(found) == ["system.levels.memory.capacity"]
    assert found["system.levels.memory.capacity"].text.startswith("it decides what fits (")


def test_a_tree_that_costs_little_says_what_hides_it():
    data = {**LLM, "system": {"template": "dgx-h100", "nodes": 4, "network": {"inter": TREE}}, "strategy": "tp8-dp4-z1"}
    prediction = crossflow.predict(data)
    (note,) = [note for note in prediction.notes if note.startswith("system.network.inter.oversubscription")]
    plain = crossflow.predict(data, {"system.network.inter.oversubscription": "1"})
    share = prediction.step_time / plain.step_time - 1
    assert note.startswith(f"system.network.inter.oversubscription changes the step by {100 * share:+.2g} %: ")
    assert " of messages wait for it (" in note
    assert "all gather" in note


def test_settings_of_links_and_levels_without_effect_are_told_why():
    one = {**LLM, "system": {"template": "dgx-h100", "nodes": 1}, "strategy": "tp8"}
    notes = crossflow.predict(one, {INTER: "10 GB/s", "system.levels.l2.bandwidth": "90 TB/s"}).notes
    assert any(note.startswith(f"{INTER} changes no time: no message passes there; ") for note in notes)
    assert "system.levels.l2.bandwidth changes no time: nothing in this step waits for it" in notes


def test_a_slower_score_is_longer_than_a_faster_one():
    scenario = crossflow.load(LLM)
    slow = crossflow.evaluate(scenario, {INTER: [5e9, 50e9]})
    use = lost(crossflow.evaluate(scenario), slow, INTER, 0)
    assert use.lost > 0
    assert sum(use.messages.values()) >= use.lost
    assert lost(crossflow.evaluate(scenario), slow, INTER, 1).lost == 0.0


def test_one_level_alone_can_vary_in_a_service_of_experts():
    moe = {"system": "dgx-h100", "workload": {"model": "mixtral-8x7b", "task": "decode", "prompt": 512, "output": 64, "global_batch": 64},
           "strategy": "tp8", "software": "vllm"}  # fmt: skip
    level = "system.levels.l2.bandwidth"
    score = crossflow.sweep(moe, {level: ["3 TB/s", "6 TB/s"]})
    assert score.step_time[0] == pytest.approx(crossflow.predict(moe, {level: "3 TB/s"}).step_time)


def test_decisions_that_searches_cannot_tell_apart_stand_in_the_order_of_what_is_known_without_them():
    def one(path, gain, kept, spread):
        answer = {"value": 1.0, "gain": gain, "bound_by": "compute", "feasible": True, "reason": None, "step_time": 1.0, "throughput": 1.0}
        return Alternative(path=path, before="a", after="b", kept=kept, marginal=gain, spread=spread, settings={}, **answer)

    rows = [one("far", 0.10, 0.0, 0.001), one("N3", 0.301, 0.24, 0.01), one("N2", 0.300, 0.29, 0.01)]
    assert [found.path for found in _in_order(rows)] == ["N2", "N3", "far"]


def test_shells_complete_the_paths_of_settings(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert " system.network.inter.oversubscription=" in script
    assert "compopt -o nospace" in script
    assert "system.execution" not in script


def score_of(step, **communication):
    """As much of a score as what is lost is told by."""
    held = {name: np.ones(1) for name in ("memory_capacity", "memory_needed", "host_capacity", "energy")}
    return SimpleNamespace(step_time=np.array([step]), communication={k: np.array([v]) for k, v in communication.items()}, **held)


def test_messages_that_take_less_time_wait_for_nothing():
    """Half the memory of a service: fewer requests decode at once, and both messages and steps are shorter."""
    found = lost(
        score_of(1.0, all_reduce=0.4, all_gather=0.1), score_of(0.7, all_reduce=0.2, all_gather=0.1), "system.levels.memory.capacity"
    )
    assert found.messages == {}
    assert found.elsewhere == {"all_gather": 0.1}
    assert found.text == "the step is 30 % shorter with less of it, in which fewer requests or tokens take part"


def test_messages_of_a_worse_link_are_those_that_it_makes_longer():
    found = lost(
        score_of(1.0, all_reduce=0.4, all_gather=0.2), score_of(1.3, all_reduce=0.8, all_gather=0.1), "system.network.intra.bandwidth"
    )
    assert found.messages == pytest.approx({"all_reduce": 0.4})
    assert found.text.startswith("400 ms of messages wait for it (all reduce 400 ms)")
