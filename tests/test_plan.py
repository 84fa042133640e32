# ruff: noqa: E501  (exact sentences)
"""Plans: text and mappings, every reason why one is impossible, layers of stages, groups of ranks against the placement's."""

import itertools
import math
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from sampled import fewer

from crossflow.base.errors import StrategyError
from crossflow.hardware.mapping.placement import place
from crossflow.hardware.mapping.topology import Network, Topology
from crossflow.parallel.strategy.again import NOTHING
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.legality import legal_plans, neighbouring_plans, plan_problem
from crossflow.parallel.strategy.mesh import BLOCKS, REPEATED, SCHEDULES, TYPES, divisors
from crossflow.parallel.strategy.plan import OWN_SHARDS, OWN_TENSOR, Plan
from crossflow.parallel.strategy.stages import balanced_layers, stage_layers
from crossflow.parallel.strategy.transformers import plan_of
from crossflow.workload.spec import TransformerSpec

GPT = {
    "model": "transformer", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000, "sequence": 512, "global_batch": 64,
}  # fmt: skip
KNOWN = "apart, attention_shard_group, attention_tp, cp, distant, dp, embedding_shard_group, embedding_tp, ep, etp, experts_shard_group, far, far_cache, far_experts, first_stage, kernel, kp1, kp2, last_stage, lp, micro_batch, mlp_shard_group, mlp_tp, offload, offload_layers, placement, pp, recompute, recompute_layers, recompute_modules, redundant_experts, schedule, sequence_parallel, shard_group, stage_layers, tp, unsharded, virtual_stages, zero"


def model_of(**changes):
    return TransformerSpec.model_validate({**GPT, **changes}).transformer()


MODEL = model_of()
EXPERTS = model_of(experts={"count": 8, "active": 2})


# -------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        ("tp8-pp4-dp16", Plan(tp=8, pp=4, dp=16)),
        ("dp16-tp8", Plan(tp=8, dp=16)),
        ("d4-p2", Plan(dp=4, pp=2)),
        (" tp2-cp2-ep4-dp2 ", Plan(tp=2, cp=2, ep=4, dp=2)),
        ("tp8-mb2-z1-sp-full", Plan(tp=8, micro_batch=2, zero=1, sequence_parallel=True, recompute="full")),
        ("dp2-sel:norm+up+act", Plan(dp=2, recompute="selective", recompute_modules=("layernorm", "mla_up_proj", "moe_act"))),
        ("sel:moe+core_attn-tp2", Plan(tp=2, recompute="selective", recompute_modules=("core_attn", "moe"))),
        ("sel:attn", Plan(recompute="selective")),
        ("pp2-v4-gpipe-selective", Plan(pp=2, virtual_stages=4, schedule="gpipe", recompute="selective")),
        ({}, Plan()),
        ({"tp": 8, "zero": 3, "shard_group": 4, "sequence_parallel": True}, Plan(tp=8, zero=3, shard_group=4, sequence_parallel=True)),
        ({"pp": 3, "first_stage": 5, "last_stage": 1}, Plan(pp=3, first_stage=5, last_stage=1)),
        ("pp4-layers:3+4x2+0", Plan(pp=4, stage_layers=(3, 4, 4, 0))),
        ({"pp": 4, "stage_layers": [3, 4, 4, 0]}, Plan(pp=4, stage_layers=(3, 4, 4, 0))),
        ({"pp": 4, "stage_layers": "3+4x2+0"}, Plan(pp=4, stage_layers=(3, 4, 4, 0))),
        ({"pp": 4, "stage_layers": [3, "4x2", 0]}, Plan(pp=4, stage_layers=(3, 4, 4, 0))),
        ({"pp": 4, "stage_layers": []}, Plan(pp=4)),
        ("dp8-z3-offload:weights+optimizer", Plan(dp=8, zero=3, offload=("optimizer", "weights"))),
        ({"dp": 8, "offload": "activations"}, Plan(dp=8, offload=("activations",))),
    ],
)
def test_plans_are_read_from_text_and_mappings(given, plan):
    assert plan_of(given) == plan


@pytest.mark.parametrize("key", ["offload", "unsharded"])
def test_choices_of_words_may_be_none_or_text(key):
    words = {"offload": ("optimizer", "activations"), "unsharded": ("mlp", "embedding")}[key]
    for nothing in ("none", [], ["none"]):
        assert plan_of({"dp": 8, key: nothing}) == plan_of(f"dp8-{key}:none") == Plan(dp=8)
    assert plan_of({"dp": 8, key: "+".join(words)}) == plan_of({"dp": 8, key: list(words)}) == plan_of(f"dp8-{key}:{'+'.join(words)}")


