"""Sweeps, fronts, searches and draws from Python; names at hand; what notebooks show of results."""

import ast
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import crossflow
from crossflow.answers.interactive.sweeps import front
from crossflow.base.drawing import html
from crossflow.base.drawing.picture import Picture
from crossflow.base.errors import CrossflowError

LLM = {"system": {"template": "dgx-h100"}, "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": "tp8"}
UNDIRECTED = 'objective \'edp\' is an own figure; say which way: {"edp": "maximise"}, or "minimise"'
CHIP = {"system": "pathfinder", "workload": "lstm-16k", "strategy": "CR-8-d64"}


@pytest.fixture(scope="module")
def llm():
    return crossflow.from_dict(LLM)


@pytest.fixture(scope="module")
def explanation():
    product = {"model": "gemm", "m": 4096, "n": 4096, "k": 4096}
    return crossflow.explain(crossflow.from_dict({"system": "v100-sxm2-32gb", "workload": product, "strategy": "d1"}))


@pytest.fixture(scope="module")
def score(llm):
    values = {"strategy": ["tp8", "tp3", "tp4-dp2"], "system.network.intra.bandwidth": ["450 GB/s", 900e9]}
    return crossflow.sweep(llm, values, figures={"edp": lambda c: c["energy_j"] * c["step_time_s"]})


def test_a_sweep_has_every_combination_once_the_last_path_changing_fastest(llm, score):
    assert score.points["strategy"] == ("tp8", "tp8", "tp3", "tp3", "tp4-dp2", "tp4-dp2")
    assert score.points["system.network.intra.bandwidth"].tolist() == [450e9, 900e9] * 3
    alone = crossflow.evaluate(llm, {"strategy": ["tp4-dp2"], "system.network.intra.bandwidth": [900e9]})
    assert score.step_time[5] == alone.step_time[0]


def test_a_sweep_takes_plain_data_arrays_and_single_values():
    found = crossflow.sweep(LLM, {"workload.global_batch": np.array([8, 16]), "strategy": "tp8"})
    assert found.points == {"workload.global_batch": (8, 16), "strategy": ("tp8", "tp8")}


@pytest.mark.parametrize("values", [{}, {"strategy": []}])
def test_a_sweep_of_nothing_is_refused(llm, values):
    with pytest.raises(CrossflowError, match="no values"):
        crossflow.sweep(llm, values)


def test_a_frame_begins_with_the_swept_values_and_knows_its_units(score):
    pytest.importorskip("pandas")
    frame = score.to_frame()
    assert list(frame.columns[:3]) == ["strategy", "system.network.intra.bandwidth", "step_time_s"]
    assert frame["system.network.intra.bandwidth"].dtype.kind == "f"
    assert frame.attrs["units"]["system.network.intra.bandwidth"] == "B/s"
    assert len(crossflow.front(frame, ["step_time_s"])) == 1


def test_no_point_beats_one_of_a_front(score):
    best = front(score, ["step_time_s", "memory_needed_bytes"])
    assert best.feasible.all()
    for i in range(len(best)):
        others = (score.step_time < best.step_time[i]) & (score.memory_needed < best.memory_needed[i]) & score.feasible
        assert not others.any()


def test_a_front_of_one_objective_is_its_best_point(score):
    assert front(score, {"mfu": "maximise"}).mfu.tolist() == [np.nanmax(score.mfu)]
    assert front(score, lambda c: -c["mfu"]).mfu.tolist() == [np.nanmax(score.mfu)]
    assert front(score, {"edp": "minimise"}).own["edp"].tolist() == [np.nanmin(score.own["edp"])]


@pytest.mark.parametrize(
    ("objectives", "sentence"),
    [
        ("step_tim_s", "no column 'step_tim_s'; did you mean 'step_time_s'?"),
        ("strategy", "strategy holds no numbers; objectives are numeric columns"),
        ({"mfu": "max"}, "objectives: mfu: expected minimise or maximise, got 'max'"),
        (["mfu", "edp"], UNDIRECTED),
    ],
)
def test_wrong_objectives_of_a_front_are_told(score, exactly, objectives, sentence):
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        front(score, objectives)


def test_points_of_a_score_are_taken_with_their_values(score):
    some = score.take(np.array([False, False, True, False, True, False]))
    assert some.points["strategy"] == ("tp3", "tp4-dp2")
    assert some.why(0) == score.why(2)
    assert some.step_time[1] == score.step_time[4]


# ------------------------------------------------------------------------------------------ searches


