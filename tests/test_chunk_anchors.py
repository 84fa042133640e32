"""Pieces of prompts beside tokens that are written, by hand: the keys before a piece, its tokens, and how prompts are cut."""

from dataclasses import replace

import numpy as np
import pytest
from blocks import block_kernels
from test_sparse import SPARSE
from test_sparse import made as sparse_model
from test_step_anchors import GPT, job_of, layout_of, machine_of, near, stack_of

from crossflow.cost.passes import issue_time
from crossflow.engine.runs import service as services
from crossflow.engine.runs.memory import ACTIVATIONS, CACHE, FRAMEWORK, memory
from crossflow.engine.runs.service import Service, _Balance, _chunk, _Coming, _steps, cache_room, steady_state
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.tables import tables_of
from crossflow.program.kernels import masked_pairs
from crossflow.workload.job import Chunk, Draft, Job
from crossflow.workload.spec import TransformerSpec

# Four query heads and two of keys and values, of 16 elements in two bytes; requests have 100 tokens in the cache, 120 at most.
HEADS, KV, HEAD = 4, 2, 16


def of(value):
    return np.array([float(value)])


def decoding(chunk=None, written=1, kv_dtype=None, **changes):
    job = job_of(task="decode", **{"kv_heads": 2, "sequence": 120}, **changes)
    return replace(job, context=100, cached=120, written=written, chunk=chunk, kv_dtype=kv_dtype)


def piece(pieces=1, length=40, before=80):
    return Chunk(pieces=of(pieces), length=of(length), before=of(before))


def beside(chunk, plan=None, stack=None, **changes):
    """Kernels of attention in the first layer: of tokens that are written, of the pieces of prompts."""
    found = block_kernels(decoding(chunk, **changes), layout_of(plan or Plan(micro_batch=8)), stack or stack_of("vllm"))
    return [row for row in found.scores if row.unit == "0.0.attention" and row.phase == "forward"]


# ------------------------------------------------------------------------------------------ keys before a piece


@pytest.mark.parametrize(("pieces", "length", "before"), [(1, 40, 80), (1, 40, 0), (3, 16, 1000), (0.25, 8, 4)])
def test_a_piece_attends_to_all_tokens_before_it_and_to_half_of_its_own(pieces, length, before):
    """Two products of every query with what precedes it; keys and values of all are read, queries and results of its own moved."""
    _, read = beside(piece(pieces, length, before))
    seen = before + length / 2
    assert read.flops[0] == near(2 * pieces * length * seen * HEADS * (HEAD + HEAD))
    assert read.moved[0] == near(pieces * 2 * (length * HEADS * 2 * HEAD + (before + length) * KV * 2 * HEAD))
    assert (float(read.kernel.samples[0]), float(read.kernel.length[0]), float(read.kernel.seen[0])) == (pieces, length, before + length)


@pytest.mark.cases(1)
@pytest.mark.parametrize("cuts", [1, 2, 5, 40])
def test_pieces_of_a_prompt_do_the_work_of_the_whole(cuts):
    """Also after tokens that lie in the cache: every pair of query and key once, wherever the prompt is cut."""
    for hits, prompt in ((0, 120), (500, 120)):
        length = prompt / cuts
        work = sum(beside(piece(1, length, hits + i * length))[1].flops[0] for i in range(cuts))
        pairs = float(masked_pairs(hits + prompt, 0, False) - masked_pairs(hits, 0, False))
        assert work == near(4 * HEADS * HEAD * pairs)
        mean = beside(piece(1, length, hits + (prompt - length) / 2))[1]  # all of them where the mean one lies
        assert cuts * mean.flops[0] == near(work)


WINDOWS = [
    # tokens before a piece of 8, pairs of the piece within a window of 16, keys that are read
    (0, 8 * 8 / 2, 8), (8, 8 * 12, 16), (12, 4 * 14 + 4 * 16, 20), (100, 8 * 16, 24),
]  # fmt: skip


@pytest.mark.parametrize(("before", "pairs", "keys"), WINDOWS)
def test_a_window_leaves_a_piece_the_last_keys_before_it(before, pairs, keys):
    """A query sees 16 tokens at most; the first of the piece sees as many before it, so that these and its own are read."""
    _, read = beside(piece(1, 8, before), window={"size": 16})
    assert read.flops[0] == near(4 * HEADS * HEAD * pairs)
    assert read.kernel.seen[0] == keys


