"""Pareto fronts equal a filter that compares every pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossflow.answers.search.pareto import ahead, beaten, non_dominated


def naive(losses):
    """Compare every pair; of equal columns the first stays."""
    n = losses.shape[1]
    result = np.ones(n, dtype=bool)
    for i in range(n):
        for j in range(n):
            no_worse = (losses[:, j] <= losses[:, i]).all()
            better = (losses[:, j] < losses[:, i]).any()
            if no_worse and (better or j < i):
                result[i] = False
    return result


@given(st.integers(1, 4), st.integers(0, 60), st.integers(2, 8), st.integers(0, 2**31))
def test_fronts_equal_the_naive_filter(objectives, n, levels, seed):
    """Few levels make many equal values, the hard case."""
    losses = np.random.default_rng(seed).integers(0, levels, (objectives, n)).astype(float)
    assert non_dominated(losses).tolist() == naive(losses).tolist()


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_fronts_of_many_designs_equal_the_naive_filter(objectives):
    losses = np.random.default_rng(objectives).normal(size=(objectives, 300))
    assert non_dominated(losses).tolist() == naive(losses).tolist()


def test_one_objective_leaves_its_least():
    losses = np.array([[3.0, 1.0, 2.0, 1.0]])
    assert non_dominated(losses).tolist() == [False, True, False, False]


def test_what_a_front_beats_is_all_that_it_was_taken_from():
    losses = np.random.default_rng(3).integers(0, 4, (3, 40)).astype(float)
    front = losses[:, non_dominated(losses)]
    assert beaten(losses, front).all()
    assert not beaten(front - 0.5, front).any()


def test_what_is_ahead_of_a_front_is_what_the_front_does_not_beat():
    losses, front = (np.random.default_rng(seed).integers(0, 6, (3, 40)).astype(float) for seed in (3, 4))
    gain = ahead(losses, front)
    assert ((gain <= 0) == beaten(losses, front)).all()
    assert beaten(losses + np.maximum(gain, 0.0), front).all()
    assert ahead(front[:, :1] - 0.5, front[:, :1]).tolist() == [0.5]
