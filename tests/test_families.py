# ruff: noqa: E501  (exact sentences and tables of cases)
"""Kinds of layers that files of 2025 and 2026 brought, by hand; types of quantised weights by layer; towers and what is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.parallel.strategy.layout import Layout
from crossflow.workload.conventions import conventions
from crossflow.workload.huggingface import huggingface_document
from crossflow.workload.quantised import stored
from crossflow.workload.spec import TransformerSpec
from crossflow.workload.towers import towers

CONFIGS = Path(__file__).parent / "data" / "huggingface"
MODEL = {
    "model": "transformer",
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "vocabulary": 32000,
    "sequence": 4096,
    "global_batch": 16,
}
COMPRESSED = {
    "head_dim": 128, "query_rank": 256, "attention_sinks": True,
    "compressed": {"output_groups": 4, "output_rank": 128, "window": 64, "ratios": [0, 4, 128, 4], "top_k": 256, "heads": 8, "head_dim": 32},
}  # fmt: skip


def made(strategy="dp8", software="", **workload):
    software = software or ("megatron-core" if {**MODEL, **workload}.get("task", "training") == "training" else "vllm")
    data = {"system": {"template": "dgx-h200", "nodes": 1}, "workload": {**MODEL, **workload}, "strategy": strategy, "software": software}
    return crossflow.from_dict(data)


def model(**workload):
    return made(**workload).workload.transformer()


def read(name, **more):
    document, _ = huggingface_document(CONFIGS / f"{name}.json", service="task" in more)
    return files.validate(TransformerSpec, files.merge(document, files.Document(file="test", data=more)))


# ------------------------------------------------------------------------------------------ published counts

# Parameters in billions as the model cards or reports of their makers give them: all, and those that a token passes (0 where they are all).
# Counts of a token leave out the table, or the table and the head, in some of them.
PUBLISHED = {
    "deepseek-v2-lite": ("15.7", "2.4"), "deepseek-v3": ("671", "37"), "deepseek-v4-pro": ("1.6e3", "49"), "deepseek-v4-flash-nvfp4": ("284", "13"),
    "kimi-k2": ("1.0e3", "32"), "kimi-k3": ("2.8e3", "104"), "glm-4.5-air": ("106", "12"), "glm-5.2": ("744", "40"), "minimax-m2.7": ("2.3e2", "10"),
    "minimax-text-01": ("456", "45.9"), "qwen3-30b-a3b": ("30.5", "3.3"), "qwen3-8b": ("8.2", "0"), "qwen3-next-80b-a3b": ("80", "3"),
    "qwen3.5-35b-a3b": ("35", "3"), "qwen3.5-27b": ("27", "0"), "gpt-oss-20b": ("20.9", "3.6"), "gpt-oss-120b": ("117", "5.1"),
    "nemotron-3-nano-30b-a3b": ("31.6", "3.6"), "nemotron-3-super-120b-a12b": ("120.6", "12.7"), "nemotron-super-49b": ("49.9", "0"),
    "mimo-v2-flash": ("309", "15"), "step-3.5-flash": ("196", "11"), "gemma-4-31b": ("30.7", "0"), "llama-4-maverick": ("400", "17"),
    "llama-3.1-405b": ("405", "0"), "mixtral-8x7b": ("46.7", "12.9"), "jamba-v0.1": ("52", "12"), "granite-4.0-h-small": ("32", "9"),
    "hunyuan-a13b": ("80", "13"), "hunyuan-large": ("389", "52"), "dbrx-132b": ("132", "36"), "grok-2": ("270", "115"),
    "k-exaone-236b": ("236", "23"), "trinity-mini": ("26", "3"), "ring-mini-linear": ("16.4", "1.6"), "lfm2-8b-a1b": ("8.3", "1.5"),
    "ernie-4.5-21b-a3b": ("21.8", "3"), "olmoe-1b-7b": ("6.9", "1.3"), "dots.llm1": ("142", "14"), "falcon-h1-0.5b": ("0.52", "0"),
    "minicpm3-4b": ("4.1", "0"), "whisper-large-v3": ("1.54", "0"), "modernbert-large": ("0.395", "0"), "nomic-embed-v1.5": ("0.137", "0"),
    "longcat-flash": ("560", "27"), "xlstm-7b": ("6.865", "0"), "openelm-270m": ("0.2715", "0"),
}  # fmt: skip


def rounded(text):
    """A unit of the last digit of a number; some makers cut the rest off."""
    digits, _, exponent = text.partition("e")
    return 1.0 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_as_published(name):
    """Within half a percent, or a unit of the last digit; of a token between the count without table and head, and the whole one."""
    total, active = PUBLISHED[name]
    whole = read(name).transformer()
    assert abs(whole.parameters / 1e9 - float(total)) <= max(0.005 * float(total), rounded(total))
    if active != "0":
        ends = (whole.embedding.parameters + whole.head.parameters) / 1e9
        most, slack = whole.active_parameters / 1e9, max(0.01 * float(active), rounded(active))
        assert most - ends - slack <= float(active) <= most + slack


# ------------------------------------------------------------------------------------------ compressed attention


def test_parameters_of_compressed_attention_by_hand():
    """Queries and outputs of latents, one vector for keys and values, entries; an indexer in layers of ratio 4 alone."""
    windowed, indexed, heavy = (layer.parts[0] for layer in model(**COMPRESSED).layers[:3])
    plain = 1024 * 256 + 256 * 2048 + 1024 * 128 + 512 * 4 * 128 + 4 * 128 * 1024 + 1024 + 256 + 128 + 16
    assert windowed.parameters == plain
    assert heavy.parameters == plain + 2 * 1024 * 128 + 129 * 128
    assert indexed.parameters == plain + 4 * 1024 * (128 + 32) + 9 * (128 + 32) + 256 * 8 * 32 + 1024 * 8


def test_operations_of_compressed_attention_by_hand():
    """Of 4,096 tokens: those of the products, of a window, of entries that are chosen or all seen, and of the indexer's scores."""
    whole = model(**COMPRESSED)
    windowed, indexed, heavy = (layer.parts[0] for layer in whole.layers[:3])
    tokens, each = 4096, 2 * 16 * 256  # a pair of query and entry: 16 heads of 128 for the score and for the sum
    window = each * 64 * (tokens - 32)
    # a product for outputs takes 512 of the 2048 elements for each of its 512
    products = 2 * tokens * (1024 * 256 + 256 * 2048 + 1024 * 128 + 512 * 512 + 512 * 1024)
    assert whole.part_flops(windowed, tokens) == products + window
    assert whole.part_flops(heavy, tokens) == products + window + 2 * tokens * 2 * 1024 * 128 + each * tokens**2 / 2 / 128
    chosen = each * (1024**2 / 2 + 1024 * (tokens - 1024)) / 4  # 256 entries of 4 tokens
    made_ = 2 * tokens * (4 * 1024 * 160 + 256 * 256 + 1024 * 8)
    scores = 2 * tokens**2 / 2 / 4 * 8 * 33
    assert whole.part_flops(indexed, tokens) == products + window + made_ + chosen + scores


