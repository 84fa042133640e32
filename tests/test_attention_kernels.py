"""Laws of fused attention by measured kernels (`crossflow.cost.attention`), and its error on the excerpt of measured rows."""

from dataclasses import fields, replace

import numpy as np
import pytest

import crossflow
from crossflow.cost.attention import CallTimes, calls_of, latent_costs, library_attention_costs, times_of
from crossflow.cost.price import _attention, fused_attention
from crossflow.evidence.validation.kernels_attention import attention_table, version_of
from crossflow.evidence.validation.tables import device_architecture, shipped
from crossflow.hardware.architecture.execution import DecodeKernel
from crossflow.hardware.architecture.software import load_stack
from crossflow.program.kernels import Attention, kernel_tables

DEVICES = ("a100-80gb", "l40s", "h100-sxm", "b200")
SIZES = 2.0 ** np.arange(18)
SERVICE = {"workload": {"model": "llama2-13b", "global_batch": 16}, "strategy": {"tp": 8}, "software": {"like": "vllm"}}


def kernels(device, kind="prefill"):
    """All measured kernels of a device, by library."""
    found = device_architecture(device).execution.libraries.attention
    return {name: getattr(library, kind) for name, library in found.items() if getattr(library, kind) is not None}


def times(device, kernel, **sizes):
    """Times of one kernel at every design point. [s]"""
    decode = isinstance(kernel, DecodeKernel)
    row = Attention(**{"samples": 4.0, "heads": 32.0, "kv_heads": 8.0, "width": 128.0, "causal": not decode, "stored": "", **sizes})
    (table,) = kernel_tables((row,), 2.0, narrow=False)
    calls = replace(calls_of(table, "bf16"), decode=np.full((1, 1), decode))
    found = times_of(calls, kernel, device_architecture(device))
    return sum(getattr(found, field.name) for field in fields(CallTimes) if field.name not in ("share", "flops"))[0]


@pytest.mark.parametrize("device", DEVICES)
def test_more_keys_are_never_faster(device):
    for kernel in kernels(device).values():
        assert (np.diff(times(device, kernel, length=SIZES, seen=SIZES)) >= 0).all()
    keys = np.arange(1.0, 3000.0)
    for kernel in kernels(device, "decode").values():
        assert (np.diff(times(device, kernel, length=1.0, seen=keys)) >= -1e-15).all()


@pytest.mark.parametrize("decode", [True, False])
def test_more_calls_keep_more_units_busy_and_at_most_all(decode):
    device, kind = device_architecture("h100-sxm"), "decode" if decode else "prefill"
    many = 2.0 ** np.arange(14)
    row = Attention(
        samples=many, heads=32.0, kv_heads=8.0, length=1.0 if decode else 512.0, seen=512.0, width=128.0, causal=not decode, stored=""
    )
    calls = replace(calls_of(kernel_tables((row,), 2.0, narrow=False)[0], "bf16"), decode=np.full((1, 1), decode))
    for kernel in kernels("h100-sxm", kind).values():
        share = np.ravel(times_of(calls, kernel, device).share)
        assert (share > 0).all()
        assert share.max() == share[-1] == 1.0


def test_a_call_that_writes_no_keys_is_spared_the_start_and_the_bytes_of_that():
    """One key of a head of one sample: its copy takes next to nothing beside the start of the kernel that writes it."""
    device = device_architecture("h100-sxm")
    for kernel in kernels("h100-sxm").values():
        row = Attention(samples=1.0, heads=1.0, kv_heads=1.0, length=1.0, seen=1.0, width=128.0, causal=True, stored="")
        calls = calls_of(kernel_tables((row,), 2.0, narrow=False)[0], "bf16")
        writes, none = (times_of(replace(calls, unwritten=np.full((1, 1), one)), kernel, device).around.item() for one in (False, True))
        assert writes - none == pytest.approx(np.asarray(kernel.write).item(), rel=1e-3)


