"""What ranks that share out states, gradients and weights hold and send of embedding tables, by hand, with groups of their own."""

from dataclasses import replace

import numpy as np
import pytest
from test_step_anchors import ATTENTION, MLP, MOE, NORM, TABLE, by_unit, job_of, layout_of, machine_of, near, stack_of

import crossflow
from crossflow.engine.runs.memory import GRADIENTS, OPTIMIZER, WEIGHTS, memory
from crossflow.hardware.architecture.software import WeightSharing
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.tables import tables_of
from crossflow.parallel.weights import weights_of

LAYER = {"0.0.attention": ATTENTION + NORM, "0.1.mlp": MLP + NORM}


def sent(found, layout, unit):
    """Collectives of a unit among several ranks: their role, bytes, ranks, distance and how often in a step."""
    return sorted(
        (
            one.collective,
            one.role,
            float(one.size[unit, 0]),
            float(one.group.size[0]),
            float(one.group.stride[0]),
            float(one.rounds(layout)[0]),
        )
        for one in found.messages
        if one.size[unit, 0] and one.group.size[0] > 1
    )


def whole_of(plan, job=None, **stack):
    job, layout = job or job_of(), layout_of(plan, batch=16)
    return job, layout, weights_of(job, layout, stack_of(**stack))


# ------------------------------------------------------------------------------------------ sums over ranks

PLANS = [
    # a plan of eight ranks, ranks that share the embedding, that hold the same of it, and over which zero 3 shards it
    ({"dp": 8}, 1, 8, 8), ({"dp": 8, "shard_group": 4}, 1, 8, 4), ({"dp": 8, "embedding_shard_group": 2}, 1, 8, 2),
    ({"tp": 2, "dp": 4}, 2, 4, 4), ({"tp": 4, "dp": 2, "embedding_tp": 2}, 2, 4, 4), ({"tp": 4, "dp": 2, "embedding_tp": 1}, 1, 8, 8),
    ({"tp": 2, "dp": 4, "embedding_tp": 1, "shard_group": 2}, 1, 8, 4), ({"tp": 2, "dp": 2, "cp": 2}, 2, 4, 4),
    ({"tp": 4, "dp": 2, "embedding_tp": 2, "embedding_shard_group": 2}, 2, 4, 2),
]  # fmt: skip


@pytest.mark.cases(6)
@pytest.mark.parametrize(("plan", "share", "same", "shards"), PLANS)
@pytest.mark.parametrize("zero", range(4))
def test_parts_of_a_table_are_the_table(zero, plan, share, same, shards):
    """Every parameter is updated once where states are shared out, and once a copy where they are not."""
    if zero < 3 and ("shard_group" in plan or "embedding_shard_group" in plan):
        plan = {name: value for name, value in plan.items() if not name.endswith("shard_group")}
    _, _, found = whole_of(Plan(**plan, zero=zero))
    parts = {0: 1, 1: same, 2: same, 3: shards}[zero]
    assert by_unit(job_of(), found.parameters)["embedding"] == near(TABLE / share)
    assert by_unit(job_of(), found.owned)["embedding"] == near(TABLE / share / parts)
    assert by_unit(job_of(), found.owned)["embedding"] * 8 == near(TABLE * same / parts)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("zero", range(4))
def test_states_of_all_ranks_are_those_of_the_model(tied, zero):
    """Adam's of each parameter, on as many ranks as keep all: a tied table has them once."""
    job = job_of(tied_embeddings=tied, optimizer="adam")
    found = memory(job, layout_of(Plan(dp=4, zero=zero)), machine_of())
    each, ranks = {WEIGHTS: 2, GRADIENTS: 2, OPTIMIZER: 12}, {WEIGHTS: 3, GRADIENTS: 2, OPTIMIZER: 1}
    assert job.model.parameters == 2 * sum(LAYER.values()) + (1 if tied else 2) * TABLE + NORM
    for kind, size in each.items():
        assert found.stages[kind, 0, 0] == near(job.model.parameters * size / (4 if zero >= ranks[kind] else 1))


