# ruff: noqa: E501  (exact sentences)
"""Points as Parquet: the values of the lines of JSON to the last bit, whatever stops the run, in constant memory."""

import errno
import json
import math
import os
import shutil
import struct

import orjson
import pytest
import yaml

from crossflow.__main__ import main
from crossflow.answers.study import parquet, records, sweeps
from crossflow.answers.study.run import run_study
from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.study import StudyPage
from crossflow.edges.explore.study_rows import read_points, read_record, row_of, sent

pyarrow = pytest.importorskip("pyarrow")
STUDY = {
    "name": "many",
    "scenario": {"system": {"template": "v100"}, "workload": {"model": "gemm", "m": 65536, "n": 65536, "k": 1024, "dtype": "fp16"}},
    "sweep": {
        "workload.k": [1024, 65536],
        "system.budgets.power": {"from": "15 W", "to": "400 W", "count": 12},
        "system.technology.logic": ["N12", "N1"],
    },
    "plots": [{"kind": "pareto", "name": "front", "title": "Front", "x": "power_w", "y": "step_time_s"}],
}
TASK = 8


@pytest.fixture(scope="module", autouse=True)
def short_tasks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "TASK", TASK)
        patch.setattr(parquet, "GROUP", 2 * TASK)
        yield


@pytest.fixture(scope="module")
def lines(tmp_path_factory, short_tasks):
    return run_study(STUDY, out=tmp_path_factory.mktemp("lines"))


@pytest.fixture(scope="module")
def columns(tmp_path_factory, short_tasks):
    return run_study(STUDY, out=tmp_path_factory.mktemp("columns"), format="parquet")


def bits(row):
    """A row in which two numbers are equal only to the last bit, and neither 1 and 1.0 nor 1 and true."""
    return {name: struct.pack("<d", value) if type(value) is float else (type(value), value) for name, value in row.items()}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.thorough  # what it runs quicker tests run too
def test_every_value_is_that_of_the_lines(lines, columns):
    assert len(columns.rows) == len(lines.rows) == len(columns) == 48
    assert list(map(bits, columns.rows)) == list(map(bits, lines.rows))
    assert {row["feasible"] for row in lines.rows} == {True, False}


def test_what_is_said_of_them_is_the_same(lines, columns):
    assert columns.table() == lines.table()
    assert (columns.summary, columns.notes, columns.best) == (lines.summary, lines.notes, lines.best)
    assert json.loads("".join(columns.to_json()))["points"] == lines.rows
    pictures = [contents(one.out)["front.svg"] for one in (columns, lines)]
    assert pictures[0] == pictures[1]
    assert {path.name for path in columns.out.iterdir()} == {"points.parquet", "run.json", "front.svg", "front.png"}


def test_row_groups_hold_no_more_than_a_few_tasks(columns):
    told = parquet.opened(columns.out / "points.parquet").metadata
    assert [told.row_group(i).num_rows for i in range(told.num_row_groups)] == [16, 16, 16]


def test_other_readers_find_numbers_and_words(columns):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(columns.out / "points.parquet")
    assert frame["step_time_s"].dtype == float
    assert frame["step_time_s"].min() == columns.best["step_time_s"]
    assert set(frame["system.technology.logic"]) == {"N12", "N1"}
    assert columns.to_frame().equals(frame)


@pytest.mark.cases(1)
@pytest.mark.parametrize("after", [1, 4, 6])
def test_stopped_and_resumed_it_is_the_same_file(columns, tmp_path, after):
    class Killed(BaseException):
        pass

    def kill(done, total, best):
        if done >= after * TASK:
            raise Killed

    with pytest.raises(Killed):
        run_study(STUDY, out=tmp_path, format="parquet", progress=kill)
    assert not (tmp_path / "points.parquet").exists()
    with (tmp_path / "points.blocks").open("ab") as stream:
        stream.write(b'{"id":40,"rows":8,"size":99999,"kinds":{}}\nhalf')  # in the middle of the next block
    begun = []
    again = run_study(STUDY, out=tmp_path, resume=True, progress=lambda done, total, best: begun.append(done))
    assert begun[0] == after * TASK
    assert contents(again.out) == contents(columns.out)


