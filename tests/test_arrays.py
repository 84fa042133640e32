"""Equal columns of tables: by their bits, however many there are."""

import numpy as np
import pytest

from crossflow.base import arrays


def first_of_its_kind(table):
    """One column after the other."""
    known, which = [], []
    for column in table.T:
        same = [i for i, one in enumerate(known) if table[:, one].tobytes() == column.tobytes()]
        which.append(same[0] if same else len(known))
        if not same:
            known.append(len(which) - 1)
    return known, which


@pytest.mark.parametrize("columns", [1, 7, arrays.MANY - 1, arrays.MANY, 1000])
@pytest.mark.parametrize("dtype", [float, np.intp, np.int8])
def test_equal_columns_are_found_in_the_order_in_which_they_come(columns, dtype):
    table = np.random.default_rng(columns).integers(0, 3, (4, columns)).astype(dtype)
    assert [one.tolist() for one in arrays.distinct(table)] == [*map(list, first_of_its_kind(table))]


def test_columns_differ_by_their_bits():
    pair = np.array([[0.0, -0.0, np.nan, np.nan, np.inf]])
    first, which = arrays.distinct(np.tile(pair, arrays.MANY))
    assert first.tolist() == [0, 1, 2, 4]
    assert which.tolist() == [0, 1, 2, 2, 3] * arrays.MANY


def test_columns_with_one_number_are_still_told_apart(monkeypatch):
    monkeypatch.setattr(arrays, "HASH", np.uint64(0))
    table = np.random.default_rng(0).integers(0, 3, (4, arrays.MANY)).astype(float)
    assert arrays._by_hash(np.ascontiguousarray(table.T)) is None
    assert [one.tolist() for one in arrays.distinct(table)] == [*map(list, first_of_its_kind(table))]
