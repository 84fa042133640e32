# ruff: noqa: E501  (exact sentences)
"""Searches and draws as studies: what is written, how it is resumed, what wrong files are told."""

import contextlib
import csv
import gc
import itertools
import json
import math
import sqlite3

import numpy as np
import pytest
import yaml

import crossflow
from crossflow.answers.explanation.uncertainty import importance
from crossflow.answers.study import searches, sweeps
from crossflow.answers.study.run import run_study
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.parallel.strategy.mesh import BLOCKS
from crossflow.parallel.strategy.transformers import plan_of

SCENARIO = {
    "system": {"template": "pathfinder", "devices": 8},
    "workload": {"model": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "fp16"},
    "strategy": "d8",
}
SPACE = {
    "system.budgets.power_shares": "shares",
    "system.budgets.area": {"shares": ["compute", "memory", "on_chip.l2"], "min": 0.02},
    "strategy": "legal",
}
SEARCHES = {
    "strategy": {"searcher": "exhaustive", "over": ["strategy"]},
    "budgets": {"searcher": "gradient", "starts": 2, "steps": 4, "over": ["system.budgets"]},
    "both": {"searcher": "gradient", "starts": 1, "steps": 2, "finalists": 1},
    "random": {"searcher": "random", "evaluations": 50},
    "tpe": {"searcher": "tpe", "evaluations": 20, "over": ["strategy", "system.budgets.power_shares"]},
}
NAMES = ("points.jsonl", "points.csv", "points.npz", "run.json", "best.json", "convergence.csv")


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Path of a search study with other sections."""
    numbers = itertools.count()

    def written(**sections):
        whole = {"name": "s", "scenario": SCENARIO, "space": SPACE, "searches": SEARCHES, "plots": [], **sections}
        path = tmp_path_factory.mktemp(f"study{next(numbers)}") / "s.yaml"
        path.write_text(yaml.safe_dump({name: given for name, given in whole.items() if given is not None}, sort_keys=False))
        return path

    return written


@pytest.fixture(scope="module")
def swept(write):
    """A study of all searches at two swept points, run once."""
    path = write(sweep={"system.technology.logic": ["N7", "N3"]}, columns=["energy_j"])
    return run_study(path, out=path.parent / "o")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ------------------------------------------------------------------------------------------ what is found and written


@pytest.mark.parametrize("model", ["qwen", "qwen/config.json"])
def test_a_best_design_names_the_files_of_its_study_from_its_own_folder(write, monkeypatch, model):
    layers = {"num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8}
    fields = {"model_type": "llama", **layers, "vocab_size": 32000, "max_position_embeddings": 2048}
    scenario = {
        "system": {"template": "parts/cluster.yaml", "devices": 8},
        "workload": {"model": model, "global_batch": 8, "sequence": 512},
        "title": "parts/cluster.yaml",
    }
    space = {"strategy": ["dp8", "tp8"], "software": ["nccl.yaml", "megatron-core"]}
    path = write(scenario={**scenario, "strategy": "dp8"}, space=space, searches={"all": {"searcher": "exhaustive"}})
    for name, text in (
        ("qwen/config.json", json.dumps(fields)),
        ("parts/cluster.yaml", "kind: system\nname: c\ntemplate: dgx-h100\n"),
        ("nccl.yaml", files.find("templates", "torchtitan").read_text()),
    ):
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_text(text)
    result = run_study(path, out=path.parent / "results" / "o")
    data = yaml.safe_load((result.out / "best.yaml").read_text())
    assert (data["workload"]["model"], data["system"]["template"]) == ("../../qwen/config.json", "../../parts/cluster.yaml")
    assert data["title"] == "parts/cluster.yaml"
    assert data["software"] in ("../../nccl.yaml", "megatron-core")
    monkeypatch.chdir(result.out)
    assert crossflow.predict("best.yaml").step_time == pytest.approx(result.results[0].best.row["step_time_s"])


@pytest.mark.thorough
@pytest.mark.slow
def test_every_search_runs_at_every_swept_point(swept):
    found = [(result.run.name, result.run.point["system.technology.logic"]) for result in swept.results]
    assert found == [(name, node) for node in ("N7", "N3") for name in SEARCHES]
    rows = swept.rows
    assert [row["id"] for row in rows] == list(range(len(rows)))
    for result in swept.results:
        mine = [row for row in rows if row["run"] == result.run.number]
        assert {(row["search"], row["system.technology.logic"]) for row in mine} == {
            (result.run.name, result.run.point["system.technology.logic"])
        }
        assert sum(row["evaluations"] for row in mine) == result.best.evaluations
        assert min(row["step_time_s"] for row in mine if row["feasible"]) == result.best.row["step_time_s"]


@pytest.mark.slow
def test_searching_more_finds_no_less(swept):
    best = {(r.run.name, r.run.point["system.technology.logic"]): r.best.row["step_time_s"] for r in swept.results}
    for node in ("N7", "N3"):
        assert best["both", node] <= min(best["strategy", node], best["budgets", node])


def test_the_best_design_is_a_scenario_that_gives_its_figures(swept):
    for result in swept.results:
        node = result.run.point["system.technology.logic"]
        scenario = crossflow.load(swept.out / "best" / f"{result.run.name}-{node}.yaml")
        assert crossflow.predict(scenario).step_time == pytest.approx(result.best.row["step_time_s"], rel=1e-9)
        assert crossflow.predict(scenario).feasible


def test_a_search_tells_how_far_its_best_design_can_be_trusted(write):
    """Of a service with arrivals, which a search for its limits of latency is mostly about, the tails beside it."""
    workload = {"model": "llama3-8b", "task": "serving", "prompt": 256, "output": 64, "global_batch": 32}
    scenario = {
        "system": {"template": "dgx-h100", "devices": 8}, "workload": {**workload, "serving": {"arrival_rate": "4 1/s"}},
        "software": "vllm", "strategy": "tp8",
    }  # fmt: skip
    path = write(scenario=scenario, space={"strategy": ["tp8", "dp8"]}, searches=None, objectives=["ttft_p99_s"])
    study = run_study(path, out=path.parent / "o")
    (told,) = [note for note in study.notes if note.startswith("trust")]
    assert told.startswith("trust of the best: ")
    assert "; tails unknown" in told


def test_best_designs_lie_in_a_folder_of_their_own(swept):
    found = sorted(path.name for path in (swept.out / "best").iterdir())
    assert len(found) == len(swept.results)
    assert all(name.endswith(".yaml") for name in found)
    assert {f"best/{name}" for name in found} <= set(json.loads((swept.out / "run.json").read_text())["files"])


def test_tables_and_files_agree(swept):
    best = json.loads((swept.out / "best.json").read_text())
    assert [entry["best"]["step_time_s"] for entry in best] == [result.best.row["step_time_s"] for result in swept.results]
    with (swept.out / "convergence.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for result in swept.results:
        mine = [row for row in rows if (row["search"], row["system.technology.logic"]) == (result.run.name, *result.run.point.values())]
        assert float(mine[-1]["best"]) == pytest.approx(result.best.row["step_time_s"], rel=1e-12)
    headers, table = swept.table()
    assert headers[:3] == ["logic", "search", "strategy"]
    assert len(table) == 10
    record = json.loads((swept.out / "run.json").read_text())
    assert [entry["seed"] for entry in record["searches"]] == [0] * 10
    assert record["searches"][4]["optuna"].startswith("5.")


def test_pandas_reads_the_points(swept):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(swept.out / "points.csv")
    times = [np.inf if row["step_time_s"] is None else row["step_time_s"] for row in swept.rows]
    assert frame["step_time_s"].fillna(np.inf).tolist() == pytest.approx(times, rel=1e-12)  # before pandas 3 its parser rounds
    assert len(swept.to_frame()) == len(frame)


def test_several_objectives_give_a_front(write):
    path = write(
        objectives={"step_time_s": "minimise", "cost_usd": "minimise", "mfu": "maximise"},
        space={"system.technology.memory": ["HBM2", "HBM2e", "HBM3"], "system.technology.inter_link": ["NDR-x8", "GDR-x8"]},
        searches={"all": {"searcher": "exhaustive"}},
    )
    made = run_study(path, out=path.parent / "o")
    rows = made.rows
    assert len(rows) == 6
    figures = [(row["step_time_s"], row["cost_usd"], -row["mfu"]) for row in rows]
    kept = [f for f in figures if not any(all(a <= b for a, b in zip(g, f, strict=True)) and g != f for g in figures)]
    assert sorted((row["step_time_s"], row["cost_usd"], -row["mfu"]) for row in made.results[0].best.front) == sorted(kept)


def test_conditions_leave_out_what_has_no_meaning(write):
    space = {"strategy": ["d8", "CR-8"], "placement": {"values": [["dp"], ["kp1"]], "when": {"strategy": "CR-8"}}}
    path = write(space=space, searches={"all": {"searcher": "exhaustive", "prune": False}})
    rows = run_study(path, out=path.parent / "o").rows
    assert [(row["strategy"], row["placement"]) for row in rows] == [("d8", None), ("CR-8", ["dp"]), ("CR-8", ["kp1"])]
    assert [row["feasible"] for row in rows] == [True, False, True]
    assert "expected each of kp1 once" in rows[1]["reason"]


@pytest.mark.thorough
@pytest.mark.slow
def test_an_optuna_study_is_shared_through_its_storage(write, tmp_path):
    import optuna

    storage = f"sqlite:///{tmp_path / 'study.db'}"
    settings = {"searcher": "tpe", "evaluations": 12, "storage": storage, "over": ["strategy"]}
    path = write(searches={"shared": settings})
    made = run_study(path, out=path.parent / "o")
    assert open_databases() == []
    opened = optuna.storages.RDBStorage(storage)
    shared = optuna.load_study(study_name="s-shared", storage=opened)
    assert len(shared.trials) == 12
    assert shared.best_value == pytest.approx(made.results[0].best.row["step_time_s"])
    assert {trial.params["strategy"] for trial in shared.trials} == {row["strategy"] for row in made.rows}
    opened.engine.dispose()


def open_databases():
    """Connections that Python would complain of as it collects them, from 3.13 on."""
    found = []
    for connection in (held for held in gc.get_objects() if type(held) is sqlite3.Connection):
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed
            found.append(connection.total_changes)
    return found


def test_strategies_are_legal_for_every_device_count_wherever_they_stand(write):
    scenario = {**SCENARIO, "system": {"template": "pathfinder"}}
    scenario.pop("strategy")
    space = {"strategy": "legal", "system.devices": [2, 4]}
    path = write(scenario=scenario, space=space, searches={"all": {"searcher": "exhaustive", "prune": False}})
    rows = run_study(path, out=path.parent / "o").rows
    assert {row["strategy"] for row in rows if row["system.devices"] == 4} >= {"d2", "d4", "CR-4"}
    assert {row["strategy"] for row in rows if row["feasible"] and row["system.devices"] == 2} == {"d2", "RC-1-2", "RC-2-1", "CR-2"}


TRANSFORMER = {"system": {"template": "dgx-h100", "nodes": 2}, "workload": {"model": "gpt2-345m", "global_batch": 16}, "strategy": "dp16"}


@pytest.mark.thorough
@pytest.mark.slow
def test_legal_plans_are_searched_in_every_order_of_their_ranks(write):
    """With placement: all a plan of k blocks of several ranks is there k! times, and another order than the default may be faster."""
    found, scenario = {}, {**TRANSFORMER, "workload": {**TRANSFORMER["workload"], "heads": 2, "global_batch": 8}, "strategy": "tp2-dp8"}
    for placement in ({}, {"placement": "all"}):
        space = {"strategy": "legal", "workload.layers": [24], **placement}
        path = write(scenario=scenario, space=space, searches={"all": {"searcher": "exhaustive", "prune": False}})
        found[bool(placement)] = {row["strategy"]: row["step_time_s"] for row in run_study(path, out=path.parent / "o").rows}
    plans = [plan_of(text) for text in found[False]]
    assert len(found[True]) == sum(math.factorial(sum(size > 1 for size in (plan.tp, plan.dp, plan.pp))) for plan in plans)
    assert {text: found[True][text] for text in found[False]} == pytest.approx(found[False], rel=1e-12)
    orders = [time for text, time in found[True].items() if plan_of(text).but(placement=BLOCKS) == plan_of("tp2-dp4-pp2-mb1")]
    assert min(orders) < 0.99 * found[True]["tp2-dp4-pp2"]


def test_conditions_on_what_has_no_meaning_do_not_hold(write):
    space = {
        "strategy": ["d8", "CR-8"],
        "system.technology.memory": {"values": ["HBM2", "HBM3"], "when": {"strategy": "CR-8"}},
        "system.technology.logic": {"values": ["N7", "N5"], "when": {"system.technology.memory": "HBM2"}},
    }
    path = write(space=space, searches={"all": {"searcher": "exhaustive", "prune": False}})
    rows = run_study(path, out=path.parent / "o").rows
    assert [tuple(row[name] for name in space) for row in rows] == [
        ("d8", None, None), ("CR-8", "HBM2", "N7"), ("CR-8", "HBM2", "N5"), ("CR-8", "HBM3", None),
    ]  # fmt: skip


@pytest.mark.slow
def test_an_optuna_storage_of_another_space_is_told(write, tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    for strategies in (["d8", "CR-8"], ["d8", "RC-2-4"]):
        path = write(space={"strategy": strategies}, searches={"x": {"searcher": "tpe", "evaluations": 3, "storage": storage}})
        if "CR-8" in strategies:
            run_study(path, out=path.parent / "o")
    with pytest.raises(CrossflowError, match="it holds a study of that name over another space"):
        run_study(path, out=path.parent / "o")
    assert open_databases() == []


@pytest.mark.slow
def test_an_optuna_storage_that_is_not_there_is_told(write):
    path = write(searches={"shared": {"searcher": "tpe", "storage": "sqlite:////nowhere/x.db"}})
    with pytest.raises(CrossflowError, match=r"^storage sqlite:////nowhere/x\.db: "):
        run_study(path, out=path.parent / "o")


# ------------------------------------------------------------------------------------------ resuming


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(("keep", "jobs"), [(0.0, 2), (0.77, 1), (0.995, 1), (1.0, 1)])
def test_resumed_from_any_part_of_the_points(swept, tmp_path, keep, jobs):
    """Also from none, on other workers: they change no byte."""
    whole = (swept.out / "points.jsonl").read_bytes()
    (tmp_path / "points.jsonl").write_bytes(whole[: int(keep * len(whole))])
    (tmp_path / "run.json").write_text((swept.out / "run.json").read_text().replace('"finished": true', '"finished": false'))
    run_study(swept.out.parent / "s.yaml", out=tmp_path, resume=True, jobs=jobs)
    assert contents(tmp_path) == contents(swept.out)


def test_finished_searches_are_told_again_from_their_files(swept, monkeypatch):
    before = contents(swept.out)
    monkeypatch.setattr(searches, "search", None)
    again = run_study(swept.out.parent / "s.yaml", out=swept.out, resume=True)
    assert (again.to_dict(), again.table(), contents(swept.out)) == (swept.to_dict(), swept.table(), before)
    assert set(again.view.columns) == set(swept.view.columns)
    assert all(list(again.view.columns[name]) == list(values) for name, values in swept.view.columns.items() if name == "search")


@pytest.mark.cases(1)
@pytest.mark.parametrize("setting", ["searches.random.seed=3", "space.strategy=[d8]", "objectives=[energy_j]"])
def test_a_changed_search_does_not_go_on_from_old_points(swept, tmp_path, setting):
    (tmp_path / "points.jsonl").write_bytes((swept.out / "points.jsonl").read_bytes())
    (tmp_path / "run.json").write_bytes((swept.out / "run.json").read_bytes())
    with pytest.raises(CrossflowError, match="holds a run of a different study"):
        run_study(swept.out.parent / "s.yaml", out=tmp_path, resume=True, settings=[setting])
    assert (tmp_path / "points.jsonl").read_bytes() == (swept.out / "points.jsonl").read_bytes()


# ------------------------------------------------------------------------------------------ uncertain numbers


@pytest.fixture(scope="module")
def drawn(write):
    path = write(
        space=None, searches=None, sweep={"system.technology.memory": ["HBM2", "HBM4"]}, columns=["step_time_s", "energy_j"],
        uncertainty={"samples": 300, "seed": 4, "interval": 0.8},
    )  # fmt: skip
    return run_study(path, out=path.parent / "o")


def test_draws_are_rows_and_intervals_are_theirs(drawn):
    rows = drawn.rows
    assert len(rows) == 600
    with (drawn.out / "intervals.csv").open() as stream:
        intervals = {(row["system.technology.memory"], row["column"]): row for row in csv.DictReader(stream)}
    for memory in ("HBM2", "HBM4"):
        times = sorted(row["step_time_s"] for row in rows if row["system.technology.memory"] == memory)
        found = intervals[memory, "step_time_s"]
        assert float(found["low"]) == times[round(0.1 * 299)]
        assert float(found["median"]) == times[round(0.5 * 299)]
        assert float(found["high"]) == times[round(0.9 * 299)]


def test_designs_are_compared_over_the_same_draws(drawn):
    rows = drawn.rows
    one, other = ([row["step_time_s"] for row in rows if row["system.technology.memory"] == name] for name in ("HBM2", "HBM4"))
    wins = np.mean([a < b for a, b in zip(one, other, strict=True)]) + 0.5 * np.mean([a == b for a, b in zip(one, other, strict=True)])
    first, second = drawn.comparisons[:2]
    assert (first["a.system.technology.memory"], first["b.system.technology.memory"], first["column"]) == ("HBM2", "HBM4", "step_time_s")
    assert first["probability_a_better"] == pytest.approx(wins)
    assert first["probability_a_better"] + second["probability_a_better"] == pytest.approx(1.0)
    assert all(row["feasible"] for row in rows)


def test_importance_is_that_of_the_draws_that_were_evaluated(write, monkeypatch):
    """Also where many points make tasks larger than those of one point's draws alone would be."""
    for name, size in (("LARGE", 500), ("LARGE_TASK", 200), ("TASK", 64)):
        monkeypatch.setattr(sweeps, name, size)
    path = write(space=None, searches=None, sweep={"system.technology.memory": ["HBM2", "HBM4"]}, uncertainty={"samples": 300})
    made = run_study(path, out=path.parent / "o", settings=["record=[cost_usd]"])
    rows = [row for row in made.rows if row["system.technology.memory"] == "HBM2"]
    cost = next(d for d in made.view.drawn if d.column == "cost_usd" and d.point["system.technology.memory"] == "HBM2")
    link = "techlib.link.NDR-x8"
    expected = importance({link: np.array([row[f"{link}.link_cost"] for row in rows])}, np.array([row["cost_usd"] for row in rows]))
    assert cost.importance[f"{link}.cost"] == pytest.approx(expected[link], abs=1e-12)
    assert cost.importance[f"{link}.cost"] > 0.9


