# ruff: noqa: E501  (exact sentences)
"""Plans of transformers from roles by layer type."""

import itertools
import math

import numpy as np
import pytest

from crossflow import from_dict, predict
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import SpecError, StrategyError
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.legality import plan_problem
from crossflow.parallel.strategy.mesh import TYPES
from crossflow.parallel.strategy.notation import TRANSFORMER, parse
from crossflow.parallel.strategy.transformers import plan_of, plan_of_roles

MIXTRAL = from_dict({"system": "dgx-h100", "workload": "mixtral-8x7b", "strategy": "d8"}).job().model


def of_roles(given, *, node=8, nodes=256, experts=True, training=True):
    return plan_of_roles(parse(given, TRANSFORMER), 2048, node, nodes, experts=experts, training=training)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (["ddp"], {"tp": 1, "dp": 2048, "zero": 0, "shard_group": 0}),
        (["fsdp"], {"tp": 1, "dp": 2048, "zero": 3, "shard_group": 0}),
        (["fsdp", "ddp"], {"tp": 1, "dp": 2048, "zero": 3, "shard_group": 8}),
        (["tp", "ddp"], {"tp": 8, "dp": 256, "zero": 0, "shard_group": 0}),
        (["tp", "fsdp"], {"tp": 8, "dp": 256, "zero": 3, "shard_group": 0}),
        (["tp"], {"tp": 2048, "dp": 1, "zero": 0, "shard_group": 0}),
        (["ddp", "tp"], {"tp": 256, "dp": 8, "zero": 0, "placement": ("dp", "tp", "pp")}),
        (["fsdp", "tp"], {"tp": 256, "dp": 8, "zero": 3, "shard_group": 0, "placement": ("dp", "tp", "pp")}),
    ],
)
def test_a_transformers_roles_are_a_plan(levels, expected):
    plan = of_roles({"transformer": levels}, experts=False)
    assert {name: getattr(plan, name) for name in expected} == expected
    assert (plan.devices, plan.micro_batch) == (2048, 2048 // plan.dp)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"transformer": ["ddp"], "experts": ["ep", "ddp"]}, {"tp": 1, "ep": 8, "zero": 0}),
        ({"transformer": ["tp", "ddp"], "experts": ["tp", "ep"]}, {"tp": 8, "ep": 256, "zero": 0}),
        ({"transformer": ["tp", "ddp"], "experts": ["ep", "ddp"]}, {"tp": 8, "ep": 8, "etp": 1, "sequence_parallel": True}),
        ({"transformer": ["tp", "ddp"], "experts": ["ep"]}, {"tp": 8, "ep": 2048, "etp": 1}),
        ({"transformer": ["tp"], "experts": ["tp", "ep"]}, {"tp": 2048, "ep": 256, "etp": 8}),
        ({"transformer": ["tp", "ddp"], "embedding": ["mp-rows", "ddp"]}, {"tp": 8, "ep": 1}),
        ({"transformer": ["fsdp"], "experts": ["ep", "fsdp"]}, {"tp": 1, "ep": 8, "zero": 3}),
        ({"transformer": ["ddp", "tp"], "experts": ["ep", "tp"]}, {"tp": 256, "ep": 8, "placement": ("dp", "tp", "pp")}),
        ({"experts": ["ep"]}, {"tp": 1, "ep": 2048}),
        ({"dense": ["tp", "ddp"]}, {"tp": 8, "ep": 1}),
    ],
)
def test_roles_of_all_layer_types_make_one_plan(roles, expected):
    plan = of_roles(roles)
    assert {name: getattr(plan, name) for name in expected} == expected
    assert plan.devices == 2048


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ({"transformer": ["ddp"], "experts": ["ddp", "ep"]}, "ep256-dp2048-distant:experts"),
        ({"transformer": ["tp"], "experts": ["ep", "tp"]}, "tp2048-ep8-etp256-mb2048-sp-distant:experts"),
        ({"attention": ["ddp", "tp"], "mlp": ["tp"]}, "tp2048-atp256-mb2048-sp-distant:attention"),
        ({"attention": ["tp", "ddp"], "mlp": ["ddp", "tp"]}, "tp2048-etp256-atp8-mlptp256-embtp256-mb2048-sp-distant:mlp+experts+embedding"),
        ({"transformer": ["ddp", "tp"], "experts": ["ddp"]}, "tp2048-etp1-atp256-mlptp256-embtp256-mb2048-sp-distant:attention+mlp+embedding"),
        ({"transformer": ["tp", "pp"]}, "tp8-pp256"),
        ({"transformer": ["pp", "ddp"], "virtual_stages": 2}, "dp256-pp8-v2-placed:pp+tp+dp"),
        ({"transformer": ["pp", "fsdp"]}, "dp256-pp8-z3-placed:pp+tp+dp"),
        ({"transformer": ["ddp", "pp"], "experts": ["ep", "pp"], "micro_batch": 4}, "ep8-dp8-pp256-mb4"),
        ({"transformer": ["pp"]}, "pp2048"),
        ({"attention": ["ddp", "pp"], "mlp": ["tp", "pp"]}, "tp8-pp256-atp1-mb8-sp"),
    ],
)  # fmt: skip
def test_roles_lie_in_any_order(roles, text):
    assert of_roles(roles) == plan_of(text)


