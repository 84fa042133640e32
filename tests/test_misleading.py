"""Answers that said less than is known, or something else than was asked."""

import shlex
import sys

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation.fewer_bits import fewer_bits
from crossflow.answers.sections import model_name
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.edges.cli.parser import parse
from crossflow.workload.requests.record import RequestTrace

ASKED = {"arrivals": {"law": "poisson", "rate": "2 1/s"}, "count": 20, "prompt": 200, "output": 10}
SERVICE = {"system": "dgx-h100", "workload": {"model": "llama3-8b", "task": "serving"}, "strategy": "tp1-dp8"}


def test_several_devices_of_a_kind_are_connected_as_in_the_system_that_most_often_has_them():
    found = crossflow.predict(model="llama3-8b", on="h100-sxm", devices=8, batch=64)
    assert (
        found.to_dict()["step_time_s"] == crossflow.predict(model="llama3-8b", on="dgx-h100", devices=8, batch=64).to_dict()["step_time_s"]
    )
    assert "h100-sxm: connected as in dgx-h100; --on takes other systems" in found.assumptions
    for task in ("decode", "prefill", "serving"):
        asked = {"model": "llama3-8b", "devices": 8, "task": task, "strategy": "tp8-dp1"}
        assert crossflow.predict(**asked, on="h100-sxm").score.step_time == crossflow.predict(**asked, on="dgx-h100").score.step_time
    alone = crossflow.predict(model="llama3-8b", on="h100-sxm", task="decode")
    assert not any("connected as in" in sentence for sentence in alone.assumptions)
    with pytest.raises(CrossflowError, match="12 devices do not fill nodes of 8"):
        crossflow.predict(model="llama3-8b", on="h100-sxm", devices=12)


@pytest.mark.parametrize(
    ("on", "device", "assumed"),
    [
        ("h100", "h100-sxm", "h100 is read as h100-sxm; --on takes other forms of it"),
        ("A100", "a100-80gb", "A100 is read as a100-80gb; --on takes other forms of it"),
        ("RTX 4090", "rtx-4090", None), ("mi_300x", "mi300x", None), ("h100nvl", "h100-nvl", None),
    ],
)  # fmt: skip
def test_chips_are_found_by_the_names_that_people_use(on, device, assumed):
    found = crossflow.predict(model="llama3-8b", on=on, task="decode", strategy="tp1-dp1", workload__dtype="fp16")
    assert found.scenario.system.name == device
    assert [sentence for sentence in found.assumptions if "is read as" in sentence] == ([assumed] if assumed else [])
    compared = crossflow.compare("llama3-8b", [on, "dgx-b200"], devices=1, task="decode", workload__dtype="fp16")
    assert sorted(row.system for row in compared) == sorted([on, "dgx-b200"])


