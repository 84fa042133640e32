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
