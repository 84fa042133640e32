"""Caches of a service, tensors on a second memory and gradients in buckets, worked out by hand for a small transformer."""

from dataclasses import replace

import numpy as np
import pytest

from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.blocks import PHASES, units
from crossflow.parallel.caches import cache_read, cache_units, cache_written, kv_cache
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.tiers import far_traffic, far_update, placements
from crossflow.parallel.weights import _buckets, _sizes, bucketed
from crossflow.workload.job import Chunk, Job
from crossflow.workload.spec import TransformerSpec

MODEL = {
    "model": "transformer", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 256, "gated": False, "vocabulary": 1000,
    "sequence": 32, "positions": "rotary", "norm": "rmsnorm", "biases": False, "tied_embeddings": False, "global_batch": 8, "dtype": "bf16",
}  # fmt: skip
ATTENTION, MLP, NORM, TABLE = 64 * 128 + 64 * 64, 2 * 64 * 256, 64, 1000 * 64
TOKEN = 2 * 2 * 16 * 2.0  # keys and values of two heads of 16, in two bytes
LATENT = {"kv_rank": 32, "nope": 16, "rope": 8, "value": 16}


def near(value):
    return pytest.approx(value, rel=1e-12, abs=0.0)


def one(value):
    return np.array([float(value)])


def decoding(chunk=None, task="decode", **changes):
    """Requests of 100 tokens in the mean and 120 at their end."""
    model = {**MODEL, **changes}
    model = TransformerSpec.model_validate({name: value for name, value in model.items() if value is not None}).transformer()
    return Job(model=model, dtype="bf16", task=task, context=100, cached=120, chunk=chunk)


def layout(**plan):
    return Layout.of([Plan(**plan)], np.full(1, 8.0), 8)


def by_unit(job, values):
    return dict(zip([name for name, _ in units(job.model)], values[:, 0].tolist(), strict=True))


def attended(job, values):
    """Of the attention of the first layer, where nothing else has any."""
    found = by_unit(job, values)
    assert not any(value for name, value in found.items() if name != "0.0.attention")
    return found["0.0.attention"]


# -------------------------------------------------------------------------------------------- caches


@pytest.mark.parametrize(
    ("plan", "changes", "each"),
    [
        ({"micro_batch": 8}, {}, 120 * TOKEN),
        ({"micro_batch": 2}, {}, 120 * TOKEN),  # of all microbatches
        ({"tp": 4}, {}, 120 * TOKEN / 2),  # a whole head on each of four ranks
        ({"tp": 2, "attention_tp": 1}, {}, 120 * TOKEN / 2),  # all heads, of half of the requests
        ({"cp": 2}, {}, 120 * TOKEN / 2),
        ({}, {"window": 50}, 50 * TOKEN),
        ({"tp": 4}, {"latent": LATENT, "kv_heads": None}, 120 * (32 + 8) * 2),  # a latent and its key are whole on each
    ],
)
def test_what_requests_keep(plan, changes, each):
    """Eight requests at their end, or at all stages."""
    job = decoding(**changes)
    assert attended(job, kv_cache(job, layout(**plan))) == near(8 * each)
    spread = replace(job, staggered=True)
    assert attended(spread, kv_cache(spread, layout(**plan))) == near(8 * each * (1.0 if "window" in changes else 100 / 120))


def test_states_are_kept_whatever_the_tokens():
    """A state of 64 channels times 16, and three inputs of the convolution of 64 + 2 x 16 channels, in 16 bits."""
    job = decoding(ssm={"heads": 4, "head_dim": 16, "groups": 1, "state": 16}, heads=None, kv_heads=None, positions=None)
    kept = by_unit(job, kv_cache(job, layout(micro_batch=8)))
    assert kept["0.0.ssm"] == near(8 * 2 * (64 * 16 + 3 * (64 + 2 * 16)))
    four = by_unit(job, kv_cache(job, layout(tp=2, cp=2)))  # a head each, and B and C as all have them
    assert four["0.0.ssm"] == near(8 * 2 * (16 * 16 + 3 * (16 + 2 * 16)))
    assert not cache_units(job).any()
    nothing = replace(job, cached=0)
    assert not kv_cache(nothing, layout(micro_batch=8)).any()