def test_an_exhaustive_search_finds_the_best_of_the_sweep(llm):
    space = {"strategy": ["tp8", "tp4-dp2", "tp2-dp4"]}
    best = crossflow.optimise(llm, space)
    every = crossflow.sweep(llm, space)
    assert best.row["step_time_s"] == every.step_time[every.feasible].min()
    assert best.prediction.step_time == pytest.approx(best.row["step_time_s"], rel=1e-9)
    assert best.scenario.strategy_text == best.row["strategy"]
    assert best.evaluations == len(best.rows["strategy"])


def test_a_search_minimises_and_bounds_own_figures(llm):
    space = {"strategy": ["tp8", "tp4-dp2", "tp2-dp4"]}
    figures = {"spare": lambda c: c["memory_capacity_bytes"] - c["memory_needed_bytes"]}
    every = crossflow.sweep(llm, space, figures=figures)
    best = crossflow.optimise(llm, space, {"spare": "maximise"}, figures=figures)
    assert best.row["spare"] == every.own["spare"].max()
    bound = float(np.sort(every.own["spare"])[1])
    bounded = crossflow.optimise(llm, space, figures=figures, constraints={"spare": f">= {bound}"})
    assert bounded.row["spare"] >= bound
    assert bounded.row["step_time_s"] == every.step_time[every.own["spare"] >= bound].min()


def test_a_search_does_not_guess_the_direction_of_an_own_figure(llm, exactly):
    with pytest.raises(CrossflowError, match=exactly(UNDIRECTED)):
        crossflow.optimise(llm, {"strategy": ["tp8", "tp4-dp2"]}, "edp", figures={"edp": lambda c: c["energy_j"] * c["step_time_s"]})


@pytest.mark.filterwarnings("error")
def test_own_figures_of_infeasible_points_warn_of_nothing(llm):
    figures = {"odd": lambda c: (c["step_time_s"] - c["step_time_s"]) / c["mfu"]}
    assert np.isnan(crossflow.sweep(llm, {"strategy": ["tp8", "tp3"]}, figures=figures).own["odd"][1])


def test_a_table_without_pandas_says_how_to_install_it(score, monkeypatch, exactly):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        CrossflowError, match=exactly("to_frame needs pandas, which is not installed; run: pip install 'crossflow[frames]'")
    ):
        score.to_frame()


def test_problems_of_a_search_are_told_with_their_places(llm):
    with pytest.raises(CrossflowError, match=r"space\.strategi: 'strategi' is not a path of a scenario; did you mean 'strategy'\?"):
        crossflow.optimise(llm, {"strategi": "legal"})
    with pytest.raises(CrossflowError, match=r"objectives\.step_tim_s: no column 'step_tim_s'"):
        crossflow.optimise(llm, {"strategy": ["tp8"]}, "step_tim_s")


def test_a_search_of_quantities_improves_on_its_start():
    chip = crossflow.from_dict(CHIP)
    best = crossflow.optimise(chip, {"system.budgets.power": {"from": "200 W", "to": "300 W"}}, evaluations=40, starts=2)
    assert best.row["step_time_s"] <= crossflow.predict(chip).step_time
    assert best.feasible


# ------------------------------------------------------------------------------------------ draws


@pytest.fixture(scope="module")
def spread():
    return crossflow.uncertainty(CHIP, {"system.technology.memory": ["HBM3", "HBM4"]}, samples=60, seed=3)


def test_intervals_hold_their_median_and_the_draws_are_those_of_a_study(spread, tmp_path):
    assert [row["system.technology.memory"] for row in spread.intervals] == ["HBM3", "HBM4"]
    assert all(row["low"] <= row["median"] <= row["high"] for row in spread.intervals)
    study = {
        "name": "s",
        "scenario": CHIP,
        "sweep": {"system.technology.memory": ["HBM3", "HBM4"]},
        "columns": ["step_time_s"],
        "uncertainty": {"samples": 60, "seed": 3},
    }
    found = crossflow.run_study(study, out=tmp_path / "out").to_dict()
    assert found["intervals"] == [dict(row) for row in spread.intervals]


def test_a_study_of_plain_data_tells_its_problems(tmp_path):
    with pytest.raises(crossflow.SpecError, match="unknown key 'swep'; did you mean 'sweep'"):
        crossflow.run_study({"name": "s", "scenario": CHIP, "swep": {}}, out=tmp_path)


# ------------------------------------------------------------------------------------------ what is shown


def shown(found):
    page = found._repr_html_()
    ElementTree.fromstring(f"<div>{page.replace('&nbsp;', ' ')}</div>")
    return page