def test_a_token_that_is_written_reads_a_window_and_entries():
    """A request with 65,536 tokens: 64 vectors, 256 chosen entries, or all 512 of 128 tokens, of 128 elements of 2 bytes."""
    scenario = made(**COMPRESSED, task="decode", prompt=65536 - 8, output=16, global_batch=128)
    layout = Layout.of([scenario.strategy], np.array([128.0]), 8)
    kernels = block_kernels(scenario.job(), layout, scenario.stack)
    moved = {row.unit: float(row.moved[0]) for row in kernels.scores if row.phase == "forward"}
    heads = 16 * 16 * 256 * 2  # queries and results of 16 requests
    assert moved["0.0.attention"] == pytest.approx(16 * 64 * 256 + heads, rel=1e-6)
    assert moved["1.0.attention"] == pytest.approx(16 * (64 + 256) * 256 + heads, rel=1e-3)
    assert moved["2.0.attention"] == pytest.approx(16 * (64 + 512) * 256 + heads, rel=1e-3)


def test_a_cache_of_entries_is_a_part_of_that_of_tokens():
    """Two layers with entries of 4 tokens and keys of an indexer, one with those of 128, one with a window; 130 tokens hold 2 entries more."""
    served = {"task": "decode", "prompt": 8192, "output": 2, "global_batch": 64}
    held = crossflow.evaluate(made(**COMPRESSED, **served)).memory["kv_cache"][0]
    tokens = 8192 + 2
    elements = 4 * 64 * 128 + 2 * tokens / 4 * (128 + 32) + tokens / 128 * 128
    assert held == pytest.approx(8 * elements * 2, rel=1e-3)


def test_the_caches_of_deepseek_v4_are_as_small_as_published():
    """A tenth of the cache of V3.2, and 27 % of its operations, at a million tokens (DeepSeek-V4, abstract)."""
    pro, before = read("deepseek-v4-pro").transformer(), read("deepseek-v3.2").transformer()

    def held(whole):
        return sum(layer.count * layer.parts[0].attention.held(1e6) for layer in whole.main)

    def flops(whole):
        return (whole.forward_flops(1_000_001) - whole.forward_flops(1_000_000)) / 1.0

    assert held(pro) / held(before) == pytest.approx(0.10, abs=0.02)
    assert flops(pro) / flops(before) == pytest.approx(0.27, abs=0.05)


REFUSED = [
    ({"query_rank": None}, "query_rank: queries of compressed attention pass a latent; give its width"),
    ({"kv_heads": 2}, "kv_heads: one vector of compressed attention is key and value of all heads, got 2; leave it out"),
    ({"attention_gate": True}, "attention_gate: compressed attention is modelled without it; leave it out"),
    ({"compressed": {**COMPRESSED["compressed"], "output_groups": 3}}, "compressed.output_groups: 16 heads do not make 3 groups"),
    ({"window": 64}, "window: compressed attention says itself what a query sees; leave it out"),
]


@pytest.mark.parametrize(("workload", "sentence"), REFUSED)
def test_what_does_not_go_with_compressed_attention_is_told(workload, sentence):
    with pytest.raises(CrossflowError) as caught:
        made(**{**COMPRESSED, **workload})
    assert sentence in str(caught.value)


# ------------------------------------------------------------------------------------------ streams, latents, sparse heads


def test_hyper_connections_by_hand():
    """Each part of a layer has a product of 4 streams to 24 numbers; the head one to 4. Layers hand over four vectors of a token."""
    plain, mixed = model(), model(residual_streams=4)
    more = 4 * 2 * (4 * 1024 * 24 + 24 + 3) + 4 * 1024 * 4 + 4 + 1
    assert mixed.parameters - plain.parameters == more
    assert mixed.forward_flops() - plain.forward_flops() == 2 * 4096 * (4 * 2 * 4 * 1024 * 24 + 4 * 1024 * 4)
    assert (plain.carried, mixed.carried) == (1024, 4096)
    times = [crossflow.evaluate(made(software="megatron-core", **more)).step_time[0] for more in ({}, {"residual_streams": 4})]
    assert times[1] > times[0]


def test_queries_of_a_latent_by_hand():
    """In the place of a product of 1024 x 1024 two of 1024 x 256, and a norm (Step-3)."""
    plain, low = model(), model(query_rank=256)
    assert plain.parameters - low.parameters == 4 * (1024 * 1024 - 2 * 1024 * 256 - 256)