def test_a_full_disk_loses_nothing(columns, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(parquet, "_as", full)
    with pytest.raises(CrossflowError, match="No space left on device"):
        run_study(STUDY, out=tmp_path, format="parquet")
    monkeypatch.undo()
    monkeypatch.setattr(sweeps, "TASK", TASK)
    monkeypatch.setattr(parquet, "GROUP", 2 * TASK)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["points.blocks", "points.sums", "run.json"]
    begun = []
    run_study(STUDY, out=tmp_path, resume=True, progress=lambda done, total, best: begun.append(done))
    assert begun == [48]
    assert contents(tmp_path) == contents(columns.out)


def test_a_finished_run_is_as_it_was(columns, tmp_path):
    folder = shutil.copytree(columns.out, tmp_path / "again")
    (folder / "points.blocks").write_bytes(b"of a run that was killed as it removed them")
    again = run_study(STUDY, out=folder, resume=True, progress=lambda *_: pytest.fail("nothing is left to do"))
    assert (again.summary, again.table()) == (columns.summary, columns.table())
    assert contents(folder) == contents(columns.out)
    (folder / "front.svg").unlink()
    run_study(STUDY, out=folder, resume=True)
    assert contents(folder) == contents(columns.out)


def test_killed_as_it_goes_on_from_a_finished_run(columns, tmp_path):
    folder = shutil.copytree(columns.out, tmp_path / "again")
    record = json.loads((folder / "run.json").read_text())
    records.start(folder, {k: v for k, v in record.items() if k not in ("sums", "files", "finished")}, resume=True)
    run_study(STUDY, out=folder, resume=True)
    assert {**contents(folder), "run.json": b""} == {**contents(columns.out), "run.json": b""}


@pytest.mark.cases(1)
@pytest.mark.parametrize("damage", [lambda held: held[:-9], lambda held: held + b"x", lambda held: held[:99] + b"?" + held[100:]])
def test_a_damaged_file_is_refused_and_told_how_to_mend(columns, tmp_path, damage):
    folder = shutil.copytree(columns.out, tmp_path / "damaged")
    path = folder / "points.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CrossflowError, match=r"points\.parquet (is not as its run wrote it|was changed after its run wrote it)"):
        run_study(STUDY, out=folder, resume=True)
    path.unlink()
    run_study(STUDY, out=folder, resume=True)
    assert contents(folder) == contents(columns.out)


def test_damaged_blocks_are_refused(tmp_path):
    def stop(done, total, best):
        if done >= 2 * TASK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(STUDY, out=tmp_path, format="parquet", progress=stop)
    path = tmp_path / "points.blocks"
    held = path.read_bytes()
    path.write_bytes(held[:200] + bytes([held[200] ^ 1]) + held[201:])
    with pytest.raises(CrossflowError) as told:
        run_study(STUDY, out=tmp_path, resume=True)
    assert str(told.value) == (
        f"{path}: its blocks are not as the run wrote them; delete it and continue with --resume, or start again in another folder with --out"
    )


@pytest.mark.parametrize(("first", "second"), [("lines", "parquet"), ("columns", "jsonl")])
def test_a_run_goes_on_in_its_own_format(request, first, second):
    held = request.getfixturevalue(first)
    own = {"lines": "jsonl", "columns": "parquet"}[first]
    with pytest.raises(CrossflowError) as told:
        run_study(STUDY, out=held.out, resume=True, format=second)
    assert (
        str(told.value)
        == f"{held.out} holds points as {own}, not as {second}; leave --format out to go on, or give another folder with --out"
    )


@pytest.mark.thorough  # what it runs quicker tests run too
def test_another_format_in_a_folder_of_the_same_study_replaces_its_files(tmp_path):
    for form, points in (("jsonl", "points.jsonl"), ("parquet", "points.parquet"), ("jsonl", "points.jsonl")):
        run_study(STUDY, out=tmp_path, format=form)
        assert [path.name for path in sorted(tmp_path.glob("points.*"))][-1] == ("points.npz" if form == "jsonl" else points)
        assert len({"points.jsonl", "points.parquet"} & {path.name for path in tmp_path.iterdir()}) == 1


def test_the_page_shows_the_same_columns_as_of_lines(columns, tmp_path):
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "points.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in parquet.rows(columns.out / "points.parquet")))
    read, wanted = read_points(columns.out / records.PARQUET, finished=True), read_points(lines / records.POINTS, finished=True)
    assert read.rows == wanted.rows == 48
    assert list(read.columns) == list(wanted.columns)
    for name, column in read.columns.items():
        assert words(column) == words(wanted.columns[name]), name
        assert sent(column, 48).keys() == sent(wanted.columns[name], 48).keys(), name
    row = row_of(columns.out / "points.parquet", 31)
    assert row["id"] == 31
    with pytest.raises(CrossflowError, match="there is no point 48; load the page again"):
        row_of(columns.out / "points.parquet", 48)


def test_the_page_shows_the_points_that_the_record_names(tmp_path):
    out = run_study(STUDY, out=tmp_path, format="parquet").out
    (out / records.POINTS).write_text('{"id": 0, "step_time_s": 1.0}\n')  # left by an earlier study
    assert StudyPage(folder=out, source=None).start()["all"] == 48


def words(column):
    """Values of a column, None where one is missing."""
    if column.levels is not None:
        return [column.levels[int(code)] for code in column.values]
    return [None if value != value else value for value in column.values]


def test_a_page_of_columns_that_are_not_joined_yet_says_so(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"name": "many", "finished": False, "format": "parquet"}))
    with pytest.raises(CrossflowError, match="is written when its study ends, and it has not; continue it with --resume, or wait for it"):
        read_record(tmp_path)


