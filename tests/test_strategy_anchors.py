# ruff: noqa: E501  (exact sentences)
"""Groups of ranks, slots of schedules and legal plans worked out by hand."""

import numpy as np
import pytest

from crossflow.parallel.strategy.again import NOTHING
from crossflow.parallel.strategy.hierarchy import Hierarchy, hierarchy_of
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.legality import legal_plans, neighbouring_plans, plan_problem
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.schedules import BACKWARD, FORWARD, WEIGHT, ahead, pipeline_order, schedule_problem
from crossflow.parallel.strategy.stages import balanced_layers, stage_layers
from crossflow.workload.spec import TransformerSpec


def layout_of(*plans, batch=64, node=8):
    return Layout.of(plans, np.full(len(plans), float(batch)), node)


def group(found):
    """Ranks, ranks that share a node, and devices between neighbours, at the first point."""
    return tuple(float(values[0]) for values in (found.size, found.per_node, found.stride))


# ------------------------------------------------------------------------------------------ plans on devices


def test_ranks_of_a_plan_lie_tensor_first_then_context_and_data_then_stages():
    """2 x 2 x 4 x 2 ranks in nodes of 8: neighbours, every second, every sixteenth."""
    found = layout_of(Plan(tp=2, cp=2, dp=4, pp=2, micro_batch=2))
    assert (group(found.tensor), group(found.context)) == ((2, 2, 1), (2, 2, 2))
    assert (found.devices[0], found.microbatches[0], found.strides["pp"][0]) == (32, 64 / 8, 16)
    spread = found.spread("mlp")
    assert (group(spread.data), group(spread.shards)) == ((8, 4, 2), (8, 4, 2))
    assert spread.copies.size[0] == 1


@pytest.mark.parametrize(("pp", "virtual"), [(4, 2), (2, 4), (8, 1), (4, 1), (2, 2), (1, 4)])
def test_layers_of_stages_stay_where_as_many_parts_hold_them(pp, virtual):
    """Eight parts, of 2 stages with 4 chunks, of 4 with 2 or of 8: as many lists of layers as before."""
    layers = (1, 2, 3, 4, 4, 3, 2, 1)
    changed = Plan(pp=4, virtual_stages=2, stage_layers=layers).but(pp=pp, virtual_stages=virtual)
    assert changed.stage_layers == (layers if pp * virtual == 8 else ())


@pytest.mark.parametrize(("plan", "crossing"), [(Plan(pp=8), [3]), (Plan(tp=2, pp=6), [1, 3]), (Plan(tp=3, pp=4), [0, 1, 2])])
def test_messages_between_stages_that_leave_a_node_of_4(plan, crossing):
    """Stages of one device: only from device 3 to 4. Of two: from 2, 3 to 4, 5 and from 6, 7 to 8, 9. Of three: every one has a part."""
    found = layout_of(plan, batch=8, node=4)
    stages = np.arange(plan.pp - 1.0)[:, None]
    assert np.flatnonzero(found.crosses(stages, stages + 1.0)[:, 0]).tolist() == crossing


def test_another_placement_puts_data_ranks_nearest():
    found = layout_of(Plan(tp=2, dp=4, pp=2, placement=("dp", "pp", "tp")))
    assert {block: stride[0] for block, stride in found.strides.items()} == {"dp": 1, "pp": 4, "tp": 8}
    assert (group(found.tensor), group(found.spread("mlp").data)) == ((2, 1, 8), (4, 4, 1))


def test_a_group_that_does_not_fill_nodes_has_few_ranks_in_each():
    """Twelve ranks in nodes of 8: four of them share each; a stride of 3 divides no node of 8."""
    found = layout_of(Plan(dp=12), batch=12)
    assert group(found.spread("mlp").data) == (12, 4, 1)
    assert group(found.group(np.array([3.0]), np.array([4.0]))) == (4, 1, 3)


@pytest.mark.parametrize(("apart", "shards", "copies"), [((), (4, 4, 1), (4, 2, 4)), (("mlp",), (4, 2, 4), (4, 4, 1))])
def test_shard_groups_are_neighbours_or_far_apart(apart, shards, copies):
    spread = layout_of(Plan(dp=16, zero=3, shard_group=4, apart=apart)).spread("mlp")
    assert (group(spread.data), group(spread.shards), group(spread.copies)) == ((16, 8, 1), shards, copies)
    assert spread.zero[0] == 3


