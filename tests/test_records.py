"""Points on disk: what is written is what is read, a cut line costs one point, and every refusal names its cure."""

import csv
import json
import os

import numpy as np
import pytest

from crossflow.answers.study import records
from crossflow.base import files
from crossflow.base.errors import CrossflowError

RUN = {"name": "s", "study": "0123456789abcdef", "points": 3, "version": "0.1.0"}
ROWS = [{"id": i, "strategy": f"d{i}", "step_time_s": 0.1 * i, "reason": None, "feasible": True} for i in range(3)]


def to_line(row):
    return records.to_lines({name: [value] for name, value in row.items()})


TEXT = "".join(to_line(row) for row in ROWS)


@pytest.fixture
def folder(tmp_path):
    """A run with three points, not finished."""
    assert records.start(tmp_path / "o", RUN, resume=False) is False
    records.PointsFile(path=tmp_path / "o" / records.POINTS).append(0, TEXT)
    return tmp_path / "o"


def kept(folder):
    return list(records.rows(folder / records.POINTS))


def finished(folder):
    return json.loads((folder / records.RUN).read_text())["finished"]


def test_points_appended_are_points_read(folder):
    assert kept(folder) == ROWS
    assert records.start(folder, RUN, resume=True) is True
    assert kept(folder) == ROWS
    assert list(records.rows(folder / "nothing.jsonl")) == []


def test_the_same_row_is_the_same_line_and_never_not_a_number():
    assert to_line({"id": 0, "x": 0.1, "y": None}) == '{"id":0,"x":0.1,"y":null}\n'
    assert to_line({"id": 0, "x": float("inf"), "y": np.array([np.inf])[0]}) == '{"id":0,"x":null,"y":null}\n'


VALUES = {
    "floats": np.array([0.1, np.inf, np.nan, -1e-300, 3.0]),
    "whole": np.arange(5),
    "marks": np.array([True, False, True, False, True]),
    "words": ["a", 'b"c', "µ,%s", "", None],
    "mixed": [1, 2.5, None, {"dp": 2, "pp": [1, 2]}, True],
    "100 %": [0.5, float("nan"), 1.0, 2.0, 1e22],
}


def test_columns_become_the_lines_of_their_rows():
    whole = [{name: plain(values[i]) for name, values in VALUES.items()} for i in range(5)]
    assert [json.loads(line) for line in records.to_lines(VALUES).splitlines()] == whole


def plain(value):
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


@pytest.mark.parametrize("cut", [1, 2, 10, 60])
def test_a_block_cut_short_costs_that_block_alone(folder, cut):
    path = folder / records.POINTS
    records.PointsFile(path=path).append(3, TEXT)
    path.write_bytes(path.read_bytes()[:-cut])
    assert records.start(folder, RUN, resume=True) is True
    assert kept(folder) == ROWS


def test_a_line_cut_inside_a_character_is_cut_short(folder):
    path = folder / records.POINTS
    path.write_bytes(path.read_bytes() + '{"id":3,"x":"µ'.encode()[:-1])
    assert kept(folder) == ROWS


BAD = ["{", "[]", "5", '{"id":"x"}', '{"id":1}', '{"id":999999999999999999999999999999,"run":0}', '{"id":1,"run":"a"}']


@pytest.mark.parametrize("line", [*BAD, to_line({**ROWS[1], "step_time_s": 0.2}).strip()])
@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_line_in_the_middle_is_told_and_nothing_is_touched(folder, line, finished, exactly, monkeypatch):
    path = folder / records.POINTS
    for _ in range(2):
        records.PointsFile(path=path).append(3, TEXT)
    monkeypatch.setattr(records, "PART", 1)
    monkeypatch.setattr(records, "PARTS", 1_000_000)
    if finished:
        records.finish(folder, RUN)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], line, *lines[5:]]) + "\n")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    sentence = (
        f"{path}:{5 if finished else 4}: the points from this line on are not as the run wrote them; delete them and continue with"
        " --resume, or start again in another folder with --out"
    )
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, RUN, resume=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    path.write_text("".join(f"{line}\n" for line in lines[: 4 if finished else 3]))
    assert records.start(folder, RUN, resume=True)
    assert kept(folder) == [*ROWS, *ROWS[:finished]]


