"""Post-training jobs: what an iteration is made of, its laws, and what is refused."""

import functools
import json
import math
import types

import numpy as np
import pytest
from test_switches import leaves

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation import post_training
from crossflow.answers.evaluation.continued import continued, worked, written_by
from crossflow.answers.evaluation.events import events
from crossflow.answers.evaluation.figures import check_objective, usual_objective
from crossflow.answers.evaluation.post_training import parts_of
from crossflow.answers.evaluation.replaying import replayed_scenario
from crossflow.answers.scenario import requests_of
from crossflow.answers.score import larger_is_better
from crossflow.answers.steps.machines import machine
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.workload.requests.post_training import PostTrainingSpec

LLAMA = {"model": "llama3-8b", "sequence": 512, "global_batch": 16}
DPO = {
    "system": {"template": "dgx-h100", "devices": 8}, "workload": LLAMA, "strategy": "tp2-dp4-z1", "job": {"kind": "dpo"},
}  # fmt: skip
ROLLOUT = {"prompts": 8, "answers": 4, "prompt": 64, "answer": {"law": "lognormal", "mean": 128, "cv": 0.6}, "strategy": "tp2"}
BARE = {"kind": "grpo", "offload": True, "rollout": ROLLOUT}
GRPO = {**DPO, "job": {**BARE, "overheads": "none"}}
TAKES = {**DPO, "job": BARE}  # what a trainer takes beside its phases, as measured


@functools.cache
def plain(task="training"):
    data = {key: value for key, value in DPO.items() if key != "job"}
    return crossflow.predict(crossflow.from_dict({**data, "workload": {**LLAMA, "task": task}, "software": "megatron-core"}))


def job(data=DPO, **changes):
    return crossflow.predict(crossflow.from_dict({**data, "job": {**data["job"], **changes}})).job


def rolled(**changes):
    return job(GRPO, rollout={**ROLLOUT, **changes})


def refusal(data=DPO, top=(), **changes):
    with pytest.raises(CrossflowError) as found:
        crossflow.predict(crossflow.from_dict({**data, "job": {**data["job"], **changes}, **dict(top)}))
    return str(found.value)


# ------------------------------------------------------------------------------------------ what an iteration is made of


def test_dpo_is_a_training_step_and_a_forward_pass_of_the_reference():
    found, step, passed = job(), plain(), plain("forward")
    assert found["iteration_time_s"] == pytest.approx(step.step_time + passed.step_time, rel=1e-12)
    assert found["samples_per_second"] == pytest.approx(16 / (step.step_time + passed.step_time), rel=1e-12)
    assert found["tokens_per_second"] == pytest.approx(512 * found["samples_per_second"], rel=1e-12)


TEACHER = {"model": "mpt-1b", "strategy": "tp8"}
LISTS = {  # what the kinds of jobs are, as a file may list it
    "dpo": ({}, [{"read": "reference"}, {"train": "policy"}]),
    "distill": ({"teacher": TEACHER}, [{"read": "teacher", **TEACHER}, {"train": "policy"}]),
    "grpo": (
        {"epochs": 2, "rollout": ROLLOUT, "offload": True},
        [{"read": "reference"}, {"read": "policy"}, {"train": "policy", "times": 2}],
    ),
    "ppo": (
        {"critic": {"model": "mpt-1b"}, "rollout": ROLLOUT, "offload": True},
        [{"read": "reference"}, {"read": "reward"}, {"read": "critic", "model": "mpt-1b"}, {"read": "policy"},
         {"train": "critic", "model": "mpt-1b"}, {"train": "policy"}],
    ),
}  # fmt: skip


def listed(phases, **changes):
    return job({**DPO, "job": {"kind": "phases"}}, phases=phases, **changes)


@pytest.mark.parametrize("kind", LISTS)
def test_a_kind_of_job_is_a_list_of_phases(kind):
    changes, phases = LISTS[kind]
    beside = {key: value for key, value in changes.items() if key in ("rollout", "offload")}
    own, found = job(kind=kind, **changes), listed(phases, **beside)
    ours = {name.replace("old_policy", "policy"): value for name, value in own.pop("phases_s").items()}
    assert found.pop("phases_s") == ours
    assert {key: value for key, value in found.items() if key not in ("kind", "trust_of", "bound_by")} == {
        key: value for key, value in own.items() if key not in ("kind", "trust_of", "bound_by")
    }


def test_phases_that_a_file_lists_add_up_in_any_order():
    """A judge of its own reads every answer twice, and the policy trains on one of four."""
    phases = [{"read": "judge", **TEACHER, "times": 2}, {"read": "policy"}, {"train": "policy", "times": 0.25}]
    found = listed(phases, rollout=ROLLOUT, offload=True, overheads="none")
    times = found["phases_s"]
    judged = crossflow.predict(crossflow.from_dict({
        **{key: value for key, value in DPO.items() if key != "job"}, "software": "megatron-core", "strategy": "tp8",
        "workload": {**LLAMA, "model": "mpt-1b", "task": "forward"},
    }))  # fmt: skip
    assert times["judge_pass"] == pytest.approx(2 * 2 * judged.step_time, rel=1e-12)  # 32 answers, 16 a step
    assert times["training"] == pytest.approx(0.25 * 2 * plain().step_time, rel=1e-12)
    assert times["policy_pass"] == pytest.approx(2 * plain("forward").step_time, rel=1e-12)
    assert found["iteration_time_s"] == pytest.approx(sum(times.values()), rel=1e-12)
    other = listed(phases[::-1], rollout=ROLLOUT, offload=True, overheads="none")
    assert other["iteration_time_s"] == pytest.approx(found["iteration_time_s"], rel=1e-12)
    assert list(other["phases_s"])[-3:] != list(times)[-3:]