def test_apart_may_be_all_or_none_or_some_layer_types():
    for text, kinds in [(True, TYPES), (False, ()), ("none", ()), ("mlp", ("mlp",)), (["mlp", "attention"], ("attention", "mlp"))]:
        assert plan_of({"dp": 8, "apart": text}).apart == kinds


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tpp": 8}, f"unknown key 'tpp'; did you mean 'tp'?; known: {KNOWN}"),
        ({"quokka": 8}, f"unknown key 'quokka'; known: {KNOWN}"),
        ({1: 8}, f"unknown key '1'; known: {KNOWN}"),
        ({"tp": 0}, "tp must be a positive whole number, got 0"),
        ({"offload": "states"}, "offload must be none, or one or several of optimizer, weights, activations, each once, got 'states'"),
        ({"offload": 3}, "offload must be none, or one or several of optimizer, weights, activations, each once, got 3"),
        (
            {"offload": ["weights"] * 2},
            "offload must be none, or one or several of optimizer, weights, activations, each once, got ['weights', 'weights']",
        ),
        ({"tp": True}, "tp must be a positive whole number, got True"),
        ({"dp": "16"}, "dp must be a positive whole number, got '16'"),
        ({"pp": 2.0}, "pp must be a positive whole number, got 2.0; write 2"),
        ({"micro_batch": -1}, "micro_batch must be a positive whole number, got -1"),
        ({"first_stage": -1}, "first_stage must be a whole number, got -1"),
        ({"shard_group": None}, "shard_group must be a whole number, got None"),
        *(
            (
                {"stage_layers": wrong},
                f"stage_layers must list the layers of every stage (with virtual_stages: chunk), such as [3, 4, 4, 2] or 3+4x2+2, got {wrong!r}",
            )
            for wrong in (61, "3+x4", [3, -1], [True, 3], [2.0], "3*4")
        ),
        ({"zero": 4}, "zero must be one of 0, 1, 2, 3, got 4"),
        ({"zero": True}, "zero must be one of 0, 1, 2, 3, got True"),
        ({"zero": 1.0}, "zero must be one of 0, 1, 2, 3, got 1.0"),
        (
            {"recompute_modules": ["norm"]},
            "recompute_modules must be none, or one or several of core_attn, layernorm, mla_up_proj, moe_act, shared_experts, mlp, moe, each once,"
            " got ['norm']",
        ),
        ({"recompute": "all"}, "recompute must be one of none, selective, full, got 'all'"),
        (
            {"schedule": "1f2b"},
            "schedule must be one of 1f1b, gpipe, zb-h1, chimera, pipedream, dualpipe, zb-v, dualpipev or the path of a .yaml file, got '1f2b'; did you mean '1f1b'?",
        ),
        ({"sequence_parallel": 1}, "sequence_parallel must be true or false, got 1"),
        ("tp0", "tp must be a positive whole number, got 0"),
        (
            {"tp": 0, "zero": 7, "ppp": 2, "recompute": None},
            f"unknown key 'ppp'; did you mean 'pp'?; known: {KNOWN}; tp must be a positive whole number, got 0;"
            " zero must be one of 0, 1, 2, 3, got 7; recompute must be one of none, selective, full, got None",
        ),
    ],
)
def test_what_is_wrong_with_a_plan_is_told_all_at_once(given, sentence, exactly):
    with pytest.raises(StrategyError, match=exactly(f"strategy: {sentence}")):
        plan_of(given)


@pytest.mark.parametrize(
    ("text", "part", "why"),
    [
        ("tp8-x3", "x3", "not understood"),
        ("tp8-tp4", "tp4", "there twice"),
        ("dp4-d2", "d2", "there twice"),
        ("full-selective", "selective", "there twice"),
        ("tp16-distant:mlp-distant:experts", "distant:experts", "there twice"),
        ("tp8-pp", "pp", "not understood"),
        ("TP8", "TP8", "not understood; did you mean 'tp8'?"),
        ("tp8-selective:norm", "selective:norm", "not understood; did you mean 'sel:norm'?"),
        ("tp8--pp2", "", "not understood"),
        ("", "", "not understood"),
    ],
)
def test_text_that_is_no_plan_is_told(text, part, why, exactly):
    cure = "write degrees and options such as tp8-pp4-dp16-mb2-z1-sp-full (numbers: tp, cp, ep, etp, re, atp, mlptp, embtp, dp, pp, v, mb, z, g, ag, mlpg, eg, embg, first, last, ol, rl, fe, fc; words: sp, apart, selective, full, gpipe, zbh1, chimera, pipedream, dualpipe, zbv, dualpipev, offload:optimizer+weights+activations, far:weights+experts+cache+optimizer, sel:attn+norm+up+act+shared+mlp+moe, unsharded:embedding, distant:mlp, placed:dp+tp+pp, layers:3+4x2+2, order:FILE.yaml), or a mapping"
    said = why if "did you mean" in why else f"{why}; {cure}"
    with pytest.raises(StrategyError, match=exactly(f"strategy '{text}': '{part}' is {said}")):
        plan_of(text)


PLACEMENTS = list(itertools.permutations(BLOCKS))


@pytest.mark.parametrize("given", ["dp", ["dp", ["tp"], "pp"], ["dp", "tp"], ["dp", "dp", "pp"], ["dp", "tp", "cp"], 3])
def test_a_placement_is_an_order_of_all_blocks(given, exactly):
    sentence = f"strategy: placement must be tp, dp, pp in some order, the nearest ranks first, got {given!r}"
    with pytest.raises(StrategyError, match=exactly(sentence)):
        plan_of({"tp": 2, "placement": given})


AGAIN = st.one_of(
    st.fixed_dictionaries({"recompute": st.sampled_from(["none", "selective", "full"])}),
    st.fixed_dictionaries(
        {
            "recompute": st.just("selective"),
            "recompute_modules": st.sets(st.sampled_from(REPEATED), min_size=1)
            .map(lambda some: tuple(name for name in REPEATED if name in some))
            .filter(lambda some: some != ("core_attn",)),  # which needs no list
        }
    ),
)


