"""Timelines: laws of streams, dependencies and sums, what predictions say, uneven worlds, and the heap engine as oracle."""

import itertools
import math

import numpy as np
import pytest
from lags import by_slot
from sampled import fewer

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.answers.evaluation.timelines import simulate as timeline
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.engine.events import run_tasks
from crossflow.engine.runs.uneven import Uneven, load_uneven
from crossflow.engine.timeline.flat import Run, timeline_of
from crossflow.engine.timeline.pipeline import slot_ends, uneven_times, walk_of
from crossflow.engine.timeline.record import COMMUNICATION, COMPUTE, DATA, HOST, TENSOR, WAIT, WORK, Device
from crossflow.parallel.strategy.schedules import RULES, pipeline_order

GPT = {
    "model": "transformer", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "gated": False, "vocabulary": 32000, "sequence": 512,
    "positions": "learned", "norm": "layernorm", "biases": True, "tied_embeddings": True, "global_batch": 32, "dtype": "bf16",
}  # fmt: skip
PLANS = [
    "dp1", "tp8", "tp2-sp-cp2-dp4-z1", "cp4-pp2-dp2-full", "dp16-z2-mb2", "dp16-z3-full", "dp16-z3-g8", "pp4-dp4", "tp2-pp4-dp2-v2-full",
    "tp2-pp4-dp2-gpipe", "tp2-pp2-dp4-v2-first1-last3-sp", "tp4-atp1-mlptp2-dp4-mb4-sp", "dp16-z3-unsharded:mlp+embedding-full",
    "pp8-dp2-zbh1", "tp2-pp4-dp1-chimera", "tp2-pp4-dp2-dualpipe", "pp4-dp4-z1-dualpipe", "tp2-pp4-dp2-v2-zbv", "pp4-dp4-z1-v2-dualpipev",
    "pp2-dp2-z1-offload:optimizer+activations", "dp8-z3-offload:optimizer+weights", "tp2-pp2-dp2-v2-z3-sp", "pp4-dp2-z3-full",
    "pp2-dp4-z3-g2-offload:optimizer+weights", "pp2-dp4-z3-unsharded:embedding-gpipe", "dp16-z3-g8-ag2-apart:mlp",
    "tp4-atp2-dp1-mb2-sp-distant:attention", "tp2-pp2-dp2-v3", "pp4-dp4-layers:0+7+1+0", "tp2-pp4-dp2-v2-sp-layers:3+0+1x5+0",
]  # fmt: skip
STACKS = ["megatron-lm-2022", "megatron-core", "nemo", "nanotron", "pytorch-fsdp", "pytorch-fsdp-2022", "ideal", "pytorch"]
OTHERS = [
    {"system": {"template": "pathfinder", "devices": 32}, "workload": "lstm-16k", "strategy": "RC-2-2-d8"},
    {"system": {"template": "pathfinder", "devices": 8}, "workload": "lstm-16k", "strategy": "d4-p2"},
    {"system": "zionex", "workload": "dlrm-a", "strategy": {"dense": ["ddp"], "embedding": ["mp"]}},
    {"system": "zionex", "workload": "dlrm-a", "strategy": {"dense": ["fsdp", "ddp"], "embedding": ["mp"]}},
    {
        "system": "dgx-h100",
        "workload": {"model": "llama2-7b", "task": "decode", "global_batch": 8, "prompt": 64, "output": 8},
        "strategy": "tp4-dp2",
    },
]


def scenario(strategy, software="megatron-lm-2022", **workload):
    devices = {"system": {"template": "dgx-a100", "nodes": None}}
    return crossflow.from_dict({**devices, "workload": {**GPT, **workload}, "strategy": strategy, "software": software})


# Every plan on one of five stacks, or on two: the next one starts where the last one ended.
MADE = [(plan, STACKS[(2 * i + j) % 5]) for i, plan in enumerate(PLANS) for j in range(fewer(2, 1))]


@pytest.fixture(scope="module", params=MADE, ids="-".join)
def made(request):
    strategy, software = request.param
    given = scenario(strategy, software)
    return given, timeline(given)


