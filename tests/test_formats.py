# ruff: noqa: E501  (exact sentences)
"""Narrow types: bits of an element, weights and caches of services, block-scaled training, and what is refused."""

import numpy as np
import pytest
from blocks import block_kernels
from products import gemm_costs, half_costs

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.base.formats import DTYPE_BYTES
from crossflow.evidence.validation.tables import device_architecture
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.kernels import Product

SERVICE = {"model": "llama3-8b", "global_batch": 4, "prompt": 1024, "output": 128}
LAYERS = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096)  # parameters
ENDS = 2 * 128256 * 4096 + 4096


def scenario(system="dgx-h100", software=None, strategy="d1", **workload):
    data = {"system": {"template": system, "devices": 1}, "workload": {**SERVICE, **workload}, "strategy": strategy}
    return crossflow.from_dict({**data, "software": software} if software else data)


def score(**given):
    return crossflow.predict(scenario(**given)).score


def kernels(stack="vllm", **workload):
    job = scenario(**workload).job()
    return block_kernels(job, Layout.of([Plan(micro_batch=4)], np.array([4.0]), 8), load_stack(stack)[0])


def moved(found, phase, of="0."):
    """Bytes of passes of layers."""
    return sum(float(np.sum(one[2])) for one in found.passes if one[1] == phase and of in one[0])


# ------------------------------------------------------------------------------------------ bits


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("fp8", 8),
        ("mxfp8", 8.25),
        ("mxfp6", 6.25),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),
        ("int4", 4 + 20 / 128),
        ("int4_64", 4.3125),
        ("int4_32", 4.5),
    ],
)
def test_an_element_takes_its_bits_and_its_share_of_the_scales(name, bits):
    assert DTYPE_BYTES[name] * 8 == bits


# ------------------------------------------------------------------------------------------ weights of a service


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["int8", "fp8", "mxfp8", "int4", "mxfp4", "nvfp4"])
def test_weights_take_their_size_times_their_number(name):
    """Embedding and head stay in 16 bits."""
    found = score(task="decode", weight_dtype=name)
    assert found.memory["weights"][0] == pytest.approx(LAYERS * DTYPE_BYTES[name] + ENDS * 2, rel=1e-12)


def test_four_bits_halve_the_weights_of_eight_but_for_their_scales():
    four, eight = (score(task="decode", weight_dtype=name).memory["weights"][0] - 2 * ENDS for name in ("int4", "int8"))
    assert four == pytest.approx(eight / 2 + LAYERS * 20 / 128 / 8, rel=1e-12)


def of_product(device, m, ratio, n=73728, k=18432):
    sizes = (np.array([[float(size)]]) for size in (m, n, k))
    return half_costs(*sizes, device, second=np.array([[ratio]])).time[0, 0]


@pytest.mark.parametrize(("m", "least"), [(1, 0.98), (4, 0.98), (16, 0.95)])
def test_few_rows_take_the_ratio_of_weight_bytes_as_marlin_does(m, least):
    """MARLIN (arXiv:2408.11743, Fig. 1): 16-bit weights over 4-bit ones on an A10, of 18,432 x 73,728; nothing is fitted to it."""
    device, ratio = device_architecture("a10"), DTYPE_BYTES["int4"] / 2
    assert least / ratio < of_product(device, m, 1.0) / of_product(device, m, ratio) < 1 / ratio


@pytest.mark.parametrize("device", ["a10", "a100-80gb", "h100-sxm", "b200"])
@pytest.mark.parametrize("m", [1024, 8192])
def test_many_rows_are_no_faster_for_narrow_weights(device, m):
    """MARLIN is some 10 % slower than 16 bits where computing binds."""
    device = device_architecture(device)
    assert 1.0 < of_product(device, m, DTYPE_BYTES["int4"] / 2) / of_product(device, m, 1.0) < 1.2


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["fp8", "int4", "nvfp4"])
def test_reading_prompts_is_no_faster_and_writing_is_where_only_weights_are_narrow(name):
    long = {"global_batch": 1, "prompt": 8192}
    reading = [score(task="prefill", weight_dtype=one, **long).step_time[0] for one in (None, name)]
    writing = [score(task="decode", weight_dtype=one, **long).step_time[0] for one in (None, name)]
    assert reading[1] > reading[0]
    assert writing[1] < 0.75 * writing[0]


def test_weights_of_the_products_type_are_the_default():
    said, silent = (score(task="decode", dtype="fp8", **more) for more in ({"weight_dtype": "fp8"}, {}))
    assert said.step_time[0] == silent.step_time[0]