def test_what_a_step_reads_and_writes_of_the_cache():
    """A microbatch of two requests with a piece of 40 tokens after 80: requests and the piece are read, all new tokens written."""
    job = decoding(Chunk(pieces=one(1), length=one(40), before=one(80)))
    on = layout(micro_batch=2)
    assert attended(job, cache_read(job, on)) == near((2 * 100 + 80) * TOKEN)
    assert attended(job, cache_written(job, on)) == near((2 + 40) * TOKEN)
    alone = decoding()
    assert attended(alone, cache_read(alone, on)) == near(2 * 100 * TOKEN)
    assert attended(alone, cache_written(replace(alone, written=3), on)) == near(2 * 3 * TOKEN)
    reading = decoding(task="prefill")
    assert attended(reading, cache_written(reading, on)) == near(2 * 32 * TOKEN)
    training = replace(alone, task="training")
    assert not cache_read(reading, on).any()
    assert not cache_read(training, on).any()
    assert not cache_written(training, on).any()
    assert by_unit(job, cache_units(job)) == {"embedding": False, "0.0.attention": True, "0.1.mlp": False, "head": False}


def test_what_a_decoder_keeps_of_an_encoder():
    """The encoder's own attention keeps nothing; keys and values of its 48 tokens are read by every step, and written by none."""
    job = decoding(positions="learned", encoder={"layers": 1, "sequence": 48})
    on = layout(micro_batch=2)
    kept, read, written = (by_unit(job, values) for values in (kv_cache(job, on), cache_read(job, on), cache_written(job, on)))
    assert [value for value in kept.values() if value] == [near(8 * 120 * TOKEN), near(8 * 48 * TOKEN)]
    assert [value for value in read.values() if value] == [near(2 * 100 * TOKEN), near(2 * 48 * TOKEN)]
    assert [value for value in written.values() if value] == [near(2 * TOKEN)]
    assert not kv_cache(replace(job, cached=0, context=0), on).any()


# -------------------------------------------------------------------------------------------- a second memory


def far(job, page=1.0, **plan):
    """What a microbatch reads forward and for gradients, and writes, by unit."""
    found, forward, backward = (
        far_traffic(job, layout(**plan), load_stack("vllm")[0], one(page)),
        PHASES.index("forward"),
        PHASES.index("input"),
    )
    assert found.read.sum() == found.read[:, [forward, backward]].sum()
    whole = found.read[:, forward], found.read[:, backward], found.written[:, forward], found.sought[:, forward]
    return [by_unit(job, values) for values in whole]


def test_weights_are_read_once_a_pass_and_rows_of_a_table_for_each_token():
    read, again, written, sought = far(decoding(), micro_batch=8, far=("weights",))
    layers = {"0.0.attention": near(2 * (ATTENTION + NORM)), "0.1.mlp": near(2 * (MLP + NORM)), "head": near(2 * (TABLE + NORM))}
    assert read == {"embedding": near(8 * 64 * 2), **layers}
    assert not any((*again.values(), *written.values(), *sought.values()))
    training = decoding(task="training")
    read, again, *_ = far(training, micro_batch=8, far=("weights",))
    assert again == {"embedding": 0.0, **layers}
    assert read["embedding"] == near(8 * 32 * 64 * 2)  # 256 rows, of a table of a thousand
    assert far(training, micro_batch=8, cp=2, far=("weights",))[0]["embedding"] == near(8 * 16 * 64 * 2)


def test_whole_pages_are_read():
    """Two matrices of 12,352 bytes each, norm included, are four pages of 4 KiB each; a row of 128 bytes is one."""
    read, *_ = far(decoding(), 4096.0, micro_batch=8, far=("weights",))
    assert (read["0.0.attention"], read["embedding"]) == (near(2 * 4 * 4096), near(8 * 4096))


@pytest.mark.parametrize(("share", "part"), [({}, 1.0), ({"far_experts": 25}, 0.25)])
def test_experts_that_tokens_reach_are_read(share, part):
    """Four tokens choose two of eight experts each, of which a rank has four; which are read is known once tokens are routed."""
    job = decoding(experts={"count": 8, "active": 2})
    read, _, _, sought = far(job, micro_batch=2, dp=4, ep=2, far=("experts",), **share)
    reached = 1 - 0.75**4  # two tokens of each of two ranks
    assert read == {"embedding": 0.0, "0.0.attention": 0.0, "0.1.experts": near(part * reached * 8 / 2 * MLP * 2), "head": 0.0}
    assert sought == {"embedding": 0.0, "0.0.attention": 0.0, "0.1.experts": 1.0, "head": 0.0}


def test_matrices_of_experts_are_whole_pages_each():
    """Of 32,768 bytes, in pages of 30,000; so is the router's of 1,024 with the norm's 128, which all tokens pass."""
    job = decoding(experts={"count": 8, "active": 2})
    read, *_ = far(job, 30_000.0, micro_batch=8, far=("experts", "weights"))
    assert read["0.1.experts"] == near((1 - 0.75**8) * 8 * 2 * 60_000 + 30_000)


def test_pieces_of_prompts_read_rows_of_the_table():
    job = decoding(Chunk(pieces=one(1), length=one(40), before=one(80)))
    assert far(job, micro_batch=2, far=("weights",))[0]["embedding"] == near((2 + 40) * 64 * 2)


