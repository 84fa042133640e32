"""`plan --from FILE --diff`: the flags between a file and the best plan, and the file with just those changed."""

import json
from pathlib import Path

import pytest

from crossflow.__main__ import main
from crossflow.answers.points import variant
from crossflow.base.errors import CrossflowError
from crossflow.edges.launch.difference import changes, plan_of_file, rewritten, shortfall
from crossflow.edges.launch.launch import read

FILES = Path(__file__).parent / "data" / "launch"
GIVEN = {"workload.prompt": 1000, "workload.output": 200, "workload.serving.speculation.acceptance": 0.7}
SGLANG = """#!/bin/bash
TP=16
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 \\
  --tp $TP --trust-remote-code --port 30000 \\
  --max-running-requests 256 --disable-radix-cache
"""
# A file, another plan for it, and the changes between them.
CASES = {
    "megatron-mixtral-8x7b.sh": ("ep8-dp16-pp2-v8-z1", [
        "change --pipeline-model-parallel-size 4 -> 2", "add --num-virtual-stages-per-pipeline-rank 8",
        "remove --num-layers-per-virtual-pipeline-stage 8",
    ]),
    "torchtitan-llama3-8b.toml": ("tp2-dp4-z3-sp", [
        "change parallelism.data_parallel_shard_degree -1 -> 4", "change parallelism.tensor_parallel_degree 1 -> 2",
    ]),
    "deepspeed-llama3-8b.sh": ("dp8-mb2-z3", [
        "change zero_optimization.stage 2 -> 3", "remove zero_optimization.offload_optimizer.device cpu", "remove --gradient_checkpointing True",
    ]),
    "vllm-llama3-70b-fp8.sh": ("tp2-dp2", [
        "change --tensor-parallel-size 4 -> 2", "add --data-parallel-size 2", "change --max-num-seqs 256 -> 128",
    ]),
    "trtllm-405b-slurm.sh": ("tp16", ["change --tp_size 8 -> 16", "remove --pp_size 2"]),
    "dynamo-vllm-agg.yaml": ("tp8-dp2", [
        "change --tensor-parallel-size 4 -> 8", "change --max-num-seqs 64 -> 128", "change replicas 4 -> 2", "change devices of each 4 -> 8",
    ]),
}  # fmt: skip


def compared(name, strategy, system="h100-ib-cluster"):
    launch = read(FILES / name, devices=8 if name.endswith("8b.toml") else None)
    own = launch.scenario(system, [f"{path}={GIVEN[path]}" for path in launch.missing if path in GIVEN])
    best = variant(own, {"strategy": strategy})
    return launch, own, best, changes(launch, own, best)


@pytest.mark.parametrize("name", CASES)
def test_changes_are_the_flags_between_two_plans(name):
    strategy, told = CASES[name]
    launch, _, best, found = compared(name, strategy)
    assert sorted(f"{change.what} {change}" for change in found) == sorted(told)
    assert shortfall(launch, found, best) == ""


def test_flags_that_say_nothing_by_themselves_are_of_no_setting():
    """Replicas of Megatron are what the devices leave: no flag says them."""
    _, own, best, found = compared("megatron-llama3-8b-node.sh", "tp2-dp4-z1-full")
    assert own.strategy.dp != best.strategy.dp
    assert not any("strategy.dp" in change.fields for change in found)


@pytest.mark.parametrize("name", CASES)
def test_a_file_does_not_differ_from_its_own_plan(name):
    launch, own, _, _ = compared(name, CASES[name][0])
    assert changes(launch, own, own) == ()


def test_changes_say_what_they_set():
    found = {change.flag: change.fields for change in compared("megatron-mixtral-8x7b.sh", "ep8-dp16-pp2-v8-z1")[3]}
    assert found["--pipeline-model-parallel-size"] == ("strategy.pp",)
    assert "strategy.virtual_stages" in found["--num-virtual-stages-per-pipeline-rank"]


