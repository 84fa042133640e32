"""What the command line says to type in the place of words that it does not take: it is typed here, and must answer."""

import json
import re
import shlex

import pytest

import crossflow
from crossflow.__main__ import main

LLAMA = str(crossflow.example("llama"))
MIXTURE = "--model mixtral-8x7b --on dgx-h100 --nodes 2"
SMALL = "--model llama3-8b --on dgx-h100"
WRONG = [
    ("predict", MIXTURE, "--ep 8"), ("predict", MIXTURE, "--tp 8 --ep 4"), ("plan", MIXTURE, "--zero-stage 3"),
    ("predict", MIXTURE, "--sequence-parallel"), ("predict", MIXTURE, "--tensor-parallel-size 8"), ("predict", MIXTURE, "--tp=2"),
    ("predict", MIXTURE, "--pipeline-model-parallel-size 2"), ("predict", MIXTURE, "--cp 2 --micro-batch-size 2"),
    ("predict", MIXTURE, "--recompute-granularity full"), ("predict", MIXTURE, "--use-distributed-optimizer"),
    ("predict", MIXTURE, "--fsdp"), ("predict", MIXTURE, "--kv-cache-dtype fp8"), ("predict", MIXTURE, "--quantization fp8"),
    ("predict", MIXTURE, "--gpus 32"), ("predict", MIXTURE, "--max-num-seqs 256"), ("predict", MIXTURE, "--qps 5"),
    ("predict", f"{MIXTURE} --strategy tp8-dp2", "--zero-stage 1"), ("predict", f"{MIXTURE} --strategy tp4-dp4", "--pp 2"),
    ("predict", "--model qwen3-30b-a3b --on dgx-h100", "--enable-expert-parallel --tp 4"),
    ("predict", SMALL, "--input-len 500 --output-len 20 --concurrency 8"),
    ("predict", SMALL, "--seq-length 4096 --global-batch-size 64 --tensor-model-parallel-size 4 --micro-batch-size 1"),
    ("explain", SMALL, "--tp 4 --dtype fp8"), ("timeline", f"{SMALL} --nodes 2", "--pp 4"), ("serve", SMALL, "--rate 2"),
    ("serve", f"{SMALL} --strategy tp8", "--isl 1000 --osl 20 --ttft 500 --tpot 40"),
    ("predict", LLAMA, "--tp 4"), ("predict", LLAMA, "--zero-stage 3"), ("predict", LLAMA, "--gpus 64"),
    ("predict", LLAMA, "--gpus 64 --tp 4"),
    ("predict", LLAMA, "--batch-size 512"), ("compare", "--model llama3-8b --on dgx-h100,dgx-a100 --devices 8", "--seq-len 4096"),
    ("compare", "--model llama3-8b --on dgx-h100,dgx-a100 --batch 8", "--nodes 1"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "given", "wrong"), WRONG, ids=[f"{command} {wrong}" for command, _, wrong in WRONG])
@pytest.mark.cases(8)
def test_what_is_said_to_be_written_works_as_typed(command, given, wrong, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, *given.split(), *wrong.split()])
    said = capsys.readouterr().err
    found = re.search(r"; write (.*) \(see crossflow", said)
    assert end.value.code == 2
    assert found, said
    assert main([command, *given.split(), *shlex.split(found[1]), "--quiet"]) == 0, (found[1], capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (f"predict {MIXTURE} --tp 3", "that is --strategy tp3, which does not work here: strategy tp3 needs 3 devices"),
        (f"predict {MIXTURE} --enable-expert-parallel", "strategy ep16-dp16: 8 experts are not divisible by ep = 16"),
        (f"predict {MIXTURE} --moe-grouped-gemm", "a flag of Megatron-LM and Megatron-Core, whose scripts are read with"),
        ("compare --model llama3-8b --on dgx-h100 --devices 8 --tp 4", "compare does not take a strategy: leave it out"),
        ("study goodput --seq 4096", "write --set scenario.workload.sequence=4096"),
    ],
)  # fmt: skip
def test_a_cure_that_would_not_work_is_not_told_as_one(words, sentence, capsys):
    with pytest.raises(SystemExit):
        main(words.split())
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "strategy", "setting"),
    [
        (SMALL, "tp16", "system.nodes=2"), ("--model llama3-8b --on dgx-h100 --nodes 2", "tp8-dp4", "system.nodes=4"),
        ("--model qwen3-8b --on dgx-b200 --devices 2", "tp4", "system.devices=4"),
    ],
)  # fmt: skip
def test_a_strategy_for_more_devices_names_the_setting_that_gives_them(given, strategy, setting, capsys):
    words = ["predict", *given.split(), "--strategy", strategy]
    assert main(words) == 2
    assert f"; {setting} makes it" in capsys.readouterr().err
    assert main([*words, "--set", setting, "--quiet"]) == 0


@pytest.mark.parametrize(
    ("given", "strategy"), [(SMALL, "tp64"), (SMALL, "tp8-dp3"), (SMALL, "dp9"), ("--model llama3-8b --on h100-sxm --devices 1", "dp2")]
)
def test_no_devices_are_named_for_a_strategy_that_they_would_not_take(given, strategy, capsys):
    assert main(["predict", *given.split(), "--strategy", strategy]) == 2
    said = capsys.readouterr().err
    assert "makes it" not in said
    assert ("nothing connects 2 of them; name a system of it such as dgx-h100" in said) == ("h100-sxm" in given)


