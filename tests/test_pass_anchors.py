"""Passes over memory of a transformer's layers worked out by hand: bytes and operations of each number, launches, as the kernels read
and write them (r, w in the docstrings of `crossflow.parallel.blocks`).
"""

import numpy as np
import pytest
from blocks import block_kernels

from crossflow.base.files import Document
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.groups import ExpertGroup
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

TOKENS, HIDDEN, HEADS, WIDTH, INNER = 512, 1024, 16, 64, 4096
MODEL = {
    "model": "transformer", "layers": 4, "hidden": HIDDEN, "heads": HEADS, "ffn": INNER, "gated": False, "vocabulary": 32000,
    "sequence": TOKENS, "positions": "learned", "norm": "layernorm", "biases": False, "global_batch": 64, "dtype": "bf16",
}  # fmt: skip
FUSED = ["softmax", "activation", "residual", "norm", "rotary", "loss"]
E = 2.0  # bytes of a number


def kernels(plan=None, like="megatron-core", fused=None, *, dropout=False, task="training", context=0, written=1, **changes):
    spec = TransformerSpec.model_validate({name: value for name, value in {**MODEL, **changes}.items() if value is not None})
    job = Job(model=spec.transformer(), dtype=spec.dtype, task=task, context=context, written=written, dropout=dropout)
    own = {"like": like} if fused is None else {"like": like, "fused": fused, "fused_half": []}
    return block_kernels(job, Layout.of([plan or Plan()], np.full(1, 64.0), 8), load_stack(Document(file="s", data=own))[0])


def passes(unit, *args, **changes):
    """Rows of a unit that move anything: phase, bytes, operations, launches."""
    rows = [one for one in kernels(*args, **changes).passes if one.unit == unit and np.any(one.moved)]
    return [(one.phase, *(float(np.sum(value)) for value in (one.moved, one.flops, one.launches))) for one in rows]


def messages(unit, plan, collective, **changes):
    sent = [one for one in kernels(plan, **changes).messages if (one.part, one.collective) == (unit, collective)]
    return [(one.phase, float(np.sum(one.size))) for one in sent if np.any(one.size)]


@pytest.mark.parametrize(
    ("fused", "dropout", "forward", "backward", "launches"),
    [(FUSED, False, 2, 3, 1), (FUSED, True, 4.5, 5.5, 2), ([], False, 12, 13, 5), ([], True, 14.5, 15.5, 6)],
)
def test_attention_through_memory(fused, dropout, forward, backward, launches):
    """Of each score: a softmax r1 w1, backward r2 w1; apart scale and mask r1 w1 each, and conversions to and from fp32 r3 w3 of that
    size; dropout r1 w1 and a mask of a byte. Queries, keys, values and the result change places, r4 w4, in four kernels, but for what is
    computed again.
    """
    scores, places = HEADS * TOKENS**2 * E, 8 * TOKENS * HIDDEN * E
    assert passes("0.0.attention", None, "megatron-lm-2021", fused, dropout=dropout)[:3] == [
        ("forward", forward * scores + places, 0.0, launches + 4),
        ("again", forward * scores, 0.0, launches),
        ("input", backward * scores + places, 0.0, launches + 4),
    ]


@pytest.mark.parametrize(("causal", "share"), [(True, 0.75), (False, 1.0)])
def test_a_ring_merges_the_results_of_its_steps(causal, share):
    """Three further steps of four ranks with 128 tokens each, each merge in two kernels: outputs and the fp32 sums of their logarithms
    r2 w1, backward gradients of queries, keys and values r2 w1. Under a mask three quarters of all queries and keys.
    """
    rows, pairs = HEADS * 128, 128 * 2 * HIDDEN
    forward, backward = passes("0.0.attention", Plan(cp=4), causal=causal)[:2]
    assert forward == ("forward", 3 * 3 * share * rows * (WIDTH * E + 4), 0.0, 6)
    assert backward == ("input", 3 * 3 * share * (rows * WIDTH + pairs) * E, 0.0, 6)


GELU = {"gated": False, "biases": False}
ACTIVATIONS = [
    # of each element of the inner layer: numbers forward and backward, launches of both
    (GELU, FUSED, 2, 3, 1, 1),  # r1 w1, backward r2 w1
    ({**GELU, "biases": True}, FUSED, 2, 4, 1, 2),  # and the bias's gradient r1
    ({**GELU, "biases": True}, FUSED[2:], 4, 4, 2, 2),  # the bias by itself r1 w1, whose gradient is passed on as it is
    ({"gated": True}, FUSED, 3, 5, 1, 1),  # r2 w1, backward r3 w2
    ({"gated": True, "biases": True}, FUSED, 3, 7, 1, 2),  # and the gradient of a bias of both branches r2
    ({"gated": True}, FUSED[2:], 5, 9, 2, 3),  # silu by itself r1 w1, backward r2 w1 for either factor and for silu
    ({"gated": True, "biases": True}, FUSED[2:], 9, 11, 3, 4),  # the bias of both by itself r2 w2, its gradient r2
    # Both branches are clamped r1 w1 each and joined r2 w2; backward r2 w1 each and joined r2 w2.
    ({"gated": True, "gate_limit": 7}, FUSED, 11, 15, 4, 4),
    ({"gated": True, "gate_limit": 7}, FUSED[2:], 9, 15, 4, 5),  # eager code takes them as they are
    ({"gated": True, "gate_limit": 7}, [*FUSED, "limit"], 3, 5, 1, 1),  # in the kernel of the activation
]


