"""What a device computes and sends for the parts of a transformer: published counts of operations, laws of cutting."""

from dataclasses import replace

import numpy as np
import pytest
from blocks import block_kernels

from crossflow.base.files import Document
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.blocks import units
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.legality import legal_plans, plan_problem
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.collectives import sent_bytes
from crossflow.program.kernels import Experts
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

GPT = {
    "model": "transformer", "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "gated": False, "vocabulary": 32000, "sequence": 512,
    "positions": "learned", "norm": "layernorm", "biases": True, "global_batch": 64, "dtype": "fp16",
}  # fmt: skip
MOE = {"experts": {"count": 8, "active": 2}}
UNFUSED, FLASH = "megatron-lm-2021", "megatron-core"
FUSED = ["softmax", "activation", "residual", "norm"]
BACKWARD = ("input", "weight")


def job_of(task="training", context=0, dropout=False, **changes):
    spec = TransformerSpec.model_validate({**GPT, **changes})
    return Job(model=spec.transformer(), dtype=spec.dtype, task=task, context=context, dropout=dropout)


def kernels_of(job, *plans, stack=UNFUSED):
    layout = Layout.of(plans, np.full(len(plans), 64.0), 8)
    return block_kernels(job, layout, load_stack(stack)[0])


def product_flops(kernels, *phases, of=""):
    """Operations of matrix products in some phases, of units whose name has `of` in it, every point."""
    return sum(2.0 * m * n * k * batch for unit, phase, m, n, k, batch, *_ in kernels.products if phase in phases and of in unit)


def sizes(kernels, collective, phase, of):
    """Bytes of a kind of collective."""
    return float(sum(np.sum(m.size) for m in kernels.messages if (m.collective, m.phase) == (collective, phase) and of in m.part))


# -------------------------------------------------------------------------------------------- published counts


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("b", [1, 4])
def test_a_gpt_layer_has_the_operations_of_narayanan_2021(tp, b):
    """Eq. 2 and its derivation: 24 b s h^2 + 4 b s^2 h forward, twice that backward, over all ranks of a tensor group."""
    s, h = GPT["sequence"], GPT["hidden"]
    forward = 24.0 * b * s * h**2 + 4.0 * b * s**2 * h
    kernels = kernels_of(job_of(), Plan(tp=tp, micro_batch=b))
    assert tp * product_flops(kernels, "forward", "end", of="0.") == pytest.approx(forward, rel=1e-12)
    assert tp * product_flops(kernels, *BACKWARD, of="0.") == pytest.approx(2.0 * forward, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 4])
def test_the_head_has_six_b_s_h_v_operations(tp):
    """Narayanan 2021: 2 b s h V forward, twice that backward."""
    kernels = kernels_of(job_of(), Plan(tp=tp, micro_batch=2))
    once = 2.0 * 2 * GPT["sequence"] * GPT["hidden"] * GPT["vocabulary"] / tp
    assert product_flops(kernels, "forward", of="head") == pytest.approx(once, rel=1e-12)
    assert product_flops(kernels, *BACKWARD, of="head") == pytest.approx(2.0 * once, rel=1e-12)


