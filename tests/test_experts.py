"""Fused layers of experts and the exchange of their tokens: loads by hand, laws of their times, what was measured."""

import time

import numpy as np
import pytest

import crossflow
from crossflow.base.errors import SpecError
from crossflow.cost.exchange import Exchange, exchange_time, reached
from crossflow.cost.experts import expert_library, grouped_costs
from crossflow.cost.price import kernel_prices
from crossflow.evidence.validation.kernels_experts import exchange_table, moe_table
from crossflow.evidence.validation.tables import device_architecture, shipped
from crossflow.program import Experts, ProgramBuilder
from crossflow.program.kernels import kernel_tables
from crossflow.program.loads import TILE_ROWS, _capped, expert_loads, fullest

QWEN = {"hidden": 4096.0, "inner": 1536.0, "active": 8.0, "experts": 128.0}


def loads(tokens, ranks=8.0, load=1.0, skew=0.0, reached=np.inf, active=8.0, experts=128.0, slots=None):
    given = (tokens, active, experts, ranks, load, skew, reached, slots or 0.0)
    return expert_loads(*(np.atleast_1d(float(one)) for one in given))


def times(device="h100-80gb", library="triton-vllm", dtype="bf16", **sizes):
    architecture = device_architecture(device)
    (table,) = kernel_tables((Experts(**QWEN | sizes),), 2.0, narrow=False)
    return grouped_costs(table.sizes, expert_library(architecture, (library,), dtype), architecture, dtype).time[0]


def test_rows_are_as_even_as_whole_rows_can_be():
    found = loads(100)  # 800 rows over 128 experts, of which a rank has 16: 100 rows, four experts with 7 and twelve with 6
    assert (found.experts[0], found.rows[0]) == (16, 100)
    assert [*found.tiles[:, 0]] == [16, 16, 16, 16]
    many = loads(1000)
    assert [*many.tiles[:, 0]] == [16 * np.ceil(63 / height) for height in TILE_ROWS]
    few = loads(4)  # 32 rows over 8 ranks
    assert (few.experts[0], few.rows[0]) == (4, 4)
    assert loads(100, reached=10.0).experts[0] == 10
    assert loads(100, load=2.0).rows[0] == 200


def test_what_a_full_expert_cannot_take_goes_to_the_others_in_their_shares():
    """10 rows as 6 : 2 : 1 : 1, of which no expert has more than 4: the others have 6 as 2 : 1 : 1."""
    dealt = _capped(np.array([[6.0, 2.0, 1.0, 1.0]]), np.array([[10.0]]), np.array([[4.0]]))
    assert dealt.tolist() == [[4.0, 3.0, 1.5, 1.5]]


@pytest.mark.parametrize("skew", [0.8, 1.0, 1.2])
def test_a_power_law_deals_all_rows_out(skew):
    tokens, experts = 512.0, 64.0
    alone = loads(tokens, ranks=1.0, skew=skew, experts=experts, active=4.0)
    assert alone.rows[0] == pytest.approx(4 * tokens, rel=0.02)  # an expert has each token once at most
    fullest_of_8 = loads(tokens, ranks=8.0, skew=skew, experts=experts, active=4.0)
    assert 4 * tokens / 8 * 1.3 < fullest_of_8.rows[0] <= 4 * tokens
    assert alone.experts[0] <= experts
    assert fullest(4, 64, np.array([1.0, 8.0]), skew, 64)[1] > fullest(4, 64, np.array([1.0, 8.0]), skew, 64)[0] >= 1.0


@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_more_tokens_are_never_faster(skew):
    found = times(tokens=2.0 ** np.arange(17), ranks=4.0, skew=skew)
    assert (np.diff(found) >= -1e-12).all()


def test_experts_that_are_used_unevenly_take_longer_where_there_is_much_to_compute():
    found = times(tokens=16384.0, ranks=np.array([2.0, 8.0, 32.0]))
    assert (times(tokens=16384.0, ranks=np.array([2.0, 8.0, 32.0]), skew=1.2) > found).all()
    assert (times(tokens=16384.0, ranks=8.0, load=1.5) > found[1]).all()


def test_a_few_tokens_that_meet_at_few_experts_read_fewer_weights():
    assert times(tokens=16.0, skew=1.2) < times(tokens=16.0)


