"""Plots of lines: what they show, without drawing; and the files, which are a PNG and an SVG of one picture."""

import itertools
import struct
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from crossflow.answers.study.plots import draw
from crossflow.answers.study.plots.lines import GAP, LINE, Panel, Series, _factors_at, _legend, beside, line_data, near, together
from crossflow.answers.study.plots.spec import LinePlot
from crossflow.answers.study.plots.view import View
from crossflow.base.drawing.canvas import new_figure, panels
from crossflow.base.drawing.palette import COLOURS, GREY, RESOURCES, colour_of, colours_of, resource

LOGIC, MEMORY, LINK = (f"system.technology.{role}" for role in ("logic", "memory", "inter_link"))
VALUES = {LINK: ["NDR", "XDR"], MEMORY: ["HBM2", "HBM4"], LOGIC: ["N7", "N5", "N3"]}
SVG = "{http://www.w3.org/2000/svg}"


def row(link, memory, logic):
    slow = 1.0 if memory == "HBM4" else 2.0
    bound = "memory" if memory == "HBM2" else "l2"
    return {
        LINK: link, MEMORY: memory, LOGIC: logic, "step_time_s": slow + 0.1 * int(logic[1:]) + (link == "NDR"),
        "mfu": np.nan if logic == "N5" else 0.5, "bound_by": bound, "feasible": memory == "HBM4",
    }  # fmt: skip


ROWS = [row(link, memory, logic) for link in VALUES[LINK] for memory in VALUES[MEMORY] for logic in VALUES[LOGIC]]


def view(rows, values=VALUES, **rest):
    """A study of some rows, its names in arrays of objects and its numbers in arrays of floats as a run has them."""
    columns = {}
    for name in rows[0]:
        column = [row[name] for row in rows]
        columns[name] = np.array(column, dtype=None if isinstance(column[0], float | bool) else object)
    return View(columns=columns, values=values, **rest)


def plot(**fields):
    return LinePlot(**{"name": "p", "x": LOGIC, "series": MEMORY, "panels": LINK, **fields})


def shown(**fields):
    return line_data(view(ROWS), plot(**fields))


def test_every_row_is_a_point_of_its_line_and_panel():
    data = shown()
    assert [panel.name for panel in data.panels] == ["NDR", "XDR"]
    assert [[series.name for series in panel.series] for panel in data.panels] == [["HBM2", "HBM4"]] * 2
    assert data.x.names == ["N7", "N5", "N3"]
    for panel in data.panels:
        for series in panel.series:
            assert series.x == [0, 1, 2]
            assert series.y == [row(panel.name, series.name, tick)["step_time_s"] for tick in data.x.names]


def test_lines_stand_at_the_first_value_or_at_that_of_where():
    first, other = (shown(panels=None, where=where) for where in ({}, {LINK: "XDR"}))
    for data, link in ((first, "NDR"), (other, "XDR")):
        assert [series.y for series in data.panels[0].series] == [
            [row(link, memory, tick)["step_time_s"] for tick in VALUES[LOGIC]] for memory in VALUES[MEMORY]
        ]


def test_points_carry_what_bounds_them_and_whether_they_fit():
    old, new = shown().panels[0].series
    assert (old.bound, old.feasible) == (["memory"] * 3, [False] * 3)
    assert (new.bound, new.feasible) == (["l2"] * 3, [True] * 3)


def test_paths_that_a_plot_does_not_name_stay_at_their_first_value():
    (panel,) = shown(panels=None, series=None).panels
    assert (panel.name, [series.name for series in panel.series]) == ("", [""])
    assert panel.series[0].y == [row("NDR", "HBM2", tick)["step_time_s"] for tick in VALUES[LOGIC]]


def test_the_order_of_rows_does_not_matter_to_positions():
    assert line_data(view(ROWS[::-1]), plot()) == shown()


def test_points_without_a_value_are_left_out():
    series = shown(y="mfu").panels[0].series[0]
    assert (series.x, series.y) == ([0, 2], [0.5, 0.5])


def test_labels_take_the_place_of_values():
    data = shown(labels={"N7": "7 nm", "HBM2": "old"})
    assert data.x.names == ["7 nm", "N5", "N3"]
    assert [series.name for series in data.panels[0].series] == ["old", "HBM4"]


@pytest.mark.parametrize(
    ("y", "label"), [("step_time_s", "Step time [s]"), ("power_w", "Power [W]"), ("flops", "Operations of a step [flop]")]
)
def test_axes_have_labels_with_units(y, label):
    data = shown(y=y)
    assert (data.x.label, data.y.label) == ("Logic", label)
    named = shown(x_label="Node", y_label="t")
    assert (named.x.label, named.y.label) == ("Node", "t")


def test_small_numbers_are_written_in_a_smaller_unit():
    data = line_data(view([{**row, "step_time_s": row["step_time_s"] * 1e-3} for row in ROWS]), plot())
    assert (data.y.label, data.y.factor) == ("Step time [ms]", 1e-3)
    assert data.panels[0].series[0].y[0] == pytest.approx(3.7e-3)  # data stay in the SI unit


