"""Services in closed form as requests arrive faster: figures rise without a jump, and are those of a replay."""

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.engine.runs.rounds import busy_rounds, come_after, erlang, layers_of_chain, none_comes, until_next
from crossflow.workload.requests.record import RequestTrace

DEVICES = {"tp1": 1, "tp1-dp2": 2, "tp2-pp2": 4, "tp2-pp4": 8, "tp1-dp8": 8, "tp1-dp8-ep8": 8, "tp4": 4}


def service(strategy, prompt, output, rate, model="llama3-8b", software="vllm", **serving):
    workload = {
        "model": model, "task": "serving", "prompt": prompt, "output": output,
        "serving": {"arrival_rate": f"{rate} 1/s", **serving},
    }  # fmt: skip
    system = {"template": "dgx-h100", "devices": DEVICES[strategy]}
    return crossflow.from_dict({"name": "s", "system": system, "workload": workload, "strategy": strategy, "software": software})


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("strategy", "prompt", "output", "most"),
    [("tp2-pp4", 8000, 200, 20.0), ("tp1", 30000, 20, 0.8), ("tp1-dp2", 1000, 200, 40.0), ("tp1-dp8", 1000, 200, 150.0)],
)
def test_times_rise_with_the_rate_and_do_not_jump(strategy, prompt, output, most):
    """Times per token were 13 ms at 5.4 and 99 ms at 5.5 requests a second on four stages."""
    rates = most * np.array([1e-4, 1e-2, 0.1, 0.15, 0.2, 0.2001, 0.25, 0.2501, 0.3, 0.3001, 0.4, 0.5, 0.5001, 0.6, 0.7])
    found = evaluate(service(strategy, prompt, output, 1.0), {"workload.serving.arrival_rate": [f"{rate} 1/s" for rate in rates]})
    for name in ("tpot_s", "ttft_s"):
        rises = np.diff(found.serving[name]) / found.serving[name][1:]
        assert rises.min() > -2e-3, name
        assert rises[np.diff(rates) < 1e-3 * rates[1:]].max() < 5e-3, name
    assert found.serving["request_throughput_per_s"] == pytest.approx(rates, rel=2e-3)


@pytest.mark.cases(3)
@pytest.mark.parametrize(("strategy", "prompt"), [("tp1", 1000), ("tp1", 200), ("tp2-pp2", 200), ("tp1-dp2", 1000)])
def test_a_service_that_is_hardly_asked_answers_as_one_request_alone(strategy, prompt):
    """Prompts that come in a step were counted as if a thousandth of a request were written at any time: first tokens up to 23 % later."""
    found = evaluate(service(strategy, prompt, 20, 1.0), {"workload.serving.arrival_rate": ["1e-7 1/s", "1e-5 1/s", "1e-3 1/s"]}).serving
    for name in ("ttft_s", "tpot_s", "e2el_s"):
        assert found[name] == pytest.approx(np.full(3, found[name][0]), rel=2e-3), name
    alone = replayed(service(strategy, prompt, 20, 1e-3), 1e-3, 40)
    assert found["ttft_s"][0] == pytest.approx(alone["ttft"], rel=0.02)
    assert found["requests_decoding"] == pytest.approx(found["tpot_s"] * 19 * [1e-7, 1e-5, 1e-3], rel=1e-2)


def replayed(made, rate, count=500):
    """Mean times of requests that come at random with this mean rate, without the first and the last."""
    workload = made.workload
    arrival = np.cumsum(np.random.default_rng(1).exponential(1.0, count))
    trace = RequestTrace.of(arrival * count / (arrival[-1] * rate), np.full(count, workload.prompt), np.full(count, workload.output))
    found = crossflow.serve(made, trace).found
    inside = (found.index >= 0.15 * count) & (found.index < 0.9 * count)
    return {name: found.times[name][inside].mean() for name in ("tpot", "ttft")}


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("strategy", "prompt", "output", "rate", "tpot", "ttft"),
    [
        ("tp2-pp4", 8000, 200, 6.0, 0.06, 0.06),
        ("tp2-pp4", 8000, 200, 8.0, 0.10, 0.06),
        ("tp1", 30000, 20, 0.001, 0.04, 0.01),  # alone: its own context, and no prompt of others
        ("tp1", 30000, 20, 0.3, 0.10, 0.06),  # prompts that come while its own is read are read while it writes
        ("tp1-dp2", 1000, 200, 24.0, 0.04, 0.06),  # replicas to which requests are dealt in turn
        ("tp1", 200, 20, 60.0, 0.06, 0.08),  # prompts that are read together
        ("tp2-pp2", 8000, 20, 5.0, 0.12, 0.08),
        ("tp2-pp2", 2000, 200, 20.0, 0.05, 0.04),  # rounds that are long because others read too bring more prompts
        ("tp1", 1000, 3, 15.0, 0.08, 0.10),  # what comes while a prompt is read waits for the step after the next
    ],
)
def test_closed_form_and_replay_agree(strategy, prompt, output, rate, tpot, ttft):
    made = service(strategy, prompt, output, rate)
    closed, found = crossflow.predict(made).serving, replayed(made, rate)
    assert closed["tpot_s"] == pytest.approx(found["tpot"], rel=tpot)
    assert closed["ttft_s"] == pytest.approx(found["ttft"], rel=ttft)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("strategy", "prompt", "output", "rate", "count", "model"),
    [
        ("tp1", 1000, 200, 8.0, 400, "llama3-8b"),
        ("tp1", 1000, 200, 16.0, 500, "llama3-8b"),
        ("tp1", 8000, 200, 1.5, 400, "llama3-8b"),  # in one piece: what others write takes no room of a step that reads
        ("tp4", 2000, 300, 3.0, 400, "llama3-70b"),  # prompts of a step made its time and its time their number, without an end
    ],
)
def test_steps_that_read_and_write_nothing_come_beside_those_that_write(strategy, prompt, output, rate, count, model):
    """SGLang reads prompts in steps of their own: its closed form had those of vLLM, and was 7 to 17 % too fast a token."""
    made = service(strategy, prompt, output, rate, model, "sglang")
    closed, found = crossflow.predict(made).serving, replayed(made, rate, count)
    assert closed["tpot_s"] == pytest.approx(found["tpot"], rel=0.03)
    assert closed["ttft_s"] == pytest.approx(found["ttft"], rel=0.06)


