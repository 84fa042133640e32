"""What limits an iteration of a job: phases, numbers, decisions, each against predictions of their own."""

import functools

import pytest
from test_post_training import DPO, GRPO, ROLLOUT

import crossflow
from crossflow.answers.evaluation.post_training import iteration_of
from crossflow.answers.explanation.answers import phases_of
from crossflow.answers.explanation.jobs import TRIED, _estimates
from crossflow.answers.explanation.parameters import parameters
from crossflow.answers.explanation.tornado import tornado
from crossflow.answers.explanation.trials import BASE, factor_moves
from crossflow.base.errors import CrossflowError
from crossflow.edges.cli import page
from crossflow.edges.cli.explain import sections

BESIDE = {**GRPO, "job": {**GRPO["job"], "rollout": {**ROLLOUT, "devices": 8, "staleness": 1}}}
JOBS = {"dpo": DPO, "grpo": GRPO, "beside": BESIDE}
QUICK = ("dpo", "beside")  # each number that is tried replays a rollout anew
EACH = [*QUICK, pytest.param("grpo", marks=pytest.mark.thorough)]


@functools.cache
def explained(name):
    return crossflow.explain(crossflow.from_dict(JOBS[name]))


def iteration(data, settings=None):
    return crossflow.predict(crossflow.from_dict(data), settings=settings or ()).job["iteration_time_s"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", EACH)
def test_phases_that_are_waited_for_add_up_to_the_iteration(name):
    found = explained(name)
    assert found.objective == "job.iteration_time_s"
    assert found.value == pytest.approx(iteration(JOBS[name]), rel=1e-12)
    assert sum(found.bound.values()) == pytest.approx(1.0, rel=1e-9)
    assert list(found.bound.values()) == sorted(found.bound.values(), reverse=True)


def test_of_two_pools_only_the_longer_one_is_waited_for():
    quick = crossflow.evaluate(crossflow.from_dict(BESIDE))
    assert set(phases_of(quick, 0)) == {"reference_pass", "old_policy_pass", "training", "moving", "transfer"}
    slow = crossflow.evaluate(crossflow.from_dict({**BESIDE, "job": {**BESIDE["job"], "overheads": {"step": "0.1 s"}}}))
    assert set(phases_of(slow, 0)) == {"rollout", "transfer"}


@pytest.mark.parametrize("name", EACH)
def test_gains_are_those_of_a_prediction_with_the_number_changed(name):
    found = explained(name)
    assert found.lever is not None
    assert found.lever.gain == max(effect.gain for effect in found.effects)
    (change,) = found.lever.changes
    after = iteration(JOBS[name], [change.to_dict()["set"]])
    assert 1 - after / found.value == pytest.approx(found.lever.gain, rel=1e-6)
    assert after == pytest.approx(found.lever.value, rel=1e-6)


@pytest.mark.parametrize("name", EACH)
def test_decisions_are_those_of_a_prediction_with_their_settings(name):
    told = [one for one in explained(name).decisions if one.kind in ("job", "strategy")]
    assert told or name == "dpo"
    for one in told[:3]:
        assert iteration(JOBS[name], list(one.overrides)) == pytest.approx(one.step_time, rel=1e-9)
        assert one.step_time < explained(name).step_time


@pytest.mark.thorough  # what it runs quicker tests run too
def test_no_number_that_is_not_tried_does_more_than_those_that_are():
    scenario, found = crossflow.from_dict(DPO), explained("dpo")
    tried = {effect.parameter.path: effect.gain for effect in found.effects}
    others = [n for n in parameters(scenario) if n.value and n.path not in tried and n.group(generated=False) != "constant"]
    moves = factor_moves(others, (1.1,))
    points = {n.path: [moves[key].get(n.path, n.value) for key in moves] for n in others}
    times = crossflow.evaluate(scenario, points)["job.iteration_time_s"]
    gains = sorted(tried.values(), reverse=True)[:TRIED]
    assert 1 - min(times) / found.value <= min(gains) + 1e-6


def test_what_numbers_do_to_the_phases_is_exact_where_nothing_is_written():
    scenario = crossflow.from_dict(DPO)
    number = next(n for n in parameters(scenario) if n.path == "system.throughput.bf16")
    moves = factor_moves([number], (1.1,))
    found = iteration_of(scenario, crossflow.evaluate(scenario))[0]
    estimates = _estimates(scenario, found, [number], moves)
    assert estimates[BASE] == pytest.approx(explained("dpo").value, rel=1e-12)
    times = crossflow.evaluate(scenario, {number.path: [move[number.path] for move in moves.values()]})["job.iteration_time_s"]
    assert [estimates[key] for key in moves] == pytest.approx(times.tolist(), rel=1e-9)


def test_a_tenth_of_the_price_is_a_tenth_of_the_money():
    priced = {**DPO, "system": {**DPO["system"], "operation": {"price": "2 USD/hour"}}}
    found = crossflow.explain(crossflow.from_dict(priced), "job.cost_usd")
    effect = found.effect("system.operation.price")
    assert effect.elasticity == pytest.approx(1.0, rel=1e-9)
    assert effect.gain == pytest.approx(1 - 1 / 1.1, rel=1e-9)


def test_it_is_told_as_other_explanations_are():
    for name in QUICK:
        told = explained(name).to_dict()
        assert told["objective"] == "job.iteration_time_s"
        assert len(told["elasticities"]) == len(explained(name).table()["path"])
        assert not tornado(explained(name)).rows
        page.emit(*sections(explained(name), 10))


def test_a_job_that_does_not_run_is_not_explained():
    full = {**DPO, "job": {"kind": "distill", "teacher": {"model": "llama3-70b"}}}
    with pytest.raises(CrossflowError, match="the job does not run, so that nothing can be explained: "):
        crossflow.explain(crossflow.from_dict(full))