def test_blocks_of_long_kernels_slow_down_as_far_as_the_clock_falls():
    """Wholly in long runs, half as far in a call that takes what the clock of an idle device needs to come half of the way down."""
    device = device_architecture("l40s")
    row = Attention(samples=8.0, heads=32.0, kv_heads=8.0, length=4096.0, seen=4096.0, width=128.0, causal=True, stored="")
    calls, fall = calls_of(kernel_tables((row,), 2.0, narrow=False)[0], "bf16"), 1.0 - device.sustained_clock
    assert fall > 0.05
    for kernel in kernels("l40s").values():
        free, half, whole = (kernel.model_copy(update={"throttled": np.array([share])}) for share in (0.0, 0.5, 1.0))
        alone = times_of(calls, free, device)
        after = replace(calls, settling=np.maximum(alone.blocks, alone.memory) + alone.around + alone.start)
        for one, given, share in [(whole, calls, 1.0), (half, calls, 0.5), (whole, after, 0.5)]:
            assert times_of(given, one, device).blocks == pytest.approx(alone.blocks / (1.0 - share * fall), rel=1e-12)


def test_a_device_with_more_exponentials_a_clock_gains_in_prompts_and_most_with_narrow_heads():
    """Blackwell Ultra works out twice as many as Blackwell: softmax of a score takes half as long, and its products as long."""
    sizes = {"length": 8192.0, "seen": 8192.0}
    for name, kernel in kernels("b300").items():
        gains = [times("b200", kernel, width=width, **sizes) / times("b300", kernel, width=width, **sizes) for width in (64.0, 256.0)]
        assert 2.0 > gains[0] > gains[1] > 1.0, name
    for kernel in kernels("b300", "decode").values():
        assert times("b200", kernel, length=1.0, seen=8192.0) == pytest.approx(times("b300", kernel, length=1.0, seen=8192.0), rel=1e-2)


@pytest.mark.parametrize(("width", "rows"), [(128.0, 4.0), (64.0, 2.0)])
def test_rows_of_a_block_take_their_time_by_the_elements_of_a_query_and_a_value(width, rows):
    """Four heads of queries share one of keys: their rows take as long as so much more for the block, of 64 elements half of it."""
    sizes, mine = {"length": 1.0, "seen": SIZES, "width": width}, kernels("h100-sxm", "decode").values()
    (kernel, *_) = (one for one in mine if one.groups_heads == "always")
    each = kernel.model_copy(update={"row": np.array([1e-6])})
    block = kernel.model_copy(update={"row": np.zeros(1), "block": kernel.block + 1e-6 * rows})
    assert times("h100-sxm", each, **sizes) == pytest.approx(times("h100-sxm", block, **sizes), rel=1e-12)


@pytest.mark.parametrize("device", ["l40s", "h100-sxm", "b200"])
def test_products_on_vector_units_by_hand(device):
    """One row a head is not padded; twice the matrix rate changes nothing, twice the vector rate halves products that take all the time."""
    architecture = device_architecture(device)
    row = Attention(samples=64.0, heads=32.0, kv_heads=32.0, length=1.0, seen=8192.0, width=128.0, causal=False, stored="")
    calls = calls_of(kernel_tables((row,), 2.0, narrow=False)[0], "bf16")
    kernel = kernels(device, "decode")["trtllm-mmha"]
    assert kernel.vector
    kernel = kernel.model_copy(update={"cache_bytes_per_clock": np.array([1e9]), "block": np.zeros(1)})
    parts = times_of(calls, kernel, architecture)
    flops = 64 * 32 * 8192 * 2 * 256
    assert parts.flops.item() == flops
    rate = architecture.vector_throughput["fp32"].item() * kernel.matrix.item()
    longest = flops / (64 * 32) / rate * architecture.units.item()  # of one block, beside the sum of all
    assert parts.blocks.item() == pytest.approx(((flops / rate) ** 1.5 + longest**1.5) ** (1 / 1.5), rel=1e-9)
    twice = {name: {key: 2.0 * value for key, value in getattr(architecture, name).items()} for name in ("throughput", "vector_throughput")}
    for name, expected in (("throughput", 1.0), ("vector_throughput", 0.5)):
        again = times_of(calls, kernel, replace(architecture, **{name: twice[name]}))
        assert again.blocks.item() == pytest.approx(expected * parts.blocks.item(), rel=1e-12)


