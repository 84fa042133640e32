"""Cross attention worked out by hand: what a decoder keeps, needs and reads of an encoder's tokens, in training and in a service."""

from dataclasses import replace

import numpy as np
import pytest
from blocks import block_kernels
from test_step_anchors import by_unit, job_of, layout_of, machine_of, near, stack_of

from crossflow.engine.runs.memory import ACTIVATIONS, CACHE, KINDS, kv_cache, memory
from crossflow.parallel.activations import activations
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.frozen import Frozen

# One encoder layer of 48 tokens; two decoder layers of 32; 64 elements in two bytes, four heads of 16.
E, D, WIDTH, HEADS = 48, 32, 64, 4
CROSS = "1.1.attention"


def both(task="training", cached=0, **more):
    job = job_of(task=task, positions="learned", encoder={"layers": 1, "sequence": E})
    return replace(job, cached=cached, **more)


def stack_with(kernel, name="megatron-lm-2022"):
    own = stack_of(name)
    return own.model_copy(update={"attention": own.attention.model_copy(update={"kernel": kernel})})


# What a part keeps of a token of its own, in elements: the norm's input and result, the last product's input; keys and values apart.
INPUTS, QUERY, PAIR = 3 * WIDTH, WIDTH, 2 * WIDTH


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("kernel", ["flash", "unfused"])
def test_what_attention_of_a_decoder_keeps_of_an_encoder(kernel, samples):
    """Keys and values of the encoder's tokens, queries and scores of the decoder's; the encoder's output is kept by the encoder."""
    kept, working = activations(both(), layout_of(Plan(micro_batch=samples)), stack_with(kernel))
    lengths = {"0.0.attention": (E, E), "1.0.attention": (D, D), CROSS: (D, E)}
    for name, (own, seen) in lengths.items():
        scores = 4 * own * HEADS if kernel == "flash" else 2 * own * HEADS * seen
        assert kept[name][0] == near(samples * (2 * own * (INPUTS + QUERY) + 2 * seen * PAIR + scores))
        passing = 2 * (own * (2 * WIDTH + QUERY + WIDTH) + seen * PAIR) + (scores if kernel == "unfused" else 0)
        assert working[name][0] == near(samples * passing)
    assert kept["0.1.mlp"][0] == near(samples * E * 2 * (2 * WIDTH + 2 * 256))
    assert kept["1.2.mlp"][0] == near(samples * D * 2 * (2 * WIDTH + 2 * 256))


@pytest.mark.parametrize("kernel", ["flash", "unfused"])
def test_tensor_ranks_share_heads_of_cross_attention_and_context_ranks_its_tokens(kernel):
    stack, whole = stack_with(kernel), activations(both(), layout_of(Plan()), stack_with(kernel))[0][CROSS][0]
    tensor, context = (activations(both(), layout_of(plan), stack)[0][CROSS][0] for plan in (Plan(tp=2), Plan(cp=2)))
    assert context == near(whole / 2)  # half of the queries, which still see all of the encoder
    assert tensor == near(whole / 2 + 2 * D * 2 * WIDTH / 2)  # norm's input and result are on every rank


@pytest.mark.parametrize("kernel", ["flash", "unfused"])
@pytest.mark.parametrize("task", ["forward", "prefill"])
def test_a_prompt_keeps_nothing_and_needs_what_one_part_does(task, kernel):
    """The same tensors as in training while the part runs, no gradients; a service has the logits of one token a request."""
    kept, working = activations(both(task), layout_of(Plan(micro_batch=3)), stack_with(kernel))
    training, _ = activations(both(), layout_of(Plan(micro_batch=3)), stack_with(kernel))
    assert all(not values.any() for values in kept.values())
    for name in ("0.0.attention", "1.0.attention", CROSS, "0.1.mlp", "1.2.mlp"):
        assert working[name][0] == near(training[name][0])
    assert working["head"][0] == near(3 * (D if task == "forward" else 1) * 1000 * 2)


def test_memory_of_a_prompt_is_that_of_its_fullest_part_on_every_stage():
    """Three stages: the encoder; a decoder layer; the other, and the head. No more than one part runs at once."""
    for stages in (1, 3):
        found = memory(both("prefill", cached=40), layout_of(Plan(pp=stages, micro_batch=8)), machine_of())
        _, working = activations(both("prefill"), layout_of(Plan(micro_batch=8)), machine_of().stack)
        of = {name: values[0] for name, values in working.items()}
        encoder, decoder = (max(values for name, values in of.items() if name.startswith(layer)) for layer in ("0.", "1."))
        expected = [max(encoder, decoder, of["head"])] if stages == 1 else [encoder, decoder, max(decoder, of["head"])]
        assert found.stages[ACTIVATIONS, :, 0].tolist() == [near(one) for one in expected]