def test_a_listed_model_that_stays_is_held_beside_the_others():
    """The policy that reads needs no second copy; another model has its weights, and one that trains its whole state."""
    alone, read, trained = (
        listed([*more, {"train": "policy"}])["memory_bytes"]
        for more in ([{"read": "policy"}], [{"read": "judge"}], [{"read": "critic"}, {"train": "critic"}])
    )
    assert alone == pytest.approx(plain().memory.total, rel=1e-12)
    assert read - alone == pytest.approx(plain("forward").memory["weights"], rel=1e-12)
    state = sum(plain().memory[name] for name in ("weights", "gradients", "optimizer"))
    assert trained - alone == pytest.approx(state, rel=1e-12)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"phases": []}, "phases: the policy trains in an iteration; add {train: policy}"),
    ({"phases": [{"train": "policy"}, {"read": "judge"}, {"read": "judge"}]}, "phases: judge is listed twice to read; give times: 2"),
    ({"phases": [{"train": "policy"}, {"read": "critic", "model": "mpt-1b"}, {"train": "critic"}]}, "phases: critic is one model"),
    ({"phases": [{"train": "policy", "model": "mpt-1b"}]}, "policy is the scenario's own model, with its strategy; leave model"),
    ({"phases": [{"train": "policy", "read": "policy"}]}, "say what the phase does: read, or train"),
    ({"phases": [{"times": 2}]}, "say what the phase does: read, or train"),
    ({"phases": [{"read": "rollout"}, {"train": "policy"}]}, "rollout is a phase by itself; give the model another name"),
    ({"phases": [{"read": "a-b"}, {"train": "policy"}]}, "expected a letter, then letters, digits and _"),
    ({"phases": [{"train": "policy"}], "reference": {}}, "give phases: [{read: reference}]"),
    ({"phases": [{"train": "policy"}], "epochs": 2, "rollout": ROLLOUT}, "give phases: [{train: policy, times: 2}]"),
    ({"phases": [{"train": "policy"}], "kind": "dpo"}, "phases: those of a job of kind dpo are known; give kind: phases"),
    ({"phases": [{"read": "judge", "strategy": "tp3"}, {"train": "policy"}]}, "job.phases: judge: "),
    ({"phases": [{"read": "judge", "model": "no-such"}, {"train": "policy"}]}, "job.phases: judge"),
])  # fmt: skip
def test_lists_that_are_wrong_are_told(changes, sentence):
    assert sentence in refusal({**DPO, "job": {"kind": "phases"}}, **changes)


@pytest.mark.parametrize(("given", "cure"), [
    ("[{reads: judge}, {train: policy}]", "unknown key 'reads'; did you mean 'job.phases[0].read'?"),
    ("[{foo: judge}, {train: policy}]", "unknown key 'foo'; known keys: model, read, strategy, times, train"),
])  # fmt: skip
def test_a_key_of_a_list_that_is_set_is_looked_for_in_the_list(given, cure, tmp_path, capsys):
    (tmp_path / "job.json").write_text(json.dumps(PHASES))
    assert main(["predict", str(tmp_path / "job.json"), "--set", f"job.phases={given}"]) == 2
    assert cure in capsys.readouterr().err


def test_a_listed_phase_that_does_not_run_is_named():
    phases = [{"read": "judge", "model": "llama3-70b", "strategy": "dp8"}, {"train": "policy"}]
    found = crossflow.predict(crossflow.from_dict({**DPO, "job": {"kind": "phases", "phases": phases}}))
    assert not found.feasible
    assert found.reason.startswith("job.phases: judge: ")


def test_models_that_stay_are_held_beside_each_other():
    weights = plain("forward").memory["weights"]
    step = plain().memory.total
    assert job()["memory_bytes"] == pytest.approx(step + weights, rel=1e-12)
    assert job(offload=True)["memory_bytes"] == pytest.approx(step, rel=1e-12)


def test_what_waits_on_the_host_passes_the_bus():
    step, passed, system = plain(), plain("forward"), crossflow.from_dict(DPO).system
    bus = float(system.network.host.bandwidth[0] * system.network.parameters.pcie_efficiency[0])
    moved = 2 * (step.memory["weights"] + step.memory["optimizer"]) + passed.memory["weights"]
    assert job(offload=True)["phases_s"]["moving"] == pytest.approx(moved / bus, rel=1e-12)


def test_a_teacher_is_a_model_of_its_own_with_a_plan_of_its_own():
    found = job(kind="distill", teacher={"model": "llama3-70b", "strategy": "tp8"}, offload=True)
    passed = crossflow.predict(crossflow.from_dict({
        **{key: value for key, value in DPO.items() if key != "job"}, "software": "megatron-core", "strategy": "tp8",
        "workload": {**LLAMA, "model": "llama3-70b", "task": "forward"},
    }))  # fmt: skip
    assert found["phases_s"]["teacher_pass"] == pytest.approx(passed.step_time, rel=1e-12)


def test_the_reference_of_adapters_is_the_model_without_them():
    adapted = {**DPO, "workload": {**LLAMA, "adapters": {"rank": 16}}}
    found = job(adapted)
    step = crossflow.predict(crossflow.from_dict({key: value for key, value in adapted.items() if key != "job"}))
    assert found["phases_s"]["reference_pass"] == pytest.approx(plain("forward").step_time, rel=1e-12)
    assert found["memory_bytes"] == pytest.approx(max(step.memory.total, found["memory_bytes"]), rel=1e-12)
    assert found["memory_bytes"] < step.memory.total + plain("forward").memory["weights"]