@pytest.fixture(scope="module", params=range(len(OTHERS)))
def other(request):
    given = crossflow.from_dict(OTHERS[request.param])
    return given, timeline(given)


# ------------------------------------------------------------------------------------------ laws


def overlaps(found):
    """Longest overlap of two events on one stream of one device. [s]"""
    worst = 0.0
    for device in range(len(found.devices)):
        events = found.events(device)
        for stream in np.unique(events.stream):
            start, end = (part[events.stream == stream] for part in (events.start, events.end))
            worst = max(worst, float(np.max(end[:-1] - start[1:], initial=0.0)))
    return worst


@pytest.mark.cases(18)
@pytest.mark.slow
def test_a_timeline_takes_as_long_as_its_prediction(made):
    given, found = made
    assert found.total == pytest.approx(crossflow.predict(given).step_time, rel=1e-9)


@pytest.mark.slow
def test_no_two_events_of_a_stream_overlap(made):
    assert overlaps(made[1]) <= 1e-9 * made[1].total


def test_every_dependency_holds(made):
    slots = made[1].slots
    waits = slots.source >= 0
    assert (slots.start[waits] >= slots.end[slots.source[waits]] + slots.lag[waits] - 1e-12).all()
    earlier, later = slots.joins
    assert (slots.start[later] >= slots.end[earlier] - 1e-9 * made[1].total).all()


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("virtual_stages", [2, 3])
@pytest.mark.parametrize(("layers", "ends"), [(12, (1, 1)), (12, (4, 0)), (15, (3, 1)), (15, (0, 2)), (10, (1, 0))])
def test_memory_of_uneven_chunks_is_that_of_the_fullest_moment(layers, ends, virtual_stages):
    strategy = {"tp": 2, "pp": 2, "dp": 2, "virtual_stages": virtual_stages, "sequence_parallel": True}
    given = scenario({**strategy, "first_stage": ends[0], "last_stage": ends[1]}, "megatron-core", layers=layers)
    assert max(held.max() for _, held in timeline(given).memory) == pytest.approx(crossflow.predict(given).score.memory_needed[0], rel=1e-9)


@pytest.mark.parametrize("strategy", ["pp8-dp4-mb4-z1", "pp4-dp2-v2-mb2", "pp4-dp2-gpipe"])
def test_activations_on_the_host_are_no_more_than_there_are(strategy):
    given = scenario(f"{strategy}-offload:activations", "megatron-core", global_batch=64)
    assert max(held.max() for _, held in timeline(given).memory) == pytest.approx(crossflow.predict(given).score.memory_needed[0], rel=1e-9)


@pytest.mark.parametrize("strategy", ["pp4-dp4-v2-z3", "tp2-pp4-dp2-z3-sp-full", "pp2-dp4-z3-g2-offload:optimizer+weights"])
def test_a_stage_without_the_vocabulary_does_not_gather_it(strategy):
    """Where weights are gathered ahead, each stage waits for its own first gather and its own last reduction."""
    given = scenario(strategy, "pytorch-fsdp", vocabulary=512000)
    found = crossflow.predict(given)
    assert timeline(given).total == pytest.approx(found.step_time, rel=1e-9)
    sent, exposed = found.score.communication, found.score.exposed_communication
    assert all(exposed[name][0] <= sent[name][0] * (1 + 1e-9) for name in sent)


def test_a_stage_that_has_nothing_to_do_is_there():
    """An encoder is done where its decoder writes."""
    workload = {"model": "t5-large", "task": "decode", "global_batch": 32, "prompt": 128, "output": 64}
    given = crossflow.from_dict({"system": "dgx-h100", "workload": workload, "strategy": "pp4-dp2"})
    found = timeline(given)
    assert found.activity()["busy"].min() == 0
    assert found.total >= crossflow.predict(given).step_time * (1 - 1e-9)  # whose pipeline is full of other requests' tokens


def test_slots_of_a_device_follow_each_other(made):
    found = made[1]
    for device in range(len(found.devices)):
        mine = found.slots_of(device)
        assert (found.slots.start[mine[1:]] >= found.slots.end[mine[:-1]] - 1e-12).all()