def test_heads_of_an_indexer_that_choose_by_themselves_by_hand():
    """MiniMax-M3: in three of four layers queries of 4 heads and a key of 64 elements with norms, and 512 tokens that are seen."""
    sparse = {"top_k": 512, "heads": 4, "head_dim": 64, "weighed": False, "pattern": ["dense", "full", "full", "full"]}
    plain, chosen = model(kv_heads=4), model(kv_heads=4, sparse=sparse)
    assert chosen.parameters - plain.parameters == 3 * (1024 * 5 * 64 + 2 * 64)
    tokens = 4096
    seen, left = tokens**2 / 2, 512**2 / 2 + 512 * (tokens - 512)
    work = 2 * tokens * 1024 * 5 * 64 + 2 * seen * 4 * 64 - 2 * (seen - left) * 16 * 128
    assert chosen.forward_flops() - plain.forward_flops() == 3 * work


# ------------------------------------------------------------------------------------------ differences of heads
PAIRED = {"kv_heads": 8, "differential": True}  # 8 pairs of query heads, 4 of keys; queries and keys of 64 elements, values of 128


def test_differential_attention_by_hand():
    """The same products and cache as without it; four vectors of 64; each of 16 softmaxes multiplies values of 128 elements."""
    plain, paired = model(kv_heads=8), model(**PAIRED)
    assert paired.parameters - plain.parameters == 4 * 4 * 64
    tokens = 4096
    assert paired.forward_flops() - plain.forward_flops() == 4 * 2 * 16 * 64 * tokens**2 / 2
    one, other = (each.layers[0].parts[0].attention for each in (plain, paired))
    assert one.held(1000) == other.held(1000) == 1000 * 8 * 128


def test_a_written_token_reads_shared_values_for_both_heads_of_a_pair():
    """16 requests with 8,200 tokens, and their own: 8 heads of keys with 64 elements and a value of 128, read twice; the cache is that of plain heads."""
    moved, held = [], []
    for more in ({"kv_heads": 8}, PAIRED):
        scenario = made(**more, task="decode", prompt=8192, output=16, global_batch=128)
        kernels = block_kernels(scenario.job(), Layout.of([scenario.strategy], np.array([128.0]), 8), scenario.stack)
        moved.append(next(float(row.moved[0]) for row in kernels.scores if row.phase == "forward"))
        held.append(crossflow.evaluate(scenario).memory["kv_cache"][0])
    keys = 8201
    assert moved[0] == pytest.approx(16 * 2 * (keys * 8 * (64 + 64) + 16 * (64 + 64)), rel=1e-6)
    assert moved[1] == pytest.approx(16 * 2 * (keys * 8 * (64 + 128) + 16 * (64 + 128)), rel=1e-6)
    assert held[0] == held[1]


def test_what_differential_attention_keeps_and_how_it_is_divided():
    """Of a token both outputs of a pair beside their difference, 2048 elements; a rank has whole pairs of heads."""
    plain, paired = (crossflow.evaluate(made("dp8", global_batch=8, **more)).memory["activations"][0] for more in ({"kv_heads": 8}, PAIRED))
    assert paired - plain == pytest.approx(4 * 4096 * 2 * 16 * 128, rel=1e-6)
    assert crossflow.evaluate(made("tp8", **PAIRED)).feasible[0]
    with pytest.raises(CrossflowError, match="4 attention heads are not divisible by tp = 8"):
        crossflow.evaluate(made("tp8", **{**PAIRED, "heads": 8}))
    ranks = np.array([1.0, 2.0, 4.0, 8.0])
    assert model(**PAIRED).layers[0].parts[0].attention.kv_heads_on(ranks).tolist() == [8.0, 4.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"heads": 15, "head_dim": 64, "kv_heads": 15}, "differential: heads and kv_heads come in groups of 2, got 15"),
        ({"kv_heads": 1}, "differential: heads and kv_heads come in groups of 2, got 1"),
        ({"head_gate": True}, "differential: outputs of heads are treated in one way; leave out differential or head_gate"),
        ({"keys_as_values": True}, "differential: modelled without keys_as_values; leave out one of both"),
    ],
)
def test_what_does_not_go_with_differential_attention_is_told(more, sentence):
    with pytest.raises(CrossflowError) as caught:
        made(**{**PAIRED, **more})
    assert sentence in str(caught.value)


# ------------------------------------------------------------------------------------------ layers that see an image
SEEING = {"variants": [{"layers": [1], "cross": True}], "cross_tokens": 1600, "kv_heads": 4}


def test_layers_that_see_an_image_by_hand():
    """Queries of 4,096 tokens see the keys and values of 1,600, which are made of them; words do not see each other there."""
    whole = model(**SEEING)
    plain, crossed = whole.layers[0].parts[0], whole.layers[1].parts[0]
    assert crossed.parameters - plain.parameters == 2 * 64 + 2
    work = 2 * 4096 * 2 * 1024**2 + 2 * 1600 * 2 * 1024 * 256 + 4 * 4096 * 1600 * 1024
    assert whole.part_flops(crossed, 4096) == work
    assert [layer.encodes for layer in whole.layers] == [False] * 3


def test_a_service_keeps_the_keys_of_an_image():
    """A request of 2,050 tokens in three layers, and 1,600 tokens in one, of 4 heads of 64 and 16 bits."""
    score = crossflow.evaluate(made(**SEEING, task="decode", prompt=2048, output=2, global_batch=64))
    assert score.memory["kv_cache"][0] == pytest.approx(8 * 2 * 4 * 128 * (3 * 2050 + 1600), rel=1e-3)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"cross_tokens": None}, "cross_tokens: layers with cross attend to them; give it"),
        ({"variants": []}, "cross_tokens: no layer has cross; leave it out"),
        ({"cross": True}, "cross: other layers must read the words; give it in variants"),
        ({"window": 64}, "window: layers with cross are modelled without it; leave it out"),
        ({"task": "serving", "prompt": 64, "output": 8}, "task: serving is modelled without layers with cross"),
    ],
)
def test_layers_that_see_an_image_where_they_do_not_go(more, sentence):
    with pytest.raises(CrossflowError) as caught:
        made(**{**SEEING, **more})
    assert sentence in str(caught.value)


