"""A cluster from its file: jobs predicted and given, what they take, what every field changes, what is refused."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base import files
from crossflow.base.errors import SpecError
from crossflow.engine.cluster.account import intensity_until
from crossflow.workload.cluster.spec import ClusterFile, JobCheckpointSpec, JobColumnsSpec, JobsSpec, SchedulerSpec

OPERATION = {"price": "2 USD/hour", "pue": 1.25, "carbon_intensity": "360 g/kWh"}
SYSTEM = {"template": "h100-ib-cluster", "nodes": 2, "operation": OPERATION}
LONG = {"name": "long", "devices": 12, "time": "10 h", "power": "900 W"}
SHORT = {"name": "short", "arrival": "1 h", "devices": 8, "time": "1 h", "power": "800 W", "priority": 1}
DRAWN = {
    "name": "drawn", "arrivals": {"law": "poisson", "rate": "6 1/hour"}, "count": 40, "devices": [1, 4, 8], "time": "40 min",
    "power": "700 W",
}  # fmt: skip
LASTING = {**{key: value for key, value in DRAWN.items() if key != "count"}, "duration": "3 h"}
PLAIN = {"system": SYSTEM, "idle_power": "100 W", "jobs": [LONG, SHORT, DRAWN]}
TRAINING = {"workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp4-dp2"}
PROGRAM = Path(__file__).parents[1] / "docs" / "examples" / "mlp.program.json"
PREDICTED = {"devices": 8, "scenario": {**TRAINING, "run": {"steps": 100}}}


def cluster(**given):
    return crossflow.schedule({**PLAIN, **given})


def alone(**given):
    return crossflow.schedule({"system": SYSTEM, "jobs": [given]})


def test_devices_that_do_not_fill_nodes_are_told_at_the_job():
    """They were told at the first line of the system's template."""
    with pytest.raises(SpecError) as caught:
        crossflow.schedule({"system": SYSTEM, "jobs": [PREDICTED]}, ["jobs.0.devices=12"])
    expected = "jobs[0].devices: 12 devices do not fill nodes of 8; give a multiple of 8, or fewer than that"
    assert str(caught.value) == f"--set jobs.0.devices=12: {expected}"


# ------------------------------------------------------------------------------------------ given facts, by hand


def test_two_jobs_by_hand():
    """16 devices: 12 of them for 10 h, then 8 for 1 h; 900 W and 800 W each, 100 W at rest."""
    found = cluster(jobs=[LONG, SHORT])
    assert found.found.start.tolist() == [0.0, 36000.0]
    assert found.waiting["mean"] == 16200.0
    assert repr(found).endswith(": 2 jobs on 16 devices, 72.7 % in use, 4.5 h of waiting on average)")
    assert found.span == 39600.0
    assert found.utilisation == pytest.approx((12 * 10 + 8) / (16 * 11))
    assert found.energy == pytest.approx(3.6e6 * (120 * 0.9 + 8 * 0.8 + (16 * 11 - 128) * 0.1))
    assert found.account.peak_power == pytest.approx(12 * 900 + 4 * 100)
    assert found.cost == pytest.approx(2.0 * 16 * 11)
    assert found.carbon == pytest.approx(found.energy / 3.6e6 * 0.36)
    assert found.to_dict()["device_hours"] == pytest.approx({"useful": 128, "loading": 0, "lost_work": 0, "saving": 0, "idle": 48})


def test_devices_bring_their_share_of_the_carbon_of_making_them():
    """Of 8 devices over a span of 11 h, as long as they last 5 years; nothing is said where their lifetime is unknown."""
    made = {"template": "pathfinder", "devices": 8, "operation": {"lifetime": "5 years"}}
    jobs = [{"name": "one", "devices": 8, "time": "11 h", "power": "900 W"}]
    found = crossflow.schedule({"system": made, "jobs": jobs})
    each = sum(float(part[0]) for part in found.cluster.device.carbon.values())
    assert each > 1.0
    assert found.embodied_carbon == pytest.approx(8 * each * 11.0 / (5 * 365 * 24), rel=1e-12)
    assert found.to_dict()["embodied_carbon_kg"] == found.embodied_carbon
    assert crossflow.schedule({"system": {**made, "operation": {}}, "jobs": jobs}).embodied_carbon is None