@pytest.mark.parametrize("before", [0, 80])
def test_attention_through_memory_reads_the_keys_before_a_piece_too(before):
    """Two pieces of 40 queries, of which each head multiplies all keys, as neither mask nor window saves anything there."""
    found = block_kernels(decoding(piece(2, 40, before)), layout_of(Plan(micro_batch=8)), stack_of())
    products = [
        row for row in found.products if row.unit == "0.0.attention" and row.phase == "forward" and float(np.ravel(row.batch)[0]) > 1
    ]
    sizes = {tuple(float(np.ravel(size)[0]) for size in (row.m, row.n, row.k, row.batch)) for row in products}
    keys = before + 40
    assert {(40, keys, HEAD, 2 * HEADS), (40, HEAD, keys, 2 * HEADS)} <= sizes


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tensor_ranks_share_the_heads_of_pieces(tp):
    """More ranks than heads of keys and values repeat these."""
    _, read = beside(piece(2, 40, 80), Plan(tp=tp, micro_batch=8))
    assert read.flops[0] == near(2 * 2 * 40 * 100 * HEADS / tp * 2 * HEAD)
    assert read.moved[0] == near(2 * 2 * (40 * HEADS / tp * 2 * HEAD + 120 * max(KV / tp, 1) * 2 * HEAD))


def test_ranks_that_share_attention_alone_have_fewer_pieces():
    """Two of four ranks share the heads, so that each pair has half of the pieces."""
    _, read = beside(piece(2, 40, 80), Plan(tp=4, attention_tp=2, micro_batch=8))
    assert read.kernel.samples[0] == 1.0
    assert read.flops[0] == near(2 * 1 * 40 * 100 * HEADS / 2 * 2 * HEAD)


def test_a_recurrence_finds_the_state_before_each_piece():
    """Three pieces of 16: beside their scan a state of 4 x 16 x 8 in fp32 is written, and what is held is read and written."""
    given = {name: value for name, value in GPT.items() if name not in ("heads", "positions")}
    ssm = {"heads": 4, "head_dim": 16, "groups": 1, "state": 8}
    spec = TransformerSpec.model_validate({**given, "ssm": ssm})
    job = Job(model=spec.transformer(), dtype=spec.dtype, task="decode", context=100, cached=120)

    def scanned(chunk):
        found = block_kernels(replace(job, chunk=chunk), layout_of(Plan(micro_batch=8)), stack_of("vllm"))
        return [scan for unit, _, scan in found.scans if unit == "0.0.ssm"], [row for row in found.passes if row.unit == "0.0.ssm"]

    (scan, *_), passes = scanned(piece(3, 16, 64))
    assert (float(scan.samples[0]), float(scan.length[0])) == (3.0, 16.0)
    model = job.model.kinds[0].parts[0].ssm
    state = 3 * (4 * 4 * 16 * 8 + 2 * float(np.ravel(model.held(of(1), 2.0))[0]))
    assert any(float(np.ravel(row.moved)[0]) == near(state) for row in passes)


def test_keys_of_the_cache_are_read_in_its_type():
    _, read = beside(piece(1, 40, 80), kv_dtype="fp8")
    assert read.moved[0] == near(40 * HEADS * 2 * HEAD * 2 + 120 * KV * 2 * HEAD * 1)


def test_a_written_token_sees_its_context_and_itself():
    """Contexts grow evenly to 120 tokens, so from 82 to 120, itself included; with two guesses each of the three sees as many."""
    for written in (1, 3):
        own, _ = beside(piece(), written=written)
        assert own.flops[0] == near(2 * 8 * written * 101 * HEADS * 2 * HEAD)


SPARSE_PIECES = [
    # tokens before a piece of 256, keys that the indexer scores for a query, keys that it attends to, elements of a query and a value
    (2048, 2048 + 128, 1024, 288 + 256),  # to the latents of the cache as they are
    (0, 128, 128, 96 + 64),  # no more than may be chosen: to the heads' own keys and values
]  # fmt: skip


