"""Imported models beside our own presets of the same dimensions and plan, on the software that says what PyTorch does."""

import json

import pytest

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.evidence.torch import record
from crossflow.program import write_program

pytest.importorskip("transformers")

LAYERS, WIDTH, INNER, WORDS, TOKENS, BATCH = 4, 8192, 28672, 32000, 4096, 2
LLAMA = {"model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": 64,
         "num_key_value_heads": 8, "vocab_size": WORDS, "max_position_embeddings": TOKENS, "tie_word_embeddings": False}  # fmt: skip
CONFIGS = {"llama": LLAMA, "mixtral": {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}}
PRESET = {"model": "transformer", "layers": LAYERS, "hidden": WIDTH, "heads": 64, "kv_heads": 8, "ffn": INNER, "gated": True,
          "vocabulary": WORDS, "sequence": TOKENS, "positions": "rotary", "norm": "rmsnorm", "biases": False,
          "tied_embeddings": False, "dtype": "bf16"}  # fmt: skip
PRESETS = {"llama": PRESET, "mixtral": {**PRESET, "experts": {"count": 8, "active": 2}}}
# Nothing of the host, whose constant times would hide what differs.
HOST = dict.fromkeys(("kernel", "rank", "layer", "stall", "microbatch", "step"), "0 us")
CASES = {  # kind, ranks, what divides the model, and the same as a strategy; what its gradients are reduced in
    "ddp": ("llama", 8, "ddp", {"dp": 8}, "fp32"),
    "ddp-narrow": ("llama", 8, "ddp", {"dp": 8}, "weights"),
    "fsdp": ("llama", 8, "fsdp2", {"dp": 8, "zero": 3}, "fp32"),
    "hsdp": ("llama", 16, "hsdp=8", {"dp": 16, "zero": 3, "shard_group": 8}, "fp32"),
    "tp": ("llama", 8, "tp=8", {"tp": 8}, "fp32"),
    "tp-fsdp": ("llama", 16, "tp=8,fsdp", {"tp": 8, "dp": 2, "zero": 3}, "fp32"),
    "experts-ddp": ("mixtral", 8, "ddp", {"dp": 8}, "fp32"),
    "experts-fsdp": ("mixtral", 8, "fsdp2", {"dp": 8, "zero": 3}, "fp32"),
    "experts-tp": ("mixtral", 8, "tp=8", {"tp": 8}, "fp32"),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """A preset and an imported model as scenarios, with changes to their system."""
    kind, ranks, parallel, strategy, gradients = CASES[request.param]
    folder = tmp_path_factory.mktemp("preset")
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    given = {"batch": BATCH, "sequence": TOKENS, "dtype": "bf16", "gradients": gradients}
    program = record(str(folder / "config.json"), world_size=ranks, parallel=parallel, **given)
    file = write_program(program, folder / "model.program.json.gz")
    batch = BATCH * ranks // strategy.get("tp", 1)

    def scenarios(**network):
        common = {
            "system": {"template": "dgx-h100", "nodes": ranks // 8, "network": network},
            "software": {"like": "pytorch", "host": HOST, "gradient": "fp32" if gradients == "fp32" else "weight"},
        }
        preset = {**common, "workload": {**PRESETS[kind], "global_batch": batch}, "strategy": {"micro_batch": BATCH, **strategy}}
        return crossflow.from_dict(preset), crossflow.from_dict({**common, "workload": str(file)})

    return scenarios


def sent(scenario):
    """Messages of a rank and their bytes, by kind, ranks, and whether they leave a node; without those of the buffers of replicas.

    DistributedDataParallel broadcasts the frequencies of rotary positions; our builder has no buffers.
    """
    found = {}
    for one in events(scenario).events:
        if one.ranks > 1 and one.op != "broadcast":
            count, size = found.get((one.op, one.ranks, one.scope), (0.0, 0.0))
            each = one.count * one.ranks / scenario.devices
            found[one.op, one.ranks, one.scope] = count + each, size + each * float(one.shape.removesuffix(" B"))
    return found


def loss_apart(found, experts):
    """The same with the loss of a table that ranks share as three messages, as DTensor sends them, where our builder has one; and with the
    gradients of the weights of two experts a token, which ranks that share experts sum in FP32 in a message a layer.
    """
    routed = LAYERS * experts

    def more(key, count, size):
        return (count + 2 + routed, size + routed * BATCH * TOKENS * 2 * 4) if key == ("all_reduce", 8, "intra") else (count, size)

    return {key: more(key, *one) for key, one in found.items()}


@pytest.mark.cases(3)
def test_messages_are_those_of_the_preset(pair):
    preset, imported = pair()
    ours, theirs = sent(preset), sent(imported)
    expected = loss_apart(ours, "experts" in preset.to_dict()["workload"]) if preset.strategy.tp > 1 else ours
    assert expected.keys() == theirs.keys()
    for key, (count, size) in expected.items():
        assert theirs[key] == (pytest.approx(count), pytest.approx(size, rel=1e-3))


def test_the_step_is_that_of_the_preset_on_fast_links_and_slow_ones(pair):
    """Links of a tenth of the rate lengthen both alike."""
    fast = [float(crossflow.predict(one).step_time) for one in pair()]
    slow = [float(crossflow.predict(one).step_time) for one in pair(intra={"bandwidth": "45 GB/s"})]
    assert fast[1] == pytest.approx(fast[0], rel=0.05)
    assert slow[1] == pytest.approx(slow[0], rel=0.05)
    assert slow[0] > 1.1 * fast[0]


def test_fewer_experts_than_ranks_are_cut_along_another_dimension(tmp_path):
    """FSDP2 would pad a tensor of 8 experts to 16, and gather twice its bytes."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS["mixtral"], "num_hidden_layers": 1}))
    program = record(str(tmp_path / "config.json"), world_size=16, parallel="fsdp2", sequence=64, dtype="bf16")
    gathered = sum(program.messages[op.message].size for op in program.ops if op.message is not None and op.phase == "forward")
    assert gathered == pytest.approx(2 * program.parameters, rel=1e-3)


def test_gradients_of_a_gated_activation_are_one_pass(tmp_path):
    """It reads both inputs and the gradient, and writes two gradients."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 1}))
    program = record(str(tmp_path / "config.json"), sequence=64, dtype="bf16")
    mlp = [program.kernels[i] for op in program.ops if op.layer.endswith(".mlp") and op.phase == "backward" for i in op.kernels]
    assert [one.moved for one in mlp] == [5 * 2 * 64 * INNER]
