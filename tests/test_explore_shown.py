"""Which points of a long study a page is sent: what must be exact, and what the weights add up to."""

import numpy as np
import pytest

from crossflow.edges.explore import study_shown
from crossflow.edges.explore.study_rows import PointColumn, PointRows
from crossflow.edges.explore.study_shown import chosen, shown

GOALS = (("step_time_s", False), ("mfu", True))
SWEPT = ("workload.k", "system.logic")


@pytest.fixture(scope="module")
def found():
    """Points by hand: two objectives that disagree, a number and a name that are swept, some that do not fit, some that lack a value."""
    draw = np.random.default_rng(4)
    rows = 6000
    k = draw.integers(1, 500, rows).astype(float)
    time = k * draw.uniform(1, 2, rows)
    spare = np.where(draw.random(rows) < 0.01, np.nan, draw.normal(size=rows))
    columns = {
        "id": PointColumn(values=np.arange(rows, dtype=float)),
        "feasible": PointColumn(values=(draw.random(rows) < 0.8).astype(float), flag=True),
        "workload.k": PointColumn(values=k),
        "system.logic": PointColumn(values=draw.integers(0, 3, rows).astype(float), levels=("N7", "N5", None)),
        "step_time_s": PointColumn(values=time),
        "mfu": PointColumn(values=np.log(time) + draw.normal(size=rows) / 3),
        "spare": PointColumn(values=spare),
    }
    return PointRows(columns=columns, rows=rows, end=1)


@pytest.fixture
def part(found, monkeypatch):
    monkeypatch.setattr(study_shown, "CELLS", 300)
    return chosen(found, GOALS, SWEPT)


def test_weights_add_up_to_all_points_and_to_those_that_fit(found, part):
    kept, weights = part
    fits = found.columns["feasible"].values == 1
    assert weights.sum() == found.rows
    assert weights[fits[kept]].sum() == fits.sum()
    assert len(kept) < 1000
    assert (np.diff(kept) > 0).all()


def test_the_best_by_every_objective_are_all_there(found, part):
    fits = np.flatnonzero(found.columns["feasible"].values == 1)
    for name, larger in GOALS:
        values = found.columns[name].values
        best = sorted(fits, key=lambda i: -values[i] if larger else values[i])[:100]
        assert set(best) <= set(part[0])


def test_the_front_is_that_of_all_points(found, part):
    def front(rows):
        """By falling `mfu` those whose time is shorter than all before; of equal values none occurs."""
        time, mfu = (found.columns[name].values for name, _ in GOALS)
        rows = np.array([i for i in rows if found.columns["feasible"].values[i] == 1])
        ordered = rows[np.argsort(-mfu[rows])]
        before = np.minimum.accumulate(np.concatenate([[np.inf], time[ordered][:-1]]))
        return sorted(ordered[time[ordered] < before].tolist())

    assert front(part[0]) == front(range(found.rows))


def test_every_column_keeps_its_ends_its_names_and_what_is_missing(found, part):
    for column in found.columns.values():
        own = column.values[part[0]]
        assert (np.nanmin(own), np.nanmax(own)) == (np.nanmin(column.values), np.nanmax(column.values))
        assert np.isnan(own).any() == np.isnan(column.values).any()
    assert set(found.columns["system.logic"].values[part[0]]) == {0, 1, 2}


def test_a_histogram_by_weights_is_near_that_of_all_points(found, part):
    kept, weights = part
    time = found.columns["step_time_s"].values
    ends = np.quantile(time, np.linspace(0, 1, 9))
    whole, by_weights = np.histogram(time, ends)[0], np.histogram(time[kept], ends, weights=weights)[0]
    assert abs(by_weights / whole - 1).max() < 0.1
    assert abs(np.histogram(time[kept], ends)[0] * found.rows / len(kept) / whole - 1).max() > 0.1  # which rows alone are not


def test_a_study_up_to_the_limit_is_sent_whole(found, monkeypatch):
    assert shown(found, GOALS, SWEPT).rows is found
    monkeypatch.setattr(study_shown, "WHOLE", found.rows - 1)
    part = shown(PointRows(columns=found.columns, rows=found.rows, end=2), GOALS, SWEPT)
    assert part.rows.rows == len(part.weights) <= found.rows
    assert part.weights.sum() == found.rows