@pytest.mark.cases(2)
@pytest.mark.parametrize(("tp", "embedding_tp"), [(1, 0), (4, 0), (4, 2), (4, 1)])
@pytest.mark.parametrize("pp", [1, 2])
def test_a_tied_table_is_held_once_where_both_ends_are_one_device(pp, tp, embedding_tp):
    job, layout, found = whole_of(Plan(tp=tp, embedding_tp=embedding_tp, pp=pp), job_of(tied_embeddings=True))
    table = TABLE / (embedding_tp or tp)
    held = by_unit(job, found.parameters)
    assert (held["embedding"], held["head"]) == (table, NORM + (table if pp > 1 else 0))
    layers = 2 * ((ATTENTION + MLP) / tp + 2 * NORM) / pp
    stages = memory(job, layout, machine_of()).stages[WEIGHTS, :, 0]
    assert stages.tolist() == [near(2 * (layers + table + (NORM if pp == 1 else 0))), near(2 * (layers + table + NORM))][:pp]


@pytest.mark.parametrize(("tp", "embedding_tp"), [(4, 0), (4, 2), (1, 0)])
def test_ends_of_a_pipeline_sum_what_they_hold_of_a_tied_table(tp, embedding_tp):
    """In the type of gradients, and nothing else of the head: the last norm is on one end alone."""
    job, layout, _ = whole_of(Plan(tp=tp, embedding_tp=embedding_tp, pp=2), job_of(tied_embeddings=True))
    tied = tables_of(job, layout, stack_of()).between.tied[0]
    assert tied == near(2 * TABLE / (embedding_tp or tp))
    apart = job_of()
    assert tables_of(apart, layout, stack_of()).between.tied[0] == 0.0
    assert tables_of(job, layout_of(Plan(tp=tp, embedding_tp=embedding_tp)), stack_of()).between.tied[0] == 0.0


# ------------------------------------------------------------------------------------------ messages

