"""What PyTorch's own layers do otherwise than fused ones: their products, gathers, rings and scales, counted by hand."""

from itertools import pairwise

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.parallel.activations import activations
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan

HIDDEN, HEADS, GROUPS, WIDTH, FFN, TOKENS = 2048, 16, 4, 128, 8192, 4096
MODEL = {
    "model": "transformer", "layers": 1, "hidden": HIDDEN, "heads": HEADS, "kv_heads": GROUPS, "ffn": FFN, "vocabulary": 32000,
    "sequence": TOKENS, "gated": True, "global_batch": 16, "dtype": "bf16",
}  # fmt: skip
ATTENTION, MLP = "0.0.attention", "0.1.mlp"


def blocks(plan, workload=None, **software):
    given = crossflow.from_dict(
        {
            "system": {"template": "dgx-b200", "nodes": 2}, "workload": {**MODEL, **(workload or {})}, "strategy": "dp16",
            "software": {"like": "megatron-core", **software},
        }
    )  # fmt: skip
    layout = Layout.of([plan], np.array([16.0]), 8)
    return block_kernels(given.job(), layout, given.stack), activations(given.job(), layout, given.stack)[0]


def moved(found, unit, phase):
    return sum(float(np.max(row.moved)) for row in found.passes if (row.unit, row.phase) == (unit, phase))


def launched(found, unit, phase):
    return sum(float(np.max(row.launches)) for row in found.passes if (row.unit, row.phase) == (unit, phase))


def sent(found, unit, phase, collective):
    return [float(np.max(m.size * m.number)) for m in found.messages if (m.part, m.phase, m.collective) == (unit, phase, collective)]


# -------------------------------------------------------------------------------------------- products


def test_projections_of_their_own_do_the_same_work_in_more_products_and_add_their_gradients():
    one, (several, _) = blocks(Plan(tp=2))[0], blocks(Plan(tp=2), joined=False)
    assert [float(np.max(row.n)) for row in several.products if row.unit == ATTENTION and row.phase == "forward"] == [
        HEADS * WIDTH / 2, GROUPS * WIDTH / 2, GROUPS * WIDTH / 2, HIDDEN,
    ]  # fmt: skip
    for phase in ("forward", "input", "weight"):
        whole, parts = (sum(float(np.max(r.m * r.n * r.k)) for r in found.products if r.phase == phase) for found in (one, several))
        assert parts == pytest.approx(whole, rel=1e-12)
    fused = "residual" in crossflow.from_dict({"system": "dgx-h100", "workload": MODEL, "strategy": "dp8"}).stack.fused
    for unit, products in ((ATTENTION, 3), (MLP, 2)):
        added = products + 1 if fused else 3 * (products - 1)
        assert moved(several, unit, "input") - moved(one, unit, "input") == pytest.approx(added * 2 * TOKENS * HIDDEN)


def test_models_without_gates_have_one_product_before_the_activation():
    found, _ = blocks(Plan(), {"gated": False}, joined=False)
    assert [float(np.max(row.n)) for row in found.products if row.unit == MLP and row.phase in ("forward", "end")] == [FFN, HIDDEN]


def test_models_of_a_batch_whose_heads_share_no_keys_copy_none():
    """They are priced beside others that do, and take what they take by themselves."""
    data = {"system": "dgx-h100", "software": "torchtitan", "strategy": "dp8"}
    workload = {"model": "llama3-8b", "task": "training", "global_batch": 8, "sequence": 1024, "layers": 2}
    both = crossflow.evaluate(crossflow.from_dict({**data, "workload": workload}), {"workload.kv_heads": [8, 32]}).step_time
    each = [crossflow.predict(crossflow.from_dict({**data, "workload": {**workload, "kv_heads": many}})).step_time for many in (8, 32)]
    np.testing.assert_allclose(both, each, rtol=1e-12)


