# ruff: noqa: E501  (exact sentences)
"""RWKV-5, 6 and 7: published counts, parameters and operations by hand, what a service keeps, files, and what is told of wrong ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.parallel.strategy.layout import Layout
from crossflow.workload.huggingface import huggingface_document
from crossflow.workload.spec import TransformerSpec

CONFIGS = Path(__file__).parent / "data" / "huggingface"
H, F, V = 1024, 3584, 32000
HEADS = {"heads": 16, "head_dim": 64, "groups": 16, "state": 64, "conv": 0}
EAGLE = {**HEADS, "kind": "rwkv5"}
FINCH = {**HEADS, "kind": "rwkv6", "mix_rank": 32, "step_rank": 64}
GOOSE = {**HEADS, "kind": "rwkv7", "step_rank": 64, "gate_rank": 128, "rate_rank": 48, "value_rank": 32}
MODEL = {
    "model": "transformer", "layers": 4, "hidden": H, "ffn": F, "gated": False, "norm": "layernorm", "positions": "none", "embedding_norm": True,
    "vocabulary": V, "sequence": 4096, "global_batch": 16,
}  # fmt: skip


def made(strategy="dp8", software="", **workload):
    software = software or ("megatron-core" if {**MODEL, **workload}.get("task", "training") == "training" else "vllm")
    data = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": {**MODEL, **workload}, "strategy": strategy, "software": software}
    return crossflow.from_dict(data)


def read(name, **more):
    document, _ = huggingface_document(CONFIGS / f"{name}.json", service="task" in more)
    return files.validate(TransformerSpec, files.merge(document, files.Document(file="test", data=more)))


# Parameters in billions as the makers give them: Peng et al. 2024, Table 2 (Finch; Eagle 7B), Peng et al. 2025, Table 3 (Goose World3); the
# cards of Finch 7B and 14B.
PUBLISHED = {
    "rwkv5-7b": 7.52, "rwkv6-1.6b": 1.60, "rwkv6-3b": 3.10, "rwkv6-7b": 7.64, "rwkv6-14b": 14.07, "rwkv7-0.4b": 0.45, "rwkv7-1.5b": 1.53, "rwkv7-2.9b": 2.95,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_as_published(name):
    assert read(name).transformer().parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.005)


def test_parameters_of_finch_by_hand():
    """r, k, v, g and output; mixtures of five latents, decays of one; nine vectors, two norms; channel mixing with its receptance."""
    time, channel = made(ssm=FINCH).workload.transformer().layers[0].parts
    assert time.parameters == 5 * H * H + 2 * 5 * 32 * H + 2 * 64 * H + 8 * H + 2 * H + 2 * H
    assert channel.parameters == H * H + 2 * H * F + 2 * H + 2 * H


def test_parameters_of_eagle_and_goose_by_hand():
    eagle, goose = (made(ssm=ssm).workload.transformer().layers[0].parts for ssm in (EAGLE, GOOSE))
    assert eagle[0].parameters == 5 * H * H + 6 * H + 2 * H + 2 * H
    assert goose[0].parameters == 4 * H * H + 2 * H * (64 + 128 + 48 + 32) + 12 * H + 2 * H + 2 * H
    assert goose[1].parameters == 2 * H * F + H + 2 * H


@pytest.mark.parametrize(
    ("ssm", "products", "states"),
    [(EAGLE, 5 * H * H, 2), (FINCH, 5 * H * H + 2 * H * (5 * 32 + 64), 2), (GOOSE, 4 * H * H + 2 * H * 272, 4)],
)
def test_operations_of_time_mixing_by_hand(ssm, products, states):
    """Of each token all products, and two products of each head's state with a vector, or four of the generalised delta rule."""
    whole = made(ssm=ssm).workload.transformer()
    assert whole.part_flops(whole.layers[0].parts[0], 100) == 100 * (2 * products + 2 * states * 16 * 64 * 64)


def test_products_read_the_mixtures_that_are_theirs():
    """Numbers of a token that each product reads: r, k, v and g a mixture each; latents those of the product before, five of mixtures."""
    time, channel = made(ssm={**FINCH, "mix_rank": 48}).workload.transformer().layers[0].parts
    assert {matrix.name: (matrix.k, matrix.n, matrix.inputs) for matrix in time.matrices} == {
        "input": (H, 4 * H, 4 * H), "mix_down": (H, 5 * 48, 0), "mix_up": (48, 5 * H, 5 * 48), "decay_down": (H, 64, H),
        "decay_up": (64, H, 64), "output": (H, H, 0),
    }  # fmt: skip
    assert [matrix.inputs for matrix in channel.matrices] == [H, 0, 0]


def test_a_service_keeps_states_and_two_tokens():
    """Of a request in each layer 16 states of 64 x 64 in fp32, and a token for each of the two mixings, whatever its length."""
    held = [
        crossflow.evaluate(made(ssm={**FINCH, "state_dtype": "fp32"}, task="decode", prompt=prompt, output=2, global_batch=64)).memory[
            "kv_cache"
        ][0]
        for prompt in (64, 4000)
    ]
    assert held[0] == pytest.approx(8 * 4 * (16 * 64 * 64 * 4 + 2 * H * 2), rel=1e-6)
    assert held[0] == held[1]