def test_a_layer_type_may_keep_its_weights_whole_or_shard_them_over_others():
    found = layout_of(Plan(dp=16, zero=3, unsharded=("embedding",), attention_shard_group=2))
    assert (found.spread("embedding").zero[0], found.spread("mlp").zero[0]) == (0, 3)
    assert (found.spread("attention").shards.size[0], found.spread("mlp").shards.size[0]) == (2, 16)


def test_experts_lie_along_data_ranks_and_are_repeated_beyond_them():
    """Two tensor ranks, 4 of 8 data ranks share out the experts: every second device, repeated eight devices further."""
    found = layout_of(Plan(tp=2, dp=8, ep=4))
    assert (group(found.expert), group(found.spread("experts").data)) == ((4, 4, 2), (2, 1, 8))
    assert group(found.spread("mlp").data) == (8, 4, 2)
    assert (group(found.expert_inside), group(found.expert_across)[0]) == ((4, 4, 2), 1)


def test_experts_that_cross_nodes_meet_inside_first():
    found = layout_of(Plan(dp=16, ep=16))
    assert (group(found.expert), group(found.expert_inside), group(found.expert_across)) == ((16, 8, 1), (8, 8, 1), (2, 1, 8))


def test_a_type_with_fewer_tensor_ranks_is_repeated_by_the_others():
    """Attention over 2 of 8 tensor ranks: four copies in each group, two devices apart, as many again for both data ranks."""
    found = layout_of(Plan(tp=8, attention_tp=2, dp=2))
    assert group(found.sharing("attention")) == (2, 2, 1)
    assert group(found.spread("attention").data) == (8, 4, 2)
    assert (found.tensor_share("attention")[0], found.tensor_share("mlp")) == (0.25, 1.0)
    assert found.shares(found.sharing("attention"))
    assert found.shares(found.tensor)
    assert not found.shares(found.context)


def test_stages_that_leave_their_node():
    """Stages of 4 devices in nodes of 8: 0 and 1 share a node, 1 and 2 do not, nor do 0 and 3."""
    found = layout_of(Plan(tp=4, pp=4))
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert [bool(found.crosses(np.array([one]), np.array([other]))[0]) for one, other in pairs] == [False, True, False, True]
    assert (found.ends.per_node[0], found.ends.size[0], found.ends.last[0]) == (1, 2, 3)
    inside, outside = found.neighbours
    assert (inside.per_node[0], outside.per_node[0], inside.stride[0]) == (2, 1, 4)


def test_stages_that_lie_differently_in_each_block():
    """Three stages of 2 devices, four pipelines: 0 and 1 of the first block share a node, those on devices 6 to 9 do not."""
    found = layout_of(Plan(tp=2, pp=3, dp=4, placement=("tp", "pp", "dp")))
    assert bool(found.crosses(np.array([0]), np.array([1]))[0])
    alone = layout_of(Plan(tp=2, pp=3, placement=("tp", "pp", "dp")))
    assert not bool(alone.crosses(np.array([0]), np.array([1]))[0])


def test_updates_and_directions_of_schedules():
    plans = (Plan(pp=4, dp=2), Plan(pp=4, dp=2, schedule="pipedream"), Plan(pp=4, dp=2, schedule="chimera"))
    found = layout_of(*plans)
    assert (found.updates.tolist(), found.directions.tolist()) == ([1, 32, 1], [1, 1, 2])
    assert found.spread("mlp").data.size.tolist() == [2, 2, 4]


def test_levels_of_recommendation_models():
    """Nodes of 8, four of them: roles inside, between, and at both levels."""
    plans = Hierarchies.of([hierarchy_of({"dense": ["tp", "ddp"], "embedding": ["mp"]})], 64, 8, 4)
    dense = plans.dense
    assert (group(dense.tensor), group(dense.copies), dense.data[0], plans.devices[0]) == ((8, 8, 1), (4, 1, 8), 4, 32)
    assert (group(plans.embedding.group("tables")), group(dense.shards)) == ((32, 8, 1), (1, 1, 1))
    assert (dense.same(plans.transformer)[0], dense.same(plans.embedding)[0]) == (True, False)
    assert str(Hierarchy(dense=("shard", "batch"), experts=("batch", "batch"), transformer=("shard", "batch"))) == (
        "dense (fsdp, ddp), embedding mp, experts ddp"
    )