def test_narrow_weights_cross_a_generated_devices_memory_narrow(gemm):
    device = gemm().architecture
    sizes = [np.array([[float(size)]]) for size in (8, 4096, 4096)]
    plain = gemm_costs([Product(m=8, n=4096, k=4096)], device, "fp16", 2)
    half = half_costs(*sizes, device, second=np.array([[0.5]]))
    assert plain.traffic[-1] - half.traffic[-1] == pytest.approx(4096**2)
    assert (half.time <= plain.time).all()


def test_events_name_both_types():
    found = events(scenario(task="decode", weight_dtype="int4", kv_dtype="fp8")).events
    types = {event.dtype for event in found}
    assert {"bf16 x int4", "bf16 x fp8", "bf16"} <= types


# ------------------------------------------------------------------------------------------ caches


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("bf16", 1), ("fp8", 1 / 2), ("int8", 1 / 2), ("nvfp4", 4.5 / 16)])
@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2"])
def test_a_cache_takes_the_share_of_its_type(name, share, model):
    system = {"system": "h200", "model": model, "task": "decode"}
    wide, narrow = (score(**system, kv_dtype=one).memory["kv_cache"][0] for one in (None, name))
    assert narrow == share * wide


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2"])
def test_attention_reads_the_cache_in_its_type(model):
    """Queries and results stay in 16 bits; a latent is read once for all heads."""
    wide, narrow = (kernels(system="h200", model=model, task="decode", kv_dtype=one).scores[0] for one in (None, "fp8"))
    attention = scenario(model=model, task="decode").job().model.layers[0].parts[0].attention
    seen = 4 * (1024 + 64 + 1)
    assert wide.moved - narrow.moved == pytest.approx(seen * attention.cached)


@pytest.mark.parametrize(("stack", "model", "stored"), [
    ("vllm", "deepseek-v2", ""), ("sglang", "deepseek-v2", ""), ("tensorrt-llm", "deepseek-v2", "fp8"), ("vllm", "llama3-8b", "fp8"),
])  # fmt: skip
def test_prompts_attend_to_what_products_have_made_out_of_latents(stack, model, stored):
    """Their keys and values of all heads never lie in the cache; a token that is written reads the latents there."""
    prompt, token = (kernels(stack, system="h200", model=model, task=task, kv_dtype="fp8").scores[0] for task in ("prefill", "decode"))
    assert (prompt.kernel.stored, token.kernel.stored) == (stored, "fp8")


def test_keys_and_values_are_cast_as_they_are_written():
    """Read in 2 bytes and written in one; the cache of activations' type is where products write."""
    each = 4 * 1024 * 2 * 8 * 128  # elements of a layer
    wide, same, narrow = (moved(kernels("megatron-core", task="prefill", kv_dtype=one), "forward") for one in (None, "bf16", "fp8"))
    assert wide == same
    assert narrow - wide == pytest.approx(3 * each)


def test_unfused_attention_reads_the_cache_in_its_type():
    found = kernels("megatron-lm-2021", task="decode", kv_dtype="fp8").products
    assert {product.stored for product in found if product.wide and product.unit == "0.0.attention"} == {"fp8"}


def test_an_encoder_keeps_nothing():
    """Of T5, only attention of the decoder, to itself and to the encoder, casts what it keeps."""
    passes = [kernels("megatron-core", model="t5-11b", prompt=64, output=8, task="prefill", kv_dtype=one).passes for one in (None, "fp8")]
    bytes_of = [{(unit, i): float(np.sum(size)) for i, (unit, _, size, *_) in enumerate(found) if unit[0] == "0"} for found in passes]
    assert bytes_of[0] == bytes_of[1]
    assert len(passes[1]) - len(passes[0]) == 2


# ------------------------------------------------------------------------------------------ training


def train(dtype="bf16", system="dgx-b200", **workload):
    return score(system=system, dtype=dtype, sequence=8192, prompt=None, output=None, **workload)


def test_block_scaled_training_is_no_slower_than_eight_bits():
    eight, mx, four = (train(dtype) for dtype in ("fp8", "mxfp8", "nvfp4"))
    assert four.breakdown["compute"][0] < mx.breakdown["compute"][0] == pytest.approx(eight.breakdown["compute"][0], rel=0.01)
    assert four.step_time[0] < mx.step_time[0]
    assert four.memory["weights"][0] == eight.memory["weights"][0]
    assert four.memory["optimizer"][0] == eight.memory["optimizer"][0]


@pytest.mark.parametrize(("name", "reads"), [("fp8", 1), ("mxfp8", 1), ("mxfp4", 1), ("nvfp4", 2)])
def test_tensors_are_cast_in_both_orientations_and_a_tensors_scale_takes_one_more_reading(name, reads):
    tokens, h, f = 4 * 8192, 4096, 14336
    wide, narrow = (kernels("nemo", system="dgx-b200", dtype=one, sequence=8192, prompt=None, output=None) for one in ("bf16", name))
    outputs = tokens * (2 * f + h)  # of both products of an MLP, whose gradients are cast
    assert moved(narrow, "input", "0.1") - moved(wide, "input", "0.1") == pytest.approx(outputs * (2 * reads + 2 * DTYPE_BYTES[name]))


