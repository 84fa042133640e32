"""Columns of a study's points: kept beside them, the same whether the rows were evaluated or read back."""

import numpy as np
import pytest

from crossflow.answers.study.tables import PointsTable, load, save

ROWS = [
    {"id": 0, "time": 1.5, "fits": True, "where": "N7", "share": None, "degrees": {"tp": 8}},
    {"id": 1, "time": float("inf"), "fits": False, "where": "日本", "share": 0.25, "degrees": {"tp": 8}},
    {"id": 2, "time": 2.0, "fits": True, "where": None, "share": 0.5, "degrees": {"dp": 8}},
]
READ_BACK = [{**row, "time": None if row["time"] == float("inf") else row["time"]} for row in ROWS]


def table(rows, blocks):
    made = PointsTable(names=tuple(ROWS[0]))
    for i, block in enumerate(np.array_split(rows, blocks)):
        made.add_rows(i, list(block))
    return made.columns()


def test_columns_come_back(tmp_path):
    save(tmp_path / "c.npz", table(ROWS, 1))
    found = load(tmp_path / "c.npz")
    assert list(found) == list(ROWS[0])
    assert found["time"].tolist()[::2] == [1.5, 2.0]
    assert np.isnan([found["time"][1], found["share"][0]]).all()
    assert found["fits"].dtype == bool
    for name in ("id", "fits", "where", "degrees"):
        assert found[name].tolist() == [row[name] for row in ROWS]


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_same_rows_give_the_same_bytes(tmp_path, blocks):
    save(tmp_path / "a.npz", table(ROWS, 1))
    save(tmp_path / "b.npz", table(READ_BACK, blocks))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_file_that_holds_no_columns_is_none(tmp_path):
    path = tmp_path / "c.npz"
    assert load(path) is None
    save(path, table(ROWS, 1))
    content = path.read_bytes()
    for wrong in (b"", b"PK", content[:-30], content[:200] + b"x" * 40 + content[240:]):
        path.write_bytes(wrong)
        assert load(path) is None
    np.savez(path, other=np.arange(3))
    assert load(path) is None
    np.savez(path, names=np.array([{"a": 1}], dtype=object))  # which would have to be unpickled
    assert load(path) is None
