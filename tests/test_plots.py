"""Plots: what they show, without drawing; and the files, which are a PNG and an SVG of one picture."""

import struct
import xml.etree.ElementTree as ElementTree

import pytest

from crossflow.study.plots import COLOURS, MARKERS, draw, plot_data
from crossflow.study.spec import LinePlot

LOGIC, MEMORY, LINK = (f"system.technology.{role}" for role in ("logic", "memory", "inter_link"))
VALUES = {LINK: ["NDR", "XDR"], MEMORY: ["HBM2", "HBM4"], LOGIC: ["N7", "N5", "N3"]}
SVG = "{http://www.w3.org/2000/svg}"


def row(link, memory, logic):
    slow = 1.0 if memory == "HBM4" else 2.0
    bound = "memory" if memory == "HBM2" else "l2"
    return {
        LINK: link, MEMORY: memory, LOGIC: logic, "step_time_s": slow + 0.1 * int(logic[1:]) + (link == "NDR"),
        "mfu": None if logic == "N5" else 0.5, "bound_by": bound, "feasible": memory == "HBM4",
    }  # fmt: skip


ROWS = [row(link, memory, logic) for link in VALUES[LINK] for memory in VALUES[MEMORY] for logic in VALUES[LOGIC]]


def shown(**plot):
    return plot_data(ROWS, LinePlot(**{"name": "p", "x": LOGIC, "series": MEMORY, "panels": LINK, **plot}), VALUES)


def test_every_row_is_a_point_of_its_line_and_panel():
    data = shown()
    assert [panel.name for panel in data.panels] == ["NDR", "XDR"]
    assert [[series.name for series in panel.series] for panel in data.panels] == [["HBM2", "HBM4"]] * 2
    assert data.ticks == ["N7", "N5", "N3"]
    for panel in data.panels:
        for series in panel.series:
            assert series.x == [0, 1, 2]
            assert series.y == [row(panel.name, series.name, tick)["step_time_s"] for tick in data.ticks]


def test_points_carry_what_bounds_them_and_whether_they_fit():
    old, new = shown().panels[0].series
    assert (old.bound, old.feasible) == (["memory"] * 3, [False] * 3)
    assert (new.bound, new.feasible) == (["l2"] * 3, [True] * 3)


def test_paths_that_a_plot_does_not_name_stay_at_their_first_value():
    (panel,) = shown(panels=None, series=None).panels
    assert (panel.name, [series.name for series in panel.series]) == ("", [""])
    assert panel.series[0].y == [row("NDR", "HBM2", tick)["step_time_s"] for tick in VALUES[LOGIC]]


def test_the_order_of_rows_does_not_matter_to_positions():
    turned = plot_data(ROWS[::-1], LinePlot(name="p", x=LOGIC, series=MEMORY, panels=LINK), VALUES)
    for some, other in zip(turned.panels, shown().panels, strict=True):
        assert [sorted(zip(s.x, s.y, strict=True)) for s in some.series] == [sorted(zip(s.x, s.y, strict=True)) for s in other.series]


def test_points_without_a_value_are_left_out():
    series = shown(y="mfu").panels[0].series[0]
    assert (series.x, series.y) == ([0, 2], [0.5, 0.5])


def test_labels_take_the_place_of_values():
    data = shown(labels={"N7": "7 nm", "HBM2": "old"})
    assert data.ticks == ["7 nm", "N5", "N3"]
    assert [series.name for series in data.panels[0].series] == ["old", "HBM4"]


@pytest.mark.parametrize(("y", "label"), [("step_time_s", "Step time [s]"), ("power_w", "Power [W]"), ("flops", "flops")])
def test_axes_have_labels_with_units(y, label):
    data = shown(y=y)
    assert (data.x_label, data.y_label) == ("logic", label)
    assert (shown(x_label="Node", y_label="t").x_label, shown(x_label="Node", y_label="t").y_label) == ("Node", "t")


def test_values_that_are_numbers_are_ticks_in_their_order():
    values = {"system.budgets.area.compute": [0.3, 0.1]}
    rows = [{"system.budgets.area.compute": x, "step_time_s": x, "bound_by": "l2", "feasible": True} for x in (0.1, 0.3)]
    data = plot_data(rows, LinePlot(name="p", x="system.budgets.area.compute"), values)
    assert data.ticks == ["0.3", "0.1"]
    assert (data.panels[0].series[0].x, data.panels[0].series[0].y) == ([1, 0], [0.1, 0.3])


def test_colours_and_markers_tell_all_apart():
    assert len(set(COLOURS)) == len(COLOURS)
    assert len(set(MARKERS.values())) == len(MARKERS)


# ------------------------------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots")
    return draw(shown(title="A title", labels={"HBM2": "old memory"}), folder)


def test_the_png_is_one_of_a_readable_size(drawn):
    content = drawn[0].read_bytes()
    assert drawn[0].name == "p.png"
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (1320, 690)  # two panels at 150 dots an inch
    assert content[-8:-4] == b"IEND"


def test_the_svg_is_xml_without_a_date(drawn):
    root = ElementTree.parse(drawn[1]).getroot()
    assert (drawn[1].name, root.tag) == ("p.svg", f"{SVG}svg")
    assert float(root.get("viewBox").split()[2]) == pytest.approx(72 * 8.8)
    assert "date" not in drawn[1].read_text().lower().replace("update", "")


def test_the_svg_names_its_texts(drawn):
    text = drawn[1].read_text()
    for words in ("A title", "old memory", "bound by memory", "bound by l2", "hollow: does not fit", "Step time [s]", "N7"):
        assert words in text, words


def test_hollow_markers_only_where_something_does_not_fit(tmp_path):
    fits = plot_data([{**row, "feasible": True} for row in ROWS], LinePlot(name="p", x=LOGIC, series=MEMORY), VALUES)
    assert "hollow" not in draw(fits, tmp_path)[1].read_text()


def test_the_same_data_gives_the_same_bytes(drawn, tmp_path):
    again = draw(shown(title="A title", labels={"HBM2": "old memory"}), tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in drawn]


def test_a_plot_with_nothing_to_show_is_still_a_plot(tmp_path):
    nothing = plot_data([{**row, "step_time_s": None} for row in ROWS], LinePlot(name="p", x=LOGIC), VALUES)
    assert nothing.panels[0].series[0].x == []
    assert draw(nothing, tmp_path)[0].stat().st_size > 1000


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "mine"}):
        draw(shown(panels=None, series=None), tmp_path)
        assert mpl.rcParams["svg.hashsalt"] == "mine"
