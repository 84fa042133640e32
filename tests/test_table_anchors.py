"""What a step of a small transformer needs, sends and hands over, and what its experts keep, worked out by hand."""

import numpy as np
import pytest

from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.activations import activations
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.tables import tables_of
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

LENGTH, HIDDEN, BATCH = 32, 64, 8
MODEL = {
    "model": "transformer", "layers": 2, "hidden": HIDDEN, "heads": 4, "ffn": 256, "gated": False, "vocabulary": 1000, "sequence": LENGTH,
    "positions": "rotary", "norm": "rmsnorm", "biases": False, "tied_embeddings": False, "global_batch": BATCH, "dtype": "bf16",
}  # fmt: skip
ATTENTION, MLP, NORM, TABLE = 64 * 192 + 64 * 64, 2 * 64 * 256, 64, 1000 * 64
PRODUCTS = 2 * LENGTH * 2 * (ATTENTION + MLP)  # forward, of a sample [flop]
SCORES = 2 * 2 * LENGTH * (LENGTH / 2) * 2 * HIDDEN  # of which a mask leaves half [flop]
HEAD = 2 * LENGTH * TABLE
MESSAGE = BATCH * LENGTH * HIDDEN * 2.0  # of one all-reduce, of all samples [B]
RING = 2 * 7 / 8  # of a message, that a rank of eight sends


def near(value):
    return pytest.approx(value, rel=1e-12, abs=0.0)


def job_of(task="training", **changes):
    spec = TransformerSpec.model_validate({**MODEL, **changes})
    return Job(model=spec.transformer(), dtype=spec.dtype, task=task, cached=0 if task == "training" else 48)


def layout_of(**plan):
    return Layout.of([Plan(**plan)], np.full(1, float(BATCH)), 8)


def tables(plan, stack=None, task="training", **changes):
    return tables_of(job_of(task, **changes), layout_of(**plan), stack or load_stack("megatron-core")[0])


# -------------------------------------------------------------------------------------------- operations


@pytest.mark.parametrize("plan", [{}, {"micro_batch": 8}, {"dp": 4, "tp": 2}, {"pp": 2}, {"recompute": "full"}, {"cp": 2}])
def test_operations_that_a_model_needs_whatever_the_plan(plan):
    """Forward, and as many again for each gradient."""
    assert tables(plan).model_flops[0] == near(BATCH * 3 * (PRODUCTS + HEAD + SCORES))


def test_operations_of_a_service():
    """Where prompts are read the last token alone has probabilities."""
    assert tables({}, task="prefill").model_flops[0] == near(BATCH * (PRODUCTS + SCORES + HEAD / LENGTH))
    assert tables({}, task="forward").model_flops[0] == near(BATCH * (PRODUCTS + SCORES + HEAD))


def test_operations_of_adapters():
    """Weights that stay as they are need no gradient; factors of rank 8 beside each matrix of attention take three times their own."""
    factors = 2 * LENGTH * 2 * 8 * ((64 + 64) * 4)
    found = tables({}, adapters={"rank": 8, "targets": ["query", "key", "value", "output"]}).model_flops[0]
    assert found == near(BATCH * (2 * (PRODUCTS + HEAD) + 3 * SCORES + 3 * factors))


# -------------------------------------------------------------------------------------------- bytes


def test_gradients_that_a_replica_sends():
    """Of eight replicas in a node: a ring of all gradients, once whatever the microbatches; out of the node none."""
    stack = load_stack("megatron-core")[0]
    parameters = 2 * (ATTENTION + MLP + 2 * NORM) + 2 * TABLE + NORM
    for plan in ({"dp": 8, "micro_batch": 1}, {"dp": 8, "micro_batch": 1, "recompute": "full"}):
        assert tables(plan, stack).moved[:, 0].tolist() == [near(RING * parameters * stack.gradient_size(2.0)), 0.0]


