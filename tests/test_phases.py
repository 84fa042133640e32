"""Runs of several phases: what each takes and costs adds up, and each is a scenario of its own."""

import json

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation.phases import ADDED
from crossflow.base.errors import CrossflowError, SpecError

BASE = {
    "name": "life", "system": {"template": "dgx-h100", "nodes": 2, "operation": {"price": "2 USD/hour"}},
    "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp2-dp8-z1",
}  # fmt: skip
LONG = {"workload.sequence": 32768, "workload.global_batch": 16, "strategy": "tp4-cp2-dp2-z1"}
PHASES = [{"name": "pretraining", "tokens": 1.0e11}, {"name": "long", "steps": 500, "settings": LONG}]


def of(run, **changes):
    return crossflow.from_dict({**BASE, **changes, "run": run})


def alone(run, settings=None):
    return crossflow.predict(of(run), settings=settings or {}).run


def test_phases_add_up_to_those_that_are_predicted_by_themselves():
    found = crossflow.predict(of({"phases": PHASES}))
    first, second = alone({"tokens": 1.0e11}), alone({"steps": 500}, LONG)
    for name in ADDED:
        if name in first:
            assert found.run[name] == pytest.approx(first[name] + second[name], rel=1e-12)
    assert found.run["phase.pretraining_s"] == first["time_s"]
    assert found.run["phase.long_s"] == second["time_s"]
    assert [one["name"] for one in found.phases] == ["pretraining", "long"]
    assert [one["strategy"] for one in found.phases] == ["tp2-dp8-z1", "tp4-cp2-dp2-z1"]
    assert {one["trust"] for one in found.phases} <= {"measured", "interpolated", "extrapolated", "unknown"}
    assert "each phase has its own step" in " ".join(found.notes)


def test_one_phase_without_settings_is_the_run():
    whole, phased = alone({"tokens": 3.0e10}), alone({"phases": [{"name": "all", "tokens": 3.0e10}]})
    assert phased == {**{name: value for name, value in whole.items() if name in ADDED}, "phase.all_s": whole["time_s"]}


def test_the_order_of_phases_does_not_matter_and_twice_as_long_takes_twice_as_long():
    one, turned = alone({"phases": PHASES}), alone({"phases": PHASES[::-1]})
    assert one == pytest.approx(turned, rel=1e-12)
    double = alone({"phases": [{**PHASES[0], "tokens": 2.0e11}, {**PHASES[1], "steps": 1000}]})
    assert double["time_s"] == pytest.approx(2.0 * one["time_s"], rel=1e-9)


def test_each_phase_is_interrupted_by_itself_and_goodput_is_that_of_all():
    found = crossflow.predict(of({"failures": "llama3-h100", "phases": PHASES}))
    first, second = (
        alone({"failures": "llama3-h100", **length}, settings) for length, settings in (({"tokens": 1e11}, None), ({"steps": 500}, LONG))
    )
    assert found.run["interruptions"] == pytest.approx(first["interruptions"] + second["interruptions"])
    undisturbed = first["undisturbed_time_s"] + second["undisturbed_time_s"]
    assert found.run["goodput"] == pytest.approx(undisturbed / (first["time_s"] + second["time_s"]))
    freed = crossflow.predict(
        of({"failures": "llama3-h100", "phases": [PHASES[0], {**PHASES[1], "settings": {**LONG, "run.failures": None}}]})
    )
    assert freed.run["time_s"] == pytest.approx(first["time_s"] + second["undisturbed_time_s"])
    assert "goodput" not in freed.run


def test_points_of_a_sweep_are_their_own_predictions_and_are_ranked_by_the_whole_run():
    scenario = of({"phases": PHASES})
    score = crossflow.evaluate(scenario, {"system.network.inter.bandwidth": ["50 GB/s", "25 GB/s"], "strategy": ["tp2-dp8-z1", "tp2-dp3"]})
    assert score.feasible.tolist() == [True, False]
    assert score.ranked == "run.time_s"
    assert score.run["time_s"][0] == pytest.approx(crossflow.predict(scenario).run["time_s"])
    slower = crossflow.evaluate(scenario, {"system.network.inter.bandwidth": ["25 GB/s"]})
    assert slower.run["time_s"][0] > score.run["time_s"][0]
    assert (
        slower.run["phase.long_s"][0]
        == crossflow.predict(scenario, settings=["system.network.inter.bandwidth=25 GB/s"]).run["phase.long_s"]
    )
    columns = score.columns()
    assert {"run.time_s", "run.phase.long_s", "run.cost_usd"} <= columns.keys()


