"""`strategy: auto` at every point of a study or a sweep, and settings that change together by name."""

import csv
import json

import pytest

import crossflow
from crossflow.answers.study.reading import read_study
from crossflow.answers.study.run import run_study
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.edges.explore.study_source import design, find_source

SCENARIO = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "auto"}
CHIPS = {
    "H100": {"system.template": "dgx-h100", "system.operation.price": "2 USD/hour"},
    "B200": {"system.template": "dgx-b200", "system.operation.price": "4 USD/hour"},
}


def study(**sections):
    return {"name": "s", "scenario": SCENARIO, "plots": [], **sections}


@pytest.mark.thorough
def test_every_point_of_a_study_has_the_plan_of_its_own_scenario(tmp_path):
    result = run_study(study(sweep={"system.nodes": [1, 2], "workload.sequence": [2048, 8192]}), out=tmp_path / "r")
    for row in result.rows:
        nodes, sequence = row["system.nodes"], row["workload.sequence"]
        alone = crossflow.predict({**SCENARIO, "system": {"template": "dgx-h100", "nodes": nodes}}, sequence=sequence)
        assert row["strategy"] == alone.strategy
        assert row["step_time_s"] == pytest.approx(alone.step_time)
    headers, rows = result.table()
    assert headers[:3] == ["nodes", "sequence", "strategy"]
    assert len({row[2] for row in rows}) > 1
    table = (tmp_path / "r" / "points.csv").read_text().splitlines()
    assert next(csv.reader(table))[:4] == ["id", "system.nodes", "workload.sequence", "strategy"]


@pytest.mark.thorough  # what it runs quicker tests run too
def test_quantities_have_their_plans_too(tmp_path):
    result = run_study(study(sweep={"system.network.intra.bandwidth": ["20 GB/s", "450 GB/s"]}), out=tmp_path / "r")
    slow, fast = result.rows
    assert slow["strategy"] != fast["strategy"]
    assert slow["strategy"] == crossflow.predict(SCENARIO, {"system.network.intra.bandwidth": "20 GB/s"}).strategy


@pytest.mark.thorough  # what it runs quicker tests run too
def test_designs_of_a_planned_study_are_found_again(tmp_path):
    result = run_study(study(sweep={"chip": CHIPS}), out=tmp_path / "r")
    source = find_source(tmp_path / "r", json.loads((tmp_path / "r" / "run.json").read_text()))
    row = result.rows[1]
    assert crossflow.predict(design(source, row)).step_time == pytest.approx(row["step_time_s"])


@pytest.mark.thorough
def test_what_changes_together_has_a_name_in_tables_and_prices_of_its_own(tmp_path):
    result = run_study(study(sweep={"chip": CHIPS}, columns=["usd_per_million_tokens"]), out=tmp_path / "r")
    headers, rows = result.table()
    assert headers == ["chip", "strategy", "usd_per_million_tokens"]
    assert [row[0] for row in rows] == ["H100", "B200"]
    for row, (name, settings) in zip(result.rows, CHIPS.items(), strict=True):
        alone = crossflow.predict(SCENARIO, {path: settings[path] for path in settings})
        assert row["chip"] == name
        assert row["usd_per_million_tokens"] == pytest.approx(alone.usd_per_million_tokens)
    assert result.summary.endswith("at B200")


def test_whole_systems_that_each_have_a_price_need_none_in_the_scenario(tmp_path):
    systems = [{"template": t, "operation": {"price": p}} for t, p in (("dgx-h100", "2 USD/hour"), ("dgx-b200", "4 USD/hour"))]
    scenario = {**SCENARIO, "system": "dgx-h100", "strategy": "tp2-dp4-z1"}
    given = {"name": "s", "scenario": scenario, "sweep": {"system": systems}, "columns": ["usd_per_million_tokens"], "plots": []}
    result = run_study(given, out=tmp_path / "r")
    assert all(row["usd_per_million_tokens"] > 0 for row in result.rows)


def test_the_best_plan_beside_an_own_one(tmp_path):
    plans = {"best": {"strategy": "auto"}, "mine": {"strategy": "tp8"}}
    best, mine = run_study(study(sweep={"plan": plans}), out=tmp_path / "r").rows
    assert mine["strategy"] == "tp8"
    assert best["strategy"] == crossflow.predict(SCENARIO).strategy
    assert best["step_time_s"] < mine["step_time_s"]


