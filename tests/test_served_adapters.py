"""Services with many low-rank adapters beside one model: thin products of groups, memory, loads of adapters that have no slot."""

import heapq
from itertools import pairwise

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.engine.service.adapters import AdapterSlots
from crossflow.engine.service.cache import PrefixCache
from crossflow.engine.service.policies import POLICIES
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.ticket import Limits
from crossflow.parallel.blocks import block_program
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.kernels import Product
from crossflow.workload.adapters import AdapterMix
from crossflow.workload.jobs import job_of
from tests import naive_service
from tests.test_memory import layout_of, stack_of
from tests.test_service_events import poisson, table, through

WORK = {"model": "llama3-8b", "task": "serving", "dtype": "bf16", "prompt": 500, "output": 200, "global_batch": 32}
OWN = 41_943_040  # parameters of an adapter of rank 16 of all linear layers of Llama 3 8B, as PEFT prints them


def scenario(served=None, strategy="tp1", requests=None, rank=16, **more):
    work = WORK | {"serving": ({"adapters": served} if served else {}) | more.pop("serving", {})} | more
    work = work if served is None else {"adapters": {"rank": rank}} | work
    if requests is not None:
        work = {key: value for key, value in work.items() if key not in ("prompt", "output", "global_batch")}
    data = {
        "name": "s",
        "system": {"template": "dgx-h100", "devices": 1 if strategy == "tp1" else 4},
        "workload": work,
        "strategy": strategy,
    }
    return crossflow.from_dict(data | {"software": "vllm"} | ({} if requests is None else {"requests": requests}))


def steady(*args, **more):
    return crossflow.predict(scenario(*args, **more)).serving


@pytest.mark.parametrize(("count", "share", "skew", "requests"), [(4, 1.0, 0.0, 3), (20, 0.5, 1.0, 12), (1, 1.0, 0.0, 5)])
def test_different_adapters_among_requests_are_those_of_draws(count, share, skew, requests):
    weights = np.arange(1, count + 1.0) ** -skew
    drawn = np.random.default_rng(0).choice(count + 1, (20_000, requests), p=[1 - share, *(share * weights / weights.sum())])
    mean = np.mean([len(set(row) - {0}) for row in drawn.tolist()])
    found = AdapterMix(count=count, share=share, skew=skew, slots=count).distinct(np.array([float(requests)]))
    assert float(found[0]) == pytest.approx(mean, rel=0.01)


def test_products_of_adapters_read_each_different_one_once():
    """By hand: 2 factors of 7 matrices of a layer, of U adapters; operations of the rows, however many adapters there are."""
    for count in (1, 8, 1000):
        job = job_of(scenario({"count": count}).workload)
        program = block_program(job, layout_of(Plan()), stack_of("vllm"))
        thin = [kernel for kernel in program.kernels if isinstance(kernel, Product) and (np.all(kernel.n == 16) or np.all(kernel.k == 16))]
        assert len(thin) == 8  # both of a joined matrix for queries, keys and values, of outputs, of a gated MLP, and of its end
        size = sum(float(np.ravel(one.batch * one.n * one.k)[0]) for one in thin)
        flops = sum(float(np.ravel(one.flops)[0]) for one in thin)
        requests = layout_of(Plan()).micro_batch
        different = float(job.adapters.distinct(requests)[0])
        assert size == pytest.approx(different * OWN / 32, rel=1e-9)
        assert flops == pytest.approx(2.0 * float(requests[0]) * OWN / 32, rel=1e-9)


def test_one_adapter_for_all_is_the_model_with_thin_products_beside():
    plain, one = steady(), steady({"count": 1})
    assert plain["tpot_s"] < one["tpot_s"] < 1.35 * plain["tpot_s"]
    merged = crossflow.predict(scenario(adapters={"rank": 16})).serving  # in the weights
    assert merged["tpot_s"] == plain["tpot_s"]


