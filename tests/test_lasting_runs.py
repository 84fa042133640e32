"""Runs of scenarios that are interrupted: every field moves an answer or is refused, sizes and times by hand, sentences for wrong files."""

import functools

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.lasting import drawn
from crossflow.answers.scenario_file import RunLength
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.engine.lasting.spec import CheckpointSpec, JitterSpec, MaintenanceSpec, ReliabilitySpec, RestartSpec, _assumed, rates

MODEL = {"model": "transformer", "layers": 8, "hidden": 4096, "heads": 32, "ffn": 16384, "vocabulary": 32000, "sequence": 2048,
         "global_batch": 4096}  # fmt: skip
CAUSES = {"node": {"rate": "0.02 1/day", "per": "node", "detection": "2 min", "repair": "5 h"}}
SCENARIO = {
    "system": {"template": "h100-ib-cluster", "nodes": 1024}, "workload": MODEL, "strategy": {"tp": 8, "dp": 1024, "zero": 1},
    "run": {"tokens": 1e15, "failures": CAUSES},
}  # fmt: skip


def changed(path=None, value=None):
    data = SCENARIO if path is None else files.replace(SCENARIO, path.split("."), value, path)
    return crossflow.from_dict(data)


@functools.cache
def figures():
    return dict(crossflow.predict(changed()).run)


def test_a_file_of_another_kind_has_no_rates(tmp_path):
    path = tmp_path / "stack.yaml"
    path.write_text("kind: software\nname: stack\n")
    with pytest.raises(CrossflowError, match=f"run.failures: {path} is no reliability file; its kind is not reliability"):
        changed("run.failures", str(path))


FIELDS = {
    "run.failures": "rsc-1-a100",
    "run.failures.node.rate": "0.03 1/day", "run.failures.node.low": "0.01 1/day", "run.failures.node.high": "0.03 1/day",
    "run.failures.node.per": "device", "run.failures.node.nodes": 32,
    "run.failures.node.detection": "9 min", "run.failures.node.diagnosis": "9 min",
    "run.failures.node.repair": "9 h", "run.failures.node.silent": True, "run.failures.node.again": 0.4, "run.failures.node.slowdown": 1.5,
    "run.checkpoint.kind": "synchronous", "run.checkpoint.to": "neighbours", "run.checkpoint.layout": "consolidated",
    "run.checkpoint.links": "shared",
    "run.checkpoint.interval": "900 s", "run.checkpoint.steps": 100, "run.checkpoint.bandwidth": "100 MB/s",
    "run.checkpoint.storage_bandwidth": "10 GB/s",
    "run.restart.schedule": "9 min", "run.restart.load": "9 min", "run.restart.warm_up": "9 min",
    "run.spares": 1, "run.elastic": True, "run.maintenance": {"every": "5 days", "length": "1 h"},
    "run.maintenance.every": "2 days", "run.maintenance.length": "2 h",
    "run.jitter": {"spread": 0.02}, "run.jitter.spread": 0.03, "run.jitter.per": "node", "run.jitter.law": "exponential",
}  # fmt: skip
UNSHARED = {
    "run.failures.node.nodes": {"run.failures.node": {**CAUSES["node"], "per": "domain"}},
    "run.failures.node.slowdown": {"run.failures.node": {"rate": "0.02 1/day", "per": "node", "detection": "2 min"}},
    "run.jitter.per": {"run.jitter": {"spread": 0.02}},
    "run.jitter.law": {"run.jitter": {"spread": 0.02}},
    "run.maintenance.every": {"run.maintenance": {"length": "1 h"}},
    "run.maintenance.length": {"run.maintenance": {"every": "9 days"}},
}


def test_every_field_of_an_interrupted_run_is_here():
    own = {f"run.{name}" for name in RunLength.model_fields} - {"run.samples", "run.tokens", "run.steps", "run.phases"}
    sections = {"checkpoint": CheckpointSpec, "restart": RestartSpec, "maintenance": MaintenanceSpec, "jitter": JitterSpec}
    inner = {f"run.{key}.{name}" for key, model in sections.items() for name in model.model_fields}
    causes = {path for path in FIELDS if path.startswith("run.failures.")}
    assert (own | inner | causes) - {"run.checkpoint", "run.restart"} == set(FIELDS)


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_moves_an_answer(path):
    data = SCENARIO
    for other, value in UNSHARED.get(path, {}).items():
        data = files.replace(data, other.split("."), value, other)
    plain = crossflow.predict(crossflow.from_dict(data)).run if path in UNSHARED and path.startswith("run.jitter") else figures()
    data = files.replace(data, path.split("."), FIELDS[path], path)
    assert dict(crossflow.predict(crossflow.from_dict(data)).run) != dict(plain)