def test_times_do_not_grow_with_the_context():
    times = [
        crossflow.evaluate(made(ssm=GOOSE, task="decode", prompt=prompt, output=2, global_batch=64)).step_time[0] for prompt in (64, 4000)
    ]
    assert times[0] == pytest.approx(times[1])


def test_scans_have_a_state_of_each_head():
    """One scan of Finch as of state-space duality, of Goose as of the delta rule, in chunks of 64; no convolution."""
    for ssm, delta in ((FINCH, False), (GOOSE, True)):
        scenario = made(ssm=ssm, software="megatron-core")
        found = block_kernels(scenario.job(), Layout.of([scenario.strategy], np.array([16.0]), 8), scenario.stack)
        (scan,) = [one for _, phase, one in found.scans if phase == "forward"]
        assert (scan.delta, float(np.max(scan.chunk)), float(np.max(scan.heads)), float(np.max(scan.width))) == (delta, 64.0, 16.0, 64.0)


def test_tokens_are_mixed_by_hand():
    """Forward: a difference r2 w1 and mixtures r2 and w1 each: 5 (r1 more each, which the token makes) and 2 of Finch, 6 and 1 of Goose."""
    moved = {}
    for ssm in (FINCH, GOOSE):
        scenario = made(ssm=ssm, software="megatron-core")
        found = block_kernels(scenario.job(), Layout.of([scenario.strategy], np.array([16.0]), 8), scenario.stack)
        element = 2.0 * 4096 * H * scenario.strategy.micro_batch
        moved[ssm["kind"]] = {float(np.max(row.moved)) / element for row in found.passes if row.phase == "forward"}
    assert moved["rwkv6"] >= {5.0 + 5 + 5, 5.0 + 2}
    assert moved["rwkv7"] >= {5.0 + 6, 5.0 + 1}


@pytest.mark.cases(2)
@pytest.mark.parametrize("strategy", ["dp8-z3-full", "tp8-sp", "tp2-dp4", "cp2-dp4", "pp4-dp2"])
def test_strategies_divide_them(strategy):
    for ssm in (EAGLE, FINCH, GOOSE):
        assert np.isfinite(crossflow.evaluate(made(strategy=strategy, ssm=ssm, software="megatron-core")).step_time[0])


def test_services_run_them():
    served = {"model": str(CONFIGS / "rwkv7-1.5b.json"), "task": "serving", "prompt": 1024, "output": 128, "global_batch": 64}
    score = crossflow.predict(crossflow.from_dict({"system": "dgx-h100", "workload": served, "strategy": "dp8", "software": "vllm"}))
    assert score.ttft > 0
    assert read("rwkv7-1.5b", task="decode", prompt=64, output=2).ssm.state_dtype == "fp32"


def test_wider_channels_of_a_file_count(tmp_path):
    """3.5 times a token's width, in multiples of 32, where a file names none."""
    assert read("rwkv6-1.6b").ffn == 7168
    fields = json.loads((CONFIGS / "rwkv6-1.6b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "intermediate_size": 8192}))
    assert huggingface_document(tmp_path / "config.json")[0].data["ffn"] == 8192


REFUSED = [
    ({"ssm": {**FINCH, "mix_rank": None}}, "mix_rank: rwkv6 needs it; give its width"),
    ({"ssm": {**EAGLE, "rate_rank": 8}}, "rate_rank: rwkv5 has none; leave it out"),
    ({"ssm": {**EAGLE, "conv": 4}}, "conv: rwkv5 has none; give 0"),
    ({"ssm": {**EAGLE, "state": 32}}, "groups and state: each head of rwkv5 has a square state; give groups = heads and state = head_dim"),
    ({"ssm": EAGLE, "gated": True}, "gated: channel mixing of rwkv5 has none; give gated: false"),
    ({"ssm": EAGLE, "experts": {"count": 8, "active": 2}}, "experts: channel mixing of rwkv5 has none; leave it out"),
    ({"ssm": {**EAGLE, "heads": 8, "groups": 8}}, "ssm.heads: 8 heads of 64 do not make the 1024 elements of a token, as in rwkv5"),
]  # fmt: skip


@pytest.mark.parametrize(("workload", "sentence"), REFUSED)
def test_what_does_not_go_together_is_told(workload, sentence):
    with pytest.raises(CrossflowError) as caught:
        made(**workload)
    assert sentence in str(caught.value)


def test_other_widths_of_attention_are_told(tmp_path):
    fields = json.loads((CONFIGS / "rwkv6-1.6b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "attention_hidden_size": 1024}))
    with pytest.raises(SpecError, match="attention_hidden_size: 1024 is not modelled where hidden_size = 2048"):
        huggingface_document(tmp_path / "config.json")