def test_more_ranks_have_less_work_each():
    assert (np.diff(times(tokens=4096.0, ranks=2.0 ** np.arange(8))) < 0).all()


def test_many_points_are_the_single_ones():
    tokens, ranks = np.array([1.0, 64.0, 3000.0, 3000.0]), np.array([1.0, 8.0, 8.0, 2.0])
    together = times(tokens=tokens, ranks=ranks, skew=np.array([0.0, 1.2, 1.2, 0.0]))
    alone = [times(tokens=t, ranks=r, skew=s)[0] for t, r, s in zip(tokens, ranks, (0.0, 1.2, 1.2, 0.0), strict=True)]
    assert [*together] == alone


@pytest.mark.thorough
@pytest.mark.slow
def test_a_hundred_thousand_layers_take_seconds():
    tokens = np.arange(1.0, 100_001.0)
    begin = time.process_time()
    found = times(tokens=tokens, ranks=8.0)
    assert np.isfinite(found).all()
    assert time.process_time() - begin < 5.0


def test_a_device_without_a_library_multiplies_as_products_do():
    builder = ProgramBuilder(name="experts", dtype="bf16")
    builder.compute("experts", Experts(**QWEN, tokens=4096.0, ranks=8.0))
    program = builder.build(training=False)
    architecture = device_architecture("mi300x")
    costs, _ = kernel_prices(program, architecture, None)
    least, _ = kernel_prices(program, architecture, None, least=True)
    assert costs.flops[0, 0] == pytest.approx(2.0 * 4096 * 3 * 4096 * 1536, rel=1e-3)  # and those of the activation
    assert costs.time[0, 0] > least.time[0, 0] > costs.flops[0, 0] / architecture.throughput["bf16"][0]


@pytest.mark.parametrize(("ranks", "given", "others"), [(8, None, 7.0), (8, 3.0, 2.0), (16, None, 3.5)])
def test_rows_of_other_ranks_that_are_multiplied_move_as_those_of_ones_own_by_hand(ranks, given, others):
    """Ranks share 128 experts out, of which a token has eight: where all gather its rows, one of eight ranks has one of its own.

    A library that multiplies half of the others reads and writes them before and behind both products, in two bytes; all weights once.
    Of half a row a token it has as many tokens, which come with eight rows each.
    """
    tokens, architecture = 65536.0, device_architecture("h100-80gb")
    sizes = QWEN | {"tokens": tokens, "ranks": float(ranks)} | ({} if given is None else {"given": given * tokens})
    (table,) = kernel_tables((Experts(**sizes),), 2.0, narrow=False)
    library = expert_library(architecture, ("triton-vllm",), "bf16").model_copy(update={"carried": 0.0, "passes": 0.0, "group": 1e9})
    none, half = (
        grouped_costs(table.sizes, library.model_copy(update={"multiplied": share}), architecture, "bf16").traffic[-1, 0, 0]
        for share in (0.0, 0.5)
    )
    row = 2.0 * (QWEN["hidden"] + 2 * QWEN["inner"]) + 2.0 * (QWEN["inner"] + QWEN["hidden"])
    weights = 128 / ranks * 3 * QWEN["hidden"] * QWEN["inner"] * 2.0
    assert none == pytest.approx(weights + 8 / ranks * tokens * row, rel=3e-3)
    assert half - none == pytest.approx(0.5 * others * tokens * row, rel=3e-3)


def test_measured_layers_are_within_their_floor():
    table = moe_table(shipped()).to_dict()
    assert table["n"] >= 100
    assert table["by"]["distribution"]["balanced"]["median_abs_error"] < 0.085
    assert table["by"]["distribution"]["power law"]["median_abs_error"] < 0.125


def qwen(software="vllm", task="decode", system="dgx-h200", **changes):
    """A mixture on one node with eight ranks that share the experts out."""
    model = {"model": "qwen3-30b-a3b", "task": task, "global_batch": 64, **changes}
    plan = {"dp": 8, "ep": 8, "micro_batch": 8}
    system = {"template": system, "devices": 8, "nodes": None}
    return crossflow.predict(crossflow.from_dict({"system": system, "workload": model, "strategy": plan, "software": software}))


