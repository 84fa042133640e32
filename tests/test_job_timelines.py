"""Timelines of post-training jobs: an iteration, phase by phase, agrees with its figures."""

import gzip
import json

import numpy as np
import pytest
from test_post_training import BARE, DPO, GRPO, ROLLOUT, TAKES

import crossflow
from crossflow.base.errors import CrossflowError
from crossflow.edges.cli.timeline import summary
from crossflow.engine.timeline.record import HOST

APART = {**ROLLOUT, "devices": 8}
JOBS = {
    "dpo": DPO, "grpo": GRPO, "overheads": TAKES, "stays": {**GRPO, "job": {**GRPO["job"], "offload": False}},
    "apart": {**TAKES, "job": {**BARE, "rollout": APART}},
    "beside": {**GRPO, "job": {**GRPO["job"], "rollout": {**APART, "staleness": 2}}},
    "partial": {**GRPO, "job": {**GRPO["job"], "rollout": {**ROLLOUT, "partial": 0.5}}},
    "ppo": {**GRPO, "job": {**GRPO["job"], "kind": "ppo", "epochs": 2}},
}  # fmt: skip


def both(name):
    scenario = crossflow.from_dict(JOBS[name])
    return crossflow.predict(scenario).job, crossflow.timeline(scenario)


def lengths(found, name):
    """Time of all events whose name holds a word, on every class of devices. [s]"""
    events = [found.events(device) for device in range(len(found.devices))]
    mine = [np.array([name in found.names[i] for i in one.name.tolist()], dtype=bool) for one in events]
    return [float((one.end - one.start)[here].sum()) for one, here in zip(events, mine, strict=True)]


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", JOBS)
def test_a_timeline_is_the_iteration_that_is_predicted(name):
    job, found = both(name)
    assert found.total == pytest.approx(job["iteration_time_s"], rel=1e-12)
    assert found.slots.end.max() == pytest.approx(found.total, rel=1e-9)
    np.testing.assert_allclose(sum(found.activity().values()), found.total, rtol=1e-9)
    assert sum(len(device.ranks) for device in found.devices) == job["devices"] == len({r for d in found.devices for r in d.ranks})
    for phase, word in {"reference_pass": "reference forward", "training": "training", "transfer": "weights"}.items():
        others = job["phases_s"].get("critic_training", 0.0) if phase == "training" else 0.0
        assert max(lengths(found, word)) == pytest.approx(job["phases_s"].get(phase, 0.0) + others, rel=1e-9, abs=1e-12)


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", ["grpo", "overheads", "apart", "beside", "partial"])
def test_engines_write_as_long_as_they_are_not_idle(name):
    job, found = both(name)
    writing = np.array([time for time, device in zip(lengths(found, "rollout"), found.devices, strict=True) if "engine" in device.name])
    assert writing.max() <= job["phases_s"]["rollout"] * (1 + 1e-9)
    assert writing.mean() == pytest.approx(job["phases_s"]["rollout"] * (1 - job["engine_idle_share"]), rel=1e-6)


@pytest.mark.parametrize("name", ["dpo", "grpo", "stays", "apart", "ppo"])
def test_the_fullest_moment_is_the_memory_of_the_job(name):
    job, found = both(name)
    peaks = [float(held.max()) for _, held in found.memory]
    assert peaks[0] == pytest.approx(job["memory_bytes"], rel=1e-12)
    if name == "apart":
        assert peaks[-1] == pytest.approx(job["rollout_memory_bytes"], rel=1e-12)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_training_waits_for_the_last_engine_and_asynchronous_training_for_none():
    for name, waits in (("apart", True), ("beside", False)):
        _, found = both(name)
        train = min(found.slots.start[found.slots_of(0)][1:])
        written = max(found.slots.end[found.slots.device > 0])
        assert bool(train >= written * (1 - 1e-12)) is waits
    _, found = both("apart")
    path = [found.devices[int(found.slots.device[slot])].name for slot in found.critical_path()]
    assert path[-1] == "training"
    assert any("engine" in one for one in path)


def test_what_a_trainer_takes_keeps_devices_waiting_for_the_host():
    job, found = both("overheads")
    host = [float((one.end - one.start)[one.stream == HOST].sum()) for one in map(found.events, range(len(found.devices)))]
    assert host == pytest.approx([job["phases_s"]["handling"] + job["phases_s"]["refit"]] * 4, rel=1e-9)


def test_it_is_written_and_told_as_other_timelines_are(tmp_path):
    _, found = both("apart")
    found.to_perfetto(tmp_path / "job.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "job.json.gz").read_bytes()))["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {device.name for device in found.devices}
    assert {"rollout", "training", "reference forward"} <= {event["name"] for event in events}
    told = summary(found)
    assert told["iteration_time_s"] == found.total
    assert "step_time_s" not in told


def test_what_has_no_timeline_is_refused(tmp_path):
    with pytest.raises(CrossflowError, match="devices that differ are supported for a single step only"):
        crossflow.timeline(crossflow.from_dict(GRPO), uneven=crossflow.Uneven(ranks={0: 0.5}))
    full = {**DPO, "job": {"kind": "distill", "teacher": {"model": "llama3-70b"}}}
    with pytest.raises(CrossflowError, match="GiB"):
        crossflow.timeline(crossflow.from_dict(full))
