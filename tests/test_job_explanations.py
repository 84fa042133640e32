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
from crossflow.base.units import show
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


@pytest.mark.cases(2)
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
    assert estimates[BASE].value == pytest.approx(explained("dpo").value, rel=1e-12)
    times = crossflow.evaluate(scenario, {number.path: [move[number.path] for move in moves.values()]})["job.iteration_time_s"]
    assert [estimates[key].value for key in moves] == pytest.approx(times.tolist(), rel=1e-9)


def test_estimates_begin_at_the_iteration_as_it_is():
    scenario = crossflow.from_dict(BESIDE)
    number = next(n for n in parameters(scenario) if n.path == "system.throughput.bf16")
    found = iteration_of(scenario, crossflow.evaluate(scenario))[0]
    moves = factor_moves([number], (1.1,))
    estimates = _estimates(scenario, found, [number], moves)
    assert estimates[BASE].value == pytest.approx(explained("beside").value, rel=1e-12)
    assert all(estimates[key].value != estimates[BASE].value for key in moves)


@pytest.mark.parametrize("name", EACH)
def test_pairs_are_those_of_a_prediction_with_both_numbers_changed(name):
    first = explained(name).pairs[0]
    assert len(first.changes) == 2
    after = iteration(JOBS[name], [change.to_dict()["set"] for change in first.changes])
    assert after == pytest.approx(first.value, rel=1e-6)
    assert first.gain > max(one.gain for one in explained(name).what_ifs if one.factor == first.factor)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", QUICK)
def test_spans_are_those_of_predictions_at_both_ends(name):
    """To the bytes that pass between trainers and engines, whose time is left as it is."""
    found = explained(name)
    widest = sorted(found.swings, key=lambda one: -abs(one.at_high - one.at_low))[:2]
    for one in widest:
        ends = [iteration(JOBS[name], [f"{one.path}={show(value, one.unit, 15)}"]) for value in (one.low, one.high)]
        assert [one.at_low, one.at_high] == pytest.approx(ends, rel=1e-5)


def test_a_number_leads_until_its_next_percent_brings_half():
    found = explained("beside")
    (end,) = (one for one in found.next_bottlenecks if one.path == "system.network.host.bandwidth")
    (value,) = (n.value for n in parameters(crossflow.from_dict(BESIDE)) if n.path == end.path)

    def slope(factor):
        one, more = (iteration(BESIDE, [f"{end.path}={show(value * by, 'B/s', 15)}"]) for by in (factor, factor * 1.01))
        return 1 - more / one

    if end.because == "another resource":
        assert explained("beside").bound
        assert end.bound_by != next(iter(found.bound))
    else:
        assert slope(end.factor) < 0.55 * slope(1.0)
        assert slope(end.factor / 1.1) > 0.45 * slope(1.0)


def test_spans_of_rates_fall_where_times_rise():
    scenario = crossflow.from_dict(DPO)
    rates = {one.path: one for one in crossflow.explain(scenario, "job.samples_per_second").swings}
    value = crossflow.predict(scenario).job["samples_per_second"]
    assert rates
    for one in explained("dpo").swings:
        assert rates[one.path].at_high / value == pytest.approx(explained("dpo").value / one.at_high, rel=1e-9)
    assert not crossflow.explain(scenario, "job.energy_j").swings


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
        assert tornado(explained(name)).rows[0].path in {one.path for one in explained(name).swings}
        page.emit(*sections(explained(name), 10))


def test_a_job_that_does_not_run_is_not_explained():
    full = {**DPO, "job": {"kind": "distill", "teacher": {"model": "llama3-70b"}}}
    with pytest.raises(CrossflowError, match="the job does not run, so that nothing can be explained: "):
        crossflow.explain(crossflow.from_dict(full))
