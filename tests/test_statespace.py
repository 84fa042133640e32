# ruff: noqa: E501  (exact sentences)
"""State-space layers and hybrid models: work that grows with tokens, states that do not, shares of ranks, one price with programs."""

from dataclasses import replace

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.cost.price import kernel_prices
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.builder import ProgramBuilder
from crossflow.program.file import document_of, program_of
from crossflow.program.kernels import Pass, Product, Scan
from crossflow.program.scans import scan_sizes
from crossflow.workload.job import Chunk

SSM = {"heads": 32, "head_dim": 64, "groups": 4, "state": 128}
DELTA = {"kind": "gated_delta", "heads": 32, "head_dim": 128, "groups": 16, "state": 128, "conv_bias": False}
SELECTIVE = {"kind": "mamba1", "heads": 2048, "state": 16, "step_rank": 64}
KDA = {"kind": "kda", "heads": 16, "head_dim": 128, "groups": 16, "state": 128, "step_rank": 128, "conv_bias": False}
KINDS = {"mamba2": SSM, "gated_delta": DELTA, "kda": KDA, "mamba1": SELECTIVE}
MODEL = {"model": "transformer", "layers": 4, "hidden": 1024, "ffn": 4096, "vocabulary": 32000, "sequence": 2048, "global_batch": 16}
HYBRID = {**MODEL, "heads": 16, "ssm": {**SSM, "pattern": ["ssm", "attention"]}}
PURE = {**MODEL, "ssm": SSM}


def made(workload, strategy="dp8", software="megatron-core", system="dgx-h100"):
    data = {"system": {"template": system, "nodes": 1}, "workload": workload, "strategy": strategy, "software": software}
    return crossflow.from_dict(data)


def score(workload, strategy="dp8", **where):
    return crossflow.evaluate(made(workload, strategy, **where))


def refusal(workload, strategy="dp8"):
    with pytest.raises(CrossflowError) as caught:
        crossflow.predict(made(workload, strategy))
    return str(caught.value)


def scan(length, *, backward=False, delta=False, chunk=256.0):
    sizes = {"samples": 1.0, "heads": 32.0, "groups": 4.0, "length": float(length), "width": 64.0, "state": 128.0, "chunk": chunk}
    one = Scan(**sizes, delta=delta, backward=backward)
    return scan_sizes(np.array(list(sizes.values()))[:, None, None], 2.0, [one])[:, 0, 0]


# ------------------------------------------------------------------------------------------ Kimi delta attention


def test_kimi_delta_attention_by_hand():
    """Queries, keys, values and gate of 16 heads of 128, decays of a latent of 128, steps; a state that a key reads, is written, a query reads."""
    part = made({**PURE, "ssm": KDA}).workload.transformer().layers[0].parts[0]
    matrices = 4 * 1024 * 2048 + 1024 * 128 + 128 * 2048 + 1024 * 16 + 3 * 2048 * 4 + 2048 * 1024
    assert part.parameters == matrices + 16 * (1 + 128) + 128 + 1024
    assert made({**PURE, "ssm": KDA}).workload.transformer().part_flops(part, 1) == 2 * (matrices + 16 * 129) + 2 * 3 * 16 * 128 * 128


PARAMETERS = [
    # a mixer of 1,024 elements: what comes in, its convolution over four tokens, the recurrence, what goes out, norms
    (SSM, 1024 * (2 * 2048 + 2 * 4 * 128 + 32), (4 + 1) * (2048 + 1024), 3 * 32 + 2048, 2048 * 1024, 1024),
    (DELTA, 1024 * (2 * 4096 + 2 * 16 * 128 + 2 * 32), 4 * (4096 + 2 * 2048), 2 * 32, 4096 * 1024, 1024 + 128),
    (SELECTIVE, 1024 * 2 * 2048, (4 + 1) * 2048, 2048 * (64 + 32) + (64 + 1) * 2048 + (16 + 1) * 2048, 2048 * 1024, 1024 + 64 + 32),
    ({**SELECTIVE, "norm": False, "bias": True}, (1024 + 1) * 2 * 2048, (4 + 1) * 2048, 2048 * (64 + 32) + (64 + 17 + 1) * 2048, 2048 * 1024 + 1024, 1024),
    ({"kind": "conv", "heads": 1024, "conv": 3, "conv_bias": False}, 1024 * 3 * 1024, 3 * 1024, 0, 1024 * 1024, 1024),
    ({"kind": "rglru", "heads": 16, "head_dim": 64, "state": 1}, 1024 * 2 * 1024, (4 + 1) * 1024, (64 + 1) * 2 * 1024 + 1024, 1024 * 1024, 1024),
    ({"kind": "lightning", "heads": 16, "head_dim": 64, "groups": 16, "state": 64, "conv": 0}, 1024 * 4 * 1024, 0, 1024, 1024 * 1024, 1024),
]  # fmt: skip


