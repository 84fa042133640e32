"""Experts on devices of their own: a step of two pools, which pass micro-batches to and fro."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.steps.machines import machine
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.cost.pools import PoolEnd, pool_exchange
from crossflow.engine.runs.apart import Hop, ping_pong
from crossflow.parallel.blocks import units
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.transformers import plan_of
from crossflow.workload.job import Chunk
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.sides import both_sides, feeds

# One step of 61 layers is as good as one of eight for the laws, and cheaper.
MODEL = {"model": "deepseek-v3", "layers": 8, "mtp_layers": 0}
WORK = {**MODEL, "task": "decode", "dtype": "fp8_block", "prompt": 2000, "output": 100, "global_batch": 1024}
JOINT = {"system": {"template": "h100-ib-cluster", "nodes": 1}, "software": "sglang", "workload": WORK, "strategy": "dp8-ep8"}
FAST = {"network": {"inter": {"bandwidth": "1e9 GB/s", "latency": "0 s"}}}


def pooled(experts=None, *, system=None, work=None, strategy="dp8", **more):
    """A step whose experts lie on as many devices more."""
    pool = {"strategy": "dp8-ep8", "micro_batches": 1} | (experts or {})
    data = {**JOINT, "strategy": strategy, "workload": {**WORK, "serving": {"experts": pool}, **(work or {})}, **more}
    return crossflow.from_dict({**data, "system": {**JOINT["system"], **(system or {})}})


def figures(scenario, points=None):
    """Columns of its score."""
    return crossflow.evaluate(scenario, points).columns()


def without_exchange(scenario, collective):
    """Time of a step but for what it waits for tokens on their way. [s]"""
    score = crossflow.evaluate(scenario)
    return (score.step_time - score.exposed_communication[collective])[0]


# ------------------------------------------------------------------------------------------------ both halves are the whole


def test_every_parameter_lies_on_one_side_and_no_unit_changes_its_place():
    whole = crossflow.from_dict(JOINT).job().model
    attending, feeding = both_sides(whole)
    assert sum(part.parameters for part in attending.parts) + sum(part.parameters for part in feeding.parts) == sum(
        part.parameters for part in whole.parts
    )
    assert (attending.embedding, attending.head) == (whole.embedding, whole.head)
    assert [name for name, _ in units(attending)] == [name for name, _ in units(feeding)] == [name for name, _ in units(whole)]
    for (_, own), (_, its) in zip(units(whole), units(feeding), strict=True):
        assert {matrix.name for matrix in its.matrices} == ({m.name for m in own.matrices} - {"router"} if feeds(own) else set())


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("joint", "attention", "experts"),
    [("dp8-ep8", "dp8", "dp8-ep8"), ("tp8", "tp8", "tp8"), ("tp2-dp4", "tp2-dp4", "tp2-dp4")],
)
def test_one_micro_batch_on_the_same_devices_takes_what_the_parts_of_the_joint_step_take(joint, attention, experts):
    """Attention and experts follow each other, as on one device; only what carries tokens between them is another.

    Not so where a stack has the ranks of an expert gather all tokens (`etp`): from other devices they come to their experts alone.
    """
    one = crossflow.from_dict({**JOINT, "strategy": joint})
    apart = without_exchange(pooled({"strategy": experts}, strategy=attention), "send_recv")
    assert apart == pytest.approx(without_exchange(one, "all_to_all"), rel=1e-9)


def test_operations_traffic_and_energy_of_both_pools_are_those_of_the_joint_step():
    one, both = (crossflow.evaluate(made) for made in (crossflow.from_dict(JOINT), pooled()))
    for name in ("flops", "memory_traffic"):
        assert getattr(both, name)[0] == pytest.approx(getattr(one, name)[0], rel=1e-9), name
    assert both.devices[0] == 2 * one.devices[0]
    assert both.mfu[0] * both.step_time[0] * 2 == pytest.approx(one.mfu[0] * one.step_time[0], rel=1e-9)


def test_weights_and_cache_of_both_pools_are_those_of_the_joint_devices():
    one, both = crossflow.evaluate(crossflow.from_dict(JOINT)), crossflow.evaluate(pooled())
    its = both.serving["experts_memory_bytes"][0] - both.memory["framework"][0]
    assert both.memory["kv_cache"][0] == one.memory["kv_cache"][0]
    weights = one.memory["weights"][0] - both.memory["weights"][0]
    assert 0.0 < weights < its < weights + 0.5e9  # beside activations, buffers and what fragments


# ------------------------------------------------------------------------------------------------ the exchange


def test_bytes_that_leave_one_pool_arrive_at_the_other_and_are_those_of_hand():
    """A token's vector once for each of its eight experts, of which each device has one, in 8 bits there and 16 back, in 5 of 8 layers; the
    others are dense, and have the vector once.
    """
    scenario = pooled({"strategy": "dp256-ep256", "micro_batches": 2})
    narrow = scenario.job().operand  # with its scales
    assert narrow == pytest.approx(1.0, rel=0.05)
    assert figures(scenario)["exchange_bytes"][0] == pytest.approx(1024 * 7168 * (narrow + 2) * (5 * 8 + 3), rel=1e-12)


def test_how_attention_is_divided_changes_no_byte_that_travels():
    few, many = (
        pooled({"strategy": "dp16-ep16", "micro_batches": 2}),
        pooled({"strategy": "dp16-ep16", "micro_batches": 4}, system={"nodes": 2}, strategy="dp16"),
    )
    assert figures(few)["exchange_bytes"][0] == pytest.approx(figures(many)["exchange_bytes"][0], rel=1e-12)


def test_a_group_of_ranks_gets_a_token_once_whatever_many_of_its_experts_it_has():
    """Drawn by hand: the groups that have any of four experts of sixteen, which lie in their order on four groups."""
    experts = {"count": 16, "active": 4, "ffn": 2048}
    work = {"model": "qwen3-30b-a3b", "layers": 4, "dtype": "bf16", "experts": experts}
    (found,) = figures(pooled({"strategy": "dp4-ep4"}, work=work))["exchange_bytes"]
    rng = np.random.default_rng(1)
    drawn = [len({expert // 4 for expert in rng.choice(16, 4, replace=False)}) for _ in range(4000)]
    assert found / (1024 * 2048 * 4 * 4) == pytest.approx(np.mean(drawn), rel=0.02)


def test_a_way_takes_its_bytes_over_the_slower_links():
    """Of sixteen devices each has half of the bytes that each of eight has."""
    slow, times = {"network": {"inter": {"bandwidth": "1 GB/s", "latency": "0 s"}}}, []
    for attending, feeding, devices in ((slow, {}, 8), ({}, slow, 16), (slow, slow, 8)):
        system = {**attending, "pools": {"experts": {"template": "h100-ib-cluster", **feeding}}}
        found = figures(pooled({"strategy": "dp16-ep16"}, system=system, work={"global_batch": 8192}))
        times.append(found["exchange_time_s"][0])
        assert times[-1] >= found["exchange_bytes"][0] / devices / 1e9
    assert times[0] == times[2] == pytest.approx(2.0 * times[1], rel=0.05)


def test_pools_that_share_a_node_use_its_links():
    inside, outside = (figures(pooled({"strategy": "dp4-ep4"}, system={"nodes": None, "devices": n}, strategy=f"dp{n}", work=SMALL))
        for n in (4, 8))  # fmt: skip
    assert inside["exchange_time_s"][0] < 0.5 * outside["exchange_time_s"][0]


SMALL = {"layers": 4, "global_batch": 512}


def test_faster_links_never_make_a_step_longer():
    rates = [f"{rate} GB/s" for rate in (1, 5, 25, 50, 100, 400, 1e6)]
    found = figures(pooled({"micro_batches": 3}), {"system.network.inter.bandwidth": rates})["step_time_s"]
    assert (np.diff(found) <= 1e-15).all()
    assert found[0] > 3 * found[-1]


def test_micro_batches_hide_exchanges_until_each_reads_all_weights_anew():
    """Two hide what one waits for; far more of them read the same weights once each, which a step of few requests cannot pay."""
    cuts = [1, 2, 3, 4, 64]
    found = figures(pooled(), {"workload.serving.experts.micro_batches": cuts})
    first, second, *_, last = found["step_time_s"]
    shown = found["breakdown_s.exposed_communication"]
    assert second < first < last
    assert shown[1] < 0.5 * shown[0]
    assert (found["attention_busy"] <= 1.0 + 1e-9).all()
    assert (found["experts_busy"] <= 1.0 + 1e-9).all()


# ------------------------------------------------------------------------------------------------ ping-pong


def hop(times, count=1.0):
    """A hop of one point."""
    attention, there, experts, back = (np.atleast_1d(np.asarray(time, dtype=float)) for time in times)
    return Hop(attention=attention, there=there, experts=experts, back=back, count=np.atleast_1d(np.asarray(count, dtype=float)))


def simulated(hops, many, steps=60):
    """Mean step of a plain simulation: stations take micro-batches in their order, one at a time."""
    free, ready, ends = [0.0] * 4, [0.0] * many, []
    for _ in range(steps):
        for times, count in hops:
            for _ in range(count):
                for i in range(many):
                    for station, time in enumerate(times):
                        ready[i] = free[station] = max(ready[i], free[station]) + time
        ends.append(ready[0])
    return (ends[-1] - ends[steps // 2]) / (steps - 1 - steps // 2)


def test_a_step_of_unlike_layers_is_that_of_a_plain_simulation():
    rng = np.random.default_rng(7)
    for many in (1, 2, 3, 5):
        for _ in range(6):
            layers = [(rng.uniform(0.1, 1.0, 4) * rng.choice([0.1, 1.0], 4), int(rng.integers(1, 6))) for _ in range(3)]
            found = ping_pong([hop(times, count) for times, count in layers], np.array([float(many)]))
            assert found[0] == pytest.approx(simulated(layers, many), rel=1e-6)


def test_equal_layers_take_what_the_busiest_takes_or_a_micro_batch_by_itself():
    """The closed form of the paper's conditions: with m >= 2 (1 + T_c / T_f) and T_c < T_f the slower side is always busy."""
    rng, layers = np.random.default_rng(3), 20.0
    many = rng.integers(1, 7, 200).astype(float)
    attention, experts, way = rng.uniform(0.2, 2.0, (3, 200))
    found = ping_pong([hop((attention, way, experts, way), layers)], many)
    slower = np.maximum(attention, experts)
    alone = attention + experts + 2.0 * way
    np.testing.assert_allclose(found, layers * np.maximum.reduce([many * slower, many * way, alone]), rtol=1e-9)
    full = (many >= 2.0 * (1.0 + way / slower)) & (way < slower)
    assert full.sum() > 20
    np.testing.assert_allclose(found[full], (layers * many * slower)[full], rtol=1e-9)


