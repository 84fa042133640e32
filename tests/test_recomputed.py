"""Modules whose outputs are computed again: memory is traded for their kernels alone, and whole layers that are recomputed hold them."""

import pytest

import crossflow

SYSTEM = {"template": "dgx-b200", "nodes": 1}


def made(model, *modules, strategy="dp8", dtype="bf16"):
    software = {"like": "nemo", "recomputed": list(modules)}
    workload = {"model": model, "global_batch": 8, "dtype": dtype}
    return crossflow.predict(crossflow.from_dict({"system": SYSTEM, "workload": workload, "strategy": strategy, "software": software}))


def activations(prediction):
    return float(prediction.score.memory["activations"][0])


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("model", "module", "elements"),
    [
        ("llama3-8b", "activation", 14336),  # the input of the second product
        ("llama3-8b", "norm", 2 * 4096),  # inputs of the first products of attention and of the MLP
        ("llama3-8b", "product", 1024 + 14336),  # keys, and the second branch of the MLP
        ("llama3-8b", "attention", 4096 + 2 * 32),  # what 32 heads give, and of each its log-sum-exp in 4 B
        ("llama3-8b", "output", 4096),  # the input of the MLP's norm
        ("deepseek-v2", "latent", 128 * (2 * 192 + 128)),  # queries, keys and values of 128 heads
    ],
)
def test_what_a_module_writes_is_kept_of_one_layer_only(model, module, elements):
    """Of the layer whose backward pass runs, it is there again; so all layers but one hold less, or at most all of them."""
    strategy = "dp8" if model != "deepseek-v2" else "dp8-ep8"
    whole, less = made(model, strategy=strategy), made(model, module, strategy=strategy)
    workload = whole.scenario.workload
    saved = 2.0 * elements * workload.sequence * workload.layers
    assert (1 - 2 / workload.layers) * saved <= activations(whole) - activations(less) <= saved * 1.0001


@pytest.mark.parametrize("modules", [("activation",), ("norm",), ("norm", "activation")])
def test_it_takes_the_kernels_of_these_modules_alone(modules):
    whole, less, full = made("llama3-8b"), made("llama3-8b", *modules), made("llama3-8b", strategy="dp8-full")
    assert whole.step_time < less.step_time < 1.04 * whole.step_time < full.step_time


def test_every_second_product_is_done_again():
    """Keys and outputs of attention and the second branch of a gated MLP: 4096 x (1024 + 4096 + 14336) of a layer's weights."""
    whole, less = made("llama3-8b"), made("llama3-8b", "product")
    tokens = 8 * whole.scenario.workload.sequence
    again = 2.0 * tokens * 32 * 4096 * (1024 + 4096 + 14336)
    device = 8 * 2250e12  # eight B200
    assert (less.score.hfu[0] - whole.score.hfu[0] * whole.step_time / less.step_time) * less.step_time * device == pytest.approx(
        again, rel=0.01
    )
    assert made("llama3-8b", "product", strategy="dp8-full").step_time == pytest.approx(
        made("llama3-8b", strategy="dp8-full").step_time, rel=1e-9
    )


@pytest.mark.parametrize(
    ("module", "again"),
    [
        ("output", 2.0 * 4096 * 4096),  # of a token and layer
        ("attention", 2.0 * 4096 * 8192),  # two products of queries that see half of 8,192 keys
    ],
)
def test_attention_and_its_output_are_done_again(module, again):
    whole, less = made("llama3-8b"), made("llama3-8b", module)
    assert whole.scenario.workload.sequence == 8192
    tokens, device = 8 * 8192 * 32, 8 * 2250e12
    assert less.score.hfu[0] * less.step_time * device - whole.score.hfu[0] * whole.step_time * device == pytest.approx(
        tokens * again, rel=0.01
    )
    assert less.step_time > whole.step_time