def test_device_time_is_conserved():
    found = cluster(scheduler={"kind": "preemptive", "preemption": "kill"})
    hours = found.to_dict()["device_hours"]
    jobs = found.found.jobs
    assert hours["lost_work"] > 0
    assert hours["useful"] == pytest.approx(float(jobs.devices @ jobs.time) / 3600)
    assert sum(hours.values()) == pytest.approx(16 * found.span / 3600)
    assert sum(one["energy_j"] for one in found.classes) + 100 * hours["idle"] * 3600 == pytest.approx(found.energy)


def test_carbon_of_a_flat_grid_is_energy_times_intensity():
    system = {**SYSTEM, "operation": {"price": "2 USD/hour"}}
    hours = cluster(system=system, carbon_by_hour=["360 g/kWh"] * 24)
    assert hours.carbon == pytest.approx(hours.energy / 3.6e6 * 0.36)
    assert sum(hours.table()["carbon_kg"]) < hours.carbon


def test_carbon_by_hour_by_hand():
    """A job of 1.5 h in hours of 100 and 300 g/kWh, 16 devices of 1 kW: 16 kWh of the first and 8 kWh of the second hour."""
    system = {**SYSTEM, "operation": {"price": "2 USD/hour"}}
    job = {"devices": 16, "time": "1.5 h", "power": "1 kW"}
    assert cluster(system=system, jobs=[job], carbon_by_hour=["100 g/kWh", "300 g/kWh"]).carbon == pytest.approx(1.6 + 2.4)
    later = cluster(system=system, jobs=[{**job, "arrival": "2 h"}], carbon_by_hour=["100 g/kWh", "300 g/kWh"])
    assert later.carbon == pytest.approx(1.6 + 2.4)  # the hours come again


