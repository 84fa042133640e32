"""Gantt charts: areas are times, whatever the resolution; pictures and lines of text of the same data."""

import dataclasses
import io
import struct
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from rich.console import Console
from timelines import pipeline

import crossflow
from crossflow.edges.trace.gantt import (
    COMPUTES,
    EXPOSED,
    HOSTED,
    MOST_ROWS,
    THICK,
    WAITS,
    draw_gantt,
    draw_memory,
    families_of,
    family,
    gantt_figure,
    gantt_of,
    pieces_of,
    rows_height,
)
from crossflow.edges.trace.text import IDLE, KINDS, MOST_LINES, _has_room, filling, gantt_lines, text_gantt

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def given():
    return pipeline(3, 6)


def time_in(pieces, where):
    return (pieces.width * pieces.height)[where].sum()


def slot_time(timeline, device):
    mine = timeline.slots_of(device)
    return (timeline.slots.end - timeline.slots.start)[mine].sum()


# ------------------------------------------------------------------------------------------ pieces


@pytest.mark.parametrize("resolution", [0.0, 1e-4, 1e-3, 1e-2, 1.0])
def test_pieces_cover_the_slots_at_any_resolution(given, resolution):
    pieces = pieces_of(given, range(3), (0.0, given.total), resolution)
    for row in range(3):
        assert time_in(pieces, pieces.row == row) == pytest.approx(slot_time(given, row))


@pytest.mark.parametrize("resolution", [0.0, 1e-3, 1.0])
def test_pieces_say_what_activities_say(given, resolution):
    pieces, activity = pieces_of(given, range(3), (0.0, given.total), resolution), given.activity()
    for fill, name in ((COMPUTES, "busy"), (EXPOSED, "exposed_communication"), (WAITS, "waiting"), (HOSTED, "host")):
        for row in range(3):
            assert time_in(pieces, (pieces.row == row) & (pieces.fill == fill)) == pytest.approx(activity[name][row], abs=1e-12)


def test_fine_pieces_lie_in_their_slots_one_after_the_other(given):
    pieces = pieces_of(given, [1], (0.0, given.total), 0.0)
    assert (np.diff(pieces.start) > 0).all()
    assert (pieces.start[1:] >= (pieces.start + pieces.width)[:-1] - 1e-12).all()
    assert np.allclose(pieces.height, 1.0)


@pytest.mark.parametrize("resolution", [1e-3, 5e-3])
def test_pieces_laid_together_do_not_overlap(given, resolution):
    pieces = pieces_of(given, [0], (0.0, given.total), resolution)
    assert (pieces.base >= -1e-9).all()
    assert (pieces.base + pieces.height <= 1 + 1e-9).all()
    starts, first = np.unique(pieces.start, return_index=True)
    assert (starts[1:] >= (pieces.start + pieces.width)[first][:-1] - 1e-12).all()


def test_coarser_pieces_are_fewer(given):
    counts = [len(pieces_of(given, range(3), (0.0, given.total), resolution).row) for resolution in (0.0, 3e-3, 2e-2)]
    assert counts[0] > counts[1] > counts[2]


def test_stretched_slots_have_stretched_pieces(given):
    slots = dataclasses.replace(given.slots, start=2 * given.slots.start, end=2 * given.slots.end)
    twice = dataclasses.replace(given, slots=slots, total=2 * given.total)
    once, double = (pieces_of(one, [0], (0.0, one.total), 0.0) for one in (given, twice))
    assert 2 * once.width == pytest.approx(double.width)


# ------------------------------------------------------------------------------------------ charts


def test_a_box_for_every_slot(given):
    found = gantt_of(given)
    assert len(found.slots.row) == len(given.slots.start)
    assert found.slots.width.sum() == pytest.approx((given.slots.end - given.slots.start).sum())
    assert set(found.slots.label) == {*map(str, range(6)), "update"}


def test_a_span_shows_what_is_in_it(given):
    begin, end = 0.2 * given.total, 0.5 * given.total
    found = gantt_of(given, span=(begin, end))
    for some in (found.pieces, found.slots, found.path):
        assert some.start.min() >= begin
        assert (some.start + some.width).max() <= end + 1e-12


def test_the_critical_path_ends_with_the_step(given):
    path = gantt_of(given).path
    assert (path.start + path.width).max() == pytest.approx(given.total)
    assert (path.start[1:] >= (path.start + path.width)[:-1] - 1e-12).all()
    assert (np.diff(path.row) != 0).all()


def test_too_many_rows_are_thinned_with_a_note():
    found = gantt_of(pipeline(MOST_ROWS + 36, 2, layers=1))
    assert len(found.rows) == MOST_ROWS
    assert (found.rows[0], found.rows[-1]) == ("stage 0", "stage 99")
    assert "64 of 100 classes of devices" in found.note


def test_chosen_devices_are_rows_in_their_order(given):
    assert gantt_of(given, devices=[2, 0]).rows == ("stage 2", "stage 0")