@st.composite
def plans(draw):
    number = st.integers(1, 64)
    return Plan(
        **{name: draw(number) for name in ("tp", "cp", "ep", "dp", "pp", "virtual_stages", "micro_batch")},
        **{
            name: draw(st.integers(0, 9))
            for name in (*OWN_TENSOR.values(), *OWN_SHARDS.values(), "first_stage", "last_stage", "shard_group")
        },
        zero=draw(st.integers(0, 3)),
        **{name: tuple(kind for kind in TYPES if draw(st.booleans())) for name in ("apart", "distant", "unsharded")},
        stage_layers=tuple(draw(st.lists(st.integers(0, 3), max_size=12))),
        sequence_parallel=draw(st.booleans()),
        **draw(AGAIN),
        schedule=draw(st.sampled_from([*SCHEDULES, "my-own/order.yaml"])),
        placement=draw(st.sampled_from(PLACEMENTS)),
    )


@pytest.mark.slow
@given(plans())
def test_a_plan_as_text_is_read_back(plan):
    assert plan_of(str(plan)) == plan


@given(plans())
def test_the_mesh_has_as_many_devices_as_the_plan(plan):
    assert math.prod(axis.size for axis in plan.axes) == plan.devices == plan.tp * plan.cp * plan.dp * plan.pp


# -------------------------------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (Plan(tp=3), "16 attention heads are not divisible by tp = 3"),
        (
            Plan(pp=11),
            "pp x virtual_stages = 11 x 1 chunks, but the model has 8 layers; stage_layers can list chunks without a layer, such as 0+1x8+0x2",
        ),
        (
            Plan(pp=4, virtual_stages=4),
            "pp x virtual_stages = 4 x 4 chunks, but the model has 8 layers; stage_layers can list chunks without a layer, such as 0+1x8+0x7",
        ),
        (
            Plan(pp=4, stage_layers=(4, 4)),
            "stage_layers lists 2 chunks, but pp x virtual_stages = 4 x 1 = 4 chunks need a number each, 0 where one has no layer",
        ),
        (Plan(pp=2, stage_layers=(4, 3)), "stage_layers adds up to 7 layers, but the model has 8; place 1 more"),
        (Plan(pp=2, stage_layers=(4, 6)), "stage_layers adds up to 10 layers, but the model has 8; place 2 fewer"),
        (
            Plan(pp=2, stage_layers=(4, 4), first_stage=4),
            "stage_layers lists the first and the last stage too; leave first_stage and last_stage out",
        ),
        (Plan(virtual_stages=2), "virtual_stages > 1 needs a pipeline, but pp = 1"),
        (
            Plan(offload=("weights", "optimizer")),
            "offload: weights needs zero: 3, which shares them out, and the optimizer's states on the host too",
        ),
        (
            Plan(zero=3, offload=("weights",)),
            "offload: weights needs zero: 3, which shares them out, and the optimizer's states on the host too",
        ),
        (
            Plan(pp=3, first_stage=4, last_stage=4),
            "first_stage = 4 and last_stage = 4 leave no layer for another of 3 stages; stage_layers can list stages without a layer",
        ),
        (Plan(pp=2, first_stage=3, last_stage=4), "first_stage = 3 and last_stage = 4 do not add up to 8 layers in 2 stages"),
        (Plan(first_stage=5), "first_stage = 5 and last_stage = 0 do not add up to 8 layers in 1 stages"),
        (Plan(cp=3, dp=3), "the 512 tokens of a sample are not divisible by cp = 3"),
        (Plan(cp=512), "the 512 tokens of a sample are not divisible by 2 x cp = 1024: a context rank of a causal mask has two chunks"),
        (Plan(cp=128, tp=8, sequence_parallel=True), "the 512 tokens of a sample are not divisible by cp x tp = 1024"),
        (Plan(dp=3), "global_batch = 64 is not divisible by dp x micro_batch = 3 x 1"),
        (Plan(dp=32, micro_batch=4), "global_batch = 64 is not divisible by dp x micro_batch = 32 x 4"),
        (Plan(pp=4, virtual_stages=2, dp=32), "2 microbatches are not divisible by pp = 4, which the interleaved schedule needs"),
        (Plan(ep=2, dp=2), "ep = 2, but the model has no experts"),
        (Plan(zero=3, dp=8, shard_group=3), "shard_group = 3 needs zero: 3 and must divide dp = 8"),
        (Plan(zero=1, dp=8, shard_group=4), "shard_group = 4 needs zero: 3 and must divide dp = 8"),
        (Plan(tp=8, attention_tp=3), "16 attention heads are not divisible by attention_tp = 3"),
        (Plan(tp=8, mlp_tp=4, attention_tp=16), "tp = 8 is not divisible by attention_tp = 16"),
        (
            Plan(tp=8, embedding_tp=1),
            "embedding_tp = 1 below tp = 8 needs sequence_parallel: true, which gives every tensor rank tokens of its own",
        ),
        (
            Plan(tp=8, attention_tp=2, micro_batch=2, sequence_parallel=True),
            "attention_tp = 2 below tp = 8 needs micro_batch to divide by 4, for each group attends to samples of its own",
        ),
        (
            Plan(tp=8, attention_tp=1, micro_batch=4, sequence_parallel=True),
            "attention_tp = 1 below tp = 8 needs micro_batch to divide by 8, for each rank attends to samples of its own",
        ),
        (Plan(dp=8, unsharded=("mlp",)), "unsharded says how weights are sharded, which zero: 3 does"),
        (Plan(dp=8, zero=3, unsharded=("experts",)), "unsharded: experts, but the model has no experts"),
        (Plan(dp=8, zero=2, apart=TYPES), "apart says how weights are sharded, which zero: 3 does"),
        (Plan(dp=8, zero=3, apart=TYPES), "apart says how ranks of a shard group lie; give shard_group too"),
        (
            Plan(dp=8, zero=3, unsharded=("mlp",), offload=("optimizer", "weights")),
            "offload: weights needs all weights sharded; leave unsharded out",
        ),
        (
            Plan(zero=3, dp=8, pp=2, schedule="zb-h1"),
            "zero: 3 gathers a layer's weights for each pass and shares out its gradients after it, which schedule: zb-h1 keeps for later;"
            " it is not supported, use 1f1b or gpipe, or zero: 1",
        ),
        (
            Plan(tp=8, distant=("mlp",)),
            "distant: mlp has no copies within a tensor group that could lie nearer than what shares it (tp = 8)",
        ),
        (
            Plan(tp=8, dp=2, mlp_tp=2, sequence_parallel=True, distant=("mlp",)),
            "distant: mlp with mlp_tp = 2 would share each layer among ranks of other replicas; give tp all the ranks (dp x cp = 2 x 1)",
        ),
        (Plan(dp=8, distant=("experts",)), "distant: experts, but the model has no experts"),
        (
            Plan(tp=8, dp=2, attention_tp=1, micro_batch=8, sequence_parallel=True, distant=("attention",), placement=("dp", "tp", "pp")),
            "distant: attention is not shared by several ranks (attention_tp = 1), so that none can lie far apart",
        ),
    ],
)
def test_why_a_plan_is_impossible(plan, sentence):
    assert plan_problem(plan, MODEL, 64) == sentence


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (Plan(ep=3, dp=3, micro_batch=1), "8 experts are not divisible by ep = 3"),
        (Plan(ep=4, dp=2), "dp x cp = 2 x 1 ranks are not divisible by ep = 4"),
        (Plan(tp=4, etp=3), "tp = 4 is not divisible by etp = 3"),
        (
            Plan(tp=4, ep=8, etp=2, dp=2, sequence_parallel=True),
            "tp x dp x cp / etp = 4 x 2 x 1 / 2 ranks are not divisible by ep = 8; they do with etp: 1",
        ),
        (
            Plan(tp=8, ep=8),
            "dp x cp = 1 x 1 ranks are not divisible by ep = 8; they do with etp: 1 and sequence_parallel: true",
        ),
        (Plan(tp=2, etp=3, dp=3, sequence_parallel=True), "etp = 3 is not divisible by tp = 2"),
        (Plan(tp=2, etp=4, dp=4), "etp = 4 above tp = 2 needs sequence_parallel: true, which gives every tensor rank tokens of its own"),
        (Plan(etp=2, ep=8, dp=8), "tp x dp x cp / etp = 1 x 8 x 1 / 2 ranks are not divisible by ep = 8; they do with etp: 1"),
        (Plan(etp=2, ep=4, dp=8), None),
        (Plan(tp=2, etp=4, ep=8, dp=4, cp=4, sequence_parallel=True), None),
        (Plan(tp=8, etp=1, ep=8, dp=2, pp=4, sequence_parallel=True, placement=("tp", "pp", "dp")), None),
        (
            Plan(tp=4, ep=2, etp=2, dp=2),
            "etp = 2 below tp = 4 needs sequence_parallel: true, which gives every tensor rank tokens of its own",
        ),
        (
            Plan(tp=4, ep=4, etp=2, dp=2, sequence_parallel=True, placement=("dp", "tp", "pp")),
            "etp = 2 below tp = 4 needs dp right after tp in placement, for ranks that hold the same lie along both",
        ),
        (Plan(tp=4, ep=4, etp=2, dp=2, sequence_parallel=True), None),
    ],
)
def test_why_experts_cannot_be_shared_out(plan, sentence):
    assert plan_problem(plan, EXPERTS, 6 * 64) == sentence