def test_places_that_are_tried():
    """Each kind alone, and kinds together; of experts and the cache a quarter, half, three quarters and all."""
    assert list(placements(replace(decoding(), task="training", cached=0))) == [
        {"far": ("optimizer",)}, {"far": ("weights",)}, {"far": ("weights", "optimizer")},
    ]  # fmt: skip
    tried = list(placements(decoding()))
    assert tried[:4] == [
        {"far": ("cache",), "far_cache": 25},
        {"far": ("cache",), "far_cache": 50},
        {"far": ("cache",), "far_cache": 75},
        {"far": ("cache",)},
    ]
    assert (tried[4], len(tried)) == ({"far": ("weights",)}, 2 * 5 - 1)
    assert len(list(placements(replace(decoding(experts={"count": 8, "active": 2}), cached=0)))) == 2 * 5 - 1


def test_a_part_of_the_cache_is_read_in_whole_pages():
    """Of 100 tokens of each of two requests half lies there, 6,400 bytes: two pages of 4 KiB."""
    read, _, written, _ = far(decoding(), 4096.0, micro_batch=2, far=("cache",), far_cache=50)
    assert read["0.0.attention"] == near(2 * 2 * 4096)
    assert written["0.0.attention"] == near(0.5 * 2 * TOKEN)


def test_updates_of_a_second_memory():
    """Two states and weights in fp32, read and written; weights in 16 bits that lie there are written alone."""
    job, owned = decoding(task="training"), np.array([[7.0], [10.0], [20.0], [8.0]])
    stack = load_stack("megatron-core")[0]
    states, weights, both = (
        far_update(job, layout(far=where), stack, owned) for where in (("optimizer",), ("weights",), ("weights", "optimizer"))
    )
    assert [one.tolist() for one in states] == [(12 * owned).tolist()] * 2
    assert (weights[0].any(), weights[1].tolist()) == (False, (2 * owned).tolist())
    served, on = far_update(decoding(), layout(far=("weights",)), stack, owned)
    assert not np.any([served, on])
    assert [one.tolist() for one in both] == [(12 * owned).tolist(), (14 * owned).tolist()]


# -------------------------------------------------------------------------------------------- buckets


def test_gradients_in_buckets():
    """In the order in which they are ready: the head's table of 64,000, which fills the first; its norm, the second layer's matrices down
    and up, norm, output, keys and values, 41,088; its queries and norm, the first layer's down, up, norm and output, as many; its keys,
    values, queries and norm, and the table, 72,256.
    """
    job = decoding()
    sizes = np.array([[TABLE], [ATTENTION + NORM], [MLP + NORM], [TABLE + NORM]], dtype=float)
    found = by_unit(job, bucketed(sizes, job.model, 1.0, 40_000.0))
    second = 64 + 2 * 16384 + 64 + 4096 + 2 * 2048
    last = 2 * 2048 + 4096 + 64 + TABLE
    attention = 2 * (ATTENTION + NORM) / ((ATTENTION + NORM + 4096) / second + (2 * 2048 + 4096 + 64) / last)
    assert found == {
        "embedding": near(last), "0.0.attention": near(attention), "0.1.mlp": near(second),
        "head": near((TABLE + NORM) / (1 + NORM / second)),
    }  # fmt: skip
    assert bucketed(np.hstack([sizes, 0.0 * sizes, sizes]), job.model, 1.0, 40_000.0).T.tolist()[1:] == [[0.0] * 4, [*found.values()]]


def test_buckets_are_as_many_tensors_as_fill_them_and_the_last_what_is_left():
    assert _buckets(np.array([3.0, 1.0, 4.0, 1.0, 1.0]), 3.0, 5.0).tolist() == [3.0, 5.0, 5.0, 2.0, 2.0]
    assert _buckets(np.array([3.0, 1.0, 4.0, 1.0, 1.0]), 4.0, 5.0).tolist() == [4.0, 4.0, 5.0, 5.0, 1.0]


def test_tensors_of_a_part_the_last_first():
    """Both branches of a gated MLP apart; routed ones together; a tied head has its norm alone."""
    model = decoding(gated=True, tied_embeddings=True).model
    _, mlp = (part for part in model.layers[0].parts)
    assert [*_sizes(mlp, tied=False)] == [16384, 16384, 16384, 64]
    assert [*_sizes(model.head, tied=True)] == [64]
    assert [*_sizes(model.head, tied=False)] == [64000, 64]
    routed = decoding(gated=True, experts={"count": 8, "active": 2}).model.layers[0].parts[1]
    assert [*_sizes(routed, tied=False)] == [8 * 16384, 8 * 32768, 64 * 8, 64]