@pytest.mark.parametrize("name", ["megatron-mixtral-8x7b.sh", "vllm-llama3-70b-fp8.sh", "trtllm-405b-slurm.sh"])
def test_the_changed_script_means_the_plan_and_is_otherwise_the_same(name):
    launch, _, best, found = compared(name, CASES[name][0])
    text = (FILES / name).read_text(encoding="utf-8")
    new = rewritten(text, launch, found, best)
    assert plan_of_file(variant(best, {"strategy": dict(read(new).strategy)})) == plan_of_file(best)
    before, after = (set(one.splitlines()) for one in (text, new))
    assert len(before - after) <= len(found)
    assert len(after - before) <= len(found)


def test_variables_are_replaced_where_the_flag_stands():
    launch = read(SGLANG)
    own = launch.scenario("h100-ib-cluster", [f"{path}={GIVEN[path]}" for path in launch.missing])
    best = variant(own, {"strategy": "tp8-pp2"})
    new = rewritten(SGLANG, launch, changes(launch, own, best), best)
    assert "--tp 8 --trust-remote-code" in new
    assert "--pp-size 2" in new
    assert "--disable-radix-cache" in new


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("deepspeed-llama3-8b.sh", "zero_optimization.stage cannot be changed in its line; change it by the list"),
        ("dynamo-vllm-agg.yaml", "starts several servers, whose flags go together"),
    ],
)
def test_what_cannot_be_changed_in_the_file_is_told(name, sentence):
    launch, _, best, found = compared(name, CASES[name][0])
    with pytest.raises(CrossflowError, match=sentence):
        rewritten((FILES / name).read_text(encoding="utf-8"), launch, found, best)


# ---------------------------------------------------------------------------------------------- command line


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.sh").write_text(f"{SGLANG.rstrip()} --own-flag 5\n")
    return ["plan", "--from", "mine.sh", "--on", "h100-ib-cluster", "--set", "workload.prompt=100", "workload.output=2000", "--diff"]


@pytest.mark.slow
def test_the_page_lists_changes_and_what_they_gain(mine, capsys):
    assert main([*mine, "-o", "new.sh"]) == 0
    shown = capsys.readouterr()
    assert "  add  --dp-size 16" in shown.out
    assert "--disable-radix-cache  predicted with a cache of prefixes" in shown.out
    assert "assumed: --own-flag (line " in shown.out
    assert "unknown flag of sglang, not read" in shown.out
    assert shown.err.endswith("crossflow: wrote new.sh\n")
    mine[2] = "new.sh"
    assert main(mine) == 0
    again = capsys.readouterr().out
    assert "Your flags are those of the best plan." in again
    assert "Change" not in again


@pytest.mark.slow
def test_the_same_as_data(mine, capsys):
    assert main([*mine, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    diff = found["diff"]
    assert diff["own"]["strategy"] == "tp16-mb256"
    assert diff["best"]["strategy"] == found["chosen"]
    assert diff["gain"] == pytest.approx(1.0 - diff["best"]["e2el_s"] / diff["own"]["e2el_s"])
    first = next(change for change in diff["changes"] if change["flag"] == "--dp-size")
    assert (first["what"], first["before"], first["after"], first["fields"]) == ("add", None, "16", ["strategy.dp"])
    assert [one["flag"] for one in diff["kept"]["unmodelled"]] == ["--disable-radix-cache"]
    assert diff["tied"] in (True, False, None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "s.yaml", "--diff"], "--diff compares the flags of a launch file with the best plan: name it with --from FILE"),
        (["plan", "--from", "mine.sh", "--diff", "--export", "vllm"], "--export writes another one; give one of them"),
        (["plan", "--from", "mine.sh", "--diff", "-o", "mine.sh"], "mine.sh exists; give --force"),
        (["plan", "--from", "mine.sh", "--diff", "--force"], "--force goes with -o"),
    ],
)
def test_wrong_words_are_told(mine, words, sentence, capsys):
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