def test_a_service_in_stages_takes_all_requests_of_a_replica():
    assert of_roles({"transformer": ["tp", "pp"]}, training=False) == plan_of("tp8-pp256-mb8")
    assert of_roles({"transformer": ["tp", "ddp"]}, training=False) == plan_of("tp8-dp256-mb8")
    apart = of_roles({"attention": ["ddp", "pp"], "mlp": ["tp", "pp"]}, nodes=4, training=False)
    assert apart == plan_of("tp8-pp4-atp1-mb512-sp")
    few = plan_of_roles(parse({"attention": ["ddp", "pp"], "mlp": ["tp", "pp"]}, TRANSFORMER), 16, 8, 4, experts=True, training=False)
    assert few.micro_batch == 8  # not the 4 that an even division over the stages would be


@pytest.mark.slow
def test_roles_of_two_levels_in_any_order_are_a_plan():
    """Whatever cuts, repeats, shards or shares out which layer type at which level."""
    levels = ("ddp", "fsdp", "tp")
    roles = {"attention": levels, "mlp": levels, "experts": (*levels, "ep"), "embedding": ("ddp", "fsdp", "tp")}
    every = list(itertools.product(*(itertools.product(both, both) for both in roles.values())))
    sizes = (2, 4)
    for chosen in np.random.default_rng(7).permutation(len(every))[:400]:
        given = dict(zip(roles, map(list, every[chosen]), strict=True))
        plan = of_roles(given, node=2, nodes=4)
        assert plan.devices == 8
        assert plan_problem(plan, MIXTRAL, 2048) is None, (given, plan_problem(plan, MIXTRAL, 2048))
        assert plan_of(str(plan)) == plan
        layout = Layout.of([plan], np.array([2048.0]), 2)
        for kind, both in given.items():
            groups = {"tp": layout.sharing(kind)}
            if kind == "experts":
                groups["ep"] = layout.expert
            spread = layout.spread(kind)
            groups["fsdp"] = spread.shards if spread.zero[0] == 3 else layout.group(np.ones(1), np.ones(1))
            groups["ddp"] = spread.copies if spread.zero[0] == 3 else spread.data
            for role, group in groups.items():
                wanted = math.prod(size for size, one in zip(sizes, both, strict=True) if one == role)
                assert (group.size[0], group.per_node[0]) == (wanted, sizes[0] if both[0] == role else 1), (given, kind, role)