def test_an_iteration_of_grpo_is_the_sum_of_its_phases():
    found = job(GRPO)
    phases = found["phases_s"]
    assert set(phases) == {"rollout", "transfer", "reference_pass", "old_policy_pass", "training", "moving"}
    assert found["iteration_time_s"] == pytest.approx(sum(phases.values()), rel=1e-12)
    assert phases["training"] == pytest.approx(2 * plain().step_time, rel=1e-12)  # 32 answers, 16 a step
    assert phases["reference_pass"] == pytest.approx(2 * plain("forward").step_time, rel=1e-12)


def test_the_rollout_is_a_replay_of_a_batch():
    requests = {"batch": 8, "answers": 4, "prompt": 64, "output": ROLLOUT["answer"]}
    served = {"model": "llama3-8b", "task": "serving", "serving": {"router": "slices"}}
    service = {"system": DPO["system"], "workload": served, "strategy": "tp2-dp4", "software": "vllm"}
    found = crossflow.serve(crossflow.from_dict({**service, "requests": requests}))
    assert job(GRPO)["phases_s"]["rollout"] == pytest.approx(found.span, rel=1e-12)


ANEW = {"like": "vllm", "engine": {"prefixes": False}}  # engines that keep no prefixes


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("more", [{"prompt": 350}, {"prompt": {"law": "uniform", "low": 17, "high": 500}, "seed": 3}, {"prompts": 20}])
def test_a_prompt_that_its_answers_share_never_slows_a_rollout(more):
    shared, anew = (rolled(**more, software=software) for software in ("vllm", ANEW))
    assert shared["phases_s"]["rollout"] < anew["phases_s"]["rollout"]
    assert shared["longest_answer"] == anew["longest_answer"]


@pytest.mark.thorough  # what it runs quicker tests run too
def test_one_answer_of_a_prompt_shares_nothing():
    one, anew = (rolled(prompts=32, answers=1, software=software) for software in ("vllm", ANEW))
    assert one["phases_s"] == anew["phases_s"]
    requests = {"batch": 32, "prompt": 64, "output": ROLLOUT["answer"]}
    service = {"system": DPO["system"], "workload": {"model": "llama3-8b", "task": "serving"}, "strategy": "tp2-dp4", "software": "vllm"}
    assert one["phases_s"]["rollout"] == crossflow.serve(crossflow.from_dict({**service, "requests": requests})).span


def test_a_group_reads_its_prompt_once_but_for_the_rest_of_a_block():
    """By hand: of 8 prompts of 70 tokens, each with 4 answers, engines read 70 for one answer and 70 - 64 for the three others."""
    rollout = parts_of(crossflow.from_dict({**GRPO, "job": {**BARE, "rollout": {**ROLLOUT, "prompt": 70}}})).rollout
    assert sum(jumps.tokens.sum() for jumps in crossflow.serve(rollout).found.jumps) == 8 * (70 + 3 * 6)
    told = crossflow.predict(crossflow.from_dict({**GRPO, "job": {**BARE, "rollout": {**ROLLOUT, "software": ANEW}}})).notes
    assert any("each answer reads its prompt anew" in note for note in told)


def test_a_critic_reads_and_trains():
    found = job({**GRPO, "job": {**GRPO["job"], "kind": "ppo"}})["phases_s"]
    assert found["critic_training"] == found["training"]
    assert found["critic_pass"] == found["reward_pass"] == found["reference_pass"]
    without = job({**GRPO, "job": {**GRPO["job"], "kind": "ppo"}}, reference="none", reward="none", old_policy=False, epochs=2)["phases_s"]
    assert set(without) == {"rollout", "transfer", "critic_pass", "critic_training", "training", "moving"}
    assert without["training"] == pytest.approx(2 * found["training"], rel=1e-12)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_what_a_trainer_takes_beside_its_phases_is_counted():
    bare, whole = job(GRPO), job(TAKES)
    phases = whole["phases_s"]
    assert phases["handling"] == pytest.approx(32 * 5.2e-3, rel=1e-12)
    weights = 2 * 8.030261248e9  # of the whole model, in 16 bits
    assert phases["refit"] == pytest.approx(5.1 + weights / 25e9, rel=1e-4)
    steps = whole["longest_answer"]  # of the engine that writes it: the prompts are read in the first
    assert phases["rollout"] - bare["phases_s"]["rollout"] == pytest.approx(4.6e-3 * steps, rel=0.02)
    assert whole["iteration_time_s"] == pytest.approx(sum(phases.values()), rel=1e-12)
    assert {name: phases[name] for name in phases if name not in ("rollout", "refit", "handling")} == {
        name: value for name, value in bare["phases_s"].items() if name != "rollout"
    }
    nothing = job(TAKES, overheads={"step": "0 s", "refit": "0 s", "refit_rate": "1e30 B/s", "sample": "0 s"})
    assert nothing["iteration_time_s"] == pytest.approx(bare["iteration_time_s"], rel=1e-12)


def test_engines_on_devices_of_their_own_do_not_wake_up():
    assert "refit" not in job(TAKES, rollout={**ROLLOUT, "devices": 8})["phases_s"]


def test_energy_and_rent_are_those_of_all_devices_for_the_whole_iteration():
    step, passed = plain(), plain("forward")
    found = job()
    assert found["energy_j"] == pytest.approx(step.energy + passed.energy, rel=1e-12)
    assert "cost_usd" not in found
    assert crossflow.predict(crossflow.from_dict(DPO)).score.unit_of("job.energy_j") == "J"
    assert "needs system.operation.price" in refusal_of_column("job.cost_usd")
    rented = {**TAKES, "system": {**DPO["system"], "operation": {"price": "3.6 USD/hour"}}}
    turns, beside = job(rented), job(rented, rollout={**ROLLOUT, "devices": 8, "staleness": 1})
    assert turns["cost_usd"] == pytest.approx(8 * 1e-3 * turns["iteration_time_s"], rel=1e-9)
    assert beside["cost_usd"] == pytest.approx(16 * 1e-3 * beside["iteration_time_s"], rel=1e-9)
    tokens = turns["tokens_per_second"] * turns["iteration_time_s"]
    assert turns["usd_per_million_tokens"] == pytest.approx(1e6 * turns["cost_usd"] / tokens, rel=1e-12)
    # Waiting longer costs what devices draw at rest, on all of them.
    longer = job(rented, overheads={"sample": f"{5.2e-3 + 1 / 32} s"})
    resting = float(crossflow.from_dict(DPO).architecture.static_power[0])
    assert longer["iteration_time_s"] - turns["iteration_time_s"] == pytest.approx(1.0, rel=1e-9)
    assert longer["energy_j"] - turns["energy_j"] == pytest.approx(8 * resting, rel=1e-6)