def test_searches_at_points_with_names_have_files_of_these_names(tmp_path):
    scenario = {key: value for key, value in SCENARIO.items() if key != "strategy"}
    given = {"name": "s", "scenario": scenario, "sweep": {"chip": CHIPS}, "space": {"strategy": ["tp8", "tp4-dp2"]}, "plots": []}
    result = run_study(given, out=tmp_path / "r")
    assert sorted(path.name for path in (tmp_path / "r" / "best").iterdir()) == ["all-B200.yaml", "all-H100.yaml"]
    loaded = crossflow.load(tmp_path / "r" / "best" / "all-B200.yaml")
    assert loaded.system.name == "dgx-b200"
    assert result.rows[0]["system.template"] == "dgx-h100"


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"sweep": {"strategy": ["auto", "tp8"]}},
            "sweep.strategy: auto is no value of a sweep: strategy: auto in the scenario is the best strategy of every point,"
            " and settings by name compare it: sweep: {plan: {best: {strategy: auto}, mine: {strategy: tp8-dp4}}}",
        ),
        (
            {"space": {"workload.sequence": [2048, 4096]}},
            "scenario.strategy: auto cannot be used here: a search chooses the strategy with everything else;"
            " leave it out, and add to the space: {strategy: legal}",
        ),
        ({"sweep": {"chip": {"a": {}}}}, "sweep.chip: a has no settings; give each value settings by path,"),
        (
            {"sweep": {"chip": {"a": {"system.nodes": 1}, "b": {"workload.sequence": 3}}}},
            "sweep.chip: a says nothing of workload.sequence, which other values of chip set; give it there too",
        ),
        (
            {"sweep": {"chip": {"a": 3, "b": {"system.nodes": 1}}}},
            "sweep.chip.a: expected settings by path, such as {system.nodes: 4}, got 3",
        ),
        (
            {"sweep": {"system": {"a": {"system.nodes": 1}}}},
            "sweep.system: 'system' is a path of a scenario; what changes together has a name of its own, such as hardware",
        ),
        ({"sweep": {"mfu": {"a": {"system.nodes": 1}}}}, "sweep.mfu: 'mfu' is a column of the results; give what changes together another"),
        (
            {"sweep": {"system.nodes": [1, 2], "chip": {"a": {"system.nodes": 1}}}},
            "sweep: 'system.nodes' is swept twice; sweep a path by itself, or with others under one name",
        ),
        ({"sweep": {"chip": {"a": {"system.nodez": 1}}}}, "sweep.chip: system.nodez = 1: system.nodez: unknown key 'nodez'; did you mean"),
    ],
)
def test_what_makes_no_points_is_told_with_its_place(sections, sentence):
    with pytest.raises(SpecError) as told:
        read_study(study(**sections))
    assert sentence in str(told.value)


@pytest.mark.thorough
def test_a_sweep_in_python_plans_every_point_of_data_that_say_auto():
    score = crossflow.sweep(SCENARIO, nodes=[1, 2])
    assert list(score.points["strategy"]) == [crossflow.predict(SCENARIO, nodes=nodes).strategy for nodes in (1, 2)]
    asked = crossflow.sweep(model="llama3-8b", on=["dgx-h100", "dgx-b200"], batch=64)
    assert list(asked.points) == ["system.template", "strategy"]
    assert asked.feasible.all()
    mixed = crossflow.sweep(SCENARIO, strategy=["auto", "tp8"])
    assert mixed.step_time[0] < mixed.step_time[1]
    assert mixed.points["strategy"][1] == "tp8"


def test_a_loaded_scenario_keeps_the_strategy_that_was_chosen():
    scenario = crossflow.load(SCENARIO)
    assert list(crossflow.sweep(scenario, nodes=[1, 2]).feasible) == [True, False]
    with pytest.raises(CrossflowError, match="a model and a system"):
        crossflow.sweep(nodes=[1, 2])


@pytest.mark.thorough
def test_progress_moves_while_budgets_are_divided(tmp_path):
    scenario = {"system": {"template": "pathfinder", "devices": 64}, "workload": "lstm-16k", "strategy": "CR-8-d8"}
    given = {"name": "s", "scenario": scenario, "sweep": {"system.technology.memory": ["HBM2e", "HBM3"]}, "plots": []}
    seen = []
    run_study(
        {**given, "redivide": {"evaluations": 400}}, out=tmp_path / "r", progress=lambda done, total, best: seen.append((done, total, best))
    )
    assert {total for _, total, _ in seen} == {800}
    assert seen[0] == (0, 800, "-")
    assert seen[-1][0] == 800
    done = [done for done, *_ in seen]
    assert len(set(done)) > 10
    assert done == sorted(done)
    assert seen[1][2] != "-"
    run_study(given, out=tmp_path / "q", progress=lambda done, total, best: seen.append((done, total, best)))
    assert seen[-1][:2] == (2, 2)
