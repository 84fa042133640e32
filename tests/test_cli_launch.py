"""Launch files on the command line: `plan --export`, and `--from` in the place of a scenario."""

import io
import json
import re
import sys
import types
from pathlib import Path

import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.edges.cli import export
from crossflow.edges.cli.parser import FRAMEWORKS
from crossflow.edges.launch.launch import KINDS, read

FILES = Path(__file__).parent / "data" / "launch"
SCENARIO = """system: {template: h100-ib-cluster, nodes: 2}
workload: {model: llama3-8b, global_batch: 64}
strategy: tp8-dp2-z1-sp
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def test_frameworks_of_the_command_line_are_those_of_launch_files():
    assert FRAMEWORKS == KINDS


@pytest.mark.slow
def test_the_best_plan_is_exported_and_comes_back(scenario, capsys):
    assert main(["plan", str(scenario), "--top", "3", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["plans"][0]["strategy"]
    assert main(["plan", str(scenario), "--top", "3", "--export", "megatron", "-o", "run.sh"]) == 0
    shown = capsys.readouterr()
    assert "Best plans" in shown.out
    assert shown.err == "crossflow: wrote run.sh\n"
    assert main(["predict", "--from", "run.sh", "--json"]) == 0
    assert f"strategy {best}" in str(read(scenario.parent / "run.sh").scenario())
    assert json.loads(capsys.readouterr().out)["assumptions"][0] == "run.sh read as megatron, run by megatron-core"


def test_the_length_of_a_run_in_a_file_is_told_where_nothing_else_says_it(scenario, capsys):
    """`--train-samples` was told to change nothing that a prediction says."""
    Path("own.sh").write_text((FILES / "megatron-gpt3-175b.sh").read_text().replace("--train-iters 500000", "--train-samples 1000"))
    asked = ("predict", "--from", "own.sh", "--on", "dgx-h100", "--json")
    told = "--train-samples (line "
    assert main([*asked]) == 0
    assumed = json.loads(capsys.readouterr().out)["assumptions"]
    assert [one.partition("): ")[2] for one in assumed if told in one] == ["a run is as long as `run` says, such as --set run.samples=N"]
    assert not any("--train-samples" in one for one in assumed if told not in one)
    assert main([*asked, "--set", "run.samples=1e6"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not any("--train-samples" in one for one in found["assumptions"])
    assert found["run"]["time_s"] > 0


def test_flags_of_the_file_that_an_export_leaves_out_are_named(scenario, capsys):
    """What is not modelled, and what says nothing of a prediction, is not carried over, and was not told."""
    Path("own.sh").write_text(
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp 2 --port 30000 --enable-priority-scheduling"
        " --schedule-low-priority-values-first"
    )
    lengths = ("--set", "workload.prompt=2000", "--set", "workload.output=200", "--set", "workload.global_batch=8")
    assert main(["plan", "--from", "own.sh", "--on", "dgx-h100", *lengths, "--export", "sglang", "-o", "new.sh"]) == 0
    left = "of own.sh is not written: --schedule-low-priority-values-first, --port; add them to what is written"
    assert left in capsys.readouterr().err
    assert main(["plan", "--from", "own.sh", "--on", "dgx-h100", *lengths, "--export", "vllm", "-o", "other.sh"]) == 0
    assert "is not written" not in capsys.readouterr().err  # flags of another framework have no meaning there


@pytest.mark.thorough
@pytest.mark.slow
def test_an_export_goes_to_stdout_alone_and_stderr_names_the_plan(scenario, capsys):
    assert main(["plan", str(scenario), "--export", "torchtitan"]) == 0
    shown = capsys.readouterr()
    launch = read(shown.out)
    assert launch.kind == "torchtitan"
    assert "Best plans" not in shown.out
    note, named = shown.err.splitlines()
    assert note.startswith("crossflow: note: predicted with the software stack torchtitan, that of torchtitan;")
    assert re.fullmatch(r"crossflow: \S+ is written, the plan to take: .* s per step, .* GiB of 80 GiB per device", named)
    assert named.split()[1] == launch.scenario("h100-ib-cluster").strategy_text
    assert main(["plan", str(scenario), "--export", "torchtitan", "-q"]) == 0
    assert capsys.readouterr() == (shown.out, "")


@pytest.mark.slow
def test_plans_that_a_framework_cannot_express_are_passed_over(scenario, capsys):
    assert main(["plan", str(scenario), "--export", "deepspeed", "--set", "workload.mtp_layers=0"]) == 0
    assert read(capsys.readouterr().out).kind == "deepspeed"


@pytest.mark.slow
def test_plans_say_whether_the_framework_can_express_them(scenario, capsys):
    assert main(["plan", str(scenario), "--top", "6", "--export", "torchtitan", "-o", "run.toml", "--force"]) == 0
    out = capsys.readouterr().out
    strategy = read(scenario.parent / "run.toml").scenario("h100-ib-cluster").strategy_text
    rows = [line.split() for line in out.splitlines() if line.split()[-1:] in (["yes"], ["no"]) and "marks" not in line]
    assert len(rows) == 6
    assert "torchtitan cannot express those with no" in re.sub(r"\s+", " ", out)
    assert all(row[-1] == "no" for row in rows if "z1" in " ".join(row[:2]))  # torchtitan has no ZeRO 1
    assert any(row[-1] == "yes" for row in rows if strategy in row) or f"{strategy} is the plan that is written" in out
    assert main(["plan", str(scenario), "--top", "6"]) == 0
    assert "torchtitan" not in capsys.readouterr().out


def test_files_are_not_replaced_without_force(scenario, capsys):
    Path("run.sh").write_text("mine")
    assert main(["plan", str(scenario), "--export", "megatron", "-o", "run.sh"]) == 2
    assert "run.sh exists; give --force" in capsys.readouterr().err
    assert Path("run.sh").read_text() == "mine"


@pytest.mark.thorough
@pytest.mark.slow
def test_a_launch_file_is_compared_with_the_best_plans(capsys):
    file = str(FILES / "megatron-llama3-70b-slurm.sh")
    assert main(["plan", "--from", file, "--on", "h100-ib-cluster", "--top", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["launch"]["strategy"]["tp"] == 4
    assert found["own"]["strategy"].startswith("tp4-cp2-dp2-pp4-v4")
    assert any("--cuda-graph-impl" in sentence for sentence in found["assumptions"])


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "plan"])
def test_a_launch_file_is_read_from_standard_input(capsys, monkeypatch, command):
    file = FILES / "megatron-llama3-70b-slurm.sh"
    words = ("--on", "h100-ib-cluster", "--nodes", "16", "--json", *(("--top", "1") if command == "plan" else ()))
    assert main([command, "--from", str(file), *words]) == 0
    known = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(file.read_bytes())))
    assert main([command, "--from", "-", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["assumptions"][0] == "<stdin> read as megatron, run by megatron-core with changes by flags"
    for key in ("step_time_s", "plans"):
        assert found.get(key) == known.get(key)


def test_what_is_wrong_in_standard_input_is_told_by_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"vllm serve x \\\n  --tp 9q")))
    assert main(["predict", "--from", "-", "--on", "dgx-h100"]) == 2
    assert capsys.readouterr().err.startswith("<stdin>:2: --tp: expected a whole number from 1, got '9q'")


def test_a_launch_file_on_more_nodes_has_more_replicas(capsys):
    file = str(FILES / "megatron-llama3-70b-slurm.sh")
    assert main(["predict", "--from", file, "--on", "h100-ib-cluster", "--nodes", "16"]) == 0
    assert "128 devices of h100-ib-cluster, strategy tp4-cp2-dp4-pp4-v4" in " ".join(capsys.readouterr().out.split())


def test_a_setting_that_names_the_system_leaves_the_devices_that_a_launch_file_or_an_option_says(capsys):
    """Of a file without a system it was refused as if nothing named one; with --on, or beside --devices, all devices were lost."""
    file = str(FILES / "megatron-llama3-70b-slurm.sh")
    for words in (["--set", "system=dgx-h100"], ["--on", "dgx-h200", "--set", "system=dgx-h100"]):
        assert main(["predict", "--from", file, *words]) == 0
        assert "64 devices of dgx-h100" in " ".join(capsys.readouterr().out.split())
    assert main(["predict", "--model", "llama3-8b", "--on", "dgx-h200", "--devices", "16", "--set", "system=dgx-h100"]) == 0
    assert "16 devices of dgx-h100" in " ".join(capsys.readouterr().out.split())
    assert main(["predict", "--from", file, "--set", "system=dgx-h10"]) == 2
    assert "unknown template 'dgx-h10'; did you mean 'dgx-h100'?" in capsys.readouterr().err


def test_fleets_of_a_launch_file_are_planned_and_what_their_export_leaves_out_is_named(tmp_path, capsys):
    """Requests beside a launch file were refused, though a scenario with the same requests is planned as fleets."""
    file = tmp_path / "serve.sh"
    file.write_text("vllm serve meta-llama/Meta-Llama-3-8B --tensor-parallel-size 2 --max-num-seqs 64 --served-model-name mine\n")
    asked = tmp_path / "requests.yaml"
    asked.write_text("{arrivals: {law: poisson, rate: 2 1/s}, count: 20, prompt: 300, output: 20, targets: {ttft: 2 s}}\n")
    words = ["plan", "--from", str(file), "--on", "dgx-h100", "--requests", str(asked), "--export", "vllm", "--top", "1"]
    assert main([*words, "-o", str(tmp_path / "fleet.sh")]) == 0
    told = capsys.readouterr()
    assert "Cheapest fleets" in told.out
    assert f"of {file} is not written: --served-model-name;" in told.err
    assert "vllm serve" in (tmp_path / "fleet.sh").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--from", "vllm-llama3-8b.sh", "--on", "dgx-h100"], "workload.prompt: flags of vllm serve do not say how long prompts are; give it, such as --set"),
        (["--from", "megatron-mixtral-8x7b.sh"], "the file names no system; give one, such as h100-ib-cluster (--on h100-ib-cluster)"),
        (["--from", "torchtitan-llama3-8b.toml", "--on", "dgx-h100"], "devices: the file does not say how many devices there are; give the number of nodes"),
        (["--from", "vllm-llama3-8b.sh", "--on", "dgx-h100", "--batch", "3"], "--batch is for questions without a file; with --from write --set workload.global_batch=3"),
        (["s.yaml", "--from", "vllm-llama3-8b.sh"], "stands for a scenario; leave s.yaml out"),
        (["--from", "no.sh"], "no.sh: cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told(words, sentence, monkeypatch, capsys):
    monkeypatch.chdir(FILES)
    assert main(["predict", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_output_goes_with_an_export(scenario, capsys):
    assert main(["plan", str(scenario), "-o", "x"]) == 2
    assert "-o goes with --export" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "file", "sentence"),
    [
        ("deepspeed", "ds.json", "for deepspeed a shell script is written, which writes ds_config.json itself; name it ds.sh"),
        ("torchtitan", "run.sh", "for torchtitan a TOML file is written; name it run.toml"),
    ],
)
def test_a_file_whose_ending_says_another_form_is_refused(scenario, capsys, kind, file, sentence):
    assert main(["plan", str(scenario), "--export", kind, "-o", file]) == 2
    assert capsys.readouterr().err == f"crossflow: -o {file}: {sentence}\n"
    assert not Path(file).exists()


def test_an_export_says_which_other_stack_ranks_the_plans(scenario, capsys):
    assert main(["plan", str(scenario), "--export", "torchtitan", "--set", "software=megatron-core"]) == 0
    own = "that of torchtitan ranks them with --set software=torchtitan"
    said = f"crossflow: note: plans are ranked with the software stack megatron-core, which the scenario names; {own}"
    assert said in capsys.readouterr().err.splitlines()


REQUESTS = """arrivals: {law: deterministic, rate: 100 1/s}
count: 8
prompt: 100
output: {law: fixed, tokens: 20}
"""


def test_requests_are_replayed_with_flags_of_a_server(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "asked.yaml").write_text(REQUESTS)
    (tmp_path / "asked.csv").write_text("arrival_s,prompt,output\n0,100,20\n0,100,20\n")
    script = tmp_path / "there" / "serve.sh"
    script.write_text("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 1\n")
    command = ["serve", "--from", "there/serve.sh", "--on", "h100-ib-cluster"]
    assert main([*command, "--requests", "asked.yaml", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert (one["requests"], one["assumptions"][0]) == (8, "there/serve.sh read as vllm, run by vllm")
    script.write_text("vllm serve meta-llama/Llama-3.1-8B-Instruct\n")
    assert main([*command, "--requests", "asked.yaml", "--json"]) == 0
    many = json.loads(capsys.readouterr().out)
    assert one["ttft_s"]["p99"] > 2 * many["ttft_s"]["p99"]  # of which only one runs at once
    assert main([*command, "--requests", "asked.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 2
    assert main(command) == 2
    assert capsys.readouterr().err.endswith("serve.sh: flags do not say what the service is asked; give it with --requests FILE\n")


def test_requests_by_settings_leave_out_what_they_say_themselves():
    launch = read("vllm serve meta-llama/Llama-3.1-8B-Instruct \\\n --data-parallel-size 2 --max-num-seqs 16\n", "vllm")
    requests = ["requests.arrivals={law: poisson, rate: 2 1/s}", "requests.count=5", "requests.prompt=100", "requests.output=10"]
    data = launch.document("h100-ib-cluster", requests).data
    assert data["workload"] == {"model": "llama3-8b", "task": "serving"}
    assert data["software"]["engine"] == {"requests": 16}  # of each of both engines
    assert launch.scenario("h100-ib-cluster", requests).requests is not None


def test_what_a_law_of_requests_takes_is_told_in_its_own_section(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for law, prompt, told in (
        ("rate: 2 1/s", "{law: fixed, value: 1024}", "requests.prompt.value: unknown key 'value'; law fixed takes tokens"),
        (
            "rate: 2 1/s, count: 5",
            "100",
            "requests.arrivals.count: unknown key 'count'; law poisson takes rate; 'count' stands at requests.count",
        ),
    ):
        Path("s.yaml").write_text(
            "system: {template: h100-ib-cluster, devices: 1}\nworkload: {model: llama3-8b, task: serving}\nstrategy: tp1\n"
            f"requests:\n  arrivals: {{law: poisson, {law}}}\n  count: 5\n  prompt: {prompt}\n  output: 20\n"
        )
        assert main(["serve", "s.yaml"]) == 2
        assert told in " ".join(capsys.readouterr().err.split())


def test_python_is_told_its_keywords():
    with pytest.raises(CrossflowError, match=r"^give nodes or devices, not both"):
        crossflow.predict(model="llama3-8b", on="h100-ib-cluster", nodes=2, num_gpus=8)


@pytest.mark.parametrize(
    ("asked", "other"),
    [("dp4-TP8", False), ("tp8-dp4-mb1", False), ("tp8-dp8", True), ("tp8-dp4-mb16", True), ("tp8", True), ("legal", True)],
)
def test_strategies_are_the_same_in_whatever_order_they_have_their_parts(asked, other):
    written = types.SimpleNamespace(plan=types.SimpleNamespace(strategy="tp8-dp4"))
    assert export._is_other(written, asked) == other


def test_an_export_says_that_a_strategy_that_was_given_is_not_written(capsys):
    asked = ("plan", "--model", "llama3-8b", "--on", "dgx-h100", "--export", "megatron", "--strategy")
    told = "crossflow: --strategy tp2-dp4 is not written: an export writes the best plan; crossflow.export in Python writes one of your own"
    assert main([*asked, "tp2-dp4"]) == 0
    shown = capsys.readouterr()
    assert told in shown.err.splitlines()
    assert "--tensor-model-parallel-size 2" not in shown.out
    assert main([*asked, "auto"]) == 0
    assert "is not written" not in capsys.readouterr().err