@pytest.mark.parametrize(("before", "scored", "chosen", "elements"), SPARSE_PIECES)
def test_an_indexer_scores_all_keys_before_a_piece_and_leaves_the_chosen_ones(before, scored, chosen, elements):
    """Two pieces; eight heads of 64 elements give a score a key each, sixteen attend to 1,024 keys at most."""
    scenario = sparse_model(task="decode", prompt=4096, output=8, sparse=SPARSE)
    job = replace(scenario.job(), chunk=piece(2, 256, before))
    found = block_kernels(job, Layout.of([Plan()], np.array([8.0]), 8), scenario.stack)
    rows = [row for row in found.scores if (row.unit, row.phase) == ("0.0.attention", "forward") and row.kernel.length[0] == 256]
    assert [float(row.flops[0]) for row in rows] == [near(2 * 2 * 256 * scored * 8 * 64), near(2 * 2 * 256 * chosen * 16 * elements)]


# ------------------------------------------------------------------------------------------ tokens of a piece


def test_every_product_takes_the_tokens_of_pieces_and_the_head_their_last_ones():
    """Eight requests write a token each and three pieces of 16 are read: 56 rows; 11 probabilities of the next token."""
    found = block_kernels(decoding(piece(3, 16, 64)), layout_of(Plan(micro_batch=8)), stack_of("vllm"))
    rows = {(row.unit, float(np.ravel(row.m)[0])) for row in found.products if row.phase == "forward"}
    assert rows == {("0.0.attention", 56.0), ("0.1.mlp", 56.0), ("head", 11.0)}
    assert piece(3, 16, 64).tokens[0] == 48.0
    alone = block_kernels(decoding(), layout_of(Plan(micro_batch=8)), stack_of("vllm"))
    assert {float(np.ravel(row.m)[0]) for row in alone.products if row.phase == "forward"} == {8.0}

    def looked(rows):
        return sum(float(np.sum(row.moved)) for row in rows.passes if (row.unit, row.phase) == ("embedding", "forward"))

    assert looked(found) == near(56 / 8 * looked(alone))


# ------------------------------------------------------------------------------------------ how prompts are cut


def service(**changes):
    given = {"requests": 32, "rate": 0, "prompt": 1000, "hits": 0, "output": 101, "chunk": 256, "most": 64, "gained": 1, "drafts": 0,
             "room": 0.9, "cache": 1.0}  # fmt: skip
    return Service(
        **{name: of(value) for name, value in (given | changes).items()}, whole=False, gathers=False, together=np.zeros(1, dtype=bool)
    )


CHUNKS = [
    # what differs, requests that decode, tokens that each writes a step: pieces, their length, tokens before, share of steps, cuts
    # 1000 tokens of a prompt for 100 that are written: ten for each request and step. A step has room for 256 - 16 of them: five pieces.
    ({}, 16, 1, 1.0, 200, 400, 160 / 200, 5),
    ({"hits": 50}, 16, 1, 1.0, 200, 450, 160 / 200, 5),
    ({"gained": 1.5}, 16, 1, 1.2, 200, 400, 240 / 240, 5),  # more tokens a step end requests sooner; 1.2 pieces fit
    ({}, 2, 3, 1.0, 250, 375, 20 / 250, 4),  # 250 left beside three tokens of two requests
    ({}, 20, 3, 196 / (1000 / 6), 1000 / 6, 2500 / 6, 1.0, 6),  # 196 left: six pieces, 1.2 of which are wanted
    ({"prompt": 50, "output": 6}, 16, 1, 3.2, 50, 0, 1.0, 1),  # short prompts are read whole, several in a step
    ({"prompt": 50, "output": 6, "hits": 7}, 40, 1, 4.32, 50, 7, 1.0, 1),  # 400 wanted, 216 have room
    ({"prompt": 500, "chunk": 250}, 0, 1, 1.0, 250, 125, 0.0, 2),  # cut evenly, with nothing over
]  # fmt: skip


def read_of(asked, requests, written):
    """Pieces, share of steps that read, and steps of a prompt, of one microbatch of so many requests."""
    layout = replace(served(), micro_batch=of(requests), microbatches=of(1))
    read = _chunk(asked, layout, written, _Coming(seen=of(requests), prompts=requests * asked.gained / asked.writes))
    assert read.filled[0] == 1.0
    return read.chunk, read.share, read.steps


