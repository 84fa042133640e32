"""The best plans of a job: in order, as predicted, and never worse than the scenario's own."""

import functools

import numpy as np
import pytest
from test_post_training import DPO, GRPO, ROLLOUT

import crossflow
from crossflow.answers.planning.jobs import _divisions, _engines, _front
from crossflow.answers.planning.planner import legal_of, survey
from crossflow.base.errors import StrategyError
from crossflow.edges.cli import page
from crossflow.edges.cli.plan import sections

WIDE = {**DPO["system"], "devices": 16}
APART = {**GRPO, "system": WIDE, "strategy": "tp2-dp8-z1", "job": {**GRPO["job"], "rollout": {**ROLLOUT, "devices": 16, "staleness": 1}}}
JOBS = {"dpo": DPO, "grpo": GRPO, "apart": APART}
QUICK = ("dpo", "grpo")
EACH = [*QUICK, pytest.param("apart", marks=pytest.mark.thorough)]


@functools.cache
def planned(name):
    return crossflow.plan(crossflow.from_dict(JOBS[name]))


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", EACH)
def test_plans_are_in_order_and_as_predicted(name):
    found = planned(name)
    values = [one.value for one in found]
    assert values == sorted(values)
    assert found.objective == "job.iteration_time_s"
    best = found.chosen
    told = crossflow.predict(crossflow.from_dict(JOBS[name]), settings=list(best.part.settings)).job
    assert told["iteration_time_s"] == pytest.approx(best.value, rel=1e-9)
    assert told["devices"] == sum(best.part.devices)
    assert told["memory_bytes"] == pytest.approx((1 - best.left) * best.capacity, rel=1e-9)
    assert best.predict().job["iteration_time_s"] == pytest.approx(best.value, rel=1e-9)


@pytest.mark.parametrize("name", EACH)
def test_no_plan_is_worse_than_the_own_one_and_all_use_as_many_devices(name):
    found = planned(name)
    assert found.own.value == pytest.approx(crossflow.predict(crossflow.from_dict(JOBS[name])).job["iteration_time_s"], rel=1e-12)
    assert found.chosen.value <= found.own.value * (1 + 1e-12)
    whole = {sum(one.part.devices) for one in found}
    assert len(whole) == 1


def test_divisions_share_all_devices_in_whole_nodes():
    scenario = crossflow.from_dict({**APART, "system": {**WIDE, "devices": 32}, "strategy": "tp2-dp16-z1"})
    found = _divisions(scenario)
    assert [sum(one.values()) for one in found] == [48] * len(found)
    assert found[0] == {"system.devices": 32, "job.rollout.devices": 16}
    assert {one["system.devices"] for one in found} == {8, 16, 24, 32, 40}
    assert _divisions(crossflow.from_dict(GRPO)) == [{}]


def test_engines_fill_the_devices():
    found = list(_engines(crossflow.from_dict(GRPO)))
    assert found[0] == "tp2"
    assert set(found) >= {"tp1", "tp4", "tp8"}
    for one in found:
        assert crossflow.predict(crossflow.from_dict({**GRPO, "job": {**GRPO["job"], "rollout": {**ROLLOUT, "strategy": one}}})).job


def test_the_front_begins_with_the_fastest_and_needs_ever_less_memory():
    step = crossflow.from_dict({key: value for key, value in DPO.items() if key != "job"})
    found = survey(step, legal_of(step), "step_time_s")
    front = _front(found, 6)
    places = [found.strategies.index(one) for one in front]
    assert places[0] == found.order[0]
    memory, times = found.score.memory_needed[places], found.cost[places]
    drops = int(np.argmax(np.append(np.diff(memory) >= 0, True))) + 1  # as long as it is a front
    assert (np.diff(times[:drops]) >= 0).all()
    assert drops > 1


def test_a_strategy_is_chosen_for_the_iteration_with_the_engines_as_they_are():
    auto = crossflow.load({**GRPO, "strategy": "auto"})
    assert auto.post_training.rollout.strategy == "tp2"
    told = crossflow.predict(auto).job["iteration_time_s"]
    assert told <= crossflow.predict(crossflow.from_dict(GRPO)).job["iteration_time_s"]
    same = [one for one in planned("grpo") if one.part.engines == "tp2"]
    assert all(told <= one.value * (1 + 1e-12) for one in same)


@pytest.mark.thorough
def test_a_study_chooses_the_strategy_of_each_point_with_the_engines_as_they_are():
    score = crossflow.sweep({**DPO, "strategy": "auto"}, {"workload.sequence": [256, 512]})
    best = crossflow.plan(crossflow.from_dict(DPO))[0]
    assert score["job.iteration_time_s"][1] == pytest.approx(best.value, rel=1e-9)
    grpo = crossflow.sweep({**GRPO, "strategy": "auto"}, {"job.rollout.seed": [0]})
    assert grpo["job.iteration_time_s"][0] == pytest.approx(
        crossflow.predict({**GRPO, "strategy": "auto"}).job["iteration_time_s"], rel=1e-9
    )


def test_they_are_told_as_other_plans_are():
    for name in QUICK:
        found = planned(name)
        page.emit(*sections(found))
        told = found.to_dict()["plans"][0]["job"]
        assert told["iteration_time_s"] == found[0].value
        assert (told["engines"] is None) == (name == "dpo")
        assert found.table()["job.engine_devices"][0] == found[0].part.devices[1]
        assert "engines" in repr(found) or name == "dpo"


@pytest.mark.thorough  # what it runs quicker tests run too
def test_other_objectives_order_plans_too():
    priced = {**DPO, "system": {**DPO["system"], "operation": {"price": "2 USD/hour"}}}
    found = crossflow.plan(crossflow.from_dict(priced), objective="job.cost_usd")
    assert [one.value for one in found] == sorted(one.value for one in found)
    assert found[0].money["cost_usd"] == found[0].value


def test_what_cannot_run_says_why():
    full = {**DPO, "system": {**DPO["system"], "devices": 1}, "strategy": "dp1", "workload": {**DPO["workload"], "model": "llama3-70b"}}
    with pytest.raises(StrategyError, match="job: no plan can be made"):
        crossflow.plan(crossflow.from_dict(full))