def test_a_pipeline_of_three_meets_the_published_budget_of_a_layer():
    """That of Step-3 (README of StepMesh, 2025): 61 layers in 50 ms leave 273 us each to attention, to experts and to both ways."""
    found = ping_pong([hop((273e-6, 91e-6, 273e-6, 182e-6), 61.0)], np.array([3.0]))
    assert found[0] == pytest.approx(61 * 819e-6, rel=1e-9)
    assert found[0] == pytest.approx(50e-3, rel=2e-3)
    assert ping_pong([hop((273e-6, 91e-6, 273e-6, 182e-6), 61.0)], np.array([2.0]))[0] == pytest.approx(61 * 819e-6, rel=1e-9)
    assert ping_pong([hop((273e-6, 91e-6, 273e-6, 200e-6), 61.0)], np.array([3.0]))[0] > found[0]


def test_a_way_that_never_ends_makes_a_step_without_end_and_no_other():
    assert ping_pong([hop(([1.0, 1.0], [np.inf, 0.5], [1.0, 1.0], [0.5, 0.5]), 3)], np.array([2.0, 2.0])).tolist() == [np.inf, 9.0]


# ------------------------------------------------------------------------------------------------ published figures


DOCS = Path(__file__).parents[1] / "docs"
LIES = "workload.serving.experts.strategy"