def refusal_of_column(column):
    with pytest.raises(CrossflowError) as found:
        check_objective(crossflow.from_dict(DPO), crossflow.predict(crossflow.from_dict(DPO)).score.columns(), column)
    return str(found.value)


def test_a_step_of_a_run_is_an_iteration():
    system = {**DPO["system"], "operation": {"price": "3.6 USD/hour", "carbon_intensity": "0.3 kg/kWh", "pue": 1.0}}
    made = {**TAKES, "system": system, "job": {**BARE, "rollout": {**ROLLOUT, "devices": 8}}}
    found = crossflow.predict(crossflow.from_dict({**made, "run": {"steps": 100}}))
    iteration, run = found.job, found.run
    assert run["steps"] == 100
    assert run["time_s"] == pytest.approx(100 * iteration["iteration_time_s"], rel=1e-12)
    assert run["device_hours"] == pytest.approx(16 * run["time_s"] / 3600, rel=1e-12)
    assert run["cost_usd"] == pytest.approx(100 * iteration["cost_usd"], rel=1e-9)
    assert run["energy_j"] == pytest.approx(100 * iteration["energy_j"], rel=1e-9)
    assert run["carbon_kg"] == pytest.approx(run["facility_energy_j"] / 3.6e6 * 0.3, rel=1e-9)
    tokens = iteration["tokens_per_second"] * iteration["iteration_time_s"]
    for key, amount in (("samples", 3200), ("tokens", 100 * tokens)):
        other = crossflow.predict(crossflow.from_dict({**made, "run": {key: amount}}))
        assert other.run["time_s"] == pytest.approx(run["time_s"], rel=1e-9), key
    dpo = crossflow.predict(crossflow.from_dict({**DPO, "run": {"samples": 1600}}))
    assert dpo.run["time_s"] == pytest.approx(100 * dpo.job["iteration_time_s"], rel=1e-12)
    assert "a step of the run is an iteration of the job" in dpo.notes
    many = crossflow.evaluate(crossflow.from_dict({**made, "run": {"steps": 100}}), {"job.rollout.strategy": ["tp2", "tp4"]})
    assert many["run.time_s"][0] == run["time_s"]
    np.testing.assert_allclose(many["run.time_s"], 100 * many["job.iteration_time_s"], rtol=1e-12)


# ------------------------------------------------------------------------------------------ laws


@pytest.mark.thorough
def test_more_devices_never_slow_the_rollout_and_longer_tails_never_hurry_it():
    times = [rolled(devices=devices)["phases_s"]["rollout"] for devices in (4, 8)]
    assert times == sorted(times, reverse=True)
    tails = [rolled(answer={"law": "lognormal", "mean": 128, "cv": cv})["phases_s"]["rollout"] for cv in (0.1, 0.6)]
    assert tails == sorted(tails)


@pytest.mark.thorough
def test_engines_that_write_meanwhile_are_never_slower():
    waits, ahead, further = (rolled(devices=8, staleness=staleness) for staleness in (0, 1, 4))
    assert waits["iteration_time_s"] == pytest.approx(sum(waits["phases_s"].values()), rel=1e-12)
    phases = ahead["phases_s"]
    rest = sum(time for name, time in phases.items() if name not in ("rollout", "transfer"))
    assert ahead["iteration_time_s"] == pytest.approx(max(phases["rollout"], rest) + phases["transfer"], rel=1e-12)
    assert further["iteration_time_s"] <= ahead["iteration_time_s"] <= waits["iteration_time_s"]


def test_weights_that_lie_as_engines_need_them_do_not_travel():
    assert job(GRPO)["phases_s"]["transfer"] == 0.0
    divided = rolled(strategy="tp1")["phases_s"]["transfer"]
    weights, link = 16.06e9, 450e9  # of llama3-8b in 16 bits; NVLink
    assert weights / 2 / link < divided < 3 * weights / link
    assert rolled(devices=8)["phases_s"]["transfer"] > divided / 10


@pytest.mark.thorough  # what it runs quicker tests run too
def test_weights_that_are_cut_across_travel_but_for_a_part_of_a_part():
    """Layers on a rank of training, columns of all layers on one of an engine: an eighth of an eighth lies where it is needed."""
    across = job({**GRPO, "strategy": "pp8"}, rollout={**ROLLOUT, "strategy": "tp8"})["phases_s"]["transfer"]
    nested = job({**GRPO, "strategy": "tp8"}, rollout={**ROLLOUT, "strategy": "tp1"})["phases_s"]["transfer"]
    assert 0.05 * nested < across < 0.2 * nested  # 7/64 of the model beside 7/8
    copied = job({**GRPO, "strategy": "tp1-cp8-z1", "workload": {**LLAMA, "sequence": 1024}}, rollout={**ROLLOUT, "strategy": "tp1"})
    assert copied["phases_s"]["transfer"] == 0.0


