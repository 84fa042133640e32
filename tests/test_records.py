"""Points on disk: what is written is what is read, a cut line costs one point, and every refusal names its cure."""

import csv
import json
import os

import pytest

from crossflow import files
from crossflow.errors import CrossflowError
from crossflow.study import records

RUN = {"name": "s", "study": "0123456789abcdef", "points": 3, "version": "0.1.0"}
ROWS = [{"id": i, "strategy": f"d{i}", "step_time_s": 0.1 * i, "reason": None, "feasible": True} for i in range(3)]


@pytest.fixture
def folder(tmp_path):
    """A run with three points, not finished."""
    assert records.start(tmp_path / "o", RUN, resume=False) == {}
    records.append(tmp_path / "o" / records.POINTS, ROWS)
    return tmp_path / "o"


def finished(folder):
    return json.loads((folder / records.RUN).read_text())["finished"]


def test_points_appended_are_points_read(folder):
    assert records.read_points(folder / records.POINTS) == {row["id"]: row for row in ROWS}
    assert records.start(folder, RUN, resume=True) == {row["id"]: row for row in ROWS}
    assert records.read_points(folder / "nothing.jsonl") == {}


def test_the_same_row_is_the_same_line_and_never_not_a_number():
    assert records.to_line({"id": 0, "x": 0.1, "y": None}) == '{"id":0,"x":0.1,"y":null}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.to_line({"id": 0, "x": float("inf")})


@pytest.mark.parametrize("cut", [1, 2, 10, 60])
def test_a_last_line_cut_short_costs_that_point_alone(folder, cut):
    path = folder / records.POINTS
    path.write_bytes(path.read_bytes()[:-cut])
    kept = ROWS if cut == 1 else ROWS[:2]  # without its newline a line is whole
    assert records.start(folder, RUN, resume=True) == {row["id"]: row for row in kept}
    assert path.read_text() == "".join(records.to_line(row) for row in kept)


def test_a_line_cut_inside_a_character_is_cut_short(folder):
    path = folder / records.POINTS
    path.write_bytes(path.read_bytes() + '{"id":3,"x":"µ'.encode()[:-1])
    assert list(records.read_points(path)) == [0, 1, 2]


@pytest.mark.parametrize("line", ["{", "[]", "{}", "5", '{"id":"x"}'])
def test_a_corrupt_line_in_the_middle_is_told_and_nothing_is_touched(folder, line, exactly):
    path = folder / records.POINTS
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    before = path.read_bytes()
    with pytest.raises(CrossflowError, match=exactly(f"{path}:2: not a point of a study; move the file away and start again")):
        records.start(folder, RUN, resume=True)
    assert path.read_bytes() == before


def test_an_unfinished_run_is_not_thrown_away(folder, exactly):
    sentence = f"{folder} holds an unfinished run of s; continue it with --resume, or give another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, RUN, resume=False)
    assert len(records.read_points(folder / records.POINTS)) == 3


@pytest.mark.parametrize(("what", "now"), [("study", "fedcba9876543210"), ("version", "0.2.0")])
def test_points_of_another_study_or_version_are_not_mixed_in(folder, exactly, what, now):
    sentence = (
        f"{folder} holds a run of a different {what} ({RUN[what]}, now {now}); its points would not fit."
        " Run without --resume into another folder with --out"
    )
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, {**RUN, what: now}, resume=True)
    assert len(records.read_points(folder / records.POINTS)) == 3


def test_a_finished_run_may_be_replaced(folder):
    assert not finished(folder)
    records.finish(folder, ROWS, RUN)
    assert finished(folder)
    assert records.start(folder, {**RUN, "study": "other"}, resume=False) == {}
    assert (folder / records.POINTS).read_bytes() == b""


def test_a_record_that_cannot_be_read_is_told(folder):
    (folder / records.RUN).write_text("{")
    with pytest.raises(CrossflowError, match=r"run\.json cannot be read \(.*\); give another folder with --out$"):
        records.start(folder, RUN, resume=True)


def test_points_without_their_record_are_not_thrown_away(folder):
    (folder / records.RUN).unlink()
    with pytest.raises(CrossflowError):
        records.start(folder, RUN, resume=True)
    assert len(records.read_points(folder / records.POINTS)) == 3


def test_a_file_in_place_of_the_folder_is_told(tmp_path, exactly):
    (tmp_path / "o").write_text("mine")
    with pytest.raises(
        CrossflowError, match=exactly(f"cannot write {tmp_path / 'o' / 'run.json'}: File exists; choose another folder with --out")
    ):
        records.start(tmp_path / "o", RUN, resume=False)
    assert (tmp_path / "o").read_text() == "mine"


def test_a_full_disk_while_appending_keeps_what_is_there(folder, monkeypatch, exactly):
    path = folder / records.POINTS

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    sentence = f"cannot write {path}: No space left on device; finished points are kept, make room and continue with --resume"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.append(path, [{"id": 3}])
    assert list(records.read_points(path).values())[:3] == ROWS


def test_a_full_disk_at_the_end_leaves_points_and_no_half_file(folder, monkeypatch, exactly):
    before = (folder / records.POINTS).read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    sentence = f"cannot write {folder / records.POINTS}: No space left on device; choose another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.finish(folder, ROWS, RUN)
    assert (folder / records.POINTS).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == [records.POINTS, records.RUN]


def test_csv_holds_every_column_of_any_row(folder):
    rows = [{"id": 0, "a": 0.1, "strategy": {"tp": 2}}, {"id": 1, "a": None, "b": 'x, "y"'}]
    written = list(csv.DictReader(records.to_csv(rows).splitlines()))
    assert written == [
        {"id": "0", "a": "0.1", "strategy": '{"tp": 2}', "b": ""},
        {"id": "1", "a": "", "strategy": "", "b": 'x, "y"'},
    ]


def test_numbers_in_csv_are_those_of_the_json(folder):
    records.finish(folder, ROWS, RUN)
    with (folder / "points.csv").open() as stream:
        assert [float(row["step_time_s"]) for row in csv.DictReader(stream)] == [row["step_time_s"] for row in ROWS]