def test_replicas_that_share_out_experts_wait_for_prompts_of_one_another():
    """Each step is as long as that of the replica that reads; the closed form was 1.8 times too fast at this rate."""
    made = service("tp1-dp8-ep8", 2000, 200, 5.0, model="mixtral-8x7b")
    closed, found = crossflow.predict(made).serving, replayed(made, 5.0, 300)
    assert closed["tpot_s"] == pytest.approx(found["tpot"], rel=0.1)
    alone = crossflow.predict(made.replace({"strategy": "tp8"})).serving
    assert alone["tpot_s"] < closed["tpot_s"]


def test_more_than_the_service_can_answer_is_said():
    found = crossflow.predict(service("tp2-pp4", 8000, 200, 40.0))
    assert not found.feasible
    assert "requests arrive faster than the service can answer them" in found.reason


def test_erlangs_formulas_have_their_limits():
    """One server waits as often as it is busy; of very many nobody waits, and all are idle as often as a Poisson number is none."""
    one = np.ones(1)
    for load in (0.1, 0.5, 0.9):
        idle, waits = erlang(one, load * one)
        assert (idle[0], waits[0]) == (pytest.approx(1 - load), pytest.approx(load))
        idle, waits = erlang(np.inf * one, load * one)
        assert (idle[0], waits[0]) == (pytest.approx(np.exp(-load)), pytest.approx(0.0, abs=1e-12))


@pytest.mark.parametrize(("arriving", "steps", "together", "dealt"), [(0.4, 1, 1, 1), (0.2, 3, 1, 1), (0.5, 2, 99, 1), (0.3, 1, 99, 3)])
def test_busy_periods_are_those_of_rounds_one_by_one(arriving, steps, together, dealt):
    """Rounds drawn one after the other, of one prompt at a time, or of all that have come."""
    rng, lengths = np.random.default_rng(4), []
    for _ in range(20_000):
        time, left, next_one, rounds = 0.0, [steps], rng.gamma(dealt, 1 / (dealt * arriving)), 0
        while left:
            time, rounds = time + 1.0, rounds + 1
            left = [each - (i < together) for i, each in enumerate(left)]
            left = [each for each in left if each]
            while next_one <= time:
                left.append(steps)
                next_one += rng.gamma(dealt, 1 / (dealt * arriving))
        lengths.append(rounds)
    found = busy_rounds(*(np.array([float(one)]) for one in (arriving, steps, together, dealt)))
    assert found[0] == pytest.approx(np.mean(lengths), rel=0.03)


@pytest.mark.parametrize(("writing", "reading", "stages", "room"), [(0.1, 1.2, 2, 2), (0.05, 0.9, 2, 3), (0.3, 2.0, 4, 2)])
def test_rounds_whose_length_follows_from_what_they_read_are_those_of_a_chain(writing, reading, stages, room):
    """Rounds drawn one after the other: each reads all that has come, as far as it has room, and takes the longer for it."""
    rng, waits, layers = np.random.default_rng(6), 0, []
    for _ in range(60_000):
        read = min(waits, stages * room)
        layers.append(-(-read // stages))
        waits += rng.poisson(writing + layers[-1] * (reading - writing)) - read
    found = layers_of_chain(*(np.array([float(one)]) for one in (writing, reading, stages, room)))
    assert found[0] == pytest.approx(np.mean(layers), rel=0.04)


def test_requests_that_are_dealt_in_turn_come_as_every_third():
    rng, three = np.random.default_rng(5), np.full(1, 3.0)
    gaps = rng.gamma(3.0, 1 / 3.0, 200_000)
    assert none_comes(0.7 * np.ones(1), three)[0] == pytest.approx((gaps > 0.7).mean(), rel=0.01)
    assert until_next(0.7 * np.ones(1), three)[0] == pytest.approx((gaps[gaps > 0.7] - 0.7).mean(), rel=0.01)
    after = np.cumsum(rng.gamma(3.0, 1 / 3.0, (50_000, 8)), axis=1)
    assert come_after(0.7 * np.ones(1), three)[0] == pytest.approx((after < 0.7).sum(axis=1).mean(), rel=0.02)
