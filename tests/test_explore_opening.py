"""What `crossflow explore` opens: every kind of file, folder and name, and what it says of those that no page shows."""

import argparse
import json
import shlex
import shutil
import time
from pathlib import Path

import pytest
import yaml

from crossflow.__main__ import main
from crossflow.answers.planning.opening import load
from crossflow.answers.planning.planner import plan
from crossflow.answers.study.run import run_study
from crossflow.base.errors import CrossflowError
from crossflow.edges.cli import progress
from crossflow.edges.cli.explore import _app
from crossflow.edges.cli.parser import parse
from crossflow.edges.explore.opening import kind_of
from crossflow.edges.explore.page import exported
from crossflow.edges.explore.scenario import evaluated, scenario_app
from crossflow.edges.explore.study_finding import results_of_study
from crossflow.evidence.replay.report import report_on
from crossflow.program import Product, ProgramBuilder, write_program

TRACE = Path(__file__).parent / "data" / "traces" / "train_rank3_step_kineto.json.gz"
SMALL = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": "llama3-8b", "global_batch": 8}, "strategy": "auto"}
STUDY = {
    "name": "two",
    "scenario": {"system": {"template": "pathfinder", "devices": 8}, "workload": {"model": "lstm-16k"}, "strategy": "d8"},
    "sweep": {"system.technology.logic": ["N7", "N5"]},
    "plots": [],
}
LAUNCH = """\
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 4 --bf16 --vocab-size 32000
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "auto.yaml").write_text(yaml.safe_dump(SMALL))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(STUDY))
    (tmp_path / "run.sh").write_text(LAUNCH)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "model.yaml").write_text("model: transformer\nlayers: 2\n")
    (tmp_path / "system.yaml").write_text("kind: system\ndevice: h100-sxm\n")
    (tmp_path / "record.json").write_text('{"kind": "collectives"}')
    (tmp_path / "page.html").write_text("<html>")
    (tmp_path / "script.py").write_text("")
    (tmp_path / "table.csv").write_text("")
    (tmp_path / "empty").mkdir()
    shutil.copy(TRACE, tmp_path / "rank.json.gz")
    builder = ProgramBuilder(name="mlp", dtype="bf16", axes={"tp": 8})
    builder.compute("up", Product(m=8192, n=3584, k=8192))
    write_program(builder.build(samples=1, tokens=8192), tmp_path / "mlp.program.json.gz")
    return tmp_path


def opened(*words):
    return _app(parse(["explore", *words]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("auto.yaml", "scenario"), ("two.yaml", "study"), ("pareto", "study"), ("mlp.program.json.gz", "program"), ("rank.json.gz", "traces")],
)
def test_kinds_are_told_by_name_and_content(here, name, kind):
    assert kind_of(Path(name)) == kind


@pytest.mark.cases(8)
@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["config.json"], "crossflow explore --model config.json --on dgx-h100"),
        (["model.yaml"], "crossflow explore --model model.yaml --on dgx-h100"),
        (["llama3-8b"], "crossflow explore --model llama3-8b --on dgx-h100"),
        (["system.yaml"], "crossflow explore --model llama3-70b --on system.yaml"),
        (["DGX-H100"], "crossflow explore --model llama3-70b --on dgx-h100"),
        (["run.sh"], "crossflow explore --from run.sh --on dgx-h100"),
        (["record.json"], "crossflow import record.json -o step.program.json.gz"),
        (["mlp.program.json.gz"], "crossflow explore mlp.program.json.gz --on dgx-h100"),
        (["script.py"], "crossflow import script.py:FUNCTION"),
        (["page.html"], "open it in a browser"),
        (["table.csv"], "give a scenario, a study"),
        (["empty"], "give a scenario, a study"),
        (["nowhere.yaml"], "there is no such file"),
        (["paretto"], "did you mean 'pareto'?"),
        (["two.yaml"], "run it: crossflow study two.yaml, then crossflow explore results/two"),
        (["auto.yaml", "two.yaml"], "one page shows one thing; leave two.yaml out"),
        (["rank.json.gz", "--set", "a=1"], "--set changes a scenario; a trace is what was measured"),
        (["rank.json.gz", "--nodes", "2"], "--nodes describes a scenario"),
        (["auto.yaml", "--with", "strategy"], "give --export PAGE.html too"),
    ],
)
def test_what_no_page_shows_is_answered_with_what_to_type(here, capsys, words, cure):
    assert main(["explore", "--no-browser", *words]) == 2
    said = capsys.readouterr()
    assert cure in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


# ------------------------------------------------------------------------------------------ auto


@pytest.mark.thorough
def test_an_automatic_strategy_is_chosen_once_and_shown(here):
    start = opened("auto.yaml").start()
    best = plan(load("auto.yaml")).chosen
    assert start["auto"] is True
    assert start["first"]["now"]["strategy"] == best.strategy
    assert start["first"]["now"]["step_time"] == pytest.approx(best.step_time)


def test_a_change_chooses_the_strategy_anew_as_plans_do(here):
    app = opened("auto.yaml")
    changed = {"system.nodes": 2}
    found = app.calls["evaluate"]({"settings": changed})["now"]
    assert found["strategy"] == load("auto.yaml", changed).strategy_text
    assert found["note"] == ""
    copied = app.calls["texts"]({"settings": changed})
    assert f"strategy={found['strategy']}" in copied["set"]
    assert yaml.safe_load(copied["yaml"])["strategy"] == found["strategy"]


def test_a_strategy_that_is_named_stays_where_the_file_says_auto(here):
    found = opened("auto.yaml").calls["evaluate"]({"settings": {"strategy": "tp8", "system.power.tdp": 600.0}})["now"]
    assert found["strategy"] == "tp8"


def test_a_page_says_how_the_strategy_was_chosen_and_what_was_assumed(here):
    notes = opened("--model", "llama3-8b", "--on", "dgx-h100", "--nodes", "1").calls["further"]({"settings": {}})["notes"]
    assert notes[0].startswith("strategy ")
    assert "the fastest of " in notes[0]
    assert any(note.startswith("assumed: global_batch") for note in notes)


# ------------------------------------------------------------------------------------------ the words for other commands


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["auto.yaml"], {}),
        (["auto.yaml", "--set", "workload.global_batch=16"], {"system.nodes": 2}),
        (["--model", "llama3-8b", "--on", "dgx-h100", "--nodes", "1", "--set", "software=nemo"], {"system.nodes": 2}),
        (["--model", "llama3-8b", "--on", "dgx-h100", "--devices", "8", "--task", "decode", "--batch", "64"], {"system.power.tdp": 500.0}),
        (["--from", "run.sh", "--on", "dgx-h100"], {"workload.global_batch": 64}),
        (["mlp.program.json.gz", "--on", "dgx-h100"], {"system.power.tdp": 500.0}),
    ],
)
def test_the_copied_line_and_script_predict_what_the_page_shows(here, capsys, words, settings):
    app = opened(*words)
    shown = app.calls["evaluate"]({"settings": settings})["now"]["step_time"]
    texts = app.calls["texts"]({"settings": settings})
    capsys.readouterr()
    line = shlex.split(texts["set"])
    assert line[0] == "crossflow"
    assert main([*line[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(shown)
    script = texts["python"].replace("print(crossflow.predict(scenario))", "found = crossflow.predict(scenario).step_time")
    held: dict[str, object] = {}
    exec(script, held)
    assert held["found"] == pytest.approx(shown)


# ------------------------------------------------------------------------------------------ studies


def test_the_file_of_a_study_opens_its_results(here, capsys):
    run_study("two.yaml")
    assert opened("two.yaml").title == "two"
    assert opened("results/two/run.json").start()["rows"] == 2
    assert "differs" not in capsys.readouterr().err
    Path("two.yaml").write_text(yaml.safe_dump({**STUDY, "sweep": {"system.technology.logic": ["N7", "N5", "N3"]}}))
    assert results_of_study(Path("two.yaml"))[1].startswith("two.yaml differs from the study")
    Path("two.yaml").write_text(yaml.safe_dump({**STUDY, "scenario": {**STUDY["scenario"], "strategy": "d4-RC-2"}}))
    assert results_of_study(Path("two.yaml"))[1].startswith("two.yaml differs from the study")
    with pytest.raises(CrossflowError, match=r"results holds results of a study in folders .* crossflow explore results/two"):
        kind_of(Path("results"))


# ------------------------------------------------------------------------------------------ traces


@pytest.mark.thorough
def test_a_trace_shows_its_ranks_and_replays_changes():
    app = opened(str(TRACE))
    start = app.start()
    (rank,) = start["first"]["ranks"]
    assert rank["rank"] == 3
    assert sum(rank[f"{part}_s"] for part in start["parts"]) == pytest.approx(rank["step_time_s"])
    assert start["first"]["kernel_kinds"]
    assert start["command"] == f"crossflow trace {TRACE}"
    found = app.calls["replay"]({"what_if": "compute*0.5"})
    graph = app.calls["replay"].__self__._report.graph
    assert found["step_time_s"] == pytest.approx(report_on(graph, what_if="compute*0.5").step_time)
    assert found["step_time_s"] < start["first"]["step_time_s"]
    times = [row["time"] for row in app.calls["usual"]({})]
    assert len(times) >= 5
    assert times == sorted(times)
    assert app.calls["timeline"]({"what_if": ""})["total"] == pytest.approx(start["first"]["step_time_s"], rel=1e-6)
    assert app.calls["advice"]({}) == report_on(graph).advice.to_dict()
    json.dumps(app.offline(), allow_nan=False)


def test_a_timeline_that_crossflow_wrote_is_a_trace(here):
    assert main(["timeline", "auto.yaml", "-o", "step.json.gz", "-q"]) == 0
    app = opened("step.json.gz")
    start = app.start()
    assert app.calls["advice"]({}) is None
    step = evaluated(load("auto.yaml"), {"settings": {}})["now"]["step_time"]
    assert start["first"]["step_time_s"] == pytest.approx(step, rel=1e-6)


def test_changes_that_have_no_meaning_are_refused():
    app = opened(str(TRACE))
    with pytest.raises(CrossflowError, match="unknown word 'computer'; did you mean 'compute'"):
        app.calls["replay"]({"what_if": "computer*0.5"})
    with pytest.raises(CrossflowError, match="expected changes"):
        app.calls["replay"]({"what_if": ["compute*0.5"]})


# ------------------------------------------------------------------------------------------ waiting


@pytest.mark.parametrize(("seconds", "said"), [(0.0, ""), (0.2, "reading ...\n")])
def test_what_takes_long_is_told(capsys, monkeypatch, seconds, said):
    monkeypatch.setattr(progress, "LATER", 0.1)
    with progress.waiting("reading"):
        time.sleep(seconds)
    assert capsys.readouterr().err == said


def test_words_of_the_command_line_name_paths():
    found = parse(["explore", "a.yaml", "--export", "p.html", "--with", "system.nodes=8:16, strategy,strategy"])
    assert isinstance(found, argparse.Namespace)
    assert found.moved == ("system.nodes=8:16", "strategy")


def test_a_page_as_a_file_begins_no_process(here, monkeypatch):
    """It began the one that computes beside a page that is served, which could end in a traceback when the command was done first."""
    begun = []
    monkeypatch.setattr("crossflow.edges.explore.scenario.Helper.call", lambda *words: begun.append(words))
    monkeypatch.setattr("crossflow.edges.explore.scenario._warmed", begun.append)
    app = scenario_app(load({**SMALL, "strategy": "tp8"}))
    assert exported(app, {"points": []})
    assert not begun
    app.opened()
    assert len(begun) == 1