def test_engines_that_write_in_a_kernel_of_its_own_take_the_gap_before_it():
    """vLLM on every family that was measured without it, and where only sums of both were: the gap that products have there."""
    for device, name in (("a100-80gb", "flash-attention-2"), ("l40s", "flash-attention-2"), ("h100-sxm", "vllm-flash-attention-3")):
        for kind in ("prefill", "decode"):
            assert kernels(device, kind)[name].write == device_architecture(device).execution.graph_launch


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_of_a_long_prompt_by_hand(device):
    """32 samples of 8,192 tokens, 32 heads of 128 elements, 8 of keys: far beyond any cache, queries, outputs, keys, values once each."""
    row = Attention(samples=32.0, heads=32.0, kv_heads=8.0, length=8192.0, seen=8192.0, width=128.0, causal=True, stored="")
    calls, architecture = calls_of(kernel_tables((row,), 2.0, narrow=False)[0], "bf16"), device_architecture(device)
    moved = 32 * 8192 * 128 * 2 * (2 * 32 + 2 * 8)
    for kernel in kernels(device).values():
        reached = moved / times_of(calls, kernel, architecture).memory.item() / architecture.memory.bandwidth.item()
        assert reached == pytest.approx(kernel.memory, rel=1e-4)
    few = Attention(samples=1.0, heads=32.0, kv_heads=8.0, length=64.0, seen=64.0, width=128.0, causal=True, stored="")
    calls, moved = calls_of(kernel_tables((few,), 2.0, narrow=False)[0], "bf16"), 64 * 128 * 2 * (2 * 32 + 2 * 8)
    for kernel in kernels(device).values():  # of a few tokens all lies in a cache
        assert times_of(calls, kernel, architecture).memory.item() < 0.01 * moved / architecture.memory.bandwidth.item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("stored", "copied"), [("", 2 + 2), ("fp8", 2 + 1)])