def test_an_mlp_that_is_done_again_needs_no_input_where_that_is_made_again():
    """All that stays of a layer is its input, queries, keys and values, and what attention gives."""
    kept, less = (activations(made("llama3-8b", "norm", "mlp", *more)) for more in ((), ("output",)))
    assert kept - less == pytest.approx(2.0 * 8192 * 4096 * 32, rel=1e-3)  # all layers: the moment of the logits is the fullest


def test_unfused_attention_is_not_a_module_of_a_stack():
    software = {"like": "megatron-core", "attention": {"kernel": "unfused"}, "overlap": {"context": False}, "recomputed": ["attention"]}
    given = {"system": SYSTEM, "workload": {"model": "llama3-8b", "global_batch": 8}, "strategy": "dp8", "software": software}
    with pytest.raises(crossflow.CrossflowError, match="recomputed: attention is fused attention; of unfused attention a strategy says"):
        crossflow.from_dict(given)


def held(kind, **software):
    given = {"system": SYSTEM, "workload": {"model": "llama3-8b", "global_batch": 8}, "strategy": "dp8-z3"}
    return float(crossflow.predict(crossflow.from_dict({**given, "software": {"like": "nemo", **software}})).score.memory[kind][0])


def test_single_matrices_that_are_gathered_lie_there_while_their_part_runs():
    """Of layers the two that are largest and a gradient of one; embedding and head no longer than they are used, which here is less than
    the logits take.
    """
    gather = {"overlap": {"gather": True}, "gradient": "weight"}
    whole, single = (held("buffers", sharing={"unit": unit}, **gather) for unit in ("part", "matrix"))
    layer, table = 4096 * (4096 * 2 + 1024 * 2 + 3 * 14336), 4096 * 128256
    assert whole - single == pytest.approx(3 * 2.0 * layer + 2.0 * 2 * table, rel=1e-3)
    more = held("activations", sharing={"unit": "matrix"}, **gather) - held("activations", sharing={"unit": "part"}, **gather)
    assert more == pytest.approx(2 * 2.0 * table, rel=1e-3)  # the head with its gradient, beside the logits


@pytest.mark.parametrize(("master", "size"), [(True, 12.0), (False, 8.0)])
def test_weights_that_are_updated_in_16_bits_have_no_copy_in_32(master, size):
    """Two moments in fp32, and the weight in fp32 beside that which products read."""
    weights = held("weights") / 2.0
    assert held("optimizer", memory={"master": master, "remainders": False}) == pytest.approx(size * weights, rel=1e-3)


def test_what_an_activation_gives_and_its_gradient_may_never_lie_in_memory():
    """14,336 elements of a token, both of the layer in work alone."""
    full = {"strategy": "dp8-full"}
    given = {"system": SYSTEM, "workload": {"model": "llama3-8b", "global_batch": 8}, **full}
    apart, fused = (
        activations(
            crossflow.predict(
                crossflow.from_dict({**given, "software": {"like": "nemo", "memory": {"fused_activation": inside, "logit": "0.1 B"}}})
            )
        )
        for inside in (False, True)
    )
    assert apart - fused == pytest.approx(2 * 2.0 * 8192 * 14336, rel=1e-6)


def test_latents_take_their_projections_once_more():
    whole, less = made("deepseek-v2", strategy="dp8-ep8"), made("deepseek-v2", "latent", strategy="dp8-ep8")
    assert 1.005 < less.step_time / whole.step_time < 1.1
    assert whole.score.mfu[0] > less.score.mfu[0]
    assert less.score.hfu[0] / less.score.mfu[0] > whole.score.hfu[0] / whole.score.mfu[0]


def test_layers_that_are_computed_again_hold_their_modules():
    whole, both = made("llama3-8b", strategy="dp8-full"), made("llama3-8b", "norm", "activation", strategy="dp8-full")
    assert both.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert activations(both) == pytest.approx(activations(whole), rel=1e-9)