def test_memory_is_of_the_fullest_and_the_emptiest(given):
    assert [line.name for line in gantt_of(given).memory] == ["stage 0", "stage 2"]
    assert [line.name for line in gantt_of(pipeline(1, 2)).memory] == ["stage 0"]


@pytest.mark.parametrize(
    ("label", "kind"),
    [("W", "weight gradient"), ("F3", "forward"), ("bottom.3 backward", "backward"), ("all_gather", "collective"), ("topk", "topk")],
)
def test_kinds_of_passes(label, kind):
    assert family(label) == kind


@pytest.mark.parametrize("rows", [1, 3, 10, 20, 200])
def test_rows_are_as_high_as_their_names_until_they_fill_a_page(given, rows):
    """10 rows of 0.3 inches are 3 inches; a lone one leaves room for its axis, and no number of them is higher than a page."""
    chart = dataclasses.replace(gantt_of(given), rows=("stage",) * rows)
    assert rows_height(chart) == pytest.approx(min(max(0.3 * rows, 0.8), 10.0), rel=1e-12)


def test_what_is_drawn_lies_in_the_row_of_its_device_and_is_as_large_as_its_time(given):
    """Areas of what is drawn are those of the pieces, in each row; the first device is on top, and all rows are within the axes."""
    chart = gantt_of(given)
    axis = gantt_figure(chart).axes[0]
    assert axis.get_xlim() == chart.span
    assert axis.get_ylim()[1] < -0.5
    assert axis.get_ylim()[0] > len(chart.rows) - 1 + 0.5
    areas = np.zeros(len(chart.rows))
    for shape in axis.patches:
        if shape.get_zorder() == 2:  # pieces, between the pale bands and the frames
            for corners in shape.get_path().vertices.reshape(-1, 5, 2):
                (left, above), (right, below) = corners.min(axis=0), corners.max(axis=0)
                row = round((above + below) / 2)
                assert row - 0.5 < above <= below < row + 0.5
                areas[row] += (right - left) * (below - above)
    drawn = [time_in(chart.pieces, chart.pieces.row == row) for row in range(len(chart.rows))]
    assert areas == pytest.approx(THICK * np.array(drawn), rel=1e-9)
    told = [float(text.get_text().removesuffix(" %")) for text in axis.texts if text.get_text().endswith(" %")]
    assert told == pytest.approx(100 * chart.utilisation, abs=0.5)


def test_labels_stand_in_the_middle_of_their_slots(given):
    chart = gantt_of(given)
    found = [(*text.get_position(), text.get_text()) for text in gantt_figure(chart).axes[0].texts if text.get_zorder() == 5]
    slots = zip(chart.slots.start, chart.slots.width, chart.slots.row, chart.slots.label, strict=True)
    middles = [(float(start + width / 2), float(row), label) for start, width, row, label in slots]
    assert found
    assert set(found) <= set(middles)


@pytest.mark.parametrize(("capacity", "there"), [(1.2, True), (100.0, False)])
def test_memory_is_drawn_as_large_as_it_is(given, capacity, there):
    """In GiB, with what a device has where that is near what the fullest holds, and else told to be above."""
    from matplotlib.figure import Figure

    chart = gantt_of(given)
    fullest = max(float(line.held.max()) for line in chart.memory)
    axis = Figure().subplots()
    draw_memory(axis, dataclasses.replace(chart, capacity=capacity * fullest))
    held = [float(np.max(line.get_ydata())) for line in axis.lines]
    assert held == pytest.approx([float(line.held.max()) / 2**30 for line in chart.memory] + [capacity * fullest / 2**30], rel=1e-12)
    bottom, top = axis.get_ylim()
    assert bottom == 0
    assert (top > held[-1]) == there
    assert fullest / 2**30 < top
    assert any(text.get_text().endswith(", above") for text in axis.get_legend().get_texts()) != there


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["step", "step.png", "step.svg"])
def test_a_chart_is_a_png_and_an_svg(given, tmp_path, name):
    png, svg = draw_gantt(gantt_of(given), tmp_path / name)
    assert (png, svg) == (tmp_path / "step.png", tmp_path / "step.svg")
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert width > height > 100
    assert ElementTree.parse(svg).getroot().tag == f"{SVG}svg"