def test_wrong_lists_of_layers_that_see_an_image_are_told(tmp_path):
    fields = json.loads((CONFIGS / "llama-3.2-11b-vision.json").read_text())
    fields["text_config"]["cross_attention_layers"] = [3, 40]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(SpecError, match=r"cross_attention_layers: expected numbers of layers from 0 to 39, got \[3, 40\]"):
        huggingface_document(tmp_path / "config.json")


# ------------------------------------------------------------------------------------------ mixers


def test_lightning_attention_by_hand():
    """Queries, keys, values, gate and output of 16 heads of 64, and a norm; two products of a head's state with a vector a token."""
    ssm = {"kind": "lightning", "heads": 16, "head_dim": 64, "groups": 16, "state": 64, "conv": 0, "pattern": ["ssm", "attention"]}
    whole = model(ssm=ssm)
    part = whole.layers[0].parts[0]
    assert part.parameters == 5 * 1024**2 + 1024 + 1024
    assert whole.part_flops(part, 100) == 100 * (2 * 5 * 1024**2 + 2 * 1024 + 2 * 2 * 16 * 64 * 64)
    served = crossflow.evaluate(made(ssm=ssm, task="decode", prompt=4096, output=2, global_batch=64))
    assert served.memory["kv_cache"][0] == pytest.approx(8 * 2 * (16 * 64 * 64 + (4096 + 2) * 2 * 1024) * 2, rel=1e-3)


def test_matrix_memories_by_hand():
    """xLSTM: queries and keys of 16 heads of 32, values, a gate and an output of 1,024, two gates of each head with biases, and a norm."""
    ssm = {"kind": "mlstm", "heads": 16, "head_dim": 64, "groups": 16, "state": 32, "conv": 0, "pattern": ["ssm", "attention"]}
    whole = model(ssm=ssm)
    part = whole.layers[0].parts[0]
    products = 2 * 1024 * 512 + 3 * 1024**2 + 1024 * 2 * 16
    assert part.parameters == products + 2 * 16 + 1024 + 1024
    assert whole.part_flops(part, 100) == 100 * (2 * products + 2 * 1024 + 2 * 2 * 16 * 64 * 32)
    served = crossflow.evaluate(made(ssm=ssm, task="decode", prompt=4096, output=2, global_batch=64))
    assert served.memory["kv_cache"][0] == pytest.approx(8 * 2 * (16 * 64 * 32 + (4096 + 2) * 2 * 1024) * 2, rel=1e-3)
    times = {kind: crossflow.evaluate(made(ssm={**ssm, "kind": kind, "chunk": 64})).step_time[0] for kind in ("mlstm", "lightning")}
    assert times["mlstm"] > times["lightning"]  # the product of the gates


def test_the_factors_of_an_xlstm_are_widths():
    """Keys of half a token's width and values of a whole one over 8 heads; an MLP of 2.667 times, rounded up to 64s; states of a service in FP32."""
    spec, served = read("xlstm-7b"), read("xlstm-7b", task="decode", prompt=1024, output=2)
    assert (spec.ssm.state, spec.ssm.head_dim, spec.ssm.chunk, spec.ffn) == (256, 512, 64, 10944)
    assert (spec.ssm.state_dtype, served.ssm.state_dtype) == (None, "fp32")


def test_layers_of_openelm_have_widths_of_their_own():
    """The first of 16 layers has 12 heads and an MLP of 0.5 x 1,280, rounded to the nearest 256; the last 20 heads, 5 of keys, and 4 x 1,280."""
    first, *_, last = read("openelm-270m").transformer().main
    attention = 1280 * 64 * (12 + 2 * 3) + 12 * 64 * 1280 + 1280 + 2 * 64
    assert [part.parameters for part in first.parts] == [attention, 3 * 1280 * 768 + 1280]
    attention = 1280 * 64 * (20 + 2 * 5) + 20 * 64 * 1280 + 1280 + 2 * 64
    assert [part.parameters for part in last.parts] == [attention, 3 * 1280 * 5120 + 1280]


def test_a_layer_of_longcat_flash_is_two():
    """Two latent attentions and two MLPs; experts stand beside one of them, and of twelve that a token chooses eight compute."""
    spec = read("longcat-flash")
    plain, mixed = spec.transformer().main[:2]
    assert (spec.layers, spec.experts.active, spec.experts.shared, spec.ffn) == (56, 8, 12288, 12288)
    attention = 6144 * 1536 + 1536 * 64 * 192 + 6144 * (512 + 64) + 512 * 64 * 256 + 64 * 128 * 6144 + 6144 + 1536 + 512
    one, router = 3 * 6144 * 2048, 6144 * 512 + 512
    assert [part.parameters for part in plain.parts] == [attention, 3 * 6144 * 12288 + 6144]
    assert [part.parameters for part in mixed.parts] == [attention, 3 * 6144 * 12288 + 512 * one + router + 6144]
    mlp, most = (spec.transformer().part_flops(layer.parts[1], 100) for layer in (plain, mixed))
    assert mlp == 100 * 2 * 3 * 6144 * 12288
    assert most == mlp + 100 * 2 * (8 * one + 6144 * 512)
    assert "those that compute nothing are left out in the mean" in spec.notes


def test_layers_of_command_a_with_experts():
    """One norm before attention and MLP side by side; a first layer with an MLP of its own width, then 128 experts and one that all pass."""
    spec = read("cohere2-moe")
    dense, mixed = spec.transformer().main[0], spec.transformer().main[-1]
    attention = 2 * 4096**2 * 1 + 2 * 4096 * 8 * 128
    assert sum(part.parameters for part in dense.parts) == attention + 3 * 4096 * 12288 + 4096
    assert sum(part.parameters for part in mixed.parts) == attention + 129 * 3 * 4096 * 1536 + 128 * 4096 + 4096
    assert (spec.parallel, spec.experts.dense_layers, spec.window.size) == (True, 1, 4096)
    assert spec.transformer().parameters == 78_036_733_952  # the class of transformers 5.24


