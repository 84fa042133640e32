"""Runs that are interrupted as a timeline, and what `explain` says would make them better."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from test_lasting_runs import SCENARIO, changed, figures

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.lasting import drawn, reliability_gains
from crossflow.base import files
from crossflow.base.drawing.canvas import new_figure
from crossflow.base.errors import CrossflowError
from crossflow.edges.trace.months import DAY, draw_spans, months_summary, rows_of, text_months, write_months
from crossflow.engine.lasting.events import RunHistory, RunSpan
from crossflow.engine.lasting.record import KINDS_OF_TIME


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


def by_hand(days=(3.0, 1.0, 1.0, 45.0)):
    """Days that are useful, that a failure of a node loses, that a restart takes, and that three of four replicas are useful."""
    kinds, begin, spans = ("useful", "lost_work", "restart", "useful"), 0.0, []
    for kind, length in zip(kinds, days, strict=True):
        spans.append(RunSpan(begin=begin, end=begin + length * DAY, kind=kind, cause="node" * (kind != "useful")))
        begin = spans[-1].end
    spans[-1] = replace(spans[-1], speed=0.75)
    useful = spans[0].end + 0.75 * days[3] * DAY
    times = dict.fromkeys(KINDS_OF_TIME, 0.0) | {"useful": useful, "lost_work": days[1] * DAY, "restart": days[2] * DAY}
    return RunHistory(duration=begin, times=times | {"shrunk": 0.25 * days[3] * DAY}, interruptions={"node": 1}, spans=tuple(spans))


def test_rows_are_the_least_whole_days_that_leave_no_more_rows_than_asked():
    """50 days in 24 rows at most are rows of 3 days, the last of them of 2; spans are cut where rows end."""
    length, rows = rows_of(by_hand())
    assert (length, len(rows)) == (3 * DAY, 17)
    cut = [[(one.kind, one.begin / DAY, one.end / DAY) for one in row] for row in rows]
    assert cut[0] == [("useful", 0, 3)]
    assert cut[1] == [("lost_work", 3, 4), ("restart", 4, 5), ("useful", 5, 6)]
    assert cut[-1] == [("useful", 48, 50)]
    assert {one.speed for one in rows[2]} == {0.75}
    assert rows_of(by_hand(), most=50)[0] == DAY
    assert len(rows_of(by_hand(), most=10)[1]) == 10
    assert rows_of(by_hand((0.5, 0.1, 0.1, 0.1)))[0] == DAY


def test_a_mark_is_what_takes_a_tenth_of_its_time_beside_useful_work():
    """Twenty marks of a row of a day, 72 minutes each: a loss of 8 minutes is shown, one of 7 is not."""
    for minutes, mark in ((8, "×"), (7, "█")):
        lost = minutes / 1440
        lines = text_months(by_hand((0.5, lost, 0.0, 0.25)), 34).renderables
        assert "a row is 1 days" in lines[0].plain
        assert lines[1].plain == f"day     0  {'█' * 10}{mark}{'█' * 5}"
    told = text_months(by_hand(), 40).renderables
    assert told[2].plain.startswith("day     3  ")
    assert told[-1].plain == "█ computing, saves among it 73.5 %  × work that is lost 2.0 %  ▲ restart 2.0 %  - shrunk 22.5 %"
    every = text_months(replace(by_hand(), times=dict.fromkeys(KINDS_OF_TIME, DAY)), 40).renderables[-1].plain
    assert len({words[0] for words in every.split("  ")}) == len(KINDS_OF_TIME)


def test_slices_of_a_trace_say_what_each_span_is(tmp_path):
    write_months(by_hand(), "run", tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    threads = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert len(threads) == len(KINDS_OF_TIME)
    slices = [one for one in events if one["ph"] == "X"]
    assert [one["name"] for one in slices] == ["computing, saves among it", "node", "node", "computing, saves among it"]
    assert [threads[one["tid"]] for one in slices] == [
        "computing, saves among it",
        "work that is lost",
        "restart",
        "computing, saves among it",
    ]
    assert [(one["ts"], one["dur"]) for one in slices][1:3] == [(3e6 * DAY, 1e6 * DAY), (4e6 * DAY, 1e6 * DAY)]
    assert [one["args"] for one in slices] == [
        {"kind": "useful"},
        {"kind": "lost_work", "cause": "node"},
        {"kind": "restart", "cause": "node"},
        {"kind": "useful", "speed": 0.75},
    ]


def test_bars_of_a_picture_lie_where_their_spans_do():
    """Rows from the top, each from its own begin in days; each kind that is there is in the legend once."""
    axis = new_figure(4.0, 3.0, "run").subplots()
    length, rows = rows_of(by_hand())
    draw_spans(axis, [(row * length, spans) for row, spans in enumerate(rows)], {kind: kind for kind in KINDS_OF_TIME}, DAY)
    boxes = {}
    for bars in axis.collections:
        boxes.setdefault(tuple(bars.get_facecolor()[0]), []).extend(path.get_extents().bounds for path in bars.get_paths())
    assert axis.get_legend_handles_labels()[1] == ["useful", "lost_work", "restart"]
    useful, lost, restart = boxes.values()
    assert np.array(lost) == pytest.approx(np.array([(0.0, 0.6, 1.0, 0.8)]))
    assert np.array(restart) == pytest.approx(np.array([(1.0, 0.6, 1.0, 0.8)]))
    assert np.array(useful)[[0, 1, -1]] == pytest.approx(np.array([(0, -0.4, 3, 0.8), (2, 0.6, 1, 0.8), (0, 15.6, 2, 0.8)]))


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


def test_a_rate_can_be_set_where_failures_are_named():
    data = {"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8", "run": {"tokens": 1e11, "failures": "llama3-h100"}}
    named = crossflow.predict(data, "run.failures.gpu.rate=9 1/year")
    whole = crossflow.predict({**data, "run": {"tokens": 1e11, "failures": {"like": "llama3-h100", "gpu": {"rate": "9 1/year"}}}})
    assert named.run == whole.run
    assert named.run != crossflow.predict(data).run


def test_a_run_of_more_interruptions_than_can_be_shown_is_not_drawn():
    scenario = changed("run.tokens", 1e18)
    score = evaluate(scenario)
    assert score.run["interruptions"][0] > 200_000
    with pytest.raises(CrossflowError, match=r"a draw has at most 200,000 interruptions, and this run about .*; draw a shorter run"):
        drawn(scenario, score, 0)