def test_what_notebooks_show_is_well_formed_and_holds_the_figures(llm, score, spread, explanation):
    prediction = crossflow.predict(llm)
    assert f"{prediction.step_time:.4g} s" in shown(prediction)
    assert "tp3 needs 3 devices" in shown(score)
    assert "step_time_s" in shown(spread)
    assert "llama3-8b" in shown(llm)
    assert "llama3-70b" in shown(crossflow.models())
    assert "device_capacity" in shown(crossflow.show("HBM3"))
    assert "elasticity" in shown(explanation)


def test_what_a_name_does_to_html_is_text():
    assert html.table(["<b>"], [["<script>"]]).count("<script>") == 0


def test_a_bar_is_as_wide_as_its_parts():
    svg = html.stacked_bar({"a": 1.0, "b": 3.0}, {"a": "1 s", "b": "3 s"})
    found = ElementTree.fromstring(svg.replace("&nbsp;", " ")).iter("{http://www.w3.org/2000/svg}rect")
    widths = [float(one.attrib["width"]) for one in found][:2]
    assert widths == [html.WIDTH / 4, 3 * html.WIDTH / 4]


@pytest.mark.slow
def test_pictures_are_drawn_of_results(llm, score, spread, explanation, tmp_path):
    pictures = [score.plot(), score.plot("step_time_s", "edp"), crossflow.predict(llm).plot(), spread.plot(), explanation.plot()]
    assert all(isinstance(picture, Picture) for picture in pictures)
    assert pictures[0]._repr_png_()[:4] == b"\x89PNG"
    assert [path.name for path in pictures[2].save(tmp_path / "step.png")] == ["step.png", "step.svg"]
    with pytest.raises(CrossflowError, match="no column 'step_tim_s'"):
        score.plot(y="step_tim_s")


def test_a_picture_has_words_at_its_axes_and_joins_no_names_without_an_order(score):
    """Strategies have no order; bandwidths do. Where `x` is a path, the other one has colours of its own."""
    for x, label, other, joined in (
        ("strategy", "Strategy", "Bandwidth", False), ("system.network.intra.bandwidth", "Bandwidth [GB/s]", "Strategy", True),
    ):  # fmt: skip
        figure = score.plot(x, "step_time_s").figure
        (axis,) = figure.axes
        assert (axis.get_xlabel(), axis.get_ylabel()) == (label, "Step time [s]")
        assert other in [text.get_text() for one in figure.legends for text in one.get_texts()]
        assert any(line.get_linestyle() == "-" for line in axis.lines) == joined


# ------------------------------------------------------------------------------------------ names


def test_names_at_hand_are_those_that_files_take():
    assert "dgx-h100" in crossflow.templates()
    assert "standard" in crossflow.techlibs()
    assert set(crossflow.models()) >= {"transformer", "llama3-8b"}
    assert "technology-scaling" in crossflow.studies()


def test_every_public_name_is_there_for_type_checkers_too():
    """Names come when first used, which type checkers do not see; they read the same names as imports."""
    tree = ast.parse(Path(crossflow.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == {name: f"crossflow.{module}" for name, module in crossflow._PUBLIC.items() if ":" not in module}
    assert {name for name, module in crossflow._PUBLIC.items() if ":" in module} == {"study", "search", "optimize"}
    assert all(getattr(crossflow, name).__doc__ for name in crossflow._PUBLIC)


def test_what_changes_together_has_a_name():
    scenario = crossflow.load(model="llama3-8b", on="dgx-h100", tp=8, batch=64)
    hardware = {
        "H100": {"system.template": "dgx-h100", "system.operation": {"price": "2 USD/hour"}},
        "B200": {"system.template": "dgx-b200", "system.operation": {"price": "4 USD/hour"}},
    }
    score = crossflow.sweep(scenario, {"hardware": hardware, "workload.global_batch": [64, 128]})
    assert list(score.points["hardware"]) == ["H100", "H100", "B200", "B200"]
    assert list(score["workload.global_batch"]) == [64, 128, 64, 128]
    alone = crossflow.predict(scenario, {"system.template": "dgx-b200", "system.operation": {"price": "4 USD/hour"}})
    assert score["usd_per_million_tokens"][2] == pytest.approx(alone.usd_per_million_tokens)
    with pytest.raises(CrossflowError, match=re.escape("sweep: hw: B says nothing of system.nodes, which other values of hw set")):
        crossflow.sweep(scenario, {"hw": {"A": {"system.nodes": 1}, "B": {}}})