def test_numbers_stand_where_they_are_on_a_real_axis():
    path = "system.budgets.area.compute"
    rows = [{path: x, "step_time_s": x, "bound_by": "l2", "feasible": True} for x in (0.1, 0.3)]
    data = line_data(view(rows, {path: [0.3, 0.1]}), LinePlot(name="p", x=path))
    assert (data.x.real, data.x.log, data.x.names) == (True, False, ["0.3", "0.1"])
    assert (data.panels[0].series[0].x, data.panels[0].series[0].y) == ([0.1, 0.3], [0.1, 0.3])


def test_quantities_in_one_unit_are_numbers_and_wide_ones_logarithmic():
    rows = [
        {"system.budgets.power": x, "step_time_s": 1.0, "bound_by": "l2", "feasible": True} for x in ("300 W", "10 kW", "40 W", "2000 W")
    ]
    axis = {
        count: line_data(view(rows, {"system.budgets.power": values}), LinePlot(name="p", x="system.budgets.power")).x
        for count, values in enumerate((["300 W", "10 kW"], ["300 W", "40 W"], ["2000 W", "40 W"]))
    }
    assert (axis[0].real, axis[0].names, axis[0].label) == (False, ["300 W", "10 kW"], "Power")
    assert (axis[1].real, axis[1].log, axis[1].places, axis[1].label) == (True, False, [300.0, 40.0], "Power [W]")
    assert axis[2].log


def test_lines_of_a_search_study_run_over_its_best_designs():
    rows = [{**row, "search": search} for row in ROWS[:3] for search in ("tpe", "random")]
    best = [{LOGIC: "N5", "search": "random", "step_time_s": 0.25, "bound_by": "l1", "feasible": True}]
    best.append({LOGIC: "N3", "search": "tpe", "step_time_s": 0.5, "bound_by": "l1", "feasible": True})
    searched = view(rows, {LOGIC: VALUES[LOGIC]}, searches=("tpe", "random"), best=tuple(best))
    (panel,) = line_data(searched, LinePlot(name="p", x=LOGIC, series="search")).panels
    assert [(series.name, series.x, series.y) for series in panel.series] == [("tpe", [2.0], [0.5]), ("random", [1.0], [0.25])]
    over = line_data(searched, LinePlot(name="p", x="search", panels=LOGIC))
    assert (over.x.names, over.x.label, [p.series[0].y for p in over.panels]) == (["tpe", "random"], "Search", [[], [0.25], [0.5]])


def test_colours_and_markers_tell_all_apart():
    assert len(set(COLOURS)) == len(COLOURS)
    assert len({look.marker for look in RESOURCES.values()}) == len({look.colour for look in RESOURCES.values()}) == len(RESOURCES)


def test_a_resource_has_one_colour_whatever_stands_beside_it():
    network = RESOURCES["network"].colour
    assert resource("exposed_communication") == RESOURCES["network"]
    assert colours_of(["compute", "network"])[1] == colours_of(["weights", "exposed communication", "l2"])[1] == network
    assert network not in colours_of(["network", "weights", "activations"])[1:]


def coinciding(**rest):
    rows = [{**row("NDR", "HBM2", tick), MEMORY: memory} for memory in ("HBM2", "HBM4") for tick in VALUES[LOGIC]]
    return line_data(view(rows, {MEMORY: ["HBM2", "HBM4"], LOGIC: VALUES[LOGIC]}), plot(panels=None, **rest))


def test_lines_that_coincide_are_named_and_their_marks_stand_beside_one_another():
    (panel,) = coinciding().panels
    assert together(panel) == [["HBM2", "HBM4"]]
    assert beside(panel, 0.0, 4.0, log=False) == [[-GAP / 2] * 3, [GAP / 2] * 3]
    assert together(shown().panels[0]) == []


def test_a_wide_axis_is_logarithmic_unless_the_study_says_otherwise():
    wide = [{**row, "step_time_s": 20.0 if row["bound_by"] == "l2" else 1.0} for row in ROWS]
    assert [line_data(view(wide), plot(scale=scale)).y.log for scale in (None, "linear", "log")] == [True, False, True]
    assert [shown(scale=scale).y.log for scale in (None, "log")] == [False, True]


@pytest.mark.cases(1)
@pytest.mark.parametrize("over", ["line", "series", "first"])
def test_speedups_are_over_what_the_study_asks(over):
    second = shown(speedup=over).panels[0].series[1]
    base = {"line": second.y, "series": shown().panels[0].series[0].y, "first": [shown().panels[0].series[0].y[0]] * 3}[over]
    (said,) = _legend(shown(speedup=over), shown(speedup=over).panels[0].series)["Marks"][-1:]
    assert said.get_label() == "×: times better than " + {"line": "the first point of its line", "series": "the first line there"}.get(
        over, "the first point"
    )
    assert second.factors == pytest.approx([(base[0] if over == "line" else b) / y for b, y in zip(base, second.y, strict=True)])