@pytest.mark.thorough  # what it runs quicker tests run too
def test_more_adapters_more_of_their_requests_and_higher_ranks_are_never_faster():
    for rows in (
        [{"count": count} for count in (1, 8, 256)],
        [{"count": 64, "skew": skew} for skew in (2.0, 0.0)],
        [{"count": 64, "share": share} for share in (0.1, 1.0)],
        [{"count": 64, "slots": slots} for slots in (1, 64)],
    ):
        times = [steady(row)["tpot_s"] for row in rows]
        assert all(one < other for one, other in pairwise(times)), rows
    ranks = [steady({"count": 8}, rank=rank)["tpot_s"] for rank in (8, 64)]
    assert ranks[0] < ranks[1]


def test_points_together_are_points_alone():
    counts = [4, 64, 300]
    found = evaluate(scenario({"count": 4}), {"workload.serving.adapters.count": counts}).serving["tpot_s"]
    assert found.tolist() == pytest.approx([steady({"count": count})["tpot_s"] for count in counts], rel=1e-9)
    assert found[0] < found[1] < found[2]


@pytest.mark.parametrize(("strategy", "ranks"), [("tp1", 1), ("tp1-pp4", 4)])
def test_memory_holds_as_many_adapters_as_there_are_slots(strategy, ranks):
    plain, few, all_ = (
        crossflow.predict(scenario(row, strategy)).to_dict()["memory"]["weights_bytes"]
        for row in (None, {"count": 64, "slots": 8}, {"count": 64})
    )
    assert few - plain == pytest.approx(8 * 2 * OWN / ranks, rel=1e-9)
    assert all_ - plain == pytest.approx(64 * 2 * OWN / ranks, rel=1e-9)


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["vllm", "tensorrt-llm"])
@pytest.mark.parametrize(("pages", "slots"), [(10**6, 4), (150, 4), (10**6, 1), (10**6, 12)])
def test_jumps_with_slots_of_adapters_are_what_single_steps_are(kind, pages, slots):
    """Requests without a slot wait and let others pass; of idle adapters the one that was used longest ago goes."""
    trace, steps = poisson(20.0, 120), table()
    chosen = (np.random.default_rng(5).integers(0, 13, len(trace)) - 1).tolist()
    limits = {"chunk": 2048, "requests": 64, "pages": pages, "page": 16}
    engine = Replica(steps, Limits(**limits), POLICIES[kind], PrefixCache(1), AdapterSlots(chosen, slots, 0.03))
    found = through(trace, engine)
    naive = naive_service.Naive(steps, kind, adapters=chosen, slots=slots, fetch_adapter=0.03, **limits)
    items, single = naive_service.run(trace, naive)
    assert found.first == pytest.approx([each.first for each in items], rel=1e-9)
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    assert found.jumps[0].steps.sum() == single
    assert found.loads == naive.loads
    assert (found.loads == 0) == (slots == 12)  # as many as adapters


@pytest.mark.thorough  # what it runs quicker tests run too
def test_replays_agree_with_the_steady_state_and_load_what_has_no_slot():
    drawn = {"arrivals": {"law": "poisson", "rate": "8 1/s"}, "count": 250, "prompt": 500, "output": 200, "seed": 1}
    closed = steady({"count": 64}, serving={"arrival_rate": "8 1/s"})
    all_, few, skewed = (crossflow.serve(scenario(row, requests=drawn)) for row in (
        {"count": 64}, {"count": 64, "slots": 24}, {"count": 64, "slots": 24, "skew": 1.5}))  # fmt: skip
    assert all_.latency["tpot_s"]["mean"] == pytest.approx(closed["tpot_s"], rel=0.05)
    assert all_.found.loads == 0 < skewed.found.loads < few.found.loads
    assert few.latency["ttft_s"]["mean"] > all_.latency["ttft_s"]["mean"]
    assert few.to_dict()["adapter_loads"] == few.found.loads
    assert crossflow.serve(scenario(requests=drawn)).to_dict()["adapter_loads"] is None


@pytest.mark.thorough  # what it runs quicker tests run too
def test_fewer_slots_never_answer_more_requests():
    slots = {"workload.serving.adapters.slots": [1, 2, 8, 16, 24, 32, 64]}
    for skew in (0.0, 1.0):
        row = {"count": 64, "skew": skew, "slots": 2}
        found = evaluate(scenario(row, global_batch=64), slots).serving["request_throughput_per_s"].tolist()
        assert all(one <= other * (1.0 + 1e-4) for one, other in pairwise(found))
        assert found[0] < 0.3 * found[-1]
    waits = evaluate(scenario(row, serving={"arrival_rate": "5 1/s"}), slots).serving["ttft_s"]
    assert waits[0] > waits[1] > waits[2]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("slots", "skew"), [(2, 0.0), (4, 1.0)])