@pytest.mark.parametrize(("changes", "fused", "forward", "backward", "kernels", "back"), ACTIVATIONS)
def test_an_activation(changes, fused, forward, backward, kernels, back):
    rows = passes("0.1.mlp", None, fused=fused, **changes)[:2]
    inner = TOKENS * INNER
    assert rows == [("forward", forward * inner * E, 8.0 * inner, kernels), ("input", backward * inner * E, 16.0 * inner, back)]


@pytest.mark.parametrize(("fused", "each", "kernels"), [(FUSED, 2, 1), ([], 8, 8)])
def test_rotated_queries_and_keys(fused, each, kernels):
    """r1 w1 of 16 heads of queries and 4 of keys; in eager code r2 w2 in halves, four times."""
    rows = passes("0.0.attention", None, fused=fused, positions="rotary", kv_heads=4)[:2]
    moved = each * TOKENS * (16 + 4) * WIDTH * E
    assert rows == [("forward", moved, 0.0, kernels), ("input", moved, 0.0, kernels)]


def test_experts_and_the_router():
    """Of two rows a token: permutation r1 w1 and its return r1 w1, either way, at 0.3 of the memory's rate; six passes over the router's
    eight scores.
    """
    rows = passes("0.1.experts", None, experts={"count": 8, "active": 2})
    moved = (4 * 2 * TOKENS * HIDDEN / 0.3 + 6 * TOKENS * 8) * E
    assert rows[2:4] == [(way, pytest.approx(moved), 0.0, 8) for way in ("forward", "input")]
    assert rows[:2] == [
        ("forward", 2 * 2 * TOKENS * INNER * E, 16.0 * TOKENS * INNER, 1),
        ("input", 3 * 2 * TOKENS * INNER * E, 32.0 * TOKENS * INNER, 1),
    ]


def test_the_embedding():
    """Rows r1 w1, with positions r2 w1, dropout r1 w1; backward a scatter r2 w1 into a table that is cleared, w1. Where products add to a
    sum in FP32, a kernel of its own reads the table and adds it there, r1 w1 of 4 bytes.
    """
    rows, table = TOKENS * HIDDEN * E, 32000 * HIDDEN * E
    assert passes("embedding", fused=FUSED) == [("forward", 5 * rows, 0.0, 4), ("input", 3 * rows + table, 0.0, 3)]
    assert passes("embedding", dropout=True)[0] == ("forward", 7 * rows, 0.0, 4)
    assert passes("embedding", Plan(tp=4), fused=FUSED)[1] == ("input", 3 * rows + table / 4, 0.0, 3)
    assert passes("embedding", fused=[*FUSED, "accumulation"])[1] == ("input", 3 * rows + table * (1 + 1 + 2 * 4 / E), 0.0, 3)


@pytest.mark.parametrize(("fused", "forward", "backward", "launches"), [(FUSED, 2, 2, (1, 1)), (FUSED[:-1], 15, 7, (6, 3))])
def test_the_head(fused, forward, backward, launches):
    """The last norm r1 w1, backward r2 w1. The loss of 16-bit logits r1 w1 either way; by itself in fp32, which is two of them: conversion
    r1 w2, maximum r2, difference r2 w2, exponential and sum r2 w2, quotient r2 w2 make 15.
    """
    own, logits = TOKENS * HIDDEN * E, TOKENS * 32000 / 2
    assert passes("head", Plan(tp=2), fused=fused) == [
        ("forward", 2 * own, 0.0, 1),
        ("input", 3 * own, 0.0, 2),
        ("forward", forward * logits * E, 5 * logits, launches[0]),
        ("input", backward * logits * E, 0.0, launches[1]),
    ]


def test_hyper_connections():
    """Of four streams: squares r4, sum r4 w1, and with the part's output r5 w4 for a residual's r2 w1: 15 more; backward twice that."""
    own = TOKENS * HIDDEN
    found = passes("0.1.mlp", residual_streams=4)
    assert ("forward", 15 * own * E, 4 * 14.0 * own, 3) in found
    assert ("input", 30 * own * E, 4 * 28.0 * own, 3) in found


SELECTIVE = {"kind": "mamba1", "heads": 2048, "state": 16, "step_rank": 64}
GATED = {"kind": "gated_delta", "heads": 32, "head_dim": 128, "groups": 16, "state": 128, "conv_bias": False}


def test_channels_of_all_ranks_make_what_selects():
    """The latent of the time steps, B and C of every token are summed over four tensor ranks, and so are their gradients."""
    size = TOKENS * (64 + 2 * 16) * E
    sent = messages("0.0.ssm", Plan(tp=4), "all_reduce", ssm=SELECTIVE, heads=None, positions=None)
    assert [sent.count((phase, size)) for phase in ("forward", "input")] == [1, 1]