def test_a_plan_on_devices_that_nothing_connects_names_systems_of_them_and_no_change_that_needs_a_network(capsys):
    assert main(["plan", "--model", "llama3-70b", "--on", "gh200-144gb", "--devices", "8", "--task", "decode", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("nothing connects 8 of them; name a system of it, or describe your own" in note for note in found["notes"])
    assert not [one for one in found["remedies"] if one.startswith(("zero:", "tp:", "pp:"))]
    assert main(["predict", "--model", "llama3-8b", "--on", "h100-sxm", "--strategy", "tp8"]) == 0
    assert "nothing connects 8 of them; name a system of it such as dgx-h100" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("option", ["--days", "--slo", "--budget", "--color"])
def test_dashes_make_no_option_like_another(option, capsys):
    with pytest.raises(SystemExit):
        main(["plan", *SMALL.split(), option, "5"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("plan --budget 2", "; --budget is an option of `crossflow compare` (see"),
        ("predict --top=3", "; --top is an option of `crossflow plan` and `crossflow explain` (see"),
        ("predict --quit", "; did you mean '--quiet'? (see"),
        ("predict --requests r.yaml", "; --requests is an option of `crossflow plan` and `crossflow serve` (see"),  # no setting takes it
        ("predict --frobnicate", "unrecognized arguments: --frobnicate (see"),
    ],
)
def test_an_option_of_another_command_is_told_as_that(words, told, capsys):
    command, *rest = words.split()
    with pytest.raises(SystemExit) as end:
        main([command, *SMALL.split(), *rest])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


def test_a_system_that_is_unknown_is_the_only_problem_of_a_service(capsys):
    assert main(["predict", "--model", "llama3-8b", "--on", "mi356x", "--task", "serving"]) == 2
    said = capsys.readouterr().err
    assert "unknown template 'mi356x'; did you mean 'mi355x'?" in said
    assert "output" not in said


def test_requests_that_arrive_need_no_number_at_once(capsys):
    assert main(["predict", *SMALL.split(), "--task", "serving", "--strategy", "tp8", "--set", "workload.serving.arrival_rate=5 1/s"]) == 0
    said = capsys.readouterr().out
    assert "assumed: prompts" in said
    assert "global_batch" not in said


@pytest.mark.parametrize(("kind", "status"), [("system", 0), ("datasheet", 0), ("bananas", 2), ("generated", 2)])
def test_the_kind_of_a_file_on_a_template_is_that_of_the_template(kind, status, tmp_path, capsys):
    (tmp_path / "own.yaml").write_text(f"kind: {kind}\ntemplate: dgx-h100\n")
    assert main(["predict", "--model", "llama3-8b", "--on", str(tmp_path / "own.yaml"), "--strategy", "tp8", "--quiet"]) == status
    assert status == 0 or "system.kind: expected kind: datasheet, as what it builds on" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "plan", "sweep", "serve"])
def test_a_number_of_tokens_is_no_name_of_a_file(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([command, *SMALL.split(), "--task", "serving", "--output", "300"])
    assert end.value.code == 2
    assert (
        "this names a file, and 300 is a number; for answers of so many tokens write --set workload.output=300" in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_serve_is_of_services_without_a_word_on_the_task(capsys):
    asked = "requests={arrivals: {law: poisson, rate: 2 1/s}, count: 4, prompt: 50, output: 3}"
    assert main(["serve", *SMALL.split(), "--strategy", "tp8", "--set", asked, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["serve", *SMALL.split(), "--strategy", "tp8"]) == 2
    drawn = re.search(r"such as ({.*}) \(or", capsys.readouterr().err)[1].replace("200", "4").replace("100}", "3}")
    assert main(["serve", *SMALL.split(), "--strategy", "tp8", "--set", f"requests={drawn}", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("predict llama3", "llama3: there is no such file; did you mean --model llama3-8b, --model llama3-70b"),
        ("plan gpt4", "gpt4: there is no such file; did you mean --model gpt4-1.8t?"),
        ("explain superpod", "superpod: there is no such file; did you mean --on h100-superpod"),
        ("predict xyzzy", "xyzzy: cannot be read: No such file or directory"),
        ("predict llama.yaml", "llama.yaml: cannot be read: No such file or directory"),
        ("sweep --model llama3-8b --on dgx-h100 workload.sequence=2048,4096", "; write --vary workload.sequence=2048,4096"),
        ("predict LLAMA --set workload.qps=4", "did you mean 'workload.serving.arrival_rate'?"),
        ("predict LLAMA --set system.technology.logic=3nm", "did you mean 'N3'?"),
    ],
)
def test_words_of_a_newcomer_are_answered_by_what_to_write(words, sentence, capsys):
    assert main(words.replace("LLAMA", LLAMA).split()) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_what_is_varied_beside_a_file_is_told_its_option(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", LLAMA, "workload.global_batch=64,128"])
    assert "; write --vary workload.global_batch=64,128 (see" in capsys.readouterr().err