def test_searches_are_refused(tmp_path, exactly):
    study = {**STUDY, "plots": [], "sweep": {}, "space": {"system.budgets.power": ["150 W", "300 W"]}}
    with pytest.raises(
        CrossflowError, match=exactly("--format parquet is for the points of sweeps, and this study has searches; leave it out")
    ):
        run_study(study, out=tmp_path / "out", format="parquet")
    assert not (tmp_path / "out").exists()


def test_without_its_package_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("crossflow.base.packages.there", lambda name: name != "pyarrow")
    sentence = "points as Parquet need pyarrow, which is not installed; run: pip install 'crossflow[parquet]'"
    with pytest.raises(CrossflowError) as told:
        run_study(STUDY, out=tmp_path / "out", format="parquet")
    assert str(told.value) == sentence
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------ any values


VALUES = {
    "id": [0, 1, 2],
    "floats": [0.1 + 0.2, -0.0, 5e-324],
    "gaps": [math.nan, 1e308, None],
    "whole": [1, 2**62, -(2**63)],
    "large": [2**63, 1, None],
    "mixed": [1, 1.0, True],
    "flags": [True, None, False],
    "words": ["a", None, "null"],
    "lists": [[1, 2.5], {"a": None}, "x"],
    "none": [None, None, None],
}


def test_values_of_every_kind_come_back(tmp_path):
    """Blocks whose columns have other kinds, and lack columns, are one file of the same values."""
    other = {"id": [3, 4], "floats": [1, 2], "whole": [None, None], "flags": [True, True], "words": ["b", "c"], "none": ["at last", None]}
    path, places = tmp_path / "b", []
    for one in (VALUES, other):
        block = parquet.block_of(one)
        places.append((one["id"][0], (path.stat().st_size if path.exists() else 0, len(block))))
        with path.open("ab") as stream:
            stream.write(block)
    assert parquet.finished(path, {0: 3, 3: 5}) == places
    assert parquet.finished(path, {0: 2, 3: 5}) == places[1:]  # of another task
    parquet.join(path, places[::-1], tmp_path / "p.parquet")
    found = list(parquet.rows(tmp_path / "p.parquet"))
    wanted = [json.loads(line) for one in (VALUES, other) for line in records.to_lines(one).splitlines()]
    assert list(map(bits, found)) == [bits(dict.fromkeys(VALUES) | row) for row in wanted]
    assert list(parquet.rows(tmp_path / "p.parquet", 2)) == found[2:]
    held = parquet.ParquetPoints(tmp_path / "p.parquet", ("words", "mixed", "absent", "floats"))
    assert [held[name].tolist() for name in ("words", "mixed", "absent")] == [
        ["a", None, "null", "b", "c"],
        [1, 1.0, True, None, None],
        [None] * 5,
    ]
    blocks = list(held.blocks(("mixed", "absent")))
    assert [value for block in blocks for value in block["mixed"].tolist()] == held["mixed"].tolist()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"id,a\n1,2\n"])
def test_what_is_no_parquet_is_refused(tmp_path, content):
    (tmp_path / "p.parquet").write_bytes(content)
    with pytest.raises(CrossflowError, match=r"p\.parquet cannot be read as Parquet: .*; delete it and run the study again$"):
        parquet.opened(tmp_path / "p.parquet")


def test_a_parquet_file_of_others_is_refused(tmp_path):
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "p.parquet")
    with pytest.raises(CrossflowError, match="holds no points of a study: its first column is not 'id'"):
        parquet.opened(tmp_path / "p.parquet")


def test_the_command_says_which_file_it_wrote(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**STUDY, "plots": []}))
    words = ["study", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "o"), "--format", "parquet", "--json"]
    assert main(words) == 0
    out, log = capsys.readouterr()

    assert "points.parquet" in log
    assert [row["id"] for row in json.loads(out)["points"]] == list(range(48))