def test_wide_layers_stay_in_sixteen_bits():
    """NVIDIA's recipe for nvfp4 keeps some 15 % of the layers (arXiv:2509.25149, Sec. 4.1)."""
    recipe = ["layers:0-1", "layers:28-31"]
    four, mixed, wide = train("nvfp4"), train("nvfp4", wide_layers=recipe), train("bf16")
    # The head is wide in any case, so that layers alone share out the difference.
    share = (mixed.breakdown["compute"][0] - four.breakdown["compute"][0]) / (wide.breakdown["compute"][0] - four.breakdown["compute"][0])
    assert share == pytest.approx(6 / 32, rel=1e-6)
    assert four.memory["activations"][0] < mixed.memory["activations"][0] < wide.memory["activations"][0]


def test_layer_types_stay_wide_too():
    """Published fp4 weights of mixtures of experts are those of experts alone (gpt-oss)."""
    found = score(system="h200", model="mixtral-8x7b", task="decode", weight_dtype="mxfp4", wide_layers="attention")
    part = scenario(model="mixtral-8x7b").job().model.layers[0].parts
    size = 32 * (part[0].parameters * 2 + part[1].parameters * DTYPE_BYTES["mxfp4"]) + 2 * (2 * 32000 * 4096 + 4096)
    assert found.memory["weights"][0] == pytest.approx(size, rel=1e-12)


# ------------------------------------------------------------------------------------------ what is refused

WRONG = [
    ({"weight_dtype": "int4"}, "weight_dtype", "training keeps weights as its software does; leave it out, or give a service's task"),
    ({"task": "decode", "dtype": "fp8", "weight_dtype": "bf16"}, "weight_dtype", "products in fp8 read weights in fp8 or in a type of fewer bits, got bf16"),
    ({"task": "decode", "weight_dtype": "int3"}, "weight_dtype", "expected one of fp16, bf16, int8, fp8, mxfp8, mxfp6, int4, int4_64, int4_32, mxfp4, nvfp4, fp8_block, got 'int3'; did you mean 'int8'?"),
    ({"kv_dtype": "fp8"}, "kv_dtype", "only a service keeps keys and values, task is training; leave it out, or give task: prefill or decode"),
    ({"task": "prefill", "model": "bert-large", "kv_dtype": "fp8"}, "kv_dtype", "only a causal decoder with a language head keeps keys and values; leave it out"),
    ({"dtype": "fp4"}, "dtype", "expected one of fp64, fp32, tf32, fp16, bf16, int8, fp8, mxfp8, mxfp6, mxfp4, nvfp4, fp8_block, got 'fp4'; did you mean 'nvfp4' or 'mxfp4'?"),
    ({"dtype": "nvfp4"}, "dtype", "dgx-h100 has no throughput for nvfp4; it has fp64, tf32, fp16, bf16, fp8, int8, fp32, fp8_block"),
    ({"wide_layers": "layers:0"}, "wide_layers", "no layer is narrower than 16 bits where dtype is bf16; leave it out"),
    ({"dtype": "fp8", "wide_layers": "head"}, "wide_layers", "head always stays in 16 bits; leave it out"),
    ({"dtype": "fp8", "wide_layers": "layers:30-32"}, "wide_layers", "layers:30-32 is not a range of the model's layers 0-31"),
    ({"dtype": "fp8", "wide_layers": "attention, mlp"}, "wide_layers", "all layers stay in 16 bits; leave out the narrow type"),
]  # fmt: skip


@pytest.mark.parametrize(("workload", "key", "message"), WRONG)
def test_what_cannot_be_is_refused(problems, workload, key, message):
    assert problems(scenario, **workload) == [(f"workload.{key}", message)]


def test_software_that_keeps_weights_in_fp32_has_no_narrow_ones(problems):
    message = "pytorch-fsdp-2022 keeps weights in fp32; leave it out, or name other software"
    assert problems(scenario, software="pytorch-fsdp-2022", task="decode", weight_dtype="int4") == [("workload.weight_dtype", message)]


@pytest.mark.parametrize(
    ("dtype", "trust"), [("fp16", "measured"), ("bf16", "measured"), ("fp8", "interpolated"), ("fp32", "extrapolated")]
)
def test_products_were_measured_in_sixteen_bits(dtype, trust):
    """Without an engine's kernels, rows are in fp16 alone; of engines there are some in eight bits, and in 32 there are none."""
    workload = {"model": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": dtype}
    found = crossflow.from_dict({"system": {"template": "dgx-h100", "devices": 1}, "workload": workload, "strategy": "d1"})
    assert crossflow.predict(found).trust.level == trust