def told(row):
    """What the table of the how-to says was predicted, in the unit that stands there."""
    section = (DOCS / "how-to" / "serving.md").read_text(encoding="utf-8").split("## Attention on some devices, experts on others")[1]
    lines = [line for line in section.split("\n## ")[0].splitlines() if line.startswith(f"| {row}")]
    assert len(lines) == 1, row
    return float(lines[0].split("|")[4].split()[0].replace(",", ""))


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ("Step-3, 6,144 requests", {"software": "sglang"}),
        ("the same, attention without a measured library, `dp16-ep16`", {}),
        ("the same, attention without a measured library, `tp8-dp2-ep2`", {LIES: "tp8-dp2-ep2"}),
    ],
)
def test_rates_beside_published_ones_are_those_of_the_example(row, settings):
    score = crossflow.evaluate(crossflow.load(DOCS / "examples" / "step3.yaml").replace(settings))
    assert score.devices[0] == 32
    assert score.tokens_per_second[0] / 32 == pytest.approx(told(row), rel=1e-3)


def test_the_example_has_the_published_size():
    """321 billion parameters, with a tower for pictures that it leaves out (Step-3, abstract)."""
    found = crossflow.load(DOCS / "examples" / "step3.yaml").job().model.parameters
    assert found == pytest.approx(321e9, rel=0.02)


