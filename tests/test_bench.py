"""The project's speed figures: all of them, with units, and the one that does not depend on the machine."""

import functools

import numpy as np
import pytest

from crossflow.__main__ import main
from crossflow.answers.evaluation import evaluate
from crossflow.answers.search.settings import GradientSettings
from crossflow.edges import bench

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def figures():
    """Each of less work than the command's, measured once."""
    once = functools.partial(bench._cpu, repeats=1, warm=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "POINTS", 64)
        patch.setattr(bench, "PRODUCTS", 500)
        patch.setattr(bench, "SAMPLED", 50)
        patch.setattr(bench, "CONVERSATIONS", 20)
        patch.setattr(bench, "GradientSettings", lambda: GradientSettings(starts=2, steps=2))
        patch.setattr(bench, "_cpu", lambda work, **_: once(work))
        patch.setattr(bench, "_apart", functools.cache(bench._apart))  # whose repeats are processes of a second each
        return bench.run()


@pytest.mark.slow
def test_every_figure_has_value_unit_and_meaning(figures):
    units = {"predict_warm": "s", "points_per_second": "1/s", "memory_growth": "B", "scale_65536_over_8": "1", "gemms_100k": "s"}
    units |= {"study_points_per_second": "1/s", "gradient_search": "s"}
    units |= {
        "predict_changed": "s",
        "transformer_warm": "s",
        "transformer_changed": "s",
        "transformer_points": "1/s",
        "plans_per_second": "1/s",
    }
    units |= {"predict_first": "s"}
    units |= {"timeline_64_stages": "s", "events_per_second": "1/s", "strategy_grid": "s", "flows_10k": "s", "replayed_requests": "1/s"}
    assert {name: figure["unit"] for name, figure in figures.items()} == units
    for name, figure in figures.items():
        speed = name not in ("memory_growth", "scale_65536_over_8", "events_per_second")
        assert set(figure) == {"value", "unit", "meaning"} | ({"loops", "calls"} if speed else set())
        assert isinstance(figure["value"], float)
        assert np.isfinite(figure["value"])
        assert len(figure["meaning"].split()) > 3


def test_times_and_rates_are_positive(figures):
    assert all(figures[name]["value"] > 0 for name in ("predict_warm", "points_per_second", "scale_65536_over_8", "gemms_100k"))


def test_figures_are_slower_where_they_take_more_loops_than_recorded(figures, tmp_path, refused, monkeypatch):
    monkeypatch.setattr(bench, "PRODUCTS", 500)
    one = {"gemms_100k": figures["gemms_100k"]}
    assert bench.slower(figures, one, 1e3) == {}
    # Those measured again are warm: on a busy machine the first run took more than a hundred times as long.
    fast = {"gemms_100k": {**one["gemms_100k"], "loops": one["gemms_100k"]["loops"] / 1e4}}
    assert bench.slower(figures, fast, 1.3)["gemms_100k"] > 1.3
    assert bench.slower(figures, {"gone": fast["gemms_100k"]}, 1.3) == {}
    file = tmp_path / "bench.json"
    file.write_text("[1]")
    assert "expected figures of speed" in refused("bench", "--against", str(file))
    file.write_text('{"gemms_100k": {"value": 1.0, "loops": "many"}}')
    assert "expected figures of speed" in refused("bench", "--against", str(file))
    assert "--within says how much slower than --against FILE is allowed" in refused("bench", "--within", "2")
    assert "expected a positive number of times, such as 1.3, got '-1'" in refused("bench", "--within=-1")


def test_figures_are_busier_where_they_make_more_calls_than_recorded(figures, tmp_path, capsys, monkeypatch):
    calls = figures["gemms_100k"]["calls"]
    recorded = {"gemms_100k": {"calls": calls}, "gone": {"calls": 1}, "memory_growth": {"value": 1.0}}
    assert bench.busier(figures, recorded) == {}
    recorded["gemms_100k"]["calls"] = calls // 2
    assert bench.busier(figures, recorded) == {"gemms_100k": pytest.approx(2.0, rel=0.01)}
    monkeypatch.setattr(bench, "run", lambda: figures)
    file = tmp_path / "bench.json"
    file.write_text(f'{{"gemms_100k": {{"calls": {calls // 2}}}}}')
    assert main(["bench", "--against", str(file)]) == 2
    assert f"more function calls than in {file}: gemms 100k 2.0" in capsys.readouterr().err


def test_calls_are_counted_once_each():
    assert bench._calls(lambda: None) == 1
    assert bench._calls(lambda: [abs(one) for one in range(7)]) == bench._calls(lambda: [abs(one) for one in range(4)]) + 3


@pytest.mark.thorough  # what it runs quicker tests run too
def test_65536_devices_cost_what_8_do():
    """Best of some tries: the machine is not ours alone."""
    assert min(bench._scale() for _ in range(3)) < 1.5


def test_the_median_counts_calls_after_the_first():
    calls = []
    assert bench._cpu(lambda: calls.append(1), repeats=5) >= 0
    assert len(calls) == 6


def test_points_are_seeded_and_of_the_asked_number():
    one, two = bench._points(40), bench._points(40)
    for path, values in one.items():
        assert list(values) == list(two[path])
        assert len(values) == 40
        assert len(set(values)) > 1


def test_points_can_be_built_and_differ():
    score = evaluate(bench._case_study(512), bench._points(16))
    assert np.isfinite(score.step_time).all()
    assert len(set(score.step_time)) == 16