def test_memory_of_training_counts_every_layer_once():
    """One microbatch of one stage, and the part whose backward pass adds most."""
    job = both()
    found = memory(job, layout_of(Plan()), machine_of())
    kept, working = activations(both(), layout_of(Plan()), machine_of().stack)
    decoder = 2 * sum(values[0] for name, values in kept.items() if name.startswith("1.")) + kept["head"][0]
    encoder = sum(values[0] for name, values in kept.items() if name.startswith("0."))
    assert found.stages[ACTIVATIONS, 0, 0] == near(decoder + encoder + max(values[0] for values in working.values()))


def test_layers_that_gradients_pass_keep_activations_though_they_do_not_train():
    """A frozen decoder before an encoder that trains; of a frozen encoder, below which nothing trains, nothing is kept."""

    def held(*layers):
        job = replace(both(), frozen=Frozen(types=frozenset({"embedding"}), layers=frozenset(layers)))
        return memory(job, layout_of(Plan()), machine_of()).stages[ACTIVATIONS, 0, 0]

    kept, _ = activations(both(), layout_of(Plan()), machine_of().stack)
    whole = memory(both(), layout_of(Plan()), machine_of()).stages[ACTIVATIONS, 0, 0]
    assert held() == held(1, 2) == near(whole)
    assert held(0) == near(whole - kept["0.0.attention"][0] - kept["0.1.mlp"][0])


# ------------------------------------------------------------------------------------------ the cache


def of_units(job, values):
    return {name: one for name, one in by_unit(job, values).items() if one}


@pytest.mark.parametrize("task", ["prefill", "decode"])
def test_a_service_keeps_keys_of_the_encoder_once_and_none_for_it(task):
    """Six requests of 40 tokens, keys and values of 64 elements in two bytes a layer: 40 of the decoder's and all 48 of the encoder's."""
    job = both(task, cached=40, context=36)
    layout = layout_of(Plan(micro_batch=3), batch=6)
    each = 6 * 2 * PAIR
    assert of_units(job, kv_cache(job, layout)) == {"1.0.attention": near(each * 40), CROSS: near(each * E)}
    spread = replace(job, staggered=True)
    assert of_units(job, kv_cache(spread, layout)) == {"1.0.attention": near(each * 36), CROSS: near(each * E)}
    assert memory(job, layout, machine_of()).stages[CACHE, 0, 0] == near(2 * each * (40 + E))
    assert of_units(job, kv_cache(job, layout_of(Plan(tp=2, micro_batch=3), batch=6))) == {
        "1.0.attention": near(each * 40 / 2), CROSS: near(each * E / 2),
    }  # fmt: skip


def test_what_writes_nothing_keeps_no_cache():
    assert of_units(both(), kv_cache(both("prefill", cached=0), layout_of(Plan()))) == {}


def test_an_encoder_that_has_read_the_prompt_stays():
    reading, writing = (memory(both(task, cached=40), layout_of(Plan(micro_batch=8)), machine_of()).kinds for task in ("prefill", "decode"))
    assert reading["weights"][0] == near(writing["weights"][0]) == near(2 * both().model.parameters)
    assert KINDS[CACHE] == "kv_cache"


# ------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize(("task", "length"), [("training", D), ("prefill", D), ("decode", 1)])
def test_queries_of_a_decoder_read_all_of_the_encoder(task, length):
    """Without a mask: two products of each of three samples' queries with 48 keys, which are read with their values."""
    found = block_kernels(both(task, cached=40, context=36), layout_of(Plan(micro_batch=3)), stack_with("flash", "vllm"))
    (row,) = [row for row in found.scores if (row.unit, row.phase) == (CROSS, "forward")]
    assert row.flops[0] == near(2 * 3 * HEADS * length * E * 32)
    assert row.moved[0] == near(3 * 2 * (length * 2 * WIDTH + E * PAIR))


def written(task, unit):
    """Bytes of the passes of a unit that a cache in 8 bits adds."""
    moved = []
    for dtype in ("fp8", None):
        job = replace(both(task, cached=40, context=36), kv_dtype=dtype)
        found = block_kernels(job, layout_of(Plan(micro_batch=3)), stack_with("flash"))
        moved.append(sum(float(np.sum(row.moved)) for row in found.passes if row.unit == unit))
    return moved[0] - moved[1]


def test_keys_of_the_encoder_are_cast_once_when_the_prompt_is_read():
    """Two bytes read and one written of each element; tokens that are written cast their own alone."""
    assert written("prefill", CROSS) == near(3 * E * PAIR * 3)
    assert written("prefill", "1.0.attention") == near(3 * D * PAIR * 3)
    assert written("decode", "1.0.attention") == near(3 * 1 * PAIR * 3)
    assert written("decode", CROSS) == written("prefill", "0.0.attention") == 0.0


def test_a_written_token_passes_the_decoder_alone():
    job = both("decode", cached=40)
    assert [job.takes_part(layer) for layer in job.model.kinds] == [False, True]
    assert [job.tokens(layer.tokens) for layer in job.model.kinds] == [1, 1]
    reading = job.reading
    assert [reading.takes_part(layer) for layer in job.model.kinds] == [True, True]
    assert [reading.tokens(layer.tokens) for layer in job.model.kinds] == [E, D]