@pytest.mark.parametrize(("ssm", *"abcde"), PARAMETERS)
def test_parameters_of_a_mixer_by_hand(ssm, a, b, c, d, e):
    part = made({**PURE, "ssm": ssm}).workload.transformer().layers[0].parts[0]
    assert part.parameters == a + b + c + d + e


def test_decays_of_every_channel_cost_passes_beyond_one_decay_a_head():
    one = {**KDA, "kind": "gated_delta"}
    del one["step_rank"]
    assert score({**PURE, "ssm": KDA}).step_time > score({**PURE, "ssm": one}).step_time


@pytest.mark.parametrize("kind", ["gated_delta", "kda"])
def test_longer_samples_cost_linear_attention_as_many_tokens(kind):
    """Four times the tokens of each sample take at most four times as long, where softmax attention takes longer."""
    ssm, attention = {"ssm": KINDS[kind]}, {"heads": 16}
    ratios = []
    for own in (ssm, attention):
        short, long = (float(score({**MODEL, **own, "sequence": tokens}).step_time[0]) for tokens in (32768, 131072))
        ratios.append(long / short)
    assert ratios[0] <= 4.0
    assert ratios[1] > 1.5 * ratios[0]


# ------------------------------------------------------------------------------------------ the scan


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_the_work_of_a_scan_grows_with_the_tokens(delta, backward):
    flops, moved, least, blocks, launches = scan(65536, delta=delta, backward=backward) / scan(8192, delta=delta, backward=backward)
    assert (flops, moved, least, blocks, launches) == (8, 8, 8, 8, 1)


def test_the_products_of_a_scan():
    """By hand: half of C B^T for each group and of (L o C B^T) X for each head, states and outputs of each chunk; 3, 3 and 2.5 times back."""
    pairs, width, states = 256 * 128 * 4, 256 * 64 * 32, 2 * 128 * 64 * 32
    assert scan(4096)[0] == 4096 * (pairs + width + 2 * states)
    assert scan(4096, backward=True)[0] == 4096 * (3 * pairs + 3 * width + 5 * states)


def test_a_chunk_as_long_as_the_sample_is_attention():
    """State-space duality: with one chunk the pairs within it, as in attention, grow with the square of the tokens."""
    long, short = (scan(length, chunk=1e9)[0] / length for length in (16384, 8192))
    states = 2 * 2 * 128 * 64 * 32
    assert long - states == 2 * (short - states)


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_steps_grow_with_tokens_where_attention_grows_with_their_square(kind):
    """Sixteen times the tokens in as many fewer samples: products alike, scans alike, attention alone takes longer."""
    short, long = {"sequence": 2048, "global_batch": 256}, {"sequence": 32768, "global_batch": 16}
    attends = {**MODEL, "heads": 16}
    pure, full = (
        score({**model, **long, "task": "forward"}).flops[0] / score({**model, **short, "task": "forward"}).flops[0]
        for model in ({**MODEL, "ssm": KINDS[kind]}, attends)
    )
    assert pure == pytest.approx(1.0, rel=1e-9)
    assert full > 1.5


# ------------------------------------------------------------------------------------------ services


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_writing_a_token_takes_as_long_after_many_as_after_few(kind):
    """A state has a fixed size; a hybrid model reads the keys of its layers of attention too."""
    served = {"task": "decode", "output": 64, "global_batch": 64}
    few, many = ({**MODEL, "ssm": KINDS[kind], **served, "prompt": prompt} for prompt in (1024, 131072))
    one, other = score(few, software="vllm"), score(many, software="vllm")
    assert one.step_time[0] == other.step_time[0]
    assert one.memory["kv_cache"][0] == other.memory["kv_cache"][0]
    hybrid = [score({**HYBRID, **served, "prompt": prompt}, software="vllm").step_time[0] for prompt in (1024, 131072)]
    assert hybrid[1] > 1.5 * hybrid[0]