def test_activities_add_up_to_the_step_on_every_device(made):
    found = made[1]
    parts = found.activity()
    np.testing.assert_allclose(sum(parts.values()), found.total, rtol=1e-9)
    assert all((part >= 0).all() for part in parts.values())


@pytest.mark.cases(1)
@pytest.mark.parametrize("ends", [{"first_stage": 4, "last_stage": 1}, {"first_stage": 1, "last_stage": 4}, {}])
@pytest.mark.parametrize("frozen", [(), ("embedding", "layers:0-2")])
def test_the_breakdown_is_that_of_the_busiest_stage(ends, frozen):
    given = scenario({"tp": 2, "pp": 4, "dp": 2, **ends}, frozen=list(frozen))
    found, breakdown = timeline(given).activity(), crossflow.predict(given).to_dict()["breakdown_s"]
    stage = sum(values for kind, values in found.items() if kind not in ("bubble", "imbalance")).argmax()
    assert breakdown["compute"] + breakdown["memory_bound_compute"] <= found["busy"][stage] <= sum(breakdown.values()) - breakdown["bubble"]
    idle = found["bubble"][stage] + found["imbalance"][stage]
    assert breakdown["bubble"] == pytest.approx(idle, abs=0.02 * sum(breakdown.values()))


@pytest.mark.cases(21)
@pytest.mark.slow
def test_busy_time_is_that_of_the_prediction(made):
    given, found = made
    parts = crossflow.predict(given).to_dict()["breakdown_s"]
    computes = parts["compute"] + parts["memory_bound_compute"]
    assert found.activity()["busy"].max() >= computes * (1 - 1e-9)


def test_ranks_are_all_there_once(made):
    given, found = made
    ranks = [rank for device in found.devices for rank in device.ranks]
    assert sorted(ranks) == list(range(given.devices))


@pytest.mark.slow
def test_memory_peaks_where_the_prediction_says(made):
    """Of several chunks a stage, the prediction takes the largest for all."""
    given, found = made
    peak = max(float(held.max()) for _, held in found.memory)
    needed = float(crossflow.predict(given).score.memory_needed[0])
    assert needed * (0.95 if "-v2" in str(given.strategy) else 1 - 1e-9) <= peak <= needed * (1 + 1e-9)


def test_the_critical_path_has_no_slack_and_spans_the_step(made):
    found = made[1]
    path = found.critical_path()
    slots = found.slots
    assert slots.end[path[-1]] == pytest.approx(found.total)
    assert found.slack[path].max() <= 1e-6 * found.total
    gaps = slots.start[path[1:]] - slots.end[path[:-1]] - np.where(slots.source[path[1:]] == path[:-1], slots.lag[path[1:]], 0.0)
    assert slots.start[path[0]] + gaps.sum() <= 1e-6 * found.total


def test_events_in_pieces_are_the_events(made):
    found = made[1]
    whole = found.events(0)
    parts = list(found.chunks(0, most=97))
    np.testing.assert_allclose(np.sort(np.concatenate([part.start for part in parts])), np.sort(whole.start))
    assert sum(len(found.events(i)) * len(device.ranks) for i, device in enumerate(found.devices)) == found.event_count


# ------------------------------------------------------------------------------------------ other workloads


@pytest.mark.cases(1)
def test_other_workloads_take_as_long_as_predicted(other):
    given, found = other
    assert found.total == pytest.approx(crossflow.predict(given).step_time, rel=1e-9)
    np.testing.assert_allclose(sum(found.activity().values()), found.total, rtol=1e-9)


def test_exposed_communication_of_other_workloads_is_that_of_the_prediction(other):
    given, found = other
    exposed = crossflow.predict(given).to_dict()["breakdown_s"]["exposed_communication"]
    if len(found.devices) == 1:
        assert found.activity()["exposed_communication"][0] == pytest.approx(exposed, rel=1e-3, abs=1e-9)


def test_no_two_kernels_of_other_workloads_overlap(other):
    found = other[1]
    for device in range(len(found.devices)):
        events = found.events(device)
        kernels = events.stream == COMPUTE
        assert (events.start[kernels][1:] >= events.end[kernels][:-1] - 1e-9 * found.total).all()