# ------------------------------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw(plot(title="A title", labels={"HBM2": "old memory"}), view(ROWS), tmp_path_factory.mktemp("plots"))


@pytest.mark.thorough
@pytest.mark.slow
def test_the_png_is_one_of_a_readable_size(drawn):
    content = drawn[0].read_bytes()
    assert drawn[0].name == "p.png"
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width == 1320  # two panels at 150 dots an inch
    assert 600 < height < 800
    assert content[-8:-4] == b"IEND"


@pytest.mark.slow
def test_the_svg_is_xml_without_a_date(drawn):
    root = ElementTree.parse(drawn[1]).getroot()
    assert (drawn[1].name, root.tag) == ("p.svg", f"{SVG}svg")
    assert float(root.get("viewBox").split()[2]) == pytest.approx(72 * 8.8)
    assert "date" not in drawn[1].read_text().lower().replace("update", "")


def test_the_svg_names_its_texts(drawn):
    text = drawn[1].read_text()
    for words in ("A title", "Memory", "old memory", "Bound by", "l2", "hollow: does not fit", "Step time [s]", "N7"):
        assert words in text, words


@pytest.mark.slow
def test_hollow_markers_only_where_something_does_not_fit(tmp_path):
    fits = view([{**row, "feasible": True} for row in ROWS])
    assert "hollow" not in draw(plot(panels=None), fits, tmp_path)[1].read_text()


def test_a_plot_with_nothing_to_show_says_so(tmp_path):
    nothing = view([{**row, "step_time_s": np.nan} for row in ROWS])
    assert line_data(nothing, plot()).panels[0].series[0].x == []
    assert "Nothing to show: no point has a finite value (Step time [s])" in draw(plot(), nothing, tmp_path)[1].read_text()


@pytest.mark.slow
def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "mine"}):
        draw(plot(panels=None, series=None), view(ROWS), tmp_path)
        assert mpl.rcParams["svg.hashsalt"] == "mine"


@pytest.mark.parametrize("width", [3.6, 5.2, 12.0])
@pytest.mark.parametrize("title", ["THROUGHPUT OVER THE BATCH, GPT-145B ON 128 A100 (8M16P1D)", "W" * 40, "Step time", "a word " * 40])
def test_a_title_stays_inside_its_figure(title, width):
    figure = new_figure(width, 4.0, title)
    box = figure._suptitle.get_window_extent()
    assert 0 < box.width < 0.98 * figure.dpi * width


def factors_of(*, second):
    """Words, colours and heights of the speed-ups of two lines whose points nearly coincide."""
    figure, (axis,) = panels(["one"], "two lines")
    axis.set_ylim(0.0, 10.0)
    series = [Series("HBM3", [0, 1], [9.0, 5.0], [], [], [1.0, 1.8]), Series("HBM4", [0, 1], [8.9, 5.1], [], [], [1.0, second])]
    figure.canvas.draw()
    return [(label.words, label.colour, label.rise) for label in _factors_at(axis, Panel("one", series), [(0, 1), (1, 1)])]


def test_speed_ups_of_points_that_coincide_are_a_range_only_where_they_are_alike():
    """Lines that begin elsewhere may meet: 1.8 and 3.2 times are no range of one thing."""
    assert factors_of(second=1.82) == [("1.8–1.82×", GREY, 0.0)]
    assert factors_of(second=3.2) == [("1.8×", colour_of(0), 0.0), ("3.2×", colour_of(1), LINE)]


def test_words_that_are_piled_up_take_the_room_of_all_of_them():
    """Three marks: the second is near the first, the third is so only of the pile of both."""
    marks = [(0.0, 0, 0), (0.04, 1, 0), (0.11, 2, 0)]
    assert [len(group) for group in near(marks, 0.055)] == [2, 1]
    assert [len(group) for group in near(marks, 0.055, piled=True)] == [3]


@pytest.mark.parametrize("width", [2.0, 2.9])
@pytest.mark.parametrize("start", [1.0, 7100.0, 2.2e-6])
@pytest.mark.parametrize("spread", [1.05, 1.5, 2.1, 4.3, 6.0, 8.6, 17.0, 50.0, 99.0, 6700.0, 1e8])
def test_labels_of_a_logarithmic_axis_do_not_touch(width, start, spread):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from crossflow.base.drawing.canvas import Scale, number_axis

    figure = Figure(figsize=(width + 1.0, 2.5), dpi=100)
    axes = figure.add_axes((0.2, 0.2, width / (width + 1.0), 0.7))
    axes.set_xlim(start, start * spread)
    number_axis(axes.xaxis, Scale("Time [s]", log=True))
    FigureCanvasAgg(figure).draw()
    pairs = zip(axes.xaxis.get_majorticklabels(), axes.xaxis.get_majorticklocs(), strict=True)
    boxes = sorted((label.get_window_extent() for label, at in pairs if start <= at <= start * spread), key=lambda box: box.x0)
    assert len(boxes) >= 2
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
