# ruff: noqa: E501  (exact sentences)
"""One language of strategies: every notation means the same for every workload, reads back as itself, or is refused with its cure."""

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import CrossflowError, StrategyError
from crossflow.parallel.strategy.graphs import graph_mesh
from crossflow.parallel.strategy.hierarchy import hierarchy_of
from crossflow.parallel.strategy.mesh import ROLE_WORDS, WORD_ROLES
from crossflow.parallel.strategy.notation import FORMS, PLAN_KEYS, parse, parse_any
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.transformers import plan_of

LSTM = {"model": "lstm-16k", "layers": 2, "sequence": 4, "global_batch": 512}
GEMM = {"model": "gemm", "m": 4096, "n": 4096, "k": 4096}
LLAMA = {"model": "llama2-7b", "global_batch": 64}
MIXTRAL = {"model": "mixtral-8x7b", "global_batch": 64}
DLRM = {"model": "dlrm-a", "global_batch": 65536}
MOE = {"model": "dlrm-a-moe", "global_batch": 65536}
CLUSTER = {"template": "a100-ib-cluster", "nodes": 2}  # of eight devices
SAME = [
    (LSTM, ["RC-1-8-d2", "tp8-dp2", "dp2-tp8", {"tp": 8, "dp": 2}, {"kp2": 8, "dp": 2}, {"kernel": "RC", "kp1": 1, "kp2": 8, "dp": 2}]),
    (LSTM, ["RC-2-4-d2", "cp2-tp4-dp2", {"cp": 2, "tp": 4, "dp": 2}]),
    (LSTM, ["RC-1-8-p2-placed:tp+dp+pp", {"dense": ["tp", "pp"]}, "dense (tp, pp)", {"tp": 8, "pp": 2, "placement": ["tp", "dp", "pp"]}]),
    (LSTM, ["d16", "dp16", {"dp": 16}, {"dense": "ddp"}, {"dense": "ddp", "embedding": "ddp"}]),
    (GEMM, ["RC-1-2-d8-placed:dp+tp+pp", "tp2-dp8-placed:dp+tp+pp", {"dense": ["ddp", "tp"]}]),
    (GEMM, ["RC-1-16", "tp16", {"tp": 16}, {"dense": ["tp"]}]),
    (LLAMA, ["tp8-dp2", "RC-1-8-d2", {"kp2": 8, "dp": 2}, {"transformer": ["tp", "ddp"], "micro_batch": 1}]),
    (LLAMA, ["tp4-cp2-dp2-z1-sp", "RC-2-4-d2-z1-sp", {"kp1": 2, "kp2": 4, "dp": 2, "zero": 1, "sequence_parallel": True}]),
    (LLAMA, ["tp8-pp2", "RC-1-8-p2", {"tp": 8, "lp": 2}, {"transformer": ["tp", "pp"]}]),
    (MIXTRAL, ["ep8-dp16", "RC-1-1-d16-ep8", {"transformer": "ddp", "experts": ["ep", "ddp"], "micro_batch": 1}]),
    (DLRM, [{"dense": ["tp", "ddp"], "embedding": "mp"}, "dense (tp, ddp), embedding mp", "tp8-dp2", "RC-1-8-d2", {"tp": 8, "dp": 2}]),
    (DLRM, [{"dense": ["ddp", "tp"], "embedding": "mp"}, "tp2-dp8-placed:dp+tp+pp", {"tp": 2, "dp": 8, "placement": ["dp", "tp", "pp"]}]),
    (DLRM, ["dense ddp, embedding mp", "d16", "dp16", {"dp": 16}, "d*"]),
    (DLRM, ["dense fsdp, embedding mp", "dp16-z3", {"dp": 16, "zero": 3}]),
    (MOE, ["dense ddp, embedding mp, experts (ep, ddp)", "dp16-ep8"]),
    (MOE, ["dense (tp, ddp), embedding mp, experts (tp, ep)", "tp8-dp2-ep2"]),
]  # fmt: skip


def made(workload, strategy, system=None):
    return crossflow.from_dict({"system": system or CLUSTER, "workload": workload, "strategy": strategy})


@pytest.mark.cases(9)
@pytest.mark.slow
@pytest.mark.parametrize(("workload", "written"), SAME, ids=lambda given: given.get("model") if isinstance(given, dict) else None)
def test_a_strategy_means_the_same_in_every_notation(workload, written):
    scenarios = [made(workload, strategy) for strategy in written]
    scores = [evaluate(one) for one in scenarios]
    for score in scores[1:]:
        assert (score.step_time, score.energy, score.memory_needed) == (scores[0].step_time, scores[0].energy, scores[0].memory_needed)
    assert len({one.strategy_text for one in scenarios}) == 1
    again = made(workload, scenarios[0].strategy_text)
    assert (again.strategy_text, evaluate(again).step_time) == (scenarios[0].strategy_text, scores[0].step_time)


def test_notations_of_one_batch_are_those_of_points_one_by_one():
    written = ["tp8-dp2", "RC-1-8-d2", "dense fsdp, embedding mp", {"dp": 16, "zero": 3}]
    score = evaluate(made(DLRM, "d16"), {"strategy": written})
    assert np.array_equal(score.step_time, [evaluate(made(DLRM, one)).step_time[0] for one in written])
    assert score.step_time[0] == score.step_time[1] != score.step_time[2] == score.step_time[3]


def test_levels_of_a_graph_lie_as_they_are_written():
    system = {"template": "a100-ib-cluster", "nodes": 8}
    times = []
    for roles, order in ((["tp", "ddp"], ["kp2", "dp"]), (["ddp", "tp"], ["dp", "kp2"])):
        placed = crossflow.from_dict({"system": system, "workload": LSTM, "strategy": "tp8-dp8", "placement": order})
        times += [evaluate(made(LSTM, {"dense": roles}, system)).step_time[0], evaluate(placed).step_time[0]]
    assert times[0] == times[1] != times[2] == times[3]