def test_messages_and_bytes_beside_published_ones_are_those_of_the_example():
    scenario = crossflow.load(DOCS / "examples" / "step3.yaml")
    job, runs_on = scenario.job(), machine(scenario, scenario.architecture)
    names = [name.split(".")[-1] for name, _ in units(job.model)]

    def exchanged(strategy):
        """Of a micro-batch of 128 tokens on each of sixteen devices."""
        plans, tokens = (Plan(dp=16), plan_of(strategy)), np.array([2048.0])
        ends = [PoolEnd(machine=runs_on, layout=replace(
            Layout.of([plan], tokens, 8), micro_batch=tokens / plan.dp, microbatches=np.ones(1))) for plan in plans]  # fmt: skip
        return pool_exchange(job, *ends)

    there, back = 1e6 * exchanged("dp16-ep16").time[:, names.index("mlp"), 0]
    assert there == pytest.approx(told("vector of 128 tokens, 8 bits"), abs=0.5)
    assert back == pytest.approx(told("vector of 128 tokens, 16 bits"), abs=0.5)
    assert exchanged("tp8-dp2-ep2").size[0, names.index("experts"), 0] / 16e6 == pytest.approx(told("bytes to a device"), abs=0.005)


# ------------------------------------------------------------------------------------------------ as a user


def test_points_score_as_each_by_itself():
    scenario = pooled({"micro_batches": 2}, system={"pools": {"experts": "h100-ib-cluster"}}, work=SMALL)
    points = {
        "workload.serving.experts.strategy": ["dp8-ep8", "dp16-ep16", "dp8-ep8", "tp2-dp4-ep4-etp2"],
        "workload.serving.experts.micro_batches": [1, 2, 3, 2],
        "workload.global_batch": [512, 256, 512, 512],
        "system.pools.experts.network.inter.bandwidth": ["50 GB/s", "25 GB/s", "10 GB/s", "50 GB/s"],
    }
    together = figures(scenario, points)
    assert len(set(together["step_time_s"])) == 4
    for i in range(4):
        alone = figures(scenario.replace({path: values[i] for path, values in points.items()}))
        for name in ("step_time_s", "energy_j", "devices", "exchange_bytes", "experts_busy", "experts_memory_bytes"):
            assert together[name][i] == pytest.approx(alone[name][0], rel=1e-9), name