@pytest.mark.parametrize(
    ("task", "cure"),
    [("training", "etp: 1 and sequence_parallel: true"), ("decode", "etp: 1"), ("prefill", "etp: 1"), ("forward", "etp: 1")],
)
def test_experts_that_fill_the_tensor_group_of_a_service_need_no_exchange(task, cure):
    """What is told works; where ranks may have all tokens, as in services, it is the cure without an exchange."""
    sentence = f"dp x cp = 1 x 1 ranks are not divisible by ep = 8; they do with {cure}"
    assert plan_problem(Plan(tp=8, ep=8), EXPERTS, 64, task=task) == sentence
    assert plan_problem(Plan(tp=8, ep=8, etp=1, sequence_parallel=task == "training"), EXPERTS, 64, task=task) is None
    half = "dp x cp = 1 x 1 ranks are not divisible by ep = 4; they do with etp: 2"
    more = "" if task != "training" else " and sequence_parallel: true"
    assert plan_problem(Plan(tp=8, ep=4), EXPERTS, 64, task=task) == half + more


def test_an_expert_divides_by_its_own_degree_and_a_shared_one_by_that_of_the_layers():
    narrow = model_of(experts={"count": 8, "active": 2, "ffn": 4104})
    assert plan_problem(Plan(tp=16), narrow, 64) == "4104 inner elements of an expert are not divisible by tp = 16"
    assert plan_problem(Plan(tp=16, etp=8, sequence_parallel=True), narrow, 64) is None
    shared = model_of(experts={"count": 8, "active": 2, "shared": 1001})
    assert plan_problem(Plan(tp=2), shared, 64) == "1001 inner elements of the MLP are not divisible by tp = 2"


