"""Every kind of plot as files: drawn by its name, the same bytes each time, and words where there is nothing to show."""

import numpy as np
import pytest
from pydantic import TypeAdapter
from sampled import every

from crossflow.answers.explanation.uncertainty import Interval
from crossflow.answers.study.plots import draw
from crossflow.answers.study.plots.spec import Plot
from crossflow.answers.study.plots.view import Convergence, Drawn, View
from crossflow.base.drawing.canvas import bound_marks, coloured_lines, grey_mark, legend_groups, new_figure

LOGIC = "system.technology.logic"
KINDS = {
    "lines": {"x": LOGIC},
    "boxes": {"x": LOGIC, "y": "step_time_s", "scale": "log"},
    "convergence": {},
    "pareto": {"x": "step_time_s", "y": "cost_usd", "colour": "cost_usd"},
    "parallel": {},
    "heatmap": {"x": "dp", "y": "kernel"},
    "breakdown": {"x": "search", "panels": LOGIC},
    "importance": {},
    "intervals": {"x": LOGIC},
}
WORDS = {
    "lines": ["Logic", "Step time [s]", "Bound by", "l1"],
    "boxes": ["Step time [s]", "N7", "32"],
    "convergence": ["tpe: 500 ms", "Designs evaluated"],
    "pareto": ["Cost [thousand USD]", "not feasible", "front"],
    "parallel": ["dashed: not feasible", "d512", "logic"],
    "heatmap": ["RC-2-4", "no feasible design", "Data parallel degree"],
    "breakdown": ["compute", "Step time [ms]", "pale: does not fit"],
    "importance": ["link.latency", "Rank correlation with step time", "raises it"],
    "intervals": ["median and interval of the draws", "no upper end"],
}


def study(n=64):
    rng = np.random.default_rng(0)
    names = {LOGIC: rng.choice(["N7", "N5"], n), "strategy": rng.choice(["RC-2-4-d8", "CR-8-d64", "d512"], n), "bound_by": ["l1"] * n}
    columns = {name: np.array(values, dtype=object) for name, values in names.items()}
    columns["search"] = np.array(["tpe"] * n, dtype=object)
    columns |= {"step_time_s": rng.uniform(1, 2, n), "cost_usd": rng.uniform(1e3, 2e3, n)}
    columns["feasible"] = columns["strategy"] != "CR-8-d64"
    columns[LOGIC][: n // 2], columns[LOGIC][n // 2 :] = "N7", "N5"
    best = {"search": "tpe", "step_time_s": 1.5, "breakdown_s.compute": 0.5, "bound_by": "l1"}
    steps = Convergence(search="tpe", point="N7", evaluations=(1, 10), best=(1.0, 0.5), total=100)
    spread = Interval(low=0.5, median=1.0, mean=1.0, high=np.inf)
    return View(
        columns=columns,
        values={LOGIC: ["N7", "N5"]},
        searches=("tpe",),
        space=(LOGIC, "strategy"),
        objectives={"step_time_s": False},
        best=({**best, LOGIC: "N7", "feasible": True}, {**best, LOGIC: "N5", "feasible": False}),
        convergence=(steps,),
        drawn=(
            Drawn(point={LOGIC: "N7"}, column="step_time_s", interval=spread, importance={"a.link.latency": 0.5, "a.memory.latency": -0.2}),
        ),
    )


def plot(kind):
    return TypeAdapter(Plot).validate_python({"name": f"p-{kind}", "kind": kind, "title": "A title", **KINDS[kind]})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_as_png_and_svg(kind, tmp_path):
    png, svg = draw(plot(kind), study(), tmp_path)
    assert (png.name, svg.name) == (f"p-{kind}.png", f"p-{kind}.svg")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    text = svg.read_text()
    assert text.startswith("<?xml")
    for words in ("A title", *WORDS[kind]):
        assert f"<!-- {words}" in text, words
    if kind in every(3, list(KINDS)):
        again = draw(plot(kind), study(), tmp_path / "again")
        assert [path.read_bytes() for path in again] == [png.read_bytes(), svg.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_without_values_says_so(kind, tmp_path):
    empty = View(columns={name: column[:0] for name, column in study().columns.items()}, values={LOGIC: ["N7"]}, searches=("tpe",))
    assert "Nothing to show: " in draw(plot(kind), empty, tmp_path)[1].read_text()


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lines", "pareto", "heatmap", "parallel", "breakdown"])
def test_a_study_where_nothing_is_feasible_is_drawn(kind, tmp_path):
    full = study()
    infeasible = View(
        columns={**full.columns, "feasible": np.zeros(64, dtype=bool)},
        values=full.values,
        searches=full.searches,
        space=full.space,
        objectives=full.objectives,
        best=tuple({**row, "feasible": False} for row in full.best),
    )
    assert "Nothing to show" not in draw(plot(kind), infeasible, tmp_path)[1].read_text()


def test_a_long_entry_of_a_legend_stays_within_the_figure():
    """Three groups on a narrow figure; every word stands between its edges."""
    figure = new_figure(5.0, 3.0)
    names = ["switch", "torus2d", "fully-connected"]
    together = [grey_mark(" = ".join(names), marker="")]
    legend_groups(figure, {"Topology": coloured_lines(names), "Bound by": bound_marks(["compute"]), "Marks": together})
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0.0
    assert box.x1 <= figure.bbox.width
    assert "switch = torus2d = fully-connected" in " ".join(text.get_text() for text in legend.get_texts())
