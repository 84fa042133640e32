"""`crossflow sweep`: every combination of some values, as Python's sweep has them."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

import crossflow
from crossflow.__main__ import main

ROOT = Path(__file__).parents[1]
DATA = {"name": "small", "system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": "tp8"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(DATA))
    return path


def refused(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["sweep", *map(str, words)]))
    assert ended.value.code == 2
    return capsys.readouterr().err


def answered(capsys, *words):
    assert not main(["sweep", *map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("word", ["grid", "scan"])
def test_other_words_for_a_sweep_are_told_the_command(word, capsys):
    with pytest.raises(SystemExit) as ended:
        main([word, "--model", "llama3-8b"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    pasted = re.search(r"such as: crossflow (sweep .*) \(see", told)[1]
    if word == "grid":  # the line is the same
        assert answered(capsys, *shlex.split(pasted)[1:])["points"] == 2


def test_all_combinations_are_those_of_python(file, tmp_path, capsys):
    table = tmp_path / "t.csv"
    words = (file, "--vary", "strategy=tp8,tp4-dp2,tp3", "--vary", "workload.global_batch=2^3..2^4", "--set", "workload.sequence=1024")
    found = answered(capsys, *words, "-o", table)
    data = {**DATA, "workload": {**DATA["workload"], "sequence": 1024}}
    score = crossflow.sweep(data, {"strategy": ["tp8", "tp4-dp2", "tp3"], "workload.global_batch": [8, 16]})
    assert [row["step_time_s"] for row in found["rows"][:4]] == pytest.approx(list(score.step_time[:4]))
    assert (found["points"], found["feasible"]) == (6, 4)
    assert found["best"]["step_time_s"] == min(score.step_time[:4])
    assert "needs 3 devices" in found["rows"][4]["reason"]
    assert found["rows"][0]["trust"] == score.trusted[0]
    with table.open() as lines:
        assert [row["strategy"] for row in csv.DictReader(lines)] == list(score.points["strategy"])


def test_sorted_rows_have_the_best_first_and_the_infeasible_last(file, capsys):
    words = (file, "--vary", "strategy=tp3,tp8,tp4-dp2", "--sort", "tokens_per_second")
    rows = answered(capsys, *words)["rows"]
    assert rows[0]["tokens_per_second"] > rows[1]["tokens_per_second"]
    assert rows[2]["strategy"] == "tp3"
    assert not main(["sweep", *map(str, words)])
    lines = capsys.readouterr().out.splitlines()
    assert [lines[1][0], lines[3][0]] == [">", "x"]


RUN = {
    "tokens": 1e10, "failures": {"gpu": {"rate": "1 1/year", "per": "device", "detection": "2 min", "repair": "1 day"}},
    "checkpoint": {"interval": "1 hour"},
}  # fmt: skip


def test_runs_that_are_interrupted_are_ranked_by_the_whole_run(file, tmp_path, capsys):
    """Spares leave the step as it is, so that the first point was the best of all, and the others ties with it."""
    file.write_text(json.dumps({**DATA, "run": RUN}))
    words = (file, "--vary", "run.spares=0,1")
    found = answered(capsys, *words)
    times = [row["run.time_s"] for row in found["rows"]]
    assert times[1] < times[0]
    assert (found["goal"], found["best"]["run.spares"], found["ties"]) == ("run.time_s", 1, [])
    assert found["rows"][0]["run.goodput"] < found["rows"][1]["run.goodput"]
    assert not main(["sweep", *map(str, words)])
    assert "> is the best by run.time_s, the time of the whole run\n" in capsys.readouterr().out
    score = crossflow.sweep(file, {"run.spares": [0, 1]})
    assert (score.ranked, score.best.points["run.spares"]) == ("run.time_s", (1,))
    assert not main(["sweep", *map(str, words), "--write", str(tmp_path / "study.yaml")])
    study = crossflow.run_study(tmp_path / "study.yaml", out=tmp_path / "out")
    assert study.summary.endswith("at 1")
    assert study.listing.headers == ["run.spares", "run.goodput", "run.time_s", "step_time_s", "bound_by", "reason"]
    assert [path.name for path in study.files if path.suffix == ".png"] == ["run_time_s.png"]


def test_a_study_of_runs_of_other_lengths_ranks_and_draws_the_whole_run(file, tmp_path):
    """Steps are the same, so that the first point was called the fastest, in a table and a picture without the length of runs."""
    found = crossflow.run_study({"scenario": DATA, "sweep": {"run.tokens": [2e10, 1e10]}}, out=tmp_path / "out")
    assert found.best["run.tokens"] == 1e10
    assert found.listing.headers[:2] == ["run.tokens", "run.time_s"]
    assert [plot.y for plot in found.study.spec.plots] == ["run.time_s"]
    asked = {"scenario": DATA, "sweep": {"run.tokens": [2e10, 1e10]}, "columns": ["run.time_s"]}  # was refused: no length in the base
    assert crossflow.run_study(asked, out=tmp_path / "asked").listing.headers == ["run.tokens", "run.time_s"]


def test_a_study_of_a_service_ranks_by_the_whole_request(tmp_path):
    """Where fewer requests write at once, the mean step of a service is shorter, and requests are not."""
    served = {"model": "llama3-8b", "task": "serving", "prompt": 2000, "output": 200, "global_batch": 64}
    swept = {"workload.serving.chunk": [512, 2048]}
    found = crossflow.run_study({"scenario": {**DATA, "workload": served}, "sweep": swept}, out=tmp_path / "out")
    assert (found.study.ranked, found.listing.headers[1]) == ("e2el_s", "e2el_s")
    assert found.best["e2el_s"] == min(row["e2el_s"] for row in found.rows)
    data = {**DATA, "workload": served}
    score = crossflow.sweep(data, {"workload.serving.chunk": [512, 1024, 2048], "workload.serving.prefix_hits": [0.0, 0.5]})
    assert (score.ranked, float(score.best.serving["e2el_s"][0])) == ("e2el_s", float(score.serving["e2el_s"].min()))


def test_services_and_jobs_of_other_lengths_are_ranked_by_the_whole_run(file, capsys):
    """Each of their steps is as fast, so that the first point was called the best."""
    served = {"model": "llama3-8b", "task": "decode", "prompt": 512, "output": 64, "global_batch": 16}
    file.write_text(json.dumps({**DATA, "workload": served, "run": {"steps": 20}}))
    found = answered(capsys, file, "--vary", "run.steps=20,10")
    assert (found["goal"], found["best"]["run.steps"], found["ties"]) == ("run.time_s", 10, [])
    file.write_text(json.dumps({**DATA, "job": {"kind": "dpo"}, "run": {"steps": 20}}))
    found = answered(capsys, file, "--vary", "run.steps=20,10")
    assert (found["goal"], found["best"]["run.steps"], found["ties"]) == ("run.time_s", 10, [])


def test_runs_that_differ_in_their_spares_are_no_ties(file, capsys):
    file.write_text(json.dumps({**DATA, "run": RUN}))
    assert answered(capsys, file, "--vary", "run.spares=0,1", "--vary", "strategy=tp8,tp4-dp2")["ties"] == []


def test_runs_of_other_lengths_are_ranked_by_their_time_and_others_by_the_step(file, capsys):
    file.write_text(json.dumps({**DATA, "run": {"tokens": 1e10}}))
    assert answered(capsys, file, "--vary", "run.tokens=2e10,1e10")["best"]["run.tokens"] == 1e10
    assert answered(capsys, file, "--vary", "strategy=tp8,tp4-dp2")["goal"] == "step_time_s"


def test_coupled_values_go_together_and_the_study_does_the_same(file, tmp_path, capsys):
    words = (file, "--vary", "strategy=tp8-dp1,tp8-dp2", "--vary", "system.nodes=1..2", "--together", "strategy,system.nodes")
    found = answered(capsys, *words)
    assert [(row["strategy"], row["system.nodes"]) for row in found["rows"]] == [("tp8-dp1", 1), ("tp8-dp2", 2)]
    assert found["feasible"] == 2
    assert not main(["sweep", *map(str, words), "--write", str(tmp_path / "study.yaml")])
    study = crossflow.run_study(tmp_path / "study.yaml", out=tmp_path / "out")
    assert [row["step_time_s"] for row in study.rows] == pytest.approx([row["step_time_s"] for row in found["rows"]])


def test_a_list_for_set_is_answered_by_the_line_that_works(file, capsys):
    told = refused(capsys, file, "--set", "strategy=tp8,tp4-dp2")
    pasted = told.strip().partition("several: crossflow sweep ")[2]
    assert answered(capsys, *shlex.split(pasted))["feasible"] == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing is varied: give --vary PATH=A,B"),
        (["--vary", "strategy"], "--vary strategy: expected a path with its values"),
        (["--vary", "strategy=tp8,,tp4"], "a value is empty"),
        (["--vary", "system.nodes=8..1"], "8..1 ends before it begins"),
        (["--vary", "system.nodes=1..999999"], "at most 100,000"),
        (["--vary", "system.nodes=1..400", "--vary", "workload.global_batch=1..400"], "160,000 combinations"),
        (["--vary", "system.nodes=1,2", "--vary", "system.nodes=4"], "varied twice"),
        (["--vary", "system.nodes=1,2", "--together", "system.nodes,strategy"], "strategy is not varied"),
        (["--vary", "system.nodes=1,2", "--vary", "strategy=tp8", "--together", "system.nodes,strategy"], "as many values each"),
        (["--vary", "strategy=tp8", "--sort", "tokens"], "tokens"),
        (["--vary", "strategy=tp8", "--sort", "bound_by"], "no numbers"),
        (["--vary", "strategy=tp8", "-o", "x.txt"], "a table ends in .csv"),
        (["--vary", "strategy=tp8", "--write", "x.txt"], "a name that ends in .yaml"),
        (["--vary", "system.nodse=1,2"], "nodse"),
        (["--vary", "strategy=tp8", "--strategy", "tp8,tp4-dp2"], "write --vary strategy=tp8,tp4-dp2"),
    ],
)
def test_what_cannot_be_swept_is_refused_with_the_cure(words, told, file, capsys):
    assert told in refused(capsys, file, *words)


def test_jobs_are_ranked_by_their_iteration(capsys):
    path = ROOT / "docs/examples/grpo.yaml"
    rows = answered(capsys, path, "--vary", "job.overheads.sample=0.1 s,1 ms,2 s")
    times = [row["job.iteration_time_s"] for row in rows["rows"]]
    assert rows["goal"] == "job.iteration_time_s"
    assert rows["best"] == rows["rows"][1]
    assert times[1] < times[0] < times[2]


@pytest.mark.parametrize(
    ("system", "path", "told"),
    [
        ("reference", "system.technology.logic=N5,N3", "The budgets keep the division of reference at every point."),
        ("dgx-h100", "system.technology.logic=N5,N3", "system.technology.logic changes only energy"),
        ("reference-training", "system.technology.memory=HBM3,DDR5", "Reference-training has no division of its budgets for"),
        ("dgx-h100", "system.template=dgx-h100,dgx-a100", ""),
        ("dgx-h100", "workload.global_batch=8,16", ""),
    ],
)
def test_what_another_technology_leaves_as_it_is_is_told_as_in_a_study(system, path, told, capsys):
    words = ("--model", "llama3-8b", "--on", system, "--devices", "8", "--strategy", "dp8-z3", "--batch", "8")
    notes = answered(capsys, *words, "--vary", path)["notes"]
    name, _, values = path.partition("=")
    score = crossflow.sweep(
        model="llama3-8b", on=words[3], values={name: [int(one) if one.isdigit() else one for one in values.split(",")]}
    )
    assert [*score.notes] == [*score[:1].notes] == notes
    assert len(notes) == bool(told)
    assert all(note.startswith(told) for note in notes)


def test_a_picture_says_which_points_it_leaves_out_and_why(tmp_path, capsys):
    words = ["--model", "llama3-8b", "--on", "dgx-h100", "--strategy", "tp8", "--vary", "system.nodes=1..4"]
    assert main(["sweep", *words, "-o", str(tmp_path / "p.svg")]) == 0
    told = next(line for line in capsys.readouterr().err.splitlines() if "leaves out" in line)
    assert "leaves out 3 of 4 points, which make no scenario; the first, system.nodes = 2: strategy tp8 needs 8 devices" in told