def test_a_recurrence_with_gates():
    """Convolution and silu r1 w1 of 2 x 16 x 128 and 32 x 128 channels with four taps, backward r1 w1 and r2 w1 in two kernels; norms of
    queries and keys r1 w1, backward r2 w1, with two gates a head in 2 and 4 bytes; norm and gate of the result r2 w1, backward r3 w3.
    """
    mixed, inner, keys, gates = (TOKENS * many for many in (2 * 16 * 128 + 32 * 128, 32 * 128, 2 * 16 * 128, 2 * 32 * (2 + 4)))
    found = passes("0.0.ssm", ssm=GATED, heads=None, positions=None)
    assert ("forward", 2 * mixed * E, (8 + 4) * mixed, 1) in found
    assert ("input", 5 * mixed * E, (24 + 8) * mixed, 2) in found
    assert ("forward", 2 * keys * E + gates, 0.0, 3) in found
    assert ("input", 3 * keys * E + 2 * gates, 0.0, 3) in found
    assert ("forward", 3 * inner * E, 12.0 * inner, 1) in found
    assert ("input", 6 * inner * E, 30.0 * inner, 1) in found


@pytest.mark.parametrize(
    ("changes", "given", "forward", "backward"),
    [
        ({"head_gate": True}, WIDTH, (3, 5), (5, 10)),  # of each element a sigmoid and a product: r2 w1, backward r3 w2
        # pairs of heads give a vector of two: their difference, norm and scale r1 w0.5, backward again with the gradient
        ({"differential": True}, 2 * WIDTH, (1.5, 3.5), (2.5, 7)),
    ],
)
def test_what_treats_the_outputs_of_heads(changes, given, forward, backward):
    elements = TOKENS * HEADS * given
    rows = passes("0.0.attention", **changes)[:2]
    assert rows == [
        (phase, moved * elements * E, float(operations * elements), 1)
        for phase, (moved, operations) in (("forward", forward), ("input", backward))
    ]


@pytest.mark.parametrize(("block", "sources"), [(2, 2), (1, 3)])
def test_sums_of_earlier_layers(block, sources):
    """Four layers in blocks: in the mean half of the blocks and one more. Forward each is read and the sum written; backward each is read
    twice, its gradient read and written, and that of the sum read; 8 operations of each number, and 20 backward.
    """
    own = TOKENS * HIDDEN
    found = passes("0.1.mlp", residual_block=block)
    assert ("forward", (sources + 1) * own * E, 8.0 * own * sources, 1) in found
    assert ("input", (4 * sources + 1) * own * E, 20.0 * own * sources, 2) in found


@pytest.mark.parametrize(("fused", "forward", "backward", "launches"), [(FUSED, 8, 10, (3, 5)), (FUSED[:3], 16, 22, (9, 11))])
def test_what_predicts_a_further_token_joins_two_inputs(fused, forward, backward, launches):
    """Two norms r1 w1 (r3 w3 in eager code) and one vector of both r2 w2; backward each norm r2 w1 (in eager code
    once more, and r2 w1), and the vector r2 w2.
    """
    own = TOKENS * HIDDEN
    found = passes("1.0.embedding", fused=fused, mtp_layers=1)
    assert found[:2] == [("forward", forward * own * E, 16.0 * own, launches[0]), ("input", backward * own * E, 32.0 * own, launches[1])]


@pytest.mark.parametrize("written", [1, 3])
def test_written_tokens_read_a_state_once_and_write_it_after_each(written):
    """A state of 32 heads with 128 x 128 numbers, and three tokens that a convolution of four looks back at; 7 operations of each number.
    The 2 x 16 x 128 + 32 x 128 channels of a token pass the convolution r1 w1, beside a gate r1 and the output w1 of 32 x 128.
    """
    mixed, inner = 2 * 16 * 128 + 32 * 128, 32 * 128
    found = passes("0.0.ssm", like="vllm", task="decode", context=TOKENS, written=written, ssm=GATED, heads=None, positions=None)
    assert ("forward", (1 + written) * (inner * 128 + 3 * mixed) * E, 7.0 * written * inner * 128, 2) in found
    assert ("forward", written * (2 * mixed + 2 * inner) * E, (8.0 + 4.0) * written * mixed, 0) in found


@pytest.mark.parametrize(("dtype", "there"), [("fp8", 1), ("bf16", 2)])
def test_tokens_travel_to_experts_in_the_type_of_their_products_and_back_in_full_width(dtype, there):
    found = kernels(Plan(ep=4, dp=4), "sglang", task="prefill", dtype=dtype, experts={"count": 8, "active": 2})
    groups = {one.group.back: one.group for one in found.program.messages if isinstance(one.group, ExpertGroup)}
    assert {back: (float(one.row[0]), float(one.token[0])) for back, one in groups.items()} == {
        False: (HIDDEN * E, HIDDEN * there), True: (HIDDEN * E, HIDDEN * E),
    }  # fmt: skip
