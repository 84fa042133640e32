# ruff: noqa: E501  (exact sentences)
"""Layers with dimensions of their own: parameters, operations and caches by hand, and what does not fit."""

import pytest
from pydantic import ValidationError

import crossflow
from crossflow.workload.spec import TransformerSpec

MODEL = {
    "model": "transformer",
    "layers": 6,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "vocabulary": 32000,
    "sequence": 2048,
    "global_batch": 16,
}
WINDOW = {"size": 128, "pattern": ["local", "local", "global"]}


def spec(**keys):
    return TransformerSpec.model_validate({**MODEL, **keys})


def layers(**keys):
    return [layer for layer in spec(**keys).transformer().layers for _ in range(layer.count)]


def score(strategy="dp8", **keys):
    data = {
        "system": {"template": "dgx-h100", "nodes": 1},
        "workload": {**MODEL, **keys},
        "strategy": strategy,
        "software": "megatron-core",
    }
    return crossflow.evaluate(crossflow.from_dict(data))


def cache(**keys):
    return float(score(task="decode", prompt=2048, output=64, **keys).memory["kv_cache"][0])


def test_global_layers_of_other_heads_by_hand():
    """Local: 16 heads of 64; global: 16 of 128 with 4 heads of keys, which are the values too before their norms."""
    found = layers(window=WINDOW, variants=[{"layers": "global", "head_dim": 128, "kv_heads": 4, "keys_as_values": True}])
    assert [layer.parts[0].parameters for layer in found[1:3]] == [4 * 1024**2 + 1024, 1024 * (16 + 4) * 128 + 16 * 128 * 1024 + 1024]
    assert [layer.parts[0].attention.cached for layer in found[1:3]] == [2 * 1024, 2 * 4 * 128]


def test_operations_of_a_layer_whose_values_are_narrower():
    """Queries and keys of 192, values of 128: products, and scores and sums over half of the tokens."""
    model = spec(layers=1, head_dim=192, value_dim=128, kv_heads=4).transformer()
    products = 1024 * (16 * 192 + 4 * 320) + 16 * 128 * 1024
    assert model.part_flops(model.layers[0].parts[0], 2048) == 2 * 2048 * products + 2 * 2048 * 1024 * 16 * (192 + 128)


def test_layers_that_do_nothing_are_none():
    found = layers(variants=[{"layers": [1, "3-4"], "attention": False}, {"layers": "4-5", "mlp": False}])
    assert [[part.type for part in layer.parts] for layer in found] == [
        ["attention", "mlp"],
        ["mlp"],
        ["attention", "mlp"],
        ["mlp"],
        ["attention"],
    ]


def test_layers_that_keep_their_mlp_beside_those_with_experts():
    found = layers(experts={"count": 8, "active": 2}, variants=[{"layers": [0, 2], "experts": False}])
    assert [layer.parts[1].type for layer in found] == ["mlp", "experts", "mlp", "experts", "experts", "experts"]


def test_layers_that_share_a_cache_keep_none_and_make_no_keys():
    shared = {"variants": [{"layers": "3-5", "shared_cache": True}]}
    assert cache(**shared) == cache() / 2
    assert spec().transformer().parameters - spec(**shared).transformer().parameters == 3 * 2 * 1024**2


def test_later_variants_win():
    found = layers(variants=[{"layers": "0-5", "ffn": 512}, {"layers": 2, "ffn": 1024}])
    assert [layer.parts[1].inner for layer in found] == [512, 512, 1024, 512, 512, 512]


def test_tensor_ranks_repeat_the_heads_of_each_kind_of_layer():
    """Eight ranks: a head of keys each of the eight of local layers, and one of two that share each of four of the global."""
    keys = {"window": {**WINDOW, "size": 4096}, "kv_heads": 8, "task": "decode", "prompt": 2048, "output": 64}
    alike, fewer = (
        float(score("tp8", **keys, **more).memory["kv_cache"][0]) for more in ({}, {"variants": [{"layers": "global", "kv_heads": 4}]})
    )
    assert alike == fewer


def test_embeddings_of_each_layer_by_hand():
    """A table of 6 vectors of 64 for each word, a product that makes as many of a token, a norm; in each layer two products and a norm."""
    more = spec(per_layer={"width": 64, "vocabulary": 1000}).transformer().parameters - spec().transformer().parameters
    assert more == 1000 * 6 * 64 + 1024 * 6 * 64 + 64 + 6 * (2 * 1024 * 64 + 1024)


WRONG = [
    ({"variants": [{"layers": 6, "ffn": 1024}]}, "variants.0.layers: layer 6 is not one of the model's layers 0-5"),
    ({"variants": [{"layers": "local", "ffn": 1024}]}, "variants.0.layers: the model has no layer that is local"),
    ({"variants": [{"layers": 1}]}, "layers that differ in nothing are no variant; give a dimension of theirs, or leave it out"),
    ({"variants": [{"layers": "4-2", "ffn": 8}]}, "layers: 4-2 is no range; give the first layer first"),
    ({"variants": [{"layers": "last", "ffn": 8}]}, "expected a layer such as 3, a range such as 3-7, local or global; got 'last'"),
    ({"variants": [{"layers": 1, "kv_heads": 3}]}, "variants: heads = 16 is not a multiple of kv_heads = 3"),
    ({"variants": [{"layers": 1, "experts": False}]}, "variants.0.experts: without `experts` and an `ffn` of the model no layer keeps an MLP in their place; leave it out"),
    ({"shared_cache": True}, "shared_cache: some layers must make the keys and values that others share; give it in variants"),
    ({"mtp_layers": 1, "variants": [{"layers": 5, "attention": False}]}, "mtp_layers: the last layer, which further tokens are predicted as, mixes no tokens; set mtp_layers to 0"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "sentence"), WRONG)
def test_variants_that_do_not_fit_are_told(keys, sentence):
    with pytest.raises(ValidationError) as caught:
        spec(**keys)
    assert sentence in str(caught.value)