def test_an_objective_says_which_way_its_column_is_better(write):
    path = write(objectives={"mfu": "minimise"}, space={"strategy": ["d8", "CR-8"]}, searches={"all": {"searcher": "exhaustive"}})
    assert run_study(path, out=path.parent / "o").view.objectives["mfu"] is False


@pytest.mark.thorough
@pytest.mark.slow
def test_draws_do_not_depend_on_the_workers(drawn, tmp_path):
    run_study(drawn.out.parent / "s.yaml", out=tmp_path, jobs=2)
    assert contents(tmp_path) == contents(drawn.out)


# ------------------------------------------------------------------------------------------ wrong files

WRONG = [
    ({"searches": {"every": {"kind": "exhaustive"}}}, "searches.every: the key 'searcher' is missing"),
    ({"scenario": TRANSFORMER, "space": {"placement": "all", "strategy": ["dp16"]}},
     "space.placement: the order of a transformer's ranks is part of its strategy; give strategy: legal, or list strategies with their orders"),
    ({"space": {"sytem.budgets.power": ["300 W"]}}, "s.yaml:14: space.sytem.budgets.power: 'sytem.budgets.power' is not a path of a scenario"),
    ({"space": {"system.budgets.power": {"from": "300 W", "to": "200 W"}}}, "space.system.budgets.power: from must be less than to, got 300 W and 200 W"),
    ({"space": {"system.budgets.power": {"from": 300, "to": "400 W"}}}, "expected a quantity in W, got the bare number 300; write the unit"),
    ({"space": {"system.budgets.area": {"shares": ["compute", "l2"]}}}, "no share 'l2'; did you mean 'on_chip.l2'?; shares: compute, memory, inter_link, on_chip.registers, on_chip.l1, on_chip.l2"),
    ({"space": {"strategy": "all"}}, "expected a list of values, {values: ..., when: ...} or {from: ..., to: ...}, or 'legal' for all that fit; got 'all'"),
    ({"space": {"system.technology.memory": ["HBM2", "HBM9"]}}, "technology library 'deepflow-2024' has no memory 'HBM9'; did you mean"),
    ({"space": {"workload.m": {"from": 8, "to": 64}}}, "a setting that is no quantity needs a count, or a list of values"),
    ({"space": {**SPACE, "placement": {"values": [["dp"]], "when": {"strategie": "d8"}}}}, "when: 'strategie' is not an option of the space; did you mean 'strategy'?"),
    ({"objectives": ["step_tmie_s"]}, "no column 'step_tmie_s'; did you mean 'step_time_s'?"),
    ({"constraints": {"power_w": "300 W"}}, "constraints.power_w: expected a bound such as '<= 300 W' or '>= 0.4', got '300 W'"),
    ({"constraints": {"power_w": "<= 300 J"}}, "constraints.power_w: expected a quantity in W, got '300 J': 'J' is not a unit of W"),
    ({"searches": {"x": {"searcher": "gradiant"}}}, "searches.x"),
    ({"searches": {"x": {"searcher": "random", "steps": 3}}}, "unknown key 'steps'"),
    ({"searches": {"x": {"searcher": "random", "over": ["strategie"]}}}, "over: 'strategie' is not in the space; space: system.budgets.power_shares, system.budgets.area, strategy"),
    ({"space": {**SPACE, "system.technology.logic": ["N7"]}, "sweep": {"system.technology.logic": ["N5"]}}, "'system.technology.logic' is swept too; a path is either swept or searched"),
    ({"space": {**SPACE, "system.budgets.power_shares.compute": {"from": 0.1, "to": 0.2}}}, "'system.budgets.power_shares.compute' stands twice in the space"),
    ({"space": {"system.budgts.power": ["300 W", "200 W"]}}, "unknown key 'budgts'; did you mean 'budgets'?"),
    ({"space": {"strategy": ["d8", "hello"]}}, "strategy 'hello': 'hello' is not understood"),
    ({"space": {"system.budgets.area": {"shares": ["compute", "compute"]}}}, "expected different shares"),
    ({"objectives": []}, "objectives"),
    ({"searches": {"x": {"searcher": "gradient", "over": ["strategy"]}}}, "searches.x: searcher gradient: the space has options only"),
    ({"searches": {"x": {"searcher": "exhaustive"}}}, "searches.x: searcher exhaustive: the space holds quantities without an end"),
    ({"searches": {"x": {"searcher": "nsga2", "population": 1}}}, "searches.x"),
    ({"searches": None}, "it has no end of values; give `count` or a list of values, or say how it is searched"),
    ({"space": None, "searches": None, "uncertainty": {"parameters": ["techlib.memory.HBM2.device_capacity"]}}, "techlib.memory.HBM2.device_capacity: no number with low and high stands there"),
    ({"scenario": {"system": "dgx-h100", "workload": SCENARIO["workload"]}}, "dgx-h100 is known by its datasheet and has no budgets to divide"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("sections", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_wrong_studies_are_told_before_anything_is_written(write, tmp_path, sections, sentence):
    path = write(**sections)
    with pytest.raises(CrossflowError) as caught:
        run_study(path, out=tmp_path / "out")
    assert sentence in str(caught.value).replace(f"{path}:", "s.yaml:")
    assert not (tmp_path / "out").exists()


def test_microarchitecture_in_a_space_is_what_the_template_names(write):
    free = {"bundles": {"from": 40, "to": 300}}
    case = {**SCENARIO, "system": {**SCENARIO["system"], "microarchitecture": free}}
    space = {"system.budgets.area": "shares", "system.microarchitecture": ["bundles"]}
    evolution = {"searcher": "evolution", "evaluations": 60}
    searches = {"all": evolution, "one": {**evolution, "over": ["system.microarchitecture"]}}
    common = {"scenario": case, "searches": searches, "objectives": ["step_time_s"]}
    found = run_study(write(space=space, **common))
    rows = [row for row in found.rows if row["search"] == "one"]
    assert {row["system.bundles"] for row in rows} <= set(range(40, 301))
    assert len({row["system.bundles"] for row in rows}) > 10
    assert not any(path.startswith("system.budgets") for path in rows[0])
    with pytest.raises(CrossflowError, match=r"expected 'all' or a list of its paths, got \['levels'\]; paths: bundles"):
        run_study(write(space={"system.microarchitecture": ["levels"]}, **common))