def test_copies_of_keys_and_values_pass_memory_and_are_read_and_kept():
    (plain, kept), (copied, more) = blocks(Plan()), blocks(Plan(), attention={"repeated": True})
    pair = 2 * WIDTH * 2  # bytes of a key and a value
    for phase in ("forward", "input"):
        assert moved(copied, ATTENTION, phase) - moved(plain, ATTENTION, phase) == TOKENS * (HEADS + GROUPS) * pair
    read = [float(np.max(found.scores[0].moved)) for found in (plain, copied)]
    assert read[1] - read[0] == TOKENS * (HEADS - GROUPS) * pair
    assert float(np.max(more[ATTENTION] - kept[ATTENTION])) == TOKENS * (HEADS - GROUPS) * pair
    again = blocks(Plan(), attention={"repeated": True}, recomputed=["norm"])[1], blocks(Plan(), recomputed=["norm"])[1]
    np.testing.assert_array_equal(*(found[ATTENTION] for found in again))


# -------------------------------------------------------------------------------------------- tensor groups


def test_gathered_inputs_that_stay_are_not_gathered_again():
    plan, whole = Plan(tp=4, sequence_parallel=True), TOKENS * HIDDEN * 2.0
    (again, less), (once, more) = blocks(plan), blocks(plan, gathered_inputs="kept")
    for unit in (ATTENTION, MLP):
        assert sent(again, unit, "input", "all_gather") == [whole, whole]
        assert sent(once, unit, "input", "all_gather") == [whole]
        assert float(np.max(more[unit] - less[unit])) == whole * 3 / 4
    redone, _ = blocks(plan, gathered_inputs="kept", recomputed=["norm"])  # an input that is made again is gathered again
    assert sent(redone, MLP, "input", "all_gather") == [whole, whole]


def test_narrow_inputs_travel_narrow_and_results_do_not():
    plan, whole = Plan(tp=4, sequence_parallel=True), TOKENS * HIDDEN * 2.0
    found, _ = blocks(plan, {"dtype": "fp8"}, narrow_gathers=True)
    assert sent(found, MLP, "forward", "all_gather") == [whole / 2]
    assert sent(found, MLP, "input", "all_gather") == [whole / 2, whole / 2]
    assert sent(found, MLP, "forward", "reduce_scatter") == sent(found, MLP, "input", "reduce_scatter") == [whole]
    wide, _ = blocks(plan, narrow_gathers=True)
    assert sent(wide, MLP, "forward", "all_gather") == [whole]


@pytest.mark.parametrize(("gated", "joined", "beside"), [(True, False, False), (True, True, True), (False, False, True)])
def test_a_compiler_scatters_beside_a_single_product_alone(gated, joined, beside):
    plan = Plan(tp=4, sequence_parallel=True)
    found, _ = blocks(plan, {"gated": gated}, overlap={"tensor": "compiled"}, joined=joined)
    plain, _ = blocks(plan, {"gated": gated}, overlap={"tensor": "pipelined"}, joined=joined)
    hidden = {
        (op.phase, found.program.messages[op.message].collective): op.hiding
        for op in found.program.ops
        if op.layer == MLP and op.message is not None
    }
    assert hidden["forward", "all_gather"] == hidden["forward", "reduce_scatter"] == "pieces"
    assert hidden["input", "reduce_scatter"] == ("pieces" if beside else "")
    assert not any(how == "weights" for how in hidden.values())
    parts = 2.0 * TOKENS * HIDDEN * (1 + 1 / 4)  # that lie there, r1, and their sum, w 1/p
    assert moved(found, MLP, "forward") - moved(plain, MLP, "forward") == parts
    assert moved(found, MLP, "input") - moved(plain, MLP, "input") == (parts if beside else 0.0)


@pytest.mark.parametrize("plan", [Plan(), Plan(tp=4)])
def test_a_compiler_adds_no_parts_where_none_are_scattered(plan):
    """No kernel is launched for them: without a tensor group, or in one that sums up at once, the step is the same."""
    found, plain = (blocks(plan, overlap={"tensor": tensor})[0] for tensor in ("compiled", "none"))
    for phase in ("forward", "input"):
        assert launched(found, MLP, phase) == launched(plain, MLP, phase)