def test_new_keys_and_values_are_copied_to_the_cache_by_hand(device, stored, copied):
    """Each of 2 x 128 elements of 8 heads of a token is read in 16 bits and written as the cache has it; without casts of what is read."""
    row = Attention(samples=64.0, heads=8.0, kv_heads=8.0, length=8192.0, seen=8192.0, width=128.0, causal=True, stored=stored)
    calls, architecture = calls_of(kernel_tables((row,), 2.0, narrow=False)[0], "bf16"), device_architecture(device)
    calls = replace(calls, ends=np.zeros_like(calls.ends))
    for kernel in (one for one in kernels(device).values() if ("narrow" if stored else "wide") in one.cache):
        around = times_of(calls, kernel, architecture).around.item() - kernel.write - (kernel.quantise if stored else 0.0)
        rate = architecture.memory.bandwidth.item() * kernel.writing
        assert around * rate == pytest.approx(64 * 8192 * 8 * 256 * copied, rel=0.01)  # caches hold the rest
        unwritten = replace(calls, unwritten=np.full((1, 1), True))
        assert times_of(unwritten, kernel, architecture).around.item() == (np.asarray(kernel.quantise).item() if stored else 0.0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_is_never_slower_in_prefill(device):
    for kernel in kernels(device).values():
        windows = np.concatenate([SIZES, [0.0]])
        found = times(device, kernel, length=8192.0, seen=8192.0, window=windows)
        assert (found <= found[-1]).all()
        assert (found[7] < 0.5 * found[-1]) == kernel.skips


def test_fewer_heads_of_keys_and_values_are_never_slower_where_they_share_blocks():
    kernel = kernels("h100-sxm", "decode")["flash-attention-3"]
    found = times("h100-sxm", kernel, samples=64.0, heads=16.0, kv_heads=np.array([16.0, 8.0, 4.0, 2.0, 1.0]), length=1.0, seen=4096.0)
    assert (np.diff(found) <= 0).all()


def test_many_points_are_priced_as_one_by_one():
    for kind in ("prefill", "decode"):
        for kernel in kernels("b200", kind).values():
            sizes = {"length": SIZES if kind == "prefill" else 1.0, "seen": SIZES, "samples": SIZES[::-1]}
            one = [
                times("b200", kernel, **{name: np.ravel(value)[i % np.size(value)] for name, value in sizes.items()})[0] for i in range(18)
            ]
            np.testing.assert_allclose(times("b200", kernel, **sizes), one, rtol=1e-12)


@pytest.mark.parametrize(("kind", "length"), [("prefill", 4096.0), ("decode", 1.0)])
def test_the_fastest_measured_kernel_stands_in_for_one_that_was_not_measured(kind, length):
    """Heads of 96 elements, which no measured kernel of the H100 is made for but those that take all."""
    device, known = device_architecture("h100-sxm"), kernels("h100-sxm", kind)
    row = Attention(samples=8.0, heads=32.0, kv_heads=8.0, length=length, seen=4096.0, width=96.0, causal=length > 1, stored="")
    (table,) = kernel_tables((row,), 2.0, narrow=False)
    calls, rates = calls_of(table, "bf16"), fused_attention(table, "bf16", device, None, least=False)
    narrow = [kernel for kernel in known.values() if kernel.widths]
    assert narrow
    assert not any(calls.served(kernel).any() for kernel in narrow)
    every = [library_attention_costs(calls, (kernel.model_copy(update={"widths": ()}),), rates, device).time.item() for kernel in narrow]
    found = library_attention_costs(calls, narrow, rates, device, others=narrow).time.item()
    assert found == min(every) != max(every)
    assert library_attention_costs(calls, narrow, rates, device).time == rates.time
    backward = replace(calls, backward=np.ones((1, 1), dtype=bool))
    assert library_attention_costs(backward, narrow, rates, device, others=narrow).time == rates.time


@pytest.mark.parametrize("task", ["prefill", "decode"])
def test_a_stack_that_names_no_library_is_priced_by_rates(task):
    named = crossflow.predict(
        crossflow.from_dict({**SERVICE, "system": {"template": "dgx-h100"}, "workload": {**SERVICE["workload"], "task": task}})
    )
    software = {"like": "vllm", "kernels": {"attention": {"prefill": [], "decode": []}}}
    document = {**SERVICE, "system": {"template": "dgx-h100"}, "software": software, "workload": {**SERVICE["workload"], "task": task}}
    assert named.step_time != crossflow.predict(crossflow.from_dict(document)).step_time


def test_the_excerpt_of_measured_attention_is_predicted():
    found = attention_table(shipped()).to_dict()
    assert found["n"] == 100
    assert found["skipped"] == 0
    assert found["median_abs_error"] < 0.09


def test_versions_are_compared_by_their_numbers():
    assert version_of("0.9.1") < version_of("0.24.0")


def latents(device, **sizes):
    """Time of attention to latents of DeepSeek-V3 by FlashMLA, and by kernels that nobody measured. [s]"""
    sizes = {"samples": 128.0, "heads": 128.0, "length": 1.0, "seen": 4096.0, "stored": "", "chosen": False, **sizes}
    pairs, held = sizes["samples"] * sizes["seen"], 1.0 if sizes["stored"] else 2.0
    ends = sizes["samples"] * sizes["heads"] * sizes["length"] * 1088.0 * 2.0
    work = 2.0 * pairs * sizes["heads"] * sizes["length"] * 1088.0, ends + pairs * 576.0 * held, pairs / 128.0
    row = Attention(kv_heads=1.0, width=576.0, causal=False, work=work, **sizes)
    (table,) = kernel_tables((row,), 2.0, narrow=False)
    architecture = device_architecture(device)
    otherwise = fused_attention(table, "bf16", architecture, load_stack("sglang")[0], least=False)
    found = latent_costs(calls_of(table, "bf16"), architecture.execution.libraries.attention["flash-mla"].latent, otherwise, architecture)
    return (found.time - found.launch).item(), (otherwise.time - otherwise.launch).item()


def shared(device, stack, heads=128.0, samples=128.0, seen=4096.0):
    """Time of attention to latents as a service has it, and by kernels that nobody measured. [s]"""
    pairs, ends = samples * seen, samples * heads * 1088.0 * 2.0
    work = 2.0 * pairs * heads * 1088.0, ends + pairs * 576.0 * 2.0, pairs / 128.0
    row = Attention(
        samples=samples, heads=heads, kv_heads=1.0, length=1.0, seen=seen, width=576.0, causal=False, stored="", chosen=False, work=work
    )
    (table,) = kernel_tables((row,), 2.0, narrow=False)
    chip, software = device_architecture(device).in_graphs, load_stack(stack)[0]
    found = _attention(table, "bf16", chip, software, least=False)
    return found.time.item(), fused_attention(table, "bf16", chip, software, least=False).time.item()


@pytest.mark.parametrize("stack", ["vllm", "sglang"])
def test_latents_are_attended_to_by_triton_where_no_kernel_is_made_for_them(stack):
    """On Ada by blocks of 16 heads, each of which reads the latents: 128 heads take nearly eight times as long; elsewhere as before."""
    few, many = (shared("l40s", stack, heads=heads)[0] for heads in (16.0, 128.0))
    assert many / few == pytest.approx(8.0, rel=0.5)
    assert shared("l40s", stack)[0] > 2.0 * shared("l40s", stack)[1]
    streamed = 128 * 4096 * 576 * 2 / 864e9  # the least that main memory takes
    assert few > streamed
    for device in ("b200", "a100-80gb"):
        found, otherwise = shared(device, stack)
        assert found == otherwise
    assert shared("h100-sxm", stack)[0] != shared("h100-sxm", stack)[1]


def test_tensorrt_llm_does_not_run_triton_on_latents():
    found, otherwise = shared("l40s", "tensorrt-llm")
    assert found == otherwise


@pytest.mark.parametrize(
    ("device", "sizes", "measured"),
    [  # as users printed them from the tests of the library's first version: deepseek-ai/FlashMLA, issues 19 (H100) and 30 (H20)
        ("h100-sxm", {"heads": 16.0}, 0.215e-3),
        ("h100-sxm", {"heads": 64.0}, 0.223e-3),
        ("h20", {"heads": 64.0, "length": 3.0, "seen": 8192.0}, 3.407e-3),
        ("h20", {"heads": 64.0, "length": 6.0, "seen": 8192.0}, 6.748e-3),
        ("h800-sxm", {"seen": 8192.0}, 2.0 * 128 * 128 * 8192 * 1088 / 660e12),  # of the second version, which its authors print
    ],
)
def test_attention_to_latents_takes_as_long_as_users_of_flash_mla_read(device, sizes, measured):
    assert latents(device, **sizes)[0] == pytest.approx(measured, rel=0.12)


def test_attention_to_latents_pads_few_heads_and_leaves_chosen_keys_to_others():
    few, sixty_four = (latents("h20", heads=heads)[0] for heads in (1.0, 64.0))
    assert few == pytest.approx(sixty_four)  # bound by products of 64 rows
    assert latents("h20", heads=16.0, length=4.0)[0] == pytest.approx(sixty_four)  # queries that are verified share a block
    assert latents("h20", stored="fp8")[0] == pytest.approx(latents("h20")[0] / 1.7)
    found, otherwise = latents("h20", chosen=True)
    assert found == otherwise != latents("h20")[0]
