"""Multi-token prediction layers: parameters, operations, memory, their place in a pipeline, and services that do not run them."""

import numpy as np
import pytest
from sampled import every

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.answers.evaluation.timelines import simulate as timeline
from crossflow.base.errors import SpecError
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.activations import activations
from crossflow.parallel.blocks import parameters
from crossflow.parallel.shapes import counts
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.stages import Division
from crossflow.parallel.strategy.transformers import plan_of
from crossflow.parallel.tables import tables_of
from crossflow.workload.released import MTP_NOTE
from crossflow.workload.spec import TransformerSpec

SMALL = {
    "model": "transformer", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 2816, "vocabulary": 32000, "sequence": 512, "global_batch": 32,
    "experts": {"count": 8, "active": 2, "dense_layers": 1},
}  # fmt: skip
PLANS = ["dp8", "tp8-sp", "tp4-dp2", "pp4-dp2", "tp2-pp2-dp2-v2-sp-full", "pp4-dp2-z3", "pp8-zbh1", "pp4-dp2-gpipe", "ep8-dp8-z1-selective"]


def scenario(strategy="dp8", software="megatron-core", **workload):
    system = {"template": "dgx-h100", "nodes": None}
    return crossflow.from_dict({"system": system, "workload": {**SMALL, **workload}, "strategy": strategy, "software": software})


def model(**workload):
    return TransformerSpec.model_validate({**SMALL, **workload}).transformer()


def layout(strategy):
    return Layout.of([plan_of(strategy)], np.full(1, 32.0), 8)


# ------------------------------------------------------------------------------------------ the model


def test_a_layer_has_parameters_of_its_own_but_for_embedding_and_head():
    main, further = model(), model(mtp_layers=2)
    own = main.layers[-1].parameters + 2 * 1024 * 1024 + 3 * 1024  # a layer, M[2d, d], norms of both inputs and of the output
    assert further.mtp_parameters == 2 * own
    assert (further.parameters, further.active_parameters) == (main.parameters, main.active_parameters)


def test_none_change_nothing():
    with_none, without = (crossflow.predict(given).to_dict() for given in (scenario(mtp_layers=0), scenario()))
    assert {**with_none, "provenance": 0} == {**without, "provenance": 0}