def test_a_scale_of_the_tensor_itself_takes_a_pass_more():
    delayed, current = (blocks(Plan(), {"dtype": "fp8"}, scales=scales)[0] for scales in ("delayed", "current"))
    operands = TOKENS * (HIDDEN + FFN) + HIDDEN * 3 * FFN  # inputs of both products and their weights, in 16 bits
    weights = HIDDEN * 3 * FFN
    assert sum(moved(current, MLP, way) - moved(delayed, MLP, way) for way in ("forward", "end")) == pytest.approx(
        2 * (operands - weights + weights / 16), rel=1e-12
    )
    blocked = [blocks(Plan(), {"dtype": "mxfp8"}, scales=scales)[0] for scales in ("delayed", "current")]
    assert moved(blocked[0], MLP, "forward") == moved(blocked[1], MLP, "forward")


# -------------------------------------------------------------------------------------------- rings


def test_a_gathered_ring_has_one_message_forward_and_passes_gradients_home():
    cp, rank = 4, TOKENS / 4 * GROUPS * 2 * WIDTH  # keys and values of one rank
    found, _ = blocks(Plan(cp=cp), ring={"gathered": True, "merges": "eager"})
    assert sent(found, ATTENTION, "forward", "all_gather") == sent(found, ATTENTION, "input", "all_gather") == [2.0 * cp * rank]
    assert sent(found, ATTENTION, "forward", "send_recv") == []
    assert sent(found, ATTENTION, "input", "send_recv") == [4.0 * (cp - 1) * rank, 4.0 * rank]  # in fp32, and the last beside nothing
    alone = [op for op in found.program.ops if op.message is not None and op.layer == ATTENTION and op.hiding == ""]
    assert [found.program.messages[op.message].collective for op in alone if op.phase == "input"] == ["send_recv"]


def test_steps_pass_gradients_of_keys_in_fp32_where_they_are_added_eagerly():
    cp, rank = 4, TOKENS / 4 * GROUPS * 2 * WIDTH
    fused, eager = (blocks(Plan(cp=cp), ring={"merges": merges})[0] for merges in ("fused", "eager"))
    assert sent(fused, ATTENTION, "input", "send_recv") == [2.0 * rank, 2 * 4.0 * rank, 2.0 * rank]
    assert sent(eager, ATTENTION, "input", "send_recv") == [2.0 * rank, 2 * 6.0 * rank, 4.0 * rank]


@pytest.mark.parametrize("causal", [True, False])
def test_eager_merges_pass_memory_as_often_as_pytorch_does(causal):
    cp, e, single = 4, 2.0, 4.0
    rows = TOKENS / cp * HEADS
    vectors, pairs = rows * WIDTH, TOKENS / cp * GROUPS * 2 * WIDTH
    eager, _ = blocks(Plan(cp=cp), {"causal": causal}, ring={"merges": "eager"})
    without, _ = blocks(Plan(cp=1), {"causal": causal, "sequence": TOKENS // cp})
    joined = 2 * e * pairs
    cast, difference, weighed, summed = (e + single) * vectors, 3 * single * vectors, 2 * single * vectors, 3 * single * vectors
    sums = (3 + 2 + 3 + 2 + 3) * 4.0 * rows  # differences, a sigmoid and its logarithm
    forward = (cp - 1) * (joined + cast + difference + weighed + summed + sums) + 2 * (e + single) * vectors
    assert moved(eager, ATTENTION, "forward") - moved(without, ATTENTION, "forward") == pytest.approx(forward, rel=1e-12)
    added = e + 2 * single
    halves = (added / 2 + 2 * single) if causal else added
    steps = (cp - 1) * (joined + vectors * added + pairs * (halves + 2 * single))
    ends = (vectors + pairs) * (single + added + e + single) + 2 * single * pairs
    assert moved(eager, ATTENTION, "input") - moved(without, ATTENTION, "input") == pytest.approx(steps + ends, rel=1e-12)


def test_a_long_ring_of_pytorch_takes_longer_than_one_of_fused_kernels():
    def time(**ring):
        workload = {**MODEL, "layers": 4, "sequence": 65536, "global_batch": 2}
        software = {"like": "megatron-core", "ring": ring}
        return crossflow.predict(
            crossflow.from_dict(
                {"system": {"template": "dgx-h100", "nodes": 2}, "workload": workload, "strategy": "cp8-dp2", "software": software}
            )
        ).step_time

    times = [time(), time(merges="eager"), time(merges="eager", gathered=True)]
    assert times[0] < min(times[1:])
    assert all(first != second for first, second in pairwise(times))