def test_rent_adds_up_over_unlike_devices_and_a_search_finds_the_cheaper_division():
    priced = pooled(
        {"strategy": "dp16-ep16", "micro_batches": 2}, work=SMALL,
        system={"operation": {"price": "3 USD/hour"}, "pools": {"experts": {"template": "dgx-h200", "operation": {"price": "4 USD/hour"}}}},
    )  # fmt: skip
    score = crossflow.evaluate(priced)
    assert score.rent[0] * 3600 == pytest.approx(8 * 3 + 16 * 4)
    space = {
        "workload.serving.experts.strategy": ["dp8-ep8", "dp16-ep16", "dp32-ep32"],
        "workload.serving.experts.micro_batches": [1, 2, 3],
    }
    found = crossflow.optimise(priced, space, objectives={"usd_per_million_tokens": "minimise"}, evaluations=9)
    strategies, cuts = space.values()
    points = [(strategy, cut) for strategy in strategies for cut in cuts]
    every = figures(priced, {path: list(values) for path, values in zip(space, zip(*points, strict=True), strict=True)})
    assert found.best["usd_per_million_tokens"] == pytest.approx(every["usd_per_million_tokens"].min(), rel=1e-9)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_a_service_has_experts_apart_with_workers_for_its_prompts():
    serving = {"experts": {"strategy": "dp16-ep16", "micro_batches": 2}, "prefill": {"strategy": "tp8", "workers": 4}}
    work = {"task": "serving", "serving": serving, "layers": 4, "global_batch": 256}
    found = crossflow.predict(pooled(system={"pools": {"experts": "h100-ib-cluster"}}, work=work))
    assert found.feasible
    assert found.score.devices[0] == 8 + 16 + 32
    served = found.serving
    assert served["request_throughput_per_s"] * served["e2el_s"] == pytest.approx(256, rel=1e-3)  # Little's law
    assert 0.0 < served["experts_busy"] <= 1.0
    assert served["micro_batches"] == 2


def test_experts_that_do_not_fit_are_refused_with_the_cure():
    why = crossflow.evaluate(pooled({"strategy": "dp1"}, work={"layers": 61})).why(0)
    assert why is not None
    assert why.startswith("the experts do not fit in their devices; give more of them (serving.experts.strategy")


def test_trust_says_that_no_such_service_was_measured():
    found = crossflow.predict(pooled()).trust
    assert found.level == "extrapolated"
    assert "experts lie on devices of their own" in found.reason


BATCHES = {"workload.global_batch": [512, 1024]}
DECODE = "only task: serving and task: decode have it"


@pytest.mark.parametrize(
    ("experts", "change", "told"),
    [
        ({}, {"strategy": "dp8-ep8"}, "ep8-dp8-mb128 divides attention, which takes tp and dp only"),
        ({}, {"strategy": "tp4-pp2"}, "divides attention, which takes tp and dp only"),
        ({}, {"strategy": "dp8-mb32"}, "serving.experts.micro_batches says how a step is cut; leave mb32 out"),
        ({"strategy": "dp8-ep7"}, {}, "serving.experts.strategy:"),
        ({"strategy": "pp2-dp4-ep4"}, {}, "experts are divided by tp, dp and ep only"),
        ({"strategy": "ep"}, {}, "serving.experts.strategy:"),
        ({"strategy": "dp8-ep8-z3"}, {}, "experts are divided by tp, dp and ep only"),
        ({}, {"strategy": "dp8-z3"}, "divides attention, which takes tp and dp only"),
        ({"micro_batches": 0}, {}, "serving.experts.micro_batches"),
        ({"micro_batches": 64}, {"work": {"global_batch": 128}}, "make no 64 micro-batches; give fewer, or a larger workload.global_batch"),
        ({}, {"work": {"task": "prefill"}}, DECODE),
        ({}, {"work": {"task": "training", "dtype": "bf16"}, "software": None}, DECODE),
        ({}, {"work": {"task": "serving"}}, "give serving.prefill, whose workers read the prompts"),
        ({}, {"system": {"pools": {"experts": {"template": "dgx-h100", "devices": 8}}}}, "serving.experts.strategy says how many it has"),
        ({}, {"system": {"pools": {"ffn": "dgx-h100"}}}, "system.pools.ffn:"),
        ({}, {"run": {"samples": 1e6}, "system": {"pools": {"experts": "dgx-h100"}}}, "a whole run is priced on devices of one kind only"),
    ],
)
def test_what_makes_no_sense_is_refused(experts, change, told):
    with pytest.raises(CrossflowError) as error:
        crossflow.predict(pooled(experts, **change))
    assert told in str(error.value)


