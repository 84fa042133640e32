"""Answers that said less than is known, or something else than was asked."""

import numpy as np
import pytest

import crossflow
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.workload.requests.record import RequestTrace

ASKED = {"arrivals": {"law": "poisson", "rate": "2 1/s"}, "count": 20, "prompt": 200, "output": 10}
SERVICE = {"system": "dgx-h100", "workload": {"model": "llama3-8b", "task": "serving"}, "strategy": "tp1-dp8"}


@pytest.mark.parametrize("task", ["decode", "prefill", "serving", "training"])
def test_devices_that_nothing_connects_are_answered_by_systems_of_them(task):
    with pytest.raises(
        CrossflowError, match="h100-sxm is a device, and nothing connects 8 of them; name a system of it such as aws-p5, dgx"
    ):
        crossflow.predict(model="llama3-8b", on="h100-sxm", devices=8, task=task)
    assert crossflow.predict(model="llama3-8b", on="h100-sxm", task="decode").feasible


def test_a_study_of_goodput_ends_in_goodput(tmp_path):
    found = crossflow.study("goodput", out=tmp_path)
    best = max(range(len(found.rows)), key=lambda i: found.rows[i]["run.goodput"])
    assert found.summary.startswith("24 points, 24 feasible; highest goodput: 0.98")
    assert found.rows[best]["cluster"] in found.summary
    assert not any("slower than the fastest" in note for note in found.notes)


def test_slices_of_a_batch_are_refused_where_requests_arrive():
    sliced = {**SERVICE, "workload": {**SERVICE["workload"], "serving": {"router": "slices"}}}
    with pytest.raises(
        CrossflowError, match=r"workload.serving.router: slices cuts a batch that is there at once, and these requests arrive"
    ):
        crossflow.serve({**sliced, "requests": ASKED})
    together = RequestTrace.of(np.zeros(20), np.full(20, 200), np.full(20, 10))
    assert len(crossflow.serve({**sliced, "requests": ASKED, "strategy": "tp1-dp8"}, together).trace) == 20


def test_a_checkpoint_beside_a_job_is_not_told_to_give_failures():
    made = {"system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp8"}
    run = {"steps": 100, "checkpoint": {"interval": "1 hour", "to": "storage", "storage_bandwidth": "1 TB/s"}}
    with pytest.raises(SpecError, match="give it, or leave checkpoint out"):
        crossflow.from_dict({**made, "run": run})
    with pytest.raises(SpecError) as error:
        crossflow.from_dict({**made, "run": run, "job": {"kind": "dpo"}})
    assert "leave checkpoint out" in str(error.value)
    assert "give it" not in str(error.value)