def test_a_timeline_of_single_events_by_hand():
    """A kernel of 4 s, a sum from 2 to 6 s whose last rank is 1 s late, a kernel to 8 s, the host for a second, a last kernel."""
    runs = [
        Run(device=0, stream=COMPUTE, name="first", start=0.0, end=4.0), Run(device=0, stream=DATA, name="sum", start=2.0, end=6.0),
        Run(device=0, stream=DATA, name="late", start=6.0, end=7.0, waits=True),
        Run(device=0, stream=COMPUTE, name="second", start=7.0, end=8.0, label="last layer"),
        Run(device=0, stream=HOST, name="call", start=7.5, end=9.0, beside=True),
        Run(device=0, stream=COMPUTE, name="first", start=9.0, end=11.0),
    ]  # fmt: skip
    here = (np.zeros(1), np.ones(1))
    found = timeline_of(runs, [Device(name="one", stage=0, ranks=[0])], title="", total=12.0, node=1, memory=[here], capacity=1.0)
    events = found.events(0)
    columns = (events.name, events.stream, events.kind, events.start, events.end)
    assert {(found.names[name], *rest) for name, *rest in zip(*(column.tolist() for column in columns), strict=True)} == {
        ("first", COMPUTE, WORK, 0.0, 4.0), ("sum", DATA, COMMUNICATION, 2.0, 6.0), ("late", DATA, WAIT, 6.0, 7.0),
        ("second", COMPUTE, WORK, 7.0, 8.0), ("call", HOST, COMMUNICATION, 7.5, 9.0), ("first", COMPUTE, WORK, 9.0, 11.0),
    }  # fmt: skip
    passes = {found.passes[slot].label for slot in found.slots.passed}
    assert passes == {"first", "sum", "late", "last layer", "call"}
    assert {kind: time.item() for kind, time in found.activity().items()} == {
        "busy": 7.0, "exposed_communication": 2.0, "waiting": 1.0, "host": 1.0, "bubble": 1.0, "imbalance": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(("held", "told"), [(50, "does not fit: two needs 50 GiB, 10 GiB more than the 40 GiB of a device"), (40, None)])
def test_the_fullest_devices_say_how_much_more_they_need(held, told):
    runs = [Run(device=i, stream=COMPUTE, name="all", start=0.0, end=1.0) for i in range(2)]
    memory = [(np.array([0.0, 0.5]), 2.0**30 * np.array([most, 10])) for most in (30, held)]
    devices = [Device(name=name, stage=0, ranks=[i]) for i, name in enumerate(("one", "two"))]
    assert timeline_of(runs, devices, title="", total=1.0, node=2, memory=memory, capacity=40 * 2.0**30).overfull == told


# ------------------------------------------------------------------------------------------ oracle


def on_the_heap(walk, stages, durations, lags):
    """Start and end of every slot, event by event, transfers as tasks of their own."""
    count = len(walk.before)
    tasks, after, where = durations.tolist(), [()] * count, stages.tolist()
    for slot in range(count):
        source = int(walk.source[slot])
        if source < count:
            after[slot] = (source,)
            if walk.crosses[slot]:
                tasks.append(float(lags[slot]))
                after.append((source,))
                where.append(("wire", slot))
                after[slot] = (len(tasks) - 1,)
    # The heap runs the tasks of a resource in the order given: that of the walk, which respects each stage's own.
    start, end = run_tasks(tasks, after, where)
    return start[:count], end[:count]


@pytest.mark.cases(7)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (6, 12)])
def test_walked_schedules_are_those_of_the_heap(rule, p, m):
    """Random durations by row and kind, and random times of boundaries."""
    order, rng = pipeline_order(rule, p, 1, m), np.random.default_rng(p * m)
    durations = rng.uniform(0.2, 2.0, (3 * order.rows, 1))
    walk, late = walk_of(order), by_slot(order, rng.random((order.rows, 1)), durations)
    ends = slot_ends(walk, durations, late)[:-1, 0]
    _, heap = on_the_heap(walk, walk.kind_row % order.rows % p, durations[walk.kind_row, 0], late[walk.kind_row, 0])
    np.testing.assert_allclose(ends, heap, rtol=1e-12)