def test_intensities_are_integrated_as_a_sum_over_short_steps():
    rng = np.random.default_rng(0)
    by_hour, step = rng.uniform(0, 1, 5), 3600.0 / 64
    middles = (np.arange(64 * 23) + 0.5) * step
    summed = np.concatenate([[0.0], np.cumsum(by_hour[(middles // 3600).astype(int) % 5] * step)])
    assert intensity_until(by_hour, np.arange(64 * 23 + 1) * step) == pytest.approx(summed)


def test_series_have_the_means_of_the_whole():
    found = cluster()
    series = found.account.series(97)
    assert series["devices"].mean() / 16 == pytest.approx(found.utilisation)
    assert series["power_w"].mean() == pytest.approx(found.power)
    assert series["waiting"].mean() == pytest.approx(found.queue)


# ------------------------------------------------------------------------------------------ predicted jobs


def test_a_job_is_what_its_scenario_predicts():
    found = alone(**PREDICTED)
    run = crossflow.predict({**TRAINING, "system": {**SYSTEM, "nodes": None, "devices": 8}, "run": {"steps": 100}})
    assert found.found.jobs.devices.tolist() == [8]
    assert found.found.jobs.time[0] == pytest.approx(run.run["time_s"])
    assert found.account.energy_of[0] == pytest.approx(run.run["facility_energy_j"])
    assert found.trust.level == crossflow.predict(run.scenario).trust.level
    again = alone(devices=8, scenario=TRAINING, steps=100)
    assert again.found.jobs.time[0] == pytest.approx(run.run["time_s"])
    timed = alone(devices=8, scenario=TRAINING, time="2 h")
    assert timed.found.jobs.time[0] == 7200.0
    assert timed.found.jobs.power[0] == pytest.approx(found.found.jobs.power[0])


def test_a_run_that_fails_brings_its_spares_and_checkpoints():
    run = {"tokens": 1e10, "failures": "llama3-h100", "spares": 1, "checkpoint": {"interval": "1000 s"}}
    found = alone(devices=8, scenario={**TRAINING, "run": run})
    whole = crossflow.predict({**TRAINING, "system": {**SYSTEM, "nodes": None, "devices": 8}, "run": run})
    jobs = found.found.jobs
    assert jobs.devices.tolist() == [16]
    assert jobs.time[0] == pytest.approx(whole.run["time_s"])
    assert found.account.energy_of[0] == pytest.approx(whole.run["facility_energy_j"])
    assert jobs.load[0] == pytest.approx(whole.run["restart_s"])
    assert jobs.interval[0] == pytest.approx(whole.run["checkpoint_interval_s"])
    assert jobs.save[0] == pytest.approx(whole.run["checkpoint_stall_s"] + whole.run["checkpoint_commit_s"])


def test_a_scenario_in_a_file_and_post_training(tmp_path):
    (tmp_path / "one.yaml").write_text(files.yaml_text({"system": {**SYSTEM, "nodes": 1}, **TRAINING, "strategy": "tp4-dp2"}))
    tuned = {**TRAINING, "job": {"kind": "dpo"}}
    data = {"system": SYSTEM, "jobs": [{"scenario": "one.yaml", "time": "1 h"}, {"devices": 8, "scenario": tuned, "steps": 10}]}
    (tmp_path / "all.yaml").write_text(files.yaml_text(data))
    found = crossflow.schedule(tmp_path / "all.yaml")
    iteration = crossflow.predict({**tuned, "system": {**SYSTEM, "nodes": None, "devices": 8}}).job["iteration_time_s"]
    assert found.found.jobs.devices.tolist() == [8, 8]
    assert found.found.jobs.time.tolist() == pytest.approx([3600.0, 10 * iteration])
    energy = crossflow.predict({**tuned, "system": {**SYSTEM, "nodes": None, "devices": 8}}).job["energy_j"]
    assert not any("rated power" in note for note in found.notes)
    assert energy / iteration <= found.found.jobs.power[1] < 2.5 * energy / iteration  # with the hosts


# ------------------------------------------------------------------------------------------ every field


TRACE = "when,much,long,who\n0,8,20000,a\n7200,16,20000,b\n"
KILL = {"kind": "preemptive", "preemption": "kill"}
GANG = {"scheduler": {"kind": "gang", "quantum": "30 min"}}
POD = {
    "system": {"template": "tpu-v4-pod", "nodes": 4}, "placement": "slices",
    "jobs": [
        {"name": "large", "slice": "4x4x8", "time": "3 h", "power": "300 W"},
        {"name": "whole", "slice": "8x8x4", "time": "2 h", "power": "300 W"},
        {"name": "small", "devices": 24, "time": "1 h", "power": "300 W"},
    ],
}  # fmt: skip
WHOLE = {**POD, "jobs": [{"devices": devices, "time": "1 h"} for devices in (48, 48, 48, 48, 64)]}
LEAVES = {"template": "dgx-h100", "nodes": 16, "network": {"inter": {"topology": "fat-tree", "group": 4, "oversubscription": 4}}}
MEETING = {"system": LEAVES, "links": "shared", "idle_power": "500 W"}
MEETS = {"scenario": {**TRAINING, "strategy": "tp8-dp4", "run": {"steps": 9}}, "devices": 32}
FIELDS = {
    "name": (PLAIN, "name", "other"), "idle_power": (PLAIN, "idle_power", "120 W"), "power_cap": (PLAIN, "power_cap", "12 kW"),
    "carbon_by_hour": ({**PLAIN, "system": {**SYSTEM, "operation": {}}}, "carbon_by_hour", ["90 g/kWh"]), "seed": (PLAIN, "seed", 1),
    "system": (PLAIN, "system.nodes", 3), "scheduler": (PLAIN, "scheduler", "backfill"), "jobs": (PLAIN, "jobs", [LONG]),
    "jobs.name": (PLAIN, "jobs.0.name", "x"), "jobs.arrival": (PLAIN, "jobs.1.arrival", "2 h"),
    "jobs.arrivals": (PLAIN, "jobs.2.arrivals.rate", "7 1/hour"), "jobs.count": (PLAIN, "jobs.2.count", 41),
    "jobs.duration": ({**PLAIN, "jobs": [LASTING]}, "jobs.0.duration", "4 h"),
    "jobs.devices": (PLAIN, "jobs.0.devices", 13), "jobs.time": (PLAIN, "jobs.0.time", "9 h"),
    "jobs.power": (PLAIN, "jobs.0.power", "1 kW"), "jobs.slice": (POD, "jobs.0.slice", "2x4x4"), "placement": (WHOLE, "placement", "any"),
    "jobs.priority": (PLAIN, "jobs.1.priority", -1), "jobs.expected": ({**PLAIN, "scheduler": "backfill"}, "jobs.2.expected", 30.0),
    "jobs.preemptible": ({**PLAIN, "scheduler": "preemptive"}, "jobs.0.preemptible", False),
    "jobs.checkpoint": ({**PLAIN, **GANG}, "jobs.0.checkpoint", {"save": "9 min"}),
    "jobs.scenario": ({"system": SYSTEM, "jobs": [PREDICTED]}, "jobs.0.scenario.strategy", "tp8"),
    "jobs.steps": ({"system": SYSTEM, "jobs": [{"devices": 8, "scenario": TRAINING, "steps": 9}]}, "jobs.0.steps", 10),
    "checkpoint.save": ({**PLAIN, **GANG}, "jobs.0.checkpoint", {"save": "9 min"}),
    "checkpoint.load": ({**PLAIN, **GANG}, "jobs.0.checkpoint", {"load": "9 min"}),
    "checkpoint.interval": ({**PLAIN, "scheduler": KILL}, "jobs.0.checkpoint", {"interval": "7 min"}),
    "scheduler.kind": (PLAIN, "scheduler", "preemptive"), "scheduler.quantum": ({**PLAIN, **GANG}, "scheduler.quantum", "20 min"),
    "scheduler.preemption": ({**PLAIN, "scheduler": {"kind": "preemptive"}}, "scheduler.preemption", "kill"),
    "links": ({**MEETING, "links": "own", "jobs": [MEETS, MEETS]}, "links", "shared"),
    "jobs.sends": ({**MEETING, "jobs": [MEETS, MEETS]}, "jobs.0.sends", {"traffic": "ring", "duty": 0.5}),
    "scheduler.depth": ({**PLAIN, "scheduler": {"kind": "backfill"}}, "scheduler.depth", 1),
}  # fmt: skip
OF_TRACES = {
    "trace": "other.csv", "columns.arrival": "long", "columns.devices": "few", "columns.time": "when", "columns.kind": "much",
    "time_unit": "ms", "limit": 1,
}  # fmt: skip
WORDS = ("title", "notes")  # which say nothing to a program


def told(data, base=None):
    if base is not None:
        (base / "cluster.yaml").write_text(files.yaml_text(data))
    found = crossflow.schedule(data if base is None else base / "cluster.yaml")
    return {**found.to_dict(), "table": {name: np.asarray(column).tolist() for name, column in found.table().items()}}


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_moves_an_answer(name):
    data, path, value = FIELDS[name]
    parts = tuple(int(part) if part.isdigit() else part for part in path.split("."))
    assert told(data) != told(files.replace(data, parts, value, path))


@pytest.mark.parametrize("path", OF_TRACES)
def test_every_field_of_a_trace_moves_an_answer(path, tmp_path):
    (tmp_path / "day.csv").write_text(TRACE.replace("who", "who,few").replace(",a", ",a,2").replace(",b", ",b,3"))
    (tmp_path / "other.csv").write_text(
        TRACE.replace("20000,b", "30000,b").replace("who", "who,few").replace(",a", ",a,2").replace(",b", ",b,3")
    )
    columns = {"arrival": "when", "devices": "much", "time": "long", "class": "who"}
    data = {"system": SYSTEM, "jobs": [{"trace": "day.csv", "columns": columns, "time_unit": "s"}]}
    key = path.replace("kind", "class").split(".")
    assert told(data, tmp_path) != told(files.replace(data, ("jobs", 0, *key), OF_TRACES[path], path), tmp_path)


def test_no_field_is_forgotten():
    names = {
        *ClusterFile.model_fields, *(f"jobs.{name}" for name in JobsSpec.model_fields),
        *(f"checkpoint.{name}" for name in JobCheckpointSpec.model_fields), *(f"scheduler.{name}" for name in SchedulerSpec.model_fields),
        *(f"columns.{name}" for name in JobColumnsSpec.model_fields),
    }  # fmt: skip
    of_traces = {name if name.startswith("columns.") else f"jobs.{name}" for name in OF_TRACES}
    assert names == {*FIELDS, *WORDS, *of_traces, "jobs.columns"}


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"scheduler": "lottery"}, "scheduler: expected one of fifo, backfill, gang, preemptive"),
        ({"scheduler": "gang"}, "gang needs a quantum, such as"),
        ({"scheduler": {"kind": "fifo", "depth": 3}}, "depth: only backfill has it; leave it out"),
        ({"system": "h100-ib-cluster-not"}, "system"),
        ({"system": {"template": "h100-sxm"}}, "how many devices has the cluster? give nodes, or devices"),
        ({"jobs": []}, "expected at least one"),
        ({"jobs": [{**LONG, "devices": 17}]}, "jobs[0]: a job needs 17 devices, and the cluster has 16; give it more nodes"),
        ({"jobs": [{**LONG, "devices": 0}]}, "a job needs at least one"),
        ({"jobs": [{**LONG, "time": "10 kg"}]}, "jobs[0].time"),
        ({"jobs": [{"devices": 8}]}, "a job needs time, such as time: 5 h, or a scenario, or a trace"),
        (
            {"jobs": [{**LONG, "time": {"law": "lognormal", "median": "1 h", "p95": None}}]},
            "time: law lognormal takes median and p95 or mean",
        ),
        ({"jobs": [{**LONG, "count": 3}]}, "count: only arrivals have it; leave it out"),
        ({"jobs": [{**LONG, "limit": 3}]}, "limit: only a trace has it; leave it out"),
        ({"jobs": [{**DRAWN, "count": None}]}, "arrivals: give one of count and duration"),
        ({"jobs": [{**DRAWN, "arrival": "1 h"}]}, "arrivals say when jobs come; leave it out"),
        ({"jobs": [{"trace": "no.csv"}]}, "jobs[0].trace: there is no file no.csv"),
        ({"jobs": [{**PREDICTED, "power": "1 W"}]}, "power: the scenario says it; leave it out"),
        ({"jobs": [{"devices": 8, "scenario": TRAINING}]}, "nothing says how long it runs; give its run, such as"),
        ({"jobs": [{**PREDICTED, "steps": 5}]}, "steps: the scenario's run says how long it is"),
        ({"jobs": [{**PREDICTED, "time": "5 h"}]}, "time: the scenario's run says how long it is"),
        ({"jobs": [{**PREDICTED, "devices": 4}]}, "jobs[0]"),
        (
            {"jobs": [{"devices": 8, "time": "1 h", "scenario": {**TRAINING, "system": {"devices": 8}}}]},
            "devices: the scenario says system.devices; leave one of them out",
        ),
        ({"jobs": [{"time": "1 h", "scenario": {**TRAINING, "strategy": "tp2"}}]}, "or say how many devices the job needs"),
        ({"jobs": [{"scenario": {**TRAINING, "system": "dgx-a100"}, "time": "1 h"}]}, "it runs on dgx-a100, and the cluster is of"),
        ({"power_cap": "1 kW"}, "power_cap: the devices draw 1.6 kW at rest, more than 1 kW"),
        ({"power_cap": "9 kW"}, "power_cap: with one job of 12 devices alone the cluster draws 11.2 kW; raise the cap"),
        ({"carbon_by_hour": ["1 g/kWh"]}, "carbon_by_hour: system.operation.carbon_intensity says it too"),
        ({**GANG, "jobs": [{**LONG, "checkpoint": {"load": "1 h"}}]}, "scheduler.quantum: a slice must be longer than the 3600 s"),
        ({"placement": "slices"}, "placement: the devices of h100-ib-cluster are not on one torus or mesh"),
        (
            {"placement": "slices", "system": {"template": "h100-ib-cluster", "nodes": 4, "network": {"inter": {"topology": "torus2d"}}}},
            "are not on one torus or mesh (network.inter joins nodes of 8 devices)",
        ),
        (
            {"system": {"template": "h100-ib-cluster", "nodes": 4, "network": {"inter": {"topology": "torus2d", "shape": [3, 5]}}}},
            "system.network.inter: torus2d shape 3x5 holds 15 nodes, the system has 4",
        ),
        (
            {"jobs": [{"devices": 8, "time": "1 h", "scenario": {**TRAINING, "run": None, "strategy": "dp16"}}]},
            "strategy dp16 needs 16 devices (tp 1 x cp 1 x dp 16 x pp 1), but the system has 8; give the job devices: 16",
        ),
        (
            {"jobs": [{"devices": 1, "time": "1 h", "scenario": {"workload": str(PROGRAM)}}]},
            "written for a mesh of 8 devices (tp 8), but the system has 1; give the job devices: 8",
        ),
        ({"placement": "boxes"}, "placement: expected one of any, slices, got 'boxes'"),
        ({"jobs": [{**LONG, "devices": None, "slice": "2x2x2"}]}, "jobs[0].slice: only placement: slices has slices"),
        ({"devices": 8}, "unknown key 'devices'"),
        ({"carbon_by_hour": []}, "carbon_by_hour: expected at least 1 entry, got []"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(change, sentence):
    with pytest.raises(SpecError) as error:
        cluster(**change)
    assert sentence in str(error.value)


TUNED = {"workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp4-dp16-z3-full"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"scheduler": {"kind": "gang", "quantum": "1 h"}}, "placement: gang takes devices away, and slices stay until their jobs end"),
        ({"scheduler": "gang"}, "placement: gang takes devices away, and slices stay until their jobs end; take backfill"),
        ({"scheduler": "preemptive"}, "placement: preemptive takes devices away"),
        ({"system": {"template": "tpu-v4-pod", "devices": 32}}, "system.devices: optical switches join whole nodes of 64 devices"),
        (
            {"jobs": [{"slice": "4x4x6", "time": "1 h"}]},
            "jobs[0].slice: a slice of 4x4x6 does not fit into 4x4x4; a slice is part of a cube",
        ),
        ({"jobs": [{"slice": "4x4x20", "time": "1 h"}]}, "jobs[0].slice: a slice of 4x4x20 needs 5 cubes, and there are 4"),
        ({"jobs": [{"slice": "4x4", "time": "1 h"}]}, "a slice of 4x4x4 has 3 sizes, 4x4 has 2"),
        (
            {"jobs": [{"slice": "4x4x2", "steps": 1, "scenario": TUNED}]},
            "needs 64 devices (tp 4 x cp 1 x dp 16 x pp 1), but the system has 32; give the job a slice of 64 devices",
        ),
        (
            {"system": {"template": "tpu-v4-pod", "nodes": 4, "network": {"intra": {"wraps": [True, True, False]}}}},
            "system.network.inter: optical switches close the rows of an optical-torus over all of its nodes; leave out wraps of intra",
        ),
        ({"jobs": [{"slice": "4 x 4", "time": "1 h"}]}, "jobs[0].slice: expected the sizes of a slice, such as 4x4x8, got '4 x 4'"),
        ({"jobs": [{"slice": 4, "time": "1 h"}]}, "jobs[0].slice: expected the sizes of a slice, such as 4x4x8, got 4"),
        ({"jobs": [{"slice": "9999x9999", "time": "1 h"}]}, "slice: expected at most 10,000,000 devices, got 99,980,001"),
        ({"jobs": [{"slice": "4x4x4", "devices": 64, "time": "1 h"}]}, "devices: the slice says it; leave it out"),
        (
            {"jobs": [{"devices": 7, "time": "1 h"}]},
            "jobs[0].devices: no slice of cubes of 4x4x4 has 7 devices; the next larger one has 8; take as many, or placement: any",
        ),
        ({"jobs": [{"devices": 300, "time": "1 h"}]}, "no slice of cubes of 4x4x4 has 300 devices; take fewer, or placement: any"),
        ({"jobs": [{"devices": [4, 7], "time": "1 h", "count": 40, "arrivals": DRAWN["arrivals"]}]}, "jobs[0].devices: no slice of cubes"),
        (
            {"jobs": [{"time": "1 h", "scenario": TUNED}]},
            "jobs[0].scenario: the cluster is cut into slices; give slice, such as slice: 4x4x8",
        ),
        (
            {"jobs": [{"slice": "4x4x4", "time": "1 h", "scenario": {**TUNED, "system": {"devices": 64}}}]},
            "jobs[0].slice: it says the devices of the job and their network; leave the scenario's system out",
        ),
        (
            {"jobs": [{"slice": "4x4x4", "scenario": {**TUNED, "run": {"steps": 9, "failures": "llama3-h100", "spares": 1}}}]},
            "jobs[0].scenario: the job needs 128 devices, its spares among them, and its slice has 64; leave out spares",
        ),
    ],
)
def test_slices_that_cannot_be_are_refused_in_a_sentence(change, sentence):
    with pytest.raises(SpecError) as error:
        crossflow.schedule({**POD, **change})
    assert sentence in str(error.value)


def test_jobs_in_slices_tell_where_they_were_and_what_they_waited_for():
    found = crossflow.schedule(POD)
    table = found.table()
    assert table["slice"].tolist() == ["4x4x8", "8x8x4", "2x3x4"]
    assert table["slice_cubes"].tolist() == ["0 1", "0 1 2 3", "0"]
    assert table["slice_corner"].tolist() == ["0 0 0"] * 3
    assert found.found.start.tolist() == [0.0, 3 * 3600.0, 5 * 3600.0]
    assert found.to_dict()["waiting_for_slice_s"] == 0.0  # four cubes were never free
    hours = found.to_dict()["device_hours"]
    assert hours["fragmented"] == 0.0
    assert sum(hours.values()) == pytest.approx(256 * 6)
    # 48 and 48 of 64 devices of two cubes: 32 are free, and no slice of 2x4x4 is.
    some = [{"slice": "3x4x4", "time": "2 h"}, {"slice": "3x4x4", "time": "2 h"}, {"slice": "2x4x4", "arrival": "1 h", "time": "1 h"}]
    apart = crossflow.schedule({**POD, "system": {"template": "tpu-v4-pod", "nodes": 2}, "jobs": some})
    assert apart.table()["waiting_for_slice_s"].tolist() == [0.0, 0.0, 3600.0]
    assert apart.to_dict()["device_hours"]["fragmented"] == 32.0
    assert {"fragmented", "waiting_for_slice_s"} & {*cluster().to_dict(), *cluster().to_dict()["device_hours"]} == set()


def test_a_table_of_jobs_in_slices_reads_back_with_them(tmp_path):
    """2x3x4 and 4x4x8, written by a person, are not those most like a cube of their devices."""
    crossflow.schedule(POD).to_csv(path := tmp_path / "jobs.csv")
    again = {**POD, "jobs": str(path)}
    assert crossflow.schedule(again).table()["slice"].tolist() == ["4x4x8", "8x8x4", "2x3x4"]
    assert any("slices that a trace says are left out" in note for note in crossflow.schedule({**again, "placement": "any"}).notes)
    with pytest.raises(SpecError, match="trace: a slice of 8x8x4 needs 4 cubes, and there are 2"):
        crossflow.schedule({**again, "system": {"template": "tpu-v4-pod", "nodes": 2}})


def test_a_job_has_the_network_of_its_slice():
    def times(**given):
        return crossflow.schedule({**POD, "jobs": [{"scenario": TUNED, "steps": 10, **given}]}).found.jobs.time[0]

    cube = {"system": {"template": "tpu-v4-pod", "devices": 64}, **TUNED}
    assert times(slice="4x4x4") == pytest.approx(10 * crossflow.predict(cube).step_time)
    half = {**cube, "system": {"template": "tpu-v4-pod", "devices": 32, "network": {"intra": {"wraps": [False] * 3, "shape": [2, 4, 4]}}}}
    half["strategy"] = "tp4-dp8-z3-full"
    assert times(slice="2x4x4", scenario={**TUNED, "strategy": half["strategy"]}) == pytest.approx(10 * crossflow.predict(half).step_time)
    assert times(devices=64) == times(slice="4x4x4")
    long, wide = (times(slice=one, scenario={**TUNED, "strategy": "tp4-dp64-z3-full"}) for one in ("4x4x16", "4x8x8"))
    assert long > wide  # rings of 16 hops pass fewer links at once


@pytest.mark.parametrize(
    ("change", "scheduler", "words"),
    [
        ({"expected": 2.0}, "fifo", "fifo does not look at expected of jobs; only backfill does"),
        ({"preemptible": False, "checkpoint": {"save": "1 s"}}, "backfill", "backfill does not look at preemptible and checkpoint of jobs"),
        ({"power": None}, "fifo", "jobs without power draw the rated power of their devices"),
        ({}, "preemptive", "jobs without checkpoint save and load in no time"),
    ],
)
def test_what_changes_nothing_or_is_assumed_is_noted(change, scheduler, words):
    job = {key: value for key, value in {**LONG, **change}.items() if value is not None}
    assert any(words in note for note in cluster(jobs=[job], scheduler=scheduler).notes)
    assert not cluster(jobs=[LONG]).notes


def test_a_backfill_that_looks_at_no_later_job_is_first_come():
    none, first = (cluster(scheduler=one).found for one in ({"kind": "backfill", "depth": 0}, "fifo"))
    assert np.array_equal(none.start, first.start)


def test_a_cluster_is_no_scenario_and_a_scenario_no_cluster(tmp_path, capsys):
    path = tmp_path / "both.yaml"
    path.write_text(files.yaml_text(PLAIN))
    assert main(["predict", str(path)]) == 2
    assert f"this is a cluster with its jobs; schedule them with: crossflow schedule {path}" in capsys.readouterr().err
    path.write_text(files.yaml_text({"system": SYSTEM, **TRAINING}))
    assert main(["schedule", str(path)]) == 2
    assert "this is a scenario, and a cluster has jobs" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ the command


def test_the_command_writes_picture_table_trace_and_answer(tmp_path, capsys):
    path = tmp_path / "campus.yaml"
    path.write_text(files.yaml_text({**PLAIN, "scheduler": {"kind": "preemptive", "preemption": "kill"}}))
    names = [tmp_path / f"jobs{ending}" for ending in (".png", ".csv", ".json.gz", ".json")]
    assert main(["schedule", str(path), *(word for name in names for word in ("-o", str(name))), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads(names[3].read_text())
    assert names[0].stat().st_size > 10_000
    assert len(names[1].read_text().splitlines()) == told["jobs"] + 1
    slices = [one for one in json.loads(gzip.decompress(names[2].read_bytes()))["traceEvents"] if one["ph"] == "X"]
    spent = {}
    for one in slices:
        spent[one["cat"]] = spent.get(one["cat"], 0.0) + one["dur"] * 1e-6 * one["args"]["devices"] / 3600
    hours = {kind: value for kind, value in told["device_hours"].items() if kind != "idle" and value > 0}
    assert spent == pytest.approx(hours)
    for lane in {one["tid"] for one in slices}:
        mine = sorted((one["ts"], one["ts"] + one["dur"]) for one in slices if one["tid"] == lane)
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in itertools.pairwise(mine))


def test_the_picture_of_a_cluster_has_its_devices_its_queue_and_its_power_in_their_units():
    found = cluster()
    _, devices, waiting, power = found.plot().figure.axes

    def scale(axis):
        return float(axis.yaxis.get_major_formatter()(1000.0).replace(",", "").replace(" ", "")) / 1000.0

    def mean(axis):
        return axis.lines[0].get_ydata().mean()

    assert (scale(devices), scale(waiting)) == (1.0, 1.0)
    assert scale(power) == {"power [W]": 1.0, "power [kW]": 1e-3}[power.get_ylabel()]
    assert mean(devices) == pytest.approx(16 * found.utilisation, rel=0.05)  # of moments, not of all time
    assert mean(waiting) == pytest.approx(found.queue, rel=0.05)
    assert mean(power) == pytest.approx(found.power, rel=0.05)
    assert devices.lines[1].get_ydata()[0] == 16
    assert devices.get_ylim()[0] == 0.0
    assert 16 < devices.get_ylim()[1] < 1.2 * 16


def test_the_command_shows_a_page_and_takes_settings(tmp_path, capsys):
    path = tmp_path / "campus.yaml"
    path.write_text(files.yaml_text(PLAIN))
    assert main(["schedule", str(path), "--set", "scheduler=backfill", "jobs.0.time=5 h"]) == 0
    page = capsys.readouterr().out
    for words in (
        "16 devices of h100-ib-cluster, backfill",
        "device-hours",
        "jobs wait on average",
        "long",
        "short",
        "drawn",
    ):
        assert words in page
    assert main(["schedule", str(path), "-o", str(tmp_path / "x.pdf")]) == 2
    assert "the table of all jobs in .csv" in capsys.readouterr().err


def test_a_table_of_jobs_reads_back_as_a_trace(tmp_path):
    first = cluster()
    first.to_csv(tmp_path / "jobs.csv")
    (tmp_path / "again.yaml").write_text(files.yaml_text({"system": SYSTEM, "jobs": "jobs.csv"}))
    second = crossflow.schedule(tmp_path / "again.yaml")
    assert (second.found.jobs.arrival == first.found.jobs.arrival).all()
    names = [np.array(one.cluster.classes)[one.cluster.kind].tolist() for one in (first, second)]
    assert names[0] == names[1]
