"""Small decisions of the steps of answers, worked out by hand: links between classes, replicas at work, replicas of a program."""

from types import SimpleNamespace

import numpy as np
import pytest

from crossflow.answers.steps.program_timelines import _links, _speeds
from crossflow.answers.steps.services import _at_work
from crossflow.engine.runs.uneven import Uneven
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan


@pytest.mark.parametrize(
    ("ranks", "last", "links"),
    [
        ({0, 1}, 1, {0}),
        ({0, 2}, 2, {2}),
        ({0, 1}, 3, {0}),
        ({1, 3}, 3, {1, 2}),
        ({0, 3}, 3, {3}),
        ({0, 2}, 3, {0, 1}),
        ({0, 1, 3}, 3, {0, 1, 2}),
    ],
)
def test_links_lie_between_neighbours_and_the_ends_are_neighbours_of_a_ring(ranks, last, links):
    assert _links(ranks, last) == links


@pytest.mark.parametrize(("rate", "expected"), [(0.0, (2.0, 4.0)), (3.0, (4.0, 4.0))])
def test_replicas_rest_where_requests_are_fewer_but_not_those_that_share_experts(rate, expected):
    """Two requests in flight over 4 replicas: two replicas of one request each; nobody rests at a rate, or beside experts of others."""
    layout = Layout.of([Plan(dp=4), Plan(dp=4, ep=4)], np.full(2, 2.0), 8)
    working = _at_work(layout, SimpleNamespace(rate=np.full(2, rate)))
    assert tuple(working.dp) == expected
    assert working.dp * working.micro_batch * working.microbatches == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize(("own", "along"), [("dp", 1), ("tp", 2)])
def test_a_slow_replica_is_all_devices_at_its_place_along_its_own_axis(own, along):
    """Of 2 classes x dp 2 x tp 2 devices the second replica is slow, whichever axis makes the replicas."""
    program = SimpleNamespace(axes=[("pp", 2), ("dp", 2), ("tp", 2)], stages="pp")
    found = _speeds(program, np.arange(8).reshape(2, 2, 2), [own], Uneven(replicas={1: 0.5}))
    np.testing.assert_array_equal(found, np.where(np.indices((2, 2, 2))[along] == 1, 0.5, 1.0))


def test_no_replica_rests_where_each_has_several_requests():
    """Eight requests in flight over 4 replicas, two for each."""
    working = _at_work(Layout.of([Plan(dp=4)], np.full(1, 8.0), 8), SimpleNamespace(rate=np.zeros(1)))
    assert (working.dp[0], working.micro_batch[0] * working.microbatches[0]) == (4.0, 2.0)