@pytest.mark.parametrize(
    ("name", "field"),
    [("xlstm-7b", "num_hidden_layers"), ("openelm-270m", "num_transformer_layers"), ("longcat-flash", "num_layers"),
     ("cohere2-moe", "num_hidden_layers"), ("longcat-image", "num_single_layers")],
)  # fmt: skip
def test_more_layers_than_any_model_has_are_refused_at_once(tmp_path, name, field):
    """Nothing is done once a layer before the number is refused, which would never end."""
    fields = json.loads((CONFIGS / f"{name}.json").read_text()) | {field: 10**15}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(SpecError, match=f"a model has at most 2,000 layers, got [0-9]+ by .*{field}") as caught:
        huggingface_document(tmp_path / "config.json")
    assert len(caught.value.problems) == 1


def test_a_gated_convolution_by_hand():
    """Two gates and an input of 1024 elements, three weights of each, and an output; two tokens are kept for each request."""
    ssm = {"kind": "conv", "heads": 1024, "conv": 3, "conv_bias": False, "pattern": ["ssm", "attention"]}
    whole = model(ssm=ssm)
    part = whole.layers[0].parts[0]
    assert part.parameters == 4 * 1024**2 + 3 * 1024 + 1024
    assert whole.part_flops(part, 100) == 100 * 2 * (4 * 1024**2 + 3 * 1024)
    score = crossflow.evaluate(made(ssm=ssm, task="decode", prompt=4096, output=2, global_batch=64))
    assert score.memory["kv_cache"][0] == pytest.approx(8 * 2 * (2 * 1024 + (4096 + 2) * 2 * 1024) * 2, rel=1e-3)


def test_a_gated_recurrence_by_hand():
    """Two branches and an output of 1,024 channels, convolution of four tokens, decays and gates by products of 16 heads of 64."""
    ssm = {"kind": "rglru", "heads": 16, "head_dim": 64, "state": 1, "norm": False, "pattern": ["ssm", "ssm", "attention"]}
    whole = model(ssm=ssm)
    part = whole.layers[0].parts[0]
    assert part.parameters == 3 * 1024**2 + 5 * 1024 + 2 * 65 * 1024 + 1024 + 1024
    assert whole.part_flops(part, 100) == 100 * 2 * (3 * 1024**2 + 4 * 1024 + 2 * 64 * 1024 + 1024 + 1024)
    served = {"task": "decode", "prompt": 4096, "output": 2, "global_batch": 64}
    score = crossflow.evaluate(made(ssm=ssm, **served))
    assert score.memory["kv_cache"][0] == pytest.approx(8 * (3 * 4 * 1024 + (4096 + 2) * 2 * 1024) * 2, rel=1e-3)
    with pytest.raises(CrossflowError, match="groups, state and chunk: each channel of rglru keeps one number; give state: 1"):
        made(ssm={**ssm, "state": 16})


def test_decays_of_full_rank_by_hand():
    ssm = {"kind": "kda", "heads": 8, "head_dim": 128, "groups": 8, "state": 128, "step_rank": 128, "pattern": ["ssm", "attention"]}
    low, full = (model(ssm={**ssm, **more}).layers[0].parts[0] for more in ({}, {"step_rank": None}))
    assert full.parameters - low.parameters == 1024**2 - 2 * 128 * 1024


@pytest.mark.parametrize(
    ("ssm", "sentence"),
    [
        ({"kind": "mamba2", "heads": 16, "head_dim": 64}, "the key 'state' is missing"),
        ({"kind": "conv", "heads": 1024, "state": 16}, "state: a gated convolution keeps none; leave it out"),
        ({"kind": "lightning", "heads": 16, "head_dim": 64, "state": 64}, "conv: lightning attention has none; give 0"),
        ({"kind": "mamba1", "heads": 2048, "state": 16}, "step_rank: mamba1 makes its time steps of a latent; give its width"),
    ],
)
def test_mixers_that_are_not_whole_are_told(ssm, sentence):
    with pytest.raises(CrossflowError) as caught:
        made(ssm={**ssm, "pattern": ["ssm", "attention"]})
    assert sentence in str(caught.value)


def test_windows_of_an_encoder_lie_on_both_sides():
    """A token sees half of the window on either side, those at the ends of a sample less."""
    seen = model(window=128, causal=False, head="none").layers[0].parts[0].attention.seen(0.0, 1024.0)
    assert seen == 128 - 64**2 / 1024
    assert read("modernbert-large").window.pattern[:3] == ("global", "local", "local")


# ------------------------------------------------------------------------------------------ types of weights