def test_only_a_models_experts_have_a_degree_of_their_own():
    assert plan_problem(Plan(tp=4, etp=2), MODEL, 64) == "etp = 2, but the model has no experts"


def test_an_mlp_that_does_not_divide():
    assert plan_problem(Plan(tp=16), model_of(ffn=4104), 64) == "4104 inner elements of the MLP are not divisible by tp = 16"


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(tp=16),
        Plan(pp=4, virtual_stages=2),
        Plan(pp=3, first_stage=3),
        Plan(cp=4, dp=8, zero=3, shard_group=2),
        Plan(pp=10),
        Plan(pp=4, virtual_stages=3, stage_layers=(0, 4, *(0,) * 9, 4)),
        Plan(pp=2, virtual_stages=3),
    ],
)
def test_what_divides_has_no_problem(plan):
    assert plan_problem(plan, MODEL, 64) is None


def test_layers_need_not_divide_over_chunks():
    assert plan_problem(Plan(pp=3, virtual_stages=2), MODEL, 66) is None
    assert plan_problem(Plan(pp=5, virtual_stages=2), MODEL, 65) is None  # whose ends hold the embedding and the head alone


def test_balanced_stages_may_outnumber_the_layers():
    assert plan_problem(Plan(pp=12), MODEL, 64, balanced=True) is None
    assert "8 layers" in plan_problem(Plan(pp=17), MODEL, 64, balanced=True)


# -------------------------------------------------------------------------------------------- layers of stages


def test_tensor_ranks_may_divide_the_elements_of_tokens_in_the_place_of_tokens():
    model = model_of(hidden=1536, heads=12, ffn=6144)
    plan = Plan(tp=12, sequence_parallel=True)
    tokens = model.layers[0].tokens
    assert plan_problem(plan, model, 64) == f"the {tokens} tokens of a sample are not divisible by cp x tp = 12"
    assert plan_problem(plan, model, 64, elements=True) is None
    narrow = model_of(hidden=1000, heads=12, head_dim=64, ffn=6144)
    needs = "the 1000 elements of a token are not divisible by tp = 12, as sequence_parallel needs"
    assert plan_problem(plan, narrow, 64, elements=True) == needs


def test_layers_of_bloom():
    """70 layers over 12 stages: embedding and head count as a layer each, as in BLOOM's training."""
    assert stage_layers(70, 12) == (5, *(6,) * 10, 5)


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ((8, 4), (2, 2, 2, 2)),
        ((10, 3), (3, 4, 3)),
        ((9, 4), (2, 3, 2, 2)),
        ((11, 4), (3, 3, 3, 2)),
        ((13, 8), (1, 2, 2, 2, 2, 2, 1, 1)),
        ((96, 3, 20, 0), (20, 38, 38)),
        ((96, 4, 0, 21), (25, 25, 25, 21)),
        ((10, 4, 1, 3), (1, 3, 3, 3)),
        ((10, 2, 4, 6), (4, 6)),
        ((7, 1), (7,)),
        ((126, 128), (0, *(1,) * 126, 0)),  # Llama 3.1 405B, 16 stages of 8 chunks (arXiv:2407.21783, Sec. 3.3.2)
        ((61, 16), (3, *(4,) * 13, 3, 3)),
        ((8, 9), (*(1,) * 8, 0)),
    ],
)
def test_layers_of_stages(given, layers):
    assert stage_layers(*given) == layers


@given(st.integers(1, 130), st.integers(1, 40))
def test_stages_hold_all_layers_as_evenly_as_can_be(depth, stages):
    sizes = stage_layers(depth, stages)
    assert (len(sizes), sum(sizes)) == (stages, depth)
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 130), st.integers(2, 16), st.integers(1, 8))
def test_stages_of_several_chunks_hold_layers_as_evenly_too(depth, stages, chunks):
    sizes = np.array(stage_layers(depth, stages * chunks)).reshape(chunks, stages).sum(axis=0)
    assert (sizes.sum(), sizes.max() - sizes.min() <= 1) == (depth, True)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.floats(0, 50), st.integers(1, 8))
def test_a_balanced_stage_ends_with_the_layer_that_passes_its_share(costs, head, stages):
    sizes, share = balanced_layers(costs, head, stages), (sum(costs) + head) / stages
    assert sum(sizes) == len(costs)
    done = 0
    for stage, size in enumerate(sizes[:-1]):
        done += size
        if size > 1:
            assert sum(costs[: done - 1]) <= share * (stage + 1) * (1 + 1e-9)
        if done < len(costs):
            assert size > 0
            assert sum(costs[:done]) >= share * (stage + 1) * (1 - 1e-9)


@given(st.integers(1, 3000))
def test_divisors_divide(number):
    assert divisors(number) == [part for part in range(1, number + 1) if number % part == 0]


# -------------------------------------------------------------------------------------------- arrays of plans