def test_a_file_names_the_form_of_a_chip(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("workload: {model: llama3-8b, task: decode}\nsystem: {template: h100}\nstrategy: tp1\n")
    with pytest.raises(SpecError, match=r"s\.yaml:2: system\.template: unknown template 'h100'; did you mean 'h100-nvl', 'h100-sxm'"):
        crossflow.predict(file)


def test_devices_of_which_no_system_is_known_are_told_that_nothing_connects_them():
    with pytest.raises(CrossflowError, match="p4-datasheet is a device, and nothing connects 8 of them; name a system of it, or describe"):
        crossflow.predict(model="llama3-8b", on="p4-datasheet", devices=8, settings=["workload.dtype=int8"])
    found = crossflow.predict(model="llama3-8b", on="gh200-144gb", devices=8, task="decode", strategy="tp8-dp1")
    assert not found.feasible
    assert [str(one).startswith("gh200-144gb: nothing connects 8 of them; name a system of it, or describe") for one in found.remedies] == [
        True
    ]
    assert crossflow.predict(model="llama3-8b", on="gh200-144gb", devices=8, task="decode", strategy="dp8").feasible  # needs no network


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


def test_a_replay_refuses_prompts_that_wait_for_those_of_other_replicas():
    shared = {"system": "dgx-h100", "workload": {"model": "mixtral-8x7b", "task": "serving"}, "strategy": "dp8-ep8"}
    gathers = {"like": "tensorrt-llm", "engine": {"gathers": True}}
    with pytest.raises(CrossflowError, match=r"software.engine.gathers: a replay does not let replicas wait for each other's prompts"):
        crossflow.serve({**shared, "software": gathers, "requests": ASKED})


def test_a_checkpoint_beside_a_job_is_not_told_to_give_failures():
    made = {"system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp8"}
    run = {"steps": 100, "checkpoint": {"interval": "1 hour", "to": "storage", "storage_bandwidth": "1 TB/s"}}
    with pytest.raises(SpecError, match="give it, or leave checkpoint out"):
        crossflow.from_dict({**made, "run": run})
    with pytest.raises(SpecError) as error:
        crossflow.from_dict({**made, "run": run, "job": {"kind": "dpo"}})
    assert "leave checkpoint out" in str(error.value)
    assert "give it" not in str(error.value)


def test_the_widest_weights_that_fit_are_told_with_what_they_free():
    """Of 31.2e9 weights in layers 4 of 16 bits stay: 1.5 bytes of each but for few scales; nothing where 16 bits are asked for."""
    given = {"model": "qwen3-32b", "task": "decode", "global_batch": 16}
    made = crossflow.from_dict({"system": {"template": "a40-node", "devices": 1}, "workload": given, "strategy": "tp1"})
    (told,) = fewer_bits(made)
    assert told == "workload.weight_dtype: int4 frees 43.0 GiB and fits with 8.9 GiB to spare"
    assert pytest.approx(1.5 * 31.2e9, rel=0.02) == 43.0 * 2**30
    for workload in ({**given, "weight_dtype": "bf16"}, {**given, "task": "training"}):
        assert fewer_bits(crossflow.from_dict({"system": "a40-node", "workload": workload, "strategy": "tp1-dp8"})) == ()


@pytest.mark.thorough  # what it runs quicker tests run too
def test_a_service_whose_weights_do_not_fit_is_told_of_fewer_bits():
    asked = {"model": "qwen3-32b", "on": "a40-node", "devices": 1, "task": "decode", "batch": 16}
    remedies = crossflow.predict(**asked).remedies
    told = next(one for one in remedies if one.startswith("workload.weight_dtype: "))
    assert told.startswith("workload.weight_dtype: fp8 frees 29.1 GiB and fits with 2.0 GiB to spare")
    assert crossflow.predict(**asked, settings=told.settings).feasible
    assert not any("weight_dtype" in one for one in crossflow.predict(**{**asked, "task": "training"}).remedies)


def test_more_devices_are_no_cure_for_one_that_nothing_connects():
    remedies = crossflow.predict(model="qwen3-32b", on="l40s", task="decode", batch=16).remedies
    (told,) = (one for one in remedies if one.startswith("on 2 devices"))
    assert told.startswith("on 2 devices of a system that connects them pp2-mb8 fits")
    assert not told.settings


def test_the_best_of_a_sweep_is_no_tie_of_itself(capsys):
    assert main(["sweep", "--model", "gemma3-27b", "--on", "dgx-h200", "--vary", "tp=1,2,4,8", "--task", "decode"]) == 0
    marked = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith((">", "="))]
    assert [">", "tp4-dp2"] in marked
    assert ["=", "tp8"] in marked


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("predict gemma3-27b dgx-h200", "write predict --model gemma3-27b --on dgx-h200"),
        ("predict --model llama3-8b --on dgx-h200 --task inference", "did you mean 'decode', 'serving' or 'forward'?"),
        ("plan --model llama3-8b --on dgx-h200 --export trtllm", "did you mean 'tensorrt-llm'?"),
        ("list systems", "did you mean 'templates'?"),
        ("list gpus", "did you mean 'templates'?"),
        ("predict --model llama3-8b --on h200-node", "did you mean 'h200-nvl-node', 'h200-nvl' or 'h200'?"),
        ("predict --model falcon-180b --on dgx-b300", "unknown model 'falcon-180b'; models: "),
        ("predict --model llama3-8b --on dgx-b300 --set workload.dtype=fp6", "did you mean 'mxfp6'?"),
        (
            "sweep --model gemma3-27b --on dgx-b300 --vary tp=1,2 --vary nodes=1,2",
            "--vary changes nodes, and tp leave dp open; give whole strategies, such as --vary strategy=tp4-dp2,tp8",
        ),
        ("run --model llama3-8b", "unknown command 'run'; did you mean 'predict'?"),
        ("predict --model Llama-3.3-70B-Instruct-FP8 --on dgx-h200", "did you mean 'llama3-70b'?"),
        ("predict --model falcon-180b --on dgx-h200", "(or give the path of its config.json, as makers publish it)"),
        ("predict --model llama3-8b --on dgx-h200 --set workload.num_layers=3", "did you mean 'workload.layers'?"),
        (
            "predict --model llama3-8b --on dgx-h200 --set strategy=tp8 strategy.zero=1",
            "strategy=tp8 says all of it, and no key of it can be",
        ),
        ("plan --model llama3-8b --on dgx-h200 --export vllm", "workload.task is training; give task: decode or serving, or software"),
    ],
)
def test_words_of_others_are_answered_by_ours(words, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        sys.exit(main(words.split()))
    assert sentence in capsys.readouterr().err


def test_the_name_of_a_model_stands_beside_a_system_without_an_option(capsys):
    assert main(["predict", "llama3-8b", "--on", "dgx-h200", "--task", "decode", "--strategy", "tp8", "--json"]) == 0
    assert '"step_time_s"' in capsys.readouterr().out


def test_devices_that_do_not_fill_nodes_are_told_where_they_are_asked_for(tmp_path, capsys):
    """The first line of the system's template was named, in which nobody wrote them."""
    cure = "100 devices do not fill nodes of 8; give a multiple of 8, or fewer than that, or devices_per_node: 5 to use 5 of each"
    assert main(["plan", "--model", "llama3-8b", "--on", "dgx-h100", "--devices", "100"]) == 2
    assert capsys.readouterr().err == f"command line: system.devices: {cure}\n"
    file = tmp_path / "s.yaml"
    file.write_text("workload: {model: llama3-8b, global_batch: 64}\nsystem: {template: dgx-h100,\n  devices: 100}\nstrategy: auto\n")
    assert main(["predict", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}:3: system.devices: {cure}\n"


@pytest.mark.parametrize("system", ["dgx-h100", {"template": "dgx-h100", "nodes": 1}])
def test_devices_that_are_set_stand_in_the_place_of_nodes(system):
    """A setting overrides what a file says in another way, whether the file names a system or writes it out."""
    jobs = [{"devices": 8, "time": "10 h"}]
    assert crossflow.schedule({"system": system, "jobs": jobs}, "system.devices=16").found.room.devices == 16
    scenario = {"system": system, "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp8-dp2"}
    assert crossflow.predict(scenario, "system.devices=16").devices == 16
    with pytest.raises(SpecError, match=r"devices = 16 but nodes x devices_per_node = 3 x 8 = 24"):
        crossflow.predict(scenario, ["system.devices=16", "system.nodes=3"])


def test_a_system_in_the_place_of_a_cluster_is_told_from_one():
    with pytest.raises(SpecError, match=r"this is a system, and a cluster has jobs; name it in one: .*init example campus"):
        crossflow.schedule({"kind": "system", "device": "h100-sxm"})


def test_a_trace_whose_times_have_another_name_is_told_so(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,10,5\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"call the column of times arrival_s \(in seconds\)"):
        crossflow.serve({**SERVICE, "requests": str(tmp_path / "t.csv")})


@pytest.mark.parametrize("command", ["predict", "plan"])
def test_help_begins_with_commands_that_are_taken(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    told = capsys.readouterr().out.partition("to begin with:\n")[2].partition("\n\n")[0].splitlines()
    words = [shlex.split(part)[1:] for line in told for part in line.split("&&")]
    assert len(told) == 3
    assert {parse(one).command for one in words} <= {command, "init"}
    assert not [one for one in words if "--model" in one and "config.json" not in one and model_name(one[one.index("--model") + 1]) is None]
