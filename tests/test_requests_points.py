"""Scenarios with requests as design points: figures of their replays are columns, objectives and constraints."""

import numpy as np
import pytest
import yaml

import crossflow
from crossflow.base.errors import CrossflowError

SCENARIO = {
    "system": {"template": "dgx-h100", "devices": 8, "operation": {"price": "2 USD/hour"}},
    "workload": {"model": "llama3-8b", "task": "serving"},
    "strategy": "tp2-dp4",
    "software": "vllm",
    "requests": {
        "arrivals": {"law": "poisson", "rate": "20 1/s"}, "count": 120, "prompt": {"law": "lognormal", "median": 800, "p95": 4000},
        "output": 40, "classes": [{"name": "paid", "targets": {"ttft": "200 ms"}}, {"name": "free", "targets": {"ttft": "2 s"}}],
    },
}  # fmt: skip
POINTS = {"strategy": ["tp2-dp4", "tp8", "tp1-dp8", "tp8"], "requests.rate_scale": [1.0, 1.0, 2.0, 4.0]}


@pytest.fixture(scope="module")
def scenario():
    return crossflow.from_dict(SCENARIO)


@pytest.fixture(scope="module")
def score(scenario):
    return crossflow.evaluate(scenario, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("i", range(4))
def test_a_batch_is_its_replays_one_by_one(score, i):
    settings = {path.replace(".", "__"): values[i] for path, values in POINTS.items()}
    alone = crossflow.serve(SCENARIO, **settings)
    columns = score.columns()
    assert columns["ttft_p99_s"][i] == alone.latency["ttft_s"]["p99"]
    assert columns["e2el_s"][i] == alone.latency["e2e_s"]["mean"]
    assert columns["attained"][i] == alone.attained
    assert columns["attained.paid"][i] == alone.classes[0]["attained"]
    assert columns["usd_per_million_tokens"][i] == pytest.approx(alone.cost["usd_per_million_output_tokens"], rel=1e-12)
    assert columns["energy_j"][i] / columns["step_time_s"][i] == pytest.approx(alone.energy / alone.span, rel=1e-12)


@pytest.mark.slow
def test_a_prediction_is_a_replay(scenario):
    found = crossflow.predict(scenario)
    data = found.to_dict()
    assert data["serving"]["attained"] == crossflow.serve(SCENARIO).attained
    assert any("a replay of 120 requests" in note for note in found.notes)
    assert data["mfu"] is None


@pytest.mark.slow
def test_a_prompt_that_no_cache_holds_is_infeasible(scenario):
    found = crossflow.evaluate(scenario, {"requests.prompt": [500, 9_000_000]})
    assert found.feasible.tolist() == [True, False]
    assert "none of 120 requests has room" in found.why(1)
    assert np.isinf(found.step_time[1])


@pytest.mark.slow
def test_the_cheapest_nodes_that_keep_to_targets_are_found(tmp_path):
    """Of all, each replayed by itself."""
    space = {"system.devices": [1, 2, 4, 8], "strategy": ["tp1-dp1", "tp1-dp2", "tp1-dp4", "tp1-dp8"]}
    study = {
        "name": "cheapest", "scenario": {**SCENARIO, "strategy": "tp1-dp8"}, "space": space, "objectives": ["usd_per_million_tokens"],
        "constraints": {"attained.paid": ">= 0.9"}, "searches": {"best": {"searcher": "exhaustive"}},
    }  # fmt: skip
    path = tmp_path / "cheapest.yaml"
    path.write_text(yaml.safe_dump(study))
    best = crossflow.run_study(path, out=tmp_path / "out").results[0].best.row
    each = {}
    for n in space["system.devices"]:
        alone = crossflow.serve({**SCENARIO, "strategy": f"tp1-dp{n}"}, system__devices=n)
        each[n] = alone.cost["usd_per_million_output_tokens"] if alone.classes[0]["attained"] >= 0.9 else np.inf
    assert best["system.devices"] == min(each, key=each.get)
    assert sum(map(np.isinf, each.values())) in (1, 2, 3)  # targets decide


def test_figures_of_replays_need_requests_and_targets(scenario, tmp_path):
    plain = {key: value for key, value in SCENARIO.items() if key != "requests"}
    steady = {**plain, "workload": {**plain["workload"], "prompt": 500, "output": 40, "global_batch": 8}}
    untargeted = {**SCENARIO, "requests": {**SCENARIO["requests"], "classes": [{"name": "all", "weight": 1}]}}
    for given, column, message in (
        (steady, "attained", "requests to replay"), (untargeted, "attained", "targets"), (SCENARIO, "prompt_time_s", "a steady state"),
    ):  # fmt: skip
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({"name": "s", "scenario": given, "sweep": {"strategy": ["tp2-dp4"]}, "columns": [column]}))
        with pytest.raises(CrossflowError, match=message):
            crossflow.run_study(path, out=tmp_path / "out")
    with pytest.raises(CrossflowError, match="crossflow serve"):
        crossflow.evaluate(scenario, least=True)