MIXED = [
    Plan(),
    Plan(tp=8, pp=2, dp=4, zero=1, recompute="full", sequence_parallel=True),
    Plan(cp=2, dp=16, zero=3, shard_group=8),
    Plan(pp=4, virtual_stages=2, micro_batch=2, recompute="selective", schedule="gpipe"),
    Plan(tp=2, ep=4, dp=8, pp=3, first_stage=2, last_stage=3, placement=("dp", "tp", "pp")),
    Plan(tp=8, ep=8, etp=2, dp=4, sequence_parallel=True),
    Plan(tp=8, attention_tp=2, mlp_tp=4, embedding_tp=1, dp=4, zero=3, unsharded=("mlp",), micro_batch=4, sequence_parallel=True),
    Plan(dp=16, zero=3, shard_group=2, apart=TYPES),
    Plan(dp=16, ep=4, zero=3, shard_group=8, attention_shard_group=2, experts_shard_group=4, apart=("attention",)),
    Plan(tp=16, attention_tp=2, sequence_parallel=True, micro_batch=8, ep=2, etp=1, distant=("attention", "experts")),
    Plan(etp=4, ep=2, dp=16),
    Plan(tp=8, ep=8, etp=1, dp=2, pp=4, sequence_parallel=True, placement=("tp", "pp", "dp"), stage_layers=(0, 4, 4, 0)),
]
INDEXED = ("schedule", "schedules", "placement", "placements", "division", "divisions", "part")
TABLES = ("offload", "far", "repeated", "own_tensor", "own_shards", "apart", "unsharded", "distant")


def groups(layout):
    """Groups of ranks by name, with those of every layer type's weights."""
    found = {name: getattr(layout, name) for name in ("tensor", "context", "expert", "ends")}
    for kind in TYPES:
        found[f"{kind} sharing"] = layout.sharing(kind)
        spread = layout.spread(kind)
        found |= {f"{kind} data": spread.data, f"{kind} shards": spread.shards, f"{kind} copies": spread.copies}
    return found


@pytest.mark.parametrize("i", range(len(MIXED)))
def test_a_layout_of_many_is_each_alone(i):
    batch = np.array([64.0, 32.0, 128.0, 64.0, 48.0, 64.0, 64.0, 64.0, 64.0, 64.0, 64.0, 64.0])
    many, one = Layout.of(MIXED, batch, 8), Layout.of([MIXED[i]], batch[[i]], 8)
    for name in (field for field in one.__dataclass_fields__ if field not in ("node", *TABLES, *INDEXED)):
        assert getattr(many, name)[i] == getattr(one, name)[0], name
    for mine, other in zip(groups(many).values(), groups(one).values(), strict=True):
        assert (mine.size[i], mine.per_node[i], mine.stride[i]) == (other.size[0], other.per_node[0], other.stride[0])
    for kind in TYPES:
        assert many.spread(kind).zero[i] == one.spread(kind).zero[0]
        assert many.tensor_of(kind)[i] == one.tensor_of(kind)[0]


def test_kinds_of_a_group_hold_every_point_once():
    group = Layout.of(MIXED, np.full(len(MIXED), 64.0), 8).spread("mlp").data
    assert sorted(int(i) for *_, members in group.kinds for i in members) == list(range(len(MIXED)))
    for ranks, per_node, members in group.kinds:
        assert (group.size[members] == ranks).all()
        assert (group.per_node[members] == per_node).all()


@pytest.mark.parametrize("plan", MIXED, ids=str)
def test_groups_multiply_to_the_devices(plan):
    layout = Layout.of([plan], np.array([96.0]), 8)
    sizes = {name: group.size[0] for name, group in groups(layout).items()}
    for kind in TYPES:
        several = sizes["expert"] if kind == "experts" else 1
        assert plan.tensor_of(kind) * several * sizes[f"{kind} data"] * plan.pp == plan.devices
        assert sizes[f"{kind} shards"] * sizes[f"{kind} copies"] == sizes[f"{kind} data"]
        assert sizes[f"{kind} sharing"] == plan.tensor_of(kind)
    assert layout.microbatches[0] * plan.micro_batch * plan.dp == 96


def random_mesh(seed):
    """A node, a number of nodes, and sizes of tp, cp, dp, pp that fill them, prime factors dealt at random."""
    rng = np.random.default_rng(seed)
    node, nodes, sizes = int(rng.choice([4, 5, 8, 12, 16])), int(rng.choice([1, 2, 3, 4, 6])), [1, 1, 1, 1]
    left = node * nodes
    while left > 1:
        prime = next(p for p in range(2, left + 1) if left % p == 0)
        sizes[rng.integers(4)] *= prime
        left //= prime
    return node, nodes, sizes


@pytest.mark.cases(16)
@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS, ids="-".join)
@pytest.mark.parametrize("seed", range(fewer(60, 16)))
def test_ranks_of_a_node_are_those_of_the_placement(seed, placement):
    node, nodes, (tp, cp, dp, pp) = random_mesh(seed)
    switches = [Topology(kind="switch" if size > 1 else "single", nodes=size) for size in (node, nodes)]
    network = Network(package=switches[0], cluster=switches[1])
    plan = Plan(tp=tp, cp=cp, dp=dp, pp=pp, placement=placement)
    layout = Layout.of([plan], np.array([float(dp)]), node)
    apart = place({axis.name: axis.size for axis in plan.axes}, network)
    assert layout.tensor.per_node[0] == apart.route("tp").package_size
    assert layout.context.per_node[0] == apart.route("cp").package_size
    sizes = {"tp": tp, "dp": dp * cp, "pp": pp}
    assert layout.spread("mlp").data.per_node[0] == place({block: sizes[block] for block in placement}, network).route("dp").package_size