@pytest.mark.parametrize(("stored", "size"), [(None, 2), ("fp32", 4)])
def test_a_service_keeps_a_state_for_every_request(stored, size):
    """States of all heads in their type, and three tokens that the convolution looks back at."""
    ssm = {**SSM, **({"state_dtype": stored} if stored else {})}
    found = score({**MODEL, "ssm": ssm, "task": "decode", "output": 8, "global_batch": 80}, software="vllm").memory["kv_cache"][0]
    assert found == 10 * 4 * (32 * 64 * 128 * size + 3 * (32 * 64 + 2 * 4 * 128) * 2)


def test_a_hybrid_keeps_keys_where_it_attends():
    served = {"task": "decode", "prompt": 1000, "output": 24, "global_batch": 80}
    keys = 10 * 2 * 1024 * 2 * 1024 * 2
    states = score({**PURE, **served}, software="vllm").memory["kv_cache"][0] / 2
    assert score({**HYBRID, **served}, software="vllm").memory["kv_cache"][0] == states + keys


def test_tokens_after_long_prompts_are_not_dearer_where_states_take_the_place_of_keys():
    """Workers of their own read the prompts, so that steps write alone; fewer requests then write at a time."""
    steady = {"task": "serving", "output": 64, "global_batch": 64, "serving": {"prefill": {"strategy": "tp1", "workers": 16}}}

    def served(model, prompt):
        return score({**model, **steady, "prompt": prompt}, software="vllm").serving

    few, many = (served(PURE, prompt) for prompt in (1024, 16384))
    assert many["tpot_s"][0] <= few["tpot_s"][0]
    assert many["ttft_s"][0] > 4 * few["ttft_s"][0]
    attending = {**MODEL, "heads": 16}
    assert served(attending, 16384)["tpot_s"][0] > served(attending, 1024)["tpot_s"][0]


@pytest.mark.parametrize("kind", ["mamba2", "gated_delta"])
def test_prompts_that_are_read_beside_pass_the_recurrence(kind):
    """A step that reads pieces of prompts computes a scan of them, of the share of the heads that a rank has."""
    scenario = made({**MODEL, "ssm": KINDS[kind], "task": "decode", "output": 64, "global_batch": 64}, "tp2-dp4", software="vllm")
    chunk = Chunk(pieces=np.array([2.0]), length=np.array([256.0]), before=np.array([128.0]))
    alone, beside = (
        block_kernels(replace(scenario.job(), chunk=one), Layout.of([scenario.strategy], np.array([64.0]), 8), scenario.stack)
        for one in (None, chunk)
    )
    assert not unit(alone, "0.0.ssm")[0]
    (scan,), _ = unit(beside, "0.0.ssm")
    assert (scan.samples, scan.length, scan.heads) == (2, 256, KINDS[kind]["heads"] / 2)


# ------------------------------------------------------------------------------------------ ranks


def unit(kernels, name, phase="forward"):
    """Scans of the first state-space part, and products, in a phase."""
    scans = [one for unit, where, one in kernels.scans if (unit, where) == (name, phase)]
    return scans, [one for one in kernels.products if (one.unit, one.phase) == (name, phase)]


def kernels_of(workload, **plan):
    scenario = made(workload)
    layout = Layout.of([Plan(**plan)], np.array([float(workload["global_batch"])]), 8)
    return block_kernels(scenario.job(), layout, scenario.stack)


CONVOLUTION = {"kind": "conv", "heads": 1024, "conv": 3, "conv_bias": False}


def test_bytes_of_recurrences_by_hand():
    """Of each of 2,048 tokens, in bf16: x, dt, z and two outputs of every channel, B and C of the group; of a convolution the first gate
    reads two and writes one, with a multiplication. Backward the gradient of the output and those of all of these beside.
    """
    for ssm, ways in ((SELECTIVE, (5 * 2048 + 2 * 16, 9 * 2048 + 4 * 16)), (CONVOLUTION, (3 * 1024, 5 * 1024))):
        passes = [one for one in kernels_of({**MODEL, "ssm": ssm}, tp=1, dp=8).passes if one.unit == "0.0.ssm"]
        for phase, each, multiplied in zip(("forward", "input"), ways, (1024, 2048), strict=True):
            found = [float(np.ravel(one.flops)[0]) for one in passes if one.phase == phase and np.ravel(one.moved)[0] == 2048 * 2 * each]
            assert found
            assert ssm is SELECTIVE or 2048 * multiplied in found