def test_requests_wait_for_slots_as_in_a_replay(slots, skew):
    row = {"count": 64, "slots": slots, "skew": skew}
    closed = steady(row, global_batch=48)
    found = crossflow.serve(scenario(row, requests={"users": {"number": 48}, "count": 600, "prompt": 500, "output": 200, "seed": 1}))
    assert found.latency["tpot_s"]["mean"] == pytest.approx(closed["tpot_s"], rel=0.05)
    assert found.latency["ttft_s"]["mean"] == pytest.approx(closed["ttft_s"], rel=0.13)


def test_waits_for_slots_are_those_of_events():
    """Slots by events: an adapter keeps its own while it has requests, and the one whose first request came first has the next."""
    mix, rng = AdapterMix(count=40, share=1.0, skew=0.0, slots=4), np.random.default_rng(1)
    arrival, kind, stay = np.cumsum(rng.exponential(0.05, 20_000)), rng.integers(0, 40, 20_000), 1.0
    until, queue, waits, free = {}, {}, [], 4
    events = [(time, 0, int(one)) for time, one in zip(arrival.tolist(), kind.tolist(), strict=True)]
    heapq.heapify(events)
    while events:
        now, ended, one = heapq.heappop(events)
        if ended:
            if until[one] > now:
                continue
            del until[one]
            free += 1
        elif one in until:
            waits.append(0.0)
            until[one] = now + stay
            heapq.heappush(events, (now + stay, 1, one))
        else:
            queue.setdefault(one, []).append(now)
        while free and queue:
            one = next(iter(queue))
            waits.extend(now - time for time in queue.pop(one))
            free -= 1
            until[one] = now + stay
            heapq.heappush(events, (now + stay, 1, one))
    assert np.mean(waits[5000:]) == pytest.approx(float(mix.wait(np.full(1, 20.0), np.ones(1))[0]), rel=0.1)


def test_loads_from_the_host_are_said_to_be_left_out():
    said = "loads of adapters from the host are counted in replays only"
    assert [any(said in note for note in crossflow.predict(scenario(row)).notes) for row in ({"count": 8, "slots": 2}, {"count": 8})] == [
        True, False,
    ]  # fmt: skip


def test_prompts_share_blocks_only_with_those_of_their_adapter():
    talk = {"arrivals": {"law": "poisson", "rate": "4 1/s"}, "count": 150, "prompt": 500, "output": 20, "seed": 1,
            "shared_prefix": {"tokens": 400}}  # fmt: skip
    one, many = (crossflow.serve(scenario({"count": count}, requests=talk)).cache["hit_rate"] for count in (1, 64))
    assert one == pytest.approx(400 / 900, rel=0.01)  # of all but the first
    assert 0.1 < many < one - 0.1


@pytest.mark.parametrize(
    ("served", "more", "sentence"),
    [
        ({"count": 4}, {"adapters": None}, "serving.adapters: adapters says what one of them is; give workload.adapters"),
        ({"count": 4, "slots": 5}, {}, "there are 4 adapters, and slots for 5; lower it, or leave it out"),
        ({"count": 1, "skew": 1.0}, {}, "there is one adapter, which all use alike; leave it out"),
        ({"count": 0}, {}, "serving.adapters.count"),
        ({"count": 4, "share": 0.0}, {}, "serving.adapters.share"),
        ({"count": 4}, {"adapters": {"rank": 16, "base": "nf4"}}, "a service keeps weights in weight_dtype; leave out adapters.base"),
        ({"count": 4}, {"task": "decode"}, "serving.adapters: only task: serving has it, and task is decode"),
    ],
)
def test_what_adapters_of_a_service_do_not_go_with_is_refused(served, more, sentence):
    with pytest.raises((SpecError, CrossflowError), match=sentence):
        scenario(served, **more)