OWN = "attention_tp", "mlp_tp", "etp", "embedding_tp"


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"attention": ["ddp"], "mlp": ["tp", "ddp"]}, {"tp": 8, "attention_tp": 1, "mlp_tp": 0, "etp": 0, "embedding_tp": 0}),
        ({"transformer": ["tp", "ddp"], "embedding": ["ddp"]}, {"tp": 8, "embedding_tp": 1, "attention_tp": 0, "mlp_tp": 0}),
        ({"transformer": ["ddp"], "embedding": ["mp", "ddp"]}, {"tp": 8, "embedding_tp": 0, "attention_tp": 1, "mlp_tp": 1, "etp": 1}),
        ({"transformer": ["ddp"], "experts": ["tp", "ep"]}, {"tp": 8, "ep": 256, "attention_tp": 1, "mlp_tp": 1, "embedding_tp": 1}),
        ({"attention": ["tp", "ddp"], "mlp": ["tp"]}, {"tp": 2048, "attention_tp": 8, "mlp_tp": 0}),
        ({"attention": ["fsdp", "ddp"], "mlp": ["tp", "ddp"]}, {"attention_tp": 1, "zero": 3, "shard_group": 1, "unsharded": ("mlp", "experts", "embedding")}),
        ({"attention": ["fsdp"], "mlp": ["tp", "fsdp"]}, {"attention_tp": 1, "zero": 3, "shard_group": 0, "unsharded": ()}),
        ({"transformer": ["fsdp"], "embedding": ["ddp"]}, {"tp": 1, "zero": 3, "unsharded": ("embedding",)}),
        ({"transformer": ["fsdp"], "embedding": ["mp"]}, {"tp": 1, "zero": 3, "unsharded": ()}),
        ({"transformer": ["ddp"], "experts": ["fsdp"]}, {"tp": 1, "zero": 3, "unsharded": ("attention", "mlp", "embedding")}),
        ({"transformer": ["ddp", "fsdp"]}, {"tp": 1, "zero": 3, "shard_group": 256, "apart": TYPES, "unsharded": ()}),
        (
            {"transformer": ["ddp", "fsdp"], "embedding": ["fsdp", "ddp"], "attention": ["ddp"]},
            {"zero": 3, "shard_group": 0, "mlp_shard_group": 256, "experts_shard_group": 256, "embedding_shard_group": 8, "apart": ("mlp", "experts"), "unsharded": ("attention",)},
        ),
        (
            {"transformer": ["fsdp", "ddp"], "experts": ["ep", "fsdp"]},
            {"ep": 8, "attention_shard_group": 8, "mlp_shard_group": 8, "experts_shard_group": 0, "embedding_shard_group": 8, "apart": ()},
        ),
    ],
)  # fmt: skip
def test_layer_types_have_roles_of_their_own(roles, expected):
    plan = of_roles(roles)
    assert {name: getattr(plan, name) for name in expected} == expected
    assert plan.devices == 2048
    assert plan.sequence_parallel == any(getattr(plan, name) for name in OWN)


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        (
            {"transformer": ["tp", "pp"], "embedding": ["mp", "ddp"]},
            "attention (tp, pp) beside embedding (tp, ddp): stages of a pipeline (pp) hold whole layers, so that all layer types have the role pp"
            " at a level, or none",
        ),
        ({"transformer": ["ddp"], "dense": ["tp"]}, "a transformer's layers are of type transformer; leave dense out"),
        (
            {"attention": ["ddp"]},
            "attention has roles and mlp has none; give mlp too, or transformer, which stands for both",
        ),
        ({"mlp": "dp"}, "mlp: unknown role 'dp'; did you mean 'ddp'?; it can be ddp, fsdp, tp, pp"),
        (
            {"embedding": "mp-columns"},
            "embedding: mp-columns would cut every word's vector, which a product with the vocabulary needs whole; it can be ddp, fsdp, tp, mp, mp-rows, pp",
        ),
    ],
)
def test_roles_that_no_plan_has_are_told(roles, sentence, exactly):
    with pytest.raises(StrategyError, match=exactly(f"strategy: {sentence}")):
        of_roles(roles)


@pytest.mark.parametrize(
    ("roles", "options", "said"),
    [
        ({"transformer": ["ddp", "tp"]}, {"placement": ("tp", "dp", "pp")}, "placement = tp+dp+pp"),
        ({"transformer": ["fsdp"]}, {"zero": 1}, "zero = 1"),
        ({"transformer": ["ddp"]}, {"zero": 3}, "zero = 3"),
        ({"transformer": ["fsdp", "ddp"]}, {"shard_group": 4}, "shard_group = 4"),
        ({"transformer": ["fsdp", "ddp"]}, {"experts_shard_group": 2}, "experts_shard_group = 2"),
        ({"transformer": ["ddp"]}, {"unsharded": ("mlp",)}, "unsharded = mlp"),
        ({"transformer": ["tp", "ddp"], "experts": ["ep", "ddp"]}, {"sequence_parallel": False}, "sequence_parallel = False"),
    ],
)
def test_options_that_say_otherwise_are_refused(roles, options, said, exactly):
    with pytest.raises(StrategyError, match=exactly(f"strategy: {said} is not what the roles of layer types mean; leave it out")):
        of_roles({**roles, **options})