DENSE = [frozenset({"attention", "mlp"})] * 2
MIXED = [frozenset({"attention", "mlp"}), *[frozenset({"attention", "experts"})] * 3]
INT4 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
TYPES = [
    # Kimi-K2.5: regular expressions; an MLP in the first layer alone
    ({**INT4, "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]}, MIXED,
     ("int4_32", {}, ("attention", "mlp"))),
    # NVIDIA's files: patterns of each layer
    ({**NVFP4, "ignore": ["lm_head", *(f"model.layers.{i}.self_attn*" for i in range(4))]}, MIXED, ("nvfp4", {}, ("attention",))),
    # a whole layer beside attention
    ({**NVFP4, "ignore": ["model.layers.0*", *(f"model.layers.{i}.self_attn*" for i in range(4))]}, MIXED, ("nvfp4", {}, ("attention", "mlp"))),
    ({**NVFP4, "exclude_modules": ["model.layers.1*"]}, DENSE, ("nvfp4", {}, ("layers:1",))),
    # gpt-oss; names of norms and routers say nothing of products
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}, MIXED[1:],
     ("mxfp4", {}, ("attention",))),
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0.mlp.gate", "lm_head"]}, MIXED,
     ("fp8_block", {}, ())),
    # layers that predict further tokens are not those of the model
    ({**NVFP4, "ignore": ["mtp*", "mtp.layers.0*"]}, DENSE, ("nvfp4", {}, ())),
    # mixed precision of ModelOpt
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
        **{f"model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(2)},
        **{f"model.layers.{i}.mlp.up_proj": {"quant_algo": "W4A16_NVFP4"} for i in range(2)}}}, DENSE, ("nvfp4", {"attention": "fp8"}, ())),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
      "quantized_layers": {f"model.layers.{i}.mlp.up_proj": {"quant_algo": "FP8"} for i in range(2)}}, DENSE, ("fp8", {}, ("attention",))),
    ({"quant_method": "mxfp8", "moe_quant_algo": "NVFP4"}, MIXED, ("mxfp8", {"experts": "nvfp4"}, ())),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, DENSE, ("int4", {}, ())),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": ["lm_head"]}, DENSE, ("int8", {}, ())),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}}}},
     DENSE, ("fp8_block", {}, ())),
    ({"quant_method": "hqq", "bits": 3}, DENSE, (None, {}, ())),
    ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}, "skip_modules": ["lm_head"]}, DENSE,
     ("int4_64", {}, ())),
    # Quark of AMD: one type for all, types by pattern, weights that are quantised twice
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}, "exclude": ["lm_head"]},
     DENSE, ("fp8", {}, ())),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}, "exclude": ["*self_attn*"]}, DENSE,
     ("mxfp4", {}, ("attention",))),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}, "exclude": ["*self_attn*"],
      "layer_quant_config": {"*.experts.*": {"weight": {"dtype": "fp4", "group_size": 32}}}}, MIXED[1:],
     ("fp8", {"experts": "mxfp4"}, ("attention",))),
    ({"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}}, DENSE, ("int4", {}, ())),
    ({"quant_method": "quark", "global_quant_config": {}}, DENSE, (None, {}, ())),
    # torchao: the name of a method, or a class as it writes itself
    ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 32}}, DENSE, ("int4_32", {}, ())),
    ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {}}}}, DENSE,
     ("fp8", {}, ())),
    ({"quant_method": "torchao", "quant_type": {"default": {"_type": "NVFP4WeightOnlyConfig", "_data": {}}}}, DENSE, ("nvfp4", {}, ())),
    ({"quant_method": "torchao", "quant_type": "autoquant"}, DENSE, (None, {}, ())),
]  # fmt: skip


@pytest.mark.parametrize(("config", "parts", "found"), TYPES)
def test_types_of_weights_by_layer(config, parts, found):
    kept = stored(config, conventions().quantised, parts)
    assert (kept.weight, dict(kept.own), kept.wide) == found


def test_layers_that_a_method_leaves_alone_in_part_are_told():
    kept = stored({**NVFP4, "ignore": ["model.layers.1.self_attn*"]}, conventions().quantised, DENSE)
    assert (kept.wide, kept.told) == ((), ("1 layers have parts in 16 bits that are counted like those of other layers",))


@pytest.mark.parametrize(
    ("name", "types"),
    [("deepseek-v4-pro", ("fp8_block", {"experts": "mxfp4"})), ("deepseek-v4-flash-nvfp4", ("fp8_block", {"experts": "nvfp4"}))],
)
def test_experts_of_deepseek_v4_are_kept_in_4_bits(name, types):
    spec = read(name, task="decode", dtype="fp8_block")
    assert (spec.weight_dtype, dict(spec.weight_dtypes)) == types


def test_weights_of_a_service_take_the_types_of_their_layers():
    """Experts in int4 and attention in 8 bits beside 16: bytes of a device by hand."""
    served = {"task": "decode", "prompt": 64, "output": 2, "experts": {"count": 8, "active": 2}}
    whole, own = (
        crossflow.evaluate(made(**served, **more)).memory["weights"][0]
        for more in ({}, {"weight_dtypes": {"experts": "int4", "attention": "fp8"}})
    )
    experts, attention = (4 * model(**served).layers[0].parts[i].parameters for i in (1, 0))
    assert whole - own == pytest.approx(experts * (2 - (4 + 20 / 128) / 8) + attention * 1.0)
    faster, slower = (crossflow.evaluate(made(**served, **more)).step_time[0] for more in ({"weight_dtypes": {"experts": "int4"}}, {}))
    assert faster < slower


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"weight_dtypes": {"attention": "fp8"}}, "weight_dtypes: only a service keeps weights in types of their own, task is training"),
        ({"task": "decode", "weight_dtypes": {"experts": "int4"}}, "weight_dtypes: no layer is of type experts; leave out experts"),
        ({"task": "decode", "weight_dtypes": {"head": "fp8"}}, "weight_dtypes: they stay in 16 bits; leave out head"),
        ({"task": "decode", "dtype": "nvfp4", "weight_dtypes": {"mlp": "fp8"}}, "in nvfp4 or in a type of fewer bits, got fp8 of mlp"),
    ],
)
def test_types_of_layers_that_do_not_fit_are_told(workload, sentence):
    with pytest.raises(CrossflowError) as caught:
        made(**workload)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("structure", "told"), [("2:4", 1), ("0:0", 0), ("unstructured", 0)])
def test_weights_that_a_checkpoint_leaves_out_are_told(structure, told):
    config = {**NVFP4, "sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": structure}}
    sentences = stored(config, conventions().quantised, DENSE).told
    assert [
        one.startswith("its weights have 2:4 sparsity, which saves neither bytes nor time unless the workload gives weight_sparsity: 2:4")
        for one in sentences
    ] == [True] * told