def test_operations_are_those_of_a_layer_the_projection_and_one_more_head():
    """Forward once and backward twice as many, attention scores included."""
    base, more = (crossflow.predict(scenario(mtp_layers=k)).score for k in (0, 1))
    main = model()
    layer = sum(main.part_flops(part, 512) for part in main.layers[-1].parts)
    each = layer + 2 * 512 * (2 * 1024 * 1024 + 1024 * 32000)
    done = [float(s.mfu[0] * s.step_time[0]) for s in (base, more)]  # in proportion to the operations that the model needs
    expected = (main.forward_flops() + each) / main.forward_flops()
    assert done[1] / done[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", PLANS)
def test_each_lengthens_the_step_by_its_operations_at_least(strategy):
    times = [crossflow.predict(scenario(strategy, mtp_layers=k)).step_time for k in (0, 1, 2)]
    assert 1.02 * times[0] < times[1]
    assert 1.02 * times[1] < times[2]


@pytest.mark.parametrize("changes", [{"experts": None, "encoder": {"layers": 2, "sequence": 64}}, {"head": "none"}, {"causal": False}])
def test_other_models_have_none(problems, changes):
    sentence = "multi-token prediction is modelled for causal decoders with a language head only; set mtp_layers to 0"
    assert problems(scenario, mtp_layers=1, **changes) == [("workload.mtp_layers", sentence)]


def test_they_are_not_among_the_layers_that_a_plan_freezes():
    with pytest.raises(SpecError, match="layers:8-8 is not a range of the model's layers 0-7"):
        scenario(mtp_layers=1, frozen="layers:8")


# ------------------------------------------------------------------------------------------ pipelines


@pytest.mark.parametrize(("stages", "chunks"), [(1, 1), (4, 1), (2, 2)])
def test_the_last_chunk_runs_them_and_others_keep_their_layers(stages, chunks):
    jobs = [scenario(mtp_layers=k).job() for k in (0, 2)]
    (without, *_), (forward, _, weight) = (counts(job, stages, chunks, Division(), False) for job in jobs)
    main = without.shape[1] - 1  # embedding and layers come first, the head last
    assert (forward[:, :main] == without[:, :main]).all()
    assert (forward[:, -1] == without[:, -1]).all()
    assert forward[:-1, main:-1].sum() == 0
    assert forward[-1, main:-1].tolist() == [1.0] * 8  # two layers of embedding, attention, experts and head
    assert (weight == forward).all()


def test_stages_by_weight_leave_room_for_them():
    """As nanotron divides a pipeline: the last stage has fewer layers where it has more to hold."""
    sizes = [counts(scenario(mtp_layers=k).job(), 2, 1, Division(), True)[0][1, 1:5].sum() for k in (0, 2)]
    assert sizes[1] < sizes[0]


def test_only_the_last_stage_holds_them_with_a_copy_of_the_table():
    held = [crossflow.predict(scenario("pp4-dp2", mtp_layers=k)).memory_by_stage for k in (0, 1)]
    more = [after["weights"] - before["weights"] for before, after in zip(*held, strict=True)]
    assert more == pytest.approx([0, 0, 0, 2 * (model(mtp_layers=1).mtp_parameters + 32000 * 1024)])


@pytest.mark.parametrize(
    ("strategy", "changes", "copies"),
    [("dp8", {}, 0), ("pp4-dp2", {}, 1), ("pp4-dp2", {"mtp_layers": 3}, 1), ("pp4-dp2", {"tied_embeddings": True}, 0)],
)
def test_one_copy_of_the_table_where_the_stage_has_none(strategy, changes, copies):
    found = model(**{"mtp_layers": 1, **changes})
    held = sum(
        layer.count * sum(float(np.sum(amount)) for amount in parameters(part, layout(strategy)))
        for layer in found.layers if layer.predicts for part in layer.parts
    )  # fmt: skip
    assert held == found.mtp_parameters + copies * 32000 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "changes", "copies"),
    [("pp4-dp2", {}, 1), ("tp2-pp4", {}, 0.5), ("dp8", {}, 0), ("pp4-dp2", {"mtp_layers": 0}, 0), ("pp4-dp2", {"frozen": "embedding"}, 0)],
)
def test_gradients_of_a_copied_table_are_added_up(strategy, changes, copies):
    job, stack = scenario(strategy, **{"mtp_layers": 1, **changes}).job(), load_stack("megatron-core")[0]
    summed = tables_of(job, layout(strategy), stack).between.tied
    assert summed.tolist() == [copies * 32000 * 1024 * stack.gradient_size(2)]


def test_softmaxes_of_all_losses_wait_for_the_backward_pass():
    stack, plan = load_stack("megatron-core")[0], layout("dp8")
    base, *more = (activations(scenario(mtp_layers=k).job(), plan, stack)[1] for k in (0, 1, 2))
    for k, working in enumerate(more, 1):
        heads = {float(size[0]) for name, size in working.items() if name.endswith("head")}
        assert heads == {float(base["head"][0]) + k * 4 * 512 * 32000}


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "software"),
    [(plan, software) for turn, plan in enumerate(PLANS) for software in every(3, ("megatron-core", "nanotron", "pytorch-fsdp"), turn)],
)
def test_a_timeline_takes_as_long_as_its_prediction(strategy, software):
    given = scenario(strategy, software, mtp_layers=2)
    found = timeline(given)
    assert found.total == pytest.approx(crossflow.predict(given).step_time, rel=1e-9)
    assert max(held.max() for _, held in found.memory) <= crossflow.predict(given).score.memory_needed[0] * (1 + 1e-9)