def test_points_that_nothing_tells_of_are_not_gone_on_from(folder, exactly):
    (folder / records.SUMS).unlink()
    sentence = f"{folder} has neither points.sums nor 'sums' in run.json to check its points by; start again in another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, RUN, resume=True)
    assert kept(folder) == ROWS


@pytest.mark.parametrize("before", [True, False])
def test_killed_while_points_are_put_in_order(tmp_path, monkeypatch, before):
    records.start(tmp_path, RUN, resume=False)
    file = records.PointsFile(path=tmp_path / records.POINTS)
    for number in (2, 0, 1):
        file.append(number, to_line(ROWS[number]))
    real = os.replace
    monkeypatch.setattr(files.os, "replace", full if before else lambda *given: (real(*given), full()))
    with pytest.raises(CrossflowError):
        file.put_in_order()
    monkeypatch.setattr(files.os, "replace", real)
    assert records.start(tmp_path, RUN, resume=True)
    assert [row["id"] for row in kept(tmp_path)] == ([2, 0, 1] if before else [0, 1, 2])


def test_an_unfinished_run_is_not_thrown_away(folder, exactly):
    sentence = f"{folder} holds an unfinished run of s; continue it with --resume, or give another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, RUN, resume=False)
    assert kept(folder) == ROWS


@pytest.mark.parametrize(("what", "now"), [("study", "fedcba9876543210"), ("version", "0.2.0")])
def test_points_of_another_study_or_version_are_not_mixed_in(folder, exactly, what, now):
    sentence = (
        f"{folder} holds a run of a different {what} ({RUN[what]}, now {now}); its points would not fit."
        " Run without --resume into another folder with --out"
    )
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, {**RUN, what: now}, resume=True)
    assert kept(folder) == ROWS


def test_a_finished_run_may_be_replaced(folder):
    assert not finished(folder)
    records.finish(folder, RUN)
    assert finished(folder)
    assert records.start(folder, {**RUN, "study": "other"}, resume=False) is False
    assert (folder / records.POINTS).read_bytes() == b""


def test_a_record_that_cannot_be_read_is_told(folder):
    (folder / records.RUN).write_text("{")
    with pytest.raises(CrossflowError, match=r"run\.json cannot be read \(.*\); give another folder with --out$"):
        records.start(folder, RUN, resume=True)


def test_points_without_their_record_are_not_thrown_away(folder):
    (folder / records.RUN).unlink()
    with pytest.raises(CrossflowError):
        records.start(folder, RUN, resume=True)
    assert kept(folder) == ROWS


def test_a_file_in_place_of_the_folder_is_told(tmp_path, exactly):
    (tmp_path / "o").write_text("mine")
    with pytest.raises(
        CrossflowError, match=exactly(f"cannot write {tmp_path / 'o' / 'run.json'}: File exists; choose another folder with --out")
    ):
        records.start(tmp_path / "o", RUN, resume=False)
    assert (tmp_path / "o").read_text() == "mine"


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_full_disk_while_appending_keeps_what_is_there(folder, monkeypatch, exactly):
    path = folder / records.POINTS
    monkeypatch.setattr(os, "fsync", full)
    sentence = f"cannot write {path}: No space left on device; finished points are kept, make room and continue with --resume"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.PointsFile(path=path).append(1, '{"id":3}\n')
    assert kept(folder)[:3] == ROWS


def test_a_full_disk_at_the_end_leaves_points_and_no_half_file(folder, monkeypatch, exactly):
    before = (folder / records.POINTS).read_bytes()
    monkeypatch.setattr(files.os, "replace", full)
    sentence = f"cannot write {folder / records.TABLE}: No space left on device; choose another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.finish(folder, RUN)
    assert (folder / records.POINTS).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == [records.POINTS, records.SUMS, records.RUN]


