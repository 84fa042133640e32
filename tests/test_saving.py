"""Checkpoints beside steps on the same links: by hand, conservation, limits, and flows one by one."""

import numpy as np
import pytest

import crossflow
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.engine.lasting.saving import written_beside

SCENARIO = {
    "system": {"template": "h100-ib-cluster", "nodes": 64},
    "workload": {"model": "llama3-70b", "global_batch": 512},
    "strategy": "tp8-pp2-dp32-z1",
    "run": {
        "tokens": 1e12, "failures": {"node": {"rate": "0.2 1/day", "per": "node", "detection": "1 min"}},
        "checkpoint": {"to": "neighbours"},
    },
}  # fmt: skip


def beside(time, rate, sends):
    return [float(one[0]) for one in written_beside(*(np.full(1, value) for value in (time, rate, sends)))]


def stepped(time, rate, sends, step=1.0, dt=1e-4):
    """The same in small steps of time: a step sends its part last."""
    written = now = done = 0.0
    while written < time:
        busy = done % step >= step * (1.0 - sends)
        has = min(rate, 0.5) if busy else rate
        written += dt * has / rate
        done += dt * ((1.0 - has) if busy else 1.0)
        now += dt
    return now, now - done


@pytest.mark.parametrize(("rate", "sends"), [(1.0, 0.3), (0.2, 0.5), (0.5, 1.0), (0.8, 0.6), (0.3, 0.0)])
def test_a_writer_and_steps_share_a_link_as_moment_by_moment(rate, sends):
    assert beside(40.0, rate, sends) == pytest.approx(stepped(40.0, rate, sends), rel=0.02, abs=0.02)


@pytest.mark.parametrize("sends", [0.0, 0.1, 0.7, 1.0])
def test_a_full_link_carries_the_bytes_of_both_and_is_never_idle(sends):
    whole, lost = beside(10.0, 1.0, sends)
    assert whole == pytest.approx(10.0 + (whole - lost) * sends)


def test_what_sends_nothing_or_is_written_slowly_loses_nothing():
    assert beside(10.0, 1.0, 0.0) == beside(10.0, 0.0, 0.9) == [10.0, 0.0]
    assert beside(10.0, 1e-9, 0.9) == pytest.approx([10.0, 0.0], abs=1e-6)
    losses = np.array([[beside(10.0, rate, sends)[1] for sends in (0.1, 0.5, 0.9)] for rate in (0.1, 0.5, 0.9)])
    assert (np.diff(losses, axis=0) > 0).all()
    assert (np.diff(losses, axis=1) > 0).all()


def figures(**checkpoint):
    data = files.replace(SCENARIO, ["run", "checkpoint"], {**SCENARIO["run"]["checkpoint"], **checkpoint}, "")
    return crossflow.predict(crossflow.from_dict(data)).run


def test_a_run_loses_what_its_checkpoints_take_of_the_links_of_steps():
    own, shared = figures(links="own"), figures()
    assert own["checkpoint_slowing_s"] == 0.0 < shared["checkpoint_slowing_s"]
    assert shared["checkpoint_commit_s"] == pytest.approx(own["checkpoint_commit_s"] + shared["checkpoint_slowing_s"])
    assert shared["goodput"] < own["goodput"]
    assert shared["checkpoint_stall_s"] == own["checkpoint_stall_s"]


def test_storage_has_links_of_its_own_unless_it_is_said():
    assert figures(to="storage") == figures(to="storage", links="own")
    assert figures(to="storage", links="shared", bandwidth="100 GB/s")["checkpoint_slowing_s"] > 0.0


def test_a_synchronous_checkpoint_is_beside_no_steps():
    with pytest.raises(CrossflowError, match="links: no step runs while a synchronous checkpoint is written; leave it out"):
        figures(kind="synchronous", links="shared")
    assert figures(kind="synchronous")["checkpoint_slowing_s"] == 0.0