def test_a_phase_that_does_not_fit_makes_the_run_infeasible_and_is_named():
    large = {"name": "large", "steps": 10, "settings": {"workload.model": "llama3-70b", "workload.global_batch": 64, "strategy": "tp2-dp8"}}
    found = crossflow.predict(of({"phases": [PHASES[0], large]}))
    assert not found.feasible
    assert found.reason.startswith("phase large: needs ")


def test_post_training_is_a_phase():
    job = {"kind": "dpo"}
    settings = {"job": job, "workload.sequence": 2048}
    found = crossflow.predict(of({"phases": [PHASES[0], {"name": "dpo", "steps": 100, "settings": settings}]}))
    iteration = crossflow.predict(crossflow.from_dict({**BASE, "workload": {**BASE["workload"], "sequence": 2048}, "job": job}))
    assert found.run["phase.dpo_s"] == pytest.approx(100 * iteration.job["iteration_time_s"])
    assert found.phases[1]["step_time_s"] == pytest.approx(iteration.job["iteration_time_s"])


def test_the_page_and_its_json_show_each_phase(tmp_path, capsys):
    file = tmp_path / "life.json"
    file.write_text(json.dumps({**BASE, "run": {"phases": PHASES}}))
    assert main(["predict", str(file)]) == 0
    told = capsys.readouterr().out
    assert "Phases" in told
    assert any(line.split()[:1] == ["long"] and "tp4-cp2-dp2-z1" in line for line in told.splitlines())
    assert main(["predict", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["run"]
    assert found["days"] == pytest.approx(sum(one["time_s"] for one in found["phases"]) / 86400)


@pytest.mark.parametrize(
    ("run", "place", "sentence"),
    [
        ({"tokens": 1e9, "phases": PHASES}, "run", "give one of samples, tokens, steps and phases"),
        ({"phases": []}, "run", "give one of samples, tokens, steps and phases"),
        ({"phases": [{"name": "a"}]}, "run.phases[0]", "give one of samples, tokens and steps"),
        ({"phases": [{"name": "a", "steps": 1, "tokens": 1}]}, "run.phases[0]", "give one of samples, tokens and steps"),
        (
            {"phases": [{"name": "long-context", "steps": 1}]}, "run.phases[0].name",
            "expected a letter, then letters, digits and _, such as long_context, got 'long-context'",
        ),
        ({"phases": [PHASES[0], PHASES[0]]}, "run.phases", "two phases have the name pretraining"),
        (
            {"phases": [{"name": "a", "steps": 1, "settings": {"run.steps": 2}}]}, "run.phases[0].settings",
            "run.steps is of the whole run; how long the phase is stands beside its name",
        ),
    ],
)  # fmt: skip
def test_wrong_phases_are_told_at_their_place(run, place, sentence):
    with pytest.raises(SpecError) as caught:
        of(run)
    (problem,) = caught.value.problems
    assert (problem.path, problem.message) == (place, sentence)


def test_settings_of_a_phase_that_make_no_scenario_name_it():
    with pytest.raises(CrossflowError, match=r"run\.phases: long: .*workload\.seqence"):
        crossflow.predict(of({"phases": [PHASES[0], {"name": "long", "steps": 5, "settings": {"workload.seqence": 4096}}]}))


@pytest.mark.parametrize("asked", [crossflow.explain, crossflow.plan])
def test_what_takes_one_phase_says_so(asked):
    with pytest.raises(
        CrossflowError, match=r"its run has phases \(pretraining, long\), which predict and study add up; (explain|plan) takes one"
    ):
        asked(of({"phases": PHASES}))


def test_a_job_that_does_not_run_has_no_run_either():
    job = {"kind": "grpo", "rollout": {"prompts": 32, "answers": 8, "prompt": 512, "answer": 1000, "strategy": "tp2"}}
    workload = {"model": "llama3-8b", "sequence": 800, "global_batch": 64}
    score = crossflow.evaluate(crossflow.from_dict({**BASE, "workload": workload, "job": job, "run": {"steps": 10}}), {"run.steps": [10]})
    assert not score.feasible[0]
    assert np.isnan(score.run["time_s"][0])