def test_every_parameter_meets_an_optimizer_once():
    """Those of the layers too, and the copy of the table."""
    given = scenario("pp2-dp2", mtp_layers=2)
    updated = sum(float(e.shape.split()[0]) * e.count for e in events(given).events if e.op == "optimizer")
    found = given.job().model
    assert updated == pytest.approx(2 * (found.parameters + found.mtp_parameters + 32000 * 1024), rel=1e-9)


# ------------------------------------------------------------------------------------------ services


@pytest.mark.slow
@pytest.mark.parametrize("task", ["forward", "prefill", "decode"])
def test_services_do_not_run_them_and_say_so(task):
    with_, without = (crossflow.predict(scenario(task=task, software="vllm", mtp_layers=k)).to_dict() for k in (1, 0))
    assert with_.pop("notes") == [MTP_NOTE]
    assert {**with_, "provenance": 0} == {**without, "provenance": 0}


# ------------------------------------------------------------------------------------------ layers of one part


HYBRID = {
    **SMALL, "ssm": {"heads": 16, "head_dim": 64, "state": 64, "mlp": False, "pattern": ["ssm", "attention", "experts", "ssm"]},
    "experts": {"count": 8, "active": 2},
}  # fmt: skip


def test_a_hybrid_predicts_by_its_last_layers_of_attention_and_of_experts():
    whole = TransformerSpec.model_validate({**HYBRID, "mtp_layers": 2}).transformer()
    (entry, mixer, experts, head) = whole.layers[-1].parts
    kinds = {part.type: part for layer in whole.main for part in layer.parts}
    assert (mixer, experts) == (kinds["attention"], kinds["experts"])
    assert (entry.type, head.type) == ("embedding", "head")


def test_hybrids_without_attention_or_mlp_predict_no_further_tokens(exactly):
    pattern = {**HYBRID["ssm"], "pattern": ["ssm", "experts"]}
    given = {**HYBRID, "ssm": pattern, "mtp_layers": 1, "heads": None}
    sentence = "mtp_layers: a layer that predicts has attention and an MLP, and this model has not both; set mtp_layers to 0"
    with pytest.raises(SpecError, match=exactly(f"scenario: workload.{sentence}")):
        crossflow.from_dict({"system": "dgx-h100", "workload": {k: v for k, v in given.items() if v is not None}, "strategy": "dp8"})


@pytest.mark.parametrize("tied", [True, False])
def test_layers_that_share_weights_hold_those_of_one_and_do_the_work_of_all(tied):
    one, own, shared = (model(mtp_layers=k, mtp_shared=same, tied_embeddings=tied) for k, same in ((1, False), (3, False), (3, True)))
    assert shared.mtp_parameters == one.mtp_parameters
    apart, together = (crossflow.predict(scenario(mtp_layers=3, mtp_shared=same, tied_embeddings=tied)).score for same in (False, True))
    assert apart.flops == pytest.approx(together.flops)
    assert together.memory["weights"][0] < apart.memory["weights"][0]
    assert sum(layer.count for layer in shared.layers) == sum(layer.count for layer in own.layers)


def test_layers_that_stay_wide_multiply_in_16_bits():
    wide, narrow = (model(mtp_layers=1, mtp_wide=how, dtype="fp8") for how in (True, False))
    assert [part.wide for part in wide.layers[-1].parts if part.type not in ("embedding", "head")] == [True, True]
    assert not any(part.wide for layer in narrow.layers for part in layer.parts)
    assert not any(part.wide for layer in wide.main for part in layer.parts)


@pytest.mark.parametrize("key", ["mtp_shared", "mtp_wide"])
def test_what_is_said_of_layers_that_are_not_there_is_refused(key, exactly):
    sentence = f"{key}: the model has no layers that predict further tokens; set mtp_layers, or give false"
    with pytest.raises(SpecError, match=exactly(f"scenario: workload.{sentence}")):
        scenario(**{key: True})