def test_passes_of_decays_by_hand():
    """Over decays of 16 heads of 128 beyond one a head, of each of 2,048 tokens, in fp32: five times forward, nine times backward."""
    passes, decays = kernels_of({**PURE, "ssm": KDA}, tp=1, dp=8).passes, 4.0 * 2048 * 16 * 127
    moved = {
        phase: [float(np.ravel(one.moved)[0]) for one in passes if (one.unit, one.phase) == ("0.0.ssm", phase)]
        for phase in ("forward", "input")
    }
    assert 5 * decays in moved["forward"]
    assert 9 * decays in moved["input"]


@pytest.mark.parametrize(("tp", "sizes"), [(1, []), (4, []), (8, [4.0 * 2048] * 2)])
def test_a_norm_over_more_than_a_ranks_elements_sums_their_squares(tp, sizes):
    """A norm of each of 4 groups, 512 elements: of 8 ranks with 256 each two have parts of one, a sum in fp32 a token and way."""
    sent = [one for one in kernels_of(PURE, tp=tp, dp=8 // tp).messages if one.part == "0.0.ssm" and one.collective == "all_reduce"]
    sums = [float(np.ravel(one.size)[0]) for one in sent if np.ravel(one.size)[0] < 2048 * 1024]
    assert sums == sizes


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_ranks_share_the_heads_and_repeat_groups_beyond_their_number(tp):
    (whole,), (inputs, output) = unit(kernels_of(PURE, tp=1, dp=8), "0.0.ssm")
    (mine,), (columns, rows) = unit(kernels_of(PURE, tp=tp, dp=8 // tp), "0.0.ssm")
    groups = max(4 / tp, 1)
    assert (mine.heads, mine.groups, mine.length) == (whole.heads / tp, groups, whole.length)
    assert columns.n[0] == (2 * 2048 + 32) / tp + groups * 2 * 128
    assert rows.k == output.k / tp
    assert columns.k == inputs.k


def test_context_ranks_share_the_heads_for_all_tokens():
    """As much work as without, between exchanges of all that the first projection gives, and of what the recurrence gives back."""
    (whole,), _ = unit(kernels_of(PURE, dp=8), "0.0.ssm")
    kernels = kernels_of(PURE, cp=4, dp=2)
    (mine,), _ = unit(kernels, "0.0.ssm")
    assert (mine.heads, mine.groups, mine.length) == (whole.heads / 4, 1, whole.length)
    sent = [
        float(one.size[0])
        for one in kernels.messages
        if one.collective == "all_to_all" and one.phase == "forward" and one.part == "0.0.ssm"
    ]
    tokens = 2048 / 4
    assert sent == [tokens * (2 * 2048 + 2 * 4 * 128 + 32) * 2, tokens * 2 * 2048 * 2]


def test_tensor_ranks_divide_memory():
    one, other = (score(PURE, {"tp": tp, "dp": 8 // tp, "sequence_parallel": tp > 1}).memory for tp in (1, 4))
    assert one["weights"][0] / 4 < other["weights"][0] < one["weights"][0] / 3.9
    assert other["activations"][0] < one["activations"][0] / 2


REFUSED = [
    (PURE, {"tp": 8, "dp": 1, "cp": 1, "micro_batch": 1}, {"heads": 4, "head_dim": 512}, "4 state-space heads are not divisible by tp = 8"),
    (PURE, {"cp": 8}, {"heads": 4, "head_dim": 512}, "4 state-space heads are not divisible by tp = 1 x cp = 8"),
    (PURE, {"cp": 2, "dp": 4}, SELECTIVE, "cp = 2: context parallelism of mamba1 layers is not modelled; use dp or tp in its place"),
]


@pytest.mark.parametrize(("model", "plan", "ssm", "sentence"), REFUSED)
def test_plans_that_cannot_share_a_state_space(model, plan, ssm, sentence):
    own = ssm if "kind" in ssm else {**SSM, **ssm}
    assert refusal({**model, "ssm": own}, plan).endswith(sentence)


WRONG = [
    ({"heads": 16}, "heads: no layer has attention; leave it out"),
    ({"ssm": {**SSM, "pattern": ["attention"]}}, "pattern: no layer has a state space; give some as ssm or both"),
    ({"ssm": {**SSM, "pattern": ["ssm", "attention"]}}, "the key 'heads' is missing; only a model without attention has none"),
    ({"ssm": {**SSM, "groups": 5}}, "heads = 32 is not a multiple of groups = 5"),
    ({"ssm": {**SSM, "mlp": False}}, "ffn: no layer has an MLP; leave it out"),
    ({"ssm": {**SSM, "pattern": ["ssm", "mlp"]}}, "pattern: a layer of kind mlp has no mixer, which needs mlp: false"),
    ({"ssm": {**SSM, "step_rank": 8}}, "step_rank: only mamba1, kda, rwkv6 and rwkv7 have it; leave it out"),
    ({"ssm": {**SELECTIVE, "chunk": 8}}, "chunk: mamba1 has no chunks; leave it out"),
    (
        {"ssm": {**SSM, "state_dtype": "fp32"}},
        "ssm.state_dtype: only a service keeps states, task is training; leave it out, or give task: prefill or decode",
    ),
    ({"task": "prefill", "kv_dtype": "fp8"}, "kv_dtype: no layer has attention, which keeps keys and values; leave it out"),
    ({"causal": False}, "ssm: state-space layers are modelled for causal decoders of words without an encoder only; leave it out"),
    ({"head_dim": 64}, "no layer has attention; leave it out"),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG)
def test_what_does_not_go_together_is_told(changes, sentence):
    assert sentence in refusal({**PURE, **changes})


# ------------------------------------------------------------------------------------------ one price


@pytest.mark.parametrize("device", ["dgx-h100", "pathfinder"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_scan_costs_a_program_what_it_costs_a_model(device, backward):
    scenario = made(PURE, system=device, software="ideal") if device == "dgx-h100" else crossflow.from_dict(
        {"system": {"template": device, "devices": 8}, "workload": PURE, "strategy": "dp8", "software": "ideal"}
    )  # fmt: skip
    builder = ProgramBuilder(dtype="bf16")
    builder.compute("scan", Scan(samples=1, heads=32, groups=4, length=2048, width=64, state=128, chunk=256, backward=backward))
    stack = load_stack("ideal")[0]
    alone, _ = kernel_prices(builder.build(), scenario.architecture, stack)
    (mine,), _ = unit(kernels_of({**PURE, "global_batch": 8}, dp=8), "0.0.ssm", "input" if backward else "forward")
    builder = ProgramBuilder(dtype="bf16")
    builder.compute("scan", mine)
    inside, _ = kernel_prices(builder.build(), scenario.architecture, stack)
    for name in ("time", "launch", "energy", "resource_times", "traffic"):
        np.testing.assert_allclose(getattr(alone, name), getattr(inside, name), rtol=1e-12)
    floor, _ = kernel_prices(builder.build(), scenario.architecture, stack, least=True)
    assert (floor.time < alone.time).all()


def test_a_scan_is_written_to_a_file_and_read_back():
    builder = ProgramBuilder(dtype="bf16")
    builder.compute("scan", Scan(samples=2, heads=32, length=4096, width=128, state=128, chunk=64, delta=True, backward=True))
    assert program_of(document_of(builder.build())).kernels == builder.build().kernels
    with pytest.raises(SpecError, match=r"kernels\[0\].length: expected more than 0, got 0"):
        program_of(
            {**document_of(builder.build()), "kernels": [{"kind": "scan", "samples": 1, "heads": 1, "length": 0, "width": 1, "state": 1}]}
        )


def test_plans_together_are_as_plans_one_by_one():
    plans = [{"tp": 8}, {"tp": 2, "dp": 4, "zero": 1}, {"cp": 4, "dp": 2}]
    together = crossflow.evaluate(made(HYBRID, "dp8"), {"strategy": plans})
    assert together.step_time.tolist() == pytest.approx([score(HYBRID, plan).step_time[0] for plan in plans], rel=1e-12)


def test_scans_are_listed_as_events_and_read_back_from_a_profile(tmp_path):
    """Their predicted times, read as measured, give the predicted step, and the timeline lasts as long."""
    scenario, path = made(PURE), tmp_path / "profile.csv"
    rows = events(scenario).to_csv().splitlines()
    path.write_text("\n".join([rows[0], *(row for row in rows if row.startswith("scan_"))]))
    given = crossflow.from_dict({**scenario.document.data, "profile": str(path)})
    assert len(path.read_text().splitlines()) == 3
    assert crossflow.predict(given).step_time == pytest.approx(crossflow.predict(scenario).step_time, rel=1e-6)
    assert crossflow.predict(given).to_dict()["measured_share"] > 0.01
    assert crossflow.simulate(given).total == pytest.approx(crossflow.predict(given).step_time, rel=1e-9)


def test_a_model_of_scans_takes_the_time_of_its_kernels():
    """A step forward of one layer without collectives: its kernels as a hand-made program, to 1e-9."""
    workload = {**PURE, "layers": 1, "global_batch": 8, "task": "forward"}
    scenario, builder = made(workload, "dp8", software="ideal"), ProgramBuilder(dtype="bf16")
    kernels = kernels_of(workload, dp=8)
    for one in kernels.products:
        if one.phase in ("forward", "end"):
            builder.compute("product", Product(m=one.m, n=one.n, k=one.k, batch=one.batch))
    for _, phase, moved, flops, launches in kernels.passes:
        if phase in ("forward", "end"):
            builder.compute("pass", Pass(moved=moved, flops=flops, launches=launches))
    for _, phase, one in kernels.scans:
        if phase == "forward":
            builder.compute("scan", one)
    program = builder.build()
    prices, _ = kernel_prices(program, scenario.architecture, scenario.stack)
    total = sum(prices.time[row, 0] for op in program.ops for row in op.kernels)
    assert crossflow.evaluate(scenario).step_time[0] == pytest.approx(total, rel=1e-9)


# ------------------------------------------------------------------------------------------ the whole model


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", ["training", "prefill", "decode"])
def test_kernels_compute_no_less_than_the_model_needs(kind, task):
    own = {"output": 8} if task == "decode" else {}
    workload = {**MODEL, "heads": 16, "ssm": {**KINDS[kind], "pattern": ["ssm", "both"]}, "task": task, **own}
    found = score(workload, "dp8", software="megatron-core" if task == "training" else "vllm")
    assert 0 < found.mfu[0] <= found.hfu[0] < 1


def test_a_hybrid_shows_its_layers_by_type_and_is_beyond_what_was_measured():
    found = crossflow.predict(made(HYBRID, "dp8"))
    assert {f"{kind}.compute" for kind in ("ssm", "attention", "mlp")} <= set(found.score.by_layer)
    assert found.to_dict()["extrapolated"]


def test_recomputation_and_frozen_layers():
    """Full recomputation runs the scan again; frozen mixers have no optimizer."""
    plain, again = (score(PURE, {"dp": 8, "recompute": how}) for how in ("none", "full"))
    assert again.hfu[0] / again.mfu[0] > 1.2 * plain.hfu[0] / plain.mfu[0]
    assert again.memory["activations"][0] < plain.memory["activations"][0]
    assert score({**PURE, "frozen": "ssm"}, "dp8").memory["optimizer"][0] < 0.9 * plain.memory["optimizer"][0]


def test_a_chunk_scan_of_mamba2_takes_as_long_as_published():
    """TileOPs on an H200: 0.94 ms for the kernel that has the products of pairs and one of the two with states; the others take no more."""
    builder = ProgramBuilder(dtype="bf16")
    builder.compute("scan", Scan(samples=8, heads=64, groups=1, length=4096, width=64, state=128, chunk=256))
    architecture = crossflow.from_dict({"system": "dgx-h200", "workload": PURE, "strategy": "dp8", "software": "nemo"}).architecture
    scan, _ = kernel_prices(builder.build(), architecture, load_stack("nemo")[0])
    assert 0.94e-3 < scan.time[0, 0] < 2 * 0.94e-3
    ideal, _ = kernel_prices(builder.build(), architecture, load_stack("ideal")[0])
    assert ideal.time[0, 0] < 0.5e-3  # nothing of it is lost there