# Plan of training, that of an engine, its devices where it has its own -> the operation, bytes over those of the model, the group's size
# and its members in a node of four. By hand: an engine's rank gathers the share that it lacks; a gathering of h parts names all of them.
TRAVELS = {
    "columns to all": ("tp4-dp2", "tp1", {}, "all_gather", 1.0, 4, 4),  # three quarters are lacking, of four parts
    "layers to columns": ("pp8", "tp8", {}, "all_gather", 1 / 8, 8, 4),  # 1/8 of the model, of which 1/8 of 1/8 is there
    "shards of zero": ("tp2-dp4-z3", "tp2", {}, "all_gather", 1 / 2, 4, 2),  # 1/2 of the model, of which 1/8 is there; ranks two apart
    "shards of stages": ("pp2-dp4-z3", "tp1", {}, "all_gather", 1.0, 8, 4),  # seven eighths are lacking, of eight parts
    "to devices that write": ("tp2-dp4", "tp4", {"devices": 8}, "send_recv", 1 / 2, 2, 1),  # each rank of training sends its half
    "to engines of fewer": ("tp8", "tp2", {"devices": 8}, "send_recv", 1 / 2, 2, 1),  # each rank of an engine takes a half
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("case", TRAVELS)
def test_weights_travel_as_they_do_by_hand(case, monkeypatch):
    plan, engine, apart, wanted, share, size, inside = TRAVELS[case]
    sent = []

    def noted(scenario, architecture):
        runs_on = machine(scenario, architecture)
        wires = types.SimpleNamespace(time=lambda op, sizes, group: sent.append((op, sizes, group)) or runs_on.wires.time(op, sizes, group))
        return types.SimpleNamespace(wires=wires, node=runs_on.node)

    system = {"template": "dgx-h100", "devices": 8, "devices_per_node": 4}
    monkeypatch.setattr(post_training, "machine", noted)
    rollout = {**ROLLOUT, "prompts": 4, "answers": 4, "strategy": engine, **apart}
    found = job({**GRPO, "system": system, "workload": {**LLAMA, "model": "mpt-1b"}, "strategy": plan}, rollout=rollout)
    ((op, sizes, group),) = sent
    data = {"system": system, "workload": {"model": "mpt-1b", "task": "decode"}, "strategy": "tp1-dp8", "software": "vllm"}
    whole = crossflow.predict(data).memory["weights"]
    assert (op, int(group.size[0]), int(group.per_node[0])) == (wanted, size, inside)
    assert float(sizes[0]) == pytest.approx(share * whole, rel=0.03)  # norms are on every rank
    assert found["phases_s"]["transfer"] > 0.0


def test_experts_travel_by_themselves(monkeypatch):
    """Four ranks of a mixture share its experts out, and engines have all of them: three quarters of experts are lacking, nothing else."""
    experts = {"count": 8, "active": 2}
    size = {
        "layers": 4,
        "hidden": 1024,
        "heads": 16,
        "ffn": 4096,
        "vocabulary": 32000,
        **{key: LLAMA[key] for key in ("sequence", "global_batch")},
    }
    model = {"model": "transformer", **size, "experts": experts}
    sent, time = [], type(machine_of(DPO).wires).time
    monkeypatch.setattr(type(machine_of(DPO).wires), "time", lambda *given: sent.append(given) or time(*given))
    made = {**GRPO, "workload": model, "strategy": "tp2-dp4-ep4"}
    found = job(made, reference="none", old_policy=False, rollout={**ROLLOUT, "prompts": 4, "answers": 4})
    of_experts, others = 4 * 8 * 3 * 1024 * 4096, 4 * 4 * 1024**2 + 2 * 32000 * 1024
    lacking = 0.75 * of_experts / (of_experts + others)
    holders = math.ceil(1 / (1 - lacking))
    on_engine = (of_experts + others) / 2 * 2  # of two ranks one, with 2 bytes a weight
    (gathered,) = [given for given in sent if given[1] == "all_gather" and given[2].size == 1 and int(given[3].size[0]) == holders][:1]
    assert float(gathered[2][0]) == pytest.approx(on_engine * lacking * holders / (holders - 1), rel=0.01)
    assert found["phases_s"]["transfer"] == time(*gathered).item()


def machine_of(data):
    scenario = crossflow.from_dict({key: value for key, value in data.items() if key != "job"})
    return machine(scenario, scenario.architecture)


def test_engines_on_the_devices_of_training_take_their_memory():
    """All else waits on the host: the fullest device has the larger of engine and step; of engines elsewhere it has nothing."""
    served = {"model": "llama3-8b", "task": "serving", "serving": {"router": "slices"}}
    service = {"system": DPO["system"], "workload": served, "strategy": "tp1-dp8", "software": "vllm"}
    asked = {"batch": 8, "answers": 4, "prompt": 64, "output": ROLLOUT["answer"]}
    engine = crossflow.evaluate(crossflow.from_dict({**service, "requests": asked})).memory_needed[0]
    made, rollout = {**GRPO, "strategy": "tp8"}, {**ROLLOUT, "strategy": "tp1"}
    step = job(made, rollout={**rollout, "devices": 8})["memory_bytes"]
    assert step < engine
    assert job(made, rollout=rollout)["memory_bytes"] == pytest.approx(engine, rel=1e-12)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_padding_and_idle_shares_by_hand():
    """Prompts of 64 and answers of 128 tokens in samples of 512: five eighths are padding; all answers end together."""
    found = rolled(answer=128)
    assert found["padding_share"] == pytest.approx(1 - 192 / 512, rel=1e-12)
    assert (found["mean_answer"], found["longest_answer"]) == (128, 128)
    assert found["tokens_per_second"] == pytest.approx(192 * found["samples_per_second"], rel=1e-12)
    assert found["samples_per_second"] == pytest.approx(32 / found["iteration_time_s"], rel=1e-12)
    assert found["tokens_per_second_per_device"] == pytest.approx(found["tokens_per_second"] / 8, rel=1e-12)
    rollout = found["phases_s"]["rollout"]
    assert found["training_idle_share"] == pytest.approx(found["engine_idle_share"] * rollout / found["iteration_time_s"], rel=1e-12)
    assert "rollout_idle_share" not in found
    assert rolled()["longest_answer"] > 1.2 * rolled()["mean_answer"]


def test_models_that_wait_need_room_on_the_host():
    """Eight devices share the host evenly: a GiB less than what waits on it is too little, a GiB more is enough."""
    weights, step = plain("forward").memory["weights"], plain()
    waiting = step.memory["weights"] + step.memory["optimizer"] + step.memory["gradients"] + weights
    for more, fits in ((-(2**30), False), (2**30, True)):
        host = {"capacity": f"{8 * (waiting + more):.0f} B", "bandwidth": "400 GB/s", "utilisation": 0.5}
        made = {**DPO, "system": {**DPO["system"], "host": host}, "job": {"kind": "dpo", "offload": True}}
        found = crossflow.predict(made)
        assert found.feasible is fits, found.reason


@pytest.mark.thorough  # what it runs quicker tests run too
def test_lengths_that_are_drawn_a_little_longer_are_no_shorter_samples():
    for seed in range(6):
        assert job({**GRPO, "workload": {**LLAMA, "sequence": 192}}, rollout={**ROLLOUT, "seed": seed})["iteration_time_s"] > 0
    assert "fewer than prompt and answer" in str(
        crossflow.predict(crossflow.from_dict({**GRPO, "workload": {**LLAMA, "sequence": 128}})).reason
    )


def test_the_pool_that_takes_longer_bounds_an_asynchronous_job():
    rollout = {**ROLLOUT, "devices": 32, "staleness": 4}
    found = job({**GRPO, "workload": {**LLAMA, "sequence": 4096, "global_batch": 32}}, rollout=rollout)
    training = sum(time for name, time in found["phases_s"].items() if name not in ("rollout", "transfer"))
    assert training > found["phases_s"]["rollout"]
    assert found["bound_by"] == "training"


def test_a_policy_that_is_alone_on_its_devices_does_not_move():
    found = job(GRPO, reference="none", old_policy=False, rollout={**ROLLOUT, "devices": 8})
    assert found["phases_s"]["moving"] == 0.0
    assert job(GRPO, reference="none", old_policy=False)["phases_s"]["moving"] > 0.0  # beside engines


def test_engines_are_told_by_the_keys_of_the_job():
    assert refusal(GRPO, rollout={**ROLLOUT, "strategy": "tp2-z3"}).startswith("job.rollout.strategy: an engine is divided by tp, pp, cp")
    assert refusal(GRPO, rollout={**ROLLOUT, "devices": 12}).startswith("job.rollout.devices: 12 devices do not fill nodes")
    assert refusal(GRPO, rollout={**ROLLOUT, "answer": "none.csv"}).startswith("job.rollout.answer: there is no file none.csv")


# ------------------------------------------------------------------------------------------ partial rollouts


TAILS = ({"answers": 1, "prompts": 16}, {"prompts": 4, "devices": 8, "staleness": 2})


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("more", TAILS)
def test_answers_that_go_on_never_slow_an_iteration_of_long_tails(more):
    whole, partial = rolled(**more), rolled(**more, partial=0.5)
    assert partial["phases_s"]["rollout"] < whole["phases_s"]["rollout"]
    assert partial["engine_idle_share"] < whole["engine_idle_share"]
    assert partial["iteration_time_s"] <= whole["iteration_time_s"]


@pytest.mark.thorough  # what it runs quicker tests run too
def test_answers_of_one_length_end_together_and_gain_nothing():
    whole, partial = rolled(answer=128), rolled(answer=128, partial=0.5)
    assert partial["phases_s"]["rollout"] == pytest.approx(whole["phases_s"]["rollout"], rel=0.02)
    assert partial["staleness_most"] == 1.0  # complete, and trained on an iteration later


@functools.cache
def iterations(partial=0.5, **more):
    scenario = crossflow.from_dict({**GRPO, "job": {**BARE, "rollout": {**ROLLOUT, "partial": partial, **more}}})
    spec = scenario.post_training.rollout
    return continued(parts_of(scenario).rollout, spec.at_once, spec.under_way, spec.answers)


@pytest.mark.cases(1)
@pytest.mark.parametrize("partial", [0.25, 1.0])
def test_tokens_are_conserved_and_ages_follow_littles_law(partial):
    found = iterations(partial)
    assert sum(one.wrote for one in found.rounds) == sum(one.complete[0] for one in found.rounds) + found.left
    assert all(len(one.ages) == 32 for one in found.rounds)
    # Of 1 + partial prompts at the beginning of an iteration one leaves: so many iterations each is there in the mean, its last included.
    assert found.ages.mean() == pytest.approx(partial, rel=0.2)
    assert 0 < found.stale < 1


def test_what_is_written_by_a_time_is_what_engines_have_given():
    """Until the end of any jump requests have what their engines gave: a token at the end of the prompt, then one a step."""
    scenario = parts_of(crossflow.from_dict(GRPO)).rollout
    run = replayed_scenario(scenario, requests_of(scenario))
    found = run.found
    for jumps, i in ((jumps, i) for i, jumps in enumerate(found.jumps)):
        for when in jumps.ended[:: max(len(jumps.ended) // 5, 1)]:
            mine = found.where == i
            given = jumps.wrote[jumps.ended <= when].sum() + (found.first[mine] <= when).sum()
            assert written_by(run, float(when))[mine].sum() == pytest.approx(given, abs=mine.sum() / 4)
    assert written_by(run, float(found.last.max())).tolist() == found.output.tolist()
    assert written_by(run, 0.0).sum() == 0
    busy, energy = worked(run, float(found.last.max()))
    assert busy == pytest.approx(sum(jumps.busy for jumps in found.jumps) / 4 / found.last.max(), rel=1e-9)
    assert energy == pytest.approx(crossflow.serve(scenario).power * found.last.max(), rel=1e-6)


def test_idle_shares_are_of_the_pool():
    found = rolled(devices=8)
    rest = sum(time for name, time in found["phases_s"].items() if name != "rollout")
    assert found["training_idle_share"] == pytest.approx(1 - rest / found["iteration_time_s"], rel=1e-12)
    assert 0 < found["engine_idle_share"] < found["rollout_idle_share"] < 1
    assert found["devices"] == 16


def test_a_rollout_is_extrapolated_at_best():
    found = crossflow.predict(crossflow.from_dict(GRPO))
    assert found.job["trust"] == found.score.trusted[0] == "extrapolated"
    assert job()["trust"] == plain("forward").trust.level


def test_points_of_a_batch_are_as_each_alone():
    scenario = crossflow.from_dict(GRPO)
    score = crossflow.evaluate(
        scenario, {"job.rollout.strategy": ["tp2", "tp4", "tp3"], "system.network.intra.bandwidth": ["450 GB/s", "300 GB/s", "450 GB/s"]}
    )
    alone = [
        scenario.replace({"job.rollout.strategy": "tp2"}),
        scenario.replace({"job.rollout.strategy": "tp4", "system.network.intra.bandwidth": "300 GB/s"}),
    ]
    expected = [crossflow.evaluate(one)["job.iteration_time_s"][0] for one in alone]
    np.testing.assert_allclose(score["job.iteration_time_s"][:2], expected, rtol=1e-12)
    assert score.feasible.tolist() == [True, True, False]
    assert score.why(2) == "job.rollout.strategy: engines of 3 devices do not fill 8; give job.rollout.devices, or another plan"


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("data", "changes", "sentence"),
    [
        (DPO, {"kind": "sft"}, "job.kind: sft is a training step; give workload.task: training, and leave job out"),
        (DPO, {"teacher": {"model": "llama3-70b"}}, "teacher: a job of kind dpo has none, only distill; leave it out"),
        (DPO, {"reference": "none"}, "reference: a job of kind dpo does not run without it; leave out none"),
        (DPO, {"kind": "distill"}, "teacher: name the model that teaches"),
        (DPO, {"kind": "grpo"}, "rollout: grpo trains on answers; say how they are written"),
        (DPO, {"overheads": "none"}, "overheads: a job of kind dpo writes no answers"),
        (TAKES, {"overheads": {"refit": "9 s"}, "rollout": {**ROLLOUT, "devices": 8}}, "overheads.refit: engines on devices of their own"),
        (TAKES, {"overheads": {"step": "4"}}, "job.overheads.step: "),
        (TAKES, {"overheads": {"refit_rate": "0 GB/s"}}, "job.overheads.refit_rate: expected more than 0 B/s"),
        (DPO, {"epochs": 2}, "epochs: a job of kind dpo writes no answers"),
        (DPO, {"reference": {"model": "nonsense"}}, "job.reference: workload.model: unknown model 'nonsense'"),
        (DPO, {"reference": {"strategy": "tp16"}}, "job.reference: strategy tp16"),
        (GRPO, {"rollout": {**ROLLOUT, "strategy": "tp3"}}, "job.rollout.strategy: engines of 3 devices do not fill 8"),
        (GRPO, {"rollout": {**ROLLOUT, "strategy": "tp2-dp2"}}, "job.rollout.strategy: expected the plan of one engine"),
        (GRPO, {"rollout": {**ROLLOUT, "prompts": 9}}, "its 36 answers do not fill training steps of 16 samples"),
        (GRPO, {"rollout": {**ROLLOUT, "staleness": 1}}, "give rollout.devices, or leave it out"),
        (GRPO, {"rollout": {**ROLLOUT, "partial": 0.05}}, "rollout.partial: 0.05 of 8 prompts is none; give at least 0.12"),
        (GRPO, {"rollout": {**ROLLOUT, "partial": 0}}, "job.rollout.partial: expected more than 0"),
        (GRPO, {"rollout": {**ROLLOUT, "partial": True}}, "job.rollout.partial: "),
        (GRPO, {"rollout": {**ROLLOUT, "prompt": 0}}, "rollout.prompt: it has at least one token"),
        (GRPO, {"rollout": {**ROLLOUT, "prompts": 10**6}}, "at most 200,000 answers are replayed"),
    ],
)
def test_what_has_no_meaning_is_refused(data, changes, sentence):
    assert sentence in refusal(data, **changes)


def test_jobs_are_of_training_steps_alone():
    assert "workload.task is forward" in refusal(top={"workload": {**LLAMA, "task": "forward"}})
    assert "interruptions are supported for training steps only" in refusal(top={"run": {"steps": 10, "failures": "llama3-h100"}})
    with pytest.raises(CrossflowError, match="leave out job for its training step"):
        events(crossflow.from_dict(DPO))


def test_what_has_no_room_is_told():
    whole = crossflow.predict(crossflow.from_dict({**DPO, "job": {"kind": "distill", "teacher": {"model": "llama3-70b"}}}))
    assert not whole.feasible
    assert "GiB" in whole.reason
    resident = crossflow.predict(crossflow.from_dict({**GRPO, "strategy": "dp8", "job": {**GRPO["job"], "offload": False}}))
    assert not resident.feasible
    beside = crossflow.predict(crossflow.from_dict({**GRPO, "job": {**GRPO["job"], "offload": False}}))
    assert beside.feasible
    assert beside.job["memory_bytes"] <= beside.memory.capacity
    short = crossflow.predict(crossflow.from_dict({**GRPO, "workload": {**LLAMA, "sequence": 128}}))
    assert short.reason.startswith("workload.sequence: 128 tokens per sample are fewer than")


def test_columns_are_objectives_of_studies():
    score = crossflow.sweep(crossflow.from_dict(DPO), {"strategy": ["tp2-dp4-z1", "tp4-dp2-z1"]})
    assert score.unit_of("job.iteration_time_s") == score.unit_of("job.phase.training_s") == "s"
    assert usual_objective(crossflow.from_dict(DPO)) == "job.iteration_time_s"
    assert larger_is_better("job.samples_per_second")
    with pytest.raises(CrossflowError, match="needs a job: section"):
        check_objective(plain().scenario, score.columns(), "job.iteration_time_s")
    assert repr(score).startswith("Score(2 points, 2 feasible, fastest ")
    assert score.best["job.iteration_time_s"][0] == score["job.iteration_time_s"].min()
    with pytest.raises(SpecError):
        crossflow.from_dict({**DPO, "job": {"kind": "dpo", "nonsense": 1}})


# ------------------------------------------------------------------------------------------ every field


PPO = {**GRPO, "job": {**GRPO["job"], "kind": "ppo"}}
LAWS = ("job.rollout.prompt.", "job.rollout.answer.")  # of lengths, which tests/test_requests_fields.py asks about
NAMES = {"job.phases.0.read", "job.phases.0.train"}  # of models: what they read and train is asked above
PHASES = {**DPO, "job": {"kind": "phases", "phases": [{"read": "judge"}, {"train": "policy"}]}}
# Every field with a scenario in which it matters, and a value that moves an iteration.
MATTERS = {
    "job.kind": (DPO, "distill", {"job.reference": None, "job.teacher.model": "llama3-70b", "job.offload": True}),
    "job.reference.model": (DPO, "mpt-1b", {}), "job.reference.strategy": (DPO, "tp8", {}),
    "job.teacher.model": (DPO, "llama3-70b", {"job.kind": "distill", "job.offload": True}),
    "job.teacher.strategy": (DPO, "tp4-dp2", {"job.kind": "distill", "job.teacher.model": "llama3-8b"}),
    "job.reward.model": (GRPO, "mpt-1b", {}), "job.reward.strategy": (PPO, "tp8", {}),
    "job.critic.model": (PPO, "mpt-1b", {}), "job.critic.strategy": (PPO, "tp8", {}),
    "job.old_policy": (GRPO, False, {}), "job.epochs": (GRPO, 2, {}), "job.offload": (DPO, True, {}),
    "job.phases.0.model": (PHASES, "mpt-1b", {}), "job.phases.0.strategy": (PHASES, "tp8", {}), "job.phases.0.times": (PHASES, 2, {}),
    "job.rollout.prompts": (GRPO, 4, {}), "job.rollout.answers": (GRPO, 8, {}), "job.rollout.prompt": (GRPO, 96, {}),
    "job.rollout.answer": (GRPO, 200, {}), "job.rollout.strategy": (GRPO, "tp4", {}), "job.rollout.software": (GRPO, "sglang", {}),
    "job.rollout.devices": (GRPO, 8, {}), "job.rollout.staleness": (GRPO, 1, {"job.rollout.devices": 8}),
    "job.rollout.seed": (GRPO, 1, {}), "job.rollout.partial": (GRPO, 0.5, {}),
    "job.overheads.step": (TAKES, "9 ms", {}), "job.overheads.refit": (TAKES, "9 s", {}),
    "job.overheads.refit_rate": (TAKES, "9 GB/s", {}), "job.overheads.sample": (TAKES, "9 ms", {}),
}  # fmt: skip


def test_no_field_is_forgotten():
    known = {f"job.{leaf}" for leaf in leaves(PostTrainingSpec)} - NAMES
    assert {leaf for leaf in known if not leaf.startswith(LAWS)} | {"job.kind", "job.rollout.prompt", "job.rollout.answer"} == set(MATTERS)


@pytest.mark.cases(4)
@pytest.mark.slow
@pytest.mark.parametrize("path", MATTERS)
def test_every_field_moves_an_iteration(path):
    data, value, beside = MATTERS[path]
    before = crossflow.predict(crossflow.from_dict(data).replace(beside if path not in ("job.kind", "job.teacher.model") else {}))
    after = crossflow.predict(crossflow.from_dict(data).replace({**beside, path: value}))
    assert after.feasible
    assert after.job["iteration_time_s"] != before.job["iteration_time_s"]


@pytest.mark.parametrize(("task", "cure"), [
    ("grpo", "grpo is a job of several phases; give job: {kind: grpo}"), ("distillation", "give job: {kind: distill}"),
    ("lora", "give workload.adapters: {rank: 16}"), ("qlora", "give workload.adapters: {rank: 16, base: nf4}"),
    ("Fine_Tuning", "Fine_Tuning is a training step; give workload.task: training"),
])  # fmt: skip
def test_a_task_by_another_word_is_told_where_it_stands(task, cure, capsys):
    """In a file, as the kind of a job, and as an option: three doors, one sentence."""
    plain = {key: value for key, value in DPO.items() if key != "job"}
    with pytest.raises(SpecError) as found:
        crossflow.from_dict({**plain, "workload": {**plain["workload"], "task": task}})
    assert "workload.task: " in str(found.value)
    assert str(found.value).endswith(cure)
    with pytest.raises(SystemExit, match="2"):
        main(["predict", "--model", "llama3-8b", "--on", "dgx-h100", "--task", task])
    assert cure in capsys.readouterr().err
    if "job" not in cure:
        with pytest.raises(SpecError, match=r"job\.kind: .*, and leave job out"):
            crossflow.from_dict({**plain, "job": {"kind": task}})
