"""Which points of a long study a page is sent: what is exact, and what stands for the rest."""

import numpy as np
import pytest

from crossflow.answers.search.pareto import non_dominated
from crossflow.edges.explore.study_rows import PointColumn, PointRows
from crossflow.edges.explore.study_shown import BEST, CELLS, WHOLE, chosen, shown

GOALS = (("time", False), ("rate", True))


def drawn(rows, seed=0):
    draw = np.random.default_rng(seed)
    size = draw.integers(1, 30, rows).astype(float)
    columns = {
        "size": size, "time": draw.lognormal(size=rows) + 1 / size, "rate": draw.lognormal(size=rows) * size,
        "other": draw.normal(size=rows), "feasible": (draw.random(rows) < 0.8).astype(float),
    }  # fmt: skip
    columns["time"][columns["feasible"] == 0] = np.nan
    named = {name: PointColumn(values=values, levels=None, flag=name == "feasible") for name, values in columns.items()}
    named["kind"] = PointColumn(values=draw.integers(0, 3, rows).astype(float), levels=("a", "b", "c"), flag=False)
    return PointRows(columns=named, rows=rows, end=0)


def test_few_points_are_sent_as_they_are():
    found = drawn(1000)
    assert shown(found, GOALS, ("size",)).rows is found
    assert shown(found, GOALS, ("size",)).weights is None
    assert WHOLE >= 100_000


@pytest.mark.parametrize("seed", [0, 1])
def test_fronts_best_points_and_ends_are_exact(seed):
    found = drawn(60_000, seed)
    kept, _ = chosen(found, GOALS, ("size", "kind"))
    held, value = set(kept.tolist()), {name: column.values for name, column in found.columns.items()}
    fits = np.flatnonzero(value["feasible"] == 1)
    for loss in (value["time"], -value["rate"]):
        assert set(fits[np.argsort(loss[fits], kind="stable")][:BEST].tolist()) <= held
    losses = np.array([value["time"], -value["rate"]])[:, fits]
    assert set(fits[non_dominated(losses)].tolist()) <= held
    for values in value.values():
        for ends in (np.nanmin(values), np.nanmax(values)):
            assert ends in values[kept]


def test_weights_add_up_to_all_points_and_to_those_that_fit():
    found = drawn(60_000)
    kept, weights = chosen(found, GOALS, ("size", "kind"))
    assert len(kept) == len(set(kept.tolist())) <= CELLS + 3 * BEST + 1000
    assert weights.min() >= 1
    assert weights.sum() == found.rows
    fits = found.columns["feasible"].values
    assert weights[fits[kept] == 1].sum() == fits.sum()
    for kind in range(3):  # each kind is there about as often as it is
        mine = found.columns["kind"].values[kept] == kind
        assert weights[mine].sum() == pytest.approx((found.columns["kind"].values == kind).sum(), rel=0.1)


def test_a_page_is_sent_the_chosen_points(monkeypatch):
    monkeypatch.setattr("crossflow.edges.explore.study_shown.WHOLE", 10_000)
    found = drawn(30_000, 3)
    part = shown(found, GOALS, ("size",))
    kept, weights = chosen(found, GOALS, ("size",))
    assert part.rows.rows == len(kept) < 30_000
    assert part.rows.columns["time"].values.tolist() == pytest.approx(found.columns["time"].values[kept].tolist(), nan_ok=True)
    assert part.weights.tolist() == weights.tolist()
