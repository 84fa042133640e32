"""Sliding windows and chunks of attention: what a query sees, what kernels compute and read, what the cache keeps."""

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.cost.price import kernel_names
from crossflow.engine.runs.memory import kv_cache
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.kernels import Attention
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec
from crossflow.workload.stacked import stacked
from crossflow.workload.transformer import AttentionGeometry

LLAMA = {
    "model": "transformer", "layers": 4, "hidden": 1024, "heads": 16, "kv_heads": 4, "ffn": 2816, "vocabulary": 32000, "sequence": 512,
    "global_batch": 8, "dtype": "bf16",
}  # fmt: skip
UNFUSED, FLASH = "megatron-lm-2021", "megatron-core"
MIXED = {"size": 128, "pattern": ["local", "global"]}


def job_of(task="training", context=0, cached=0, **changes):
    spec = TransformerSpec.model_validate({**LLAMA, **changes})
    return Job(model=spec.transformer(), dtype=spec.dtype, task=task, context=context, cached=cached)


def kernels_of(job, plan=None, stack=FLASH):
    return block_kernels(job, Layout.of([plan or Plan(micro_batch=2)], np.full(1, 8.0), 8), load_stack(stack)[0])


def scores(kernels, unit="0.0.attention", phase="forward"):
    return sum(float(np.sum(one.flops)) for one in kernels.scores if (one.unit, one.phase) == (unit, phase))


def predicted(strategy="tp2-dp4", **workload):
    given = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": {**LLAMA, **workload}, "strategy": strategy}
    return crossflow.predict(crossflow.from_dict(given))


# ------------------------------------------------------------------------------------------ what a query sees


@pytest.mark.parametrize("tokens", [64, 100, 1000])
@pytest.mark.parametrize("chunked", [False, True])
def test_what_a_query_sees_is_the_sum_over_its_positions(tokens, chunked):
    """Sum of min(i, w), or of the place in a chunk; a query's own key counts whole there, half in continuous positions."""
    w, position = 64, np.arange(tokens)
    exact = np.mean(position % w + 1 if chunked else np.minimum(position + 1, w))
    found = AttentionGeometry(heads=1, kv_heads=1, query=8, value=8, cached=16, window=w, chunked=chunked).seen(0, tokens)
    assert exact - 0.5 - 1e-9 <= found <= exact


def test_a_window_that_holds_the_sample_is_none():
    assert predicted(window=512).step_time == predicted(window={"size": 9999, "chunked": True}).step_time == predicted().step_time
    assert predicted(window=256).score.mfu < predicted().score.mfu


def test_chunks_are_samples_of_their_length():
    whole, chunks = job_of(sequence=128), job_of(window={"size": 128, "chunked": True})
    assert scores(kernels_of(chunks, Plan())) == scores(kernels_of(whole, Plan(micro_batch=4)))


# ------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize("phase", ["forward", "input"])
def test_fused_attention_computes_the_window_and_reads_all_keys(phase):
    """Of 512 tokens a window of 128 leaves 128 (1 - 64 / 512) keys, a causal mask 256."""
    local, full = kernels_of(job_of(window=128)), kernels_of(job_of())
    assert scores(local, phase=phase) == pytest.approx(scores(full, phase=phase) * 128 * (1 - 64 / 512) / 256, rel=1e-12)
    assert [one.moved for one in local.scores] == [one.moved for one in full.scores]


def test_unfused_attention_gains_nothing():
    local, full = (kernels_of(job_of(**changes), stack=UNFUSED) for changes in ({"window": 128}, {}))
    for mine, its in zip(local.program.kernel_tables, full.program.kernel_tables, strict=True):
        np.testing.assert_array_equal(mine.sizes, its.sizes)


def test_local_and_global_layers_alternate():
    mixed, full, local = job_of(window=MIXED), kernels_of(job_of()), kernels_of(job_of(window=128))
    kernels = kernels_of(mixed)
    assert [scores(kernels, f"{i}.0.attention") for i in mixed.model.kind_of] == [scores(local), scores(full)] * 2


def test_a_window_and_experts_make_the_groups_of_layers():
    model = job_of(layers=6, window={"size": 128, "pattern": "local, local, global"}, experts={"count": 4, "active": 1, "every": 2}).model
    found = [(layer.name, layer.parts[0].attention.window, layer.parts[1].type) for layer in model.layers]
    kinds = [(128, "mlp"), (128, "experts"), (0, "mlp"), (128, "experts"), (128, "mlp"), (0, "experts")]
    assert found == [(f"layers {i}", *kind) for i, kind in enumerate(kinds)]