def test_a_pool_without_experts_is_refused():
    with pytest.raises(SpecError, match=r"system\.pools\.experts: no experts lie on it; give workload\.serving\.experts"):
        crossflow.from_dict({**JOINT, "system": {**JOINT["system"], "pools": {"experts": "dgx-h100"}}})


@pytest.mark.parametrize("column", ["experts_busy", "exchange_bytes"])
def test_a_step_without_pools_says_what_it_lacks(column):
    with pytest.raises(CrossflowError, match=rf"{column} needs workload\.serving\.experts"):
        crossflow.optimise(crossflow.from_dict(JOINT), BATCHES, objectives={column: "minimise"}, evaluations=2)


def test_first_tokens_of_a_step_that_only_writes_are_asked_of_a_service():
    with pytest.raises(CrossflowError, match=r"ttft_s needs workload\.task: serving, whose workers of serving\.prefill read prompts"):
        crossflow.optimise(pooled(), BATCHES, objectives={"ttft_s": "minimise"}, evaluations=2)


# ------------------------------------------------------------------------------------------------ request by request


def served(users, rounds=5, output=100, system=None, layers=5, **serving):
    """A service of equal requests, so many of them at all times, and their trace."""
    experts = {"strategy": "dp8-ep8", "micro_batches": 2}
    serving = {"router": "round_robin", "prefill": {"strategy": "tp8", "workers": 16}, "experts": experts, **serving}
    work = {**WORK, "task": "serving", "layers": layers, "output": output, "global_batch": users, "serving": serving}
    made = {**JOINT, "system": {**JOINT["system"], **(system or {})}, "strategy": "dp8", "workload": work}
    n = users * rounds
    trace = RequestTrace.of(np.arange(n) * (np.arange(n) < users) * 1e-3, np.full(n, 2000), np.full(n, output))
    return crossflow.from_dict(made), replace(trace, follows=np.concatenate([np.full(users, -1), np.arange(n - users)]))


@pytest.mark.thorough  # what it runs quicker tests run too
def test_equal_requests_that_are_replayed_have_the_times_of_the_steady_state():
    """Ranks that attend make every step together, and have as many requests each."""
    users = 128
    scenario, trace = served(users)
    steady, found = crossflow.predict(scenario), crossflow.serve(scenario, trace)
    late = (found.found.index >= 2 * users) & (found.found.index < 4 * users)
    for name, column in (("tpot", "tpot_s"), ("e2e", "e2el_s")):
        assert found.times[name][late].mean() == pytest.approx(steady.serving[column], rel=0.02), name
    assert found.power == pytest.approx(steady.to_dict()["power_w"], rel=0.06)  # a run begins and ends
    own = found.run.writers
    assert (own.count, own.fleet.devices[0], own.feeding.devices[0]) == (8, 1.0, 1.0)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_a_replay_pays_for_the_devices_of_the_experts():
    operation = {"operation": {"price": "2 USD/h"}}
    scenario, trace = served(64, rounds=2, system=operation)
    assert crossflow.serve(scenario, trace).rent == pytest.approx((8 + 8 + 16 * 8) * 2.0 / 3600.0)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_ranks_wait_for_the_one_with_most_requests():
    """Of 57 requests one rank of eight has eight, and the others seven: all tokens take as long as where each rank has eight."""
    scenario, times = served(64)[0], []
    for count in (8, 64, 57):
        trace = RequestTrace.of(np.zeros(count), np.full(count, 2000), np.full(count, 100))
        times.append(crossflow.serve(scenario, trace).latency["tpot_s"]["p50"])
    assert times[0] < 0.97 * times[1]
    assert times[2] == pytest.approx(times[1], rel=0.01)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_requests_that_lost_their_room_are_read_again_by_the_devices_that_attend():
    """Of a small cache; rows of a prompt travel to the experts as those of tokens that are written do."""
    scenario, trace = served(128, rounds=2, output=400, cache_tokens=30_000)
    small, large = crossflow.serve(scenario, trace), crossflow.serve(served(128, output=400)[0], trace)
    assert small.preemptions > 10 > large.preemptions == 0
    assert small.span > 1.05 * large.span
    job, own = scenario.job(), machine(scenario, scenario.architecture)
    few, many = (replace(Layout.of([plan_of("dp8")], np.array([8.0 * n]), own.node), micro_batch=np.full(1, n)) for n in (10.0, 74.0))
    ends = [PoolEnd(machine=own, layout=Layout.of([plan_of("dp8-ep8")], np.ones(1), own.node))]
    chunk = Chunk(pieces=np.ones(1), length=np.full(1, 64.0), before=np.zeros(1))
    read = pool_exchange(replace(job, chunk=chunk), PoolEnd(machine=own, layout=few), *ends)
    assert read.size == pytest.approx(pool_exchange(job, PoolEnd(machine=own, layout=many), *ends).size)