@pytest.mark.thorough
@pytest.mark.slow
def test_the_same_chart_is_the_same_bytes(given, tmp_path):
    first, second = (draw_gantt(gantt_of(given), tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.thorough
@pytest.mark.slow
def test_charts_without_memory_have_one_panel(given, tmp_path):
    nothing = dataclasses.replace(given, memory=((np.zeros(1), np.zeros(1)),) * 3)
    tall, flat = (draw_gantt(gantt_of(one), tmp_path / name)[0] for one, name in ((given, "a"), (nothing, "b")))
    assert flat.read_bytes()[20:24] < tall.read_bytes()[20:24]


# ------------------------------------------------------------------------------------------ text


@pytest.mark.parametrize("width", [40, 80, 133])
def test_lines_of_devices_are_as_wide_as_asked(given, width):
    lines = gantt_lines(given, width, range(3))
    assert [len(line) for line in lines[:3]] == [width] * 3
    assert max(map(len, lines)) <= width


def test_columns_that_passes_share_show_each_as_long_as_it_lasts():
    """A column holds three microbatches, whose backward pass is the longest: it hid the forward passes of the whole step."""
    made = pipeline(2, 240, layers=1)
    kinds = len(families_of(made))
    few, many = (np.bincount(marks[marks < kinds], minlength=kinds) for marks in (filling(made, range(2), n) for n in (80, 40_000)))
    assert few / few.sum() == pytest.approx(many / many.sum(), abs=0.02)
    assert "forward" in gantt_lines(made, 90, range(2))[-2].plain


@pytest.mark.parametrize(("gap", "width"), [(2, 20), (2, 90), (30, 20), (10_000, 90)])
def test_a_device_that_works_less_than_half_of_each_column_does_not_look_idle(gap, width):
    """Passes that start `gap` times as late: every column was mostly idle, and all of them were drawn so."""
    made = pipeline(2, 240, layers=1)
    start = gap * made.slots.start
    slots = dataclasses.replace(made.slots, start=start, end=start + made.slots.end - made.slots.start)
    apart = dataclasses.replace(made, slots=slots, total=float(slots.end.max()))
    busy = (filling(apart, range(2), width) < len(families_of(apart))).sum(axis=1)
    assert (busy >= 1).all()
    assert busy / width == pytest.approx(apart.utilisation(), abs=1.01 / width)


@pytest.mark.parametrize("strategy", ["tp8-dp1-pp8-z1", "tp8-dp1-pp8-zbh1"])
def test_a_kind_of_pass_that_comes_once_is_seen_in_the_line_of_every_stage(strategy):
    """The update of weights, a third of a column, showed in the lines of two of eight stages that do the same."""
    made = crossflow.predict(model="llama3-70b", on="dgx-h100", nodes=8, strategy=strategy, batch=16).timeline()
    update = list(families_of(made)).index("update")
    marks = filling(made, range(8), 87)
    assert ((marks == update).sum(axis=1) == 1).all()
    assert (marks < len(families_of(made))).mean(axis=1) == pytest.approx(made.utilisation(), abs=1.01 / 87)


def test_cells_hold_what_fills_them(given):
    marks = filling(given, range(3), 2000)
    share = (marks < 3).mean(axis=1)  # forward, backward, update
    assert share == pytest.approx(given.utilisation(), abs=0.02)


def test_lines_can_be_read_without_colour(given):
    lines = [line.plain for line in gantt_lines(given, 100, range(3))]
    assert KINDS["forward"].character in lines[0]
    assert lines[2].split()[2].startswith(IDLE.character)
    assert lines[0].endswith(f"{100 * given.utilisation()[0]:.0f} %")


def test_many_devices_are_thinned_with_a_line_that_says_so():
    made, console = pipeline(MOST_LINES + 8, 2, layers=1), Console(width=80, file=io.StringIO())
    console.print(text_gantt(made, 80))
    text = console.file.getvalue()
    assert text.count("stage ") == 2 * MOST_LINES  # chart and table
    assert "8 of 40 classes of devices are not shown" in text


@pytest.mark.slow
def test_the_table_adds_up_to_the_step(given):
    console = Console(width=120, file=io.StringIO())
    console.print(text_gantt(given, 120))
    row = next(line for line in console.file.getvalue().splitlines() if line.startswith("mean of all"))
    assert sum(map(float, row.split()[3:])) == pytest.approx(100, abs=0.3)


def test_the_pass_that_a_line_shows_most_too_much_of_leaves_room_by_hand():
    """Two passes, then an exchange and idling. Four cells of the first for four that it takes, two of the other for a half of one: of
    these the one that is idle for longer.
    """
    times = np.zeros((4, 7))
    times[-1] = [0.9, 0.0, 0.0, 0.0, 0.1, 0.6, 0.0]
    shown = [0, 0, 0, 0, 1, 1, 2]
    assert _has_room(shown, times, np.array([4.0, 0.5]), 6)
    assert shown == [0, 0, 0, 0, 1, 3, 2]
    assert not _has_room(alone := [0, 0, 1, 2], times[:, :4], np.array([2.0, 0.1]), 3)  # its only cell
    assert alone == [0, 0, 1, 2]
    for enough, cell in ((np.array([4.0, 2.0]), 6), (np.array([4.0, 0.5]), 4)):  # no more than there is; another pass gives its cell
        assert _has_room(same := [0, 0, 0, 0, 1, 1, 2], times, enough, cell)
        assert same == [0, 0, 0, 0, 1, 1, 2]