def test_global_layers_of_llama_4_rotate_nothing():
    both = [kernels_of(job_of(window={**MIXED, "global_rotary": rotary})) for rotary in (True, False)]
    moved = [sum(float(np.sum(one[2])) for one in kernels.passes) for kernels in both]
    rotated = 2 * 2.0 * 2 * 512 * (16 + 4) * 64 * 2  # one kind of layers, both ways: r1 w1 of queries and keys in bf16
    assert moved[0] - moved[1] == rotated


def test_context_ranks_gather_all_keys():
    """Within a window they do not attend in a ring, in which each transfer brings the keys and values of one rank."""
    plan = Plan(cp=4)
    local, ring = ([m for m in kernels_of(job_of(**changes), plan).messages if m.group == "context"] for changes in ({"window": 64}, {}))
    assert [m.collective for m in local] == ["all_gather", "all_gather", "reduce_scatter"]
    assert {m.collective for m in ring} == {"send_recv"}
    assert {float(m.size[0]) for m in local} == {4 * float(ring[0].size[0])}


def test_a_measured_kernel_without_a_window_is_not_taken_for_one_with_it():
    device, shapes = crossflow.from_dict({"system": "dgx-h100", "workload": "gpt2-xl", "strategy": "dp8"}).architecture, []
    for changes in ({}, {"window": 128}):
        tables = kernels_of(job_of(**changes)).program.kernel_tables
        shapes += [kernel_names(table, "bf16", device)[0][2] for table in tables if table.kind is Attention]
    assert shapes == [["32 x 512x512x64"], ["32 x 512x512x64 window 128"]]


@pytest.mark.parametrize(("chunked", "word"), [(False, "window"), (True, "chunks of")])
def test_a_measured_kernel_is_named_by_the_window_of_its_point(chunked, word):
    device = crossflow.from_dict({"system": "dgx-h100", "workload": "gpt2-xl", "strategy": "dp8"}).architecture
    job = stacked([job_of(window={"size": size, "chunked": chunked}) for size in (64, 100)])
    kernels = block_kernels(job, Layout.of([Plan(micro_batch=2)] * 2, np.full(2, 8.0), 8), load_stack(FLASH)[0])
    (table,) = (table for table in kernels.program.kernel_tables if table.kind is Attention)
    assert kernel_names(table, "bf16", device)[0][2] == [f"32 x 512x512x64 {word} {size}" for size in (64, 100)]


# ------------------------------------------------------------------------------------------ services


def test_a_written_token_reads_the_window():
    """Two samples of 4 key and value heads of 64 each; 1000 tokens in the cache and the new one, or the last 128."""
    moved = [kernels_of(job_of("decode", context=1000, cached=1000, **changes)).scores[0].moved[0] for changes in ({}, {"window": 128})]
    assert moved[0] - moved[1] == pytest.approx(2 * 4 * 2 * 64 * 2 * (1001 - 128), rel=1e-9)


def test_chunks_are_half_full_in_the_mean_of_a_long_output():
    job = job_of("decode", context=5000, cached=9096, window={"size": 1024, "chunked": True})
    assert job.seen(job.model.layers[0].parts[0].attention, 1) == pytest.approx(512, rel=1e-3)


def test_the_cache_keeps_the_window_of_local_layers():
    layout = Layout.of([Plan(dp=8)], np.full(1, 8.0), 8)
    kept = kv_cache(job_of("decode", context=1000, cached=1024, window=MIXED), layout)
    local, full = (float(kept[unit][0]) for unit in (1, 3))
    assert (local, full) == (128 * 2 * 4 * 64 * 2, 1024 * 2 * 4 * 64 * 2)
    assert kept.sum() == pytest.approx(local + full)  # one layer of each kind


@pytest.mark.slow
def test_a_wider_window_never_is_faster_or_smaller():
    for task in ("training", "prefill", "decode"):
        found = [predicted("tp2-dp4", window=w, task=task, sequence=4096, output=64) for w in (64, 256, 1024, 4096)]
        times, caches = [one.step_time for one in found], [float(one.score.memory["kv_cache"][0]) for one in found]
        assert times == sorted(times)
        assert caches == sorted(caches)


def test_operations_that_the_model_needs_are_those_of_the_window():
    """Attention of 128 of 4096 tokens: 4 h w per token and layer forward, twice that backward (a window's start sees less)."""
    few, more = (predicted(window=w, sequence=4096).score for w in (128, 256))
    more_flops = more.mfu[0] * more.step_time[0] - few.mfu[0] * few.step_time[0]
    pairs = 8 * 4096 * (256 * (1 - 128 / 4096) - 128 * (1 - 64 / 4096))
    peak = crossflow.predict(crossflow.from_dict({"system": {"template": "dgx-h100", "nodes": 1}, "workload": LLAMA, "strategy": "dp8"}))
    assert more_flops * 8 * float(peak.score.architecture["throughput.bf16"][0]) == pytest.approx(3 * 4 * 4 * 1024 * pairs, rel=1e-9)
