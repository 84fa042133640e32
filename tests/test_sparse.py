"""Sparse attention with an indexer: what it computes, reads and keeps beside dense latent attention."""

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.base.errors import CrossflowError
from crossflow.parallel.strategy.layout import Layout
from crossflow.workload.transformer import Selection

LATENT = {"query_rank": 512, "kv_rank": 256, "nope": 64, "rope": 32, "value": 64}
MODEL = {
    "model": "transformer", "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000, "sequence": 8192,
    "latent": LATENT, "global_batch": 16,
}  # fmt: skip
SPARSE = {"top_k": 1024, "heads": 8, "head_dim": 64}


def made(strategy="dp8", software="", **workload):
    software = software or ("megatron-core" if {**MODEL, **workload}.get("task", "training") == "training" else "vllm")
    data = {"system": {"template": "dgx-h200", "nodes": 1}, "workload": {**MODEL, **workload}, "strategy": strategy, "software": software}
    return crossflow.from_dict(data)


def score(strategy="dp8", **workload):
    return crossflow.evaluate(made(strategy, **workload))


def attention_of(scenario, batch):
    """Operations and bytes of the kernels of attention in a layer, the indexer's first."""
    layout = Layout.of([scenario.strategy], np.array([float(batch)]), 8)
    kernels = block_kernels(scenario.job(), layout, scenario.stack)
    return [(float(row.flops[0]), float(row.moved[0])) for row in kernels.scores if row.unit == "0.0.attention" and row.phase == "forward"]


@pytest.mark.parametrize(("tokens", "pairs"), [(1024, 1024**2 / 2), (4096, 1024**2 / 2 + 3072 * 1024)])
def test_a_query_attends_to_no_more_than_is_chosen(tokens, pairs):
    """Exact below the diagonal of a causal mask; every query beyond the first ones attends to as many."""
    assert Selection(chosen=1024).pairs(tokens) == pairs


def test_entries_that_stand_for_several_tokens_are_fewer():
    """A window of the last tokens comes to them; without a number all entries are attended to."""
    assert Selection(chosen=256, ratio=4).pairs(1024) == 1024**2 / 2 / 4
    assert Selection(ratio=128, window=64).pairs(4096) == 4096**2 / 2 / 128 + 64 * (4096 - 32)


def test_operations_of_an_indexer_by_hand():
    """A layer: its weights of every token, and for each pair of tokens a product of 64 elements and a weight in each of 8 heads."""
    dense, sparse = (made(**more).workload.transformer() for more in ({}, {"sparse": SPARSE}))
    tokens, parameters = 8192, 512 * 8 * 64 + 1024 * 64 + 1024 * 8
    assert sparse.parameters - dense.parameters == 4 * (parameters + 2 * 64)
    indexing = 2 * tokens * parameters + 2 * (tokens**2 / 2) * 8 * 65
    left, all_ = 1024**2 / 2 + 7168 * 1024, tokens**2 / 2
    saved = 2 * (all_ - left) * 16 * (96 + 64)
    assert sparse.forward_flops() - dense.forward_flops() == pytest.approx(4 * (indexing - saved), rel=1e-12)


@pytest.mark.parametrize("task", ["prefill", "decode"])
def test_attention_to_all_tokens_is_that_of_the_dense_model_beside_the_indexer(task):
    """As long as there are no more tokens than are chosen, scores and their bytes are those of latent attention."""
    served = {"task": task, "prompt": 512, "output": 64, "global_batch": 64}
    dense, sparse = (made(**served, **more) for more in ({}, {"sparse": SPARSE}))
    own, whole = (attention_of(scenario, 64) for scenario in (sparse, dense))
    assert own[1:] == whole
    assert own[0] != whole[0]


def test_a_written_token_reads_what_is_chosen_and_all_keys_of_the_indexer():
    """Of 16 requests of a rank with 65,536 tokens: 1,024 latents of 288 elements, and keys of 64 elements of all tokens."""
    served = {"task": "decode", "prompt": 65536 - 8, "output": 16, "global_batch": 128}
    (_, keys), (_, latents) = attention_of(made(**served, sparse=SPARSE), 128)
    heads = 16 * (288 + 256) * 2  # queries and results of a request
    assert latents == pytest.approx(16 * (1024 * 288 * 2 + heads), rel=1e-3)
    assert keys == pytest.approx(16 * (65536 * 64 * 2 + 8 * 64 * 2), rel=1e-3)


def test_the_cache_has_the_keys_of_indexers_beside_the_latents():
    served = {"task": "decode", "prompt": 4096, "output": 2, "global_batch": 64}
    dense, sparse = (score(**served, **more).memory["kv_cache"][0] for more in ({}, {"sparse": SPARSE}))
    assert sparse / dense == pytest.approx((288 + 64) / 288)
    shared = score(**served, sparse={**SPARSE, "pattern": ["full", "shared"]}).memory["kv_cache"][0]
    assert shared / dense == pytest.approx((288 + 32) / 288)


def test_long_prompts_gain_and_short_ones_lose():
    def time(task, prompt, **more):
        return score(task=task, prompt=prompt, output=2, global_batch=64, **more).step_time[0]

    for task in ("prefill", "decode"):
        assert time(task, 131072, sparse=SPARSE) < time(task, 131072)
        assert time(task, 512, sparse=SPARSE) > time(task, 512)
        assert time(task, 131072, sparse=SPARSE) < time(task, 131072, sparse={**SPARSE, "top_k": 8192})


def test_layers_that_share_a_choice_have_no_indexer():
    """Time and parameters lie between those of a model with an indexer in every layer and one without any."""
    served = {"task": "prefill", "prompt": 65536, "global_batch": 8, "output": 1}
    every, half = (score(**served, sparse={**SPARSE, "pattern": pattern}).step_time[0] for pattern in (["full"], ["full", "shared"]))
    assert half < every
    count = made(sparse={**SPARSE, "pattern": ["full", "shared"]}).workload.transformer().parameters
    assert made(sparse=SPARSE).workload.transformer().parameters - count == 2 * (512 * 8 * 64 + 1024 * 64 + 1024 * 8 + 2 * 64)


def test_a_batch_is_as_one_by_one():
    """Prompts on both sides of the number that is chosen, in one batch."""
    prompts = [256, 1024, 4096, 65536]
    scenario = made(task="prefill", prompt=256, output=2, global_batch=8, sparse=SPARSE)
    found = crossflow.evaluate(scenario, {"workload.prompt": prompts}).step_time
    alone = [score(task="prefill", prompt=prompt, output=2, global_batch=8, sparse=SPARSE).step_time[0] for prompt in prompts]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"causal": False}, "sparse: an indexer is modelled for causal decoders of words only; leave it out"),
        ({"window": 64}, "window: sparse attention says itself what a query sees; leave it out"),
        (
            {"sparse": {**SPARSE, "pattern": ["dense", "dense"]}},
            "pattern: no layer has an indexer; begin with full, or with dense and full",
        ),
        ({"sparse": {**SPARSE, "pattern": ["shared"]}}, "pattern: the first layer has no indexer before it; begin with full"),
    ],
)
def test_what_does_not_go_together_is_told(workload, sentence):
    with pytest.raises(CrossflowError) as caught:
        made(**{"sparse": SPARSE, **workload})
    assert sentence in str(caught.value)