def ranks_of_stages(plan):
    """Ranks of every stage, each in the same place as those that it sends to, shape (stages, ranks)."""
    sizes = {"tp": plan.tp, "dp": plan.cp * plan.dp, "pp": plan.pp}
    mesh = np.arange(plan.devices).reshape([sizes[block] for block in plan.placement[::-1]])
    return np.moveaxis(mesh, plan.placement[::-1].index("pp"), 0).reshape(plan.pp, -1)


@pytest.mark.cases(16)
@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS, ids="-".join)
@pytest.mark.parametrize("seed", range(fewer(60, 16)))
def test_stages_in_different_nodes_are_those_of_their_ranks(seed, placement):
    """Of any two stages, neighbours or not, rank by rank; and of the first and the last one."""
    node, _, (tp, cp, dp, pp) = random_mesh(seed)
    plan = Plan(tp=tp, cp=cp, dp=dp, pp=pp, placement=placement)
    layout, nodes = Layout.of([plan], np.array([float(dp)]), node), ranks_of_stages(plan) // node
    first, last = np.triu_indices(pp, 1)
    expected = (nodes[first] != nodes[last]).any(axis=1)
    assert layout.crosses(first[:, None], last[:, None])[:, 0].tolist() == expected.tolist()
    assert layout.ends.per_node[0] == (1 if pp == 1 or (nodes[0] != nodes[-1]).any() else 2)


def test_stages_of_many_plans_lie_as_those_of_each():
    found = [Plan(tp=tp, dp=dp, pp=8, placement=placement) for tp in (1, 2, 3) for dp in (1, 3, 4) for placement in PLACEMENTS]
    first, last = (stages[:, None].astype(float) for stages in np.triu_indices(8, 1))
    together = Layout.of(found, np.full(len(found), 12.0), 8).crosses(first, last)
    each = [Layout.of([plan], np.array([12.0]), 8).crosses(first, last)[:, 0] for plan in found]
    np.testing.assert_array_equal(together, np.stack(each, axis=1))