@pytest.mark.parametrize("case", CHUNKS)
def test_prompts_are_cut_into_equal_pieces_that_fit_beside_what_is_written(case):
    changes, decode, written, *expected = case
    chunk, share, steps = read_of(service(**changes), decode, written)
    found = [float(np.ravel(one)[0]) for one in (chunk.pieces, chunk.length, chunk.before, share, steps)]
    assert found == [near(one) if one else 0.0 for one in expected]


@pytest.mark.parametrize(("requests", "output"), [(1, 11), (16, 101), (60, 400), (100, 900)])
def test_prompts_that_are_read_are_requests_that_end(requests, output):
    """Per step a request ends for every 100 that write; the pieces of all steps are as many prompts, as far as there is room."""
    given = service(output=output)
    chunk, share, steps = read_of(given, requests, 1)
    ends = requests / (output - 1)
    assert share[0] * chunk.pieces[0] / steps[0] == near(min(ends, chunk.pieces[0] / steps[0]))


def made(job, layout, asked, decode):
    on = machine_of("vllm")
    return _steps(job, layout, on, asked, memory(job, layout, on), of(decode))


def served(pp=1, requests=32):
    return layout_of(Plan(pp=pp, micro_batch=requests // pp), batch=requests)


def test_a_step_of_several_microbatches_reads_pieces_in_each():
    """Two microbatches of 16 requests: each reads a piece of 200, a fifth of a prompt, and has room for 1.2 of them."""
    steps = made(decoding(), served(2), service(), 32)
    assert (steps.pieces[0], steps.load[0], steps.most[0]) == (5.0, near(2 * 1 / 5), near(2 / 5 * 240 / 200))
    kernels = [step.total[0] - step.bound["host"][0] for step in (steps.mixed, steps.plain)]  # of so small a model the host takes longer
    assert kernels[0] > kernels[1]
    assert steps.share[0] == near(160 / 200)


def test_memory_for_a_chunk_is_that_of_reading_as_many_tokens():
    """A chunk of 60 is half of prompts of 120 tokens, of which 20 lie in the cache; and a request's cache is what one more takes."""
    job, layout, on = decoding(), served(), machine_of("sglang")
    held, most = cache_room(job, layout, on, service(prompt=100, hits=20, chunk=60))
    reading = memory(job.reading, replace(layout, micro_batch=of(0.5), microbatches=of(1)), on)
    assert held.stages[ACTIVATIONS].tolist() == reading.stages[ACTIVATIONS].tolist()
    assert held.stages[CACHE, 0, 0] == near(2 * 2 * KV * HEAD * 120 * 2)  # two layers, keys and values, two bytes
    more = 1.0 + on.stack.memory.fragmentation[0]
    left = held.capacity[0] * 0.9 - (held.total_of_stages[0, 0] - held.stages[CACHE, 0, 0] * more)
    assert most[0] == near(left / (held.stages[CACHE, 0, 0] * more))
    assert cache_room(job, layout, on, service(prompt=100, hits=20, chunk=120))[0].stages[ACTIVATIONS, 0, 0] == near(
        2 * held.stages[ACTIVATIONS, 0, 0]
    )


def test_an_engine_that_counts_little_leaves_the_framework_outside_its_share():
    """vLLM subtracts from its share what tensors take and what it counts beside them; the cache is one tensor and loses nothing."""
    job, layout, on = decoding(), served(), machine_of("vllm")
    held, most = cache_room(job, layout, on, service(prompt=100, hits=20, chunk=60))
    tensors = held.stages[:FRAMEWORK, 0, 0].sum() - held.stages[CACHE, 0, 0]
    counted = on.stack.engine.counted[0]
    assert most[0] == near((held.capacity[0] * 0.9 - tensors - counted) / held.stages[CACHE, 0, 0])


def test_the_framework_must_have_room_outside_the_share():
    """With a share of everything, the cache ends where the framework begins."""
    job, layout, on = decoding(), served(), machine_of("vllm")
    held, most = cache_room(job, layout, on, replace(service(prompt=100, hits=20, chunk=60), room=of(1.0)))
    assert most[0] == near((held.capacity[0] - held.total_of_stages[0, 0] + held.stages[CACHE, 0, 0]) / held.stages[CACHE, 0, 0])


def test_sampling_keeps_room_for_all_requests_on_the_last_stage():
    """26 bytes a logit and request; the first of two stages keeps what its prompts need."""
    job, on = decoding(), machine_of("vllm")
    asked = service(prompt=100, hits=20, chunk=60)
    found = cache_room(job, served(2), on, asked)[0].stages[ACTIVATIONS, :, 0]
    assert found[1] == near(26 * asked.most[0] * job.model.vocabulary)
    assert found[0] < found[1]


def test_the_first_token_comes_when_the_last_piece_has_been_read():
    """Five pieces and the rest of a step that runs; the operations of a prompt that lie in the cache are not done."""
    job, layout, on = decoding(), served(), machine_of("vllm")
    alone, hits = (steady_state(job, layout, on, service(**changes)) for changes in ({}, {"prompt": 750, "hits": 250}))
    at = _Balance(decoding=of(16), longer=of(1), limit=of(64), times=None)
    flow = services._flow(job, layout, on, service(), memory(job, layout, on), None, at)
    assert flow.reading[0] == near(flow.steps.rest[0] + 5 * flow.steps.reading[0])
    one = Layout.of([Plan()], np.ones(1), 8)
    whole = tables_of(job.reading, one, on.stack).model_flops[0]
    for found, share in ((alone, 1.0), (hits, 0.75)):
        writes = found.requests[0] * 100 * tables_of(job, one, on.stack).model_flops[0]
        assert found.outcome.model_flops[0] == pytest.approx(found.requests[0] * whole * share + writes, rel=1e-6)


@pytest.mark.parametrize(("written", "gained"), [(1, 1.0), (3, 1.0), (3, 1.5)])
def test_no_more_requests_decode_than_leave_room_to_read_the_prompts_that_follow(written, gained):
    """In every step each takes its tokens of the chunk, and a hundredth of a prompt of 1000 for every token that it gains."""
    asked = service(requests=1e5, most=1e6, gained=gained)
    found = steady_state(decoding(written=written), served(), machine_of("vllm"), asked)
    assert found.figures["requests_decoding"][0] == pytest.approx(256 / (written + 1000 * gained / 100), rel=1e-6)


def test_prompts_are_captured_in_pieces_where_the_engine_can():
    """As SGLang's documentation lists it: not with guesses, stages, workers for prompts, latent attention of long steps."""
    stack = stack_of("sglang")
    reading, captured = float(stack.host.reading[0]), float(stack.host.kernel[0])
    one, shared = served(), replace(served(), dp=of(2), ep=of(2))

    def issued(job, layout=one, **host):
        return float(np.ravel(issue_time(job, layout, replace_host(stack, **host)))[0])

    short, long = piece(pieces=1, length=2048), piece(pieces=2, length=2048)
    assert issued(decoding()) == captured == issued(decoding(chunk=long))
    assert issued(decoding(chunk=long), pieces=False) == reading == issued(decoding(chunk=long, written=3))
    assert issued(decoding().reading) == reading
    assert issued(replace(decoding(chunk=long), draft=Draft(job=decoding()))) == reading
    assert issued(decoding(chunk=long), served(2)) == reading == issued(decoding(chunk=long), shared)
    assert issued(decoding(chunk=long, written=2)) == reading == issued(replace(decoding(chunk=long), apart=True))
    assert issued(decoding(chunk=long), replace(one, dp=of(2))) == captured == issued(decoding(chunk=long), replace(one, ep=of(2)))
    latent = job_of(task="decode", latent={"kv_rank": 32, "nope": 16, "rope": 8, "value": 16})
    assert [issued(replace(latent, chunk=chunk)) for chunk in (short, long)] == [captured, reading]
    assert issued(replace(decoding(chunk=short), model=sparse_model(sparse=SPARSE).job().model)) == reading


def replace_host(stack, **changes):
    return stack.model_copy(update={"host": stack.host.model_copy(update=changes)})