def test_options_that_roles_leave_open_count():
    plan = of_roles({"transformer": ["tp", "ddp"], "zero": 1, "recompute": "full"}, experts=False)
    assert (plan.tp, plan.zero, plan.recompute) == (8, 1, "full")


def test_experts_that_are_not_there_are_not_shared_out(exactly):
    with pytest.raises(StrategyError, match=exactly("strategy: experts ep, but the model has no experts")):
        of_roles({"experts": ["ep"]}, experts=False)


# ------------------------------------------------------------------------------------------ what they do

SYSTEM = {"template": "dgx-h100", "nodes": 2}
LLAMA = {"model": "llama2-7b", "global_batch": 64}


def predicted(strategy, **workload):
    return predict(from_dict({"system": SYSTEM, "workload": {**LLAMA, **workload}, "strategy": strategy, "software": "megatron-core"}))


def same(one, other):
    assert one.step_time == pytest.approx(other.step_time, rel=1e-9)
    assert one.score.memory_needed[0] == pytest.approx(other.score.memory_needed[0], rel=1e-9)
    for name in ("flops", "energy", "communication", "breakdown"):
        there, here = getattr(one.score, name), getattr(other.score, name)
        if isinstance(there, dict):
            for key in {*there, *here}:
                assert there.get(key, [0.0])[0] == pytest.approx(here.get(key, [0.0])[0], rel=1e-9, abs=1e-12), (name, key)
        else:
            assert there[0] == pytest.approx(here[0], rel=1e-9)


def test_degrees_that_are_those_of_the_plan_change_nothing():
    same(predicted("tp8-atp8-mlptp8-embtp8-dp2-mb4-sp"), predicted("tp8-dp2-mb4-sp"))


@pytest.mark.cases(1)
@pytest.mark.parametrize("rest", ["", "-z1", "-z3", "-full", "-placed:dp+tp+pp", "-z3-placed:dp+tp+pp"])
def test_a_tensor_group_that_shares_no_layer_is_data_parallel(rest):
    """Every rank of it has whole layers and samples of its own, which is what data parallelism is."""
    same(predicted(f"tp8-atp1-mlptp1-embtp1-dp2-mb8-sp{rest}"), predicted(f"dp16-mb1{rest.replace('-placed:dp+tp+pp', '')}"))


@pytest.mark.parametrize("roles", [{"transformer": ["ddp", "tp"], "embedding": ["ddp"]}, {"attention": ["ddp"], "mlp": ["ddp", "tp"]}])
def test_what_every_rank_repeats_may_lie_beside_what_is_cut_between_nodes(roles):
    """GPT-3 with (ddp, tp) of MAD-Max, whose table all devices repeat."""
    plan = of_roles(roles, experts=False)
    assert (plan.tp, plan.dp, plan.placement) == (256, 8, ("dp", "tp", "pp"))
    assert {kind: plan.tensor_of(kind) for kind in ("attention", "mlp", "embedding")} == {
        "attention": 1 if "attention" in roles else 256, "mlp": 256, "embedding": 1 if "embedding" in roles else 256,
    }  # fmt: skip


def test_experts_and_all_else_uncut_is_expert_parallel():
    same(
        predicted("tp8-atp1-mlptp1-embtp1-etp1-ep8-dp2-mb8-sp", model="mixtral-8x7b"),
        predicted("ep8-dp16-mb1", model="mixtral-8x7b"),
    )


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("whole", "near", "model"),
    [
        ("tp16-atp2-mlptp2-embtp2-distant:attention+mlp+embedding-mb64-sp", "tp2-dp8-mb8-sp-placed:dp+tp+pp", "llama2-7b"),
        ("tp16-atp1-mlptp1-embtp1-etp1-ep2-distant:experts-mb64-sp", "ep2-dp16-mb4-distant:experts", "mixtral-8x7b"),
        ("tp16-atp8-mlptp8-embtp8-mb64-sp", "tp8-dp2-mb32-sp", "llama2-7b"),
        ("tp4-atp1-mlptp1-embtp1-ep2-dp4-mb16-sp", "etp4-ep2-dp16-mb4", "mixtral-8x7b"),
        ("tp8-atp2-mlptp2-embtp2-ep2-dp2-mb32-sp-z1", "tp2-etp8-ep2-dp8-mb8-sp-z1", "mixtral-8x7b"),
    ],
)
def test_a_tensor_group_of_all_devices_says_what_nearer_ones_do(whole, near, model):
    same(predicted(whole, model=model), predicted(near, model=model))