def test_forward_operations_are_the_models_own():
    """Without a mask, of which unfused attention takes no advantage."""
    for changes in ({}, {"gated": True, "kv_heads": 4}, MOE, {"experts": {"count": 4, "active": 1, "shared": 512, "dense_layers": 1}}):
        job = job_of(causal=False, **changes)
        counted = {
            name: layer.count for i, layer in enumerate(job.model.layers) for name, _ in units(job.model) if name.startswith(f"{i}.")
        }
        kernels = kernels_of(job, Plan())
        done = sum(counted.get(name, 1) * product_flops(kernels, "forward", "end", of=name) for name, _ in units(job.model))
        assert done == pytest.approx(job.model.forward_flops(), rel=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention_has_a_fifth_product_backward_and_half_under_a_mask(causal):
    """Dao 2022: the backward pass computes the scores again, 2.5 times the forward pass; a mask leaves half."""
    b, s, h = 2, GPT["sequence"], GPT["hidden"]
    kernels = kernels_of(job_of(causal=causal), Plan(micro_batch=b), stack=FLASH)
    flops = {phase: float(np.sum(flops)) for _, phase, flops, *_ in kernels.scores}
    assert flops["forward"] == pytest.approx(4.0 * b * s**2 * h * (0.5 if causal else 1.0), rel=1e-12)
    assert flops["input"] == pytest.approx(2.5 * flops["forward"], rel=1e-12)
    assert product_flops(kernels, "forward", "end", of="0.") == pytest.approx(24.0 * b * s * h**2, rel=1e-12)


def test_selective_recomputation_computes_the_scores_again_and_nothing_else():
    """Korthikanti 2022, Sec. 5: 4 b s^2 h more."""
    kernels = kernels_of(job_of(), Plan(micro_batch=2))
    assert product_flops(kernels, "again") == pytest.approx(4.0 * 2 * GPT["sequence"] ** 2 * GPT["hidden"], rel=1e-12)


# -------------------------------------------------------------------------------------------- cuts


@pytest.mark.parametrize("changes", [{}, {"gated": True, "kv_heads": 4}, MOE], ids=["gpt", "llama", "moe"])
@pytest.mark.parametrize("stack", [UNFUSED, FLASH])
def test_a_tensor_group_divides_operations_and_weights(changes, stack):
    kernels = kernels_of(job_of(**changes), Plan(), Plan(tp=4), stack=stack)
    for unit, phase, m, n, k, batch, *_ in kernels.products:
        if 8.0 in (float(np.max(n)), float(np.max(k))):
            continue  # the router, which every rank has whole
        alone, cut = np.broadcast_to(2.0 * m * n * k * batch, 2)
        assert alone == pytest.approx(4 * cut, rel=1e-12), (unit, phase)
        weights = np.broadcast_to(n * k * batch, 2)
        if phase in ("forward", "end") and "head" not in unit and unit[2] == "1":  # attention's own products have no weights
            assert weights[0] == pytest.approx(4 * weights[1], rel=1e-12)
    for _, _, flops, moved, *_ in kernels.scores:
        assert flops[0] == pytest.approx(4 * flops[1], rel=1e-12)
        assert moved[0] == pytest.approx(4 * moved[1], rel=1e-12)


@pytest.mark.parametrize("tp", [4, 8, 16])
def test_every_tensor_rank_computes_whole_heads_of_keys_and_values(tp):
    """Of 16 query heads of 64 and 4 heads of keys and values."""
    kernels = kernels_of(job_of(gated=True, kv_heads=4), Plan(tp=tp))
    columns = [n for unit, phase, _, n, *_ in kernels.products if (unit, phase) == ("0.0.attention", "forward")]
    assert columns[0].tolist() == [16 * 64 / tp + 2 * 64]


@pytest.mark.parametrize("stack", [UNFUSED, FLASH])
def test_context_ranks_divide_tokens_and_operations(stack):
    kernels = kernels_of(job_of(), Plan(), Plan(cp=4), stack=stack)
    for phase in ("forward", "input", "weight"):
        alone, cut = product_flops(kernels, phase)
        assert alone == pytest.approx(4 * cut, rel=1e-12)
    for kind in ("forward", "input"):
        alone, cut = sum(one.flops * one.number for one in kernels.scores if one.phase == kind) + np.zeros(2)
        assert alone == pytest.approx(4 * cut, rel=1e-12)
    for unit, phase, moved, *_ in kernels.passes:
        alone, cut = np.broadcast_to(moved, 2)
        if alone and (unit != "embedding" or phase == "forward"):  # a gradient's table is as large whatever the tokens
            assert alone == pytest.approx(4 * cut, rel=1e-12)  # but for merges of a ring's results, which one rank has none of


@pytest.mark.parametrize("name", ["tp", "dp", "pp", "zero"])
def test_kernels_of_a_microbatch_know_no_other_axis(name):
    alone, cut = (kernels_of(job_of(), plan) for plan in (Plan(), Plan(**{name: 2})))
    same = product_flops(alone, "forward", "end") == product_flops(cut, "forward", "end")
    assert same == (name != "tp")


def test_operations_grow_with_the_microbatch():
    one, four = product_flops(kernels_of(job_of(), Plan(), Plan(micro_batch=4)), "forward", "end", *BACKWARD)
    assert four == pytest.approx(4 * one, rel=1e-12)


# -------------------------------------------------------------------------------------------- collectives


@pytest.mark.parametrize("phase", ["forward", "input"])
@pytest.mark.parametrize("of", ["attention", "mlp"])
def test_sequence_parallelism_sends_each_all_reduce_in_two_halves(phase, of):
    """Korthikanti 2022, Sec. 4.2.2: an all-gather and a reduce-scatter of b s h each for an all-reduce of b s h."""
    whole, split = (kernels_of(job_of(), Plan(tp=4, micro_batch=2, sequence_parallel=sp)) for sp in (False, True))
    size = 2.0 * 2 * GPT["sequence"] * GPT["hidden"]
    assert sizes(whole, "all_reduce", phase, of) == size
    assert sizes(whole, "all_gather", phase, of) == sizes(whole, "reduce_scatter", phase, of) == 0
    assert sizes(split, "all_reduce", phase, of) == 0
    assert sizes(split, "reduce_scatter", phase, of) == size
    # The weight's gradient needs the divided input whole once more.
    assert sizes(split, "all_gather", phase, of) == (1 if phase == "forward" else 2) * size


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_the_two_halves_are_as_many_bytes_as_the_whole(ranks):
    group, size = Layout.of([Plan(tp=ranks)], np.array([64.0]), 8).tensor, np.array([1e6])
    ends = size, group.size, group.per_node
    halves = sent_bytes("all_gather", *ends) + sent_bytes("reduce_scatter", *ends)
    np.testing.assert_allclose(sent_bytes("all_reduce", *ends), halves, rtol=1e-12)
    assert halves.sum() == pytest.approx(2e6 * (ranks - 1) / ranks)


@pytest.mark.parametrize("task", ["training", "prefill"])
def test_only_what_may_run_beside_a_weights_gradient_hides(task):
    kernels = kernels_of(job_of(task=task), Plan(tp=4, sequence_parallel=True), stack=FLASH)
    hidden = [message for message in kernels.messages if message.hides]
    assert hidden
    assert {message.phase for message in hidden} == {"input"}
    assert not any(message.hides for message in kernels_of(job_of(), Plan(tp=4)).messages)


def test_experts_exchange_every_row_there_and_back():
    kernels = kernels_of(job_of(**MOE), Plan(dp=4, ep=4, micro_batch=2))
    rows = 2 * GPT["sequence"] * 2
    for phase in ("forward", "input"):
        exchanged = [m for m in kernels.messages if (m.collective, m.phase, m.group) == ("all_to_all", phase, "expert")]
        assert [float(m.size[0]) for m in exchanged] == [rows * GPT["hidden"] * 2.0] * 2


# -------------------------------------------------------------------------------------------- experts, services


@pytest.mark.parametrize(("ep", "uneven", "load"), [(4, 1.0, 1.0), (4, 1.5, 1.5), (2, 3.0, 2.0), (8, 9.0, 4.0), (1, 1.5, 1.0)])
def test_the_fullest_rank_has_more_rows_up_to_all_that_can_go_there(ep, uneven, load):
    """Of 8 experts a token goes to two different ones: a rank with one gets half of all rows at most, four times the mean of eight."""
    plan = Plan(dp=8, ep=ep, micro_batch=2)
    even, full = (kernels_of(job_of(experts={"count": 8, "active": 2, "uneven": factor}), plan) for factor in (1.0, uneven))
    assert sizes(full, "all_to_all", "forward", "experts") == pytest.approx(load * sizes(even, "all_to_all", "forward", "experts"))
    for some, more in zip(even.products, full.products, strict=True):
        ratio = load if "experts" in some.unit and some.n.max() > 8 and some.k.max() > 8 and some.m.max() > 8 else 1.0
        assert more.m * more.n * more.k * more.batch == pytest.approx(ratio * some.m * some.n * some.k * some.batch, rel=1e-12)


@pytest.mark.parametrize("stack", [FLASH, "vllm"])
def test_experts_of_ranks_without_tokens_compute_the_rows_of_one_that_has_some(stack):
    """One of four ranks has tokens: it sends as much to experts as beside others, of which each rank computes a quarter; where ranks gather
    all tokens, a quarter of them comes.
    """
    job = job_of(task="prefill", **MOE)
    layout = Layout.of([Plan(dp=4, ep=4, micro_batch=2)], np.full(1, 64.0), 8)
    stack = load_stack(stack)[0]
    full, lone = (block_kernels(replace(job, model=model), layout, stack) for model in (job.model, job.model.meeting(4)))
    rows = 2 * GPT["sequence"] * 2
    routed = [
        sum(2.0 * m * n * k * batch for unit, phase, m, n, k, batch, *_ in one.products
            if "experts" in unit and phase in ("forward", "end") and n.max() > 8)
        for one in (full, lone)
    ]  # fmt: skip
    assert routed == pytest.approx([part * rows * 4.0 * 1024 * 4096 * (stack.name == FLASH) for part in (1.0, 0.25)], rel=1e-9)
    layers = [[kernel for kernel in one.program.kernels if isinstance(kernel, Experts)] for one in (full, lone)]
    assert (len(layers[0]) > 0) == (stack.name != FLASH)
    for some, fewer in zip(*layers, strict=True):
        assert (fewer.tokens, fewer.active) == (0.25 * some.tokens, some.active)
    ways = {"all_to_all": 1.0, "all_gather": 0.25, "reduce_scatter": 0.25}
    sent = {way: [sizes(one, way, "forward", "experts") for one in (full, lone)] for way in ways}
    assert any(all_of for all_of, _ in sent.values())
    for way, share in ways.items():
        assert sent[way][1] == pytest.approx(share * sent[way][0])


@pytest.mark.parametrize("etp", [1, 2, 4])
@pytest.mark.parametrize("shared", [None, 512])
def test_experts_cut_over_fewer_ranks_do_as_much_and_send_less(etp, shared):
    """The same operations and rows exchanged a rank; rows are gathered over the ranks that share an expert alone."""
    job = job_of(experts={"count": 8, "active": 2, **({"shared": shared} if shared else {})})
    plan = {"tp": 4, "dp": 8, "ep": 8, "sequence_parallel": True, "micro_batch": 2}
    whole, cut = kernels_of(job, Plan(**plan)), kernels_of(job, Plan(**plan, etp=etp))
    for phases in (("forward", "end"), BACKWARD):
        assert product_flops(cut, *phases, of="experts") == pytest.approx(product_flops(whole, *phases, of="experts"), rel=1e-12)
    assert sizes(cut, "all_to_all", "forward", "experts") == pytest.approx(sizes(whole, "all_to_all", "forward", "experts"))
    everyone = 2 * GPT["sequence"] * GPT["hidden"] * 2.0
    gathered = dict.fromkeys(("tensor", "experts_tensor"), 0.0)
    for m in cut.messages:
        if (m.collective, m.phase) == ("all_gather", "forward") and "experts" in m.part:
            gathered[m.group] += float(np.max(m.size))
    routed, common = 2 * everyone, everyone if shared else 0.0  # each token has two experts
    assert gathered["tensor"] == common + (routed if etp == 4 else 0.0)
    assert gathered["experts_tensor"] == (routed * etp / 4 if etp == 2 else 0.0)


@pytest.mark.parametrize(("tp", "dp"), [(1, 16), (2, 8), (8, 2), (16, 1)])
@pytest.mark.parametrize(("etp", "ep"), [(1, 8), (2, 8), (4, 4), (8, 2)])
def test_all_ranks_together_dispatch_every_row_once(tp, dp, etp, ep):
    """However the ranks are folded into tensor and expert groups."""
    job = job_of(experts={"count": 8, "active": 2})
    kernels = kernels_of(job, Plan(tp=tp, dp=dp, etp=etp, ep=ep, micro_batch=16 // dp, sequence_parallel=True))
    rows = 16 * GPT["sequence"] * 2
    assert 16 * sizes(kernels, "all_to_all", "forward", "experts") == pytest.approx(2 * rows * GPT["hidden"] * 2.0)
    assert 16 * product_flops(kernels, "forward", "end", of="experts") == pytest.approx(rows * 4.0 * 1024 * 4096, rel=0.01)  # and a router


@pytest.mark.parametrize(("etp", "ep"), [(1, 4), (2, 2)])
def test_ranks_that_all_have_the_tokens_add_up_what_their_experts_give(etp, ep):
    """Experts of a service that lie within a tensor group: each rank's share of the work, no exchange, and the sum that tp alone has."""
    job = job_of(task="decode", context=100, experts={"count": 8, "active": 2, "shared": 512})
    cut, shared = (kernels_of(job, Plan(tp=4, micro_batch=6, **own), stack=FLASH) for own in ({}, {"etp": etp, "ep": ep}))
    assert product_flops(shared, "forward", "end", of="experts") == pytest.approx(
        product_flops(cut, "forward", "end", of="experts"), rel=1e-12
    )
    sums = [[float(np.max(m.size)) for m in kernels.messages if m.collective == "all_reduce"] for kernels in (cut, shared)]
    assert sums[0] == sums[1]
    assert not sum(np.max(m.size) for m in shared.messages if "experts" in m.part and m.collective != "all_reduce")


@pytest.mark.parametrize("task", ["prefill", "decode"])
def test_tensor_ranks_of_a_service_may_share_experts_out(task):
    """vLLM's --enable-expert-parallel with one replica; in training, and beyond the tensor group, ranks need tokens of their own."""
    model, own = job_of(**MOE).model, {"tp": 4, "micro_batch": 4, "etp": 1}
    assert plan_problem(Plan(**own, ep=4), model, 64, task=task) is None
    needs = "etp = 1 below tp = 4 needs sequence_parallel: true, which gives every tensor rank tokens of its own"
    assert plan_problem(Plan(**own, ep=8, dp=2), model, 64, task=task) == needs
    assert plan_problem(Plan(**own, ep=4), model, 64) == needs
    listed = {(plan.ep, plan.etp, plan.sequence_parallel) for plan in legal_plans(model, 4, 64, node=8, task=task) if plan.tp == 4}
    assert {(4, 1, False), (4, 1, True)} <= listed


@pytest.mark.parametrize(("etp", "rows"), [(0, 1), (1, 1), (4, 2)])
def test_a_single_token_meets_its_experts_whole(etp, rows):
    """In decode with fewer tokens than tensor ranks the busiest rank has one; cut over all ranks each has a part of every row."""
    job = job_of(task="decode", context=100, **MOE)
    kernels = kernels_of(job, Plan(tp=8, etp=etp, micro_batch=1 if etp != 4 else 4, sequence_parallel=True), stack=FLASH)
    products = [
        (m, batch) for unit, phase, m, n, _, batch, *_ in kernels.products if "experts" in unit and phase == "forward" and n.max() > 8
    ]
    assert [float(np.max(m * batch)) for m, batch in products] == [pytest.approx(2.0 * rows)] * 2


@pytest.mark.parametrize("ep", [1, 2, 8])
@pytest.mark.parametrize("active", [1, 2, 6])
def test_every_token_meets_its_experts(ep, active):
    kernels = kernels_of(job_of(experts={"count": 8, "active": active, "ffn": 768}), Plan(dp=8, ep=ep, micro_batch=2))
    routed = [
        (m, batch) for unit, phase, m, n, _, batch, *_ in kernels.products if "experts" in unit and phase == "forward" and n.max() > 8
    ]
    routed += [(m, batch) for unit, phase, m, _, _, batch, *_ in kernels.products if "experts" in unit and phase == "end"]
    assert len(routed) == 2
    for rows, copies in routed:
        assert float(np.max(copies)) == 8 / ep
        assert float(np.max(rows * copies)) == pytest.approx(2 * GPT["sequence"] * active, rel=1e-12)


def test_decoding_passes_one_token_of_each_request_and_sees_its_context():
    b, context = 4, 700
    kernels = kernels_of(job_of(task="decode", context=context), Plan(micro_batch=b), stack=FLASH)
    h = GPT["hidden"]
    assert product_flops(kernels, "forward", "end", of="0.") == pytest.approx(24.0 * b * h**2, rel=1e-12)
    (flops,) = (float(np.sum(flops)) for _, phase, flops, *_ in kernels.scores if phase == "forward")
    assert flops == pytest.approx(4.0 * b * (context + 1) * h, rel=1e-12)


@pytest.mark.parametrize(("task", "rows"), [("training", 512), ("forward", 512), ("prefill", 1), ("decode", 1)])
def test_a_service_needs_the_last_tokens_logits_alone(task, rows):
    kernels = kernels_of(job_of(task=task, context=10), Plan(micro_batch=3), stack=FLASH)
    logits = [m for unit, phase, m, n, *_ in kernels.products if unit == "head" and phase == "forward"]
    assert [float(np.max(m)) for m in logits] == [3.0 * rows]


def test_dropout_moves_more_and_computes_nothing_more():
    plain, dropped = (kernels_of(job_of(dropout=dropout), Plan()) for dropout in (False, True))
    assert sum(float(np.sum(moved)) for _, _, moved, *_ in dropped.passes) > sum(float(np.sum(moved)) for _, _, moved, *_ in plain.passes)
    assert product_flops(plain, "forward", *BACKWARD) == product_flops(dropped, "forward", *BACKWARD)


@pytest.mark.parametrize(
    ("fused", "norm", "forward", "back"),
    [(FUSED, (4, 8, 1), (7, 2, 1), (19, 20, 3)), (FUSED[:2], (12, 8, 4), (15, 2, 3), (31, 20, 9))],
    ids=["fused", "eager"],
)
def test_a_norm_and_a_residual_sum_by_hand(fused, norm, forward, back):
    """Bytes, operations and launches for each of 512 x 1024 numbers of two bytes, with a bias and a dropout whose mask has one byte.

    Fused, a norm is r1 w1 and the sum r2 w1; eager, a norm makes three such passes in four kernels, and bias, dropout and sum are a
    kernel each. Backward: what the norm takes and r1 more, in eager code r2 for its weights, both gradients' sum r2 w1, dropout r1 w1,
    bias r1.
    """
    stack = Document(file="s", data={"like": UNFUSED, "fused": fused})
    kernels, numbers = kernels_of(job_of(dropout=True), Plan(), stack=stack), GPT["sequence"] * GPT["hidden"]
    for unit, end in [("0.0.attention", "forward"), ("0.1.mlp", "end")]:
        rows = [(p.phase, float(p.moved[0]) / numbers, np.sum(p.flops) / numbers, p.launches) for p in kernels.passes if p.unit == unit]
        assert rows[-3:] == [("forward", *norm), (end, *forward), ("input", *back)]


def test_a_fused_softmax_of_half_precision_falls_apart_in_single():
    """Softmax r1 w1, backward r2 w1; apart also scale and mask, r1 w1 each, either way: 4 more of the scores forward, 4 back."""
    scores = GPT["heads"] * GPT["sequence"] ** 2 * 4
    apart = kernels_of(job_of(dtype="tf32"), Plan())
    fused = kernels_of(job_of(dtype="tf32"), Plan(), stack=Document(file="s", data={"like": UNFUSED, "fused": FUSED}))
    for phase in ("forward", "input", "again"):
        assert moved(apart, phase, of="0.0") - moved(fused, phase, of="0.0") == pytest.approx(4 * scores)
    half = [kernels_of(job_of(), Plan(), stack=Document(file="s", data={"like": UNFUSED, "fused": f})) for f in (FUSED, FUSED[1:])]
    assert moved(half[0], "forward", of="0.0") == moved(half[1], "forward", of="0.0")  # still one kernel in half precision


# -------------------------------------------------------------------------------------------- narrow types


def moved(kernels, *phases, of):
    """Bytes of passes over memory."""
    return float(sum(np.sum(entry[2]) for entry in kernels.passes if entry[1] in phases and of in entry[0]))


def test_operands_of_eight_bits_are_cast_twice_where_a_backward_pass_follows():
    """Inputs and weights read in 2 bytes and written twice in one; gradients of outputs likewise, of each of two products of an MLP."""
    tokens, h, f = GPT["sequence"], GPT["hidden"], 4 * GPT["hidden"]
    wide, narrow = (kernels_of(job_of(dtype=dtype), Plan(), stack=FLASH) for dtype in ("bf16", "fp8"))
    casts = (tokens * (h + f) + 2 * h * f / 64) * 4  # weights once for 64 microbatches
    assert moved(narrow, "forward", "end", of="0.1") - moved(wide, "forward", "end", of="0.1") == pytest.approx(casts)
    assert moved(narrow, "input", of="0.1") - moved(wide, "input", of="0.1") == pytest.approx(tokens * (h + f) * 4)
    assert moved(narrow, "forward", "input", "end", of="head") == moved(wide, "forward", "input", "end", of="head")


def test_a_service_casts_activations_alone():
    """Its weights are narrow from the start."""
    tokens, h, f = GPT["sequence"], GPT["hidden"], 4 * GPT["hidden"]
    wide, narrow = (kernels_of(job_of("prefill", dtype=dtype), Plan(), stack=FLASH) for dtype in ("bf16", "fp8"))
    assert moved(narrow, "forward", "end", of="0.1") - moved(wide, "forward", "end", of="0.1") == pytest.approx(tokens * (h + f) * 3)


def test_only_products_with_weights_are_narrow():
    kernels = kernels_of(job_of(dtype="fp8"), Plan())
    weights = [p for p in kernels.products if not p.wide]
    assert {p.unit.split(".")[-1] for p in weights} == {"attention", "mlp"}
    assert product_flops(kernels, "forward", "end", of="0.") - sum(
        2.0 * float(np.sum(p.m * p.n * p.k * p.batch)) for p in weights if p.phase in ("forward", "end")
    ) == pytest.approx(4.0 * GPT["sequence"] ** 2 * GPT["hidden"])