def test_blocks_out_of_order_are_put_in_order(tmp_path):
    records.start(tmp_path, RUN, resume=False)
    file = records.PointsFile(path=tmp_path / records.POINTS)
    lines = [to_line(row) for row in ROWS]
    for number in (2, 0, 1):
        file.append(number, lines[number])
    file.put_in_order()
    assert file.path.read_text() == TEXT


def test_rows_are_read_where_they_stand(folder):
    path = folder / records.POINTS
    places = [(offset, len(line)) for offset, line in records.lines(path)]
    rows = records.Rows(path, places)
    assert (len(rows), rows[1], list(rows[1:])) == (3, ROWS[1], ROWS[1:])
    assert [rows.offset(0), rows[1:].offset(0)] == [places[0][0], places[1][0]]


# ------------------------------------------------------------------------------------------ CSV


def table_of(tmp_path, text):
    (tmp_path / "p.jsonl").write_text(text)
    records.write_csv(tmp_path / "p.jsonl", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_holds_every_column_of_any_row(tmp_path):
    rows = [{"id": 0, "a": 0.1, "strategy": {"tp": 2}}, {"id": 1, "a": None, "b": 'x, "y"'}]
    assert table_of(tmp_path, "".join(map(to_line, rows))) == [
        {"id": "0", "a": "0.1", "strategy": '{"tp": 2}', "b": ""},
        {"id": "1", "a": "", "strategy": "", "b": 'x, "y"'},
    ]


def test_csv_of_alike_rows_is_what_the_csv_library_writes(tmp_path):
    whole = [{"id": i, **{name: plain(values[i]) for name, values in VALUES.items()}} for i in range(5)]
    flat = [{name: value for name, value in row.items() if name != "mixed"} for row in whole]
    for rows in (whole, flat):
        made = table_of(tmp_path, "".join(map(to_line, rows)))
        expected = list(csv.DictReader(records.csv_text(rows).splitlines()))
        assert made == expected


def test_csv_of_columns_holds_the_numbers_of_their_json(tmp_path):
    made = table_of(tmp_path, records.to_lines({"id": np.arange(5), "x": VALUES["floats"], "word": VALUES["words"]}))
    assert [row["word"] for row in made] == ["a", 'b"c', "µ,%s", "", ""]
    assert [row["x"] and float(row["x"]) for row in made] == [0.1, "", "", -1e-300, 3.0]


def test_numbers_in_csv_are_those_of_the_json(folder):
    records.finish(folder, RUN)
    with (folder / "points.csv").open() as stream:
        assert [float(row["step_time_s"]) for row in csv.DictReader(stream)] == [row["step_time_s"] for row in ROWS]


def test_files_of_an_earlier_run_give_way_to_those_of_the_next(folder):
    mine, other = folder / "best.json", folder / "notes.txt"
    mine.write_text("{}")
    other.write_text("somebody's")
    records.finish(folder, RUN, [mine])
    records.start(folder, {**RUN, "study": "fedcba9876543210"}, resume=False)
    assert (mine.exists(), other.read_text()) == (False, "somebody's")


def recorded(folder, **changes):
    """A finished run whose record was changed."""
    records.finish(folder, RUN)
    record = json.loads((folder / records.RUN).read_text())
    (folder / records.RUN).write_text(json.dumps({**record, **changes}))


@pytest.mark.parametrize(
    "listed", [["keep.txt"], {"keep.txt": "0123456789abcdef"}, {"keep.txt": None}, ["../precious"], {"../precious": ""}]
)
def test_a_record_removes_no_file_that_no_run_wrote(folder, tmp_path, listed):
    for path in (tmp_path / "precious", folder / "keep.txt"):
        path.write_text("x")
    recorded(folder, files=listed)
    records.start(folder, RUN, resume=False)
    assert (tmp_path / "precious").exists()
    assert (folder / "keep.txt").exists()


@pytest.mark.parametrize("listed", [None, [1], ["."], "best.json", 5, {"a": 1}])
def test_a_damaged_list_of_files_removes_nothing(folder, listed):
    (folder / "best.json").write_text("{}")
    recorded(folder, files=listed)
    records.start(folder, RUN, resume=False)
    assert (folder / "best.json").exists()


@pytest.mark.parametrize("text", ["[1,2]", "5", "null", '"run"'])
def test_a_record_that_is_none_is_told(folder, text, exactly):
    (folder / records.RUN).write_text(text)
    sentence = f"{folder / records.RUN} is not the record of a run; move it away, or give another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, RUN, resume=True)


@pytest.mark.parametrize("name", ["points.csv", "best.json", "front.png"])
def test_files_of_somebody_else_are_not_written_over(tmp_path, name, exactly):
    (tmp_path / name).write_text("mine")
    sentence = f"{tmp_path / name} is there without the record of its run (run.json); move it away, or give another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(tmp_path, RUN, resume=False, beside=["best.json", "front.png"])
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_temporary_files_of_killed_runs_are_cleared_and_no_others(folder):
    strays = [".points.csv.ab3_9xyz", ".run.json.abcdefgh", ".front.png.01234567"]
    others = [".points.csv.backup", ".notes.txt.abcdefgh", "points.csv.abcdefgh", ".crossflow.csv.abcdefgh"]
    for name in (*strays, *others):
        (folder / name).write_text("")
    records.start(folder, RUN, resume=True, beside=["front.png"])
    assert {path.name for path in folder.iterdir()} == {records.POINTS, records.SUMS, records.RUN, *others}


def test_a_new_run_leaves_no_table_of_the_one_before(folder):
    records.finish(folder, RUN)
    assert (folder / records.TABLE).exists()
    records.start(folder, {**RUN, "study": "fedcba9876543210"}, resume=False)
    assert not (folder / records.TABLE).exists()


def test_a_finished_run_of_another_study_is_kept(folder, exactly):
    records.finish(folder, RUN)
    sentence = f"{folder} holds a run of s, not of t; give another folder with --out, or delete this one"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, {**RUN, "name": "t"}, resume=False)
    assert kept(folder) == ROWS


