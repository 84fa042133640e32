"""Spaces: every design keeps its bounds and budgets, however it was made, and is a point that can be evaluated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossflow.answers.search.space import Designs, Options, Range, Shares, Space
from crossflow.base.errors import CrossflowError

AREA = tuple(f"system.budgets.area.{name}" for name in ("compute", "memory", "inter_link"))
POWER = "system.budgets.power"
SPACE = Space(
    ranges=(Range(path=POWER, low=100.0, high=400.0, log=True, count=3, when={"strategy": ("d2",)}),),
    shares=(Shares(paths=AREA, low=0.01, high=0.7, total=0.9),),
    options=(
        Options(path="strategy", values=("d1", "d2")),
        Options(path="system.technology.memory", values=("HBM2", "HBM3"), when={"strategy": ("d2",)}),
    ),
)


def keeps_bounds(space, coordinates):
    assert (coordinates >= space.low - 1e-12).all()
    assert (coordinates <= space.high + 1e-12).all()
    for rows in space.groups:
        assert (coordinates[rows].sum(axis=0) <= 0.9 + 1e-9).all()


def test_samples_keep_bounds_and_budgets_and_fill_the_space():
    designs = SPACE.sample(np.random.default_rng(0), 5000)
    keeps_bounds(SPACE, designs.continuous)
    assert designs.continuous[0].min() < 0.01
    assert designs.continuous[0].max() > 0.99
    assert {tuple(pair) for pair in designs.discrete.T.tolist()} == {(0, 0), (1, 0), (1, 1)}


@pytest.mark.parametrize(("log", "middle"), [(True, 200.0), (False, 250.0)])
def test_coordinates_of_a_range_are_0_and_1_at_its_ends_and_a_half_at_its_mean(log, middle):
    """The geometric mean of 100 and 400 is 200, the arithmetic one 250; a value outside has a coordinate outside."""
    given_ = Range(path=POWER, low=100.0, high=400.0, log=log)
    values = np.array([100.0, middle, 400.0])
    assert given_.coordinate(values) == pytest.approx([0.0, 0.5, 1.0])
    assert given_.value(np.array([0.0, 0.5, 1.0])) == pytest.approx(values)
    assert given_.coordinate(1600.0) == pytest.approx(2.0 if log else 5.0)


def test_the_same_seed_gives_the_same_designs():
    one, two = (SPACE.sample(np.random.default_rng(7), 20) for _ in range(2))
    assert (one.continuous == two.continuous).all()
    assert (one.discrete == two.discrete).all()


@given(st.lists(st.floats(-2, 2), min_size=4, max_size=4))
def test_projection_is_the_nearest_design(values):
    """No random design of the space is nearer than the projection (its optimality), and a projection stays where it is."""
    given_ = np.array(values)[:, None]
    projected = SPACE.project(given_)
    keeps_bounds(SPACE, projected)
    assert SPACE.project(projected) == pytest.approx(projected, abs=1e-9)
    others = SPACE.sample(np.random.default_rng(0), 2000).continuous
    assert np.linalg.norm(projected - given_) <= np.linalg.norm(others - given_, axis=0).min() + 1e-9


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.integers(0, 1000))
def test_steps_stay_inside(step, seed):
    start = SPACE.sample(np.random.default_rng(seed), 3).continuous
    keeps_bounds(SPACE, SPACE.moved(start, np.array(step)[:, None]))


def test_a_share_that_grows_takes_from_the_others():
    start = np.array([[0.5], [0.5], [0.3], [0.1]])
    moved = SPACE.moved(start, np.array([[0.0], [0.1], [0.0], [0.0]]))
    assert moved[1, 0] > start[1, 0]
    assert (moved[2:] < start[2:]).all()
    assert moved[1:].sum() == pytest.approx(0.9)


def test_ranges_reach_from_end_to_end():
    span = SPACE.ranges[0]
    assert span.value(np.array([0.0, 0.5, 1.0])) == pytest.approx([100.0, 200.0, 400.0])
    assert Range(path=POWER, low=100.0, high=400.0).value(np.array([0.25])) == pytest.approx([175.0])
    assert SPACE.grid().shape == (1, 3)


def test_combinations_leave_out_what_has_no_meaning():
    assert SPACE.combinations().T.tolist() == [[0, 0], [1, 0], [1, 1]]


def test_points_of_inactive_dimensions_are_not_set():
    designs = Designs(continuous=np.full((4, 2), 0.3), discrete=np.array([[0, 1], [0, 1]]))
    (first, one), (second, other) = SPACE.points(designs)
    assert (first.tolist(), second.tolist()) == ([0], [1])
    assert set(one) == {*AREA, "strategy"}
    assert set(other) == {*AREA, "strategy", POWER, "system.technology.memory"}
    assert other[POWER][0] == pytest.approx(100.0 * 4.0**0.3)
    assert other["system.technology.memory"] == ["HBM3"]


def test_a_space_at_one_combination_has_its_options_fixed():
    here = SPACE.at(np.array([0, 0]))
    assert (here.dimensions, [option.values for option in here.options]) == (3, [("d1",)])
    there = SPACE.at(np.array([1, 1]))
    assert (there.dimensions, [option.values for option in there.options]) == (4, [("d2",), ("HBM3",)])


def test_a_space_over_some_of_its_paths():
    assert SPACE.only(("strategy", "system.budgets.area")).paths == (*AREA, "strategy")
    assert SPACE.only(("system.budgets.area",)).paths == AREA
    with pytest.raises(CrossflowError, match=r"^over: 'system\.budgets\.power' depends on 'strategy', which the search leaves out$"):
        SPACE.only(("system.budgets",))


def test_no_designs_have_no_active_options():
    empty = np.zeros((len(SPACE.options), 0), dtype=np.intp)
    assert SPACE.canonical(empty).shape == empty.shape
    assert SPACE.active(empty).shape == (len(SPACE.paths), 0)