@pytest.mark.parametrize(("recompute", "sums"), [("none", 4), ("full", 6)])
@pytest.mark.parametrize("rows", [1, 8])
def test_sums_of_a_tensor_group(rows, recompute, sums):
    """Two forward and two backward in each of two layers, and those forward once more where all is computed again; one of the
    embedding's rows and one of the head's gradient; and 12 bytes of every token's loss.
    """
    plan = {"tp": 8, "micro_batch": rows, "recompute": recompute}
    found = tables(plan, heads=8).moved[:, 0].tolist()
    assert found == [near(RING * ((2 * sums + 2) * MESSAGE + 12 * BATCH * LENGTH)), 0.0]


def test_what_stages_hand_over():
    """Activations of a microbatch, each tensor rank its part and then whole; gradients of a table that both ends hold."""
    found = tables({"pp": 2, "tp": 2, "micro_batch": 4}, tied_embeddings=True).between
    stack = load_stack("megatron-core")[0]
    assert (found.transfer[0], found.whole[0]) == (near(MESSAGE / 2 / 2), near(MESSAGE / 2))
    assert found.tied[0] == near(TABLE / 2 * stack.gradient_size(2.0))
    scattered = tables({"pp": 2, "tp": 2, "micro_batch": 4, "sequence_parallel": True}).between
    assert (scattered.transfer[0], scattered.whole[0], scattered.tied[0]) == (near(MESSAGE / 4), 0.0, 0.0)
    alone = tables({"tp": 2}, tied_embeddings=True).between
    assert (alone.transfer[0], alone.whole[0], alone.tied[0]) == (0.0, 0.0, 0.0)
    assert tables({"pp": 2}, task="forward", tied_embeddings=True).between.tied[0] == 0.0
    assert tables({"pp": 2, "cp": 2, "micro_batch": 8}).between.transfer[0] == near(MESSAGE / 2)


# -------------------------------------------------------------------------------------------- activations


def kept(unit, plan, stack="megatron-core", **changes):
    """What a microbatch leaves for the backward pass, and what is there while it runs, of a unit. [B]"""
    job = job_of(**changes)
    stack = load_stack(stack)[0] if isinstance(stack, str) else stack
    return [float(found[unit][0]) for found in activations(job, layout_of(**plan), stack)]


def test_twice_the_experts_keep_their_scores():
    """Logits and probabilities of a router, in fp32, of every token: a sequence of each rank, or its part of one."""
    for plan, tokens in (({"micro_batch": 2}, 64), ({"tp": 2, "sequence_parallel": True}, 16)):
        few, many = (kept("0.1.experts", plan, experts={"count": count, "active": 2})[0] for count in (8, 16))
        assert many - few == near(8 * 8 * tokens)


def test_results_of_experts_wait_for_their_weights():
    """Where they are weighed as they are returned, both of every token are kept."""
    stack = load_stack("megatron-core")[0]
    weighed = [
        kept("0.1.experts", {}, stack.model_copy(update={"weighing": way}), experts={"count": 8, "active": 2})[0]
        for way in ("returned", "")
    ]
    assert weighed[0] - weighed[1] == near(2 * 2 * LENGTH * HIDDEN)


def test_losses_of_further_tokens_wait():
    """Logits in all their copies; a softmax in fp32 for each layer that predicts a further token."""
    stack = load_stack("megatron-core")[0]
    one, two = (kept("head", {"tp": 2}, mtp_layers=layers)[1] for layers in (0, 2))
    assert one == near(LENGTH * 500 * float(stack.memory.logit[0]))
    assert two - one == near(LENGTH * 500 * 4 * 2)


def test_the_ends_keep_the_inputs_of_their_norm_and_product():
    assert kept("head", {"micro_batch": 2})[0] == near(2 * LENGTH * 2 * HIDDEN * 2)
    assert kept("head", {"tp": 4, "sequence_parallel": True})[0] == near(LENGTH * 2 * HIDDEN * 2 / 4)
    assert kept("embedding", {})[0] == 0.0