@pytest.mark.cases(7)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("forward_only", [False, True], ids=["training", "service"])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 16)])
def test_uneven_schedules_are_those_of_the_heap(rule, forward_only, p, m):
    """Random durations and transfers of every slot, in two columns at once."""
    order = pipeline_order(rule, p, 1, m)
    walk, rng = walk_of(order.forward_only if forward_only else order), np.random.default_rng(p * m)
    durations, lags = rng.lognormal(0.0, 0.5, (len(walk.before), 2)), rng.uniform(0.0, 1.0, (len(walk.before), 2))
    starts, ends = uneven_times(walk, durations, lags)
    for i in range(2):
        start, end = on_the_heap(walk, walk.kind_row % order.rows % p, durations[:, i], lags[:, i])
        np.testing.assert_allclose(starts[:, i], start, rtol=1e-12)
        np.testing.assert_allclose(ends[:, i], end, rtol=1e-12)


# ------------------------------------------------------------------------------------------ uneven worlds


def test_a_slow_rank_makes_its_tensor_group_wait():
    given = scenario("tp4-pp2-dp2", "ideal")
    even, slow = timeline(given), timeline(given, Uneven(ranks={1: 0.5}))
    assert slow.total > even.total
    names = [device.name for device in slow.devices]
    assert names[0] == "stage 0, replica 0, tp 1"
    waiting = dict(zip(names, slow.activity()["waiting"], strict=True))
    assert waiting["stage 0, replica 0, tp 0 +2"] > 0.2 * even.total
    assert waiting["stage 0, replica 0, tp 1"] < 0.01 * even.total
    assert sorted(rank for device in slow.devices for rank in device.ranks) == list(range(16))


def test_replicas_wait_for_the_slowest_where_gradients_are_reduced():
    found = timeline(scenario("pp4-dp4"), Uneven(replicas={2: 0.7}))
    slots, names = found.slots, np.array([one.label for one in found.passes])
    reduces = names[slots.passed] == "reduction"
    for stage in range(4):
        mine = [i for i in np.flatnonzero(reduces) if found.devices[slots.device[i]].stage == stage]
        assert len(mine) == 2
        assert np.ptp(slots.end[mine]) == pytest.approx(0.0, abs=1e-12)
    waiting = found.activity()["waiting"]
    slowest = np.array(["replica 2" in device.name for device in found.devices])
    assert (waiting[~slowest] > 0).all()
    assert (waiting[slowest] == 0).all()
    assert any("replica 2" in found.devices[slots.device[slot]].name for slot in found.critical_path())