def test_experts_shared_out_between_nodes_travel_and_their_gradients_do_not():
    """The other way round than groups of experts inside nodes: tokens go over the network, copies meet inside."""
    slower = {"system.network.inter.bandwidth": [25e9, 50e9]}
    found = {}
    for strategy in ("ep8-dp16-mb4", "ep2-dp16-mb4-distant:experts"):
        given = {"system": SYSTEM, "workload": {**LLAMA, "model": "mixtral-8x7b"}, "strategy": strategy, "software": "megatron-core"}
        sent = evaluate(from_dict(given), slower).communication
        found[strategy] = sent["all_to_all"][0] / sent["all_to_all"][1]
    assert found["ep8-dp16-mb4"] == 1
    assert found["ep2-dp16-mb4-distant:experts"] > 1.9


def test_attention_apart_sends_nothing_but_its_gradients_and_keeps_its_weights_whole():
    apart, together = predicted("tp8-atp1-dp2-mb8-sp"), predicted("tp8-dp2-mb8-sp")
    reading = [predicted(text, task="prefill").score.by_layer for text in ("tp8-atp1-dp2-mb8-sp", "tp8-dp2-mb8-sp")]
    assert reading[0]["attention.communication"][0] == reading[0]["attention.exposed"][0] == 0
    assert reading[1]["attention.communication"][0] >= reading[1]["attention.exposed"][0] > 0
    assert apart.score.by_layer["mlp.communication"][0] == pytest.approx(together.score.by_layer["mlp.communication"][0])
    whole = 4 * 4096 * 4096 * 32 * 7 / 8 * 2  # query, key, value and output of all layers, but for a rank's eighth, in bf16
    assert apart.score.memory["weights"][0] - together.score.memory["weights"][0] == pytest.approx(whole, rel=1e-3)


def test_a_service_whose_ranks_attend_to_requests_of_their_own_keeps_less_of_a_latent():
    """Latents are held whole by every rank of a tensor group; with requests of its own each rank has only theirs."""
    workload = {"model": "deepseek-v2", "task": "decode", "prompt": 4096, "output": 512, "global_batch": 64}
    apart, together = (predicted(f"tp8-{own}etp1-ep16-dp2-mb32-sp", **workload) for own in ("atp1-", ""))
    assert apart.score.memory["kv_cache"][0] == pytest.approx(together.score.memory["kv_cache"][0] / 8)


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["", "-full"])
def test_nothing_sharded_is_data_parallel(tail):
    sharded = predicted(f"dp16-mb1-z3-unsharded:attention+mlp+embedding{tail}")
    same(sharded, predicted(f"dp16-mb1{tail}"))


def test_what_is_not_sharded_is_not_gathered():
    bare, full = predicted("dp16-mb1-z3-unsharded:embedding"), predicted("dp16-mb1-z3")
    assert bare.score.communication["all_gather"][0] < full.score.communication["all_gather"][0]
    assert bare.score.communication["all_reduce"][0] > 0
    assert full.score.communication["all_reduce"][0] == 0
    assert bare.score.memory["weights"][0] > full.score.memory["weights"][0]
    assert bare.score.memory["weights"][0] - full.score.memory["weights"][0] == pytest.approx(2 * 2 * 32000 * 4096 * 15 / 16, rel=1e-3)


def test_shards_apart_are_gathered_over_the_network():
    gathers = {}
    for strategy in ("dp16-mb1-z3-g2", "dp16-mb1-z3-g2-apart"):
        given = from_dict({"system": SYSTEM, "workload": LLAMA, "strategy": strategy, "software": "megatron-core"})
        slow, fast = evaluate(given, {"system.network.inter.bandwidth": [25e9, 50e9]}).communication["all_gather"]
        gathers[strategy] = slow / fast
    assert gathers["dp16-mb1-z3-g2"] == 1
    assert gathers["dp16-mb1-z3-g2-apart"] > 1.5
    assert predicted({"transformer": ["ddp", "fsdp"]}).step_time == predicted("dp16-mb4-z3-g2-apart").step_time


def test_layer_types_of_a_recommendation_model_are_its_own():
    with pytest.raises(SpecError, match="unknown layer type 'attention'"):
        from_dict({"system": "zionex", "workload": "dlrm-a", "strategy": {"attention": "ddp", "embedding": "mp"}})