@pytest.mark.parametrize(
    ("serving", "told"),
    [
        ({"failures": {"mean_time": "1 h", "repair": "60 s"}}, "none fails or starts by itself; leave it out, or serving.experts"),
        (
            {"pools": {"spare": {"strategy": "tp1", "workers": 1}}},
            "engines of a pool hold a whole model, those of the strategy compute attention only",
        ),
    ],
)
def test_what_a_replay_of_two_pools_cannot_do_is_refused(serving, told):
    with pytest.raises(CrossflowError) as error:
        crossflow.serve(*served(64, **serving))
    assert told in str(error.value)


def test_experts_that_do_not_fit_are_no_service():
    scenario, trace = served(64, layers=20, experts={"strategy": "tp1"})
    found = crossflow.serve(scenario, trace)
    assert not found.feasible
    assert found.reason.startswith("the experts do not fit in their devices")


def test_parts_of_a_step_are_asked_of_a_steady_state():
    drawn = {"arrivals": {"law": "poisson", "rate": "40 1/s"}, "count": 50, "prompt": 2000, "output": 100}
    data = served(64)[0].document.data
    own = {key: value for key, value in data["workload"].items() if key not in ("prompt", "output", "global_batch")}
    made = crossflow.from_dict({**data, "workload": own, "requests": drawn})
    with pytest.raises(CrossflowError, match="experts_busy needs a steady state; leave out requests"):
        crossflow.optimise(made, {"strategy": ["dp8", "tp2-dp4"]}, objectives={"experts_busy": "minimise"}, evaluations=2)


# ------------------------------------------------------------------------------------------------ carbon of both pools


def test_carbon_takes_the_operation_of_each_pool():
    """By hand, of rated powers: 8 devices attend, 16 hold experts; what a pool leaves open of the site is that of the system."""
    rated = {"device_power": "1 kW", "host_power": "0 W"}

    site = {**rated, "carbon_intensity": "400 g/kWh", "pue": 1.5}
    pools = {"experts": {"template": "h100-ib-cluster", "operation": rated}}
    made = pooled({"strategy": "dp16-ep16"}, system={"operation": site, "pools": pools})
    its = "system.pools.experts.operation"

    def carbon(points=None):
        found = figures(made, points)
        return found["carbon_kg"] / found["step_time_s"] * 3600.0  # of an hour

    assert carbon() == pytest.approx([0.4 * 1.5 * 24])
    pues = carbon({f"{its}.pue": [3.0, 1.5], "system.operation.pue": [1.5, 3.0]})
    assert pues == pytest.approx([0.4 * (1.5 * 8 + 3.0 * 16), 0.4 * (3.0 * 8 + 1.5 * 16)])
    assert carbon({f"{its}.carbon_intensity": ["800 g/kWh"]}) == pytest.approx([1.5 * (0.4 * 8 + 0.8 * 16)])
    assert carbon({f"{its}.device_power": ["500 W"], f"{its}.host_power": ["8 kW"]}) == pytest.approx([0.4 * 1.5 * (8 + 16 * 1.5)])