REFUSED = [
    ("run.failures", "rsc", "scenario: run.failures: unknown reliability file 'rsc'"),
    ("run.failures", "common", "scenario: run.failures: common has no causes; name another file, or write causes into the scenario"),
    ("run.failures", {}, "scenario: run.failures: no cause stands here; give one"),
    ("run.failures", {"": {"rate": "1 1/year"}}, "scenario: run.failures: the name of a cause is empty; give it one, such as gpu: {rate: "),
    ("run.failures.mtbf", "5 years", "run.failures.mtbf: a cause says its rate and how it is noticed, such as mtbf: {rate: 2 "),
    ("run.failures.node.rate", "3 s", "scenario: run.failures.node.rate: expected a quantity in 1/s, got '3 s'"),
    ("run.failures.node.slowdown", 1.5, "run.failures.node: repair is of what stops the job, and a slowdown does not"),
    ("run.failures.node.per", "domain", "run.failures.node: a domain has a number of nodes; give it, such as nodes: 8"),
    ("run.failures.node.nodes", 8, "run.failures.node: nodes is of a domain, and this is per node; take per: domain, or leave nodes out"),
    ("run.failures.node.slowdown", 0.5, "run.failures.node.slowdown: "),
    ("run.failures.node.again", 1.0, "run.failures.node.again: "),
    ("run.failures.node.count", 3, "scenario: run.failures.node: give one of rate and count"),
    ("run.failures.node.low", "1 1/s", "scenario: run.failures.node: low, rate and high must not decrease"),
    ("run.failures", {"node": {"count": 3, "per": "job", "detection": "1 s"}}, "run.failures.node.count: only a file says where"),
    ("run.checkpoint", {"steps": 3, "interval": "9 s"}, "run.checkpoint: give one of interval and steps"),
    ("run.checkpoint", {"to": "neighbours", "bandwidth": "1 GB/s"}, "of a storage, and it is written to neighbours; leave them out"),
    ("run", {"steps": 3, "spares": 2}, "run: spares needs failures, such as failures: llama3-h100; give it, or leave spares out"),
    ("workload.task", "prefill", "run.failures: a transformer that is trained is interrupted and comes back; workload.task is prefill"),
    ("run.spares", -1, "run.spares: "),
    ("run.jitter", {"spread": 1.5}, "run.jitter.spread: "),
    ("run.jitter", {"spread": 0.1, "per": "rack"}, "run.jitter.per: "),
    ("run", {"steps": 3, "jitter": {"spread": 0.1}, "spares": 2}, "run: spares needs failures, such as failures: llama3-h100; give it"),
    ("run", {"steps": 3, "jitter": {"spread": 0.1}, "failures": {"jitter": CAUSES["node"]}}, "run.failures.jitter: run.jitter has this "),
    (
        "run", {"steps": 3, "maintenance": {"every": "30 days", "length": "1 h"}, "failures": {"maintenance": CAUSES["node"]}},
        "run.failures.maintenance: run.maintenance has this ",
    ),
    ("run.maintenance", {"every": "0 s", "length": "1 s"}, "run.maintenance.every: expected greater than 0 s, got '0 s'"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(path, value, sentence):
    with pytest.raises(CrossflowError) as caught:
        changed(path, value)
    assert sentence in str(caught.value)


def test_peers_take_the_work_of_broken_stages_in_bubbles():
    staged = files.replace(SCENARIO, ["strategy"], "tp8-pp4-dp256-mb1-z1", "")
    given = {"tokens": 1e15, "failures": {"node": {**CAUSES["node"], "repair": "9 days"}}, "spares": 0}

    def shrunk(elastic, strategy="tp8-pp4-dp256-mb1-z1"):
        data = files.replace(files.replace(staged, ["strategy"], strategy, ""), ["run"], {**given, "elastic": elastic}, "")
        return crossflow.predict(crossflow.from_dict(data)).run["shrunk_share"]

    assert 0.0 < shrunk("reroute") < shrunk(True)


@pytest.mark.parametrize(
    ("strategy", "nodes", "like", "said"),
    [
        ("tp8-pp4-dp1", 4, False, "run.elastic changes nothing here: there is one replica, which waits for its nodes"),
        ("tp8-dp1024-z1", 1024, True, "run.elastic: reroute is as elastic: true here: a pipeline of one stage has no bubbles"),
    ],
)
def test_what_a_layout_leaves_of_elasticity_is_told(strategy, nodes, like, said):
    """One replica has no peers, and one stage no bubbles; plans of other layouts can be compared with them."""
    given = {"tokens": 1e15, "failures": {"node": {**CAUSES["node"], "repair": "9 days"}}, "spares": 0}
    data = files.replace(files.replace(SCENARIO, ["strategy"], strategy, ""), ["system", "nodes"], nodes, "")

    def run(elastic):
        return crossflow.predict(crossflow.from_dict(files.replace(data, ["run"], {**given, "elastic": elastic}, "")))

    assert run("reroute").run["goodput"] == run(like).run["goodput"]
    assert said in run("reroute").notes
    assert said not in run(False).notes
    (draw,) = drawn(run("reroute").scenario, run("reroute").score, 0)
    assert (draw.times["waiting"] > 0) == (not like)


def test_steps_that_vary_need_no_failures_and_take_what_the_slowest_does():
    """8,192 devices whose computing varies by 2 %: each step waits for the slowest, the run for all steps; nothing else is lost."""
    quiet, jitter = {"tokens": 1e15}, {"tokens": 1e15, "jitter": {"spread": 0.02}}
    plain, found = (crossflow.predict(changed("run", run)) for run in (quiet, jitter))
    assert plain.step_time == found.step_time
    computing = 1 - sum(found.breakdown.get(part, 0.0) for part in ("exposed_communication", "bubble")) / found.step_time
    more = found.run["time_s"] / plain.run["time_s"] - 1
    # Of 8,192 normal draws the largest is 3.86 standard deviations above the mean; the tail of the log-normal law is a little longer.
    assert more == pytest.approx(0.02 * computing * 3.86, rel=0.06)
    assert found.run["cause.jitter_share"] == found.run["slowed_share"] == pytest.approx(1 - 1 / (1 + more))
    assert found.run["mean_step_s"] == pytest.approx(found.step_time * (1 + more))
    assert found.run["mean_step_s"] < found.run["p99_step_s"] < 1.05 * found.run["mean_step_s"]
    assert found.run["interruptions"] == found.run["spares"] == 0
    assert not [note for note in found.notes if note.startswith("run")]
    (draw,) = drawn(found.scenario, found.score, 0)
    assert draw.duration == pytest.approx(found.run["time_s"], rel=1e-3)


def test_one_device_waits_for_no_other():
    data = {"system": {"template": "h100-ib-cluster", "devices": 1, "nodes": 1, "devices_per_node": 1}, "workload": {**MODEL, "layers": 1,
        "global_batch": 1}, "strategy": "tp1", "run": {"steps": 10, "jitter": {"spread": 0.2}}}  # fmt: skip
    found = crossflow.predict(crossflow.from_dict(data))
    assert found.run["goodput"] == pytest.approx(1)
    assert "run.jitter changes nothing here: there is one device, which waits for no other" in found.notes


@pytest.mark.parametrize("task", ["prefill", "decode"])
def test_steps_of_requests_do_not_vary_so(task):
    workload = MODEL | {"task": task}
    data = files.replace(files.replace(SCENARIO, ["workload"], workload, ""), ["run"], {"steps": 9, "jitter": {"spread": 0.1}}, "")
    with pytest.raises(CrossflowError, match=f"run.jitter: a transformer that is trained has steps that wait .* workload.task is {task}"):
        crossflow.from_dict(data)


def test_one_node_has_no_neighbours():
    data = files.replace(SCENARIO, ["system", "nodes"], 1, "")
    data = files.replace(data, ["strategy", "dp"], 1, "")
    with pytest.raises(CrossflowError, match="the system has one node, which has no neighbours"):
        crossflow.from_dict(files.replace(data, ["run", "checkpoint"], {"to": "neighbours"}, ""))


def test_a_checkpoint_is_sixteen_bytes_a_parameter_and_its_times_by_hand():
    """Weights in bf16, fp32 weights and two fp32 moments: 2 + 4 + 8 bytes. Over PCIe 5, storage at 1 GB/s a node."""
    scenario = changed()
    found, score = crossflow.predict(scenario).run, evaluate(scenario)
    size = score.parameters[0] * 14
    bus = 64e9 * scenario.system.network.parameters.pcie_efficiency[0]
    assert found["checkpoint_bytes"] == pytest.approx(size)
    assert found["checkpoint_stall_s"] == pytest.approx(size / 8192 / bus)
    assert found["checkpoint_commit_s"] == pytest.approx(size / 1024 / 1e9)
    assert found["restart_s"] == pytest.approx(180 + 120 + size / 1024 / 1e9)


def test_time_money_and_energy_count_what_is_lost_and_what_stands_by():
    priced = files.replace(SCENARIO, ["system", "operation"], {"price": "2 USD/hour"}, "")
    found = crossflow.predict(crossflow.from_dict(priced)).run
    plain = crossflow.predict(crossflow.from_dict(files.replace(priced, ["run"], {"tokens": 1e15}, ""))).run
    assert found["undisturbed_time_s"] == plain["time_s"]
    assert found["time_s"] == pytest.approx(plain["time_s"] / found["goodput"])
    assert found["device_hours"] == pytest.approx((8192 + 8 * found["spares"]) * found["time_s"] / 3600)
    assert found["cost_usd"] == pytest.approx(2 * found["device_hours"])
    assert found["energy_j"] == pytest.approx(plain["energy_j"] * (1 + found["lost_work_share"] / found["goodput"]))
    kinds = [value for name, value in found.items() if name.endswith("_share") and not name.startswith("cause.")]
    assert sum(kinds) + found["goodput"] == pytest.approx(1)


def test_a_batch_of_sizes_is_the_sizes_one_by_one():
    points = {"system.nodes": [128, 1024], "strategy": ["tp8-dp128-z1", "tp8-dp1024-z1"]}
    score = evaluate(changed(), points)
    for i, nodes in enumerate(points["system.nodes"]):
        data = files.replace(SCENARIO, ["system", "nodes"], nodes, "")
        alone = crossflow.predict(crossflow.from_dict(files.replace(data, ["strategy", "dp"], nodes, ""))).run
        assert {name: float(values[i]) for name, values in score.run.items() if name != "cost_usd"} == pytest.approx(
            {name: value for name, value in alone.items() if name != "cost_usd"}
        )


def test_rates_of_counts_have_the_intervals_of_poisson():
    path = files.find("templates", "llama3-h100")
    spec = files.validate(ReliabilitySpec, files.read_yaml(path), sourced=True)
    assert sum(one.count for one in spec.causes.values()) == 419
    found = rates(spec, "silent-data-corruption")
    exposure = 54 * 86400 * 16384
    # 90 % interval of a Poisson mean with 6 counted: 2.61 to 11.84 (Garwood's table).
    assert np.array([found.low, found.rate, found.high]) * exposure == pytest.approx([2.613, 6, 11.842], abs=1e-3)


def test_a_domain_of_one_node_is_a_node():
    alone = crossflow.predict(changed("run.failures.node", {**CAUSES["node"], "per": "domain", "nodes": 1})).run
    assert dict(alone) == figures()


def test_domains_of_a_job_are_those_that_it_lies_in():
    """1,024 nodes in racks of 36 lie in 29 racks, the last of which holds 16 of them; nodes away are those of all racks, whatever fills
    them."""
    rack = {"rate": "0.01 1/day", "per": "domain", "nodes": 36, "detection": "0 s", "repair": "1 h"}
    run = crossflow.predict(changed("run", {"tokens": 1e15, "failures": {"rack": rack}, "restart": {"schedule": "0 s", "load": "0 s",
        "warm_up": "0 s"}, "spares": 500})).run  # fmt: skip
    assert run["mean_time_between_interruptions_s"] == pytest.approx(86400 / 0.01 / 29)
    assert run["nodes_in_repair"] == pytest.approx(0.01 / 24 * 1024)


def test_uncertain_rates_give_an_interval_and_better_ones_never_a_longer_run():
    found = figures()
    wide = crossflow.predict(changed("run.failures.node", {**CAUSES["node"], "low": "0.01 1/day", "high": "0.03 1/day"})).run
    assert wide["goodput_low"] < wide["goodput"] == found["goodput"] == found["goodput_low"] < wide["goodput_high"]
    assert wide["time_low_s"] < wide["time_s"] < wide["time_high_s"]


def test_only_what_is_assumed_is_told_as_assumed():
    """Numbers of all causes once each, others by their path; what was measured is not told."""
    assumed, measured = ({"value": "3 min", "source": "a source", "status": status} for status in ("assumed", "measured"))
    causes = {"gpu": {"repair": assumed, "detection": measured}, "host": {"repair": assumed}}
    found = _assumed({"restart": {"schedule": assumed, "warm_up": measured}, "causes": causes})
    assert list(found) == ["restart.schedule", "repair of causes"]
