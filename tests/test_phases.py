"""Runs of several phases: what each takes and costs adds up, and each is a scenario of its own."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation.figures import usual_figure
from crossflow.answers.evaluation.lasting import drawn
from crossflow.answers.evaluation.phases import ADDED, drawn_phases, scenarios_of
from crossflow.answers.explanation.phased import _effects, explain_run
from crossflow.answers.explanation.sensitivity import other_strategies
from crossflow.answers.planning import planner
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.edges.explore.scenario import scenario_app

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


@pytest.mark.parametrize("asked", [other_strategies, planner.plan, scenario_app])
def test_what_takes_one_phase_says_so(asked):
    with pytest.raises(CrossflowError, match=r"its run has phases \(pretraining, long\), and .* takes one: give its length as run\.tokens"):
        asked(of({"phases": PHASES}))


def test_each_phase_has_its_best_plan_and_the_run_is_their_sum():
    scenario = of({"phases": PHASES})
    plans = crossflow.plan(scenario, top=3)
    first, second = (dict(scenarios_of(scenario))[name] for name in ("pretraining", "long"))
    best = [crossflow.plan(one, top=3).best.strategy for one in (first, second)]
    assert [one.strategy for one in plans.chosen.values()] == best
    alone = [crossflow.predict(one, settings=[f"strategy={text}"]).run["time_s"] for one, text in zip((first, second), best, strict=True)]
    assert plans.total["time_s"] == pytest.approx(sum(alone), rel=1e-12)
    assert list(plans.times.values()) == pytest.approx(alone, rel=1e-12)
    assert plans.own == pytest.approx({name: value for name, value in crossflow.predict(scenario).run.items() if "phase." not in name})
    assert plans.total["time_s"] < plans.own["time_s"]
    assert plans.table()["strategy"] == best


def test_a_run_of_which_no_phase_can_be_made_has_an_unknown_time():
    """Choices among strategies order their points by it, also where none of them has one."""
    fixed = {"name": "fixed", "steps": 10, "settings": {"strategy": "tp8-dp2"}}  # of 16 devices
    scenario = {**BASE, "run": {"failures": "llama3-h100", "phases": [PHASES[0], fixed]}}
    wider = crossflow.load(scenario, nodes=4, strategy="tp2-dp16-z1")
    found = crossflow.evaluate(wider, {"strategy": ["tp2-dp16-z1", "tp4-dp8-z1"]})
    assert not found.feasible.any()
    assert np.isnan(usual_figure(wider, found)).all()
    with pytest.raises(CrossflowError, match=r"run\.phases: fixed: strategy tp8-dp2 needs 16 devices"):
        crossflow.predict(scenario, strategy="auto", nodes=4)


def test_a_phase_that_no_strategy_fits_leaves_the_run_without_a_total(tmp_path, capsys):
    large = {"name": "large", "steps": 10, "settings": {"workload.model": "llama3.1-405b", "workload.global_batch": 16}}
    data = {**BASE, "run": {"phases": [PHASES[0], large]}}
    plans = crossflow.plan(crossflow.from_dict(data))
    assert plans.chosen["large"] is None
    assert plans.chosen["pretraining"] is not None
    assert plans.total == {}
    assert plans.notes == ("no strategy of the phase large fits, so that the run has no total",)
    (file := tmp_path / "life.json").write_text(json.dumps(data))
    assert main(["plan", str(file)]) == 0
    assert "none fits: " in capsys.readouterr().out


def test_a_phase_of_post_training_is_planned_with_its_engines():
    rollout = {"prompts": 16, "answers": 4, "prompt": 128, "answer": 200, "strategy": "tp2"}
    settings = {"job": {"kind": "grpo", "rollout": rollout}, "workload.sequence": 512, "workload.global_batch": 64}
    scenario = of({"phases": [{"name": "grpo", "steps": 7, "settings": settings}]})
    plans = crossflow.plan(scenario)
    part = plans.chosen["grpo"].part
    assert plans.total["time_s"] == pytest.approx(7 * part.iteration, rel=1e-9)


def test_what_a_parameter_brings_to_the_run_is_what_the_run_gains_with_it():
    scenario = of({"failures": "llama3-h100", "phases": PHASES})
    found = crossflow.explain(scenario)
    whole = crossflow.predict(scenario).run["time_s"]
    assert found.value == pytest.approx(whole, rel=1e-12)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    for path, unit in (("system.network.inter.bandwidth", "B/s"), ("system.levels.memory.bandwidth", "B/s")):
        effect = found.effect(path)
        now = found.phases["long"].effect(path).parameter.value
        better = crossflow.predict(scenario, settings=[f"{path}={1.1 * now!r} {unit}"]).run["time_s"]
        assert effect.gain == pytest.approx(1.0 - better / whole, rel=1e-6)
        assert effect.gain == pytest.approx(sum(effect.phases.values()), rel=1e-12)
        assert effect.elasticity < 0.0
    gains = [effect.gain for effect in found.effects]
    assert [round(gain, 9) for gain in gains] == sorted((round(gain, 9) for gain in gains), reverse=True)
    rates = [one.reliability["all.rate"] * found.shares[name] for name, one in found.phases.items()]
    assert found.reliability["all.rate"] == pytest.approx(sum(rates))
    assert found.reliability["all.rate"] > 0.0


def test_one_phase_is_explained_as_the_run_by_itself():
    phased = crossflow.explain(of({"phases": [{"name": "all", "tokens": 3.0e10}]}))
    alone = crossflow.explain(of({"tokens": 3.0e10}), "run.time_s")
    assert phased.value == alone.value
    gaining = {one.parameter.path: one.gain for one in alone.effects if one.gain}
    assert {one.path: one.gain for one in phased.effects if one.gain} == pytest.approx(gaining)
    assert phased.to_dict()["phases"][0]["elasticities"] == alone.to_dict()["elasticities"]


def test_what_is_better_for_one_phase_and_worse_for_another_counts_against_it():
    def explained(elasticity, gain):
        effect = SimpleNamespace(parameter=SimpleNamespace(path="x"), elasticity=elasticity, gain=gain, group="device")
        return SimpleNamespace(effects=(effect,))

    (effect,) = _effects({"a": explained(-0.5, 0.05), "b": explained(0.3, 0.02)}, {"a": 0.75, "b": 0.25})
    assert effect.phases == {"a": 0.75 * 0.05, "b": -0.25 * 0.02}
    assert effect.gain == pytest.approx(0.0325)
    assert effect.elasticity == pytest.approx(-0.3)


def test_money_of_a_run_with_a_job_is_explained_and_its_time_is_that_of_its_iterations():
    settings = {"job": {"kind": "dpo"}, "workload.sequence": 2048}
    scenario = of({"phases": [PHASES[0], {"name": "dpo", "steps": 100, "settings": settings}]})
    run = crossflow.predict(scenario).run
    time, money = explain_run(scenario, tried=False), explain_run(scenario, "run.cost_usd", tried=False)
    assert (time.value, money.value) == pytest.approx((run["time_s"], run["cost_usd"]))
    assert money.effect("system.operation.price").gain == pytest.approx(1 - 1 / 1.1, rel=1e-9)


def test_a_run_of_phases_is_explained_by_its_totals():
    with pytest.raises(CrossflowError, match=r"a run of phases is explained by a total, not by step_time_s: give one of run\.time_s"):
        crossflow.explain(of({"phases": PHASES}), "step_time_s")
    with pytest.raises(CrossflowError, match=r"run\.phases: pretraining: .*failures"):
        crossflow.explain(of({"phases": PHASES}), "run.interruptions")


def test_commands_show_the_whole_run(tmp_path, capsys):
    (file := tmp_path / "life.json").write_text(json.dumps({**BASE, "run": {"failures": "llama3-h100", "phases": PHASES}}))
    assert main(["plan", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["phase"] for one in told["phases"]] == ["pretraining", "long"]
    assert told["total"]["time_s"] == pytest.approx(sum(one["time_s"] for one in told["phases"]))
    assert main(["explain", str(file), "--top", "4"]) == 0
    page = capsys.readouterr().out
    assert "What brings most to the run" in page
    assert "A tenth less of what interrupts the run" in page
    assert main(["plan", str(file), "--export", "megatron"]) == 2
    assert "each phase of the run has its own" in capsys.readouterr().err
    assert main(["explain", str(file), "--plot", str(tmp_path / "a.png")]) == 2
    assert "--plot draws the ranges of one phase" in capsys.readouterr().err


FAILING = [PHASES[0], {"name": "quiet", "steps": 500, "settings": {**LONG, "run.failures": None}}, {"name": "last", "tokens": 5e10}]


def test_a_drawn_run_is_its_phases_one_after_the_other():
    scenario = of({"failures": "llama3-h100", "phases": FAILING})
    found = drawn_phases(scenario, 3)
    first, quiet, last = found.phases.values()
    alone = of({"failures": "llama3-h100", "tokens": 1e11})
    assert first.spans == drawn(alone, crossflow.evaluate(alone), 3, spans=True)[0].spans
    assert quiet.duration == crossflow.predict(scenario).run["phase.quiet_s"]
    assert quiet.goodput == 1.0
    assert found.duration == pytest.approx(first.duration + quiet.duration + last.duration)
    assert sum(found.times.values()) == pytest.approx(found.duration)
    assert [one.begin for one in found.spans[1:]] == pytest.approx([one.end for one in found.spans[:-1]])
    assert found.spans[-1].end == pytest.approx(found.duration)
    alone = of({"failures": "llama3-h100", "tokens": 5e10})
    assert last.duration == drawn(alone, crossflow.evaluate(alone), 3, first=2)[0].duration
    assert {name: first.interruptions[name] + last.interruptions[name] for name in first.interruptions} == dict(found.interruptions)


def test_the_picture_trace_and_text_of_a_run_name_its_phases(tmp_path, capsys):
    (file := tmp_path / "life.json").write_text(json.dumps({**BASE, "run": {"failures": "llama3-h100", "phases": FAILING}}))
    trace, picture = tmp_path / "run.json", tmp_path / "run.svg"
    assert main(["timeline", str(file), "--run", "--text", "-o", str(trace), "-o", str(picture)]) == 0
    told = capsys.readouterr().out
    assert [line.split(":")[0] for line in told.splitlines() if "interruptions" in line] == ["pretraining", "quiet", "last"]
    slices = [one for one in json.loads(trace.read_text())["traceEvents"] if one.get("cat") == "phase"]
    assert [one["name"] for one in slices] == ["pretraining", "quiet", "last"]
    assert main(["timeline", str(file), "--run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["ts"] for one in slices] == pytest.approx([1e6 * one["begin_s"] for one in data["phases"]])
    assert data["phases"][-1]["end_s"] == pytest.approx(data["time_s"])
    assert picture.is_file()


def test_a_run_that_no_phase_interrupts_or_that_does_not_run_is_not_drawn():
    with pytest.raises(CrossflowError, match=r"life: nothing interrupts any phase of its run; give run\.failures"):
        drawn_phases(of({"phases": PHASES}), 0)
    large = {"name": "large", "steps": 10, "settings": {"workload.model": "llama3-70b", "workload.global_batch": 64, "strategy": "tp2-dp8"}}
    with pytest.raises(CrossflowError, match="life: phase large: needs "):
        drawn_phases(of({"failures": "llama3-h100", "phases": [PHASES[0], large]}), 0)


def test_a_job_that_does_not_run_has_no_run_either():
    job = {"kind": "grpo", "rollout": {"prompts": 32, "answers": 8, "prompt": 512, "answer": 1000, "strategy": "tp2"}}
    workload = {"model": "llama3-8b", "sequence": 800, "global_batch": 64}
    score = crossflow.evaluate(crossflow.from_dict({**BASE, "workload": workload, "job": job, "run": {"steps": 10}}), {"run.steps": [10]})
    assert not score.feasible[0]
    assert np.isnan(score.run["time_s"][0])
