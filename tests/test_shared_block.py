"""Hybrids whose layers share blocks of attention and MLP (Zamba, Zamba2), by hand."""

from pathlib import Path

import pytest

import crossflow
from crossflow.base import files
from crossflow.base.errors import SpecError
from crossflow.workload.huggingface import huggingface_document
from crossflow.workload.spec import TransformerSpec

CONFIGS = Path(__file__).parent / "data" / "huggingface"
SMALL = {
    "model": "transformer", "layers": 6, "hidden": 64, "heads": 4, "head_dim": 32, "ffn": 128, "vocabulary": 1000, "sequence": 128,
    "global_batch": 8, "ssm": {"heads": 8, "head_dim": 16, "state": 16, "mlp": False, "pattern": ["ssm", "shared"]},
    "shared_block": {"blocks": 1, "mlp_rank": 8, "attention_rank": 4},
}  # fmt: skip


def small(**changes):
    return TransformerSpec.model_validate({**SMALL, **changes})


def parts(spec):
    return [part for layer in spec.transformer().layers for part in layer.parts for _ in range(layer.count)]


def test_a_use_of_a_block_by_hand():
    """Queries, keys and values of two vectors, their output of one; a gated MLP; adapters and a last product of each use's own."""
    attention, feeding = parts(small())[1:3]
    products = 128 * 3 * 128 + 128 * 64, 3 * 64 * 128
    adapters = 128 * 3 * 4 + 4 * 3 * 128, 64 * 8 + 8 * 2 * 128
    assert attention.parameters == products[0] + adapters[0] + 2 * 64
    assert feeding.parameters == products[1] + adapters[1] + 64 * 64 + 64


def test_later_uses_hold_adapters_and_their_last_product_alone():
    spec = small()
    first, later = parts(spec)[1:3], parts(spec)[5:7]
    assert later[0].parameters == 128 * 3 * 4 + 4 * 3 * 128
    assert later[1].parameters == 64 * 8 + 8 * 2 * 128 + 64 * 64
    model = spec.transformer()
    assert [model.part_flops(part, 128) for part in first] == [model.part_flops(part, 128) for part in later]


@pytest.mark.parametrize(("blocks", "held"), [(1, [True, False, False]), (2, [True, True, False])])
def test_blocks_are_taken_in_turn(blocks, held):
    kinds = [kind.block for kind in small(shared_block={"blocks": blocks}).kinds(6) if kind.block != "none"]
    assert [kind == "holds" for kind in kinds] == held


def test_operations_of_zamba2_7b():
    """Of one token: products, convolution, scales and states of 81 layers, and blocks of 13, with half of their scores. [2 flop]"""
    document, _ = huggingface_document(CONFIGS / "zamba2-7b.json")
    model = files.validate(TransformerSpec, document).transformer()
    d, inner, f, rank, length = 3584, 7168, 14336, 128, 4096
    states = 81 * (d * (2 * inner + 2 * 2 * 64 + 112) + inner * d + 4 * (inner + 2 * 2 * 64) + 3 * 112 + inner + 2 * inner * 64)
    blocks = 13 * (7168 * 3 * 7168 + 7168 * d + 3 * d * f + d * rank + rank * 2 * f + d * d)
    scores = 13 * 2 * 32 * 224 * length / 2
    assert model.forward_flops(length) == pytest.approx(2.0 * length * (states + blocks + scores + 32000 * d), rel=1e-12)


def test_a_cache_has_keys_and_values_of_each_use():
    document, _ = huggingface_document(CONFIGS / "zamba2-7b.json")
    model = files.validate(TransformerSpec, document).transformer()
    cached = sum(layer.count * part.attention.cached for layer in model.layers for part in layer.parts if part.attention)
    assert cached == 13 * 2 * 32 * 224


@pytest.mark.parametrize("task", ["training", "decode"])
def test_each_device_holds_a_block_once(task):
    """Weights in two bytes are all that the model has, whatever often they are used."""
    more = {"task": task, "output": 64} if task == "decode" else {}
    asked = {"system": {"template": "dgx-h100", "devices": 1}, "workload": {**SMALL, **more}, "strategy": "dp1"}
    held = float(crossflow.predict(asked).score.memory["weights"][0])
    assert held == pytest.approx(2.0 * small().transformer().parameters, rel=1e-6)


def test_stages_of_a_pipeline_are_refused():
    with pytest.raises(SpecError, match="layers share the weights of a block, of which each stage would need a copy; leave out pp"):
        crossflow.predict({"system": "dgx-h100", "workload": SMALL, "strategy": "pp2-dp4"})


WRONG = [
    ({"shared_block": None}, "shared_block: ssm.pattern has layers of kind shared; give it"),
    ({"shared_block": {"blocks": 4}}, "shared_block.blocks: 3 layers do not use 4 blocks; lower it"),
    ({"ssm": {**SMALL["ssm"], "pattern": ["attention", "mlp", "ssm"]}}, "shared_block: no layer uses it"),
    ({"ssm": {**SMALL["ssm"], "mlp": True}}, "a layer of kind shared has the MLP of its block, which needs mlp: false"),
    ({"qk_norm": "shared"}, "qk_norm: a shared block is modelled without it; leave it out"),
    ({"norms": 4}, "norms: a shared block is modelled without it; leave it out"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), WRONG)
def test_what_a_block_does_not_go_with(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        small(**changes)