@pytest.mark.parametrize(("dtype", "saved"), [("fp8", 2.0), ("bf16", 0.0)])
def test_frozen_weights_are_kept_narrow_alone(dtype, saved):
    """Of all layers but the first; embedding and head stay wide, as do weights that train."""
    frozen = {"frozen": ["embedding", "head", "layers:1-31"], "model": "llama3-8b", "global_batch": 8, "dtype": dtype}
    found = []
    for narrow in (True, False):
        software = {"like": "nemo", "memory": {"narrow_frozen": narrow}}
        given = {"system": SYSTEM, "workload": frozen, "strategy": "dp8", "software": software}
        found.append(float(crossflow.predict(crossflow.from_dict(given)).score.memory["weights"][0]))
    layer = 4096 * (4096 * 2 + 1024 * 2 + 3 * 14336) + 2 * 4096
    assert found[1] - found[0] == pytest.approx(saved * 31 * layer, rel=1e-3)


@pytest.mark.parametrize(("dtype", "saved"), [("fp8", 1.0), ("mxfp8", 0.0), ("bf16", 0.0)])
def test_transposed_copies_of_one_layer_alone_are_held_where_they_are_not_kept(dtype, saved):
    """A byte a weight of all layers but the one in work; other narrow types round each copy apart."""
    given = {"system": {"template": "dgx-b200", "devices": 8}, "workload": {"model": "llama3-8b", "global_batch": 8, "dtype": dtype}}
    found = []
    for kept in (True, False):
        software = {"like": "nemo", "memory": {"transposed_weights": kept}}
        found.append(
            float(crossflow.predict(crossflow.from_dict({**given, "strategy": "dp8", "software": software})).score.memory["buffers"][0])
        )
    layer = 4096 * (4096 * 2 + 1024 * 2 + 3 * 14336)
    assert found[0] - found[1] == pytest.approx(saved * 31 * layer, rel=1e-3)


def test_some_layers_of_a_stage_are_done_again_and_the_others_not():
    """A quarter of the time and of the memory that all layers cost and save, and all of them where a stage has no more."""
    none, some, full = (made("llama3-8b", strategy=f"dp8{again}") for again in ("", "-full-rl8", "-full"))
    assert some.step_time - none.step_time == pytest.approx((full.step_time - none.step_time) / 4, rel=1e-9)
    freed, all_ = (activations(none) - activations(less) for less in (some, full))
    assert freed == pytest.approx(all_ / 4, rel=1e-6)
    assert made("llama3-8b", strategy="dp8-full-rl32").step_time == full.step_time
    assert made("llama3-8b", strategy="dp4-pp2-full-rl16").step_time == made("llama3-8b", strategy="dp4-pp2-full").step_time


def test_modules_of_the_other_layers_are_done_again_by_themselves():
    bare, alone, all_ = (made("llama3-8b", *modules, strategy="dp8-full-rl8") for modules in ((), ("norm",), ("norm", "activation")))
    assert bare.step_time < alone.step_time < all_.step_time
    every = made("llama3-8b", "norm").step_time - made("llama3-8b").step_time
    assert alone.step_time - bare.step_time == pytest.approx(0.75 * every, rel=1e-6)


def test_biases_of_experts_that_are_gathered_by_row_move_as_rows_of_tokens_do():
    """Of four experts of a token, biases of both branches and of what they give: read and written, backward also the sum they add to."""
    found = {}
    for share in (1.0, 0.5):
        for biases in ("products", "rows"):
            software = {"like": "maxtext", "permutation": share, "expert_biases": biases, "overlap": {"data": False, "gather": False}}
            workload = {"model": "gpt-oss-120b", "global_batch": 64, "sequence": 4096}
            given = {"system": {"template": "tpu-v7-pod", "devices": 64}, "workload": workload, "strategy": "dp64-z3", "software": software}
            found[share, biases] = crossflow.predict(crossflow.from_dict(given)).step_time
    more = {share: found[share, "rows"] - found[share, "products"] for share in (1.0, 0.5)}
    moved = 36 * 4096 * 4 * (2880 + 2 * 2880) * 2 * (2 + 3)
    assert more[1.0] > moved / 7.4e12  # Ironwood's memory at best
    assert more[0.5] == pytest.approx(2 * more[1.0], rel=0.05)  # but for starts of kernels