def test_scales_of_keys_and_values_are_told():
    (told,) = stored({**NVFP4, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, conventions().quantised, DENSE).told
    assert told.startswith("it has scales for keys and values in float 8, which are kept in 16 bits; give kv_dtype: fp8")


def test_a_file_beside_says_how_weights_are_kept(tmp_path):
    """NVIDIA's folders have it where config.json says nothing."""
    (tmp_path / "config.json").write_text((CONFIGS / "llama-2-7b.json").read_text())
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert huggingface_document(tmp_path / "config.json", service=True)[0].data["weight_dtype"] == "nvfp4"
    assert "weight_dtype" not in huggingface_document(tmp_path / "config.json")[0].data


def test_a_scenario_gives_what_a_file_lacks(tmp_path):
    fields = json.loads((CONFIGS / "llama-2-7b.json").read_text())
    del fields["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(fields))

    def predicted(**more):
        workload = {"model": str(tmp_path / "config.json"), "global_batch": 8, "sequence": 512, **more}
        return crossflow.from_dict({"system": "dgx-h100", "workload": workload, "strategy": "dp8"}).workload

    assert predicted(vocabulary=32000).transformer().parameters == 6_738_415_616
    with pytest.raises(SpecError, match=r"needs it, or give workload\.vocabulary"):
        predicted()


def test_a_scenario_that_names_a_type_leaves_those_of_the_file():
    """Types of layers and layers that stay wide go with the type that the file names."""

    def workload(**more):
        given = {
            "model": str(CONFIGS / "deepseek-v4-flash-nvfp4.json"),
            "task": "decode",
            "prompt": 64,
            "output": 2,
            "global_batch": 8,
            **more,
        }
        return crossflow.from_dict({"system": "dgx-b200", "workload": given, "strategy": "dp8-ep8", "software": "vllm"}).workload

    released, chosen = workload(), workload(weight_dtype="fp8")
    assert (released.dtype, dict(released.weight_dtypes)) == ("fp8_block", {"experts": "nvfp4"})
    assert (chosen.dtype, chosen.weight_dtype, dict(chosen.weight_dtypes)) == ("bf16", "fp8", {})


# ------------------------------------------------------------------------------------------ towers and notes

# Files of published models, without their language models: those of safetensors less what crossflow counts.
TOWERS = [
    ({"model_type": "qwen2_vl", "hidden_size": 3584}, {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "patch_size": 14,
     "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}, 8_291_375_616 - 7_615_616_512),
    ({"model_type": "mistral3", "spatial_merge_size": 2, "text_config": {"hidden_size": 5120}}, {"model_type": "pixtral", "hidden_size": 1024,
     "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14, "num_channels": 3}, 24_011_361_280 - 23_572_403_200),
    ({"model_type": "glm4v_moe", "text_config": {"hidden_size": 4096}}, {"model_type": "glm4v_moe_vision", "depth": 24, "hidden_size": 1536,
     "image_size": 336, "in_channels": 3, "intermediate_size": 10944, "out_hidden_size": 4096, "patch_size": 14, "spatial_merge_size": 2,
     "temporal_patch_size": 2}, 858_681_856),  # as transformers 5.24 builds it
    ({"model_type": "llama4", "text_config": {"hidden_size": 5120}}, {"model_type": "llama4_vision_model", "hidden_size": 1408,
     "image_size": 336, "intermediate_size": 5632, "num_hidden_layers": 34, "patch_size": 14, "pixel_shuffle_ratio": 0.5,
     "projector_input_dim": 4096, "projector_output_dim": 4096, "vision_output_dim": 4096}, 871_932_416),  # the same
    # By hand: queries, keys, values and output of 12 heads of 128, two matrices of an MLP, two norms; patches, positions, the last norm;
    # a projector of 4 patches that ends with a norm.
    ({"model_type": "kimi_k3", "text_config": {"hidden_size": 7168}}, {"vt_hidden_size": 1024, "vt_intermediate_size": 4096,
     "vt_num_attention_heads": 12, "vt_num_hidden_layers": 27, "qkv_hidden_size": 1536, "patch_size": 14, "merge_kernel_size": [2, 2],
     "init_pos_emb_height": 64, "init_pos_emb_width": 64}, 27 * (4 * 1024 * 1536 + 2 * 1024 * 4096 + 2 * 1024) + 3 * 14**2 * 1024
     + 64 * 64 * 1024 + 1024 + 4096 * 4096 + 4096 * 7168 + 7168),
]  # fmt: skip


@pytest.mark.parametrize(("outer", "vision", "parameters"), TOWERS)
def test_parameters_of_towers(outer, vision, parameters):
    at = ("text_config",) if "text_config" in outer else ()
    assert [tower.parameters for tower in towers({**outer, "vision_config": vision}, at)] == [parameters]


def test_a_tower_may_have_the_name_of_its_model_with_vision_behind_it():
    """As files of Qwen3.5 that are converted to NVFP4 have it."""
    vision = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16, "spatial_merge_size": 2}
    named = [{**vision, "model_type": f"qwen3_5{ending}", "num_position_embeddings": 2304} for ending in ("", "_vision", "_sound")]
    one, other, unknown = ([tower.parameters for tower in towers({"hidden_size": 5120, "vision_config": each}, ())] for each in named)
    assert one == other != unknown == [None]


def test_a_tower_that_is_not_known_is_told_without_a_number():
    assert [str(tower) for tower in towers({"vision_config": {"model_type": "novel"}, "audio_config": {}})] == [
        "vision tower",
        "audio tower",
    ]


def test_what_is_left_out_is_told():
    assert "multimodel_experts: experts of the tokens of images are left out" in read("ernie-4.5-vl-28b-a3b").notes
    assert "speech_lora: adapters beside the weights are left out" in read("phi-4-multimodal").notes
    assert "not its talker and vocoder and vision tower (0.539 billion parameters) and audio tower" in read("qwen3-omni-30b-a3b").notes


@pytest.mark.parametrize("kind", sorted(conventions().refused))
def test_refused_families_say_why(tmp_path, kind):
    path = tmp_path / "config.json"
    key = "_class_name" if kind.endswith("Model") else "model_type"
    path.write_text(json.dumps({key: kind}))
    with pytest.raises(SpecError) as caught:
        huggingface_document(path)
    named = f'"{kind}"' if key == "_class_name" else f'model_type "{kind}"'
    assert caught.value.problems[0].message == f"{named} is refused: {conventions().refused[kind]}"


@pytest.mark.parametrize("name", ["hybrid_layer_ids", "kv_source_layer_ids", "memory_slots", "block_topology"])
def test_fields_that_may_matter_are_not_taken_for_those_that_cost_nothing(name):
    assert not conventions().costs_nothing(name)


def test_a_period_of_layers_with_a_letter_for_each_is_that_of_the_list_beside_it(tmp_path):
    """EXAONE 4 says both; where a file has the letters alone it was refused, as they are no number."""
    config = json.loads((Path(__file__).parent / "data/huggingface/exaone-4.0-32b.json").read_text())
    found = []
    for drops in ((), ("layer_types",)):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({key: value for key, value in config.items() if key not in drops}))
        asked = {"system": "dgx-h100", "workload": {"model": str(path), "global_batch": 8}, "strategy": "tp8-full"}
        found.append(crossflow.predict(asked).step_time)
    assert found[0] == found[1]


# ------------------------------------------------------------------------------------------ embeddings, rerankers, parts of larger models


def llama_with(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads((CONFIGS / "llama-2-7b.json").read_text()), **changes}))
    document, uses = huggingface_document(path)
    return files.validate(TransformerSpec, document), {use.key: use.became for use in uses}


@pytest.mark.parametrize("value", [True, False])
def test_a_file_says_whether_tokens_see_those_behind_them(tmp_path, value):
    """A false `is_causal` was passed over without a word, as all that is false was."""
    spec, became = llama_with(tmp_path, is_causal=value)
    assert spec.causal is value
    assert became["is_causal"] == ("not used: other fields decide" if value else "causal = false")
    assert (read("embeddinggemma-300m").causal, read("gemma-3-1b").causal) == (False, True)


@pytest.mark.parametrize("ending", ["ForSequenceClassification", "ForTokenClassification"])
def test_rerankers_and_reward_models_are_read_without_a_head(tmp_path, ending):
    spec, _ = llama_with(tmp_path, architectures=[f"Llama{ending}"])
    assert (spec.head, spec.transformer().parameters) == ("none", 6_738_415_616 - 32000 * 4096)


def test_parts_that_are_not_known_are_told_beside_a_language_model(tmp_path):
    """An encoder of speech and what projects it were left out without a word."""
    text = json.loads((CONFIGS / "llama-2-7b.json").read_text())
    path = tmp_path / "config.json"
    parts = {
        "encoder_config": {"model_type": "speech", "hidden_dim": 1024},
        "projector_config": {"hidden_size": 1024},
        "slicing_config": {"n": 9},
    }
    path.write_text(json.dumps({"model_type": "granite_speech", "text_config": text, **parts}))
    notes = huggingface_document(path)[0].data["notes"]
    assert notes == "Only the language model of config.json is described, not its encoder and projector."


@pytest.mark.parametrize(("outer", "told"), [(True, True), (False, False), (None, False)])
def test_a_file_that_ties_its_head_and_does_not_is_told(tmp_path, outer, told):
    text = {**json.loads((CONFIGS / "llama-2-7b.json").read_text()), "tie_word_embeddings": False}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "internvl", "text_config": text, "tie_word_embeddings": outer}))
    data = huggingface_document(path)[0].data
    sentence = "tie_word_embeddings is true outside text_config and false within; the latter counts (workload.tied_embeddings changes it)."
    assert (data["tied_embeddings"], data.get("notes", "")) == (False, sentence if told else "")


