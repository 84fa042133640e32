"""Runs that are interrupted as a timeline, and what `explain` says would make them better."""

import gzip
import json

import pytest
from test_lasting_runs import SCENARIO, changed, figures

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.lasting import drawn, reliability_gains
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.edges.trace.months import DAY, months_summary, rows_of


@pytest.fixture
def short(tmp_path):
    data = files.replace(SCENARIO, ["run", "tokens"], 1e14, "")
    path = tmp_path / "run.yaml"
    files.write_text(path, files.yaml_text(data))
    return path


@pytest.mark.thorough
def test_draws_take_as_long_as_the_closed_form_in_the_mean():
    scenario = changed()
    found = drawn(scenario, evaluate(scenario), 0, 6)
    assert sum(one.duration for one in found) / 6 == pytest.approx(figures()["time_s"], rel=0.02)
    assert sum(sum(one.interruptions.values()) for one in found) / 6 == pytest.approx(figures()["interruptions"], rel=0.1)


def test_what_a_tenth_less_gains_is_the_scenario_with_a_tenth_less():
    scenario = changed("run.checkpoint", {"interval": "900 s"})
    gains = reliability_gains(scenario, evaluate(scenario))
    fewer = files.replace(SCENARIO, ["run", "checkpoint"], {"interval": "900 s"}, "")
    spares = crossflow.predict(scenario).run["spares"]
    fewer = files.replace(fewer, ["run", "spares"], int(spares), "")
    better = crossflow.from_dict(files.replace(fewer, ["run", "failures", "node", "rate"], "0.018 1/day", ""))
    before, after = crossflow.predict(scenario).run["time_s"], crossflow.predict(better).run["time_s"]
    assert gains["node.rate"] == gains["all.rate"] == pytest.approx(1 - after / before)
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert reliability_gains(changed("run", {"tokens": 1e12}), evaluate(scenario)) == {}


@pytest.mark.thorough
def test_rows_of_a_picture_hold_the_whole_run():
    scenario = changed()
    (found,) = drawn(scenario, evaluate(scenario), 3, spans=True)
    length, rows = rows_of(found)
    assert length % DAY == 0
    assert sum(one.end - one.begin for row in rows for one in row) == pytest.approx(found.duration)
    assert all(length * i <= one.begin < one.end <= length * (i + 1) for i, row in enumerate(rows) for one in row)
    assert months_summary(found, 3)["goodput"] == pytest.approx(found.goodput)


def test_the_command_writes_picture_and_trace(short, tmp_path, capsys):
    main(["timeline", str(short), "--run", "--seed", "2", "-o", str(tmp_path / "a.png"), "-o", str(tmp_path / "a.json.gz"), "--json"])
    told = json.loads(capsys.readouterr().out)
    trace = json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes()))["traceEvents"]
    slices = [event for event in trace if event["ph"] == "X"]
    assert len(slices) == len(told["spans"])
    assert sum(event["dur"] for event in slices) == pytest.approx(told["time_s"] * 1e6)
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--run", "--ranks", "0"], "--ranks is of a step, and --run shows the whole run; leave one of them out"),
        (["--seed", "3"], "--seed is of the failures of a whole run; add --run, or leave it out"),
        (["--run", "--seed", "-1"], "--seed: expected a whole number from 0 to 4294967295, got -1"),
        (["--run", "-o", "folder"], "a whole run is one file"),
    ],
)
def test_options_that_do_not_go_together_are_a_sentence(short, words, sentence, capsys):
    assert main(["timeline", str(short), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_nothing_that_interrupts_is_a_sentence():
    scenario = changed("run", {"tokens": 1e12})
    with pytest.raises(CrossflowError, match="nothing interrupts its run; give"):
        drawn(scenario, evaluate(scenario), 0)
