"""Figures of replayed requests as columns, objectives and constraints: each point is what `crossflow serve` says of it."""

import itertools

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError, SpecError

SCENARIO = {
    "system": {"template": "dgx-h100", "devices": 8, "operation": {"price": "2 USD/hour"}},
    "workload": {"model": "llama3-8b", "task": "serving", "serving": {"router": "least_loaded"}},
    "strategy": "tp2-dp4",
    "software": "vllm",
    "requests": {
        "arrivals": {"law": "poisson", "rate": "30 1/s"},
        "count": 120,
        "prompt": {"law": "lognormal", "median": 600, "p95": 3000},
        "output": {"law": "lognormal", "median": 60, "p95": 200},
        "classes": [{"name": "paid", "targets": {"ttft": "60 ms"}}, {"name": "free"}],
        "seed": 1,
    },
}
POINTS = {
    "strategy": ["tp2-dp4", "tp8", "tp2-dp4", "tp2-dp4", "tp4-dp2"],
    "requests.rate_scale": [1, 1, 4, 1, 2],
    "workload.serving.router": ["least_loaded", "least_loaded", "round_robin", "least_loaded", "prefix"],
    "software.engine.requests": [128, 128, 4, 128, 128],
    "system.operation.price": ["2 USD/hour", "2 USD/hour", "2 USD/hour", "3 USD/hour", "2 USD/hour"],
    "system.template": ["dgx-h100", "dgx-h100", "dgx-h100", "dgx-b200", "dgx-h100"],
}


def scenario(**changes):
    return crossflow.from_dict(SCENARIO | changes)


def at(i):
    return crossflow.serve(SCENARIO, settings={path: values[i] for path, values in POINTS.items()})


@pytest.mark.thorough
def test_every_point_is_what_serve_says_of_it():
    score = crossflow.evaluate(scenario(), POINTS)
    assert len({*score["ttft_p99_s"].tolist()}) == len(score)  # all settings matter
    for i in range(len(score)):
        found, point = at(i), score[i]
        for name, held in {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}.items():
            assert point[f"{name}_s"][0] == found.latency[held]["mean"]
            assert point[f"{name}_p99_s"][0] == found.latency[held]["p99"]
        assert point["attained"][0] == found.attained
        assert point["attained.paid"][0] == found.classes[[one["name"] for one in found.classes].index("paid")]["attained"]
        assert point["preemptions"][0] == found.preemptions
        assert point["queue_mean"][0] == found.queue["mean"]
        assert point["request_throughput_per_s"][0] == found.requests_per_second
        assert point["power_w"][0] == found.power
        assert point["usd_per_million_tokens"][0] == pytest.approx(found.cost["usd_per_million_output_tokens"], rel=1e-12)
        assert point["usd_per_million_samples"][0] == pytest.approx(1e6 * found.cost["usd_per_request"], rel=1e-12)


@pytest.mark.thorough
def test_a_point_by_itself_is_that_of_a_batch():
    score = crossflow.evaluate(scenario(), POINTS)
    for i in range(len(score)):
        alone = crossflow.evaluate(scenario(), {path: [values[i]] for path, values in POINTS.items()})
        for name in ("step_time_s", "attained", "energy_j", "memory_bytes.kv_cache", "e2el_p90_s"):
            assert alone[name][0] == score[name][i]


@pytest.mark.thorough  # what it runs quicker tests run too
def test_energy_and_rates_are_those_of_the_mean_step():
    score = crossflow.evaluate(scenario())
    assert score.energy[0] == pytest.approx(score.power[0] * score.step_time[0])
    found = crossflow.serve(scenario())
    steps, busy = (sum(values) for values in zip(*((did.steps.sum(), did.busy) for _, did in found.run.engines), strict=True))
    assert score.step_time[0] == pytest.approx(busy / steps)


def test_what_a_replay_does_not_know_has_no_value():
    score = crossflow.evaluate(scenario())
    assert np.isnan(score.mfu[0])
    assert not [name for name in score.columns() if name.startswith(("breakdown_s", "communication_s", "hidden_"))]


def test_the_cache_in_memory_is_what_requests_had_at_most():
    score = crossflow.evaluate(scenario(), {"requests.rate_scale": [0.1, 20]})
    few, many = score["memory_bytes.kv_cache"]
    assert 0 < few < many
    tokens = crossflow.serve(scenario(), requests__rate_scale=20).cache
    held = 2 * 32 * 8 * 128 * 2 / 2  # bytes of a token of Llama 3 8B on one of two devices
    assert many == pytest.approx(tokens["peak_use"] * tokens["tokens"] * held, rel=0.02)


@pytest.mark.thorough
def test_a_device_that_cannot_be_built_serves_nothing():
    made = SCENARIO | {"system": {"template": "reference", "devices": 8}}
    settings = {"system.budgets.power": "20 W"}
    score = crossflow.evaluate(crossflow.from_dict(made), {path: [value] for path, value in settings.items()})
    found = crossflow.serve(made, settings=settings)
    assert not found.feasible
    assert score.why(0) == found.reason
    assert "its power budget does not exceed the power that it draws at rest" in found.reason


def test_a_replay_without_room_is_told_in_json_too():
    found = crossflow.predict(scenario(workload={"model": "llama3.1-405b", "task": "serving"}, strategy="tp1-dp8"))
    assert found.to_dict()["feasible"] is False
    assert "no room for the cache" in found.reason