@pytest.mark.parametrize("name", ["points.csv", "points.jsonl", "front.png"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_was_changed_after_the_run_is_kept(folder, name, resume, exactly):
    (folder / "front.png").write_text("drawn")
    records.finish(folder, RUN, [folder / "front.png"])
    mine = (folder / name).read_text() + "mine\n"
    (folder / name).write_text(mine)
    sentence = f"{folder / name} was changed after its run wrote it; move it away, or give another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, RUN, resume=resume, beside=["front.png"])
    assert (folder / name).read_text() == mine
    (folder / name).unlink()
    records.start(folder, RUN, resume=resume, beside=["front.png"])


def test_points_that_were_changed_after_the_run_are_kept(folder, exactly):
    records.finish(folder, RUN)
    mine = TEXT.replace("d1", "d7")
    (folder / "points.jsonl").write_text(mine)
    sentence = f"{folder / 'points.jsonl'} was changed after its run wrote it; move it away, or give another folder with --out"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        records.start(folder, RUN, resume=False)
    assert (folder / "points.jsonl").read_text() == mine


def test_a_finished_run_is_unchanged_until_a_file_is_touched(folder):
    (folder / "best.json").write_text("{}")
    written = records.finish(folder, RUN, [folder / "best.json"])
    assert records.unchanged(folder, RUN) == [*written, folder / "best.json"]
    (folder / "best.json").write_text("[]")
    assert records.unchanged(folder, RUN) == []


def test_a_file_of_a_run_s_name_that_is_none_is_left_alone(tmp_path):
    (tmp_path / records.RUN).write_text('{"learning_rate": 1e-3}')
    (tmp_path / records.TABLE).write_text("mine")
    with pytest.raises(CrossflowError, match="is not the record of a run; move it away"):
        records.start(tmp_path, {"name": "a", "study": "1", "version": "2"}, resume=False)
    assert (tmp_path / records.TABLE).read_text() == "mine"