def test_carbon_of_readers_takes_the_operation_of_their_pool():
    site = {"device_power": "1 kW", "host_power": "0 W", "carbon_intensity": "400 g/kWh"}

    def carbon(pue):
        work = {"model": "llama2-7b", "task": "serving", "prompt": 500, "output": 100, "global_batch": 16}
        pool = {"template": "dgx-h100", "operation": {**site, "pue": pue}}
        found = figures(crossflow.from_dict({
            "system": {"template": "dgx-h100", "nodes": 1, "operation": site, "pools": {"prefill": pool}},
            "workload": {**work, "dtype": "bf16", "serving": {"prefill": {"workers": 2, "strategy": "tp2"}}}, "strategy": "tp8",
        }))  # fmt: skip
        return found["carbon_kg"][0] / found["step_time_s"][0] * 3600.0

    assert carbon(1.0) == pytest.approx(0.4 * 12)
    assert carbon(2.0) == pytest.approx(0.4 * (8 + 2.0 * 4))


def test_carbon_of_nodes_by_their_load_takes_the_energy_of_each_pool():
    """Without a base and fans, facilities take what the devices draw: intensities of zero tell the pools apart."""
    load = {"base": "0 W", "fans": 0, "supply": 1}

    site = {"template": "h100-ib-cluster", "node_load": load, "operation": {"carbon_intensity": "1 kg/kWh"}}
    made = pooled(system={"node_load": load, "operation": site["operation"], "pools": {"experts": site}})
    paths = ("system.operation.carbon_intensity", "system.pools.experts.operation.carbon_intensity")
    found = figures(made, dict(zip(paths, (["1 kg/kWh", "1 kg/kWh", "0 kg/kWh"], ["1 kg/kWh", "0 kg/kWh", "1 kg/kWh"]), strict=True)))
    (both, attention, experts), energy = found["carbon_kg"], found["energy_j"][0] / 3.6e6
    assert [both, attention + experts] == pytest.approx([energy, energy])
    assert experts > attention > 0.2 * energy


# ------------------------------------------------------------------------------------------------ memory of both pools


def test_what_is_left_of_memory_is_that_of_the_fuller_pool():
    small = {"template": "h100-ib-cluster"}
    made = pooled(system={"pools": {"experts": small}})
    needed, total = crossflow.evaluate(made).serving["experts_memory_bytes"][0], 80 * 2**30
    assert crossflow.evaluate(made).memory_left[0] == pytest.approx(1 - max(needed, crossflow.evaluate(made).memory_needed[0]) / total)
    path = "system.pools.experts.levels.memory.capacity"
    score = crossflow.evaluate(made, {path: [f"{needed * part / 2**30} GiB" for part in (1.01, 1.5, 0.9)]})
    assert score.memory_left == pytest.approx([1 - 1 / 1.01, 1 - 1 / 1.5, 1 - 1 / 0.9])
    assert [*score.tight()] == [True, False, False]
    assert [*score.tight(0.4)] == [True, True, False]
    assert [*score.fits] == [*score.feasible] == [True, True, False]


# ------------------------------------------------------------------------------------------------ nothing hidden


def test_with_nothing_hidden_the_step_is_the_sum_of_both_pools_and_their_exchange():
    for many in (1, 3):
        score = crossflow.evaluate(pooled({"micro_batches": many}, work={"task": "decode"}))
        busy = (score.serving["attention_busy"] + score.serving["experts_busy"]) * score.step_time
        both = busy + sum(score.communication.values())
        assert score.serialized == pytest.approx(both, rel=1e-9), many
        if many == 1:  # where one pool waits for the other all the time, no more than the time of a host hides
            assert score.serialized == pytest.approx(score.step_time * (1 + score.bound["host"]), rel=1e-9)
        else:
            assert score.serialized > 1.5 * score.step_time


def test_the_table_by_layer_type_says_that_pools_work_beside_each_other(tmp_path, capsys):
    path = pooled({"micro_batches": 3}).save(tmp_path / "apart.yaml")
    main(["predict", str(path)])
    assert "By layer type  both pools, beside each other" in capsys.readouterr().out