MESSAGES = [
    # plan, collectives of the table: what, why, bytes, ranks, how far apart, how often for 16 samples; weights of 2 B, gradients of 4
    ({"dp": 4}, [("all_reduce", "reduce", 4 * TABLE, 4, 1, 1)]),
    ({"dp": 4, "zero": 1}, [("all_gather", "regather", 2 * TABLE, 4, 1, 1), ("reduce_scatter", "reduce", 4 * TABLE, 4, 1, 1)]),
    ({"dp": 4, "zero": 2}, [("all_gather", "regather", 2 * TABLE, 4, 1, 1), ("reduce_scatter", "reduce", 4 * TABLE, 4, 1, 4)]),
    ({"dp": 4, "zero": 3}, [("all_gather", "gather", 2 * TABLE, 4, 1, 8), ("reduce_scatter", "reduce", 4 * TABLE, 4, 1, 4)]),
    ({"dp": 8, "zero": 3, "embedding_shard_group": 2}, [
        ("all_gather", "gather", 2 * TABLE, 2, 1, 4), ("all_reduce", "reduce", 4 * TABLE / 2, 4, 2, 2),
        ("reduce_scatter", "reduce", 4 * TABLE, 2, 1, 2),
    ]),
    ({"dp": 8, "zero": 3, "unsharded": ("embedding",)}, [("all_reduce", "reduce", 4 * TABLE, 8, 1, 1)]),
    ({"tp": 2, "dp": 4, "zero": 1}, [("all_gather", "regather", TABLE, 4, 2, 1), ("reduce_scatter", "reduce", 2 * TABLE, 4, 2, 1)]),
    ({"tp": 4, "dp": 2, "embedding_tp": 2, "zero": 1}, [
        ("all_gather", "regather", 2 * TABLE / 2, 4, 2, 1), ("reduce_scatter", "reduce", 4 * TABLE / 2, 4, 2, 1),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "expected"), MESSAGES)
def test_what_travels_of_a_table_by_hand(plan, expected):
    _, layout, found = whole_of(Plan(**plan), name="megatron-core")
    assert sent(found, layout, 0) == [
        (*words, near(size), *rest) for *words, size, ranks, far, often in expected for rest in [(ranks, far, often)]
    ]


def test_a_group_of_its_own_changes_nothing_for_the_layers():
    for plan in (Plan(dp=8, zero=3, embedding_shard_group=2), Plan(dp=8, zero=3, unsharded=("embedding",))):
        _, layout, found = whole_of(plan, name="megatron-core")
        size = ATTENTION + NORM
        assert sent(found, layout, 1) == [
            ("all_gather", "gather", near(2 * size), 8, 1, 4), ("reduce_scatter", "reduce", near(4 * size), 8, 1, 2),
        ]  # fmt: skip


def test_a_table_that_both_ends_share_travels_as_one_layer():
    """With the last norm, where sharded weights go by layers; apart, each goes by itself."""
    stack = stack_of().model_copy(update={"sharing": WeightSharing(unit="layer")})
    for tied, wholes in ((True, [TABLE + NORM] * 2), (False, [TABLE, TABLE + NORM])):
        job, layout = job_of(tied_embeddings=tied), layout_of(Plan(dp=4, zero=3))
        gather = next(one for one in weights_of(job, layout, stack).messages if one.role == "gather")
        assert [float(gather.whole[unit, 0]) for unit in (0, -1)] == [near(2 * one) for one in wholes]
        assert gather.whole[1, 0] == gather.whole[2, 0] == near(2 * sum(LAYER.values()))
    job, layout = job_of(tied_embeddings=True), layout_of(Plan(dp=4, pp=2, zero=3))
    gather = next(one for one in weights_of(job, layout, stack).messages if one.role == "gather")
    assert [float(gather.whole[unit, 0]) for unit in (0, -1)] == [near(2 * TABLE), near(2 * (TABLE + NORM))]


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_experts_and_what_is_beside_them_are_shared_out_among_ranks_of_their_own(zero):
    """Eight experts on two ranks each of four: a router and a norm on all eight ranks."""
    job, layout, found = whole_of(Plan(dp=8, ep=4, zero=zero), job_of(**MOE))
    unit = next(i for i, name in enumerate(by_unit(job, found.parameters)) if name.startswith("0.1"))
    experts, beside = 8 * MLP / 4, 64 * 8 + NORM
    assert found.parameters[unit, 0] == near(experts + beside)
    assert found.owned[unit, 0] == near(experts / (2 if zero else 1) + beside / (8 if zero else 1))
    assert found.owned[unit, 0] * 8 == near(8 * MLP * (1 if zero else 2) + beside * (1 if zero else 8))
    reduced = {ranks: size for what, why, size, ranks, *_ in sent(found, layout, unit) if why == "reduce"}
    assert reduced == {2.0: near(2 * experts), 8.0: near(2 * beside)}


@pytest.mark.parametrize("ep", [1, 2])
@pytest.mark.parametrize("unit", ["part", "layer"])
def test_experts_are_counted_once_however_weights_are_gathered(unit, ep):
    """All ranks together update each parameter once; what the same ranks share out goes in one message a layer."""
    job, layout = job_of(**MOE), layout_of(Plan(dp=4, ep=ep, zero=3))
    found = weights_of(job, layout, stack_of().model_copy(update={"sharing": WeightSharing(unit=unit)}))
    counts = np.array([1.0, 2.0, 2.0, 1.0])[:, None]  # two layers
    assert (found.owned * counts).sum() * 4 == near(job.model.parameters)
    gathered = sum((one.size * counts).sum() for one in found.messages if one.role == "gather")
    assert gathered == near(2 * (found.parameters * counts).sum())


@pytest.mark.parametrize(("tp", "copies"), [(1, 1), (2, 1), (4, 2), (8, 4)])
@pytest.mark.parametrize("zero", [0, 1])
def test_ranks_that_repeat_heads_sum_what_they_own_of_them(zero, tp, copies):
    """Two heads of keys and values of eight: 64 rows of 16 elements for each of both, on ranks that repeat them."""
    job = job_of(heads=8, kv_heads=2)
    layout = layout_of(Plan(tp=tp, dp=2, zero=zero), batch=16)
    found = weights_of(job, layout, stack_of())
    among = [one for one in found.messages if float(one.group.size[0]) == copies and one.collective == "all_reduce" and copies > 1]
    pair = 2 * 64 * 8 * np.ceil(2 / tp)  # keys and values of 8 elements a head
    sizes = [float(one.size[1, 0]) for one in among if one.size[1, 0] not in (0.0, float(found.parameters[1, 0] * 2))]
    assert sizes == ([] if copies == 1 else [near(2 * pair / (2 if zero else 1))])


# ------------------------------------------------------------------------------------------ buffers


NOTHING = {"buckets": False, "workspaces": np.zeros(1), "library": np.zeros(1), "gathered_copy": False, "late_gradients": False}


@pytest.mark.parametrize("vocabulary", [1000, 8])
@pytest.mark.parametrize("zero", range(4))
def test_buffers_of_a_backward_pass_by_hand(zero, vocabulary):
    """The gradient of the largest matrix, where ranks keep all of it; gradients of a layer from ZeRO 2 on, and of ZeRO 3 weights as well.

    Two layers' weights are there where the next is fetched ahead; embedding and head all the time.
    """
    own, job = machine_of().stack, job_of(vocabulary=vocabulary)
    on = replace(machine_of(), stack=own.model_copy(update={"memory": own.memory.model_copy(update=NOTHING)}))
    found = memory(job, layout_of(Plan(dp=4, zero=zero)), on)
    assert found.moment[0, 0] == 0
    layer, ends = sum(LAYER.values()), 2 * vocabulary * 64 + NORM
    largest = max(vocabulary * 64, 64 * 256)
    ahead = 2 if own.overlap.gather else 1
    assert found.stages[5, 0, 0] == near(2 * [largest, largest, layer, (ahead + 1) * layer + ends][zero])


def buffers(plan, **habits):
    stack = machine_of().stack
    stack = stack.model_copy(update={"memory": stack.memory.model_copy(update=habits)})
    found = memory(job_of(), layout_of(plan), replace(machine_of(), stack=stack))
    return found.update[0] - found.stages[:3, 0, 0].sum() - found.stages[4, 0, 0]


@pytest.mark.parametrize("zero", range(4))
def test_gathered_weights_are_copied_where_states_alone_are_shared_out(zero):
    """All weights and a rank's part of them, two bytes each, in an update of ZeRO 1 and 2."""
    more = buffers(Plan(dp=4, zero=zero), gathered_copy=True) - buffers(Plan(dp=4, zero=zero), gathered_copy=False)
    size = job_of().model.parameters * 2
    assert more == (near(size + size / 4) if zero in (1, 2) else 0.0)


@pytest.mark.parametrize("zero", range(4))
def test_gradients_wait_in_buckets_where_other_ranks_hold_the_same(zero):
    more = buffers(Plan(dp=4, zero=zero), buckets=True) - buffers(Plan(dp=4, zero=zero), buckets=False)
    assert more == (near(job_of().model.parameters * 2) if zero < 3 else 0.0)
    assert buffers(Plan(zero=0), buckets=True) == buffers(Plan(zero=0), buckets=False)


@pytest.mark.parametrize("task", ["forward", "prefill", "decode"])
def test_steps_without_gradients_wait_for_the_weights_that_they_gather(task):
    """On few tokens: no shorter than all gathers, and longer than with whole weights by what the gathers expose."""
    workload = {"model": "llama3-8b", "global_batch": 16, "sequence": 128, "task": task}
    given = {"system": {"template": "dgx-h100", "nodes": 2}, "workload": workload, "software": "pytorch-fsdp"}
    shards, whole = (crossflow.evaluate(crossflow.from_dict({**given, "strategy": plan})) for plan in ("dp16-z3", "dp16"))
    assert shards.step_time[0] >= shards.communication["all_gather"][0] > 0.5 * whole.step_time[0]
    assert shards.step_time[0] == near(whole.step_time[0] + shards.exposed_communication["all_gather"][0])