REFUSED = [
    (LSTM, "tp8-dp2-z1", "strategy: zero is supported for transformers and recommendation models only; lstm and gemm take kernel, kp1, kp2, tp, cp, dp, pp, lp, placement"),
    (LSTM, {"dp": 16, "recompute": "full"}, "strategy: recompute is supported for transformers only; lstm and gemm take kernel, kp1, kp2, tp, cp, dp, pp, lp, placement"),
    (GEMM, {"dense": "ddp", "micro_batch": 2}, "strategy: micro_batch beside layer types is supported for transformers only; lstm and gemm take dense, embedding"),
    (LSTM, {"dense": ["fsdp"]}, "strategy: dense: fsdp is supported for transformers and recommendation models only; it can be ddp, tp, pp"),
    (LSTM, {"dense": ["tp", "ddp"], "embedding": "ddp"}, "strategy: dense (tp, ddp), embedding ddp: all layers of lstm and gemm are divided alike; write dense (tp, ddp), which stands for all"),
    (GEMM, "dense ddp, embedding ddp", "strategy: dense ddp, embedding ddp, but the model has no layers of type embedding; leave it out"),
    (LSTM, {"mlp": ["tp", "ddp"]}, "strategy: unknown layer type 'mlp'; known: dense, embedding"),
    (LSTM, {"tp": 8, "kp2": 8}, "strategy: tp and kp2 name the same degree; give one of them"),
    (LLAMA, "CR-8-d2", "strategy: CR-8 cuts the inner dimension of every product, which is supported for lstm and gemm only; write tp8, with which transformers cut products by columns and by rows in turn"),
    (LLAMA, {"kernel": "RC", "tp": 8, "kp2": 8}, "strategy: tp and kp2 name the same degree; give one of them"),
    (DLRM, "tp4-dp4", "strategy: tp = 4 in nodes of 8: a recommendation model has one role inside nodes and one between them; write tp 1, 8 inside nodes, 2 between them with placement: [dp, tp, pp], or 16"),
    (DLRM, "d16-p2", "strategy: pp is supported for lstm and gemm and transformers only; recommendation models take tp, dp, ep, zero, placement, kernel, kp1, kp2"),
    (DLRM, "dp16-z1", "strategy: zero: 1 is supported for transformers only; write 0, or 3, which shards the weights too"),
    (DLRM, "CR-8-d2", "strategy: CR-8 cuts the inner dimension of every product, which is supported for lstm and gemm only; write tp8, with which recommendation models cut products by columns and by rows in turn"),
    (DLRM, "RC-2-8", "strategy: kp1 = 2 cuts the rows of every product, which are samples here; give dp all of them"),
    (DLRM, "tp8", "strategy RC-1-8 needs 8 devices (tp 8), but the system has 16; dp2 beside it takes all of them"),
    (MOE, "tp8-dp2-ep4", "strategy: ep = 4 does not fill the 2 replicas of experts; write ep 2, or roles such as experts: [tp, ep]"),
    (DLRM, "tables", "strategy 'tables': 'tables' is not understood; write roles by layer type such as 'dense (tp, ddp), embedding mp', or degrees such as tp8-dp2"),
]  # fmt: skip


@pytest.mark.parametrize(("workload", "strategy", "sentence"), REFUSED)
def test_what_means_nothing_for_a_workload_is_refused_with_its_cure(workload, strategy, sentence):
    with pytest.raises(CrossflowError) as told:
        made(workload, strategy)
    assert sentence.removeprefix("strategy: ") in str(told.value)


def test_an_order_is_said_once():
    with pytest.raises(CrossflowError, match=r"strategy RC-1-8-d2-placed:dp\+tp\+pp says how its axes lie, dp, kp2; leave placement out"):
        crossflow.from_dict({"system": CLUSTER, "workload": LSTM, "strategy": {"tp": 8, "dp": 2, "placement": ["dp", "tp", "pp"]}, "placement": ["kp2", "dp"]})  # fmt: skip


def test_the_vocabulary_is_that_of_plans_and_roles():
    assert set(PLAN_KEYS) == set(Plan.__dataclass_fields__)
    assert {word for form in FORMS for words in form.types.values() for word in words} == set(WORD_ROLES)
    assert {ROLE_WORDS[WORD_ROLES[word]] for word in WORD_ROLES} == set(WORD_ROLES)


@pytest.mark.parametrize(
    "text", ["RC-2-4-d8-p2", "CR-8-d64", "d16-p2-placed:pp+tp+dp", "RC-1-8-d2-v3-mb2-sp-full", "RC-1-4-z3-g2-offload:weights-order:a.yaml"]
)
def test_a_mesh_reads_back_as_itself(text):
    mesh = parse_any(text)
    assert (str(mesh), parse_any(str(mesh))) == (text, mesh)


def test_lowered_forms_agree_on_degrees():
    written = "tp8-dp2"
    assert graph_mesh(written).degree("columns") == plan_of(written).tp == 8
    assert hierarchy_of(written, (8, 2)).dense == ("columns", "batch")
    assert [parse(written, form).devices for form in FORMS] == [16, 16, 16]


def test_what_no_workload_could_have_is_told_where_the_workload_is_wrong():
    with pytest.raises(StrategyError, match="'x' is not understood; write degrees and options"):
        parse_any("tp8-x")
    with pytest.raises(StrategyError, match="kp1 must be a positive whole number, got 0"):
        parse_any("RC-0-8")