MEGATRON = """#!/bin/bash
{first}torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py \\
  --num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40 --vocab-size 151936 \\
  --seq-length 4096 --max-position-embeddings 4096 --bf16 --use-distributed-optimizer \\
  --micro-batch-size 1 --global-batch-size 256 --tensor-model-parallel-size {tp}
"""
EXPORT = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"


@pytest.mark.parametrize(
    ("first", "tp", "best", "said", "then"),
    [
        (EXPORT, 2, "dp32-z3", "export CUDA_DEVICE_MAX_CONNECTIONS=1", ""),
        ("", 1, "tp2-dp16-z1-sp", "export CUDA_DEVICE_MAX_CONNECTIONS=1", EXPORT),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=8\n", 1, "tp2-dp16-z1-sp", "export CUDA_DEVICE_MAX_CONNECTIONS=8 -> 1", EXPORT),
        (EXPORT, 2, "tp4-dp8-z1", None, EXPORT),
    ],
)
def test_what_megatron_asks_of_the_environment_is_changed_too(tmp_path, first, tp, best, said, then):
    file = tmp_path / "train.sh"
    file.write_text(MEGATRON.format(first=first, tp=tp))
    launch = read(file)
    own = launch.scenario("a100-ib-cluster", [])
    other = variant(own, {"strategy": best})
    found = changes(launch, own, other)
    assert [str(one) for one in found if one.of_environment] == ([said] if said else [])
    text = rewritten(file.read_text(), launch, found, other)
    assert text.startswith(f"#!/bin/bash\n{then}torchrun")


UNEVEN = """torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py \\
  --num-layers 38 --hidden-size 4096 --ffn-hidden-size 1408 --num-attention-heads 32 --vocab-size 151552 --num-experts 64 \\
  --seq-length 4096 --max-position-embeddings 4096 --bf16 --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 256 \\
  --decoder-first-pipeline-num-layers 10 --decoder-last-pipeline-num-layers 8 --pipeline-model-parallel-size 4 \\
  --recompute-granularity selective --recompute-modules moe_act layernorm --moe-router-topk 4
"""


def test_lists_go_with_all_their_words_and_ends_of_stages_with_the_stages():
    launch = read(UNEVEN)
    own = launch.scenario("dgx-h200", [])
    best = variant(own, {"strategy": "dp32-z3-full"})
    found = changes(launch, own, best)
    text = rewritten(UNEVEN, launch, found, best)
    assert "layernorm" not in text
    assert "pipeline-num-layers" not in text
    assert read(text).notes == ()
    sets = {change.flag: change.fields for change in found}
    assert sets["--decoder-first-pipeline-num-layers"] == ("strategy.stage_layers",)
    assert sets["--data-parallel-sharding-strategy"] == ("strategy.zero",)
    assert sets["--ckpt-format"] == ()


def test_a_first_stage_of_one_stage_is_refused():
    with pytest.raises(CrossflowError, match="there is one stage, of which Megatron would build 10 of 38 layers"):
        read(UNEVEN.replace("parallel-size 4", "parallel-size 1"))


@pytest.mark.parametrize("flag", ["--num-layers-per-virtual-pipeline-stage 5", "--num-virtual-stages-per-pipeline-rank 4"])
def test_chunks_of_stages_go_with_the_stages_as_megatron_refuses_them_in_one(flag):
    """The changed script kept them, and Megatron's `validate_args` asks for two stages or more where they are given."""
    text = (
        "torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --num-layers 40 --hidden-size 5120 --num-attention-heads 40 "
        "--seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 256 "
        f"--use-distributed-optimizer --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 {flag}\n"
    )
    launch = read(text)
    own = launch.scenario("h100-ib-cluster", [])
    best = variant(own, {"strategy": "dp32-z3-full"})
    found = changes(launch, own, best)
    assert f"remove {flag}" in [f"{change.what} {change}" for change in found]
    assert flag not in rewritten(text, launch, found, best)
    with pytest.raises(CrossflowError, match="there is one stage, and Megatron interleaves two or more; leave it out"):
        read(text.replace("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 1"))
