"""The event engine: slots, order, ties and circles."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from crossflow.engine.events import run_shared, run_tasks
from crossflow.engine.schedule import longest_path


@st.composite
def jobs(draw):
    """Tasks on two resources, each after some earlier ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = int(rng.integers(1, 21))
    after = [tuple({int(j) for j in rng.integers(0, i, size=rng.integers(3))}) if i else () for i in range(count)]
    return rng.uniform(0.01, 10.0, count).tolist(), after, [(int(rng.integers(2)), "compute") for _ in range(count)]


@given(jobs(), st.integers(1, 4))
def test_more_slots_are_never_later_in_program_order(job, slots):
    few, many = (run_tasks(*job, slots=k)[1] for k in (slots, slots + 1))
    assert (many <= few).all()


@given(jobs(), st.integers(1, 4), st.booleans())
def test_no_more_tasks_run_than_there_are_slots(job, slots, in_order):
    start, end = run_tasks(*job, slots=slots, in_order=in_order)
    for place in set(job[2]):
        mine = np.array([i for i, resource in enumerate(job[2]) if resource == place])
        running = (start[mine] <= start[mine][:, None]) & (end[mine] > start[mine][:, None])
        assert running.sum(axis=1).max() <= slots


@given(jobs(), st.integers(1, 4), st.booleans())
def test_tasks_start_after_what_they_wait_for_and_last_as_long_as_they_do(job, slots, in_order):
    start, end = run_tasks(*job, slots=slots, in_order=in_order)
    assert (end == start + np.array(job[0])).all()
    assert all(start[i] >= end[j] for i, before in enumerate(job[1]) for j in before)


@given(jobs(), st.integers(1, 4))
def test_greedy_order_keeps_grahams_bound(job, slots):
    """On one resource the end lies between max(critical path, work / k) and their sum (Graham 1966)."""
    durations, after, _ = job
    end = run_tasks(durations, after, [(0, "compute")] * len(after), slots=slots, in_order=False)[1].max()
    path = longest_path(np.array(durations)[:, None], after).max()
    work = sum(durations) / slots
    assert max(path, work) <= end * (1 + 1e-12)
    assert end <= (path + work) * (1 + 1e-12)


@given(jobs())
def test_enough_slots_leave_the_critical_path_alone(job):
    durations, after, resources = job
    end = run_tasks(durations, after, resources, slots=len(after), in_order=False)[1]
    assert end.tolist() == longest_path(np.array(durations)[:, None], after)[:, 0].tolist()


def test_a_task_behind_a_blocked_one_waits_only_in_program_order():
    durations, after, resources = [5.0, 1.0, 1.0], [(), (0,), ()], ["other", "here", "here"]
    assert run_tasks(durations, after, resources)[0].tolist() == [0.0, 5.0, 6.0]
    assert run_tasks(durations, after, resources, in_order=False)[0].tolist() == [0.0, 5.0, 0.0]


def test_ties_go_to_the_first_in_the_program():
    start, _ = run_tasks([1.0, 1.0, 1.0], [(), (), ()], ["one"] * 3, in_order=False)
    assert start.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_circle_is_a_wrong_call(in_order, exactly):
    sentence = "2 of 3 tasks can never start: they wait for each other"
    with pytest.raises(ValueError, match=exactly(sentence)):
        run_tasks([1.0] * 3, [(), (2,), (1,)], [0, 1, 2], in_order=in_order)


def test_a_program_against_its_own_dependencies_is_a_wrong_call(exactly):
    sentence = "2 of 2 tasks can never start: they wait for each other"
    with pytest.raises(ValueError, match=exactly(sentence)):
        run_tasks([1.0, 1.0], [(1,), ()], [0, 0])


def test_nothing_to_do_takes_no_time():
    assert run_tasks([0.0, 0.0, 0.0], [(), (0,), (1,)], [0, 1, 0])[1].tolist() == [0.0, 0.0, 0.0]
    assert run_tasks([], [], [])[1].size == 0


def test_tasks_that_share_a_resource_stretch_each_other():
    """Two tasks of 1 s together end after 2 s; a third of 0.5 s alone on another resource is not touched."""
    ends = run_shared([0, 0, 0], [1.0, 1.0, 0.5], [(), (), ()], ["a", "a", "b"], {"a": 2, "b": 2})
    assert ends.tolist() == [2.0, 2.0, 0.5]


def test_fixed_times_overlap_and_shared_times_do_not():
    """Four kernels of 1 s with launches of 1 s: launches hide in one another, work does not."""
    work, launch = [1.0] * 4, [1.0] * 4
    alone = run_shared(launch, work, [()] * 4, ["a"] * 4, {"a": 1}).max()
    together = run_shared(launch, work, [()] * 4, ["a"] * 4, {"a": 4}).max()
    assert (alone, together) == (8.0, 5.0)


def test_one_slot_is_the_plain_engine():
    rng = np.random.default_rng(0)
    after = [tuple(int(j) for j in range(i) if rng.random() < 0.2) for i in range(40)]
    resources, times = [str(r) for r in rng.integers(0, 3, 40)], rng.uniform(0, 1, 40).tolist()
    plain = run_tasks(times, after, resources, in_order=False)[1]
    shared = run_shared([0.0] * 40, times, after, resources, dict.fromkeys("012", 1))
    np.testing.assert_allclose(shared, plain, rtol=1e-9)


def test_a_circle_of_shared_tasks_is_told():
    with pytest.raises(ValueError, match="2 of 2 tasks can never start: they wait for each other"):
        run_shared([0, 0], [1, 1], [(1,), (0,)], ["a", "a"], {"a": 2})