@pytest.mark.cases(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "software", "workload"),
    [
        ("cp2-dp8", "ideal", {}), ("tp2-sp-cp2-dp4-z1", "megatron-core", {}), ("dp8-z3-g4", "pytorch-fsdp", {}), ("dp8-z1", "ideal", {}),
        ("ep4-dp8", "ideal", {"experts": {"count": 8, "active": 2}, "tied_embeddings": False}),
        ("ep16-dp16", {"like": "megatron-core", "dispatch": "nodes"}, {"experts": {"count": 32, "active": 4}, "tied_embeddings": False}),
        ("tp4-ep8-etp1-dp4-sp", "megatron-core", {"experts": {"count": 8, "active": 2}, "tied_embeddings": False}),
        ("pp2-dp4-pipedream", "megatron-lm-2022", {}),
        ("tp2-pp2-dp4", "megatron-lm-2022", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("uneven", [Uneven(replicas={1: 0.5}), Uneven(jitter=0.1)], ids=["slow", "jitter"])
def test_a_collective_ends_together_on_all_its_ranks(strategy, software, workload, uneven):
    """Side by side, replicas that share samples, experts or shards, and all where gradients are reduced, end each of theirs at once."""
    given = scenario(strategy, software, **workload)
    found, plan = timeline(given, uneven), given.strategy
    replicas, tp = plan.dp * plan.cp, plan.tp
    together = replicas if plan.zero == 3 or plan.schedule == "pipedream" else max(plan.cp, plan.ep * plan.tensor_of("experts") // plan.tp)
    ends = {}
    for i, device in enumerate(found.devices):
        events = found.events(i)
        for rank in device.ranks:
            group = (device.stage, rank // tp % replicas // together)
            columns = (events.end, events.name, events.stream, events.microbatch)
            for end, name, stream, microbatch in zip(*columns, strict=True):
                word, once = found.names[name], microbatch < 0
                if stream in (TENSOR, DATA) and word in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
                    ends.setdefault((device.stage if once else group, word, stream, microbatch), {}).setdefault(rank, []).append(end)
    assert ends
    for times in ends.values():
        first, *others = times.values()
        for other in others:
            np.testing.assert_allclose(other, first, rtol=1e-9)


@pytest.mark.cases(1)
@pytest.mark.parametrize("placement", list(itertools.permutations(("tp", "dp", "pp"))), ids="-".join)
def test_ranks_lie_as_the_plan_places_them(placement):
    """Every rank once; the ranks of a stage, and of a tensor group, are as far apart as what lies nearer is large."""
    sizes = {"tp": 2, "dp": 4, "pp": 4}
    given = scenario({**sizes, "placement": list(placement)})
    found = timeline(given, Uneven(ranks={5: 0.5}))
    held = [rank for device in found.devices for rank in device.ranks]
    assert sorted(held) == list(range(32))
    apart = {block: math.prod(sizes[nearer] for nearer in placement[:i]) for i, block in enumerate(placement)}
    for device in found.devices:
        assert {rank // apart["pp"] % sizes["pp"] for rank in device.ranks} == {device.stage}
    (slow,) = [device for device in found.devices if 5 in device.ranks]
    assert list(slow.ranks) == [5]


def test_the_busiest_ranks_belong_nearest():
    """With many microbatches tensor groups send most: inside nodes they are faster than with anything else there."""
    wide = {"hidden": 8192, "heads": 64, "ffn": 32768, "global_batch": 512}
    steps = {
        placement: crossflow.predict(scenario({"tp": 8, "dp": 2, "pp": 2, "placement": list(placement)}, **wide)).step_time
        for placement in itertools.permutations(("tp", "dp", "pp"))
    }
    ranked = sorted(steps, key=lambda placement: steps[placement])
    assert {placement[0] for placement in ranked[:2]} == {placement[-1] for placement in ranked[-2:]} == {"tp"}


def test_sharded_replicas_stay_in_step():
    given = scenario("dp8-z3", "ideal")
    even, slow = timeline(given), timeline(given, Uneven(ranks={5: 0.5}))
    busy = slow.activity()["busy"]
    assert len(slow.devices) == 2
    assert busy.max() == pytest.approx(2 * busy.min(), rel=0.02)
    assert slow.total > 1.5 * even.total


@pytest.mark.slow
def test_a_slow_link_delays_what_comes_over_it():
    given = scenario("pp4-dp4", "nanotron")
    even, slow = timeline(given), timeline(given, Uneven(links={1: 0.001}))
    held = scenario("pp4-dp4", "pytorch-fsdp")
    assert timeline(held, Uneven(links={1: 0.001})).total > timeline(held).total
    assert slow.total > even.total
    assert slow.slots.lag.max() == pytest.approx(1000 * even.slots.lag.max())  # the slow link is the only one between nodes


def test_jitter_is_seeded_and_slows():
    given = scenario("pp4-dp4", "ideal")
    one, same, another = (timeline(given, Uneven(jitter=0.2, seed=seed)) for seed in (1, 1, 2))
    assert one.total == same.total != another.total
    totals = [timeline(given, Uneven(jitter=0.2, seed=seed)).total for seed in range(8)]
    assert np.mean(totals) > timeline(given).total
    assert len(one.devices) == 16
    assert overlaps(one) <= 1e-9 * one.total


@pytest.mark.parametrize("strategy", ["tp2-pp4-dp2", "dp8-z3", "pp4-dp2-zbh1"])
def test_activities_of_uneven_worlds_add_up(strategy):
    found = timeline(scenario(strategy), Uneven(ranks={0: 0.8, 3: 1.1}, jitter=0.05))
    np.testing.assert_allclose(sum(found.activity().values()), found.total, rtol=1e-9)
    assert overlaps(found) <= 1e-9 * found.total
    slots = found.slots
    waits = slots.source >= 0
    assert (slots.start[waits] >= slots.end[slots.source[waits]] + slots.lag[waits] - 1e-12).all()


def test_twice_as_fast_devices_compute_in_half_the_time():
    given = scenario("pp2-dp2", "ideal")
    even, fast = timeline(given), timeline(given, Uneven(stages={0: 2.0, 1: 2.0}))
    np.testing.assert_allclose(fast.activity()["busy"], even.activity()["busy"] / 2, rtol=0.02)


@pytest.mark.parametrize(
    ("uneven", "sentence"),
    [
        ({"ranks": {16: 0.5}}, "uneven: ranks: 16 is not there, the plan has 16 (0 to 15)"),
        ({"stages": {4: 0.5}}, "uneven: stages: 4 is not there, the plan has 4 (0 to 3)"),
        ({"links": {3: 0.5}}, "uneven: links: 3 is not there, the plan has 3 (0 to 2)"),
        (
            {"ports": {3: 0.5}},
            "uneven: ports: ports of single devices are supported for lstm, gemm, dlrm and programs only; give links, those between stages",
        ),
    ],
)
def test_places_that_are_not_there_are_told(uneven, sentence, exactly):
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        timeline(scenario("pp4-dp4"), Uneven(**uneven))


def test_uneven_files_are_checked(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text("kind: uneven\nranks: {3: 0.8}\njitter: 0.02\n")
    assert load_uneven(path) == Uneven(ranks={3: 0.8}, jitter=0.02)
    path.write_text("kind: uneven\nrank: {3: 0.8}\njitter: -1\n")
    with pytest.raises(SpecError) as found:
        load_uneven(path)
    assert "slow.yaml:2: rank: unknown key 'rank'; did you mean 'ranks'?" in str(found.value)
    assert "slow.yaml:3: jitter:" in str(found.value)


def test_the_way_back_of_interleaved_stages_has_a_link_of_its_own():
    given = scenario("pp4-dp4-v2", "nanotron")
    even, back, near = (timeline(given, uneven).total for uneven in (Uneven(), Uneven(links={3: 0.001}), Uneven(links={0: 0.001})))
    assert even < back
    assert even < near


def test_who_waits_has_slack():
    """The fast replicas could take as much longer as they wait."""
    found = timeline(scenario("dp4", "ideal"), Uneven(replicas={2: 0.5}))
    fast = [i for i, device in enumerate(found.devices) if "replica 2" not in device.name]
    passes = np.isin([one.label for one in found.passes], ["F", "B"])[found.slots.passed]
    for device in fast:
        mine = passes & (found.slots.device == device)
        assert found.slack[mine].min() == pytest.approx(found.activity()["waiting"][device], rel=1e-6)


def test_what_does_not_fit_is_said():
    found = timeline(scenario("dp8", layers=64, hidden=4096, heads=32, ffn=16384))
    assert found.overfull.startswith("does not fit: stage 0 needs ")
    assert timeline(scenario("dp8")).overfull is None


def test_transfers_travel_on_the_senders_wires():
    """Stages of four ranks on nodes of eight: the second boundary lies between nodes."""
    found = timeline(scenario("tp2-pp4-dp2"))
    sent = {
        scope: [int((events.name == found.names.index(f"{scope} send_recv")).sum()) for events in map(found.events, range(4))]
        for scope in ("intra", "inter")
    }
    assert sent == {"intra": [16, 16, 16, 16], "inter": [0, 16, 16, 0]}


def test_a_step_that_never_ends_has_no_timeline():
    system = {"template": "pathfinder", "devices": 8, "budgets": {"power_shares": {"memory": 0}}}
    given = crossflow.from_dict({"system": system, "workload": {"model": "gpt2-345m", "global_batch": 8}, "strategy": "pp4-dp2"})
    with pytest.raises(CrossflowError, match="the step never ends, so it has no timeline"):
        timeline(given)


def test_what_has_no_timeline_is_told(exactly):
    with pytest.raises(CrossflowError, match="kernels that share a device have no timeline"):
        timeline(crossflow.from_dict({**OTHERS[0], "kernels_per_device": 2}))
    with pytest.raises(CrossflowError, match="kernels that share a device have no timeline"):
        timeline(crossflow.from_dict({**OTHERS[2], "kernels_per_device": 2}))
    many = {**OTHERS[2], "system": {"template": "madmax-h100", "nodes": 128}}
    sentence = "155,648 operations of 1,024 kinds of devices, and 100,000 at most; take fewer devices or no jitter"
    with pytest.raises(CrossflowError, match=sentence):
        timeline(crossflow.from_dict(many), Uneven(jitter=0.1))


# ------------------------------------------------------------------------------------------ what events are


def test_what_hides_runs_beside_kernels():
    """Collectives of input gradients beside the weight gradient's product, gathers ahead of their layers."""
    for strategy, software, stream in (("tp8", "megatron-core", TENSOR), ("dp16-z3", "pytorch-fsdp", DATA)):
        events = timeline(scenario(strategy, software)).events(0)
        sent = (events.stream == stream) & (events.kind == COMMUNICATION)
        work = (events.stream == COMPUTE) & (events.kind == WORK)
        middle = (events.start[sent] + events.end[sent]) / 2
        beside = [(events.start[work] < time).sum() > (events.end[work] < time).sum() for time in middle]
        assert np.mean(beside) > 0.3


def test_layers_and_microbatches_are_told():
    events = timeline(scenario("pp2-dp2-mb2")).events(0)
    assert set(events.layer.tolist()) == {-1, 0, 1, 2, 3}
    assert set(events.microbatch.tolist()) == {-1, *range(8)}
    assert not (events.kind == WAIT).any()


# ------------------------------------------------------------------------------------------ layouts of published runs


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("llama3.1-405b", "tp8-dp4-pp16-v8-z1-sp"),  # arXiv:2407.21783, Sec. 3.3.2
        ("deepseek-v3", "tp8-etp1-ep32-dp4-pp16-z1-sp-full"),  # arXiv:2412.19437, Sec. 3.2: 16 stages
        ("deepseek-v3", "dp32-ep32-pp16-v2-z1-full-layers:3+2x29+0x2"),  # Megatron-Core's layout Et*3|(tt|)*29m|L
        ("deepseek-v3", "dp32-etp2-ep16-pp8-v2-z1-full"),
    ],
)
def test_layers_of_published_runs_need_not_divide(model, strategy):
    workload = {"model": model, "global_batch": 512, "sequence": 4096}
    system = {"template": "dgx-h100", "nodes": None}
    given = crossflow.from_dict({"system": system, "workload": workload, "strategy": strategy, "software": "nemo"})
    found, predicted = timeline(given), crossflow.predict(given)
    assert found.total == pytest.approx(predicted.step_time, rel=1e-9)
    assert len(predicted.to_dict()["memory_by_stage"]) == given.strategy.pp
    assert events(given).recurrences > 0


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_layers_over_any_stages_take_as_long_as_predicted(seed):
    rng = np.random.default_rng(seed)
    pp, chunks = int(rng.choice([2, 4])), int(rng.choice([1, 2, 3]))
    layers = rng.multinomial(8, rng.dirichlet(np.full(pp * chunks, 0.5)))
    given = scenario(f"pp{pp}-v{chunks}-dp2-z{rng.integers(4)}-layers:{'+'.join(map(str, layers))}", STACKS[seed % 5])
    found, predicted = timeline(given), crossflow.predict(given)
    assert found.total == pytest.approx(predicted.step_time, rel=1e-9)
    np.testing.assert_allclose(sum(found.activity().values()), found.total, rtol=1e-9)
    assert max(held.max() for _, held in found.memory) <= predicted.score.memory_needed[0] * (1 + 1e-9)


def test_a_step_without_end_has_no_timeline(exactly):
    """Devices without links to each other."""
    workload = {"model": "gemm", "m": 4096, "n": 4096, "k": 4096, "task": "training"}
    given = crossflow.from_dict(
        {
            "system": {"template": "chip-h100", "devices": 16, "budgets": {"area": {"inter_link": 0}}},
            "workload": workload,
            "strategy": "RC-4-2-d2",
        }
    )
    sentence = "scenario: the step never ends, so it has no timeline; `crossflow predict` says why"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        timeline(given)