def test_a_service_runs_experts_as_its_libraries_do():
    """Without the libraries the same layers are products and passes; training has no fused layers."""
    general = {"like": "vllm", "kernels": {"experts": {"bf16": []}}}
    assert qwen().step_time != qwen(general).step_time
    job = {"model": "qwen3-30b-a3b", "global_batch": 64}
    plan = {"dp": 8, "ep": 8, "micro_batch": 1, "zero": 3}
    trained = [
        crossflow.predict(crossflow.from_dict({"system": "dgx-h200", "workload": job, "strategy": plan, "software": one})).step_time
        for one in ("megatron-core", {"like": "megatron-core", "kernels": {"experts": {"bf16": []}}})
    ]
    assert trained[0] == trained[1]


def test_experts_in_blocks_of_contiguous_groups_take_as_long_for_one_token_as_for_many():
    """vLLM 0.12 on H200, tokens of Qwen3 235B: of 128 experts all take a block, however few tokens there are; prompts fill the blocks."""
    one, many, prompts = (
        [times("h200", library, "fp8_block", tokens=tokens, skew=1.2)[0] for library in ("deepgemm-vllm", "triton-vllm")]
        for tokens in (4.0, 48.0, 16384.0)
    )
    assert many[0] < 1.25 * one[0]
    assert many[1] > 2.0 * one[1]
    assert one[0] > 3.0 * one[1]
    assert prompts[0] < prompts[1]


def test_a_skew_slows_a_service_down():
    even, skewed = (qwen(task="prefill", experts={"count": 128, "active": 8, "ffn": 768, "skew": skew}).step_time for skew in (0, 1.2))
    assert skewed > 1.1 * even


def test_a_skew_is_no_capacity():
    sentence = "a power law says how unevenly experts are used; leave out `skew`, or `uneven` and `capacity`"
    with pytest.raises(SpecError, match=sentence):
        qwen(experts={"count": 128, "active": 8, "skew": 1.2, "uneven": 1.5})


def exchanged(device="h100-80gb", kernel="dispatch", **given):
    """Times of an exchange of tokens of 7168 fp8 elements."""
    architecture = device_architecture(device)
    sizes = {"tokens": 1024.0, "size": 7392.0, "active": 8.0, "experts": 256.0, "ranks": 8.0, "nodes": 1.0, "units": 20.0}
    sizes |= {"link": architecture.intra.bandwidth, "network": 50e9, **given}
    columns = dict(zip(sizes, np.broadcast_arrays(*map(np.atleast_1d, sizes.values())), strict=True))
    library = architecture.execution.libraries.exchange["deepep"]
    return exchange_time(Exchange(**columns), getattr(library, kernel))


def test_a_token_reaches_as_many_groups_as_its_experts_lie_in():
    assert reached(np.array([1.0, 256.0]), np.array([8.0]), np.array([256.0])) == pytest.approx([1.0, 8.0])
    assert reached(np.array([2.0]), np.array([1.0]), np.array([8.0])) == pytest.approx([1.0])


@pytest.mark.parametrize("kernel", ["dispatch", "combine", "fast_dispatch", "fast_combine"])
def test_exchanges_obey_their_laws(kernel):
    assert (np.diff(exchanged(kernel=kernel, tokens=2.0 ** np.arange(18))) > 0).all()
    assert (np.diff(exchanged(kernel=kernel, ranks=np.array([8.0, 16, 32, 64]), nodes=np.array([1.0, 2, 4, 8]), units=24.0)) > 0).all()
    far = {"kernel": kernel, "nodes": 4.0, "ranks": 32.0, "units": 24.0}
    assert exchanged(**far, network=25e9) > exchanged(**far)


def test_few_tokens_go_by_themselves_and_many_once():
    assert exchanged(kernel="fast_dispatch", tokens=16.0) < exchanged(tokens=16.0)
    assert exchanged(kernel="fast_dispatch", tokens=4096.0) > exchanged(tokens=4096.0)


def test_measured_exchanges_are_within_their_floor():
    table = exchange_table(shipped()).to_dict()
    assert table["n"] >= 150
    assert table["median_abs_error"] < 0.08


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize(("system", "same"), [("dgx-h200", False), ("dgx-b200", False), ("gb200-nvl72", False), ("dgx-a100", True)])
def test_a_service_exchanges_tokens_as_its_library_does(system, same):
    """Where the family of the device has it; others exchange as an all-to-all does."""
    general = {"like": "vllm", "kernels": {"exchange": []}}
    own, usual = (qwen(one, system=system).step_time for one in ("vllm", general))
    assert (own == usual) == same