@pytest.mark.parametrize(("name", "kept"), [("attention", False), ("mamba", True)])
def test_a_hybrid_may_leave_one_mixer_out(tmp_path, name, kept):
    """Granite 4.0 Micro attends in every layer, and was refused as a hybrid without state spaces."""
    fields = json.loads((CONFIGS / "granite-4.0-h-micro.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**fields, "layer_types": [name] * fields["num_hidden_layers"]}))
    spec = files.validate(TransformerSpec, huggingface_document(path)[0])
    assert (spec.ssm is not None, spec.has("ssm"), spec.has("attention")) == (kept, kept, not kept)


NEW = [
    "zamba-7b",
    "zamba2-7b",
    "zamba2-1.2b",
    "granite-4.0-micro",
    "molmo-7b-d",
    "kimi-linear-48b-transformers-5",
    "glm-4.7-flash-transformers-5",
]
ENCODERS = [
    "gte-large-en-v1.5",
    "jina-embeddings-v3",
    "llama-nemotron-embed-1b",
    "nv-embed-v2",
    "embeddinggemma-300m",
    "bge-reranker-v2-m3",
]


@pytest.mark.parametrize(
    ("name", "task"), [*((name, task) for name in NEW for task in ("training", "decode")), *((name, "forward") for name in ENCODERS)]
)
def test_these_files_predict(name, task):
    more = {"output": 64, "prompt": 256} if task == "decode" else {}
    asked = {
        "system": "dgx-h100",
        "workload": {"model": str(CONFIGS / f"{name}.json"), "task": task, "global_batch": 16, "sequence": 512, **more},
        "strategy": "dp8-z3" if task == "training" else "dp8",
    }
    assert 0.0 < crossflow.predict(asked).step_time < 60.0


@pytest.mark.parametrize(("plain", "dense", "variants"), [([0, 1], 2, []), ([0, 5], 0, [{"layers": ["0", "5"], "experts": False}])])
def test_a_file_may_list_the_layers_without_experts(tmp_path, plain, dense, variants):
    """Each such layer has an MLP of intermediate_size in the place of a router and 128 experts."""
    fields = json.loads((CONFIGS / "qwen3-30b-a3b.json").read_text())
    path, found = tmp_path / "config.json", []
    for listed in ([], plain):
        path.write_text(json.dumps({**fields, "mlp_only_layers": listed}))
        document, _ = huggingface_document(path)
        found.append(files.validate(TransformerSpec, document).transformer().parameters)
    assert (document.data["experts"]["dense_layers"], document.data.get("variants", [])) == (dense, variants)
    assert found[0] - found[1] == 2 * (128 * 3 * 2048 * 768 + 128 * 2048 - 3 * 2048 * 6144)