@pytest.mark.parametrize("seed", range(fewer(60, 16)))
def test_experts_along_tensor_ranks_are_those_of_the_placement(seed):
    """Ranks that share an expert lie nearest, then those that share experts out, then those that hold the same."""
    node, nodes, (etp, ep, same, pp) = random_mesh(seed)
    switches = [Topology(kind="switch" if size > 1 else "single", nodes=size) for size in (node, nodes)]
    placed = place({"etp": etp, "ep": ep, "same": same, "pp": pp}, Network(package=switches[0], cluster=switches[1]))
    for tp in (etp * ep, 1, etp):
        plan = Plan(tp=tp, ep=ep, etp=etp, dp=etp * ep * same // tp, pp=pp, sequence_parallel=True)
        layout = Layout.of([plan], np.array([float(plan.dp)]), node)
        for group, axis, size in ((layout.expert, "ep", ep), (layout.spread("experts").data, "same", same)):
            assert (group.size[0], group.per_node[0]) == (size, placed.route(axis).package_size)
        sharing = layout.sharing("experts")
        assert (sharing.size[0], sharing.per_node[0]) == (etp, placed.route("etp").package_size)


@pytest.mark.parametrize("seed", range(fewer(60, 16)))
def test_experts_and_shards_of_a_node_are_those_of_the_placement(seed):
    """Experts over the nearest data ranks, weights over the nearest `shard_group`; what holds the same lies beyond."""
    node, nodes, (tp, near, far, pp) = random_mesh(seed)
    placement = PLACEMENTS[seed % len(PLACEMENTS)]
    switches = [Topology(kind="switch" if size > 1 else "single", nodes=size) for size in (node, nodes)]
    axes = {"tp": {"tp": tp}, "dp": {"near": near, "far": far}, "pp": {"pp": pp}}
    ordered = {name: size for block in placement for name, size in axes[block].items()}
    placed = place(ordered, Network(package=switches[0], cluster=switches[1]))
    plan = Plan(tp=tp, ep=near, dp=near * far, pp=pp, shard_group=near, placement=placement)
    layout = Layout.of([plan], np.array([float(plan.dp)]), node)
    weights = layout.spread("mlp")
    swapped = Layout.of([replace(plan, shard_group=far, apart=TYPES)], np.array([float(plan.dp)]), node).spread("mlp")
    for nearest, beyond in (
        (layout.expert, layout.spread("experts").data),
        (weights.shards, weights.copies),
        (swapped.copies, swapped.shards),
    ):
        assert (nearest.size[0], nearest.per_node[0]) == (near, placed.route("near").package_size)
        assert (beyond.size[0], beyond.per_node[0]) == (far, placed.route("far").package_size)


# -------------------------------------------------------------------------------------------- neighbours


@pytest.mark.parametrize(
    "text", ["dp8", "tp4-pp2-dp1", "tp2-dp2-pp2-mb2-z1-sp-full", "cp2-tp2-dp2", "pp4-dp2-v2-mb4", "pp4-dp2-layers:1+3x2+1"]
)
@pytest.mark.parametrize("model", [MODEL, EXPERTS], ids=["dense", "experts"])
def test_neighbours_divide_the_same_devices_and_are_one_change_away(text, model):
    plan = plan_of(text)
    found = neighbouring_plans(plan, model, 64, node=8)
    assert len(set(found)) == len(found) > 3
    for other in found:
        assert other != plan
        assert other.devices == plan.devices
        assert plan_problem(other, model, 64) is None
        assert plan_of(str(other)) == other
        names = {words.split()[0] for words in plan.changes(other).split(", ")} - {"sequence_parallel", "stage_layers", "recompute_modules"}
        assert len(names) <= 2
        assert names <= {"tp", "cp", "dp", "pp"} or len(names) <= 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_whole_experts_that_ranks_of_a_group_share_out_may_lie_far_apart(ranks):
    plan = Plan(tp=8, ep=ranks, etp=1, sequence_parallel=True, distant=("experts",))
    assert plan_problem(plan, EXPERTS, 64) is None


def test_neighbours_lie_in_every_order():
    found = {plan.placement for plan in neighbouring_plans(plan_of("tp2-pp2-dp2"), MODEL, 64, node=8)}
    assert found == set(itertools.permutations(("tp", "dp", "pp")))
    alone = [plan for plan in neighbouring_plans(plan_of("tp2-dp4"), MODEL, 64, node=8) if plan.placement[0] != "tp"]
    assert [str(plan) for plan in alone] == ["tp2-dp4-placed:dp+tp+pp"]


def test_a_degree_grows_by_the_smallest_factor_by_which_another_can_shrink():
    """Eight replicas become four, and six become three: a prime factor of two goes to another degree, never more at once."""
    for text, batch in [("dp8", 64), ("dp6", 48)]:
        found = neighbouring_plans(plan_of(text), MODEL, batch, node=8)
        assert {plan.cp for plan in found} == {plan.tp for plan in found} == {1, 2}


def test_a_list_of_layers_stays_with_as_many_stages():
    found = neighbouring_plans(plan_of("pp4-dp2-layers:1+3x2+1"), MODEL, 64, node=8)
    assert {plan.stage_layers for plan in found if plan.pp == 4} == {(1, 3, 3, 1), ()}
    assert plan_of("pp4-dp2-layers:1+3x2+1").changes(plan_of("pp2-dp4")) == "dp 2 to 4, pp 4 to 2, stage_layers 1+3x2+1 to none"


def test_chunks_that_are_not_even_are_listed_where_the_stages_are_not_either():
    """Of eight layers in two or four stages the even ones alone; in three stages all that have a layer a chunk, or nearly."""
    found = {(plan.pp, plan.virtual_stages) for plan in legal_plans(MODEL, 12, 48, node=4)}
    assert found == {(1, 1), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (6, 1)}


def test_neighbours_of_neighbours_lead_back():
    plan = plan_of("tp2-dp2-pp2-mb2-z1-sp")
    for other in neighbouring_plans(plan, MODEL, 64, node=8):
        assert plan in neighbouring_plans(other, MODEL, 64, node=8) or other.tp == 1  # which has no sequence parallelism to keep


def test_neighbours_keep_tensor_groups_in_a_node():
    assert all(other.tp <= 4 for other in neighbouring_plans(plan_of("tp4-dp4"), MODEL, 64, node=4))


def test_neighbours_of_a_service_take_all_requests_of_a_replica():
    found = neighbouring_plans(plan_of("tp2-dp4").serving(64), MODEL, 64, node=8, task="decode")
    assert {(other.dp, other.micro_batch) for other in found} >= {(8, 8), (2, 32)}
    assert all(other.recompute == "none" and other.virtual_stages == 1 for other in found)


def test_a_service_with_a_microbatch_of_its_own_keeps_it_but_for_one_change():
    plan = plan_of("tp2-dp4-mb2")
    found = neighbouring_plans(plan, MODEL, 64, node=8, task="decode")
    assert {other.micro_batch for other in found if other.dp != 4} == {2}
    assert {(other.dp, other.micro_batch) for other in found} >= {(4, 1), (4, 4), (4, 16)}  # half, twice, all requests at once


def test_changes_are_told_in_words():
    plan = plan_of("tp8-dp2")
    assert plan.changes(plan_of("tp4-dp4-sp-full")) == "tp 8 to 4, dp 2 to 4, sequence_parallel off to on, recompute none to full"
    assert plan.changes(plan_of("tp8-dp2-offload:optimizer")) == "offload none to optimizer"
    assert plan.changes(plan) == ""


def test_context_ranks_are_listed_where_each_keeps_a_long_slice_of_a_sample():
    def degrees(tokens, task="training"):
        return {plan.cp for plan in legal_plans(model_of(sequence=tokens), 8, 8, node=4, task=task, again=(NOTHING,))}

    assert degrees(8192) == degrees(16383) == {1}
    assert degrees(32768) == degrees(32768, "forward") == {1, 2, 4}
    assert degrees(32768, "prefill") == {1}


def test_listed_context_ranks_divide_the_devices_and_share_out_weights():
    plans = list(legal_plans(model_of(sequence=65536), 8, 2, node=4, again=(NOTHING,)))
    assert all(plan.tp * plan.cp * plan.pp * plan.dp == 8 for plan in plans)
    assert any(plan.cp == 8 and plan.dp == 1 and plan.zero == 3 for plan in plans)  # context ranks share out what replicas do


def test_every_plan_that_is_listed_for_a_service_divides_its_prompts_too():
    """Nodes of 6 devices: tensor groups of 3 do not divide prompts of 64 tokens, as sequence parallelism would need."""
    model = model_of(sequence=64, heads=24, hidden=96, ffn=384)
    plans = list(legal_plans(model, 6, 36, node=6, task="decode"))
    assert {(plan.tp, plan.sequence_parallel) for plan in plans} == {(1, False), (2, False), (2, True), (3, False), (6, False)}
    assert all(plan_problem(plan, model, 36, task="decode") is None for plan in plans)