# ------------------------------------------------------------------------------------------ schedules


def words(order):
    """Slots of every stage as text, such as F0 or B2.1 of a second row."""
    letters = {FORWARD: "F", BACKWARD: "B", WEIGHT: "W"}

    def word(kind, row, batch):
        return f"{letters[kind]}{batch}" + (f".{row // order.stages}" if row >= order.stages else "")

    return [" ".join(word(*slot) for slot in mine.tolist()) for mine in order.slots]


ORDERS = [
    ("1f1b", 3, 1, 4, ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
    ("gpipe", 2, 1, 2, ["F0 F1 B0 B1", "F0 F1 B0 B1"]),
    ("zb-h1", 2, 1, 3, ["F0 F1 B0 W0 F2 B1 W1 B2 W2", "F0 B0 F1 B1 W0 F2 B2 W1 W2"]),
    ("1f1b", 2, 2, 2, ["F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1", "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1"]),
    ("chimera", 2, 1, 2, ["F0 F1.1 B1.1 B0", "F1.1 F0 B0 B1.1"]),
    ("pipedream", 2, 1, 2, ["F0 F1 B0 B1", "F0 B0 F1 B1"]),
]


@pytest.mark.parametrize(("schedule", "stages", "chunks", "microbatches", "slots"), ORDERS)
def test_slots_of_schedules_by_hand(schedule, stages, chunks, microbatches, slots):
    order = pipeline_order(schedule, stages, chunks, microbatches)
    assert words(order) == slots
    assert order.flush == (schedule != "pipedream")
    assert order.split == (schedule == "zb-h1")


def test_passes_ahead_of_the_first_pair():
    """Narayanan 2021: p - i - 1; interleaved 2 (p - i - 1) + (v - 1) p."""
    assert [ahead(4, 1, stage) for stage in range(4)] == [3, 2, 1, 0]
    assert [ahead(4, 3, stage) for stage in range(4)] == [14, 12, 10, 8]


def test_what_slots_wait_for():
    """Two stages, two microbatches; numbers (kind x 2 + row) x 2 + microbatch, 12 for nothing."""
    order = pipeline_order("1f1b", 2, 1, 2)
    assert order.sources.tolist() == [12, 12, 0, 1, 6, 7, 2, 3, 4, 5, 6, 7, 12]
    assert [ids.tolist() for ids in order.ids] == [[0, 1, 4, 5], [2, 6, 3, 7]]
    assert order.chunk.tolist() == [0, 1]


def test_microbatches_that_schedules_keep():
    assert pipeline_order("1f1b", 3, 1, 4).kept().tolist() == [[3, 2, 1]]
    assert pipeline_order("zb-h1", 3, 1, 4).kept().tolist() == [[3, 3, 3]]
    assert pipeline_order("gpipe", 3, 1, 4).kept().tolist() == [[4, 4, 4]]


RUNS = [("chimera", 3, 1, 6), ("chimera", 4, 1, 6), ("zb-h1", 1, 1, 4), ("pipedream", 2, 2, 4)]


@pytest.mark.parametrize(("schedule", "stages", "chunks", "microbatches"), RUNS)
def test_shapes_that_schedules_refuse(schedule, stages, chunks, microbatches):
    assert schedule_problem(schedule, stages, chunks, microbatches) is not None
    assert schedule_problem(schedule, 4, 1, 8) is None


STAGES = [
    # layers, stages, of the first, of the last, layers of each
    (8, 4, 0, 0, (2, 2, 2, 2)), (10, 4, 0, 0, (2, 3, 3, 2)), (7, 4, 0, 0, (2, 2, 2, 1)), (9, 4, 0, 0, (2, 3, 2, 2)),
    (12, 4, 1, 0, (1, 4, 4, 3)), (12, 4, 0, 4, (3, 3, 2, 4)), (12, 3, 1, 4, (1, 7, 4)), (5, 2, 2, 3, (2, 3)),
]  # fmt: skip


def test_layers_of_stages_whose_costs_are_balanced():
    """Half of the cost is passed with the third of four layers; a dear head leaves it the last stage alone."""
    assert balanced_layers([1.0, 1.0, 1.0, 1.0], 0.0, 2) == (3, 1)
    assert balanced_layers([1.0, 1.0, 1.0, 1.0], 4.0, 2) == (4, 0)
    assert balanced_layers([3.0, 1.0, 1.0, 1.0], 1.0, 3) == (1, 2, 1)


def test_layers_of_stages_by_hand():
    assert [stage_layers(depth, stages, first, last) for depth, stages, first, last, _ in STAGES] == [each for *_, each in STAGES]


# ------------------------------------------------------------------------------------------ legal plans

SMALL = {
    "model": "transformer", "layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocabulary": 1000, "sequence": 32, "global_batch": 2,
}  # fmt: skip


def model_of(**changes):
    return TransformerSpec.model_validate({**SMALL, **changes}).transformer()


def test_plans_of_two_devices_by_hand():
    """Weights are sharded among replicas only, tokens among tensor ranks; two layers make no interleaved chunks."""
    found = legal_plans(model_of(), 2, 2, node=8, zeros=(0, 1), micro_batches=(1, 2), virtual_stages=(1, 2), again=(NOTHING,))
    one_each = [Plan(dp=2), Plan(dp=2, zero=1)]
    cut = [Plan(tp=2, micro_batch=micro, sequence_parallel=sp) for micro in (1, 2) for sp in (False, True)]
    assert list(found) == [*one_each, *cut, Plan(pp=2), Plan(pp=2, micro_batch=2)]


def test_four_layers_on_two_stages_interleave():
    found = legal_plans(model_of(layers=4), 2, 2, node=1, zeros=(0,), micro_batches=(1,), virtual_stages=(1, 2, 3), again=(NOTHING,))
    assert list(found) == [Plan(dp=2), Plan(pp=2), Plan(pp=2, virtual_stages=2)]


def test_plans_one_change_away_by_hand():
    found = neighbouring_plans(Plan(dp=2, recompute="full"), model_of(), 2, node=8)
    degrees = [Plan(tp=2, sequence_parallel=True, recompute="full"), Plan(pp=2, recompute="full")]
    context = Plan(cp=2, recompute="full")
    assert set(found) == {
        *degrees, context, *(Plan(dp=2, zero=zero, recompute="full") for zero in (1, 2, 3)), Plan(dp=2), Plan(dp=2, recompute="selective"),
        Plan(dp=2, recompute="selective", recompute_modules=("core_attn", "layernorm", "mlp")),
    }  # fmt: skip


PROBLEMS = [
    (
        Plan(dp=4, cp=2, zero=3, attention_shard_group=3), {},
        "8 ranks hold the same of attention, which are not divisible by attention_shard_group = 3",
    ),
    (Plan(dp=8, zero=3, shard_group=3), {}, "shard_group = 3 needs zero: 3 and must divide dp = 8"),
    (Plan(tp=2, etp=3), {"experts": {"count": 8, "active": 2}}, "etp = 3 is not divisible by tp = 2"),
    (Plan(cp=16), {}, None),
    (Plan(cp=32), {}, "the 32 tokens of a sample are not divisible by 2 x cp = 64: a context rank of a causal mask has two chunks"),
    (Plan(pp=4), {}, None),
    (Plan(pp=5), {}, "pp x virtual_stages = 5 x 1 chunks, but the model has 2 layers; stage_layers can list chunks without a layer, such as 0+1x2+0x2"),
    (Plan(pp=4, virtual_stages=2, micro_batch=2), {"layers": 8}, None),  # four microbatches of the eight samples of a replica
    (Plan(pp=4, virtual_stages=2, micro_batch=4), {"layers": 8}, "2 microbatches are not divisible by pp = 4, which the interleaved schedule needs"),
    (Plan(tp=4, mlp_tp=2, sequence_parallel=True, distant=("mlp",)), {}, None),
    (
        Plan(tp=4, cp=2, mlp_tp=2, sequence_parallel=True, distant=("mlp",)), {},
        "distant: mlp with mlp_tp = 2 would share each layer among ranks of other replicas; give tp all the ranks (dp x cp = 1 x 2)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "changes", "sentence"), PROBLEMS)
def test_why_a_plan_does_not_divide(plan, changes, sentence):
    assert plan_problem(plan, model_of(**changes), 8 * plan.dp) == sentence


def test_modules_that_are_computed_again_by_themselves():
    """As Megatron: where none is named, the core of attention alone."""
    assert Plan(recompute="selective").repeated == ("core_attn",)
    assert Plan(recompute="selective", recompute_modules=("mlp", "layernorm")).repeated == ("mlp", "layernorm")
    assert Plan(recompute="full").repeated == Plan().repeated == ()