def test_a_service_that_holds_no_request_keeps_its_columns():
    score = crossflow.evaluate(scenario(), {"workload.model": ["llama3.1-405b"], "strategy": ["tp1-dp8"]})
    assert "no room for the cache" in score.why(0)
    assert {"attained", "attained.paid", "ttft_p99_s"} <= set(score.columns())
    assert np.isnan(score["attained"][0])


@pytest.mark.thorough
def test_a_search_finds_the_cheapest_that_keeps_its_targets():
    space = {"strategy": ["tp1-dp8", "tp4-dp2", "tp8"], "requests.rate_scale": [1, 4]}
    pairs = list(itertools.product(*space.values()))
    points = {path: [pair[i] for pair in pairs] for i, path in enumerate(space)}
    score = crossflow.evaluate(scenario(), points)
    kept = np.flatnonzero((score["attained"] >= 0.9) & (score["tpot_p99_s"] <= 0.02))
    assert 0 < len(kept) < len(score)
    best = kept[score["usd_per_million_tokens"][kept].argmin()]
    found = crossflow.optimise(
        scenario(), space, {"usd_per_million_tokens": "minimise"}, constraints={"attained": ">= 90 %", "tpot_p99_s": "<= 20 ms"},
        searcher="exhaustive",
    )  # fmt: skip
    assert found.best["usd_per_million_tokens"] == score["usd_per_million_tokens"][best]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("requests", "column", "message"),
    [
        (None, "attained", "attained needs requests to replay"),
        ({}, "requests_decoding", "requests_decoding needs a steady state; leave out requests"),
        ({}, "mfu", "mfu needs a steady state; leave out requests"),
        ({}, "breakdown_s.compute", "breakdown_s.compute needs a steady state"),
        ({"classes": []}, "attained", "attained needs targets: requests.targets"),
        ({}, "attained.free", "attained.free needs targets"),
    ],
)
def test_columns_that_a_scenario_lacks_say_what_they_need(requests, column, message):
    data = {**SCENARIO, "requests": {**SCENARIO["requests"], **(requests or {})}}
    if requests is None:
        del data["requests"]
        data["workload"] = {**data["workload"], "prompt": 600, "output": 60, "global_batch": 8}
    with pytest.raises((CrossflowError, SpecError), match=message):
        crossflow.optimise(crossflow.from_dict(data), {"strategy": ["tp8", "tp2-dp4"]}, {column: "minimise"})


def test_a_prediction_says_that_it_is_a_replay(tmp_path, capsys):
    found = crossflow.predict(scenario())
    assert "a replay of 120 requests" in repr(found)
    assert any("a replay of 120 requests" in note for note in found.notes)
    assert found.attained == crossflow.serve(scenario()).attained
    with pytest.raises(CrossflowError, match=r"crossflow\.serve draws"):
        found.plot()
    path = tmp_path / "one.json"
    path.write_text(crossflow.base.files.json_text(SCENARIO))
    main(["predict", str(path)])
    page = capsys.readouterr().out
    assert "a replay of 120 requests" in page
    assert "whole request" in page


@pytest.mark.cases(1)
@pytest.mark.parametrize(("length", "rate"), [({"samples": 1e6}, "samples_per_second"), ({"tokens": 1e6}, "tokens_per_second")])
@pytest.mark.parametrize("replayed", [True, False])
def test_a_whole_run_of_a_service_follows_from_its_rates(length, rate, replayed):
    data = {**SCENARIO, "run": length}
    if not replayed:
        del data["requests"]
        data["workload"] = {**data["workload"], "prompt": 600, "output": 60, "serving": {"arrival_rate": "5 1/s"}}
    found = crossflow.predict(data)
    assert found.run["time_s"] == pytest.approx(1e6 / found[rate], rel=1e-6)


@pytest.mark.thorough
def test_a_sweep_chooses_each_strategy_by_the_steady_state_and_replays_it(tmp_path):
    data = {**SCENARIO, "strategy": "auto"}
    study = {"scenario": data, "sweep": {"requests.rate_scale": [1, 2]}, "columns": ["attained", "strategy"]}
    path = tmp_path / "auto.json"
    path.write_text(crossflow.base.files.json_text(study))
    found = crossflow.run_study(path, out=tmp_path / "out").rows
    for row in found:
        settings = {"strategy": row["strategy"], "requests.rate_scale": int(row["requests.rate_scale"])}
        assert row["attained"] == pytest.approx(crossflow.serve(SCENARIO, settings=settings).attained)  # a table has 15 digits


def test_what_holds_no_request_has_the_memory_of_a_steady_state():
    served, lengths = {"model": "llama3-70b", "task": "serving"}, {"prompt": 100_000, "output": 60}
    shared = {"system": {"template": "dgx-h100", "devices": 2}, "strategy": "tp2"}
    asked = {"arrivals": {"law": "poisson", "rate": "1 1/s"}, "count": 4, **lengths}
    replayed = crossflow.predict({**shared, "workload": served, "requests": asked})
    steady = crossflow.predict({**shared, "workload": {**served, **lengths, "serving": {"arrival_rate": "1 1/s"}}})
    assert not replayed.feasible
    assert not steady.feasible
    assert replayed.memory == steady.memory
